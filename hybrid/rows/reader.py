"""Events by time, read from wherever they are."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol

from matching.batch import EventBatch


class Reader(Protocol):
    """History as of one moment; a snapshot of an archive, or a bounded input. columns: those that are needed (None:
    all); what is at hand may have more."""

    def read(
        self,
        low_us: int | None,
        high_us: int | None,
        *,
        closed: bool = False,
        keys: Mapping[str, Sequence[Any]] | None = None,
        late: bool = False,
        columns: Collection[str] | None = None,
    ) -> EventBatch: ...

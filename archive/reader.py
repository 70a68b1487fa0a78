"""A range of a history as one object, and who can read one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from matching.batch import EventBatch

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

Values: TypeAlias = "Sequence[Any] | np.ndarray | pa.Array"


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """The events with low_us <= time < high_us of a history (<= if closed; None: no bound).

    keys: column -> values; an event has one of them, in each column (None among them: a null). late: late events too.
    columns: those that are needed (None: all); a reader may return more.
    """

    low_us: int | None = None
    high_us: int | None = None
    closed: bool = False
    keys: Mapping[str, Values] | None = None
    late: bool = False
    columns: Collection[str] | None = None


def positions_in(ts_us: np.ndarray, request: RangeRequest) -> tuple[int, int]:
    """Where a range begins and ends in ascending times, int64 (n,)."""
    start = 0 if request.low_us is None else int(ts_us.searchsorted(request.low_us, "left"))
    if request.high_us is None:
        return start, len(ts_us)
    return start, max(start, int(ts_us.searchsorted(request.high_us, "right" if request.closed else "left")))


class HistoryReader(Protocol):
    """A history as of one moment: a snapshot of an archive, or a bounded input."""

    def read(self, request: RangeRequest, /) -> EventBatch:
        """The events of a range, in the total order. Raises DataError for files that were removed."""

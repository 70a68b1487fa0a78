"""Request for a range of a history, and the protocol of its readers."""

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
    """Events of a history with low_us <= time < high_us (<= if closed; None: unbounded).

    keys: column -> values; an event must have one of the values in each of the columns (None matches null). late:
    includes late events. columns: the required columns (None: all); a reader may return more.
    """

    low_us: int | None = None
    high_us: int | None = None
    closed: bool = False
    keys: Mapping[str, Values] | None = None
    late: bool = False
    columns: Collection[str] | None = None

    @property
    def end_us(self) -> int | None:
        """The first time after the range; None: unbounded."""
        return None if self.high_us is None else int(self.high_us) + self.closed


#: All on-time events.
WHOLE = RangeRequest()


def positions_in(ts_us: np.ndarray, request: RangeRequest) -> tuple[int, int]:
    """Returns start and stop of a range in ascending times. ts_us: int64 (n,)."""
    start = 0 if request.low_us is None else int(ts_us.searchsorted(request.low_us, "left"))
    if request.high_us is None:
        return start, len(ts_us)
    return start, max(start, int(ts_us.searchsorted(request.high_us, "right" if request.closed else "left")))


class HistoryReader(Protocol):
    """A history at one moment: a snapshot of an archive, or a bounded input."""

    def read(self, request: RangeRequest, /) -> EventBatch:
        """Returns the events of a range in the total order. Raises DataError if a file was removed."""

"""Generated or recorded events as a source: a simulator's scenario, or any repeatable batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa

from live.incoming import Incoming
from live.sources.base import Bad, Piece
from query.errors import DataError
from query.schema import Schema

#: Most rows of one piece.
ROWS_MAX = 1 << 14


class SimulatedSource:
    """Reads events from `arrivals()`, as a simulator's scenario has it. Resumes: rows below a position are skipped.

    arrivals: yields (partition, position of the first row, rows), the same at each call. Rows may be repeated at
    their positions; they are returned again, as a broker does.
    rate: rows per second; None: without pauses. clock, sleep: in seconds; pass your own to run on simulated time.
    Raises DataError for a rate that is not above 0.
    """

    def __init__(
        self, schema: Schema, arrivals: Callable[[], Iterable[tuple[str, int, pa.RecordBatch]]],
        rate: float | None = None, *, clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        if rate is not None and not rate > 0:
            raise DataError(f"invalid rate {rate}", "give a number above 0, or None for as fast as possible")
        self._incoming = Incoming(schema)
        self._arrivals = arrivals
        self._rate = rate
        self._clock, self._sleep = clock, sleep
        self._left: Iterator[tuple[str, int, pa.RecordBatch]] = iter(())
        self._waiting: tuple[str, int, pa.RecordBatch] | None = None
        self._positions: dict[str, int] = {}
        self._next: dict[str, int] = {}
        self._start_s = 0.0
        self._count = 0  # rows returned

    @property
    def ended(self) -> bool:
        return self._waiting is None

    @property
    def partitions(self) -> tuple[str, ...]:
        return ()

    def open(self, positions: Mapping[str, int]) -> None:
        self._positions = dict(positions)
        self._next = dict(positions)
        self._left = iter(self._arrivals())
        self._start_s = self._clock()
        self._advance()

    def poll(self, seconds: float) -> list[Piece | Bad]:
        if self._waiting is None:
            return []
        source, first, rows = self._waiting
        n = min(rows.num_rows, ROWS_MAX)
        if self._rate is not None:
            due = self._due()
            if due < 1:
                # Until the next row is due, at most as long as the caller may wait.
                self._sleep(min(seconds, max((self._count + 1) / self._rate - (self._clock() - self._start_s), 0.0)))
                due = self._due()
            if due < 1:
                return []
            n = min(n, due)
        if n < rows.num_rows:
            self._waiting = source, first + n, rows.slice(n)
        else:
            self._advance()
        self._count += n
        self._next[source] = max(self._next.get(source, 0), first + n)
        offsets = np.arange(first, first + n, dtype=np.int64)
        return [Piece(source, self._incoming.read(rows.slice(0, n))[0], offsets, self._next[source])]

    def kept(self, positions: Mapping[str, int]) -> None:
        """Does nothing: no acknowledgement is needed."""

    def trouble(self) -> str | None:
        return None

    def close(self) -> None:
        self._left, self._waiting = iter(()), None

    def _due(self) -> int:
        assert self._rate is not None
        # A microsecond more: a sleep until a row is due may end slightly early by rounding.
        return int((self._clock() - self._start_s) * self._rate + 1e-6) - self._count

    def _advance(self) -> None:
        """Moves to the next rows at or after their position."""
        for source, first, rows in self._left:
            skip = min(max(self._positions.get(source, 0) - first, 0), rows.num_rows)
            if skip < rows.num_rows:
                self._waiting = source, first + skip, rows.slice(skip)
                return
        self._waiting = None

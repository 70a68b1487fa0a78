"""Reads one source of a service ahead, in its own thread, into a queue with a row limit."""

from __future__ import annotations

import base64
import json
import threading
from collections import deque
from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from live.sources.base import Bad, PartitionProgress, Piece, Source
from query.errors import DataError

#: Longest wait of a poll in seconds, and so the delay of a stop.
POLL_S = 0.2
#: Most rows of consecutive pieces that are joined.
JOINED_ROWS = 10_000


class Reader:
    """Reads a source into a queue. A full queue stops reading, which applies backpressure to the source.

    `turn` makes all calls of the source: in the thread that `start` starts, or called by the service. positions: where
    the source begins. rows_max: rows at which the queue is full. arrived: set when there is something to take.
    """

    def __init__(
        self, name: str, stream: str, source: Source, positions: Mapping[str, int], rows_max: int,
        arrived: threading.Event,
    ) -> None:  # fmt: skip
        self.name = name
        self.stream = stream
        self.failure: str | None = None
        #: True once it was read after opening; and true if its failure is permanent, so that it is not retried.
        self.reads = self.refused = False
        self.partitions: tuple[str, ...] = ()
        self.places: Mapping[str, PartitionProgress] = {}
        self._source = source
        self._positions = dict(positions)
        self._rows_max = rows_max
        self._arrived = arrived
        self._changed = threading.Condition()
        self._polling = threading.Lock()
        self._queue: deque[Piece | Bad] = deque()
        self._rows = 0
        self._kept: dict[str, int] | None = None
        self._opened = self._ended = self._paused = self._closing = False
        self._trouble: str | None = None
        self._thread: threading.Thread | None = None

    # ---- for the source's thread

    def turn(self, seconds: float = 0.0) -> bool:
        """Opens, acknowledges, and reads once if there is room. Returns True if something came."""
        with self._polling:
            return self._turn(seconds)

    def _turn(self, seconds: float) -> bool:
        if self.failure is not None:
            return False
        try:
            if not self._opened:
                self._source.open(self._positions)
                self._opened = True
            with self._changed:
                kept, self._kept = self._kept, None
            if kept is not None:
                self._source.kept(kept)
            if self._paused or self._ended or self.queued >= self._rows_max:
                self._trouble = self._source.trouble()  # faults may end meanwhile
                return False
            found = self._source.poll(seconds)
            ended, self._trouble = self._source.ended, self._source.trouble()
        except Exception as error:  # noqa: BLE001  (of any type: it ends this source only, and is reported)
            self.failure = str(error) if isinstance(error, (DataError, OSError)) else f"{type(error).__name__}: {error}"
            self._arrived.set()
            return False
        with self._changed:
            self.reads = True
            self.partitions = self._source.partitions
            self.places = getattr(self._source, "places", dict)()
            self._queue.extend(found)
            self._rows += sum(_rows(item) for item in found)
            self._ended = ended
        if found or ended:
            self._arrived.set()
        return bool(found)

    def _run(self) -> None:
        whole = False
        try:
            while not self._closing:
                if not self.turn(POLL_S):
                    with self._changed:
                        resting = self._paused or self._ended or self.failure or self._rows >= self._rows_max
                        if resting and not self._closing:
                            self._changed.wait(POLL_S)
            self._finish()
            whole = True
        finally:  # a client may raise a BaseException, as librdkafka's does from a rebalance
            if not whole:
                self.failure = self.failure or "its thread has ended"
                self._arrived.set()

    def _finish(self) -> None:
        try:
            if self._kept is not None and self.failure is None and self._opened:
                self._source.kept(self._kept)
            self._source.close()
        except Exception as error:  # noqa: BLE001  (the source is dropped anyway)
            self.failure = self.failure or str(error)

    # ---- for the service

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"hybrid source {self.name}", daemon=True)
        self._thread.start()

    def take(self) -> Piece | Bad | None:
        """Takes the next item from the queue, None if it is empty. Joins consecutive small pieces of one partition: a
        push costs the same for one row as for hundreds."""
        with self._changed:
            if not self._queue:
                return None
            items = [self._queue.popleft()]
            rows = _rows(items[0])
            while self._queue and _joins(items[-1], self._queue[0]) and rows + _rows(self._queue[0]) <= JOINED_ROWS:
                items.append(self._queue.popleft())
                rows += _rows(items[-1])
            self._rows -= rows
            self._changed.notify_all()
        return _joined(items)

    def give_back(self, item: Piece | Bad) -> None:
        """Puts an item that cannot be stored now back at the front of the queue."""
        with self._changed:
            self._queue.appendleft(item)
            self._rows += _rows(item)

    def fail(self, why: str) -> None:
        """Stops reading the source for good."""
        self.failure, self.refused = why, True

    def kept(self, positions: Mapping[str, int]) -> None:
        """Notes that all rows below these offsets are durable; the source is told by the next turn."""
        with self._changed:
            self._kept = dict(positions)
            self._changed.notify_all()

    def path_of(self, partition: str) -> str | None:
        """Returns the current path of a partition that is a file, or None."""
        path: str | None = getattr(self._source, "path_of", lambda _: None)(partition)
        return path

    def partition_at(self, path: str) -> str | None:
        """Returns the partition of the file at a path, or None if this source does not read it."""
        partition: str | None = getattr(self._source, "partition_at", lambda _: None)(path)
        return partition

    def pause(self, seconds: float = 5.0) -> None:
        """Stops reading; the queue can still be taken. Waits for a poll in progress, `seconds` at most."""
        self._paused = True
        if self._polling.acquire(timeout=max(0.0, seconds)):
            self._polling.release()

    def close(self, seconds: float = 5.0) -> None:
        """Closes the source; waits for its thread, `seconds` at most."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is None:
            self._finish()
        else:
            self._thread.join(seconds)

    @property
    def queued(self) -> int:
        """Number of rows that were read and not taken."""
        return self._rows

    @property
    def ended(self) -> bool:
        """True if nothing more will come and everything was taken."""
        return self._ended and not self._queue

    @property
    def trouble(self) -> str | None:
        """The current fault that keeps events from coming, or None."""
        return self.failure or self._trouble


def _rows(item: Piece | Bad) -> int:
    return 1 if isinstance(item, Bad) else len(item.rows)


def _joins(item: Piece | Bad, behind: Piece | Bad) -> bool:
    """True if two consecutive items can be pushed as one."""
    return (
        isinstance(item, Piece) and isinstance(behind, Piece) and item.source == behind.source and not item.last
        and isinstance(item.rows, pa.RecordBatch) and isinstance(behind.rows, pa.RecordBatch)
    )  # fmt: skip


def _joined(items: list[Piece | Bad]) -> Piece | Bad:
    pieces = [item for item in items if isinstance(item, Piece)]
    if len(items) == 1:
        return items[0]
    last = pieces[-1]
    offsets = [piece.offsets for piece in pieces if piece.offsets is not None]
    rows = pa.concat_batches([piece.rows for piece in pieces])
    return Piece(last.source, rows, np.concatenate(offsets) if offsets else None, last.next, last.last)


def line_of(bad: Bad) -> str:
    """Returns a rejected payload as a line of JSON: its source, offset, reason and bytes."""
    try:
        raw = {"raw": bad.raw.decode()}
    except UnicodeDecodeError:
        raw = {"raw_base64": base64.b64encode(bad.raw).decode()}
    return json.dumps({"source": bad.source, "offset": bad.offset, "reason": bad.reason, **raw}, ensure_ascii=False)

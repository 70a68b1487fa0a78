"""The events of matches that are events themselves, until no match of the layer above can contain them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from matching.batch import Int64Array, Matches
from matching.kernels.layout import grown

Int32Array = np.ndarray[tuple[int], np.dtype[np.int32]]
#: Least number of events that are dropped at once.
DROPPED_MIN = 4096
#: Number of complex events that are looked at together when some are dropped.
LOOKED_AT = 1024
#: The arrays with an item for each event.
OF_EVENTS = ("path", "source", "ts_us", "offset", "seq")
#: Largest table of numbers that is not sorted instead.
TABLE_MAX = 1 << 16


class Members:
    """The events of complex events, by the number of the complex event; numbers go up. Each event has the path of its
    variables in its match (`X`, or `V.X`), as an index into `paths`.

    The events of number i are those of the arrays from bounds[i - first] to bounds[i + 1 - first]. Arrays grow by
    doubling, and what is dropped leaves them once it is half of them."""

    __slots__ = (
        "_begin", "_count", "_places", "_until_us", "bounds", "first", "offset", "path", "paths", "seq", "source",
        "ts_us",
    )  # fmt: skip

    def __init__(self) -> None:
        none = np.zeros(0, np.int64)
        self.first = 0  # number of the first one in the arrays
        self._begin = 0  # place of the first one kept
        self._count = 0
        self.bounds = np.zeros(1, np.int64)
        self._until_us = none  # the time of the last event of each
        self.path: Int32Array = np.zeros(0, np.int32)
        self.source: Int32Array = np.zeros(0, np.int32)
        self.ts_us, self.offset, self.seq = none, none, none
        self.paths: list[str] = []
        self._places: dict[str, int] = {}

    def __len__(self) -> int:
        """Returns the number of complex events kept."""
        return self._count - self._begin

    @property
    def events(self) -> int:
        """Returns the number of events of all complex events kept."""
        return int(self.bounds[self._count] - self.bounds[self._begin])

    @property
    def next(self) -> int:
        """Returns the number of the next complex event."""
        return self.first + self._count

    def _place(self, path: str) -> int:
        """Returns the index of a path, which is added if it is new."""
        found = self._places.setdefault(path, len(self.paths))
        if found == len(self.paths):
            self.paths.append(path)
        return found

    def add(self, matches: Matches, order: Int64Array | None) -> None:
        """Adds the matches at `order` (None: all), in that order, under the next numbers."""
        at: Int64Array | slice = slice(None)
        bounds, until_us = matches.event_bounds, matches.last_us
        if order is not None:
            at, bounds = ranges(bounds, order)
            until_us = until_us[order]
        places = np.array([self._place(name) for name in matches.variables] or [0], np.int32)
        begin, count = int(self.bounds[self._count]), self._count + len(until_us)
        end = begin + int(bounds[-1])
        self._reserve(end, count)
        self.path[begin:end] = places[matches.event_variable[at]]
        self.source[begin:end] = matches.event_source[at]
        self.ts_us[begin:end] = matches.event_ts_us[at]
        self.offset[begin:end] = matches.event_offset[at]
        self.seq[begin:end] = matches.event_seq[at]
        self.bounds[self._count + 1 : count + 1] = begin + bounds[1:]
        self._until_us[self._count : count] = until_us
        self._count = count

    def _reserve(self, events: int, count: int) -> None:
        if events > len(self.path):
            for name in OF_EVENTS:
                setattr(self, name, grown(getattr(self, name), max(events, 2 * len(self.path))))
        if count > len(self._until_us):
            capacity = max(count, 2 * len(self._until_us))
            self.bounds, self._until_us = grown(self.bounds, capacity + 1), grown(self._until_us, capacity)

    def until_us(self, number: int | None) -> int | None:
        """Returns the time of the last event of a complex event, or of the first one kept if that is later; None if
        there is none."""
        at = self._begin if number is None else max(self._begin, number - self.first)
        return None if number is None or at >= self._count else int(self._until_us[at])

    def drop_before(self, time_us: int) -> None:
        """Drops complex events at the front whose last event is earlier."""
        while self._begin < self._count:
            later = self._until_us[self._begin : min(self._begin + LOOKED_AT, self._count)] >= time_us
            found = int(np.argmax(later))
            self._begin += found if later[found] else len(later)
            if later[found]:
                break
        cut = int(self.bounds[self._begin])
        if cut >= max(DROPPED_MIN, (int(self.bounds[self._count]) + 1) // 2):
            self._drop()

    def _drop(self) -> None:
        """Takes what is dropped out of the arrays."""
        begin, count = self._begin, self._count
        cut, end = int(self.bounds[begin]), int(self.bounds[count])
        for name in OF_EVENTS:
            setattr(self, name, getattr(self, name)[cut:end].copy())
        self.bounds = self.bounds[begin : count + 1] - cut
        self._until_us = self._until_us[begin:count].copy()
        self.first, self._begin, self._count = self.first + begin, 0, count - begin

    def snapshot(self) -> tuple[dict[str, object], dict[str, np.ndarray]]:
        """Returns a head for JSON and arrays."""
        self._drop()
        arrays = {name: getattr(self, name) for name in OF_EVENTS}
        return {"first": self.first, "paths": self.paths}, arrays | {"bounds": self.bounds, "until": self._until_us}

    def restore(self, head: dict[str, object], arrays: dict[str, np.ndarray]) -> None:
        """Restores a snapshot."""
        for name in OF_EVENTS:
            setattr(self, name, arrays[name].copy())
        self.bounds, self._until_us = arrays["bounds"].copy(), arrays["until"].copy()
        self.first, self._begin, self._count = int(str(head["first"])), 0, len(self._until_us)
        paths = head["paths"]
        assert isinstance(paths, Sequence)
        self.paths = [str(path) for path in paths]
        self._places = {path: i for i, path in enumerate(self.paths)}


def distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns the values that occur, ascending, and the place of each value among them. values: integers from 0."""
    size = int(values.max(initial=0)) + 1
    if size > max(TABLE_MAX, 4 * len(values)):
        found, places = np.unique(values, return_inverse=True)
        return found, places.reshape(-1)
    seen = np.zeros(size, np.bool_)
    seen[values] = True
    return np.flatnonzero(seen), (np.cumsum(seen) - 1)[values]


def ranges(bounds: Int64Array, index: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Returns the numbers of [bounds[i], bounds[i + 1]) for each i of `index`, one range after the other, and their
    bounds in the result."""
    lengths = bounds[index + 1] - bounds[index]
    out = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    at = np.arange(out[-1], dtype=np.int64) + np.repeat(bounds[index] - out[:-1], lengths)
    return at, out

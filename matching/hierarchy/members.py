"""The events of matches that are events themselves, until no match of the layer above can contain them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from matching.batch import Int64Array, Matches

Int32Array = np.ndarray[tuple[int], np.dtype[np.int32]]
#: Least number of events that are dropped at once.
DROPPED_MIN = 4096
#: Largest table of numbers that is not sorted instead.
TABLE_MAX = 1 << 16


class Members:
    """The events of complex events, by the number of the complex event; numbers go up. Each event has the path of its
    variables in its match (`X`, or `V.X`), as an index into `paths`."""

    __slots__ = ("_bounds", "_first", "_until_us", "offset", "path", "paths", "places", "seq", "source", "ts_us")

    def __init__(self) -> None:
        none = np.zeros(0, np.int64)
        self._first = 0  # number of the first one kept
        self._bounds = np.zeros(1, np.int64)
        self._until_us = none  # the time of the last event of each
        self.path: Int32Array = np.zeros(0, np.int32)
        self.source: Int32Array = np.zeros(0, np.int32)
        self.ts_us, self.offset, self.seq = none, none, none
        self.paths: list[str] = []
        self.places: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._until_us)

    @property
    def events(self) -> int:
        """Returns the number of events of all complex events."""
        return len(self.path)

    @property
    def next(self) -> int:
        """Returns the number of the next complex event."""
        return self._first + len(self)

    def place(self, path: str) -> int:
        """Returns the index of a path, which is added if it is new."""
        found = self.places.setdefault(path, len(self.paths))
        if found == len(self.paths):
            self.paths.append(path)
        return found

    def add(self, matches: Matches, order: Int64Array) -> None:
        """Adds the matches at `order`, in that order, under the next numbers."""
        at, bounds = ranges(matches.event_bounds, order)
        places = np.array([self.place(name) for name in matches.variables] or [0], np.int32)
        self.path = np.concatenate([self.path, places[matches.event_variable[at]]])
        self.source = np.concatenate([self.source, matches.event_source[at]])
        self.ts_us = np.concatenate([self.ts_us, matches.event_ts_us[at]])
        self.offset = np.concatenate([self.offset, matches.event_offset[at]])
        self.seq = np.concatenate([self.seq, matches.event_seq[at]])
        self._bounds = np.concatenate([self._bounds, self._bounds[-1] + bounds[1:]])
        self._until_us = np.concatenate([self._until_us, matches.last_us[order]])

    def of(self, numbers: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Returns the indices of the events of complex events, one after the other, and the bounds between these."""
        return ranges(self._bounds, numbers - self._first)

    def until_us(self, number: int | None) -> int | None:
        """Returns the time of the last event of a complex event, or of the first one kept if that is later; None if
        there is none."""
        at = 0 if number is None else max(0, number - self._first)
        return None if number is None or at >= len(self) else int(self._until_us[at])

    def drop_before(self, time_us: int) -> None:
        """Drops complex events at the front whose last event is earlier."""
        kept = int(np.argmax(self._until_us >= time_us)) if (self._until_us >= time_us).any() else len(self)
        cut = int(self._bounds[kept])
        if cut < DROPPED_MIN:
            return
        for name in ("path", "source", "ts_us", "offset", "seq"):
            setattr(self, name, getattr(self, name)[cut:].copy())
        self._bounds = self._bounds[kept:] - cut
        self._until_us = self._until_us[kept:].copy()
        self._first += kept

    def snapshot(self) -> tuple[dict[str, object], dict[str, np.ndarray]]:
        """Returns a head for JSON and arrays."""
        arrays = {name: getattr(self, name) for name in ("path", "source", "ts_us", "offset", "seq")}
        return {"first": self._first, "paths": self.paths}, arrays | {"bounds": self._bounds, "until": self._until_us}

    def restore(self, head: dict[str, object], arrays: dict[str, np.ndarray]) -> None:
        """Restores a snapshot."""
        for name in ("path", "source", "ts_us", "offset", "seq"):
            setattr(self, name, arrays[name])
        self._bounds, self._until_us = arrays["bounds"], arrays["until"]
        self._first = int(str(head["first"]))
        paths = head["paths"]
        assert isinstance(paths, Sequence)
        self.paths = [str(path) for path in paths]
        self.places = {path: i for i, path in enumerate(self.paths)}


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

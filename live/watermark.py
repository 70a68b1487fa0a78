"""The watermark of one stream: the event time reached, and which events are late for it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from matching.batch import Int64Array

#: A time below every watermark.
_NEVER = -(2**62) - 1

BoolArray = np.ndarray[tuple[int], np.dtype[np.bool_]]


class Watermark:
    """w = min over active sources of (largest event time so far) - lateness; it never falls.

    A source is active from its first event until it is declared idle, and again from its next event. An event with
    time < w on arrival is late; time == w is on time. A source that joins late does not lower w: it holds w until it
    has caught up, and its events before w are late.

    The result is that of taking events one by one, independent of batching.
    value_us: the initial w, or None. sources: sources that have sent events before. Each is assumed to have reached
    value_us + lateness_us, the least it can have reached, so w stays until all of them have sent later events.
    """

    __slots__ = ("_expected", "_highest_us", "_idle", "lateness_us", "value_us")

    def __init__(self, lateness_us: int, value_us: int | None = None, sources: Iterable[str] = ()) -> None:
        self.lateness_us = lateness_us
        self.value_us = value_us
        self._highest_us: dict[str, int] = {} if value_us is None else dict.fromkeys(sources, value_us + lateness_us)
        self._idle: set[str] = set()
        self._expected: set[str] = set()

    @property
    def newest_us(self) -> int | None:
        """The largest event time so far; None without sources. A source known from before counts as in `sources`."""
        return max(self._highest_us.values(), default=None)

    def observe(self, source: str, ts_us: Int64Array) -> BoolArray:
        """Takes n events of one source in arrival order. Returns which are late, bool (n,). O(n), O(1) numpy calls."""
        n = len(ts_us)
        late = np.zeros(n, np.bool_)
        if n == 0:
            return late
        self._idle.discard(source)
        self._expected.discard(source)
        others = [high for name, high in self._highest_us.items() if name != source and name not in self._idle]
        if self._expected:
            ceiling: int | None = _NEVER  # their events may have any time
        else:
            ceiling = min(others) - self.lateness_us if others else None
        before = self._highest_us.get(source)
        first = int(ts_us[0])
        ahead = (self.value_us is None or first >= self.value_us) and (before is None or first >= before)
        if ahead and (n == 1 or bool((ts_us[1:] >= ts_us[:-1]).all())):
            # In order: no event is before an earlier one of its source, hence none is below w.
            highest = int(ts_us[-1])
        else:
            reached = np.maximum.accumulate(ts_us)
            if before is not None:
                np.maximum(reached, before, out=reached)
            highest = int(reached[-1])
            w = reached - self.lateness_us
            if ceiling is not None:
                np.minimum(w, ceiling, out=w)
            if self.value_us is not None:
                np.maximum(w, self.value_us, out=w)
                late[0] = first < self.value_us
            late[1:] = ts_us[1:] < w[:-1]
        self._highest_us[source] = highest
        if not self._expected:
            value = highest - self.lateness_us
            self.raise_to(value if ceiling is None else min(value, ceiling))
        return late

    @property
    def holder(self) -> str | None:
        """The source that w waits for: an expected one that has sent nothing yet, else the active source with the
        least event time. None if there is neither."""
        if self._expected:
            return min(self._expected)
        active = [(high, name) for name, high in self._highest_us.items() if name not in self._idle]
        return min(active)[1] if active else None

    @property
    def expected(self) -> tuple[str, ...]:
        """The expected sources that hold w because they have sent nothing yet, sorted."""
        return tuple(sorted(self._expected))

    def expect(self, sources: Collection[str]) -> None:
        """Announces sources that will send events of any time: w stays until each has sent one or is declared idle."""
        self._expected |= set(sources) - self._highest_us.keys()

    def idle(self, sources: Collection[str]) -> None:
        """Declares sources idle: they no longer hold w, which the other sources decide, if there are any."""
        silent = self._highest_us.keys() & set(sources)
        if silent <= self._idle and self._expected.isdisjoint(sources):
            return  # nothing new: the usual case if many sources are idle
        self._idle |= silent
        waited = bool(self._expected)
        self._expected -= set(sources)
        if self._expected:
            return
        active = self._highest_us.keys() - self._idle
        if waited and not active:  # all became idle while w waited for a source that never sent
            active = set(self._highest_us)
        if active:
            self.raise_to(min(self._highest_us[name] for name in active) - self.lateness_us)

    def to_dict(self) -> dict[str, Any]:
        """Returns the state as JSON values."""
        return {
            "value_us": self.value_us, "highest_us": dict(self._highest_us), "idle": sorted(self._idle),
            "expected": sorted(self._expected),
        }  # fmt: skip

    @staticmethod
    def from_dict(lateness_us: int, kept: Mapping[str, Any]) -> Watermark:
        """Restores a watermark from the state that `to_dict` returned."""
        found = Watermark(lateness_us, kept["value_us"])
        found._highest_us = dict(kept["highest_us"])
        found._idle, found._expected = set(kept["idle"]), set(kept["expected"])
        return found

    def behind(self, ts_us: Int64Array) -> BoolArray:
        """Returns which of n events are late, bool (n,), without raising w."""
        return np.zeros(len(ts_us), np.bool_) if self.value_us is None else ts_us < self.value_us

    def raise_to(self, t_us: int) -> None:
        """Raises w to t_us; a lower value changes nothing."""
        if self.value_us is None or t_us > self.value_us:
            self.value_us = t_us

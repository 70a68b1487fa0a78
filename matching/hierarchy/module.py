"""A pattern of boxes, which is searched once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from matching.batch import EventBatch, Matcher, Matches
from query.plan.lag import last_event_lag_us
from query.plan.plan import Plan


class Module:
    """A pattern of boxes and its matcher. key: of the pattern. own: gives the events that it reads; None: all.
    searched: number of events that it was searched in."""

    __slots__ = ("_failure", "_found", "_own", "_step", "key", "lag_us", "matcher", "searched")

    def __init__(
        self, key: str, plan: Plan, matcher: Matcher, own: Callable[[EventBatch], EventBatch] | None = None
    ) -> None:
        self.key = key
        self.matcher = matcher
        self.lag_us = last_event_lag_us(plan)
        self._own = own
        self.searched = 0
        self._step = 0
        self._found: Matches | None = None
        self._failure: Exception | None = None

    def step(self, step: int, batch: EventBatch | None, watermark_us: int | None) -> Matches:
        """Returns the matches of a step, which all its readers ask for: of the next events, or of a watermark if there
        are none. Raises the error of the search, for each reader and in all later steps."""
        if self._failure is not None:
            raise self._failure
        if step != self._step or self._found is None:
            self._step = step
            try:
                self._found = self._push(batch) if batch is not None else self.matcher.advance(watermark_us)
            except Exception as error:
                self._failure = error
                raise
        return self._found

    def _push(self, batch: EventBatch) -> Matches:
        if self._own is None:
            self.searched += len(batch)
            return self.matcher.push(batch)
        own = self._own(batch)
        self.searched += len(own)
        found = self.matcher.push(own)
        if self.lag_us and len(batch):  # time goes on with the events of other streams, too
            more = self.matcher.advance(int(batch.ts_us[-1]))
            found = joined([found, more]) if len(more) else found
        return found


def joined(parts: list[Matches]) -> Matches:
    """Returns the matches of both parts."""
    first, second = parts
    names = tuple(dict.fromkeys([*first.variables, *second.variables]))
    places = {name: i for i, name in enumerate(names)}
    recoded = [
        np.array([places[name] for name in part.variables] or [0], np.int16)[part.event_variable] for part in parts
    ]

    def both(name: str) -> np.ndarray:
        return np.concatenate([getattr(first, name), getattr(second, name)])

    return Matches(
        pa.concat_tables([first.rows, second.rows]),
        np.concatenate([first.row_match, second.row_match + len(first)]), both("number"), both("first_us"),
        both("last_us"), np.concatenate([first.event_bounds, first.event_bounds[-1] + second.event_bounds[1:]]),
        np.concatenate(recoded), both("event_ts_us"), both("event_source"), both("event_offset"), both("event_seq"),
        names, first.sources,
    )  # fmt: skip

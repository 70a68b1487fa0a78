"""A pattern of boxes, which is searched once."""

from __future__ import annotations

from dataclasses import replace

from matching.batch import EventBatch, Matcher, Matches
from matching.hierarchy.held import joined
from query.errors import QueryError
from query.plan.lag import last_event_lag_us
from query.plan.plan import Plan


class Module:
    """A pattern of boxes and its matcher. key: of the pattern. name: that of its first box, for messages. searched:
    number of events that it was searched in."""

    __slots__ = ("_failure", "_found", "_step", "key", "lag_us", "matcher", "name", "searched")

    def __init__(self, key: str, name: str, plan: Plan, matcher: Matcher) -> None:
        self.key = key
        self.name = name
        self.matcher = matcher
        self.lag_us = last_event_lag_us(plan)
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
            self.searched += 0 if batch is None else len(batch)
            try:
                self._found = self._decided(batch, watermark_us)
            except QueryError as error:
                where = f"in pattern {self.name}: "
                faults = [replace(fault, message=where + fault.message) for fault in error.diagnostics]
                self._failure = QueryError(faults, error.text)
                raise self._failure from None
            except Exception as error:
                self._failure = error
                raise
        return self._found

    def _decided(self, batch: EventBatch | None, watermark_us: int | None) -> Matches:
        if batch is None:
            return self.matcher.advance(watermark_us)
        found = self.matcher.push(batch)
        if self.lag_us and len(batch):
            # merged rows wait for the lag behind the last event only, so what is decided by its time has to be there:
            # matches of keys without a further event, too
            some = [part for part in (found, self.matcher.advance(int(batch.ts_us[-1]))) if len(part)]
            found = some[0] if len(some) == 1 else joined(some) if some else found
        return found

"""A pattern of boxes, which is searched once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from matching.batch import EventBatch, Matcher, Matches
from matching.hierarchy.followed import Followed
from matching.hierarchy.held import joined
from matching.purpose import Purpose
from query.errors import QueryError
from query.plan.lag import last_event_lag_us
from query.plan.plan import Plan


class Module:
    """A pattern of boxes and its matcher. key: of the pattern. name: that of its first box, for messages. purpose: of
    its matches. own: gives the events that it reads; None: all."""

    __slots__ = (
        "_advances", "_failure", "_found", "_own", "_searched", "_step", "key", "lag_us", "matcher", "name", "plan",
        "purpose",
    )  # fmt: skip

    def __init__(
        self, key: str, name: str, plan: Plan, purpose: Purpose, matcher: Matcher,
        own: Callable[[EventBatch], EventBatch] | None = None,
    ) -> None:  # fmt: skip
        self.key = key
        self.name = name
        self.plan = plan
        self.purpose = purpose
        self.matcher = matcher
        self.lag_us = last_event_lag_us(plan)
        self._own = own
        self._advances = bool(self.lag_us) and not plan.boxes  # a layer goes by the time of what it is given
        self._searched = 0
        self._step = 0
        self._found: Matches | None = None
        self._failure: Exception | None = None

    @property
    def searched(self) -> int:
        """Returns the number of events that it was searched in."""
        return self.matcher.search.seen if isinstance(self.matcher, Followed) else self._searched

    @searched.setter
    def searched(self, count: int) -> None:
        self._searched = count

    @property
    def failed(self) -> bool:
        """True if all its steps raise an error from now on."""
        return self._failure is not None

    def step(self, step: int, batch: EventBatch | None, watermark_us: int | None) -> Matches:
        """Returns the matches of a step, which all its readers ask for: of the next events, or of a watermark if there
        are none. Raises the error of the search, for each reader and in all later steps."""
        if self._failure is not None:
            raise self._failure
        if step != self._step or self._found is None:
            self._step = step
            try:
                self._found = self._push(batch) if batch is not None else self.matcher.advance(watermark_us)
            except QueryError as error:
                where = f"in pattern {self.name}: "
                faults = [replace(fault, message=where + fault.message) for fault in error.diagnostics]
                self._failure = QueryError(faults, error.text)
                raise self._failure from None
            except Exception as error:
                self._failure = error
                raise
        return self._found

    def _push(self, batch: EventBatch) -> Matches:
        own = batch if self._own is None else self._own(batch)
        self._searched += len(own)
        found = self.matcher.push(own)
        if self._advances and len(batch):  # time goes on with events of other keys and streams, too
            more = self.matcher.advance(int(batch.ts_us[-1]))
            found = found if not len(more) else joined([found, more]) if len(found) else more
        return found

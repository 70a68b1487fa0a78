"""A pattern of boxes, which is searched once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from matching.batch import EventBatch, Matcher, Matches
from matching.drive import NotesUnfit, UnfitMatch, before_failure, failed_at, first_unfit, unfit_of
from matching.hierarchy.followed import Followed
from matching.hierarchy.held import joined, none
from matching.purpose import Purpose
from query.errors import QueryError
from query.plan.boxes import FIRST
from query.plan.lag import last_event_lag_us
from query.plan.plan import Plan


class Module:
    """A pattern of boxes and its matcher. key: of the pattern. name: that of its first box, for messages. purpose: of
    its matches. own: gives the events that it reads; None: all."""

    __slots__ = (
        "_advances", "_found", "_searched", "_step", "failed_position", "failed_us", "failure", "key", "lag_us",
        "matcher", "name", "own", "plan", "purpose", "unfit",
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
        if isinstance(matcher, NotesUnfit):
            matcher.notes_unfit = True
        #: The first match with a measure that cannot be computed.
        self.unfit: UnfitMatch | None = None
        self.lag_us = last_event_lag_us(plan)
        self.own = own
        self._advances = bool(self.lag_us) and not plan.boxes  # a layer goes by the time of what it is given
        self._searched = 0
        self._step = 0
        self._found: Matches | None = None
        #: The error of the search; the position of the event at which it has failed, None if it is not known, and the
        #: time that it had reached then.
        self.failure: Exception | None = None
        self.failed_position: int | None = None
        self.failed_us: int | None = None

    @property
    def searched(self) -> int:
        """Returns the number of events that it was searched in."""
        return self.matcher.search.seen if isinstance(self.matcher, Followed) else self._searched

    @searched.setter
    def searched(self, count: int) -> None:
        self._searched = count

    @property
    def failed(self) -> bool:
        """True if all its steps raise an error from now on, or a match has a measure that cannot be computed."""
        return self.failure is not None or self.unfit is not None

    def step(self, step: int, batch: EventBatch | None, watermark_us: int | None) -> Matches:
        """Returns the matches of a step, which all its readers ask for: of the next events, or of a watermark if there
        are none. In the step of a failure these are the matches before it, if its event is known. Raises the error of
        the search otherwise, for each reader and in all later steps."""
        if step != self._step or self._found is None:
            if self.failure is not None:
                raise self.failure
            self._step, own = step, None
            try:
                if batch is None:
                    self._found = self.matcher.advance(watermark_us)
                else:
                    own = batch if self.own is None else self.own(batch)
                    self._found = self._push(own, batch)
            except QueryError as error:
                where = f"in pattern {self.name}: "
                faults = [replace(fault, message=where + fault.message) for fault in error.diagnostics]
                self._found = self._failed(QueryError(faults, error.text), own)
            except Exception as error:  # noqa: BLE001  (the layers above raise it)
                self._found = self._failed(error, own)
            if (unfit := unfit_of(self.matcher)) is not None:
                self.unfit = first_unfit(self.unfit, unfit)
        if self._found is None:
            assert self.failure is not None
            raise self.failure
        return self._found

    def _failed(self, error: Exception, own: EventBatch | None) -> Matches | None:
        """Notes a failure. Returns the matches before it, None if its event is not known. own: the events that have
        been searched."""
        self.failure = error
        before = before_failure(self.matcher)
        position: int | None = getattr(self.matcher, "failed_position", None)  # a layer knows it
        row = getattr(self.matcher, "failed_row", None)
        if position is None and own is not None and row is not None:
            (at,) = np.flatnonzero((own.source == row[0]) & (own.offset == row[1]))[:1].tolist() or [None]
            position = None if at is None else own.columns.column(FIRST.name)[at].as_py()
        if position is None:
            return None
        self.failed_position, self.failed_us = position, failed_at(self.matcher)
        return joined(before) if before else none(("default",) if own is None else own.sources)

    def _push(self, own: EventBatch, batch: EventBatch) -> Matches:
        """Returns the matches of its own events, and of the time that all events of a step reach."""
        self._searched += len(own)
        found = self.matcher.push(own)
        if self._advances and len(batch):  # time goes on with events of other keys and streams, too
            more = self.matcher.advance(int(batch.ts_us[-1]))
            found = found if not len(more) else joined([found, more]) if len(found) else more
        return found

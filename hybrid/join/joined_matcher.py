"""A box's pattern whose matches are joined with history, as a Matcher: its matches are those with a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from hybrid.join.driver import Driver, HistoryStream
from hybrid.join.requests import Asking
from hybrid.join.strategies import strategy_of
from hybrid.rows.answer import Answer, answer_of, concat_answers, output_schema
from matching.batch import EventBatch, Matcher, Matches
from matching.state import as_array, pack, unpack
from query.plan.joined_rows import pattern_of
from query.plan.plan import Plan

#: Write a value as bytes, and read it again (hybrid.watch.saved).
Save: TypeAlias = Callable[[Any], bytes]
Load: TypeAlias = Callable[[bytes], Any]


def _no_state(value: Any) -> Any:
    raise AssertionError("a bounded input has no state to keep")


class JoinedMatcher:
    """Matcher of a plan with `joined`. matcher: of its pattern alone. histories: by stream, in lower case. make:
    returns matchers of history patterns. late: late rows of histories count, too. save, load: of its state.

    Matches come out when their ranges are complete, in the order of the pattern. stuck: see matching.batch.Matcher."""

    def __init__(
        self, plan: Plan, matcher: Matcher, histories: Mapping[str, HistoryStream], make: Callable[[Plan], Matcher],
        late: bool = False, save: Save = _no_state, load: Load = _no_state,
    ) -> None:  # fmt: skip
        assert plan.joined is not None
        self.plan = plan
        self._joined = plan.joined
        self._schema = output_schema(plan)
        self._plan = pattern_of(plan)
        self._matcher = matcher
        factor = replace(plan.joined.factor, plan=self._plan)
        # in this thread: what is merged waits for it
        self._driver = Driver(factor, strategy_of("auto"), make, in_order=True)
        self._asking = Asking(self._driver, None, lambda: None, late)
        self._histories = histories
        self._sources: tuple[str, ...] = ("default",)
        self._save, self._load = save, load
        self.stuck = 0

    def push(self, batch: EventBatch) -> Matches:
        """See matching.batch.Matcher."""
        return self._found(self._matcher.push(batch), int(batch.ts_us[-1]) if len(batch) else None, False)

    def advance(self, watermark_us: int | None) -> Matches:
        """See matching.batch.Matcher."""
        return self._found(self._matcher.advance(watermark_us), watermark_us, watermark_us is None)

    def _found(self, found: Matches, watermark_us: int | None, ended: bool) -> Matches:
        self._sources = found.sources
        if len(found):
            self._driver.take([found])
        answers = list(self._asking.settle(self._histories, watermark_us, ended, None))
        self.stuck = self._matcher.stuck + self._driver.stuck_count
        return self._matches(concat_answers(answers) if answers else answer_of(self._plan, []))

    def _matches(self, answer: Answer) -> Matches:
        """Returns the rows of an answer as matches, each with one row."""
        evidence, n = answer.evidence.take(answer.match), len(answer)
        of_history = {name: (k, column) for name, k, column in self._joined.columns}
        columns = []
        for field in self._schema:
            if field.name not in of_history:
                columns.append(answer.live.column(field.name))
            elif not n:
                columns.append(pa.chunked_array([], field.type))
            else:
                k, column = of_history[field.name]
                columns.append(answer.sides[k].rows.column(column))
        rows = pa.table([c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, self._schema, strict=True)],
                        schema=self._schema)  # fmt: skip
        at = np.arange(n, dtype=np.int64)
        first, last = evidence.span_us(0)
        return Matches(
            rows, at, at + 1, first, last, evidence.bounds, evidence.variable.astype(np.int16), evidence.ts_us,
            evidence.source.astype(np.int32), evidence.offset, evidence.seq, evidence.variables,
            evidence.sources or self._sources,
        )  # fmt: skip

    def snapshot(self) -> bytes:
        """See matching.batch.Matcher. The driver has the matches that wait."""
        parts = {"pattern": self._matcher.snapshot(), "driver": self._save(self._driver.save())}
        return pack({"sources": list(self._sources)}, {name: as_array(part) for name, part in parts.items()})

    def fits(self, state: bytes) -> bool:
        """See matching.batch.Matcher."""
        _, arrays = unpack(state)
        return self._matcher.fits(arrays["pattern"].tobytes())

    def restore(self, state: bytes) -> None:
        """See matching.batch.Matcher."""
        head, arrays = unpack(state)
        self._sources = tuple(head["sources"])
        self._matcher.restore(arrays["pattern"].tobytes())
        self._driver.restore(self._load(arrays["driver"].tobytes()))

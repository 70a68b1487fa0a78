"""A state taken apart by bucket: the parts go on apart, in any number of matchers, and find what one matcher would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.batch import EventBatch, Matches
from matching.buckets import bucket_of, join, split
from matching.matcher import KernelMatcher, make_matcher
from matching.rows import Rows
from matching.spill import Spill
from query.errors import DataError
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import Plan
from tests.engines import matcher_by
from tests.events import batch_of
from tests.matching.memory_store import MemoryStore
from tests.properties.comparing import answer_of, fewer, program_of, reference_of
from tests.properties.test_idle_keys import without_numbers
from tests.properties.test_spilled import ENGINES, KEYS, keyed, staying
from tests.strategies import SCHEMA, Row, events

#: AFTER MATCH SKIP TO that would not move on warns; these tests go on.
pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
FEWER = fewer(8)


class Shared:
    """Matchers of a plan, each with some buckets of the keys."""

    def __init__(self, plan: Plan, buckets: int) -> None:
        self.plan = plan
        self.matchers = [self.fresh()]
        self.of = np.zeros(buckets, np.int64)  # by bucket its matcher

    def fresh(self) -> KernelMatcher:
        return matcher_by(self.plan, lenient=True)

    def push(self, batch: EventBatch) -> list[Matches]:
        bucket = bucket_of([batch.columns.column("k")], len(batch), len(self.of))
        return [
            matcher.push(batch.take(np.flatnonzero(self.of[bucket] == i))) for i, matcher in enumerate(self.matchers)
        ]

    def advance(self, watermark_us: int | None) -> list[Matches]:
        return [matcher.advance(watermark_us) for matcher in self.matchers]

    def deal(self, of: Sequence[int]) -> None:
        """The buckets go to new matchers, one or several."""
        parts = [split([matcher], len(self.of)) for matcher in self.matchers]
        matchers = [self.fresh() for _ in range(max(of) + 1)]
        for bucket, new in enumerate(of):
            join([matchers[new]], [parts[self.of[bucket]][bucket]])
        self.matchers, self.of = matchers, np.array(of, np.int64)


@pytest.mark.slow
def test_parts_go_on_as_the_whole_would(record_property: Callable[[str, object], None]) -> None:
    seen: Counter[str] = Counter()

    @FEWER
    @given(rows=events(min_size=6, max_size=14, keys=KEYS), plan=staying(), data=st.data())
    def check(rows: list[Row], plan: Plan, data: st.DataObject) -> None:
        plan = keyed(plan)
        program_of(plan)
        expected = reference_of(plan, rows)
        buckets = data.draw(st.integers(1, 4))
        shared, found, at, dealt = Shared(plan, buckets), list[Matches](), 0, 0
        while at < len(rows):
            size = data.draw(st.sampled_from((1, 2, 5)))
            found += shared.push(batch_of(SCHEMA, rows[at : at + size], at))
            at += size
            if at < len(rows) and data.draw(st.booleans()):
                found += shared.advance(int(rows[at]["ts"]))  # type: ignore[call-overload]
            if shared.matchers[0].rows.why is None and data.draw(st.booleans()):
                shared.deal(data.draw(st.lists(st.integers(0, 2), min_size=buckets, max_size=buckets)))
                dealt += 1
        assert answer_of(found + shared.advance(None)) == expected
        seen["examples"] += 1
        seen["a match"] += bool(expected)
        seen[type(shared.matchers[0].engine).__name__] += dealt > 0

    check()
    record_property("examples", ", ".join(f"{what} {count:,}" for what, count in seen.items()))
    if seen["examples"] >= 200:
        for name in ENGINES:
            assert seen[name] > 1, (name, seen)


ROWS: list[Row] = [{"ts": i, "k": "pqr"[i % 3], "s": "a", "v": i, "x": 0.0} for i in range(9)]


@pytest.mark.slow
@FEWER
@given(rows=events(min_size=6, keys=KEYS), cut=st.integers(1, 5), limit=st.sampled_from((None, 0, 600)))
def test_queries_that_share_rows_are_dealt_together(rows: list[Row], cut: int, limit: int | None) -> None:
    """Also where partitions are out of memory, before and after."""
    bodies = (
        "PATTERN (A B+) DEFINE B AS v > A.v OR s = A.s", "PATTERN (A B) WITHIN INTERVAL '3' SECOND DEFINE A AS v > 0"
    )  # fmt: skip
    plans = [plan_of(f"PARTITION BY k ORDER BY ts MEASURES LAST(B.x) AS x {body}") for body in bodies]

    def together() -> list[KernelMatcher]:
        spill = None if limit is None else Spill(limit, MemoryStore())
        shared: list[Rows] = []
        made = [make_matcher(plan, lenient=True, shared=shared, spill=spill) for plan in plans]
        assert len(shared) == 1
        return [cast(KernelMatcher, matcher) for matcher in made]

    def push(kernels: list[KernelMatcher], batch: EventBatch) -> list[Matches]:
        shared = kernels[0].rows
        shared.append(batch)
        retained = shared.retain([kernel.wants(batch.sources) for kernel in kernels])
        for kernel in kernels:
            kernel.take(retained)
        shared.taken()
        found = [kernel.emit() for kernel in kernels]
        shared.compact()
        return found

    def end(kernels: list[KernelMatcher]) -> list[Matches]:
        kernels[0].rows.reach(None)
        for kernel in kernels:
            kernel.expire(None, np.zeros(0, np.int64))
        return [kernel.emit(True) for kernel in kernels]

    whole = batch_of(SCHEMA, rows)
    expected = [reference_of(plan, rows) for plan in plans]
    first = together()
    found = [push(first, whole.slice(0, cut))]
    parts = split(first, 3)
    others = [together(), together()]
    join(others[0], parts[:2])
    join(others[1], parts[2:])
    rest = whole.slice(cut, len(rows))
    bucket = bucket_of([rest.columns.column("k")], len(rest), 3)
    found += [push(kernels, rest.take(np.flatnonzero((bucket == 2) == i))) for i, kernels in enumerate(others)]
    found += [end(kernels) for kernels in others]
    for of, theirs in zip(zip(*found, strict=True), expected, strict=True):
        assert without_numbers(answer_of(of)) == without_numbers(theirs)


def test_what_cannot_be_told_apart_is_said() -> None:
    plan = plan_of("PARTITION BY k ORDER BY ts MEASURES A.v AS a PATTERN (A B+) DEFINE A AS v < NEXT(v)")
    with pytest.raises(DataError, match="cannot be split by key: NEXT reads future rows"):
        split([matcher_by(plan)], 2)


def test_a_key_has_one_place() -> None:
    plan = plan_of("PARTITION BY k ORDER BY ts MEASURES A.v AS a PATTERN (A B+) DEFINE B AS v > 3")
    matcher, other = matcher_by(plan), matcher_by(plan)
    matcher.push(batch_of(SCHEMA, ROWS))
    parts = split([matcher], 2)
    join([other], parts)
    with pytest.raises(DataError, match="already exists"):
        join([other], parts)
    else_ = plan_of("PARTITION BY k ORDER BY ts MEASURES A.v AS a PATTERN (A B) DEFINE B AS v > 3")
    with pytest.raises(DataError, match="belongs to another plan"):
        join([matcher_by(else_)], parts)


def plan_of(body: str) -> Plan:
    return bind(parse(f"SELECT * FROM e MATCH_RECOGNIZE ({body}) AS m"), lambda _: SCHEMA).factors[0].plan

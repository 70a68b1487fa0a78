"""A node of the match buffer stands for the rows after it that are bound to the same variable: what runs keep is linear
in runs, not in runs times rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.batch import Matches
from matching.by_reference import ReferenceMatcher
from matching.engines.run_lists import RunLists
from matching.matcher import KernelMatcher, make_matcher
from matching.spill import Spill
from matching.state import pack, unpack, unpack_head
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import Plan
from query.schema import Schema
from tests.events import batch_of
from tests.matching.memory_store import MemoryStore
from tests.properties.comparing import Answer, answer_of
from tests.strategies import SCHEMA, Row

BODIES = (
    "PATTERN (A+ B) DEFINE B AS v > 2 * FIRST(v)",
    "PATTERN (A B+ C) DEFINE C AS v < avg(B.v) - 1",
    "PATTERN (A+ B+ C?) DEFINE A AS v < 7, B AS v > FIRST(A.v), C AS v < A.v",
    "PATTERN (A B* C{1,2}) DEFINE B AS v >= A.v, C AS v <> A.v",
    "PATTERN ((A B)+ C) DEFINE C AS v > 2 + A.v",
    "AFTER MATCH SKIP TO NEXT ROW PATTERN (A B* C) WITHIN INTERVAL '5' SECOND DEFINE B AS v >= A.v, C AS v < A.v",
    "AFTER MATCH NO SKIP PATTERN (A B* C) DEFINE B AS v >= A.v, C AS v < A.v",
    "PATTERN (A+? B*) WITHIN 6 ROWS DEFINE B AS v > FIRST(A.v)",
)


def plan_of(body: str, by: str = "PARTITION BY k") -> Plan:
    text = f"SELECT * FROM e MATCH_RECOGNIZE ({by} ORDER BY ts MEASURES count(*) AS n, sum(A.v) AS a {body})"
    return bind(parse(text), lambda _: SCHEMA).factors[0].plan


def matcher_of(plan: Plan, spill: Spill | None = None) -> KernelMatcher:
    found = make_matcher(plan, lenient=True, spill=spill)
    assert isinstance(found, KernelMatcher)
    assert isinstance(found.engine, RunLists)
    assert found.program.folds
    return found


def rows_of(values: list[tuple[int, int | None]]) -> list[Row]:
    nothing = dict.fromkeys(SCHEMA.names)
    return [nothing | {"ts": i, "k": "abc"[key], "v": value} for i, (key, value) in enumerate(values)]


def expected(plan: Plan, rows: list[Row], schema: Schema = SCHEMA) -> Answer:
    reference = ReferenceMatcher(plan, lenient=True)
    reference.keep(batch_of(schema, rows))
    return answer_of([reference.advance(None)])


ROWS = st.lists(st.tuples(st.integers(0, 2), st.none() | st.integers(0, 9)), min_size=3, max_size=24)


@pytest.mark.slow
@given(st.sampled_from(BODIES), ROWS, st.integers(1, 9), st.sampled_from(["kept", "dropped", "restored", "out"]))
def test_matches_are_those_of_the_reference(body: str, values: list[tuple[int, int]], size: int, way: str) -> None:
    rows = rows_of(values)
    plan = plan_of(body)
    spill = Spill(0, MemoryStore()) if way == "out" else None
    matcher, found = matcher_of(plan, spill), list[Matches]()
    for at in range(0, len(rows), size):
        found.append(matcher.push(batch_of(SCHEMA, rows[at : at + size], at)))
        if way in ("dropped", "out"):
            matcher.rows.drop(matcher.rows.mark(exact=at % 2 == 0))
        if way in ("restored", "out"):
            fresh = matcher_of(plan, spill and Spill(0, MemoryStore()))
            fresh.restore(matcher.snapshot())
            matcher = fresh
    found.append(matcher.advance(None))
    assert answer_of(found) == expected(plan, rows)


@pytest.mark.slow
@pytest.mark.parametrize("body", ["PATTERN (A+ B) DEFINE B AS v > 1000 + FIRST(v)",
                                  "PATTERN (A B+ C) DEFINE C AS v < avg(B.v) - 1000"])  # fmt: skip
def test_what_runs_keep_is_linear_in_runs(body: str) -> None:
    # Before: each run had a node for each of its rows, 4.5 million of them, 3.2 GB at 16,000 rows.
    matcher = matcher_of(plan_of(body, ""))
    rows = rows_of([(0, i % 10) for i in range(3_000)])
    matcher.push(batch_of(SCHEMA, rows))
    assert matcher.spill.runs == 1
    assert matcher.engine.size <= 2 * len(rows)
    assert matcher.used_bytes < 200 * len(rows)


@pytest.mark.parametrize("body", BODIES)
def test_a_state_of_an_earlier_release_goes_on_as_it_was(body: str) -> None:
    """There each row of a run is a node, and links of rows are not kept."""
    rows, plan = rows_of([(i % 2, i * i % 10) for i in range(24)]), plan_of(body)
    old = matcher_of(plan)
    assert isinstance(old.engine, RunLists)
    old.engine.unfold()
    found = [old.push(batch_of(SCHEMA, rows[:13]))]
    state = old.snapshot()
    assert not any("links" in name for name in unpack(state)[1])
    new = matcher_of(plan)
    assert new.fits(pack(unpack_head(state), unpack(state)[1]))
    new.restore(state)
    found += [new.push(batch_of(SCHEMA, rows[13:], 13)), new.advance(None)]
    assert answer_of(found) == expected(plan, rows)

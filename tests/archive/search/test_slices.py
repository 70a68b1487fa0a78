"""Time cut into slices: where a plan may be, the slices together find what one matcher finds in all rows at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from archive.search.partitions import inputs
from archive.search.slices import SLICE, Reach, Slices, only, own, reach, sliced, slices
from matching.batch import EventBatch, Matches
from matching.drive import run
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.output import output_columns
from query.plan.pattern import negated
from query.plan.plan import AfterMatch, Plan, Within
from tests.archive.search.test_partitions import standing
from tests.events import batch_of
from tests.properties.comparing import FEWER, Answer, answer_of, drawn_until_told, kernel_of
from tests.properties.test_skip_till import skipping
from tests.strategies import BOUNDS, SCHEMA, SECOND_US, SQL_SELECTIONS, Row, events, plans


def cut(rows: list[Row], plan: Plan, by: Slices) -> list[EventBatch]:
    """The rows once for each slice that they are given to, as Spark gives them."""
    distance = reach(plan)
    assert distance is not None
    whole = batch_of(SCHEMA, rows)
    first = np.maximum(0, (whole.ts_us - by.start_us - distance.behind_us) // by.width_us)
    last = np.minimum(by.count - 1, (whole.ts_us - by.start_us + distance.before_us) // by.width_us)
    at = np.repeat(np.arange(len(rows)), last - first + 1)
    number = np.concatenate([np.arange(a, b + 1) for a, b in zip(first, last)])
    given_rows = whole.take(at)
    columns = [pa.array(number), *given_rows.columns.columns]
    names = [SLICE, *given_rows.columns.schema.names]
    batch = replace(given_rows, columns=pa.RecordBatch.from_arrays(columns, names=names))
    keys = (SLICE, *(c.name for c in plan.partition_by))
    # rows of several slices are one event each time: those of one slice are put in order
    return [standing(batch.take(np.flatnonzero(number == i)), keys, sliced(plan).schema) for i in np.unique(number)]


def unnumbered(answer: Answer) -> Answer:
    """Slices do not know how many matches came before."""
    return sorted(((outcome, *rest) for outcome, _, *rest in answer), key=repr)


@st.composite
def sliceable(draw: st.DrawFn) -> Plan:
    """Plans that may be cut, of both kinds, negations among them."""
    if draw(st.booleans()):
        plan = draw(skipping())
    else:
        plan = draw(plans(SQL_SELECTIONS, after=False, anchored=False, unmatched=False, timeouts=False))
    kind = draw(st.sampled_from((AfterMatchKind.NO_SKIP, AfterMatchKind.TO_NEXT_ROW)))
    within = draw(st.sampled_from([b for b in BOUNDS if b.interval_us is not None]))
    plan = replace(plan, after=AfterMatch(kind), within=within)
    if plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED:
        plan = replace(plan, rows=RowsPerMatch.ONE)
    if plan.selection is Selection.STRICT:
        plan = replace(plan, partition_by=())
    return replace(plan, timeout_rows=False)


@pytest.mark.slow
def test_slices_find_what_one_finds(record_property: Callable[[str, object], None]) -> None:
    seen: Counter[str] = Counter()

    @FEWER
    @given(
        rows=events(min_size=4), plan=sliceable(), width=st.integers(1, 6), early=st.integers(0, 2),
        together=st.sampled_from((1, 5, 100)),
    )  # fmt: skip
    def check(rows: list[Row], plan: Plan, width: int, early: int, together: int) -> None:
        assume(reach(plan) is not None and bool(output_columns(plan)))
        start = int(rows[0]["ts"]) - early * SECOND_US  # type: ignore[call-overload]
        span = int(rows[-1]["ts"]) - start + 1  # type: ignore[call-overload]
        by = Slices(start, width * SECOND_US, -(-span // (width * SECOND_US)))
        expected = answer_of(list(run(kernel_of(plan), [batch_of(SCHEMA, rows)])))
        # a match of which all rows are hidden shows nothing
        expected = [match for match in expected if match[-1]]
        numbered = sliced(plan)
        keys = (SLICE, *(c.name for c in plan.partition_by))
        found: list[Matches] = []
        for given_rows in inputs(cut(rows, plan, by), numbered.schema, keys, together):
            found += [own(m, by) for m in run(kernel_of(numbered), given_rows)]
        assert unnumbered(answer_of(found)) == unnumbered(expected)
        seen["examples"] += 1
        seen["a match"] += bool(expected)
        seen["slices"] += by.count > 1
        seen["negation"] += bool(negated(plan.pattern))
        seen[plan.selection.value] += 1
        # a match that reaches over the end of its slice
        edges = [((int(m[2]) - start) // by.width_us, (int(m[3]) - start) // by.width_us) for m in expected]  # type: ignore[call-overload]
        seen["over an edge"] += any(a != b for a, b in edges)

    def told() -> None:
        assert 5 * seen["over an edge"] >= seen["examples"] / 2
        assert 3 * seen["a match"] >= seen["examples"]

    drawn_until_told(check, told)
    record_property("examples", ", ".join(f"{what} {count}" for what, count in seen.items()))


@pytest.mark.parametrize("change", [
    {"within": None}, {"within": Within(rows=5)}, {"timeout_rows": True}, {"rows": RowsPerMatch.ALL_WITH_UNMATCHED},
    {"after": AfterMatch(AfterMatchKind.PAST_LAST_ROW)}, {"selection": Selection.STRICT},
])  # fmt: skip
def test_what_may_not_be_cut(change: dict[str, object]) -> None:
    plan = bound("(A B)")
    assert reach(plan) == Reach(0, 10 * SECOND_US)
    assert reach(replace(plan, **change)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("pattern", "define", "measures", "expected"), [
    ("(A B)", "B AS v > A.v", "A.v AS x", Reach(0, 10 * SECOND_US)),
    ("(A ~N B)", "N AS v > 3", "A.v AS x", Reach(10 * SECOND_US, 10 * SECOND_US)),
    ("(~N A B)", "N AS v > 3", "A.v AS x", Reach(10 * SECOND_US, 10 * SECOND_US)),
    ("(A B)", "B AS v > PREV(v)", "A.v AS x", None),
    ("(A B)", "B AS v > 1", "NEXT(B.v) AS x", None),
    ("(A B)", "B AS v > 1", "MATCH_NUMBER() AS x", None),
    ("(A B $)", "B AS v > 1", "A.v AS x", None),
    ("(^ A B)", "B AS v > 1", "A.v AS x", None),
])  # fmt: skip
def test_how_far_a_plan_reaches(pattern: str, define: str, measures: str, expected: Reach | None) -> None:
    assert reach(bound(pattern, define, measures)) == expected


def bound(pattern: str, define: str = "B AS v > 1", measures: str = "A.v AS x") -> Plan:
    from query.language.parse import parse
    from query.plan.bind import bind

    text = (
        f"SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES {measures} AFTER MATCH NO SKIP "
        f"PATTERN {pattern} WITHIN INTERVAL 10 SECOND SELECTION SKIP TILL NEXT MATCH DEFINE {define}) AS m"
    )
    return bind(parse(text), lambda name: SCHEMA).factors[0].plan


def test_slices_are_long_enough_to_pay() -> None:
    assert slices(Reach(0, 10), 0, 999, 4) == Slices(0, 250, 4)
    assert slices(Reach(0, 10), 0, 999, 100) == Slices(0, 80, 13)
    assert slices(Reach(10, 10), 5, 1004, 100) == Slices(5, 160, 7)
    assert slices(Reach(0, 1000), 0, 999, 100) is None
    assert slices(Reach(0, 0), 7, 7, 8) is None
    by = Slices(5, 160, 7)
    assert by.of(np.array([5, 164, 165, 1004])).tolist() == [0, 0, 1, 6]


def test_some_of_the_matches() -> None:
    rows = [{"ts": t * SECOND_US, "k": "p", "s": None, "v": 2, "x": None} for t in range(5)]
    (found,) = run(kernel_of(bound("(A B)")), [batch_of(SCHEMA, rows)])
    whole = answer_of([found])
    picked = only(found, np.array([0, 2]))
    assert answer_of([picked]) == [whole[0], whole[2]]
    assert only(found, np.arange(len(found))) is found
    assert len(only(found, np.zeros(0, np.int64))) == 0

"""The engine of starts gives what the reference gives: at once, at every step, cut anywhere, restored, compacted; it
gives what the run lists give on larger inputs; and its time is linear in rows."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from matching.batch import EventBatch, Matches
from matching.decode import Decode
from matching.engines.engine import Engine
from matching.engines.run_lists import RunLists
from matching.engines.run_starts import RunStarts
from matching.matcher import KernelMatcher
from matching.program.program import NoKernel, Program, assemble
from matching.program.starts import start_table
from query.errors import QueryError
from query.language.ast import AfterMatchKind, RowsPerMatch
from query.plan.expression import TRUE, Call, Expression
from query.plan.output import Outcome
from query.plan.pattern import Alternation, Anchor, Repeat, Variable, variables
from query.plan.pattern import Sequence as Concatenation
from query.plan.plan import AfterMatch, Define, Plan, Within
from query.reference import find
from tests.engines import planned
from tests.events import batch_of
from tests.matching import test_matcher as larger
from tests.properties.comparing import FEWER, constant, drawn_until_told, fewer, is_quick, variants
from tests.strategies import COMPARISONS, SCHEMA, SECOND_US, Row, V, at, compare, events, patterns, plans, row_local

A, B, C = map(Variable, "ABC")
#: outcome, MATCH_NUMBER, offset of the start row, (variable, offset) of each row, what a timeout waited for
Entry = tuple[Outcome, int, int, tuple[tuple[str, int], ...], tuple[str, ...]]
WITHINS = st.sampled_from(
    [None, *(Within(interval_us=n * SECOND_US) for n in (3, 5, 8, 1, 0)), *(map(Within, [None] * 4, (4, 6, 2, 1)))]
)


class Starts(KernelMatcher):
    """The kernel matcher with the engine of starts; `found` is what it gave, without measures."""

    by: type[Engine] = RunStarts

    def __init__(self, plan: Plan, program: Program) -> None:
        super().__init__(plan, planned(plan, self.by, program=program))
        self.found: list[Entry] = []

    def emit(self, ended: bool = False) -> Matches:
        out = Decode()
        self.engine.decode(self.store, out)
        program, bounds = self.program, out.bounds.tolist()
        for i in range(out.count):
            cut = slice(bounds[i], bounds[i + 1])
            names = [program.variables[v] for v in out.variables[cut].tolist()]
            labels = tuple(zip(names, out.offset[cut].tolist(), strict=True))
            state = int(out.waiting[i])
            edges = (
                program.edge_variable[program.edge_start[state] : program.edge_start[state + 1]] if state >= 0 else ()
            )
            waiting = tuple(dict.fromkeys(program.variables[v] for v in edges))
            start = int(self.store.offset[out.start[i]])
            self.found.append((Outcome(out.outcome[i]), int(out.number[i]), start, labels, waiting))
        return self._none()


def program_of(plan: Plan) -> Program:
    """The program of a plan; rejects the example if it has no table of starts."""
    try:
        program = assemble(plan)
    except NoKernel:
        assume(False)
    assume(start_table(program) is not None)
    return program


def expected_of(plan: Plan, rows: Sequence[Row], watermark_us: int | None = None, ended: bool = True) -> list[Entry]:
    """What the reference gives, sorted."""
    times = [int(row["ts"]) for row in rows]  # type: ignore[call-overload]
    try:
        found = find(plan, rows, times, watermark_us=watermark_us, ended=ended, lenient=True)
    except QueryError:
        assume(False)  # more steps than the reference allows itself
        raise
    return sorted((f.outcome, f.number, f.start, f.labels, f.waiting) for f in found)


@st.composite
def row_local_plans(draw: st.DrawFn) -> Plan:
    """Plans with row-local conditions, one match per start, and every way to go on behind a match."""
    pattern = draw(patterns())
    names = variables(pattern)
    anchor = draw(st.integers(0, 7))
    if anchor in (1, 2):
        pattern = Concatenation((Anchor(True), pattern) if anchor == 1 else (pattern, Anchor(False)))
    single = row_local(True)
    if draw(st.integers(0, 3)) == 3:  # NEXT, more often than row_local has it
        single |= st.builds(lambda op, n: compare(V, op, at(V, n)), st.sampled_from(COMPARISONS), st.integers(1, 2))
    either = st.builds(lambda a, b: Call("or", (a, b), "BOOLEAN"), single, single)
    condition: st.SearchStrategy[Expression] = st.one_of(st.just(TRUE), single, single, either)
    kind = draw(st.sampled_from([k for k in AfterMatchKind if k is not AfterMatchKind.NO_SKIP]))
    to = (draw(st.sampled_from(names)),) if kind in (AfterMatchKind.TO_FIRST, AfterMatchKind.TO_LAST) else ()
    within = draw(WITHINS)
    return replace(
        draw(plans(no_skip=False, after=False, opaque=False)),
        pattern=pattern,
        within=within,
        measures=(),
        after=AfterMatch(kind, to),
        rows=draw(st.sampled_from([RowsPerMatch.ONE, RowsPerMatch.ALL_WITH_UNMATCHED])),
        timeout_rows=within is not None and draw(st.booleans()),
        defines=tuple(Define(name, draw(condition)) for name in names),
    )


@pytest.mark.slow
def test_starts_equal_the_reference(record_property: Callable[[str, object], None]) -> None:
    seen: Counter[str] = Counter()
    skips = [kind.value for kind in AfterMatchKind if kind is not AfterMatchKind.NO_SKIP]

    @given(rows=events(min_size=5), plan=row_local_plans())
    def check(plan: Plan, rows: list[Row]) -> None:
        matcher = Starts(plan, program_of(plan))
        matcher.push(batch_of(SCHEMA, rows))
        matcher.advance(None)
        expected = expected_of(plan, rows)
        assert sorted(matcher.found) == expected
        seen["examples"] += 1
        seen["WITHIN"] += plan.within is not None
        seen["NEXT"] += matcher.program.reach.after > 0
        seen[plan.after.kind.value] += any(entry[0] is Outcome.MATCH for entry in expected)
        seen.update({outcome.name for outcome, *_ in expected})
        seen["stuck"] += matcher.engine.stuck > 0

    def told() -> None:
        if not is_quick():
            for what in ("MATCH", "UNMATCHED", "TIMEOUT", "stuck", "NEXT", "WITHIN", *skips):
                assert seen[what] > 0, what

    drawn_until_told(check, told)
    record_property("examples", ", ".join(f"{what} {count:,}" for what, count in sorted(seen.items())))


@pytest.mark.slow
@FEWER
@given(rows=events(min_size=5, max_size=10), plan=row_local_plans(), data=st.data())
def test_each_comes_out_with_the_event_or_watermark_that_decides_it(
    plan: Plan, rows: list[Row], data: st.DataObject
) -> None:
    matcher = Starts(plan, program_of(plan))
    for i, row in enumerate(rows):
        now = int(row["ts"])  # type: ignore[call-overload]
        bound = int(rows[i + 1]["ts"]) if i + 1 < len(rows) else now + 20_000_000  # type: ignore[call-overload]
        watermark = data.draw(st.integers(now, bound))
        matcher.push(batch_of(SCHEMA, [row], i))
        matcher.advance(watermark)
        assert sorted(matcher.found) == expected_of(plan, rows[: i + 1], watermark, ended=False)
    matcher.advance(None)
    assert sorted(matcher.found) == expected_of(plan, rows)


@pytest.mark.slow
@fewer(4)
@given(rows=events(max_size=20), plan=row_local_plans(), data=st.data())
def test_cuts_snapshots_and_compaction_change_nothing(plan: Plan, rows: list[Row], data: st.DataObject) -> None:
    program = program_of(plan)
    expected = expected_of(plan, rows)
    steps: list[tuple[int, bool, bool]] = []  # the end of a cut, whether a watermark comes behind it, and a snapshot
    at = 0
    while at < len(rows):
        at += data.draw(st.sampled_from((1, 1, 2, 3, 8)))
        steps.append((at, at < len(rows) and data.draw(st.booleans()), data.draw(st.integers(0, 3)) == 0))
    for slack in variants(0, 3):  # compaction after almost every batch
        with constant("matching.rows.SLACK", slack):
            matcher, found, begin = Starts(plan, program), list[Entry](), 0
            for end, watermark, restored in steps:
                matcher.push(batch_of(SCHEMA, rows[begin:end], begin))
                begin = end
                if watermark:
                    matcher.advance(int(rows[end]["ts"]))  # type: ignore[call-overload]
                if restored:
                    found += matcher.found
                    state = matcher.snapshot()
                    matcher = Starts(plan, program)
                    matcher.restore(state)
            matcher.advance(None)
        assert sorted(found + matcher.found) == expected, f"SLACK {slack}"


# ---- larger inputs


class Lists(Starts):
    """The same with run lists."""

    by = RunLists


def star(*parts: Variable) -> Repeat:
    return Repeat(Concatenation(parts) if len(parts) > 1 else parts[0], 0, None, True)


def below(value: int) -> Expression:
    return larger.compare("<", larger.V, larger.number(value))


PLANS = {
    "V": larger.plan_of(larger.V_SHAPE, larger.FALL_RISE),
    "waits long": larger.plan_of(Alternation((Concatenation((A, star(B), C)), A)), {"B": below(49), "C": below(1)}),
    "chains": larger.plan_of(Concatenation((A, star(A, B), C)), {"A": below(45), "B": below(30), "C": below(2)}),
}


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", ["V", pytest.param("waits long", marks=pytest.mark.slow), "chains"])
@pytest.mark.parametrize("within", [None, Within(interval_us=900), Within(rows=40)])
def test_starts_equal_run_lists(name: str, within: Within | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matching.rows.SLACK", 100)
    plan = replace(PLANS[name], within=within, after=AfterMatch(AfterMatchKind.TO_NEXT_ROW), measures=())
    program = assemble(plan)
    batch = larger.events(20_000, 3)
    answers = []
    for matcher in (Starts(plan, program), Lists(plan, program)):
        cuts = [0, *np.sort(np.random.default_rng(1).integers(0, len(batch), 50)).tolist(), len(batch)]
        for begin, end in pairwise(cuts):
            matcher.push(batch.slice(begin, end))
        matcher.advance(None)
        answers.append(sorted(matcher.found))
    assert answers[0] == answers[1]
    assert len(answers[0]) > 100


@pytest.mark.slow
@fewer(5)
@given(plan=row_local_plans(), seed=st.integers(0, 1 << 30))
def test_groups_of_many_starts_equal_run_lists(plan: Plan, seed: int) -> None:
    plan = replace(plan, rows=RowsPerMatch.ONE)
    program = program_of(plan)
    draw = np.random.default_rng(seed)
    rows: list[Row] = []
    for i in range(300):
        now = rows[-1]["ts"] if i else 0
        rows.append({
            "ts": now + int(draw.integers(0, 3)) * SECOND_US // 4, "k": "pq"[int(draw.random() < 0.2)],  # type: ignore[operator]
            "s": "aaab"[int(draw.integers(4))], "v": int(draw.integers(0, 6)), "x": float(draw.random()),
        })  # fmt: skip
    answers = []
    for matcher in (Starts(plan, program), Lists(plan, program)):
        for begin in range(0, len(rows), 7):
            matcher.push(batch_of(SCHEMA, rows[begin : begin + 7], begin))
            matcher.advance(int(rows[begin]["ts"]))  # type: ignore[call-overload]
            matcher.rows.compact_at = 0 if begin % 2 else 50
        matcher.advance(None)
        answers.append(sorted(matcher.found))
    assert answers[0] == answers[1]


def constant_rows(count: int) -> EventBatch:
    batch = larger.events(count, 1)
    return replace(batch, ts_us=np.arange(count, dtype=np.int64))


@pytest.mark.slow
def test_time_is_linear_in_rows_that_all_start_and_never_match() -> None:
    """300,000 starts, each alive for 100,000 rows: 3e10 steps if starts were taken one by one."""
    never = {"B": larger.compare("<", larger.V, larger.number(-1))}
    plan = larger.plan_of(
        Concatenation((larger.plus(A), B)), never, partition_by=(), within=Within(interval_us=100_000),
        after=AfterMatch(AfterMatchKind.TO_NEXT_ROW), timeout_rows=False, measures=(),
    )  # fmt: skip


    def matched(count: int) -> tuple[Starts, float]:
        """A matcher that has had so many rows, and its processor time."""
        matcher, batch = Starts(plan, assemble(plan)), constant_rows(count)
        begun = time.process_time()
        for begin in range(0, len(batch), 10_000):
            matcher.push(batch.slice(begin, min(begin + 10_000, count)))
        matcher.advance(None)
        return matcher, time.process_time() - begun

    matched(100)  # compiles
    _, few = matched(10_000)
    matcher, many = matched(300_000)
    assert many < 150 * max(few, 0.02)  # 500 times, if starts were taken one by one
    assert matcher.found == []
    assert matcher.store.count < 300_000  # what WITHIN has passed is dropped


def test_patterns_with_very_many_configurations_have_no_table() -> None:
    either = Alternation((A, B))
    pattern = Concatenation((Repeat(either, 0, None, True), A, *[either] * 14))
    plan = larger.plan_of(pattern, {"A": below(30), "B": below(45)}, after=AfterMatch(AfterMatchKind.TO_NEXT_ROW))
    assert start_table(assemble(plan)) is None  # each of the last 15 rows may be the A before them
    short = larger.plan_of(Concatenation((A, B)), {"A": below(30)}, after=AfterMatch(AfterMatchKind.TO_NEXT_ROW))
    assert start_table(assemble(short)) is not None

"""Counted matches are as many as the reference finds, cut anywhere, and restored at any point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from matching.batch import Matches
from matching.engines.choose import choose_engine
from matching.matcher import KernelMatcher
from matching.purpose import Purpose
from query.errors import DataError
from query.language.ast import AfterMatchKind, RowsPerMatch
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import AfterMatch, Define, Plan, Within
from tests.engines import matcher_by
from tests.events import batch_of
from tests.properties.comparing import FEWER, by_reference, constant, drawn_until_told, run
from tests.strategies import (
    SCHEMA,
    SECOND_US,
    SKIP_TILL,
    Row,
    by_duckdb,
    chains,
    events,
    patterns,
    plans,
    row_local,
    sometimes,
)

#: Of each partition with a match, by its values.
Counts = dict[tuple[object, ...], int]
WITHINS = st.sampled_from([None, *(Within(rows=n) for n in (2, 3, 5)), *(Within(s * SECOND_US) for s in (0, 2, 4))])
FAILING = by_duckdb("A", ("A", "B"), True)


@st.composite
def counted(draw: st.DrawFn, raising: bool = False) -> Plan:
    """A plan whose matches can be counted without being found."""
    ahead = draw(sometimes)
    plan = draw(plans(SKIP_TILL, draw(st.sampled_from((chains, patterns))), after=ahead, anchored=False))
    conditions = row_local(ahead) | FAILING if raising else row_local(ahead)
    defines = tuple(Define(d.variable, draw(conditions)) for d in plan.defines)
    after, one = AfterMatch(AfterMatchKind.NO_SKIP), RowsPerMatch.ONE
    return replace(plan, defines=defines, after=after, rows=one, measures=(), within=draw(WITHINS))


def counters_of(plan: Plan) -> Callable[[], KernelMatcher]:
    """Makes matchers that count; rejects the example if none can."""
    chosen = choose_engine(plan, Purpose.COUNTS)
    if chosen.engine is None:
        assume(False)
    return partial(KernelMatcher, plan, chosen)


def counter_of(plan: Plan) -> KernelMatcher:
    return counters_of(plan)()


def counts_of(matcher: KernelMatcher) -> Counts:
    keys, totals = matcher.counts()
    values = zip(*(key.to_pylist() for key in keys), strict=True) if keys else [()] * len(totals)
    return dict(zip(values, totals.tolist(), strict=True))


def counts_in(found: Sequence[Matches]) -> Counts:
    """The same of matches that were found."""
    counts: Counter[tuple[object, ...]] = Counter()
    for matches in found:
        rows = matches.rows.to_pylist() if matches.rows.num_columns else [{}] * len(matches)
        counts.update(tuple(row.values()) for row in rows)
    return dict(counts)


@pytest.mark.slow
def test_counts_equal_the_reference() -> None:
    examples: Counter[str] = Counter()

    @given(rows=events(min_size=4), plan=counted(), size=st.sampled_from((1, 4, 100)))
    def check(plan: Plan, rows: list[Row], size: int) -> None:
        make = counters_of(plan)
        expected = counts_in([by_reference(plan, rows)])
        for room in (1, 1 << 12):
            with constant("matching.engines.run_counts.ROOM", room):
                counter = make()
                run(counter, rows, size)
                assert counts_of(counter) == expected, f"ROOM {room}"
        examples["all"] += 1
        examples["several"] += sum(expected.values()) > 1
        examples["within"] += plan.within is not None

    def told() -> None:
        assert 4 * examples["several"] >= examples["all"]
        assert 4 * examples["within"] >= examples["all"]

    drawn_until_told(check, told)


@pytest.mark.slow
@FEWER
@given(rows=events(), plan=counted(), data=st.data())
def test_restoring_a_snapshot_and_dropping_rows_change_nothing(
    rows: list[Row], plan: Plan, data: st.DataObject
) -> None:
    make = counters_of(plan)
    with constant("matching.rows.SLACK", data.draw(st.sampled_from((0, 1 << 15)))):
        counter = make()
        for i, row in enumerate(rows):
            counter.push(batch_of(SCHEMA, [row], i))
            if not data.draw(st.integers(0, 3)):
                counter.advance(int(row["ts"]))  # type: ignore[call-overload]
                fresh = make()
                fresh.restore(counter.snapshot())
                counter = fresh
        counter.advance(None)
    assert counts_of(counter) == counts_in([by_reference(plan, rows)])


@pytest.mark.slow
@FEWER
@given(rows=events(min_size=4), plan=counted(raising=True), size=st.sampled_from((1, 3, 100)))
def test_a_condition_that_cannot_be_computed_is_an_error_where_the_reference_reads_it(
    rows: list[Row], plan: Plan, size: int
) -> None:
    counter = counter_of(plan)
    ours, theirs = None, None  # an error
    with suppress(DataError):
        run(counter, rows, size)
        ours = counts_of(counter)
    with suppress(DataError):
        theirs = counts_in([by_reference(plan, rows)])
    assert ours == theirs


CHAINS = ("A B C", "A+ B", "A B+ C", "(A | B) C?", "A B* A", "A (B C)+ A", "A B? C D")


@pytest.mark.slow
@given(
    words=st.lists(st.sampled_from("abcd"), min_size=20, max_size=60),
    gaps=st.lists(st.integers(0, 3), min_size=60, max_size=60),
    pattern=st.sampled_from(CHAINS),
    within=st.sampled_from(("", *(f"WITHIN {n} ROWS" for n in (3, 8, 20)), *(f"WITHIN INTERVAL '{n}' SECOND"
                                                                          for n in (0, 4, 9, 30)))),
    how=st.sampled_from(("NEXT", "ANY")),
)  # fmt: skip
def test_many_rows_are_counted_as_they_are_found(
    words: list[str], gaps: list[int], pattern: str, within: str, how: str
) -> None:
    """Long inputs, whose starts leave one by one; the graph, which equals the reference, finds the matches."""
    defines = ", ".join(f"{v} AS s = '{v.lower()}'" for v in "ABCD" if v in pattern)
    if pattern == "A+ B" and how == "ANY" and not within:
        within = "WITHIN 8 ROWS"  # there would be very many
    plan = bind(parse(f"""SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts PATTERN ({pattern}) {within}
        SELECTION SKIP TILL {how} MATCH DEFINE {defines})"""), lambda _: SCHEMA).factors[0].plan  # fmt: skip
    rows: list[Row] = []
    seconds = 0
    for word, gap in zip(words, gaps):
        seconds += gap
        rows.append({"ts": seconds * SECOND_US, "k": "pq"[gap == 2], "s": word, "v": 0, "x": 0.0})
    counter = counter_of(plan)
    run(counter, rows, 7)
    assert counts_of(counter) == counts_in(run(matcher_by(plan), rows, 100))


def test_a_count_beyond_bigint_is_an_error() -> None:
    plan = bind(parse("""SELECT count(*) FROM e MATCH_RECOGNIZE (ORDER BY ts PATTERN (A+)
        SELECTION SKIP TILL ANY MATCH DEFINE A AS s = 'a')"""), lambda _: SCHEMA).factors[0].plan  # fmt: skip

    def counted_of(n: int) -> Counts:
        counter = counter_of(plan)
        run(counter, [{"ts": i, "k": "p", "s": "a", "v": 0, "x": 0.0} for i in range(n)], 100)
        return counts_of(counter)

    assert counted_of(62) == {(): 2**62 - 1}
    for n in (63, 64, 65, 200):
        with pytest.raises(DataError, match="BIGINT"):
            counted_of(n)


def test_numbers_beyond_bigint_that_no_run_has_are_no_error() -> None:
    """The matrix of the front has 2**100 for runs that have taken a C, and there are none."""
    plan = bind(parse("""SELECT count(*) FROM e MATCH_RECOGNIZE (ORDER BY ts PATTERN (A B C+ D) WITHIN 150 ROWS
        SELECTION SKIP TILL ANY MATCH DEFINE A AS s = 'a', B AS s = 'b', C AS s = 'c', D AS s = 'd')"""),
        lambda _: SCHEMA).factors[0].plan  # fmt: skip
    for behind, count in ((("b", "c", "d"), 1), (("b", "c", "c", "d", "d"), 6)):
        words = ["a", *"x" * 139, "a", *"x" * 15, *"c" * 100, *behind]
        counter = counter_of(plan)
        run(counter, [{"ts": i, "k": "p", "s": w, "v": 0, "x": 0.0} for i, w in enumerate(words)], 100)
        assert counts_of(counter) == {(): count}

"""A pattern found once over an interval gives the answer of every range inside it, however the interval has grown."""

from __future__ import annotations

from collections import Counter
from functools import cache, partial
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from hybrid.join.covered import PIECES_MAX, Covered
from matching.batch import Matcher
from matching.by_reference import ReferenceMatcher
from matching.sharing import Sharing, sharing_of, widened
from query.errors import QueryError
from query.language.ast import Selection
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import Plan
from tests.engines import matcher_by
from tests.events import batch_of
from tests.properties.comparing import by_reference, drawn_until_told, is_quick, program_of
from tests.strategies import SCHEMA, SKIP_TILL, SQL_SELECTIONS, Row, events, plans

KEYS = ("p", "q", None)


PATTERNS = (
    "A B+", "A+ B", "A B* C", "(A | B) C?", "A (B C)+", "(A B | A) C?", "A{2,3}", "A B+? C", "(A|B)+ C", "A+ B+", "A C?"
)
CONDITIONS = (
    "TRUE", "s = 'a'", "s = 'b'", "s <> 'c'", "v >= 2", "COUNT(*) < 3", "v > LAST(v, 1) OR COUNT(*) = 1", "v > PREV(v)"
)


@st.composite
def written(draw: st.DrawFn) -> Plan:
    """A plan in which greedy runs and skipping are common."""
    after = draw(st.sampled_from(("PAST LAST ROW", "PAST LAST ROW", "TO NEXT ROW", None)))
    pattern, within = draw(st.sampled_from(PATTERNS)), draw(st.sampled_from(("", "", "WITHIN INTERVAL '3' SECOND")))
    defines = ", ".join(f"{name} AS {draw(st.sampled_from(CONDITIONS))}" for name in "ABC" if name in pattern)
    skip = "NO SKIP" if after is None else f"SKIP {after}"
    text = (
        f"SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES COUNT(*) AS n, LAST(v) AS w "
        f"{draw(st.sampled_from(('ONE ROW', 'ALL ROWS')))} PER MATCH AFTER MATCH {skip} PATTERN ({pattern}) {within} "
        f"DEFINE {defines})"
    )
    return planned(text)


@cache
def planned(text: str) -> Plan:
    return bind(parse(text), lambda _: SCHEMA).factors[0].plan


@st.composite
def shared(draw: st.DrawFn) -> Plan:
    """A plan whose ranges share."""
    if draw(st.integers(0, 2)):
        plan: Plan = draw(written())
        assume(sharing_of(plan) is not Sharing.NOTHING)
        return plan
    selections = draw(st.sampled_from((SQL_SELECTIONS[1:], SKIP_TILL)))
    plan = draw(
        plans(
            selections, after=False, negations=draw(st.booleans()), anchored=False, exclusions=False, skip_to=False,
            unmatched=False, timeouts=False,
        )
    )
    assume(sharing_of(plan) is not Sharing.NOTHING and (plan.measures or plan.partition_by))
    return plan


Found = list[tuple[tuple[tuple[str, int], ...], tuple[str, ...]]]


def matches_in(plan: Plan, rows: list[Row], first: int, low: int, last: int, key: object) -> Found:
    """The definition: the answer on the rows of one range and partition alone, from the row `first` on."""
    inside = [
        (i, row) for i, row in enumerate(rows)
        if i >= first and low <= row["ts"] <= last and (not plan.partition_by or row["k"] == key)  # type: ignore[operator]
    ]  # fmt: skip
    found = by_reference(plan, [row for _, row in inside])
    return [
        (
            tuple((found.variables[found.event_variable[e]], inside[found.event_offset[e]][0]) for e in range(a, b)),
            tuple(repr(row) for row in found.rows.take(pa.array(np.flatnonzero(found.row_match == m))).to_pylist()),
        )
        for m, (a, b) in enumerate(zip(found.event_bounds[:-1], found.event_bounds[1:]))
    ]  # fmt: skip


def key_of(plan: Plan, partitions: pa.Table, count: int) -> np.ndarray:
    if not plan.partition_by:
        return np.zeros(count, np.int64)
    return np.array([KEYS.index(k) for k in partitions.column(0).to_pylist()], np.int64)


@pytest.mark.slow
def test_what_is_found_once_answers_every_range() -> None:
    examples: Counter[str] = Counter()

    @given(
        plan=shared(),
        rows=events(min_size=6, max_size=20),
        grown=st.lists(st.integers(0, 20), max_size=3),
        ranges=st.lists(
            st.tuples(st.integers(0, 12), st.integers(2, 14), st.sampled_from(("p", "p", "p", "q", None))), min_size=1,
            max_size=6,
        ),
        kernel=st.booleans(),
        anew=st.sampled_from((-1, 5, 100)),
    )
    def check(
        plan: Plan, rows: list[Row], grown: list[int], ranges: list[tuple[int, int, str | None]], kernel: bool,
        anew: int,
    ) -> None:  # fmt: skip
        rows = rows[:12] if plan.selection is Selection.SKIP_TILL_ANY else rows  # they have 2 ** len(rows) matches
        wide = widened(plan)
        new = partial(matcher_by, wide, program=program_of(wide)) if kernel else partial(ReferenceMatcher, wide)

        def make(state: bytes | None) -> Matcher:
            matcher: Matcher = new()
            if state is not None:
                matcher.restore(state)
            return matcher

        covered = Covered(plan, make, 0, anew)
        ends = [1_000_000 * end for end in (*sorted(set(grown)), 40)]
        try:
            for end in ends:
                examples["grown"] += len(covered) > 0
                at = [i for i, row in enumerate(rows) if covered.last_us < row["ts"] <= end]  # type: ignore[operator]
                batches = [batch_of(SCHEMA, rows[at[0] : at[-1] + 1], at[0])] if at else []
                covered.extend(batches, end)
                with patch("hybrid.join.covered.PIECES_MAX", 1 if kernel else PIECES_MAX):
                    _check(covered, plan, rows, ranges, end)
        except QueryError:
            assume(False)

    def _check(
        covered: Covered, plan: Plan, rows: list[Row], ranges: list[tuple[int, int, str | None]], end: int
    ) -> None:
        low = np.array([1_000_000 * a for a, _, _ in ranges], np.int64)
        last = np.minimum(np.array([1_000_000 * (a + n) for a, n, _ in ranges], np.int64), end)
        asked = [k if plan.partition_by else "p" for _, _, k in ranges]
        keys = np.array([KEYS.index(k) if plan.partition_by else 0 for k in asked], np.int64)
        pair, match, cut = covered.answer(partial(key_of, plan), keys, low, last)
        kept = covered.arranged()
        seconds = {int(r): i for i, r in enumerate(cut.range)}
        for r, key in enumerate(asked):
            mine: Found = []
            for m in kept.number[match[pair == r]]:
                a, b = kept.evidence.bounds[m : m + 2]
                labels = [kept.evidence.variables[v] for v in kept.evidence.variable[a:b]]
                shown = kept.rows.slice(kept.row_bounds[m], kept.row_bounds[m + 1] - kept.row_bounds[m])
                mine.append((tuple(zip(labels, kept.evidence.seq[a:b])), tuple(map(repr, shown.to_pylist()))))
            examples["found"] += bool(mine)
            examples["several"] += len(mine) > 1
            if r in seconds:
                i = seconds[r]
                assert rows[int(cut.seq[i])]["ts"] == cut.start_us[i]
                again = matches_in(plan, rows, int(cut.seq[i]), int(low[r]), int(last[r]), key)
                examples["anew"] += 1
                mine += again
            assert sorted(mine) == sorted(matches_in(plan, rows, 0, int(low[r]), int(last[r]), key))
            examples["ranges"] += 1
        examples[sharing_of(plan).name] += 1

    def shares() -> None:
        assert 20 * examples["several"] >= examples["ranges"]
        assert 100 * examples["anew"] >= examples["ranges"]
        few = is_quick()  # a share of few says little
        assert 5 * examples["FILTER"] >= examples["REPLAY"] or (few and examples["FILTER"])
        assert 5 * examples["REPLAY"] >= examples["FILTER"] or (few and examples["REPLAY"])

    drawn_until_told(check, shares)

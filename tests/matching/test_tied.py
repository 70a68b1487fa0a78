"""Which columns divide the rows of a plan further than PARTITION BY, and what EXPLAIN says of it."""

from __future__ import annotations

from itertools import pairwise

import pytest

import hybrid
from matching.batch import Matches
from matching.engines.choose import choose_engine
from matching.matcher import KernelMatcher, make_matcher
from matching.purpose import Purpose
from matching.tied import Tied, tied
from query.plan.expression import show
from query.plan.plan import Plan
from query.schema import Field, Schema
from tests.events import batch_of

EVENTS = Schema(
    "t", (
        Field("ts", "TIMESTAMP"), Field("k", "BIGINT"), Field("s", "VARCHAR"), Field("tk", "BIGINT"),
        Field("n", "BIGINT"), Field("x", "DOUBLE"), Field("i", "INTERVAL"),
    ), time="ts",
)  # fmt: skip
STEP = "SELECTION SKIP TILL NEXT MATCH"


def plan_of(pattern: str, define: str, clauses: str = STEP, before: str = "") -> Plan:
    text = (
        f"SELECT * FROM t MATCH_RECOGNIZE ({before} ORDER BY ts MEASURES FIRST(ts) AS t0 PATTERN ({pattern}) {clauses} "
        f"DEFINE {define})"
    )
    if "AFTER MATCH" in clauses:
        after, rest = clauses.split(";")
        text = text.replace("PATTERN", f"{after} PATTERN").replace(clauses, rest)
    return hybrid.plan(text, {"t": EVENTS}).factors[0].plan


def found(plan: Plan) -> str:
    """The columns, and the conditions that are left; or why there are none."""
    tie = tied(plan)
    if not isinstance(tie, Tied):
        return str(tie)
    names = ", ".join(c.name for c in tie.columns)
    shown = "; ".join(f"{d.variable} {show(d.condition)}" for d in tie.plan.defines)
    return f"{names}: {shown}".replace("(", "").replace(")", "")


@pytest.mark.parametrize(("pattern", "define", "clauses", "expected"), [
    ("Q A", "Q AS s = 'q', A AS s = 'a' AND tk = Q.tk", STEP,
     "tk: Q s = 'q' AND tk IS NOT NULL; A s = 'a' AND tk IS NOT NULL"),
    ("Q A*", "Q AS s = 'q', A AS Q.tk = tk", STEP, "tk: Q s = 'q'; A tk IS NOT NULL"),
    ("Q A B", "A AS tk = Q.tk, B AS tk = A.tk AND n = Q.n", STEP,
     "tk: Q tk IS NOT NULL; A tk IS NOT NULL; B tk = LASTA.tk AND n = LASTQ.n"),
    ("Q A", "A AS tk = Q.tk AND n = Q.n", STEP, "tk, n: Q tk IS NOT NULL AND n IS NOT NULL; "
     "A tk IS NOT NULL AND n IS NOT NULL"),
    ("Q NOT N A", "A AS tk = Q.tk, N AS s = 'n' AND tk = Q.tk", STEP,
     "tk: Q tk IS NOT NULL; N s = 'n' AND tk IS NOT NULL; A tk IS NOT NULL"),
    ("Q NOT N A", "A AS tk = Q.tk, N AS s = 'n'", STEP, "None"),  # a row of any tk forbids the match
    ("A+ B", "A AS tk = FIRST(A.tk), B AS tk = LAST(A.tk)", STEP, "tk: A tk IS NOT NULL; B tk IS NOT NULL"),
    ("A+ B", "A AS tk = LAST(A.tk), B AS tk = LAST(A.tk)", STEP, "None"),  # the row itself
    ("Q B+", "B AS tk = FIRST(B.tk)", STEP, "None"),  # the first B is any row
    ("Q B+", "B AS tk = LAST(tk, 1)", STEP, "tk: Q tk IS NOT NULL; B tk = LASTtk, 1"),
    ("Q NOT A", "Q AS s = 'q', A AS s = 'a' AND tk = Q.tk", "WITHIN INTERVAL '1' HOUR",
     "tk: Q s = 'q'; A s = 'a' AND tk IS NOT NULL"),
    ("Q A", "A AS tk = Q.tk", "", "None"),  # rows follow each other
    ("Q A", "A AS i = Q.i", STEP, "None"),
    ("Q A", "A AS x = Q.x", STEP, "x: Q x IS NOT NULL; A x IS NOT NULL"),
    ("Q A", "A AS tk = Q.n", STEP, "None"),
    ("Q A", "A AS tk = Q.tk AND x > Q.x * 2 AND ts - Q.ts < INTERVAL '1' HOUR", STEP,
     "tk: Q tk IS NOT NULL; A tk IS NOT NULL AND x > LASTQ.x * 2 AND ts - LASTQ.ts < INTERVAL 1 hour"),
    ("Q A", "A AS n * 2 > Q.n AND tk = Q.tk", STEP,
     "the condition of A may fail, which is an error whatever the equality says"),
    ("Q A", "A AS tk = Q.tk AND n * 2 > 7", STEP,
     "the condition of A may fail, which is an error whatever the equality says"),
    ("Q A", "A AS tk = Q.tk AND n * 2 > Q.n", STEP,
     "the condition of A may fail where tk is null; let all conditions say tk IS NOT NULL"),
    ("Q A", "Q AS tk IS NOT NULL, A AS tk IS NOT NULL AND tk = Q.tk AND n * 2 > Q.n", STEP,
     "tk: Q tk IS NOT NULL; A tk IS NOT NULL AND n * 2 > LASTQ.n"),
    ("Q A", "A AS tk = Q.tk AND n > PREV(n)", STEP, "tk: Q tk IS NOT NULL; A tk IS NOT NULL AND n > PREVn"),
    ("Q A", "A AS tk = Q.tk AND n > NEXT(n)", STEP, "NEXT reads rows beside the match"),
    ("Q A", "A AS tk = Q.tk AND n = Q.n AND x = Q.x", STEP, "tk, n, x: Q tk IS NOT NULL AND n IS NOT NULL AND x IS NOT "
     "NULL; A tk IS NOT NULL AND n IS NOT NULL AND x IS NOT NULL"),
    ("Q A", "A AS tk = Q.tk", f"WITHIN 5 ROWS {STEP}", "tk: Q tk IS NOT NULL; A tk IS NOT NULL"),
    ("Q A", "A AS tk = Q.tk", f"AFTER MATCH SKIP PAST LAST ROW;{STEP}", "tk: Q tk IS NOT NULL; A tk IS NOT NULL"),
    ("Q A NOT N", "A AS tk = Q.tk, N AS tk = Q.tk", f"AFTER MATCH SKIP PAST LAST ROW;WITHIN INTERVAL 1 HOUR {STEP}",
     "tk: Q tk IS NOT NULL; A tk IS NOT NULL; N tk IS NOT NULL"),
])  # fmt: skip
def test_columns_tie_rows_together(pattern: str, define: str, clauses: str, expected: str) -> None:
    assert found(plan_of(pattern, define, clauses)) == expected


def test_partition_columns_divide_first() -> None:
    plan = plan_of("Q A", "A AS tk = Q.tk", before="PARTITION BY k")
    tie = tied(plan)
    assert isinstance(tie, Tied)
    assert [c.name for c in tie.plan.partition_by] == ["k", "tk"]
    tie = tied(plan_of("Q A", "A AS tk = Q.tk AND n = Q.n", before="PARTITION BY k"))
    assert isinstance(tie, Tied)
    assert [c.name for c in tie.plan.partition_by] == ["k", "tk", "n"]  # Before: the first one only
    rows = tied(plan_of("Q A", "A AS tk = Q.tk", f"WITHIN 5 ROWS {STEP}", "PARTITION BY k"))
    assert rows == "WITHIN counts the rows of each key"
    assert tied(plan_of("Q A", "A AS tk = Q.tk", before="PARTITION BY tk")) is None


def test_explain_says_what_is_looked_up() -> None:
    # Before: nothing was looked up, and each row met each partial match.
    plan = plan_of("Q A", "Q AS s = 'q', A AS s = 'a' AND tk = Q.tk")
    assert "looked up   tk: a row meets partial matches of its own value only" in str(choose_engine(plan, Purpose.ROWS))
    # Before: all partial matches, where a step reads NEXT, counts rows of a key, or compares other columns.
    steps = {
        "A": ("Q A", "A AS tk = Q.tk AND n > NEXT(n)", STEP, ""),
        "B": ("Q A B", "A AS tk = Q.n, B AS n = A.tk", STEP, ""),
        "R": ("Q A R", "A AS tk = Q.tk, R AS n = Q.n", f"WITHIN 5 ROWS {STEP}", "PARTITION BY k"),
    }
    for name, (pattern, define, clauses, before) in steps.items():
        shown = str(choose_engine(plan_of(pattern, define, clauses, before), Purpose.ROWS))
        assert f": a row that may be {name} meets partial matches that wait for its value" in shown
        assert "looked up   nothing" not in shown
    any_match = plan_of("Q A", "A AS tk = Q.tk AND n > NEXT(n)", "SELECTION SKIP TILL ANY MATCH")
    beside = str(choose_engine(any_match, Purpose.ROWS))
    assert "looked up   nothing, though rows of a match are equal: NEXT reads rows beside the match" in beside
    none = str(choose_engine(plan_of("Q A", "Q AS s = 'q', A AS s = 'a'"), Purpose.ROWS))
    assert "looked up" not in none
    waiting = plan_of("Q R NOT A", "Q AS s = 'q', A AS s = 'a' AND n = Q.tk", "WITHIN INTERVAL '1' HOUR")
    shown = "looked up   n: a row that A negates meets waiting matches of its value only"
    assert shown in str(choose_engine(waiting, Purpose.ROWS))


def test_a_query_that_only_the_reference_could_run_has_an_engine() -> None:
    # Before: the negation read the match in a place where no engine tests it.
    plan = plan_of(
        "NOT A Q", "Q AS s = 'q', A AS s = 'a' AND tk = Q.tk", "WITHIN INTERVAL '1' HOUR"
    )
    assert choose_engine(plan, Purpose.ROWS).engine is not None


def matches_of(plan: Plan, rows: list[tuple[int, str, int]], size: int) -> list[list[int]]:
    """Returns the rows of each match, by a matcher that forgets early. rows: k, s, tk, a second apart."""
    events = [
        {"ts": at * 1_000_000, "k": k, "s": s, "tk": tk, "n": None, "x": None, "i": None}
        for at, (k, s, tk) in enumerate(rows)
    ]
    matcher, found = make_matcher(plan), list[Matches]()
    assert isinstance(matcher, KernelMatcher)
    assert matcher.chosen.looked_up
    for at in range(0, len(events), size):
        matcher.rows.compact_at = matcher.rows.forget_at = 0
        found.append(matcher.push(batch_of(EVENTS, events[at : at + size], at)))
    found.append(matcher.advance(None))
    out = []
    for matches in found:
        ends = matches.event_bounds.tolist()
        out += [matches.event_offset[a:b].tolist() for a, b in pairwise(ends)]
    return out


@pytest.mark.parametrize("size", [1, 3, 100])
def test_a_match_ends_partial_matches_of_other_values_of_its_key(size: int) -> None:
    # Before: nothing was looked up under SKIP PAST LAST ROW.
    plan = plan_of(
        "Q A", "Q AS s = 'q', A AS s = 'a' AND tk = Q.tk", f"AFTER MATCH SKIP PAST LAST ROW;{STEP}", "PARTITION BY k"
    )
    rows = [(1, "q", 1), (2, "q", 1), (1, "q", 2), (1, "a", 2), (1, "a", 1), (2, "a", 1), (1, "q", 1), (1, "a", 1)]
    assert matches_of(plan, rows, size) == [[2, 3], [1, 5], [6, 7]]


def test_what_a_match_has_ended_is_not_kept() -> None:
    plan = plan_of("Q A", "Q AS s = 'q', A AS s = 'a' AND tk = Q.tk", f"AFTER MATCH SKIP PAST LAST ROW;{STEP}")
    matcher = make_matcher(plan)
    assert isinstance(matcher, KernelMatcher)
    base = {"k": 1, "n": None, "x": None, "i": None}
    events = [base | {"ts": tk, "s": "q", "tk": tk} for tk in range(50)]
    matcher.push(batch_of(EVENTS, events))
    assert matcher.rows.needed(matcher).sum() == 50
    assert len(matcher.push(batch_of(EVENTS, [base | {"ts": 50, "s": "a", "tk": 7}], 50))) == 1
    assert not matcher.rows.needed(matcher).any()
    assert matcher.spill.runs == 0


@pytest.mark.parametrize("condition", ["", " AND n > Q.n"])
def test_what_is_behind_rows_of_other_values_is_not_kept(condition: str) -> None:
    # Before: nothing was looked up where WITHIN counts rows.
    define = f"Q AS s = 'q', A AS s = 'a' AND tk = Q.tk{condition}"
    matcher = make_matcher(plan_of("Q A", define, f"WITHIN 20 ROWS {STEP}"))
    assert isinstance(matcher, KernelMatcher)
    assert matcher.chosen.looked_up
    assert matcher.met(()) is None  # rows that meet no condition count
    base = {"k": 1, "x": None, "i": None}
    events = [base | {"ts": tk, "s": "q", "tk": tk, "n": 0} for tk in range(500)]
    for at in range(0, 500, 25):
        matcher.push(batch_of(EVENTS, events[at : at + 25], at))
    assert matcher.rows.needed(matcher).sum() == 19  # the next row is the last one within 20 rows of the first of them
    late = base | {"ts": 500, "s": "a", "tk": 481, "n": 1}
    assert len(matcher.push(batch_of(EVENTS, [late], 500))) == 1
    assert not len(matcher.push(batch_of(EVENTS, [late | {"ts": 501}], 501)))
    matcher.rows.compact_at = matcher.rows.forget_at = 0
    matcher.push(batch_of(EVENTS, [late | {"ts": 502, "tk": 0}], 502))
    assert len(matcher.keys) - len(matcher.keys.free) <= 21


@pytest.mark.parametrize("size", [1, 3, 100])
def test_of_matches_that_wait_those_that_overlap_an_earlier_one_go(size: int) -> None:
    # Before: only the reference could run it: 5,000 rows took 46 seconds.
    plan = plan_of(
        "Q A NOT N", "Q AS s = 'q', A AS s = 'a' AND tk = Q.tk, N AS s = 'n' AND tk = Q.tk",
        f"AFTER MATCH SKIP PAST LAST ROW;WITHIN INTERVAL '20' SECOND {STEP}", "PARTITION BY k",
    )  # fmt: skip
    rows = [(1, "q", 1), (1, "q", 2), (2, "q", 2), (1, "a", 2), (1, "a", 1), (2, "a", 2), (1, "q", 1), (1, "a", 1)]
    quiet = [(1, "q", 9)] * 30
    assert matches_of(plan, [*rows, *quiet], size) == [[0, 4], [2, 5], [6, 7]]
    assert matches_of(plan, [*rows, (1, "n", 1), *quiet], size) == [[1, 3], [2, 5]]

"""The reference matcher gives the reference's answer however its input is cut, saved and restored."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.batch import Matches
from matching.by_reference import DuckEvaluation, ReferenceMatcher, to_arrow, to_python
from query.errors import DataError, QueryError
from query.language.ast import AfterMatchKind, Selection
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.output import Outcome, output_columns
from query.plan.plan import Plan
from query.reference import find, match_rows
from tests.events import batch_of
from tests.properties.comparing import FEWER
from tests.strategies import SCHEMA, SECOND_US, Row, events, plans

Answer = list[tuple[int, Outcome, list[tuple[str, int]], list[dict[str, object]]]]


def answer(matches: Matches) -> Answer:
    """(MATCH_NUMBER, outcome, labels with offsets, output rows) of each match."""
    found = []
    for i in range(len(matches)):
        low, high = matches.event_bounds[i : i + 2]
        names = [matches.variables[v] for v in matches.event_variable[low:high]]
        index = np.flatnonzero(matches.row_match == i)
        rows = matches.rows.take(pa.array(index)).to_pylist() if matches.rows.num_columns else [{} for _ in index]
        outcome = Outcome.MATCH if matches.outcome is None else Outcome(matches.outcome[i])
        found.append((int(matches.number[i]), outcome, list(zip(names, matches.event_offset[low:high].tolist())), rows))
    return found


def expected(plan: Plan, rows: list[Row]) -> tuple[Answer, int]:
    """The answer, and how many matches SKIP TO would not have moved on from."""
    ts_us = [int(str(row["ts"])) for row in rows]
    evaluate = DuckEvaluation()
    found = find(plan, rows, ts_us, evaluate=evaluate, lenient=True)
    output = match_rows(plan, rows, ts_us, found, evaluate)
    answers: Answer = []
    for match, of_match in zip(found, output, strict=True):
        columns = {f.name: to_arrow([row[f.name] for row in of_match], f.type) for f in output_columns(plan)}
        shown = pa.table(columns).to_pylist() if columns else [{} for _ in of_match]
        answers.append((match.number, match.outcome, list(match.labels), shown))
    return answers, sum(match.stuck for match in found)


def same(a: Answer, b: Answer) -> bool:
    return repr(a) == repr(b)  # NaN equals itself


@pytest.mark.slow
@FEWER
@given(
    rows=events(max_size=12),
    plan=plans(tuple(Selection), negations=True),
    sizes=st.lists(st.integers(0, 5), min_size=1, max_size=8),
    wait=st.integers(0, 3),
    restarts=st.booleans(),
)
def test_cutting_saving_and_time_change_nothing(
    rows: list[Row], plan: Plan, sizes: list[int], wait: int, restarts: bool
) -> None:
    batch = batch_of(SCHEMA, rows)
    matcher = ReferenceMatcher(plan, lenient=True)
    found: Answer = []
    low = turn = 0
    while low < len(batch):
        high = min(low + max(sizes[turn % len(sizes)], int(turn % 9 == 8)), len(batch))
        found += answer(matcher.push(batch.slice(low, high)))
        if high < len(batch):
            found += answer(matcher.advance(int(batch.ts_us[high]) - wait * SECOND_US // 2))
        if restarts:
            state = matcher.snapshot()
            matcher = ReferenceMatcher(plan, lenient=True)
            matcher.restore(state)
        low, turn = high, turn + 1
    found += answer(matcher.advance(None))
    wanted, stuck = expected(plan, rows)
    assert same(found, wanted)
    assert matcher.stuck == stuck


@pytest.mark.slow
@FEWER
@given(
    rows=events(max_size=10),
    plan=plans(raising=True, negations=True),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=8),
)
def test_an_error_is_raised_however_the_input_is_cut(rows: list[Row], plan: Plan, sizes: list[int]) -> None:
    """Conditions are lazy: whether the error of one counts hangs on the rows and their order alone."""
    batch = batch_of(SCHEMA, rows)
    found: Answer | str = []
    try:
        matcher = ReferenceMatcher(plan, lenient=True)
        answers: Answer = []
        low = turn = 0
        while low < len(batch):
            high = min(low + sizes[turn % len(sizes)], len(batch))
            answers += answer(matcher.push(batch.slice(low, high)))
            low, turn = high, turn + 1
        found = answers + answer(matcher.advance(None))
    except DataError:
        found = "an error"
    try:
        wanted: Answer | str = expected(plan, rows)[0]
    except DataError:
        wanted = "an error"
    assert repr(found) == repr(wanted)


def plan_of(text: str) -> Plan:
    query = f"SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts {text})"
    return bind(parse(query), lambda name: SCHEMA).factors[0].plan


def row(seconds: int, k: str, s: str) -> Row:
    return {"ts": seconds * SECOND_US, "k": k, "s": s, "v": 1, "x": 0.5}


EVERY = ["", "AFTER MATCH SKIP PAST LAST ROW", "AFTER MATCH SKIP TO NEXT ROW"]
SKIP_TO = ["AFTER MATCH SKIP TO LAST B", "AFTER MATCH SKIP TO FIRST B"]
SHOWN = [
    "ALL ROWS PER MATCH WITH UNMATCHED ROWS ",
    "TIMEOUT ROWS ",
    "ALL ROWS PER MATCH WITH UNMATCHED ROWS TIMEOUT ROWS ",
]
MODES = [(mode, s) for mode in EVERY for s in ("STRICT", "PARTITION", "SKIP TILL NEXT MATCH", "SKIP TILL ANY MATCH")]
MODES += [(shown + mode, s) for shown in SHOWN for mode in (*EVERY, *SKIP_TO) for s in ("STRICT", "PARTITION")]


@pytest.mark.slow
@pytest.mark.thinned(6)
@pytest.mark.parametrize("pattern", ["A B+", "^ A B | A A? B", "A B $ | A B"])
@pytest.mark.parametrize(("mode", "selection"), MODES)
def test_rows_are_forgotten_behind_within(mode: str, selection: str, pattern: str) -> None:
    plan = plan_of(
        f"MEASURES MATCH_NUMBER() AS n {mode} PATTERN ({pattern}) WITHIN INTERVAL '5' SECOND SELECTION {selection} "
        "DEFINE A AS s = 'a', B AS s = 'b' AND v >= PREV(v)"
    )
    matcher = ReferenceMatcher(plan)
    rows = [row(i, "p" if i % 3 else "q", "ab"[i // 2 % 2]) for i in range(90)]
    batch = batch_of(SCHEMA, rows)
    found: Answer = []
    for i in range(0, len(rows), 3):
        found += answer(matcher.push(batch.slice(i, i + 3)))
        assert len(matcher._kept.rows) <= 40
    found += answer(matcher.advance(None))
    assert same(found, expected(plan, rows)[0])
    assert len(found) > 5


@pytest.mark.parametrize("mode", ["", "AFTER MATCH NO SKIP", "TIMEOUT ROWS"])
@pytest.mark.parametrize("pattern", ["^ (A | B)", "A $ | B $", "^ A | B", "A A $ | B B"])
def test_the_edges_of_a_partition_stay_known_when_rows_are_forgotten(pattern: str, mode: str) -> None:
    plan = plan_of(f"{mode} PATTERN ({pattern}) WITHIN INTERVAL '5' SECOND DEFINE A AS s = 'a', B AS s = 'b'")
    matcher = ReferenceMatcher(plan)
    # q falls silent, and time goes on without it
    rows = [row(i, "p" if i % 3 or i > 30 else "q", "a" if i % 4 else "b") for i in range(60)]
    batch = batch_of(SCHEMA, rows)
    found: Answer = []
    for i in range(len(rows)):
        found += answer(matcher.push(batch.slice(i, i + 1)))
    assert len(matcher._kept.rows) <= 20
    found += answer(matcher.advance(1000 * SECOND_US)) + answer(matcher.advance(None))
    assert same(found, expected(plan, rows)[0])
    assert found


@pytest.mark.parametrize("selection", ["PARTITION", "STRICT"])
def test_what_a_negated_row_reads_is_kept_like_the_row(selection: str) -> None:
    """Without the rows before it, PREV would be null and the row not negated."""
    rest = "DEFINE A AS s = 'a', N AS PREV(s, 2) = s"
    plan = plan_of(f"PATTERN (NOT N A) WITHIN INTERVAL '5' SECOND SELECTION {selection} {rest}")
    matcher = ReferenceMatcher(plan)
    rows = [row(i, "p", "aaab"[i % 4] if i % 20 > 15 else "a") for i in range(60)]
    batch = batch_of(SCHEMA, rows)
    found: Answer = []
    for i in range(len(rows)):
        found += answer(matcher.push(batch.slice(i, i + 1)))
    assert len(matcher._kept.rows) <= 40
    assert same(found + answer(matcher.advance(None)), expected(plan, rows)[0])


def test_a_deadline_fires_by_time_alone() -> None:
    plan = plan_of("PATTERN (A B+) WITHIN INTERVAL '10' SECOND DEFINE A AS s = 'a', B AS s = 'b'")
    matcher = ReferenceMatcher(plan)
    rows = [row(1, "p", "a"), row(2, "p", "b"), row(3, "q", "c")]
    assert len(matcher.push(batch_of(SCHEMA, rows))) == 0
    assert len(matcher.advance(11 * SECOND_US)) == 0
    matches = matcher.advance(11 * SECOND_US + 1)
    assert answer(matches) == [
        (
            1,
            Outcome.MATCH,
            [("A", 0), ("B", 1)],
            [{"k": "p"}],
        )
    ]
    assert matches.first_us.tolist() == [1 * SECOND_US]
    assert matches.last_us.tolist() == [2 * SECOND_US]


def test_an_unmatched_row_comes_out_when_no_attempt_can_take_it() -> None:
    plan = plan_of("ALL ROWS PER MATCH WITH UNMATCHED ROWS PATTERN (A A B) DEFINE A AS s = 'a', B AS s = 'b'")
    matcher = ReferenceMatcher(plan)
    came = [answer(matcher.push(batch_of(SCHEMA, [row(i, "p", s)], i))) for i, s in enumerate("caaab")]
    unmatched = [[(o, r["ts"].second) for _, o, _, of_match in step for r in of_match] for step in came]  # type: ignore[attr-defined]
    assert unmatched == [
        [(Outcome.UNMATCHED, 0)],
        [],
        [],
        [(Outcome.UNMATCHED, 1)],  # the third a: no match begins at the first
        [(Outcome.MATCH, 2), (Outcome.MATCH, 3), (Outcome.MATCH, 4)],
    ]


def test_a_timeout_fires_by_time_alone() -> None:
    plan = plan_of("TIMEOUT ROWS PATTERN (A B+ C) WITHIN INTERVAL '10' SECOND DEFINE A AS s = 'a', B AS s = 'b'")
    matcher = ReferenceMatcher(plan)
    assert len(matcher.push(batch_of(SCHEMA, [row(1, "p", "a"), row(2, "p", "b"), row(3, "q", "c")]))) == 0
    assert len(matcher.advance(11 * SECOND_US)) == 0
    matches = matcher.advance(11 * SECOND_US + 1)
    shown = {"k": "p", "labels": ["A", "B"], "timeout": "waiting for B, C"}
    assert answer(matches) == [(0, Outcome.TIMEOUT, [("A", 0), ("B", 1)], [shown])]
    assert answer(matcher.advance(None)) == []


def test_skip_to_that_would_not_move_on() -> None:
    plan = plan_of(
        "MEASURES MATCH_NUMBER() AS n AFTER MATCH SKIP TO B PATTERN (B? A) DEFINE A AS s = 'a', B AS s = 'b'"
    )
    rows = [row(i, "p", s) for i, s in enumerate("aaba")]
    with pytest.raises(QueryError, match="HQ601"):
        ReferenceMatcher(plan).push(batch_of(SCHEMA, rows))
    matcher = ReferenceMatcher(plan, lenient=True)
    found = answer(matcher.push(batch_of(SCHEMA, rows[:1])))
    assert matcher.stuck == 1
    again = ReferenceMatcher(plan, lenient=True)
    again.restore(matcher.snapshot())
    found += answer(again.push(batch_of(SCHEMA, rows[1:], 1))) + answer(again.advance(None))
    assert [labels for _, _, labels, _ in found] == [[("A", 0)], [("A", 1)], [("B", 2), ("A", 3)], [("A", 3)]]
    assert again.stuck == 4


def test_a_state_of_another_query_is_refused() -> None:
    first, second = (ReferenceMatcher(plan_of(f"PATTERN (A{x}) DEFINE A AS s = 'a'")) for x in ("", "+"))
    with pytest.raises(DataError, match="another query"):
        second.restore(first.snapshot())
    with pytest.raises(DataError):
        second.restore(b"nonsense")
    with pytest.raises(DataError):
        first.restore(first.snapshot()[:-3])


def test_values_survive_the_way_to_arrow_and_back() -> None:
    values: dict[str, list[object]] = {
        "HUGEINT": [2**100, -5, None],
        "DECIMAL(9,2)": [Decimal("1.25"), None],
        "TIMESTAMP": [1_700_000_000_123_456, None],
        "TIMESTAMP WITH TIME ZONE": [-1, 0],
        "TIMESTAMP_NS": [1_000_001, None],
        "VARCHAR": ["é", None],
        "DOUBLE": [0.1, None],
    }
    for type, cells in values.items():
        assert to_python(to_arrow(cells, type), type) == cells
    with pytest.raises(DataError, match="microseconds"):
        to_python(pa.array(np.array([1], "datetime64[ns]")), "TIMESTAMP_NS")


def test_what_duckdb_cannot_compute_is_a_data_error() -> None:
    plan = plan_of("MEASURES CAST(LAST(s) AS BIGINT) AS n PATTERN (A)")
    with pytest.raises(DataError, match="CAST"):
        ReferenceMatcher(plan).push(batch_of(SCHEMA, [row(1, "p", "a")]))


def test_empty_matches_are_numbered() -> None:
    plan = replace(plan_of("MEASURES MATCH_NUMBER() AS n, count(*) AS c, s AS last PATTERN (A*) DEFINE A AS s = 'a'"))
    assert plan.after.kind is AfterMatchKind.PAST_LAST_ROW
    matcher = ReferenceMatcher(plan)
    matches = [matcher.push(batch_of(SCHEMA, [row(i, "p", s) for i, s in enumerate("baac")])), matcher.advance(None)]
    rows = [r for m in matches for r in m.rows.to_pylist()]
    assert rows == [
        {"k": "p", "n": 1, "c": 0, "last": None},
        {"k": "p", "n": 2, "c": 2, "last": "a"},
        {"k": "p", "n": 3, "c": 0, "last": None},
    ]


@pytest.mark.parametrize("after", ["SKIP PAST LAST ROW", "NO SKIP"])
def test_it_stops_between_short_attempts(after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: it asked after each 256th step of an attempt, so never where attempts are short: timeout= came 10 s late.
    class Asked(Exception):
        pass

    def heed() -> None:
        raise Asked

    monkeypatch.setattr("query.reference.heed", heed)
    text = f"SELECT * FROM e MATCH_RECOGNIZE (ORDER BY ts AFTER MATCH {after} PATTERN (A B) DEFINE B AS v > A.v)"
    matcher = ReferenceMatcher(bind(parse(text), lambda _: SCHEMA).factors[0].plan)
    rows: list[Row] = [{"ts": i * SECOND_US, "k": "p", "s": "a", "v": i % 3, "x": 0.5} for i in range(20)]
    with pytest.raises(Asked):
        matcher.push(batch_of(SCHEMA, rows))

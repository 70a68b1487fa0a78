"""A query that fails at a row hands out what was decided before it, as if the push had been cut there."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import hybrid
from hybrid.watch.alerts import Alerts
from query.errors import DataError

pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
START = datetime(2024, 3, 1, 12)
COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "s": "VARCHAR", "v": "BIGINT"}
#: Row 13 cannot be computed.
ROWS = [
    {"ts": START + timedelta(seconds=i), "k": "ab"[i % 2], "s": "x" if i == 13 else str(i),
     "v": 2**62 if i == 13 else i}
    for i in range(20)
]  # fmt: skip
FROM_TICKS = "SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY k "
QUERIES = {
    "lists": "MEASURES A.v AS a, LAST(v) AS b PATTERN (A B) DEFINE B AS v + A.v * 4 > 0",
    "blocks": """MEASURES A.v AS a, LAST(v) AS b PATTERN (A B) SELECTION SKIP TILL NEXT MATCH
        DEFINE B AS v * 4 > A.v * 4""",
    "graph": """MEASURES A.v AS a, B.v AS b PATTERN (A B) WITHIN INTERVAL '4' SECOND SELECTION SKIP TILL ANY MATCH
        DEFINE B AS CAST(s AS INT) > 0""",
    "merged": """MEASURES A.v AS a, B.v AS b PATTERN (A B) WITHIN INTERVAL '4' SECOND SELECTION SKIP TILL ANY MATCH
        DEFINE B AS v * 4 > A.v * 4""",
    "absence": "MEASURES A.v AS a PATTERN (A ~B) WITHIN INTERVAL '3' SECOND DEFINE B AS v * 4 > A.v * 40",
    "absence, passing over": """MEASURES A.v AS a PATTERN (A ~B) WITHIN INTERVAL '3' SECOND
        SELECTION SKIP TILL NEXT MATCH DEFINE B AS v * 4 > A.v * 40""",
    "windows": """MEASURES COUNT(MATCHES) AS n ONE ROW PER WINDOW PATTERN (A B) WITHIN INTERVAL '4' SECOND
        DEFINE B AS CAST(s AS INT) > 0""",
    "a measure": """MEASURES A.v AS a, CAST(LAST(s) AS INT) AS b AFTER MATCH SKIP TO NEXT ROW PATTERN (A B)
        DEFINE B AS v > PREV(v)""",
    "a measure ahead": "MEASURES A.v AS a, NEXT(LAST(v), 1) AS b PATTERN (A B) DEFINE B AS v + A.v * 4 > 0",
    "a condition ahead": "MEASURES A.v AS a PATTERN (A B) DEFINE B AS v + A.v * 4 + NEXT(v) > 0",
}  # fmt: skip


#: Patterns of patterns over the same rows: the condition or measure that fails is in a box, in a box of a box, between,
#: or outside.
HOLDS = f"{FROM_TICKS}MEASURES A.v AS a, LAST(v) AS b AFTER MATCH NO SKIP PATTERN (A B) DEFINE B AS v >= 0)"
FAILS = HOLDS.replace("v >= 0", "v + A.v * 4 > 0")
LATER = FAILS.replace("AFTER MATCH NO SKIP PATTERN (A B)", "PATTERN (A B+) WITHIN INTERVAL '2' SECOND")
OVER = """SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY k MEASURES P.a AS a, LAST(C.v) AS c AFTER MATCH NO SKIP
    PATTERN (P C) WITHIN INTERVAL '9' SECOND SELECTION SKIP TILL NEXT MATCH DEFINE P AS PATTERN p, C AS v >= 0)"""
BETWEEN = OVER.replace("C AS v >= 0", "C AS v + P.a * 4 > 0")
MEASURED = HOLDS.replace("A.v AS a,", "A.v AS a, CAST(LAST(s) AS INTEGER) AS n,")
WAITS = LATER.replace("v + A.v * 4 > 0", "v >= 0")
MEASURED_LATER = WAITS.replace("A.v AS a,", "A.v AS a, CAST(A.s AS INTEGER) AS n,")
MEASURED_OVER = OVER.replace("P.a AS a,", "P.a AS a, CAST(LAST(C.s) AS INTEGER) AS n,")
MEASURED_WAITS = MEASURED_OVER.replace("NO SKIP", "SKIP PAST LAST ROW").replace("SKIP TILL NEXT MATCH", "PARTITION")
MEASURED_WAITS = MEASURED_WAITS.replace("'9' SECOND", "'4' SECOND")
LAYERS = {
    "a box": f"WITH p AS ({FAILS}) {OVER}",
    "a box of a box": f"WITH p AS ({FAILS}), q AS ({OVER}) " + OVER.replace("PATTERN p", "PATTERN q"),
    "a box that waits": f"WITH p AS ({LATER}) {OVER}",
    "outside": f"WITH p AS ({HOLDS}) {OVER.replace('C AS v >= 0', 'C AS v + P.a * 4 > 0')}",
    "outside, each once": f"WITH p AS ({HOLDS}) "
    + OVER.replace("C AS v >= 0", "C AS v + P.a * 4 > 0").replace("NO SKIP", "SKIP PAST LAST ROW"),
    "between": f"WITH p AS ({HOLDS}), q AS ({BETWEEN}) " + OVER.replace("PATTERN p", "PATTERN q"),
    "a measure": f"WITH p AS ({MEASURED}) {OVER}",
    "a measure of a box that waits": f"WITH p AS ({MEASURED_LATER}) {OVER}",
    "a measure between": f"WITH p AS ({HOLDS}), q AS ({MEASURED_OVER}) " + OVER.replace("PATTERN p", "PATTERN q"),
    "a measure between that waits": f"WITH p AS ({WAITS}), q AS ({MEASURED_WAITS}) "
    + OVER.replace("PATTERN p", "PATTERN q"),
    "a measure outside": f"WITH p AS ({HOLDS}) {MEASURED_OVER}",
    "a measure outside, each once": f"WITH p AS ({HOLDS}) " + MEASURED_OVER.replace("NO SKIP", "SKIP PAST LAST ROW"),
    "a measure outside, where one is preferred": f"WITH p AS ({HOLDS}) "
    + MEASURED_OVER.replace("NO SKIP", "SKIP PAST LAST ROW").replace("SKIP TILL NEXT MATCH", "PARTITION"),
    "one pattern": f"WITH p AS ({HOLDS.replace('PATTERN (A B)', 'PATTERN (A B) SELECTION SKIP TILL ANY MATCH')}) "
    + BETWEEN.replace("SKIP TILL NEXT", "SKIP TILL ANY").replace("LAST(C.v)", "C.v"),
    "absence": f"WITH p AS ({FAILS}) "
    + OVER.replace("(P C)", "(P ~C)").replace("v >= 0", "v % 7 = 0").replace("LAST(C.v)", "P.b")
    .replace("'9' SECOND", "'3' SECOND"),
}  # fmt: skip


def rows_and_error(alerts: Alerts) -> tuple[list[dict[str, Any]], str]:
    """What comes before the error, and the error."""
    found: list[dict[str, Any]] = []
    try:
        while rows := alerts.fetch().to_pylist():
            found += rows
    except DataError as error:
        return found, str(error)
    raise AssertionError("it has not failed")


def answer(text: str, cuts: list[int], sharing: str = "dynamic") -> tuple[list[dict[str, Any]], str]:
    with hybrid.connect() as db:
        db.create_stream("ticks", COLUMNS, time="ts", key="k")
        alerts = db.watch(text, sharing=sharing)
        for low, high in zip([0, *cuts], cuts, strict=False):
            db.push("ticks", ROWS[low:high])
        db.advance("ticks", START + timedelta(days=1))
        return rows_and_error(alerts)


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", QUERIES)
def test_rows_before_a_failing_row_come_out(name: str) -> None:
    # Before: those that the push of the failing row had decided were lost.
    text = f"{FROM_TICKS}{QUERIES[name]}) AS m"
    one_by_one = answer(text, list(range(1, 21)))
    assert one_by_one[0]
    assert answer(text, [20]) == answer(text, [3, 9, 20]) == one_by_one


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", LAYERS)
def test_rows_of_layers_before_a_failing_row_come_out(name: str) -> None:
    # Before: those that the push of the failing row had decided were lost.
    one_by_one = answer(LAYERS[name], list(range(1, 21)))
    assert one_by_one[0]
    assert answer(LAYERS[name], [20]) == answer(LAYERS[name], [3, 9, 20]) == one_by_one


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", ["a box", "a box of a box", "outside", "between", "a measure", "a measure outside"])
def test_rows_of_one_that_has_just_joined_the_patterns_of_others_come_out(name: str) -> None:
    # Before: those that the push of the failing row had decided were lost.
    text = LAYERS[name]
    one_by_one = answer(text, list(range(1, 21)))
    shared = name in ("a box", "a box of a box", "a measure")
    other = text.replace("AS c AFTER", "AS d AFTER") if shared else f"WITH p AS ({HOLDS}) {OVER}"
    for cuts in ([20], [13, 20], list(range(10, 21))):
        with hybrid.connect() as db:
            db.create_stream("ticks", COLUMNS, time="ts", key="k")
            db.watch(other)
            db.push("ticks", ROWS[:7])
            alerts = db.watch(text, start=START)
            db.push("ticks", ROWS[7:9])
            assert alerts.stats()["patterns"]["p"]["queries"] == 2
            for low, high in zip([9, *cuts], cuts, strict=False):
                db.push("ticks", ROWS[low:high])
            assert rows_and_error(alerts) == one_by_one


@pytest.mark.slow
@pytest.mark.parametrize("fails", [FAILS, MEASURED])
def test_rows_of_several_queries_that_share_the_pattern_that_fails(fails: str) -> None:
    for cuts in ([20], list(range(1, 21))):
        with hybrid.connect() as db:
            for name in ("ticks", "others"):
                db.create_stream(name, COLUMNS, time="ts", key="k")
            texts = [f"WITH p AS ({fails}) {over}" for over in (OVER, OVER.replace("'9' SECOND", "'3' SECOND"))]
            over = OVER.replace("FROM ticks", "FROM others").replace("(P C)", "(P)").replace(", C AS v >= 0", "")
            texts.append(f"WITH p AS ({fails}) {over.replace('LAST(C.v)', 'P.b')}")
            live = [db.watch(text) for text in texts]
            for low, high in zip([0, *cuts], cuts, strict=False):
                db.push("ticks", ROWS[low:high])
            for name in ("others", "ticks"):
                db.advance(name, START + timedelta(days=1))
            assert [rows_and_error(alerts)[0] for alerts in live[:2]] == [answer(text, [20])[0] for text in texts[:2]]
            # row 15 follows 13; the measure is that of 13
            assert [row["a"] for row in rows_and_error(live[2])[0]] == list(range(13 if fails == FAILS else 11))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["a measure of a box that waits", "a measure between that waits"])
def test_a_match_that_waits_with_a_measure_that_cannot_be_computed_ends_the_query_after_a_restart_too(
    tmp_path: Path, name: str
) -> None:
    text = LAYERS[name]
    expected = answer(text, [20])
    with hybrid.connect(tmp_path) as db:
        db.create_stream("ticks", COLUMNS, time="ts", key="k")
        alerts = db.watch(text, name="waits")
        db.push("ticks", ROWS[:17])
        before = alerts.fetch().to_pylist()
        db.checkpoint()
    with hybrid.connect(tmp_path) as db:
        db.push("ticks", ROWS[17:])
        db.advance("ticks", START + timedelta(days=1))
        found, error = rows_and_error(db.watching()["waits"])
        assert before
        assert (before + found, error) == expected


@pytest.mark.slow
def test_rows_of_windows_before_a_failing_row_come_out_of_an_engine_of_its_own() -> None:
    text = f"{FROM_TICKS}{QUERIES['windows']}) AS m"
    assert answer(text, [20], "none") == answer(text, list(range(1, 21)), "none") == answer(text, [20])


@pytest.mark.slow
def test_rows_of_a_pattern_over_rows_come_out_before_a_failure_of_either() -> None:
    fails = f"{FROM_TICKS}MEASURES A.v AS a, LAST(ts) AS t PATTERN (A B) DEFINE B AS v + A.v * 4 > 0) AS i"
    holds = f"{FROM_TICKS}MEASURES A.v AS a, LAST(ts) AS t PATTERN (A B) DEFINE B AS v >= 0) AS i"
    for text in (
        f"SELECT * FROM ({fails}) MATCH_RECOGNIZE (ORDER BY t MEASURES C.a AS c, LAST(a) AS d PATTERN (C D)) AS m",
        f"""SELECT * FROM ({fails}) MATCH_RECOGNIZE (ORDER BY t MEASURES C.a AS c PATTERN (C ~D)
            WITHIN INTERVAL '2' SECOND DEFINE D AS a % 4 = 0) AS m""",
        f"""SELECT * FROM ({holds}) MATCH_RECOGNIZE (ORDER BY t MEASURES C.a AS c, LAST(a) AS d PATTERN (C D)
            DEFINE D AS CAST(a AS INTEGER) > 0) AS m""",
    ):
        one_by_one = answer(text, list(range(1, 21)))
        assert one_by_one[0]
        assert answer(text, [20]) == answer(text, [5, 20]) == one_by_one


@pytest.mark.slow
def test_rows_before_a_failing_row_go_into_a_stream_and_nothing_seems_absent_behind_it() -> None:
    text = f"{FROM_TICKS}MEASURES A.v AS a, LAST(ts) AS t PATTERN (A B) DEFINE B AS v + A.v * 4 > 0) AS m"
    alone = """SELECT * FROM pairs MATCH_RECOGNIZE (MEASURES C.a AS c PATTERN (C ~D) WITHIN INTERVAL '2' SECOND
        DEFINE D AS a > 8) AS m"""
    found = []
    for cuts in ([20], [5, 20], list(range(1, 21))):
        with hybrid.connect() as db:
            db.create_stream("ticks", COLUMNS, time="ts", key="k")
            db.watch(text, into="pairs", time="t")
            absence = db.watch(alone)
            for low, high in zip([0, *cuts], cuts, strict=False):
                db.push("ticks", ROWS[low:high])
            pairs = db.sql("SELECT a FROM pairs ORDER BY a").fetchall()
            found.append((pairs, rows_and_error(absence)))
    assert [a for (a,) in found[0][0]] == [0, 1, 4, 5, 8, 9, 12]
    assert found[0] == found[1] == found[2]
    # Before: also 12, two seconds behind which the query has failed.
    assert [row["c"] for row in found[0][1][0]] == [0, 1, 4, 5, 9]


@pytest.mark.slow
def test_rows_before_a_failing_row_are_joined_with_history() -> None:
    text = """SELECT m.a, h.low FROM ticks MATCH_RECOGNIZE (PARTITION BY k
        MEASURES A.v AS a, LAST(v) AS b, FIRST(ts) AS t PATTERN (A B) DEFINE B AS v + A.v * 4 > 0) AS m
        JOIN HISTORY OF ticks FROM m.t - INTERVAL '1' DAY TO m.t
        MATCH_RECOGNIZE (ORDER BY ts MEASURES X.v AS low PATTERN (X) DEFINE X AS v < 2) AS h ON h.low < m.a"""
    one_by_one = answer(text, list(range(1, 21)))
    assert one_by_one[0]
    assert answer(text, [20]) == one_by_one


@pytest.mark.slow
def test_another_query_goes_on_and_a_restart_gives_the_same_rows(tmp_path: Path) -> None:
    fails, holds = f"{FROM_TICKS}{QUERIES['lists']}) AS m", f"{FROM_TICKS}MEASURES LAST(v) AS b PATTERN (A B)) AS m"
    expected = answer(fails, [20])
    with hybrid.connect(tmp_path / "whole") as db:
        db.create_stream("ticks", COLUMNS, time="ts", key="k")
        db.watch(fails, name="fails")
        other = db.watch(holds)
        db.push("ticks", ROWS)
        db.advance("ticks", START + timedelta(days=1))
        assert other.fetch().num_rows == 10
    with hybrid.connect(tmp_path / "whole") as db:  # it had failed, and its rows had not been fetched
        assert rows_and_error(db.watching()["fails"]) == expected
    db = hybrid.connect(tmp_path / "crash")
    db.create_stream("ticks", COLUMNS, time="ts", key="k")
    db.watch(fails, name="fails")
    db.push("ticks", ROWS[:7])
    db.push("ticks", ROWS[7:])
    del db  # no checkpoint: the rows come in one piece now
    with hybrid.connect(tmp_path / "crash") as db:
        assert rows_and_error(db.watching()["fails"]) == expected

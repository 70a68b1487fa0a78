"""Patterns made of patterns that run as one plain pattern, on every path: the rows and the evidence of layers."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import hybrid
from hybrid.database.database import Database
from matching.hierarchy import choice
from matching.hierarchy.flattened import FlattenedMatcher
from query.errors import HybridWarning

COLUMNS = {"ts": "TIMESTAMP", "s": "VARCHAR", "k": "BIGINT", "v": "BIGINT"}
BEGIN = dt.datetime(2024, 3, 1)
VISIT = """SELECT * FROM seen MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES X.v AS v, Y.v - X.v AS rise
    AFTER MATCH NO SKIP PATTERN (X Y) WITHIN INTERVAL 9 SECOND SELECTION SKIP TILL ANY MATCH
    DEFINE X AS s = 'x', Y AS s = 'y' AND v >= X.v)"""
TRIP = """SELECT * FROM seen MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts
    MEASURES A.v AS v, V.rise AS rise, V.t0 AS came, W.t1 AS went, count(*) AS n
    AFTER MATCH NO SKIP PATTERN (A V W B) WITHIN INTERVAL 60 SECOND SELECTION SKIP TILL ANY MATCH
    DEFINE A AS s = 'a', V AS PATTERN visit ON rise > 1, W AS PATTERN visit, B AS s = 'b')"""
TEXT = f"WITH visit AS ({VISIT}) {TRIP}"


def events(n: int = 2_400) -> pa.Table:
    rng = Random(5)
    return pa.table({
        "ts": [BEGIN + dt.timedelta(seconds=i // 3) for i in range(n)], "s": rng.choices("xyabz", [3, 3, 1, 1, 3], k=n),
        "k": [rng.randrange(8) for _ in range(n)], "v": [rng.randrange(10) for _ in range(n)],
    })  # fmt: skip


SEEN = events()


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with hybrid.connect(tmp_path / "db") as db:
        db.create_stream("seen", COLUMNS, time="ts", key="k")
        yield db


@pytest.fixture
def pushed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns the numbers of events that one pattern takes in place of layers."""
    counts: list[int] = []
    push = FlattenedMatcher.push

    def counted(self: FlattenedMatcher, batch: object) -> object:
        counts.append(len(batch) if self.why_layers is None else 0)  # type: ignore[arg-type]
        return push(self, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(FlattenedMatcher, "push", counted)
    return counts


@pytest.fixture
def as_layers(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Returns what makes all patterns run as layers."""
    return lambda: monkeypatch.setattr(choice, "one_pattern", lambda plan: "a test asks for them")


def ordered(table: pa.Table) -> list[str]:
    return list(map(repr, table.to_pylist()))


@pytest.mark.slow
def test_a_statement_gives_the_rows_and_evidence_of_layers(as_layers: Callable[[], None], pushed: list[int]) -> None:
    found = hybrid.sql(TEXT, seen=SEEN)
    shown = ordered(found.arrow()), ordered(found.evidence()), str(found.tree(3))
    assert sum(pushed) == 2 * SEEN.num_rows  # once more for the evidence
    as_layers()
    layers = hybrid.sql(TEXT, seen=SEEN)
    assert shown == (ordered(layers.arrow()), ordered(layers.evidence()), str(layers.tree(3)))
    assert len(shown[0]) > 200
    assert sum(pushed) == 2 * SEEN.num_rows
    assert {"V.X", "W.Y", "B"} < set(layers.evidence()["variable"].to_pylist())


#: Matches of different variables; functions, a cast and PREV, of which nothing fails.
LONG = f"""WITH visit AS (SELECT * FROM seen MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts
    MEASURES X.v AS v, count(*) AS n, PREV(X.v) AS before
    AFTER MATCH NO SKIP PATTERN (X+ Y) WITHIN INTERVAL 9 SECOND SELECTION SKIP TILL ANY MATCH
    DEFINE X AS upper(s) = 'X' AND v::VARCHAR::INTEGER < 9, Y AS s LIKE 'y%' AND v <> PREV(v)))
    {TRIP.replace("V.rise", "V.before").replace("W.t1", "B.t1").replace("rise > 1", "n < 4")
     .replace("(A V W B)", "(A V B{1,2})").replace("W AS PATTERN visit, ", "").replace("60 SECOND", "20 SECOND")}"""


@pytest.mark.slow
def test_matches_of_different_variables_are_those_of_layers(
    db: Database, as_layers: Callable[[], None], pushed: list[int]
) -> None:
    found = hybrid.sql(LONG, seen=SEEN)
    shown = ordered(found.arrow()), ordered(found.evidence()), str(found.tree(3))
    assert sum(pushed) == 2 * SEEN.num_rows
    assert "runs as one pattern: A V_X+ V_Y B{1,2}, in one search where layers have 2" in db.explain(LONG, "program")
    alerts = db.watch(LONG)
    for start in range(0, SEEN.num_rows, 170):
        db.push("seen", SEEN.slice(start, 170))
    db.advance("seen", None)
    assert sorted(ordered(alerts.fetch())) == sorted(shown[0])
    assert sorted(ordered(db.sql(LONG).arrow())) == sorted(shown[0])
    as_layers()
    layers = hybrid.sql(LONG, seen=SEEN)
    assert shown == (ordered(layers.arrow()), ordered(layers.evidence()), str(layers.tree(3)))
    assert len(shown[0]) > 100


@pytest.mark.slow
def test_live_archive_and_backtest_give_the_rows_of_the_table(db: Database, pushed: list[int]) -> None:
    expected = ordered(hybrid.sql(TEXT, seen=SEEN).arrow())
    alerts = db.watch(TEXT)
    live: list[str] = []
    for start in range(0, SEEN.num_rows, 170):
        pushed.clear()
        db.push("seen", SEEN.slice(start, 170))
        assert sum(pushed) > 0
        live += ordered(alerts.fetch())
        if start == 170 * 9:
            db.flush()
    db.advance("seen", None)
    live += ordered(alerts.fetch())
    assert sorted(live) == sorted(expected)
    for text in (db.sql(TEXT), db.backtest(TEXT, BEGIN, BEGIN + dt.timedelta(days=1))):
        pushed.clear()
        assert sorted(ordered(text.arrow())) == sorted(expected)


@pytest.mark.slow
@pytest.mark.parametrize("changed", [False, True])
def test_a_restart_in_the_middle_loses_and_doubles_nothing(
    tmp_path: Path, as_layers: Callable[[], None], changed: bool
) -> None:
    """Also if the choice changes: the query is then replayed as layers."""
    expected = ordered(hybrid.sql(TEXT, seen=SEEN).arrow())
    live: list[str] = []
    for run in range(4):
        again = run == 2 and changed
        if again:
            as_layers()
        with pytest.warns(HybridWarning, match="replayed the kept events") if again else nullcontext():
            db = hybrid.connect(tmp_path / "db")
        with db:
            if not run:
                db.create_stream("seen", COLUMNS, time="ts", key="k")
            alerts = db.watch(TEXT, name="trips")
            for start in range(600 * run, 600 * (run + 1), 100):
                db.push("seen", SEEN.slice(start, 100))
            if run == 3:
                db.advance("seen", None)
            live += ordered(alerts.fetch())
    assert sorted(live) == sorted(expected)


@pytest.mark.slow
def test_history_is_searched_for_boxes(db: Database, as_layers: Callable[[], None], pushed: list[int]) -> None:
    db.push("seen", SEEN)
    text = f"""WITH visit AS ({VISIT})
        SELECT pl.k, pl.at, pa.* FROM seen MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.ts AS at
            PATTERN (A) DEFINE A AS s = 'z' AND v = 9) AS pl
        JOIN HISTORY OF seen FROM pl.at - INTERVAL 5 MINUTE TO pl.at
            {TRIP[TRIP.index("MATCH_RECOGNIZE"):]} AS pa ON pa.k = pl.k"""
    found = ordered(db.sql(text).arrow())
    assert sum(pushed) > 0
    as_layers()
    assert found == ordered(db.sql(text).arrow())
    assert len(found) > 100


@pytest.mark.slow
def test_explain_says_how_it_runs(db: Database) -> None:
    one = "runs as one pattern: A V_X V_Y W_X W_Y B, in one search where layers have 2"
    assert f"-- seen {one}\n" in db.explain(TEXT, "program")
    assert "the matches begin at the event" not in db.explain(TEXT, "nfab")
    nearest = TEXT.replace("(A V W B) WITHIN INTERVAL 60 SECOND SELECTION SKIP TILL ANY",
                           "(A V W B) WITHIN INTERVAL 60 SECOND SELECTION SKIP TILL NEXT")  # fmt: skip
    assert "-- seen runs as layers: the pattern is SELECTION SKIP TILL NEXT MATCH" in db.explain(nearest, "program")
    first, second = db.watch(TEXT), db.watch(TEXT.replace("s = 'b'", "s = 'b' AND v > 3"))
    assert one in first.explain("program")
    assert "-- seen runs as layers: other queries read its patterns too" in second.explain("program")

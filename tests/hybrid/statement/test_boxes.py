"""Patterns made of patterns on every path: statements, archives, live, in backtests, beside history."""

from __future__ import annotations

import datetime as dt
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import hybrid
from hybrid.database.database import Database
from hybrid.statement.statement import compare_with_reference
from query.errors import HybridWarning, QueryError
from tests.properties.comparing import is_nightly

COLUMNS = {"ts": "TIMESTAMP", "s": "VARCHAR", "k": "BIGINT", "v": "BIGINT"}
BEGIN = dt.datetime(2024, 3, 1)
VISIT = """SELECT * FROM seen MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES X.v AS v, count(*) AS n
    PATTERN (X M* Y) WITHIN INTERVAL 20 SECOND SELECTION SKIP TILL NEXT MATCH
    DEFINE X AS s = 'x', M AS s = 'm' AND v > 3, Y AS s = 'y')"""
THEFT = """SELECT * FROM seen MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES V.v AS v, V.t0 AS came, E.ts AS gone
    PATTERN (V ~P E) WITHIN INTERVAL 60 SECOND SELECTION SKIP TILL NEXT MATCH
    DEFINE V AS PATTERN visit ON n < 4, P AS s = 'p', E AS s = 'e')"""
RING = """SELECT * FROM seen MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts
    MEASURES FIRST(t0) AS began, T.v AS first, U.gone AS gone
    PATTERN (T ~N U) WITHIN INTERVAL 5 MINUTE SELECTION SKIP TILL NEXT MATCH
    DEFINE T AS PATTERN theft, N AS PATTERN visit ON N.v = 1, U AS PATTERN theft ON U.v > T.v)"""
TEXT = f"WITH visit AS ({VISIT}), theft AS ({THEFT}) {RING}"


def events(n: int = 3_000) -> pa.Table:
    rng = Random(5)
    kinds = rng.choices("xymepz", [5, 5, 3, 4, 1, 6], k=n)
    return pa.table({
        "ts": [BEGIN + dt.timedelta(seconds=i // 3) for i in range(n)], "s": kinds,
        "k": [rng.randrange(12) for _ in range(n)], "v": [rng.randrange(10) for _ in range(n)],
    })  # fmt: skip


SEEN = events()


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Database]:
    with hybrid.connect(tmp_path / "db") as db:
        db.create_stream("seen", COLUMNS, time="ts", key="k")
        yield db


def rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


@pytest.mark.slow
def test_the_reference_agrees() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        found, same = compare_with_reference(TEXT, {"seen": SEEN.slice(0, 600)})
    assert same
    assert found > 10


@pytest.mark.slow
def test_live_archive_and_backtest_give_the_rows_of_the_table(db: Database) -> None:
    expected = rows(hybrid.sql(TEXT, seen=SEEN).arrow())
    assert len(expected) > 100
    alerts = db.watch(TEXT)
    live: list[str] = []
    for start in range(0, SEEN.num_rows, 170):
        db.push("seen", SEEN.slice(start, 170))
        live += rows(alerts.fetch())
        if start == 170 * 9:
            db.flush()
    db.advance("seen", None)
    live += rows(alerts.fetch())
    assert sorted(live) == expected
    assert rows(db.sql(TEXT).arrow()) == expected
    assert rows(db.backtest(TEXT, BEGIN, BEGIN + dt.timedelta(days=1)).arrow()) == expected


@pytest.mark.slow
def test_a_restart_in_the_middle_loses_and_doubles_nothing(tmp_path: Path) -> None:
    expected = rows(hybrid.sql(TEXT, seen=SEEN).arrow())
    live: list[str] = []
    for run in range(6):
        with hybrid.connect(tmp_path / "db") as db:
            if not run:
                db.create_stream("seen", COLUMNS, time="ts", key="k")
            alerts = db.watch(TEXT, name="rings")
            for start in range(500 * run, 500 * (run + 1), 100):
                db.push("seen", SEEN.slice(start, 100))
            if run == 5:
                db.advance("seen", None)
            live += rows(alerts.fetch())
    assert sorted(live) == expected


CLAUSES = [
    ("PATTERN (T ~N U) WITHIN INTERVAL 5 MINUTE SELECTION SKIP TILL ANY MATCH", "AFTER MATCH SKIP PAST LAST ROW"),
    ("PATTERN (T U) WITHIN INTERVAL 5 MINUTE SELECTION SKIP TILL NEXT MATCH", "AFTER MATCH SKIP TO NEXT ROW"),
    ("PATTERN (T U*) WITHIN INTERVAL 5 MINUTE SELECTION PARTITION", ""),
    ("PATTERN (T U) WITHIN INTERVAL 5 MINUTE SELECTION PARTITION", "AFTER MATCH SKIP TO LAST U"),
    ("PATTERN (T ~N U) WITHIN INTERVAL 5 MINUTE SELECTION SKIP TILL NEXT MATCH", "ALL ROWS PER MATCH"),
    ("PATTERN (T U ~N) WITHIN INTERVAL 1 MINUTE SELECTION SKIP TILL NEXT MATCH", ""),
    ("PATTERN (~N T U) WITHIN INTERVAL 1 MINUTE SELECTION SKIP TILL NEXT MATCH", "AFTER MATCH SKIP PAST LAST ROW"),
    ("PATTERN (T U* ~N) WITHIN INTERVAL 1 MINUTE SELECTION PARTITION", "ALL ROWS PER MATCH"),
    ("PATTERN (T U*) WITHIN INTERVAL 5 MINUTE SELECTION PARTITION", "ALL ROWS PER MATCH AFTER MATCH SKIP TO NEXT ROW"),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.thinned(4)
@pytest.mark.parametrize(("pattern", "after"), CLAUSES)
def test_clauses_mean_one_thing_on_every_path(tmp_path: Path, pattern: str, after: str) -> None:
    """Live with restarts, over the archive and in a backtest, as in the table; and as by the reference."""
    visit = VISIT.replace("x' AND", "x'")
    theft = """SELECT * FROM seen MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES V.v AS v, V.t0 AS came
        AFTER MATCH SKIP TO NEXT ROW PATTERN (V | E) WITHIN INTERVAL 20 SECOND SELECTION SKIP TILL ANY MATCH
        DEFINE V AS PATTERN visit, E AS s = 'e')"""
    outer = f"""SELECT * FROM seen MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts
        MEASURES FIRST(t0) AS began, LAST(t1) AS ended, T.v AS first, count(*) AS n, MATCH_NUMBER() AS nth
        {after} {pattern} DEFINE T AS PATTERN theft, U AS PATTERN theft, N AS PATTERN visit ON N.v = 1)"""
    if "~N" not in pattern:
        outer = outer.replace(", N AS PATTERN visit ON N.v = 1", "")
    text = f"WITH visit AS ({visit}), theft AS ({theft}) {outer}"
    expected = rows(hybrid.sql(text, seen=SEEN).arrow())
    assert len(expected) > 40
    live: list[str] = []
    for run in range(3):
        with hybrid.connect(tmp_path / "db") as db:
            if not run:
                db.create_stream("seen", COLUMNS, time="ts", key="k")
            alerts = db.watch(text, name="rings")
            for start in range(1000 * run, 1000 * (run + 1), 100):
                db.push("seen", SEEN.slice(start, 100))
            before_end = len(live) + len(found := rows(alerts.fetch()))
            live += found
            if run == 2:
                assert before_end > len(expected) // 2  # matches come out before the stream ends
                db.advance("seen", None)
                live += rows(alerts.fetch())
                assert rows(db.sql(text).arrow()) == expected
                assert rows(db.backtest(text, BEGIN, BEGIN + dt.timedelta(days=1)).arrow()) == expected
    assert sorted(live) == expected
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        found_, same = compare_with_reference(text, {"seen": SEEN.slice(0, 400)})
    assert same
    assert found_ > 5


@pytest.mark.slow
def test_a_live_query_goes_on_after_a_skip_that_would_not_move_on(db: Database) -> None:
    text = f"""WITH visit AS ({VISIT}) SELECT * FROM seen MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts
        MEASURES V.t0 AS came AFTER MATCH SKIP TO V PATTERN (V E?) WITHIN INTERVAL 1 MINUTE SELECTION PARTITION
        DEFINE V AS PATTERN visit, E AS s = 'e')"""
    with pytest.raises(QueryError, match="HQ601"):
        hybrid.sql(text, seen=SEEN)
    alerts = db.watch(text)
    with pytest.warns(HybridWarning, match="would not move on"):
        db.push("seen", SEEN)
    assert len(alerts.fetch()) > 100
    assert alerts.stats()["skips_stuck"] > 100


@pytest.mark.slow
def test_history_is_searched_for_boxes(db: Database) -> None:
    """For each alarm the thefts of the five minutes before it, by the same key: those of a table cut to that range."""
    db.push("seen", SEEN)
    text = f"""WITH visit AS ({VISIT})
        SELECT pl.k, pl.at, pa.came, pa.gone FROM seen MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.ts AS at
            PATTERN (A) DEFINE A AS s = 'z' AND v = 9) AS pl
        JOIN HISTORY OF seen FROM pl.at - INTERVAL 5 MINUTE TO pl.at
            {THEFT[THEFT.index("MATCH_RECOGNIZE"):]} AS pa ON pa.k = pl.k"""
    found = db.sql(text).arrow().to_pylist()
    expected = []
    alarms = [row for row in SEEN.to_pylist() if row["s"] == "z" and row["v"] == 9]
    alarms = alarms[:: 1 if is_nightly() else 3]
    found = [row for row in found if any((row["k"], row["at"]) == (one["k"], one["ts"]) for one in alarms)]
    for alarm in alarms:
        low = alarm["ts"] - dt.timedelta(minutes=5)
        inside = [row for row in SEEN.to_pylist() if low <= row["ts"] < alarm["ts"] and row["k"] == alarm["k"]]
        if inside:
            thefts = hybrid.sql(f"WITH visit AS ({VISIT}) {THEFT}", seen=pa.Table.from_pylist(inside)).arrow()
            expected += [{"k": alarm["k"], "at": alarm["ts"], "came": t["came"], "gone": t["gone"]}
                         for t in thefts.to_pylist()]
    assert len(expected) > (20 if is_nightly() else 6)
    assert sorted(map(repr, found)) == sorted(map(repr, expected))


@pytest.mark.slow
def test_layers_read_one_entry_of_with() -> None:
    # Before: HQ200, the patterns of boxes did not see the entries before them.
    some = "SELECT * FROM seen WHERE k < 5"

    def over(source: str) -> str:
        return f"visit AS ({VISIT}), theft AS ({THEFT}) {RING}".replace("FROM seen", f"FROM {source}")

    expected = rows(hybrid.sql(f"WITH {over(f'({some}) AS few')}", seen=SEEN).arrow())
    assert len(expected) > 30
    assert rows(hybrid.sql(f"WITH few AS ({some}), {over('few')}", seen=SEEN).arrow()) == expected
    more = f"WITH narrow AS ({some}), unread AS (SELECT 1), few AS (SELECT * FROM narrow), {over('few')}"
    assert rows(hybrid.sql(more, seen=SEEN).arrow()) == expected
    nested = more.replace("theft AS (", "theft AS (WITH one AS (SELECT 1) ")
    assert rows(hybrid.sql(nested, seen=SEEN).arrow()) == expected
    # Before: HQ500, boxes over another input.
    of_some = f"WITH few AS ({some}), visit AS ({VISIT.replace('FROM seen', 'FROM few')}) {THEFT}"
    thefts = hybrid.sql(f"WITH visit AS ({VISIT}) {THEFT}", seen=SEEN).arrow()
    few = thefts.filter(pc.less(thefts["k"], 5))
    assert 30 < len(few) < len(thefts)
    assert rows(hybrid.sql(of_some, seen=SEEN).arrow()) == rows(few)
@pytest.mark.slow
def test_a_new_version_goes_on_in_the_middle() -> None:
    """With other measures it has the state of the old one; else the events of the last WITHIN are read again."""
    # Before: it needed all events since the old one began, with whatever change.
    with hybrid.connect() as db:
        db.create_stream("seen", COLUMNS, time="ts", key="k", retention="6 minutes")
        new_versions(db)


def new_versions(db: Database) -> None:
    old, half = db.watch(TEXT), SEEN.num_rows * 2 // 3 + 7
    texts = (TEXT.replace(", U.gone AS gone", ""), TEXT.replace("5 MINUTE", "4 MINUTE"), TEXT.replace("n < 4", "n < 3"),
             TEXT.replace("v > 3", "v > 5"))  # fmt: skip
    queries = {text: db.watch(TEXT) for text in texts}
    whole = {text: db.watch(text) for text in texts}
    for begin in range(0, half, 100):
        db.push("seen", SEEN.slice(begin, min(100, half - begin)))
    before = {text: rows(alerts.fetch()) for text, alerts in whole.items()}
    assert db.sql("SELECT count(*) AS n FROM seen").arrow()["n"].to_pylist()[0] < half * 3 // 4
    queries = {text: db.replace(alerts, text) for text, alerts in queries.items()}
    db.push("seen", SEEN.slice(half))
    db.advance("seen", None)
    for text, alerts in queries.items():
        expected = rows(whole[text].fetch())
        assert len(expected) > 20
        assert rows(alerts.fetch()) == expected
        assert before[text]
    assert rows(old.fetch()) == rows(hybrid.sql(TEXT, seen=SEEN).arrow())


@pytest.mark.slow
def test_patterns_of_boxes_go_on_when_events_are_gone() -> None:
    """The visit of a new kind of theft began before it."""
    kinds = ["x", *("z" * 14), "y", "p"]
    seen = pa.table({"ts": [BEGIN + dt.timedelta(seconds=i) for i in range(len(kinds))], "s": kinds,
                     "k": [1] * len(kinds), "v": [5] * len(kinds)})  # fmt: skip
    text = f"WITH visit AS ({VISIT}) {THEFT}"
    changed = text.replace("V ~P E", "V P").replace("E.ts AS gone", "P.ts AS gone").replace(", E AS s = 'e'", "")
    found = []
    for new in (changed, changed.replace("v > 3", "v > 2")):
        with hybrid.connect() as db:
            db.create_stream("seen", COLUMNS, time="ts", key="k", retention="5s")
            alerts = db.watch(text)
            for i in range(15):
                db.push("seen", seen.slice(i, 1))
            with pytest.raises(hybrid.DataError, match="no longer kept"):
                db.replace(alerts, new)
            with pytest.warns(HybridWarning, match="empty state"):
                alerts = db.replace(alerts, new, fresh=True)
            db.push("seen", seen.slice(15))
            found.append(alerts.fetch().num_rows)
    assert found == [1, 0]


@pytest.mark.slow
def test_a_live_box_without_a_bound_is_refused(db: Database) -> None:
    # Before: it gave no row before the stream ended, in backtests never.
    visit = """SELECT * FROM seen MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES X.v AS v PATTERN (X+ Y)
        DEFINE X AS s = 'x', Y AS s = 'y')"""
    outer = """SELECT * FROM seen MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES V.v AS v PATTERN (V E)
        WITHIN INTERVAL 1 MINUTE SELECTION SKIP TILL NEXT MATCH DEFINE V AS PATTERN visit, E AS s = 'e')"""
    text = f"WITH visit AS ({visit}) {outer}"
    assert len(hybrid.sql(text, seen=SEEN).arrow()) > 10
    with pytest.raises(QueryError, match=r"HQ220(.|\n)*any time after their last event"):
        db.watch(text)
    with pytest.raises(QueryError, match="HQ220"):
        db.backtest(text, BEGIN, BEGIN + dt.timedelta(days=1))


@pytest.mark.slow
def test_a_live_pattern_that_keeps_everything_says_so(db: Database) -> None:
    # Before: nothing was said under PARTITION and STRICT, although a match may come at any time that begins behind.
    theft = THEFT.replace("PATTERN (V ~P E", "AFTER MATCH NO SKIP PATTERN (V E").replace("P AS s = 'p', ", "")
    text = f"WITH visit AS ({VISIT}) {theft}".replace("WITHIN INTERVAL 60 SECOND SELECTION SKIP TILL NEXT MATCH", "{}")
    for selection in ("PARTITION", "STRICT"):
        unbounded = text.format(f"SELECTION {selection}")
        with pytest.warns(HybridWarning, match="kept for ever: a match of a box may begin with the next event"):
            db.watch(unbounded).close()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            single = unbounded.replace("V E", "V").replace(", E.ts AS gone", "").replace(", E AS s = 'e'", "")
            db.watch(single).close()
            db.watch(text.format(f"WITHIN INTERVAL 9 SECOND SELECTION {selection}")).close()


@pytest.mark.slow
def test_an_error_in_the_condition_of_a_box_shows_it_as_written(db: Database) -> None:
    # Before: in: ((#kind = 1) AND ((1 // (visit.n - 2)) > 0)).
    text = f"WITH visit AS ({VISIT}) {THEFT.replace('ON n < 4', 'ON 1 // (n - 2) > 0 AND v > 1')}"
    shown = r"CASE in: \(\(1 // \(visit.n - 2\)\) > 0\)"
    with pytest.raises(hybrid.DataError, match=shown):
        hybrid.sql(text, seen=SEEN)
    alerts = db.watch(text)
    db.push("seen", SEEN)
    with pytest.raises(hybrid.DataError, match=shown):
        alerts.fetch()


def test_an_entry_that_nothing_reads_does_not_hide_the_evidence() -> None:
    # Before: the rows of evidence had the number -1, for the statement had two patterns.
    unread = THEFT.replace("MEASURES V.v AS v", "MEASURES V.n AS m")
    text = f"WITH visit AS ({VISIT}), stay AS ({unread}) {THEFT}"
    assert hybrid.sql(text, seen=SEEN.slice(0, 600)).tree().parts[0].name == "V"


@pytest.mark.slow
def test_layers_spill_and_come_back_after_a_crash(tmp_path: Path) -> None:
    """Windows of hours over many keys, of which a hundredth fits: each layer has partial matches on disk."""
    # Before: each layer had the whole limit, and `stats` said that all were in memory.
    text = TEXT.replace("20 SECOND", "9 HOUR").replace("60 SECOND", "9 HOUR").replace("5 MINUTE", "9 HOUR")
    rng = Random(6)
    n = 16_000
    seen = pa.table({
        "ts": [BEGIN + dt.timedelta(seconds=i) for i in range(n)], "s": rng.choices("xyze", [3, 2, 1, 2], k=n),
        "k": [rng.randrange(1_500) for _ in range(n)], "v": [rng.randrange(10) for _ in range(n)],
    })  # fmt: skip
    expected = rows(hybrid.sql(text, seen=seen).arrow())
    assert len(expected) > 20
    live: list[str] = []
    path = tmp_path / "db"
    db = hybrid.connect(path, memory_limit="1MB")
    db.create_stream("seen", COLUMNS, time="ts", key="k")
    alerts = db.watch(text, name="rings")
    for begin in range(0, n, 500):
        db.push("seen", seen.slice(begin, 500), offset=begin)
        live += rows(alerts.fetch())
        if begin in (5_000, 11_000):
            db.checkpoint()
            db.push("seen", seen.slice(begin + 500, 200), offset=begin + 500)  # it is matched again from the log
            shutil.copytree(path, tmp_path / f"copy{begin}")
            db.close()
            path = tmp_path / f"copy{begin}"
            db = hybrid.connect(path, memory_limit="1MB")
            alerts = db.watching()["rings"]
    stats = alerts.stats()
    assert stats["spilled"] > stats["runs"] > 0
    assert stats["read_back"] > 1_000
    db.advance("seen", None)
    live += rows(alerts.fetch())
    db.close()
    assert sorted(live) == expected

"""HISTORY OF a named pattern: the rows of its matches, as a stream would have kept them."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

import hybrid
from hybrid.database.database import Database
from query.errors import QueryError
from query.language.parse import parse
from tests.properties.comparing import is_nightly

BEGIN = dt.datetime(2024, 3, 1)
COLUMNS = {"ts": "TIMESTAMP", "person": "VARCHAR", "page": "VARCHAR"}
HEAD = "SELECT * FROM clicks MATCH_RECOGNIZE (PARTITION BY person ORDER BY ts MEASURES count(*) AS pages"
NEXT, ALL, PAST = "SELECTION SKIP TILL NEXT MATCH", "AFTER MATCH NO SKIP", "AFTER MATCH SKIP PAST LAST ROW"
DEFINE = "DEFINE A AS page = 'a', B AS page = 'b'"
#: Patterns whose rows come out at once, some time later, and dependent on all events before.
PATTERNS = {
    "all matches": f"{HEAD} {ALL} PATTERN (A+ B) WITHIN INTERVAL 20 SECOND {NEXT} {DEFINE})",
    "one after the other": f"{HEAD} {PAST} PATTERN (A+ B) WITHIN INTERVAL 20 SECOND {NEXT} {DEFINE})",
    "greedy": f"{HEAD} PATTERN (A+ B+) WITHIN INTERVAL 20 SECOND {DEFINE})",
    "a negation at the end": f"{HEAD} {ALL} PATTERN (A B ~N) WITHIN INTERVAL 4 SECOND {NEXT} {DEFINE}, "
                             "N AS page = 'n')",
    "boxes": f"{HEAD}, V.pages AS inner_pages {ALL} PATTERN (V B) WITHIN INTERVAL 30 SECOND {NEXT} "
             "DEFINE V AS PATTERN below ON pages > 1, B AS page = 'b')",
}  # fmt: skip
PATTERNS["two streams"] = PATTERNS["boxes"].replace("FROM clicks", "FROM others")
PATTERNS["merged streams"] = PATTERNS["all matches"].replace("FROM clicks", "FROM MERGE(clicks, others)")
PATTERNS["picked columns"] = PATTERNS["all matches"].replace("SELECT *", "SELECT pages, person AS person")
JOIN = """SELECT {columns} FROM clicks MATCH_RECOGNIZE (PARTITION BY person ORDER BY ts MEASURES X.ts AS seen
    PATTERN (X) DEFINE X AS page = 'x') AS pl {kind} JOIN HISTORY OF {of}
    FROM pl.seen - INTERVAL 40 SECOND TO pl.seen {match} AS pa ON pa.person = pl.person AND pa.{what} > 1"""
PA = """MATCH_RECOGNIZE (PARTITION BY person ORDER BY t1 MEASURES F.pages + L.pages AS both_, L.t1 AS until
    PATTERN (F L) SELECTION SKIP TILL NEXT MATCH DEFINE L AS pages >= F.pages)"""


#: Of a join, and of what is looked for in the history.
KINDS = [(kind, "") for kind in ("", "LEFT", "SEMI", "ANTI", "NEAREST", "LEFT NEAREST")] + [("", PA), ("ANTI", PA)]


def query(of: str, kind: str, match: str = "") -> str:
    columns = "pl.person, seen" if kind in ("SEMI", "ANTI") else "pl.person, seen, pa.* EXCLUDE (person)"
    return JOIN.format(columns=columns, kind=kind, of=of, match=match, what="both_" if match else "pages")


def clicks(n: int = 400, seed: int = 1) -> pa.Table:
    rng = Random(seed)
    times = [BEGIN + dt.timedelta(seconds=i // 2) for i in range(n)]
    return pa.table({"ts": times, "person": rng.choices("pq", k=n), "page": rng.choices("aabbnx", k=n)})


def database(path: Path, pattern: str) -> Database:
    db = hybrid.connect(path)
    for name in ("clicks", "others"):
        db.create_stream(name, COLUMNS, time="ts", key="person")
    db.create_pattern("below", PATTERNS["all matches"])
    db.create_pattern("visit", PATTERNS[pattern])
    db.watch("SELECT * FROM visit", name="kept", into="visits", time="t1")
    return db


def rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


@pytest.mark.slow
@pytest.mark.thinned(2, 1)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_rows_are_those_that_a_stream_has_kept(tmp_path: Path, pattern: str) -> None:
    # Each kind meets patterns that come out at once, and others; all meet all by night.
    others_of_them = KINDS[1:] if is_nightly() else KINDS[1:][list(PATTERNS).index(pattern) % 3 :: 3]
    kinds = [KINDS[0], *others_of_them]
    with database(tmp_path / "db", pattern) as db:
        live = {(of, kind): db.watch(query(of, *kind)) for of in ("visit", "visits") for kind in kinds}
        found: dict[object, list[str]] = {one: [] for one in live}
        rng, rest, others = Random(7), clicks(), clicks(seed=2)
        while len(rest):
            n = rng.randrange(1, 60)
            db.push("clicks", rest.slice(0, n))
            rest = rest.slice(n)
            if rng.random() < 0.7 or not len(rest):
                behind = len(others) - len(rest)
                db.push("others", others.slice(0, behind))
                others = others.slice(behind)
            for one, alerts in live.items():
                found[one] += rows(alerts.fetch())
        for name in ("clicks", "others"):
            db.advance(name, BEGIN + dt.timedelta(hours=1))
        for one, alerts in live.items():
            found[one] += rows(alerts.fetch())
        for kind in kinds:
            assert sorted(found["visit", kind]) == sorted(found["visits", kind])
            assert len(found["visit", kind]) > (2 if "ANTI" in kind else 9)
            backtest = db.backtest(query("visit", *kind), BEGIN, BEGIN + dt.timedelta(hours=1))
            assert rows(backtest.arrow()) == sorted(found["visit", kind])
            assert rows(db.sql(query("visit", *kind)).arrow()) == sorted(found["visit", kind])


@pytest.mark.slow
def test_a_restart_in_between(tmp_path: Path) -> None:
    rest, found = clicks(), []
    text = query("visit", "LEFT")
    with database(tmp_path / "db", "greedy") as db:
        db.watch(text, name="one")
    while len(rest):
        with hybrid.connect(tmp_path / "db") as db:
            live = db.watch(text, name="one")
            db.push("clicks", rest.slice(0, 90))
            rest = rest.slice(90)
            found += rows(live.fetch())
    with hybrid.connect(tmp_path / "db") as db:
        live = db.watch(text, name="one")
        db.advance("clicks", BEGIN + dt.timedelta(hours=1))
        found += rows(live.fetch())
        assert sorted(found) == rows(db.sql(text).arrow())


@pytest.mark.slow
def test_evidence_has_the_rows(tmp_path: Path) -> None:
    with database(tmp_path / "db", "all matches") as db:
        live = db.watch(query("visit", ""))
        db.push("clicks", clicks())
        db.advance("clicks", BEGIN + dt.timedelta(hours=1))
        found = live.fetch().to_pylist()
        events = [e for e in live.evidence().to_pylist() if e["side"] == "pa"]
        assert [(e["event_time"], e["pages"]) for e in events] == [(row["t1"], row["pages"]) for row in found]
        same = [e["offset"] for e in db.sql(query("visit", "")).evidence().to_pylist() if e["side"] == "pa"]
        assert sorted(same) == sorted(e["offset"] for e in events)


@pytest.mark.slow
@pytest.mark.parametrize(("pattern", "begin"), [
    ("all matches", "20 seconds before the range"), ("boxes", "30 seconds before the range"),
    ("one after the other", "the start"), ("greedy", "the start"),
])  # fmt: skip
def test_explain_says_which_events_are_read(tmp_path: Path, pattern: str, begin: str) -> None:
    with database(tmp_path / "db", pattern) as db:
        assert f"rows of     visit, found in clicks from {begin}\n" in db.explain(query("visit", ""), stage="plan")


@pytest.mark.parametrize(("pattern", "message"), [
    (PATTERNS["all matches"].replace("AS pages", "AS pages, B.ts AS t1"), "which has a column t1 of its own"),
    (PATTERNS["greedy"].replace("WITHIN INTERVAL 20 SECOND", ""), "any time after their last event"),
])  # fmt: skip
def test_what_is_refused(pattern: str, message: str) -> None:
    with hybrid.connect() as db:
        for name in ("clicks", "others"):
            db.create_stream(name, COLUMNS, time="ts", key="person")
        db.create_pattern("below", PATTERNS["all matches"])
        db.create_pattern("visit", pattern)
        with pytest.raises(QueryError, match=message):
            db.watch(query("visit", ""))


#: Rows of clicks that are joined with a history.
JOINED = """SELECT pl.person, pl.seen, {columns} FROM clicks MATCH_RECOGNIZE (PARTITION BY person ORDER BY ts
    MEASURES X.ts AS seen AFTER MATCH NO SKIP PATTERN (X) WITHIN INTERVAL 1 SECOND SELECTION SKIP TILL NEXT MATCH
    DEFINE X AS page = 'x') AS pl NEAREST JOIN HISTORY OF {of} FROM pl.seen - INTERVAL 40 SECOND TO pl.seen AS pa
    ON pa.person = pl.person"""
#: Two rows of them.
TWO = """SELECT * FROM {of} MATCH_RECOGNIZE (PARTITION BY person ORDER BY seen
    MEASURES F.seen AS since, L.pages AS pages
    AFTER MATCH NO SKIP PATTERN (F L) WITHIN INTERVAL 40 SECOND SELECTION SKIP TILL NEXT MATCH
    DEFINE L AS pages >= F.pages)"""


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("pattern", ["all matches", "a negation at the end", "two streams"])
def test_rows_joined_with_the_rows_of_a_pattern_feed_another(tmp_path: Path, pattern: str) -> None:
    # Before: HQ500.
    joined = JOINED.format(columns="pa.pages", of="visit")
    text = f"WITH bought AS ({joined}) {TWO.format(of='bought')}"
    with database(tmp_path / "db", pattern) as db:
        live = db.watch(text)
        db.watch(joined, into="bought", time="seen")
        over = db.watch(TWO.format(of="bought"))
        found: dict[object, list[str]] = {live: [], over: []}
        rng, rest, others = Random(3), clicks(), clicks(seed=2)
        while len(rest) or len(others):
            n = rng.randrange(1, 60)
            db.push("clicks", rest.slice(0, n))
            db.push("others", others.slice(0, 50))
            rest, others = rest.slice(n), others.slice(50)
            for alerts in (live, over):
                found[alerts] += rows(alerts.fetch())
        for name in ("clicks", "others"):
            db.advance(name, BEGIN + dt.timedelta(hours=1))
        for alerts in (live, over):
            found[alerts] += rows(alerts.fetch())
        assert len(found[live]) > 9
        assert sorted(found[live]) == sorted(found[over])
        assert rows(db.backtest(text, BEGIN, BEGIN + dt.timedelta(hours=1)).arrow()) == sorted(found[live])
        assert rows(db.sql(text).arrow()) == sorted(found[live])


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("pattern", ["all matches", "greedy", "two streams"])
def test_a_box_may_be_joined_with_the_rows_of_a_pattern(tmp_path: Path, pattern: str) -> None:
    box = TWO.format(of="clicks").replace("ORDER BY seen", "ORDER BY ts").replace("F.seen", "F.t1")
    box = box.replace("DEFINE L AS", "DEFINE F AS PATTERN joined, L AS PATTERN joined ON")
    texts = {of: f"WITH joined AS ({JOINED.format(columns='pa.pages', of=of)}) {box}" for of in ("visit", "visits")}
    with database(tmp_path / "db", pattern) as db:
        # Before: live a box joined with the history of a pattern, or of a stream that no layer reads, was refused.
        live = {of: db.watch(text) for of, text in texts.items()}
        rest, others = clicks(), clicks(seed=2)
        while len(rest):
            db.push("clicks", rest.slice(0, 70))
            db.push("others", others.slice(0, 70))
            rest, others = rest.slice(70), others.slice(70)
        for name in ("clicks", "others"):
            db.advance(name, BEGIN + dt.timedelta(hours=1))
        found = {of: rows(db.sql(text).arrow()) for of, text in texts.items()}
        assert len(found["visit"]) > 9
        assert found["visit"] == found["visits"]
        for of, alerts in live.items():
            assert rows(alerts.fetch()) == found[of]
            assert rows(db.backtest(texts[of], BEGIN).arrow()) == found[of]


@pytest.mark.slow
def test_a_history_of_rows_that_are_joined_themselves_is_refused(tmp_path: Path) -> None:
    with database(tmp_path / "db", "all matches") as db:
        db.create_pattern("joined", JOINED.format(columns="pa.page", of="clicks"))
        text = JOINED.format(columns="pa.page", of="joined")
        with pytest.raises(QueryError, match=r"HISTORY OF joined, which is joined with history itself(.|\n)*into="):
            db.watch(text)
        with pytest.raises(QueryError, match="HISTORY OF joined, which is joined with history itself"):
            db.sql(text)


def test_a_pattern_is_no_history_of_itself() -> None:
    # Before: a RecursionError.
    text = JOINED.format(columns="pa.pages", of="visit")
    with pytest.raises(QueryError, match=r"the pattern visit is made of itself(.|\n)*visit -> visit"):
        parse(text, ("clicks",), {"visit": text})


@pytest.mark.slow
def test_a_pattern_whose_rows_are_a_history_is_in_use(tmp_path: Path) -> None:
    with database(tmp_path / "db", "all matches") as db:
        db.watching()["kept"].close()
        db.watch(query("visit", ""), name="joined")
        with pytest.raises(hybrid.DataError, match="pattern visit is used by query joined"):
            db.drop_pattern("visit")

"""Evidence of live queries whose matches come out without their events: it is that of a statement over the same
stream, whatever ends a match has in common with others, and after a restart."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

import hybrid
from hybrid.watch.alerts import Alerts
from matching.purpose import Purpose
from query.errors import DataError
from tests.hybrid.inside import flow_of

#: Some patterns are without WITHIN, or end in a quantifier, or their partial matches stay in memory.
pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")

COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "a": "VARCHAR", "v": "BIGINT"}
FROM = "SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES {measures} {rest}) AS m"
THREE = "DEFINE A AS a = 'a', B AS a = 'b', C AS a = 'c'"
RISING = "DEFINE A AS v > 1, B AS v >= FIRST(A.v)"
#: By name: measures and the rest; whether runs keep the rows of their matches.
CARRIED = {
    "next": ("A.v AS x, count(*) AS n, C.v AS y", f"PATTERN (A B C) SELECTION SKIP TILL NEXT MATCH {THREE}"),
    "any": ("A.v AS x, B.v AS y", f"PATTERN (A B C) WITHIN INTERVAL '9' SECOND SELECTION SKIP TILL ANY MATCH {THREE}"),
    "one per start": (
        "FIRST(A.v) AS x, count(B.*) AS n",
        f"AFTER MATCH SKIP TO NEXT ROW PATTERN (A B+ C) WITHIN 9 ROWS SELECTION SKIP TILL NEXT MATCH {RISING}, "
        "C AS v < FIRST(A.v)",
    ),
    "no overlap": (
        "LAST(B.v) AS x, count(B.*) AS n",
        f"AFTER MATCH SKIP PAST LAST ROW PATTERN (A B+ C) SELECTION SKIP TILL NEXT MATCH {RISING}, C AS v < 3",
    ),
    "any, reading the match": (
        "A.v AS x, count(*) AS n",
        f"PATTERN (A B B C) WITHIN INTERVAL '6' SECOND SELECTION SKIP TILL ANY MATCH {RISING}, C AS a = 'c'",
    ),
}
WHOLE = {
    "sums": ("sum(B.v) AS x", f"PATTERN (A B+ C) WITHIN 6 ROWS SELECTION SKIP TILL ANY MATCH {THREE}"),
    "all rows": (
        "RUNNING count(*) AS n",
        f"ALL ROWS PER MATCH PATTERN (A B C) SELECTION SKIP TILL NEXT MATCH {THREE}",
    ),
    "a last loop": (
        "A.v AS x, sum(B.v) AS y",
        "AFTER MATCH SKIP PAST LAST ROW PATTERN (A B+) WITHIN 4 ROWS SELECTION SKIP TILL NEXT MATCH "
        "DEFINE A AS a = 'a', B AS a = 'b'",
    ),
    "sums, reading the match": (
        "avg(v) AS x",
        f"AFTER MATCH SKIP TO NEXT ROW PATTERN (A B+ C) WITHIN 9 ROWS SELECTION SKIP TILL NEXT MATCH {RISING}, "
        "C AS v < FIRST(A.v)",
    ),
}
#: All rows of the partition from the first to the last one, whatever decides where a match ends.
CONTIGUOUS = {
    "contiguous": ("count(*) AS n", f"PATTERN (A B+) {RISING}"),
    "falls": (
        "A.v AS x, LAST(B.v) AS y",
        "PATTERN (A B+ C?) DEFINE A AS v > PREV(v), B AS v < PREV(v), C AS NEXT(v) > v",
    ),
    "all overlapping": (
        "FIRST(A.v) AS x, MATCH_NUMBER() AS n",
        "AFTER MATCH SKIP TO NEXT ROW PATTERN (A+ B?) WITHIN 5 ROWS DEFINE A AS v > 2, B AS v < 2",
    ),
}
NUMBERED = {
    "numbered": ("MATCH_NUMBER() AS n, A.v AS x", f"PATTERN (A B C) SELECTION SKIP TILL NEXT MATCH {THREE}"),
}
#: Their evidence is kept: rows before a match say whether it is one.
KEPT = {
    "previous row": (
        "A.v AS x",
        "PATTERN (A B) SELECTION SKIP TILL NEXT MATCH DEFINE A AS v > PREV(v), B AS v < A.v",
    ),
}
AGAIN = CARRIED | WHOLE | CONTIGUOUS | NUMBERED
ALL = AGAIN | KEPT


def text(name: str) -> str:
    measures, rest = ALL[name]
    return FROM.format(measures=measures, rest=rest)


def rows(seed: int, count: int) -> pa.Table:
    """Events in time order, all times different."""
    rng = random.Random(seed)
    return pa.table({
        "ts": pa.array([i * 500_000 for i in range(count)], pa.timestamp("us")),
        "k": [rng.choice("xyz") for _ in range(count)],
        "a": [rng.choice("abcd") for _ in range(count)],
        "v": [rng.randrange(8) for _ in range(count)],
    })  # fmt: skip


def opened(path: Path | None, memory_limit: str | None = None) -> hybrid.Database:
    return hybrid.connect(path, memory_limit=memory_limit)


def purpose(alerts: Alerts, db: hybrid.Database) -> Purpose:
    """Returns the purpose for which the engine of a running query was chosen."""
    (query,) = (q for q in flow_of(db).queries if q.alerts is alerts)
    assert query.events.member is not None
    assert query.events.member.kernel is not None
    return query.events.member.kernel.chosen.purpose


def by_sql(text: str, events: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The rows of a statement over a stream of these events, and their evidence."""
    with opened(None) as db:
        declare(db)
        db.push("e", events)
        result = db.sql(text)
        return result.arrow(), result.evidence()


def shown(evidence: pa.Table) -> list[str]:
    """All of it, in the order of rows that have nothing to do with when matches came out."""
    columns = [c for c in evidence.column_names if c != "row"]
    return sorted(map(repr, evidence.select(columns).to_pylist()))


def declare(db: hybrid.Database, lateness: str = "0s") -> None:
    db.create_stream("e", COLUMNS, time="ts", key=["k"], lateness=lateness)


@pytest.mark.slow
@pytest.mark.thinned(4)
@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("memory_limit", [None, "50MB"])
def test_evidence_is_that_of_sql(name: str, memory_limit: str | None, tmp_path: Path) -> None:
    events = rows(hash_of(name), 400)
    expected, expected_evidence = by_sql(text(name), events)
    with opened(tmp_path / "db", memory_limit) as db:
        declare(db)
        alerts = db.watch(text(name))
        again = Purpose.FOUND_AGAIN if memory_limit is None else Purpose.KEPT_ROWS
        assert purpose(alerts, db) is (Purpose.LIVE if name in KEPT else again)
        found, seen = [], []
        for batch in events.to_batches(max_chunksize=130):
            db.push("e", batch)
            table = alerts.fetch()
            found += table.to_pylist()
            if table.num_rows:
                evidence = alerts.evidence()
                assert sorted({*evidence["row"].to_pylist()}) == list(range(table.num_rows))
                seen += shown(evidence)
        db.advance("e", None)
        table = alerts.fetch()
        found += table.to_pylist()
        seen += shown(alerts.evidence()) if table.num_rows else []
    assert sorted(map(repr, found)) == sorted(map(repr, expected.to_pylist()))
    assert len(found) > 5
    assert sorted(seen) == shown(expected_evidence)


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", AGAIN)
def test_each_row_has_the_events_of_its_own_match(name: str, tmp_path: Path) -> None:
    events = rows(7, 300)
    with opened(None) as db:
        declare(db)
        bare, identified = db.watch(text(name)), db.watch(text(name), evidence=True)
        assert purpose(bare, db) is Purpose.FOUND_AGAIN
        assert purpose(identified, db) is Purpose.IDENTIFIED
        db.push("e", events)
        db.advance("e", None)
        ids = identified.fetch()
        assert ids.drop_columns(["match_id"]).equals(bare.take())
        expected = dict.fromkeys(identified.evidence()["match_id"].to_pylist())
        assert [*dict.fromkeys(ids["match_id"].to_pylist())] == [*expected]
        assert bare.evidence().equals(identified.evidence())
        assert bare.evidence().equals(identified.evidence())  # asked twice
        for lines_max in (1, 10, 1000):
            for alerts in (bare, identified):
                batches = list(alerts.evidence_batches(lines_max))
                assert pa.Table.from_batches(batches).equals(identified.evidence().arrow())
                assert max(batch.num_rows for batch in batches) < lines_max + 40 or lines_max == 1000


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ALL)
def test_evidence_is_found_after_a_restart(name: str, tmp_path: Path) -> None:
    events = rows(3, 400)
    with opened(None) as db:
        declare(db)
        alerts = db.watch(text(name))
        db.push("e", events)
        db.advance("e", None)
        expected, expected_evidence = alerts.fetch(), alerts.evidence()
    with opened(tmp_path / "db") as db:
        declare(db)
        alerts = db.watch(text(name), name="q")
        db.push("e", events.slice(0, 170))
        db.checkpoint()
    with opened(tmp_path / "db") as db:
        alerts = db.watching()["q"]
        assert purpose(alerts, db) is (Purpose.LIVE if name in KEPT else Purpose.FOUND_AGAIN)
        db.push("e", events.slice(170))
        db.advance("e", None)
        assert alerts.fetch().equals(expected)
        assert alerts.evidence().equals(expected_evidence)


def test_events_before_the_query_and_late_ones_are_in_no_match(tmp_path: Path) -> None:
    def one(second: float, a: str) -> pa.Table:
        ts = pa.array([int(second * 1e6)], pa.timestamp("us"))
        return pa.table({"ts": ts, "k": ["x"], "a": [a], "v": [1]})

    with opened(None) as db:
        declare(db, lateness="10s")
        db.push("e", one(5, "b"))  # before the query begins, and between the events of its match
        alerts = db.watch(text("next"))
        for second, a in ((4, "a"), (6, "b"), (7, "c"), (30, "d"), (6.5, "b")):  # the last one is late
            db.push("e", one(second, a))
        db.advance("e", None)
        assert alerts.fetch().num_rows == 1
        assert alerts.evidence()["event_time"].cast("int64").to_pylist() == [4_000_000, 6_000_000, 7_000_000]


@pytest.mark.slow
def test_a_query_that_begins_in_the_past_finds_its_evidence(tmp_path: Path) -> None:
    events = rows(11, 300)
    with opened(tmp_path / "db") as db:
        declare(db)
        db.push("e", events.slice(0, 200))
        alerts = db.watch(text("next"), start="1970-01-01 00:00:20")
        db.push("e", events.slice(200))
        db.advance("e", None)
        found = alerts.fetch()
        expected, expected_evidence = by_sql(text("next"), events.slice(40))
        assert found.num_rows == expected.num_rows > 5
        mine, theirs = (t.drop_columns(["offset", "match_id"]) for t in (alerts.evidence(), expected_evidence))
        assert shown(mine) == shown(theirs)


@pytest.mark.slow
def test_a_new_version_finds_its_evidence(tmp_path: Path) -> None:
    events = rows(5, 300)
    other = text("next").replace("C.v AS y", "max(v) AS y")
    wider = text("next").replace("C.v AS y", "B.v AS y")
    for new in (other, wider):
        with opened(None) as db:
            declare(db)
            alerts = db.watch(text("next"))
            db.push("e", events.slice(0, 150))
            before = alerts.fetch()
            replaced = db.replace(alerts, new, evidence=new is wider)
            db.push("e", events.slice(150))
            db.advance("e", None)
            found = replaced.fetch()
            expected, expected_evidence = by_sql(new, events)
            assert before.num_rows + found.num_rows == expected.num_rows
            wanted = set(shown(expected_evidence))
            assert found.num_rows > 0
            assert set(shown(replaced.evidence())) <= wanted
            assert before.num_rows > 0
            assert alerts.evidence().num_rows == 3 * before.num_rows


def test_evidence_that_is_no_longer_kept_is_refused(tmp_path: Path) -> None:
    within = text("any")
    with opened(None) as db:
        db.create_stream("e", COLUMNS, time="ts", key=["k"], lateness="0s", retention="20s")
        alerts = db.watch(within)
        assert purpose(alerts, db) is Purpose.FOUND_AGAIN
        db.push("e", rows(5, 100))
        assert alerts.fetch().num_rows > 0
        db.push("e", pa.table({
            "ts": pa.array([10_000_000_000], pa.timestamp("us")), "k": ["x"], "a": ["d"], "v": [0],
        }))  # fmt: skip
        with pytest.raises(DataError, match="no longer in the archive"):
            alerts.evidence()


def test_explain_shows_the_engine_that_runs() -> None:
    """Before: that of a query whose matches keep their events."""
    with opened(None) as db:
        declare(db)
        bare, kept = db.watch(text("next")), db.watch(text("previous row"))
        assert "evidence    found in the archive" in bare.explain("program")
        assert "evidence    found" not in kept.explain("program")


def hash_of(name: str) -> int:
    """The same in each process."""
    return sum(map(ord, name))

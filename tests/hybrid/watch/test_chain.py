"""Streams merged into one input, rows of a live query as a stream, and live patterns over rows."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest

import hybrid
from hybrid.database.database import Database

START = datetime(2024, 3, 1)
THEFT = """PATTERN SEQ(Shelf a, ~(Register b), Exit c) WHERE skip_till_next_match(a, b, c) { [tag_id] } WITHIN 12 hours
    RETURN a.ts AS taken, a.site, c.ts AS left_at"""


def at(hour: float) -> datetime:
    return START + timedelta(hours=hour)


SHELF = [{"ts": at(0), "tag_id": 1, "site": "x"}, {"ts": at(1), "tag_id": 2, "site": "y"}]
REGISTER = [{"at": at(2), "tag_id": 1, "price": 3.5}]
EXIT = [{"ts": at(3), "tag_id": 1}, {"ts": at(4), "tag_id": 2}]
STOLEN = [{"tag_id": 2, "taken": at(1), "site": "y", "left_at": at(4)}]


@pytest.fixture
def db() -> Any:
    with hybrid.connect() as database:
        declare(database)
        yield database


def declare(db: Database) -> None:
    db.create_stream("shelf", {"ts": "TIMESTAMP", "tag_id": "BIGINT", "site": "VARCHAR"}, time="ts")
    db.create_stream("Register", {"at": "TIMESTAMP", "tag_id": "BIGINT", "price": "DOUBLE"}, time="at", lateness="1s")
    db.create_stream("exit", {"ts": "TIMESTAMP", "tag_id": "INTEGER"}, time="ts")


@pytest.mark.slow
def test_types_are_tables() -> None:
    tables = {"shelf": SHELF, "register": REGISTER, "exit": pd.DataFrame(EXIT)}
    assert hybrid.sql(THEFT, **tables).arrow().to_pylist() == STOLEN
    assert hybrid.sql(f"FROM MERGE(exit, shelf, register) {THEFT}", **tables).arrow().to_pylist() == STOLEN
    with duckdb.connect() as connection:
        for name, rows in tables.items():
            frame = pd.DataFrame(rows)  # noqa: F841  (DuckDB reads it by its name)
            connection.execute(f"CREATE TABLE {name} AS SELECT * FROM frame")
        result = hybrid.sql(f"FROM MERGE(shelf, register, exit) {THEFT}", connection)
        assert result.arrow().to_pylist() == STOLEN


def test_the_columns_of_what_is_merged() -> None:
    text = """SELECT * FROM MERGE(shelf, register) MATCH_RECOGNIZE (
        ORDER BY ts ALL ROWS PER MATCH PATTERN (A+)) AS m"""
    table = hybrid.sql(text, shelf=SHELF, register=REGISTER).arrow()
    assert table.to_pylist() == [
        {"ts": at(0), "stream": "shelf", "tag_id": 1, "site": "x", "price": None},
        {"ts": at(1), "stream": "shelf", "tag_id": 2, "site": "y", "price": None},
        {"ts": at(2), "stream": "register", "tag_id": 1, "site": None, "price": 3.5},
    ]
    cast = 'WITH r AS (SELECT "at", CAST(tag_id AS VARCHAR) AS tag_id FROM register) ' + text.replace("register)", "r)")
    with pytest.raises(hybrid.QueryError, match="tag_id is VARCHAR in r and BIGINT in shelf"):
        hybrid.sql(cast, shelf=SHELF, register=REGISTER)
    with pytest.raises(hybrid.DataError, match=r"has 1 null(?!s)"):
        hybrid.sql(text, shelf=SHELF, register=[*REGISTER, {"at": None, "tag_id": 1, "price": 0.0}])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("left", "right", "type"),
    [
        ("INTEGER", "BIGINT", "BIGINT"), ("UBIGINT", "BIGINT", "DECIMAL(38,0)"),
        ("DECIMAL(9,2)", "SMALLINT", "DECIMAL(9,2)"),
        ("FLOAT", "DOUBLE", "DOUBLE"), ("INTEGER", "DOUBLE", "DOUBLE"), ("DATE", "TIMESTAMP", "TIMESTAMP"),
        ("BIGINT", "DOUBLE", None), ("BIGINT", "VARCHAR", None), ("DECIMAL(38,0)", "DECIMAL(38,10)", None),
        ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "TIMESTAMP WITH TIME ZONE"), ("BOOLEAN", "INTEGER", None),
        ("ENUM('u', 'v')", "VARCHAR", "VARCHAR"), ("INTEGER[]", "INTEGER[]", "INTEGER[]"),
        ("INTEGER[]", "BIGINT[]", None),
    ],
)  # fmt: skip
def test_types_that_fit(left: str, right: str, type: str | None) -> None:
    """A value of each type comes out as it was."""
    values = {
        "INTEGER": "-7", "BIGINT": "9007199254740993", "UBIGINT": "18446744073709551615", "SMALLINT": "-3",
        "BOOLEAN": "true", "DECIMAL(9,2)": "1234567.25", "FLOAT": "0.5", "DOUBLE": "0.1", "VARCHAR": "'w'",
        "DATE": "'2024-02-03'",
        "TIMESTAMP": "'2024-02-03 04:05:06.789'", "TIMESTAMP WITH TIME ZONE": "'2024-02-03 04:05:06.789+02'",
        "DECIMAL(38,0)": "3", "DECIMAL(38,10)": "3", "ENUM('u', 'v')": "'v'", "INTEGER[]": "[1]", "BIGINT[]": "[1]",
    }  # fmt: skip
    text = "SELECT x FROM MERGE(a, b) MATCH_RECOGNIZE (ORDER BY ts MEASURES A.x AS x PATTERN (A)) AS m"
    with duckdb.connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        for name, of in (("a", left), ("b", right)):
            connection.execute(f"CREATE TABLE {name} AS SELECT now()::TIMESTAMP AS ts, CAST({values[of]} AS {of}) AS x")
        if type is None:
            with pytest.raises(hybrid.QueryError, match="HQ219"):
                hybrid.sql(text, connection)
            return
        found = hybrid.sql(text, connection).arrow()  # noqa: F841  (DuckDB reads it by its name)
        union = f"SELECT CAST(x AS {type}) AS x FROM a UNION ALL SELECT CAST(x AS {type}) FROM b"
        assert connection.sql("SELECT typeof(x), CAST(x AS VARCHAR) FROM found ORDER BY 2").fetchall() == (
            connection.sql(f"SELECT typeof(x), CAST(x AS VARCHAR) FROM ({union}) ORDER BY 2").fetchall()
        )


@pytest.mark.slow
def test_a_silent_stream_holds_the_others_back(db: Database) -> None:
    alerts = db.watch(THEFT)
    db.push("exit", EXIT)
    db.push("shelf", SHELF)
    db.push("Register", REGISTER)  # to 1:59:59
    assert alerts.fetch().num_rows == 0
    db.advance("register", at(10))
    assert alerts.stats()["watermark"] == "2024-03-01 01:00:00"
    assert alerts.stats()["watermarks"]["Register"] == "2024-03-01 10:00:00"
    db.advance("shelf", at(4))
    assert alerts.fetch().num_rows == 0  # another event of shelf may have the time of the last exit
    assert alerts.stats()["held_back"] == 1
    db.advance("shelf", at(5))
    assert alerts.fetch().num_rows == 0  # and so may one of exit itself
    db.advance("exit", at(4.5))
    assert alerts.fetch().to_pylist() == STOLEN
    evidence = alerts.evidence().select(["variable", "source", "offset", "stream", "site"]).to_pylist()
    assert evidence == [
        {"variable": "A", "source": "shelf/default", "offset": 1, "stream": "shelf", "site": "y"},
        {"variable": "C", "source": "exit/default", "offset": 1, "stream": "exit", "site": None},
    ]
    for name in ("shelf", "register"):
        db.advance(name, None)
    assert alerts.stats()["state"] == "running"
    db.advance("exit", None)
    assert alerts.stats()["state"] == "ended"
    assert db.sql(THEFT).arrow().to_pylist() == db.backtest(THEFT, START).arrow().to_pylist() == STOLEN


def test_an_ended_stream_holds_nothing_back(db: Database) -> None:
    db.advance("register", None)
    alerts = db.watch(THEFT)
    db.push("shelf", SHELF)
    db.push("exit", EXIT)
    db.advance("shelf", at(9))
    db.advance("exit", at(9))
    assert [row["tag_id"] for row in alerts.fetch().to_pylist()] == [1, 2]
    for name in ("shelf", "exit"):
        db.advance(name, None)
    with pytest.raises(hybrid.QueryError, match="HQ400"):
        db.watch(THEFT)


def test_tie_columns_in_common() -> None:
    with hybrid.connect() as db:
        for name in ("q", "p"):
            db.create_stream(name, {"ts": "TIMESTAMP", "n": "BIGINT"}, time="ts", order=["n"])
        measures = "MEASURES A.n AS n, A.stream AS s"
        text = f"SELECT * FROM MERGE(p, q) MATCH_RECOGNIZE (ORDER BY ts, n {measures} PATTERN (A)) AS m"
        alerts = db.watch(text)
        db.push("p", [{"ts": START, "n": n} for n in (3, 1, 2)])
        db.push("q", [{"ts": START, "n": n} for n in (4, 2, 0)])
        db.advance("p", None)
        db.advance("q", None)
        rows = [(r["n"], r["s"]) for r in alerts.fetch().to_pylist()]
        assert rows == [(0, "q"), (1, "p"), (2, "p"), (2, "q"), (3, "p"), (4, "q")]
        assert rows == [(r["n"], r["s"]) for r in db.sql(text).arrow().to_pylist()]


@pytest.mark.slow
def test_merged_with_history(db: Database) -> None:
    joined = """SELECT m.k, h.price FROM MERGE(shelf, exit) MATCH_RECOGNIZE (PARTITION BY tag_id ORDER BY ts
        MEASURES A.tag_id AS k, B.ts AS t PATTERN (A B) DEFINE A AS stream = 'shelf', B AS stream = 'exit') AS m
        JOIN HISTORY OF register FROM m.t - INTERVAL 1 DAY TO m.t AS h ON h.tag_id = m.k"""
    alerts = db.watch(joined)
    db.push("register", REGISTER)
    db.push("shelf", SHELF)
    db.push("exit", EXIT)
    for name in ("shelf", "exit"):
        db.advance(name, at(9))
    assert alerts.stats()["waiting_for_history"] == 2
    db.advance("register", at(9))
    assert alerts.fetch().to_pylist() == [{"k": 1, "price": 3.5}] == db.sql(joined).arrow().to_pylist()
    with pytest.raises(hybrid.DataError, match="reads Shelf, directly or through"):
        db.watch(THEFT, into="Shelf")
    db.watch(joined.replace("h.price", "h.price, m.t"), into="others")  # Before: refused
    db.push("shelf", [{"ts": at(10), "tag_id": 3, "site": "x"}])
    db.push("register", [{"at": at(10.5), "tag_id": 3, "price": 9.5}])
    db.push("exit", [{"ts": at(11), "tag_id": 3}])
    for name in ("register", "exit", "shelf"):
        db.advance(name, None)
    assert db.sql("SELECT * FROM others").arrow().to_pylist() == [{"k": 3, "price": 9.5, "t": at(11)}]


# ---- rows as a stream ------------------------------------------------------------------------------------------

PAIRS = """SELECT * FROM shelf MATCH_RECOGNIZE (PARTITION BY tag_id ORDER BY ts MEASURES B.ts AS t, A.site AS first
    PATTERN (A B)) AS pair"""
AGAIN = """SELECT * FROM pairs MATCH_RECOGNIZE (PARTITION BY tag_id ORDER BY t MEASURES C.first AS c, D.first AS d
    PATTERN (C D)) AS m"""


def walk(*hours: float) -> list[dict[str, Any]]:
    return [{"ts": at(h), "tag_id": 1, "site": f"s{h:g}"} for h in hours]


def test_rows_are_the_events_of_a_stream(db: Database) -> None:
    pairs = db.watch(PAIRS, into="pairs")
    again = db.watch(AGAIN)
    db.push("shelf", walk(0, 1, 2, 3))
    assert db.streams()["pairs"]["events"] == 2
    assert db.streams()["pairs"]["keys"] == ["tag_id"]
    assert db.streams()["pairs"]["watermark"] == "2024-03-01 03:00:00"
    assert pairs.fetch().num_rows == 0
    assert again.fetch().num_rows == 0  # another pair may end at 3
    db.advance("shelf", at(4))
    assert again.fetch().to_pylist() == [{"tag_id": 1, "c": "s0", "d": "s2"}]
    assert again.evidence().column("event_time").to_pylist() == [at(1), at(3)]
    with pytest.raises(hybrid.DataError, match="stream pairs is fed by a live query"):
        db.push("pairs", [{"tag_id": 1, "t": at(9), "first": "x"}])
    with pytest.raises(hybrid.DataError, match="fed by a live query"):
        db.advance("pairs", at(9))
    with pytest.raises(hybrid.DataError, match="another live query already feeds"):
        db.watch(PAIRS, into="Pairs")
    with pytest.raises(hybrid.DataError, match="reads pairs, directly or through"):
        db.watch(AGAIN.replace("C.first AS c", "D.t AS t"), into="pairs")
    db.advance("shelf", None)
    assert db.streams()["pairs"]["ended"]
    assert again.stats()["state"] == pairs.stats()["state"] == "ended"


def test_rows_that_wait_for_within(db: Database) -> None:
    text = """SELECT * FROM shelf MATCH_RECOGNIZE (ORDER BY ts MEASURES A.ts AS t, count(*) AS n PATTERN (A B*)
        WITHIN INTERVAL 2 HOUR DEFINE B AS tag_id = A.tag_id) AS visit"""
    db.watch(text, into="visits")
    with pytest.raises(hybrid.QueryError, match="HQ220"):
        db.watch(text.replace("WITHIN INTERVAL 2 HOUR", ""), into="others")
    assert "others" not in db.streams()
    db.push("shelf", walk(0, 1, 2.5, 4))
    assert db.streams()["visits"]["watermark"] == "2024-03-01 02:00:00"
    assert db.sql("SELECT t, n FROM visits").arrow().to_pylist() == [{"t": at(0), "n": 2}]
    db.advance("shelf", None)
    assert [r["n"] for r in db.sql("SELECT n FROM visits ORDER BY t").arrow().to_pylist()] == [2, 2]


def test_what_is_said_of_a_select_over_a_stream_keeps_the_answer() -> None:
    """Rows a x a: of those with an a, the two are neighbours."""
    pairs = "MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES FIRST(A.v) AS first, LAST(A.v) AS last PATTERN (A A))"
    selected = f"SELECT * FROM (SELECT ts, k, v FROM t WHERE s = 'a') {pairs}"
    events = [{"ts": at(i), "k": "p", "s": s, "v": i} for i, s in enumerate("axa")]
    with hybrid.connect() as db:
        db.create_stream("t", {"ts": "TIMESTAMP", "k": "VARCHAR", "s": "VARCHAR", "v": "INTEGER"}, time="ts", key="k")
        with pytest.raises(hybrid.QueryError, match="over anything but a stream") as refused:
            db.watch(selected)
        hint = refused.value.diagnostics[0].hint
        # Before: "put the conditions into DEFINE", by which no two events with an a are neighbours.
        assert "DEFINE R AS condition)) MATCH_RECOGNIZE ( ... )" in hint
        said = hint[hint.index("FROM (") :].replace("...", "ts, k, v", 1).replace("FROM stream", "FROM t")
        said = said.replace("time ALL", "ts ALL").replace("condition", "s = 'a'")
        alerts = db.watch(f"SELECT * {said.replace('MATCH_RECOGNIZE ( ... )', pairs)}")
        for event in events:
            db.push("t", [event])
        db.push("t", [{"ts": at(3), "k": "p", "s": "x", "v": 3}])
        assert alerts.fetch().to_pylist() == [{"k": "p", "first": 0, "last": 2}]
        assert hybrid.sql(selected, t=events).arrow().to_pylist() == [{"k": "p", "first": 0, "last": 2}]


def test_rows_of_a_match_of_several_rows_have_no_bound_by_their_times(db: Database) -> None:
    text = "SELECT * FROM shelf MATCH_RECOGNIZE (ORDER BY ts ALL ROWS PER MATCH PATTERN (A{}) DEFINE A AS site = 's1')"
    again = f"SELECT * FROM ({text}) MATCH_RECOGNIZE (ORDER BY ts MEASURES A.ts AS t PATTERN (A))"
    for plural in ("+", " B"):
        with pytest.raises(hybrid.QueryError, match="HQ220"):
            db.watch(again.format(plural))
    db.watch(again.format(""))


def test_which_time(db: Database) -> None:
    two = PAIRS.replace("A.site AS first", "A.ts AS f")
    with pytest.raises(hybrid.DataError, match="several times: t, f"):
        db.watch(two, into="pairs")
    with pytest.raises(hybrid.DataError, match="no time column q"):
        db.watch(two, into="pairs", time="q")
    with pytest.raises(hybrid.DataError, match="no column of time"):
        db.watch(PAIRS.replace("B.ts AS t, ", ""), into="pairs")
    with pytest.raises(hybrid.QueryError, match="HQ220"):
        db.watch(two, into="pairs", time="f")
    assert db.streams().keys() == {"shelf", "Register", "exit"}
    db.watch(two, into="pairs", time="T")
    assert db.streams()["pairs"]["time"] == "t"


def test_a_query_that_fails_feeds_no_more(db: Database) -> None:
    text = "SELECT tag_id, CASE WHEN first = 's3' THEN NULL ELSE t END AS t FROM" + PAIRS.split("FROM", 1)[1]
    within = text.replace("PATTERN (A B)", "PATTERN (A B) WITHIN INTERVAL 9 HOUR")
    pairs = db.watch(within.replace("SELECT tag_id,", "SELECT tag_id, first,"), into="pairs")
    above = db.watch("SELECT * FROM pairs MATCH_RECOGNIZE (ORDER BY t MEASURES A.t AS t PATTERN (A))")
    db.push("shelf", walk(1, 2))
    with pytest.warns(hybrid.HybridWarning, match="stream pairs receives no more rows"):
        db.push("shelf", walk(3, 4))
    assert pairs.stats()["state"] == "failed"
    with pytest.raises(hybrid.DataError, match="null"):
        pairs.fetch()
    # Before: the query over its rows went on, without them and without a word.
    with pytest.raises(hybrid.DataError, match="stream pairs receives no more rows"):
        above.fetch()
    db.push("shelf", walk(5, 6))  # the stream goes on
    assert db.streams()["pairs"]["events"] == 1


@pytest.mark.slow
def test_a_stream_of_rows_is_kept(tmp_path: Path) -> None:
    with hybrid.connect(tmp_path) as db:
        declare(db)
        db.watch(PAIRS, into="pairs")
        db.push("shelf", walk(0, 1))
    with hybrid.connect(tmp_path) as db:
        assert db.sql("SELECT first FROM pairs").arrow().to_pylist() == [{"first": "s0"}]
        db.watch(PAIRS, into="pairs")
        db.push("shelf", walk(2, 3, 4))
        assert db.sql("SELECT first FROM pairs ORDER BY t").arrow().to_pylist() == [{"first": "s0"}, {"first": "s2"}]


def test_a_query_that_is_closed_feeds_no_more(db: Database) -> None:
    pairs = db.watch(PAIRS, into="pairs")
    merged = db.watch(THEFT)
    db.push("shelf", walk(0, 1))
    with pytest.raises(hybrid.DataError, match="this query feeds a stream"):
        db.replace(pairs, PAIRS)
    with pytest.raises(hybrid.QueryError, match="the new version reads exit, register, shelf, the old one shelf"):
        db.replace(db.watch(PAIRS), THEFT)
    pairs.close()
    merged.close()
    assert merged.stats()["state"] == "closed"
    db.push("shelf", walk(2, 3))
    assert db.streams()["pairs"]["events"] == 1
    db.watch(PAIRS, into="pairs")  # another one may
    db.push("shelf", walk(4, 5))
    assert db.sql("SELECT first FROM pairs ORDER BY t").arrow().column("first").to_pylist() == ["s0", "s4"]


# ---- live patterns over rows -----------------------------------------------------------------------------------


def test_a_row_before_the_watermark(db: Database) -> None:
    """A time that is computed may lie anywhere: such a query fails, and gives no wrong rows."""
    text = f"""SELECT * FROM (SELECT tag_id, t - INTERVAL 1 DAY AS t, first FROM
        {PAIRS.split("FROM", 1)[1].replace("PATTERN (A B)", "PATTERN (A B) WITHIN INTERVAL 1 HOUR")}) AS pairs
        MATCH_RECOGNIZE (ORDER BY t MEASURES C.first AS c PATTERN (C)) AS m"""
    alerts = db.watch(text)
    db.push("shelf", walk(1, 2))
    db.push("shelf", walk(2.5, 3, 3.5))
    assert alerts.fetch().to_pylist() == [{"c": "s1"}]  # what was found before
    with pytest.raises(hybrid.DataError, match="a row of pair has t 2024-02-29 03:00:00"):
        alerts.fetch()


@pytest.mark.slow
def test_rows_that_are_waited_for_come_in_order(db: Database) -> None:
    text = """WITH visits AS (SELECT * FROM shelf MATCH_RECOGNIZE (PARTITION BY tag_id ORDER BY ts
            MEASURES A.ts AS t, count(*) AS n PATTERN (A B*) WITHIN INTERVAL 2 HOUR) AS v WHERE n > 1)
        SELECT * FROM visits MATCH_RECOGNIZE (ORDER BY t MEASURES LAST(n) AS n, LAST(t) AS t PATTERN (V W)) AS m"""
    alerts = db.watch(text, evidence=True)
    db.push("shelf", walk(0, 1, 3, 4, 5))
    assert alerts.fetch().num_rows == 0  # the visit from 3 on may last
    db.push("shelf", walk(5.25))
    found = alerts.fetch()
    assert found.drop_columns(["match_id"]).to_pylist() == db.sql(text).arrow().to_pylist() == [{"n": 3, "t": at(3)}]
    assert found.column("match_id").to_pylist() == alerts.evidence().column("match_id").unique().to_pylist()
    assert alerts.evidence().column("n").to_pylist() == [2, 3]


ROW = "SELECT ts, v FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES B.ts AS ts, B.v AS v PATTERN (A {}B)"
ROWS = f"({ROW.format('')} WITHIN INTERVAL 1 HOUR DEFINE B AS v > A.v) AS r)"
#: Queries over the same streams, of one kind and the other.
VERSIONS = {
    "one": f"{ROW.format('')} DEFINE B AS v > A.v) AS m",
    "long": f"{ROW.format('X* ')} WITHIN INTERVAL 4 SECOND DEFINE X AS v = A.v, B AS v > A.v) AS m",
    "rows": f"SELECT * FROM {ROWS} MATCH_RECOGNIZE (ORDER BY ts MEASURES B.v AS v PATTERN (A B) DEFINE B AS v < A.v)",
    "more": f"SELECT * FROM {ROWS} MATCH_RECOGNIZE (ORDER BY ts MEASURES B.v AS v AFTER MATCH SKIP TO NEXT ROW "
    "PATTERN (A B* B) DEFINE B AS v > A.v)",
    "both": "SELECT * FROM MERGE(e, f) MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.v AS a, B.v AS b "
    "PATTERN (A B) DEFINE B AS v > A.v)",
    "sums": "SELECT * FROM MERGE(f, e) MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES sum(v) AS v "
    "PATTERN (A+? B) WITHIN INTERVAL 9 HOUR DEFINE B AS v > 2 * A.v)",
}


@pytest.mark.slow
@pytest.mark.thinned(6)
@pytest.mark.parametrize("start", [None, "2024-03-01 00:00:08"])
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("old", "new"),
    [("rows", "more"), ("both", "sums"), ("one", "rows"), ("rows", "one"), ("more", "long"), ("long", "one")],
)
def test_a_new_version_is_as_if_it_had_run_since_the_old_one_began(
    tmp_path: Path, old: str, new: str, seed: int, start: str | None
) -> None:
    rng = random.Random(f"{old} {new} {seed}")

    def push(db: Database, first: int, last: int) -> None:
        for i in range(first, last):
            rows = [
                {"ts": START + timedelta(seconds=i + rng.choice([0, 0, -2, -4, 1, 3])), "k": rng.randrange(2),
                 "v": rng.randrange(9)}
                for _ in range(rng.randrange(4))
            ]  # fmt: skip
            db.push(rng.choice("ef") if "both" in (old, new) else "e", rows)

    with hybrid.connect(tmp_path) as db:
        for name in "ef":
            types = {"ts": "TIMESTAMP", "k": "BIGINT", "v": "BIGINT"}
            db.create_stream(name, types, time="ts", lateness="3s", order=["v"])
        push(db, 0, 20)
        other = db.watch(VERSIONS["long"]) if seed % 2 else None  # the stream has a feed already
        begun = db.watch(VERSIONS[old], start=start, name="q")
        shadow = db.watch(VERSIONS[new], start=start, name="s")
        push(db, 20, 40)
        if other is not None:
            other.close()
        before = shadow.fetch().num_rows
        replaced = db.replace(begun, VERSIONS[new])
        push(db, 40, 60)
        found = shadow.fetch().to_pylist()
        assert replaced.fetch().to_pylist() == found
        assert begun.stats()["state"] == "replaced"
        assert before + len(found) > 0
        push(db, 60, 70)
        db.checkpoint()
    with hybrid.connect(tmp_path) as db:
        push(db, 70, 90)
        for name in "ef":
            db.advance(name, None)
        found = db.watching()["s"].fetch().to_pylist()
        assert db.watching()["q"].fetch().to_pylist() == found
        assert len(found) > 0


@pytest.mark.slow
def test_a_new_version_of_a_query_over_several_streams_needs_the_events(tmp_path: Path) -> None:
    with hybrid.connect(tmp_path) as db:
        for name in "ef":
            types = {"ts": "TIMESTAMP", "k": "BIGINT", "v": "BIGINT"}
            db.create_stream(name, types, time="ts", retention="1 hour")
        old = db.watch(VERSIONS["both"])
        for hour in range(8):
            for name in "ef":
                db.push(name, [{"ts": at(hour), "k": 1, "v": hour}])
                db.flush()
        with pytest.raises(hybrid.DataError, match="events since the old one began are no longer kept"):
            db.replace(old, VERSIONS["sums"])
        assert old.stats()["state"] == "running"
        with pytest.warns(hybrid.HybridWarning, match="starts with an empty state"):
            new = db.replace(old, VERSIONS["sums"], fresh=True)
        assert (old.stats()["state"], new.fetch().num_rows) == ("replaced", 0)
        for v in (1, 5):
            for name in "ef":
                db.push(name, [{"ts": at(9 + v), "k": 1, "v": v}])
        for name in "ef":
            db.advance(name, None)
        assert new.fetch().to_pylist() == [{"k": 1, "v": 1 + 1 + 5}]
        with pytest.raises(hybrid.DataError, match="this query is not running"):
            db.replace(old, VERSIONS["both"])


"""Named patterns of a database: created, used by statements and live queries, kept, replaced and dropped."""

from __future__ import annotations

import json
import shutil
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import hybrid
from hybrid import DataError, QueryError
from hybrid.database.pattern_file import PATTERNS, _sum
from tests.archive.store import s3_server
from tests.hybrid.cli.test_cli import run

COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "s": "VARCHAR", "x": "INTEGER"}
VISIT = """SELECT * FROM t MATCH_RECOGNIZE (
    PARTITION BY k ORDER BY ts MEASURES count(*) AS n
    PATTERN (A+) WITHIN INTERVAL '1 hour' DEFINE A AS s = 'a')"""
LUNCH = """SELECT k, m FROM t MATCH_RECOGNIZE (
    PARTITION BY k ORDER BY ts MEASURES E.x AS m AFTER MATCH NO SKIP
    PATTERN (V E) WITHIN INTERVAL '1 hour' SELECTION SKIP TILL NEXT MATCH
    DEFINE V AS PATTERN visit ON n > 1, E AS s = 'e')"""
#: Two visits of two events, each with an e after it, and a visit of one event between them.
EVENTS = "aaebaebaae"
START = datetime(2024, 1, 1)


def rows(events: str = EVENTS, first: int = 0) -> list[dict[str, object]]:
    return [{"ts": minute(i), "k": "p", "s": s, "x": i} for i, s in enumerate(events, first)]


def opened(directory: Path | None = None, *events: str) -> hybrid.Database:
    db = hybrid.connect(directory, maintenance=False)
    db.create_stream("t", COLUMNS, time="ts", key="k")
    for some in events:
        db.push("t", rows(some))
    return db


def with_patterns(directory: Path | None = None, *events: str) -> hybrid.Database:
    db = opened(directory, *events)
    db.create_patterns({"visit": VISIT, "lunch": LUNCH})
    return db


def answer(db: hybrid.Database, text: str) -> list[dict[str, object]]:
    return db.sql(text).arrow().to_pylist()


def minute(i: int) -> datetime:
    return START + timedelta(minutes=i)


# ---- what statements read


@pytest.mark.slow
def test_rows_of_a_pattern_are_instants_and_its_boxes_intervals():
    pair = """SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.x AS x AFTER MATCH NO SKIP
        PATTERN (A B) WITHIN INTERVAL '1 hour' SELECTION SKIP TILL NEXT MATCH DEFINE A AS s = 'a', B AS s = 'b')"""
    of_rows = """SELECT c FROM pair MATCH_RECOGNIZE (ORDER BY t1 MEASURES V.x || '-' || W.x AS c AFTER MATCH NO SKIP
        PATTERN (V W) SELECTION SKIP TILL NEXT MATCH DEFINE W AS {})"""
    of_boxes = """SELECT c FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES V.x || '-' || W.x AS c AFTER MATCH NO SKIP
        PATTERN (V W) SELECTION SKIP TILL NEXT MATCH DEFINE V AS PATTERN pair, W AS PATTERN pair)"""
    with opened(None, "aababb") as db:
        db.create_pattern("pair", pair)
        assert answer(db, of_rows.format("true")) == [{"c": "0-1"}, {"c": "1-3"}]
        assert answer(db, of_rows.format("t0 > V.t1")) == [{"c": "0-3"}, {"c": "1-3"}]
        assert answer(db, of_boxes) == [{"c": "0-3"}, {"c": "1-3"}]


def test_from_a_pattern_has_its_columns_and_times():
    with with_patterns(None, EVENTS) as db:
        assert answer(db, "SELECT * FROM visit ORDER BY t0") == [
            {"k": "p", "n": 2, "t0": minute(0), "t1": minute(1)}, {"k": "p", "n": 1, "t0": minute(4), "t1": minute(4)},
            {"k": "p", "n": 2, "t0": minute(7), "t1": minute(8)},
        ]
        # a SELECT that lists columns has the times too; of a pattern with boxes they are those of all layers
        assert answer(db, "SELECT * FROM lunch ORDER BY t0") == [
            {"k": "p", "m": 2, "t0": minute(0), "t1": minute(2)}, {"k": "p", "m": 9, "t0": minute(7), "t1": minute(9)}
        ]  # fmt: skip


def test_a_column_called_t0_stays():
    with opened(None, EVENTS) as db:
        db.create_pattern("visit", VISIT.replace("count(*) AS n", "min(x) AS T0"))
        assert answer(db, "SELECT * FROM visit ORDER BY T0")[0] == {"k": "p", "T0": 0, "t1": minute(1)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT count(*) AS c FROM visit AS v JOIN lunch AS l ON l.t0 = v.t0", [{"c": 2}]),
        ("SELECT count(*) AS c FROM t, visit, lunch", [{"c": 60}]),
        ("WITH big AS (SELECT * FROM Visit WHERE n > 1) SELECT count(*) AS c FROM big", [{"c": 2}]),
        ("WITH visit AS (SELECT 7 AS n) SELECT n AS c FROM visit", [{"c": 7}]),
        ("WITH visit AS (SELECT * FROM visit WHERE n = 1) SELECT count(*) AS c FROM visit", [{"c": 1}]),
        ("WITH RECURSIVE r AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM r WHERE i < 3) SELECT i AS c FROM r, lunch "
         "WHERE i = m", [{"c": 2}]),
        ("SELECT (SELECT max(m) FROM lunch) AS c", [{"c": 9}]),
        ("(SELECT max(n) AS c FROM visit) UNION ALL (SELECT m FROM lunch) ORDER BY c", [{"c": 2}, {"c": 2}, {"c": 9}]),
        ("SELECT extract(minute FROM t1) AS c FROM \"visit\" -- the last\nORDER BY t1 DESC LIMIT 1", [{"c": 8}]),
        ("FROM visit MATCH_RECOGNIZE (ORDER BY t1 MEASURES sum(n) AS c PATTERN (A A A))", [{"c": 5}]),
        ("SELECT c FROM (SELECT * FROM visit) MATCH_RECOGNIZE (ORDER BY t1 MEASURES max(n) AS c PATTERN (A A A))",
         [{"c": 2}]),
        ("WITH v AS (SELECT t1 AS ts, n FROM visit) SELECT c FROM v MATCH_RECOGNIZE (ORDER BY ts MEASURES sum(n) AS c "
         "PATTERN (A A A))", [{"c": 5}]),
        ("SELECT count(*) AS c FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts AFTER MATCH NO SKIP PATTERN (V E) "
         "SELECTION SKIP TILL NEXT MATCH DEFINE V AS PATTERN visit, E AS s = 'e') AS m, visit", [{"c": 9}]),
    ],
)  # fmt: skip
def test_from_a_pattern_anywhere(text, expected):
    with with_patterns(None, EVENTS) as db:
        assert answer(db, text) == expected


def test_a_named_table_hides_a_pattern():
    with with_patterns(None, EVENTS) as db:
        assert db.sql("SELECT * FROM visit", visit=[{"n": 7}]).arrow().to_pylist() == [{"n": 7}]


@pytest.mark.slow
def test_a_table_of_a_live_query_hides_a_pattern_and_not_those_in_patterns():
    text = "SELECT lunch.m, visit.x FROM lunch, visit"
    with with_patterns() as db:
        alerts = db.watch(text, tables={"visit": [{"x": 7}]})
        db.push("t", rows())
        db.advance("t", None)
        assert sorted(row["m"] for row in alerts.fetch().to_pylist()) == [2, 9]
        assert db.sql(text, visit=[{"x": 7}]).arrow().num_rows == 2


@pytest.mark.slow
def test_merged_with_a_pattern():
    text = """SELECT * FROM MERGE(t, lunch) MATCH_RECOGNIZE (MEASURES A.m AS m, count(*) AS n
              PATTERN (A B) DEFINE A AS m IS NOT NULL)"""
    with opened(None, EVENTS) as db:
        db.create_patterns({"visit": VISIT, "lunch": LUNCH.replace("SELECT k, m", "SELECT k, m, t1 AS ts")
                            .replace("E.x AS m", "E.x AS m, E.ts AS t1")})  # fmt: skip
        assert answer(db, text) == [{"m": 2, "n": 2}, {"m": 9, "n": 2}]


def test_alerts_and_streams_of_the_rows_of_a_pattern():
    with with_patterns() as db:
        once = db.watch("SELECT k, n FROM visit ALERT ONCE PER k WITHIN INTERVAL '1 hour'")
        db.watch("SELECT * FROM visit", into="visits", time="t1")
        joined = db.watch("""SELECT pl.at, v.n FROM t MATCH_RECOGNIZE (PARTITION BY k MEASURES B.ts AS at PATTERN (B)
            DEFINE B AS x = 9) AS pl JOIN HISTORY OF visits FROM pl.at - INTERVAL 1 HOUR TO pl.at AS v ON v.k = pl.k""")
        db.push("t", rows())
        db.advance("t", None)
        assert once.fetch().to_pylist() == [{"k": "p", "n": 2}]
        assert [row["n"] for row in joined.fetch().to_pylist()] == [2, 1, 2]


@pytest.mark.slow
def test_rows_of_a_pattern_have_ids_and_evidence():
    with with_patterns() as db:
        alerts = db.watch("SELECT n FROM visit WHERE n > 1", evidence=True)
        same = db.watch(VISIT, evidence=True)
        db.push("t", rows())
        db.advance("t", None)
        found, plain = alerts.fetch().to_pylist(), same.fetch().to_pylist()
        assert [row["n"] for row in found] == [2, 2]
        assert len({row["match_id"] for row in [*found, *plain]}) == 5  # t0 and t1 are measures: other matches
        evidence = db.sql("SELECT l.m FROM lunch AS l JOIN visit AS v ON v.t0 = l.t0").evidence()
        assert evidence.num_rows > 0


def test_copy_from_a_pattern(tmp_path):
    with with_patterns(None, EVENTS) as db:
        db.sql(f"COPY (SELECT n FROM visit ORDER BY t0) TO '{tmp_path}/v.csv'")
    assert (tmp_path / "v.csv").read_text() == "n\n2\n1\n2\n"


def test_a_pattern_of_rows_of_a_pattern():
    with with_patterns(None, EVENTS) as db:
        db.create_pattern("pair", "FROM visit MATCH_RECOGNIZE (ORDER BY t1 MEASURES sum(n) AS n PATTERN (A A))")
        assert answer(db, "SELECT n, t0, t1 FROM pair") == [{"n": 3, "t0": minute(1), "t1": minute(4)}]


def test_a_sase_statement_is_a_pattern():
    with opened(None, EVENTS) as db:
        db.sql("""CREATE PATTERN pair AS FROM t TYPE BY s PATTERN SEQ(a x, e y)
                  WHERE skip_till_next_match(x, y) { x.k = y.k } WITHIN 1 hour RETURN x.x AS a, y.x AS e""")
        assert answer(db, "SELECT a, e, t1 FROM pair ORDER BY a")[0] == {"a": 0, "e": 2, "t1": minute(2)}


@pytest.mark.slow
def test_a_sase_statement_has_boxes_of_named_patterns():
    with opened(None, EVENTS) as db:
        db.sql("""CREATE PATTERN pair AS FROM t TYPE BY s PATTERN SEQ(a x, e y)
                  WHERE skip_till_next_match(x, y) { [k] } WITHIN 1 hour RETURN x.x AS a""")
        db.sql("""CREATE PATTERN two AS FROM t TYPE BY s PATTERN SEQ(PATTERN pair+ p[])
                  WHERE skip_till_next_match(p[]) { [k] and count(p[]) = 2 } WITHIN 1 hour
                  RETURN p[1].a, p[p.LEN].a AS b""")
        sql = """SELECT a, b FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES P.a AS a, Q.a AS b
            PATTERN (P Q) SELECTION SKIP TILL NEXT MATCH DEFINE P AS PATTERN pair, Q AS PATTERN pair) ORDER BY ALL"""
        found = answer(db, "SELECT a, b FROM two ORDER BY ALL")
        assert found == answer(db, sql)
        assert {"a": 0, "b": 4} in found
        with pytest.raises(DataError, match="used by pattern two"):
            db.drop_pattern("pair")


@pytest.mark.slow
def test_history_joins_find_patterns_of_boxes():
    text = """SELECT pl.x, h.m FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES B.ts AS at, B.x AS x
        PATTERN (B) DEFINE B AS s = 'b' AND x > 3) AS pl
        JOIN HISTORY OF t FROM pl.at - INTERVAL '1 hour' TO pl.at MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts
        MEASURES E.x AS m AFTER MATCH NO SKIP PATTERN (V E) SELECTION SKIP TILL NEXT MATCH
        DEFINE V AS PATTERN visit ON n > 1, E AS s = 'e') AS h ON h.k = pl.k"""
    with with_patterns() as db:
        alerts = db.watch(text.replace("PARTITION BY k ORDER BY ts MEASURES B.ts", "PARTITION BY k MEASURES B.ts"))
        db.push("t", rows())
        db.advance("t", None)
        assert answer(db, text) == [{"x": 6, "m": 2}]
        assert alerts.fetch().to_pylist() == [{"x": 6, "m": 2}]


@pytest.mark.slow
def test_live_as_in_a_backtest():
    texts = ("SELECT * FROM lunch", "SELECT n, t1 FROM visit WHERE n > 1",
             "FROM visit MATCH_RECOGNIZE (PARTITION BY k ORDER BY t1 MEASURES sum(n) AS n PATTERN (A A))")
    with with_patterns() as db:
        alerts = [db.watch(text) for text in texts]
        db.push("t", rows())
        db.advance("t", None)
        live = [a.fetch().to_pylist() for a in alerts]
        assert live == [db.backtest(text, "2024-01-01").arrow().to_pylist() for text in texts]
        assert [len(found) for found in live] == [2, 2, 1]
        assert "define      V AS PATTERN visit" in db.explain(texts[0], "plan")


# ---- errors


def test_an_error_about_rows_of_a_pattern_names_the_pattern():
    # Before: "rows of t", the stream that the pattern reads.
    with opened() as db:
        db.create_pattern("visits", VISIT.replace("WITHIN INTERVAL '1 hour' ", ""))
        with pytest.raises(QueryError, match=r"HQ220.*rows of visits may be returned"):
            db.watch("SELECT * FROM visits MATCH_RECOGNIZE (ORDER BY t1 PATTERN (A B))")


def test_an_error_points_at_the_text_of_its_author():
    with with_patterns() as db:
        for text, place in (
            ("SELECT *\nFROM visit WHERE m > 1", "2:18"), ("WITH a AS (SELECT 1)\nSELECT nn FROM visit", "2:8"),
            ("SELECT * FROM visit MATCH_RECOGNIZE (ORDER BY t1 PATTERN (A) DEFINE A AS q > 1)", "1:74"),
        ):  # fmt: skip
            with pytest.raises(QueryError, match="HQ201") as caught:
                db.sql(text)
            assert caught.value.text == text
            assert f"--> query:{place}\n" in str(caught.value)


def test_an_error_in_the_pattern_shows_that():
    with opened() as db:
        db.create_stream("u", COLUMNS, time="ts", key="k")
        db.create_pattern("visit", VISIT.replace("FROM t", "FROM u"))
        del db._opened.streams["u"]  # as after its directory was removed by hand
        with pytest.raises(QueryError) as caught:
            db.sql("SELECT *\nFROM visit")
        assert "in pattern visit: unknown table or stream u\n" in str(caught.value)
        assert caught.value.text.startswith("SELECT * FROM u MATCH_RECOGNIZE")
        assert "--> query:1:15" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "code", "place"),
    [
        ("CREATE PATTERN v AS SELECT * FROM t\nMATCH_RECOGNIZE (PATTERN (A) DEFINE A AS q)", "HQ201", "2:42"),
        ("CREATE PATTERN v AS SELECT 1", "HQ222", "1:21"),
        ("CREATE PATTERN v SELECT 1", "HQ100", "1:18"),
        ("CREATE PATTERN v AS", "HQ100", "1:20"),
        ("CREATE PATTERN 'v' AS SELECT 1", "HQ100", "1:16"),
        ("CREATE PATTERN IF NOT EXISTS v AS SELECT 1", "HQ100", "1:16"),
        ("DROP PATTERN", "HQ100", "1:13"),
        ("DROP PATTERN v, w", "HQ100", "1:15"),
        ("CREATE PATTERN v AS SELECT * FROM nowhere MATCH_RECOGNIZE (PATTERN (A))", "HQ200", "1:35"),
        ("SELECT k FROM t MATCH_RECOGNIZE (PATTERN (A)) AS m JOIN HISTORY OF visti FROM m.x TO m.x ON true", "HQ200",
         "1:68"),
    ],
)  # fmt: skip
def test_texts_with_faults(text, code, place):
    with with_patterns() as db:
        with pytest.raises(QueryError, match=code) as caught:
            db.sql(text)
        assert f"--> query:{place}\n" in str(caught.value)
        assert list(db.patterns()) == ["visit", "lunch"]


def test_statements_about_patterns_are_of_a_database():
    with pytest.raises(QueryError, match="CREATE PATTERN is a statement of a database"):
        hybrid.sql(f"CREATE PATTERN visit AS {VISIT}", t=rows())
    with opened() as db, pytest.raises(QueryError, match="DROP PATTERN is a statement of a database"):
        db.watch("DROP PATTERN visit")
    with hybrid.connect(external=False) as db, pytest.raises(QueryError, match="external=False"):
        db.sql("DROP PATTERN visit")


def test_a_pattern_is_not_made_of_itself():
    of_lunch = LUNCH.replace("visit ON n > 1", "lunch")
    with with_patterns() as db:
        for text in (of_lunch, "SELECT * FROM lunch MATCH_RECOGNIZE (ORDER BY t1 MEASURES sum(m) AS n PATTERN (A A))"):
            with pytest.raises(QueryError, match="HQ222") as caught:
                db.create_pattern("visit", text, replace=True)
            assert "visit -> lunch -> visit" in str(caught.value)
            assert caught.value.text == text
        with pytest.raises(QueryError, match="self -> self"):
            db.create_pattern("self", LUNCH.replace("visit ON n > 1", "self"))
        assert db.patterns() == {"visit": VISIT, "lunch": LUNCH}


def test_names_that_cannot_be_patterns():
    with with_patterns() as db:
        names = {"T": "is a stream", "_v": "cannot name", "a-b": "cannot name", "v" * 201: "201 bytes",
                 "select": "is a word of SQL", "Order": "is a word of SQL", None: "cannot name"}  # fmt: skip
        for name, reason in names.items():
            with pytest.raises(DataError, match=reason):
                db.create_pattern(name, VISIT)
        with pytest.raises(DataError, match="visit is a pattern"):
            db.create_stream("Visit", COLUMNS, time="ts")
        with pytest.raises(DataError, match="already exists"):
            db.create_pattern("VISIT", LUNCH)
        db.create_pattern("visit", VISIT + " ;")  # again, unchanged


# ---- replaced and dropped


def test_a_pattern_in_use_is_not_dropped():
    with with_patterns() as db:
        alerts = db.watch("SELECT * FROM lunch")
        with pytest.raises(DataError, match="visit is used by pattern lunch, a live query"):
            db.drop_pattern("visit")
        with pytest.raises(DataError, match="lunch is used by a live query"):
            db.sql("DROP PATTERN lunch")
        alerts.close()
        assert answer(db, "DROP PATTERN Lunch;") == [{"pattern": "Lunch", "done": "dropped"}]
        db.drop_pattern("visit")
        assert db.patterns() == {}
        with pytest.raises(DataError, match="there is no pattern visit"):
            db.drop_pattern("visit")
        assert answer(db, "DROP PATTERN IF EXISTS visit") == [{"pattern": "visit", "done": "none"}]


def test_a_pattern_in_use_keeps_its_columns():
    with with_patterns() as db:
        db.create_stream("u", {**COLUMNS, "ts": "TIMESTAMP WITH TIME ZONE"}, time="ts", key="k")
        with pytest.raises(DataError, match="visit is used by pattern lunch, and would have other columns"):
            db.sql(f"CREATE OR REPLACE PATTERN visit AS {VISIT.replace('AS n', 'AS many')}")
        with pytest.raises(DataError, match="pattern lunch, which uses it, would be invalid"):
            db.create_pattern("visit", VISIT.replace("FROM t", "FROM u"), replace=True)
        db.create_pattern("visit", VISIT.replace("A+", "A A+"), replace=True)
        assert "A A+" in db.patterns()["visit"]


@pytest.mark.slow
def test_a_live_query_keeps_the_text_it_began_with(tmp_path):
    with with_patterns(tmp_path / "db") as db:
        db.watch("SELECT m FROM lunch", name="lunches")
        db.watch("SELECT n FROM visit", name="visits")
        db.push("t", rows("aa"), offset=0)
        db.create_pattern("visit", VISIT.replace("A+", "A A A+"), replace=True)
    # the queries go on after a restart, in the middle of a match, as they were
    with hybrid.connect(tmp_path / "db", maintenance=False) as db:
        alerts = db.watching()
        db.push("t", rows("ebb", 2), offset=2)
        db.advance("t", minute(120))
        assert alerts["lunches"].fetch().to_pylist() == [{"m": 2}]
        assert alerts["visits"].fetch().to_pylist() == [{"n": 2}]
        assert alerts["visits"].patterns == {"visit": VISIT}
        with pytest.raises(DataError, match="query visits runs with an earlier text of pattern visit") as caught:
            db.watch("SELECT n FROM visit", name="visits")
        assert caught.value.hint == "db.replace('visits', text) installs the query with the new text"
        with pytest.raises(DataError, match="no query has the name visit\nhint: did you mean visits"):
            db.replace("visit", "SELECT n FROM visit")
        now = db.replace("visits", "SELECT n FROM visit")
        assert now is db.watch("SELECT n FROM visit", name="visits")
        db.push("t", rows("aab", 130), offset=5)
        assert now.fetch().to_pylist() == []
        # patterns that no query uses any more can go
        alerts["lunches"].close()
        db.drop_pattern("lunch")
    with hybrid.connect(tmp_path / "db", maintenance=False) as db:
        assert list(db.watching()) == ["visits"]
        assert list(db.patterns()) == ["visit"]


# ---- kept


@pytest.mark.slow
def test_patterns_are_kept_and_other_processes_see_them(tmp_path):
    with with_patterns(tmp_path / "db", EVENTS) as db, hybrid.connect(tmp_path / "db", read_only=True) as reader:
        assert reader.patterns() == {"visit": VISIT, "lunch": LUNCH}
        db.drop_pattern("lunch")
        assert list(reader.patterns()) == ["visit"]
        assert len(answer(reader, "SELECT * FROM visit")) == 3
        with pytest.raises(DataError, match="reading only"):
            reader.drop_pattern("visit")
        with pytest.raises(DataError, match="reading only"):
            reader.sql("DROP PATTERN visit")


def test_a_crash_in_the_middle_leaves_all_or_nothing(tmp_path, monkeypatch):
    with with_patterns(tmp_path / "db") as db:

        def crash(*paths: object) -> None:
            raise OSError("the process ends")

        monkeypatch.setattr("archive.place.os.replace", crash)
        with pytest.raises(DataError, match=f"{PATTERNS} cannot be written: the process ends"):
            db.create_patterns({"a": VISIT, "b": VISIT})
        assert list(db.patterns()) == ["visit", "lunch"]
        monkeypatch.undo()
        shutil.copytree(tmp_path / "db", tmp_path / "left")
    assert (tmp_path / "left" / f"{PATTERNS}.part").exists()
    with hybrid.connect(tmp_path / "left", maintenance=False) as db:
        assert list(db.patterns()) == ["visit", "lunch"]


@pytest.mark.slow
def test_a_damaged_file_is_found_and_set_aside(tmp_path):
    with_patterns(tmp_path / "db").close()
    file = tmp_path / "db" / PATTERNS
    file.write_text(file.read_text().replace("A+", "A*"))
    with pytest.raises(DataError, match="its checksum does not match"):
        hybrid.connect(tmp_path / "db")
    done = run("archive", "verify", "-d", str(tmp_path / "db"))
    assert (done.returncode, "patterns: broken" in done.stdout) == (1, True)
    done = run("archive", "repair", "-d", str(tmp_path / "db"))
    assert f"patterns: {PATTERNS} was damaged" in done.stdout
    assert run("archive", "verify", "-d", str(tmp_path / "db")).returncode == 0
    with hybrid.connect(tmp_path / "db", maintenance=False) as db:
        assert db.patterns() == {}


@pytest.mark.slow
def test_a_copy_has_the_patterns(tmp_path):
    with with_patterns(tmp_path / "db", EVENTS) as db:
        db.snapshot(tmp_path / "copy")
        db.drop_pattern("lunch")
        db.snapshot(tmp_path / "copy")
        shutil.copytree(tmp_path / "copy", tmp_path / "one")
        db.drop_pattern("visit")
        (tmp_path / "db" / PATTERNS).unlink()
        db.snapshot(tmp_path / "copy")
    with hybrid.connect(tmp_path / "one", maintenance=False) as db:
        assert db.patterns() == {"visit": VISIT}
    with hybrid.connect(tmp_path / "copy", maintenance=False) as db:
        assert db.patterns() == {}


@pytest.mark.slow
def test_patterns_in_a_store(tmp_path):
    with s3_server(tmp_path / "s3") as server:
        with hybrid.connect("s3://bucket/db", storage_options=server.options, maintenance=False) as db:
            db.create_stream("t", COLUMNS, time="ts", key="k")
            db.create_patterns({"visit": VISIT, "lunch": LUNCH})
            db.drop_pattern("lunch")
        with hybrid.connect("s3://bucket/db", storage_options=server.options, read_only=True) as db:
            assert db.patterns() == {"visit": VISIT}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "it is not a file of named patterns"),
        ('{"version": 1}', "it is not a file of named patterns"),
        ({"version": 1, "patterns": {"visit": 5}}, "its patterns are not texts by name"),
        ({"version": 1, "patterns": ["visit"]}, "its patterns are not texts by name"),
        ({"version": 1, "patterns": {"visit": VISIT, "Visit": VISIT}}, "two of its patterns have one name"),
    ],
)
def test_a_file_of_patterns_that_is_spoilt(tmp_path, content, reason):
    # Before: "is damaged: 'sum'", "list indices must be integers", or a TypeError with the first use.
    if isinstance(content, dict):
        content = json.dumps({**content, "sum": _sum(content)})
    with opened(tmp_path / "db"):
        pass
    (tmp_path / "db" / PATTERNS).write_text(content)
    with pytest.raises(DataError, match=f"{PATTERNS} is damaged: {reason}"):
        hybrid.connect(tmp_path / "db", maintenance=False)


# ---- the command line


@pytest.mark.slow
def test_the_command_line(tmp_path):
    where = ("-d", str(tmp_path / "db"))
    opened(tmp_path / "db", EVENTS).close()
    (tmp_path / "visit.sql").write_text(f"CREATE PATTERN visit AS {VISIT};\n")
    done = run("sql", str(tmp_path / "visit.sql"), *where, "-f", "csv")
    assert done.stdout == '"pattern","done"\n"visit","created"\n'
    assert run("sql", f"CREATE PATTERN lunch AS {LUNCH}", *where).returncode == 0
    assert run("pattern", "show", "Visit", *where).stdout == f"{VISIT}\n"
    listed = run("pattern", "list", *where, "-f", "csv").stdout.splitlines()
    assert [line.split('","')[:2] for line in listed] == [['"pattern', "uses"], ['"lunch', "visit"], ['"visit', ""]]
    assert run("sql", "SELECT m FROM lunch ORDER BY m", *where, "-f", "csv").stdout == '"m"\n2\n9\n'
    assert run("check", "SELECT m FROM lunch", *where).returncode == 0
    assert run("backtest", "SELECT m FROM lunch", *where, "--from", "2024-01-01", "-f", "csv").stdout == '"m"\n2\n9\n'
    found = run("archive", "search", "SELECT m FROM lunch ORDER BY m", *where, "-f", "csv")
    assert found.stdout == '"m"\n2\n9\n'
    done = run("pattern", "drop", "visit", *where)
    assert (done.returncode, "pattern visit is used by pattern lunch" in done.stderr) == (1, True)
    assert run("pattern", "drop", "lunch", *where).returncode == 0
    assert "did you mean visit?" in run("pattern", "show", "visitt", *where).stderr


@pytest.mark.slow
def test_a_pattern_over_rows_is_no_box_and_says_so() -> None:
    # Before: "a named pattern is a SELECT from one MATCH_RECOGNIZE", which it is, as written.
    with with_patterns(None, EVENTS) as db:
        db.create_pattern("two", "SELECT k, m FROM visit MATCH_RECOGNIZE (PARTITION BY k ORDER BY t1 "
                                 "MEASURES B.n AS m PATTERN (A B))")  # fmt: skip
        assert len(answer(db, "SELECT * FROM two")) == 1
        with pytest.raises(DataError, match=r"do not come from one match each(.|\n)*evidence\(\)"):
            db.sql("SELECT * FROM two").tree()  # before: row 0 has no evidence
        said = r"in pattern two: a box takes matches .* over events, and two has 2(.|\n)*into="
        with pytest.raises(QueryError, match=said):
            db.sql("SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES V.m AS m PATTERN (V E) "
                   "SELECTION SKIP TILL NEXT MATCH DEFINE V AS PATTERN two, E AS s = 'e')")  # fmt: skip

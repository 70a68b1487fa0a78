"""Patterns searched for by Spark: the rows of the search in one process, and of one table in memory."""

from __future__ import annotations

import datetime as dt
import math
import pickle
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import hybrid
from archive.spark import search
from archive.spark.task import Search
from archive.spark.task import search as run_task
from archive.spark.told import hear_matches
from hybrid.cli import app
from hybrid.database.database import Database
from matching.purpose import Purpose
from matching.types import arrow_schema
from query.errors import DataError, HybridWarning, QueryError
from query.language.parse import parse
from query.plan.bind import bind
from query.schema import Field, Schema
from query.trend_reference import trend_rows
from tests.archive.spark.queries import COLUMNS, ENUMERATED, SIDE, statement, table, trends
from tests.hybrid.inside import flow_of, opened_of
from tests.properties.comparing import is_nightly

pytestmark = pytest.mark.spark


def rows_of(result: hybrid.Result) -> Counter[str]:
    """-0 and 0 are one key: which of them is shown is that of the first row that its column has had."""
    return Counter(re.sub(r"-0\.0\b", "0.0", repr(tuple(row.values()))) for row in result.arrow().to_pylist())


@pytest.fixture(scope="module")
def events() -> pa.Table:
    return table(Random(7), 700)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, events: pa.Table) -> Iterator[Database]:
    """The events in files of several commits, and the last of them in memory."""
    with hybrid.connect(tmp_path_factory.mktemp("database")) as db:
        db.create_stream("t", COLUMNS, time="ts", key="k")
        for start in range(0, events.num_rows, 150):
            db.push("t", events.slice(start, 150))
            if start < 450:
                db.flush()
        yield db


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tasks, inputs of few rows, and slices of time wherever they are allowed."""
    monkeypatch.setattr(search, "TASK_ROWS", 200)
    monkeypatch.setattr(search, "ROWS_TOGETHER", 50)
    monkeypatch.setattr(search, "GIANT_TASKS", 0)


@pytest.mark.usefixtures("small")
def test_random_statements_give_equal_rows(spark: Any, database: Database, events: pa.Table) -> None:
    some, seeds = 0, 300 if is_nightly() else 8
    for seed in range(seeds):
        text = statement(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HybridWarning)
            on_spark = database.sql(text, engine="spark", spark=spark, side=SIDE)
            embedded = database.sql(text, side=SIDE)
            whole = hybrid.sql(text, t=events, side=SIDE)
        assert on_spark.arrow().schema == embedded.arrow().schema, text
        assert rows_of(on_spark) == rows_of(embedded), text
        assert rows_of(on_spark) == rows_of(whole), text
        some += len(on_spark) > 0
    assert 3 * some > 2 * seeds


def reference_of(database: Database, text: str, events: pa.Table) -> list[tuple[Any, ...]]:
    """Returns the rows of windows by the reference, for measures that are bare aggregates."""
    plan = hybrid.plan(text, {"t": database.schema("t")}).factors[0].plan
    rows = [row | {"ts": us} for row, us in zip(events.to_pylist(), events["ts"].cast(pa.int64()).to_pylist())]
    return [(r.start_us, r.end_us, *r.group, *r.values) for r in trend_rows(plan, rows, [row["ts"] for row in rows])]


def as_numbers(result: hybrid.Result) -> list[tuple[Any, ...]]:
    """Returns rows of windows as the reference gives them: BIGNUM as ints, times as microseconds."""
    found = result.arrow()
    for i, name in enumerate(("window_start", "window_end")):
        found = found.set_column(i, name, found[name].cast(pa.int64()))
    bignums = {"n", "c", "s"}
    return [
        tuple(int(v) if name in bignums and v is not None else v for name, v in row.items())
        for row in found.to_pylist()
    ]


@pytest.mark.usefixtures("small")
def test_random_trends_give_equal_rows(
    spark: Any, database: Database, events: pa.Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also live, in the order of windows and groups, to the last digit of a sum of doubles; by keys and by slices of
    windows."""
    counts: Counter[str] = Counter()
    cut = search.slices
    monkeypatch.setattr(search, "slices", lambda reach, low, high, _: cut(reach, low, high, 5000))  # of a minute or so
    with hybrid.connect() as db, warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        db.create_stream("t", COLUMNS, time="ts", key="k")
        watched = [db.watch(trends(seed), sharing="none") for seed in range(16)]
        for start in range(0, events.num_rows, 90):
            db.push("t", events.slice(start, 90))
        db.advance("t", None)
        live = [alerts.fetch() for alerts in watched]
    for seed, rows in enumerate(live):
        text = trends(seed)
        by_time = seed // 8 % 2 == 0
        monkeypatch.setattr(search, "GIANT_TASKS", 0 if by_time else 1000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HybridWarning)
            on_spark = database.sql(text, engine="spark", spark=spark)
            embedded = database.sql(text)
        assert on_spark.arrow().schema == embedded.arrow().schema, text
        assert on_spark.arrow().to_pylist() == embedded.arrow().to_pylist() == rows.to_pylist(), text
        for row, wanted in zip(as_numbers(on_spark), reference_of(database, text, events), strict=True):
            assert [v for v in row if not isinstance(v, float)] == [v for v in wanted if not isinstance(v, float)], text
            floats = [v for v in wanted if isinstance(v, float)]
            assert [v for v in row if isinstance(v, float)] == pytest.approx(floats, rel=1e-12), text
        counts["rows"] += len(on_spark) > 0
        counts["enumerated"] += len(on_spark) > 0 and ENUMERATED in text
        counts["slices"] += len(on_spark) > 0 and by_time
    assert counts["rows"] > 12
    assert counts["enumerated"] > 1
    assert counts["slices"] > 5


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("text", [
    "FROM t TYPE BY s PATTERN SEQ(a x, b+ y) AND c z WHERE y.v > 2 GROUP BY k HAVING COUNT(*) > 1 "
    "WITHIN 30 SECONDS SLIDE 10 SECONDS RETURN k, COUNT(*) AS n, COUNT(*) * 2 AS m, SUM(z.v) AS s, MAX(y.w) AS w",
    "FROM t TYPE BY s PATTERN SEQ((a x OR b y), NOT c n, (SEQ(b z, a u))+) WHERE [k] AND u.v <> z.v "
    "WITHIN 60 SECONDS RETURN COUNT(*) AS n, AVG(u.v) AS m",
])  # fmt: skip
def test_trends_of_sase_by_spark(spark: Any, database: Database, text: str) -> None:
    """Pairs of AND, OR, NOT and nested groups; HAVING and measures over sums that are put together first."""
    on_spark, embedded = database.sql(text, engine="spark", spark=spark), database.sql(text)
    assert on_spark.arrow().equals(embedded.arrow())
    assert len(on_spark) > 5


def test_a_count_that_is_too_large_is_the_error_of_one_process(spark: Any, database: Database) -> None:
    text = (
        "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES COUNT(MATCHES)::TINYINT AS n ONE ROW PER WINDOW "
        "PATTERN (A+) WITHIN 1 HOUR) AS m"
    )
    said = []
    for how in ({}, {"engine": "spark", "spark": spark}):
        with pytest.raises(DataError, match="a measure cannot be computed for these windows") as error:
            database.sql(text, **how)
        said.append(str(error.value))
    assert said[0] == said[1]


def test_windows_that_spark_counts_ask_for_their_history_here(spark: Any, database: Database) -> None:
    windows = (
        "MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts GROUP BY k MEASURES COUNT(MATCHES) AS n ONE ROW PER WINDOW "
        "PATTERN (A+ B) WITHIN 20 SECONDS SLIDE 10 SECONDS DEFINE A AS v > 3, B AS s = 'b')"
    )
    text = (
        f"SELECT pl.*, pa.window_start AS before, pa.n AS more FROM t {windows} AS pl LEFT JOIN HISTORY OF t FROM "
        f"pl.window_start - INTERVAL '3' HOUR TO pl.window_start {windows} AS pa ON pa.k = pl.k AND pa.n > pl.n"
    )
    on_spark, embedded = database.sql(text, engine="spark", spark=spark), database.sql(text)
    assert on_spark.arrow().to_pylist() == embedded.arrow().to_pylist()
    assert sum(row["more"] is not None for row in embedded.arrow().to_pylist()) > 20


def test_evidence_is_that_of_one_process(spark: Any, database: Database) -> None:
    text = (
        "SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES FIRST(A.ts) AS f, B.ts AS l, B.v AS x "
        "PATTERN (A+ B) DEFINE A AS s = 'a', B AS s = 'b') AS m"
    )
    on_spark, embedded = database.sql(text, engine="spark", spark=spark), database.sql(text)
    assert rows_of(on_spark) == rows_of(embedded)

    def evidence(result: hybrid.Result) -> Counter[str]:
        lines = result.evidence().drop_columns(["row"]).to_pylist()
        return Counter(repr(sorted(line.items())) for line in lines)

    assert evidence(on_spark) == evidence(embedded)
    assert len(on_spark) > 20
    rows = on_spark.arrow().to_pylist()
    for line in on_spark.evidence().to_pylist():  # each event is of the row that it is shown with
        assert rows[line["row"]]["k"] == line["k"]
        assert rows[line["row"]]["f"] <= line["ts"] <= rows[line["row"]]["l"]


RISE = """SELECT * FROM t MATCH_RECOGNIZE ({by} ORDER BY ts MEASURES FIRST(ts) AS t0, LAST(ts) AS t1, count(*) AS n,
    LAST(B.v) - FIRST(A.v) AS up PATTERN (A B) WITHIN INTERVAL '300' SECOND {selection} DEFINE B AS v > A.v)"""
BOXES = """WITH rise AS ({rise}) SELECT * FROM t MATCH_RECOGNIZE ({by} ORDER BY ts
    MEASURES FIRST(t0) AS a, LAST(t1) AS z, C.s AS s, X.up + Y.up AS ups
    PATTERN (X C Y) WITHIN INTERVAL '7200' SECOND {selection}
    DEFINE X AS PATTERN rise, C AS s = 'c', Y AS PATTERN rise)"""
KEY, NEXT = "PARTITION BY k", "SELECTION SKIP TILL NEXT MATCH"


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(("inner", "outer"), [
    ((KEY, NEXT), (KEY, NEXT)), ((KEY, NEXT), ("", NEXT)), (("", NEXT), ("", NEXT)),
    ((KEY, NEXT), ("", "SELECTION STRICT")),
    (("PARTITION BY k, s", NEXT), (KEY, NEXT)), (("PARTITION BY k, s", NEXT), ("", "SELECTION SKIP TILL ANY MATCH")),
])  # fmt: skip
def test_boxes_by_spark(spark: Any, database: Database, inner: tuple[str, str], outer: tuple[str, str]) -> None:
    # Before: layers that are partitioned by different columns were refused.
    rise = RISE.format(by=inner[0], selection=inner[1])
    text = BOXES.format(rise=rise, by=outer[0], selection=outer[1])
    on_spark, embedded = database.sql(text, engine="spark", spark=spark), database.sql(text)
    assert rows_of(on_spark) == rows_of(embedded)
    assert on_spark.evidence().num_rows == embedded.evidence().num_rows
    assert len(embedded) > 5


def test_joined_history_stays_here(spark: Any, database: Database) -> None:
    text = (
        "SELECT pl.k, pl.f, pa.x FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.ts AS f, B.v AS v "
        "PATTERN (A B) DEFINE A AS v > 6, B AS v > 7) AS pl JOIN HISTORY OF t FROM pl.f - INTERVAL 10 HOUR TO pl.f "
        "MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES C.v AS x PATTERN (C D) DEFINE D AS v < C.v) AS pa "
        "ON pa.k = pl.k AND pa.x > pl.v"
    )
    on_spark, embedded = database.sql(text, engine="spark", spark=spark), database.sql(text)
    assert rows_of(on_spark) == rows_of(embedded)
    assert len(on_spark) > 3
    assert on_spark.evidence().num_rows == embedded.evidence().num_rows


PATTERN = "MATCH_RECOGNIZE (PARTITION BY k ORDER BY {} MEASURES A.v AS x PATTERN (A B) DEFINE B AS v > A.v) AS m"


@pytest.mark.parametrize(("text", "says"), [
    ("SELECT count(*) FROM t", "without a pattern"),
    (f"SELECT * FROM side {PATTERN.format('x').replace('k', 'y').replace('v', 'x')}", "without a pattern"),
    (f"SELECT * FROM (SELECT * FROM t WHERE v > 1) AS q {PATTERN.format('ts')}", "a SELECT as the input"),
    (f"SELECT * FROM t {PATTERN.format('ts, v')}", "ORDER BY v"),
])  # fmt: skip
def test_what_spark_does_not_do_is_said(database: Database, text: str, says: str) -> None:
    with pytest.raises(QueryError) as error:
        database.sql(text, engine="spark", spark="no master, for nobody asks it", side=SIDE)
    assert error.value.diagnostics[0].code == "HQ500"
    assert says in str(error.value)


def test_engines_and_masters_that_are_none(database: Database) -> None:
    with pytest.raises(QueryError, match="HQ500"):
        database.sql("SELECT 1", engine="flink")
    with hybrid.connect() as memory:
        memory.create_stream("t", COLUMNS, time="ts", key="k")
        with pytest.raises(DataError, match="kept in memory"):
            memory.sql(f"SELECT * FROM t {PATTERN.format('ts')}", engine="spark")


def test_errors_of_tasks_are_those_of_one_process(spark: Any, database: Database) -> None:
    cast = (
        "SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.v AS x PATTERN (A B) {} "
        "DEFINE A AS CAST(replace(s, 'a', '1') AS INTEGER) = 1) AS m"
    )
    stuck = (
        "SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.v AS x AFTER MATCH SKIP TO A "
        "PATTERN (A B) DEFINE B AS v > A.v) AS m"
    )
    sliced = cast.format("WITHIN INTERVAL 1 MINUTE SELECTION SKIP TILL ANY MATCH")
    for text, kind in ((cast.format(""), DataError), (sliced, DataError), (stuck, QueryError)):
        with pytest.raises(kind) as one:
            database.sql(text)
        with pytest.raises(kind) as other:
            database.sql(text, engine="spark", spark=spark)
        assert "Py4J" not in str(other.value)
        assert str(other.value).splitlines()[0] == str(one.value).splitlines()[0]


def test_files_that_are_gone(spark: Any, tmp_path: Path) -> None:
    with hybrid.connect(tmp_path / "db") as db:
        db.create_stream("t", COLUMNS, time="ts", key="k")
        db.push("t", table(Random(1), 20))
        db.flush()
        for file in (tmp_path / "db").rglob("*.parquet"):
            if "_delta_log" not in file.parts:
                file.rename(file.with_suffix(".gone"))
        with pytest.raises(DataError, match=r"the archive of t in .* cannot be read"):
            db.sql(f"SELECT * FROM t {PATTERN.format('ts')}", engine="spark", spark=spark)


def test_late_rows_ties_and_sources(spark: Any, tmp_path: Path, small: None) -> None:
    """The total order of a stream, which no column of its rows tells: tie columns, source, offset; and late rows."""
    random = Random(3)
    columns = {"ts": "TIMESTAMP", "k": "VARCHAR", "x": "DOUBLE", "n": "BIGINT"}
    text = (
        "SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY {} ORDER BY ts MEASURES list(n) AS ns "
        "AFTER MATCH SKIP PAST LAST ROW PATTERN (A{{1,7}})) AS m"
    )
    with hybrid.connect(tmp_path / "db [with] {signs} *") as db:
        db.create_stream("t", columns, time="ts", key="k", order=["x"], lateness="1s")
        n = 0
        for batch in range(12):
            rows = []
            for _ in range(40):
                back = 20 if random.random() < 0.1 else random.randint(0, 1)
                rows.append({
                    "ts": dt.datetime(2024, 1, 1) + dt.timedelta(seconds=batch * 2 - back),
                    "k": random.choice(("a", "b", None)), "n": n,
                    "x": random.choice((0.0, -0.0, 1.5, -2.0, math.nan, math.inf, None)),
                })  # fmt: skip
                n += 1
            db.push("t", pa.Table.from_pylist(rows), source=random.choice(("ä", "z", "default")))
            if batch % 3 == 0:
                db.flush()
        assert db.streams()["t"]["late"] > 5
        for late in (True, False):
            for by in ("k", "x", "x, k"):
                on_spark = db.sql(text.format(by), late=late, engine="spark", spark=spark)
                embedded = db.sql(text.format(by), late=late)
                assert rows_of(on_spark) == rows_of(embedded), (late, by)


def test_columns_of_all_types(spark: Any, tmp_path: Path, small: None) -> None:
    """What a file can hold comes through Spark as it comes through DuckDB, as column, key and tie column."""
    types = {
        "b": ("BOOLEAN", (True, False)), "i1": ("TINYINT", (-1, 7)), "i2": ("SMALLINT", (-300, 7)),
        "u1": ("UTINYINT", (255, 0)), "u2": ("USMALLINT", (65_535, 0)), "u4": ("UINTEGER", (2**32 - 1, 0)),
        "u8": ("UBIGINT", (2**64 - 1, 2**63)), "i8": ("BIGINT", (2**63 - 1, -(2**63))), "f4": ("FLOAT", (1.5, -0.0)),
        "f8": ("DOUBLE", (math.nan, 0.0)), "d": ("DECIMAL(9,2)", (Decimal("1.25"), Decimal("-3.00"))),
        "h": ("HUGEINT", (Decimal(10**30), Decimal(-1))), "s": ("VARCHAR", ("ä", "")), "y": ("BLOB", (b"\\x00", b"z")),
        "day": ("DATE", (dt.date(2024, 1, 1), dt.date(1500, 2, 3))), "t": ("TIME", (dt.time(1, 2, 3, 4), dt.time(0))),
        "n": ("TIMESTAMP", (dt.datetime(1900, 1, 1), dt.datetime(2100, 1, 1))),
        "z": ("TIMESTAMPTZ", (dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(1999, 1, 1, tzinfo=dt.UTC))),
        "l": ("INTEGER[]", ([1, None], [])), "o": ("STRUCT(a INTEGER, b VARCHAR)", ({"a": 1, "b": None}, None)),
        "m": ("MAP(VARCHAR, INTEGER)", ([("a", 1)], [])),
    }  # fmt: skip
    random = Random(5)
    rows = [
        {name: random.choice((*values, None)) for name, (_, values) in types.items()}
        | {"ts": dt.datetime(2024, 1, 1) + dt.timedelta(seconds=i // 3)}
        for i in range(90)
    ]
    columns = {"ts": "TIMESTAMP"} | {name: type for name, (type, _) in types.items()}
    with hybrid.connect(tmp_path) as db:
        db.create_stream("t", columns, time="ts", order=["f8", "d", "u8", "y", "s"])
        schema = arrow_schema(flow_of(db).streams["t"].schema)
        db.push("t", pa.Table.from_pylist(rows, schema=schema))
        match = "MATCH_RECOGNIZE (PARTITION BY {} ORDER BY ts ALL ROWS PER MATCH PATTERN (A{{1,2}})) AS m"
        shown = f"SELECT * FROM t {match}"
        for by in (*types, "b, l", "f4, f8"):
            on_spark = db.sql(shown.format(by), engine="spark", spark=spark)
            assert on_spark.arrow().schema == db.sql(shown.format(by)).arrow().schema
            assert rows_of(on_spark) == rows_of(db.sql(shown.format(by))), by


GIANT = (
    "SELECT * FROM g MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.ts AS f, A.v AS x, last(B.v) AS y, "
    "count(*) AS n {} PATTERN (A B+ C) {} DEFINE A AS v > 90, B AS v < 5, C AS v > 95) AS m"
)
SKIPPING = ("AFTER MATCH SKIP TO NEXT ROW", "WITHIN INTERVAL 20 SECOND SELECTION SKIP TILL NEXT MATCH")


@pytest.fixture(scope="module")
def giant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """One key with nearly all of the rows, in one task's hands; among the others is null."""
    n = 200_000
    rng = np.random.default_rng(1)
    with hybrid.connect(tmp_path_factory.mktemp("giant")) as db:
        db.create_stream("g", {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "BIGINT"}, time="ts", key="k")
        keys = np.where(rng.random(n) < 0.99, "giant", rng.integers(0, 300, n).astype(str))
        columns = {
            "ts": pa.array(np.arange(n) * 1_000_000, pa.timestamp("us")),
            "k": pa.array(keys, pa.string(), mask=keys == "7"), "v": pa.array(rng.integers(0, 100, n)),
        }  # fmt: skip
        db.push("g", pa.table(columns))
        yield db


@pytest.mark.parametrize("clauses", [("", ""), SKIPPING])
def test_a_giant_key(
    spark: Any, giant: Database, clauses: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key of more rows than tasks take together goes through in batches; where it may be cut by time, it is."""
    monkeypatch.setattr(search, "TASK_ROWS", 40_000)
    monkeypatch.setattr(search, "ROWS_TOGETHER", 10_000)
    asked: list[Search] = []

    def note(session: Any, archived: search.Archived, frame: Any, wanted: Search, tasks: int) -> Any:
        asked.append(wanted)
        return ask(session, archived, frame, wanted, tasks)

    ask = search._ask
    monkeypatch.setattr(search, "_ask", note)
    text = GIANT.format(*clauses)
    on_spark, embedded = giant.sql(text, engine="spark", spark=spark), giant.sql(text)
    assert rows_of(on_spark) == rows_of(embedded)
    assert len(on_spark) > (100 if clauses == SKIPPING else 10)
    assert [wanted.slices is not None for wanted in asked] == [clauses == SKIPPING]


def test_a_task_holds_few_rows_of_a_giant_key() -> None:
    """Batches of one partition, without end, come out of a task as they go in."""
    schema = Schema("g", (Field("ts", "TIMESTAMP"), Field("k", "VARCHAR"), Field("v", "BIGINT")), time="ts")
    text = GIANT.format("", "")
    plan = bind(parse(text), lambda name: schema).factors[0].plan
    taken = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        rng = np.random.default_rng(2)
        for i in range(200):
            n = 4096
            at = np.arange(i * n, (i + 1) * n)
            taken = i
            yield pa.RecordBatch.from_pydict(
                {
                    "ts": pa.array(at * 1000, pa.timestamp("us", "America/New_York")), "k": pa.array(["g"] * n),
                    "v": pa.array(rng.integers(0, 100, n)), "_source": pa.array(["default"] * n), "_offset": at,
                    "_seq": at,
                }
            )  # fmt: skip

    wanted = Search(plan, ("default",), None, ("k",), Purpose.MATCHES, None, 10_000)
    answer = run_task(pickle.dumps(wanted), batches())
    first = next(answer)
    assert not first.column("failed")[0].as_py()
    assert taken <= 5, "the first matches come before the partition is read"
    matches = [hear_matches(part.column("payload")[0].as_py()) for part in (first, *answer)]
    assert taken == 199
    assert sum(map(len, matches)) > 100


def test_command_line(spark: Any, database: Database, tmp_path: Path) -> None:
    """hybrid archive search: the same rows in this process and by Spark."""
    query = tmp_path / "query.sql"
    query.write_text(f"SELECT * FROM t {PATTERN.format('ts')} ORDER BY k, x")
    given = ["archive", "search", str(query), "-d", str(opened_of(database).path), "--format", "csv"]
    database.flush()
    sizes = []
    for more in ([], ["--from", "2023-11-15", "--to", "2023-11-16"], ["--evidence"]):
        here, there = (CliRunner().invoke(app, [*given, *more, *by]) for by in ([], ["--spark", "local[2]"]))
        assert here.exit_code == 0, here.output
        assert sorted(here.stdout.splitlines()) == sorted(there.stdout.splitlines())
        sizes.append(len(here.stdout.splitlines()))
    assert sizes[2] > sizes[0] > sizes[1] > 20
    nowhere = CliRunner().invoke(app, [*given[:4], str(tmp_path / "nowhere")])
    assert isinstance(nowhere.exception, DataError)


def test_columns_that_came_later(spark: Any, tmp_path: Path) -> None:
    """Files from before a column was added have nulls there."""
    with hybrid.connect(tmp_path) as db:
        columns = {"ts": "TIMESTAMP", "k": "VARCHAR"}
        db.create_stream("t", columns, time="ts", key="k")
        start = dt.datetime(2024, 1, 1)
        db.push("t", [{"ts": start + dt.timedelta(seconds=i), "k": "a"} for i in range(5)])
        db.flush()
        db.create_stream("t", {**columns, "v": "BIGINT", "l": "VARCHAR[]"}, time="ts", key="k")
        later = [{"ts": start + dt.timedelta(seconds=i), "k": "a", "v": i, "l": ["x"]} for i in range(5, 9)]
        db.push("t", later)
        text = "SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts ALL ROWS PER MATCH PATTERN (A B*)) AS m"
        on_spark = db.sql(text, engine="spark", spark=spark)
        assert rows_of(on_spark) == rows_of(db.sql(text))
        assert on_spark.arrow().column("v").to_pylist() == [None] * 5 + [5, 6, 7, 8]


def test_several_patterns_and_sase(spark: Any, database: Database) -> None:
    two = (
        f"SELECT m.x, n.y FROM t {PATTERN.format('ts')} JOIN t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES "
        "A.w AS y PATTERN (A B) DEFINE A AS w > 6, B AS w > A.w) AS n ON n.k = m.k AND n.y = m.x"
    )
    sase = (
        "FROM t PATTERN SEQ(t a, t b) WHERE skip_till_next_match(a, b) { [k] and a.s = 'a' and b.v > a.v } "
        "WITHIN 20 seconds RETURN a.v AS x, b.v AS y"
    )
    nested = (
        f"SELECT * FROM (SELECT k, x, x AS y FROM t {PATTERN.format('ts')}) AS q MATCH_RECOGNIZE (PARTITION BY k "
        "ORDER BY y MEASURES first(x) AS f, count(*) AS n PATTERN (A{2})) AS z"
    )
    for text in (two, sase, nested):
        on_spark, embedded = database.sql(text, engine="spark", spark=spark), database.sql(text)
        assert rows_of(on_spark) == rows_of(embedded)
        assert len(on_spark) > 5


def test_columns_with_dots(spark: Any, tmp_path: Path) -> None:
    # Before: Spark took `a.b` for the field b of a column a.
    text = """SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY "k.`l" ORDER BY ts MEASURES LAST("a.b") AS b
        AFTER MATCH SKIP TO NEXT ROW PATTERN (A B) WITHIN INTERVAL 1 DAY DEFINE B AS "a.b" > A."a.b") AS m"""
    with hybrid.connect(tmp_path) as db:
        db.create_stream("t", {"ts": "TIMESTAMP", "a.b": "BIGINT", "k.`l": "VARCHAR"}, time="ts")
        start = dt.datetime(2024, 1, 1)
        db.push("t", [{"ts": start + dt.timedelta(hours=i), "a.b": i % 5, "k.`l": "xy"[i % 3 > 0]} for i in range(40)])
        on_spark, embedded = db.sql(text, engine="spark", spark=spark), db.sql(text)
        assert rows_of(on_spark) == rows_of(embedded)
        assert len(embedded) > 10

"""What the text of a query reaches: under external=False its streams and tables, the files that were named, and nothing
else."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hybrid
from hybrid.rows import duck
from hybrid.service.app_file import AppError, load
from hybrid.service.service import Service
from query.language.duck import quiet_connection
from tests.properties.comparing import is_nightly

START = datetime(2024, 1, 1)
EVENTS = [{"ts": START + timedelta(seconds=i), "k": "a", "v": i} for i in range(5)]
PATTERN = "MATCH_RECOGNIZE (ORDER BY ts MEASURES {0} AS m PATTERN (A) DEFINE A AS {1})"
ANY = PATTERN.format("A.v", "true")
SECRET = "xyzzy" + secrets.token_hex(8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of each kind that DuckDB reads, with a word in them that no answer may hold."""
    folder = tmp_path_factory.mktemp(SECRET)
    table = pa.table({"secret": [SECRET], "v": [1]})
    pq.write_table(table, folder / "a.parquet")
    (folder / "a.csv").write_text(f"secret,v\n{SECRET},1\n")
    (folder / "a.json").write_text(f'{{"secret": "{SECRET}", "v": 1}}\n')
    (folder / "a.txt").write_text(SECRET)
    with duckdb.connect(folder / "a.duckdb") as kept:
        kept.execute(f"CREATE TABLE t AS SELECT '{SECRET}' AS secret")
    return folder


@pytest.fixture(scope="module")
def db() -> Iterator[hybrid.Database]:
    with hybrid.connect(external=False) as db:
        db.create_stream("t", {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "BIGINT"}, "ts")
        db.push("t", EVENTS)
        yield db


def everything_in(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


def ways(file: str) -> dict[str, str]:
    """Statements that read a file, in each place of a statement."""
    read = f"read_csv('{file}')"
    return {
        "FROM": f"SELECT * FROM '{file}'",
        "function": f"SELECT * FROM {read}",
        "input": f"SELECT * FROM (SELECT secret, v, v AS ts FROM {read}) {PATTERN.format('A.secret', 'true')}",
        "outer SELECT": f"SELECT m.*, c.secret FROM t {ANY} AS m JOIN {read} AS c ON true",
        "outer subquery": f"SELECT m.*, (SELECT max(secret) FROM {read}) AS s FROM t {ANY} AS m",
        "DEFINE": f"SELECT * FROM t {PATTERN.format('A.v', f'(SELECT count(*) FROM {read}) = 1')}",
        "MEASURES": f"SELECT * FROM t {PATTERN.format(f'(SELECT max(secret) FROM {read})', 'true')}",
        "WITH": f"WITH c AS (SELECT * FROM {read}) SELECT m.*, c.secret FROM t {ANY} AS m JOIN c ON true",
        "query()": f"SELECT * FROM query('SELECT * FROM ''{file}''')",
        "query_table()": f"SELECT * FROM query_table('{file}')",
        "HISTORY": f"SELECT * FROM t {ANY} AS pl JOIN HISTORY OF t FROM (SELECT min(ts) FROM {read}) TO pl.ts ON true",
    }


# Before: all but the subqueries in patterns and HISTORY answered, with the file's content; `db.watch` too.
@pytest.mark.parametrize("way", ways(""))
def test_a_query_reads_no_file(db: hybrid.Database, folder: Path, way: str) -> None:
    text = ways(str(folder / "a.csv"))[way]
    asked = [db.sql, db.explain, db.rows_of, db.watch, lambda text: db.backtest(text, START)]
    for ask in asked:
        with pytest.raises(hybrid.QueryError) as caught:
            ask(text)
        assert SECRET not in str(caught.value).replace(folder.name, "")
    if way in ("FROM", "outer SELECT"):
        with pytest.raises(hybrid.QueryError, match="hint: only files that were named may be read"):
            db.sql(text)


def test_a_pattern_over_a_pattern_reads_no_file(db: hybrid.Database, folder: Path) -> None:
    """The SELECT between two patterns, which a live query runs by itself."""
    below = "MATCH_RECOGNIZE (ORDER BY ts MEASURES A.ts AS ts PATTERN (A) DEFINE A AS true) AS m"
    inner = f"SELECT m.*, c.secret FROM t {below} JOIN '{folder / 'a.csv'}' AS c ON true"
    text = f"SELECT * FROM ({inner}) {PATTERN.format('A.secret', 'true')}"
    for ask in (db.sql, db.watch, lambda text: db.backtest(text, START)):
        with pytest.raises(hybrid.QueryError, match="Cannot access file"):
            ask(text)
    with hybrid.connect() as free:
        free.create_stream("t", {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "BIGINT"}, "ts")
        alerts = free.watch(text)
        free.push("t", EVENTS)
        free.advance("t", None)
        assert set(alerts.fetch()["m"].to_pylist()) == {SECRET}


def test_a_table_that_is_the_name_of_a_file(db: hybrid.Database, folder: Path) -> None:
    file = str(folder / "a.parquet")
    for ask in (
        lambda: db.sql("SELECT * FROM x", x=file),
        lambda: db.watch(f"SELECT m.*, x.secret FROM t {ANY} AS m JOIN x ON true", tables={"x": file}),
        lambda: db.watch(f"SELECT m.*, x.secret FROM t {ANY} AS m JOIN x ON true", name="q", tables={"x": file}),
        lambda: db.explain("SELECT * FROM x", tables={"x": file}),
    ):
        with pytest.raises(hybrid.DataError, match=r"Cannot access file(.|\n)*hint: only files that were named"):
            ask()
    assert db.sql("SELECT * FROM x", x=pa.table({"a": [1]})).arrow().to_pylist() == [{"a": 1}]


# Before: of two statements each was run, also one that writes a file, or puts a macro in the place of a function for
# every statement after it.
@pytest.mark.slow
def test_one_statement_that_writes_nothing(db: hybrid.Database, folder: Path) -> None:
    before, new = everything_in(folder), folder / "new.csv"
    for text in (
        f"COPY (SELECT * FROM t) TO '{new}'",
        f"COPY (SELECT * FROM t {ANY}) TO '{new}'",
        f"SELECT 1; COPY (SELECT 1) TO '{new}'",
        f"COPY (SELECT 1) TO '{new}'; SELECT 1",
        f"WITH a AS (COPY (SELECT 1) TO '{new}') SELECT 1",
        f"WITH a AS (COPY (SELECT 1) TO '{new}') SELECT * FROM t {ANY}",
        f"WITH b AS (WITH a AS (COPY (SELECT 1) TO '{new}') SELECT 1) SELECT * FROM b",
        f"WITH a AS (COPY (SELECT 1) TO '{new}') PIVOT (SELECT 1 AS x, 2 AS y) ON x USING sum(y)",
        f"SELECT * FROM query('WITH a AS (COPY (SELECT 1) TO ''{new}'') SELECT 1')",
        f"ATTACH '{new}'", f"EXPORT DATABASE '{new}'", f"EXPLAIN ANALYZE COPY (SELECT 1) TO '{new}'",
        "SET enable_external_access = true", "SELECT 1; SET enable_external_access = true", "RESET lock_configuration",
        "PRAGMA enable_profiling", f"PRAGMA profile_output = '{new}'", "INSTALL httpfs", "LOAD httpfs",
        f"CALL enable_logging('QueryLog', storage = 'file', storage_path = '{new}')",
        f"SELECT * FROM enable_logging('QueryLog', storage = 'file', storage_path = '{new}')",
        "SELECT 1; CREATE MACRO lower(x) AS 'hacked'", "CREATE SECRET s (TYPE s3)", "SELECT 1; CREATE TABLE x(a INT)",
        "SELECT * FROM duckdb_secrets()", "SELECT * FROM duckdb_extensions()", "SELECT * FROM 'http://127.0.0.1:9/a.csv'",
        "SELECT * FROM read_csv('s3://bucket/a.csv')", "SELECT * FROM read_text('/dev/stdin')",
        "SELECT getenv('HOME')", "SELECT * FROM EVENTS", "SELECT * FROM read_csv('/proc/self/environ')",
    ):  # fmt: skip
        with pytest.raises(hybrid.QueryError):
            db.sql(text)
    assert everything_in(folder) == before
    assert db.sql("SELECT lower('A') AS a").arrow().to_pylist() == [{"a": "a"}]
    with pytest.raises(hybrid.QueryError, match="expected one statement"):
        hybrid.sql("SELECT 1; SELECT 2")


def calls(function: str, parameters: list[str], file: str) -> Iterator[str]:
    """Calls of a table function with a file in each place where a text fits, and by name."""
    values = {"VARCHAR": f"'{file}'", "VARCHAR[]": f"['{file}']", "ANY": f"'{file}'"}
    options = [[values.get(p, "1"), "1"] if p in values else ["1", f"'{file}'"] for p in parameters]
    for arguments in itertools.islice(itertools.product(*options), 4):
        yield f"{function}({', '.join(arguments)})"


# Before: read_text and 24 others gave the content away, and glob the names.
@pytest.mark.slow
def test_no_table_function_of_duckdb_gives_a_file_away(db: hybrid.Database, folder: Path) -> None:
    found = duckdb.connect().execute(
        "SELECT DISTINCT function_name, parameter_types FROM duckdb_functions() WHERE function_type LIKE 'table%' "
        "AND function_name NOT IN ('range', 'generate_series', 'repeat', 'test_vector_types') ORDER BY ALL"
    )
    functions = found.fetchall()
    assert len(functions) > 60
    here, before = everything_in(folder), set(os.listdir())
    files = [str(folder / name) for name in ("a.parquet", "a.csv", "a.json", "a.txt", "a.duckdb", "*")]
    answered, refused = set(), set()
    asked = [call for function, parameters in functions for file in files for call in calls(function, parameters, file)]
    # By night all; else a fifth, which is each function with some file, and those that read files with each.
    for call in list(dict.fromkeys(asked))[:: 1 if is_nightly() else 5]:
        function = call.partition("(")[0]
        try:
            answer = str(db.sql(f"SELECT * FROM {call} LIMIT 20").arrow().to_pylist())
            answered.add(function)
        except hybrid.QueryError as error:
            refused.add(function)
            answer = str(error)
        except hybrid.DataError as error:  # a type of DuckDB's own that Arrow lacks
            answer = str(error)
        assert SECRET not in answer.replace(folder.name, ""), call
        assert "a.parquet" not in answer.replace(str(folder / "a.parquet"), ""), call
    reading = {"glob", "read_blob", "read_csv", "read_json", "read_parquet", "read_text", "sniff_csv"}
    assert reading <= refused - answered
    assert everything_in(folder) == here
    assert set(os.listdir()) == before


def test_what_we_evaluate_ourselves_has_no_files(folder: Path) -> None:
    """Typing, folding, conditions: their connections are ours, and no query needs a file there."""
    for connection in (quiet_connection(), duck.cursor(), duck.cursor("100MB")):
        opened = "SET enable_external_access = true"
        for text in (f"SELECT * FROM '{folder / 'a.csv'}'", opened, f"ATTACH '{folder}/x'"):
            with pytest.raises(duckdb.Error):
                connection.sql(text)


@pytest.mark.slow
def test_spilling_still_works_and_its_place_is_nobody_elses() -> None:
    connection = duck.cursor("60MB")
    (count,) = connection.sql("SELECT count(*) FROM (FROM range(3_000_000) ORDER BY hash(range))").fetchall()[0]
    assert count == 3_000_000
    (place,) = connection.sql("SELECT current_setting('temp_directory')").fetchall()[0]
    (other,) = duck.cursor("60MB").sql("SELECT current_setting('temp_directory')").fetchall()[0]
    assert len(os.path.basename(place)) > 30
    assert place != other


@pytest.mark.slow
def test_large_streams_are_read_from_their_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DuckDB selects from the archive's files by itself: these may be read, others may not, and none is written."""
    monkeypatch.setattr("hybrid.statement.relations.WHOLE_ROWS_MAX", 3)
    with hybrid.connect(tmp_path / "db", external=False) as db:
        db.create_stream("t", {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "BIGINT"}, "ts")
        db.push("t", EVENTS)
        db.flush()
        assert db.sql("SELECT sum(v) AS s FROM t").arrow().to_pylist() == [{"s": 10}]
        (file,) = (tmp_path / "db" / "t").rglob("*.parquet")
        before = file.read_bytes()
        for text in (
            f"COPY (SELECT * FROM t) TO '{file}' (FORMAT parquet, USE_TMP_FILE false)",
            f"WITH a AS (COPY (SELECT 1) TO '{file}' (FORMAT parquet, USE_TMP_FILE false)) SELECT * FROM t",
            f"SELECT * FROM t, glob('{file.parent}/*')",
        ):
            with pytest.raises(hybrid.QueryError):
                db.sql(text)
        assert file.read_bytes() == before


def test_files_that_were_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "ref").mkdir()
    (tmp_path / "ref" / "b.csv").write_text("secret\nb\n")
    (tmp_path / "other.csv").write_text("secret\nother\n")
    with hybrid.connect(external=False, files=[folder / "a.csv", tmp_path / "ref"]) as db:
        for file in (folder / "a.csv", tmp_path / "ref" / "b.csv", tmp_path / "ref" / "*.csv"):
            assert db.sql(f"SELECT count(*) AS n FROM read_csv('{file}')").arrow().to_pylist() == [{"n": 1}]
        for file in ("other.csv", "ref/../other.csv", "*.csv", "re*/b.csv"):
            with pytest.raises(hybrid.QueryError, match="Cannot access file"):
                db.sql(f"SELECT * FROM read_csv('{tmp_path / file}')")
        with pytest.raises(hybrid.QueryError):
            db.sql(f"COPY (SELECT 1) TO '{tmp_path}/ref/new.csv'")
    assert not (tmp_path / "ref" / "new.csv").exists()
    with pytest.raises(hybrid.DataError, match=r"file nowhere\.csv does not exist"):
        hybrid.connect(external=False, files=["nowhere.csv"])
    with pytest.raises(hybrid.DataError, match="files has no effect"):
        hybrid.connect(files=[folder])


@pytest.mark.slow
def test_a_connection_whose_configuration_is_locked(folder: Path) -> None:
    """The other way to forbid it. Before: every statement on such a connection was refused."""
    connection = duckdb.connect()
    connection.execute("CREATE TABLE q AS SELECT 1 AS ts, 2 AS v")
    connection.execute("SET enable_external_access = false; SET lock_configuration = true")
    assert hybrid.sql(f"SELECT * FROM q {ANY}", connection).arrow().to_pylist() == [{"m": 2}]
    for text in (f"SELECT nothing FROM q {ANY}", f"SELECT * FROM '{folder}/a.csv'"):
        with pytest.raises(hybrid.QueryError):
            hybrid.sql(text, connection)


APP = """
[database]
path = "db"
{files}
[streams.t]
columns = {{ ts = "TIMESTAMP", k = "VARCHAR" }}
time = "ts"
[sources.s]
type = "file"
path = "in.ndjson"
stream = "t"
follow = false
[sinks.out]
type = "file"
path = "out.ndjson"
[queries.q]
sql = '''SELECT m.ts, r.name FROM t MATCH_RECOGNIZE (
  ORDER BY ts MEASURES A.ts AS ts, A.k AS k PATTERN (A) DEFINE A AS true
) AS m JOIN '{directory}/ref.csv' AS r ON r.k = m.k'''
sinks = ["out"]
"""


def app_at(directory: Path, files: str) -> Path:
    file = directory / "app.toml"
    file.write_text(APP.format(files=files, directory=directory))
    (directory / "ref.csv").write_text("k,name\na,first\n")
    (directory / "in.ndjson").write_text('{"ts": "2024-01-01 00:00:00", "k": "a"}\n')
    return file


@pytest.mark.slow
def test_no_scalar_function_of_duckdb_gives_a_file_away(folder: Path) -> None:
    """These stand in DEFINE and MEASURES, too."""
    connection = duck.cursor()
    found = connection.execute(
        "SELECT DISTINCT function_name FROM duckdb_functions() WHERE function_type IN ('scalar', 'macro') "
        "AND parameter_types[1] IN ('VARCHAR', 'ANY', 'T') AND function_name SIMILAR TO '[a-z_0-9]+' ORDER BY ALL"
    )
    names = [name for (name,) in found.fetchall()]
    assert len(names) > 100
    for name in names:
        for file in (folder / "a.txt", folder / "a.csv"):
            try:
                answer = str(connection.execute(f"SELECT {name}('{file}')").fetchall())
            except (duckdb.Error, ValueError) as error:
                answer = str(error)
            assert SECRET not in answer.replace(folder.name, ""), name


# Before: a service read whatever file a query named.
@pytest.mark.slow
@pytest.mark.parametrize("files", ['files = "ref.csv"', 'files = ["ref.csv"]', 'files = ["."]'])
def test_a_service_reads_what_its_file_names(tmp_path: Path, files: str) -> None:
    assert Service(load(app_at(tmp_path, files)), print).run() == 0
    assert '"name":"first"' in (tmp_path / "out.ndjson").read_text().replace(" ", "")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ("", r"HQ100.*Cannot access file"),
        ('files = "nowhere.csv"', r"HQ703.*file nowhere.csv does not exist"),
        ('files = ["ref.csv", "nowhere.csv"]', r"HQ703.*file nowhere.csv does not exist"),
        ("files = 3", r"HQ703.*files is 3"),
    ],
)
def test_a_service_without_them(tmp_path: Path, files: str, said: str) -> None:
    with pytest.raises(AppError, match=said):
        load(app_at(tmp_path, files))




def test_one_path_is_one_path(tmp_path):
    # Before: each letter was a path, and that of the root opened everything.
    (tmp_path / "mine.txt").write_text("mine")
    with hybrid.connect(external=False, files=str(tmp_path)) as db:
        assert db.sql(f"SELECT content FROM read_text('{tmp_path}/mine.txt')").arrow().num_rows == 1
        with pytest.raises(hybrid.QueryError):
            db.sql("SELECT * FROM read_text('/etc/passwd')")

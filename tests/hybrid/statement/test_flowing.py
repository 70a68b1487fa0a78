"""Large inputs are matched while they are read: the same rows, evidence and errors, in memory that does not grow."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybrid
from hybrid.rows import inputs
from hybrid.statement import flowing
from tests.properties.comparing import fewer

FALLS = """SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts
  MEASURES A.v AS high, LAST(B.n) AS low, A.ts AS start PATTERN (A B+) DEFINE B AS v < PREV(v))"""


@pytest.fixture(autouse=True)
def flows(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Inputs of 1,000 rows flow. Returns what happened to each input: 'whole', 'flowing', 'out of order'."""
    happened: list[str] = []
    monkeypatch.setattr(flowing, "ROWS_MIN", 1_000)
    monkeypatch.setattr(inputs, "BATCH_ROWS", 500)
    of, batches = flowing.Flowing.of, flowing.Flowing.batches

    def begun(*arguments: Any) -> Any:
        found = of(*arguments)
        happened.append("flowing" if isinstance(found, flowing.Flowing) else "whole")
        return found

    def told(self: flowing.Flowing) -> Iterator[Any]:
        try:
            yield from batches(self)
        except flowing.OutOfOrder:
            happened.append("out of order")
            raise

    monkeypatch.setattr(flowing.Flowing, "of", staticmethod(begun))
    monkeypatch.setattr(flowing.Flowing, "batches", told)
    return happened


def table(rows: int, keys: int = 5, seed: int = 1) -> pa.Table:
    drawn = random.Random(seed)
    return pa.table({
        "n": range(rows),
        "ts": pa.array([1_000_000 * (i // 2) for i in range(rows)], pa.timestamp("us")),
        "k": [f"k{drawn.randrange(keys)}" for _ in range(rows)],
        "v": [drawn.randrange(50) for _ in range(rows)],
        "unread": [f"text {i}" for i in range(rows)],
    })  # fmt: skip


def written(directory: Path, rows: pa.Table, name: str = "t.parquet") -> str:
    path = directory / name
    pq.write_table(rows, path, row_group_size=300)
    return str(path)


@pytest.mark.slow
def test_files_datasets_relations_and_tables_of_a_connection_flow(tmp_path: Path, flows: list[str]) -> None:
    rows = table(5_000)
    path = written(tmp_path, rows)
    expected = hybrid.sql(FALLS, t=rows).arrow()
    assert expected.num_rows > 1_000
    assert flows == []  # it is in memory
    connection = duckdb.connect()
    connection.execute(f"CREATE TABLE t AS FROM '{path}'")
    assert hybrid.sql(FALLS, t=path).arrow().equals(expected)
    assert hybrid.sql(FALLS, t=ds.dataset(path)).arrow().equals(expected)
    assert hybrid.sql(FALLS, t=connection.table("t")).arrow().equals(expected)
    assert hybrid.sql(FALLS, connection).arrow().equals(expected)
    assert hybrid.sql(FALLS.replace("FROM t", f"FROM '{path}'")).arrow().equals(expected)
    assert hybrid.sql(FALLS.replace("FROM t", f"FROM (SELECT * FROM '{path}' WHERE v < 1000)")).arrow().equals(expected)
    assert flows == ["flowing"] * 6
    assert connection.sql("SELECT count(*) FROM t").fetchall() == [(5_000,)]


def test_its_evidence_is_that_of_the_whole_table(tmp_path: Path, flows: list[str]) -> None:
    rows = table(3_000)
    found, expected = hybrid.sql(FALLS, t=written(tmp_path, rows)), hybrid.sql(FALLS, t=rows)
    assert flows == ["flowing"]
    assert found.evidence().equals(expected.evidence())
    assert found.arrow().equals(expected.arrow())


def test_rows_that_have_changed_since_are_no_evidence(tmp_path: Path, flows: list[str]) -> None:
    found = hybrid.sql(FALLS, t=written(tmp_path, table(3_000)))
    written(tmp_path, table(3_000, seed=2))
    with pytest.raises(hybrid.DataError, match="they have changed since"):
        found.evidence()
    assert flows == ["flowing"]


@pytest.mark.parametrize("at", [400, 2_600, 2_999])
def test_rows_out_of_order_are_sorted(at: int, tmp_path: Path, flows: list[str]) -> None:
    rows = table(3_000)
    order = np.arange(3_000)
    order[[at, at - 300]] = order[[at - 300, at]]
    moved = rows.take(pa.array(order))
    assert hybrid.sql(FALLS, t=written(tmp_path, moved)).arrow().equals(hybrid.sql(FALLS, t=moved).arrow())
    assert flows == (["whole"] if at < 1_000 else ["flowing", "out of order"])


@pytest.mark.slow
def test_times_that_are_null_are_an_error_or_come_last_as_ever(tmp_path: Path, flows: list[str]) -> None:
    rows = table(3_000)
    times = rows.column("ts").to_pylist()
    late = rows.set_column(1, "ts", pa.array([*times[:-1], None], pa.timestamp("us")))
    assert hybrid.sql(FALLS, t=written(tmp_path, late)).arrow().equals(hybrid.sql(FALLS, t=late).arrow())
    with pytest.raises(hybrid.DataError, match=r"orders the rows and has 1 null(?!s)"):
        hybrid.sql(FALLS.replace("DEFINE", "WITHIN INTERVAL 1 HOUR DEFINE"), t=written(tmp_path, late))
    assert flows == ["flowing", "out of order"] * 2


@pytest.mark.slow
def test_few_rows_and_many_keys_are_read_whole(tmp_path: Path, flows: list[str]) -> None:
    for rows in (table(900), table(20_000, keys=15_000)):
        flowing.ROWS_MIN = min(flowing.ROWS_MIN, 1_000) if len(rows) < 1_000 else 10_000
        assert hybrid.sql(FALLS, t=written(tmp_path, rows)).arrow().equals(hybrid.sql(FALLS, t=rows).arrow())
    assert flows == ["whole", "whole"]


@pytest.mark.slow
def test_a_fault_far_behind_in_a_file_is_an_error(tmp_path: Path, flows: list[str]) -> None:
    path = tmp_path / "t.csv"
    lines = [f"{i},2026-01-01 00:{i // 60 % 60:02}:{i % 60:02},a,{i % 7}" for i in range(3_000)]
    path.write_text("\n".join(["n,ts,k,v", *lines, "x,y,z"]))
    read = f"read_csv('{path}', auto_detect = false, header = true, columns = {{'n': 'BIGINT', 'ts': 'TIMESTAMP', " \
        "'k': 'VARCHAR', 'v': 'BIGINT'})"
    with pytest.raises(hybrid.DataError, match="table t: "):
        hybrid.sql(FALLS, t=duckdb.sql(f"SELECT * FROM {read}"))
    with pytest.raises(hybrid.Error):
        hybrid.sql(FALLS.replace("FROM t", f"FROM {read}"))


@pytest.mark.slow
def test_a_condition_that_fails_says_what_it_says_of_a_table(tmp_path: Path) -> None:
    text = FALLS.replace("v < PREV(v)", "1000 / (v - PREV(v))::TINYINT < 0 AND (v * 1000 - n * 10)::SMALLINT < 0")
    said = []
    for given_ in (table(9_000), written(tmp_path, table(9_000))):
        with pytest.raises(hybrid.Error) as error:
            hybrid.sql(text, t=given_)
        said.append(str(error.value))
    assert said[0] == said[1]


@pytest.mark.slow
@pytest.mark.parametrize("at", [10, 250_000])
def test_a_fault_of_a_select_is_an_error_of_the_statement_wherever_it_is(at: int) -> None:
    """Before: of the statement in the first rows that DuckDB read, later of a table, with a hint about files."""
    connection = duckdb.connect()
    made = f"SELECT i AS n, make_timestamp(i) AS ts, 'a' AS k, CASE i WHEN {at} THEN 'x' ELSE '1' END AS v"
    connection.execute(f"CREATE TABLE texts AS {made} FROM range(300_000) AS r(i)")
    text = FALLS.replace("FROM t", "FROM (SELECT * REPLACE (v::INTEGER AS v) FROM texts)")
    with pytest.raises(hybrid.QueryError, match=r"error\[HQ100\]: Could not convert string 'x'"):
        hybrid.sql(text, connection)
    with pytest.raises(hybrid.DataError, match=r"table t: .* convert string 'x'") as error:
        hybrid.sql(FALLS, t=connection.sql("SELECT * REPLACE (v::INTEGER AS v) FROM texts"))
    assert "path of a file" not in str(error.value)


@pytest.mark.slow
def test_a_timeout_ends_it(tmp_path: Path) -> None:
    slow = "SELECT i AS n, TIMESTAMP '2026-01-01' + INTERVAL 1 SECOND * i AS ts, 'a' AS k, hash(i) % 9 AS v " \
        "FROM range(2_000_000_000) AS r(i)"
    hybrid.sql(FALLS, t=duckdb.sql(slow + " LIMIT 1000"))  # compiled
    with pytest.raises(hybrid.QueryError, match="rows were matched by then") as error:
        hybrid.sql(FALLS, t=duckdb.sql(slow), timeout=1.0)
    assert "HQ602" in str(error.value)


@pytest.mark.slow
@fewer(8)
@given(st.data())
def test_any_rows_in_any_files_give_the_rows_of_the_table(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    count = data.draw(st.integers(1_000, 2_500))
    rows = table(count, keys=data.draw(st.integers(1, 40)), seed=data.draw(st.integers(0, 99)))
    if data.draw(st.booleans()):
        swapped = np.arange(count)
        for i in data.draw(st.lists(st.integers(0, count - 2), max_size=3)):
            swapped[[i, i + 1]] = swapped[[i + 1, i]]
        rows = rows.take(pa.array(swapped))
    directory = tmp_path_factory.mktemp("files")
    cut = data.draw(st.integers(0, count))
    written(directory, rows.slice(0, cut), "0.parquet")
    written(directory, rows.slice(cut), "1.parquet")
    text = data.draw(st.sampled_from([
        FALLS,
        FALLS.replace("SELECT *", "SELECT count(*), sum(high)"),
        FALLS.replace("SELECT *", "SELECT k, count(*)").replace("PATTERN", "AFTER MATCH SKIP TO NEXT ROW PATTERN")
        + " GROUP BY k ORDER BY k",
        FALLS.replace("ONE ROW", "").replace("PATTERN", "AFTER MATCH SKIP TO NEXT ROW PATTERN"),
        FALLS.replace("PATTERN", "ALL ROWS PER MATCH PATTERN"),
        FALLS.replace("DEFINE", "WITHIN INTERVAL 20 SECOND DEFINE"),
        FALLS.replace("PARTITION BY k", ""),
        FALLS.replace("ORDER BY ts", "ORDER BY ts, n"),
    ]))
    assert hybrid.sql(text, t=str(directory / "*.parquet")).arrow().equals(hybrid.sql(text, t=rows).arrow())


@pytest.mark.slow
@pytest.mark.nightly
def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Before: a file was read whole, then matched."""
    most = []
    for rows in (500_000, 6_000_000):
        path = tmp_path / "t.parquet"
        made = "SELECT i AS n, TIMESTAMP '2026-01-01' + INTERVAL 1 SECOND * i AS ts, 'k' || hash(i) % 100 AS k, " \
            f"(hash(i * 7) % 1000)::INTEGER AS v FROM range({rows}) AS r(i)"
        duckdb.sql(f"COPY ({made}) TO '{path}'")
        text = FALLS.replace("SELECT *", "SELECT count(*) AS n, max(high)").replace("v < PREV(v)", "v < PREV(v) - 990")
        code = "import hybrid, resource, sys; from hybrid.statement import flowing; flowing.ROWS_MIN = 1 << 17\n" \
            "assert hybrid.sql(sys.argv[1], t=sys.argv[2]).fetchall()[0][0] > 10\n" \
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        done = subprocess.run([sys.executable, "-c", code, text, path], capture_output=True, text=True, check=True)
        most.append(int(done.stdout))
    assert most[1] - most[0] < 6_000_000 * 24 // 1024 // 2, most  # half of what the columns take


@pytest.mark.slow
def test_inputs_without_rows(tmp_path: Path) -> None:
    connection = duckdb.connect()
    connection.execute("CREATE TABLE t (n BIGINT, ts TIMESTAMP, k VARCHAR, v INTEGER)")
    empty = connection.table("t").to_arrow_table()
    written(tmp_path, empty, "0.parquet")
    made = "(SELECT * FROM (SELECT 1 AS n, TIMESTAMP '2026-01-01' AS ts, 'a' AS k, 1 AS v) WHERE n > 1)"
    # Before: ArrowInvalid: Must pass at least one table.
    assert hybrid.sql(FALLS, connection).fetchall() == []
    assert hybrid.sql(FALLS.replace("FROM t", f"FROM {made}")).fetchall() == []
    for t in (empty, connection.table("t"), str(tmp_path / "0.parquet"), ds.dataset(empty)):
        assert hybrid.sql(FALLS, t=t).fetchall() == []
        assert hybrid.sql(FALLS.replace("SELECT *", "SELECT count(*)"), t=t).fetchall() == [(0,)]

"""Files archived by Spark: the rows, the places, the bad rows and the list that one process gives; and compaction."""

from __future__ import annotations

import errno
import gzip
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from typer.testing import CliRunner

from archive import ingest as embedded
from archive import inputs
from archive.checks import Options
from archive.history import History
from archive.ingest import Job
from archive.ingested import ingested_files
from archive.place import place_of
from archive.reader import RangeRequest
from archive.table import Table
from archive.upkeep import verify
from query.errors import DataError
from query.schema import Field, Schema
from tests.archive.events import START_US, TICKS
from tests.archive.kills import ROUNDS

pytestmark = pytest.mark.spark

SCHEMA = Schema(
    "s",
    (
        Field("ts", "TIMESTAMP"), Field("k", "VARCHAR"), Field("price", "DOUBLE"), Field("n", "UBIGINT"),
        Field("m", "DECIMAL(12,2)"), Field("l", "INTEGER[]"), Field("st", "STRUCT(x INTEGER, y VARCHAR)"),
        Field("day", "DATE"), Field("b", "BOOLEAN"),
    ),
    time="ts",
    keys=("k",),
)  # fmt: skip


def make(folder: Path, rows: int = 6000) -> Path:
    """A file of each kind, with bad rows."""
    folder.mkdir()
    rng = np.random.default_rng(7)

    def lines(first: int, quoted: bool) -> str:
        out = ["ts,k,price,n,m,l,st,day,b"]
        for i in range(first, first + rows):
            ts = np.datetime64(START_US + int(rng.integers(-(10**13), 10**13)), "us")
            k = f"K{rng.integers(20)}" if rng.integers(10) else ""
            k = f'"{k},\n""x"' if quoted and not i % 7 else k
            price = "bad" if i % 500 == 3 else f"{rng.normal():.6f}"
            extra = ",more" if i % 700 == 5 else ""
            out.append(f"{ts},{k},{price},{i},{i / 100},\"[{i}, 1]\",,{str(ts)[:10]},{i % 2 == 0}{extra}")
        return "\n".join(out) + "\n"

    (folder / "quoted.csv").write_text(lines(0, True))
    plain = lines(1, False).replace('"', "").replace("[", "").replace(", 1]", "")  # its lists are none
    (folder / "plain.csv").write_text(plain)
    (folder / "zip.csv.gz").write_bytes(gzip.compress(lines(2, True).encode()))
    with open(folder / "a.ndjson", "w") as out:
        for i in range(rows):
            ts = np.datetime64(START_US + i * 60_000_000, "us")
            st = '{"x":1,"y":"z"}' if i % 3 else '{"x":"no","y":null}' if i % 300 == 0 else "null"
            out.write(f'{{"ts":"{ts}","k":"é{i % 5}","n":{i},"st":{st},"l":[{i},null],"b":true,"m":"1.5"}}\n')
            if i % 900 == 0:
                out.write("{broken\n\n")
    table = pa.table(
        {
            "ts": pa.array(START_US + rng.integers(0, 10**13, rows), pa.timestamp("us", "UTC")),
            "k": pa.array([None if i % 11 == 0 else f"P{i % 4}" for i in range(rows)]).dictionary_encode(),
            "price": pa.array(rng.normal(size=rows)),
            "n": pa.array(np.arange(rows) - (np.arange(rows) == 50) * 100),
        }
    )  # fmt: skip
    pq.write_table(table, folder / "c.parquet", row_group_size=500)
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("in") / "files")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are cut into many parts."""
    from archive.spark import ingest

    monkeypatch.setattr(inputs, "CHUNK_BYTES", 50_000)
    limits = {"CHUNK_BYTES": 50_000, "_SCAN_HERE_BYTES": 1, "_PART_ROWS": 1000, "FILE_ROWS_MAX": 4000}
    for name, value in limits.items():
        monkeypatch.setattr(ingest, name, value)


def job(table: Path, *paths: Path, **options: Any) -> Job:
    limits = {name: options.pop(name) for name in ("max_bad", "changed") if name in options}
    given = Options(missing="null", **options)
    return Job(SCHEMA, place_of(table), tuple(map(str, paths)), options=given, **limits)


def contents(table: Path) -> tuple[list[Any], list[Any], list[Any]]:
    """Rows with their places, bad rows, and the list of files."""
    batch = History(SCHEMA, table).snapshot().read(RangeRequest())
    rows = list(zip(batch.columns.to_pylist(), batch.offset.tolist(), batch.seq.tolist()))
    bad = []
    if DeltaTable.is_deltatable(str(table / "_quarantine")):
        found = pa.table(DeltaTable(str(table / "_quarantine")).to_pyarrow_table()).to_pylist()
        bad = sorted((r["file"], r["row"], r["reason"], r["raw"], r["job"]) for r in found)
    listed = ingested_files(place_of(table)).drop_columns(["archived_us"]).to_pylist()
    return rows, bad, listed


def test_spark_gives_what_one_process_gives(spark, files, tmp_path, small):
    from archive.spark.ingest import ingest

    here = embedded.ingest(job(tmp_path / "here", files))
    steps = []
    there = ingest(spark, job(tmp_path / "there", files), steps.append)
    assert (there.files, there.rows, there.bad, there.blank) == (here.files, here.rows, here.bad, here.blank)
    assert here.rows > 20_000
    assert here.bad > 50
    for ours, theirs in zip(contents(tmp_path / "here"), contents(tmp_path / "there")):
        assert ours == theirs
    assert {step.step for step in steps} == {"look", "read", "write"}
    snapshot = Table.open(tmp_path / "there").snapshot()
    for path in snapshot.paths:
        part = pq.ParquetFile(tmp_path / "there" / path).read(columns=["k", "ts"])
        place = [((k is None, k or ""), ts) for k, ts in zip(*(column.to_pylist() for column in part.columns))]
        assert place == sorted(place)
    assert len(snapshot.paths) > there.rows // 4000


def test_spark_changes_nothing_the_second_time_and_adds_new_files(spark, files, tmp_path):
    from archive.spark.ingest import ingest

    ingest(spark, job(tmp_path / "t", files / "a.ndjson"))
    before = contents(tmp_path / "t")
    again = ingest(spark, job(tmp_path / "t", files / "a.ndjson"))
    assert (again.files, again.known) == (0, 1)
    assert contents(tmp_path / "t") == before
    more = ingest(spark, job(tmp_path / "t", files / "a.ndjson", files / "c.parquet"))
    assert (more.files, more.known) == (1, 1)
    embedded.ingest(job(tmp_path / "u", files / "a.ndjson"))
    embedded.ingest(job(tmp_path / "u", files / "c.parquet"))
    assert contents(tmp_path / "t") == contents(tmp_path / "u")


def test_from_the_command_line_and_python(spark, files, tmp_path):
    import hybrid
    from hybrid.cli import app

    words = ["ticks", str(files / "c.parquet"), "-d", str(tmp_path / "db"), "--key", "k", "--spark", "local[2]"]
    result = CliRunner().invoke(app, ["archive", "ingest", *words], catch_exceptions=False)
    assert result.stdout == "ticks: 6,000 rows of 1 file archived\n"
    with hybrid.connect(tmp_path / "db") as db:
        report = db.ingest("ticks", files / "a.ndjson", missing="null", spark=spark)
        assert (report.files, report.rows, report.bad) == (1, 6000, 7)
        found = db.sql("SELECT count(*) AS n, count(DISTINCT k) AS k FROM ticks").arrow().to_pylist()
        assert found == [{"n": 12_000, "k": 9}]


def test_what_spark_refuses(spark, files, tmp_path):
    from archive.spark.ingest import ingest

    with pytest.raises(DataError, match="rows are bad, more than 3: nothing was archived"):
        ingest(spark, job(tmp_path / "t", files, max_bad=3))
    data = bytearray((files / "c.parquet").read_bytes())
    data[4:60] = bytes(56)
    (tmp_path / "broken.parquet").write_bytes(data)
    with pytest.raises(DataError, match=r"broken.parquet cannot be read"):
        ingest(spark, job(tmp_path / "t", files / "a.ndjson", tmp_path / "broken.parquet"))
    assert contents(tmp_path / "t")[0] == []


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("point", ["list written", "before commit", "after commit"])
@pytest.mark.parametrize("round", range(ROUNDS))
def test_a_driver_killed_at_a_named_point_and_run_again(tmp_path, point, round):
    lines = "".join(f"2024-01-01 10:00:{i:02d},A,{i},1\n" for i in range(60))
    (tmp_path / "a.csv").write_text("ts,symbol,price,rank\n" + lines + "x,A,1,1\n")
    paths = str(tmp_path / "t"), str(tmp_path / "a.csv")
    command = [sys.executable, "-m", "tests.archive.ingest_child", *paths, point, "1", "local[1]"]
    assert subprocess.run(command, cwd=Path(__file__).parents[3], timeout=300).returncode == -9
    job = Job(TICKS, place_of(paths[0]), paths[1:])
    report = embedded.ingest(job)
    assert report.known == (point == "after commit")
    batch = History(TICKS, tmp_path / "t").snapshot().read(RangeRequest())
    assert batch.offset.tolist() == list(range(1, 61))
    assert DeltaTable(str(tmp_path / "t" / "_quarantine")).count() == 1


JAVA_ENDS = """
import os, signal, sys
from archive.ingest import Job
from archive.place import place_of
from archive.spark import ingest
from archive.spark.session import spark_session
from query.errors import DataError
from tests.archive.events import TICKS

session = spark_session("local[1]")
write = ingest._written
def gone(*args):
    os.kill(session.sparkContext._gateway.proc.pid, signal.SIGKILL)
    return write(*args)
ingest._written = gone
try:
    ingest.ingest(session, Job(TICKS, place_of(sys.argv[1]), (sys.argv[2],)))
except DataError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.nightly
def test_java_that_ends_in_the_middle_is_said_in_a_line(tmp_path):
    (tmp_path / "a.csv").write_text("ts,symbol,price,rank\n2024-01-01 10:00:00,A,1,1\n")
    table = tmp_path / "t"
    command = [sys.executable, "-c", JAVA_ENDS, str(table), str(tmp_path / "a.csv")]
    run = subprocess.run(command, cwd=Path(__file__).parents[3], timeout=300, capture_output=True, text=True)
    said = "Spark has failed: its Java has ended\nhint: nothing has changed; it may have had too"
    assert said in run.stdout, run.stderr
    assert verify(Table.open(table)) == []
    assert embedded.ingest(Job(TICKS, place_of(table), (str(tmp_path / "a.csv"),))).rows == 1


def test_a_connection_that_java_refuses_is_no_trouble_of_the_disk(spark, files, tmp_path, monkeypatch):
    from archive.spark import ingest as module

    def refused(*args):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr(module, "_written", refused)
    with pytest.raises(DataError, match="Spark has failed: its Java has ended"):
        module.ingest(spark, job(tmp_path / "t", files / "a.ndjson"))
    monkeypatch.undo()
    assert verify(Table.open(tmp_path / "t")) == []
    assert module.ingest(spark, job(tmp_path / "t", files / "a.ndjson")).rows > 0


def test_compaction(spark, files, tmp_path, small):
    from archive.spark.compact import compact

    for name in ("a.ndjson", "c.parquet", "quoted.csv"):
        embedded.ingest(job(tmp_path / "t", files / name))
    table = Table.open(tmp_path / "t")
    before, rows = table.snapshot(), contents(tmp_path / "t")
    after = compact(spark, place_of(tmp_path / "t"))
    assert after is not None
    assert set(after.paths).isdisjoint(before.paths)
    assert int(after.rows.sum()) == int(before.rows.sum())
    assert contents(tmp_path / "t") == rows
    one = compact(spark, place_of(tmp_path / "t"), after.paths[:2])
    assert one is not None
    assert set(after.paths[2:]) < set(one.paths)
    assert contents(tmp_path / "t") == rows
    with pytest.raises(DataError, match="has no file"):
        compact(spark, place_of(tmp_path / "t"), ["nowhere"])


def test_compaction_from_the_command_line(spark, tmp_path):
    import hybrid
    from hybrid.cli import app
    from tests.archive.events import run_of

    with hybrid.connect(tmp_path / "db", maintenance=False) as db:
        columns = {"ts": "TIMESTAMP", "symbol": "VARCHAR", "price": "DOUBLE"}
        db.create_stream("ticks", columns, time="ts", key="symbol")
        for i in range(4):
            events = run_of(20_000, first=20_000 * i, step_us=4_000_000)
            times = pa.array([event.ts_us for event in events], pa.timestamp("us"))
            prices = [event.price for event in events]
            db.push("ticks", pa.table({"ts": times, "symbol": ["ABC"[i % 3]] * 20_000, "price": prices}))
            db.flush()
        before = db.sql("SELECT * FROM ticks ORDER BY ts").arrow()
    words = ["archive", "compact", "-d", str(tmp_path / "db"), "--spark", "local[2]"]
    result = CliRunner().invoke(app, words, catch_exceptions=False)
    assert "ticks: " in result.stderr
    paths = Table.open(tmp_path / "db" / "ticks" / "table").snapshot().paths
    assert sum("/k-" in path for path in paths) == 3  # a file for each day that is over
    with hybrid.connect(tmp_path / "db") as db:
        assert db.sql("SELECT * FROM ticks ORDER BY ts").arrow().equals(before)


def test_the_loser_of_two_compactions_changes_nothing(spark, files, tmp_path, monkeypatch):
    from archive.spark import compact as module

    embedded.ingest(job(tmp_path / "t", files / "c.parquet"))
    real = module.laid_out
    rows = contents(tmp_path / "t")

    def overtaken(*args: Any) -> Any:
        monkeypatch.setattr(module, "laid_out", real)
        assert module.compact(spark, place_of(tmp_path / "t")) is not None
        return real(*args)

    monkeypatch.setattr(module, "laid_out", overtaken)
    assert module.compact(spark, place_of(tmp_path / "t")) is None
    assert contents(tmp_path / "t") == rows

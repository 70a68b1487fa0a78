"""Search and ingest on a standalone cluster and through Spark Connect, whose executors know our code only from us."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest
from deltalake import DeltaTable

import hybrid
from archive.history import History
from archive.ingest import Job, ingest
from archive.place import place_of
from archive.reader import RangeRequest
from archive.spark import ship
from matching.kernels.jit import cache_directory
from tests.archive.events import TICKS
from tests.archive.spark.conftest import why_no_spark
from tests.archive.spark.queries import COLUMNS, table
from tests.archive.spark.servers import cluster, connect_server

pytestmark = [pytest.mark.spark, pytest.mark.slow]

TEXTS = (
    "SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.ts AS f, LAST(B.v) AS x, list(v) AS vs "
    "PATTERN (A B+) DEFINE B AS v > PREV(v)) AS m",
    "SELECT k, count(*) AS n FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.ts AS f PATTERN (A B C) "
    "WITHIN INTERVAL 20 SECOND SELECTION SKIP TILL NEXT MATCH DEFINE A AS s = 'a', B AS v > A.v, C AS s = 'c') AS m "
    "GROUP BY k",
)
ROOT = Path(__file__).parents[3]
#: The directories of kernels that executors compile.
COMPILED = "hashing_*"


def rows_of(t: pa.Table) -> Counter[str]:
    return Counter(repr(tuple(row.values())) for row in t.to_pylist())


def environment() -> dict[str, str]:
    kept = "SPARK_SUBMIT_OPTS"  # the suite's options of Java
    env = {k: v for k, v in os.environ.items() if k == kept or not k.startswith(("SPARK", "PYSPARK"))}
    return env | {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}


def searches_and_archives(tmp_path: Path, address: str) -> None:
    """A driver at the address finds what this process finds, and archives what this process archives; its executors had
    nothing of ours before either."""
    with hybrid.connect(tmp_path / "db") as db:
        db.create_stream("t", COLUMNS, time="ts", key="k")
        db.push("t", table(Random(11), 2000))
        expected = [db.sql(text) for text in TEXTS]
    for day in range(1, 6):
        lines = "".join(f"2024-01-{day:02d} 10:{i // 60:02d}:{i % 60:02d},{'ABC'[i % 3]},{i},1\n" for i in range(600))
        (tmp_path / f"{day}.csv").write_text("ts,symbol,price,rank\n" + lines + f"x,A,{day},1\n")
    files = str(tmp_path / "*.csv")
    out = tmp_path / "out"
    out.mkdir()
    given = [str(tmp_path / "db"), address, str(out), files, str(tmp_path / "there"), *TEXTS]
    child = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.archive.spark.driver_child", *given], env=environment(), cwd=ROOT,
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr[-3000:]
    assert child.stdout == ""
    assert [line for line in child.stderr.splitlines() if "WARN" in line or "INFO" in line] == []
    for before, after in (("before", "after"), ("ingest_before", "ingest_after")):
        assert (out / f"{before}.txt").read_text() == ""
        places = set((out / f"{after}.txt").read_text().split("\n")) - {""}
        assert places
        assert all(f"code-{ship.sources()[1]}" in place for place in places)
    for i, result in enumerate(expected):
        found, events = (pa.ipc.open_file(out / f"{i}{name}.arrow").read_all() for name in ("", "-evidence"))
        assert found.schema == result.arrow().schema
        assert rows_of(found) == rows_of(result.arrow())
        assert found.num_rows > 2
        assert Counter(events.column("match_id").to_pylist()) == Counter(result.evidence()["match_id"].to_pylist())
    ingest(Job(TICKS, place_of(tmp_path / "here"), (files,)))
    here, there = (History(TICKS, tmp_path / name).snapshot().read(RangeRequest()) for name in ("here", "there"))
    assert len(here) == 3000
    assert there.columns.equals(here.columns)
    assert (there.offset.tolist(), there.seq.tolist()) == (here.offset.tolist(), here.seq.tolist())
    assert DeltaTable(str(tmp_path / "there" / "_quarantine")).count() == 5


@pytest.fixture(autouse=True)
def needs_spark() -> None:
    why = why_no_spark()
    if why:
        pytest.skip(why)


@pytest.mark.nightly  # Spark Connect ships the same to executors of one machine
def test_standalone_cluster(tmp_path: Path) -> None:
    """Its workers find the kernels that are compiled here, and nothing else of ours."""
    kernels = cache_directory()
    (tmp_path / "cache" / "hybrid").mkdir(mode=0o700, parents=True)
    (tmp_path / "cache" / "hybrid" / kernels.name).symlink_to(kernels, target_is_directory=True)
    with cluster(tmp_path, tmp_path / "cache", workers=2) as address:
        searches_and_archives(tmp_path, address)


def test_spark_connect(tmp_path: Path) -> None:
    """Its workers compile the kernels that their machine does not have: those of keys. All of them would take longer
    than all the rest."""
    kernels, home = cache_directory(), tmp_path / "cache" / "hybrid"
    home.mkdir(mode=0o700, parents=True)
    shutil.copytree(kernels, home / kernels.name, ignore=shutil.ignore_patterns(COMPILED, "*.tmp*"))
    with connect_server(tmp_path, tmp_path / "cache") as address:
        searches_and_archives(tmp_path, address)
    assert list((home / kernels.name).glob(f"{COMPILED}/*.nbc"))

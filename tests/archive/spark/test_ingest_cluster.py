"""Files archived by a standalone cluster and through Spark Connect, whose executors know our code only from us."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from deltalake import DeltaTable

from archive import ingest as embedded
from archive.history import History
from archive.ingest import Job
from archive.place import place_of
from tests.archive.events import TICKS
from tests.archive.spark.conftest import why_no_spark
from tests.archive.spark.servers import cluster, connect_server

pytestmark = [pytest.mark.spark, pytest.mark.slow]

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def needs_spark() -> None:
    why = why_no_spark()
    if why:
        pytest.skip(why)


def check(tmp_path: Path, address: str) -> None:
    """A driver at the address archives what this process archives."""
    for day in range(1, 6):
        lines = "".join(f"2024-01-{day:02d} 10:{i // 60:02d}:{i % 60:02d},{'ABC'[i % 3]},{i},1\n" for i in range(600))
        (tmp_path / f"{day}.csv").write_text("ts,symbol,price,rank\n" + lines + f"x,A,{day},1\n")
    embedded.ingest(Job(TICKS, place_of(tmp_path / "here"), (str(tmp_path / "*.csv"),)))
    env = {k: v for k, v in os.environ.items() if not k.startswith(("SPARK", "PYSPARK"))}
    env |= {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    words = [str(tmp_path / "there"), str(tmp_path / "*.csv"), "never", "1", address]
    command = [sys.executable, "-m", "tests.archive.ingest_child", *words]
    child = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert child.returncode == 0, child.stderr[-3000:]
    here, there = (History(TICKS, tmp_path / name).snapshot().read(None, None) for name in ("here", "there"))
    assert len(here) == 3000
    assert there.columns.equals(here.columns)
    assert (there.offset.tolist(), there.seq.tolist()) == (here.offset.tolist(), here.seq.tolist())
    assert DeltaTable(str(tmp_path / "there" / "_quarantine")).count() == 5


def test_standalone_cluster(tmp_path: Path) -> None:
    with cluster(tmp_path, tmp_path / "cache", workers=2) as address:
        check(tmp_path, address)


def test_spark_connect(tmp_path: Path) -> None:
    with connect_server(tmp_path, tmp_path / "cache") as address:
        check(tmp_path, address)

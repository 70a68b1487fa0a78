"""Live queries whose large ranges start Spark by themselves, in processes in which nobody has started it before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.archive.spark.conftest import why_no_spark
from tests.programs import run_module

CHILD = Path(__file__).parent / "large_child.py"
ROOT = Path(__file__).parents[3]


def asked(path: Path, address: str, kills: str, **env: str) -> dict[str, Any]:
    """What large_child.py prints."""
    command = [sys.executable, str(CHILD), str(path / "db"), address, *kills]
    given = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=550)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """The rows without Spark."""
    place = tmp_path_factory.mktemp("without") / "db"
    done = run_module(ROOT, "tests.archive.spark.large_child", str(place), "-", *"00")
    assert done.returncode == 0, done.stderr
    found: list[Any] = json.loads(done.stdout.splitlines()[-1])["rows"]
    return found


@pytest.mark.nightly
@pytest.mark.spark
def test_spark_is_started_and_started_again_where_java_is_killed(tmp_path: Path, expected: list[Any]) -> None:
    """Before: JAVA_GATEWAY_EXITED, and the query had failed."""
    if why := why_no_spark():
        pytest.skip(why)
    found = asked(tmp_path, "local[2]", "02")
    assert found["rows"] == expected
    assert [len(rows) for rows in found["rows"]] == [7, 13]
    assert len(set(found["killed"])) == 2  # the second one was started for the second try
    assert (found["stats"]["history_by_spark"], found["stats"]["history_spark_failed"]) == (1, 1)
    assert found["stats"]["state"] == "running"
    (told,) = found["told"]
    assert told.startswith("a range of the history of e was searched without Spark: ")
    assert "Java has ended" in told


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize(("address", "env", "says"), [
    ("local[2]", {"PATH": "/nowhere", "JAVA_HOME": "/nowhere"}, "found none; install it"),
    ("spark://127.0.0.1:9", {}, "spark://127.0.0.1:9 does not answer"),
    ("sc://127.0.0.1:9", {}, "sc://127.0.0.1:9 does not answer"),
])  # fmt: skip
def test_no_spark_is_no_end_of_a_live_query(
    tmp_path: Path, address: str, env: dict[str, str], says: str, expected: list[Any]
) -> None:
    """Before: the query failed with that."""
    pytest.importorskip("pyspark")
    found = asked(tmp_path, address, "00", **env)
    assert found["rows"] == expected
    assert (found["stats"]["history_by_spark"], found["stats"]["history_spark_failed"]) == (0, 2)
    assert says in found["told"][0]

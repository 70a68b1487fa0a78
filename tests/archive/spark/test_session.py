"""Sessions: one for a process, and clear words where there can be none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import hybrid
from archive.spark import session as sessions
from archive.spark.session import java_version, spark_session
from query.errors import DataError
from tests.hybrid.inside import may_wait
from tests.waiting import GUARD_S

pytestmark = pytest.mark.spark


def test_a_session_is_found_again(spark: Any) -> None:
    assert spark_session() is spark
    assert spark_session("local[2]") is spark
    assert spark_session(spark) is spark
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.sql.execution.arrow.maxRecordsPerBatch") == "65536"
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    with pytest.raises(DataError, match=r"a session of local\[2\] runs|local\[2\] already runs in this process"):
        spark_session("local[1]")


@pytest.mark.parametrize(("text", "why", "hint"), [
    ("Job aborted due to stage failure: Task 0 failed\nERROR\n\tat org.apache.spark.ErrorUtils.run(ErrorUtils.scala:83)"
     "\nCaused by: java.io.IOException: No space left on device\n\tat java.base/java.io.Error.write",
     "java.io.IOException: No space left on device", "log"),
    ("An error occurred while calling o1.x.\n: java.lang.OutOfMemoryError: Java heap space\n\tat x.y", "", "--memory"),
    ("java.lang.OutOfMemoryError: Java heap space\n\tat x.y", "too little memory", "--memory"),
    ("it went wrong\nbelow", "it went wrong", "log"),
    ("", "ValueError", "log"),
])  # fmt: skip
def test_what_failed(text: str, why: str, hint: str) -> None:
    said, advice = sessions.what_failed(ValueError(text))
    assert why in said
    assert hint in advice
    assert sessions.what_failed(ConnectionResetError(104, "reset"))[0] == "its Java has ended"


def test_addresses_that_are_none() -> None:
    for address in ("flink://host", "localhorse", "http://127.0.0.1"):
        with pytest.raises(DataError, match=r"invalid Spark address|runs in this process"):
            spark_session(address)


def test_threads_of_a_session_are_nobody_to_wait_for(spark: Any) -> None:
    """Iterating over alerts ends where nobody is left who could push; a session has threads of its own."""
    with hybrid.connect(maintenance=False) as db:
        db.create_stream("e", {"ts": "TIMESTAMP", "v": "BIGINT"}, time="ts")
        alerts = db.watch("SELECT * FROM e MATCH_RECOGNIZE (MEASURES A.v AS v PATTERN (A) DEFINE A AS v > 0)")
        assert not may_wait(db)
        assert list(alerts) == []


def test_nobody_answers(spark: Any) -> None:
    with pytest.raises(DataError, match=r"sc://127\.0\.0\.1:9 does not answer"):
        spark_session("sc://127.0.0.1:9")


@pytest.mark.parametrize(("said", "version"), [
    ('openjdk version "17.0.15" 2025-04-15', 17), ('java version "1.8.0_392"', 8), ('openjdk version "21" 2023', 21),
    ("no such thing", None),
])  # fmt: skip
def test_versions_of_java(said: str, version: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert java_version() == version
    if version is None or version < 17:
        with pytest.raises(DataError, match="Spark needs Java 17 or newer"):
            sessions._need_java()


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert java_version() is None
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert java_version() is None


def test_without_pyspark(tmp_path: Path) -> None:
    """The error says what to install; nothing else of ours needs it."""
    (tmp_path / "pyspark.py").write_text("raise ImportError('No module named pyspark')")
    code = """
import hybrid
try:
    from archive.spark.session import spark_session
    spark_session("local[1]")
except hybrid.DataError as error:
    print(error)
"""
    root = Path(__file__).parents[3]
    env = {"PYTHONPATH": f"{tmp_path}:{root}", "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=GUARD_S)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Spark is not installed")
    assert "[spark]" in done.stdout


def test_a_master_that_is_not_there(tmp_path: Path) -> None:
    """Java's own words, in one line, and nothing printed."""
    code = """
import hybrid
from archive.spark.session import spark_session
try:
    spark_session("local[x]")
except hybrid.DataError as error:
    print(error)
"""
    root = Path(__file__).parents[3]
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Spark does not start on local[x]: ")
    assert "Could not parse Master URL" in done.stdout
    assert "\tat " not in done.stdout + done.stderr

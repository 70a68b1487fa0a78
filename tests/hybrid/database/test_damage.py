"""Damage enumerated, to all that a database keeps: the answers stay, or an error or a warning names the file; and one
that was opened so gives all again when the file is back. Each bit of a table is tried in tests/archive/test_damage.py;
here it is the whole, by a seed: DAMAGE_SECONDS of it (make nightly: an hour)."""

from __future__ import annotations

import os
import shutil
import tempfile
import warnings
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import hybrid
from tests.archive.damage import points, try_all
from tests.in_memory import MEMORY

SECONDS = float(os.environ.get("DAMAGE_SECONDS", "1"))
#: Of which no answer is made.
LEFT_OUT = ("_maintenance.lock", "_writer", "_quarantine")
COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "DOUBLE"}
STATEMENTS = (
    "SELECT count(*) AS n, sum(v) AS s, min(ts) AS low, max(ts) AS high FROM t",
    "SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES first(A.v) AS a, last(B.v) AS b "
    "PATTERN (A B+) DEFINE B AS B.v < PREV(B.v)) ORDER BY ALL",
)


def event(i: int) -> dict[str, object]:
    return {"ts": datetime(2024, 1, 1) + timedelta(hours=i), "k": "ab"[i % 2], "v": float(i * 7 % 11)}


def make(directory: Path) -> None:
    """Files of three days in two layouts, an input file with a bad row, a checkpoint of the log and entries behind it,
    a query with a checkpoint, and events that are in the log alone: what a process that was killed leaves."""
    history = directory.parent / "monday.csv"
    history.write_text("ts,k,v\n2023-12-31 10:00:00,a,3\n2023-12-31 11:00:00,a,ten\n2023-12-31 12:00:00,a,1\n")
    work = directory.parent / "work"
    db = hybrid.connect(work, maintenance=False, log="os")
    db.create_stream("t", COLUMNS, time="ts", key="k")
    falls = "MATCH_RECOGNIZE (ORDER BY ts MEASURES A.v AS v PATTERN (A B) DEFINE B AS B.v < A.v)"
    db.watch(f"SELECT * FROM t {falls}", name="falls")
    db.ingest("t", history)
    for i in range(0, 48, 4):
        db.push("t", [event(j) for j in range(i, i + 4)])
        db.flush()
    db.push("t", [event(j) for j in range(48, 60)])
    db.checkpoint()
    db.push("t", [event(j) for j in range(60, 64)])
    shutil.copytree(work, directory)
    db.close()


def answers(directory: Path) -> tuple[list[object], str]:
    """What the database says, and the warnings."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with hybrid.connect(directory, maintenance=False, log="os") as db:
            found: list[object] = [db.sql(text).arrow().to_pylist() for text in STATEMENTS]
    return found, "; ".join(str(one.message) for one in said)


@pytest.mark.slow
def test_each_file_damaged(record_property, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda file: None)  # of nothing that a loss of power is to survive
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        each_file_damaged(Path(place), record_property)


def each_file_damaged(tmp_path, record_property):
    intact, damaged = tmp_path / "intact", tmp_path / "damaged"
    make(intact)
    shutil.copytree(intact, damaged)
    expected, said = answers(damaged)
    assert said == ""
    worse = []

    def ask(point):
        shutil.rmtree(damaged)
        shutil.copytree(intact, damaged)
        point.apply(damaged)
        try:
            found, said = answers(damaged)
            return found == expected, said
        finally:
            shutil.copyfile(intact / point.path, damaged / point.path)
            if answers(damaged)[0] != expected:
                worse.append(point)

    counts, silent = try_all(list(points(intact, LEFT_OUT)), SECONDS, False, ask)
    record_property("points", sum(counts.values()))
    assert silent[:3] == []
    assert worse[:3] == []

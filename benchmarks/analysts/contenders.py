"""Who answers: this engine, DuckDB and Polars, each in a process of its own that reads the rows from a file."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

import hybrid
from benchmarks import answers
from benchmarks.analysts.questions import QUESTIONS, Question
from benchmarks.v_pattern import one_core, stopwatch

#: What a contender is given: an Arrow table in memory, the path of a Parquet file, or a pandas frame whose texts are
#: objects, or whose texts and keys are categories.
SOURCES = ("arrow", "parquet", "pandas", "category")
WARM_UP_ROWS = 50_000
MIB = 1 << 20


def through_hybrid(question: Question, events: Any, ties: bool) -> pa.Table:
    return hybrid.sql(question.text, events=events).arrow()


def through_duckdb(question: Question, events: Any, ties: bool) -> pa.Table:
    name = "'" + events + "'" if isinstance(events, str) else "events"
    numbered = f"(SELECT {', '.join(question.reads)}, row_number() OVER () AS n FROM {name})"
    with duckdb.connect() as connection:
        connection.execute("SET threads = 1")
        if not isinstance(events, str):
            connection.register("events", events)
        text = question.duckdb.format(events=numbered if ties else name, order="ts, n" if ties else "ts")
        return connection.sql(text).to_arrow_table()


def through_polars(question: Question, events: Any, ties: bool) -> pa.Table:
    frame = pl.scan_parquet(events) if isinstance(events, str) else events.lazy()
    frame = frame.select(question.reads)
    if question.actions:
        frame = frame.filter(pl.col("a").is_in(question.actions))
    return question.polars(frame.sort("k", "ts", maintain_order=ties)).to_arrow()


CONTENDERS: dict[str, Callable[[Question, Any, bool], pa.Table]] = {
    "hybrid": through_hybrid, "duckdb": through_duckdb, "polars": through_polars,
}  # fmt: skip


def given(path: Path, source: str, contender: str, rows: int | None = None) -> Any:
    """Returns what a contender reads. rows: only so many first ones."""
    if source == "parquet":
        return str(path) if rows is None else str(path.with_suffix(".few.parquet"))
    table = pq.read_table(path if rows is None else path.with_suffix(".few.parquet"))
    if contender == "polars":
        frame = pl.from_arrow(table)
        texts = [name for name, kind in frame.schema.items() if kind == pl.String]
        return frame.with_columns(pl.col(texts).cast(pl.Categorical)) if source == "category" else frame
    if source == "arrow":
        return table
    frame = table.to_pandas()
    for name in frame.columns:
        if table.schema.field(name).type == pa.string():
            frame[name] = frame[name].astype("category" if source == "category" else object)
    return frame.astype({"k": "category"}) if source == "category" else frame


def write(table: pa.Table, path: Path) -> None:
    """Writes the rows for `measured`, and beside them the first ones."""
    pq.write_table(table, path)
    pq.write_table(table.slice(0, WARM_UP_ROWS), path.with_suffix(".few.parquet"))


def measured(path: Path, question: str, contender: str, source: str, ties: bool, repeat: int) -> dict[str, Any]:
    """Runs one contender in a new process; see `run_one`."""
    asked = {"path": str(path), "question": question, "contender": contender, "source": source, "ties": ties,
             "repeat": repeat}  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.analysts.contenders", json.dumps(asked)]
    one_thread = os.environ | {"POLARS_MAX_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=one_thread)
    if done.returncode:
        return {"error": done.stderr.strip().splitlines()[-1] if done.stderr.strip() else str(done.returncode)}
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def run_one(asked: dict[str, Any]) -> dict[str, Any]:
    """Returns processor seconds and seconds (the least of the runs), the peak of resident memory in the first run and
    by how much it lies above what was resident before it, and the answer's rows and hash."""
    question, contender = QUESTIONS[asked["question"]], asked["contender"]
    run, path = CONTENDERS[contender], Path(asked["path"])
    run(question, given(path, asked["source"], contender, WARM_UP_ROWS), asked["ties"])
    events = given(path, asked["source"], contender)
    gc.collect()
    pa.default_memory_pool().release_unused()
    before, _ = _resident()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    found, peak, best = pa.table({}), 0, (float("inf"), float("inf"))
    for i in range(asked["repeat"]):
        stop = stopwatch()
        found = run(question, events, asked["ties"])
        seconds, processor = stop()
        best = min(best, (processor, seconds))
        peak = _resident()[1] if i == 0 else peak
    return {
        "cpu_seconds": round(best[0], 4), "seconds": round(best[1], 4), "peak_mib": round(peak / MIB),
        "grown_mib": round((peak - before) / MIB), "rows": len(found),
        "hash": answers.fingerprint(found, list(question.columns)),
    }  # fmt: skip


def _resident() -> tuple[int, int]:
    """Returns the bytes that are resident now, and the most that were."""
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) << 10 for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return sizes["VmRSS"], sizes["VmHWM"]


if __name__ == "__main__":
    warnings.simplefilter("ignore", hybrid.HybridWarning)
    with one_core(False):
        print(json.dumps(run_one(json.loads(sys.argv[1]))))

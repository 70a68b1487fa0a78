"""Files into the archive: one large file of each format, and thousands of small ones; in one process and by Spark.

    python -m benchmarks.spark.ingest [--rows 10_000_000] [--files 2_000] [--master 'local[2]'] > result.json

Prints one JSON object. Every way of archiving the same rows must give the same table, or the run fails: their count and
the sums of offsets and of prices. `peak_mb` is the largest resident memory of the process (of Spark: of its driver's
Python, not of the JVM). For the small files it says too what a second run costs, which finds nothing new, and what
looking up a transaction for each file would cost at every opening. An empty master leaves Spark out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import answers
from query.schema import Field, Schema

TICKS = Schema(
    "ticks",
    (Field("ts", "TIMESTAMP"), Field("symbol", "VARCHAR"), Field("price", "DOUBLE"), Field("volume", "BIGINT")),
    time="ts",
    keys=("symbol",),
)
FORMATS = ("parquet", "csv", "ndjson")
KEYS = 10_000


def ticks(rows: int, seed: int) -> pa.Table:
    """Ticks of five days, in order of time."""
    rng = np.random.default_rng(seed)
    ts_us = np.sort(rng.integers(0, 5 * 86_400_000_000, rows)) + 1_704_067_200_000_000
    names = pa.array([f"S{i:05d}" for i in range(KEYS)])
    return pa.table(
        {
            "ts": pa.array(ts_us, pa.timestamp("us")),
            "symbol": pa.DictionaryArray.from_arrays(pa.array(rng.integers(0, KEYS, rows)), names).cast(pa.string()),
            "price": np.round(rng.normal(100, 10, rows), 4),
            "volume": rng.integers(1, 1000, rows),
        }
    )


def write_inputs(folder: Path, rows: int, files: int) -> None:
    table = ticks(rows, 1)
    pq.write_table(table, folder / "ticks.parquet", row_group_size=1 << 17)
    connection = duckdb.connect()
    connection.execute("SET enable_progress_bar=false")
    connection.register("t", table)
    connection.execute(f"COPY t TO '{folder}/ticks.csv' (HEADER)")
    connection.execute(f"COPY t TO '{folder}/ticks.ndjson' (FORMAT json)")
    (folder / "many").mkdir()
    small = ticks(files * 100, 2)
    for i in range(files):
        pq.write_table(small.slice(i * 100, 100), folder / "many" / f"{i:06d}.parquet")


def child(folder: str, name: str, master: str) -> None:
    """One job in a process of its own."""
    from archive.ingest import Job, ingest
    from archive.place import place_of

    source = Path(folder) / ("many" if name == "many" else f"ticks.{name}")
    table = Path(folder) / f"table-{name}-{'spark' if master else 'here'}"
    job = Job(TICKS, place_of(table), (str(source),))
    if master:
        from archive.spark.ingest import ingest as by_spark
        from archive.spark.session import spark_session

        session = spark_session(master)
        session.range(10).count()  # Spark's own first seconds

        def run() -> Any:
            return by_spark(session, job)
    else:

        def run() -> Any:
            return ingest(job)

    times = []
    for _ in range(2):
        start = time.perf_counter(), time.process_time()
        report = run()
        times.append((time.perf_counter() - start[0], time.process_time() - start[1], report.rows))
    (seconds, processor, rows), (again, _, none) = times
    assert none == 0
    peak = peak_mb()  # before it is counted what was archived
    connection = duckdb.connect()
    connection.execute("SET enable_progress_bar=false")
    sums = connection.sql(
        f"SELECT count(*), sum(_offset)::VARCHAR, sum(price::DECIMAL(18,4))::VARCHAR, count(DISTINCT _seq) "
        f"FROM read_parquet('{table}/2*/*.parquet')"
    ).fetchall()[0]
    found = {
        "seconds": round(seconds, 2), "processor_seconds": round(processor, 2), "rows": rows,
        "rows_per_second": round(rows / seconds), "again_seconds": round(again, 2), "sums": sums,
        "files": len(list(table.glob("2*/*.parquet"))),
        "peak_mb": peak,
    }  # fmt: skip
    print(json.dumps(found))


def peak_mb() -> int:
    """The largest resident memory of this process; what getrusage says counts the process that started it."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) >> 10  # type: ignore[index]


def look_ups(files: int) -> float:
    """Seconds to look up a transaction for each of so many sources."""
    from deltalake import CommitProperties, DeltaTable, Transaction

    with tempfile.TemporaryDirectory() as folder:
        DeltaTable.create(folder, schema=pa.schema([("x", pa.int64())]))
        table = DeltaTable(folder)
        names = [f"ticks/file-{i:06d}" for i in range(files)]
        properties = CommitProperties(app_transactions=[Transaction(name, 1) for name in names])
        table.create_write_transaction([], mode="append", schema=table.schema(), commit_properties=properties)
        table = DeltaTable(folder)
        start = time.perf_counter()
        assert [table.transaction_version(name) for name in names] == [1] * files
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--files", type=int, default=2_000)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--only", nargs="*", default=[*FORMATS, "many"])
    arguments = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(Path(folder), arguments.rows, arguments.files)
        for name in arguments.only:
            for master in ("", arguments.master) if arguments.master else ("",):
                code = "import sys; from benchmarks.spark.ingest import child; child(*sys.argv[1:])"
                command = [sys.executable, "-c", code, folder, name, master]
                out = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=os.environ).stdout
                result = json.loads(out.splitlines()[-1])
                size = sum(p.stat().st_size for p in Path(folder).glob("many/*" if name == "many" else f"ticks.{name}"))
                results[f"{name}{' by Spark' if master else ''}"] = result | {"input_mb": size >> 20}
                print(name, master, result, file=sys.stderr)
    for kinds in (FORMATS, ("many",)):
        known = [r["sums"] for name, r in results.items() if name.split()[0] in kinds]
        # A line of a header moves the offsets of CSV by one.
        plain = {tuple(s[i] for i in (0, 2, 3)) for s in known}
        assert len(plain) <= 1, plain
    for name in arguments.only:
        if f"{name} by Spark" in results:
            assert results[name]["sums"] == results[f"{name} by Spark"]["sums"]
    output = {
        "machine": answers.machine(), "versions": answers.versions(), "rows": arguments.rows, "files": arguments.files,
        "results": results, "look_ups_seconds": round(look_ups(arguments.files), 3),
    }  # fmt: skip
    print(json.dumps(output, indent=1))


if __name__ == "__main__":
    main()

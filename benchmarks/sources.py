"""From payloads to rows: events a second of one core, by format, and from files.

    python -m benchmarks.sources [--events 200_000] [--repeat 5] > result.json

Prints one JSON object. The same ticks, of `simulator.stock.walk`, in each form: `ts`, `symbol`, `price`, `volume`.
Seconds are of the processor, all threads, the best of the runs. Every form must give the same rows.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from benchmarks import answers
from live.sources.base import Bad
from live.sources.decode import Decoder, Decoding, Format, Times
from live.sources.files import FileSettings, FileSource
from query.schema import Field, Schema
from simulator.stock import walk

TICKS = Schema(
    "ticks",
    (Field("ts", "TIMESTAMP"), Field("symbol", "VARCHAR"), Field("price", "DOUBLE"), Field("volume", "BIGINT")), "ts",
)  # fmt: skip
#: Payloads of a poll.
BATCH = 10_000
#: Rows of an Arrow stream.
STREAM_ROWS = 1_000
AVRO = {
    "type": "record", "name": "Tick", "fields": [
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "symbol", "type": "string"}, {"name": "price", "type": "double"}, {"name": "volume", "type": "long"},
    ],
}  # fmt: skip


def _arrow(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def _avro(row: dict[str, object], schema: object) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, row)
    return out.getvalue()


def _decoded(payloads: list[bytes], format: Format, times: Times, batched: bool) -> pa.Table:
    schema = json.dumps(AVRO) if format == "avro" else None
    decoder = Decoder(TICKS, Decoding(format, times, batched=batched, avro_schema=schema))
    found = []
    for start in range(0, len(payloads), BATCH):
        some = payloads[start : start + BATCH]
        rows, _, bad = decoder.decode("ticks/0", some, np.arange(start, start + len(some)))
        assert not bad
        found.append(rows)
    return pa.Table.from_batches(found)


def _read(path: Path) -> pa.Table:
    source = FileSource(TICKS, FileSettings(str(path), follow=False))
    source.open({})
    found = []
    while not source.ended:
        for piece in source.poll(1):
            assert not isinstance(piece, Bad)
            found.append(piece.rows)
    source.close()
    return pa.Table.from_batches(found)


def measured(events: int, repeat: int, seed: int = 1) -> dict[str, object]:
    """What `main` prints."""
    ticks = pa.table(walk(seed, events, 100)).select(list(TICKS.names))
    ticks = ticks.cast(pa.schema([("ts", pa.timestamp("us")), *[(f.name, f.type) for f in list(ticks.schema)[1:]]]))
    rows = ticks.to_pylist()
    iso = [{**row, "ts": row["ts"].isoformat()} for row in rows]
    us = ticks["ts"].cast(pa.int64()).to_pylist()
    numbers = [{**row, "ts": at} for row, at in zip(rows, us)]
    parsed = fastavro.parse_schema(AVRO)
    naive = [{**row, "ts": at} for row, at in zip(rows, us)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        lines = [json.dumps(row).encode() for row in iso]
        (folder / "ticks.ndjson").write_bytes(b"\n".join([*lines, b""]))
        pa.csv.write_csv(ticks, folder / "ticks.csv")
        pq.write_table(ticks, folder / "ticks.parquet")
        as_numbers = [json.dumps(row).encode() for row in numbers]
        records = [_avro(row, parsed) for row in naive]
        streams = [_arrow(ticks.slice(start, STREAM_ROWS)) for start in range(0, events, STREAM_ROWS)]
        contenders: dict[str, Callable[[], pa.Table]] = {
            "JSON, times as text": lambda: _decoded(lines, "json", "iso", False),
            "JSON, times as numbers": lambda: _decoded(as_numbers, "json", "us", False),
            "Avro": lambda: _decoded(records, "avro", "us", False),
            f"Arrow, {STREAM_ROWS:,} rows a message": lambda: _decoded(streams, "arrow", "iso", True),
            "NDJSON file": lambda: _read(folder / "ticks.ndjson"),
            "CSV file": lambda: _read(folder / "ticks.csv"),
            "Parquet file": lambda: _read(folder / "ticks.parquet"),
        }
        seconds = {}
        for contender, run in contenders.items():
            times = []
            for _ in range(repeat):
                start = time.process_time()
                found = run()
                times.append(time.process_time() - start)
                assert found.equals(ticks), contender
            seconds[contender] = min(times)
            print(f"{contender}: {events / min(times):,.0f} events/s", file=sys.stderr)
    return {
        "benchmark": "sources", "machine": answers.machine(), "versions": answers.versions(), "seed": seed,
        "events": events, "processor_seconds": seconds,
        "events_per_second": {contender: round(events / s) for contender, s in seconds.items()},
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=200_000)
    parser.add_argument("--repeat", type=int, default=5)
    options = parser.parse_args()
    print(json.dumps(measured(options.events, options.repeat), indent=1))


if __name__ == "__main__":
    main()

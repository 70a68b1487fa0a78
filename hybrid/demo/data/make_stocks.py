"""Rebuilds stocks.parquet and stocks.LICENSE.txt from the bokeh_sampledata wheel named on the command line."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import sys
import zipfile
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

PRICES = "bokeh_sampledata/_data/stocks.csv.gz"
HEADER = ["Ticker", "Date", "Open", "High", "Low", "Close", "Volume", "Adj Close"]


def read_prices(packed: bytes) -> pa.Table:
    """Returns the rows of the packed CSV, unchanged and in their order: by symbol, then by date."""
    header, *rows = csv.reader(io.StringIO(gzip.decompress(packed).decode("utf-8")))
    if header != HEADER:
        raise SystemExit(f"{PRICES} has the columns {header}, not {HEADER}")
    symbol, day, opened, high, low, close, volume, adjusted = zip(*rows, strict=True)
    return pa.table(
        {
            "date": pa.array([date.fromisoformat(text) for text in day], pa.date32()),
            "symbol": pa.array(symbol, pa.string()),
            "open": pa.array(map(float, opened), pa.float64()),
            "high": pa.array(map(float, high), pa.float64()),
            "low": pa.array(map(float, low), pa.float64()),
            "close": pa.array(map(float, close), pa.float64()),
            "volume": pa.array(map(int, volume), pa.int64()),
            "adj_close": pa.array(map(float, adjusted), pa.float64()),
        }
    )


def licence_record(wheel: zipfile.ZipFile, packed: bytes) -> str:
    """Returns the wheel's record of the terms of the prices, verbatim. Checks its hash against the file."""
    place = next(name for name in wheel.namelist() if name.endswith("/licenses/datasets.json"))
    inventory = json.loads(wheel.read(place))
    record = next(entry for entry in inventory["datasets"] if entry["module"] == "stocks")
    found = hashlib.sha256(packed).hexdigest()
    if record["sha256"]["stocks.csv.gz"] != found:
        raise SystemExit(f"{PRICES} has the SHA-256 {found}, its licence record is about another file")
    status = record["status"]
    return (
        "stocks.parquet: daily prices of AAPL, FB, GOOG, IBM and MSFT, 2000-03-01 to 2013-03-01.\n"
        f"Recorded licence: {record['recorded_license']} (status: {status}).\n"
        f"{record['attribution']}\n\n"
        f"The record below is the entry of the data set in {place},\n"
        f"reviewed {inventory['reviewed']}. What the status means there:\n{status}: {inventory['statuses'][status]}\n\n"
        f"{json.dumps(record, indent=2, ensure_ascii=False)}\n"
    )


def main(path: Path) -> None:
    """Writes both files beside this one."""
    here = Path(__file__).parent
    with zipfile.ZipFile(path) as wheel:
        packed = wheel.read(PRICES)
        table = read_prices(packed)
        pq.write_table(table, here / "stocks.parquet", compression="zstd", compression_level=19)
        (here / "stocks.LICENSE.txt").write_text(licence_record(wheel, packed), encoding="utf-8")
    print(f"{table.num_rows} rows, {(here / 'stocks.parquet').stat().st_size} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python hybrid/demo/data/make_stocks.py bokeh_sampledata-2026.1-py3-none-any.whl")
    main(Path(sys.argv[1]))

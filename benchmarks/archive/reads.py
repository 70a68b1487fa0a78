"""Reads of an archive, beside a time-sorted table of DuckDB and a scan by polars.

    python -m benchmarks.archive.reads --directory DIR [--events 50_000_000] [--symbols 10_000] [--days 7] > out.json

Medians of milliseconds by the clock over places drawn by the seed, warm, in one process; every contender says how many
events it has read in all and a hash of them, and the run fails if two disagree. `open` are the files as they were
flushed, `closed` the same events rewritten by (key, time). DIR keeps the events for the next run.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import numpy as np
import polars
import pyarrow as pa

from archive.history import History
from archive.reader import RangeRequest
from archive.snapshot import HistorySnapshot
from archive.table import Table
from benchmarks import answers
from benchmarks.archive.events import DAY_US, SCHEMA, START_US, fill, parser, pieces

MINUTE_US, HOUR_US = 60_000_000, 3_600_000_000
#: Name -> length of the range, and whether it is of one symbol.
RANGES = {
    "1 minute": (MINUTE_US, False),
    "1 hour": (HOUR_US, False),
    "1 hour, one symbol": (HOUR_US, True),
    "24 hours, one symbol": (DAY_US, True),
    "all days, one symbol": (None, True),
}
OVERLAPPING = "100 ranges of a minute in half an hour"
Read = Callable[[int, int, str | None], pa.Table]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--repeat", type=int, default=21)
    given = options.parse_args()
    histories = {
        name: fill(
            given.directory / name, pieces(given.events, given.symbols, given.days, given.seed), name == "closed"
        )
        for name in ("open", "closed")
    }
    contenders = {name: of_archive(history) for name, history in histories.items()}
    contenders["duckdb, one table by time"] = of_duckdb(given.directory / "by_time.duckdb", histories["open"])
    contenders["polars, open files"] = of_polars(given.directory / "open")
    found: dict[str, dict[str, dict[str, object]]] = {}
    for name, (length, of_symbol) in RANGES.items():
        rng = np.random.default_rng(given.seed)
        places = []
        for _ in range(given.repeat):
            low = START_US + int(rng.random() * (given.days * DAY_US - (length or 0))) if length else START_US
            symbol = f"S{int(rng.integers(given.symbols)):06}" if of_symbol else None
            places.append((low, low + (length or given.days * DAY_US), symbol))
        found[name] = {who: measured(read, places) for who, read in contenders.items()}
        agree(name, found[name])
    found[OVERLAPPING] = overlapping(histories, given.days, given.repeat, given.seed)
    agree(OVERLAPPING, found[OVERLAPPING])
    result = {
        "events": given.events, "symbols": given.symbols, "days": given.days, "seed": given.seed,
        "machine": answers.machine(), "reads": found,
        "files": {name: len(Table.open(given.directory / name).snapshot().paths) for name in histories},
    }  # fmt: skip
    print(json.dumps(result, indent=1))


def of_archive(history: History) -> Read:
    snapshot = history.snapshot()

    def read(low_us: int, high_us: int, symbol: str | None) -> pa.Table:
        keys = None if symbol is None else {"symbol": [symbol]}
        return pa.Table.from_batches([snapshot.read(RangeRequest(low_us, high_us, keys=keys)).columns])

    return read


def of_duckdb(file: Path, history: History) -> Read:
    """One table of DuckDB, in the order of time, filled from the archive; read in that order."""
    fresh = not file.exists()
    connection = duckdb.connect(str(file))
    connection.execute("SET TimeZone='UTC'; SET enable_progress_bar=false")
    if fresh:
        connection.execute("CREATE TABLE ticks (ts TIMESTAMP, symbol VARCHAR, price DOUBLE, volume BIGINT)")
        for batch in history.snapshot().batches():
            part = pa.Table.from_batches([batch.columns])
            connection.register("part", part)
            connection.execute("INSERT INTO ticks SELECT * FROM part")
            connection.unregister("part")

    def read(low_us: int, high_us: int, symbol: str | None) -> pa.Table:
        where = "" if symbol is None else f" AND symbol = '{symbol}'"
        text = f"SELECT * FROM ticks WHERE ts >= make_timestamp({low_us}) AND ts < make_timestamp({high_us}){where}"
        return connection.sql(text).to_arrow_table()

    return read


def of_polars(directory: Path) -> Read:
    """All files of the open archive, which polars prunes by their footers."""
    files = [str(directory / path) for path in Table.open(directory).snapshot().paths]
    scan = polars.scan_parquet(files).select(SCHEMA.names)

    def read(low_us: int, high_us: int, symbol: str | None) -> pa.Table:
        low, high = (polars.lit(us).cast(polars.Datetime("us", "UTC")) for us in (low_us, high_us))
        rows = scan.filter((polars.col("ts") >= low) & (polars.col("ts") < high))
        rows = rows if symbol is None else rows.filter(polars.col("symbol") == symbol)
        return rows.collect().to_arrow()

    return read


def measured(read: Read, places: list[tuple[int, int, str | None]]) -> dict[str, object]:
    """Reads every place twice; the second time counts."""
    seconds, rows, total = [], 0, 0
    for place in places:
        read(*place)
        started = time.perf_counter()
        table = read(*place)
        seconds.append(time.perf_counter() - started)
        rows += table.num_rows
        total += int(answers.fingerprint(plain(table), list(SCHEMA.names)), 16)
    return shown(seconds, rows, total)


def overlapping(
    histories: dict[str, History], days: int, repeat: int, seed: int
) -> dict[str, dict[str, object]]:
    """Ranges that overlap, read at once and one by one."""
    rng = np.random.default_rng(seed)
    base = START_US + int(rng.random() * (days * DAY_US - HOUR_US))
    lows = base + rng.integers(0, HOUR_US // 2, 100)
    found = {}
    for name, history in histories.items():
        snapshot = history.snapshot()
        ways: dict[str, Callable[[], list[pa.RecordBatch]]] = {
            name: lambda s=snapshot: at_once(s, lows),  # type: ignore[misc]
            f"{name}, one by one": lambda s=snapshot: [  # type: ignore[misc]
                s.read(RangeRequest(int(low), int(low) + MINUTE_US)).columns for low in lows
            ],
        }
        for who, way in ways.items():
            seconds = []
            for _ in range(max(3, repeat // 4)):
                started = time.perf_counter()
                parts = way()
                seconds.append(time.perf_counter() - started)
            tables = [plain(pa.Table.from_batches([part])) for part in parts]
            total = sum(int(answers.fingerprint(table, list(SCHEMA.names)), 16) for table in tables)
            found[who] = shown(seconds, sum(table.num_rows for table in tables), total)
    return found


def at_once(snapshot: HistorySnapshot, lows: np.ndarray) -> list[pa.RecordBatch]:
    """The minutes from `lows` on, as slices of one read."""
    batch = snapshot.read(RangeRequest(int(lows.min()), int(lows.max()) + MINUTE_US))
    starts, stops = (np.searchsorted(batch.ts_us, at) for at in (lows, lows + MINUTE_US))
    return [batch.columns.slice(start, stop - start) for start, stop in zip(starts.tolist(), stops.tolist())]


def plain(table: pa.Table) -> pa.Table:
    """Times without a zone, as hashes want them."""
    times = table.column("ts").cast(pa.timestamp("us", table.schema.field("ts").type.tz)).cast(pa.int64())
    return table.set_column(0, "ts", times)


def shown(seconds: list[float], rows: int, total: int) -> dict[str, object]:
    ordered = sorted(seconds)
    return {
        "median_ms": round(1000 * ordered[len(ordered) // 2], 2),
        "p99_ms": round(1000 * ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 2),
        "rows": rows,
        "hash": f"{total % 2**64:016x}",
    }


def agree(name: str, contenders: dict[str, dict[str, object]]) -> None:
    """Says how they did, and ends the run if they have read different events."""
    print(name, {who: (r["median_ms"], r["rows"]) for who, r in contenders.items()}, file=sys.stderr)
    if len({(r["rows"], r["hash"]) for r in contenders.values()}) > 1:
        sys.exit(f"{name}: not the same events: {contenders}")


if __name__ == "__main__":
    main()

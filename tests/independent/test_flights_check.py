"""The independent check of the flights: it imports nothing of ours, and is right on small inputs."""

from __future__ import annotations

import sys
import zipfile
from datetime import datetime, timedelta
from pathlib import Path

from tests.independent import flights_check
from tests.independent.test_stock_check import imported


def test_it_imports_nothing_of_ours() -> None:
    assert imported(Path(flights_check.__file__)) <= set(sys.stdlib_module_names)


def at(minute: int, delay: int) -> flights_check.Departure:
    return (datetime(2013, 7, 1) + timedelta(minutes=minute), delay, "JFK", "BOS")


def found(*departures: tuple[int, int]) -> list[list[int]]:
    return [[d[1] for d in three] for three in flights_check.growing([at(m, d) for m, d in departures])]


def test_a_growing_delay() -> None:
    assert found((0, 5), (60, 6), (120, 60)) == [[5, 6, 60]]
    assert found((0, 5), (60, 6), (120, 59)) == []
    assert found((0, 6), (60, 6), (120, 60)) == []
    assert found((0, 5), (60, 60), (1440, 61)) == [[5, 60, 61]]
    assert found((0, 5), (60, 60), (1441, 61)) == []
    # The second match begins behind the last row of the first.
    assert found((0, 1), (1, 2), (2, 60), (3, 61), (4, 62), (5, 63)) == [[1, 2, 60], [61, 62, 63]]
    assert found((0, 1), (1, 2), (2, 3), (3, 61), (4, 62)) == [[2, 3, 61]]


def test_times_are_those_of_the_timetable_and_the_delay(tmp_path: Path) -> None:
    head = "year,month,day,sched_dep_time,dep_delay,tailnum,origin,dest\n"
    rows = ["2013,1,1,515,2,N1,EWR,IAH", "2013,7,1,2359,-4,N1,JFK,BOS"]
    rows += ["2013,7,2,800,,N1,JFK,BOS", "2013,7,2,800,1,NA,JFK,BOS"]  # cancelled, and of nobody knows which aircraft
    with zipfile.ZipFile(tmp_path / "flights.csv.zip", "w") as archive:
        archive.writestr("flights.csv", head + "\n".join(rows) + "\n")
    assert flights_check.departures(tmp_path / "flights.csv.zip") == {
        "N1": [
            (datetime(2013, 1, 1, 10, 17), 2, "EWR", "IAH"),  # winter: five hours behind UTC
            (datetime(2013, 7, 2, 3, 55), -4, "JFK", "BOS"),  # summer: four
        ]
    }

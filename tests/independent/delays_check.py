"""The answer of the demo of delays in plain Python, slow and explicit. Imports nothing of the project.

Growing delays are those of flights_check, over the whole year: three departures of one aircraft in a row within a day,
each later than the one before, the last one by an hour or more. One belongs to the airport of its last departure, and
stands at the time of that; those of one minute stand by aircraft, airport and the rest.
- Wave: three of one airport or more, one right after the other, all within two hours; as many as there are, and the
  next wave begins after them.
- Bad day: a wave, the first one after it at another airport, and the first one after that at the third; all within 12
  hours. After: its first growing delay follows the last one of the wave before; the first: that ends first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from tests.independent.flights_check import departures, growing

Growth = tuple[str, str, datetime, datetime, datetime, int, int, int]


class Wave(NamedTuple):
    """first, last: places of its growing delays in the order of all; since, until: their times."""

    origin: str
    aircraft: int
    worst: int
    first: int
    last: int
    since: datetime
    until: datetime


def growths(path: Path) -> list[Growth]:
    """(tailnum, origin, times of the three departures, delays of the three), in order."""
    found = [
        (tailnum, c[2], a[0], b[0], c[0], a[1], b[1], c[1])
        for tailnum, own in departures(path).items() for a, b, c in growing(own)
    ]  # fmt: skip
    return sorted(found, key=lambda g: (g[4], *g))


def waves(ordered: Sequence[Growth], origin: str) -> Iterator[Wave]:
    own = [(place, g) for place, g in enumerate(ordered) if g[1] == origin]
    i = 0
    while i < len(own):
        inside = [one for one in own[i:] if one[1][4] - own[i][1][4] <= timedelta(hours=2)]
        if len(inside) < 3:
            i += 1
            continue
        (first, begin), (last, end) = inside[0], inside[-1]
        yield Wave(origin, len(inside), max(g[7] for _, g in inside), first, last, begin[4], end[4])
        i += len(inside)


def bad_days(found: Sequence[Wave]) -> Iterator[tuple[Wave, Wave, Wave]]:
    ordered = sorted(found, key=lambda w: w.last)
    for j in ordered:
        k = next((w for w in ordered if w.first > j.last and w.origin != j.origin), None)
        if k is not None:
            l_ = next((w for w in ordered if w.first > k.last and w.origin not in (j.origin, k.origin)), None)
            if l_ is not None and l_.until - j.since <= timedelta(hours=12):
                yield j, k, l_


def answer(path: Path) -> tuple[list[Growth], list[tuple], list[tuple]]:
    """Rows of the three layers, sorted."""
    ordered = growths(path)
    found = [wave for origin in ("EWR", "JFK", "LGA") for wave in waves(ordered, origin)]
    days = [
        (j.origin, k.origin, l_.origin, j.aircraft + k.aircraft + l_.aircraft, j.since, l_.until)
        for j, k, l_ in bad_days(found)
    ]
    return sorted(ordered), sorted((w.origin, w.aircraft, w.worst, w.since, w.until) for w in found), sorted(days)

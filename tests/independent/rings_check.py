"""The answer of the demo of thieves in plain Python, slow and explicit. Imports nothing of the project.

The question, over the readings in their order, of a person in one shop:
- Visit: readings at one shelf, one right after the other, each at most a minute after the one before, at least two, all
  within 15 minutes; as many as there are, and the next visit begins after them.
- Suspicious: a visit of two minutes or more, after which there are fewer items than before, and then the first reading
  in the corner, with no reading at the register in between; all within 30 minutes.
- Theft: that, and then the first reading at the exit, with none at the register in between; all within 45 minutes.
- Ring: at one shelf of one shop, a theft; the first one after it by somebody else; and the first one after that by a
  third person; all within an hour. After: its first reading follows the last one of the theft before.
- Together: the same of thefts by their ends, where the second and the third begin before the first one ends.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

SECOND = 1_000_000
MINUTE = 60 * SECOND


class Reading(NamedTuple):
    """A reading, with its place in the order."""

    place: int
    ts: int
    shop: str
    person: str
    reader: str
    shelf: str | None
    items: int | None


class Found(NamedTuple):
    """One find. first, last: its first and last reading."""

    shop: str
    person: str
    shelf: str
    before: int
    after: int
    first: Reading
    last: Reading


def visits(own: Sequence[Reading]) -> Iterator[Found]:
    i = 0
    while i < len(own):
        a, end = own[i], i + 1
        while (
            a.reader == "shelf" and end < len(own) and own[end].reader == "shelf" and own[end].shelf == a.shelf
            and own[end].ts - own[end - 1].ts <= MINUTE and own[end].ts - a.ts <= 15 * MINUTE
        ):  # fmt: skip
            end += 1
        if end - i < 2:
            i += 1
            continue
        assert a.shelf is not None
        assert a.items is not None
        items = own[end - 1].items
        assert items is not None
        yield Found(a.shop, a.person, a.shelf, a.items, items, a, own[end - 1])
        i = end


def goes_on(found: Found, own: Sequence[Reading], reader: str, within: int) -> Found | None:
    """Returns the find with the next reading at `reader`, if none at the register is before it."""
    for reading in own:
        if reading.place > found.last.place:
            if reading.reader == "register":
                return None
            if reading.reader == reader:
                return found._replace(last=reading) if reading.ts - found.first.ts <= within else None
    return None


def triples(thefts: Sequence[Found]) -> Iterator[tuple[Found, Found, Found]]:
    """Rings among the thefts at one shelf."""
    ordered = sorted(thefts, key=lambda t: (t.last.place, t.first.place))
    for a in ordered:
        b = next((t for t in ordered if t.first.place > a.last.place and t.person != a.person), None)
        if b is not None:
            others = (a.person, b.person)
            c = next((t for t in ordered if t.first.place > b.last.place and t.person not in others), None)
            if c is not None and c.last.ts - a.first.ts <= 60 * MINUTE:
                yield a, b, c


def triples_at_once(thefts: Sequence[Found]) -> Iterator[tuple[Found, Found, Found]]:
    ordered = sorted(thefts, key=lambda t: (t.last.ts, t.last.place))
    for i, a in enumerate(ordered):
        rest = [t for t in ordered[i + 1 :] if t.first.ts < a.last.ts and t.person != a.person]
        for j, b in enumerate(rest[:1]):
            for c in [t for t in rest[j + 1 :] if t.person != b.person][:1]:
                if c.last.ts - a.last.ts <= 60 * MINUTE:
                    yield a, b, c


def answer(readings: Sequence[tuple[int, str, str, str, str | None, int | None]]) -> dict[str, list[tuple]]:
    """Layer -> its rows, sorted, times in microseconds. readings: (ts, shop, person, reader, shelf, items)."""
    of_person: dict[tuple[str, str], list[Reading]] = defaultdict(list)
    for place, (ts, shop, person, reader, shelf, items) in enumerate(readings):
        of_person[shop, person].append(Reading(place, ts, shop, person, reader, shelf, items))
    rows: dict[str, list[tuple]] = {name: [] for name in ("visit", "suspicious", "theft", "ring", "together")}
    of_shelf: dict[tuple[str, str], list[Found]] = defaultdict(list)
    for own in of_person.values():
        for visit in visits(own):
            came, went, who = visit.first.ts, visit.last.ts, (visit.shop, visit.person, visit.shelf)
            rows["visit"].append((*who, came, went, visit.before, visit.after, came, went))
            if visit.after >= visit.before or went - came < 2 * MINUTE:
                continue
            taken = visit.before - visit.after
            if (suspicious := goes_on(visit, own, "corner", 30 * MINUTE)) is not None:
                rows["suspicious"].append((*who, taken, came, suspicious.last.ts))
                if (theft := goes_on(suspicious, own, "exit", 45 * MINUTE)) is not None:
                    rows["theft"].append((*who, taken, came, theft.last.ts))
                    of_shelf[visit.shop, visit.shelf].append(theft)
    for where, thefts in of_shelf.items():
        for ring in triples(thefts):
            taken = sum(t.before - t.after for t in ring)
            rows["ring"].append((*where, *(t.person for t in ring), taken, ring[0].first.ts, ring[2].last.ts))
        rows["together"] += [(*where, *(t.person for t in ring)) for ring in triples_at_once(thefts)]
    return {name: sorted(found) for name, found in rows.items()}

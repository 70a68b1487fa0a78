"""What layers keep between pushes: the events of complex events, the rows of negations, the numbers of keys."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from matching.batch import EventBatch, Matches
from matching.hierarchy import members as kept_members
from matching.hierarchy.counts import Counts, KeyCodes
from matching.hierarchy.gaps import PARTS_MIN, GapTest
from matching.hierarchy.members import Members, ranges
from query.plan.boxes import FIRST, FIRST_US, LAST, LAST_US, CountedEvents, Gap, GapPlace
from query.plan.expression import Column
from query.schema import STREAM
from tests.hierarchies import batch_of, events_of, over, plan_of, statement


def matches_of(lengths: list[int], begin: int) -> Matches:
    """Returns matches of so many events each, one event a microsecond from `begin` on."""
    bounds = np.cumsum([0, *lengths])
    at = begin + np.arange(bounds[-1])
    n = len(lengths)
    return Matches(
        pa.table({"x": pa.nulls(n)}), np.arange(n), np.zeros(n, np.int64), at[bounds[:-1]], at[bounds[1:] - 1], bounds,
        (at % 2).astype(np.int16), at, np.zeros(len(at), np.int32), at, at, ("X", "Y"), ("s",),
    )  # fmt: skip


def events_in(members: Members, number: int) -> list[int]:
    at, _ = ranges(members.bounds, np.array([number - members.first]))
    assert [members.paths[p] for p in members.path[at]] == ["XY"[i % 2] for i in members.offset[at]]
    return members.offset[at].tolist()


def test_events_of_complex_events_are_kept_until_they_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_members, "DROPPED_MIN", 8)
    monkeypatch.setattr(kept_members, "LOOKED_AT", 3)
    rng, members = np.random.default_rng(1), Members()
    expected: list[tuple[int, list[int]]] = []  # the last time and the events, by number
    begin = kept = 0
    for i in range(120):
        lengths = rng.integers(1, 5, rng.integers(0, 6)).tolist()
        found, order = matches_of(lengths, begin), None
        if len(lengths) > 1 and i % 3 == 0:
            order = np.arange(1, len(lengths))
        assert members.next == len(expected)
        members.add(found, order)
        for m in range(len(lengths)) if order is None else order.tolist():
            events = found.event_offset[found.event_bounds[m] : found.event_bounds[m + 1]].tolist()
            expected.append((events[-1], events))
        begin += sum(lengths)
        members.drop_before(begin - 30)
        while kept < len(expected) and expected[kept][0] < begin - 30:
            kept += 1
        assert len(members) == len(expected) - kept
        assert [events_in(members, n) for n in range(kept, len(expected))] == [e for _, e in expected[kept:]]
        if i % 40 == 39:
            again = Members()
            again.restore(*members.snapshot())
            members = again
    assert members.first > 50
    assert len(members.path) < 200


def test_complex_events_are_not_copied_at_each_push(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: each push with a match copied all events that are kept."""
    copied = []

    def grown(array: np.ndarray, capacity: int, fill: int = 0) -> np.ndarray:
        copied.append(len(array))
        return np.concatenate([array, np.full(capacity - len(array), fill, array.dtype)])

    monkeypatch.setattr(kept_members, "grown", grown)
    members = Members()
    for i in range(1000):
        members.add(matches_of([1], i), None)
    assert len(members) == 1000
    assert sum(copied) < 7 * 2 * 1024


class Pushed:
    """A matcher that gives rows as they are handed to it."""

    stuck = 0

    def push(self, batch: EventBatch) -> Matches:
        none = np.zeros(0, np.int64)
        return Matches(
            pa.Table.from_batches([batch.columns]), none, none, none, none, none, np.zeros(0, np.int16), none,
            np.zeros(0, np.int32), none, none, (), (),
        )  # fmt: skip

    def advance(self, watermark_us: int | None) -> Matches:
        raise NotImplementedError

    def snapshot(self) -> bytes:
        return b""

    def fits(self, state: bytes) -> bool:
        return True

    def restore(self, state: bytes) -> None:
        assert state == b""


#: WITHIN of the patterns with gaps, in positions.
WITHIN = 25
#: By place of a gap: its columns, and whether a row from one position to another lies in it. A position is a time, too.
PLACES: dict[GapPlace, tuple[tuple[str, ...], Callable[[int, int, int, int], bool]]] = {
    GapPlace.INSIDE: (("until", "after"), lambda first, last, after, until: first > after and last < until),
    GapPlace.START: (("until", "after"), lambda first, last, after, until: first >= after - WITHIN and last < until),
    GapPlace.END: (
        ("after", "until", "until"), lambda first, last, after, until: first > after and last <= until + WITHIN
    ),
}  # fmt: skip


def gap_test(place: GapPlace) -> GapTest:
    plan = plan_of(over({"v": statement("X Y", "NEXT", "X AS s = 'x', Y AS s = 'y'", 20)},
                        statement("V", "NEXT", "V AS PATTERN v")))  # fmt: skip
    rows = replace(plan.boxes[0].plan, partition_by=(Column("key", "BIGINT"),))
    return GapTest(Gap(rows, place, PLACES[place][0], WITHIN), Pushed())


def gap_rows_of(keys: np.ndarray, firsts: np.ndarray, lasts: np.ndarray) -> EventBatch:
    columns = {"key": keys, FIRST.name: firsts, LAST.name: lasts, FIRST_US.name: firsts, LAST_US.name: lasts}
    return EventBatch(pa.RecordBatch.from_pydict(columns), lasts, np.zeros(len(keys), np.int32), lasts, lasts)


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("place", GapPlace)
def test_gaps_are_tested_as_by_looking_at_all_rows(place: GapPlace) -> None:
    rng, test, lies_in = np.random.default_rng(2), gap_test(place), PLACES[place][1]
    rows: list[tuple[int, int, int]] = []  # key, first, last
    last = hits = 0
    for i in range(300):
        n = int(rng.integers(0, 60))
        lasts = last + np.cumsum(rng.integers(0, 2, n))
        last = int(lasts[-1]) if n else last
        keys, firsts = rng.integers(0, 3, n), lasts - rng.integers(0, 40, n)
        firsts = np.maximum(firsts, 0)
        rows += zip(keys.tolist(), firsts.tolist(), lasts.tolist(), strict=True)
        test.push(gap_rows_of(keys, firsts, lasts))
        after = np.maximum(last - rng.integers(0, 60, 8), 0)
        until = after + rng.integers(0, 30, 8)
        if place is GapPlace.END:  # of a match that has begun before
            until = np.maximum(after - rng.integers(0, 30, 8), 0)
        asked = pa.table({"key": rng.integers(0, 4, 8), "after": after, "until": until})
        expected = [
            any(k == key and lies_in(f, e, a, u) for k, f, e in rows)
            for key, a, u in zip(asked["key"].to_pylist(), after.tolist(), until.tolist(), strict=True)
        ]
        assert test.violated(asked).tolist() == expected
        hits += sum(expected)
        test.drop_before(last - 60 - WITHIN)
        if i % 100 == 99:
            state, test = test.snapshot(), gap_test(place)
            test.restore(state)
    assert 100 < hits < 2300


def test_rows_that_no_gap_needs_are_dropped() -> None:
    test = gap_test(GapPlace.INSIDE)
    for i in range(3 * PARTS_MIN // 64):
        at = np.arange(64 * i, 64 * i + 64)
        test.push(gap_rows_of(at % 2, at, at))
        test.drop_before(64 * i)
    assert len(test.snapshot()["key"]) < PARTS_MIN + 128


def test_keys_have_numbers_of_their_own() -> None:
    codes = KeyCodes()
    first = codes.of([pa.array([1.5, None, math.nan, 1.5]), pa.array(["a", "b", None, "a"])], 4)
    assert first.tolist() == [0, 1, 2, 0]
    again = KeyCodes()
    again.restore(codes.snapshot())
    for known in (codes, again):
        found = known.of([pa.array([math.nan, 2.0, None]), pa.array([None, "a", "b"])], 3)
        assert found.tolist() == [2, 3, 1]
        assert len(known) == 4
    assert KeyCodes().of([], 3).tolist() == [0, 0, 0]


def test_events_are_counted_by_key() -> None:
    counts, batch = Counts(CountedEvents(("s",))), batch_of(events_of("x1@1 y1@2 x2@3 x3@4 y2@5")).columns
    assert [n.tolist() for n in counts.number(batch.slice(0, 3))] == [[0, 0, 1], [1, 1, 2]]
    again = Counts(CountedEvents(("s",)))
    again.restore(counts.snapshot())
    assert [n.tolist() for n in again.number(batch.slice(3))] == [[2, 1], [3, 2]]


def test_events_of_some_streams_are_counted_by_key() -> None:
    s, stream = list("xyxyxx"), list("ababab")
    batch = pa.RecordBatch.from_pydict({"s": s, STREAM: stream})
    counts = Counts(CountedEvents(("s",), ("a",)))
    parts = [counts.number(batch.slice(0, 3)), counts.number(batch.slice(3))]
    before, upto = (np.concatenate([part[side] for part in parts]).tolist() for side in (0, 1))
    counted = [[s[j] == s[i] and stream[j] == "a" for j in range(i + 1)] for i in range(len(s))]
    assert upto == [sum(one) for one in counted]
    assert before == [sum(one[:-1]) for one in counted]

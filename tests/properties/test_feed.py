"""Many queries over one stream: each gets what it would get alone, whenever the others come, go or fail."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from matching.batch import EventBatch, Matches
from matching.by_reference import ReferenceMatcher
from matching.drive import Drive
from matching.feed import Feed, Member
from matching.matcher import KernelMatcher, make_matcher
from matching.needed import needed_from
from matching.ordering import Ordering
from matching.program.program import NoKernel, assemble
from query.errors import DataError, QueryError
from query.language.ast import AfterMatchKind
from query.plan.plan import AfterMatch, Plan, Within
from query.schema import Schema
from tests.events import batch_of
from tests.properties.comparing import Answer, answer_of, constant, drawn_until, fewer, is_quick, variants
from tests.properties.test_skip_till import skipping
from tests.strategies import SCHEMA, SECOND_US, Row, events, plans

#: AFTER MATCH SKIP TO that would not move on warns; these tests go on.
pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
#: There are six variants of one property and four of the other, two of which draw examples of their own.
FEWER = fewer(5)


@dataclass(frozen=True)
class Asked:
    """A query, the push before which it is added, and the one before which it is removed."""

    plan: Plan
    begin: int
    end: int


class Alone:
    """A query with an order and rows of its own."""

    def __init__(self, plan: Plan) -> None:
        self.drive = Drive(Ordering(SCHEMA), make_matcher(plan, lenient=True))

    @property
    def failed(self) -> bool:
        return self.drive.failure is not None

    def push(self, batch: EventBatch, watermark_us: int | None, end: bool = False) -> list[Matches]:
        """What it finds; if it fails, what it has found before."""
        found = self.drive.push(batch, watermark_us)
        found += self.drive.advance(None) if end else []
        assert isinstance(self.drive.failure, DataError | QueryError | None)
        return found


def can_run(plan: Plan) -> bool:
    try:
        assemble(plan)
    except NoKernel:
        return False
    return True


@st.composite
def askings(draw: st.DrawFn, pushes: int) -> list[Asked]:
    """Two to four queries, most of them with one PARTITION BY, with conditions in common."""
    raising = draw(st.booleans())
    drawn = [draw(plans(raising=raising) | skipping(raising)) for _ in range(draw(st.integers(2, 4)))]
    if draw(st.booleans()):
        drawn = [replace(plan, partition_by=drawn[0].partition_by) for plan in drawn]
    if draw(st.booleans()):
        drawn[1] = drawn[0]
    out = []
    for plan in drawn:
        begin = draw(st.just(0) | st.integers(0, pushes - 1))
        out.append(Asked(plan, begin, draw(st.just(pushes) | st.integers(begin, pushes))))
    return out


def pieces(rows: list[Row], order: list[int], cuts: list[int]) -> list[tuple[EventBatch, int | None]]:
    """The rows in order of arrival, cut, each piece with the watermark behind it: nothing is late."""
    whole = batch_of(SCHEMA, rows)
    bounds = sorted({0, len(rows), *cuts})
    out: list[tuple[EventBatch, int | None]] = []
    for low, high in pairwise(bounds):
        at = np.array(order[low:high], np.int64)
        part = replace(whole.take(at), seq=np.arange(low, high))
        left = [int(rows[i]["ts"]) for i in order[high:]]  # type: ignore[call-overload]
        last = max(int(row["ts"]) for row in rows)  # type: ignore[call-overload]
        out.append((part, min(left, default=last)))
    return out


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
def test_each_query_gets_what_it_would_get_alone(
    late: bool, record_property: Callable[[str, object], None]
) -> None:
    schema = replace(SCHEMA, lateness_us=60 * SECOND_US) if late else SCHEMA
    seen: Counter[str] = Counter()

    @FEWER
    @given(rows=events(min_size=4), data=st.data())
    def check(rows: list[Row], data: st.DataObject) -> None:
        order = data.draw(st.permutations(range(len(rows)))) if late else list(range(len(rows)))
        parts = pieces(rows, order, data.draw(st.lists(st.integers(1, len(rows)), max_size=5)))
        asked = data.draw(askings(len(parts)))
        saves = data.draw(st.sets(st.integers(0, len(parts) - 1), max_size=2))
        alone = [Alone(query.plan) for query in asked]
        for one in alone:
            one.drive.ordering = Ordering(schema)
        expected: list[dict[int, tuple[Answer, bool]]] = []  # of each part, by query, and whether it has failed
        for i, part in enumerate(parts):
            expected.append({})
            for k, query in enumerate(asked):
                if query.begin <= i < query.end:
                    theirs = alone[k].push(*part, i == len(parts) - 1)
                    expected[-1][k] = answer_of(theirs), alone[k].failed
        seen["a failure"] += any(one.failed for one in alone)
        for slack, dense in variants((0, 256), (3, 2), (1 << 15, 256)):  # compaction after almost every batch
            with constant("matching.rows.SLACK", slack), constant("matching.row_tests.DENSE_ROWS_MIN", dense):
                compare(parts, asked, saves, expected, f"SLACK {slack}, DENSE_ROWS_MIN {dense}")

    def compare(
        parts: list[tuple[EventBatch, int | None]], asked: list[Asked], saves: set[int],
        expected: list[dict[int, tuple[Answer, bool]]], variant: str,
    ) -> None:  # fmt: skip
        feed = Feed(schema)
        members: dict[int, Member] = {}
        seq = 0
        for i, (part, watermark_us) in enumerate(parts):
            if i in saves:
                feed, members = saved_and_restored(feed, members, schema)
                seen["saved"] += bool(members)
            for k, query in enumerate(asked):
                if query.end == i and k in members:
                    feed.remove(members.pop(k))
                if query.begin == i < query.end:
                    members[k] = feed.add(query.plan, seq)
            seq += len(part)
            feed.push(part, watermark_us)
            if i == len(parts) - 1:
                feed.advance(None)
            for k, member in members.items():
                theirs, failed = expected[i][k]
                assert (member.failure is not None) == failed, variant
                # Before: what the rows before the failing one had decided was lost.
                ours: Answer = answer_of(member.take_found())
                assert ours == theirs, variant
                seen["a match"] += bool(ours)
                seen["a match of one that came later"] += bool(ours) and asked[k].begin > 0
                seen["a match before a failure"] += bool(ours) and failed
        kernels = [m.matcher for m in members.values() if isinstance(m.matcher, KernelMatcher)]
        seen["examples"] += 1
        seen["rows shared"] += any(len(kernel.rows) > 1 for kernel in kernels)
        seen["shared by one that came later"] += any(len(kernel.rows) > 1 and kernel.floor > 0 for kernel in kernels)
        seen["through the reference"] += len(kernels) < len(members)

    later = "a match of one that came later"
    drawn_until(check, lambda: is_quick() or seen[later] > 0)
    record_property("examples", ", ".join(f"{what} {count:,}" for what, count in seen.items()))
    for what in ("a match", "rows shared"):
        assert 5 * seen[what] >= seen["examples"], what
    assert is_quick() or seen[later] > 0


def saved_and_restored(feed: Feed, members: dict[int, Member], schema: Schema) -> tuple[Feed, dict[int, Member]]:
    """The same by way of bytes; queries that have failed leave."""
    for k in [k for k, member in members.items() if member.failure is not None]:
        feed.remove(members.pop(k))
    state, order = feed.snapshot(list(members.values()))
    found = Feed(schema)
    restored = found.restore(state, [member.matcher.plan for member in order])  # type: ignore[attr-defined]
    places = {id(member): place for place, member in enumerate(order)}
    return found, {k: restored[places[id(member)]] for k, member in members.items()}


class Referred(Alone):
    """The same through the reference."""

    def __init__(self, plan: Plan, schema: Schema) -> None:
        self.drive = Drive(Ordering(schema), ReferenceMatcher(plan, lenient=True))


@st.composite
def versions(draw: st.DrawFn) -> tuple[Plan, Plan]:
    """A plan and what comes after it: most of the time the same with other measures, else any."""
    old = draw(plans() | skipping())
    if draw(st.integers(0, 2)) == 0:
        new = replace(draw(plans() | skipping()), partition_by=old.partition_by)
    else:
        some = [[m for m in old.measures if draw(st.booleans())] for _ in range(2)]
        old, new = replace(old, measures=tuple(some[0])), replace(old, measures=tuple(some[1]))
        if draw(st.integers(0, 2)) == 0:
            window = Within(interval_us=draw(st.integers(1, 8)) * SECOND_US)
            new = replace(new, after=AfterMatch(AfterMatchKind.TO_NEXT_ROW), within=window)
    assume(can_run(old) and can_run(new))
    return old, new


@pytest.mark.slow
@pytest.mark.parametrize("late", [False, True])
def test_a_new_version_is_as_if_it_had_run_since_the_old_one_began(
    late: bool, record_property: Callable[[str, object], None]
) -> None:
    schema = replace(SCHEMA, lateness_us=60 * SECOND_US) if late else SCHEMA
    seen: Counter[str] = Counter()

    @FEWER
    @given(rows=events(min_size=4), versions=versions(), other=plans(), data=st.data())
    def check(rows: list[Row], versions: tuple[Plan, Plan], other: Plan, data: st.DataObject) -> None:
        assume(can_run(other))
        order = data.draw(st.permutations(range(len(rows)))) if late else list(range(len(rows)))
        parts = pieces(rows, order, data.draw(st.lists(st.integers(1, len(rows)), min_size=1, max_size=5)))
        begin = data.draw(st.just(0) | st.integers(0, len(parts) - 1))
        switch = data.draw(st.integers(min(begin + 1, len(parts) - 1), len(parts) - 1))
        for slack in variants(0, 1 << 15):
            with constant("matching.rows.SLACK", slack):
                compare(rows, order, parts, begin, switch, *versions, other, f"SLACK {slack}")

    def compare(
        rows: list[Row], order: list[int], parts: list[tuple[EventBatch, int | None]], begin: int, switch: int,
        old: Plan, new: Plan, other: Plan, variant: str,
    ) -> None:  # fmt: skip
        whole = replace(batch_of(SCHEMA, rows), seq=np.argsort(np.array(order, np.int64)))
        feed = Feed(schema)
        beside, by_itself = feed.add(replace(other, partition_by=old.partition_by), 0), Alone(other)
        by_itself.drive = Drive(
            Ordering(schema), make_matcher(replace(other, partition_by=old.partition_by), lenient=True)
        )
        member, since_seq, seq, how = beside, 0, 0, ""
        expected, was = Referred(new, schema), Referred(old, schema)
        for i, (part, watermark_us) in enumerate(parts):
            kept = whole.take(np.flatnonzero(whole.seq < seq))
            if i == begin:
                member, since_seq = feed.add(old, seq), seq
            if i == switch:

                def read(low_us: int, high_us: int, kept: EventBatch = kept) -> EventBatch:
                    return kept.take(np.flatnonzero((kept.ts_us >= low_us) & (kept.ts_us <= high_us)))

                went_on = feed.succeed(member, new, read)
                how = "went on" if went_on is not None else "replayed"
                if went_on is None:
                    low_us = needed_from(new, feed.advanced_us)
                    if low_us is not None:
                        how = "replayed in part"
                    mine = kept.seq >= since_seq
                    mine &= kept.ts_us >= (low_us if low_us is not None else kept.ts_us)
                    went_on = feed.replay(new, since_seq, kept.take(np.flatnonzero(mine)))
                    feed.remove(member)
                member = went_on
            seq += len(part)
            last = i == len(parts) - 1
            feed.push(part, watermark_us)
            if last:
                feed.advance(None)
            others = by_itself.push(part, watermark_us, last)
            assert not by_itself.failed
            assert answer_of(beside.take_found()) == answer_of(others), variant
            if i >= begin:
                theirs, before = expected.push(part, watermark_us, last), was.push(part, watermark_us, last)
                assume(not expected.failed and not was.failed)  # more steps than the reference allows itself
                assert member.failure is None, variant
                ours, due = answer_of(member.take_found()), answer_of(before if i < switch else theirs)
                if how == "replayed in part":  # nobody asks for the numbers of its matches
                    ours, due = (sorted(((m[0], *m[2:]) for m in answer), key=repr) for answer in (ours, due))
                assert ours == due, variant
                seen[f"{how} and found"] += i >= switch and bool(ours)
        seen["examples"] += 1
        seen[how] += switch > begin

    drawn_until(check, lambda: min(seen["went on and found"], seen["replayed and found"]) > 0)
    record_property("examples", ", ".join(f"{what} {count:,}" for what, count in seen.items()))
    assert seen["went on and found"] > 0
    assert seen["replayed and found"] > 0

"""New versions of live queries with boxes."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.batch import EventBatch
from matching.feed import Feed
from matching.members import Member
from matching.needed import needed_from
from query.errors import HybridWarning
from query.plan.plan import Plan
from tests.hierarchies import (
    EVENTS,
    batch_of,
    composed,
    event_lists,
    leaves,
    named_patterns,
    output,
    over,
    patterns_over,
    plan_of,
)
from tests.properties.comparing import FEWER, drawn_until_told

SELECTIONS = ["NEXT", "ANY", "PARTITION", "STRICT"]


@st.composite
def versions(draw: st.DrawFn, key: bool) -> tuple[Plan, Plan]:
    """A plan and what comes after it: with other measures, with another outermost pattern, or with another pattern of a
    box."""
    free = draw(st.booleans())
    patterns = {name: freed(text) if free else text for name, text in draw(named_patterns(key, SELECTIONS)).items()}
    outermost = draw(patterns_over(tuple(patterns), key, SELECTIONS, boxed=True))[0]
    what = draw(st.sampled_from(["measures", "measures", "measures", "outermost", "box"]))
    after = patterns
    if what == "measures":
        other = draw(st.sampled_from(["", "count(*) + 1 AS n, ", "count(*) AS o, "]))
        new = outermost.replace("count(*) AS n, ", other)
    elif what == "outermost":
        new = draw(patterns_over(tuple(patterns), key, SELECTIONS, boxed=True))[0]
    else:
        new, name = outermost, draw(st.sampled_from(sorted(patterns)))
        after = patterns | {name: draw(patterns_over((), key, SELECTIONS))[0]}
    if free:
        outermost, new = freed(outermost), freed(new)
    return plan_of(over(patterns, outermost)), plan_of(over(after, new))


def freed(text: str) -> str:
    """Returns a pattern of which only the events of the last WITHIN matter."""
    text = re.sub(r"(AFTER MATCH [A-Z ]*?)?PATTERN \(", "AFTER MATCH NO SKIP PATTERN (", text)
    return text if "WITHIN" in text else text.replace("SELECTION", "WITHIN INTERVAL 4 MICROSECOND SELECTION")


@pytest.mark.slow
@pytest.mark.nightly
def test_a_new_version_is_as_if_it_had_run_since_the_old_one_began(
    record_property: Callable[[str, object], None],
) -> None:
    """The rows, their evidence and their order; other queries that share patterns with it go on as before."""
    seen: Counter[str] = Counter()

    @FEWER
    @given(data=st.data(), key=st.booleans())
    def check(data: st.DataObject, key: bool) -> None:
        old, new = data.draw(versions(key))
        events = data.draw(event_lists(key))
        begin = data.draw(st.integers(0, len(events) - 2))
        switch = data.draw(st.integers(begin + 1, len(events) - 1))
        beside, restart, batch = data.draw(st.booleans()), data.draw(st.booleans()), batch_of(events)
        feed, whole = Feed(EVENTS), Feed(EVENTS)
        other = feed.add(old, 0) if beside else None
        member, expected, how = feed.add(old, 0), whole.add(new, 0), ""
        others = []
        if begin:
            feed.remove(member)
            whole.remove(expected)
        for i, event in enumerate(events):
            if i == begin and begin:
                member, expected = feed.add(old, i), whole.add(new, i)
            if i == switch:
                went_on = feed.succeed(member, new, nothing)
                how = "went on"
                if went_on is None:
                    low_us = needed_from(new, feed.advanced_us)
                    how = "replayed" if low_us is None else "replayed in part"
                    mine = (batch.seq >= begin) & (batch.seq < i)
                    mine &= batch.ts_us >= (-1 if low_us is None else low_us)
                    went_on = feed.replay(new, begin, batch.take(np.flatnonzero(mine)))
                    feed.remove(member)
                member = went_on
                if restart:
                    feed, member, other = restarted(feed, member, new, other, old)
            for one in (feed, whole):
                one.push(batch.slice(i, i + 1), event.ts_us)
                if i == len(events) - 1:
                    one.advance(None)
            if other is not None:
                others += leaves(other.take_found())
            assert member.failure is None
            ours, theirs = member.take_found(), expected.take_found()
            if i >= switch:
                assert leaves(ours) == leaves(theirs)
                assert output(ours) == output(theirs)
                seen[f"{how} and found"] += bool(leaves(ours))
        if other is not None:
            assert sorted(others) == sorted(tuple(match.leaves()) for match in composed(old, events))
        seen[how] += 1

    def told() -> None:
        assert seen["went on and found"] > 10
        assert seen["replayed and found"] + seen["replayed in part and found"] > 5

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        drawn_until_told(check, told)
    record_property("examples", str(dict(seen)))


def nothing(low_us: int, high_us: int) -> EventBatch:
    raise AssertionError("events are read for merged rows")


def restarted(
    feed: Feed, member: Member, new: Plan, other: Member | None, old: Plan
) -> tuple[Feed, Member, Member | None]:
    """Returns a feed that goes on from a snapshot, and its members."""
    plans = {id(member): new, id(other): old}
    state, order = feed.snapshot([one for one in (member, other) if one is not None])
    feed = Feed(EVENTS)
    restored = dict(zip(map(id, order), feed.restore(state, [plans[id(one)] for one in order]), strict=True))
    again, beside = restored[id(member)], restored.get(id(other))
    assert isinstance(again, Member)
    assert beside is None or isinstance(beside, Member)
    return feed, again, beside

"""Patterns made of patterns that run as one plain pattern: the rows of composition, in its order, with its evidence."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.batch import Matches
from matching.hierarchy.flattened import FlattenedMatcher
from matching.hierarchy.matcher import HierarchyMatcher
from matching.identity import match_ids
from matching.matcher import make_matcher
from matching.purpose import Purpose
from query.errors import HybridWarning
from query.plan.fingerprint import fingerprint
from query.plan.plan import Plan
from tests.hierarchies import (
    Hierarchy,
    batch_of,
    composed,
    hierarchies_of_all_matches,
    leaves,
    matched,
    output,
    plan_of,
)
from tests.properties.comparing import drawn_until, fewer, is_nightly


def ids(plan: Plan, found: Sequence[Matches]) -> list[str]:
    return [one for m in found for one in match_ids(
        fingerprint(plan), m.event_bounds, m.event_variable, m.event_source, m.event_offset, m.variables, m.sources
    )]  # fmt: skip


def by_layers(plan: Plan, one: Hierarchy) -> list[Matches]:
    matcher = HierarchyMatcher(plan, lambda layer, use: make_matcher(layer, purpose=use))
    return [matcher.push(batch_of(one.events)), matcher.advance(None)]


def falling_back(plan: Plan, one: Hierarchy, at: int) -> list[Matches]:
    """Returns the matches where layers take over before the batch `at`, from a snapshot of each batch."""
    matcher, batch, out = make_matcher(plan), batch_of(one.events), []
    for i, (start, stop) in enumerate(pairwise([0, *one.cuts, len(one.events)])):
        assert isinstance(matcher, FlattenedMatcher)
        if i == at and matcher.why_layers is None:
            matcher.to_layers("a test")
        out.append(matcher.push(batch.slice(start, stop)))
        if one.watermarks and stop < len(one.events):
            out.append(matcher.advance(one.events[stop].ts_us))
        state = matcher.snapshot()
        matcher = make_matcher(plan)
        assert matcher.fits(state)
        matcher.restore(state)
    return [*out, matcher.advance(None)]


def compare(one: Hierarchy, data: st.DataObject) -> set[str]:
    """Compares whole rows in order, with ids and evidence, for each use of the matches, under any batches, continued
    from snapshots, and where layers take over at some batch. Returns what of one pattern has given matches; nothing if
    layers run."""
    plan = plan_of(one.text)
    whole = make_matcher(plan)
    if not isinstance(whole, FlattenedMatcher):
        return set()
    expected = composed(plan, one.events)
    of_leaves = [tuple(match.leaves()) for match in expected]
    rows = [tuple(match.row.values()) for match in expected]
    how = {"watermarks": one.watermarks, "restart": one.restart}
    if not expected and not is_nightly():  # two of three examples
        assert leaves(matched(plan, one.events, one.cuts, purpose=Purpose.LIVE, **how)) == []
        return {"no match"}
    layered = by_layers(plan, one)
    assert (leaves(layered), output(layered)) == (of_leaves, rows)
    for purpose in (Purpose.MATCHES, Purpose.LIVE):
        found = matched(plan, one.events, one.cuts, purpose=purpose, **how)
        assert (leaves(found), output(found)) == (of_leaves, rows)
        assert ids(plan, found) == ids(plan, layered)
    assert output(matched(plan, one.events, one.cuts, purpose=Purpose.ROWS, **how)) == rows
    found = falling_back(plan, one, data.draw(st.integers(0, len(one.cuts))))
    assert (leaves(found), output(found)) == (of_leaves, rows)
    if not expected:
        return {"no match"}
    whole.push(batch_of(one.events))
    ends, way = [match.last for match in expected], whole.way.one
    met = {
        "matches": True, "matches with one last event": len(set(ends)) < len(ends),
        "matches of different variables": bool(way.steps), "rows before": way.rows_before > 0,
        "computed beforehand": bool(way.computed), "layers take over": whole.why_layers is not None,
        "functions": "LIKE" in one.text or "upper" in one.text,
    }  # fmt: skip
    return {what for what, there in met.items() if there}


@pytest.mark.slow
def test_one_pattern_gives_the_rows_of_composition() -> None:
    tally: Counter[str] = Counter()

    @fewer(100, least=40, by_day=10)
    @given(hierarchies_of_all_matches(), st.data())
    def check(one: Hierarchy, data: st.DataObject) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HybridWarning)
            tally.update(compare(one, data))

    forms = ("matches with one last event", "matches of different variables", "rows before", "computed beforehand",
             "layers take over", "functions")  # fmt: skip
    drawn_until(check, lambda: all(tally[form] for form in forms))
    assert [form for form in forms if not tally[form]] == []

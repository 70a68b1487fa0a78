"""Patterns made of patterns that run as one plain pattern: the rows of composition, in its order, with its evidence."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from itertools import pairwise

from hypothesis import event, given, settings
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


def _fails(one: Hierarchy) -> bool:
    return "CAST" in one.text and any(e.type == "x" for e in one.events)


@settings(max_examples=200)
@given(hierarchies_of_all_matches(), st.data())
def test_one_pattern_gives_the_rows_of_composition(one: Hierarchy, data: st.DataObject) -> None:
    """Whole rows in order, with ids and evidence, for each use of the matches, under any batches, continued from
    snapshots, and where layers take over at some batch."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        plan = plan_of(one.text)
        if not isinstance(make_matcher(plan), FlattenedMatcher):
            event("layers")
            return
        event(f"matches have different variables: {bool(re.search(r'[+?]|1,2', one.text))}")
        event(f"beside: {'PREV' in one.text}, functions: {'upper' in one.text or 'LIKE' in one.text}")
        event(f"computed beforehand: {'CAST' in one.text}, after events of which it fails: {_fails(one)}")
        expected = composed(plan, one.events)
        event("matches" if expected else "no match")
        ends = [match.last for match in expected]
        event("matches with one last event" if len(set(ends)) < len(ends) else "each with its own")
        of_leaves = [tuple(match.leaves()) for match in expected]
        rows = [tuple(match.row.values()) for match in expected]
        how = {"watermarks": one.watermarks, "restart": one.restart}
        layered = by_layers(plan, one)
        assert (leaves(layered), output(layered)) == (of_leaves, rows)
        for purpose in (Purpose.MATCHES, Purpose.LIVE):
            found = matched(plan, one.events, one.cuts, purpose=purpose, **how)
            assert (leaves(found), output(found)) == (of_leaves, rows)
            assert ids(plan, found) == ids(plan, layered)
        assert output(matched(plan, one.events, one.cuts, purpose=Purpose.ROWS, **how)) == rows
        found = falling_back(plan, one, data.draw(st.integers(0, len(one.cuts))))
        assert (leaves(found), output(found)) == (of_leaves, rows)

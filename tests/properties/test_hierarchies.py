"""Patterns made of patterns: matchers of layers against composition."""

from __future__ import annotations

import warnings

from hypothesis import assume, event, given, settings

from matching.purpose import Purpose
from query.errors import HybridWarning
from tests.hierarchies import Hierarchy, composed, factor_of, hierarchies, leaves, matched, output, plan_of


@settings(max_examples=150)
@given(hierarchies())
def test_layers_equal_composition(one: Hierarchy) -> None:
    """The same matches in the same order, with the same evidence and rows, however events are cut into batches, with
    and without watermarks, and continued from snapshots."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)  # some negations run through the reference matcher
        plan = plan_of(one.text)
        expected = composed(plan, one.events)
        event("matches" if expected else "no match")
        how = {"watermarks": one.watermarks, "restart": one.restart}
        found = matched(plan, one.events, one.cuts, **how)
        assert leaves(found) == [tuple(match.leaves()) for match in expected]
        rows = [tuple(match.row.values()) for match in expected]
        assert output(found) == rows
        assert output(matched(plan, one.events, one.cuts, purpose=Purpose.ROWS, **how)) == rows


@settings(max_examples=100)
@given(hierarchies(sources=("events", "others", "MERGE(events, others)")))
def test_layers_of_several_streams_equal_composition(one: Hierarchy) -> None:
    """The same where layers read other streams than FROM, with columns of other types."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        factor = factor_of(one.text)
        assume(factor.merged is not None)
        expected = composed(factor.plan, one.events, factor=factor)
        event("matches" if expected else "no match")
        how = {"watermarks": one.watermarks, "restart": one.restart}
        found = matched(factor.plan, one.events, one.cuts, factor=factor, **how)
        assert leaves(found) == [tuple(match.leaves()) for match in expected]
        rows = [tuple(match.row.values()) for match in expected]
        assert output(found) == rows
        assert output(matched(factor.plan, one.events, one.cuts, factor=factor, purpose=Purpose.ROWS, **how)) == rows

"""Patterns made of patterns: matchers of layers against composition."""

from __future__ import annotations

import warnings

from hypothesis import event, given, settings

from matching.purpose import Purpose
from query.errors import HybridWarning
from tests.hierarchies import Hierarchy, composed, hierarchies, leaves, matched, output, plan_of


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

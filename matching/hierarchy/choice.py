"""The choice between the two ways to run a pattern with boxes: one matcher for each layer, or one plain pattern. Made
here only, executed by every path, printed by EXPLAIN."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from matching.engines.choose import choose_engine
from matching.engines.engine import EnginePlan
from matching.engines.run_blocks import RunBlocks
from matching.engines.run_graph import RunGraph
from matching.engines.run_merged import RunMerged
from matching.purpose import Purpose
from query.errors import QueryError
from query.plan.boxes import bounded
from query.plan.fingerprint import fingerprint
from query.plan.one_pattern import OnePattern, one_pattern
from query.plan.pattern import Variable
from query.plan.plan import Plan

#: Engines in which all matches are found in time that depends on events and conditions, as in layers.
_MERGING = (RunGraph, RunMerged, RunBlocks)
#: Most partial matches of one partition in one plain pattern if they are pairs of events inside a box and events around
#: it, where layers have as many as there are of either.
PAIRS_MAX = 32_000


@dataclass(frozen=True, slots=True)
class AsOne:
    """A pattern with boxes that runs as one plain pattern. plan: as it runs; the matches without evidence show the
    positions of their events (OnePattern.placed). chosen: its engine, with its limit of partial matches."""

    one: OnePattern
    plan: Plan
    chosen: EnginePlan

    def __str__(self) -> str:
        back = f"; as layers from {self.chosen.runs_max:,} partial matches on" if self.one.crossing else ""
        return f"runs as one pattern: {self.one.plan.pattern}, in one search where layers have {self.one.layers}{back}"


def use_of(purpose: Purpose) -> Purpose:
    """Returns the use of the matches of a pattern with boxes: its evidence is never found again."""
    return Purpose.LIVE if purpose.live else Purpose.ROWS if purpose is Purpose.ROWS else Purpose.MATCHES


def as_one(plan: Plan, purpose: Purpose) -> AsOne | str:
    """Returns how a pattern with boxes runs as one plain pattern; a string says why it runs as layers.

    One pattern takes the conditions of all layers from an event at once, and finds a match of a box only behind what
    precedes the box. It has no more partial matches than the layers, unless it compares events inside a box and events
    around it at the same time (Crossing)."""
    one = one_pattern(plan)
    if isinstance(one, str):
        return one
    use = use_of(purpose)
    if one.steps and use.bare:
        use = Purpose.MATCHES  # the positions of events come with their evidence
    try:
        as_run = one.placed if use.bare else one.plan
        chosen = choose_engine(as_run, use)
    except QueryError as error:
        return error.diagnostics[0].message
    if chosen.program is None or not (chosen.engine in _MERGING or _is_of_events(plan)):
        return f"partial matches of one pattern would not merge: {chosen.why}"
    if one.crossing is not None and one.crossing.few:
        return f"{one.crossing.path} has few matches, and layers compare the events around it with these only"
    if one.crossing is not None:
        chosen = replace(chosen, runs_max=min(chosen.runs_max, PAIRS_MAX))
    return AsOne(one, as_run, chosen)


def _is_of_events(plan: Plan) -> bool:
    """True if all boxes stand for single events."""
    return all(isinstance(box.plan.pattern, Variable) and _is_of_events(box.plan) for box in plan.boxes)


def patterns_of_boxes(plan: Plan) -> set[str]:
    """Returns the fingerprints of the patterns of boxes of all layers, as they are searched."""
    found: set[str] = set()

    def below(one: Plan) -> None:
        for box in one.boxes:
            found.add(fingerprint(box.plan))
            below(box.plan)

    below(bounded(plan))
    return found


def shares_patterns(plan: Plan, others: Iterable[Plan]) -> bool:
    """True if a pattern with boxes has one in common with others: it is then searched once for all of them, which is
    cheaper than once for each."""
    own = patterns_of_boxes(plan)
    return any(own & patterns_of_boxes(other) for other in others)

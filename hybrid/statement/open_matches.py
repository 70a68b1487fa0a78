"""Matches of a stream that has not ended, which exist only because the input of the statement ends there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hybrid.rows.times import show_us
from hybrid.statement.stream_input import StreamInput
from matching.batch import Matches
from matching.program.refused import negated_ends
from query.plan.output import Outcome
from query.plan.plan import Plan


def outcomes_at_end(plan: Plan) -> tuple[Outcome, ...]:
    """Returns the outcomes that the end of WITHIN decides: a match, if something must not follow it; a timeout."""
    if plan.trends is not None or plan.within is None or plan.within.interval_us is None:
        return ()
    absent = (Outcome.MATCH,) if negated_ends(plan.pattern).behind else ()
    return (*absent, Outcome.TIMEOUT) if plan.timeout_rows else absent


def open_matches(plan: Plan, found: Sequence[Matches], streams: Sequence[StreamInput]) -> str | None:
    """Returns a warning about those of the matches for which a live query would still wait; None if there are none.
    streams: the inputs of the plan that have not ended."""
    decided = outcomes_at_end(plan)
    if not decided or not streams:
        return None
    slowest = min(streams, key=lambda one: one.watermark_us)
    extent, *_ = slowest.snapshot.extent()
    within_us = 0 if plan.within is None else plan.within.interval_us or 0
    count = waiting = 0
    for m in found:
        outcome = np.full(len(m), Outcome.MATCH) if m.outcome is None else m.outcome
        count += int(np.count_nonzero(outcome != Outcome.UNMATCHED))
        waiting += int(np.count_nonzero(np.isin(outcome, decided) & (m.first_us + within_us >= slowest.watermark_us)))
    if not waiting or extent is None:
        return None
    exist = "exists" if waiting == 1 else "exist"
    return (
        f"{waiting:,} of {count:,} matches {exist} only because {slowest.schema.name} ends at {show_us(extent[1])}: "
        "a live query would still wait; as_live=True leaves them out"
    )

"""The events that matches to come may still need: what a replay reads."""

from __future__ import annotations

from query.language.ast import AfterMatchKind
from query.plan.boxes import independent_of_before
from query.plan.expression import MatchNumber, walk
from query.plan.lag import in_order_of_last_events
from query.plan.plan import Plan


def needed_from(plan: Plan, watermark_us: int | None) -> int | None:
    """Returns the time of the first event that can still affect matches emitted after the watermark; None: all may.
    Events expire if matches do not depend on each other and read nothing before their first row."""
    from matching.program.program import NoKernel, assemble

    if watermark_us is not None and plan.trends is not None:
        return watermark_us - plan.trends.within_us  # events of open windows
    if plan.boxes:
        width_us = None if plan.within is None else plan.within.interval_us
        free = independent_of_before(plan) and in_order_of_last_events(plan)
        return watermark_us - width_us if free and watermark_us is not None and width_us is not None else None
    free = plan.after.kind in (AfterMatchKind.NO_SKIP, AfterMatchKind.TO_NEXT_ROW)
    numbered = (isinstance(e, MatchNumber) for m in plan.measures for e in walk(m.expression))
    if watermark_us is None or plan.within is None or plan.within.interval_us is None or not free or any(numbered):
        return None
    try:
        program = assemble(plan)
    except NoKernel:
        return None
    reads_beyond = program.reach.before or program.reach.after or any(program.first_row)
    if reads_beyond or program.absent or program.extras.unmatched:
        return None
    return watermark_us - plan.within.interval_us

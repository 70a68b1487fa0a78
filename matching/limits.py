"""Errors of matches without end: too many partial matches, and AFTER MATCH SKIP TO that does not move on."""

from __future__ import annotations

from matching.program.program import Mode, Program
from query.errors import NO_SPAN, Diagnostic, QueryError
from query.plan.plan import AfterMatch, Plan


def over_budget(plan: Plan, program: Program, runs_max: int) -> QueryError:
    """Returns the error of a partition with more than `runs_max` partial matches, and why they do not merge."""
    dependent = dict.fromkeys(v for v, code in zip(program.variables, program.code, strict=True) if code)
    hints = ["shorten WITHIN" if plan.within else "add WITHIN", "partition by more columns"]
    if dependent:
        names = ", ".join(dependent)
        why = f"the condition of {names} depends on the match so far, so partial matches do not merge"
        hints.append("make neighbouring conditions exclude each other")
    elif program.ignore:
        why = f"under {plan.selection.value} every way to pass over rows is one"
    elif program.mode is Mode.ALL:
        why = "NO SKIP asks for all matches"
        hints.append("ask for one match per start (AFTER MATCH SKIP TO NEXT ROW)")
    elif program.absent:
        why = "a negation at the start or end of a match keeps the starts apart"
    elif program.mode is Mode.TO_NEXT_ROW:
        why = f"AFTER MATCH {plan.after} keeps the starts apart"
        hints.append("use AFTER MATCH SKIP PAST LAST ROW")
    else:
        why = "WITHIN keeps the starts apart"
    hint = ", ".join(hints[:-1]) + f", or {hints[-1]}"
    most = f"{runs_max:,}"
    message = f"PATTERN ({plan.pattern}): one partition needs more than {most} partial matches: {why}"
    return QueryError([Diagnostic("HQ600", message, NO_SPAN, hint=hint)])


def not_moving_on(after: AfterMatch) -> QueryError:
    """Returns the error of a match after which the scan would begin again at the same row."""
    why = f"its first row is {'|'.join(after.variables)}, or it has no such row"
    message = f"AFTER MATCH {after} would not move on from a match: {why}"
    hint = "AFTER MATCH SKIP TO NEXT ROW and SKIP PAST LAST ROW always move on"
    return QueryError([Diagnostic("HQ601", message, NO_SPAN, hint=hint)])

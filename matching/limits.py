"""Errors of matches without end, too many partial matches and AFTER MATCH SKIP TO that does not move on; and of windows
beyond the end of time."""

from __future__ import annotations

from matching.program.program import Mode, Program
from query.errors import NO_SPAN, DataError, Diagnostic, QueryError
from query.plan.plan import AfterMatch, Plan

#: The first and the last time that is not infinite, in microseconds.
_FIRST_US, _LAST_US = -(2**63) + 2, 2**63 - 2


def over_budget(plan: Plan, program: Program | None, runs_max: int, bytes_max: int | None = None) -> QueryError:
    """Returns the error of a partition with more than `runs_max` partial matches, or of matches and partial matches
    that take more than `bytes_max`, and why they do not merge. program: None if the plan has none, or several."""
    hints = ["shorten WITHIN" if plan.within else "add WITHIN", "partition by more columns"]
    needs = f"one partition needs more than {runs_max:,} partial matches"
    if bytes_max is not None:
        needs = f"its matches and partial matches take more than {bytes_max / 1e6:,.0f} MB"
        hints.insert(0, "raise memory_limit")
    why = "" if program is None else f": {_why_apart(plan, program, hints)}"
    hint = ", ".join(hints[:-1]) + f", or {hints[-1]}"
    return QueryError([Diagnostic("HQ600", f"PATTERN ({plan.pattern}): {needs}{why}", NO_SPAN, hint=hint)])


def _why_apart(plan: Plan, program: Program, hints: list[str]) -> str:
    """Returns why partial matches do not merge; adds to `hints`."""
    dependent = dict.fromkeys(v for v, code in zip(program.variables, program.code, strict=True) if code)
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
        why = "WITHIN keeps the starts apart" if plan.within else "a match in progress keeps all its rows"
    return why


def not_moving_on(after: AfterMatch) -> QueryError:
    """Returns the error of a match after which the scan would begin again at the same row."""
    why = f"its first row is {'|'.join(after.variables)}, or it has no such row"
    message = f"AFTER MATCH {after} would not move on from a match: {why}"
    hint = "AFTER MATCH SKIP TO NEXT ROW and SKIP PAST LAST ROW always move on"
    return QueryError([Diagnostic("HQ601", message, NO_SPAN, hint=hint)])


def check_windows(start_us: int, end_us: int) -> None:
    """Raises DataError if a bound of windows from one time to another is no TIMESTAMP."""
    if start_us < _FIRST_US or end_us > _LAST_US:
        where = "starts before the first" if start_us < _FIRST_US else "ends after the last"
        raise DataError(f"a window from {start_us} us to {end_us} us {where} TIMESTAMP",
                        "leave the events at the end of time out with WHERE")

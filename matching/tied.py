"""Patterns whose rows all have one value of a column, since conditions compare it with an earlier row of the match.

Where no row of another value can be in a match, or forbid one, such a pattern finds the same matches among the rows of
each value alone. So the column divides the rows further than PARTITION BY, and a row meets the partial matches of its
own value instead of all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from matching.program.refused import negated_ends
from query.automaton.compile import compile_plan
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import (
    TRUE,
    Aggregate,
    Call,
    Column,
    Expression,
    Logical,
    MatchNumber,
    Navigation,
    conjuncts,
    is_row_local,
    walk,
)
from query.plan.never_fails import NEVER_FAIL, never_fails
from query.plan.pattern import anchors, negated
from query.plan.plan import AfterMatch, Define, Plan, Within
from query.plan.row_parts import total

#: Types of which `=` holds for the values that PARTITION BY puts together, but for null.
_TYPES = re.compile(
    r"BOOLEAN|U?(TINY|SMALL|BIG|HUGE)INT|U?INTEGER|VARCHAR|DATE|TIMESTAMP|DOUBLE|FLOAT|UUID|DECIMAL\(\d+,\d+\)"
)
_PASSING = (Selection.SKIP_TILL_NEXT, Selection.SKIP_TILL_ANY)
_NO_TIME = Column("", "")


@dataclass(frozen=True, slots=True)
class Tied:
    """columns: those whose value all rows of a match have in common. plan: finds the same matches; its rows are divided
    by these columns too, and its conditions do without the equalities that follow from that. numbered: WITHIN is over
    the numbers of rows, of all values, instead of times."""

    columns: tuple[Column, ...]
    plan: Plan
    numbered: bool = False


def tied(plan: Plan) -> Tied | str | None:
    """Returns the columns that tie the rows of a match together; a string says why they do not divide the rows. None:
    no condition compares a column with an earlier row for equality, or rows that pass are not compared anyway. Cost:
    that of the automaton."""
    if plan.trends is not None or plan.boxes or not any(_ties(d.condition) for d in plan.defines):
        return None
    states = compile_plan(plan).states
    passes = plan.selection in _PASSING
    later = {e.variable for state in states[1:] for e in state.edges}
    absent = set(negated(plan.pattern))
    if not passes and (later or not absent or plan.selection is Selection.STRICT):
        return None
    first = {e.variable for e in states[0].edges}
    conditions = {d.variable: d.condition for d in plan.defines}
    found = [_of_one(name, conditions[name], first, name in absent) for name in sorted(later | absent)]
    partition = {c.name for c in plan.partition_by}
    columns = tuple(c for c in dict.fromkeys(c for ties in found for c in ties) if c.name not in partition)
    columns = tuple(c for c in columns if all(c in ties for ties in found))
    if not columns:
        return None
    if (why := _why_not(plan)) is not None:
        return why
    if states[0].accept_at is not None:
        return "a match may be empty"
    time = plan.order_by[0].column if plan.order_by else _NO_TIME
    nullable = [c for c in columns if not all(_tells(conditions[name], c) for name in first | later | absent)]
    for name in sorted(later | absent):
        sure = [c for c, row in _ties(conditions[name]) if c in columns and _is_there(name, row, first, name in absent)]
        why = _why_unsure(name, conditions[name], sure, nullable, time, plan)
        if why is not None:
            return why
    alone = any(states[e.target].accept_at is not None for e in states[0].edges)
    defines = tuple(
        _alone(d, columns, first, later, absent, alone) if d.variable in first | later | absent else d
        for d in plan.defines
    )
    after = plan.after
    if passes and after.kind is AfterMatchKind.PAST_LAST_ROW and negated_ends(plan.pattern).behind:
        after = AfterMatch(AfterMatchKind.TO_NEXT_ROW)  # see matching.match_numbers.Overlaps
    divided = (*plan.partition_by, *columns)
    within, numbered = plan.within, plan.within is not None and plan.within.rows is not None
    if within is not None and within.rows is not None:
        within = Within(interval_us=within.rows - 1)
    return Tied(columns, replace(plan, partition_by=divided, defines=defines, after=after, within=within), numbered)


def _why_not(plan: Plan) -> str | None:
    """Returns the clause that looks at rows of other values. What PREV reads is known with a row; NEXT would keep keys
    that have rows which wait."""
    read = [*(d.condition for d in plan.defines), *(m.expression for m in plan.measures)]
    if any(isinstance(e, Navigation) and e.physical_offset > 0 for x in read for e in walk(x)):
        return "NEXT reads rows beside the match"
    if any(isinstance(e, MatchNumber) for d in plan.defines for e in walk(d.condition)):
        return "a condition reads MATCH_NUMBER()"
    if plan.within is not None and plan.within.rows is not None and not _counts_alone(plan):
        return "WITHIN counts the rows of each key" if plan.partition_by else "WITHIN counts all rows"
    if plan.after.kind in (AfterMatchKind.TO_FIRST, AfterMatchKind.TO_LAST):
        return f"AFTER MATCH {plan.after}"
    if anchors(plan.pattern):
        return "^ or $ asks for the first or last of all rows"
    if plan.timeout_rows or plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED:
        return "rows outside of matches come out too"
    return None


def _counts_alone(plan: Plan) -> bool:
    """True if WITHIN n ROWS counts the rows of one partition, whose numbers are as good as times, and no match waits
    for its end."""
    return not plan.partition_by and not negated_ends(plan.pattern).behind


def _ties(condition: Expression) -> list[tuple[Column, Navigation]]:
    """Returns the columns that conjuncts compare with the same column of a row of the match, for equality."""
    return [tie for part in conjuncts(condition) for tie in _equality(part)]


def _equality(part: Expression) -> Iterator[tuple[Column, Navigation]]:
    match part:
        case Call("=", (Column() as column, Navigation(Column() as other) as row)) | Call(
            "=", (Navigation(Column() as other) as row, Column() as column)
        ) if column == other and row.logical is not None and not row.physical_offset and _TYPES.fullmatch(column.type):
            yield column, row


def _of_one(name: str, condition: Expression, first: set[str], absent: bool) -> list[Column]:
    """Returns the columns that tie a row of a variable, not the first one of a match, to an earlier row of the match.
    absent: the variable is negated."""
    return [column for column, row in _ties(condition) if _is_earlier(name, row, first, absent)]


def _is_earlier(name: str, row: Navigation, first: set[str], absent: bool) -> bool:
    """True if a navigation, in a condition on a row that is not the first one, never means that row itself."""
    if row.variables and name not in row.variables:
        return True
    if absent:
        return False
    if row.logical is Logical.LAST:
        return row.logical_offset > 0
    return not row.logical_offset and (not row.variables or first <= set(row.variables))


def _is_there(name: str, row: Navigation, first: set[str], absent: bool) -> bool:
    """True if a navigation that means an earlier row always means one."""
    if row.logical_offset or not _is_earlier(name, row, first, absent):
        return False
    return not row.variables or first <= set(row.variables)


def _tells(condition: Expression, column: Column) -> bool:
    """True if a condition holds only where a column is not null."""
    return any(part == _is_not_null(column) for part in conjuncts(condition))


def _why_unsure(
    name: str, condition: Expression, sure: list[Column], nullable: list[Column], time: Column, plan: Plan
) -> str | None:  # fmt: skip
    """Returns why the condition of a variable may fail on a row of another value, where that is an error. sure: columns
    that it compares with a row that is there; nullable: those that may be null."""
    decided: Column | None = None  # an equality, read before, that may leave the rest undecided by a null only
    for part in conjuncts(condition):
        if tie := next(_equality(part), None):
            decided = tie[0] if tie[0] in sure and (decided is None or decided in nullable) else decided
        elif not _is_sure(part, time, plan):
            if decided is None or is_row_local(part):
                return f"the condition of {name} may fail, which is an error whatever the equality says"
            if decided in nullable:
                says = f"{decided.name} IS NOT NULL"
                return f"the condition of {name} may fail where {decided.name} is null; let all conditions say {says}"
    return None


def _is_sure(e: Expression, time: Column, plan: Plan) -> bool:
    """True if a condition, or a part of one, can be computed for all rows. time: a column without infinities."""
    if never_fails(e, time):
        return True
    if isinstance(e, Call) and e.function in NEVER_FAIL:
        return all(_is_sure(part, time, plan) for part in e.arguments)
    aggregates = all(never_fails(x, time) for x in walk(e) if isinstance(x, Aggregate))
    return aggregates and total(e, plan.settings)


def _alone(
    define: Define, columns: tuple[Column, ...], first: set[str], later: set[str], absent: set[str], alone: bool
) -> Define:  # fmt: skip
    """Returns the condition of a variable among rows of one value: an equality that always holds there is left out,
    unless the value is null. alone: a match may be of one row."""
    name = define.variable
    parts = []
    for part in conjuncts(define.condition):
        tie = next(_equality(part), None)
        follows = tie is not None and tie[0] in columns and _is_there(name, tie[1], first, name in absent)
        if tie is not None and follows and name in later | absent:
            part = _is_not_null(tie[0])
        parts.append(part)
    if name not in later | absent and not alone:  # no other row is tied to one with a null
        parts += [_is_not_null(column) for column in columns]
    parts = [part for part in dict.fromkeys(parts) if part != TRUE] or [TRUE]
    return Define(name, parts[0] if len(parts) == 1 else Call("and", tuple(parts), "BOOLEAN"))


def _is_not_null(column: Column) -> Expression:
    return Call("is_not_null", (column,), "BOOLEAN")

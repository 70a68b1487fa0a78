"""Which rows can be part of a match at all: those near a row that every match needs.

The idea is that of Zhu, Huang and Chaudhuri (PVLDB 2023: rows are prefiltered by joins on a chosen subset of symbols,
then matched) and of Koerber, Glombiewski and Seeger (SIGMOD 2021: conditions on single rows prune the stream before it
is matched); here with one set of symbols, and with windows of time in place of joins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from archive.reader import RangeRequest
from archive.recent import Windows
from archive.snapshot import HistorySnapshot
from matching.program.program import NoKernel, assemble
from query.language.ast import RowsPerMatch, Selection
from query.plan.expression import (
    TRUE,
    Aggregate,
    Call,
    Classifier,
    Column,
    Constant,
    Expression,
    MatchNumber,
    Navigation,
    Opaque,
    show,
    walk,
)
from query.plan.pattern import (
    Alternation,
    Anchor,
    Empty,
    Exclusion,
    Negation,
    Repeat,
    RowPattern,
    Sequence,
    Variable,
    anchors,
    min_rows,
)
from query.plan.plan import Plan

#: With fewer events a look for the rarest condition costs more than it saves.
_ROWS_MIN = 1_000_000
#: Files in which the conditions are counted, for a guess at how rare they are.
_SAMPLE_FILES = 8
#: It is worth it where at most this part of the events meets the rarest condition, and at most that part lies near one
#: that does: reading by windows costs about as much as reading all, matching and sorting are what is saved.
_ANCHORS_PART_MAX = 0.02
_EVENTS_PART_MAX = 0.25
#: Types by which windows are told apart: stored as they are, and equal to DuckDB when they are equal to PARTITION BY.
_PARTITION_TYPES = ("VARCHAR", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "BOOLEAN", "DATE")
_FLOATING = ("DOUBLE", "FLOAT")
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
_NEVER_FAIL = frozenset(
    (
        "and", "or", "not", "=", "<>", "<", "<=", ">", ">=", "is_distinct", "is_not_distinct", "is_null",
        "is_not_null", "coalesce", "case", "in", "between",
    )
)  # fmt: skip


def windows_of(
    snapshot: HistorySnapshot, plan: Plan, low_us: int | None, high_us: int | None, late: bool, wanted: bool | None,
    total: int,
) -> tuple[Windows | None, str]:  # fmt: skip
    """The windows of time, for each partition, in which all matches of a plan lie; None: all events are to be read. And
    what was decided, in words. wanted: True wherever it is sound, False never, None where it is worth it as well.

    Every match has a row of one of some variables, the rarest there are (`mandatory`), and spans at most WITHIN. So all
    rows of a match with such a row at t lie in [t - WITHIN, t + WITHIN] of its partition, and so do all rows that its
    start s could go on with up to s + WITHIN. The rows of the windows, merged where they touch, are read whole.

    From a start that has such a row within WITHIN the matcher then sees the very rows it would have seen, and decides
    alike. From any other start there is no match, neither among all rows nor among these. What comes of the others
    matters to nobody, as long as (see `unsound`)
    - a match is looked for in its partition only (not STRICT), has a row, and WITHIN is an interval: rows of a
      partition are not counted;
    - neither conditions nor measures read rows outside of the match (PREV, NEXT), nor ask for the first or last row of
      the partition (^, $), nor for the absence of rows before or behind the match (a negation at an edge);
    - no rows come out that are in no match (WITH UNMATCHED ROWS, TIMEOUT ROWS);
    - no condition can fail on a row that is left out, and none reads MATCH_NUMBER().
    One difference is left: a search that would need too many partial matches (HQ600) where there is nothing to find
    may go well."""
    why = "not asked for" if wanted is False else unsound(plan)
    if why is None and wanted is None and total < _ROWS_MIN:
        why = "few events"
    if why is not None:
        return None, f"no prefilter: {why}"
    assert plan.within is not None
    assert plan.within.interval_us is not None
    conditions = {d.variable: own_row(d.condition) for d in plan.defines}
    rows, counts = snapshot.count_where(list(conditions.values()), low_us, high_us, late=late, files_max=_SAMPLE_FILES)
    rates = {name: count / max(rows, 1) for name, count in zip(conditions, counts)}
    found = mandatory(plan.pattern, rates)
    assert found is not None, "min_rows is one at least"
    rate, names = found
    which = [conditions[name] for name in names]
    text = f"{'|'.join(names)} AS {' OR '.join(map(show, which))}, of {rate:.2%} of {rows:,} events"
    if wanted is None and rate > _ANCHORS_PART_MAX:
        return None, f"no prefilter: the rarest condition is {text}"
    condition = which[0] if len(which) == 1 else Call("or", tuple(which), "BOOLEAN")
    columns = [c.name for c in plan.partition_by]
    near = snapshot.read(RangeRequest(low_us, high_us, late=late, columns=columns), where=condition)
    windows = Windows.around(columns, near.columns, near.ts_us, plan.within.interval_us)
    if wanted is None:
        inside = snapshot.count_in(windows, low_us, high_us, late=late)
        if inside > total * _EVENTS_PART_MAX:
            return None, f"no prefilter: {inside:,} events lie within {plan.within} of {text}"
    return windows, f"prefilter: within {plan.within} of {text}"


def unsound(plan: Plan) -> str | None:
    """Why the windows of a plan might change its matches, or None. See `windows_of`."""
    read = [*(d.condition for d in plan.defines), *(m.expression for m in plan.measures)]
    if plan.within is None or plan.within.interval_us is None:
        return "there is no WITHIN of time"
    if plan.selection is Selection.STRICT:
        return "STRICT looks at all partitions"
    if min_rows(plan.pattern) == 0:
        return "a match may be empty"
    if anchors(plan.pattern):
        return "^ and $ look at the ends of a partition"
    if plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED or plan.timeout_rows:
        return "rows without a match come out"
    if any(isinstance(e, Navigation) and e.physical_offset for expression in read for e in walk(expression)):
        return "PREV and NEXT look outside of a match"
    if any(isinstance(e, MatchNumber) for d in plan.defines for e in walk(d.condition)):
        return "a condition reads MATCH_NUMBER()"
    time = plan.order_by[0].column
    failing = next((d for d in plan.defines if not never_fails(d.condition, time)), None)
    if failing is not None:
        return f"the condition of {failing.variable} may fail on a row that is in no match"
    if any(c.type not in _PARTITION_TYPES for c in plan.partition_by):
        return "the partition columns are of other types"
    try:
        program = assemble(plan)
    except NoKernel as none:
        return f"{none} has no kernel"
    if program.absent_before or program.absent_behind:
        return "a negation looks before or behind a match"
    return None


def mandatory(pattern: RowPattern, rates: Mapping[str, float]) -> tuple[float, tuple[str, ...]] | None:
    """Variables of which every match has a row of one at least, and the sum of their rates; those with the least sum.
    None where a match may have none."""
    match pattern:
        case Variable(name):
            return rates[name], (name,)
        case Sequence(parts):
            found = [m for p in parts if (m := mandatory(p, rates)) is not None]
            return min(found, default=None)
        case Alternation(choices):
            each = [mandatory(c, rates) for c in choices]
            names: dict[str, None] = {}
            for one in each:
                if one is None:
                    return None
                names |= dict.fromkeys(one[1])
            return sum(rates[n] for n in names), tuple(names)
        case Repeat(body, at_least):
            return mandatory(body, rates) if at_least else None
        case Exclusion(body):
            return mandatory(body, rates)
        case Empty() | Negation() | Anchor():
            return None
        case _:
            assert_never(pattern)


def own_row(condition: Expression) -> Expression:
    """What a condition asks of its own row alone: the parts of its top-level ANDs that read nothing else."""
    if isinstance(condition, Call) and condition.function == "and":
        parts = [part for part in map(own_row, condition.arguments) if part != TRUE]
        return TRUE if not parts else parts[0] if len(parts) == 1 else Call("and", tuple(parts), "BOOLEAN")
    return condition if all(isinstance(e, Constant | Column | Call) for e in walk(condition)) else TRUE


def never_fails(expression: Expression, time: Column) -> bool:
    """Whether an expression has a value on every row: no integers or decimals that might overflow, no casts that might
    not be possible, and nothing that only DuckDB knows. time: a column without infinities."""

    def below(parts: tuple[Expression, ...]) -> bool:
        return all(never_fails(part, time) for part in parts)

    match expression:
        case Constant() | Column() | Classifier():
            return True
        case Navigation(argument):
            return never_fails(argument, time)
        case Aggregate(function, _, type=type):
            exact = function in ("count", "min", "max", "avg") or (function == "sum" and type in _FLOATING)
            return expression.plain and exact and below(expression.inputs)
        case Call(function, arguments, type):
            if not below(arguments):
                return False
            if function in _NEVER_FAIL:
                return True
            if function in ("+", "-", "*", "/", "neg", "abs") and type in _FLOATING:
                return all(a.type in (*_FLOATING, *_INTEGERS) for a in arguments)
            if function == "-" and type == "INTERVAL":
                return all(_is_time(a, time) for a in arguments)
            if function == "cast":
                (source,) = arguments
                wider = _INTEGERS[: _INTEGERS.index(type)] if type in _INTEGERS[:4] else ()
                return source.type == type or source.type in wider or (
                    type == "DOUBLE" and source.type in (*_INTEGERS, *_FLOATING)
                )
            return False
        case MatchNumber() | Opaque():
            return False
        case _:
            assert_never(expression)


def _is_time(expression: Expression, time: Column) -> bool:
    return expression == time or (isinstance(expression, Navigation) and expression.argument == time)

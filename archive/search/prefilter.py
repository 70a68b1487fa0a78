"""Prefilter of a search: reads only rows near a row that every match needs.

Follows Zhu, Huang and Chaudhuri (PVLDB 2023: prefilter rows by joins on a chosen subset of symbols, then match) and
Koerber, Glombiewski and Seeger (SIGMOD 2021: conditions on single rows prune the stream before matching); here with one
set of symbols, and with time windows instead of joins.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import assert_never

from archive.reader import RangeRequest
from archive.recent import Windows
from archive.snapshot import HistorySnapshot
from matching.program.program import NoKernel, assemble
from query.language.ast import RowsPerMatch, Selection
from query.plan.expression import (
    TRUE,
    Call,
    Column,
    Constant,
    Expression,
    MatchNumber,
    Navigation,
    show,
    walk,
)
from query.plan.never_fails import never_fails
from query.plan.pattern import (
    Alternation,
    Anchor,
    Conjunction,
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

#: With fewer events, finding the rarest condition costs more than it saves.
ROWS_MIN = 1_000_000
#: Files in which conditions are counted, to estimate their selectivity.
_SAMPLE_FILES = 8
#: The prefilter pays if at most this share of events meets the rarest condition, and at most this share is near such an
#: event. Reading by windows costs about as much as reading all; the gain is in matching and sorting.
_ANCHORS_PART_MAX = 0.02
EVENTS_PART_MAX = 0.25
#: Types of partition columns that windows support: stored unchanged, with the same equality in DuckDB and PARTITION BY.
_PARTITION_TYPES = ("VARCHAR", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "BOOLEAN", "DATE")


def windows_of(
    snapshot: HistorySnapshot, plan: Plan, request: RangeRequest, wanted: bool | None, total: int
) -> tuple[Windows | None, str]:
    """Returns the time windows per partition that contain all matches of a plan, or None to read all events; and the
    decision, in words. wanted: True: wherever sound; False: never; None: wherever sound and worthwhile.

    Every match has a row of one of some variables, the rarest ones (`mandatory`), and spans at most WITHIN. So all rows
    of a match with such a row at t are in [t - WITHIN, t + WITHIN] of its partition, and so are all rows that a run
    from its start s can take up to s + WITHIN. All rows of the windows are read; windows that touch are merged.

    From a start with such a row within WITHIN the matcher sees exactly the rows that it sees without the prefilter, and
    decides equally. From any other start there is no match with or without it. Other rows do not matter, provided that
    (see `unsound`)
    - a match is confined to its partition (not STRICT), has a row, and WITHIN is an interval, not a number of rows;
    - conditions and measures do not read rows outside of the match (PREV, NEXT), the first or last row of the partition
      (^, $), or the absence of rows before or after the match (a negation at an edge);
    - rows outside of matches are not returned (WITH UNMATCHED ROWS, TIMEOUT ROWS);
    - no condition can raise on a skipped row, and none reads MATCH_NUMBER().
    One difference remains: a search that fails for too many partial matches (HQ600) in skipped rows succeeds."""
    why = "not asked for" if wanted is False else unsound(plan)
    if why is None and wanted is None and total < ROWS_MIN:
        why = "few events"
    if why is not None:
        return None, f"no prefilter: {why}"
    assert plan.within is not None
    assert plan.within.interval_us is not None
    conditions = {d.variable: own_row(d.condition) for d in plan.defines}
    rows, counts = snapshot.count_where(list(conditions.values()), request, _SAMPLE_FILES)
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
    near = snapshot.read(replace(request, columns=columns), where=condition)
    windows = Windows.around(columns, near.columns, near.ts_us, plan.within.interval_us)
    if wanted is None:
        inside = snapshot.count_in(windows, request)
        if inside > total * EVENTS_PART_MAX:
            return None, f"no prefilter: {inside:,} events lie within {plan.within} of {text}"
    return windows, f"prefilter: within {plan.within} of {text}"


def unsound(plan: Plan) -> str | None:
    """Returns why a prefilter could change the matches of a plan, or None. See `windows_of`."""
    if plan.trends is not None:
        return "windows aggregate all their events"
    if plan.boxes:
        return "matches of boxes have events of their own"
    read = [*(d.condition for d in plan.defines), *(m.expression for m in plan.measures)]
    if plan.within is None or plan.within.interval_us is None:
        return "there is no WITHIN interval"
    if plan.selection is Selection.STRICT:
        return "STRICT reads all partitions"
    if min_rows(plan.pattern) == 0:
        return "a match may be empty"
    if anchors(plan.pattern):
        return "^ and $ depend on the ends of a partition"
    if plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED or plan.timeout_rows:
        return "rows without a match are returned"
    if any(isinstance(e, Navigation) and e.physical_offset for expression in read for e in walk(expression)):
        return "PREV and NEXT read rows outside of a match"
    if any(isinstance(e, MatchNumber) for d in plan.defines for e in walk(d.condition)):
        return "a condition reads MATCH_NUMBER()"
    time = plan.order_by[0].column
    failing = next((d for d in plan.defines if not never_fails(d.condition, time)), None)
    if failing is not None:
        return f"the condition of {failing.variable} may fail on a row outside of matches"
    if any(c.type not in _PARTITION_TYPES for c in plan.partition_by):
        return "unsupported types of partition columns"
    try:
        program = assemble(plan)
    except NoKernel as none:
        return f"{none} has no kernel"
    if program.absence.before or program.absence.behind:
        return "a negation depends on rows before or after a match"
    return None


def mandatory(pattern: RowPattern, rates: Mapping[str, float]) -> tuple[float, tuple[str, ...]] | None:
    """Returns the variables of which every match has at least one row, with the least sum of rates, and that sum first.
    None if a match may have no row of any."""
    match pattern:
        case Variable(name):
            return rates[name], (name,)
        case Sequence(parts):
            found = [m for p in parts if (m := mandatory(p, rates)) is not None]
            return min(found, default=None)
        case Conjunction(sides):
            return min((m for p in sides if (m := mandatory(p, rates)) is not None), default=None)
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
    """Returns the part of a condition that reads only its own row: those operands of its top-level ANDs."""
    if isinstance(condition, Call) and condition.function == "and":
        parts = [part for part in map(own_row, condition.arguments) if part != TRUE]
        return TRUE if not parts else parts[0] if len(parts) == 1 else Call("and", tuple(parts), "BOOLEAN")
    return condition if all(isinstance(e, Constant | Column | Call) for e in walk(condition)) else TRUE

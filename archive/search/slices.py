"""Time slices: decides which patterns can be searched slice by slice, and which matches of a slice are kept.

A match belongs to the slice of its first event (of its row, if empty). The slice finds it if it also gets the rows up
to WITHIN after its end; matches that begin in this overlap belong to the next slice, which finds them too. This is
exact if the matches that begin at a row depend only on rows within `Reach` of it. Conditions:

* WITHIN is an interval, which bounds the time span of a match; WITHIN n ROWS does not.
* AFTER MATCH NO SKIP (all matches) or SKIP TO NEXT ROW (one per start): the matches of a start are independent of other
  starts. With SKIP PAST LAST ROW and SKIP TO each match depends on earlier ones, back to the first row.
* Negations are allowed: those inside and after a match read rows up to first + WITHIN; those before it read rows from
  last - WITHIN on, so a slice also gets WITHIN before its beginning.
* No PREV and NEXT, which read rows at any distance in time, and no `^` and `$`, which depend on the whole partition.
* No MATCH_NUMBER, which counts the matches of a partition.
* No unmatched rows and no rows of timed-out partial matches, which belong to no slice.

SELECTION PARTITION and both skip-till strategies qualify: they read only rows between the first and the last of a
match. STRICT does so too, but reads rows of all partitions; it qualifies only without PARTITION BY. At the edges of a
slice, starts of other slices see too few rows and may raise errors that do not exist in the whole: after an error the
search is repeated without slices.

A row per window belongs to the slice of the start of its window, and depends on the rows up to WITHIN after it. The
first window may start up to WITHIN before the first row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from matching.batch import Int64Array, Matches
from matching.emitted import only
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import Column, MatchNumber, Navigation, walk
from query.plan.pattern import anchors, negated
from query.plan.plan import Plan
from query.schema import Field, Schema

#: The column with the slice number, before all others.
SLICE = "__hybrid_slice"
#: Minimal length of a slice, as a multiple of the rows' reach that is added to it.
LENGTH_MIN = 8


@dataclass(frozen=True, slots=True)
class Reach:
    """The rows that determine the matches from a start: up to before_us before and up to behind_us after it."""

    before_us: int
    behind_us: int


@dataclass(frozen=True, slots=True)
class Slices:
    """Slice i is [start_us + i * width_us, start_us + (i + 1) * width_us), for i from 0 to count - 1."""

    start_us: int
    width_us: int
    count: int

    def of(self, ts_us: Int64Array) -> Int64Array:
        """Returns the slice numbers of times, int64 (n,)."""
        return (ts_us - self.start_us) // self.width_us


def reach(plan: Plan) -> Reach | None:
    """Returns the reach of a plan; None if the matches from a start may depend on the whole partition."""
    if plan.trends is not None:
        return Reach(0, plan.trends.within_us)  # from the start of a window
    if plan.boxes:
        return None  # its layers have reaches of their own
    within_us = plan.within.interval_us if plan.within is not None else None
    if within_us is None or plan.after.kind not in (AfterMatchKind.NO_SKIP, AfterMatchKind.TO_NEXT_ROW):
        return None
    if plan.selection is Selection.STRICT and plan.partition_by:
        return None
    if plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED or plan.timeout_rows or anchors(plan.pattern):
        return None
    for expression in (*(d.condition for d in plan.defines), *(m.expression for m in plan.measures)):
        for part in walk(expression):
            if isinstance(part, MatchNumber) or (isinstance(part, Navigation) and part.physical_offset):
                return None
    return Reach(within_us if negated(plan.pattern) else 0, within_us)


def slices(reach: Reach, low_us: int, high_us: int, count_max: int) -> Slices | None:
    """Returns at most count_max slices of [low_us, high_us]; None if they would be too short to pay."""
    span = high_us - low_us + 1
    width = max(-(-span // max(1, count_max)), LENGTH_MIN * (reach.before_us + reach.behind_us), 1)
    count = -(-span // width)
    return Slices(low_us, width, count) if count > 1 else None


def sliced(plan: Plan) -> Plan:
    """Returns the plan with SLICE as its first partition column, and the last one of GROUP BY. STRICT becomes
    PARTITION, because rows of other slices may come in between."""
    schema: Schema = replace(plan.schema, fields=(Field(SLICE, "BIGINT"), *plan.schema.fields))
    selection = Selection.PARTITION if plan.selection is Selection.STRICT else plan.selection
    by, trends = Column(SLICE, "BIGINT"), plan.trends
    if trends is not None:
        trends = replace(trends, group_by=(*trends.group_by, by))
    return replace(plan, schema=schema, partition_by=(by, *plan.partition_by), selection=selection, trends=trends)


def own(found: Matches, slices: Slices) -> Matches:
    """Returns the matches of `sliced(plan)` that belong to their slice, without the column SLICE. Drops matches without
    rows, whose slice is unknown."""
    slice_of = np.full(len(found), -1, np.int64)
    slice_of[found.row_match] = found.rows.column(0).to_numpy()
    kept = only(found, np.flatnonzero(slices.of(found.first_us) == slice_of))
    return replace(kept, rows=kept.rows.select(range(1, kept.rows.num_columns)))


def own_rows(rows: pa.Table, name: str, start_us: Int64Array, slices: Slices) -> pa.Table:
    """Returns the rows of windows that belong to their slice, without the column of the slice. name: of that column.
    start_us: of their windows."""
    mine = slices.of(start_us) == rows.column(name).to_numpy()
    return rows.filter(pa.array(mine)).drop_columns([name])

"""Which patterns may be searched for in slices of time, and what of the answers of slices is kept.

A match belongs to the slice in which its first event lies (its row, where it is empty). It is found there if the slice
is given what lies up to WITHIN behind its end, and a match that begins in the overlap belongs to the next slice, which
finds it too. That is exact where the matches that begin with a row are a function of the rows that lie no further than
`Reach` from it. So it is for

* WITHIN an interval, as it says how far a match reaches; WITHIN n ROWS is no time.
* AFTER MATCH NO SKIP (all matches) and SKIP TO NEXT ROW (one for each start): what a start gives does not hang on other
  starts. SKIP PAST LAST ROW and SKIP TO let one match cut another, and so on from the first row of all.
* negations: those inside a match and behind it look at rows up to first + WITHIN; those before it at rows from last -
  WITHIN on, so that a slice is given WITHIN in front too.
* no PREV and NEXT, which read rows at any distance in time, nor `^` and `$`, which are of the whole partition.
* no MATCH_NUMBER, which counts the matches of a partition.
* neither unmatched rows nor rows of partial matches whose time ran out, which are of no slice.

It holds for SELECTION PARTITION and both skip-till strategies: each looks at rows between the first and the last of a
match only. So does STRICT, but at rows of all partitions; it is left out where there are several. Where a slice begins
or ends, starts that belong to others see less than they should, so that what a slice cannot compute may be what nobody
asks for: an error is believed only without slices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from matching.batch import Int64Array, Matches
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import Column, MatchNumber, Navigation, walk
from query.plan.pattern import anchors, negated
from query.plan.plan import Plan
from query.schema import Field, Schema

#: The column that numbers the slices, in front of all others.
SLICE = "__hybrid_slice"
#: A slice is so many times as long as what is added to it.
LENGTH_MIN = 8


@dataclass(frozen=True, slots=True)
class Reach:
    """The rows that decide what begins with a row: those up to before_us before it and up to behind_us behind it."""

    before_us: int
    behind_us: int


@dataclass(frozen=True, slots=True)
class Slices:
    """Slice i is [start_us + i * width_us, start_us + (i + 1) * width_us), for i from 0 to count - 1."""

    start_us: int
    width_us: int
    count: int

    def of(self, ts_us: Int64Array) -> Int64Array:
        """The slices that times lie in."""
        return (ts_us - self.start_us) // self.width_us


def reach(plan: Plan) -> Reach | None:
    """How far the rows lie that decide what begins with a row; None where all of its partition may."""
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
    """At most count_max slices of the times from low_us to high_us; None where they would be too short to pay."""
    span = high_us - low_us + 1
    width = max(-(-span // max(1, count_max)), LENGTH_MIN * (reach.before_us + reach.behind_us), 1)
    count = -(-span // width)
    return Slices(low_us, width, count) if count > 1 else None


def sliced(plan: Plan) -> Plan:
    """The plan over rows that know the slice they are given to: it is a partition column, the first one. Rows of other
    slices may come between, which STRICT would mind."""
    schema: Schema = replace(plan.schema, fields=(Field(SLICE, "BIGINT"), *plan.schema.fields))
    selection = Selection.PARTITION if plan.selection is Selection.STRICT else plan.selection
    return replace(plan, schema=schema, partition_by=(Column(SLICE, "BIGINT"), *plan.partition_by), selection=selection)


def own(found: Matches, slices: Slices) -> Matches:
    """Of the matches of `sliced(plan)` those that belong to their slices, without the column of the slice. Matches that
    show no row are left out: nobody can say of which slice they are."""
    slice_of = np.full(len(found), -1, np.int64)
    slice_of[found.row_match] = found.rows.column(0).to_numpy()
    kept = only(found, np.flatnonzero(slices.of(found.first_us) == slice_of))
    return replace(kept, rows=kept.rows.select(range(1, kept.rows.num_columns)))


def only(found: Matches, index: Int64Array) -> Matches:
    """The matches at `index`, which ascends."""
    if len(index) == len(found):
        return found
    place = np.full(len(found), -1, np.int64)
    place[index] = np.arange(len(index))
    row_match = place[found.row_match]
    rows = np.flatnonzero(row_match >= 0)
    lengths = np.diff(found.event_bounds)[index]
    bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    events = np.repeat(found.event_bounds[:-1][index] - bounds[:-1], lengths) + np.arange(bounds[-1])
    return replace(
        found, rows=found.rows.take(pa.array(rows)), row_match=row_match[rows], number=found.number[index],
        first_us=found.first_us[index], last_us=found.last_us[index], event_bounds=bounds,
        event_variable=found.event_variable[events], event_ts_us=found.event_ts_us[events],
        event_source=found.event_source[events], event_offset=found.event_offset[events],
        event_seq=found.event_seq[events], outcome=None if found.outcome is None else found.outcome[index],
    )  # fmt: skip

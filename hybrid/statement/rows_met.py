"""Rows of a bounded input that may change its matches, chosen before any is sorted; and the order of matches that wait.

Where rows that meet no condition are passed over they decide nothing but when a match comes out: one that waits for
what must not follow it is over with the first row behind WITHIN, met or not. So the rows of such matches have an order
that needs no other row: that of query.reference.find, by the end of WITHIN, the last row, the first row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from hybrid.rows.inputs import BATCH_ROWS, OrderedInput, some_columns
from hybrid.statement.by_key import ByKey, RowsMet
from matching.batch import Matcher, Matches
from matching.ordering import sorting_order
from matching.program.refused import negated_ends
from query.language.ast import Selection
from query.plan.plan import Plan
from query.stopping import heed

#: Of fewer rows all are taken: a sort is cheap.
ROWS_MIN = 1 << 17


def rows_met(matcher: Matcher, table: pa.Table) -> RowsMet | None:
    """Returns the rows of a table that may change the matches of its matcher, which then knows what conditions they
    meet: their offsets are to be 0, 1, 2, ... None: too many may, or any."""
    from matching.matcher import KernelMatcher  # loads numba, as the matcher has

    if not isinstance(matcher, KernelMatcher) or table.num_rows < max(1, ROWS_MIN):
        return None
    at = np.zeros(table.num_rows, np.int64)
    columns = some_columns(table, matcher.needs.schema.names)
    if (met := matcher.met(OrderedInput("", columns, None, at).batches(rows=BATCH_ROWS))) is None:
        return None
    found: list[np.ndarray] = []
    tests: list[list[np.ndarray]] | None = []  # None: one cannot be computed
    begin = 0
    for some, local in met:
        kept = np.flatnonzero(some)
        if not found and 2 * len(kept) > len(some):
            return None
        found.append(kept + begin)
        begin += len(some)
        tests = None if tests is None or local is None else [*tests, [test[kept] for test in local]]
        heed()
    rows = np.concatenate(found)
    if 2 * len(rows) > table.num_rows:
        return None
    if tests is not None:
        matcher.know([np.concatenate(of_one) for of_one in zip(*tests)])
    return RowsMet(rows, matcher.reads)


def waits(plan: Plan) -> bool:
    """True if each match of a plan waits for the end of WITHIN, a time, and `order_of_rows` has their order."""
    timed = plan.within is not None and plan.within.interval_us is not None
    passes = plan.selection in (Selection.SKIP_TILL_NEXT, Selection.SKIP_TILL_ANY)
    plain = plan.trends is None and not plan.boxes
    return timed and passes and plain and bool(negated_ends(plan.pattern).behind)


def order_of_rows(found: Sequence[Matches], standing: ByKey | None) -> np.ndarray | None:
    """Returns the order of the output rows of matches that wait; None: as they are. standing: the table, if it is read
    by key, with the matches of one key after those of another."""
    found = [m for m in found if len(m)]
    if not found:
        return None
    first, last = (np.concatenate(ends) for ends in zip(*map(_ends, found)))
    if np.array_equal(first, last):
        order = sorting_order(first)
    else:
        of = [standing.begins.searchsorted(first, "right")] if standing is not None else []
        order = np.lexsort((first, last, np.concatenate([m.first_us for m in found]), *of))
    if (order[:-1] < order[1:]).all():
        return None
    if all(len(m) == m.rows.num_rows for m in found):  # a row for each
        return order
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    shifts = np.cumsum([0, *(len(m) for m in found)])
    return sorting_order(rank[np.concatenate([m.row_match + shift for m, shift in zip(found, shifts)])])


def _ends(matches: Matches) -> tuple[np.ndarray, np.ndarray]:
    """Returns the ingest sequences of the first and the last event of each match."""
    if matches.ends is not None:
        return matches.ends.first_seq, matches.ends.last_seq
    bounds = matches.event_bounds
    return matches.event_seq[bounds[:-1]], matches.event_seq[bounds[1:] - 1]

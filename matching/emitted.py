"""Decoded matches as measures, joins and callers read them: values, ends, rows of windows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from matching.batch import Ends, Int64Array, Matches
from matching.decode import Decode
from matching.engines.engine import ClosedWindows, EnginePlan
from matching.identity import window_ids
from matching.keys import Keys
from matching.measures import FoundMatches
from matching.program.carried import FIRST_ROW, LAST_ROW, Chain
from matching.program.trends import TrendTable
from matching.store import RowStore
from matching.trend_rows import trend_rows
from query.plan.expression import Aggregate
from query.plan.plan import Plan


def found_of(out: Decode) -> FoundMatches:
    """Returns decoded matches as they are."""
    return FoundMatches(
        out.rows, out.variables, out.bounds, out.start, out.partition, out.number, out.outcome, out.waiting
    )


def found_by(chosen: EnginePlan, out: Decode) -> FoundMatches:
    """Returns decoded matches with the values that measures read, if the engine keeps no rows of them."""
    found = found_of(out)
    if chosen.carried is not None:
        return replace(found, carried=_carried(chosen.carried.places, out))
    if chosen.picked is not None:
        return replace(found, carried=_carried(chosen.picked.places, out))
    return found if chosen.chain is None else _of_chain(chosen.chain, found)


def _carried(places: Iterable[tuple[object, int]], out: Decode) -> dict[object, Int64Array]:
    """Returns the values that measures read of matches that do not come as rows."""
    outside = {FIRST_ROW: out.start, LAST_ROW: out.rows}
    return {key: outside[at] if at < 0 else out.carried[:, at] for key, at in places}


def _of_chain(chain: Chain, found: FoundMatches) -> FoundMatches:
    """Returns the matches as their last rows, with the other values that measures read."""
    n = len(found)
    rows = found.rows.reshape(n, len(chain.variables))
    carried = {
        key: np.full(n, at) if isinstance(key, Aggregate) or at < 0 else rows[:, at] for key, at in chain.places
    }
    variables = np.zeros(n, np.int16)
    return replace(found, rows=rows[:, -1], variables=variables, bounds=np.arange(n + 1), carried=carried)


def ends_of(chosen: EnginePlan, store: RowStore, out: Decode, in_order: bool) -> Ends:
    """Returns the ends of at least one decoded match. in_order: True if the store has its rows in the total order."""
    carried, chain = chosen.carried, chosen.chain
    if carried is not None:
        first, last = out.start, out.rows
    elif chain is not None:
        rows = out.rows.reshape(out.count, len(chain.variables))
        first, last = rows[:, 0], rows[:, -1]
    else:
        first, last = out.rows[out.bounds[:-1]], out.rows[out.bounds[1:] - 1]
    if in_order:
        low_us, high_us = int(store.ts[first.min()]), int(store.ts[last.max()])
    else:
        low_us, high_us = int(store.ts[first].min()), int(store.ts[last].max())
    return Ends(store.seq[first], store.seq[last], low_us, high_us)


def matches_of_windows(
    plan: Plan, table: TrendTable, windows: ClosedWindows, partitions: Keys, fingerprint: str | None, none: Matches
) -> Matches:
    """Returns the rows of closed windows, each as a match without events. fingerprint: of the plan, for ids; None:
    without ids. none: no matches, with the sources."""
    return matches_of_rows(plan, trend_rows(plan, table, windows, groups_of(plan, windows, partitions)), fingerprint,
                           none)  # fmt: skip


def groups_of(plan: Plan, windows: ClosedWindows, partitions: Keys) -> list[pa.Array]:
    """Returns the values of GROUP BY of rows of windows."""
    assert plan.trends is not None
    partition_by = [c.name for c in plan.partition_by]
    return [partitions.values(partition_by.index(c.name), windows.partition) for c in plan.trends.group_by]


def matches_of_rows(plan: Plan, rows: pa.Table, fingerprint: str | None, none: Matches) -> Matches:
    """Returns output rows of windows, each as a match without events; see `matches_of_windows`."""
    n, ids = rows.num_rows, None if fingerprint is None else ids_of_windows(plan, rows, fingerprint)
    return replace(
        none, rows=rows, row_match=np.arange(n), number=np.zeros(n, np.int64), event_bounds=np.zeros(n + 1, np.int64),
        ids=ids,
    )  # fmt: skip


def only(found: Matches, index: Int64Array) -> Matches:
    """Returns the matches at `index`, which is ascending. Bare ones (Purpose.bare) have no times."""
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
        first_us=found.first_us[index if len(found.first_us) else _NONE],
        last_us=found.last_us[index if len(found.last_us) else _NONE], event_bounds=bounds,
        event_variable=found.event_variable[events], event_ts_us=found.event_ts_us[events],
        event_source=found.event_source[events], event_offset=found.event_offset[events],
        event_seq=found.event_seq[events], outcome=None if found.outcome is None else found.outcome[index],
        ids=None if found.ids is None else found.ids[index],
    )  # fmt: skip


_NONE = np.zeros(0, np.int64)


def ids_of_windows(plan: Plan, rows: pa.Table, fingerprint: str) -> np.ndarray:
    """Returns the ids of output rows of windows as numbers, int64 (n, 2)."""
    assert plan.trends is not None
    start, *groups = (rows.column(i).combine_chunks() for i in (0, *range(2, 2 + len(plan.trends.group_by))))
    return window_ids(fingerprint, np.asarray(start.cast(pa.int64())), groups)


def later(found: Sequence[Matches], count: int) -> list[Matches]:
    """Returns the matches without the first ones."""
    left = []
    for matches in found:
        if count < len(matches):
            left.append(only(matches, np.arange(count, len(matches))) if count else matches)
        count = max(0, count - len(matches))
    return left

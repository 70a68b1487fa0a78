"""Sums of windows as tables of exact parts, so that several searches, each of some partitions, are put together.

A part has a row for each window and group: `window`, the groups `g0`, ..., whole numbers `n0`, ... as bytes, sums of
doubles `f0`, ... as a few doubles with the same exact sum, smallest or largest values `l0`, ... in their order.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from matching.engines.engine import ClosedWindows
from matching.program.trends import LEAST, TrendTable
from matching.trend_numbers import few_doubles, sums_of_doubles
from matching.trend_rows import Totals, grouped, rows_of, totals
from matching.types import arrow_schema
from query.plan.output import output_columns
from query.plan.plan import Plan
from query.schema import Schema

WINDOW = "window"


def part_of(table: TrendTable, windows: ClosedWindows, groups: Sequence[pa.Array]) -> pa.Table:
    """Returns the sums of closed windows. groups: the values of GROUP BY of each row of `windows`."""
    first, group = grouped(windows.window, groups)
    put = totals(windows, group, len(first))
    columns: dict[str, pa.Array] = {WINDOW: pa.array(windows.window[first])}
    columns |= {f"g{i}": values.take(pa.array(first)) for i, values in enumerate(groups)}
    columns |= {f"n{i}": pa.array(map(_bytes_of, put.whole[:, i]), pa.binary()) for i in range(put.whole.shape[1])}
    order = np.argsort(group, kind="stable")
    begins = np.searchsorted(group[order], np.arange(1, len(first)))
    for i in range(put.floats.shape[1]):
        of_group = np.split(windows.floats[order, i], begins)
        columns[f"f{i}"] = pa.array([few_doubles(v.tolist()) for v in of_group], pa.list_(pa.float64()))
    for i, s in enumerate(table.of_kind(LEAST)):
        values = put.largest if s.largest else put.least
        columns[f"l{i}"] = pa.array(values[:, i], mask=~put.there[:, i])
    return pa.table(columns)


def _bytes_of(number: int) -> bytes:
    return number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)


def put_together(plan: Plan, table: TrendTable, parts: Sequence[pa.Table]) -> pa.Table:
    """Returns the output rows of parts, by window, then group, nulls first; see matching.trend_rows.trend_rows."""
    parts = [part for part in parts if part.num_rows]
    if not parts:
        return arrow_schema(Schema("", output_columns(plan))).empty_table()
    whole = pa.concat_tables(parts).combine_chunks()
    columns = {name: whole[name].combine_chunks() for name in whole.column_names}
    groups = [columns[f"g{i}"] for i in range(len(table.trends.group_by))]
    window = columns[WINDOW].to_numpy()
    first, group = grouped(window, groups)
    at = pa.array(first)
    return rows_of(plan, table, window[first], [g.take(at) for g in groups], _added(table, columns, group, len(first)))


def _added(table: TrendTable, columns: dict[str, pa.Array], group: np.ndarray, count: int) -> Totals:
    """Adds up the rows of each group."""
    names = [name for name in columns if name.startswith("n")]
    numbers = np.zeros((count, len(names)), object)
    for i, name in enumerate(names):
        for g, content in zip(group.tolist(), columns[name].to_pylist(), strict=True):
            numbers[g, i] += int.from_bytes(content, "little", signed=True)
    floats = np.empty((count, sum(name.startswith("f") for name in columns)))
    for i in range(floats.shape[1]):
        lists = columns[f"f{i}"]
        of = np.repeat(group, np.asarray(lists.value_lengths()))
        floats[:, i] = sums_of_doubles(lists.flatten().to_numpy(zero_copy_only=False), of, count)
    kept = table.of_kind(LEAST)
    least, largest = (
        np.full((count, len(kept)), bound, np.int64) for bound in (np.iinfo(np.int64).max, np.iinfo(np.int64).min)
    )
    there = np.zeros((count, len(kept)), np.bool_)
    for i in range(len(kept)):
        values = columns[f"l{i}"]
        some = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
        found = values.drop_null().to_numpy()
        np.minimum.at(least[:, i], group[some], found)
        np.maximum.at(largest[:, i], group[some], found)
        there[group[some], i] = True
    return Totals(numbers, floats, least, largest, there)

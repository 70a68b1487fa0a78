"""Aggregates over rows of the match that only DuckDB computes: lists of rows by number (matching.kernels.lists)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from matching.batch import Int64Array
from matching.features import query
from matching.kernels import lists
from matching.kernels.layout import grown
from matching.program.conditions import IN_ANY_ORDER, AskedRows, inputs_of
from matching.program.program import Program
from query.errors import DataError
from query.language.duck import AGGREGATE_MACROS, Settings
from query.plan.expression import Aggregate, Expression, show, to_sql

#: Rows of the lists that are computed together, at most, unless one has more.
ROWS_MAX = 1 << 19
#: Rows back from which a list may begin that has not been asked for: with few of them, rows would be asked one by one.
BACK, BACK_MAX = 64, 256
#: Lists that are computed together, at least if that many may be asked for soon.
LISTS_MIN = 1 << 14
#: Rows of lists that are foreseen, at least, beside half as many again as the longest had that was not.
LENGTH_MIN = 4
#: Lists that are kept from block to block, at most.
LISTS_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class SeenRows:
    """The rows of the last blocks, in the order of their partitions. index: of each among all; partition: of each; of:
    the partition's number among those that are seen; position: in the row store; mask: its row-local conditions."""

    index: Int64Array
    partition: Int64Array
    of: Int64Array
    position: Int64Array
    mask: Int64Array

    def after(self, index: int) -> tuple[Int64Array, Int64Array]:
        """Returns, by partition, the place of the first row with a larger index, and behind its last row."""
        count = len(self.index)
        parts = np.arange(int(self.of[-1]) + 1)
        keys = self.of * count + self.index
        return np.searchsorted(keys, parts * count + index + 1), np.searchsorted(self.of, parts, "right")


class AskedLists:
    """The lists that runs have been asked about."""

    def __init__(self, program: Program) -> None:
        names = program.variables
        self._labels = [sum(1 << v for v, n in enumerate(names) if not w.variables or n in w.variables)
                        for w in program.walks]  # fmt: skip
        self._lines, self._table = np.zeros((1024, 2), np.int64), np.zeros(2048, np.int64)
        self._lines[0, lists.COUNT] = 1
        self._rows = np.full((len(program.walks), 0), -1, np.int64)
        self._partition = self._position = np.zeros(0, np.int64)
        #: by walk and partition, the list that was asked for last, and the position of the row for which it was
        self._last = np.full((len(program.walks), 0), -1, np.int64)
        self._last_row = self._last.copy()
        self._time = 0
        self._ahead = 1024  # rows that are looked at
        self._back = BACK
        self._length = 0  # of the longest list that was not foreseen; less with each block
        self._row = -1  # of the block: the one that asked before

    def _wanted(self, rows: int, nodes: int) -> int:
        return int(self._lines[0, lists.COUNT]) + 16 * (nodes + rows) + 1024

    @property
    def is_full(self) -> bool:
        """True if there are too many lists for a block of rows to begin with."""
        return bool(self._lines[0, lists.COUNT] > LISTS_MAX)

    def begin(self, partition: Int64Array, position: Int64Array, nodes: int) -> dict[str, np.ndarray]:
        """Returns tables of matching.kernels.layout for the rows of a block. nodes: that runs have."""
        self._note()
        self._partition, self._position, self._row = partition.copy(), position, -1
        self._length -= self._length // 8
        self._rows = np.full((len(self._rows), len(partition)), -1, np.int64)
        wanted = self._wanted(len(partition), nodes)
        if wanted > len(self._lines):
            self._lines = grown(self._lines, max(wanted, 2 * len(self._lines)))
            self._table = np.zeros(1 << (2 * len(self._lines)).bit_length(), np.int64)
            same = int(self._position.max(initial=0)) + 1
            lists.renumber(self._lines, self._table, np.arange(max(same, int(self._lines[:, lists.ROW].max()) + 1)))
        return {"list_lines": self._lines, "list_table": self._table, "list_rows": self._rows}

    def _note(self) -> None:
        """Notes which lists were asked for last."""
        self._same_time()
        if not len(self._partition):
            return
        partitions = int(self._partition.max()) + 1
        if partitions > self._last.shape[1]:
            wider = np.full((2, len(self._last), 2 * partitions), -1, np.int64)
            wider[0, :, : self._last.shape[1]], wider[1, :, : self._last.shape[1]] = self._last, self._last_row
            self._last, self._last_row = wider
        for walk, numbers in enumerate(self._rows):
            asked = np.flatnonzero(numbers >= 0)
            self._last[walk, self._partition[asked]] = numbers[asked]
            self._last_row[walk, self._partition[asked]] = self._position[asked]

    def _same_time(self) -> None:
        if self._time != self._lines[0, lists.TIME]:
            self._time = int(self._lines[0, lists.TIME])
            self._last[:] = -1

    def move(self, moved: Int64Array) -> None:
        """Renumbers rows. moved: by position, the new one, -1 for rows that are gone."""
        self._note()
        self._partition = self._position = np.zeros(0, np.int64)
        self._rows = self._rows[:, :0]
        lists.renumber(self._lines, self._table, moved)
        known = (self._last >= 0) & (self._last_row < len(moved))
        self._last_row[known] = moved[self._last_row[known]]
        self._last[~known | (self._last_row < 0)] = -1

    def expanded(self, numbers: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Returns the positions of the rows of lists, one after the other, and the bounds of each."""
        bounds = np.zeros(len(numbers) + 1, np.int64)
        lists.rows_of(self._lines, numbers, bounds, np.zeros(0, np.int64))
        rows = np.zeros(int(bounds[-1]), np.int64)
        if len(rows):
            lists.rows_of(self._lines, numbers, bounds, rows)
        return rows, bounds

    def soon(
        self, walk: int, asking: int, row: int, before: int, seen: SeenRows, size: int
    ) -> tuple[Int64Array, Int64Array]:
        """Returns the lists that are probably asked for soon, and the places of the rows that ask. asking: the labels
        whose conditions do; row: of the block, `before` rows are seen before it."""
        self._same_time()
        here = before + row
        next, behind = seen.after(here)
        base = np.full(len(next), -1, np.int64)
        number = int(self._rows[walk, row])
        length = int(self.expanded(np.array([number]))[1][-1])
        self._length = max(self._length, length)
        if row == self._row:  # by several runs: mostly, they began one after the other
            self._back = min(BACK_MAX, max(self._back, length + 2))
        self._row = row
        length_max = self._length + self._length // 2 + LENGTH_MIN
        since = np.maximum(next - min(self._back, length_max), np.append(0, behind[:-1]))
        first = since.copy()
        place = np.empty(len(seen.index), np.int64)
        place[seen.index] = np.arange(len(seen.index))

        def known(index: Int64Array, numbers: Int64Array) -> None:
            at = place[index]
            first[seen.of[at]], base[seen.of[at]] = at, numbers

        partitions = seen.partition[behind - 1]
        inside = np.flatnonzero(partitions < self._last.shape[1])
        earlier = inside[self._last[walk, partitions[inside]] >= 0]
        in_order = seen.position[place]
        index = np.searchsorted(in_order, self._last_row[walk, partitions[earlier]])
        found = (index < len(in_order)) & (
            in_order[np.minimum(index, len(in_order) - 1)] == self._last_row[walk, partitions[earlier]]
        )
        known(index[found], self._last[walk, partitions[earlier[found]]])
        asked = np.flatnonzero(self._rows[walk, : row + 1] >= 0)
        known(before + asked, self._rows[walk, asked])
        some = base > 0  # list 0 has no rows: its line counts the lists
        own = seen.position[np.minimum(first, len(seen.position) - 1)]
        with_own = some & (self._lines[np.maximum(base, 0), lists.ROW] == own)
        base[with_own] = self._lines[base[with_own], lists.BEFORE]
        size = max(size, LISTS_MIN)
        mask, numbers, at = seen.mask, np.zeros(size, np.int64), np.zeros(size, np.int64)
        joins, asks = mask & self._labels[walk] != 0, mask & asking != 0
        includes = bool(self._lines[number, lists.ROW] == self._position[row])
        while True:
            upto, _ = seen.after(min(here + self._ahead, len(mask) - 1))
            count = lists.foresee(
                self._lines, self._table, base, first, since, upto, here, seen.position, seen.index, joins, asks,
                includes, length_max, ROWS_MAX, numbers, at,
            )  # fmt: skip
            if count < size or self._ahead <= 16:
                break
            self._ahead //= 2  # all partitions as far: they need more at the same time
        if 2 * count < size and self._ahead < len(mask):
            self._ahead *= 2
        return numbers[:count], at[:count]


#: Aggregates that DuckDB computes of a list as it does of rows in order: faster than by GROUP BY.
OF_LISTS = {"list", "array_agg", "string_agg", "group_concat", "listagg", "mad", "skewness", "kurtosis",
            "kurtosis_pop", "histogram"}  # fmt: skip


def is_of_list(e: Aggregate) -> bool:
    """True if an aggregate can be computed of the list of its values."""
    plain = not (e.distinct or e.order or e.where)
    return plain and e.function in OF_LISTS and e.argument in inputs_of(e) and len(inputs_of(e)) == 1


def of_list(e: Aggregate, name: str) -> str:
    """Returns the SQL of an aggregate of a column of lists."""
    assert e.argument is not None
    if e.function in ("list", "array_agg"):
        return f'CASE WHEN len("{name}") > 0 THEN CAST("{name}" AS {e.type}) END'
    values, more = f'CAST("{name}" AS {e.argument.type}[])', "".join(f", {to_sql(a, {})}" for a in e.more)
    return f"CAST(list_aggregate({values}, '{e.function}'{more}) AS {e.type})"


def aggregated(
    of: AskedRows, columns: Sequence[pa.Array], bounds: Int64Array, settings: Settings,
    sql_of: Callable[[str, str], str], of_nothing: dict[Aggregate, pa.Array],
) -> list[pa.Array]:  # fmt: skip
    """Returns each aggregate over each of some lists, or its values as lists where it is computed of these (`of_list`).
    columns: of each input, the values at the rows of all lists, one after the other; bounds: of each list in them.
    sql_of: the SQL of a column in its type. of_nothing: the aggregates over no row, as far as they are known; gets
    those of these."""
    group = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    table = {"k": pa.array(group), "i": pa.array(np.arange(len(group)))}
    names: dict[Expression, str] = {}
    for j, (value, column) in enumerate(zip(of.inputs, columns, strict=True)):
        table[f"l{j}"] = column
        names[value] = sql_of(f"l{j}", value.type)
    return [
        pa.ListArray.from_arrays(pa.array(bounds, pa.int32()), columns[of.inputs.index(e.argument)])
        if is_of_list(e) and e.argument is not None
        else _one(e, table, names, len(bounds) - 1, settings, of_nothing)
        for e in of.aggregates
    ]


def _one(
    e: Aggregate, table: Mapping[str, pa.Array], names: dict[Expression, str], count: int, settings: Settings,
    of_nothing: dict[Aggregate, pa.Array],
) -> pa.Array:  # fmt: skip
    keys = [f"{to_sql(key, names)} {how}" for key, how in e.order]
    if not e.distinct and (keys or e.function not in (*IN_ANY_ORDER, *AGGREGATE_MACROS)):
        keys.append("i")
    arguments = ", ".join(to_sql(a, names) for a in (e.argument, *e.more) if a is not None)
    order = f" ORDER BY {', '.join(keys)}" if keys else ""
    call = f"CAST({e.function}({'DISTINCT ' if e.distinct else ''}{arguments}{order}) AS {e.type})"
    where = f"WHERE {to_sql(e.where, names)}" if e.where is not None else ""

    def failure(reason: str) -> DataError:
        return DataError(f"{show(e)} cannot be computed: {reason}", "guard it with a condition before it")

    if e not in of_nothing:
        nothing = {name: array.slice(0, 0) for name, array in table.items()}
        (of_nothing[e],) = query(f"SELECT {call} AS r FROM t", {"t": nothing}, failure, settings)
    k, found = query(f"SELECT k, {call} AS r FROM t {where} GROUP BY k", {"t": table}, failure, settings)
    place = np.full(count, len(k), np.int64)
    place[k.to_numpy()] = np.arange(len(k))
    return pa.concat_arrays([found, of_nothing[e].cast(found.type)]).take(pa.array(place))

"""Output rows: measures of all matches of a batch, column by column.

Navigation becomes row positions and one gather; counts, sums, minima, maxima and averages of numeric columns are folded
by a kernel; any other DuckDB aggregate is one GROUP BY; a scalar expression over these is one DuckDB projection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import numpy as np
import pyarrow as pa

from matching.batch import Int64Array
from matching.features import RowValues, duckdb_values, lowered, storable
from matching.kernels import fold
from matching.store import RowStore, to_arrow
from matching.types import arrow_type
from query.automaton.lanes import NoLane, lane_of
from query.errors import DataError
from query.language.ast import RowsPerMatch
from query.language.duck import quiet_connection
from query.plan.expression import (
    Aggregate,
    Classifier,
    Column,
    Expression,
    Logical,
    MatchNumber,
    Navigation,
    show,
    to_sql,
    walk,
)
from query.plan.output import output_columns
from query.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Found:
    """n matches as positions in a RowStore.

    rows, variables: positions and variables of all matched rows; match i has [bounds[i], bounds[i + 1]) of them.
    start: position of the row where the attempt began. partition: id; number: MATCH_NUMBER. outcome: int8,
    query.plan.output.Outcome. waiting: of a TIMEOUT the state it waited in, else -1.
    """

    rows: Int64Array
    variables: np.ndarray
    bounds: Int64Array
    start: Int64Array
    partition: Int64Array
    number: Int64Array
    outcome: np.ndarray
    waiting: Int64Array

    def __len__(self) -> int:
        return len(self.number)


@dataclass(frozen=True, slots=True)
class _View:
    """m output rows: the match each belongs to, the matched rows it sees while running ([low, high)) and finally
    ([low, final)), and its current row (-1: none, an empty match under ONE ROW PER MATCH)."""

    match: Int64Array
    low: Int64Array
    high: Int64Array
    final: Int64Array
    current: Int64Array
    current_index: Int64Array  # of the current row among the matched rows, -1 none


def _view(plan: Plan, found: Found) -> _View:
    low, high = found.bounds[:-1], found.bounds[1:]
    if plan.rows is RowsPerMatch.ONE:
        index = np.where(high > low, high - 1, -1)
        current = np.where(index >= 0, found.rows[np.maximum(index, 0)] if len(found.rows) else -1, -1)
        return _View(np.arange(len(found)), low, high, high, current, index)
    lengths = high - low
    shown = np.maximum(lengths, 1) if plan.rows is RowsPerMatch.ALL_SHOW_EMPTY else lengths
    match = np.repeat(np.arange(len(found)), shown)
    first = np.cumsum(shown) - shown
    within = np.arange(len(match)) - first[match]
    empty = lengths[match] == 0
    index = np.where(empty, -1, low[match] + within)
    current = np.where(empty, found.start[match], found.rows[np.maximum(index, 0)] if len(found.rows) else 0)
    return _View(match, low[match], np.where(empty, low[match], index + 1), high[match], current, index)


class Measures:
    """Computes the output table of a plan.

    variables: the pattern's variables in the order of their numbers; one may stand there several times. shown: for each
    whether ALL ROWS shows its rows (false inside {- -}); all if empty. waiting: per state what a partial match there
    waits for."""

    def __init__(
        self, plan: Plan, variables: Sequence[str], shown: Sequence[bool] = (), waiting: Sequence[str] = ()
    ) -> None:
        self.plan = plan
        self.shown = np.array(shown or [True] * len(variables), np.bool_)
        self.waiting = pa.array(waiting, pa.string())
        self.variables = tuple(variables)
        self.labels = pa.array(self.variables, pa.string())
        self.schema = pa.schema([(f.name, arrow_type(f.type)) for f in output_columns(plan)])
        self._simple: dict[Expression, RowValues] = {}
        #: what NEXT in MEASURES reads
        self.ahead = [
            e for m in plan.measures for e in walk(m.expression) if isinstance(e, Navigation) and e.physical_offset > 0
        ]

    def needs(self) -> tuple[Expression, ...]:
        """Expressions whose columns have to be kept with the rows."""
        kept: list[Expression] = [m.expression for m in self.plan.measures]
        if self.plan.rows is not RowsPerMatch.ONE:
            kept += [Column(f.name, f.type) for f in self.plan.schema.fields]
        return tuple(kept)

    def table(self, store: RowStore, found: Found, keys: Sequence[pa.Array]) -> tuple[pa.Table, Int64Array]:
        """The output rows, and for each the index of its match. keys: the partition columns' values, a row a match."""
        plan = self.plan
        view = _view(plan, found)
        one = plan.rows is RowsPerMatch.ONE
        columns: list[pa.Array] = []
        for key in keys:
            columns.append(key if one else key.take(pa.array(view.match)))
        if not one:
            partition = {c.name for c in plan.partition_by}
            order = [o.column.name for o in plan.order_by if o.column.name not in partition]
            columns += [store.column(name, view.current) for name in order]
        columns += [self.measure(m.expression, store, found, view) for m in plan.measures]
        for field in self.schema.names[len(columns) :]:
            columns.append(store.column(field, view.current))
        columns = [
            c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, self.schema, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=self.schema), view.match

    def measure(self, expression: Expression, store: RowStore, found: Found, view: _View) -> pa.Array:
        """One measure for every output row."""
        match expression:
            case Column(name):
                if self.plan.rows is RowsPerMatch.ONE:
                    return store.column(name, view.current)
                return store.column(name, np.where(view.current_index < 0, -1, view.current))
            case Classifier():
                at = found.variables[np.maximum(view.current_index, 0)] if len(found.rows) else view.current_index
                return self.labels.take(pa.array(at.astype(np.int64), mask=view.current_index < 0))
            case MatchNumber():
                return pa.array(found.number[view.match])
            case Navigation():
                return self._navigation(expression, store, found, view)
            case Aggregate():
                return self._aggregate(expression, store, found, view)
        leaves: dict[Expression, str] = {}
        columns: dict[str, pa.Array] = {}
        self._collect(expression, leaves, columns, store, found, view)
        if not columns:
            columns["_"] = pa.nulls(len(view.match))
        (result,) = _project(columns, [to_sql(expression, leaves)], show(expression))
        return result

    def _collect(
        self, e: Expression, leaves: dict[Expression, str], columns: dict[str, pa.Array],
        store: RowStore, found: Found, view: _View,
    ) -> None:  # fmt: skip
        if isinstance(e, Column | Classifier | MatchNumber | Navigation | Aggregate):
            if e not in leaves:
                name = f"leaf{len(leaves)}"
                leaves[e] = f'"{name}"'
                columns[name] = self.measure(e, store, found, view)
            return
        arguments = getattr(e, "arguments", ())
        for argument in arguments:
            self._collect(argument, leaves, columns, store, found, view)

    def _mask(self, names: tuple[str, ...]) -> int:
        if not names:
            return (1 << len(self.variables)) - 1
        return sum(1 << i for i, v in enumerate(self.variables) if v in names)

    def waits(self, store: RowStore, found: Found) -> np.ndarray:
        """For each match whether NEXT in a measure reads a row of its partition that is not there yet, bool (n,)."""
        low, high = found.bounds[:-1], found.bounds[1:]
        last = np.where(high > low, high - 1, -1)
        waits = np.zeros(len(found), np.bool_)
        for e in self.ahead:
            index = self._index(e, found, low, high, last)
            rows = _at(found.rows, index)
            waits |= (rows >= 0) & (store.chase(rows, e.physical_offset) < 0)
        return waits

    def _index(
        self, e: Navigation, found: Found, low: Int64Array, high: Int64Array, current: Int64Array
    ) -> Int64Array:
        """The matched row the logical step of a navigation means for each output row, -1 for none."""
        if e.logical is None:
            return current
        index = np.empty(len(low), np.int64)
        mask = self._mask(e.variables)
        fold.pick(low, high, found.variables, mask, e.logical is Logical.LAST, e.logical_offset, index)
        return index

    def _navigation(self, e: Navigation, store: RowStore, found: Found, view: _View) -> pa.Array:
        index = self._index(e, found, view.low, view.final if e.final else view.high, view.current_index)
        rows = _at(found.rows, index)
        if e.physical_offset:
            rows = store.chase(rows, e.physical_offset)
        match e.argument:
            case Column(name):
                return store.column(name, rows)
            case Classifier():
                at = found.variables[np.maximum(index, 0)] if len(found.rows) else index
                return self.labels.take(pa.array(at.astype(np.int64), mask=index < 0))
            case argument:
                values = self._row_values(argument, store, np.maximum(rows, 0))
                return values.take(pa.array(np.arange(len(rows)), mask=rows < 0))

    def _row_values(self, argument: Expression, store: RowStore, rows: Int64Array) -> pa.Array:
        """A row-local expression at the given positions."""
        if isinstance(argument, Column):
            return store.column(argument.name, rows)
        if any(isinstance(x, Classifier) for x in walk(argument)):
            raise DataError("CLASSIFIER() inside a larger argument is not supported yet", "name it as a measure")
        if store.count == 0:
            return pa.nulls(len(rows), arrow_type(argument.type))
        return duckdb_values([argument], store, rows)[0]

    def _aggregate(self, e: Aggregate, store: RowStore, found: Found, view: _View) -> pa.Array:
        mask = self._mask(e.variables)
        high = view.final if e.final else view.high
        if e.argument is None:
            counts = np.empty(len(view.match), np.int64)
            fold.count_rows(view.low, high, found.variables, mask, counts)
            return pa.array(counts)
        folded = None if e.distinct else self._fold(e, store, found, view.low, high, mask)
        return folded if folded is not None else self._group(e, store, found, view.low, high, mask)

    def _fold(
        self, e: Aggregate, store: RowStore, found: Found, low: Int64Array, high: Int64Array, mask: int
    ) -> pa.Array | None:
        """count, sum, min, max, avg of values that have a lane; None otherwise."""
        kinds = {"count": fold.COUNT, "sum": fold.SUM, "avg": fold.SUM, "mean": fold.SUM, "min": fold.MIN,
                 "max": fold.MAX}  # fmt: skip
        argument = e.argument
        assert argument is not None
        if e.function not in kinds:
            return None
        try:
            lane = lane_of(argument.type)
        except NoLane:
            return None
        if lane.boolean or lane.scale or argument.type in ("INTERVAL", "HUGEINT") or lowered(argument) is None:
            return None
        if isinstance(argument, Column) and storable(argument.type) is None:
            return None
        if argument not in self._simple:
            self._simple[argument] = RowValues([argument])
        ((values, valid),) = self._simple[argument].evaluate(store, found.rows)
        known = np.ones(len(values), np.bool_) if valid is None else valid
        counts = np.empty(len(low), np.int64)
        kind = kinds[e.function]
        if lane.floating:
            floats = np.empty(len(low), np.float64)
            fold.fold_floats(low, high, found.variables, mask, values, known, kind, floats, counts)
            out: np.ndarray = floats
        else:
            out = np.empty(len(low), np.int64)
            if not fold.fold_ints(low, high, found.variables, mask, values, known, kind, out, counts):
                return None  # DuckDB sums in 128 bits
        if e.function == "count":
            return pa.array(counts)
        some = counts > 0
        if e.function in ("avg", "mean"):
            if e.type != "DOUBLE":
                return None
            with np.errstate(all="ignore"):
                out = out.astype(np.float64) / counts
            return to_arrow(out, some, pa.float64())
        return to_arrow(out, some, arrow_type(e.type))

    def _group(
        self, e: Aggregate, store: RowStore, found: Found, low: Int64Array, high: Int64Array, mask: int
    ) -> pa.Array:
        """Any aggregate by DuckDB: one GROUP BY over the rows each output row sees, in their order."""
        assert e.argument is not None
        counts = high - low
        view_of = np.repeat(np.arange(len(low)), counts)
        index = np.arange(len(view_of)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(low, counts)
        chosen = (mask >> found.variables[index].astype(np.int64)) & 1 == 1 if len(index) else np.zeros(0, np.bool_)
        view_of, index = view_of[chosen], index[chosen]
        argument = self._row_values(e.argument, store, found.rows[index])
        distinct = "DISTINCT " if e.distinct else ""
        order = "" if e.distinct else " ORDER BY i"
        shown = "coalesce(r, 0)" if e.function == "count" else "r"
        sql = (
            f"SELECT {shown} AS r FROM (SELECT k, {e.function}({distinct}x{order}) AS r FROM t GROUP BY k) "
            "RIGHT JOIN views USING (k) ORDER BY views.k"
        )
        cursor = quiet_connection().cursor()
        try:
            cursor.register("t", pa.table({"k": view_of, "i": index, "x": argument}))
            cursor.register("views", pa.table({"k": np.arange(len(low))}))
            result = pa.table(cursor.sql(sql)).column("r")
        except duckdb.Error as error:
            raise DataError(f"{show(e)} cannot be computed: {str(error).splitlines()[0]}") from None
        finally:
            cursor.close()
        array = result.combine_chunks() if result.num_chunks != 1 else result.chunk(0)
        return array if array.type == arrow_type(e.type) else array.cast(arrow_type(e.type))


def _at(values: Int64Array, index: Int64Array) -> Int64Array:
    """values[index], and -1 where the index is -1."""
    if not len(values):
        return np.full(len(index), -1, np.int64)
    return np.where(index < 0, -1, values[np.maximum(index, 0)])


def _project(columns: dict[str, pa.Array], texts: Sequence[str], shown: str) -> list[pa.Array]:
    selected = ", ".join(f"{text} AS v{i}" for i, text in enumerate(texts))
    cursor = quiet_connection().cursor()
    try:
        cursor.register("t", pa.table(columns))
        result = pa.table(cursor.sql(f"SELECT {selected} FROM t"))
    except duckdb.Error as error:
        raise DataError(
            f"a measure cannot be computed for these rows: {str(error).splitlines()[0]}",
            f"guard it with TRY(...), TRY_CAST or CASE: {shown}",
        ) from None
    finally:
        cursor.close()
    return [c.combine_chunks() if c.num_chunks != 1 else c.chunk(0) for c in result.columns]

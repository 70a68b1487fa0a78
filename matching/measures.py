"""Output rows: measures of all matches of a batch, column by column.

Navigation becomes row positions and one gather; counts, sums, minima, maxima and averages are folded by a kernel, in
time linear in the rows; any other DuckDB aggregate is one GROUP BY, or a window where it runs along a match; scalar
expressions over these are one DuckDB projection for all measures.

Long: one class computes every kind of measure over the same rows; matching/measure_ways.py chooses the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from matching.array_lanes import Overflow, Values, run_lanes, truth
from matching.batch import Int64Array
from matching.features import leaf_sql, leaves_of, project, query
from matching.kernels import fold
from matching.measure_ways import (
    KINDS,
    call_sql,
    folds_type,
    is_leaf,
    is_streamed,
    lowered_measure,
    runs_along,
)
from matching.not_computed import not_computed
from matching.program.carried import row_meant
from matching.program.conditions import IN_ANY_ORDER, is_exact
from matching.program.lanes import Lowered, lane_of
from matching.store import RowStore, lanes, to_arrow
from matching.types import plain_type
from query.errors import DataError
from query.language.ast import RowsPerMatch
from query.language.duck import AGGREGATE_MACROS
from query.plan.expression import (
    Aggregate,
    Classifier,
    Column,
    Constant,
    Expression,
    Logical,
    MatchNumber,
    Navigation,
    to_sql,
    walk,
)
from query.plan.output import TIMEOUT_COLUMNS, Outcome, output_columns
from query.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class FoundMatches:
    """n matches as positions in a RowStore.

    rows, variables: positions and variables of all matched rows; match i has [bounds[i], bounds[i + 1]) of them. start:
    position of the row where the attempt began. partition: id; number: MATCH_NUMBER. outcome: int8,
    query.plan.output.Outcome. waiting: of a TIMEOUT the state it waited in, else -1. carried: if the matched rows are
    only the last ones of matches, the values that measures read of the others: for each count its values, for each
    `row_meant` positions (-1: none).
    """

    rows: Int64Array
    variables: np.ndarray
    bounds: Int64Array
    start: Int64Array
    partition: Int64Array
    number: Int64Array
    outcome: np.ndarray
    waiting: Int64Array
    carried: Mapping[object, Int64Array] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.number)


@dataclass(frozen=True, slots=True)
class _View:
    """m output rows: the match each belongs to, its current row (-1: none, an empty match under ONE ROW PER MATCH), and
    the index of that row among the matched rows (-1: an empty match or an unmatched row)."""

    match: Int64Array
    current: Int64Array
    index: Int64Array

    def only(self, at: Int64Array) -> _View:
        return _View(self.match[at], self.current[at], self.index[at])


def _view(plan: Plan, found: FoundMatches, shown: np.ndarray) -> _View:
    """Returns the output rows of matches. shown: for each variable, True if ALL ROWS shows its rows."""
    low, high = found.bounds[:-1], found.bounds[1:]
    if plan.rows is RowsPerMatch.ONE and len(found.rows) == len(found) and found.carried:
        every = np.arange(len(found))
        return _View(every, found.rows, every)
    if plan.rows is RowsPerMatch.ONE:
        index = np.where(high > low, high - 1, -1)
        return _View(np.arange(len(found)), _at(found.rows, index), index)
    lengths = high - low
    empty = lengths == 0
    alone = empty & (found.outcome == Outcome.UNMATCHED) if plan.rows is RowsPerMatch.ALL_OMIT_EMPTY else empty
    rows = lengths + alone
    match = np.repeat(np.arange(len(found)), rows)
    if len(found.rows) == len(match):
        index = np.arange(len(match))
        current = found.rows
    else:
        first = np.cumsum(rows) - rows
        index = np.where(empty[match], -1, np.arange(len(match)) + (low - first)[match])
        current = np.where(index < 0, found.start[match], _at(found.rows, index))
    view = _View(match, current, index)
    if shown.all() or not len(found.rows):
        return view
    return view.only(np.flatnonzero((index < 0) | shown[found.variables[np.maximum(index, 0)]]))


class Measures:
    """Computes the output table of a plan.

    variables: the pattern's variables in the order of their numbers, possibly repeated. shown: for each, True if ALL
    ROWS shows its rows (False inside {- -}); all if empty. waiting: per state, what a partial match there waits for, as
    the column `timeout` shows it."""

    def __init__(
        self, plan: Plan, variables: Sequence[str], shown: Sequence[bool] = (), waiting: Sequence[str] = ()
    ) -> None:
        self.plan = plan
        self.shown = np.array(shown or [True] * len(variables), np.bool_)
        self.waiting = pa.array(waiting, pa.string())
        self.variables = tuple(variables)
        self.labels = pa.array(self.variables, pa.string())
        self.schema = pa.schema([(f.name, plain_type(f.type)) for f in output_columns(plan)])
        #: each measure, and how lanes can compute it from what it reads
        self.lowered = [(m.expression, lowered_measure(m.expression)) for m in plan.measures]
        #: values that do not depend on the rows: constants, and aggregates over no rows
        self.fixed: dict[Expression, pa.Array] = {}
        #: rows that NEXT in MEASURES reads
        self.ahead = [
            e for m in plan.measures for e in walk(m.expression) if isinstance(e, Navigation) and e.physical_offset > 0
        ]

    def needs(self) -> tuple[Expression, ...]:
        """Returns the expressions whose columns must be stored with the rows."""
        kept: list[Expression] = [m.expression for m in self.plan.measures]
        if self.plan.rows is not RowsPerMatch.ONE:
            kept += [Column(f.name, f.type) for f in self.plan.schema.fields]
        return tuple(kept)

    def table(self, store: RowStore, found: FoundMatches, keys: Sequence[pa.Array]) -> tuple[pa.Table, Int64Array]:
        """Returns the output rows, and for each the index of its match. keys: the partition columns' values, a row per
        match.

        Raises DataError if a measure cannot be computed."""
        view = _view(self.plan, found, self.shown)
        if not len(view.match):
            return self.schema.empty_table(), view.match
        try:
            return self._table(store, found, keys, view), view.match
        except pa.ArrowInvalid as error:
            if "capacity" not in str(error):
                raise
            raise DataError(
                f"the texts of {len(view.match):,} rows of measures have more than 2 GB in one column",
                "shorten them, left(s, 100), or compute them in the outer SELECT",
            ) from None

    def _table(
        self, store: RowStore, found: FoundMatches, keys: Sequence[pa.Array], view: _View
    ) -> pa.Table:
        """Returns the output rows of a view."""
        plan = self.plan
        match = None if plan.rows is RowsPerMatch.ONE else pa.array(view.match)
        columns = [key if match is None else key.take(match) for key in keys]
        front = list(dict.fromkeys(o.column.name for o in plan.order_by)) if match is not None else []
        front = [name for name in front if name not in {c.name for c in plan.partition_by}]
        columns += [store.column(name, view.current) for name in front]
        columns += self._measures(store, found, view)
        rest = self.schema.names[len(columns) : len(self.schema) - len(TIMEOUT_COLUMNS) * plan.timeout_rows]
        columns += [store.column(name, view.current) for name in rest]
        if plan.timeout_rows:
            columns += [c if match is None else c.take(match) for c in self._timeout_columns(found)]
        columns = [c if c.type == f.type else c.cast(f.type) for c, f in zip(columns, self.schema, strict=True)]
        return pa.Table.from_arrays(columns, schema=self.schema)

    def _measures(self, store: RowStore, found: FoundMatches, view: _View) -> list[pa.Array]:
        """All measures for the rows of a view; null for unmatched rows."""
        unmatched = found.outcome[view.match] == Outcome.UNMATCHED
        if not unmatched.any():
            return _Rows(self, store, found, view).measures()
        # nothing is computed for an unmatched row
        arrays = _Rows(self, store, found, view.only(np.flatnonzero(~unmatched))).measures()
        spread = pa.array(np.cumsum(~unmatched) - 1, mask=unmatched)
        return [array.take(spread) for array in arrays]

    def _timeout_columns(self, found: FoundMatches) -> list[pa.Array]:
        """The values of TIMEOUT_COLUMNS, a row a match."""
        unmatched = found.outcome == Outcome.UNMATCHED
        offsets = pa.array(found.bounds.astype(np.int32), mask=np.append(unmatched, False) if unmatched.any() else None)
        labels = pa.ListArray.from_arrays(offsets, self.labels.take(pa.array(found.variables.astype(np.int64))))
        timeout = self.waiting.take(pa.array(found.waiting, mask=found.outcome != Outcome.TIMEOUT))
        return [labels, timeout]

    def waits(self, store: RowStore, found: FoundMatches, come: int | None = None) -> np.ndarray:
        """Returns, for each match, whether NEXT in a measure reads a row of its partition that has not come yet, bool
        (n,). come: the rows of the store from there on have not; None: all have."""
        low, high = found.bounds[:-1], found.bounds[1:]
        last = np.where(high > low, high - 1, -1)
        rows = _Rows(self, store, found, _View(np.arange(len(found)), _at(found.rows, last), last))
        waits = np.zeros(len(found), np.bool_)
        for e in self.ahead:
            reached = rows.reached(e)
            absent = reached < 0 if come is None else (reached < 0) | (reached >= come)
            waits |= (rows.logical(e) >= 0) & absent
        return waits


class _Rows:
    """The values that the measures read for the output rows of a view; shared by all of them, each computed once."""

    def __init__(self, measures: Measures, store: RowStore, found: FoundMatches, view: _View) -> None:
        self.of = measures
        self._settings = measures.plan.settings
        self.store = store
        self.found = found
        self.view = view
        self._chosen: dict[tuple[str, ...], tuple[Int64Array, Int64Array]] = {}
        self._logical: dict[object, Int64Array] = {}
        self._reached: dict[object, Int64Array] = {}
        self._leaves: dict[Expression, pa.Array] = {}

    def __len__(self) -> int:
        return len(self.view.match)

    # output row k sees the matched rows [low, high) while running and [low, final) finally

    @cached_property
    def low(self) -> Int64Array:
        return self.found.bounds[self.view.match]

    @cached_property
    def high(self) -> Int64Array:
        return np.where(self.view.index < 0, self.low, self.view.index + 1)

    @cached_property
    def final(self) -> Int64Array:
        return self.found.bounds[self.view.match + 1]

    def measures(self) -> list[pa.Array]:
        """Every measure of the plan."""
        found = [self._alone(e, low) for e, low in self.of.lowered]
        rest = [i for i, array in enumerate(found) if array is None]
        if not rest:
            return found
        projected = self._projected([self.of.lowered[i][0] for i in rest])
        for i, array in zip(rest, projected, strict=True):
            found[i] = array
        return found

    def _alone(self, e: Expression, low: Lowered | None) -> pa.Array | None:
        """A measure that needs no projection, or None."""
        if is_leaf(e) or isinstance(e, Constant):
            return self.leaf(e)
        if low is None:
            return None
        try:
            values, valid = run_lanes(low, len(self), self._lane)
        except Overflow:
            return None  # DuckDB determines whether it is read
        return to_arrow(values, valid, plain_type(e.type))

    def _lane(self, leaf: Expression) -> Values:
        return lanes(self.leaf(leaf), lane_of(leaf.type).floating)

    def _projected(self, expressions: Sequence[Expression]) -> list[pa.Array]:
        """Computes scalar expressions by one DuckDB projection, including arguments of navigations, so that CASE around
        them guards them."""
        columns: dict[str, pa.Array] = {}
        names: dict[object, str] = {}

        def place(key: object, array: Callable[[], pa.Array], type: str) -> str:
            if key not in names:
                name = f"leaf{len(columns)}"
                columns[name] = array()
                names[key] = leaf_sql(name, type)
            return names[key]

        def leaf(e: Expression) -> str:
            return place(e, lambda: self.leaf(e), e.type)

        def read(e: Expression) -> str:
            if not isinstance(e, Navigation) or is_leaf(e):
                return leaf(e)
            inner = {x: leaf(replace(e, argument=x, type=x.type)) for x in leaves_of(e.argument)}
            there = place(row_meant(e), lambda: pa.array(self.reached(e) >= 0), "BOOLEAN")
            return f"(CASE WHEN {there} THEN {to_sql(e.argument, inner)} END)"

        texts = [to_sql(e, {x: read(x) for x in leaves_of(e)}) for e in expressions]
        columns = columns or {"_": pa.nulls(len(self))}
        try:
            arrays = project(columns, texts, DataError, self._settings)
        except DataError:
            for e, text in zip(expressions, texts, strict=True):
                project(columns, [text], _failure(e), self._settings)  # identifies the failing one
            raise
        return [_plain(array, e.type) for array, e in zip(arrays, expressions, strict=True)]

    def leaf(self, e: Expression) -> pa.Array:
        """Returns a column, navigation, aggregate, constant, CLASSIFIER() or MATCH_NUMBER() for every output row."""
        found = self._leaves.get(e)
        if found is None:
            found = self._leaves[e] = self._leaf(e)
        return found

    def _leaf(self, e: Expression) -> pa.Array:
        match e:
            case Column(name):
                return self.store.column(name, np.where(self.view.index < 0, -1, self.view.current))
            case Classifier():
                return self._classifier(self.view.index)
            case MatchNumber():
                return self._number(self.view.match)
            case Navigation(Column(name)):
                return self.store.column(name, self.reached(e))
            case Navigation(Classifier()):
                index = self.logical(e)
                if e.physical_offset:
                    index = np.empty(len(self), np.int64)
                    fold.locate(self.low, self.final, self.found.rows, self.reached(e), index)
                return self._classifier(index)
            case Aggregate():
                return self._aggregate(e)
            case Constant():
                if e not in self.of.fixed:
                    (value,) = project({"_": pa.nulls(1)}, [to_sql(e)], _failure(e), self._settings)
                    self.of.fixed[e] = _plain(value, e.type)
                return self.of.fixed[e].take(pa.array(np.zeros(len(self), np.int64)))
            case _:
                raise AssertionError(e)

    def _classifier(self, index: Int64Array) -> pa.Array:
        """The variables of matched rows; -1 gives null."""
        at = _at(self.found.variables, index).astype(np.int64)
        return self.of.labels.take(pa.array(at, mask=index < 0))

    def _number(self, match: Int64Array) -> pa.Array:
        none = self.found.outcome[match] != Outcome.MATCH
        return pa.array(self.found.number[match], mask=none if none.any() else None)

    # ---- navigation

    def chosen(self, names: tuple[str, ...]) -> tuple[Int64Array, Int64Array]:
        """Returns the indices of the matched rows of these variables (of all if empty), and for every index of a
        matched row, and the end, the number of them before it."""
        if names not in self._chosen:
            wanted = np.array([not names or v in names for v in self.of.variables], np.bool_)
            if wanted.all():
                at = before = np.arange(len(self.found.rows) + 1)
                at = at[:-1]
            else:
                there = wanted[self.found.variables]
                at, before = np.flatnonzero(there), _before(there)
            self._chosen[names] = at, before
        return self._chosen[names]

    def logical(self, e: Navigation) -> Int64Array:
        """Returns, for each output row, the index of the matched row of a navigation's logical step, -1 for none."""
        if e.logical is None:
            return self.view.index
        key = (e.variables, e.logical, e.logical_offset, e.final)
        if key not in self._logical and self.of.plan.rows is RowsPerMatch.ONE:
            # a row for each match: one pass over its rows
            wanted = np.array([not e.variables or v in e.variables for v in self.of.variables], np.bool_)
            index, first = np.empty(len(self), np.int64), e.logical is Logical.FIRST
            fold.choose(self.low, self.high, _own(self.found.variables), wanted, e.logical_offset, first, index)
            self._logical[key] = index
        if key not in self._logical:
            at, before = self.chosen(e.variables)
            low, high = before[self.low], before[self.final if e.final else self.high]
            if e.logical is Logical.FIRST:
                nth = low + e.logical_offset
                self._logical[key] = _at(at, np.where(nth < high, nth, -1))
            else:
                nth = high - 1 - e.logical_offset
                self._logical[key] = _at(at, np.where(nth >= low, nth, -1))
        return self._logical[key]

    def reached(self, e: Navigation) -> Int64Array:
        """Returns, for each output row, the position of the row of a navigation, -1 for none."""
        key = row_meant(e)
        if key in self.found.carried:
            return self.found.carried[key]
        if key not in self._reached:
            rows = _at(self.found.rows, self.logical(e))
            self._reached[key] = self.store.chase(rows, e.physical_offset) if e.physical_offset else rows
        return self._reached[key]

    # ---- aggregates

    def _aggregate(self, e: Aggregate) -> pa.Array:
        if e in self.found.carried:
            return pa.array(self.found.carried[e])
        one = self.of.plan.rows is RowsPerMatch.ONE
        whole = one or e.final  # a value for each match, else for each output row
        low, high = (self.found.bounds[:-1], self.found.bounds[1:]) if whole else (self.low, self.high)
        at, before = self.chosen(e.variables)
        if e.where is not None or e.distinct:
            at = self._first_of_equal(e, self._where(e, at))
            there = np.zeros(len(self.found.rows), np.bool_)
            there[at] = True
            before = _before(there)
        low, high = before[low], before[high]
        array = self._folded(e, at, low, high)
        if array is None:
            array = self._computed(e, at, low, high, whole)
        if whole and len(array) == len(self) and one:
            return array
        return array.take(pa.array(self.view.match)) if whole else array

    def _where(self, e: Aggregate, at: Int64Array) -> Int64Array:
        """Returns the matched rows at `at` that meet FILTER."""
        if e.where is None or not len(at):
            return at
        return at[truth(self._values(e.where, at))]

    def _first_of_equal(self, e: Aggregate, at: Int64Array) -> Int64Array:
        """Applies DISTINCT: keeps the first of matched rows with equal arguments in one match."""
        if not e.distinct or not len(at):
            return at
        arguments = [a for a in (e.argument, *e.more) if a is not None]
        columns, names = self._columns(arguments, at)
        equal = ", ".join(["k", *(to_sql(a, names) for a in arguments)])
        sql = f"SELECT min(i) AS i FROM t GROUP BY {equal} ORDER BY 1"
        (first,) = query(sql, {"t": columns}, _failure(e), self._settings)
        return at[first.to_numpy()]

    def _columns(
        self, inputs: Sequence[Expression], at: Int64Array
    ) -> tuple[dict[str, pa.Array], dict[Expression, str]]:
        """Returns the columns for expressions over single matched rows at `at`, with k the match and i the order; and
        the SQL of each leaf."""
        match = np.repeat(np.arange(len(self.found)), np.diff(self.found.bounds))[at]
        columns = {"k": pa.array(match), "i": pa.array(np.arange(len(at)))}
        names: dict[Expression, str] = {}
        for leaf in (leaf for e in inputs for leaf in leaves_of(e)):
            if leaf in names:
                continue
            match leaf:
                case Column(column):
                    array = self.store.column(column, self.found.rows[at])
                case Classifier():
                    array = self._classifier(at)
                case MatchNumber():
                    array = self._number(match)
                case _:
                    raise AssertionError(leaf)
            name = f"leaf{len(names)}"
            columns[name] = array
            names[leaf] = leaf_sql(name, leaf.type)
        return columns, names

    def _single(self, e: Expression, at: Int64Array) -> pa.Array:
        """An expression over single matched rows at the rows `at`, as DuckDB computes it."""
        if isinstance(e, Column):
            return self.store.column(e.name, self.found.rows[at])
        columns, names = self._columns([e], at)
        (array,) = project(columns, [to_sql(e, names)], _failure(e), self._settings)
        return array

    def _values(self, e: Expression, at: Int64Array) -> Values:
        """An expression over single matched rows in its lane (a FLOAT as float64)."""
        rows = self.found.rows[at]
        if isinstance(e, Column) and e.name in self.store.numeric:
            return self.store.lane(e.name, rows)
        low = lowered_measure(e)
        if low is not None and all(isinstance(leaf, Column) for leaf in leaves_of(e)):
            try:
                return run_lanes(low, len(rows), lambda c: self.store.lane(c.name, rows))
            except Overflow:
                pass
        return lanes(self._single(e, at), e.type in ("DOUBLE", "FLOAT"))

    def _folded(self, e: Aggregate, at: Int64Array, low: Int64Array, high: Int64Array) -> pa.Array | None:
        """count, sum, min, max, avg of values that have a lane, over the rows [low, high) of `at`; None otherwise."""
        argument = e.argument
        if argument is None:
            return pa.array(high - low)
        if e.function not in KINDS or e.more or (e.order and e.function in ("sum", "avg", "mean")):
            return None
        kind = KINDS[e.function]
        if kind == fold.COUNT and not folds_type(argument.type):
            there = self._single(argument, at).is_valid().to_numpy(zero_copy_only=False)
            known = _before(there)
            return pa.array(known[high] - known[low])
        if not folds_type(argument.type) or (e.function in ("avg", "mean") and e.type != "DOUBLE"):
            return None
        values, valid = self._values(argument, at)
        values, known = _own(values), np.zeros(0, np.bool_) if valid is None else _own(valid)
        counts = np.empty(len(low), np.int64)
        if values.dtype == np.float64:
            floats = np.empty(len(low), np.float64)
            fold.fold_floats(low, high, values, known, kind, floats, counts)
            out: np.ndarray = floats
        else:
            out = np.empty(len(low), np.int64)
            if not fold.fold_ints(low, high, values.astype(np.int64, copy=False), known, kind, out, counts):
                return None  # DuckDB sums in 128 bits
        if e.function == "count":
            return pa.array(counts)
        some = counts > 0
        if e.function in ("avg", "mean"):
            scale = 0 if argument.type == "FLOAT" else lane_of(argument.type).scale
            with np.errstate(all="ignore"):
                out = out.astype(np.float64) / (counts * 10.0**scale)
        return to_arrow(out, None if some.all() else some, plain_type(e.type))

    def _computed(self, e: Aggregate, at: Int64Array, low: Int64Array, high: Int64Array, whole: bool) -> pa.Array:
        """Returns any aggregate by DuckDB over the rows [low, high) of `at`, in their order."""
        if e.function in ("avg", "mean") and is_exact(e):
            return self._average(e, at, low, high, whole)
        columns, names = self._columns(e.inputs, at)
        in_order = call_sql(e, names, e.function not in IN_ANY_ORDER | AGGREGATE_MACROS)
        if e not in self.of.fixed:
            nothing = {name: array.slice(0, 0) for name, array in columns.items()}
            (value,) = query(f"SELECT {in_order} AS r FROM t", {"t": nothing}, _failure(e), self._settings)
            self.of.fixed[e] = _plain(value, e.type)
        if whole:
            sql = f"SELECT k, {in_order} AS r FROM t GROUP BY k"
            k, found = query(sql, {"t": columns}, _failure(e), self._settings)
            place = np.full(len(low), len(k), np.int64)
            place[k.to_numpy()] = np.arange(len(k))
        else:
            if runs_along(e):
                over = "OVER (PARTITION BY k ORDER BY i ROWS UNBOUNDED PRECEDING)"
                sql = f"SELECT r FROM (SELECT i, {call_sql(e, names, False)} {over} AS r FROM t) ORDER BY i"
                (found,) = query(sql, {"t": columns}, _failure(e), self._settings)
            elif is_streamed(e):
                found = self._streamed(e, columns, in_order, call_sql(e, names, False))
            else:
                found = self._prefixes(e, columns, in_order)
            place = np.where(high > low, high - 1, len(at))
        return pa.concat_arrays([_plain(found, e.type), self.of.fixed[e]]).take(pa.array(place))

    def _average(self, e: Aggregate, at: Int64Array, low: Int64Array, high: Int64Array, whole: bool) -> pa.Array:
        """avg of exact numbers of more than 64 bits: the exact sum and the count, divided as doubles."""
        assert e.argument is not None
        type = e.argument.type
        scale = lane_of(type).scale if type.startswith("DECIMAL") else 0
        total = f"DECIMAL(38,{scale})" if type.startswith("DECIMAL") else "HUGEINT"
        sums = self._computed(replace(e, function="sum", type=total), at, low, high, whole)
        there = _before(self._single(e.argument, at).is_valid().to_numpy(zero_copy_only=False))
        counts = there[high] - there[low]
        words = np.frombuffer(sums.buffers()[1], np.int64)[2 * sums.offset : 2 * (sums.offset + len(sums))].tolist()
        unscaled = [(h << 64) + (w & (2**64 - 1)) for w, h in zip(words[::2], words[1::2], strict=True)]
        out = np.array([float(n) for n in unscaled]) / (np.maximum(counts, 1) * 10.0**scale)
        return to_arrow(out, counts > 0, pa.float64())

    def _streamed(self, e: Aggregate, columns: dict[str, pa.Array], in_order: str, call: str) -> pa.Array:
        """Returns what `_prefixes` does, in one pass over the rows of each long match. in_order, call: of prefixes, and
        of a window."""
        match = columns["k"].to_numpy()
        begins = np.append(np.flatnonzero(np.diff(match, prepend=-1)), len(match))
        long = np.flatnonzero(np.diff(begins) >= STREAMED_MIN)
        if not len(long):
            return self._prefixes(e, columns, in_order)
        sql = f"SELECT {call} OVER (ROWS UNBOUNDED PRECEDING) AS r FROM t"
        parts, at = [], 0

        def short(upto: int) -> None:
            if upto > at:
                some = {name: array.slice(at, upto - at) for name, array in columns.items()}
                parts.append(self._prefixes(e, some, in_order))

        for begin, end in zip(begins[long].tolist(), begins[long + 1].tolist(), strict=True):
            short(begin)
            rows = {name: array.slice(begin, end - begin) for name, array in columns.items()}
            (found,) = query(sql, {"t": rows}, _failure(e), self._settings)
            parts.append(_plain(found, e.type))
            at = end
        short(len(match))
        return pa.concat_arrays(parts)

    def _prefixes(self, e: Aggregate, columns: dict[str, pa.Array], call: str) -> pa.Array:
        """Returns the aggregate at each row over all rows of its match up to it. Quadratic in the length of the
        matches."""
        match = columns["k"].to_numpy()
        n = len(match)
        first = np.searchsorted(match, match)
        lengths = np.arange(n) - first + 1
        total = np.concatenate([[0], np.cumsum(lengths)])
        parts = [pa.array([], plain_type(e.type))]
        begin = 0
        while begin < n:
            end = max(begin + 1, int(np.searchsorted(total, total[begin] + PREFIX_ROWS, "right")) - 1)
            here = slice(begin, end)
            group = np.repeat(np.arange(begin, end), lengths[here])
            index = np.arange(len(group)) + np.repeat(first[here] - (total[here] - total[begin]), lengths[here])
            taken = {name: array.take(pa.array(index)) for name, array in columns.items()}
            taken["k"] = pa.array(group)
            sql = f"SELECT k, {call} AS r FROM t GROUP BY k ORDER BY k"
            _, part = query(sql, {"t": taken}, _failure(e), self._settings)
            parts.append(_plain(part, e.type))
            begin = end
        return pa.concat_arrays(parts)


#: Rows of a match from which on one pass over it costs less than its prefixes.
STREAMED_MIN = 256
#: Maximum number of rows of one query of `_Rows._prefixes`.
PREFIX_ROWS = 1 << 20


def _failure(*expressions: Expression) -> Callable[[str], DataError]:
    """Returns a function that makes the error of a measure from DuckDB's message."""
    return lambda reason: not_computed("a measure", expressions, reason)


def _plain(array: pa.Array, type: str) -> pa.Array:
    """Returns a column of DuckDB's in the Arrow type of the output."""
    target = plain_type(type)
    return array if array.type == target else array.cast(target)


def _before(there: np.ndarray) -> Int64Array:
    """Returns the number of true values before each index, and before the end: int64 (n + 1,)."""
    before = np.zeros(len(there) + 1, np.int64)
    np.cumsum(there, out=before[1:])
    return before


def _own(values: np.ndarray) -> np.ndarray:
    """Returns the values in the form for which kernels are compiled: contiguous and writable."""
    return values if values.flags.c_contiguous and values.flags.writeable else values.copy()


def _at(values: np.ndarray, index: Int64Array) -> np.ndarray:
    """values[index], and -1 where the index is -1."""
    if not len(values):
        return np.full(len(index), -1, np.int64)
    found, none = values[index], index < 0
    if none.any():
        found[none] = -1
    return found

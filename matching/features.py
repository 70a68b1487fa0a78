"""Row-local expressions over whole batches: numpy in lanes where that is exact, one DuckDB projection for the rest.

Long: the values of rows, and the codes, ranks and steps by which conditions tell texts apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from itertools import accumulate, pairwise
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from matching.array_lanes import Overflow, Values, run_lanes
from matching.batch import Int64Array
from matching.kernels.joined import step_texts
from matching.keys import Encoder, Texts
from matching.not_computed import not_computed
from matching.program.conditions import JoinedTexts, is_storable
from matching.program.lanes import (
    BOOLEAN,
    CODED,
    INT64_MAX,
    Lane,
    Leaf,
    Lowered,
    NoLane,
    Op,
    Unit,
    is_wide,
    lane_of,
    lower,
)
from matching.program.opcodes import OF_ONE_ROW
from matching.store import RowStore, beyond_microseconds, lanes
from matching.types import duckdb_type, plain_type
from query.errors import DataError, TooWide, first_line
from query.language.duck import Settings, quiet_connection, renew, volatile_names
from query.plan.expression import (
    Call,
    Column,
    Constant,
    Expression,
    Navigation,
    Opaque,
    conjuncts,
    quote,
    show,
    to_sql,
    walk,
)
from query.stopping import heed


def storable(type: str) -> Lane | None:
    """The lane a column of this type is stored in, or None if it is kept as Arrow."""
    try:
        lane = lane_of(type)
    except NoLane:
        return None
    if type == "INTERVAL" or is_wide(type):
        return None
    return lane


def _leaf(expression: Expression) -> Leaf | None:
    match expression:
        case Column(name, type):
            lane = storable(type)
            if lane is None:
                raise NoLane(f"column {name}")
            return Leaf((name, 0), lane)
        case Navigation(Column(name, type), logical=None, physical_offset=offset):
            lane = storable(type)
            if lane is None:
                raise NoLane(f"column {name}")
            return Leaf((name, offset), lane)
        case Opaque(sql, (a,), "BOOLEAN") if (numbers := _listed(sql)) is not None:
            leaf = _leaf(a)
            if leaf is not None and isinstance(leaf.source, tuple) and _is_exact(numbers, leaf.lane):
                return Leaf((*leaf.source, sql), BOOLEAN)
            raise NoLane("IN of other than a column's whole numbers")
        case Navigation():
            raise NoLane("navigation over an expression")
    return None


@lru_cache(maxsize=256)
def _listed(sql: str) -> Int64Array | None:
    """The numbers of a long list after IN (query.plan.tree.blank_lists), in order; None for other texts."""
    found = re.fullmatch(r'\("_0" IN \(([-+\d,\s]+)\)\)', sql)
    try:
        return None if found is None else np.unique(np.array([*map(int, found[1].split(","))], np.int64))
    except (OverflowError, ValueError):  # beyond 64 bits
        return None


def _is_exact(numbers: Int64Array, lane: Lane) -> bool:
    """True if values of a lane can be looked for among whole numbers as they are."""
    if lane.scale or lane.boolean or lane.unit is not Unit.NUMBER:
        return False
    return not lane.floating or bool(max(-numbers[0], numbers[-1]) < 2**53)


def lowered(expression: Expression) -> Lowered | None:
    """The expression in lanes over stored columns, or None if DuckDB has to compute it."""
    try:
        found = lower(expression, _leaf)
    except NoLane:
        return None
    return None if _of_one_row(found) else found


def _of_one_row(node: Lowered) -> bool:
    """True if an operation of it has no exact form for arrays."""
    return isinstance(node, Op) and (node.name in OF_ONE_ROW or any(map(_of_one_row, node.arguments)))


def columns_read(expressions: Sequence[Expression]) -> tuple[str, ...]:
    """Names of the columns that occur anywhere in the expressions, in order."""
    return tuple(dict.fromkeys(e.name for x in expressions for e in walk(x) if isinstance(e, Column)))


def _step_texts(texts: pa.Array, constant: bytes, out: np.ndarray) -> None:
    """Writes the states after each text (matching.kernels.joined)."""
    binary = texts.cast(pa.binary())
    offsets = np.frombuffer(binary.buffers()[1], np.int32)[binary.offset : binary.offset + len(binary) + 1]
    data = binary.buffers()[2]
    none = np.zeros(0, np.uint8)
    step_texts(offsets, none if data is None else np.frombuffer(data, np.uint8), np.frombuffer(constant, np.uint8), out)


class Codes:
    """The codes of values that conditions only tell apart: a dictionary for each of the CODED types, which keeps every
    value it has met as long as the matcher lives. texts: the VARCHAR values that have the codes 0, 1, 2, ..."""

    def __init__(self, texts: Sequence[str] = ()) -> None:
        #: of the types that have been met
        self.encoders = {"VARCHAR": Encoder(pa.string(), pa.array(texts, pa.string()))} if texts else {}
        self._sorted = np.zeros(0, object)  # the texts in order, and their codes
        self._order = np.zeros(0, np.int64)
        self._ranks = np.zeros(1, np.int64)
        self._steps = np.zeros((1, 1, 1), np.int16)
        self._stepped = 0  # the codes that are in there

    def encode(self, column: pa.Array, type: str) -> Values:
        if type not in self.encoders:
            self.encoders[type] = Encoder(plain_type(type))
        encoder = self.encoders[type]
        valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else None
        return encoder.encode(column if column.type == encoder.type else column.cast(encoder.type)), valid

    def ranks(self) -> Int64Array:
        """The place of each text in DuckDB's order of all, by code. Cost: of new ones their number by the logarithm of
        all, and as many steps as there are texts."""
        encoder = self.encoders.get("VARCHAR")
        known, count = len(self._order), 0 if encoder is None else len(encoder)
        if encoder is None or count == known:
            return self._ranks
        new = np.array(encoder.of(np.arange(known, count)).fill_null("").to_pylist(), object)
        by_text = np.argsort(new, kind="stable")  # Python's order of texts is that of their bytes
        new, codes = new[by_text], by_text + known
        places = np.searchsorted(self._sorted, new)
        self._sorted, self._order = np.insert(self._sorted, places, new), np.insert(self._order, places, codes)
        self._ranks = np.empty(count, np.int64)
        self._ranks[self._order] = np.arange(count)
        return self._ranks

    def steps(self, joined: Sequence[JoinedTexts]) -> np.ndarray:
        """How joined texts stand to constants, step by step: int16 (tables, 1 + codes at least, states).

        State 0: they are less than the constant; 1 + n: they are its first n bytes, and equal if these are all; the
        last state: greater. Row 0 of a table has the state after the separator, row 1 + c after the text of code c. So
        a comparison costs a look-up a row, however many are joined, and new texts their bytes once."""
        encoder = self.encoders.get("VARCHAR")
        count = 0 if encoder is None else len(encoder)
        if encoder is None or (count == self._stepped and len(self._steps) == len(joined)):
            return self._steps
        if 1 + count > self._steps.shape[1] or len(self._steps) != len(joined):
            states = max(len(j.constant) for j in joined) + 3
            larger = np.zeros((len(joined), 1 + max(2 * count, 64), states), np.int16)
            if self._stepped:
                larger[:, : 1 + self._stepped] = self._steps[:, : 1 + self._stepped]
            else:
                for j, table in zip(joined, larger, strict=True):
                    _step_texts(pa.array([j.separator]), j.constant, table[:1])
            self._steps = larger
        new = encoder.of(np.arange(self._stepped, count)).fill_null("")
        for j, table in zip(joined, self._steps, strict=True):
            _step_texts(new, j.constant, table[1 + self._stepped : 1 + count])
        self._stepped = count
        return self._steps

    def snapshot(self) -> dict[str, pa.Array]:
        """The values by code, of each type that has any."""
        return {type: e.values for type, e in self.encoders.items() if len(e)}

    def restore(self, values: Mapping[str, pa.Array]) -> None:
        self.encoders |= {type: Encoder(array.type, array) for type, array in values.items()}
        self._sorted, self._order = self._sorted[:0], self._order[:0]
        self._steps, self._stepped = np.zeros((1, 1, 1), np.int16), 0


class RowValues:
    """Evaluates row-local expressions at positions of a RowStore. codes: of values of the CODED types. settings: of
    DuckDB, under which they are computed. narrow: as of Plan.

    The sides of AND are computed apart, and put together, if none of them then needs DuckDB for each row."""

    def __init__(
        self, expressions: Sequence[Expression], codes: Codes | None = None, settings: Settings = (),
        narrow: bool = False,
    ) -> None:  # fmt: skip
        self.settings = settings
        self._narrow = narrow
        self.codes = codes or Codes()
        self.expressions = tuple(expressions)
        sides = [_sides(expression) for expression in self.expressions]
        bounds = [0, *accumulate(map(len, sides))]
        #: the places of each expression's sides among all
        self._places = [range(begin, end) for begin, end in pairwise(bounds)]
        self._sides = tuple(side for of_one in sides for side in of_one)
        self._lowered, self._repeated = _interned(map(lowered, self._sides))
        read: dict[Column, list[int]] = {}
        for index, expression in enumerate(self._sides):
            if self._lowered[index] is None and (word := _word_read(expression)) is not None:
                read.setdefault(word, []).append(index)
        #: by text column, the expressions that read nothing else
        self._words = [
            (Words(word, [self._sides[i] for i in at], self._kept, settings), at) for word, at in read.items()
        ]

    @property
    def by_arrays(self) -> bool:
        """True if DuckDB is not asked about each batch."""
        looked_up = {i for words, at in self._words if not words.diverse for i in at}
        return all(low is not None or i in looked_up for i, low in enumerate(self._lowered))

    def evaluate(self, store: RowStore, positions: Int64Array | slice) -> list[Values]:
        """Values (int64 or float64, (n,); codes for the CODED types) and validity of each expression. Raises DataError
        when a value cannot be computed (overflow, a bad cast), as DuckDB would."""
        count = positions.stop - positions.start if isinstance(positions, slice) else len(positions)
        gathered: dict[tuple[Any, ...], Values] = {}
        computed: dict[int, Values] = {}

        def read(key: tuple[Any, ...]) -> Values:
            if key in gathered:
                return gathered[key]
            name, offset, *among = key
            if among:
                values, valid = read((name, offset))
                numbers = _listed(*among)
                assert numbers is not None
                place = np.minimum(np.searchsorted(numbers, values), len(numbers) - 1)
                gathered[key] = numbers[place] == values, valid
            else:
                gathered[key] = store.lane(name, _neighbours(store, positions, offset) if offset else positions)
            return gathered[key]

        results: list[Values | None] = []
        by_duckdb = []
        for index, low in enumerate(self._lowered):
            value: Values | None = None
            if low is not None:
                try:
                    value = run_lanes(low, count, read, self._repeated, computed)
                except Overflow:
                    value = None
            if value is None:
                by_duckdb.append(index)
            results.append(value)
        for words, indices in self._words:
            if words.diverse:
                continue
            column = store.column(words.column.name, positions)
            for index, value in zip(indices, words.look_up(column), strict=True):
                if value is not None:
                    results[index] = value
                    by_duckdb.remove(index)
        if by_duckdb:
            arrays = self._by_duckdb(by_duckdb, store, positions)
            for i, array in arrays.items():
                if is_storable(self._sides[i], self._narrow) and (wide := _wide(array)) is not None:
                    raise _too_wide(self._sides[i], array[int(np.flatnonzero(wide)[0])])
                results[i] = self._kept(self._sides[i], array)
        each = [r for r in results if r is not None]
        return [_all(each[at.start : at.stop]) for at in self._places]

    def _kept(self, expression: Expression, array: pa.Array) -> Values:
        """The values of an expression as they are kept in a lane."""
        type = expression.type
        coded = type in CODED or not is_storable(expression, self._narrow)
        return self.codes.encode(array, type) if coded else lanes(array, lane_of(type).floating)

    def _by_duckdb(
        self, wanted: Sequence[int], store: RowStore, positions: Int64Array | slice
    ) -> dict[int, pa.Array]:
        """Expressions by index through DuckDB, but for columns as they are."""
        found: dict[int, pa.Array] = {}
        for i in wanted:
            match self._sides[i]:
                case Column(name, type) if _as_it_is(type):
                    found[i] = store.column(name, positions)
                case Navigation(Column(name, type), logical=None, physical_offset=offset) if _as_it_is(type):
                    found[i] = store.column(name, _neighbours(store, positions, offset))
        rest = [i for i in wanted if i not in found]
        if rest:
            of_rest = [self._sides[i] for i in rest]
            found |= zip(rest, duckdb_values(of_rest, store, positions, self.settings), strict=True)
        return found

    def attempt(
        self, store: RowStore, positions: Int64Array | slice
    ) -> tuple[list[Values], list[np.ndarray | None]]:
        """Returns the same values, and for each expression the rows where it cannot be computed, bool (n,), or None if
        there are none. Such a cell is null; if it is read, the caller raises the error that `why` returns.

        As fast as `evaluate` where all can be computed; else each expression is computed alone, a failing one twice."""
        try:
            return self.evaluate(store, positions), [None] * len(self.expressions)
        except DataError:
            pass
        results: list[Values] = []
        failing: list[np.ndarray | None] = []
        for expression in self.expressions:
            try:
                (value,) = self._alone(expression).evaluate(store, positions)
                failed = None
            except DataError:
                stored = is_storable(expression, self._narrow)
                array, failed = _tried(expression, store, positions, self.settings, stored)
                value = self._kept(expression, array)
            results.append(value)
            failing.append(failed)
        return results, failing

    def _alone(self, expression: Expression) -> RowValues:
        return RowValues([expression], self.codes, self.settings, self._narrow)

    def why(self, store: RowStore, position: int, index: int) -> DataError:
        """The error of expression `index` at a row that `attempt` marked as failing."""
        try:
            self._alone(self.expressions[index]).evaluate(store, np.array([position], np.int64))
        except DataError as error:
            return error
        return DataError(f"{show(self.expressions[index])} cannot be computed for one of the rows")


def _sides(expression: Expression) -> list[Expression]:
    """Returns the sides of AND if each is computed from lanes, or from one text column; otherwise the expression."""
    if not isinstance(expression, Call) or expression.function != "and" or lowered(expression) is not None:
        return [expression]
    of_lanes = [part for part in conjuncts(expression) if lowered(part) is not None]
    by_word: dict[Column | None, list[Expression]] = {}
    for part in conjuncts(expression):
        if lowered(part) is None:
            by_word.setdefault(_word_read(part), []).append(part)
    if None in by_word:
        return [expression]
    groups = [*([of_lanes] if of_lanes else []), *by_word.values()]
    return [Call("and", tuple(group), "BOOLEAN") if len(group) > 1 else group[0] for group in groups]


def _all(sides: Sequence[Values]) -> Values:
    """Returns the values of AND over those of its sides."""
    if len(sides) == 1:
        return sides[0]
    known = np.ones(len(sides[0][0]), np.bool_)
    false = np.zeros(len(known), np.bool_)
    for values, valid in sides:
        there = known.dtype.type(True) if valid is None else valid
        false |= there & (values == 0)
        known &= there
    valid = known | false
    return (known & ~false).astype(np.int64), None if valid.all() else valid


def _interned(trees: Iterable[Lowered | None]) -> tuple[tuple[Lowered | None, ...], frozenset[int]]:
    """The trees with equal operations as one object, and the ids of those that occur more than once."""
    known: dict[Hashable, Lowered] = {}
    repeated: set[int] = set()

    def one(node: Lowered) -> Lowered:
        if not isinstance(node, Op):
            return known.setdefault(node, node)
        arguments = tuple(map(one, node.arguments))
        # by the arguments' ids: a hash of all that is below each node would be quadratic
        key = (node.name, tuple(map(id, arguments)), node.lane, node.constant)
        if key in known:
            repeated.add(id(known[key]))
            return known[key]
        return known.setdefault(key, Op(node.name, arguments, node.lane, node.constant))

    return tuple(None if tree is None else one(tree) for tree in trees), frozenset(repeated)


#: Values of a text column whose answers are kept: at most WORDS_MAX at a time; from WORDS_MIN on only as long as there
#: are ROWS_A_WORD rows for each.
WORDS_MIN = 1 << 12
WORDS_MAX = 1 << 16
ROWS_A_WORD = 16


class Words:
    """The results of expressions over one text column: computed once for each of its values, looked up for a row.

    Only a cache. diverse: the column has too many different values for that."""

    def __init__(
        self, column: Column, expressions: Sequence[Expression], keep: Callable[[Expression, pa.Array], Values],
        settings: Settings = (),
    ) -> None:  # fmt: skip
        """keep: an array of values of an expression as they are kept in a lane."""
        self._settings = settings
        self.column = column
        self.expressions = tuple(expressions)
        self.diverse = False
        self._keep = keep
        self._begin()

    def _begin(self) -> None:
        self._texts = Texts(pa.string())
        self._rows = 0
        #: of each expression by code: values, validity, and where it cannot be computed
        self._answers: list[tuple[np.ndarray, np.ndarray, np.ndarray] | None] = [None for _ in self.expressions]

    def look_up(self, column: pa.Array) -> list[Values | None]:
        """The values of each expression for a column of n rows; None where DuckDB has to be asked, as for rows whose
        value cannot be computed."""
        known = len(self._texts)
        codes = self._texts.encode(column)
        self._rows += len(column)
        count = len(self._texts)
        if count > max(WORDS_MIN, self._rows // ROWS_A_WORD) or count > WORDS_MAX:
            self.diverse = count <= WORDS_MAX or ROWS_A_WORD * count > self._rows
            self._begin()
            return [None for _ in self.expressions]
        if count > known:
            try:
                self._add(self._texts.of(np.arange(known, count)))
            except DataError:  # not one that TRY catches
                self.diverse = True
                return [None for _ in self.expressions]
        found: list[Values | None] = []
        for answers in self._answers:
            assert answers is not None or not len(column)
            if answers is None or (answers[2].any() and answers[2][codes].any()):
                found.append(None)
            else:
                values, valid, _ = answers
                found.append((values[codes], None if valid.all() else valid[codes]))
        return found

    def _add(self, words: pa.Array) -> None:
        """Computes the answers for values that are new."""
        names: dict[Expression, str] = {self.column: leaf_sql("word", self.column.type)}
        columns = {"word": words}
        found: list[tuple[pa.Array, np.ndarray | None]] = []
        try:
            texts = [to_sql(e, names) for e in self.expressions]
            arrays = project(columns, texts, _failure(self.expressions), self._settings)
            found += [(array, None) for array in arrays]
        except DataError:
            pass
        if not found or any(_wide(array) is not None for array, _ in found):
            found = [attempted(columns, to_sql(lazy(e), names), self._settings) for e in self.expressions]
        for i, (array, failed) in enumerate(found):
            values, valid = self._keep(self.expressions[i], array)
            if pa.types.is_boolean(array.type):
                values = values != 0
            there = np.ones(len(words), np.bool_) if valid is None else valid
            bad = np.zeros(len(words), np.bool_) if failed is None else failed
            if (before := self._answers[i]) is None:
                self._answers[i] = values, there, bad
            else:
                joined = zip(before, (values, there, bad))
                self._answers[i] = tuple(np.concatenate(pair) for pair in joined)  # type: ignore[assignment]


def _word_read(expression: Expression) -> Column | None:
    """The text column that is all an expression reads; None if it reads more, or has another value each time, or is
    that column."""
    if isinstance(expression, Column):
        return None
    leaves = set(leaves_of(expression))
    match list(leaves):
        case [Column(type="VARCHAR") as column]:
            return None if is_volatile(expression) else column
    return None


def is_volatile(expression: Expression) -> bool:
    """True if an expression may have another value each time it is computed."""
    return bool(set(re.findall(r"\w+", to_sql(expression).lower())) & volatile_names())


def _as_it_is(type: str) -> bool:
    """True if the values of a column without a lane are kept, or coded, as Arrow has them."""
    return type in ("VARCHAR", "BLOB", "INTERVAL") or is_wide(type)


def _wide(array: pa.Array) -> np.ndarray | None:
    """Returns which values of a column have no number in the 64 bits of a lane, intervals with months and such ones;
    None: none of them."""
    if pa.types.is_interval(array.type):
        return beyond_microseconds(array)
    if pa.types.is_uint64(array.type):
        above = pc.greater(array, pa.scalar(INT64_MAX, pa.uint64()))
        return above.fill_null(False).to_numpy(zero_copy_only=False) if pc.any(above).as_py() else None
    if not pa.types.is_decimal128(array.type):
        return None
    words = np.frombuffer(array.buffers()[1], np.int64)[2 * array.offset : 2 * (array.offset + len(array))]
    wide = words[1::2] != words[::2] >> 63
    if array.null_count:
        wide &= array.is_valid().to_numpy(zero_copy_only=False)
    return wide if wide.any() else None


def _too_wide(expression: Expression, value: object) -> DataError:
    if expression.type == "INTERVAL":
        what = f"{show(expression)} has months, or very many days: it is no number of 64 bits"
        return TooWide(what, "read its seconds, epoch(x)")
    return TooWide(
        f"{show(expression)} is {value}, which is out of the range of 64 bits", "CAST it to DOUBLE or split it"
    )


def lazy(expression: Expression) -> Expression:
    """The expression with AND and OR written as CASE: DuckDB computes both sides of these, but no branch of a CASE that
    is not taken."""
    match expression:
        case Call("and" | "or" as name, (first, *rest), type):
            left = lazy(first)
            if not rest:
                return left
            right = lazy(rest[0] if len(rest) == 1 else Call(name, tuple(rest), type))
            decided = Call("not", (left,), type) if name == "and" else left
            both = Call(name, (left, right), type)
            return Call("case", (decided, Constant(name == "or", "BOOLEAN"), both), type)
        case Call(name, arguments, type):
            return Call(name, tuple(map(lazy, arguments)), type)
        case _:
            return expression


def _tried(
    expression: Expression, store: RowStore, positions: Int64Array | slice, settings: Settings, stored: bool
) -> tuple[pa.Array, np.ndarray | None]:
    """The values of an expression, null where it cannot be computed, and where that is (None: nowhere). stored: as
    numbers of 64 bits."""
    columns, (text,) = row_columns([lazy(expression)], store, positions)
    return attempted(columns, text, settings, stored)


def attempted(
    columns: Mapping[str, pa.Array], text: str, settings: Settings, as_lanes: bool = True
) -> tuple[pa.Array, np.ndarray | None]:
    """Returns an SQL expression row by row, null where it cannot be computed, and where that is (None: nowhere).
    as_lanes: numbers beyond 64 bits cannot be."""
    (array,) = project(columns, [f"TRY({text})"], DataError, settings)
    failed = array.is_null().to_numpy(zero_copy_only=False)
    if failed.any():  # NULL IS NULL is true, so only an error makes this null
        failed, nulls = failed.copy(), np.flatnonzero(failed)
        some = {name: column.take(pa.array(nulls)) for name, column in columns.items()}
        (known,) = project(some, [f"TRY(({text}) IS NULL)"], DataError, settings)
        failed[nulls] = known.is_null().to_numpy(zero_copy_only=False)
    if as_lanes and (wide := _wide(array)) is not None:
        failed |= wide
        array = pc.if_else(pa.array(wide), pa.scalar(None, array.type), array)
    return array, failed if failed.any() else None


def leaves_of(expression: Expression) -> Iterator[Expression]:
    """Yields the reads of an expression: columns, navigations, aggregates and so on, and nothing inside of these."""
    match expression:
        case Call(_, arguments) | Opaque(_, arguments):
            for argument in arguments:
                yield from leaves_of(argument)
        case Constant():
            pass
        case _:
            yield expression


@cache
def _arrow_is_enough(type: str) -> bool:
    """True if DuckDB reads a column of this type back unchanged (not so: ENUM, UUID, HUGEINT, ...)."""
    try:
        return duckdb_type(plain_type(type)) == type
    except pa.ArrowNotImplementedError:  # UNION comes back as itself, though not by way of an empty column
        return True


def leaf_sql(name: str, type: str) -> str:
    """A column of a table handed to DuckDB, in its DuckDB type."""
    return quote(name) if _arrow_is_enough(type) else f"CAST({quote(name)} AS {type})"


def project(
    columns: Mapping[str, pa.Array], texts: Sequence[str], failure: Callable[[str], DataError], settings: Settings = ()
) -> list[pa.Array]:
    """Returns SQL expressions over columns of one length, row by row. failure: makes the error of DuckDB's message."""
    selected = ", ".join(f"{text} AS v{i}" for i, text in enumerate(texts))
    return query(f"SELECT {selected} FROM t", {"t": columns}, failure, settings)


def query(
    sql: str, tables: Mapping[str, Mapping[str, pa.Array]], failure: Callable[[str], DataError], settings: Settings = ()
) -> list[pa.Array]:
    """The columns of a SELECT over tables that are given by their columns."""
    cursor = quiet_connection(settings)
    try:
        for name, columns in tables.items():
            cursor.register(name, pa.table(dict(columns)))
        result = cursor.sql(sql).to_arrow_table()
    except duckdb.Error as error:
        renew(error)
        heed()  # else it would be tried row by row
        raise failure(first_line(error)) from None
    finally:
        cursor.close()
    return [c.combine_chunks() if c.num_chunks != 1 else c.chunk(0) for c in result.columns]


def _failure(expressions: Sequence[Expression]) -> Callable[[str], DataError]:
    """Returns the function that makes the error of these expressions from DuckDB's message."""
    return lambda reason: not_computed("a condition or measure", expressions, reason)


def duckdb_values(
    expressions: Sequence[Expression], store: RowStore, positions: Int64Array | slice, settings: Settings = ()
) -> list[pa.Array]:
    """Row-local expressions by one DuckDB projection, as Arrow arrays in DuckDB's types."""
    columns, texts = row_columns(expressions, store, positions)
    return project(columns, texts, _failure(expressions), settings)


def row_columns(
    expressions: Sequence[Expression], store: RowStore, positions: Int64Array | slice
) -> tuple[dict[str, pa.Array], list[str]]:
    """The columns that row-local expressions read at some rows, and the SQL of each expression over them."""
    here = positions
    whole = np.arange(here.start, here.stop) if isinstance(here, slice) else here
    columns: dict[str, pa.Array] = {}

    def place(column: Column, offset: int) -> str:
        key = f"{column.name}@{offset}"
        if key not in columns:
            columns[key] = store.column(column.name, store.chase(whole, offset) if offset else here)
        return leaf_sql(key, column.type)

    def sql(expression: Expression, offset: int) -> str:
        leaves: dict[Expression, str] = {}
        for e in leaves_of(expression):
            match e:
                case Navigation(argument, physical_offset=physical):
                    total = offset + physical
                    exists = f"exists@{total}"
                    if exists not in columns:
                        columns[exists] = pa.array(store.chase(whole, total) >= 0)
                    leaves[e] = f'(CASE WHEN "{exists}" THEN {sql(argument, total)} END)'
                case Column():
                    leaves[e] = place(e, offset)
        return to_sql(expression, leaves)

    texts = [sql(e, 0) for e in expressions]
    if not columns:
        columns["_"] = pa.nulls(len(whole))
    return columns, texts


def _neighbours(store: RowStore, positions: Int64Array | slice, offset: int) -> Int64Array:
    if isinstance(positions, slice):
        chain = store.next if offset > 0 else store.previous
        positions = store.above(chain[positions])
        offset += -1 if offset > 0 else 1
    return store.chase(positions, offset)

"""Answers of DuckDB to kernels: values of functions between rows, computed for many runs at a time.

A kernel that comes upon values whose answer it does not know calls `Answers`. One call of DuckDB costs as much as a
thousand values, so the answers that other runs will probably ask for soon are computed with it (matching.foreseen).
Which these are changes no result: what is not known is asked.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from matching.asked_rows import AskedLists, aggregated, is_of_list, of_list
from matching.batch import Int64Array
from matching.features import Codes, attempted, lazy, leaf_sql, project
from matching.foreseen import Foresight, KnownLines, width_of
from matching.kernels import asking
from matching.kernels.asking import ASKED, BEFORE, FAILS, IS_NULL, IS_VALUE, KEY, NUMBER, ROW, UNKNOWN, VALUE
from matching.keys import Encoder
from matching.not_computed import not_computed
from matching.program.conditions import AskedFunction
from matching.program.lanes import DAY_US, OPERANDS_MAX, Lane, Unit
from matching.program.program import Program
from matching.store import lanes
from matching.walked import KeptValues
from query.errors import DataError
from query.language.duck import Settings
from query.plan.expression import Aggregate, to_sql
from query.stopping import drops, heed

#: Values that are long have so many bytes on the average of a few.
LONG, FEW = 256, 64
#: Lines of the table.
LINES_MIN, LINES_MAX = 1 << 13, 1 << 20

_numbers = itertools.count(1)
_answering: weakref.WeakValueDictionary[int, Answers] = weakref.WeakValueDictionary()


def _lines_for(lines: int) -> int:
    """Returns the size of a table that is to have so many lines: few of them lose their places to others."""
    return min(LINES_MAX, max(LINES_MIN, 1 << (4 * lines).bit_length()))


class Answers:
    """The answers that a matcher knows. codes: of its texts."""

    def __init__(self, program: Program, settings: Settings) -> None:
        self._asked = program.asked
        self._program = program
        self._of_nothing: dict[Aggregate, pa.Array] = {}
        self._settings = settings
        self._width = width_of(program)
        self._out = np.zeros(KEY + 1 + OPERANDS_MAX, np.int64)
        self._out[NUMBER] = next(_numbers)
        _answering[int(self._out[NUMBER])] = self
        self._foresight = Foresight(program)
        self._error: BaseException | None = None
        self._failing: tuple[AskedFunction, np.ndarray] | None = None  # the first line of the block
        self._of_block = 0  # lines that a block puts into the table: as many as one of the last ones
        self._used = self._before = 0
        self.forget()

    def forget(self) -> None:
        """Forgets all answers."""
        self._note_block()
        self._used = self._before = 0
        self._lists = AskedLists(self._program) if any(asked.rows for asked in self._asked) else None
        self._empty(_lines_for(self._of_block))

    def _empty(self, lines: int) -> None:
        self._keys = np.zeros((lines, self._width), np.int64)
        self._values, self._known = np.zeros(lines, np.int64), np.zeros(lines, np.int8)
        self._way = np.zeros(lines, np.int8)
        self._row = np.zeros(lines, np.int64)  # of all that came, the one for which a line was foreseen

    @property
    def is_full(self) -> bool:
        """True if everything is to be forgotten before a block of rows begins."""
        return self._lists is not None and self._lists.is_full

    def begin(
        self, codes: Codes, partition: Int64Array, feature: np.ndarray, valid: np.ndarray, position: Int64Array,
        mask: Int64Array, kept: KeptValues | None, nodes: int,
    ) -> dict[str, np.ndarray]:  # fmt: skip
        """Returns the tables of matching.kernels.asking for the rows of a block. feature, valid: values by row.
        position: of the rows in the row store. kept: what is kept of all rows there. nodes: how many runs have."""
        self._codes, self._kept, self._failing = codes, kept, None
        of_rows = self._foresight.begin(partition, feature, valid, position, mask)
        self._out[BEFORE] = self._foresight.row(0)
        self._note_block()
        wanted = _lines_for(max(self._used + self._of_block, 8 * len(partition)))
        if wanted > len(self._known):
            self._grow(wanted)
        of_lists = {} if self._lists is None else self._lists.begin(partition, position, nodes)
        return of_lists | of_rows | {
            "asked_keys": self._keys, "asked_values": self._values, "asked_known": self._known, "asked_row": self._row,
            "asked_way": self._way, "answer": self._out,
        }  # fmt: skip

    def _note_block(self) -> None:
        """Notes how many lines the last block has put into the table."""
        if self._used > self._before:
            self._of_block = max(self._of_block - self._of_block // 8, self._used - self._before)
        self._before = self._used

    def _grow(self, lines: int) -> None:
        keys, values, known, rows, ways = self._keys, self._values, self._known, self._row, self._way
        there = np.flatnonzero((known >= FAILS) & (known != UNKNOWN))
        self._empty(lines)
        places = self._places(keys[there], rows[there], ways[there], self._foresight.came)
        some = np.flatnonzero(places >= 0)
        asking.put_values(places[some], known[there[some]], values[there[some]], self._values, self._known)

    def _places(self, lines: np.ndarray, rows: Int64Array, ways: np.ndarray, now: int) -> Int64Array:
        """Returns where lines are put, -1 for one that is there (matching.kernels.asking.put_new)."""
        places = np.empty(len(lines), np.int64)
        asking.put_new(lines, rows, ways, self._keys, self._known, self._row, self._way, now, places)
        return places

    def move(self, moved: Int64Array) -> None:
        """Renumbers rows. moved: by position in the row store, the new one, -1 for rows that are gone."""
        if self._lists is not None:
            self._lists.move(moved)
            self._foresight.move(moved)  # rows that runs keep, so that their lists are foreseen

    def end(self) -> None:
        """Raises what has been raised while a kernel asked."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    # ---- called by kernels

    def answer(self) -> int:
        """Computes the line that `_out` asks for, and others; puts its value into `_out`. Returns what is known."""
        if self._error is not None:  # the kernel is about to end
            return FAILS
        try:
            heed()
            return self._answer()
        except BaseException as error:  # noqa: BLE001  kernels know none: it is raised after them
            self._error = error
            return FAILS

    def _answer(self) -> int:
        out = self._out
        which = int(out[KEY]) >> OPERANDS_MAX
        asked = self._asked[which]
        line = out[KEY : KEY + self._width].copy()
        table = KnownLines(self._keys, self._known, self._row, self._way)
        soon, rows, ways = self._foresight.soon(which, line, int(out[ROW]), table, self._lists)
        row = self._foresight.row(int(out[ROW]))
        lines, ways = np.concatenate([line[None], soon]), np.append(ASKED, ways)
        places = self._places(lines, np.append(row, rows), ways, row)
        some = np.flatnonzero(places >= 0)
        assert some[0] == 0, "the line that is asked is not known"
        self._foresight.note(which, ways[some])
        try:
            values, now = self._computed(asked, lines[some])
        except DataError:  # not one that TRY catches
            self._known[places[some]] = UNKNOWN
            try:
                values, now = self._computed(asked, line[None])
            except DataError:
                if asked.rows is None:
                    raise
                return FAILS  # an aggregate
            out[VALUE] = values[0]
            return int(now[0])
        asking.put_values(places[some], now, values, self._values, self._known)
        self._used += len(some)
        out[VALUE] = values[0]
        return int(now[0])

    def _computed(self, asked: AskedFunction, lines: np.ndarray) -> tuple[Int64Array, np.ndarray]:
        """Returns the values of lines, and what is known of each."""
        array, failed = attempted(*self._columns(asked, lines), self._settings)
        numbers, valid = lanes(array, asked.lane.floating)
        now = np.full(len(lines), IS_VALUE, np.int8)
        if valid is not None:
            now[~valid] = IS_NULL
        if failed is not None:
            now[failed] = FAILS
            if self._failing is None:
                self._failing = asked, lines[failed][:1]
        return np.ascontiguousarray(numbers).view(np.int64), now

    def _columns(self, asked: AskedFunction, lines: np.ndarray) -> tuple[dict[str, pa.Array], str]:
        """Returns the columns of lines, and the SQL text of a function over them."""
        columns, names = {}, {}
        for k, operand in enumerate(asked.operands):
            lane = asked.lanes[k]
            columns[f"v{k}"] = self._column(lines[:, 1 + k], (lines[:, 0] >> k) & 1 == 1, operand.type, lane)
            names[operand] = _sql_of(f"v{k}", operand.type)
        if asked.rows is not None:
            for j, (e, column) in enumerate(zip(asked.rows.aggregates, self._of_lists(asked, lines), strict=True)):
                columns[f"a{j}"] = column
                names[e] = of_list(e, f"a{j}") if is_of_list(e) else leaf_sql(f"a{j}", e.type)
        columns["_"] = pa.nulls(len(lines))
        return columns, to_sql(lazy(asked.expression), names)

    def why(self, functions: Sequence[int], position: int) -> DataError | None:
        """Returns DuckDB's error of one of these functions at a row of the row store: of the line that the row asked
        for last, or of the first one of the block that failed. None if the number is beyond 64 bits only."""
        lines = [(self._asked[which], self._foresight.line_at(which, position)) for which in functions]
        failing = [] if self._failing is None else [self._failing]
        for asked, line in [(asked, line) for asked, line in lines if line is not None] + failing:
            columns, text = self._columns(asked, line)
            try:
                project(columns, [text], DataError, self._settings)
            except DataError as error:
                return not_computed("a condition", [asked.expression], error.message)
        return None

    def _of_lists(self, asked: AskedFunction, lines: np.ndarray) -> list[pa.Array]:
        """Returns the aggregates of a function at each line, or lists of their values (matching.asked_rows)."""
        assert asked.rows is not None
        assert self._lists is not None
        assert self._kept is not None
        numbers = lines[:, 1 + len(asked.operands)]
        of_line = None
        if asked.operands:
            numbers, of_line = np.unique(numbers, return_inverse=True)
        rows, bounds = self._lists.expanded(numbers)
        columns = []
        for value, f in zip(asked.rows.inputs, asked.rows.features, strict=True):
            lane = self._program.features[f][1]
            bits, valid = self._kept.of(f, rows)
            columns.append(self._column(bits, valid, value.type, lane))
        found = aggregated(asked.rows, columns, bounds, self._settings, _sql_of, self._of_nothing)
        return found if of_line is None else [array.take(pa.array(of_line)) for array in found]

    def _column(self, bits: Int64Array, there: np.ndarray, type: str, lane: Lane) -> pa.Array:
        """Returns the values of a lane, which are given by their bits, as DuckDB takes them."""
        mask = ~there
        if lane.unit is Unit.CODE:
            encoder = self._codes.encoders.get(lane.coded)
            if encoder is None or not there.any():
                return pa.nulls(len(bits), pa.string() if encoder is None else encoder.type)
            if there.all():
                return _values(encoder, bits)
            some = np.flatnonzero(there)
            index = np.zeros(len(bits), np.int64)
            index[some] = np.arange(len(some))
            return _values(encoder, bits[some]).take(pa.array(index, mask=mask))
        if lane.floating:
            return pa.array(np.ascontiguousarray(bits).view(np.float64), mask=mask)
        if lane.boolean:
            return pa.array(bits != 0, mask=mask)
        if lane.scale or type.startswith("DECIMAL"):
            words = np.stack([bits, bits >> 63], 1)
            whole = pa.Array.from_buffers(pa.decimal128(38, lane.scale), len(bits), [None, pa.py_buffer(words)])
            return whole.take(pa.array(np.arange(len(bits)), mask=mask)) if mask.any() else whole
        numbers = pa.array(bits, mask=mask)
        match type:
            case "TIMESTAMP":
                return numbers.view(pa.timestamp("us"))
            case "TIMESTAMP WITH TIME ZONE":
                return numbers.view(pa.timestamp("us", "UTC"))
            case "DATE":
                return numbers.cast(pa.int32()).view(pa.date32())
            case "TIME":
                return numbers.view(pa.time64("us"))
        return numbers


def _values(encoder: Encoder, codes: Int64Array) -> pa.Array:
    """Returns the values of codes; long texts once each."""
    if not pa.types.is_string(encoder.type) or encoder.of(codes[:FEW]).nbytes <= LONG * FEW:
        return encoder.of(codes)
    distinct, index = np.unique(codes, return_inverse=True)
    return pa.DictionaryArray.from_arrays(index.astype(np.int32), encoder.of(distinct))


def _sql_of(name: str, type: str) -> str:
    """Returns a column of Answers._column in its DuckDB type. An INTERVAL is a difference of two times, which has days
    and a rest."""
    if type == "INTERVAL":
        return f'to_days(("{name}" // {DAY_US})::INTEGER) + to_microseconds("{name}" % {DAY_US})'
    return f"CAST({leaf_sql(name, type)} AS {type})"


def _called(number: int) -> int:
    return _answering[number].answer()


asking.answer_by(_called)
drops(_called, Answers.answer)

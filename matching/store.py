"""The rows a matcher may still need, as growing arrays: rows of live runs, and those that PREV and NEXT can reach."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from matching.batch import EventBatch, Int64Array
from matching.kernels.jit import kernel
from matching.kernels.layout import grown
from matching.records import Blocks, Grouped, RecordBlock, anew, one_each, owners

FIXED = ("ts", "source", "offset", "seq", "partition", "previous", "next", "released", "first")
#: Their tags in a state: they stay when attributes are renamed.
TAGS = {
    "ts": "ts", "source": "source", "offset": "offset", "seq": "seq", "partition": "partition", "previous": "previous",
    "next": "next", "released": "released", "first": "first",
}  # fmt: skip
#: Read only if rows know their neighbours.
LINKS = ("previous", "next", "first")
#: Of the rows of a batch.
SHOWN = ("ts", "source", "offset", "seq", "partition")
#: In `last`: no row of the partition has come; the last one has been dropped.
NONE = -1
DROPPED = -2
#: Number of chunks of columns stored as Arrow from which chunks are put together.
CHUNKS_MAX = 8


@kernel
def link_rows(partition, begin, end, last, previous, following, first):
    """Chains the rows [begin, end) of the store to the previous row of their partition; partition: of each of these;
    last: of each partition; first: set for rows that are the first of their partition."""
    for i in range(begin, end):
        p = partition[i - begin]
        before = last[p]
        first[i] = before == NONE
        previous[i] = max(before, -1)
        following[i] = -1
        if before >= 0:
            following[before] = i
        last[p] = i


def with_rows(kept: pa.Table, added: pa.Table) -> pa.Table:
    """Returns the rows of both. Chunks of small additions are put together: their number, and how often a row is
    copied, grow with the logarithm of the rows."""
    if not added.num_rows or kept.column(0).num_chunks < CHUNKS_MAX:
        return pa.concat_tables([kept, added])
    batches = kept.to_batches()
    size, n = added.num_rows, len(batches)
    while n and batches[n - 1].num_rows <= 4 * size:
        n -= 1
        size += batches[n].num_rows
    last = pa.Table.from_batches([*batches[n:], *added.to_batches()], kept.schema).combine_chunks()
    return pa.Table.from_batches([*batches[:n], *last.to_batches()], kept.schema)
@kernel
def walk(chain, steps, floor, positions):
    """Replaces each position by the one `steps` links of the chain further on; -1: there is none, or one on the way is
    below the floor."""
    for i in range(len(positions)):
        at = positions[i]
        left = steps
        while at >= 0 and left > 0:
            at = chain[at]
            if at < floor:
                at = -1
            left -= 1
        positions[i] = at


@kernel
def keep_near(previous, following, before, behind, last, keep, left, right, ahead):
    """Marks the rows that are at most `before` rows of their partition before a marked one, or `behind` after one, and
    the last rows of each partition, `last` of them. left, right, ahead: int64, 0, as many as rows. Linear in rows."""
    rows = len(left)
    for i in range(rows):  # right, left: 1 + how many rows go on to be marked from here
        more = behind if keep[i] else right[i] - 1
        to = following[i]
        if more > 0 and to >= 0:
            right[to] = max(right[to], more)
    for i in range(rows - 1, -1, -1):
        more = before if keep[i] else left[i] - 1
        to = previous[i]
        if more > 0 and to >= 0:
            left[to] = max(left[to], more)
        if following[i] >= 0:
            ahead[i] = ahead[following[i]] + 1
    for i in range(rows):
        if left[i] > 0 or right[i] > 0 or ahead[i] < last:
            keep[i] = True


def lanes(column: pa.Array, floating: bool) -> tuple[np.ndarray, np.ndarray | None]:
    """A numeric, boolean, date, time, interval (without months) or decimal (up to 18 digits) column as int64 or float64
    values and their validity (None: all valid). Values where invalid are 0."""
    valid = None
    if column.null_count:
        valid = pc.is_valid(column).to_numpy(zero_copy_only=False)
    type = column.type
    if pa.types.is_decimal(type):
        words = np.frombuffer(column.buffers()[1], np.int64)
        width = type.bit_width // 64
        values = words[column.offset * width : (column.offset + len(column)) * width : width]
        if valid is not None:
            values = np.where(valid, values, 0)
        return values, valid
    if pa.types.is_timestamp(type):
        column = column.cast(pa.timestamp("us", type.tz)).view(pa.int64())
    elif pa.types.is_boolean(type):
        column = column.cast(pa.int8())
    elif pa.types.is_time(type):
        column = column.cast(pa.time64("us")).view(pa.int64())
    elif pa.types.is_date32(type):
        column = column.view(pa.int32())
    elif pa.types.is_interval(type):
        return _microseconds(column), valid
    if valid is not None:
        column = pc.fill_null(column, 0)
    values = column.to_numpy(zero_copy_only=False)
    return values.astype(np.float64 if floating else np.int64, copy=False), valid


def _interval_parts(column: pa.Array) -> np.ndarray:
    layout = np.dtype([("months", np.int32), ("days", np.int32), ("ns", np.int64)])
    return np.frombuffer(column.buffers()[1], layout)[column.offset : column.offset + len(column)]


def beyond_microseconds(column: pa.Array) -> np.ndarray | None:
    """Returns which intervals have months, or more days than 64 bits of microseconds; None: none of them."""
    parts = _interval_parts(column)
    beyond = (parts["months"] != 0) | (np.abs(parts["days"].astype(np.int64)) > 100_000_000)
    if column.null_count:
        beyond &= column.is_valid().to_numpy(zero_copy_only=False)
    return beyond if beyond.any() else None


def _microseconds(column: pa.Array) -> Int64Array:
    """Returns intervals of days and microseconds, such as differences of timestamps, in microseconds."""
    parts = _interval_parts(column)
    there = column.is_valid().to_numpy(zero_copy_only=False)
    assert not parts["months"][there].any(), "an interval with months has no lane"
    return np.where(there, parts["days"] * np.int64(86_400_000_000) + parts["ns"] // 1000, 0)


class RowStore:
    """Rows in arrival order at positions 0, 1, 2, ...; positions change only in `compact`.

    numeric: columns stored as lanes (name -> floating); other: columns stored as Arrow. linked: True if rows know their
    neighbours in the partition (needed for PREV, NEXT and anchors). floor: earlier rows are ignored in searches for
    neighbours. numbered: rows have their numbers as times. grouped: further columns divide the rows (matching.tied),
    and neighbours are those of PARTITION BY.
    """

    floor = 0

    def __init__(
        self, numeric: dict[str, bool], other: Sequence[str], schema: pa.Schema, linked: bool, grouped: bool = False,
        numbered: bool = False,
    ) -> None:  # fmt: skip
        self.grouped = grouped
        self.number = np.zeros(1024, np.int64) if numbered else None
        self.came = 0  # rows so far, if they are numbered
        self._fixed = (*FIXED, "number") if numbered else FIXED
        self.numeric = numeric
        self.other = tuple(other)
        self.schema = schema
        self.linked = linked
        self.count = 0
        self.ts = np.zeros(1024, np.int64)
        self.source = np.zeros(1024, np.int32)
        self.offset = np.zeros(1024, np.int64)
        self.seq = np.zeros(1024, np.int64)
        self.partition = np.zeros(1024, np.int64)
        self.previous = np.zeros(1024, np.int64)
        self.next = np.zeros(1024, np.int64)
        self.released = np.zeros(1024, np.bool_)
        self.first = np.zeros(1024, np.bool_)
        self.last = np.full(16, NONE, np.int64)  # per partition, its last row
        self.values = {n: np.zeros(1024, np.float64 if f else np.int64) for n, f in numeric.items()}
        self.valid: dict[str, np.ndarray | None] = dict.fromkeys(numeric)
        self.arrow = pa.table({n: pa.array([], schema.field(n).type) for n in self.other})

    @property
    def clock(self) -> Int64Array:
        """By position, what WITHIN compares: times, or the numbers of rows."""
        return self.ts if self.number is None else self.number

    def adapt(self, numeric: dict[str, bool], other: Sequence[str], schema: pa.Schema, linked: bool) -> None:
        """Stores other columns from now on. Existing rows have nulls in new columns, and links only to new rows after
        them."""
        size = len(self.ts)
        for name in numeric.keys() - self.numeric.keys():
            self.values[name] = np.zeros(size, np.float64 if numeric[name] else np.int64)
            self.valid[name] = np.zeros(size, np.bool_) if self.count else None
        for name in self.numeric.keys() - numeric.keys():
            del self.values[name], self.valid[name]
        arrays = {
            name: self.arrow.column(name) if name in self.other else pa.nulls(self.count, schema.field(name).type)
            for name in other
        }
        self.arrow = pa.table(arrays)
        self.numeric, self.other, self.schema = numeric, tuple(other), schema
        if linked and not self.linked:
            self.previous[: self.count] = self.next[: self.count] = -1
            self.last[:] = NONE
            self.linked = True

    def fill(self, columns: pa.Table) -> None:
        """Sets values of stored columns, for all existing rows, in the order of their positions."""
        for name in columns.column_names:
            array = columns.column(name).combine_chunks()
            if name in self.other:
                self.arrow = self.arrow.set_column(self.arrow.column_names.index(name), self.schema.field(name), array)
                continue
            values, valid = lanes(array, self.numeric[name])
            self.values[name][: self.count] = values
            kept = self.valid[name]
            if kept is None and valid is not None:
                kept = self.valid[name] = np.ones(len(self.ts), np.bool_)
            if kept is not None:
                kept[: self.count] = True if valid is None else valid

    def _reserve(self, count: int, partitions: int) -> None:
        if count > len(self.ts):
            capacity = max(count, 2 * len(self.ts))
            for name in self._fixed:
                setattr(self, name, grown(getattr(self, name), capacity))
            self.values = {n: grown(v, capacity) for n, v in self.values.items()}
            self.valid = {n: None if v is None else grown(v, capacity, 1) for n, v in self.valid.items()}
        if partitions > len(self.last):
            self.last = grown(self.last, max(partitions, 2 * len(self.last)), NONE)

    def append(
        self, batch: EventBatch, partition: Int64Array, partitions: int, group: Int64Array | None = None
    ) -> int:
        """Adds the rows of a batch; returns the position of the first. One copy a column. group: of each row if
        `grouped`: the number of its key by PARTITION BY."""
        begin, end = self.count, self.count + len(batch)
        self._reserve(end, partitions if group is None else int(group.max(initial=0)) + 1)
        self.ts[begin:end] = batch.ts_us
        self.source[begin:end] = batch.source
        self.offset[begin:end] = batch.offset
        self.seq[begin:end] = batch.seq
        self.partition[begin:end] = partition
        self.released[begin:end] = False
        if self.number is not None:
            self.number[begin:end] = np.arange(self.came, self.came + len(batch))
            self.came += len(batch)
        for name, floating in self.numeric.items():
            values, valid = lanes(batch.columns.column(name), floating)
            self.values[name][begin:end] = values
            kept = self.valid[name]
            if valid is not None and kept is None:
                kept = self.valid[name] = np.ones(len(self.ts), np.bool_)
            if kept is not None:
                kept[begin:end] = True if valid is None else valid
        if self.other:
            self.arrow = with_rows(self.arrow, pa.table({n: batch.columns.column(n) for n in self.other}))
        if self.linked:
            whose = partition if group is None else group
            link_rows(whose, begin, end, self.last, self.previous, self.next, self.first)
        self.count = end
        return begin

    def show(self, batch: EventBatch, partition: Int64Array) -> None:
        """Replaces all rows by those of a batch, until `forget`; only `retain_shown` may change them. They must not
        know their neighbours. Copies no column but times, which kernels read: those are compiled for arrays that can be
        written to."""
        self.count = len(batch)
        self.ts, self.partition = batch.ts_us.copy(), partition
        self.source, self.offset, self.seq = batch.source, batch.offset, batch.seq
        for name, floating in self.numeric.items():
            self.values[name], self.valid[name] = lanes(batch.columns.column(name), floating)
        if self.other:
            self.arrow = pa.table({n: batch.columns.column(n) for n in self.other})

    def retain_shown(self, index: Int64Array) -> None:
        """Keeps, of the rows of `show`, those at `index`."""
        self.count = len(index)
        for name in SHOWN:
            setattr(self, name, getattr(self, name)[index])
        self.values = {n: v[index] for n, v in self.values.items()}
        self.valid = {n: None if v is None else v[index] for n, v in self.valid.items()}
        if self.other:
            self.arrow = self.arrow.take(pa.array(index))

    def forget(self) -> None:
        """Forgets the rows of `show`."""
        self.count = 0
        for name in FIXED:
            setattr(self, name, getattr(self, name)[:0].copy())
        self.values = {n: v[:0].copy() for n, v in self.values.items()}
        self.valid = dict.fromkeys(self.valid)
        self.arrow = self.arrow.slice(0, 0)

    def restart(self, partitions: int) -> None:
        """Forgets all rows. partitions: how many have had rows."""
        self.count = 0
        self.last[:partitions] = NONE
        self.arrow = self.arrow.slice(0, 0)

    def retain(self, begin: int, index: Int64Array) -> None:
        """Keeps, of the rows from `begin` on, those at `index`, counted from there; rows must not know their
        neighbours."""
        end, rows = begin + len(index), index + begin
        if len(index):
            arrays = [getattr(self, name) for name in self._fixed if name not in LINKS]
            for array in (*arrays, *self.values.values(), *(v for v in self.valid.values() if v is not None)):
                array[begin:end] = array[rows]
        if self.other:
            before = self.arrow.slice(0, begin)
            # from the rows behind: those before may be very many
            self.arrow = with_rows(before, self.arrow.slice(begin).take(pa.array(index))) if len(index) else before
        self.count = end

    def chase(self, positions: Int64Array, offset: int) -> Int64Array:
        """Returns the row `offset` rows later (or earlier, if negative) in each row's partition; -1 if there is none.
        Cost: the offset a position, or the rows in memory times the logarithm of the offset, whichever is less."""
        chain, steps = (self.next if offset > 0 else self.previous)[: self.count], abs(offset)
        if steps >= self.count:
            return np.full(len(positions), -1, np.int64)
        if len(positions) * steps <= self.count * steps.bit_length():
            found = np.array(positions, np.int64)
            walk(chain, steps, self.floor, found)
            return found
        chain = self.above(chain)  # of 1, 2, 4, ... links
        while steps:
            if steps & 1:
                positions = np.where(positions >= 0, chain[np.maximum(positions, 0)], -1)
            chain = np.where(chain >= 0, chain[np.maximum(chain, 0)], -1)
            steps >>= 1
        return positions

    def keep_near(self, before: int, behind: int, last: int, keep: np.ndarray) -> None:
        """Marks the rows up to `before` rows before a marked one and up to `behind` after one in its partition, and the
        `last` last rows of each partition."""
        links = self.previous[: self.count], self.next[: self.count]
        keep_near(*links, before, behind, last, keep, *(np.zeros(self.count, np.int64) for _ in range(3)))

    def above(self, positions: Int64Array) -> Int64Array:
        """Returns the positions, with -1 for those below the floor."""
        return np.where(positions >= self.floor, positions, -1) if self.floor else positions

    def lane(self, name: str, positions: Int64Array | slice) -> tuple[np.ndarray, np.ndarray | None]:
        """Values and validity (None: all valid) of a numeric column at `positions`; -1 gives null."""
        values, valid = self.values[name], self.valid[name]
        if isinstance(positions, slice):
            return values[positions], None if valid is None else valid[positions]
        if len(positions) and int(positions.min()) < 0:
            exists = positions >= 0
            at = np.maximum(positions, 0)
            return values[at], exists if valid is None else exists & valid[at]
        return values[positions], None if valid is None else valid[positions]

    def column(self, name: str, positions: Int64Array | slice) -> pa.Array:
        """An Arrow array of any kept column at `positions`; -1 gives null."""
        type = self.schema.field(name).type
        if name in self.numeric:
            return to_arrow(*self.lane(name, positions), type)
        column = self.arrow.column(name)
        if isinstance(positions, slice):
            taken = column.slice(positions.start, positions.stop - positions.start)
        else:
            if column.num_chunks > 2 * CHUNKS_MAX:
                self.arrow = self.arrow.combine_chunks()
                column = self.arrow.column(name)
            taken = column.take(pa.array(positions, mask=positions < 0))
        return taken.combine_chunks() if taken.num_chunks != 1 else taken.chunk(0)

    def compact(self, ids: Int64Array, keep: np.ndarray) -> Int64Array:
        """Keeps the rows marked in `keep` (bool, at least count long); returns the new position of every old row, -1
        for dropped ones. ids: the partitions that have rows."""
        kept = np.flatnonzero(keep[: self.count])
        moved = np.full(self.count + 1, -1, np.int64)  # the last entry: -1 stays -1
        moved[kept] = np.arange(len(kept))
        for name in self._fixed:
            array = getattr(self, name)
            array[: len(kept)] = array[kept]
        for array in self.values.values():
            array[: len(kept)] = array[kept]
        for valid in self.valid.values():
            if valid is not None:
                valid[: len(kept)] = valid[kept]
        if self.other:
            self.arrow = self.arrow.take(pa.array(kept)).combine_chunks()
        self.count = len(kept)
        if self.linked:
            for chain in (self.previous, self.next):
                chain[: self.count] = moved[chain[: self.count]]
            ids = np.arange(len(self.last)) if self.grouped else ids
            last = self.last[ids]
            gone = moved[np.maximum(last, 0)]
            self.last[ids] = np.where(last < 0, last, np.where(gone < 0, DROPPED, gone))
        return moved

    # ---- partitions that leave memory

    @property
    def row_bytes(self) -> int:
        """Returns the bytes of a row, without columns stored as Arrow."""
        valid = sum(v is not None for v in self.valid.values())
        return 54 + 8 * len(self.numeric) + valid

    def copy_out(self, ids: Int64Array, rows: Grouped) -> Blocks:
        """Returns the rows of these partitions. Raises NotImplementedError for a column of lists, structs or maps."""
        at, of = rows.items, owners(rows.bounds)
        columns = {name: getattr(self, name)[at] for name in ("ts", "source", "offset", "seq", "first")}
        columns |= {f"value.{name}": values[at] for name, values in self.values.items()}
        columns |= {f"valid.{name}": valid[at] for name, valid in self.valid.items() if valid is not None}
        blocks: Blocks = {}
        for name in self.other:
            more, texts = _bytes_of(self.column(name, at), rows.bounds)
            columns |= {f"{kind}.{name}": array for kind, array in more.items()}
            if texts is not None:
                blocks[f"text.{name}"] = texts
        if self.linked:
            for chain in ("previous", "next"):
                columns[chain] = rows.places(getattr(self, chain)[at], of)
            last = self.last[ids]
            gone = np.where(last >= 0, DROPPED, last)
            place = rows.places(last, np.arange(len(ids)))
            blocks["last"] = RecordBlock(one_each(len(ids)), {"last": np.where(place >= 0, place, gone)})
        return {"rows": RecordBlock(rows.bounds, columns), **blocks}

    def put_in(self, ids: Int64Array, blocks: Blocks) -> Int64Array:
        """Adds rows that were copied out after all existing ones; returns the first one of each partition. Columns that
        were not stored then are null."""
        bounds, columns = blocks["rows"].bounds, blocks["rows"].columns
        begin, end, of = self.count, self.count + int(bounds[-1]), owners(bounds)
        base = bounds[:-1] + begin
        self._reserve(end, int(ids.max()) + 1)
        for name in ("ts", "source", "offset", "seq", "first"):
            getattr(self, name)[begin:end] = columns[name]
        self.partition[begin:end] = ids[of]
        self.released[begin:end] = True
        for name in self.numeric:
            known = f"value.{name}" in columns
            self.values[name][begin:end] = columns[f"value.{name}"] if known else 0
            there = columns.get(f"valid.{name}", known)
            valid = self.valid[name]
            if valid is None and there is not True:
                valid = self.valid[name] = np.ones(len(self.ts), np.bool_)
            if valid is not None:
                valid[begin:end] = there
        if self.other:
            added = {name: _from_bytes(name, blocks, self.schema.field(name).type) for name in self.other}
            self.arrow = pa.concat_tables([self.arrow, pa.table(added)])
        if self.linked:
            linked = "last" in blocks
            for chain in ("previous", "next"):
                getattr(self, chain)[begin:end] = anew(columns[chain], base, of) if linked else -1
            if linked:
                last = blocks["last"].columns["last"]
                self.last[ids] = np.where(last >= 0, last + base, last)
        self.count = end
        return base

    def snapshot(self) -> tuple[dict[str, np.ndarray], pa.Table]:
        """Arrays by name, and the Arrow columns."""
        arrays = {tag: getattr(self, name)[: self.count] for name, tag in TAGS.items()}
        arrays["last"] = self.last
        if self.number is not None:
            arrays |= {"number": self.number[: self.count], "came": np.array([self.came])}
        arrays |= {f"value.{n}": v[: self.count] for n, v in self.values.items()}
        arrays |= {f"valid.{n}": v[: self.count] for n, v in self.valid.items() if v is not None}
        return arrays, self.arrow

    def restore(self, arrays: dict[str, np.ndarray], arrow: pa.Table) -> None:
        self.count = len(arrays["ts"])
        for name, tag in TAGS.items():
            setattr(self, name, grown(arrays[tag], max(1024, self.count)))
        self.last = arrays["last"].copy()
        if self.number is not None:
            self.number, self.came = grown(arrays["number"], max(1024, self.count)), int(arrays["came"][0])
        self.values = {n: grown(arrays[f"value.{n}"], max(1024, self.count)) for n in self.numeric}
        self.valid = {
            n: grown(arrays[f"valid.{n}"], max(1024, self.count), 1) if f"valid.{n}" in arrays else None
            for n in self.numeric
        }
        self.arrow = arrow.select(self.other)


def to_arrow(values: np.ndarray, valid: np.ndarray | None, type: pa.DataType) -> pa.Array:
    """An Arrow array of `type` from a lane; zero copy for 64-bit types without nulls."""
    mask = None if valid is None else ~valid
    if pa.types.is_timestamp(type) or pa.types.is_time64(type):
        return pa.array(values, pa.int64(), mask=mask).view(type)
    if pa.types.is_date32(type):
        return pa.array(values.astype(np.int32), mask=mask).view(type)
    if pa.types.is_boolean(type):
        return pa.array(values != 0, mask=mask)
    if pa.types.is_decimal128(type):
        # the lane is the unscaled value; 128 bits are a low word and the sign
        words = np.empty((len(values), 2), np.int64)
        words[:, 0] = values
        words[:, 1] = values >> 63
        bits = pa.array(valid).buffers()[1] if valid is not None else None
        return pa.Array.from_buffers(type, len(values), [bits, pa.py_buffer(words)])
    array = pa.array(values, mask=mask)
    return array if array.type == type else array.cast(type)


def spillable(type: pa.DataType) -> bool:
    """True if a column of the type, stored as Arrow, can be spilled row by row."""
    return pa.types.is_string(type) or pa.types.is_binary(type) or _width(type) is not None


def _width(type: pa.DataType) -> int | None:
    """Returns the bytes of a value of a type of fixed size, else None."""
    try:
        return type.bit_width // 8 if type.bit_width % 8 == 0 else None
    except ValueError:
        return None


def _bytes_of(column: pa.Array, bounds: Int64Array) -> tuple[dict[str, np.ndarray], RecordBlock | None]:
    """Returns a column as columns of a row, and its texts in a block of their own."""
    there = column.is_valid().to_numpy(zero_copy_only=False)
    width = _width(column.type)
    if width is not None:
        data = np.frombuffer(column.buffers()[1] or b"", np.uint8)
        data = data[column.offset * width : (column.offset + len(column)) * width].reshape(-1, width)
        return {"there": there, "bytes": data}, None
    _, offsets, data = column.buffers()
    ends = np.zeros(1, np.int32) if offsets is None else np.frombuffer(offsets, np.int32)
    ends = ends[column.offset : column.offset + len(column) + 1].astype(np.int64)
    texts = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    sizes = np.diff(ends)
    return {"there": there, "size": sizes.astype(np.int32)}, RecordBlock((ends - ends[0])[bounds], {"text": texts})


def _from_bytes(name: str, blocks: Blocks, type: pa.DataType) -> pa.Array:
    """Returns the inverse of `_bytes_of`; nulls if the column was not stored then."""
    columns = blocks["rows"].columns
    n = int(blocks["rows"].bounds[-1])
    there = columns.get(f"there.{name}")
    if there is None:
        return pa.nulls(n, type)
    valid = None if there.all() else pa.array(there).buffers()[1]
    if f"bytes.{name}" in columns:
        return pa.Array.from_buffers(type, n, [valid, pa.py_buffer(columns[f"bytes.{name}"].tobytes())])
    ends = np.zeros(n + 1, np.int32)
    np.cumsum(columns[f"size.{name}"], out=ends[1:])
    data = pa.py_buffer(blocks[f"text.{name}"].columns["text"].tobytes())
    return pa.Array.from_buffers(type, n, [valid, pa.py_buffer(ends), data])

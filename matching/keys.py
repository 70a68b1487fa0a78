"""Partition keys as dense ids, in order of first appearance; ids of forgotten keys are reused.

Long: the tables of each kind of value hand out codes alike, and keys are made of these."""

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from matching.batch import Int64Array
from matching.kernels import hashing
from matching.kernels.hashing import HashCounters
from matching.kernels.layout import grown
from query.values import hashable

Bools = np.ndarray[tuple[int], np.dtype[np.bool_]]

ALL_VALID: Bools = np.zeros(0, np.bool_)
NO_CODES: Int64Array = np.zeros(0, np.int64)
#: Bits of a code in a pair of two codes.
CODE_BITS = 31
CODE_MASK = (1 << CODE_BITS) - 1
#: Whole numbers lie near each other if their range has at most so many for each row, or for each slot of a hash table
#: of them: a table by value then takes no more memory than that, a quarter of a slot for each number.
NEAR = 4


class _Codes:
    """The codes in use, the code of null, and the free codes."""

    def __init__(self, count: int, null: int, free: Int64Array) -> None:
        """Codes 0 to count - 1, except for the free ones, are in use; null: its code, -1 none."""
        self.counters = np.zeros(len(HashCounters), np.int64)
        self.counters[HashCounters.CODES], self.counters[HashCounters.NULL] = count, null
        self.counters[HashCounters.FREE] = len(free)
        self._free = free.copy()

    def __len__(self) -> int:
        """Returns the number of codes made so far, in use or free."""
        return int(self.counters[HashCounters.CODES])

    @property
    def null(self) -> int:
        return int(self.counters[HashCounters.NULL])

    @property
    def free(self) -> Int64Array:
        """The free codes; the last one is reused first."""
        return self._free[: self.counters[HashCounters.FREE]]

    def live(self) -> Int64Array:
        """Returns the codes of values except null."""
        there = np.ones(len(self), np.bool_)
        there[self.free] = False
        if self.null >= 0:
            there[self.null] = False
        return np.flatnonzero(there)

    def release(self, codes: Int64Array) -> None:
        """Frees codes in use."""
        if self.null in codes:
            self.counters[HashCounters.NULL] = -1
        self._free = np.concatenate([self.free, codes[::-1]])
        self.counters[HashCounters.FREE] = len(self._free)

    def take(self) -> int:
        """Returns a code for a new value."""
        if self.counters[HashCounters.FREE]:
            self.counters[HashCounters.FREE] -= 1
            return int(self._free[self.counters[HashCounters.FREE]])
        self.counters[HashCounters.CODES] += 1
        return len(self) - 1

    def capacity(self) -> int:
        """Returns the number of slots: for twice the values in use and more."""
        return 1 << max(10, (4 * (len(self) - len(self.free)) + 1).bit_length())


class Numbers(_Codes):
    """Whole numbers as codes. Those that lie near each other are looked up by their value; others cost one hash lookup
    a row."""

    def __init__(self, numbers: Int64Array = NO_CODES, null: int = -1, free: Int64Array = NO_CODES) -> None:
        """numbers: by code."""
        super().__init__(len(numbers), null, free)
        self._numbers = numbers
        self._rebuild(NO_CODES)

    def _rebuild(self, coming: Int64Array) -> None:
        """Makes a table of the values in use with room for more. coming: values that will be encoded next."""
        capacity = self.capacity()
        self._numbers = grown(self._numbers[: len(self)], len(self) + capacity // 2 + 1)
        live = self.live()
        self.counters[HashCounters.LIVE] = len(live)
        self._slots, self._known = np.zeros((0, 2), np.int64), np.zeros(0, np.int32)
        room = _room_near([self._numbers[live], coming], NEAR * (capacity + len(coming)))
        if room is not None:
            self._low, self._known = room[0], np.zeros(room[1] - room[0] + 1, np.int32)
            hashing.put_near(live, self._numbers, self._low, self._known)
        else:
            self._slots = np.zeros((capacity, 2), np.int64)
            hashing.put_numbers(live, self._numbers, self._slots)

    def encode(self, values: Int64Array, valid: Bools = ALL_VALID) -> Int64Array:
        """Codes of the values; valid: bool (n,), empty if none is null."""
        given, codes = _constant(values), np.empty(len(values), np.int64)
        at = 0
        while True:
            table = (self._numbers, self._free, self.counters, codes)
            if len(self._known):
                at = hashing.encode_near(at, given, valid, self._low, self._known, *table)
            else:
                at = hashing.encode_numbers(at, given, valid, self._slots, *table)
            if at == len(values):
                return codes
            self._rebuild(values[at:])

    def forget(self, codes: Int64Array) -> None:
        """Frees these codes. Cost: linear in the codes in use."""
        self.release(codes)
        self._rebuild(NO_CODES)

    @property
    def nbytes(self) -> int:
        return self._slots.nbytes + self._known.nbytes + self._numbers.nbytes

    @property
    def numbers(self) -> Int64Array:
        """Returns the number of every code; any for a free one, 0 for null."""
        return self._numbers[: len(self)]


def _room_near(values: Sequence[Int64Array], most: int) -> tuple[int, int] | None:
    """Returns the least and the largest number of a table of numbers by value: with room for half as many below and
    above those that lie between these values. None if there would be more than `most`, or there are no values."""
    some = [v for v in values if len(v)]
    if not some:
        return None
    low, high = min(int(v.min()) for v in some), max(int(v.max()) for v in some)
    more = (high - low) // 2 + 1
    if high - low + 2 * more >= most:
        return None
    ends = np.iinfo(np.int64)
    return max(low - more, ends.min), min(high + more, ends.max)


class Texts(_Codes):
    """Texts or blobs as codes. Cost: one hash lookup a row, a copy of the bytes of each new value."""

    def __init__(self, type: pa.DataType, texts: pa.Array | None = None, free: Int64Array = NO_CODES) -> None:
        """type: with offsets of 32 bits; texts: by code."""
        self.type = type
        texts = pa.array([], type) if texts is None else texts
        nulls = texts.is_null().to_numpy(zero_copy_only=False)
        nulls[free] = False
        where = np.flatnonzero(nulls)
        super().__init__(len(texts), int(where[0]) if len(where) else -1, free)
        offsets, data = _bytes(texts)
        lengths = np.diff(offsets)
        self._places = np.stack([offsets[:-1], lengths, np.zeros_like(lengths)], 1).astype(np.int64)
        hashing.put_words(self._places, data)
        self._kept = data
        self._rebuild()

    def _rebuild(self) -> None:
        """Makes slots with room, and keeps only the bytes of the values in use."""
        capacity = self.capacity()
        live = self.live()
        ends, kept = self._gathered(live, 1 << 12)
        self._places = grown(self._places[: len(self)], len(self) + capacity // 2 + 1)
        places = self._places[live]
        places[:, 0] = ends[:-1]
        self._places[: len(self)] = 0  # of a free code an empty text
        self._places[live] = places
        self._kept = kept
        self._slots = np.zeros((capacity, 4), np.int64)
        self.counters[HashCounters.LIVE], self.counters[HashCounters.BYTES] = len(live), ends[-1]
        hashing.put_texts(live, self._places, kept, self._slots)

    def _gathered(self, codes: Int64Array, more: int = 0) -> tuple[Int64Array, np.ndarray]:
        """Returns the beginnings of the texts of these codes in an array of their bytes (n + 1,), and that array with
        room for as much again and `more`."""
        ends = np.empty(len(codes) + 1, np.int64)
        hashing.measure_texts(codes, self._places, ends)
        out = np.empty((2 * int(ends[-1]) if more else int(ends[-1])) + more, np.uint8)
        hashing.gather_texts(codes, self._places, _constant(self._kept), ends, out)
        return ends, out

    def encode(self, column: pa.Array) -> Int64Array:
        """Codes of a column of the type."""
        offsets, data = _bytes(column)
        valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else ALL_VALID
        codes = np.empty(len(column), np.int64)
        at = 0
        while True:
            at = hashing.encode_texts(
                at, offsets, data, valid, self._slots, self._places, self._kept, self._free, self.counters, codes
            )
            if at == len(column):
                return codes
            short = int(self.counters[HashCounters.BYTES]) + int(offsets[at + 1] - offsets[at])
            if short > len(self._kept):
                self._kept = grown(self._kept, 2 * short)
            else:
                self._rebuild()

    def forget(self, codes: Int64Array) -> None:
        """Frees these codes. Cost: linear in the values in use and their bytes."""
        self.release(codes)
        self._rebuild()

    @property
    def nbytes(self) -> int:
        return self._slots.nbytes + self._places.nbytes + self._kept.nbytes

    def of(self, codes: Int64Array) -> pa.Array:
        """The texts of codes; any for a free one."""
        ends, data = self._gathered(codes)
        null = None
        if self.null >= 0 and (mask := codes == self.null).any():
            null = pa.array(~mask).buffers()[1]
        if ends[-1] < 1 << 31:
            buffers = [null, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(data)]
            return pa.Array.from_buffers(self.type, len(codes), buffers)
        large = pa.large_string() if pa.types.is_string(self.type) else pa.large_binary()
        return pa.Array.from_buffers(large, len(codes), [null, pa.py_buffer(ends), pa.py_buffer(data)]).cast(self.type)


def _constant(array: np.ndarray) -> np.ndarray:
    """A view that cannot be written to: kernels are compiled for one kind of array."""
    view = array.view()
    view.flags.writeable = False
    return view


def _bytes(column: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """Offsets int32 (n + 1,) and bytes of a string or binary column."""
    n = len(column)
    _, offsets, data = column.buffers()
    whole = np.zeros(1, np.int32) if offsets is None else np.frombuffer(offsets, np.int32)
    found = np.zeros(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return _constant(whole[column.offset : column.offset + n + 1]), _constant(found)


class Others(_Codes):
    """Values of any other type as codes: by dictionary encoding of a batch and a Python lookup of each distinct value,
    or of each row for lists, structs and maps."""

    def __init__(self, type: pa.DataType, values: pa.Array | None = None, free: Int64Array = NO_CODES) -> None:
        """values: by code."""
        self.type = type
        self._parts: list[pa.Array] = [pa.array([], type) if values is None else values]
        self._place = np.arange(len(self._parts[0]))  # by code, where in all parts its value is
        self._found = len(self._place)  # values in the parts
        self._by_value: dict[object, int] = {}
        gone = set(free.tolist())
        for code, value in enumerate(self._parts[0].to_pylist()):
            if code not in gone:
                self._by_value[hashable(value)] = code
        super().__init__(len(self._place), self._by_value.get(None, -1), free)

    def encode(self, column: pa.Array) -> Int64Array:
        """Codes of a column of the type, or of a dictionary of it."""
        if pa.types.is_nested(column.type):
            return self._codes_of(column)
        if not isinstance(column, pa.DictionaryArray):
            column = column.dictionary_encode(null_encoding="encode")
        elif column.null_count:
            return self.encode(column.cast(self.type))
        return self._codes_of(column.dictionary)[column.indices.to_numpy(zero_copy_only=False)]

    def _codes_of(self, column: pa.Array) -> Int64Array:
        codes = np.empty(len(column), np.int64)
        fresh: list[int] = []
        for i, value in enumerate(column.to_pylist()):
            key = hashable(value)
            code = self._by_value.get(key, -1)
            if code < 0:
                code = self._by_value[key] = self.take()
                if code >= len(self._place):
                    self._place = grown(self._place, 2 * code + 16)
                self._place[code] = self._found + len(fresh)
                fresh.append(i)
                if value is None:
                    self.counters[HashCounters.NULL] = code
            codes[i] = code
        if fresh:
            self._parts.append(column.take(pa.array(fresh, pa.int64())).cast(self.type))
            self._found += len(fresh)
        return codes

    def forget(self, codes: Int64Array) -> None:
        """Frees these codes. Cost: linear in the codes in use."""
        gone = set(codes.tolist())
        self._by_value = {value: code for value, code in self._by_value.items() if code not in gone}
        left = np.fromiter(self._by_value.values(), np.int64, len(self._by_value))
        self._parts = [self.of(left)]
        self.release(codes)
        self._place[: len(self)] = 0
        self._place[left] = np.arange(len(left))
        self._found = len(left)

    @property
    def nbytes(self) -> int:
        return self._place.nbytes + sum(part.nbytes for part in self._parts)

    def of(self, codes: Int64Array) -> pa.Array:
        """The values of codes; any, or null, for a free one."""
        if len(self._parts) > 1:
            self._parts = [pa.concat_arrays(self._parts)]
        if not self._found:
            return pa.nulls(len(codes), self.type)
        return of_one_zero(self._parts[0].take(pa.array(self._place[codes])))


def of_one_zero(column: pa.Array) -> pa.Array:
    """Returns keys with 0.0 instead of -0.0, which is equal: which of both comes first may have been forgotten."""
    return pc.add(column, pa.scalar(0.0, column.type)) if pa.types.is_floating(column.type) else column


def _as_numbers(column: pa.Array) -> Int64Array | None:
    """The values of a column as whole numbers of their own, if its type has at most 64 bits of them; of null any."""
    type = column.type
    if pa.types.is_integer(type):
        pass
    elif pa.types.is_timestamp(type) or pa.types.is_time64(type):
        column = column.view(pa.int64())
    elif pa.types.is_date32(type) or pa.types.is_time32(type):
        column = column.view(pa.int32())
    else:
        return None
    if column.null_count:
        column = pc.fill_null(column, 0)
    numbers = column.to_numpy()
    return numbers.view(np.int64) if numbers.dtype == np.uint64 else numbers.astype(np.int64, copy=False)


def _from_numbers(numbers: Int64Array, null: Bools | None, type: pa.DataType) -> pa.Array:
    """Returns the inverse of `_as_numbers`; null: True for nulls."""
    if pa.types.is_uint64(type):
        return pa.array(numbers.view(np.uint64), mask=null)
    if pa.types.is_date32(type) or pa.types.is_time32(type):
        return pa.array(numbers.astype(np.int32), mask=null).view(type)
    array = pa.array(numbers, mask=null)
    if array.type == type:
        return array
    return array.cast(type) if pa.types.is_integer(type) else array.view(type)


class Encoder:
    """Values of one column as codes 0, 1, 2, ... in order of first appearance; forgotten codes are reused first; null
    has a code like any value."""

    def __init__(self, type: pa.DataType, values: pa.Array | None = None, free: Int64Array = NO_CODES) -> None:
        """values: by code; values at the codes `free` do not matter."""
        self.type = type
        self._table: Numbers | Texts | Others
        if pa.types.is_string(type) or pa.types.is_binary(type):
            self._table = Texts(type, values, free)
        elif (numbers := _as_numbers(pa.array([], type) if values is None else values)) is not None:
            null = -1
            if values is not None and values.null_count:
                nulls = values.is_null().to_numpy(zero_copy_only=False)
                nulls[free] = False
                null = int(nulls.argmax()) if nulls.any() else -1
            self._table = Numbers(numbers, null, free)
        else:
            self._table = Others(type, values, free)

    def __len__(self) -> int:
        """Returns the number of codes made so far, in use or free."""
        return len(self._table)

    @property
    def free(self) -> Int64Array:
        """The free codes, the next one last."""
        return self._table.free

    def encode(self, column: pa.Array) -> Int64Array:
        """Codes of a column, int64 (n,)."""
        table = self._table
        if not isinstance(table, Others) and column.type != self.type:
            column = column.cast(self.type)
        match table:
            case Numbers():
                values = _as_numbers(column)
                assert values is not None
                valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else ALL_VALID
                return table.encode(values, valid)
            case Texts() | Others():
                return table.encode(column)
            case _:
                assert_never(table)

    def forget(self, codes: Int64Array) -> None:
        """Frees codes in use, for other values."""
        self._table.forget(codes)

    @property
    def nbytes(self) -> int:
        return self._table.nbytes

    def of(self, codes: Int64Array) -> pa.Array:
        """The values of codes."""
        table = self._table
        match table:
            case Numbers():
                null = codes == table.null if table.null >= 0 else None
                return _from_numbers(table.numbers[codes], null, self.type)
            case Texts() | Others():
                return table.of(codes)
            case _:
                assert_never(table)

    @property
    def values(self) -> pa.Array:
        """The value of every code; any for a free one."""
        return self.of(np.arange(len(self)))


def numbered(columns: Sequence[pa.Array], rows: int) -> np.ndarray:
    """Returns numbers 0, 1, 2, ... for the key of each row, in order of first appearance, int32 or int64 (rows,).
    Whole numbers that lie near each other are looked up by their value, without hashes."""
    values = _as_numbers(columns[0]) if len(columns) == 1 and not columns[0].null_count else None
    if values is not None and 0 < rows < 1 << 31:
        low, high = int(values.min()), int(values.max())
        if high - low < NEAR * rows:
            ids = np.empty(rows, np.int32)
            hashing.number_near(_constant(values), low, np.zeros(high - low + 1, np.int32), ids)
            return ids
    return Keys([column.type for column in columns]).encode(columns, rows)


def hashes(columns: Sequence[pa.Array], types: Sequence[pa.DataType], rows: int) -> Int64Array:
    """Returns 64 bits for the key of each row, int64 (rows,): equal for equal keys, in every process. types: of the
    columns as stored. Raises pa.ArrowException for types without an order of bytes, such as lists."""
    out = np.ones(rows, np.int64)
    for column, type in zip(columns, types, strict=True):
        column = column if column.type == type else column.cast(type)
        valid = column.is_valid().to_numpy(zero_copy_only=False) if column.null_count else ALL_VALID
        if pa.types.is_boolean(type):
            column = column.cast(pa.int8())
        if pa.types.is_floating(type):
            numbers = pc.fill_null(column.cast(pa.float64()), 0.0).to_numpy(zero_copy_only=False) + 0.0  # -0.0 is 0.0
            values: Int64Array | None = np.where(np.isnan(numbers), np.nan, numbers).view(np.int64)
        else:
            values = _as_numbers(column)
        if values is not None:
            hashing.spread_numbers(values, valid, out)
        else:
            texts = column if pa.types.is_string(type) or pa.types.is_binary(type) else column.cast(pa.string())
            hashing.spread_texts(*_bytes(texts), valid, out)
    return out


class Keys:
    """Partition ids of several columns together. No columns: one partition, 0.

    The ids of the first two columns together are the codes of pairs of their codes; those of three are the codes of
    pairs of these ids and the codes of the third, and so on, so that no number of columns or values is too large."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self.encoders = [Encoder(t) for t in types]
        self.pairs = [Numbers() for _ in self.encoders[1:]]

    def encode(self, columns: Sequence[pa.Array], rows: int) -> Int64Array:
        """Partition id of each row, int64 (rows,)."""
        if not self.encoders:
            return np.zeros(rows, np.int64)
        ids, *more = [e.encode(c) for e, c in zip(self.encoders, columns, strict=True)]
        for table, pairs, codes in zip(self._tables[:-1], self.pairs, more, strict=True):
            if max(len(table), int(codes.max(initial=0))) >> CODE_BITS:
                raise OverflowError(f"more than {1 << CODE_BITS:,} values of a partition column in memory")
            ids = pairs.encode((ids << CODE_BITS) | codes)
        return ids

    @property
    def _tables(self) -> Sequence[Encoder | Numbers]:
        """The codes of the first column, of the first two together, and so on."""
        return (*self.encoders[:1], *self.pairs)

    def __len__(self) -> int:
        """Returns the upper bound of all ids; some may be free."""
        return len(self._tables[-1]) if self.encoders else 1

    @property
    def free(self) -> Int64Array:
        """The ids that have no key, the next one to be reused last."""
        return self._tables[-1].free if self.encoders else NO_CODES

    def forget(self, ids: Int64Array) -> None:
        """Frees ids in use, for other keys. Cost: linear in the ids in use."""
        tables = self._tables
        tables[-1].forget(ids)
        for before, pairs, encoder in reversed([*zip(tables[:-1], self.pairs, self.encoders[1:], strict=True)]):
            left = pairs.numbers[pairs.live()]
            keep_only(before, left >> CODE_BITS)
            keep_only(encoder, left & CODE_MASK)

    def _codes(self, column: int, ids: Int64Array) -> Int64Array:
        """Returns the codes of a column."""
        for number in range(len(self.pairs), 0, -1):
            both = self.pairs[number - 1].numbers[ids]
            if number == column:
                return both & CODE_MASK
            ids = both >> CODE_BITS
        return ids

    def whole(self, ids: Int64Array) -> Int64Array:
        """Returns, for partition ids of several columns, numbers of the values of the first one."""
        return self._codes(0, ids)

    def values(self, column: int, ids: Int64Array) -> pa.Array:
        """The values of partition column `column` for these partition ids."""
        return self.encoders[column].of(self._codes(column, ids))

    @property
    def nbytes(self) -> int:
        """Returns the approximate bytes of the tables; for values of types other than numbers and texts only their
        Arrow arrays."""
        return sum(e.nbytes for e in self.encoders) + sum(pairs.nbytes for pairs in self.pairs)

    def snapshot(self) -> dict[str, pa.Array]:
        """Returns, by name, the values and the free codes of each column, and of each number of columns from two on the
        pairs and the free ids."""
        tables: dict[str, pa.Array] = {}
        for i, encoder in enumerate(self.encoders):
            tables |= {f"values.{i}": encoder.values, f"free.{i}": pa.array(encoder.free)}
        for number, pairs in enumerate(self.pairs):
            packed, free = _names(number)
            tables |= {packed: pa.array(pairs.numbers), free: pa.array(pairs.free)}
        return tables

    def restore(self, tables: dict[str, pa.Array]) -> None:
        """Restores the result of `snapshot`, also of an earlier release."""
        self.encoders = [
            Encoder(e.type, tables[f"values.{i}"], tables[f"free.{i}"].to_numpy())
            for i, e in enumerate(self.encoders)
        ]
        if len(self.pairs) > 1 and _names(1)[0] not in tables:
            tables = tables | _unpacked(tables["packed"].to_numpy(), tables["free"], len(self.encoders))
        self.pairs = [
            Numbers(tables[packed].to_numpy(), -1, tables[free].to_numpy())
            for packed, free in map(_names, range(len(self.pairs)))
        ]


def keep_only(table: Encoder | Numbers | Keys, used: Int64Array) -> None:
    """Frees the codes in use but for these."""
    unused = np.ones(len(table), np.bool_)
    unused[table.free] = False
    unused[used] = False
    table.forget(np.flatnonzero(unused))


def _names(number: int) -> tuple[str, str]:
    """Returns the names of pairs and of their free codes in a snapshot."""
    return (f"packed.{number}", f"packed_free.{number}") if number else ("packed", "free")


def _unpacked(packed: Int64Array, free: pa.Array, columns: int) -> dict[str, pa.Array]:
    """Returns the pairs of a snapshot of an earlier release, which had the codes of all columns in one number."""
    bits = 62 // columns
    ids, *more = [(packed >> (bits * (columns - 1 - i))) & ((1 << bits) - 1) for i in range(columns)]
    tables: dict[str, pa.Array] = {}
    for number, codes in enumerate(more):
        both, nothing = (ids << CODE_BITS) | codes, pa.array(NO_CODES)
        last = number == len(more) - 1
        distinct, ids = (both, ids) if last else np.unique(both, return_inverse=True)
        tables |= dict(zip(_names(number), (pa.array(distinct), free if last else nothing), strict=True))
    return tables


class KeyRuns(Keys):
    """Partition ids of rows that come key by key: no key comes again after another one. Nothing is hashed."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        super().__init__(types)
        self._types = tuple(types)
        self.restart()

    def restart(self) -> None:
        """Forgets all keys."""
        self._count = 0
        self._last: list[pa.Array] = []  # the key of the last row
        self._firsts: list[list[pa.Array]] = [[] for _ in self._types]

    def encode(self, columns: Sequence[pa.Array], rows: int) -> Int64Array:
        """Partition id of each row, int64 (rows,)."""
        if not rows:
            return np.zeros(0, np.int64)
        columns = [c if c.type == t else c.cast(t) for c, t in zip(columns, self._types, strict=True)]
        begins = np.zeros(rows, np.bool_)
        for column in columns:
            begins[1:] |= differs(column.slice(0, rows - 1), column.slice(1))
        begins[0] = not self._last or any(
            differs(last, column.slice(0, 1))[0] for last, column in zip(self._last, columns, strict=True)
        )
        self._last = [column.slice(rows - 1) for column in columns]
        at = np.flatnonzero(begins)
        ids: Int64Array
        if len(at) < rows // 8:
            lengths = np.diff(np.append(at, rows), prepend=0)  # first the rows of the key before
            ids = np.repeat(np.arange(self._count - 1, self._count + len(at)), lengths)
        else:
            ids = np.cumsum(begins, dtype=np.int64) + (self._count - 1)
        for firsts, column in zip(self._firsts, columns, strict=True):
            firsts.append(column.take(pa.array(at)))
        self._count += len(at)
        return ids

    def __len__(self) -> int:
        return self._count

    @property
    def free(self) -> Int64Array:
        return NO_CODES

    def values(self, column: int, ids: Int64Array) -> pa.Array:
        """The values of partition column `column` for these partition ids."""
        if len(self._firsts[column]) > 1:
            self._firsts[column] = [pa.concat_arrays(self._firsts[column])]
        return of_one_zero(self._firsts[column][0].take(pa.array(ids)))


def differs(before: pa.Array, behind: pa.Array) -> Bools:
    """True where two arrays of a type whose equal values have equal representations differ, bool (n,); null equals
    null."""
    whole = None if before.null_count or behind.null_count else _as_numbers(before)
    if whole is not None:
        other = _as_numbers(behind)
        return np.asarray(whole != other)
    found: Bools = pc.fill_null(pc.not_equal(before, behind), False).to_numpy(zero_copy_only=False)
    if before.null_count or behind.null_count:
        nulls = before.is_null().to_numpy(zero_copy_only=False) != behind.is_null().to_numpy(zero_copy_only=False)
        found = found | nulls
    return found

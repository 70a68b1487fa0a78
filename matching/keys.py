"""Partition keys as dense ids, in order of first appearance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from matching.batch import Int64Array
from matching.kernels import hashing

#: Most values for which a lookup table is built anew for every batch (and at most 8 a row).
FEW = 1 << 14


def _hashable(value: object) -> object:
    """NaN equals NaN, lists and structs can be looked up."""
    if isinstance(value, float) and value != value:
        return ("nan",)
    if isinstance(value, list):
        return ("list", *map(_hashable, value))
    if isinstance(value, tuple):  # an entry of a map
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return ("struct", *((k, _hashable(v)) for k, v in value.items()))
    return value


class Numbers:
    """Whole numbers as codes 0, 1, 2, ... in order of first appearance. Cost: one hash lookup a row."""

    def __init__(self, numbers: Int64Array | None = None) -> None:
        """numbers: those that have the first codes."""
        self._count = 0 if numbers is None else len(numbers)
        self._parts = [] if numbers is None else [numbers]
        self._make(1 << max(10, (2 * self._count + 1).bit_length()))

    def _make(self, capacity: int) -> None:
        self._numbers, self._slots = np.zeros(capacity, np.int64), np.zeros(capacity, np.int64)
        hashing.put_all(self.numbers, self._numbers, self._slots)

    def encode(self, values: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Codes of the values, and which of these are new, in order of their codes."""
        codes, fresh = np.empty(len(values), np.int64), np.empty(len(values), np.int64)
        at = found = put = 0
        while True:
            at, self._count, found = hashing.encode(
                at, values, self._numbers, self._slots, self._count, codes, fresh, found
            )
            if found > put:
                self._parts.append(fresh[put:found].copy())
                put = found
            if at == len(values):
                return codes, fresh[:found]
            self._make(4 * len(self._slots))

    @property
    def numbers(self) -> Int64Array:
        """The number of every code."""
        if len(self._parts) != 1:
            self._parts = [np.concatenate(self._parts)] if self._parts else [np.zeros(0, np.int64)]
        return self._parts[0]

    def __len__(self) -> int:
        return self._count


def _as_numbers(column: pa.Array) -> Int64Array | None:
    """The values of a column without nulls as whole numbers of their own, if its type has at most 64 bits of them."""
    type = column.type
    if pa.types.is_uint64(type):
        return column.to_numpy().view(np.int64)
    if pa.types.is_integer(type):
        return column.to_numpy().astype(np.int64, copy=False)
    if pa.types.is_timestamp(type) or pa.types.is_time64(type):
        return column.cast(pa.int64()).to_numpy()
    if pa.types.is_date32(type) or pa.types.is_time32(type):
        return column.cast(pa.int32()).to_numpy().astype(np.int64)
    return None


def _from_numbers(numbers: Int64Array, type: pa.DataType) -> pa.Array:
    """What `_as_numbers` was given."""
    if pa.types.is_uint64(type):
        return pa.array(numbers.view(np.uint64))
    if pa.types.is_date32(type) or pa.types.is_time32(type):
        return pa.array(numbers.astype(np.int32)).cast(type)
    return pa.array(numbers).cast(type)


class Encoder:
    """Values of one column as codes 0, 1, 2, ... in order of first appearance; null has a code like any value.

    Cost: one hash lookup a row for whole numbers and times, and for others while there are few values; with many, one
    dictionary encoding a batch and one lookup a distinct value."""

    def __init__(self, type: pa.DataType) -> None:
        self.type = type
        self.codes: dict[object, int] = {}
        self._parts: list[pa.Array] = []  # distinct values in order of their codes
        self._values: pa.Array | None = None
        #: codes of whole numbers as if there were no null
        self._numbers = Numbers() if _as_numbers(pa.array([], type)) is not None else None
        self._null = -1  # code of null

    def __len__(self) -> int:
        if self._numbers is not None:
            return len(self._numbers) + (self._null >= 0)
        return len(self.codes)

    def encode(self, column: pa.Array) -> Int64Array:
        """Codes of a column, int64 (n,)."""
        if column.null_count and self._null < 0:  # what stands before the first null has a code before it
            first = int(pc.index(column.is_null(), True).as_py())
            before = self.encode(column[:first])
            self._null = len(self)
            if self._numbers is None:
                self.codes[None] = self._null
                self._parts.append(pa.nulls(1, self.type))
            self._values = None
            return np.concatenate([before, self.encode(column[first:])])
        if self._numbers is not None:
            return self._by_number(self._numbers, column)
        few = 0 < len(self.codes) <= min(FEW, 8 * len(column))
        if isinstance(column, pa.DictionaryArray) or pa.types.is_nested(column.type) or not few:
            return self._by_dictionary(column)
        found = pc.index_in(column, value_set=self.values)
        if not found.null_count:
            return found.to_numpy().astype(np.int64)
        codes = pc.fill_null(found, -1).to_numpy().astype(np.int64)
        fresh = np.flatnonzero(codes < 0)
        codes[fresh] = self._by_dictionary(column.take(pa.array(fresh)))
        return codes

    def _by_number(self, numbers: Numbers, column: pa.Array) -> Int64Array:
        column = column.cast(self.type)
        given = column.drop_null() if column.null_count else column
        values = _as_numbers(given)
        assert values is not None
        codes, fresh = numbers.encode(values)
        if len(fresh):
            self._values = None
        if self._null >= 0:  # its place is kept free
            codes += codes >= self._null
        if not column.null_count:
            return codes
        out = np.full(len(column), self._null, np.int64)
        out[column.is_valid().to_numpy(zero_copy_only=False)] = codes
        return out

    def _by_dictionary(self, column: pa.Array) -> Int64Array:
        if not isinstance(column, pa.DictionaryArray):
            if pa.types.is_nested(column.type):
                return self._by_value(column)
            column = column.dictionary_encode()
        dictionary = column.dictionary
        known = len(self.codes)
        table = np.empty(len(dictionary) + 1, np.int64)
        fresh: list[int] = []
        for i, value in enumerate(dictionary.to_pylist()):
            key = _hashable(value)
            code = self.codes.get(key, -1)
            if code < 0:
                code = self.codes[key] = known + len(fresh)
                fresh.append(i)
            table[i] = code
        indices = column.indices
        if indices.null_count:
            where = len(dictionary)
            indices = pc.fill_null(indices.cast(pa.int64()), where)
            table[where] = self._null
        if fresh:
            self._parts.append(dictionary.take(pa.array(fresh, pa.int64())).cast(self.type))
            self._values = None
        return table[indices.to_numpy(zero_copy_only=False)]

    def _by_value(self, column: pa.Array) -> Int64Array:
        """Codes of lists, structs and maps, which Arrow does not encode."""
        codes = np.empty(len(column), np.int64)
        fresh: list[int] = []
        for i, value in enumerate(column.to_pylist()):
            key = _hashable(value)
            known = len(self.codes)
            codes[i] = self.codes.setdefault(key, known)
            if codes[i] == known:
                fresh.append(i)
        if fresh:
            self._parts.append(column.take(pa.array(fresh, pa.int64())).cast(self.type))
            self._values = None
        return codes

    @property
    def values(self) -> pa.Array:
        """The value of every code."""
        if self._values is None and self._numbers is not None:
            found = _from_numbers(self._numbers.numbers, self.type)
            if self._null >= 0:
                found = pa.concat_arrays([found[: self._null], pa.nulls(1, self.type), found[self._null :]])
            self._values = found
        if self._values is None:
            self._values = pa.concat_arrays(self._parts) if self._parts else pa.array([], self.type)
            self._parts = [self._values]
        return self._values

    @classmethod
    def of(cls, values: pa.Array) -> Encoder:
        """The encoder whose codes are the positions in `values`."""
        encoder = cls(values.type)
        if encoder._numbers is not None:
            encoder.encode(values)
            return encoder
        encoder.codes = {_hashable(v): i for i, v in enumerate(values.to_pylist())}
        encoder._null = encoder.codes.get(None, -1)
        encoder._parts = [values] if len(values) else []
        return encoder


class Keys:
    """Partition ids of several columns together. No columns: one partition, 0."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self.encoders = [Encoder(t) for t in types]
        self.tuples = Numbers() if len(self.encoders) > 1 else None  # packed codes of several columns

    def encode(self, columns: Sequence[pa.Array], rows: int) -> Int64Array:
        """Partition id of each row, int64 (rows,)."""
        if not self.encoders:
            return np.zeros(rows, np.int64)
        codes = [e.encode(c) for e, c in zip(self.encoders, columns, strict=True)]
        if self.tuples is None:
            return codes[0]
        packed = codes[0]
        bits = 62 // len(codes)
        for code in codes[1:]:
            packed = (packed << bits) | code
        if any(len(e) >> bits for e in self.encoders):
            raise OverflowError(f"more than {1 << bits} values in one of {len(codes)} partition columns")
        return self.tuples.encode(packed)[0]

    def __len__(self) -> int:
        if not self.encoders:
            return 1
        return len(self.encoders[0]) if self.tuples is None else len(self.tuples)

    def values(self, column: int, ids: Int64Array) -> pa.Array:
        """The values of partition column `column` for these partition ids."""
        encoder = self.encoders[column]
        if self.tuples is None:
            return encoder.values.take(pa.array(ids))
        bits = 62 // len(self.encoders)
        shift = bits * (len(self.encoders) - 1 - column)
        codes = (self.tuples.numbers[ids] >> shift) & ((1 << bits) - 1)
        return encoder.values.take(pa.array(codes))

    def snapshot(self) -> tuple[list[pa.Array], Int64Array | None]:
        """Values by code of each column, and the packed codes of each id where there are several columns."""
        return [e.values for e in self.encoders], None if self.tuples is None else self.tuples.numbers

    def restore(self, values: Sequence[pa.Array], packed: Int64Array | None) -> None:
        self.encoders = [Encoder.of(v) for v in values]
        if packed is not None:
            self.tuples = Numbers(packed)

"""Partition keys as dense ids, in order of first appearance."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from matching.batch import Int64Array

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


class Encoder:
    """Values of one column as codes 0, 1, 2, ... in order of first appearance; null has a code like any value.

    Cost: one hash lookup a row while there are few values; with many, one dictionary encoding a batch and one lookup a
    distinct value."""

    def __init__(self, type: pa.DataType) -> None:
        self.type = type
        self.codes: dict[object, int] = {}
        self._parts: list[pa.Array] = []  # distinct values in order of their codes
        self._values: pa.Array | None = None

    def encode(self, column: pa.Array) -> Int64Array:
        """Codes of a column, int64 (n,)."""
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

    def _by_dictionary(self, column: pa.Array) -> Int64Array:
        if not isinstance(column, pa.DictionaryArray):
            if pa.types.is_nested(column.type):
                return self._by_value(column)
            column = column.dictionary_encode()
        dictionary = column.dictionary
        known = len(self.codes)
        table = np.empty(len(dictionary) + 1, np.int64)
        fresh: list[int | None] = []
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
            if None not in self.codes:
                self.codes[None] = known + len(fresh)
                fresh.append(None)
            table[where] = self.codes[None]
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
        if self._values is None:
            self._values = pa.concat_arrays(self._parts) if self._parts else pa.array([], self.type)
            self._parts = [self._values]
        return self._values

    @classmethod
    def of(cls, values: pa.Array) -> Encoder:
        """The encoder whose codes are the positions in `values`."""
        encoder = cls(values.type)
        encoder.codes = {_hashable(v): i for i, v in enumerate(values.to_pylist())}
        encoder._parts = [values] if len(values) else []
        return encoder


class Keys:
    """Partition ids of several columns together. No columns: one partition, 0."""

    def __init__(self, types: Sequence[pa.DataType]) -> None:
        self.encoders = [Encoder(t) for t in types]
        self.tuples: dict[int, int] | None = {} if len(self.encoders) > 1 else None
        self._parts: list[Int64Array] = []  # packed codes of each id

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
        if any(len(e.codes) >> bits for e in self.encoders):
            raise OverflowError(f"more than {1 << bits} values in one of {len(codes)} partition columns")
        encoded = pa.array(packed).dictionary_encode()
        distinct = encoded.dictionary.to_pylist()
        table = np.empty(len(distinct), np.int64)
        fresh = []
        for i, value in enumerate(distinct):
            number = self.tuples.get(value, -1)
            if number < 0:
                number = self.tuples[value] = len(self.tuples)
                fresh.append(value)
            table[i] = number
        if fresh:
            self._parts.append(np.array(fresh, np.int64))
        return table[encoded.indices.to_numpy()]

    def __len__(self) -> int:
        if not self.encoders:
            return 1
        return len(self.encoders[0].codes) if self.tuples is None else len(self.tuples)

    def values(self, column: int, ids: Int64Array) -> pa.Array:
        """The values of partition column `column` for these partition ids."""
        encoder = self.encoders[column]
        if self.tuples is None:
            return encoder.values.take(pa.array(ids))
        if len(self._parts) != 1:
            self._parts = [np.concatenate(self._parts)] if self._parts else [np.zeros(0, np.int64)]
        bits = 62 // len(self.encoders)
        shift = bits * (len(self.encoders) - 1 - column)
        codes = (self._parts[0][ids] >> shift) & ((1 << bits) - 1)
        return encoder.values.take(pa.array(codes))

    def snapshot(self) -> tuple[list[pa.Array], Int64Array | None]:
        """Values by code of each column, and the packed codes of each id where there are several columns."""
        packed = None
        if self.tuples is not None:
            packed = np.array(list(self.tuples), np.int64)
        return [e.values for e in self.encoders], packed

    def restore(self, values: Sequence[pa.Array], packed: Int64Array | None) -> None:
        self.encoders = [Encoder.of(v) for v in values]
        if self.tuples is not None and packed is not None:
            self.tuples = {v: i for i, v in enumerate(packed.tolist())}
            self._parts = [packed]

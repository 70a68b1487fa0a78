"""Rows compared with their neighbours, by one sort key: whether they stand in its order, and which are equal in it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hybrid.rows.taking import filled_chunks
from query.plan.expression import quote


@dataclass(frozen=True, slots=True)
class Key:
    """One sort key: a column, its direction and the place of nulls. enum: the ENUM type that orders it, or empty."""

    column: str
    descending: bool = False
    nulls_first: bool = False
    enum: str = ""

    @property
    def sql(self) -> str:
        direction, nulls = "DESC" if self.descending else "ASC", "FIRST" if self.nulls_first else "LAST"
        value = f"CAST({quote(self.column)} AS {self.enum})" if self.enum else quote(self.column)
        return f"{value} {direction} NULLS {nulls}"


def compare_neighbours(column: pa.ChunkedArray, key: Key) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns `compare` of each row but the last one with the next; of numbers chunk by chunk, without a copy."""
    whole = is_whole(column.type)
    if not whole or column.null_count or key.enum or not len(column):
        column = pa.chunked_array([column.combine_chunks()]) if whole else column
        return compare(column.slice(0, len(column) - 1), column.slice(1), key)
    greater, equal = np.empty(len(column) - 1, np.bool_), np.empty(len(column) - 1, np.bool_)
    larger = np.less if key.descending else np.greater
    start, before = 0, np.empty(0, np.int64)
    for values in map(integers_of, filled_chunks(column)):
        for left, right in (before, values[:1]), (values[:-1], values[1:]):
            stop = start + len(left)
            larger(left, right, out=greater[start:stop])
            np.equal(left, right, out=equal[start:stop])
            start = stop
        before = values[-1:]
    return greater, equal


def compare(left: pa.ChunkedArray, right: pa.ChunkedArray, key: Key) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns (left > right, left = right) as bool arrays in the order of the key, or None if the type has no cheap
    order."""
    type = left.type
    if key.enum:
        return None
    primitive = is_whole(type)
    if primitive and not left.null_count and not right.null_count:
        a, b = integers_of(left), integers_of(right)
        return (b > a if key.descending else a > b), a == b
    floating = pa.types.is_floating(type)
    ordered = primitive or floating or pa.types.is_decimal(type)
    if not (ordered or pa.types.is_string(type) or pa.types.is_boolean(type)):
        return None
    greater = pc.less(left, right) if key.descending else pc.greater(left, right)
    greater = bools_of(greater)
    equal = bools_of(pc.equal(left, right))
    if floating:  # NaN equals itself and is the largest
        a, b = bools_of(pc.is_nan(left)), bools_of(pc.is_nan(right))
        greater = np.where(a | b, (b & ~a) if key.descending else (a & ~b), greater)
        equal = np.where(a | b, a & b, equal)
    if left.null_count or right.null_count:
        a, b = bools_of(left.is_null()), bools_of(right.is_null())
        greater = np.where(a | b, (b & ~a) if key.nulls_first else (a & ~b), greater)
        equal = np.where(a | b, a & b, equal)
    return greater, equal


def is_whole(type: pa.DataType) -> bool:
    """True if values of a type are stored as integers of the same order."""
    return pa.types.is_integer(type) or (pa.types.is_temporal(type) and not pa.types.is_interval(type))


def bools_of(values: pa.ChunkedArray) -> np.ndarray:
    """Returns a column of truths as bool (n,), False for null."""
    return pc.fill_null(values, False).to_numpy()


def integers_of(column: pa.ChunkedArray) -> np.ndarray:
    """Returns a column of integers or times without nulls as numpy integers."""
    if pa.types.is_integer(column.type):
        return column.to_numpy()
    wide = pa.int32() if column.type.bit_width == 32 else pa.int64()
    # A view, not a cast: the same 4 or 8 bytes.
    chunks = [np.asarray(chunk.view(wide)) for chunk in column.chunks]
    return chunks[0] if len(chunks) == 1 else np.concatenate(chunks) if chunks else np.empty(0, np.int64)

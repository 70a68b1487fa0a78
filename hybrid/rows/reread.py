"""Whether rows that are read again are the same as before."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from matching.types import contains
from matching.values import as_lists


def alike(one: pa.Table, other: pa.Table) -> bool:
    """True if two tables with the same columns have equal rows in the same order; NaN equals itself, also in lists,
    structs and maps."""
    return one.schema.equals(other.schema) and all(
        a.equals(b) or (contains(a.type, pa.types.is_floating) and _equal(a.combine_chunks(), b.combine_chunks()))
        for a, b in zip(one.columns, other.columns, strict=True)
    )


def _equal(one: pa.Array, other: pa.Array) -> bool:
    """True if two arrays of one type have equal values. Those of nested types are compared part by part: Arrow says
    that none with a NaN equals itself."""
    t, type = pa.types, one.type
    if len(one) != len(other) or not one.is_valid().equals(other.is_valid()):
        return False
    if t.is_floating(type):
        words = pa.int64() if type == pa.float64() else pa.int32()
        return bool(pc.drop_null(one).view(words).equals(pc.drop_null(other).view(words)))
    if t.is_struct(type):
        return all(_equal(a, b) for a, b in zip(one.flatten(), other.flatten(), strict=True))
    if t.is_map(type):
        return _equal(as_lists(one), as_lists(other))
    if t.is_list(type) or t.is_large_list(type) or t.is_fixed_size_list(type):
        same = pc.list_value_length(one).equals(pc.list_value_length(other))
        return bool(same) and _equal(one.flatten(), other.flatten())
    return bool(one.equals(other))

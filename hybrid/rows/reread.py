"""Whether rows that are read again are the same as before."""

from __future__ import annotations

import pyarrow as pa


def alike(one: pa.Table, other: pa.Table) -> bool:
    """True if two tables with the same columns have equal rows in the same order; NaN equals itself."""

    def comparable(column: pa.ChunkedArray) -> pa.ChunkedArray:
        if not pa.types.is_floating(column.type):
            return column
        words = pa.int64() if column.type == pa.float64() else pa.int32()
        return pa.chunked_array([chunk.view(words) for chunk in column.chunks], words)

    return one.schema.equals(other.schema) and all(
        comparable(a).equals(comparable(b)) for a, b in zip(one.columns, other.columns, strict=True)
    )

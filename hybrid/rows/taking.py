"""Some rows of a table, a part at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

#: Most rows that are brought into another order in one call of Arrow.
TAKEN_ROWS = 1 << 19


def taken(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """Returns these rows of a table, TAKEN_ROWS of a column at a time: Ctrl-C waits for one call at most."""
    if len(rows) <= TAKEN_ROWS:
        return table.take(pa.array(rows))
    parts = [pa.array(rows[start : start + TAKEN_ROWS]) for start in range(0, len(rows), TAKEN_ROWS)]
    columns = []
    for column in table.columns:
        whole = column.combine_chunks() if column.num_chunks > 1 else column
        columns.append(pa.chunked_array([chunk for part in parts for chunk in _chunks(whole.take(part))], column.type))
    return pa.table(columns, schema=table.schema)


def some_rows(table: pa.Table, rows: np.ndarray) -> pa.Table:
    """Returns these rows of a table, ascending, chunk by chunk: what is put together are these rows only."""
    columns = []
    for column in table.columns:
        chunks = [chunk.slice(at, TAKEN_ROWS) for chunk in column.chunks for at in range(0, len(chunk), TAKEN_ROWS)]
        begins = np.cumsum([0, *map(len, chunks)])
        cuts = np.searchsorted(rows, begins)
        of_chunks = zip(chunks, begins, cuts, cuts[1:])
        parts = [chunk.take(pa.array(rows[low:high] - begin)) for chunk, begin, low, high in of_chunks]
        columns.append(pa.chunked_array(parts, column.type))
    return pa.table(columns, schema=table.schema).combine_chunks()


def _chunks(values: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return values.chunks if isinstance(values, pa.ChunkedArray) else [values]

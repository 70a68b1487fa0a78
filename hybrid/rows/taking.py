"""Some rows of a table, a part at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

#: Tables of more chunks are put together before rows are taken again and again: each part would be of many chunks.
CHUNKS_MAX = 1 << 10
#: Most rows that are brought into another order in one call of Arrow, and about how many bytes: of texts, an array has
#: room for 2 GB.
TAKEN_ROWS, TAKEN_BYTES = 1 << 19, 1 << 28
#: Rows of batches that are put together, at most.
BATCH_MOST = 1 << 14


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


def filled_chunks(column: pa.ChunkedArray) -> Iterator[pa.ChunkedArray]:
    """Yields the chunks of a column but empty ones, each alone; of many small ones, put together."""
    batches = Chunks.of(pa.table([column], names=["values"])).batches
    return (pa.chunked_array([batch.column(0)]) for batch in batches if batch.num_rows)


#: Returns rows by their places [start, stop), and their numbers.
Ahead = Callable[[int, int], tuple[pa.RecordBatch, np.ndarray]]


@dataclass(frozen=True, slots=True)
class Chunks:
    """A table whose rows are taken part by part, in any order, without a copy of the table unless it is small or has
    more than CHUNKS_MAX chunks. begins: the first row of each batch, and the end; most: rows taken at a time."""

    batches: list[pa.RecordBatch]
    begins: np.ndarray
    most: int

    @staticmethod
    def of(table: pa.Table) -> Chunks:
        """Returns the chunks of a table, zero copy unless they are put together."""
        batches = table.to_batches()
        if len(batches) > CHUNKS_MAX or table.num_rows <= TAKEN_ROWS:
            batches = table.combine_chunks().to_batches()  # several if texts have more than 2 GB
        batches = batches or [pa.RecordBatch.from_pylist([], schema=table.schema)]
        most = min(TAKEN_ROWS, TAKEN_BYTES * table.num_rows // max(1, table.nbytes))
        return Chunks(batches, np.cumsum([0, *map(len, batches)]), max(1, most))

    def ahead(self, count: int, rows: Callable[[int, int], np.ndarray]) -> Ahead:
        """Returns what gives rows by their places [start, stop), asked for in ascending order, of `count`, and their
        numbers. rows: returns the numbers of the rows of such places."""
        low = high = 0
        numbers, part = np.zeros(0, np.int64), self.batches[0].slice(0, 0)

        def some(start: int, stop: int) -> tuple[pa.RecordBatch, np.ndarray]:
            nonlocal low, high, numbers, part
            if stop > high:
                low, high = start, max(stop, min(start + self.most, count))
                numbers = rows(low, high).astype(np.int64, copy=False)
                part = self.take(numbers)
            return part.slice(start - low, stop - start), numbers[start - low : stop - low]

        return some

    def take(self, rows: np.ndarray) -> pa.RecordBatch:
        """Returns these rows. Cost: a pass over them, two more if there are several batches, and a call a batch."""
        if len(self.batches) == 1:
            return self.batches[0].take(pa.array(rows))
        from matching.kernels.radix import by_range  # loads numba, too slow for few rows

        within, place, ends = by_range(rows, self.begins)
        parts = [
            batch.take(pa.array(within[low:high]))
            for batch, low, high in zip(self.batches, [0, *ends], ends) if high > low
        ]  # fmt: skip
        return pa.concat_batches(parts).take(pa.array(place)) if parts else self.batches[0].slice(0, 0)


def long_batches(batches: Iterable[pa.RecordBatch], most: int = BATCH_MOST) -> Iterator[pa.RecordBatch]:
    """Yields the rows in batches, without empty ones. Short ones that follow each other are put together, to
    `most` rows and no more: a batch costs beside its rows what some thousand rows do."""
    most = min(most, BATCH_MOST)
    short: list[pa.RecordBatch] = []
    rows = 0
    for batch in batches:
        if short and rows + batch.num_rows > most:
            yield _together(short)
            short, rows = [], 0
        if not short and 2 * batch.num_rows >= most:
            yield batch
        elif batch.num_rows:
            short.append(batch)
            rows += batch.num_rows
    if short:
        yield _together(short)


def _together(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def one_batch(table: pa.Table) -> pa.RecordBatch:
    """Returns the table as one record batch. Copies only if it has several chunks."""
    batches = table.combine_chunks().to_batches()
    if not batches:
        return pa.RecordBatch.from_arrays([pa.array([], f.type) for f in table.schema], schema=table.schema)
    return batches[0]


def _chunks(values: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return values.chunks if isinstance(values, pa.ChunkedArray) else [values]

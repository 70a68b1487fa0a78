"""Compaction by Spark: rewrites data files of a table into few files sorted by (period, keys, time).

The rows do not change, and readers of an older snapshot keep the old files. Shares the writer of
`archive.spark.ingest` and commits with `Table.replace`: the loser of a race changes nothing.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence

import numpy as np

from archive.ingest import NONE, Told
from archive.place import Place
from archive.scan import checked
from archive.spark.files import Rereads
from archive.spark.ingest import laid_out, packed
from archive.spark.session import Where, ignore_pandas, in_words, spark_session
from archive.sums import FOOTERS
from archive.table import Table
from archive.table_snapshot import TableSnapshot
from query.errors import DataError


def compact(
    where: Where, place: Place, paths: Sequence[str] | None = None, told: Told = lambda progress: None
) -> TableSnapshot | None:
    """Rewrites files of a table; returns the table with the new ones. where: as in archive.spark.session. paths: the
    files to rewrite (None: all).

    Returns None and changes nothing if another process has removed files meanwhile: choose the files again. Raises
    DataError if a path is not in the table, or if files cannot be read or written."""
    session = spark_session(where)
    table = Table.open(place)
    before = table.snapshot()
    wanted = list(before.paths) if paths is None else list(paths)
    rows = dict(zip(before.paths, before.rows.tolist()))
    strange = [path for path in wanted if path not in rows]
    if strange:
        raise DataError(f"{place} has no file {strange[0]}", "take the paths from a snapshot of it")
    if not wanted:
        return before
    sizes = [place_size(place / path) for path in wanted]
    chosen = set(wanted)
    index = np.array([i for i, path in enumerate(before.paths) if path in chosen], np.int64)
    checked(place, before, index, table.schema, FOOTERS)
    tasks = packed(wanted, sizes)
    argument = ("archive.spark.files:reread", pickle.dumps(Rereads(table.schema, place, tasks)))
    ignore_pandas()
    with in_words("Spark has failed", "nothing has changed"):
        files, found = laid_out(session, table.schema, place, argument, len(tasks), told, sum(sizes))
    read = sum((count for loaded in found for count in loaded.counts.values()), NONE).rows
    expected, written = sum(rows[path] for path in wanted), sum(file.rows for file in files)
    if not expected == read == written:
        message = f"{place}: {read:,} of {expected:,} rows were read and {written:,} written; nothing was changed"
        raise DataError(message, "run hybrid archive verify: a file may have been changed")
    return table.replace(before, wanted, files)


def place_size(path: Place) -> int:
    """Returns the size of a file in bytes. Raises DataError if it was removed."""
    try:
        return path.size()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error}", "the file was removed") from error

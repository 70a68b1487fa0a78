"""Sorting of more events than fit into memory, by DuckDB."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import duckdb

from archive.layout import SEQ, Unit, key_names, time_name
from query.language.duck import connect
from query.plan.expression import quote
from query.schema import Schema

MEMORY_LIMIT = "1GB"


@contextmanager
def sorting(scratch: str, memory_limit: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """Opens a separate DuckDB that sorts within a memory limit and spills into the directory `scratch`."""
    connection = connect(memory_limit=memory_limit, spill=scratch)
    try:
        yield connection
    finally:
        connection.close()


def sorted_by(schema: Schema, unit: Unit) -> str:
    """Returns the SQL sort order of a file by key: (period, keys, time)."""
    time = quote(time_name(schema))
    parts = [f"{quote(key)} NULLS LAST" for key in key_names(schema)]
    names = {"h": "hour", "D": "day", "M": "month", "Y": "year"}
    if unit != "all":
        parts.insert(0, f"date_trunc('{names[unit]}', make_timestamp(epoch_us({time})))")
    return ", ".join([*parts, time, SEQ])

"""Sorting of more events than fit into memory, by DuckDB, which another thread may stop."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import duckdb

from archive.layout import SEQ, Unit, key_names, time_name
from query.language.duck import connect
from query.plan.expression import quote
from query.schema import Schema

MEMORY_LIMIT = "1GB"
#: Seconds between two questions whether a sort is to stop.
ASK_EVERY_S = 0.05


@contextmanager
def sorting(
    scratch: str, memory_limit: str, stopped: Callable[[], bool] | None = None
) -> Iterator[duckdb.DuckDBPyConnection]:
    """Opens a separate DuckDB that sorts within a memory limit and spills into the directory `scratch`. stopped: asked
    often, in a thread of its own; once it is True, statements on the connection fail with duckdb.InterruptException."""
    connection = connect(memory_limit=memory_limit, spill=scratch)
    ended = threading.Event()

    def interrupt() -> None:
        assert stopped is not None
        while not ended.wait(ASK_EVERY_S):
            if stopped():
                connection.interrupt()  # again and again: without effect between two statements

    asking = None if stopped is None else threading.Thread(target=interrupt, daemon=True)
    if asking is not None:
        asking.start()
    try:
        yield connection
    finally:
        ended.set()
        if asking is not None:
            asking.join()
        connection.close()


def sorted_by(schema: Schema, unit: Unit) -> str:
    """Returns the SQL sort order of a file by key: (period, keys, time)."""
    time = quote(time_name(schema))
    parts = [f"{quote(key)} NULLS LAST" for key in key_names(schema)]
    names = {"h": "hour", "D": "day", "M": "month", "Y": "year"}
    if unit != "all":
        parts.insert(0, f"date_trunc('{names[unit]}', make_timestamp(epoch_us({time})))")
    return ", ".join([*parts, time, SEQ])

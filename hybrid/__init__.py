"""Hybrid: one pattern query over what is happening now and over everything that happened before.

    import hybrid

    hybrid.sql("SELECT * FROM ticks MATCH_RECOGNIZE (...) AS m", ticks=df).df()

    with hybrid.connect("market/") as db:
        db.create_stream("ticks", {"ts": "TIMESTAMP", "symbol": "VARCHAR", "price": "DOUBLE"}, time="ts", key="symbol")
        alerts = db.watch(query)
        db.push("ticks", batch)
        alerts.fetch()

Importing this package loads nothing heavy: Arrow, DuckDB and numba come with the first call that needs them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import duckdb

    from archive.log import Policy
    from hybrid.database.database import Database
    from hybrid.rows.result import Result
    from hybrid.statement.compressed import Compressed
    from hybrid.watch.shedding import Shed
    from query.plan.plan import QueryPlan
    from query.schema import Schema


def _refuse_shadows() -> None:
    """Raises ImportError if a user's own `query.py`, `live.py`, ... stands before one of our packages on the path."""
    home = Path(__file__).resolve().parent.parent
    for name in ("query", "matching", "live", "archive", "simulator"):
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ImportError(f"hybrid needs its package {name!r}, which is not beside {home / 'hybrid'}")
        places = [Path(p).resolve() for p in spec.submodule_search_locations or ()]
        if home / name not in places[:1]:
            found = spec.origin or (str(places[0]) if places else "something built in")
            raise ImportError(
                f"{found} hides hybrid's own package {name!r} ({home / name}): rename it, or start Python from another "
                "folder"
            )


_refuse_shadows()

from query.errors import DataError, HybridWarning, QueryError  # noqa: E402  (only after the check above)

__version__ = "0.1.0"
__all__ = [
    "Compressed", "DataError", "Database", "HybridWarning", "QueryError", "Result", "Shed", "__version__", "connect",
    "matches", "plan", "sql",
]  # fmt: skip


def sql(text: str, connection: duckdb.DuckDBPyConnection | None = None, **tables: Any) -> Result:
    """Answers one statement: a DuckDB SELECT whose table factors may carry MATCH_RECOGNIZE and JOIN HISTORY OF, alone
    or in COPY (...) TO, INSERT INTO and CREATE TABLE AS; or a SASE+ statement, PATTERN SEQ ( ... ), in its place.

    tables: what the names in the text stand for: pandas or polars frames, Arrow tables, DuckDB relations, anything with
    the Arrow PyCapsule protocol, the path of a file, a list of dicts. connection: a DuckDB connection whose own tables
    and views may be named too; INSERT and CREATE need one. The text may read and write files, as DuckDB does: for texts
    of others take hybrid.connect(external=False).sql, or a connection without external access. Rows that ORDER BY
    leaves equal keep their position in the table, frame or file; those of joins, aggregates and the like go by content.
    Raises QueryError, DataError.
    """
    from archive.interrupts import Deferred

    with Deferred():  # an import that is interrupted leaves half a module
        from hybrid.statement.statement import sql as answer
    return answer(text, connection, **tables)


def matches(text: str, connection: duckdb.DuckDBPyConnection | None = None, **tables: Any) -> Compressed:
    """All matches of one statement as a graph that is not decoded: for patterns of which one row may end very many.

    text: as for hybrid.sql, with one pattern of which the SELECT picks columns, under SELECTION SKIP TILL NEXT MATCH or
    SKIP TILL ANY MATCH. Time and memory depend on the rows, not on the matches. Raises QueryError, DataError."""
    from archive.interrupts import Deferred

    with Deferred():
        from hybrid.statement.statement import matches as compressed
    return compressed(text, connection, **tables)


def plan(text: str, schemas: Mapping[str, Schema | Mapping[str, str]], live: bool = False) -> QueryPlan:
    """Returns the plan of one statement, the one that hybrid.sql, Database.watch, Spark, check and explain start from.

    schemas: by name the inputs of the text; of a table its columns with DuckDB types, of a stream its Schema, as
    Database.schema returns it. live: plan it as a live query, over streams only. `print(plan)` shows it as
    `hybrid explain --stage plan` does. Reads no rows. Raises QueryError, DataError."""
    from archive.interrupts import Deferred

    with Deferred():
        from hybrid.statement.planning import plan as planned
    return planned(text, schemas, live)


def connect(
    path: str | os.PathLike[str] | None = None,
    memory_limit: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    maintenance: bool = True,
    log: Policy | Literal["default"] | None = "default",
    checkpoint: Any = None,
    spark: Any = None,
    spark_events: int | None = None,
    read_only: bool = False,
    external: bool = True,
    files: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
) -> Database:
    """Opens a database of streams: `path` is a directory that keeps their archives, or s3://bucket/prefix in an
    S3-compatible store; None keeps everything in memory.

    memory_limit: what partial matches of live queries may hold, for example "2GB", and what DuckDB may use for reading
    history; the partial matches beyond that go to disk. storage_options: how the store is
    reached, as deltalake and polars take it ({"aws_endpoint_url": ..., "aws_region": ...}); what is not given comes
    from the environment. maintenance: whether a thread keeps the archives in order: flushes what waits, compacts,
    deletes what was taken out. log: whether events are in a log on disk before a push returns: "fsync" (then they
    survive a loss of power), "os" (they survive the end of the process), which a database on disk has unless it is
    said; None: they are written with the next flush, after five seconds at most and when the process ends in order.
    read_only: nothing is pushed or written, and another process may write meanwhile; each statement sees what that has
    taken until then. Otherwise it is the only process that writes: a second one is refused. checkpoint: how often what
    queries with a name have become is kept ("10s"; None: when Database.checkpoint is called, and at the end). spark:
    where Spark searches for PA in large ranges of history, an address or a session as Database.sql takes them (None:
    nowhere); spark_events: those with more events than so many, 100 million unless it is said. external: whether the
    text of a query may read and write files and go to the network, as DuckDB's does. False is for texts of others: they
    read the streams, the tables given with them, and `files` (a directory for all in it), and nothing else. Use it as a
    context manager, or close it. Raises DataError for what cannot be opened.
    """
    from archive.interrupts import Deferred

    with Deferred():
        from hybrid.database.database import Database
        from hybrid.rows.duck import access_to
    return Database(
        path, memory_limit, storage_options, maintenance, log, checkpoint, spark=spark, spark_events=spark_events,
        read_only=read_only, access=access_to(external, files),
    )  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "Compressed":
        from hybrid.statement.compressed import Compressed

        return Compressed
    if name == "Database":
        from hybrid.database.database import Database

        return Database
    if name == "Result":
        from hybrid.rows.result import Result

        return Result
    if name == "Shed":
        from hybrid.watch.shedding import Shed

        return Shed
    raise AttributeError(f"module 'hybrid' has no attribute {name!r}")

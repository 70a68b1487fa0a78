"""Hybrid: one pattern query over live streams and over their archive.

    import hybrid

    hybrid.sql("SELECT * FROM ticks MATCH_RECOGNIZE (...) AS m").df()  # ticks: a pandas or polars frame, Arrow, ...

    with hybrid.connect("market/") as db:
        db.create_stream("ticks", {"ts": "TIMESTAMP", "symbol": "VARCHAR", "price": "DOUBLE"}, time="ts", key="symbol")
        alerts = db.watch(query)
        db.push("ticks", batch)
        alerts.fetch()

Importing this package loads nothing heavy: Arrow, DuckDB and numba come with the first call that needs them.
"""

from __future__ import annotations

import importlib.util
import sys
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
    from query.language.parameters import Params
    from query.plan.plan import QueryPlan
    from query.schema import Schema


def _refuse_shadows() -> None:
    """Raises ImportError if a module of the user, such as `query.py`, precedes one of our packages on the path.

    The script that runs may have such a name: nobody imports it, so our package is loaded from beside this one.
    """
    home = Path(__file__).resolve().parent.parent
    mains = [getattr(sys.modules.get(name), "__file__", None) for name in ("__main__", "__mp_main__")]
    scripts = {Path(file).resolve() for file in mains if file}
    for name in ("query", "matching", "live", "archive", "simulator"):
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ImportError(f"hybrid's package {name!r} is missing: expected {home / name}")
        places = [Path(p).resolve() for p in spec.submodule_search_locations or ()]
        if home / name in places[:1]:
            continue
        if spec.origin and Path(spec.origin).resolve() in scripts:
            _load(name, home / name)
            continue
        found = spec.origin or (str(places[0]) if places else "something built in")
        raise ImportError(
            f"{found} hides hybrid's own package {name!r} ({home / name}): rename it, or start Python from another "
            "folder"
        )


def _load(name: str, folder: Path) -> None:
    file = folder / "__init__.py"
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=[str(folder)])
    if spec is None or spec.loader is None:
        raise ImportError(f"hybrid's package {name!r} is missing: expected {folder}")
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])


_refuse_shadows()

from query.errors import DataError, Error, HybridWarning, QueryError, at_boundary  # noqa: E402  (only after the check above)

__version__ = "0.1.0"
__all__ = [
    "Compressed", "DataError", "Database", "Error", "HybridWarning", "QueryError", "Result", "Shed", "__version__",
    "connect", "matches", "plan", "sql",
]  # fmt: skip


@at_boundary
def sql(
    text: str, connection: duckdb.DuckDBPyConnection | None = None, *, params: Params = None,
    timeout: Any = None, **tables: Any,
) -> Result:  # fmt: skip
    """Runs one statement and returns its rows.

    text: a DuckDB SELECT whose tables may carry MATCH_RECOGNIZE and JOIN HISTORY OF; it may be wrapped in
    COPY (...) TO, INSERT INTO or CREATE TABLE AS. A SASE+ statement, PATTERN SEQ ( ... ), may replace the SELECT.
    tables: data for the names in the text: pandas or polars frames, Arrow tables, DuckDB relations, anything with the
    Arrow PyCapsule protocol, the path of a file, a list of dicts. Frames and Arrow tables in variables of the caller
    are found by their names, too. connection: a DuckDB connection; the text may also name its tables and views. INSERT
    and CREATE need one. params: values for `$name` by name, or for `?` in order. timeout: "30s", a timedelta or a
    number of seconds, after which the statement ends with QueryError HQ602, which says how many rows were matched.

    Rows that are equal in ORDER BY keep their position in the table, frame or file; rows of joins, aggregates and the
    like have none and are ordered by content. The text may read and write files, as in DuckDB. For untrusted texts use
    hybrid.connect(external=False).sql, or a connection without external access. Raises QueryError, DataError.
    """
    from archive.interrupts import Deferred

    with Deferred():  # an interrupted import would leave half a module
        from hybrid.statement.local_tables import with_local_tables
        from hybrid.statement.statement import sql as answer
        from query.language.parameters import filled
    text = text if params is None else filled(text, params)

    def run(known: Mapping[str, Any]) -> Result:
        return answer(text, connection, timeout, **known)

    return with_local_tables(run, tables, sys._getframe(2), connection)


@at_boundary
def matches(
    text: str, connection: duckdb.DuckDBPyConnection | None = None, *, params: Params = None,
    timeout: Any = None, **tables: Any,
) -> Compressed:  # fmt: skip
    """Returns all matches of one statement as a compressed graph, for patterns with very many matches per row.

    text: as for hybrid.sql, with one pattern under SELECTION SKIP TILL NEXT MATCH or SKIP TILL ANY MATCH and a SELECT
    that only picks its columns. Time and memory depend on the rows, not on the matches. params, timeout: as in
    hybrid.sql; the timeout is that of the graph, not of what is read from it. Raises QueryError, DataError.
    """
    from archive.interrupts import Deferred

    with Deferred():
        from hybrid.statement.local_tables import with_local_tables
        from hybrid.statement.statement import matches as compressed
        from query.language.parameters import filled
    text = text if params is None else filled(text, params)

    def run(known: Mapping[str, Any]) -> Compressed:
        return compressed(text, connection, timeout, **known)

    return with_local_tables(run, tables, sys._getframe(2), connection)


@at_boundary
def plan(text: str, schemas: Mapping[str, Schema | Mapping[str, str]], live: bool = False) -> QueryPlan:
    """Returns the plan of one statement. hybrid.sql, Database.watch, Spark, check and explain all start from this plan.

    schemas: the inputs of the text by name: column names with DuckDB types for a table, a Schema as of Database.schema
    for a stream. live: plans a live query, over streams only. `print(plan)` shows the text of
    `hybrid explain --stage plan`. Reads no rows. Raises QueryError, DataError."""
    from archive.interrupts import Deferred

    with Deferred():
        from hybrid.statement.planning import plan as planned
    return planned(text, schemas, live)


@at_boundary
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
    """Opens a database of streams. Use it as a context manager, or close it. Raises DataError if it cannot be opened.

    path: the directory of the archives, or s3://bucket/prefix in an S3-compatible store. None: everything in memory.
    memory_limit: memory for partial matches, pending rows and evidence of live queries, for example "2GB", and for
        DuckDB when it reads history. What exceeds it spills to disk.
    storage_options: options of the object store, as for deltalake and polars ({"aws_endpoint_url": ...,
        "aws_region": ...}). Missing ones come from the environment.
    maintenance: runs a thread that flushes buffered events, compacts files and deletes removed data.
    log: when events are in the write-ahead log, relative to the return of a push. "fsync": before it, and they survive
        a loss of power. "os": before it, and they survive the end of the process; the default on disk. None: no log;
        the next flush writes them, after five seconds at most and on an orderly exit.
    checkpoint: interval between checkpoints of named queries ("10s"). None: only Database.checkpoint and close.
    spark: address or session of the Spark that searches large history ranges for the history pattern (PA), as for
        Database.sql. None: no Spark.
    spark_events: ranges with more events go to Spark; 100 million by default.
    read_only: opens without writing, while another process may write. Each statement sees the rows that the writer has
        taken so far. Otherwise this is the only writer: a second one is refused.
    external: query texts may read and write files and use the network, as in DuckDB. False, for untrusted texts: they
        read only the streams, the tables given with them, and `files`.
    files: files that texts may read with external=False; a directory allows all files in it.
    """
    from archive.interrupts import Deferred

    with Deferred():
        from hybrid.database.database import Database
        from hybrid.rows.duck import access_to
    return Database(
        path, memory_limit, storage_options, maintenance, log, checkpoint, spark=spark, spark_events=spark_events,
        read_only=read_only, access=access_to(external, files),
    )  # fmt: skip


def __dir__() -> list[str]:
    """Returns what completion shows: the public names."""
    return sorted(__all__)


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

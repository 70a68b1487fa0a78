"""`hybrid archive ingest`: adds files to the archive of a stream."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from hybrid.cli.output import say

if TYPE_CHECKING:
    from archive.ingest import IngestReport, Job, Progress, Told
    from query.schema import Schema

class FileFormat(StrEnum):
    """Formats of input files."""

    csv = "csv"
    ndjson = "ndjson"
    parquet = "parquet"


class UndeclaredColumns(StrEnum):
    """Policies for undeclared columns."""

    ignore = "ignore"
    error = "error"


class Finer(StrEnum):
    """Policies for times finer than a microsecond."""

    error = "error"
    cut = "cut"


class Lacking(StrEnum):
    """Policies for declared columns that a file lacks."""

    error = "error"
    null = "null"


class Changed(StrEnum):
    """Policies for a file that was archived before with other contents."""

    error = "error"
    add = "add"


#: Option of the commands that can use Spark.
Memory: TypeAlias = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Memory of Spark's driver, if this command starts it, such as 4g.")
]


def ingest(
    stream: Annotated[str, typer.Argument(help="The stream; a new one is declared.")],
    inputs: Annotated[list[str], typer.Argument(metavar="INPUT...", help="Files, directories, globs; paths or URLs.")],
    directory: Annotated[
        str, typer.Option("--directory", "-d", metavar="PLACE", help="The database; a new one is created.")
    ],
    spark: Annotated[
        str | None,
        typer.Option("--spark", metavar="MASTER", help="Run on Spark: local[*], spark://host:7077, sc://host."),
    ] = None,
    memory: Memory = None,
    format: Annotated[
        FileFormat | None, typer.Option("--format", "-f", help="Format of all files. Default: by suffix.")
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="COLUMNS", help="Columns of a new stream, 'ts TIMESTAMP, k VARCHAR'. Default: of the first file."
        ),
    ] = None,
    time: Annotated[str | None, typer.Option(help="Event-time column of a new stream.")] = None,
    key: Annotated[list[str] | None, typer.Option(help="Key column of a new stream; repeatable.")] = None,
    delimiter: Annotated[str | None, typer.Option(help="Delimiter of CSV. Default: detected.")] = None,
    header: Annotated[bool, typer.Option(help="The first line of CSV has column names.")] = True,
    null: Annotated[list[str] | None, typer.Option(help="A text of CSV that means NULL; repeatable.")] = None,
    timestamp_format: Annotated[
        str | None,
        typer.Option(metavar="FORMAT", help="Format of times: '%d/%m/%Y %H:%M', or s, ms, us, ns since 1970."),
    ] = None,
    extra: Annotated[UndeclaredColumns, typer.Option(help="Undeclared columns.")] = UndeclaredColumns.ignore,
    missing: Annotated[
        Lacking, typer.Option(help="Declared columns that a file, or an object, lacks.")
    ] = Lacking.error,
    finer: Annotated[Finer, typer.Option(help="Times finer than a microsecond.")] = Finer.error,
    changed: Annotated[Changed, typer.Option(help="A file archived before with other contents.")] = Changed.error,
    max_bad: Annotated[
        int | None, typer.Option(help="Archive nothing if there are more bad rows.", min=0, metavar="N")
    ] = None,
) -> None:
    """Archives CSV, NDJSON and Parquet files in a stream, in one commit. Skips files that are archived already, so the
    command can be repeated. Quarantines bad rows, with reasons."""
    from archive.checks import Options
    from archive.ingest import Job, format_of
    from archive.place import place_of
    from hybrid.watch.declaration import TABLE, stream_directory
    from hybrid.watch.stream import declare_beside
    from query.errors import DataError

    wanted = format_of(None if format is None else format.value)
    options = Options(
        delimiter, header, tuple(null) if null else ("",), timestamp_format, extra.value, missing.value,
        finer.value,
    )
    schema, folder = stream_directory(place_of(directory), stream)
    new = schema is None
    if schema is None:
        schema = _new_stream(stream, inputs, wanted, options, columns, time, key or [])
    else:
        _same(schema, columns, time, key)
    job = Job(schema, folder / TABLE, tuple(inputs), wanted, options, changed.value, max_bad)
    created = new and folder.on_disk and not folder.exists()
    try:
        if new:
            declare_beside(place_of(directory), schema)  # another process may have the database open
        with _shown() as told:
            report = _run(job, told, spark, memory)
    except DataError:
        if created:  # a declaration that does not fit the files must not block the next attempt
            shutil.rmtree(folder.root, ignore_errors=True)
        raise
    for message in report.messages:
        say(message)
    print(in_words(report, schema.name))


def _run(job: Job, told: Told, spark: str | None, memory: str | None) -> IngestReport:
    if spark is None:
        from archive.ingest import ingest as ingest_here

        return ingest_here(job, told)
    from archive.spark.ingest import ingest as ingest_by_spark
    from archive.spark.session import spark_session

    return ingest_by_spark(spark_session(spark, memory=memory), job, told)


def in_words(report: IngestReport, stream: str) -> str:
    """Returns a report in one line."""
    from hybrid.rows.words import counted

    text = f"{stream}: {counted(report.rows, 'row')} of {counted(report.files, 'file')} archived"
    if report.known:
        text += f"; {counted(report.known, 'file')} skipped, archived before"
    if report.bad:
        text += f"; {counted(report.bad, 'bad row')} in {report.quarantine}"
    return text


def _new_stream(
    name: str, inputs: list[str], format: object, options: object, columns: str | None, time: str | None,
    key: list[str],
) -> Schema:
    """Returns the declaration of a new stream: as given, or guessed from the first file, with a message."""
    from archive.guess import guess_columns, guess_time
    from archive.inputs import find_files
    from hybrid.watch.declaration import declared

    if columns is not None:
        types: Mapping[str, str] = parse_columns(columns)
    else:
        first = find_files(inputs, format)[0][0]  # type: ignore[arg-type]
        types = guess_columns(first, options)  # type: ignore[arg-type]
    time = time or guess_time(types)
    if columns is None:
        shown = ", ".join(f"{column} {type}" for column, type in types.items())
        keys = "".join(f" --key {column}" for column in key)
        say(f'new stream {name}, declared from {first.path}: --columns "{shown}" --time {time}{keys}')
    return declared(name, types, time, key, (), 0, None)


def _same(schema: Schema, columns: str | None, time: str | None, key: list[str] | None) -> None:
    """Raises DataError if the options differ from the stream's declaration."""
    from hybrid.watch.declaration import declared, differences, otherwise

    types = {f.name: f.type for f in schema.fields} if columns is None else parse_columns(columns)
    told = declared(schema.name, types, time or schema.time or "", schema.keys if key is None else key, (), 0, None)
    told = replace(told, order=schema.order, lateness_us=schema.lateness_us, retention_us=schema.retention_us)
    if differences(schema, told):
        raise otherwise(schema, told)


def parse_columns(text: str) -> dict[str, str]:
    """Parses `ts TIMESTAMP, price DECIMAL(9, 2)` into names and types, by DuckDB. Raises DataError."""
    import duckdb

    from query.errors import DataError, first_line
    from query.language.duck import connect

    connection = connect()
    try:
        connection.execute(f"CREATE TABLE t ({text})")
        text = "SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = 't' ORDER BY column_index"
        rows = connection.execute(text).fetchall()
    except duckdb.Error as error:
        message = f"--columns cannot be read: {first_line(error)}"
        raise DataError(message, 'write them as "ts TIMESTAMP, symbol VARCHAR, price DOUBLE"') from None
    finally:
        connection.close()
    return {str(name): str(type) for name, type in rows}


@contextmanager
def _shown() -> Iterator[Told]:
    """Yields a callback that shows progress on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda progress: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    from hybrid.database.database import STEPS

    with Bars(
        TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(),
        TextColumn("{task.fields[rows]}"), TimeElapsedColumn(), console=Console(stderr=True), transient=True,
    ) as bars:  # fmt: skip
        tasks: dict[str, object] = {}

        def told(progress: Progress) -> None:
            step = progress.step
            if step not in tasks:
                tasks[step] = bars.add_task(STEPS[step], rows="")
            rows = "" if step == "look" else f"{progress.rows:,} rows" + (
                f", {progress.bad:,} bad" if progress.bad else ""
            )
            bars.update(tasks[step], completed=progress.done, total=progress.total, rows=rows)  # type: ignore[arg-type]

        yield told

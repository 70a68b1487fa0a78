"""Output of commands: rows to stdout, messages and progress to stderr."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    import pyarrow as pa


class RowFormat(StrEnum):
    """Formats of rows."""

    table = "table"
    json = "json"
    csv = "csv"
    parquet = "parquet"


Formats = Annotated[RowFormat, typer.Option("--format", "-f", help="Format of rows.")]
#: Of commands with --output.
FileFormats = Annotated[RowFormat | None, typer.Option("--format", "-f", help="Format of rows.", show_default="table")]


def report(line: str) -> None:
    """Prints a line of a report to stdout."""
    from query.printable import printable_lines

    print(printable_lines(line, "  "))


def say(message: str, indent: str = "") -> None:
    """Prints a message to stderr. indent: begins each of its lines after the first."""
    from query.printable import printable_lines

    print(printable_lines(message, indent), file=sys.stderr, flush=True)


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Shows a line of progress on stderr while the block runs, as hybrid.statement.progress does. Ctrl-C ends it,
    also within DuckDB. Yields a function to advance it. total: what it advances to; None: unknown."""
    from hybrid.rows.duck import interruptible
    from hybrid.statement.progress import Far
    from hybrid.statement.progress import progress as shown

    done = 0

    def far() -> Far:
        of = "" if total is None else f": {done:,} of {total:,}"
        return Far(f"{what}{of}", done, total)

    def advance(more: int) -> None:
        nonlocal done
        done += more

    with interruptible(), shown(far):
        yield advance


#: Formats of files by suffix, without --format.
SUFFIXES = {
    ".csv": RowFormat.csv, ".parquet": RowFormat.parquet,
    ".json": RowFormat.json, ".ndjson": RowFormat.json, ".jsonl": RowFormat.json,
}  # fmt: skip


def write(
    table: pa.Table, format: RowFormat | None, output: Path | None, otherwise: RowFormat = RowFormat.table
) -> None:
    """Writes rows to a file or to stdout. format: None: a file has that of its suffix. otherwise: without one."""
    if format is None:
        format = otherwise if output is None else SUFFIXES.get(output.suffix.lower(), otherwise)
    if output is not None and not output.parent.is_dir():
        raise typer.BadParameter(f"--output: directory {output.parent} does not exist")
    try:
        _write(table, format, output)
    except BrokenPipeError:
        raise
    except OSError as error:
        from query.errors import DataError

        where = "standard output" if output is None else output
        hint = "it may have some of the rows: free disk space, or name another file with --output"
        raise DataError(f"{where} cannot be written: {error.strerror or error}", hint) from error


def _write(table: pa.Table, format: RowFormat, output: Path | None) -> None:
    if format is RowFormat.parquet:
        import pyarrow.parquet as pq

        if output is None and sys.stdout.isatty():
            raise typer.BadParameter("Parquet cannot be written to a terminal: add --output FILE")
        pq.write_table(table, output if output is not None else sys.stdout.buffer)
        return
    if output is not None:
        output.write_text(in_text(table, format), encoding="utf-8")
    else:
        from hybrid.rows.result import terminal_width

        sys.stdout.write(in_text(table, format, terminal_width()))
        sys.stdout.flush()  # an error at the end of the process would be said by nobody


def in_text(table: pa.Table, format: RowFormat, width_max: int | None = None) -> str:
    """Returns rows as text in a format other than Parquet. width_max: of the lines of a table."""
    if format is RowFormat.table:
        from hybrid.rows.result import text_table

        return text_table(table, max(20, table.num_rows if table.num_rows <= 1000 else 20), width_max) + "\n"
    if format is RowFormat.csv:
        import io

        import pyarrow.csv

        sink = io.BytesIO()
        pyarrow.csv.write_csv(_flat(table), sink)
        return sink.getvalue().decode()
    from live.sinks.json_lines import check_json, json_lines

    check_json(table.schema)
    return "".join(f"{line}\n" for line in json_lines(table))


def _flat(table: pa.Table) -> pa.Table:
    """Returns the table with columns that CSV cannot hold, such as lists and blobs, as DuckDB's text."""
    import pyarrow as pa

    from hybrid.rows import duck

    columns = []
    for field, column in zip(table.schema, table.columns):
        known = (pa.types.is_primitive, pa.types.is_string, pa.types.is_decimal, pa.types.is_null)
        if pa.types.is_interval(field.type) or not any(is_known(field.type) for is_known in known):
            connection = duck.cursor()
            connection.register("__hybrid_column", pa.table({"x": column}))
            column = connection.sql("SELECT CAST(x AS VARCHAR) AS x FROM __hybrid_column").to_arrow_table().column(0)
        columns.append(column)
    return pa.table(columns, names=table.column_names)



"""Arguments of commands: a query, as text or as a file, and tables."""

from __future__ import annotations

import glob
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from query.errors import Diagnostic, QueryError


def query_text(text: str) -> str:
    """Returns the text itself, or the content of the file that it names; of stdin for `-`."""
    if text == "-":
        return sys.stdin.read()
    # not Path.is_file, which raises for a text longer than a file name may be
    if "\n" not in text and (text.endswith((".sql", ".hq")) or os.path.isfile(text)):
        try:
            return Path(text).read_text(encoding="utf-8")
        except OSError as error:
            raise typer.BadParameter(f"cannot read {text}: {error.strerror}") from None
        except UnicodeDecodeError:
            raise typer.BadParameter(f"cannot read {text}: it is not UTF-8") from None
    if re.fullmatch(r"\S+\.\w+|\S*/\S+", text):
        raise typer.BadParameter(f"file {text} does not exist, and the text is not a statement")
    return text


def existing(directory: str, writes: bool = False) -> Any:
    """Opens an existing database, on disk or in a store, read-only unless the command writes to it."""
    from archive.place import place_of
    from hybrid.database.database import Database
    from hybrid.watch.declaration import stream_names
    from query.errors import DataError, first_line

    place = place_of(directory)
    try:
        there = os.path.isdir(place) if place.on_disk else bool(stream_names(place))
    except OSError as error:
        raise DataError(f"{directory} cannot be opened: {first_line(error)}", "check the place") from None
    if not there:
        raise DataError(f"database {directory} does not exist", "hybrid.connect creates one")
    return Database(place, maintenance=False, ticking=False) if writes else Database(place, read_only=True)


def open_tables(tables: list[str] | None) -> dict[str, Any]:
    """Returns the tables of NAME=FILE options, whose rows are read by each statement that needs them. FILE may be a
    pattern of file names, or `-` for stdin, which is read at once."""
    import duckdb

    from hybrid.cli.output import progress
    from hybrid.rows import duck
    from query.errors import DataError, first_line

    found: dict[str, Any] = {}
    readers = {
        ".parquet": "read_parquet", ".csv": "read_csv", ".tsv": "read_csv", ".json": "read_json", ".jsonl": "read_json",
        ".ndjson": "read_json",
    }  # fmt: skip
    for item in tables or []:
        name, sign, file = item.partition("=")
        if not sign or not name.isidentifier():
            raise typer.BadParameter(f"--table {item}: write NAME=FILE")
        if name.lower() in map(str.lower, found):
            raise typer.BadParameter(f"--table {item}: {name} is given twice")
        if file == "-":
            found[name] = _of_stdin()
            continue
        path = Path(file)
        suffix = (path.suffix if path.suffix != ".gz" else Path(path.stem).suffix).lower()
        if suffix not in readers:
            raise typer.BadParameter(f"--table {item}: the file must end in {', '.join(readers)}")
        if not path.is_file() and not glob.glob(file, recursive=True):
            raise DataError(f"file {file} does not exist", f"check --table {name}={file}")
        quoted = "'" + str(path).replace("'", "''") + "'"
        try:
            given = f"SELECT * FROM {readers[suffix]}({quoted})"
            with progress(f"looking at {file}"):  # a long CSV is read for its types
                found[name] = duck.cursor(access=duck.ANYTHING).sql(given)
        except duckdb.Error as error:
            raise DataError(f"{file} cannot be read: {first_line(error)}") from None
    return found


def with_file_hints(error: QueryError) -> QueryError:
    """Returns an error with the hint to name a file for each unknown table, if it has no other hint, and for a
    statement that writes to a connection."""
    from dataclasses import replace

    from hybrid.rows.faults import NO_CONNECTION
    from query.errors import QueryError

    def hinted(fault: Diagnostic) -> Diagnostic:
        if not fault.hint and (name := re.fullmatch(r"unknown table (?:or stream )?(\w+)", fault.message)):
            return replace(fault, hint=f"-t {name[1]}=FILE names its file")
        if fault.message.endswith(NO_CONNECTION):
            return replace(fault, hint="keep rows in a file: COPY (SELECT ...) TO 'rows.parquet'")
        return fault

    return QueryError([hinted(fault) for fault in error.diagnostics], error.text)


def _of_stdin() -> Any:
    """Reads stdin as an Arrow table: Parquet, JSON or CSV, by its first bytes."""
    import io
    import tempfile

    import duckdb
    import pyarrow.parquet

    from hybrid.rows import duck
    from query.errors import DataError, first_line

    data = sys.stdin.buffer.read()
    if not data.strip():
        raise DataError("stdin is empty", "it may be CSV, JSON or Parquet")
    if data[:4] == b"PAR1":
        return pyarrow.parquet.read_table(io.BytesIO(data))
    reader = "read_json" if data.lstrip()[:1] in (b"{", b"[") else "read_csv"
    with tempfile.NamedTemporaryFile() as file:  # DuckDB looks at the rows twice
        file.write(data)
        file.flush()
        try:
            return duck.cursor(access=duck.ANYTHING).sql(f"SELECT * FROM {reader}('{file.name}')").to_arrow_table()
        except duckdb.Error as error:
            raise DataError(f"stdin cannot be read: {first_line(error)}", "it may be CSV, JSON or Parquet") from None

"""Arguments of commands: a query, as text or as a file, and tables."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import typer


def query_text(text: str) -> str:
    """Returns the text itself, or the content of the file that it names."""
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
    """Reads NAME=FILE options as Arrow tables."""
    import duckdb

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
        path = Path(file)
        suffix = path.suffix if path.suffix != ".gz" else Path(path.stem).suffix
        if suffix not in readers:
            raise typer.BadParameter(f"--table {item}: the file must end in {', '.join(readers)}")
        if not path.is_file():
            raise DataError(f"file {file} does not exist", f"check --table {name}={file}")
        quoted = "'" + str(path).replace("'", "''") + "'"
        try:
            given = f"SELECT * FROM {readers[suffix]}({quoted})"
            found[name] = duck.cursor(access=duck.ANYTHING).sql(given).to_arrow_table()
        except duckdb.Error as error:
            raise DataError(f"{file} cannot be read: {first_line(error)}") from None
    return found

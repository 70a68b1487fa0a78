"""Infers the columns of a new stream from a file: names, and types by DuckDB."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from archive.checks import Options
from archive.inputs import InputFile, InputFormat, opened, read_as, unreadable
from archive.layout import storable
from matching.types import arrow_type, duckdb_type
from query.errors import DataError, first_line
from query.language.duck import connect

_SAMPLE_BYTES = 4 << 20
#: Preferred names of the time column, in order, if several columns are times.
_TIME_NAMES = ("ts", "time", "timestamp", "event_time", "datetime", "date")


def guess_columns(file: InputFile, options: Options) -> dict[str, str]:
    """Returns column -> DuckDB type, from the first 4 MB of text or from the Parquet schema. Types that cannot be
    archived become VARCHAR. Raises DataError."""
    if file.format is InputFormat.parquet:
        system, inner = opened(file.path, file.store)
        try:
            columns = pq.read_schema(inner, filesystem=system)
            found = {column.name: duckdb_type(read_as(column.type)) for column in columns}
        except (pa.ArrowException, OSError) as error:
            raise unreadable(file, error) from error
    else:
        found = _sniffed(file, options)
    for name, _ in file.hive:
        if name.lower() not in {known.lower() for known in found}:
            found[name] = "VARCHAR"
    return {name: _kept(type) for name, type in found.items()}


def guess_time(columns: Mapping[str, str]) -> str:
    """Returns the name of the time column. Raises DataError if there is none or several."""
    times = [name for name, type in columns.items() if type.startswith("TIMESTAMP") or type == "DATE"]
    by_name = {name.lower(): name for name in times}
    named = [by_name[name] for name in _TIME_NAMES if name in by_name]
    if len(times) == 1 or named:
        return (named or times)[0]
    shown = ", ".join(f"{name} {type}" for name, type in columns.items())
    what = f"several columns are times: {', '.join(times)}" if times else "no column is a time"
    raise DataError(f"{what} (found {shown})", "name it with --time, and give --columns for other types")


def _kept(type: str) -> str:
    if type.startswith("TIMESTAMP_"):
        return "TIMESTAMP"
    return type if storable(arrow_type(type)) else "VARCHAR"


def _sniffed(file: InputFile, options: Options) -> dict[str, str]:
    system, inner = opened(file.path, file.store)
    try:
        with system.open_input_stream(inner, compression="detect") as stream:
            data = bytes(stream.read(_SAMPLE_BYTES))
    except (pa.ArrowException, OSError, EOFError) as error:
        raise unreadable(file, error) from error
    if len(data) == _SAMPLE_BYTES:
        data = data[: data.rfind(b"\n") + 1]
    connection = connect()
    with tempfile.TemporaryDirectory() as folder:
        # DuckDB reads its sample from a file.
        path = os.path.join(folder, "sample")
        with open(path, "wb") as sample:
            sample.write(data)
        if file.format is InputFormat.csv:
            call = "read_csv($path, header=$header, sample_size=-1, null_padding=true, ignore_errors=true"
            values = {"path": path, "header": options.header}
            if options.delimiter is not None:
                call += ", delim=$delimiter"
                values["delimiter"] = options.delimiter
        else:
            call = "read_json($path, format='newline_delimited', sample_size=-1, ignore_errors=true"
            values = {"path": path}
        try:
            rows = connection.execute(f"DESCRIBE SELECT * FROM {call})", values).fetchall()
        except duckdb.Error as error:
            message = f"the columns of {file.path} cannot be inferred: {first_line(error)}"
            raise DataError(message, 'declare them: --columns "ts TIMESTAMP, ..."') from None
        finally:
            connection.close()
    return {str(row[0]): str(row[1]) for row in rows}

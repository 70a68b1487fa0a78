"""Input files that belong to a table of a format with a log: a Delta table is read through its log, others are refused.

The files of such a directory are not its rows: what was deleted or overwritten stays in them until a vacuum."""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError
from pyarrow import fs

from archive.place import SCHEME, Place
from archive.place import Options as StoreOptions
from query.errors import DataError, first_line

#: Features of Delta tables that change nothing about their files' rows.
_PLAIN = {"timestampNtz", "v2Checkpoint", "vacuumProtocolCheck"}
#: What a directory `name=value` has for null.
_NULL = "__HIVE_DEFAULT_PARTITION__"
_REWRITE = "write the rows that it has into Parquet files elsewhere, with the engine that keeps it, and archive these"


@dataclass(frozen=True, slots=True)
class DeltaInput:
    """One version of a Delta table. partitions: the files of that version by path, with the columns and values that
    their partitions have."""

    root: str
    version: int
    partitions: Mapping[str, tuple[tuple[str, str], ...]]


def delta_inputs(
    paths: Iterable[str], opened: Callable[[str, StoreOptions], tuple[fs.FileSystem, str]], store: StoreOptions
) -> dict[str, DeltaInput]:
    """Returns the Delta table that each path belongs to, for those that belong to one, at its newest version. Raises
    DataError for tables that only their own engine can read, and for Iceberg and Hudi."""
    of_folder: dict[str, str | None] = {}
    tables: dict[str, DeltaInput] = {}
    found: dict[str, DeltaInput] = {}
    for path in paths:
        root = _root(os.path.dirname(path), of_folder, opened, store)
        if root is not None:
            if root not in tables:
                tables[root] = _read(root, store)
            found[path] = tables[root]
    return found


def _root(
    folder: str, known: dict[str, str | None], opened: Callable[[str, StoreOptions], tuple[fs.FileSystem, str]],
    store: StoreOptions,
) -> str | None:
    """Returns the folder at or above this one that has a Delta log."""
    if folder in known:
        return known[folder]
    above = os.path.dirname(folder)
    system, inner = opened(folder, store)
    names = ("_delta_log", ".hoodie", "metadata")
    delta, hudi, metadata = (
        info.type is fs.FileType.Directory for info in system.get_file_info([f"{inner}/{name}" for name in names])
    )
    if hudi:
        raise DataError(f"{folder} is a Hudi table: its files are not its rows", _REWRITE)
    if metadata and _is_iceberg(system, f"{inner}/metadata"):
        raise DataError(f"{folder} is an Iceberg table: its files are not its rows", _REWRITE)
    top = above == folder or ("://" in folder and "://" not in above)
    known[folder] = folder if delta else None if top else _root(above, known, opened, store)
    return known[folder]


def _is_iceberg(system: fs.FileSystem, folder: str) -> bool:
    return any(one.path.endswith(".metadata.json") for one in system.get_file_info(fs.FileSelector(folder)))


def _read(root: str, store: StoreOptions) -> DeltaInput:
    try:
        if root.startswith(SCHEME):
            place = Place(root, store)
            table = DeltaTable(place.delta_uri, storage_options=place.storage_options)
        else:
            table = DeltaTable(root)
        actions = pa.table(table.get_add_actions(flatten=True)).to_pylist()
        features = set(table.protocol().reader_features or ()) - _PLAIN
        mapped = table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none"
        names = table.metadata().partition_columns
    except (DeltaError, OSError, ValueError) as error:
        message = f"the Delta table {root} cannot be read: {first_line(error)}"
        raise DataError(message, "repair it, or archive files that are in no table") from error
    wanted = sorted(features | ({"columnMapping"} if mapped else set()))
    if wanted:
        message = f"the Delta table {root} uses {', '.join(wanted)}: its files cannot be read as they are"
        raise DataError(message, _REWRITE)
    partitions: dict[str, tuple[tuple[str, str], ...]] = {}
    for action in actions:
        path = str(action["path"])
        if "://" in path or path.startswith("/"):
            raise DataError(f"the Delta table {root} has files outside of its directory, as a clone has", _REWRITE)
        values = tuple((n, _NULL if (v := action[f"partition.{n}"]) is None else str(v)) for n in names)
        # the log has the path as a part of a URL; writers differ in what they escape of it
        partitions |= dict.fromkeys((f"{root}/{path}", f"{root}/{urllib.parse.unquote(path)}"), values)
    return DeltaInput(root, table.version(), partitions)


def messages_of(tables: Iterable[DeltaInput]) -> tuple[str, ...]:
    """Returns what to report about tables that were read."""
    return tuple(f"read the Delta table {t.root} at version {t.version}" for t in tables)


def left_since(tables: Iterable[DeltaInput], archived: Sequence[str]) -> list[tuple[DeltaInput, int]]:
    """Returns the tables of which archived files are no longer part, and how many. archived: paths of all archived
    files."""
    found = []
    for table in tables:
        gone = sum(path.startswith(f"{table.root}/") and path not in table.partitions for path in archived)
        if gone:
            found.append((table, gone))
    return found

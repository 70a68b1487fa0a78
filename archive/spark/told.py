"""Serializes results of tasks for the driver: JSON, and Arrow for matches. They cannot contain code.

Tasks are pickled, because they are the driver's own code. Their results come from other machines and are not.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa

from archive.ingest import Count
from archive.inputs import Chunk
from archive.layout import DataFile
from matching.batch import Matches
from matching.state import pack, read_table, saved_table, unpack
from query.errors import DataError, Diagnostic, QueryError, Span


@dataclass(frozen=True, slots=True)
class Loaded:
    """Result of a task that read files. counts: by file. days: days of its good rows, since 1970. quarantined: files of
    bad rows."""

    counts: dict[int, Count]
    days: tuple[int, ...]
    quarantined: tuple[DataFile, ...] = ()


@dataclass(frozen=True, slots=True)
class FailedTask:
    """Error of a task. It is returned, because Spark would retry the task and wrap the error if it were raised."""

    error: DataError


_TYPES: dict[str, type[Any]] = {t.__name__: t for t in (Chunk, Count, DataFile, Loaded, FailedTask, Diagnostic, Span)}


def say(what: Any) -> bytes:
    """Serializes None, booleans, numbers, texts, bytes, lists, tuples and dicts of these, our errors, and the
    dataclasses in _TYPES."""
    return json.dumps(_put(what)).encode()


def hear(data: Any) -> Any:
    """Deserializes the bytes of `say`. Raises DataError for other bytes."""
    try:
        return _get(json.loads(bytes(data)))
    except (KeyError, TypeError, ValueError) as error:
        raise _strange(error) from None


def _strange(error: Exception) -> DataError:
    return DataError(f"a Spark task returned an unreadable result: {error}", "see its log")


def _put(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.integer():
            return int(value)
        case bytes():
            return {"bytes": value.hex()}
        case list():
            return [_put(v) for v in value]
        case tuple():
            return {"tuple": [_put(v) for v in value]}
        case dict():
            return {"dict": [[_put(k), _put(v)] for k, v in value.items()]}
        case DataError():
            return {"DataError": [value.message, value.hint]}
        case QueryError():
            return {"QueryError": [_put(list(value.diagnostics)), value.text]}
        case _ if type(value).__name__ in _TYPES:
            return {type(value).__name__: {field.name: _put(getattr(value, field.name)) for field in fields(value)}}
        case _:
            raise TypeError(f"{type(value).__name__} cannot be serialized")


def _get(said: Any) -> Any:
    if isinstance(said, list):
        return [_get(v) for v in said]
    if not isinstance(said, dict):
        return said
    ((kind, of),) = said.items()
    match kind:
        case "bytes":
            return bytes.fromhex(of)
        case "tuple":
            return tuple(map(_get, of))
        case "dict":
            return {_get(k): _get(v) for k, v in of}
        case "DataError":
            message, hint = of
            return DataError(str(message), str(hint))
        case "QueryError":
            found, text = of
            return QueryError(_get(found), str(text))
        case _:
            return _TYPES[kind](**{name: _get(v) for name, v in of.items()})


_TEXTS = ("variables", "sources")


def say_matches(found: Matches) -> bytes:
    """Serializes matches with their rows and events."""
    arrays = {f.name: getattr(found, f.name) for f in fields(found) if f.name not in ("rows", *_TEXTS)}
    head = {name: list(getattr(found, name)) for name in _TEXTS}
    given = {name: array for name, array in arrays.items() if array is not None}
    return pack(head, {"rows": saved_table(found.rows), **given})


def hear_matches(data: Any) -> Matches:
    """Deserializes the bytes of `say_matches`. Raises DataError for other bytes."""
    head, arrays = unpack(data)
    try:
        rows = read_table(arrays.pop("rows"))
        texts: dict[str, Any] = {name: tuple(map(str, head[name])) for name in _TEXTS}
        given: dict[str, Any] = {**arrays, **texts}
        return Matches(rows=rows, **given)
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise _strange(error) from None

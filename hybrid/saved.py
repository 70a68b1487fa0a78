"""What a query has become as bytes and back: plain values, arrays, tables, and a few dataclasses of them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa

from hybrid.answer import Answer, Side
from hybrid.evidence import Evidence, Parts
from matching.batch import EventBatch, Matches
from matching.state import pack, read_table, saved_table, unpack
from query.errors import DataError

_TYPES: dict[str, type[Any]] = {type.__name__: type for type in (Answer, Side, Evidence, EventBatch, Matches)}


def save(value: Any) -> bytes:
    """None, booleans, numbers, texts, bytes, numpy arrays, tables, record batches, lists, tuples and dicts (with texts
    as keys) of these; Answer, Side, Evidence, EventBatch and Matches."""
    arrays: dict[str, np.ndarray] = {}
    return pack({"value": _put(value, arrays)}, arrays)


def load(data: bytes) -> Any:
    """What was saved. Raises DataError for other bytes."""
    head, arrays = unpack(data)
    try:
        return _get(head["value"], arrays)
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise DataError(f"this is no saved state: {error}", "start the query anew") from error


def _put(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    def array(kind: str, content: np.ndarray) -> dict[str, str]:
        name = str(len(arrays))
        arrays[name] = content
        return {kind: name}

    match value:
        case None | bool() | int() | float() | str():
            return value
        case np.integer():
            return int(value)
        case bytes():
            return array("bytes", np.frombuffer(value, np.uint8))
        case np.ndarray():
            return array("array", value)
        case pa.Table():
            return array("table", saved_table(value))
        case pa.RecordBatch():
            return array("batch", saved_table(pa.Table.from_batches([value])))
        case list():
            return [_put(v, arrays) for v in value]
        case tuple():
            return {"tuple": [_put(v, arrays) for v in value]}
        case dict():
            return {"dict": {k: _put(v, arrays) for k, v in value.items()}}
        case Parts():
            return _put(value.whole(), arrays)
        case Answer() | Side() | Evidence() | EventBatch() | Matches():
            of = {field.name: _put(getattr(value, field.name), arrays) for field in fields(value)}
            return {type(value).__name__: of}
        case _:
            raise TypeError(f"{type(value).__name__} cannot be saved")


def _get(saved: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(saved, list):
        return [_get(v, arrays) for v in saved]
    if not isinstance(saved, dict):
        return saved
    ((kind, of),) = saved.items()
    match kind:
        case "bytes":
            return arrays[of].tobytes()
        case "array":
            return arrays[of]
        case "table":
            return read_table(arrays[of])
        case "batch":
            table = read_table(arrays[of])
            return pa.RecordBatch.from_arrays([c.combine_chunks() for c in table.columns], schema=table.schema)
        case "tuple":
            return tuple(_get(v, arrays) for v in of)
        case "dict":
            return {k: _get(v, arrays) for k, v in of.items()}
        case _:
            return _TYPES[kind](**{name: _get(v, arrays) for name, v in of.items()})

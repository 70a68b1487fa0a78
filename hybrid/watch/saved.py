"""Serialisation of a query's state: plain values, arrays, tables, and a few dataclasses of them.

Each class and field is written as a tag. To rename a class or a field, change its name here and keep the tag. A field
that older states lack has a default in its class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from hybrid.rows.answer import Answer, Side
from hybrid.rows.evidence import Evidence, Parts
from matching.batch import Ends, EventBatch, Matches
from matching.state import pack, read_table, saved_table, unpack, unpack_head
from query.errors import DataError

#: By tag the class, and by field its tag.
KINDS: Mapping[str, tuple[type[Any], Mapping[str, str]]] = {
    "Answer": (Answer, {"live": "live", "events": "events", "match": "match", "sides": "sides"}),
    "Side": (Side, {"rows": "rows", "evidence": "evidence", "match": "match", "complete": "complete"}),
    "Evidence": (Evidence, {
        "bounds": "bounds", "variable": "variable", "ts_us": "ts_us", "source": "source", "offset": "offset",
        "seq": "seq", "variables": "variables", "sources": "sources", "lanes": "lanes",
    }),
    "EventBatch": (EventBatch, {
        "columns": "columns", "ts_us": "ts_us", "source": "source", "offset": "offset", "seq": "seq",
        "sources": "sources",
    }),
    "Matches": (Matches, {
        "rows": "rows", "row_match": "row_match", "number": "number", "first_us": "first_us", "last_us": "last_us",
        "event_bounds": "event_bounds", "event_variable": "event_variable", "event_ts_us": "event_ts_us",
        "event_source": "event_source", "event_offset": "event_offset", "event_seq": "event_seq",
        "variables": "variables", "sources": "sources", "outcome": "outcome", "ends": "ends", "ids": "ids",
        "decided_seq": "decided_seq",
    }),
    "Ends": (Ends, {"first_seq": "first_seq", "last_seq": "last_seq", "low_us": "low_us", "high_us": "high_us"}),
}  # fmt: skip
_TAGS = {kind: tag for tag, (kind, _) in KINDS.items()}


def save(value: Any) -> bytes:
    """Returns the bytes of None, booleans, numbers, texts, bytes, numpy arrays, tables, record batches, lists, tuples
    and dicts (keyed by text) of these; and of Answer, Side, Evidence, EventBatch, Matches and Ends."""
    plain, arrays = taken_apart(value)
    return pack({"value": plain}, arrays)


def saved_version(data: bytes) -> Any:
    """Returns the value of `version` in a saved dict, without decoding the rest. Raises DataError for other bytes."""
    try:
        return unpack_head(data)["value"]["dict"]["version"]
    except (KeyError, TypeError) as error:
        raise DataError(f"the saved state is invalid: {error}", "start the query again") from error


def load(data: bytes) -> Any:
    """Returns a saved value. Raises DataError for other bytes."""
    head, arrays = unpack(data)
    try:
        return _get(head["value"], arrays)
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise DataError(f"the saved state is invalid: {error}", "start the query again") from error


def taken_apart(value: Any) -> tuple[Any, dict[str, np.ndarray]]:
    """Returns plain values, and arrays by name, from which `put_together` restores the value. Copies no array."""
    arrays: dict[str, np.ndarray] = {}
    return _put(value, arrays), arrays


def put_together(plain: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    """Returns the value from the result of `taken_apart`. It shares the memory of the arrays."""
    return _get(plain, arrays)


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
        case Answer() | Side() | Evidence() | EventBatch() | Matches() | Ends():
            tag = _TAGS[type(value)]
            return {tag: {t: _put(getattr(value, name), arrays) for name, t in KINDS[tag][1].items()}}
        case _:
            raise TypeError(f"{type(value).__name__} cannot be saved")


def _get(saved: Any, arrays: Mapping[str, np.ndarray]) -> Any:
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
            made, tags = KINDS[kind]
            return made(**{name: _get(of[tag], arrays) for name, tag in tags.items() if tag in of})

"""The state of a matcher as bytes: one Arrow IPC stream of a single row, each array a cell of bytes.

numpy's own container is a zip archive, which takes several times as long for the many small arrays of a matcher.
Compressed, since arrays by partition are mostly zeros: 14 MB of 65,000 visitors are 0.3 MB, in less time than it takes
to copy them, and a state is copied several times on its way to a file. Small ones are not: each array would take 10
microseconds.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa

from matching.ipc import from_ipc, to_ipc
from query.errors import DataError, Span, first_line

_HEAD, _TYPE, _SHAPE = b"head", b"dtype", b"shape"
_CELL = pa.large_binary()
#: Bytes of arrays from which on a state is compressed.
COMPRESSED_MIN = 1 << 14


def pack(head: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> bytes:
    """Returns the bytes of a state. head: for JSON. arrays: of any shape and of plain types."""
    fields, cells = [], []
    for name, array in arrays.items():
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        bounds = np.array([0, len(content)], np.int64)
        cells.append(pa.Array.from_buffers(_CELL, 1, [None, pa.py_buffer(bounds), pa.py_buffer(content)]))
        fields.append(pa.field(name, _CELL, metadata={_TYPE: array.dtype.str, _SHAPE: _text_of(array.shape)}))
    schema = pa.schema(fields, {_HEAD: json.dumps(head)})
    size = sum(array.nbytes for array in arrays.values())
    return to_ipc(pa.RecordBatch.from_arrays(cells, schema=schema), "lz4" if size >= COMPRESSED_MIN else None)


@lru_cache(1024)
def _text_of(shape: tuple[int, ...]) -> str:
    return json.dumps(shape)


@lru_cache(1024)
def _shape_of(text: bytes) -> tuple[int, ...]:
    return tuple(json.loads(text))


def unpack_head(state: bytes) -> dict[str, Any]:
    """Returns the head of a state. Raises DataError for other bytes."""
    try:
        head: dict[str, Any] = json.loads(pa.ipc.open_stream(state).schema.metadata[_HEAD])
    except (pa.ArrowException, OSError, EOFError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"the state of a matcher is invalid: {first_line(error)}", "start the query again") from error
    return head


def unpack(state: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Returns the head and the arrays of a state; the arrays may be written to. Raises DataError for other bytes."""
    try:
        batch = pa.ipc.open_stream(state).read_next_batch()
        head = json.loads(batch.schema.metadata[_HEAD])
        arrays = {}
        for field, cell in zip(batch.schema, batch.columns):
            content = np.frombuffer(cell.buffers()[2] or b"", field.metadata[_TYPE].decode())
            arrays[field.name] = content.reshape(_shape_of(field.metadata[_SHAPE])).copy()
    except (pa.ArrowException, OSError, EOFError, StopIteration, KeyError, TypeError, ValueError) as error:
        raise DataError(f"the state of a matcher is invalid: {first_line(error)}", "start the query again") from error
    return head, arrays


def stamp(*parts: object) -> str:
    """Returns 16 hex digits for the meaning of numbers in a state: a hash of the values of the parts, in their order,
    without names of classes and fields and without positions in a text."""
    digest = hashlib.blake2b(digest_size=8, person=b"hybrid state")
    _stamp(parts, digest)
    return digest.hexdigest()


def _stamp(value: Any, digest: hashlib.blake2b) -> None:
    if isinstance(value, Span):
        return
    if is_dataclass(value):
        _stamp([getattr(value, field.name) for field in fields(value)], digest)
    elif isinstance(value, Mapping):
        _stamp([*value.items()], digest)
    elif isinstance(value, frozenset | set):
        _stamp(sorted(value, key=repr), digest)
    elif isinstance(value, list | tuple):
        digest.update(b"(")
        for part in value:
            _stamp(part, digest)
        digest.update(b")")
    elif isinstance(value, np.ndarray):
        _stamp(value.tolist(), digest)
    else:
        text = repr(value.value if isinstance(value, Enum) else value).encode()
        digest.update(b"%d:%s" % (len(text), text))


def as_array(content: bytes) -> np.ndarray:
    """Returns bytes as an array that can be packed."""
    return np.frombuffer(content, np.uint8)


def saved_table(table: pa.Table) -> np.ndarray:
    """A table as an array that can be packed."""
    return as_array(to_ipc(table))


def read_table(saved: np.ndarray) -> pa.Table:
    return from_ipc(pa.py_buffer(saved))


def saved_array(values: pa.Array) -> np.ndarray:
    """An Arrow array as one that can be packed."""
    return saved_table(pa.table({"v": values}))


def read_array(saved: np.ndarray) -> pa.Array:
    return read_table(saved).column("v").combine_chunks()

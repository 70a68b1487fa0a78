"""Tables as bytes and back: one Arrow IPC stream."""

from __future__ import annotations

from typing import Literal

import pyarrow as pa


def to_ipc(rows: pa.Table | pa.RecordBatch, compression: Literal["lz4"] | None = None) -> bytes:
    """Returns a table as an Arrow IPC stream, with every type and the metadata of the schema. Compressed streams are
    read like others."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write(rows)
    return sink.getvalue().to_pybytes()


def from_ipc(data: bytes | pa.Buffer) -> pa.Table:
    """Returns the table of a stream; its columns refer to the bytes. Raises pa.ArrowException or OSError for others."""
    return pa.ipc.open_stream(data).read_all()

"""Tables as bytes and back: one Arrow IPC stream."""

from __future__ import annotations

import pyarrow as pa


def to_ipc(rows: pa.Table | pa.RecordBatch) -> bytes:
    """Every type, the metadata of the schema too."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write(rows)
    return sink.getvalue().to_pybytes()


def from_ipc(data: bytes | pa.Buffer) -> pa.Table:
    """What was written; its columns lie in the bytes. Raises pa.ArrowException or OSError for others."""
    return pa.ipc.open_stream(data).read_all()

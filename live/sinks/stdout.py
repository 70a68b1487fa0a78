"""Prints rows to stdout, for people or for the next program of a pipe."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from typing import TextIO

import pyarrow as pa

from live.sinks.base import trouble
from live.sinks.json_lines import check_json, json_lines


class StdoutSink:
    """Prints rows, at least once: stdout does not confirm reads. A write that failed half-way continues where it
    stopped when it is repeated, so that no line is torn.

    text: formats a table (hybrid.rows.result.text_table for people); None: one JSON line per row. out: the stream;
    None: sys.stdout at the time of writing.
    """

    __slots__ = ("_out", "_part", "_text")

    def __init__(self, text: Callable[[pa.Table], str] | None = None, out: TextIO | None = None) -> None:
        self._text = text
        self._out = out
        self._part = b"", 0  # the text being printed, and the number of its bytes that were printed

    def check(self, schema: pa.Schema) -> None:
        if self._text is None:
            check_json(schema)

    def open(self, cursor: str | None) -> None: ...

    def write(self, rows: pa.Table) -> None:
        text = self._text(rows) if self._text is not None else "\n".join(json_lines(rows))
        out = self._out or sys.stdout
        if not rows.num_rows:
            return
        try:
            try:
                file = out.fileno()
            except io.UnsupportedOperation:
                out.write(text + "\n")  # to memory
                return
            out.flush()
            self._print(file, (text + "\n").encode())
        except OSError as error:
            raise trouble("rows cannot be printed", error, "has the reading program of the pipe ended?") from error

    def _print(self, file: int, data: bytes) -> None:
        """Writes to the descriptor, not to the buffer of `out`, which does not report how much of a failed write it
        took."""
        done = self._part[1] if self._part[0] == data else 0
        while done < len(data):
            self._part = data, done
            done += os.write(file, data[done:])
        self._part = b"", 0

    def cursor(self) -> str | None:
        return None

    def close(self) -> None: ...

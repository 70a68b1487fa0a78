"""Rows on stdout, for people or for the next program of a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TextIO

import pyarrow as pa

from live.sinks.base import trouble
from live.sinks.json_lines import check_json, json_lines


class StdoutSink:
    """Prints rows, at least once: nobody can tell what was read of a stdout.

    text: how a table is written (hybrid.result.text_table for people); None: a line of JSON for each row. out: where,
    if not to the stdout of the time of writing.
    """

    __slots__ = ("_out", "_text")

    def __init__(self, text: Callable[[pa.Table], str] | None = None, out: TextIO | None = None) -> None:
        self._text = text
        self._out = out

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
            out.write(text + "\n")
            out.flush()
        except OSError as error:
            raise trouble("rows cannot be printed", error, "is the program behind the pipe gone?") from error

    def cursor(self) -> str | None:
        return None

    def close(self) -> None: ...

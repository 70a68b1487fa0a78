from __future__ import annotations

import io
import json
import os
import sys

import pyarrow as pa
import pytest

from hybrid.rows.result import text_table
from live.sinks.callback import CallbackSink
from live.sinks.stdout import StdoutSink
from query.errors import DataError
from tests.live.sinks.rows import matches


def test_a_function_gets_the_tables_and_again_those_it_has_failed_on() -> None:
    got: list[pa.Table] = []

    def take(rows: pa.Table) -> None:
        if not got:
            got.append(rows)
            raise KeyError("door")

    sink = CallbackSink(take)
    sink.check(matches(0, 1).schema)
    sink.open(None)
    said = r"callback .*take failed: KeyError: 'door'\nhint: it is called again with the same rows"
    with pytest.raises(DataError, match=said):
        sink.write(matches(0, 2))
    sink.write(matches(0, 2))
    assert sink.cursor() is None
    assert [t.num_rows for t in got] == [2]


def test_stdout_has_lines_of_json_or_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    sink = StdoutSink()
    sink.check(matches(0, 1).schema)
    sink.open(None)
    sink.write(matches(0, 1))
    sink.write(matches(0, 0))
    sink.close()
    assert capsys.readouterr().out == '{"symbol":"S0","n":0,"match_id":"0000000000000000","join_id":null}\n'
    StdoutSink(text_table).write(matches(0, 1).select(["symbol", "n"]))
    assert capsys.readouterr().out == "symbol  n\n------  -\nS0      0\n1 row\n"


def test_a_pipe_that_is_gone_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(sys, "stdout", Gone())
    with pytest.raises(OSError, match=r"rows cannot be printed: .*Broken pipe\nhint: "):
        StdoutSink().write(matches(0, 1))


@pytest.mark.slow
def test_a_pipe_that_is_full_gets_each_line_once() -> None:
    """What was written of a table that did not fit is not written again."""
    # Before: each try began with the first row, behind a torn one; a table larger than the pipe never got through.
    read, write = os.pipe()
    os.set_blocking(write, False)
    found = b""
    with os.fdopen(write, "w") as out, os.fdopen(read, "rb") as reader:
        sink = StdoutSink(out=out)
        failures = 0
        for first in (0, 4000):
            for _ in range(100):
                try:
                    sink.write(matches(first, 4000))
                    break
                except OSError:
                    failures += 1
                    found += os.read(reader.fileno(), 30_000)
        out.flush()
        os.set_blocking(read, False)
        while data := reader.read(1 << 16):
            found += data
    assert failures
    assert [json.loads(line)["n"] for line in found.splitlines()] == list(range(8000))

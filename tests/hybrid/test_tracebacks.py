"""The traceback of an error about a query or data has the lines of the user alone."""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import hybrid

WRONG = "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY i MEASURES A.prise AS p PATTERN (A))"
ROWS = [{"i": 1, "price": 2}]


def sql() -> None:
    hybrid.sql(WRONG, t=ROWS)


def connect() -> None:
    hybrid.connect(memory_limit="little")


def push() -> None:
    with hybrid.connect() as db:
        db.push("nothing", ROWS)


def watch() -> None:
    with hybrid.connect() as db:
        db.create_stream("t", {"i": "TIMESTAMP"}, time="i")
        db.watch(WRONG)


def evidence() -> None:
    hybrid.sql(WRONG.replace("prise", "price"), t=ROWS).tree(7)


def frames(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


@pytest.mark.parametrize("call", [sql, connect, push, watch, evidence])
def test_lines_of_the_user(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(hybrid.Error) as raised:
        call()
    assert frames(raised.value) == ["test_lines_of_the_user", call.__name__]
    assert raised.value.__context__ is None
    monkeypatch.setenv("HYBRID_TRACEBACK", "full")
    with pytest.raises(hybrid.Error) as raised:
        call()
    assert len(frames(raised.value)) > 3


def test_what_the_user_was_handling_is_kept() -> None:
    def handling() -> None:
        try:
            raise KeyError("a")
        except KeyError:
            sql()

    with pytest.raises(hybrid.QueryError) as raised:
        handling()
    assert isinstance(raised.value.__context__, KeyError)
    assert not raised.value.__suppress_context__


def test_as_python_prints_it(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(f"import hybrid\nt = {ROWS}\nhybrid.sql({WRONG!r}, t=t)\n")
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    lines = done.stderr.splitlines()
    assert lines[1].startswith(f'  File "{script}", line 3')
    assert [line for line in lines if line.startswith("  File")] == lines[1:2]
    assert "hybrid.QueryError: error[HQ201]: t has no column prise" in lines
    assert len(lines) < 10

"""The first quarter of an hour, typed as its document says, prints what stands there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.documents import ROOT, blocks

PAGE = "docs/first_quarter.md"


def typed(text: str, home: Path) -> str:
    """Returns what lines of the shell print, on both streams, in a directory of their own."""
    tools = home.parent / "tools"
    tools.mkdir(exist_ok=True)
    for name, module in (("hybrid", "-m hybrid"), ("python", "")):  # as an activated environment has them
        (tools / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        (tools / name).chmod(0o755)
    surroundings = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    ran = subprocess.run(
        ["bash", "-c", text], cwd=home, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    return ran.stdout


@pytest.mark.slow
def test_every_step_prints_what_stands_behind_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    steps = [block for block in blocks("sh") if block.path == PAGE]
    found = {str(block): typed(block.text, home) for block in steps}
    assert len(steps) == 9
    assert found == {str(block): block.output for block in steps}
    assert (home / "demo-output" / "stock.png").stat().st_size > 10_000
    assert (home / "left.png").stat().st_size > 10_000


def test_the_demo_of_make_is_the_first_step() -> None:
    (first,) = (b.text for b in blocks("sh") if b.path == PAGE and "demo" in b.text)
    command = first.partition(" 2>")[0]
    assert f"\t$(BIN)/{command} </dev/null\n" in (ROOT / "Makefile").read_text(encoding="utf-8")

"""docs/test_your_pattern.md: its files are a folder of tests that pass, and that fail where a pattern is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.documents import ROOT, blocks, files

PAGE = "docs/test_your_pattern.md"


def folder(home: Path) -> Path:
    """Writes the files of the page."""
    for name, text in files(PAGE).items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text, encoding="utf-8")
    return home


def outcomes_of(home: Path) -> list[str]:
    """Returns the outcome of each test of a folder, such as `PASSED test_live.py::test_it`."""
    command = [sys.executable, "-m", "pytest", "-q", "-rA", "--tb=no", "-p", "no:cacheprovider", "--rootdir", str(home)]
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(command, cwd=home, env=surroundings, capture_output=True, text=True)
    assert ran.stdout, ran.stderr
    return [line for line in ran.stdout.splitlines() if line.startswith(("PASSED", "FAILED", "ERROR"))]


def typed(text: str, home: Path) -> str:
    """Returns what lines of the shell print, on both streams, with `hybrid` as a command."""
    tools = home.parent / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "hybrid").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m hybrid "$@"\n')
    (tools / "hybrid").chmod(0o755)
    surroundings = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    return subprocess.run(
        ["bash", "-c", text], cwd=home, env=surroundings, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ).stdout


@pytest.mark.slow
def test_the_tests_of_the_page_pass(tmp_path: Path) -> None:
    outcomes = outcomes_of(folder(tmp_path))
    assert len(outcomes) >= 12
    assert [line for line in outcomes if not line.startswith("PASSED")] == []
    of_files = {line.split()[1].partition("::")[0] for line in outcomes}
    assert of_files == {name for name in files(PAGE) if name.startswith("test_")}


@pytest.mark.slow
@pytest.mark.nightly
def test_they_fail_for_another_pattern(tmp_path: Path) -> None:
    query = folder(tmp_path) / "queries" / "left.sql"
    query.write_text(query.read_text().replace("1 HOUR", "5 HOUR"))
    failed = {line.split()[1].partition("::")[0] for line in outcomes_of(tmp_path) if line.startswith("FAILED")}
    assert failed == {"test_rows.py", "test_live.py", "test_property.py", "test_golden.py", "test_change.py"}


@pytest.mark.slow
def test_a_folder_is_checked_with_its_exit_code(tmp_path: Path) -> None:
    (home := tmp_path / "home").mkdir()
    (step,) = (block for block in blocks("sh") if block.path == PAGE)
    query = folder(home) / "queries" / "left.sql"
    coded = "(" + step.text + "); echo code $?"
    assert typed(coded, home) == f"{step.output}code 0\n"
    query.write_text(query.read_text().replace("page = 'cart'", "pages = 'cart'"))
    assert typed(coded, home).endswith("hint: did you mean page?\ncode 1\n")
    assert typed("hybrid check none.sql; echo code $?", home).endswith("code 2\n")

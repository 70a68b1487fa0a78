"""docs/run.md: the example runs and prints what stands behind it; its tables name the keys that there are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hybrid.service import app_file, app_tables
from tests.docs.documents import ROOT, blocks

TEXT = (ROOT / "docs" / "run.md").read_text(encoding="utf-8")
EXAMPLE = next(b for b in blocks("toml") if b.path == "docs/run.md")


@pytest.mark.slow
def test_the_example_prints_what_stands_behind_it(tmp_path: Path) -> None:
    (tmp_path / "app.toml").write_text(EXAMPLE.text)
    done = subprocess.run(
        [sys.executable, "-m", "hybrid", "run", "app.toml"], cwd=tmp_path, text=True, capture_output=True, timeout=120,
        env=os.environ | {"PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == EXAMPLE.output


def test_the_fault_is_what_it_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("app.toml").write_text(EXAMPLE.text.replace("D AS price <", "D AS prise <"))
    with pytest.raises(app_file.AppError) as caught:
        app_file.load("app.toml")
    assert f"```\n{caught.value.render()}\n```" in TEXT


def _keys(heading: str) -> dict[str, set[str]]:
    """What a table of the page names, by the words in its first column."""
    table = TEXT[TEXT.index(f"| {heading} |") :].partition("\n\n")[0]
    found = {}
    for line in table.splitlines()[2:]:
        first, rest = line.strip("| ").split(" | ", 1)
        for name in re.findall(r"`\[?([\w.]+)\]?`", first):
            found[name] = set(re.findall(r"`([a-z_]+)`", rest))
    return found


def test_every_key_is_in_the_page() -> None:
    assert _keys("source") == {n: set(t.model_fields) - {"type", "stream"} for n, t in app_tables.SOURCES.items()}
    assert _keys("sink") == {n: set(t.model_fields) - {"type"} for n, t in app_tables.SINKS.items()}
    tables = _keys("table")
    for name, table in (
        ("database", app_tables.DatabaseTable), ("streams.NAME", app_tables.StreamTable),
        ("queries.NAME", app_tables.QueryTable),
        ("limits", app_tables.LimitsTable), ("metrics", app_tables.MetricsTable),
    ):  # fmt: skip
        assert set(table.model_fields) <= tables[name]
    assert {name.partition(".")[0] for name in tables} == set(app_file.SECTIONS)

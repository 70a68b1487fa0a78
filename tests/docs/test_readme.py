"""README shows the query of the stock demo with its real output, on two screens: lists, then live and history."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from hybrid.demo import stock, valley
from hybrid.rows.result import text_table
from tests.docs.documents import ROOT, blocks

SHOWN_ROWS = 5


def test_query_is_the_demo() -> None:
    shown = [b.text for b in blocks("sql") if b.path == "README.md"]
    assert shown == [stock.QUERY]


def test_ten_lines_are_the_demo(tmp_path: Path) -> None:
    (shown,) = (b for b in blocks("python") if b.path == "README.md")
    assert dedent(shown.text.split('"""')[1]).strip() == valley.QUERY.strip()
    found = valley.run()
    assert f"{found!r}\n" == shown.output
    found.plot(path=tmp_path / "valley.svg")
    assert (tmp_path / "valley.svg").read_bytes() == (ROOT / "docs" / "valley.svg").read_bytes()


@pytest.mark.slow
def test_output_is_what_the_demo_finds() -> None:
    (block,) = (b for b in blocks("sql") if b.path == "README.md")
    with stock.market() as db:
        rows = stock.run(db).rows
    assert block.output == text_table(rows, SHOWN_ROWS) + "\n"


def test_two_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 100

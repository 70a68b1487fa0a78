"""README shows the query of the stock demo with its real output, on two screens: pandas, then live and history."""

from __future__ import annotations

import pytest

from hybrid.demo import stock
from hybrid.rows.result import text_table
from tests.docs.documents import ROOT, blocks

SHOWN_ROWS = 5


def test_query_is_the_demo() -> None:
    shown = [b.text for b in blocks("sql") if b.path == "README.md"]
    assert shown == [stock.QUERY]


@pytest.mark.slow
def test_output_is_what_the_demo_finds() -> None:
    (block,) = (b for b in blocks("sql") if b.path == "README.md")
    with stock.market() as db:
        rows = stock.run(db).rows
    assert block.output == text_table(rows, SHOWN_ROWS) + "\n"


def test_two_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 100

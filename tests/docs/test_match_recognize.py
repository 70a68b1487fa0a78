"""The guides: every query of them, asked of the tables at their head, prints what stands behind it."""

from __future__ import annotations

import re
import warnings
from typing import Any

import pandas as pd
import pytest

import hybrid
from query.errors import HybridWarning
from tests.docs.documents import ROOT, Block, blocks

GUIDES = ("docs/match_recognize.md", "docs/sase.md", "docs/tutorial.md", "docs/nothing_matched.md", "docs/recipes.md")
NOTHING = "docs/nothing_matched.md"
QUERIES = [b for b in blocks("sql") if b.path in GUIDES]


def tables(path: str) -> dict[str, Any]:
    """The tables that the first Python of a guide makes."""
    first = next(b for b in blocks("python") if b.path == path)
    names: dict[str, Any] = {}
    exec(first.text, names)
    return {name: data for name, data in names.items() if _is_table(data)}


def _is_table(data: object) -> bool:
    return isinstance(data, pd.DataFrame) or (isinstance(data, list) and isinstance(data[0], dict))


@pytest.mark.slow
@pytest.mark.parametrize("block", QUERIES, ids=str)
def test_a_query_of_a_guide_prints_what_stands_behind_it(block: Block) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        found = hybrid.sql(block.text, **tables(block.path))
    assert f"{found!r}\n" == block.output


def test_the_guides_have_queries() -> None:
    assert len([b for b in QUERIES if b.path == GUIDES[0]]) > 10
    assert len([b for b in QUERIES if b.path == GUIDES[1]]) >= 4
    assert len([b for b in QUERIES if b.path == GUIDES[2]]) >= 5


def test_each_reason_shows_a_query_without_rows_and_then_one_that_is_mended() -> None:
    reasons = (ROOT / NOTHING).read_text(encoding="utf-8").partition("\n## Reasons on a stream")[0].split("\n### ")[1:]
    rows = [re.findall(r"^(\d+) rows?(?:\. .*)?\n```$", reason, re.MULTILINE) for reason in reasons]
    assert len(rows) >= 8
    assert [(found[0], found[-1] != "0") for found in rows] == [("0", True)] * len(rows)

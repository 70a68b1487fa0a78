"""The guide: every SQL of it, asked of the table at its head, prints what stands behind it."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

import hybrid
from query.errors import HybridWarning
from tests.docs.documents import Block, blocks

GUIDE = "docs/match_recognize.md"
QUERIES = [b for b in blocks("sql") if b.path == GUIDE]


def table() -> list[dict[str, Any]]:
    """The ticks that the first Python of the guide makes."""
    first = next(b for b in blocks("python") if b.path == GUIDE)
    names: dict[str, Any] = {}
    exec(first.text, names)
    ticks: list[dict[str, Any]] = names["ticks"]
    return ticks


@pytest.mark.parametrize("block", QUERIES, ids=str)
def test_a_query_of_the_guide_prints_what_stands_behind_it(block: Block) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        found = hybrid.sql(block.text, ticks=table())
    assert f"{found!r}\n" == block.output


def test_the_guide_has_queries() -> None:
    assert len(QUERIES) > 10

"""Strategies as tables of frontiers."""

from __future__ import annotations

import pytest

from hybrid.strategies.base import AskArchive, Frontier, Wait
from hybrid.strategies.llaa import LLAA


@pytest.mark.parametrize(
    ("frontier", "decision"),
    [
        (Frontier(10, 20, False, None, False), Wait()),
        (Frontier(10, 20, False, 15, False), Wait()),
        (Frontier(10, 20, False, 20, False), Wait()),  # an event at 20 may still come
        (Frontier(10, 20, False, 21, False), AskArchive(10, 20, True)),
        (Frontier(10, 20, False, None, True), AskArchive(10, 20, True)),
        (Frontier(10, 20, True, 15, False), AskArchive(10, 20, False)),
        (Frontier(10, 20, True, 21, False), AskArchive(10, 20, True)),
        (Frontier(10, 9, False, None, False), AskArchive(10, 9, True)),  # an empty range
    ],
)
def test_llaa(frontier: Frontier, decision: object) -> None:
    assert LLAA().decide(frontier) == decision

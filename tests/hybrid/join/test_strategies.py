"""Strategies as tables of frontiers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hybrid.join.strategies.auto import Auto
from hybrid.join.strategies.base import AskArchive, Costs, Detect, Frontier
from hybrid.join.strategies.llaa import LLAA
from hybrid.join.strategies.ollaa import OLLAA
from hybrid.join.strategies.sllaa import SLLAA


def frontier(ends: list[int], waiting: tuple[int, ...] = (), watermark: int | None = None, ended: bool = False,
             length: int = 0) -> Frontier:  # fmt: skip
    """Matches that end at these times, `length` behind their first event; those in `waiting` are not ready."""
    last = np.array(ends, np.int64)
    ready = np.ones(len(ends), bool)
    ready[list(waiting)] = False
    return Frontier(last - length, last, last - 100, last - 1, ready, watermark, ended)


def requests(strategy: LLAA | SLLAA, seen: Frontier) -> list[list[int]]:
    return [decision.rows.tolist() for decision in strategy.decide(seen)]


def test_llaa_asks_for_one_match_at_a_time_once_it_is_ready() -> None:
    assert requests(LLAA(), frontier([10, 20, 20, 90], waiting=(2,))) == [[0], [1], [3]]
    assert requests(LLAA(), frontier([], ended=True)) == []


def test_without_a_tolerance_those_that_are_ready_ask_together_and_nobody_waits() -> None:
    assert requests(SLLAA(), frontier([10, 20, 5000], waiting=(1,))) == [[0, 2]]
    assert requests(SLLAA(), frontier([10], waiting=(0,))) == []


@pytest.mark.parametrize(
    ("ends", "tolerance", "watermark", "ended", "asked"),
    [
        ([10, 15, 20, 21], 10, 32, False, [[0, 1, 2], [3]]),  # 20 is the last that belongs to 10
        ([10, 15, 20, 21], 10, 31, False, [[0, 1, 2]]),  # one that ends at 31 may still come
        ([10, 15, 20, 21], 10, 20, False, []),  # one that ends at 20 may still come
        ([10, 15, 20, 21], 10, None, True, [[0, 1, 2], [3]]),
        ([10, 15, 20, 21], 10, None, False, []),
        ([20, 10, 21, 15], 10, None, True, [[0, 1, 3], [2]]),  # in the order of PL in a request
        ([10, 10, 11], 0, 11, False, [[0, 1]]),
        ([10, 10, 11], 0, 12, False, [[0, 1], [2]]),
    ],
)
def test_a_sub_window_closes_when_no_match_can_join_it(
    ends: list[int], tolerance: int, watermark: int | None, ended: bool, asked: list[list[int]]
) -> None:
    assert requests(SLLAA(tolerance), frontier(ends, watermark=watermark, ended=ended)) == asked


def test_lemma_1_as_it_is_printed_leaves_long_matches_alone() -> None:
    seen = frontier([100, 101, 102], ended=True, length=50)
    assert requests(SLLAA(10), seen) == [[0, 1, 2]]
    assert requests(SLLAA(10, from_start=True), seen) == [[0], [1], [2]]
    assert requests(SLLAA(51, from_start=True), seen) == [[0, 1], [2]]


@pytest.mark.parametrize(
    ("live", "archive", "ahead"), [(0.1, 0.01, True), (0.01, 0.1, False), (0.1, 0.1, False), (None, 0.01, False),
                                   (0.1, None, False)],
)  # fmt: skip
def test_ollaa_lets_the_side_with_fewer_matches_lead(live: float | None, archive: float | None, ahead: bool) -> None:
    seen = replace(frontier([10, 20, 90], waiting=(2,)), costs=Costs(live, archive))
    expected = [(Detect, [0, 1])] if ahead else [(AskArchive, [0]), (AskArchive, [1])]
    assert [(type(decision), decision.rows.tolist()) for decision in OLLAA().decide(seen)] == expected
    assert OLLAA().decide(replace(seen, ready=np.zeros(3, bool))) == []


@pytest.mark.parametrize(
    ("ahead_s", "asked_s", "ended", "ahead"),
    [
        (None, 100.0, False, False),  # it cannot be found ahead
        (1.0, 0.0, False, False),  # asking takes 0.3 now
        (1.0, 0.19, False, False),
        (1.0, 0.21, False, True),  # with what was in vain more than a half
        (0.59, 0.0, False, True),
        (0.59, 0.5, True, False),  # nothing comes behind these
        (0.29, 0.0, True, True),
    ],
)
def test_auto_finds_ahead_once_half_of_that_was_spent_in_vain(
    ahead_s: float | None, asked_s: float, ended: bool, ahead: bool
) -> None:
    costs = Costs(ahead_s=ahead_s, request_s=0.1, match_s=0.1, asked_s=asked_s)
    seen = replace(frontier([10, 20, 90], waiting=(2,), ended=ended), costs=costs)
    (decision,) = Auto().decide(seen)
    assert type(decision) is (Detect if ahead else AskArchive)
    assert decision.rows.tolist() == [0, 1]

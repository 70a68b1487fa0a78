"""Equal lists of rows have one number, whatever comes between, and keep it when rows get other positions."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.kernels import lists

ROWS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=6), min_size=1, max_size=12)


def fresh(lines: int) -> tuple[np.ndarray, np.ndarray]:
    table = np.zeros((lines, 2), np.int64)
    table[0, lists.COUNT] = 1
    return table, np.zeros(1 << (2 * lines).bit_length(), np.int64)


def number_of(lines: np.ndarray, table: np.ndarray, rows: list[int]) -> int:
    number = np.int64(0)
    for row in rows:
        number = lists.with_row(lines, table, number, np.int64(row))
    return int(number)


def rows_of(lines: np.ndarray, numbers: list[int]) -> list[list[int]]:
    bounds = np.zeros(len(numbers) + 1, np.int64)
    lists.rows_of(lines, np.array(numbers), bounds, np.zeros(0, np.int64))
    rows = np.zeros(int(bounds[-1]), np.int64)
    lists.rows_of(lines, np.array(numbers), bounds, rows)
    return [rows[a:b].tolist() for a, b in pairwise(bounds)]


@pytest.mark.slow
@given(found=ROWS, gone=st.sets(st.integers(0, 9), max_size=3))
def test_a_list_has_one_number_and_a_number_one_list(found: list[list[int]], gone: set[int]) -> None:
    lines, table = fresh(128)
    numbers = [number_of(lines, table, rows) for rows in found]
    assert rows_of(lines, numbers) == found
    assert [number_of(lines, table, rows) for rows in found] == numbers
    moved = np.array([-1 if row in gone else 20 - row for row in range(10)])
    lists.renumber(lines, table, moved)
    for rows, number in zip(found, numbers, strict=True):
        if not gone.intersection(rows):
            assert number_of(lines, table, [20 - row for row in rows]) == number


@pytest.mark.slow
def test_there_is_no_number_where_there_is_no_room() -> None:
    lines, table = fresh(3)
    assert [number_of(lines, table, [row]) for row in (5, 6, 5)] == [1, 2, 1]
    assert lists.with_row(lines, table, np.int64(0), np.int64(7)) == -1


@pytest.mark.slow
def test_lists_are_foreseen_where_rows_may_follow_each_other() -> None:
    lines, table = fresh(64)
    joins = np.array([True, True, False, True, True])
    numbers, at = np.zeros(32, np.int64), np.zeros(32, np.int64)
    place = np.arange(5)
    asked = number_of(lines, table, [0])
    # the list of row 0, at row 1 and gone on with it; those that begin with 1 and 3; row 2 is in none
    expected = [([0], 1), ([0, 1], 2), ([1], 2), ([3], 4)]
    for length_max in (9, 2, 1):  # no list is longer
        count = lists.foresee(
            lines, table, np.array([asked]), np.array([1]), np.array([1]), np.array([5]), 1, place, place, joins,
            np.ones(5, np.bool_), False, length_max, 100, numbers, at,
        )  # fmt: skip
        found = list(zip(rows_of(lines, numbers[:count].tolist()), at[:count].tolist(), strict=True))
        assert found == [(rows, place) for rows, place in expected if len(rows) <= length_max]

"""Persistent trees of values are sorted lists, in each of their versions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.kernels import trees

VALUES = st.integers(-3, 3) | st.integers(-1000, 1000) | st.integers(-(2**63), 2**63 - 1)
#: Of each call: how many versions back it goes on from, and its values.
CALLS = st.lists(st.tuples(st.integers(0, 3), st.lists(VALUES, min_size=1, max_size=6)), min_size=1, max_size=12)


@pytest.mark.slow
@given(calls=CALLS, asked=VALUES)
def test_a_tree_is_a_sorted_list_and_stays_one_when_others_come_of_it(
    calls: list[tuple[int, list[int]]], asked: int
) -> None:
    rows = sum(len(values) for _, values in calls)
    tree = np.zeros((trees.ITEMS_MAX * (rows + 1), 4), np.int64)
    tree[0, 0] = 1
    versions: list[tuple[np.int64, list[int]]] = [(np.int64(0), [])]
    row = 0
    for back, values in calls:
        root, held = versions[max(0, len(versions) - 1 - back)]
        held, first = list(held), {}
        mark = tree[0, 0]  # what one call makes it may change
        for value in values:
            root, leaf = trees.insert(tree, root, np.int64(value), np.int64(row), mark)
            held.append(value)
            first.setdefault(value, row)
            row += 1
            assert tree[leaf, trees.SIZE] == held.count(value)
            assert tree[leaf, trees.UPPER] <= first[value]
        versions.append((root, held))
    for root, held in versions[1:]:
        values = sorted(held)
        assert [trees.at_place(tree, root, np.int64(k)) for k in range(len(values))] == values
        more = sorted([*values, asked])
        assert [trees.at_place_with(tree, root, np.int64(k), True, np.int64(asked)) for k in range(len(more))] == more
        assert (trees.leaf_of(tree, root, np.int64(asked)) != 0) == (asked in values)

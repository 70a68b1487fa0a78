"""Walks find what DuckDB finds of the values of a run, to the last bit."""

from __future__ import annotations

import math

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.engines.run_trends import in_order
from matching.kernels import estimates, moments, trees, walks
from matching.program.hashed import RANKS, register_and_rank
from query.plan.expression import Column, to_sql
from tests.matching.kernels.test_trees import VALUES

NUMBERS = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 2.5, math.inf, -math.inf, math.nan, 1e200, 1e-200]),
    st.floats(-100, 100), st.integers(-9, 9).map(float), st.floats(),
)  # fmt: skip


def tree_of(values: np.ndarray) -> tuple[np.ndarray, np.int64]:
    tree = np.zeros((trees.ITEMS_MAX * (len(values) + 1), 4), np.int64)
    tree[0, 0] = 1
    root = np.int64(0)
    for row, value in enumerate(values):
        root, _ = trees.insert(tree, root, np.int64(value), np.int64(row), np.int64(1))
    return tree, root


def of_duckdb(function: str, values: list[float]) -> float | str | None:
    """Returns an aggregate, or "error"."""
    given = pa.table({"l": pa.array([values], pa.list_(pa.float64()))})
    with duckdb.connect() as connection:
        connection.register("given", given)
        try:
            ((found,),) = connection.sql(f"SELECT list_aggregate(l, '{function}') FROM given").fetchall()
        except duckdb.OutOfRangeException:
            return "error"
    return None if found is None else float(found)


def same(a: float | str | None, b: float | str | None) -> bool:
    return a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))


@pytest.mark.slow
@given(values=st.lists(NUMBERS, min_size=1, max_size=12))
def test_the_median_distance_from_the_median(values: list[float]) -> None:
    ordered = in_order(np.array(values))
    tree, root = tree_of(ordered[:-1])
    at = np.zeros(walks.SLOTS, np.int64)
    found = walks.mad(tree, root, np.int64(len(values)), True, ordered[-1], at, at.view(np.float64))
    assert same(found, of_duckdb("mad", values))


@pytest.mark.slow
@pytest.mark.thinned(3)
@given(values=st.lists(NUMBERS, min_size=1, max_size=12), same_ones=st.booleans())
@pytest.mark.parametrize("function", ["skewness", "kurtosis", "kurtosis_pop"])
def test_skewness_and_kurtosis(function: str, values: list[float], same_ones: bool) -> None:
    if same_ones:
        values = [values[0]] * len(values)
    sums = np.zeros(4)
    for count, value in enumerate(values):
        moments.add(sums, np.int64(count), value)
    if function == "skewness":
        there, found = moments.skewness(sums, len(values))
    else:
        there, found = moments.kurtosis(sums, len(values), function == "kurtosis_pop")
    mine = None if not there else found if math.isfinite(found) else "error"
    assert same(mine, of_duckdb(function, values))


@pytest.mark.slow
@given(values=st.lists(VALUES, max_size=20), more=st.integers(0, 3_000))
def test_the_estimate_of_different_values(values: list[int], more: int) -> None:
    numbers = pa.table({"v": pa.array([*values, *range(5_000, 5_000 + more)], pa.int64())})
    with duckdb.connect() as connection:
        connection.register("numbers", numbers)
        ((wanted,),) = connection.sql("SELECT approx_count_distinct(v) FROM numbers").fetchall()
        column = Column("v", "BIGINT")
        text = to_sql(register_and_rank(column), {column: "v"})
        ranks = connection.sql(f"SELECT {text} AS r FROM numbers").to_arrow_table().column("r").to_numpy()
    tree, root = tree_of(ranks[:-1])
    counts = np.zeros(RANKS, np.int64)
    last = ranks[-1] if len(ranks) else np.int64(0)
    estimates.ranks_of(tree, root, len(ranks) > 0, last, np.zeros(len(ranks) + 1, np.int64), counts)
    assert estimates.estimated(counts) == wanted

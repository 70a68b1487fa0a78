"""Row-local expressions over whole batches: long lists after IN."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import hybrid

N = 300
_random = np.random.default_rng(1)
T = pa.table({
    "ts": range(N),
    "v": pa.array([None if i % 17 == 0 else int(_random.integers(0, 2000)) for i in range(N)]),
    "d": pa.array([float("nan") if i % 19 == 0 else float(_random.integers(0, 2000)) for i in range(N)]),
    "s": [f"k{_random.integers(0, 2000)}" for _ in range(N)],
})  # fmt: skip
NUMBERS = ", ".join(map(str, range(-10, 1200, 2)))
WORDS = ",".join(f"'k{i}'" for i in range(0, 1200, 2))


@pytest.mark.parametrize("condition", [
    f"v IN ({NUMBERS})", f"v NOT IN ({NUMBERS})", f"d IN ({NUMBERS})", f"s IN ({WORDS})",
    f"v IN ({NUMBERS}, 7.5, NULL)",
    f"v NOT IN ({NUMBERS}, NULL)", f"coalesce(v in ({NUMBERS}), true)", f"concat(v IN ({NUMBERS}), '') = 'true'",
    f"v % 7 IN ({NUMBERS})", f"v IN ({NUMBERS}, 99999999999999999999)",
], ids=range(10))  # fmt: skip
def test_a_long_list_has_the_rows_of_duckdb(condition: str) -> None:
    expected = duckdb.connect().from_arrow(T).filter(condition).order("ts").project("ts").fetchall()
    found = hybrid.sql(
        f"SELECT a FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES A.ts AS a PATTERN (A) DEFINE A AS {condition})", t=T
    )
    assert found.fetchall() == expected


@pytest.mark.parametrize("of", ["PREV(v)", "A.v"])
def test_a_long_list_reads_other_rows(of: str) -> None:
    text = """SELECT b FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES B.ts AS b AFTER MATCH SKIP TO NEXT ROW
        PATTERN (A B) DEFINE B AS {} IN ({}) AND B.d > A.d)"""
    rows = duckdb.connect().from_arrow(T).query("t", f"""SELECT ts FROM
        (SELECT ts, d, lag(v) OVER (ORDER BY ts) AS p, lag(d) OVER (ORDER BY ts) AS e FROM t)
        WHERE p IN ({NUMBERS}) AND d > e ORDER BY ts""")  # fmt: skip
    assert hybrid.sql(text.format(of, NUMBERS), t=T).fetchall() == rows.fetchall()


def calls(text: str) -> int:
    """Returns the calls of Python functions that a statement takes."""
    count = 0

    def called(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal count
        count += event == "call"

    sys.setprofile(called)
    try:
        hybrid.sql(text, t=T).arrow()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.slow
@pytest.mark.parametrize("form", ["v IN (%s)", "v IN (%s, PREV(v))"])
def test_lists_are_planned_in_linear_time(form: str) -> None:
    # Before: 36 s for 100,000 numbers; the hash of each node was that of all below it.
    text = "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES A.v AS a PATTERN (A) DEFINE A AS %s)"
    some, twice = [calls(text % (form % ", ".join(map(str, range(n))))) for n in (50, 2000, 4000)][1:]
    assert twice < 2.5 * some
    if "PREV" not in form:
        assert twice < 10 * 4000, "a few calls for each piece of the text, and no tree of each number"

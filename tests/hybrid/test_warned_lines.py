"""Warnings point at the line of the user."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import hybrid
from query.errors import HybridWarning

SLOW = """SELECT * FROM t MATCH_RECOGNIZE (
    PARTITION BY k ORDER BY ts PATTERN (A B) DEFINE B AS string_agg(CLASSIFIER(), ',') >= 'A')"""
KEPT = """SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES B.v AS v PATTERN (A B)
    SELECTION SKIP TILL NEXT MATCH DEFINE A AS v > 2, B AS v < 2)"""
ROWS = [{"k": 1, "ts": f"2024-01-01 00:00:0{i}", "v": i} for i in range(3)]


def sql() -> None:
    hybrid.sql(f"SELECT * FROM ({SLOW.replace('FROM t', 'FROM (SELECT k, v, ts::TIMESTAMP AS ts FROM t)')})", t=ROWS)


def watch() -> None:
    with hybrid.connect() as db:
        db.create_stream("t", {"k": "BIGINT", "ts": "TIMESTAMP", "v": "BIGINT"}, time="ts", key="k")
        db.watch(SLOW)


def kept_for_ever() -> None:
    with hybrid.connect() as db:
        db.create_stream("t", {"k": "BIGINT", "ts": "TIMESTAMP", "v": "BIGINT"}, time="ts", key="k")
        db.watch(KEPT)


@pytest.mark.parametrize("call", [sql, watch, kept_for_ever])
def test_a_warning_points_at_the_line_that_calls(call: Callable[[], None]) -> None:
    # Before: at a line of ours, for most.
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", HybridWarning)
        call()
    assert told
    lines = Path(__file__).read_text().splitlines()
    for one in told:
        assert one.filename == __file__
        assert "hybrid.sql(" in lines[one.lineno - 1] or "db.watch(" in lines[one.lineno - 1]

"""Rows as a live query gives them, for the tests of sinks."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

#: (match_id, join_id, n) of a row; a match_id of None is that of an unmatched row.
Row = tuple[str | None, str | None, int]


def table(rows: Sequence[Row]) -> pa.Table:
    return pa.table({
        "symbol": pa.array([f"S{n % 3}" for _, _, n in rows], pa.string()),
        "n": pa.array([n for _, _, n in rows], pa.int64()),
        "match_id": pa.array([m for m, _, _ in rows], pa.string()),
        "join_id": pa.array([j for _, j, _ in rows], pa.string()),
    })


def matches(first: int, count: int) -> pa.Table:
    """One row for each of `count` matches."""
    return table([(f"{n:016x}", None, n) for n in range(first, first + count)])

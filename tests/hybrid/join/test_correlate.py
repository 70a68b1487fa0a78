"""ON and the outer SELECT without DuckDB, where they are simple: the same rows as by DuckDB."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import hybrid
from hybrid.join import correlate
from hybrid.rows import outer

E = pa.table(
    {
        "ts": pa.array(range(8), pa.timestamp("us")),
        "k": ["p", "q", "p", None, "p", "q", "q", "p"],
        "x": [1, 2**63 - 1, None, 0, -5, 7, -(2**63), 3],
        "f": [0.5, float("nan"), -0.0, None, float("inf"), 0.0, -1.5, 2.5],
        "d": pa.array([Decimal(n) / 100 for n in (0, 250, -1, 99, 300, 250, 7, 250)], pa.decimal128(9, 2)),
        "s": list("abcdefgh"),
    }
)
TEXT = (
    "SELECT {select} FROM e MATCH_RECOGNIZE (ORDER BY ts MEASURES A.ts AS at, A.k AS k, A.x AS x, A.f AS f, A.d AS d, "
    "A.s AS s PATTERN (A)) AS pl {kind} HISTORY OF e FROM TIMESTAMP '1970-01-01' TO pl.at AS pa ON {on}"
)


def answer(on: str = "pa.k = pl.k", select: str = "pl.s AS live, pa.s AS history", kind: str = "JOIN") -> pa.Table:
    return hybrid.sql(TEXT.format(select=select, on=on, kind=kind), e=E).arrow()


def watched(monkeypatch: Any, module: Any, name: str) -> list[bool]:
    """Whether each call of a function gives something, from now on."""
    found: list[bool] = []
    act = getattr(module, name)

    def seen(*given: Any) -> Any:
        what = act(*given)
        found.append(what is not None)
        return what

    monkeypatch.setattr(module, name, seen)
    return found


@pytest.mark.parametrize(
    ("on", "by_lanes"),
    [
        ("pa.k = pl.k AND pa.f > pl.f", True),
        ("pa.k = pl.k AND pa.f = pl.f", False),  # an equality that cannot be a key
        ("pa.k = pl.k AND (pa.f = pl.f OR pa.x > 5)", True),  # NaN equals itself, -0 equals 0
        ("pa.k = pl.k AND NOT (pa.f < pl.f)", True),
        ("pa.f <= pl.f", True),
        ("pa.x < pl.x AND pl.k = pa.k", True),
        ("pa.d BETWEEN pl.d AND pl.d + 3", True),
        ("pa.x IS NULL OR pl.x IS NULL", True),
        ("pa.k = pl.k AND pa.ts + INTERVAL 2 MICROSECOND < pl.at", True),
        ("pa.k = pl.k AND CASE WHEN pa.f > 0 THEN pa.d > pl.d ELSE pa.x > 0 END", True),
        ("pa.k = pl.k AND TRUE", True),
        ("pa.k = pl.k AND NULL", True),
        ("pa.k = pl.k AND TRY(pa.x + pl.x) > 0", False),
        ("pa.k = pl.k AND pa.s < pl.s", False),
        ("pa.k = pl.k AND pa.x + 1 < pl.x", False),  # overflows: DuckDB says what of it
        ("pa.k IS NOT DISTINCT FROM pl.k", False),
        ("upper(pa.k) = upper(pl.k) AND pa.x > 0", False),
    ],
)  # fmt: skip
def test_what_joins_is_what_duckdb_says(on: str, by_lanes: bool, monkeypatch: Any) -> None:
    found = watched(monkeypatch, correlate, "_met")
    try:
        rows = answer(on)
    except hybrid.QueryError as error:
        rows = str(error)
    assert any(found) == by_lanes
    monkeypatch.setattr(correlate, "_met", lambda *given: None)
    try:
        expected = answer(on)
    except hybrid.QueryError as error:
        expected = str(error)
    assert rows == expected


def test_very_many_pairs_are_left_to_duckdb(monkeypatch: Any) -> None:
    expected = answer("pa.f <= pl.f")
    monkeypatch.setattr(correlate, "PAIRS_MAX", 3)
    assert answer("pa.f <= pl.f") == expected


@pytest.mark.parametrize(
    ("kind", "select", "picks"),
    [
        *((kind, *case) for kind in ("JOIN", "LEFT JOIN") for case in [
            ("pl.s, pa.s AS other, TS, pa.f, pl.D", True),
            ("pl.*", True),
            ("pl.x, pa.*", False),  # two columns are called x
            ("pa.*, pl.at", True),
            ("*", False),
            ("pl.s || 'x' AS y", False),
            ("DISTINCT pl.k", False),
            ("pl.s, history_complete", False),
        ]),
        ("SEMI JOIN", "pl.*", True),
        ("SEMI JOIN", "*", True),  # it has no columns of its own
        ("SEMI JOIN", "pl.s || 'x' AS y", False),
    ],
)  # fmt: skip
def test_columns_that_are_picked_are_those_of_duckdb(kind: str, select: str, picks: bool, monkeypatch: Any) -> None:
    found = watched(monkeypatch, outer, "projection")
    rows = answer(select=select, kind=kind)
    assert any(found) == picks
    monkeypatch.setattr(outer, "projection", lambda *given: None)
    expected = answer(select=select, kind=kind)
    assert rows.schema == expected.schema
    assert sorted(map(repr, rows.to_pylist())) == sorted(map(repr, expected.to_pylist()))

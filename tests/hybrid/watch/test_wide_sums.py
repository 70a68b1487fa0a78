"""Sums beyond 64 bits in conditions of live queries: the reference goes on, from the row on that needs it."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import hybrid
from hybrid.database.database import Database
from query.errors import DataError, HybridWarning

pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
START = datetime(2024, 3, 1, 12)
COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "BIGINT", "d": "DECIMAL(18, 0)"}
LARGE = 2**62
#: From row 9 on sums pass 64 bits.
ROWS: list[dict[str, Any]] = [
    {"ts": START + timedelta(seconds=i), "k": "ab"[i % 2], "v": LARGE + i if i > 8 else i,
     "d": 4 * 10**17 if i > 8 else i}
    for i in range(20)
]  # fmt: skip
FROM_TICKS = """SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY k
    MEASURES FIRST(A.v) AS a, LAST(v) AS b, count(*) AS n """
QUERIES = {
    "sum": f"PATTERN (A+ B) DEFINE A AS sum(A.v) < {3 * LARGE}, B AS v > 0",
    "between": f"PATTERN (A B+ C) DEFINE B AS sum(B.v) <= {2 * LARGE + 40}, C AS v > B.v",
    "each start": f"""AFTER MATCH SKIP TO NEXT ROW PATTERN (A B+) WITHIN INTERVAL '5' SECOND
        DEFINE B AS sum(v) < {5 * LARGE}""",
    "absence": f"PATTERN (A B ~C) WITHIN INTERVAL '4' SECOND DEFINE B AS sum(v) > {LARGE}, C AS v < 5",
    "decimals": f"PATTERN (A+ B) DEFINE A AS sum(A.d) * 10 < {4 * 10**19}, B AS v >= 0",
}


def opened(path: Path | None = None) -> Database:
    db = hybrid.connect(path)
    if not db.streams():
        db.create_stream("ticks", COLUMNS, time="ts", key="k")
    return db


def pushed(db: Database, cuts: list[int]) -> None:
    for low, high in zip([0, *cuts], cuts, strict=False):
        db.push("ticks", ROWS[low:high])


def keyed(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(map(str, rows))


@pytest.mark.slow
@pytest.mark.thinned(5)
@pytest.mark.parametrize(("cuts", "evidence"), [
    ([3, 12, 20], True), *(pytest.param(*one, marks=pytest.mark.slow) for one in (
        ([20], True), ([20], False), ([3, 12, 20], False), (list(range(1, 21)), True), (list(range(1, 21)), False),
    )),
])  # fmt: skip
@pytest.mark.parametrize("name", QUERIES)
def test_a_live_query_goes_on_beyond_64_bits(name: str, cuts: list[int], evidence: bool) -> None:
    # Before: it failed, "the condition of A overflows".
    text = f"{FROM_TICKS}{QUERIES[name]}) AS m"
    with opened() as db:
        alerts, other = db.watch(text, evidence=evidence), db.watch(f"{FROM_TICKS}PATTERN (A B)) AS m")
        pushed(db, cuts)
        db.advance("ticks", None)
        rows = alerts.fetch()
        expected = db.sql(text.replace("PARTITION BY k", "PARTITION BY k ORDER BY ts")).arrow()
        assert expected.num_rows > 1
        if evidence:
            assert alerts.evidence().num_rows == sum(rows.column("n").to_pylist())
        rows = rows.select(expected.column_names)
        assert keyed(rows.to_pylist()) == keyed(expected.to_pylist())
        assert other.fetch().num_rows == 10
        assert db.backtest(text, START).arrow().num_rows == expected.num_rows


@pytest.mark.parametrize(("lateness", "cut"), [(0, 3), (60, 7)])
def test_matches_that_time_decides_come_once(lateness: int, cut: int) -> None:
    """Matches come once that a watermark had decided before the sum was too large, or that the end decides."""
    # Before: the match that the watermark of the first push had decided came again; where the sum was too large among
    # events that had waited until the end, the last match was lost.
    values = [("a", 0, 3), ("a", 1, 4), ("b", 6, 2), ("b", 7, LARGE), ("b", 8, LARGE), ("b", 9, LARGE), ("b", 10, 5)]
    rows = [{"ts": START + timedelta(seconds=at), "k": key, "v": v, "d": None} for key, at, v in values]
    text = f"{FROM_TICKS}PATTERN (A B ~C) WITHIN INTERVAL '4' SECOND DEFINE B AS sum(v) > 6, C AS v < 2) AS m"
    with hybrid.connect() as db:
        db.create_stream("ticks", COLUMNS, time="ts", key="k", lateness=timedelta(seconds=lateness))
        alerts = db.watch(text)
        db.push("ticks", rows[:cut])
        db.push("ticks", rows[cut:])
        db.advance("ticks", None)
        found = alerts.fetch()
        expected = db.sql(text.replace("PARTITION BY k", "PARTITION BY k ORDER BY ts")).arrow()
    assert expected.num_rows == 3
    assert keyed(found.select(expected.column_names).to_pylist()) == keyed(expected.to_pylist())


@pytest.mark.slow
def test_it_is_announced_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    text = f"{FROM_TICKS}{QUERIES['sum']}) AS m"
    with opened() as db:
        alone = db.watch(text)
        pushed(db, [20])
        db.advance("ticks", None)
        expected = keyed(alone.fetch().to_pylist())
    found = []
    with opened(tmp_path / "db") as db:
        alerts = db.watch(text, name="sums")
        pushed(db, [8])
        with pytest.warns(HybridWarning, match=r"the condition of A overflows .* goes on by the reference matcher"):
            db.push("ticks", ROWS[8:13])
        found += alerts.fetch().to_pylist()
    with opened(tmp_path / "db") as db:
        alerts = db.watching()["sums"]
        db.push("ticks", ROWS[13:17])
        found += alerts.fetch().to_pylist()
        db.checkpoint()
        db.push("ticks", ROWS[17:19])
        del db  # as in a crash
    with opened(tmp_path / "db") as db:
        db.push("ticks", ROWS[19:])
        db.advance("ticks", None)
        found += db.watching()["sums"].fetch().to_pylist()
    assert keyed(found) == expected


def test_narrow_numbers_overflow_as_in_duckdb() -> None:
    with opened() as db:
        alerts = db.watch(f"{FROM_TICKS}PATTERN (A B) DEFINE B AS v + A.v > 1) AS m")
        pushed(db, [20])
        alerts.fetch()  # what came before
        with pytest.raises(DataError, match="the condition of B overflows"):
            alerts.fetch()

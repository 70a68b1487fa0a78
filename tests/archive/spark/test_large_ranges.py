"""Large ranges of history searched for by Spark: the rows, their order and their evidence are those without it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from archive.spark import search
from query.errors import DataError
from tests.hybrid.large import KINDS, RANGES, case, opened, settled, watched

pytestmark = pytest.mark.spark


@pytest.mark.thinned(4)
@pytest.mark.parametrize("kind", KINDS)
def test_live_queries(spark: Any, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "TASK_ROWS", 20)  # several tasks
    seen: Counter[str] = Counter()
    for seed in range(2):
        one = case(100 + 3 * KINDS.index(kind) + seed, kind, RANGES[(seed + KINDS.index(kind)) % len(RANGES)])
        with opened(tmp_path / f"{seed}", one) as db:
            rows, evidence, _ = watched(db, one)
        with opened(tmp_path / f"{seed}-spark", one, spark, 0) as db:
            by_spark = watched(db, one)
        assert by_spark[0] == rows, (seed, one.query)
        assert by_spark[1].equals(evidence), (seed, one.query)
        stats = by_spark[2].stats()
        seen += Counter(rows=len(rows), by_spark=stats["history_by_spark"], late=stats["late"])
    assert min(seen["rows"], seen["by_spark"], seen["late"]) > 0


def test_statements_and_backtests(spark: Any, tmp_path: Path) -> None:
    one = case(4, "JOIN", RANGES[0])
    answers = []
    for session in (None, spark):
        with opened(tmp_path / f"{session is None}", one, session, None if session is None else 0) as db:
            for source, rows in one.pushes:
                db.push("e", rows, source=source)
            found = [db.sql(one.query), db.backtest(one.query, 0)]
            answers.append([(result.arrow().to_pylist(), result.evidence().to_pylist()) for result in found])
    assert answers[0] == answers[1]
    assert len(answers[0][0][0]) > 5


@pytest.mark.parametrize("bounds", [RANGES[0], RANGES[3]])
def test_windows_of_large_ranges(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bounds: str) -> None:
    """The rows of each range, counted by Spark, in the order of windows and groups."""
    monkeypatch.setattr(search, "TASK_ROWS", 20)  # several tasks
    windows = (
        "MATCH_RECOGNIZE (PARTITION BY k, s ORDER BY ts GROUP BY k MEASURES COUNT(MATCHES) AS n, SUM(v) AS v "
        "ONE ROW PER WINDOW PATTERN (A B+) WITHIN 6 SECONDS SLIDE 2 SECONDS DEFINE A AS v > 1)"
    )
    one = case(4, "LEFT JOIN", bounds)
    begin = one.query.index("MATCH_RECOGNIZE (", one.query.index("HISTORY"))
    shown = one.query[one.query.index("FROM") : begin]
    query = f"SELECT pl.*, pa.* {shown}{windows} AS pa ON TRUE"
    answers = []
    for session in (None, spark):
        with opened(tmp_path / f"{session is None}", one, session, None if session is None else 0) as db:
            alerts = db.watch(query, strategy="llaa")
            for source, rows in one.pushes:
                db.push("e", rows, source=source)
            db.advance("e", None)
            answers.append((settled(db, alerts), db.sql(query).arrow().to_pylist()))
            assert (alerts.stats()["history_by_spark"] > 0) == (session is not None)
    assert answers[0] == answers[1]
    assert sum(row["n"] is not None for row in answers[0][1]) > 20


def test_files_that_are_gone_are_an_error_of_the_query_with_spark_and_without(spark: Any, tmp_path: Path) -> None:
    one = case(4, "LEFT JOIN", RANGES[0])
    with opened(tmp_path, one, spark, 0) as db:
        for source, rows in one.pushes[:3]:
            db.push("e", rows, source=source)
        db.flush()
        for file in tmp_path.rglob("*.parquet"):
            file.unlink()
        alerts = db.watch(one.query)
        for source, rows in one.pushes[3:]:
            db.push("e", rows, source=source)
        db.advance("e", None)
        with pytest.raises(DataError, match=r"\.parquet is missing"):
            settled(db, alerts)
        assert alerts.stats()["waiting_for_history"] > 0

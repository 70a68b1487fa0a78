"""A live query without a pattern is refused with the same filter as a pattern."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

import pytest

import hybrid
from hybrid.database.database import Database


@pytest.fixture
def db() -> Iterator[Database]:
    with hybrid.connect() as db:
        db.create_stream("t", {"ts": "TIMESTAMP", "v": "BIGINT"}, time="ts")
        yield db


def hint(db: Database, text: str) -> str:
    with pytest.raises(hybrid.QueryError) as refused:
        db.watch(text)
    return refused.value.diagnostics[0].hint


@pytest.mark.parametrize(
    ("text", "condition"),
    [
        ("SELECT * FROM t WHERE v > 1", " DEFINE A AS v > 1"), ("from t where v > 1;", " DEFINE A AS v > 1"),
        ("SELECT v FROM t AS x WHERE x.v > 1 AND (t.v < 9)", " DEFINE A AS v > 1 AND (v < 9)"), ("SELECT * FROM t", ""),
    ],
)  # fmt: skip
def test_the_filter_as_a_pattern(db: Database, text: str, condition: str) -> None:
    found = hint(db, text)
    assert found == f"FROM t MATCH_RECOGNIZE (ORDER BY ts ALL ROWS PER MATCH PATTERN (A){condition})"
    alerts = db.watch(f"SELECT v {found}")
    db.push("t", [{"ts": datetime(2024, 1, 1, 0, 0, v), "v": v} for v in range(5)])
    db.advance("t", None)
    assert alerts.fetch()["v"].to_pylist() == ([2, 3, 4] if condition else [0, 1, 2, 3, 4])


@pytest.mark.parametrize(
    "text",
    ["SELECT count(*) FROM t GROUP BY v", "SELECT * FROM t JOIN t AS u USING (v)", "SELECT 1",
     "SELECT * FROM x WHERE v", "SELECT * FROM t WHERE v > 1 ORDER BY v", "SELECT * FROM t WHERE v IN (SELECT 1)"],
)  # fmt: skip
def test_what_is_no_filter(db: Database, text: str) -> None:
    assert hint(db, text) == "db.sql answers it from the events so far"

"""Columns that the outer SELECT picks through an entry of WITH, by Arrow and by DuckDB."""

from __future__ import annotations

import pytest

import hybrid
from hybrid.rows import outer
from hybrid.rows.outer import projection
from tests.hybrid.rows.test_evidence_tree import SEEN

PAIR = "SELECT {} FROM seen MATCH_RECOGNIZE (ORDER BY ts MEASURES X.ts AS came, Y.tag AS n PATTERN (X Y)) AS m"
#: Texts, and whether columns are only picked.
TEXTS = {
    f"WITH w AS ({PAIR.format('*')}) SELECT * FROM w": True,
    f"WITH w AS ({PAIR.format('n AS a, came')}) SELECT A, came AS \"When\", w.a AS b FROM W": True,
    f"WITH w AS ({PAIR.format('m.*')}) SELECT v.n FROM w AS v": True,
    f"WITH w AS (WITH x AS ({PAIR.format('*')}) SELECT n, came AS c FROM x) SELECT c FROM w": True,
    f"WITH w(a, b) AS ({PAIR.format('*')}) SELECT a FROM w": False,
    f"WITH w AS ({PAIR.format('*')}) SELECT p FROM w AS v(p, q)": False,
    f"WITH w AS ({PAIR.format('*')}), x AS (SELECT 1 AS i) SELECT n FROM w": False,
    f"WITH w AS ({PAIR.format('*')} WHERE n > 1) SELECT * FROM w": False,
    f"WITH w AS ({PAIR.format('DISTINCT n')}) SELECT n FROM w": False,
    f"WITH w AS ({PAIR.format('*')}) SELECT n FROM w LIMIT 1": False,
    f"WITH w AS ({PAIR.format('n + 1 AS n')}) SELECT n FROM w": False,
}


@pytest.mark.parametrize("text", TEXTS)
def test_arrow_picks_what_duckdb_would(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[object] = []

    def watched(*given: object) -> object:
        found.append(projection(*given))  # type: ignore[arg-type]
        return found[-1]

    monkeypatch.setattr(outer, "projection", watched)
    picked = hybrid.sql(text, seen=SEEN).arrow()
    assert [one is not None for one in found] == [TEXTS[text]]
    monkeypatch.setattr(outer, "projection", lambda *given: None)
    assert hybrid.sql(text, seen=SEEN).arrow().equals(picked)
    assert picked.num_rows


def test_a_named_pattern_is_picked_from() -> None:
    # Before: only a SELECT without WITH was, and FROM visit has one.
    with hybrid.connect() as db:
        db.create_stream("seen", {"ts": "TIMESTAMP", "what": "VARCHAR", "tag": "BIGINT"}, time="ts")
        db.create_pattern("visit", PAIR.format("*"))
        db.push("seen", SEEN)
        plan = db.sql("SELECT n, t1 FROM Visit").plan
        columns = {"__hybrid_factor_0": ["came", "n", "t0", "t1"]}
        assert projection(plan.select_sql, columns) == ((0, "n", "n"), (0, "t1", "t1"))

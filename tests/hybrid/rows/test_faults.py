"""Errors of conditions and measures that have no value for some rows, with their places."""

from __future__ import annotations

from datetime import datetime

import pytest

import hybrid

T = {"ts": [datetime(2024, 3, 1), datetime(2024, 3, 2)], "s": ["a", "7"], "n": ["7", "8"], "v": [1, 2]}


def said(clauses: str) -> str:
    with pytest.raises(hybrid.DataError) as caught:
        hybrid.sql(f"SELECT * FROM t\nMATCH_RECOGNIZE (ORDER BY ts MEASURES 1 AS one\n{clauses})", t=T)
    return str(caught.value)


@pytest.mark.parametrize(("clauses", "expected"), [
    ("PATTERN (A) DEFINE A AS s = 7", """\
a condition or measure cannot be computed for these rows: Conversion Error: Could not convert string 'a' to INT32; \
'a' is in row 1 of t
  --> query:3:25
   3 | PATTERN (A) DEFINE A AS s = 7)
     |                         ^^^^^ s is text, 7 is INTEGER
hint: compare texts: '7'; or numbers: TRY_CAST(s AS INTEGER)"""),
    ("PATTERN (A) DEFINE A AS v > 0 AND v = 'x'", """\
a condition or measure cannot be computed for these rows: Conversion Error: Could not convert string 'x' to INT64
  --> query:3:39
   3 | PATTERN (A) DEFINE A AS v > 0 AND v = 'x')
     |                                       ^^^ read as BIGINT
hint: write a value of type BIGINT for 'x'"""),
    ("PATTERN (A) DEFINE A AS CAST(s AS DOUBLE) > 1", """\
a condition or measure cannot be computed for these rows: Conversion Error: Could not convert string 'a' to DOUBLE; \
'a' is in row 1 of t
  --> query:3:25
   3 | PATTERN (A) DEFINE A AS CAST(s AS DOUBLE) > 1)
     |                         ^^^^^^^^^^^^^^^^^ read as DOUBLE
hint: TRY_CAST(s AS DOUBLE), null for other texts, or compare with a text"""),
    (", A.s = 7 AS m PATTERN (A)", """\
a measure cannot be computed for these rows: Conversion Error: Could not convert string 'a' to INT32; \
'a' is in row 1 of t
  --> query:3:3
   3 | , A.s = 7 AS m PATTERN (A))
     |   ^^^^^^^ LAST(A.s) is text, 7 is INTEGER
hint: compare texts: '7'; or numbers: TRY_CAST(LAST(A.s) AS INTEGER)"""),
])  # fmt: skip
def test_a_text_that_is_no_number_shows_its_place(clauses: str, expected: str) -> None:
    # Before: DuckDB's message without the place, and "guard it with TRY(...)".
    assert said(clauses) == expected


def test_texts_that_are_numbers_compare_as_in_duckdb() -> None:
    text = "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES A.v AS v PATTERN (A) DEFINE A AS n = 7)"
    assert hybrid.sql(text, t=T).fetchall() == [(1,)]


def test_several_suspects_show_the_whole_condition() -> None:
    shown = said("PATTERN (A) DEFINE A AS (s = 7 OR s = 8)")
    assert "^" * len("s = 7 OR s = 8") in shown
    assert shown.endswith("hint: guard it with TRY(...), TRY_CAST or CASE in: ((s = 7) OR (s = 8))")


@pytest.mark.slow
def test_live_and_in_a_backtest() -> None:
    text = "SELECT * FROM t MATCH_RECOGNIZE (MEASURES 1 AS one\nPATTERN (A) DEFINE A AS s = 7)"
    place = r"\n   2 \| PATTERN \(A\) DEFINE A AS s = 7\)\n     \|                         \^{5} s is text"
    with hybrid.connect() as db:
        db.create_stream("t", {"ts": "TIMESTAMP", "s": "VARCHAR"}, time="ts")
        alerts = db.watch(text)
        db.push("t", [{"ts": datetime(2024, 3, 1), "s": "a"}])
        with pytest.raises(hybrid.DataError, match=place):
            alerts.fetch()
        with pytest.raises(hybrid.DataError, match=place):
            db.backtest(text, start="2024-01-01")


def test_a_pattern_with_a_text_of_its_own_shows_no_wrong_place() -> None:
    pattern = "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES 1 AS x PATTERN (A) DEFINE A AS s = 7)"
    with hybrid.connect() as db:
        db.create_stream("t", {"ts": "TIMESTAMP", "s": "VARCHAR"}, time="ts")
        db.push("t", [{"ts": datetime(2024, 3, 1), "s": "a"}])
        db.create_pattern("seven", pattern)
        with pytest.raises(hybrid.DataError, match="Could not convert") as caught:
            db.sql("SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES V.x AS n PATTERN (V) "
                   "SELECTION SKIP TILL NEXT MATCH DEFINE V AS PATTERN seven)")  # fmt: skip
        assert "-->" not in str(caught.value)


def test_a_text_that_is_no_number_outside_of_patterns() -> None:
    # Before: the whole statement was underlined, without a hint.
    with pytest.raises(hybrid.QueryError) as caught:
        hybrid.sql("SELECT count(*) AS n FROM t\nWHERE s = 7", t=T)
    assert str(caught.value) == """\
error[HQ100]: Could not convert string 'a' to INT32
  --> query:2:7
   2 | WHERE s = 7
     |       ^
hint: s is text: compare it with a text, or write TRY_CAST(s AS ...)"""


@pytest.mark.parametrize(("low", "on", "code", "shown"), [
    ("pl.a", "CAST('x' || pl.v AS INTEGER) = h.v", "HQ300", "CAST('x' || pl.v AS INTEGER) = h.v"),
    ("pl.a - CAST('x' || pl.v AS INTEGER) * INTERVAL 1 DAY", "true", "HQ301",
     "pl.a - CAST('x' || pl.v AS INTEGER) * INTERVAL 1 DAY TO pl.a + INTERVAL 1 DAY"),
])  # fmt: skip
def test_a_join_that_cannot_be_computed_shows_its_place(low: str, on: str, code: str, shown: str) -> None:
    # Before: the text of ON or of the two bounds alone, as if it were line 1 of the query.
    text = f"""
SELECT pl.v FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES A.ts AS a, A.v AS v PATTERN (A) DEFINE A AS v = 1) AS pl
JOIN HISTORY OF h FROM {low} TO pl.a + INTERVAL 1 DAY AS h ON {on}"""
    with pytest.raises(hybrid.QueryError) as raised:
        hybrid.sql(text, t=T, h=T)
    live = hybrid.connect()
    for name in "th":
        live.create_stream(name, {"ts": "TIMESTAMP", "s": "VARCHAR", "n": "VARCHAR", "v": "BIGINT"}, time="ts")
    alerts = live.watch(text)
    for name in "ht":
        live.push(name, T)
        live.advance(name, None)
    with pytest.raises(hybrid.QueryError) as fetched:
        alerts.fetch()
    live.close()
    for error in (raised.value, fetched.value):
        (fault,) = error.diagnostics
        assert (fault.code, error.text[fault.span.start : fault.span.end]) == (code, shown)

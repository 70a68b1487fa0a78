"""docs/recipes.md: each query returns what plain SQL computes from the same rows, without patterns."""

from __future__ import annotations

import re

import duckdb
import pytest

import hybrid
from tests.docs.documents import ROOT, Block, blocks

PAGE = "docs/recipes.md"
RECIPES = {b.line: b for b in blocks("sql") if b.path == PAGE}
#: By heading: what the recipe's query asks, over the tables of its WITH, in window functions and joins.
PLAIN = {
    "Sessions": """
        SELECT who, min(ts), max(ts) - min(ts), count(*) FROM (
            SELECT *, count(*) FILTER (first) OVER (PARTITION BY who ORDER BY ts) AS session FROM (
                SELECT *, coalesce(ts - lag(ts) OVER w >= INTERVAL 30 MINUTE, true) AS first FROM clicks
                WINDOW w AS (PARTITION BY who ORDER BY ts)))
        GROUP BY who, session ORDER BY who, min(ts)""",
    "A funnel": """
        SELECT s.who, s.ts, min(p.ts), min(b.ts)
        FROM clicks s JOIN clicks p ON p.who = s.who AND p.ts > s.ts JOIN clicks b ON b.who = s.who AND b.ts > p.ts
        WHERE s.page = 'search' AND p.page = 'product' AND b.page = 'buy' AND b.ts <= s.ts + INTERVAL 2 HOUR
        GROUP BY s.who, s.ts ORDER BY s.ts""",
    "Streaks": """
        SELECT team, min(day), max(day), count(*) FROM (
            SELECT *, count(*) FILTER (NOT won) OVER (PARTITION BY team ORDER BY day) AS lost FROM games)
        WHERE won GROUP BY team, lost HAVING count(*) >= 3""",
    "Gaps": """
        SELECT number + 1, after - 1 FROM (SELECT number, lead(number) OVER (ORDER BY number) AS after FROM invoices)
        WHERE after > number + 1 ORDER BY number""",
    "Islands": """
        SELECT who, min(day), max(day), count(*) FROM (
            SELECT *, day - CAST(row_number() OVER (PARTITION BY who ORDER BY day) AS INTEGER) AS island FROM visits)
        GROUP BY who, island ORDER BY who, min(day)""",
    "A V": """
        SELECT a.day, a.price, low.price, last.day, last.price
        FROM prices a JOIN prices low ON low.day > a.day JOIN prices last ON last.day > low.day
        WHERE low.day - a.day >= 2
            AND NOT EXISTS (FROM moves WHERE day > a.day AND day <= low.day AND price >= before)
            AND NOT EXISTS (FROM moves WHERE day > low.day AND day <= last.day AND price <= before)
            AND NOT EXISTS (FROM moves WHERE day = a.day AND price < before)
            AND NOT EXISTS (FROM moves WHERE day = last.day + 1 AND price > before)""",
    "A z-score": """
        SELECT minute, celsius, round((celsius - mean) / deviation, 1) FROM (
            SELECT *, avg(celsius) OVER w AS mean, stddev(celsius) OVER w AS deviation, count(*) OVER w AS n
            FROM readings WINDOW w AS (ORDER BY minute ROWS BETWEEN 5 PRECEDING AND 1 PRECEDING))
        WHERE n = 5 AND abs(celsius - mean) > 3 * deviation""",
    "Absence": """
        SELECT who, ts, ts + INTERVAL 1 HOUR <= (SELECT max(ts) FROM events) FROM events o
        WHERE kind = 'order' AND NOT EXISTS (
            FROM events p WHERE p.who = o.who AND p.kind = 'pay' AND p.ts BETWEEN o.ts AND o.ts + INTERVAL 1 HOUR)
        ORDER BY ts""",
    "Overlapping intervals": """
        SELECT room, min(begins), max(ends), count(*) FROM (
            SELECT *, count(*) FILTER (first) OVER (PARTITION BY room ORDER BY begins, ends) AS number FROM (
                SELECT *, coalesce(begins > max(ends) OVER (
                    PARTITION BY room ORDER BY begins, ends ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
                ), true) AS first FROM bookings))
        GROUP BY room, number ORDER BY room, min(begins)""",
    "The top n of each key": """
        SELECT symbol, day, fall FROM (
            SELECT *, row_number() OVER (PARTITION BY symbol ORDER BY fall DESC) AS place FROM (
                SELECT symbol, min(day) AS day, max(price) - min(price) AS fall FROM (
                    SELECT *, count(*) FILTER (rises) OVER (PARTITION BY symbol ORDER BY day) AS number FROM (
                        SELECT *, coalesce(price >= lag(price) OVER (PARTITION BY symbol ORDER BY day), true) AS rises
                        FROM prices))
                GROUP BY symbol, number HAVING count(*) > 1))
        WHERE place <= 2 ORDER BY symbol, fall DESC""",
    "The last known value": """
        SELECT *, last_value(celsius IGNORE NULLS) OVER (PARTITION BY machine ORDER BY minute) FROM readings
        ORDER BY machine, minute""",
    "Trade and quote": """
        SELECT t.symbol, t.ts, t.price, max(q.ts), max_by(q.bid, q.ts) FROM trades t JOIN quotes q USING (symbol)
        WHERE volume >= 500 AND q.ts <= t.ts GROUP BY ALL ORDER BY t.ts""",
}  # fmt: skip
MOVES = ", moves AS (SELECT *, lag(price) OVER (ORDER BY day) AS before FROM prices)"


def heading(block: Block) -> str:
    """Returns the heading that a block is under."""
    lines = (ROOT / block.path).read_text(encoding="utf-8").splitlines()[: block.line]
    return [line.removeprefix("## ") for line in lines if line.startswith("## ")][-1]


def test_each_recipe_has_one_query_and_is_listed() -> None:
    assert [heading(b) for b in RECIPES.values()] == list(PLAIN)
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    listed = re.findall(r"\[([^\]]+)\]\(#", text)
    assert [name.lower() for name in listed] == [name.lower() for name in PLAIN]


@pytest.mark.slow
@pytest.mark.parametrize("block", RECIPES.values(), ids=heading)
def test_a_recipe_returns_what_plain_sql_does(block: Block) -> None:
    tables, _, _ = block.text.partition("\nSELECT")
    plain = tables + (MOVES if heading(block) == "A V" else "") + PLAIN[heading(block)]
    expected = duckdb.sql(plain).fetchall()
    assert expected
    assert hybrid.sql(block.text).fetchall() == expected

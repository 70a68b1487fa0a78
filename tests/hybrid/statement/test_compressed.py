"""Matches counted, and matches as a graph, from a text."""

from __future__ import annotations

from datetime import datetime, timedelta

import pyarrow as pa
import pytest

import hybrid
from hybrid.statement.relations import Relations
from hybrid.statement.statement import answer
from matching.matcher import make_matcher

START = datetime(2024, 1, 1)
WORDS = {"x": "abcabcc", "y": "ab", "z": "aabbcc", None: "abc"}
EVENTS = [
    {"ts": START + timedelta(seconds=i), "k": k, "n": len(word), "s": s}
    for k, word in WORDS.items() for i, s in enumerate(word)
]  # fmt: skip
FACTOR = """e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES FIRST(A.ts) AS a, LAST(ts) AS c
    PATTERN (A B C) {} SELECTION SKIP TILL ANY MATCH DEFINE A AS s = 'a', B AS s = 'b', C AS s = 'c') AS m"""
MATCHES = FACTOR.format("")
NO_SKIP = "AFTER MATCH NO SKIP PATTERN"
NUMBERED = """(SELECT k, n, s, at_a FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts
    MEASURES count(B.*) AS n, sum(B.n) AS s, A.n AS at_a PATTERN (A B+ C)
    SELECTION SKIP TILL ANY MATCH DEFINE A AS s = 'a', B AS s = 'b', C AS s = 'c')) AS m"""


def found(text: str) -> list[tuple[object, ...]]:
    """The rows of a statement whose matches are found and not counted."""
    with Relations(text, {"e": EVENTS}).open() as relations:
        table = answer(text, relations, lambda plan: make_matcher(plan)).arrow()
    return sorted(zip(*(c.to_pylist() for c in table.columns)), key=repr)


COUNTED = [
    f"SELECT k, count(*) AS found FROM {MATCHES} GROUP BY k",
    f"SELECT count(*) FROM {MATCHES}",
    f"SELECT count(*) + 1, count(*) FILTER (WHERE m.k = 'x') FROM {FACTOR.format('WITHIN 4 ROWS')}",
    f"SELECT k || '!' AS name, count(*) FROM {MATCHES} WHERE k <> 'z' GROUP BY 1 ORDER BY count(*) DESC LIMIT 3",
    f"SELECT k, count(*) AS found FROM {MATCHES} GROUP BY ALL HAVING found > 1",
    f"SELECT count(*) FROM {MATCHES} WHERE k = 'nowhere'",
    f"SELECT count(*) FROM {FACTOR.format('WITHIN INTERVAL 3 SECOND')}",
    # Before: the matches were found.
    f"SELECT k, count(*), max(c) FROM {MATCHES} GROUP BY k",
    f"SELECT upper(k), max(m.c) AS c, min(a) FILTER (WHERE k = 'x') FROM {MATCHES} GROUP BY k ORDER BY round(count(*))",
    f"SELECT CASE WHEN count(*) > 3 THEN 'many' END AS how, count(a) FROM {MATCHES} GROUP BY k HAVING max(c) > min(a)",
    f"SELECT count(*)::BIGNUM, sum(n)::HUGEINT, sum(n)::DOUBLE, avg(n) FROM {NUMBERED}",
    f"SELECT k, avg(s), sum(n), count(s), min(at_a), max(at_a) AS at_a FROM (SELECT * FROM {NUMBERED}) GROUP BY ALL",
    f"SELECT count(*) FROM {MATCHES.replace('SKIP TILL ANY MATCH', 'PARTITION').replace('PATTERN', NO_SKIP)}",
]


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("text", COUNTED)
def test_counted_is_found(text: str) -> None:
    result = hybrid.sql(text, e=EVENTS)
    assert "matches are counted" in result.explain("program")
    table = result.arrow()
    assert sorted(zip(*(c.to_pylist() for c in table.columns)), key=repr) == found(text)
    with Relations(text, {"e": EVENTS}).open() as relations:
        other = answer(text, relations, lambda plan: make_matcher(plan)).arrow()
    assert table.schema == other.schema


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT k, count(DISTINCT a) FROM {MATCHES} GROUP BY k",
        f"SELECT a, count(*) FROM {MATCHES} GROUP BY a",
        f"SELECT k, count(*) AS a FROM {MATCHES} WHERE a IS NOT NULL GROUP BY k",
        f"SELECT k, sum(length(k)), count(*) FROM {MATCHES} GROUP BY k",
        f"SELECT count(*), (SELECT 1) FROM {MATCHES}",
        f"SELECT k, count(*) OVER () FROM {MATCHES}",
        f"SELECT k FROM {MATCHES}",
        f"SELECT count(*) FROM {MATCHES.replace('SKIP TILL ANY MATCH', 'PARTITION')}",
        f"SELECT k, max(a) FROM {FACTOR.format('WITHIN INTERVAL 3 SECOND')} GROUP BY k",
        f"SELECT max(n), sum(s) FROM {NUMBERED}",
        f"SELECT max(c) OVER (), k FROM {MATCHES}",
        f"SELECT count(*), median(c) FROM {MATCHES}",
        f"SELECT max(a) FROM (SELECT DISTINCT a FROM {MATCHES}) AS m",
        f"SELECT max(a) FROM (SELECT c AS a FROM {MATCHES}) AS m",
    ],
)
def test_what_needs_the_matches_finds_them(text: str) -> None:
    assert "matches are counted" not in hybrid.sql(text, e=EVENTS).explain("program")


def test_counted_matches_have_evidence() -> None:
    result = hybrid.sql(f"SELECT count(*) AS found FROM {MATCHES}", e=EVENTS)
    assert result.arrow()["found"].to_pylist() == [16]
    assert result.evidence().num_rows == 3 * 16
    assert "16" in result._repr_html_()


def test_more_than_can_be_found_are_counted() -> None:
    text = """SELECT count(*) AS found FROM e MATCH_RECOGNIZE (ORDER BY ts MEASURES LAST(ts) AS t PATTERN (A+)
        SELECTION SKIP TILL ANY MATCH DEFINE A AS TRUE)"""
    rows = [{"ts": START + timedelta(seconds=i)} for i in range(60)]
    assert hybrid.sql(text, e=rows).arrow()["found"].to_pylist() == [2**60 - 1]


# ---- as a graph

PICKED = f"SELECT k, c, a FROM {MATCHES}"


def test_a_graph_has_the_rows_of_the_statement() -> None:
    graph = hybrid.matches(PICKED, e=EVENTS)
    assert isinstance(graph, hybrid.Compressed)
    expected = hybrid.sql(PICKED, e=EVENTS).arrow()
    whole = graph.decode()
    assert whole.schema == expected.schema
    assert sorted(map(repr, whole.to_pylist())) == sorted(map(repr, expected.to_pylist()))
    assert graph.count() == len(expected) == 16
    assert pa.concat_tables(list(graph)).equals(whole)
    assert graph.decode(limit=4).equals(whole.slice(0, 4))
    assert graph.decode(limit=0).equals(whole.slice(0, 0))
    assert repr(graph) == f"16 matches in {graph.nodes().num_rows} nodes"


def test_a_graph_of_no_matches() -> None:
    graph = hybrid.matches(PICKED, e=EVENTS[:2])
    assert graph.count() == 0
    assert graph.decode().schema == hybrid.sql(PICKED, e=EVENTS).arrow().schema
    assert list(graph) == []
    assert graph.ends().num_rows == 0


@pytest.mark.parametrize(
    "text",
    [
        f"SELECT count(*) FROM {MATCHES}",
        f"SELECT m.k FROM {MATCHES}, e",
        PICKED.replace("SKIP TILL ANY MATCH", "PARTITION"),
        PICKED.replace("FIRST(A.ts) AS a", "MATCH_NUMBER() AS a"),
        PICKED.replace("A B C", "A NOT B C"),
    ],
)
def test_what_is_no_graph_is_refused(text: str) -> None:
    with pytest.raises(hybrid.QueryError, match="HQ500"):
        hybrid.matches(text, e=EVENTS)

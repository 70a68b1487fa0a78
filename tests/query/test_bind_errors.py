"""What is wrong with a query, as it is rendered, with the caret under it."""

from __future__ import annotations

import random
import re
import warnings

import pytest

from query.errors import CODES, HybridWarning, QueryError
from tests.query.test_bind import plan_of, read_cases

CASES = read_cases("errors.case")


def rendered(query: str) -> str:
    with pytest.raises(QueryError) as caught:
        plan_of(query, live=query.startswith("-- live"))
    error = caught.value
    assert error.text == query
    for diagnostic in error.diagnostics:
        assert diagnostic.code in CODES
        assert 0 <= diagnostic.span.start <= diagnostic.span.end <= len(query)
    return error.render()


@pytest.mark.parametrize(("name", "query", "expected"), CASES, ids=lambda v: v.split("\n")[0][:40])
def test_error(name: str, query: str, expected: str) -> None:
    assert rendered(query) == expected


def test_there_are_enough_errors() -> None:
    assert len(CASES) >= 12


@pytest.mark.parametrize(
    "expression",
    ["", "price >", "price, volume", "price FROM ticks", "price; DROP TABLE ticks", "*", "?", "$1", "COLUMNS(*)", "#1",
     "PREV()", "PREV(price, 1, 2)", "CLASSIFIER(1)", "count(Z.*)", "sum(A.*)", "unnest([1])", "price COLLATE NOCASE",
     "sum()", "mode()", "count(DISTINCT *)", "count(A.*, B.*)", "count(COLUMNS(*))", "list(price ORDER BY ALL)",
     "sum(price ORDER BY)", "sum(price) FILTER (WHERE)", "A.price.first().last()", "a.b.c.upper()", "PREV(A.*)",
     "rank() OVER ()", "'unfinished", "EXISTS (SELECT 1)", "grouping(price)", "é", "nosuch.price", "A", "PREV(1)",
     "+".join(["price"] * 900), "(" * 2000 + "1" + ")" * 2000],
    ids=lambda e: e[:20],
)  # fmt: skip
def test_bad_expressions_are_query_errors(expression: str) -> None:
    rendered(f"SELECT * FROM ticks MATCH_RECOGNIZE (MEASURES 1 AS one, {expression} AS m PATTERN (A B))")


def mutated(query: str, draw: random.Random) -> str:
    """The query with one token deleted, doubled, misspelt or swapped with another."""
    tokens = re.findall(r"\w+|\s+|'[^']*'|.", query)
    places = [i for i, t in enumerate(tokens) if not t.isspace()]
    i, j = draw.choice(places), draw.choice(places)
    match draw.randrange(4):
        case 0:
            tokens[i] = ""
        case 1:
            tokens[i] += f" {tokens[i]}"
        case 2:
            at = draw.randrange(len(tokens[i]))
            tokens[i] = tokens[i][:at] + draw.choice("xé'\"(){}.,$~0") + tokens[i][at + draw.randrange(2) :]
        case _:
            tokens[i], tokens[j] = tokens[j], tokens[i]
    return "".join(tokens)


def test_mutated_queries_fail_as_query_errors_only() -> None:
    draw = random.Random(20)
    queries = [query for _, query, _ in read_cases("plans.case")]
    failed: list[QueryError] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        for _ in range(300):
            text = mutated(draw.choice(queries), draw)
            try:
                plan_of(text, live=draw.random() < 0.4)
            except QueryError as error:
                failed.append(error)
    for fault in failed:
        assert all(0 <= d.span.start <= d.span.end <= len(fault.text) for d in fault.diagnostics)
        assert "__hybrid" not in fault.render()
    # some mutations leave a query that is another one, but valid
    assert len(failed) > 200

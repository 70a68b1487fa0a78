"""What is wrong with a query, as it is rendered, with the caret under it."""

from __future__ import annotations

import pytest

from query.errors import CODES, QueryError
from tests.query.mutations import count_failed
from tests.query.plan.test_bind import plan_of, read_cases

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
     "A.count()", "A.count(*)",
     "sum(price ORDER BY)", "sum(price) FILTER (WHERE)", "A.price.first().last()", "a.b.c.upper()", "PREV(A.*)",
     "rank() OVER ()", "'unfinished", "EXISTS (SELECT 1)", "grouping(price)", "é", "nosuch.price", "A", "PREV(1)",
     "+".join(["price"] * 900), "(" * 2000 + "1" + ")" * 2000],
    ids=lambda e: e[:20],
)  # fmt: skip
def test_bad_expressions_are_query_errors(expression: str) -> None:
    rendered(f"SELECT * FROM ticks MATCH_RECOGNIZE (MEASURES 1 AS one, {expression} AS m PATTERN (A B))")


@pytest.mark.slow
def test_mutated_queries_fail_as_query_errors_only() -> None:
    assert count_failed(plan_of, [query for _, query, _ in read_cases("plans.case")], 20) > 200

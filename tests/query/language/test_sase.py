"""SASE+ statements: the plans they give, what is wrong with them with the caret under it, and where spans lead."""

from __future__ import annotations

import warnings

import pytest

from query.errors import CODES, HybridWarning, QueryError
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.expression import Aggregate, walk
from query.plan.fingerprint import fingerprint
from query.plan.plan import QueryPlan
from query.schema import Field, Schema
from tests.query.mutations import count_failed
from tests.query.plan.test_bind import TICKS, read_cases, resolve

READS = Schema(
    "reads",
    (Field("ts", "TIMESTAMP"), *(Field(name, "VARCHAR") for name in ("kind", "tag_id", "type", "site", "from", "to"))),
    time="ts",
)
OTHERS = {
    "reads": READS,
    "names": Schema("names", (Field("symbol", "VARCHAR"),)),
    "visits": Schema("visits", (Field("came", "TIMESTAMP"), Field("went", "TIMESTAMP"))),
    "(select * from ticks)": TICKS,
    "shelf": Schema("shelf", (Field("ts", "TIMESTAMP"), Field("tag_id", "INTEGER"), Field("site", "VARCHAR")), "ts"),
    "register": Schema(
        "REGISTER", (Field("at", "TIMESTAMP"), Field("TAG_ID", "BIGINT"), Field("price", "REAL")), "at", (), ("price",)
    ),
    "exit": Schema("exit", (Field("ts", "DATE"), Field("tag_id", "SMALLINT")), "ts"),
    "bare": Schema("bare", (Field("ts", "TIMESTAMP"), Field("tag_id", "VARCHAR"))),
    "marked": Schema("marked", (Field("t", "TIMESTAMP"), Field("stream", "VARCHAR"))),
    "odd": Schema("odd", (Field("t", "TIMESTAMP"), Field("ts", "VARCHAR")), "t"),
    "tied": Schema("tied", (Field("ts", "TIMESTAMP"), Field("n", "BIGINT")), "ts", order=("n",)),
    "numbered": Schema("numbered", (Field("ts", "TIMESTAMP"), Field("n", "BIGINT")), "ts"),
}


def resolved(name: str) -> Schema:
    return OTHERS[name.lower()] if name.lower() in OTHERS else resolve(name)


def plan_of(text: str, live: bool = False) -> QueryPlan:
    return bind(parse(text), resolved, live)


@pytest.mark.parametrize(("name", "query", "expected"), read_cases("sase_plans.case"), ids=lambda v: v[:40])
def test_plan(name: str, query: str, expected: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        assert str(plan_of(query)) == expected


@pytest.mark.parametrize(("name", "query", "expected"), read_cases("sase_errors.case"), ids=lambda v: v[:40])
def test_error(name: str, query: str, expected: str) -> None:
    with pytest.raises(QueryError) as caught:
        plan_of(query, live=query.startswith("-- live"))
    assert {d.code for d in caught.value.diagnostics} <= CODES.keys()
    assert caught.value.render() == expected


def sql_of(pattern: str, define: str, rest: str = "") -> str:
    """The SQL that the statements below mean."""
    return f"""FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol MEASURES B.price AS p AFTER MATCH NO SKIP
        PATTERN ({pattern}) {rest} DEFINE {define})"""


@pytest.mark.parametrize(
    ("sase", "sql"),
    [
        (
            "SEQ(ticks+ a[], ticks b) WHERE partition_contiguity(a, b) "
            "{ [symbol] and a[1].volume > 1000 and a[i].price > a[i-1].price and b.volume < 80%*a[a.LEN].volume }",
            sql_of(
                "A+ B",
                "A AS (count(A.*) = 1 AND volume > 1000) OR (count(A.*) > 1 AND price > LAST(A.price, 1)), "
                "B AS volume < 0.8 * A.volume",
            ),
        ),
        (
            "SEQ(ticks a, ~(ticks n), ticks b) WHERE skip_till_any_match(a, n, b) "
            "{ [symbol] and n.price > b.price and b.price > a.price } WITHIN 90 minutes",
            sql_of(
                "A ~N B",
                "N AS price > B.price, B AS price > A.price",
                "WITHIN INTERVAL 90 MINUTES SELECTION SKIP TILL ANY MATCH",
            ),
        ),
    ],
)
def test_a_statement_is_the_plan_of_its_sql(sase: str, sql: str) -> None:
    first = plan_of(f"FROM ticks PATTERN {sase} RETURN b.price AS p").factors[0].plan
    second = plan_of(sql).factors[0].plan
    assert first == second
    assert fingerprint(first) == fingerprint(second)


def test_spans_lead_into_the_statement() -> None:
    text = (
        "FROM ticks PATTERN SEQ(ticks+ a[], ticks b) WHERE skip_till_next_match(a[], b) "
        "{ a[i].price > avg(a[..i-1].price * 2) and b.price > 5% } RETURN max(a[].price) AS top"
    )
    plan = plan_of(text).factors[0].plan
    (average,) = (e for e in walk(plan.condition("A")) if isinstance(e, Aggregate) and e.function == "avg")
    assert average.before
    assert text[average.span.start : average.span.end] == "avg(a[..i-1].price * 2)"
    top = plan.measures[0].expression
    assert text[top.span.start : top.span.end] == "max(a[].price)"
    (constant,) = (e for e in walk(plan.condition("B")) if getattr(e, "type", "").startswith("DECIMAL"))
    assert text[constant.span.start : constant.span.end] == "5%"


def test_the_only_input_is_meant_without_from() -> None:
    text = "PATTERN SEQ(ticks a, ticks b) WHERE skip_till_next_match(a, b) { [symbol] } RETURN b.price"
    alone = bind(parse(text, ["ticks"]), resolve)
    assert alone.factors == plan_of(f"FROM ticks {text}").factors
    assert bind(parse(text, ["rel", "ticks"]), resolve).factors == alone.factors  # what the types name
    with pytest.raises(QueryError, match="2 inputs are available"):
        parse("TYPE BY symbol PATTERN SEQ(x a) WHERE skip_till_next_match(a) { }", ["ticks", "rel"])


def test_types_are_streams_without_from() -> None:
    text = "PATTERN SEQ(Shelf a, ~(Register b), Exit c) WHERE skip_till_next_match(a, b, c) { [tag_id] } WITHIN 1 hour"
    streams = ["exit", "names", "REGISTER", "shelf"]
    named = bind(parse(text, streams), resolved)
    assert named.factors == plan_of(f"FROM MERGE(shelf, REGISTER, exit) {text}").factors
    with pytest.raises(QueryError, match="unknown event type Register"):
        parse(text, ["exit", "shelf", "names"])


@pytest.mark.slow
def test_mutated_statements_fail_as_query_errors_only() -> None:
    assert count_failed(plan_of, [query for _, query, _ in read_cases("sase_plans.case")], 21) > 150

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


VISIT = "SEQ(ticks x, ticks y) WHERE skip_till_next_match(x, y) { [symbol] and y.price > x.price } WITHIN 1 HOUR"
BOXES = [
    ("SEQ(ticks a, PATTERN visit v) WHERE skip_till_any_match(a, v) { [symbol] and v.n > 3 and v.t0 > a.ts }",
     "PATTERN (A V) SELECTION SKIP TILL ANY MATCH DEFINE V AS PATTERN visit ON n > 3 AND t0 > A.ts", "a.price",
     "A.price"),
    ("SEQ(PATTERN visit+ v[], ticks b) WHERE partition_contiguity(v[], b) "
     "{ [symbol] and v[1].n > 3 and v[i].n > v[i-1].n and b.price > v[v.LEN].n }",
     "PATTERN (V+ B) SELECTION PARTITION DEFINE V AS PATTERN visit ON (count(V.*) = 1 AND n > 3) OR "
     "(count(V.*) > 1 AND n > LAST(V.n, 1)), B AS price > V.n", "count(v[])", "count(V.*)"),
    ("SEQ(ticks a, ~(PATTERN visit v), PATTERN visit w) WHERE skip_till_next_match(a, w) { [symbol] and v.t1 > a.ts }",
     "PATTERN (A ~V W) SELECTION SKIP TILL NEXT MATCH DEFINE V AS PATTERN visit ON t1 > A.ts, W AS PATTERN visit",
     "w.n", "W.n"),
    ("SEQ(ticks a, ~PATTERN visit v, PATTERN visit w) WHERE strict_contiguity(a, w) { [symbol] }",
     "PATTERN (A ~V W) SELECTION STRICT DEFINE V AS PATTERN visit, W AS PATTERN visit", "w.t1", "W.t1"),
    ("SEQ(PATTERN visit+ v[]) WHERE skip_till_any_match(v[]) { [symbol] and count(v[]) > 1 }",
     'PATTERN ("v[i]"* "v[LEN]") SELECTION SKIP TILL ANY MATCH SUBSET V = ("v[i]", "v[LEN]") '
     'DEFINE "v[i]" AS PATTERN visit, "v[LEN]" AS PATTERN visit ON count(V.*) > 1', "avg(v[].n)", "avg(V.n)"),
]  # fmt: skip


@pytest.mark.parametrize(("sase", "sql", "returned", "measure"), BOXES)
@pytest.mark.parametrize("of_visit", [
    f"FROM ticks PATTERN {VISIT} RETURN x.price AS n",
    """SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol MEASURES X.price AS n AFTER MATCH NO SKIP PATTERN (X Y)
    WITHIN INTERVAL 1 HOUR SELECTION SKIP TILL NEXT MATCH DEFINE Y AS price > X.price)""",
])  # fmt: skip
def test_boxes_of_a_statement_are_those_of_its_sql(
    sase: str, sql: str, returned: str, measure: str, of_visit: str
) -> None:  # fmt: skip
    plans = []
    for text in (
        f"WITH visit AS ({of_visit}) FROM ticks PATTERN {sase} WITHIN 2 HOURS RETURN {returned} AS p",
        f"WITH visit AS ({of_visit}) FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol MEASURES {measure} AS p AFTER "
        f"MATCH NO SKIP {sql.replace(' SELECTION', ' WITHIN 2 HOURS SELECTION')})",
    ):  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HybridWarning)
            plans.append(plan_of(text).factors[-1].plan)
    assert plans[0] == plans[1]
    assert fingerprint(plans[0]) == fingerprint(plans[1])


def test_a_type_may_be_called_pattern() -> None:
    text = "FROM reads TYPE BY kind PATTERN SEQ(pattern a, ~(pattern b), pattern+ c[]) WHERE strict_contiguity(a, c) {}"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        plan = plan_of(text).factors[0].plan
    assert not plan.boxes
    assert str(plan).count("kind = 'pattern'") == 3


def test_without_return_the_times_are_those_of_all_layers() -> None:
    text = f"""WITH visit AS (FROM ticks PATTERN {VISIT} RETURN x.price AS n)
        FROM ticks PATTERN SEQ(PATTERN visit v) WHERE skip_till_next_match(v) {{ [symbol] }}"""
    times = [str(m.expression) for m in plan_of(text).factors[-1].plan.measures if m.name.endswith("_ts")]
    assert [("#t0" in times[0]), ("#t1" in times[1])] == [True, True]


def test_trends_take_events_only() -> None:
    text = f"""WITH visit AS (FROM ticks PATTERN {VISIT} RETURN x.price AS n)
        FROM ticks PATTERN SEQ(ticks a, PATTERN visit v) WHERE [symbol] WITHIN 1 HOUR RETURN COUNT(*)"""
    with pytest.raises(QueryError, match=r"HQ500(.|\n)*a box in a statement about trends"):
        plan_of(text)


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

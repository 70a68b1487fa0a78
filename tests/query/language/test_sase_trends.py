"""Trend statements of SASE+: the plans they give, what is wrong with them with the caret under it, and their SQL."""

from __future__ import annotations

import warnings

import pytest

from query.errors import CODES, HybridWarning, QueryError
from query.language.cut import lacks_input
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.fingerprint import fingerprint
from query.plan.output import output_columns
from query.plan.plan import Plan, QueryPlan
from query.schema import Field, Schema
from tests.query.mutations import count_failed
from tests.query.plan.test_bind import read_cases

FIELDS = (
    Field("ts", "TIMESTAMP"), Field("kind", "VARCHAR"), Field("driver_id", "BIGINT"), Field("district", "VARCHAR"),
    Field("speed", "DOUBLE"), Field("duration", "BIGINT"), Field("fare", "DECIMAL(9,2)"),
)  # fmt: skip
RIDES = Schema("rides", FIELDS, "ts")
#: Streams that are called like the types of their events.
STREAMS = {name: Schema(name, (FIELDS[0], *FIELDS[2:]), "ts") for name in "APTD"}


def resolved(name: str) -> Schema:
    return {"rides": RIDES, **{n.lower(): s for n, s in STREAMS.items()}}[name.lower()]


def plan_of(text: str, live: bool = False) -> QueryPlan:
    return bind(parse(text, tuple(STREAMS)), resolved, live)


def trend_plan(text: str) -> Plan:
    return plan_of(text).factors[0].plan


@pytest.mark.parametrize(("name", "query", "expected"), read_cases("trend_plans.case"), ids=lambda v: v[:40])
def test_plan(name: str, query: str, expected: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", HybridWarning)
        assert str(plan_of(query)) == expected


@pytest.mark.parametrize(("name", "query", "expected"), read_cases("trend_errors.case"), ids=lambda v: v[:40])
def test_error(name: str, query: str, expected: str) -> None:
    with pytest.raises(QueryError) as caught:
        plan_of(query)
    assert {d.code for d in caught.value.diagnostics} <= CODES.keys()
    assert caught.value.render() == expected


TYPED = "FROM rides TYPE BY kind "


def sql_of(clauses: str) -> str:
    return f"FROM rides MATCH_RECOGNIZE ({clauses})"


@pytest.mark.parametrize(
    ("sase", "sql"),
    [
        (
            TYPED + "PATTERN SEQ(A a, (SEQ(P p, T t))+, D d) WHERE [driver_id] AND t.speed > 10 GROUP BY district "
            "WITHIN 30 MINUTES SLIDE 5 MINUTES RETURN district, COUNT(*) AS n, AVG(T.speed) AS mean",
            "PARTITION BY driver_id, district GROUP BY district MEASURES COUNT(MATCHES) AS n, AVG(T.speed) AS mean "
            "ONE ROW PER WINDOW PATTERN (A (P T)+ D) WITHIN 30 MINUTES SLIDE 5 MINUTES DEFINE A AS kind = 'A', "
            "P AS kind = 'P', T AS (kind = 'T') AND (speed > 10), D AS kind = 'D'",
        ),
        (
            TYPED + "PATTERN SEQ((A a OR P p), ~(T t), D* d) WHERE partition_contiguity(a, p, d) { } WITHIN 1 HOUR "
            "SLIDE 30 MINUTES RETURN COUNT(a) AS n, MIN(fare) AS low",
            "MEASURES COUNT(A.*) AS n, MIN(fare) AS low ONE ROW PER WINDOW PATTERN ((A | P) ~T D*) WITHIN 1 HOUR "
            "SLIDE 30 MINUTES SELECTION PARTITION DEFINE A AS kind = 'A', P AS kind = 'P', T AS kind = 'T', "
            "D AS kind = 'D'",
        ),
        (
            TYPED + "PATTERN SEQ(A+ a[], P p) WHERE a[i].speed >= a[i-1].speed AND p.speed > a.speed WITHIN 1 HOUR "
            "RETURN SUM(A.duration) / COUNT(*) AS r",
            "MEASURES SUM(A.duration) / COUNT(MATCHES) AS r ONE ROW PER WINDOW PATTERN (A+ P) WITHIN 1 HOUR "
            "DEFINE A AS (kind = 'A') AND ((count(A.*) = 1) OR (count(A.*) > 1 AND speed >= LAST(A.speed, 1))), "
            "P AS (kind = 'P') AND (speed > LAST(A.speed))",
        ),
        (
            TYPED + "PATTERN SEQ(A a, P p, A b) WITHIN 1 HOUR RETURN COUNT(A) AS n",
            "MEASURES COUNT(\"A[]\".*) AS n ONE ROW PER WINDOW PATTERN (A P B) WITHIN 1 HOUR SUBSET \"A[]\" = (A, B) "
            "DEFINE A AS kind = 'A', P AS kind = 'P', B AS kind = 'A'",
        ),
    ],
)  # fmt: skip
def test_a_statement_is_the_plan_of_its_sql(sase: str, sql: str) -> None:
    first, second = trend_plan(sase), trend_plan(sql_of(sql))
    assert first == second
    assert fingerprint(first) == fingerprint(second)


def test_the_output_has_the_window_the_groups_and_what_is_returned() -> None:
    plan = trend_plan(
        "RETURN COUNT(*), AVG(T.speed), district, SUM(T.fare) AS paid, AVG(P.speed) FROM rides TYPE BY kind "
        "PATTERN SEQ(P, T) WHERE [driver_id] GROUP BY district WITHIN 30 minutes"
    )
    assert [(c.name, c.type) for c in output_columns(plan)] == [
        ("window_start", "TIMESTAMP"), ("window_end", "TIMESTAMP"), ("district", "VARCHAR"), ("count", "BIGNUM"),
        ("avg_t_speed", "DOUBLE"), ("paid", "VARCHAR"), ("avg_p_speed", "DOUBLE"),
    ]  # fmt: skip


def test_having_may_name_what_is_returned() -> None:
    text = TYPED + "PATTERN SEQ(A a, P p) GROUP BY district HAVING {} WITHIN 1 hour RETURN COUNT(*) AS n, SUM(a.speed)"
    named = trend_plan(text.format("n > 3 AND sum_speed / N < 2 AND district <> 'n'"))
    assert named == trend_plan(text.format("COUNT(*) > 3 AND SUM(a.speed) / COUNT(*) < 2 AND district <> 'n'"))
    with pytest.raises(QueryError, match="rides has no column m"):
        trend_plan(text.format("m > 3"))
    text = TYPED + "PATTERN SEQ(A a, P p) HAVING {} WITHIN 1 hour RETURN SUM(a.speed) AS speed, COUNT(*) AS a"
    within = trend_plan(text.format("SUM(speed) > speed AND COUNT(a) > a"))  # a name in an aggregate is a column's
    assert within == trend_plan(text.format("SUM(speed) > SUM(a.speed) AND COUNT(a) > COUNT(*)"))


def test_and_is_another_plan_than_its_sides_in_order() -> None:
    both = trend_plan(TYPED + "PATTERN SEQ(A, P) AND SEQ(T, D) WITHIN 1 hour RETURN COUNT(*)")
    other = trend_plan(TYPED + "PATTERN SEQ(T, D) AND SEQ(A, P) WITHIN 1 hour RETURN COUNT(*)")
    row = trend_plan(TYPED + "PATTERN SEQ(A, P, T, D) WITHIN 1 hour RETURN COUNT(*)")
    assert len({fingerprint(plan) for plan in (both, other, row)}) == 3
    assert str(both.pattern) == "(A P) AND (T D)"


@pytest.mark.parametrize(
    ("pattern", "meant"),
    [
        ("A*", "A+"), ("(A* a)+", "(A+)+"), ("A* OR P*", "A+ | P+"), ("A* AND SEQ(P*)", "(A+) AND (P+)"),
        ("SEQ(A*, P)", "A* P"), ("SEQ(SEQ(A, P), T)", "A P T"), ("((A OR P) OR T)", "A | P | T"),
        ("(A AND P) AND T", "(A) AND (P) AND (T)"), ("SEQ(A, P)+", "(A P)+"), ("SEQ(A, ∼(P p), T)", "A ~P T"),
        ("(SEQ(A a, NOT(P p), T t))+", "(A ~P T)+"), ('"A"+ "x y"[]', '"x y"+'), ("(" * 45 + "A" + ")" * 45, "A"),
    ],
)  # fmt: skip
def test_a_pattern(pattern: str, meant: str) -> None:
    assert str(trend_plan(f"{TYPED} PATTERN {pattern} WITHIN 1 hour RETURN COUNT(*)").pattern) == meant


def test_a_pattern_nests_to_a_limit() -> None:
    with pytest.raises(QueryError, match="nested deeper than 50"):
        trend_plan(f"{TYPED} PATTERN {'(' * 60}A{')' * 60} WITHIN 1 hour RETURN COUNT(*)")


def test_variables_may_be_called_like_words_of_sql() -> None:
    plan = trend_plan(
        TYPED + "PATTERN SEQ(A end, Order order, Table) WHERE end.speed > 1 AND order.speed > end.speed "
        "WITHIN 1 hour RETURN COUNT(order), MAX(end.speed) AS top"
    )
    assert str(plan.pattern) == "END ORDER TABLE"
    assert [d.variable for d in plan.defines] == ["END", "ORDER", "TABLE"]


@pytest.mark.parametrize(
    ("text", "lacks"),
    [
        ("PATTERN A+ WITHIN 1 hour RETURN COUNT(*)", True),
        ("-- trends\nRETURN COUNT(*) PATTERN A+ WITHIN 1 hour", True),
        ("RETURN COUNT(*), a.x IS DISTINCT FROM 3 AS y TYPE BY kind PATTERN (A a)+ WITHIN 1 hour", True),
        ("RETURN COUNT(*) FROM rides PATTERN A+ WITHIN 1 hour", False),
        ("RETURN '", False),
        ("SELECT 1", False),
    ],
)
def test_a_statement_without_from_reads_all_inputs(text: str, lacks: bool) -> None:
    assert lacks_input(text) is lacks


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT pattern.ts FROM rides pattern",
        "SELECT b FROM rides pattern (a, b)",
        "SELECT b FROM rides AS pattern (a, b)",
        "SELECT a FROM rides pattern (a)",
        "SELECT a FROM rides pattern (a) WHERE a IS NOT NULL GROUP BY a",
        "FROM rides pattern JOIN rides AS b ON true",
        "FROM rides pattern LEFT JOIN rides AS b ON true",
        "FROM rides pattern WHERE kind = 'A'",
        "FROM rides pattern",
        "SELECT pattern (1)",
        "SELECT return FROM rides",
        "SELECT return, pattern FROM rides",
    ],
)
def test_names_of_sql_stay_names(sql: str) -> None:
    assert parse(sql).factors == ()


def test_statements_in_other_statements() -> None:
    inner = "RETURN COUNT(*) AS n FROM rides TYPE BY kind PATTERN SEQ(A, P) WITHIN 1 hour"
    alone = plan_of(inner)
    nested = plan_of(f"SELECT max(n) FROM ({inner}) AS m WHERE n > 3")
    assert nested.factors == alone.factors
    assert nested.select_sql == "SELECT max(n) FROM (FROM __hybrid_factor_0 AS rides) AS m WHERE n > 3"
    stored = parse(f"CREATE TABLE kept AS {inner}")
    assert stored.factors[0].match.trends is not None
    union = plan_of(f"({inner}) UNION ALL ({inner})")
    assert [f.plan for f in union.factors] == [alone.factors[0].plan] * 2


def test_a_statement_with_a_strategy_and_none_of_the_new_clauses_is_about_matches() -> None:
    text = TYPED + "PATTERN SEQ(A a, P p) WHERE skip_till_any_match(a, p) { [driver_id] } WITHIN 1 hour RETURN a.speed"
    assert trend_plan(text).trends is None
    assert trend_plan(text.replace(" RETURN a.speed", " SLIDE 30 minutes RETURN COUNT(*)")).trends is not None


@pytest.mark.slow
def test_mutated_statements_fail_as_query_errors_only() -> None:
    assert count_failed(plan_of, [query for _, query, _ in read_cases("trend_plans.case")], 21) > 150

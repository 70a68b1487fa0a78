"""Plans of queries as text, the types in them against DuckDB, and what binding does with a query's names."""

from __future__ import annotations

import warnings
from itertools import permutations
from pathlib import Path

import duckdb
import pytest

from query.errors import HybridWarning, QueryError
from query.language.ast import AfterMatchKind, Selection
from query.language.duck import Folded, deserialize, fold, parse_expression, quiet_connection
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.expression import (
    Aggregate,
    Call,
    Classifier,
    Column,
    Constant,
    Expression,
    Logical,
    MatchNumber,
    Navigation,
    Opaque,
    is_row_local,
    to_sql,
    walk,
)
from query.plan.fingerprint import fingerprint as fingerprint_of
from query.plan.output import output_columns
from query.plan.plan import QueryPlan
from query.schema import Field, Schema

TICKS = Schema(
    "ticks",
    (Field("ts", "TIMESTAMP"), Field("symbol", "VARCHAR"), Field("price", "DOUBLE"), Field("volume", "BIGINT")),
    time="ts",
    keys=("symbol",),
)
REL = Schema("rel", (Field("k", "VARCHAR"), Field("id", "INTEGER"), Field("v", "INTEGER"), Field("day", "DATE")))
NAMES = (Field("symbol", "VARCHAR"), Field("label", "VARCHAR"))


def resolve(input_sql: str) -> Schema:
    """The two inputs of these tests, and any subquery as the second."""
    name = input_sql.strip('"').lower()
    if name == "ticks":
        return TICKS
    if name == "rel" or input_sql.startswith("("):
        return REL
    raise LookupError("available: ticks, rel")


def plan_of(text: str, live: bool = False) -> QueryPlan:
    return bind(parse(text), resolve, live, {"names": NAMES, "rel": REL.fields})


def read_cases(file: str) -> list[tuple[str, str, str]]:
    """(name, query, expected) of a file of `#### name`, query, `----`, expected."""
    text = (Path(__file__).parents[1] / file).read_text(encoding="utf-8")
    cases = []
    for part in text.split("#### ")[1:]:
        name, rest = part.split("\n", 1)
        query, expected = rest.split("\n----\n")
        cases.append((name, query, expected.strip("\n")))
    return cases


def measures_of(expressions: str, schema: Schema = TICKS, rest: str = "PATTERN (A B+)") -> list[Expression]:
    text = f"SELECT * FROM t MATCH_RECOGNIZE (MEASURES {expressions} {rest})"
    return [m.expression for m in bind(parse(text), lambda _: schema).factors[0].plan.measures]


def condition_of(define: str, variable: str = "B", pattern: str = "A B+") -> Expression:
    text = f"SELECT * FROM ticks MATCH_RECOGNIZE (PATTERN ({pattern}) DEFINE {define})"
    return plan_of(text).factors[0].plan.condition(variable)


@pytest.mark.parametrize(("name", "query", "expected"), read_cases("plans.case"), ids=lambda v: v.split("\n")[0][:40])
def test_plan(name: str, query: str, expected: str) -> None:
    assert str(plan_of(query, live=query.startswith("-- live"))) == expected


def test_there_are_enough_plans() -> None:
    assert len(read_cases("plans.case")) >= 20


# ---- expressions -----------------------------------------------------------------------------------------------

WIDE = Schema(
    "wide",
    (
        Field("ts", "TIMESTAMP"), Field("day", "DATE"), Field("s", "VARCHAR"), Field("x", "DOUBLE"),
        Field("n", "BIGINT"), Field("i", "INTEGER"), Field("ti", "TINYINT"), Field("d", "DECIMAL(9,2)"),
        Field("b", "BOOLEAN"), Field("l", "INTEGER[]"), Field("st", 'STRUCT(a INTEGER, "B c" VARCHAR)'),
        Field("j", "VARCHAR"), Field("tz", "TIMESTAMPTZ"), Field("iv", "INTERVAL"), Field("_0", "INTEGER"),
        Field("e", "ENUM('p', 'q')"),
    ),
)  # fmt: skip

ROWS = """
    (TIMESTAMP '2020-01-01', DATE '2020-01-01', 'Abc', 1.5, 5, 3, 7, 1.25, true, [1, 2], {'a': 1, 'B c': 'z'},
     '{"k":1}', TIMESTAMPTZ '2020-01-01', INTERVAL '2 days', 4, 'p'),
    (TIMESTAMP '2021-01-01 10:00', DATE '2019-01-01', 'x', -2.5, -5, 2, -7, -1.25, false, [3], {'a': 2, 'B c': 'y'},
     '{"k":2}', TIMESTAMPTZ '2021-01-01', INTERVAL '50 hours', 8, 'q'),
    (NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL),
    (TIMESTAMP '1969-01-01', DATE '2019-01-01', '', 'nan', 9223372036854775807, 0, 0, 0, false, [],
     {'a': NULL, 'B c': NULL}, '{}', TIMESTAMPTZ '2021-01-01', INTERVAL '0 days', 0, 'q')
"""

ROW_LOCAL = """
x > 1 | x > '1.5' | n + 1 | ti + 1 | ti + 1000 | ti * 1.5 | d * 0.8 | 0.8 * n | d > '1.255' | n / 2 | n // 2 | n % 3
-n // 2 | x = 'nan' | abs(x) | -x | +x | -d | x > n | d + x | d / d | d * d | d + n | ti + (1 + 1) | (1 + 2) * n
1e3 * x | 12345678901234567890123 + n | x::FLOAT * 1.1 | 0.1::FLOAT | x = 0.1 + 0.2 | 1 / 0 | 1 // i | n * n | 5 % -3
-5 // 2 | ts > '2020-01-01' | ts - INTERVAL '7' DAY | ts - INTERVAL '1' MONTH | ts - INTERVAL (n % 5) DAY | day + 1
day - day | day + INTERVAL 1 DAY | ts - ts | ts BETWEEN '2019-01-01' AND '2020-06-01' | tz > '2020-06-01'
iv > INTERVAL '49 hours' | ts NOT BETWEEN '2019-01-01' AND TIMESTAMP '2020-06-01' | iv = '2 days'
iv + INTERVAL 1 HOUR | ts::DATE = day | ts > DATE '2020-01-01' | DATE '2020-01-01' = day
day IN ('2020-01-01', '2019-01-01') | ts > 'abc' | extract(year FROM ts) | date_trunc('day', ts) = day
tz AT TIME ZONE 'UTC' | to_days(i) + ts | greatest(ts, '2020-05-05') | strftime(ts, '%Y') = '2020' | s LIKE 'A%'
s ILIKE 'a%' | s SIMILAR TO 'A.*' | s || 'é' || s | upper(s) = 'ABC' | s IN ('Abc', 'x') | s NOT IN ('Abc')
'a' || 'b' = s | 'it''s' = s | length(s) > 2 | s[1] | s[1:2] | md5(s) | concat(s, '"_0"', _0) | least(_0, i, n) + _0
_0 + i | n IN (5, 6, i) | CASE WHEN b THEN 1 ELSE x END | CASE WHEN b THEN n END
CASE i WHEN 3 THEN 'three' WHEN 2 THEN s END | CASE WHEN b THEN ts ELSE '2000-01-01' END
CASE WHEN false THEN CAST('x' AS INT) END | coalesce(x, n, 0) | nullif(n, 5) | coalesce(ts, '2000-01-01')
if(b, 1, 2) | x IS NULL | x IS NOT NULL OR b | x IS NOT DISTINCT FROM NULL | b > false | x IS DISTINCT FROM 'nan'
b IS TRUE | b IS NOT TRUE | NOT b | NULL > x | true AND b | x BETWEEN n AND 10 | s > 'A' AND (x < 3 OR n = 5 AND b)
(x + n) * (d - i) / 3 | round(x, 1) | x ** 2 | hash(s) % 2 = 0 | CAST(x AS DECIMAL(9, 2)) | TRY_CAST(s AS INTEGER)
TRY(1 // i) | CAST(s AS INTEGER) | e = 'p' | e > 'p' | x'AB'::BLOB = s::BLOB | l[1] | l = [1, 2] | len(l)
list_transform(l, lambda q: q + n) | st.a + 1 | st."B c" = 'z' | (st).a | st = {'a': 1, 'B c': 'z'} | j -> '$.k'
j ->> '$.k' = '1' | json_extract(j, '$.k') = 1 | [x, n] | {'a': x} | map {'a': x} | row(x, n) = row(1, 2)
"""


@pytest.mark.parametrize("text", [e.strip() for line in ROW_LOCAL.strip().splitlines() for e in line.split(" | ")])
def test_bound_expression_means_what_duckdb_says(text: str) -> None:
    """The bound expression, written back to SQL, has DuckDB's type and value, or raises as DuckDB does."""
    (bound,) = measures_of(f"{text} AS m", WIDE)
    connection = quiet_connection()
    columns = ", ".join(f'"{f.name}" {f.type}' for f in WIDE.fields)
    connection.execute(f"CREATE TEMP TABLE wide({columns}); INSERT INTO wide VALUES {ROWS}")

    def run(expression: str) -> object:
        try:
            return connection.execute(f"SELECT CAST(m AS VARCHAR) FROM (SELECT {expression} AS m FROM wide)").fetchall()
        except duckdb.Error as error:
            return type(error)

    (described,) = connection.execute(f"DESCRIBE SELECT {text} FROM wide").fetchall()
    assert bound.type == described[1]
    assert run(to_sql(bound)) == run(text)


AGGREGATES = """
any_value(s) | arbitrary(s) | arg_min(s, x) | arg_max(s, x, 2) | min_by(s, n) | max_by(ts, i) | string_agg(s, '-')
string_agg(s) | listagg(s, ',') | group_concat(s, ';' ORDER BY n) | string_agg(s, ', ' ORDER BY x DESC) | list(i)
array_agg(i ORDER BY n DESC NULLS FIRST, s) | array_agg(DISTINCT i ORDER BY i) | list(i) FILTER (WHERE i IS NOT NULL)
list({'a': i, 'b': s}) | quantile_cont(x, 0.5) | quantile_cont(n, [0.25, 0.75]) | quantile_disc(i, 0.5)
percentile_cont(0.5) WITHIN GROUP (ORDER BY i) | percentile_disc(0.3) WITHIN GROUP (ORDER BY i DESC)
percentile_cont([0, 0.3]) WITHIN GROUP (ORDER BY i DESC) | percentile_disc(0) WITHIN GROUP (ORDER BY i DESC)
quantile_cont(n, 0.25 ORDER BY i DESC) | quantile_cont(n, 0.25 ORDER BY i) | quantile_disc(i, 0.25 ORDER BY i DESC, n)
mode() WITHIN GROUP (ORDER BY i) | mode(i ORDER BY n DESC) | median(i) | median(ts) | mad(i) | histogram(i)
histogram(s) | histogram(i, [1, 2, 3]) | stddev(i) | stddev_pop(i) | stddev_samp(i) | variance(i) | var_pop(i)
bool_and(b) | bool_or(b) | bit_and(i) | bit_or(i) | bit_xor(i) | product(i) | count_if(b)
countif(x > 1) | sum(DISTINCT i) | count(DISTINCT s) | sum(i) FILTER (WHERE b) | sum(i) FILTER (b)
count(*) FILTER (WHERE x > 1) | count() | count(*) | count(1) | count(i) FILTER (WHERE n) | sum(i) FILTER (WHERE NULL)
corr(i, d) | covar_pop(i, ti) | regr_slope(i, d) | entropy(i) | kurtosis(i) | skewness(i) | geomean(i + 1) | wavg(i, 2)
favg(i) | kahan_sum(x) | sem(i) | min(s, 2) | max(i, 1 + 1) | max(l) | max(st) | avg(d) | sum(d) | sum(l[1])
arg_max(st.a, st."B c") | min(j ->> '$.k') | sum(CASE WHEN b THEN i ELSE 0 END) | sum(i + 1) * 2 - count(*)
list_sum(list(i)) | list_transform(list(i), lambda q: q + 1) | i.max() | s.string_agg('-').upper()
approx_count_distinct(i) | approx_quantile(i, 0.5) | approx_top_k(i, 2) | sum(i) FILTER (WHERE s IN ('Abc', 'x'))
"""


@pytest.mark.slow
@pytest.mark.parametrize("text", [e.strip() for line in AGGREGATES.strip().splitlines() for e in line.split(" | ")])
def test_bound_aggregate_means_what_duckdb_says(text: str) -> None:
    (bound,) = measures_of(f"{text} AS m", WIDE)
    connection = quiet_connection()
    columns = ", ".join(f'"{f.name}" {f.type}' for f in WIDE.fields)
    connection.execute(f"CREATE TEMP TABLE wide({columns}); INSERT INTO wide VALUES {ROWS}")
    calls: dict[Expression, str] = {e: e.sql({}) for e in walk(bound) if isinstance(e, Aggregate)}
    assert calls
    written = to_sql(bound, calls)

    def run(expression: str) -> list[tuple[object, ...]]:
        return connection.execute(f"SELECT CAST(({expression}) AS VARCHAR), typeof({expression}) FROM wide").fetchall()

    assert run(written) == run(text)
    assert run(text)[0][1] == bound.type


@pytest.mark.parametrize(
    ("text", "type"),
    [
        ("0.1", "DECIMAL(2,1)"),
        ("0.8 * n", "DECIMAL(21,1)"),
        ("1 / 0", "DOUBLE"),
        ("5 / 2", "DOUBLE"),
        ("-5 // 2", "INTEGER"),
        ("sum(n)", "HUGEINT"),
        ("sum(A.i)", "HUGEINT"),
        ("sum(x)", "DOUBLE"),
        ("sum(A.d)", "DECIMAL(38,2)"),
        ("avg(n)", "DOUBLE"),
        ("count(x)", "BIGINT"),
        ("count(*) - 1", "BIGINT"),
        ("day + INTERVAL 1 DAY", "TIMESTAMP"),
        ("ts - FIRST(ts)", "INTERVAL"),
        ("PREV(A.d, 2) * 2", "DECIMAL(18,2)"),
        ("LAST(ti) + 1", "TINYINT"),
        ("LAST(tz)", "TIMESTAMP WITH TIME ZONE"),
        ("min(A.s)", "VARCHAR"),
        ("list(A.i)", "INTEGER[]"),
        ("median(i)", "DOUBLE"),
        ("CLASSIFIER() || 'x'", "VARCHAR"),
        ("MATCH_NUMBER() + 1", "BIGINT"),
        ("sum(A.x) > 3 AND A.b", "BOOLEAN"),
        ("NULL", "INTEGER"),
    ],
)
def test_types(text: str, type: str) -> None:
    assert [m.type for m in measures_of(f"{text} AS m", WIDE)] == [type]


def test_constants() -> None:
    tenth, infinite, week, day, folded, month = measures_of(
        "0.1 AS a, 1 / 0 AS b, INTERVAL '7' DAY AS c, DATE '2020-01-01' AS d, 2 * 3 AS e, INTERVAL '1' MONTH AS f", WIDE
    )
    assert isinstance(tenth, Constant)
    assert (str(tenth.value), tenth.type, tenth.sql) == ("0.1", "DECIMAL(2,1)", "0.1")
    assert isinstance(infinite, Constant)
    assert infinite.value == float("inf")
    assert isinstance(week, Constant)
    assert (week.value, week.type) == (7 * 86_400_000_000, "INTERVAL")
    assert isinstance(day, Constant)
    assert (day.type, day.sql) == ("DATE", "CAST('2020-01-01' AS DATE)")
    assert isinstance(folded, Constant)
    assert (folded.value, folded.type) == (6, "INTEGER")
    # a month has no fixed length
    assert isinstance(month, Opaque)
    assert (month.arguments, month.type) == ((), "INTERVAL")


@pytest.mark.parametrize(
    "text", ["0", "7", "007", "1_000", "999999999", "1000000000", "2147483648", "9223372036854775808"]
)
def test_integers_are_what_duckdb_says(text: str) -> None:
    row = quiet_connection().execute(f"SELECT {text}, typeof({text})").fetchone()
    folded = fold(deserialize(parse_expression(text)))
    assert row is not None
    assert folded == Folded(row[0], row[1], str(row[0]))


def test_a_tree_is_the_own_of_who_asked_for_it() -> None:
    parse_expression("x + 1")["arguments"].clear()
    assert len(parse_expression("x + 1")["arguments"]) == 2


def test_a_constant_that_raises_is_left_for_the_row_that_needs_it() -> None:
    (division,) = measures_of("1 // 0 AS m")
    assert isinstance(division, Call)
    assert division.function == "//"
    (cast,) = measures_of("CAST('x' AS INTEGER) AS m")
    assert isinstance(cast, Call)
    assert (cast.function, cast.type) == ("cast", "INTEGER")


def test_variables_of_navigation_and_aggregates() -> None:
    last, previous, total, counted, everything = measures_of(
        "A.price AS a, PREV(B.price, 2) AS b, sum(U.price) AS c, count(B.*) AS d, FIRST(price, 1) AS e",
        rest="PATTERN (A B+) SUBSET U = (B, A)",
    )
    assert isinstance(last, Navigation)
    assert (last.variables, last.logical, last.logical_offset, last.physical_offset) == (("A",), Logical.LAST, 0, 0)
    assert isinstance(last.argument, Column)
    assert isinstance(previous, Navigation)
    assert (previous.variables, previous.logical, previous.physical_offset) == (("B",), Logical.LAST, -2)
    assert isinstance(total, Aggregate)
    assert total.variables == ("B", "A")
    assert isinstance(counted, Aggregate)
    assert (counted.function, counted.argument, counted.variables) == ("count", None, ("B",))
    assert isinstance(everything, Navigation)
    assert (everything.variables, everything.logical, everything.logical_offset) == ((), Logical.FIRST, 1)


@pytest.mark.parametrize(
    ("define", "row_local"),
    [
        ("B AS price < PREV(price)", True),
        ("B AS B.price < PREV(B.price)", True),
        ("B AS LAST(price) < PREV(LAST(B.price))", True),
        ("B AS upper(B.symbol) = NEXT(symbol, 2)", True),
        ("B AS price < A.price", False),
        ("B AS price < LAST(B.price, 1)", False),
        ("B AS count(*) > 2", False),
        ("B AS CLASSIFIER() = 'B'", True),
        ("B AS lower(CLASSIFIER(B)) = 'b' AND LAST(CLASSIFIER()) = 'B'", True),
        ("B AS CLASSIFIER(A) = 'A'", False),
        ("B AS PREV(CLASSIFIER()) = 'A'", False),
        ("B AS count(*) FILTER (WHERE price > 1) > 2", False),
    ],
)
def test_the_candidate_is_read_as_a_column(define: str, row_local: bool) -> None:
    assert is_row_local(condition_of(define)) is row_local


def test_the_inputs_of_a_call_read_rows_of_one_variable() -> None:
    total, counted, labels, last = measures_of(
        "arg_max(U.price, U.ts ORDER BY U.volume) FILTER (WHERE U.price > 1) AS a, count(A.*) FILTER (A.price) AS b, "
        "string_agg(CLASSIFIER(A), ',') AS c, FIRST(B.price * MATCH_NUMBER()) AS d",
        rest="ALL ROWS PER MATCH PATTERN (A B+) SUBSET U = (B, A)",
    )
    assert isinstance(total, Aggregate)
    assert total.variables == ("B", "A")
    assert [to_sql(e) for e in total.inputs] == ['"price"', '"ts"', '("price" > 1)', '"volume"']
    assert total.order[0][1] == "ASC NULLS LAST"
    assert isinstance(counted, Aggregate)
    assert (counted.argument, counted.variables) == (None, ("A",))
    assert counted.where == Call("cast", (Column("price", "DOUBLE"),), "BOOLEAN")
    assert isinstance(labels, Aggregate)
    assert (labels.argument, labels.variables, labels.more[0].type) == (Classifier(), ("A",), "VARCHAR")
    assert isinstance(last, Navigation)
    assert MatchNumber() in walk(last.argument)


def test_an_arrow_is_a_lambda_in_functions_that_take_one_only() -> None:
    schema = Schema("t", (Field("a", "VARCHAR"), Field("l", "INTEGER[]"), Field("q", "INTEGER")))
    text = "A.a -> '$.k' AS m, list_transform(l, lambda q: q + A.q) AS n"
    arrow, listed = measures_of(text, schema, "PATTERN (A B)")
    assert isinstance(arrow, Opaque)
    assert arrow.arguments == (Navigation(Column("a", "VARCHAR"), ("A",), Logical.LAST, 0, 0, False, "VARCHAR"),)
    assert isinstance(listed, Opaque)
    assert [type(a) for a in listed.arguments] == [Column, Navigation]


@pytest.mark.parametrize(
    "condition",
    ["price > 1 AND 1 // 0 = 1", "price > 1 OR CAST('x' AS BOOLEAN)", "CASE WHEN price > 1 THEN 1 // 0 ELSE 2 END = 2",
     "coalesce(price, 1 // 0) > 1", "if(price > 1, 1 // 0, 2) = 2", "CASE WHEN CLASSIFIER() = 'A' THEN 1 // 0 = 1 END"],
)  # fmt: skip
def test_what_may_raise_stays_in_its_branch(condition: str) -> None:
    bound = condition_of(f"B AS {condition}")
    assert isinstance(bound, Call)
    assert "1 // 0" in to_sql(bound) or "CAST('x' AS BOOLEAN)" in to_sql(bound)


def test_permute_is_all_orders_in_the_order_of_the_list() -> None:
    names = "BACD"
    text = f"SELECT * FROM ticks MATCH_RECOGNIZE (PATTERN (PERMUTE({', '.join(names)})))"
    pattern = plan_of(text).factors[0].plan.pattern
    assert str(pattern) == " | ".join(" ".join(order) for order in permutations(names))


@pytest.mark.slow
def test_a_large_permute_is_refused_before_it_is_written_out() -> None:
    names = ", ".join(f"V{i}" for i in range(500))
    with pytest.raises(QueryError, match=r"HQ600.* orders of 500 elements") as caught:
        plan_of(f"SELECT * FROM ticks MATCH_RECOGNIZE (PATTERN (PERMUTE({names})) DEFINE V499 AS price > 1)")
    assert len(caught.value.diagnostics) == 1
    six = "SELECT * FROM ticks MATCH_RECOGNIZE (PATTERN (PERMUTE(A, B, C, D, E, F)))"
    assert str(plan_of(six).factors[0].plan.pattern).count("|") == 719


def test_spans_lead_into_the_text() -> None:
    text = "SELECT 'é' FROM ticks MATCH_RECOGNIZE (PATTERN (A B) DEFINE B AS 'é' < symbol AND price > A.price + 1)"
    condition = plan_of(text).factors[0].plan.condition("B")
    assert isinstance(condition, Call)
    assert [text[a.span.start : a.span.end] for a in condition.arguments] == ["'é' < symbol", "price > A.price + 1"]
    comparison = condition.arguments[1]
    assert isinstance(comparison, Call)
    assert text[comparison.arguments[1].span.start : comparison.arguments[1].span.end] == "A.price + 1"


def test_columns_may_be_called_final_and_running() -> None:
    schema = Schema("t", (Field("final", "INTEGER"), Field("running", "BOOLEAN")))
    one, two = measures_of("final IN (1, 2) AS a, running AND (final > 1) AS b", schema)
    assert [to_sql(one), to_sql(two)] == ['("final" IN (1, 2))', '("running" AND ("final" > 1))']


def test_volatile_functions_where_nothing_is_replayed() -> None:
    assert isinstance(condition_of("B AS now() > ts"), Call)
    (opaque,) = measures_of("random() AS r")
    assert isinstance(opaque, Opaque)


# ---- queries ---------------------------------------------------------------------------------------------------


def test_output_columns() -> None:
    text = "SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol MEASURES count(*) AS n{} PATTERN (A+))"
    one = plan_of(text.format(", A.ts AS t"))
    assert output_columns(one.factors[0].plan) == (
        Field("symbol", "VARCHAR"), Field("n", "BIGINT"), Field("t", "TIMESTAMP"),
    )  # fmt: skip
    late = plan_of(text.format(" TIMEOUT ROWS").replace("(A+)", "(A+) WITHIN 3 ROWS"))
    assert output_columns(late.factors[0].plan)[2:] == (Field("labels", "VARCHAR[]"), Field("timeout", "VARCHAR"))
    every = plan_of(text.format(" ALL ROWS PER MATCH"))
    assert [f.name for f in output_columns(every.factors[0].plan)] == ["symbol", "ts", "n", "price", "volume"]


def test_types_of_a_schema_get_duckdbs_spelling() -> None:
    schema = Schema("t", (Field("a", "int8"), Field("b", "timestamptz"), Field("c", "numeric(5, 1)")))
    assert [m.type for m in measures_of("a AS x, b AS y, c AS z", schema)] == [
        "BIGINT", "TIMESTAMP WITH TIME ZONE", "DECIMAL(5,1)",
    ]  # fmt: skip


def test_defaults_depend_on_the_selection() -> None:
    text = "SELECT * FROM ticks MATCH_RECOGNIZE (PATTERN (A B) SELECTION {})"
    kinds = {s: plan_of(text.format(s.value)).factors[0].plan.after.kind for s in Selection}
    assert kinds == {
        Selection.STRICT: AfterMatchKind.PAST_LAST_ROW,
        Selection.PARTITION: AfterMatchKind.PAST_LAST_ROW,
        Selection.SKIP_TILL_NEXT: AfterMatchKind.NO_SKIP,
        Selection.SKIP_TILL_ANY: AfterMatchKind.NO_SKIP,
    }


def test_the_fingerprint_knows_no_spans_and_no_layout() -> None:
    def fingerprint(text: str) -> str:
        return fingerprint_of(plan_of(text).factors[0].plan)

    one = fingerprint("SELECT * FROM ticks MATCH_RECOGNIZE (PATTERN (A B) DEFINE B AS price<A.price)")
    two = fingerprint("SELECT 1 FROM ticks MATCH_RECOGNIZE (\n PATTERN (a (b))\n DEFINE b AS price  <  a.PRICE)")
    other = fingerprint("SELECT * FROM ticks MATCH_RECOGNIZE (PATTERN (A B) DEFINE B AS price<=A.price)")
    assert one == two
    assert one != other


def warnings_of(text: str) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        plan_of(text)
    assert all(w.category is HybridWarning and w.filename == __file__ for w in caught)
    return [str(w.message) for w in caught]


def test_an_idle_negation_warns() -> None:
    text = "SELECT * FROM ticks MATCH_RECOGNIZE (PATTERN (A ~N B) SELECTION {} DEFINE N AS price > 1)"
    assert warnings_of(text.format("SKIP TILL NEXT MATCH")) == []
    (message,) = warnings_of(text.format("PARTITION"))
    assert message.startswith("~N between two elements has no effect")


EARLY = """SELECT * FROM ticks MATCH_RECOGNIZE (
  PATTERN (A B)
  DEFINE A AS price > 1 AND A.price > B.price)"""


def test_a_variable_read_before_it_is_matched_warns_at_its_place() -> None:
    # Before: the pattern found nothing, and nothing said why.
    assert warnings_of(EARLY) == ["""\
the condition of A reads B, of which no row comes before A
  --> query:3:39
   3 |   DEFINE A AS price > 1 AND A.price > B.price)
     |                                       ^^^^^^^ always null
hint: write the comparison into the condition of B, which can read A"""]


def test_an_operator_of_other_languages_warns() -> None:
    # Before: A, any two rows, and B.
    assert warnings_of("SELECT * FROM ticks MATCH_RECOGNIZE (PATTERN (A FOLLOWED BY B) DEFINE B AS price > 1)") == ["""\
FOLLOWED is a variable here, and takes any row
  --> query:1:49
   1 | SELECT * FROM ticks MATCH_RECOGNIZE (PATTERN (A FOLLOWED BY B) DEFINE B AS price > 1)
     |                                                 ^^^^^^^^ no operator
hint: A B are rows side by side; SELECTION SKIP TILL NEXT MATCH allows others between them"""]
    for pattern in ("A BY", "A \"THEN\" B", "THEN"):
        define = "DEFINE BY AS price > 1" if pattern == "A BY" else ""
        assert warnings_of(f"SELECT * FROM ticks MATCH_RECOGNIZE (PATTERN ({pattern}) {define})") == []


@pytest.mark.parametrize(("pattern", "clauses", "later"), [
    ("A B", "DEFINE A AS price > B.price", "B"),
    ("A+ B", "DEFINE A AS price > max(B.price)", "B"),
    ("A B", "DEFINE A AS price > PREV(FIRST(B.price), 2)", "B"),
    ("A B", "DEFINE A AS abs(price - B.price) < 1 OR price > 3", "B"),
    ("A | B", "DEFINE B AS price > A.price", "A"),  # never in one match
    ("A (B | C)", "DEFINE A AS price > C.price", "C"),
    ("A B{1,1} C?", "DEFINE B AS price > C.price", "C"),
    ("A B C", "SUBSET U = (B, C) DEFINE A AS price > U.price", "B or C"),
    ("A {- B -}", "DEFINE A AS price > B.price", "B"),
    ("A B", "DEFINE B AS price > A.price", ""),
    ("A B A", "DEFINE A AS price > B.price", ""),
    ("(A B)+", "DEFINE A AS price > B.price", ""),
    ("(A B){1,2}", "DEFINE A AS price > B.price", ""),
    ("(A | B)+", "DEFINE A AS price > B.price", ""),
    ("C (A | B)*", "DEFINE A AS price > B.price", ""),
    ("PERMUTE(A, B)", "DEFINE A AS price > B.price", ""),
    ("(A B | B A)", "DEFINE A AS price > B.price", ""),
    ("A B C", "SUBSET U = (A, C) DEFINE B AS price > U.price", ""),
    ("A B", "DEFINE A AS B.price IS NULL OR price > coalesce(B.price, 0)", ""),
    ("A B", "DEFINE A AS count(B.*) = 0", ""),
    ("A ~N B", "SELECTION SKIP TILL NEXT MATCH DEFINE N AS price > A.price", ""),
])  # fmt: skip
def test_only_what_no_path_matches_before_warns(pattern: str, clauses: str, later: str) -> None:
    found = warnings_of(f"SELECT * FROM ticks MATCH_RECOGNIZE (PATTERN ({pattern}) {clauses})")
    assert [message.partition(" reads ")[2].partition(", of which")[0] for message in found] == [later] * bool(later)


def test_between_on_the_own_stream_warns() -> None:
    text = (
        "SELECT 1 FROM ticks MATCH_RECOGNIZE (MEASURES A.ts AS t PATTERN (A)) AS pl {} JOIN HISTORY OF ticks "
        "BETWEEN t - INTERVAL 1 DAY AND t AS pa ON true"
    )
    assert warnings_of(text.format("LEFT")) == []
    for kind in ("SEMI", "ANTI"):
        (message,) = warnings_of(text.format(kind))
        assert message.startswith("BETWEEN holds both ends")


def test_live_joins_of_static_tables() -> None:
    live = "ticks MATCH_RECOGNIZE (PARTITION BY symbol PATTERN (A)) AS m"
    text = f"SELECT m.symbol, label, (SELECT max(v) FROM rel) FROM {live} LEFT JOIN names ON m.symbol = names.symbol"
    assert "LEFT JOIN names" in plan_of(text, live=True).select_sql


def test_equalities_only_of_keys_and_equal_types() -> None:
    text = (
        "SELECT 1 FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol "
        "MEASURES A.ts AS t, A.price AS p, A.volume::INTEGER AS v PATTERN (A)) AS pl "
        "JOIN HISTORY OF ticks FROM t TO t {} AS pa ON {}"
    )

    def equalities(match: str, on: str) -> tuple[tuple[str, str], ...]:
        return plan_of(text.format(match, on)).factors[0].histories[0].equalities

    keyed = "MATCH_RECOGNIZE (PARTITION BY symbol MEASURES A.price AS q PATTERN (A))"
    assert equalities("", "PA.Symbol = PL.SYMBOL AND pa.price = p") == (("symbol", "symbol"), ("price", "p"))
    assert equalities("", "pa.symbol = pl.symbol OR pa.price = p") == ()
    assert equalities("", "pa.volume = pl.v AND pa.symbol <> pl.symbol") == ()
    assert equalities(keyed, "(pl.symbol = pa.symbol AND q = p) AND true") == (("symbol", "symbol"),)
    assert equalities(keyed.replace("(A))", "(A) SELECTION STRICT)"), "pl.symbol = pa.symbol") == ()


@pytest.mark.parametrize(("condition", "wanted"), [
    ("x - A.x < 5 MINUTES", "write INTERVAL 5 MINUTES"),
    ("age(x, A.x) < 1 hour", "write INTERVAL 1 hour"),
    ("x - A.x < INTERVAL 5 HOUR AND x - A.x > 1 HOUR", "write INTERVAL 1 HOUR"),
    ("x - A.x < INTERVAL 5 MINUTE AND x - A.x > 1 HOUR", "write INTERVAL 1 HOUR"),
    ("x > 1 ROWS", ""),
])  # fmt: skip
def test_an_interval_without_its_word(condition: str, wanted: str) -> None:
    text = f"SELECT * FROM e MATCH_RECOGNIZE (ORDER BY x PATTERN (A B) DEFINE B AS {condition})"
    with pytest.raises(QueryError) as caught:
        bind(parse(text), lambda _: Schema("e", (Field("x", "TIMESTAMP"),)))
    assert (caught.value.diagnostics[0].hint or "") == wanted

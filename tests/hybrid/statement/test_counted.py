"""Aggregates over matches that are not found: numbers of any size, numbers that do not fit, and when matches are found.
"""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import hybrid
from query.errors import DataError
from query.plan.over_matches import MATCHES, plan_of_trends

START = datetime(2024, 1, 1)
MEASURES = "count(B.*) AS n, sum(B.v) AS s, C.v AS last, sum(B.m) AS money, sum(B.d) AS d, min(B.v) AS low"
#: The conditions of the array are those of every one of its events, the first one too.
IN_SASE = """(FROM e PATTERN SEQ(E a, E+ b[], E c) WHERE skip_till_any_match(a, b, c)
    {[k] AND a.s = 'a' AND b[1].s = 'b' AND b[i].s = 'b' AND c.s = 'c'}
    RETURN count(b[]) AS n, sum(b[].v) AS s, c.v AS last) AS m"""


def events(counts: dict[str, int], **more: Any) -> pa.Table:
    """Returns for each key an a, so many b with v = 1, 2, ..., and a c."""
    rows = []
    for k, count in counts.items():
        for i, s in enumerate("a" + "b" * count + "c"):
            at = START + timedelta(seconds=len(rows))
            rows.append({"ts": at, "k": k, "s": s, "v": i, "m": Decimal(i) / 100, "d": i / 2} | more)
    return pa.Table.from_pylist(rows)


def over(select: str, rest: str = "", pattern: str = "A B+ C", defines: str = "") -> str:
    return f"""SELECT {select} FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES {MEASURES}
        PATTERN ({pattern}) SELECTION SKIP TILL ANY MATCH
        DEFINE A AS s = 'a', B AS s = 'b' {defines}, C AS s = 'c') AS m {rest}"""


def asked(text: str, table: pa.Table, counted: bool = True) -> list[dict[str, Any]]:
    result = hybrid.sql(text, e=table)
    assert ("matches are counted" in result.explain("program")) == counted
    return list(result.arrow().to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize("of", ["", IN_SASE])
def test_numbers_of_any_size(of: str) -> None:
    """Before: an error of more than 200,000 partial matches in SASE+, and everywhere for sums."""
    select = "k, count(*)::BIGNUM AS c, sum(n)::BIGNUM AS n, avg(n) AS an, avg(s) AS \"as\", max(last) AS most"
    text = f"SELECT {select} FROM {of} GROUP BY k ORDER BY k" if of else over(select, "GROUP BY k ORDER BY k")
    found = asked(text, events({"x": 1000, "y": 2}))
    assert [{**row, "c": int(row["c"]), "n": int(row["n"])} for row in found] == [
        {"k": "x", "c": 2**1000 - 1, "n": 1000 * 2**999, "an": 500.0, "as": 250250.0, "most": 1001},
        {"k": "y", "c": 3, "n": 4, "an": 4 / 3, "as": 2.0, "most": 3},
    ]


@pytest.mark.slow
def test_casts_to_numbers_that_hold_more() -> None:
    casts = "count(*)::HUGEINT AS h, count(*)::DOUBLE AS d"
    (found,) = asked(over(f"{casts}, sum(n) AS n, sum(money) AS money, sum(d) AS sd, avg(d) AS ad"), events({"x": 80}))
    assert found == {
        "h": 2**80 - 1, "d": float(2**80), "n": 80 * 2**79, "money": Decimal(3240 * 2**79) / 100, "sd": 1620.0 * 2**79,
        "ad": 810.0,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("select", "rows", "said"),
    [
        ("count(*)", 63, r"count\(\*\) is 9223372036854775807, "),
        ("count(*)", 64, r"^count\(\*\) is 18446744073709551615, more than a BIGINT can hold\nhint: count\(\*\)::"),
        ("k, count(last) AS c", 1000, r"count\(last\) is 1.071e\+301, more than a BIGINT"),
        ("sum(n) + 1", 130, r"sum\(n\) is \d+, more than a HUGEINT can hold\nhint: sum\(n\)::BIGNUM"),
        ("sum(n)::HUGEINT", 130, r"sum\(n\) is \d+, more than a HUGEINT"),
        ("sum(n)::DOUBLE", 1030, r"sum\(n\) is 5\.\d{3}e\+312, more than a DOUBLE"),
        ("sum(money)", 130, r"sum\(money\) is \d\.\d{3}e\+40, more than a DECIMAL\(38,2\)"),
        ("sum(d)", 1030, r"sum\(B.d\) over all matches is more than a DOUBLE can hold\nhint: cast the values"),
        ("avg(n)", 70_000, "too many matches: a count of trends has more than 65,536 bits"),
    ],
)  # fmt: skip
def test_numbers_that_do_not_fit(select: str, rows: int, said: str) -> None:
    rest = "GROUP BY k" if select.startswith("k") else ""
    if rows == 63:  # it just fits
        assert asked(over(f"{select} AS n"), events({"x": rows})) == [{"n": 2**63 - 1}]
        return
    with pytest.raises(DataError, match=said):
        hybrid.sql(over(select, rest), e=events({"x": rows}))


@pytest.mark.slow
def test_a_sum_of_partitions_that_does_not_fit() -> None:
    """Before: DuckDB's error of a cast."""
    with pytest.raises(DataError, match="more than a BIGINT can hold"):
        hybrid.sql(over("count(*)"), e=events({"x": 62, "y": 62, "z": 62}))
    assert asked(over("count(*) AS n", "WHERE k = 'x'"), events({"x": 62, "y": 62, "z": 62})) == [{"n": 2**62 - 1}]


@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_values_that_are_not_finite_are_added_match_by_match(value: float) -> None:
    (found,) = asked(over("sum(d) AS s, avg(d) AS a"), events({"x": 3}, d=value))
    assert all(map(math.isnan, found.values())) if math.isnan(value) else found == {"s": math.inf, "a": math.inf}


@pytest.mark.slow
def test_negative_decimals() -> None:
    (found,) = asked(over("sum(money) AS s, avg(money) AS a"), events({"x": 1}, m=Decimal("-0.05")))
    assert found == {"s": Decimal("-0.05"), "a": -0.05}


@pytest.mark.slow
def test_sums_without_a_value_are_found() -> None:
    """An average of sums does not count the matches whose sum is null, of which trends know nothing."""
    table = events({"x": 3})
    column = pa.array([None if v == 1 else v for v in table["v"].to_pylist()], pa.int64())
    table = table.set_column(3, "v", column)
    assert asked(over("avg(s) AS a, count(s) AS c, count(low) AS l"), table) == [{"a": 20 / 6, "c": 6, "l": 6}]
    assert asked(over("count(s)::DOUBLE AS c"), table) == [{"c": 6.0}]


@pytest.mark.slow
def test_a_value_that_cannot_be_computed_and_is_not_read() -> None:
    """The cast fails for an event that no attempt reaches."""
    table = events({"x": 3}).append_column("t", pa.array(["no", "1", "1", "1", "1"]))
    text = over("count(*) AS n, sum(n) AS s", defines="AND CAST(t AS INTEGER) = 1")
    assert asked(text, table) == [{"n": 7, "s": 12}]


@pytest.mark.slow
def test_on_the_users_connection() -> None:
    with duckdb.connect() as connection:
        connection.sql("CREATE TYPE key AS ENUM ('x', 'y')")
        connection.register("given", events({"x": 100, "y": 1}))
        connection.sql("CREATE TABLE e AS SELECT * REPLACE (k::key AS k) FROM given")
        text = over("k, sum(n)::BIGNUM AS n", "GROUP BY k ORDER BY k")
        assert hybrid.sql(text, connection).arrow().to_pydict() == {"k": ["x", "y"], "n": [str(100 * 2**99), "1"]}
        assert hybrid.sql(text, connection).df()["n"].tolist() == [100 * 2**99, 1]


@pytest.mark.slow
@pytest.mark.parametrize("order", ["v", "ts DESC"])
def test_rows_in_any_order(order: str) -> None:
    """Times are not read: a window of time would have none of these matches, or one of each year."""
    years = [
        {"ts": datetime(1960 + 10 * i, 1, 1), "k": "x", "s": s, "v": i, "m": None, "d": 0.0}
        for i, s in enumerate("cbba" if "DESC" in order else "abbc")
    ]
    text = over("sum(n) AS n, count(*) AS c, min(last) AS m").replace("ORDER BY ts", f"ORDER BY {order}")
    assert asked(text, pa.Table.from_pylist(years)) == [{"n": 4, "c": 3, "m": 3 if order == "v" else 0}]


@pytest.mark.slow
def test_explain_names_the_aggregates() -> None:
    shown = hybrid.sql(over("count(*), avg(s), max(last)"), e=events({"x": 2})).explain("program")
    for line in (
        "-- matches are counted, not searched for",
        "count(*)    = count(MATCHES)",
        "avg(s)      = sum(B.v) / count(MATCHES), if count(B.*) = count(B.v)",
        "max(last)   = max(C.v)",
        "counted     as trends in one window",
    ):
        assert line in shown.splitlines()
    alone = hybrid.sql(over("count(*)"), e=events({"x": 2})).explain("program")
    assert alone.endswith("up to 2^63 - 1 in a partition by state; beyond that, as trends in one window")


@pytest.mark.parametrize(
    ("pattern", "apart"),
    [
        ("A B+ C", 'A B "B+"* C'),
        ("A B{3,5} C", 'A B "B+"{2,4} C'),
        ("A B* C", 'A (B "B+"*)? C'),
        ("A B C", "A B C"),
        ("(A | B+) C", '(A | B "B+"*) C'),
    ],
)
def test_the_first_event_of_a_loop_has_its_own_variable(pattern: str, apart: str) -> None:
    """Before: as many comparisons for each event as there are events before it, where a condition asked whether it is
    the first."""
    text = over("sum(n)", pattern=pattern, defines="AND (count(B.*) = 1 OR v > 2)")
    plan = hybrid.plan(text, {"e": {f.name: t for f, t in zip(events({"x": 1}).schema, TYPES, strict=True)}})
    found = plan_of_trends(plan.factors[0].plan, [MATCHES])
    assert found is not None
    assert str(found.pattern) == apart


TYPES = ("TIMESTAMP", "VARCHAR", "VARCHAR", "BIGINT", "DECIMAL(10,2)", "DOUBLE")

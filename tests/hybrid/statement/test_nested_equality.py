"""Values that a kernel has no numbers for are compared with those of the match by their codes, as DuckDB compares
them."""

from __future__ import annotations

import warnings

import duckdb
import pytest

import hybrid

#: Columns of a type, by their values; of those that are not kept as numbers.
VALUES = {
    "STRUCT": (
        "{'a': 1.5::DOUBLE, 'b': 'x'}", "{'a': NULL, 'b': 'x'}", "{'a': 'nan'::DOUBLE, 'b': 'x'}",
        "{'a': 0.0::DOUBLE, 'b': NULL}", "{'a': -0.0::DOUBLE, 'b': NULL}", "NULL", "{'a': 1.5::DOUBLE, 'b': 'X'}",
    ),
    "LIST": ("[1, 2]", "[1, NULL]", "[]", "NULL", "[2, 1]", "[1, 2, 3]"),
    "LIST of FLOAT": ("[0.0::FLOAT]", "[-0.0::FLOAT]", "['nan'::FLOAT]", "NULL", "[NULL]"),
    "LIST of ENUM": ("['a'::ENUM('a', 'b')]", "['b'::ENUM('a', 'b')]", "NULL"),
    "nested": ("{'a': [{'b': 1}]}", "{'a': [{'b': NULL}]}", "{'a': NULL}", "{'a': []}"),
    "HUGEINT": ("170141183460469231731687303715884105727::HUGEINT", "1::HUGEINT", "NULL", "-1::HUGEINT"),
    "UBIGINT": ("18446744073709551615::UBIGINT", "1::UBIGINT", "0::UBIGINT", "NULL"),
    "DECIMAL": ("1.10::DECIMAL(38, 2)", "1.1::DECIMAL(38, 2)", "NULL", "99999999999999999999999999.01::DECIMAL(38, 2)"),
    "MAP": ("MAP {'a': 1}", "MAP {'a': 2}", "NULL", "MAP {'a': 1, 'b': 2}", "MAP {'b': 2, 'a': 1}"),
}  # fmt: skip
QUERY = """SELECT a, b FROM t MATCH_RECOGNIZE (PARTITION BY g ORDER BY ts MEASURES A.number AS a, B.number AS b
    PATTERN (A B) DEFINE B AS x {} A.x) ORDER BY a, b"""


@pytest.mark.parametrize("collation", ["", "NOCASE"])
@pytest.mark.parametrize("operator", ["=", "<>", "IS DISTINCT FROM", "IS NOT DISTINCT FROM"])
@pytest.mark.parametrize("values", VALUES.values(), ids=VALUES)
def test_values_without_numbers_are_equal_as_in_duckdb(values: tuple[str, ...], operator: str, collation: str) -> None:
    """Every value before every one, in a partition each. Before: LIST of ENUM was an ArrowInvalid."""
    connection = duckdb.connect()
    if collation:
        connection.execute(f"SET default_collation = '{collation}'")
    rows = " UNION ALL ".join(f"SELECT {i} AS number, {value} AS x" for i, value in enumerate(values))
    connection.execute(f"CREATE TABLE v AS {rows}")
    connection.execute("""CREATE TABLE t AS SELECT g, unnest([a, b]) AS number, unnest([x, y]) AS x,
        TIMESTAMP '2024-01-01' + unnest([0, 1]) * INTERVAL 1 SECOND AS ts
        FROM (SELECT one.number AS a, two.number AS b, one.x AS x, two.x AS y, 100 * one.number + two.number AS g
              FROM v AS one, v AS two)""")
    wanted = connection.sql(f"""SELECT one.number AS a, two.number AS b FROM v AS one, v AS two
        WHERE two.x {operator} one.x ORDER BY a, b""").fetchall()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hybrid.HybridWarning)
        result = hybrid.sql(QUERY.format(operator), connection=connection)
    assert result.fetchall() == wanted
    if not collation:
        assert "asked" not in result.explain("program") or "MAP" in values[0]
        assert "engine      run lists" in result.explain("program")

"""Rows, structs and lists that are made to be compared: element by element, as DuckDB compares them."""

import itertools

import duckdb
import pyarrow as pa
import pytest

import hybrid
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.by_elements import by_elements
from query.plan.expression import Call, Opaque
from query.schema import Field, Schema

SCHEMA = Schema("e", (Field("ts", "BIGINT"), Field("s", "VARCHAR"), Field("i", "INTEGER"), Field("x", "DOUBLE")))
#: With {} before each value of the other row.
COMPARED = (
    "(s, i) = ({}s, {}i)", "(s, i) <> ({}s, {}i)", "(i, i) = ({}i, i)", "row(x) = row({}x)", "[i, i] = [{}i, i]",
    "[s] <> [{}s]", "{{'a': s, 'b': x}} = {{'a': {}s, 'b': {}x}}", "(s, x) IS NOT DISTINCT FROM ({}s, {}x)",
    "struct_pack(a := i) IS DISTINCT FROM struct_pack(a := {}i)", "NOT (s <> {}s)", "NOT ((s, i) = ({}s, {}i))",
    "(s, i) = ({}s, {}i) OR NOT x <> {}x", "(s, 'it''s', i) = ('a', 'it''s', {}i)", "(s, i) <> ({}s, 2)",
    "[s, 'a, b'] <> [{}s, 'b']",
)  # fmt: skip
#: Of these no elements are told apart.
WHOLE = ("(s, i + 1) = ({}s, {}i)", "(s, i) < ({}s, {}i)", "[i] <> [{}i, i]", "(s, i) = ({}s, {}x)")


def other_row(text: str, place: str) -> str:
    return text.replace("{{", "\0").replace("}}", "\1").replace("{}", place).replace("\0", "{").replace("\1", "}")


@pytest.mark.parametrize("text", [*COMPARED, *WHOLE])
def test_comparisons_are_those_of_duckdb(text: str) -> None:
    # Before: DuckDB was asked for each pair of rows, of `(s, i) = (A.s, A.i)` a millisecond for each.
    values = itertools.product((None, "a", "b"), (None, 1, 2), (None, 0.5, float("nan")))
    pairs = [row for pair in itertools.product(values, repeat=2) for row in pair]
    rows = [{"ts": n, "p": n // 2, "s": s, "i": i, "x": x} for n, (s, i, x) in enumerate(pairs)]
    types = {"ts": pa.int64(), "p": pa.int64(), "s": pa.string(), "i": pa.int32(), "x": pa.float64()}
    t = pa.Table.from_pylist(rows, schema=pa.schema(list(types.items())))
    found = hybrid.sql(f"""SELECT n FROM t MATCH_RECOGNIZE (PARTITION BY p ORDER BY ts MEASURES B.ts AS n
        PATTERN (A B) DEFINE B AS {other_row(text, 'A.')}) ORDER BY n""", t=t).arrow()
    wanted = duckdb.execute(f"""SELECT b.ts AS n FROM t a JOIN t b ON a.p = b.p AND a.ts < b.ts
        WHERE {of_join(text)} ORDER BY n""").fetchall()
    assert list(zip(found.column("n").to_pylist())) == wanted
    assert found.num_rows > 0


def of_join(text: str) -> str:
    """Returns the condition over a join: names without a table are those of b."""
    return f"(SELECT {other_row(text, 'a.')} FROM (SELECT b.s, b.i, b.x) AS q(s, i, x))"


@pytest.mark.parametrize("text", COMPARED)
def test_no_made_value_is_left(text: str) -> None:
    body = f"PATTERN (A B) DEFINE B AS {other_row(text, 'A.')}"
    statement = f"SELECT * FROM e MATCH_RECOGNIZE (ORDER BY ts MEASURES count(*) AS n {body})"
    condition = bind(parse(statement), lambda _: SCHEMA).factors[0].plan.condition("B")
    assert not any(isinstance(part, Opaque) for part in parts_of(by_elements(condition)))
    assert by_elements(condition, (("default_collation", "nocase"),)) == condition


def parts_of(e: object) -> list[object]:
    return [e, *(part for a in e.arguments for part in parts_of(a))] if isinstance(e, Call) else [e]

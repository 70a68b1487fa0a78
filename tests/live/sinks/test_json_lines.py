from __future__ import annotations

import json
from decimal import Context, Decimal

import duckdb
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from live.sinks.base import RowId, row_ids
from live.sinks.json_lines import check_json, json_lines
from query.errors import DataError
from tests.live.sinks.rows import table

# SQL of a value, and its JSON.
VALUES = [
    ("9223372036854775807::BIGINT", "9223372036854775807"),
    ("18446744073709551615::UBIGINT", "18446744073709551615"),
    ("-170141183460469231731687303715884105727::HUGEINT", "-170141183460469231731687303715884105727"),
    ("12345678901234567890123456789012345.678::DECIMAL(38,3)", "12345678901234567890123456789012345.678"),
    ("12.30::DECIMAL(9,2)", "12.3"),
    ("0.1::DOUBLE", "0.1"),
    ("'nan'::DOUBLE", "null"),
    ("'-inf'::FLOAT", "null"),
    ("true", "true"),
    ("TIMESTAMP '2024-02-29 23:59:59.000001'", '"2024-02-29T23:59:59.000001"'),
    ("TIMESTAMP '2024-02-29 23:59:59'", '"2024-02-29T23:59:59.000000"'),
    ("TIMESTAMP_S '2024-02-29 23:59:59'", '"2024-02-29T23:59:59.000000"'),
    ("TIMESTAMP_NS '2024-02-29 23:59:59.123456789'", '"2024-02-29T23:59:59.123456789"'),
    ("TIMESTAMPTZ '2024-02-29 23:59:59.5+02'", '"2024-02-29T21:59:59.500000Z"'),
    ("TIMESTAMP 'infinity'", '"infinity"'),
    ("TIMESTAMP '12345-01-01'", '"12345-01-01T00:00:00.000000"'),
    ("DATE '2024-02-29'", '"2024-02-29"'),
    ("TIME '10:00:00.12'", '"10:00:00.12"'),
    ("INTERVAL '3 days 2 seconds'", '"3 days 00:00:02"'),
    ("'\\xAA\\x00'::BLOB", r'"\\xAA\\x00"'),
    ("'ja'::ENUM('ja', 'nein')", '"ja"'),
    ("'a\"b\n😀' || chr(1)", r'"a\"b\n😀\u0001"'),
    ("[1, NULL, 2]", "[1,null,2]"),
    ("[['nan'::DOUBLE], NULL]", "[[null],null]"),
    ("[TIMESTAMP '2024-01-01']::TIMESTAMP[1]", '["2024-01-01T00:00:00.000000"]'),
    ("{'x': 1, 'y': TIMESTAMP '2024-01-01', 'it''s': 'nan'::FLOAT}",
     '{"x":1,"y":"2024-01-01T00:00:00.000000","it\'s":null}'),
    ("[{'t': [TIMESTAMP '2024-01-01']}]", '[{"t":["2024-01-01T00:00:00.000000"]}]'),
    ("MAP {'k': TIMESTAMP '2024-01-01'}", '{"k":"2024-01-01T00:00:00.000000"}'),
    ("MAP {1: 2}", '{"1":2}'),
    ("union_value(n := 2)", '{"n":2}'),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("sql", "text"), VALUES)
def test_every_type_has_its_json_alone_and_beside_nulls(sql: str, text: str) -> None:
    connection = duckdb.connect()
    connection.execute("SET timezone='UTC'")
    rows = connection.sql(f"SELECT CASE WHEN i <> 1 THEN {sql} END AS v FROM range(3) r(i) ORDER BY i").to_arrow_table()
    check_json(rows.schema)
    lines = json_lines(rows)
    assert lines == [f'{{"v":{text}}}', '{"v":null}', f'{{"v":{text}}}']
    assert all(json.loads(line) for line in lines)


@pytest.mark.slow
@given(st.data())
def test_decimals_of_any_width_are_exact(data: st.DataObject) -> None:
    width = data.draw(st.integers(1, 38))
    scale = data.draw(st.integers(0, width))
    digits = data.draw(st.lists(st.integers(-(10**width) + 1, 10**width - 1), min_size=1, max_size=20))
    values = [Decimal(n).scaleb(-scale, Context(prec=38)) for n in digits]
    lines = json_lines(pa.table({"v": pa.array(values, pa.decimal128(width, scale)), "l": [[v] for v in values]}))
    read = [json.loads(line, parse_float=Decimal) for line in lines]
    assert [(Decimal(r["v"]), Decimal(r["l"][0])) for r in read] == [(v, v) for v in values]


@pytest.mark.slow
@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1))
def test_doubles_are_exact(values: list[float]) -> None:
    assert [json.loads(line)["v"] for line in json_lines(pa.table({"v": values}))] == values


@pytest.mark.slow
def test_many_rows_keep_their_order() -> None:
    n = 300_000
    lines = json_lines(pa.table({"n": np.arange(n), 'a "b"': np.arange(n) % 2}))
    assert lines[:2] == ['{"n":0,"a \\"b\\"":0}', '{"n":1,"a \\"b\\"":1}']
    assert [json.loads(line)["n"] for line in lines] == list(range(n))
    assert json_lines(pa.table({"n": pa.array([], pa.int64())})) == []


def test_two_columns_of_one_name_are_refused_at_the_start() -> None:
    rows = pa.table([pa.array([1]), pa.array([2])], names=["a", "A"])
    with pytest.raises(DataError, match=r"two columns are named a\n.*AS"):
        check_json(rows.schema)


def test_columns_that_duckdb_does_not_read_are_refused() -> None:
    with pytest.raises(DataError, match="rows cannot be written as JSON"):
        check_json(pa.schema({"a": pa.decimal256(50)}))


def test_rows_are_named_by_match_join_and_number() -> None:
    rows = table([("aa", None, 0), ("bb", "jj", 1), ("aa", None, 2), (None, None, 3), (None, None, 4), (None, None, 3)])
    ids = row_ids(rows)
    assert ids[:3] == [RowId("aa", "", 0), RowId("bb", "jj", 0), RowId("aa", "", 1)]
    assert [str(i) for i in ids[:3]] == ["aa", "bb/jj", "aa/1"]
    assert ids[3].match != ids[4].match
    assert (ids[5].match, ids[3].number, ids[5].number) == (ids[3].match, 0, 1)
    assert len(ids[3].match) == 32


def test_rows_without_ids_are_refused() -> None:
    with pytest.raises(DataError, match="evidence=True"):
        row_ids(pa.table({"a": [1]}))
    with pytest.raises(DataError, match="is int64, not the id"):
        row_ids(pa.table({"match_id": [1]}))
    with pytest.raises(DataError, match="two columns are named match_id"):
        row_ids(pa.table([pa.array(["a"]), pa.array(["b"])], names=["match_id", "match_id"]))

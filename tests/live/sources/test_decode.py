"""Payloads to rows: what is taken, what is bad and why, and where it stood."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import decimal
import io
import json
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from live.sources.decode import ROW_BITS, Decoder, Decoding
from query.errors import DataError
from query.schema import Field, Schema

TICKS = Schema("ticks", (Field("ts", "TIMESTAMP"), Field("symbol", "VARCHAR"), Field("price", "DOUBLE")), "ts")
NOON = dt.datetime(2024, 1, 2, 12)
JSON = Decoding()


def decoded(payloads: list[bytes | None], decoding: Decoding = JSON, schema: Schema = TICKS, first: int = 0):
    """(rows as tuples, positions, (offset, reason) of what is bad)."""
    offsets = np.arange(first, first + len(payloads), dtype=np.int64)
    rows, positions, bad = Decoder(schema, decoding).decode("t/0", payloads, offsets)
    assert rows.schema.names == list(schema.names)
    assert all(b.source == "t/0" for b in bad)
    return [tuple(r.values()) for r in rows.to_pylist()], positions.tolist(), [(b.offset, b.reason) for b in bad]


def one(value: object, type: str, decoding: Decoding = JSON) -> Any:
    """The value of a column of that type, or the reason why there is none."""
    schema = Schema("s", (Field("ts", "TIMESTAMP"), Field("v", type)), "ts")
    ts = {"iso": "2024-01-02T12:00:00", "s": 1704196800}.get(decoding.times)
    rows, _, bad = decoded([json.dumps({"ts": ts, "v": value}).encode()], decoding, schema)
    return rows[0][1] if rows else bad[0][1]


def test_objects_with_members_in_any_order():
    rows, positions, bad = decoded(
        [
            b'{"ts": "2024-01-02T12:00:00Z", "symbol": "A", "price": 1.5}',
            b' {"price": 2, "more": [1, {"ts": 3}], "symbol": "B", "ts": "2024-01-02 13:00:00+01:00"}\n',
            b'{"ts": "2024-01-02T12:00:00", "symbol": null, "price": null}',
        ],
        first=5,
    )
    assert rows == [(NOON, "A", 1.5), (NOON, "B", 2.0), (NOON, None, None)]
    assert positions == [5, 6, 7]
    assert bad == []


@pytest.mark.parametrize("missing", ["error", "null"])
@pytest.mark.parametrize("batched", [False, True])
def test_members_that_stand_twice(missing: Any, batched: bool) -> None:
    """Before: the last one was taken, and nothing said."""
    lines = [
        b'{"ts": "2024-01-02T12:00:00", "symbol": "A", "price": 1}',
        b'{"ts": "2024-01-02T12:00:00", "symbol": "A", "price": 1, "price": 2}',
        b'{"ts": "2024-01-02T12:00:00", "symbol": null, "s\\u0079mbol": "B", "price": null}',
        b'{"ts": "2024-01-02T12:00:00", "symbol": "price", "price": 3, "more": 1, "more": 2}',
        b"oops",
    ]
    schema = dataclasses.replace(TICKS, fields=(*TICKS.fields, Field("s", "STRUCT(a BIGINT, b BIGINT)")))
    nested = [line[:-1] + b', "s": {"a": 1, "b": 2}}' for line in lines[:1]]
    nested.append(lines[0][:-1] + b', "s": {"a": 1, "b": 2, "a": 1}}')
    decoding = Decoding(missing=missing, batched=batched)
    payloads: list[bytes | None] = [b"\n".join(lines)] if batched else [*lines]
    rows, positions, bad = decoded(payloads, decoding)
    assert rows == [(NOON, "A", 1.0), (NOON, "price", 3.0)]
    assert positions == [0, 3]
    twice = ["member price occurs twice", "member symbol occurs twice"]
    assert [(place, reason) for place, reason in bad if place != 4] == [(1, twice[0]), (2, twice[1])]
    payloads = [b"\n".join(nested)] if batched else [*nested]
    rows, positions, bad = decoded(payloads, decoding, schema)
    assert (positions, bad) == ([0], [(1, "member s.a occurs twice")])


def test_bad_payloads_do_not_take_their_neighbours_along():
    good = b'{"ts": "2024-01-02T12:00:00", "symbol": "A", "price": 1}'
    payloads = [
        good, b"{", good, None, b"", b"[1]", good, b'{"ts": "yesterday", "symbol": "A", "price": 1}',
        b'{"ts": "2024-01-02", "symbol": 7, "price": "x"}', b'{"ts": "2024-01-02", "symbol": "A"}', good,
        b'{"ts": null, "symbol": "A", "price": 1}', good[:-1] + b', "symbol": "\xff"}', good + good,
    ]  # fmt: skip
    rows, positions, bad = decoded(payloads)
    assert positions == [0, 2, 6, 10]
    assert rows == [(NOON, "A", 1.0)] * 4
    reasons = dict(bad)
    assert list(reasons) == [1, 3, 4, 5, 7, 8, 9, 11, 12, 13]
    assert "truncated" in reasons[1]
    assert "tombstone" in reasons[3]
    assert "Expected `object`" in reasons[5]
    assert reasons[7] == "ts: 'yesterday' is no TIMESTAMP"
    assert reasons[8] == "price: 'x' is no DOUBLE"
    assert reasons[9] == "price is missing"
    assert reasons[11] == "ts is null"
    assert reasons[12] == "the row is not UTF-8"
    assert "trailing" in reasons[13]


@pytest.mark.parametrize(("times", "ts", "why"), [
    ("ms", "1704067200123456789", "no valid time in ms since 1970; is `times` another unit?"),
    ("s", "1704067200123456", "no valid time in s since 1970; is `times` another unit?"),
    ("ns", "1704067200123456789", "in ns since 1970 it is finer than a microsecond; `finer` may cut it"),
    ("us", "1.5", "in us since 1970 it is finer than a microsecond; `finer` may cut it"),
    ("ms", "1.23450001", "it is finer than a microsecond; `finer` may cut it"),
    ("ms", "1.2345", "in ms since 1970 it is finer than a microsecond; `finer` may cut it"),
    ("iso", "1704067200", "set `times` to its unit if it is a time since 1970"),
])  # fmt: skip
def test_a_number_that_is_no_time_says_why(times: Any, ts: str, why: str):
    # Before: "is no TIMESTAMP in ms since 1970 and whole microseconds", whichever of the two it was.
    payload = b'{"ts": %s, "symbol": "A", "price": 1}' % ts.encode()
    assert decoded([payload], Decoding(times=times))[2] == [(0, f"ts: '{ts}' is no TIMESTAMP: {why}")]


@pytest.mark.parametrize(("times", "ts", "us"), [
    ("iso", '"2024-01-02T12:00:00.123456789"', 123_456), ("iso", '"2024-01-02 12:00:00.9999999Z"', 999_999),
    ("iso", '"2024-01-02 13:00:00.1234567+01:00"', 123_456), ("ns", "1704196800123456789", 123_456),
    ("ns", "1704196800123456000", 123_456), ("us", "1704196800000001.9", 1), ("s", "1704196800.1234567", 123_456),
    ("ms", '"1704196800000.0019"', 1), ("ns", "1704196800000001999.5", 1),
])  # fmt: skip
def test_times_that_are_finer_may_be_cut(times: Any, ts: str, us: int):
    # Before: bad, and there was no way to have them.
    payload = b'{"ts": %s, "symbol": "A", "price": 1}' % ts.encode()
    found, _, bad = decoded([payload, payload], Decoding(times=times, finer="cut"))
    assert ([row[0] for row in found], bad) == ([NOON + dt.timedelta(microseconds=us)] * 2, [])
    assert [why.endswith("`finer` may cut it") for _, why in decoded([payload], Decoding(times=times))[2]] == (
        [] if ts == "1704196800123456000" else [True]
    )


def test_what_is_before_1970_is_cut_towards_the_past():
    payloads = [b'{"ts": %s, "symbol": "A", "price": 1}' % t for t in (b"-1", b"-1000", b"-1001.5", b'"x"')]
    found, _, bad = decoded(payloads, Decoding(times="ns", finer="cut"))
    us = [(row[0] - dt.datetime(1970, 1, 1)) // dt.timedelta(microseconds=1) for row in found]
    assert (us, [offset for offset, _ in bad]) == ([-1, -1, -2], [3])


def test_a_time_that_is_null_is_not_called_missing():
    # Before: "ts is missing" of both.
    payloads = [b'{"ts": null, "symbol": "A", "price": 1}', b'{"symbol": "A", "price": 1}']
    assert decoded(payloads)[2] == [(0, "ts is null"), (1, "ts is missing")]


def test_missing_members_may_be_null_but_not_the_time():
    rows, _, bad = decoded([b'{"ts": "2024-01-02T12:00:00"}', b'{"symbol": "A"}'], Decoding(missing="null"))
    assert rows == [(NOON, None, None)]
    assert bad == [(1, "ts is missing")]


@pytest.mark.parametrize("missing", ["error", "null"])
def test_documents_of_which_no_column_is_a_member(missing: Any) -> None:
    """Before: with missing="null" rows of nulls, and nothing said."""
    nested = b'{"ts": "2024-01-02T12:00:00", "payload": {"symbol": "A", "price": 1}, "seq": 1}'
    alone, other = b'{"ts": "2024-01-02T12:00:00"}', b'{"ts": "2024-01-02T12:00:00", "PRICE": 2}'
    payloads: list[bytes | None] = [nested, alone, other]
    rows, positions, bad = decoded(payloads, Decoding(missing=missing))
    if missing == "error":
        assert [reason for _, reason in bad] == ["symbol is missing; price is missing"] * 2 + ["symbol is missing"]
        return
    assert (rows, positions) == ([(NOON, None, None), (NOON, None, 2.0)], [1, 2])
    assert bad == [(0, "no member but ts is a declared column; found payload, seq")]


def test_names_compare_without_case_where_none_is_the_same() -> None:
    """Before: a member in another case was missing, here, and found where the file was archived."""
    texts = [
        '{"TS": "2024-01-02T12:00:00", "Symbol": "A", "price": 1}',
        '{"ts": "2024-01-02T12:00:00", "Symbol": "x", "symbol": "B", "price": 1}',
        '{"ts": "2024-01-02T12:00:00", "Symbol": "x", "SYMBOL": "y", "price": 1}',
    ]
    for missing in ("error", "null"):
        rows, _, bad = decoded([text.encode() for text in texts], Decoding(missing=missing))  # type: ignore[arg-type]
        assert [row[1] for row in rows] == ["A", "B"]
        assert bad == [(2, "member symbol occurs twice, as Symbol and SYMBOL")]


@pytest.mark.parametrize(
    ("text", "rows", "bad"),
    [
        ('{"a": 1}', [], ["s: '{\"a\": 1}' is no STRUCT(a INTEGER, b VARCHAR)"]),
        ('{"a": 1, "b": "x", "c": 2}', [{"a": 1, "b": "x"}], []),
        ('{"a": 1.0, "b": {"c": 1.10}}', [{"a": 1, "b": '{"c": 1.10}'}], []),
        ("null", [None], []),
    ],
)
def test_members_of_a_struct(text: str, rows: list[Any], bad: list[str]) -> None:
    """Before: what else was in the batch said whether a STRUCT that lacks a member was taken."""
    schema = Schema("s", (Field("ts", "TIMESTAMP"), Field("s", "STRUCT(a INTEGER, b VARCHAR)")), "ts")
    payload, other = (f'{{"ts": "2024-01-02", "s": {s}}}'.encode() for s in (text, '{"a": 0, "b": ""}'))
    for payloads in ([payload], [payload, other]):
        found, positions, why = decoded(payloads, JSON, schema)
        assert [row[1] for row, at in zip(found, positions) if at == 0] == rows
        assert [reason for _, reason in why] == bad
    lenient, _, _ = decoded([payload], Decoding(missing="null"), schema)
    assert lenient[0][1] == (rows[0] if rows else {"a": 1, "b": None})


@pytest.mark.parametrize(
    ("value", "type", "expected"),
    [
        (3, "INTEGER", 3),
        (3.0, "INTEGER", 3),
        (2**63 - 1, "BIGINT", 2**63 - 1),
        (2**64 - 1, "UBIGINT", 2**64 - 1),
        (0.1, "DOUBLE", 0.1),
        (True, "BOOLEAN", True),
        (1.10, "DECIMAL(9,2)", decimal.Decimal("1.10")),
        ("1.10", "DECIMAL(9,2)", decimal.Decimal("1.10")),
        (base64.b64encode(b"\x00x").decode(), "BLOB", b"\x00x"),
        ("12:30:01.5", "TIME", dt.time(12, 30, 1, 500_000)),
        ("2024-02-29", "DATE", dt.date(2024, 2, 29)),
        ("2024-02-29T00:00:00.123456000Z", "TIMESTAMPTZ", dt.datetime(2024, 2, 29, 0, 0, 0, 123456, dt.UTC)),
        ([1, None, 3], "BIGINT[]", [1, None, 3]),
        ({"a": 1, "b": "x"}, "STRUCT(a BIGINT, b VARCHAR)", {"a": 1, "b": "x"}),
        ({"a": 1, "b": None}, "MAP(VARCHAR, INTEGER)", [("a", 1), ("b", None)]),
        (2**60 + 1, "HUGEINT", decimal.Decimal(2**60 + 1)),
        (16777217, "FLOAT", 16777216.0),
        ("3", "INTEGER", 3),
        (1, "BOOLEAN", True),
        (7, "VARCHAR", "7"),
        ({"a": [1.5]}, "VARCHAR", '{"a": [1.5]}'),
        ({"a": 1}, "JSON", '{"a": 1}'),
        ("a", "ENUM('a', 'b')", "a"),
        ("{A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11}", "UUID", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        (None, "INTEGER", None),
    ],
)
def test_values_are_those_of_the_declared_type(value: object, type: str, expected: object) -> None:
    assert one(value, type) == expected


@pytest.mark.parametrize(
    ("value", "type"),
    [
        (3.5, "INTEGER"), (300, "TINYINT"), (-1, "UINTEGER"), (2**64, "BIGINT"), ("3.5", "INTEGER"), (True, "INTEGER"),
        ("x", "DOUBLE"), (1e300, "FLOAT"), (2, "BOOLEAN"), ("{", "JSON"), ("c", "ENUM('a', 'b')"), ("x", "UUID"),
        (1.234, "DECIMAL(9,2)"), ("?", "BLOB"), ("25:00", "TIME"), ("2024-02-30", "DATE"),
        ("2024-02-29T01:00:00", "DATE"),
        ("2024-02-29T00:00:00.1234567", "TIMESTAMP"), (1704196800, "TIMESTAMP"), (["x"], "BIGINT[]"),
        ({"a": "x"}, "MAP(VARCHAR, INTEGER)"), (3, "MAP(VARCHAR, INTEGER)"), (1e39, "FLOAT"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_are_bad(value: object, type: str) -> None:
    assert f"is no {type}" in one(value, type)
    assert one(None, type) is None


def test_texts_with_and_without_zone_side_by_side() -> None:
    texts = ["2024-01-02T12:00:00", "2024-01-02T13:00:00+01", "2024-01-02", "2024-01-02 12:00:00.000000000Z", "x"]
    rows, _, bad = decoded([f'{{"ts": "{text}", "symbol": "A", "price": 1}}'.encode() for text in texts])
    assert [row[0] for row in rows] == [NOON, NOON, NOON.replace(hour=0), NOON]
    assert [offset for offset, _ in bad] == [4]


@pytest.mark.parametrize(
    ("number", "times", "expected"),
    [
        (1704196800, "s", NOON),
        (1704196800.123456, "s", NOON.replace(microsecond=123456)),
        (1704196800123, "ms", NOON.replace(microsecond=123000)),
        (1704196800123.5, "ms", NOON.replace(microsecond=123500)),
        (1704196800123456, "us", NOON.replace(microsecond=123456)),
        (1704196800123456000, "ns", NOON.replace(microsecond=123456)),
        (-1, "s", dt.datetime(1969, 12, 31, 23, 59, 59)),
    ],
)
def test_times_as_numbers(number: float, times: Any, expected: dt.datetime) -> None:
    payload = json.dumps({"ts": number, "symbol": "A", "price": 1}).encode()
    assert decoded([payload, payload], Decoding(times=times))[0] == [(expected, "A", 1.0)] * 2


@pytest.mark.parametrize(
    ("number", "times"),
    [(1704196800.1234567, "ms"), (1704196800123456789, "ns"), (1e300, "s"), (2**63, "us"), ('"2024-01-02"', "s")],
)
def test_numbers_that_are_no_times(number: object, times: Any) -> None:
    payload = f'{{"ts": {number}, "symbol": "A", "price": 1}}'.encode()
    rows, _, bad = decoded([payload], Decoding(times=times))
    assert rows == []
    assert len(bad) == 1


@pytest.mark.parametrize("type", ["TIMESTAMP", "TIMESTAMPTZ", "DATE", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS"])
@pytest.mark.parametrize("times", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize(
    "number",
    [2**63 - 1, -(2**63), 2**63, 10**400, 9223372036854775, 1704196800123456789, 1704196800.1234567, 253402300800],
)
def test_numbers_beyond_the_times_there_are(number: Any, times: Any, type: str) -> None:
    """A row or a dead letter. Before: OverflowError, or ValueError asking for pandas, where the text of the error was
    made: the source failed and the service ended, at each start again; and ArrowInvalid of `times`."""
    schema = Schema("s", (Field("ts", "TIMESTAMP"), Field("v", type)), "ts")
    good = b'{"ts": 0, "v": null}'
    others = (f'{{"ts": {number}, "v": null}}', f'{{"ts": 0, "v": {number}}}')
    payloads: list[bytes | None] = [good, *(other.encode() for other in others)]
    offsets = np.arange(3, dtype=np.int64)
    rows, positions, bad = Decoder(schema, Decoding(times=times)).decode("t/0", payloads, offsets)
    assert sorted([*positions.tolist(), *(b.offset for b in bad)]) == [0, 1, 2]
    assert 0 in positions
    rows.validate(full=True)


def test_lines_of_a_message_have_positions_of_their_own():
    line = '{"ts": "2024-01-02T12:00:00", "symbol": "%s", "price": 1}'
    message = "\n".join([line % "A", "", line % "B", "{", line % "C", ""]).encode()
    rows, positions, bad = decoded([message, b"", message], Decoding(batched=True), first=7)
    assert [row[1] for row in rows] == ["A", "B", "C"] * 2
    assert positions == [(o << ROW_BITS) + j for o in (7, 9) for j in (0, 2, 4)]
    assert [offset for offset, _ in bad] == [(7 << ROW_BITS) + 3, 8 << ROW_BITS, (9 << ROW_BITS) + 3]


def arrow_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=2)
    return sink.getvalue().to_pybytes()


def test_arrow_streams():
    table = pa.table({"Price": pa.array([1, 2, 3], pa.int8()), "ts": [NOON] * 3, "symbol": pa.array(["A", "B", "C"])})
    narrow = table.select(["ts", "symbol"])
    wrong = table.set_column(0, "price", pa.array(["x", "y", "z"]))
    nulls = table.set_column(1, "ts", pa.array([NOON, None, NOON]))
    payloads = [arrow_stream(t) for t in (table, narrow, wrong, nulls)]
    rows, positions, bad = decoded([*payloads, payloads[0][:100], None], Decoding("arrow", batched=True))
    assert rows == [(NOON, "A", 1.0), (NOON, "B", 2.0), (NOON, "C", 3.0), (NOON, "A", 1.0), (NOON, "C", 3.0)]
    assert positions == [0, 1, 2, 3 << ROW_BITS, (3 << ROW_BITS) + 2]
    at = [divmod(offset, 1 << ROW_BITS) for offset, _ in bad]
    assert at == [(1, 0), (2, 0), (2, 1), (2, 2), (3, 1), (4, 0), (5, 0)]
    rows, positions, bad = decoded([payloads[0], arrow_stream(table.slice(1, 1))], Decoding("arrow"))
    assert rows == [(NOON, "B", 2.0)]
    assert positions == [1]
    assert "3 rows, not one" in bad[0][1]
    rows, _, _ = decoded(payloads, Decoding("arrow", missing="null", batched=True))
    assert (NOON, "B", None) in rows


def test_arrow_times_as_numbers():
    table = pa.table({"ts": [1704196800000], "symbol": ["A"], "price": [1.0]})
    assert decoded([arrow_stream(table)], Decoding("arrow", times="ms"))[0] == [(NOON, "A", 1.0)]
    assert decoded([arrow_stream(table)], Decoding("arrow"))[0] == []


AVRO = {
    "type": "record", "name": "Tick", "fields": [
        {"name": "symbol", "type": "string"},
        {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "price", "type": ["null", "double"]},
    ],
}  # fmt: skip


def plain(record: dict[str, Any], schema: dict[str, Any] = AVRO) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, record)
    return out.getvalue()


def tick(symbol: str, price: float | None = 1.5) -> dict[str, Any]:
    return {"symbol": symbol, "ts": NOON.replace(tzinfo=dt.UTC), "price": price}


def test_avro_records_with_the_schema_of_their_writer():
    payloads = [plain(tick("A")), plain(tick("B", None)), b"\x00", plain(tick("C")) + b"x", plain(tick("D"))]
    rows, positions, bad = decoded(payloads, Decoding("avro", avro_schema=json.dumps(AVRO)))
    assert rows == [(NOON, "A", 1.5), (NOON, "B", None), (NOON, "D", 1.5)]
    assert positions == [0, 1, 4]
    assert [o for o, _ in bad] == [2, 3]
    assert "another schema" in bad[1][1]


def test_avro_in_the_confluent_wire_format():
    payload = b"\x00" + (42).to_bytes(4, "big") + plain(tick("A"))
    other = b"\x00" + (43).to_bytes(4, "big") + plain(tick("B"))
    rows, _, bad = decoded([payload, other, plain(tick("C"))], Decoding("avro", avro_schemas={42: json.dumps(AVRO)}))
    assert rows == [(NOON, "A", 1.5)]
    assert "schema id 43" in bad[0][1]
    assert "begins with a zero byte" in bad[1][1]
    _, _, bad = decoded([payload], Decoding("avro"))
    assert "give `avro_schemas` with id 42" in bad[0][1]
    with pytest.raises(DataError, match="give only one of them"):
        Decoder(TICKS, Decoding("avro", avro_schema=json.dumps(AVRO), avro_schemas={1: json.dumps(AVRO)}))
    with pytest.raises(DataError, match="invalid Avro schema"):
        Decoder(TICKS, Decoding("avro", avro_schema='{"type": "nothing"}'))


def test_avro_object_containers():
    def container(*symbols: str) -> bytes:
        out = io.BytesIO()
        fastavro.writer(out, AVRO, [tick(s) for s in symbols])
        return out.getvalue()

    rows, positions, bad = decoded([container("A", "B"), container("C")[:-5]], Decoding("avro", batched=True), first=1)
    assert [row[1] for row in rows] == ["A", "B"]
    assert positions == [1 << ROW_BITS, (1 << ROW_BITS) + 1]
    assert [o for o, _ in bad] == [2 << ROW_BITS]
    assert [row[1] for row in decoded([container("A", "B"), container("C")], Decoding("avro"))[0]] == ["C"]


def test_avro_longs_are_times_where_the_unit_is_said():
    schema = {**AVRO, "fields": [{"name": "ts", "type": "long"}, *AVRO["fields"][::2]]}
    payload = plain({"symbol": "A", "ts": 1704196800000, "price": 1.0}, schema)
    assert decoded([payload], Decoding("avro", times="ms", avro_schema=json.dumps(schema)))[0] == [(NOON, "A", 1.0)]
    bad = decoded([payload], Decoding("avro", avro_schema=json.dumps(schema)))[2]
    assert "set `times` to its unit" in bad[0][1]


json_values = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), st.text(max_size=3),
    st.sampled_from(["2024-01-02", "2024-01-02T12:00:00Z", "2024-01-02T12:00:00", "1.5"]), st.lists(st.integers(0, 3)),
)  # fmt: skip


objects = st.dictionaries(st.sampled_from([*TICKS.names, "x"]), json_values)


@pytest.mark.slow
@given(st.lists(st.one_of(objects, st.binary(max_size=5)), max_size=12))
@settings(max_examples=40, deadline=None)
def test_together_payloads_give_what_they_give_alone(payloads):
    raw = [p if isinstance(p, bytes) else json.dumps(p).encode() for p in payloads]
    decoding = Decoding(missing="null")
    rows, positions, bad = decoded(raw, decoding)
    alone = [decoded([r], decoding) for r in raw]
    assert rows == [row for a in alone for row in a[0]]
    assert positions == [i for i, a in enumerate(alone) if a[0]]
    assert bad == [(i, reason) for i, a in enumerate(alone) for _, reason in a[2]]

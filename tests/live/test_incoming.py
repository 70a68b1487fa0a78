"""What may be pushed, in every form, and what each kind of bad data is told."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from live.incoming import Incoming
from live.stream import LiveStream
from query.errors import DataError
from query.schema import Field, Schema

TICKS = Schema(
    "ticks",
    (Field("ts", "TIMESTAMP"), Field("symbol", "VARCHAR"), Field("price", "DOUBLE"), Field("volume", "BIGINT")),
    time="ts",
)
NOON = dt.datetime(2024, 1, 2, 12)
NOON_US = 1_704_196_800_000_000
ROWS: list[dict[str, Any]] = [
    {"ts": NOON, "symbol": "A", "price": 1.5, "volume": 7},
    {"ts": NOON + dt.timedelta(microseconds=1), "symbol": None, "price": None, "volume": None},
    {"ts": NOON + dt.timedelta(seconds=1), "symbol": "B", "price": 2.5, "volume": 2**62 + 1},
]
TABLE = pa.Table.from_pylist(
    ROWS,
    schema=pa.schema(
        [("ts", pa.timestamp("us")), ("symbol", pa.string()), ("price", pa.float64()), ("volume", pa.int64())]
    ),
)
COLUMNS: dict[str, list[Any]] = TABLE.to_pydict()


class Capsule:
    """Speaks the Arrow protocol for one batch, and is nothing else."""

    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return TABLE.to_batches()[0].__arrow_c_array__(requested_schema)


def one_column(type: str, values: Any) -> pa.Array:
    """`values` as they arrive in a column of that type."""
    schema = Schema("s", (Field("ts", "TIMESTAMP"), Field("x", type)), time="ts")
    batch, _ = Incoming(schema).read({"ts": [NOON] * len(values), "x": values})
    return batch.column(1)


FORMS = {
    "batch": lambda: TABLE.to_batches()[0],
    "table": lambda: TABLE,
    "table of several chunks": lambda: pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)]),
    "reader": lambda: TABLE.to_reader(),
    "capsule": Capsule,
    "rows": lambda: ROWS,
    "columns": lambda: COLUMNS,
    "tuple of rows, other case and order": lambda: tuple(
        {name.upper(): row[name] for name in reversed(row)} for row in ROWS
    ),
    "columns of arrays": lambda: {
        "ts": np.array(COLUMNS["ts"], "datetime64[us]"),
        "symbol": pl.Series(COLUMNS["symbol"]),
        "price": pa.chunked_array([COLUMNS["price"]]),
        "volume": pd.Series(COLUMNS["volume"], dtype="Int64"),
    },
    "columns in another order": lambda: TABLE.select(["volume", "ts", "price", "symbol"]),
    "nullability and metadata": lambda: TABLE.cast(
        pa.schema([f.with_nullable(f.name != "ts") for f in TABLE.schema], metadata={"a": "b"})
    ),
    "dictionary": lambda: TABLE.set_column(1, "symbol", TABLE["symbol"].dictionary_encode()),
    "large and nanoseconds": lambda: TABLE.cast(
        pa.schema(
            zip(TABLE.schema.names, [pa.timestamp("ns"), pa.large_string(), pa.float64(), pa.uint64()], strict=True)
        )
    ),
    "zoned": lambda: TABLE.set_column(0, "ts", TABLE["ts"].cast(pa.timestamp("us", "UTC"))),
    "polars": lambda: pl.from_arrow(TABLE),
    "pandas": lambda: TABLE.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get),
    "pandas, time as index": lambda: TABLE.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get).set_index("ts"),
    "pandas, sorted": lambda: (
        TABLE.take([2, 0, 1]).to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get).sort_values("ts")
    ),
    "relation": lambda: duckdb.from_arrow(TABLE),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_batch(form: str) -> None:
    batch, ts_us = Incoming(TICKS).read(FORMS[form]())
    assert batch.schema.equals(TABLE.schema)
    assert batch.to_pylist() == ROWS
    assert ts_us.dtype == np.int64
    assert ts_us.tolist() == [NOON_US, NOON_US + 1, NOON_US + 1_000_000]


def test_a_batch_that_fits_is_not_copied() -> None:
    batch = TABLE.to_batches()[0].slice(1)
    taken, ts_us = Incoming(TICKS).read(batch)
    assert taken is batch
    assert ts_us.__array_interface__["data"][0] == batch.column(0).buffers()[1].address + 8


@pytest.mark.parametrize("data", [[], {"ts": [], "symbol": [], "price": [], "volume": []}, TABLE.slice(0, 0)])
def test_nothing_is_an_empty_batch(data: object) -> None:
    batch, ts_us = Incoming(TICKS).read(data)
    assert batch.schema.equals(TABLE.schema)
    assert (batch.num_rows, len(ts_us)) == (0, 0)


BAD = [
    # what is pushed, and what the message has to name
    (TABLE.drop_columns(["price"]), ["column price DOUBLE is missing"]),
    ([ROWS[0], {"ts": NOON, "symbol": "A", "volume": 1}], ["row 1: column price DOUBLE is missing"]),
    (TABLE.append_column("venue", pa.nulls(3)), ["stream ticks has no column venue"]),
    ([ROWS[0] | {"pric": 1.0}], ["row 0: stream ticks has no column pric", "did you mean price?"]),
    ([ROWS[0] | {"Price": 1.0}], ["row 0: column price is given twice, as price and Price"]),
    (TABLE.set_column(2, "price", pa.array(["1", "2", "3"])), ["column price is VARCHAR (row 0: '1')", "DOUBLE"]),
    (TABLE.set_column(3, "volume", pa.array([True, None, False])), ["column volume is BOOLEAN (row 0: True)"]),
    (TABLE.set_column(0, "ts", pa.array([1, 2, 3])), ["column ts is BIGINT (row 0: 1)", "TIMESTAMP"]),
    (TABLE.set_column(1, "symbol", pa.array([None, None, 3])), ["column symbol is BIGINT (row 2: 3)"]),
    (TABLE.set_column(3, "volume", pa.array([1.0, None, 2.5])), ["column volume, row 2: 2.5", "BIGINT"]),
    (TABLE.set_column(3, "volume", pa.array([1, 2**63, 3], pa.uint64())), ["volume, row 1: 9223372036854775808"]),
    (TABLE.set_column(2, "price", pa.array([1, 2, 2**53 + 1])), ["column price, row 2: 9007199254740993"]),
    (TABLE.set_column(0, "ts", pa.array([NOON, None, NOON])), ["column ts, row 1: the time is null"]),
    ([*ROWS, ROWS[0] | {"ts": None}], ["column ts, row 3: the time is null"]),
    (
        TABLE.set_column(0, "ts", pa.array([1000, 2000, 2001], pa.timestamp("ns"))),
        ["column ts, row 2: 1970-01-01 00:00:00.000002001 is finer than a microsecond"],
    ),
    ([ROWS[0] | {"ts": pd.Timestamp(1001)}], ["column ts, row 0", "is finer than a microsecond"]),
    ([ROWS[0], ROWS[0] | {"ts": np.datetime64(1, "ns")}], ["column ts, row 1", "is finer than a microsecond"]),
    ([ROWS[0] | {"ts": "2024-01-02"}], ["column ts, row 0: '2024-01-02' is of type str, not TIMESTAMP"]),
    ([ROWS[0], ROWS[0] | {"ts": 5}], ["column ts, row 1: 5 is of type int"]),
    ([ROWS[0], ROWS[0] | {"price": "1.5"}], ["column price, row 1: '1.5' is of type str, not DOUBLE"]),
    ([ROWS[0], ROWS[0] | {"volume": True}], ["column volume, row 1: True is of type bool"]),
    ([ROWS[0], ROWS[0] | {"symbol": b"A"}], ["column symbol, row 1: b'A' is of type bytes"]),
    ([ROWS[0], ROWS[0] | {"volume": 2**63}], ["column volume, row 1: 9223372036854775808"]),
    (pd.DataFrame(COLUMNS | {"price": pd.Series([1.0, "x", 2], dtype=object)}), ["column price, row 1: 'x'"]),
    (lambda: duckdb.sql("SELECT 'infinity'::TIMESTAMP ts, '' symbol, 1.5 price, 1 volume"), ["ts, row 0", "infinite"]),
    (lambda: duckdb.sql("SELECT '-infinity'::TIMESTAMP ts, '' symbol, 1.5 price, 1 volume"), ["ts, row 0", "infinite"]),
    (lambda: duckdb.sql("SELECT CAST(x AS INT) ts FROM (VALUES ('y')) t(x)"), ["cannot be read", "'y'"]),
    (COLUMNS | {"ts": [NOON]}, ["different lengths: ts 1, symbol 3"]),
    (ROWS[0], ["column ts is a single value", "a list with one dict"]),
    ([ROWS[0], 7], ["row 1 is 7, not a dict"]),
    ([ROWS[0], {5: 1}], ["row 1: stream ticks has no column 5"]),
    ("ts", ["str cannot be read as rows of ticks"]),
    (None, ["NoneType cannot be read as rows of ticks"]),
]


@pytest.mark.parametrize(("data", "named"), BAD)
def test_bad_data_is_named_and_changes_nothing(data: object, named: list[str]) -> None:
    stream = LiveStream(TICKS)
    stream.accept(ROWS[:1], "a")
    with pytest.raises(DataError) as raised:
        stream.accept(data() if callable(data) else data, "b")
    for words in named:
        assert words in str(raised.value)
    assert raised.value.hint
    assert stream.offsets == {"a": 1}
    assert (stream.accepted_count, stream.late_count, stream.duplicate_count) == (1, 0, 0)
    assert stream.watermark_us == NOON_US

    arrival = stream.accept(ROWS[1:], "a")
    assert arrival.batch.columns.to_pylist() == ROWS[1:]
    assert arrival.batch.offset.tolist() == [1, 2]
    assert arrival.batch.seq.tolist() == [1, 2]
    assert arrival.batch.sources == ("a",)


@pytest.mark.parametrize(
    ("type", "values", "expected"),
    [
        ("DOUBLE", [1, None, 2], [1.0, None, 2.0]),
        ("DOUBLE", [0.5, float("inf")], [0.5, float("inf")]),
        ("DOUBLE", pa.array([Decimal("0.1"), Decimal("2.5")]), [0.1, 2.5]),
        ("FLOAT", [0.5, 0.1], [0.5, float(np.float32(0.1))]),
        ("BIGINT", [1.0, 2.0], [1, 2]),
        ("BIGINT", np.array([1, 2], np.int8), [1, 2]),
        ("SMALLINT", [32767, -32768], [32767, -32768]),
        ("UBIGINT", [2**64 - 1], [2**64 - 1]),
        ("HUGEINT", [2**80, -1], [2**80, -1]),
        ("DECIMAL(9,2)", [1, 2], [Decimal("1.00"), Decimal("2.00")]),
        ("DECIMAL(9,2)", [0.1, 12.25], [Decimal("0.10"), Decimal("12.25")]),
        ("DECIMAL(9,2)", [Decimal("0.100")], [Decimal("0.10")]),
        ("DATE", [NOON.date(), None], [NOON.date(), None]),
        ("DATE", [dt.datetime(2024, 1, 2)], [dt.date(2024, 1, 2)]),
        ("TIMESTAMP", [dt.date(2024, 1, 2), NOON], [dt.datetime(2024, 1, 2), NOON]),
        ("TIMESTAMP", [pd.Timestamp(NOON), pd.NaT, None, np.datetime64(NOON)], [NOON, None, None, NOON]),
        ("TIMESTAMP", [NOON.replace(tzinfo=dt.timezone(dt.timedelta(hours=2)))], [NOON - dt.timedelta(hours=2)]),
        ("TIMESTAMPTZ", [NOON], [NOON.replace(tzinfo=dt.UTC)]),
        ("BOOLEAN", [True, None], [True, None]),
        ("BOOLEAN", [None, None], [None, None]),
        ("BLOB", [b"a", None], [b"a", None]),
        ("TIME", [dt.time(1, 2)], [dt.time(1, 2)]),
        ("ENUM('a', 'b')", ["a"], ["a"]),
        ("BIGINT[]", [[1, 2], None], [[1, 2], None]),
        ("STRUCT(a INTEGER)", [{"a": 1}], [{"a": 1}]),
    ],
)
def test_values_that_stay_what_they_are(type: str, values: Any, expected: list[Any]) -> None:
    assert one_column(type, values).to_pylist() == expected


@pytest.mark.parametrize(
    ("type", "values", "row"),
    [
        ("FLOAT", pa.array([0.5, 0.1]), 1),
        ("FLOAT", [0.5, 1e300], 1),
        ("SMALLINT", [1, 2, 32768], 2),
        ("UBIGINT", [1, -1], 1),
        ("UBIGINT", [2**64], 0),
        ("HUGEINT", [1, 10**38], 1),
        ("DECIMAL(9,2)", [0.25, 0.125], 1),
        ("DECIMAL(9,2)", [1, 10**7], 1),
        ("DECIMAL(9,2)", [Decimal("0.125")], 0),
        ("DECIMAL(38,30)", [1, 10**18], 1),
        ("DOUBLE", pa.array([Decimal("0.5"), Decimal("0.12345678901234567891")]), 1),
        ("DATE", [dt.datetime(2024, 1, 2), NOON], 1),
        ("TIMESTAMP", [NOON, pd.Timestamp("2024-01-02 00:00:00.000000001")], 1),
        ("BOOLEAN", [True, 1], 1),
        ("VARCHAR", ["a", None, 1], 2),
    ],
)
def test_values_that_would_change_are_refused(type: str, values: Any, row: int) -> None:
    with pytest.raises(DataError, match=f"column x, row {row}: "):
        one_column(type, values)


def test_a_zoned_time_column() -> None:
    schema = Schema("s", (Field("at", "TIMESTAMPTZ"),), time="at")
    cet = dt.timezone(dt.timedelta(hours=1))
    batch, ts_us = Incoming(schema).read([{"at": NOON.replace(tzinfo=cet)}, {"at": NOON}])
    assert ts_us.tolist() == [NOON_US - 3_600_000_000, NOON_US]
    assert batch.column(0).type == pa.timestamp("us", "UTC")


def test_a_date_as_time() -> None:
    schema = Schema("s", (Field("day", "DATE"),), time="day")
    _, ts_us = Incoming(schema).read([{"day": dt.date(1970, 1, 2)}])
    assert ts_us.tolist() == [86_400_000_000]


def test_nanoseconds_as_declared_are_exact_microseconds_or_refused() -> None:
    schema = Schema("s", (Field("at", "TIMESTAMP_NS"),), time="at")
    _, ts_us = Incoming(schema).read(pa.table({"at": pa.array([1000, 5000], pa.timestamp("ns"))}))
    assert ts_us.tolist() == [1, 5]
    with pytest.raises(DataError, match=r"column at, row 1: .* is finer than a microsecond"):
        Incoming(schema).read(pa.table({"at": pa.array([1000, 5001], pa.timestamp("ns"))}))


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (Schema("s", (Field("x", "BIGINT"),)), "has no time column"),
        (Schema("s", (Field("x", "BIGINT"),), time="ts"), "column ts does not exist"),
        (Schema("s", (Field("x", "BIGINT"),), time="x"), "the time column x of stream s is BIGINT"),
    ],
)
def test_a_stream_needs_a_time(schema: Schema, words: str) -> None:
    with pytest.raises(DataError, match=words):
        LiveStream(schema)


@pytest.mark.parametrize(
    ("type", "good", "bad"),
    [
        ("ENUM('a', 'b')", ["a", None, "b"], "c"),
        ("UUID", ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", None, "A0EEBC999C0B4EF8BB6D6BB9BD380A11"], "x"),
        ("JSON", ["{}", None, '{"a": [1, 2]}', "1"], "{"),
        ("JSON", ["null"], ""),
        ("STRUCT(a UUID)", [{"a": None}], {"a": "x"}),
        ("JSON[]", [["1", "{}"], None, []], ["1", "{"]),
    ],
)
def test_texts_that_are_no_value_of_the_declared_type(type: str, good: list[Any], bad: Any) -> None:
    """Before: taken, and the query that reads the column failed later."""
    assert one_column(type, good).to_pylist() == good
    schema = Schema("s", (Field("ts", "TIMESTAMP"), Field("x", type)), time="ts")
    values = [*good, bad]
    columns = {"ts": [NOON] * len(values), "x": values}
    whole = Incoming(schema).read({"ts": [NOON] * len(good), "x": good})[0]
    table = pa.table({"ts": columns["ts"], "x": pa.array(values, whole.schema.field("x").type)})
    for data in (columns, [dict(zip(columns, row)) for row in zip(*columns.values())], table):
        with pytest.raises(DataError, match=rf"column x, row {len(good)}: .* is not a valid ") as raised:
            Incoming(schema).read(data)
        assert type in str(raised.value)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("number", [2**63 - 1, -(2**63) + 1, 2**62])
def test_times_that_python_has_no_room_for(unit: str, number: int) -> None:
    """Before: OverflowError where the text of the error was made."""
    for type in ("TIMESTAMP", "TIMESTAMPTZ", "DATE", "TIMESTAMP_S"):
        schema = Schema("s", (Field("ts", type),), time="ts")
        given = pa.array([number], pa.int64()).cast(pa.timestamp(unit))
        kept = number % 1000 == 0 if unit == "ns" else unit == "us" and abs(number) < 2**62
        if kept and type.startswith("TIMESTAMP") and type != "TIMESTAMP_S":
            _, ts_us = Incoming(schema).read(pa.table({"ts": given}))
            assert ts_us.tolist() == [number // 1000 if unit == "ns" else number]
        else:
            with pytest.raises(DataError, match="column ts, row 0"):
                Incoming(schema).read(pa.table({"ts": given}))


@pytest.mark.parametrize("number", ["1e-999999999", "1e999999999", "0e-999999999"])
@pytest.mark.parametrize("type", ["HUGEINT", "DECIMAL(9,2)", "DOUBLE", "BIGINT"])
def test_decimals_beyond_all_digits(type: str, number: str) -> None:
    """Before: the process ended in Arrow (SIGSEGV); a live source of JSON did so with `1e-999999999` in a HUGEINT."""
    with pytest.raises(DataError, match="column x, row 1"):
        one_column(type, [Decimal(1), Decimal(number)])

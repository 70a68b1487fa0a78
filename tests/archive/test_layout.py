"""Files: every type comes back as it went in, rows are cut by period and sorted by bucket, key and time."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from archive.history import History
from archive.layout import ROW_GROUP_ROWS, cut_periods, sort_order, stored_schema, to_stored, write_files
from archive.place import place_of
from archive.reader import RangeRequest
from matching.batch import EventBatch
from matching.types import arrow_schema
from query.errors import DataError
from query.schema import Field, Schema
from tests.archive.events import START_US

DAY_US = 86_400_000_000

VALUES = [
    ("BOOLEAN", [True, False]),
    ("TINYINT", [-128, 127]),
    ("SMALLINT", [-(2**15), 2**15 - 1]),
    ("INTEGER", [-(2**31), 2**31 - 1]),
    ("BIGINT", [-(2**63), 2**63 - 1]),
    ("HUGEINT", [Decimal(-(10**38) + 1), Decimal(10**38 - 1)]),
    ("UTINYINT", [0, 255]),
    ("USMALLINT", [0, 2**16 - 1]),
    ("UINTEGER", [0, 2**32 - 1]),
    ("UBIGINT", [0, 2**64 - 1]),
    ("FLOAT", [0.5, float("-inf")]),
    ("DOUBLE", [0.1, float("inf")]),
    ("DECIMAL(9,2)", [Decimal("-1234567.89"), Decimal("0.01")]),
    ("DECIMAL(38,10)", [Decimal("1234567890123456789012345678.0123456789"), Decimal(0)]),
    ("VARCHAR", ["", "ü\x00'\""]),
    ("VARCHAR", ["x" * 5000, "y"]),
    ("BLOB", [b"", b"\x00\xff"]),
    ("DATE", [dt.date(1, 1, 1), dt.date(9999, 12, 31)]),
    ("TIME", [dt.time(0), dt.time(23, 59, 59, 999_999)]),
    ("TIMESTAMP", [dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999_999)]),
    ("TIMESTAMP_S", [dt.datetime(1970, 1, 1), dt.datetime(2024, 2, 29, 1, 2, 3)]),
    ("TIMESTAMP_MS", [dt.datetime(1969, 12, 31, 23, 59, 59, 999_000), dt.datetime(2024, 2, 29)]),
    ("TIMESTAMPTZ", [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(1900, 1, 1, tzinfo=dt.UTC)]),
    ("UUID", ["6b1f3c1e-0000-4000-8000-000000000001", "ffffffff-ffff-ffff-ffff-ffffffffffff"]),
    ("ENUM('low', 'high')", ["high", "low"]),
    ("INTEGER[]", [[], [1, None, 3]]),
    ("STRUCT(a INTEGER, b VARCHAR)", [{"a": 1, "b": None}, {"a": None, "b": "x"}]),
    ("MAP(VARCHAR, INTEGER)", [[("k", 1)], []]),
]


def declared(type: str, time: str = "TIMESTAMP") -> Schema:
    return Schema("t", (Field("ts", time), Field("x", type)), time="ts", keys=("x",))


def batch_of(schema: Schema, ts_us: np.ndarray, values: list) -> EventBatch:
    types = arrow_schema(schema)
    times = pa.array(ts_us).view(pa.timestamp("us", "UTC"))
    time = types.field("ts").type
    times = times.view(pa.timestamp("us")).cast(time) if not getattr(time, "tz", None) else times.cast(time)
    n = len(ts_us)
    columns = pa.RecordBatch.from_arrays([times, pa.array(values, types.field("x").type)], schema=types)
    return EventBatch(columns, ts_us, np.zeros(n, np.int32), np.arange(n, dtype=np.int64), np.arange(n, dtype=np.int64))


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize(("type", "values"), VALUES)
def test_every_type_comes_back_as_it_went_in(tmp_path, type, values):
    schema = declared(type)
    values = [*values, None]
    history = History(schema, tmp_path)
    history.append(batch_of(schema, START_US + np.arange(3), values), np.zeros(3, np.bool_))
    from_memory = history.snapshot().read(RangeRequest())
    history.flush()
    from_files = history.snapshot().read(RangeRequest())
    assert from_files.columns.schema == arrow_schema(schema)
    assert from_files.columns.equals(from_memory.columns)
    assert from_files.columns.column("x").to_pylist() == values
    if "[" not in type and "(a " not in type and "MAP" not in type:
        for value in (values[0], None):
            wanted = pa.array([value], arrow_schema(schema).field("x").type)
            read = history.snapshot().read(RangeRequest(keys={"x": wanted}))
            assert read.columns.column("x").to_pylist() == [value]


def test_nan_and_minus_zero_come_back(tmp_path):
    schema = declared("DOUBLE")
    history = History(schema, tmp_path)
    history.append(batch_of(schema, START_US + np.arange(3), [float("nan"), -0.0, 7.0]), np.zeros(3, np.bool_))
    history.flush()
    x = history.snapshot().read(RangeRequest()).columns.column("x").to_numpy()
    assert np.isnan(x[0])
    assert np.signbit(x[1])


@pytest.mark.parametrize(
    ("time", "values"),
    [
        ("TIMESTAMP", [START_US, START_US + 1]),
        ("TIMESTAMPTZ", [START_US, START_US + 1]),
        ("TIMESTAMP_NS", [START_US, START_US + 1]),
        ("TIMESTAMP_MS", [START_US, START_US + 1000]),
        ("TIMESTAMP_S", [-1_000_000, START_US]),
        ("DATE", [-DAY_US, START_US]),
    ],
)
def test_a_time_column_comes_back_as_declared(tmp_path, time, values):
    schema = declared("INTEGER", time)
    history = History(schema, tmp_path)
    batch = batch_of(schema, np.array(values), [1, 2])
    history.append(batch, np.zeros(2, np.bool_))
    history.flush()
    read = history.snapshot().read(RangeRequest())
    assert read.columns.equals(batch.columns)
    assert read.ts_us.tolist() == values
    assert history.snapshot().read(RangeRequest(values[1])).ts_us.tolist() == values[1:]
    path = next(tmp_path.glob("*/*.parquet"))
    assert pq.read_schema(path).field("ts").type == pa.timestamp("us", "UTC")


@pytest.mark.parametrize("type", ["INTERVAL", "TIMESTAMP_NS", "TIMESTAMP[]", "STRUCT(a UBIGINT)", "INTEGER[3]"])
def test_a_type_without_a_stored_form_is_refused_at_once(tmp_path, type):
    with pytest.raises(DataError, match="column x of type"):
        History(declared(type), tmp_path / "t")
    assert not (tmp_path / "t").exists()
    assert len(History(declared(type), None).snapshot().read(RangeRequest())) == 0  # in memory it may be


def test_hidden_names_and_no_time_are_refused(tmp_path):
    with pytest.raises(DataError, match="hidden column"):
        History(Schema("t", (Field("ts", "TIMESTAMP"), Field("_SEQ", "INTEGER")), time="ts"), tmp_path)
    with pytest.raises(DataError, match="no time column"):
        History(Schema("t", (Field("x", "INTEGER"),)), tmp_path)


def test_stored_columns():
    stored = stored_schema(declared("UBIGINT", "DATE"))
    assert dict(zip(stored.names, stored.types)) == {
        "ts": pa.timestamp("us", "UTC"), "x": pa.decimal128(20, 0), "_source": pa.string(), "_offset": pa.int64(),
        "_seq": pa.int64(), "_late": pa.bool_(),
    }  # fmt: skip


def periods(ts_us: np.ndarray) -> dict[str, int]:
    return {name: len(ts_us) if index is None else len(index) for name, index in cut_periods(ts_us)}


def test_rows_are_cut_by_the_finest_period_that_fills_a_row_group():
    n = ROW_GROUP_ROWS
    start = START_US + np.arange(2 * n, dtype=np.int64)
    assert periods(start[:3]) == {"2024-01-01": 3}
    assert periods(np.array([START_US - 1, START_US])) == {"all": 2}
    assert periods(np.concatenate([start[:n], start[:n] + DAY_US])) == {"2024-01-01": n, "2024-01-02": n}
    # A few late rows of the day before get a file of their own beside a full one.
    assert periods(np.concatenate([start, [START_US - 1]])) == {"2023-12-31": 1, "2024-01-01": 2 * n}
    days = START_US + np.arange(366, dtype=np.int64) * DAY_US
    assert periods(days) == {"2024": 366}
    lengths = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    assert periods(np.repeat(days, 600)) == {f"2024-{month:02}": 600 * n for month, n in enumerate(lengths, 1)}
    assert periods(np.array([-1, -DAY_US])) == {"1969-12-31": 2}


@pytest.mark.slow
def test_rows_stand_by_bucket_key_and_time():
    """Dense rows: 5-minute buckets, in each the keys (nulls last), for each key its times; ties as they came."""
    rng = np.random.default_rng(7)
    n = 300_000
    ts_us = START_US + rng.integers(0, 20 * 60, n) * 1_000_000
    symbols = np.array(["C", "A", "ü", None, "B"], dtype=object)[rng.integers(0, 5, n)]
    rows = pa.table({"symbol": pa.array(symbols)})
    order = sort_order(rows, ts_us, ("symbol",))
    got = [(ts_us[i] // 300_000_000, symbols[i] is None, symbols[i] or "", ts_us[i], i) for i in order.tolist()]
    assert got == sorted(got)
    assert len(set(order.tolist())) == n


def test_rows_of_two_keys_and_many_values():
    rng = np.random.default_rng(8)
    n = 5_000
    ts_us = START_US + rng.integers(0, 1000, n)
    a, b = rng.integers(-50, 50, n), rng.integers(0, 10**12, n)
    order = sort_order(pa.table({"a": a, "b": b}), ts_us, ("a", "b"))
    got = [(a[i], b[i], ts_us[i], i) for i in order.tolist()]
    assert got == sorted(got)


def test_files_have_small_row_groups_and_plain_encodings(tmp_path):
    schema = Schema("t", (Field("ts", "TIMESTAMP"), Field("symbol", "VARCHAR")), time="ts", keys=("symbol",))
    n = 3 * ROW_GROUP_ROWS + 5
    times = pa.array(START_US + np.arange(n)).view(pa.timestamp("us", "UTC"))
    columns = [times, ["A"] * n, ["s"] * n, np.arange(n), np.arange(n), [False] * n]
    rows = pa.table(columns, schema=stored_schema(schema))
    (file,) = write_files(rows, tmp_path, schema)
    metadata = pq.ParquetFile(tmp_path / file.path).metadata
    assert (metadata.num_row_groups, metadata.num_rows, file.rows) == (4, n, n)
    group = metadata.row_group(0)
    columns = [group.column(i) for i in range(metadata.num_columns)]
    assert {column.compression for column in columns} == {"ZSTD"}
    assert all(column.statistics.has_min_max for column in columns)
    assert file.size == (tmp_path / file.path).stat().st_size


def test_nan_is_found_behind_a_bound(tmp_path):
    """NaN is the largest number to DuckDB, but in no statistics: whoever filters must find it all the same."""
    schema = Schema("n", (Field("ts", "TIMESTAMP"), Field("x", "DOUBLE"), Field("y", "FLOAT")), time="ts")
    x = [0.5] * 9 + [float("nan")]
    columns = [pa.array(range(10), pa.timestamp("us")), pa.array(x), pa.array(x[::-1], pa.float32())]
    zeros = np.zeros(10, np.int64)
    batch = EventBatch(
        pa.RecordBatch.from_arrays(columns, schema=arrow_schema(schema)), np.arange(10), zeros.astype(np.int32),
        np.arange(10), np.arange(10),
    )  # fmt: skip
    (file,) = write_files(to_stored(batch, zeros.astype(bool), schema), place_of(tmp_path), schema)
    path = str(tmp_path / file.path)
    for test, count in (("x > 2", 1), ("x <> 0.5", 1), ("x <= 0.5", 9), ("isnan(y)", 1), ("y > 0.5 AND x < 1", 1)):
        rows = duckdb.sql(f"SELECT count(*) FROM read_parquet($f) WHERE {test}", params={"f": path}).fetchall()
        assert rows == [(count,)], test

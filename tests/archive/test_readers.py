"""Others read the same table: plain DuckDB, Polars, deltalake, pyarrow, before and after a rewrite; each sees each
event once. Spark does in tests/archive/spark."""

from __future__ import annotations

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from deltalake import DeltaTable

from archive.history import History
from archive.layout import is_by_key
from archive.table import Table
from archive.upkeep import compact
from tests.archive.events import START_US, TICKS, batch_of, run_of

DAY_US = 86_400_000_000
EVENTS = run_of(60_000, step_us=5_000_000)  # three and a half days
WANTED = sum(event.price for event in EVENTS if event.symbol == "B" and event.ts_us < START_US + DAY_US)


@pytest.fixture(params=["as flushed", "as compacted"])
def table(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("ticks")
    history = History(TICKS, directory, memory_rows_max=10**9)
    for start in range(0, len(EVENTS), 10_000):
        history.append(*batch_of(EVENTS[start : start + 10_000]))
        history.flush()
    if request.param == "as compacted":
        assert list(compact(Table.open(directory)))
        assert any(map(is_by_key, Table.open(directory).snapshot().paths))
    return directory


@pytest.mark.slow
def test_deltalake_and_pyarrow(table):
    delta = DeltaTable(str(table))
    assert delta.count() == len(EVENTS)
    assert delta.protocol().min_reader_version == 1
    # what the log says of the files is enough to leave some out
    some = delta.file_uris(file_pruning_predicate=[("ts", "<", "2024-01-02T00:00:00Z")])
    assert 0 < len(some) < len(delta.file_uris())
    rows = ds.dataset(delta.file_uris(), format="parquet")
    day = pc.scalar(START_US + DAY_US).cast(pa.timestamp("us", "UTC"))
    found = rows.to_table(columns=["price"], filter=(ds.field("symbol") == "B") & (ds.field("ts") < day))
    assert pc.sum(found.column("price")).as_py() == WANTED


@pytest.mark.slow
def test_duckdb_without_extensions(table):
    files = {"files": DeltaTable(str(table)).file_uris()}
    text = """SELECT count(*), sum(price) FROM read_parquet($files)
              WHERE symbol = 'B' AND ts < TIMESTAMPTZ '2024-01-02 00:00:00Z'"""
    count = sum(e.symbol == "B" and e.ts_us < START_US + DAY_US for e in EVENTS)
    assert duckdb.sql(text, params=files).fetchall() == [(count, WANTED)]
    text = "SELECT count(DISTINCT (_source, _offset)), max(_seq), bool_or(_late) FROM read_parquet($files)"
    assert duckdb.sql(text, params=files).fetchall() == [(len(EVENTS), len(EVENTS) - 1, False)]


@pytest.mark.slow
def test_polars(table):
    before = pl.datetime(2024, 1, 2, time_zone="UTC")
    frame = pl.scan_delta(str(table)).filter((pl.col("symbol") == "B") & (pl.col("ts") < before))
    assert frame.select(pl.col("price").sum()).collect().item() == WANTED
    assert pl.scan_delta(str(table)).select(pl.len()).collect().item() == len(EVENTS)


@pytest.mark.slow
def test_an_older_version_is_still_there(table):
    version = DeltaTable(str(table)).version()
    assert DeltaTable(str(table), version=version - 1).version() == version - 1

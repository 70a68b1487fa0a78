"""Columns that come later: older rows have nulls there, whoever reads, wherever they lie."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

import duckdb
import polars as pl
import pyarrow as pa
import pytest
from deltalake import DeltaTable

import hybrid
from archive.history import History
from archive.reader import RangeRequest
from archive.table import Table
from archive.upkeep import compact, verify
from query.errors import DataError
from query.schema import Field
from tests.archive.events import TICKS, batch_of, run_of

WIDER = replace(TICKS, fields=(*TICKS.fields, Field("venue", "VARCHAR"), Field("tags", "INTEGER[]")))


def test_a_table_takes_columns(tmp_path):
    Table.create(tmp_path, TICKS).append(*batch_of(run_of(10)))
    table = Table.create(tmp_path, WIDER)
    assert (table.schema, table.added) == (WIDER, ("venue", "tags"))
    assert Table.open(tmp_path).schema == WIDER
    assert Table.create(tmp_path, WIDER).schema == WIDER
    with pytest.raises(DataError, match="6 columns are now 4"):
        Table.create(tmp_path, TICKS)
    more = replace(WIDER, fields=(*WIDER.fields, Field("size", "BIGINT")))
    assert Table.create(tmp_path, more).added == ("venue", "tags", "size")


@pytest.mark.slow
def test_a_crash_between_the_two_commits_is_mended(tmp_path, monkeypatch):
    Table.create(tmp_path, TICKS).append(*batch_of(run_of(10)))
    table = Table.open(tmp_path)
    version = table.snapshot().version
    with monkeypatch.context() as patch:
        patch.setattr("archive.table.schema_to_json", None)
        with pytest.raises(TypeError):
            table.add_columns(WIDER)
    assert Table.open(tmp_path).snapshot().version == version + 1
    old = History(TICKS, tmp_path)  # nothing has happened, for a reader and a writer
    old.append(*batch_of(run_of(5, first=10)))
    old.flush()
    assert len(old.snapshot().read(RangeRequest())) == 15
    wide = History(WIDER, tmp_path)
    assert wide.snapshot().read(RangeRequest()).columns.column("venue").null_count == 15


@pytest.mark.parametrize("place", ["files", "both", "memory"])
def test_rows_of_before_have_nulls(tmp_path, place):
    history = History(TICKS, None if place == "memory" else tmp_path, memory_rows_max=10**9)
    history.append(*batch_of(run_of(10)))
    before = history.snapshot()
    if place == "files":
        history.flush()
    history.add_columns(WIDER)
    batch, late = batch_of(run_of(10, first=10))
    new = [pa.array(["X"] * 10), pa.array([[i] for i in range(10)], pa.list_(pa.int32()))]
    columns = pa.RecordBatch.from_arrays([*batch.columns.columns, *new], names=list(WIDER.names))
    history.append(replace(batch, columns=columns), late)
    for flushed in (False, True):
        if flushed:
            history.flush()
        read = history.snapshot().read(RangeRequest())
        assert read.columns.column("venue").to_pylist() == [None] * 10 + ["X"] * 10
        assert read.columns.column("tags").to_pylist() == [None] * 10 + [[i] for i in range(10)]
        some = history.snapshot().read(RangeRequest(keys={"venue": ["X"]}))
        assert some.offset.tolist() == list(range(10, 20))
        none = history.snapshot().read(RangeRequest(keys={"venue": [None]}))
        assert none.offset.tolist() == list(range(10))
    assert before.read(RangeRequest()).columns.num_columns == 4


@pytest.mark.slow
def test_compaction_and_other_readers_see_the_columns(tmp_path):
    table = Table.create(tmp_path, TICKS)
    table.append(*batch_of(run_of(10)))
    assert History(WIDER, tmp_path).snapshot().read(RangeRequest()).columns.column("venue").null_count == 10
    table = Table.open(tmp_path)
    for first in range(10, 90, 10):
        Table.open(tmp_path)
        history = History(WIDER, tmp_path)
        batch, late = batch_of(run_of(10, first=first))
        new = [pa.array(["X"] * 10), pa.nulls(10, pa.list_(pa.int32()))]
        columns = pa.RecordBatch.from_arrays([*batch.columns.columns, *new], names=list(WIDER.names))
        history.append(replace(batch, columns=columns), late)
        history.flush()
    for _ in range(2):
        assert [f for f in verify(Table.open(tmp_path), deep=True) if f.kind == "broken"] == []
        delta = DeltaTable(str(tmp_path))
        frame = pl.scan_delta(str(tmp_path)).select("venue").collect()
        assert frame["venue"].null_count() == 10
        assert {field.name for field in delta.schema().fields} >= {"venue", "tags"}
        files = [str(tmp_path / path) for path in Table.open(tmp_path).snapshot().paths]
        text = "SELECT count(*), count(venue) FROM read_parquet($files, union_by_name=true)"
        assert duckdb.sql(text, params={"files": files}).fetchall() == [(90, 80)]
        assert list(compact(Table.open(tmp_path), closed_us=2**60)) or len(files) == 1


@pytest.mark.slow
def test_a_database_takes_columns(tmp_path):
    columns = {"ts": "TIMESTAMP", "symbol": "VARCHAR"}
    with hybrid.connect(tmp_path) as db:
        db.create_stream("ticks", columns, time="ts", key="symbol")
        db.push("ticks", [{"ts": datetime(2024, 1, 1), "symbol": "A"}])
        db.flush()
        db.push("ticks", [{"ts": datetime(2024, 1, 2), "symbol": "A"}])
        pattern = "ORDER BY ts MEASURES count(*) AS n PATTERN (A B) DEFINE A AS true"
        alerts = db.watch(f"SELECT * FROM ticks MATCH_RECOGNIZE ({pattern})")
        with pytest.raises(DataError, match="while live queries read"):
            db.create_stream("ticks", {**columns, "price": "DOUBLE"}, time="ts", key="symbol")
        alerts.close()
        with pytest.raises(DataError, match="different declaration"):
            db.create_stream("ticks", {**columns, "symbol": "BIGINT", "price": "DOUBLE"}, time="ts", key="symbol")
        db.create_stream("ticks", {**columns, "price": "DOUBLE"}, time="ts", key="symbol")
        db.push("ticks", [{"ts": datetime(2024, 1, 3), "symbol": "A", "price": 1.5}])
        assert db.sql("SELECT price FROM ticks ORDER BY ts").df()["price"].isna().tolist() == [True, True, False]
    with hybrid.connect(tmp_path) as db:
        assert db.streams()["ticks"]["columns"] == {**columns, "price": "DOUBLE"}
        found = db.sql(
            "SELECT first, last FROM ticks MATCH_RECOGNIZE (ORDER BY ts "
            "MEASURES first(A.price) AS first, last(A.price) AS last PATTERN (A+) DEFINE A AS true)"
        )
        assert found.arrow().to_pylist() == [{"first": None, "last": 1.5}]


@pytest.mark.slow
def test_a_database_goes_on_where_a_crash_left_the_declaration(tmp_path):
    columns = {"ts": "TIMESTAMP", "symbol": "VARCHAR"}
    with hybrid.connect(tmp_path) as db:
        db.create_stream("ticks", columns, time="ts", key="symbol")
        db.push("ticks", [{"ts": datetime(2024, 1, 1), "symbol": "A"}])
    file = tmp_path / "ticks" / "stream.json"
    before = file.read_text()
    with hybrid.connect(tmp_path) as db:
        db.create_stream("ticks", {**columns, "price": "DOUBLE"}, time="ts", key="symbol")
    file.write_text(before)  # as if the process had died before it was written
    with hybrid.connect(tmp_path) as db:
        assert db.streams()["ticks"]["columns"] == {**columns, "price": "DOUBLE"}
        assert db.sql("SELECT price FROM ticks").arrow().to_pylist() == [{"price": None}]

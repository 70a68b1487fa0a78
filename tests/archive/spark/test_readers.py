"""Spark reads the archive without us: the files that the log names, as plain Parquet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from deltalake import DeltaTable

from archive.history import History
from archive.table import Table
from archive.upkeep import compact
from query.schema import Field
from tests.archive.events import START_US, TICKS, batch_of, run_of

pytestmark = pytest.mark.spark


def test_plain_spark_reads_the_table(spark, tmp_path):
    events = run_of(30_000, step_us=10_000_000)  # three and a half days
    history = History(TICKS, tmp_path, memory_rows_max=10**9)
    for start in range(0, len(events), 5_000):
        history.append(*batch_of(events[start : start + 5_000]))
        history.flush()
    wanted = sum(e.price for e in events if e.symbol == "B" and e.ts_us < START_US + 86_400_000_000)
    for rewritten in (False, True):
        assert not rewritten or list(compact(Table.open(tmp_path)))
        rows = spark.read.parquet(*DeltaTable(str(tmp_path)).file_uris())
        assert rows.count() == len(events)
        rows.createOrReplaceTempView("ticks")
        found = spark.sql("SELECT sum(price), count(DISTINCT _source, _offset) FROM ticks "
                          "WHERE symbol = 'B' AND ts < TIMESTAMP '2024-01-02 00:00:00Z'").toArrow()  # fmt: skip
        assert found.to_pylist()[0]["sum(price)"] == wanted
    History(replace(TICKS, fields=(*TICKS.fields, Field("venue", "VARCHAR"))), tmp_path)
    table = Table.open(tmp_path)
    batch, late = batch_of(run_of(10, first=30_000))
    columns = batch.columns.append_column("venue", batch.columns.column("symbol"))
    table.append(replace(batch, columns=columns), late)
    wide = spark.read.option("mergeSchema", "true").parquet(*DeltaTable(str(tmp_path)).file_uris())
    assert wide.where("venue IS NOT NULL").count() == 10

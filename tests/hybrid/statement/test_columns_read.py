"""Only columns that a pattern reads are read; evidence reads the others, of the same rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import hybrid
from hybrid.rows import inputs

ROWS = pa.table({
    "ts": pa.array(range(0, 8_000_000, 1_000_000), pa.timestamp("us")), "k": list("aabbaabb"),
    "v": [3.0, 4.0, 2.0, 1.0, 2.0, 5.0, 3.0, 4.0], "note": [f"n{i}" for i in range(8)],
})  # fmt: skip
TEXT = """SELECT * FROM {} MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts
    MEASURES A.v AS first, LAST(B.v) AS last PATTERN (A B+) DEFINE B AS v < PREV(v))"""
FOUND = [{"k": "a", "first": 4.0, "last": 2.0}, {"k": "b", "first": 2.0, "last": 1.0}]
NOTES = ["n1", "n4", "n2", "n3"]


def of_kinds(directory: Path) -> dict[str, Any]:
    path = directory / "t.parquet"
    pq.write_table(ROWS, path)
    return {
        "path": str(path), "arrow": ROWS, "pandas": ROWS.to_pandas(), "polars": pl.from_arrow(ROWS),
        "lazy": pl.scan_parquet(path), "relation": duckdb.sql(f"SELECT * FROM '{path}'"), "dataset": ds.dataset(path),
    }  # fmt: skip


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """The columns of the tables that have been converted, without those of tables without rows."""
    found: list[tuple[str, ...]] = []
    conform = inputs.conform

    def noted(table: pa.Table, name: str) -> pa.Table:
        if table.num_rows:
            found.append(tuple(table.column_names))
        return conform(table, name)

    monkeypatch.setattr(inputs, "conform", noted)
    return found


@pytest.mark.parametrize("kind", ["path", "arrow", "pandas", "polars", "lazy", "relation", "dataset"])
def test_other_columns_are_read_for_evidence(kind: str, tmp_path: Path, read: list[tuple[str, ...]]) -> None:
    result = hybrid.sql(TEXT.format("t"), t=of_kinds(tmp_path)[kind])
    assert sorted(result.arrow().to_pylist(), key=repr) == sorted(FOUND, key=repr)
    assert set(read) == {("ts", "k", "v")}
    assert sorted(result.evidence().column("note").to_pylist()) == sorted(NOTES)
    assert len(read) > 1


@pytest.mark.slow
def test_a_select_is_read_by_columns(tmp_path: Path, read: list[tuple[str, ...]]) -> None:
    of_kinds(tmp_path)
    for text in (f"(SELECT * FROM '{tmp_path}/t.parquet')", "(SELECT * FROM t WHERE v > 0)", "t"):
        read.clear()
        with duckdb.connect() as connection:
            connection.execute(f"CREATE TABLE t AS FROM '{tmp_path}/t.parquet'")
            result = hybrid.sql(TEXT.format(text), connection)
            assert result.arrow().num_rows == 2
            assert set(read) == {("ts", "k", "v")}
            assert sorted(result.evidence().column("note").to_pylist()) == sorted(NOTES)


def test_a_select_with_other_values_each_time_is_read_once() -> None:
    result = hybrid.sql(TEXT.format("(SELECT *, random() AS r FROM t)"), t=ROWS)
    evidence = result.evidence()
    assert evidence.column("r").null_count == 0
    assert sorted(evidence.column("note").to_pylist()) == sorted(NOTES)


def test_rows_that_changed_have_no_evidence(tmp_path: Path) -> None:
    result = hybrid.sql(TEXT.format("t"), t=of_kinds(tmp_path)["path"])
    pq.write_table(ROWS.set_column(2, "v", pa.array([float(i) for i in range(8)])), tmp_path / "t.parquet")
    with pytest.raises(hybrid.DataError, match="have changed since"):
        result.evidence()


def test_not_a_number_has_not_changed(tmp_path: Path) -> None:
    rows = ROWS.set_column(2, "v", pa.array([3.0, 4.0, 2.0, 1.0, 2.0, float("nan"), 3.0, None]))
    pq.write_table(rows, tmp_path / "nan.parquet")
    result = hybrid.sql(TEXT.format("t"), t=str(tmp_path / "nan.parquet"))
    assert result.arrow().num_rows
    assert result.evidence().num_rows


@pytest.mark.slow
def test_the_outer_select_reads_whole_tables(tmp_path: Path) -> None:
    text = TEXT.format("t").replace("SELECT *", "SELECT *, (SELECT max(note) FROM t) AS note")
    for data in of_kinds(tmp_path).values():
        assert {row["note"] for row in hybrid.sql(text, t=data).arrow().to_pylist()} == {"n7"}


def test_objects_of_pandas_and_categories_are_text(tmp_path: Path) -> None:
    frame = ROWS.to_pandas()
    frame["k"] = frame["k"].astype("category")
    frame["note"] = pd.Series(["x"] * 7 + [None], dtype=object)
    assert sorted(map(repr, hybrid.sql(TEXT.format("t"), t=frame).arrow().to_pylist())) == sorted(map(repr, FOUND))

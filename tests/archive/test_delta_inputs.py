"""Files of Delta tables into the archive: through the log of the table, and not as they lie there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

import hybrid
from query.errors import DataError


def rows(*values: int) -> pa.Table:
    times = [datetime(2024, 1, 1, 0, 0, v, tzinfo=UTC) for v in values]
    kinds = [None if v % 3 == 0 else "a b/c" if v % 3 == 1 else "d" for v in values]
    return pa.table({"ts": pa.array(times, pa.timestamp("us", "UTC")), "v": values, "kind": kinds})


@pytest.fixture
def db(tmp_path: Path) -> Iterator[hybrid.Database]:
    with hybrid.connect(tmp_path / "db", log="os") as opened:
        opened.create_stream("s", {"ts": "TIMESTAMP", "v": "BIGINT", "kind": "VARCHAR"}, time="ts")
        yield opened


def archived(db: hybrid.Database) -> list[Any]:
    return db.sql("SELECT v, kind FROM s ORDER BY v").fetchall()


def expected(*values: int) -> list[Any]:
    return [tuple(row.values()) for row in rows(*values).select(["v", "kind"]).to_pylist()]


@pytest.mark.slow
@pytest.mark.parametrize("below", ["lake/t", "lake", "lake/t/**/*.parquet", "lake/t/kind=d"])
def test_deleted_and_overwritten_rows_do_not_come_back(db: hybrid.Database, tmp_path: Path, below: str) -> None:
    # Before: all Parquet files of the directory, whatever the log says.
    table = str(tmp_path / "lake/t")
    write_deltalake(table, rows(50, 51), partition_by=["kind"])
    write_deltalake(table, rows(*range(10)), mode="overwrite")
    DeltaTable(table).delete("v >= 6")
    write_deltalake(table, rows(20, 21), mode="append")
    report = db.ingest("s", tmp_path / below)
    held = [0, 1, 2, 3, 4, 5, 20, 21]
    assert archived(db) == expected(*[v for v in held if v % 3 == 2 or "=d" not in below])
    assert report.messages == (f"read the Delta table {table} at version 3",)
    again = db.ingest("s", tmp_path / below)
    assert (again.files, again.known, again.rows) == (0, report.files, 0)


def test_a_newer_version_adds_its_new_rows(db: hybrid.Database, tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    write_deltalake(table, rows(1, 2))
    db.ingest("s", table)
    write_deltalake(table, rows(3), mode="append")
    report = db.ingest("s", table)
    assert (report.files, report.known, report.rows) == (1, 1, 1)
    assert report.messages == (f"read the Delta table {table} at version 1",)
    assert archived(db) == expected(1, 2, 3)


def test_a_newer_version_without_archived_rows_is_not_mixed_with_them(db: hybrid.Database, tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    write_deltalake(table, rows(1, 2))
    db.ingest("s", table)
    DeltaTable(table).delete("v = 1")  # writes the other row anew
    with pytest.raises(DataError, match=r"rewritten 1 archived file by version 1: .*\nhint: archive .* new stream"):
        db.ingest("s", table)
    assert archived(db) == expected(1, 2)
    DeltaTable(table).delete()
    report = db.ingest("s", [table, pq_file(tmp_path)])
    assert any("deleted or rewritten 1 archived file" in message for message in report.messages)


def pq_file(folder: Path) -> str:
    pq.write_table(rows(40), folder / "plain.parquet")
    return str(folder / "plain.parquet")


def test_a_file_that_the_table_no_longer_has_is_refused(db: hybrid.Database, tmp_path: Path) -> None:
    table = str(tmp_path / "t")
    write_deltalake(table, rows(1, 2))
    (old,) = (tmp_path / "t").glob("*.parquet")
    write_deltalake(table, rows(3), mode="overwrite")
    with pytest.raises(DataError, match=r"is not part of its Delta table at version 1\nhint: .*archive"):
        db.ingest("s", old)


@pytest.mark.parametrize("what", ["deletionVectors", "columnMapping"])
def test_a_table_whose_files_are_not_its_rows_is_refused(db: hybrid.Database, tmp_path: Path, what: str) -> None:
    table = tmp_path / "t"
    write_deltalake(str(table), rows(1, 2))
    first = table / "_delta_log" / "00000000000000000000.json"
    lines = [json.loads(line) for line in first.read_text().splitlines()]
    for line in lines:
        if "protocol" in line:
            line["protocol"] = {
                "minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": [what], "writerFeatures": [what],
            }  # fmt: skip
    first.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(DataError, match=rf"uses {what}: .*\nhint: write the rows"):
        db.ingest("s", table)


@pytest.mark.parametrize(
    ("name", "of"), [(".hoodie/hoodie.properties", "Hudi"), ("metadata/v1.metadata.json", "Iceberg")]
)
def test_tables_of_other_formats_are_refused_by_name(db: hybrid.Database, tmp_path: Path, name: str, of: str) -> None:
    table = tmp_path / "lake" / "t"
    (table / name).parent.mkdir(parents=True)
    (table / name).touch()
    (table / "data").mkdir()
    pq.write_table(rows(1), table / "data" / "one.parquet")
    for below in (tmp_path / "lake", table / "data" / "*.parquet"):
        with pytest.raises(DataError, match=rf"is an? {of} table: its files are not its rows"):
            db.ingest("s", below)
    assert archived(db) == []

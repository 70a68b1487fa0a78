"""Files into the archive: what fits, what does not and why, each file once, in one commit, whatever happens."""

from __future__ import annotations

import datetime
import gzip
import json
import math
import os
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from hypothesis import given
from hypothesis import strategies as st

from archive import checks, ingest, inputs, layout, upkeep
from archive.checks import Options
from archive.history import History
from archive.ingest import IngestReport, Job
from archive.ingested import ingested_files
from archive.inputs import InputFormat
from archive.layout import arrow_schema
from archive.place import place_of
from archive.reader import RangeRequest
from archive.recent import FILES
from archive.table import Table
from hybrid.database.database import Database
from matching.csv_records import TOO_LONG
from query.errors import DataError
from query.schema import Field, Schema
from tests.archive import ingest_child
from tests.archive.events import START_US, TICKS, batch_of, events_of, run_of
from tests.archive.ingest_child import POINTS
from tests.archive.kills import ROUNDS
from tests.archive.store import s3_server
from tests.forked import Child
from tests.properties.comparing import fewer

HEADER = "ts,symbol,price,rank\n"
BROKEN = "broken JSON: JSON is malformed: invalid character (byte 0)"
LINES = "".join(f"2024-01-{1 + i // 20:02d} 10:00:{i % 60:02d},{'ABC'[i % 3]},{i / 4},{i}\n" for i in range(100))


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def run(table: Path, *paths: Path | str, schema: Schema = TICKS, **given: Any) -> IngestReport:
    job = {name: given.pop(name) for name in ("format", "changed", "max_bad") if name in given}
    return ingest.ingest(Job(schema, place_of(table), tuple(map(str, paths)), options=Options(**given), **job))


def rows(table: Path, schema: Schema = TICKS) -> list[dict[str, Any]]:
    """All rows with their places, in the order of the stream."""
    batch = History(schema, table).snapshot().read(RangeRequest())
    places = zip(batch.offset.tolist(), batch.seq.tolist())
    return [row | {"offset": offset, "seq": seq} for row, (offset, seq) in zip(batch.columns.to_pylist(), places)]


def bad(table: Path) -> list[tuple[int, str, str]]:
    """(row, reason, raw) of the quarantine, read as the Delta table that it is."""
    if not DeltaTable.is_deltatable(str(table / "_quarantine")):
        return []
    found = pa.table(DeltaTable(str(table / "_quarantine")).to_pyarrow_table()).to_pylist()
    return sorted((row["row"], row["reason"], row["raw"]) for row in found)


# ---- what fits, and what does not


@pytest.mark.slow
def test_bad_rows_of_csv(tmp_path):
    text = HEADER + (
        "2024-01-01 10:00:00,A,1.5,1\n"
        '2024-01-01T10:00:01+01:00,"B ""q"", x",abc,1.5\n'
        "\n"
        ",A,1,2\n"
        '2024-01-02,A,"",\n'
        "1,2,3\n"
        "2024-01-02,A,1,2,3\n"
        "infinity,A,1,1\n"
        "yesterday,A,1e400,-0\n"
        "2024-01-02 25:00:00,,,99999999999\n"
        ',"","",\n'
        "9999999-01-01,A,1,1"
    )
    report = run(tmp_path / "t", write(tmp_path / "a.csv", text))
    assert (report.files, report.rows, report.bad, report.blank) == (1, 2, 9, 1)
    assert [(r["ts"], r["symbol"], r["price"], r["rank"], r["offset"]) for r in rows(tmp_path / "t")] == [
        (datetime.datetime(2024, 1, 1, 10), "A", 1.5, 1, 1),
        (datetime.datetime(2024, 1, 2), "A", None, None, 5),
    ]
    assert bad(tmp_path / "t") == [
        (3, "price: 'abc' is no DOUBLE; rank: '1.5' is no INTEGER", '2024-01-01T10:00:01+01:00,"B ""q"", x",abc,1.5'),
        (5, "ts is null", ",A,1,2"),
        (7, "too few fields: 3, not 4", "1,2,3"),
        (8, "too many fields: 5, not 4", "2024-01-02,A,1,2,3"),
        (9, "ts: 'infinity' is a time out of range", "infinity,A,1,1"),
        (10, "ts: 'yesterday' is no TIMESTAMP; price: '1e400' is no DOUBLE", "yesterday,A,1e400,-0"),
        (
            11, "ts: '2024-01-02 25:00:00' is no TIMESTAMP; rank: '99999999999' is no INTEGER",
            "2024-01-02 25:00:00,,,99999999999",
        ),
        (12, "ts is null", ',"","",'),
        (13, "ts: '9999999-01-01' is no TIMESTAMP", "9999999-01-01,A,1,1"),
    ]  # fmt: skip


@pytest.mark.slow
def test_members_of_ndjson_that_stand_twice(tmp_path):
    """Before: the first one was taken, where a live source takes the last one, and nothing said."""
    text = (
        '{"ts":"2024-01-03","symbol":"A","price":"2","rank":null}\n'
        '{"ts":"2024-01-03","symbol":"B","price":1,"rank":1,"symbol":"C"}\n'
        "oops\n\n"
        '{"ts":"2024-01-03","symbol":"D","\\u0070rice":1,"price":null,"rank":2}\r\n'
        '{"ts":"2024-01-03","symbol":"rank","more":1,"more":2,"rank":3,"price":1}\n'
    )
    report = run(tmp_path / "t", write(tmp_path / "a.jsonl", text))
    assert (report.rows, report.bad, report.blank) == (2, 3, 1)
    assert [(r["symbol"], r["rank"], r["offset"]) for r in rows(tmp_path / "t")] == [("A", None, 0), ("rank", 3, 5)]
    assert [line[:2] for line in bad(tmp_path / "t")] == [
        (2, "member symbol occurs twice"), (3, BROKEN), (5, "member price occurs twice"),
    ]  # fmt: skip
    assert bad(tmp_path / "t")[0][2] == text.splitlines()[1]


@pytest.mark.slow
def test_bad_rows_of_ndjson(tmp_path):
    text = (
        '{"ts":"2024-01-03","symbol":"A","price":"2","rank":null}\n'
        '{"ts":"2024-01-03","symbol":1,"price":true,"rank":1.0}\n'
        "{oops\n[1]\n\n  \n"
        '{"ts":null}\n{"price":1}\r\n'
        '{"ts":"2024-01-03T01:00:00+01:00","RANK":3,"Price":1}\n'
        '"text"'
    )
    path = write(tmp_path / "a.jsonl", text)
    report = run(tmp_path / "t", path)
    assert (report.rows, report.bad, report.blank) == (1, 7, 2)
    assert [(r["symbol"], r["price"], r["rank"], r["offset"]) for r in rows(tmp_path / "t")] == [("A", 2.0, None, 0)]
    # Before: a member that an object lacks was null, unless the first thousand lacked it, and bad where the file was
    # tailed; so was one in another case, beside the right one.
    assert [line[:2] for line in bad(tmp_path / "t")] == [
        (2, "price: 'true' is no DOUBLE"),
        (3, "broken JSON: JSON is malformed: object keys must be strings (byte 1)"),
        (4, "not a JSON object: Expected `object`, got `array`"),
        (7, "ts is null; symbol is missing; price is missing; rank is missing"),
        (8, "ts is missing; symbol is missing; rank is missing"),
        (9, "symbol is missing"),
        (10, "not a JSON object: Expected `object`, got `str`"),
    ]
    assert run(tmp_path / "u", path, missing="null").rows == 2
    assert [(r["price"], r["rank"]) for r in rows(tmp_path / "u")] == [(2.0, None), (1.0, 3)]
    assert bad(tmp_path / "t")[3][2] == '{"ts":null}'


@pytest.mark.slow
def test_bad_rows_of_parquet(tmp_path):
    berlin = pa.timestamp("ns", "Europe/Berlin")
    table = pa.table(
        {
            "TS": pa.array([1_704_067_200_000_000_000, None, 1_704_067_200_000_000_000], berlin),
            "symbol": pa.array([1, 2, 3], pa.int64()),
            "price": pa.array(["1", "x", None]).dictionary_encode(),
            "rank": [1.0, 2.5, math.nan],
            "more": [b"a", b"b", b"c"],
        }
    )  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")
    report = run(tmp_path / "t", tmp_path / "a.parquet")
    assert report.messages == ("skipped columns that are not declared: more",)
    assert [(r["ts"], r["symbol"], r["price"]) for r in rows(tmp_path / "t")] == [
        (datetime.datetime(2024, 1, 1), "1", 1.0)
    ]
    # Before: a time finer than a microsecond was cut, and bad where the file was tailed.
    finer = table.set_column(0, "ts", pa.array([1_704_067_200_000_000_001] * 3, pa.timestamp("ns")))
    pq.write_table(finer.slice(0, 1), tmp_path / "b.parquet")
    assert run(tmp_path / "u", tmp_path / "b.parquet").bad == 1
    why = "ts: '2024-01-01 00:00:00.000000001' is no TIMESTAMP: it is finer than a microsecond; `finer` may cut it"
    assert bad(tmp_path / "u")[0][1] == why
    run(tmp_path / "cut", tmp_path / "b.parquet", finer="cut")
    assert [r["ts"] for r in rows(tmp_path / "cut")] == [datetime.datetime(2024, 1, 1)]
    (second, third) = bad(tmp_path / "t")
    assert second[:2] == (2, "ts is null; price: 'x' is no DOUBLE; rank: '2.5' is no INTEGER")
    assert json.loads(second[2]) == {"TS": None, "symbol": 2, "price": "x", "rank": 2.5}
    assert third[:2] == (3, "rank: 'nan' is no INTEGER")


@pytest.mark.slow
def test_what_a_value_means(tmp_path):
    """The cases where DuckDB's cast alone would lose something in silence."""
    schema = Schema(
        "s",
        (
            Field("ts", "TIMESTAMP WITH TIME ZONE"), Field("s", "STRUCT(x INTEGER)"), Field("l", "INTEGER[]"),
            Field("e", "ENUM('a', 'b')"), Field("n", "UBIGINT"),
        ),
        time="ts",
    )  # fmt: skip
    text = (
        '{"ts":"2024-01-01T00:00:00Z","s":{"x":1},"l":[1,2],"e":"a","n":18446744073709551615}\n'
        '{"ts":"2024-01-01","s":{"x":"y"},"l":[1,"x"],"e":"c","n":-1}\n'
    )
    run(tmp_path / "t", write(tmp_path / "a.ndjson", text), schema=schema)
    (row,) = rows(tmp_path / "t", schema)
    assert (row["s"], row["l"], row["e"], row["n"]) == ({"x": 1}, [1, 2], "a", 2**64 - 1)
    ((_, reason, _),) = bad(tmp_path / "t")
    assert reason == (
        """s: '{"x":"y"}' is no STRUCT(x INTEGER); l: '[1,"x"]' is no INTEGER[]; """
        "e: 'c' is no ENUM('a', 'b'); n: '-1' is no UBIGINT"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("%d/%m/%Y %H:%M", "01/02/2024 10:30"), ("s", "1706783400"), ("s", "1706783400.0"), ("ms", "1706783400000"),
        ("us", "1706783400000000"),
    ],
)  # fmt: skip
def test_forms_of_times(tmp_path, form, text):
    path = write(tmp_path / "a.csv", HEADER + f"{text},A,1,1\nx,A,1,1\n")
    run(tmp_path / "t", path, timestamp_format=form)
    assert [r["ts"] for r in rows(tmp_path / "t")] == [datetime.datetime(2024, 2, 1, 10, 30)]
    assert bad(tmp_path / "t")[0][1] == "ts: 'x' is no TIMESTAMP"


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + HEADER + LINES,
        (HEADER + LINES).replace("\n", "\r\n"),
        (HEADER + LINES).replace(",", ";"),
        (HEADER + LINES).replace(",", "\t"),
        (HEADER + LINES).rstrip("\n"),
        HEADER.upper().replace("PRICE", '"PRICE"') + LINES,
        "price,extra,rank,symbol,ts\n"
        + "".join(",".join((p, "?", r, s, t)) + "\n" for t, s, p, r in (x.split(",") for x in LINES.splitlines())),
    ],
)
def test_csv_in_other_clothes(tmp_path, text):
    run(tmp_path / "t", write(tmp_path / "a.csv", text))
    run(tmp_path / "u", write(tmp_path / "b.csv", HEADER + LINES))
    assert rows(tmp_path / "t") == rows(tmp_path / "u")
    assert len(rows(tmp_path / "t")) == 100


def test_without_a_header(tmp_path):
    run(tmp_path / "t", write(tmp_path / "a.csv", LINES), header=False)
    assert [r["offset"] for r in rows(tmp_path / "t")] == list(range(100))


def test_null_texts(tmp_path):
    path = write(tmp_path / "a.csv", HEADER + '2024-01-01,NA,NA,NA\n2024-01-02,"NA","",1\n2024-01-03,,1,2\n')
    run(tmp_path / "t", path, nulls=("NA",))
    assert [(r["symbol"], r["price"]) for r in rows(tmp_path / "t")] == [(None, None), ("NA", None), ("", 1.0)]


@pytest.mark.slow
def test_what_is_no_utf8(tmp_path):
    path = write(tmp_path / "a.csv", HEADER.encode() + b"2024-01-01,A\xff,1,1\n2024-01-01,\xc3\xa9,1,1\n")
    run(tmp_path / "t", path)
    assert [r["symbol"] for r in rows(tmp_path / "t")] == ["é"]
    assert bad(tmp_path / "t") == [(2, "the row is not UTF-8", "2024-01-01,A\\xff,1,1")]


@pytest.mark.slow
def test_a_huge_row(tmp_path):
    big = "x" * 5_000_000
    run(tmp_path / "t", write(tmp_path / "a.csv", HEADER + f'2024-01-01,"{big}",1,1\n2024-01-02,A,{big},1\n'))
    assert [len(r["symbol"]) for r in rows(tmp_path / "t")] == [5_000_000]
    ((_, reason, raw),) = bad(tmp_path / "t")
    assert reason == "price: '" + "x" * 57 + "...' is no DOUBLE"
    assert len(raw) > 5_000_000


@pytest.mark.slow
def test_an_open_quote(tmp_path, monkeypatch):
    """It costs the line in which it stands, where what follows is more than a record may have."""
    # Before: DataError "has a record longer than 16 MB", and nothing of the file was archived; tailed, one row was bad.
    monkeypatch.setattr(inputs, "BLOCK_BYTES", 1 << 14)
    monkeypatch.setattr(inputs, "RECORD_BYTES_MAX", 1 << 14)
    path = write(tmp_path / "a.csv", HEADER + '2024-01-01,"A,1,1\n' + LINES * 20)
    report = run(tmp_path / "t", path)
    assert (report.rows, report.bad) == (2000, 1)
    assert bad(tmp_path / "t") == [(2, TOO_LONG, '2024-01-01,"A,1,1')]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["csv", "ndjson"])
def test_a_record_of_more_than_16_mb(tmp_path, suffix):
    # Before: DataError, and nothing of the file was archived.
    first = HEADER + "2024-01-01,A,1,1\n" if suffix == "csv" else '{"ts": "2024-01-01", "symbol": "A"}\n'
    last = "2024-01-02,B,1,1\n" if suffix == "csv" else '{"ts": "2024-01-02", "symbol": "B"}\n'
    path = write(tmp_path / f"a.{suffix}", first + "x" * (40 << 20) + "\n" + last)
    report = run(tmp_path / "t", path, missing="null")
    assert (report.rows, report.bad) == (2, 1)
    ((_, reason, raw),) = bad(tmp_path / "t")
    assert (reason, raw) == ("the record is longer than 16 MB; its beginning", "x" * 1000)


@pytest.mark.parametrize("text", ["", "\n\n", "\ufeff", HEADER, HEADER.rstrip("\n")])
def test_files_with_nothing_in_them(tmp_path, text):
    report = run(tmp_path / "t", write(tmp_path / "a.csv", text), write(tmp_path / "b.ndjson", text and "\n"))
    assert (report.rows, report.bad) == (0, 0)
    assert rows(tmp_path / "t") == []


# ---- which files


@pytest.mark.slow
def test_directories_globs_and_compression(tmp_path):
    text = (HEADER + LINES).encode()
    write(tmp_path / "in/a.csv", text)
    write(tmp_path / "in/deep/er/b.csv.gz", gzip.compress(text.replace(b"2024", b"2023")))
    write(tmp_path / "in/_tmp/c.csv", text.replace(b"2024", b"2022"))
    write(tmp_path / "in/.d.csv", text.replace(b"2024", b"2022"))
    write(tmp_path / "in/readme.md", "# no data")
    report = run(tmp_path / "t", tmp_path / "in")
    assert (report.files, report.rows, report.messages) == (2, 200, ("skipped 1 file with other suffixes",))
    assert run(tmp_path / "u", tmp_path / "in/**/*.csv*").files == 2
    assert run(tmp_path / "v", tmp_path / "in/a.csv", tmp_path / "in").files == 2
    assert rows(tmp_path / "t") == rows(tmp_path / "v")


@pytest.mark.slow
def test_columns_in_the_path(tmp_path):
    lines = "ts,price,rank\n2024-01-01,1,1\n"
    for symbol in ("A", "a%2Fb", "__HIVE_DEFAULT_PARTITION__"):
        write(tmp_path / f"in/symbol={symbol}/x.csv", lines)
    report = run(tmp_path / "t", tmp_path / "in")
    assert (report.files, report.known) == (3, 0)  # of equal bytes, but they do not say the same
    assert sorted(str(r["symbol"]) for r in rows(tmp_path / "t")) == ["A", "None", "a/b"]
    assert run(tmp_path / "t", tmp_path / "in").known == 3


@pytest.mark.slow
@pytest.mark.parametrize("missing", ["error", "null"])
def test_columns_in_the_path_of_json(tmp_path, missing):
    lines = (
        '{"ts":"2024-01-01","price":1,"rank":1}\n{"ts":"2024-01-01","price":"x","rank":1.0}\n'
        '{"ts":"2024-01-02","rank":2.0,"price":1}\n'
    )
    for symbol in ("A", "__HIVE_DEFAULT_PARTITION__"):
        write(tmp_path / f"in/symbol={symbol}/x.ndjson", lines)
    report = run(tmp_path / "t", tmp_path / "in", missing=missing)
    assert (report.rows, report.bad) == (4, 2)
    assert sorted((str(r["symbol"]), r["rank"]) for r in rows(tmp_path / "t")) == [
        ("A", 1), ("A", 2), ("None", 1), ("None", 2),
    ]  # fmt: skip
    # A column that the path has is that of the path, and of the wrong type in each row.
    write(tmp_path / "more/price=abc/x.ndjson", '{"ts":"2024-01-01","symbol":"A","rank":1}\n')
    run(tmp_path / "u", tmp_path / "more", missing=missing)
    assert [reason for _, reason, _ in bad(tmp_path / "u")] == ["price: 'abc' is no DOUBLE"]


@pytest.mark.slow
def test_the_archive_is_no_input(tmp_path):
    write(tmp_path / "a.csv", HEADER + LINES)
    for _ in range(2):
        run(tmp_path / "t", tmp_path)
    assert len(rows(tmp_path / "t")) == 100


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("a.csv", "ts,symbol,prise,rank\n2024-01-01,A,1,1\n", {}, "a.csv has no column price.*did you mean prise"),
        ("a.csv", "2024-01-01,A,1,1\n", {}, "no column ts.*--no-header"),
        ("a.csv", "ts,symbol,price\n2024-01-01,A,1\n", {"header": False}, "has 3 fields per line, but 4 columns"),
        ("a.csv", "ts,ts,symbol,price,rank\n", {}, "two columns ts"),
        ("a.csv", "ts,symbol,price,rank,x\n", {"extra": "error"}, "not declared: x"),
        ("a.csv", HEADER, {"delimiter": "ab"}, "invalid delimiter"),
        ("a.csv", HEADER, {"timestamp_format": "%Q"}, "invalid timestamp format"),
        ("a.json", '[\n{"ts": "2024-01-01"}\n]\n', {}, "one per line.*rewrite the array"),
        ("a.ndjson", '{"time": 1}\n', {"missing": "null"}, "no column ts"),
        ("a.txt", "x", {}, "suffix does not say"),
        ("a.parquet", b"PAR1 this is none", {}, "a.parquet cannot be read"),
        ("a.parquet.gz", b"", {}, "compressed as a whole"),
        ("a.csv.gz", b"\x1f\x8b\x08no gzip", {}, "a.csv.gz cannot be read"),
        ("a.csv", HEADER.encode("utf-16"), {}, "no column ts"),
    ],
)
def test_files_that_are_refused(tmp_path, name, content, options, message):
    write(tmp_path / "good.csv", HEADER + LINES)
    path = write(tmp_path / "in" / name, content)
    with pytest.raises(DataError) as error:
        run(tmp_path / "t", tmp_path / "good.csv", path, **options)
    import re

    assert re.search(message, str(error.value).replace("\n", " ")), error.value
    if (tmp_path / "t").exists():
        assert rows(tmp_path / "t") == []


def test_a_missing_column_may_be_null(tmp_path):
    path = write(tmp_path / "a.csv", "ts,symbol\n2024-01-01,A\n")
    run(tmp_path / "t", path, missing="null")
    assert [(r["symbol"], r["price"]) for r in rows(tmp_path / "t")] == [("A", None)]


def test_parquet_that_cannot_be_cast_or_read(tmp_path):
    pq.write_table(pa.table({"ts": [True], "symbol": ["A"], "price": [1.0], "rank": [1]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="column ts is bool, but declared TIMESTAMP"):
        run(tmp_path / "t", tmp_path / "a.parquet")
    whole = pa.table({"ts": [datetime.datetime(2024, 1, 1)] * 9999, "symbol": ["A"] * 9999})
    pq.write_table(whole, tmp_path / "b.parquet")
    data = (tmp_path / "b.parquet").read_bytes()
    write(tmp_path / "b.parquet", data[:40] + bytes(40) + data[80:])
    with pytest.raises(DataError, match=r"b\.parquet cannot be read"):
        run(tmp_path / "t", tmp_path / "b.parquet", missing="null")
    write(tmp_path / "b.parquet", data[: len(data) // 2])
    with pytest.raises(DataError, match=r"b\.parquet cannot be read"):
        run(tmp_path / "t", tmp_path / "b.parquet", missing="null")


@pytest.mark.slow
def test_nothing_is_archived_with_too_many_bad_rows(tmp_path):
    path = write(tmp_path / "a.csv", HEADER + LINES + "x,A,1,1\n" * 3)
    with pytest.raises(DataError, match="3 rows are bad, more than 2"):
        run(tmp_path / "t", path, max_bad=2)
    assert (rows(tmp_path / "t"), bad(tmp_path / "t")) == ([], [])
    assert run(tmp_path / "t", path, max_bad=3).rows == 100
    assert len(bad(tmp_path / "t")) == 3


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_cannot_be_written(tmp_path):
    run(tmp_path / "t", write(tmp_path / "a.csv", HEADER + LINES))
    other = write(tmp_path / "b.csv", HEADER + LINES.replace("2024", "2023"))
    (tmp_path / "t/_ingest").chmod(0o500)
    try:
        with pytest.raises(DataError, match="cannot be written"):
            run(tmp_path / "t", other)
    finally:
        (tmp_path / "t/_ingest").chmod(0o700)
    assert len(rows(tmp_path / "t")) == 100
    assert run(tmp_path / "t", other).rows == 100


@pytest.mark.slow
def test_a_full_disk(tmp_path, monkeypatch):
    """The disk runs full in the middle of the second file of the table."""
    path = write(tmp_path / "a.csv", HEADER + LINES + LINES.replace("2024", "2020") + "x,A,1,1\n")
    monkeypatch.setattr(layout, "_ENOUGH", {"h": 1000, "D": 10})
    real, left = layout.put_file, 2

    def put(*args: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise OSError(28, "No space left on device")
        real(*args)

    monkeypatch.setattr(layout, "put_file", put)
    with pytest.raises(DataError, match="No space left on device"):
        run(tmp_path / "t", path)
    assert (rows(tmp_path / "t"), bad(tmp_path / "t")) == ([], [])
    monkeypatch.setattr(layout, "put_file", real)
    assert run(tmp_path / "t", path).rows == 200
    assert len(bad(tmp_path / "t")) == 1


# ---- once


@pytest.mark.slow
def test_again_changes_nothing_and_more_files_add_only_themselves(tmp_path):
    write(tmp_path / "in/a.csv", HEADER + LINES + "x,A,1,1\n")
    run(tmp_path / "t", tmp_path / "in")
    before, version = rows(tmp_path / "t"), Table.open(tmp_path / "t").snapshot().version
    report = run(tmp_path / "t", tmp_path / "in")
    assert (report.files, report.known, report.rows, report.bad) == (0, 1, 0, 0)
    assert (rows(tmp_path / "t"), Table.open(tmp_path / "t").snapshot().version) == (before, version)
    write(tmp_path / "in/0.csv", HEADER + "2020-01-01,Z,1,1\n")
    report = run(tmp_path / "t", tmp_path / "in")
    assert (report.files, report.known, report.rows) == (1, 1, 1)
    assert rows(tmp_path / "t")[1:] == before
    assert len(bad(tmp_path / "t")) == 1
    listed = ingested_files(place_of(tmp_path / "t")).to_pylist()
    assert [(one["number"], Path(one["path"]).name, one["rows"], one["bad"], one["job"]) for one in listed] == [
        (0, "a.csv", 100, 1, 1), (1, "0.csv", 1, 0, 2),
    ]  # fmt: skip


@pytest.mark.slow
def test_a_lost_list_is_no_empty_one(tmp_path):
    path = write(tmp_path / "a.csv", HEADER + LINES)
    run(tmp_path / "t", path)
    for file in (tmp_path / "t/_ingest").iterdir():
        file.unlink()
    with pytest.raises(DataError, match=r"list of archived files, .* cannot be read"):
        run(tmp_path / "t", path)
    assert len(rows(tmp_path / "t")) == 100


@pytest.mark.slow
def test_no_room_for_sorting(tmp_path, monkeypatch):
    table = pa.table({"ts": pa.array(START_US + np.arange(400_000), pa.timestamp("us")), "symbol": ["A"] * 400_000})
    pq.write_table(table, tmp_path / "a.parquet")
    monkeypatch.setattr(ingest, "_MEMORY_BYTES", 1 << 20)
    monkeypatch.setattr(ingest, "_SORT_MEMORY", "1MB")
    with pytest.raises(DataError, match="cannot be written: Out of Memory"):
        run(tmp_path / "t", tmp_path / "a.parquet", missing="null")
    assert rows(tmp_path / "t") == []


@pytest.mark.slow
def test_a_file_that_moved_or_was_copied_or_touched_is_the_same(tmp_path, monkeypatch):
    path = write(tmp_path / "in/a.csv", HEADER + LINES)
    write(tmp_path / "in/copy.csv", HEADER + LINES)
    report = run(tmp_path / "t", tmp_path / "in")
    assert (report.files, report.known) == (1, 1)
    path.rename(tmp_path / "elsewhere.csv")
    monkeypatch.chdir(tmp_path)
    os.utime(tmp_path / "elsewhere.csv", (1, 1))
    for way in ("elsewhere.csv", tmp_path / "in/../elsewhere.csv"):
        assert run(tmp_path / "t", way).known == 1
    assert len(rows(tmp_path / "t")) == 100


@pytest.mark.slow
def test_a_file_that_changed_is_noticed(tmp_path):
    path = write(tmp_path / "a.csv", HEADER + LINES)
    run(tmp_path / "t", path)
    write(path, HEADER + LINES + "2025-01-01,A,1,1\n")
    with pytest.raises(DataError, match="archived before with different contents"):
        run(tmp_path / "t", path)
    assert len(rows(tmp_path / "t")) == 100
    assert run(tmp_path / "t", path, changed="add").rows == 101


def test_a_file_that_grows_while_it_is_read(tmp_path, monkeypatch):
    path = write(tmp_path / "a.csv", HEADER + LINES)
    real = ingest.event_rows

    def growing(*args: Any) -> Any:
        with open(path, "a") as out:
            out.write("2025-01-01,A,1,1\n")
        return real(*args)

    monkeypatch.setattr(ingest, "event_rows", growing)
    with pytest.raises(DataError, match="was changed while it was read"):
        run(tmp_path / "t", path)
    assert rows(tmp_path / "t") == []


@pytest.mark.slow
def test_what_is_left_behind_goes_in_time(tmp_path):
    for year in (2020, 2021):
        path = write(tmp_path / f"{year}.csv", HEADER + LINES.replace("2024", str(year)) + "x,A,1,1\n")
        run(tmp_path / "t", path)
    vain = write(tmp_path / "t/_quarantine/vain.parquet", "")
    lists = list((tmp_path / "t/_ingest").iterdir())
    assert len(lists) == 4  # each with its copy
    for old in (vain, *lists):
        os.utime(old, (1, 1))
    path = write(tmp_path / "more.csv", HEADER + LINES.replace("2024", "2022"))
    run(tmp_path / "t", path)
    assert len(list((tmp_path / "t/_ingest").iterdir())) == 2
    assert not vain.exists()
    assert len(bad(tmp_path / "t")) == 2
    assert run(tmp_path / "t", path, tmp_path / "2020.csv").known == 2


@pytest.mark.slow
def test_a_job_that_was_overtaken_begins_again(tmp_path, monkeypatch):
    """While the first job writes, a second one archives one of its two files and a third one."""
    a, b = write(tmp_path / "a.csv", HEADER + LINES), write(tmp_path / "b.csv", HEADER + LINES.replace("2024", "2023"))
    c = write(tmp_path / "c.csv", HEADER + "x,A,1,1\n" + LINES.replace("2024", "2022"))
    real = ingest.write_list

    def overtaken(*args: Any) -> None:
        monkeypatch.setattr(ingest, "write_list", real)
        run(tmp_path / "t", b, c)
        real(*args)

    monkeypatch.setattr(ingest, "write_list", overtaken)
    report = run(tmp_path / "t", a, b)
    assert (report.files, report.known, report.rows) == (1, 1, 100)
    found = rows(tmp_path / "t")
    assert len({row["offset"] for row in found}) == len({row["seq"] for row in found}) == len(found) == 300
    assert len(bad(tmp_path / "t")) == 1
    names = [Path(path).name for path in ingested_files(place_of(tmp_path / "t")).column("path").to_pylist()]
    assert names == ["b.csv", "c.csv", "a.csv"]


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("round", range(ROUNDS))
def test_killed_at_a_named_point_and_run_again(tmp_path, point, round):
    path = write(tmp_path / "a.csv", HEADER + LINES + "x,A,1,1\n")
    run(tmp_path / "wanted", path)
    for count in (1, 2):
        table = tmp_path / f"t{count}"
        child = Child(ingest_child.main, str(table), str(path), point, str(count))
        with child.stdout:
            code = child.wait(120)
        assert code in ((-9,) if count == 1 else (-9, 0))
        for _ in range(2):
            run(table, path)
        assert (rows(table), bad(table)) == (rows(tmp_path / "wanted"), bad(tmp_path / "wanted"))
        assert ingested_files(place_of(table)).num_rows == 1


@pytest.mark.slow
def test_without_the_list_of_archived_files_nothing_is_archived_twice(tmp_path):
    path = write(tmp_path / "a.csv", HEADER + LINES)
    run(tmp_path / "t", path)
    (listed,) = (tmp_path / "t" / "_ingest").glob("*.list")
    whole = listed.read_bytes()
    for harm in (lambda: listed.write_bytes(whole[:-20]), listed.unlink):
        harm()
        with pytest.raises(DataError, match=r"list of archived files.*cannot be read"):
            run(tmp_path / "t", path)
        (found,) = upkeep.verify(Table.open(tmp_path / "t"))
        assert (found.kind, "list of archived files" in found.message) == ("broken", True)
    listed.write_bytes(whole)
    assert run(tmp_path / "t", path).known == 1
    assert upkeep.verify(Table.open(tmp_path / "t"), deep=True) == []


# ---- beside the events


@pytest.mark.slow
def test_writers_of_events_are_not_disturbed(tmp_path):
    """Events in the memory of a process that knows nothing of the files, written before and after them."""
    live = History(TICKS, tmp_path / "t")
    live.append(*batch_of(run_of(10)))
    live.flush()
    live.append(*batch_of(run_of(15, first=10)))
    run(tmp_path / "t", write(tmp_path / "a.csv", HEADER + LINES))
    live.append(*batch_of(run_of(5, first=25)))
    live.flush()
    live.append(*batch_of(run_of(5, first=30)))
    batch = live.snapshot().read(RangeRequest())
    events = [event for event in events_of(batch) if event.source != FILES]
    assert events == run_of(35)
    assert len(batch) == 135
    assert len(set(batch.seq.tolist())) == 135
    assert (live.last_seq, live.offsets) == (34, {"default": 35})
    again = History(TICKS, tmp_path / "t")
    assert (again.last_seq, again.offsets) == (29, {"default": 30})


@pytest.mark.slow
def test_a_database_sees_the_rows_and_its_live_queries_do_not(tmp_path):
    text = """SELECT symbol, p FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts
        MEASURES B.price AS p PATTERN (A B) DEFINE B AS price > PREV(price)) AS m"""
    path = write(tmp_path / "a.csv", HEADER + LINES)
    with Database(tmp_path / "db") as db:
        columns = {"ts": "TIMESTAMP", "symbol": "VARCHAR", "price": "DOUBLE", "rank": "INTEGER"}
        db.create_stream("ticks", columns, time="ts")
        alerts = db.watch(text)
        start = datetime.datetime(2024, 5, 1)
        db.push("ticks", [{"ts": start, "symbol": "A", "price": 1.0, "rank": 1}])
        report = db.ingest("ticks", path)
        assert (report.files, report.rows) == (1, 100)
        db.push("ticks", [{"ts": start + datetime.timedelta(1), "symbol": "A", "price": 2.0, "rank": 1}])
        assert alerts.fetch().to_pylist() == [{"symbol": "A", "p": 2.0}]
        result = db.sql(text)
        assert result.arrow().num_rows == 50
        assert {FILES, "default"} == set(result.evidence().column("source").to_pylist())
        with pytest.raises(DataError, match="source of archived files"):
            db.push("ticks", [], source=FILES)
        watermark = db.streams()["ticks"]["watermark"]
    with Database(tmp_path / "db") as db:
        assert db.streams()["ticks"]["watermark"] == watermark
        assert db.ingest("ticks", [path]).known == 1
        db.push("ticks", [{"ts": start + datetime.timedelta(2), "symbol": "A", "price": 2.0, "rank": 1}])
        assert db.streams()["ticks"]["watermark"] != watermark  # no source of files holds it back
    with Database() as db:
        db.create_stream("ticks", {"ts": "TIMESTAMP"}, time="ts")
        with pytest.raises(DataError, match="in memory"):
            db.ingest("ticks", path)


@pytest.mark.slow
def test_upkeep_leaves_lists_and_quarantine_alone(tmp_path):
    for month in range(1, 13):
        lines = LINES.replace("2024-01", f"2023-{month:02d}")
        run(tmp_path / "t", write(tmp_path / "in" / f"{month}.csv", HEADER + lines + "x,A,1,1\n"))
    table = Table.open(tmp_path / "t")
    before = rows(tmp_path / "t"), bad(tmp_path / "t")
    assert upkeep.verify(table, deep=True) == []
    assert list(upkeep.compact(table, closed_us=2**62))
    upkeep.vacuum(table, 0)
    assert [found for found in upkeep.verify(table, deep=True) if found.kind != "waiting"] == []
    assert (rows(tmp_path / "t"), bad(tmp_path / "t")) == before
    assert run(tmp_path / "t", tmp_path / "in").known == 12
    upkeep.expire(table, START_US)
    upkeep.vacuum(table, 0)
    assert rows(tmp_path / "t") == []
    assert run(tmp_path / "t", tmp_path / "in").known == 12  # what retention took out does not come back


@pytest.mark.slow
def test_columns_that_were_added(tmp_path):
    first = write(tmp_path / "a.csv", HEADER + LINES)
    run(tmp_path / "t", first)
    wider = replace(TICKS, fields=(*TICKS.fields, Field("venue", "VARCHAR")))
    second = write(tmp_path / "b.csv", HEADER.replace("rank", "rank,venue") + "2024-06-01,A,1,1,X\n")
    run(tmp_path / "t", second, schema=wider)
    assert run(tmp_path / "t", first, second, schema=wider).known == 2
    third = write(tmp_path / "c.csv", HEADER + LINES.replace("2024", "2023"))
    with pytest.raises(DataError, match="no column venue"):
        run(tmp_path / "t", third, schema=wider)
    assert [row["venue"] for row in rows(tmp_path / "t", wider)] == [None] * 100 + ["X"]


@pytest.mark.slow
def test_files_and_archive_in_a_store(tmp_path):
    with s3_server(tmp_path) as server:
        write(tmp_path / "bucket/in/a.csv", HEADER + LINES + "x,A,1,1\n")
        write(tmp_path / "bucket/in/deep/b.ndjson.gz", gzip.compress(b'{"ts":"2020-01-01","symbol":"Z"}\n'))
        where = place_of("s3://bucket/market/ticks", server.options)
        for inputs_given in (("s3://bucket/in",), ("s3a://bucket/in/*.csv", "s3://bucket/in/deep/b.ndjson.gz")):
            job = Job(TICKS, where, inputs_given, options=Options(missing="null"))
            reports = [ingest.ingest(job) for _ in range(2)]
            assert [(report.files, report.known) for report in reports][1] == (0, 2)
        batch = History(TICKS, where).snapshot().read(RangeRequest())
        assert batch.columns.column("symbol").to_pylist()[:2] == ["Z", "A"]
        assert len(batch) == 101
        quarantine = DeltaTable("s3://bucket/market/ticks/_quarantine", storage_options=server.options)
        assert quarantine.count() == 1
        with pytest.raises(DataError, match="there is no file s3://bucket/nothing"):
            ingest.ingest(Job(TICKS, where, ("s3://bucket/nothing.csv",)))


# ---- exactly what was written

VALUES = Schema(
    "values",
    (
        Field("ts", "TIMESTAMP"), Field("s", "VARCHAR"), Field("d", "DOUBLE"), Field("i", "BIGINT"),
        Field("b", "BOOLEAN"), Field("m", "DECIMAL(15,3)"), Field("day", "DATE"),
    ),
    time="ts",
    keys=("s",),
)  # fmt: skip
_text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6) | st.sampled_from(
    ["", '"', ",", "\n", "\r\n", "a\rb", " ", "NULL", "é\u2028", ';"', "\t"]
)
_EPOCH = datetime.datetime(1970, 1, 1)
_row = st.tuples(
    st.integers(-(10**15), 4 * 10**15).map(lambda us: _EPOCH + datetime.timedelta(microseconds=us)),
    st.none() | _text,
    st.none() | st.floats(allow_nan=False),
    st.none() | st.integers(-(2**63), 2**63 - 1),
    st.none() | st.booleans(),
    st.none() | st.integers(-(10**15) + 1, 10**15 - 1).map(lambda n: Decimal(n).scaleb(-3)),
    st.none() | st.dates(),
)  # fmt: skip


def _plain(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case float():
            return repr(value)
        case datetime.datetime():
            return value.isoformat(" ")
        case _:
            return str(value)


def _csv(data: list[tuple[Any, ...]], quoted: bool, end: str) -> str:
    def field(value: Any) -> str:
        if value is None:
            return ""
        text = _plain(value)
        if quoted or not text or any(c in text for c in '",\r\n;\t|'):
            return '"' + text.replace('"', '""') + '"'
        return text

    lines = [",".join(VALUES.names), *(",".join(map(field, row)) for row in data)]
    return end.join([*lines, ""])


def _json(data: list[tuple[Any, ...]], strict: bool) -> str:
    def member(value: Any) -> Any:
        is_text = isinstance(value, (datetime.date, Decimal)) or (isinstance(value, float) and math.isinf(value))
        return _plain(value) if is_text else value

    rows = [{name: member(value) for name, value in zip(VALUES.names, row)} for row in data]
    return "".join(json.dumps(row, ensure_ascii=strict) + "\n" for row in rows)


def _checked(path: Path, part: inputs.Part = inputs.WHOLE) -> tuple[pa.Table, list[int], list[Any]]:
    file = inputs.find_files([str(path)], None)[0][0]
    reading = checks.plan_reading(file, VALUES, Options())
    found = list(checks.read_checked(reading, part, VALUES, Options()))
    table = pa.Table.from_batches([f.rows for f in found], schema=arrow_schema(VALUES))
    return table, [int(n) for f in found for n in f.numbers], [row for f in found for row in f.bad.to_pylist()]


def _parts(path: Path) -> list[inputs.Part]:
    file = inputs.find_files([str(path)], None)[0][0]
    if file.format is InputFormat.parquet:
        return inputs.row_groups(file, 2)
    chunks = [inputs.scan_chunk(file, start, end) for start, end in inputs.chunks_of(file)]
    return inputs.parts_of(file, chunks)


@pytest.mark.slow
@fewer(5)  # each writes three files, and reads them in parts
@given(st.lists(_row, min_size=1, max_size=12), st.booleans(), st.sampled_from(["\n", "\r\n"]), st.integers(5, 90))
def test_what_was_written_is_what_is_read(tmp_path_factory, data, quoted, end, chunk):
    """As CSV, NDJSON and Parquet; whole, in small blocks, and in parts."""
    folder = tmp_path_factory.mktemp("files")
    wanted = pa.Table.from_pylist([dict(zip(VALUES.names, row)) for row in data], schema=arrow_schema(VALUES))
    write(folder / "a.csv", _csv(data, quoted, end))
    write(folder / "b.ndjson", _json(data, quoted))
    pq.write_table(wanted, folder / "c.parquet", row_group_size=3)
    for path in sorted(folder.iterdir()):
        table, numbers, trouble = _checked(path)
        assert trouble == []
        assert table.equals(wanted), path.name
        assert numbers == list(range(path.suffix == ".csv", len(data) + (path.suffix == ".csv")))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(inputs, "CHUNK_BYTES", chunk)
            parts = [_checked(path, part) for part in _parts(path)]
        assert pa.concat_tables(part[0] for part in parts).equals(wanted), path.name
        assert [number for part in parts for number in part[1]] == numbers


_line = st.sampled_from(
    [
        "1,A\n", "x,y,z\n", "\n", "2024-01-01,é\r\n", "2024-01-02,\n", ",\n", '2024-01-03,"a\nb"\n',
        '"2024-01-04","a ""b"",\n\n"\r\n', '2024-01-05,""\n', '2024-01-06,\t"x"\n', '"2024-01-07",5" pipe\n',
        '2024-01-08,"""\n"\n', '2024-01-09,"a"b\n', "2024-01-10,a\rb\n",
    ]
)  # fmt: skip


@pytest.mark.slow
@given(st.lists(_line, max_size=30), st.integers(3, 40))
def test_parts_have_the_records_of_the_whole(tmp_path_factory, lines, chunk):
    path = write(tmp_path_factory.mktemp("files") / "a.csv", "ts,s\n" + "".join(lines))
    schema = replace(VALUES, fields=VALUES.fields[:2])

    def read(part: inputs.Part) -> tuple[list[Any], list[int], list[Any], int]:
        file = inputs.find_files([str(path)], None)[0][0]
        reading = checks.plan_reading(file, schema, Options())
        found = list(checks.read_checked(reading, part, schema, Options()))
        bad_rows = sorted((row["record"], row["reason"], row["raw"]) for f in found for row in f.bad.to_pylist())
        return (
            [row for f in found for row in f.rows.to_pylist()], [int(n) for f in found for n in f.numbers], bad_rows,
            sum(f.blank for f in found),
        )  # fmt: skip

    whole = read(inputs.WHOLE)
    if not any(mark in line for line in lines for mark in ('"', "\rb")):
        assert len(whole[1]) + len(whole[2]) + whole[3] == len(lines)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs, "CHUNK_BYTES", chunk)
        parts = [read(part) for part in _parts(path)]
    for i in range(3):
        assert [x for part in parts for x in part[i]] == whole[i]
    assert sum(part[3] for part in parts) == whole[3]


def test_where_files_are_cut(tmp_path, monkeypatch):
    """Quotes that are well placed do not hinder; one that is not, a lone carriage return, and compression do."""
    monkeypatch.setattr(inputs, "CHUNK_BYTES", 40)

    def count(name: str, text: str) -> int:
        data = text.encode()
        return len(_parts(write(tmp_path / name, gzip.compress(data) if name.endswith("gz") else data)))

    quoted = 'ts,s\n' + '2024-01-01,"a ""b"",\n"\n' * 20
    assert count("a.csv", "\ufeff" + quoted) > 10
    assert count("b.csv", quoted + '2024-01-01,5" pipe\n' + quoted) == 1
    assert count("c.csv", quoted + "2024-01-01,a\rb\n") == 1
    assert count("d.csv.gz", quoted) == 1
    assert count("e.ndjson", '{"a": "b\r\\""}\n' * 20) > 5


@pytest.mark.slow
def test_sorting_on_disk_gives_the_same_rows(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    ts_us = START_US + rng.integers(0, 40 * 86_400_000_000, 60_000)
    table = pa.table(
        {
            "ts": pa.array(ts_us, pa.timestamp("us")), "symbol": [f"S{i}" for i in rng.integers(0, 50, 60_000)],
            "price": rng.normal(size=60_000), "rank": pa.array(rng.integers(0, 9, 60_000), pa.int32()),
        }
    )  # fmt: skip
    pq.write_table(table, tmp_path / "a.parquet")
    run(tmp_path / "t", tmp_path / "a.parquet")
    monkeypatch.setattr(ingest, "_MEMORY_BYTES", 1 << 20)
    monkeypatch.setattr(layout, "FILE_ROWS_MAX", 5000)
    run(tmp_path / "u", tmp_path / "a.parquet")
    assert rows(tmp_path / "t") == rows(tmp_path / "u")
    assert len(rows(tmp_path / "t")) == 60_000
    few, many = Table.open(tmp_path / "t").snapshot(), Table.open(tmp_path / "u").snapshot()
    assert (len(few.paths), len(many.paths)) == (2, 13)  # January and February
    for path in many.paths:
        part = pq.ParquetFile(tmp_path / "u" / path).read()
        place = list(zip(part.column("symbol").to_pylist(), part.column("ts").to_pylist()))
        assert place == sorted(place)
        assert len({row[1].month for row in place}) == 1

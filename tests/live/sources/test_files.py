"""Files as sources: the same rows and positions however a file grows and wherever reading goes on."""

from __future__ import annotations

import datetime as dt
import decimal
import gzip
import os
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from live.sources import file_readers, files
from live.sources.base import Bad, Piece
from live.sources.files import FileSettings, FileSource
from query.errors import DataError
from query.schema import Field, Schema

TICKS = Schema("ticks", (Field("ts", "TIMESTAMP"), Field("symbol", "VARCHAR"), Field("price", "DOUBLE")), "ts")
NOON = dt.datetime(2024, 1, 2, 12)


class Taken:
    """What a source gave: rows by (partition, position), bad ones, and where each partition stands."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], tuple[Any, ...]] = {}
        self.bad: dict[tuple[str, int], str] = {}
        self.next: dict[str, int] = {}
        self.last: list[str] = []

    def take(self, source: FileSource, seconds: float = 0) -> bool:
        """Takes what one poll gives; says whether there was anything."""
        out = source.poll(seconds)
        for one in out:
            name = os.path.basename(one.source)
            if isinstance(one, Bad):
                assert one.offset is not None
                assert (name, one.offset) not in self.bad
                self.bad[name, one.offset] = one.reason
                continue
            assert isinstance(one, Piece)
            assert one.offsets is not None
            assert one.next is not None
            assert one.rows.num_rows == len(one.offsets)
            for offset, row in zip(one.offsets.tolist(), one.rows.to_pylist()):
                assert offset >= self.next.get(name, 0)
                assert (name, offset) not in self.rows
                self.rows[name, offset] = tuple(row.values())
            assert one.next >= max(self.next.get(name, 0), *(o + 1 for o in one.offsets.tolist()), 0)
            self.next[name] = one.next
            self.last += [name] if one.last else []
        return bool(out)


_OPEN: list[FileSource] = []


@pytest.fixture(autouse=True)
def closing():
    """Closes what a test opened."""
    yield
    close_all()


def close_all() -> None:
    while _OPEN:
        _OPEN.pop().close()


def opened(
    path: Path, positions: Mapping[str, int] | None = None, memory: Path | None = None, **settings: Any
) -> FileSource:
    source = FileSource(TICKS, FileSettings(str(path), **settings), memory)
    _OPEN.append(source)
    source.open(positions or {})
    return source


def read_once(path: Path, positions: Mapping[str, int] | None = None, **settings: Any) -> Taken:
    source = opened(path, positions, follow=False, **settings)
    taken = Taken()
    while not source.ended:
        taken.take(source, 1)
    assert source.poll(0) == []
    source.close()
    return taken


def row(symbol: str | None, price: float | None = 1.0) -> tuple[Any, ...]:
    return NOON, symbol, price


def line(symbol: str, price: float = 1.0) -> str:
    return f'{{"ts": "2024-01-02T12:00:00", "symbol": "{symbol}", "price": {price}}}\n'


def test_lines_of_json(tmp_path):
    path = tmp_path / "a.ndjson"
    path.write_text("\ufeff" + line("A") + "\n" + line("B") + "{\n" + line("C").rstrip())
    taken = read_once(path)
    assert taken.rows == {("a.ndjson", 0): row("A"), ("a.ndjson", 2): row("B"), ("a.ndjson", 4): row("C")}
    assert list(taken.bad) == [("a.ndjson", 3)]
    assert taken.next == {"a.ndjson": 5}
    assert taken.last == ["a.ndjson"]


def test_records_of_csv(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(
        b"Price,more,TS,symbol\r\n1.0,x,2024-01-02 12:00:00,A\r\n\r\n,,2024-01-02T12:00:00Z,\r\n"
        b'1,x,2024-01-02 12:00:00,"say ""so"",\nB"\r\n1,x,2024-01-02\r\nx,x,2024-01-02,C\r\n'
        b"1,x,2024-01-02 12:00,\xff\r\n"
        b"1,a\rb,2024-01-02 12:00,D\r\n1e999,,2024-01-02,E\r\n1,x,,F\r\n 1 ,x, 2024-01-02 12:00 , G \r\n"
    )
    taken = read_once(path)
    name = "a.csv"
    assert taken.rows == {
        (name, 1): row("A"), (name, 3): row(None, None), (name, 4): row('say "so",\nB'), (name, 12): row(" G "),
    }  # fmt: skip
    reasons = {number: reason for (_, number), reason in taken.bad.items()}
    # Before: a carriage return within a line made one bad record of it, and two where the file was archived.
    assert reasons == {
        5: "too few fields: 3, not 4",
        6: "price: 'x' is no DOUBLE",
        7: "the row is not UTF-8",
        8: "too few fields: 2, not 4",
        9: "too few fields: 3, not 4",
        10: "price: '1e999' is no DOUBLE",
        11: "ts is null",
    }


def test_an_empty_text_and_none(tmp_path):
    """Before: "" was null where a file was tailed, and an empty text where it was archived; so was a quoted NA."""
    path = tmp_path / "a.csv"
    path.write_text('ts,symbol,price\n2024-01-02 12:00,"",1\n2024-01-02 12:00,,1\n2024-01-02 12:00,"NA",""\n,,\n')
    taken = read_once(path, nulls=("", "NA"))
    assert list(taken.rows.values()) == [row(""), row(None), row("NA", None)]
    assert (taken.bad, taken.next) == ({}, {"a.csv": 5})


def test_csv_in_other_forms(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("1704196800;A;1\n1704196800.5;-;-\n")
    taken = read_once(path, header=False, delimiter=";", nulls=("-",), times="s")
    assert list(taken.rows.values()) == [row("A"), (NOON.replace(microsecond=500_000), None, None)]
    path.write_text("ts,price\n2024-01-02 12:00,1\n")
    with pytest.raises(DataError, match="column symbol is missing"):
        read_once(path)
    assert read_once(path, missing="null").rows == {("a.csv", 1): row(None)}
    path.write_text('ts,symbol,price\n2024-01-02 12:00,A,1\n2024-01-02 12:00,"B,1\n')
    taken = read_once(path)
    assert taken.rows == {("a.csv", 1): row("A")}
    assert taken.bad == {("a.csv", 2): "a quote is open at the end of the file"}
    with pytest.raises(DataError, match="invalid delimiter"):
        opened(path, delimiter="||")


@pytest.mark.parametrize(
    ("text", "type", "expected"),
    [
        (" 3 ", "INTEGER", 3), ("1.10", "DECIMAL(9,2)", decimal.Decimal("1.10")), ("true", "BOOLEAN", True),
        ("12:30", "TIME", dt.time(12, 30)), ("AAE=", "BLOB", b"\x00\x01"), ('"[1, 2]"', "BIGINT[]", [1, 2]),
        ("inf", "DOUBLE", float("inf")), ("2024-02-29T01:00:00+01:00", "DATE", dt.date(2024, 2, 29)),
        ("", "DATE", None),
        ("3.0", "INTEGER", 3), ("1e3", "INTEGER", 1000), ("\\xAA", "BLOB", b"\xaa"),
        ("\"{'a': 1, 'b': x}\"", "STRUCT(a INTEGER, b VARCHAR)", {"a": 1, "b": "x"}),
        ("3.5", "INTEGER", "3.5"), ("1.234", "DECIMAL(9,2)", "is no DECIMAL"), ("?", "BLOB", "is no BLOB"),
        ("25:00", "TIME", "is no TIME"), ('"[1, "', "BIGINT[]", "is no BIGINT"), ("300", "TINYINT", "300"),
        ("2024-02-29T01:00:00.123456789", "TIMESTAMP", "it is finer than a microsecond; `finer` may cut it"),
    ],
)  # fmt: skip
def test_texts_are_read_as_the_declared_type(tmp_path, text, type, expected):
    schema = Schema("s", (Field("ts", "TIMESTAMP"), Field("v", type)), "ts")
    (tmp_path / "a.csv").write_text(f"v,ts\n{text},2024-01-02 12:00\n")
    source = FileSource(schema, FileSettings(str(tmp_path), follow=False))
    _OPEN.append(source)
    source.open({})
    bad, piece = [None, *source.poll(1)][-2:]
    assert isinstance(piece, Piece)
    if isinstance(bad, Bad):
        assert str(expected) in bad.reason
        assert piece.rows.num_rows == 0
    else:
        assert piece.rows.column(1).to_pylist() == [expected]


def table_of(*symbols: str) -> pa.Table:
    return pa.table({"ts": [NOON] * len(symbols), "symbol": list(symbols), "price": pa.array([1] * len(symbols))})


def test_parquet_files_are_taken_whole_and_in_order(tmp_path, monkeypatch):
    monkeypatch.setattr(file_readers, "BATCH_ROWS", 2)
    pq.write_table(table_of("C", "D", "E"), tmp_path / "2.parquet")
    whole = (tmp_path / "2.parquet").read_bytes()
    (tmp_path / "2.parquet").write_bytes(whole[:-20])
    pq.write_table(table_of("A", "B"), tmp_path / "1.parquet")
    pq.write_table(table_of("F"), tmp_path / "3.parquet")
    source, taken = opened(tmp_path), Taken()
    while taken.take(source):
        pass
    assert [r[1] for r in taken.rows.values()] == ["A", "B"]
    assert taken.last == ["1.parquet"]
    assert "2.parquet cannot be read yet" in str(source.trouble())
    with pytest.raises(DataError, match=r"2\.parquet cannot be read: .*\nhint: is it complete"):
        read_once(tmp_path)
    (tmp_path / "2.parquet").write_bytes(whole)
    while taken.take(source):
        pass
    assert [r[1] for r in taken.rows.values()] == ["A", "B", "C", "D", "E", "F"]
    assert taken.last == ["1.parquet", "2.parquet", "3.parquet"]
    assert source.trouble() is None
    assert not source.ended
    positions = {str(tmp_path / "1.parquet"): 2, str(tmp_path / "2.parquet"): 1}
    again = read_once(tmp_path, positions)
    assert list(again.rows) == [("2.parquet", 1), ("2.parquet", 2), ("3.parquet", 0)]
    with pytest.raises(DataError, match="has 1 rows, but 2 were read"):
        read_once(tmp_path, {str(tmp_path / "3.parquet"): 2})
    pq.write_table(table_of("X", "Y", "Z"), tmp_path / "1.parquet")
    with pytest.raises(DataError, match=r"1\.parquet was replaced"):
        source.poll(0)


@pytest.mark.slow
def test_a_parquet_file_that_stays_incomplete_stops_no_other(tmp_path, monkeypatch):
    """Before: every file behind one that was cut off waited for it for ever."""
    pq.write_table(table_of("A"), tmp_path / "1.parquet")
    (tmp_path / "2.parquet").write_bytes(b"no Parquet")
    pq.write_table(table_of("B"), tmp_path / "3.parquet")
    source, taken = opened(tmp_path), Taken()
    while taken.take(source, 0.2):
        pass
    assert [r[1] for r in taken.rows.values()] == ["A"]
    monkeypatch.setattr(files, "LONG_QUIET_S", 0.0)
    while taken.take(source, 0.2):
        pass
    assert [r[1] for r in taken.rows.values()] == ["A", "B"]
    assert "2.parquet cannot be read yet" in str(source.trouble())
    pq.write_table(table_of("C"), tmp_path / "2.parquet")
    while taken.take(source, 0.2):
        pass
    assert [r[1] for r in taken.rows.values()] == ["A", "B", "C"]
    assert source.trouble() is None


@pytest.mark.slow
def test_a_file_of_other_columns_stops_no_other(tmp_path):
    """Before: it was an error of the whole source, again and again, which did not name a file that was Parquet; nothing
    behind it was read, and a service of that source alone ended."""
    (tmp_path / "1.csv").write_text("ts,symbol,price\n2024-01-02,A,1\n")
    (tmp_path / "2.csv").write_text("ts;symbol;price\n2024-01-02;B;1\n")
    pq.write_table(table_of("C").drop_columns(["symbol"]), tmp_path / "3.parquet")
    (tmp_path / "4.csv").write_text("ts,symbol,price\n2024-01-02,D,1\n")
    source, taken = opened(tmp_path), Taken()
    while taken.take(source, 0.2):
        pass
    assert [r[1] for r in taken.rows.values()] == ["A", "D"]
    said = str(source.trouble())
    for name, hint in (("2.csv", "check the delimiter, and whether"), ("3.parquet", "available: ts, price")):
        assert f"{tmp_path / name}: column" in said
        assert hint in said
    (tmp_path / "2.csv").write_text("ts,symbol,price\n2024-01-02,B,1\n")
    pq.write_table(table_of("C"), tmp_path / "3.parquet")
    while taken.take(source, 0.2):
        pass
    assert sorted(r[1] for r in taken.rows.values()) == ["A", "B", "C", "D"]
    assert source.trouble() is None
    (tmp_path / "5.csv").write_text("symbol,price\nA,1\n")
    alone = opened(tmp_path / "5.csv")
    with pytest.raises(DataError, match="column ts is missing"):
        alone.poll(0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "end"), [("2024-01-02,A,1\r2024-01-02,B,1\r", "\n"), ('2024-01-02,"A,1\n2024-01-02,B,1\n', '",1\n')]
)
def test_lines_that_wait_are_told(tmp_path, text, end):
    """Before: a followed file whose lines end in carriage returns alone, or that has a quote which is not closed, was
    read no further, and nothing said so."""
    (tmp_path / "a.csv").write_text("ts,symbol,price\n" + text, newline="")
    source, taken = opened(tmp_path), Taken()
    while taken.take(source, 0.2):
        pass
    assert not taken.rows
    assert "a.csv: record 1 has no end yet, and later lines wait" in str(source.trouble())
    with (tmp_path / "a.csv").open("a", newline="") as file:
        file.write(end)
    while taken.take(source, 0.2):
        pass
    assert len(taken.rows) == (2 if end == "\n" else 1)
    assert source.trouble() is None


def test_parquet_values_that_do_not_fit(tmp_path):
    table = pa.table({"ts": [NOON, None, NOON], "symbol": ["A", "B", "C"], "price": [1, 2, 3]})
    pq.write_table(table, tmp_path / "a.parquet")
    taken = read_once(tmp_path)
    assert [r[1] for r in taken.rows.values()] == ["A", "C"]
    assert taken.bad == {("a.parquet", 1): "ts is null"}
    pq.write_table(table.drop_columns(["price"]), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="column price is missing"):
        read_once(tmp_path)


def test_compressed_files_are_read_once(tmp_path):
    path = tmp_path / "a.ndjson.gz"
    path.write_bytes(gzip.compress((line("A") + line("B")).encode()))
    assert list(read_once(path).rows.values()) == [row("A"), row("B")]
    assert list(read_once(path, {str(path): 1}).rows) == [(path.name, 1)]
    with pytest.raises(DataError, match="cannot be followed"):
        opened(path)
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError, match="is it complete"):
        read_once(path)


def test_a_torn_line_waits(tmp_path):
    path = tmp_path / "a.ndjson"
    source, taken = opened(path), Taken()
    assert not taken.take(source)
    assert "no file" in str(source.trouble())
    with path.open("w") as file:
        file.write(line("A") + line("B")[:10])
        file.flush()
        assert taken.take(source)
        assert not taken.take(source)
        assert taken.next == {"a.ndjson": 1}
        file.write(line("B")[10:-1])
        file.flush()
        assert not taken.take(source)
        file.write("\n")
        file.flush()
        assert taken.take(source)
    assert list(taken.rows.values()) == [row("A"), row("B")]
    assert source.trouble() is None
    path.unlink()
    assert not taken.take(source)
    assert "was removed" in str(source.trouble())


def test_new_files_of_a_directory_and_of_a_glob(tmp_path):
    (tmp_path / "b.ndjson").write_text(line("B1"))
    (tmp_path / ".hidden.ndjson").write_text("{")
    (tmp_path / "notes.txt").write_text("{")
    (tmp_path / "below").mkdir()
    folder, some = opened(tmp_path), opened(tmp_path / "*.ndjson")
    of_folder, of_some = Taken(), Taken()
    for name in ("b.ndjson", "a.ndjson", "below/c.ndjson"):
        with (tmp_path / name).open("a") as file:
            file.write(line(name))
        while of_folder.take(folder):
            pass
        while of_some.take(some):
            pass
    assert [r[1] for r in of_folder.rows.values()] == ["B1", "b.ndjson", "a.ndjson", "below/c.ndjson"]
    assert [r[1] for r in of_some.rows.values()] == ["B1", "b.ndjson", "a.ndjson"]
    with pytest.raises(DataError, match="no file to read"):
        opened(tmp_path / "*.csv", follow=False)
    with pytest.raises(DataError, match="unknown suffix"):
        opened(tmp_path / "notes.txt")
    assert read_once(tmp_path / "notes.txt", format="ndjson").bad


def test_files_that_grow_do_not_keep_others_waiting(tmp_path):
    (tmp_path / "a.ndjson").write_text(line("A"))
    (tmp_path / "b.ndjson").write_text(line("B"))
    source, taken = opened(tmp_path), Taken()
    for _ in range(3):
        assert taken.take(source)
        with (tmp_path / "a.ndjson").open("a") as file:
            file.write(line("A"))
    assert ("b.ndjson", 0) in taken.rows


@pytest.mark.parametrize("case", ["shorter", "replaced", "rewritten"])
def test_a_file_that_is_no_more_what_it_was(tmp_path, case):
    path = tmp_path / "a.ndjson"
    path.write_text(line("A") + line("B"))
    source, taken = opened(tmp_path), Taken()
    assert taken.take(source)
    match case:
        case "shorter":
            os.truncate(path, len(line("A")))
            says = "was truncated to"
        case "replaced":
            (tmp_path / "new").write_text(line("A") + line("C") + line("C"))
            os.replace(tmp_path / "new", path)
            says = "was replaced"
        case _:
            path.write_text(line("A") + line("X") + line("C"))
            says = "was replaced"
    for _ in range(2):
        with pytest.raises(DataError, match=says):
            source.poll(0)


@pytest.mark.slow
def test_a_file_with_fewer_records_than_were_read(tmp_path):
    path = tmp_path / "a.ndjson"
    path.write_text(line("A") + line("B"))
    with pytest.raises(DataError, match="has 2 records, but 3 were read before"):
        opened(path, {str(path): 3}).poll(0)
    assert opened(path, {str(path): 2}).poll(0) == []


@pytest.mark.parametrize("block", [300, 1 << 20])
def test_a_record_that_is_too_long(tmp_path, monkeypatch, block):
    """Before: DataError "record 1 is longer than 16 MB", at each start again: nothing behind it was ever read."""
    monkeypatch.setattr(file_readers, "RECORD_BYTES_MAX", 1000)
    monkeypatch.setattr(file_readers, "BLOCK_BYTES", block)
    path = tmp_path / "a.ndjson"
    path.write_text(line("A") + "x" * 5000)
    source, taken = opened(tmp_path, memory=tmp_path / "known"), Taken()
    while taken.take(source):
        pass
    assert "record 1 is longer than 16 MB and has no end yet" in str(source.trouble())
    with path.open("a") as file:
        file.write("x" * 500 + "\n" + line("B") + "y" * 1001 + "\n" + line("C"))
    while taken.take(source):
        pass
    rows = {("a.ndjson", 0): row("A"), ("a.ndjson", 2): row("B"), ("a.ndjson", 4): row("C")}
    reason = "the record is longer than 16 MB; its beginning"
    assert (taken.rows, taken.bad) == (rows, {("a.ndjson", 1): reason, ("a.ndjson", 3): reason})
    assert source.trouble() is None
    source.kept({str(path): 5})
    whole = read_once(path)
    assert (whole.rows, whole.bad) == (taken.rows, taken.bad)
    for position in range(6):  # with what is known of it, and without
        for memory in (tmp_path / "known", None):
            again = Taken()
            source = opened(tmp_path, {str(path): position}, memory)
            while again.take(source):
                pass
            assert again.rows == {key: r for key, r in rows.items() if key[1] >= position}
            source.close()


@pytest.mark.slow
def test_what_is_kept_of_a_record_that_is_too_long(tmp_path, monkeypatch):
    # Before: nothing was kept of it: a DataError (see above).
    monkeypatch.setattr(file_readers, "BLOCK_BYTES", 1 << 22)
    path = tmp_path / "a.ndjson"
    with path.open("w") as file:
        file.write("[" * (40 << 20) + "\n" + line("A"))
    tracemalloc.start()
    source = opened(tmp_path)
    out = [item for _ in range(30) for item in source.poll(0)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    bad, piece = out
    assert isinstance(bad, Bad)
    assert isinstance(piece, Piece)
    assert (bad.offset, bad.raw) == (0, b"[" * 1000)
    assert piece.offsets.tolist() == [1]
    assert peak < 80 << 20


@pytest.mark.parametrize("block", [64, 1 << 20])
def test_a_record_of_csv_that_is_too_long(tmp_path, monkeypatch, block):
    """A quote that is never closed costs the line in which it stands, and no more. Before: DataError."""
    monkeypatch.setattr(file_readers, "RECORD_BYTES_MAX", 300)
    monkeypatch.setattr(file_readers, "BLOCK_BYTES", block)
    path = tmp_path / "a.csv"
    good = [f"2024-01-02 12:00,A{i},1\n" for i in range(40)]
    text = "ts,symbol,price\n" + good[0] + '2024-01-02 12:00,"open,1\n' + "".join(good[1:]) + "z" * 400 + "\n" + good[0]
    path.write_text(text)
    source, taken = opened(path), Taken()
    while taken.take(source):
        pass
    assert [r[1] for r in taken.rows.values()] == [f"A{i}" for i in range(40)] + ["A0"]
    assert list(taken.bad) == [("a.csv", 2), ("a.csv", 42)]
    for position in (2, 3, 20):
        again = Taken()
        source = opened(path, {str(path): position})
        while again.take(source):
            pass
        assert again.rows == {key: r for key, r in taken.rows.items() if key[1] >= position}


def test_a_long_quoted_field(tmp_path):
    """Before: beyond 128 KB, a limit of Python's csv, a bad record in which nothing stood."""
    path = tmp_path / "a.csv"
    long = "x,\n" * 100_000
    path.write_text(f'ts,symbol,price\n2024-01-02 12:00,"{long}",1\nnever,"{long}",1\n2024-01-02 12:00,A,1\n')
    source, out = opened(path), list[Piece | Bad]()
    while found := source.poll(0):
        out += found
    rows = [row["symbol"] for item in out if isinstance(item, Piece) for row in item.rows.to_pylist()]
    bad = [(item.offset, item.raw) for item in out if isinstance(item, Bad)]
    assert rows == [long, "A"]
    assert bad == [(2, f'never,"{long}",1'.encode())]


NDJSON_PARTS = [line("A"), line("é", 2.5), "\n", "{\n", line("long" * 9), '{"ts": 1}\n', "  \r\n"]
CSV_PARTS = [
    "2024-01-02 12:00,A,1\n", "\n", '2024-01-02 12:00,"a ""q"",\nb",2\r\n', "x\n", '2024-01-02 12:00,é"x,\n',
    'never,"\r\n",1\n', "2024-01-02 12:00,a\rb,1\n", '2024-01-02 12:00,"\n\n\n",1\n',
]  # fmt: skip


@st.composite
def texts(draw):
    """(name of a file, what stands in it, where it is cut while it grows, bytes of a block)."""
    csv = draw(st.booleans())
    parts = draw(st.lists(st.sampled_from(CSV_PARTS if csv else NDJSON_PARTS), max_size=12))
    data = ("ts,symbol,price\n" * csv + "".join(parts)).encode()
    cuts = sorted(draw(st.sets(st.integers(0, len(data)), max_size=6)))
    return ("a.csv" if csv else "a.ndjson"), data, cuts, draw(st.sampled_from([3, 17, 1 << 20]))


@pytest.mark.slow
@given(texts(), st.data())
def test_growing_and_going_on_give_what_reading_once_gives(tmp_path_factory, text, data):
    name, content, cuts, block = text
    path = tmp_path_factory.mktemp("grows") / name
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_readers, "BLOCK_BYTES", block)
        patch.setattr(files, "READ_S", 60.0)  # else a poll on a busy machine may say nothing in the middle of a record
        path.write_bytes(content)
        whole = read_once(path)

        path.unlink()
        source, grown = opened(path), Taken()
        with path.open("ab") as file:
            for start, stop in zip([0, *cuts], [*cuts, len(content)]):
                file.write(content[start:stop])
                file.flush()
                for _ in range(data.draw(st.integers(0, 3))):
                    grown.take(source)
            while grown.take(source):
                pass
        assert (grown.rows, grown.bad) == (whole.rows, whole.bad)
        assert grown.next.get(name, 0) == whole.next[name]

        position = data.draw(st.integers(0, whole.next[name]))
        for follow in (False, True):
            rest = Taken()
            source = opened(path, {str(path): position}, follow=follow)
            while rest.take(source) or not (follow or source.ended):
                pass
            assert rest.rows == {key: r for key, r in whole.rows.items() if key[1] >= position}
            assert rest.bad == {key: r for key, r in whole.bad.items() if key[1] >= position}
            assert rest.next.get(name, position) == whole.next[name]
        close_all()

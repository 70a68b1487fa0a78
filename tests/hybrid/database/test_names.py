"""Names that become names of directories, or stand in checkpoints."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest

import hybrid
from hybrid.database.database import OF_SERVICES

COLUMNS = {"ts": "TIMESTAMP", "v": "BIGINT"}
FALL = (
    "SELECT * FROM {} MATCH_RECOGNIZE (ORDER BY ts MEASURES B.ts AS ts, B.v AS v "
    "PATTERN (A B) DEFINE B AS v < PREV(v)) AS m"
)


# Before: a stream _checkpoint lay among the checkpoints, one of 256 letters was an OSError.
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("_checkpoint", "names that begin with an underscore are reserved"),
        ("_CheckPoint", "names that begin with an underscore are reserved"),
        ("_service", "names that begin with an underscore are reserved"),
        ("__hybrid_factor_0", "names that begin with an underscore are reserved"),
        ("a" * 201, "has 201 bytes"), ("a" + "é" * 100, "has 201 bytes"),
        ("", "use letters, digits and underscores"), (".", "use letters, digits and underscores"),
        ("..", "use letters, digits and underscores"), ("a/b", "use letters, digits and underscores"),
        ("a\0", "use letters, digits and underscores"), ("a\n", "use letters, digits and underscores"),
        ("../up", "use letters, digits and underscores"), (5, "use letters, digits and underscores"),
    ],
)  # fmt: skip
def test_names_of_streams(tmp_path: Path, name: str, said: str) -> None:
    with hybrid.connect(tmp_path / "db") as db:
        with pytest.raises(hybrid.DataError, match=said):
            db.create_stream(name, COLUMNS, "ts")
        db.create_stream("t", COLUMNS, "ts")
        if isinstance(name, str):
            with pytest.raises(hybrid.DataError, match=said):
                db.watch(FALL.format("t"), into=name, time="ts")
    assert [p.name for p in (tmp_path / "db").iterdir() if (p / "stream.json").exists()] == ["t"]


def test_the_longest_name_of_a_stream(tmp_path: Path) -> None:
    name = "a" * 200
    with hybrid.connect(tmp_path / "db") as db:
        db.create_stream(name, COLUMNS, "ts")
        db.push(name, [{"ts": datetime(2024, 1, 1), "v": 1}])
    with hybrid.connect(tmp_path / "db") as db:
        assert db.sql(f"SELECT v FROM {name}").arrow().to_pylist() == [{"v": 1}]


# Before: with the name 5 the database could not be opened again (KeyError).
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("", "control characters"), (5, "control characters"), ("a\0b", "control characters"),
        ("a\nb", "control characters"), ("\ud800", "control characters"), ("q" * 201, "has 201 bytes"),
    ],
)  # fmt: skip
def test_names_of_queries(tmp_path: Path, name: str, said: str) -> None:
    with hybrid.connect(tmp_path / "db") as db:
        db.create_stream("t", COLUMNS, "ts")
        with pytest.raises(hybrid.DataError, match=said):
            db.watch(FALL.format("t"), name=name)
        db.watch(FALL.format("t"), name="../falls, é")
    with hybrid.connect(tmp_path / "db") as db:
        assert list(db.watching()) == ["../falls, é"]


# Before: UnicodeEncodeError, from the file of the log.
def test_names_of_sources(tmp_path: Path) -> None:
    with hybrid.connect(tmp_path / "db", log="os") as db:
        db.create_stream("t", COLUMNS, "ts")
        for source in ("\ud800", 5):
            with pytest.raises(hybrid.DataError, match="invalid source of a push to t"):
                db.push("t", [{"ts": datetime(2024, 1, 1), "v": 1}], source=source)  # type: ignore[arg-type]
        odd = "a/../b\0\n" + "x" * 1000
        assert db.push("t", [{"ts": datetime(2024, 1, 1), "v": 1}], source=odd) == 1
    with hybrid.connect(tmp_path / "db") as db:
        assert db.streams()["t"]["offsets"] == {odd: 1}


# Before: the events of one of the two were not there, and nothing was said.
def test_two_streams_that_differ_by_case(tmp_path: Path) -> None:
    with hybrid.connect(tmp_path / "db") as db:
        db.create_stream("Ticks", COLUMNS, "ts")
        with pytest.raises(hybrid.DataError, match="stream Ticks already exists"):
            db.create_stream("ticks", {**COLUMNS, "more": "DATE"}, "v")
    other = tmp_path / "other"
    with hybrid.connect(other) as db:
        db.create_stream("ticks", COLUMNS, "ts")
    (other / "ticks").rename(tmp_path / "db" / "ticks")
    if len(list((tmp_path / "db").glob("[Tt]icks"))) < 2:
        pytest.skip("names of files compare without case here")
    with pytest.raises(hybrid.DataError, match=r"two streams have the same name: .*Ticks and .*ticks"):
        hybrid.connect(tmp_path / "db")


def test_a_declaration_that_was_made_by_hand(tmp_path: Path) -> None:
    """A directory says what its stream is called, too: its file is not believed over it."""
    with hybrid.connect(tmp_path / "db") as db:
        db.create_stream("t", COLUMNS, "ts")
    file = tmp_path / "db" / "t" / "stream.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "name": "../u"}))
    with pytest.raises(hybrid.DataError, match="stream"):
        hybrid.connect(tmp_path / "db")


def test_what_a_database_shows_of_itself(tmp_path: Path) -> None:
    db = hybrid.connect(tmp_path)
    db.create_stream("ticks", {"ts": "TIMESTAMP", "v": "BIGINT"}, time="ts")
    # Before: <hybrid.database.database.Database object at 0x7f...>, and its methods for services in completions.
    assert repr(db) == f"Database({str(tmp_path)!r}; streams: ticks)"
    assert {"push", "watch", "sql", "close"} <= set(dir(db))
    assert not OF_SERVICES & set(dir(db))
    assert all(hasattr(db, name) for name in OF_SERVICES)
    db.close()
    assert repr(db) == f"Database({str(tmp_path)!r}, closed; streams: ticks)"
    assert repr(hybrid.connect()) == "Database(in memory; streams: none)"

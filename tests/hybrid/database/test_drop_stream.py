"""Removing a stream: all of it, at once for everybody, and not while somebody uses it."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

import hybrid
from archive.place import place_of
from hybrid import DataError, QueryError
from hybrid.watch.declaration import DROPPED, begin_drop
from tests.hybrid.ends import killed

COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "DOUBLE"}
RISES = "SELECT * FROM ticks MATCH_RECOGNIZE (MEASURES LAST(v) AS high PATTERN (A B) DEFINE B AS v > PREV(v)) AS m"
ROWS = [{"ts": datetime(2024, 3, 1, 9, i), "k": "a", "v": float(i)} for i in range(4)]


def opened(place: Path | None) -> hybrid.Database:
    db = hybrid.connect(place)
    for name in ("ticks", "others"):
        db.create_stream(name, COLUMNS, time="ts", key="k")
        db.push(name, ROWS)
    return db


@pytest.mark.slow
@pytest.mark.parametrize("kept", [True, False])
def test_a_stream_is_gone_and_may_be_created_anew(tmp_path: Path, kept: bool) -> None:
    with opened(tmp_path / "db" if kept else None) as db:
        db.flush()
        db.drop_stream("TICKS")
        assert list(db.streams()) == ["others"]
        with pytest.raises(QueryError, match="unknown table or stream ticks"):
            db.sql(RISES)
        with pytest.raises(DataError, match="there is no stream ticks"):
            db.drop_stream("ticks")
        db.create_stream("ticks", {"ts": "TIMESTAMP", "v": "BIGINT"}, time="ts")
        db.push("ticks", [{"ts": ROWS[0]["ts"], "v": 1}, {"ts": ROWS[1]["ts"], "v": 7}])
        assert db.sql(RISES).fetchall() == [(7,)]
        assert db.sql("SELECT count(*) FROM others").fetchall() == [(4,)]
    if kept:
        with hybrid.connect(tmp_path / "db") as db:
            assert db.sql(RISES).fetchall() == [(7,)]


@pytest.mark.slow
def test_nothing_of_it_is_left_on_disk(tmp_path: Path) -> None:
    with opened(tmp_path / "db") as db:
        db.flush()
        db.drop_stream("ticks")
        assert not (tmp_path / "db" / "ticks").exists()
        assert list((tmp_path / "db" / DROPPED).iterdir()) == []
    with hybrid.connect(tmp_path / "db") as db:
        assert list(db.streams()) == ["others"]


@pytest.mark.slow
def test_evidence_of_a_dropped_stream(tmp_path: Path) -> None:
    with opened(tmp_path / "db") as db:
        db.flush()
        found = db.sql(RISES)
        db.drop_stream("ticks")
        # Before: `restore the file from a copy, or run hybrid archive repair`.
        with pytest.raises(DataError, match="does not exist any more\nhint: the stream was dropped"):
            found.evidence()


@pytest.mark.slow
def test_evidence_of_a_stream_that_was_created_again(tmp_path: Path) -> None:
    with opened(tmp_path / "db") as db:
        db.flush()
        found = db.sql(RISES)
        db.drop_stream("ticks")
        db.create_stream("ticks", COLUMNS, time="ts", key="k")
        # Before: `restore the file from a copy, or run hybrid archive repair`.
        with pytest.raises(DataError, match=r"not in the archive any more\nhint: .* dropped and created again"):
            found.evidence()
        (file,) = (tmp_path / "db" / "others" / "table").glob("2*/*.parquet")
        others = db.sql(RISES.replace("ticks", "others"))
        file.unlink()
        with pytest.raises(DataError, match="hint: restore the file from a copy, or run hybrid archive repair"):
            others.evidence()


@pytest.mark.slow
def test_who_uses_it_is_named(tmp_path: Path) -> None:
    with opened(tmp_path / "db") as db:
        alerts = db.watch(RISES.replace("LAST(v)", "LAST(ts) AS ts, LAST(v)"), name="rises", into="high")
        db.create_pattern("rise", RISES.replace("LAST(v)", "LAST(ts) AS ts, LAST(v)"))
        db.create_pattern("again", "SELECT * FROM rise MATCH_RECOGNIZE (MEASURES LAST(high) AS h PATTERN (A B))")
        history = db.watch(
            "SELECT * FROM others MATCH_RECOGNIZE (MEASURES LAST(ts) AS at PATTERN (A)) AS m SEMI JOIN "
            "HISTORY OF ticks FROM m.at - INTERVAL 1 HOUR TO m.at AS h ON h.v > 0"
        )
        with pytest.raises(
            DataError, match="stream ticks is used by query rises, a live query, pattern rise, pattern again"
        ):
            db.drop_stream("ticks")
        with pytest.raises(DataError, match="stream high is used by query rises"):
            db.drop_stream("high")
        alerts.close()
        history.close()
        with pytest.raises(DataError, match="stream ticks is used by pattern rise, pattern again"):
            db.drop_stream("ticks")
        db.drop_pattern("again")
        db.drop_pattern("rise")
        db.drop_stream("ticks")
        db.drop_stream("high")
        assert list(db.streams()) == ["others"]


@pytest.mark.slow
def test_queries_of_other_streams_resume_without_it(tmp_path: Path) -> None:
    other = RISES.replace("ticks", "others")
    db = opened(tmp_path / "db")
    db.watch(other, name="rises")
    db.checkpoint()
    db.drop_stream("ticks")
    killed(db)
    with hybrid.connect(tmp_path / "db") as db:  # before the checkpoint after it: "stream ticks ... is missing"
        alerts = db.watch(other, name="rises")
        db.push(
            "others", [ROWS[3] | {"ts": datetime(2024, 3, 1, 10)}, ROWS[3] | {"ts": datetime(2024, 3, 1, 11), "v": 9.0}]
        )
        db.advance("others", None)
        assert alerts.fetch()["high"].to_pylist() == [9]


@pytest.mark.slow
def test_what_a_crash_left_is_removed_at_the_next_opening(tmp_path: Path) -> None:
    with opened(tmp_path / "db") as db:
        db.flush()
    begin_drop(place_of(tmp_path / "db"), "ticks")
    (tmp_path / "db" / "ticks" / "stream.json").unlink()  # it ended in the middle
    with hybrid.connect(tmp_path / "db", read_only=True) as db:
        assert list(db.streams()) == ["others"]
    with hybrid.connect(tmp_path / "db") as db:
        assert list(db.streams()) == ["others"]
        assert not (tmp_path / "db" / "ticks").exists()
        db.create_stream("ticks", COLUMNS, time="ts", key="k")
    with hybrid.connect(tmp_path / "db", read_only=True) as db:
        assert sorted(db.streams()) == ["others", "ticks"]


@pytest.mark.slow
def test_a_reader_beside_sees_that_it_is_gone(tmp_path: Path) -> None:
    with opened(tmp_path / "db") as db, hybrid.connect(tmp_path / "db", read_only=True) as reader:
        assert reader.sql("SELECT count(*) FROM ticks").fetchall() == [(4,)]
        with pytest.raises(DataError, match="open for reading only"):
            reader.drop_stream("ticks")
        db.drop_stream("ticks")
        with pytest.raises(QueryError, match="unknown table or stream ticks"):
            reader.sql(RISES)
        assert reader.sql("SELECT count(*) FROM others").fetchall() == [(4,)]


@pytest.mark.parametrize("text", ["DROP STREAM ticks", "drop stream if exists ticks;", "-- gone\nDROP STREAM ticks"])
def test_a_statement_says_how_streams_are_dropped(text: str) -> None:
    with opened(None) as db:
        with pytest.raises(QueryError, match=r"(?s)HQ100.*DROP STREAM is no statement.*db\.drop_stream\("):
            db.sql(text)
        assert "ticks" in db.streams()
    with pytest.raises(QueryError, match=r"db\.create_stream\("):
        hybrid.sql("CREATE STREAM t (ts TIMESTAMP)")

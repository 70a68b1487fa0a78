"""Pending rows and evidence stay within memory_limit; rows, ids and evidence that come from files are the same."""

from __future__ import annotations

import errno
import itertools
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybrid
from hybrid.watch.paged import PAGES, FoundPiece, Pages, size_of
from query.errors import DataError, HybridWarning
from tests.hybrid.ends import killed
from tests.hybrid.inside import flow_of, opened_of
from tests.hybrid.watch.test_checkpoint import ABSENT, COLUMNS, FALLS, JOINED, JOINED_ONCE, ONCE, PASSING
from tests.hybrid.watch.test_saved import events
from tests.properties.comparing import fewer

pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")  # patterns without WITHIN, and limits

UNMATCHED = """
    SELECT * FROM ticks MATCH_RECOGNIZE (
        PARTITION BY k MEASURES A.v AS a ALL ROWS PER MATCH WITH UNMATCHED ROWS PATTERN (A B)
        DEFINE A AS v < 4, B AS v > 4)"""
LONGER = """
    SELECT n, k FROM ticks MATCH_RECOGNIZE (
        PARTITION BY k MEASURES count(*) AS n PATTERN (A+) DEFINE A AS v > 2) WHERE n > 1"""
QUERIES = {
    "falls": FALLS, "passing": PASSING, "absent": ABSENT, "joined": JOINED, "once": ONCE, "joined once": JOINED_ONCE,
    "unmatched": UNMATCHED, "longer": LONGER,
}  # fmt: skip
#: A quarter of it, shared by all queries, is less than any match needs.
LIMIT = "8kB"


def opened(path: Path | None, limit: str | None) -> hybrid.Database:
    db = hybrid.connect(path, maintenance=False, memory_limit=limit)
    if not db.streams():
        db.create_stream("ticks", COLUMNS, time="ts", key="k", lateness="2s")
    return db


def watched(db: hybrid.Database, ids: bool, named: bool) -> dict[str, Any]:
    return {
        name: db.watch(text, evidence=ids and name != "unmatched", name=name if named else None)
        for name, text in QUERIES.items()
    }


def within(db: hybrid.Database) -> None:
    """No query has more in memory than its share."""
    for query in flow_of(db).queries:
        alerts = query.alerts
        assert alerts.bytes_max is not None
        assert alerts._unread_bytes + alerts._last_bytes <= alerts.bytes_max
    pages = opened_of(db).path
    assert pages is not None
    assert list((Path(str(pages)) / PAGES).glob("*")) == []


@pytest.mark.slow
@fewer(25, least=3)
@given(
    sizes=st.lists(st.integers(1, 12), min_size=4, max_size=10),
    fetched=st.lists(st.booleans(), min_size=10, max_size=10),
    restart=st.integers(0, 9), ids=st.booleans(),
)  # fmt: skip
def test_rows_and_evidence_are_those_without_a_limit(
    sizes: list[int], fetched: list[bool], restart: int, ids: bool
) -> None:
    rows = events(sum(sizes))
    with tempfile.TemporaryDirectory() as directory, opened(None, None) as plain:
        path = Path(directory) / "db"
        db = opened(path, LIMIT)
        wanted, found = watched(plain, ids, False), watched(db, ids, True)
        begin = 0
        for i, (size, fetch) in enumerate(zip(sizes, itertools.cycle(fetched), strict=False)):
            for one in (plain, db):
                one.push("ticks", rows[begin : begin + size], "x", begin)
            begin += size
            within(db)
            if fetch:
                same(wanted, found)
            if i == restart:
                db.checkpoint()
                killed(db)
                db = opened(path, LIMIT)
                found = db.watching()
        for one in (plain, db):
            one.advance("ticks", None)
        same(wanted, found)
        db.close()


def same(wanted: dict[str, Any], found: dict[str, Any]) -> None:
    for name, alerts in wanted.items():
        expected, rows = alerts.fetch(), found[name].fetch()
        assert rows.equals(expected), name
        if expected.num_rows:
            evidence = alerts.evidence().arrow()
            assert found[name].evidence().equals(evidence), name
            for lines_max in (1, 7):
                assert found[name].evidence_batches(lines_max).read_all().equals(evidence), name


@pytest.mark.slow
def test_rows_that_are_put_back_come_again(tmp_path: Path) -> None:
    with opened(tmp_path / "db", LIMIT) as db, opened(None, None) as plain:
        found, wanted = watched(db, True, False), watched(plain, True, False)
        for one in (db, plain):
            one.push("ticks", events(40), "x", 0)
        rows = {name: alerts.fetch() for name, alerts in found.items()}
        for alerts in found.values():
            alerts.put_back()
        for one in (db, plain):
            one.push("ticks", events(60)[40:], "x", 40)
        within(db)
        assert any(table.num_rows for table in rows.values())
        same(wanted, found)


@pytest.mark.slow
def test_a_disk_that_is_full_is_said_and_nothing_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> tuple[int, str]:
        raise OSError(errno.ENOSPC, "No space left on device")

    rows = events(60)
    with opened(tmp_path / "db", LIMIT) as db, opened(None, None) as plain:
        alerts, wanted = db.watch(FALLS), plain.watch(FALLS)
        plain.push("ticks", rows, "x", 0)
        with monkeypatch.context() as broken:
            broken.setattr("hybrid.watch.paged.tempfile.mkstemp", full)
            with pytest.warns(HybridWarning, match="evidence of a live query stay in memory: .*No space left"):
                db.push("ticks", rows[:30], "x", 0)
            assert "No space left" in alerts.stats()["memory_trouble"]
            with pytest.raises(DataError, match=r"nothing was taken(.|\n)*memory_limit(.|\n)*No space left"):
                db.push("ticks", rows[30:], "x", 30)
            first = alerts.take()
        db.push("ticks", rows[30:], "x", 30)
        assert "memory_trouble" not in alerts.stats()
        assert pa.concat_tables([first, alerts.take()]).equals(wanted.take())


def test_without_a_place_on_disk_a_push_is_refused() -> None:
    rows = events(60)
    with opened(None, LIMIT) as db, opened(None, None) as plain:
        alerts, wanted = db.watch(FALLS), plain.watch(FALLS)
        plain.push("ticks", rows, "x", 0)
        found, begin = [], 0
        for end in (30, 40, 60):
            db.push("ticks", rows[begin:end], "x", begin)
            begin = end
            with pytest.raises(DataError, match=r"nothing was taken(.|\n)*this database has no disk"):
                db.push("ticks", rows[end:], "x", end)
            found.append(alerts.take())
        assert pa.concat_tables(found).equals(wanted.take())


def test_what_a_killed_process_has_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / "left.page").write_bytes(b"x")
    with opened(None, None) as plain:
        alerts = plain.watch(FALLS)
        plain.push("ticks", events(60), "x", 0)
        (piece, *_) = alerts._pieces
        (moved,) = Pages(tmp_path).moved([piece])
        assert list(tmp_path.glob("*")) == []
        assert (moved.bytes, moved.row_count) == (0, piece.row_count)
        assert size_of(moved.content) == size_of(piece.content) > 0
        assert Pages(tmp_path).moved([moved, moved]) == [moved, moved]
        assert isinstance(piece, FoundPiece)

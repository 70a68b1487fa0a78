"""Rows of windows beside history: ids, evidence, groups, keys, pending rows. tests/properties/test_trends_joined.py
compares what they are with the reference."""

from __future__ import annotations

import warnings
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import hybrid
from archive.snapshot import HistorySnapshot
from archive.spark import search as spark_search
from archive.spark import session
from archive.spark.search import Archived
from hybrid.statement.statement import make_matcher
from matching.batch import Matches
from query.errors import DataError, HybridWarning, QueryError
from query.plan.plan import Plan
from tests.events import batch_of
from tests.trends import EVENTS, Row, read_rows, row
from tests.waiting import until

COLUMNS = {f.name: f.type for f in EVENTS.fields}
WINDOWS = (
    "MATCH_RECOGNIZE (PARTITION BY g ORDER BY ts GROUP BY g MEASURES COUNT(MATCHES) AS n ONE ROW PER WINDOW "
    "PATTERN (A+ B) WITHIN 10 SECONDS DEFINE A AS type = 'A', B AS type = 'B')"
)
#: C asks for the windows of the half minute before.
ASKED = (
    "SELECT {} FROM events MATCH_RECOGNIZE (PARTITION BY g ORDER BY ts MEASURES C.ts AS at, C.v AS v PATTERN (C) "
    "DEFINE C AS type = 'C') AS pl {} HISTORY OF events FROM pl.at - INTERVAL '30' SECOND TO pl.at {} AS pa ON {}"
)
#: Windows ask for those of the half minute before them.
BOTH = (
    f"SELECT pl.g, pl.window_end, pl.n, pa.window_end AS before FROM events {WINDOWS} AS pl LEFT JOIN HISTORY OF "
    f"events FROM pl.window_start - INTERVAL '30' SECOND TO pl.window_start {WINDOWS} AS pa ON pa.g = pl.g"
)
ROWS = "A@1{g=x} A@2{g=x} B@3{g=x} A@11{g=x} B@12{g=x} A@13{g=y} A@14{g=y} B@15{g=y} C@33{g=x} C@38{g=y} A@40{g=x}"


def table(rows: list[Row]) -> pa.Table:
    return pa.Table.from_batches([batch_of(EVENTS, rows).columns])


def second(time: datetime) -> int:
    return round((time - datetime(1970, 1, 1)).total_seconds())


def seconds(found: pa.Table) -> list[tuple[Any, ...]]:
    return [tuple(second(v) if isinstance(v, datetime) else v for v in row.values()) for row in found.to_pylist()]


def asked(select: str, join: str = "JOIN", on: str = "pa.g = pl.g", windows: str = WINDOWS) -> list[tuple[Any, ...]]:
    return seconds(hybrid.sql(ASKED.format(select, join, windows, on), events=table(read_rows(ROWS))).arrow())


@pytest.mark.slow
def test_a_range_has_the_windows_that_lie_wholly_inside() -> None:
    """The range of the first C begins at 3, that of the second one at 8: both cut the first window. Before: a window
    with an event of the range was there, with the trends of its events in the range."""
    assert asked("pl.at, pa.*") == [(33, 10, 20, "x", "1"), (38, 10, 20, "y", "3")]
    for first, found in ((31, []), (30, [(30, 0, "3")])):  # from 1 on, from 0 on
        text = ASKED.format("pl.at, pa.window_start, pa.n", "JOIN", WINDOWS, "pa.g = pl.g")
        events = table(read_rows(ROWS.replace("C@33", f"C@{first}")))
        assert seconds(hybrid.sql(text, events=events).arrow()) == [*found, (first, 10, "1"), (38, 10, "3")]


@pytest.mark.parametrize(
    ("bounds", "at_us", "ends"),
    [
        ("FROM {} TO {}", 20_000_000, [10, 20]),
        ("FROM {} TO {}", 19_999_999, [10]),
        ("BETWEEN {} AND {}", 20_000_000, [10, 20]),
        ("BETWEEN {} AND {}", 19_999_999, [10, 20]),  # the last instant of the second window
        ("BETWEEN {} AND {}", 19_999_998, [10]),
    ],
)
def test_a_window_ends_where_the_range_does(bounds: str, at_us: int, ends: list[int]) -> None:
    rows = [*read_rows("A@1{g=x} B@2{g=x} A@11{g=x} B@12{g=x}"), row("C", 0, g="x", ts=at_us)]
    low, high = "pl.at - INTERVAL '30' SECOND", "pl.at"
    text = ASKED.replace(f"FROM {low} TO {high}", bounds.format("TIMESTAMP '1970-01-01'", high))
    found = hybrid.sql(text.format("pa.window_end", "JOIN", WINDOWS, "pa.g = pl.g"), events=table(rows)).arrow()
    assert [end for (end,) in seconds(found)] == ends


def test_ranges_with_the_same_events_have_their_own_windows() -> None:
    """No event is before 5 or after 9, so the ranges [0, 10) and [5, 15) have the same ones."""
    windows = WINDOWS.replace("WITHIN 10 SECONDS", "WITHIN 10 SECONDS SLIDE 5 SECONDS")
    text = ASKED.replace("'30'", "'20'").replace("TO pl.at", "TO pl.at - INTERVAL '10' SECOND")
    rows = table(read_rows("A@5{g=x} B@9{g=x} C@20{g=y} C@25{g=y} C@29{g=y}"))
    found = hybrid.sql(text.format("pl.at, pa.window_start", "JOIN", windows, "true"), events=rows).arrow()
    assert seconds(found) == [(20, 0), (25, 5)]


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("strategy", ["llaa", "sllaa", "alaa", "ollaa", "auto"])
@pytest.mark.parametrize("bounds", ["FROM {} TO {}", "BETWEEN {} AND {}"])
def test_windows_of_earlier_ranges_answer_later_ones(bounds: str, strategy: str) -> None:
    """Each range begins or ends with a window, or a microsecond beside it."""
    low, high = "pl.at - INTERVAL '30' SECOND", "pl.at"
    text = ASKED.replace(f"FROM {low} TO {high}", bounds.format(low, high))
    text = text.format("pl.at, pa.window_start, pa.n", "JOIN", WINDOWS, "pa.g = pl.g")
    rows = read_rows("A@1{g=x} B@2{g=x} A@11{g=x} A@12{g=x} B@13{g=x} A@21{g=x} B@22{g=x}")
    asks = [at * 1_000_000 + us for at in (30, 40, 50) for us in (-2, -1, 0, 1)]
    rows += [row("C", 0, g="x", ts=at) for at in asks]
    wanted = hybrid.sql(text, events=table(rows)).arrow().to_pylist()
    with database() as db:
        alerts, found = db.watch(text, strategy=strategy), []
        for one in rows:
            db.push("events", batch_of(EVENTS, [one]).columns)
            found += alerts.fetch().to_pylist()
        db.advance("events", None)
        found += alerts.fetch().to_pylist()
        ours = ("match_id", "join_id", "history_complete")
        assert [{k: v for k, v in r.items() if k not in ours} for r in found] == wanted
        assert alerts.stats()["history_kept"] >= len(asks) // 2
    counts = Counter(row["at"] for row in wanted)
    at_30 = [2, 3, 3, 2] if bounds.startswith("BETWEEN") else [2, 2, 3, 2]
    epoch = datetime(1970, 1, 1)
    assert [counts[epoch + timedelta(microseconds=at)] for at in asks] == [*at_30, 2, 2, 2, 1, 1, 1, 1, 0]


@pytest.mark.slow
def test_every_kind_of_join() -> None:
    both = [("x", "1"), ("y", "3")]
    assert asked("pl.at, pa.g, pa.n", "JOIN", "true") == [(at, *of) for at in (33, 38) for of in both]
    assert asked("pl.at, pa.n", "LEFT JOIN", "pa.g = pl.g AND pa.n > 1") == [(33, None), (38, "3")]
    assert asked("pl.at", "SEMI JOIN", "pa.g = pl.g AND pa.n > 1") == [(38,)]
    assert asked("pl.at", "ANTI JOIN", "pa.g = pl.g AND pa.n > 1") == [(33,)]
    # of the last window the last group
    assert asked("pl.at, pa.g", "NEAREST JOIN", "true") == [(33, "y"), (38, "y")]
    assert asked("pl.at, pa.n", "LEFT NEAREST JOIN", "pa.g = pl.g AND pa.n > 1") == [(33, None), (38, "3")]


def test_numbers_of_any_size_are_compared_as_numbers_in_on() -> None:
    many = " ".join(f"A@{i}{{g=x}}" for i in range(1, 8)) + " B@9{g=x} C@10{g=x}"
    found = hybrid.sql(ASKED.format("pa.n", "JOIN", WINDOWS, "pa.n > 9"), events=table(read_rows(many)))
    assert found.arrow()["n"].to_pylist() == ["127"]  # a text '127' comes before '9'


def test_a_measure_called_like_a_key_is_no_key() -> None:
    """v is in PARTITION BY, but pa.v is a measure: the range is not read for one v only."""
    windows = WINDOWS.replace("PARTITION BY g", "PARTITION BY v").replace("GROUP BY g", "").replace(
        "COUNT(MATCHES) AS n", "COUNT(MATCHES)::BIGINT AS v")  # fmt: skip
    rows = read_rows("A@1{7,g=x} A@2{7,g=x} B@3{7,g=x} C@10{3,g=x}")
    found = hybrid.sql(ASKED.format("pa.v", "JOIN", windows, "pa.v = pl.v"), events=table(rows))
    assert found.arrow()["v"].to_pylist() == [3]


def test_evidence_is_that_of_the_live_match() -> None:
    found = hybrid.sql(ASKED.format("pl.at, pa.n", "JOIN", WINDOWS, "pa.g = pl.g"), events=table(read_rows(ROWS)))
    lines = found.evidence().to_pylist()
    assert [(line["row"], line["side"], second(line["event_time"])) for line in lines] == [(0, "pl", 33), (1, "pl", 38)]
    with pytest.raises(QueryError, match=r"HQ221(.|\n)*have no evidence"):
        hybrid.sql(BOTH, events=table(read_rows(ROWS))).evidence()


def database(where: Path | None = None) -> hybrid.Database:
    db = hybrid.connect() if where is None else hybrid.connect(where)
    if "events" not in db.streams():
        db.create_stream("events", COLUMNS, time="ts", key="g")
    return db


def batch(text: str) -> pa.RecordBatch:
    return batch_of(EVENTS, read_rows(text)).columns


@pytest.mark.slow
def test_each_joined_row_has_its_own_id() -> None:
    """That of a window and its group, on each side; the same however events come."""
    rows, ids = read_rows(ROWS), []
    for size in (1, 4, len(rows)):
        with database() as db:
            alerts = db.watch(BOTH.replace("TO pl.window_start", "TO pl.window_end"), evidence=True)
            for begin in range(0, len(rows), size):
                db.push("events", batch_of(EVENTS, rows[begin : begin + size]).columns)
            db.advance("events", None)
            found = alerts.fetch().to_pylist()
            ids.append({(r["g"], r["window_end"], r["before"]): (r["match_id"], r["join_id"]) for r in found})
            assert len(found) == len({r["join_id"] for r in found}) == 4
            assert len({r["match_id"] for r in found}) == 3
    assert ids[0] == ids[1] == ids[2]


@pytest.mark.slow
def test_windows_wait_for_their_history_over_a_restart(tmp_path: Path) -> None:
    """The range ends after the window."""
    text = BOTH.replace("TO pl.window_start", "TO pl.window_end + INTERVAL '20' SECOND")
    wanted = seconds(hybrid.sql(text, events=table(read_rows(ROWS))).arrow())
    with database(tmp_path) as db:
        alerts = db.watch(text, name="both")
        db.push("events", batch(ROWS[: ROWS.index(" C@33")]))
        db.push("events", batch("C@21{g=z}"))
        assert alerts.stats()["waiting_for_history"] == 3
        assert not alerts.fetch().num_rows
    with database(tmp_path) as db:
        alerts = db.watch(text, name="both")
        assert alerts.stats()["waiting_for_history"] == 3
        db.push("events", batch(ROWS[ROWS.index("C@33") :]))
        db.advance("events", None)
        assert sorted(seconds(alerts.fetch()), key=str) == sorted(wanted, key=str)


def test_a_pending_window_that_a_rewind_opens_again_comes_once() -> None:
    """An event far ahead closed it; the events after the rewind are in it."""
    text = BOTH.replace("TO pl.window_start", "TO pl.window_end + INTERVAL '1' HOUR")
    with database() as db:
        alerts = db.watch(text)
        db.push("events", batch("A@1{g=x} B@2{g=x} A@11{g=x} B@12{g=x}"))
        assert alerts.stats()["waiting_for_history"] == 1  # of the first window
        db.push("events", batch("C@1000{g=x}"))
        assert alerts.stats()["waiting_for_history"] == 2
        db.rewind("events", datetime(1970, 1, 1, 0, 0, 30))
        assert alerts.stats()["waiting_for_history"] == 1
        db.push("events", batch("A@13{g=x} B@14{g=x} C@21{g=x}"))
        assert alerts.stats()["waiting_for_history"] == 2
        db.advance("events", None)
        assert sorted({(end, n) for _, end, n, _ in seconds(alerts.fetch())}) == [(10, "1"), (20, "4")]


def test_a_number_that_is_too_large_ends_the_query_with_its_reason() -> None:
    """Also where the windows of a range have it."""
    windows = WINDOWS.replace("AS n", "::TINYINT AS n")
    many = " ".join(f"A@{i / 10:.0f}{{g=x}}" for i in range(1, 90)) + " B@9{g=x} C@10{g=x}"
    with pytest.raises(DataError, match="a measure cannot be computed for these windows"):
        hybrid.sql(ASKED.format("pa.n", "JOIN", windows, "pa.g = pl.g"), events=table(read_rows(many)))


@pytest.mark.slow
def test_windows_of_large_ranges_are_asked_of_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a search in its place, and without an answer of it. tests/archive/spark/test_large_ranges.py asks Spark."""
    text = ASKED.format("pl.at, pa.*", "LEFT JOIN", WINDOWS, "pa.n > 0")

    def here(_: Any, archived: Archived, plan: Plan, told: bool = False) -> list[Matches]:
        files = HistorySnapshot(archived.schema, (), archived.table.sources, archived.place, archived.table)
        matcher = make_matcher(plan)
        return [matcher.push(files.read(archived.request)), matcher.advance(None)]

    def fails(*_: Any, **__: Any) -> None:
        raise DataError("no Spark here")

    monkeypatch.setattr(session, "spark_session", lambda where: None)
    for search, counted in ((here, "history_by_spark"), (fails, "history_spark_failed")):
        monkeypatch.setattr(spark_search, "matches", search)
        with hybrid.connect(tmp_path / counted, spark="local[1]", spark_events=0) as db:
            db.create_stream("events", COLUMNS, time="ts", key="g")
            alerts = db.watch(text, evidence=True)
            assert "spark       ranges of pa with more than 0 events" in alerts.explain()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", HybridWarning)
                db.push("events", batch(ROWS))
                db.advance("events", None)
                until(lambda alerts=alerts: not alerts.stats()["waiting_for_history"])
                found = alerts.fetch()
            assert alerts.stats()[counted] == 1  # the same windows lie inside both ranges
            assert len(set(found["join_id"].to_pylist())) == 4
            ours = ["match_id", "join_id", "history_complete"]
            assert seconds(found.drop_columns(ours)) == asked("pl.at, pa.*", "LEFT JOIN", "pa.n > 0")

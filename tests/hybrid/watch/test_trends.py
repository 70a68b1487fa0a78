"""ONE ROW PER WINDOW in a database: live at the watermark, after a restart, over the archive, in a chain."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hybrid
from query.errors import DataError, QueryError
from tests.events import batch_of
from tests.trends import EVENTS, Row, read_rows, row, statement

QUERY = statement("A+ B", 10, 5, partition="g", group="g")
COLUMNS = {f.name: f.type for f in EVENTS.fields}


def database(where: Path | None = None) -> hybrid.Database:
    db = hybrid.connect() if where is None else hybrid.connect(where)
    if "events" not in db.streams():
        db.create_stream("events", COLUMNS, time="ts", key="g")
    return db


def batch(rows: list[Row]) -> pa.RecordBatch:
    return batch_of(EVENTS, rows).columns


def end(db: hybrid.Database) -> None:
    """Announces that no event of the tests is still to come."""
    db.advance("events", datetime(1970, 1, 2))


def drawn(count: int, seed: int = 1) -> list[Row]:
    rng = np.random.default_rng(seed)
    types, values, keys = rng.choice(list("AAABBC"), count), rng.integers(0, 100, count), rng.choice(list("xyz"), count)
    return [row(str(t), i / 4, int(v), str(k)) for i, (t, v, k) in enumerate(zip(types, values, keys))]


def answered(rows: list[Row], text: str = QUERY) -> list[dict[str, Any]]:
    return hybrid.sql(text, events=pa.Table.from_batches([batch(rows)])).arrow().to_pylist()  # type: ignore[no-any-return]


def test_a_window_comes_out_when_the_watermark_reaches_its_end() -> None:
    with database() as db:
        alerts = db.watch(QUERY)
        db.push("events", batch(read_rows("A@1{2,g=x} A@2{3,g=x} B@3{g=x} A@4{1,g=y}")))
        assert not alerts.fetch().num_rows
        db.push("events", batch(read_rows("C@10{g=y}")))
        ends = [r["window_end"].second for r in alerts.fetch().to_pylist()]
        assert ends == [5, 10]
        end(db)
        assert not alerts.fetch().num_rows


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 17, 200])
def test_live_rows_are_those_of_the_statement(size: int) -> None:
    rows = drawn(200)
    with database() as db:
        alerts, found = db.watch(QUERY), []
        for begin in range(0, len(rows), size):
            db.push("events", batch(rows[begin : begin + size]))
            found += alerts.fetch().to_pylist()
        end(db)
        found += alerts.fetch().to_pylist()
        assert found == answered(rows)
        assert db.sql(QUERY).arrow().to_pylist() == found


@pytest.mark.slow
def test_a_database_that_is_opened_again_goes_on_in_the_middle_of_a_window(tmp_path: Path) -> None:
    rows, found = drawn(120), []
    for begin in range(0, len(rows), 30):
        with database(tmp_path) as db:
            alerts = db.watch(QUERY, name="trends")
            db.push("events", batch(rows[begin : begin + 30]))
            found += alerts.fetch().to_pylist()
            if begin + 30 == len(rows):
                end(db)
                found += alerts.fetch().to_pylist()
    assert found == answered(rows)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
@pytest.mark.parametrize("measures", ["COUNT(MATCHES) AS n", "COUNT(MATCHES) AS n, MAX(A.type) AS t"])
def test_a_row_has_an_id_by_its_window_and_its_group(measures: str) -> None:
    """Whatever the batches; another group, window or query has another one. Without an engine too."""
    query = statement("A+ B", 10, 5, partition="g", group="g", measures=measures)
    rows, ids = [*drawn(24), row("A", 6.1, 1, None), row("B", 6.2, 1, None)], []
    for size in (1, 26):
        with database() as db:
            alerts = db.watch(query, evidence=True)
            for begin in range(0, len(rows), size):
                db.push("events", batch(rows[begin : begin + size]))
            end(db)
            found = alerts.fetch()
            keys = list(zip(found["window_start"].to_pylist(), found["g"].to_pylist()))
            ids.append(dict(zip(keys, found["match_id"].to_pylist())))
    assert ids[0] == ids[1]
    assert len(set(ids[0].values())) == len(ids[0]) > 5
    with database() as db:
        other = db.watch(query.replace("COUNT(MATCHES)", "1 + COUNT(MATCHES)"), evidence=True)
        db.push("events", batch(rows))
        end(db)
        assert {*ids[0].values()}.isdisjoint(other.fetch()["match_id"].to_pylist())


def test_rows_have_ids_where_events_are_not_kept_long_enough() -> None:
    """Before: null."""
    with hybrid.connect() as db:
        db.create_stream("events", COLUMNS, time="ts", key="g", retention="1s")
        alerts = db.watch(QUERY, evidence=True)
        db.push("events", batch(drawn(60)))
        end(db)
        ids = alerts.fetch()["match_id"]
        assert not ids.null_count
        assert len(set(ids.to_pylist())) == len(ids) > 5


def test_late_events_are_in_no_window() -> None:
    with database() as db:
        alerts = db.watch(QUERY)
        db.push("events", batch(read_rows("A@1{1,g=x} C@20{g=x}")))
        db.push("events", batch(read_rows("B@2{g=x}")))
        db.push("events", batch(read_rows("A@21{1,g=x} B@22{g=x} C@40{g=x}")))
        assert [r["n"] for r in alerts.fetch().to_pylist()] == ["1", "1"]


@pytest.mark.slow
def test_a_live_pattern_over_windows() -> None:
    """window_end is a time of the rows, with lag 0; window_start has the length of a window."""
    inner = statement("A+", 10, 10, measures="COUNT(MATCHES)::BIGINT AS n")
    for time in ("window_start", "window_end"):
        text = (
            f"SELECT * FROM ({inner}) MATCH_RECOGNIZE (ORDER BY {time} MEASURES LAST(UP.n) AS n, count(*) AS windows "
            f"PATTERN (FIRST_ UP UP) DEFINE UP AS n > PREV(n)) AS m"
        )
        rows = read_rows("A@1 A@11 A@12 A@21 A@22 A@23 A@31")
        with database() as db:
            alerts, found = db.watch(text), []
            for one in rows:
                db.push("events", batch([one]))
                found += alerts.fetch().to_pylist()
            end(db)
            assert [*found, *alerts.fetch().to_pylist()] == answered(rows, text) == [{"n": 7, "windows": 3}]


def test_rows_of_windows_feed_a_stream() -> None:
    with database() as db:
        db.watch(statement("A+ B", 10, 10, measures="COUNT(MATCHES)::BIGINT AS n"), into="windows")
        db.push("events", batch([*read_rows("A@1 A@2 B@3"), *read_rows("A@11 B@12 C@40")]))
        assert [r["n"] for r in db.sql("SELECT n FROM windows ORDER BY window_end").arrow().to_pylist()] == [3, 1]


def test_explain_of_a_live_query_promises_no_evidence() -> None:
    """Before: it said that evidence is found in the archive."""
    with database() as db:
        shown = db.watch(QUERY).explain("program")
        assert "counts of trends" in shown
        assert "evidence" not in shown


def test_a_stream_holds_no_numbers_of_any_size() -> None:
    """Before: it held their digits, and compared them as texts."""
    with database() as db, pytest.raises(DataError, match=r"n is a BIGNUM(.|\n)*n::DOUBLE AS n"):
        db.watch(statement("A+ B", 10, 10, measures="1 + COUNT(MATCHES) AS n"), into="windows")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            f"SELECT * FROM ({QUERY}) MATCH_RECOGNIZE (ORDER BY window_end MEASURES A.n AS n PATTERN (A)) AS o",
            "n is a BIGNUM",
        ),
        (QUERY + " ALERT ONCE WITHIN 1 HOUR", "ALERT ONCE over rows of windows"),
    ],
)
def test_what_windows_cannot_do_yet(text: str, said: str) -> None:
    with database() as db, pytest.raises(QueryError, match=said):
        db.watch(text)


@pytest.mark.parametrize("measures", ["COUNT(MATCHES) AS n", "MAX(A.v) AS n, AVG(B.d) AS d"])
def test_a_query_is_replaced_in_the_middle_of_a_window(measures: str) -> None:
    """With the counts of the old version if they are enough, else from the events."""
    text = statement("A+ B", 10, 5, partition="g", group="g", measures=measures)
    with database() as db:
        old = db.watch(QUERY)
        db.push("events", batch(read_rows("A@1{2,g=x} A@2{3,g=x} B@3{g=x} C@7{g=x} A@8{1,g=x}")))
        assert old.fetch().num_rows == 1
        alerts = db.replace(old, text)
        db.push("events", batch(read_rows("B@9{g=x} C@40{g=x}")))
        assert alerts.fetch().to_pylist() == answered(read_rows(
            "A@1{2,g=x} A@2{3,g=x} B@3{g=x} C@7{g=x} A@8{1,g=x} B@9{g=x}"), text)[1:]  # fmt: skip


SHARINGS = ["none", "hamlet", "static", "dynamic"]


@pytest.mark.slow
@pytest.mark.thinned(4)
@pytest.mark.parametrize("after", SHARINGS)
@pytest.mark.parametrize("before", SHARINGS)
def test_a_query_changes_its_mode_in_the_middle_of_a_window(before: str, after: str) -> None:
    """Others of the old mode and of the new one go on beside it."""
    rows, text = drawn(200), QUERY.replace("COUNT(MATCHES) AS n", "COUNT(MATCHES) AS m")
    with database() as db:
        others = [db.watch(QUERY, sharing=mode) for mode in (before, after)]
        old = db.watch(QUERY, sharing=before)
        db.push("events", batch(rows[:90]))
        found = old.fetch().to_pylist()
        new = db.replace(old, text, sharing=after)
        assert new.stats()["sharing"] == after
        for begin in range(90, 200, 10):
            db.push("events", batch(rows[begin : begin + 10]))
        assert new.stats()["counted_with"] == (0 if after == "none" else 2 if before == after else 1)
        end(db)
        assert [*found, *({"n" if k == "m" else k: v for k, v in r.items()} for r in new.fetch().to_pylist())] == (
            answered(rows)
        )
        for alerts in others:
            assert alerts.fetch().to_pylist() == answered(rows)
        with pytest.raises(QueryError, match="unknown sharing hamlets"):
            db.replace(new, text, sharing="hamlets")


@pytest.mark.slow
@pytest.mark.parametrize("lateness", [0, 3])
def test_a_query_that_begins_in_the_past_is_counted_with_the_others(lateness: int, tmp_path: Path) -> None:
    """Before: it counted on its own for good."""
    rows, found = drawn(240), []
    with hybrid.connect(tmp_path) as db:
        db.create_stream("events", COLUMNS, time="ts", key="g", lateness=f"{lateness}s")
        first = db.watch(QUERY)
        db.push("events", batch(rows[:100]))
        past, another = db.watch(QUERY, start=datetime(1970, 1, 1, 0, 0, 12)), db.watch(QUERY, start=0)
        for begin in range(100, 240, 20):
            db.push("events", batch(rows[begin : begin + 20]))
            found += past.fetch().to_pylist()
        assert [alerts.stats()["counted_with"] for alerts in (first, past, another)] == [2, 2, 2]
        assert past.explain("plan").startswith("sharing     dynamic: counted with 2 others")
        third = db.watch(QUERY)
        end(db)
        assert third.stats()["counted_with"] == (0 if lateness else 3)  # held-back events are not for it
        found += past.fetch().to_pylist()
        assert found == answered([r for r in rows if r["ts"] >= 12_000_000])
        assert another.fetch().to_pylist() == first.fetch().to_pylist() == answered(rows)


def test_times_before_the_epoch_have_windows_too() -> None:
    start = datetime(1969, 12, 31, 23, 59, 51)
    rows = [row("A", -9, 1, "x"), row("B", -8, None, "x")]
    assert [(r["window_start"], r["n"]) for r in answered(rows)] == [
        (start - timedelta(seconds=6), "1"), (start - timedelta(seconds=1), "1")
    ]  # fmt: skip


PAIRS = (
    "FROM events TYPE BY type PATTERN SEQ(A+ a, B b) AND C c WHERE [g] AND abs(b.v - a.v) < 40 GROUP BY g "
    "WITHIN 10 SECONDS SLIDE 5 SECONDS RETURN COUNT(*), SUM(c.v)"
)


@pytest.mark.slow
def test_pairs_of_and_live_and_after_a_restart(tmp_path: Path) -> None:
    """Before: an AssertionError from db.watch."""
    rows, found = drawn(160), []
    for begin in range(0, len(rows), 40):
        with database(tmp_path) as db:
            alerts = db.watch(PAIRS, name="pairs")
            db.push("events", batch(rows[begin : begin + 40]))
            found += alerts.fetch().to_pylist()
            if begin + 40 == len(rows):
                end(db)
                found += alerts.fetch().to_pylist()
    assert len(found) > 10
    assert found == answered(rows, PAIRS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "SELECT m.e, m.n, h.window_end AS at, h.n AS before FROM windows MATCH_RECOGNIZE (PARTITION BY g "
        "ORDER BY window_end MEASURES Y.window_end AS e, Y.n AS n PATTERN (X Y) DEFINE Y AS n > 2 * X.n) AS m "
        "JOIN HISTORY OF windows FROM m.e - INTERVAL '60' SECOND TO m.e AS h ON h.g = m.g AND h.n > m.n",
        "FROM windows PATTERN SEQ(windows a, windows b) "
        "WHERE skip_till_next_match(a, b) { [g] and b.n > a.n } WITHIN 30 SECONDS RETURN a.n, b.n AS m",
        "FROM windows PATTERN windows+ w WHERE [g] AND w[i].n > w[i-1].n GROUP BY g WITHIN 60 SECONDS "
        "RETURN COUNT(*), MAX(w.n)",
    ],
    ids=["history", "pattern", "trends"],
)
def test_a_stream_of_windows_is_one_like_any_other(text: str) -> None:
    """Joined with its history, matched, and counted again."""
    inner = statement("A+ B", 10, 5, partition="g", group="g", measures="COUNT(MATCHES)::BIGINT AS n")
    rows = drawn(200)
    with database() as db:
        db.watch(inner, into="windows")
        alerts, found = db.watch(text), []
        for begin in range(0, len(rows), 23):
            db.push("events", batch(rows[begin : begin + 23]))
            found += alerts.fetch().to_pylist()
        end(db)
        found += alerts.fetch().to_pylist()
        wanted = db.sql(text).arrow().to_pylist()
        assert len(wanted) > 2

        def key(row: dict[str, Any]) -> str:
            return str(sorted(row.items()))

        assert sorted(found, key=key) == sorted(wanted, key=key)

"""ALERT ONCE: which rows come through, however their events came; the list; errors."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybrid
from hybrid.database.database import Database
from hybrid.rows import alert_once as suppress
from hybrid.rows.alert_once import Suppressor
from hybrid.rows.answer import rows_alone
from hybrid.rows.outer import Outer
from matching.by_reference import ReferenceMatcher
from query.plan.lag import in_order_of_last_events
from query.plan.plan import AlertOnce, QueryPlan
from query.reference import alerts_once
from tests.events import batch_of
from tests.properties.comparing import fewer

COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "BIGINT"}
BEGIN = datetime(2024, 3, 1)


def pattern(clauses: str, measures: str = "A.v AS a, LAST(ts) AS t") -> str:
    return f"e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES {measures} {clauses}) AS m"


DOWN = pattern("PATTERN (A B) DEFINE B AS v < A.v")
FALL = pattern("PATTERN (A B+) WITHIN INTERVAL '5' SECOND DEFINE B AS v < PREV(v)")
ANY = pattern("PATTERN (A B) WITHIN 4 SECONDS SELECTION SKIP TILL ANY MATCH DEFINE B AS v > A.v")
ALL = pattern("ALL ROWS PER MATCH PATTERN (A B+) WITHIN 4 SECONDS DEFINE B AS v < PREV(v)", "A.v AS a")
LATE = pattern("TIMEOUT ROWS PATTERN (A B C) WITHIN 3 SECONDS DEFINE B AS v < A.v, C AS v < B.v", "A.v AS a")
QUERIES = [
    f"SELECT k, a FROM {DOWN} ALERT ONCE PER k WITHIN INTERVAL '3' SECOND",
    f"SELECT a, t FROM {DOWN} ALERT ONCE WITHIN 4 SECONDS",
    f"SELECT k, a, t FROM {DOWN} WHERE a > 1 ALERT ONCE PER m.a WITHIN 10 SECONDS;",
    f"SELECT * FROM {FALL} ALERT ONCE PER k WITHIN 6 SECONDS",
    f"SELECT k AS key, a, t FROM {FALL} ALERT ONCE PER a, key WITHIN 6 SECONDS",
    f"SELECT * FROM {ANY} ALERT ONCE PER a WITHIN 2 SECONDS",
    f"SELECT * FROM {ANY} ALERT ONCE WITHIN 2 SECONDS",
    f"SELECT k, ts, a, v FROM {ALL} ALERT ONCE PER k WITHIN 5 SECONDS",
    f"SELECT k, a, labels FROM {LATE} ALERT ONCE PER k WITHIN 4 SECONDS",
    f"SELECT m.k, m.a, s.n FROM {DOWN} JOIN small s ON s.n <= m.a ALERT ONCE PER k, n WITHIN 4 SECONDS",
]
#: What the history of a match holds is not there yet when it comes out: matches wait, each for another time.
WAITING = f"""SELECT m.k, m.a, h.v FROM {DOWN} JOIN HISTORY OF e FROM m.t TO m.t + INTERVAL 1 SECOND * m.a AS h
    ON h.k = m.k ALERT ONCE PER k WITHIN 3 SECONDS"""
SMALL = pa.table({"n": [1, 2, 3]})

Event = tuple[int, str, int]
EVENTS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from("pq"), st.integers(0, 4)), min_size=1, max_size=25
).map(lambda steps: [(sum(d for d, _, _ in steps[: i + 1]), k, v) for i, (_, k, v) in enumerate(steps)])


def table(events: list[Event]) -> pa.Table:
    return pa.table({
        "ts": pa.array([BEGIN + timedelta(seconds=t) for t, _, _ in events], pa.timestamp("us")),
        "k": pa.array([k for _, k, _ in events], pa.string()),
        "v": pa.array([v for _, _, v in events], pa.int64()),
    })


def opened() -> Database:
    db = hybrid.connect()
    db.create_stream("e", COLUMNS, time="ts", key="k")
    return db


def rows_of(found: pa.Table) -> list[str]:
    return sorted(map(repr, found.to_pylist()))


def watched(text: str, events: list[Event], data: st.DataObject | None) -> tuple[Any, pa.Table, pa.Table]:
    """The alerts of a live query whose events come, and whose rows are fetched, bit by bit (data None: at once), what
    it has fetched, and what it has suppressed."""
    db = opened()
    alerts = db.watch(text, tables={"small": SMALL})
    found, at = [], 0
    while at < len(events):
        size = len(events) if data is None else data.draw(st.integers(1, 5))
        db.push("e", table(events[at : at + size]))
        at += size
        if data is not None and data.draw(st.booleans()):
            found.append(alerts.take())
    db.advance("e", None)
    found.append(alerts.take())
    assert alerts.suppressor is not None
    assert not alerts.suppressor._newest or alerts.suppressor.once.lag_us is None
    return alerts, pa.concat_tables(found), alerts.suppressed()


@cache
def planned(text: str) -> tuple[QueryPlan, Outer]:
    plan = opened().watch(text, tables={"small": SMALL}).plan
    return plan, Outer(plan, {"small": SMALL})


def by_reference(text: str, events: list[Event]) -> tuple[list[str], int]:
    """The rows that come through, as the definition says, and how many are left out. Of a query without history."""
    whole, outer = planned(text)
    plan, once = whole.factors[0].plan, whole.alert
    assert once is not None
    begin_us = int(BEGIN.timestamp()) * 1_000_000
    rows = [{"ts": begin_us + t * 1_000_000, "k": k, "v": v} for t, k, v in events]
    reference = ReferenceMatcher(plan, lenient=True)
    reference.keep(batch_of(plan.schema, rows))
    found = reference.advance(None)
    order = list(range(len(found)))
    if in_order_of_last_events(plan):
        order.sort(key=lambda i: int(found.event_offset[found.event_bounds[i + 1] - 1]))
    out: list[dict[str, Any]] = []
    judged: list[tuple[object, int, object]] = []
    for match in order:
        mine = found.rows.filter(pa.array(found.row_match == match))
        for row in outer.run([rows_alone(mine)]).to_pylist():
            out.append(row)
            judged.append((tuple(row[c] for c in once.columns), int(found.last_us[match]), match))
    passes = [p for p, _ in alerts_once(judged, once.interval_us)]
    return sorted(repr(row) for row, p in zip(out, passes) if p), passes.count(False)


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
@pytest.mark.parametrize("text", QUERIES)
@fewer(10)
@given(events=EVENTS, data=st.data())
def test_what_comes_through_is_what_the_definition_says_however_events_come(
    text: str, events: list[Event], data: st.DataObject
) -> None:
    due, left_out = by_reference(text, events)
    alerts, found, suppressed = watched(text, events, data)
    assert rows_of(found) == due
    assert suppressed.num_rows == alerts.stats()["suppressed"] == left_out
    db = opened()
    db.push("e", table(events))
    tested = db.backtest(text, 0, tables={"small": SMALL})
    assert rows_of(tested.arrow()) == due
    assert rows_of(tested.suppressed()) == rows_of(suppressed)


@pytest.mark.slow
@fewer(10)
@given(events=EVENTS, data=st.data())
def test_rows_that_wait_for_history_come_through_in_the_order_of_their_matches(
    events: list[Event], data: st.DataObject
) -> None:
    _, found, suppressed = watched(WAITING, events, data)
    _, at_once, suppressed_at_once = watched(WAITING, events, None)
    assert rows_of(found) == rows_of(at_once)
    assert rows_of(suppressed) == rows_of(suppressed_at_once)
    db = opened()
    db.push("e", table(events))
    assert rows_of(db.backtest(WAITING, 0).arrow()) == rows_of(at_once)


SCHEMA = pa.schema({"k": pa.string(), "x": pa.float64(), "n": pa.int64()})


@pytest.mark.slow
@fewer(4)
@given(data=st.data())
def test_cuts_snapshots_and_forgetting_change_nothing(data: st.DataObject) -> None:
    once = AlertOnce(("x", "k"), data.draw(st.integers(1, 8)), 0)
    values = st.tuples(st.sampled_from([0.0, -0.0, float("nan"), None, 1.5]), st.sampled_from(["a", None, "null"]))
    rows = data.draw(st.lists(st.tuples(values, st.integers(0, 20), st.integers(0, 9)), max_size=30))
    # one time for each match
    times = {match: time for _, time, match in rows}
    judged = [((repr(x + 0.0 if x is not None else x), k), times[m], str(m)) for (x, k), _, m in rows]
    due = alerts_once(judged, once.interval_us)
    suppressor, at, found = Suppressor(once, SCHEMA), 0, list[bool]()
    while at < len(rows):
        size = data.draw(st.integers(0, 6))
        part = rows[at : at + size]
        of_part = pa.table(
            {"k": [k for (_, k), _, _ in part], "x": [x for (x, _), _, _ in part], "n": range(at, at + len(part))},
            SCHEMA,
        )
        mine = judged[at : at + size]
        found += suppressor.take(of_part, np.array([t for _, t, _ in mine], np.int64), [m for *_, m in mine]).tolist()
        at += size
        if data.draw(st.booleans()):
            suppressor.forget(min((t for _, t, _ in judged[at:]), default=100))
        if data.draw(st.booleans()):
            state, suppressor = suppressor.snapshot(), Suppressor(once, SCHEMA)
            suppressor.restore(state)
    assert found == [passes for passes, _ in due]
    listed = suppressor.suppressed().to_pylist()
    assert [(row["n"], row["alert_match_id"]) for row in listed] == [
        (i, near) for i, (passes, near) in enumerate(due) if not passes
    ]
    assert [row["last_event_time"] for row in listed] == [
        datetime(1970, 1, 1) + timedelta(microseconds=judged[row["n"]][1]) for row in listed
    ]
    suppressor.forget(10**9)
    assert not suppressor._newest


def test_the_list_is_bounded_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suppress, "LISTED_ROWS", 5)
    suppressor = Suppressor(AlertOnce((), 100, 0), pa.schema({"n": pa.int64()}))
    for at in range(0, 12, 3):
        suppressor.take(pa.table({"n": range(at, at + 3)}), np.full(3, at), [str(at)] * 3)
    assert [r["n"] for r in suppressor.suppressed().to_pylist()] == [7, 8, 9, 10, 11]
    assert (suppressor.count, suppressor.unlisted_count) == (9, 4)
    suppressor.take(pa.table({"n": range(20, 40)}), np.full(20, 20), ["z"] * 20)
    assert [r["n"] for r in suppressor.suppressed().to_pylist()] == [35, 36, 37, 38, 39]
    assert (suppressor.count, suppressor.unlisted_count) == (29, 24)
    again = Suppressor(AlertOnce((), 100, 0), pa.schema({"n": pa.int64()}))
    again.restore(suppressor.snapshot())
    assert again.suppressed().equals(suppressor.suppressed())
    assert (again.count, again.unlisted_count) == (29, 24)


def test_a_state_of_something_else_is_refused() -> None:
    rows = pa.schema({"k": pa.string()})
    state = Suppressor(AlertOnce(("k",), 5, 0), rows).snapshot()
    Suppressor(AlertOnce(("k",), 5, None), rows).restore(state)
    for once, schema in ((AlertOnce((), 5, 0), rows), (AlertOnce(("k",), 6, 0), rows),
                         (AlertOnce(("k",), 5, 0), pa.schema({"k": pa.int64()}))):  # fmt: skip
        with pytest.raises(ValueError, match="the state of another ALERT ONCE"):
            Suppressor(once, schema).restore(state)


def test_evidence_and_ids_are_those_of_the_alerts() -> None:
    db = opened()
    alerts = db.watch(QUERIES[0], evidence=True)
    db.push("e", table([(0, "p", 5), (1, "p", 4), (2, "p", 5), (3, "p", 4), (5, "p", 5), (6, "p", 4)]))
    found = alerts.fetch()
    evidence = alerts.evidence().to_pylist()
    assert [(row["row"], row["variable"], row["offset"]) for row in evidence] == [
        (0, "A", 0), (0, "B", 1), (1, "A", 4), (1, "B", 5),
    ]  # fmt: skip
    assert [row["match_id"] for row in evidence[::2]] == found.column("match_id").to_pylist()
    assert alerts.suppressed().column("alert_match_id").to_pylist() == found.column("match_id").to_pylist()[:1]
    assert alerts.stats()["suppressed"] == 1


def test_what_has_no_alert_once_says_so() -> None:
    db = opened()
    alerts = db.watch(f"SELECT * FROM {DOWN}")
    with pytest.raises(hybrid.DataError, match="the query has no ALERT ONCE"):
        alerts.suppressed()
    with pytest.raises(hybrid.DataError, match="the statement has no ALERT ONCE"):
        db.sql(f"SELECT * FROM {DOWN}").suppressed()


def test_alerts_that_go_into_a_stream_are_refused() -> None:
    with pytest.raises(hybrid.QueryError, match="ALERT ONCE on rows that go into other is not supported yet"):
        opened().watch(QUERIES[0], into="other")


def test_rows_of_no_one_match_are_refused_before_any_event() -> None:
    text = f"SELECT * FROM (SELECT k, a FROM {DOWN}) AS x ALERT ONCE PER k WITHIN 1 HOUR"
    with pytest.raises(hybrid.QueryError, match="ALERT ONCE needs output rows that each come from one match"):
        opened().watch(text)


def test_the_example_of_the_documentation() -> None:
    ends = [("p", 1), ("q", 3), ("p", 4), ("p", 6), ("p", 8), ("q", 8), ("p", 12)]
    judged = alerts_once([(k, t, n) for n, (k, t) in enumerate(ends)], 5)
    due = [("p", 1), ("q", 3), ("p", 6), ("q", 8), ("p", 12)]
    assert [end for end, (passes, _) in zip(ends, judged) if passes] == due
    assert [stood for passes, stood in judged if not passes] == [0, 3]
    events = [e for k, t in ends for e in ((10 * t - 5, k, 2), (10 * t, k, 1))]
    text = f"SELECT k, t FROM {DOWN} ALERT ONCE PER k WITHIN INTERVAL '50' SECOND"
    alerts, found, _ = watched(text, sorted(events), None)
    assert [(r["k"], (r["t"] - BEGIN).seconds // 10) for r in found.to_pylist()] == due
    assert alerts.stats()["suppressed"] == 2

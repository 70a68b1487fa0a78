"""Load shedding: what comes out is exactly the rows of the keys that are kept, and what is missing is said."""

from __future__ import annotations

import warnings
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hybrid
from hybrid.database.database import Database
from hybrid.watch.shedding import CALM, Pressure, Shed
from matching.shedding import BUCKETS, Shedder
from query.errors import DataError, HybridWarning, QueryError
from query.plan.expression import Column
from tests.hybrid.ends import opened_again

RISES = """SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts
    MEASURES MATCH_NUMBER() AS n, FIRST(price) AS low, LAST(price) AS high
    PATTERN (A B+ C) DEFINE B AS price > PREV(price), C AS price < PREV(price)) AS m"""
SOON = """SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY symbol ORDER BY ts MEASURES A.price AS low, B.price AS high
    PATTERN (A B NOT C) WITHIN INTERVAL '20' SECOND SELECTION SKIP TILL NEXT MATCH
    DEFINE A AS price < 30, B AS price > 80, C AS price < 10) AS m"""
BEGIN = datetime(2024, 3, 1, 9, 30)
SHED = Shed(lag="10s", after="5s", least=0.25)
Rows = Counter[tuple[tuple[str, Any], ...]]


def ticks(seed: int, events: int, keys: int, skew: float = 0.0) -> pa.Table:
    """One event a second of keys of which, with skew, some send far more than others."""
    random = np.random.default_rng(seed)
    weight = 1.0 / np.arange(1, keys + 1) ** skew
    symbol = random.choice(keys, events, p=weight / weight.sum())
    times = [BEGIN + timedelta(seconds=i) for i in range(events)]
    return pa.table({
        "ts": pa.array(times, pa.timestamp("us")), "symbol": [f"S{s}" for s in symbol],
        "price": random.integers(0, 100, events).astype(float),
    })  # fmt: skip


def database(path: Path | None = None) -> Database:
    db = opened_again(path, maintenance=False, ticking=False)
    db.create_stream("ticks", {"ts": "TIMESTAMP", "symbol": "VARCHAR", "price": "DOUBLE"}, time="ts", key="symbol")
    return db


def wall_us(event: int, late_s: float) -> int:
    """The clock at which the event of that number is so late."""
    return int(((BEGIN - datetime(1970, 1, 1)).total_seconds() + event + late_s) * 1e6)


def rows_of(table: pa.Table) -> Rows:
    return Counter(tuple(row.items()) for row in table.to_pylist())


def feed(db: Database, events: pa.Table, at: int, size: int, late_s: float, now_s: float) -> float:
    """Pushes events [at, at + size), and looks at the clock behind them; six seconds later than before."""
    db.push("ticks", events.slice(at, size), offset=at)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        db.tick(now_s, wall_us(min(at + size, events.num_rows) - 1, late_s))
    return now_s + 6.0


@pytest.mark.parametrize("text", [RISES, SOON])
@pytest.mark.parametrize("seed", range(3))
def test_rows_are_those_of_the_keys_that_are_kept(text: str, seed: int) -> None:
    events = ticks(seed, 6_000, 60)
    with database() as db:
        alerts, whole = db.watch(text, shed=SHED), db.watch(text)
        now_s, size = 0.0, 500
        before: Rows = Counter()
        all_rows: Rows = Counter()
        for at in range(0, 3_000, size):
            now_s = feed(db, events, at, size, 0.0, now_s)
        before, all_before = rows_of(alerts.fetch()), rows_of(whole.fetch())
        assert before == all_before
        for at in range(3_000, 4_500, size):  # late: half of the keys go, and half of these again
            now_s = feed(db, events, at, size, 60.0, now_s)
        assert alerts.stats()["kept_share"] == 0.25
        alerts.fetch()
        whole.fetch()
        for at in range(4_500, 6_000, size):
            now_s = feed(db, events, at, size, 60.0, now_s)
        db.advance("ticks", None)
        found, all_rows = rows_of(alerts.fetch()), rows_of(whole.fetch())
        kept = kept_keys(db, alerts, events)
        assert 0 < len(kept) < 30
        assert found
        assert found == Counter({r: n for r, n in all_rows.items() if dict(r)["symbol"] in kept})


def kept_keys(db: Database, alerts: Any, events: pa.Table) -> set[str]:
    """By the hash itself, with the share that is kept now."""
    shedder = Shedder([Column("symbol", "VARCHAR")])
    names = sorted(set(events["symbol"].to_pylist()))
    bucket = shedder.hashes([pa.array(names)], len(names)) & (BUCKETS - 1)
    return {n for n, b in zip(names, bucket.tolist()) if b < alerts.stats()["kept_share"] * BUCKETS}


@pytest.mark.slow
@pytest.mark.parametrize("text", [RISES, SOON])
def test_when_the_load_is_gone_all_keys_go_on_as_if_nothing_had_been_left_out(text: str) -> None:
    events = ticks(7, 8_000, 60)
    with database() as db:
        alerts, whole = db.watch(text, shed=SHED), db.watch(text)
        now_s, size = 0.0, 250
        shares = []
        for at in range(0, 8_000, size):
            late_s = 60.0 if 2_000 <= at < 4_000 else 0.0
            now_s = feed(db, events, at, size, late_s, now_s)
            shares.append(alerts.stats()["kept_share"])
            if at == 6_000 - size:
                some, many = rows_of(alerts.fetch()), rows_of(whole.fetch())
                assert some < many
        assert shares[0] == 1.0
        assert min(shares) == 0.25
        assert shares[-1] == 1.0
        db.advance("ticks", None)
        assert rows_of(alerts.fetch()) == rows_of(whole.fetch())
        decided = [d["kept_share"] for d in alerts.stats()["shed_decisions"]]
        assert decided == [0.5, 0.25, 1.0]


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize(("seed", "skew"), [(s, k) for s in range(4) for k in (0.0, 0.8)])
def test_the_recall_is_estimated_within_a_tenth(seed: int, skew: float) -> None:
    events = ticks(seed, 30_000, 300, skew)
    with database() as db:
        alerts, whole = db.watch(RISES, shed=SHED), db.watch(RISES)
        now_s, size = 0.0, 1_000
        for at in range(0, 30_000, size):
            now_s = feed(db, events, at, size, 60.0 if at >= 5_000 + 2_000 * seed else 0.0, now_s)
        db.advance("ticks", None)
        stats = alerts.stats()
        recall = alerts.fetch().num_rows / whole.fetch().num_rows
        assert recall < 0.75
        assert abs(stats["estimated_recall"] - recall) < 0.1


def test_the_counts_add_up() -> None:
    events = ticks(5, 4_000, 80)
    with database() as db:
        alerts = db.watch(RISES, shed=SHED)
        now_s = 0.0
        for at in range(0, 4_000, 500):
            now_s = feed(db, events, at, 500, 60.0, now_s)
        stats = alerts.stats()
        assert stats["events_matched"] + stats["events_shed"] == 4_000
        assert stats["events_shed"] > 0
        out = set(events["symbol"].to_pylist()) - kept_keys(db, alerts, events)
        assert stats["keys_shed"] == len(out)
        all_of_them = db.sql("SELECT n FROM ticks MATCH_RECOGNIZE (MEASURES count(*) AS n PATTERN (A+)) AS m").arrow()
        assert all_of_them["n"].to_pylist() == [4_000]  # the archive has all
        assert "keys are left out, by halves down to 0.25 of them" in alerts.explain("plan")


def test_it_is_off_unless_it_is_asked_for() -> None:
    events = ticks(5, 1_000, 20)
    with database() as db:
        alerts = db.watch(RISES)
        now_s = 0.0
        for at in range(0, 1_000, 250):
            now_s = feed(db, events, at, 250, 600.0, now_s)
        assert "kept_share" not in alerts.stats()
        assert "shedding" not in alerts.explain("plan")


def test_silence_is_no_overload() -> None:
    events = ticks(5, 100, 20)
    with database() as db:
        alerts = db.watch(RISES, shed=SHED)
        feed(db, events, 0, 100, 0.0, 0.0)
        for now_s in range(6, 100, 6):
            db.tick(float(now_s), wall_us(100, 1000.0))
        assert alerts.stats()["kept_share"] == 1.0


@pytest.mark.slow
def test_a_checkpoint_keeps_the_decision_and_the_counts(tmp_path: Path) -> None:
    events = ticks(9, 6_000, 60)
    with database() as db:
        whole = db.watch(RISES)
        db.push("ticks", events, offset=0)
        db.advance("ticks", None)
        all_rows = rows_of(whole.fetch())
    db = database(tmp_path / "db")
    alerts = db.watch(RISES, name="rises", shed=SHED)
    now_s = 0.0
    for at in range(0, 3_000, 500):
        now_s = feed(db, events, at, 500, 60.0, now_s)
    before = alerts.stats()
    found = rows_of(alerts.fetch())
    db.close()
    with database(tmp_path / "db") as db:
        alerts = db.watch(RISES, name="rises", shed=SHED)
        told = ("kept_share", "events_matched", "events_shed", "keys_shed", "estimated_recall", "shed_decisions")
        assert {k: alerts.stats()[k] for k in told} == {k: before[k] for k in told}
        db.push("ticks", events.slice(3_000), offset=3_000)
        db.advance("ticks", None)
        rest = rows_of(alerts.fetch())
        kept = kept_keys(db, alerts, events)
        assert rest
        assert found + rest <= all_rows
        assert {dict(r)["symbol"] for r in rest} <= kept


@pytest.mark.slow
def test_a_query_that_is_made_anew_from_its_checkpoint_has_all_keys_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = ticks(9, 6_000, 60)
    db = database(tmp_path / "db")
    alerts = db.watch(RISES, name="rises", shed=SHED)
    now_s = 0.0
    for at in range(0, 3_000, 500):
        now_s = feed(db, events, at, 500, 60.0, now_s)
    before = alerts.stats()
    found = rows_of(alerts.fetch())
    db.close()
    monkeypatch.setattr("matching.matcher.STATE_VERSION", 99)
    with pytest.warns(HybridWarning, match="the checkpoint was written by another release: rises replayed"):
        db = database(tmp_path / "db")
    alerts = db.watching()["rises"]
    told = ("events_matched", "events_shed", "keys_shed")
    assert {k: alerts.stats()[k] for k in told} == {k: before[k] for k in told}
    assert alerts.stats()["shed_decisions"][-1]["reason"] == "a new version"
    db.push("ticks", events.slice(3_000), offset=3_000)
    db.advance("ticks", None)
    with database() as whole_db:
        whole = whole_db.watch(RISES)
        whole_db.push("ticks", events.slice(0, 3_000), offset=0)
        early = rows_of(whole.fetch())
        whole_db.push("ticks", events.slice(3_000), offset=3_000)
        whole_db.advance("ticks", None)
        assert rows_of(alerts.fetch()) == rows_of(whole.fetch())
    assert found <= early
    db.close()


def test_a_running_query_may_begin_and_cease_to_shed() -> None:
    events = ticks(3, 4_000, 60)
    with database() as db:
        alerts, whole = db.watch(RISES), db.watch(RISES)
        feed(db, events, 0, 1_000, 0.0, 0.0)
        db.shed(alerts, SHED)
        now_s = 10.0
        for at in range(1_000, 3_000, 500):
            now_s = feed(db, events, at, 500, 60.0, now_s)
        assert alerts.stats()["events_shed"] > 0
        some, many = rows_of(alerts.fetch()), rows_of(whole.fetch())
        assert some < many
        db.shed(alerts, None)
        db.push("ticks", events.slice(3_000), offset=3_000)
        db.advance("ticks", None)
        assert rows_of(alerts.fetch()) == rows_of(whole.fetch())


def test_events_that_are_no_longer_kept_leave_the_keys_out() -> None:
    events = ticks(3, 3_000, 60)
    with Database(None, maintenance=False, ticking=False) as db:
        db.create_stream("ticks", {"ts": "TIMESTAMP", "symbol": "VARCHAR", "price": "DOUBLE"}, time="ts", key="symbol",
                         retention="500s")  # fmt: skip
        alerts = db.watch(RISES, shed=SHED)
        now_s = 0.0
        for at in range(0, 2_000, 250):
            now_s = feed(db, events, at, 250, 60.0, now_s)
        db.tick(now_s, wall_us(2_000, 0.0))
        with pytest.warns(HybridWarning, match="cannot include all keys again"):
            db.tick(now_s + 5.0 * CALM, wall_us(2_000, 0.0))
        assert alerts.stats()["kept_share"] == 0.25


def test_pressure_halves_the_share_while_it_lasts_and_lets_go_when_it_is_gone() -> None:
    pressure = Pressure(Shed("10s", "5s", 0.2))
    assert [pressure.look(t, 11_000_000) for t in (0.0, 4.0, 5.0)] == [1.0, 1.0, 0.5]
    pressure.share = 0.5
    assert pressure.look(7.0, 9_000_000) == 0.5  # not late: it begins again
    assert [pressure.look(t, 11_000_000) for t in (8.0, 13.0)] == [0.5, 0.25]
    pressure.share = 0.25
    assert pressure.look(18.0, 11_000_000) == 0.2
    pressure.share = 0.2
    assert pressure.look(40.0, 11_000_000) == 0.2
    assert [pressure.look(t, None) for t in (41.0, 60.0, 61.0)] == [0.2, 0.2, 1.0]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (RISES.replace("PARTITION BY symbol ", ""), "without PARTITION BY"),
        (SOON.replace("SKIP TILL NEXT MATCH", "STRICT").replace("NOT C", "C"), "under SELECTION STRICT"),
        (SOON + " ALERT ONCE PER symbol WITHIN INTERVAL '1' HOUR", "with ALERT ONCE"),
    ],
)
def test_queries_whose_rows_would_not_be_exact_are_refused(text: str, what: str) -> None:
    with database() as db, pytest.raises(QueryError, match=what):
        db.watch(text, shed=SHED)


def test_a_share_that_is_none_is_refused() -> None:
    with pytest.raises(DataError, match="least is 0"):
        hybrid.Shed(least=0)
    with pytest.raises(DataError, match="not a duration"):
        hybrid.Shed(lag="soon")


def test_windows_are_not_shed() -> None:
    # Before: the query failed with an IndexError, those beside it too, and gave windows with a part of their trends.
    db = hybrid.connect()
    db.create_stream("t", {"ts": "TIMESTAMP", "k": "BIGINT", "s": "VARCHAR"}, time="ts", key="k")
    text = "RETURN k, COUNT(*) AS n FROM t TYPE BY s PATTERN SEQ(a A, b B) WHERE [k] GROUP BY k WITHIN 10 SECONDS"
    with pytest.raises(hybrid.QueryError, match="shedding of rows of windows is not supported"):
        db.watch(text, shed=hybrid.Shed(lag="1s", after="50ms", least=0.5))

"""Rows joined with history as the events of another pattern: what they wait for, what has no bound, and restarts."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import hybrid
from hybrid.database.database import Database
from query.errors import QueryError
from tests.hybrid.ends import opened_again
from tests.hybrid.inside import flow_of
from tests.properties.comparing import is_nightly

START = datetime(2024, 3, 1)
COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "s": "VARCHAR", "i": "INTEGER"}
PL = """ticks MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.ts AS f, B.ts AS t, B.i AS n
    PATTERN (A B) DEFINE A AS s = 'a', B AS s = 'b') AS pl"""
RANGE = "FROM pl.t - INTERVAL 5 SECOND TO pl.t + INTERVAL 2 SECOND"
PA = "MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES X.i AS m, X.ts AS u PATTERN (X) DEFINE X AS s = 'x') AS pa"
HIT = f"SELECT pl.k, pl.t AS t, pl.n, pa.m FROM {PL} JOIN HISTORY OF calls {RANGE} {PA} ON pa.k = pl.k"
OVER = """SELECT * FROM {} MATCH_RECOGNIZE (PARTITION BY k ORDER BY t MEASURES H.n AS n, H.m AS m, I.n AS n2, I.m AS m2
    AFTER MATCH SKIP TO NEXT ROW PATTERN (H I) DEFINE I AS I.m >= H.m)"""


def at(second: float) -> datetime:
    return START + timedelta(seconds=second)


def events(text: str, first: int = 0) -> list[dict[str, Any]]:
    return [{"ts": at(i), "k": "p", "s": s, "i": i} for i, s in enumerate(text, first)]


def declare(db: Database) -> None:
    for name in ("ticks", "calls"):
        db.create_stream(name, COLUMNS, time="ts", key="k")


@pytest.fixture
def db() -> Iterator[Database]:
    with hybrid.connect() as database:
        declare(database)
        yield database


def hits(db: Database) -> tuple[str, int]:
    entry = db.streams()["hits"]
    return str(entry["watermark"])[-8:], entry["events"]


@pytest.mark.slow
def test_rows_wait_for_their_history_and_hold_later_ones_back(db: Database) -> None:
    # Before: HQ500.
    db.watch(HIT, into="hits")
    over, chain = db.watch(OVER.format("hits")), db.watch(OVER.format(f"({HIT})"))
    db.push("ticks", events("ab..."))
    assert hits(db) == ("00:00:01", 0)  # the row of 1 waits for the calls up to 3
    db.push("calls", events("x."))
    assert hits(db) == ("00:00:01", 0)
    db.push("calls", events(".", 3))
    assert hits(db) == ("00:00:04", 1)  # nothing waits: as far as the ticks
    db.push("ticks", events("ab.", 5))
    db.push("calls", events("x..", 5))
    assert hits(db) == ("00:00:06", 1)
    db.advance("ticks", None)
    assert hits(db) == ("00:00:06", 1)
    assert not db.streams()["hits"]["ended"]
    assert chain.fetch().num_rows == over.fetch().num_rows == 0
    assert chain.stats()["held_back"] == 1  # the row of 6, which waits for its history
    db.advance("calls", None)
    assert (hits(db)[1], db.streams()["hits"]["ended"], db.streams()["hits"]["late"]) == (2, True, 0)
    wanted = [{"k": "p", "n": 1, "m": 0, "n2": 6, "m2": 5}]
    assert chain.fetch().to_pylist() == over.fetch().to_pylist() == wanted
    assert db.sql(OVER.format(f"({HIT})")).arrow().to_pylist() == wanted
    assert db.backtest(OVER.format(f"({HIT})"), START).arrow().to_pylist() == wanted
    assert {alerts.stats()["state"] for alerts in (over, chain)} == {"ended"}


@pytest.mark.parametrize("after", [-3, 0, 2])
def test_the_lateness_of_the_stream_has_the_range_in_it(db: Database, after: int) -> None:
    db.watch(HIT.replace("TO pl.t + INTERVAL 2 SECOND", f"TO pl.t + INTERVAL '{after}' SECOND"), into="hits")
    assert flow_of(db).streams["hits"].schema.lateness_us == max(after * 1_000_000, 1)


KINDS = ("JOIN", "LEFT JOIN", "SEMI JOIN", "ANTI JOIN", "NEAREST JOIN", "LEFT NEAREST JOIN")


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("history", ["calls", "ticks"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_join(db: Database, kind: str, history: str) -> None:
    hit, over = HIT.replace("JOIN HISTORY OF calls", f"{kind} HISTORY OF {history}"), OVER
    if kind.startswith(("SEMI", "ANTI")):
        hit, over = hit.replace(", pa.m", ""), over.replace(".m ", ".n ").replace("H.m)", "H.n)")
        hit = hit.replace("X AS s = 'x'", "X AS s = 'x' AND i % 3 < 2").replace("- INTERVAL 5", "- INTERVAL 4")
    text = f"WITH hit AS ({hit}) {over.format('hit')}"
    db.watch(hit, into="hits")
    found = [db.watch(text), db.watch(over.format("hits"))]
    for i, row in enumerate(events("abxxab.xabxab.ab.xab")):
        db.push("ticks", [row])
        if i % 3 == 2:
            db.push("calls", events("abxxab.xabxab.ab.xab"[i - 2 : i + 1], i - 2))
    for name in ("ticks", "calls"):
        db.advance(name, None)
    wanted = db.sql(text).arrow().to_pylist()
    assert wanted
    assert [alerts.fetch().to_pylist() for alerts in found] == [wanted, wanted]
    assert db.backtest(text, START).arrow().to_pylist() == wanted


@pytest.mark.slow
def test_of_a_named_pattern(db: Database) -> None:
    db.create_pattern("hit", HIT)
    over = OVER.format("hit").replace("ORDER BY t ", "ORDER BY t1 ")
    chain = db.watch(over)
    db.watch("SELECT * FROM hit", into="hits", time="t1")
    kept = db.watch(over.replace("FROM hit", "FROM hits"))
    timed = HIT.replace("AS t,", "AS ts,", 1)
    merged = db.watch(f"""WITH h AS ({timed}) SELECT * FROM MERGE(h, calls) MATCH_RECOGNIZE (
        ORDER BY ts MEASURES H.n AS n, C.i AS i
        PATTERN (H C) DEFINE H AS stream = 'h', C AS stream = 'calls')""")
    db.push("ticks", events("ab...ab."))
    db.push("calls", events("x....x.x"))
    for name in ("ticks", "calls"):
        db.advance(name, None)
    wanted = db.sql(over).arrow().to_pylist()
    assert len(wanted) == 2
    assert chain.fetch().to_pylist() == kept.fetch().to_pylist() == wanted
    assert sorted(row["i"] for row in merged.fetch().to_pylist()) == [2, 7]


@pytest.mark.slow
def test_rows_of_windows_joined_with_history(db: Database) -> None:
    """A row waits from the end of its window on."""
    text = f"""SELECT w.window_end AS t, pa.k, w.n::BIGINT AS n, pa.m
        FROM ticks MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES COUNT(MATCHES) AS n
        ONE ROW PER WINDOW PATTERN (A+) WITHIN INTERVAL 4 SECOND DEFINE A AS s = 'a') AS w
        JOIN HISTORY OF calls FROM w.window_start TO w.window_end + INTERVAL 1 SECOND {PA} ON true"""
    db.watch(text, into="hits")
    over, chain = db.watch(OVER.format("hits")), db.watch(OVER.format(f"({text})"))
    db.push("ticks", events("aa.aaaa..a"))
    db.push("calls", events("xx.x"))
    assert hits(db) == ("00:00:04", 0)
    db.push("calls", events("x.x.x", 4))
    assert hits(db)[1] == 4
    for name in ("ticks", "calls"):
        db.advance(name, None)
    wanted = db.sql(OVER.format(f"({text})")).arrow().to_pylist()
    assert len(wanted) > 3
    assert chain.fetch().to_pylist() == over.fetch().to_pylist() == wanted


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bound", "known"),
    [
        ("pl.t", True), ("pl.f + INTERVAL '1' DAY", True), ("INTERVAL 2 SECOND + pl.t", True),
        ("pl.t + INTERVAL 2 SECOND - INTERVAL 1 SECOND", True), ("date_trunc('hour', pl.t)", True),
        ("greatest(pl.t, pl.f + INTERVAL 3 SECOND)", True), ("least(pl.t, pl.f)", True), ("pl.last", True),
        ("pl.soon", True), ("pl.due", False), ("pl.t + INTERVAL 1 MONTH", False),
        ("pl.t + pl.n * INTERVAL 1 DAY", False),
        ("TIMESTAMP '2024-03-02'", False), ("greatest(pl.t, TIMESTAMP '2024-03-02')", False), ("pl.after", False),
        ("least(pl.t, pl.due)", False),
    ],
)  # fmt: skip
def test_which_ranges_have_a_bound(db: Database, bound: str, known: bool) -> None:
    text = HIT.replace("pl.t + INTERVAL 2 SECOND", bound).replace(
        "B.i AS n", "B.i AS n, max(ts) AS last, greatest(A.ts, B.ts) + INTERVAL 1 SECOND AS soon, A.due AS due, "
        "NEXT(ts) AS after",
    ).replace("ticks MATCH", "dues MATCH")  # fmt: skip
    db.create_stream("dues", COLUMNS | {"due": "TIMESTAMP"}, time="ts", key="k")
    if bound == "pl.after":
        text = text.replace("PATTERN (A B)", "PATTERN (A B) WITHIN INTERVAL 9 SECOND")
    else:
        text = text.replace(", NEXT(ts) AS after", "")
    if known:
        db.watch(text, into="hits")
        db.watch(OVER.format(f"({text})"))
        return
    for watch in (lambda: db.watch(text, into="hits"), lambda: db.watch(OVER.format(f"({text})"))):
        with pytest.raises(QueryError, match="the range of pa may end any time after the last event of pl") as refused:
            watch()
        (fault,) = refused.value.diagnostics
        assert (fault.code, refused.value.text[fault.span.start : fault.span.end].strip()) == ("HQ220", bound)


@pytest.mark.slow
def test_what_has_no_answer(db: Database) -> None:
    early = HIT.replace("2 SECOND MATCH", "2 SECOND AS KNOWN MATCH")
    of_history = HIT.replace("pl.t AS t", "pa.u AS t")
    for watch in (lambda t: db.watch(t, into="hits"), lambda t: db.watch(OVER.format(f"({t})"))):
        with pytest.raises(QueryError, match="AS KNOWN depend on when events arrive") as refused:
            watch(early)
        (fault,) = refused.value.diagnostics
        assert (fault.code, refused.value.text[fault.span.start : fault.span.end]) == ("HQ300", "AS KNOWN")
        with pytest.raises(QueryError, match=r"HQ220.*t is a time of the history"):
            watch(of_history)
        with pytest.raises(QueryError, match=r"HQ220.*t is a time of the history"):
            watch(of_history.replace("pa.u AS t", "u AS t"))
    # Before: two columns of one name were taken for one.
    with pytest.raises(hybrid.DataError, match="the rows have two columns k"):
        db.watch(HIT.replace("pl.k, pl.t AS t, pl.n, pa.m", "*"), into="hits", time="t")
    with pytest.raises(hybrid.DataError, match="the query reads calls, directly or through other queries"):
        db.watch(HIT, into="calls")
    db.watch(HIT, into="hits")
    with pytest.raises(hybrid.DataError, match="rows of calls go into stream hits, and would come twice"):
        db.rewind("calls")
    assert db.sql(OVER.format(f"({early})")).arrow().num_rows == 0  # all is known there


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(120 if is_nightly() else 1))
def test_after_a_kill_rows_come_once(tmp_path: Path, seed: int) -> None:
    """Also those of several keys that the watermark completes: the stream has each once, and matches have their ids."""
    # Before: rows of keys came out in the order of the batches, and matches over them came twice, by two ids.
    rng = random.Random(seed)
    of_keys = """SELECT pl.k, pl.f AS t, pl.n{} FROM ticks MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES
        FIRST(ts) AS f, LAST(ts) AS t, LAST(i) AS n
        PATTERN (A B*) WITHIN INTERVAL 4 SECOND DEFINE B AS i > PREV(i)) AS pl"""
    hit = of_keys.format("") if seed % 2 else f"{of_keys.format(', pa.m')} JOIN HISTORY OF calls {RANGE} {PA} ON true"
    over = """SELECT * FROM hits MATCH_RECOGNIZE (ORDER BY t MEASURES H.k AS hk, I.k AS ik, H.n AS n, I.n AS n2
        AFTER MATCH SKIP TO NEXT ROW PATTERN (H I))"""
    rows = []
    second = 0
    for _ in range(24):
        second += rng.choice((0, 0, 1, 1, 2, 5))
        rows.append({"ts": at(second), "k": rng.choice("pqrs"), "s": rng.choice("xy"), "i": rng.randint(0, 3)})

    def begun(path: Path) -> tuple[Database, Any]:
        db = opened_again(path, maintenance=False, log="os")
        if not db.streams():
            declare(db)
        db.watch(hit, into="hits", time="t", name="hit")
        return db, db.watch(over, evidence=True, name="over")

    db, alerts = begun(tmp_path / "0")
    found: dict[str, Any] = {}

    def fetch() -> None:
        for row in alerts.fetch().to_pylist():
            assert found.setdefault(row["match_id"], row) == row

    left, cuts = {"ticks": 0, "calls": 0}, 0
    while min(left.values()) < len(rows):
        name, n = rng.choice(("ticks", "calls")), rng.randint(1, 5)
        db.push(name, rows[left[name] : left[name] + n])
        left[name] += n
        if rng.random() < 0.3:
            db.checkpoint()
        if rng.random() < 0.5:
            fetch()
        if rng.random() < 0.3:
            db.flush()
            cuts += 1
            shutil.copytree(tmp_path / f"{cuts - 1}", tmp_path / f"{cuts}")  # what a process leaves that is killed now
            db.close()
            db, alerts = begun(tmp_path / f"{cuts}")
    for name in left:
        db.advance(name, None)
    fetch()

    def counted(table: Any) -> Counter[str]:
        return Counter(repr([v for c, v in row.items() if c != "match_id"]) for row in table)

    assert cuts
    assert counted(found.values()) == counted(db.sql(over.replace("FROM hits", f"FROM ({hit})")).arrow().to_pylist())
    assert counted(db.sql("SELECT * FROM hits").arrow().to_pylist()) == counted(db.sql(hit).arrow().to_pylist())
    db.close()


@pytest.mark.slow
def test_rows_that_are_held_back_come_when_their_query_is_closed(tmp_path: Path) -> None:
    loop = """SELECT * FROM ticks MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES FIRST(ts) AS t, count(*) AS n
        PATTERN (A B*) WITHIN INTERVAL 4 SECOND DEFINE B AS s = 'b')"""
    with hybrid.connect(tmp_path) as db:
        declare(db)
        loops = db.watch(loop, into="loops")
        db.push("ticks", events("ab.b"))
        assert db.streams()["loops"]["events"] == 0  # another key may have a loop from before 0
        loops.close()
        assert db.streams()["loops"]["events"] == 1
        db.watch(loop, into="loops")
        db.push("ticks", events("a.", 4))
    with hybrid.connect(tmp_path) as db:
        assert db.sql("SELECT n FROM loops ORDER BY t").arrow().column("n").to_pylist() == [2, 1]

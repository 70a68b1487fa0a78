"""Several streams as one input, and patterns over the rows of patterns: a watch gives what the same text gives over the
archive, and the reference over a table of all events, however the events are interleaved and cut into batches."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybrid
from archive.reader import RangeRequest
from hybrid.database.database import Database
from hybrid.statement.relations import Relations
from hybrid.statement.statement import answer
from matching.by_reference import ReferenceMatcher
from query.errors import HybridWarning
from tests.hybrid.inside import flow_of
from tests.properties.comparing import drawn_until, fewer

FEWER = fewer(6)

#: name, columns (the time first), lateness in seconds
STREAMS = (
    ("a", {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "BIGINT"}, 0),
    ("b", {"at": "TIMESTAMP", "K": "VARCHAR", "w": "BIGINT"}, 2),
    ("c", {"ts": "TIMESTAMP", "v": "INTEGER", "k": "VARCHAR"}, 0),
)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happens to a stream: rows (second, key, value) of a source, or without any an advance."""

    stream: int
    source: str
    rows: tuple[tuple[int, str, int], ...]
    second: int = 0


@st.composite
def histories(draw: st.DrawFn, streams: int = 3) -> list[Step]:
    """What happens: each stream's time mostly goes on, and some of its events are behind it."""
    random = draw(st.randoms(use_true_random=False))  # few examples, and most of them are to hold matches
    now = [0] * streams
    steps = []
    for _ in range(draw(st.integers(8, 24))):
        s = random.randrange(streams)
        if random.random() < 0.1:
            now[s] += random.randint(0, 4)
            steps.append(Step(s, "", (), now[s]))
            continue
        rows = []
        for _ in range(random.randint(1, 3)):
            now[s] += random.randint(0, 2)
            back = random.choice((0, 0, 0, 1, 3)) if STREAMS[s][2] else 0
            rows.append((max(0, now[s] - back), random.choice("pq"), random.randint(0, 3)))
        # where nothing is held back, events of the first source are matched before another one is known
        sources = ("default", "default", "z") if STREAMS[s][2] else ("default",)
        steps.append(Step(s, random.choice(sources), tuple(rows)))
    return steps


def opened(streams: int = 3) -> Database:
    db = hybrid.connect()
    for name, columns, lateness in STREAMS[:streams]:
        db.create_stream(name, columns, time=next(iter(columns)), lateness=f"{lateness}s")
    return db


def played(db: Database, steps: list[Step], last: list[int]) -> None:
    for step in steps:
        name, columns, _ = STREAMS[step.stream]
        if not step.rows:
            db.advance(name, step.second * 1_000_000)
            continue
        seconds, keys, values = zip(*step.rows)
        of = {"ts": pa.array([s * 1_000_000 for s in seconds], pa.timestamp("us")), "k": pa.array(keys)}
        of |= {"at": of["ts"], "v": pa.array(values), "w": pa.array(values)}
        db.push(name, {c: of[c.lower()] for c in columns}, step.source)
    for s in last:
        db.advance(STREAMS[s][0], None)


def rows_of(table: pa.Table) -> Counter[str]:
    return Counter(repr(tuple(row.values())) for row in table.to_pylist())


def ids_of(result: hybrid.Result) -> Counter[str]:
    """The ids of the matches behind the rows."""
    found = {(row["row"], row["match_id"]) for row in result.evidence().to_pylist() if row["row"] >= 0}
    return Counter(match_id for _, match_id in found)


# ---- merged streams --------------------------------------------------------------------------------------------

#: over an input {0} in the order {1}
QUERIES = (
    """SELECT * FROM {0} MATCH_RECOGNIZE (PARTITION BY k ORDER BY {1} MEASURES A.ts AS f, C.ts AS l, A.v AS x, C.v AS y
       PATTERN (A B* C) DEFINE A AS stream = 'a', B AS stream = 'b' AND w > 0, C AS stream = 'c') AS m""",
    """SELECT * FROM {0} MATCH_RECOGNIZE (PARTITION BY k ORDER BY {1} MEASURES A.ts AS f, C.ts AS l, count(*) AS n
       PATTERN (A ~B C+) WITHIN INTERVAL 4 SECOND SELECTION SKIP TILL ANY MATCH
       DEFINE A AS stream = 'a', B AS stream = 'b', C AS stream = 'c') AS m""",
    """SELECT * FROM {0} MATCH_RECOGNIZE (ORDER BY {1} MEASURES A.ts AS f, C.ts AS l, A.k AS x, C.v AS y
       PATTERN (A B C) WITHIN INTERVAL 6 SECOND SELECTION SKIP TILL NEXT MATCH
       DEFINE A AS stream = 'a', B AS stream = 'b' AND K = A.k, C AS stream = 'c' AND v > A.v) AS m""",
    """SELECT * FROM {0} MATCH_RECOGNIZE (ORDER BY {1} ALL ROWS PER MATCH WITH UNMATCHED ROWS
       AFTER MATCH SKIP TO NEXT ROW PATTERN (A{{2,}} B?) WITHIN INTERVAL 3 SECOND
       DEFINE A AS stream <> 'b', B AS w > PREV(v)) AS m""",
    """SELECT * FROM {0} MATCH_RECOGNIZE (PARTITION BY k ORDER BY {1} MEASURES A.ts AS f, NEXT(A.ts) AS l, sum(v) AS n
       AFTER MATCH NO SKIP PATTERN (A X{{0,2}} B) SELECTION STRICT DEFINE A AS stream = 'a', B AS stream = 'b') AS m""",
)
#: and what the third of them is in SASE+
SASE = """PATTERN SEQ(A a, B b, C c) WHERE skip_till_next_match(a, b, c) { a.k = b.K and c.v > a.v }
    WITHIN 6 seconds RETURN a.ts AS f, c.ts AS l, a.k AS x, c.v AS y"""


def union(db: Database) -> pa.Table:
    """The on-time events of all streams as one table, put together by hand here; `n` is the place."""
    rows: list[tuple[Any, ...]] = []
    for name, _, _ in STREAMS:
        batch = flow_of(db).streams[name].kept.snapshot().read(RangeRequest())
        for i, row in enumerate(batch.columns.to_pylist()):
            low = {c.lower(): value for c, value in row.items()}
            place = (int(batch.ts_us[i]), name, batch.sources[batch.source[i]], int(batch.offset[i]))
            rows.append((place, name, low["k"], low.get("v"), low.get("w")))
    rows.sort(key=lambda row: row[0])
    return pa.table(
        {
            "stream": pa.array([r[1] for r in rows], pa.string()),
            "ts": pa.array([r[0][0] for r in rows], pa.timestamp("us")),
            "k": pa.array([r[2] for r in rows], pa.string()),
            "v": pa.array([r[3] for r in rows], pa.int64()),
            "w": pa.array([r[4] for r in rows], pa.int64()),
            "n": pa.array(range(len(rows)), pa.int64()),
        }
    )


@pytest.mark.slow
def test_merged_streams(record_property: Callable[[str, object], None]) -> None:
    seen: Counter[str] = Counter()

    @FEWER
    @given(steps=histories(), last=st.permutations(range(3)), which=st.integers(0, len(QUERIES) - 1))
    def check(steps: list[Step], last: list[int], which: int) -> None:
        text = QUERIES[which].format("MERGE(a, b, c)", "ts")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HybridWarning)
            with opened() as db:
                alerts = db.watch(text, evidence=True)
                others = [db.watch(t) for t in (SASE, f"FROM MERGE(C, b, a) {SASE}") if which == 2]
                played(db, steps, last)
                live = alerts.fetch()
                ids = Counter(live.column("match_id").to_pylist())
                live = live.drop_columns(["match_id"])
                kept = db.sql(text, late=False)
                table = union(db)
                by_hand = QUERIES[which].format("u", "ts, n")
                with Relations(by_hand, {"u": table}).open() as relations:
                    expected = answer(by_hand, relations, ReferenceMatcher).arrow()
                expected = expected.drop_columns([c for c in ("n",) if which == 3])
                assert rows_of(live.select(expected.column_names)) == rows_of(expected)
                assert rows_of(kept.arrow()) == rows_of(live)
                assert rows_of(db.backtest(text, 0).arrow()) == rows_of(live)
                if which != 3:
                    assert ids_of(kept) == ids
                for other in others:
                    assert rows_of(other.fetch()) == rows_of(live)
                seen["examples"] += 1
                seen["rows"] += bool(live.num_rows)
                seen["late"] += any(s["late"] for s in db.streams().values())
                seen["ties"] += len(set(table.column("ts").to_pylist())) < table.num_rows

    drawn_until(check, lambda: min(seen["rows"] * 4, seen["ties"] * 2) >= seen["examples"])
    record_property("examples", dict(seen))
    assert seen["rows"] * 4 >= seen["examples"]
    assert seen["ties"] * 2 >= seen["examples"]


# ---- patterns over rows of patterns ----------------------------------------------------------------------------

INNER = (
    # comes out with its last event
    "SELECT k, f, l AS t, x FROM {0} MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.ts AS f, B.ts AS l, "
    "B.v AS x PATTERN (A B) DEFINE B AS v >= A.v) AS i",
    # waits for the end of a loop, and is skipped past
    "SELECT *, l AS t FROM {0} MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES A.ts AS f, LAST(ts) AS l, "
    "LAST(v) AS x PATTERN (A B+) WITHIN INTERVAL 3 SECOND DEFINE B AS v >= PREV(v)) AS i WHERE x > 0",
    # a time before the last event, all rows, a table beside it
    "SELECT i.k, ts AS t, v + y AS x FROM {0} MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts ALL ROWS PER MATCH "
    "PATTERN (A B) WITHIN INTERVAL 4 SECOND SELECTION SKIP TILL ANY MATCH DEFINE A AS v > 0) AS i JOIN side USING (k)",
    # a time that is computed, rows that are absent behind
    "SELECT k, f + INTERVAL 1 SECOND AS t, x FROM {0} MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts "
    "MEASURES A.ts AS f, A.v AS x PATTERN (A ~B) WITHIN INTERVAL 2 SECOND DEFINE A AS v > 1, B AS v = 0) AS i",
    # SASE+, all matches
    "FROM {0} PATTERN SEQ(x p, x+ q[]) WHERE skip_till_next_match(p, q[]) {{ [k] and q[i].v > q[i-1].v }} "
    "RETURN q[q.LEN].ts AS t, p.ts AS f, q.LEN AS x",
)
OUTER = (
    "SELECT * FROM ({0}) AS r MATCH_RECOGNIZE (PARTITION BY k ORDER BY t MEASURES C.x AS cx, D.x AS dx, D.t AS t2 "
    "PATTERN (C D) DEFINE D AS x <> C.x) AS m",
    "SELECT * FROM ({0}) AS r MATCH_RECOGNIZE (ORDER BY t, x DESC MEASURES FIRST(k) AS k1, count(*) AS n, "
    "LAST(t) AS t2 PATTERN (C D+) WITHIN INTERVAL 5 SECOND DEFINE D AS x <= PREV(x)) AS m",
    "WITH r AS ({0}) SELECT * FROM r MATCH_RECOGNIZE (PARTITION BY k ORDER BY t MEASURES C.x AS cx, D.x AS dx, "
    "D.t AS t2 PATTERN (C D) SELECTION SKIP TILL NEXT MATCH DEFINE D AS x > C.x) AS m",
    "FROM (SELECT k, t, x FROM ({0}) AS i) AS r PATTERN SEQ(r c, r d) WHERE skip_till_any_match(c, d) "
    "{{ [k] and c.x <> d.x }} WITHIN 4 seconds RETURN c.x AS cx, d.x AS dx, d.t AS t2",
    "WITH r AS ({0}) SELECT * FROM MERGE(r, b) MATCH_RECOGNIZE (PARTITION BY k ORDER BY t MEASURES C.x AS cx, "
    "D.w AS dx, D.t AS t2 PATTERN (C X* D) DEFINE C AS stream = 'r', X AS stream = 'r', D AS stream = 'b') AS m",
)
SIDE = pa.table({"k": ["p", "q"], "y": [10, 20]})


def watched(db: Database, text: str) -> hybrid.Alerts | None:
    """The alerts; None where the rows of an inner pattern have no bound, and for no other fault."""
    try:
        return db.watch(text, evidence=True, tables={"side": SIDE})
    except hybrid.QueryError as error:
        if {d.code for d in error.diagnostics} != {"HQ220"}:
            raise
        return None


@pytest.mark.slow
def test_patterns_over_rows(record_property: Callable[[str, object], None]) -> None:
    seen: Counter[str] = Counter()

    @FEWER
    @given(
        steps=histories(2), last=st.permutations(range(2)), inner=st.sampled_from(INNER), outer=st.sampled_from(OUTER),
        third=st.sampled_from((False, False, True)), merged=st.booleans(),
    )  # fmt: skip
    def check(steps: list[Step], last: list[int], inner: str, outer: str, third: bool, merged: bool) -> None:
        base = "MERGE(a, b) AS x" if merged else "a AS x" if "SEQ" in inner else "a"
        text = outer.format(inner.format(base))
        if "PATTERN SEQ(x p" in text and merged:
            text = text.replace("SEQ(x p, x+ q[])", "SEQ(b p, a+ q[])")
        if third:
            text = (
                f"SELECT * FROM ({text}) AS r3 MATCH_RECOGNIZE (ORDER BY t2 MEASURES E.t2 AS e, F.t2 AS f "
                "PATTERN (E F) WITHIN INTERVAL 9 SECOND) AS m3"
            )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HybridWarning)
            with opened(2) as db:
                alerts = watched(db, text)
                if alerts is None:
                    seen["no bound"] += 1
                    return
                played(db, steps, last)
                live = alerts.fetch()
                ids = Counter(live.column("match_id").to_pylist())
                live = live.drop_columns(["match_id"])
                kept = db.sql(text, late=False, side=SIDE)
                assert rows_of(kept.arrow()) == rows_of(live)
                # no row of it has one match behind it, so that of the inner patterns are there too
                assert set(ids) <= set(kept.evidence().column("match_id").to_pylist())
                assert rows_of(db.backtest(text, 0, tables={"side": SIDE}).arrow()) == rows_of(live)
                with Relations(text, {"side": SIDE}, {n: _input(db, n) for n in "ab"}).open() as relations:
                    assert rows_of(answer(text, relations, ReferenceMatcher).arrow()) == rows_of(live)
                if live.num_rows:
                    assert set(alerts.evidence().column("match_id").to_pylist()) >= set(ids)
                seen["examples"] += 1
                seen["rows"] += bool(live.num_rows)

    drawn_until(check, lambda: seen["rows"] * 5 >= seen["examples"])
    record_property("examples", dict(seen))
    assert seen["rows"] * 5 >= seen["examples"]


def _input(db: Database, name: str) -> Any:
    from hybrid.database.reading import input_of

    return input_of(flow_of(db).streams[name], late=False)


#: over the stream r of an inner query's rows, or over the query itself
OVER_ROWS = (
    "SELECT * FROM {0} MATCH_RECOGNIZE (PARTITION BY k ORDER BY t MEASURES C.x AS cx, D.x AS dx, D.t AS t2 "
    "PATTERN (C D) DEFINE D AS x <> C.x) AS m",
    "SELECT * FROM {0} MATCH_RECOGNIZE (ORDER BY t MEASURES FIRST(k) AS k1, count(*) AS n, sum(x) AS s "
    "AFTER MATCH SKIP TO NEXT ROW PATTERN (C D+) WITHIN INTERVAL 5 SECOND DEFINE D AS x <= PREV(x)) AS m",
    "FROM {0} PATTERN SEQ(r c, r d) WHERE skip_till_next_match(c, d) {{ [k] and c.x < d.x }} WITHIN 4 seconds "
    "RETURN c.x AS cx, d.x AS dx, d.t AS t2",
)


@pytest.mark.slow
def test_rows_into_a_stream(record_property: Callable[[str, object], None]) -> None:
    seen: Counter[str] = Counter()

    @FEWER
    @given(
        steps=histories(2), last=st.permutations(range(2)), inner=st.sampled_from(INNER),
        outer=st.sampled_from(OVER_ROWS), merged=st.booleans(),
    )  # fmt: skip
    def check(steps: list[Step], last: list[int], inner: str, outer: str, merged: bool) -> None:
        first = inner.format("MERGE(a, b) AS x" if merged else "a AS x" if "SEQ" in inner else "a")
        if "PATTERN SEQ" in inner and merged:
            first = first.replace("SEQ(x p, x+ q[])", "SEQ(b p, a+ q[])")
        first = f"SELECT k, t, x FROM ({first}) AS i"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HybridWarning)
            with opened(2) as db:
                fed = db.watch(first, tables={"side": SIDE}, into="r")
                alerts = db.watch(outer.format("r"))
                later = db.watch(outer.format("r"), into="s", time="t2") if "t2" in outer else None
                played(db, steps, last)
                live = alerts.fetch()
                nested = outer.format(f"({first}) AS r")
                assert rows_of(live) == rows_of(db.sql(nested, late=False, side=SIDE).arrow())
                assert rows_of(live) == rows_of(db.sql(outer.format("r")).arrow())
                bounded = db.sql(first, late=False, side=SIDE).arrow()
                assert rows_of(db.sql("SELECT * FROM r").arrow()) == rows_of(bounded)
                assert db.streams()["r"]["late"] == 0
                assert db.streams()["r"]["ended"]
                assert fed.fetch().num_rows == 0
                if later is not None:
                    assert rows_of(db.sql("SELECT * FROM s").arrow()) == rows_of(live)
                seen["examples"] += 1
                seen["rows"] += bool(live.num_rows)

    drawn_until(check, lambda: seen["rows"] * 4 >= seen["examples"])
    record_property("examples", dict(seen))
    assert seen["rows"] * 4 >= seen["examples"]

"""JOIN HISTORY of every kind: hybrid.sql = watch = backtest = brute force in plain SQL; the worked examples."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybrid
from archive.reader import RangeRequest
from archive.snapshot import HistorySnapshot
from hybrid.join.bounds import ranges_of
from hybrid.join.strategies import NAMES
from query.language.parse import parse
from query.plan.bind import bind
from query.schema import Field, Schema
from tests.properties.comparing import fewer

SCHEMA = pa.schema(
    [("ts", pa.timestamp("us")), ("n", pa.int64()), ("k", pa.string()), ("s", pa.string()), ("v", pa.int64())]
)
COLUMNS = {"ts": "TIMESTAMP", "n": "BIGINT", "k": "VARCHAR", "s": "VARCHAR", "v": "BIGINT"}
KINDS = ("JOIN", "LEFT JOIN", "SEMI JOIN", "ANTI JOIN", "NEAREST JOIN", "LEFT NEAREST JOIN")
RISE = "MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES U.n AS n, U.v AS v PATTERN (U) DEFINE U AS v > PREV(v))"


@dataclass(frozen=True)
class Case:
    """Events in their total order (ts, n), and a range [at - before, at + after), closed or not."""

    events: pa.Table
    before: int
    after: int
    closed: bool
    kind: str
    pattern: bool
    cuts: tuple[int, ...]

    @property
    def query(self) -> str:
        low, high = f"pl.at - to_microseconds({self.before})", f"pl.at + to_microseconds({self.after})"
        range_ = f"BETWEEN {low} AND {high}" if self.closed else f"FROM {low} TO {high}"
        silent = self.kind in ("SEMI JOIN", "ANTI JOIN")
        return (
            f"SELECT pl.pn, {'NULL::BIGINT AS hn' if silent else 'pa.n AS hn'} FROM e MATCH_RECOGNIZE (PARTITION BY k "
            "ORDER BY ts MEASURES P.n AS pn, P.ts AS at, P.v AS pv PATTERN (P) DEFINE P AS s = 'p') AS pl "
            f"{self.kind} HISTORY OF e {range_} {RISE if self.pattern else ''} AS pa ON pa.k = pl.k AND pa.v >= pl.pv"
        )

    def expected(self) -> list[tuple[Any, ...]]:
        """The answer in SQL without any of ours: candidates by range, LAG inside each range, then the kind."""
        connection = duckdb.connect()
        connection.register("e", self.events)
        upper = "<=" if self.closed else "<"
        rise = "WHERE v > lag_v" if self.pattern else ""
        connection.execute(
            f"""CREATE TEMP TABLE pairs AS
            WITH pl AS (SELECT n AS pn, k, epoch_us(ts) AS us, v AS pv FROM e WHERE s = 'p'),
            ranged AS (SELECT pl.pn, pl.k AS pk, pl.pv, h.*,
                              lag(h.v) OVER (PARTITION BY pl.pn, h.k ORDER BY h.ts, h.n) AS lag_v
                       FROM pl JOIN e AS h
                         ON epoch_us(h.ts) >= us - ({self.before}) AND epoch_us(h.ts) {upper} us + ({self.after})),
            found AS (SELECT * FROM ranged {rise})
            SELECT pn, n, ts FROM found WHERE k = pk AND v >= pv"""
        )
        live = "(SELECT n AS pn FROM e WHERE s = 'p')"
        sql = {
            "JOIN": "SELECT pn, n FROM pairs",
            "LEFT JOIN": f"SELECT l.pn, n FROM {live} AS l LEFT JOIN pairs USING (pn)",
            "SEMI JOIN": f"SELECT pn, NULL FROM {live} WHERE pn IN (SELECT pn FROM pairs)",
            "ANTI JOIN": f"SELECT pn, NULL FROM {live} WHERE pn NOT IN (SELECT pn FROM pairs)",
            "NEAREST JOIN": "SELECT pn, arg_max(n, (ts, n)) FROM pairs GROUP BY pn",
            "LEFT NEAREST JOIN": f"SELECT l.pn, arg_max(n, (ts, n)) FROM {live} AS l LEFT JOIN pairs USING (pn) "
            "GROUP BY ALL",
        }[self.kind]
        return in_order(connection.sql(sql).fetchall())


def in_order(rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=lambda row: (row[0], row[1] is not None, row[1]))


def rows(table: Any) -> list[tuple[Any, ...]]:
    table = pa.table(table)
    return in_order(list(zip(*(c.to_pylist() for c in table.columns))))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    drawn = draw(
        st.lists(
            st.tuples(
                st.integers(0, 12), st.sampled_from(["a", "a", "b", None]), st.sampled_from(["p", "q", "q"]),
                st.sampled_from([0, 1, 2, 3, None]),
            ),
            max_size=14,
        )
    )
    drawn = [(t, n, *rest) for n, (t, *rest) in enumerate(sorted(drawn, key=lambda row: row[0]))]
    columns = [pa.array(column, type) for column, type in zip(zip(*drawn), SCHEMA.types)] if drawn else None
    events = pa.table(columns, schema=SCHEMA) if columns else SCHEMA.empty_table()
    return Case(
        events, draw(st.integers(-2, 8)), draw(st.integers(-2, 4)), draw(st.booleans()), draw(st.sampled_from(KINDS)),
        draw(st.booleans()), tuple(sorted(draw(st.lists(st.integers(0, 14), max_size=3)))),
    )


Rows = list[tuple[Any, ...]]


def watched(case: Case, flush_at: int = -1, directory: Any = None) -> tuple[Rows, Rows]:
    """What a watch finds, and what a backtest over the same events finds."""
    with hybrid.connect(directory) as db:
        db.create_stream("e", COLUMNS, time="ts", key="k")
        alerts = db.watch(case.query)
        start = 0
        found = []
        for i, cut in enumerate([*case.cuts, len(case.events)]):
            if cut >= start:
                db.push("e", case.events.slice(start, cut - start))
                start = cut
                found.append(alerts.take())
            if i == flush_at:
                db.flush()
        db.advance("e", None)
        found.append(alerts.take())
        return rows(pa.concat_tables(found)), rows(db.backtest(case.query, 0))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:BETWEEN holds both ends:hybrid.HybridWarning")
@given(cases())
@fewer(8)
def test_sql_watch_and_backtest_are_the_brute_force(case: Case) -> None:
    expected = case.expected()
    assert rows(hybrid.sql(case.query, e=case.events)) == expected
    assert watched(case) == (expected, expected)


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("flush_at", [0, 1, 2])
def test_the_seam_between_files_and_memory(kind: str, flush_at: int, tmp_path: Any) -> None:
    """The same rows wherever the events lie: in files up to some batch, in memory after it."""
    drawn = [(i // 2, i, "ab"[i % 2], "p" if i % 5 == 4 else "q", (i * i) % 7) for i in range(30)]
    events = pa.table([pa.array(c, t) for c, t in zip(zip(*drawn), SCHEMA.types)], schema=SCHEMA)
    case = Case(events, 2, 0, False, kind, False, (10, 20))
    expected = case.expected()
    assert expected
    assert watched(case, flush_at, tmp_path / "db") == (expected, expected)


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["SEMI JOIN", "ANTI JOIN", "NEAREST JOIN", "LEFT NEAREST JOIN", "JOIN"])
def test_what_lies_before_the_newest_row_is_not_read(kind: str, tmp_path: Any, monkeypatch: Any) -> None:
    """Files are told apart by milliseconds, by their statistics."""
    drawn = [
        (1000 * i, i, "ab"[i % 2], "p" if i % 7 > 4 else "q", (i * i) % 11 + 100 * (i % 20 == 13)) for i in range(60)
    ]
    events = pa.table([pa.array(c, t) for c, t in zip(zip(*drawn), SCHEMA.types)], schema=SCHEMA)
    case = Case(events, 50_000, 0, False, kind, False, ())
    monkeypatch.setattr("hybrid.join.correlate.NEWEST_ROWS", 1)
    monkeypatch.setattr("archive.snapshot.GROWTH", 2)
    asked: list[tuple[int, int]] = []
    read = HistorySnapshot.read

    def reading(self: HistorySnapshot, request: RangeRequest) -> Any:
        assert request.low_us is not None
        assert request.high_us is not None
        if request.low_us < request.high_us:  # else it is the first look at an archive
            asked.append((request.low_us, request.high_us))
        return read(self, request)

    monkeypatch.setattr(HistorySnapshot, "read", reading)
    found = []
    for start in range(0, len(events), 4):
        with hybrid.connect(tmp_path, maintenance=False) as db:  # anew: what was written lately is in memory
            if not db.streams():
                db.create_stream("e", COLUMNS, time="ts", key="k")
            alerts = db.watch(case.query, strategy="llaa")
            db.push("e", events.slice(start, 4))
            db.advance("e", int(events["ts"].cast(pa.int64())[start + 3].as_py()) + 1)
            found.append(alerts.take())
    assert rows(pa.concat_tables(found)) == case.expected() != []
    matches = sum(row[3] == "p" for row in drawn)
    parts = [high - low for low, high in asked]
    if kind == "JOIN":
        assert parts == [49_999] * matches
    else:
        assert len(asked) > matches  # some look further back
        assert sum(parts) < 30_000 * matches


# ---- the worked examples of the hybrid answer: events `name@second`, s = the name's letters, one partition


def events(text: str) -> pa.Table:
    names, times = zip(*(word.split("@") for word in text.split()))
    return pa.table(
        {
            "ts": pa.array([int(t) * 1_000_000 for t in times], pa.timestamp("us")),
            "n": range(len(names)),
            "name": names,
            "s": [name.rstrip("0123456789") for name in names],
        }
    )


def pairs(e: pa.Table, live: str, history: str, measures: str) -> list[tuple[Any, ...]]:
    text = (
        f"SELECT {measures} FROM e MATCH_RECOGNIZE (ORDER BY ts {live}) AS pl "
        f"JOIN HISTORY OF e {history} AS pa ON TRUE"
    )
    return rows(hybrid.sql(text, e=e))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "expected"), [("SEMI", ["z1", "z3"]), ("ANTI", ["z2"])])
def test_what_is_only_looked_for_needs_no_columns(kind: str, expected: list[str]) -> None:
    e = events("a1@1 z1@2 b1@8 z2@9 a2@17 z3@18")
    text = (
        "SELECT pl.z FROM e MATCH_RECOGNIZE (ORDER BY ts MEASURES Z.ts AS t, Z.name AS z PATTERN (Z) DEFINE Z AS s = "
        f"'z') AS pl {kind} JOIN HISTORY OF e FROM pl.t - INTERVAL 5 SECOND TO pl.t MATCH_RECOGNIZE (ORDER BY ts "
        "PATTERN (A) DEFINE A AS s = 'a') AS pa ON TRUE"
    )
    assert hybrid.sql(text, e=e).arrow()["z"].to_pylist() == expected
    for strategy in NAMES:
        with hybrid.connect() as db:
            db.create_stream("e", {"ts": "TIMESTAMP", "n": "BIGINT", "name": "VARCHAR", "s": "VARCHAR"}, "ts", "n")
            alerts = db.watch(text, strategy=strategy)
            db.push("e", e)
            db.advance("e", None)
            assert alerts.fetch()["z"].to_pylist() == expected
            for result in (db.sql(text), db.backtest(text, "1970-01-01")):
                assert result.arrow()["z"].to_pylist() == expected


def test_example_22_a_closed_range_goes_by_time() -> None:
    found = pairs(
        events("x1@1 x2@2 a1@12 c1@12 b1@13"),
        "MEASURES A.ts AS t PATTERN (A B) SELECTION SKIP TILL NEXT MATCH DEFINE A AS s = 'a', B AS s = 'b'",
        "BETWEEN pl.t - INTERVAL 10 SECOND AND pl.t MATCH_RECOGNIZE (ORDER BY ts MEASURES P.name AS p, Q.name AS q "
        "PATTERN (P Q) SELECTION SKIP TILL ANY MATCH DEFINE P AS s = 'x', Q AS s IN ('a', 'c'))",
        "pa.p, pa.q",
    )
    assert found == [("x2", "a1"), ("x2", "c1")]


@pytest.mark.parametrize(("low", "expected"), [(2, [("a2", "a3")]), (1, [("a1", "a2")])])
def test_example_23_a_range_is_an_input_of_its_own(low: int, expected: list[tuple[str, str]]) -> None:
    """On [1, 3] the match is a1, a2, so [2, 3] is no filter of it."""
    found = pairs(
        events("a1@1 a2@2 a3@3 z1@9"),
        "MEASURES Z.ts AS t PATTERN (Z) DEFINE Z AS s = 'z'",
        f"BETWEEN pl.t - INTERVAL {9 - low} SECOND AND pl.t - INTERVAL 6 SECOND MATCH_RECOGNIZE (ORDER BY ts "
        "MEASURES A.name AS a, B.name AS b PATTERN (A B) DEFINE A AS s = 'a', B AS s = 'a')",
        "pa.a, pa.b",
    )
    assert found == expected


def test_example_24_nothing_beyond_the_edges_exists() -> None:
    """A greedy end stops at the upper edge; PREV is null at the lower one."""
    greedy = pairs(
        events("a1@1 b1@2 b2@3 z1@9"),
        "MEASURES Z.ts AS t PATTERN (Z) DEFINE Z AS s = 'z'",
        "BETWEEN pl.t - INTERVAL 8 SECOND AND pl.t - INTERVAL 7 SECOND MATCH_RECOGNIZE (ORDER BY ts "
        "MEASURES A.name AS a, LAST(B.name) AS b PATTERN (A B+) DEFINE A AS s = 'a', B AS s = 'b')",
        "pa.a, pa.b",
    )
    assert greedy == [("a1", "b1")]
    previous = pairs(
        events("a1@1 b1@2 b2@3 z1@9"),
        "MEASURES Z.ts AS t PATTERN (Z) DEFINE Z AS s = 'z'",
        "BETWEEN pl.t - INTERVAL 7 SECOND AND pl.t - INTERVAL 6 SECOND MATCH_RECOGNIZE (ORDER BY ts "
        "MEASURES B.name AS b, 1 AS one AFTER MATCH NO SKIP PATTERN (B) DEFINE B AS ts > PREV(ts))",
        "pa.b, pa.one",
    )
    assert previous == [("b2", 1)]


def test_strict_sees_every_row_of_its_range_and_no_other() -> None:
    """Keys are not pushed into a read under STRICT: the row of key q stands between, though ON asks for p only."""
    e = pa.table(
        {
            "ts": pa.array([1, 2, 3, 4, 5, 9], pa.timestamp("us")),
            "k": ["p", "q", "p", "p", "p", "p"],
            "s": ["a", "x", "b", "a", "b", "z"],
        }
    )
    text = (
        "SELECT pa.a, pa.b FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES Z.ts AS t PATTERN (Z) "
        "DEFINE Z AS s = 'z') AS pl JOIN HISTORY OF e FROM pl.t - to_microseconds(8) TO pl.t "
        "MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES epoch_us(A.ts) AS a, epoch_us(B.ts) AS b "
        "PATTERN (A B) SELECTION {} DEFINE A AS s = 'a', B AS s = 'b') AS pa ON pa.k = pl.k"
    )
    assert rows(hybrid.sql(text.format("STRICT"), e=e)) == [(4, 5)]
    assert rows(hybrid.sql(text.format("PARTITION"), e=e)) == [(1, 3), (4, 5)]


def test_within_inside_history_and_overlapping_ranges() -> None:
    """Many live matches share one run over history; WITHIN is by the events' own distances."""
    seconds = [0, 3, 10, 11, 20, 26, 40, 41]
    e = pa.table(
        {
            "ts": pa.array([s * 1_000_000 for s in seconds], pa.timestamp("us")),
            "s": ["a", "b", "a", "b", "a", "b", "z", "z"],
        }
    )
    text = (
        "SELECT epoch_us(pl.t) // 1000000 AS t, pa.a FROM e MATCH_RECOGNIZE (ORDER BY ts MEASURES Z.ts AS t "
        "PATTERN (Z) DEFINE Z AS s = 'z') AS pl JOIN HISTORY OF e FROM pl.t - INTERVAL 31 SECOND TO pl.t "
        "MATCH_RECOGNIZE (ORDER BY ts MEASURES epoch_us(A.ts) // 1000000 AS a PATTERN (A B) "
        "WITHIN INTERVAL '5' SECOND DEFINE A AS s = 'a', B AS s = 'b') AS pa ON TRUE"
    )
    assert rows(hybrid.sql(text, e=e)) == [(40, 10), (41, 10)]
    wider = text.replace("INTERVAL 31 SECOND", "INTERVAL 41 SECOND")
    assert rows(hybrid.sql(wider, e=e)) == [(40, 0), (40, 10), (41, 0), (41, 10)]


def test_two_histories_of_one_match() -> None:
    e = pa.table(
        {
            "ts": pa.array([1, 2, 3, 4], pa.timestamp("us")),
            "s": ["x", "y", "x", "z"],
        }
    )
    text = (
        "SELECT epoch_us(x.ts), epoch_us(y.ts) FROM e MATCH_RECOGNIZE (ORDER BY ts MEASURES Z.ts AS t PATTERN (Z) "
        "DEFINE Z AS s = 'z') AS pl JOIN HISTORY OF e FROM pl.t - to_microseconds(9) TO pl.t AS x ON x.s = 'x' "
        "JOIN HISTORY OF e FROM pl.t - to_microseconds(9) TO pl.t AS y ON y.s = 'y'"
    )
    assert rows(hybrid.sql(text, e=e)) == [(1, 2), (3, 2)]


def test_evidence_of_both_sides() -> None:
    e = events("a1@1 b1@2 z1@9")
    text = (
        "SELECT pa.n AS n FROM e MATCH_RECOGNIZE (ORDER BY ts MEASURES Z.ts AS t PATTERN (Z) DEFINE Z AS s = 'z') "
        "AS pl JOIN HISTORY OF e FROM pl.t - INTERVAL 8 SECOND TO pl.t AS pa ON pa.s = 'b'"
    )
    evidence = hybrid.sql(text, e=e).evidence().to_pylist()
    shown = [(r["row"], r["side"], r["variable"], r["name"]) for r in evidence]
    assert shown == [(0, "pl", "Z", "z1"), (0, "pa", None, "b1")]
    assert len({r["join_id"] for r in evidence}) == 1
    assert [r["history_complete"] for r in evidence] == [True, True]
    early = hybrid.sql(text.replace("INTERVAL 8 SECOND", "INTERVAL 9 SECOND"), e=e).evidence()
    assert early.column("history_complete").to_pylist() == [False, False]  # the range begins before the first event


@pytest.mark.parametrize(
    ("bound", "short"),
    [
        ("pl.t", True), ("t", True), ("pl.t - INTERVAL 7 DAY", True), ("pl.t + INTERVAL '90' MINUTE", True),
        ("pl.t - to_microseconds(3)", True), ("pl.t - INTERVAL (2 + 1) HOUR", True), ("pl.t - INTERVAL 1 MONTH", False),
        ("pl.t - INTERVAL 1 DAY * pl.v", False), ("CAST(pl.t AS DATE)", False), ("TIMESTAMP '2024-01-01'", False),
        ("date_trunc('day', pl.t)", False), ("pl.t - (pl.u - pl.t)", False),
    ],
)  # fmt: skip
def test_bounds_are_what_duckdb_makes_of_them(bound: str, short: bool) -> None:
    """Those that are a time and a fixed interval are computed without it."""
    schema = Schema("e", tuple(Field(n, t) for n, t in COLUMNS.items()), time="ts")
    text = (
        "SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES LAST(ts) AS t, FIRST(ts) AS u, "
        "LAST(v) AS v PATTERN (A B) DEFINE B AS TRUE) AS pl "
        f"JOIN HISTORY OF e FROM {bound} TO pl.t AS pa ON pa.k = pl.k"
    )
    factor = bind(parse(text), lambda _: schema, live=True).factors[0]
    history = factor.histories[0]
    assert (history.low_shift is not None) is short
    times = [1_700_000_000_000_000, None, -5, 2**63 - 1]
    live = pa.table({
        "k": ["a", "b", "c", "d"], "t": pa.array(times, pa.timestamp("us")), "u": pa.array(times, pa.timestamp("us")),
        "v": [1, 2, None, 4],
    })  # fmt: skip
    if "DATE" in bound or "- INTERVAL 1 DAY *" in bound or "pl.u" in bound or "MONTH" in bound:
        live = live.slice(0, 3)  # no infinity, of which DuckDB makes an error there
    found = ranges_of(history, factor.alias_sql, live)
    slow = ranges_of(replace(history, low_shift=None, high_shift=None), factor.alias_sql, live)
    assert found.low_us.tolist() == slow.low_us.tolist()
    assert found.last_us.tolist() == slow.last_us.tolist()
    fast = ranges_of(history, factor.alias_sql, live.slice(0, 3))
    assert fast.low_us.tolist() == slow.low_us.tolist()[:3]
    assert fast.last_us.tolist() == slow.last_us.tolist()[:3]


def test_a_source_that_comes_later_changes_no_name_of_what_is_kept() -> None:
    """Between two requests, while a match of PA is half found; "a" stands before "y" in the list of all sources."""
    text = """SELECT pa.n FROM e MATCH_RECOGNIZE (ORDER BY ts MEASURES P.ts AS at PATTERN (P) DEFINE P AS s = 'p') AS pl
    JOIN HISTORY OF e FROM pl.at - INTERVAL 1 HOUR TO pl.at MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts
    MEASURES B.n AS n PATTERN (A B) DEFINE A AS v = 1, B AS v = 2) AS pa ON TRUE"""
    pushes = (("y", [(1, 1, "q", 1), (2, 2, "p", 0)]), ("a", [(3, 3, "q", 2)]), ("y", [(4, 4, "p", 0)]))
    with hybrid.connect() as db:
        db.create_stream("e", COLUMNS, time="ts", key="k")
        alerts = db.watch(text, strategy="llaa")
        for source, rows in pushes:
            columns = zip(*((s * 1_000_000, n, "p" if what == "p" else "k", what, v) for s, n, what, v in rows))
            arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA)]
            db.push("e", pa.Table.from_arrays(arrays, schema=SCHEMA), source=source)
            db.advance("e", rows[-1][0] * 1_000_000 + 1)
        db.advance("e", None)
        assert alerts.fetch().to_pylist() == [{"n": 3}]
        lines = [line for line in alerts.evidence().to_pylist() if line["side"] == "pa"]
        assert [(line["variable"], line["source"], line["offset"]) for line in lines] == [("A", "y", 0), ("B", "a", 0)]

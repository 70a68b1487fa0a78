"""The six questions, as patterns and as window functions of DuckDB and Polars.

The window functions sort once, keep the rows where something begins or ends, and pair these: a second window over all
rows, or a group for each answer, takes them up to twice as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

GAP, QUIET, FUNNEL = 30, 30, 120  # minutes
HIGH, HIGH_ROWS, RISES = 600, 3, 4


@dataclass(frozen=True, slots=True)
class Question:
    """reads: columns of the input. columns: of the answer. duckdb: reads `events`, whose rows come with `n`, their
    position, if times are not unique: {order} is then `ts, n`. polars: (rows sorted by key and time) -> answer."""

    reads: tuple[str, ...]
    columns: tuple[str, ...]
    text: str
    duckdb: str
    polars: Callable[[pl.LazyFrame], pl.DataFrame]
    actions: tuple[str, ...] = ()


def _pattern(select: str, body: str) -> str:
    return f"SELECT {select} FROM events MATCH_RECOGNIZE (\n    PARTITION BY k ORDER BY ts\n    {body}\n) AS m"


def _minutes(count: int) -> pl.Expr:
    return pl.lit(count * 60_000_000).cast(pl.Duration("us"))


#: Of rows sorted by key and time: whether the row before, or behind, has the same key.
BEFORE, BEHIND = pl.col("k") == pl.col("k").shift(), pl.col("k") == pl.col("k").shift(-1)


def _spans(frame: pl.LazyFrame, begins: pl.Expr, ends: pl.Expr, more: tuple[str, ...] = ()) -> pl.DataFrame:
    """Pairs rows where a span begins with rows where it ends, with the number of rows between."""
    marked = frame.with_row_index("n").with_columns(
        begins.fill_null(False).alias("b"), ends.fill_null(False).alias("e")
    )
    rows = marked.filter(pl.col("b") | pl.col("e")).collect()
    first, last = rows.filter("b"), rows.filter("e")
    length = (last["n"].cast(pl.Int64) - first["n"].cast(pl.Int64)).alias("n")
    found = [first["k"], first["ts"].alias("start_ts"), last["ts"].alias("end_ts"), length]
    for name in more:
        found += [first[name].alias(f"first_{name}"), last[name].alias(f"last_{name}")]
    return pl.DataFrame(found)


# ---- sessions

SESSIONS = _pattern("k, start_ts, end_ts, n", f"""MEASURES FIRST(ts) AS start_ts, LAST(ts) AS end_ts, count(*) AS n
    PATTERN (A B*)
    DEFINE B AS ts - PREV(ts) <= INTERVAL {GAP} MINUTE""")

SESSIONS_SQL = f"""
WITH marked AS (
    SELECT k, ts, row_number() OVER w AS i, coalesce(ts > lag(ts) OVER w + INTERVAL {GAP} MINUTE, true) AS b,
           coalesce(lead(ts) OVER w > ts + INTERVAL {GAP} MINUTE, true) AS e
    FROM {{events}} WINDOW w AS (PARTITION BY k ORDER BY {{order}})),
paired AS (
    SELECT k, ts AS start_ts, b, if(e, ts, lead(ts) OVER w) AS end_ts, if(e, 1, lead(i) OVER w - i + 1) AS n
    FROM marked WHERE b OR e WINDOW w AS (PARTITION BY k ORDER BY i))
SELECT k, start_ts, end_ts, n FROM paired WHERE b"""


def sessions(frame: pl.LazyFrame) -> pl.DataFrame:
    near = pl.col("ts") - pl.col("ts").shift() <= _minutes(GAP)
    begins = ~(BEFORE & near).fill_null(False)
    ends = ~(BEHIND & near.shift(-1)).fill_null(False)
    return _spans(frame, begins, ends).with_columns(pl.col("n") + 1)


# ---- islands

ISLANDS = _pattern("k, start_ts, end_ts, n", f"""MEASURES FIRST(ts) AS start_ts, LAST(ts) AS end_ts, count(*) AS n
    PATTERN (A{{{HIGH_ROWS},}})
    DEFINE A AS v > {HIGH}""")

ISLANDS_SQL = f"""
WITH marked AS (
    SELECT k, ts, row_number() OVER w AS i, v > {HIGH} AND NOT coalesce(lag(v) OVER w > {HIGH}, false) AS b,
           v > {HIGH} AND NOT coalesce(lead(v) OVER w > {HIGH}, false) AS e
    FROM {{events}} WINDOW w AS (PARTITION BY k ORDER BY {{order}})),
paired AS (
    SELECT k, ts AS start_ts, b AND NOT e AS long, lead(ts) OVER w AS end_ts, lead(i) OVER w - i + 1 AS n
    FROM marked WHERE b OR e WINDOW w AS (PARTITION BY k ORDER BY i))
SELECT k, start_ts, end_ts, n FROM paired WHERE long AND n >= {HIGH_ROWS}"""


def islands(frame: pl.LazyFrame) -> pl.DataFrame:
    high = pl.col("v") > HIGH
    begins = high & ~(BEFORE & high.shift()).fill_null(False)
    ends = high & ~(BEHIND & high.shift(-1)).fill_null(False)
    return _spans(frame, begins, ends).with_columns(pl.col("n") + 1).filter(pl.col("n") >= HIGH_ROWS)


# ---- V

V = _pattern("k, start_ts, low, end_ts, high", """MEASURES A.ts AS start_ts, LAST(B.v) AS low, LAST(C.ts) AS end_ts, LAST(C.v) AS high
    AFTER MATCH SKIP TO LAST C
    PATTERN (A B+ C+)
    DEFINE B AS v < PREV(v), C AS v > PREV(v)""")  # noqa: E501

V_SQL = """
WITH near AS (
    SELECT k, ts, v, row_number() OVER w AS i, lag(v) OVER w AS p, lead(v) OVER w AS f
    FROM {events} WINDOW w AS (PARTITION BY k ORDER BY {order})),
marked AS (
    SELECT k, ts, v, i, v < p AND v < f AS low FROM near
    WHERE (f < v AND NOT coalesce(v < p, false)) OR (v < p AND v < f) OR (v > p AND NOT coalesce(f > v, false))),
paired AS (
    SELECT k, low, lag(ts) OVER w AS start_ts, v, lead(ts) OVER w AS end_ts, lead(v) OVER w AS high
    FROM marked WINDOW w AS (PARTITION BY k ORDER BY i))
SELECT k, start_ts, v AS low, end_ts, high FROM paired WHERE low"""


def v_pattern(frame: pl.LazyFrame) -> pl.DataFrame:
    v, back, on = pl.col("v"), pl.col("v").shift(), pl.col("v").shift(-1)
    fell, rose = (BEFORE & (v < back)).fill_null(False), (BEFORE & (v > back)).fill_null(False)
    falls, rises = (BEHIND & (on < v)).fill_null(False), (BEHIND & (on > v)).fill_null(False)
    marked = frame.with_columns((fell & rises).alias("low"), (falls & ~fell).alias("b"), (rose & ~rises).alias("e"))
    kept = marked.filter(pl.col("low") | pl.col("b") | pl.col("e"))
    return kept.with_columns(
        pl.col("ts").shift().alias("start_ts"), pl.col("ts").shift(-1).alias("end_ts"),
        pl.col("v").shift(-1).alias("high"),
    ).filter("low").select("k", "start_ts", pl.col("v").alias("low"), "end_ts", "high").collect()  # fmt: skip


# ---- rising days

RISING = _pattern("k, start_ts, end_ts, n, first_v, last_v", f"""MEASURES A.ts AS start_ts, LAST(B.ts) AS end_ts, count(B.*) AS n, A.v AS first_v, LAST(B.v) AS last_v
    PATTERN (A B{{{RISES},}})
    DEFINE B AS v > PREV(v)""")  # noqa: E501

RISING_SQL = f"""
WITH near AS (
    SELECT k, ts, v, row_number() OVER w AS i, lag(v) OVER w AS p, lead(v) OVER w AS f
    FROM {{events}} WINDOW w AS (PARTITION BY k ORDER BY {{order}})),
marked AS (
    SELECT k, ts, v, i, f > v AS b FROM near
    WHERE (f > v AND NOT coalesce(v > p, false)) OR (v > p AND NOT coalesce(f > v, false))),
paired AS (
    SELECT k, b, ts AS start_ts, lead(ts) OVER w AS end_ts, lead(i) OVER w - i AS n, v AS first_v,
           lead(v) OVER w AS last_v
    FROM marked WINDOW w AS (PARTITION BY k ORDER BY i))
SELECT k, start_ts, end_ts, n, first_v, last_v FROM paired WHERE b AND n >= {RISES}"""


def rising(frame: pl.LazyFrame) -> pl.DataFrame:
    rose = (BEFORE & (pl.col("v") > pl.col("v").shift())).fill_null(False)
    rises = (BEHIND & (pl.col("v").shift(-1) > pl.col("v"))).fill_null(False)
    return _spans(frame, rises & ~rose, rose & ~rises, ("v",)).filter(pl.col("n") >= RISES)


# ---- funnel

FUNNEL_TEXT = _pattern("k, a_ts, b_ts, c_ts", f"""MEASURES A.ts AS a_ts, B.ts AS b_ts, C.ts AS c_ts
    AFTER MATCH SKIP TO NEXT ROW
    PATTERN (A B C)
    WITHIN INTERVAL {FUNNEL} MINUTE
    SELECTION SKIP TILL NEXT MATCH
    DEFINE A AS a = 'search', B AS a = 'cart', C AS a = 'pay'""")

FUNNEL_SQL = f"""
WITH paid AS (
    SELECT k, ts, a, row_number() OVER w AS i, min(ts) FILTER (a = 'pay') OVER after AS pay
    FROM {{events}} WHERE a IN ('search', 'cart', 'pay')
    WINDOW w AS (PARTITION BY k ORDER BY {{order}}),
           after AS (PARTITION BY k ORDER BY {{order}} ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING)),
chosen AS (
    SELECT k, a, ts AS a_ts, min(ts) FILTER (a = 'cart') OVER after AS b_ts,
           min(pay) FILTER (a = 'cart') OVER after AS c_ts
    FROM paid WHERE a <> 'pay'
    WINDOW after AS (PARTITION BY k ORDER BY i ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING))
SELECT k, a_ts, b_ts, c_ts FROM chosen WHERE a = 'search' AND c_ts <= a_ts + INTERVAL {FUNNEL} MINUTE"""


def _next(action: str) -> pl.Expr:
    """Returns the index of the next row with an action, of whatever key."""
    return pl.when(pl.col("a") == action).then(pl.col("n")).backward_fill().shift(-1)


def funnel(frame: pl.LazyFrame) -> pl.DataFrame:
    rows = frame.with_row_index("n").with_columns(_next("cart").alias("b"), _next("pay").alias("p")).collect()
    first = rows.filter(pl.col("a") == "search").drop_nulls("b")
    at = first["b"]
    pay = rows["p"].gather(at)
    found = pl.DataFrame([
        first["k"], first["ts"].alias("a_ts"), rows["ts"].gather(at).alias("b_ts"), rows["k"].gather(at).alias("b_k"),
        pay.alias("p"),
    ]).drop_nulls("p")  # fmt: skip
    found = found.with_columns(rows["ts"].gather(found["p"]).alias("c_ts"), rows["k"].gather(found["p"]).alias("c_k"))
    near = pl.col("c_ts") - pl.col("a_ts") <= _minutes(FUNNEL)
    same = (pl.col("k") == pl.col("b_k")) & (pl.col("k") == pl.col("c_k"))
    return found.filter(near & same).select("k", "a_ts", "b_ts", "c_ts")


# ---- absence

ABSENCE = _pattern("k, ts", f"""MEASURES A.ts AS ts
    AFTER MATCH SKIP TO NEXT ROW
    PATTERN (A NOT B)
    WITHIN INTERVAL {QUIET} MINUTE
    SELECTION SKIP TILL NEXT MATCH
    DEFINE A AS a = 'search', B AS a = 'pay'""")

ABSENCE_SQL = f"""
WITH paid AS (
    SELECT k, ts, a, min(ts) FILTER (a = 'pay') OVER after AS pay
    FROM {{events}} WHERE a IN ('search', 'pay')
    WINDOW after AS (PARTITION BY k ORDER BY {{order}} ROWS BETWEEN 1 FOLLOWING AND UNBOUNDED FOLLOWING))
SELECT k, ts FROM paid WHERE a = 'search' AND coalesce(pay > ts + INTERVAL {QUIET} MINUTE, true)"""


def absence(frame: pl.LazyFrame) -> pl.DataFrame:
    pay = pl.when(pl.col("a") == "pay")
    rows = frame.with_columns(
        pay.then(pl.col("ts")).backward_fill().shift(-1).alias("next"),
        pay.then(pl.col("k")).backward_fill().shift(-1).alias("of"),
    )
    paid = ((pl.col("of") == pl.col("k")) & (pl.col("next") - pl.col("ts") <= _minutes(QUIET))).fill_null(False)
    return rows.filter((pl.col("a") == "search") & ~paid).select("k", "ts").collect()


_V, _A = ("ts", "k", "v"), ("ts", "k", "a")
QUESTIONS = {
    "sessions": Question(_V, ("k", "start_ts", "end_ts", "n"), SESSIONS, SESSIONS_SQL, sessions),
    "islands": Question(_V, ("k", "start_ts", "end_ts", "n"), ISLANDS, ISLANDS_SQL, islands),
    "v": Question(_V, ("k", "start_ts", "low", "end_ts", "high"), V, V_SQL, v_pattern),
    "rising": Question(
        _V, ("k", "start_ts", "end_ts", "n", "first_v", "last_v"), RISING, RISING_SQL, rising
    ),
    "funnel": Question(
        _A, ("k", "a_ts", "b_ts", "c_ts"), FUNNEL_TEXT, FUNNEL_SQL, funnel, ("search", "cart", "pay")
    ),
    "absence": Question(_A, ("k", "ts"), ABSENCE, ABSENCE_SQL, absence, ("search", "pay")),
}  # fmt: skip

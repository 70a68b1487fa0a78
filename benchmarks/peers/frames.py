"""Q1 and Q3 without MATCH_RECOGNIZE, by hand in Polars, and Q1 and Q4 in DuckDB. All of them are exact.

Q1 is lag, gaps and islands as in benchmarks.windows: an island of rises followed at once by a fall, its C, is a match
with A the row before the rises. That row may be taken, as the C of the match before: where one fall lies between two
islands of rises. Then A has to be the first rise; with only one rise nothing is left for B, and there is no match. In a
chain of such one-rise islands each hangs on the one before, so every second one is a match.

Q3 is what stands next: for each A the next B of the tag, for that the next C, for that the next D. With the rows sorted
by tag, what is next in all of them is of another tag only if this one has no more; the last one found tells.

Q4 is two joins. Time is cut into buckets as long as the window, and an A meets what lies in its own and in the next,
so that the joins are by equality.
"""

from __future__ import annotations

import duckdb
import polars as pl
import pyarrow as pa

from benchmarks.peers.questions import Funnel, Path
from benchmarks.windows import ISLANDS_SQL, decided, numbered, stepped
from simulator.scenario import MINUTE_US


def rise_polars(ticks: pa.Table) -> pa.Table:
    """Q1. ticks: in time order, without nulls."""
    rows, names = stepped(ticks)
    kind, row = pl.col("kind"), pl.col("row")
    islands = rows.filter((kind != kind.shift(1)).fill_null(True)).with_columns(
        steps=row.shift(-1) - row, top=pl.col("before_price").shift(-1), low=pl.col("price").shift(-1),
        drops=kind.shift(-1) == -1,
        follows=((kind.shift(1) == -1) & (row - row.shift(1) == 1) & (kind.shift(2) == 1)).fill_null(False),
    )
    found = (
        decided(islands.filter((kind == 1) & pl.col("drops")))
        .select("code", start_ts=pl.when("taken").then("ts").otherwise("before_ts"), top="top", low="low")
        .collect()
    )
    return found.select(symbol=names.gather(found["code"]), start_ts="start_ts", top="top", low="low").to_arrow()


RISE_SQL = f"""{ISLANDS_SQL}, rises AS (
    SELECT symbol, ts, before_ts, kind, lead(kind) OVER w AS next_kind, lead(row) OVER w - row AS rises,
           lead(before_price) OVER w AS top, lead(price) OVER w AS low,
           lag(kind) OVER w = -1 AND row - lag(row) OVER w = 1 AND lag(kind, 2) OVER w = 1 AS follows
    FROM islands WINDOW w AS (PARTITION BY symbol ORDER BY ts)
    QUALIFY kind = 1 AND next_kind = -1
), chains AS (
    SELECT *, coalesce(follows AND rises = 1, false) AS hangs,
           count(*) FILTER (NOT hangs) OVER (PARTITION BY symbol ORDER BY ts ROWS UNBOUNDED PRECEDING) AS chain
    FROM rises
), decided AS (
    SELECT *, row_number() OVER (PARTITION BY symbol, chain ORDER BY ts) % 2 = 1 AS matched FROM chains
), starts AS (
    SELECT symbol, CASE WHEN follows AND lag(matched) OVER (PARTITION BY symbol ORDER BY ts) THEN ts ELSE before_ts END
               AS start_ts, top, low, matched
    FROM decided
)
SELECT symbol, start_ts, top, low FROM starts WHERE matched
"""


def rise_duckdb(ticks: pa.Table) -> pa.Table:
    """Q1. ticks: times of a symbol all differ, no nulls."""
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.register("ticks", ticks)
        return pa.table(connection.sql(RISE_SQL))


def path_polars(readings: pa.Table, constants: Path) -> pa.Table:
    """Q3. readings: in time order, without nulls."""
    numbers, names = numbered(readings["tag"])
    a, b, c, d = tuple(constants.readers)
    reader, row = pl.col("reader"), pl.col("row")
    rows = (
        pl.DataFrame({
            "code": numbers, "ts": pl.from_arrow(readings["ts"]),
            "reader": pl.Series(pl.from_arrow(readings["reader"])).cast(pl.Categorical),
        })
        .sort("code", maintain_order=True)
        .with_row_index("row")
    )
    following = rows.select(**{r: pl.when(reader == r).then(row).backward_fill() for r in (b, c, d)})
    at_a = rows.filter(reader == a)
    at_b = following[b].gather(at_a["row"])
    at_c = following[c].gather(at_b)
    at_d = following[d].gather(at_c)
    ts, code = rows["ts"], rows["code"]
    found = at_a.select(
        "code", a_ts="ts", b_ts=ts.gather(at_b), c_ts=ts.gather(at_c), d_ts=ts.gather(at_d), d_code=code.gather(at_d)
    ).filter(
        pl.col("code") == pl.col("d_code"),
        pl.col("d_ts") - pl.col("a_ts") <= pl.duration(minutes=constants.minutes),
    )
    return found.select(tag=names.gather(found["code"]), a_ts="a_ts", b_ts="b_ts", c_ts="c_ts", d_ts="d_ts").to_arrow()


FUNNEL_SQL = """
WITH cut AS (
    SELECT visitor, ts, action, epoch_us(ts) // {within} AS bucket FROM clicks
), pairs AS (
    SELECT a.visitor, a.ts AS a_ts, b.ts AS b_ts, a.bucket
    FROM (SELECT *, unnest([bucket, bucket + 1]) AS at FROM cut WHERE action = '{a}') AS a
    JOIN (FROM cut WHERE action = '{b}') AS b
      ON b.visitor = a.visitor AND b.bucket = a.at AND b.ts > a.ts AND epoch_us(b.ts) - epoch_us(a.ts) <= {within}
), found AS (
    SELECT p.visitor, a_ts, b_ts, c.ts AS c_ts
    FROM (SELECT *, unnest([bucket, bucket + 1]) AS at FROM pairs) AS p
    JOIN (FROM cut WHERE action = '{c}') AS c
      ON c.visitor = p.visitor AND c.bucket = p.at AND c.ts > b_ts AND epoch_us(c.ts) - epoch_us(a_ts) <= {within}
)
"""


def funnel_duckdb(clicks: pa.Table, constants: Funnel) -> pa.Table:
    """Q4, counted or not. clicks: times all differ, no nulls."""
    text = FUNNEL_SQL.format(within=constants.minutes * MINUTE_US, **dict(zip("abc", constants.actions)))
    text += "SELECT visitor, count(*) AS found FROM found GROUP BY visitor" if constants.counted else "FROM found"
    with duckdb.connect(config={"threads": 1}) as connection:
        connection.register("clicks", clicks)
        return pa.table(connection.sql(text))

"""Statements and events from a seed, for the comparison of Spark with the search in one process."""

from __future__ import annotations

from random import Random

import pyarrow as pa

from tests.differential.draw import flink, pandas

COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "s": "VARCHAR", "v": "INTEGER", "w": "INTEGER"}
DAY_US = 86_400_000_000


def table(random: Random, count: int) -> pa.Table:
    """Events of the stream t: their times ascend, over some days; keys are uneven and may be null."""
    keys = ("a", "b", "b", "b", "ä", None, "")
    times, now = [], 1_700_000_000_000_000
    for _ in range(count):
        now += random.choice((2_000_000, 2_000_000, 4_000_000, 6_000_000, DAY_US // 40))
        times.append(now)
    return pa.table(
        {
            "ts": pa.array(times, pa.timestamp("us")),
            "k": pa.array([random.choice(keys) for _ in times], pa.string()),
            "s": pa.array([random.choice("abc") for _ in times], pa.string()),
            "v": pa.array([random.randint(0, 9) for _ in times], pa.int32()),
            "w": pa.array([random.choice((None, *range(10))) for _ in times], pa.int32()),
        }
    )


#: What is asked of a stream besides chains and alternations: {0} partitions, {1} a time.
OTHERS = (
    "SELECT k, count(*) AS n, sum(x) AS x FROM t MATCH_RECOGNIZE (PARTITION BY {0} ORDER BY ts MEASURES A.v AS x "
    "PATTERN (A B+ C) WITHIN INTERVAL {1} SECOND SELECTION SKIP TILL NEXT MATCH "
    "DEFINE A AS s = 'a', B AS v > 5, C AS s = 'c') AS m GROUP BY k",
    "SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY {0} ORDER BY ts MEASURES A.ts AS f, C.ts AS l, C.ts - A.ts AS d, "
    "sum(v) AS n PATTERN (A C) WITHIN INTERVAL {1} SECOND SELECTION SKIP TILL ANY MATCH DEFINE A AS s = 'a', "
    "C AS v > A.v) AS m ORDER BY f, l",
    "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES A.ts AS f, A.k AS k, B.v AS n AFTER MATCH NO SKIP "
    "PATTERN (A ~N B) WITHIN INTERVAL {1} SECOND SELECTION SKIP TILL NEXT MATCH "
    "DEFINE A AS s = 'a', N AS v = 0, B AS s = 'b') AS m",
    "SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES A.ts AS f, B.v AS n AFTER MATCH SKIP TO NEXT ROW "
    "PATTERN (~N A B ~N) WITHIN INTERVAL {1} SECOND SELECTION SKIP TILL NEXT MATCH "
    "DEFINE A AS s = 'a', N AS v = 9, B AS s = 'b') AS m",
    "SELECT count(*) AS n FROM t MATCH_RECOGNIZE (PARTITION BY {0} ORDER BY ts MEASURES A.v AS x PATTERN (A B C) "
    "WITHIN INTERVAL {1} SECOND SELECTION SKIP TILL ANY MATCH DEFINE A AS v > 2, B AS v > 4, C AS w > 3) AS m",
    "SELECT k, s, count(*) FILTER (n > 2) AS long FROM t MATCH_RECOGNIZE (PARTITION BY {0}, s ORDER BY ts "
    "MEASURES count(*) AS n PATTERN (A+) DEFINE A AS v >= coalesce(PREV(v), 0)) AS m GROUP BY ALL",
    "SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY {0} ORDER BY ts MEASURES A.ts AS f, B.ts AS l "
    "PATTERN (A B) SELECTION STRICT DEFINE B AS v <> A.v) AS m",
    "SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY {0} ORDER BY ts ALL ROWS PER MATCH WITH UNMATCHED ROWS "
    "AFTER MATCH SKIP TO NEXT ROW PATTERN (A B{{2,}}) WITHIN INTERVAL {1} SECOND DEFINE B AS v < PREV(v)) AS m",
    "SELECT m.k, m.ts, number, classifier FROM t MATCH_RECOGNIZE (PARTITION BY {0} ORDER BY ts MEASURES MATCH_NUMBER() "
    "AS number, CLASSIFIER() AS classifier ALL ROWS PER MATCH PATTERN (A {{- B -}} C) DEFINE B AS v > A.v, "
    "C AS v < B.v) AS m",
    "SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY {0} ORDER BY ts MEASURES list(v) AS vs, arg_max(s, v) AS top "
    "AFTER MATCH SKIP TO NEXT ROW PATTERN (A{{2,3}}) WITHIN 4 ROWS DEFINE A AS v > 3) AS m",
    "SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY {0} ORDER BY ts MEASURES A.ts AS f "
    "ONE ROW PER MATCH TIMEOUT ROWS PATTERN (A B) WITHIN INTERVAL {1} SECOND DEFINE A AS v > 7, B AS v < 1) AS m",
    "SELECT m.x, side.y FROM t MATCH_RECOGNIZE (PARTITION BY {0} ORDER BY ts MEASURES LAST(A.v) AS x PATTERN (A+ B) "
    "DEFINE A AS s <> 'b', B AS s = 'b') AS m JOIN side ON side.x = m.x",
    "SELECT * FROM t MATCH_RECOGNIZE (PARTITION BY {0} ORDER BY ts MEASURES FIRST(A.v) AS x, C.w AS y PATTERN "
    "(^ A+ C | A C $) DEFINE A AS v < 8, C AS w IS NOT NULL) AS m",
)
SIDE = pa.table({"x": list(range(0, 10, 2)), "y": list("vwxyz")})


def statement(seed: int) -> str:
    """A statement over the stream t, and the table `side`."""
    random = Random(seed)
    which = seed % 3
    if which == 0:
        return flink(random).job.query
    if which == 1:
        return pandas(random).job.query
    partition = random.choice(("k", "k", "k, w"))
    return OTHERS[seed // 3 % len(OTHERS)].format(partition, random.choice((4, 8, 20)))

_TRENDS = ("A+ B", "A (B | C)+", "A ~C B+", "A B? C", "(A | B)+", "A+ ~B", "A B", "(A B)+ C")
_BETWEEN = ("", " AND v >= coalesce(LAST(A.v, 1), 0)", " AND w > 2", " AND k IS DISTINCT FROM 'ä'")
_SUMS = (
    "COUNT(MATCHES) AS n, COUNT(A.*) AS c, SUM(v) AS s, SUM(A.v / 7) AS d, AVG(w) AS a, MIN(w) AS lo, MAX(A.v) AS hi"
)
#: How partitions are put together: PARTITION BY and GROUP BY.
_BY = (("", ""), ("k", ""), ("k", "k"), ("k, w", "k"), ("k, w", "w, k"), ("w", ""))
ENUMERATED = " AND coalesce(k, '') >= coalesce(LAST(A.k, 1), '')"


def trends(seed: int) -> str:
    """A statement of ONE ROW PER WINDOW over the stream t, whose measures are bare aggregates."""
    random = Random(seed)
    pattern, (partition, group) = random.choice(_TRENDS), _BY[seed % len(_BY)]
    within, slide = random.choice(((10, 5), (20, 20), (12, 3), (16, 30)))
    by = f"PARTITION BY {partition} " * bool(partition)
    more = ENUMERATED if seed % 7 == 3 else random.choice(_BETWEEN)
    pattern = random.choice(("A+ B", "A+", "B A+ C?")) if "LAST" in more else pattern
    defined = [f"{x} AS s = '{x.lower()}'{more * (x == 'A')}" for x in "ABC" if x in pattern]
    selection = random.choice(("", "", "SELECTION SKIP TILL NEXT MATCH ", "SELECTION PARTITION ", "SELECTION STRICT "))
    return (
        f"SELECT * FROM t MATCH_RECOGNIZE ({by}ORDER BY ts {f'GROUP BY {group} ' * bool(group)}MEASURES {_SUMS} "
        f"ONE ROW PER WINDOW PATTERN ({pattern}) WITHIN {within} SECONDS SLIDE {slide} SECONDS {selection}"
        f"DEFINE {', '.join(defined)}) AS m"
    )

"""The conditions, each with the cheap one that it stands beside, and the events."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from query.schema import Field, Schema
from simulator.scenario import START_US, TIMESTAMP, generator

EVENTS = Schema(
    "t",
    (
        Field("ts", "TIMESTAMP"), Field("k", "BIGINT"), Field("v", "DOUBLE"), Field("q", "BIGINT"),
        Field("s", "VARCHAR"), Field("n", "BIGINT"), Field("z", "DOUBLE"), Field("d", "DECIMAL(12,2)"),
        Field("b", "BOOLEAN"), Field("f", "FLOAT"), Field("w", "TIMESTAMP"), Field("u", "BIGINT"),
        Field("o", "BIGINT"),
    ),
    time="ts", keys=("k",),
)  # fmt: skip


def events(rows: int, keys: int, seed: int) -> pa.Table:
    """Returns events of `keys` keys at random, seven seconds apart. n has nulls, z has nothing else, u and o 10,000
    values."""
    at = generator(seed)
    times = START_US + np.arange(rows, dtype=np.int64) * 7_000_000
    words = pa.array(["ab", "Ab", "cde", "x", "yy"])
    cents = pa.array(at.integers(100, 100_000, rows)).cast(pa.decimal128(19, 0))
    price = np.round(at.random(rows) * 100 + 1, 2)
    return pa.table({
        "ts": pa.array(times).view(TIMESTAMP), "k": at.integers(0, keys, rows), "v": price,
        "q": at.integers(1, 20, rows), "s": words.take(pa.array(at.integers(0, 5, rows))),
        "n": pa.array(at.integers(0, 10, rows), mask=at.random(rows) < 0.2), "z": pa.nulls(rows, pa.float64()),
        "d": pa.chunked_array([cents]).cast(pa.decimal128(21, 2)).cast(pa.decimal128(12, 2)),
        "b": at.random(rows) < 0.5, "f": price.astype(np.float32),
        "w": pa.array(times + at.integers(0, 3_600_000_000, rows)).view(TIMESTAMP),
        "u": at.integers(0, 10_000, rows), "o": at.integers(0, 10_000, rows),
    })  # fmt: skip


@dataclass(frozen=True, slots=True)
class Case:
    """A condition in its pattern. kind: the group it belongs to. neighbour: the name of the cheap case beside it; its
    own name for a neighbour itself. by: the columns of PARTITION BY; clauses: after the pattern; after: before it."""

    kind: str
    name: str
    pattern: str
    define: str
    neighbour: str
    by: tuple[str, ...] = ("k",)
    clauses: str = ""
    after: str = ""

    def text(self) -> str:
        by = f"PARTITION BY {', '.join(self.by)} " if self.by else ""
        return (
            f"SELECT * FROM t MATCH_RECOGNIZE ({by}ORDER BY ts MEASURES FIRST(ts) AS t0, LAST(v) AS v "
            f"{self.after} PATTERN ({self.pattern}) {self.clauses} DEFINE {self.define})"
        )


#: Patterns, and where the condition stands: between two rows; at the end of a run; on each row of a run; at the end of
#: a run that each row begins.
_PAIR = ("A B", "B AS {}")
_RUN = ("A+ B", "A AS v < 80, B AS {}")
_GROW = ("A+ B", "A AS {}")
_STARTS = ("A+ B", "B AS {}")
_HOLD = ("H+ E", "H AS v < 50, E AS {}")

_NEIGHBOURS = {
    "numbers": (_PAIR, "v > A.v"),
    "text": (_PAIR, "s = A.s"),
    "times": (_PAIR, "ts - A.ts < INTERVAL 10 MINUTE"),
    "durations": (_HOLD, "ts - FIRST(H.ts) >= INTERVAL 8 MINUTE"),
    "aggregates": (_RUN, "v > avg(A.v)"),
    "so far": (_GROW, "sum(q) <= 60"),
    "navigation": (_RUN, "v > LAST(A.v, 3)"),
    "null": (_PAIR, "n > A.n"),
    "starts": (_STARTS, "v > 90 * FIRST(A.v)"),
}

_CONDITIONS = {
    "numbers": """
        v > A.v * 1.01; v < A.v - 1; v + A.v > 100; v - A.v > 10; v * A.v > 2000; v / A.v > 1.5; q // A.q = 1
        q % A.q = 0; q % 7 = A.q % 7; -v < -A.v; abs(v - A.v) < 5; abs(v / A.v - 1) < 0.05; v <> A.v; q = A.q
        q <= A.q; v BETWEEN A.v AND A.v + 10; v BETWEEN A.v - 5 AND A.v + 5; q IN (A.q, A.q + 1); q NOT IN (A.q, 3)
        round(v / A.v, 3) < 1.002; round(v) = round(A.v); round(v, 1) > round(A.v, 1); floor(v / A.v) = 1
        ceil(v / A.v) = 1; trunc(v / A.v) = 1; ln(v / A.v) > 0.1; log10(v / A.v) > 0.1; log2(v / A.v) > 0.1
        exp(v / 100) > exp(A.v / 100); sqrt(v * A.v) > 50; power(v, 2) > power(A.v, 2); v ** 2 > A.v ** 2
        sign(v - A.v) = 1; cbrt(v * A.v) > 15; v <= greatest(A.v, PREV(v)); v >= least(A.v, 50)
        greatest(q, A.q) > 10; v::INT = A.v::INT; q::DOUBLE > A.v; (v * 100)::BIGINT > (A.v * 100)::BIGINT; d > A.d
        d > A.d * 1.1; d - A.d > 100; d::DOUBLE > A.v; d + q > A.d; f > A.f; f * 2 > A.f; b = A.b; b <> A.b
        b AND NOT A.b; b OR v > A.v; xor(q::INTEGER, A.q::INTEGER) > 8
        CASE WHEN A.q > 5 THEN v > A.v ELSE v < A.v END; if(q > A.q, v, A.v) > 50; sin(v - A.v) > 0
        degrees(v) > degrees(A.v); v > A.v AND q > A.q; v > A.v OR q = A.q; NOT (v > A.v)
        (v - A.v) / nullif(A.v, 0) > 0.1; mod(q, 5) = mod(A.q, 5); gcd(q, A.q) = 1; q & A.q = 0; q << 1 > A.q
        v > A.v IS TRUE""",
    "text": """
        s < A.s; s >= A.s; s <> A.s; lower(s) = lower(A.s); upper(s) < upper(A.s); starts_with(s, left(A.s, 1))
        A.s || s <> 'ab'; length(s) >= length(A.s); length(s) > length(A.s) + 1; s LIKE A.s || '%'; s IN (A.s, 'x')
        contains(s, A.s); left(s, 1) = left(A.s, 1); right(s, 1) = right(A.s, 1); substring(s, 1, 2) = A.s
        reverse(s) = A.s; concat(s, A.s) = 'xx'; s IS DISTINCT FROM A.s; s IS NOT DISTINCT FROM A.s
        trim(s) = trim(A.s); s ILIKE A.s; replace(s, 'b', '') = replace(A.s, 'b', ''); strpos(s, A.s) = 1
        regexp_matches(s, A.s); coalesce(s, '') > A.s; CASE WHEN s = A.s THEN 1 ELSE 2 END = 2; md5(s) = md5(A.s)
        levenshtein(s, A.s) <= 1; ascii(s) > ascii(A.s); s BETWEEN A.s AND 'y'; greatest(s, A.s) = s
        s > 'b' AND A.s > 'b'; q::VARCHAR = A.q::VARCHAR; hash(s) = hash(A.s)""",
    "times": """
        ts::DATE = A.ts::DATE; hour(ts) = hour(A.ts); minute(ts) > minute(A.ts); dayofweek(ts) = dayofweek(A.ts)
        date_trunc('day', ts) = date_trunc('day', PREV(ts)); date_trunc('hour', ts) = date_trunc('hour', A.ts)
        date_diff('minute', A.ts, ts) < 10; date_diff('day', A.ts, ts) = 0; date_sub('minute', A.ts, ts) < 10
        epoch(ts) - epoch(A.ts) < 600; epoch_ms(ts) - epoch_ms(A.ts) < 600000; epoch_us(ts) > epoch_us(A.ts)
        w > A.w; extract(hour FROM ts) = extract(hour FROM A.ts); ts > A.ts + INTERVAL 5 MINUTE
        w - A.ts > INTERVAL 1 HOUR; ts::TIME > A.ts::TIME; strftime(ts, '%H') = strftime(A.ts, '%H')
        time_bucket(INTERVAL 1 HOUR, ts) <> A.ts; ts < A.w; w BETWEEN A.ts AND A.w
        year(ts) = year(A.ts) AND month(ts) = month(A.ts); ts <> A.w; week(ts) = week(A.ts)
        ts + INTERVAL 1 MONTH > A.w; last_day(ts) = last_day(A.ts); greatest(w, A.w) = w
        age(w, A.ts) > INTERVAL 1 HOUR""",
    "durations": """
        date_diff('minute', FIRST(H.ts), ts) >= 8; epoch(ts) - epoch(FIRST(H.ts)) >= 480
        epoch_ms(ts) - epoch_ms(FIRST(H.ts)) >= 480000; ts::DATE > FIRST(H.ts)::DATE; hour(ts) <> hour(FIRST(H.ts))
        ts >= FIRST(H.ts) + INTERVAL 8 MINUTE; date_sub('minute', FIRST(H.ts), ts) >= 8
        ts - LAST(H.ts) > INTERVAL 9 MINUTE; date_trunc('hour', ts) > date_trunc('hour', FIRST(H.ts))
        ts - FIRST(H.ts) > LAST(H.ts) - FIRST(H.ts) + INTERVAL 1 MINUTE""",
    "aggregates": """
        v > max(A.v); v < min(A.v); v > sum(A.v) / count(A.v); v > stddev(A.v); v > stddev_pop(A.v)
        v > var_pop(A.v) / 10; v > variance(A.v) / 10; v > median(A.v); v > quantile_cont(A.v, 0.9)
        v > quantile_disc(A.v, 0.9); v > any_value(A.v); v > min_by(A.v, A.q); v > max_by(A.v, A.q)
        v > arg_min(A.v, A.q); v > first(A.v); v > last(A.v); v > mode(A.q); v > avg(A.q) * 5; v > avg(A.d) / 20
        q > count(DISTINCT A.s) * 3; v > product(A.v / 50); bool_or(A.b) AND v > 50; v > count(*) * 10
        v > avg(A.v) + stddev(A.v); v > sum(A.v * A.q) / sum(A.q); len(list(A.v)) < 4; sum(length(A.s)) > 6
        string_agg(A.s, ',') > 'b'; s = max(A.s); s > min(A.s); q > max(A.q - 1); v > geomean(A.v); v > mad(A.v)
        q > approx_count_distinct(A.s) * 3; v > max(A.v) - min(A.v); v > kurtosis(A.v) * 10""",
    "so far": """
        count(*) <= 8; sum(v) <= 300; max(q) - min(q) < 12; (sum(q) / 10)::INT < 6; round(avg(v)) < 60
        count(DISTINCT s) < 4; len(list(A.v)) < 10; bool_and(A.q > 2); bool_or(A.q > 18) IS NOT TRUE
        stddev(v) < 25 IS NOT FALSE; sum(q) % 7 <> 0; v < avg(A.v) + 30; length(FIRST(A.s)) + sum(length(A.s)) <= 20
        avg(q) < 12; median(v) < 60; sum(d) < 3000; v < max(v) * 1.5 AND count(*) < 20; min(v) > 10
        sum(q * v) < 3000; count(n) < 6; mode(q) < 15; sum(q)::DOUBLE / 10 < 6; count(*) FILTER (WHERE q > 10) < 4
        sum(q) FILTER (WHERE b) < 40; quantile_cont(v, 0.5) < 60; var_pop(v) < 700""",
    "navigation": """
        v > FIRST(A.v); v > LAST(A.v, 1); v > LAST(A.v, 60); v > LAST(A.v, 100); v > LAST(A.v, 1000)
        v > FIRST(A.v, 2); v > PREV(v); v > PREV(v, 2); v > PREV(v, 50); v > NEXT(v); v > NEXT(v, 2)
        v > PREV(LAST(A.v, 1)); PREV(CLASSIFIER()) = 'A'; LAST(A.v) > PREV(LAST(A.v)) AND v > 50
        v > MATCH_NUMBER() % 100; CLASSIFIER() = 'B'; v > NEXT(FIRST(A.v)); v > PREV(FIRST(A.v)); PREV(s) = s
        lower(PREV(s)) = lower(s); v > PREV(v) AND PREV(v) > PREV(v, 2); LAST(A.q) > FIRST(A.q) AND v > LAST(A.v)
        s = FIRST(A.s); v - PREV(v) > PREV(v) - PREV(v, 2)""",
    "null": """
        n IS NULL AND A.n IS NOT NULL; coalesce(n, 0) > coalesce(A.n, 1); n IS DISTINCT FROM A.n
        n IS NOT DISTINCT FROM A.n; nullif(n, A.n) > 3; n = A.n OR n IS NULL; z IS NULL AND v > A.v; z > A.v
        coalesce(z, v) > A.v; n + A.n > 8; ifnull(n, A.n) > 4; CASE WHEN n IS NULL THEN A.n ELSE n END > 4
        n IN (A.n, 2, NULL); z IS NOT DISTINCT FROM A.z""",
    "starts": """
        v > FIRST(A.v) + 99; v - FIRST(A.v) > 99; v / FIRST(A.v) > 90; (v - FIRST(A.v)) / FIRST(A.v) > 90
        q > FIRST(A.q) + 18; q / FIRST(A.q) > 18.9; q > 20 * min(A.q); q - FIRST(A.q) > 18; d - FIRST(A.d) > 995
        d / FIRST(A.d) > 900; u - FIRST(A.u) > 9990; v < max(A.v) - 99; v / max(A.v) < 0.011
        b AND v > LAST(A.v) + 99; epoch(ts - FIRST(A.ts)) > 1e9""",
}


_DAY = "WITHIN INTERVAL 1 DAY"
_PAST = "AFTER MATCH SKIP PAST LAST ROW"
_NEXT, _ANY = f"{_DAY} SELECTION SKIP TILL NEXT MATCH", f"{_DAY} SELECTION SKIP TILL ANY MATCH"
#: Rows of a match with one u, over thousands of partial matches with others: pattern, clauses, conditions in which {}
#: is the equality, and AFTER MATCH.
_EQUAL: dict[str, tuple[str, ...]] = {
    "a step": ("Q A", _NEXT, "Q AS s = 'x', A AS s = 'yy'{}"),
    "a step that compares": ("Q A", _NEXT, "Q AS s = 'x', A AS s = 'yy' AND v > Q.v{}"),
    "two steps": ("Q A B", _ANY, "Q AS s = 'x', A AS s = 'yy'{}, B AS s = 'cde'{}"),
    "absent between": ("Q NOT N A", _NEXT, "Q AS s = 'x', A AS s = 'yy'{}, N AS s = 'cde'{}"),
    "absent behind": ("Q NOT A", _DAY, "Q AS s = 'x', A AS s = 'yy'{}"),
    "absent behind a step": ("Q A NOT N", _NEXT, "Q AS s = 'x', A AS s = 'yy'{}, N AS s = 'cde'{}"),
    "rare, not overlapping": ("Q A B", _NEXT, "Q AS s = 'x', A AS s = 'yy'{}, B AS s = 'cde' AND v < 1.1{}", _PAST),
    "absent behind a step, not overlapping": (
        "Q A NOT N", _NEXT, "Q AS s = 'x', A AS s = 'yy'{}, N AS s = 'cde'{}", _PAST,
    ),
}


def _equalities() -> list[Case]:
    """Returns patterns tied by u, each after the same one with PARTITION BY u."""
    found = []
    for by in ((), ("k",)):
        for shown, (pattern, clauses, define, *after) in _EQUAL.items():
            cheap = f"{shown}, PARTITION BY {', '.join((*by, 'u'))}"
            name = f"{shown}, u = Q.u" + (" by k" if by else "")
            parts = define.count("{}")
            apart, tied = (define.format(*[e] * parts) for e in ("", " AND u = Q.u"))
            found.append(Case("equality", cheap, pattern, apart, cheap, (*by, "u"), clauses, *after))
            found.append(Case("equality", name, pattern, tied, cheap, by, clauses, *after))
    beside = "absent behind, PARTITION BY u"
    two, all_of_u = "absent behind two rows, u = Q.u", "Q AS s = 'x', A AS s = 'yy' AND u = Q.u"
    found.append(Case("equality", two, "Q R NOT A", all_of_u, beside, (), _DAY))
    other = "absent behind, u = Q.n"
    found.append(Case("equality", other, "Q NOT A", "Q AS s = 'x', A AS s = 'yy' AND u = Q.n", beside, (), _DAY))
    step = "a step, PARTITION BY u"
    chain, to_next = "Q AS s = 'x', A AS u = Q.o, B AS u = A.o", "AFTER MATCH SKIP TO NEXT ROW"
    found += [
        Case("equality", "a chain, u = Q.o, u = A.o", "Q A B", chain, step, (), _NEXT),
        Case("equality", "a chain, not overlapping", "Q A B", chain, step, (), _NEXT, _PAST),
        Case("equality", "a chain by k", "Q A B", chain, step, ("k",), _NEXT, to_next),
        Case("equality", "two columns", "Q A B", "Q AS s = 'x', A AS u = Q.u, B AS o = A.o", step, (), _NEXT),
        Case("equality", "a loop", "Q A+ B", "Q AS s = 'x', A AS u = Q.u, B AS o = Q.o", step, (), _NEXT, to_next),
        Case("equality", "beside NEXT", "Q A", "Q AS s = 'x', A AS u = Q.u AND v > NEXT(v)", step, (), _NEXT),
        Case("equality", "in 5,000 rows of a key", "Q A", "Q AS s = 'x', A AS u = Q.u", step, ("k",),
             f"WITHIN 5000 ROWS {_NEXT.removeprefix(_DAY)}"),
    ]  # fmt: skip
    for shown, equal in {
        "computed, u = Q.u + 1": "u = Q.u + 1", "a function, u // 2 = Q.u // 2": "u // 2 = Q.u // 2",
        "nulls equal": "u IS NOT DISTINCT FROM Q.u", "rows of values": "(u, b) = (Q.u, Q.b)",
        "beside what may fail": "u = Q.u AND q + 1 < Q.q + 5",
    }.items():  # fmt: skip
        found.append(Case("equality", shown, "Q A", f"Q AS s = 'x', A AS s = 'yy' AND {equal}", step, (), _NEXT))
    return found


def _name(condition: str) -> str:
    return " ".join(condition.split())


def cases() -> tuple[Case, ...]:
    """Returns all conditions, each neighbour before those beside it."""
    found: list[Case] = []
    for kind, ((pattern, define), cheap) in _NEIGHBOURS.items():
        found.append(Case(kind, cheap, pattern, define.format(cheap), cheap))
        for written in _CONDITIONS[kind].replace("\n", ";").split(";"):
            if name := _name(written):
                found.append(Case(kind, name, pattern, define.format(name), cheap))
    return (*found, *_equalities())

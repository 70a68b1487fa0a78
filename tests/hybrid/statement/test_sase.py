"""SASE+ statements answered: the three queries of the paper, worked answers of every strategy, live and composed."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import hybrid
from hybrid.cli import main
from hybrid.statement.statement import compare_with_reference
from query.errors import HybridWarning, QueryError

START = datetime(2024, 3, 1)
Rows = list[dict[str, Any]]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        yield


def events(text: str) -> Rows:
    """`name@seconds{column=number}`: s holds the letters of the name, k is p unless given."""
    rows: Rows = []
    for name, seconds, columns in re.findall(r"(\w+)@(\d+)(?:\{(.*?)\})?", text):
        row: dict[str, Any] = {"ts": START + timedelta(seconds=int(seconds)), "name": name, "k": "p"}
        row |= {"s": name.rstrip("0123456789"), "v": None, "price": None, "vol": None}
        for item in filter(None, columns.split(",")):
            key, value = item.split("=")
            row[key] = value if key == "k" else None if value == "null" else int(value)
        rows.append(row)
    return rows


def matches(result: hybrid.Result) -> str:
    """`A=a1,a2 B=b1 ; ...`: the events of each row of the answer by their variables; `b[i]` and `b[LEN]` are one."""
    found: dict[int, dict[str, list[str]]] = {}
    for event in result.evidence().to_pylist():
        variable = event["variable"].split("[")[0].upper()
        found.setdefault(event["row"], {}).setdefault(variable, []).append(event["name"])
    rows = [" ".join(f"{v}={','.join(names)}" for v, names in found[row].items()) for row in sorted(found)]
    return " ; ".join(rows) or "none"


# ---- the queries of the paper ----------------------------------------------------------------------------------

SHOPLIFTING = """
PATTERN SEQ(Shelf a, ∼(Register b), Exit c)
WHERE    skip_till_next_match(a, b, c) {
               a.tag_id = b.tag_id
       and     a.tag_id = c.tag_id
               /* equivalently, [tag_id] */     }
WITHIN    12 hours
"""
CONTAMINATION = """
PATTERN SEQ(Alert a, Shipment+ b[ ])
WHERE    skip_till_any_match(a, b[ ]) {
                 a.type = 'contaminated'
       and       b[1].from = a.site
       and       b[i].from = b[i-1].to }
WITHIN    3 hours
"""
TREND = """
PATTERN SEQ(Stock+ a[ ], Stock b)
WHERE    skip_till_next_match(a[ ], b) {
                 [symbol]
       and       a[1].volume > 1000
       and       a[i].price > avg(a[..i-1].price)
       and       b.volume < 80%*a[a.LEN].volume }
WITHIN    1 hour
"""


@pytest.mark.parametrize("conditions", ["a.tag_id = b.tag_id and a.tag_id = c.tag_id", "[tag_id]"])
def test_shoplifting(conditions: str) -> None:
    """Tag 1 is paid for; 2 is not; 3 leaves after 12 hours exactly, 4 a second later; for 5 another tag is paid."""
    read = [
        (0, "Shelf", 1), (0, "Shelf", 2), (3600, "Register", 1), (7200, "Exit", 1), (7300, "Exit", 2),
        (8000, "Shelf", 3), (8000 + 43200, "Exit", 3), (60000, "Shelf", 4), (60001 + 43200, "Exit", 4),
        (200000, "Shelf", 5), (200001, "Register", 6), (200002, "Exit", 5),
    ]  # fmt: skip
    rows = [{"ts": START + timedelta(seconds=s), "kind": kind, "tag_id": tag} for s, kind, tag in read]
    query = re.sub(r"\{.*\}", f"{{ {conditions} }}", SHOPLIFTING, flags=re.DOTALL)
    query += "RETURN a.tag_id, epoch(c.ts) - epoch(a.ts) AS lasted"
    found = hybrid.sql(f"FROM reads TYPE BY kind {query}", reads=rows)
    assert [(r["tag_id"], r["lasted"]) for r in found.arrow().to_pylist()] == [
        (2, 7300), (3, 43200), (5, 2),
    ]  # fmt: skip


def test_shoplifting_as_printed() -> None:
    rows = events("a1@1 b1@2 a2@3 c1@4")
    kinds = {"a": "Shelf", "b": "Register", "c": "Exit"}
    reads = [{"ts": r["ts"], "name": r["name"], "kind": kinds[r["s"]], "tag_id": 7} for r in rows]
    found = hybrid.sql(f"FROM reads TYPE BY kind {SHOPLIFTING}", reads=reads)
    assert matches(found) == "A=a2 C=c1"
    assert found.arrow().to_pylist() == [
        {"match_number": 1, "first_ts": rows[2]["ts"], "last_ts": rows[3]["ts"], "events": 2}
    ]


def test_contamination() -> None:
    """From the site p of the alert: p to q to r to t, and p to s. No way is from x, or longer than 3 hours."""
    sent = [(1, "p", "q"), (2, "x", "y"), (3, "q", "r"), (4, "p", "s"), (5, "r", "t"), (181, "s", "z")]
    rows: Rows = [{"ts": START, "kind": "Alert", "type": "contaminated", "site": "p", "from": None, "to": None}]
    rows.append({**rows[0], "type": "lost", "site": "r"})
    for minute, start, end in sent:
        shipment = {"kind": "Shipment", "type": None, "site": None, "from": start, "to": end}
        rows.append({"ts": START + timedelta(minutes=minute), **shipment})
    query = f"{CONTAMINATION} RETURN a.site, string_agg(b[].to, '') AS way, b[b.LEN].to, b.LEN AS n"
    found = hybrid.sql(f"FROM events TYPE BY kind {query}", events=rows)
    assert [tuple(r.values()) for r in found.arrow().to_pylist()] == [
        ("p", "q", "q", 1), ("p", "qr", "r", 2), ("p", "s", "s", 1), ("p", "qrt", "t", 3),
    ]  # fmt: skip


def test_trend() -> None:
    """The events of the paper's figure 3, and its three matches."""
    given = [(100, 1010), (120, 990), (120, 1005), (121, 999), (120, 999), (125, 750), (120, 950), (120, 700)]
    rows = [
        {"ts": START + timedelta(seconds=i), "name": f"e{i}", "symbol": "GOOG", "price": price, "volume": volume}
        for i, (price, volume) in enumerate(given, 1)
    ]
    found = hybrid.sql(TREND, stock=rows)
    assert matches(found) == "A=e1,e2,e3,e4,e5 B=e6 ; A=e3,e4 B=e6 ; A=e1,e2,e3,e4,e5,e6,e7 B=e8"
    query = f"FROM stock {TREND} RETURN a[1].price AS first, avg(a[].price) AS mean, b.volume"
    averages = hybrid.sql(query, stock=rows)
    assert [tuple(r.values())[1:] for r in averages.arrow().to_pylist()] == [
        (100, 116.2, 750), (120, 120.5, 750), (100, 118.0, 700),
    ]  # fmt: skip


# ---- strategies, negation, arrays ------------------------------------------------------------------------------

NEXT, ANY = "skip_till_next_match", "skip_till_any_match"
PLUS = "SEQ(a+ a[], b b) WHERE {}(a[], b) {{ [k] }}"


@pytest.mark.parametrize(
    ("given", "query", "expected"),
    [
        ("a1@1 a2@2 b1@3", PLUS.format(NEXT), "A=a1,a2 B=b1 ; A=a2 B=b1"),
        ("a1@1 a2@2 b1@3", PLUS.format(ANY), "A=a1,a2 B=b1 ; A=a1 B=b1 ; A=a2 B=b1"),
        ("a1@1 b1@2 b2@3", PLUS.format(NEXT), "A=a1 B=b1 ; A=a1 B=b2"),
        ("a1@1 b1@2 a2@3 b2@4", PLUS.format(NEXT), "A=a1 B=b1 ; A=a1,a2 B=b2 ; A=a2 B=b2"),
        # all matches under contiguity too
        ("a1@1 a2@2 b1@3", PLUS.format("partition_contiguity"), "A=a1,a2 B=b1 ; A=a2 B=b1"),
        ("a1@1 b1@2 b2@3", "SEQ(a a, b+ b[]) WHERE partition_contiguity(a, b[]) { }", "A=a1 B=b1 ; A=a1 B=b1,b2"),
        ("a1@1 b1@2 b2@3", f"SEQ(a a, b+ b[]) WHERE {NEXT}(a, b[]) {{ }}", "A=a1 B=b1 ; A=a1 B=b1,b2"),
        # a null condition lets the event pass
        ("a1@1{v=1} b1@2{v=null} b2@3{v=2}", f"SEQ(a a, b b) WHERE {NEXT}(a, b) {{ b.v > a.v }}", "A=a1 B=b2"),
        # WITHIN is inclusive
        ("a1@1 b1@11", f"SEQ(a a, b b) WHERE {NEXT}(a, b) {{ }} WITHIN 10 seconds", "A=a1 B=b1"),
        ("a1@1 b1@12", f"SEQ(a a, b b) WHERE {NEXT}(a, b) {{ }} WITHIN 10 seconds", "none"),
        # negation: behind the last event of a plus, in one partition, at the start, at the end, of the whole match
        ("a1@1 n1@2 a2@3 b1@4", f"SEQ(a+ a[], ~(n n), b b) WHERE {NEXT}(a[], n, b) {{ }}", "A=a1,a2 B=b1 ; A=a2 B=b1"),
        ("a1@1 a2@2 n1@3 b1@4", f"SEQ(a+ a[], ~(n n), b b) WHERE {NEXT}(a[], b) {{ }}", "none"),
        ("a1@1 n1@2{k=q} c1@3", f"SEQ(a a, ~(n n), c c) WHERE {NEXT}(a, c) {{ [k] }}", "A=a1 C=c1"),
        ("n1@1 a1@5 b1@11", f"SEQ(~(n n), a a, b b) WHERE {NEXT}(a, b) {{ }} WITHIN 10 seconds", "none"),
        ("n1@1 a1@5 b1@12", f"SEQ(~n n, a a, b b) WHERE {NEXT}(a, b) {{ }} WITHIN 10 seconds", "A=a1 B=b1"),
        ("a1@1 b1@5 n1@11", f"SEQ(a a, b b, ~(n n)) WHERE {NEXT}(a, b) {{ }} WITHIN 10 seconds", "none"),
        ("a1@1 b1@5 n1@12", f"SEQ(a a, b b, ~(n n)) WHERE {NEXT}(a, b) {{ }} WITHIN 10 seconds", "A=a1 B=b1"),
        (
            "a1@1 n1@2{v=5} c1@3{v=9} c2@4{v=1}",
            f"SEQ(a a, ~(n n), c c) WHERE {ANY}(a, c) {{ n.v > c.v }}",
            "A=a1 C=c1",
        ),
        # the average of a1, a2 is 3, that of a2 alone is 5
        (
            "a1@1{v=1} a2@2{v=5} n1@3{v=4} b1@4",
            f"SEQ(a+ a[], ~(n n), b b) WHERE {NEXT}(a[], b) {{ n.v > avg(a[].v) and n.v < a[a.LEN].v }}",
            "A=a2 B=b1",
        ),
        # conditions on a finished plus: in the middle, and on the last one, where they leave prefixes out
        ("a1@1 a2@2 b1@3", f"SEQ(a+ a[], b b) WHERE {NEXT}(a[], b) {{ a.LEN > 1 }}", "A=a1,a2 B=b1"),
        (
            "a1@1 b1@2{v=1} b2@3{v=2} b3@4{v=1}",
            f"SEQ(a a, b+ b[]) WHERE {NEXT}(a, b[]) {{ b[b.LEN].v = 1 }}",
            "A=a1 B=b1 ; A=a1 B=b1,b2,b3",
        ),
        (
            "a1@1 b1@2{v=1} b2@3{v=5} b3@4{v=3}",
            "SEQ(a a, b+ b[]) WHERE partition_contiguity(a, b[]) { avg(b[].v) >= 3 }",
            "A=a1 B=b1,b2 ; A=a1 B=b1,b2,b3",
        ),
    ],
)  # fmt: skip
def test_worked_answers(given: str, query: str, expected: str) -> None:
    assert matches(hybrid.sql(f"FROM e TYPE BY s PATTERN {query}", e=events(given))) == expected


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        ("strict_contiguity", "A=a1 B=b1"),
        ("partition_contiguity", "A=a1 B=b1 ; A=a2 B=b2"),
        (NEXT, "A=a1 B=b1 ; A=a2 B=b2 ; A=a3 B=b3"),
        (ANY, "A=a1 B=b1 ; A=a1 B=b2 ; A=a2 B=b2 ; A=a1 B=b3 ; A=a2 B=b3 ; A=a3 B=b3"),
    ],
)
def test_one_input_four_strategies(strategy: str, expected: str) -> None:
    given = events("a1@1 b1@2 a2@3 x1@4{k=q} b2@5 a3@6 x2@7 b3@8")
    query = f"FROM e TYPE BY s PATTERN SEQ(a a, b b) WHERE {strategy}(a, b) {{ [k] }} RETURN a.name AS a, b.name AS b"
    assert matches(hybrid.sql(query, e=given)) == expected


def mean(values: list[int | None]) -> float | None:
    there = [v for v in values if v is not None]
    return sum(there) / len(there) if there else None


def total(values: list[int | None]) -> int | None:
    there = [v for v in values if v is not None]
    return sum(there) if there else None


@pytest.mark.parametrize(
    ("condition", "meets"),
    [
        ("e[i].v > avg(e[..i-1].v)", lambda v, before: mean(before) is not None and v > mean(before)),
        ("e[i].v > count(e[..i-1].v)", lambda v, before: v > sum(b is not None for b in before)),
        ("e[i].v > count(e[..i-1])", lambda v, before: v > len(before)),
        ("e[i].v > sum(e[..i-1].v * 2) / 2", lambda v, before: total(before) is not None and v > total(before)),
        ("e[i].v > e[i-1].v", lambda v, before: before[-1] is not None and v > before[-1]),
        ("e[i].v > e[i-2].v", lambda v, before: len(before) > 1 and before[-2] is not None and v > before[-2]),
        (
            "e[i].v >= min(e[..i-1].v) + max(e[..i-1].v)",
            lambda v, before: total(before) is not None and v >= sum(f(filter(None, before)) for f in (min, max)),
        ),
        ("e[i].v > 0 and sum(e[..i].v) < 12", lambda v, before: v + (total(before) or 0) < 12),
    ],
)
def test_events_before_this_one(condition: str, meets: Callable[[int, list[int | None]], bool]) -> None:
    """Against all stretches of rows, tried one by one. Nulls are no values to an aggregate, and meet no condition."""
    values = [None, 1, 4, 9, 2, None, 3, 3, 7, 8]
    rows = [{"ts": START + timedelta(seconds=i), "v": v} for i, v in enumerate(values)]
    expected = set()
    for first in range(len(values)):
        last = first + 1
        expected.add((first, last))
        while last < len(values) and (v := values[last]) is not None and meets(v, values[first:last]):
            last += 1
            expected.add((first, last))
    query = f"FROM e PATTERN SEQ(e+ e[]) WHERE partition_contiguity(e[]) {{ {condition} }} RETURN e[1].ts, e.LEN AS n"
    found = hybrid.sql(query, e=rows).arrow().to_pylist()
    starts = [(r["ts"] - START).seconds for r in found]
    assert {(s, s + r["n"]) for s, r in zip(starts, found, strict=True)} == expected
    assert len(found) == len(expected)
    assert compare_with_reference(query, {"e": rows}) == (len(expected), True)


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("strategy", ["strict_contiguity", "partition_contiguity", NEXT, ANY])
@pytest.mark.parametrize("closing", ["b[b.LEN].v > a.v", "avg(b[].v) < 5", "b.LEN > 1", "b[b.LEN].v < b[1].v"])
def test_a_condition_on_the_last_array_leaves_matches_out(strategy: str, closing: str) -> None:
    """With it come those matches of the statement without it that meet it."""
    draw = random.Random(closing)
    rows = [{"ts": START + timedelta(seconds=i), "k": draw.choice("pq"), "v": draw.randrange(10)} for i in range(12)]
    values = "a.ts AS first, b[b.LEN].ts AS last, b.LEN AS n, sum(b[].v) AS total"
    query = f"FROM e PATTERN SEQ(e a, e+ b[]) WHERE {strategy}(a, b) {{ [k] and b[i].v <> b[i-1].v"
    every = hybrid.sql(f"{query} }} RETURN {values}, {closing} AS meets", e=rows)
    some = hybrid.sql(f"{query} and {closing} }} RETURN {values}", e=rows)
    expected = [row[:-1] for row in rows_of(every) if row[-1]]
    assert 0 < len(expected) < len(rows_of(every))
    assert rows_of(some) == expected


# ---- where a statement may stand -------------------------------------------------------------------------------

RISE = """PATTERN SEQ(ticks a, ticks+ b[])
WHERE {}(a, b[]) {{ [symbol] and b[1].price > a.price and b[i].price > b[i-1].price }}"""
TICKS = [
    {"ts": START + timedelta(seconds=i), "symbol": symbol, "price": float(price)}
    for i, (symbol, price) in enumerate([("x", 1), ("x", 2), ("y", 5), ("x", 3), ("y", 4), ("x", 1), ("y", 6)])
]
RISES = [("x", 1.0, 2.0), ("x", 1.0, 3.0), ("x", 2.0, 3.0), ("y", 4.0, 6.0)]


def rows_of(result: hybrid.Result) -> list[tuple[Any, ...]]:
    return sorted(tuple(r.values()) for r in result.arrow().to_pylist())


@pytest.mark.slow
def test_in_other_statements() -> None:
    rise = RISE.format("partition_contiguity") + " RETURN a.price AS low, b[b.LEN].price AS high"
    assert rows_of(hybrid.sql(rise, ticks=TICKS)) == RISES
    assert rows_of(hybrid.sql(f"FROM ticks {rise};", ticks=TICKS)) == RISES
    assert rows_of(hybrid.sql(f"FROM (SELECT * FROM TICKS) ticks {rise}", ticks=TICKS)) == RISES
    counted = f"SELECT symbol, count(*) AS n FROM (FROM ticks {rise}) AS m WHERE high > 2 GROUP BY ALL"
    assert rows_of(hybrid.sql(counted, ticks=TICKS)) == [("x", 2), ("y", 1)]
    joined = f"WITH r AS (FROM ticks {rise}) SELECT r.high FROM r JOIN names USING (symbol)"
    assert rows_of(hybrid.sql(joined, ticks=TICKS, names=[{"symbol": "y"}])) == [(6.0,)]


@pytest.mark.slow
def test_a_statement_over_the_matches_of_another(tmp_path: Path) -> None:
    rise = RISE.format("partition_contiguity") + " RETURN a.price AS low, b[b.LEN].price AS high, b[b.LEN].ts"
    twice = f"""FROM (FROM ticks {rise}) AS rise PATTERN SEQ(rise r, rise s) WHERE skip_till_next_match(r, s)
        {{ [symbol] and s.high > r.high }} RETURN r.high AS first, s.high AS second"""
    assert rows_of(hybrid.sql(twice, ticks=TICKS)) == [("x", 2.0, 3.0)]
    connection = duckdb.connect()
    connection.register("ticks", pa.Table.from_pylist(TICKS))
    hybrid.sql(f"CREATE TABLE kept AS FROM ticks {rise}", connection)
    hybrid.sql(f"INSERT INTO kept FROM ticks {rise}", connection)
    assert sorted(connection.sql("SELECT symbol, low, high FROM kept").fetchall()) == sorted(2 * RISES)
    hybrid.sql(f"COPY (FROM ticks {rise}) TO '{tmp_path / 'rises.csv'}'", ticks=TICKS)
    assert len((tmp_path / "rises.csv").read_text().splitlines()) == 1 + len(RISES)


@pytest.mark.parametrize("strategy", ["partition_contiguity", NEXT, ANY])
def test_live_archive_and_backtest_agree(strategy: str) -> None:
    rise = RISE.format(strategy) + " WITHIN 1 minute RETURN a.price AS low, b[b.LEN].price AS high"
    with hybrid.connect() as db:
        db.create_stream("ticks", {"ts": "TIMESTAMP", "symbol": "VARCHAR", "price": "DOUBLE"}, time="ts", key="symbol")
        alerts = db.watch(rise)  # the only stream
        for row in TICKS:
            db.push("ticks", [row])
        db.advance("ticks", None)
        live = sorted(tuple(r.values()) for r in alerts.fetch().to_pylist())
        assert live == rows_of(db.sql(rise)) == rows_of(db.backtest(f"FROM ticks {rise}", START))
        assert live == rows_of(hybrid.sql(rise, ticks=TICKS))
        assert set(live) >= set(RISES)
        assert "SEQ" not in db.explain(rise, "plan")
        db.create_stream("others", {"ts": "TIMESTAMP"}, time="ts")
        assert live == rows_of(db.sql(rise))  # its types say which stream is meant
        with pytest.raises(QueryError, match="unknown event type tick"):
            db.watch(rise.replace("ticks a", "tick a"))


def test_a_cell_that_cannot_be_computed() -> None:
    query = f"FROM e PATTERN SEQ(e a, e b) WHERE {NEXT}(a, b) {{ CAST(b.s AS INTEGER) > 1 }}"
    with pytest.raises(hybrid.DataError, match="Could not convert string 'b'"):
        hybrid.sql(query, e=events("a1@1 b1@2"))


@pytest.mark.slow
def test_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rise = RISE.format("partition_contiguity") + " RETURN a.price AS low, b[b.LEN].price AS high"
    (tmp_path / "rise.hq").write_text(rise)
    pq.write_table(pa.Table.from_pylist(TICKS), tmp_path / "ticks.parquet")

    def run(*arguments: str) -> str:
        monkeypatch.setattr("sys.argv", ["hybrid", *arguments, "-t", f"ticks={tmp_path / 'ticks.parquet'}"])
        with pytest.raises(SystemExit):
            main()
        return capsys.readouterr().out

    printed = run("sql", str(tmp_path / "rise.hq"), "-f", "csv").splitlines()
    assert printed[0] == '"symbol","low","high"'
    assert sorted(printed[1:]) == [f'"{s}",{low:g},{high:g}' for s, low, high in RISES]
    assert "pattern     A B+" in run("explain", rise, "--stage", "plan")
    assert "PatternSequence" in run("explain", rise, "--stage", "ast")

"""Patterns over several streams searched for by Spark: the rows of the search in this process and of the reference."""

from __future__ import annotations

import datetime as dt
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import hybrid
from archive.spark import search
from archive.spark.task import Search
from hybrid.cli import app
from hybrid.database.database import Database
from query.errors import HybridWarning, QueryError
from tests.hierarchies import DECLARED, Event, Hierarchy, composed, factor_of, hierarchies
from tests.hybrid.inside import opened_of
from tests.properties.comparing import drawn_until, is_nightly

pytestmark = pytest.mark.spark

COLUMNS = {name: {f.name: f.type for f in schema.fields} for name, schema in DECLARED.items()}
SOURCES = ("events", "others", "past", "MERGE(events, others)", "MERGE(others, past)")


def rows_of(result: hybrid.Result) -> Counter[str]:
    return Counter(repr(tuple(row.values())) for row in in_us(result.arrow()).to_pylist())


def in_us(table: pa.Table) -> pa.Table:
    """Returns a table with times as numbers."""
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in table.columns]
    return pa.table(columns, names=table.column_names)


def evidence_of(result: hybrid.Result) -> Counter[str]:
    lines = result.evidence().drop_columns(["row"]).to_pylist()
    return Counter(repr(sorted(line.items())) for line in lines)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Search]:
    """Makes tasks and inputs small; what tasks are asked for is added to the list."""
    monkeypatch.setattr(search, "TASK_ROWS", 3)
    monkeypatch.setattr(search, "ROWS_TOGETHER", 3)
    monkeypatch.setattr(search, "GIANT_TASKS", 0)
    found: list[Search] = []

    def note(session: Any, archives: Any, frame: Any, wanted: Search, tasks: int) -> Any:
        found.append(wanted)
        return ask(session, archives, frame, wanted, tasks)

    ask = search._ask
    monkeypatch.setattr(search, "_ask", note)
    return found


# ---- random hierarchies ----------------------------------------------------------------------------------------------


@st.composite
def over_streams(draw: st.DrawFn) -> Hierarchy:
    """Draws a hierarchy over two or three streams, and twice the events; one stream may have none."""
    one = draw(hierarchies(sources=SOURCES[: draw(st.sampled_from([2, 5, 5]))]))
    rng = Random(draw(st.integers(0, 2**32)))
    names = ["events", "events", "others", "others", "past"]
    names = [name for name in names if name != rng.choice(["", "", "", "past", "others"])]
    last = one.events[-1].ts_us + 1
    again = [replace(event, ts_us=event.ts_us + last, type={"x": "a", "y": "b"}.get(event.type, event.type))
             for event in one.events]  # fmt: skip
    spread = [replace(event, stream=rng.choice(names)) for event in (*one.events, *again)]
    return replace(one, events=tuple(sorted(spread, key=lambda event: (event.ts_us, event.stream))))


def pushed(db: Database, events: tuple[Event, ...], rng: Random) -> None:
    """Pushes events into their streams, in some parts, of which some are flushed to files."""
    for name, columns in COLUMNS.items():
        db.create_stream(name, columns, time=DECLARED[name].time)
        own = [(e.ts_us, e.type, e.key, i) for i, e in enumerate(events) if e.stream == name]
        while own:
            part, own = own[: (n := rng.randint(1, len(own)))], own[n:]
            rows = [{"ts": ts, "tm": ts, "s": s, "k": k, "i": i} for ts, s, k, i in part]
            fields = [(f, pa.timestamp("us") if f in ("ts", "tm") else pa.string() if f in "sk" else
                       pa.int64() if columns[f] == "BIGINT" else pa.int32()) for f in columns]  # fmt: skip
            db.push(name, pa.Table.from_pylist(rows, schema=pa.schema(fields)))
            if rng.random() < 0.5:
                db.flush()


def test_random_hierarchies_give_equal_rows(
    spark: Any, asked: list[Search], tmp_path_factory: pytest.TempPathFactory,
    record_property: Callable[[str, object], None],
) -> None:  # fmt: skip
    # Before: Spark refused patterns over several streams.
    seen: Counter[str] = Counter()

    @settings(max_examples=settings().max_examples // 20 if is_nightly() else 12)
    @given(one=over_streams(), seed=st.integers(0, 2**32))
    def check(one: Hierarchy, seed: int) -> None:
        with warnings.catch_warnings(), hybrid.connect(tmp_path_factory.mktemp("db")) as db:
            warnings.simplefilter("ignore", HybridWarning)
            factor = factor_of(one.text)
            assume(factor.members)
            pushed(db, one.events, Random(seed))
            known = [e for e in one.events if e.stream in {m.name for m in factor.members}]
            numbers = [i for i, e in enumerate(one.events) if e in known]
            made = composed(factor.plan, known, factor=factor, numbers=numbers)
            expected = Counter(repr(tuple(row.values())) for match in made for row in match.rows)
            asked.clear()
            on_spark, embedded = db.sql(one.text, engine="spark", spark=spark), db.sql(one.text)
            assert on_spark.arrow().schema == embedded.arrow().schema
            assert rows_of(on_spark) == rows_of(embedded) == expected
            if expected:
                assert evidence_of(on_spark) == evidence_of(embedded)
        seen["examples"] += 1
        seen["rows"] += bool(expected)
        seen["merged layers"] += bool(expected) and factor.merged is not None
        seen["three streams"] += bool(expected) and len(factor.members) == 3
        seen["a stream without events"] += bool(expected) and len({e.stream for e in known}) < len(factor.members)
        seen["cut by key"] += bool(expected) and bool(asked[0].keys)
        seen["negated"] += bool(expected) and "~" in one.text

    def met() -> bool:
        rare = ("merged layers", "three streams", "a stream without events", "cut by key", "negated")
        return all(seen[what] for what in rare)

    drawn_until(check, met)
    record_property("examples", dict(seen))
    assert met(), seen


# ---- streams that are not alike --------------------------------------------------------------------------------------

START = dt.datetime(2024, 1, 1)
NEXT = "SELECTION SKIP TILL NEXT MATCH"
#: Layers over clicks, clicks and calls, and orders: by customer, and by customer and shop.
PAIR = f"""SELECT customer, shop, n FROM clicks MATCH_RECOGNIZE (PARTITION BY customer, shop ORDER BY ts
    MEASURES count(*) AS n AFTER MATCH SKIP PAST LAST ROW PATTERN (A B) WITHIN INTERVAL 1 HOUR {NEXT}
    DEFINE A AS page = 'a', B AS page = 'b')"""
TALK = f"""SELECT customer, m FROM MERGE(calls, orders) MATCH_RECOGNIZE (PARTITION BY customer ORDER BY called
    MEASURES LAST(amount) AS m AFTER MATCH SKIP PAST LAST ROW PATTERN (C O) WITHIN INTERVAL 1 HOUR {NEXT}
    DEFINE C AS stream = 'calls', O AS stream = 'orders')"""
OUTER = """SELECT * FROM orders MATCH_RECOGNIZE ({by} ORDER BY booked MEASURES P.n AS n, T.m AS m, O.note AS note
    AFTER MATCH NO SKIP PATTERN ({pattern}) WITHIN INTERVAL 2 HOUR {selection}
    DEFINE P AS PATTERN pair, T AS PATTERN talk, O AS note IS NOT NULL{negated})"""


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Database]:
    """Streams with their own names of time, two types of customers, columns of one name and several types, a column
    that came later, late events and several sources; `visits` is empty."""
    rng = Random(3)
    customers = {"clicks": "INTEGER", "orders": "INTEGER", "calls": "SMALLINT", "visits": "INTEGER"}
    times = {"clicks": "ts", "orders": "booked", "calls": "called", "visits": "ts"}
    own = {
        "clicks": {"page": "VARCHAR", "shop": "VARCHAR", "amount": "DOUBLE"},
        "orders": {"amount": "INTEGER", "shop": "VARCHAR", "day": "TIMESTAMP"},
        "calls": {"amount": "UTINYINT", "day": "DATE"}, "visits": {"shop": "VARCHAR", "page": "VARCHAR"},
    }  # fmt: skip
    with hybrid.connect(tmp_path_factory.mktemp("shops")) as db:

        def row(name: str, minute: int) -> dict[str, Any]:
            of = {
                times[name]: START + dt.timedelta(minutes=minute), "customer": rng.choice((1, 2, 3, None)),
                "page": rng.choice("ab"), "shop": rng.choice("xy"), "amount": rng.randrange(10),
                "day": dt.date(2024, 1, 1 + abs(minute) // 60), "note": rng.choice(("late", None)),
            }  # fmt: skip
            return {column: of[column] for column in (times[name], "customer", *own[name])}

        for name, columns in own.items():
            declared = {times[name]: "TIMESTAMP", "customer": customers[name], **columns}
            db.create_stream(name, declared, time=times[name], lateness="5m")
        for start in range(0, 600, 100):
            if start == 200:
                own["orders"]["note"] = "VARCHAR"
                more = {"booked": "TIMESTAMP", "customer": "INTEGER", **own["orders"]}
                db.create_stream("orders", more, time="booked", lateness="5m")
            for name in ("clicks", "orders", "calls"):
                minutes = [start + rng.randrange(100) for _ in range(60)]
                rows = [row(name, minute - (40 if rng.random() < 0.05 else 0)) for minute in sorted(minutes)]
                db.push(name, rows, source=rng.choice(("ä", "z", "default")))
            if start % 200 == 0:
                db.flush()
        assert db.streams()["orders"]["late"] > 3
        yield db


def layered(by: str, pattern: str, selection: str) -> str:
    """Returns a statement of the three layers."""
    negated = ", N AS amount > 7" if "~N" in pattern else ""
    outermost = OUTER.format(by=by, pattern=pattern, selection=selection, negated=negated)
    return f"WITH pair AS ({PAIR}), talk AS ({TALK}) {outermost}"


@pytest.mark.thinned(3)
@pytest.mark.parametrize(("by", "pattern", "selection", "keys"), [
    ("PARTITION BY customer", "P T O", NEXT, 1),
    ("PARTITION BY customer", "P ~N T O", "SELECTION SKIP TILL ANY MATCH", 1),
    ("", "P ~N T O", NEXT, 0),
    ("", "T P? O", "SELECTION STRICT", 0),
])  # fmt: skip
def test_streams_that_are_not_alike(
    spark: Any, asked: list[Search], shops: Database, by: str, pattern: str, selection: str, keys: int
) -> None:
    """Layers are cut by the columns that all of them have in PARTITION BY, also if these have several types in a MERGE
    of streams; without any, one task has all rows."""
    text = layered(by, pattern, selection)
    late = "~N" not in pattern
    on_spark, embedded = shops.sql(text, engine="spark", spark=spark, late=late), shops.sql(text, late=late)
    assert rows_of(on_spark) == rows_of(embedded)
    assert evidence_of(on_spark) == evidence_of(embedded)
    assert all(len(wanted.keys) == keys for wanted in asked)
    assert len(embedded) > 5
    if keys:
        ((field, names),) = asked[0].uneven
        assert (field.type, len(names)) == ("BIGINT", 2)
        assert asked[0].keys == (field.name,)


MERGED = "FROM MERGE(clicks, orders, calls, visits) MATCH_RECOGNIZE ({} ORDER BY ts MEASURES {} {} PATTERN ({}) {})"


@pytest.mark.thinned(2)
@pytest.mark.parametrize(("text", "sliced"), [
    ("SELECT * " + MERGED.format(
        "PARTITION BY customer", "FIRST(ts) AS f, LAST(amount) AS a, LAST(day) AS d", "", "A B+ C",
        "DEFINE A AS stream = 'clicks', B AS amount > 2, C AS stream = 'calls'"), False),
    ("SELECT * " + MERGED.format(
        "PARTITION BY customer", "A.ts AS f", "ALL ROWS PER MATCH AFTER MATCH SKIP TO NEXT ROW", "A B+ C",
        "WITHIN INTERVAL 10 MINUTE DEFINE A AS stream = 'clicks', C AS amount > 5 AND shop IS NULL"), True),
    ("SELECT * " + MERGED.format(
        "", "count(*) AS n, list(amount) AS amounts", "", "A B{2}", "SELECTION STRICT DEFINE A AS amount = 1"), False),
    ("SELECT count(*) AS n " + MERGED.format(
        "PARTITION BY customer", "A.ts AS f", "", "A B C", "WITHIN INTERVAL 30 MINUTE SELECTION SKIP TILL ANY MATCH "
        "DEFINE A AS stream = 'clicks', B AS stream = 'orders', C AS stream = 'calls'"), False),
    ("SELECT * " + MERGED.format(
        "PARTITION BY customer", "COUNT(MATCHES) AS n, SUM(amount) AS s", "ONE ROW PER WINDOW", "A+ B",
        "WITHIN 60 MINUTES SLIDE 30 MINUTES DEFINE A AS stream <> 'calls', B AS stream = 'calls'"), True),
])  # fmt: skip
def test_merge_of_streams(spark: Any, asked: list[Search], shops: Database, text: str, sliced: bool) -> None:
    """The columns of all streams in types that hold all values, cut by key and time where one stream's are."""
    for late in (True, False) if is_nightly() else (True,):
        on_spark, embedded = shops.sql(text, engine="spark", spark=spark, late=late), shops.sql(text, late=late)
        assert on_spark.arrow().schema == embedded.arrow().schema
        assert rows_of(on_spark) == rows_of(embedded)
        assert sum(int(row.get("n", 1)) for row in embedded.arrow().to_pylist()) > 20
        if "count(*) AS n FROM" not in text and "WINDOW" not in text:
            assert evidence_of(on_spark) == evidence_of(embedded)
    assert any(wanted.slices is not None for wanted in asked) == sliced


ANY_TWO = MERGED.format("", "count(*) AS n", "", "A B", "")
TALK_BESIDE = f"""WITH talk AS ({TALK}) SELECT * FROM side MATCH_RECOGNIZE (ORDER BY ts MEASURES T.m AS m PATTERN (T A)
    WITHIN INTERVAL 1 HOUR {NEXT} DEFINE T AS PATTERN talk, A AS amount > 1)"""
JOINED = f"""WITH hit AS (SELECT pl.m FROM clicks MATCH_RECOGNIZE (ORDER BY ts MEASURES LAST(amount) AS m, LAST(ts) AS t
    PATTERN (A B) DEFINE A AS page = 'a') AS pl SEMI JOIN HISTORY OF calls FROM pl.t - INTERVAL 1 HOUR TO pl.t AS pa
    ON TRUE) SELECT * FROM clicks MATCH_RECOGNIZE (ORDER BY ts MEASURES H.m AS m PATTERN (H A)
    WITHIN INTERVAL 1 HOUR {NEXT} DEFINE H AS PATTERN hit, A AS page = 'a')"""


@pytest.mark.parametrize(("text", "says", "hint"), [
    (TALK_BESIDE, "a pattern and boxes over side, calls, orders on Spark, unless all are streams,", "the rows of side"),
    ("SELECT * " + ANY_TWO.replace("visits", "side"), "MERGE over clicks, orders, calls, side on Spark", "of side"),
    ("WITH few AS (SELECT * FROM visits WHERE shop = 'x') SELECT * " + ANY_TWO.replace("visits", "few"),
     "MERGE over clicks, orders, calls, few on Spark", "push the rows of few"),
    (JOINED, "boxes joined with the history of calls on Spark", "leave engine out"),
])  # fmt: skip
def test_what_spark_does_not_do_is_said(shops: Database, text: str, says: str, hint: str) -> None:
    # Before: of boxes joined with history, "not supported yet here", and the hint to use db.sql.
    side = pa.table({"ts": pa.array([START], pa.timestamp("us")), "amount": pa.array([1], pa.int32())})
    with pytest.raises(QueryError) as error:
        shops.sql(text, engine="spark", spark="no master, for nobody asks it", side=side)
    (found,) = error.value.diagnostics
    assert found.code == "HQ500"
    assert says in found.message
    assert hint in found.hint


def test_bounds_of_the_archive_apply_to_merged_streams(spark: Any, shops: Database, tmp_path: Path) -> None:
    # Before: `hybrid archive search --from --to` searched for a pattern over MERGE in all events.
    text = "SELECT count(*) AS n, min(f) AS f, max(l) AS l " + MERGED.format(
        "", "FIRST(ts) AS f, LAST(ts) AS l", "", "A", "")
    (tmp_path / "query.sql").write_text(text)
    shops.flush()
    given = ["archive", "search", str(tmp_path / "query.sql"), "-d", str(opened_of(shops).path), "--format", "csv"]
    given += ["--from", "2024-01-01 02:00", "--to", "2024-01-01 03:00"]
    here, there = (CliRunner().invoke(app, [*given, *by]) for by in ([], ["--spark", "local[2]"]))
    assert here.exit_code == there.exit_code == 0, here.output + there.output
    assert here.stdout == there.stdout
    n, first, last = here.stdout.splitlines()[1].split(",")
    inside = "booked >= '2024-01-01 02:00' AND booked < '2024-01-01 03:00'"
    expected = sum(
        shops.sql(f"SELECT count(*) AS n FROM {name} WHERE {inside.replace('booked', time)}").arrow()["n"][0].as_py()
        for name, time in (("clicks", "ts"), ("orders", "booked"), ("calls", "called"))
    )
    assert int(n) == expected > 50
    assert "2024-01-01 02:00" <= first <= last < "2024-01-01 03:00"

"""Boxes of matches joined with history, of a stream that they read or of another one: a statement, a live query in any
batches and after a restart, and a backtest give what composition gives."""

from __future__ import annotations

import random
import shutil
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybrid
from query.errors import HybridWarning
from tests.hierarchies import Event, batch_of, composed, plan_of, statement
from tests.hybrid.ends import opened_again
from tests.properties.comparing import drawn_until_told, fewer

COLUMNS = {"ts": "TIMESTAMP", "s": "VARCHAR", "k": "VARCHAR", "i": "BIGINT"}
DEFINE = {name: f"{name} AS s = '{name.lower()}'" for name in "ABPXY"}
INNER = (("X Y", "XY"), ("X+ Y", "XY"), ("X A? Y", "XAY"), ("X", "X"), ("X ~A Y", "XYA"))
OUTER = (("V B", "B"), ("A V", "A"), ("V W", ""), ("V+ B", "B"), ("A ~V B", "AB"), ("V ~A B", "AB"), ("A V B", "AB"))
ON = ("pa.k = pl.k", "TRUE", "pa.m < pl.n", "pa.k = pl.k AND pa.m > 2")


@dataclass(frozen=True)
class Case:
    """past: the events of the history's own stream, empty without one. pushes: the streams and the numbers of events of
    each push. kill: after which of them the process ends, -1: never."""

    text: str
    events: tuple[Event, ...]
    past: tuple[Event, ...]
    pushes: tuple[tuple[str, int], ...]
    kill: int

    @property
    def tables(self) -> dict[str, pa.Table]:
        given = {"events": self.events, "past": self.past}
        return {name: pa.Table.from_batches([batch_of(events).columns]) for name, events in given.items() if events}


@st.composite
def cases(draw: st.DrawFn) -> Case:
    rng = random.Random(draw(st.integers(0, 2**32)))  # few examples, and most of them are to hold matches
    key = rng.random() < 0.3
    pattern, names = rng.choice(INNER)
    selection = rng.choice(("NEXT", "ANY", "NEXT", "PARTITION"))
    after = rng.choice(("AFTER MATCH NO SKIP", "AFTER MATCH NO SKIP", ""))
    if "~" in pattern and selection == "PARTITION":
        selection = "NEXT"
    measures = "FIRST(ts) AS f, LAST(ts) AS t, LAST(i) AS n"
    own = statement(pattern, selection, ", ".join(DEFINE[n] for n in names), 8, key=key, measures=measures, after=after)
    kind = rng.choice(("SEMI", "ANTI", "NEAREST", "LEFT NEAREST"))
    of = "(PARTITION BY k ORDER BY ts MEASURES LAST(i) AS m PATTERN (P Q?) DEFINE P AS s = 'p')"
    history = f"MATCH_RECOGNIZE {of}" if rng.random() < 0.6 else ""
    on = rng.choice(ON)
    if not history:
        on = f"{on.replace('pa.m', 'pa.i')} AND pa.s = 'p'"
    if not key:
        on = on.replace("pa.k = pl.k", "TRUE")
    low, high = rng.randint(2, 12), rng.randint(-1, 5)
    bounds = f"pl.f - INTERVAL {low} MICROSECOND TO pl.{rng.choice('ft')} + INTERVAL '{high}' MICROSECOND"
    shown = ("pl.k, " if key else "") + "pl.f, pl.t, pl.n"
    shown += "" if "NEAREST" not in kind else ", pa.m" if history else ", pa.i AS m"
    apart = rng.random() < 0.5
    of = "past" if apart else "events"
    hit = f"SELECT {shown} {own.replace('SELECT *', '')} AS pl {kind} JOIN HISTORY OF {of} FROM {bounds} {history}"
    outer, types = rng.choice(OUTER)
    boxed = [v for v in "VW" if v in outer]
    condition = "" if "NEAREST" not in kind else rng.choice(("", " ON m > 1", " ON n - m < 4"))
    define = ", ".join([*(f"{v} AS PATTERN hit{condition}" for v in boxed), *(DEFINE[n] for n in types)])
    taken = outer.replace("~V", "").replace("~A", "")
    more = ", LAST(V.n) AS n" + (", LAST(V.m) AS m" if "NEAREST" in kind else "") if "V" in taken else ""
    text = f"WITH hit AS ({hit} AS pa ON {on}) " + statement(
        outer, rng.choice(("NEXT", "ANY", "NEXT", "ANY", "PARTITION", "STRICT")), define, rng.choice((12, 20)), key=key,
        measures=f"FIRST(t0) AS a, LAST(t1) AS z, count(*) AS c{more}",
    )  # fmt: skip
    letters = (names + names + types).lower() + "pp"  # of a type that no variable takes are few

    def some(letters: str) -> tuple[Event, ...]:
        now, events = 0, []
        for i in range(draw(st.integers(10, 18))):
            now += rng.choice((0, 1, 1, 1, 1, 2))
            kind_of = rng.choice(letters)
            events.append(Event(kind_of, f"{kind_of}{i}", now, rng.choice("qr") if key else None))
        return tuple(events)

    events, past = some(letters + "a"), some("pppq") if apart else ()
    pushes = [(name, n) for name, of in (("events", events), ("past", past)) for n in _parts(rng, len(of))]
    rng.shuffle(pushes)
    return Case(text, events, past, tuple(pushes), rng.choice((-1, -1, 0, 1, 2)))


def _parts(rng: random.Random, n: int) -> list[int]:
    """Returns n as a sum of random numbers."""
    cuts = sorted(rng.sample(range(1, n), rng.randrange(n))) if n else []
    return [stop - start for start, stop in pairwise([0, *cuts, n]) if stop > start]


def rows_of(table: pa.Table) -> Counter[str]:
    columns = [c.cast(pa.int64()) if pa.types.is_timestamp(c.type) else c for c in table.columns]
    names = [name for name in table.column_names if name != "match_id"]
    found = pa.table(dict(zip(table.column_names, columns, strict=True)))
    return Counter(repr(tuple(row.values())) for row in found.select(names).to_pylist())


def live(case: Case, directory: Path) -> tuple[list[pa.Table], Counter[str]]:
    """Returns the rows of a live query, and those of a backtest."""
    rest = case.tables
    named = {"name": "q", "evidence": True} if case.kill >= 0 else {"evidence": True}

    def opened(path: Path) -> hybrid.Database:
        db = hybrid.connect() if case.kill < 0 else opened_again(path, maintenance=False, log="os")
        for name in rest:
            db.create_stream(name, COLUMNS, time="ts")
        return db

    db = opened(directory)
    alerts = db.watch(case.text, **named)
    found = []
    for i, (stream, n) in enumerate(case.pushes):
        db.push(stream, rest[stream].slice(0, n))
        rest[stream] = rest[stream].slice(n)
        if i % 2:
            found.append(alerts.take())
        if i == case.kill:
            db.checkpoint()
        if i == case.kill + 1 and case.kill >= 0:
            db.flush()
            copy = directory.with_name(f"{directory.name}-left")
            shutil.copytree(directory, copy)
            db.close()
            db = opened(copy)
            alerts = db.watch(case.text, **named)
    for name in rest:
        db.advance(name, None)
    found.append(alerts.take())
    backtest = rows_of(db.backtest(case.text, 0).arrow())
    db.close()
    return found, backtest


@pytest.mark.slow
def test_joined_boxes_are_composed(
    tmp_path_factory: pytest.TempPathFactory, record_property: Callable[[str, object], None]
) -> None:
    seen: Counter[str] = Counter()

    @fewer(6)
    @given(case=cases())
    def check(case: Case) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HybridWarning)
            made = composed(plan_of(case.text), case.events, past=case.past or None)
            expected = Counter(repr(tuple(m.row.values())) for m in made)
            assert rows_of(hybrid.sql(case.text, **case.tables).arrow()) == expected
            found, backtest = live(case, tmp_path_factory.mktemp("db"))
        assert backtest == expected
        whole = pa.concat_tables(found)
        ids = whole.column("match_id").to_pylist()
        once = {name: i for i, name in enumerate(ids)}  # what came after the last checkpoint comes again
        assert rows_of(whole.take(pa.array(sorted(once.values()), pa.int64()))) == expected
        assert len(once) == len(ids) or case.kill >= 0
        seen["examples"] += 1
        seen["rows"] += bool(expected)
        seen["of another stream"] += bool(case.past and expected)
        seen["killed"] += case.kill >= 0

    def told() -> None:
        assert seen["rows"] * 7 >= seen["examples"]
        assert seen["of another stream"] * 15 >= seen["examples"]

    drawn_until_told(check, told)
    record_property("examples", dict(seen))

"""Compiled kernels of single programs: the same rows as the interpreted kernel, swapped in while a query runs."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pytest

import hybrid
from hybrid.statement import background_compile as kernels
from matching.engines.choose import RUNS_MAX
from matching.engines.run_blocks import RunBlocks
from matching.kernels.jit import built, module_of
from matching.purpose import Purpose
from query.language.parse import parse
from query.plan.bind import bind
from query.schema import Field, Schema
from tests.engines import matcher_by

SCHEMA = Schema(
    "e", (Field("ts", "TIMESTAMP"), Field("k", "INTEGER"), Field("v", "BIGINT"), Field("x", "DOUBLE")), time="ts",
    keys=("k",),
)  # fmt: skip

#: Sums and an average of the match so far; floats and nulls; a negation and one match per start; absences.
TEXTS = {
    "sums": """PATTERN (A+ B) WITHIN INTERVAL '40' SECOND SELECTION SKIP TILL NEXT MATCH
        DEFINE A AS count(A.*) = 1 OR v > avg(A.v), B AS 10 * v < 8 * A.v""",
    "floats": """AFTER MATCH SKIP PAST LAST ROW PATTERN (A B+ C) WITHIN INTERVAL '40' SECOND
        SELECTION SKIP TILL ANY MATCH
        DEFINE A AS v > 90, B AS x > A.x AND x < coalesce(max(A.x), 1.0) * 4, C AS x < min(B.x)""",
    "negation": """AFTER MATCH SKIP TO NEXT ROW PATTERN (A NOT N NOT N B C) WITHIN 30 ROWS
        SELECTION SKIP TILL NEXT MATCH
        DEFINE A AS v < 20, N AS v = 50, B AS v > A.v + 60, C AS v BETWEEN A.v AND B.v""",
    "absences": """PATTERN (NOT N A B NOT M) WITHIN INTERVAL '40' SECOND SELECTION SKIP TILL ANY MATCH
        DEFINE N AS v = 50, A AS v < 20, B AS v > A.v + 60, M AS v = 51""",
}


def query(text: str) -> str:
    return f"""SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts
        MEASURES FIRST(A.ts) AS a, LAST(ts) AS z, count(*) AS n, LAST(v) AS v {text}) AS m"""


def events(rows: int, seed: int = 1) -> pa.Table:
    rng = np.random.default_rng(seed)
    x = np.round(rng.normal(0, 1, rows), 2)
    return pa.table({
        "ts": pa.array(np.arange(rows) * 200_000).view(pa.timestamp("us")),
        "k": pa.array(rng.integers(0, 7, rows).astype(np.int32)),
        "v": pa.array(rng.integers(0, 100, rows), mask=rng.random(rows) < 0.05),
        "x": pa.array(x, mask=rng.random(rows) < 0.05),
    })  # fmt: skip


def engine_of(text: str, purpose: Purpose = Purpose.MATCHES) -> RunBlocks:
    plan = bind(parse(text), lambda _: SCHEMA).factors[0].plan
    matcher = matcher_by(plan, purpose=purpose)
    assert isinstance(matcher.engine, RunBlocks)
    return matcher.engine


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", TEXTS)
def test_the_same_rows_as_the_interpreted_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, table = query(TEXTS[name]), events(20_000)
    answers = []
    for mode in ("interpreted", "specialised"):
        monkeypatch.setenv("HYBRID_KERNELS", mode)
        answers.append(hybrid.sql(text, e=table).arrow())
    assert answers[0] == answers[1]
    assert answers[0].num_rows > 100


@pytest.mark.slow
def test_a_child_compiles_while_the_query_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "ROWS_BUILD", 1)
    monkeypatch.setattr(kernels, "ROWS_LOAD", 1)
    monkeypatch.setenv("HYBRID_KERNELS", "auto")
    bound = time.time_ns() % 1_000_000_007  # a query that nobody has asked yet
    text = query(TEXTS["sums"].replace("count(A.*) = 1", f"(count(A.*) = 1 AND v < {bound})"))
    key = engine_of(text, Purpose.FOUND_AGAIN).key  # nobody needs the events of its matches
    assert built(key) is None
    table = events(5000)
    with hybrid.connect() as db:
        db.create_stream("e", {f.name: f.type for f in SCHEMA.fields}, time="ts", key="k")
        alerts = db.watch(text)
        at = 0
        while at < len(table):
            if at == 2500:  # the first half by the interpreted kernel, whatever the machine does
                while built(key) is None:
                    assert key not in kernels.failed
                    db.push("e", table.slice(at, 1))
                    at += 1
                    time.sleep(0.2)
            db.push("e", table.slice(at, 100))
            at += 100
        found = alerts.fetch()
    monkeypatch.setenv("HYBRID_KERNELS", "interpreted")
    expected = hybrid.sql(text, e=table).arrow()
    assert sorted(map(str, found.to_pylist())) == sorted(map(str, expected.to_pylist()))


@pytest.mark.slow
def test_the_kernel_can_be_read() -> None:
    shown = hybrid.sql(query(TEXTS["sums"]), e=events(10)).explain("kernel")
    assert shown.endswith(engine_of(query(TEXTS["sums"]), Purpose.ROWS).source)
    assert "def meets_0(" in shown
    assert "A: 1 it is met" in shown
    row_local = "SELECT * FROM e MATCH_RECOGNIZE (ORDER BY ts MEASURES A.v AS v PATTERN (A B) DEFINE A AS v > 1) AS m"
    assert "none of its own" in hybrid.sql(row_local, e=events(10)).explain("kernel")


@pytest.mark.slow
def test_a_large_automaton_stays_with_the_interpreted_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRID_KERNELS", "specialised")
    monkeypatch.setattr(kernels, "built_kernel", lambda engine: pytest.fail("it would take minutes"))
    any_of = f"({' | '.join('ABCDEFGHIJKL')})"
    defines = ", ".join(f"{name} AS v = {i} AND v > coalesce(max(A.v), 0)" for i, name in enumerate("ABCDEFGHIJKL"))
    text = query(f"PATTERN ({any_of} {any_of} {any_of}) SELECTION SKIP TILL NEXT MATCH DEFINE {defines}")
    assert len(engine_of(text).program.edge_target) > kernels.EDGES_MAX
    hybrid.sql(text, e=events(100))


def test_an_unknown_mode_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYBRID_KERNELS", "fast")
    with pytest.raises(ValueError, match="available: auto, interpreted, specialised"):
        hybrid.sql(query(TEXTS["sums"]), e=events(10))


def test_a_source_is_a_module_once() -> None:
    source = engine_of(query(TEXTS["negation"])).source
    assert module_of(source) is module_of(source)
    assert str(RUNS_MAX) in source

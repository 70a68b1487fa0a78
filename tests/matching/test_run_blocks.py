"""Many matches that wait for an absence, more than the arrays begin with: their order is worked out here."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from matching.batch import Matches
from matching.engines.run_blocks import RunBlocks
from matching.matcher import KernelMatcher
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import Plan, Within
from query.schema import Field, Schema
from tests.engines import matcher_by
from tests.events import batch_of

SCHEMA = Schema("e", (Field("ts", "TIMESTAMP"), Field("k", "VARCHAR"), Field("s", "VARCHAR")), time="ts", keys=("k",))
SECOND_US = 1_000_000
#: So many events of each kind: their pairs are more than the decided matches there is room for at first.
MANY = 150
Row = dict[str, object]


def plan_of(after: str) -> Plan:
    text = f"""SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES count(*) AS n AFTER MATCH {after}
        PATTERN (A B NOT N) WITHIN INTERVAL '1000' SECOND SELECTION SKIP TILL ANY MATCH
        DEFINE A AS s = 'a', B AS s = 'b', N AS s = 'n')"""
    return bind(parse(text), lambda _: SCHEMA).factors[0].plan


def matcher_of(plan: Plan) -> KernelMatcher:
    matcher = matcher_by(plan)
    assert isinstance(matcher.engine, RunBlocks)
    return matcher


def events(step: int, keys: str = "p") -> list[Row]:
    """MANY a of each key, `step` seconds apart (0: at one time), then MANY b."""
    kinds = [(s, i) for s in "ab" for i in range(MANY)]
    times = {"a": 0, "b": 500}
    return [{"ts": (times[s] + step * i) * SECOND_US, "k": k, "s": s} for s, i in kinds for k in keys]


def pairs(found: list[Matches]) -> list[tuple[int, int]]:
    """The offsets of the two events of each match, as they came; their numbers count from 1."""
    matches = [m for m in found if len(m)]
    assert [n for m in matches for n in m.number.tolist()] == [*range(1, sum(map(len, matches)) + 1)]
    return [(a, b) for m in matches for a, b in m.event_offset.reshape(-1, 2).tolist()]


@pytest.mark.parametrize("ends", ["by a row", "by the watermark", "with the input"])
@pytest.mark.parametrize("slack", [0, pytest.param(1 << 15, marks=pytest.mark.slow)])
def test_all_that_waits_comes_out_by_starts(ends: str, slack: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matching.rows.SLACK", slack)
    matcher = matcher_of(plan_of("NO SKIP"))
    rows = events(1)
    found = [matcher.push(batch_of(SCHEMA, rows[at : at + 50], at)) for at in range(0, len(rows), 50)]
    matcher, old = matcher_of(matcher.plan), matcher
    matcher.restore(old.snapshot())
    match ends:
        case "by a row":
            found.append(matcher.push(batch_of(SCHEMA, [{"ts": 5000 * SECOND_US, "k": "p", "s": "n"}], len(rows))))
        case "by the watermark":
            found.append(matcher.advance(5000 * SECOND_US))
        case _:
            found.append(matcher.advance(None))
    assert pairs(found) == list(product(range(MANY), range(MANY, 2 * MANY)))


def test_what_is_decided_at_one_time_comes_out_by_last_rows() -> None:
    matcher = matcher_of(plan_of("NO SKIP"))
    found = [matcher.push(batch_of(SCHEMA, events(0))), matcher.advance(5000 * SECOND_US)]
    assert pairs(found) == [(a, b) for b, a in product(range(MANY, 2 * MANY), range(MANY))]


@pytest.mark.slow
def test_a_negated_row_drops_all_that_wait_but_those_whose_time_is_over() -> None:
    matcher = matcher_of(plan_of("NO SKIP"))
    rows = [*events(1), {"ts": 1050 * SECOND_US, "k": "p", "s": "n"}, {"ts": 1060 * SECOND_US, "k": "p", "s": "b"}]
    found = [matcher.push(batch_of(SCHEMA, rows)), matcher.advance(None)]
    left = [(a, 2 * MANY + 1) for a in range(60, MANY)]  # a is within 1000 seconds of the last b
    assert pairs(found) == [*product(range(50), range(MANY, 2 * MANY)), *left]


@pytest.mark.parametrize(("after", "starts"), [("SKIP TO NEXT ROW", range(MANY)), ("SKIP PAST LAST ROW", range(1))])
def test_where_not_all_are_wanted_the_first_of_a_start_waits(after: str, starts: range) -> None:
    matcher = matcher_of(plan_of(after))
    found = [matcher.push(batch_of(SCHEMA, events(1))), matcher.advance(None)]
    assert pairs(found) == [(a, MANY) for a in starts]


def test_a_match_waits_before_a_run_of_its_start_that_the_row_passes_by() -> None:
    """The row that ends the match concerns no run before the one that takes it: what waits stands at the front even so,
    and comes out with the row at which WITHIN n ROWS is over, not at the end of the input."""
    text = """SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES MATCH_NUMBER() AS n
        PATTERN ((A B | B A) NOT N) WITHIN INTERVAL '3' SECOND SELECTION SKIP TILL NEXT MATCH
        DEFINE A AS s IN ('a', 'b'), B AS s = 'b', N AS s = 'n')"""
    matcher = matcher_of(replace(bind(parse(text), lambda _: SCHEMA).factors[0].plan, within=Within(rows=3)))
    rows: list[Row] = [{"ts": i * SECOND_US, "k": "p", "s": s} for i, s in enumerate("xbaxx")]
    found = [matcher.push(batch_of(SCHEMA, [row], i)) for i, row in enumerate(rows)]
    assert [len(m) for m in found] == [0, 0, 0, 1, 0]
    assert pairs([*found, matcher.advance(None)]) == [(1, 2)]


@pytest.mark.slow
def test_many_partitions_end_at_once() -> None:
    keys = [chr(ord("a") + i) for i in range(20)]
    matcher = matcher_of(plan_of("NO SKIP"))
    matcher.push(batch_of(SCHEMA, events(1, "".join(keys))))
    found = matcher.advance(None)
    assert len(found) == len(keys) * MANY * MANY
    assert matcher.engine.idle(len(keys)).all()


def test_rows_that_wait_for_the_next_one_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs of one key begin long before rows of another are taken, which wait for the row behind them."""
    # Before: a snapshot dropped the first row of such a run, and the match came without it, at time 0.
    monkeypatch.setattr("matching.rows.FEW", 0)
    text = """SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES count(*) AS n AFTER MATCH NO SKIP
        PATTERN (A B C) SELECTION SKIP TILL NEXT MATCH DEFINE B AS s >= A.s AND s <> NEXT(s))"""
    plan = bind(parse(text), lambda _: SCHEMA).factors[0].plan
    kinds = ["pa", "pa", "qa", "qa", "pa", "pa", "pa", "pa", "pa", "pb", "pa", "pa", "qb"]
    rows: list[Row] = [{"ts": (i + 1) * SECOND_US, "k": k, "s": s} for i, (k, s) in enumerate(kinds)]
    matcher, at, found = matcher_by(plan, RunBlocks), 0, []
    for size in (1, 1, 1, 1, 1, 1, 5, 2):
        found.append(matcher.push(batch_of(SCHEMA, rows[at : at + size], at)))
        matcher, old = matcher_by(plan, RunBlocks), matcher
        matcher.restore(old.snapshot())
        at += size
    found.append(matcher.advance(None))
    triples = [m.event_offset.reshape(-1, 3).tolist() for m in found if len(m)]
    assert sorted(t for some in triples for t in some) == [
        [0, 8, 9], [1, 8, 9], [2, 3, 12], [4, 8, 9], [5, 8, 9], [6, 8, 9], [7, 8, 9], [8, 9, 10],
    ]  # fmt: skip

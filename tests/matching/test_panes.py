"""Windows that overlap much, put together from panes: matching/engines/run_panes.py and matching/kernels/panes.py.
tests/properties/test_panes.py compares them with windows that are counted one by one."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest

from matching.engines.run_ordered import RunOrdered
from matching.engines.run_panes import RunPanes
from matching.engines.run_trends import RunTrends
from matching.matcher import KernelMatcher, make_matcher
from matching.program.trends import PANES_ALONE_FROM, PANES_FROM
from matching.purpose import Purpose
from matching.workload.program import shareable
from query.errors import DataError
from query.plan.plan import Plan
from tests.events import batch_of
from tests.properties.comparing import constant
from tests.trends import EVENTS, SECOND, Row, plan_of, read_rows, row, rows_of, statement

pytestmark = pytest.mark.slow  # kernels of panes take half a minute to compile


@pytest.fixture
def one_by_one() -> Iterator[None]:
    """Counts each window on its own."""
    with constant("matching.program.trends.PANES_FROM", 1 << 30):
        yield


def engine_of(plan: Plan) -> str:
    matcher = make_matcher(plan)
    assert isinstance(matcher, KernelMatcher)
    return matcher.engine.tag


def found(plan: Plan, events: list[Row], size: int = 1000) -> list[tuple[object, ...]]:
    matcher = make_matcher(plan)
    whole = batch_of(EVENTS, events)
    parts = [whole.slice(i, min(len(events), i + size)) for i in range(0, len(events), size)]
    return rows_of(plan, [*map(matcher.push, parts), matcher.advance(None)])


def both(plan: Plan, events: list[Row], size: int = 1000) -> list[tuple[object, ...]]:
    """Returns the rows by panes, which are those of windows that are counted one by one."""
    assert engine_of(plan) == RunPanes.tag
    with constant("matching.program.trends.PANES_FROM", 1 << 30):
        assert engine_of(plan) == RunTrends.tag
        wanted = found(plan, events, size)
    assert found(plan, events, size) == wanted
    return wanted


def test_windows_that_overlap_much_are_counted_by_panes() -> None:
    few, many = PANES_FROM - 1, PANES_FROM
    assert engine_of(plan_of(statement("A+ B", few, 1))) == RunTrends.tag
    assert engine_of(plan_of(statement("A+ B", many, 1))) == RunPanes.tag
    assert engine_of(plan_of(statement("A+ (NOT C) B", many, 1))) == RunPanes.tag
    # what an event does then depends on the events before, or on which of the trends it may continue
    assert engine_of(plan_of(statement("A+ B", many, 1, conditions="B: v > LAST(A.v)"))) == RunOrdered.tag
    assert engine_of(plan_of(statement("A+ B", many, 1, selection="SELECTION SKIP TILL NEXT MATCH"))) == RunTrends.tag
    assert engine_of(plan_of(statement("A{9} B{9}", many, 1))) == RunTrends.tag  # the square of 20 states


def test_the_names_of_a_state_are_pinned() -> None:
    """A state with another name would make queries go through their events again: see tests/matching/test_state.py."""
    matcher = make_matcher(plan_of(statement("A+ B", 60, 1, partition="g")))
    matcher.push(batch_of(EVENTS, read_rows("A@1{2} A@2{3} B@3")))
    assert isinstance(matcher, KernelMatcher)
    assert matcher.engine.tag == "panes"
    assert set(matcher.engine.snapshot()) == {
        "panes", "matrices", "ends", "vectors", "keys", "products", "widths", "out", "counters",
    }  # fmt: skip


def test_a_state_of_windows_that_were_counted_one_by_one_is_another_one() -> None:
    for text in (statement("A+ B", 60, 1), statement("A+ B", 60, 1).replace("A+ B", "A+ B C")):
        plan = plan_of(text)
        with constant("matching.program.trends.PANES_FROM", 1 << 30):
            before = make_matcher(plan)
        after = make_matcher(plan)
        assert isinstance(before, KernelMatcher)
        assert isinstance(after, KernelMatcher)
        assert after.fits(after.snapshot())
        assert not after.fits(before.snapshot())


def test_a_worked_example() -> None:
    """Three trends while all of it is in the window, then one, as its beginnings leave."""
    plan = plan_of(statement("A+ B", 60, 1, measures="COUNT(MATCHES) AS n, SUM(A.v) AS s, MIN(A.v) AS lo"))
    rows = both(plan, read_rows("A@0{2} A@10{5} B@20"))
    wanted = [(-39 + k, 3, 14, 2) for k in range(40)] + [(k, 1, 5, 5) for k in range(1, 11)]
    assert rows == [(k * SECOND, (k + 60) * SECOND, *rest) for k, *rest in wanted]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(("within", "slide"), [(64, 1), (125, 2)])
def test_numbers_are_exact_at_any_size(size: int, within: int, slide: int) -> None:
    """600 A in ten windows' time, with values up to both ends of a BIGINT, and sums of both signs."""
    values = [(-(2**63), 2**63 - 1, 7, None, -1)[i % 5] for i in range(600)]
    events = [row("AAAAAAAAB"[i % 9], i / 7, v, "xy"[i % 2]) for i, v in enumerate(values)]
    measures = "COUNT(MATCHES) AS n, COUNT(A.*) AS c, SUM(A.v) AS s, AVG(v) AS a, MIN(v) AS lo, MAX(B.v) AS hi"
    rows = both(plan_of(statement("A+ B", within, slide, partition="g", group="g", measures=measures)), events, size)
    assert max(int(r[3]) for r in rows) > 2**190  # type: ignore[call-overload]
    assert min(int(r[5]) for r in rows if r[5] is not None) < -(2**190)  # type: ignore[call-overload]


@pytest.mark.parametrize("pattern", ["NOT C A B", "(A NOT C B)+", "A B NOT C", "(A | C) (B NOT D A)+ NOT D"])
def test_negated_events(pattern: str) -> None:
    rng = np.random.default_rng(5)
    events = [row("AABBCD"[rng.integers(6)], t / 3, int(rng.integers(9)), "xy"[rng.integers(2)]) for t in range(400)]
    assert len(both(plan_of(statement(pattern, 60, 1, partition="g", group="g")), events, 50)) > 100


def test_more_limbs_than_there_may_be() -> None:
    events = [row("A", i / 100) for i in range(200)]
    with constant("matching.engines.run_trends.LIMBS_MAX", 2):
        with pytest.raises(DataError, match=r"a count of trends has more than 128 bits(.|\n)*shorten WITHIN"):
            found(plan_of(statement("A+", 60, 1)), events)
        with pytest.raises(DataError, match="more than 128 bits"):  # only of panes that are put together
            found(plan_of(statement("A+", 60, 1)), [row("A", i / 4) for i in range(200)])


def test_what_no_trend_leads_to_has_no_number() -> None:
    """500 B alone have 2 ** 500 subsets, and none of them is counted, since no A comes before them."""
    events = [row("A", 0.5), *(row("B", 100 + i / 7) for i in range(500)), row("A", 300), row("B", 301)]
    with constant("matching.engines.run_trends.LIMBS_MAX", 2):
        rows = both(plan_of(statement("A B+", 60, 1)), events)
    assert {r[2] for r in rows} == {1}


def test_idle_partitions_and_closed_windows_leave_no_memory() -> None:
    matcher = make_matcher(plan_of(statement("A+", 60, 1, partition="g")))
    assert isinstance(matcher, KernelMatcher)
    closed = 0
    for k in range(200):
        matcher.push(batch_of(EVENTS, [row("A", 100 * k, 1, str(k))], k))
        closed += len(matcher.advance((100 * k + 99) * SECOND))
        assert not matcher.engine.busy(np.arange(k + 1)).any()
    assert closed == 200 * 60
    sizes = {name: len(a) for name, a in matcher.engine.snapshot().items()}
    assert max(sizes[name] for name in ("panes", "ends", "products", "out")) < 3


def test_what_begins_no_trend_makes_no_pane() -> None:
    matcher = make_matcher(plan_of(statement("A B+", 60, 1, partition="g")))
    assert isinstance(matcher, KernelMatcher)
    matcher.push(batch_of(EVENTS, [row("B", t, 1, "xyz"[t % 3]) for t in range(50)]))
    assert len(matcher.engine.snapshot()["panes"]) == 0


def test_a_restart_anywhere_gives_the_same_doubles() -> None:
    """The last digits of a sum depend on the order of additions, which is that of blocks at fixed times."""
    rng = np.random.default_rng(7)
    events = [row("AAB"[rng.integers(3)], t / 2, d=float(rng.normal() * 1e3)) for t in range(900)]
    plan = plan_of(statement("A+ B", 60, 1, measures="COUNT(MATCHES) AS n, SUM(d) AS s, AVG(A.d) AS a"))
    whole = found(plan, events)
    # a query that starts in the middle is given the events of its open windows
    for cut in (333, 500):
        begin = int(events[cut]["ts"]) // SECOND + 1
        later = found(plan, [e for e in events if e["ts"] >= begin * SECOND])
        assert [r for r in whole if int(r[0]) >= begin * SECOND] == [  # type: ignore[call-overload]
            r for r in later if int(r[0]) >= begin * SECOND]  # type: ignore[call-overload]
        assert len(later) > 100


def test_queries_whose_windows_overlap_much_are_not_counted_together() -> None:
    assert shareable(plan_of(statement("A B+", PANES_ALONE_FROM - 1, 1))) is None
    assert shareable(plan_of(statement("A B+", PANES_ALONE_FROM, 1))) == (
        "its windows overlap so much that panes cost less"
    )


def test_explain_says_panes() -> None:
    matcher = make_matcher(plan_of(statement("A B+", 3600, 1)), Purpose.LIVE)
    assert isinstance(matcher, KernelMatcher)
    shown = str(matcher.chosen)
    assert "engine      counts of trends by state and pane" in shown
    assert "why         an event is in 3,600 windows, which are put together from panes" in shown


def test_many_windows_cost_little_more_than_few(one_by_one: None) -> None:
    """Before: an event cost an addition in each of its windows, so 3,600 of them took 60 times as long as 60."""
    rng = np.random.default_rng(3)
    events = [row("ABC"[rng.integers(3)], t / 2, 1, "xy"[rng.integers(2)]) for t in range(8000)]
    batch = batch_of(EVENTS, events)

    def seconds(slide: str, panes_from: int) -> float:
        text = statement("A B+ C", 3600, 1, partition="g", measures="COUNT(MATCHES) AS n")
        with constant("matching.program.trends.PANES_FROM", panes_from):
            matcher = make_matcher(plan_of(text.replace("SLIDE 1 SECONDS", slide)))
        began = time.process_time()
        matcher.push(batch)
        return time.process_time() - began

    seconds("SLIDE 600 SECONDS", 2)  # compiles
    panes = min(seconds("SLIDE 1 SECONDS", 2) for _ in range(2))
    assert panes < 30 * max(0.02, seconds("SLIDE 60 SECONDS", 2))
    assert panes < seconds("SLIDE 60 SECONDS", 1 << 30) * 60 / 5

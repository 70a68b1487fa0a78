"""A kernel written out for a program gives what the reference gives, from the start or swapped in between batches.

The generated source runs as plain Python here, since a compiler would take seconds for each example; what is compiled
is compared with that in tests/matching/test_specialise.py."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from matching.batch import Matches
from matching.engines.run_blocks import RunBlocks
from matching.engines.run_lists import RunLists
from matching.matcher import KernelMatcher
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import Plan
from tests.engines import matcher_by
from tests.events import batch_of
from tests.properties import test_kernel
from tests.properties.comparing import FEWER, answer_of, drawn_until_told, fewer, program_of, reference_of
from tests.properties.test_skip_till import skipping
from tests.strategies import SCHEMA, Row, events, plans


def interpreted_by_python(source: str) -> Any:
    """The module of a source, not compiled."""
    imported = "from matching.kernels.jit import inlined, kernel\n"
    assert imported in source
    scope: dict[str, Any] = {}
    plain = source.replace(imported, "inlined = kernel = lambda function: function\n")
    exec(compile(plain, "<kernel>", "exec"), scope)
    return SimpleNamespace(step=scope["step"])


def swapped(matcher: KernelMatcher, rows: list[Row], size: int, swap: int) -> list[Matches]:
    """What a matcher finds that goes on with the kernel written for its program before batch `swap`."""
    assert isinstance(matcher.engine, RunBlocks | RunLists)
    module = interpreted_by_python(matcher.engine.source)
    found: list[Matches] = []
    for at in range(0, len(rows), size):
        if at // size == swap:
            matcher.engine.run_by(module.step)
        found.append(matcher.push(batch_of(SCHEMA, rows[at : at + size], at)))
    return [*found, matcher.advance(None)]


def blocks_of(plan: Plan) -> KernelMatcher:
    """The matcher of a plan, its runs in blocks even where a graph would do."""
    return matcher_by(plan, RunBlocks, program=program_of(plan), lenient=True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_a_kernel_written_for_a_program_equals_the_reference(record_property: Callable[[str, object], None]) -> None:
    counts: Counter[str] = Counter()

    @FEWER
    @given(rows=events(min_size=4), plan=skipping(), size=st.sampled_from((1, 4, 100)), swap=st.integers(0, 6))
    def check(plan: Plan, rows: list[Row], size: int, swap: int) -> None:
        matcher = blocks_of(plan)
        assume(matcher.engine.specialises)
        expected = reference_of(plan, rows)
        assert answer_of(swapped(matcher, rows, size, swap)) == expected
        counts["examples"] += 1
        counts["a match"] += bool(expected)
        counts["swapped"] += len(rows) > swap * size
        counts["registers"] += bool(matcher.program.registers)
        counts["negation"] += bool(matcher.program.absence.gaps)

    def shares() -> None:
        for what in ("a match", "swapped", "registers"):
            assert 10 * counts[what] >= counts["examples"], what

    with np.errstate(over="ignore"):
        drawn_until_told(check, shares)
    record_property("examples", ", ".join(f"{what} {count:,}" for what, count in counts.items()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*would not move on:query.errors.HybridWarning")
def test_so_does_one_of_run_lists(record_property: Callable[[str, object], None]) -> None:
    tally = test_kernel.Tally()

    @fewer(5)  # most of the time is compiling
    @given(rows=events(), plan=plans(), size=st.sampled_from((1, 4, 100)), swap=st.integers(0, 6))
    def check(plan: Plan, rows: list[Row], size: int, swap: int) -> None:
        matcher = test_kernel.kernel_of(plan, general=True)()
        assume(matcher.engine.specialises)
        expected = reference_of(plan, rows)
        assert answer_of(swapped(matcher, rows, size, swap)) == expected
        tally.add(matcher, rows, expected)

    with np.errstate(over="ignore"):
        check()
    for engine, counts in tally.counts.items():
        record_property("examples", f"{engine}: " + ", ".join(f"{what} {count:,}" for what, count in counts.items()))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
def test_no_row_begins_a_match_where_the_empty_one_is_best() -> None:
    text = """SELECT * FROM e MATCH_RECOGNIZE (ORDER BY ts MEASURES count(*) AS n PATTERN ((A B | B A)*?)
        DEFINE A AS v > 0, B AS v > 0) AS m"""
    plan = bind(parse(text), lambda _: SCHEMA).factors[0].plan
    rows: list[Row] = [{"ts": i * 1_000_000, "k": "p", "s": "a", "v": 1, "x": 0.5} for i in range(4)]
    matcher = test_kernel.kernel_of(plan, general=True)()
    with np.errstate(over="ignore"):
        assert answer_of(swapped(matcher, rows, 1, 0)) == reference_of(plan, rows)

"""The kernel gives what the reference gives, on examples that no run before has seen: as a whole, cut into batches, and
restored from snapshots.

All other properties of the suite draw the same examples each time. FRESH_SECONDS: the processor time after which this
one starts no further seed, 5 s if not set, 30 s in CI. FRESH_SEED: the first seed, to repeat a run; random if not set.
The seeds are printed with the examples of the properties, and in the notes of a failure."""

from __future__ import annotations

import os
import secrets
import time
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import assume, given, seed, settings
from hypothesis import strategies as st

from matching.engines.choose import choose_engine
from matching.match_graph import MatchGraph
from matching.purpose import Purpose
from query.language.ast import Selection
from query.plan.plan import Plan
from tests.events import batch_of
from tests.properties.comparing import answer_of, answer_of_restored, reference_of, run, steps_for
from tests.properties.test_absence import absences
from tests.properties.test_kernel import kernel_of
from tests.properties.test_merging import reading
from tests.properties.test_skip_till import skipping, waiting
from tests.strategies import SCHEMA, Row, events, plans

pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")

#: Examples of one seed: the time is looked at after each seed.
EXAMPLES = 100
#: The reference takes minutes for an example of many more matches, and nobody chose the examples of this one. It is the
#: kernel that is asked how many there are, and its graph before: (A | B | C)+ has 268 million matches in 14
#: rows, which it would build. The other properties have no such limit.
MATCHES_MAX = 5_000


@st.composite
def plans_of_every_kind(draw: st.DrawFn) -> tuple[Plan, bool]:
    """A plan that one of the other properties draws, and whether the run lists find it, which can run what tables do:
    neighbouring rows, negations at the edges, rows passed over, matches that wait, merged runs."""
    plan = draw(st.one_of(plans(), absences(), skipping(), waiting(), reading()))
    return plan, plan.selection is Selection.STRICT and draw(st.booleans())


def counted(plan: Plan, rows: list[Row]) -> int | None:
    """The number of matches by their graph, None if the plan's engine has none."""
    chosen = choose_engine(plan, Purpose.GRAPH)
    return MatchGraph(plan, chosen, [batch_of(SCHEMA, rows)]).count if chosen.engine is not None else None


@pytest.mark.slow
def test_kernel_equals_reference_on_fresh_examples(record_property: Callable[[str, object], None]) -> None:
    first = int(os.environ.get("FRESH_SEED") or secrets.randbelow(10**9))
    end = time.process_time() + float(os.environ.get("FRESH_SECONDS") or 5)
    compared: Counter[str] = Counter()
    number = first
    while number == first or time.process_time() < end:
        print(f"FRESH_SEED={number}")  # noqa: T201 (of a run that hangs, pytest shows it with the stack)

        @seed(number)
        @settings(max_examples=EXAMPLES, derandomize=False, database=None, print_blob=True)
        @given(
            rows=events(min_size=5), of=plans_of_every_kind(), size=st.sampled_from((1, 3)), restored=st.booleans(),
            data=st.data(),
        )  # fmt: skip
        def check(rows: list[Row], of: tuple[Plan, bool], size: int, restored: bool, data: st.DataObject) -> None:
            plan, general = of
            make = kernel_of(plan, general)
            # Before: a worker of 20 GB.
            assume((count := counted(plan, rows)) is None or count <= MATCHES_MAX)
            kernel = make()
            found = [kernel.push(batch_of(SCHEMA, rows)), kernel.advance(None)]
            assume(sum(map(len, found)) <= MATCHES_MAX)
            expected = reference_of(plan, rows)
            assert answer_of(found) == expected
            if restored:
                assert answer_of_restored(make, rows, steps_for(rows, data)) == expected
            else:
                assert answer_of(run(make(), rows, size)) == expected
            compared["compared"] += 1
            compared[type(kernel.engine).__name__] += 1

        try:
            check()
        except BaseException as error:
            error.add_note(f"repeat this with FRESH_SEED={number}")
            raise
        number += 1
    shown = ", ".join(f"{what} {count:,}" for what, count in compared.items())
    record_property("examples", f"{shown}, FRESH_SEED={first} to {number - 1}")
    assert compared["compared"] * 4 >= (number - first) * EXAMPLES

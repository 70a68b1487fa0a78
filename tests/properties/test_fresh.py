"""The kernel gives what the reference gives, on examples that no run before has seen.

All other properties of the suite draw the same examples each time. FRESH_SECONDS: the processor time after which this
one starts no further seed, 10 s if not set, 30 s in CI. FRESH_SEED: the first seed, to repeat a run; random if not set.
The seeds are printed with the examples of the properties, and in the notes of a failure."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable

import pytest
from hypothesis import assume, given, seed, settings
from hypothesis import strategies as st

from query.plan.plan import Plan
from tests.events import batch_of
from tests.properties.comparing import answer_of, reference_of
from tests.properties.test_kernel import kernel_of
from tests.strategies import SCHEMA, Row, events, plans

pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")

#: Examples of one seed: the time is looked at after each seed.
EXAMPLES = 100
#: The reference takes minutes for an example of many more matches, and nobody chose the examples of this one. It is the
#: kernel that is asked how many there are; the other properties have no such limit.
MATCHES_MAX = 5_000


@pytest.mark.slow
def test_kernel_equals_reference_on_fresh_examples(record_property: Callable[[str, object], None]) -> None:
    first = int(os.environ.get("FRESH_SEED") or secrets.randbelow(10**9))
    end = time.process_time() + float(os.environ.get("FRESH_SECONDS") or 10)
    compared, number = 0, first
    while number == first or time.process_time() < end:
        print(f"FRESH_SEED={number}")  # noqa: T201 (of a run that hangs, pytest shows it with the stack)

        @seed(number)
        @settings(max_examples=EXAMPLES, derandomize=False, database=None, print_blob=True)
        @given(rows=events(min_size=5), plan=plans(), general=st.booleans())
        def check(plan: Plan, rows: list[Row], general: bool) -> None:
            nonlocal compared
            kernel = kernel_of(plan, general)()
            found = [kernel.push(batch_of(SCHEMA, rows)), kernel.advance(None)]
            assume(sum(map(len, found)) <= MATCHES_MAX)
            assert answer_of(found) == reference_of(plan, rows)
            compared += 1

        try:
            check()
        except BaseException as error:
            error.add_note(f"repeat this with FRESH_SEED={number}")
            raise
        number += 1
    record_property("examples", f"{compared:,} compared, FRESH_SEED={first} to {number - 1}")
    assert compared * 4 >= (number - first) * EXAMPLES

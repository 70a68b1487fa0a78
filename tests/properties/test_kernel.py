"""The kernel gives what the reference gives: all at once, at every step, cut anywhere, and restored at any point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.batch import Matches
from matching.engines.run_lists import RunLists
from matching.matcher import KernelMatcher
from query.errors import QueryError
from query.language.ast import AfterMatchKind
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.pattern import Alternation, Exclusion, Repeat, RowPattern, variables
from query.plan.pattern import Sequence as Concatenation
from query.plan.plan import AfterMatch, Plan
from tests.engines import matcher_by
from tests.events import batch_of
from tests.properties.comparing import (
    Answer,
    answer_of,
    by_reference,
    compare_at_every_step,
    constant,
    drawn_until,
    is_quick,
    or_error,
    program_of,
    reference_of,
    run,
    same_error,
    variants,
)
from tests.strategies import SCHEMA, Row, events, plans, traits

#: AFTER MATCH SKIP TO that would not move on warns; these tests go on.
pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")


def begins_of(found: Sequence[Matches]) -> list[int]:
    """The time at which each match, unmatched row and timeout began, as they came."""
    return [int(t) for matches in found for t in matches.first_us.tolist()]


def kernel_of(plan: Plan, general: bool = False) -> Callable[[], KernelMatcher]:
    """Makes kernel matchers of the plan; rejects the example if only the reference can run it. general: by run lists,
    which can run all that the tables can."""
    program = program_of(plan)

    return partial(matcher_by, plan, RunLists if general else None, program=program, lenient=True)


def choices(pattern: RowPattern) -> set[str]:
    """Variables that stand inside an alternation."""
    match pattern:
        case Alternation(parts):
            return {v for p in parts for v in variables(p)}
        case Concatenation(parts):
            return {v for p in parts for v in choices(p)}
        case Repeat(body) | Exclusion(body):
            return choices(body)
        case _:
            return set()


#: What few examples are like.
RARE = ("stuck", "an unmatched row", "a timeout", "^", "$", "{- -}")


class Tally:
    """What the examples of one property were like, per engine."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}

    def add(self, matcher: KernelMatcher, rows: Sequence[Row], answer: Answer) -> None:
        plan = matcher.plan
        counts = self.counts.setdefault(type(matcher.engine).__name__, Counter())
        keys = [(row["k"] if plan.partition_by else "", row["ts"]) for row in rows]
        matched = {label for match in answer for label, _ in match[4]}  # type: ignore[attr-defined]
        counts["examples"] += 1
        counts["a match"] += any(match[0] == "MATCH" for match in answer)
        counts["two or more"] += len(answer) > 1
        counts["a null"] += any(value is None for row in rows for value in row.values())
        counts["a tie"] += len(set(keys)) < len(keys)
        counts["an alternation taken"] += bool(matched & choices(plan.pattern))
        counts["stuck"] += matcher.stuck > 0
        counts["an unmatched row"] += any(match[0] == "UNMATCHED" for match in answer)
        counts["a timeout"] += any(match[0] == "TIMEOUT" for match in answer)
        for trait in traits(plan):
            counts[trait] += 1

    def complete(self) -> bool:
        """True if the rarest constructs and all engines are among the examples."""
        total: Counter[str] = sum(self.counts.values(), Counter())
        return is_quick() or (len(self.counts) == 3 and all(total[what] for what in RARE))

    def report(self, record_property: Callable[[str, object], None]) -> None:
        for engine, counts in sorted(self.counts.items()):
            shown = ", ".join(f"{what} {count:,}" for what, count in counts.items())
            record_property("examples", f"{engine}: {shown}")
        total: Counter[str] = sum(self.counts.values(), Counter())
        assert 2 * total["a match"] >= total["examples"], "too few examples with a match say something"
        for what in ("two or more", "a null", "a tie", "an alternation taken"):
            assert total[what] > 0, what
        if not is_quick():
            for what in RARE:
                assert total[what] > 0, what
            assert len(self.counts) == 3, "an engine was never used"


@pytest.mark.slow
def test_kernel_equals_reference(record_property: Callable[[str, object], None]) -> None:
    tally = Tally()

    @given(rows=events(min_size=5), plan=plans(), general=st.booleans())
    def check(plan: Plan, rows: list[Row], general: bool) -> None:
        make = kernel_of(plan, general)
        expected = reference_of(plan, rows)
        kernel = make()
        found = [kernel.push(batch_of(SCHEMA, rows)), kernel.advance(None)]
        assert answer_of(found) == expected
        if not plan.partition_by and plan.after.kind is not AfterMatchKind.NO_SKIP:
            began = begins_of(found)
            assert began == sorted(began)
        tally.add(kernel, rows, expected)

    drawn_until(check, tally.complete)
    tally.report(record_property)


@pytest.mark.slow
def test_a_match_comes_out_with_the_event_or_watermark_that_decides_it(
    record_property: Callable[[str, object], None],
) -> None:
    tally = Tally()

    @given(rows=events(min_size=5, max_size=10), plan=plans(), general=st.booleans(), data=st.data())
    def check(plan: Plan, rows: list[Row], general: bool, data: st.DataObject) -> None:
        make = kernel_of(plan, general)
        expected = reference_of(plan, rows)
        kernel = make()
        compare_at_every_step(kernel, rows, data)
        tally.add(kernel, rows, expected)

    drawn_until(check, tally.complete)
    tally.report(record_property)


@pytest.mark.slow
@given(rows=events(), plan=plans(), general=st.booleans(), data=st.data())
def test_cutting_the_input_into_batches_changes_nothing(
    plan: Plan, rows: list[Row], general: bool, data: st.DataObject
) -> None:
    make = kernel_of(plan, general)
    whole = make()
    expected = answer_of([whole.push(batch_of(SCHEMA, rows)), whole.advance(None)])
    kernel = make()
    found, at = [], 0
    while at < len(rows):
        if data.draw(st.booleans()):
            found.append(kernel.push(batch_of(SCHEMA, [])))
        size = data.draw(st.integers(1, len(rows) - at))
        found.append(kernel.push(batch_of(SCHEMA, rows[at : at + size], at)))
        at += size
        if data.draw(st.booleans()) and at < len(rows):
            found.append(kernel.advance(int(rows[at]["ts"])))  # type: ignore[call-overload]
    found.append(kernel.advance(None))
    assert answer_of(found) == expected


@pytest.mark.slow
@given(rows=events(), plan=plans(), general=st.booleans(), data=st.data())
def test_restoring_a_snapshot_changes_nothing(
    plan: Plan, rows: list[Row], general: bool, data: st.DataObject
) -> None:
    make = kernel_of(plan, general)
    whole = make()
    expected = answer_of([whole.push(batch_of(SCHEMA, rows)), whole.advance(None)])
    at = data.draw(st.integers(0, len(rows)))
    first, second = make(), make()
    found = [first.push(batch_of(SCHEMA, rows[:at]))]
    second.restore(first.snapshot())
    found += [second.push(batch_of(SCHEMA, rows[at:], at)), second.advance(None)]
    assert answer_of(found) == expected
    assert second.stuck == whole.stuck


@pytest.mark.slow
@given(rows=events(), plan=plans(), general=st.booleans())
def test_dropping_what_no_run_needs_changes_nothing(plan: Plan, rows: list[Row], general: bool) -> None:
    make = kernel_of(plan, general)
    expected = reference_of(plan, rows)
    for slack in variants(0, 3):  # compaction after almost every batch
        with constant("matching.rows.SLACK", slack):
            assert answer_of(run(make(), rows, 1)) == expected, f"SLACK {slack}"


@pytest.mark.slow
@given(rows=events(min_size=5), plan=plans(no_skip=False), first=st.booleans(), general=st.booleans())
def test_skip_that_would_not_move_on_is_an_error_unless_lenient(
    plan: Plan, rows: list[Row], first: bool, general: bool
) -> None:
    kind = AfterMatchKind.TO_FIRST if first else AfterMatchKind.TO_LAST
    plan = replace(plan, after=AfterMatch(kind, variables(plan.pattern)[-1:]))
    lenient, strict = kernel_of(plan, general)(), kernel_of(plan, general)()
    strict.lenient = False
    batch = batch_of(SCHEMA, rows)
    lenient.push(batch)
    lenient.advance(None)
    said = ""
    try:
        strict.push(batch)
        strict.advance(None)
    except QueryError as error:
        said = error.diagnostics[0].code
    assert said == ("HQ601" if lenient.stuck else "")


@pytest.mark.slow
@given(rows=events(min_size=5), plan=plans(raising=True), general=st.booleans(), size=st.sampled_from((1, 3, 100)))
def test_a_condition_that_cannot_be_computed_is_an_error_where_the_reference_reads_it(
    plan: Plan, rows: list[Row], general: bool, size: int
) -> None:
    same_error(plan, kernel_of(plan, general), rows, size)


@pytest.mark.parametrize(
    ("condition", "fails"),
    [
        ("LAST(A.v) BETWEEN 9 AND B.v + {max}", True), ("LAST(A.v) BETWEEN 9 AND LAST(A.v) + {max}", True),
        ("B.v NOT BETWEEN LAST(A.v) AND v * {max}", True), ("LAST(A.v) IN (LAST(A.v), B.v + {max})", True),
        ("LAST(A.v) NOT IN (B.v + {max}, 3)", True), ("B.v BETWEEN 9 AND B.v + {max}", True),
        ("B.v IN (B.v, B.v + {max})", True), ("LAST(A.v) BETWEEN 9 AND {max}", False),
        ("LAST(A.v) IN (3, {max})", False), ("LAST(A.v) = 3 OR LAST(A.v) + {max} = 0", False),
        ("LAST(A.v) >= 9 AND LAST(A.v) + {max} = 0", False),
    ],
)  # fmt: skip
@pytest.mark.parametrize("general", [False, True])
def test_what_stands_in_between_and_in_is_computed_and_behind_and_and_or_where_it_counts(
    condition: str, fails: bool, general: bool
) -> None:
    text = f"""SELECT * FROM e MATCH_RECOGNIZE (ORDER BY ts MEASURES B.v AS b PATTERN (A B) DEFINE A AS v = 3,
        B AS {condition.format(max=2**63 - 1)}) AS m"""
    plan = bind(parse(text), lambda _: SCHEMA).factors[0].plan
    rows: list[Row] = [{"ts": i * 1_000_000, "k": "p", "s": "a", "v": v, "x": 0.5} for i, v in enumerate((3, 4, 3, 5))]
    assert (or_error(lambda: answer_of([by_reference(plan, rows)])) is None) == fails
    same_error(plan, kernel_of(plan, general), rows, 2)

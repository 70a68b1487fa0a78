"""The kernel gives what the reference gives: all at once, at every step, cut anywhere, and restored at any point."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from matching.batch import Matcher, Matches
from matching.by_reference import ReferenceMatcher
from matching.matcher import KernelMatcher
from query.automaton.program import NoKernel, assemble
from query.errors import QueryError
from query.language.ast import RowsPerMatch
from query.plan.pattern import Alternation, Repeat, RowPattern, variables
from query.plan.pattern import Sequence as Concatenation
from query.plan.plan import Plan
from tests.events import batch_of
from tests.strategies import SCHEMA, Row, events, plans

Answer = list[tuple[object, ...]]


def answer_of(found: Sequence[Matches]) -> Answer:
    """Number, times, matched events and output rows of every match, sorted; NaN prints as itself."""
    out: Answer = []
    for matches in found:
        rows: dict[int, list[str]] = {}
        if matches.rows.num_columns:  # without any, Arrow does not know how many rows there are
            for match, row in zip(matches.row_match.tolist(), matches.rows.to_pylist(), strict=True):
                rows.setdefault(match, []).append(repr(row))
        bounds = matches.event_bounds.tolist()
        labels = [matches.variables[v] for v in matches.event_variable.tolist()]
        offsets = matches.event_offset.tolist()
        for i in range(len(matches)):
            cut = slice(bounds[i], bounds[i + 1])
            events_ = tuple(zip(labels[cut], offsets[cut], strict=True))
            times = int(matches.first_us[i]), int(matches.last_us[i])
            out.append((int(matches.number[i]), *times, events_, tuple(rows.get(i, ()))))
    return sorted(out, key=repr)


def kernel_of(plan: Plan) -> Callable[[], Matcher]:
    """Makes kernel matchers of the plan; rejects the example if only the reference can run it."""
    try:
        program = assemble(plan)
    except NoKernel:
        assume(False)
    return lambda: KernelMatcher(plan, program)


def reference_of(plan: Plan, rows: Sequence[Row]) -> Answer:
    reference = ReferenceMatcher(plan)
    try:
        return answer_of([reference.push(batch_of(SCHEMA, rows)), reference.advance(None)])
    except QueryError:
        assume(False)  # more steps than the reference allows itself
        raise


def choices(pattern: RowPattern) -> set[str]:
    """Variables that stand inside an alternation."""
    match pattern:
        case Alternation(parts):
            return {v for p in parts for v in variables(p)}
        case Concatenation(parts):
            return {v for p in parts for v in choices(p)}
        case Repeat(body):
            return choices(body)
        case _:
            return set()


class Tally:
    """What the examples of one property were like, per selection strategy."""

    def __init__(self) -> None:
        self.counts: dict[str, Counter[str]] = {}

    def add(self, plan: Plan, rows: Sequence[Row], answer: Answer) -> None:
        counts = self.counts.setdefault(plan.selection.value, Counter())
        keys = [(row["k"] if plan.partition_by else "", row["ts"]) for row in rows]
        matched = {label for match in answer for label, _ in match[3]}  # type: ignore[attr-defined]
        counts["examples"] += 1
        counts["a match"] += bool(answer)
        counts["two or more"] += len(answer) > 1
        counts["a null"] += any(value is None for row in rows for value in row.values())
        counts["a tie"] += len(set(keys)) < len(keys)
        counts["an alternation taken"] += bool(matched & choices(plan.pattern))
        counts["WITHIN"] += plan.within is not None
        counts["all rows"] += plan.rows is not RowsPerMatch.ONE

    def report(self, record_property: Callable[[str, object], None]) -> None:
        for selection, counts in sorted(self.counts.items()):
            shown = ", ".join(f"{what} {count:,}" for what, count in counts.items())
            record_property("examples", f"{selection}: {shown}")
        total: Counter[str] = sum(self.counts.values(), Counter())
        assert 2 * total["a match"] >= total["examples"], "too few examples with a match say something"
        for what in ("two or more", "a null", "a tie", "an alternation taken"):
            assert total[what] > 0, what


def test_kernel_equals_reference(record_property: Callable[[str, object], None]) -> None:
    tally = Tally()

    @given(rows=events(min_size=5), plan=plans())
    def check(plan: Plan, rows: list[Row]) -> None:
        make = kernel_of(plan)
        expected = reference_of(plan, rows)
        kernel = make()
        assert answer_of([kernel.push(batch_of(SCHEMA, rows)), kernel.advance(None)]) == expected
        tally.add(plan, rows, expected)

    check()
    tally.report(record_property)


def test_a_match_comes_out_with_the_event_or_watermark_that_decides_it(
    record_property: Callable[[str, object], None],
) -> None:
    tally = Tally()

    @given(rows=events(min_size=5, max_size=10), plan=plans(), data=st.data())
    def check(plan: Plan, rows: list[Row], data: st.DataObject) -> None:
        make = kernel_of(plan)
        expected = reference_of(plan, rows)
        kernel, reference = make(), ReferenceMatcher(plan)
        for i, row in enumerate(rows):
            batch = batch_of(SCHEMA, [row], i)
            # the watermark reaches the event's time, or further if nothing in between can come
            bound = rows[i + 1]["ts"] if i + 1 < len(rows) else int(row["ts"]) + 20_000_000  # type: ignore[call-overload]
            watermark = data.draw(st.integers(int(row["ts"]), int(bound)))  # type: ignore[call-overload]
            ours = [kernel.push(batch), kernel.advance(watermark)]
            theirs = [reference.push(batch), reference.advance(watermark)]
            assert answer_of(ours) == answer_of(theirs)
        assert answer_of([kernel.advance(None)]) == answer_of([reference.advance(None)])
        tally.add(plan, rows, expected)

    check()
    tally.report(record_property)


@given(rows=events(), plan=plans(), data=st.data())
def test_cutting_the_input_into_batches_changes_nothing(plan: Plan, rows: list[Row], data: st.DataObject) -> None:
    make = kernel_of(plan)
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


@given(rows=events(), plan=plans(), data=st.data())
def test_restoring_a_snapshot_changes_nothing(plan: Plan, rows: list[Row], data: st.DataObject) -> None:
    make = kernel_of(plan)
    whole = make()
    expected = answer_of([whole.push(batch_of(SCHEMA, rows)), whole.advance(None)])
    at = data.draw(st.integers(0, len(rows)))
    first, second = make(), make()
    found = [first.push(batch_of(SCHEMA, rows[:at]))]
    second.restore(first.snapshot())
    found += [second.push(batch_of(SCHEMA, rows[at:], at)), second.advance(None)]
    assert answer_of(found) == expected


@pytest.mark.parametrize("slack", [0, 3])
def test_dropping_what_no_run_needs_changes_nothing(slack: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matching.matcher.SLACK", slack)  # compaction after almost every batch

    @given(rows=events(), plan=plans())
    def check(plan: Plan, rows: list[Row]) -> None:
        kernel = kernel_of(plan)()
        found = [kernel.push(batch_of(SCHEMA, [row], i)) for i, row in enumerate(rows)]
        assert answer_of([*found, kernel.advance(None)]) == reference_of(plan, rows)

    check()

"""How the properties of matchers compare: what came out as plain values, and the ways in which rows go in."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

import pytest
from hypothesis import assume, seed, settings
from hypothesis import strategies as st

from matching.batch import Matches
from matching.by_reference import ReferenceMatcher
from matching.matcher import KernelMatcher
from matching.program.program import NoKernel, Program, assemble
from matching.rows import SLACK
from query.errors import DataError, QueryError
from query.plan.output import Outcome
from query.plan.plan import Plan
from tests.engines import matcher_by, once
from tests.events import batch_of
from tests.strategies import SCHEMA, Row

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., None])
Answer = list[tuple[object, ...]]


def fewer(share: int, least: int = 10, by_day: int | None = None) -> settings:
    """Fewer examples than others have: a share of those of the profile, for a property whose examples take long.

    by_day: at most so many, unless it is night; for a property that draws on until it has met what it is to meet, and
    has met it sooner in short rounds. Where a match is rare, long rounds are sooner: first examples are small."""
    examples = max(least, settings().max_examples // share)
    return settings(max_examples=examples if by_day is None or is_nightly() else min(examples, by_day))


#: For properties of which the reference takes most of the time.
FEWER = fewer(3)


def drawn_alike(check: F) -> F:
    """Draws the same examples whatever the source of the property, unless the profile draws others in each run.
    Otherwise an edit of the source changes how often a rare engine is met, which a property may assert."""
    return seed(1)(check) if settings().derandomize else check


def is_quick() -> bool:
    """Whether so few examples are drawn that what is rare may be missing among them."""
    return settings.get_current_profile_name() == "quick"


def is_nightly() -> bool:
    """Whether there are hours: what the suite leaves out is tried too."""
    return settings.get_current_profile_name() == "nightly"


def drawn_until(check: Callable[[], None], met: Callable[[], bool], most: int = 48) -> None:
    """Runs a property, and again on other examples until it has met what it is to meet. Which examples are drawn also
    depends on the numbers in the sources of all loaded modules, so what is rare may be missing among the first ones."""
    for n in range(1, most + 1):
        (seed(n)(check) if settings().derandomize else check)()
        if met():
            return


def drawn_until_told(check: Callable[[], None], tell: Callable[[], None], most: int = 48) -> None:
    """Runs a property, and again on other examples while `tell` finds that too few of them say something."""

    def told() -> bool:
        try:
            tell()
        except AssertionError:
            return False
        return True

    drawn_until(check, told, most)
    tell()


def variants(*values: T) -> Sequence[T]:
    """What each example of a property is to meet, such as values of a constant: in the quick suite only the first.

    A property goes through them inside, since drawing an example and asking the reference cost as much as a variant."""
    return values[:1] if is_quick() else values


@contextmanager
def constant(place: str, value: int) -> Iterator[None]:
    """Within, the constant of the code at `place` has another value."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(place, value)
        yield


def answer_of(found: Sequence[Matches]) -> Answer:
    """Outcome, number, times, matched events and output rows of every match, sorted; NaN prints as itself."""
    out: Answer = []
    for matches in found:
        if not len(matches):  # most of them, where rows come one by one
            continue
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
            outcome = Outcome.MATCH if matches.outcome is None else Outcome(int(matches.outcome[i]))
            number = int(matches.number[i]) if outcome is Outcome.MATCH else 0
            out.append((outcome.name, number, *times, events_, tuple(rows.get(i, ()))))
    return sorted(out, key=repr)


_assembled = once(assemble)


def program_of(plan: Plan) -> Program:
    """Rejects the example if only the reference can run the plan."""
    try:
        return _assembled(plan)
    except NoKernel:
        assume(False)
        raise


def kernels_of(plan: Plan) -> Callable[[], KernelMatcher]:
    """Makes kernel matchers of the plan; rejects the example if only the reference can run it."""
    return partial(matcher_by, plan, program=program_of(plan), lenient=True)


def kernel_of(plan: Plan) -> KernelMatcher:
    """One of them."""
    return kernels_of(plan)()


def run(matcher: KernelMatcher, rows: Sequence[Row], size: int) -> list[Matches]:
    """All that comes of the rows in batches of `size`."""
    found = [matcher.push(batch_of(SCHEMA, rows[at : at + size], at)) for at in range(0, len(rows), size)]
    return [*found, matcher.advance(None)]


def by_reference(plan: Plan, rows: Sequence[Row]) -> Matches:
    """What the reference finds in the rows as a whole. Rejects what takes it too many steps."""
    reference = ReferenceMatcher(plan, lenient=True)
    reference.keep(batch_of(SCHEMA, rows))
    try:
        return reference.advance(None)
    except QueryError:
        assume(False)
        raise


_known: dict[str, Answer] = {}
_KNOWN_MATCHES_MAX = 50_000  # about 100 MB


def reference_of(plan: Plan, rows: Sequence[Row]) -> Answer:
    """The answer of the reference. The last ones are kept: what hypothesis changes of an example is often something
    else, and a property with parameters meets the same examples for each of them."""
    key = repr((plan, rows))
    if key not in _known:
        answer = answer_of([by_reference(plan, rows)])
        if sum(map(len, _known.values())) + len(answer) > _KNOWN_MATCHES_MAX:
            _known.clear()
        _known[key] = answer
    return _known[key]


def or_error(answer: Callable[[], Answer]) -> Answer | None:
    """None: an error, since a condition cannot be computed."""
    try:
        return answer()
    except DataError:
        return None


def same_error(
    plan: Plan, make: Callable[[], KernelMatcher], rows: Sequence[Row], size: int, slacks: Sequence[int] = (SLACK,)
) -> None:
    """Asserts that a kernel that takes rows in batches of `size` gives what the reference gives, or fails as it does
    since a condition cannot be computed, with each SLACK given."""
    expected = or_error(lambda: reference_of(plan, rows))
    for slack in slacks:
        with constant("matching.rows.SLACK", slack):
            assert or_error(lambda: answer_of(run(make(), rows, size))) == expected, f"SLACK {slack}"


#: Whether a watermark comes behind a row, and whether another matcher goes on from a snapshot then.
Steps = list[tuple[bool, bool]]


def steps_for(rows: Sequence[Row], data: st.DataObject) -> Steps:
    """What is to happen behind each of the rows."""
    return [(data.draw(st.booleans()), not data.draw(st.integers(0, 3))) for _ in rows]


def answer_of_restored(make: Callable[[], KernelMatcher], rows: Sequence[Row], steps: Steps) -> Answer:
    """The answer for rows that come one by one, with a watermark behind some of them, where another matcher goes on
    from a snapshot behind some of them."""
    matcher = make()
    found = []
    for i, (row, (watermark, restored)) in enumerate(zip(rows, steps, strict=True)):
        found.append(matcher.push(batch_of(SCHEMA, [row], i)))
        if watermark:
            found.append(matcher.advance(int(row["ts"])))  # type: ignore[call-overload]
        if restored:
            fresh = make()
            fresh.restore(matcher.snapshot())
            matcher = fresh
    return answer_of([*found, matcher.advance(None)])


def restored_equals_reference(
    plan: Plan, make: Callable[[], KernelMatcher], rows: Sequence[Row], data: st.DataObject, slacks: Sequence[int]
) -> None:
    """Asserts that a matcher of which others go on from snapshots gives what the reference gives, with each SLACK
    given: rows that may be held beyond those that runs need."""
    steps = steps_for(rows, data)
    expected = reference_of(plan, rows)
    for slack in slacks:
        with constant("matching.rows.SLACK", slack):
            assert answer_of_restored(make, rows, steps) == expected, f"SLACK {slack}"


def compare_at_every_step(kernel: KernelMatcher, rows: Sequence[Row], data: st.DataObject) -> None:
    """Asserts that it gives what the reference gives, with each row and with a watermark behind it."""
    reference = ReferenceMatcher(kernel.plan, lenient=True)
    for i, row in enumerate(rows):
        batch = batch_of(SCHEMA, [row], i)
        # the watermark reaches the event's time, or further if nothing in between can come
        bound = rows[i + 1]["ts"] if i + 1 < len(rows) else int(row["ts"]) + 20_000_000  # type: ignore[call-overload]
        watermark = data.draw(st.integers(int(row["ts"]), int(bound)))  # type: ignore[call-overload]
        try:
            theirs = [reference.push(batch), reference.advance(watermark)]
        except QueryError:
            assume(False)  # more steps than the reference allows itself
        assert answer_of([kernel.push(batch), kernel.advance(watermark)]) == answer_of(theirs)
    assert answer_of([kernel.advance(None)]) == answer_of([reference.advance(None)])
    assert kernel.stuck == reference.stuck

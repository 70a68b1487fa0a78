"""How the properties of matchers compare: what came out as plain values, and the ways in which rows go in."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hypothesis import assume, settings
from hypothesis import strategies as st

from matching.batch import Matches
from matching.by_reference import ReferenceMatcher
from matching.matcher import KernelMatcher
from query.automaton.program import NoKernel, assemble
from query.errors import DataError, QueryError
from query.plan.output import Outcome
from query.plan.plan import Plan
from tests.events import batch_of
from tests.strategies import SCHEMA, Row

Answer = list[tuple[object, ...]]
#: For properties of which the reference takes most of the time.
FEWER = settings(max_examples=max(20, settings().max_examples // 3))


def answer_of(found: Sequence[Matches]) -> Answer:
    """Outcome, number, times, matched events and output rows of every match, sorted; NaN prints as itself."""
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
            outcome = Outcome.MATCH if matches.outcome is None else Outcome(int(matches.outcome[i]))
            number = int(matches.number[i]) if outcome is Outcome.MATCH else 0
            out.append((outcome.name, number, *times, events_, tuple(rows.get(i, ()))))
    return sorted(out, key=repr)


def kernel_of(plan: Plan) -> KernelMatcher:
    """Rejects the example if only the reference can run the plan."""
    try:
        return KernelMatcher(plan, assemble(plan), lenient=True)
    except NoKernel:
        assume(False)
        raise


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


def same_error(kernel: KernelMatcher, rows: Sequence[Row], size: int) -> None:
    """Asserts that a kernel that takes rows in batches of `size` gives what the reference gives, or fails as it does
    since a condition cannot be computed."""

    def or_error(answer: Callable[[], Answer]) -> Answer | None:
        """None: an error."""
        try:
            return answer()
        except DataError:
            return None

    ours = or_error(lambda: answer_of(run(kernel, rows, size)))
    assert ours == or_error(lambda: reference_of(kernel.plan, rows))


def answer_of_restored(make: Callable[[], KernelMatcher], rows: Sequence[Row], data: st.DataObject) -> Answer:
    """The answer for rows that come one by one, with a watermark behind some of them, where another matcher goes on
    from a snapshot behind some of them."""
    matcher = make()
    found = []
    for i, row in enumerate(rows):
        found.append(matcher.push(batch_of(SCHEMA, [row], i)))
        if data.draw(st.booleans()):
            found.append(matcher.advance(int(row["ts"])))  # type: ignore[call-overload]
        if not data.draw(st.integers(0, 3)):
            fresh = make()
            fresh.restore(matcher.snapshot())
            matcher = fresh
    return answer_of([*found, matcher.advance(None)])


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

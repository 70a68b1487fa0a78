"""Keys of which no run knows are forgotten, and their ids given to others: nothing changes but the numbers of matches
that nobody reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.batch import Int64Array, Matches
from matching.keys import Keys
from matching.matcher import KernelMatcher
from query.language.ast import Selection
from query.plan.expression import Expression, MatchNumber, Navigation, walk
from query.plan.plan import Define, Plan
from tests.events import batch_of
from tests.properties.comparing import Answer, answer_of, drawn_alike, drawn_until, is_quick, kernel_of, reference_of
from tests.properties.test_skip_till import skipping
from tests.strategies import BOUNDS, SCHEMA, SKIP_TILL, K, Row, events, plans, row_local

pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
KEYS = (*"abcdefgh", None)


def remembers(e: Expression) -> bool:
    """Whether it reads what was before the match: its number, or a row near a matched one."""
    return any(isinstance(x, MatchNumber) or (isinstance(x, Navigation) and bool(x.physical_offset)) for x in walk(e))


@st.composite
def forgetful(draw: st.DrawFn) -> Plan:
    """A plan whose keys are mostly forgotten when they are idle."""
    general = plans(after=False, anchored=False, unmatched=False)
    plan = draw(st.one_of(general, skipping(), plans(negations=True, after=False, anchored=False, unmatched=False)))
    if plan.selection in SKIP_TILL and plan.within is None:  # else runs never end, and no key is idle
        plan = replace(plan, within=draw(st.sampled_from(BOUNDS)))
    if not draw(st.integers(0, 9)):
        return plan
    selection = Selection.PARTITION if plan.selection is Selection.STRICT else plan.selection
    local = row_local().filter(lambda e: not remembers(e))
    alone = draw(st.booleans())  # all conditions read single rows
    defines = tuple(
        Define(d.variable, draw(local)) if alone or remembers(d.condition) else d for d in plan.defines
    )
    measures = tuple(m for m in plan.measures if not remembers(m.expression))
    return replace(plan, partition_by=(K,), selection=selection, defines=defines, measures=measures)


def without_numbers(answer: Answer) -> Answer:
    return sorted((outcome, *rest) for outcome, _, *rest in answer)


@pytest.mark.slow
def test_forgetting_idle_keys_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> None:
    forgotten, enough = Counter[str](), set[str]()
    forget = Keys.forget
    kernel: KernelMatcher

    def counted(keys: Keys, ids: Int64Array) -> None:
        forgotten[type(kernel.engine).__name__] += len(ids)
        forget(keys, ids)

    monkeypatch.setattr(Keys, "forget", counted)

    @drawn_alike  # Before: a renamed attribute changed the examples, and one engine was met too seldom.
    @given(rows=events(min_size=10, max_size=14, keys=KEYS), plan=forgetful(), data=st.data())
    def check(rows: list[Row], plan: Plan, data: st.DataObject) -> None:
        nonlocal kernel
        kernel = kernel_of(plan)
        if type(kernel.engine).__name__ in enough:  # drawn for the others
            return
        expected = reference_of(plan, rows)
        found, at = [], 0
        while at < len(rows):
            kernel.rows.compact_at = kernel.rows.forget_at = 0
            size = data.draw(st.sampled_from((1, 1, 2, 5)))
            found.append(kernel.push(batch_of(SCHEMA, rows[at : at + size], at)))
            at += size
            if at < len(rows) and data.draw(st.booleans()):
                found.append(kernel.advance(int(rows[at]["ts"])))  # type: ignore[call-overload]
            if not data.draw(st.integers(0, 3)):
                fresh = kernel_of(plan)
                fresh.restore(kernel.snapshot())
                kernel = fresh
        ours = answer_of([*found, kernel.advance(None)])
        if any(remembers(m.expression) for m in plan.measures):
            assert ours == expected
        else:
            assert without_numbers(ours) == without_numbers(expected)

    names = ("RunTable", "RunStarts", "RunGraph", "RunBlocks", "RunLists")

    def met() -> bool:
        enough.update(name for name in names if forgotten[name] > 50)
        return is_quick() or len(enough) == len(names)

    drawn_until(check, met)
    record_property("examples", ", ".join(f"keys forgotten by {name} {count:,}" for name, count in forgotten.items()))
    assert sum(forgotten.values()) > 100
    if not is_quick():
        for name in names:
            assert forgotten[name] > 50, name


@pytest.mark.parametrize(
    ("measure", "condition"), [("MATCH_NUMBER()", "v > 1"), ("v", "v > PREV(v)"), ("PREV(A.v)", "v > 1")]
)
def test_what_is_read_of_idle_keys_is_kept(measure: str, condition: str) -> None:
    from query.language.parse import parse
    from query.plan.bind import bind

    text = (
        f"SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES {measure} AS m PATTERN (A B) "
        f"DEFINE A AS {condition}, B AS v > 2) AS m"
    )
    plan = bind(parse(text), lambda _: SCHEMA).factors[0].plan
    rows: list[Row] = [
        {"ts": i, "k": key, "s": "a", "v": i % 5, "x": 0.5} for i, key in enumerate("abcabcddbbaaabbbccca" * 3)
    ]
    kernel, found = kernel_of(plan), list[Matches]()
    for i, row in enumerate(rows):
        kernel.rows.compact_at = kernel.rows.forget_at = 0
        found.append(kernel.push(batch_of(SCHEMA, [row], i)))
    answer = answer_of([*found, kernel.advance(None)])
    assert len(answer) > 3
    assert answer == reference_of(plan, rows)

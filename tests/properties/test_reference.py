"""The reference against brute force: every labelled choice of rows is written down and held against the definition.

Nothing of the reference's search or evaluation is used here; conditions are computed by `plain` below.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from query.errors import QueryError
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import (
    TRUE,
    Aggregate,
    Call,
    Classifier,
    Column,
    Constant,
    Expression,
    Logical,
    MatchNumber,
    Navigation,
    walk,
)
from query.plan.pattern import Alternation, Empty, Negation, Repeat, RowPattern, Variable
from query.plan.pattern import Sequence as Concatenation
from query.plan.plan import AfterMatch, Define, Order, Plan
from query.reference import find
from tests.strategies import SCHEMA, SKIP_TILL, SQL_SELECTIONS, TS, Row, chains, events, plans

Labels = tuple[tuple[str, int], ...]


# ---- a second evaluation of conditions -----------------------------------------------------------------------------


def rank(value: Any) -> tuple[bool, Any]:
    nan = isinstance(value, float) and math.isnan(value)
    return (nan, 0 if nan else value)


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: rank(a) == rank(b),
    "<>": lambda a, b: rank(a) != rank(b),
    "<": lambda a, b: rank(a) < rank(b),
    "<=": lambda a, b: rank(a) <= rank(b),
    ">": lambda a, b: rank(a) > rank(b),
    ">=": lambda a, b: rank(a) >= rank(b),
}


def plain(e: Expression, rows: Sequence[Row], labels: Labels, at: int, match_number: int) -> Any:
    """A condition for the candidate at position `at`, the last of `labels`; rows: of its partition."""

    def of(x: Expression) -> Any:
        return plain(x, rows, labels, at, match_number)

    match e:
        case Constant(value):
            return value
        case Column(name):
            return rows[at][name]
        case MatchNumber():
            return match_number
        case Classifier():
            return {p: n for n, p in labels}.get(at)
        case Navigation(argument, names, which, offset, physical):
            base = [p for n, p in labels if not names or n in names] if which else [at]
            base = base if which is Logical.FIRST else base[::-1]
            if offset >= len(base) or not 0 <= base[offset] + physical < len(rows):
                return None
            return plain(argument, rows, labels, base[offset] + physical, match_number)
        case Aggregate(function, argument, names):
            positions = [p for n, p in labels if not names or n in names]
            if argument is None:
                return len(positions)
            values = [v for p in positions if (v := plain(argument, rows, labels, p, match_number)) is not None]
            if function == "count":
                return len(values)
            if not values:
                return None
            if function in ("min", "max"):
                return sorted(values, key=rank)[0 if function == "min" else -1]
            return sum(values) if function == "sum" else sum(values) / len(values)
        case Call("and", (a, b)):
            return False if of(a) is False or of(b) is False else None if None in (of(a), of(b)) else True
        case Call("or", (a, b)):
            return True if of(a) is True or of(b) is True else None if None in (of(a), of(b)) else False
        case Call("not", (a,)):
            return None if of(a) is None else not of(a)
        case Call("is_null", (a,)):
            return of(a) is None
        case Call("is_not_null", (a,)):
            return of(a) is not None
        case Call("case", (a, b, c)):
            return of(b) if of(a) is True else of(c)
        case Call("coalesce", arguments):
            return next((v for a in arguments if (v := of(a)) is not None), None)
        case Call("in", (a, *items)):
            return None if of(a) is None else of(a) in [of(i) for i in items]
        case Call("between", (a, low, high)):
            return None if of(a) is None else of(low) <= of(a) <= of(high)
        case Call(function, (a, b)):
            x, y = of(a), of(b)
            if x is None or y is None:
                return None
            if function in COMPARE:
                return COMPARE[function](x, y)
            return {"-": lambda: x - y, "*": lambda: x * y, "%": lambda: x % y}[function]()
        case _:
            raise NotImplementedError(e)


# ---- the definition --------------------------------------------------------------------------------------------------


class Definition:
    """What a match is, for one partition of the rows."""

    def __init__(self, plan: Plan, rows: Sequence[Row], index: Sequence[int]) -> None:
        self.plan = plan
        self.index = index  # row number in the stream of each row of the partition
        self.rows = [rows[i] for i in index]
        self.ts = [int(str(row["ts"])) for row in self.rows]
        self.conditions = {d.variable: d.condition for d in plan.defines}

    def cond(self, variable: str, position: int, bound: Labels, match_number: int = 0) -> bool:
        labels = (*bound, (variable, position))
        return plain(self.conditions[variable], self.rows, labels, position, match_number) is True

    def within(self, first: int, last: int) -> bool:
        w = self.plan.within
        if w is None:
            return True
        if w.rows is not None:
            return last - first + 1 <= w.rows
        return self.ts[last] - self.ts[first] <= (w.interval_us or 0)

    def conditions_hold(self, labels: Labels, match_number: int = 0) -> bool:
        return all(self.cond(name, p, labels[:i], match_number) for i, (name, p) in enumerate(labels))

    def contiguous(self, labels: Labels) -> bool:
        """Nothing skipped: of the stream under STRICT, of the partition under PARTITION."""
        order = self.index if self.plan.selection is Selection.STRICT else range(len(self.index))
        return all(order[q] == order[p] + 1 for (_, p), (_, q) in itertools.pairwise(labels))

    def unviolated(self, labels: Labels, gaps: Sequence[tuple[str, ...]], match_number: int = 0) -> bool:
        """gaps[i]: negated variables between label i - 1 and label i."""
        if not labels:
            return True
        taken = {p for _, p in labels}
        first, last = labels[0][1], labels[-1][1]
        for i, names in enumerate(gaps):
            for g in range(len(self.rows)):
                if g in taken:
                    continue
                if i == 0:
                    inside = g < first and self.within(g, last)
                elif i == len(labels):
                    inside = g > last and self.within(first, g)
                else:
                    inside = labels[i - 1][1] < g < labels[i][1]
                if inside and any(self.cond(name, g, labels, match_number) for name in names):
                    return False
        return True


def words(pattern: RowPattern, longest: int) -> Iterator[tuple[str, ...]]:
    """The words of a pattern of at most `longest` rows, the preferred one first; `~N` marks a negation."""
    match pattern:
        case Variable(name):
            if longest:
                yield (name,)
        case Empty():
            yield ()
        case Negation(name):
            yield (f"~{name}",)
        case Alternation(choices):
            for choice in choices:
                yield from words(choice, longest)
        case Concatenation(parts):
            if not parts:
                yield ()
                return
            for word in words(parts[0], longest):
                for rest in words(Concatenation(parts[1:]), longest - rows_of(word)):
                    yield word + rest
        case Repeat(body, at_least, at_most, greedy):

            def rounds(done: int, longest: int) -> Iterator[tuple[str, ...]]:
                def more() -> Iterator[tuple[str, ...]]:
                    if at_most is None or done < at_most:
                        for word in words(body, longest):
                            if rows_of(word) or done < at_least:
                                for rest in rounds(done + 1, longest - rows_of(word)):
                                    yield word + rest

                def stop() -> Iterator[tuple[str, ...]]:
                    if done >= at_least:
                        yield ()

                yield from itertools.chain(more(), stop()) if greedy else itertools.chain(stop(), more())

            yield from rounds(0, longest)


def rows_of(word: Sequence[str]) -> int:
    return sum(not token.startswith("~") for token in word)


def split(word: Sequence[str]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The variables of a word, and the negated ones before each of them and at the end."""
    names: list[str] = []
    gaps: list[tuple[str, ...]] = [()]
    for token in word:
        if token.startswith("~"):
            gaps[-1] += (token[1:],)
        else:
            names.append(token)
            gaps.append(())
    return tuple(names), gaps


def sql_matches(plan: Plan, d: Definition) -> list[Labels]:
    """Per start the first word in order of preference that fits, then skip."""
    found: list[Labels] = []
    start = 0
    while start < len(d.rows):
        chosen: Labels | None = None
        for word in words(plan.pattern, len(d.rows) - start):
            names, gaps = split(word)
            labels = tuple((name, start + i) for i, name in enumerate(names))
            if labels and not d.within(start, labels[-1][1]):
                continue
            if d.contiguous(labels) and d.conditions_hold(labels, len(found) + 1):
                if d.unviolated(labels, gaps, len(found) + 1):
                    chosen = labels
                    break
        if chosen is not None:
            found.append(chosen)
        past = bool(chosen) and plan.after.kind is AfterMatchKind.PAST_LAST_ROW
        start = chosen[-1][1] + 1 if chosen and past else start + 1
    return found


def any_matches(plan: Plan, d: Definition) -> set[Labels]:
    """All matches under STRICT, PARTITION and SKIP TILL ANY MATCH."""
    found: set[Labels] = set()
    for word in set(words(plan.pattern, len(d.rows))):
        names, gaps = split(word)
        for chosen in itertools.combinations(range(len(d.rows)), len(names)):
            labels = tuple(zip(names, chosen, strict=True))
            if not labels or labels in found or not d.within(chosen[0], chosen[-1]):
                continue
            if plan.selection is not Selection.SKIP_TILL_ANY and not d.contiguous(labels):
                continue
            if d.conditions_hold(labels) and d.unviolated(labels, gaps):
                found.add(labels)
    return found


Element = tuple[str, bool, bool]  # name, plus, greedy


def elements_of(pattern: RowPattern) -> tuple[list[Element], dict[int, tuple[str, ...]]]:
    """The elements of a chain, and the negations before each (and at the end)."""
    parts = pattern.parts if isinstance(pattern, Concatenation) else (pattern,)
    elements: list[Element] = []
    negations: dict[int, tuple[str, ...]] = {}
    for part in parts:
        match part:
            case Variable(name):
                elements.append((name, False, True))
            case Repeat(Variable(name), 1, None, greedy):
                elements.append((name, True, greedy))
            case Negation(name):
                negations[len(elements)] = (*negations.get(len(elements), ()), name)
            case _:
                raise NotImplementedError(part)
    return elements, negations


def chain_matches(plan: Plan, d: Definition) -> list[tuple[Any, Labels]]:
    """All matches of a chain under every strategy with their place in the order of matches: shape, conditions, WITHIN
    and skipped events as they are defined, then negations."""
    elements, negations = elements_of(plan.pattern)
    found = []
    positions = range(len(d.rows))
    for size in range(len(elements), len(d.rows) + 1):
        for chosen in itertools.combinations(positions, size):
            for lengths in itertools.product(*(range(1, size + 1) if plus else (1,) for _, plus, _ in elements)):
                if sum(lengths) != size:
                    continue
                which = [j for j, length in enumerate(lengths) for _ in range(length)]
                labels = tuple((elements[j][0], p) for j, p in zip(which, chosen, strict=True))
                if not d.within(chosen[0], chosen[-1]) or not d.conditions_hold(labels):
                    continue
                if not all(may_skip(plan, d, elements, labels, g) for g in positions if g not in chosen):
                    continue
                if plan.selection is Selection.STRICT and not d.contiguous(labels):
                    continue
                gaps: list[tuple[str, ...]] = [()] * (size + 1)
                for j, names in negations.items():
                    gaps[sum(lengths[:j])] = names
                if d.unviolated(labels, gaps):
                    found.append((place(plan, d, elements, which, labels, bool(gaps[-1])), labels))
    return sorted(found)


def may_skip(plan: Plan, d: Definition, elements: list[Element], labels: Labels, g: int) -> bool:
    """The table of selection strategies, for a row g of the partition."""
    if not labels[0][1] < g < labels[-1][1] or plan.selection is Selection.SKIP_TILL_ANY:
        return True
    if plan.selection is not Selection.SKIP_TILL_NEXT:
        return False
    bound = tuple(label for label in labels if label[1] < g)
    j = next(j for j, element in enumerate(elements) if element[0] == bound[-1][0])
    awaited = elements[j] if elements[j][1] else elements[j + 1]
    return not d.cond(awaited[0], g, bound)


def place(plan: Plan, d: Definition, elements: list[Element], which: list[int], labels: Labels, deadline: bool) -> Any:
    """(completion, last row, first row, preference): take before begin before ignore, begin first where reluctant."""
    first, last = labels[0][1], labels[-1][1]
    completion: tuple[Any, ...] = (d.ts[last], 0, d.index[last])
    if deadline:
        assert plan.within is not None
        completion = (d.ts[first] + (plan.within.interval_us or 0), 1, 0)
    actions = []
    before = -1
    of_row = {p: j for (_, p), j in zip(labels, which, strict=True)}
    for row in range(first, last + 1):
        if row not in of_row:
            actions.append(2)
            continue
        begins = of_row[row] != before
        greedy = before < 0 or elements[before][2]
        actions.append(int(begins == greedy))
        before = of_row[row]
    return completion, last, first, actions


def chosen_by_mode(plan: Plan, found: Sequence[tuple[Any, Labels]]) -> list[Labels]:
    out: list[Labels] = []
    for _, labels in found:
        first, last = labels[0][1], labels[-1][1]
        if plan.after.kind is AfterMatchKind.PAST_LAST_ROW and any(
            not (last < other[0][1] or other[-1][1] < first) for other in out
        ):
            continue
        if plan.after.kind is AfterMatchKind.TO_NEXT_ROW and any(first == other[0][1] for other in out):
            continue
        out.append(labels)
    return out


# ---- properties ------------------------------------------------------------------------------------------------------


def partitions(plan: Plan, rows: Sequence[Row]) -> dict[tuple[object, ...], list[int]]:
    found: dict[tuple[object, ...], list[int]] = {}
    for i, row in enumerate(rows):
        found.setdefault(tuple(row[c.name] for c in plan.partition_by), []).append(i)
    return found


def times(rows: Sequence[Row]) -> list[int]:
    return [int(str(row["ts"])) for row in rows]


def check(plan: Plan, rows: Sequence[Row], expected: Callable[[Plan, Definition], list[Labels]]) -> None:
    """Each partition's matches, in order, numbered from 1."""
    found = find(plan, rows, times(rows))
    for key, index in partitions(plan, rows).items():
        mine = [match for match in found if match.partition == key]
        position = {i: p for p, i in enumerate(index)}
        got = [tuple((name, position[i]) for name, i in match.labels) for match in mine]
        assert got == expected(plan, Definition(plan, rows, index))
        assert [match.number for match in mine] == list(range(1, len(mine) + 1))
    assert len(found) == sum(len([m for m in found if m.partition == key]) for key in partitions(plan, rows))


@given(
    rows=events(max_size=8),
    plan=plans(no_skip=False, after=False, opaque=False, negations=True),
)
def test_sql_mode_takes_the_preferred_word(rows: list[Row], plan: Plan) -> None:
    check(plan, rows, sql_matches)


@given(
    rows=events(max_size=7, keys=("p", None)),
    plan=plans((*SQL_SELECTIONS, Selection.SKIP_TILL_ANY), after=False, opaque=False, negations=True),
)
def test_all_matches_of_any_pattern(rows: list[Row], plan: Plan) -> None:
    plan = with_after(plan, AfterMatchKind.NO_SKIP)
    found = find(plan, rows, times(rows))
    for key, index in partitions(plan, rows).items():
        position = {i: p for p, i in enumerate(index)}
        mine = [tuple((name, position[i]) for name, i in m.labels) for m in found if m.partition == key]
        assert len(mine) == len(set(mine))
        assert set(mine) == any_matches(plan, Definition(plan, rows, index))


@given(
    rows=events(max_size=7, keys=("p", None)),
    plan=plans(tuple(Selection), shapes=chains, after=False, opaque=False, negations=True),
)
def test_chains_under_every_strategy(rows: list[Row], plan: Plan) -> None:
    if plan.selection not in SKIP_TILL:
        plan = with_after(plan, AfterMatchKind.NO_SKIP)
    check(plan, rows, lambda plan, d: chosen_by_mode(plan, chain_matches(plan, d)))


def with_after(plan: Plan, kind: AfterMatchKind) -> Plan:
    """The plan under another AFTER MATCH; conditions on MATCH_NUMBER become TRUE, for overlapping matches have none."""

    def numbered(define: Define) -> bool:
        return any(isinstance(e, MatchNumber) for e in walk(define.condition))

    defines = tuple(replace(d, condition=TRUE) if numbered(d) else d for d in plan.defines)
    return replace(plan, after=AfterMatch(kind), defines=defines)


@given(
    rows=events(max_size=10),
    plan=plans(tuple(Selection), opaque=False, negations=True),
    cut=st.integers(0, 10),
    step=st.integers(0, 3),
)
def test_what_is_decided_stays(rows: list[Row], plan: Plan, cut: int, step: int) -> None:
    """Matches of a beginning are the first ones of each partition's matches in the whole, whatever comes after."""
    whole = find(plan, rows, times(rows))
    ts_us = times(rows)
    cut = min(cut, len(rows))
    # the watermark may lie anywhere up to the next row
    watermark = ts_us[cut] - step * 500_000 if cut < len(rows) else None
    begun = find(plan, rows[:cut], ts_us[:cut], ended=False, watermark_us=watermark)
    for key in partitions(plan, rows):
        of_whole = [m for m in whole if m.partition == key]
        of_begun = [m for m in begun if m.partition == key]
        assert of_whole[: len(of_begun)] == of_begun


@given(rows=events(max_size=8), plan=plans(SQL_SELECTIONS, after=False, opaque=False, no_skip=False))
def test_a_match_that_nothing_can_extend_is_out_with_its_last_row(rows: list[Row], plan: Plan) -> None:
    names = [d.variable for d in plan.defines]
    plan = replace(plan, pattern=Concatenation(tuple(map(Variable, names))))
    ts_us = times(rows)
    whole = find(plan, rows, ts_us)
    for cut in range(len(rows) + 1):
        assert find(plan, rows[:cut], ts_us[:cut], ended=False) == [m for m in whole if m.labels[-1][1] < cut]


def test_a_budget_ends_it() -> None:
    rows: list[Row] = [{"ts": i, "k": "p", "s": "a", "v": 1, "x": 0.5} for i in range(40)]
    pattern = Concatenation((Repeat(Variable("A"), 1, None, True), Variable("B")))
    defines = (Define("A", TRUE), Define("B", Constant(False, "BOOLEAN")))
    after, selection = AfterMatch(AfterMatchKind.NO_SKIP), Selection.SKIP_TILL_ANY
    plan = Plan(SCHEMA, (), (Order(TS),), (), RowsPerMatch.ONE, after, pattern, None, selection, (), defines)
    with pytest.raises(QueryError) as raised:
        find(plan, rows, [0] * 40, steps_max=10_000)
    assert raised.value.diagnostics[0].code == "HQ600"

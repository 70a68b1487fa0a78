"""The reference against brute force: every labelled choice of rows is written down and held against the definition.

Nothing of the reference's search or evaluation is used here; conditions are computed by `plain` below.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.by_reference import DuckEvaluation
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
from query.plan.output import Outcome, output_columns
from query.plan.pattern import Alternation, Anchor, Empty, Exclusion, Negation, Repeat, RowPattern, Variable
from query.plan.pattern import Sequence as Concatenation
from query.plan.plan import AfterMatch, Define, Measure, Order, Plan
from query.reference import ReferenceMatch, find, match_rows
from tests.properties.comparing import drawn_until, is_quick
from tests.strategies import SCHEMA, SKIP_TILL, SQL_SELECTIONS, TS, Row, chains, events, plans, traits

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
        self.stream = rows
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


Token = tuple[str, tuple[int, ...]]  # what it is, and for a variable where it stands in the pattern, by rounds
MARKS = ("^", "$", "{-", "-}", "...")


def words(
    pattern: RowPattern, longest: int, begun: bool = False, at: tuple[int, ...] = ()
) -> Iterator[tuple[Token, ...]]:
    """The words of a pattern of at most `longest` rows, the preferred one first. `~N` marks a negation, `^` and `$` an
    anchor, `{-` and `-}` an exclusion. begun: words with more rows too, cut off there by `...`."""

    def then(word: tuple[Token, ...], rest: Callable[[], Iterator[tuple[Token, ...]]]) -> Iterator[tuple[Token, ...]]:
        if word and word[-1][0] == "...":
            yield word
        else:
            for more in rest():
                yield word + more

    match pattern:
        case Variable(name):
            if longest:
                yield ((name, at),)
            elif begun:
                yield (("...", ()),)
        case Empty():
            yield ()
        case Negation(name):
            yield ((f"~{name}", ()),)
        case Anchor(at_start):
            yield (("^" if at_start else "$", ()),)
        case Exclusion(body):
            for word in words(body, longest, begun, at):
                for closed in then(word, lambda: iter([(("-}", ()),)])):
                    yield (("{-", ()), *closed)
        case Alternation(choices):
            for i, choice in enumerate(choices):
                yield from words(choice, longest, begun, (*at, i))
        case Concatenation(parts):
            if not parts:
                yield ()
                return
            for word in words(parts[0], longest, begun, (*at, len(parts))):
                left = longest - rows_of(word)
                yield from then(word, lambda left=left: words(Concatenation(parts[1:]), left, begun, at))
        case Repeat(body, at_least, at_most, greedy):

            def rounds(done: int, longest: int) -> Iterator[tuple[Token, ...]]:
                def more() -> Iterator[tuple[Token, ...]]:
                    if at_most is None or done < at_most:
                        for word in words(body, longest, begun, (*at, done)):
                            left = longest - rows_of(word)
                            if rows_of(word) or done + 1 < at_least:
                                yield from then(word, lambda left=left: rounds(done + 1, left))
                            else:  # an empty round is the last one once the minimum is reached
                                yield word

                def stop() -> Iterator[tuple[Token, ...]]:
                    if done >= at_least:
                        yield ()

                yield from itertools.chain(more(), stop()) if greedy else itertools.chain(stop(), more())

            yield from rounds(0, longest)


def is_row(token: Token) -> bool:
    return token[0] not in MARKS and not token[0].startswith("~")


def rows_of(word: Sequence[Token]) -> int:
    return sum(map(is_row, word))


class Word:
    """A word taken apart. names: its variables. places: where they stand in the pattern. gaps, anchors: the negated
    variables and the anchors before each of them and at the end. hidden: those that stand in {- -}."""

    def __init__(self, word: Sequence[Token]) -> None:
        self.names = tuple(name for name, _ in filter(is_row, word))
        self.places = tuple(place for _, place in filter(is_row, word))
        self.gaps: list[tuple[str, ...]] = [()]
        self.anchors: list[str] = [""]
        self.hidden: set[int] = set()
        depth = 0
        for token in word:
            name = token[0]
            depth += (name == "{-") - (name == "-}")
            if name.startswith("~"):
                self.gaps[-1] += (name[1:],)
            elif name in ("^", "$"):
                self.anchors[-1] += name
            elif is_row(token):
                if depth:
                    self.hidden.add(len(self.gaps) - 1)
                self.gaps.append(())
                self.anchors.append("")

    def anchored(self, d: Definition, first: int, positions: Sequence[int]) -> bool:
        """Whether the anchors hold where the variables stand at these positions, or before `first` without any."""
        for i, marks in enumerate(self.anchors):
            if "^" in marks and (i > 0 or first > 0):
                return False
            if "$" in marks and not (i == len(positions) and positions and positions[-1] == len(d.rows) - 1):
                return False
        return True


@dataclass(frozen=True)
class Entry:
    """What `find` is to say of one partition, as positions in it."""

    outcome: Outcome
    start: int
    labels: Labels
    excluded: frozenset[int] = frozenset()
    waiting: tuple[str, ...] = ()
    stuck: bool = False


def sql_entries(plan: Plan, d: Definition) -> list[Entry]:
    """Per start the first word in order of preference that fits, then skip; and what is left over, by start."""
    found: list[Entry] = []
    timeouts: list[Entry] = []
    start = 0
    while start < len(d.rows):
        entry = preferred(plan, d, start, len(found) + 1)
        if entry is None:
            if plan.timeout_rows:
                timeouts += timed_out(plan, d, start, len(found) + 1)
            start += 1
            continue
        target = start + 1
        positions = [p for _, p in entry.labels]
        named = [p for name, p in entry.labels if name in plan.after.variables]
        match plan.after.kind:
            case AfterMatchKind.PAST_LAST_ROW if positions:
                target = max(positions) + 1
            case AfterMatchKind.TO_FIRST if positions:
                target = min(named, default=-1)
            case AfterMatchKind.TO_LAST if positions:
                target = max(named, default=-1)
        found.append(replace(entry, stuck=target <= start))
        start = target if target > start else start + 1
    unmatched: list[Entry] = []
    if plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED:
        taken = {p for entry in found for _, p in entry.labels} | {entry.start for entry in found if not entry.labels}
        unmatched = [Entry(Outcome.UNMATCHED, p, ()) for p in range(len(d.rows)) if p not in taken]
    return sorted(found + timeouts + unmatched, key=lambda e: (e.start, e.outcome is Outcome.UNMATCHED))


def preferred(plan: Plan, d: Definition, start: int, number: int) -> Entry | None:
    for tokens in words(plan.pattern, len(d.rows) - start):
        word = Word(tokens)
        labels = tuple((name, start + i) for i, name in enumerate(word.names))
        if labels and not d.within(start, labels[-1][1]):
            continue
        if not word.anchored(d, start, [p for _, p in labels]):
            continue
        if d.contiguous(labels) and d.conditions_hold(labels, number) and d.unviolated(labels, word.gaps, number):
            return Entry(Outcome.MATCH, start, labels, frozenset(start + i for i in word.hidden))
    return None


def timed_out(plan: Plan, d: Definition, start: int, number: int) -> list[Entry]:
    """The partial match that WITHIN ended, of the first word in order of preference that has one; and what may follow
    it: words that begin alike, at the same places of the pattern, stand side by side in that order."""
    entry: Entry | None = None
    chosen: tuple[tuple[int, ...], ...] = ()
    for tokens in words(plan.pattern, len(d.rows) - start + 1, begun=True):
        word = Word(tokens)
        if entry is not None:
            k = len(chosen)
            if word.places[:k] == chosen and len(word.names) > k and not word.anchors[k]:
                entry = replace(entry, waiting=tuple(dict.fromkeys((*entry.waiting, word.names[k]))))
            continue
        for k in range(1, len(word.names)):
            labels = tuple((name, start + i) for i, name in enumerate(word.names[:k]))
            if labels[-1][1] >= len(d.rows) or not d.within(start, labels[-1][1]) or not d.contiguous(labels):
                break
            if any(word.anchors[1 : k + 1]) or (word.anchors[0] and (start > 0 or "$" in word.anchors[0])):
                break
            if d.conditions_hold(labels, number) and ended_by_within(plan, d, start, start + k):
                entry = Entry(Outcome.TIMEOUT, start, labels, frozenset(start + i for i in word.hidden if i < k))
                entry = replace(entry, waiting=(word.names[k],))
                chosen = word.places[:k]
                break
    return [] if entry is None else [entry]


def ended_by_within(plan: Plan, d: Definition, first: int, following: int) -> bool:
    """Whether a run that waits for the row at `following` gets none because WITHIN or the input is over."""
    assert plan.within is not None
    if plan.within.rows is not None and following - first >= plan.within.rows:
        return True
    neighbour = d.index[following - 1] + 1
    if plan.selection is Selection.STRICT and neighbour < len(d.stream) and neighbour not in d.index:
        return plan.within.rows is None and times(d.stream)[neighbour] - d.ts[first] > (plan.within.interval_us or 0)
    return following >= len(d.rows) or not d.within(first, following)


def any_matches(plan: Plan, d: Definition) -> dict[Labels, frozenset[int]]:
    """All matches under STRICT, PARTITION and SKIP TILL ANY MATCH, with the positions that are excluded: as the first
    word says that needs not wait for a negation at the end."""
    found: dict[Labels, tuple[bool, frozenset[int]]] = {}
    for tokens in words(plan.pattern, len(d.rows)):
        word = Word(tokens)
        waits = bool(word.gaps[-1])
        for chosen in itertools.combinations(range(len(d.rows)), len(word.names)):
            labels = tuple(zip(word.names, chosen, strict=True))
            if not labels or not d.within(chosen[0], chosen[-1]) or not word.anchored(d, chosen[0], chosen):
                continue
            if labels in found and found[labels][0] <= waits:
                continue
            if plan.selection is not Selection.SKIP_TILL_ANY and not d.contiguous(labels):
                continue
            if d.conditions_hold(labels) and d.unviolated(labels, word.gaps):
                found[labels] = waits, frozenset(chosen[i] for i in word.hidden)
    return {labels: excluded for labels, (_, excluded) in found.items()}


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


def entries_of(found: Sequence[ReferenceMatch], key: tuple[object, ...], index: Sequence[int]) -> list[Entry]:
    """What `find` says of one partition, as positions in it."""
    position = {i: p for p, i in enumerate(index)}
    return [
        Entry(
            f.outcome,
            position[f.start],
            tuple((name, position[i]) for name, i in f.labels),
            frozenset(position[i] for i in f.excluded),
            f.waiting,
            f.stuck,
        )
        for f in found
        if f.partition == key
    ]


def check(plan: Plan, rows: Sequence[Row], expected: Callable[[Plan, Definition], list[Entry]]) -> list[ReferenceMatch]:
    """Each partition's matches, in order, numbered from 1; and what is no match, numbered 0."""
    found = find(plan, rows, times(rows), lenient=True)
    for key, index in partitions(plan, rows).items():
        assert entries_of(found, key, index) == expected(plan, Definition(plan, rows, index))
        mine = [match for match in found if match.partition == key]
        numbers = [match.number for match in mine if match.outcome is Outcome.MATCH]
        assert numbers == list(range(1, len(numbers) + 1))
        assert all(match.number == 0 for match in mine if match.outcome is not Outcome.MATCH)
    assert {match.partition for match in found} <= set(partitions(plan, rows))
    return found


@pytest.mark.slow
def test_sql_mode_takes_the_preferred_word(record_property: Callable[[str, object], None]) -> None:
    counts: Counter[str] = Counter()

    @given(rows=events(min_size=3, max_size=7), plan=plans(no_skip=False, after=False, opaque=False, negations=True))
    def property(rows: list[Row], plan: Plan) -> None:
        found = check(plan, rows, sql_entries)
        outcomes = {match.outcome for match in found}
        counts.update({"examples": 1, "a match": int(Outcome.MATCH in outcomes)})
        counts.update(trait for trait in traits(plan) if found)
        counts.update(f"came: {outcome.name}" for outcome in outcomes)
        counts["came: rows excluded"] += any(match.excluded for match in found)
        counts["came: stuck"] += any(match.stuck for match in found)

    rare = ("TIMEOUT", "UNMATCHED", "rows excluded", "stuck")
    drawn_until(property, lambda: is_quick() or all(counts[f"came: {what}"] for what in rare))
    record_property("examples", ", ".join(f"{what} {count:,}" for what, count in counts.items()))
    assert 2 * counts["a match"] >= counts["examples"], "too few examples with a match say something"
    if not is_quick():
        for what in rare:
            assert counts[f"came: {what}"] > 0, what


@pytest.mark.slow
@given(
    rows=events(max_size=7, keys=("p", None)),
    plan=plans((*SQL_SELECTIONS, Selection.SKIP_TILL_ANY), after=False, opaque=False, negations=True),
)
def test_all_matches_of_any_pattern(rows: list[Row], plan: Plan) -> None:
    plan = with_after(plan, AfterMatchKind.NO_SKIP)
    found = find(plan, rows, times(rows))
    for key, index in partitions(plan, rows).items():
        mine = entries_of(found, key, index)
        assert len({entry.labels for entry in mine}) == len(mine)
        excluded = {entry.labels: entry.excluded for entry in mine}
        assert excluded == any_matches(plan, Definition(plan, rows, index))


@pytest.mark.slow
@given(
    rows=events(max_size=7, keys=("p", None)),
    plan=plans(tuple(Selection), chains, after=False, opaque=False, negations=True, anchored=False, exclusions=False),
)
def test_chains_under_every_strategy(rows: list[Row], plan: Plan) -> None:
    if plan.selection not in SKIP_TILL:
        plan = with_after(plan, AfterMatchKind.NO_SKIP)

    def expected(plan: Plan, d: Definition) -> list[Entry]:
        chosen = chosen_by_mode(plan, chain_matches(plan, d))
        return [Entry(Outcome.MATCH, labels[0][1], labels) for labels in chosen]

    check(plan, rows, expected)


@pytest.mark.slow
@given(rows=events(max_size=8), plan=plans(exclusions=True, after=False))
def test_all_rows_show_what_is_not_excluded(rows: list[Row], plan: Plan) -> None:
    """Which rows come out, by their times; and that each says the rest of its row."""
    plan = replace(plan, measures=(Measure("n", MatchNumber()),))
    evaluate = DuckEvaluation()
    found = find(plan, rows, times(rows), lenient=True, evaluate=evaluate)
    output = match_rows(plan, rows, times(rows), found, evaluate)
    assert len(output) == len(found)
    for match, shown in zip(found, output):
        indices = [i for _, i in match.labels if i not in match.excluded]
        if not match.labels and plan.rows is not RowsPerMatch.ALL_OMIT_EMPTY:
            indices = [match.start]
        if plan.rows is RowsPerMatch.ONE:
            assert [tuple(row) for row in shown] == [tuple(f.name for f in output_columns(plan))]
        else:
            assert [row["ts"] for row in shown] == [rows[i]["ts"] for i in indices]
            assert repr([row["x"] for row in shown]) == repr([rows[i]["x"] for i in indices])
            assert all(set(row) == {f.name for f in output_columns(plan)} for row in shown)
        assert all(row["n"] == (match.number if match.outcome is Outcome.MATCH else None) for row in shown)
        if plan.timeout_rows:
            timeout = match.outcome is Outcome.TIMEOUT
            labels = None if match.outcome is Outcome.UNMATCHED else [name for name, _ in match.labels]
            assert all(row["labels"] == labels for row in shown)
            assert all((row["timeout"] or "").startswith("waiting for ") == timeout for row in shown)


def with_after(plan: Plan, kind: AfterMatchKind) -> Plan:
    """The plan under another AFTER MATCH; conditions on MATCH_NUMBER become TRUE, for overlapping matches have none."""

    def numbered(define: Define) -> bool:
        return any(isinstance(e, MatchNumber) for e in walk(define.condition))

    defines = tuple(replace(d, condition=TRUE) if numbered(d) else d for d in plan.defines)
    rows = plan.rows
    if kind is AfterMatchKind.NO_SKIP and rows is RowsPerMatch.ALL_WITH_UNMATCHED:
        rows = RowsPerMatch.ALL_SHOW_EMPTY
    timeouts = plan.timeout_rows and kind is not AfterMatchKind.NO_SKIP
    return replace(plan, after=AfterMatch(kind), defines=defines, rows=rows, timeout_rows=timeouts)


@pytest.mark.slow
@given(
    rows=events(max_size=10),
    plan=plans(tuple(Selection), opaque=False, negations=True),
    cut=st.integers(0, 10),
    step=st.integers(0, 3),
)
def test_what_is_decided_stays(rows: list[Row], plan: Plan, cut: int, step: int) -> None:
    """Matches of a beginning are the first ones of each partition's matches in the whole, whatever comes after."""
    whole = find(plan, rows, times(rows), lenient=True)
    ts_us = times(rows)
    cut = min(cut, len(rows))
    # the watermark may lie anywhere up to the next row
    watermark = ts_us[cut] - step * 500_000 if cut < len(rows) else None
    begun = find(plan, rows[:cut], ts_us[:cut], ended=False, watermark_us=watermark, lenient=True)
    for key in partitions(plan, rows):
        of_whole = [m for m in whole if m.partition == key]
        of_begun = [m for m in begun if m.partition == key]
        assert of_whole[: len(of_begun)] == of_begun


@pytest.mark.slow
@given(
    rows=events(max_size=8),
    plan=plans(SQL_SELECTIONS, after=False, opaque=False, no_skip=False, unmatched=False, timeouts=False),
)
def test_a_match_that_nothing_can_extend_is_out_with_its_last_row(rows: list[Row], plan: Plan) -> None:
    names = [d.variable for d in plan.defines]
    plan = replace(plan, pattern=Concatenation(tuple(map(Variable, names))))
    ts_us = times(rows)
    whole = find(plan, rows, ts_us, lenient=True)
    for cut in range(len(rows) + 1):
        begun = find(plan, rows[:cut], ts_us[:cut], ended=False, lenient=True)
        assert begun == [m for m in whole if m.labels[-1][1] < cut]


def test_a_budget_ends_it() -> None:
    rows: list[Row] = [{"ts": i, "k": "p", "s": "a", "v": 1, "x": 0.5} for i in range(40)]
    pattern = Concatenation((Repeat(Variable("A"), 1, None, True), Variable("B")))
    defines = (Define("A", TRUE), Define("B", Constant(False, "BOOLEAN")))
    after, selection = AfterMatch(AfterMatchKind.NO_SKIP), Selection.SKIP_TILL_ANY
    plan = Plan(SCHEMA, (), (Order(TS),), (), RowsPerMatch.ONE, after, pattern, None, selection, (), defines)
    with pytest.raises(QueryError) as raised:
        find(plan, rows, [0] * 40, steps_max=10_000)
    assert raised.value.diagnostics[0].code == "HQ600"

"""The automaton of trends: each labelled sequence of events has one path, so that trends are counted by state.

States are made by subset construction over the positions of the pattern (Glushkov). An item of a state is a way on: the
position of the next event, or the end, and the negated variables that no event passed over may meet on that way. An
event that meets a negated variable takes a state to the one without the items that it violates. So NOT may be in any
group, and the count of a state is the number of partial trends whose ways on are the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import assert_never

from query.errors import NO_SPAN, Diagnostic, QueryError
from query.plan.pattern import (
    Alternation,
    Anchor,
    Conjunction,
    Empty,
    Exclusion,
    Negation,
    Repeat,
    RowPattern,
    Sequence,
    Variable,
)

#: Most positions of a pattern with its bounded quantifiers written out, and most states of an automaton.
POSITIONS_MAX = 2_000
STATES_MAX = 2_000

#: Negated variables.
_Negated = frozenset[str]
_NOTHING: _Negated = frozenset()
#: Positions, each with the negated variables before or after it.
_Places = frozenset[tuple[int, _Negated]]
#: Ways on: the position of the next event, the negated variables before it, and whether SKIP TILL NEXT MATCH waits for
#: it.
_Items = frozenset[tuple[int, _Negated, bool]]


@dataclass(frozen=True, slots=True)
class TrendState:
    """takes: by variable of the next event, the state after it, and the end that a trend reaches with it (-1: none);
    waits: those variables whose event SKIP TILL NEXT MATCH may not pass over. violated: by negated variable, the state
    after an event of it is passed over (-1: none of the ways on is left), if it is another one."""

    takes: Mapping[str, tuple[int, int]]
    waits: frozenset[str]
    violated: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class TrendAutomaton:
    """states[0] is the start, before the first event of a window; starts: it and the states that negated events before
    the first one make of it. ends: finished trends: by negated variable after the last event, the end that is left (-1:
    none)."""

    states: tuple[TrendState, ...]
    starts: tuple[int, ...]
    ends: tuple[Mapping[str, int], ...]

    def __str__(self) -> str:
        lines = []
        for i, state in enumerate(self.states):
            ways = [
                f"{v} -> " + ", ".join([str(to)] * (to >= 0) + [f"trend {end}"] * (end >= 0))
                for v, (to, end) in state.takes.items()
            ]
            ways += [f"not {v} -> {to if to >= 0 else 'none'}" for v, to in state.violated.items()]
            name = f"{i} start" if i in self.starts else str(i)
            lines.append(f"{'states' if not i else '':<12}{name}: {'; '.join(ways)}")
        for i, end in enumerate(self.ends):
            over = [f"not {v} -> {to if to >= 0 else 'none'}" for v, to in end.items()]
            if over:
                lines.append(f"{'trends' if not i else '':<12}{i}: {'; '.join(over)}")
        return "\n".join(lines)


@dataclass(slots=True)
class _Position:
    """A place of a variable. loops: the loops around it; again: the innermost one that can repeat after it, or -1."""

    variable: str
    loops: tuple[int, ...]
    again: int


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the pattern. empty: the negations of passing it without an event, one set for each way. first, last:
    its first and last positions with the negations before and after them."""

    empty: frozenset[_Negated]
    first: _Places
    last: _Places


_SKIP = _Part(frozenset((_NOTHING,)), frozenset(), frozenset())


class _Builder:
    """The positions of a pattern, and what may follow each."""

    def __init__(self) -> None:
        self.positions: list[_Position] = []
        self.follow: list[set[tuple[int, _Negated, bool]]] = []
        self.loops = 0

    def part(self, pattern: RowPattern, loops: tuple[int, ...], again: int) -> _Part:
        match pattern:
            case Variable(name):
                self.positions.append(_Position(name, loops, again))
                self.follow.append(set())
                if len(self.positions) > POSITIONS_MAX:
                    raise _too_large(f"the pattern expands to more than {POSITIONS_MAX:,} positions")
                one = frozenset(((len(self.positions) - 1, _NOTHING),))
                return _Part(frozenset(), one, one)
            case Sequence(parts):
                found = _SKIP
                for part in parts:
                    found = self.then(found, self.part(part, loops, again))
                return found
            case Alternation(choices):
                found = _Part(frozenset(), frozenset(), frozenset())
                for choice in choices:
                    found = _either(found, self.part(choice, loops, again))
                return found
            case Exclusion(body):
                return self.part(body, loops, again)
            case Empty() | Anchor():
                return _SKIP
            case Negation(name):
                return _Part(frozenset((frozenset((name,)),)), frozenset(), frozenset())
            case Conjunction():
                raise AssertionError("each side of AND has an automaton of its own")
            case Repeat(body, at_least, at_most):
                return self.repeat(body, at_least, at_most, loops, again)
            case _:
                assert_never(pattern)

    def repeat(
        self, body: RowPattern, at_least: int, at_most: int | None, loops: tuple[int, ...], again: int
    ) -> _Part:
        loop, self.loops = self.loops, self.loops + 1
        inside = (*loops, loop)
        if at_most is None:
            round_ = self.part(body, inside, loop)
            self.link(round_.last, round_.first)
            # a round without an event is the last one (ISO 19075-5, 7.2.8)
            found = _Part(round_.empty, round_.first, round_.last | _spread(round_.last, round_.empty))
            for _ in range(at_least - 1):
                found = self.then(self.part(body, inside, loop), found)
            return found if at_least else _either(found, _SKIP)
        found = _SKIP
        for number in reversed(range(at_most)):
            round_ = self.part(body, inside, loop if number + 1 < at_most else again)
            found = self.then(round_, found)
            if number >= at_least:
                found = _either(found, _SKIP)
        return found

    def then(self, one: _Part, two: _Part) -> _Part:
        self.link(one.last, two.first)
        empty = frozenset(a | b for a, b in product(one.empty, two.empty))
        return _Part(empty, one.first | _spread(two.first, one.empty), two.last | _spread(one.last, two.empty))

    def link(self, last: _Places, first: _Places) -> None:
        for (p, before), (q, behind) in product(last, first):
            again = self.positions[p].again
            self.follow[p].add((q, before | behind, again < 0 or again in self.positions[q].loops))


def _either(one: _Part, two: _Part) -> _Part:
    return _Part(one.empty | two.empty, one.first | two.first, one.last | two.last)


def _spread(places: _Places, ways: frozenset[_Negated]) -> _Places:
    return frozenset((p, negated | more) for p, negated in places for more in ways)


def _least(items: Iterable[tuple[int, _Negated, bool]]) -> _Items:
    """Drops the ways on that another one with fewer negations makes superfluous."""
    every = frozenset(items)
    return frozenset(
        (p, n, w) for p, n, w in every if not any(p == q and m < n and (v or not w) for q, m, v in every)
    )


def _too_large(message: str) -> QueryError:
    return QueryError([Diagnostic("HQ600", message, NO_SPAN, hint="use smaller bounds in {n,m}, or fewer groups")])


def trend_automaton(pattern: RowPattern) -> TrendAutomaton:
    """Returns the automaton of a pattern. Raises QueryError HQ600 if it has too many positions or states. Cost: done
    once per query; the number of states is exponential in the worst case, and about that of the variables in most."""
    builder = _Builder()
    whole = builder.part(pattern, (), -1)
    positions = builder.positions
    ends_at: list[set[_Negated]] = [set() for _ in positions]
    for p, negated in whole.last:
        ends_at[p].add(negated)
    number: dict[tuple[_Items, bool], int] = {}
    items: list[tuple[_Items, bool]] = []
    end_number: dict[frozenset[_Negated], int] = {}
    end_items: list[frozenset[_Negated]] = []

    def state(of: _Items, start: bool = False) -> int:
        """Returns the number of a state, -1 without a way on."""
        if not of:
            return -1
        if (of, start) not in number:
            number[of, start] = len(items)
            items.append((of, start))
            if len(items) > STATES_MAX:
                raise _too_large(f"the trends of the pattern have more than {STATES_MAX:,} states")
        return number[of, start]

    def end(of: Iterable[_Negated]) -> int:
        """Returns the number of an end, -1 for none. of: the negations after it, one set for each way."""
        every = frozenset(of)
        least = frozenset(n for n in every if not any(m < n for m in every))
        if not least:
            return -1
        if least not in end_number:
            end_number[least] = len(end_items)
            end_items.append(least)
        return end_number[least]

    state(_least((p, n, True) for p, n in whole.first), start=True)
    states: list[TrendState] = []
    while len(states) < len(items):
        here, start = items[len(states)]
        reached: dict[str, list[int]] = {}
        for p in sorted({p for p, _, _ in here}):
            reached.setdefault(positions[p].variable, []).append(p)
        takes = {
            variable: (state(_least(i for p in of for i in builder.follow[p])), end(n for p in of for n in ends_at[p]))
            for variable, of in reached.items()
        }
        waits = frozenset(positions[p].variable for p, _, waits in here if waits)
        absent = sorted({v for _, n, _ in here for v in n})
        violated = {v: state(frozenset(i for i in here if v not in i[1]), start) for v in absent}
        states.append(TrendState(takes, waits, violated))
    ends: list[Mapping[str, int]] = []
    while len(ends) < len(end_items):
        behind = end_items[len(ends)]
        ends.append({v: end(n for n in behind if v not in n) for v in sorted({v for n in behind for v in n})})
    return TrendAutomaton(tuple(states), tuple(i for i, (_, start) in enumerate(items) if start), tuple(ends))

"""The rest of a pattern, and the steps from it: the variable that the next row may have, the preferred one first. For
the reference only: the automaton is compiled without it, so that each is tested against the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import assert_never

from query.plan.pattern import (
    Alternation,
    Anchor,
    Conjunction,
    Empty,
    Exclusion,
    Negation,
    Repeat,
    RowPattern,
    Variable,
)
from query.plan.pattern import Sequence as Concatenation


@dataclass(frozen=True, slots=True)
class LoopRound:
    """Marks the end of a loop's body: its round, number done + 1, ends here. moved: the round has taken a row."""

    loop: Repeat
    done: int
    moved: bool

    @property
    def may_repeat(self) -> bool:
        return self.loop.at_most is None or self.done + 1 < self.loop.at_most


@dataclass(frozen=True, slots=True)
class _EndOfExclusion:
    """Marks the end of the body of {- -}: a row matched while this mark is in the rest is excluded."""


#: The elements still to be matched, next one first.
Rest = tuple[RowPattern | LoopRound | _EndOfExclusion, ...]
#: A step from a rest: the variable of the next row (None: the pattern is complete), the rest after it, and the negated
#: variables between the last row and that one.
Move = tuple[str | None, Rest, tuple[str, ...]]
#: The anchors that hold between two rows: True for `^`, False for `$`.
Anchors = frozenset[bool]


def moves(rest: Rest, holding: Anchors) -> Iterator[Move]:
    """Yields all steps from `rest`, the preferred one first: left choices before right ones, another round before
    leaving a greedy loop, leaving a reluctant one before another round. An anchor is a step of its own, taken if it
    holds."""
    yield from _moves(rest, holding, (), set())


def _moves(
    rest: Rest, holding: Anchors, negated: tuple[str, ...], seen: set[tuple[Rest, tuple[str, ...]]]
) -> Iterator[Move]:
    """Yields the steps. seen: rests that were reached before; their steps are preferred and not repeated."""
    if (rest, negated) in seen:
        return
    seen.add((rest, negated))
    if not rest:
        yield None, (), negated
        return
    head, behind = rest[0], rest[1:]
    match head:
        case Variable(name):
            after = (LoopRound(r.loop, r.done, True) if isinstance(r, LoopRound) else r for r in behind)
            yield name, tuple(after), negated
        case Concatenation(parts):
            yield from _moves((*parts, *behind), holding, negated, seen)
        case Alternation(choices):
            for choice in choices:
                yield from _moves((choice, *behind), holding, negated, seen)
        case Empty() | _EndOfExclusion():
            yield from _moves(behind, holding, negated, seen)
        case Anchor(at_start):
            if at_start in holding and at_start:
                yield from _moves(behind, holding, negated, seen)
            elif at_start in holding:  # after `$` only the empty string can be matched
                yield from (m for m in _moves(behind, holding, negated, set()) if m[0] is None)
        case Exclusion(body):
            yield from _moves((body, _EndOfExclusion(), *behind), holding, negated, seen)
        case Conjunction():
            raise AssertionError("each side of AND is matched alone")
        case Negation(name):
            yield from _moves(behind, holding, (*negated, name), seen)
        case Repeat():
            yield from _rounds(head, 0, behind, holding, negated, seen)
        case LoopRound(loop, done, moved):
            done += 1
            if moved or done < loop.at_least:
                done = done if loop.at_most else min(done, loop.at_least)
                yield from _rounds(loop, done, behind, holding, negated, seen)
            else:  # ISO 19075-5, 7.2.8: once the minimum is reached, a round without a row is the last one
                yield from _moves(behind, holding, negated, seen)
        case _:
            assert_never(head)


def _rounds(
    loop: Repeat,
    done: int,
    behind: Rest,
    holding: Anchors,
    negated: tuple[str, ...],
    seen: set[tuple[Rest, tuple[str, ...]]],
) -> Iterator[Move]:
    """Yields the steps after `done` rounds of a loop."""
    more = loop.at_most is None or done < loop.at_most
    stop = done >= loop.at_least
    if stop and not loop.greedy:
        yield from _moves(behind, holding, negated, seen)
    if more:
        yield from _moves((loop.body, LoopRound(loop, done, False), *behind), holding, negated, seen)
    if stop and loop.greedy:
        yield from _moves(behind, holding, negated, seen)


class PatternPlace:
    """A rest, interned: equal rests are one object, since the search for all matches compares them at every row."""

    __slots__ = ("_places", "_steps", "excluded", "rest")

    def __init__(self, rest: Rest, places: dict[Rest, PatternPlace]) -> None:
        self.rest = rest
        self.excluded = is_excluded(rest)
        places[rest] = self
        self._places = places
        self._steps: dict[Anchors, tuple[tuple[str | None, PatternPlace, tuple[str, ...]], ...]] = {}

    def at(self, rest: Rest) -> PatternPlace:
        """Returns the place of another rest of the same pattern."""
        return self._places.get(rest) or PatternPlace(rest, self._places)

    def moves(self, holding: Anchors) -> tuple[tuple[str | None, PatternPlace, tuple[str, ...]], ...]:
        """Returns all steps from here, as `moves` yields them."""
        found = self._steps.get(holding)
        if found is None:
            steps = [(variable, self.at(behind), negated) for variable, behind, negated in moves(self.rest, holding)]
            found = self._steps[holding] = tuple(steps)
        return found


def is_excluded(behind: Rest) -> bool:
    """True if a row is inside {- -}, judged by the rest after it."""
    return any(isinstance(r, _EndOfExclusion) for r in behind)

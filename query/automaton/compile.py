"""Plan to automaton: Thompson's construction, one function a construct, then the ordered closure of every state.

The order of a state's edges is the preference of SQL:2016 (left alternative first; greedy: another round first).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import assert_never

from query.automaton.nfa import Automaton, Edge, EdgeKind, Label, State
from query.errors import NO_SPAN, Diagnostic, QueryError
from query.language.ast import RowsPerMatch, Selection
from query.plan.expression import show
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
    anchors,
)
from query.plan.plan import Plan

#: Maximum number of nodes of a pattern; {n,m} is written out, so A{5000} has 5,000, and an optional round has three
#: more.
NODES_MAX = 30_000
#: Most edges: `(A?){1000}` has half a million, one from each A to each later one.
EDGES_MAX = 300_000


#: A loop of the pattern: the number of nodes before it, and its depth.
_Loop = tuple[int, int]


@dataclass(frozen=True, slots=True)
class _Place:
    """The position of a part of the pattern. shown: False inside {- -}. part: number of the part of the whole pattern.
    loops: the loops around it, the innermost last; again: the innermost one that can repeat after it."""

    shown: bool = True
    part: int = 0
    loops: tuple[_Loop, ...] = ()
    again: _Loop | None = None


@dataclass(slots=True)
class _Position:
    """Consumes a row; its closure continues at `then`."""

    variable: str
    then: int
    place: _Place


@dataclass(slots=True)
class _Choice:
    ways: list[int]


@dataclass(slots=True)
class _Round:
    """Entry of a round that is the last one if it takes no row: an optional round, or the last required one."""

    body: int


@dataclass(slots=True)
class _RoundEnd:
    """End of a round of `round`: continues at `then`, and at `leave`, after the loop, if the round has taken no row."""

    round: int
    then: int
    leave: int


@dataclass(slots=True)
class _Anchor:
    at_start: bool
    then: int


@dataclass(slots=True)
class _Accept:
    pass


_Node = _Position | _Choice | _Round | _RoundEnd | _Anchor | _Accept


def _build(pattern: RowPattern, then: int, nodes: list[_Node], place: _Place) -> int:
    """Adds the nodes of `pattern` followed by node `then`; returns the entry."""

    def add(node: _Node) -> int:
        nodes.append(node)
        if len(nodes) > NODES_MAX:
            raise QueryError([Diagnostic(
                "HQ600", f"the pattern expands to more than {NODES_MAX:,} nodes", NO_SPAN,
                hint="use smaller bounds in {n,m}, or fewer nested ones",
            )])
        return len(nodes) - 1

    match pattern:
        case Variable(name):
            return add(_Position(name, then, place))
        case Sequence(parts):
            for part in reversed(parts):
                then = _build(part, then, nodes, place)
            return then
        case Alternation(choices):
            return add(_Choice([_build(choice, then, nodes, place) for choice in choices]))
        case Exclusion(body):
            return _build(body, then, nodes, replace(place, shown=False))
        case Anchor(at_start):
            return add(_Anchor(at_start, then))
        case Conjunction():
            raise AssertionError("each side of AND has an automaton of its own")
        case Empty() | Negation():
            return then  # a negation takes no row: it is on the edges that pass it
        case Repeat(body, at_least, at_most, greedy):
            loop = (len(nodes), len(place.loops))
            last_round = replace(place, loops=(*place.loops, loop))
            round_before = replace(last_round, again=loop)
            if at_most is None:
                # the last required round (or the first optional one) is the loop itself
                round_ = add(_Round(-1))
                choice = add(_Choice([round_, then] if greedy else [then, round_]))
                nodes[round_] = _Round(_build(body, add(_RoundEnd(round_, choice, then)), nodes, round_before))
                return _times(body, at_least - 1, round_, nodes, round_before) if at_least else choice
            if not at_most:
                return then
            if at_most == at_least:
                return _times(body, at_most - 1, _build(body, then, nodes, last_round), nodes, round_before)
            entry = then
            here = last_round
            for number in reversed(range(max(at_least - 1, 0), at_most)):
                # optional rounds nest: (X (X ...)?)?
                round_ = add(_Round(-1))
                nodes[round_] = _Round(_build(body, add(_RoundEnd(round_, entry, then)), nodes, here))
                required = number < at_least
                entry = round_ if required else add(_Choice([round_, then] if greedy else [then, round_]))
                here = round_before
            return _times(body, at_least - 1, entry, nodes, round_before)
        case _:
            assert_never(pattern)


def _times(pattern: RowPattern, times: int, then: int, nodes: list[_Node], place: _Place) -> int:
    """Adds the nodes of `pattern` that often, followed by node `then`; returns the entry."""
    for _ in range(times):
        entry = _build(pattern, then, nodes, place)
        if entry == then:  # it has no nodes, and so it is however often
            break
        then = entry
    return then


@dataclass(frozen=True, slots=True)
class _Closure:
    """The nodes that can be reached without taking a row: positions by preference, each with True if `^` was passed on
    the way; the place of accept among them; and the place of an accept after an anchor."""

    positions: tuple[tuple[int, bool], ...]
    accept_at: int | None
    anchored_at: int | None


def _closure(entry: int, nodes: list[_Node], at_start: bool) -> _Closure:
    """Returns the closure of `entry`. at_start: no row has been taken yet.

    Before its first row a match can pass `^` only, after a row `$` only, and only its end can follow `$`. A node is
    visited once for each set of rounds entered and not left since the last row: same node and same set, same future."""
    positions: dict[tuple[int, bool], None] = {}
    accept_at: int | None = None
    anchored_at: int | None = None
    seen: set[tuple[int, frozenset[int], bool]] = set()
    stack: list[tuple[int, frozenset[int], bool]] = [(entry, frozenset(), False)]
    while stack:
        index, opened, anchored = stack.pop()
        if (index, opened, anchored) in seen:
            continue
        seen.add((index, opened, anchored))
        node = nodes[index]
        match node:
            case _Position():
                if (at_start or not anchored) and (index, False) not in positions:
                    positions.setdefault((index, anchored))
            case _Choice(ways):
                stack.extend((way, opened, anchored) for way in reversed(ways))
            case _Round(body):
                stack.append((body, opened | {index}, anchored))
            case _RoundEnd(round_, then, leave):
                if round_ in opened:  # ISO 19075-5, 7.2.8: a round without a row is the last one
                    stack.append((leave, opened - {round_}, anchored))
                else:
                    stack.append((then, opened, anchored))
            case _Anchor(is_start, then):
                if is_start == at_start:
                    stack.append((then, opened, True))
            case _Accept():
                if anchored and anchored_at is None and accept_at is None:
                    anchored_at = len(positions)
                if not anchored and accept_at is None:
                    accept_at = len(positions)
            case _:
                assert_never(node)
    return _Closure(tuple(positions), accept_at, anchored_at)


@dataclass(frozen=True, slots=True)
class _Size:
    """The size of a pattern as an automaton: how many positions a match can begin and end with, whether it may have
    none, and no more edges between positions than there will be."""

    empty: bool
    first: int
    last: int
    edges: int

    def then(self, other: _Size) -> _Size:
        """Returns the size of this pattern followed by another."""
        return _Size(
            self.empty and other.empty, self.first + (other.first if self.empty else 0),
            other.last + (self.last if other.empty else 0), self.edges + other.edges + self.last * other.first,
        )  # fmt: skip


_NOTHING = _Size(True, 0, 0, 0)


def _size(pattern: RowPattern) -> _Size:
    """Returns the size of a pattern without anchors. Cost: the bounds of repetitions, added."""
    match pattern:
        case Variable():
            return _Size(False, 1, 1, 0)
        case Sequence(parts):
            size = _NOTHING
            for part in parts:
                size = size.then(_size(part))
            return size
        case Alternation(choices):
            sizes = [_size(choice) for choice in choices]
            return _Size(any(x.empty for x in sizes), *(sum(getattr(x, n) for x in sizes) for n in _COUNTED))
        case Exclusion(body):
            return _size(body)
        case Repeat(body, at_least, at_most, _):
            one = _size(body)
            required = at_least - 1 if at_most is None or at_most > at_least else at_least
            size = _NOTHING
            for _ in range(required if one.last else 0):
                size = size.then(one)
                if size.edges > EDGES_MAX:
                    break
            if at_most is None:
                return size.then(replace(one, empty=one.empty or not at_least))
            # an optional round follows one that has taken rows
            rounds = at_most - max(required, 0)
            if rounds <= 0 or not one.last:
                return size
            tail = _Size(
                one.empty or not at_least, one.first, rounds * one.last,
                rounds * one.edges + (rounds - 1) * one.last * one.first,
            )  # fmt: skip
            return size.then(tail)
        case _:
            return _NOTHING


_COUNTED = ("first", "last", "edges")


def _too_many_edges() -> QueryError:
    return QueryError([Diagnostic(
        "HQ600", f"the pattern expands to more than {EDGES_MAX:,} edges", NO_SPAN,
        hint="use smaller bounds in {n,m} around what may be left out, or fewer nested ones",
    )])  # fmt: skip


def compile_plan(plan: Plan) -> Automaton:
    """Returns the automaton of the plan's pattern. Raises QueryError HQ600 if bounds expand beyond NODES_MAX
    or EDGES_MAX.

    Rows inside {- -} are distinguished only if the output shows the rows of a match. States from which no match can end
    are dropped, except if TIMEOUT ROWS may show a match that waits in one. Cost: O(positions * edges); done once per
    query."""
    nodes: list[_Node] = [_Accept()]
    parts = plan.pattern.parts if isinstance(plan.pattern, Sequence) else (plan.pattern,)
    entry = 0
    for number_of_part in reversed(range(len(parts))):
        entry = _build(parts[number_of_part], entry, nodes, _Place(part=number_of_part))
    if not anchors(plan.pattern) and _size(plan.pattern).edges > EDGES_MAX:  # closures would take long to see it
        raise _too_many_edges()
    first = _closure(entry, nodes, True)
    if plan.rows is RowsPerMatch.ONE:
        for made in nodes:
            if isinstance(made, _Position):
                made.place = replace(made.place, shown=True)
    closures: dict[int, _Closure] = {}
    pending = [p for p, _ in first.positions]
    edge_count = 0
    while pending:
        node = pending.pop()
        if node not in closures:
            position = nodes[node]
            assert isinstance(position, _Position)
            closures[node] = _closure(position.then, nodes, False)
            pending.extend(p for p, _ in closures[node].positions)
            edge_count += len(closures[node].positions)
            if edge_count > EDGES_MAX:
                raise _too_many_edges()
    alive = set(closures) if plan.timeout_rows else _alive(closures)

    # states are (node, after the last row of a partition), numbered in breadth-first order
    number: dict[tuple[int, bool], int] = {}
    queue: list[tuple[int, bool]] = []

    def edges_of(source: int, closure: _Closure) -> tuple[tuple[Edge[Label], ...], list[int]]:
        """Returns the edges, and for each number of positions the number of edges to them."""
        edges: list[Edge[Label]] = []
        before = [0]
        for node, anchored in closure.positions:
            position = nodes[node]
            assert isinstance(position, _Position)
            behind = closures[node]
            # if only `$` lets the match end, its last row goes to a state of its own
            ways = [True] if behind.accept_at is None and behind.anchored_at is not None else []
            if behind.accept_at is not None or any(p in alive for p, _ in behind.positions) or plan.timeout_rows:
                ways.append(False)
            for last_row in ways:
                if (node, last_row) not in number:
                    number[node, last_row] = len(number) + 1
                    queue.append((node, last_row))
                kind = EdgeKind.TAKE if node == source else EdgeKind.BEGIN
                label = Label(position.variable, position.place.shown, anchored, last_row)
                edges.append(Edge(kind, label, number[node, last_row], *_passing(nodes, source, position, parts)))
            before.append(len(edges))
        return tuple(edges), before

    edges, before = edges_of(-1, first)
    accept_at = None if first.accept_at is None else before[first.accept_at]
    anchored_at = None if first.anchored_at is None else before[first.anchored_at]
    states = [State(None, edges, accept_at, first_accept_at=anchored_at)]
    for node, last_row in queue:  # grows during the loop
        position = nodes[node]
        assert isinstance(position, _Position)
        if last_row:
            states.append(State(position.variable, (), 0, last_row=True, beside=number.get((node, False), -1)))
            continue
        closure = closures[node]
        edges, before = edges_of(node, closure)
        accept_at = None if closure.accept_at is None else before[closure.accept_at]
        states.append(State(position.variable, edges, accept_at))
    conditions = tuple((d.variable, f"{d.variable}: {show(d.condition)}") for d in plan.defines)
    return Automaton(tuple(states), conditions, _ignore(plan.selection))


def _passing(
    nodes: list[_Node], source: int, position: _Position, parts: tuple[RowPattern, ...]
) -> tuple[bool, tuple[str, ...]]:
    """Returns `waits` and `negated` of an edge from the node `source` (-1: the start) to a position."""
    if source < 0:
        return True, ()
    before = nodes[source]
    assert isinstance(before, _Position)
    again = before.place.again
    # a negation is between two parts of the whole pattern, in no group
    between = parts[before.place.part + 1 : position.place.part]
    negated = tuple(part.name for part in between if isinstance(part, Negation))
    return again is None or again in position.place.loops, negated


def _alive(closures: dict[int, _Closure]) -> set[int]:
    """Returns the positions after which a match can still end."""
    before: dict[int, list[int]] = {}
    for node, closure in closures.items():
        for following, _ in closure.positions:
            before.setdefault(following, []).append(node)
    pending = [n for n, c in closures.items() if c.accept_at is not None or c.anchored_at is not None]
    alive: set[int] = set()
    while pending:
        node = pending.pop()
        if node not in alive:
            alive.add(node)
            pending.extend(before.get(node, ()))
    return alive


def _ignore(selection: Selection) -> str:
    """The ignore edge of every state but the start ([SASE] section 4.2, step 3)."""
    match selection:
        case Selection.STRICT:
            return "false"
        case Selection.PARTITION:
            return "not (same partition)"
        case Selection.SKIP_TILL_NEXT:
            return "not (take), at the first row of an element not (begin)"
        case Selection.SKIP_TILL_ANY:
            return "true"
        case _:
            assert_never(selection)


def is_ambiguous(automaton: Automaton, by_name: bool = False) -> bool:
    """True if two runs may bind the same rows to the same labels (by_name: variables) and yet be in different states or
    have arrived on different edges.

    A state after the last row of a partition accompanies one that cannot end there: the two are no ambiguity. Subset
    construction; undecided after 2,000 subsets counts as ambiguous."""
    seen: set[frozenset[int]] = set()
    pending = [frozenset({0})]
    while pending:
        subset = pending.pop()
        if len(subset) > 1 or len(seen) > 2_000:
            return True
        if subset in seen:
            continue
        seen.add(subset)
        targets: dict[str | Label, list[int]] = {}
        for index in subset:
            for edge in automaton.states[index].edges:
                targets.setdefault(edge.variable if by_name else edge.label, []).append(edge.target)
        for reached in targets.values():
            if len(reached) == 2 and reached[1] in (automaton.states[t].beside for t in reached):
                reached = reached[1:]  # the last row of a partition ends a match here, another one cannot
            if len(reached) > 1:
                return True
            pending.append(frozenset(reached))
    return False


def by_labels(automaton: Automaton, states_max: int = 2_000) -> Automaton | None:
    """Returns the automaton in which every sequence of variables has one path, for plans that ask for all matches: two
    derivations of one labelled sequence are one match. Next variables keep the order of the preferred derivation.

    Subset construction over ordered sets of states; None if it has more than `states_max`. Not for anchors, {- -} and
    negations: its labels are plain."""
    number: dict[tuple[int, ...], int] = {(0,): 0}
    subsets: list[tuple[int, ...]] = [(0,)]
    states: list[State[Label]] = []
    at = 0
    while at < len(subsets):
        targets: dict[str, dict[int, None]] = {}
        waits: set[str] = set()
        for index in subsets[at]:
            for edge in automaton.states[index].edges:
                targets.setdefault(edge.variable, {})[edge.target] = None
                waits.update([edge.variable] if edge.waits else [])
        edges = []
        for variable, reached in targets.items():
            subset = tuple(reached)
            if subset not in number:
                number[subset] = len(subsets)
                subsets.append(subset)
            kind = EdgeKind.TAKE if number[subset] == at else EdgeKind.BEGIN
            edges.append(Edge(kind, Label(variable), number[subset], variable in waits))
        if len(subsets) > states_max:
            return None
        ends = any(automaton.states[i].accept_at is not None for i in subsets[at])
        states.append(State(automaton.states[subsets[at][0]].variable, tuple(edges), len(edges) if ends else None))
        at += 1
    return Automaton(tuple(states), automaton.conditions, automaton.ignore)

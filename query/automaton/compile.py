"""Plan to automaton: Thompson's construction, one function a construct, then the ordered closure of every state.

The order of a state's edges is the preference of SQL:2016 (left alternative first; greedy: another round first).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

from query.automaton.nfa import Automaton, Edge, EdgeKind, State
from query.errors import NOWHERE, Diagnostic, QueryError
from query.language.ast import Selection
from query.plan.expression import show
from query.plan.pattern import Alternation, Anchor, Empty, Exclusion, Negation, Repeat, RowPattern, Sequence, Variable
from query.plan.plan import Plan

#: Most positions a pattern may expand to; {n,m} is written out, so A{5000} has 5,000.
POSITIONS_MAX = 10_000


@dataclass(slots=True)
class _Position:
    """Consumes a row; `then` is where its closure goes on."""

    variable: str
    then: int


@dataclass(slots=True)
class _Choice:
    ways: list[int]


@dataclass(slots=True)
class _Round:
    """Entry of an optional round: a path that comes to its _RoundEnd without taking a row is dropped."""

    body: int


@dataclass(slots=True)
class _RoundEnd:
    """End of a round of `round`; then goes on to `then`."""

    round: int
    then: int


@dataclass(slots=True)
class _Accept:
    pass


_Node = _Position | _Choice | _Round | _RoundEnd | _Accept


def _build(pattern: RowPattern, then: int, nodes: list[_Node]) -> int:
    """Adds the nodes of `pattern` followed by node `then`; returns the entry."""

    def add(node: _Node) -> int:
        nodes.append(node)
        if len(nodes) > 3 * POSITIONS_MAX:
            raise QueryError([Diagnostic(
                "HQ600", f"the pattern expands to more than {POSITIONS_MAX} positions", NOWHERE,
                hint="use smaller bounds in {n,m}, or fewer nested ones",
            )])
        return len(nodes) - 1

    match pattern:
        case Variable(name):
            return add(_Position(name, then))
        case Sequence(parts):
            for part in reversed(parts):
                then = _build(part, then, nodes)
            return then
        case Alternation(choices):
            return add(_Choice([_build(choice, then, nodes) for choice in choices]))
        case Exclusion(body):
            return _build(body, then, nodes)
        case Anchor():
            return then
        case Empty() | Negation():
            return then  # a negation takes no row; where it matters the plan is not run by an automaton
        case Repeat(body, at_least, at_most, greedy):
            if at_most is None:
                # the last required round (or the first optional one) is the loop itself
                round_ = add(_Round(-1))
                choice = add(_Choice([round_, then] if greedy else [then, round_]))
                end = add(_RoundEnd(round_, choice))
                entry = _build(body, end, nodes)
                nodes[round_] = _Round(entry)
                for _ in range(at_least - 1):
                    entry = _build(body, entry, nodes)
                return entry if at_least else choice
            entry = then
            for _ in range(at_most - at_least):
                # optional rounds nest: (X (X ...)?)?
                round_ = add(_Round(-1))
                end = add(_RoundEnd(round_, entry))
                nodes[round_] = _Round(_build(body, end, nodes))
                entry = add(_Choice([round_, then] if greedy else [then, round_]))
            for _ in range(at_least):
                entry = _build(body, entry, nodes)
            return entry
        case _:
            assert_never(pattern)


def _closure(entry: int, nodes: list[_Node]) -> tuple[list[int], int | None]:
    """Positions reachable from `entry` without taking a row, by preference, and the place of accept among them.

    A node is visited once for each set of rounds entered since the last row: same node and same set, same future.
    """
    positions: list[int] = []
    accept_at: int | None = None
    seen: set[tuple[int, frozenset[int]]] = set()
    stack: list[tuple[int, frozenset[int]]] = [(entry, frozenset())]
    while stack:
        index, opened = stack.pop()
        if (index, opened) in seen:
            continue
        seen.add((index, opened))
        node = nodes[index]
        match node:
            case _Position():
                if index not in positions:
                    positions.append(index)
            case _Choice(ways):
                stack.extend((way, opened) for way in reversed(ways))
            case _Round(body):
                stack.append((body, opened | {index}))
            case _RoundEnd(round_, then):
                if round_ not in opened:
                    stack.append((then, opened))
            case _Accept():
                if accept_at is None:
                    accept_at = len(positions)
            case _:
                assert_never(node)
    return positions, accept_at


def compile_plan(plan: Plan) -> Automaton:
    """The automaton of the plan's pattern. Raises QueryError HQ600 if bounds expand beyond POSITIONS_MAX.

    Cost: O(positions * edges); done once a query."""
    nodes: list[_Node] = [_Accept()]
    entry = _build(plan.pattern, 0, nodes)
    first, accept_at = _closure(entry, nodes)
    number: dict[int, int] = {}  # node of a position -> state
    pending = list(first)
    closures: dict[int, tuple[list[int], int | None]] = {}
    # number the states in the order a breadth-first walk of the preferences meets them
    while pending:
        node = pending.pop(0)
        if node in number:
            continue
        number[node] = len(number) + 1
        position = nodes[node]
        assert isinstance(position, _Position)
        closures[node] = _closure(position.then, nodes)
        pending.extend(closures[node][0])

    def state(variable: str | None, source: int, positions: list[int], at: int | None) -> State:
        edges = []
        for p in positions:
            position = nodes[p]
            assert isinstance(position, _Position)
            kind = EdgeKind.TAKE if p == source else EdgeKind.BEGIN
            edges.append(Edge(kind, position.variable, number[p]))
        return State(variable, tuple(edges), at)

    states = [state(None, -1, first, accept_at)]
    for node in number:
        position = nodes[node]
        assert isinstance(position, _Position)
        states.append(state(position.variable, node, *closures[node]))
    conditions = tuple((d.variable, f"{d.variable}: {show(d.condition)}") for d in plan.defines)
    return Automaton(tuple(states), conditions, _ignore(plan.selection))


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


def is_ambiguous(automaton: Automaton) -> bool:
    """True if two runs may bind the same rows to the same variables and yet stand in different states.

    Subset construction over variables; undecided after 2,000 subsets counts as ambiguous."""
    seen: set[frozenset[int]] = set()
    pending = [frozenset({0})]
    while pending:
        subset = pending.pop()
        if len(subset) > 1 or len(seen) > 2_000:
            return True
        if subset in seen:
            continue
        seen.add(subset)
        targets: dict[str, set[int]] = {}
        for index in subset:
            for edge in automaton.states[index].edges:
                targets.setdefault(edge.variable, set()).add(edge.target)
        pending.extend(frozenset(t) for t in targets.values())
    return False


def by_labels(automaton: Automaton, states_max: int = 2_000) -> Automaton | None:
    """The automaton in which every sequence of variables has one path, for plans that ask for all matches: two
    derivations of one labelled sequence are one match. Next variables keep the order of the preferred derivation.

    Subset construction over ordered sets of states; None if it has more than `states_max`."""
    number: dict[tuple[int, ...], int] = {(0,): 0}
    subsets: list[tuple[int, ...]] = [(0,)]
    states: list[State] = []
    at = 0
    while at < len(subsets):
        targets: dict[str, dict[int, None]] = {}
        for index in subsets[at]:
            for edge in automaton.states[index].edges:
                targets.setdefault(edge.variable, {})[edge.target] = None
        edges = []
        for variable, reached in targets.items():
            subset = tuple(reached)
            if subset not in number:
                number[subset] = len(subsets)
                subsets.append(subset)
            kind = EdgeKind.TAKE if number[subset] == at else EdgeKind.BEGIN
            edges.append(Edge(kind, variable, number[subset]))
        if len(subsets) > states_max:
            return None
        ends = any(automaton.states[i].accept_at is not None for i in subsets[at])
        states.append(State(automaton.states[subsets[at][0]].variable, tuple(edges), len(edges) if ends else None))
        at += 1
    return Automaton(tuple(states), automaton.conditions, automaton.ignore)

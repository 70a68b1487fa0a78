"""The automaton of a chain with the formulas of its edges, as [SASE] section 4.2 compiles it in six steps.

A chain is a sequence of singletons `V` and loops `V+`, with negations around and between them. A singleton is one
state, a loop the pair `V[1]`, `V[i]`, and `F` is the end. Edges:

  begin    forward: consumes the row and stores it
  take     loop at V[i]: consumes the row and stores it
  ignore   loop: consumes the row, does not store it
  proceed  forward from V[i]: consumes nothing

Formulas are expressions over all rows of the stream, read like a condition of DEFINE: the row at hand is the candidate,
with the variable of the edge's state; at a proceed edge, which only peeks at it, with that of the next state. A proceed
edge into F is read when a row has been stored, and that row is the candidate. A formula that is null does not hold.
Every run that reaches F has found a match, unless a row violates one of `absences`.

Matches are run by query/automaton/compile.py and its successors; this is the same meaning, to be read and tested.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import assert_never

from query.automaton.compile import compile_plan
from query.automaton.formulas import FALSE, all_of, any_of, clauses_of, folded, unless
from query.automaton.nfa import Edge, EdgeKind, State
from query.language.ast import Selection
from query.plan import pattern as rp
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
    Opaque,
    show,
)
from query.plan.plan import Plan, Within

#: Maximum number of elements of a chain that is written out; {n} and {n,} are n of them.
ELEMENTS_MAX = 20
#: Maximum number of states of the general form that are written out.
STATES_MAX = 200
#: The number of a row in its partition, for WITHIN n ROWS.
ROW_NUMBER = Column("ROW_NUMBER()", "BIGINT")


@dataclass(frozen=True, slots=True)
class Absence:
    """A negation: no row for which `formula` holds, outside of the match, may lie between the last row of element
    `behind` (None: before the whole match) and the first row of element `before` (None: after it). Elements count from
    0. The candidate of the formula is that row, as `variable`; all rows of the match are bound."""

    variable: str
    behind: int | None
    before: int | None
    formula: Expression


@dataclass(frozen=True, slots=True)
class NFAb:
    """before: the automaton after steps 1 to 4. after: with WITHIN on every edge and proceed edges that peek, steps 5
    and 6: this is the meaning. names: of their states, in order; states[0] is the start and the last one is F, without
    a variable. Edges are labelled with formulas. elements: the names of the chain's elements."""

    names: tuple[str, ...]
    before: tuple[State[Expression], ...]
    after: tuple[State[Expression], ...]
    absences: tuple[Absence, ...]
    elements: tuple[str, ...]

    def __str__(self) -> str:
        first, last = (_shown(self.names, states) for states in (self.before, self.after))
        parts = ["steps 1 to 4: structure, conditions, selection, WITHIN on the last edge", first, ""]
        steps = "steps 5 and 6: WITHIN on every edge, proceed peeks"
        parts += [steps, last] if self.after != self.before else [f"{steps}: the same"]
        if self.absences:
            parts += ["", "absent rows"]
        for absence in self.absences:
            parts.append(f"~{rp.Variable(absence.variable)}  {self._place(absence)}: {show(absence.formula)}")
        return "\n".join(parts)

    def _place(self, absence: Absence) -> str:
        if absence.behind is None:
            return "before the match"
        if absence.before is None:
            return "after the match"
        return f"between {self.elements[absence.behind]} and {self.elements[absence.before]}"


def _shown(names: Sequence[str], states: Sequence[State[Expression]]) -> str:
    width = max(map(len, names))
    lines = []
    for name, state in zip(names, states, strict=True):
        rows = [f"{e.kind.value:<8}-> {names[e.target]:<{width}}  {show(e.label)}" for e in state.edges]
        lines += [f"{name if i == 0 else '':<{width}}  {row}".rstrip() for i, row in enumerate(rows or [""])]
    return "\n".join(lines)


def explain_nfab(plan: Plan) -> str:
    """Returns the NFA^b of a plan as EXPLAIN prints it; for a pattern that is no chain, its automaton with the rules in
    words. Raises QueryError HQ600 if bounds expand too far."""
    found = nfab(plan)
    if found is not None:
        return str(found)
    automaton = replace(compile_plan(plan), ignore=_ignored(plan))
    lines = ["no chain of variables and V+: the general form"]
    if len(automaton.states) <= STATES_MAX:
        lines.append(str(automaton))
    else:
        lines += [f"an automaton of {len(automaton.states):,} states", f"ignore {automaton.ignore}"]
    if plan.within is not None:
        lines.append(f"within {plan.within}, on every edge")
    names = rp.negated(plan.pattern)
    lines += [f"absent ~{rp.Variable(name)} at its place: {show(plan.condition(name))}" for name in names]
    return "\n".join(lines)


def _ignored(plan: Plan) -> str:
    """Returns the rows that any run may ignore, in words."""
    match plan.selection:
        case Selection.STRICT:
            return "none"
        case Selection.PARTITION:
            return "rows of another partition"
        case Selection.SKIP_TILL_NEXT:
            return (
                "rows of another partition, and rows that the run does not wait for: inside a loop that can repeat "
                "a row that stays in it, elsewhere one that may come next"
            )
        case Selection.SKIP_TILL_ANY:
            return "any row"
        case _:
            assert_never(plan.selection)


# ---- step 1: the structure ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Element:
    variable: str
    loop: bool = False
    greedy: bool = True


def _chain(pattern: rp.RowPattern) -> list[_Element | rp.Negation] | None:
    """Returns the elements and negations of a chain in order, or None if the pattern is none."""
    match pattern:
        case rp.Variable(name):
            return [_Element(name)]
        case rp.Negation():
            return [pattern]
        case rp.Empty():
            return []
        case rp.Exclusion(body):
            return _chain(body)  # affects the output, not the matches
        case rp.Sequence(parts):
            found: list[_Element | rp.Negation] = []
            for part in parts:
                inner = _chain(part)
                if inner is None:
                    return None
                found += inner
            return found
        case rp.Repeat(body, at_least, at_most, greedy):
            once = _chain(body)
            if once is None or at_least == 0 or len(once) * at_least > ELEMENTS_MAX:
                return None
            if at_most == at_least:
                return once * at_least
            match once:
                case [_Element(name, loop=False)] if at_most is None:
                    return [*once * (at_least - 1), _Element(name, True, greedy)]
            return None
        case rp.Alternation() | rp.Anchor() | rp.Conjunction():
            return None
        case _:
            assert_never(pattern)


def _names(elements: Sequence[_Element]) -> tuple[str, ...]:
    """Returns the names of elements: `A`, or `A.2` for the second element of a variable."""
    names = []
    for i, element in enumerate(elements):
        same = [j for j, e in enumerate(elements) if e.variable == element.variable]
        names.append(f"{rp.Variable(element.variable)}" + (f".{same.index(i) + 1}" if len(same) > 1 else ""))
    return tuple(names)


def _state_names(elements: Sequence[_Element], names: Sequence[str]) -> tuple[str, ...]:
    """Returns the names of states: a loop `A` is `A[1]` and `A[i]`, and the last one is `F`."""
    of = [[f"{name}[1]", f"{name}[i]"] if e.loop else [name] for e, name in zip(elements, names, strict=True)]
    return (*(name for some in of for name in some), "F")


# ---- all steps ---------------------------------------------------------------------------------------------------


def nfab(plan: Plan) -> NFAb | None:
    """Returns the NFA^b of a plan whose pattern is a chain; None for any other pattern, and for a chain of more than
    ELEMENTS_MAX elements. Cost: small, whatever the plan."""
    chain = _chain(plan.pattern)
    elements = [part for part in chain or [] if isinstance(part, _Element)]
    if not elements or len(elements) > ELEMENTS_MAX:
        return None
    states = _within_at_the_end(plan, _ignoring(plan, _conditions(plan, elements)))
    after = _peeking(_within_everywhere(plan, states))
    names = _names(elements)
    return NFAb(_state_names(elements, names), states, after, _absences(plan, chain or []), names)


def _conditions(plan: Plan, elements: Sequence[_Element]) -> tuple[State[Expression], ...]:
    """Steps 1 and 2: states and edges, and on each edge the conjuncts whose last identifier is bound there.

    A condition of DEFINE belongs to a variable: its conjuncts go to the edges that bind that variable. Those of an
    element after a loop that read only rows of variables before it, the loop's among them, go to the proceed edge.
    """
    same = _same_partition(plan)
    states: list[State[Expression]] = []
    for i, element in enumerate(elements):
        condition = plan.condition(element.variable)
        first = clauses_of(_simplified(condition, elements, i, False))
        if i and elements[i - 1].loop:
            loop = elements[i - 1].variable
            early = [c for c in first if element.variable != loop and _reads_only_before(c, element.variable, loop)]
            take, proceed, *_ = sorted(states[-1].edges, key=lambda e: e.kind is EdgeKind.PROCEED)
            edges = (take, replace(proceed, label=all_of(early)))
            states[-1] = replace(states[-1], edges=edges if elements[i - 1].greedy else edges[::-1])
            first = [c for c in first if c not in early]
        begin = all_of([*(same if i else []), *first])
        at = len(states)
        states.append(State(element.variable, (Edge(EdgeKind.BEGIN, begin, at + 1),), None))
        if not element.loop:
            continue
        further = all_of([*same, *clauses_of(_simplified(condition, elements, i, True))])
        edges = (Edge(EdgeKind.TAKE, further, at + 1), Edge(EdgeKind.PROCEED, TRUE, at + 2))
        states.append(State(element.variable, edges if element.greedy else edges[::-1], None))
    return (*states, State(None, (), 0))


def _ignoring(plan: Plan, states: tuple[State[Expression], ...]) -> tuple[State[Expression], ...]:
    """Step 3: the ignore edge of every state but the start and F."""
    found = [states[0]]
    for i, state in enumerate(states[1:-1], 1):
        found.append(replace(state, edges=(*state.edges, Edge(EdgeKind.IGNORE, _ignore(plan, state), i))))
    return (*found, states[-1])


def _ignore(plan: Plan, state: State[Expression]) -> Expression:
    match plan.selection:
        case Selection.STRICT:
            return FALSE
        case Selection.PARTITION:
            return unless(all_of(_same_partition(plan)))
        case Selection.SKIP_TILL_NEXT:
            binding = state.edge(EdgeKind.TAKE) or state.edge(EdgeKind.BEGIN)
            assert binding is not None
            return unless(binding.label)
        case Selection.SKIP_TILL_ANY:
            return TRUE
        case _:
            assert_never(plan.selection)


def _within_at_the_end(plan: Plan, states: tuple[State[Expression], ...]) -> tuple[State[Expression], ...]:
    """Step 4: WITHIN on the edge into F. The first row of a match lies within any bound."""
    if plan.within is None or len(states) == 2:
        return states
    last = states[-2]
    proceeds = last.edge(EdgeKind.PROCEED) is not None
    bound = _within(plan, plan.within, at_last=proceeds)
    wanted = EdgeKind.PROCEED if proceeds else EdgeKind.BEGIN
    edges = [replace(e, label=all_of([e.label, bound])) if e.kind is wanted else e for e in last.edges]
    return (*states[:-2], replace(last, edges=tuple(edges)), states[-1])


def _within_everywhere(plan: Plan, states: tuple[State[Expression], ...]) -> tuple[State[Expression], ...]:
    """Step 5: WITHIN on every edge that consumes a row, so that a run ends when it can no longer match."""
    if plan.within is None:
        return states
    bound = _within(plan, plan.within)
    # the number of a row is meaningful in its own partition only
    foreign = FALSE if plan.within.rows is None else unless(all_of(_same_partition(plan)))

    def bounded(edge: Edge[Expression]) -> Edge[Expression]:
        match edge.kind:
            case EdgeKind.BEGIN | EdgeKind.TAKE:
                return replace(edge, label=all_of([edge.label, bound]))
            case EdgeKind.IGNORE:
                return replace(edge, label=all_of([edge.label, any_of([foreign, bound])]))
            case EdgeKind.PROCEED:
                return edge
            case _:
                assert_never(edge.kind)

    inner = (replace(s, edges=tuple(map(bounded, s.edges))) for s in states[1:])
    return (states[0], *inner)


def _peeking(states: tuple[State[Expression], ...]) -> tuple[State[Expression], ...]:
    """Step 6: a loop is left only by a row that begins the next element."""

    def peeks(edge: Edge[Expression]) -> Edge[Expression]:
        begin = states[edge.target].edge(EdgeKind.BEGIN)
        if edge.kind is not EdgeKind.PROCEED or begin is None:
            return edge
        return replace(edge, label=all_of([edge.label, begin.label]))

    return tuple(replace(s, edges=tuple(map(peeks, s.edges))) for s in states)


def _absences(plan: Plan, chain: Sequence[_Element | rp.Negation]) -> tuple[Absence, ...]:
    """Returns the negations. Before and after the match a row counts if WITHIN would still hold with it."""
    count = sum(isinstance(part, _Element) for part in chain)
    names = rp.variables(plan.pattern)
    found = []
    passed = 0
    for part in chain:
        if isinstance(part, _Element):
            passed += 1
            continue
        parts = _same_partition(plan)
        if plan.within is not None and passed == 0:
            parts.append(_distance(plan, plan.within, _at(Logical.LAST, _clock(plan), names), _clock(plan)))
        if plan.within is not None and passed == count:
            parts.append(_within(plan, plan.within))
        formula = all_of([*parts, plan.condition(part.name)])
        behind, before = passed - 1 if passed else None, passed if passed < count else None
        found.append(Absence(part.name, behind, before, formula))
    return tuple(found)


# ---- formulas ----------------------------------------------------------------------------------------------------


def _at(which: Logical, column: Column, names: tuple[str, ...] = ()) -> Expression:
    return Navigation(column, names, which, 0, 0, False, column.type)


def _same_partition(plan: Plan) -> list[Expression]:
    """Returns the conditions that the candidate is in the partition of the match; null keys are one partition."""
    return [Call("is_not_distinct", (c, _at(Logical.FIRST, c)), "BOOLEAN") for c in plan.partition_by]


def _clock(plan: Plan) -> Column:
    """Returns the column that WITHIN measures: the time by which the input is ordered, or the number of a row."""
    timed = plan.within is not None and plan.within.interval_us is not None
    return plan.order_by[0].column if timed else ROW_NUMBER


def _within(plan: Plan, within: Within, at_last: bool = False) -> Expression:
    """Returns WITHIN between the first row of the match and the candidate; at_last: and the last row bound."""
    clock = _clock(plan)
    return _distance(plan, within, _at(Logical.LAST, clock) if at_last else clock, _at(Logical.FIRST, clock))


def _distance(plan: Plan, within: Within, later: Expression, earlier: Expression) -> Expression:
    if within.interval_us is not None:
        length = Constant(within.interval_us, "INTERVAL")
        return Call("<=", (Call("-", (later, earlier), "INTERVAL"), length), "BOOLEAN")
    return Call("<", (Call("-", (later, earlier), "BIGINT"), Constant(within.rows, "BIGINT")), "BOOLEAN")


def _reads_only_before(e: Expression, variable: str, loop: str) -> bool:
    """True if `e` reads rows of variables before the candidate's, of the loop among them, and nothing else."""
    read: list[tuple[str, ...]] = []

    def visit(x: Expression) -> bool:
        match x:
            case Constant():
                return True
            case Navigation(variables=names) | Aggregate(variables=names):
                read.append(names)
                return bool(names) and variable not in names
            case Call(_, arguments) | Opaque(_, arguments):
                return all(map(visit, arguments))
            case Column() | Classifier() | MatchNumber():
                return False
            case _:
                assert_never(x)

    return visit(e) and any(loop in names for names in read)


# ---- knowledge of an element's position ----------------------------------------------------------------------------


def _simplified(condition: Expression, elements: Sequence[_Element], at: int, further: bool) -> Expression:
    """Returns the condition of element `at` for its first row (further: of a loop, for its later rows), simplified by
    the exact or least number of rows of each variable there. So `COUNT(A.*) = 1 AND x OR COUNT(A.*) > 1 AND y` is x for
    the first row and y for the others."""

    def rows(names: tuple[str, ...]) -> tuple[int, int | None]:
        """Returns the fewest and most rows of these variables, the candidate included; no names: of all."""
        before = [e for e in elements[:at] if not names or e.variable in names]
        own = not names or elements[at].variable in names
        low = len(before) + own + (own and further)
        return low, None if any(e.loop for e in before) or (own and further) else low

    def of(e: Expression) -> Expression:
        match e:
            case Aggregate("count", None, names) if e.plain:
                low, high = rows(names)
                return Constant(low, e.type) if low == high else e
            case Navigation(_, names, logical, offset) if logical is not None:
                high = rows(names)[1]
                return Constant(None, e.type) if high is not None and offset >= high else e
            case Call(_, arguments):
                return folded(replace(e, arguments=tuple(map(of, arguments))), lambda names: rows(names)[0])
            case Opaque(_, arguments):
                return replace(e, arguments=tuple(map(of, arguments)))
            case _:
                return e

    return of(condition)

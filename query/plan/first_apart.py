"""The first event of a loop apart from the others, in a plan of trends whose conditions ask for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from query.language.ast import Selection
from query.plan import pattern as rp
from query.plan.expression import Call, Column, Expression, Navigation, Opaque, walk
from query.plan.plan import Define, Measure, Plan
from query.plan.trends import asks_whether_first, condition_after


def with_first_apart(plan: Plan) -> Plan:
    """Returns a plan of trends with the same answer in which the first event of a loop has a variable of its own, where
    all that a condition asks is whether it is the first: `count(B.*) = 1 OR v > 5` of B+ keeps the events of a window,
    as every condition between two events does; those of B and of "B+" in `B "B+"*` do not."""
    if plan.selection is Selection.SKIP_TILL_NEXT:  # a loop is not waited for as its rounds are
        return plan
    for define in plan.defines:
        plan = _of_one(plan, define)
    return plan


def _of_one(plan: Plan, define: Define) -> Plan:
    name, condition = define.variable, define.condition
    later = name + "+"
    asks = any(isinstance(e, Call) and asks_whether_first(e, name) is not None for e in walk(condition))
    loops = [loop for loop in _loops(plan.pattern) if name in rp.variables(loop)]
    reads = any(isinstance(e, Navigation) for e in walk(condition))  # another event is read, which has to be kept
    if not asks or reads or len(loops) != 1 or _times(plan.pattern, name) != 1:
        return plan
    (loop,) = loops
    if later in (d.variable for d in plan.defines) or loop.body != rp.Variable(name) or loop.at_most in (0, 1):
        return plan
    more = None if loop.at_most is None else loop.at_most - 1
    pair = rp.Sequence((rp.Variable(name), rp.Repeat(rp.Variable(later), max(0, loop.at_least - 1), more, loop.greedy)))
    apart: rp.RowPattern = pair if loop.at_least else rp.Repeat(pair, 0, 1, loop.greedy)
    both = {name: (name, later)}
    defines: list[Define] = []
    for d in plan.defines:
        if d.variable == name:
            defines.append(Define(name, condition_after(condition, name, "")))
            defines.append(Define(later, condition_after(condition, name, name)))
        else:
            defines.append(Define(d.variable, _renamed(d.condition, both)))
    assert plan.trends is not None
    aggregates = tuple(
        replace(a, variables=tuple(w for v in a.variables for w in both.get(v, (v,)))) for a in plan.trends.aggregates
    )
    measures = tuple(
        Measure(m.name, Column(a.name, a.type)) for m, a in zip(plan.measures, aggregates, strict=True)
    )
    trends = replace(plan.trends, aggregates=aggregates)
    pattern = _replaced(plan.pattern, loop, apart)
    return replace(plan, pattern=pattern, defines=tuple(defines), measures=measures, trends=trends)


def _loops(pattern: rp.RowPattern) -> Iterator[rp.Repeat]:
    """Yields the loops of a pattern."""
    match pattern:
        case rp.Repeat(body):
            yield pattern
            yield from _loops(body)
        case rp.Sequence(parts) | rp.Alternation(parts) | rp.Conjunction(parts):
            for part in parts:
                yield from _loops(part)
        case rp.Exclusion(body):
            yield from _loops(body)


def _times(pattern: rp.RowPattern, name: str) -> int:
    """Returns how often a variable is written in a pattern."""
    match pattern:
        case rp.Variable():
            return pattern.name == name
        case rp.Sequence(parts) | rp.Alternation(parts) | rp.Conjunction(parts):
            return sum(_times(part, name) for part in parts)
        case rp.Repeat(body) | rp.Exclusion(body):
            return _times(body, name)
        case _:
            return 0


def _replaced(pattern: rp.RowPattern, old: rp.RowPattern, new: rp.RowPattern) -> rp.RowPattern:
    """Returns a pattern with another part in place of a part of it."""
    if pattern == old:
        return new
    match pattern:
        case rp.Sequence(parts) | rp.Conjunction(parts):
            return type(pattern)(tuple(_replaced(part, old, new) for part in parts))
        case rp.Alternation(parts):
            return rp.Alternation(tuple(_replaced(part, old, new) for part in parts))
        case rp.Repeat(body) | rp.Exclusion(body):
            return replace(pattern, body=_replaced(body, old, new))
        case _:
            return pattern


def _renamed(e: Expression, both: Mapping[str, tuple[str, ...]]) -> Expression:
    """Returns a condition that reads several variables in place of one."""
    match e:
        case Navigation(variables=names):
            return replace(e, variables=tuple(w for v in names for w in both.get(v, (v,))))
        case Call(arguments=arguments) | Opaque(arguments=arguments):
            return replace(e, arguments=tuple(_renamed(a, both) for a in arguments))
        case _:
            return e

"""Measures from what a run carries: registers with counts, and with the positions of the rows that measures read.

Where that is all they read, the rows of a match need not be kept while it grows (the V vector of [SASE] section 5.2.2,
for RETURN as for WHERE): a match is its registers, its first row and its last one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from matching.program.lanes import Lane
from matching.program.program import Program
from matching.program.registers import REGISTERS_MAX, Register, RegisterKind, register_of
from query.language.ast import RowsPerMatch
from query.plan.expression import (
    Aggregate,
    Classifier,
    Column,
    Expression,
    Logical,
    Navigation,
    walk,
)
from query.plan.plan import Plan

#: In the place of a register: the first row of the match, and its last one.
FIRST_ROW = -1
LAST_ROW = -2
#: Labels that have a bit each.
LABELS_MAX = 62
#: The feature that is no expression over the row: its position in the row store.
POSITION = Column("position of the row", "BIGINT")


@dataclass(frozen=True, slots=True)
class Carried:
    """A program with more registers. program: one that also keeps the values that measures read, in the registers
    `carries`. places: for each of them (an Aggregate, or `row_meant` of a navigation) its index in `carries`, FIRST_ROW
    or LAST_ROW."""

    program: Program
    places: tuple[tuple[object, int], ...]


@dataclass(frozen=True, slots=True)
class Picked:
    """The rows of a match that matching.engines.run_starts notes for measures. picks: bits of labels, and the kind, as
    of matching.kernels.starts. places: for each thing that measures read its index among these, counted from 1 (0: the
    number of rows), FIRST_ROW or LAST_ROW."""

    picks: tuple[tuple[int, int], ...]
    places: tuple[tuple[object, int], ...]


def pick(plan: Plan, program: Program, kinds: tuple[int, int, int]) -> Picked | None:
    """Returns what is noted of each match for measures. None if they need its rows: see `carry`. kinds: of the last
    and the first row of some labels, and of their number."""
    last_of, first_of, count_of = kinds
    expressions = [e for m in plan.measures for e in walk(m.expression)]
    if plan.rows is not RowsPerMatch.ONE or program.extras.timeouts or program.accept[0]:
        return None
    if not all(map(_is_carried, expressions)) or len(program.variables) > LABELS_MAX:
        return None
    picks: list[tuple[int, int]] = []
    places: dict[object, int] = {}
    for e in expressions:
        match e:
            case Navigation() if e.logical_offset:
                return None
            case Navigation():
                key, kind = row_meant(e), first_of if e.logical is Logical.FIRST else last_of
                at = FIRST_ROW if kind == first_of else LAST_ROW
            case Aggregate():
                key, kind, at = e, count_of, 0
            case _:
                continue
        if e.variables:
            entry = sum(1 << v for v, name in enumerate(program.variables) if name in e.variables), kind
            picks += [entry] if entry not in picks else []
            at = 1 + picks.index(entry)
        places[key] = at
    return Picked(tuple(picks), tuple(places.items()))


def row_meant(e: Navigation) -> object:
    """Returns the parts of a navigation that determine its row."""
    return e.variables, e.logical, e.logical_offset, e.final, e.physical_offset


@dataclass(frozen=True, slots=True)
class Chain:
    """Matches that all have a row for each of `variables`. places: for each thing that measures read, of a navigation
    its place among them (-1: none), of a count its value."""

    variables: tuple[str, ...]
    places: tuple[tuple[object, int], ...]


def chain_of(plan: Plan, program: Program) -> Chain | None:
    """Returns the matches of a plan as a chain; None unless they have the same variables and measures read only counts
    and single rows."""
    expressions = [e for m in plan.measures for e in walk(m.expression)]
    if plan.rows is not RowsPerMatch.ONE or program.extras.timeouts or not all(map(_is_carried, expressions)):
        return None
    variables: list[str] = []
    state = 0
    while not program.accept[state]:
        edges = range(program.edge_start[state], program.edge_start[state + 1])
        if len(edges) != 1 or len(variables) == len(program.accept):
            return None
        variables.append(program.variables[program.edge_variable[edges[0]]])
        state = program.edge_target[edges[0]]
    if program.edge_start[state] < program.edge_start[state + 1]:
        return None
    places: dict[object, int] = {}
    for e in expressions:
        if isinstance(e, Navigation):
            at = [i for i, v in enumerate(variables) if not e.variables or v in e.variables]
            at = at if e.logical is Logical.FIRST else at[::-1]
            places[row_meant(e)] = at[e.logical_offset] if e.logical_offset < len(at) else -1
        elif isinstance(e, Aggregate):
            places[e] = sum(not e.variables or v in e.variables for v in variables)
    return Chain(tuple(variables), tuple(places.items()))


def carry(plan: Plan, program: Program) -> Carried | None:
    """Returns the registers in which runs carry the values that measures read. None if measures need the rows of a
    match: ALL ROWS PER MATCH, other aggregates than counts of rows, CLASSIFIER, PREV and NEXT. Cost: linear in the
    measures and edges."""
    expressions = [e for m in plan.measures for e in walk(m.expression)]
    if plan.rows is not RowsPerMatch.ONE or program.extras.timeouts or program.absence.behind or program.accept[0]:
        return None
    if not all(map(_is_carried, expressions)) or program.kept:
        return None
    if any(isinstance(e, Navigation) and e.logical_offset >= REGISTERS_MAX for e in expressions):
        return None
    registers = list(program.registers)
    places: dict[object, int] = {}
    held: list[int] = []
    for e in expressions:
        match e:
            case Navigation():
                key, at = row_meant(e), _row(e, program, registers)
            case Aggregate():
                key, at = e, register_of(registers, RegisterKind.COUNT_ROWS, -1, e.variables, 0, Lane(False))
            case _:
                continue
        if at >= 0:
            held += [at] if at not in held else []
            at = held.index(at)
        places[key] = at
    if len(registers) > REGISTERS_MAX:
        return None
    features = *program.features, (POSITION, Lane(False))
    changed = replace(program, registers=tuple(registers), carries=tuple(held), features=features)
    return Carried(changed, tuple(places.items()))


def _is_carried(e: Expression) -> bool:
    match e:
        case Classifier():
            return False
        case Navigation():
            return e.logical is not None and e.physical_offset == 0
        case Aggregate():
            return e.function == "count" and not (e.argument or e.where or e.distinct or e.more or e.order)
        case _:
            return True


def _row(e: Navigation, program: Program, registers: list[Register]) -> int:
    """Returns the register with the position of a navigation's row; FIRST_ROW, LAST_ROW."""
    edges = range(len(program.edge_target))
    begins = {program.edge_variable[edge] for edge in range(program.edge_start[0], program.edge_start[1])}
    ends = {program.edge_variable[edge] for edge in edges if program.accept[program.edge_target[edge]]}
    if e.logical_offset == 0:
        for labels, logical, place in ((begins, Logical.FIRST, FIRST_ROW), (ends, Logical.LAST, LAST_ROW)):
            if e.logical is logical and (not e.variables or {program.variables[v] for v in labels} <= {*e.variables}):
                return place
    kind = RegisterKind.FIRST if e.logical is Logical.FIRST else RegisterKind.LAST
    return register_of(registers, kind, len(program.features), e.variables, e.logical_offset, Lane(False))

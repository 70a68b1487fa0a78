"""Conditions that compare a value of the row with one of the match for equality.

A row that a negation after a match may forbid is then tested for the matches that wait with its value
(matching.kernels.waiting), and a row that a step may take for the runs that wait for its value
(matching.kernels.by_value), not for all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from matching.program.opcodes import OPCODES, REFUSED, Compute, Jump, OpCode, Push
from matching.program.program import Ignore, Program
from matching.program.registers import Accumulate, RegisterKind

_Code = tuple[tuple[int, int, int], ...]
_KEPT = (RegisterKind.LAST, RegisterKind.FIRST)
#: Operations that have a value whatever they take, of the row and of values that the run keeps.
_SAFE = frozenset(
    int(op) for op in OPCODES
    if isinstance(op.does, Push | Jump) or (
        isinstance(op.does, Compute) and not op.does.fails and "low" not in op.does.operands
    )
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Equality:
    """label: of the row that is negated or taken; feature: of its row; register: of the match. refuses: the registers
    that say whether the condition fails for a match. nulls: a null is equal to a null."""

    label: int
    feature: int
    register: int
    refuses: tuple[int, ...] = ()
    nulls: bool = False


def equalities_behind(program: Program) -> tuple[Equality, ...]:
    """Returns an equality for each negation after a match whose condition reads it; none unless all of them have one
    and their conditions can be computed for every row and match."""
    found = _of_all(program, [label for label in dict.fromkeys(program.absence.behind) if program.code[label]])
    return () if any(equality.refuses or equality.nulls for equality in found) else found


def equalities_of_steps(program: Program) -> tuple[Equality, ...]:
    """Returns an equality for each label that a row behind the first one is taken by, under SKIP TILL NEXT MATCH; none
    unless all of them have one and their conditions can be computed for every row and match, or if rows are negated."""
    absence = program.absence
    if program.ignore is not Ignore.NOT_WAITED_FOR or program.walks:
        return ()
    if absence.before or absence.behind or any(absence.gaps):
        return ()
    return _of_all(program, dict.fromkeys(program.edge_variable[program.edge_start[1] :]))


def _of_all(program: Program, labels: Iterable[int]) -> tuple[Equality, ...]:
    """Returns an equality of each label; none if one has none."""
    found = [_of_one(program, label) for label in labels]
    return tuple(equality for equality in found if equality is not None) if None not in found else ()


def _of_one(program: Program, label: int) -> Equality | None:
    code, variable = program.code[label], program.variables[label]
    if not code:
        return None
    for register in program.registers:
        of_row = not register.variables or variable in register.variables
        if of_row and isinstance(register.kind.does, Accumulate) and register.kind.does.fails:
            return None
    parts = list(_conjuncts(code, 0, len(code)))
    equality: Equality | None = None
    for part in parts:
        found = _of_part(label, part) if equality is None else None
        if found is not None and _is_kept(program, found.register, variable):
            equality = found
        elif any(op not in _SAFE and op != OpCode.REFUSE for op, _, _ in part):
            return None
    read = [code[at - 1] for at, (op, _, _) in enumerate(code) if op == OpCode.REFUSE]
    if equality is None or not all(op == OpCode.REGISTER and _is_kept(program, r, variable) for op, r, _ in read):
        return None
    return replace(equality, refuses=tuple(dict.fromkeys(r for _, r, _ in read)))


def _is_kept(program: Program, register: int, variable: str) -> bool:
    """True for a value of a row that was taken before one of the variable."""
    of = program.registers[register]
    return of.kind in _KEPT and bool(of.variables) and variable not in of.variables


def _of_part(label: int, part: _Code) -> Equality | None:
    """Returns the equality that a part of a condition is."""
    ops = [op for op, _, _ in part]
    compared = ops[:3] if ops[-1] == OpCode.NOT else ops
    if sorted(compared[:2]) == [OpCode.FEATURE, OpCode.REGISTER] and len(compared) == 3:
        feature, register = (next(a for op, a, _ in part if op == of) for of in (OpCode.FEATURE, OpCode.REGISTER))
        if ops[2:] in ([OpCode.EQ], [OpCode.FEQ]):
            return Equality(label, feature, register)
        if ops[2:] in ([OpCode.DISTINCT, OpCode.NOT], [OpCode.FDISTINCT, OpCode.NOT]):
            return Equality(label, feature, register, nulls=True)
    for at, feature in ((0, len(part) - 2), (1, 0)):
        if ops[at : at + 6] == REFUSED and ops[feature] == OpCode.FEATURE and ops[7:] in ([OpCode.EQ], [OpCode.FEQ]):
            return Equality(label, part[feature][1], part[at + 5][1])
    return None


def _conjuncts(code: _Code, begin: int, end: int) -> Iterator[_Code]:
    """Yields the instructions of each part of a conjunction."""
    if code[end - 1][0] == OpCode.AND:
        for at in range(begin, end):
            if code[at][:2] == (OpCode.JUMP_IF_FALSE, end):
                yield from _conjuncts(code, begin, at)
                yield from _conjuncts(code, at + 1, end - 1)
                return
    yield code[begin:end]

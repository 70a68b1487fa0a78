"""Which of two runs in one state cannot match where the other does not: it is dominated, and may go.

AFTER MATCH SKIP PAST LAST ROW cuts whatever is less preferred than a run that matches, and every start has one match
at most. So a less preferred run in the same state, in other modes and under WITHIN of the same start, is of no use if
it passes no condition that the other one fails: of `p > 2 * FIRST(p)`, one with a larger FIRST(p). Conditions are read
for this as far as they compare: they then get truer as the value of a register grows, or as it falls. All other values
of the match so far must be equal in both.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from matching.program.live import count_caps, live_registers
from matching.program.opcodes import OPCODES, OpCode
from matching.program.program import Merge, Mode, Program
from matching.program.registers import RegisterKind

#: Kinds of registers whose order between two runs stays when both take the same row.
_IN_ORDER = (RegisterKind.FIRST, RegisterKind.LAST, RegisterKind.MIN, RegisterKind.MAX)
_REFILLS = ((RegisterKind.MIN, 1), (RegisterKind.MAX, -1))
_LESS = (OpCode.LT, OpCode.LE, OpCode.FLT, OpCode.FLE)
_GREATER = (OpCode.GT, OpCode.GE, OpCode.FGT, OpCode.FGE)
_EQUALITY = (OpCode.EQ, OpCode.NE, OpCode.FEQ, OpCode.FNE)


@dataclass(frozen=True, slots=True)
class Dominance:
    """live: per state, the registers on which the future of a run depends. better: per register 1 if conditions get
    truer as it grows, -1 if as it falls, 0 if it has to be equal. refills: whether a null may become better than any
    value: a least one, of which conditions get truer as it grows, begins with the next row; or a largest one likewise.
    caps: per register, the number from which on its values are equal, -1: none. of_start: only runs of one start
    dominate each other."""

    live: tuple[frozenset[int], ...]
    better: tuple[int, ...]
    refills: tuple[bool, ...]
    caps: tuple[int, ...]
    of_start: bool


@dataclass(frozen=True, slots=True)
class _Value:
    """A value of the stack: how it goes with registers (1 or -1), a constant, whether it is a register as it is, and
    whether it is of the row alone."""

    goes: tuple[tuple[int, int], ...] = ()
    constant: float | None = None
    plain: bool = False
    of_row: bool = False


def dominance(program: Program) -> Dominance | None:
    """Returns by what runs of a program dominate others; None: none can, or that is not known."""
    beside = program.extras.unmatched or program.extras.timeouts or program.absent
    by_rows = program.kept or program.walks or program.asked
    within = program.within_us is not None or program.within_rows is not None
    other = program.ignore or program.strict or program.number >= 0 or program.carries is not None
    of_paths = program.mode is not Mode.ALL and program.merge is Merge.PATH
    if not of_paths or beside or by_rows or other:
        return None
    better: dict[int, int] = {}
    for code in program.code:
        found = _goes(program, code)
        for op, r, _ in code:
            if op != OpCode.REGISTER:
                continue
            way = 0 if found is None or program.registers[r].kind not in _IN_ORDER else found.get(r, 0)
            better[r] = way if better.get(r, way) == way else 0
    ways = tuple(better.get(r, 0) for r in range(len(program.registers)))
    refills = tuple((r.kind, way) in _REFILLS for r, way in zip(program.registers, ways, strict=True))
    of_start = within or program.mode is not Mode.PAST_LAST_ROW
    return Dominance(live_registers(program), ways, refills, count_caps(program), of_start)


def _goes(program: Program, code: tuple[tuple[int, int, int], ...]) -> dict[int, int] | None:
    """Returns how the truth of a condition goes with the registers that it reads; None if that is not known, or if it
    may be an error."""
    stack: list[_Value] = []
    for op, a, _ in code:
        match op:
            case OpCode.FEATURE:
                stack.append(_Value(of_row=True))
            case OpCode.REGISTER:
                stack.append(_Value(((a, 1),), plain=True))
            case OpCode.CONSTANT:
                stack.append(_Value(constant=float(program.constants[a])))
            case OpCode.JUMP_IF_FALSE:  # of AND
                continue
            case OpCode.TO_FLOAT if stack:
                continue
            case _ if len(stack) >= 2:
                y, x = stack.pop(), stack.pop()
                found = _of_two(OPCODES[op], x, y)
                if found is None:
                    return None
                stack.append(found)
            case _:
                return None
    return dict(stack[0].goes) if len(stack) == 1 else None


def _of_two(op: OpCode, x: _Value, y: _Value) -> _Value | None:
    """Returns the value of an operation. A value of the row is only added to a register as it is: so no sum of infinite
    numbers depends on the run, if registers are finite."""
    row = not x.goes and not y.goes
    if op is OpCode.AND:
        both = dict(x.goes)
        if any(both.setdefault(r, way) != way for r, way in y.goes):
            return None
        return _Value(tuple(both.items()))
    if op in _LESS or op in _GREATER:
        sides = (_turned(x), y) if op in _LESS else (x, _turned(y))
        both = dict(sides[0].goes)
        if any(both.setdefault(r, way) != way for r, way in sides[1].goes):
            return None
        return _Value(tuple(both.items()))
    if row and (op in _EQUALITY or op in (OpCode.FADD, OpCode.FSUB, OpCode.FMUL, OpCode.FDIV)):
        return _Value(of_row=True)
    if op in (OpCode.FADD, OpCode.FSUB):
        alone, other = (x, y) if x.goes else (y, x)
        finite = other.constant is not None and math.isfinite(other.constant)
        if other.goes or not (finite or (other.of_row and alone.plain)):
            return None
        return _Value((x if x.goes else y if op is OpCode.FADD else _turned(y)).goes)
    if op is OpCode.FMUL:
        alone, other = (x, y) if x.goes else (y, x)
        return _scaled(alone, other.constant)
    if op is OpCode.FDIV and x.goes:
        return _scaled(x, y.constant)
    return None


def _turned(value: _Value) -> _Value:
    return _Value(tuple((r, -way) for r, way in value.goes))


def _scaled(value: _Value, factor: float | None) -> _Value | None:
    if factor is None or not math.isfinite(factor) or factor == 0:
        return None
    return _Value(value.goes) if factor > 0 else _turned(_Value(value.goes))

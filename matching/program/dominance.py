"""Which of two runs in one state cannot match where the other does not: it is dominated, and may go.

AFTER MATCH SKIP PAST LAST ROW cuts whatever is less preferred than a run that matches, and every start has one match
at most. So a less preferred run in the same state, in other modes and under WITHIN of the same start, is of no use if
it passes no condition that the other one fails: of `p > 2 * FIRST(p)`, one with a larger FIRST(p). Conditions are read
for this as far as they compare: they then get truer as the value of a register grows, or as it falls. All other values
of the match so far must be equal in both, also those that must grow for one condition and fall for another. An error is
no match: of `v > FIRST(v) + 9` with an INTEGER v, a run of which the sum would overflow stays, whatever the others are.
Of `v - FIRST(v) > 9` that depends on the rows to come: a run stays unless its value is within half of the type's range,
and the runs that have gone are needed again if a row comes whose value is not. A ratio to a register,
`p / FIRST(p) > 1.05`, falls as that grows where both are positive, and of one that is not positive the condition is
known: it is what it is of 0.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

from matching.program.lanes import Lane
from matching.program.live import count_caps, live_registers
from matching.program.opcodes import OPCODES, REFUSED, Compute, OpCode
from matching.program.program import Merge, Mode, Program
from matching.program.registers import RegisterKind

#: Kinds of registers whose order between two runs stays when both take the same row.
_IN_ORDER = (
    RegisterKind.FIRST, RegisterKind.LAST, RegisterKind.MIN, RegisterKind.MAX, RegisterKind.COUNT_ROWS,
    RegisterKind.COUNT_VALUES,
)  # fmt: skip
_LESS = (OpCode.LT, OpCode.LE, OpCode.FLT, OpCode.FLE)
_GREATER = (OpCode.GT, OpCode.GE, OpCode.FGT, OpCode.FGE)
_COMPUTED = {OpCode.ADD: operator.add, OpCode.SUB: operator.sub, OpCode.MUL: operator.mul}
_FLOATS = {
    OpCode.FADD: operator.add, OpCode.FSUB: operator.sub, OpCode.FMUL: operator.mul, OpCode.FDIV: operator.truediv,
}  # fmt: skip
_COMPARED = {OpCode.FLT: operator.lt, OpCode.FLE: operator.le, OpCode.FGT: operator.gt, OpCode.FGE: operator.ge}
#: A double below it plus one that is finite is finite, or that of the row alone is not.
_LARGE = 1e200
_SECONDS = [
    OpCode.CONSTANT, OpCode.IDIV, OpCode.CONSTANT, OpCode.MUL, OpCode.TO_FLOAT, OpCode.CONSTANT, OpCode.MOD,
    OpCode.TO_FLOAT,
]  # fmt: skip
_ALL, _NONE = (-(1 << 63), (1 << 63) - 1), (1, 0)
_EQUALITY = (OpCode.EQ, OpCode.NE, OpCode.FEQ, OpCode.FNE)


@dataclass(frozen=True, slots=True)
class Dominance:
    """live: per state, the registers on which the future of a run depends. better: per register 1 if conditions get
    truer as it grows, -1 if as it falls, 0 if it has to be equal. caps: per register, the number from which on its
    values are equal, -1: none. of_start: only runs of one start dominate each other. safe: per register, the least and
    the largest value with which no condition overflows. positive: per register, whether that is known of positive
    values only. rows: all this holds of rows of which these features are at least and at most these numbers: (feature,
    least, largest)."""

    live: tuple[frozenset[int], ...]
    better: tuple[int, ...]
    caps: tuple[int, ...]
    of_start: bool
    safe: tuple[tuple[int, int], ...]
    positive: tuple[bool, ...]
    rows: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class _Line:
    """An integer factor * x + more of the value x of a register."""

    register: int
    factor: int
    more: int


@dataclass(frozen=True, slots=True)
class _Value:
    """A value of the stack: how it goes with registers (1 or -1; 0: not known), a constant, whether it is a register as
    it is, whether it is of the row alone, and then the feature that it is; of an integer its bounds, and how it is
    computed of one register; the register of which it is a positive multiple; of what is computed of a ratio to a
    register, its value if that ratio is 0; of a double the largest size that it may have."""

    goes: tuple[tuple[int, int], ...] = ()
    constant: float | int | None = None
    plain: bool = False
    of_row: bool = False
    feature: int | None = None
    bounds: tuple[int, int] | None = None
    line: _Line | None = None
    multiple: int | None = None
    of_zero: float | None = None
    most: float = math.inf


@dataclass(slots=True)
class _Needs:
    """The values for which conditions are ordered. safe: by register, the least and the largest one with which no
    condition overflows; rows: likewise by feature. positive: the registers that must be above 0."""

    safe: dict[int, tuple[int, int]]
    rows: dict[int, tuple[int, int]]
    positive: set[int]


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
    needs = _Needs({}, {}, set())
    for code in program.code:
        found = _goes(program, code, needs)
        for op, r, _ in code:
            if op != OpCode.REGISTER:
                continue
            way = 0 if found is None or program.registers[r].kind not in _IN_ORDER else found.get(r, 0)
            better[r] = way if better.get(r, way) == way else 0
    better |= dict.fromkeys(_read_by_others(program), 0)
    # of a count that grows until it overflows, the one of the other run may not yet
    better |= {r: 0 for r in needs.safe if program.registers[r].kind.counts and needs.safe[r] != _ALL}
    ways = tuple(better.get(r, 0) for r in range(len(program.registers)))
    of_start = within or program.mode is not Mode.PAST_LAST_ROW
    ranges = [needs.safe.get(r, _ALL) for r in range(len(program.registers))]
    positive = tuple(r in needs.positive for r in range(len(program.registers)))
    return Dominance(
        live_registers(program), ways, count_caps(program), of_start,
        tuple(at if at[0] <= at[1] else _NONE for at in ranges), positive,
        tuple((f, low, high) for f, (low, high) in sorted(needs.rows.items())),
    )  # fmt: skip


def _read_by_others(program: Program) -> set[int]:
    """Returns the registers from which a row makes the values of others, as LAST(v, 1) of LAST(v)."""
    found: set[int] = set()
    for register in program.registers:
        kind = register.kind
        if kind.reads_link or kind.beside:
            found.add(register.link)
        if kind.reads_other:
            found.add(register.depth)
    return found


def _goes(program: Program, code: tuple[tuple[int, int, int], ...], needs: _Needs) -> dict[int, int] | None:
    """Returns how the truth of a condition goes with the registers that it reads; None if that is not known of any.
    needs: changed."""
    stack: list[_Value] = []
    tops: list[_Value] = []  # of the stack behind each instruction
    same: set[int] = set()  # registers that say whether a value is an error
    for at, (op, a, b) in enumerate(code):
        if at:
            tops.append(stack[-1] if stack else _Value())
        does = OPCODES[op].does
        match op:
            case OpCode.REFUSE if _is_refused(code[at - 1 : at + 5], at):
                same |= {r for r, _ in stack[-1].goes}
                stack.pop()
            case OpCode.POP_JUMP_UNLESS_TRUE | OpCode.NULL | OpCode.JUMP if same:
                if not any(_is_refused(code[at - n - 1 : at - n + 5], at - n) for n in (1, 2, 3)):
                    return None
            case OpCode.FEATURE:
                stack.append(_Value(of_row=True, feature=a, bounds=_bounds(program.features[a][1])))
            case OpCode.REGISTER:
                lane = program.registers[a].lane
                line = None if lane.floating else _Line(a, 1, 0)
                stack.append(_Value(((a, 1),), plain=True, bounds=_bounds(lane), line=line, multiple=a))
            case OpCode.CONSTANT:
                number = program.constants[a]
                bounds = (number, number) if isinstance(number, int) else None
                stack.append(_Value(constant=number, bounds=bounds))
            case OpCode.JUMP_IF_FALSE:  # of AND
                continue
            case OpCode.TO_FLOAT:
                sizes = map(abs, stack[-1].bounds or (math.inf,))
                stack[-1] = replace(stack[-1], most=float(max(sizes)))
            case OpCode.FLOOR | OpCode.CEIL | OpCode.TRUNC | OpCode.SHRINK:
                value = stack.pop()  # of a larger number the result is no smaller one
                stack.append(_Value(value.goes, of_row=value.of_row, bounds=value.bounds))
            case _ if isinstance(does, Compute):
                taken = [stack.pop() for _ in does.takes]
                found = None
                if op in _COMPUTED:
                    limits = int(program.constants[a]), int(program.constants[b])
                    found = _of_integers(OPCODES[op], taken[1], taken[0], limits, needs)
                elif op == OpCode.FADD and (whole := _end_of_interval(program, code, at)) is not None:
                    found = _Value(tops[whole].goes)  # of a longer interval the seconds are no fewer
                elif len(taken) == 2:
                    found = _of_two(program, OPCODES[op], taken[1], taken[0], needs.positive)
                stack.append(_unknown(taken) if found is None else found)
            case _:
                return None
    return dict(stack[0].goes) | dict.fromkeys(same, 0) if stack else {}


def _is_refused(code: Sequence[tuple[int, int, int]], at: int) -> bool:
    """True for `CASE WHEN refuse(r) THEN NULL ELSE s END` of two registers, of which `at` is the second instruction."""
    ops = [op for op, _, _ in code]
    jumps = [a for op, a, _ in code if op in (OpCode.POP_JUMP_UNLESS_TRUE, OpCode.JUMP)]
    return ops == REFUSED and jumps == [at + 4, at + 5]


def _end_of_interval(program: Program, code: tuple[tuple[int, int, int], ...], at: int) -> int | None:
    """Returns the last instruction of u, if `at` ends the seconds of u microseconds, as DuckDB adds them up:
    (u // day * seconds) + (u % day / 1e6)."""
    for length in range(1, (at - 8) // 2 + 1):
        first, second = at - 8 - 2 * length, at - 3 - length
        days, rest = code[first + length : second], code[at - 3 : at]
        if code[first : first + length] != code[second : second + length]:
            continue
        ops = [op for op, _, _ in (*days, *rest)]
        if ops == _SECONDS and program.constants[days[0][1]] == program.constants[rest[0][1]]:
            places = days[0][1], days[2][1], days[4][1], rest[2][1]
            day, whole, one, parts = (program.constants[i] for i in places)
            return first + length - 1 if 0 < day == whole / one * parts else None
    return None


def _unknown(values: list[_Value]) -> _Value:
    """Returns what is computed of values in a way that has no order: both runs have it if their registers are equal."""
    registers = {r for value in values for r, _ in value.goes}
    return _Value(tuple((r, 0) for r in registers), of_row=not registers)


def _bounds(lane: Lane) -> tuple[int, int] | None:
    return None if lane.floating else (lane.low, lane.high)


def _of_integers(op: OpCode, x: _Value, y: _Value, limits: tuple[int, int], needs: _Needs) -> _Value | None:
    """Returns the result of an operation on integers, which is an error outside limits: such values of its one register
    are not safe. With a value of the row or another register it must be within them whatever these are; or a feature
    and a register must be within half of them."""
    if x.bounds is None or y.bounds is None:
        return None
    ends = _ends(op, x.bounds, y.bounds)
    fits = limits[0] <= ends[0] and ends[1] <= limits[1]
    line = _line(op, x, y)
    if line is not None:
        least, most = _ALL if fits else _within(line, *limits)
        _narrow(needs.safe, line.register, least, most)
        bounds = max(ends[0], limits[0]), min(ends[1], limits[1])
        return _Value(((line.register, 1 if line.factor > 0 else -1),), bounds=bounds, line=line)
    if op is OpCode.MUL:
        return None
    if not fits:
        half = -(-limits[0] // 2), limits[1] // 2
        line, feature = (x.line, y.feature) if x.line is not None else (y.line, x.feature)
        ends = _ends(op, half, half)
        if line is None or feature is None or ends[0] < limits[0] or limits[1] < ends[1]:
            return None
        _narrow(needs.safe, line.register, *_within(line, *half))
        _narrow(needs.rows, feature, *half)
    goes = _both(x.goes, y.goes if op is OpCode.ADD else _turned(y).goes)
    return _Value(goes, of_row=not goes, bounds=ends)


def _ends(op: OpCode, x: tuple[int, int], y: tuple[int, int]) -> tuple[int, int]:
    ends = [_COMPUTED[op](i, j) for i in x for j in y]
    return min(ends), max(ends)


def _narrow(ranges: dict[int, tuple[int, int]], of: int, least: int, most: int) -> None:
    low, high = ranges.get(of, _ALL)
    ranges[of] = max(low, least), min(high, most)


def _both(goes: tuple[tuple[int, int], ...], also: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Returns how what grows with two values goes with registers."""
    both = dict(goes)
    for r, way in also:
        both[r] = way if both.get(r, way) == way else 0
    return tuple(both.items())


def _line(op: OpCode, x: _Value, y: _Value) -> _Line | None:
    """Returns the result of an operation on integers, a register's and a constant; None for others."""
    line, number = (x.line, y.constant) if x.line is not None else (y.line, x.constant)
    if line is None or not isinstance(number, int):
        return None
    if op is OpCode.MUL:
        return _Line(line.register, line.factor * number, line.more * number) if number else None
    if op is OpCode.ADD:
        return _Line(line.register, line.factor, line.more + number)
    if x.line is not None:
        return _Line(line.register, line.factor, line.more - number)
    return _Line(line.register, -line.factor, number - line.more)


def _within(line: _Line, low: int, high: int) -> tuple[int, int]:
    """Returns the least and the largest value of its register with which a line is within [low, high]."""
    ends = (low - line.more, high - line.more)
    if line.factor < 0:
        return -(-ends[1] // line.factor), ends[0] // line.factor
    return -(-ends[0] // line.factor), ends[1] // line.factor


def _of_two(program: Program, op: OpCode, x: _Value, y: _Value, positive: set[int]) -> _Value | None:
    """Returns the value of an operation. A value of the row is only added to a register as it is, or to what is finite:
    so no sum of infinite numbers depends on the run, if registers are finite."""
    row = not x.goes and not y.goes
    if op is OpCode.AND or op in _LESS or op in _GREATER:
        goes = _both((_turned(x) if op in _LESS else x).goes, (_turned(y) if op in _GREATER else y).goes)
        known = x.of_zero is None and y.of_zero is None
        return _Value(goes) if known or _is_of_zero(op, x, y, goes) else None
    if row and (op in _EQUALITY or op in _FLOATS):
        return _Value(of_row=True)
    if op not in _FLOATS:
        return None
    if op is OpCode.FDIV and y.multiple is not None and x.goes in ((), ((y.multiple, -1),)) and x.of_zero is None:
        if program.registers[y.multiple].lane.floating and not y.plain:
            return None  # a multiple of the least double may be 0
        positive.add(y.multiple)
        return _Value(((y.multiple, -1),), of_zero=0.0)
    alone, other = (x, y) if x.goes else (y, x)
    if other.goes or (op is OpCode.FDIV and not x.goes):
        return None
    if other.constant is None or not math.isfinite(other.constant):
        sums = op in (OpCode.FADD, OpCode.FSUB) and other.of_row and (alone.plain or alone.most < _LARGE)
        return _Value((x if x.goes else y if op is OpCode.FADD else _turned(y)).goes) if sums else None
    number, multiple = float(other.constant), None
    if op in (OpCode.FADD, OpCode.FSUB):
        falls, most = op is OpCode.FSUB and not x.goes, alone.most + abs(number)
    elif number == 0:
        return None
    else:
        falls, multiple = number < 0, alone.multiple if 1e-30 < number < 1e30 else None
        most = alone.most * abs(number) if op is OpCode.FMUL else alone.most / abs(number)
    of_zero = None
    if alone.of_zero is not None:
        of_zero = _FLOATS[op](*(alone.of_zero if v is alone else number for v in (x, y)))
    return _Value((_turned(alone) if falls else alone).goes, multiple=multiple, of_zero=of_zero, most=most)


def _is_of_zero(op: OpCode, x: _Value, y: _Value, goes: tuple[tuple[int, int], ...]) -> bool:
    """True if a comparison of a ratio with a constant is, of ratios below 0, what it is of 0: false if it gets truer as
    the ratio grows, which falls with its register, else true."""
    left, right = (v.constant if v.of_zero is None else v.of_zero for v in (x, y))
    if op not in _COMPARED or left is None or right is None or len(goes) != 1:
        return False
    return bool(_COMPARED[op](left, right)) == (goes[0][1] > 0)


def _turned(value: _Value) -> _Value:
    return _Value(tuple((r, -way) for r, way in value.goes))

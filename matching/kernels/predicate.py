"""Bytecode of run-dependent conditions, and the registers they read (OpCode, Register in matching.program.program).

What stands below `holds` is how the kernels ask; in a kernel written out for a program (matching.specialise) code made
for it takes its place."""

from __future__ import annotations

import numpy as np

from matching.kernels.integers import add_overflows, mul_overflows, sub_overflows
from matching.kernels.jit import inlined
from matching.program.program import OpCode, RegisterKind

# numba freezes plain integers; an IntEnum member would be looked up at run time
COUNT_ROWS = int(RegisterKind.COUNT_ROWS)
COUNT_VALUES = int(RegisterKind.COUNT_VALUES)
SUM = int(RegisterKind.SUM)
MIN = int(RegisterKind.MIN)
MAX = int(RegisterKind.MAX)
LAST = int(RegisterKind.LAST)
FIRST = int(RegisterKind.FIRST)
FEATURE = int(OpCode.FEATURE)
REGISTER = int(OpCode.REGISTER)
CONSTANT = int(OpCode.CONSTANT)
NULL = int(OpCode.NULL)
ADD = int(OpCode.ADD)
SUB = int(OpCode.SUB)
MUL = int(OpCode.MUL)
NEG = int(OpCode.NEG)
ABS = int(OpCode.ABS)
IDIV = int(OpCode.IDIV)
MOD = int(OpCode.MOD)
FADD = int(OpCode.FADD)
FSUB = int(OpCode.FSUB)
FMUL = int(OpCode.FMUL)
FDIV = int(OpCode.FDIV)
FNEG = int(OpCode.FNEG)
FABS = int(OpCode.FABS)
TO_FLOAT = int(OpCode.TO_FLOAT)
RESCALE = int(OpCode.RESCALE)
EQ = int(OpCode.EQ)
NE = int(OpCode.NE)
LT = int(OpCode.LT)
LE = int(OpCode.LE)
GT = int(OpCode.GT)
GE = int(OpCode.GE)
FEQ = int(OpCode.FEQ)
FNE = int(OpCode.FNE)
FLT = int(OpCode.FLT)
FLE = int(OpCode.FLE)
FGT = int(OpCode.FGT)
FGE = int(OpCode.FGE)
DISTINCT = int(OpCode.DISTINCT)
FDISTINCT = int(OpCode.FDISTINCT)
AND = int(OpCode.AND)
OR = int(OpCode.OR)
NOT = int(OpCode.NOT)
IS_NULL = int(OpCode.IS_NULL)
JUMP = int(OpCode.JUMP)
JUMP_IF_FALSE = int(OpCode.JUMP_IF_FALSE)
JUMP_IF_TRUE = int(OpCode.JUMP_IF_TRUE)
POP_JUMP_UNLESS_TRUE = int(OpCode.POP_JUMP_UNLESS_TRUE)
JUMP_IF_VALUE = int(OpCode.JUMP_IF_VALUE)
FAVG = int(OpCode.FAVG)
INT_MIN = np.int64(-(2**63))
#: Of the stack: with numbers that are not negative numba does not look for places from the end.
ONE = np.uint64(1)
NOTHING = np.uint64(2**64 - 1)  # one below the first place


@inlined
def float_less(x, y):
    """DuckDB's order of doubles: NaN equals itself and is the largest."""
    if np.isnan(x):
        return False
    return x < y or np.isnan(y)


@inlined
def float_equal(x, y):
    return x == y or (np.isnan(x) and np.isnan(y))


#: How two values stand to each other.
LESS = 1
EQUAL = 2
GREATER = 4
#: Three bits for each of EQ, NE, LT, LE, GT, GE, FEQ, ..., FGE: where it is true.
ORDERS = sum(
    bits << 3 * k for k, bits in enumerate(2 * (EQUAL, LESS + GREATER, LESS, LESS + EQUAL, GREATER, GREATER + EQUAL))
)


@inlined
def order(x, y):
    if x < y:
        return LESS
    return EQUAL if x == y else GREATER


@inlined
def float_order(x, y):
    if float_less(x, y):
        return LESS
    return EQUAL if float_equal(x, y) else GREATER


@inlined
def update_registers(program, registers, registers_f, valid, variable, feature, feature_f, feature_valid, i):
    """Binds row i to `variable`: updates the registers of one run in place. Returns the validity bits, or -1 on
    overflow (bit 62 and 63 are never used)."""
    for r in range(len(program.register_kind) - 1, -1, -1):
        if (program.register_mask[r] >> variable) & 1 == 0:
            continue
        kind = program.register_kind[r]
        bit = np.int64(1) << r
        if kind == COUNT_ROWS:
            registers[r] += 1
            continue
        f = program.register_feature[r]
        named = f < 0  # the value is the code of the variable bound
        has = named or feature_valid[f, i]
        if kind == COUNT_VALUES:
            if has:
                registers[r] += 1
        elif kind == LAST:
            if program.register_depth[r] > 0:
                link = program.register_link[r]
                registers[r] = registers[link]
                valid = (valid | bit) if (valid >> link) & 1 else (valid & ~bit)
            else:
                registers[r] = program.label_text[variable] if named else feature[f, i]
                valid = (valid | bit) if has else (valid & ~bit)
        elif kind == FIRST:
            if registers[program.register_link[r]] == program.register_depth[r]:
                registers[r] = program.label_text[variable] if named else feature[f, i]
                valid = (valid | bit) if has else (valid & ~bit)
        elif has:
            if (valid >> r) & 1 == 0:
                registers[r] = feature[f, i]
                if kind == SUM and program.register_float[r]:
                    registers_f[r] += 0.0  # a sum begins with 0.0, so that -0.0 alone is 0.0
                valid |= bit
            elif program.register_float[r]:
                x = registers_f[r]
                y = feature_f[f, i]
                if kind == SUM:
                    registers_f[r] = x + y
                elif (kind == MIN and float_less(y, x)) or (kind == MAX and float_less(x, y)):
                    registers_f[r] = y
            else:
                a = registers[r]
                b = feature[f, i]
                if kind == SUM:
                    if add_overflows(a, b):
                        return np.int64(-1)
                    registers[r] = a + b
                elif (kind == MIN and b < a) or (kind == MAX and b > a):
                    registers[r] = b
    return valid


@inlined
def holds(program, variable, registers, valid, feature, feature_valid, i, scratch):
    """Runs the code of `variable` for row i: 1 true, 0 false or null, -1 what it reads cannot be computed. Behind the
    rows of `feature` in feature_valid, if there are more, those that say where a feature cannot be computed."""
    features = feature.shape[0]
    some_fail = feature_valid.shape[0] > features
    stack = scratch.stack
    stack_f = scratch.stack_f
    ok = scratch.stack_valid
    top = NOTHING
    start = program.code_start[variable]
    end = program.code_start[variable + 1]
    pc = start
    while pc < end:
        op = program.code[pc, 0]
        a = program.code[pc, 1]
        b = program.code[pc, 2]
        pc += 1
        if op <= NULL:
            top += ONE
            if op == FEATURE:
                if some_fail and feature_valid[features + a, i]:
                    return -1
                stack[top] = feature[a, i]
                ok[top] = feature_valid[a, i]
            elif op == REGISTER:
                stack[top] = registers[a]
                ok[top] = (valid >> a) & 1 != 0
            else:
                stack[top] = program.constant[a]
                ok[top] = op == CONSTANT
        elif op == TO_FLOAT:
            stack_f[top] = stack[top] / program.constant_f[a]
        elif op == RESCALE:
            if ok[top]:
                if mul_overflows(stack[top], program.constant[a]):
                    return -1
                stack[top] *= program.constant[a]
        elif op <= MUL or op == IDIV or op == MOD:  # noqa: SIM109 (numba compiles comparisons, not tuples)
            top -= ONE
            ok[top] = ok[top] and ok[top + ONE]
            if ok[top]:
                x = stack[top]
                y = stack[top + ONE]
                if op == ADD:
                    if add_overflows(x, y):
                        return -1
                    r = x + y
                elif op == SUB:
                    if sub_overflows(x, y):
                        return -1
                    r = x - y
                elif op == MUL:
                    if mul_overflows(x, y):
                        return -1
                    r = x * y
                else:
                    if y == 0 or (y == -1 and x == INT_MIN):
                        return -1
                    # truncates, and the remainder has the sign of x
                    q = abs(x) // abs(y)
                    if (x < 0) != (y < 0):
                        q = -q
                    r = q if op == IDIV else x - q * y
                if r < program.constant[a] or r > program.constant[b]:
                    return -1
                stack[top] = r
        elif op <= ABS:
            if ok[top]:
                x = stack[top]
                if x == INT_MIN:
                    return -1
                r = -x if op == NEG or x < 0 else x
                if r < program.constant[a] or r > program.constant[b]:
                    return -1
                stack[top] = r
        elif op <= FDIV:
            top -= ONE
            ok[top] = ok[top] and ok[top + ONE]
            if op == FADD:
                stack_f[top] = stack_f[top] + stack_f[top + ONE]
            elif op == FSUB:
                stack_f[top] = stack_f[top] - stack_f[top + ONE]
            elif op == FMUL:
                stack_f[top] = stack_f[top] * stack_f[top + ONE]
            else:
                stack_f[top] = stack_f[top] / stack_f[top + ONE]
        elif op == FNEG:
            stack_f[top] = -stack_f[top]
        elif op == FABS:
            stack_f[top] = abs(stack_f[top])
        elif op <= FGE:
            top -= ONE
            ok[top] = ok[top] and ok[top + ONE]
            if op <= GE:
                found = order(stack[top], stack[top + ONE])
            else:
                found = float_order(stack_f[top], stack_f[top + ONE])
            stack[top] = 1 if (ORDERS >> 3 * (op - EQ)) & found != 0 else 0
        elif op <= FDISTINCT:
            top -= ONE
            if ok[top] and ok[top + ONE]:
                if op == DISTINCT:
                    t = stack[top] != stack[top + ONE]
                else:
                    t = not float_equal(stack_f[top], stack_f[top + ONE])
            else:
                t = ok[top] != ok[top + ONE]
            stack[top] = 1 if t else 0
            ok[top] = True
        elif op == AND:
            top -= ONE
            if ok[top] and ok[top + ONE]:
                stack[top] = stack[top] & stack[top + ONE]
            elif (ok[top] and stack[top] == 0) or (ok[top + ONE] and stack[top + ONE] == 0):
                stack[top] = 0
                ok[top] = True
            else:
                ok[top] = False
        elif op == OR:
            top -= ONE
            if ok[top] and ok[top + ONE]:
                stack[top] = stack[top] | stack[top + ONE]
            elif (ok[top] and stack[top] == 1) or (ok[top + ONE] and stack[top + ONE] == 1):
                stack[top] = 1
                ok[top] = True
            else:
                ok[top] = False
        elif op == NOT:
            stack[top] = 1 - stack[top]
        elif op == IS_NULL:
            stack[top] = 0 if ok[top] else 1
            ok[top] = True
        elif op == JUMP:
            pc = start + a
        elif op == JUMP_IF_FALSE:
            if ok[top] and stack[top] == 0:
                pc = start + a
        elif op == JUMP_IF_TRUE:
            if ok[top] and stack[top] == 1:
                pc = start + a
        elif op == POP_JUMP_UNLESS_TRUE:
            top -= ONE
            if not ok[top + ONE] or stack[top + ONE] == 0:
                pc = start + a
        elif op == JUMP_IF_VALUE:
            if ok[top]:
                pc = start + a
            else:
                top -= ONE
        elif op == FAVG:
            top -= ONE
            count = stack[top + ONE]
            ok[top] = ok[top] and count > 0
            if ok[top]:
                total = stack_f[top] if b == 1 else float(stack[top])
                stack_f[top] = total / (float(count) * program.constant_f[a])
    return 1 if ok[0] and stack[0] == 1 else 0


@inlined
def has(program, mask, v):
    """Whether a row meets the row-local condition of v."""
    return (mask >> v) & 1 == 1


@inlined
def concerns(program, mask, state):
    """Whether a row may be one that a run in this state waits for."""
    return mask & program.state_mask[state] != 0


@inlined
def read_features(program, feature, feature_f, feature_valid, i):
    """Row i: what conditions and registers read of it stays in machine registers in a kernel written out."""


@inlined
def begin_registers(program, scratch):
    """`scratch.old` becomes the registers of a run that begins."""
    for r in range(len(program.register_kind)):
        scratch.old[r] = 0


@inlined
def take(program, v, cannot, valid, feature, feature_f, feature_valid, i, scratch):
    """Whether a run takes row i as v: 1 it does, 0 not, -1 that cannot be computed. `scratch.fresh` becomes what `old`
    is with the row, and the validity bits are returned second. cannot: the row-local condition cannot be computed."""
    if cannot:
        return np.int64(-1), valid
    for r in range(len(program.register_kind)):
        scratch.fresh[r] = scratch.old[r]
    after = update_registers(program, scratch.fresh, scratch.fresh_f, valid, v, feature, feature_f, feature_valid, i)
    truth = np.int64(1)
    if after == -1:
        truth = np.int64(-1)
    elif program.code_start[v + 1] > program.code_start[v]:
        truth = np.int64(holds(program, v, scratch.fresh, after, feature, feature_valid, i, scratch))
    return truth, after

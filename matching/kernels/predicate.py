"""The interpreter of run-dependent conditions, and the registers they read (matching.program.opcodes; Register in
matching.program.program).

Kernels call the functions below `holds`; a specialised kernel (matching.specialise) has its own code in their place."""

from __future__ import annotations

import numpy as np

from matching.kernels.floats import float_less
from matching.kernels.integers import add_overflows
from matching.kernels.jit import inlined, module_of
from matching.program.program import RegisterKind
from matching.written_conditions import interpreter

# numba freezes plain integers; an IntEnum member would be looked up at run time
COUNT_ROWS = int(RegisterKind.COUNT_ROWS)
COUNT_VALUES = int(RegisterKind.COUNT_VALUES)
SUM = int(RegisterKind.SUM)
MIN = int(RegisterKind.MIN)
MAX = int(RegisterKind.MAX)
LAST = int(RegisterKind.LAST)
FIRST = int(RegisterKind.FIRST)


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


#: holds(program, variable, registers, valid, feature, feature_valid, i, scratch): a function written from the table of
#: operations. Its file is in the cache of kernels, named by its content, so that numba's cache finds it again.
holds = module_of(interpreter()).holds


@inlined
def has(program, mask, v):
    """True if a row meets the row-local condition of v."""
    return (mask >> v) & 1 == 1


@inlined
def concerns(program, mask, state):
    """True if a run in this state may wait for a row with this mask."""
    return mask & program.state_mask[state] != 0


@inlined
def read_features(program, feature, feature_f, feature_valid, i):
    """Does nothing; a specialised kernel reads the features of row i into local variables here."""


@inlined
def begin_registers(program, scratch):
    """Sets `scratch.old` to the registers of a run that begins."""
    for r in range(len(program.register_kind)):
        scratch.old[r] = 0


@inlined
def take(program, v, cannot, valid, feature, feature_f, feature_valid, i, scratch):
    """Tries an edge. Returns 1 if a run takes row i as v, 0 if not, -1 if that cannot be computed; and the validity
    bits with the row. Sets `scratch.fresh` to the registers `old` with the row. cannot: the row-local condition cannot
    be computed."""
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

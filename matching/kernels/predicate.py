"""The interpreter of run-dependent conditions (matching.program.opcodes) and of the registers they read
(matching.program.registers).

Kernels call the functions below `holds`; a specialised kernel (matching.specialise) has its own code in their place."""

from __future__ import annotations

import numpy as np

from matching.kernels.jit import called, inlined, module_of
from matching.written_conditions import interpreter
from matching.written_registers import register_interpreter

#: update_registers(program, registers, registers_f, valid, variable, feature, feature_f, feature_valid, i): a function
#: written from the table of registers. Its file is in the cache of kernels, named by its content, so that numba's cache
#: finds it again.
update_registers = module_of(register_interpreter()).update_registers
#: holds(program, variable, registers, valid, feature, feature_valid, i, scratch): a function written from the table of
#: operations, and kept as the one above.
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


@called
def forbids(labels, mask, bad, program, valid, feature, feature_f, feature_valid, i, scratch):
    """Finds the first of the labels whose condition row i meets for the run of which `scratch.old` has the registers,
    or whose condition cannot be computed. Returns (0, 1: met, or 2: not computed; that label)."""
    for v in labels:
        if (bad >> v) & 1 == 1:
            return 2, v
        if (mask >> v) & 1 == 1:
            truth, _ = take(program, v, False, valid, feature, feature_f, feature_valid, i, scratch)
            if truth != 0:
                return (1 if truth > 0 else 2), v
    return 0, -1

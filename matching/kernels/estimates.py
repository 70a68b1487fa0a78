"""DuckDB's estimate of how many different values there are: O. Ertl, New cardinality estimation algorithms for
HyperLogLog sketches (2017), section 4.

A value here is the register of the sketch that a hash chooses, times RANKS, plus the rank there
(matching.program.hashed). Of a register only the largest rank counts. The values of a run are in a tree
(matching.kernels.trees), where they come in order."""

from __future__ import annotations

import numpy as np

from matching.kernels.jit import called
from matching.kernels.trees import KEY, LOWER, UPPER
from matching.program.hashed import RANK_BITS, RANKS, REGISTERS

_SIGN = -(2**63)
#: 1 / (2 ln 2)
_ALPHA = 0.721347520444481703680


@called
def ranks_of(tree, root, there, value, stack, counts):
    """Counts the registers of each rank, for the values of a tree and, if `there`, one more. stack: room for an item of
    each leaf. counts: by rank, RANKS numbers."""
    for rank in range(RANKS):
        counts[rank] = 0
    counts[0] = REGISTERS
    register, largest, of_own, top = np.int64(-1), np.int64(0), np.int64(0), np.int64(0)
    if root != 0:
        stack[0], top = root, 1
    while top > 0:
        top -= 1
        at = stack[top]
        while tree[at, LOWER] != 0:
            stack[top] = tree[at, UPPER]
            top += 1
            at = tree[at, LOWER]
        found = tree[at, KEY] ^ np.int64(_SIGN)
        if found // RANKS != register:
            register, largest = found // RANKS, np.int64(0)
        counts[largest] -= 1
        largest = found % RANKS
        counts[largest] += 1
        if there and register == value // RANKS:
            of_own = largest
    if there and value % RANKS > of_own:
        counts[of_own] -= 1
        counts[value % RANKS] += 1


@called
def _small(x):
    """Returns sigma of the share of registers without a value."""
    if x == 1.0:
        return np.inf
    y, z, before = 1.0, x, -1.0
    while z != before:
        x *= x
        before = z
        z += x * y
        y += y
    return z


@called
def _large(x):
    """Returns tau of the share of registers whose rank is not the largest."""
    if x == 0.0 or x == 1.0:
        return 0.0
    y, z, before = 1.0, 1.0 - x, -1.0
    while z != before:
        x = np.sqrt(x)
        before = z
        y *= 0.5
        z -= (1.0 - x) ** 2 * y
    return z / 3.0


@called
def estimated(counts):
    """Returns how many values there are probably, of the number of registers of each rank."""
    of_all = np.float64(REGISTERS)
    z = of_all * _large((of_all - counts[RANK_BITS + 1]) / of_all)
    for rank in range(RANK_BITS, 0, -1):
        z = (z + counts[rank]) * 0.5
    z += of_all * _small(counts[0] / of_all)
    return np.int64(np.floor(_ALPHA * of_all * of_all / z + 0.5))

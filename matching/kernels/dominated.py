"""Drops runs that are dominated (matching.program.dominance) from the lists of matching.kernels.step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from matching.kernels.jit import called, kernel
from matching.kernels.layout import Counters

C_FREE = int(Counters.FREE)


class Dominated(NamedTuple):
    """live: bool (states, registers); better, refills, caps: as of matching.program.dominance.Dominance; floating: per
    register. best: per state the run that is compared with, -1 none. length: per partition, that of its list from which
    on it is searched again."""

    live: np.ndarray
    better: np.ndarray
    refills: np.ndarray
    caps: np.ndarray
    floating: np.ndarray
    best: np.ndarray
    length: np.ndarray


@called
def compared(run, other, state, dominated, runs):
    """Returns 1 if `other` passes no condition that `run` fails; else -1 if `run` passes none that `other` fails; else
    0: that is not known."""
    dominates, is_dominated = True, True
    for r in range(len(dominated.better)):
        if not dominated.live[state, r]:
            continue
        way = dominated.better[r]
        there, other_there = (runs.valid[run] >> r) & 1 == 1, (runs.valid[other] >> r) & 1 == 1
        x, y = runs.registers[run, r], runs.registers[other, r]
        if way == 0:
            cap = dominated.caps[r]
            if cap >= 0:
                x, y = min(x, cap), min(y, cap)
            if there != other_there or (there and x != y):
                return 0
            continue
        if there != other_there and dominated.refills[r]:
            return 0
        if not there or not other_there:  # a comparison with null is never true
            dominates = dominates and not other_there
            is_dominated = is_dominated and not there
            continue
        if dominated.floating[r]:
            f, g = runs.registers_f[run, r], runs.registers_f[other, r]
            if not (np.isfinite(f) and np.isfinite(g)):
                return 0
            less, more = f < g, f > g
        else:
            less, more = x < y, x > y
        if way < 0:
            less, more = more, less
        dominates = dominates and not less
        is_dominated = is_dominated and not more
    if dominates:
        return 1
    return -1 if is_dominated else 0


@called
def prune(p, dominated, runs, partitions, counters):
    """Drops the runs of a partition that a preferred one in the same state dominates. Compared is with the best one so
    far only, so that it takes O(runs)."""
    dominated.best[:] = -1
    item = partitions.head[p]
    last = np.int64(-1)
    while item >= 0:
        following = runs.next[item]
        state = runs.state[item]
        drops = False
        if state >= 0:
            best = dominated.best[state]
            if best < 0:
                dominated.best[state] = item
            else:
                found = compared(best, item, state, dominated, runs)
                drops = found == 1
                if found == -1:
                    dominated.best[state] = item
        if drops:
            runs.free[counters[C_FREE]] = item
            counters[C_FREE] += 1
            partitions.length[p] -= 1
            runs.next[last] = following  # the first run of a list is never dropped
        else:
            last = item
        item = following


@kernel
def prune_long(partition, least, dominated, runs, partitions, counters):
    """Prunes those of the partitions whose lists have doubled since they were, from a length of `least` on."""
    for p in partition:
        if partitions.length[p] > dominated.length[p]:
            prune(p, dominated, runs, partitions, counters)
            dominated.length[p] = max(least, 2 * partitions.length[p])

"""Drops runs that are dominated (matching.program.dominance) from the lists of matching.kernels.step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from matching.kernels.hashing import mixed
from matching.kernels.jit import called, kernel
from matching.kernels.layout import Counters

C_FREE = int(Counters.FREE)


class Dominated(NamedTuple):
    """live: bool (states, registers); better, refills, caps, of_start, fails_filled, positive: as of
    matching.program.dominance.Dominance; floating: per register; safe: int64 (registers, 2). best: a hash table of the
    runs that others are compared with, more than twice as long as the list. length: per partition, that of its list
    from which on it is searched again."""

    live: np.ndarray
    better: np.ndarray
    refills: np.ndarray
    caps: np.ndarray
    floating: np.ndarray
    of_start: np.bool_
    safe: np.ndarray
    fails_filled: np.ndarray
    positive: np.ndarray
    best: np.ndarray
    length: np.ndarray


@called
def alike(run, other, dominated, runs):
    """Returns True if runs are of one state, of one start if that counts, and have the same values of all registers
    that have to be equal."""
    state = runs.state[run]
    if state != runs.state[other] or (dominated.of_start and runs.first[run] != runs.first[other]):
        return False
    for r in range(len(dominated.better)):
        if dominated.live[state, r] and dominated.better[r] == 0:
            there = (runs.valid[run] >> r) & 1
            if there != (runs.valid[other] >> r) & 1 or (there and value(run, r, dominated, runs) != value(
                other, r, dominated, runs
            )):  # fmt: skip
                return False
    return True


@called
def value(run, r, dominated, runs):
    """Returns the value of a register as far as conditions distinguish it."""
    cap = dominated.caps[r]
    found = runs.registers[run, r]
    return min(found, cap) if cap >= 0 else found


@called
def hashed(run, dominated, runs):
    """Returns 64 bits, which are the same for runs that are alike."""
    state = runs.state[run]
    found = np.int64(state)
    if dominated.of_start:
        found = mixed(found) ^ runs.first[run]
    for r in range(len(dominated.better)):
        if dominated.live[state, r] and dominated.better[r] == 0:
            there = (runs.valid[run] >> r) & 1 == 1
            found = mixed(found) ^ (value(run, r, dominated, runs) if there else np.int64(-1))
    return mixed(found)


@called
def compared(run, other, dominated, runs):
    """Returns 1 if `other`, which is alike, passes no condition that `run` fails; else -1 if `run` passes none that
    `other` fails; else 0: that is not known."""
    state = runs.state[run]
    dominates, is_dominated = True, True
    for r in range(len(dominated.better)):
        way = dominated.better[r]
        if way == 0 or not dominated.live[state, r]:
            continue
        there, other_there = (runs.valid[run] >> r) & 1 == 1, (runs.valid[other] >> r) & 1 == 1
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
            less, more, least = f < g, f > g, min(f, g)
        else:
            x, y = runs.registers[run, r], runs.registers[other, r]
            less, more, least = x < y, x > y, np.float64(min(x, y))
        if dominated.positive[r] and least <= 0 and (less or more):
            return 0
        if way < 0:
            less, more = more, less
        dominates = dominates and not less
        is_dominated = is_dominated and not more
    if dominates:
        return 1
    return -1 if is_dominated else 0


@called
def may_fail(run, best, dominated, runs):
    """Returns True if a condition of an integer of the run may overflow where that of `best`, which dominates it, does
    not: then it is an error, unless a preferred run matches."""
    state = runs.state[run]
    for r in range(len(dominated.better)):
        if dominated.better[r] == 0 or not dominated.live[state, r] or dominated.floating[r]:
            continue
        there, best_there = (runs.valid[run] >> r) & 1 == 1, (runs.valid[best] >> r) & 1 == 1
        if there == best_there and (not there or runs.registers[run, r] == runs.registers[best, r]):
            continue
        if not there:
            if dominated.fails_filled[r]:
                return True
        elif not dominated.safe[r, 0] <= runs.registers[run, r] <= dominated.safe[r, 1]:
            return True
    return False


@called
def prune(p, dominated, runs, partitions, counters):
    """Drops the runs of a partition that a preferred one which is alike dominates. Compared is with the best one of
    these so far only, so that it takes O(runs)."""
    size = 2
    while size <= 2 * partitions.length[p]:
        size *= 2
    for slot in range(size):
        dominated.best[slot] = -1
    item = partitions.head[p]
    last = np.int64(-1)
    while item >= 0:
        following = runs.next[item]
        drops = False
        if runs.state[item] >= 0:
            slot = hashed(item, dominated, runs) & (size - 1)
            while dominated.best[slot] >= 0 and not alike(dominated.best[slot], item, dominated, runs):
                slot = (slot + 1) & (size - 1)
            best = dominated.best[slot]
            found = np.int64(-1) if best < 0 else compared(best, item, dominated, runs)
            drops = found == 1 and not may_fail(item, best, dominated, runs)
            if found == -1:
                dominated.best[slot] = item
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
    """Prunes those of the partitions whose lists have doubled since they were, from a length of `least` on. Returns
    the number of runs that were dropped."""
    free = counters[C_FREE]
    for p in partition:
        if partitions.length[p] > dominated.length[p]:
            prune(p, dominated, runs, partitions, counters)
            dominated.length[p] = max(least, 2 * partitions.length[p])
    return counters[C_FREE] - free

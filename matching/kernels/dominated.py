"""Drops runs that are dominated (matching.program.dominance) from the lists of matching.kernels.step."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from matching.kernels.hashing import mixed
from matching.kernels.jit import called, kernel
from matching.kernels.layout import Counters

C_FREE = int(Counters.FREE)
#: Most runs that are alike with which one more is compared.
BEST_MAX = 8


class Dominated(NamedTuple):
    """live: bool (states, registers); better, caps, of_start, positive: as of
    matching.program.dominance.Dominance; floating: per register; safe: int64 (registers, 2). best: a hash table of the
    runs that others are compared with, more than twice as long as the list. length: per partition, that of its list
    from which on it is searched again."""

    live: np.ndarray
    better: np.ndarray
    caps: np.ndarray
    floating: np.ndarray
    of_start: np.bool_
    safe: np.ndarray
    positive: np.ndarray
    best: np.ndarray
    length: np.ndarray


@called
def alike(run, other, dominated, runs):
    """Returns True if runs are of one state, of one start if that counts, have values in the same registers, and the
    same ones in all that have to be equal. (Of `null AND error` and `false AND error` only the first is an error.)"""
    state = runs.state[run]
    if state != runs.state[other] or (dominated.of_start and runs.first[run] != runs.first[other]):
        return False
    for r in range(len(dominated.better)):
        if not dominated.live[state, r]:
            continue
        there = (runs.valid[run] >> r) & 1
        if there != (runs.valid[other] >> r) & 1:
            return False
        if there and dominated.better[r] == 0 and value(run, r, dominated, runs) != value(other, r, dominated, runs):
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
        if dominated.live[state, r]:
            there = (runs.valid[run] >> r) & 1
            known = there == 1 and dominated.better[r] == 0
            found = mixed(found) ^ (value(run, r, dominated, runs) if known else there - 1)
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
        if (runs.valid[run] >> r) & 1 == 0:
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
        x = runs.registers[run, r]
        there = (runs.valid[run] >> r) & 1 == 1
        if there and x != runs.registers[best, r] and not dominated.safe[r, 0] <= x <= dominated.safe[r, 1]:
            return True
    return False


@called
def prune(p, dominated, runs, partitions, counters):
    """Drops the runs of a partition that a preferred one which is alike dominates. Compared is with a few of these
    only, of which none dominates another one, so that it takes O(runs)."""
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
            some, enters = 0, np.int64(-1)
            while dominated.best[slot] >= 0 and not drops:
                best = dominated.best[slot]
                if alike(best, item, dominated, runs):
                    some += 1
                    found = compared(best, item, dominated, runs)
                    drops = found == 1 and not may_fail(item, best, dominated, runs)
                    if found == -1 or (some == BEST_MAX and enters < 0 and found == 0):
                        enters = slot
                slot = (slot + 1) & (size - 1)
            if not drops and (enters >= 0 or some < BEST_MAX):
                dominated.best[enters if enters >= 0 else slot] = item
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

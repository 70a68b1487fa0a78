"""Matches that wait, looked up by a value that a negation after them compares for equality.

An entry refers to an item of a list of runs, and is known to be stale where the item is another one now. It is dropped
when a look-up meets it, or when all of them are entered anew. A look-up finds candidates only: the whole condition is
tested for each.

Where no negation after a match reads it, there is None in place of Waiting, and kernels are compiled without it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from matching.kernels.integers import wrapped_product, wrapped_sum
from matching.kernels.jit import called, inlined, kernel
from matching.kernels.predicate import forbids, take
from matching.program.equalities import Equality
from matching.program.program import Program

#: States of items, see matching.kernels.step.
PENDING = -4
#: Of a match that a row has forbidden and that is still linked.
FORBIDDEN = -6
_MIX = -4658895280553007687


class Waiting(NamedTuple):
    """label, feature, register, floating: of the equalities (matching.program.equalities); behind, tied: (1,), bits of
    the labels negated after a match, and of those of them with an equality. buckets: int64 (a power of 2,), the first
    entry, -1 none. partition, item, node, next: of the entries. used: (1,), how many there are."""

    label: np.ndarray
    feature: np.ndarray
    register: np.ndarray
    floating: np.ndarray
    behind: np.ndarray
    tied: np.ndarray
    buckets: np.ndarray
    partition: np.ndarray
    item: np.ndarray
    node: np.ndarray
    next: np.ndarray
    used: np.ndarray


def no_entries(program: Program, equalities: Sequence[Equality]) -> Waiting | None:
    """Returns the look-up by these equalities, without room for entries; None: no negation after a match reads it."""
    if not any(program.code[v] for v in program.absence.behind):
        return None

    def ints(*values: int) -> np.ndarray:
        return np.array(values, np.int64)

    return Waiting(
        ints(*(e.label for e in equalities)), ints(*(e.feature for e in equalities)),
        ints(*(e.register for e in equalities)),
        np.array([program.registers[e.register].lane.floating for e in equalities], np.bool_),
        ints(sum({1 << v for v in program.absence.behind})), ints(sum({1 << e.label for e in equalities})),
        ints(-1), ints(), ints(), ints(), ints(), ints(0),
    )  # fmt: skip


def with_room(waiting: Waiting, capacity: int) -> Waiting:
    """Returns it without entries, with room for as many."""
    partition, item, node, following = (np.zeros(capacity, np.int64) for _ in range(4))
    buckets = np.full(1 << (capacity - 1).bit_length(), -1, np.int64)
    return waiting._replace(
        buckets=buckets, partition=partition, item=item, node=node, next=following, used=np.zeros(1, np.int64)
    )  # fmt: skip


@inlined
def bucket_of(p, k, value, value_f, floating, buckets):
    """The bucket of a value of equality k in partition p; equal values have one bucket."""
    if floating:
        if np.isnan(value_f):
            value = np.int64(1)
        elif value_f == 0.0:
            value = np.int64(0)
    h = wrapped_sum(wrapped_product(wrapped_sum(wrapped_product(value, _MIX), p), _MIX), k)
    h = wrapped_product(h ^ (h >> 29), _MIX)
    return (h ^ (h >> 32)) & (len(buckets) - 1)


@inlined
def short_of(waiting, more):
    """True if there is no room for so many more entries of each equality."""
    if waiting is None:
        return False
    return waiting.used[0] + more * len(waiting.label) > len(waiting.item)


@called
def enter(waiting, p, item, runs):
    """Enters a match that waits."""
    if waiting is None:
        return
    for k in range(len(waiting.label)):
        r = waiting.register[k]
        if (runs.valid[item] >> r) & 1 == 0:  # null equals nothing
            continue
        to = bucket_of(p, k, runs.registers[item, r], runs.registers_f[item, r], waiting.floating[k], waiting.buckets)
        new = waiting.used[0]
        waiting.used[0] = new + 1
        waiting.partition[new] = p
        waiting.item[new] = item
        waiting.node[new] = runs.node[item]
        waiting.next[new] = waiting.buckets[to]
        waiting.buckets[to] = new


@inlined
def finds(waiting, mask):
    """True if all that negates a row after a match can be looked up."""
    if waiting is None:
        return False
    return len(waiting.label) > 0 and mask & waiting.behind[0] & ~waiting.tied[0] == 0


@called
def forbids_match(waiting, mask, bad, program, valid, feature, feature_f, feature_valid, i, scratch):
    """Returns `forbids` of row i and a match that waits, of which `scratch.old` has the registers."""
    if waiting is None:
        return 0, -1
    return forbids(program.absent_behind, mask, bad, program, valid, feature, feature_f, feature_valid, i, scratch)


@called
def forbid(
    waiting, p, i, m, t, ordinal, within_us, within_rows, program, runs, feature, feature_f, feature_valid, scratch
):  # fmt: skip
    """Forbids the matches that wait and that row i negates: they have FORBIDDEN as their state. Those whose WITHIN is
    over are not forbidden."""
    if waiting is None:
        return
    for k in range(len(waiting.label)):
        v, f = waiting.label[k], waiting.feature[k]
        if (m >> v) & 1 == 0 or not feature_valid[f, i]:
            continue
        at = bucket_of(p, k, feature[f, i], feature_f[f, i], waiting.floating[k], waiting.buckets)
        before, entry = np.int64(-1), waiting.buckets[at]
        while entry >= 0:
            item, behind = waiting.item[entry], waiting.next[entry]
            stays = runs.state[item] == PENDING and runs.node[item] == waiting.node[entry]
            if stays and waiting.partition[entry] == p:
                first = runs.first[item]
                over = (within_us >= 0 and t - runs.ts[item] > within_us) or (
                    within_rows >= 0 and ordinal - first + 1 > within_rows
                )
                if not over:
                    for r in range(len(program.register_kind)):
                        scratch.old[r] = runs.registers[item, r]
                    truth, _ = take(
                        program, v, False, runs.valid[item], feature, feature_f, feature_valid, i, scratch
                    )  # fmt: skip
                    if truth > 0:
                        runs.state[item] = FORBIDDEN
                        stays = False
            if stays:
                before = entry
            elif before < 0:
                waiting.buckets[at] = behind
            else:
                waiting.next[before] = behind
            entry = behind


@kernel
def enter_all(partitions_in_use, runs, partitions, waiting):
    """Enters all matches that wait; there are no entries, and room for all."""
    for p in range(partitions_in_use):
        item = partitions.head[p]
        while item >= 0:
            if runs.state[item] == PENDING:
                enter(waiting, p, item, runs)
            item = runs.next[item]


@kernel
def count_pending(partitions_in_use, runs, partitions):
    """Returns how many matches wait."""
    count = 0
    for p in range(partitions_in_use):
        item = partitions.head[p]
        while item >= 0:
            if runs.state[item] == PENDING:
                count += 1
            item = runs.next[item]
    return count

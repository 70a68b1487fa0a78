"""Starts that wait until WITHIN is over: one queue of all partitions, in the order of their times.

A row that must not follow a start is of its partition: it drops those of the chain of this partition that WITHIN
reaches, latest first. A start is entered and dropped once, so a row costs a few steps, however long WITHIN is."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from matching.kernels.jit import kernel

#: No start.
NONE = -1


class StartQueue(NamedTuple):
    """The queue: of each start its row, time and partition, the start before it in its partition, and whether it is
    dropped; and by partition the latest start that may wait (negative: none)."""

    row: np.ndarray
    ts: np.ndarray
    partition: np.ndarray
    before: np.ndarray
    dropped: np.ndarray
    latest: np.ndarray


@kernel
def enter(partition, ts, rows, mask, start, behind, within_us, queue, end):
    """Takes rows. start, behind: the bits of the condition of a start, and of those of rows that must not follow.
    Returns the end of the queue, which has room for all rows."""
    for i in range(len(mask)):
        m = mask[i]
        if m & (start | behind) == 0:
            continue
        p = partition[i]
        if m & behind != 0:
            at = queue.latest[p]
            while at >= 0 and ts[i] - queue.ts[at] <= within_us:
                queue.dropped[at] = True
                at = queue.before[at]
            queue.latest[p] = NONE
        if m & start != 0:
            queue.row[end] = rows[i]
            queue.ts[end] = ts[i]
            queue.partition[end] = p
            queue.before[end] = queue.latest[p]
            queue.dropped[end] = False
            queue.latest[p] = end
            end += 1
    return end


@kernel
def stay(partition, ts, mask, start, behind, within_us, next_us, stays):
    """Writes which rows of a whole input are starts that nothing drops. next_us: by partition, so far in the future
    that no WITHIN reaches it. One pass from the last row on: it needs no queue."""
    for i in range(len(mask) - 1, -1, -1):
        m = mask[i]
        if m & (start | behind) == 0:
            stays[i] = False
            continue
        p = partition[i]
        stays[i] = m & start != 0 and next_us[p] - ts[i] > within_us
        if m & behind != 0:
            next_us[p] = ts[i]


@kernel
def leave(begin, end, bound_us, within_us, queue, numbers, row, partition, number):
    """Hands out the starts whose WITHIN is over before a time, in order. Returns where the queue begins then, and how
    many there are."""
    count = 0
    while begin < end and queue.ts[begin] + within_us < bound_us:
        if not queue.dropped[begin]:
            p = queue.partition[begin]
            numbers[p] += 1
            row[count] = queue.row[begin]
            partition[count] = p
            number[count] = numbers[p]
            count += 1
        begin += 1
    return begin, count

"""The number of matches of row-local patterns that pass over rows, without finding one: constant time an event,
however many there are.

Counts of runs per state are a vector, and what a row does to it is a matrix: every count goes to the targets of the
edges the row meets, and stays where it is if the row may be passed over. WITHIN takes back the runs of the oldest
starts, which a sum cannot do; so starts are kept as a queue is by two stacks. The starts of the *back* are one vector.
For those of the *front*, each node has the counts, at the time when back became front, of its start and all later ones
of the front; one matrix has the effect of the rows since then. When the oldest start of the back is over time, the
back becomes the front, from its last row to its first. Each row is turned over once at most.

Numbers are exact up to MANY, which means so many or more. It cannot become less: all are sums of products of
whole numbers, none negative.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from matching.kernels.integers import MANY, many_sum, mul_overflows
from matching.kernels.jit import called, inlined, kernel
from matching.kernels.layout import Parameters, ProgramArrays
from matching.program.program import Ignore, Program

P_WITHIN_US = int(Parameters.WITHIN_US)
P_WITHIN_ROWS = int(Parameters.WITHIN_ROWS)

#: Before all starts.
LOWEST = -(1 << 63)

OK = 0
ROOM = 1
ERROR = 2
TOO_MANY = 3


class PathCounters(IntEnum):
    NODES = 0  # used so far
    FREE = 1  # first free one of them, -1 none
    FAILED_ROW = 2  # 1 + position of a row whose condition cannot be computed
    FAILED_LABEL = 3


C_NODES = int(PathCounters.NODES)
C_FREE = int(PathCounters.FREE)
C_FAILED_ROW = int(PathCounters.FAILED_ROW)
C_FAILED_LABEL = int(PathCounters.FAILED_LABEL)


class Moves(NamedTuple):
    """A program for counting. Its n states are those that runs can wait in; edges of state s are [begin[s],
    begin[s + 1]), those of a start [begin[n], begin[n + 1])."""

    begin: np.ndarray
    label: np.ndarray  # per edge
    target: np.ndarray  # per edge, -1: no run waits there
    ends: np.ndarray  # bool, per edge: a match ends with it
    leaves: np.ndarray  # bool, per edge: a run may not pass over a row that takes it
    mask: np.ndarray  # int64, per state and of a start: labels of its edges
    moves: np.ndarray  # the same without edges that only end matches
    parameters: np.ndarray


def moves_of(program: Program, arrays: ProgramArrays) -> Moves:
    """The moves of a program in which no run is a run of two partitions, nor reads what it has matched."""
    edges = [range(program.edge_start[q], program.edge_start[q + 1]) for q in range(len(program.accept))]
    waiting = [q for q in range(1, len(edges)) if len(edges[q])]
    state = {q: s for s, q in enumerate(waiting)}
    listed = [edges[q] for q in (*waiting, 0)]
    order = np.array([e for es in listed for e in es], np.int64)
    target = np.array([state.get(program.edge_target[e], -1) for e in order], np.int64)
    leaves = arrays.edge_waits[order] if program.ignore is Ignore.NOT_WAITED_FOR else np.zeros(len(order), np.bool_)
    begin = np.array([0, *np.cumsum([len(es) for es in listed])], np.int64)
    label = arrays.edge_variable[order]

    def masks(of: np.ndarray) -> np.ndarray:
        return np.array([sum({1 << int(v) for v in label[b:e][of[b:e]]}) for b, e in pairwise(begin)], np.int64)

    return Moves(
        begin, label, target, arrays.accept[arrays.edge_target[order]], leaves, masks(np.ones(len(order), np.bool_)),
        masks((target >= 0) | leaves), arrays.parameters,
    )  # fmt: skip


class Counted(IntEnum):
    """Columns of the partitions, int64 (partitions, STATES + n + n**2); without WITHIN no matrix."""

    TOTAL = 0  # matches
    ORDINAL = 1  # rows seen, for WITHIN n ROWS
    FRONT = 2  # node of its oldest start, -1 none
    BACK = 3  # node of its last row, -1 none
    OLDEST = 4  # its oldest start
    STATES = 5  # and following: runs of the back in each state; then the matrix of the front


TOTAL = int(Counted.TOTAL)
ORDINAL = int(Counted.ORDINAL)
FRONT = int(Counted.FRONT)
BACK = int(Counted.BACK)
OLDEST = int(Counted.OLDEST)
STATES = int(Counted.STATES)


class Node(IntEnum):
    """Columns of the nodes, int64 (nodes, RUNS + n): a row of the back, or a start of the front."""

    KEY = 0  # its time, or for WITHIN n ROWS its ordinal
    MASK = 1  # of its conditions
    LINK = 2  # the row before in the back, the next start in the front, or the next free node
    RUNS = 3  # and following, in the front: runs in each state of this and all later starts of it


KEY = int(Node.KEY)
MASK = int(Node.MASK)
LINK = int(Node.LINK)
RUNS = int(Node.RUNS)


@inlined
def times(a, b):
    """The product of two numbers that are not negative; MANY if it is larger."""
    return MANY if mul_overflows(a, b) else a * b


@inlined
def stays(moves, s, m):
    """True if a run in state s may pass over a row with mask m."""
    if m & moves.moves[s] != 0:
        for e in range(moves.begin[s], moves.begin[s + 1]):
            if moves.leaves[e] and (m >> moves.label[e]) & 1 == 1:
                return False
    return True


@inlined
def advance(moves, m, vector, begin, stride, old):
    """A row with mask m upon the runs per state at vector[begin + s * stride]. old: room for one number a state."""
    n = len(old)
    for s in range(n):
        old[s] = vector[begin + s * stride]
        if old[s] != 0 and not stays(moves, s, m):
            vector[begin + s * stride] = 0
    for s in range(n):
        if old[s] == 0 or m & moves.moves[s] == 0:
            continue
        for e in range(moves.begin[s], moves.begin[s + 1]):
            if moves.target[e] >= 0 and (m >> moves.label[e]) & 1 == 1:
                at = begin + moves.target[e] * stride
                vector[at] = many_sum(vector[at], old[s])


@called
def turn(moves, lowest, of, nodes, counters, matrix, old):
    """The back of a partition becomes its front. of: the partition; matrix: room, (n**2,)."""
    n = len(old)
    for k in range(n * n):
        matrix[k] = 0
        of[STATES + n + k] = 0
    for s in range(n):
        matrix[s * n + s] = 1
        of[STATES + n + s * n + s] = 1
        of[STATES + s] = 0
    node = of[BACK]
    front = np.int64(-1)
    live = True
    while node >= 0:
        link = nodes[node, LINK]
        live = live and nodes[node, KEY] >= lowest
        m = nodes[node, MASK]
        if live and m & moves.moves[n] != 0:
            for s in range(n):
                nodes[node, RUNS + s] = nodes[front, RUNS + s] if front >= 0 else 0
            for e in range(moves.begin[n], moves.begin[n + 1]):
                to = moves.target[e]
                if to >= 0 and (m >> moves.label[e]) & 1 == 1:
                    for s in range(n):
                        nodes[node, RUNS + s] = many_sum(nodes[node, RUNS + s], matrix[s * n + to])
            nodes[node, LINK] = front
            front = node
        else:
            nodes[node, LINK] = counters[C_FREE]
            counters[C_FREE] = node
        if live:  # the matrix of this row goes to the right: column s becomes what a run in s becomes
            for row in range(n):
                for s in range(n):
                    old[s] = matrix[row * n + s]
                for s in range(n):
                    if m & moves.moves[s] == 0:
                        continue
                    value = old[s] if stays(moves, s, m) else np.int64(0)
                    for e in range(moves.begin[s], moves.begin[s + 1]):
                        if moves.target[e] >= 0 and (m >> moves.label[e]) & 1 == 1:
                            value = many_sum(value, old[moves.target[e]])
                    matrix[row * n + s] = value
        node = link
    of[BACK] = -1
    of[FRONT] = front


@inlined
def drop_old(of, lowest, nodes, counters):
    """Drops the starts of the front before `lowest`."""
    while of[FRONT] >= 0 and nodes[of[FRONT], KEY] < lowest:
        node = of[FRONT]
        of[FRONT] = nodes[node, LINK]
        nodes[node, LINK] = counters[C_FREE]
        counters[C_FREE] = node


@inlined
def runs_in(s, n, of, nodes):
    """Returns the number of runs of a partition in state s."""
    count = of[STATES + s]
    front = of[FRONT]
    if front >= 0:
        at = STATES + n + s * n
        for k in range(n):
            count = many_sum(count, times(of[at + k], nodes[front, RUNS + k]))
    return count


@kernel
def step(begin, end, partition, mask, bad, ts, row, moves, partitions, nodes, matrix, old, counters):
    """Takes rows [begin, end); mask and bad as for matching.kernels.step.step. Returns (next row, status); after ROOM
    the call is to be repeated with more nodes. O(n**2 + n * edges) a row, amortised."""
    within_us = moves.parameters[P_WITHIN_US]
    within_rows = moves.parameters[P_WITHIN_ROWS]
    within = within_us >= 0 or within_rows >= 0
    n = len(old)
    some_bad = len(bad) > 0
    some = moves.mask[n]
    moved = np.int64(0)
    for s in range(n):
        some |= moves.mask[s]
        moved |= moves.moves[s]
    for i in range(begin, end):
        m = mask[i] & some
        b = bad[i] & some if some_bad else np.int64(0)
        p = partition[i]
        if m | b == 0:
            if within_rows >= 0:
                partitions[p, ORDINAL] += 1
            continue
        if within and counters[C_FREE] < 0 and counters[C_NODES] == len(nodes):
            return i, ROOM
        of = partitions[p]
        here = ts[i]
        lowest = np.int64(LOWEST)
        if within_us >= 0:
            lowest = here - within_us
        elif within_rows >= 0:
            here = of[ORDINAL]
            of[ORDINAL] = here + 1
            lowest = here - within_rows + 1
        if within:
            drop_old(of, lowest, nodes, counters)
            if of[BACK] >= 0 and of[OLDEST] < lowest:
                turn(moves, lowest, of, nodes, counters, matrix, old)
        # ---- the matches that the row ends
        for s in range(n + 1):
            if (m | b) & moves.mask[s] == 0:
                continue
            count = np.int64(-1)
            for e in range(moves.begin[s], moves.begin[s + 1]):
                failed = (b >> moves.label[e]) & 1 == 1
                if not failed and (not moves.ends[e] or (m >> moves.label[e]) & 1 == 0):
                    continue
                if count < 0:
                    count = np.int64(1) if s == n else runs_in(s, n, of, nodes)
                if count == 0:
                    break
                if failed:
                    counters[C_FAILED_ROW] = row[i] + 1
                    counters[C_FAILED_LABEL] = moves.label[e]
                    return i, ERROR
                of[TOTAL] = many_sum(of[TOTAL], count)
                if of[TOTAL] == MANY:
                    return i, TOO_MANY
        # ---- the runs after it
        if m & moved != 0:
            if of[FRONT] >= 0:
                for k in range(n):
                    advance(moves, m, of, STATES + n + k, n, old)
            advance(moves, m, of, STATES, 1, old)
        starts = m & moves.moves[n] != 0
        if starts:
            for e in range(moves.begin[n], moves.begin[n + 1]):
                if moves.target[e] >= 0 and (m >> moves.label[e]) & 1 == 1:
                    at = STATES + moves.target[e]
                    of[at] = many_sum(of[at], 1)
        if within and (starts or (of[BACK] >= 0 and m & moved != 0)):
            node = counters[C_FREE]
            if node >= 0:
                counters[C_FREE] = nodes[node, LINK]
            else:
                node = counters[C_NODES]
                counters[C_NODES] = node + 1
            if of[BACK] < 0:
                of[OLDEST] = here
            nodes[node, KEY] = here
            nodes[node, MASK] = m
            nodes[node, LINK] = of[BACK]
            of[BACK] = node
    return end, OK

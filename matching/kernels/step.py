"""The interpreted NFA^b kernel: one pass over rows in order, a list of runs per partition in order of preference.

The list of a partition is a Pike machine's thread list across all starts: earlier starts first, then the preference of
the pattern. An item is a run, or a match that waits because runs before it are preferred and still alive. When a run
accepts, everything less preferred is cut (of its start only under SKIP TO NEXT ROW), and rows after the match may
start new runs at once; if a preferred run accepts later, these are cut with the match they follow. A match comes out
when it is first in the list, which is the earliest moment at which it is decided. Nothing is ever read twice.

A run whose condition cannot be computed waits in its place, too: only if nothing preferred over it matches has its
condition been read.

Where timed-out partial matches are asked for, the most preferred run of a start that WITHIN ends stays in its place as
an item that waits, unless a match of that start comes after it: the attempt gave a match then.

Where rows are negated after a match, a run that accepts leaves a pending match, which cuts nothing: a negated row that
comes within WITHIN ends it. When WITHIN is over, the most preferred pending match of a start is its match. Most of
these wait at the front of the list, oldest first; a row that is not negated passes over all that are not due at once.
If the condition of such a negation reads the match, a pending match keeps its registers, and a row that may be negated
is tested for each, or, by an equality, for those with its value (matching.kernels.waiting): these stay linked until the
list is read there. Then no pending match of a start replaces another: a row may forbid one of them only.

Where rows are negated before a match, a run knows the nearest one before its start.

Long: timeouts and negated rows change what becomes of an item at every step of one pass.
"""

from __future__ import annotations

import numpy as np

from matching.kernels.jit import called, inlined, kernel
from matching.kernels.layout import UNSEEN, Counters, Parameters
from matching.kernels.match_buffer import mark_chain, mark_one
from matching.kernels.predicate import begin_registers, concerns, has, read_features, take
from matching.kernels.waiting import enter, finds, forbid, forbids_match, short_of
from matching.kernels.walks import walks_from
from matching.program.program import Mode, Skip

PAST_LAST_ROW = int(Mode.PAST_LAST_ROW)
TO_NEXT_ROW = int(Mode.TO_NEXT_ROW)
ALL = int(Mode.ALL)
P_MODE = int(Parameters.MODE)
P_MERGE = int(Parameters.MERGE)
P_AMBIGUOUS = int(Parameters.AMBIGUOUS)
P_STRICT = int(Parameters.STRICT)
P_WITHIN_US = int(Parameters.WITHIN_US)
P_WITHIN_ROWS = int(Parameters.WITHIN_ROWS)
P_DEGREE = int(Parameters.DEGREE)
P_COUNTS = int(Parameters.COUNT_REGISTERS)
P_RUNS_MAX = int(Parameters.RUNS_MAX)
P_SKIP = int(Parameters.SKIP)
P_TIMEOUTS = int(Parameters.TIMEOUTS)
P_ABSENT = int(Parameters.ABSENT)
P_NUMBER = int(Parameters.NUMBER)
P_CODED = int(Parameters.CODED)
P_FOLDS = int(Parameters.FOLDS)
SKIP_PAST_LAST_ROW = int(Skip.PAST_LAST_ROW)
SKIP_TO_FIRST = int(Skip.TO_FIRST)
C_FREE = int(Counters.FREE)
C_NODES = int(Counters.NODES)
C_DECIDED = int(Counters.DECIDED)
C_HEAP = int(Counters.HEAP)
C_LAST = int(Counters.LAST_PARTITION)
C_STUCK = int(Counters.STUCK)
C_FAILED_ROW = int(Counters.FAILED_ROW)
C_FAILED_LABEL = int(Counters.FAILED_LABEL)

#: What matching.specialise knows of a program when it writes `step` out for it, and where registers stand.
PLACE = "runs.{registers}[{at}, {r}]"
STATIC = frozenset({
    "mode", "merge", "ambiguous", "strict", "within_us", "within_rows", "degree", "runs_max", "timeouts", "absent",
    "leads", "trails", "some_bad", "counts", "accept_empty", "quiet", "b", "cannot", "breaks", "pending", "spent", "e",
    "v", "q", "lesser", "goes_on", "coded", "numbered", "folds", "ends_here",
})  # fmt: skip
#: Of what `step` calls, that which a specialised kernel has in the place of the call.
UNFOLDED = frozenset({"advance"})

#: States of items that are no runs. A function is compiled once more for each number that is given to it as such, so
#: that it gets np.int64(MATCH).
MATCH = -1
TIMEOUT = -2
FAILED = -3
PENDING = -4
#: Of an item that leaves its list.
GONE = -5
#: Of a pending match that has been forbidden and is still linked.
FORBIDDEN = -6

#: What `drop_runs` drops: what began before a time; all runs, but no pending matches; all.
OLD = 0
RUNS = 1
EVERYTHING = 2

#: A time before all.
BEGINNING = -(1 << 63)

#: What negated conditions say of a row.
MET = 1
BAD = 2

OK = 0
ROOM = 1  # a buffer is too small: grow and call again from the row returned
ERROR = 2  # a condition that was read cannot be computed; see Counters
BUDGET = 3  # a partition has more items than RUNS_MAX


@inlined
def heap_push(heap, counters, deadline, partition):
    i = counters[C_HEAP]
    counters[C_HEAP] += 1
    while i > 0:
        parent = (i - 1) >> 1
        at = heap.deadline[parent]
        if at < deadline or (at == deadline and heap.partition[parent] <= partition):
            break
        heap.deadline[i] = at
        heap.partition[i] = heap.partition[parent]
        i = parent
    heap.deadline[i] = deadline
    heap.partition[i] = partition


@called
def heap_pop(heap, counters):
    """Drops the first entry."""
    counters[C_HEAP] -= 1
    n = counters[C_HEAP]
    deadline = heap.deadline[n]
    partition = heap.partition[n]
    i = 0
    while True:
        child = 2 * i + 1
        if child >= n:
            break
        right = child + 1
        if right < n and (
            heap.deadline[right] < heap.deadline[child]
            or (heap.deadline[right] == heap.deadline[child] and heap.partition[right] < heap.partition[child])
        ):
            child = right
        at = heap.deadline[child]
        if deadline < at or (deadline == at and partition <= heap.partition[child]):
            break
        heap.deadline[i] = at
        heap.partition[i] = heap.partition[child]
        i = child
    heap.deadline[i] = deadline
    heap.partition[i] = partition


@inlined
def decide(p, node, row, waiting, partitions, decided, counters):
    """Hands out a match (waiting: -1) or a partial match that timed out in state `waiting`, which takes no number."""
    n = counters[C_DECIDED]
    counters[C_DECIDED] = n + 1
    decided.node[n] = node
    decided.row[n] = row
    decided.partition[n] = p
    decided.waiting[n] = waiting
    decided.number[n] = 0
    if waiting < 0:
        partitions.number[p] += 1
        decided.number[n] = partitions.number[p]


@called
def row_behind(node, first, program, buffer, counters):
    """Returns the ordinal of the row where the scan goes on after a match that began at `first`. O(its rows)."""
    skip = program.parameters[P_SKIP]
    length = 0
    to = np.int64(-1)  # rows after the one that SKIP TO means
    n = node
    while n >= 0:
        if program.skip_to[buffer.variable[n]] and (skip == SKIP_TO_FIRST or to < 0):
            to = length
        length += 1
        n = buffer.previous[n]
    if length == 0:
        return first + 1
    if skip == SKIP_PAST_LAST_ROW:
        return first + length
    if to < 0 or to == length - 1:
        counters[C_STUCK] += 1
        return first + 1
    return first + length - 1 - to


@called
def decide_heads(p, program, runs, buffer, partitions, decided, counters):
    """Hands out what waits at the head of the list: nothing preferred over it is alive. Where AFTER MATCH skips, what
    began before the row it goes on at is dropped."""
    chooses = program.parameters[P_MODE] == TO_NEXT_ROW and program.parameters[P_SKIP] > 0
    item = partitions.head[p]
    while item >= 0:
        state = runs.state[item]
        if state != FORBIDDEN and (not chooses or runs.first[item] >= partitions.resume[p]):
            if state >= 0 or state == PENDING:
                break
            if state == FAILED:
                counters[C_FAILED_ROW] = buffer.row[runs.node[item]] + 1
                counters[C_FAILED_LABEL] = buffer.variable[runs.node[item]]
                break
            waiting = runs.valid[item] if state == TIMEOUT else np.int64(-1)
            decide(p, runs.node[item], runs.row[item], waiting, partitions, decided, counters)
            if chooses and state == MATCH:
                partitions.resume[p] = row_behind(runs.node[item], runs.first[item], program, buffer, counters)
        runs.free[counters[C_FREE]] = item
        counters[C_FREE] += 1
        partitions.length[p] -= 1
        if partitions.calm_length[p] > 0:
            partitions.calm_length[p] -= 1
        item = runs.next[item]
    partitions.head[p] = item


@inlined
def timed_out(tail, first, runs):
    """True if the item `tail` is a partial match of the start `first` that timed out."""
    return tail >= 0 and runs.state[tail] == TIMEOUT and runs.first[tail] == first


@called
def drop_runs(p, before_ts, which, timeouts, runs, partitions, counters):
    """Drops the runs that began before `before_ts`, and of the pending matches that did all but the most preferred one
    of each start, which is its match now; what waits stays in place. which: OLD for that, RUNS, or EVERYTHING.
    timeouts: of each start that has no match the first run stays as one that timed out."""
    item = partitions.head[p]
    last = np.int64(-1)
    partitions.head[p] = -1
    calm = np.int64(-1)
    calm_length = np.int64(0)
    calm_left = partitions.calm_length[p]
    while item >= 0:
        following = runs.next[item]
        state = runs.state[item]
        keep = True
        is_calm = calm_left > 0
        if is_calm:
            calm_left -= 1
            if state == PENDING and which != EVERYTHING and runs.ts[item] >= before_ts:
                # the others of the settled prefix began later
                if last < 0:
                    partitions.head[p] = item
                else:
                    runs.next[last] = item
                calm_length += 1 + calm_left
                calm_left = np.int64(0)
                last = partitions.calm[p]
                calm = last
                item = runs.next[last]
                runs.next[last] = -1
                continue
        elif which == OLD and runs.ts[item] >= before_ts:
            # the others began later: they stay as they are
            if last < 0:
                partitions.head[p] = item
            else:
                runs.next[last] = item
            break
        if last >= 0 and runs.state[last] == MATCH and runs.first[last] == runs.first[item]:
            keep = False  # what is less preferred than the match of its start
        elif state == FORBIDDEN:
            keep = False
        elif state == PENDING:
            if which == EVERYTHING or runs.ts[item] < before_ts:
                runs.state[item] = MATCH
        elif state >= 0 and (which != OLD or runs.ts[item] < before_ts):
            keep = timeouts and not timed_out(last, runs.first[item], runs)
            if keep:
                runs.valid[item] = state
                runs.state[item] = TIMEOUT
        elif state == MATCH and timed_out(last, runs.first[item], runs):
            runs.state[last] = MATCH  # the attempt gives a match: it takes the place of the partial one
            runs.node[last] = runs.node[item]
            keep = False
        if not keep:
            runs.free[counters[C_FREE]] = item
            counters[C_FREE] += 1
            partitions.length[p] -= 1
        else:
            if last < 0:
                partitions.head[p] = item
            else:
                runs.next[last] = item
            runs.next[item] = -1
            last = item
            if is_calm:
                calm = item
                calm_length += 1
        item = following
    partitions.calm[p] = calm
    partitions.calm_length[p] = calm_length


@called
def negated(labels, mask, bad):
    """Finds the first of the labels whose condition a row meets, or whose condition cannot be computed. Returns (0, MET
    or BAD; that label). bad: like mask."""
    for v in labels:
        if (bad >> v) & 1 == 1:
            return BAD, v
        if (mask >> v) & 1 == 1:
            return MET, v
    return 0, -1


@inlined
def link(p, tail, item, runs, partitions):
    """Links an item to the list of partition p after `tail` (-1: it is the head)."""
    if tail >= 0:
        runs.next[tail] = item
    else:
        partitions.head[p] = item


@inlined
def put(p, tail, state, first, ts, row, node, valid, runs, partitions, free):
    """Links a new item after `tail`; returns its slot, and how many are free. (That is a local variable while a row is
    taken: in `counters` it would be read and written for each item.)"""
    free -= 1
    new = runs.free[free]
    runs.state[new] = state
    runs.first[new] = first
    runs.ts[new] = ts
    runs.row[new] = row
    runs.node[new] = node
    runs.valid[new] = valid
    runs.next[new] = -1
    link(p, tail, new, runs, partitions)
    return new, free


@inlined
def release(item, runs, free):
    """Frees the slot of an item; returns how many are free."""
    runs.free[free] = item
    return free + 1


@inlined
def store(node, row, variable, buffer, counters):
    """Adds a node to the match buffer after `node`; returns it."""
    new = counters[C_NODES]
    counters[C_NODES] = new + 1
    buffer.previous[new] = node
    buffer.row[new] = row
    buffer.variable[new] = variable
    return new


@inlined
def read_registers(program, item, runs, scratch):
    """`scratch.old` becomes the registers of a run."""
    for r in range(len(program.register_kind)):
        scratch.old[r] = runs.registers[item, r]


@inlined
def write_fresh(program, item, runs, scratch):
    """`scratch.fresh` becomes the registers of a run."""
    for r in range(len(program.register_kind)):
        runs.registers[item, r] = scratch.fresh[r]


@inlined
def settle(
    item, tail, t, position, ordinal, within_us, within_rows, timeouts, hit, hit_label, ended_first, runs, buffer,
    counters,
):  # fmt: skip
    """The state of an item at this row, before the row is taken; GONE: it leaves the list. A run that WITHIN ends
    leaves, or stays as a timeout. A pending match becomes a match, fails or leaves. hit, hit_label: see `negated`;
    ended_first: the start of a preferred match that ends at this row and is pending."""
    state = np.int64(runs.state[item])
    first = runs.first[item]
    over = (within_us >= 0 and t - runs.ts[item] > within_us) or (
        within_rows >= 0 and ordinal - first + 1 > within_rows
    )
    if state >= 0:
        if not over:
            return state
        if not timeouts or timed_out(tail, first, runs):
            return np.int64(GONE)
        runs.valid[item] = state
        state = np.int64(TIMEOUT)
        runs.state[item] = state
    elif state == MATCH:
        if timed_out(tail, first, runs):  # the attempt gives a match: it takes the place of the partial one
            runs.state[tail] = MATCH
            runs.node[tail] = runs.node[item]
            return np.int64(GONE)
    elif state == PENDING:
        if over or (hit == 0 and within_rows >= 0 and ordinal - first + 1 >= within_rows):
            state = np.int64(MATCH)
        elif hit == BAD:
            runs.node[item] = store(runs.node[item], position, hit_label, buffer, counters)
            state = np.int64(FAILED)
        elif hit == MET or ended_first == first:
            # a preferred match that ends at this row is ended by all that would end this one
            return np.int64(GONE)
        runs.state[item] = state
    return state


@inlined
def keep(p, item, tail, state, trails, calm_left, calm_end, calm, calm_length, runs, partitions):
    """Links an item that waits. If it is pending, the items of the settled prefix after it (calm_left, the last one is
    calm_end) began later and are not due either: they stay linked. Returns (tail, items of the prefix left, the last
    item of the new prefix, its length)."""
    goes_on = trails and state != FAILED and calm == tail
    passed = calm_left if state == PENDING else np.int64(0)
    link(p, tail, item, runs, partitions)
    tail = calm_end if passed > 0 else item
    if goes_on:
        calm = tail
        calm_length += 1 + passed
    return tail, calm_left - passed, calm, calm_length


@inlined
def node_for(p, node, position, v, first, ambiguous, runs, partitions, buffer, counters):
    """The node of the match buffer for a row taken as v after `node`: one for each start."""
    if ambiguous:
        item = partitions.head[p]
        while item >= 0:
            n = runs.node[item]
            if n >= 0 and buffer.previous[n] == node and buffer.row[n] == position:
                if buffer.variable[n] == v and runs.first[item] == first:
                    return n
            item = runs.next[item]
    return store(node, position, v, buffer, counters)


@inlined
def has_twin(p, node, q, lesser, runs, partitions):
    """True if a run took the same rows to state q, or to the one with its edges less preferred than ending."""
    item = partitions.head[p]
    while item >= 0:
        state = runs.state[item]
        if runs.node[item] == node and (state == q or (state >= 0 and state == lesser)):
            return True
        item = runs.next[item]
    return False


@inlined
def verdict(
    t, ordinal, first, node, spent, nearest, nearest_bad, ended_first, leads, trails, within_us, within_rows
):  # fmt: skip
    """Returns the state and node of the item for a run that accepts where rows are negated; 0: it is no match, or a
    preferred pending one replaces it."""
    if leads and nearest != UNSEEN:
        near = t - nearest <= within_us if within_us >= 0 else ordinal - nearest + 1 <= within_rows
        if near:
            return np.int64(FAILED if nearest_bad > 0 else 0), nearest_bad - 1
    if trails and ended_first == first:
        return np.int64(0), node
    return np.int64(PENDING if trails and not spent else MATCH), node


@inlined
def accept(p, tail, state, first, ts, row, node, runs, partitions, free):
    """Links the item for a run that accepts; a timeout of its start becomes the match instead. Returns the tail, and
    how many slots are free."""
    if timed_out(tail, first, runs):
        runs.state[tail] = MATCH
        runs.node[tail] = node
        return tail, free
    return put(p, tail, state, first, ts, row, node, np.int64(0), runs, partitions, free)


@inlined
def note_negated(p, t, ordinal, position, mask, bad, program, buffer, partitions, counters):
    """Notes a row that is negated before a match in its partition."""
    hit, label = negated(program.absent_before, mask, bad)
    if hit != 0:
        partitions.nearest[p] = t if program.parameters[P_WITHIN_US] >= 0 else ordinal
        partitions.nearest_bad[p] = 0
        if hit == BAD:
            partitions.nearest_bad[p] = 1 + store(np.int64(-1), position, label, buffer, counters)


@inlined
def room_for(length, calm_length, other_length, degree, runs_max, runs, buffer, heap, decided, counters):
    """Returns OK if a row of a partition with a list of this length can be taken, else ROOM or BUDGET. calm_length: of
    the settled prefix of the list, which stays. other_length: of the list that the row breaks under STRICT."""
    most = (length - calm_length + 2) * (degree + 1) + calm_length + other_length
    if (
        counters[C_FREE] < 2 * most
        or counters[C_NODES] + most > len(buffer.row)
        or counters[C_DECIDED] + most > len(decided.node)
        or counters[C_HEAP] + 1 > len(heap.deadline)
    ):
        return ROOM
    return BUDGET if length - calm_length > runs_max else OK


@inlined
def advance(
    p, i, m, b, t, position, ordinal, state, first, start_ts, start_row, node, valid, nearest, nearest_bad, spent, tail,
    cut_first, ended_first, free, stamp, mode, merge, ambiguous, within_us, within_rows, timeouts, absent, leads,
    trails, coded, folds, some_bad, feature, feature_f, feature_valid, program, runs, buffer, partitions, decided,
    scratch, counters, waiting,
):  # fmt: skip
    """Takes row i by the edges of a run, in order of preference. Its arguments are the variables of `step` with these
    names, so that a specialised kernel has this in the place of the call."""
    cut = False
    taken = np.int64(-1)
    taken_node = np.int64(-1)
    if concerns(program, m | b, state):
        for e in range(program.edge_start[state], program.edge_start[state + 1]):
            v = program.edge_variable[e]
            q = program.edge_target[e]
            cannot = some_bad and (b >> v) & 1 == 1
            if (not cannot and not has(program, m, v)) or (merge < 2 and scratch.visited[q] == stamp):
                continue
            truth, new_valid = take(program, v, cannot, valid, feature, feature_f, feature_valid, i, scratch)
            if truth == 0:
                continue
            if truth < 0:
                # what is less preferred in this attempt is read after this only
                bad_node = store(node, position, v, buffer, counters)
                tail, free = put(
                    p, tail, np.int64(FAILED), first, start_ts, start_row, bad_node, np.int64(0), runs, partitions,
                    free,
                )  # fmt: skip
                cut_first = first
                if mode == ALL:
                    counters[C_FAILED_ROW], counters[C_FAILED_LABEL] = position + 1, v
                break
            scratch.visited[q] = stamp
            ends_here = program.accept[q]
            repeats = folds and node >= 0 and buffer.variable[node] == v
            if taken != v and (ends_here or not repeats):
                taken = v
                taken_node = node_for(p, node, position, v, first, ambiguous, runs, partitions, buffer, counters)
            last_node = node if repeats else taken_node
            lesser = program.lesser[q] if absent != 0 else np.int64(-1)
            if ambiguous and has_twin(p, taken_node, q, lesser, runs, partitions):
                continue
            goes_on = program.edge_start[q + 1] > program.edge_start[q]
            if goes_on and (not spent or (timeouts and not program.accept[q] and not timed_out(tail, first, runs))):
                tail, free = put(
                    p, tail, TIMEOUT if spent else q, first, start_ts, start_row, last_node,
                    q if spent else new_valid, runs, partitions, free,
                )  # fmt: skip
                write_fresh(program, tail, runs, scratch)
                if leads:
                    runs.nearest[tail], runs.nearest_bad[tail] = nearest, nearest_bad
            if not ends_here:
                continue
            if mode == ALL:
                decide(p, taken_node, start_row, np.int64(-1), partitions, decided, counters)
                continue
            ends, end_node = np.int64(MATCH), taken_node
            if absent != 0 and not timed_out(tail, first, runs):
                ends, end_node = verdict(
                    t, ordinal, first, taken_node, spent, nearest, nearest_bad, ended_first, leads, trails,
                    within_us, within_rows,
                )  # fmt: skip
            if ends < 0:
                tail, free = accept(p, tail, ends, first, start_ts, start_row, end_node, runs, partitions, free)
                if ends != PENDING:
                    cut = mode == PAST_LAST_ROW
                    cut_first = first
                    break
                if coded:
                    runs.valid[tail] = new_valid
                    write_fresh(program, tail, runs, scratch)
                    enter(waiting, p, tail, runs)
                else:
                    ended_first = first
            if lesser >= 0 and not spent:  # what is less preferred than ending here
                tail, free = put(
                    p, tail, lesser, first, start_ts, start_row, last_node, new_valid, runs, partitions, free
                )  # fmt: skip
                write_fresh(program, tail, runs, scratch)
                if leads:
                    runs.nearest[tail], runs.nearest_bad[tail] = nearest, nearest_bad
    return tail, cut, cut_first, ended_first, free


@kernel
def step(
    begin, end, partition, mask, bad, ts, row, feature, feature_f, feature_valid,
    program, runs, buffer, partitions, heap, decided, scratch, counters, waiting,
):  # fmt: skip
    """Advances every run over the rows [begin, end) of the arrays; returns (next row, status).

    partition: int64, dense id; mask: int64, bit v set if the row meets the row-local part of variable v; bad: int64,
    bit v set if that or a feature of v cannot be computed (empty: all can); ts: int64 us;
    row: int64, position in the row store; feature: (features, n) int64 with the same memory as float64, and validity.
    O(rows * runs of their partitions * edges); with Merge.STATE a partition has at most one run a state.

    Long: what waits, what times out and what is negated share one pass over the list.
    """
    mode = program.parameters[P_MODE]
    merge = program.parameters[P_MERGE]
    ambiguous = program.parameters[P_AMBIGUOUS] != 0
    strict = program.parameters[P_STRICT] != 0
    within_us = program.parameters[P_WITHIN_US]
    within_rows = program.parameters[P_WITHIN_ROWS]
    degree = program.parameters[P_DEGREE]
    runs_max = program.parameters[P_RUNS_MAX]
    timeouts = program.parameters[P_TIMEOUTS] != 0
    absent = program.parameters[P_ABSENT]
    leads = absent & 1 != 0
    trails = absent & 2 != 0
    some_bad = len(bad) > 0
    coded = program.parameters[P_CODED] & 1 != 0
    folds = program.parameters[P_FOLDS] != 0
    numbered = program.parameters[P_NUMBER]
    counts = program.parameters[P_COUNTS]
    accept_empty = program.accept[0]
    quiet = not (strict or leads or accept_empty)
    stamp = scratch.stamp[0]

    i = begin
    status = OK
    while i < end:
        p = partition[i]
        m = mask[i]
        b = bad[i] if some_bad else np.int64(0)
        length = partitions.length[p]
        if length == 0 and quiet and not concerns(program, m | b, 0):  # nothing is there, and nothing begins
            partitions.ordinal[p] += 1
            i += 1
            continue
        calm_left, calm_end = np.int64(0), np.int64(-1)  # items passed over as long as nothing happens to them
        calm, calm_length = np.int64(-1), np.int64(0)  # and those of this row
        hit, hit_label = np.int64(0), np.int64(-1)
        nearest, nearest_bad = np.int64(UNSEEN), np.int64(0)
        last_p = counters[C_LAST]
        breaks = strict and last_p >= 0 and last_p != p
        if trails:
            calm_left, calm_end = partitions.calm_length[p], partitions.calm[p]
        other_length = partitions.length[last_p] if breaks else np.int64(0)
        status = room_for(length, calm_left, other_length, degree, runs_max, runs, buffer, heap, decided, counters)
        if coded and short_of(waiting, (length - calm_left + 2) * degree):
            status = ROOM
        if status != OK:
            break
        t = ts[i]
        decided_before = counters[C_DECIDED]
        position = row[i]
        read_features(program, feature, feature_f, feature_valid, i)
        if breaks:
            drop_runs(last_p, BEGINNING, RUNS, False, runs, partitions, counters)
            decide_heads(last_p, program, runs, buffer, partitions, decided, counters)
        if strict:
            counters[C_LAST] = p
        ordinal = partitions.ordinal[p]
        partitions.ordinal[p] = ordinal + 1
        tests_each = False  # the row may be negated after some pending matches only
        if trails:
            hit, hit_label = negated(program.absent_behind, m, b)
            if coded and hit != 0 and not some_bad and finds(waiting, m):
                forbid(
                    waiting, p, i, m, t, ordinal, within_us, within_rows, program, runs, feature, feature_f,
                    feature_valid, scratch,
                )  # fmt: skip
                hit = np.int64(0)
            elif coded and hit != 0:
                tests_each = True
                calm_left = np.int64(0)

        item = partitions.head[p]
        partitions.head[p] = -1
        free_before = counters[C_FREE]
        free = free_before
        tail = np.int64(-1)
        stamp += 1
        group = np.int64(-1)
        cut = False  # everything less preferred goes
        cut_first = np.int64(-1)  # or what is less preferred of this start
        ended_first = np.int64(-1)  # start of the last match made by this row that is pending
        at_start = False
        decided_ahead = np.int64(0)  # matches that wait before the item looked at
        while True:
            # ---- the next item: an old one, then the start of this row
            mine = item
            if mine >= 0:
                item = runs.next[mine]
                first = runs.first[mine]
                if calm_left > 0:
                    calm_left -= 1
                if cut or (mode == TO_NEXT_ROW and first == cut_first):
                    free = release(mine, runs, free)
                    continue
                pending = trails and runs.state[mine] == PENDING
                if coded and tests_each and pending:
                    read_registers(program, mine, runs, scratch)
                    hit, hit_label = forbids_match(
                        waiting, m, b, program, runs.valid[mine], feature, feature_f, feature_valid, i, scratch
                    )  # fmt: skip
                state = settle(
                    mine, tail, t, position, ordinal, within_us, within_rows, timeouts, hit, hit_label, ended_first,
                    runs, buffer, counters,
                )  # fmt: skip
                if pending and GONE < state != PENDING:
                    cut_first = first
                if GONE < state < 0:
                    if state == MATCH:
                        decided_ahead += 1
                    tail, calm_left, calm, calm_length = keep(
                        p, mine, tail, state, trails, calm_left, calm_end, calm, calm_length, runs, partitions
                    )  # fmt: skip
                    item = runs.next[tail]
                    runs.next[tail] = -1
                    continue
                free = release(mine, runs, free)
                if state <= GONE:
                    continue
                start_ts, start_row = runs.ts[mine], runs.row[mine]
                node, valid = runs.node[mine], runs.valid[mine]
                if leads:
                    nearest, nearest_bad = runs.nearest[mine], runs.nearest_bad[mine]
                read_registers(program, mine, runs, scratch)
            elif not at_start and not cut:
                at_start = True
                state = np.int64(0)
                first, start_ts, start_row = ordinal, t, position
                node, valid = np.int64(-1), np.int64(counts)
                if leads:
                    nearest, nearest_bad = partitions.nearest[p], partitions.nearest_bad[p]
                begin_registers(program, scratch)
                if numbered >= 0:
                    scratch.old[numbered] = partitions.number[p] + decided_ahead + 1
            else:
                break
            walks_from(program.walked, node)
            if merge == 1 and first != group:
                group = first
                stamp += 1
            # a run that already spans WITHIN n ROWS can take no further row
            spent = within_rows >= 0 and ordinal - first + 1 >= within_rows
            tail, cut, cut_first, ended_first, free = advance(
                p, i, m, b, t, position, ordinal, state, first, start_ts, start_row, node, valid, nearest, nearest_bad,
                spent, tail, cut_first, ended_first, free, stamp, mode, merge, ambiguous, within_us, within_rows,
                timeouts, absent, leads, trails, coded, folds, some_bad, feature, feature_f, feature_valid, program,
                runs, buffer, partitions, decided, scratch, counters, waiting,
            )  # fmt: skip
            # ---- the empty match of this row, less preferred than all that begins with it
            if accept_empty and mode != ALL and mine < 0 and not cut and cut_first != first:
                tail, free = accept(
                    p, tail, np.int64(MATCH), first, start_ts, start_row, np.int64(-1), runs, partitions, free
                )  # fmt: skip
        counters[C_FREE] = free
        if trails:
            partitions.calm[p], partitions.calm_length[p] = calm, calm_length
        partitions.length[p] = length + free_before - free
        if leads:
            note_negated(p, t, ordinal, position, m, b, program, buffer, partitions, counters)
        if partitions.head[p] >= 0 and runs.state[partitions.head[p]] < 0:
            decide_heads(p, program, runs, buffer, partitions, decided, counters)
        if within_us >= 0 and not partitions.queued[p] and partitions.head[p] >= 0:
            partitions.queued[p] = True
            heap_push(heap, counters, runs.ts[partitions.head[p]] + within_us, p)
        for k in range(decided_before, counters[C_DECIDED]):
            decided.at[k] = position
        i += 1
        if counters[C_FAILED_ROW] > 0:
            status = ERROR
            break
    scratch.stamp[0] = stamp
    return i, status


@kernel
def expire(watermark, held, program, runs, buffer, partitions, heap, decided, counters):
    """Drops the runs that no event can complete any more (watermark > first + WITHIN) and decides what waited for
    them. held: per partition the time of its first row that has come but has not been taken yet, or empty. Returns ROOM
    if `decided` is too small; then call again."""
    within_us = program.parameters[P_WITHIN_US]
    timeouts = program.parameters[P_TIMEOUTS] != 0
    while counters[C_HEAP] > 0 and heap.deadline[0] < watermark:
        p = heap.partition[0]
        if counters[C_DECIDED] + partitions.length[p] > len(decided.node):
            return ROOM
        heap_pop(heap, counters)
        partitions.queued[p] = False
        bound = watermark
        if len(held) > 0 and held[p] < bound:
            bound = held[p]
        drop_runs(p, bound - within_us, OLD, timeouts, runs, partitions, counters)
        decide_heads(p, program, runs, buffer, partitions, decided, counters)
        if counters[C_FAILED_ROW] > 0:  # what is over later is decided later
            return OK
        head = partitions.head[p]
        # what is over time but for the row that is held is queued when that row is taken
        if head >= 0 and runs.ts[head] + within_us >= watermark:
            partitions.queued[p] = True
            heap_push(heap, counters, runs.ts[head] + within_us, p)
    return OK


@kernel
def finish(begin, count, program, runs, buffer, partitions, decided, counters):
    """The input has ended: drops all runs of partitions [begin, count) and decides what waited. Returns the next
    partition, which is `count` unless `decided` is too small."""
    timeouts = program.parameters[P_TIMEOUTS] != 0
    for p in range(begin, count):
        if counters[C_DECIDED] + partitions.length[p] > len(decided.node):
            return p
        drop_runs(p, BEGINNING, EVERYTHING, timeouts, runs, partitions, counters)
        decide_heads(p, program, runs, buffer, partitions, decided, counters)
    return count


@kernel
def mark_runs(ids, runs, partitions, buffer, moved, keep):
    """Marks the nodes and rows that runs and waiting matches can reach; see matching.kernels.match_buffer."""
    for p in ids:
        mark_one(partitions.nearest_bad[p] - 1, buffer, moved, keep)
        item = partitions.head[p]
        while item >= 0:
            if runs.state[item] >= 0:
                mark_one(runs.nearest_bad[item] - 1, buffer, moved, keep)
            keep[runs.row[item]] = True
            mark_chain(runs.node[item], buffer, moved, keep)
            item = runs.next[item]


@kernel
def link_rows(partition, row, links):
    """Notes that these rows are taken, in their order."""
    for i in range(len(row)):
        links.prior[row[i]] = links.last[partition[i]]
        links.last[partition[i]] = row[i]


@kernel
def link_block(ids, begin, end, links):
    """Notes that partitions have come back. begin: the first row of each in the store, ascending; end: of the last."""
    for k in range(len(ids)):
        upto = begin[k + 1] if k + 1 < len(ids) else end
        links.last[ids[k]] = upto - 1 if upto > begin[k] else -1
        for r in range(begin[k], upto):
            links.prior[r] = r - 1 if r > begin[k] else -1


@kernel
def mark_linked(ids, runs, partitions, links, keep):
    """Marks all rows of partitions from the first row of a run or a waiting match on."""
    for p in ids:
        item = partitions.head[p]
        if item < 0:
            continue
        first = runs.row[item]
        while item >= 0:
            first = min(first, runs.row[item])
            item = runs.next[item]
        r = links.last[p]
        while r >= first:
            keep[r] = True
            r = links.prior[r]


@kernel
def move_links(ids, rows, links, row_moved):
    """Renumbers rows, of which there were so many."""
    for r in range(rows):
        to = row_moved[r]
        if to >= 0:
            before = links.prior[r]
            links.prior[to] = row_moved[before] if 0 <= before < r else -1
    for p in ids:
        if links.last[p] >= 0:
            links.last[p] = row_moved[links.last[p]]


@kernel
def move_runs(ids, runs, partitions, moved, row_moved):
    """Renumbers the nodes and rows of all runs."""
    for p in ids:
        if partitions.nearest_bad[p] > 0:
            partitions.nearest_bad[p] = moved[partitions.nearest_bad[p] - 1] + 1
        item = partitions.head[p]
        while item >= 0:
            if runs.nearest_bad[item] > 0 and runs.state[item] >= 0:
                runs.nearest_bad[item] = moved[runs.nearest_bad[item] - 1] + 1
            if runs.node[item] >= 0:
                runs.node[item] = moved[runs.node[item]]
            runs.row[item] = row_moved[runs.row[item]]
            item = runs.next[item]


@kernel
def items_of(ids, bounds, runs, partitions, out):
    """The items of the lists of these partitions, in their order. bounds: where those of each begin in `out`."""
    for k in range(len(ids)):
        at = bounds[k]
        item = partitions.head[ids[k]]
        while item >= 0:
            out[at] = item
            at += 1
            item = runs.next[item]

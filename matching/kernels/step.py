"""The interpreted NFA^b kernel: one pass over rows in order, a list of runs per partition in order of preference.

The list of a partition is a Pike machine's thread list across all starts: earlier starts first, then the preference of
the pattern. An item is a run, or a match that waits because runs before it are preferred and still alive. When a run
accepts, everything less preferred is cut (of its start only under SKIP TO NEXT ROW), and rows behind the match may
start new runs at once; if a preferred run accepts later, these are cut with the match they follow. A match comes out
when it is first in the list, which is the earliest moment at which it is decided. Nothing is ever read twice.

A run whose condition cannot be computed waits in its place, too: only if nothing preferred over it matches has its
condition been read.

Where timed-out partial matches are asked for, the most preferred run of a start that WITHIN ends stays in its place as
an item that waits, unless a match of that start stands behind it: the attempt gave a match then.

Where rows are negated behind a match, a run that accepts leaves a pending match, which cuts nothing: a negated row that
comes within WITHIN ends it. When WITHIN is over, the most preferred pending match of a start is its match. Most of
these wait at the front of the list, oldest first; a row that is not negated passes over all that are not due at once.
Where rows are negated before a match, a run knows the nearest one before its start.
"""

from __future__ import annotations

import numpy as np

from matching.kernels.jit import inlined, kernel
from matching.kernels.layout import UNSEEN, Counters, Parameters
from matching.kernels.match_buffer import mark_chain, mark_one
from matching.kernels.predicate import begin_registers, bind, concerns, has, meets, read_features
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
SKIP_PAST_LAST_ROW = int(Skip.PAST_LAST_ROW)
SKIP_TO_FIRST = int(Skip.TO_FIRST)
SKIP_TO_LAST = int(Skip.TO_LAST)
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
    "leads", "trails", "some_bad", "counts", "accept_empty", "quiet", "b", "cannot", "spent", "e", "v", "q",
})  # fmt: skip

#: States of items that are no runs.
MATCH = -1
TIMEOUT = -2
FAILED = -3
PENDING = -4

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


@kernel
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


@kernel
def row_behind(node, first, program, buffer, counters):
    """Ordinal of the row where AFTER MATCH goes on behind a match that began at ordinal `first`. O(its rows)."""
    skip = program.parameters[P_SKIP]
    length = 0
    to = np.int64(-1)  # rows behind the one that SKIP TO means
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


@kernel
def decide_heads(p, program, runs, buffer, partitions, decided, counters):
    """Hands out what waits at the head of the list: nothing preferred over it is alive. Where AFTER MATCH skips, what
    began before the row it goes on at is dropped."""
    chooses = program.parameters[P_MODE] == TO_NEXT_ROW and program.parameters[P_SKIP] > 0
    item = partitions.head[p]
    while item >= 0:
        state = runs.state[item]
        if not chooses or runs.first[item] >= partitions.resume[p]:
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
    """Whether the item `tail` is a partial match of the start `first` that timed out."""
    return tail >= 0 and runs.state[tail] == TIMEOUT and runs.first[tail] == first


@kernel
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
                # the others that are calm began later
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


@kernel
def negated(labels, mask, bad):
    """Whether a row meets the condition of one of the labels, the first that it meets or that cannot be computed:
    (0, MET or BAD; that label). bad: like mask."""
    for v in labels:
        if (bad >> v) & 1 == 1:
            return BAD, v
        if (mask >> v) & 1 == 1:
            return MET, v
    return 0, -1


@inlined
def put(runs, tail, new, state, first, ts, row, node, valid):
    """Fills the slot `new` and links it behind `tail` (-1: it is the head)."""
    runs.state[new] = state
    runs.first[new] = first
    runs.ts[new] = ts
    runs.row[new] = row
    runs.node[new] = node
    runs.valid[new] = valid
    runs.next[new] = -1
    if tail >= 0:
        runs.next[tail] = new


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


@kernel
def step(
    begin, end, partition, mask, bad, ts, row, feature, feature_f, feature_valid,
    program, runs, buffer, partitions, heap, decided, scratch, counters,
):  # fmt: skip
    """Advances every run over the rows [begin, end) of the arrays; returns (next row, status).

    partition: int64, dense id; mask: int64, bit v set if the row meets the row-local part of variable v; bad: int64,
    bit v set if that or a feature of v cannot be computed (empty: all can); ts: int64 us;
    row: int64, position in the row store; feature: (features, n) int64 with the same memory as float64, and validity.
    O(rows * runs of their partitions * edges); with Merge.STATE a partition has at most one run a state.
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
    counts = program.parameters[P_COUNTS]
    accept_empty = program.accept[0]
    quiet = not (strict or leads or accept_empty)
    stamp = scratch.stamp[0]
    visited = scratch.visited
    nodes = counters[C_NODES]
    free = counters[C_FREE]

    i = begin
    status = OK
    while i < end:
        p = partition[i]
        length = partitions.length[p]
        m = mask[i]
        b = bad[i] if some_bad else np.int64(0)
        if length == 0 and quiet and not concerns(program, m | b, 0):  # nothing is there, and nothing begins
            partitions.ordinal[p] += 1
            i += 1
            continue
        last_p = counters[C_LAST]
        calm_left = np.int64(0)  # items passed over as long as nothing happens to them
        if trails:
            calm_left = partitions.calm_length[p]
        most = (length - calm_left + 2) * (degree + 1) + calm_left
        if strict and last_p >= 0 and last_p != p:
            most += partitions.length[last_p]
        if (
            free < 2 * most
            or nodes + most > len(buffer.row)
            or counters[C_DECIDED] + most > len(decided.node)
            or counters[C_HEAP] + 1 > len(heap.deadline)
        ):
            status = ROOM
            break
        if length - calm_left > runs_max:
            status = BUDGET
            break
        t = ts[i]
        position = row[i]
        read_features(program, feature, feature_f, feature_valid, i)
        if strict:
            if last_p >= 0 and last_p != p:
                counters[C_FREE] = free
                drop_runs(last_p, BEGINNING, RUNS, False, runs, partitions, counters)
                decide_heads(last_p, program, runs, buffer, partitions, decided, counters)
                free = counters[C_FREE]
            counters[C_LAST] = p
        ordinal = partitions.ordinal[p]
        partitions.ordinal[p] = ordinal + 1

        item = partitions.head[p]
        head = np.int64(-1)
        tail = np.int64(-1)
        count = 0
        stamp += 1
        cut_first = np.int64(-1)  # start whose less preferred items are cut (SKIP TO NEXT ROW)
        group = np.int64(-1)
        cut = False
        at_start = False
        ended_first = np.int64(-1)  # start of the last match made by this row that is pending
        calm = np.int64(-1)
        calm_length = np.int64(0)
        hit = 0
        hit_label = np.int64(-1)
        if trails:
            hit, hit_label = negated(program.absent_behind, m, b)
        nearest = np.int64(UNSEEN)
        nearest_bad = np.int64(0)
        while True:
            # ---- the next item: an old one, then the start of this row
            if item >= 0:
                state = np.int64(runs.state[item])
                first = runs.first[item]
                start_ts = runs.ts[item]
                start_row = runs.row[item]
                node = runs.node[item]
                following = runs.next[item]
                if calm_left > 0:
                    calm_left -= 1
                if cut or (mode == TO_NEXT_ROW and first == cut_first):
                    runs.free[free] = item
                    free += 1
                    item = following
                    continue
                over = (within_us >= 0 and t - start_ts > within_us) or (
                    within_rows >= 0 and ordinal - first + 1 > within_rows
                )
                if state == MATCH and timed_out(tail, first, runs):
                    runs.state[tail] = MATCH  # the attempt gives a match: it takes the place of the partial one
                    runs.node[tail] = node
                    runs.free[free] = item
                    free += 1
                    item = following
                    continue
                if state >= 0 and over and timeouts and not timed_out(tail, first, runs):
                    runs.valid[item] = state
                    runs.state[item] = TIMEOUT
                    state = np.int64(TIMEOUT)
                if state == PENDING:
                    spans = within_rows >= 0 and ordinal - first + 1 >= within_rows
                    if over or (spans and hit == 0):
                        state = np.int64(MATCH)
                        cut_first = first
                    elif hit == BAD:
                        buffer.previous[nodes] = node
                        buffer.row[nodes] = position
                        buffer.variable[nodes] = hit_label
                        runs.node[item] = nodes
                        nodes += 1
                        state = np.int64(FAILED)
                        cut_first = first
                    elif hit == MET or ended_first == first:
                        # a preferred match that ends at this row is ended by all that would end this one
                        runs.free[free] = item
                        free += 1
                        item = following
                        continue
                    runs.state[item] = state
                if state < 0:
                    if tail < 0:
                        head = item
                    else:
                        runs.next[tail] = item
                    if trails and calm_length == count and state != FAILED:
                        calm = item
                        calm_length += 1
                    tail = item
                    count += 1
                    if state == PENDING and calm_left > 0:
                        # all up to the end of the calm began later and are not due either
                        tail = partitions.calm[p]
                        count += calm_left
                        if calm == item:
                            calm = tail
                            calm_length = count
                        calm_left = np.int64(0)
                        following = runs.next[tail]
                    runs.next[tail] = -1
                    item = following
                    continue
                if leads:
                    nearest = runs.nearest[item]
                    nearest_bad = runs.nearest_bad[item]
                valid = runs.valid[item]
                read_registers(program, item, runs, scratch)
                runs.free[free] = item
                free += 1
                item = following
                if over:
                    continue
            elif not at_start and not cut:
                at_start = True
                state = np.int64(0)
                first = ordinal
                start_ts = t
                start_row = position
                node = np.int64(-1)
                valid = np.int64(counts)
                if leads:
                    nearest = partitions.nearest[p]
                    nearest_bad = partitions.nearest_bad[p]
                begin_registers(program, scratch)
            else:
                break
            if merge == 1 and first != group:
                group = first
                stamp += 1
            # ---- its edges, in order of preference
            made_variable = np.int64(-1)
            made_node = np.int64(-1)
            if concerns(program, m | b, state):
                for e in range(program.edge_start[state], program.edge_start[state + 1]):
                    v = program.edge_variable[e]
                    cannot = some_bad and (b >> v) & 1 == 1
                    if not cannot and not has(program, m, v):
                        continue
                    failed = cannot
                    q = program.edge_target[e]
                    if merge < 2 and visited[q] == stamp:
                        continue
                    new = runs.free[free - 1]
                    new_valid = valid
                    if not failed:
                        new_valid = bind(program, v, valid, feature, feature_f, feature_valid, i, scratch)
                        failed = new_valid == -1
                    if not failed:
                        truth = meets(program, v, new_valid, feature, feature_f, feature_valid, i, scratch)
                        failed = truth < 0
                        if truth == 0:
                            continue
                    if failed:
                        # what is less preferred in this attempt is read after this only
                        buffer.previous[nodes] = node
                        buffer.row[nodes] = position
                        buffer.variable[nodes] = v
                        free -= 1
                        put(runs, tail, new, FAILED, first, start_ts, start_row, nodes, 0)
                        nodes += 1
                        if tail < 0:
                            head = new
                        tail = new
                        count += 1
                        if mode == ALL:
                            counters[C_FAILED_ROW] = position + 1
                            counters[C_FAILED_LABEL] = v
                        else:
                            cut_first = first
                        break
                    visited[q] = stamp
                    # ---- the match buffer: one node for one (row, variable, node before)
                    if made_variable != v:
                        made_variable = v
                        made_node = np.int64(-1)
                        if ambiguous:
                            other = head
                            while other >= 0:
                                n = runs.node[other]
                                if n >= 0 and buffer.previous[n] == node and buffer.row[n] == position:
                                    if buffer.variable[n] == v and runs.first[other] == first:
                                        made_node = n
                                        break
                                other = runs.next[other]
                        if made_node < 0:
                            made_node = nodes
                            buffer.previous[nodes] = node
                            buffer.row[nodes] = position
                            buffer.variable[nodes] = v
                            nodes += 1
                    if ambiguous:
                        # a run that took the same rows to the same state is this run
                        twin = False
                        other = head
                        while other >= 0:
                            there = runs.state[other]
                            if runs.node[other] == made_node and (
                                there == q or (absent != 0 and there >= 0 and there == program.lesser[q])
                            ):
                                twin = True
                                break
                            other = runs.next[other]
                        if twin:
                            continue
                    # a run that already spans WITHIN n ROWS can take no further row
                    spent = within_rows >= 0 and ordinal - first + 1 >= within_rows
                    if program.edge_start[q + 1] > program.edge_start[q]:
                        becomes = q
                        if spent:
                            becomes = np.int64(TIMEOUT)
                            new_valid = q
                        if not spent or (timeouts and not program.accept[q] and not timed_out(tail, first, runs)):
                            free -= 1
                            put(runs, tail, new, becomes, first, start_ts, start_row, made_node, new_valid)
                            write_fresh(program, new, runs, scratch)
                            if leads:
                                runs.nearest[new] = nearest
                                runs.nearest_bad[new] = nearest_bad
                            if tail < 0:
                                head = new
                            tail = new
                            count += 1
                    if program.accept[q]:
                        if mode == ALL:
                            decide(p, made_node, start_row, -1, partitions, decided, counters)
                        elif timed_out(tail, first, runs):
                            runs.state[tail] = MATCH
                            runs.node[tail] = made_node
                            if mode == PAST_LAST_ROW:
                                cut = True
                            else:
                                cut_first = first
                            break
                        elif absent == 0:
                            new = runs.free[free - 1]
                            free -= 1
                            put(runs, tail, new, -1, first, start_ts, start_row, made_node, 0)
                            if tail < 0:
                                head = new
                            tail = new
                            count += 1
                            if mode == PAST_LAST_ROW:
                                cut = True
                            else:
                                cut_first = first
                            break
                        else:
                            ends = np.int64(MATCH)
                            node_of = made_node
                            near = leads and nearest != UNSEEN
                            if near and within_us >= 0:
                                near = t - nearest <= within_us
                            elif near:
                                near = ordinal - nearest + 1 <= within_rows
                            if near and nearest_bad > 0:
                                ends = np.int64(FAILED)
                                node_of = nearest_bad - 1
                            elif near or (trails and ended_first == first):
                                ends = np.int64(0)  # no match, or one that a preferred one stands for
                            elif trails and not spent:
                                ends = np.int64(PENDING)
                                ended_first = first
                            if ends < 0:
                                item_made = runs.free[free - 1]
                                free -= 1
                                put(runs, tail, item_made, ends, first, start_ts, start_row, node_of, 0)
                                if tail < 0:
                                    head = item_made
                                tail = item_made
                                count += 1
                                if ends != PENDING:
                                    cut_first = first
                                    break
                            # what is less preferred than ending here
                            if program.lesser[q] >= 0 and not spent:
                                item_made = runs.free[free - 1]
                                free -= 1
                                write_fresh(program, item_made, runs, scratch)
                                put(
                                    runs, tail, item_made, program.lesser[q], first, start_ts, start_row, made_node,
                                    new_valid,
                                )  # fmt: skip
                                if leads:
                                    runs.nearest[item_made] = nearest
                                    runs.nearest_bad[item_made] = nearest_bad
                                if tail < 0:
                                    head = item_made
                                tail = item_made
                                count += 1
            # ---- the empty match of this row, less preferred than all that begins with it
            if at_start and item < 0 and accept_empty and mode != ALL and not cut and cut_first != first:
                if timed_out(tail, first, runs):
                    runs.state[tail] = MATCH
                    runs.node[tail] = -1
                    continue
                new = runs.free[free - 1]
                free -= 1
                put(runs, tail, new, -1, first, start_ts, start_row, -1, 0)
                if tail < 0:
                    head = new
                tail = new
                count += 1
        partitions.head[p] = head
        partitions.length[p] = count
        if trails:
            partitions.calm[p] = calm
            partitions.calm_length[p] = calm_length
        if leads:
            hit, hit_label = negated(program.absent_before, m, b)
            if hit != 0:
                partitions.nearest[p] = t if within_us >= 0 else ordinal
                partitions.nearest_bad[p] = 0
                if hit == BAD:
                    buffer.previous[nodes] = -1
                    buffer.row[nodes] = position
                    buffer.variable[nodes] = hit_label
                    nodes += 1
                    partitions.nearest_bad[p] = nodes
        counters[C_FREE] = free
        if head >= 0 and runs.state[head] < 0:
            decide_heads(p, program, runs, buffer, partitions, decided, counters)
            free = counters[C_FREE]
        if within_us >= 0 and not partitions.queued[p] and partitions.head[p] >= 0:
            partitions.queued[p] = True
            heap_push(heap, counters, runs.ts[partitions.head[p]] + within_us, p)
        i += 1
        if counters[C_FAILED_ROW] > 0:
            status = ERROR
            break
    counters[C_FREE] = free
    counters[C_NODES] = nodes
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

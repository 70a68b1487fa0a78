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
"""

from __future__ import annotations

import numpy as np

from matching.kernels.jit import kernel
from matching.kernels.layout import Counters, Parameters
from matching.kernels.predicate import holds, update_registers
from query.automaton.program import Mode, Skip

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

#: States of items that are no runs.
MATCH = -1
TIMEOUT = -2
FAILED = -3

OK = 0
ROOM = 1  # a buffer is too small: grow and call again from the row returned
ERROR = 2  # a condition that was read cannot be computed; see Counters
BUDGET = 3  # a partition has more items than RUNS_MAX


@kernel
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


@kernel
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
            if state >= 0:
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
        item = runs.next[item]
    partitions.head[p] = item


@kernel
def timed_out(tail, first, runs):
    """Whether the item `tail` is a partial match of the start `first` that timed out."""
    return tail >= 0 and runs.state[tail] == TIMEOUT and runs.first[tail] == first


@kernel
def drop_runs(p, before_ts, everything, timeouts, runs, partitions, counters):
    """Drops the runs that began before `before_ts` (or all); what waits stays in place. timeouts: of each start that
    has no match the first run stays as one that timed out."""
    item = partitions.head[p]
    last = np.int64(-1)
    partitions.head[p] = -1
    while item >= 0:
        following = runs.next[item]
        state = runs.state[item]
        keep = True
        if state >= 0 and (everything or runs.ts[item] < before_ts):
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
        item = following


@kernel
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
    some_bad = len(bad) > 0
    registers = len(program.register_kind)
    accept_empty = program.accept[0]
    stamp = scratch.stamp[0]
    visited = scratch.visited
    nodes = counters[C_NODES]
    free = counters[C_FREE]

    i = begin
    status = OK
    while i < end:
        p = partition[i]
        length = partitions.length[p]
        last_p = counters[C_LAST]
        most = (length + 2) * (degree + 1)
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
        if length > runs_max:
            status = BUDGET
            break
        t = ts[i]
        m = mask[i]
        position = row[i]
        if strict:
            if last_p >= 0 and last_p != p:
                counters[C_FREE] = free
                drop_runs(last_p, 0, True, False, runs, partitions, counters)
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
        while True:
            # ---- the next item: an old one, then the start of this row
            if item >= 0:
                state = np.int64(runs.state[item])
                first = runs.first[item]
                start_ts = runs.ts[item]
                start_row = runs.row[item]
                node = runs.node[item]
                following = runs.next[item]
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
                if state < 0:
                    if tail < 0:
                        head = item
                    else:
                        runs.next[tail] = item
                    runs.next[item] = -1
                    tail = item
                    count += 1
                    item = following
                    continue
                valid = runs.valid[item]
                if registers > 0:
                    for r in range(registers):
                        scratch.old[r] = runs.registers[item, r]
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
                valid = program.parameters[P_COUNTS]
                for r in range(registers):
                    scratch.old[r] = 0
            else:
                break
            if merge == 1 and first != group:
                group = first
                stamp += 1
            # ---- its edges, in order of preference
            made_variable = np.int64(-1)
            made_node = np.int64(-1)
            for e in range(program.edge_start[state], program.edge_start[state + 1]):
                v = program.edge_variable[e]
                failed = some_bad and (bad[i] >> v) & 1 == 1
                if (m >> v) & 1 == 0 and not failed:
                    continue
                q = program.edge_target[e]
                if merge < 2 and visited[q] == stamp:
                    continue
                new = runs.free[free - 1]
                new_valid = valid
                if registers > 0 and not failed:
                    for r in range(registers):
                        runs.registers[new, r] = scratch.old[r]
                    new_valid = update_registers(
                        program, runs.registers[new], runs.registers_f[new], valid, v, feature, feature_f,
                        feature_valid, i,
                    )  # fmt: skip
                    failed = new_valid == -1
                if not failed and program.code_start[v + 1] > program.code_start[v]:
                    truth = holds(program, v, runs.registers[new], new_valid, feature, feature_valid, i, scratch)
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
                        if runs.node[other] == made_node and runs.state[other] == q:
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
                    else:
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
        drop_runs(p, bound - within_us, False, timeouts, runs, partitions, counters)
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
        drop_runs(p, 0, True, timeouts, runs, partitions, counters)
        decide_heads(p, program, runs, buffer, partitions, decided, counters)
    return count


@kernel
def measure_lengths(decided, count, buffer, bounds):
    """bounds: int64 (count + 1,), filled with the running number of matched rows."""
    bounds[0] = 0
    for k in range(count):
        n = decided.node[k]
        length = 0
        while n >= 0:
            length += 1
            n = buffer.previous[n]
        bounds[k + 1] = bounds[k] + length


@kernel
def unroll(
    decided, count, buffer, bounds, rows, variables,
    ts, source, offset, seq, out_ts, out_source, out_offset, out_seq,
):  # fmt: skip
    """Walks the buffer back from each match and writes its rows and variables in order, with the rows' identities."""
    for k in range(count):
        n = decided.node[k]
        j = bounds[k + 1]
        while n >= 0:
            j -= 1
            r = buffer.row[n]
            rows[j] = r
            variables[j] = buffer.variable[n]
            out_ts[j] = ts[r]
            out_source[j] = source[r]
            out_offset[j] = offset[r]
            out_seq[j] = seq[r]
            n = buffer.previous[n]


@kernel
def mark_live(partition_count, runs, partitions, buffer, nodes, moved, keep):
    """moved: int64 (nodes,), set to the new index of every node that a run or a waiting match can reach, else -1;
    keep: bool per row of the store, set for their rows. Returns the number of live nodes."""
    moved[:nodes] = -1
    for p in range(partition_count):
        item = partitions.head[p]
        while item >= 0:
            n = runs.node[item]
            keep[runs.row[item]] = True
            while n >= 0 and moved[n] < 0:
                moved[n] = 0
                keep[buffer.row[n]] = True
                n = buffer.previous[n]
            item = runs.next[item]
    live = 0
    for n in range(nodes):
        if moved[n] == 0:
            moved[n] = live
            live += 1
    return live


@kernel
def move_live(partition_count, runs, partitions, buffer, nodes, moved, row_moved):
    """Compacts the match buffer in place and renumbers rows; order is kept, so predecessors stay before."""
    for n in range(nodes):
        to = moved[n]
        if to >= 0:
            previous = buffer.previous[n]
            buffer.previous[to] = moved[previous] if previous >= 0 else -1
            buffer.row[to] = row_moved[buffer.row[n]]
            buffer.variable[to] = buffer.variable[n]
    for p in range(partition_count):
        item = partitions.head[p]
        while item >= 0:
            if runs.node[item] >= 0:
                runs.node[item] = moved[runs.node[item]]
            runs.row[item] = row_moved[runs.row[item]]
            item = runs.next[item]

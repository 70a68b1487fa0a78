"""Run lists of the strategies that pass over rows: SKIP TILL NEXT MATCH and SKIP TILL ANY MATCH ([SASE] section 4.2).

The runs of a partition stand in order of their first rows, those of one first row in order of preference: at the first
row where two differ take comes before begin, and both before passing over it. So matches that one row ends come out in
the order of the list, and rows end matches in their own order. A run that passes over a row stays as it is, behind the
runs that took it; a row that meets no condition a run waits for costs a look at a mask.

Where all matches are not wanted the first one decides: one per start drops the runs of its start, matches that do not
overlap drop all runs.

Rows that negations forbid between two rows of a match are noted in a run as it passes over them. What it forbids
is asked when the next row is bound, which also clears the notes.
"""

from __future__ import annotations

import numpy as np

from matching.kernels.jit import inlined, kernel
from matching.kernels.layout import Counters, Parameters
from matching.kernels.predicate import holds, update_registers
from matching.kernels.step import BAD, BUDGET, ERROR, OK, ROOM, decide, heap_push, negated
from query.automaton.program import Ignore, Mode

P_MODE = int(Parameters.MODE)
P_WITHIN_US = int(Parameters.WITHIN_US)
P_WITHIN_ROWS = int(Parameters.WITHIN_ROWS)
P_DEGREE = int(Parameters.DEGREE)
P_COUNTS = int(Parameters.COUNT_REGISTERS)
P_RUNS_MAX = int(Parameters.RUNS_MAX)
P_IGNORE = int(Parameters.IGNORE)
C_NODES = int(Counters.NODES)
C_FREE = int(Counters.FREE)
C_DECIDED = int(Counters.DECIDED)
C_HEAP = int(Counters.HEAP)
C_FAILED_ROW = int(Counters.FAILED_ROW)
C_FAILED_LABEL = int(Counters.FAILED_LABEL)
PAST_LAST_ROW = int(Mode.PAST_LAST_ROW)
ALL = int(Mode.ALL)
ANY = int(Ignore.ANY)

#: `Runs.passed`: of the rows passed over since the last one bound, the first that says something of gap g: bit g if it
#: meets a condition of the gap, bit 32 + g if that cannot be computed; then `Runs.nearest_bad` has the row.
BAD_SHIFT = 32
GAPS = (1 << 30) - 1
#: A gap that lies behind was of the latter kind: it is an error if the run ends in a match.
POISONED = 1 << 62


@inlined
def passed_over(program, mask, bad):
    """What a row that is passed over adds to `Runs.passed`."""
    passed = np.int64(0)
    for g in range(len(program.gap_start) - 1):
        said, _ = negated(program.gap_label[program.gap_start[g] : program.gap_start[g + 1]], mask, bad)
        if said != 0:
            passed |= np.int64(1) << (g + BAD_SHIFT if said == BAD else g)
    return passed


@inlined
def link(item, tail, head, runs):
    """Puts an item behind `tail` (-1: at the head of the list); returns the head. Most items stand there already."""
    if tail < 0:
        return item
    if runs.next[tail] != item:
        runs.next[tail] = item
    return head


@kernel
def drop_behind(kept, tail, head, runs, free):
    """Drops the items behind `kept` (-1: all) up to `tail`; returns how many slots are free then."""
    item = head if kept < 0 else runs.next[kept]
    while kept != tail:
        runs.free[free] = item
        free += 1
        kept = item
        item = runs.next[item]
    return free


@kernel
def step(
    begin, end, partition, mask, bad, ts, row, feature, feature_f, feature_valid,
    program, runs, buffer, partitions, heap, decided, scratch, counters,
):  # fmt: skip
    """Like matching.kernels.step.step, for programs that pass over rows. O(rows * runs of their partitions * edges)."""
    mode = program.parameters[P_MODE]
    skips_any = program.parameters[P_IGNORE] == ANY
    within_us = program.parameters[P_WITHIN_US]
    within_rows = program.parameters[P_WITHIN_ROWS]
    degree = program.parameters[P_DEGREE]
    some_bad = len(bad) > 0
    some_gaps = len(program.gap_label) > 0
    registers = len(program.register_kind)
    nodes = counters[C_NODES]
    free = counters[C_FREE]

    i = begin
    status = OK
    while i < end:
        p = partition[i]
        length = partitions.length[p]
        most = (length + 2) * (degree + 1)
        if (
            free < 2 * most
            or nodes + most > len(buffer.row)
            or counters[C_DECIDED] + most > len(decided.node)
            or counters[C_HEAP] + 1 > len(heap.deadline)
        ):
            status = ROOM
            break
        if length > program.parameters[P_RUNS_MAX]:
            status = BUDGET
            break
        t = ts[i]
        m = mask[i]
        b = bad[i] if some_bad else np.int64(0)
        position = row[i]
        ordinal = partitions.ordinal[p]
        partitions.ordinal[p] = ordinal + 1
        passed = passed_over(program, m, b) if some_gaps else np.int64(0)
        bad_node = np.int64(-1)  # of this row, as one whose negated condition cannot be computed

        item = partitions.head[p]
        head = np.int64(-1)
        tail = np.int64(-1)
        some_old = within_us >= 0 or within_rows >= 0  # the first runs may be over time; behind one that is not none is
        count = 0
        group = np.int64(-1)  # the start whose runs are looked at
        group_tail = np.int64(-1)
        group_count = 0
        found = np.int64(-1)  # the last start that has its match
        ended = False  # matches may not overlap, and one has ended here
        at_start = False
        while True:
            # ---- the next run, then the start of this row
            mine = item
            if item >= 0:
                item = runs.next[mine]
                if some_old:
                    some_old = (within_us >= 0 and t - runs.ts[mine] > within_us) or (
                        within_rows >= 0 and ordinal - runs.first[mine] + 1 > within_rows
                    )
                if some_old or ended:
                    runs.free[free] = mine
                    free += 1
                    continue
                state = np.int64(runs.state[mine])
                if mode == ALL and passed == 0 and (m | b) & program.state_mask[state] == 0:
                    head = link(mine, tail, head, runs)
                    tail = mine
                    count += 1
                    continue
                first = runs.first[mine]
                if first == found:
                    runs.free[free] = mine
                    free += 1
                    continue
                if first != group:
                    group = first
                    group_tail = tail
                    group_count = count
                start_ts = runs.ts[mine]
                start_row = runs.row[mine]
                node = runs.node[mine]
                valid = runs.valid[mine]
                before = runs.passed[mine]
                bad_before = runs.nearest_bad[mine]
            elif not at_start and not ended:
                at_start = True
                state = np.int64(0)
                first = ordinal
                group = first
                group_tail = tail
                group_count = count
                start_ts = t
                start_row = position
                node = np.int64(-1)
                valid = program.parameters[P_COUNTS]
                before = np.int64(0)
                bad_before = np.int64(0)
            else:
                break
            may_pass = True
            over = False  # a match has ended that drops this run
            # a run that already spans WITHIN n ROWS can take no further row
            spent = within_rows >= 0 and ordinal - first + 1 >= within_rows
            if (m | b) & program.state_mask[state] != 0:
                for e in range(program.edge_start[state], program.edge_start[state + 1]):
                    v = program.edge_variable[e]
                    failed = (b >> v) & 1 == 1
                    if (m >> v) & 1 == 0 and not failed:
                        continue
                    new = runs.free[free - 1]
                    new_valid = valid
                    if registers > 0 and not failed:
                        for r in range(registers):
                            runs.registers[new, r] = 0 if mine < 0 else runs.registers[mine, r]
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
                        counters[C_FAILED_ROW] = position + 1
                        counters[C_FAILED_LABEL] = v
                        continue
                    if program.edge_waits[e] and not skips_any:
                        may_pass = False
                    poison = before & POISONED
                    gap = program.edge_gap[e]
                    if gap >= 0:
                        if poison == 0 and (before >> gap) & 1 == 1:
                            continue
                        if (before >> (gap + BAD_SHIFT)) & 1 == 1:
                            poison = np.int64(POISONED)
                    q = program.edge_target[e]
                    buffer.previous[nodes] = node
                    buffer.row[nodes] = position
                    buffer.variable[nodes] = v
                    nodes += 1
                    if program.edge_start[q + 1] > program.edge_start[q] and not spent:
                        free -= 1
                        runs.state[new] = q
                        runs.first[new] = first
                        runs.ts[new] = start_ts
                        runs.row[new] = start_row
                        runs.node[new] = nodes - 1
                        runs.valid[new] = new_valid
                        runs.passed[new] = poison
                        runs.nearest_bad[new] = bad_before if poison != 0 else 0
                        head = link(new, tail, head, runs)
                        tail = new
                        count += 1
                    if not program.accept[q]:
                        continue
                    if poison != 0:
                        counters[C_FAILED_ROW] = buffer.row[bad_before - 1] + 1
                        counters[C_FAILED_LABEL] = buffer.variable[bad_before - 1]
                        continue
                    decide(p, nodes - 1, start_row, -1, partitions, decided, counters)
                    if mode != ALL:
                        found = first
                        over = True
                        if mode == PAST_LAST_ROW:
                            ended = True
                            group_tail = np.int64(-1)
                            group_count = 0
                        free = drop_behind(group_tail, tail, head, runs, free)
                        tail = group_tail
                        count = group_count
                        break
            if mine < 0:
                continue
            if may_pass and not over and not spent:
                if passed != 0:
                    known = (before | before >> BAD_SHIFT) & GAPS
                    fresh = passed & ~(known | known << BAD_SHIFT)
                    if fresh >> BAD_SHIFT != 0 and bad_before == 0:
                        if bad_node < 0:
                            bad_node = nodes
                            buffer.previous[nodes] = -1
                            buffer.row[nodes] = position
                            buffer.variable[nodes] = program.gap_label[0]
                            nodes += 1
                        runs.nearest_bad[mine] = bad_node + 1
                    runs.passed[mine] = before | fresh
                head = link(mine, tail, head, runs)
                tail = mine
                count += 1
            else:
                runs.free[free] = mine
                free += 1
        if tail < 0:
            head = np.int64(-1)
        elif runs.next[tail] != -1:
            runs.next[tail] = -1
        partitions.head[p] = head
        partitions.length[p] = count
        if within_us >= 0 and not partitions.queued[p] and head >= 0:
            partitions.queued[p] = True
            heap_push(heap, counters, runs.ts[head] + within_us, p)
        i += 1
        if counters[C_FAILED_ROW] > 0:
            status = ERROR
            break
    counters[C_FREE] = free
    counters[C_NODES] = nodes
    return i, status

"""Runs of the strategies that pass over rows: SKIP TILL NEXT MATCH and SKIP TILL ANY MATCH ([SASE] section 4.2).

The runs of a partition stand side by side in a block, in order of their first rows, those of one first row in order of
preference: at the first row where two differ take comes before begin, and both before passing over it. So matches that
one row ends come out in the order of the block, and rows end matches in their own order. A run that passes over a row
stays as it is, after the runs that took it; a row that meets no condition a run waits for costs a look at a mask.

A row reads its partition's block from front to back and writes it anew in place: what becomes of a run is written
where it stood, as long as the runs before it have not become more. If they have, the runs not read yet are moved to the
end of the block, or all to a larger one. Runs that WITHIN has ended are at the front: dropping them moves nothing.

Where all matches are not wanted the first one decides: one per start drops the runs of its start, matches that do not
overlap drop all runs, also those of other partitions of its group (matching.kernels.runs_in_blocks.Groups).

Rows that negations forbid between two rows of a match are noted in a run as it passes over them. What it forbids
is asked when the next row is bound, which also clears the notes.

Where rows are negated before a match, a partition knows the nearest one, and a run the nearest one before its start:
whether WITHIN reaches it shows with the last row.

Where rows are negated after a match, one that has its last row waits until WITHIN is over. The matches of one start
that wait are a chain of their last nodes and have one line, the first one of those of its start. A negated row comes
after all of them, and drops all that WITHIN has not ended before. Those whose WITHIN ends at one time come out in the
order of their last rows, then of their starts, then of preference, which is the order in which their last nodes were
made. Where all matches are not wanted only the first one of a start waits: what drops it drops the later ones too.

Where the condition of a negation reads the match, it is tested for each run, whose registers it reads, and for each
match that waits, which has a line of its own.

Long: runs move within their block at every step, so the block, what waits in it and the pass over it are one idea.

`step` is also the source of specialised kernels (matching.specialise): STATIC names what is known of a program.
"""

from __future__ import annotations

import numpy as np

from matching.kernels.jit import called, inlined, kernel
from matching.kernels.layout import Counters, Parameters
from matching.kernels.predicate import concerns, forbids, has, read_features, take
from matching.kernels.runs_in_blocks import (
    BAD_NODE,
    BASE,
    BEGIN,
    FIRST,
    LABEL_BITS,
    LABELS,
    LENGTH,
    NEAREST,
    NODE,
    NUMBER,
    ORDINAL,
    PASSED,
    QUEUED,
    REGISTERS,
    RESUME,
    ROW,
    SAID,
    SIZE,
    STATE,
    TS,
    VALID,
    WAITING,
    WAITS,
    copy_lines,
    drop_if_ended,
    end_group,
    leave_block,
    make_gap,
)
from matching.kernels.step import BAD, BUDGET, ERROR, OK, ROOM, heap_pop, heap_push, negated
from matching.kernels.walks import walks_from
from matching.program.program import Ignore, Mode

P_MODE = int(Parameters.MODE)
P_WITHIN_US = int(Parameters.WITHIN_US)
P_WITHIN_ROWS = int(Parameters.WITHIN_ROWS)
P_DEGREE = int(Parameters.DEGREE)
P_COUNTS = int(Parameters.COUNT_REGISTERS)
P_RUNS_MAX = int(Parameters.RUNS_MAX)
P_IGNORE = int(Parameters.IGNORE)
P_ABSENT = int(Parameters.ABSENT)
P_CARRIES = int(Parameters.CARRIES)
P_CODED = int(Parameters.CODED)
C_NODES = int(Counters.NODES)
C_DECIDED = int(Counters.DECIDED)
C_HEAP = int(Counters.HEAP)
C_FAILED_ROW = int(Counters.FAILED_ROW)
C_FAILED_LABEL = int(Counters.FAILED_LABEL)
PAST_LAST_ROW = int(Mode.PAST_LAST_ROW)
ALL = int(Mode.ALL)
ANY = int(Ignore.ANY)


#: Of the first row passed over since the last one bound that matters to gap g: bit g if it meets a condition of the
#: gap, bit 32 + g if that cannot be computed; then BAD_NODE has the row.
BAD_SHIFT = 32
GAPS = (1 << 30) - 1
#: An earlier gap was of the latter kind: it is an error if the run ends in a match.
POISONED = 1 << 62
#: An earlier gap was of the former kind, so that the run is no match. It goes on only where a row before it
#: could not be computed: that is an error even so.
DOOMED = 1 << 30


#: What matching.specialise knows of a program when it writes `step` out for it, and where registers stand.
PLACE = "runs.{line}[{at}, {column}]"
STATIC = frozenset({
    "mode", "carries", "skips_any", "within_us", "within_rows", "degree", "runs_max", "counts", "some_gaps",
    "some_bad", "b", "cannot", "passed", "spent", "e", "v", "q", "absent", "leads", "trails", "one_by_one",
    "coded_behind", "coded_gaps", "asks_gaps", "asks_behind", "over",
})  # fmt: skip
#: Of what `step` calls, that which a specialised kernel has in the place of the call.
UNFOLDED: frozenset[str] = frozenset()


@inlined
def passed_over(program, mask, bad):
    """Returns the bits that a row that is passed over adds to PASSED of a run."""
    passed = np.int64(0)
    for g in range(len(program.gap_start) - 1):
        if program.gap_coded[g]:
            continue
        said, _ = negated(program.gap_label[program.gap_start[g] : program.gap_start[g + 1]], mask, bad)
        if said != 0:
            passed |= np.int64(1) << (g + BAD_SHIFT if said == BAD else g)
    return passed


@called
def passed_of(state, mask, bad, program, valid, feature, feature_f, feature_valid, i, scratch):
    """Returns the bits that row i adds to PASSED of a run in this state, of which `scratch.old` has the registers, by
    the gaps after which it may go on and whose conditions read the match."""
    passed = np.int64(0)
    for e in range(program.edge_start[state], program.edge_start[state + 1]):
        g = program.edge_gap[e]
        if g >= 0 and program.gap_coded[g] and passed & (np.int64(1) << g | np.int64(1) << (g + BAD_SHIFT)) == 0:
            said, _ = forbids(
                program.gap_label[program.gap_start[g] : program.gap_start[g + 1]], mask, bad, program, valid, feature,
                feature_f, feature_valid, i, scratch,
            )  # fmt: skip
            if said != 0:
                passed |= np.int64(1) << (g + BAD_SHIFT if said == BAD else g)
    return passed


@inlined
def decide(p, node, row, blocks, decided, counters):
    """Hands out a match."""
    n = counters[C_DECIDED]
    counters[C_DECIDED] = n + 1
    blocks[p, NUMBER] += 1
    decided.node[n] = node
    decided.row[n] = row
    decided.partition[n] = p
    decided.waiting[n] = -1
    decided.number[n] = blocks[p, NUMBER]


@inlined
def hand_out(program, valid, decided, scratch, counters):
    """The registers that come out with the next match."""
    for k in range(len(program.carried)):
        r = program.carried[k]
        decided.carried[counters[C_DECIDED], k] = scratch.fresh[r] if (valid >> r) & 1 != 0 else -1


@inlined
def read_or_begin(program, of, runs, scratch):
    """`scratch.old` becomes the registers of the run on a line; -1: of a run that begins."""
    for r in range(len(program.register_kind)):
        scratch.old[r] = 0 if of < 0 else runs.line[of, REGISTERS + r]


@inlined
def write_fresh(program, to, runs, scratch):
    for r in range(len(program.register_kind)):
        runs.line[to, REGISTERS + r] = scratch.fresh[r]


@inlined
def write_old(program, to, runs, scratch):
    for r in range(len(program.register_kind)):
        runs.line[to, REGISTERS + r] = scratch.old[r]


@inlined
def copy_line(of, to, width, runs):
    for c in range(width):
        runs.line[to, c] = runs.line[of, c]


@called
def by_node(begin, end, decided):
    """Sorts [begin, end) of `decided` by nodes (Shell's sort)."""
    gap = 1
    while 3 * gap < end - begin:
        gap = 3 * gap + 1
    while gap > 0:
        for k in range(begin + gap, end):
            node = decided.node[k]
            row = decided.row[k]
            first = decided.number[k]
            last = decided.waiting[k]
            at = k
            while at - gap >= begin and decided.node[at - gap] > node:
                decided.node[at] = decided.node[at - gap]
                decided.row[at] = decided.row[at - gap]
                decided.number[at] = decided.number[at - gap]
                decided.waiting[at] = decided.waiting[at - gap]
                at -= gap
            decided.node[at] = node
            decided.row[at] = row
            decided.number[at] = first
            decided.waiting[at] = last
        gap //= 3


@called
def decide_together(p, begin, end, program, runs, blocks, decided, counters):
    """Hands out the matches that wait in the lines [begin, end), which are decided at one time."""
    low = counters[C_DECIDED]
    high = low
    for at in range(begin, end):
        if runs.line[at, STATE] == WAITS:
            node = runs.line[at, NODE]
            while node >= 0:
                decided.node[high] = node
                decided.row[high] = runs.line[at, ROW]
                decided.number[high] = runs.line[at, FIRST]
                decided.waiting[high] = runs.line[at, VALID]
                high += 1
                node = runs.behind[node]
    by_node(low, high, decided)
    blocks[p, WAITING] -= high - low
    for k in range(low, high):
        if program.parameters[P_MODE] == PAST_LAST_ROW:
            if decided.number[k] < blocks[p, RESUME]:
                continue
            blocks[p, RESUME] = decided.waiting[k] + 1
        decide(p, decided.node[k], decided.row[k], blocks, decided, counters)


@called
def decide_over(p, begin, end, program, runs, blocks, decided, counters):
    """Hands out the matches that wait in the lines [begin, end), whose WITHIN, a time, is over."""
    while begin < end:
        behind = begin + 1
        while behind < end and runs.line[behind, TS] == runs.line[begin, TS]:
            behind += 1
        decide_together(p, begin, behind, program, runs, blocks, decided, counters)
        begin = behind


@called
def settle(p, low, ordinal, hit, program, runs, blocks, decided, counters):
    """Hands out the matches that wait and that the row at `ordinal` cannot forbid: those in the lines before `low`,
    whose WITHIN is over; or of WITHIN n ROWS, if it forbids none, those of the start for which it is the last row.
    These are at `low`. Returns True if there are some."""
    within_rows = program.parameters[P_WITHIN_ROWS]
    if within_rows < 0:
        decide_over(p, blocks[p, BASE] + blocks[p, BEGIN], low, program, runs, blocks, decided, counters)
        return False
    if hit != 0 or runs.line[low, STATE] != WAITS or ordinal - runs.line[low, FIRST] + 1 != within_rows:
        return False
    decide_together(p, low, low + 1, program, runs, blocks, decided, counters)
    return True


@called
def begin_chain(head, write, first, ts, row, ordinal, leads, runs):
    """Puts the line of the matches of a start that wait at `head`, before its runs, which stand up to `write`."""
    copy_lines(head, write - head, head + 1, runs)
    runs.line[head, STATE] = WAITS
    runs.line[head, FIRST] = first
    runs.line[head, TS] = ts
    runs.line[head, ROW] = row
    runs.line[head, NODE] = -1
    runs.line[head, VALID] = ordinal
    runs.line[head, PASSED] = 0
    runs.line[head, BAD_NODE] = 0
    if leads:
        runs.line[head, runs.line.shape[1] - 1] = 0


@inlined
def put(at, state, first, ts, row, node, valid, passed, bad_node, line):
    """Fills the line of a run."""
    line[at, STATE] = state
    line[at, FIRST] = first
    line[at, TS] = ts
    line[at, ROW] = row
    line[at, NODE] = node
    line[at, VALID] = valid
    line[at, PASSED] = passed
    line[at, BAD_NODE] = bad_node


@inlined
def store(nodes, node, row, variable, buffer):
    """Adds a node to the match buffer after `node`; returns how many there are."""
    buffer.previous[nodes] = node
    buffer.row[nodes] = row
    buffer.variable[nodes] = variable
    return nodes + 1


@inlined
def leaves_gap(passed, gap, doubtful):
    """PASSED of a run that takes a row by an edge after a gap (-1: after none): 0, POISONED or DOOMED; -1: a row
    passed over forbids it. doubtful: the run goes on even so, since a row before it could not be computed."""
    poison = passed & (POISONED | DOOMED)
    if gap < 0 or poison != 0:
        return poison
    if (passed >> gap) & 1 == 1:
        return np.int64(DOOMED if doubtful else -1)
    return np.int64(POISONED if (passed >> (gap + BAD_SHIFT)) & 1 == 1 else 0)


@inlined
def room_for(length, waiting, nodes, degree, runs_max, runs, buffer, heap, decided, counters):
    """Returns OK if a row of a partition with so many runs and waiting matches can be taken, else ROOM or BUDGET."""
    most = (length + 2) * (degree + 1)
    if (
        nodes + most > len(buffer.row)
        or runs.top[0] + 8 * most > len(runs.line)
        or counters[C_DECIDED] + most + waiting > len(decided.node)
        or counters[C_HEAP] + 1 > len(heap.deadline)
    ):
        return ROOM
    return BUDGET if length > runs_max else OK


@kernel
def step(
    begin, end, partition, mask, bad, ts, row, feature, feature_f, feature_valid,
    program, runs, blocks, buffer, heap, decided, scratch, counters,
):  # fmt: skip
    """Like matching.kernels.step.step, for programs that pass over rows. O(rows * runs of their partitions * edges).

    Long: every edge reads and writes the block, so the loop over edges is part of it."""
    mode = program.parameters[P_MODE]
    carries = program.parameters[P_CARRIES] != 0
    skips_any = program.parameters[P_IGNORE] == ANY
    within_us = program.parameters[P_WITHIN_US]
    within_rows = program.parameters[P_WITHIN_ROWS]
    degree = program.parameters[P_DEGREE]
    runs_max = program.parameters[P_RUNS_MAX]
    counts = program.parameters[P_COUNTS]
    some_gaps = len(program.gap_label) > 0
    some_bad = len(bad) > 0
    absent = program.parameters[P_ABSENT]
    leads = absent & 1 != 0
    trails = absent & 2 != 0
    one_by_one = trails and mode == PAST_LAST_ROW
    coded_behind = program.parameters[P_CODED] & 1 != 0
    coded_gaps = program.parameters[P_CODED] & 2 != 0
    line = runs.line
    width = line.shape[1]
    nodes = counters[C_NODES]

    i = begin
    status = OK
    while i < end:
        p = partition[i]
        drop_if_ended(p, runs.groups, runs, blocks)
        length = blocks[p, LENGTH]
        m = mask[i]
        b = bad[i] if some_bad else np.int64(0)
        before_hit = np.int64(0)
        before_label = np.int64(-1)
        if leads:
            before_hit, before_label = negated(program.absent_before, m, b)
        if length == 0 and before_hit == 0 and not concerns(program, m | b, 0):  # nothing is there, and nothing begins
            blocks[p, ORDINAL] += 1
            i += 1
            continue
        waiting = blocks[p, WAITING] if trails else np.int64(0)
        status = room_for(length, waiting, nodes, degree, runs_max, runs, buffer, heap, decided, counters)
        if status != OK:
            break
        decided_before = counters[C_DECIDED]
        t = ts[i]
        position = row[i]
        ordinal = blocks[p, ORDINAL]
        blocks[p, ORDINAL] = ordinal + 1
        passed = passed_over(program, m, b) if some_gaps else np.int64(0)
        read_features(program, feature, feature_f, feature_valid, i)
        # the row may be negated for some runs only, and may forbid some matches that wait only
        asks_gaps = coded_gaps and (m | b) & program.coded_mask[0] != 0
        asks_behind = False
        bad_node = np.int64(-1)  # of this row, as one whose negated condition cannot be computed

        # runs [low, write) are as this row leaves them, [read, stop) not looked at yet; the block ends at block_end
        low = blocks[p, BASE] + blocks[p, BEGIN]
        stop = low + length
        block_end = stop
        if blocks[p, SIZE] >= 0:
            block_end = blocks[p, BASE] + (np.int64(1) << blocks[p, SIZE])
        if within_us >= 0:
            while low < stop and t - line[low, TS] > within_us:
                low += 1
        if within_rows >= 0:
            while low < stop and ordinal - line[low, FIRST] + 1 > within_rows:
                low += 1
        group = np.int64(-1)  # the start whose runs are looked at
        group_count = np.int64(0)  # runs kept before it
        found = np.int64(-1)  # the last start that has its match
        hit = np.int64(0)
        hit_label = np.int64(-1)
        chained = False  # the first line of the start looked at is that of its matches that wait
        if trails:
            hit, hit_label = negated(program.absent_behind, m, b)
            if coded_behind:
                asks_behind = hit != 0
                hit = np.int64(0)
            if blocks[p, WAITING] > 0 and settle(p, low, ordinal, hit, program, runs, blocks, decided, counters):
                if mode != ALL:
                    found = line[low, FIRST]
                low += 1
            if hit != 0 and blocks[p, WAITING] > 0:
                blocks[p, WAITING] = 0
                if hit == BAD:
                    counters[C_FAILED_ROW] = position + 1
                    counters[C_FAILED_LABEL] = hit_label
        write = low
        read = low
        ended = False  # matches may not overlap, and one has ended here
        at_start = False
        nearest = np.int64(0)
        said = np.int64(0)
        while not ended:
            # ---- the next run, then the start of this row
            mine = np.int64(-1)
            if read < stop:
                mine = read
                read += 1
                state = line[mine, STATE]
                if trails and state == WAITS:
                    if hit != 0:
                        continue
                    if coded_behind and asks_behind:
                        read_or_begin(program, mine, runs, scratch)
                        said_here, label = forbids(
                            program.absent_behind, m, b, program, line[mine, VALID], feature, feature_f, feature_valid,
                            i, scratch,
                        )  # fmt: skip
                        if said_here == BAD and counters[C_FAILED_ROW] == 0:
                            counters[C_FAILED_ROW] = position + 1
                            counters[C_FAILED_LABEL] = label
                        if said_here != 0:
                            blocks[p, WAITING] -= 1
                            continue
                    if one_by_one and line[mine, FIRST] < blocks[p, RESUME]:
                        blocks[p, WAITING] -= 1
                        continue
                    group = line[mine, FIRST]
                    group_count = write - low
                    chained = True
                    if write != mine:
                        copy_line(mine, write, width, runs)
                    write += 1
                    continue
                if mode == ALL and passed == 0 and not asks_gaps and not concerns(program, m | b, state):
                    if trails and line[mine, FIRST] != group:  # a chain of its start is before it, too
                        group = line[mine, FIRST]
                        group_count = write - low
                        chained = False
                    if write != mine:
                        copy_line(mine, write, width, runs)
                    write += 1
                    continue
                first = line[mine, FIRST]
                if first == found or (one_by_one and first < blocks[p, RESUME]):
                    continue
                start_ts = line[mine, TS]
                start_row = line[mine, ROW]
                node = line[mine, NODE]
                valid = line[mine, VALID]
                before = line[mine, PASSED]
                bad_before = line[mine, BAD_NODE]
                if leads:
                    nearest = line[mine, width - 2]
                    said = line[mine, width - 1]
            elif not at_start and concerns(program, m | b, 0):
                at_start = True
                state = np.int64(0)
                first = ordinal
                start_ts = t
                start_row = position
                node = np.int64(-1)
                valid = np.int64(counts)
                before = np.int64(0)
                bad_before = np.int64(0)
                if leads:
                    nearest = blocks[p, NEAREST]
                    said = blocks[p, SAID]
            else:
                break
            if first != group:
                group = first
                group_count = write - low
                chained = False
            may_pass = mine >= 0
            taken = False  # a line has been written for it
            # a run that already spans WITHIN n ROWS can take no further row
            spent = within_rows >= 0 and ordinal - first + 1 >= within_rows
            if coded_gaps and asks_gaps:
                read_or_begin(program, mine, runs, scratch)
            if concerns(program, m | b, state):
                read_or_begin(program, mine, runs, scratch)
                walks_from(program.walked, node)
                for e in range(program.edge_start[state], program.edge_start[state + 1]):
                    v = program.edge_variable[e]
                    cannot = some_bad and (b >> v) & 1 == 1
                    if not cannot and not has(program, m, v):
                        continue
                    truth, new_valid = take(
                        program, v, cannot, valid, feature, feature_f, feature_valid, i, scratch
                    )  # fmt: skip
                    if truth == 0:
                        continue
                    if truth < 0:
                        counters[C_FAILED_ROW] = position + 1
                        counters[C_FAILED_LABEL] = v
                        continue
                    if program.edge_waits[e] and not skips_any:
                        may_pass = False
                    poison = np.int64(0)
                    if some_gaps:
                        poison = leaves_gap(before, program.edge_gap[e], leads and said > 0)
                        if poison < 0:
                            continue
                    q = program.edge_target[e]
                    if not carries:
                        nodes = store(nodes, node, position, v, buffer)
                    if program.edge_start[q + 1] > program.edge_start[q] and not spent:
                        if write == (read if read < stop else block_end):
                            low, write, read, stop = make_gap(p, low, write, read, stop, blocks, runs)
                            block_end = stop
                        put(
                            write, q, first, start_ts, start_row, -1 if carries else nodes - 1, new_valid, poison,
                            bad_before if poison != 0 else 0, line,
                        )  # fmt: skip
                        if leads:
                            line[write, width - 2] = nearest
                            line[write, width - 1] = said
                        write_fresh(program, write, runs, scratch)
                        write += 1
                        taken = True
                    if not program.accept[q]:
                        continue
                    if leads and said != 0:
                        if t - nearest <= within_us if within_us >= 0 else ordinal - nearest + 1 <= within_rows:
                            if said > 0:
                                counters[C_FAILED_ROW] = ((said - 1) >> LABEL_BITS) + 1
                                counters[C_FAILED_LABEL] = (said - 1) & LABELS
                            continue
                        if poison == DOOMED:
                            continue
                    if poison != 0:
                        counters[C_FAILED_ROW] = buffer.row[bad_before - 1] + 1
                        counters[C_FAILED_LABEL] = buffer.variable[bad_before - 1]
                        continue
                    if trails and not spent:
                        if coded_behind or not chained:
                            if write == (read if read < stop else block_end):
                                low, write, read, stop = make_gap(p, low, write, read, stop, blocks, runs)
                                block_end = stop
                            begin_chain(low + group_count, write, first, start_ts, start_row, ordinal, leads, runs)
                            write += 1
                            taken = True
                            chained = True
                            if coded_behind:
                                line[low + group_count, VALID] = new_valid
                                write_fresh(program, low + group_count, runs, scratch)
                        elif mode != ALL:
                            continue
                        runs.behind[nodes - 1] = line[low + group_count, NODE]
                        line[low + group_count, NODE] = nodes - 1
                        blocks[p, WAITING] += 1
                        continue
                    hand_out(program, new_valid, decided, scratch, counters)
                    decide(p, position if carries else nodes - 1, start_row, blocks, decided, counters)
                    if mode != ALL:
                        found = first
                        may_pass = False
                        if mode == PAST_LAST_ROW:
                            ended = True
                            end_group(p, runs.groups, blocks)
                            group_count = np.int64(0)
                        write = low + group_count
                        break
            if not may_pass or spent:
                continue
            over = passed
            if coded_gaps and asks_gaps:
                over |= passed_of(state, m, b, program, valid, feature, feature_f, feature_valid, i, scratch)
            if over != 0:
                known = (before | before >> BAD_SHIFT) & GAPS
                news = over & ~(known | known << BAD_SHIFT)
                if news >> BAD_SHIFT != 0 and bad_before == 0:
                    if bad_node < 0:
                        bad_node = nodes
                        nodes = store(nodes, np.int64(-1), position, program.gap_label[0], buffer)
                    bad_before = bad_node + 1
                before |= news
            if taken:  # its successor may be in its place
                if write == (read if read < stop else block_end):
                    low, write, read, stop = make_gap(p, low, write, read, stop, blocks, runs)
                    block_end = stop
                put(write, state, first, start_ts, start_row, node, valid, before, bad_before, line)
                if leads:
                    line[write, width - 2] = nearest
                    line[write, width - 1] = said
                write_old(program, write, runs, scratch)
            elif write != mine:
                copy_line(mine, write, width, runs)
            if over != 0:
                line[write, PASSED] = before
                line[write, BAD_NODE] = bad_before
            write += 1
        if trails and ended:
            blocks[p, WAITING] = 0
        if leads and before_hit != 0:
            blocks[p, NEAREST] = t if within_us >= 0 else ordinal
            blocks[p, SAID] = -1
            if before_hit == BAD:
                blocks[p, SAID] = 1 + (position << LABEL_BITS | before_label)
        count = write - low
        blocks[p, LENGTH] = count
        if count > 0:
            blocks[p, BEGIN] = low - blocks[p, BASE]
            if within_us >= 0 and blocks[p, QUEUED] == 0:
                blocks[p, QUEUED] = 1
                heap_push(heap, counters, line[low, TS] + within_us, p)
        elif blocks[p, SIZE] >= 0:
            leave_block(p, blocks, runs)
        for k in range(decided_before, counters[C_DECIDED]):
            decided.at[k] = position
        i += 1
        if counters[C_FAILED_ROW] > 0:
            status = ERROR
            break
    counters[C_NODES] = nodes
    return i, status


@kernel
def expire(watermark, held, program, runs, blocks, heap, decided, counters):
    """Drops the runs that no event can complete any more, and hands out what waits and no event can forbid any more;
    see matching.kernels.step.expire."""
    within_us = program.parameters[P_WITHIN_US]
    trails = program.parameters[P_ABSENT] & 2 != 0
    while counters[C_HEAP] > 0 and heap.deadline[0] < watermark:
        p = heap.partition[0]
        if trails and counters[C_DECIDED] + blocks[p, WAITING] > len(decided.node):
            return ROOM
        heap_pop(heap, counters)
        blocks[p, QUEUED] = 0
        bound = watermark
        if len(held) > 0 and held[p] < bound:
            bound = held[p]
        low = blocks[p, BASE] + blocks[p, BEGIN]
        stop = low + blocks[p, LENGTH]
        begin = low
        while low < stop and bound - runs.line[low, TS] > within_us:
            low += 1
        if trails:
            decide_over(p, begin, low, program, runs, blocks, decided, counters)
        blocks[p, BEGIN] = low - blocks[p, BASE]
        blocks[p, LENGTH] = stop - low
        if low < stop:
            # what is over time but for the row that is held is queued when that row is taken
            if runs.line[low, TS] + within_us >= watermark:
                blocks[p, QUEUED] = 1
                heap_push(heap, counters, runs.line[low, TS] + within_us, p)
        elif blocks[p, SIZE] >= 0:
            leave_block(p, blocks, runs)
    return OK


@kernel
def finish(begin, count, program, runs, blocks, decided, counters):
    """The input has ended: hands out what waits in the partitions [begin, count). Returns the next partition, which is
    `count` unless `decided` is too small."""
    for p in range(begin, count):
        if counters[C_DECIDED] + blocks[p, WAITING] > len(decided.node):
            return p
        low = blocks[p, BASE] + blocks[p, BEGIN]
        stop = low + blocks[p, LENGTH]
        if program.parameters[P_WITHIN_US] >= 0:
            decide_over(p, low, stop, program, runs, blocks, decided, counters)
        else:
            decide_together(p, low, stop, program, runs, blocks, decided, counters)
    return count


@kernel
def queue(ids, deadlines, heap, counters):
    """Puts partitions into the deadline heap."""
    for k in range(len(ids)):
        heap_push(heap, counters, deadlines[k], ids[k])

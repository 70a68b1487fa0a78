"""Runs of the strategies that pass over rows, looked up by the value for which they wait.

Where each condition of a step compares a value of the row with one that the run keeps for equality, a row concerns the
runs that wait for its value. An entry leads from a partition, an equality and a value to a line of a block
(matching.kernels.runs_in_blocks), so that a row does not read all lines: `step` gives what matching.kernels.skip_till
gives.

A run that takes a row is changed where it stands, and gets an entry; one that ends stays as a line of the state ENDED,
until half of the lines are such ones. A row of which a run would become several, or of which a condition cannot be
computed, is taken as without entries, and so are the rows of a partition with few runs, or with one whose value to wait
for cannot be computed. The lines of its partition are put together before that, and entered anew after it.

Entries of lines that are another run's now, or none's, are dropped where a look-up meets them. A look-up finds
candidates only: the whole condition is tested for each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from matching.kernels import skip_till
from matching.kernels.jit import called, inlined, kernel
from matching.kernels.layout import Counters, Parameters, grown
from matching.kernels.predicate import concerns, has, read_features, take
from matching.kernels.runs_in_blocks import (
    BASE,
    BEGIN,
    FIRST,
    LENGTH,
    NODE,
    ORDINAL,
    QUEUED,
    REGISTERS,
    ROW,
    SIZE,
    STATE,
    TS,
    VALID,
    copy_lines,
    drop_if_ended,
    end_group,
    leave_block,
    make_gap,
)
from matching.kernels.skip_till import decide, hand_out, put, read_or_begin, room_for, store, write_fresh
from matching.kernels.step import BUDGET, ERROR, OK, ROOM, heap_push
from matching.kernels.waiting import bucket_of
from matching.program.equalities import Equality
from matching.program.program import Mode, Program

#: Runs of a partition from which on they are looked up.
LONG = 32
#: Candidates of rows that are tested between two checks, about, of some hundred nanoseconds each.
CANDIDATES_UNCHECKED = 1 << 17
#: The state of a line whose run has ended.
ENDED = -2
#: Columns of an entry: of the run, and the next entry of its bucket.
E_PARTITION, E_LINE, E_FIRST, E_STATE, E_NEXT = 0, 1, 2, 3, 4
ENTRY = 5
ALL = int(Mode.ALL)
PAST_LAST_ROW = int(Mode.PAST_LAST_ROW)
P_MODE = int(Parameters.MODE)
P_WITHIN_US = int(Parameters.WITHIN_US)
P_WITHIN_ROWS = int(Parameters.WITHIN_ROWS)
P_DEGREE = int(Parameters.DEGREE)
P_COUNTS = int(Parameters.COUNT_REGISTERS)
P_RUNS_MAX = int(Parameters.RUNS_MAX)
P_CARRIES = int(Parameters.CARRIES)
C_NODES = int(Counters.NODES)
C_DECIDED = int(Counters.DECIDED)
C_FAILED_ROW = int(Counters.FAILED_ROW)
C_FAILED_LABEL = int(Counters.FAILED_LABEL)


class ByValue(NamedTuple):
    """label, feature, register, refuses (a bit for each register), nulls, floating: of the equalities
    (matching.program.equalities). waits: bool (states, equalities), for which of them a run in a state waits; forks:
    bool (1,), a run may become several at a row; long: int64 (1,), of so many runs of a partition they are looked up.
    buckets: int64 (a power of 2,), the first entry, -1 none. entry: int64 (n, ENTRY); used: (1,), how many there are.
    found: int64 (n,), lines of candidates. entered: bool (partitions,), all runs have their entries; fails: bool
    (partitions,), the condition of one of them fails; ended: int64 (partitions,), lines of the state ENDED, at most.
    seen: int64 (2,), candidates, and the lines among which they were looked up."""

    label: np.ndarray
    feature: np.ndarray
    register: np.ndarray
    refuses: np.ndarray
    nulls: np.ndarray
    floating: np.ndarray
    waits: np.ndarray
    forks: np.ndarray
    long: np.ndarray
    buckets: np.ndarray
    entry: np.ndarray
    used: np.ndarray
    found: np.ndarray
    entered: np.ndarray
    fails: np.ndarray
    ended: np.ndarray
    seen: np.ndarray


def no_entries(program: Program, equalities: Sequence[Equality]) -> ByValue:
    """Returns the look-up by these equalities, without entries or room for them."""
    start, target = program.edge_start, program.edge_target
    states = range(len(program.accept))
    edges = [range(start[s], start[s + 1]) if s else range(0) for s in states]
    labels = [{program.edge_variable[e] for e in of} for of in edges]
    goes_on = [start[q] < start[q + 1] for q in target]
    forks = any(sum(goes_on[e] for e in of) > 1 or any(not program.edge_waits[e] for e in of) for of in edges)
    none = np.zeros(0, np.int64)
    return ByValue(
        label=np.array([e.label for e in equalities], np.int64),
        feature=np.array([e.feature for e in equalities], np.int64),
        register=np.array([e.register for e in equalities], np.int64),
        refuses=np.array([sum(1 << r for r in e.refuses) for e in equalities], np.int64),
        nulls=np.array([e.nulls for e in equalities], np.bool_),
        floating=np.array([program.registers[e.register].lane.floating for e in equalities], np.bool_),
        waits=np.array([[e.label in labels[s] for e in equalities] for s in states], np.bool_),
        forks=np.array([forks]), long=np.array([LONG], np.int64), buckets=np.full(1, -1, np.int64),
        entry=np.zeros((0, ENTRY), np.int64), used=np.zeros(1, np.int64), found=none, entered=np.zeros(0, np.bool_),
        fails=np.zeros(0, np.bool_), ended=none, seen=np.zeros(2, np.int64),
    )  # fmt: skip


def with_room(lookup: ByValue, entries: int, partitions: int) -> ByValue:
    """Returns it without entries, with room for as many. No line of a block has ended."""
    return lookup._replace(
        buckets=np.full(1 << max(entries - 1, 1).bit_length(), -1, np.int64), used=np.zeros(1, np.int64),
        entry=np.zeros((entries, ENTRY), np.int64), found=np.zeros(entries, np.int64),
        entered=np.zeros(partitions, np.bool_), fails=np.zeros(partitions, np.bool_),
        ended=np.zeros(partitions, np.int64),
    )  # fmt: skip


def with_partitions(lookup: ByValue, partitions: int) -> ByValue:
    """Returns it with room for more partitions."""
    return lookup._replace(
        entered=grown(lookup.entered, partitions), fails=grown(lookup.fails, partitions),
        ended=grown(lookup.ended, partitions),
    )  # fmt: skip


# ---- entries


@called
def enter(p, at, runs, lookup):
    """Enters the run on a line; there is room."""
    state = runs.line[at, STATE]
    for k in range(len(lookup.label)):
        if not lookup.waits[state, k]:
            continue
        r, refuses, valid = lookup.register[k], lookup.refuses[k], runs.line[at, VALID]
        at_register = np.int64(0)
        while refuses != 0:
            if refuses & valid & 1 != 0 and runs.line[at, REGISTERS + at_register] != 0:
                lookup.fails[p] = True
            refuses >>= 1
            valid >>= 1
            at_register += 1
        if (runs.line[at, VALID] >> r) & 1 != 0:
            value, value_f = runs.line[at, REGISTERS + r], runs.line_f[at, REGISTERS + r]
            to = bucket_of(p, k, value, value_f, lookup.floating[k], lookup.buckets)
        elif lookup.nulls[k]:
            to = bucket_of_null(p, k, lookup)
        else:  # null equals nothing
            continue
        new = lookup.used[0]
        lookup.used[0] = new + 1
        lookup.entry[new, E_PARTITION] = p
        lookup.entry[new, E_LINE] = at
        lookup.entry[new, E_FIRST] = runs.line[at, FIRST]
        lookup.entry[new, E_STATE] = state
        lookup.entry[new, E_NEXT] = lookup.buckets[to]
        lookup.buckets[to] = new


@inlined
def bucket_of_null(p, k, lookup):
    """The bucket of the runs that wait for a null."""
    return bucket_of(p, len(lookup.label) + k, np.int64(0), 0.0, False, lookup.buckets)


@inlined
def has_room(more, lookup):
    """True if there is room for the entries of so many runs."""
    return lookup.used[0] + more * len(lookup.label) <= len(lookup.entry)


@called
def enter_block(p, runs, blocks, lookup):
    """Enters all runs of a partition; there is room."""
    lookup.fails[p] = False
    low = blocks[p, BASE] + blocks[p, BEGIN]
    for at in range(low, low + blocks[p, LENGTH]):
        if runs.line[at, STATE] >= 0:
            enter(p, at, runs, lookup)
    lookup.entered[p] = True


@called
def end_line(p, at, runs, lookup):
    """The run on a line has ended."""
    if runs.line[at, STATE] >= 0:
        runs.line[at, STATE] = ENDED
        runs.line[at, NODE] = -1
        runs.line[at, VALID] = 0
        lookup.ended[p] += 1


@called
def put_together(p, runs, blocks, lookup):
    """Drops the lines of a partition whose runs have ended; the others are to be entered anew."""
    lookup.entered[p] = False
    if lookup.ended[p] == 0:
        return
    lookup.ended[p] = 0
    if blocks[p, SIZE] < 0:
        return
    low = blocks[p, BASE] + blocks[p, BEGIN]
    stop = low + blocks[p, LENGTH]
    write = low
    for at in range(low, stop):
        if runs.line[at, STATE] >= 0:
            if write != at:
                copy_lines(at, 1, write, runs)
            write += 1
    blocks[p, LENGTH] = write - low
    if write == low:
        leave_block(p, blocks, runs)


@kernel
def leave(ids, runs, blocks, lookup):
    """Puts the lines of these partitions together, without entries."""
    for p in ids:
        if lookup.entered[p] or lookup.ended[p] > 0:
            put_together(p, runs, blocks, lookup)


@called
def look_up(p, i, m, low, stop, feature, feature_f, feature_valid, runs, lookup):
    """Returns how many lines of [low, stop) may be of runs that wait for the values of row i; `lookup.found` has them
    in ascending order."""
    count = 0
    for k in range(len(lookup.label)):
        f = lookup.feature[k]
        if (m >> lookup.label[k]) & 1 == 0 or not (feature_valid[f, i] or lookup.nulls[k]):
            continue
        if feature_valid[f, i]:
            bucket = bucket_of(p, k, feature[f, i], feature_f[f, i], lookup.floating[k], lookup.buckets)
        else:
            bucket = bucket_of_null(p, k, lookup)
        before = np.int64(-1)
        entry = lookup.buckets[bucket]
        while entry >= 0:
            behind = lookup.entry[entry, E_NEXT]
            stays = True
            if lookup.entry[entry, E_PARTITION] == p:
                at = lookup.entry[entry, E_LINE]
                stays = (
                    low <= at < stop and runs.line[at, FIRST] == lookup.entry[entry, E_FIRST]
                    and runs.line[at, STATE] == lookup.entry[entry, E_STATE]
                )  # fmt: skip
                if stays:
                    lookup.found[count] = at
                    count += 1
            if stays:
                before = entry
            elif before < 0:
                lookup.buckets[bucket] = behind
            else:
                lookup.entry[before, E_NEXT] = behind
            entry = behind
    sort(count, lookup.found)
    kept = 0
    for c in range(count):
        if kept == 0 or lookup.found[c] != lookup.found[kept - 1]:
            lookup.found[kept] = lookup.found[c]
            kept += 1
    return kept


@called
def sort(count, values):
    """Sorts values[:count]: they come in descending order mostly, then Shell's sort."""
    for c in range(count // 2):
        values[c], values[count - 1 - c] = values[count - 1 - c], values[c]
    gap = 1
    while 3 * gap < count:
        gap = 3 * gap + 1
    while gap > 0:
        for k in range(gap, count):
            value = values[k]
            at = k
            while at >= gap and values[at - gap] > value:
                values[at] = values[at - gap]
                at -= gap
            values[at] = value
        gap //= 3


# ---- rows


@inlined
def fails_at(i, features, feature_valid):
    """True if a feature of row i cannot be computed."""
    failing = False
    for f in range(features, len(feature_valid)):
        failing = failing or feature_valid[f, i]
    return failing


@called
def forks(m, count, feature, feature_f, feature_valid, i, spent_before, program, runs, scratch, lookup):
    """True if one of the candidates would become several runs at row i. spent_before: the ordinal of a first row from
    which on a run may take a further one."""
    several = False
    for c in range(count):
        at = lookup.found[c]
        read_or_begin(program, at, runs, scratch)
        state = runs.line[at, STATE]
        lines = 0
        passes = True
        for e in range(program.edge_start[state], program.edge_start[state + 1]):
            v = program.edge_variable[e]
            if not has(program, m, v):
                continue
            truth, _ = take(program, v, False, runs.line[at, VALID], feature, feature_f, feature_valid, i, scratch)
            if truth <= 0:
                continue
            if program.edge_waits[e]:
                passes = False
            q = program.edge_target[e]
            if program.edge_start[q + 1] > program.edge_start[q] and runs.line[at, FIRST] >= spent_before:
                lines += 1
        several = several or lines > 1 or (lines > 0 and passes)
    return several


@kernel
def step(
    begin, end, partition, mask, bad, ts, row, feature, feature_f, feature_valid,
    program, runs, blocks, buffer, heap, decided, scratch, counters, lookup,
):  # fmt: skip
    """Like matching.kernels.skip_till.step. O(rows * runs that wait for their values * edges).

    Long: as there; what is common to both are the functions that they call."""
    mode = program.parameters[P_MODE]
    carries = program.parameters[P_CARRIES] != 0
    within_us = program.parameters[P_WITHIN_US]
    within_rows = program.parameters[P_WITHIN_ROWS]
    degree = program.parameters[P_DEGREE]
    runs_max = program.parameters[P_RUNS_MAX]
    counts = program.parameters[P_COUNTS]
    line = runs.line
    some_bad = len(bad) > 0
    tested = np.int64(0)
    i = begin
    status = OK
    while i < end and tested < CANDIDATES_UNCHECKED:
        p = partition[i]
        drop_if_ended(p, runs.groups, runs, blocks)
        length = blocks[p, LENGTH]
        m = mask[i]
        alone = (
            length < (lookup.long[0] // 2 if lookup.entered[p] else lookup.long[0])
            or blocks[p, SIZE] < 0 or (some_bad and (bad[i] != 0 or fails_at(i, len(feature), feature_valid)))
            or (lookup.entered[p] and lookup.fails[p])
        )  # fmt: skip
        count = 0
        low = np.int64(0)
        stop = low
        if not alone:
            status = room_for(length, 0, counters[C_NODES], degree, runs_max, runs, buffer, heap, decided, counters)
            if status == BUDGET and lookup.ended[p] > 0:
                put_together(p, runs, blocks, lookup)
                continue
            if status == OK and not has_room((length + 2) * (degree + 1), lookup):
                status = ROOM
            if status != OK:
                break
            if not lookup.entered[p]:
                enter_block(p, runs, blocks, lookup)
                continue
            t = ts[i]
            ordinal = blocks[p, ORDINAL]
            low = blocks[p, BASE] + blocks[p, BEGIN]
            stop = low + length
            if within_us >= 0:
                while low < stop and t - line[low, TS] > within_us:
                    low += 1
            if within_rows >= 0:
                while low < stop and ordinal - line[low, FIRST] + 1 > within_rows:
                    low += 1
            count = look_up(p, i, m, low, stop, feature, feature_f, feature_valid, runs, lookup)
            tested += count
            lookup.seen[0] += count
            lookup.seen[1] += length
            # a run that already spans WITHIN n ROWS can take no further row
            spent_before = ordinal - within_rows + 2 if within_rows >= 0 else np.int64(0)
            if lookup.forks[0] and forks(
                m, count, feature, feature_f, feature_valid, i, spent_before, program, runs, scratch, lookup
            ):
                alone = True
                lookup.seen[0] += length
        if alone:
            put_together(p, runs, blocks, lookup)
            i, status = skip_till.step(
                i, i + 1, partition, mask, bad, ts, row, feature, feature_f, feature_valid, program, runs, blocks,
                buffer, heap, decided, scratch, counters,
            )  # fmt: skip
            tested += length
            if status != OK:
                break
            continue

        position = row[i]
        blocks[p, ORDINAL] = ordinal + 1
        decided_before = counters[C_DECIDED]
        nodes = counters[C_NODES]
        read_features(program, feature, feature_f, feature_valid, i)
        ended = False  # matches may not overlap, and one has ended here
        c = 0
        while c < count and not ended:
            at = lookup.found[c]
            c += 1
            state = line[at, STATE]
            if state < 0:  # a match of its start has ended it
                continue
            first = line[at, FIRST]
            start_row = line[at, ROW]
            node = line[at, NODE]
            valid = line[at, VALID]
            read_or_begin(program, at, runs, scratch)
            stays = True
            written = False
            for e in range(program.edge_start[state], program.edge_start[state + 1]):
                v = program.edge_variable[e]
                if not has(program, m, v):
                    continue
                truth, new_valid = take(program, v, False, valid, feature, feature_f, feature_valid, i, scratch)
                if truth <= 0:  # each condition has a value
                    continue
                if program.edge_waits[e]:
                    stays = False
                q = program.edge_target[e]
                if not carries:
                    nodes = store(nodes, node, position, v, buffer)
                if program.edge_start[q + 1] > program.edge_start[q] and first >= spent_before:
                    put(
                        at, q, first, line[at, TS], start_row, -1 if carries else nodes - 1, new_valid, 0, 0, line
                    )  # fmt: skip
                    write_fresh(program, at, runs, scratch)
                    written = True
                if not program.accept[q]:
                    continue
                hand_out(program, new_valid, decided, scratch, counters)
                decide(p, position if carries else nodes - 1, start_row, blocks, decided, counters)
                if mode != ALL:
                    stays = False
                    written = False
                    ended = mode == PAST_LAST_ROW
                    for side in (-1, 1):
                        other = at + side
                        while low <= other < stop and line[other, FIRST] == first:
                            end_line(p, other, runs, lookup)
                            other += side
                    break
            if written:
                enter(p, at, runs, lookup)
            elif not stays or first < spent_before:
                end_line(p, at, runs, lookup)

        if ended:
            end_group(p, runs.groups, blocks)
            low = stop
        elif concerns(program, m, 0):
            read_or_begin(program, -1, runs, scratch)
            for e in range(program.edge_start[0], program.edge_start[1]):
                v = program.edge_variable[e]
                if not has(program, m, v):
                    continue
                truth, new_valid = take(
                    program, v, False, np.int64(counts), feature, feature_f, feature_valid, i, scratch
                )  # fmt: skip
                if truth == 0:
                    continue
                if truth < 0:
                    counters[C_FAILED_ROW] = position + 1
                    counters[C_FAILED_LABEL] = v
                    continue
                q = program.edge_target[e]
                if not carries:
                    nodes = store(nodes, np.int64(-1), position, v, buffer)
                if program.edge_start[q + 1] > program.edge_start[q] and ordinal >= spent_before:
                    if stop == blocks[p, BASE] + (np.int64(1) << blocks[p, SIZE]):
                        low, stop, _, _ = make_gap(p, low, stop, stop, stop, blocks, runs)
                        lookup.entered[p] = False
                    put(stop, q, ordinal, t, position, -1 if carries else nodes - 1, new_valid, 0, 0, line)
                    write_fresh(program, stop, runs, scratch)
                    if lookup.entered[p]:
                        enter(p, stop, runs, lookup)
                    stop += 1
                if not program.accept[q]:
                    continue
                hand_out(program, new_valid, decided, scratch, counters)
                decide(p, position if carries else nodes - 1, position, blocks, decided, counters)
                if mode != ALL:
                    while stop > low and line[stop - 1, FIRST] == ordinal:
                        stop -= 1
                    if mode == PAST_LAST_ROW:
                        end_group(p, runs.groups, blocks)
                        low = stop
                    break
        counters[C_NODES] = nodes
        blocks[p, LENGTH] = stop - low
        if low < stop:
            blocks[p, BEGIN] = low - blocks[p, BASE]
            if within_us >= 0 and blocks[p, QUEUED] == 0:
                blocks[p, QUEUED] = 1
                heap_push(heap, counters, line[low, TS] + within_us, p)
            if 2 * lookup.ended[p] > stop - low:
                put_together(p, runs, blocks, lookup)
        else:
            lookup.ended[p] = 0
            lookup.entered[p] = False
            leave_block(p, blocks, runs)
        for k in range(decided_before, counters[C_DECIDED]):
            decided.at[k] = position
        i += 1
        if counters[C_FAILED_ROW] > 0:
            status = ERROR
            break
    return i, status

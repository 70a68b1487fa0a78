"""The kernel of starts: attempts of one partition in one configuration are one group (matching.program.starts).

Every row is a start. The starts of a partition that are not settled yet are its last rows, from `head` on: a queue in
order. Groups are the trees of a union-find over those rows: the root has the configuration, and two groups that meet in
one configuration become one tree. A row takes each group of its partition one step on. Where a step gives a match that
ends at this row, the root notes it for all its starts; a start asks its root, and what the root noted before the two
were joined does not count for it. An attempt is settled when it is first in the queue and its group has failed or is
decided, or WITHIN has passed it; so answers come out in the order of starts, at the earliest moment.
A match is read forward from its start through the table again and then back to its labels: nothing is kept per row but
its mask and the row after it. What measures read of it, if that is little, is noted when it is settled, while its rows
are in the cache; else all its rows are written down once a batch has been taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from matching.kernels.jit import called, inlined, kernel
from matching.kernels.layout import Counters
from matching.kernels.step import heap_pop, heap_push
from matching.program.determinise import WAITING
from matching.program.program import Program, Skip
from matching.program.starts import MATCHED as MATCHED_CONFIG
from matching.program.starts import START as START_CONFIG
from matching.program.starts import StartTable
from query.plan.output import Outcome

MATCHED = int(MATCHED_CONFIG)
START = int(START_CONFIG)
MATCH = int(Outcome.MATCH)
UNMATCHED = int(Outcome.UNMATCHED)
TIMEOUT = int(Outcome.TIMEOUT)
SKIP_NEXT_ROW = int(Skip.NEXT_ROW)
SKIP_PAST_LAST_ROW = int(Skip.PAST_LAST_ROW)
SKIP_TO_LAST = int(Skip.TO_LAST)


class Settings(IntEnum):
    """Slots of StartTableArrays.settings."""

    MASKS = 0
    STRICT = 1
    WITHIN_US = 2  # -1: none
    WITHIN_ROWS = 3  # -1: none
    SKIP = 4
    UNMATCHED = 5
    TIMEOUTS = 6


S_MASKS = int(Settings.MASKS)
S_STRICT = int(Settings.STRICT)
S_WITHIN_US = int(Settings.WITHIN_US)
S_WITHIN_ROWS = int(Settings.WITHIN_ROWS)
S_SKIP = int(Settings.SKIP)
S_UNMATCHED = int(Settings.UNMATCHED)
S_TIMEOUTS = int(Settings.TIMEOUTS)
C_DECIDED = int(Counters.DECIDED)
C_HEAP = int(Counters.HEAP)
C_LAST = int(Counters.LAST_PARTITION)
C_STUCK = int(Counters.STUCK)

#: Why attempts are looked at: rows went by, a row of another partition came under STRICT, the input has ended.
GO_ON = 0
BROKEN = 1
ENDED = 2


class StartTableArrays(NamedTuple):
    """StartTable as arrays. goes: (transitions + 1, 3) next configuration, 1 if a match ends at this row, first item;
    items: (n, 2) parent, variable; configs: (configurations, 2) 1 if a match waits in it, state of its first item (-1:
    none); skip_to: bool, per variable. picks: (n, 2) of what is noted of a match, bits of variables and the kind."""

    settings: np.ndarray
    goes: np.ndarray
    items: np.ndarray
    configs: np.ndarray
    skip_to: np.ndarray
    picks: np.ndarray


# Rows, partitions and what is decided are int64 arrays with a line for each: what is used together lies together, and a
# call hands over few arrays.

# Columns of a row of the store, of use while it is in the queue of its partition, or a root.
MASK = 0
TS = 1  # us
ORDINAL = 2  # in its partition
NEXT = 3  # row after it in its partition, -1 none
UP = 4  # of a root -1 - configuration, else a row nearer to the root
END = 5  # last row of the match that waits, -1 none or empty
LINK = 6  # of a root the starts of its group still in the queue, else the last row taken when it was joined
SIBLING = 7  # of a root the next group of the partition, -1 none
ROW_COLUMNS = 8

# Columns of a partition.
HEAD = 0  # first row of the queue, -1: it is empty
LAST = 1  # last row of the queue
GROUPS = 2  # root of the first group alive, -1 none
SEEN = 3  # rows taken
NUMBER = 4  # matches
COVERED = 5  # ordinal of the last row of a match, -1 none
QUEUED = 6  # 1 if it has an entry in the deadline heap
NEW_PARTITION = (-1, -1, -1, 0, 0, -1, 0)

# Columns of what came of an attempt.
D_START = 0  # row
D_END = 1  # last row
D_AT = 2  # the row that decided it, if one did
D_PARTITION = 3
D_NUMBER = 4  # MATCH_NUMBER, 0 if it is no match
D_OUTCOME = 5
D_STATE = 6  # that a TIMEOUT waited in, else -1
D_LENGTH = 7  # rows; behind it what is picked
DECIDED_COLUMNS = 8

# Kinds of what is picked of a match: the last or first row of some variables (-1: none), how many they have.
LAST_OF = 0
FIRST_OF = 1
COUNT_OF = 2


class StartScratch(NamedTuple):
    """met: (configurations, 3) the group that is in it now, the tick of that, and (a list) the configurations met by
    this row. path: transitions and rows of a match being read, (n, 2), as long as the rows of the store. tick: (1,)."""

    met: np.ndarray
    path: np.ndarray
    tick: np.ndarray


def table_arrays(table: StartTable, program: Program, picks: Sequence[tuple[int, int]] = ()) -> StartTableArrays:
    goes = np.zeros((len(table.transitions) + 1, 3), np.int64)
    goes[:-1, 0] = [t.next for t in table.transitions]
    goes[:-1, 1] = [t.fresh for t in table.transitions]
    goes[1:, 2] = np.cumsum([len(t.items) for t in table.transitions])
    settings = [
        table.masks, program.strict, -1 if program.within_us is None else program.within_us,
        -1 if program.within_rows is None else program.within_rows, table.skip, program.extras.unmatched,
        program.extras.timeouts,
    ]  # fmt: skip
    return StartTableArrays(
        np.array([int(s) for s in settings], np.int64), goes,
        np.array([item for t in table.transitions for item in t.items], np.int64).reshape(-1, 2),
        np.array([(WAITING in c, c[0] if c else -1) for c in table.configs], np.int64),
        np.array(program.skip.counts, np.bool_), np.array(picks, np.int64).reshape(-1, 2),
    )  # fmt: skip


@called
def root_of(s, rows):
    """The root of a row's tree. The row and all on its way become its children. Nearly constant, amortised."""
    below = np.int64(-1)
    while rows[s, UP] >= 0:  # up, turning the way round
        above = rows[s, UP]
        rows[s, UP] = below
        below = s
        s = above
    root = s
    top = np.int64(-1)
    while below >= 0:  # and down again
        down = rows[below, UP]
        rows[below, UP] = root
        if top >= 0:
            if rows[top, END] > rows[below, LINK]:
                rows[below, END] = rows[top, END]
            rows[below, LINK] = rows[top, LINK]
        top = below
        below = down
    return root


@called
def end_of(s, root, rows):
    """The last row of the match that waits for start s, whose root is `root`; -1: it is empty, or there is none."""
    if s != root and rows[root, END] > rows[s, LINK]:
        return rows[root, END]
    return rows[s, END]


@called
def replay(s, end, table, rows, path):
    """Takes start s through the table up to row `end`; writes transitions and rows to `path`; returns their number."""
    masks = table.settings[S_MASKS]
    config = np.int64(START)
    n = 0
    while True:
        transition = config * masks + rows[s, MASK]
        path[n, 0] = transition
        path[n, 1] = s
        n += 1
        if s == end:
            return n
        config = table.goes[transition, 0]
        s = rows[s, NEXT]


@called
def last_item(transition, outcome, table):
    """The item at which reading back begins: the match is last in its configuration, the preferred run is first."""
    return table.goes[transition + 1, 2] - 1 if outcome == MATCH else table.goes[transition, 2]


@called
def look_back(s, end, at, table, rows, path, decided):
    """Notes what is picked of the match in line `at` of `decided`. Returns the row at which the scan goes on after it
    under SKIP TO FIRST / LAST; s if there is no other."""
    picks = table.picks
    to_last = table.settings[S_SKIP] == SKIP_TO_LAST
    n = replay(s, end, table, rows, path)
    item = last_item(path[n - 1, 0], MATCH, table)
    for c in range(len(picks)):
        decided[at, DECIDED_COLUMNS + c] = 0 if picks[c, 1] == COUNT_OF else -1
    found = s
    any_found = False
    for k in range(n - 1, -1, -1):
        v = table.items[item, 1]
        r = path[k, 1]
        if table.skip_to[v] and not (to_last and any_found):
            found = r
            any_found = True
        for c in range(len(picks)):
            if (picks[c, 0] >> v) & 1 == 0:
                continue
            kind = picks[c, 1]
            if kind == COUNT_OF:
                decided[at, DECIDED_COLUMNS + c] += 1
            elif kind == FIRST_OF or decided[at, DECIDED_COLUMNS + c] < 0:
                decided[at, DECIDED_COLUMNS + c] = r
        if any_found and to_last and len(picks) == 0:
            break
        if k > 0:
            item = table.goes[path[k - 1, 0], 2] + table.items[item, 0]
    return found


@called
def leave(p, rows, partitions):
    """Takes the first row out of the queue."""
    s = partitions[p, HEAD]
    if s == partitions[p, LAST]:
        partitions[p, HEAD] = -1
        partitions[p, GROUPS] = -1
    else:
        partitions[p, HEAD] = rows[s, NEXT]


@called
def pass_over(p, until, rows, partitions):
    """Drops the starts before row `until`: there is no attempt at them."""
    while 0 <= partitions[p, HEAD] < until:
        root = root_of(partitions[p, HEAD], rows)
        rows[root, LINK] -= 1
        leave(p, rows, partitions)


@called
def record(p, s, end, outcome, number, state, rows, decided, counters):
    n = counters[C_DECIDED]
    counters[C_DECIDED] = n + 1
    decided[n, D_START] = s
    decided[n, D_END] = end
    decided[n, D_LENGTH] = rows[end, ORDINAL] - rows[s, ORDINAL] + 1 if end >= 0 else 0
    decided[n, D_PARTITION] = p
    decided[n, D_NUMBER] = number
    decided[n, D_OUTCOME] = outcome
    decided[n, D_STATE] = state


@called
def settle(p, why, now, table, rows, partitions, decided, scratch, counters):
    """Settles starts from the front of the queue as far as they are decided. now: no row before that time can come."""
    within_us = table.settings[S_WITHIN_US]
    within_rows = table.settings[S_WITHIN_ROWS]
    skip = table.settings[S_SKIP]
    while partitions[p, HEAD] >= 0:
        s = partitions[p, HEAD]
        root = root_of(s, rows)
        config = -1 - rows[root, UP]
        over = (
            (within_us >= 0 and (why == ENDED or now - rows[s, TS] > within_us))
            or (within_rows >= 0 and (why == ENDED or partitions[p, SEEN] - rows[s, ORDINAL] >= within_rows))
        )  # fmt: skip
        alive = config > MATCHED
        if alive and not over and why == GO_ON:
            break
        rows[root, LINK] -= 1
        last = partitions[p, LAST]
        if table.configs[config, 0]:
            end = end_of(s, root, rows)
            partitions[p, NUMBER] += 1
            record(p, s, end, MATCH, partitions[p, NUMBER], -1, rows, decided, counters)
            until = s
            if end >= 0:
                partitions[p, COVERED] = max(partitions[p, COVERED], rows[end, ORDINAL])
                to_variable = skip != SKIP_NEXT_ROW and skip != SKIP_PAST_LAST_ROW
                if to_variable or len(table.picks) > 0:
                    until = look_back(s, end, counters[C_DECIDED] - 1, table, rows, scratch.path, decided)
                    if to_variable and until == s:
                        counters[C_STUCK] += 1
                if skip == SKIP_PAST_LAST_ROW:
                    until = end + 1
                elif skip == SKIP_NEXT_ROW:
                    until = s
            leave(p, rows, partitions)
            pass_over(p, until, rows, partitions)
        else:
            if alive and over and table.settings[S_TIMEOUTS]:
                record(p, s, last, TIMEOUT, 0, table.configs[config, 1], rows, decided, counters)
            if table.settings[S_UNMATCHED] and rows[s, ORDINAL] > partitions[p, COVERED]:
                record(p, s, -1, UNMATCHED, 0, -1, rows, decided, counters)
            leave(p, rows, partitions)


@called
def queue_length(p, rows, partitions):
    head = partitions[p, HEAD]
    return rows[partitions[p, LAST], ORDINAL] - rows[head, ORDINAL] + 1 if head >= 0 else 0


@called
def meet(config, root, position, tick, rows, configs, met):
    """Notes that the group of `root` is in `config` after the row at `position`; returns the number of configurations
    met."""
    if configs[config, 1] != tick:
        configs[config, 1] = tick
        configs[config, 0] = root
        configs[met, 2] = config
        rows[root, UP] = -1 - config
        return met + 1
    other = configs[config, 0]
    if rows[other, LINK] < rows[root, LINK]:  # the smaller tree goes below the larger one
        other, root = root, other
        configs[config, 0] = other
        rows[other, UP] = -1 - config
    rows[other, LINK] += rows[root, LINK]
    rows[root, UP] = other
    rows[root, LINK] = position
    return met


@inlined
def put_last(p, position, mask, t, rows, partitions):
    """The row becomes the last one of the queue of its partition."""
    if partitions[p, HEAD] < 0:
        partitions[p, HEAD] = position
    else:
        rows[partitions[p, LAST], NEXT] = position
    partitions[p, LAST] = position
    rows[position, MASK] = mask
    rows[position, TS] = t
    rows[position, ORDINAL] = partitions[p, SEEN]
    rows[position, NEXT] = -1
    rows[position, LINK] = 1
    rows[position, SIBLING] = -1
    partitions[p, SEEN] += 1


@inlined
def proceed(p, position, mask, tick, masks, goes, rows, partitions, configs, met):
    """Takes every group of a partition one step on by the row at `position`. Returns how many configurations are met,
    and whether a group has failed or is decided."""
    settled = False
    group = partitions[p, GROUPS]
    while group >= 0:
        following = rows[group, SIBLING]
        if rows[group, LINK] > 0:
            transition = (-1 - rows[group, UP]) * masks + mask
            if goes[transition, 1]:
                rows[group, END] = position
            config = goes[transition, 0]
            if config > MATCHED:
                met = meet(config, group, position, tick, rows, configs, met)
            else:
                rows[group, UP] = -1 - config
                settled = True
        group = following
    return met, settled


@inlined
def begin_at(position, mask, tick, masks, goes, rows, configs, met):
    """Begins an attempt at the row at `position`. Returns how many configurations are met."""
    transition = START * masks + mask
    config = goes[transition, 0]
    rows[position, END] = position if goes[transition, 1] else -1
    if config > MATCHED:
        return meet(config, position, position, tick, rows, configs, met)
    rows[position, UP] = -1 - config
    return met


@kernel
def step_starts(
    begin, end, partition, mask, row, ts, table, rows, partitions, heap, decided, scratch, counters
):  # fmt: skip
    """Takes the rows [begin, end) of partition, mask, row (positions in the store) and ts; returns the next row, which
    is before `end` when `decided` is too small for it, and the room it needs.

    O(rows * configurations alive in their partitions), and the length of the match for SKIP TO a variable."""
    masks = table.settings[S_MASKS]
    strict = table.settings[S_STRICT] != 0
    within_us = table.settings[S_WITHIN_US]
    within_rows = table.settings[S_WITHIN_ROWS]
    goes = table.goes
    configs = scratch.met
    tick = scratch.tick[0]
    scratch.tick[0] += end - begin
    for i in range(begin, end):
        p = partition[i]
        room = queue_length(p, rows, partitions) + 1
        known = counters[C_DECIDED]
        before = counters[C_LAST]
        foreign = strict and before >= 0 and before != p
        if foreign:
            room += queue_length(before, rows, partitions)
        room = counters[C_DECIDED] + 2 * room
        if room > len(decided):
            return i, room
        position = row[i]
        t = ts[i]
        m = mask[i]
        if foreign:
            settle(before, BROKEN, t, table, rows, partitions, decided, scratch, counters)
        counters[C_LAST] = p
        if partitions[p, HEAD] >= 0 and within_us >= 0 and t - rows[partitions[p, HEAD], TS] > within_us:
            settle(p, GO_ON, t, table, rows, partitions, decided, scratch, counters)
        put_last(p, position, m, t, rows, partitions)
        alone = partitions[p, HEAD] == position
        tick += 1
        met, settled = proceed(p, position, m, tick, masks, goes, rows, partitions, configs, 0)
        met = begin_at(position, m, tick, masks, goes, rows, configs, met)
        first = np.int64(-1)  # of the groups in the configurations met; a function for them costs 5 % of the time
        for k in range(met - 1, -1, -1):
            group = configs[configs[k, 2], 0]
            rows[group, SIBLING] = first
            first = group
        partitions[p, GROUPS] = first
        if settled or alone or within_rows >= 0:
            settle(p, GO_ON, t, table, rows, partitions, decided, scratch, counters)
        if within_us >= 0 and partitions[p, QUEUED] == 0 and partitions[p, HEAD] >= 0:
            partitions[p, QUEUED] = 1
            heap_push(heap, counters, rows[partitions[p, HEAD], TS] + within_us, p)
        for k in range(known, counters[C_DECIDED]):
            decided[k, D_AT] = position
    return end, 0


@kernel
def expire_starts(watermark, held, table, rows, partitions, heap, decided, scratch, counters):
    """Settles the starts that no row can bring further (watermark > first + WITHIN). held: per partition the time of
    its first row that has come but has not been taken yet, or empty. Returns 0, or the room that `decided` needs to go
    on."""
    within_us = table.settings[S_WITHIN_US]
    while counters[C_HEAP] > 0 and heap.deadline[0] < watermark:
        p = heap.partition[0]
        room = counters[C_DECIDED] + 2 * queue_length(p, rows, partitions)
        if room > len(decided):
            return room
        heap_pop(heap, counters)
        partitions[p, QUEUED] = 0
        now = watermark
        if len(held) > 0 and held[p] < now:
            now = held[p]
        settle(p, GO_ON, now, table, rows, partitions, decided, scratch, counters)
        head = partitions[p, HEAD]
        # what is over time but for the row that is held is queued again when that row is taken
        if head >= 0 and rows[head, TS] + within_us >= watermark:
            partitions[p, QUEUED] = 1
            heap_push(heap, counters, rows[head, TS] + within_us, p)
    return 0


@kernel
def finish_starts(begin, count, table, rows, partitions, decided, scratch, counters):
    """The input has ended for partitions [begin, count); returns the next partition and the room that `decided` needs
    to go on."""
    for p in range(begin, count):
        room = counters[C_DECIDED] + 2 * queue_length(p, rows, partitions)
        if room > len(decided):
            return p, room
        settle(p, ENDED, 0, table, rows, partitions, decided, scratch, counters)
    return count, 0


@kernel
def read_forward(
    decided, count, table, rows, path, bounds, out_rows, out_variables,
    ts, source, offset, seq, out_ts, out_source, out_offset, out_seq,
):  # fmt: skip
    """Writes the rows of what was decided, with variables and identities, if there is room for these. bounds:
    (count + 1,). Linear."""
    identified = len(out_ts) > 0
    for k in range(count):
        if decided[k, D_LENGTH] == 0:
            continue
        n = replay(decided[k, D_START], decided[k, D_END], table, rows, path)
        item = last_item(path[n - 1, 0], decided[k, D_OUTCOME], table)
        begin = bounds[k]
        r = decided[k, D_START]
        for j in range(n):
            out_rows[begin + j] = r
            if identified:
                out_ts[begin + j] = ts[r]
                out_source[begin + j] = source[r]
                out_offset[begin + j] = offset[r]
                out_seq[begin + j] = seq[r]
            r = rows[r, NEXT]
        for j in range(n - 1, -1, -1):
            out_variables[begin + j] = table.items[item, 1]
            if j > 0:
                item = table.goes[path[j - 1, 0], 2] + table.items[item, 0]


@kernel
def keep_starts(ids, rows, partitions, keep, live):
    """Marks the rows of all queues in `keep` and `live`, makes one of its own starts the root of every group, and
    leaves out the groups whose starts are all settled."""
    for p in ids:
        head = partitions[p, HEAD]
        s = head
        while s >= 0:
            keep[s] = True
            live[s] = True
            root = root_of(s, rows)
            if root < head:
                rows[s, END] = end_of(s, root, rows)
                rows[s, UP] = rows[root, UP]
                rows[s, LINK] = rows[root, LINK]
                rows[root, UP] = s
                rows[root, LINK] = partitions[p, LAST]
            s = rows[s, NEXT]
        first = np.int64(-1)
        group = partitions[p, GROUPS]
        while group >= 0:
            following = rows[group, SIBLING]
            root = root_of(group, rows)
            if rows[root, LINK] > 0:
                rows[root, SIBLING] = first
                first = root
            group = following
        partitions[p, GROUPS] = first


@kernel
def move_starts(count, live, moved, rows):
    """Renumbers the live rows among the first `count`, in place; they only move down."""
    for s in range(count):
        if live[s]:
            to = moved[s]
            for column in range(rows.shape[1]):  # numba cannot compile an assignment of slices in a kernel
                rows[to, column] = rows[s, column]
            for column in (NEXT, END, SIBLING):
                rows[to, column] = moved[rows[to, column]]
            if rows[to, UP] >= 0:
                rows[to, UP] = moved[rows[to, UP]]
                rows[to, LINK] = moved[rows[to, LINK]]

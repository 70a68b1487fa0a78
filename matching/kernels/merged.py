"""All matches of patterns that pass over rows and whose conditions read the match so far: a graph of cells as in
matching.kernels.graph, with a list for each *configuration* instead of each state.

Runs of one partition that are in one state and have equal values in all registers that a condition can still read have
the same future; [SASE] section 5.2.2 calls them equivalent and merges them. A configuration is such a state with its
values. It is found by hashing; a condition is evaluated once for all of its runs. Registers that no condition can read
any more are 0, so that they keep nothing apart.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from matching.kernels.graph import (
    BUDGET,
    C_CELLS,
    C_ENDS,
    C_FAILED_LABEL,
    C_FAILED_ROW,
    ERROR,
    L_LOWEST,
    L_ORDINAL,
    OK,
    REST,
    ROOM_CELLS,
    GraphCounters,
    drop_ends,
    enumerate_ends,
    link_cell,
    window,
)
from matching.kernels.integers import wrapped_product, wrapped_sum
from matching.kernels.jit import inlined, kernel
from matching.kernels.layout import Parameters
from matching.kernels.predicate import holds, update_registers
from matching.program.program import Ignore

P_WITHIN_US = int(Parameters.WITHIN_US)
P_WITHIN_ROWS = int(Parameters.WITHIN_ROWS)
P_DEGREE = int(Parameters.DEGREE)
P_COUNTS = int(Parameters.COUNT_REGISTERS)
P_RUNS_MAX = int(Parameters.RUNS_MAX)
P_IGNORE = int(Parameters.IGNORE)
ANY = int(Ignore.ANY)


class PartitionColumn(IntEnum):
    """Columns of the partitions, int64 (partitions, 8), besides those of matching.kernels.graph.Lists that they share:
    LOWEST, NUMBER and ORDINAL."""

    FIRST = 4  # first configuration, -1 none
    LENGTH = 5  # how many there are


PARTITION_WIDTH = 8
P_FIRST = int(PartitionColumn.FIRST)
P_LENGTH = int(PartitionColumn.LENGTH)


class Config(IntEnum):
    """Columns of the configurations, int64 (n, 8)."""

    STATE = 0
    VALID = 1  # bit r: register r is not null
    HEAD = 2  # first cell of its list
    BEHIND = 3  # the next one of its partition, or the next free one; -1 none
    HASH = 4
    CHAIN = 5  # the next one in its bucket, -1 none
    OWNER = 6  # its partition


CONFIG_WIDTH = 8
STATE = int(Config.STATE)
VALID = int(Config.VALID)
HEAD = int(Config.HEAD)
BEHIND = int(Config.BEHIND)
HASH = int(Config.HASH)
CHAIN = int(Config.CHAIN)
OWNER = int(Config.OWNER)

#: Slots of the counters after those of matching.kernels.graph.
C_FREE = len(GraphCounters)  # first free configuration
C_FREE_COUNT = len(GraphCounters) + 1
COUNTERS = len(GraphCounters) + 2


class Configs(NamedTuple):
    """at: int64 (n, CONFIG_WIDTH); registers: int64 (n, registers), registers_f: the same memory as float64. buckets:
    int64 (a power of 2,), first configuration with a hash, -1 none."""

    at: np.ndarray
    registers: np.ndarray
    registers_f: np.ndarray
    buckets: np.ndarray


class Made(NamedTuple):
    """The takers of the row at hand: the edge, the list it is taken after, and the registers with the row."""

    edge: np.ndarray
    child: np.ndarray
    valid: np.ndarray
    registers: np.ndarray  # int64 (n, registers)
    registers_f: np.ndarray  # the same memory as float64


@inlined
def hashed(p, q, valid, registers):
    h = wrapped_sum(wrapped_product(p, -7046029254386353131), q)
    h = wrapped_sum(wrapped_product(h ^ (h >> 29), -4658895280553007687), valid)
    for r in range(len(registers)):
        h = wrapped_sum(wrapped_product(h ^ (h >> 29), -4658895280553007687), registers[r])
    return h ^ (h >> 32)


@inlined
def unlink(config, configs, counters):
    """Takes a configuration out of its bucket and frees it; its partition has left it already."""
    at = configs.at
    bucket = at[config, HASH] & (len(configs.buckets) - 1)
    other = configs.buckets[bucket]
    if other == config:
        configs.buckets[bucket] = at[config, CHAIN]
    else:
        while at[other, CHAIN] != config:
            other = at[other, CHAIN]
        at[other, CHAIN] = at[config, CHAIN]
    at[config, BEHIND] = counters[C_FREE]
    counters[C_FREE] = config
    counters[C_FREE_COUNT] += 1


@inlined
def drop(p, config, kept, lists, configs, counters):
    """Drops the configuration of a partition after `kept` (-1: its first one)."""
    if kept < 0:
        lists[p, P_FIRST] = configs.at[config, BEHIND]
    else:
        configs.at[kept, BEHIND] = configs.at[config, BEHIND]
    lists[p, P_LENGTH] -= 1
    unlink(config, configs, counters)


@inlined
def find(p, q, valid, registers, configs, lists, counters):
    """The configuration of a partition with these values; a new one, without cells, if there is none."""
    at = configs.at
    h = hashed(p, q, valid, registers)
    bucket = h & (len(configs.buckets) - 1)
    config = configs.buckets[bucket]
    while config >= 0:
        same = (
            at[config, HASH] == h and at[config, OWNER] == p and at[config, STATE] == q and at[config, VALID] == valid
        )
        if same:
            for r in range(len(registers)):
                same = same and configs.registers[config, r] == registers[r]
        if same:
            return config
        config = at[config, CHAIN]
    config = counters[C_FREE]
    counters[C_FREE] = at[config, BEHIND]
    counters[C_FREE_COUNT] -= 1
    at[config, STATE] = q
    at[config, VALID] = valid
    at[config, HEAD] = -1
    at[config, HASH] = h
    at[config, OWNER] = p
    at[config, CHAIN] = configs.buckets[bucket]
    configs.buckets[bucket] = config
    at[config, BEHIND] = lists[p, P_FIRST]
    lists[p, P_FIRST] = config
    lists[p, P_LENGTH] += 1
    for r in range(len(registers)):
        configs.registers[config, r] = registers[r]
    return config


@inlined
def has_room(most, cells, made, scratch, counters):
    """True if there is room for everything that a row can make."""
    return (
        counters[C_CELLS] + most <= len(cells.wide)
        and counters[C_FREE_COUNT] >= most
        and most <= len(made.edge)
        and most <= len(scratch.ends)
    )


@kernel
def step(
    begin, end, partition, mask, bad, ts, row, feature, feature_f, feature_valid, program, live, caps, cells, lists,
    configs, made, found, scratch, values, matches_max, counters,
):  # fmt: skip
    """Takes rows [begin, end), as matching.kernels.graph.step does. live: int64 (states,), bit r: a condition that runs
    in that state can meet may read register r. caps: int64 (registers,), from where on its values are alike; -1:
    nowhere. values: matching.kernels.layout.Scratch. O(configurations of the partition * edges) a row, and O(its rows)
    a match found.

    Longer than other kernels: with functions for edges and for cells it takes 1.4 to 2 times as long to compile."""
    skips_any = program.parameters[P_IGNORE] == ANY
    within_us = program.parameters[P_WITHIN_US]
    within_rows = program.parameters[P_WITHIN_ROWS]
    some_bad = len(bad) > 0
    registers = len(program.register_kind)
    at = configs.at
    resumed = counters[C_ENDS] > 0
    for i in range(begin, end):
        m = mask[i]
        b = bad[i] if some_bad else np.int64(0)
        p = partition[i]
        length = lists[p, P_LENGTH]
        ordinal = lists[p, L_ORDINAL]
        lowest, here = window(ts[i], ordinal, within_us, within_rows)
        if not resumed:
            most = (length + 1) * program.parameters[P_DEGREE]
            if not has_room(most, cells, made, scratch, counters):
                return i, ROOM_CELLS
            if length > program.parameters[P_RUNS_MAX]:
                return i, BUDGET
            # ---- what takes the row; lists change when all of them have been looked at
            count = 0
            config = lists[p, P_FIRST]
            kept = np.int64(-1)  # the configuration before
            at_start = False
            while config >= 0 or not at_start:
                mine = config
                q = np.int64(0)
                valid = program.parameters[P_COUNTS]
                head = np.int64(-1)
                stays = True
                if mine >= 0:
                    config = at[mine, BEHIND]
                    head = at[mine, HEAD]
                    q = at[mine, STATE]
                    valid = at[mine, VALID]
                    stays = cells.wide[head, REST] >= lowest
                else:
                    at_start = True
                if stays and (m | b) & program.state_mask[q] != 0:
                    for e in range(program.edge_start[q], program.edge_start[q + 1]):
                        v = program.edge_variable[e]
                        failed = (b >> v) & 1 == 1
                        if (m >> v) & 1 == 0 and not failed:
                            continue
                        new_valid = valid
                        if not failed:
                            for r in range(registers):
                                made.registers[count, r] = 0 if mine < 0 else configs.registers[mine, r]
                            new_valid = update_registers(
                                program, made.registers[count], made.registers_f[count], valid, v, feature, feature_f,
                                feature_valid, i,
                            )  # fmt: skip
                            failed = new_valid == -1
                        if not failed and program.code_start[v + 1] > program.code_start[v]:
                            truth = holds(
                                program, v, made.registers[count], new_valid, feature, feature_valid, i, values
                            )
                            failed = truth < 0
                            if truth == 0:
                                continue
                        if failed:
                            counters[C_FAILED_ROW] = row[i] + 1
                            counters[C_FAILED_LABEL] = v
                            return i, ERROR
                        if program.edge_waits[e] and not skips_any:
                            stays = False
                        needed = live[program.edge_target[e]]
                        for r in range(registers):
                            if (needed >> r) & 1 == 0:
                                made.registers[count, r] = 0
                            elif 0 <= caps[r] < made.registers[count, r]:
                                made.registers[count, r] = caps[r]
                        made.valid[count] = new_valid & needed
                        made.edge[count] = e
                        made.child[count] = head
                        count += 1
                if mine < 0:
                    continue
                if stays:
                    kept = mine
                else:
                    drop(p, mine, kept, lists, configs, counters)
            # ---- one cell for each
            ends = 0
            c = counters[C_CELLS]
            for k in range(count):
                e = made.edge[k]
                q = program.edge_target[e]
                behind = np.int64(-1)
                if program.edge_start[q + 1] > program.edge_start[q]:
                    to = find(p, q, made.valid[k], made.registers[k, :registers], configs, lists, counters)
                    behind = at[to, HEAD]
                    at[to, HEAD] = c
                link_cell(c, row[i], e, made.child[k], behind, here, lowest, cells)
                if program.accept[q]:
                    scratch.ends[ends] = c
                    ends += 1
                c += 1
            counters[C_CELLS] = c
            counters[C_ENDS] = ends
            lists[p, L_LOWEST] = lowest
        resumed = False
        if counters[C_ENDS] > 0:
            status = enumerate_ends(p, lowest, cells, lists, found, scratch, matches_max, counters)
            if status != OK:
                return i, status
            counters[C_ENDS] = 0
            drop_ends(program, row[i], cells, counters)
        lists[p, L_ORDINAL] = ordinal + 1
    return end, OK


@kernel
def mark_configs(ids, floor, lists, cells, configs, lowest, moved, counters):
    """Marks the first cells of all configurations, see matching.kernels.graph.mark_cells; drops those that WITHIN has
    ended."""
    at = configs.at
    for p in ids:
        low = max(floor, lists[p, L_LOWEST])
        kept = np.int64(-1)
        config = lists[p, P_FIRST]
        while config >= 0:
            behind = at[config, BEHIND]
            c = at[config, HEAD]
            if cells.wide[c, REST] < low:
                drop(p, config, kept, lists, configs, counters)
            else:
                moved[c] = 0
                lowest[c] = low
                kept = config
            config = behind


@kernel
def move_configs(ids, lists, configs, moved):
    """Renumbers the first cells of all configurations."""
    for p in ids:
        config = lists[p, P_FIRST]
        while config >= 0:
            configs.at[config, HEAD] = moved[configs.at[config, HEAD]]
            config = configs.at[config, BEHIND]


@kernel
def rehash(partitions, lists, configs):
    """Puts all configurations into their buckets, which are empty."""
    for p in range(partitions):
        config = lists[p, P_FIRST]
        while config >= 0:
            bucket = configs.at[config, HASH] & (len(configs.buckets) - 1)
            configs.at[config, CHAIN] = configs.buckets[bucket]
            configs.buckets[bucket] = config
            config = configs.at[config, BEHIND]


@kernel
def configs_of(ids, bounds, lists, configs, out):
    """The configurations of these partitions in their order. bounds: where those of each begin in `out`."""
    for k in range(len(ids)):
        at = bounds[k]
        config = lists[ids[k], P_FIRST]
        while config >= 0:
            out[at] = config
            at += 1
            config = configs.at[config, BEHIND]


@kernel
def leave_configs(ids, lists, configs, counters):
    """These partitions have no configurations any more."""
    for p in ids:
        config = lists[p, P_FIRST]
        while config >= 0:
            behind = configs.at[config, BEHIND]
            unlink(config, configs, counters)
            config = behind
        lists[p, P_FIRST] = -1
        lists[p, P_LENGTH] = 0


@kernel
def put_configs(ids, bounds, at, registers, lists, configs, counters):
    """Gives partitions without configurations these, in their order; there is room for them. at, registers: lines of
    `configs`, those of partition k from bounds[k] on."""
    for k in range(len(ids)):
        p = ids[k]
        last = np.int64(-1)
        for i in range(bounds[k], bounds[k + 1]):
            config = counters[C_FREE]
            counters[C_FREE] = configs.at[config, BEHIND]
            counters[C_FREE_COUNT] -= 1
            for c in range(at.shape[1]):
                configs.at[config, c] = at[i, c]
            for r in range(registers.shape[1]):
                configs.registers[config, r] = registers[i, r]
            bucket = configs.at[config, HASH] & (len(configs.buckets) - 1)
            configs.at[config, CHAIN] = configs.buckets[bucket]
            configs.buckets[bucket] = config
            configs.at[config, BEHIND] = -1
            if last < 0:
                lists[p, P_FIRST] = config
            else:
                configs.at[last, BEHIND] = config
            last = config
        lists[p, P_LENGTH] = bounds[k + 1] - bounds[k]

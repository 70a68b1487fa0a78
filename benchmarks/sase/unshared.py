"""Runs that share nothing: each has its own copy of its rows. What the match buffer of [SASE] section 5.1 saves.

The runs of a partition stand in the order of matching.kernels.skip_till. A run that becomes several is copied for all
of them but the last; a match is written straight from the run that it ends.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from benchmarks.sase.runs import DONE, FOUND_ROOM, ROOM, counted, decode, larger_found, new_found, refuse, taken
from matching.batch import Int64Array
from matching.decode import Decode
from matching.kernels import layout
from matching.kernels.jit import inlined, kernel
from matching.kernels.layout import Parameters
from matching.program.program import Ignore, Mode, Program
from matching.store import RowStore

P_MODE = int(Parameters.MODE)
P_WITHIN_ROWS = int(Parameters.WITHIN_ROWS)
P_COUNTS = int(Parameters.COUNT_REGISTERS)
P_IGNORE = int(Parameters.IGNORE)
ALL = int(Mode.ALL)
NONE = int(Ignore.NONE)
ANY = int(Ignore.ANY)


class Runs(NamedTuple):
    """row, label: (runs, longest), the rows of the run so far. The others as in matching.kernels.layout.LinkedRuns."""

    state: np.ndarray
    first: np.ndarray
    valid: np.ndarray
    registers: np.ndarray
    length: np.ndarray
    row: np.ndarray
    label: np.ndarray  # int16
    next: np.ndarray
    free: np.ndarray
    free_count: np.ndarray  # (1,)
    looked_at: np.ndarray  # (1,): over all rows, how many runs of their partitions there were


class Partitions(NamedTuple):
    head: np.ndarray
    length: np.ndarray
    ordinal: np.ndarray


class Scratch(NamedTuple):
    """For each edge that takes the row at hand: what the run becomes."""

    state: np.ndarray
    label: np.ndarray
    valid: np.ndarray
    registers: np.ndarray  # (edges, registers)
    registers_f: np.ndarray
    held: np.ndarray  # register values of a run without rows


def new_runs(capacity: int, registers: int, longest: int) -> Runs:
    return Runs(
        np.zeros(capacity, np.int64), np.zeros(capacity, np.int64), np.zeros(capacity, np.int64),
        np.zeros((capacity, registers), np.int64), np.zeros(capacity, np.int64),
        np.zeros((capacity, longest), np.int64), np.zeros((capacity, longest), np.int16),
        np.zeros(capacity, np.int64), np.arange(capacity - 1, -1, -1), np.array([capacity]),
        np.zeros(1, np.int64),
    )  # fmt: skip


def more_runs(runs: Runs) -> Runs:
    before = len(runs.state)
    names = (name for name in Runs._fields if name not in ("free_count", "looked_at"))
    larger = runs._replace(**{name: layout.grown(getattr(runs, name), 2 * before) for name in names})
    count = int(runs.free_count[0])
    larger.free[count : count + before] = np.arange(2 * before - 1, before - 1, -1)
    larger.free_count[0] += before
    return larger


@inlined
def copy_rows(runs, source, target, length):
    for k in range(length):
        runs.row[target, k] = runs.row[source, k]
        runs.label[target, k] = runs.label[source, k]


@kernel
def step(
    begin, end, partition, mask, row, feature, feature_f, feature_valid, construct, program, runs, partitions, found,
    scratch, stack,
):  # fmt: skip
    """Takes rows [begin, end) of the arrays; returns (next row, status), and is to be called again with more room if
    that was short. construct: whether matches are written, or only counted with their rows. O(runs of the partition *
    edges) a row, and O(its rows) a copy.

    Long: as matching.kernels.skip_till.step, every edge reads and writes the runs."""
    everything = program.parameters[P_MODE] == ALL
    ignore = program.parameters[P_IGNORE]
    within_rows = program.parameters[P_WITHIN_ROWS]
    registers = len(program.register_kind)
    for i in range(begin, end):
        p = partition[i]
        ordinal = partitions.ordinal[p]
        most = (partitions.length[p] + 1) * len(scratch.state)
        if runs.free_count[0] < most:
            return i, ROOM
        if construct and (
            found.total[0] + most >= len(found.bound) or found.total[1] + most * within_rows > len(found.row)
        ):
            return i, FOUND_ROOM
        partitions.ordinal[p] = ordinal + 1
        item = partitions.head[p]
        head = np.int64(-1)
        tail = np.int64(-1)
        count = 0
        ended = False
        at_start = False
        while True:
            mine = item
            if item >= 0:
                item = runs.next[mine]
                if ended or ordinal - runs.first[mine] + 1 > within_rows:
                    runs.free[runs.free_count[0]] = mine
                    runs.free_count[0] += 1
                    continue
                runs.looked_at[0] += 1
                state = runs.state[mine]
                first = runs.first[mine]
                valid = runs.valid[mine]
                length = runs.length[mine]
                held = runs.registers[mine]
            elif not at_start and not ended:
                at_start = True
                state = np.int64(0)
                first = ordinal
                valid = program.parameters[P_COUNTS]
                length = np.int64(0)
                held = scratch.held
            else:
                break
            passes = ignore != NONE and mine >= 0
            spent = ordinal - first + 1 >= within_rows  # no row can follow this one
            made = 0
            if mask[i] & program.state_mask[state] != 0:
                for e in range(program.edge_start[state], program.edge_start[state + 1]):
                    v = program.edge_variable[e]
                    after = taken(
                        program, v, held, scratch.registers[made], scratch.registers_f[made], valid, mask[i], feature,
                        feature_f, feature_valid, i, stack,
                    )  # fmt: skip
                    if after < 0:
                        continue
                    if ignore != NONE and ignore != ANY and program.edge_waits[e]:
                        passes = False
                    q = program.edge_target[e]
                    if program.accept[q]:
                        at = found.total[1]
                        if construct:
                            for k in range(length):
                                found.row[at + k] = runs.row[mine, k]
                                found.label[at + k] = runs.label[mine, k]
                            found.row[at + length] = row[i]
                            found.label[at + length] = v
                            found.partition[found.total[0]] = p
                            found.bound[found.total[0] + 1] = at + length + 1
                        found.total[0] += 1
                        found.total[1] = at + length + 1
                        if not everything:
                            ended = True
                            break
                    if program.edge_start[q + 1] > program.edge_start[q] and not spent:
                        scratch.state[made] = q
                        scratch.label[made] = v
                        scratch.valid[made] = after
                        made += 1
            if ended:  # this match drops all runs
                if mine >= 0:
                    runs.free[runs.free_count[0]] = mine
                    runs.free_count[0] += 1
                while head >= 0:
                    runs.free[runs.free_count[0]] = head
                    runs.free_count[0] += 1
                    if head == tail:
                        break
                    head = runs.next[head]
                head = np.int64(-1)
                tail = np.int64(-1)
                count = 0
                continue
            passes = passes and not spent
            for k in range(made):
                if k == made - 1 and mine >= 0 and not passes:
                    new = mine
                else:
                    runs.free_count[0] -= 1
                    new = runs.free[runs.free_count[0]]
                    if mine >= 0:
                        copy_rows(runs, mine, new, length)
                runs.row[new, length] = row[i]
                runs.label[new, length] = scratch.label[k]
                runs.length[new] = length + 1
                runs.state[new] = scratch.state[k]
                runs.first[new] = first
                runs.valid[new] = scratch.valid[k]
                for r in range(registers):
                    runs.registers[new, r] = scratch.registers[k, r]
                if tail < 0:
                    head = new
                else:
                    runs.next[tail] = new
                tail = new
                count += 1
            if mine < 0:
                continue
            if passes:
                if tail < 0:
                    head = mine
                else:
                    runs.next[tail] = mine
                tail = mine
                count += 1
            elif made == 0:
                runs.free[runs.free_count[0]] = mine
                runs.free_count[0] += 1
        if tail >= 0:
            runs.next[tail] = -1
        partitions.head[p] = head
        partitions.length[p] = count
    return end, DONE


class Unshared:
    """The engine; its methods as those of matching.engines.engine.Engine. construct: whether matches are written."""

    def __init__(self, program: Program, construct: bool) -> None:
        refuse(program)
        assert program.within_rows is not None
        self._construct = construct
        registers = len(program.registers)
        self._tables = layout.program_arrays(program, 0)
        self._runs = new_runs(64, registers, program.within_rows)
        self._found = new_found(1 << 12, 1 << 16)
        edges = int(self._tables.parameters[Parameters.DEGREE])
        after = np.zeros((edges + 1, registers), np.int64)
        self._scratch = Scratch(
            np.zeros(edges + 1, np.int64), np.zeros(edges + 1, np.int64), np.zeros(edges + 1, np.int64),
            after, after.view(np.float64), np.zeros(registers, np.int64),
        )  # fmt: skip
        self._stack = layout.new_scratch(program)
        self._partitions = Partitions(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0, np.int64))

    def reserve(self, partitions: int) -> None:
        self._partitions = Partitions(
            np.full(partitions, -1, np.int64), np.zeros(partitions, np.int64), np.zeros(partitions, np.int64)
        )

    def run(
        self, store: RowStore, positions: slice, mask: Int64Array, feature: np.ndarray, feature_valid: np.ndarray
    ) -> None:
        partition = store.partition[positions]
        rows = np.arange(positions.start, positions.stop)
        at, count = 0, len(mask)
        while at < count:
            at, status = step(
                at, count, partition, mask, rows, feature, feature.view(np.float64), feature_valid, self._construct,
                self._tables, self._runs, self._partitions, self._found, self._scratch, self._stack,
            )  # fmt: skip
            if status == ROOM:
                self._runs = more_runs(self._runs)
            elif status == FOUND_ROOM:
                self._found = larger_found(self._found)

    def decode(self, store: RowStore, out: Decode) -> None:
        decode(self._found, store, out)

    @property
    def looked_at(self) -> int:
        """Over all rows, how many runs of their partitions there were."""
        return int(self._runs.looked_at[0])

    def counted(self) -> tuple[int, int]:
        return counted(self._found)

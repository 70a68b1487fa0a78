"""The arrays of a matcher: program tables, runs, match buffer, partitions, deadline heap, decided matches.

Everything is struct-of-arrays in named tuples, so that a kernel gets plain arrays, a checkpoint is an array write, and
growing is a copy. `Counters` names the slots of the one array of scalars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from matching.kernels.walks import FOUND, SLOTS
from matching.program.program import Program

STACK = 256
#: No row was negated so far.
UNSEEN = -(1 << 63)


class Parameters(IntEnum):
    """Slots of ProgramArrays.parameters."""

    MODE = 0
    MERGE = 1  # 0 state, 1 state and start, 2 path
    AMBIGUOUS = 2
    STRICT = 3
    WITHIN_US = 4  # -1: none
    WITHIN_ROWS = 5  # -1: none
    DEGREE = 6  # most edges of a state
    COUNT_REGISTERS = 7  # validity bits of a fresh run
    RUNS_MAX = 8
    SKIP = 9  # in Mode.TO_NEXT_ROW: matching.program.program.Skip
    TIMEOUTS = 10
    ABSENT = 11  # negated rows: 1 before a match, 2 after it, 3 both
    IGNORE = 12  # matching.program.program.Ignore
    CARRIES = 13  # whether matches are registers, not rows: see matching.program.carried
    NUMBER = 14  # the register with MATCH_NUMBER(), -1: none
    CODED = 15  # negations whose conditions read the match: 1 some after a match, 2 some in gaps, 3 both
    FOLDS = 16  # matching.program.program.Program.folds


class Counters(IntEnum):
    FREE = 0  # free run slots
    NODES = 1
    DECIDED = 2
    HEAP = 3
    LAST_PARTITION = 4  # of the row before, for STRICT
    STUCK = 5  # matches after which AFTER MATCH SKIP TO would not have moved on
    FAILED_ROW = 6  # a condition that was read and could not be computed: row of the store + 1 (0: none) and label
    FAILED_LABEL = 7


class AskedArrays(NamedTuple):
    """The answers of DuckDB that are known (matching.answers.Answers); matching.kernels.asking reads them."""

    asked_keys: np.ndarray
    asked_values: np.ndarray
    asked_known: np.ndarray
    asked_row: np.ndarray  # of all rows that came, the last one for which a line was foreseen, or that asked for it
    asked_way: np.ndarray  # int8: why a line is known
    asked_used: np.ndarray  # (functions, ways): how many lines that were foreseen have been asked
    asked_line: np.ndarray  # (functions, rows, width): the line that each row of the block asked for last
    answer: np.ndarray


class WalkArrays(NamedTuple):
    """The tables of conditions that walk over the rows of a run (matching.kernels.walks)."""

    kept_of: np.ndarray  # per feature its place among the values that are kept of rows, -1 none
    walks: np.ndarray  # (walks, 7): see matching.kernels.walks
    walks_f: np.ndarray  # their fractions
    at: np.ndarray
    at_f: np.ndarray  # the same memory as float64
    of_rows: np.ndarray  # (kept, positions) of the row store, by matching.walked.KeptValues
    of_rows_valid: np.ndarray
    rows: np.ndarray  # the positions of the rows that are taken
    values: np.ndarray  # room for the rows of a run
    roots: np.ndarray  # (walks, nodes): the tree or list of a run that ends with the node, -1 not known
    found: np.ndarray  # (FOUND * walks, nodes): what else walks have found for the node
    tree: np.ndarray  # (n, 4): see matching.kernels.trees
    list_lines: np.ndarray  # (n, 2): see matching.kernels.lists
    list_table: np.ndarray
    list_rows: np.ndarray  # (walks, rows): the list that was asked for with a row, -1 none
    previous: np.ndarray  # those of the match buffer
    row: np.ndarray
    variable: np.ndarray


class ProgramArrays(NamedTuple):
    """Program as arrays; see matching.program.program.Program."""

    edge_start: np.ndarray
    edge_variable: np.ndarray
    edge_target: np.ndarray
    accept: np.ndarray
    code_start: np.ndarray
    code: np.ndarray  # (n, 3)
    constant: np.ndarray  # int64; float64 constants as their bits
    constant_f: np.ndarray  # the same memory as float64
    register_kind: np.ndarray
    register_feature: np.ndarray
    register_mask: np.ndarray
    register_depth: np.ndarray
    register_link: np.ndarray
    register_float: np.ndarray
    skip_to: np.ndarray  # bool, per label
    label_text: np.ndarray  # per label: code of its variable's name
    absent_before: np.ndarray  # labels negated before the first row of a match
    absent_behind: np.ndarray  # and after its last one
    lesser: np.ndarray  # per state: the one with the edges less preferred than ending, -1 none; may be empty
    edge_waits: np.ndarray  # bool, per edge; these five are empty if not IGNORE
    edge_gap: np.ndarray
    gap_start: np.ndarray  # labels of gap g: gap_label[gap_start[g] : gap_start[g + 1]]
    gap_label: np.ndarray
    gap_coded: np.ndarray  # bool, per gap: a condition of it reads the match
    coded_mask: np.ndarray  # (1,): bit v set if label v is of such a gap
    state_mask: np.ndarray  # per state: bit v set if an edge has label v
    carried: np.ndarray  # registers that come out with a match
    ranks: np.ndarray  # by code of a text, its place among all known; engines replace it as texts come
    steps: np.ndarray  # by which joined texts are compared (matching.features.Codes.steps); replaced as texts come
    asked: AskedArrays | None  # both None: conditions ask DuckDB nothing, and read no rows of a run but by registers
    walked: WalkArrays | None  # both there if one is needed: each form of `step` takes 20 s to compile
    parameters: np.ndarray


class LinkedRuns(NamedTuple):
    """R of [SASE]: the items of all partitions' lists. Items with a state below 0 wait for preferred runs to fail: -1 a
    match, -2 a partial match that WITHIN ended (its state is in `valid`), -3 a run whose condition failed on the
    last row of its node: an error if nothing preferred over it matches; -4 a match that a negated row after it may
    still make none."""

    state: np.ndarray  # int32
    first: np.ndarray  # ordinal of the first row in its partition
    ts: np.ndarray  # time of the first row
    row: np.ndarray  # position of the first row in the row store
    node: np.ndarray  # last node in the match buffer, -1 none
    next: np.ndarray  # next item of the partition, -1 end
    valid: np.ndarray  # bit r: register r is not null
    nearest: np.ndarray  # of a run: Partitions.nearest before its first row
    nearest_bad: np.ndarray  # also: 1 + node of a row passed over whose negated condition could not be computed
    registers: np.ndarray  # (n, registers) int64
    registers_f: np.ndarray  # the same memory as float64
    free: np.ndarray  # stack of free slots


class Buffer(NamedTuple):
    """Match buffer: a node is (row, variable) with the node before; shared by all runs with that beginning. Where nodes
    fold, the rows of the partition between two nodes, which are none, are of the variable of the first (Links)."""

    previous: np.ndarray
    row: np.ndarray
    variable: np.ndarray  # int16


class Links(NamedTuple):
    """The rows that were taken, by partition; empty where nodes do not fold."""

    prior: np.ndarray  # per row of the store: the one before it, -1 none; of rows that were not taken anything
    last: np.ndarray  # per partition: its last one, -1 none


class Partitions(NamedTuple):
    head: np.ndarray  # first item, -1 none
    length: np.ndarray  # items
    ordinal: np.ndarray  # rows seen
    number: np.ndarray  # matches decided: MATCH_NUMBER of the last one
    resume: np.ndarray  # ordinal of the row where AFTER MATCH goes on: starts before it give nothing
    queued: np.ndarray  # bool: has an entry in the deadline heap
    nearest: np.ndarray  # time (WITHIN n ROWS: ordinal) of the last row negated before a match, or UNSEEN
    nearest_bad: np.ndarray  # 1 + node of that row if the negated condition could not be computed, else 0
    calm: np.ndarray  # last item of the settled prefix: the leading matches, decided or not, that were read
    calm_length: np.ndarray  # how many these are


class Heap(NamedTuple):
    """Binary heap of (time of the oldest run + WITHIN, partition); at most one entry a partition."""

    deadline: np.ndarray
    partition: np.ndarray


class Decided(NamedTuple):
    """Matches and timed-out partial matches decided by one call, in order."""

    node: np.ndarray  # last one in the match buffer; of a program that carries registers, the position of the last row
    row: np.ndarray  # start row; of use for empty matches
    partition: np.ndarray
    number: np.ndarray
    waiting: np.ndarray  # state of a partial match, -1 for a match
    carried: np.ndarray  # (n, carried): registers, -1 null
    at: np.ndarray  # position of the row that decided it, if one did


class Scratch(NamedTuple):
    visited: np.ndarray  # per state: stamp of the last visit
    stamp: np.ndarray  # (1,)
    stack: np.ndarray  # int64
    stack_f: np.ndarray
    stack_valid: np.ndarray
    old: np.ndarray  # registers of the run being advanced
    fresh: np.ndarray  # and of what becomes of it
    fresh_f: np.ndarray  # the same memory as float64


def program_arrays(program: Program, runs_max: int) -> ProgramArrays:
    """The arrays of a program. runs_max: most items of one partition before the budget error."""
    bits = np.zeros(max(1, len(program.constants)), np.int64)
    for i, value in enumerate(program.constants):
        bits[i] = np.float64(value).view(np.int64) if isinstance(value, float) else value
    code_start = np.zeros(len(program.code) + 1, np.int64)
    code_start[1:] = np.cumsum([len(c) for c in program.code])
    flat = [instruction for code in program.code for instruction in code]
    everything = (1 << len(program.variables)) - 1
    masks = [
        sum(1 << i for i, v in enumerate(program.variables) if v in r.variables) if r.variables else everything
        for r in program.registers
    ]
    counts = sum(1 << i for i, r in enumerate(program.registers) if r.kind.counts)
    degree = max(
        (program.edge_start[s + 1] - program.edge_start[s] for s in range(len(program.accept))), default=0
    )
    absence = program.absence
    absent = bool(absence.before) + 2 * bool(absence.behind)
    coded = [any(program.code[v] for v in gap) for gap in absence.gaps]
    of_gaps = sum({1 << v for gap, reads in zip(absence.gaps, coded, strict=True) if reads for v in gap})
    if absent:
        degree *= 3  # an edge may make a run, a match and a run that is less preferred
    merge = {"STATE": 0, "START": 1, "PATH": 2}[program.merge.name]
    parameters = np.array(
        [
            int(program.mode), merge, program.ambiguous, program.strict,
            -1 if program.within_us is None else program.within_us,
            -1 if program.within_rows is None else program.within_rows,
            max(1, degree), counts, runs_max, int(program.skip.row), program.extras.timeouts,
            absent, int(program.ignore), program.carries is not None, program.number,
            any(program.code[v] for v in absence.behind) + 2 * any(coded), program.folds,
        ],
        np.int64,
    )  # fmt: skip

    def ints(values: object) -> np.ndarray:
        return np.array(values, np.int64)

    state_masks = [
        sum(1 << v for v in set(program.edge_variable[program.edge_start[s] : program.edge_start[s + 1]]))
        for s in range(len(program.accept))
    ]
    return ProgramArrays(
        ints(program.edge_start), ints(program.edge_variable), ints(program.edge_target),
        np.array(program.accept, np.bool_), code_start, ints(flat).reshape(-1, 3), bits, bits.view(np.float64),
        ints([int(r.kind) for r in program.registers]), ints([r.feature for r in program.registers]), ints(masks),
        ints([r.depth for r in program.registers]), ints([r.link for r in program.registers]),
        np.array([r.lane.floating for r in program.registers], np.bool_), np.array(program.skip.counts, np.bool_),
        ints(program.texts.of_label), ints(absence.before), ints(absence.behind), ints(absence.lesser),
        np.array(program.edge_waits, np.bool_), ints(absence.of_edge),
        ints(np.cumsum([0, *map(len, absence.gaps)])), ints([v for gap in absence.gaps for v in gap]),
        np.array(coded, np.bool_), ints([of_gaps]),
        ints(state_masks), ints(program.carries or ()), ints([0]), np.zeros((1, 1, 1), np.int16),
        asked(program), walked(program), parameters,
    )  # fmt: skip


def asked(program: Program) -> AskedArrays | None:
    """Returns what is known of the functions that a program asks: nothing yet."""
    if not program.asked and not walks_rows(program):
        return None
    numbers, one = np.zeros((1, 1), np.int64), np.zeros(1, np.int64)
    return AskedArrays(
        numbers, one, np.zeros(1, np.int8), one, np.zeros(1, np.int8), numbers, np.zeros((1, 1, 1), np.int64), one
    )


def walks_rows(program: Program) -> bool:
    """True if conditions of a program walk over the rows of a run."""
    return bool(program.kept or program.walks)


def walked(program: Program) -> WalkArrays | None:
    """Returns what the conditions of a program walk over."""
    if not program.asked and not walks_rows(program):
        return None
    kept_of = [program.kept.index(f) if f in program.kept else -1 for f in range(len(program.features))]
    table = np.zeros((len(program.walks), 7), np.int64)
    for i, walk in enumerate(program.walks):
        labels = sum(1 << v for v, name in enumerate(program.variables) if not walk.variables or name in walk.variables)
        over, under = walk.fraction.as_integer_ratio()
        place, floating = -1, False
        if walk.feature >= 0:
            place, floating = kept_of[walk.feature], program.features[walk.feature][1].floating
        table[i] = place, labels, walk.before, walk.wanted, over, under, floating
    at, none = np.full(SLOTS, -1, np.int64), np.zeros(1, np.int64)
    return WalkArrays(
        np.array(kept_of, np.int64), table, np.array([float(walk.fraction) for walk in program.walks], np.float64), at,
        at.view(np.float64), np.zeros((1, 1), np.int64), np.zeros((1, 1), np.bool_), none, none.copy(),
        *no_trees(len(program.walks)), np.zeros((1, 2), np.int64), np.zeros(1, np.int64), np.zeros((1, 1), np.int64),
        none.copy(), none.copy(), np.zeros(1, np.int16),
    )  # fmt: skip


def with_tables(arrays: ProgramArrays, tables: Mapping[str, np.ndarray]) -> ProgramArrays:
    """Returns the arrays with other tables, by the names of their fields in any of the three tuples."""

    def of(fields: Sequence[str]) -> dict[str, Any]:
        return {name: tables[name] for name in fields if name in tables}

    known, walks = arrays.asked, arrays.walked
    return arrays._replace(
        **of(ProgramArrays._fields),
        asked=None if known is None else known._replace(**of(AskedArrays._fields)),
        walked=None if walks is None else walks._replace(**of(WalkArrays._fields)),
    )


def no_trees(walks: int, nodes: int = 1, items: int = 1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns WalkArrays.roots, .found and .tree of which nothing is known."""
    tree = np.zeros((items, 4), np.int64)
    tree[0, 0] = 1
    return np.full((walks, nodes), -1, np.int64), np.zeros((FOUND * walks, nodes), np.int64), tree


def new_runs(capacity: int, registers: int) -> LinkedRuns:
    def ints() -> np.ndarray:
        return np.zeros(capacity, np.int64)

    values = np.zeros((capacity, max(1, registers)), np.int64)
    return LinkedRuns(
        np.zeros(capacity, np.int32), ints(), ints(), ints(), ints(), ints(), ints(), ints(), ints(), values,
        values.view(np.float64), np.arange(capacity - 1, -1, -1, dtype=np.int64),
    )  # fmt: skip


def grown(array: np.ndarray, capacity: int, fill: int = 0) -> np.ndarray:
    """A copy with room for `capacity` items along the first axis."""
    shape = capacity, *array.shape[1:]
    # zeros cost nothing before they are used
    larger = np.full(shape, fill, array.dtype) if fill else np.zeros(shape, array.dtype)
    larger[: len(array)] = array
    return larger


def grown_runs(runs: LinkedRuns, capacity: int, free_count: int) -> tuple[LinkedRuns, int]:
    """LinkedRuns with more slots, and the new number of free ones."""
    before = len(runs.state)
    registers = grown(runs.registers, capacity)
    free = np.zeros(capacity, np.int64)
    fresh = np.arange(capacity - 1, before - 1, -1, dtype=np.int64)
    free[: len(fresh)] = fresh
    free[len(fresh) : len(fresh) + free_count] = runs.free[:free_count]
    larger = LinkedRuns(
        grown(runs.state, capacity), grown(runs.first, capacity), grown(runs.ts, capacity), grown(runs.row, capacity),
        grown(runs.node, capacity), grown(runs.next, capacity), grown(runs.valid, capacity),
        grown(runs.nearest, capacity), grown(runs.nearest_bad, capacity), registers,
        registers.view(np.float64), free,
    )  # fmt: skip
    return larger, free_count + len(fresh)


def new_buffer(capacity: int) -> Buffer:
    return Buffer(np.zeros(capacity, np.int64), np.zeros(capacity, np.int64), np.zeros(capacity, np.int16))


def new_partitions(capacity: int) -> Partitions:
    def zeros() -> np.ndarray:
        return np.zeros(capacity, np.int64)

    return Partitions(
        np.full(capacity, -1, np.int64), zeros(), zeros(), zeros(), zeros(), np.zeros(capacity, np.bool_),
        np.full(capacity, UNSEEN, np.int64), zeros(), zeros(), zeros(),
    )  # fmt: skip


def grown_partitions(partitions: Partitions, capacity: int) -> Partitions:
    return Partitions(
        grown(partitions.head, capacity, -1), grown(partitions.length, capacity), grown(partitions.ordinal, capacity),
        grown(partitions.number, capacity), grown(partitions.resume, capacity), grown(partitions.queued, capacity),
        grown(partitions.nearest, capacity, UNSEEN), grown(partitions.nearest_bad, capacity),
        grown(partitions.calm, capacity), grown(partitions.calm_length, capacity),
    )  # fmt: skip


def new_decided(capacity: int, carried: int) -> Decided:
    node, row, partition, number, waiting, at = (np.zeros(capacity, np.int64) for _ in range(6))
    return Decided(node, row, partition, number, waiting, np.zeros((capacity, carried), np.int64), at)


def new_scratch(program: Program) -> Scratch:
    stack = np.zeros(STACK, np.int64)
    old, fresh = (np.zeros(max(1, len(program.registers)), np.int64) for _ in range(2))
    return Scratch(
        np.zeros(len(program.accept), np.int64), np.zeros(1, np.int64), stack, stack.view(np.float64),
        np.zeros(STACK, np.bool_), old, fresh, fresh.view(np.float64),
    )  # fmt: skip



"""The ways to run a query, on equal terms: the same rows, conditions and outcomes of row-local conditions.

What is timed is the matching of rows, and where matches are wanted their construction: bounds, rows, variables and
identities of all matches, as arrays (matching.decode.Decode). What stands before it and behind it (Arrow to arrays,
keys, row-local conditions, measures) is the same for all and is not timed.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import cast

import numba
import numpy as np
import pyarrow as pa

from benchmarks.sase.backtracking import Backtracking
from benchmarks.sase.unshared import Unshared
from matching.batch import EventBatch, Int64Array
from matching.decode import Decode
from matching.engines.choose import RUNS_MAX, choose_engine, merges_runs, shares_paths
from matching.engines.engine import NONE_BAD, EnginePlan
from matching.engines.run_blocks import RunBlocks
from matching.engines.run_graph import RunGraph
from matching.engines.run_lists import RunLists
from matching.engines.run_merged import RunMerged
from matching.kernels.layout import Counters
from matching.matcher import KernelMatcher
from matching.program.program import Program
from matching.purpose import Purpose
from matching.rows import SLACK
from matching.store import RowStore
from query.plan.plan import Plan
from simulator.stock import SASE_STOCK

CONTENDERS = ("basic", "merged", "unshared", "backtracking")
#: Rows handed over at once: as many as the engine takes, or, where matches are constructed, so few that the arrays of
#: the matches of a batch take memory that is there already.
MATCHING_ROWS = 65_536
CONSTRUCTING_ROWS = 1024


class _Recorder:
    """An engine that only keeps what it is given."""

    name = tag = "recorder"
    by_test, defers, specialises, settles = False, True, False, False
    stuck = size = decided = 0

    def __init__(self, chosen: EnginePlan) -> None:
        self.partitions = 0

    def reserve(self, partitions: int) -> None:
        self.partitions = partitions

    def run(
        self, store: RowStore, positions: slice, mask: Int64Array, feature: np.ndarray, feature_valid: np.ndarray,
        bad: Int64Array = NONE_BAD,
    ) -> None:  # fmt: skip
        self.mask, self.feature, self.feature_valid = mask, feature, feature_valid

    def mark(self, store: RowStore, partitions: int, keep: np.ndarray) -> None:
        keep[:] = True

    def move(self, partitions: int, moved: Int64Array) -> None:
        pass


@dataclass(frozen=True, slots=True)
class Prepared:
    """A query and its rows: all in `store`, which row-local conditions each meets, and the values of its features."""

    program: Program
    store: RowStore
    partitions: int
    mask: Int64Array
    feature: np.ndarray
    feature_valid: np.ndarray

    def first(self, count: int) -> Prepared:
        """With the first rows only."""
        count = min(count, len(self.mask))
        return replace(
            self, mask=self.mask[:count], feature=self.feature[:, :count], feature_valid=self.feature_valid[:, :count]
        )


def prepared(plan: Plan, events: pa.Table) -> Prepared:
    """events: of `SASE_STOCK`, in the order of time."""
    chosen = choose_engine(plan, Purpose.MATCHES)
    assert chosen.program is not None
    matcher = KernelMatcher(plan, replace(chosen, engine=_Recorder, table=None))  # type: ignore[type-abstract]
    recorder = cast(_Recorder, matcher.engine)
    batches = events.select([f.name for f in SASE_STOCK.fields]).combine_chunks().to_batches()
    n = len(events)
    if not n:
        raise ValueError("some events are needed")
    at = np.arange(n)
    matcher.push(EventBatch(batches[0], events["ts"].cast(pa.int64()).to_numpy(), np.zeros(n, np.int32), at, at))
    return Prepared(
        chosen.program, matcher.store, recorder.partitions, recorder.mask, recorder.feature, recorder.feature_valid
    )


@numba.njit(cache=True, nogil=True)
def _hashed(bounds, rows, total, longest):
    """Adds to `total` a hash of each match, which does not depend on the order of matches; returns it with the rows of
    the longest match."""
    for k in range(len(bounds) - 1):
        h = np.uint64(0x9E3779B97F4A7C15)
        for j in range(bounds[k], bounds[k + 1]):
            h = (h ^ np.uint64(rows[j] + 1)) * np.uint64(0xFF51AFD7ED558CCD)
            h ^= h >> np.uint64(32)
        total += h
        longest = max(longest, bounds[k + 1] - bounds[k])
    return total, longest


@dataclass(slots=True)
class Answer:
    """What one run of a contender has found. rows: of all matches together, the paper's output complexity. hash and
    longest are 0 where matches were only counted. seconds: of the processor. counts: `runs`, over all rows the runs of
    their partitions; `nodes` of the match buffer, or cells of the graph, that were made; `read again`, events; `late`,
    over all matches the events of the partition read since they were complete."""

    matches: int = 0
    rows: int = 0
    hash: int = 0
    longest: int = 0
    seconds: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, found: Decode) -> None:
        self.matches += found.count
        self.rows += int(found.bounds[-1])
        total, longest = _hashed(found.bounds, found.rows, np.uint64(self.hash), self.longest)
        self.hash, self.longest = int(total), int(longest)

    def count(self, matches: int, rows: int) -> None:
        self.matches += matches
        self.rows += rows


class _Lists(RunLists):
    """Counts matches and forgets them."""

    def forgotten(self) -> int:
        matches = self.decided
        self._counters[Counters.DECIDED] = 0
        return matches


class _Blocks(RunBlocks):
    """Counts matches and forgets them."""

    def forgotten(self) -> int:
        matches = self.decided
        self._counters[Counters.DECIDED] = 0
        return matches


class _Graph(RunGraph):
    """No state ends a match, and so no match is walked: the cells are all there, and nobody asks for paths."""

    def __init__(self, planned: EnginePlan) -> None:
        super().__init__(planned)
        self._tables = self._tables._replace(accept=np.zeros_like(self._tables.accept))


class _Merged(RunMerged):
    """Like _Graph."""

    def __init__(self, planned: EnginePlan) -> None:
        super().__init__(planned)
        self._tables = self._tables._replace(accept=np.zeros_like(self._tables.accept))


def can(contender: str, program: Program) -> bool:
    """Whether a contender knows the query."""
    return contender != "merged" or shares_paths(program) or merges_runs(program)


def _planned(program: Program) -> EnginePlan:
    return EnginePlan(None, "a contender", Purpose.MATCHES, program, runs_max=RUNS_MAX)


def answer(contender: str, rows: Prepared, construct: bool) -> Answer:
    """Runs a contender over all rows. construct: whether matches are constructed; otherwise they are counted only, by
    `merged` not even that: what it has then is the graph of matches, the compressed output of [SASE] section 4.2."""
    program = rows.program
    match contender:
        case "basic":
            lists = _Blocks(_planned(program)) if program.ignore else _Lists(_planned(program))
            return _in_batches(lists, rows, construct)
        case "merged":
            if construct:
                graph = RunGraph(_planned(program)) if shares_paths(program) else RunMerged(_planned(program))
            else:
                graph = _Graph(_planned(program)) if shares_paths(program) else _Merged(_planned(program))
            return _in_batches(graph, rows, construct)
        case "unshared":
            return _in_batches(Unshared(program, construct), rows, construct)
        case "backtracking":
            return _by_backtracking(rows, construct)
        case _:
            raise ValueError(contender)


def _counted(engine: _Lists | _Blocks | RunGraph | Unshared) -> tuple[int, int]:
    """Matches found since the last call, which are forgotten, and their rows; 0 where it is not known."""
    if isinstance(engine, Unshared):
        return engine.counted()
    if isinstance(engine, RunGraph):
        return 0, 0
    return engine.forgotten(), 0


def _in_batches(engine: RunLists | RunBlocks | RunGraph | Unshared, rows: Prepared, construct: bool) -> Answer:
    result = Answer()
    store = rows.store
    engine.reserve(rows.partitions)
    same = np.arange(store.count + 1)  # where rows move to when nodes are dropped: nowhere
    same[-1] = -1
    keep = np.zeros(store.count + 1, np.bool_)
    count = len(rows.mask)
    compact_at = SLACK
    nodes = 0
    size = CONSTRUCTING_ROWS if construct else MATCHING_ROWS
    for begin in range(0, count, size):
        cut = slice(begin, min(begin + size, count))
        mask = rows.mask[cut]
        feature = np.ascontiguousarray(rows.feature[:, cut])
        valid = np.ascontiguousarray(rows.feature_valid[:, cut])
        out = Decode()
        nodes_before = 0 if isinstance(engine, Unshared) else engine.size
        before = time.process_time()
        engine.run(store, cut, mask, feature, valid)
        if construct:
            engine.decode(store, out)
        else:
            counted = _counted(engine)
        if not isinstance(engine, Unshared):
            nodes += engine.size - nodes_before
            if engine.size > compact_at:  # as the matcher does
                engine.mark(store, rows.partitions, keep)
                engine.move(rows.partitions, same)
                compact_at = 2 * engine.size + SLACK
        result.seconds += time.process_time() - before
        if construct:
            result.add(out)
        else:
            result.count(*counted)
    result.counts = {"runs": engine.looked_at} if isinstance(engine, Unshared) else {"nodes": nodes}
    return result


def _by_backtracking(rows: Prepared, construct: bool) -> Answer:
    result = Answer()
    partition = rows.store.partition[: len(rows.mask)]
    order = np.argsort(partition, kind="stable")
    begin = np.searchsorted(partition[order], np.arange(rows.partitions + 1))
    mask = rows.mask[order]
    feature = np.ascontiguousarray(rows.feature[:, order]) if rows.feature.shape[1] else rows.feature
    valid = np.ascontiguousarray(rows.feature_valid[:, order]) if rows.feature.shape[1] else rows.feature_valid
    engine = Backtracking(rows.program, construct)
    done = False
    while not done:
        out = Decode()
        before = time.process_time()
        done = engine.search(begin, order, mask, feature, valid)
        if construct:
            engine.decode(rows.store, out)
        else:
            counted = engine.counted()
        result.seconds += time.process_time() - before
        if construct:
            result.add(out)
        else:
            result.count(*counted)
    result.counts = {"read again": engine.again, "late": engine.late}
    return result

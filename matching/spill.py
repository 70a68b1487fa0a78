"""Spilling: the policies that choose the partitions to evict, the statistics they learn, and the stores of records.

A partition leaves with all its partial matches. The policies are those of [LIVE-ARCHIVE]: TPM goes by time, STPM by the
weight `W = e.t + dt_i * p(E_{i+1} | E_i)`; LRU is the baseline of caches; DUE is our own, and the default.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol, assert_never

import numpy as np

from matching.batch import Int64Array
from matching.kernels.layout import grown

#: Share of the limit still in use after an eviction; and the share if partitions that have waited far longer than ever
#: before leave along with them, since they are unlikely to be needed, and one write is cheaper than two.
TARGET, TARGET_OVERDUE = 0.75, 0.5


class Policy(Enum):
    """The eviction order. Ties go to the smaller partition id."""

    DUE = "due"  # the longest overdue first; then those due last
    STPM = "stpm"  # the smallest weight
    TPM = "tpm"  # the earliest begun
    LRU = "lru"  # the longest without an event


class SpillStore(Protocol):
    """A store of records, addressed by places of its own.

    `put` and `read` raise OSError on failure; nothing has changed then."""

    def put(self, bounds: Int64Array, data: np.ndarray) -> Int64Array:
        """Stores n records; returns their places, int64 (n,). bounds: int64 (n + 1,), in bytes, whole words of 64 bits;
        data: uint8."""

    def read(self, places: Int64Array, lengths: Int64Array) -> tuple[Int64Array, np.ndarray]:
        """Returns the records at these places, in their order: bounds and data. Raises DataError for a damaged one."""

    def drop(self, places: Int64Array, lengths: Int64Array) -> None:
        """Releases these records, unless a manifest names them."""

    def adopt(self, places: Int64Array, lengths: Int64Array) -> None:
        """Claims these records again, after `restore`."""

    @property
    def wears(self) -> bool:
        """True if any of the records is worn."""

    def worn(self, places: Int64Array) -> np.ndarray:
        """True for records among so many dropped ones that they should be rewritten; bool (n,)."""

    def manifest(self) -> bytes:
        """Returns a manifest of the contents, from which `restore` finds them after a crash; they are durable when this
        returns."""

    def restore(self, manifest: bytes) -> None:
        """Restores a manifest; several of one moment are equivalent. Raises DataError if it cannot be read."""


@dataclass(frozen=True, slots=True)
class Spill:
    """Settings under which partial matches may leave memory. limit_bytes: the part of them that stays (see
    matching.spilled)."""

    limit_bytes: int
    store: SpillStore
    policy: Policy = Policy.DUE


@dataclass(frozen=True, slots=True)
class SpillStats:
    """Statistics of one query. why: reason that it keeps all partial matches in memory, or None; trouble: the last
    write failure, or None. runs: keys with partial matches in memory; out: keys with spilled partial matches; written,
    read_back: number of spills and of returns of a key so far (the latter are the misses of [LIVE-ARCHIVE]); bytes: in
    use, and bytes_of_keys: besides these, see matching.spilled; both of all queries that share the rows. rows: those in
    memory that its partial matches need, and since_us: the time of the first of them, None without any."""

    why: str | None
    policy: str | None = None
    trouble: str | None = None
    runs: int = 0
    out: int = 0
    written: int = 0
    read_back: int = 0
    bytes: int = 0
    bytes_of_keys: int = 0
    rows: int = 0
    since_us: int | None = None


BY_REFERENCE = SpillStats("it runs through the reference matcher, which keeps all rows")


@dataclass(frozen=True, slots=True)
class Facts:
    """The data of n partitions in memory for a policy. begun_us, last_us: times of the first and the last event of
    their partial matches; touched: count of batches at their last event; state: of the automaton, -1 none; now_us: the
    current event time."""

    begun_us: Int64Array
    last_us: Int64Array
    touched: Int64Array
    state: Int64Array
    now_us: int


class Learnt:
    """Statistics of transitions from each state of the automaton: number of entries, number of successors, and the
    longest time until one. Learnt from the batches."""

    def __init__(self) -> None:
        self.entered = np.zeros(8, np.int64)
        self.followed = np.zeros(8, np.int64)
        self.longest_us = np.zeros(8, np.int64)

    def _room(self, state: Int64Array) -> None:
        need = int(state.max(initial=-1)) + 1
        if need > len(self.entered):
            for name in ("entered", "followed", "longest_us"):
                setattr(self, name, grown(getattr(self, name), max(need, 2 * len(self.entered))))

    def follow(
        self, ids: Int64Array, now: Int64Array, within_us: int, state: np.ndarray, since_us: Int64Array,
        last_us: Int64Array,
    ) -> None:  # fmt: skip
        """Records the states of partitions after their last event. ids: (n,); now: the state of each, -1 none. By
        partition id, state: the previous state, and since_us: its beginning, both updated; last_us: the time of its
        last event. A wait of more than within_us counts as ended by WITHIN."""
        from matching.kernels import records as kernels  # loads kernels; left to the first query

        self._room(now)
        kernels.follow(
            ids, now, within_us, state, since_us, last_us, self.entered, self.followed, self.longest_us
        )

    def gap_us(self, state: Int64Array) -> Int64Array:
        """Returns the longest time seen until the next event, 0 if there was none."""
        self._room(state)
        return np.where(state >= 0, self.longest_us[np.maximum(state, 0)], 0)

    def chance(self, state: Int64Array) -> np.ndarray:
        """Returns the probability of a successor, 0 if unknown; float64 (n,)."""
        self._room(state)
        at = np.maximum(state, 0)
        entered = np.maximum(self.entered[at], 1)
        return np.where(state >= 0, np.minimum(self.followed[at] / entered, 1.0), 0.0)


def leaving_order(policy: Policy, facts: Facts, learnt: Learnt) -> tuple[Int64Array, int]:
    """Returns the indices of the partitions in eviction order; and the number of leading ones that have waited more
    than twice the longest time known. TPM and LRU know of none."""
    if policy is Policy.TPM:
        return np.argsort(facts.begun_us, kind="stable"), 0
    if policy is Policy.LRU:
        return np.argsort(facts.touched, kind="stable"), 0
    gap_us = learnt.gap_us(facts.state)
    due_us = facts.last_us + gap_us
    overdue = due_us < facts.now_us
    match policy:
        case Policy.STPM:  # W of [LIVE-ARCHIVE], in float64: some microseconds more or less do not matter
            order = np.argsort(facts.last_us + gap_us * learnt.chance(facts.state), kind="stable")
        case Policy.DUE:
            order = np.lexsort((np.where(overdue, due_us, -due_us), ~overdue))
        case _:
            assert_never(policy)
    hopeless = (gap_us > 0) & (due_us + gap_us < facts.now_us)
    return order, int(np.argmin(np.append(hopeless[order], False)))

"""Which partitions leave memory: the policies, what they learn while queries run, and where records are put.

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
from query.errors import DataError

#: Of the limit, what is still there when partitions have left; and if those that wait far longer than it ever took
#: leave along with them, since they will hardly be asked for, and one write is cheaper than two.
TARGET, TARGET_OVERDUE = 0.75, 0.5


class Policy(Enum):
    """What leaves first. Where two are alike, the one with the smaller partition id."""

    DUE = "due"  # what is overdue, the longest so first; then what is due last
    STPM = "stpm"  # the smallest weight
    TPM = "tpm"  # what began first
    LRU = "lru"  # what has had no event for the longest time


class SpillStore(Protocol):
    """Where records are put. A place says where one is; it is the business of the store alone.

    What `put` and `read` cannot do they say with OSError; everything is then as it was."""

    def put(self, bounds: Int64Array, data: np.ndarray) -> Int64Array:
        """Keeps n records; returns their places, int64 (n,). bounds: int64 (n + 1,), in bytes, whole words of 64 bits;
        data: uint8."""

    def read(self, places: Int64Array, lengths: Int64Array) -> tuple[Int64Array, np.ndarray]:
        """The records at these places, in their order: bounds and data. Raises DataError where one is spoilt."""

    def drop(self, places: Int64Array, lengths: Int64Array) -> None:
        """Nobody asks for these any more, unless a manifest names them."""

    def adopt(self, places: Int64Array, lengths: Int64Array) -> None:
        """These are asked for, behind `restore`."""

    @property
    def wears(self) -> bool:
        """Whether any of the records is worn."""

    def worn(self, places: Int64Array) -> np.ndarray:
        """Whether a record lies among so much that is dropped that it should be put anew; bool (n,)."""

    def manifest(self) -> bytes:
        """What there is, to be found again by `restore` after a crash; all of it is durable when this returns."""

    def restore(self, manifest: bytes) -> None:
        """Goes on from a manifest; several of one moment are one. Raises DataError if it cannot be read."""


@dataclass(frozen=True, slots=True)
class Spill:
    """That partial matches may leave memory. limit_bytes: how much of them stays (see matching.spilled)."""

    limit_bytes: int
    store: SpillStore
    policy: Policy = Policy.DUE


@dataclass(frozen=True, slots=True)
class SpillStats:
    """Of one query. why: it keeps all partial matches in memory, or None; trouble: what went wrong when some were last
    written, or None. runs: keys with partial matches in memory; out: keys whose partial matches are not; written,
    read_back: how often a key has left and come back so far (the latter are the misses of [LIVE-ARCHIVE]); bytes: in
    use, and bytes_of_keys: beside these, see matching.spilled; both of all queries that share the rows. rows: those in
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
    """What a policy knows of n partitions in memory. begun_us, last_us: times of the first and the last event of their
    partial matches; touched: when they last had an event, as a count of batches; state: of the automaton, -1 none;
    now_us: how far the events have come."""

    begun_us: Int64Array
    last_us: Int64Array
    touched: Int64Array
    state: Int64Array
    now_us: int


class Learnt:
    """How matches go on from each state of the automaton: how often it was entered, how often a next one followed, and
    the longest time that took. Learnt from what batches make of partitions."""

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
        """What partitions wait in has been looked at after their last event. ids: (n,); now: what each waits in, -1
        nothing. By partition id, state: what it waited in before, and since_us: since when, both brought up to date;
        last_us: the time of its last event. Where it waited longer than within_us that had ended it."""
        from matching.kernels import records as kernels  # loads kernels, which the first query does

        self._room(now)
        kernels.follow(
            ids, now, within_us, state, since_us, last_us, self.entered, self.followed, self.longest_us
        )

    def gap_us(self, state: Int64Array) -> Int64Array:
        """The longest time until the next one that was seen, 0 where none was."""
        self._room(state)
        return np.where(state >= 0, self.longest_us[np.maximum(state, 0)], 0)

    def chance(self, state: Int64Array) -> np.ndarray:
        """How likely a next one follows, 0 where nothing is known; float64 (n,)."""
        self._room(state)
        at = np.maximum(state, 0)
        entered = np.maximum(self.entered[at], 1)
        return np.where(state >= 0, np.minimum(self.followed[at] / entered, 1.0), 0.0)


def leaving_order(policy: Policy, facts: Facts, learnt: Learnt) -> tuple[Int64Array, int]:
    """Indices of the partitions, first those that leave first; and how many of the first have waited more than twice as
    long as it ever took, as far as anything is known of that. TPM and LRU know of none."""
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


class MemoryStore:
    """Records in memory: for tests, and to show what a policy does. Its manifest has them all in it."""

    def __init__(self) -> None:
        self._pages: dict[int, np.ndarray] = {}
        self._live: dict[int, int] = {}
        self._next = 0

    def put(self, bounds: Int64Array, data: np.ndarray) -> Int64Array:
        from matching.records import frame  # loads kernels, which the first query does

        places, framed = frame(bounds, data)
        page, self._next = self._next, self._next + 1
        self._pages[page], self._live[page] = framed, int(bounds[-1])
        return (page << 32) + places

    def read(self, places: Int64Array, lengths: Int64Array) -> tuple[Int64Array, np.ndarray]:
        from matching.records import unframe

        bounds = np.zeros(len(places) + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
        out = np.empty(int(bounds[-1]), np.uint8)
        for page in np.unique(places >> 32):
            of = np.flatnonzero(places >> 32 == page)
            _, data, bad = unframe(self._pages[int(page)], places[of] & 0xFFFFFFFF, lengths[of])
            if bad >= 0:
                raise DataError("a record of partial matches is spoilt", "go on from a checkpoint")
            at = 0
            for i in of:
                out[bounds[i] : bounds[i + 1]] = data[at : at + lengths[i]]
                at += int(lengths[i])
        return bounds, out

    def drop(self, places: Int64Array, lengths: Int64Array) -> None:
        for place, length in zip((places >> 32).tolist(), lengths.tolist(), strict=True):
            self._live[place] -= length
            if not self._live[place]:
                del self._live[place], self._pages[place]

    def adopt(self, places: Int64Array, lengths: Int64Array) -> None:
        for place, length in zip((places >> 32).tolist(), lengths.tolist(), strict=True):
            self._live[place] = self._live.get(place, 0) + length

    wears = False

    def worn(self, places: Int64Array) -> np.ndarray:
        return np.zeros(len(places), np.bool_)

    def manifest(self) -> bytes:
        from matching.state import pack

        return pack({"next": self._next}, {str(page): data for page, data in self._pages.items()})

    def restore(self, manifest: bytes) -> None:
        from matching.state import unpack

        head, pages = unpack(manifest)
        self._pages |= {int(page): data for page, data in pages.items()}
        self._next = max(self._next, head["next"])

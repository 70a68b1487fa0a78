"""The spilled partitions of the rows of one PARTITION BY: their location, return and eviction.

The unit is a partition: its rows, and the state of every matcher over them. Before a batch is matched, all partitions
that it touches come back in one read; after it, if more bytes are in use than the limit, partitions leave in one write
until three quarters of it are in use, or half of it if that many are overdue. Bytes in use are those of rows, of runs
and of the nodes of match buffers and graphs, including unreachable ones until compaction. They do not include the keys
themselves and the arrays by partition id (`bytes_of_keys`), nor the spare room of arrays, at most as much again.

A partition that WITHIN would decide comes back when the watermark passes its deadline. If no match can result from
that, it stays on disk, and is dropped there once all its runs have ended.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from matching.batch import Int64Array
from matching.kernels import records as kernels
from matching.kernels.layout import grown
from matching.records import Grouped, Layout, Leaving, layout_of, pack, read_layout, unpack
from matching.spill import TARGET, TARGET_OVERDUE, Facts, Learnt, Policy, Spill, leaving_order
from matching.tenant import Housed
from query.errors import DataError, first_line

#: Above every deadline: kept until requested.
NEVER = 2**63 - 1
#: In `place`: the partition is in memory; it has neither rows nor runs, in memory or on disk.
RESIDENT = kernels.RESIDENT
EMPTY = kernels.EMPTY


@dataclass(slots=True)
class PartitionLines:
    """The data of each partition id. place: of its record, else RESIDENT or EMPTY; length: of the record, bytes;
    layout: index of its layout; until_us: the time when all its runs have ended, NEVER: it must be asked. touched: the
    batch of its last event; last_us: the time of that; state: the state it waits in, -1 none; since_us: the time it
    entered that."""

    place: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    length: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    layout: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int16))
    until_us: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    touched: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    last_us: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    state: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    since_us: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))

    def reserve(self, partitions: int) -> None:
        have = len(self.place)
        if partitions <= have:
            return
        capacity = max(partitions, 2 * have, 1024)
        for name in PartitionLines.__slots__:
            fill = {"place": EMPTY, "state": -1}.get(name, 0)
            setattr(self, name, grown(getattr(self, name), capacity, fill))

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).itemsize for name in PartitionLines.__slots__)


#: Tags of the arrays of PartitionLines in a state, by field: they stay when fields are renamed.
LINE_TAGS = {
    "place": "place", "length": "length", "layout": "layout", "until_us": "until_us", "touched": "touched",
    "last_us": "last_us", "state": "state", "since_us": "since_us",
}  # fmt: skip


class Spilled:
    """The directory of one matching.rows.Rows' partitions; evicts them and brings them back."""

    def __init__(self, spill: Spill) -> None:
        self.spill = spill
        self.limit_bytes = spill.limit_bytes
        self.learnt = Learnt()
        self.trouble: str | None = None
        self._untold: list[str] = []
        self.out_count = self.written_count = self.read_count = 0
        self.most_bytes = 0  # in use after the last batch, before partitions left
        self._lines = PartitionLines()
        self._layouts: list[Layout] = []
        self._batch = 0
        self._touched = np.zeros(0, np.int64)  # the partitions of this batch
        self._resident, self._resident_count = np.zeros(1024, np.int64), 0  # partitions that are RESIDENT, each once
        self._spot = np.zeros(0, np.int64)  # by partition id, -1 between two uses
        self._now_us = -NEVER
        self._reached_us = -NEVER  # the watermark: partitions that it decides have come back
        self._stale_us = NEVER  # no record is stale before
        self._again_bytes = 0  # after a failure: no eviction before so many bytes are in use

    @property
    def key_bytes(self) -> int:
        """Returns the bytes of the arrays by partition id."""
        return self._lines.nbytes

    def out(self) -> Int64Array:
        """Returns the partitions on disk."""
        return np.flatnonzero(self._lines.place >= 0)

    def here(self) -> Int64Array:
        """Returns the partitions that may have rows or runs in memory, each once."""
        return self._resident[: self._resident_count]

    def all_are_resident(self, partitions: int) -> None:
        """Notes that the existing rows and runs are in memory."""
        self._lines.reserve(partitions)
        self._lines.place[:partitions] = RESIDENT
        self._set_resident(np.arange(partitions))

    def have_come(self, ids: Int64Array, partitions: int) -> None:
        """Notes that these partitions have come from elsewhere, and are in memory."""
        lines = self._lines
        lines.reserve(partitions)
        self._came(ids[lines.place[ids] != RESIDENT])
        lines.place[ids] = RESIDENT

    def _set_resident(self, ids: Int64Array) -> None:
        """Sets exactly these partitions RESIDENT."""
        self._resident_count = 0
        self._came(ids)

    def _came(self, ids: Int64Array) -> None:
        """Sets these partitions RESIDENT, which were not before."""
        count = self._resident_count + len(ids)
        if count > len(self._resident):
            self._resident = grown(self._resident, max(count, 2 * len(self._resident)))
        self._resident[self._resident_count : count] = ids
        self._resident_count = count

    def settle(self, rows: Housed) -> None:
        """Finds the partitions that are still in memory after rows were dropped."""
        ids, lines = self.here(), self._lines
        there = lines.place[ids] == RESIDENT
        spots = self._spots(rows)
        spots[rows.store.partition[: rows.store.count]] = 0
        stays = spots[ids] == 0
        spots[ids] = -1
        for tenant in rows.tenants:
            stays |= tenant.busy(ids)
        lines.place[ids[there & ~stays]] = EMPTY
        self._set_resident(ids[there & stays])

    # ---- coming back

    def touch(self, rows: Housed, partition: Int64Array, ts_us: Int64Array) -> None:
        """Brings back the partitions of a batch that is about to be matched."""
        lines = self._lines
        lines.reserve(len(rows.keys))
        self._batch += 1
        ids, new, out = (np.empty(len(partition), np.int64) for _ in range(3))
        n, came, absent = kernels.touch(
            partition, ts_us, self._batch, lines.touched, lines.last_us, lines.place, ids, new, out
        )
        self._touched = ids[:n]
        self._came(new[:came])
        if n:
            self._now_us = max(self._now_us, int(ts_us[-1]))
        if absent:
            self.bring_back(rows, np.sort(out[:absent]))

    def reach(self, rows: Housed, watermark_us: int | None) -> None:
        """Brings back the partitions that the next watermark (None: the end of the input) may decide."""
        if watermark_us is not None:
            self._reached_us = max(self._reached_us, watermark_us)
        if not self.out_count:
            return
        if watermark_us is None:
            if any(tenant.due_yields for tenant in rows.tenants):
                self.bring_back(rows, self.out())
            else:
                self._forget(self.out(), EMPTY)
            return
        asked = [tenant for tenant in rows.tenants if tenant.due_yields]
        if asked:
            out = self._lines.place >= 0
            due = [tenant.due(watermark_us, out) for tenant in asked]
            self.bring_back(rows, np.unique(np.concatenate(due)))

    def bring_back(self, rows: Housed, ids: Int64Array) -> None:
        """Brings these partitions back, ascending. Raises DataError if their records cannot be read; they then stay on
        disk."""
        lines = self._lines
        for layout in np.unique(lines.layout[ids]):
            some = ids[lines.layout[ids] == layout]
            places, lengths = lines.place[some], lines.length[some].astype(np.int64)
            try:
                bounds, data = self.spill.store.read(places, lengths)
            except OSError as error:
                message = f"partial matches cannot be read back: {first_line(error)}"
                hint = "queries resume from the last checkpoint when the database is opened again"
                raise DataError(message, hint) from error
            rows.put_in(some, unpack(bounds, data, self._layouts[layout]))
            self._forget(some, RESIDENT)
            self._came(some)
            self.read_count += len(some)

    def _forget(self, ids: Int64Array, place: int) -> None:
        """Releases their records. place: RESIDENT or EMPTY."""
        lines = self._lines
        self.spill.store.drop(lines.place[ids], lines.length[ids].astype(np.int64))
        lines.place[ids] = place
        self.out_count -= len(ids)

    # ---- leaving

    def learn(self, rows: Housed) -> None:
        """Records the states of partitions after a batch."""
        ids, self._touched = self._touched, self._touched[:0]
        if not len(ids) or self.spill.policy in (Policy.TPM, Policy.LRU) or not rows.tenants:
            return
        lines, first = self._lines, rows.tenants[0]
        within_us = NEVER if first.within_us is None else first.within_us
        self.learnt.follow(ids, first.states(ids), within_us, lines.state, lines.since_us, lines.last_us)

    def evict(self, rows: Housed) -> bool:
        """Evicts partitions if more is in use than the limit. Returns True if it has dropped unreachable rows."""
        used = self.most_bytes = rows.used_bytes
        if used <= max(self.limit_bytes, self._again_bytes) or rows.why is not None:
            return False
        self._again_bytes = 0
        self._drop_stale(rows)
        keep = rows.mark(exact=True)
        ids, weights, facts = self._outline(rows, keep)
        total = int(weights.sum())
        if total > TARGET * self.limit_bytes and len(ids):
            order, overdue = leaving_order(self.spill.policy, facts, self.learnt)
            left = total - np.cumsum(weights[order])
            must, may = (
                int(np.count_nonzero(left >= int(part * self.limit_bytes))) for part in (TARGET, TARGET_OVERDUE)
            )
            count = max(must + 1, min(overdue, may))
            chosen = np.sort(order[:count])
            if self._send(rows, keep, ids[chosen], facts.last_us[chosen]):
                rows.unmark(self._lines.place, keep)
            else:
                self._again_bytes = used + self.limit_bytes // 4
        rows.drop(keep)
        self._move_worn()
        return True

    def _outline(self, rows: Housed, keep: np.ndarray) -> tuple[Int64Array, Int64Array, Facts]:
        """Returns the partitions in memory that have data, their weights, and the facts for a policy."""
        store = rows.store
        room = min(store.count, len(rows.keys))
        ids, counts, begun, last = (np.empty(room, np.int64) for _ in range(4))
        place = self._spots(rows)
        n = kernels.outline(store.count, keep, store.partition, store.ts, place, ids, counts, begun, last)
        ids, counts, begun, last = ids[:n], counts[:n], begun[:n], last[:n]
        weights = rows.bytes_of_row() * counts
        for tenant in rows.tenants:
            weights += tenant.weigh(ids, place)
        place[ids] = -1
        lines = self._lines
        facts = Facts(begun, last, lines.touched[ids], lines.state[ids].astype(np.int64), self._now_us)
        return ids, weights, facts

    def _spots(self, rows: Housed) -> Int64Array:
        """Returns an array by partition id, all -1, to be left so: filling it each time would cost O(all
        partitions)."""
        if len(self._spot) < len(rows.keys):
            self._spot = np.full(max(len(rows.keys), 2 * len(self._spot)), -1, np.int64)
        return self._spot

    def _send(self, rows: Housed, keep: np.ndarray, ids: Int64Array, last_us: Int64Array) -> bool:
        """Writes these partitions and removes them from memory. Returns False if they stay, since they cannot be
        written."""
        lines, store = self._lines, rows.store
        place = self._spots(rows)
        place[ids] = np.arange(len(ids))
        of = np.where(keep[: store.count], place[store.partition[: store.count]], -1)
        blocks = rows.copy_out(Leaving(ids, place, Grouped(of, len(ids))))
        place[ids] = -1
        bounds, data = pack(blocks)
        try:
            places = self.spill.store.put(bounds, data)
        except OSError as error:
            self._say(f"partial matches stay in memory, they cannot be written: {first_line(error)}")
            return False
        self.trouble = None
        rows.leave(ids)
        layout = layout_of(blocks)
        if layout not in self._layouts:
            self._layouts.append(layout)
        lines.place[ids], lines.length[ids] = places, np.diff(bounds)
        lines.layout[ids] = self._layouts.index(layout)
        forgets = all(t.forgets and t.within_us is not None for t in rows.tenants)
        within_us = max((t.within_us or 0 for t in rows.tenants), default=0)
        lines.until_us[ids] = last_us + within_us if forgets else NEVER
        self._stale_us = min(self._stale_us, int(lines.until_us[ids].min(initial=NEVER)))
        self.out_count += len(ids)
        self.written_count += len(ids)
        return True

    def _say(self, trouble: str) -> None:
        if trouble != self.trouble:
            self._untold.append(trouble)
        self.trouble = trouble

    def take_trouble(self) -> list[str]:
        """Returns the failures since the last call; a lasting failure is returned once."""
        untold, self._untold = self._untold, []
        return untold

    def _drop_stale(self, rows: Housed) -> None:
        """Drops partitions whose runs have all ended: no event can come for them, and no watermark can decide a
        match of theirs. Examines all spilled partitions, so not before some may be stale."""
        now_us = self._reached_us if any(tenant.due_yields for tenant in rows.tenants) else self._now_us
        if self._stale_us >= now_us:
            return
        lines = self._lines
        stale = np.flatnonzero((lines.place >= 0) & (lines.until_us < now_us))
        if len(stale):
            self._forget(stale, EMPTY)
            lines.state[stale] = -1
        left = lines.until_us[self.out()]
        # an eighth of the spilled partitions may become stale before this is done again
        self._stale_us = int(np.partition(left, len(left) // 8)[len(left) // 8]) if len(left) else NEVER

    def _move_worn(self) -> None:
        """Rewrites records that lie among dropped ones."""
        if not self.spill.store.wears:
            return
        lines, out = self._lines, self.out()
        ids = out[self.spill.store.worn(lines.place[out])]
        if not len(ids):
            return
        places, lengths = lines.place[ids], lines.length[ids].astype(np.int64)
        try:
            new = self.spill.store.put(*self.spill.store.read(places, lengths))
        except (OSError, DataError) as error:
            self._say(f"old partial matches cannot be compacted: {first_line(error)}")
            return
        self.spill.store.drop(places, lengths)
        lines.place[ids] = new

    # ---- state

    def snapshot(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Returns a head for JSON, and arrays by name; the store's manifest has the rest."""
        head = {"layouts": self._layouts, "batch": self._batch, "now_us": self._now_us, "reached_us": self._reached_us}
        arrays = {tag: getattr(self._lines, name) for name, tag in LINE_TAGS.items()}
        for name in ("entered", "followed", "longest_us"):
            arrays[f"learnt_{name}"] = getattr(self.learnt, name)
        return head, arrays

    def restore(self, head: dict[str, Any], arrays: dict[str, np.ndarray], partitions: int) -> None:
        """Restores a snapshot with this number of partitions; the store has been restored."""
        self._layouts = [read_layout(layout) for layout in head["layouts"]]
        self._batch, self._now_us, self._reached_us = head["batch"], head["now_us"], head["reached_us"]
        for name, tag in LINE_TAGS.items():
            setattr(self._lines, name, arrays[tag])
        for name in ("entered", "followed", "longest_us"):
            setattr(self.learnt, name, arrays[f"learnt_{name}"])
        out = self.out()
        self.out_count = len(out)
        self._set_resident(np.flatnonzero(self._lines.place[:partitions] == RESIDENT))
        self._stale_us = int(self._lines.until_us[out].min(initial=NEVER))
        self.spill.store.adopt(self._lines.place[out], self._lines.length[out].astype(np.int64))

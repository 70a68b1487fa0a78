"""The rows that the matchers of one input share: partition ids, columns, links, and the values of their conditions.

Matchers with the same PARTITION BY see each row once: its key is looked up once, it is stored once, and an expression
that several of them read is computed once. Runs belong to each matcher.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pyarrow as pa

from matching.array_lanes import Values
from matching.batch import EventBatch, Int64Array
from matching.divided_keys import DividedKeys
from matching.features import Codes, RowValues
from matching.keys import KeyRuns, Keys
from matching.program.conditions import is_storable
from matching.program.lanes import CODED
from matching.records import Blocks, Coming, Leaving
from matching.spill import Spill
from matching.spilled import Spilled
from matching.state import as_array, read_array, read_table, saved_array, saved_table
from matching.store import RowStore, spillable
from matching.tenant import Tenant
from matching.types import plain_type
from query.errors import DataError
from query.plan.expression import Column, Expression, Navigation, walk

#: Number of rows and nodes that may accumulate before unreachable ones are dropped.
SLACK = 1 << 17
#: Number of rows above which `needed_by` estimates instead of searching.
HELD_LOOKED_AT = 1 << 17
#: Minimum number of rows and nodes for a search for unreachable ones before a snapshot.
FEW = 1 << 10
#: Number of keys from which idle keys are forgotten. Not a power of two: arrays by key double at these, and keys that
#: come before the next compaction would pay for as many again.
KEYS_MIN = 3 << 14

#: Expressions whose values are computed together: those of one row; of a row and its neighbours, by the first row that
#: is seen; and those that are codes, by matcher.
_Joint = tuple[str, int]
#: The values of some expressions, and for each the rows for which it cannot be computed (see RowValues.attempt).
Attempt = tuple[list[Values], list[np.ndarray | None]]


class Rows:
    """Rows of one input by one PARTITION BY, for one matcher or several. Not thread safe.

    after: number of later rows of its partition required before a row is taken. block: the positions that may be taken
    now, since the last `append`.
    """

    def __init__(
        self, partition_by: Sequence[Column], after: int, spill: Spill | None = None, looked_up: int = 0,
        grouped: bool = False, numbered: bool = False,
    ) -> None:  # fmt: skip
        """spill: settings for partitions that may leave memory; None: they do not. looked_up: how many of the columns,
        the last ones, are not those of a PARTITION BY. grouped: neighbours are those of PARTITION BY nevertheless.
        numbered: rows have their numbers as times."""
        self.spilled = None if spill is None else Spilled(spill)
        self._serial = 0
        self.partition_by = tuple(partition_by)
        self.after = after
        self.looked_up = looked_up
        types = [plain_type(c.type) for c in partition_by]
        whole = len(types) - looked_up
        self.grouped, self.numbered = grouped, numbered
        divides = looked_up and (len(types) > 2 or (grouped and whole))
        # while there are neighbours, keys of PARTITION BY have their last rows
        self.keys: Keys = DividedKeys(types, max(whole, 1), grouped and whole > 0) if divides else Keys(types)
        self.store = RowStore({}, (), pa.schema([]), False, grouped, numbered)
        self.block: Int64Array | slice = slice(0, 0)
        self.begin = 0
        self.came = 0  # number of rows of the last `append`
        self._shown = False  # the rows of the store are those of the batch
        self._passed = 0  # number of rows that were, since idle keys have been looked for
        self.began = False
        self.compact_at = SLACK
        self.forget_at = KEYS_MIN
        self._tenants: list[Tenant] = []
        #: expressions computed together, their values for this block, and their positions for each tenant
        self._joint: dict[_Joint, RowValues] | None = {}  # None: to be made
        self._attempts: dict[_Joint, Attempt] = {}
        self._places: dict[int, tuple[tuple[_Joint, int], ...]] = {}

    def groups(self, ids: Int64Array) -> Int64Array:
        """Returns, for each of these partitions, the number of the key that PARTITION BY alone gives it, from 0."""
        return self.keys.whole(ids) if self.looked_up < len(self.partition_by) else np.zeros(len(ids), np.int64)

    # ---- matchers

    def add(self, tenant: Tenant) -> None:
        """Adds a matcher that sees the rows appended from now on."""
        self._forget_shown()
        tenant.floor = self.store.count
        tenant.serial, self._serial = self._serial, self._serial + 1
        self._tenants.append(tenant)
        self._adapt()

    def fill(self, names: Sequence[str], read: Callable[[int, int], EventBatch]) -> bool:
        """Adds values of columns that were not stored for the existing rows. read: returns the events with a time from
        the first to the second. Returns False if one of the rows is not among them."""
        store = self.store
        if names:
            self.bring_all()
        if not store.count or not names:
            return True
        seq, ts = store.seq[: store.count], store.ts[: store.count]
        events = read(int(ts.min()), int(ts.max()))
        order = np.argsort(events.seq)
        at = np.searchsorted(events.seq[order], seq)
        if not len(events) or not np.array_equal(events.seq[order[np.minimum(at, len(order) - 1)]], seq):
            return False
        columns = pa.Table.from_batches([events.columns]).select(list(names))
        store.fill(columns.take(pa.array(order[at])))
        return True

    def remove(self, tenant: Tenant) -> None:
        """Removes a matcher and the data that only it has read."""
        self._tenants = [t for t in self._tenants if t is not tenant]
        self._adapt()

    def __len__(self) -> int:
        """Returns the number of matchers."""
        return len(self._tenants)

    def _adapt(self) -> None:
        """Combines the needs of all tenants."""
        self._forget_shown()
        numeric: dict[str, bool] = {}
        other: dict[str, None] = {}
        types: dict[str, pa.DataType] = {}
        for tenant in self._tenants:
            numeric |= tenant.needs.numeric
            other |= dict.fromkeys(tenant.needs.other)
            types |= zip(tenant.needs.schema.names, tenant.needs.schema.types, strict=True)
        linked = any(tenant.needs.linked for tenant in self._tenants)
        self.store.adapt(numeric, tuple(other), pa.schema(list(types.items())), linked)
        # no row is read again once all have taken it
        self._passing = bool(self._tenants) and self.spilled is None and not any(t.needs.keeps for t in self._tenants)
        self._before = max((t.needs.before for t in self._tenants), default=0)
        self._behind = max((t.needs.behind for t in self._tenants), default=0)
        self._reach = max((t.needs.reach for t in self._tenants), default=0)
        self._joint = None

    def _join(self) -> dict[_Joint, RowValues]:
        """Combines the expressions that have the same values for several tenants, once after these have changed: a
        thousand may come one after the other."""
        if self._joint is not None:
            return self._joint
        joint: dict[_Joint, dict[Expression, int]] = {}
        codes: dict[_Joint, Codes] = {}
        self._places, self._attempts = {}, {}
        for tenant in self._tenants if len(self._tenants) > 1 else ():
            places = []
            for e in tenant.values.expressions:
                together: _Joint = ("row", 0)
                if e.type in CODED or not is_storable(e):
                    together = ("coded", id(tenant))  # a matcher has codes of its own
                    codes[together] = tenant.values.codes
                elif any(isinstance(x, Navigation) for x in walk(e)):
                    together = ("near", tenant.floor)
                known = joint.setdefault(together, {})
                places.append((together, known.setdefault(e, len(known))))
            self._places[id(tenant)] = tuple(places)
        settings = self._tenants[0].values.settings if self._tenants else ()  # live queries have no connection
        self._joint = {key: RowValues(tuple(known), codes.get(key), settings) for key, known in joint.items()}
        return self._joint

    def take_runs(self) -> bool:
        """Expects rows that come key by key from now on, each in the total order, with a `restart` between some keys.
        Returns False if there have been rows."""
        if self.began or self.spilled is not None or not self.partition_by:
            return False
        self.keys = KeyRuns([plain_type(c.type) for c in self.partition_by])
        return True

    def restart(self) -> None:
        """Forgets all rows and keys, of which nothing is needed any more."""
        assert isinstance(self.keys, KeyRuns)
        self.store.restart(len(self.keys))
        self.keys.restart()
        self.begin, self.block, self._passed, self._attempts = 0, slice(0, 0), 0, {}

    # ---- rows

    def append(self, batch: EventBatch) -> None:
        """Takes the next rows of the total order; `block` becomes the rows that may be matched now."""
        self._forget_shown()  # where a condition has failed
        self.store.floor = 0
        self.came = len(batch)
        self.began = self.began or self.came > 0
        keys = [batch.columns.column(c.name) for c in self.partition_by]
        partition = self.keys.encode(keys, len(batch))
        if self.spilled is not None:
            self.spilled.touch(self, partition, batch.ts_us)
        self._attempts = {}
        if self._passing and not self.after:
            self.store.show(batch, partition)
            self.begin, self._shown = 0, True
        else:
            group = self.groups(partition) if self.grouped else None
            self.begin = self.store.append(batch, partition, len(self.keys), group)
        if not self.after:
            self.block = slice(self.begin, self.store.count)
            return
        # a row is matched once the rows after it that NEXT reads exist
        ready = self.store.chase(np.arange(self.begin, self.store.count), -self.after)
        self.block = ready[ready >= 0]

    def retain(self, wanted: Sequence[Int64Array | None]) -> Int64Array | None:
        """Drops the rows of the block that no matcher wants, if no later row can read them. wanted: of each matcher
        that takes the block (KernelMatcher.wants). Returns the indices of the rows that are left; None: all."""
        if self.store.linked or self.after:
            return None
        retained = wanted[0] if len(wanted) == 1 else _united(wanted)
        if retained is None or 2 * len(retained) > self.came:
            return None
        if self._shown:
            self.store.retain_shown(retained)
        elif len(retained) or self.store.other:
            self.store.retain(self.begin, retained)
        else:
            self.store.count = self.begin
        self.block = slice(self.begin, self.store.count)
        self._attempts = {}
        return retained

    def taken(self) -> None:
        """Notes that all matchers have taken the block."""
        self.let_go(self.block)
        self._forget_shown()

    def _forget_shown(self) -> None:
        if self._shown:
            self._passed += self.came
            self.store.forget()
            self.block, self._shown = slice(0, 0), False

    def let_go(self, positions: Int64Array | slice) -> None:
        """Notes that all matchers have taken these rows."""
        if self.after:
            self.store.released[positions] = True

    def held(self) -> Int64Array:
        """Returns the rows that have not been in a block yet."""
        if not self.after:
            return np.zeros(0, np.int64)
        return np.flatnonzero(~self.store.released[: self.store.count])

    def attempt(self, tenant: Tenant) -> Attempt:
        """Returns the values of the tenant's expressions for the rows of the block."""
        if len(self._tenants) == 1:
            return tenant.values.attempt(self.store, self.block)
        joint = self._join()
        values: list[Values] = []
        failing: list[np.ndarray | None] = []
        for key, index in self._places[id(tenant)]:
            found = self._attempts.get(key)
            if found is None:
                found = self._attempts[key] = joint[key].attempt(self.store, self.block)
            values.append(found[0][index])
            failing.append(found[1][index])
        return values, failing

    # ---- memory

    def compact(self) -> None:
        """Drops rows and nodes that no run, waiting match or navigation can reach; amortised by doubling. Evicts
        partitions if more memory is in use than allowed."""
        self._attempts = {}
        if self.spilled is not None:
            self.spilled.learn(self)
            if self.spilled.evict(self):
                return
        if self._size() + self._passed >= self.compact_at:
            self._passed = 0
            self.drop(self.mark())

    def tidy(self) -> None:
        """Drops rows and nodes as `compact` does, before it would: if a quarter more has come since the last time."""
        if 8 * self._size() >= 5 * (self.compact_at - SLACK):
            self.drop(self.mark())

    def mark(self, exact: bool = False) -> np.ndarray:
        """Returns the rows that are still needed, bool (rows + 1,), for `drop`. exact: no others."""
        store = self.store
        store.floor = 0
        keep = np.zeros(store.count + 1, np.bool_)
        ids = self._here()
        for tenant in self._tenants:
            tenant.mark(ids, keep, exact)
        if self._reach:
            # those that conditions and measures read, and the last ones, which later rows may read
            store.keep_near(self._before, self._behind, self._reach, keep)
        return keep

    def needed_by(self, tenant: Tenant) -> tuple[int, int | None]:
        """Returns the number of rows in memory that the partial matches of one tenant need, and the time of the first
        of them (None: there are none). For very many rows an upper bound: all rows in memory, perhaps twice as many."""
        store = self.store
        if store.count > HELD_LOOKED_AT:
            return store.count, int(store.ts[0])
        times = store.ts[: store.count][self.needed(tenant)]
        return len(times), int(times.min()) if len(times) else None

    def needed(self, tenant: Tenant) -> np.ndarray:
        """Returns, for each row in memory, whether the partial matches of one tenant need it."""
        keep = np.zeros(self.store.count + 1, np.bool_)
        tenant.mark(self._here(), keep, True)
        return keep[: self.store.count]

    def _here(self) -> Int64Array:
        """Returns the partitions that may have rows or runs in memory."""
        return np.arange(len(self.keys)) if self.spilled is None else self.spilled.here()

    def unmark(self, place: Int64Array, keep: np.ndarray) -> None:
        """Clears the marks of partitions that have left. place: by partition id, negative for all others."""
        count = self.store.count
        keep[:count] &= place[self.store.partition[:count]] < 0
        for tenant in self._tenants:
            tenant.unmark(place)

    def drop(self, keep: np.ndarray) -> None:
        """Drops the rows without marks, and the nodes that matchers have not reached."""
        store, tenants = self.store, self._tenants
        floors = [tenant.floor for tenant in tenants]
        for tenant in tenants:
            tenant.floor = int(np.count_nonzero(keep[: tenant.floor]))
        if any(floors):
            self._joint = None
        ids = self._here()
        moved = store.compact(ids, keep)
        for tenant in tenants:
            tenant.move(ids, moved)
        if self.spilled is not None:
            self.spilled.settle(self)
        self.compact_at = 2 * self._size() + SLACK
        self._forget_idle()

    def _forget_idle(self) -> None:
        """Frees the ids of keys without runs for new keys; amortised by doubling. They have no rows left."""
        used = len(self.keys) - len(self.keys.free)
        if used < self.forget_at or not self._tenants or not all(tenant.forgets for tenant in self._tenants):
            return
        idle = np.logical_and.reduce([tenant.idle() for tenant in self._tenants])
        idle[self.keys.free] = False
        if self.spilled is not None:
            idle[self.spilled.out()] = False
        ids = np.flatnonzero(idle)
        if len(ids):
            self.keys.forget(ids)
            for tenant in self._tenants:
                tenant.forget(ids)
        self.forget_at = max(KEYS_MIN, 2 * (used - len(ids)))

    # ---- partitions that leave memory

    @property
    def tenants(self) -> Sequence[Tenant]:
        return self._tenants

    @property
    def why(self) -> str | None:
        """Returns why partitions cannot leave memory now, or None."""
        for name in self.store.other:
            if not spillable(self.store.schema.field(name).type):
                return f"column {name} is a {self.store.schema.field(name).type}, which cannot be spilled row by row"
        return next((why for tenant in self._tenants if (why := tenant.why) is not None), None)

    def bytes_of_row(self) -> int:
        """Returns the bytes of a row, including those of all matchers; of columns stored as Arrow on average."""
        arrow = self.store.arrow.nbytes // self.store.count if self.store.other and self.store.count else 0
        return self.store.row_bytes + arrow + sum(tenant.row_bytes for tenant in self._tenants)

    @property
    def used_bytes(self) -> int:
        """Returns the bytes of rows and runs: see matching.spilled."""
        return self.bytes_of_row() * self.store.count + sum(tenant.used_bytes for tenant in self._tenants)

    @property
    def key_bytes(self) -> int:
        """Returns the bytes of keys, and of the arrays by partition id."""
        lines = 8 * self.store.linked + sum(tenant.key_bytes for tenant in self._tenants)
        if self.spilled is not None:
            lines += self.spilled.key_bytes
        return self.keys.nbytes + lines * len(self.keys)

    def bring_all(self) -> None:
        """Brings all partitions back into memory."""
        if self.spilled is not None and self.spilled.out_count:
            self.spilled.bring_back(self, self.spilled.out())

    def reach(self, watermark_us: int | None) -> None:
        """Prepares for a watermark, or the end of the input (None); called before matchers receive it."""
        if self.spilled is not None:
            self.spilled.reach(self, watermark_us)

    def copy_out(self, leaving: Leaving) -> Blocks:
        """Returns the data of some partitions, without any change. To be called after `mark`."""
        blocks = self.store.copy_out(leaving.ids, leaving.rows)
        for tenant in self._tenants:
            blocks |= {f"{tenant.serial}/{name}": block for name, block in tenant.copy_out(leaving).items()}
        return blocks

    def leave(self, ids: Int64Array) -> None:
        """Notes that these partitions have been copied out; the caller drops their rows."""
        for tenant in self._tenants:
            tenant.leave(ids)

    def put_in(self, ids: Int64Array, blocks: Blocks) -> None:
        """Restores data that was copied out, for partitions that have had no row since. Newer matchers have no data
        there."""
        coming = Coming(ids, self.store.put_in(ids, blocks), self.store.count)
        for tenant in self._tenants:
            start = f"{tenant.serial}/"
            own = {name.removeprefix(start): block for name, block in blocks.items() if name.startswith(start)}
            if own:
                tenant.put_in(coming, own)

    def snapshot(self) -> dict[str, np.ndarray]:
        """Returns rows and keys, as arrays by name; for evicted partitions, their locations. To be called before the
        matchers' own snapshots: if most rows and nodes are unreachable, they are dropped first, to be neither written
        nor read."""
        if self._size() >= FEW:
            keep = self.mark()
            if 2 * np.count_nonzero(keep) < self._size():
                self.drop(keep)
        arrays = self._kept()
        if self.spilled is not None:
            head, book = self.spilled.snapshot()
            manifest = self.spilled.spill.store.manifest()
            arrays |= {f"spilled.{name}": array for name, array in book.items()}
            arrays |= {"spill.head": as_array(json.dumps(head).encode()), "spill.manifest": as_array(manifest)}
        return arrays

    def _kept(self) -> dict[str, np.ndarray]:
        store, arrow = self.store.snapshot()
        arrays = {f"store.{name}": array for name, array in store.items()}
        arrays["arrow"] = saved_table(arrow)
        return arrays | {f"key.{name}": saved_array(values) for name, values in self.keys.snapshot().items()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restores the result of `snapshot`, for matchers of the same plans."""

        def of(name: str) -> dict[str, np.ndarray]:
            return {key.removeprefix(name): array for key, array in arrays.items() if key.startswith(name)}

        self.store.restore(of("store."), read_table(arrays["arrow"]))
        self.keys.restore({name: read_array(array) for name, array in of("key.").items()})
        if "spill.head" not in arrays:
            if self.spilled is not None:
                self.spilled.all_are_resident(len(self.keys))
            return
        book = of("spilled.")
        if self.spilled is not None:
            self.spilled.spill.store.restore(arrays["spill.manifest"].tobytes())
            self.spilled.restore(json.loads(arrays["spill.head"].tobytes()), book, len(self.keys))
        elif (book["place"] >= 0).any():
            message = "the saved state has partial matches on disk"
            raise DataError(message, "open it with a memory limit again")

    def restored(self) -> None:
        """Completes a restore: rows, keys and all matchers have been put in from snapshots."""
        self.began = True
        self._serial = max((tenant.serial for tenant in self._tenants), default=-1) + 1
        self._joint = None
        self.compact_at = 2 * self._size() + SLACK
        self.forget_at = KEYS_MIN

    def _size(self) -> int:
        return max([self.store.count, *(tenant.size for tenant in self._tenants)])


def _united(indices: Sequence[Int64Array | None]) -> Int64Array | None:
    """Returns the union of these indices, ascending; None if there are none, or if one of them means all."""
    some = [index for index in indices if index is not None]
    return np.unique(np.concatenate(some)) if some and len(some) == len(indices) else None


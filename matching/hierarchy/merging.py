"""The rows that layers read: the events and the matches of boxes, merged in their order."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from matching.batch import EventBatch, Int64Array, Matches
from matching.drive import UnfitMatch, first_unfit
from matching.emitted import only
from matching.engines.buffered_runs import group
from matching.hierarchy.members import Members
from matching.hierarchy.module import Module
from matching.hierarchy.sieve import Sieve
from matching.hierarchy.uppers import Over
from matching.ipc import from_ipc, to_ipc
from matching.purpose import Purpose
from matching.state import as_array
from query.language.duck import Settings
from query.plan.boxes import FIRST, KIND, LAST, LAST_US, column_of
from query.plan.expression import Expression
from query.plan.plan import Box

#: The place of a merged row in the order, and its identity.
ORDER = np.dtype([
    ("last", np.int64), ("complex", np.int8), ("first", np.int64), ("kind", np.int32), ("name", np.int32),
    ("offset", np.int64),
    ("seq", np.int64), ("last_us", np.int64), ("source", np.int32),
])  # fmt: skip

#: A position behind those of all events.
BEHIND_ALL = 2**62
#: Columns that tell the place of a row.
_PLACE = (FIRST.name, LAST.name, LAST_US.name)


class MergedRows(NamedTuple):
    """Rows in their order. rows: their columns; order: ORDER of each."""

    rows: pa.RecordBatch
    order: np.ndarray


class LayerReads(NamedTuple):
    """The rows that a layer reads. fields: columns. sieves: conditions by KIND; each row that matters meets one."""

    fields: tuple[pa.Field, ...]
    sieves: Mapping[int, tuple[Expression, ...]]


class Merging:
    """Merges the events with the matches of some boxes, for all layers with these boxes and keys.

    boxes: one for each pattern, with its module. keys: the columns of PARTITION BY. time: that of ORDER BY.
    with_events: False if no variable takes an event. purpose: ROWS if no evidence is wanted. own: gives the events of
    FROM; None: all. members: the events of the matches. uppers: the matchers of layers that share the merged rows, if
    `over` makes them. Rows wait while matches that come later may stand before them (query.plan.lag)."""

    def __init__(
        self, boxes: Sequence[Box], modules: Sequence[Module], keys: Sequence[str], time: str, with_events: bool,
        purpose: Purpose, settings: Settings, own: Callable[[EventBatch], EventBatch] | None = None,
        over: Over | None = None,
    ) -> None:  # fmt: skip
        self._own = own
        self.uppers = None if over is None else over()
        self.modules = tuple(modules)
        self.members = Members()
        self._boxes, self._keys, self._time, self._with_events = tuple(boxes), tuple(keys), time, with_events
        self._bare, self._settings = purpose is Purpose.ROWS, settings
        names = sorted(box.name for box in self._boxes)
        self._by_name = [0, *(names.index(box.name) for box in self._boxes)]
        lags = [module.lag_us for module in self.modules]
        self.lag_us = None if None in lags else max(lag for lag in lags if lag is not None)
        self._readers: dict[int, LayerReads] = {}
        self._begins: dict[int, int] = {}
        self._schema = pa.schema([])
        self._sieves: dict[int, Sieve] | None = {}  # None: to be made
        self._held: list[MergedRows] = []
        self._step = 0
        self._count = 0  # rows that have been handed on
        self._out: MergedRows | None = None
        #: The error of a module, see `step`; the position of the event at which it has failed, and the time reached.
        self.failure: Exception | None = None
        self.failed_position = self.failed_us = 0

    # ---- readers

    def takes(self, reader: LayerReads) -> bool:
        """True if a layer may join: rows that wait have the columns that it reads."""
        return not self._held or set(reader.fields) <= set(self._schema)

    def join(self, of: int, reader: LayerReads) -> None:
        """Adds a layer, by its id."""
        self._readers[of] = reader
        self._look_again()

    def keep_only(self, layers: set[int]) -> None:
        """Removes all other layers."""
        self._readers = {of: reader for of, reader in self._readers.items() if of in layers}
        self._begins = {of: begin for of, begin in self._begins.items() if of in layers}
        if self.uppers is not None:
            self.uppers.keep_only(layers)
        if not self._held:
            self._look_again()

    def forget(self, of: int, time_us: int) -> None:
        """Notes that no match to come of a layer begins before a time: the next step drops what none of them needs."""
        self._begins[of] = time_us

    def _look_again(self) -> None:
        readers = list(self._readers.values())
        self._schema = pa.schema(list(dict.fromkeys(field for reader in readers for field in reader.fields)))
        self._sieves = None

    def _met(self, kind: int, columns: Mapping[str, pa.Array], n: int) -> Int64Array | None:
        """Returns the indices of those of n rows of a kind to keep, None: all. What layers ask is combined once after
        these have changed: many may come one after the other."""
        if self._sieves is None:
            readers = list(self._readers.values())
            kinds = set.intersection(*(set(reader.sieves) for reader in readers)) if readers else set()
            conditions = {of: dict.fromkeys(c for reader in readers for c in reader.sieves[of]) for of in kinds}
            self._sieves = {of: Sieve(of_kind, self._settings) for of, of_kind in conditions.items()}
        return self._sieves[kind].met(columns, n) if kind in self._sieves else None

    # ---- rows

    def step(self, step: int, batch: EventBatch | None, watermark_us: int | None) -> MergedRows | None:
        """Returns the rows before which no further one can come, after a step of the hierarchy: the next events, or
        without them a watermark, None at the end of the input. If a module fails at one of the events, or the next row
        is a match with a measure that cannot be computed, those before it; `failure` is set then, and later steps raise
        it."""
        if step != self._step:
            if self._begins and len(self._begins) == len(self._readers):
                self.members.drop_before(min(self._begins.values()))
            if self.failure is not None:
                raise self.failure
            found = [module.step(step, batch, watermark_us) for module in self.modules]
            reached_us, ended = watermark_us, batch is None and watermark_us is None
            if batch is not None:
                reached_us = int(batch.ts_us[-1]) if len(batch) else None
            if (failed := self._first_failed()) is not None:
                assert failed.failed_position is not None
                self.failure, self.failed_position = failed.failure, failed.failed_position
                batch, found, at_us = _before(batch, found, self.failed_position)
                reached_us = at_us if failed.failed_us is None else failed.failed_us
                assert reached_us is not None  # a failure in an event or at a time
                self.failed_us = reached_us
                ended = False
            self._hold(batch, found)
            out = self._released(reached_us, ended)
            unfit = first_unfit(*(module.unfit for module in self.modules))
            if unfit is not None and self._comes(unfit, reached_us, ended):
                self.failure = unfit.error
                self.failed_position, self.failed_us = at_release(unfit.last, unfit.last_us, self.lag_us, batch)
                if out is not None:
                    count = int(np.searchsorted(out.order["last"], unfit.last))
                    out = MergedRows(out.rows.slice(0, count), out.order[:count])
            self._out = self._numbered(out)
            self._step = step
        return self._out

    def _first_failed(self) -> Module | None:
        """Returns the module that has failed at the earliest event, None if none has failed."""
        failed = [module for module in self.modules if module.failure is not None]
        return min(failed, key=lambda module: (module.failed_position or 0, module.failed_us or 0), default=None)

    def _comes(self, unfit: UnfitMatch, reached_us: int | None, ended: bool) -> bool:
        """True if no merged row can come any more that stands before a match."""
        if self.failure is not None and unfit.last >= self.failed_position:
            return False
        if self.lag_us == 0 or ended:
            return True
        return self.lag_us is not None and reached_us is not None and unfit.last_us < reached_us - self.lag_us

    def snapshot(self, layers: set[int] | None) -> dict[str, np.ndarray]:
        """Returns its state without that of the modules and of matchers. layers: those that are saved, None: all."""
        head, arrays = self.members.snapshot()
        arrays = {f"members.{name}": array for name, array in arrays.items()}
        arrays["head"] = as_array(json.dumps(head | {"count": self._count}).encode())
        if self.uppers is not None:
            arrays |= {f"uppers.{name}": array for name, array in self.uppers.snapshot(layers).items()}
        if self._held:
            rows, order = _sorted(self._held)
            arrays |= {"rows": as_array(to_ipc(rows)), "order": as_array(order.tobytes())}
        return arrays

    def fits(self, state: Mapping[str, np.ndarray]) -> bool:
        """True if it can restore a snapshot."""
        uppers = group("uppers", dict(state))
        return not uppers if self.uppers is None else self.uppers.fits(uppers)

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores a snapshot that fits; the state of the layers' matchers is restored after it."""
        if self.uppers is not None:
            self.uppers.restore(group("uppers", dict(state)))
        head = json.loads(state["head"].tobytes())
        self._count = head["count"]
        self.members.restore(head, group("members", dict(state)))
        self._held = []
        if "rows" in state:
            rows = from_ipc(state["rows"].tobytes()).combine_chunks().to_batches()[0]
            self._held = [MergedRows(rows, state["order"].view(ORDER))]

    def _hold(self, batch: EventBatch | None, found: list[Matches]) -> None:
        """Adds merged rows of events and matches to those that wait for their place in the order."""
        schema = self._schema
        parts: list[tuple[pa.RecordBatch, np.ndarray]] = []
        if batch is not None and self._with_events and self._own is not None:
            batch = self._own(batch)
        if batch is not None and len(batch) and self._with_events:
            columns = dict(zip(batch.columns.schema.names, batch.columns.columns, strict=True))
            if (met := self._met(0, columns, len(batch))) is not None:
                names = [name for name in columns if name in _PLACE or schema.get_field_index(name) >= 0]
                batch = replace(batch, columns=batch.columns.select(names)).take(met)
                columns = dict(zip(names, batch.columns.columns, strict=True))
            if len(batch):
                order = self._order(columns, 0, batch.source + 1, batch.offset, batch.seq)
                parts.append((self._rows(columns, order), order))
        for kind, (box, matches) in enumerate(zip(self._boxes, found, strict=True), 1):
            if not matches.rows.num_rows:
                continue
            begins = matches.rows.column(FIRST.name)
            some = np.arange(matches.rows.num_rows)
            rows = matches.rows
            if begins.null_count:  # an empty match has no interval
                some = np.flatnonzero(np.asarray(begins.is_valid()))
                rows = rows.take(pa.array(some))
            read = {column_of(box, shown): name for shown, name in box.columns}
            shown_as = {shown.lower(): name for shown, name in box.columns}
            read |= {name: shown_as[name.lower()] for name in self._keys}
            read |= {name: name for name in rows.column_names if name.startswith("#")}
            read[self._time] = "#t1"
            made = {name: _array(rows.column(of)) for name, of in read.items()
                    if name in _PLACE or schema.get_field_index(name) >= 0}  # fmt: skip
            if (met := self._met(kind, made, len(some))) is not None:
                index = pa.array(met)
                made, some = {name: column.take(index) for name, column in made.items()}, some[met]
            n, first = len(some), self.members.next
            if not n:
                continue
            if not self._bare:
                self.members.add(matches, None if n == len(matches) else some)
            number = np.arange(first, first + n)
            order = self._order(made, kind, np.zeros(n, np.int32), number, number)
            parts.append((self._rows(made, order), order))
        if not parts or not len(schema):
            return
        if len(parts) == 1:
            (whole, order), = parts
        else:
            whole = pa.concat_batches([rows for rows, _ in parts])
            order = np.concatenate([order for _, order in parts])
        if len(parts) > 1 or order["complex"][0]:
            place = _places(order)
            if place is not None:
                whole, order = whole.take(pa.array(place)), order[place]
        self._held.append(MergedRows(whole, order))

    def _rows(self, columns: Mapping[str, pa.Array], order: np.ndarray) -> pa.RecordBatch:
        """Returns the columns that layers read of merged rows."""
        columns = {**columns, KIND.name: pa.array(order["kind"])}
        return pa.RecordBatch.from_arrays([_column(columns, f, len(order)) for f in self._schema], schema=self._schema)

    def _order(
        self, columns: Mapping[str, pa.Array], kind: int, source: np.ndarray, offset: Int64Array, seq: Int64Array
    ) -> np.ndarray:
        """Returns the places of merged rows in the order: right after the last event, then by first event, pattern and
        order of emission."""
        order = np.zeros(len(source), ORDER)
        for name in ("last", "first", "last_us"):
            order[name] = np.asarray(columns[f"#{name}"])
        order["kind"], order["complex"] = kind, kind > 0
        order["name"] = self._by_name[kind]
        order["source"], order["offset"], order["seq"] = source, offset, seq
        return order

    def _numbered(self, merged: MergedRows | None) -> MergedRows | None:
        """Gives rows that are matches their place in the order as ingest sequence, which they do not have."""
        if merged is not None:
            order = merged.order
            complex_ = np.flatnonzero(order["complex"])
            order["seq"][complex_] = self._count + complex_
            self._count += len(order)
        return merged

    def _released(self, reached_us: int | None, ended: bool) -> MergedRows | None:
        """Returns the merged rows before which no further one can come, in order. reached_us: no event with a lower
        time can still come."""
        if not self._held:
            return None
        if self.lag_us == 0 or ended:
            out, self._held = self._held, []
            return _sorted(out)
        if self.lag_us is None or reached_us is None:
            return None
        rows, order = _sorted(self._held)
        count = int(np.searchsorted(order["last_us"], reached_us - self.lag_us))
        self._held = [MergedRows(rows.slice(count), order[count:])] if count < len(order) else []
        return MergedRows(rows.slice(0, count), order[:count]) if count else None


def at_release(last: int, last_us: int, lag_us: int | None, batch: EventBatch | None) -> tuple[int, int]:
    """Returns the position of the event, one of the next ones or behind them, that releases a merged row, and the time
    that is to be reached for it. last, last_us: of its last event."""
    if not lag_us:
        return last, last_us
    reached_us = last_us + lag_us + 1
    if batch is None or not len(batch) or int(batch.ts_us[-1]) < reached_us:
        return BEHIND_ALL, reached_us
    at = int(np.searchsorted(batch.ts_us, reached_us))
    return int(batch.columns.column(FIRST.name)[at].as_py()), reached_us


def _before(
    batch: EventBatch | None, found: list[Matches], position: int
) -> tuple[EventBatch | None, list[Matches], int | None]:
    """Returns the events and the matches before the event at a position, and its time, if it is one of them."""
    early, at_us = [], None
    if batch is not None and len(batch):
        at = int(np.searchsorted(np.asarray(batch.columns.column(FIRST.name)), position))
        at_us = int(batch.ts_us[at]) if at < len(batch) else None
        batch = batch.slice(0, at)
    for matches in found:
        if matches.rows.num_rows:
            last = matches.rows.column(LAST.name).fill_null(-1)
            matches = only(matches, np.flatnonzero(np.asarray(last) < position))
        early.append(matches)
    return batch, early, at_us


def _sorted(held: list[MergedRows]) -> MergedRows:
    if len(held) == 1:
        return held[0]
    order = np.concatenate([order for _, order in held])
    rows, place = pa.concat_batches([rows for rows, _ in held]), _places(order)
    return MergedRows(rows, order) if place is None else MergedRows(rows.take(pa.array(place)), order[place])


def _places(order: np.ndarray) -> Int64Array | None:
    """Returns the indices of merged rows in their order; None: they are in order. Events, and parts that came before,
    are in order already."""
    complex_ = np.flatnonzero(order["complex"])
    few = order[complex_]
    index = np.arange(len(order))
    last, first = few["last"], few["first"]
    one = not len(few) or few["name"].min() == few["name"].max()
    # matches of one pattern come in order, as a rule
    kept = one and bool(np.all((last[1:] > last[:-1]) | ((last[1:] == last[:-1]) & (first[1:] >= first[:-1]))))
    if not kept:
        index[complex_] = complex_[np.lexsort((few["offset"], few["name"], few["first"], few["last"]))]
    key = 2 * order["last"][index] + order["complex"][index]
    return None if kept and np.all(key[1:] >= key[:-1]) else index[np.argsort(key, kind="stable")]


def _array(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _column(columns: Mapping[str, pa.Array], field: pa.Field, n: int) -> pa.Array:
    found = columns.get(field.name)
    if found is None:
        return pa.nulls(n, field.type)
    return found if found.type == field.type else found.cast(field.type)

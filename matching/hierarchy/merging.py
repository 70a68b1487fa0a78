"""The rows that layers read: the events and the matches of boxes, merged in their order."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from matching.batch import EventBatch, Int64Array, Matches
from matching.engines.buffered_runs import group
from matching.features import project
from matching.hierarchy.members import Members
from matching.hierarchy.module import Module
from matching.ipc import from_ipc, to_ipc
from matching.purpose import Purpose
from matching.state import as_array
from query.errors import DataError
from query.language.duck import Settings
from query.plan.boxes import FIRST, KIND, column_of
from query.plan.plan import Box

#: Least number of rows of which those are looked for that conditions can take: DuckDB does it, in some milliseconds, in
#: which fewer rows are merged.
SIEVED_MIN = 1 << 14

#: The place of a merged row in the order, and its identity.
ORDER = np.dtype([
    ("last", np.int64), ("complex", np.int8), ("first", np.int64), ("kind", np.int32), ("name", np.int32),
    ("offset", np.int64),
    ("seq", np.int64), ("last_us", np.int64), ("source", np.int32),
])  # fmt: skip


class MergedRows(NamedTuple):
    """Rows in their order. rows: their columns; order: ORDER of each."""

    rows: pa.RecordBatch
    order: np.ndarray


class LayerReads(NamedTuple):
    """What a layer reads. fields: columns; sieves: by KIND an SQL condition that all rows meet which matter to it."""

    fields: tuple[pa.Field, ...]
    sieves: Mapping[int, str]


class Merging:
    """Merges the events with the matches of some boxes, for all layers with these boxes and keys.

    boxes: one for each pattern, with its module. keys: the columns of PARTITION BY. time: that of ORDER BY.
    with_events: False if no variable takes an event. purpose: ROWS if no evidence is wanted. own: gives the events of
    FROM; None: all. members: the events of the matches. Rows wait while matches that come later may stand before them
    (query.plan.lag)."""

    def __init__(
        self, boxes: Sequence[Box], modules: Sequence[Module], keys: Sequence[str], time: str, with_events: bool,
        purpose: Purpose, settings: Settings, own: Callable[[EventBatch], EventBatch] | None = None,
    ) -> None:  # fmt: skip
        self._own = own
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
        self._sieves: dict[int, str] = {}
        self._held: list[MergedRows] = []
        self._step = 0
        self._out: MergedRows | None = None

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
        if not self._held:
            self._look_again()

    def forget(self, of: int, time_us: int) -> None:
        """Notes that no match to come of a layer begins before a time, and drops what none of them needs."""
        self._begins[of] = time_us
        if len(self._begins) == len(self._readers):
            self.members.drop_before(min(self._begins.values()))

    def _look_again(self) -> None:
        readers = list(self._readers.values())
        self._schema = pa.schema(list(dict.fromkeys(field for reader in readers for field in reader.fields)))
        kinds = set.intersection(*(set(reader.sieves) for reader in readers)) if readers else set()
        texts = {kind: dict.fromkeys(reader.sieves[kind] for reader in readers) for kind in kinds}
        self._sieves = {kind: " OR ".join(f"({text})" for text in of_kind) for kind, of_kind in texts.items()}

    # ---- rows

    def step(self, step: int, batch: EventBatch | None, watermark_us: int | None) -> MergedRows | None:
        """Returns the rows before which no further one can come, after a step of the hierarchy: the next events, or
        without them a watermark, None at the end of the input."""
        if step != self._step:
            self._hold(batch, [module.step(step, batch, watermark_us) for module in self.modules])
            reached_us = watermark_us
            if batch is not None:
                reached_us = int(batch.ts_us[-1]) if len(batch) else None
            self._out = self._released(reached_us, batch is None and watermark_us is None)
            self._step = step
        return self._out

    def snapshot(self) -> dict[str, np.ndarray]:
        """Returns its state without that of the modules."""
        head, arrays = self.members.snapshot()
        arrays = {f"members.{name}": array for name, array in arrays.items()}
        arrays["head"] = as_array(json.dumps(head).encode())
        if self._held:
            rows, order = _sorted(self._held)
            arrays |= {"rows": as_array(to_ipc(rows)), "order": as_array(order.tobytes())}
        return arrays

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores a snapshot."""
        self.members.restore(json.loads(state["head"].tobytes()), group("members", dict(state)))
        self._held = []
        if "rows" in state:
            rows = from_ipc(state["rows"].tobytes()).combine_chunks().to_batches()[0]
            self._held = [MergedRows(rows, state["order"].view(ORDER))]

    def _hold(self, batch: EventBatch | None, found: list[Matches]) -> None:
        """Adds merged rows of events and matches to those that wait for their place in the order."""
        parts: list[tuple[dict[str, pa.Array], np.ndarray]] = []
        if batch is not None and self._with_events and self._own is not None:
            batch = self._own(batch)
        if batch is not None and len(batch) and self._with_events:
            columns = dict(zip(batch.columns.schema.names, batch.columns.columns, strict=True))
            if 0 in self._sieves and len(batch) >= SIEVED_MIN:
                batch = batch.take(_met(columns, self._sieves[0], self._settings))
                columns = dict(zip(batch.columns.schema.names, batch.columns.columns, strict=True))
            parts.append((columns, self._order(columns, 0, batch.source + 1, batch.offset, batch.seq)))
        for kind, (box, matches) in enumerate(zip(self._boxes, found, strict=True), 1):
            begins = matches.rows.column(FIRST.name)
            some = np.flatnonzero(np.asarray(begins.is_valid()))  # an empty match has no interval
            if not len(some):
                continue
            rows = matches.rows.take(pa.array(some)).combine_chunks()
            made = {column_of(box, shown): rows.column(name).combine_chunks() for shown, name in box.columns}
            keys = {shown.lower(): name for shown, name in box.columns}
            made |= {name: rows.column(keys[name.lower()]).combine_chunks() for name in self._keys}
            hidden = [name for name in rows.column_names if name.startswith("#")]
            made |= {name: rows.column(name).combine_chunks() for name in hidden}
            made[self._time] = made["#t1"]
            if kind in self._sieves and len(some) >= SIEVED_MIN:
                met = _met(made, self._sieves[kind], self._settings)
                made, some = {name: column.take(pa.array(met)) for name, column in made.items()}, some[met]
            n, first = len(some), self.members.next
            if not self._bare:
                self.members.add(matches, some)
            number = np.arange(first, first + n)
            parts.append((made, self._order(made, kind, np.zeros(n, np.int32), number, number)))
        if not parts or not len(self._schema):
            return
        schema = self._schema
        batches = [pa.RecordBatch.from_arrays([_column(c, f, len(o)) for f in schema], schema=schema) for c, o in
                   [({**columns, KIND.name: pa.array(order["kind"])}, order) for columns, order in parts]]
        order = np.concatenate([order for _, order in parts])
        place = _places(order)
        whole = pa.Table.from_batches(batches).take(pa.array(place)).combine_chunks().to_batches()
        self._held.append(MergedRows(whole[0], order[place]))

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


def _met(columns: Mapping[str, pa.Array], condition: str, settings: Settings) -> Int64Array:
    """Returns the indices of the rows that meet a condition."""
    (met,) = project(columns, [condition], DataError, settings)
    return np.flatnonzero(np.asarray(met))


def _sorted(held: list[MergedRows]) -> MergedRows:
    if len(held) == 1:
        return held[0]
    order = np.concatenate([order for _, order in held])
    place = _places(order)
    rows = pa.Table.from_batches([rows for rows, _ in held]).take(pa.array(place)).combine_chunks()
    return MergedRows(rows.to_batches()[0], order[place])


def _places(order: np.ndarray) -> Int64Array:
    """Returns the indices of merged rows in their order. Events, and parts that came before, are in order already."""
    complex_ = np.flatnonzero(order["complex"])
    few = order[complex_]
    index = np.arange(len(order))
    last, first = few["last"], few["first"]
    later = last[1:] > last[:-1]
    one = len(few) == len(order) and (not len(few) or few["name"].min() == few["name"].max())
    if one and np.all(later | ((last[1:] == last[:-1]) & (first[1:] >= first[:-1]))):
        return index  # matches of one pattern come in this order, as a rule
    index[complex_] = complex_[np.lexsort((few["offset"], few["name"], few["first"], few["last"]))]
    key = 2 * order["last"][index] + order["complex"][index]
    return index[np.argsort(key, kind="stable")]


def _column(columns: Mapping[str, pa.Array], field: pa.Field, n: int) -> pa.Array:
    found = columns.get(field.name)
    if found is None:
        return pa.nulls(n, field.type)
    return found if found.type == field.type else found.cast(field.type)

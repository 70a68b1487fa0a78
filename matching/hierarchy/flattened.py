"""The Matcher of a pattern with boxes that runs as one plain pattern, and gives the matches of the layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from matching.batch import EventBatch, Int64Array, Matcher, Matches
from matching.drive import before_failure, failed_at, parts
from matching.engines.engine import EnginePlan
from matching.features import leaf_sql, project
from matching.hierarchy.choice import AsOne
from matching.hierarchy.ragged import RaggedOrder
from matching.hierarchy.sieve import Sieve
from matching.ipc import from_ipc, to_ipc
from matching.state import as_array, pack, unpack, unpack_head
from matching.types import plain_type
from query.errors import DataError, QueryError, first_line
from query.language.ast import Selection
from query.plan.computed_first import INTEGER_MAX
from query.plan.expression import TRUE, Call, Column, Expression, conjuncts, is_row_local, to_sql, walk
from query.plan.fingerprint import fingerprint
from query.plan.one_pattern import PLACE
from query.plan.plan import Plan, modules

#: Version of FlattenedMatcher.snapshot; restore refuses others.
STATE_VERSION = 1
#: Number of batches that are kept one by one.
KEPT_MAX = 256
#: Number of kept rows of which those are looked for that matter.
SIEVED_MIN = 1 << 14

MakeOne = Callable[[Plan, EnginePlan], Matcher]


class FlattenedMatcher:
    """Matcher of a pattern with boxes over the matcher of one plain pattern. Layers take over for good where that finds
    no answer: too many partial matches, an error, or integers so large that a layer could have one. For that the events
    of the last WITHIN are kept: no match to come has others.

    make_one: returns the matcher of the plain pattern. make_layers: returns the matcher that takes over. stuck: always
    0, since all matches are returned."""

    stuck = 0

    def __init__(
        self, plan: Plan, way: AsOne, make_one: MakeOne, make_layers: Callable[[], Matcher],
        sources: tuple[str, ...] = ("default",),
    ) -> None:  # fmt: skip
        assert plan.within is not None
        assert plan.within.interval_us is not None
        self.plan = plan
        self.way = way
        self.sources = sources
        self._within_us = plan.within.interval_us
        self._make_one, self._make_layers = make_one, make_layers
        self._fingerprint = fingerprint(plan)
        self._bare = way.chosen.purpose.bare
        self._order = _Order(way)
        self._kept = _Kept(plan, way.one.rows_before)
        self._sequences = _Sequences()
        self._position = 0
        self._computed = [
            to_sql(computed.value, {e: leaf_sql(e.name, e.type) for e in walk(computed.value) if isinstance(e, Column)})
            for computed in way.one.computed
        ]  # fmt: skip
        self._one: Matcher | None = make_one(way.plan, way.chosen)
        self.why_layers: str | None = None
        self._layers: Matcher | None = None

    # ---- Matcher

    def push(self, batch: EventBatch) -> Matches:
        """See matching.batch.Matcher."""
        self.sources = batch.sources
        if self._layers is not None:
            return self._layers.push(batch)
        try:
            found = self._found(batch)
        except (DataError, QueryError) as error:
            return self.to_layers(first_line(error)).push(batch)
        if len(batch):
            self._kept.add(batch)
            self._forget(int(batch.ts_us[-1]))
        return found

    @property
    def failed_us(self) -> int | None:
        """Returns the time of the event at which it has failed; None if it has not, or that is not known."""
        return failed_at(self._layers)

    def before_failure(self) -> list[Matches]:
        """Returns the matches that were decided before the event at which `push` has failed, if it is known."""
        return [] if self._layers is None else before_failure(self._layers)

    def advance(self, watermark_us: int | None) -> Matches:
        """See matching.batch.Matcher."""
        if self._layers is not None:
            return self._layers.advance(watermark_us)
        assert self._one is not None
        try:
            found = self._order.ordered(self._one.advance(watermark_us), self._sequences)
        except (DataError, QueryError) as error:
            return self.to_layers(first_line(error)).advance(watermark_us)
        if watermark_us is not None:
            self._forget(watermark_us)
        return found

    def snapshot(self) -> bytes:
        """Returns its state, with the events that layers would need."""
        head: dict[str, object] = {"flattened": STATE_VERSION, "plan": self._fingerprint}
        if self._layers is not None:
            return pack(head | {"layers": True, "why": self.why_layers}, {"layers": as_array(self._layers.snapshot())})
        assert self._one is not None
        kept, arrays = self._kept.snapshot()
        head |= {"layers": False, "position": self._position, "sources": list(self.sources), "kept": kept}
        return pack(head, arrays | self._sequences.snapshot() | {"one": as_array(self._one.snapshot())})

    def fits(self, state: bytes) -> bool:
        """True if it can restore a snapshot: it is of the same pattern with boxes, whether it ran as one pattern or as
        layers, by itself."""
        head = unpack_head(state)
        if "flattened" not in head:
            return self._make_layers().fits(state)
        if (head["flattened"], head["plan"]) != (STATE_VERSION, self._fingerprint):
            return False
        return not head["layers"] or self._make_layers().fits(unpack(state)[1]["layers"].tobytes())

    def restore(self, state: bytes) -> None:
        """Restores a snapshot that fits. Raises DataError for any other state."""
        head, arrays = unpack(state)
        if "flattened" in head and (head["flattened"], head["plan"]) != (STATE_VERSION, self._fingerprint):
            raise DataError("this state belongs to another query or version", "start the query again")
        if "flattened" not in head or head["layers"]:
            self._one, self._layers = None, self._make_layers()
            self._layers.restore(arrays["layers"].tobytes() if "flattened" in head else state)
            self.why_layers = head.get("why", "an earlier release began so")
            return
        self._position, self.sources = head["position"], tuple(head["sources"])
        self._kept.restore(head["kept"], arrays)
        self._sequences.restore(arrays)
        one = arrays["one"].tobytes()
        if self._one is None:
            self._one, self._layers = self._make_one(self.way.plan, self.way.chosen), None
            self.why_layers = None
        if self._one.fits(one):
            self._one.restore(one)
        else:  # another release has written it: the events are enough
            self.to_layers("another release began it")

    # ---- memory

    @property
    def runs(self) -> Matcher:
        """Returns the matcher that it runs as."""
        found = self._one if self._layers is None else self._layers
        assert found is not None
        return found

    @property
    def kept_bytes(self) -> int:
        """Returns the bytes of the events that layers would need."""
        return sum(batch.columns.nbytes + 28 * len(batch) for batch in self._kept)

    # ---- the two ways

    def _found(self, batch: EventBatch) -> Matches:
        """Returns the matches of the plain pattern. Raises its errors, DataError for large integers and for what cannot
        be computed of an event."""
        assert self._one is not None
        columns = dict(zip(batch.columns.schema.names, batch.columns.columns, strict=True))
        if self._computed and len(batch):
            found = project(columns, self._computed, DataError, self.plan.settings)
            columns |= {c.field.name: array for c, array in zip(self.way.one.computed, found, strict=True)}
        elif self._computed:
            columns |= {c.field.name: pa.array([], plain_type(c.field.type)) for c in self.way.one.computed}
        for name in self.way.one.integers:
            if _is_large(columns[name]):
                raise DataError(f"{name} is too large for one pattern")
        place = np.arange(self._position, self._position + len(batch))
        self._position += len(batch)
        if self._bare:
            columns[PLACE.name] = pa.array(place)
        batch = replace(batch, columns=pa.RecordBatch.from_arrays(list(columns.values()), list(columns)))
        if self._bare:
            return self._order.ordered(self._one.push(batch), self._sequences)
        self._sequences.add(self._position - len(batch), batch)
        return self._order.ordered(self._one.push(replace(batch, seq=place)), self._sequences)

    def _forget(self, reached_us: int) -> None:
        """Drops what no match to come can contain."""
        self._kept.drop_before(reached_us - self._within_us)
        self._sequences.drop_before(reached_us - self._within_us)

    def to_layers(self, why: str) -> Matcher:
        """Lets layers take over, from the events that matches to come may have."""
        layers = self._make_layers()
        for batch in self._kept:
            for part in parts(batch):
                layers.push(part)  # these matches have been emitted
        self._one, self._layers, self.why_layers = None, layers, why
        self._kept, self._sequences = _Kept(self.plan, 0), _Sequences()
        return layers


def _is_large(column: pa.Array) -> bool:
    """True if an integer is beyond what conditions can certainly compute with."""
    bounds = pc.min_max(column).as_py()
    low, high = bounds["min"], bounds["max"]
    return low is not None and (low < -INTEGER_MAX or high > INTEGER_MAX)


class _Order:
    """Puts the matches of a plain pattern in the order of the layers, under the paths of their events."""

    def __init__(self, way: AsOne) -> None:
        self._ragged = RaggedOrder(way.one) if way.one.steps else None
        self._order, self._count = way.one.order, len(way.one.paths)
        self._names = tuple(dict.fromkeys(way.one.paths))
        self._variable = np.array([self._names.index(path) for path in way.one.paths], np.int16)
        self._bare = way.chosen.purpose.bare

    def ordered(self, found: Matches, sequences: _Sequences) -> Matches:
        """Returns matches as the layers give them. Those with evidence have positions in the place of ingest
        sequences, the others as their last columns."""
        if self._ragged is not None:
            found = self._ragged.ordered(found)
            return replace(found, event_seq=sequences.of(found.event_seq)) if len(found) else found
        n, count, rows = len(found), self._count, found.rows
        own = rows.select(range(rows.num_columns - count)) if self._bare else rows
        if not n:
            return replace(found, rows=own, variables=self._names)
        if self._bare:
            order = _sorted([rows.column(own.num_columns + i).to_numpy() for i in self._order])
            return replace(found, rows=own if order is None else own.take(pa.array(order)), variables=self._names)
        places = found.event_seq.reshape(n, count)
        order = _sorted([places[:, i] for i in self._order])
        found = replace(found, variables=self._names, event_variable=np.tile(self._variable, n))
        if order is None:
            return replace(found, event_seq=sequences.of(found.event_seq))

        def of(values: np.ndarray) -> np.ndarray:
            return values.reshape(n, -1).take(order, axis=0).reshape(-1)

        return replace(
            found, rows=own.take(pa.array(order)), first_us=of(found.first_us), last_us=of(found.last_us),
            event_ts_us=of(found.event_ts_us),
            event_source=of(found.event_source) if len(found.sources) > 1 else found.event_source,
            event_offset=of(found.event_offset), event_seq=sequences.of(of(found.event_seq)),
        )  # fmt: skip


def _sorted(places: list[Int64Array]) -> Int64Array | None:
    """Returns the order by columns of positions, of which the first one is in order already; None if all are. Positions
    are written as distances to the first column, several in one number: they are short."""
    last = places[0]
    if len(last) < 2 or (last[1:] > last[:-1]).all():
        return None
    keys = [last - last[0]]
    bits = int(keys[0].max()).bit_length()
    for place in places[1:]:
        back = last - place
        most = int(back.max())
        width = most.bit_length()
        if bits + width > 63:
            keys.append(most - back)
            bits = width
        else:
            keys[-1] = (keys[-1] << width) | (most - back)
            bits += width
    key = keys[0] if len(keys) == 1 else None
    if key is not None:
        return None if (key[1:] > key[:-1]).all() else np.argsort(key, kind="stable")
    return np.lexsort(keys[::-1])


class _Sequences:
    """The ingest sequences of events by position, as stretches in which they ascend by one."""

    def __init__(self) -> None:
        none = np.zeros(0, np.int64)
        self._begin, self._seq = none, none  # of each stretch: the position and the sequence of its first event
        self._until_us = none  # the time of its last event

    def add(self, position: int, batch: EventBatch) -> None:
        """Adds the next events, from a position on."""
        if not len(batch):
            return
        starts = np.concatenate([[0], np.flatnonzero(np.diff(batch.seq) != 1) + 1])
        until_us = batch.ts_us[np.append(starts[1:], len(batch)) - 1]
        if len(self._seq) and batch.seq[0] - self._seq[-1] == position - self._begin[-1]:
            self._until_us[-1] = until_us[0]
            starts, until_us = starts[1:], until_us[1:]
        self._begin = np.concatenate([self._begin, position + starts])
        self._seq = np.concatenate([self._seq, batch.seq[starts]])
        self._until_us = np.concatenate([self._until_us, until_us])

    def of(self, position: Int64Array) -> Int64Array:
        """Returns the sequences of events."""
        if len(self._begin) == 1:
            return position + (self._seq[0] - self._begin[0])
        at = np.searchsorted(self._begin, position, side="right") - 1
        return position + (self._seq - self._begin)[at]

    def drop_before(self, time_us: int) -> None:
        """Drops stretches of earlier events, if they are many."""
        old = int(np.searchsorted(self._until_us, time_us))
        if old > KEPT_MAX:
            self._begin, self._seq, self._until_us = self._begin[old:], self._seq[old:], self._until_us[old:]

    def snapshot(self) -> dict[str, np.ndarray]:
        """Returns its state."""
        return {"places.begin": self._begin, "places.seq": self._seq, "places.until_us": self._until_us}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Restores a snapshot."""
        self._begin, self._seq = arrays["places.begin"], arrays["places.seq"]
        self._until_us = arrays["places.until_us"].copy()


class _Kept:
    """The events that a match to come may have, from which layers can go on. rows_before: so many rows of each
    partition before these are read, too."""

    def __init__(self, plan: Plan, rows_before: int) -> None:
        self._columns = list(plan.columns)
        self._settings = plan.settings
        self._partition_by = [c.name for c in plan.partition_by]
        self._rows_before = rows_before
        self._older: list[EventBatch] = []  # rows that are only read from later ones
        self._sieve = None if rows_before else _sieve(plan)
        self._batches: list[EventBatch] = []
        self._done = self._new_rows = 0  # batches at the front that are tidied up, and the rows of later ones

    def __iter__(self) -> Iterator[EventBatch]:
        yield from self._older
        yield from self._batches

    def add(self, batch: EventBatch) -> None:
        """Adds events at the end."""
        self._batches.append(replace(batch, columns=batch.columns.select(self._columns)))
        self._new_rows += len(batch)

    def drop_before(self, time_us: int) -> None:
        """Drops earlier events, batch by batch."""
        old = next((i for i, batch in enumerate(self._batches) if batch.ts_us[-1] >= time_us), len(self._batches))
        self._new_rows -= sum(map(len, self._batches[self._done : old]))
        self._set_aside(self._batches[:old])
        del self._batches[:old]
        self._done = max(0, self._done - old)
        if len(self._batches) - self._done > KEPT_MAX or self._new_rows >= SIEVED_MIN:
            self._tidy(time_us)

    def _set_aside(self, dropped: Sequence[EventBatch]) -> None:
        """Keeps the last rows of each partition, of rows that no match to come has."""
        if not self._rows_before or not dropped:
            return
        self._older += dropped
        if len(self._older) > KEPT_MAX or sum(map(len, self._older[1:])) >= max(SIEVED_MIN, len(self._older[0])):
            whole = EventBatch.concat(self._older)
            keys = [whole.columns.column(name) for name in self._partition_by]
            self._older = [whole.take(_last_of_each(keys, len(whole), self._rows_before))]

    def _tidy(self, time_us: int) -> None:
        """Puts batches together, without events that are earlier or matter to no match."""
        at = self._done if self._done <= KEPT_MAX else 0
        whole = EventBatch.concat(self._batches[at:]) if self._batches[at:] else None
        del self._batches[at:]
        if whole is not None:
            begin = int(np.searchsorted(whole.ts_us, time_us))
            if begin:
                self._set_aside([whole.slice(0, begin)])
                whole = whole.slice(begin, len(whole))
            if self._sieve is not None:
                columns = dict(zip(whole.columns.schema.names, whole.columns.columns, strict=True))
                whole = whole.take(self._sieve.which(columns, len(whole)))
            self._batches += [whole] if len(whole) else []
        self._done, self._new_rows = len(self._batches), 0

    def snapshot(self) -> tuple[list[str], dict[str, np.ndarray]]:
        """Returns the sources of the events, and arrays."""
        if not self._older and not self._batches:
            return [], {}
        whole = EventBatch.concat(list(self))
        arrays = {name: getattr(whole, name) for name in ("ts_us", "source", "offset", "seq")}
        kept = {f"kept.{name}": array for name, array in arrays.items()}
        return list(whole.sources), kept | {"kept.columns": as_array(to_ipc(whole.columns))}

    def restore(self, sources: list[str], arrays: Mapping[str, np.ndarray]) -> None:
        """Restores a snapshot."""
        self._older, self._batches, self._done, self._new_rows = [], [], 0, 0
        if "kept.columns" in arrays:
            (columns,) = from_ipc(arrays["kept.columns"].tobytes()).combine_chunks().to_batches()
            at = [arrays[f"kept.{name}"] for name in ("ts_us", "source", "offset", "seq")]
            self._batches = [EventBatch(columns, at[0], at[1], at[2], at[3], tuple(sources))]


def _last_of_each(keys: Sequence[pa.Array], n: int, count: int) -> Int64Array:
    """Returns the indices of the last rows of each key, in order. count: of each key. Unequal codes of equal keys only
    keep more rows."""
    code = np.zeros(n, np.int64)
    for key in keys:
        own = key.dictionary_encode("encode").indices.to_numpy(zero_copy_only=False).astype(np.int64)
        code = np.unique(code * (int(own.max(initial=0)) + 1) + own, return_inverse=True)[1]
    by_key = np.argsort(code, kind="stable")
    sorted_code = code[by_key]
    behind = np.searchsorted(sorted_code, sorted_code, side="right") - np.arange(n)  # of its key, with itself
    return np.sort(by_key[behind <= count])


def _sieve(plan: Plan) -> Sieve | None:
    """Returns what finds the events that can be in a match, or keep one from being one; None if any can."""
    if plan.selection in (Selection.STRICT, Selection.PARTITION):
        return None  # it counts which events lie between
    conditions: list[Expression] = []
    for layer in _layers_of(plan):
        boxes = {box.variable for box in layer.boxes}
        for define in (d for d in layer.defines if d.variable not in boxes):
            local = tuple(part for part in conjuncts(define.condition) if is_row_local(part) and part != TRUE)
            if not local:
                return None
            conditions.append(local[0] if len(local) == 1 else Call("and", local, "BOOLEAN"))
    return Sieve(tuple(dict.fromkeys(conditions)), plan.settings)


def _layers_of(plan: Plan) -> Iterator[Plan]:
    yield plan
    for box in modules(plan.boxes):
        yield from _layers_of(box.plan)

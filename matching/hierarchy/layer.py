"""One layer of a hierarchy: the matches of the boxes' patterns and the events, merged, and a matcher over them.

A match of a box's pattern becomes a row with its interval, right after its last event; conditions on these rows say
what intervals mean (query.plan.boxes.over_rows).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from matching.batch import EventBatch, Matches
from matching.emitted import only
from matching.engines.buffered_runs import group
from matching.hierarchy.gaps import GapTest
from matching.hierarchy.members import distinct
from matching.hierarchy.merging import LayerReads, MergedRows
from matching.hierarchy.modules import Modules
from matching.kernels.flatten import flat_bounds, flatten
from matching.purpose import Purpose
from matching.state import as_array, pack, unpack
from matching.types import arrow_schema
from query.errors import DataError
from query.language.ast import RowsPerMatch
from query.plan.boxes import (
    gaps_apart,
    independent_of_before,
    kind_of,
    with_begin,
    with_interval,
)
from query.plan.expression import (
    TRUE,
    Call,
    Classifier,
    Expression,
    MatchNumber,
    conjuncts,
    is_row_local,
    walk,
)
from query.plan.fingerprint import fingerprint
from query.plan.lag import in_order_of_last_events
from query.plan.pattern import negated, variables
from query.plan.plan import Plan
from query.plan.plan import modules as patterns

#: Version of Layer.snapshot; restore refuses others.
STATE_VERSION = 2
#: The source of merged rows that are matches.
COMPLEX = "#pattern"
#: Most paths of events in one answer: Matches has indices of 16 bits.
PATHS_MAX = 2**15 - 1


class Layer:
    """Matcher of one pattern with boxes in a hierarchy; its events have the columns of an interval
    (matching.hierarchy.modules.Modules.begin). Its matches have all events of all layers as evidence, with the path of
    their variables: `V.X` is the X of the match that is V, `V[2].X` that of the second V.

    modules: the patterns of its boxes, which other layers may share. fingerprint: of the plan. since: complex events
    that begin before this position are not for it. stuck: always 0, since all matches are returned.
    """

    stuck = 0

    def __init__(
        self, plan: Plan, modules: Modules, sources: tuple[str, ...], purpose: Purpose, since: int = 0
    ) -> None:
        self.plan = plan
        self.sources = sources
        self.purpose = purpose
        self._all = modules
        self._since = since
        counted, boxes = modules.counted, patterns(plan.boxes)
        # evidence is that of all layers, or of none
        below = Purpose.ROWS if purpose is Purpose.ROWS else Purpose.MATCHES
        self.modules = [modules.of(with_interval(box.plan, counted), below) for box in boxes]
        upper, gaps = gaps_apart(plan, counted)
        self._gaps = [GapTest(gap, modules.make(gap.rows, Purpose.ROWS)) for gap in gaps]
        self._begins = modules.over is not None and _from_any_start(plan)
        if self._begins:
            upper = with_begin(upper)
        read = {*upper.columns, *(name for gap in gaps for name in gap.rows.columns)}
        fields = tuple(field for field in upper.schema.fields if field.name in read)
        self._arrow = arrow_schema(replace(upper.schema, fields=fields))
        every = (*variables(plan.pattern), *negated(plan.pattern))
        with_events = any(not kind_of(plan.boxes, name) for name in every)
        reader = LayerReads(tuple(self._arrow), _sieves(plan))
        self.merging = modules.merging(plan, boxes, self.modules, with_events, below, id(self), reader)
        member = None
        if self._begins:
            assert self.merging.uppers is not None
            member = self.merging.uppers.add(id(self), upper, purpose)
        self._member = member
        self._upper = modules.make(upper, purpose) if member is None else member.alone
        self._emitted_us: int | None = None  # merged rows to come have later times, or this one
        self._fingerprint = fingerprint(plan)
        self._empty = self._free(self._own(self._no_matches()))

    # ---- Matcher

    def push(self, batch: EventBatch) -> Matches:
        """See matching.batch.Matcher."""
        self.sources = batch.sources
        return self._emit(self.merging.step(self._all.step, batch, None), None)

    def advance(self, watermark_us: int | None) -> Matches:
        """See matching.batch.Matcher."""
        merged, lag_us = self.merging.step(self._all.step, None, watermark_us), self.merging.lag_us
        if watermark_us is None:
            return self._emit(merged, None, ended=True)
        return self._emit(merged, None if lag_us is None else watermark_us - lag_us)

    def snapshot(self) -> bytes:
        """Returns its state without that of the modules."""
        arrays: dict[str, np.ndarray] = {"upper": as_array(self._saved_upper())}
        for i, gap in enumerate(self._gaps):
            arrays |= {f"gap{i}.{name}": array for name, array in gap.snapshot().items()}
        head = {
            "version": STATE_VERSION, "plan": self._fingerprint, "sources": list(self.sources),
            "emitted_us": self._emitted_us, "since": self._since,
        }  # fmt: skip
        return pack(head, arrays)

    def fits(self, state: bytes) -> bool:
        """True if it can restore a snapshot: it is of the same plan."""
        head, arrays = unpack(state)
        same = (head.get("version"), head.get("plan")) == (STATE_VERSION, self._fingerprint)
        return same and self._upper.fits(arrays["upper"].tobytes())

    def restore(self, state: bytes) -> None:
        """Restores a snapshot of the same plan. Raises DataError for any other state."""
        head, arrays = unpack(state)
        if (head.get("version"), head.get("plan")) != (STATE_VERSION, self._fingerprint):
            raise DataError("this state belongs to another query or version", "start the query again")
        upper = arrays["upper"].tobytes()
        if self._member is not None and self._member.kernel is not None:
            self._member.kernel.restore_own(upper)
        else:
            self._upper.restore(upper)
        for i, gap in enumerate(self._gaps):
            gap.restore(group(f"gap{i}", arrays))
        self._emitted_us, self._since = head["emitted_us"], head["since"]
        self.sources = tuple(head["sources"])

    # ---- rows

    def _saved_upper(self) -> bytes:
        """Returns the state of the matcher; without its rows, if it shares them."""
        if self._member is not None and self._member.kernel is not None:
            return self._member.kernel.snapshot_own()
        return self._upper.snapshot()

    def _emit(self, merged: MergedRows | None, watermark_us: int | None, ended: bool = False) -> Matches:
        """Returns the matches of the next merged rows and of a watermark (None: none), or of the end."""
        batch = None if merged is None else self._batch(merged)
        reached_us = watermark_us if batch is None else int(batch.ts_us[-1])
        if watermark_us is not None and reached_us is not None:
            reached_us = max(reached_us, watermark_us)
        flat = [self._flat(self._free(self._own(found))) for found in self._found(batch, watermark_us, ended)]
        if reached_us is not None and (self._emitted_us is None or reached_us > self._emitted_us):
            self._emitted_us = reached_us
            self._forget()
        flat = [found for found in flat if len(found)]
        if len(flat) > 1:
            return _joined(flat)
        if not flat and self._empty.sources != self.sources:
            self._empty = replace(self._empty, sources=self.sources)
        return flat[0] if flat else self._empty

    def _batch(self, merged: MergedRows) -> EventBatch | None:
        """Returns merged rows for the matcher, None without any."""
        rows, order = merged
        if self._member is None:
            rows = rows.select(self._arrow.names)
            if self._since and (before := order["first"] < self._since).any():
                after = np.flatnonzero(~before)
                rows, order = rows.take(pa.array(after)), order[after]
        if not len(order):
            return None
        return EventBatch(
            rows, np.ascontiguousarray(order["last_us"]), np.ascontiguousarray(order["source"]),
            np.ascontiguousarray(order["offset"]), np.ascontiguousarray(order["seq"]), (COMPLEX, *self.sources),
        )  # fmt: skip

    def _found(self, batch: EventBatch | None, watermark_us: int | None, ended: bool) -> list[Matches]:
        """Returns the matches of merged rows that the next ones (None: there are none), a watermark or the end
        decide."""
        if batch is not None:
            for gap in self._gaps:
                gap.push(batch)
        advances = ended or watermark_us is not None
        if self._member is not None:
            assert self.merging.uppers is not None
            self.merging.uppers.step(self._all.step, batch, watermark_us, ended)
            if self._member.failure is not None:
                raise self._member.failure
            return self._member.take_found()
        found = [] if batch is None else [self._upper.push(batch)]
        return [*found, self._upper.advance(None if ended else watermark_us)] if advances else found

    def _no_matches(self) -> Matches:
        if self._member is not None and self._member.kernel is not None:
            return self._member.kernel.emit()
        none = np.zeros(0, np.int64)
        batch = EventBatch(_no_rows(self._arrow), none, np.zeros(0, np.int32), none, none, (COMPLEX, *self.sources))
        return self._upper.push(batch)

    def _own(self, matches: Matches) -> Matches:
        """Returns the matches that begin when they are for it, without the column that says so."""
        if not self._begins:
            return matches
        *own, begin = matches.rows.column_names
        found = replace(matches, rows=matches.rows.select(own))
        if not self._since:
            return found
        return only(found, np.flatnonzero(np.asarray(matches.rows.column(begin)) >= self._since))

    def _free(self, matches: Matches) -> Matches:
        """Returns the matches whose gaps are free, without the columns of gaps."""
        if not self._gaps:
            return matches
        violated = np.zeros(len(matches), np.bool_)
        for gap in self._gaps:
            violated |= gap.violated(matches.rows)
        own = matches.rows.column_names[: -2 * len(self._gaps)]
        return only(replace(matches, rows=matches.rows.select(own)), np.flatnonzero(~violated))

    def _forget(self) -> None:
        """Drops what no match to come can contain."""
        within_us = None if self.plan.within is None else self.plan.within.interval_us
        if within_us is None or self._emitted_us is None:
            return
        begin_us = self._emitted_us - within_us
        self.merging.forget(id(self), begin_us)
        for gap in self._gaps:
            gap.drop_before(begin_us)

    # ---- evidence

    def _flat(self, matches: Matches) -> Matches:
        """Returns matches of merged rows as matches of events."""
        if self.purpose is Purpose.ROWS or not len(matches):
            return replace(matches, sources=self.sources)
        members = self.merging.members
        # a variable may have several numbers
        own = list(dict.fromkeys(matches.variables))
        variable = np.array([own.index(name) for name in matches.variables], np.int64)[matches.event_variable]
        seen = np.zeros(len(own), np.int64)
        bounds, first, number = members.bounds, members.first, matches.event_offset
        event_bounds = np.empty(len(matches) + 1, np.int64)
        most = flat_bounds(
            matches.event_bounds, variable, matches.event_source, number, bounds, first, seen, event_bounds
        )
        n, paths = int(event_bounds[-1]), len(members.paths)
        key, offset, seq, ts_us = (np.empty(n, np.int64) for _ in range(4))
        source = np.empty(n, np.int32)
        flatten(
            matches.event_bounds, variable, matches.event_source, number, matches.event_seq, matches.event_ts_us,
            bounds, first, members.path, members.source, members.offset, members.seq, members.ts_us, seen, most, paths,
            key, source, offset, seq, ts_us,
        )  # fmt: skip
        kinds, code = distinct(key)
        if len(kinds) > PATHS_MAX:
            message = f"a match has more than {PATHS_MAX:,} events of different paths"
            raise DataError(message, "bound the repetitions of its boxes: V{1,100} for V+, or WITHIN")
        return replace(
            matches, first_us=ts_us[event_bounds[:-1]], last_us=ts_us[event_bounds[1:] - 1], event_bounds=event_bounds,
            event_variable=code.astype(np.int16), event_ts_us=ts_us, event_source=source, event_offset=offset,
            event_seq=seq, variables=tuple(self._path(kind, own, most) for kind in kinds.tolist()),
            sources=self.sources,
        )  # fmt: skip

    def _path(self, kind: int, own: Sequence[str], most: int) -> str:
        """Returns the path of events of one kind, see matching.kernels.flatten.flatten: that of their complex event's
        match behind its variable."""
        if kind < len(own):
            return own[kind]
        inner = self.merging.members.paths
        rest, p = divmod(kind - len(own), len(inner))
        v, k = divmod(rest, most)
        return f"{own[v]}{f'[{k + 1}]' if k else ''}.{inner[p]}"


def _sieves(plan: Plan) -> dict[int, tuple[Expression, ...]]:
    """Returns, by KIND, conditions of which each row meets one that can be in a match, or keep one from being one: all
    others need not be merged. There are none for a kind with a variable that takes any row, nor if the time of other
    rows tells when matches are decided."""
    if not in_order_of_last_events(replace(plan, boxes=())):
        return {}
    found: dict[int, list[Expression] | None] = {}
    for define in plan.defines:
        kind = kind_of(plan.boxes, define.variable)
        local = tuple(part for part in conjuncts(define.condition) if is_row_local(part) and part != TRUE)
        if not local or any(isinstance(e, Classifier | MatchNumber) for part in local for e in walk(part)):
            found[kind] = None
        elif (so_far := found.setdefault(kind, [])) is not None:
            so_far.append(local[0] if len(local) == 1 else Call("and", local, "BOOLEAN"))
    return {kind: tuple(conditions) for kind, conditions in found.items() if conditions is not None}


def _from_any_start(plan: Plan) -> bool:
    """True if the matches of a layer that begin from a position on are found by leaving out those that begin before."""
    return plan.rows is RowsPerMatch.ONE and independent_of_before(replace(plan, boxes=()))


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)


def _joined(parts: list[Matches]) -> Matches:
    """Returns the matches of both parts."""
    first, second = parts
    names = tuple(dict.fromkeys([*first.variables, *second.variables]))
    places = {name: i for i, name in enumerate(names)}
    recoded = [
        np.array([places[name] for name in part.variables] or [0], np.int16)[part.event_variable] for part in parts
    ]

    def both(name: str) -> np.ndarray:
        return np.concatenate([getattr(first, name), getattr(second, name)])

    return Matches(
        pa.concat_tables([first.rows, second.rows]),
        np.concatenate([first.row_match, second.row_match + len(first)]), both("number"), both("first_us"),
        both("last_us"), np.concatenate([first.event_bounds, first.event_bounds[-1] + second.event_bounds[1:]]),
        np.concatenate(recoded), both("event_ts_us"), both("event_source"), both("event_offset"), both("event_seq"),
        names, first.sources,
    )  # fmt: skip

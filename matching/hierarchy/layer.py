"""One layer of a hierarchy: the matches of the boxes' patterns and the events, merged, and a matcher over them.

A match of a box's pattern becomes a row with its interval, right after its last event; conditions on these rows say
what intervals mean (query.plan.boxes.over_rows).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from matching.batch import EventBatch, Int64Array, Matches
from matching.emitted import only
from matching.engines.buffered_runs import group
from matching.features import leaf_sql
from matching.hierarchy.counts import places_within
from matching.hierarchy.gaps import GapTest
from matching.hierarchy.members import distinct
from matching.hierarchy.merging import ORDER, LayerReads, MergedRows
from matching.hierarchy.module import joined
from matching.hierarchy.modules import Modules
from matching.purpose import Purpose
from matching.state import as_array, pack, unpack
from matching.types import arrow_schema
from query.errors import DataError
from query.plan.boxes import (
    gaps_apart,
    kind_of,
    with_interval,
)
from query.plan.expression import (
    TRUE,
    Classifier,
    Column,
    Expression,
    MatchNumber,
    conjuncts,
    is_row_local,
    to_sql,
    walk,
)
from query.plan.fingerprint import fingerprint
from query.plan.lag import in_order_of_last_events, last_event_lag_us
from query.plan.pattern import negated, variables
from query.plan.plan import Plan
from query.plan.plan import modules as patterns

#: Version of Layer.snapshot; restore refuses others.
STATE_VERSION = 1
#: The source of merged rows that are matches.
COMPLEX = "#pattern"
#: Least number of rows of which those are looked for that conditions can take: DuckDB does it, in some milliseconds, in
#: which fewer rows are merged.
SIEVED_MIN = 1 << 14
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
        self._upper = modules.make(upper, purpose)
        read = {*upper.columns, *(name for gap in gaps for name in gap.rows.columns)}
        fields = tuple(field for field in upper.schema.fields if field.name in read)
        self._arrow = arrow_schema(replace(upper.schema, fields=fields))
        every = (*variables(plan.pattern), *negated(plan.pattern))
        with_events = any(not kind_of(plan.boxes, name) for name in every)
        reader = LayerReads(tuple(self._arrow), _sieves(plan))
        self.merging = modules.merging(plan, boxes, self.modules, with_events, below, id(self), reader)
        self._lag_us = last_event_lag_us(plan)
        self._emitted_us: int | None = None  # merged rows to come have later times, or this one
        self._fingerprint = fingerprint(plan)

    # ---- Matcher

    def push(self, batch: EventBatch) -> Matches:
        """See matching.batch.Matcher."""
        self.sources = batch.sources
        merged, lag_us = self.merging.step(self._all.step, batch, None), self.merging.lag_us
        # layers above wait for this one as long as for its time, which goes on with events that it does not read, too
        reached = self._lag_us and lag_us is not None and len(batch)
        return self._emit(merged, int(batch.ts_us[-1]) - lag_us if reached and lag_us is not None else None)

    def advance(self, watermark_us: int | None) -> Matches:
        """See matching.batch.Matcher."""
        merged, lag_us = self.merging.step(self._all.step, None, watermark_us), self.merging.lag_us
        if watermark_us is None:
            return self._emit(merged, None, ended=True)
        return self._emit(merged, None if lag_us is None else watermark_us - lag_us)

    def snapshot(self) -> bytes:
        """Returns its state without that of the modules."""
        arrays: dict[str, np.ndarray] = {"upper": as_array(self._upper.snapshot())}
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
        self._upper.restore(arrays["upper"].tobytes())
        for i, gap in enumerate(self._gaps):
            gap.restore(group(f"gap{i}", arrays))
        self._emitted_us, self._since = head["emitted_us"], head["since"]
        self.sources = tuple(head["sources"])

    # ---- rows

    def _emit(self, merged: MergedRows | None, watermark_us: int | None, ended: bool = False) -> Matches:
        """Returns the matches of the next merged rows and of a watermark (None: none), or of the end."""
        if merged is None:
            columns, order = _nothing(self._arrow), np.zeros(0, ORDER)
        else:
            columns, order = merged.rows.select(self._arrow.names), merged.order
        if self._since and len(order) and (before := order["first"] < self._since).any():
            after = np.flatnonzero(~before)
            columns, order = columns.take(pa.array(after)), order[after]
        batch = EventBatch(
            columns, np.ascontiguousarray(order["last_us"]), np.ascontiguousarray(order["source"]),
            np.ascontiguousarray(order["offset"]), np.ascontiguousarray(order["seq"]), (COMPLEX, *self.sources),
        )  # fmt: skip
        reached = [int(order["last_us"][-1])] if len(order) else []
        reached += [watermark_us] if watermark_us is not None else []
        if reached and (self._emitted_us is None or max(reached) > self._emitted_us):
            self._emitted_us = max(reached)
        for gap in self._gaps:
            gap.push(batch)
        found = [self._upper.push(batch)]
        if ended or watermark_us is not None:
            found.append(self._upper.advance(None if ended else watermark_us))
        flat = [self._flat(self._free(matches)) for matches in found]
        self._forget()
        return flat[0] if len(flat) == 1 or not len(flat[1]) else flat[1] if not len(flat[0]) else joined(flat)

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
        complex_ = matches.event_source == 0
        own = np.array([members.place(name) for name in matches.variables] or [0], np.int32)[matches.event_variable]
        of_match = np.repeat(np.arange(len(matches)), np.diff(matches.event_bounds))
        at, bounds = members.of(matches.event_offset[complex_])
        lengths = np.ones(len(own), np.int64)
        lengths[complex_] = np.diff(bounds)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        total = int(starts[-1])
        inner = np.repeat(complex_, lengths)  # events of complex events
        nth = self._nth(of_match, own, complex_)

        def flat(plain: np.ndarray, of_members: np.ndarray) -> np.ndarray:
            out = np.zeros(total, plain.dtype)
            out[~inner] = plain[~complex_]
            out[inner] = of_members[at]
            return out

        path = self._paths(flat(own, members.path), np.repeat(own, lengths), np.repeat(nth, lengths), inner)
        names, code = distinct(path)
        if len(names) > PATHS_MAX:
            message = f"a match has more than {PATHS_MAX:,} events of different paths"
            raise DataError(message, "bound the repetitions of its boxes: V{1,100} for V+, or WITHIN")
        event_bounds = np.concatenate([[0], np.cumsum(np.bincount(of_match, lengths, len(matches)))]).astype(np.int64)
        ts_us = flat(matches.event_ts_us, members.ts_us)
        found = replace(
            matches, first_us=ts_us[event_bounds[:-1]], last_us=ts_us[event_bounds[1:] - 1], event_bounds=event_bounds,
            event_variable=code.astype(np.int16), event_ts_us=ts_us,
            event_source=flat(matches.event_source - 1, members.source).astype(np.int32),
            event_offset=flat(matches.event_offset, members.offset), event_seq=flat(matches.event_seq, members.seq),
            variables=tuple(members.paths[i] for i in names), sources=self.sources,
        )  # fmt: skip
        return found

    def _nth(self, of_match: Int64Array, variable: np.ndarray, complex_: np.ndarray) -> Int64Array:
        """Returns, for each complex event of a match, how many of its variable precede it there."""
        nth = places_within(of_match * (int(variable.max(initial=0)) + 1) + variable)
        nth[~complex_] = 0
        return nth

    def _paths(self, path: np.ndarray, outer: np.ndarray, nth: Int64Array, inner: np.ndarray) -> np.ndarray:
        """Returns the paths of events as indices: those of a complex event's match, behind its variable."""
        members = self.merging.members
        out = path.copy()
        if not inner.any():
            return out
        of_path, times = int(path.max()) + 1, int(nth.max()) + 1
        key = (outer[inner].astype(np.int64) * times + nth[inner]) * of_path + path[inner]
        kinds, code = distinct(key)
        names, made = members.paths, np.zeros(len(kinds), np.int32)
        for i, kind in enumerate(kinds.tolist()):
            rest, p = divmod(kind, of_path)
            v, k = divmod(rest, times)
            made[i] = members.place(f"{names[v]}{f'[{k + 1}]' if k else ''}.{names[p]}")
        out[inner] = made[code]
        return out


def _sieves(plan: Plan) -> dict[int, str]:
    """Returns, by KIND, an SQL condition that each row meets which can be in a match, or keep one from being one: all
    others need not be merged. There is none for a kind with a variable that takes any row, nor if the time of other
    rows tells when matches are decided."""
    if not in_order_of_last_events(replace(plan, boxes=())):
        return {}
    found: dict[int, list[str] | None] = {}
    for define in plan.defines:
        kind = kind_of(plan.boxes, define.variable)
        local = [part for part in conjuncts(define.condition) if is_row_local(part) and part != TRUE]
        if not local or any(isinstance(e, Classifier | MatchNumber) for part in local for e in walk(part)):
            found[kind] = None
            continue
        columns = (e for part in local for e in walk(part) if isinstance(e, Column))
        leaves: dict[Expression, str] = {e: leaf_sql(e.name, e.type) for e in columns}
        texts = (to_sql(part, leaves) for part in local)
        # where a condition cannot be computed the matcher decides whether it is read
        met = (f"coalesce(TRY({text}), TRY(({text}) IS NULL) IS NULL)" for text in texts)
        so_far = found.setdefault(kind, [])
        if so_far is not None:
            so_far.append(f"({' AND '.join(met)})")
    return {kind: " OR ".join(texts) for kind, texts in found.items() if texts is not None}


def _nothing(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)

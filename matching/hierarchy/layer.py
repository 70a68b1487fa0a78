"""One layer of a hierarchy: the matches of the boxes' patterns and the events, merged, and a matcher over them.

A match of a box's pattern becomes a row with its interval, right after its last event; conditions on these rows say
what intervals mean (query.plan.boxes.over_rows).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from matching.batch import EventBatch, Int64Array, Matcher, Matches
from matching.emitted import only
from matching.engines.buffered_runs import group
from matching.features import leaf_sql
from matching.hierarchy.counts import places_within
from matching.hierarchy.gaps import GapTest
from matching.hierarchy.held import Awaited, bare, joined, of_matches
from matching.hierarchy.members import DROPPED_MIN, distinct
from matching.hierarchy.merging import ORDER, LayerReads, MergedRows
from matching.hierarchy.modules import Modules
from matching.hierarchy.skipping import Skipping
from matching.purpose import Purpose
from matching.state import as_array, pack, unpack
from matching.types import arrow_schema
from query.errors import DataError
from query.language.ast import AfterMatchKind
from query.plan.boxes import (
    CountedEvents,
    Gap,
    GapPlace,
    decides_apart,
    gaps_apart,
    kind_of,
    skip_columns,
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
from query.plan.output import front_columns, output_columns
from query.plan.pattern import negated, variables
from query.plan.plan import AfterMatch, Plan
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


@runtime_checkable
class RowKeeper(Protocol):
    """A matcher whose state another plan may take over, and that tells which rows it needs; see
    matching.matcher.KernelMatcher."""

    def successor(
        self, plan: Plan, read: Callable[[int, int], EventBatch], purpose: Purpose
    ) -> Matcher | None: ...  # fmt: skip

    def least_offset(self, source: int) -> int | None: ...


class Layer:
    """Matcher of one pattern with boxes in a hierarchy; its events have the columns of an interval
    (matching.hierarchy.modules.Modules.begin). Its matches have all events of all layers as evidence, with the path of
    their variables: `V.X` is the X of the match that is V, `V[2].X` that of the second V.

    modules: the patterns of its boxes, which other layers may share. fingerprint: of the plan. since: complex events
    that begin before this position are not for it. stuck: see matching.batch.Matcher.
    """

    def __init__(
        self, plan: Plan, modules: Modules, sources: tuple[str, ...], purpose: Purpose, since: int = 0
    ) -> None:
        self.plan = plan
        self.sources = sources
        self.purpose = purpose
        self._all = modules
        self.since = since
        counted, boxes = modules.counted, patterns(plan.boxes)
        # evidence is that of all layers, or of none
        below = Purpose.ROWS if purpose is Purpose.ROWS else Purpose.MATCHES
        self.modules = [modules.of(with_interval(box.plan, counted), below, box.name) for box in boxes]
        self._skipping = Skipping(plan, modules.lenient) if decides_apart(plan) else None
        upper, gaps = _plain(plan, counted)
        self._gaps = [GapTest(gap, modules.make(gap.rows, Purpose.ROWS)) for gap in gaps]
        ends = [gap for gap in self._gaps if gap.gap.place is GapPlace.END]
        self._awaited = Awaited(ends) if ends else None
        names = [column.name for column in output_columns(upper)]
        measured = len(front_columns(plan)) + len(plan.measures)
        behind = [column.name for column in output_columns(plan)[measured:]]
        #: the output columns among those of the plain pattern
        self._shown = [*range(measured), *(names.index(name, measured) for name in behind)]
        searched = purpose if self._skipping is None or purpose.live else Purpose.MATCHES
        self._upper: Matcher = modules.make(upper, searched)
        read = {*upper.columns, *(name for gap in gaps for name in gap.rows.columns)}
        fields = tuple(field for field in upper.schema.fields if field.name in read)
        self._arrow = arrow_schema(replace(upper.schema, fields=fields))
        every = (*variables(plan.pattern), *negated(plan.pattern))
        with_events = any(not kind_of(plan.boxes, name) for name in every)
        reader = LayerReads(tuple(self._arrow), _sieves(plan))
        self.merging = modules.merging(plan, boxes, self.modules, with_events, below, id(self), reader)
        self._lag_us = last_event_lag_us(plan)
        self._count = 0  # merged rows so far
        self._lag_us = last_event_lag_us(plan)
        self._emitted_us: int | None = None  # merged rows to come have later times, or this one
        self._forget_at = DROPPED_MIN  # number of events of matches at which those are looked for that nothing needs
        self._fingerprint = fingerprint(plan)

    @property
    def own(self) -> list[Matcher]:
        """Returns the matchers of its merged rows."""
        return [self._upper, *(gap.matcher for gap in self._gaps)]

    def successor(self, plan: Plan, purpose: Purpose) -> Layer | None:
        """Returns a layer of another plan that continues with the whole state of this one, which is unusable then.
        Returns None if they do not search for the same, in the same merged rows, or if new measures read columns that
        are not kept; what reads the modules is to be tidied up then (Modules.keep_only)."""
        decides_later = self._awaited is not None or self._skipping is not None
        same = not decides_later and _merged_rows_of(plan) == _merged_rows_of(self.plan)
        if not same or not isinstance(self._upper, RowKeeper):
            return None
        new = Layer(plan, self._all, self.sources, purpose, self.since)
        upper, apart = _plain(plan, self._all.counted)
        same = new.merging is self.merging and list(apart) == [gap.gap for gap in self._gaps]
        kernel = self._upper.successor(upper, _not_kept, purpose) if same else None
        if kernel is None:
            return None
        new._upper, new._gaps, new._emitted_us = kernel, self._gaps, self._emitted_us
        new._count = self._count
        return new

    # ---- Matcher

    @property
    def stuck(self) -> int:
        return 0 if self._skipping is None else self._skipping.stuck

    def push(self, batch: EventBatch) -> Matches:
        """See matching.batch.Matcher."""
        self.sources = batch.sources
        merged, lag_us = self.merging.step(self._all.step, batch, None), self.merging.lag_us
        reached_us = int(batch.ts_us[-1]) - lag_us if len(batch) and lag_us is not None else None
        # layers above wait for this one as long as for its time, which goes on with all events, of other keys, too
        return self._emit(merged, reached_us if self._lag_us else None, reached_us)

    def advance(self, watermark_us: int | None) -> Matches:
        """See matching.batch.Matcher."""
        merged, lag_us = self.merging.step(self._all.step, None, watermark_us), self.merging.lag_us
        if watermark_us is None:
            return self._emit(merged, None, None, ended=True)
        reached_us = None if lag_us is None else watermark_us - lag_us
        return self._emit(merged, reached_us, reached_us)

    def snapshot(self) -> bytes:
        """Returns its state without that of the modules."""
        arrays: dict[str, np.ndarray] = {"upper": as_array(self._upper.snapshot())}
        for i, gap in enumerate(self._gaps):
            arrays |= {f"gap{i}.{name}": array for name, array in gap.snapshot().items()}
        head = {
            "version": STATE_VERSION, "plan": self._fingerprint, "sources": list(self.sources),
            "emitted_us": self._emitted_us, "since": self.since, "count": self._count,
        }  # fmt: skip
        if self._awaited is not None:
            arrays |= {f"awaited.{name}": array for name, array in self._awaited.snapshot().items()}
        if self._skipping is not None:
            arrays |= {f"skipping.{name}": array for name, array in self._skipping.snapshot().items()}
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
        self._emitted_us, self.since = head["emitted_us"], head["since"]
        self._count = head.get("count", 0)
        self.sources = tuple(head["sources"])
        if self._awaited is not None:
            self._awaited.restore(group("awaited", arrays))
        if self._skipping is not None:
            self._skipping.restore(group("skipping", arrays))

    # ---- rows

    def _batch(self, merged: MergedRows | None) -> EventBatch:
        """Returns merged rows as the events of the plain pattern."""
        if merged is None:
            columns, order = _nothing(self._arrow), np.zeros(0, ORDER)
        else:
            columns, order = merged.rows.select(self._arrow.names), merged.order
        if self.since and len(order) and (before := order["first"] < self.since).any():
            after = np.flatnonzero(~before)
            columns, order = columns.take(pa.array(after)), order[after]
        # of matches their place in the order, as they have no ingest sequence
        seq = np.where(order["complex"] > 0, self._count + np.arange(len(order)), order["seq"])
        self._count += len(order)
        return EventBatch(
            columns, np.ascontiguousarray(order["last_us"]), np.ascontiguousarray(order["source"]),
            np.ascontiguousarray(order["offset"]), seq, (COMPLEX, *self.sources),
        )  # fmt: skip

    def _emit(
        self, merged: MergedRows | None, watermark_us: int | None, reached_us: int | None, ended: bool = False
    ) -> Matches:
        """Returns the matches of the next merged rows and of a watermark (None: none), or of the end. reached_us: no
        merged row with a lower time can still come."""
        batch = self._batch(merged)
        reached = [int(batch.ts_us[-1])] if len(batch) else []
        reached += [reached_us] if reached_us is not None else []
        if reached and (self._emitted_us is None or max(reached) > self._emitted_us):
            self._emitted_us = max(reached)
        for gap in self._gaps:
            gap.push(batch)
        found = [self._upper.push(batch)]
        if ended or watermark_us is not None:
            found.append(self._upper.advance(None if ended else watermark_us))
        free = [self._free(matches) for matches in found]
        flat = [self._flat(matches) for matches in free]
        none, pairs = flat[0], list(zip(free, flat, strict=True))
        if self._awaited is not None:
            pairs = self._awaited.step(pairs, self._emitted_us, ended)
        if self._skipping is None:
            flat = [events for _, events in pairs]
        else:
            flat = self._skipping.step(pairs, self._emitted_us, ended)
        flat = flat or [only(none, np.zeros(0, np.int64))]
        self._forget()
        some = [matches for matches in flat if len(matches)]
        out = flat[0] if not some else some[0] if len(some) == 1 else joined(some)
        return replace(out, rows=out.rows.select(self._shown))

    def _free(self, matches: Matches) -> Matches:
        """Returns the matches whose gaps are free."""
        violated = np.zeros(len(matches), np.bool_)
        for gap in self._gaps:
            if gap.gap.place is not GapPlace.END:
                violated |= gap.violated(of_matches(matches))
        return only(matches, np.flatnonzero(~violated))

    def _forget(self) -> None:
        """Drops what no match to come can contain."""
        within_us = None if self.plan.within is None else self.plan.within.interval_us
        if self._emitted_us is None:
            return
        if within_us is None:
            members = self.merging.members
            if isinstance(self._upper, RowKeeper) and members.events >= self._forget_at:
                until_us = members.until_us(self._upper.least_offset(0))
                self.merging.forget(id(self), self._emitted_us if until_us is None else min(until_us, self._emitted_us))
                self._forget_at = max(DROPPED_MIN, 2 * members.events)
            return
        begin_us = self._emitted_us - within_us
        self.merging.forget(id(self), begin_us)
        for gap in self._gaps:
            gap.drop_before(begin_us)

    # ---- evidence

    def _flat(self, matches: Matches) -> Matches:
        """Returns matches of merged rows as matches of events."""
        if self.purpose is Purpose.ROWS:
            return replace(matches, sources=self.sources) if self._skipping is None else bare(matches, self.sources)
        if not len(matches):
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
    if not in_order_of_last_events(replace(plan, boxes=(), after=AfterMatch(AfterMatchKind.NO_SKIP))):
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


def _plain(plan: Plan, counted: tuple[CountedEvents, ...]) -> tuple[Plan, tuple[Gap, ...]]:
    """Returns the plain pattern over merged rows, with what AFTER MATCH needs, and its gaps."""
    return gaps_apart(replace(plan, measures=(*plan.measures, *skip_columns(plan))), counted)


def _merged_rows_of(plan: Plan) -> tuple[object, ...]:
    """Returns what the merged rows of a pattern depend on, but for the columns that it reads."""
    boxes = [(box.variable, box.name, fingerprint(box.plan), box.columns) for box in plan.boxes]
    return plan.schema, plan.reads, plan.partition_by, plan.order_by, plan.settings, boxes


def _not_kept(low_us: int, high_us: int) -> EventBatch:
    """Returns no rows: merged rows are not read again."""
    none = np.zeros(0, np.int64)
    return EventBatch(_nothing(pa.schema([])), none, none.astype(np.int32), none, none)


def _nothing(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)

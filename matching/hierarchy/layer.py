"""One layer of a hierarchy: the matches of the boxes' patterns and the events, merged, and a matcher over them.

A match of a box's pattern becomes a row with its interval, right after its last event; conditions on these rows say
what intervals mean (query.plan.boxes.over_rows).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from matching.batch import EventBatch, Matcher, Matches
from matching.drive import NotesUnfit, UnfitMatch, before_failure, failed_at, unfit_of
from matching.emitted import only
from matching.engines.buffered_runs import group
from matching.hierarchy.gaps import GapTest
from matching.hierarchy.held import Awaited, Pair, bare, joined, of_matches
from matching.hierarchy.members import DROPPED_MIN, distinct
from matching.hierarchy.merging import LayerReads, MergedRows, at_release
from matching.hierarchy.modules import Modules
from matching.hierarchy.skipping import Skipping
from matching.hierarchy.uppers import Uppers
from matching.kernels.flatten import flat_bounds, flatten
from matching.purpose import Purpose
from matching.state import as_array, pack, unpack
from matching.types import arrow_schema
from query.errors import DataError
from query.language.ast import AfterMatchKind, RowsPerMatch
from query.plan.boxes import (
    FIRST,
    CountedEvents,
    Gap,
    GapPlace,
    decides_apart,
    gaps_apart,
    independent_of_before,
    kind_of,
    reads_before,
    skip_columns,
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
from query.plan.lag import in_order_of_last_events, last_event_lag_us
from query.plan.output import front_columns, output_columns
from query.plan.pattern import negated, variables
from query.plan.plan import AfterMatch, Plan
from query.plan.plan import modules as patterns

#: Version of Layer.snapshot; restore refuses others.
STATE_VERSION = 2
#: The source of merged rows that are matches.
COMPLEX = "#pattern"
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
        shares = modules.over is not None and _from_any_start(plan, upper)
        read = {*upper.columns, *(name for gap in gaps for name in gap.rows.columns)}
        read |= {FIRST.name} if shares else set()
        fields = tuple(field for field in upper.schema.fields if field.name in read)
        self._arrow = arrow_schema(replace(upper.schema, fields=fields))
        every = (*variables(plan.pattern), *negated(plan.pattern))
        with_events = reads_before(plan) or any(not kind_of(plan.boxes, name) for name in every)
        reader = LayerReads(tuple(self._arrow), _sieves(plan))
        self.merging = modules.merging(plan, boxes, self.modules, with_events, below, id(self), reader)
        self._lag_us = last_event_lag_us(plan)
        self._plain = upper
        self._searched = purpose if self._skipping is None or purpose.live else Purpose.MATCHES
        #: the matchers that its own shares rows with
        self._uppers: Uppers | None = self.merging.uppers if shares else None
        self._notes_unfit = False
        self._begin_at(since)
        self._emitted_us: int | None = None  # merged rows to come have later times, or this one
        #: number of events of matches at which those are looked for that nothing needs; None: to be set after a step
        self._forget_at: int | None = DROPPED_MIN
        self._fingerprint = fingerprint(plan)
        #: the position of the event at which it has failed, and the time that it had reached, if that is known
        self.failed_position: int | None = None
        self.failed_us: int | None = None
        self._failure: Exception | None = None  # of its own matcher
        self._before_failure: Matches | None = None
        self._names: dict[tuple[object, ...], tuple[str, ...]] = {}  # the paths of the kinds of events last shown
        self._empty = self._own_columns(self._flat(self._free(self._own(self._no_matches()))))

    def _begin_at(self, since: int) -> None:
        """Makes the matcher of its merged rows. One that shares rows tells where matches begin if some are not for it:
        those that begin before `since`."""
        self.since = since
        self._begins = self._uppers is not None and since > 0
        upper = self._to_search(self._plain)
        shared = None
        if self._uppers is not None:
            shared = self._uppers.add(id(self), upper, self._searched, bool(self._lag_us))
            self._uppers = None if shared is None else self._uppers
        self._upper: Matcher = self._all.make(upper, self._searched) if shared is None else shared
        self.notes_unfit = self._notes_unfit

    @property
    def notes_unfit(self) -> bool:
        """See matching.drive.NotesUnfit."""
        return self._notes_unfit

    @notes_unfit.setter
    def notes_unfit(self, notes: bool) -> None:
        self._notes_unfit = notes
        if isinstance(self._upper, NotesUnfit):
            self._upper.notes_unfit = notes

    @property
    def unfit(self) -> UnfitMatch | None:
        return unfit_of(self._upper)

    @property
    def unfit_us(self) -> int | None:
        """Returns the time of the last event of the match of its own that has a measure which cannot be computed."""
        found: int | None = getattr(self._upper, "unfit_us", None)
        return found

    def _to_search(self, upper: Plan) -> Plan:
        return with_begin(upper) if self._begins else upper

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
        if not same or (new._uppers is None) != (self._uppers is None):
            return None
        if self._uppers is None:
            kernel = self._upper.successor(self._to_search(upper), _not_kept, purpose)
        else:
            kernel = self._uppers.succeed(id(self), id(new), self._to_search(upper), _not_kept, purpose)
        if kernel is None:
            return None
        new._upper, new._gaps, new._emitted_us = kernel, self._gaps, self._emitted_us
        return new

    # ---- Matcher

    @property
    def stuck(self) -> int:
        return 0 if self._skipping is None else self._skipping.stuck

    def push(self, batch: EventBatch) -> Matches:
        """See matching.batch.Matcher."""
        self.sources = batch.sources
        merged, lag_us = self.merging.step(self._all.step, batch, None), self.merging.lag_us
        time_us = int(batch.ts_us[-1]) if len(batch) else None
        if self.merging.failure is not None:  # time goes on to the event at which a module has failed
            time_us = self.merging.failed_us
        reached_us = None if time_us is None or lag_us is None else time_us - lag_us
        # layers above wait for this one as long as for its time, which goes on with all events, of other keys, too
        waits = self._lag_us if self._uppers is None else self._uppers.waits
        found = self._emit(merged, reached_us if waits else None, reached_us)
        return self._or_raise(found, merged, batch)

    def _or_raise(self, found: Matches, merged: MergedRows | None, batch: EventBatch | None) -> Matches:
        """Returns the matches of a step, or keeps them and raises its failure. merged, batch: its merged rows and
        events."""
        merging = self.merging
        failure = merging.failure if self._failure is None else self._failure
        if failure is None:
            return found
        self._before_failure = found
        if self._failure is None:
            self.failed_position, self.failed_us = merging.failed_position, merging.failed_us
        elif (row := getattr(self._upper, "failed_row", None)) is not None and merged is not None:
            (order,) = merged.order[(merged.order["source"] == row[0]) & (merged.order["offset"] == row[1])][:1]
            last, last_us = int(order["last"]), int(order["last_us"])
            self.failed_position, self.failed_us = at_release(last, last_us, merging.lag_us, batch)
        else:
            self.failed_us = failed_at(self._upper)
        raise failure

    def before_failure(self) -> list[Matches]:
        """Returns the matches that were decided before the event at which `push` has failed, if it is known."""
        return [] if self._before_failure is None else [self._before_failure]

    def advance(self, watermark_us: int | None) -> Matches:
        """See matching.batch.Matcher."""
        merged, lag_us = self.merging.step(self._all.step, None, watermark_us), self.merging.lag_us
        time_us, ended = watermark_us, watermark_us is None
        if self.merging.failure is not None:
            time_us, ended = self.merging.failed_us, False
        reached_us = None if time_us is None or lag_us is None else time_us - lag_us
        return self._or_raise(self._emit(merged, reached_us, reached_us, ended), merged, None)

    def snapshot(self) -> bytes:
        """Returns its state without that of the modules."""
        arrays: dict[str, np.ndarray] = {"upper": as_array(self._saved_upper())}
        for i, gap in enumerate(self._gaps):
            arrays |= {f"gap{i}.{name}": array for name, array in gap.snapshot().items()}
        head = {
            "version": STATE_VERSION, "plan": self._fingerprint, "sources": list(self.sources),
            "emitted_us": self._emitted_us, "since": self.since,
        }  # fmt: skip
        if self._awaited is not None:
            arrays |= {f"awaited.{name}": array for name, array in self._awaited.snapshot().items()}
        if self._skipping is not None:
            arrays |= {f"skipping.{name}": array for name, array in self._skipping.snapshot().items()}
        return pack(head, arrays)

    def fits(self, state: bytes) -> bool:
        """True if it can restore a snapshot: it is of the same plan."""
        head, arrays = unpack(state)
        if (head.get("version"), head.get("plan")) != (STATE_VERSION, self._fingerprint):
            return False
        self._go_on_from(head["since"])
        return self._upper.fits(arrays["upper"].tobytes())

    def restore(self, state: bytes) -> None:
        """Restores a snapshot of the same plan. Raises DataError for any other state."""
        head, arrays = unpack(state)
        if (head.get("version"), head.get("plan")) != (STATE_VERSION, self._fingerprint):
            raise DataError("this state belongs to another query or version", "start the query again")
        self._go_on_from(head["since"])
        upper = arrays["upper"].tobytes()
        if self._uppers is None:
            self._upper.restore(upper)
        else:
            self._uppers.restore_of(id(self), upper)
        for i, gap in enumerate(self._gaps):
            gap.restore(group(f"gap{i}", arrays))
        self._emitted_us = head["emitted_us"]
        self.sources = tuple(head["sources"])
        if self._awaited is not None:
            self._awaited.restore(group("awaited", arrays))
        if self._skipping is not None:
            self._skipping.restore(group("skipping", arrays))

    def _go_on_from(self, since: int) -> None:
        """Prepares for the state of a layer that has begun at a position."""
        if self._uppers is not None and (since > 0) != self._begins:
            self._begin_at(since)
        self.since = since

    # ---- rows

    def _saved_upper(self) -> bytes:
        """Returns the state of the matcher; without its rows, if it shares them."""
        return self._upper.snapshot() if self._uppers is None else self._uppers.snapshot_of(id(self))

    def _batch(self, merged: MergedRows) -> EventBatch | None:
        """Returns merged rows as the events of the plain pattern, None without any."""
        rows, order = merged
        if self._uppers is None:
            rows = rows.select(self._arrow.names)
            if self.since and (before := order["first"] < self.since).any():
                after = np.flatnonzero(~before)
                rows, order = rows.take(pa.array(after)), order[after]
        if not len(order):
            return None
        return EventBatch(
            rows, np.ascontiguousarray(order["last_us"]), np.ascontiguousarray(order["source"]),
            np.ascontiguousarray(order["offset"]), np.ascontiguousarray(order["seq"]), (COMPLEX, *self.sources),
        )  # fmt: skip

    def _emit(
        self, merged: MergedRows | None, watermark_us: int | None, reached_us: int | None, ended: bool = False
    ) -> Matches:
        """Returns the matches of the next merged rows and of a watermark (None: none), or of the end. reached_us: no
        merged row with a lower time can still come."""
        batch = None if merged is None else self._batch(merged)
        if self._failure is not None:
            raise self._failure
        decided = self._found(batch, watermark_us, ended)
        if self._failure is not None:  # set by the line before
            reached_us = failed_at(self._upper)
            if reached_us is None and (self._awaited is not None or self._skipping is not None):
                reached_us = self.unfit_us  # all matches come with their last rows
        elif batch is not None:
            last_us = int(batch.ts_us[-1])
            reached_us = last_us if reached_us is None else max(last_us, reached_us)
        goes_on = reached_us is not None and (self._emitted_us is None or reached_us > self._emitted_us)
        self._emitted_us = reached_us if goes_on else self._emitted_us
        pairs: list[Pair] = []
        for matches in decided:
            free = self._free(self._own(matches))
            if len(free):
                pairs.append((free, self._flat(free)))
        if self._awaited is not None:
            pairs = self._awaited.step(pairs, self._emitted_us, ended)
        if self._skipping is None:
            found = [events for _, events in pairs]
        else:
            found = self._skipping.step(pairs, self._emitted_us, ended)
        if goes_on:
            self._forget()
        found = [matches for matches in found if len(matches)]
        if found:
            return self._own_columns(joined(found))
        if self._empty.sources != self.sources:
            self._empty = replace(self._empty, sources=self.sources)
        return self._empty

    def _found(self, batch: EventBatch | None, watermark_us: int | None, ended: bool) -> list[Matches]:
        """Returns the matches of merged rows that the next ones (None: there are none), a watermark or the end
        decide, up to a failure."""
        if batch is not None:
            for gap in self._gaps:
                gap.push(batch)
        if self._uppers is not None:
            shared = self._uppers.step(id(self), self._all.step, batch, watermark_us, ended)
            self._failure = self._uppers.failure(id(self))
            return shared
        found: list[Matches] = []
        try:
            if batch is not None:
                found.append(self._upper.push(batch))
            if ended or watermark_us is not None:
                found.append(self._upper.advance(None if ended else watermark_us))
        except Exception as error:  # noqa: BLE001  (raised with the matches before it known)
            self._failure = error
            found += before_failure(self._upper)
        return found

    def _no_matches(self) -> Matches:
        if self._uppers is not None:
            return self._uppers.none(id(self))
        none = np.zeros(0, np.int64)
        batch = EventBatch(_no_rows(self._arrow), none, np.zeros(0, np.int32), none, none, (COMPLEX, *self.sources))
        return self._upper.push(batch)

    def _own(self, matches: Matches) -> Matches:
        """Returns the matches that begin when they are for it, without the column that says so."""
        if not self._begins:
            return matches
        *own, begin = matches.rows.column_names
        found = replace(matches, rows=matches.rows.select(own))
        return only(found, np.flatnonzero(np.asarray(matches.rows.column(begin)) >= self.since))

    def _own_columns(self, matches: Matches) -> Matches:
        """Returns matches without the columns by which they were decided."""
        if len(self._shown) == matches.rows.num_columns:
            return matches
        return replace(matches, rows=matches.rows.select(self._shown))

    def _free(self, matches: Matches) -> Matches:
        """Returns the matches whose gaps are free."""
        if not self._gaps:
            return matches
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
            if self._forget_at is None:
                self._forget_at = max(DROPPED_MIN, 2 * members.events)
            if isinstance(self._upper, RowKeeper) and members.events >= self._forget_at:
                until_us = members.until_us(self._upper.least_offset(0))
                self.merging.forget(id(self), self._emitted_us if until_us is None else min(until_us, self._emitted_us))
                self._forget_at = None
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
        of_kinds = kinds.tobytes(), matches.variables, most, paths
        names = self._names.get(of_kinds)
        if names is None:
            self._names = {of_kinds: tuple(self._path(kind, own, most) for kind in kinds.tolist())}
            names = self._names[of_kinds]
        if len(kinds) > PATHS_MAX:
            message = f"a match has more than {PATHS_MAX:,} events of different paths"
            raise DataError(message, "bound the repetitions of its boxes: V{1,100} for V+, or WITHIN")
        return replace(
            matches, first_us=ts_us[event_bounds[:-1]], last_us=ts_us[event_bounds[1:] - 1], event_bounds=event_bounds,
            event_variable=code.astype(np.int16), event_ts_us=ts_us, event_source=source, event_offset=offset,
            event_seq=seq, variables=names, sources=self.sources,
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
    others need not be merged. There are none for a kind with a variable that takes any row, nor if PREV reads others or
    their time tells when matches are decided."""
    alone = replace(plan, boxes=(), after=AfterMatch(AfterMatchKind.NO_SKIP))
    if reads_before(plan) or not in_order_of_last_events(alone):
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


def _from_any_start(plan: Plan, upper: Plan) -> bool:
    """True if the matches that begin from a position on are found by leaving out those of the plain pattern that begin
    before. AFTER MATCH is no obstacle if it is decided behind the plain pattern, of the matches that are left."""
    return plan.rows is RowsPerMatch.ONE and independent_of_before(replace(plan, boxes=(), after=upper.after))


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
    return EventBatch(_no_rows(pa.schema([])), none, none.astype(np.int32), none, none)


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)

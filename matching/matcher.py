"""The Matcher: takes rows and returns matches, through the chosen engine, or the reference if there is none.

Long: KernelMatcher is a `Matcher` and a `Tenant`; most of its methods only call the rows, the engine or the measures.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from matching.answers import Answers
from matching.batch import Ends, EventBatch, Int64Array, Matcher, Matches
from matching.decode import Decode
from matching.drive import UnfitMatch, first_unfit
from matching.emitted import ends_of, found_by, found_of, groups_of, matches_of_rows, matches_of_windows
from matching.engines.buffered_runs import group
from matching.engines.choose import AFTER_FAILURE, after_failure, choose_engine, only_met_decide
from matching.engines.engine import (
    NONE_BAD,
    Arrays,
    Builder,
    ClosedWindows,
    ConditionFailed,
    Engine,
    EnginePlan,
    OrderedEngine,
    OverBudget,
    Spillable,
    WantedRows,
    array_bytes,
    grouping,
    looking_up,
    ordered,
    specialisable,
    spillable,
    windowed,
)
from matching.engines.run_awaited import RunAwaited
from matching.engines.run_lists import RunLists
from matching.features import Codes, RowValues, columns_read, is_volatile, storable
from matching.identity import id_lanes, outcome_lanes
from matching.limits import not_moving_on, over_budget
from matching.match_numbers import MatchNumbers, Overlaps, deadlines, in_order
from matching.measures import Measures
from matching.program.opcodes import OpCode
from matching.program.program import Program
from matching.purpose import Purpose
from matching.records import Blocks, Coming, Leaving
from matching.row_tests import NO_ROWS, NOTHING, Looked, RowTests, Tested, first_failure, length
from matching.rows import KEYS_MIN, Attempt, Rows
from matching.spill import Spill, SpillStats
from matching.state import pack, read_array, saved_array, unpack, unpack_head
from matching.store import RowStore
from matching.tenant import Needs
from matching.types import arrow_schema, plain_type
from matching.unmatched import Unsettled
from matching.walked import KeptValues
from matching.window_parts import part_of
from query.errors import DataError, Overflows, warn
from query.language.ast import AfterMatchKind, RowsPerMatch
from query.plan.boxes import LAST
from query.plan.expression import MatchNumber, walk
from query.plan.fingerprint import fingerprint
from query.plan.output import has_others, output_columns
from query.plan.plan import Plan

if TYPE_CHECKING:
    from matching.hierarchy.modules import Join
from query.schema import Schema

#: Version of KernelMatcher.snapshot; restore refuses others.
STATE_VERSION = 6


def make_matcher(
    plan: Plan, sources: tuple[str, ...] = ("default",), lenient: bool = False, shared: list[Rows] | None = None,
    builder: Builder | None = None, purpose: Purpose = Purpose.MATCHES, spill: Spill | None = None,
    layers: bool = False, join: Join | None = None,
) -> Matcher:  # fmt: skip
    """Returns the matcher of a plan: over its engine, or with a HybridWarning over the reference (exact, slow) if it
    has none. sources: names that EventBatch.source indexes. lenient: after AFTER MATCH SKIP TO that would not move on,
    continues one row after the start of the match, with a HybridWarning the first time; otherwise it is an error.
    shared: rows of the same input that it may share, to which its own are added if none is suitable; pushes then go to
    these rows (see matching.feed). builder: makes a specialised kernel between batches; None: interpreted kernels only.
    spill: partial matches may leave memory, if they can (see KernelMatcher.spill). layers: a pattern with boxes runs as
    layers, even if one pattern is cheaper (matching.hierarchy.choice). join: of boxes joined with history
    (matching.hierarchy.modules.Modules)."""
    if plan.boxes and not layers and spill is None:  # one pattern keeps what is in progress in memory

        def make_layers() -> Matcher:
            return make_matcher(plan, sources, lenient, None, builder, purpose, spill, layers=True, join=join)

        one = _as_one_pattern(plan, sources, lenient, builder, purpose, make_layers)
        if one is not None:
            return one
    if plan.boxes:
        from matching.hierarchy.matcher import HierarchyMatcher

        def make(layer: Plan, use: Purpose) -> Matcher:
            return make_matcher(layer, sources, lenient, None, builder, use, spill)

        return HierarchyMatcher(plan, make, sources, purpose, join=join, lenient=lenient)
    chosen = choose_engine(plan, purpose)
    if chosen.program is None:
        from matching.by_reference import ReferenceMatcher

        instead = f"; {chosen.instead}" if chosen.instead else ""
        warn(f"{chosen.why} runs through the reference matcher: exact, but slow and with all rows in memory{instead}")
        if plan.trends is not None:
            from matching.trends_by_reference import ReferenceTrends

            return ReferenceTrends(plan, sources)
        return ReferenceMatcher(plan, sources, lenient)
    if chosen.resident is not None:
        spill = None
    rows = None
    if shared is not None:
        rows = next((r for r in shared if _may_share(plan, chosen, r, spill)), None)
    if rows is None:
        rows = _rows_for(plan, chosen, spill)
        if shared is not None:
            shared.append(rows)
    return KernelMatcher(plan, chosen, sources, lenient, rows, builder)


def _as_one_pattern(
    plan: Plan, sources: tuple[str, ...], lenient: bool, builder: Builder | None, purpose: Purpose,
    make_layers: Callable[[], Matcher],
) -> Matcher | None:  # fmt: skip
    """Returns the matcher of a pattern with boxes that runs as one plain pattern, None if it runs as layers.
    make_layers: returns the matcher of layers, which may take over."""
    from matching.hierarchy.choice import as_one
    from matching.hierarchy.flattened import FlattenedMatcher

    way = as_one(plan, purpose)
    if isinstance(way, str):
        return None

    def make_one(flat: Plan, chosen: EnginePlan) -> Matcher:
        assert chosen.program is not None
        rows = _rows_for(flat, chosen)
        return KernelMatcher(flat, chosen, sources, lenient, rows, builder)

    return FlattenedMatcher(plan, way, make_one, make_layers, sources)


def _rows_for(plan: Plan, chosen: EnginePlan, spill: Spill | None = None) -> Rows:
    """Returns rows for the matcher of a plan."""
    assert chosen.program is not None
    columns = (*plan.partition_by, *chosen.looked_up)
    after, grouped = chosen.program.reach.after, _has_grouped(chosen)
    return Rows(columns, after, spill, len(chosen.looked_up), grouped, chosen.program.numbered)


def _has_grouped(chosen: EnginePlan) -> bool:
    """True if rows have neighbours of other values of the columns that are looked up."""
    return bool(chosen.looked_up) and chosen.program is not None and chosen.program.reach.before > 0


def _may_share(plan: Plan, chosen: EnginePlan, rows: Rows, spill: Spill | None) -> bool:
    """True if the matcher of a plan may share rows with others. A later matcher does not see earlier rows; but
    held-back rows and the first row of a partition are not covered by that. Nor is the order of rows if they may leave
    memory and come back after later ones."""
    program = chosen.program
    assert program is not None
    if (rows.spilled is None) != (spill is None) or (spill is not None and rows.began and program.reach.before):
        return False
    if (rows.partition_by, rows.looked_up) != ((*plan.partition_by, *chosen.looked_up), len(chosen.looked_up)):
        return False
    if (rows.after, rows.grouped, rows.numbered) != (program.reach.after, _has_grouped(chosen), program.numbered):
        return False
    return not rows.began or not (program.reach.after or any(program.first_row))


#: By attribute of Decode, its tag in a state.
HELD_TAGS = {
    "bounds": "bounds", "start": "start", "partition": "partition", "number": "number", "outcome": "outcome",
    "waiting": "waiting", "rows": "rows", "variables": "variables", "ts": "ts", "source": "source",
    "offset": "offset", "seq": "seq",
}  # fmt: skip


class KernelMatcher:
    """Matcher over the engine of an EnginePlan. State is arrays. stuck: number of matches from which AFTER MATCH SKIP
    TO would not have moved on. With Purpose.ROWS matches have neither times nor events, and a match of which measures
    read little is never stored whole (matching.program.carried); if evidence is found again (Purpose.again), they have
    their ends instead. With COUNTS and GRAPH, push and advance return no matches."""

    def __init__(
        self, plan: Plan, chosen: EnginePlan, sources: tuple[str, ...] = ("default",), lenient: bool = False,
        rows: Rows | None = None, builder: Builder | None = None,
    ) -> None:  # fmt: skip
        """rows: shared with other matchers, which then push and advance together (see `wants`)."""
        program = chosen.program
        assert program is not None
        self.plan = plan
        self.program = program
        self._ranks_texts = program.ranks_texts
        self.sources = sources
        self.lenient = lenient
        self.stuck = 0
        self._builder = builder  # until its module is made
        self._special: Any = None  # its step
        self._by_runs = False  # rows come key by key
        self._rows = 0
        # measures of trends read their aggregates, not events
        of_events = plan if plan.trends is None else replace(plan, measures=(), trends=None, rows=RowsPerMatch.ONE)
        shown = [label.shown for label in program.labels]
        self.measures = Measures(of_events, program.variables, shown, program.extras.waiting)
        self._planned = chosen
        self._bare = chosen.purpose.bare
        self._run_by(chosen)
        self.codes = Codes(program.texts.values)
        self._answers = Answers(program, plan.settings) if program.asked else None
        self._kept = KeptValues(program) if program.kept else None
        self._kept_of_all = True  # rows that are in the store
        values = [*self._tests.local, *(f for f, _ in program.features)]
        self.values = RowValues(values, self.codes, plan.settings, plan.narrow)
        wanted = columns_read([*self.values.expressions, *self.measures.needs()])
        fields = {f.name: f for f in plan.schema.fields}
        numeric, other = {}, []
        for name in wanted:
            lane = storable(fields[name].type)
            if lane is None:
                other.append(name)
            else:
                numeric[name] = lane.floating
        schema = pa.schema([(name, plain_type(fields[name].type)) for name in wanted])
        reach = program.reach.before + program.reach.after + program.reach.ahead
        linked = reach > 0 or program.extras.unmatched or any(program.first_row)
        behind = max(program.reach.after, program.reach.ahead)
        keeps = linked or plan.trends is None
        self.needs = Needs(numeric, tuple(other), schema, linked, program.reach.before, behind, reach, keeps)
        self.floor = self.serial = 0
        self._looked: Looked | None = None  # between `wants` and `take`
        self.known: Sequence[np.ndarray] | None = None  # see `know`
        self._held: Decode | None = None  # decided matches that wait for rows that NEXT in their measures reads
        #: of what has failed: the rows that were not taken, and matches with a measure that cannot be computed
        self._untaken: Int64Array = NO_ROWS
        self._unfit: Decode | None = None
        #: see matching.drive.NotesUnfit
        self.notes_unfit = False
        self.unfit: UnfitMatch | None = None
        #: time of the last row of the match that has a measure which cannot be computed, if `before_failure` knows it
        self.unfit_us: int | None = None
        #: time of the row at which it has failed; None if it has not, or at no row
        self.failed_us: int | None = None
        self.rows = _rows_for(plan, chosen) if rows is None else rows
        self.rows.add(self)
        self.store, self.keys = self.rows.store, self.rows.keys
        found = chosen.purpose not in (Purpose.COUNTS, Purpose.GRAPH)
        alone = not reach or self.rows.grouped  # no later row of the partition reads an earlier one
        new_when_idle = found and alone and _is_new_when_idle(plan, program, bool(chosen.looked_up))
        self.forgets = bool(self.rows.partition_by) and new_when_idle
        #: where further columns divide the rows of a partition
        self._numbers: MatchNumbers | None = None
        if chosen.looked_up:
            read = any(isinstance(e, MatchNumber) for m in plan.measures for e in walk(m.expression))
            types = [plain_type(c.type) for c in plan.partition_by]
            self._numbers = MatchNumbers(types, None if read else KEYS_MIN)
        self._sorts = self._numbers is not None and bool(program.absence.behind)
        past = self._sorts and plan.after.kind is AfterMatchKind.PAST_LAST_ROW
        self._overlaps = Overlaps() if past else None
        #: bare matches that wait for the end of WITHIN come with what orders them
        self._waiting = chosen.purpose is Purpose.ROWS and bool(program.absence.behind) and not program.accept[0]
        self._told_us: int | None = None  # the time before which WITHIN is over, as the engine was told
        of_output = self.measures.schema if plan.trends is None else arrow_schema(Schema("", output_columns(plan)))
        self._empty = of_output.empty_table()
        self._specialise(0)

    def _run_by(self, chosen: EnginePlan, engine: Engine | None = None) -> None:
        """Switches to an engine, a new one unless given, and to the mask bits that it reads."""
        program = self.program
        self.chosen = chosen
        self.engine = engine = chosen.make() if engine is None else engine
        self._spillable: Spillable | None = spillable(engine)
        self._carries = chosen.runs.carries is not None  # its runs get the positions of rows
        wanted = chosen.wanted
        self._tests = RowTests(program, engine.by_test, wanted is WantedRows.ALL, wanted is WantedRows.MEETING)
        #: of WITH UNMATCHED ROWS, if the engine does not settle rows itself
        self._unsettled = Unsettled() if program.extras.unmatched and not engine.settles else None

    def met(self, batches: Iterable[EventBatch]) -> Iterator[Tested] | None:
        """Returns, for each batch, which rows meet a condition, or have one that cannot be computed; the others change
        no match of the whole. None if they might."""
        reads = self.needs.linked or self.program.reach.after
        if reads or not only_met_decide(self.program) or any(map(is_volatile, self._tests.local)):
            return None
        local = self._tests.local
        needs, values = self.needs.of(columns_read(local)), RowValues(local, self.codes, self.plan.settings)
        store = RowStore(needs.numeric, needs.other, needs.schema, False)
        return (self._tests.met(store, values, batch) for batch in batches)

    def know(self, local: Sequence[np.ndarray] | None) -> None:
        """Takes which of the conditions on single rows all rows meet, by their offsets, as `met` has found: no batch
        need have the columns that only these read. To be called before the first row. None: does nothing."""
        if local is None or len(self.values.expressions) > len(local) or any(self.program.code):
            return  # the engine reads other values of rows, or a condition on the match may fail, and they say why
        self.known, self.needs = local, self.needs.of(columns_read(self.measures.needs()))
        self.rows.remove(self)
        self.rows.add(self)

    def stay(self, partition: Int64Array, ts_us: Int64Array, offset: Int64Array | None) -> np.ndarray | None:
        """Returns which rows of a whole input, in the total order, are matches of themselves, bool (n,): no other row
        changes them, so they may be pushed in parts, each as an input of its own. None unless all matches are single
        rows without numbers, and it knows what conditions the rows meet (see `know`). offset: of the rows; None: 0, 1,
        2, ..."""
        numbered = any(isinstance(e, MatchNumber) for m in self.plan.measures for e in walk(m.expression))
        if self.known is None or numbered or not isinstance(self.engine, RunAwaited):
            return None
        count = len(partition)
        met = self.known if offset is None else [test[offset] for test in self.known]
        return self.engine.stay(partition, ts_us, self._tests.mask(count, self._tests.of_local(met, count)))

    @property
    def reads(self) -> set[str]:
        """Returns the columns of rows that it reads."""
        return {*self.needs.schema.names, *(c.name for c in self.rows.partition_by)}

    def go_on_by(self, chosen: EnginePlan) -> Engine:
        """Switches to a new engine for the same program, without state. Returns the engine before."""
        old = self.engine
        self._planned = chosen
        self._run_by(chosen)
        return old

    def successor(
        self, plan: Plan, read: Callable[[int, int], EventBatch], purpose: Purpose = Purpose.LIVE
    ) -> KernelMatcher | None:  # fmt: skip
        """Returns a matcher of another plan that continues with the whole state of this one, over the same rows; this
        one is unusable then. Returns None, without any change, unless both search for the same matches: they may differ
        in measures and their output. read: returns the events with a time from the first to the second, for columns
        that only the new measures read. If runs carry values, the new measures must read the same ones. purpose: the
        use of its matches; their events are kept if those of this matcher are."""
        was = self._planned
        purpose = purpose if was.purpose.again else was.purpose
        if was.keeps_rows and purpose is Purpose.FOUND_AGAIN:
            purpose = Purpose.KEPT_ROWS
        chosen = choose_engine(plan, purpose)
        if (chosen.program, plan.schema, plan.partition_by) != (self.program, self.plan.schema, self.plan.partition_by):
            return None
        if chosen.looked_up != was.looked_up:
            return None
        if chosen.trends != was.trends or chosen.runs != was.runs or (chosen.chain is None) != (was.chain is None):
            return None
        known = set(self.needs.schema.names)  # others may have come later, and earlier rows lack what only they read
        new = KernelMatcher(plan, chosen, self.sources, self.lenient, self.rows)
        filled = False
        try:
            filled = self.rows.fill([name for name in new.needs.schema.names if name not in known], read)
        finally:
            if not filled:
                self.rows.remove(new)
        if not filled:
            return None
        # another engine than chosen, after conditions have failed
        new._run_by(replace(self.chosen, carried=chosen.carried, chain=chosen.chain), self.engine)
        new._unsettled, new._held, new.stuck = self._unsettled, self._held, self.stuck
        new.codes, new.values, new._tests.hot = self.codes, self.values, self._tests.hot
        new.floor, new.serial = self.floor, self.serial
        new._builder, new._rows = self._builder, self._rows
        new._kept, new._kept_of_all = self._kept, self._kept_of_all
        new._numbers, new._told_us, new._overlaps = self._numbers, self._told_us, self._overlaps
        if new._kept is not None:
            looking_up(new.engine).forget_walks()  # lists have numbers of this one
        self.rows.remove(self)
        return new

    # ---- Matcher

    def push(self, batch: EventBatch) -> Matches:
        """See matching.batch.Matcher. Raises DataError if a condition cannot be computed and QueryError HQ600 if a
        partition needs more partial matches than EnginePlan.runs_max; the matcher is unusable after either, but for
        `before_failure`."""
        self.rows.append(batch)
        wanted = self.wants(batch.sources)
        self.take(self.rows.retain([wanted]))
        self.rows.taken()
        if (self._sorts or self.program.numbered) and len(batch):  # rows of other values decide too
            self.expire(int(batch.ts_us[-1]), NO_ROWS)
        matches = self.emit()
        self.rows.compact()
        return matches

    def _specialise(self, rows: int) -> None:
        """Switches to a kernel specialised for the program, once it is made. rows: number of the rows to take now."""
        self._rows += rows
        if self._builder is None:
            return
        engine = specialisable(self.engine)
        if engine is None:
            self._builder = None
        elif (module := self._builder(engine, self._rows)) is not None:
            self._special = module.step
            engine.run_by(self._special)
            self._builder = None

    def advance(self, watermark_us: int | None) -> Matches:
        """See matching.batch.Matcher."""
        self.rows.reach(watermark_us)
        held = self.rows.held()
        self.expire(watermark_us, held)
        if watermark_us is None:
            self.rows.let_go(held)
        matches = self.emit(ended=watermark_us is None)
        if self.rows.spilled is not None:
            self.rows.compact()
        return matches

    def take_runs(self) -> bool:
        """Expects rows that come key by key: no key comes again after another one, and `restart` follows some keys.
        Returns False if it cannot."""
        if self.plan.trends is not None or self.chosen.purpose in (Purpose.COUNTS, Purpose.GRAPH):
            return False
        if self._numbers is not None:
            return False
        if len(self.rows) > 1 or not self.rows.take_runs():
            return False
        self.keys, self.forgets, self._by_runs = self.rows.keys, False, True
        return True

    @property
    def dates(self) -> bool:
        """True if bare matches found key by key have the row that decided each: Matches.decided_seq."""
        waits = self.measures.ahead or self.program.reach.after or self._unsettled is not None
        waits = waits or self._numbers is not None
        return self._bare and not waits and getattr(self.engine, "dates", False)

    def restart(self) -> None:
        """Forgets all keys; to be called after `advance(None)`, when nothing of them is in progress."""
        self.rows.restart()
        self.stuck = 0
        self._run_as_planned()

    def _run_as_planned(self) -> None:
        self._run_by(self._planned)
        engine = specialisable(self.engine)
        if engine is not None and self._special is not None:
            engine.run_by(self._special)

    def give_up(self) -> None:
        """Drops all partial matches. No more rows may come."""
        self._held = None
        self._run_by(self._planned)

    # ---- the parts of push and advance, for one of the matchers of shared rows

    def wants(self, sources: tuple[str, ...]) -> Int64Array | None:
        """Evaluates the conditions for the block of `rows`. Returns the indices of the needed rows in it: those that
        may begin a match, and those that a run may take; None: all. To be followed by `take`."""
        self.sources = sources
        self.store.floor = self.floor
        block = self.rows.block
        self._looked = None
        if length(block):
            attempt = self.rows.attempt(self) if self.known is None else self._of_known(self.known)
            self._looked = self._tests.look(self.store, block, attempt, len(self.keys))
        return NO_ROWS if self._looked is None else self._looked.wanted

    def _of_known(self, local: Sequence[np.ndarray]) -> Attempt:
        """Returns the values of the conditions for the block, which have been computed before."""
        offset = self.store.offset[self.rows.block]
        return [(met[offset], None) for met in local], [None] * len(local)

    def take(self, retained: Int64Array | None) -> None:
        """Takes the needed rows of the block; raises the errors of `push`. retained: the indices of the rows that are
        still in the store, see matching.rows.Rows.retain; None: all are."""
        looked, self._looked = self._looked, None
        self.store.floor = self.floor
        self._reserve(self.rows.begin)
        self._specialise(self.rows.came)
        if looked is None or looked is NOTHING:
            return
        wanted, block = looked.wanted, self.rows.block
        if wanted is None or (retained is not None and len(wanted) == len(retained)):
            self._run(block, looked)
            return
        if retained is not None:
            wanted = np.searchsorted(retained, wanted)
        self._run(wanted + block.start if isinstance(block, slice) else block[wanted], looked)

    def expire(self, watermark_us: int | None, held: Int64Array) -> None:
        """Announces that no event with time < watermark_us can still come; None: none at all. held: the rows not taken
        yet."""
        if watermark_us is not None and self.program.within_us is None:
            return
        self.store.floor = self.floor
        self._reserve(self.store.count)
        if watermark_us is None:
            if len(held):
                self._run_all(held)
            self._guarded(lambda: self.engine.finish(len(self.keys)))
        else:
            until = np.zeros(0, np.int64)
            if self.program.numbered:
                watermark_us = self.store.came
            if len(held):
                until = np.full(len(self.keys), np.iinfo(np.int64).max)
                np.minimum.at(until, self.store.partition[held], self.store.ts[held])
            self._guarded(lambda: self.engine.expire(watermark_us, until))
            self._told_us = watermark_us

    def _reserve(self, begin: int) -> None:
        """Makes room for all partitions, and for the untaken rows of the store from `begin` on."""
        self.engine.reserve(len(self.keys))
        if self._unsettled is not None:
            self._unsettled.append(self.store, begin, len(self.keys))

    def counts(self) -> tuple[list[pa.Array], Int64Array]:
        """Returns the counts of Purpose.COUNTS: the values of the partition columns, a row for each partition with
        matches, and the numbers of matches."""
        totals = self.engine.numbers(len(self.keys))
        some = np.flatnonzero(totals)
        return [self.keys.values(i, some) for i in range(len(self.plan.partition_by))], totals[some]

    def _guarded(self, act: Callable[[], None]) -> None:
        """Acts; raises DataError if a condition that is read cannot be computed."""
        try:
            act()
        except ConditionFailed as failed:
            raise self._tests.why(self.values, self.store, *failed.args) from None

    def _run_all(self, positions: Int64Array) -> None:
        """Takes the rows at `positions`, at least one, outside of a block."""
        attempt = self.values.attempt(self.store, positions)
        looked = self._tests.look(self.store, positions, attempt, len(self.keys))
        if looked is not NOTHING:
            self._run(positions if looked.wanted is None else positions[looked.wanted], looked)

    def _run(self, positions: Int64Array | slice, looked: Looked) -> None:
        """Takes the wanted rows, which are at `positions`, through the engine."""
        count, features, failing = length(positions), looked.features, looked.failing
        if failing is not None:
            self._leave_tables(positions, looked)
        if self.chosen.grouped:
            ids = self.store.partition[positions]
            grouping(self.engine).put_groups(ids, self.rows.groups(ids))
        mask = self._tests.mask(count, looked.tests)
        height = len(features) + self._carries
        feature = np.zeros((max(1, height), count if height else 0), np.int64)
        feature_valid = np.ones(feature.shape, np.bool_)
        if self._carries:
            feature[-1] = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
        for f, (numbers, valid) in enumerate(features):
            (feature.view(np.float64) if self.program.features[f][1].floating else feature)[f] = numbers
            if valid is not None:
                feature_valid[f] = valid
        if isinstance(self.engine, RunLists) and self.engine.misses(feature, feature_valid):
            self._take_again(self.engine, self.engine.whole(), positions)
        try:
            bad = NONE_BAD
            if failing is not None:
                bad = self._tests.bad(failing, mask)
                feature_valid = self._tests.with_failing(failing, feature_valid)
            if self._ranks_texts:
                looking_up(self.engine).look_up(ranks=self.codes.ranks())
            if self.program.joined:
                looking_up(self.engine).look_up(steps=self.codes.steps(self.program.joined))
            if self._kept is not None:
                if not self._kept_of_all:
                    self._keep_all(self._kept)
                self._kept.put(positions, feature, feature_valid)
                looking_up(self.engine).look_up(**self._kept.tables(positions))
            if self._answers is not None:
                rows = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
                if self._answers.is_full:
                    self._answers.forget()
                    looking_up(self.engine).forget_walks()
                tables = self._answers.begin(
                    self.codes, self.store.partition[positions], feature, feature_valid, rows, mask, self._kept,
                    self.engine.size,
                )  # fmt: skip
                looking_up(self.engine).look_up(**tables)
            try:
                self.engine.run(self.store, positions, mask, feature, feature_valid, bad)
            finally:
                if self._answers is not None:
                    self._answers.end()
        except ConditionFailed as failed:
            self._stop_at(positions, failed.index)
            raise self._why(*failed.args) from None
        except OverBudget as over:
            self._stop_at(positions, over.index)
            raise over_budget(self.plan, self.program, self.chosen.runs_max, *over.args) from None
        if looked.wanted is not None and self._tests.looks_at_runs and not self._tests.hot.everywhere:
            touched = self.store.partition[positions]
            self._tests.hot.put(touched, self.engine.busy(touched), len(self.keys))

    def _keep_all(self, kept: KeptValues) -> None:
        """Keeps the values of all rows in the store."""
        values, _ = self.values.attempt(self.store, slice(0, self.store.count))
        of_rows = values[len(self._tests.local) :]
        feature = np.array([np.ascontiguousarray(numbers).view(np.int64) for numbers, _ in of_rows])
        valid = np.array([np.ones(len(n), np.bool_) if ok is None else ok for n, ok in of_rows])
        kept.put(slice(0, self.store.count), feature, valid)
        self._kept_of_all = True

    def _stop_at(self, positions: Int64Array | slice, index: int | None) -> None:
        """Notes that the rows at `positions` have been taken up to `index` only."""
        if index is not None:
            rows = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
            self._untaken = rows[index:]
            if index < len(rows):
                self.failed_us = int(self.store.ts[rows[index]])

    @property
    def failed_row(self) -> tuple[int, int] | None:
        """Returns the source and the offset of the row at which it has failed; None if it has not, or at no row."""
        row = self.failed_at
        return None if row is None else (int(self.store.source[row]), int(self.store.offset[row]))

    @property
    def failed_at(self) -> int | None:
        """Returns the position in the store of the row at which it has failed; None if it has not, or at no row."""
        return None if self.failed_us is None or not len(self._untaken) else int(self._untaken[0])

    def before_failure(self) -> list[Matches]:
        """Returns the matches that were decided before the row at which `push` or `advance` has failed, in any batches;
        of a measure that cannot be computed those before its match. To be called once, right after the error."""
        self.store.floor = self.floor
        if self._unfit is not None:
            return self._fit(self._unfit)
        if (windows := windowed(self.engine)) is not None:
            self._expire_before_failure()
            return [self._rows_of_windows(windows.windows())] if self.engine.decided else []
        parts = [self._cut(self._decoded())]
        self._expire_before_failure()
        parts.append(self._decoded())
        if not self.chosen.keeps_rows:
            for part in parts:
                self._number(part)
            return [matches for part in parts for matches in self._fit(part)]
        out, come = parts[0].then(parts[1]), self._first_unknown()
        if self._unsettled is not None:
            out = self._settle_before_failure(self._unsettled, out)
        if self._waits:
            out = self._hold(out, False, come)
        self._number(out)
        return self._fit(out)

    def _decoded(self) -> Decode:
        """Returns the decided matches."""
        out = Decode(self._bare and not self._waits and self._unsettled is None)
        self.engine.decode(self.store, out)
        return out

    @property
    def _waits(self) -> bool:
        """True if decided matches may wait before they come out."""
        return bool(self.measures.ahead) or self._sorts

    def _number(self, out: Decode) -> None:
        """Numbers matches in the order in which they come out, where the engine numbers those of one value."""
        if self._numbers is not None and out.count:
            keys = [self.keys.values(i, out.partition) for i in range(len(self.plan.partition_by))]
            out.number[:] = self._numbers.number(keys, out.count)

    def _fit(self, out: Decode) -> list[Matches]:
        """Returns decoded matches up to the first one of which a measure cannot be computed."""
        length = 0 if self.chosen.chain is None else len(self.chosen.chain.variables)
        low, high = 0, out.count
        while low < high:
            middle = (low + high + 1) // 2 if low or high < out.count else high
            try:
                self.matches_of(out.head(middle, length))
                low = middle
            except Exception:  # noqa: BLE001  (it has been raised, or comes after what is)
                high = middle - 1
        if low < out.count and self.unfit_us is None:
            self.unfit_us = int(self.store.ts[out.last_rows(length)[low]])
        return [self.matches_of(out.head(low, length))] if low else []

    def _over(self, rows: Int64Array) -> np.ndarray:
        """Returns, for starts of matches, whether WITHIN is over for them when the first row not taken comes."""
        if not len(self._untaken) or self.program.within_us is None:
            return np.zeros(len(rows), np.bool_)
        now = self.store.clock[self._untaken[0]]
        return np.asarray(now - self.store.clock[rows] > self.program.within_us)

    def _cut(self, out: Decode) -> Decode:
        """Returns those of the decided matches that do not depend on the rows not taken. They are the first ones."""
        length = 0 if self.chosen.chain is None else len(self.chosen.chain.variables)
        if out.at is None:
            early = ~np.isin(out.last_rows(length), self._untaken)
        else:
            early = ~np.isin(out.at, self._untaken) | self._over(out.start)
        return out.head(out.count if early.all() else int(early.argmin()), length)

    def _first_unknown(self) -> int | None:
        """Returns the first row of the store that had not come when the first row not taken was to be taken; None: all
        had."""
        if not len(self._untaken):
            return None
        if not self.program.reach.after:
            return int(self._untaken[0])
        after = int(self.store.chase(self._untaken[:1], self.program.reach.after)[0])
        return after if after >= 0 else None

    def _taken(self) -> np.ndarray:
        """Returns, for each row of the store, whether it has been taken."""
        block = self.rows.block
        rows = np.arange(block.start, block.stop) if isinstance(block, slice) else block
        taken = np.ones(self.store.count, np.bool_)
        if self.program.reach.after:
            taken = self.store.released[: self.store.count].copy()
            taken[rows] = True
        taken[self._untaken] = False
        taken[rows[np.maximum.accumulate(np.isin(rows, self._untaken))]] = False
        return taken

    def _expire_before_failure(self) -> None:
        """Decides what time has decided when the first row not taken comes."""
        if not len(self._untaken) or (self.program.within_us is None and windowed(self.engine) is None):
            return
        unknown, of = self._first_unknown(), self.store.partition[self._untaken[0]]
        now = int(self.store.clock[self._untaken[0] if unknown is None else unknown])
        until = NO_ROWS
        if self.program.reach.after:
            waiting = np.flatnonzero(~self._taken())
            until = np.full(len(self.keys), np.iinfo(np.int64).max)
            np.minimum.at(until, self.store.partition[waiting], self.store.ts[waiting])
        failed = True
        while failed:
            try:
                self.engine.expire(now, until)
                failed = False
            except ConditionFailed as error:  # again that of the row not taken, or one before
                failed = self.store.partition[error.args[0]] == of
        self._told_us = now

    def _settle_before_failure(self, unsettled: Unsettled, out: Decode) -> Decode:
        """Returns `out` with the unmatched rows between. Which of those behind the last match of the partition that has
        failed were decided before is not known, except by time."""
        attempts = ordered(self.engine)
        assert attempts is not None
        last = out.start.max(where=out.partition == self._failed_partition, initial=-1)
        out = unsettled.settle(self.store, attempts.frontier(len(self.keys)), self._taken(), out)
        early = (out.partition != self._failed_partition) | (out.start <= last) | self._over(out.start)
        return out.take(np.flatnonzero(early))

    @property
    def _failed_partition(self) -> int:
        return int(self.store.partition[self._untaken[0]]) if len(self._untaken) else -1

    def _leave_tables(self, positions: Int64Array | slice, looked: Looked) -> None:
        """Switches to run lists, in which a condition that cannot be computed fails only when it is read. The undecided
        attempts are read again from their first rows. positions: rows not taken yet. An engine that decides attempts in
        another order takes the rows before the one that fails."""
        if self.engine.defers:
            return
        old = ordered(self.engine)
        if old is None:
            assert looked.failing is not None
            index = min(int(failed.argmax()) for failed in looked.failing if failed is not None)
            error = first_failure(self.values, self.store, positions)
            if index:
                self._run(_first(positions, index), looked.head(index))
            self._stop_at(positions, index)
            raise error
        self._take_again(old, AFTER_FAILURE(after_failure(self.chosen)), positions)

    def _why(self, position: int, label: int) -> DataError:
        """Returns the error of a condition at a row of the store."""
        why = self._tests.why(self.values, self.store, position, label)
        if not isinstance(why, Overflows) or self._answers is None:
            return why
        asked = [int(self.program.constants[a]) for op, a, _ in self.program.code[label] if op == OpCode.ASK]
        return (self._answers.why(asked, position) if asked else None) or why

    def _take_again(self, old: OrderedEngine, lists: RunLists, positions: Int64Array | slice) -> None:
        """Switches to run lists, which read the undecided attempts of an engine again from their first rows.
        positions: rows not taken yet."""
        store, partitions = self.store, len(self.keys)
        self.rows.bring_all()
        taken = np.ones(store.count, np.bool_)
        if self.program.reach.after:
            taken = store.released[: store.count].copy()
        else:
            taken[positions] = False
        begin = old.frontier(partitions)[store.partition[: store.count]]
        again = taken & (begin >= 0) & (np.arange(store.count) >= begin)
        covered = np.zeros(store.count, np.bool_)
        covered[again] = old.covered(store, np.flatnonzero(again))
        lists.go_on(self.engine.numbers(partitions), self.engine.stuck)
        self._run_by(lists.chosen, lists)
        if self._unsettled is not None:
            rows = np.flatnonzero(again | ~taken)
            self._unsettled.take_over(store, rows, covered[rows], partitions)
        if again.any():
            self._run_all(np.flatnonzero(again))

    def _look_whether_stuck(self) -> None:
        """Raises QueryError HQ601, or warns the first time if lenient, if AFTER MATCH SKIP TO would not move on."""
        if self.engine.stuck == self.stuck:
            return
        error = not_moving_on(self.plan.after)
        if not self.lenient:
            raise error
        if not self.stuck:
            warn(f"{error.diagnostics[0].message}; the scan continues one row after its start, here and in later cases")
        self.stuck = self.engine.stuck

    @property
    def size(self) -> int:
        """Returns the number of its own nodes, without rows."""
        return self.engine.size

    def mark(self, ids: Int64Array, keep: np.ndarray, exact: bool = False) -> None:
        """See matching.tenant.Tenant."""
        store = self.store
        self._reserve(store.count)
        self.engine.mark(store, ids, keep, exact)
        if self._unsettled is not None:
            self._unsettled.mark(store, ids, keep)
        if self._held is not None:
            keep[self._held.rows] = True
            keep[self._held.start] = True

    def move(self, ids: Int64Array, moved: Int64Array) -> None:
        """See matching.tenant.Tenant. Drops the nodes that `mark` did not reach."""
        self.engine.move(ids, moved)
        if self._kept is not None:
            self._kept.move(moved)
            looking_up(self.engine).forget_walks()
        if self._answers is not None:
            self._answers.move(moved)
        if not self._tests.hot.everywhere:  # otherwise rows come densely, and the value is not needed
            self._tests.hot.put(ids, self.engine.busy(ids), len(self.keys))
        if self._unsettled is not None:
            self._unsettled.move(moved)
        if self._overlaps is not None:
            self._overlaps.move(moved)
        if self._held is not None:
            self._held.rows, self._held.start = moved[self._held.rows], moved[self._held.start]

    def busy(self, ids: Int64Array) -> np.ndarray:
        return self.engine.busy(ids)

    def idle(self) -> np.ndarray:
        """Returns, per partition, True if it has no run."""
        return self.engine.idle(len(self.keys))

    def forget(self, ids: Int64Array) -> None:
        """Resets these partitions, whose ids now belong to other keys."""
        self.engine.forget(ids)
        self._tests.hot.forget(ids)

    # ---- partitions that leave memory: see matching.tenant.Tenant

    @property
    def why(self) -> str | None:
        """Returns why its partial matches cannot leave memory now, or None."""
        if self.floor and self.needs.reach:
            return "PREV does not see the rows before the query began"
        return self.chosen.resident

    def least_offset(self, source: int) -> int | None:
        """Returns the least offset of the rows from one source that partial matches need; None if they need none. 0 if
        some partial matches are on disk."""
        if self.rows.spilled is not None and self.rows.spilled.out_count:
            return 0
        store, needed = self.store, self.rows.needed(self)
        mine = store.offset[: store.count][needed & (store.source[: store.count] == source)]
        return int(mine.min()) if len(mine) else None

    @property
    def spill(self) -> SpillStats:
        """Returns the number of partial matches in memory and on disk."""
        rows, spilled = self.rows, self.rows.spilled
        self.engine.reserve(len(self.keys))
        runs = int(np.count_nonzero(self.engine.busy(np.arange(len(self.keys)))))
        held, since_us = rows.needed_by(self)
        if spilled is None:
            return SpillStats(
                self.why, runs=runs, bytes=rows.used_bytes, bytes_of_keys=rows.key_bytes, rows=held, since_us=since_us
            )
        return SpillStats(
            rows.why, spilled.spill.policy.value, spilled.trouble, runs, spilled.out_count, spilled.written_count,
            spilled.read_count, rows.used_bytes, rows.key_bytes, held, since_us,
        )  # fmt: skip

    @property
    def within_us(self) -> int | None:
        return self.program.within_us

    @cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self.plan)

    @cached_property
    def _has_others(self) -> bool:
        return has_others(self.plan)

    @property
    def _stamp(self) -> str:
        return self._planned.stamp

    @property
    def meaning(self) -> tuple[str, str]:
        """Returns the common meaning of states: the fingerprint of the plan, and the stamp of its program."""
        return self._fingerprint, self._stamp

    def take_over(self, tag: str, sources: tuple[str, ...]) -> None:
        """Prepares for partitions of another matcher of the same meaning. tag: of its engine; sources: its names of
        them. Raises DataError if they do not fit."""
        shorter, longer = sorted((self.sources, sources), key=len)
        if self.rows.began and longer[: len(shorter)] != shorter:
            raise DataError("the parts of this state name their sources in another order", "join parts of one stream")
        self.sources = longer if self.rows.began else sources
        if tag != self.engine.tag:
            if self.rows.began or tag != AFTER_FAILURE.tag:
                raise DataError(f"this state is of {tag}, and this matcher runs {self.engine.name}", _START_ANEW)
            self._run_by(after_failure(self.chosen))

    def recode(self, blocks: Blocks, codes: Mapping[str, pa.Array]) -> None:
        """Gives the registers of another matcher's partitions the codes of this one. codes: its values by code."""
        registers = self._leaving.registers(blocks)
        here = {type: self.codes.encode(values, type)[0] for type, values in codes.items()}
        for r, register in enumerate(self.program.registers):
            type = register.lane.coded
            if registers is not None and type in here:
                known = registers[:, r]
                inside = (known >= 0) & (known < len(here[type]))
                known[inside] = here[type][known[inside]]

    @property
    def due_yields(self) -> bool:
        return self._spillable is not None and self._spillable.due_yields

    @property
    def used_bytes(self) -> int:
        return array_bytes(self.engine) if self._spillable is None else self._spillable.used_bytes

    @property
    def row_bytes(self) -> int:
        return 0 if self._spillable is None else self._spillable.row_bytes

    @property
    def key_bytes(self) -> int:
        return 0 if self._spillable is None else self._spillable.key_bytes

    @property
    def _leaving(self) -> Spillable:
        assert self._spillable is not None
        return self._spillable

    def weigh(self, ids: Int64Array, place: Int64Array) -> Int64Array:
        return self._leaving.weigh(self.store, ids, place)

    def states(self, ids: Int64Array) -> Int64Array:
        return self._leaving.states(ids)

    def due(self, watermark_us: int, wanted: np.ndarray) -> Int64Array:
        return self._leaving.due(watermark_us, wanted)

    def copy_out(self, leaving: Leaving) -> Blocks:
        return self._leaving.copy_out(self.store, leaving)

    def leave(self, ids: Int64Array) -> None:
        self._leaving.leave(ids)

    def unmark(self, place: Int64Array) -> None:
        self._leaving.unmark(self.store, place)

    def put_in(self, coming: Coming, blocks: Blocks) -> None:
        self._kept_of_all = False
        self.engine.reserve(int(coming.ids.max()) + 1)
        self._leaving.put_in(coming, blocks)
        if not self._tests.hot.everywhere:
            self._tests.hot.put(coming.ids, True, int(coming.ids.max()) + 1)

    @property
    def settled(self) -> bool:
        """True if `emit` has no matches."""
        return not self.engine.decided and self._held is None and self._unsettled is None

    def emit(self, ended: bool = False) -> Matches:
        """Returns the matches decided since the last call, with their output rows and evidence."""
        self.store.floor = self.floor
        if self.settled:
            return self._none()
        if (windows := windowed(self.engine)) is not None:
            return self._rows_of_windows(windows.windows())
        self._look_whether_stuck()
        out = self._decoded()
        if self._unsettled is not None:
            attempts = ordered(self.engine)
            assert attempts is not None
            frontier = attempts.frontier(len(self.keys))
            taken = self.store.released if self.program.reach.after else None
            out = self._unsettled.settle(self.store, frontier, taken, out)
            if not out.count and self._held is None:
                return self._none()
        if self._waits:
            out = self._hold(out, ended)
            if not out.count:
                return self._none()
        self._number(out)
        try:
            return self.matches_of(out)
        except Exception as error:
            if self.notes_unfit and isinstance(error, DataError):
                return self._without_unfit(out, error)
            self._unfit = out
            raise

    def _without_unfit(self, out: Decode, error: DataError) -> Matches:
        """Returns the matches that end before all those with a measure that cannot be computed, and notes the first of
        these. error: of all matches."""
        length = 0 if self.chosen.chain is None else len(self.chosen.chain.variables)
        last = out.last_rows(length)
        order = np.argsort(last, kind="stable")

        fit, failing, found = 0, out.count, self._none()
        while failing - fit > 1:  # so many can be computed, and so many cannot
            middle = (fit + failing) // 2
            try:
                found = self.matches_of(out.take(np.sort(order[:middle]), length))
                fit = middle
            except DataError as of_first:
                failing, error = middle, of_first
        row = last[order[fit]]
        position = int(self.store.lane(LAST.name, last[order[fit : fit + 1]])[0][0])
        self.unfit = first_unfit(self.unfit, UnfitMatch(position, int(self.store.ts[row]), error))
        return found

    def _rows_of_windows(self, windows: ClosedWindows) -> Matches:
        """Returns the rows of closed windows, each as a match without events."""
        assert self.chosen.trends is not None
        if self.purpose is Purpose.PARTS:
            part = part_of(self.chosen.trends, windows, groups_of(self.plan, windows, self.keys))
            return matches_of_rows(self.plan, part, None, self._none())
        fingerprint = self._fingerprint if self.purpose is Purpose.IDENTIFIED else None
        return matches_of_windows(self.plan, self.chosen.trends, windows, self.keys, fingerprint, self._none())

    def matches_of(self, out: Decode) -> Matches:
        """Decoded matches, at least one, with their output rows and evidence."""
        bounds = out.bounds
        found = found_by(self.chosen, out)
        keys = [self.keys.values(i, out.partition) for i in range(len(self.plan.partition_by))]
        table, row_match = self.measures.table(self.store, found, keys)
        if self._bare:
            again = self.purpose.again
            searched = self.program.ignore or not again
            n = _NO_NUMBERS
            first_us = self.store.ts[out.start] if self._waiting else n
            return Matches(
                table, row_match, out.number, first_us, n, np.zeros(out.count + 1, np.int64) if searched else bounds,
                _NO_VARIABLES if searched else out.variables, n, _NO_SOURCES, n, n, self.measures.variables,
                self.sources, out.outcome, self._ends(out) if again or self._waiting else None,
                self._ids(out) if self.purpose is Purpose.IDENTIFIED else None,
                self.store.seq[out.at] if self._by_runs and out.at is not None else None,
            )  # fmt: skip
        first_us = last_us = self.store.ts[out.start]
        some = np.flatnonzero(bounds[:-1] < bounds[1:])
        if len(some) == out.count:
            last_us = out.ts[bounds[1:] - 1]
        elif len(some):
            last_us = last_us.copy()
            last_us[some] = out.ts[bounds[some + 1] - 1]
        matches = Matches(
            table, row_match, out.number, first_us, last_us, bounds, out.variables, out.ts, out.source, out.offset,
            out.seq, self.measures.variables, self.sources, out.outcome,
        )  # fmt: skip
        if not has_others(self.plan):
            return matches
        source, offset = self.store.source[out.start], self.store.offset[out.start]
        return replace(matches, ids=outcome_lanes(self._fingerprint, matches, source, offset))

    @property
    def purpose(self) -> Purpose:
        """Returns the use of its matches; LIVE if evidence should be found again but cannot be."""
        return self._planned.purpose

    def _ids(self, out: Decode) -> np.ndarray:
        """Returns the match ids of decoded matches, int64 (n, 2). out: has all rows of each match."""
        store = self.store
        return id_lanes(
            self._fingerprint, out.bounds, out.variables, store.source, store.offset, self.measures.variables,
            self.sources, out.rows,
        )  # fmt: skip

    def _ends(self, out: Decode) -> Ends:
        """Returns the ends of at least one decoded match."""
        return ends_of(self.chosen, self.store, out, self.rows.spilled is None)

    def _hold(self, out: Decode, ended: bool, come: int | None = None) -> Decode:
        """Returns the matches that may be emitted now. A match whose measures read a future row waits, and the later
        matches of its partition wait with it, to keep their order. Of rows that further columns divide, matches wait
        until those of all values that come before them are decided. come: see Measures.waits."""
        if self._held is not None:
            out = self._held.then(out)
        self._held = None
        if self._sorts:
            assert self.program.within_us is not None
            out = in_order(out, self.store, self.program.within_us)
            if ended or not out.count:
                return self._without_overlaps(out)
            over = np.zeros(out.count, np.bool_)
            if self._told_us is not None:
                over = deadlines(out, self.store, self.program.within_us) < self._told_us
            if not over.all():
                self._held = out.take(np.flatnonzero(~over))
            return self._without_overlaps(out.take(np.flatnonzero(over)))
        if ended:
            return out
        found = found_of(out)
        waiting = np.flatnonzero(self.measures.waits(self.store, found, come))
        if not len(waiting):
            return out
        first = np.full(len(self.keys), out.count)
        np.minimum.at(first, out.partition[waiting], waiting)
        held = np.arange(out.count) >= first[out.partition]
        self._held = out.take(np.flatnonzero(held))
        return out.take(np.flatnonzero(~held))

    def _without_overlaps(self, out: Decode) -> Decode:
        """Returns the matches, in order, that may come out beside those before them."""
        if self._overlaps is None or not out.count:
            return out
        return self._overlaps.without(out, self.rows.groups(out.partition))

    def _none(self) -> Matches:
        """Returns the empty result, which most pushes of single events give."""
        n = _NO_NUMBERS
        return Matches(
            self._empty, n, n, n, n, _NO_BOUNDS, _NO_VARIABLES, n, _NO_SOURCES, n, n, self.measures.variables,
            self.sources,
        )  # fmt: skip

    # ---- state

    def snapshot(self) -> bytes:
        """All state; Arrow columns as IPC streams inside it."""
        return pack(*self._saved(self.rows.snapshot()))

    def snapshot_own(self) -> bytes:
        """Returns its own state, without the rows that it shares with others (Rows.snapshot)."""
        return pack(*self._saved({}))

    def _saved(self, rows: Arrays) -> tuple[dict[str, object], Arrays]:
        arrays = {f"engine.{n}": a for n, a in self.engine.snapshot().items()} | rows
        if self._held is not None:
            arrays |= {f"held.{tag}": getattr(self._held, n) for n, tag in HELD_TAGS.items()}
        if self._unsettled is not None:
            arrays |= {f"unsettled.{n}": a for n, a in self._unsettled.snapshot().items()}
        if self._numbers is not None:
            arrays |= {f"number.{n}": a for n, a in self._numbers.snapshot().items()}
        if self._overlaps is not None:
            arrays |= {f"overlaps.{n}": a for n, a in self._overlaps.snapshot().items()}
        arrays |= {f"code.{type}": saved_array(v) for type, v in self.codes.snapshot().items()}
        head = {
            "version": STATE_VERSION, "engine": self.engine.tag, "plan": self._fingerprint,
            "program": self._stamp, "sources": list(self.sources), "floor": self.floor, "serial": self.serial,
        }  # fmt: skip
        return head, arrays

    def fits(self, state: bytes) -> bool:
        """True if it can restore a snapshot: the plan is the same, and numbers have the same meaning."""
        head = unpack_head(state)
        mine = (STATE_VERSION, self._fingerprint, self._stamp)
        same = (head.get("version"), head.get("plan"), head.get("program")) == mine
        # after conditions have failed it continues with lists
        return same and (self._is_planned(head["engine"]) or head["engine"] == AFTER_FAILURE.tag)

    def _is_planned(self, tag: str) -> bool:
        return self._planned.engine is not None and tag == self._planned.engine.tag

    def restore(self, state: bytes) -> None:
        """Restores a snapshot of the same plan. Raises DataError for another plan or version."""
        head, arrays = unpack(state)
        self._check(head)
        self.rows.restore(arrays)
        self._restore(head, arrays)
        self.rows.restored()

    def restore_own(self, state: bytes) -> None:
        """Restores `snapshot_own` of the same plan, whose rows have been restored; to be followed by Rows.restored."""
        head, arrays = unpack(state)
        self._check(head)
        self._restore(head, arrays)

    def _check(self, head: Mapping[str, Any]) -> None:
        found = f"plan {head.get('plan')}, program {head.get('program')}, version {head.get('version')}"
        mine = f"plan {self._fingerprint}, program {self._stamp}, version {STATE_VERSION}"
        if found != mine:
            raise DataError(
                f"this state belongs to {found}; this matcher runs {mine}",
                _START_ANEW,
            )

    def _restore(self, head: Mapping[str, Any], arrays: Arrays) -> None:
        self.codes.restore({type: read_array(a) for type, a in group("code", arrays).items()})
        if self._answers is not None:  # those are by the codes before
            self._answers = Answers(self.program, self.plan.settings)
        self._kept_of_all = False
        if head["engine"] != self.engine.tag:
            if self._is_planned(head["engine"]):
                self._run_as_planned()
            else:
                self._run_by(after_failure(self.chosen))
        self.engine.restore(group("engine", arrays))
        self.engine.reserve(len(self.keys))
        self.stuck = self.engine.stuck
        if self._unsettled is not None:
            self._unsettled.restore(group("unsettled", arrays))
        if self._numbers is not None:
            self._numbers.restore(group("number", arrays))
        if self._overlaps is not None:
            self._overlaps.restore(group("overlaps", arrays))
        self._told_us = None
        self._held = None
        if held := group("held", arrays):
            self._held = Decode()
            self._held.count = len(held["number"])
            for name, tag in HELD_TAGS.items():
                setattr(self._held, name, held[tag])
        self.sources = tuple(head["sources"])
        self._tests.hot.everywhere = True
        self.floor = head["floor"]
        self.serial = head.get("serial", self.serial)


def _first(positions: Int64Array | slice, count: int) -> Int64Array | slice:
    if isinstance(positions, slice):
        return slice(positions.start, positions.start + count)
    return positions[:count]


#: Columns of results without events, made once: most pushes of single events give one.
_NO_NUMBERS, _NO_BOUNDS = np.zeros(0, np.int64), np.zeros(1, np.int64)
_NO_VARIABLES, _NO_SOURCES = np.zeros(0, np.int16), np.zeros(0, np.int32)
_START_ANEW = "start the query again, or run the version that wrote the state"


def _is_new_when_idle(plan: Plan, program: Program, looked_up: bool) -> bool:
    """True if a partition without runs is equivalent to one without rows: no condition reads earlier rows, and no row
    waits to be settled. Rows that PREV and NEXT read are not considered. looked_up: further columns divide the rows,
    and matches get their numbers later."""
    remembers = program.strict or program.extras.unmatched or program.absence.before
    anchored = program.anchored
    read = [*(d.condition for d in plan.defines), *(m.expression for m in plan.measures)]
    numbered = any(isinstance(e, MatchNumber) for x in read for e in walk(x))
    return not (remembers or anchored or (numbered and not looked_up))

"""The patterns of boxes: each is searched once, for all layers and all queries that read it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from matching.batch import EventBatch, Matcher
from matching.drive import UnfitMatch
from matching.engines.buffered_runs import group
from matching.hierarchy.counts import Counts
from matching.hierarchy.followed import Followed, is_followed
from matching.hierarchy.merging import LayerReads, Merging
from matching.hierarchy.module import Module
from matching.hierarchy.own_events import OwnEvents
from matching.hierarchy.searches import NeedsRows, Origin
from matching.hierarchy.uppers import Over
from matching.purpose import Purpose
from matching.state import as_array
from query.errors import NO_SPAN, Diagnostic, QueryError
from query.plan.boxes import FIRST, FIRST_US, LAST, LAST_US, TIMES, CountedEvents, counts_of
from query.plan.expression import Column
from query.plan.fingerprint import fingerprint
from query.plan.joined_rows import pattern_of
from query.plan.pattern import min_rows
from query.plan.plan import Box, Plan

Make = Callable[[Plan, Purpose], Matcher]
#: From the plan of a box whose matches are joined with history and the matcher of its pattern alone, the matcher of it.
Join = Callable[[Plan, Matcher], Matcher]


class Used(NamedTuple):
    """What some queries read, by ids: modules, merged rows, and their own layers."""

    modules: set[int]
    merged: set[int]
    layers: set[int]


class Modules:
    """The patterns of boxes over one stream, or several merged, and the events as they read them.

    make: returns the matcher of a plan, for a use; of one with boxes a layer over these modules. join: of boxes that
    are joined with history, None if there can be none. over: makes matchers of layers that share merged rows, None:
    none do. time: the column of the events that holds their time. counted: see query.plan.boxes.all_counted_keys. step:
    the number of batches and watermarks so far. position: the number of events so far. lenient: see
    matching.matcher.make_matcher. origin: what is shared with other feeds, None: nothing. Its readers take the same
    steps, one after the other."""

    def __init__(
        self, make: Make, time: Column, counted: tuple[CountedEvents, ...], join: Join | None = None,
        lenient: bool = False, over: Over | None = None, origin: Origin | None = None,
    ) -> None:  # fmt: skip
        self.origin = origin
        #: True while patterns are added that see the events which arrive from now on.
        self.begins_now = False
        #: Returns the number of queries that read a module, by its id.
        self.queries_of: Callable[[int], int] = lambda module: 0
        self.make = make
        self.lenient = lenient
        self.over = over
        self.join = join
        self.time = time
        self.counted = counted
        #: See `first`; None: the next event.
        self.since: int | None = None
        self.step = self.position = 0
        self._counts = [Counts(one) for one in counted]
        self._known: dict[str, Module] = {}
        self._merged: dict[str, Merging] = {}
        self._events: EventBatch | None = None
        self._parts: dict[object, EventBatch] = {}  # of the events, those that some layers read

    @property
    def first(self) -> int:
        """Returns the position of the first event of matches that are for a layer which is added."""
        return self.position if self.since is None else self.since

    def of(self, plan: Plan, purpose: Purpose, name: str) -> Module:
        """Returns the module of a plan with the columns of an interval. One that is new sees the events from now on.
        name: of its box."""
        key = _key(plan, purpose)
        if key not in self._known:
            own = None if plan.boxes else self.own(plan)
            module = Module(key, name, plan, purpose, self._matcher(plan, purpose), own)
            if self.begins_now and self._may_follow(module, purpose):
                self._follow(module, purpose).begin()
            self._known[key] = module
        return self._known[key]

    def _may_follow(self, module: Module, purpose: Purpose) -> bool:
        """True if feeds can share the search of a pattern."""
        plan = module.plan
        plain = not plan.boxes and plan.joined is None and min_rows(plan.pattern) > 0
        return self.origin is not None and plain and isinstance(module.matcher, NeedsRows)

    def _follow(self, module: Module, purpose: Purpose) -> Followed:
        """Gives a pattern a search that feeds share."""
        assert self.origin is not None
        plan, use = module.plan, "" if purpose is Purpose.MATCHES else purpose.name
        alone = replace(plan, reads=None)
        whole, module.own = module.own, self.own(plan, bare=True)

        def events() -> EventBatch:
            assert self._events is not None
            return self._events if whole is None else whole(self._events)

        module.matcher = Followed(
            plan, self.origin, lambda: self.make(alone, purpose), use, self.counted,
            lambda: self.queries_of(id(module)), events,
        )  # fmt: skip
        return module.matcher

    def own(self, plan: Plan, bare: bool = False) -> Callable[[EventBatch], EventBatch] | None:
        """Returns a function that gives the events of a step that a plan reads; None if it reads all. bare: without the
        columns of FROM."""
        reads = plan.reads
        if reads is None:
            return None
        fields = plan.schema.fields[: len(reads.columns)]
        own = OwnEvents(fields, reads)

        def part(batch: EventBatch) -> EventBatch:
            key = fields, reads, bare
            if key not in self._parts:
                self._parts[key] = own.bare(batch) if bare else own.of(batch)
            return self._parts[key]

        return part

    def _matcher(self, plan: Plan, purpose: Purpose) -> Matcher:
        if plan.joined is None:
            return self.make(plan, purpose)
        if self.join is None:
            message = f"a box joined with the history {plan.joined.factor.histories[0].alias} is not supported yet here"
            raise QueryError([Diagnostic("HQ500", message, NO_SPAN, "", "use db.sql, or db.watch over one stream")])
        return self.join(plan, self.make(pattern_of(plan), Purpose.MATCHES))  # the driver needs its events

    def merging(
        self, plan: Plan, boxes: Sequence[Box], modules: Sequence[Module], with_events: bool, purpose: Purpose,
        of: int, reader: LayerReads,
    ) -> Merging:  # fmt: skip
        """Returns the merged rows of a layer, which others may read too. of: its id."""
        keys = [c.name for c in plan.partition_by]
        kinds = [(box.name, module.key, box.columns) for box, module in zip(boxes, modules, strict=True)]
        name = json.dumps([kinds, keys, with_events, plan.settings])
        if plan.reads is not None:
            name += json.dumps([plan.schema.names, plan.reads.streams, plan.reads.columns])
        of_name = (one for key, one in self._merged.items() if key.partition(" ")[2] == name)
        found = next((one for one in of_name if one.takes(reader)), None)
        if found is None:
            time = plan.order_by[0].column.name
            found = Merging(
                boxes, modules, keys, time, with_events, purpose, plan.settings, self.own(plan), self.over
            )
            self._merged[self._free_name(name)] = found
        found.join(of, reader)
        return found

    def _free_name(self, name: str) -> str:
        return next(numbered for n in count() if (numbered := f"{n} {name}") not in self._merged)

    @property
    def shares(self) -> bool:
        """True if other feeds read the search of a pattern."""
        return any(isinstance(m.matcher, Followed) and len(m.matcher.search.readers) > 1 for m in self)

    def begin(self, step: int, batch: EventBatch | None) -> EventBatch | None:
        """Begins a step, unless another reader has, and returns its events with the columns of an interval, which
        begins and ends with the event."""
        if step > self.step:
            self.step = step
            self._parts = {}
            self._events = None if batch is None else self._with_interval(batch)
        return self._events

    def keep_only(self, used: Used) -> None:
        """Drops what no layer reads any more."""
        for module in self._known.values():
            if id(module) not in used.modules and isinstance(module.matcher, Followed):
                module.matcher.leave()
        self._known = {key: module for key, module in self._known.items() if id(module) in used.modules}
        merged, self._merged = self._merged, {}
        for name, merging in merged.items():
            if id(merging) in used.merged:
                self._merged[self._free_name(name.partition(" ")[2])] = merging
        for merging in self._merged.values():
            merging.keep_only(used.layers)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._known.values())

    def snapshot(self, used: Used | None = None) -> tuple[dict[str, object], dict[str, np.ndarray]]:
        """Returns a head for JSON and arrays. used: what is to be saved, None: all."""
        known = {key: module for key, module in self._known.items() if used is None or id(module) in used.modules}
        merged = {name: one for name, one in self._merged.items() if used is None or id(one) in used.merged}
        arrays: dict[str, np.ndarray] = {}
        for i, merging in enumerate(merged.values()):  # first: saving rows may drop some, and matchers read them
            of_merging = merging.snapshot(None if used is None else used.layers)
            arrays |= {f"merged{i}.{name}": array for name, array in of_merging.items()}
        arrays |= {f"module.{key}": as_array(module.matcher.snapshot()) for key, module in known.items()}
        for i, counts in enumerate(self._counts):
            arrays |= {f"counts{i}.{name}": array for name, array in counts.snapshot().items()}
        searched = {key: module.searched for key, module in known.items()}
        unfit = {key: module.unfit.saved() for key, module in known.items() if module.unfit is not None}
        head: dict[str, object] = {"step": self.step, "position": self.position, "modules": searched, "unfit": unfit}
        return head | {"merged": {name: i for i, name in enumerate(merged)}}, arrays

    def fits(self, head: Mapping[str, object], arrays: Mapping[str, np.ndarray]) -> bool:
        """True if it can restore a snapshot, which has the same modules."""
        known, merged = self._known, _dict(head["merged"])
        if set(known) != set(_dict(head["modules"])) or set(self._merged) != set(merged):
            return False
        for key, module in known.items():  # as it was saved
            if is_followed(arrays[f"module.{key}"].tobytes()) and not isinstance(module.matcher, Followed):
                if not self._may_follow(module, module.purpose):
                    return False
                self._follow(module, module.purpose)
        return all(
            module.matcher.fits(arrays[f"module.{key}"].tobytes()) for key, module in known.items()
        ) and all(self._merged[name].fits(group(f"merged{i}", dict(arrays))) for name, i in merged.items())

    def restore(self, head: Mapping[str, object], arrays: dict[str, np.ndarray]) -> None:
        """Restores a snapshot that fits."""
        for name, i in _dict(head["merged"]).items():
            self._merged[name].restore(group(f"merged{i}", arrays))
        searched = _dict(head["modules"])
        for key, module in self._known.items():
            module.matcher.restore(arrays[f"module.{key}"].tobytes())
            module.searched = searched[key]
            module.unfit = UnfitMatch.restored(_dict(head.get("unfit", {})).get(key))
        for i, counts in enumerate(self._counts):
            counts.restore(group(f"counts{i}", arrays))
        self.step, self.position = int(str(head["step"])), int(str(head["position"]))

    def _with_interval(self, batch: EventBatch) -> EventBatch:
        n = len(batch)
        position = pa.array(np.arange(self.position, self.position + n))
        self.position += n
        us, at = pa.array(batch.ts_us), batch.columns.column(self.time.name)
        hidden: dict[str, pa.Array] = {f"#{name}": at for name in TIMES}
        hidden |= {FIRST.name: position, LAST.name: position, FIRST_US.name: us, LAST_US.name: us}
        for counts in self._counts:
            before, upto = counts.number(batch.columns)
            first, last = counts_of(counts.counted)
            hidden |= {first.name: pa.array(before), last.name: pa.array(upto)}
        columns = [*batch.columns.columns, *hidden.values()]
        return replace(batch, columns=pa.RecordBatch.from_arrays(columns, [*batch.columns.schema.names, *hidden]))


def _key(plan: Plan, purpose: Purpose) -> str:
    return f"{fingerprint(plan)}{'' if purpose is Purpose.MATCHES else purpose.name}"


def _dict(value: object) -> dict[str, Any]:
    assert isinstance(value, dict)
    return value

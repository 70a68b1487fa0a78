"""The Matcher of a hierarchy of patterns.

Equal patterns of boxes are searched once, for all layers and, of live queries, for all of them. [HIERARCHY] parks a run
that reaches a box, and lets a lower run remember its caller. Here a lower run has no caller: it begins at each event
that may begin its pattern, and its match is offered to all runs of the layers above, which take it, clone or ignore it
by their strategy.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np

from matching.batch import EventBatch, Matcher, Matches
from matching.drive import failed_at
from matching.hierarchy.earlier import Earlier
from matching.hierarchy.followed import Followed
from matching.hierarchy.layer import Layer
from matching.hierarchy.module import Module
from matching.hierarchy.modules import Join, Make, Modules, Used
from matching.hierarchy.searches import Origin
from matching.hierarchy.uppers import Over
from matching.purpose import Purpose
from matching.state import as_array, pack, unpack, unpack_head
from query.plan.boxes import all_counted_keys, bounded, independent_of_before, merged_time
from query.plan.expression import Column
from query.plan.fingerprint import fingerprint
from query.plan.plan import Plan
from query.plan.plan import modules as patterns_of

#: Version of HierarchyMatcher.snapshot; restore refuses others.
STATE_VERSION = 1


class HierarchyMatcher:
    """Matcher of a pattern with boxes. See Layer for its matches.

    make: returns the matcher of a plan without boxes, for a use. modules: those of other queries over the same events,
    from now on in the same batches (see `may_join`). join: see Modules. lenient: see matching.matcher.make_matcher.
    """

    def __init__(
        self, plan: Plan, make: Make, sources: tuple[str, ...] = ("default",), purpose: Purpose = Purpose.MATCHES,
        modules: Modules | None = None, join: Join | None = None, lenient: bool = False,
    ) -> None:
        self.plan = plan
        use = Purpose.LIVE if purpose.live else Purpose.ROWS if purpose is Purpose.ROWS else Purpose.MATCHES
        #: The matches that began before it joined the modules of other queries, while some can still come.
        self.earlier: Earlier | None = None
        self._before_failure: list[Matches] = []  # of both, while there are such
        self._failed_us: int | None = None  # of those that began before
        self._make = make
        self._shares = modules is not None
        self.modules = modules_for(plan, make, join, lenient) if modules is None else modules
        self._step = self.modules.step
        self.layer = Layer(bounded(plan), self.modules, sources, use, self.modules.first)
        self._own_searches = _searches(self.layer)
        self._fingerprint = fingerprint(plan)

    @property
    def searches(self) -> Sequence[tuple[str, Matcher]]:
        """Returns the matchers of all layers that search in rows, each once, with the name of the pattern (empty: the
        outermost)."""
        before = None if self.earlier is None else self.earlier.matcher
        return [*self._own_searches, *(before.searches if isinstance(before, HierarchyMatcher) else ())]

    @property
    def feeds(self) -> dict[int, int]:
        """Returns the number of feeds that search in rows, by their id, where these are in a shared search."""
        shared = [m.matcher.search for m in self.modules if isinstance(m.matcher, Followed)]
        rows = [(getattr(search.matcher, "rows", None), len(search.readers)) for search in shared]
        return {id(some): max(1, count) for some, count in rows}

    def patterns(self) -> dict[str, Module]:
        """Returns the patterns of the boxes of all layers, by the name of their first box."""
        found: dict[str, Module] = {}
        layers = [self.layer]
        for layer in layers:
            for box, module in zip(patterns_of(layer.plan.boxes), layer.modules, strict=True):
                if found.setdefault(box.name, module) is module and isinstance(module.matcher, Layer):
                    layers.append(module.matcher)
        return found

    @property
    def stuck(self) -> int:
        """See matching.batch.Matcher."""
        return self.layer.stuck

    @property
    def failed_us(self) -> int | None:
        """Returns the time of the event at which it has failed; None if it has not, or that is not known."""
        return self.layer.failed_us if self._failed_us is None else self._failed_us

    def before_failure(self) -> list[Matches]:
        """Returns the matches that were decided before the event at which `push` has failed, if it is known."""
        return self.layer.before_failure() if self.earlier is None else self._before_failure

    def failed_index(self, batch: EventBatch) -> int | None:
        """Returns the index of the event at which `push` has failed; None if it is not known."""
        layer, n, at = self.layer, len(batch), -1
        if layer.failed_position is not None:
            at = layer.failed_position - (self.modules.position - n)
        elif layer.unfit_us is not None:
            at = int(np.searchsorted(batch.ts_us, layer.unfit_us))
        return at if 0 <= at < n and layer.before_failure() else None

    def begun_anew(self, plan: Plan, make: Make) -> HierarchyMatcher | None:
        """Returns a matcher of another plan that begins now, but for patterns of boxes that both have: they go on, with
        the matches that began before. Returns None if there are none."""
        modules = self.modules
        if not plan.boxes or all_counted_keys(plan) != modules.counted or time_of_events(plan) != modules.time:
            return None
        modules.since, before = self.layer.since, {id(module) for module in modules}
        try:
            new = HierarchyMatcher(plan, make, self.layer.sources, self.layer.purpose, modules)
        finally:
            modules.since = None
        return new if new.used().modules & before else None

    def push(self, batch: EventBatch) -> Matches:
        """See matching.batch.Matcher."""
        self._step += 1
        events = self.modules.begin(self._step, batch)
        assert events is not None
        if self.earlier is not None and len(batch) and self.earlier.over(int(batch.ts_us[0])):
            self.earlier = None
        return self.layer.push(events) if self.earlier is None else self._push_both(self.earlier, batch, events)

    def _push_both(self, earlier: Earlier, batch: EventBatch, events: EventBatch) -> Matches:
        """Returns the matches that began before it joined others, and the later ones. If one of the two matchers fails,
        the other goes on up to that event."""
        failure: Exception | None = None
        upto = len(batch)
        try:
            found = self.layer.push(events)
        except Exception as error:
            at = self.failed_index(batch)
            if at is None:
                raise
            failure, upto = error, at
            (found,) = self.layer.before_failure()
        try:
            found = earlier.push(batch, found, upto)
        except Exception as error:
            own = earlier.matcher
            at = own.failed_index(batch.slice(0, upto)) if isinstance(own, HierarchyMatcher) else None
            if at is None:
                raise
            failure, self._failed_us = error, failed_at(own)
            found = earlier.before_failure(batch, found, at)
        if failure is None:
            return found
        self._before_failure = [found]
        raise failure

    def advance(self, watermark_us: int | None) -> Matches:
        """See matching.batch.Matcher."""
        self._step += 1
        self.modules.begin(self._step, None)
        found = self.layer.advance(watermark_us)
        if self.earlier is not None:
            found = self.earlier.advance(watermark_us, found)
            if self.earlier.over(watermark_us):
                self.earlier = None
        return found

    def joins(self, modules: Modules, until_us: int, sources: tuple[str, ...]) -> HierarchyMatcher:
        """Returns a matcher that goes on with this one, which becomes its own, and reads the modules of other queries:
        matches that begin from `until_us` on are made of their matches. All later events have this time or a later one.
        sources: as its events have named them. See `can_be_divided` and `may_join`."""
        new = HierarchyMatcher(self.plan, self._make, self.layer.sources, self.layer.purpose, modules)
        new.earlier = Earlier(self.plan, self, until_us, sources)
        self._shares = False
        return new

    def used(self) -> Used:
        """Returns what all its layers read."""
        layers, found = [self.layer], Used(set(), set(), set())
        for layer in layers:
            found.layers.add(id(layer))
            found.merged.add(id(layer.merging))
            found.modules.update(map(id, layer.modules))
            layers += [module.matcher for module in layer.modules if isinstance(module.matcher, Layer)]
        return found

    def successor(self, plan: Plan) -> HierarchyMatcher | None:
        """Returns a matcher of another plan that continues with the whole state of this one, which is unusable then.
        Returns None, without any change, unless the outermost patterns differ only in measures, and the patterns of
        boxes not at all. What only this matcher read is to be tidied up, see Modules.keep_only."""
        if not plan.boxes or all_counted_keys(plan) != self.modules.counted or self.earlier is not None:
            return None
        layer = self.layer.successor(bounded(plan), self.layer.purpose)
        if layer is None:
            return None
        new = copy(self)
        new.plan, new.layer, new._own_searches, new._fingerprint = plan, layer, _searches(layer), fingerprint(plan)
        return new

    def snapshot(self) -> bytes:
        """Returns the state of all layers; without that of modules that it shares with other queries."""
        head: dict[str, object] = {}
        arrays: dict[str, np.ndarray] = {}
        if not self._shares:
            head, arrays = self.modules.snapshot(self.used())
        whole = {"version": STATE_VERSION, "plan": self._fingerprint, "step": self._step, "modules": head}
        if self.earlier is not None:
            before, state = self.earlier.snapshot()
            own = self.earlier.matcher
            shares_rows = isinstance(own, HierarchyMatcher) and own.modules.over is not None
            whole["earlier"], arrays["earlier"] = before | {"shares_rows": shares_rows}, as_array(state)
        return pack(whole, arrays | {"layer": as_array(self.layer.snapshot())})

    def fits(self, state: bytes) -> bool:
        """True if it can restore a snapshot: every layer is of the same plan."""
        head = unpack_head(state)
        if (head.get("version"), head.get("plan")) != (STATE_VERSION, self._fingerprint):
            return False
        _, arrays = unpack(state)
        if bool(head["modules"]) == self._shares or not self.layer.fits(arrays["layer"].tobytes()):
            return False
        if "earlier" in head and self._restored(head, arrays) is None:
            return False
        return self._shares or self.modules.fits(head["modules"], arrays)

    def restore(self, state: bytes) -> None:
        """Restores a snapshot that fits. Raises DataError for any other state."""
        head, arrays = unpack(state)
        self.layer.restore(arrays["layer"].tobytes())
        if not self._shares:
            self.modules.restore(head["modules"], arrays)
        self._step = head["step"]
        self._own_searches = _searches(self.layer)
        self.earlier = self._restored(head, arrays) if "earlier" in head else None

    def _restored(self, head: dict[str, Any], arrays: dict[str, np.ndarray]) -> Earlier | None:
        """Returns the matches that began before it joined the modules, None if their state does not fit."""
        before, shared = head["earlier"], self.modules
        over = shared.over if before["shares_rows"] else None
        modules = modules_for(self.plan, self._make, shared.join, shared.lenient, over, shared.origin)
        alone = HierarchyMatcher(self.plan, self._make, self.layer.sources, self.layer.purpose, modules)
        alone._shares = False
        return Earlier.restored(self.plan, before, alone, arrays["earlier"].tobytes())


def used_by(matchers: Iterable[Matcher | None]) -> Used:
    """Returns what some matchers, all of patterns with boxes, read."""
    found = [matcher.used() for matcher in matchers if isinstance(matcher, HierarchyMatcher)]
    return Used(*(set().union(*(getattr(one, name) for one in found)) for name in Used._fields))


def _searches(outermost: Layer) -> Sequence[tuple[str, Matcher]]:
    found: dict[int, tuple[str, Matcher]] = {}
    left: list[tuple[str, Matcher]] = [("", outermost)]
    for name, matcher in left:
        if isinstance(matcher, Layer):
            left += [(name, one) for one in matcher.own]
            left += [(module.name, module.matcher) for module in matcher.modules]
        elif isinstance(matcher, Followed):
            found.setdefault(id(matcher.search.matcher), (name, matcher.search.matcher))
        else:
            found.setdefault(id(matcher), (name, matcher))
    return list(found.values())


def modules_for(
    plan: Plan, make: Make, join: Join | None = None, lenient: bool = False, over: Over | None = None,
    origin: Origin | None = None,
) -> Modules:  # fmt: skip
    """Returns the modules of a query and of those that join it, still without any. lenient: see
    matching.matcher.make_matcher; over, origin: see Modules."""

    def make_layer(layer: Plan, use: Purpose) -> Matcher:
        return Layer(layer, modules, ("default",), use, modules.first) if layer.boxes else make(layer, use)

    modules = Modules(make_layer, time_of_events(plan), all_counted_keys(plan), join, lenient, over, origin)
    return modules


def time_of_events(plan: Plan) -> Column:
    """Returns the column of the events of a hierarchy that holds their time."""
    return replace(plan.order_by[0].column, name=merged_time(plan))


def may_join(plan: Plan, modules: Modules) -> bool:
    """True if a query may read the modules of others: they find the matches that begin from now on as if they began
    now."""
    same = all_counted_keys(plan) == modules.counted and time_of_events(plan) == modules.time
    if modules.step and not all(independent_of_before(box.plan) for box in plan.boxes):
        return False
    return same and not any(module.failed for module in modules)

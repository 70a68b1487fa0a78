"""The Matcher of a hierarchy of patterns.

Equal patterns of boxes are searched once, for all layers and, of live queries, for all of them. [HIERARCHY] parks a run
that reaches a box, and lets a lower run remember its caller. Here a lower run has no caller: it begins at each event
that may begin its pattern, and its match is offered to all runs of the layers above, which take it, clone or ignore it
by their strategy.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from matching.batch import EventBatch, Matcher, Matches
from matching.hierarchy.layer import Layer
from matching.hierarchy.modules import Make, Modules, Used
from matching.purpose import Purpose
from matching.state import as_array, pack, unpack, unpack_head
from query.plan.boxes import all_counted_keys, bounded, independent_of_before, merged_time
from query.plan.fingerprint import fingerprint
from query.plan.plan import Plan

#: Version of HierarchyMatcher.snapshot; restore refuses others.
STATE_VERSION = 1


class HierarchyMatcher:
    """Matcher of a pattern with boxes. See Layer for its matches.

    make: returns the matcher of a plan without boxes, for a use. modules: those of other queries over the same events,
    from now on in the same batches (see `may_join`). stuck: always 0, since all matches are returned.
    """

    stuck = 0

    def __init__(
        self, plan: Plan, make: Make, sources: tuple[str, ...] = ("default",), purpose: Purpose = Purpose.MATCHES,
        modules: Modules | None = None,
    ) -> None:
        self.plan = plan
        use = Purpose.LIVE if purpose.live else Purpose.ROWS if purpose is Purpose.ROWS else Purpose.MATCHES
        self._shares = modules is not None
        self.modules = modules_for(plan, make) if modules is None else modules
        self._step = self.modules.step
        self.layer = Layer(bounded(plan), self.modules, sources, use, self.modules.position)
        self._fingerprint = fingerprint(plan)

    def push(self, batch: EventBatch) -> Matches:
        """See matching.batch.Matcher."""
        self._step += 1
        events = self.modules.begin(self._step, batch)
        assert events is not None
        return self.layer.push(events)

    def advance(self, watermark_us: int | None) -> Matches:
        """See matching.batch.Matcher."""
        self._step += 1
        self.modules.begin(self._step, None)
        return self.layer.advance(watermark_us)

    def used(self) -> Used:
        """Returns what all its layers read."""
        layers, found = [self.layer], Used(set(), set(), set())
        for layer in layers:
            found.layers.add(id(layer))
            found.merged.add(id(layer.merging))
            found.modules.update(map(id, layer.modules))
            layers += [module.matcher for module in layer.modules if isinstance(module.matcher, Layer)]
        return found

    def snapshot(self) -> bytes:
        """Returns the state of all layers; without that of modules that it shares with other queries."""
        head: dict[str, object] = {}
        arrays: dict[str, np.ndarray] = {}
        if not self._shares:
            head, arrays = self.modules.snapshot()
        whole = {"version": STATE_VERSION, "plan": self._fingerprint, "step": self._step, "modules": head}
        return pack(whole, arrays | {"layer": as_array(self.layer.snapshot())})

    def fits(self, state: bytes) -> bool:
        """True if it can restore a snapshot: every layer is of the same plan."""
        head = unpack_head(state)
        if (head.get("version"), head.get("plan")) != (STATE_VERSION, self._fingerprint):
            return False
        _, arrays = unpack(state)
        if bool(head["modules"]) == self._shares or not self.layer.fits(arrays["layer"].tobytes()):
            return False
        return self._shares or self.modules.fits(head["modules"], arrays)

    def restore(self, state: bytes) -> None:
        """Restores a snapshot that fits. Raises DataError for any other state."""
        head, arrays = unpack(state)
        self.layer.restore(arrays["layer"].tobytes())
        if not self._shares:
            self.modules.restore(head["modules"], arrays)
        self._step = head["step"]


def modules_for(plan: Plan, make: Make) -> Modules:
    """Returns the modules of a query and of those that join it, still without any."""

    def make_layer(layer: Plan, use: Purpose) -> Matcher:
        return Layer(layer, modules, ("default",), use, modules.position) if layer.boxes else make(layer, use)

    time = replace(plan.order_by[0].column, name=merged_time(plan))
    modules = Modules(make_layer, time, all_counted_keys(plan))
    return modules


def may_join(plan: Plan, modules: Modules) -> bool:
    """True if a query may read the modules of others: they find the matches that begin from now on as if they began
    now."""
    same = all_counted_keys(plan) == modules.counted and plan.order_by[0].column == modules.time
    return same and (not modules.step or all(independent_of_before(box.plan) for box in plan.boxes))

"""Many queries of trends over one stream, counted together, with a sharing plan that may follow the stream."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from matching.batch import EventBatch, Matches
from matching.program.program import VARIABLES_MAX
from matching.purpose import Purpose
from matching.workload.cost import EventRates
from matching.workload.graph import update
from matching.workload.modes import SharingMode, first_plan
from matching.workload.plan import SharedSet, SharingPlan
from matching.workload.template import Template
from matching.workload_matcher import WorkloadMatcher
from query.plan.expression import Expression
from query.plan.pattern import variables
from query.plan.plan import Plan

#: Bytes of the length of a snapshot's head.
_HEAD = 8
#: Events by which rates are measured before a plan is chosen, or compared with others; and more for each place of a
#: query above some. The choice takes as long as some 25 events for each place, and is to be a small part of the run.
MEASURED_EVENTS, EVENTS_OF_PLACE, FEW_PLACES = 2_000, 300, 32


@dataclass(frozen=True, slots=True)
class PlanChange:
    """events: how many had been taken; why: in a line."""

    events: int
    why: str


def groups_of(plans: Mapping[str, Plan]) -> list[dict[str, Plan]]:
    """Returns shareable queries with one key in groups of no more conditions than one engine takes, in their order."""
    groups: list[dict[str, Plan]] = []
    known: set[Expression] = set()
    for name, plan in plans.items():
        more = {plan.condition(v) for v in variables(plan.pattern)}
        if not groups or len(known | more) > VARIABLES_MAX:
            groups.append({})
            known = set()
        groups[-1][name] = plan
        known |= more
    return groups


class SharedQueries:
    """Counts the trends of shareable queries with one key (matching.workload.program). The rows of each query are the
    same in all modes, sums of doubles up to rounding."""

    def __init__(
        self, plans: Mapping[str, Plan], mode: SharingMode = SharingMode.DYNAMIC,
        sources: tuple[str, ...] = ("default",), purpose: Purpose = Purpose.MATCHES,
    ) -> None:  # fmt: skip
        """Raises NoKernel if the queries have too many conditions."""
        self.mode = mode
        self.events = 0
        self.changes: list[PlanChange] = []
        self._rates: EventRates | None = None
        self._matcher = WorkloadMatcher(plans, None, sources, mode.splitting, purpose)
        if mode is SharingMode.HAMLET:
            self._matcher.share(first_plan(mode, self.template, None))

    @property
    def plan(self) -> SharingPlan:
        """Returns the sharing plan."""
        return self._matcher.engine.plan

    @property
    def template(self) -> Template:
        """Returns the template of the queries."""
        return self._matcher.table.template

    @property
    def rates(self) -> EventRates | None:
        """Returns the rates for which the plan was chosen or compared last."""
        return self._rates

    @property
    def queries(self) -> Mapping[str, Plan]:
        """Returns the plans of the queries."""
        return self._matcher.plans

    @property
    def snapshots(self) -> int:
        """Returns the number of snapshots since the plan was chosen last."""
        return self._matcher.engine.snapshots

    @property
    def _wait(self) -> int:
        """Returns the number of events by which rates are measured."""
        places = sum(len(path.labels) for path in self.template.queries)
        return MEASURED_EVENTS + EVENTS_OF_PLACE * max(0, places - FEW_PLACES)

    def push(self, batch: EventBatch) -> dict[str, Matches]:
        """Takes events; returns the new rows of each query. Raises DataError if a condition cannot be computed."""
        found = self._matcher.push(batch)
        self.events += len(batch)
        if self.mode.measures and self._matcher.engine.measured_events >= self._wait:
            self._choose()
        return found

    def advance(self, watermark_us: int | None) -> dict[str, Matches]:
        """Closes the windows that end at the watermark or before; None: all. Returns the new rows of each query."""
        return self._matcher.advance(watermark_us)

    def change(self, plans: Mapping[str, Plan]) -> None:
        """Goes on with other queries: those of the same name and plan continue, in open windows too; others begin with
        the next event. In the modes that measure rates, each counts on its own until they are measured anew. The rows
        of all must have been fetched. Raises NoKernel, and then nothing has changed."""
        self._matcher.change(plans, None, self.mode.splitting)
        rates, self._rates = self._rates, None
        if self.mode is SharingMode.HAMLET:
            self._matcher.share(first_plan(self.mode, self.template, None))
        elif rates is not None:
            self.changes.append(PlanChange(self.events, "other queries: rates are measured anew"))

    def _choose(self) -> None:
        """Compares the plan with others for the rates since the last time, and changes it if one is better."""
        engine, template = self._matcher.engine, self.template
        rates = engine.measured()
        if self._rates is None:
            plan, why = first_plan(self.mode, template, rates), "chosen for the first rates"
        elif self.mode is SharingMode.DYNAMIC:
            plan, why = update(template, self.plan, self._rates, rates)
        else:
            return
        self._rates = rates
        if plan != self.plan:
            self._matcher.share(plan)
            self.changes.append(PlanChange(self.events, why))

    def snapshot(self) -> bytes:
        """Returns all state, with the plan, for `restore` of the same queries in any mode."""
        sets = [[s.queries, s.nodes] for s in self.plan.sets]
        rates = None if self._rates is None else (self._rates.events, self._rates.limbs)
        head = json.dumps({"sets": sets, "rates": rates, "events": self.events}).encode()
        return len(head).to_bytes(_HEAD, "little") + head + self._matcher.snapshot()

    def restore(self, state: bytes) -> None:
        """Continues from a snapshot."""
        size = int.from_bytes(state[:_HEAD], "little")
        head = json.loads(state[_HEAD : _HEAD + size])
        plan = SharingPlan(tuple(SharedSet(tuple(queries), tuple(nodes)) for queries, nodes in head["sets"]))
        self._matcher.share(plan)
        self._matcher.restore(state[_HEAD + size :])
        rates = head["rates"]
        self._rates = None if rates is None else EventRates(tuple(rates[0]), rates[1])
        self.events = head["events"]

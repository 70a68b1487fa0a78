"""Many queries of trends over one stream, counted together, with a sharing plan that may follow the stream."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matching import workload_matcher
from matching.batch import EventBatch, Matches
from matching.program.program import VARIABLES_MAX
from matching.purpose import Purpose
from matching.spill import SpillStats
from matching.workload.cost import EventRates
from matching.workload.graph import update
from matching.workload.modes import first_plan
from matching.workload.plan import SharedSet, SharingPlan
from matching.workload.sharing_mode import SharingMode
from matching.workload.template import Template
from matching.workload_matcher import WorkloadMatcher
from query.errors import DataError
from query.plan.expression import Expression
from query.plan.fingerprint import fingerprint
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
        more = conditions_of(plan)
        if not groups or len(known | more) > VARIABLES_MAX:
            groups.append({})
            known = set()
        groups[-1][name] = plan
        known |= more
    return groups


def conditions_of(plan: Plan) -> set[Expression]:
    """Returns the conditions of the variables of a query."""
    return {plan.condition(v) for v in variables(plan.pattern)}


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
    def spill(self) -> SpillStats:
        """Returns statistics of their memory."""
        return self._matcher.matcher.spill

    def show(self, query: int) -> list[str]:
        """Returns what one of the queries shares, and the last change of the plan."""
        template = self.template
        lines = []
        for s in self.plan.sets:
            if query in s.queries and len(s.queries) > 1:
                nodes = ", ".join(str(template.nodes[n]) for n in s.nodes)
                lines.append(f"shares {nodes} with {len(s.queries) - 1} of them")
        if not lines:
            lines.append("shares nothing" if self._rates else "shares nothing until rates are measured")
        if self.changes:
            lines.append(f"last change of plan at event {self.changes[-1].events:,}: {self.changes[-1].why}")
        return lines

    def take_failures(self) -> Mapping[str, DataError]:
        """Returns the queries whose rows could not be made since the last call; to be left out then."""
        return self._matcher.take_failures()

    def only(self, names: Sequence[str]) -> SharedQueries:
        """Returns a copy with the state of some of the queries."""
        copy = SharedQueries(self.queries, self.mode, purpose=self._matcher.purpose)
        copy.restore(self.snapshot())
        if names:
            copy.change({name: self.queries[name] for name in names})
        return copy

    @property
    def _wait(self) -> int:
        """Returns the number of events by which rates are measured."""
        places = sum(len(path.labels) for path in self.template.queries)
        return MEASURED_EVENTS + EVENTS_OF_PLACE * max(0, places - FEW_PLACES)

    def push(self, batch: EventBatch) -> dict[str, Matches]:
        """Takes events; returns the new rows of each query. Raises QueriesFailed."""
        found = self._matcher.push(batch)
        self.events += len(batch)
        if self.mode.measures and self._matcher.engine.measured_events >= self._wait:
            self._choose()
        return found

    def advance(self, watermark_us: int | None) -> dict[str, Matches]:
        """Closes the windows that end at the watermark or before; None: all. Returns the new rows of each query. Raises
        QueriesFailed; to be called again then."""
        return self._matcher.advance(watermark_us)

    def end_row(self) -> None:
        """See WorkloadMatcher.end_row."""
        self._matcher.end_row()

    def change(self, plans: Mapping[str, Plan]) -> None:
        """Goes on with other queries: those of the same name continue if they count the same, in open windows too;
        others begin with the next event. In the modes that measure rates, each counts on its own until they are
        measured anew. The rows of all must have been fetched. Raises NoKernel, and then nothing has changed."""
        self._matcher.change(plans, None, self.mode.splitting)
        self._measure_anew()

    def absorb(self, plans: Mapping[str, Plan], others: Sequence[SharedQueries]) -> None:
        """Goes on with the queries of others of the same mode too; see WorkloadMatcher.absorb. Then as `change`."""
        self._matcher.absorb(plans, [other._matcher for other in others], self.mode.splitting)
        self._measure_anew()

    def _measure_anew(self) -> None:
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
        of = [fingerprint(plan) for plan in self.queries.values()]
        head = json.dumps({"sets": sets, "rates": rates, "events": self.events, "queries": of}).encode()
        return len(head).to_bytes(_HEAD, "little") + head + self._matcher.snapshot()

    def fits(self, state: bytes) -> bool:
        """True if a snapshot is of these queries, and of a release that gives its numbers the same meaning."""
        head, own = _apart(state)
        if head["queries"] != [fingerprint(plan) for plan in self.queries.values()]:
            return False
        self._matcher.share(_plan_in(head))
        return self._matcher.matcher.fits(own)

    def restore(self, state: bytes) -> None:
        """Continues from a snapshot. Raises DataError if it does not fit."""
        head, own = _apart(state)
        self._matcher.share(_plan_in(head))
        self._matcher.restore(own)
        rates = head["rates"]
        self._rates = None if rates is None else EventRates(tuple(rates[0]), rates[1])
        self.events = head["events"]


def close_together(every: Sequence[SharedQueries]) -> list[dict[str, Matches]]:
    """See matching.workload_matcher.close_together."""
    return workload_matcher.close_together([queries._matcher for queries in every])


def _apart(state: bytes) -> tuple[dict[str, Any], bytes]:
    """Returns the head of a snapshot, and the state of its matcher."""
    size = int.from_bytes(state[:_HEAD], "little")
    return json.loads(state[_HEAD : _HEAD + size]), state[_HEAD + size :]


def _plan_in(head: Mapping[str, Any]) -> SharingPlan:
    return SharingPlan(tuple(SharedSet(tuple(queries), tuple(nodes)) for queries, nodes in head["sets"]))

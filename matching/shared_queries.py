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
from matching.workload import cost
from matching.workload.cost import EventRates
from matching.workload.graph import moved, pays, update
from matching.workload.modes import first_plan
from matching.workload.plan import SharedSet, SharingPlan
from matching.workload.sharing_mode import SharingMode
from matching.workload.template import Template
from matching.workload_matcher import QueriesFailed, WorkloadMatcher
from query.errors import DataError
from query.plan.expression import Expression
from query.plan.fingerprint import fingerprint
from query.plan.pattern import variables
from query.plan.plan import Plan

#: Bytes of the length of a snapshot's head.
_HEAD = 8
#: Events by which rates are measured, and in a whole window unless it has more than there are between two searches:
#: numbers grow in a window.
MEASURED_EVENTS = 5_000
#: Events from one search for a plan to the next: a search takes as long as some 2,000, whatever the number of queries,
#: and is to be a small part of the run.
BETWEEN_SEARCHES = 100_000
#: Events for which a plan is expected to last: a change is to pay for itself in these.
LASTS_EVENTS = 200_000


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
        self._next_search = 0
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

    @property
    def taken_bytes(self) -> int:
        """Returns the bytes of their rows and counts."""
        rows = self._matcher.matcher.rows
        return rows.used_bytes + rows.key_bytes

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

    def push(self, batch: EventBatch) -> dict[str, Matches]:
        """Takes events; returns the new rows of each query. Raises QueriesFailed."""
        try:
            found = self._matcher.push(batch)
        except QueriesFailed as failed:
            self.events += failed.taken
            raise
        self.events += len(batch)
        if self.mode.measures and self._measured:
            self.choose()
        return found

    def advance(self, watermark_us: int | None) -> dict[str, Matches]:
        """Closes the windows that end at the watermark or before; None: all. Returns the new rows of each query. Raises
        QueriesFailed; to be called again then."""
        return self._matcher.advance(watermark_us)

    def in_mode(self, mode: SharingMode, name: str, plan: Plan) -> SharedQueries:
        """Returns a copy with the state of one of the queries, of a plan that counts the same, in another mode."""
        found = self.only([name])
        found.mode = mode
        found.change({name: plan})
        return found

    def rename(self, name: str, new: str) -> None:
        """Gives a query another name."""
        self._matcher.rename(name, new)

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

    @property
    def _measured(self) -> bool:
        """True if enough events have come for rates."""
        engine = self._matcher.engine
        events = engine.measured_events
        return events >= MEASURED_EVENTS and (engine.measured_windows >= 1 or events >= BETWEEN_SEARCHES)

    def choose(self) -> None:
        """Chooses the plan by the rates since the last call, or compares it with others, if the mode asks for it and
        the last search is long enough ago; changes it if another one is better, by enough to pay for the change."""
        engine, template = self._matcher.engine, self.template
        lasts = engine.measured_windows * LASTS_EVENTS / engine.measured_events
        rates, was = engine.measured(), self._rates
        change = cost.WEIGHTS.carried * len(template.pairs) / lasts
        if was is None:
            plan, why = first_plan(self.mode, template, rates), "chosen for the first rates"
            kept, changed = (cost.cost(template, p, rates).total for p in (self.plan, plan))
            if self.mode is SharingMode.DYNAMIC and not pays(kept, changed, change):
                plan = self.plan
        elif self.mode is SharingMode.DYNAMIC and self.events >= self._next_search and moved(was, rates):
            plan, why = update(template, self.plan, was, rates, change)
        else:
            return
        self._rates, self._next_search = rates, self.events + BETWEEN_SEARCHES
        if plan != self.plan:
            self._matcher.share(plan)
            self.changes.append(PlanChange(self.events, why))

    def snapshot(self) -> bytes:
        """Returns all state, with the plan, for `restore` of the same queries in the same mode."""
        sets = [[s.queries, s.nodes] for s in self.plan.sets]
        rates = None if self._rates is None else (self._rates.events, self._rates.limbs, self._rates.windows)
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
        self._rates = None if rates is None else EventRates(tuple(rates[0]), *rates[1:])
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

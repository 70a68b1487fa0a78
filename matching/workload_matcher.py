"""The matcher of a workload: queries of one stream that are counted together, each with rows of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from matching.batch import EventBatch, Matches
from matching.engines.choose import rows_wanted
from matching.engines.engine import Engine, EnginePlan
from matching.engines.shared_trends import SharedTrends
from matching.kernels.trends import NONE
from matching.matcher import KernelMatcher, matches_of_windows
from matching.purpose import Purpose
from matching.rows import Rows
from matching.types import arrow_schema
from matching.workload.plan import SharingPlan, unshared
from matching.workload.program import Splitting, Workload, workload_program
from query.plan.fingerprint import fingerprint
from query.plan.output import output_columns
from query.plan.plan import Plan
from query.schema import Schema


class WorkloadMatcher:
    """Counts the trends of shareable queries with one key (matching.workload.program) by a sharing plan. Each query has
    the rows that it has on its own; sums of doubles may be rounded otherwise."""

    def __init__(
        self, plans: Mapping[str, Plan], sharing: SharingPlan | None = None, sources: tuple[str, ...] = ("default",),
        splitting: Splitting = Splitting.BY_SNAPSHOTS, purpose: Purpose = Purpose.MATCHES,
    ) -> None:  # fmt: skip
        """sharing: None: each query on its own. Raises NoKernel."""
        self._sources, self._purpose = sources, purpose
        self._begin(plans, sharing, splitting, None)

    def _begin(
        self, plans: Mapping[str, Plan], sharing: SharingPlan | None, splitting: Splitting, rows: Rows | None
    ) -> None:  # fmt: skip
        whole, program, self.table = workload_program(plans)
        self.plans = dict(plans)
        self._empty = {n: arrow_schema(Schema("", output_columns(p))).empty_table() for n, p in plans.items()}
        self._none: tuple[tuple[str, ...], dict[str, Matches]] | None = None  # empty results, for names of sources
        self._fingerprints = {n: fingerprint(p) for n, p in plans.items() if self._purpose is Purpose.IDENTIFIED}
        plan = unshared(self.table.template) if sharing is None else sharing
        resident = f"the engine, {SharedTrends.name}, keeps them in memory"
        chosen = EnginePlan(
            SharedTrends, "trends of many queries are counted together", self._purpose, program,
            wanted=rows_wanted(program), resident=resident, workload=Workload(self.table, plan, splitting),
        )  # fmt: skip
        self.matcher = KernelMatcher(whole, chosen, self._sources, rows=rows)

    def change(
        self, plans: Mapping[str, Plan], sharing: SharingPlan | None, splitting: Splitting = Splitting.BY_SNAPSHOTS
    ) -> None:  # fmt: skip
        """Goes on with other queries and another sharing plan; queries of the same name and plan continue, in open
        windows too, others begin with the next event. All rows must have been fetched. Raises NoKernel, and then
        nothing has changed."""
        old, was = self.matcher, self.plans
        number = {name: i for i, name in enumerate(was)}
        continues = [number[name] if was.get(name) == plan else NONE for name, plan in plans.items()]
        self._begin(plans, sharing, splitting, old.rows)
        self._take_over(old.engine, continues)
        old.rows.remove(old)

    @property
    def engine(self) -> SharedTrends:
        """Returns the engine."""
        assert isinstance(self.matcher.engine, SharedTrends)
        return self.matcher.engine

    def share(self, sharing: SharingPlan) -> None:
        """Goes on by another sharing plan, in open windows too. All rows must have been fetched."""
        workload = self.matcher.chosen.workload
        assert workload is not None
        old = self.matcher.go_on_by(replace(self.matcher.chosen, workload=replace(workload, plan=sharing)))
        self._take_over(old, range(len(self.plans)))

    def _take_over(self, old: Engine, queries: Sequence[int]) -> None:
        assert isinstance(old, SharedTrends)
        self.engine.reserve(len(self.matcher.keys))
        self.engine.take_over(old, queries)

    def push(self, batch: EventBatch) -> dict[str, Matches]:
        """Takes events; returns the new rows of each query. Raises DataError if a condition cannot be computed."""
        return self._of_queries(self.matcher.push(batch))

    def advance(self, watermark_us: int | None) -> dict[str, Matches]:
        """Closes the windows that end at the watermark or before; None: all. Returns the new rows of each query."""
        return self._of_queries(self.matcher.advance(watermark_us))

    def _of_queries(self, none: Matches) -> dict[str, Matches]:
        if self._none is None or self._none[0] != none.sources:
            self._none = none.sources, {name: replace(none, rows=rows) for name, rows in self._empty.items()}
        found = dict(self._none[1])
        if not self.engine.rows:
            return found
        for (name, plan), table, windows in zip(
            self.plans.items(), self.table.tables, self.engine.closed(), strict=True
        ):
            if len(windows):
                by = self._fingerprints.get(name)
                found[name] = matches_of_windows(plan, table, windows, self.matcher.keys, by, found[name])
        return found

    def snapshot(self) -> bytes:
        """Returns all state."""
        return self.matcher.snapshot()

    def restore(self, state: bytes) -> None:
        """Continues from a snapshot of a matcher of the same queries and plan."""
        self.matcher.restore(state)

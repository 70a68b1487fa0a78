"""The matcher of a workload: queries of one stream that are counted together, each with rows of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from matching.batch import EventBatch, Int64Array, Matches
from matching.engines.choose import rows_wanted
from matching.engines.engine import Engine, EnginePlan
from matching.engines.run_trends import too_large
from matching.engines.shared_trends import Other, SharedTrends, TooLarge
from matching.kernels.trends import NONE
from matching.matcher import KernelMatcher, matches_of_windows
from matching.purpose import Purpose
from matching.rows import Rows
from matching.types import arrow_schema
from matching.workload.plan import SharingPlan, unshared
from matching.workload.program import Workload, workload_program
from matching.workload.sharing_mode import Splitting
from query.errors import DataError
from query.plan.fingerprint import fingerprint
from query.plan.output import output_columns
from query.plan.plan import Plan
from query.schema import Schema


class QueriesFailed(DataError):
    """Queries that cannot go on; the others can, without them (WorkloadMatcher.change). errors: by name. found: rows of
    all queries that were complete before. taken: number of events of the batch that the others have taken; halfway: and
    the next one in some of its windows."""

    def __init__(
        self, errors: Mapping[str, DataError], found: Mapping[str, Matches], taken: int = 0, halfway: bool = False
    ) -> None:  # fmt: skip
        first = next(iter(errors.values()))
        super().__init__(first.message, first.hint)
        self.errors, self.found, self.taken, self.halfway = errors, found, taken, halfway


class WorkloadMatcher:
    """Counts the trends of shareable queries with one key (matching.workload.program) by a sharing plan. Each query has
    the rows that it has on its own; sums of doubles may be rounded otherwise."""

    def __init__(
        self, plans: Mapping[str, Plan], sharing: SharingPlan | None = None, sources: tuple[str, ...] = ("default",),
        splitting: Splitting = Splitting.BY_SNAPSHOTS, purpose: Purpose = Purpose.MATCHES,
    ) -> None:  # fmt: skip
        """sharing: None: each query on its own. Raises NoKernel."""
        self._sources, self.purpose = sources, purpose
        self._failures: dict[str, DataError] = {}
        self._begin(plans, sharing, splitting, None)

    def _begin(
        self, plans: Mapping[str, Plan], sharing: SharingPlan | None, splitting: Splitting, rows: Rows | None
    ) -> None:  # fmt: skip
        whole, program, self.table = workload_program(plans)
        self.plans = dict(plans)
        self._empty = {n: arrow_schema(Schema("", output_columns(p))).empty_table() for n, p in plans.items()}
        self._none: tuple[tuple[str, ...], dict[str, Matches]] | None = None  # empty results, for names of sources
        self._fingerprints = {n: fingerprint(p) for n, p in plans.items() if self.purpose is Purpose.IDENTIFIED}
        plan = unshared(self.table.template) if sharing is None else sharing
        resident = f"the engine, {SharedTrends.name}, keeps them in memory"
        chosen = EnginePlan(
            SharedTrends, "trends of many queries are counted together", self.purpose, program,
            wanted=rows_wanted(program), resident=resident, workload=Workload(self.table, plan, splitting),
        )  # fmt: skip
        self.matcher = KernelMatcher(whole, chosen, self._sources, rows=rows)

    def change(
        self, plans: Mapping[str, Plan], sharing: SharingPlan | None, splitting: Splitting = Splitting.BY_SNAPSHOTS
    ) -> None:  # fmt: skip
        """Goes on with other queries and another sharing plan; those of the same name continue if they count the same,
        in open windows too, others begin with the next event. All rows must have been fetched. Raises NoKernel, and
        then nothing has changed."""
        old, was = self.matcher, self.plans
        number = {name: i for i, name in enumerate(was)}
        continues = [
            number[name] if name in was and counts_the_same(was[name], plan) else NONE for name, plan in plans.items()
        ]
        self._begin(plans, sharing, splitting, old.rows)
        self._take_over(old.engine, continues)
        old.rows.remove(old)

    def rename(self, name: str, new: str) -> None:
        """Gives a query another name, in results and failures from now on."""
        self.plans = {new if n == name else n: plan for n, plan in self.plans.items()}
        self._empty = {new if n == name else n: rows for n, rows in self._empty.items()}
        self._fingerprints = {new if n == name else n: of for n, of in self._fingerprints.items()}
        self._none = None

    @property
    def engine(self) -> SharedTrends:
        """Returns the engine."""
        assert isinstance(self.matcher.engine, SharedTrends)
        return self.matcher.engine

    def absorb(
        self, plans: Mapping[str, Plan], others: Sequence[WorkloadMatcher],
        splitting: Splitting = Splitting.BY_SNAPSHOTS,
    ) -> None:  # fmt: skip
        """Goes on with the queries of other matchers too, which are unusable then. plans: of all, each by the name that
        it has in one of them. All have taken the same last event, and `close_together` was called for them. Raises
        NoKernel, and then nothing has changed."""
        old = self.matcher
        engines = [self.engine, *(other.engine for other in others)]
        names = [list(self.plans), *(list(other.plans) for other in others)]
        self._begin(plans, None, splitting, old.rows)
        of = [[mine.index(name) if name in mine else NONE for name in plans] for mine in names]
        into = [_same_keys(old.rows, other.matcher.rows) for other in others]
        self.engine.reserve(len(old.keys))
        self.engine.take_over(engines[0], of[0], list(map(Other, engines[1:], of[1:], into)))
        old.rows.remove(old)

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
        """Takes events; returns the new rows of each query. Raises QueriesFailed."""
        try:
            none = self.matcher.push(batch)
        except TooLarge as error:
            taken = int(np.flatnonzero(batch.seq == self.matcher.store.seq[error.position])[0])
            raise QueriesFailed(self._too_large(error), self._rows_so_far(), taken, error.halfway) from None
        except DataError:
            row = self.matcher.failed_at
            if row is None or not (errors := self._not_computed(row)):
                raise
            taken = int(np.flatnonzero(batch.seq == self.matcher.store.seq[row])[0])
            raise QueriesFailed(errors, self._rows_so_far(), taken) from None
        return self._of_queries(none)

    def end_row(self) -> None:
        """Ends an event that was taken in some of its windows before a failure; to be called after it was pushed once
        more, which ends it unless no query takes it any longer."""
        self.engine.end_row()

    def advance(self, watermark_us: int | None) -> dict[str, Matches]:
        """Closes the windows that end at the watermark or before; None: all. Returns the new rows of each query. Raises
        QueriesFailed; to be called again then."""
        try:
            return self._of_queries(self.matcher.advance(watermark_us))
        except TooLarge as error:
            raise QueriesFailed(self._too_large(error), self._rows_so_far()) from None

    def _too_large(self, error: TooLarge) -> dict[str, DataError]:
        names = list(self.plans)
        return {names[q]: too_large() for q in sorted(error.queries)}

    def _rows_so_far(self) -> dict[str, Matches]:
        return self._of_queries(self.matcher.emit())

    def _not_computed(self, row: int) -> dict[str, DataError]:
        """Returns the errors of the queries of which a condition or a value cannot be computed for the row at a
        position of the store."""
        values, store, program = self.matcher.values, self.matcher.store, self.matcher.program
        _, failing = values.attempt(store, np.array([row], np.int64))
        first_value = len(values.expressions) - len(program.features)
        errors = {}
        for (name, _), path, table in zip(self.plans.items(), self.table.template.queries, self.table.tables):
            conditions = [program.local[label] for label in set(path.labels.values())]
            read = [values.expressions.index(e) for e in conditions if e in values.expressions[:first_value]]
            read += [first_value + self.table.features.index(f) for f in table.features]
            failed = [i for i in read if (found := failing[i]) is not None and found.any()]
            if failed:
                errors[name] = values.why(store, row, min(failed))
        return errors

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
                try:
                    found[name] = matches_of_windows(plan, table, windows, self.matcher.keys, by, found[name])
                except DataError as error:
                    self._failures.setdefault(name, error)
        return found

    def take_failures(self) -> dict[str, DataError]:
        """Returns the queries whose rows could not be made since the last call."""
        failures, self._failures = self._failures, {}
        return failures

    def snapshot(self) -> bytes:
        """Returns all state."""
        return self.matcher.snapshot()

    def restore(self, state: bytes) -> None:
        """Continues from a snapshot of a matcher of the same queries and plan."""
        self.matcher.restore(state)


def counts_the_same(one: Plan, other: Plan) -> bool:
    """True if two queries of trends differ at most in what their rows show of the same aggregates."""
    return one is other or replace(one, measures=()) == replace(other, measures=())


def close_together(matchers: Sequence[WorkloadMatcher]) -> list[dict[str, Matches]]:
    """Closes the windows of each that one of them has closed. Returns the new rows of each. Raises TooLarge, and then
    no row is lost."""
    closed = [window for m in matchers if (window := m.engine.closed_before) is not None]
    for m in matchers:
        if m.engine.closed_before is not None:
            m.engine.close_before(max(closed))
    return [m._rows_so_far() for m in matchers]


def _same_keys(rows: Rows, others: Rows) -> Int64Array:
    """Returns, by partition of other rows, the partition with its key in `rows`, made if there is none; any for a
    partition without a key."""
    count = len(others.keys)
    used = np.setdiff1d(np.arange(count), others.keys.free)
    found = np.zeros(count, np.int64)
    keys = [others.keys.values(i, used) for i in range(len(rows.partition_by))]
    found[used] = rows.keys.encode(keys, len(used))
    return found

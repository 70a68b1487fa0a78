"""Loads the modules and kernels of a first statement, for a process that forks children (tests.forked). No thread may
run there, so DuckDB is left alone."""

from __future__ import annotations

import threading

import hybrid.database.database
import hybrid.service.service
import hybrid.statement.statement  # noqa: F401
from matching.engines.run_lists import RunLists
from matching.engines.run_starts import RunStarts
from matching.engines.run_table import RunTable
from query.language.ast import Selection
from query.language.read import grammar
from query.plan.expression import Column
from tests import plans
from tests.engines import matcher_by
from tests.events import batch_of

_ROWS = [{"ts": second * 1_000_000, "price": float(second % 3), "vol": second % 2} for second in range(6)]


def _match() -> None:
    """Loads kernels, of which the first one makes numba look at all that it knows."""
    pattern = plans.sequence(plans.A, plans.star(plans.B))
    keyed = {"partition_by": (Column("vol", "BIGINT"),), "selection": Selection.PARTITION}
    plan = plans.plan_of(pattern, **keyed)
    for engine in (RunTable, RunStarts, RunLists):
        matcher = matcher_by(plan, engine)
        matcher.push(batch_of(plans.SCHEMA, _ROWS))
        matcher.advance(None)


grammar()
_match()
assert threading.active_count() == 1

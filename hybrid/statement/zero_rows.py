"""One line about a result without rows: how many rows met each condition, and how far the longest attempt came."""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import wraps
from itertools import groupby, islice
from typing import ParamSpec

from archive.reader import RangeRequest
from archive.snapshot import HistorySnapshot
from hybrid.rows.inputs import OrderedInput, time_of
from hybrid.rows.words import counted
from hybrid.statement.relations import Relations
from matching.batch import EventBatch
from matching.by_reference import DuckEvaluation, to_python
from query.attempts import AttemptSummary, attempts
from query.plan.plan import FactorPlan, Plan, QueryPlan

P = ParamSpec("P")

#: Most rows that are looked at, and tests of rows by attempts; and the time after which it is enough.
ROWS_MAX = 10_000
TESTS_MAX = 100_000
SECONDS_MAX = 2.0


def _said(explain: Callable[P, str]) -> Callable[P, str]:
    """Lets a function return nothing where it fails: the result that it explains is there without it."""

    @wraps(explain)
    def saying(*args: P.args, **kwargs: P.kwargs) -> str:
        try:
            return explain(*args, **kwargs)
        except Exception:  # noqa: BLE001  (the input may have changed, its connection may be closed)
            return ""

    return saying


@_said
def why_empty(plan: QueryPlan, relations: Relations, found: Sequence[int]) -> str:
    """Returns why a statement gives no row, empty if that is not known. found: the numbers of rows of its patterns;
    none: no pattern has a row."""
    counts = found or [0] * len(plan.factors)
    if not plan.factors or 0 not in counts:
        return _around(counts[-1]) if plan.factors else ""
    factor = plan.factors[counts.index(0)]
    return _why_no_match(factor, *_sample(factor, relations))


@_said
def why_empty_stream(factor: FactorPlan, snapshot: HistorySnapshot, request: RangeRequest, found: int) -> str:
    """Returns why a pattern over the events of a stream gives no row. found: number of its rows before the SELECT."""
    count = snapshot.stretch_rows(request.low_us, request.high_us)[0]
    return _around(found) if found else _why_no_match(factor, snapshot.batches(request), count)


def unknown(found: int) -> str:
    """Returns why patterns over several streams, or over rows of patterns, give no row."""
    return _around(found) if found else ""


def _around(found: int) -> str:
    return f"The pattern has {counted(found, 'row')}, and the SELECT around it keeps none"


def _why_no_match(factor: FactorPlan, batches: Iterable[EventBatch], total: int | None) -> str:
    """Returns why the first rows have no match. batches: rows in the total order. total: their number, None if that is
    not known."""
    plan, over_s = factor.plan, clock.monotonic() + SECONDS_MAX
    if plan.trends is not None or plan.boxes:
        return ""
    columns: dict[str, list[object]] = {name: [] for name in plan.schema.names}
    ts_us: list[int] = []
    for batch in _first(batches, ROWS_MAX + 1):
        for field in plan.schema.fields:
            there = field.name in batch.columns.schema.names  # a column that the plan does not read may be absent
            cells = to_python(batch.columns.column(field.name), field.type) if there else [None] * len(batch)
            columns[field.name] += cells
        ts_us += batch.ts_us.tolist()
    rows = [dict(zip(columns, cells)) for cells in islice(zip(*columns.values()), ROWS_MAX)]
    if not rows:
        return f"{plan.schema.name} has no rows"
    tried = attempts(
        plan, rows, ts_us[:ROWS_MAX], DuckEvaluation(plan.settings), TESTS_MAX, lambda: clock.monotonic() > over_s
    )
    if tried.matches:
        kept = f"The pattern has {counted(tried.matches, 'match')}, and the joined history keeps none"
        return kept if factor.histories else ""
    parts = []
    if tried.rows < len(ts_us):
        parts.append(f"the first {tried.rows:,}{'' if total is None else f' of {total:,}'} rows")
    if conditions := _conditions(tried):
        parts.append(f"conditions alone: {conditions}")
    parts.append(_longest(plan, tried))
    line = "; ".join(parts)
    return line[0].upper() + line[1:]


def _sample(factor: FactorPlan, relations: Relations) -> tuple[Iterable[EventBatch], int | None]:
    """Returns the first rows of an input in order, and the number of all, None if that is not known. Of a large table
    the first ones are those that it begins with."""
    plan, text = factor.plan, factor.input_sql
    stream = relations.stream(text)
    if factor.members or stream is not None:
        return relations.factor(factor)[0], None if stream is None else stream.snapshot.rows_max
    table, flowing = relations.kept(text), None
    if table is None:
        with relations.open():
            flowing = relations.flowing(factor)
            table = relations.rows(text, plan.schema.name, plan.columns) if flowing is None else flowing.first
    some = table.slice(0, ROWS_MAX + 1)
    ordered = OrderedInput.of(plan.schema.name, some, plan.order_by, time_of(plan.order_by))
    return ordered.batches(plan.columns), None if flowing is not None else table.num_rows


def _first(batches: Iterable[EventBatch], most: int) -> Iterator[EventBatch]:
    """Yields the first rows."""
    for batch in batches:
        yield batch.slice(0, min(most, len(batch)))
        most -= len(batch)
        if most <= 0:
            return


def _conditions(tried: AttemptSummary) -> str:
    found = []
    for name, (met, tested, alone) in tried.conditions.items():
        if tested:
            rows = f"{met:,} of {tested:,} {'rows' if alone else 'rows tried'}"
            found.append(f"{name} {rows}{'' if met else ' (never true)'}")
    return ", ".join(found)


def _longest(plan: Plan, tried: AttemptSummary) -> str:
    """Returns how far the longest attempt came, and what it waited for."""
    runs = [(name, len(list(run))) for name, run in groupby(tried.longest)]
    shown = " ".join(name if n == 1 else f"{name}{{{n}}}" for name, n in runs)
    waited = " or ".join(tried.waited)
    if not shown:
        return f"no attempt: no row is {waited}"
    longest = f"longest attempt{'' if tried.whole else ' of those made'}: {shown}"
    if tried.violated:
        return f"{longest}, but {' and '.join(tried.violated)} occurs"
    within = ""
    if plan.within is not None and plan.within.interval_us is not None:
        within = f" within {timedelta(microseconds=plan.within.interval_us)}"
    elif plan.within is not None:
        within = f" within {counted(plan.within.rows or 0, 'row')}"
    return f"{longest}, then no {waited}{within}" if waited else longest

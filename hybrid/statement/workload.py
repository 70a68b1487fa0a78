"""EXPLAIN of a workload: queries of trends that can be counted together, and the plan by which they are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from hybrid.rows.faults import check_sharing
from hybrid.statement.relations import Relations
from hybrid.statement.stream_input import StreamInput
from matching.batch import EventBatch
from matching.program.program import NoKernel
from matching.shared_queries import MEASURED_EVENTS, SharedQueries, groups_of
from matching.workload.cost import show_cost, show_rates
from matching.workload.graph import sharing_graph
from matching.workload.program import shareable, workload_key
from matching.workload.sharing_mode import SharingMode
from query.language.named import used_patterns
from query.language.parse import parse
from query.plan.plan import Plan

NO_MODES: Mapping[str, str] = MappingProxyType({})
NO_STREAMS: Mapping[str, StreamInput] = MappingProxyType({})
#: Modes whose plans depend on the rates of events.
MEASURING = (SharingMode.STATIC, SharingMode.DYNAMIC)
#: Events of a batch, after which a plan may change.
BATCH_EVENTS = 4_096


def explain_workload(
    texts: Mapping[str, str], tables: Mapping[str, Any], sharing: str = "dynamic", modes: Mapping[str, str] = NO_MODES,
    patterns: Mapping[str, str] | None = None, streams: Mapping[str, StreamInput] = NO_STREAMS,
) -> str:  # fmt: skip
    """Returns, for each group of queries that can be counted together, their template, and after a run over the events
    of their table the rates, the sharing plan graph, the plan, its cost and its changes; and of each other query why it
    is counted alone. texts: statements by name. sharing: none, hamlet, static or dynamic; modes: those of single
    queries. patterns: the named patterns that the statements may use, by name in lower case. streams: snapshots of
    streams that they may read, by name in lower case. Raises QueryError, DataError. Cost: that of the queries."""
    for mode in (sharing, *modes.values()):
        check_sharing(mode, mode)
    groups: dict[tuple[object, ...], dict[str, Plan]] = {}
    events: dict[tuple[object, ...], list[EventBatch]] = {}
    alone: dict[str, str] = {}
    for name, text in texts.items():
        used = used_patterns(text, patterns or {}, [*tables, *streams])
        relations = Relations(text, tables, streams, patterns=used)
        query = parse(text, relations.names(), relations.patterns)
        with relations.open():
            plan = relations.bind(query)
            why: str | None
            if len(plan.factors) != 1:
                why = "it has several patterns" if plan.factors else "it has no pattern"
            elif plan.factors[0].histories:
                why = "it is joined with history"
            else:
                why = shareable(plan.factors[0].plan)
            if why is not None:
                alone[name] = why
                continue
            pattern = plan.factors[0].plan
            key = (modes.get(name, sharing), *workload_key(pattern))
            groups.setdefault(key, {})[name] = pattern
            relations.load(plan)
            batches, _, _ = relations.factor(plan.factors[0], again=False)
            events[key] = _with_columns(events.get(key), list(batches))
    parts = [
        _explained(group, events[key], SharingMode(key[0]))
        for key, plans in groups.items()
        for group in groups_of(plans)
    ]
    parts += [f"{'alone':<12}{name}: {why}" for name, why in alone.items()]
    return "\n\n".join(parts)


def _with_columns(batches: list[EventBatch] | None, more: list[EventBatch]) -> list[EventBatch]:
    """Returns the events of one table with the columns that several queries read."""
    if batches is None:
        return more
    found = []
    for one, other in zip(batches, more, strict=True):
        columns = dict(zip(one.columns.schema.names, one.columns.columns, strict=True))
        columns |= dict(zip(other.columns.schema.names, other.columns.columns, strict=True))
        found.append(replace(one, columns=pa.RecordBatch.from_pydict(columns)))
    return found


def _explained(plans: Mapping[str, Plan], batches: list[EventBatch], mode: SharingMode) -> str:
    try:
        queries = SharedQueries(plans, mode)
    except NoKernel as construct:
        return "\n".join(f"{'alone':<12}{name}: {construct}" for name in plans)
    for batch in batches:
        for begin in range(0, len(batch), BATCH_EVENTS):
            queries.push(batch.slice(begin, min(len(batch), begin + BATCH_EVENTS)))
    queries.advance(None)
    template, rates = queries.template, queries.rates
    shown = [f"{'mode':<12}{mode.value}", str(template)]
    if rates is not None:
        graph = sharing_graph(template, rates)
        shown += [show_rates(template, rates), str(graph), queries.plan.show(template)]
        shown.append(show_cost(template, queries.plan, rates))
    else:
        shown.append(queries.plan.show(template))
    if rates is None and mode in MEASURING and len(plans) > 1:
        shown.append(f"{'rates':<12}not measured: that takes {MEASURED_EVENTS:,} events and a whole window, "
                     f"and there are {queries.events:,} events")
    changes = [f"at event {c.events:,}: {c.why}" for c in queries.changes]
    shown += [f"{'' if i else 'changes':<12}{line}" for i, line in enumerate(changes)]
    return "\n".join(shown)

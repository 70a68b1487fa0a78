"""A backtest: the result of a live query over a stretch of the archive, at reading speed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain as one_after_another

import pyarrow as pa

from archive.reader import HistoryReader, RangeRequest
from archive.search.prefilter import windows_of
from archive.snapshot import HistorySnapshot
from hybrid.join.driver import Driver
from hybrid.join.pattern_history import views
from hybrid.join.spark_ranges import LargeRanges
from hybrid.join.strategies import strategy_of
from hybrid.rows.alert_once import Suppressor, alerts_among
from hybrid.rows.answer import answer_of
from hybrid.rows.duck import Access
from hybrid.rows.inputs import SORTED_MAX
from hybrid.rows.lookup import lookup_in
from hybrid.rows.outer import Outer, empty_answer
from hybrid.rows.result import Result, evidence_table, series
from hybrid.statement import zero_rows
from hybrid.statement.explain import explain_live
from hybrid.statement.narrow import narrow_first
from hybrid.statement.relations import Bounded
from hybrid.statement.statement import found_again, joining_matcher, live_matcher, may_be_wide
from hybrid.statement.stream_input import StreamInput
from hybrid.watch.backfill import steps
from hybrid.watch.chain import PatternChain, outermost, plain, plan_streams, streams_beside
from hybrid.watch.query_spec import END_US
from matching.batch import EventBatch, Matcher, Matches
from matching.drive import run
from matching.purpose import Purpose
from query.errors import Overflows
from query.language import ast
from query.plan.joined_rows import joins_of
from query.plan.plan import Plan, QueryPlan
from query.stopping import expect

#: By stream, by name in lower case: the time before which its events are; None: all, and then its end.
Ends = Mapping[str, int | None]


def backtest(
    query: ast.QuerySyntax, plan: QueryPlan, outer: Outer, static: Mapping[str, pa.Table], inputs: Mapping[str,
    StreamInput],
    start_us: int, ends: Ends, large: LargeRanges | None, as_live: bool = False,
) -> Result:  # fmt: skip
    """Returns the result of the query over the on-time events from start_us on. ends: by stream, the time before which
    its events are (None: all, and then the end of the stream). inputs: streams, by name in lower case. large: searches
    large ranges of history; None: they are read like others. as_live: the ends are watermarks, and the events ahead of
    them have come, too."""
    factor = plan.factors[-1]
    snapshots = {key: stream.snapshot for key, stream in inputs.items()}
    strategy = strategy_of("auto")
    reader: HistoryReader
    why: Callable[[int], str] = zero_rows.unknown
    if plain(plan):
        name = plan_streams(plan)[0]
        reader = snapshot = snapshots[name]
        until_us = None if as_live and inputs[name].at_once else ends[name]
        request = RangeRequest(start_us, until_us, columns=factor.plan.columns)

        def find(plan: Plan) -> list[Matches]:
            return _in_stream(plan, snapshot, request, ends[name], _joining(plan, inputs, ends))

        found = narrow_first(factor.plan, find)
        why = partial(zero_rows.why_empty_stream, factor, snapshot, request)
    else:
        found, reader = _in_chain(plan, static, inputs, start_us, ends, as_live, outer.access)
    bounded = _bounded((name for h in factor.histories for name in h.streams), inputs, ends)
    joined = views(factor.histories, bounded)
    if factor.histories:
        driver = Driver(factor, strategy, live_matcher, in_order=plan.alert is not None, spark=large)
        driver.take(found)
        answered = driver.settle(joined)
        rows = answered if answered is not None else empty_answer(factor)
    else:
        rows = answer_of(factor.plan, found)
    table = outer.run([rows])
    lookups = (lookup_in(reader), tuple(lookup_in(joined[h.schema.name.lower()].reader()) for h in factor.histories))
    top = outermost(plan)
    origins, suppressed = None, None
    if plan.alert is not None:
        suppressor = Suppressor(plan.alert, table.schema)
        table, at = alerts_among(suppressor, outer, factor, rows, table)
        origins, suppressed = [at], suppressor.suppressed()
    return Result(
        table, top, lambda n: evidence_table(top, [rows], origins or outer.sources([rows]), [lookups], n),
        lambda stage: explain_live(query, plan, strategy, stage), lambda low, high: series(lookups[0], low, high),
        suppressed, why_empty=lambda: why(len(rows)),
    )  # fmt: skip


def _bounded(names: Iterable[str], inputs: Mapping[str, StreamInput], ends: Ends) -> dict[str, Bounded]:
    """Returns the histories of streams, each up to its end."""
    return {
        name: Bounded(inputs[name].snapshot, inputs[name].begins_us, ends[name], ends[name] is None)
        for name in dict.fromkeys(names)
    }


def _joining(plan: Plan, inputs: Mapping[str, StreamInput], ends: Ends) -> Matcher:
    """Returns the matcher of a pattern, whose boxes may be joined with history."""
    histories = joins_of(plan)
    bounded = _bounded((name for h in histories for name in h.streams), inputs, ends)
    return joining_matcher(plan, views(histories, bounded), Purpose.LIVE) if bounded else live_matcher(plan)


def _in_stream(
    plan: Plan, snapshot: HistorySnapshot, request: RangeRequest, end_us: int | None, matcher: Matcher
) -> list[Matches]:
    """Returns the matches of a pattern over one stream. Reads only events that can be part of a match."""
    count = snapshot.stretch_rows(request.low_us, request.high_us)[0]
    windows, _ = windows_of(snapshot, plan, request, None, count)
    if windows is None:
        expect(count)

    def events() -> Iterable[EventBatch]:
        return snapshot.batches(request, windows=windows, sorted_max=SORTED_MAX)

    try:
        return list(run(matcher, events(), end_us))
    except Overflows as overflow:
        if not may_be_wide(plan, overflow) or plan.boxes or plan.trends is not None:
            raise
        return found_again(plan, overflow, lambda plan, make: list(run(make(plan), events(), end_us)))


def _in_chain(
    plan: QueryPlan, static: Mapping[str, pa.Table], inputs: Mapping[str, StreamInput], start_us: int, ends: Ends,
    as_live: bool, access: Access,
) -> tuple[list[Matches], HistoryReader]:  # fmt: skip
    """Returns the matches of the last of several patterns, or of one over several streams, and the reader of their
    events."""
    names = plan_streams(plan)
    snapshots = {name: inputs[name].snapshot for name in names}
    schemas = {name: inputs[name].schema for name in names}
    beside = _bounded(streams_beside(plan), inputs, ends)
    chain = PatternChain(plan, schemas, static, lambda one: _joining(one, inputs, ends), access, beside)
    columns = {name: chain.columns(name) for name in names}
    past = steps(names, snapshots, dict.fromkeys(names, start_us), ends, columns)
    last = [(name, None, END_US if (end := ends[name]) is None else end) for name in chain.streams]
    known = [step for step in last if step[0] not in names]  # histories are there from the start
    found = []
    ahead = (  # what must wait is held back by the chain
        (name, snapshots[name].read(RangeRequest(ends[name], columns=columns[name])), None)
        for name in names if as_live and ends[name] is not None
    )  # fmt: skip
    for step in one_after_another(known, past, (step for step in last if step[0] in names), ahead):
        found += chain.push(*step)
        if chain.failure is not None:
            raise chain.failure
    return found, chain.reader(snapshots)

"""Inputs of statements and backtests: snapshots of the streams of a database."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hybrid.database.opened import Opened
from hybrid.database.planned import Planned, planned
from hybrid.join.spark_ranges import LargeRanges
from hybrid.rows.duck import interruptible
from hybrid.rows.faults import placed_live
from hybrid.rows.result import Result
from hybrid.rows.times import instant_us
from hybrid.statement.progress import of_statement, progress
from hybrid.statement.stream_input import StreamInput
from hybrid.watch.backtest import Ends, backtest
from hybrid.watch.stream import Stream
from matching.batch import TIME_END_US
from matching.ordering import passes_at_once
from query.errors import DataError, NotComputed, QueryError
from query.language.cut import lacks_input
from query.stopping import Stop


def input_of(stream: Stream, late: bool) -> StreamInput:
    """Returns a snapshot of a stream. late: include late events."""
    at_once = passes_at_once(stream.schema) and len({*stream.live.offsets, *stream.live.expected}) <= 1
    reached_us = stream.files_reach_us() if stream.watermark_us is None else stream.watermark_us
    return StreamInput(
        stream.schema, stream.kept.snapshot(), stream.begins_us(), late,
        watermark_us=-TIME_END_US if reached_us is None else reached_us, at_once=at_once, ended=stream.ended,
    )  # fmt: skip


def inputs_of(
    opened: Opened, text: str, patterns: Mapping[str, str], late: bool, in_files: bool
) -> dict[str, StreamInput]:
    """Returns one snapshot of the streams that a statement and the named patterns that it uses name, by name in lower
    case. in_files: flush their events
    first, because Spark reads files only. A stream whose history Spark may search is flushed too."""
    words = {w.lower() for one in (text, *patterns.values()) for w in re.findall(r"\w+", one)}
    words |= opened.streams.keys() if lacks_input(text) else set()
    asked = {key: stream for key, stream in opened.streams.items() if key in words}
    for stream in asked.values():
        if in_files or ("history" in words and _may_be_large(opened, stream)):
            stream.kept.flush()
    return {key: input_of(stream, late) for key, stream in asked.items()}


def _may_be_large(opened: Opened, stream: Stream) -> bool:
    return opened.large is not None and stream.kept.snapshot().rows_max > opened.large.events_max


def backtests(
    opened: Opened, texts: Sequence[str], start: Any, end: Any, tables: Mapping[str, Any], stop: Stop
) -> list[Result]:
    """Returns the results of several queries over the same events. start, end: see Database.backtest. stop: that the
    work asks. Call it without the lock. Raises DataError and QueryError."""
    start_us = instant_us(start, "the start of a backtest")
    end_us = None if end is None else instant_us(end, "the end of a backtest")
    if end_us is not None and start_us > end_us:
        raise DataError("a backtest ends before it starts", "backtest(text, start, end)")
    return _replayed(opened, texts, tables, stop, start_us, end_us)


def answered_live(opened: Opened, text: str, tables: Mapping[str, Any], stop: Stop) -> Result:
    """Returns the rows that a watch of all kept events has given by now. stop: see `backtests`."""
    (result,) = _replayed(opened, (text,), tables, stop, -TIME_END_US, None, as_live=True)
    return result


def _replayed(
    opened: Opened, texts: Sequence[str], tables: Mapping[str, Any], stop: Stop, start_us: int,
    end_us: int | None, as_live: bool = False,
) -> list[Result]:  # fmt: skip
    with opened.lock:
        opened.check()
        opened.refresh()
        plans = [planned(text, tables, opened.streams, opened.access, opened.used(text, tables)) for text in texts]
        for history in {name: s for one in plans for name, s in one.histories.items()}.values():
            if _may_be_large(opened, history):
                history.kept.flush()
        inputs = {key: input_of(stream, late=False) for key, stream in opened.streams.items()}
    ends = {key: None if one.ended else one.watermark_us for key, one in inputs.items()}
    ends = ends if as_live else dict.fromkeys(inputs, end_us)
    with interruptible(), progress(of_statement(stop)):
        return [_backtest(one, inputs, start_us, ends, as_live, opened.large) for one in plans]


def _backtest(
    one: Planned, inputs: Mapping[str, StreamInput], start_us: int, ends: Ends, as_live: bool,
    large: LargeRanges | None,
) -> Result:  # fmt: skip
    try:
        return backtest(one.query, one.plan, one.outer, one.static, inputs, start_us, ends, large, as_live)
    except (QueryError, NotComputed) as error:
        raise placed_live(error, one.query, one.plan) from None

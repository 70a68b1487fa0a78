"""Rewind: sets the watermark of a stream back, sets later events aside, and judges the others again."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
import pyarrow as pa

from archive.interrupts import handle_waiting
from archive.place import Place
from archive.reader import RangeRequest
from hybrid.statement.progress import Far
from hybrid.watch.flow import Flow
from hybrid.watch.in_feed import feed_of
from hybrid.watch.late import LateShare, late_schema, late_table
from hybrid.watch.live_query import LiveQuery
from hybrid.watch.merged_feed import least_watermark
from hybrid.watch.stream import REWIND, Stream
from live.stream import LiveStream
from live.watermark import BoolArray, Watermark
from matching.batch import EventBatch, Int64Array
from matching.feed import Feed
from matching.spill import Spill

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rewound:
    """The result of a rewind. aside: the events beyond the time, with `_source` and `_offset`; they are archived as
    late ones. on_time, late: number of events that changed from late to on time, and the reverse. replayed: number of
    events judged again. queries: the names of the queries that have replayed them; lost: the names of those whose
    events are not all kept."""

    stream: str
    aside: pa.Table
    on_time: int
    late: int
    replayed: int
    watermark_us: int | None
    queries: tuple[str, ...]
    lost: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Verdicts on the events of a stream from an ingest sequence on. late: int64, ascending, the sequences of late
    events; aside: those of them beyond the time. standing: the watermark before them. events: number of events judged;
    were_late: those that were late before; on_time: those of were_late that are on time now."""

    from_seq: int
    late: Int64Array
    aside: Int64Array
    standing: Watermark
    events: int
    were_late: int
    on_time: int


def first_wrong(stream: Stream, to_us: int) -> int:
    """Returns the first ingest sequence whose verdict may be wrong: that of the first on-time event beyond the time or,
    if the clock alone has raised the watermark, of the first event after the last on-time one."""
    snapshot = stream.kept.snapshot()
    after = _heeding(snapshot.batches(RangeRequest(to_us + 1)))
    beyond = [int(s.min()) for b in after if len(s := b.seq[b.seq >= 0])]
    if beyond:
        return min(beyond)
    return 1 + max((int(b.seq[~late].max()) for b, late in _heeding(snapshot.since(0)) if not late.all()), default=-1)


def judged(stream: Stream, from_seq: int, to_us: int, told: Callable[[Far], None] = lambda far: None) -> Verdicts:
    """Judges all kept events, in order of arrival. A source that is silent now (idle, or a finished file) holds the
    watermark back until its last event. told: called with how far it is."""
    watermark = Watermark(stream.schema.lateness_us)
    standing: Watermark | None = None
    none = np.zeros(0, np.int64)
    late, aside = [none], [none]
    events = were_late = on_time = 0
    ends = _ends(stream)
    snapshot, seen = stream.kept.snapshot(), 0
    for whole, whole_marks in _heeding(snapshot.since(0)):
        told(_far("looked at", seen, snapshot.rows_max))
        seen += len(whole)
        for batch, marks, silent in _pieces(whole, whole_marks, from_seq, ends):
            if batch.seq[0] < from_seq:
                _observe(watermark, batch.take(np.flatnonzero(~marks)))  # late events do not raise the watermark
            else:
                standing = standing or Watermark.from_dict(watermark.lateness_us, watermark.to_dict())
                out = batch.ts_us > to_us
                verdict, inside = out.copy(), np.flatnonzero(~out)
                verdict[inside] = _observe(watermark, batch.take(inside))
                late.append(batch.seq[verdict])
                aside.append(batch.seq[out])
                events += len(batch)
                were_late += int(np.count_nonzero(marks))
                on_time += int(np.count_nonzero(marks & ~verdict))
            if silent:
                watermark.idle(silent)
    return Verdicts(
        from_seq, np.concatenate(late), np.concatenate(aside), standing or watermark, events, were_late, on_time
    )


def _heeding(batches: Iterable[T]) -> Iterator[T]:
    """Yields batches; raises KeyboardInterrupt if a Ctrl-C waits."""
    for batch in batches:
        handle_waiting()
        yield batch


def _ends(stream: Stream) -> dict[int, str]:
    """Returns, by ingest sequence of its last event, each source that is silent now."""
    silent: set[str] = set(stream.live.to_dict()["watermark"]["idle"])
    last: dict[str, int] = {}
    for batch, _ in _heeding(stream.kept.snapshot().since(0)) if silent else ():
        for code in np.unique(batch.source).tolist():
            if batch.sources[code] in silent:
                last[batch.sources[code]] = int(batch.seq[batch.source == code].max())
    return {seq: source for source, seq in last.items()}


def _pieces(
    batch: EventBatch, marks: BoolArray, from_seq: int, ends: dict[int, str]
) -> Iterator[tuple[EventBatch, BoolArray, list[str]]]:
    """Cuts a batch at an ingest sequence and after the last events of sources. Yields each piece, its marks, and the
    source that ends with it."""
    last = [i + 1 for i in np.flatnonzero(np.isin(batch.seq, np.fromiter(ends, np.int64, len(ends)))).tolist()]
    cuts = sorted({0, int(np.searchsorted(batch.seq, from_seq)), *last, len(batch)})
    for begin, end in pairwise(cuts):
        piece = batch.slice(begin, end)
        yield piece, marks[begin:end], [ends[seq] for seq in (int(piece.seq[-1]),) if seq in ends]


def _observe(watermark: Watermark, batch: EventBatch) -> BoolArray:
    """Returns which of the events are late, bool (n,)."""
    late = np.zeros(len(batch), np.bool_)
    cuts = np.flatnonzero(np.diff(batch.source)) + 1
    for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(batch)]):
        if begin < end:
            late[begin:end] = watermark.observe(batch.sources[batch.source[begin]], batch.ts_us[begin:end])
    return late


def rewound(
    flow: Flow, stream: Stream, to_us: int, spill: Spill | None, trouble: list[str],
    told: Callable[[Far], None] = lambda far: None, abandon: bool = False,
) -> Rewound:  # fmt: skip
    """Judges the events of a stream again, marks them, and replays them for its readers. spill: where partial matches
    go that do not fit in memory. Adds warnings to `trouble`. told: called with how far it is. abandon: a Ctrl-C may
    leave it unfinished, as a crash does, and the stream is of no use then. The caller ensures that no history is being
    read, and persists the stream and the queries afterwards. Raises DataError, and KeyboardInterrupt if a Ctrl-C waits
    before the marks are changed, or with abandon."""
    name, was = stream.schema.name.lower(), stream.live
    queries = [q for q in flow.queries if name in q.events.streams and not q.events.left]
    members = [q for q in queries if q.events.member is not None]
    stream.kept.flush()
    from_seq = begun(stream.directory)
    verdicts = judged(stream, first_wrong(stream, to_us) if from_seq is None else from_seq, to_us, told)
    _begin(stream.directory, verdicts.from_seq)
    try:
        stream.kept.mark_late(verdicts.from_seq, verdicts.late)
    except KeyboardInterrupt:  # it has changed nothing
        if from_seq is None:
            finished(stream)
        raise
    for query in members:
        query.events.leave()
    flow.queries = [q for q in flow.queries if q not in queries]
    stream.live, stream.anchor_us, stream.lately = _standing(stream, verdicts), None, LateShare()
    for query in queries:
        query.forget_from(verdicts.from_seq, least_watermark(query.events.streams))
    waiting = sorted([(q.events.begun.seq(name), q) for q in queries], key=lambda one: one[0])
    lost: list[str] = []
    replayed = 0
    try:
        if any(query.events.names_sequences for query in members):
            with flow.within_budget():
                _order_anew(stream, feed_of(stream, spill, flow.searches))
        for batch, _ in stream.kept.snapshot().since(verdicts.from_seq):
            begin = 0
            if abandon:
                handle_waiting()
            told(_far("replayed", replayed, verdicts.events))
            replayed += len(batch)
            while begin < len(batch):
                lost += _go_on(flow, stream, waiting, int(batch.seq[begin]))
                end = len(batch) if not waiting else int(np.searchsorted(batch.seq, waiting[0][0]))
                part = batch.slice(begin, end)
                late, out = (np.isin(part.seq, seqs) for seqs in (verdicts.late, verdicts.aside))
                trouble += flow.give(stream, stream.live.replay(part, late, out))
                begin = end
        lost += _go_on(flow, stream, waiting, None)
    finally:  # queries that could not begin are kept: their alerts raise the reason
        flow.queries += [left for _, left in waiting]
    for source, expected in was.offsets.items():
        stream.live.skip(source, expected - 1)
    stream.live.idle(was.to_dict()["watermark"]["idle"])
    stream.live.expect(was.expected)
    if stream.live.watermark_us is not None:
        trouble += flow.reach(stream, stream.live.watermark_us)
    return Rewound(
        stream.schema.name, _aside(stream, verdicts, abandon), verdicts.on_time,
        len(verdicts.late) - len(verdicts.aside) - (verdicts.were_late - verdicts.on_time), verdicts.events,
        stream.live.watermark_us, tuple(q.asked.name for q in queries if q.asked is not None), tuple(lost),
    )  # fmt: skip


def _far(done: str, events: int, total: int) -> Far:
    return Far(f"rewinding: {events:,} of {total:,} events {done}", events, total)


def finished(stream: Stream) -> None:
    """Removes the note of a rewind whose changes are durable."""
    if stream.directory is not None and (stream.directory / REWIND).exists():
        (stream.directory / REWIND).remove()


def begun(directory: Place | None) -> int | None:
    """Returns the first ingest sequence of an unfinished rewind; None without one."""
    if directory is None or not (directory / REWIND).exists():
        return None
    return int(json.loads((directory / REWIND).read_text())["from_seq"])


def _begin(directory: Place | None, from_seq: int) -> None:
    if directory is not None:
        (directory / REWIND).write_text(json.dumps({"from_seq": from_seq}))


def _standing(stream: Stream, verdicts: Verdicts) -> LiveStream:
    """Returns the intake of the stream as it was before the first event that is judged again."""
    was = stream.live.to_dict()
    return LiveStream.from_dict(stream.schema, was | {
        "next_seq": verdicts.from_seq, "watermark": verdicts.standing.to_dict(),
        "accepted": was["accepted"] - verdicts.events, "late": was["late"] - verdicts.were_late,
    })  # fmt: skip


def _order_anew(stream: Stream, feed: Feed) -> None:
    """Puts a new feed into the stream's position: it holds the on-time events above the watermark."""
    events = stream.kept.snapshot().read(RangeRequest(stream.live.watermark_us))
    mine = np.flatnonzero((events.seq >= 0) & (events.seq < stream.live.next_seq))
    feed.push(events.take(mine[np.argsort(events.seq[mine])]), stream.live.watermark_us)


def _go_on(flow: Flow, stream: Stream, waiting: list[tuple[int, LiveQuery]], seq: int | None) -> Sequence[str]:
    """Resumes the queries that had begun by an ingest sequence (None: all), in their state of then. Returns the names
    of those whose events are not all kept."""
    lost = []
    while waiting and (seq is None or waiting[0][0] <= seq):
        _, query = waiting.pop(0)
        flow.queries.append(query)
        try:
            with flow.within_budget():
                whole = query.events.replay()
        except Exception as error:  # noqa: BLE001  (any failure is the query's own)
            query.fail(error)
            whole = True
        lost += [query.asked.name] if query.asked is not None and not whole else []
    return lost


def _aside(stream: Stream, verdicts: Verdicts, abandon: bool) -> pa.Table:
    """Returns the events that are set aside, in the form of late events. abandon: see `rewound`."""
    found = [late_schema(stream.live.columns).empty_table()]
    if len(verdicts.aside):
        kept = stream.kept.snapshot().since(int(verdicts.aside[0]))
        events = _heeding(kept) if abandon else kept
        found += [late_table(batch, np.isin(batch.seq, verdicts.aside)) for batch, _ in events]
    return pa.concat_tables(found)

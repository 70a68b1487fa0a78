"""Setting the watermark of a stream back: what lies beyond a time is set aside, and what came since is judged anew."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa

from archive.place import Place
from archive.reader import RangeRequest
from hybrid.watch.flow import Flow
from hybrid.watch.in_feed import feed_of
from hybrid.watch.late import LateShare, late_schema, late_table
from hybrid.watch.live_query import LiveQuery
from hybrid.watch.stream import REWIND, Stream
from live.stream import LiveStream
from live.watermark import BoolArray, Watermark
from matching.batch import EventBatch, Int64Array
from matching.feed import Feed
from matching.spill import Spill


@dataclass(frozen=True, slots=True)
class Rewound:
    """What became of a stream. aside: the events beyond the time, with `_source` and `_offset`; they are in the archive
    as late ones. on_time, late: how many that were late count now, and the other way round. replayed: how many events
    were judged anew. queries: the names of those that have seen them again; lost: those of them of which not all events
    are kept."""

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
    """The verdicts on the events of a stream from an ingest sequence on, without those beyond a time. late, aside:
    int64, ascending, the sequences of the late ones, and among them of those that are set aside. standing: the
    watermark before them. events: how many there are; were_late: how many of them were late; on_time: how many of these
    are so no more."""

    from_seq: int
    late: Int64Array
    aside: Int64Array
    standing: Watermark
    events: int
    were_late: int
    on_time: int


def first_wrong(stream: Stream, to_us: int) -> int:
    """The ingest sequence from which on verdicts may be wrong: of the first on-time event beyond the time; or, where
    the clock alone has raised the watermark, of the first one after the last that was on time."""
    snapshot = stream.kept.snapshot()
    beyond = [int(s.min()) for b in snapshot.batches(to_us + 1, None) if len(s := b.seq[b.seq >= 0])]
    if beyond:
        return min(beyond)
    return 1 + max((int(b.seq[~late].max()) for b, late in snapshot.since(0) if not late.all()), default=-1)


def judged(stream: Stream, from_seq: int, to_us: int) -> Verdicts:
    """Goes through all events that are kept, in the order in which they came. A source that is silent now (idle, or a
    file that is finished) holds the watermark back until its last event, as when it fell silent."""
    watermark = Watermark(stream.schema.lateness_us)
    standing: Watermark | None = None
    none = np.zeros(0, np.int64)
    late, aside = [none], [none]
    events = were_late = on_time = 0
    ends = _ends(stream)
    for whole, whole_marks in stream.kept.snapshot().since(0):
        for batch, marks, silent in _pieces(whole, whole_marks, from_seq, ends):
            if batch.seq[0] < from_seq:
                _observe(watermark, batch.take(np.flatnonzero(~marks)))  # what is late there says nothing of time
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


def _ends(stream: Stream) -> dict[int, str]:
    """The ingest sequences of the last events of the sources that are silent now."""
    silent: set[str] = set(stream.live.to_dict()["watermark"]["idle"])
    last: dict[str, int] = {}
    for batch, _ in stream.kept.snapshot().since(0) if silent else ():
        for code in np.unique(batch.source).tolist():
            if batch.sources[code] in silent:
                last[batch.sources[code]] = int(batch.seq[batch.source == code].max())
    return {seq: source for source, seq in last.items()}


def _pieces(
    batch: EventBatch, marks: BoolArray, from_seq: int, ends: dict[int, str]
) -> Iterator[tuple[EventBatch, BoolArray, list[str]]]:
    """A batch, cut before an ingest sequence and behind the last events of sources: the piece, its marks, and which
    source has ended with it."""
    last = [i + 1 for i in np.flatnonzero(np.isin(batch.seq, np.fromiter(ends, np.int64, len(ends)))).tolist()]
    cuts = sorted({0, int(np.searchsorted(batch.seq, from_seq)), *last, len(batch)})
    for begin, end in pairwise(cuts):
        piece = batch.slice(begin, end)
        yield piece, marks[begin:end], [ends[seq] for seq in (int(piece.seq[-1]),) if seq in ends]


def _observe(watermark: Watermark, batch: EventBatch) -> BoolArray:
    """Which of some events are late, bool (n,)."""
    late = np.zeros(len(batch), np.bool_)
    cuts = np.flatnonzero(np.diff(batch.source)) + 1
    for begin, end in zip([0, *cuts.tolist()], [*cuts.tolist(), len(batch)]):
        if begin < end:
            late[begin:end] = watermark.observe(batch.sources[batch.source[begin]], batch.ts_us[begin:end])
    return late


def rewound(
    flow: Flow, stream: Stream, to_us: int, spill: Spill | None, trouble: list[str]
) -> Rewound:
    """Judges the events of a stream anew, marks them, and lets what reads it go through them again. spill: where
    partial matches go that do not fit in memory. Adds what went wrong to `trouble`. The caller has seen to it that no
    history is being read, and keeps the stream and the queries then. Raises DataError."""
    name, was = stream.schema.name.lower(), stream.live
    queries = [q for q in flow.queries if name in q.events.streams and not q.events.left]
    in_feed = [q for q in queries if q.events.member is not None]
    stream.kept.flush()
    from_seq = _begun(stream.directory)
    verdicts = judged(stream, first_wrong(stream, to_us) if from_seq is None else from_seq, to_us)
    _begin(stream.directory, verdicts.from_seq)
    stream.kept.mark_late(verdicts.from_seq, verdicts.late)
    for query in in_feed:
        query.events.leave()
    for query in queries:
        query.forget_from(verdicts.from_seq)
    flow.queries = [q for q in flow.queries if q not in queries]
    stream.live, stream.anchor_us, stream.lately = _standing(stream, verdicts), None, LateShare()
    waiting = sorted([(q.events.begun.seq(name), q) for q in queries], key=lambda one: one[0])
    lost: list[str] = []
    try:
        if in_feed:
            _order_anew(stream, feed_of(stream, spill))
        for batch, _ in stream.kept.snapshot().since(verdicts.from_seq):
            begin = 0
            while begin < len(batch):
                lost += _go_on(flow, stream, waiting, int(batch.seq[begin]))
                end = len(batch) if not waiting else int(np.searchsorted(batch.seq, waiting[0][0]))
                part = batch.slice(begin, end)
                late, out = (np.isin(part.seq, seqs) for seqs in (verdicts.late, verdicts.aside))
                trouble += flow.give(stream, stream.live.replay(part, late, out))
                begin = end
        lost += _go_on(flow, stream, waiting, None)
    finally:  # whoever could not begin is not forgotten: its alerts say so
        flow.queries += [left for _, left in waiting]
    for source, expected in was.offsets.items():
        stream.live.skip(source, expected - 1)
    stream.live.idle(was.to_dict()["watermark"]["idle"])
    stream.live.expect(was.expected)
    if stream.live.watermark_us is not None:
        trouble += flow.reach(stream, stream.live.watermark_us)
    return Rewound(
        stream.schema.name, _aside(stream, verdicts), verdicts.on_time,
        len(verdicts.late) - len(verdicts.aside) - (verdicts.were_late - verdicts.on_time), verdicts.events,
        stream.live.watermark_us, tuple(q.asked.name for q in queries if q.asked is not None), tuple(lost),
    )  # fmt: skip


def finished(stream: Stream) -> None:
    """Notes that all that a rewind has changed is kept."""
    if stream.directory is not None and (stream.directory / REWIND).exists():
        (stream.directory / REWIND).remove()


def _begun(directory: Place | None) -> int | None:
    """From which ingest sequence on a rewind was at work that did not come to its end; None without one."""
    if directory is None or not (directory / REWIND).exists():
        return None
    return int(json.loads((directory / REWIND).read_text())["from_seq"])


def _begin(directory: Place | None, from_seq: int) -> None:
    if directory is not None:
        (directory / REWIND).write_text(json.dumps({"from_seq": from_seq}))


def _standing(stream: Stream, verdicts: Verdicts) -> LiveStream:
    """The stream as it takes its events in, before the first one that is judged anew."""
    was = stream.live.to_dict()
    return LiveStream.from_dict(stream.schema, was | {
        "next_seq": verdicts.from_seq, "watermark": verdicts.standing.to_dict(),
        "accepted": was["accepted"] - verdicts.events, "late": was["late"] - verdicts.were_late,
    })  # fmt: skip


def _order_anew(stream: Stream, feed: Feed) -> None:
    """Lets a new feed stand where the stream does: the on-time events that its watermark has not passed are held."""
    events = stream.kept.snapshot().read(RangeRequest(stream.live.watermark_us))
    mine = np.flatnonzero((events.seq >= 0) & (events.seq < stream.live.next_seq))
    feed.push(events.take(mine[np.argsort(events.seq[mine])]), stream.live.watermark_us)


def _go_on(flow: Flow, stream: Stream, waiting: list[tuple[int, LiveQuery]], seq: int | None) -> Sequence[str]:
    """Lets the queries go on that had begun by an ingest sequence (None: all), as they were then. The names of those of
    which not all events are kept."""
    lost = []
    while waiting and (seq is None or waiting[0][0] <= seq):
        _, query = waiting.pop(0)
        flow.queries.append(query)
        try:
            whole = query.events.replay()
        except Exception as error:  # noqa: BLE001  (whatever it is, it is the query's own)
            query.alerts.fail(error)
            whole = True
        lost += [query.asked.name] if query.asked is not None and not whole else []
    return lost


def _aside(stream: Stream, verdicts: Verdicts) -> pa.Table:
    """The events that are set aside, as late ones are handed out."""
    found = [late_schema(stream.live.columns).empty_table()]
    if len(verdicts.aside):
        events = stream.kept.snapshot().since(int(verdicts.aside[0]))
        found += [late_table(batch, np.isin(batch.seq, verdicts.aside)) for batch, _ in events]
    return pa.concat_tables(found)

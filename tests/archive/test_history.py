"""History: what is read is what was appended, whatever is in memory, in files, flushed, reopened or asked for."""

from __future__ import annotations

import tempfile
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archive.history import History
from archive.reader import RangeRequest
from archive.recent import FILES, KeyRange, Windows
from archive.scan import _none_late
from archive.snapshot import HistorySnapshot
from archive.table import Table
from matching.batch import EventBatch
from matching.types import arrow_schema
from query.errors import DataError
from query.plan.expression import Call, Column, Constant
from query.schema import Field, Schema
from tests.archive.events import START_US, TICKS, Event, batch_of, events_of, run_of
from tests.properties.comparing import fewer

SYMBOLS = ("A", "B", "", "ü", None)
# Few distinct times, microseconds apart and days apart, so that bounds meet events exactly and files are cut.
TIMES = tuple(START_US + d for d in (-86_400_000_000, -1, 0, 1, 2, 300_000_000, 86_400_000_000, 40 * 86_400_000_000))


@st.composite
def steps(draw: st.DrawFn) -> list[tuple[str, list[Event]]]:
    """What happens to a history: events of several sources pushed in batches, flushes, restarts."""
    steps: list[tuple[str, list[Event]]] = []
    offsets: dict[str, int] = {}
    seq = 0
    for _ in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(("append", "append", "append", "flush", "reopen")))
        events = []
        if kind == "append":
            sources = draw(st.lists(st.sampled_from(("default", "b", "a/c")), min_size=1, max_size=6))
            for source in sources:
                offset = offsets.get(source, 0) + draw(st.sampled_from((0, 0, 0, 3)))  # gaps are allowed
                offsets[source] = offset + 1
                events.append(
                    Event(
                        draw(st.sampled_from(TIMES)), draw(st.sampled_from(SYMBOLS)),
                        draw(st.sampled_from((None, 0.5, float("inf"), -1.0))), draw(st.sampled_from((None, 1, 2))),
                        source, offset, seq, draw(st.sampled_from((False, False, True))),
                    )
                )  # fmt: skip
                seq += 1
        steps.append((kind, events))
    return steps


questions = st.tuples(
    st.none() | st.sampled_from(TIMES),
    st.none() | st.sampled_from(TIMES),
    st.booleans(),
    st.none() | st.lists(st.sampled_from((*SYMBOLS, "absent")), max_size=3),
    st.booleans(),
)


def expected(events: list[Event], question: tuple) -> tuple[list[Event], int]:
    """The plain reading of the interface: which events, in which order, and how many late ones are left out."""
    low, high, closed, symbols, late = question
    inside = [
        e
        for e in events
        if (low is None or e.ts_us >= low)
        and (high is None or e.ts_us < high or (closed and e.ts_us == high))
        and (symbols is None or e.symbol in symbols)
    ]
    kept = [e for e in inside if late or not e.late]
    kept.sort(key=lambda e: (e.ts_us, e.rank is not None, e.rank, e.source, e.offset))
    return [e._replace(late=False) for e in kept], len(inside) - len(kept)


def ask(snapshot, question: tuple) -> list[Event]:
    low, high, closed, symbols, late = question
    keys = None if symbols is None else {"symbol": symbols}
    return events_of(snapshot.read(RangeRequest(low, high, closed=closed, keys=keys, late=late)))


@pytest.mark.slow
@pytest.mark.parametrize("in_files", [False, True])
@fewer(4)
@given(steps(), st.lists(questions, min_size=1, max_size=4), st.sampled_from((2, 7, 99)))
def test_reads_equal_a_plain_list(in_files, steps, asked, memory_rows_max):
    with tempfile.TemporaryDirectory() as root:
        directory = Path(root) / "ticks" if in_files else None
        history = History(TICKS, directory, memory_rows_max)
        events: list[Event] = []
        kept = []  # snapshots taken on the way, with what was there then
        for kind, new in steps:
            if kind == "append":
                history.append(*batch_of(new))
                events += new
            elif kind == "flush":
                history.flush()
            elif in_files:
                history.close()
                history = History(TICKS, directory, memory_rows_max)
            kept.append((history.snapshot(), list(events)))
        on_time = [e.ts_us for e in events if not e.late]
        assert history.first_us == min(on_time, default=None)
        assert history.last_seq == max((e.seq for e in events), default=-1)
        assert history.offsets == {e.source: e.offset + 1 for e in events}
        for snapshot, then in kept:
            for question in asked:
                rows, left_out = expected(then, question)
                before = snapshot.late_left_out
                assert ask(snapshot, question) == rows
                assert snapshot.late_left_out - before == left_out


TS_, SYMBOL_, PRICE_, RANK_ = (Column(field.name, field.type) for field in TICKS.fields)
#: Conditions on one event, and what they say of it in Python.
CONDITIONS = (
    (None, lambda e: True),
    (Call(">=", (SYMBOL_, Constant("B", "VARCHAR")), "BOOLEAN"), lambda e: e.symbol is not None and e.symbol >= "B"),
    (Call("is_null", (RANK_,), "BOOLEAN"), lambda e: e.rank is None),
    (Call("<", (PRICE_, Constant(1, "INTEGER")), "BOOLEAN"), lambda e: e.price is not None and e.price < 1),
    (
        Call("<=", (TS_, Constant(None, "TIMESTAMP", sql="TIMESTAMP '2024-01-01 00:00:00'")), "BOOLEAN"),
        lambda e: e.ts_us <= START_US,
    ),
)
#: Ranges of a column of strings and of integers, with the values in order.
SPANS = (
    None, KeyRange("symbol", None, "B"), KeyRange("Symbol", "A", None), KeyRange("symbol", "", "ü"),
    KeyRange("symbol", None, None), KeyRange("rank", 1, 2), KeyRange("rank", 2, None),
)  # fmt: skip
COLUMN_SETS = (None, (), ("price",), ("SYMBOL", "ts"))


@pytest.mark.slow
@pytest.mark.parametrize("in_files", [False, True])
@fewer(4)
@given(
    steps(), questions, st.sampled_from((2, 7, 99)), st.sampled_from((1, 2, 5, 1000)), st.sampled_from(CONDITIONS),
    st.sampled_from(COLUMN_SETS), st.sampled_from(SPANS), st.sampled_from((None, 4, 1000)),
    st.lists(st.tuples(st.sampled_from(TIMES), st.sampled_from(TIMES)), max_size=5),
)  # fmt: skip
def test_batches_and_times_are_reads(
    in_files, steps, question, memory_rows_max, rows_max, condition, names, span, sorted_max, ranges
):
    """Whatever is asked for: batches one after the other, and the events of several times, are what one read gives."""
    low, high, closed, symbols, late = question
    where, holds = condition
    with tempfile.TemporaryDirectory() as root:
        history = History(TICKS, Path(root) / "ticks" if in_files else None, memory_rows_max)
        events: list[Event] = []
        for kind, new in steps:
            if kind == "append":
                history.append(*batch_of(new))
                events += new
            else:
                history.flush()
        snapshot = history.snapshot()
        among = {} if symbols is None else {"symbol": symbols}
        asked = {"closed": closed, "keys": among, "late": late, "columns": names}
        rows, left_out = expected([e for e in events if holds(e)], question)
        read = snapshot.read(RangeRequest(low, high, **asked), where)
        assert [(e.source, e.offset) for e in rows] == identities(read)
        assert snapshot.late_left_out == left_out
        wanted = {"ts", "rank", *(name.lower() for name in (TICKS.names if names is None else names))}
        assert read.columns.schema.names == [name for name in TICKS.names if name in wanted]
        assert read.columns.to_pylist() == [{k: v for k, v in shown(e).items() if k in wanted} for e in rows]

        parts = list(snapshot.batches(
            RangeRequest(low, high, **asked), where=where, span=span, rows_max=rows_max, sorted_max=sorted_max
        ))
        rows, span_left_out = expected([e for e in events if holds(e) and spans(span, e)], question)
        assert snapshot.late_left_out == left_out + span_left_out
        assert [i for part in parts for i in identities(part)] == [(e.source, e.offset) for e in rows]
        found = [row for part in parts for row in part.columns.to_pylist()]
        assert found == [{k: v for k, v in shown(e).items() if k in wanted} for e in rows]
        for part in parts:
            assert len(part) > 0
            assert len(part) <= rows_max or part.ts_us[0] == part.ts_us[-1]
            assert part.columns.schema == read.columns.schema
        for before, behind in pairwise(parts):
            assert before.ts_us[-1] < behind.ts_us[0]

        times = sorted({time for pair in ranges for time in pair})
        found = snapshot.read_times(np.array(times, np.int64), RangeRequest(**asked))
        alone = [snapshot.read(RangeRequest(time, time, **{**asked, "closed": True})) for time in times]
        assert identities(found) == [i for part in alone for i in identities(part)]
        assert found.columns.to_pylist() == [row for part in alone for row in part.columns.to_pylist()]


def test_an_event_behind_rows_of_files_keeps_its_source(tmp_path):
    """As many sources were known before it as after: those of the files, and its own."""
    history = History(TICKS, tmp_path)
    history._sources = (FILES,)  # as `refresh` leaves them
    history.append(*batch_of([Event(START_US, "A", 1.0, 1, "z", 0, False)]))
    assert identities(history.snapshot().read(RangeRequest())) == [("z", 0)]


def spans(span: KeyRange | None, event: Event) -> bool:
    if span is None:
        return True
    value = getattr(event, span.column.lower())
    return value is not None and (span.low is None or value >= span.low) and (span.end is None or value < span.end)


def identities(batch: EventBatch) -> list[tuple[str, int]]:
    return list(zip((batch.sources[i] for i in batch.source), batch.offset.tolist()))


def shown(event: Event) -> dict[str, object]:
    times = pa.array([event.ts_us]).view(pa.timestamp("us")).to_pylist()
    return {"ts": times[0], "symbol": event.symbol, "price": event.price, "rank": event.rank}


def test_a_range_is_half_open_unless_closed(tmp_path):
    """An event 1 us before, at and 1 us after each bound; in memory and in files."""
    history = History(TICKS, tmp_path)
    times = [START_US + d for d in (-1, 0, 1, 999, 1000, 1001)]
    events = [Event(t, "A", 1.0, None, "default", i, i) for i, t in enumerate(times)]
    history.append(*batch_of(events[:3]))
    history.flush()
    history.append(*batch_of(events[3:]))
    snapshot = history.snapshot()

    def offsets(**closed: bool) -> list[int]:
        return snapshot.read(RangeRequest(START_US, START_US + 1000, **closed)).offset.tolist()

    assert offsets() == [1, 2, 3]
    assert offsets(closed=True) == [1, 2, 3, 4]


def test_about_how_many_events_a_range_has(tmp_path):
    history = History(TICKS, tmp_path)
    times = [START_US + 1_000_000 * second for second in range(150)]
    events = [Event(t, "A", 1.0, None, "default", i, i) for i, t in enumerate(times)]
    history.append(*batch_of(events[:100]))
    history.flush()
    history.append(*batch_of(events[100:]))
    snapshot = history.snapshot()
    assert snapshot.about_rows(times[0], times[149]) == 150
    assert snapshot.about_rows(times[40], times[50]) in (10, 11)
    assert snapshot.about_rows(times[90], times[110]) in (19, 20, 21)
    assert snapshot.about_rows(times[149] + 1, times[149] + 2) == 0
    assert HistorySnapshot(TICKS, (), ()).about_rows(times[0], times[1]) == 0


def test_a_snapshot_never_changes(tmp_path):
    history = History(TICKS, tmp_path)
    history.append(*batch_of(run_of(10)))
    before = history.snapshot()
    history.flush()
    flushed = history.snapshot()
    history.append(*batch_of(run_of(10, first=10)))
    after = history.snapshot()
    history.flush()
    history.drop_before(START_US + 10_000_000)
    dropped = history.snapshot()
    history.close()
    assert [len(s.read(RangeRequest())) for s in (before, flushed, after, dropped)] == [10, 10, 20, 10]
    assert history.first_us == START_US + 10_000_000


def test_memory_can_be_forgotten_too():
    history = History(TICKS, None)
    for first in (0, 5_000, 10_000):
        history.append(*batch_of(run_of(5_000, first=first)))
    history.drop_before(START_US + 6_000 * 1_000_000)
    assert history.snapshot().read(RangeRequest()).offset.tolist() == list(range(5_000, 15_000))
    assert history.first_us == START_US + 5_000 * 1_000_000


def test_redelivered_events_are_left_out(tmp_path):
    history = History(TICKS, tmp_path)
    events = run_of(10)
    history.append(*batch_of(events[:6]))
    history.append(*batch_of(events[4:8]))  # two again, two new
    history.flush()
    history.append(*batch_of(events))
    assert events_of(history.snapshot().read(RangeRequest())) == events
    history.close()
    assert events_of(History(TICKS, tmp_path).snapshot().read(RangeRequest())) == events


@pytest.mark.slow
def test_one_event_at_a_time_leaves_few_pieces():
    history = History(TICKS, None)
    for event in run_of(3_000):
        history.append(*batch_of([event]))
    snapshot = history.snapshot()
    assert len(snapshot._pieces) < 130
    assert events_of(snapshot.read(RangeRequest())) == run_of(3_000)


def test_flush_happens_by_itself(tmp_path):
    history = History(TICKS, tmp_path, memory_rows_max=100)
    for first in range(0, 250, 10):
        history.append(*batch_of(run_of(10, first=first)))
    # Nothing was flushed by hand, and the process ends without a close: whole batches up to the last flush are there.
    assert len(History(TICKS, tmp_path).snapshot().read(RangeRequest())) == 200
    assert len(history.snapshot().read(RangeRequest())) == 250


@pytest.mark.slow
def test_readers_see_no_gap_and_no_double_while_it_flushes(tmp_path):
    history = History(TICKS, tmp_path, memory_rows_max=50)
    appended = [0]  # rows known to be in before a snapshot is taken
    faults: list[str] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            at_least = appended[0]
            offsets = history.snapshot().read(RangeRequest()).offset
            if len(offsets) < at_least or not np.array_equal(offsets, np.arange(len(offsets))):
                faults.append(f"{at_least} rows appended, read {offsets.tolist()}")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for first in range(0, 1_000, 10):
            history.append(*batch_of(run_of(10, first=first)))
            appended[0] = first + 10
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert faults == []
    assert len(history.snapshot().read(RangeRequest())) == 1_000


@pytest.mark.slow
def test_many_key_values(tmp_path):
    history = History(TICKS, tmp_path)
    events = [Event(START_US + i, f"S{i % 500}" if i % 7 else None, None, None, "default", i, i) for i in range(2_000)]
    history.append(*batch_of(events[:1_000]))
    history.flush()
    history.append(*batch_of(events[1_000:]))
    symbols = [f"S{i}" for i in range(0, 500, 2)]
    for wanted in (symbols, [*symbols, None], pa.array(symbols), np.array(symbols)):
        got = events_of(history.snapshot().read(RangeRequest(keys={"symbol": wanted})))
        assert got == [e for e in events if e.symbol in set(wanted if isinstance(wanted, list) else symbols)]


def test_two_key_columns_and_names_in_any_case(tmp_path):
    history = History(TICKS, tmp_path)
    events = [Event(START_US + i, "AB"[i % 2], 1.0, i % 3, "default", i, i) for i in range(12)]
    history.append(*batch_of(events[:6]))
    history.flush()
    history.append(*batch_of(events[6:]))
    got = events_of(history.snapshot().read(RangeRequest(keys={"SYMBOL": ["A"], "Rank": [0, 2]})))
    assert got == [e for e in events if e.symbol == "A" and e.rank in (0, 2)]


def test_unknown_or_unfit_keys_are_data_errors():
    snapshot = History(TICKS, None).snapshot()
    with pytest.raises(DataError, match="did you mean symbol"):
        snapshot.read(RangeRequest(keys={"symbl": ["A"]}))
    with pytest.raises(DataError, match="rank"):
        snapshot.read(RangeRequest(keys={"rank": ["x"]}))


def test_wrong_columns_are_refused_and_nothing_is_taken():
    history = History(TICKS, None)
    batch, late = batch_of(run_of(3))
    wrong = EventBatch(batch.columns.select(["ts"]), batch.ts_us, batch.source, batch.offset, batch.seq)
    with pytest.raises(DataError, match="the columns differ from those of ticks"):
        history.append(wrong, late)
    assert len(history.snapshot().read(RangeRequest())) == 0
    assert history.offsets == {}


def test_an_empty_history_answers_with_the_declared_columns(tmp_path):
    for directory in (None, tmp_path):
        history = History(TICKS, directory)
        read = history.snapshot().read(RangeRequest())
        assert len(read) == 0
        assert read.columns.schema == arrow_schema(TICKS)
        assert (history.first_us, history.last_seq, history.offsets) == (None, -1, {})


def test_events_of_any_year_are_kept(tmp_path):
    """Years that Delta's statistics cannot name, and bounds beyond what DuckDB can."""
    history = History(TICKS, tmp_path)
    times = [-(2**62) + 1, -62_135_596_800_000_001, START_US, 253_402_300_800_000_000, 2**62 - 1]
    events = [Event(t, "A", None, None, "default", i, i) for i, t in enumerate(times)]
    history.append(*batch_of(events))
    history.flush()
    history.append(*batch_of([e._replace(offset=e.offset + 5, seq=e.seq + 5) for e in events]))
    snapshot = History.snapshot(history)
    assert snapshot.read(RangeRequest()).ts_us.tolist() == sorted(times * 2)
    assert snapshot.read(RangeRequest(-(2**63), 2**63 - 1, closed=True)).ts_us.tolist() == sorted(times * 2)
    assert snapshot.read(RangeRequest(times[1], times[3], closed=True)).ts_us.tolist() == sorted(times[1:4] * 2)
    history.close()
    assert History(TICKS, tmp_path).first_us == times[0]


def test_a_directory_that_the_log_would_misread_is_refused(tmp_path):
    with pytest.raises(DataError, match="percent sign"):
        History(TICKS, tmp_path / "a%41")


def test_a_full_disk_loses_nothing(tmp_path, monkeypatch):
    history = History(TICKS, tmp_path, memory_rows_max=20)
    history.append(*batch_of(run_of(10)))

    def full(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("archive.place.Place.sync", full)
        with pytest.raises(DataError, match="No space left"):
            history.append(*batch_of(run_of(10, first=10)))
        assert events_of(history.snapshot().read(RangeRequest())) == run_of(20)
    history.append(*batch_of(run_of(1, first=20)))
    history.close()
    assert events_of(History(TICKS, tmp_path).snapshot().read(RangeRequest())) == run_of(21)


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(5, "Input/output error")], ids=["ctrl-c", "disk"])
@pytest.mark.parametrize("then", ["refresh", "drop_before", "add_columns", "flush", "append and refresh"])
def test_a_flush_that_ends_after_its_commit_shows_no_event_twice(tmp_path, monkeypatch, error, then):
    # Before: the events were in memory and in files for whoever read after the compaction, until the next flush.
    history = History(TICKS, tmp_path)
    history.append(*batch_of(run_of(10)))
    commit = Table.append

    def commit_and_fail(*arguments: object) -> None:
        commit(*arguments)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Table, "append", commit_and_fail)
        with pytest.raises(type(error) if isinstance(error, OSError) else error):
            history.flush()
    events = run_of(10)
    assert events_of(history.snapshot().read(RangeRequest())) == events
    match then:
        case "drop_before":
            history.drop_before(START_US - 1)
        case "add_columns":
            history.add_columns(replace(TICKS, fields=(*TICKS.fields, Field("more", "BIGINT"))))
        case "flush":
            history.flush()
        case _:
            if then.startswith("append"):
                history.append(*batch_of(run_of(5, first=10)))
                events = run_of(15)
            history.refresh()
    columns = RangeRequest(columns=[c for c in TICKS.names if c != "ts"])
    assert events_of(history.snapshot().read(columns)) == events
    assert history.held[0] == len(events) - 10
    assert (history.held[1] > 0) == (len(events) > 10)
    history.close()
    assert len(History(history.schema, tmp_path).snapshot().read(RangeRequest())) == len(events)


@pytest.mark.slow
def test_many_events_in_bounded_memory(tmp_path, monkeypatch):
    """Files that overlap in time and memory behind them, far more than one batch: each event once and in order, and
    what an iterator holds goes with it."""
    spilled = []
    make = tempfile.TemporaryDirectory
    monkeypatch.setattr(
        tempfile, "TemporaryDirectory", lambda **of: spilled.append(make(**of, dir=tmp_path)) or spilled[-1]
    )
    history = History(TICKS, tmp_path / "ticks", 1_000_000)
    rng = np.random.default_rng(7)
    count = 40_000
    times = START_US + rng.integers(0, 5_000, count) * 1_000_000
    for n, part in enumerate(np.array_split(np.arange(count), 8)):
        history.append(*batch_of([Event(int(times[i]), "ABC"[i % 3], 1.0, None, "default", i, i) for i in part]))
        if n < 6:
            history.flush()
    snapshot = history.snapshot()
    parts = list(snapshot.batches(RangeRequest(columns=["symbol"]), rows_max=5_000))
    assert len(spilled) == 1
    assert max(map(len, parts)) <= 5_000
    together = np.concatenate([part.offset for part in parts])
    assert together.tolist() == snapshot.read(RangeRequest()).offset.tolist()
    assert sorted(together) == list(range(count))
    abandoned = snapshot.batches(rows_max=5_000)
    next(abandoned)
    assert Path(spilled[-1].name).exists()
    abandoned.close()
    assert len(spilled) == 2
    assert not Path(spilled[-1].name).exists()


@pytest.mark.slow
def test_times_far_apart_are_read_apart(tmp_path, monkeypatch):
    history = History(TICKS, tmp_path / "ticks", 1_000_000)
    day = 86_400_000_000
    for n in range(4):
        history.append(*batch_of([Event(START_US + n * day + i, "A", 1.0, None, "default", n * 50 + i, n * 50 + i)
                                  for i in range(50)]))  # fmt: skip
        history.flush()
    snapshot = history.snapshot()
    monkeypatch.setattr("archive.snapshot.GAP_ROWS", 10)
    reads = []
    monkeypatch.setattr(HistorySnapshot, "batches", lambda s, request, batches=HistorySnapshot.batches: (
        reads.append((request.low_us, request.end_us)), batches(s, request))[1])  # fmt: skip
    times = [START_US + 10, START_US + day, START_US + 20, START_US + 2 * day, START_US + 20]
    found = snapshot.read_times(np.array(times))
    assert found.ts_us.tolist() == sorted({*times})
    assert reads == [(times[0], times[2] + 1), (times[1], times[1] + 1), (times[3], times[3] + 1)]
    assert len(snapshot.read_times(np.zeros(0, np.int64))) == 0


@pytest.mark.slow
def test_files_without_a_column_have_nulls_in_it(tmp_path):
    """Older files lack two columns that were added since: one of a type that is stored otherwise, one nested."""
    added = (Field("small", "UTINYINT"), Field("tags", "VARCHAR[]"))
    wide = Schema("ticks", (*TICKS.fields, *added), "ts", TICKS.keys, TICKS.order, TICKS.lateness_us)
    old = History(TICKS, tmp_path / "ticks", 1_000)
    old.append(*batch_of(run_of(10)))
    old.flush()
    new = History(wide, tmp_path / "ticks", 1_000)
    batch, late = batch_of(run_of(6, first=10))
    columns = [*batch.columns.columns, pa.array([1, 2, 3] * 2, pa.uint8()), pa.array([["a"]] * 6)]
    batch = replace(batch, columns=pa.RecordBatch.from_arrays(columns, schema=arrow_schema(wide)))
    for flush, part in ((False, batch.slice(0, 3)), (True, batch.slice(3, 6))):
        new.append(part, late[:3])
        if flush:
            new.flush()
        snapshot = new.snapshot()
        count = 16 if flush else 13
        rows = snapshot.read(RangeRequest()).columns.to_pylist()
        assert [row["small"] for row in rows] == [None] * 10 + [1, 2, 3] * (1 + flush)
        assert [row["tags"] for row in rows] == [None] * 10 + [["a"]] * (count - 10)
        parts = list(snapshot.batches(RangeRequest(columns=["small"]), rows_max=4))
        assert [v for part in parts for v in part.columns.column("small").to_pylist()] == [row["small"] for row in rows]
        small = Column("small", "UTINYINT")
        where = Call(">", (small, Constant(1, "INTEGER")), "BOOLEAN")
        assert len(snapshot.read(RangeRequest(), where=where)) == 2 * (1 + flush)
        assert len(snapshot.read(RangeRequest(keys={"small": [3, None]}))) == 10 + 1 + flush
        assert snapshot.count_where([where]) == (count, [2 * (1 + flush)])
        connection = duckdb.connect()
        connection.execute("SET TimeZone='UTC'")
        connection.register("memory", pa.Table.from_batches([snapshot.recent().columns]))
        view = snapshot.select_sql("memory")
        found = connection.sql(f"SELECT small, tags, ts FROM ({view}) ORDER BY ts").to_arrow_table().to_pylist()
        assert found == [{k: row[k] for k in ("small", "tags", "ts")} for row in rows]


@pytest.mark.slow
def test_a_range_of_a_column_that_older_files_lack(tmp_path):
    """The row groups of one file have bounds, those of the other have no such column."""
    wide = Schema("ticks", (*TICKS.fields, Field("level", "INTEGER")), "ts", TICKS.keys, TICKS.order, TICKS.lateness_us)
    for schema, first in ((TICKS, 0), (wide, 10)):
        history = History(schema, tmp_path / "ticks", 1_000)
        batch, late = batch_of(run_of(10, first=first))
        if schema is wide:
            columns = [*batch.columns.columns, pa.array(range(10), pa.int32())]
            batch = replace(batch, columns=pa.RecordBatch.from_arrays(columns, schema=arrow_schema(wide)))
        history.append(batch, late)
        history.flush()
    for rows_max in (1, 100):
        found = history.snapshot().batches(span=KeyRange("level", 3, 5), rows_max=rows_max)
        assert [offset for batch in found for offset in batch.offset.tolist()] == [13, 14]


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(-40, 40), st.sampled_from("ab")), max_size=30),
    st.lists(st.tuples(st.integers(-60, 60), st.sampled_from("abc")), max_size=8),
    st.integers(0, 9), st.booleans(),
)  # fmt: skip
def test_rows_are_in_the_windows_around_others(events, anchors, reach_us, keyed):
    """Windows that reach over 1970, too: there stretches are counted from zero in both directions."""
    anchors.sort()
    columns = ["symbol"] if keyed else []
    near = pa.RecordBatch.from_pydict({"symbol": pa.array([k for _, k in anchors], pa.string())})
    windows = Windows.around(columns, near, np.array([t for t, _ in anchors], np.int64), reach_us)
    history = History(TICKS, None)
    history.append(*batch_of([Event(t, k, None, None, "x", i, i) for i, (t, k) in enumerate(events)]))
    found = [batch.ts_us.tolist() for batch in history.snapshot().batches(windows=windows)]
    wanted = sorted(
        t for t, k in events if any(abs(t - at) <= reach_us and (k == of or not keyed) for at, of in anchors)
    )
    assert [t for part in found for t in part] == wanted
    assert history.snapshot().count_in(windows) == len(wanted)


@pytest.mark.slow
def test_marks_of_late_events_are_read_where_there_may_be_some(tmp_path: Path, monkeypatch) -> None:
    events = run_of(40_000)
    for name, late_at in (("none", ()), ("some", (39_999,))):
        for statistics in (True, False):
            if not statistics:
                monkeypatch.setattr("archive.layout.with_statistics", lambda rows: [])
            directory = tmp_path / f"{name} {statistics}"
            history = History(TICKS, directory, memory_rows_max=10**9)
            history.append(*batch_of([e._replace(late=i in late_at) for i, e in enumerate(events)]))
            history.flush()
            (path,) = directory.rglob("*.parquet")
            assert _none_late(pq.read_metadata(path)) is (statistics and not late_at)
            snapshot = history.snapshot()
            assert len(snapshot.read(RangeRequest())) == len(events) - len(late_at)
            assert snapshot.late_left_out == len(late_at)
        monkeypatch.undo()


def test_ctrl_c_in_a_read_is_a_keyboard_interrupt(tmp_path: Path, monkeypatch) -> None:
    # Before: the RuntimeError with which DuckDB answers a signal during its planning came out of evidence().
    history = History(TICKS, tmp_path)
    history.append(*batch_of(run_of(10)))
    history.flush()

    def interrupted(*arguments: object) -> None:
        raise RuntimeError("Query interrupted")

    snapshot = history.snapshot()
    with monkeypatch.context() as patch:
        patch.setattr("archive.scan._query", interrupted)
        with pytest.raises(KeyboardInterrupt):
            snapshot.read(RangeRequest(START_US + 1, START_US + 2_000_000))
        with pytest.raises(KeyboardInterrupt):
            snapshot.count_where([])
    assert events_of(snapshot.read(RangeRequest())) == run_of(10)

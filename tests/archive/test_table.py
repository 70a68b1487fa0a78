"""The commit log: what goes in once, who loses a race, what a reopened table says, and who else can read it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError

from archive.history import History
from archive.layout import DataFile, to_stored, write_files
from archive.reader import RangeRequest
from archive.recent import FILES
from archive.table import Table, schema_from_json, schema_to_json
from archive.table_snapshot import TableSnapshot
from archive.upkeep import Rewrite, rewrite, verify
from query.errors import DataError
from query.schema import Field, Schema
from tests.archive.events import START_US, TICKS, Event, batch_of, events_of, run_of


def rows_in(table: Table) -> list[tuple[str, int]]:
    """(source, offset) of every row in the table, sorted; read without our own reader."""
    paths = [str(table.directory / path) for path in table.snapshot().paths]
    parts = [pq.ParquetFile(path).read(columns=["_source", "_offset"]) for path in paths]
    return sorted((row["_source"], row["_offset"]) for part in parts for row in part.to_pylist())


def rewritten(table: Table, before: TableSnapshot) -> list[DataFile]:
    rows = pa.concat_tables(pq.ParquetFile(table.directory / path).read() for path in before.paths)
    return write_files(rows, table.directory, table.schema)


def test_what_the_table_knows_after_each_verb(tmp_path):
    table = Table.create(tmp_path, TICKS)
    assert (table.last_seq, table.last_offset("default")) == (-1, None)
    table.append(*batch_of(run_of(10)))
    after = table.append(*batch_of([Event(START_US, "A", 1.0, None, "b", 41, 10)]))
    assert (table.last_seq, table.last_offset("default"), table.last_offset("b")) == (10, 9, 41)
    assert (after.boundary_sequence, after.offsets) == (10, {"default": 10, "b": 42})
    assert (sorted(after.sources), sorted(after.rows.tolist())) == (["b", "default"], [1, 10])


def test_an_append_is_idempotent(tmp_path):
    table = Table.create(tmp_path, TICKS)
    for batch in (run_of(10), run_of(10), run_of(5, first=3), run_of(10, first=5)):
        table.append(*batch_of(batch))
    assert rows_in(table) == [("default", i) for i in range(15)]
    version = table.snapshot().version
    assert table.append(*batch_of(run_of(15))).version == version  # nothing new, no commit


def test_a_second_writer_adds_only_what_is_new(tmp_path):
    """A writer that was stopped and one that took its place hold the same events; both flush."""
    one, other = History(TICKS, tmp_path), History(TICKS, tmp_path)
    one.append(*batch_of(run_of(10)))
    other.append(*batch_of(run_of(15)))
    one.flush()
    other.flush()
    assert events_of(other.snapshot().read(RangeRequest())) == run_of(15)
    one.append(*batch_of(run_of(20, first=0)))
    one.flush()
    assert events_of(one.snapshot().read(RangeRequest())) == run_of(20)
    assert events_of(History(TICKS, tmp_path).snapshot().read(RangeRequest())) == run_of(20)


class Blind(Table):
    """A table that does not look again before it commits, as one that looked just before another's commit."""

    __slots__ = ("seen",)

    def snapshot(self) -> TableSnapshot:
        if not hasattr(self, "seen"):
            self.seen = super().snapshot()
        return self.seen

    def _register(self, names: list[str]) -> None:
        """Would look, too."""


@pytest.mark.slow
def test_the_loser_of_an_append_race_is_refused_by_the_log(tmp_path):
    """The very commit that would double rows, made on a version that has been overtaken; from the same source, and
    from another one (whose sequence numbers would be given twice)."""
    Table.create(tmp_path, TICKS).append(*batch_of([*run_of(5), Event(START_US, "A", 1.0, None, "b", 0, 5)]))
    loser, winner = Blind.open(tmp_path), Table.open(tmp_path)
    loser.snapshot()
    winner.append(*batch_of(run_of(10)))
    for events in (run_of(10), [Event(START_US, "A", 1.0, None, "b", 1, 6)]):
        with pytest.raises(DataError, match="other writers"):
            loser.append(*batch_of(events))
    assert rows_in(winner) == [("b", 0), *(("default", i) for i in range(10))]
    again = Table.open(tmp_path)
    again.append(*batch_of(run_of(12)))
    assert rows_in(again) == [("b", 0), *(("default", i) for i in range(12))]


@pytest.mark.slow
def test_the_loser_of_a_maintenance_race_is_refused(tmp_path):
    table = Table.create(tmp_path, TICKS)
    for first in (0, 10):
        table.append(*batch_of(run_of(10, first=first)))
    loser, winner = Blind.open(tmp_path), Table.open(tmp_path)
    before = winner.snapshot()
    assert loser.snapshot().version == before.version
    ours, theirs = rewritten(winner, before), rewritten(loser, before)
    after = winner.replace(before, before.paths, ours)
    assert after is not None
    assert len(after.paths) == len(ours)
    assert loser.replace(before, before.paths, theirs) is None  # did not look: the log refuses it
    assert Table.open(tmp_path).replace(before, before.paths, theirs) is None  # looks: refuses by itself
    assert rows_in(table) == [("default", i) for i in range(20)]


@pytest.mark.slow
def test_compaction_and_live_appends_do_not_disturb_each_other(tmp_path):
    compacting, appending = Table.create(tmp_path, TICKS), Table.open(tmp_path)
    appending.append(*batch_of(run_of(10)))
    before = compacting.snapshot()
    files = rewritten(compacting, before)
    appending.append(*batch_of(run_of(10, first=10)))
    assert compacting.replace(before, before.paths, files) is not None
    appending.append(*batch_of(run_of(10, first=20)))
    assert rows_in(appending) == [("default", i) for i in range(30)]


@pytest.mark.slow
def test_retention_takes_whole_files_and_remembers_offsets(tmp_path):
    table = Table.create(tmp_path, TICKS)
    for first in (0, 10, 20):
        table.append(*batch_of(run_of(10, first=first)))
    old = table.snapshot()
    table.drop_before(START_US + 10_000_000)  # the time of row 10
    assert rows_in(table) == [("default", i) for i in range(10, 30)]
    table.drop_before(START_US + 29_000_999)  # row 29 is older, but a file's times may be cut to milliseconds
    assert rows_in(table) == [("default", i) for i in range(20, 30)]
    table.drop_before(START_US + 40_000_000)
    assert rows_in(table) == []
    assert (table.last_seq, table.snapshot().offsets) == (29, {"default": 30})
    assert all((tmp_path / path).exists() for path in old.paths)  # for snapshots that still read them


@pytest.mark.slow
def test_many_commits_leave_a_short_log_and_all_offsets(tmp_path):
    table = Table.create(tmp_path, TICKS)
    for i in range(25):
        table.append(*batch_of([Event(START_US + i, "A", 1.0, None, f"s{i % 3}", i, i)]))
    assert len(list((tmp_path / "_delta_log").glob("*.checkpoint.parquet"))) >= 2
    reopened = Table.open(tmp_path)
    assert reopened.snapshot().offsets == {"s0": 25, "s1": 23, "s2": 24}
    assert rows_in(reopened) == sorted((f"s{i % 3}", i) for i in range(25))


FULL = Schema(
    'Ticks of "A"',
    (Field("Ts", "TIMESTAMPTZ"), Field("sym bol", "VARCHAR"), Field("p", "DECIMAL(9,2)"), Field("n", "UBIGINT")),
    time="ts",
    keys=("sym bol",),
    order=("n", "p"),
    lateness_us=5,
    retention_us=86_400_000_000,
)


@pytest.mark.parametrize("schema", [TICKS, FULL, Schema("d", (Field("day", "DATE"),), time="day")])
def test_reopening_gives_the_same_schema(tmp_path, schema):
    Table.create(tmp_path, schema)
    assert Table.open(tmp_path).schema == schema
    assert schema_from_json(schema_to_json(schema)) == schema
    assert Table.create(tmp_path, schema).schema == schema  # the same again is no fault


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            replace(TICKS, fields=(*TICKS.fields[:2], Field("price", "BIGINT"), TICKS.fields[3])),
            "price DOUBLE is now price BIGINT",
        ),
        (replace(TICKS, fields=TICKS.fields[:3], order=()), "order"),
        (replace(TICKS, keys=()), "keys"),
        (replace(TICKS, name="quotes"), "name 'ticks' is now 'quotes'"),
    ],
)
def test_another_declaration_is_refused(tmp_path, other, words):
    Table.create(tmp_path, TICKS)
    with pytest.raises(DataError, match=words):
        History(other, tmp_path)


def test_lateness_and_retention_are_as_declared_last(tmp_path):
    """Before: `lateness_us 2000000 is now 0`, as of any other difference."""
    Table.create(tmp_path, TICKS)
    other = replace(TICKS, lateness_us=0, retention_us=7)
    assert Table.create(tmp_path, other).schema == other
    wider = replace(TICKS, fields=(*TICKS.fields, Field("more", "BIGINT")))
    assert Table.create(tmp_path, wider).schema == wider
    assert Table.open(tmp_path).schema == wider


def test_a_format_of_the_future_is_refused(tmp_path):
    Table.create(tmp_path, TICKS).append(*batch_of(run_of(3)))
    DeltaTable(str(tmp_path)).alter.set_table_properties({"hybrid.format": "2"}, raise_if_not_exists=False)
    with pytest.raises(DataError, match=r"archive format 2; this program reads formats up to 1(.|\n)*newer release"):
        History(TICKS, tmp_path)


def test_features_that_would_change_the_rows_are_refused(tmp_path):
    Table.create(tmp_path, TICKS)
    log = tmp_path / "_delta_log" / f"{1:020}.json"
    protocol = {"minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"],
                "writerFeatures": ["deletionVectors"]}  # fmt: skip
    log.write_text(json.dumps({"protocol": protocol}) + "\n")
    with pytest.raises(DataError, match="deletionVectors"):
        Table.open(tmp_path)


def test_other_directories_are_refused(tmp_path):
    with pytest.raises(DataError, match="no archived stream"):
        Table.open(tmp_path)
    write_deltalake(str(tmp_path / "theirs"), pa.table({"a": [1]}))
    with pytest.raises(DataError, match="not an archived stream"):
        History(TICKS, tmp_path / "theirs")
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="file"):
        History(TICKS, tmp_path / "file")


@pytest.mark.parametrize("which", [0, 1])
def test_a_file_that_is_gone_or_torn_is_a_data_error(tmp_path, which):
    history = History(TICKS, tmp_path)
    for first in (0, 10):
        history.append(*batch_of(run_of(10, first=first)))
        history.flush()
    snapshot = history.snapshot()
    path = tmp_path / Table.open(tmp_path).snapshot().paths[which]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match="cannot be read"):
        snapshot.read(RangeRequest())
    path.unlink()
    with pytest.raises(DataError, match="cannot be read"):
        snapshot.read(RangeRequest())


def test_only_files_that_may_answer_are_read(tmp_path):
    """Files of a day each, symbols apart: remove all that a read must not need, and read."""
    day = 86_400_000_000
    table = Table.create(tmp_path, TICKS)
    for i, symbol in enumerate(("A", "M", "Z", None)):
        table.append(*batch_of([Event(START_US + i * day, symbol, 1.0, None, "default", i, i)]))
    files = table.snapshot()

    def needed(low: int | None, end: int | None, **keys: list) -> set[int]:
        values = {name: pa.array(v, pa.string()) for name, v in keys.items()}
        index = [files.paths.index(path) for path in files.files(low, end, values)]
        return {int(files.min_us[i] - START_US) // day for i in index}

    assert needed(None, None) == {0, 1, 2, 3}
    assert needed(START_US + day, START_US + 2 * day) == {1}
    assert needed(START_US + day, START_US + 2 * day + 1) == {1, 2}
    assert needed(START_US + 1, None) == {0, 1, 2, 3}  # within the millisecond that statistics may lose
    assert needed(START_US + 1000, None) == {1, 2, 3}
    assert needed(None, None, symbol=["M"]) == {1}
    assert needed(None, None, symbol=["B", "N"]) == set()
    assert needed(None, None, symbol=["Z", None]) == {2, 3}
    assert needed(None, None, symbol=[]) == set()


@pytest.mark.slow
def test_others_read_the_same_rows(tmp_path):
    history = History(TICKS, tmp_path)
    events = [
        Event(
            START_US + i * 1_000_001, ("A", "B", None)[i % 3], None if i % 5 == 0 else i / 8, i % 2, "xy"[i % 2], i, i,
            i % 7 == 0,
        )
        for i in range(100)
    ]  # fmt: skip
    history.append(*batch_of(events[:60]))
    history.flush()
    history.append(*batch_of(events[60:]))
    history.close()

    def as_events(rows: list[dict]) -> list[Event]:
        got = [
            Event(r["us"], r["symbol"], r["price"], r["rank"], r["_source"], r["_offset"], r["_seq"], r["_late"])
            for r in rows
        ]
        return sorted(got, key=lambda e: e.seq)

    delta = DeltaTable(str(tmp_path))
    files = [str(tmp_path / path) for path in pa.table(delta.get_add_actions(flatten=True)).column("path").to_pylist()]
    assert delta.protocol().min_reader_version == 1
    by_duckdb = duckdb.connect().sql("SELECT *, epoch_us(ts) AS us FROM read_parquet($files)", params={"files": files})
    assert as_events(pa.table(by_duckdb).to_pylist()) == events

    by_deltalake = delta.to_pyarrow_table()
    assert by_deltalake.schema.field("ts").type == pa.timestamp("us", "UTC")
    assert by_deltalake.schema.field("symbol").type == pa.string()
    by_deltalake = by_deltalake.append_column("us", by_deltalake.column("ts").cast(pa.int64()))
    assert as_events(by_deltalake.to_pylist()) == events

    polars = pytest.importorskip("polars")
    by_polars = polars.scan_delta(str(tmp_path)).with_columns(us=polars.col("ts").dt.timestamp("us")).collect()
    assert as_events(by_polars.to_dicts()) == events


def test_statistics_are_true(tmp_path):
    table = Table.create(tmp_path, TICKS)
    table.append(*batch_of([
        Event(START_US + 5, "b", 1.5, None, "y", 7, 3), Event(START_US, None, -2.0, 4, "x", 9, 2),
        Event(START_US + 9, "a", None, 3, "x", 11, 8),
    ]))  # fmt: skip
    row = pa.table(DeltaTable(str(tmp_path)).get_add_actions(flatten=True)).to_pylist()[0]
    assert row["num_records"] == 3
    assert (row["null_count.symbol"], row["null_count.price"], row["null_count.rank"]) == (1, 1, 1)
    assert (row["min.symbol"], row["max.symbol"], row["min.price"], row["max.price"]) == ("a", "b", -2.0, 1.5)
    assert (row["min.rank"], row["max.rank"], row["min._seq"], row["max._seq"]) == (3, 4, 2, 8)
    assert (row["min._offset"], row["max._offset"], row["min._source"], row["max._source"]) == (7, 11, "x", "y")
    snapshot = table.snapshot()
    assert snapshot.min_us.tolist() == [START_US]
    assert START_US + 9 <= snapshot.max_us[0] <= START_US + 9 + 999
    assert np.array_equal(snapshot.rows, [3])


def test_directories_in_the_way_of_a_table(tmp_path):
    """Files of other programs beside the table are left alone."""
    (tmp_path / "notes.txt").write_text("mine")
    history = History(TICKS, Path(tmp_path))
    history.append(*batch_of(run_of(3)))
    history.close()
    assert (tmp_path / "notes.txt").read_text() == "mine"


def stalled(monkeypatch, lost: bool):
    """Commits of every handle take a minute by the clock; lost: the first one is not in the log afterwards."""
    create, now, left = DeltaTable.create_write_transaction, [1_700_000_000.0], [lost]

    def slow(self, *args, **kwargs):
        now[0] += 60
        if left.pop() if left else False:
            return None
        return create(self, *args, **kwargs)

    monkeypatch.setattr(DeltaTable, "create_write_transaction", slow)
    monkeypatch.setattr("archive.table.time.time", lambda: now[0])


@pytest.mark.parametrize("lost", [False, True])
def test_a_commit_that_was_stopped_in_between_counts_only_if_it_is_there(tmp_path, monkeypatch, lost):
    table = Table.create(tmp_path, TICKS)
    table.append(*batch_of(run_of(5)))
    with monkeypatch.context() as patch:
        stalled(patch, lost)
        table.append(*batch_of(run_of(10)))
    assert rows_in(Table.open(tmp_path)) == [("default", i) for i in range(10)]
    before = table.snapshot()
    files = rewritten(table, before)
    with monkeypatch.context() as patch:
        stalled(patch, lost)
        assert (table.replace(before, before.paths, files) is None) == lost
    assert rows_in(Table.open(tmp_path)) == [("default", i) for i in range(10)]


def answers_lost(monkeypatch, error: Exception):
    """The next commit lands, and its writer hears of an error instead."""
    create, left = DeltaTable.create_write_transaction, [error]

    def landed(self, *args, **kwargs):
        create(self, *args, **kwargs)
        if left:
            raise left.pop()

    monkeypatch.setattr(DeltaTable, "create_write_transaction", landed)


@pytest.mark.slow
@pytest.mark.parametrize("error", [CommitFailedError("somebody was faster"), OSError("no answer"), DeltaError("gone")])
def test_a_commit_whose_answer_was_lost_stays(tmp_path, monkeypatch, error):
    """A request to a store is sent again when no answer comes, and is then refused: the entry is there already."""
    table = Table.create(tmp_path, TICKS)
    with monkeypatch.context() as patch:
        answers_lost(patch, error)
        table.append(*batch_of(run_of(10)))
    table.append(*batch_of(run_of(20)))
    before = table.snapshot()
    what = Rewrite(before.paths, 20, "all")
    with monkeypatch.context() as patch:
        answers_lost(patch, error)
        assert rewrite(table, before, what, "100MB", lambda: False)
    assert rows_in(Table.open(tmp_path)) == [("default", i) for i in range(20)]
    assert not any(finding.kind == "broken" for finding in verify(table, deep=True))
    row = to_stored(*batch_of([Event(START_US, "A", 1.0, None, FILES, 0, -5)]), TICKS)
    files = write_files(row, table.directory, TICKS)
    with monkeypatch.context() as patch:
        answers_lost(patch, error)
        taken = table.ingest(files, None, 7)
    assert taken is not None
    assert {file.path for file in files} <= set(taken.paths)
    assert table.ingest(files, None, 8) is None
    assert rows_in(Table.open(tmp_path)) == [(FILES, 0), *(("default", i) for i in range(20))]


@pytest.mark.slow
def test_files_of_a_rewrite_stay_until_it_is_clearly_refused(tmp_path, monkeypatch):
    """An error of the log may come after it has taken the entry; to be refused is clear on disk."""
    table = Table.create(tmp_path, TICKS)
    table.append(*batch_of(run_of(10)))
    before = table.snapshot()
    what = Rewrite(before.paths, 10, "all")

    def files() -> int:
        return sum(1 for entry in table.directory.entries() if entry.path.endswith(".parquet"))

    def failing(*args, **kwargs):
        raise OSError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(DeltaTable, "create_write_transaction", failing)
        with pytest.raises(DataError, match="no answer"):
            rewrite(table, before, what, "100MB", lambda: False)
    assert files() == 2
    assert [finding.kind for finding in verify(table)] == ["orphan"]
    Table.open(tmp_path).drop_before(START_US + 10**12)
    assert not rewrite(table, before, what, "100MB", lambda: False)
    assert files() == 2


class Dozing(Table):
    """A table that looks, sleeps, and then goes on with what it has seen; the next time it looks again."""

    __slots__ = ("dreams",)

    def snapshot(self) -> TableSnapshot:
        dreams, self.dreams = getattr(self, "dreams", None), None
        return dreams or super().snapshot()

    def _register(self, names: list[str]) -> None:
        if self.dreams is None:
            super()._register(names)


@pytest.mark.slow
def test_a_writer_that_slept_while_the_log_was_cleaned(tmp_path, monkeypatch):
    """Its handle is of a version whose followers are in no entry any more, only in a checkpoint."""
    monkeypatch.setattr("archive.table._LOG_SECONDS_ON_DISK", 0)
    Table.create(tmp_path, TICKS).append(*batch_of(run_of(5)))
    sleeper, reader, writer = Dozing.open(tmp_path), Table.open(tmp_path), Table.open(tmp_path)
    sleeper.dreams = sleeper.snapshot()
    for first in range(5, 65):
        writer.append(*batch_of(run_of(1, first=first)))
    assert len(list((tmp_path / "_delta_log").glob("*.json"))) < 30
    assert reader.snapshot().rows.sum() == 65
    sleeper.append(*batch_of(run_of(70)))
    assert rows_in(Table.open(tmp_path)) == [("default", i) for i in range(70)]

"""Damage enumerated, to all that a table keeps: the events stay, or an error names the file."""

from __future__ import annotations

import shutil
import tempfile
import warnings
from pathlib import Path

import pytest

from archive.history import History
from archive.ingest import Job, ingest
from archive.ingested import ingested_files
from archive.place import place_of
from archive.reader import RangeRequest
from archive.snapshot import HistorySnapshot
from archive.table import Table
from archive.upkeep import compact
from tests.archive.damage import ALL, points, try_all
from tests.archive.events import START_US, TICKS, batch_of, events_of, run_of
from tests.in_memory import MEMORY

#: Of which no answer is made: rows that did not fit, and what keeps two from compacting at once.
LEFT_OUT = ("_quarantine", "_maintenance.lock")
SECONDS = 1.0


def make(directory: Path) -> None:
    """Three days, one rewritten by key; an input file; a checkpoint of the log, and entries behind it."""
    given = directory.parent / "given.csv"
    given.write_text("ts,symbol,price,rank\n2023-12-31,A,1,1\n2023-12-31,B,two,1\n2023-12-30,C,3,\n")
    ingest(Job(TICKS, place_of(directory), (str(given),)))
    history = History(TICKS, directory, memory_rows_max=10**9)
    for first in (0, 40, 80, 90_000, 90_040, 180_000, 180_040, 180_080):
        history.append(*batch_of(run_of(30, first=first)))
        history.flush()
    list(compact(Table.open(directory), closed_us=START_US + 86_400_000_000))
    for first in (180_120, 180_160):
        history.append(*batch_of(run_of(30, first=first)))
        history.flush()


def answers(directory: Path) -> tuple[object, str]:
    """What is in the table, without writing to it, and the warnings."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        table = Table.open(directory)
        snapshot = table.snapshot()
        sources = tuple(sorted(snapshot.sources))
        batch = HistorySnapshot(table.schema, (), sources, table.directory, snapshot).read(RangeRequest(late=True))
        listed = ingested_files(table.directory).select(["number", "rows", "bad", "fingerprint"]).to_pylist()
    return (events_of(batch), listed, snapshot.offsets, snapshot.boundary_sequence), "; ".join(
        str(one.message) for one in said
    )


@pytest.mark.slow
def test_each_bit_and_each_length_of_a_table(record_property):
    # Before: of 70 points 29 gave fewer events, or other ones, without a word, or an error that named no file.
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        each_bit_and_each_length(Path(place), record_property)


def each_bit_and_each_length(tmp_path, record_property):
    intact, damaged = tmp_path / "intact", tmp_path / "damaged"
    make(intact)
    shutil.copytree(intact, damaged)
    expected, said = answers(damaged)
    assert said == ""

    def ask(point):
        point.apply(damaged)
        try:
            found, said = answers(damaged)
            return found == expected, said
        finally:
            shutil.copyfile(intact / point.path, damaged / point.path)

    counts, silent = try_all(list(points(intact, LEFT_OUT)), SECONDS, ALL, ask)
    record_property("points", sum(counts.values()))
    assert silent[:3] == []
    assert answers(damaged)[0] == expected
    kinds = {point.path.split("/")[0] for point in points(intact, LEFT_OUT)}
    assert kinds >= {"_delta_log", "_head", "_ingest", "2024-01-01", "2024-01-02", "2024-01-03"}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["copy", "names"])
def test_a_table_in_another_place_is_the_same(tmp_path, what):
    make(tmp_path / "intact")
    if what == "copy":
        shutil.copytree(tmp_path / "intact", tmp_path / "other")
    else:
        (tmp_path / "intact").rename(tmp_path / "other")
    assert len(answers(tmp_path / "other")[0][0]) == 302

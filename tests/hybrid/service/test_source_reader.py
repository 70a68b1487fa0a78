"""What is read ahead: small pieces of one partition come out together, in order, and nothing else does."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hybrid.service import source_reader as reader
from hybrid.service.source_reader import Reader
from live.sources.base import Bad, Piece
from tests.hybrid.services import FakeSource
from tests.waiting import until


def piece(source: str, first: int, count: int, places: bool = True, last: bool = False) -> Piece:
    rows = pa.RecordBatch.from_arrays([pa.array(range(first, first + count), pa.int64())], ["n"])
    return Piece(source, rows, np.arange(first, first + count) if places else None, first + count, last)


def taken(given: list[Piece | Bad | Exception]) -> tuple[list[Any], Reader]:
    """What comes out, each with its rows and places; everything is read before the first is taken."""
    source = FakeSource(given)
    read = Reader("feed", "ticks", source, {}, 1_000_000, threading.Event())
    while read.turn():
        pass
    found: list[Any] = []
    while (item := read.take()) is not None:
        if isinstance(item, Bad):
            found.append(item)
        else:
            places = None if item.offsets is None else item.offsets.tolist()
            found.append((item.source, item.rows.column("n").to_pylist(), places, item.next, item.last))
    assert read.queued == 0
    return found, read


def test_pieces_of_one_partition_are_one() -> None:
    found, _ = taken([piece("a", 0, 2), piece("a", 2, 1), piece("b", 0, 1), piece("b", 1, 0), piece("a", 3, 1)])
    assert found == [
        ("a", [0, 1, 2], [0, 1, 2], 3, False), ("b", [0], [0], 1, False), ("a", [3], [3], 4, False)
    ]  # fmt: skip


def test_bad_payloads_and_ends_stay_where_they_are() -> None:
    bad = Bad("a", 1, b"{", "no JSON")
    found, _ = taken([piece("a", 0, 1), bad, piece("a", 2, 1, last=True), piece("a", 3, 1)])
    assert found == [("a", [0], [0], 1, False), bad, ("a", [2], [2], 3, True), ("a", [3], [3], 4, False)]


def test_rows_without_places(monkeypatch: Any) -> None:
    monkeypatch.setattr(reader, "JOINED_ROWS", 3)
    given: list[Any] = [piece("a", i, 2, places=False) for i in (0, 2, 4)]
    found, _ = taken([*given, piece("a", 6, 1, places=False, last=True)])
    assert found == [("a", [0, 1], None, 2, False), ("a", [2, 3], None, 4, False), ("a", [4, 5, 6], None, 7, True)]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_of_what_is_no_exception_is_a_failure() -> None:
    # Before: the thread was gone and the source went on as "reading", without a word. librdkafka raises such a thing,
    # a KafkaError that is no BaseException, out of a rebalance that fails; SystemExit is as little an Exception.
    class Odd(FakeSource):
        def poll(self, seconds: float) -> list[Any]:
            raise SystemExit

    read = Reader("feed", "ticks", Odd([]), {}, 1_000, threading.Event())
    read.start()
    until(lambda: read.failure is not None)
    assert read.failure == "its thread has ended"
    read.close()

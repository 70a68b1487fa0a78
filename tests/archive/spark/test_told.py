"""What tasks tell the driver: all of it comes back as it was, and nothing in it is run."""

from __future__ import annotations

import pickle
from dataclasses import fields
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from archive.ingest import Count
from archive.inputs import Chunk
from archive.layout import DataFile
from archive.spark.ingest import heard
from archive.spark.told import FailedTask, Loaded, hear, hear_matches, say, say_matches
from matching.batch import Matches
from query.errors import DataError, Diagnostic, QueryError, Span

FILE = DataFile("2024/a'b\n.parquet", 10, 3, '{"numRecords": 3}')
COUNT = Count(1, 2, 3)


@pytest.mark.parametrize(
    "what",
    [
        [Chunk(b"\x00\xff", 3, (1, 2), (True, False)), Chunk(b"")],
        Loaded({0: COUNT, 7: COUNT}, (-1, 19723), (FILE,)), FILE, None, {"a": [1, 2.5, "é", None, True]}, (1, (2, [3])),
    ],
)  # fmt: skip
def test_all_of_it_comes_back(what: Any) -> None:
    assert hear(say(what)) == what


def test_errors() -> None:
    error = hear(say(FailedTask(DataError("message", "hint")))).error
    assert (type(error), error.message, error.hint) == (DataError, "message", "hint")
    fault = Diagnostic("HQ205", "said", Span(3, 5), "label", "hint")
    query = hear(say(QueryError([fault], "text")))
    assert (type(query), query.diagnostics, query.text) == (QueryError, QueryError([fault], "text").diagnostics, "text")
    with pytest.raises(DataError, match="message"):
        heard(pa.table({"__told": [say(None), say(FailedTask(DataError("message")))]}))


@pytest.mark.parametrize("outcome", [None, np.array([0, 1], np.int8)])
def test_matches(outcome: Any) -> None:
    rows = pa.table({"k": ["a", "é"], "l": [[1, None], None], "d": pa.array([1, 2], pa.decimal128(20, 3))})
    numbers = np.array([1, 2], np.int64)
    found = Matches(
        rows, numbers, numbers, numbers, numbers, np.array([0, 1, 2]), np.array([0, 1], np.int16), numbers,
        np.array([0, 1], np.int32), numbers, numbers, ("A", 'B"'), ("s", "t"), outcome,
    )  # fmt: skip
    back = hear_matches(say_matches(found))
    assert back.rows.equals(rows)
    for field in fields(Matches):
        was, now = getattr(found, field.name), getattr(back, field.name)
        assert type(was) is type(now)
        if isinstance(was, np.ndarray):
            assert was.dtype == now.dtype
            assert np.array_equal(was, now)
        elif field.name != "rows":
            assert was == now


RAN: list[str] = []


def ran() -> str:
    RAN.append("code")
    return ""


class Hostile:
    def __reduce__(self) -> Any:
        return ran, ()


# Before: the driver ran what an executor, or a Spark that somebody else keeps, had put into its answer.
@pytest.mark.parametrize(
    "data", [pickle.dumps(Hostile()), b"", b"{}", b'{"Popen": {}}', b'{"Span": {"a": 1}}', b"[1", b"\xff"]
)
def test_nothing_is_run(data: bytes) -> None:
    for read in (hear, hear_matches):
        with pytest.raises(DataError):
            read(data)
    with pytest.raises(DataError):
        heard(pa.table({"__told": [data]}))
    assert RAN == []

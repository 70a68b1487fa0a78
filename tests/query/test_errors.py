"""Errors are shown by their public names, and can be pickled where `hybrid` is not installed."""

from __future__ import annotations

import copy
import pickle
import sys

import pytest

from archive.writer import WriterLocked
from hybrid.rows.times import NotADuration
from matching.trend_rows import InfiniteSum
from query.errors import DataError, Diagnostic, Error, NotComputed, NotKept, QueryError, Span, TextColumn

ERRORS = [
    QueryError([Diagnostic("HQ201", "no column", Span(0, 1), "", "", TextColumn("t", "c", "DOUBLE"))], "x"),
    DataError("bad", "a hint"), NotKept("full", "a hint"), WriterLocked("open", "close it"), InfiniteSum("SUM(x)"),
    NotADuration("timeout", 5, " nothing", "a hint"),
    NotComputed("bad", "a hint", Span(1, 2), "label", TextColumn("t", "c", "DOUBLE", "n/a")),
]  # fmt: skip


@pytest.mark.parametrize("error", ERRORS, ids=lambda e: type(e).__name__)
def test_pickled(error: Error, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hybrid", None)  # as in an executor of Spark; hybrid.rows is imported by now
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert {**vars(again)} == {**vars(error)}


def test_shown_by_the_public_name() -> None:
    shown = [f"{type(e).__module__}.{type(e).__qualname__}" for e in [Error("x"), *ERRORS]]
    assert shown == ["hybrid.Error", "hybrid.QueryError"] + ["hybrid.DataError"] * 6


def test_a_class_of_a_user_keeps_its_name() -> None:
    class Mine(DataError):
        pass

    assert Mine.__module__ == __name__
    assert type(pickle.loads(pickle.dumps(DataError("x")))) is DataError

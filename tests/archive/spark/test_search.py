"""Patterns searched for by Spark: the rows of the search in one process, and of one table in memory."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import hybrid
from archive.spark import search
from hybrid.engine import Database
from query.errors import HybridWarning
from tests.archive.spark.queries import COLUMNS, SIDE, statement, table

pytestmark = pytest.mark.spark


def rows_of(result: hybrid.Result | pa.Table) -> Counter[str]:
    found = result if isinstance(result, pa.Table) else result.arrow()
    return Counter(repr(tuple(row.values())) for row in found.to_pylist())


@pytest.fixture(scope="module")
def events() -> pa.Table:
    return table(Random(7), 700)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory, events: pa.Table) -> Iterator[Database]:
    """The events in files of several commits, and the last of them in memory."""
    with hybrid.connect(tmp_path_factory.mktemp("database")) as db:
        db.create_stream("t", COLUMNS, time="ts", key="k")
        for start in range(0, events.num_rows, 150):
            db.push("t", events.slice(start, 150))
            if start < 450:
                db.flush()
        yield db


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several tasks, inputs of few rows, and slices of time wherever they are allowed."""
    monkeypatch.setattr(search, "TASK_ROWS", 200)
    monkeypatch.setattr(search, "ROWS_TOGETHER", 50)
    monkeypatch.setattr(search, "GIANT_TASKS", 0)


@pytest.mark.usefixtures("small")
def test_random_statements_give_equal_rows(spark: Any, database: Database, events: pa.Table) -> None:
    some = 0
    for seed in range(60):
        text = statement(seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HybridWarning)
            on_spark = database.sql(text, engine="spark", spark=spark, side=SIDE)
            embedded = database.sql(text, side=SIDE)
            whole = hybrid.sql(text, t=events, side=SIDE)
        assert on_spark.arrow().schema == embedded.arrow().schema, text
        assert rows_of(on_spark) == rows_of(embedded), text
        assert rows_of(on_spark) == rows_of(whole), text
        some += len(on_spark) > 0
    assert some > 40

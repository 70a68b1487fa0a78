"""Arguments of another type than asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import hybrid
from query.errors import DataError

COLUMNS = {"ts": "TIMESTAMP", "v": "BIGINT"}
TEXT = "SELECT * FROM seen MATCH_RECOGNIZE (ORDER BY ts MEASURES count(*) AS n PATTERN (A) DEFINE A AS v > 1)"


@pytest.fixture(scope="module")
def db() -> hybrid.Database:
    db = hybrid.connect()
    db.create_stream("seen", COLUMNS, time="ts")
    return db


@pytest.mark.parametrize("text", [None, 5, b"SELECT 1", ["SELECT 1"]], ids=repr)
def test_a_text_that_is_none(db: hybrid.Database, text: Any) -> None:
    # Before: TypeErrors and AttributeErrors from inside: expected string or bytes-like object.
    alerts = db.watch(TEXT)
    calls: list[Callable[[], object]] = [
        lambda: hybrid.sql(text), lambda: hybrid.matches(text), lambda: hybrid.plan(text, {}), lambda: db.sql(text),
        lambda: db.watch(text), lambda: db.backtest(text, "2024-01-01"), lambda: db.explain(text),
        lambda: db.compare(TEXT, text, "2024-01-01"), lambda: db.replace(alerts, text),
        lambda: db.create_pattern("v", text), lambda: db.create_patterns({"v": text}),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(DataError, match=f"query( of a pattern)? is a text, not {type(text).__name__}"):
            call()
    alerts.close()


def test_other_arguments_that_are_none(db: hybrid.Database) -> None:
    wrong: Any = None
    with pytest.raises(DataError, match="name of a pattern is a text, not NoneType"):
        db.drop_pattern(wrong)
    with pytest.raises(DataError, match="patterns are texts by name, not NoneType"):
        db.create_patterns(wrong)
    with pytest.raises(DataError, match="columns of stream z are types by name, not None"):
        db.create_stream("z", wrong, time="ts")
    with pytest.raises(DataError, match="the time of stream z is a text, not NoneType"):
        db.create_stream("z", COLUMNS, time=wrong)
    for path in (5, b"market"):
        with pytest.raises(DataError, match=f"{path!r} is no path"):
            hybrid.connect(path)  # type: ignore[arg-type]

"""A new version of a live query goes on with the rows of the old one, whatever others have joined these since."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from matching.batch import EventBatch
from matching.feed import Feed
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import Plan
from query.schema import Field, Schema

SEEN = Schema(
    "seen", (Field("ts", "TIMESTAMP"), Field("s", "VARCHAR"), Field("v", "BIGINT"), Field("w", "VARCHAR")), time="ts"
)


def showing(measure: str) -> Plan:
    text = (
        f"SELECT * FROM seen MATCH_RECOGNIZE (ORDER BY ts MEASURES {measure} AS m PATTERN (X Y)"
        " WITHIN INTERVAL 1 MINUTE SELECTION SKIP TILL ANY MATCH DEFINE X AS s = 'x', Y AS s = 'y')"
    )
    return bind(parse(text), lambda name: SEEN).factors[-1].plan


@pytest.mark.parametrize(("column", "values"), [("v", [1, 2, 3]), ("w", ["a", "b", "c"])])
def test_a_new_version_shows_columns_that_others_read_from_later_on(column: str, values: list[object]) -> None:
    # Before: of rows that came before the other query, the new version showed nulls.
    at = np.arange(4)
    columns = pa.RecordBatch.from_pydict(
        {"ts": pa.array(at).cast(pa.timestamp("us")), "s": list("xxxy"), "v": [1, 2, 3, 4], "w": list("abcd")}
    )
    events = EventBatch(columns, at, np.zeros(4, np.int32), at, at)
    feed = Feed(SEEN)
    first = feed.add(showing("Y.s"), 0)
    feed.push(events.slice(0, 2), 1)
    feed.add(showing(f"X.{column}"), 2)
    feed.push(events.slice(2, 3), 2)
    new = feed.succeed(first, showing(f"X.{column}"), lambda low, high: events.slice(low, high + 1))
    assert new is not None
    feed.push(events.slice(3, 4), None)
    assert [m for found in new.take_found() for m in found.rows["m"].to_pylist()] == values

"""Rows cut by partition: each partition comes whole to one matcher, in the total order, in bounded memory; and matchers
find what one matcher finds in all rows at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from archive.search.partitions import inputs
from matching.batch import EventBatch, Matches
from matching.drive import run
from matching.ordering import column_ranks, sort_events
from matching.types import arrow_schema
from query.errors import DataError
from query.language.ast import Selection
from query.plan.plan import Plan
from query.schema import Field, Schema
from tests.events import batch_of as rows_of
from tests.properties.comparing import FEWER, answer_of, drawn_until_told, kernel_of
from tests.strategies import SCHEMA, SKIP_TILL, SQL_SELECTIONS, Row, chains, events, patterns, plans

WIDE = Schema(
    "wide",
    (
        Field("ts", "TIMESTAMP"), Field("k", "VARCHAR"), Field("f", "DOUBLE"), Field("rank", "INTEGER"),
        Field("tie", "DOUBLE"),
    ),
    time="ts",
    order=("rank", "tie"),
)  # fmt: skip
FLOATS = (0.0, -0.0, 1.5, float("nan"), None)


@st.composite
def wide_events(draw: st.DrawFn) -> EventBatch:
    """Events of WIDE with many ties, of two sources, in no order; `seq` numbers them."""
    n = draw(st.integers(1, 60))
    random = draw(st.randoms(use_true_random=False))
    columns = {
        "ts": pa.array(times := [random.randint(0, 8) for _ in range(n)], pa.timestamp("us")),
        "k": pa.array([random.choice(("a", "b", "ä", "", None)) for _ in range(n)], pa.string()),
        "f": pa.array([random.choice(FLOATS) for _ in range(n)], pa.float64()),
        "rank": pa.array([random.choice((0, 1, None)) for _ in range(n)], pa.int32()),
        "tie": pa.array([random.choice(FLOATS) for _ in range(n)], pa.float64()),
    }
    numbers = np.arange(n, dtype=np.int64)
    sources = np.array([random.randint(0, 1) for _ in range(n)], np.int32)
    batch = pa.RecordBatch.from_arrays(list(columns.values()), schema=arrow_schema(WIDE))
    return EventBatch(batch, np.array(times, np.int64), sources, numbers, numbers, ("z", "default"))


def standing(batch: EventBatch, keys: tuple[str, ...], schema: Schema) -> EventBatch:
    """The rows by (keys, total order)."""
    ordered = sort_events(batch, schema)
    ranks = [column_ranks(ordered.columns.column(name)) for name in keys]
    return ordered.take(np.lexsort([np.arange(len(ordered)), *ranks[::-1]])) if keys else ordered


def cut(batch: EventBatch, sizes: list[int]) -> Iterator[EventBatch]:
    start = 0
    for size in [*sizes, len(batch)]:
        if start < len(batch):
            yield batch.slice(start, min(start + size, len(batch)))
        start += size


def partition_of(batch: EventBatch, keys: tuple[str, ...]) -> list[tuple[object, ...]]:
    """The key of each row as a value that can be looked up: 0 and -0 are one, NaN is one."""
    columns = [batch.columns.column(name).to_pylist() for name in keys]
    return [
        tuple("nan" if isinstance(v, float) and v != v else (0.0 if v == 0 and v is not None else v) for v in row)
        for row in (zip(*columns) if keys else [()] * len(batch))
    ]


@pytest.mark.slow
@given(
    batch=wide_events(), keys=st.sampled_from((("k",), ("f",), ("k", "f"), ())),
    sizes=st.lists(st.integers(0, 12), max_size=12), together=st.integers(1, 70),
)  # fmt: skip
def test_every_partition_in_one_input(
    batch: EventBatch, keys: tuple[str, ...], sizes: list[int], together: int
) -> None:
    seen: dict[tuple[object, ...], int] = {}
    rows = 0
    for i, given_rows in enumerate(inputs(cut(standing(batch, keys, WIDE), sizes), WIDE, keys, together)):
        parts = list(given_rows)
        part = EventBatch.concat(parts)
        rows += len(part)
        for key in set(partition_of(part, keys)):
            assert seen.setdefault(key, i) == i, "a partition in two inputs"
        assert sort_events(part, WIDE).seq.tolist() == part.seq.tolist(), "not in the total order"
        if len(set(partition_of(part, keys))) > 1:
            assert len(part) <= together + max(1, together // 4)
        for one in parts:
            assert len(one) <= together + max(1, together // 4)
    assert rows == len(batch)


@pytest.mark.parametrize("keys", [("k",), ()])
def test_rows_out_of_order_are_refused(keys: tuple[str, ...]) -> None:
    rows = [{"ts": t, "k": k, "s": None, "v": t, "x": None} for k in "ab" for t in (1, 2, 3)]
    batch = rows_of(SCHEMA, rows)
    if not keys:
        batch = batch.take(np.array([0, 3, 1, 4, 2, 5]))
    assert sum(len(part) for given_rows in inputs([batch], SCHEMA, keys) for part in given_rows) == 6
    for a, b in ((0, 1), (1, 2), (0, 5)):
        order = np.arange(6)
        order[[a, b]] = order[[b, a]]
        swapped = batch.take(order)
        for size in (1, 2, 6):
            parts = [swapped.slice(i, i + size) for i in range(0, 6, size)]
            with pytest.raises(DataError, match="out of order"):
                _read(parts, keys)


def _read(parts: list[EventBatch], keys: tuple[str, ...]) -> None:
    for given_rows in inputs(parts, SCHEMA, keys, 2):
        list(given_rows)


@pytest.mark.slow
@pytest.mark.parametrize("selections", [SKIP_TILL, SQL_SELECTIONS[1:]])
def test_matchers_find_what_one_finds(selections: tuple[Selection, ...]) -> None:
    seen: Counter[str] = Counter()

    @FEWER
    @given(
        rows=events(min_size=6), plan=plans(selections, chains if selections is SKIP_TILL else patterns, skip_to=False),
        sizes=st.lists(st.integers(0, 9), max_size=8), together=st.sampled_from((1, 2, 4, 100)),
    )  # fmt: skip
    def check(rows: list[Row], plan: Plan, sizes: list[int], together: int) -> None:
        whole = rows_of(SCHEMA, rows)
        expected = answer_of(list(run(kernel_of(plan), [whole])))
        keys = tuple(c.name for c in plan.partition_by)
        found: list[Matches] = []
        count = 0
        for given_rows in inputs(cut(standing(whole, keys, SCHEMA), sizes), SCHEMA, keys, together):
            found += run(kernel_of(plan), given_rows)
            count += 1
        assert answer_of(found) == expected
        seen["examples"] += 1
        seen["a match"] += bool(expected)
        seen["several inputs"] += count > 1

    def told() -> None:
        assert 8 * seen["a match"] >= seen["examples"]
        assert 24 * seen["several inputs"] >= seen["examples"]

    drawn_until_told(check, told)

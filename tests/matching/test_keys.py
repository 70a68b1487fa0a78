"""Partition ids: dense, in order of first appearance, however the rows are cut."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.keys import Encoder, Keys, Numbers

INTEGERS = [(t, st.integers(-(2**bits // 2), 2**bits // 2 - 1)) for t, bits in (
    (pa.int8(), 8), (pa.int16(), 16), (pa.int32(), 32), (pa.int64(), 64)
)]  # fmt: skip
UNSIGNED = [(t, st.integers(0, 2**bits - 1)) for t, bits in (
    (pa.uint8(), 8), (pa.uint16(), 16), (pa.uint32(), 32), (pa.uint64(), 64)
)]  # fmt: skip
TIMES = [
    (pa.date32(), st.dates()), (pa.timestamp("us"), st.datetimes()), (pa.time64("us"), st.times()),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
]  # fmt: skip
OTHERS = [(pa.string(), st.text(max_size=3)), (pa.float64(), st.floats()), (pa.bool_(), st.booleans())]
CASES = INTEGERS + UNSIGNED + TIMES + OTHERS


@pytest.mark.parametrize(("type", "values"), CASES, ids=[str(t) for t, _ in CASES])
def test_codes_are_places_of_first_appearance(type: pa.DataType, values: st.SearchStrategy[object]) -> None:
    few = st.lists(values, min_size=1, max_size=5)

    @given(data=st.data(), pool=few)
    def check(data: st.DataObject, pool: list[object]) -> None:
        cells = data.draw(st.lists(st.none() | st.sampled_from(pool) | values, max_size=30))
        cuts = sorted(data.draw(st.lists(st.integers(0, len(cells)), max_size=3)))
        encoder, seen = Encoder(type), list[str]()
        for low, high in zip([0, *cuts], [*cuts, len(cells)]):
            column = pa.array(cells[low:high], type)
            expected = []
            for cell in column.to_pylist():
                if repr(cell) not in seen and not (cell == 0 and {"0.0", "-0.0"} & {*seen}):
                    seen.append(repr(cell))
                same = [i for i, s in enumerate(seen) if s == repr(cell) or (cell == 0 and s in ("0.0", "-0.0"))]
                expected.append(same[0])
            assert encoder.encode(column).tolist() == expected
            assert [repr(v) for v in encoder.values.to_pylist()] == seen
            assert len(encoder) == len(seen)
            encoder = Encoder.of(encoder.values) if data.draw(st.booleans()) else encoder

    check()


@given(rows=st.lists(st.tuples(st.none() | st.integers(0, 3), st.none() | st.sampled_from("ab")), max_size=30))
def test_several_columns_together(rows: list[tuple[int | None, str | None]]) -> None:
    keys = Keys([pa.int64(), pa.string()])
    columns = [pa.array([a for a, _ in rows], pa.int64()), pa.array([b for _, b in rows], pa.string())]
    distinct = list(dict.fromkeys(rows))
    ids = keys.encode(columns, len(rows))
    assert ids.tolist() == [distinct.index(row) for row in rows]
    assert len(keys) == len(distinct)
    assert list(zip(*(keys.values(c, ids).to_pylist() for c in range(2)))) == rows
    again = Keys([pa.int64(), pa.string()])
    again.restore(*keys.snapshot())
    assert again.encode(columns, len(rows)).tolist() == ids.tolist()


def test_a_table_grows_as_numbers_come() -> None:
    numbers = Numbers()
    values = np.arange(50_000, dtype=np.int64) * 4096 - 77
    for low in range(0, 50_000, 7_000):
        codes, fresh = numbers.encode(values[low : low + 7_000])
        assert codes.tolist() == list(range(low, min(50_000, low + 7_000)))
        assert fresh.tolist() == values[low : low + 7_000].tolist()
    codes, fresh = numbers.encode(values[::-1].copy())
    assert codes.tolist() == list(range(49_999, -1, -1))
    assert len(fresh) == 0
    assert numbers.numbers.tolist() == values.tolist()

"""Partition ids: dense, in order of first appearance, however the rows are cut."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.divided_keys import DividedKeys
from matching.keys import Encoder, Keys, Numbers
from tests.properties.comparing import FEWER

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


@dataclass(frozen=True)
class Place:
    number: int


@pytest.mark.slow
@pytest.mark.parametrize(("type", "values"), CASES, ids=[str(t) for t, _ in CASES])
def test_codes_are_places_of_first_appearance(type: pa.DataType, values: st.SearchStrategy[object]) -> None:
    few = st.lists(values, min_size=1, max_size=5)
    # places in the pool, not the pool itself: hypothesis would check a new strategy in each example
    cells_of = st.lists(st.none() | st.integers(0, 4).map(Place) | values, max_size=30)
    cuts_of = st.lists(st.integers(0, 30), max_size=3)

    @FEWER
    @given(data=st.data(), pool=few)
    def check(data: st.DataObject, pool: list[object]) -> None:
        drawn = data.draw(cells_of)
        cells = [pool[cell.number % len(pool)] if isinstance(cell, Place) else cell for cell in drawn]
        cuts = sorted(min(cut, len(cells)) for cut in data.draw(cuts_of))
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
            assert [repr(v) for v in encoder.values.to_pylist()] == ["0.0" if s == "-0.0" else s for s in seen]
            assert len(encoder) == len(seen)
            encoder = Encoder(type, encoder.values) if data.draw(st.booleans()) else encoder

    check()


@pytest.mark.slow
@FEWER
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
    again.restore(keys.snapshot())
    assert again.encode(columns, len(rows)).tolist() == ids.tolist()


def test_a_table_grows_as_numbers_come() -> None:
    numbers = Numbers()
    values = np.arange(50_000, dtype=np.int64) * 4096 - 77
    for low in range(0, 50_000, 7_000):
        codes = numbers.encode(values[low : low + 7_000])
        assert codes.tolist() == list(range(low, min(50_000, low + 7_000)))
    assert numbers.encode(values[::-1].copy()).tolist() == list(range(49_999, -1, -1))
    assert numbers.numbers.tolist() == values.tolist()


@pytest.mark.slow
@given(data=st.data())
def test_numbers_that_lie_near_each_other_or_do_not(data: st.DataObject) -> None:
    """Their codes are those of a dictionary, whichever table has them, as it grows, turns, forgets and is restored."""
    ends = [-(2**63), -(2**62), -(2**40), -1, 0, 1, 2**31, 2**62, 2**63 - 1]
    runs = st.tuples(st.sampled_from(ends), st.sampled_from([40, 700, 5_000]), st.sampled_from([1, 3, 40, 10**6]))
    numbers, known = Numbers(), dict[int | None, int]()
    for _ in range(data.draw(st.integers(1, 6))):
        start, count, step = data.draw(runs)
        values = [v for i in range(count) if -(2**63) <= (v := start + (i - count // 2) * step) < 2**63]
        valid = np.ones(len(values), np.bool_)
        if data.draw(st.booleans()):
            valid[data.draw(st.integers(0, len(values) - 1)) :: 400] = False
        drawn = np.array(values, np.int64)
        codes = numbers.encode(drawn, valid if not valid.all() else np.zeros(0, np.bool_))
        given = [v if ok else None for v, ok in zip(values, valid.tolist())]
        for value, code in zip(given, codes.tolist(), strict=True):
            assert known.setdefault(value, code) == code
        assert len(set(known.values())) == len(known)
        assert len(numbers) - len(numbers.free) == len(known)
        assert numbers.numbers[codes[valid]].tolist() == drawn[valid].tolist()
        if data.draw(st.booleans()):
            gone = sorted(known, key=repr)[:: data.draw(st.integers(1, 3))]
            numbers.forget(np.array([known.pop(value) for value in gone]))
        if data.draw(st.booleans()):
            numbers = Numbers(numbers.numbers.copy(), numbers.null, numbers.free)


def test_near_numbers_are_looked_up_by_value() -> None:
    numbers, values = Numbers(), np.arange(1 << 17, dtype=np.int64)
    numbers.encode(values)
    assert len(numbers._known)
    assert not len(numbers._slots)
    assert numbers.nbytes < 32 * len(values)
    numbers.encode(values << 40)
    assert len(numbers._slots)
    assert not len(numbers._known)


FORGETFUL = [
    (pa.int64(), st.integers(0, 9)), (pa.string(), st.sampled_from(["", "a", "ab", "12345678", "123456789", "ä" * 20])),
    (pa.binary(), st.binary(max_size=9)), (pa.float64(), st.sampled_from([0.5, 1.5, float("nan")])),
    (pa.list_(pa.int64()), st.lists(st.integers(0, 2), max_size=2)),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("type", "values"), FORGETFUL, ids=[str(t) for t, _ in FORGETFUL])
def test_codes_that_were_forgotten_are_handed_out_again(type: pa.DataType, values: st.SearchStrategy[object]) -> None:
    cells = st.lists(st.none() | values, max_size=8)

    @FEWER
    @given(data=st.data())
    def check(data: st.DataObject) -> None:
        encoder, known, most = Encoder(type), dict[str, int](), 0
        for _ in range(data.draw(st.integers(1, 5))):
            column = pa.array(data.draw(cells), type)
            codes = encoder.encode(column)
            for value, code in zip(column.to_pylist(), codes.tolist(), strict=True):
                assert known.setdefault(repr(value), code) == code
            assert len(set(known.values())) == len(known)
            most = max(most, len(known))
            assert len(encoder) == most, "a free code goes first"
            assert [repr(v) for v in encoder.of(codes).to_pylist()] == [repr(v) for v in column.to_pylist()]
            gone = data.draw(st.lists(st.sampled_from(sorted(known)), unique=True)) if known else []
            if gone:
                encoder.forget(np.array([known.pop(value) for value in gone]))
            if data.draw(st.booleans()):
                encoder = Encoder(type, encoder.values, encoder.free)

    check()


@pytest.mark.slow
@pytest.mark.parametrize(("whole", "more"), [(0, 0), (1, 0), (1, 1), (2, 1)])
@FEWER
@given(data=st.data())
def test_keys_of_several_columns_that_were_forgotten(whole: int, more: int, data: st.DataObject) -> None:
    """whole: how many of them have ids of their own. more: columns beyond two."""
    types = [pa.int64(), pa.string(), pa.int64()][: 2 + more]

    def made() -> Keys:
        return DividedKeys(types, whole) if whole else Keys(types)

    keys, known = made(), dict[tuple[object, ...], int]()
    cell = st.none() | st.integers(0, 3), st.none() | st.sampled_from("abc"), st.integers(0, 1)
    cells = st.tuples(*cell[: len(types)])
    for _ in range(data.draw(st.integers(1, 5))):
        rows = data.draw(st.lists(cells, max_size=8))
        columns = [pa.array([row[c] for row in rows], type) for c, type in enumerate(types)]
        ids = keys.encode(columns, len(rows))
        for row, i in zip(rows, ids.tolist(), strict=True):
            assert known.setdefault(row, i) == i
        assert len(set(known.values())) == len(known)
        assert list(zip(*(keys.values(c, ids).to_pylist() for c in range(len(types))))) == rows
        gone = data.draw(st.lists(st.sampled_from(sorted(known, key=repr)), unique=True)) if known else []
        if gone:
            keys.forget(np.array([known.pop(row) for row in gone]))
            divided = len(types) > 2
            for column, encoder in enumerate(keys.encoders):
                held = {row[:-1] if not column else row[-1] for row in known} if divided else {r[column] for r in known}
                assert len(encoder) - len(encoder.free) == len(held)
        assert len(keys) - len(keys.free) == len(known)
        if data.draw(st.booleans()):
            tables = keys.snapshot()
            keys = made()
            keys.restore(tables)


@pytest.mark.slow
@pytest.mark.parametrize("whole", [1, 2])
def test_divided_keys_have_room_for_more_values(whole: int) -> None:
    types, many = [pa.int64()] * 3, 1 << 21
    columns = [pa.array(np.zeros(many, np.int64)), pa.array(np.arange(many) & 1), pa.array(np.arange(many))]
    keys = DividedKeys(types, whole)
    ids = keys.encode(columns, many)
    assert len(keys) == many
    assert len(set(keys.whole(ids).tolist())) == whole
    assert keys.values(1, ids[-3:]).to_pylist() == [1, 0, 1]
    assert keys.values(2, ids[-3:]).to_pylist() == [many - 3, many - 2, many - 1]


@pytest.mark.slow
@pytest.mark.parametrize("columns", [2, 3, 5, 8])
def test_each_of_several_columns_may_have_many_values(columns: int) -> None:
    # Before: OverflowError, with 3 columns from a million values of one on, with 5 from 4,096 on.
    many = (1 << 20) + 1 if columns == 3 else 10_000
    values = [pa.array(np.arange(many) // (c + 1)) for c in range(columns)]
    keys = Keys([pa.int64()] * columns)
    ids = keys.encode(values, many)
    assert (ids == np.arange(many)).all()
    keys.forget(ids[: many // 2])
    assert len(keys) - len(keys.free) == many - many // 2
    again = Keys([pa.int64()] * columns)
    again.restore(keys.snapshot())
    left = ids[many // 2 :]
    assert (again.encode([v.slice(many // 2) for v in values], len(left)) == left).all()
    for c, column in enumerate(values):
        assert again.values(c, left).equals(column.slice(many // 2))


@pytest.mark.parametrize("columns", [3, 4, 7])
def test_keys_of_earlier_releases(columns: int) -> None:
    """They had the codes of all columns in one number."""
    rng = np.random.default_rng(columns)
    codes = np.unique(rng.integers(0, 3, (60, columns)), axis=0)
    rng.shuffle(codes)
    packed = np.zeros(len(codes), np.int64)
    for c in range(columns):
        packed = (packed << (62 // columns)) | codes[:, c]
    names, nothing = pa.array(["a", None, "c"]), pa.array([], pa.int64())
    tables = {f"values.{c}": names for c in range(columns)} | {f"free.{c}": nothing for c in range(columns)}
    gone = np.array([1, 4])
    keys = Keys([pa.string()] * columns)
    keys.restore(tables | {"packed": pa.array(packed), "free": pa.array(gone)})
    left = np.setdiff1d(np.arange(len(codes)), gone)
    rows = [names.take(pa.array(codes[left, c])) for c in range(columns)]
    assert (keys.encode(rows, len(left)) == left).all()
    assert len(keys) == len(codes)
    keys.forget(left[:3])
    assert all(keys.values(c, left[3:]).equals(rows[c].slice(3)) for c in range(columns))


@pytest.mark.parametrize("step", [32, 1 << 20, 1 << 32, 1 << 44, 0x9E3779B97F4A7C15])
def test_regular_numbers_do_not_crowd(step: int) -> None:
    numbers = Numbers()
    values = (np.arange(100_000, dtype=np.uint64) * np.uint64(step)).view(np.int64)
    numbers.encode(values)
    last = len(numbers._slots) - 1
    from matching.kernels.hashing import mixed

    slots = np.flatnonzero(numbers._slots[:, 1])
    away = [(slot - (mixed(number) & last)) & last for slot, number in zip(slots, numbers._slots[slots, 0].tolist())]
    assert max(away) < 100


def test_texts_of_a_slice_and_of_other_layouts() -> None:
    words = ["x" * (i % 19) + str(i % 50) for i in range(300)]
    column = pa.array([None, *words, None])
    encoder = Encoder(pa.string())
    codes = encoder.encode(column)
    for same in (
        column, column.cast(pa.large_string()), column.cast(pa.string_view()), column.dictionary_encode(),
        pa.concat_arrays([column, column])[302:], pa.array(column.to_pylist(), pa.string()),
    ):  # fmt: skip
        assert encoder.encode(same).tolist() == codes.tolist()
        assert encoder.encode(same[3:290]).tolist() == codes[3:290].tolist()
    assert encoder.encode(pa.array(["", ""])[1:]).tolist() == [len(encoder) - 1]

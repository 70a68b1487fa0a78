"""Policies on numbers worked out by hand, and the records that they put away."""

from __future__ import annotations

from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from matching.batch import Int64Array
from matching.matcher import KernelMatcher, make_matcher
from matching.records import RecordBlock, bounds_of, layout_of, one_each, pack, unpack
from matching.spill import Facts, Learnt, Policy, Spill, leaving_order
from query.errors import DataError
from query.language.parse import parse
from query.plan.bind import bind
from query.schema import Field, Schema
from tests.events import batch_of
from tests.matching.memory_store import MemoryStore
from tests.properties.comparing import answer_of, reference_of
from tests.properties.test_idle_keys import without_numbers
from tests.strategies import SCHEMA, Row

SECOND = 1_000_000


def ints(*values: int) -> Int64Array:
    return np.array(values, np.int64)


def learnt() -> Learnt:
    """State 0 is followed in 2 of 4 cases, after 10 s at most; state 1 always, after 100 s; state 2 never was."""
    found = Learnt()
    state, since_us, last_us = np.full(8, -1, np.int32), np.zeros(8, np.int64), np.zeros(8, np.int64)
    within_us = 1000 * SECOND
    found.follow(ints(7, 0, 1, 2, 3, 4, 5, 6), ints(-1, 0, 0, 0, 0, 1, 1, 2), within_us, state, since_us, last_us)
    found.follow(ints(0, 6), ints(0, 2), within_us, state, since_us, last_us)  # they wait where they have waited
    last_us[:] = ints(4, 10, 2000, 0, 100, 30, 0, 0) * SECOND
    # partition 2 comes too late for WITHIN
    found.follow(ints(0, 1, 2, 4, 5), ints(-1, -1, -1, -1, -1), within_us, state, since_us, last_us)
    assert state.tolist() == [-1, -1, -1, 0, -1, -1, 2, -1]
    assert since_us[2] == 2000 * SECOND
    return found


#: Four partitions: begun at 0, 5, 10, 15 s, their last events at 50, 40, 30, 45 s; now it is 60 s.
FACTS = Facts(
    ints(0, 5, 10, 15) * SECOND, ints(50, 40, 30, 45) * SECOND, ints(9, 7, 8, 6), ints(0, 1, 0, 2), 60 * SECOND
)


def test_what_is_learnt() -> None:
    found = learnt()
    states = ints(0, 1, 2, 3, -1, 50)
    assert found.gap_us(states).tolist() == [10 * SECOND, 100 * SECOND, 0, 0, 0, 0]
    assert found.chance(states).tolist() == [0.5, 1.0, 0.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        (Policy.TPM, [0, 1, 2, 3]),  # by the time of the first event
        (Policy.LRU, [3, 1, 2, 0]),  # by the batch of the last event
        # W = e.t + dt * p: 50 + 10 * 0.5 = 55, 40 + 100 * 1 = 140, 30 + 10 * 0.5 = 35, 45 + 0 * 0 = 45
        (Policy.STPM, [2, 3, 0, 1]),
        # due at 60 (not over yet), 140, 40 and 45: the latter two are overdue; of the others 140 is last
        (Policy.DUE, [2, 3, 1, 0]),
    ],
)
def test_who_leaves_first(policy: Policy, order: list[int]) -> None:
    found, overdue = leaving_order(policy, FACTS, learnt())
    assert found.tolist() == order
    # 2 has waited 30 s for what never took more than 10; of state 2, in which 3 is, nobody knows
    assert overdue == (0 if policy in (Policy.TPM, Policy.LRU) else 1)


@pytest.mark.parametrize("policy", list(Policy))
def test_of_those_that_are_alike_the_first_leaves_first(policy: Policy) -> None:
    same = Facts(*(np.full(3, 5, np.int64) for _ in range(4)), now_us=9)
    assert leaving_order(policy, same, Learnt())[0].tolist() == [0, 1, 2]


def test_records_are_what_was_packed() -> None:
    bounds = bounds_of(ints(0, 3, 1))
    blocks = {
        "one": RecordBlock(one_each(3), {"a": ints(7, 8, 9), "b": np.array([True, False, True])}),
        "some": RecordBlock(bounds, {"c": np.arange(8, dtype=np.int16).reshape(4, 2), "d": np.arange(4) / 2}),
        "none": RecordBlock(bounds_of(ints(0, 0, 0)), {"e": np.zeros(0, np.int32)}),
    }
    at, data = pack(blocks)
    assert not np.any(at % 8)
    found = unpack(at, data, layout_of(blocks))
    for name, block in blocks.items():
        assert found[name].bounds.tolist() == block.bounds.tolist()
        for column, array in block.columns.items():
            assert found[name].columns[column].dtype == array.dtype
            assert np.array_equal(found[name].columns[column], array)


def test_a_store_in_memory_finds_records_in_any_order() -> None:
    store = MemoryStore()
    first = store.put(ints(0, 8, 24), np.arange(24, dtype=np.uint8))
    second = store.put(ints(0, 16), np.arange(100, 116, dtype=np.uint8))
    places, lengths = np.concatenate([second, first[::-1]]), ints(16, 16, 8)
    bounds, data = store.read(places, lengths)
    assert bounds.tolist() == [0, 16, 32, 40]
    assert data.tolist() == [*range(100, 116), *range(8, 24), *range(8)]
    other = MemoryStore()
    other.restore(store.manifest())
    other.adopt(places, lengths)
    assert other.read(places, lengths)[1].tolist() == data.tolist()
    store._pages[0][9] ^= 1
    with pytest.raises(DataError, match="damaged"):
        store.read(places, lengths)


def matcher_of(body: str, spill: Spill | None, schema: Schema = SCHEMA) -> KernelMatcher:
    text = f"SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts {body}) AS m"
    plan = bind(parse(text), lambda _: schema).factors[0].plan
    matcher = make_matcher(plan, lenient=True, spill=spill)
    assert isinstance(matcher, KernelMatcher)
    return matcher


PAIRS = """MEASURES A.v AS a, B.v AS b PATTERN (A B) WITHIN INTERVAL '100' SECOND SELECTION SKIP TILL NEXT MATCH
    DEFINE A AS v < 3, B AS v > A.v + 1"""


def row(at: int, key: str, v: int) -> Row:
    return {"ts": at * SECOND, "k": key, "s": "a", "v": v, "x": 0.5}


def test_only_what_a_batch_touches_is_read_back() -> None:
    matcher = matcher_of(PAIRS, Spill(0, MemoryStore()))
    rows = [row(i, f"k{i}", 0) for i in range(20)]
    matcher.push(batch_of(SCHEMA, rows))
    assert (matcher.spill.out, matcher.spill.written, matcher.spill.read_back) == (20, 20, 0)
    assert (matcher.spill.bytes, matcher.spill.runs) == (0, 0)
    matcher.push(batch_of(SCHEMA, [row(30, "k3", 1), row(30, "new", 5), row(31, "k7", 1)], 20))
    assert (matcher.spill.out, matcher.spill.written, matcher.spill.read_back) == (20, 22, 2)
    assert len(matcher.push(batch_of(SCHEMA, [row(40, "k3", 5)], 23))) == 2
    assert (matcher.spill.out, matcher.spill.read_back) == (19, 3)


def test_what_is_over_goes_without_being_read() -> None:
    store = MemoryStore()
    matcher = matcher_of(PAIRS, Spill(0, store))
    matcher.push(batch_of(SCHEMA, [row(i, f"k{i}", 0) for i in range(20)]))
    assert len(matcher.advance(1_000 * SECOND)) == 0
    assert matcher.spill.out == 20
    matcher.push(batch_of(SCHEMA, [row(2_000, "k3", 0), row(2_000, "other", 0)], 20))
    assert (matcher.spill.out, matcher.spill.read_back) == (2, 1)
    assert len(store._pages) == 1


@pytest.mark.slow
def test_an_absence_comes_back_when_it_is_due() -> None:
    body = "MEASURES A.v AS a PATTERN (A ~B) WITHIN INTERVAL '100' SECOND SELECTION SKIP TILL NEXT MATCH "
    matcher = matcher_of(f"{body} DEFINE A AS v < 3, B AS v > 5", Spill(0, MemoryStore()))
    matcher.push(batch_of(SCHEMA, [row(10 * i, f"k{i}", i) for i in range(5)]))
    assert matcher.spill.out == 3
    assert len(matcher.advance(100 * SECOND)) == 0
    assert matcher.spill.read_back == 0
    assert matcher.advance(111 * SECOND).rows.column("a").to_pylist() == [0, 1]
    assert (matcher.spill.out, matcher.spill.read_back) == (1, 2)
    assert matcher.advance(None).rows.column("a").to_pylist() == [2]


def test_no_more_than_the_limit_is_in_use_behind_a_batch() -> None:
    limit = 20_000
    matcher = matcher_of(PAIRS, Spill(limit, MemoryStore()))
    at = 0
    for i in range(30):
        rows = [row(i, f"k{37 * j % 500}", j % 5) for j in range(at, at + 50)]
        matcher.push(batch_of(SCHEMA, rows, at))
        at += 50
        assert matcher.spill.bytes <= limit
    assert matcher.spill.out > 0
    assert matcher.spill.bytes_of_keys > 500 * 8


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("MEASURES A.v AS a PATTERN (A B) SELECTION STRICT DEFINE A AS v < 3, B AS v > 3", "STRICT"),
        ("MEASURES NEXT(A.v) AS a PATTERN (A B) DEFINE A AS v < 3, B AS v > 3", "NEXT"),
        ("MEASURES A.v AS a PATTERN (A B) DEFINE A AS v < NEXT(v), B AS v > 3", "NEXT"),
        ("ALL ROWS PER MATCH WITH UNMATCHED ROWS PATTERN (A B) DEFINE A AS v < 3, B AS v > 3", "UNMATCHED"),
    ],
)
def test_what_cannot_leave_says_why(body: str, why: str) -> None:
    matcher = matcher_of(body, Spill(0, MemoryStore()))
    matcher.push(batch_of(SCHEMA, [row(i, f"k{i}", 0) for i in range(20)]))
    assert matcher.spill.why is not None
    assert why in matcher.spill.why
    assert matcher.spill.out == 0


def test_a_column_of_lists_keeps_rows_in_memory() -> None:
    fields = Field("ts", "TIMESTAMP"), Field("k", "VARCHAR"), Field("v", "BIGINT"), Field("l", "BIGINT[]")
    schema = Schema("e", fields, "ts", ("k",))
    body = "MEASURES A.l AS l PATTERN (A B) DEFINE A AS v < 3, B AS v > 3"
    matcher = matcher_of(body, Spill(0, MemoryStore()), schema)
    matcher.push(batch_of(schema, [{"ts": 1, "k": "a", "v": 1, "l": [1]}]))
    assert "column l" in (matcher.spill.why or "")
    assert matcher.spill.out == 0


@pytest.mark.slow
def test_values_of_all_types_come_back_as_they_were() -> None:
    types = {
        "VARCHAR": "tête-à-tête", "BLOB": b"\\0\\1", "HUGEINT": 2**100, "DOUBLE": 0.1, "BOOLEAN": True,
        "TIMESTAMP": 1_700_000_000_000_007, "UTINYINT": 200, "DECIMAL(30,3)": Decimal("12345678901234567890.125"),
        "INTEGER": -5,
    }  # fmt: skip
    names = [f"c{i}" for i in range(len(types))]
    fields = [Field("ts", "TIMESTAMP"), Field("k", "VARCHAR"), Field("v", "BIGINT")]
    schema = Schema("e", (*fields, *map(Field, names, types)), "ts", ("k",))
    shown = ", ".join(f"FIRST(A.{n}) AS {n}" for n in names)
    body = f"MEASURES {shown} PATTERN (A A B) DEFINE A AS v < 3, B AS v > 3"
    some = dict(zip(names, types.values(), strict=True))
    rows: list[Row] = []
    for i, key in enumerate("abcabcabc"):
        values = some if i % 2 else dict.fromkeys(names)
        rows.append({"ts": i, "k": key, "v": 1 if i < 6 else 5, **values})
    found = []
    for spill in (None, Spill(0, MemoryStore())):
        matcher = matcher_of(body, spill, schema)
        out = [matcher.push(batch_of(schema, [r], i)).rows for i, r in enumerate(rows)]
        assert spill is None or matcher.spill.read_back > 5
        found.append(pa.concat_tables(out).to_pylist())
    assert found[0] == found[1]
    assert len(found[0]) == 3
    assert any(r["c0"] == "tête-à-tête" and r["c2"] == 2**100 for r in found[0])


#: A plan for each engine: what it does not find is no test of it.
ENGINES = {
    "RunTable": "PATTERN (A B+ C) DEFINE A AS v > 1, B AS v < 4, C AS v > PREV(v)",
    "RunStarts": "PATTERN (A B+ C) WITHIN INTERVAL '20' SECOND DEFINE A AS v > 1, B AS v < 4, C AS v > 2",
    "RunLists": "PATTERN (A B+ C) DEFINE A AS v > 1, B AS v < 4, C AS v > A.v",
    "RunBlocks": """PATTERN (A B C) WITHIN INTERVAL '20' SECOND SELECTION SKIP TILL NEXT MATCH
        DEFINE A AS v < 3, B AS v > A.v, C AS v > A.v + B.v""",
    "RunBlocks, absent": """PATTERN (~D A B ~C) WITHIN INTERVAL '20' SECOND SELECTION SKIP TILL NEXT MATCH
        DEFINE A AS v < 3, B AS v > 3, C AS v = 5, D AS v = 4""",
    "RunGraph": """AFTER MATCH NO SKIP PATTERN (A B+ C) WITHIN INTERVAL '6' SECOND SELECTION SKIP TILL ANY MATCH
        DEFINE A AS v < 3, B AS v > 1, C AS v > 3""",
    "RunMerged": """AFTER MATCH NO SKIP PATTERN (A B C) WITHIN INTERVAL '12' SECOND SELECTION SKIP TILL ANY MATCH
        DEFINE A AS v < 4, B AS v > A.v, C AS v > B.v""",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(ENGINES))
def test_a_limit_may_be_set_later(name: str) -> None:
    rng = np.random.default_rng(12)
    rows = [row(i // 2, f"k{rng.integers(0, 12)}", int(rng.integers(0, 6))) for i in range(150)]
    before = matcher_of(f"MEASURES A.v AS a {ENGINES[name]}", None)
    expected = reference_of(before.plan, rows)
    found = [before.push(batch_of(SCHEMA, rows[:60]))]
    matcher = make_matcher(before.plan, lenient=True, spill=Spill(600, MemoryStore()))
    assert isinstance(matcher, KernelMatcher)
    matcher.restore(before.snapshot())
    found += [matcher.push(batch_of(SCHEMA, rows[at : at + 5], at)) for at in range(60, len(rows), 5)]
    found.append(matcher.advance(None))
    assert without_numbers(answer_of(found)) == without_numbers(expected)
    assert matcher.spill.read_back > 5


@pytest.mark.slow
@pytest.mark.thinned(4)
@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("name", list(ENGINES))
def test_every_engine_finds_the_same(name: str, policy: Policy) -> None:
    rng = np.random.default_rng(11)
    rows = [row(i // 2, f"k{rng.integers(0, 12)}", int(rng.integers(0, 6))) for i in range(150)]
    limit = 600
    matcher = matcher_of(f"MEASURES A.v AS a {ENGINES[name]}", Spill(limit, MemoryStore(), policy))
    assert type(matcher.engine).__name__ == name.split(",")[0]
    expected = reference_of(matcher.plan, rows)
    found, read = [], 0
    for at in range(0, len(rows), 5):
        found.append(matcher.push(batch_of(SCHEMA, rows[at : at + 5], at)))
        found.append(matcher.advance(int(rows[at]["ts"])))  # type: ignore[call-overload]
        assert matcher.spill.bytes <= limit
        if at % 35 == 0:
            other = make_matcher(matcher.plan, lenient=True, spill=Spill(limit, MemoryStore(), policy))
            other.restore(matcher.snapshot())
            read += matcher.spill.read_back
            assert isinstance(other, KernelMatcher)
            matcher = other
    found.append(matcher.advance(None))
    assert without_numbers(answer_of(found)) == without_numbers(expected)
    assert len(expected) > 3
    assert read + matcher.spill.read_back > 10

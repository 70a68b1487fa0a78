"""The kernels on larger inputs than the properties reach: engines agree, memory stays bounded, time stays linear."""

from __future__ import annotations

import time

import numpy as np
import pyarrow as pa
import pytest

from matching.batch import EventBatch, Matches
from matching.engines.run_lists import RunLists
from matching.engines.run_table import RunTable
from matching.matcher import KernelMatcher
from matching.rows import SLACK
from matching.state import pack, unpack
from query.errors import DataError, HybridWarning, QueryError
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import TRUE, Aggregate, Call, Column, Constant, Expression, Logical, Navigation
from query.plan.pattern import Alternation, Repeat, RowPattern, Sequence, Variable, variables
from query.plan.plan import AfterMatch, Define, Measure, Order, Plan, Within
from query.schema import Field, Schema
from tests.engines import matcher_by, planned

SCHEMA = Schema("e", (Field("ts", "TIMESTAMP"), Field("k", "VARCHAR"), Field("v", "BIGINT")), time="ts")
TS, K, V = (Column(f.name, f.type) for f in SCHEMA.fields)
A, B, C = map(Variable, "ABC")


def plus(body: RowPattern) -> Repeat:
    return Repeat(body, 1, None, True)


def previous(offset: int = -1) -> Navigation:
    return Navigation(V, (), None, 0, offset, False, V.type)


def compare(sign: str, a: Expression, b: Expression) -> Call:
    return Call(sign, (a, b), "BOOLEAN")


def number(value: int) -> Constant:
    return Constant(value, "BIGINT")


def plan_of(pattern: RowPattern, conditions: dict[str, Expression], **changes: object) -> Plan:
    first = Navigation(TS, (), Logical.FIRST, 0, 0, False, TS.type)
    total = Aggregate("sum", V, (), False, False, "HUGEINT")
    fields: dict[str, object] = {
        "schema": SCHEMA, "partition_by": (K,), "order_by": (Order(TS),),
        "measures": (Measure("first", first), Measure("total", total)), "rows": RowsPerMatch.ONE,
        "after": AfterMatch(AfterMatchKind.PAST_LAST_ROW), "pattern": pattern, "within": None,
        "selection": Selection.PARTITION, "subsets": (),
        "defines": tuple(Define(n, conditions.get(n, TRUE)) for n in variables(pattern)),
    }  # fmt: skip
    return Plan(**(fields | changes))  # type: ignore[arg-type]


V_SHAPE = Sequence((A, plus(B), plus(C)))
FALL_RISE = {"B": compare("<", V, previous()), "C": compare(">", V, previous())}


def events(count: int, keys: int, seed: int = 7, low: int = 0, high: int = 50) -> EventBatch:
    rng = np.random.default_rng(seed)
    ts = np.cumsum(rng.integers(0, 3, count))
    columns = pa.RecordBatch.from_arrays(
        [
            pa.array(ts).view(pa.timestamp("us")),
            pa.array([f"k{i}" for i in rng.integers(0, keys, count).tolist()]),
            pa.array(rng.integers(low, high, count)),
        ],
        names=["ts", "k", "v"],
    )
    index = np.arange(count)
    return EventBatch(columns, ts, np.zeros(count, np.int32), index, index)


def all_of(matcher: KernelMatcher, batch: EventBatch, rows: int) -> list[tuple[object, ...]]:
    """Everything a matcher finds in the batch cut into pieces of `rows`: output row and matched events, sorted."""
    out: list[tuple[object, ...]] = []

    def take(m: Matches) -> None:
        bounds = m.event_bounds.tolist()
        names = [m.variables[v] for v in m.event_variable.tolist()]
        at = m.event_seq.tolist()
        for i, row in enumerate(m.rows.to_pylist()):
            pairs = list(zip(names[bounds[i] : bounds[i + 1]], at[bounds[i] : bounds[i + 1]], strict=True))
            out.append((row["k"] or "", int(m.number[i]), tuple(pairs), row["first"], row["total"]))

    for start in range(0, len(batch), rows):
        take(matcher.push(batch.slice(start, min(len(batch), start + rows))))
    take(matcher.advance(None))
    return sorted(out, key=repr)


def as_lists(plan: Plan) -> KernelMatcher:
    """The plan's matcher with the general engine in place of the table."""
    assert planned(plan).engine is RunTable
    return matcher_by(plan, RunLists)


@pytest.mark.slow
@pytest.mark.parametrize("selection", [Selection.PARTITION, Selection.STRICT])
def test_table_and_lists_agree_through_growth_and_compaction(selection: Selection) -> None:
    batch = events(150_000, 700 if selection is Selection.PARTITION else 2)
    plan = plan_of(V_SHAPE, FALL_RISE, selection=selection)
    table = matcher_by(plan)
    found = all_of(table, batch, 20_000)
    assert len(found) > 10_000
    assert found == all_of(as_lists(plan), batch, 33_333)
    assert found == all_of(matcher_by(plan), batch, len(batch))
    # what no run needs was dropped on the way
    assert table.store.count < 2 * SLACK + 20_000


@pytest.mark.slow
def test_many_keys_grow_every_array() -> None:
    batch = events(60_000, 9_000)
    plan = plan_of(V_SHAPE, FALL_RISE, within=Within(interval_us=20_000))
    whole = all_of(matcher_by(plan), batch, len(batch))
    assert len(whole) > 3_000
    assert whole == all_of(matcher_by(plan), batch, 777)


def rows_of(values: list[int]) -> EventBatch:
    """Rows of one partition, a microsecond apart."""
    index = np.arange(len(values))
    columns = pa.RecordBatch.from_arrays(
        [pa.array(index).view(pa.timestamp("us")), pa.array(["k"] * len(values)), pa.array(values, pa.int64())],
        names=["ts", "k", "v"],
    )
    return EventBatch(columns, index, np.zeros(len(values), np.int32), index, index)


def seconds_for(plan: Plan, batch: EventBatch, matches: int) -> float:
    """Processor time to match a batch, without that of loading kernels."""
    all_of(matcher_by(plan), batch.slice(0, 10), 10)
    began = time.process_time()
    assert len(all_of(matcher_by(plan), batch, len(batch))) == matches
    return time.process_time() - began


@pytest.mark.slow
def test_a_nested_quantifier_over_a_million_equal_rows_is_linear() -> None:
    never = {"B": compare(">", V, number(1))}
    nested = plan_of(Sequence((plus(plus(A)), B)), never)
    few = seconds_for(nested, rows_of([1] * 50_000), 0)
    assert seconds_for(nested, rows_of([1] * 1_000_000), 0) < 100 * max(few, 0.02)  # quadratic would be 400 times


def test_two_greedy_loops_over_equal_rows_end_soon() -> None:
    rows = rows_of([1] * 5_000)
    loops = Sequence((plus(A), plus(B)))
    few = rows_of([1] * 500)
    assert seconds_for(plan_of(loops, {}), rows, 1) < 300 * max(seconds_for(plan_of(loops, {}), few, 1), 0.02)
    within = Within(interval_us=100)  # 101 rows
    windows = plan_of(loops, {}, within=within)
    assert seconds_for(windows, rows, 50) < 300 * max(seconds_for(windows, few, 5), 0.02)
    last_b = AfterMatch(AfterMatchKind.TO_LAST, ("B",))
    # the match takes all rows but the last one as A; the attempt at its B fails
    to_last = plan_of(loops, {}, after=last_b)
    assert seconds_for(to_last, rows, 1) < 300 * max(seconds_for(to_last, few, 1), 0.02)


@pytest.mark.slow
def test_live_rows_stay_bounded_while_a_run_is_open() -> None:
    plan = plan_of(Sequence((A, plus(B))), {"A": compare("=", V, number(1)), "B": compare("=", V, number(2))})
    matcher = matcher_by(plan)
    rows = events(4 * SLACK, 50, low=3, high=9)  # nothing begins
    for start in range(0, len(rows), 5_000):
        assert len(matcher.push(rows.slice(start, min(len(rows), start + 5_000)))) == 0
    assert matcher.store.count <= SLACK + 5_000


@pytest.mark.slow
@pytest.mark.parametrize("selection", Selection)
def test_a_snapshot_has_only_what_is_needed_and_changes_nothing(selection: Selection) -> None:
    batch = events(12_000, 60 if selection is Selection.PARTITION else 1)
    within = None if selection in (Selection.PARTITION, Selection.STRICT) else Within(interval_us=12)
    after = AfterMatch(AfterMatchKind.PAST_LAST_ROW if within is None else AfterMatchKind.NO_SKIP)
    rise = {"A": compare("<", V, number(5)), "B": compare(">", V, number(25))}
    plan = plan_of(Sequence((A, B)), rise, selection=selection, within=within, after=after)
    alone = all_of(matcher_by(plan), batch, 3_000)
    assert len(alone) > 300
    matcher = matcher_by(plan)
    push = matcher.push

    def push_and_save(some: EventBatch) -> Matches:
        found = push(some)
        before = matcher.store.count
        matcher.snapshot()
        assert matcher.store.count < before / 2
        return found

    matcher.push = push_and_save  # type: ignore[method-assign]
    assert all_of(matcher, batch, 3_000) == alone


def test_too_many_partial_matches_are_an_error_that_names_the_construct(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("matching.engines.choose.RUNS_MAX", 500)
    # every row may go on as A or as B: the runs double with each row
    pattern = Sequence((plus(plus(Sequence((Repeat(A, 0, None, True), B)))), C))
    total = Aggregate("sum", V, ("A",), False, False, "HUGEINT")
    never = {"C": compare("<", total, number(-1)), "B": compare(">=", total, number(0))}
    plan = plan_of(pattern, never)
    said = r"HQ600.*more than 500 partial matches.*B, C depends(?s:.)*hint: add WITHIN"
    with pytest.raises(QueryError, match=said):
        matcher_by(plan).push(events(2_000, 1, low=1, high=2))
    no_skip = AfterMatch(AfterMatchKind.NO_SKIP)
    every = plan_of(Sequence((plus(A), B)), {"B": compare("<", V, number(0))}, after=no_skip)
    with pytest.raises(QueryError, match=r"HQ600.*NO SKIP asks for all matches"):
        matcher_by(every).push(events(2_000, 1))


def test_a_condition_that_fails_counts_only_where_it_is_read() -> None:
    """B overflows where v is large: it is read behind an A only, and not where the preferred alternative matches."""
    large = 2**40
    fails = compare("=", Call("*", (V, V), "BIGINT"), number(0))
    first = compare("=", V, number(0))
    values = [large, 0, 0, large]
    for pattern, read in ((Sequence((A, B)), True), (Sequence((A, Alternation((C, B)))), False)):
        plan = plan_of(pattern, {"A": first, "B": fails, "C": compare(">=", V, number(0))})
        for rows in (4, 1):
            matcher = matcher_by(plan)
            batch = rows_of(values)
            if not read:
                assert [m[2] for m in all_of(matcher, batch, rows)] == [(("A", 1), ("C", 2))]
                continue
            # 0 0 matches A B; 5 is read as B only behind an A, and no A stands before it that is not in the match
            assert [m[2] for m in all_of(matcher, batch, rows)] == [(("A", 1), ("B", 2))]
    plan = plan_of(Sequence((A, B)), {"A": first, "B": fails})
    with pytest.raises(DataError):
        all_of(matcher_by(plan), rows_of([0, large]), 2)


def test_a_state_from_before_a_failure_can_be_restored_behind_it() -> None:
    # Before: KeyError: 'counters', as the matcher that has failed goes on by another engine.
    fails = compare("=", Call("*", (V, V), "BIGINT"), number(0))
    matcher = matcher_by(plan_of(Sequence((A, B)), {"A": compare("=", V, number(0)), "B": fails}))
    before, engine = matcher.snapshot(), matcher.engine.tag
    with pytest.raises(DataError):
        matcher.push(rows_of([0, 2**40]))
    assert matcher.engine.tag != engine
    assert matcher.fits(before)
    matcher.restore(before)
    assert matcher.engine.tag == engine
    assert [m[2] for m in all_of(matcher, rows_of([0, 0]), 2)] == [(("A", 0), ("B", 1))]


def test_skip_that_would_not_move_on_warns_once_and_goes_on_where_it_is_let() -> None:
    last_a = AfterMatch(AfterMatchKind.TO_LAST, ("A",))
    plan = plan_of(Sequence((A, plus(B))), {"B": compare(">", V, previous())}, after=last_a)
    batch = rows_of([1, 2, 3, 1, 2])
    strict = matcher_by(plan)
    with pytest.raises(QueryError, match=r"HQ601.*SKIP TO LAST A would not move on"):
        strict.push(batch)
    matcher = matcher_by(plan, lenient=True)
    with pytest.warns(HybridWarning, match="would not move on") as warned:
        found = [m[2][0] for m in all_of(matcher, batch, 1)]
    assert found == [("A", 0), ("A", 1), ("A", 3)]
    assert len(warned) == 1
    assert matcher.stuck == 3


def test_overflow_in_a_condition_is_a_data_error_not_a_wrong_match() -> None:
    big = 2**62
    last = Navigation(V, ("A",), Logical.LAST, 0, 0, False, "BIGINT")
    plan = plan_of(Sequence((A, B)), {"B": compare(">", Call("+", (V, last), "BIGINT"), number(0))})
    with pytest.raises(DataError, match="overflows"):
        matcher_by(plan).push(events(5, 1, low=big, high=big + 9))


def test_next_holds_a_row_back_until_its_neighbour_is_there() -> None:
    plan = plan_of(A, {"A": compare("<", V, previous(1))})
    matcher = matcher_by(plan)
    batch = events(6, 1)
    values = batch.columns.column("v").to_pylist()
    expected = [i for i in range(5) if values[i] < values[i + 1]]
    seen = []
    for i in range(6):
        found = matcher.push(batch.slice(i, i + 1))
        seen += [(i, seq) for seq in found.event_seq.tolist()]
    assert seen == [(i + 1, i) for i in expected]  # each is out with the row that decides it
    assert len(matcher.advance(None)) == 0  # the last row's NEXT is null


@pytest.mark.slow
def test_next_in_a_measure_holds_the_match_not_the_matching() -> None:
    after = Navigation(V, ("B",), Logical.LAST, 0, 1, False, V.type)
    plan = plan_of(Sequence((A, B)), {"B": compare(">", V, previous())}, measures=(Measure("after", after),))
    matcher = matcher_by(plan)
    batch = events(60, 3)
    whole = matcher_by(plan)
    expected = [*whole.push(batch).event_seq.tolist(), *whole.advance(None).event_seq.tolist()]
    partition = batch.columns.column("k").to_pylist()
    seen: list[int] = []
    for i in range(len(batch)):
        found = matcher.push(batch.slice(i, i + 1))
        for end, value in zip(found.event_seq.tolist()[1::2], found.rows.column("after").to_pylist(), strict=True):
            # it is out with the very row that NEXT reads
            assert partition[end + 1 : i + 1].count(partition[end]) == 1
            assert partition[i] == partition[end]
            assert value == batch.columns.column("v")[i].as_py()
        seen += found.event_seq.tolist()
        matcher.restore(matcher.snapshot())
    seen += matcher.advance(None).event_seq.tolist()
    assert sorted(seen) == sorted(expected)
    assert len(seen) > 10


def test_silence_closes_a_greedy_tail_when_the_watermark_passes_the_window() -> None:
    plan = plan_of(Sequence((A, plus(B))), {"B": compare(">", V, previous())}, within=Within(interval_us=10))
    matcher = matcher_by(plan)
    columns = pa.RecordBatch.from_arrays(
        [pa.array([0, 4]).view(pa.timestamp("us")), pa.array(["k", "k"]), pa.array([1, 2])], names=["ts", "k", "v"]
    )
    two = np.arange(2)
    assert len(matcher.push(EventBatch(columns, np.array([0, 4]), np.zeros(2, np.int32), two, two))) == 0
    assert len(matcher.advance(10)) == 0  # an event at 10 may still come and belongs to the match
    assert len(matcher.advance(11)) == 1


def test_a_snapshot_of_another_plan_is_refused() -> None:
    one, other = plan_of(V_SHAPE, FALL_RISE), plan_of(V_SHAPE, {"B": FALL_RISE["B"]})
    state = matcher_by(one).snapshot()
    with pytest.raises(DataError, match="state belongs to plan"):
        matcher_by(other).restore(state)


def test_what_is_no_state_is_refused() -> None:
    plan = plan_of(V_SHAPE, FALL_RISE)
    matcher = matcher_by(plan)
    state = matcher.snapshot()
    other = pa.BufferOutputStream()
    with pa.ipc.new_stream(other, pa.schema([("x", pa.int64())])) as writer:
        writer.write_table(pa.table({"x": [1]}))
    for bad in (b"", b"nonsense", b"nonsense" * 100, state[: len(state) // 2], other.getvalue().to_pybytes()):
        with pytest.raises(DataError, match="the state of a matcher is invalid"):
            matcher.restore(bad)
    matcher.restore(state)
    assert len(matcher.advance(None)) == 0


@pytest.mark.parametrize("array", [
    np.zeros(0, np.int64), np.zeros((0, 3), np.int32), np.arange(6, dtype=np.uint8).reshape(2, 3), np.array(5.5),
    np.array([True, False]), np.arange(10)[::2], np.asfortranarray(np.arange(6).reshape(2, 3)),
])  # fmt: skip
def test_arrays_of_a_state_come_back_as_they_were(array: np.ndarray) -> None:
    head, arrays = unpack(pack({"n": 1}, {"a": array, "b": np.ones(1)}))
    assert (head, [*arrays]) == ({"n": 1}, ["a", "b"])
    assert (arrays["a"].dtype, arrays["a"].shape) == (array.dtype, array.shape)
    assert np.array_equal(arrays["a"], array)
    arrays["a"][...] = 1  # may be written to


def test_room_by_key_that_is_not_used_takes_no_room_in_a_state() -> None:
    blocks = np.zeros((1 << 16, 8), np.int64)
    blocks[7] = 5
    state = pack({}, {"blocks": blocks})
    assert len(state) < blocks.nbytes // 50
    assert np.array_equal(unpack(state)[1]["blocks"], blocks)
    noise = np.random.default_rng(1).integers(0, 256, 1 << 16, np.uint8)
    assert len(pack({}, {"noise": noise})) < len(noise) + 2000  # what cannot be compressed grows by little

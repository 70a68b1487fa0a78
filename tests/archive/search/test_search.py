"""A search over kept history finds what one matcher finds in all of it, however the work is cut."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, event, given
from hypothesis import strategies as st

from archive.history import History
from archive.reader import RangeRequest
from archive.search.prefilter import mandatory, unsound, windows_of
from archive.search.search import SearchReport, search, units_of
from archive.snapshot import HistorySnapshot
from matching.drive import run
from matching.matcher import make_matcher
from matching.program.program import NoKernel, assemble
from query.errors import DataError, QueryError
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import TRUE, Call, Column, Constant
from query.plan.never_fails import never_fails
from query.plan.pattern import Alternation, Negation, Repeat, Variable
from query.plan.pattern import Sequence as Concatenation
from query.plan.plan import AfterMatch, Define, Measure, Order, Plan, Within
from query.schema import Field, Schema
from tests.events import batch_of
from tests.in_memory import MEMORY
from tests.properties.comparing import Answer, answer_of, fewer
from tests.strategies import SCHEMA, SECOND_US, SKIP_TILL, SQL_SELECTIONS, TS, Row, S, V, events, plans
from tests.strategies import X as X_

pytestmark = pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")

FEWER = fewer(10)


def kept(root: str, rows: Sequence[Row], data: st.DataObject) -> HistorySnapshot:
    """A history of the rows, as they came in some order: in files, cut anywhere, and in memory; some are late."""
    history = History(SCHEMA, Path(root) / "e", 10_000)
    arrived = data.draw(st.permutations(rows)) if data.draw(st.booleans()) else list(rows)
    at = 0
    while at < len(arrived):
        size = data.draw(st.integers(1, max(1, len(arrived) - at)))
        part = arrived[at : at + size]
        marks = st.lists(st.sampled_from((False, False, True)), min_size=len(part), max_size=len(part))
        history.append(batch_of(SCHEMA, part, at), np.array(data.draw(marks)))
        at += size
        if data.draw(st.booleans()):
            history.flush()
    return history.snapshot()


def whole(snapshot: HistorySnapshot, plan: Plan, low: int | None, high: int | None, late: bool) -> Answer:
    """What one matcher finds in all events."""
    matcher = make_matcher(plan, lenient=True)
    return answer_of(list(run(matcher, [snapshot.read(RangeRequest(low, high, late=late))])))


def lenient(plan: Plan):
    return make_matcher(plan, lenient=True)


@pytest.mark.slow
@pytest.mark.parametrize("selections", [SQL_SELECTIONS, SKIP_TILL])
@FEWER
@given(rows=events(max_size=24), data=st.data())
def test_a_search_is_one_matcher_over_all(selections, rows, data):
    plan = data.draw(plans(selections, negations=True))
    try:
        assemble(plan)
    except NoKernel:
        assume(False)
    bounds = st.none() | st.integers(0, 40).map(lambda s: s * SECOND_US)
    low, high, late = data.draw(bounds), data.draw(bounds), data.draw(st.booleans())
    with tempfile.TemporaryDirectory(dir=MEMORY) as root:
        snapshot = kept(root, rows, data)
        try:
            expected = whole(snapshot, plan, low, high, late)
        except QueryError as error:  # so many partial matches are refused, whatever the units
            assume(error.diagnostics[0].code != "HQ600")
            raise
        workers, rows_max = data.draw(st.sampled_from((1, 2))), data.draw(st.sampled_from((1, 3, 100)))
        report = SearchReport()
        request = RangeRequest(low, high, late=late)
        found = search(
            snapshot, plan, request, make=lenient, workers=workers, rows_max=rows_max, prefilter=False, report=report
        )
        assert answer_of(list(found)) == expected
        event(f"units {min(report.units, 4)}")
        why = unsound(plan)
        found = search(snapshot, plan, request, make=lenient, workers=1, rows_max=rows_max, prefilter=True)
        assert answer_of(list(found)) == expected
        event(f"prefilter: {why or 'yes'}")


RARE = (
    Call("=", (V, Constant(5, "INTEGER")), "BOOLEAN"),
    Call("=", (S, Constant("c", "VARCHAR")), "BOOLEAN"),
    Call(">", (X_, Constant(2.0, "DOUBLE")), "BOOLEAN"),
    Call("in", (V, Constant(0, "INTEGER"), Constant(5, "INTEGER")), "BOOLEAN"),
)


@st.composite
def near(draw: st.DrawFn) -> Plan:
    """Plans that can be read by windows, of which some rows are far from any match."""
    plan = draw(plans((*SQL_SELECTIONS[1:], *SKIP_TILL), after=False, opaque=False, anchored=False, negations=True))
    plan = replace(plan, within=Within(draw(st.sampled_from((0, 1, 2, 5))) * SECOND_US), timeout_rows=False)
    if draw(st.integers(0, 4)):
        rare = draw(st.sampled_from(RARE))
        which = draw(st.sampled_from(plan.defines))
        some = Define(which.variable, Call("and", (rare, which.condition), "BOOLEAN"))
        plan = replace(plan, defines=tuple(some if d is which else d for d in plan.defines))
    if plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED:
        plan = replace(plan, rows=RowsPerMatch.ALL_SHOW_EMPTY)
    assume(unsound(plan) is None)
    return plan


@pytest.mark.slow
@FEWER
@given(rows=events(min_size=8, max_size=30), data=st.data())
def test_what_the_prefilter_leaves_out_changes_nothing(rows, data):
    plan = data.draw(near())
    apart = data.draw(st.sampled_from((1, 3, 10)))  # of events that come at one time, some must stay together
    later = [(row["ts"] - rows[0]["ts"]) // (4 * SECOND_US) * apart * SECOND_US for row in rows]
    rows = [{**row, "ts": row["ts"] + more} for row, more in zip(rows, later)]
    with tempfile.TemporaryDirectory(dir=MEMORY) as root:
        snapshot = kept(root, rows, data)
        expected = whole(snapshot, plan, None, None, True)
        report = SearchReport()
        request = RangeRequest(late=True)
        found = list(search(snapshot, plan, request, make=lenient, prefilter=True, workers=1, report=report))
        assert answer_of(found) == expected
        assert report.prefilter.startswith("prefilter: within")
        windows, _ = windows_of(snapshot, plan, request, True, len(rows))
        assert windows is not None
        assert report.events == snapshot.count_in(windows, request)
        event("matches" if expected else "no matches")
        event("rows left out" if report.events < len(rows) else "all rows")


TICK = Schema(
    "tick",
    (Field("ts", "TIMESTAMP"), Field("k", "VARCHAR"), Field("n", "INTEGER"), Field("x", "DOUBLE")),
    time="ts",
    keys=("k", "n"),
)
T, K, N, X = (Column(f.name, f.type) for f in TICK.fields)


def above(limit: float) -> Call:
    return Call(">", (X, Constant(limit, "DOUBLE")), "BOOLEAN")


def plan_of(pattern, defines, within_s=None, partition=(K,), selection=Selection.PARTITION) -> Plan:
    return Plan(
        TICK, partition, (Order(T),), (Measure("t", T),), RowsPerMatch.ONE, AfterMatch(AfterMatchKind.PAST_LAST_ROW),
        pattern, None if within_s is None else Within(within_s * SECOND_US), selection, (),
        tuple(Define(name, condition) for name, condition in defines.items()),
    )  # fmt: skip


A, B, C = map(Variable, "ABC")
PAIR = plan_of(Concatenation((A, B)), {"A": above(0.9), "B": TRUE}, 10)


def history_of(root: Path, keys: Sequence[str | None], files: int, each: int) -> History:
    """Ticks of keys in turn, each second one, in files that do not overlap, then in memory."""
    history = History(TICK, root, 10**9)
    rng = np.random.default_rng(3)
    for f in range(files + 1):
        at = range(f * each, (f + 1) * each)
        which, values = rng.integers(len(keys), size=each), rng.random(each)
        rows = [{"ts": i * SECOND_US, "k": keys[k], "n": i % 7, "x": x} for i, k, x in zip(at, which, values.tolist())]
        history.append(batch_of(TICK, rows, f * each), np.zeros(each, np.bool_))
        if f < files:
            history.flush()
    return history


@pytest.mark.slow
def test_partial_matches_are_carried_over_files(tmp_path):
    """Each key's match begins in the first file and ends in the last: between them one row a file."""
    keys = [f"k{i:03}" for i in range(200)]
    history = History(TICK, tmp_path / "t", 10**9)
    files = 20
    for f in range(files):
        rows = [{"ts": (f * 200 + i) * SECOND_US, "k": key, "n": 0, "x": float(f)} for i, key in enumerate(keys)]
        history.append(batch_of(TICK, rows, f * 200), np.zeros(200, np.bool_))
        history.flush()
    first, last = above(files - 1.5), Call("=", (X, Constant(0, "DOUBLE")), "BOOLEAN")
    plan = plan_of(Concatenation((A, Repeat(B, 1, None, True), C)), {"A": last, "B": TRUE, "C": first})
    report = SearchReport()
    found = list(search(history.snapshot(), plan, workers=2, rows_max=300, report=report))
    assert answer_of(found) == whole(history.snapshot(), plan, None, None, False)
    assert sum(map(len, found)) == 200
    assert all(np.diff(part.event_bounds).tolist() == [files] * len(part) for part in found)
    assert (report.units, report.column, report.workers) == (9, "k", 2)  # 8 ranges of keys, and the rows without one
    assert report.events == 200 * files


@pytest.mark.slow
@pytest.mark.thinned(4)
@pytest.mark.parametrize("partition", [(K,), (N,), (X, N), ()])
@pytest.mark.parametrize("keys", [("a",), ("a", "b"), ("a", None, "ü", "", "b'c", "a\x00b"), (None,)])
def test_units(tmp_path, partition, keys):
    """One key or many, nulls, a key with most of the rows, integers; and none by which the work can be cut."""
    plan = replace(PAIR, partition_by=partition)
    snapshot = history_of(tmp_path / "t", keys, 3, 60).snapshot()
    for rows_max in (7, 1000):
        report = SearchReport()
        found = search(snapshot, plan, workers=3, rows_max=rows_max, prefilter=False, report=report)
        assert answer_of(list(found)) == whole(snapshot, plan, None, None, False)
        assert report.events == report.total == 240
        cut = bool(partition)
        assert (report.column is not None) == cut
        assert report.units == 1 if not cut else report.units >= 2


@pytest.mark.slow
def test_strict_is_one_unit(tmp_path):
    snapshot = history_of(tmp_path / "t", ("a", "b"), 2, 30).snapshot()
    plan = replace(PAIR, selection=Selection.STRICT)
    report = SearchReport()
    found = list(search(snapshot, plan, workers=2, rows_max=5, report=report))
    assert answer_of(found) == whole(snapshot, plan, None, None, False)
    assert report.units == 1
    assert "STRICT" in report.prefilter


def test_units_cover_all_values():
    spans = [unit.span for unit in units_of("k", ["b", "d"])]
    assert [(s.low, s.end) for s in spans if s is not None] == [(None, "b"), ("b", "d"), ("d", None)]
    assert units_of("k", ["b"])[-1].null == "k"


@pytest.mark.slow
def test_a_search_is_read_as_it_goes_and_may_be_left(tmp_path):
    snapshot = history_of(tmp_path / "t", [f"k{i}" for i in range(50)], 10, 200).snapshot()
    before = _searching()
    for partition, workers in (((K,), 2), ((), None)):
        found = search(snapshot, replace(PAIR, partition_by=partition), workers=workers, rows_max=50)
        next(found)
        found.close()
        assert _searching() == before


@pytest.mark.slow
def test_errors_end_the_search(tmp_path):
    """The error of a condition, and a file that is gone, wherever they come up."""
    snapshot = history_of(tmp_path / "t", ("a", "b", "c"), 4, 40).snapshot()
    before = _searching()
    failing = Call("=", (Call("cast", (K,), "INTEGER"), Constant(1, "INTEGER")), "BOOLEAN")
    for workers in (1, 2, None):
        with pytest.raises(DataError) as raised:
            list(search(snapshot, plan_of(A, {"A": failing}), workers=workers, rows_max=10))
        assert raised.value is not None
        assert _searching() == before
    next((tmp_path / "t").rglob("*.parquet")).unlink()
    for workers in (1, 2):
        with pytest.raises(DataError, match="cannot be read"):
            list(search(snapshot, PAIR, workers=workers))


@pytest.mark.slow
def test_the_prefilter_is_used_where_it_is_worth_it(tmp_path, monkeypatch):
    monkeypatch.setattr("archive.search.prefilter.ROWS_MIN", 100)
    snapshot = history_of(tmp_path / "t", ("a", "b"), 10, 300).snapshot()
    rare = plan_of(Concatenation((A, B, C)), {"A": TRUE, "B": above(0.995), "C": above(0.5)}, 20)
    for plan, said in (
        (rare, "prefilter: within 20 seconds of B AS (x > 0.995), of "),
        (replace(rare, within=None), "no prefilter: there is no WITHIN interval"),
        (replace(rare, within=Within(1000 * SECOND_US)), "no prefilter: "),
        (plan_of(A, {"A": above(0.1)}, 20), "no prefilter: the rarest condition is A AS (x > 0.1), of "),
        (plan_of(Repeat(A, 0, 1, True), {"A": above(0.999)}, 20), "no prefilter: a match may be empty"),
    ):
        report = SearchReport()
        found = list(search(snapshot, plan, report=report, workers=1))
        assert answer_of(found) == whole(snapshot, plan, None, None, False)
        assert report.prefilter.startswith(said), report.prefilter
        if said.startswith("prefilter"):
            assert 0 < report.events < report.total // 4
            assert sum(map(len, found))
        else:
            assert report.events == report.total


def test_the_rarest_variables_that_every_match_has():
    rates = {"A": 0.5, "B": 0.1, "C": 0.01}
    assert mandatory(Concatenation((A, B)), rates) == (0.1, ("B",))
    assert mandatory(Concatenation((A, Repeat(B, 0, None, True))), rates) == (0.5, ("A",))
    assert mandatory(Concatenation((A, Alternation((B, C)))), rates) == (0.11, ("B", "C"))
    assert mandatory(Alternation((Concatenation((A, C)), Concatenation((C, A)))), rates) == (0.01, ("C",))
    assert mandatory(Alternation((A, Repeat(C, 0, 1, True))), rates) is None
    assert mandatory(Concatenation((A, Negation("C"), B)), rates) == (0.1, ("B",))
    assert mandatory(Repeat(Concatenation((A, B)), 2, 3, True), rates) == (0.1, ("B",))


def test_conditions_that_may_fail():
    one = Constant(1, "INTEGER")
    assert never_fails(Call(">", (Call("+", (X, one), "DOUBLE"), X), "BOOLEAN"), T)
    assert never_fails(Call("<", (Call("-", (T, T), "INTERVAL"), Constant(5, "INTERVAL")), "BOOLEAN"), T)
    assert not never_fails(Call(">", (Call("+", (N, one), "INTEGER"), one), "BOOLEAN"), T)
    assert not never_fails(Call("cast", (K,), "INTEGER"), T)
    assert not never_fails(Call("cast", (X,), "INTEGER"), T)
    assert never_fails(Call("cast", (N,), "DOUBLE"), T)
    assert Column("ts", "TIMESTAMP") == TS


def _searching() -> int:
    """How many threads search; others of the process come and go."""
    return sum(thread.name.startswith("hybrid-search") for thread in threading.enumerate())

"""Patterns with boxes that run as one plain pattern: when they do, and how layers take over."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from matching.batch import EventBatch, Matches
from matching.feed import Feed
from matching.hierarchy import choice, flattened, ragged
from matching.hierarchy.choice import AsOne, as_one
from matching.hierarchy.flattened import FlattenedMatcher
from matching.hierarchy.matcher import HierarchyMatcher
from matching.matcher import make_matcher
from matching.members import Member
from matching.purpose import Purpose
from query.errors import DataError
from query.plan.plan import Plan
from tests.hierarchies import EVENTS, batch_of, composed, events_of, leaves, output, over, plan_of, statement

X, Y, A, B = "X AS s = 'x'", "Y AS s = 'y'", "A AS s = 'a'", "B AS s = 'b'"
VISIT = statement("X Y", "ANY", f"{X}, {Y}", measures="X.i AS n")
SEEN = events_of("a0@0 x1@1 x2@2 a3@2 y4@3 y5@4 b6@5 x7@6 y8@7 b9@8")


def plan(visit: str = VISIT, last: str = B, within: int = 7) -> Plan:
    outer = statement("A V B", "ANY", f"{A}, V AS PATTERN visit, {last}", within, measures="V.n AS n, A.i AS a")
    return plan_of(over({"visit": visit}, outer))


def one(of: Plan, purpose: Purpose = Purpose.MATCHES) -> FlattenedMatcher:
    matcher = make_matcher(of, purpose=purpose)
    assert isinstance(matcher, FlattenedMatcher)
    return matcher


def layers(of: Plan) -> HierarchyMatcher:
    return HierarchyMatcher(of, lambda layer, use: make_matcher(layer, purpose=use))


def expected(of: Plan) -> tuple[list[tuple[tuple[str, int], ...]], list[tuple[object, ...]]]:
    found = composed(of, SEEN)
    return [tuple(match.leaves()) for match in found], [tuple(match.row.values()) for match in found]


def told(found: list[Matches]) -> tuple[list[tuple[tuple[str, int], ...]], list[tuple[object, ...]]]:
    return leaves(found), output(found)


def test_ties_come_in_the_order_of_the_layers() -> None:
    """x2 y4 ends before x1 y5: a plain pattern would give all matches of x1 first."""
    of = plan()
    found = told([one(of).push(batch_of(SEEN))])
    assert found == expected(of)
    first = [match[1:3] for match in found[0][:4]]
    assert first == [(("V.X", 1), ("V.Y", 4)), (("V.X", 2), ("V.Y", 4)), (("V.X", 1), ("V.Y", 5)),
                     (("V.X", 2), ("V.Y", 5))]  # fmt: skip


@pytest.mark.slow
def test_too_many_partial_matches_are_leftto_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any row of the batch is given out."""
    compares = statement("X Y", "ANY", f"{X}, {Y} AND i > X.i", measures="X.i AS n")
    of = plan(compares, B + " AND i > A.i")
    monkeypatch.setattr(choice, "PAIRS_MAX", 3)
    for cut in range(len(SEEN)):
        matcher, batch = one(of), batch_of(SEEN)
        found = [matcher.push(batch.slice(0, cut)), matcher.push(batch.slice(cut, len(SEEN))), matcher.advance(None)]
        assert told(found) == expected(of)
        assert "needs more than 3 partial matches" in str(matcher.why_layers)


def test_large_integers_are_leftto_layers_which_may_fail() -> None:
    """An event that no match has makes composition fail; one pattern would not read it."""
    of = plan(statement("X Y", "ANY", f"{X}, {Y} AND i + X.i > 0", measures="X.i AS n"))
    whole = batch_of(SEEN)
    large = pa.array(np.where(np.arange(len(SEEN)) == 1, 2**63 - 1, np.arange(len(SEEN))))
    columns = whole.columns.set_column(whole.columns.schema.get_field_index("i"), "i", large)
    batch = replace(whole, columns=columns)
    none = [i for i, e in enumerate(SEEN) if e.type != "a"]
    for matcher in (layers(of), one(of)):
        with pytest.raises(DataError, match="the condition of Y overflows"):
            matcher.push(batch.take(np.array(none)))


def test_an_error_of_a_measure_is_that_of_the_layers() -> None:
    outer = statement("A V", "ANY", f"{A}, V AS PATTERN visit", 7, measures="V.n * 4611686018427387904 AS n")
    of, batch = plan_of(over({"visit": VISIT}, outer)), batch_of(SEEN)
    errors = []
    for matcher in (layers(of), one(of)):
        matcher.push(batch.slice(0, 4))
        with pytest.raises(DataError) as caught:
            matcher.push(batch.slice(4, len(SEEN)))
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


@pytest.mark.slow
def test_states_of_both_ways_are_restored() -> None:
    of, batch = plan(), batch_of(SEEN)
    for cut in range(1, len(SEEN)):
        begun: list[FlattenedMatcher | HierarchyMatcher] = [layers(of), one(of), one(of)]
        after = begun[2]
        assert isinstance(after, FlattenedMatcher)
        after.to_layers("a test")
        for matcher in begun:
            found = [matcher.push(batch.slice(0, cut))]
            other = one(of)
            other.push(batch)  # it has another state before
            assert other.fits(matcher.snapshot())
            other.restore(matcher.snapshot())
            assert (other.why_layers is None) == (matcher is begun[1])
            assert told([*found, other.push(batch.slice(cut, len(SEEN)))]) == expected(of)


def test_layers_go_on_from_the_events_of_a_state_that_one_pattern_cannot_read(monkeypatch: pytest.MonkeyPatch) -> None:
    of, batch = plan(), batch_of(SEEN)
    matcher, other = one(of), one(of)
    found = [matcher.push(batch.slice(0, 5))]
    assert other._one is not None
    monkeypatch.setattr(other._one, "fits", lambda state: False)
    assert other.fits(matcher.snapshot())
    other.restore(matcher.snapshot())
    assert other.why_layers == "another release began it"
    assert told([*found, other.push(batch.slice(5, len(SEEN)))]) == expected(of)


def test_states_of_other_patterns_do_not_fit() -> None:
    state = one(plan()).snapshot()
    for other in (one(plan(within=8)), layers(plan())):
        assert not other.fits(state)
    with pytest.raises(DataError, match="another query or version"):
        one(plan(within=8)).restore(state)


@pytest.mark.slow
@pytest.mark.parametrize("sieved", [2, 1 << 14])
def test_only_events_that_matches_to_come_may_have_are_kept(monkeypatch: pytest.MonkeyPatch, sieved: int) -> None:
    monkeypatch.setattr(flattened, "SIEVED_MIN", sieved)
    monkeypatch.setattr(flattened, "KEPT_MAX", 4)
    of = plan(within=20)
    matcher = one(of)
    rng = np.random.default_rng(1)
    types = rng.choice(list("axybzzzz"), 400)
    seen = events_of(" ".join(f"{name}{i}@{i}" for i, name in enumerate(types)))
    batch, by_layers = batch_of(seen), layers(of)
    for i in range(0, 400, 2):
        part = batch.slice(i, i + 2)
        assert told([matcher.push(part)]) == told([by_layers.push(part)])
        assert sum(map(len, matcher._kept)) <= 2 * 20 + 10
    if sieved == 2:
        kept = EventBatch.concat(list(matcher._kept))
        assert "z" not in kept.columns.column("s").to_pylist()[:-2]
    matcher.to_layers("a test")
    more = batch_of(events_of("a0@400 x1@400 y2@401 b3@402"))
    more = replace(more, offset=more.offset + 400)
    assert told([matcher.push(more)]) == told([by_layers.push(more)])


@pytest.mark.parametrize(
    ("pattern", "visit"), [("A V B", "X+ Y"), ("A+ V B", "X Y"), ("A V+ B", "X Y"), ("A V{1,2} B?", "X Y"),
                           ("A? V B+", "X{1,2} Y"), ("A V", "X+ Y"), ("A+ V+", "X Y")],
)  # fmt: skip
def test_matches_of_different_variables_come_in_the_order_of_the_layers(pattern: str, visit: str) -> None:
    """With the path of each event: V[2].X of the second V."""
    wide = "X AS s IN ('x', 'b'), Y AS s IN ('y', 'b')"  # an event may be taken by several variables
    inner = statement(visit, "ANY", wide, measures="count(*) AS n")
    conditions = [text for name, text in (("A", "A AS s IN ('a', 'b')"), ("B", B)) if name in pattern]
    outer = statement(pattern, "ANY", ", ".join([*conditions, "V AS PATTERN visit"]), 7, measures="count(*) AS n")
    of = plan_of(over({"visit": inner}, outer))
    seen = events_of("a0@0 b1@1 x2@2 a3@2 y4@3 b5@4 b6@5 x7@6 y8@7 b9@8 b10@9")
    matcher, batch = one(of), batch_of(seen)
    assert matcher.way.one.steps
    found = told([matcher.push(batch.slice(0, 6)), matcher.push(batch.slice(6, len(seen)))])
    matches = composed(of, seen)
    assert found == ([tuple(m.leaves()) for m in matches], [tuple(m.row.values()) for m in matches])
    assert len(found[0]) > 15
    assert ("V[2].X" in {path for match in found[0] for path, _ in match}) == ("V+" in pattern or "V{" in pattern)


def test_matches_far_from_each_other_are_left_to_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their order is told by numbers of 62 bits."""
    monkeypatch.setattr(ragged, "WIDTH_MAX", 2)
    of = plan(statement("X+ Y", "ANY", f"{X}, {Y}", measures="count(*) AS n"))
    matcher = one(of)
    assert told([matcher.push(batch_of(SEEN))]) == expected(of)
    assert matcher.why_layers == "matches lie too far from each other for one pattern"


def test_too_many_paths_are_left_to_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: of more than 32,767 paths the later ones had negative numbers."""
    monkeypatch.setattr(ragged, "PATHS_MAX", 3)
    outer = statement("A V+ B", "ANY", f"{A}, V AS PATTERN visit, {B}", 9, measures="A.i AS a")
    of = plan_of(over({"visit": VISIT}, outer))
    matcher = one(of)
    assert told([matcher.push(batch_of(SEEN))]) == expected(of)
    assert matcher.why_layers == "matches have too many paths for one pattern"


@pytest.mark.slow
@pytest.mark.parametrize("many", [2, 1 << 14])
def test_rows_beside_the_match_are_kept_of_each_partition(monkeypatch: pytest.MonkeyPatch, many: int) -> None:
    """Of a key that was not seen for long, too."""
    monkeypatch.setattr(flattened, "SIEVED_MIN", many)
    monkeypatch.setattr(flattened, "KEPT_MAX", 4)
    rises = statement("X Y", "ANY", f"{X} AND PREV(i, 2) IS NOT NULL, {Y} AND PREV(s) <> 'z'", key=True,
                      measures="PREV(X.i) AS n")  # fmt: skip
    outer = statement("V B", "ANY", f"V AS PATTERN rises, {B}", 20, key=True)
    of = plan_of(over({"rises": rises}, outer))
    rng = np.random.default_rng(3)
    of_key = rng.choice(list("pqrst"), 400, p=[0.5, 0.4, 0.06, 0.03, 0.01])
    types = rng.choice(list("xybz"), 400)
    seen = events_of(" ".join(f"{t}{i}@{i}{{{k}}}" for i, (t, k) in enumerate(zip(types, of_key))))
    batch, by_layers = batch_of(seen), layers(of)
    matcher, found, expected_ones = one(of), [], []
    for i in range(0, 400, 5):
        found.append(matcher.push(batch.slice(i, i + 5)))
        expected_ones.append(by_layers.push(batch.slice(i, i + 5)))
        assert sum(map(len, matcher._kept)) <= (120 if many == 2 else 400)
        if i % 100:
            continue
        state = matcher.snapshot()
        after = one(of)
        after.restore(state)
        after.to_layers("a test")
        rest = layers(of)
        for part in range(0, i + 5, 5):
            rest.push(batch.slice(part, part + 5))
        more = batch.slice(i + 5, 400)
        assert told([after.push(more)]) == told([rest.push(more)])
    assert told(found) == told(expected_ones)
    assert len(told(found)[0]) > 100


@pytest.mark.slow
def test_a_condition_that_fails_for_an_event_is_left_to_layers() -> None:
    """It is computed of every event; layers read it of those that come into question."""
    fails = "CAST(CASE s WHEN 'z' THEN 'none' ELSE '1' END AS INT)"
    of = plan(statement("X Y", "ANY", f"{X} AND {fails} + 1 = 2, {Y} AND i > X.i + {fails}", measures="X.i AS n"))
    for z in (*range(0, len(SEEN), 3), len(SEEN)):
        seen = [*SEEN]
        for i in range(z, len(SEEN), 3):
            seen[i] = replace(SEEN[i], type="z")
        for purpose in (Purpose.MATCHES, Purpose.ROWS):
            matcher, by_layers, batch = one(of, purpose), layers(of), batch_of(seen)
            assert len(matcher.way.one.computed) == 2
            for i in range(len(seen)):
                found, wanted = matcher.push(batch.slice(i, i + 1)), by_layers.push(batch.slice(i, i + 1))
                assert output([found]) == output([wanted])
                assert (matcher.why_layers is None) == all(e.type != "z" for e in seen[: i + 1])


def test_one_pattern_or_layers() -> None:
    assert isinstance(as_one(plan(), Purpose.LIVE), AsOne)
    equal = statement("X Y", "ANY", f"{X}, {Y} AND i = X.i", measures="X.i AS n")
    assert isinstance(as_one(plan(equal), Purpose.LIVE), AsOne)
    assert str(as_one(plan(equal, B + " AND i > A.i"), Purpose.LIVE)).startswith("V has few matches")
    compares = statement("X Y", "ANY", f"{X}, {Y} AND i > X.i", measures="X.i AS n")
    way = as_one(plan(compares, B + " AND i > A.i"), Purpose.LIVE)
    assert str(way) == (
        "runs as one pattern: A V_X V_Y B, in one search where layers have 2; as layers from 32,000 partial matches on"
    )


@pytest.mark.slow
@pytest.mark.parametrize("restart", [False, True])
def test_events_keep_their_identity(monkeypatch: pytest.MonkeyPatch, restart: bool) -> None:
    """Whatever their ingest sequences, of several sources."""
    monkeypatch.setattr(flattened, "KEPT_MAX", 1)
    of, rng = plan(within=15), np.random.default_rng(2)
    types = rng.choice(list("axybz"), 200)
    batch = batch_of(events_of(" ".join(f"{name}{i}@{i}" for i, name in enumerate(types))))
    late = rng.random(200) < 0.2
    batch = replace(batch, seq=np.arange(200) * (1 + late) + 1_000, sources=("p", "q"),
                    source=rng.integers(0, 2, 200).astype(np.int32))  # fmt: skip
    matcher, by_layers = one(of, Purpose.LIVE), layers(of)
    count = 0
    for start in range(0, 200, 20):
        part = batch.slice(start, start + 20)
        found, wanted = matcher.push(part), by_layers.push(part)
        for name in ("event_seq", "event_source", "event_offset", "event_ts_us", "event_bounds", "first_us", "last_us"):
            assert np.array_equal(getattr(found, name), getattr(wanted, name)), name
        assert (found.sources, found.rows) == (wanted.sources, wanted.rows)
        count += len(found)
        if restart:
            state, matcher = matcher.snapshot(), one(of, Purpose.LIVE)
            matcher.restore(state)
    assert count > 100


@pytest.mark.slow
@pytest.mark.parametrize("selection", ["NEXT", "ANY", "PARTITION", "STRICT"])
@pytest.mark.parametrize("of_box", ["NEXT", "STRICT"])
def test_boxes_of_single_events_take_the_same_under_any_strategy(selection: str, of_box: str) -> None:
    tall = {"tall": statement("X", of_box, f"{X}", measures="X.i AS n", after="")}
    outer = statement("A V Y B", selection, f"{A}, V AS PATTERN tall ON n > 0, {Y}, {B}", 9, measures="V.n AS n")
    of = plan_of(over(tall, outer))
    seen = events_of("a0@0 x1@1 y2@2 b3@3 z4@4 a5@5 x6@6 x7@7 y8@8 z9@9 b10@9 a11@11 x12@11 y13@11 b14@12")
    matcher, found = one(of), []
    for i in range(len(seen)):
        if i == 9:
            matcher.to_layers("a test")
        found.append(matcher.push(batch_of(seen).slice(i, i + 1)))
    expected = [tuple(match.leaves()) for match in composed(of, seen)]
    assert leaves(found) == expected
    assert len(expected) == {"NEXT": 3, "ANY": 13, "PARTITION": 2, "STRICT": 2}[selection]


# ---- live queries


@pytest.mark.slow
def test_a_query_alone_runs_as_one_pattern_and_later_ones_share() -> None:
    feed, batch = Feed(EVENTS), batch_of(SEEN)
    visits = statement("V", "ANY", "V AS PATTERN visit", 7, measures="V.n AS n")
    plans = [plan(), plan(last="B AS s = 'b' AND i > 3"), plan_of(over({"visit": VISIT}, visits))]
    members = [feed.add(plans[0], 0)]
    feed.push(batch.slice(0, 1), 0)
    members += [feed.add(of, 1) for of in plans[1:]]
    assert [type(member.matcher) for member in members] == [FlattenedMatcher, HierarchyMatcher, HierarchyMatcher]
    assert [member.why_layers for member in members] == [None, *["other queries read its patterns too"] * 2]
    state, order = feed.snapshot(members)
    assert order == members
    again = Feed(EVENTS)
    restored = again.restore(state, plans)
    assert [type(m.matcher) for m in restored if isinstance(m, Member)] == [
        FlattenedMatcher, HierarchyMatcher, HierarchyMatcher
    ]  # fmt: skip
    for one_feed, of_feed in ((feed, members), (again, restored)):
        one_feed.push(batch.slice(1, len(SEEN)), None)
        one_feed.advance(None)
        found = [m.take_found() for m in of_feed if isinstance(m, Member)]
        assert told(found[0]) == expected(plans[0])
        assert [len(leaves(of)) for of in found[1:]] == [
            sum(match.first >= 1 for match in composed(of, SEEN)) for of in plans[1:]
        ]


def test_a_query_of_another_pattern_runs_as_one_pattern_too() -> None:
    feed = Feed(EVENTS)
    other = statement("X Y", "ANY", f"{X}, {Y} AND i > X.i", measures="X.i AS n")
    members = [feed.add(plan(), 0), feed.add(plan(other), 0)]
    assert all(isinstance(member.matcher, FlattenedMatcher) for member in members)

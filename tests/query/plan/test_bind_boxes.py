"""Boxes bound to a plan: their faults, the patterns that engines run, and what is pushed into them."""

from __future__ import annotations

import re
import warnings

import pytest

from query.errors import HybridWarning, QueryError
from query.language.parse import parse
from query.plan import bind as bind_module
from query.plan.bind import bind
from query.plan.boxes import bounded, common_keys, independent_of_before, layers
from query.plan.fingerprint import fingerprint
from query.schema import Schema
from tests.hierarchies import EVENTS, over, plan_of, statement
from tests.query.plan.test_bind import read_cases

VISIT = statement("X Y", "NEXT", "X AS s = 'x', Y AS s = 'y'")
OF_BOX = statement("V B", "NEXT", "V AS PATTERN visit, B AS s = 'b'", 60)


@pytest.mark.parametrize(("name", "query", "expected"), read_cases("box_errors.case"), ids=lambda v: v[:40])
def test_faults(name: str, query: str, expected: str) -> None:
    with pytest.raises(QueryError) as caught:
        bind(parse(query), lambda _: EVENTS)
    assert str(caught.value) == expected


@pytest.mark.parametrize(("pattern", "condition", "warned"), [
    ("A B", "B.t0 < A.t1", "B.t0 < A.t1 is never true, as B follows A"),
    ("A B", "n > 1 AND FIRST(A.t1) > t1", r"FIRST\(A.t1\) > t1 is never true, as B follows A"),
    ("A+ ~E B", "t1 < LAST(A.t0)", r"t1 < LAST\(A.t0\) is never true, as B follows A"),
    ("E B", "t0 < E.ts", "t0 < E.ts is never true, as B follows E"),
    ("(A | B) B", "t0 < A.t1", "t0 < A.t1 is never true, as B follows A"),  # or there is no A
    ("A B", "B.t0 <= A.t1", None),  # there may be several events of one time
    ("A B", "B.t0 < A.t1 OR n > 1", None),
    ("(A B)+", "t0 < LAST(A.t1)", None),
    ("A B", "t0 - A.t1 < INTERVAL 1 MINUTE", None),
])  # fmt: skip
def test_times_against_their_order(pattern: str, condition: str, warned: str | None) -> None:
    # Before: such a pattern found nothing, and nothing said so.
    define = f"A AS PATTERN visit, B AS PATTERN visit ON {condition}" + ", E AS s = 'e'" * ("E" in pattern)
    define = define if "A" in pattern else define.removeprefix("A AS PATTERN visit, ")
    text = over({"visit": VISIT}, statement(pattern, "NEXT", define, 60))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", HybridWarning)
        plan_of(text)
    found = [str(one.message) for one in told]
    assert len(found) == (warned is not None)
    assert warned is None or re.match(warned, found[0])


def test_a_box_may_have_the_name_of_its_entry() -> None:
    # Before: the entry passed for one that is read, and the statement for one of two patterns.
    text = over({"v": VISIT}, OF_BOX.replace("PATTERN visit", "PATTERN v"))
    plan = bind(parse(text), lambda _: EVENTS, live=True)
    assert len(plan.factors) == 1
    assert "SELECT 0" not in plan.select_sql  # before, EXPLAIN showed it


@pytest.mark.slow
def test_each_pattern_of_many_layers_is_bound_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Before: once for each way to it, so that two boxes of the layer below made 2 ** 12 of them.
    bound: list[str] = []
    whole = bind_module._Query.as_module
    monkeypatch.setattr(bind_module._Query, "as_module", lambda self, name: bound.append(name) or whole(self, name))
    patterns = {"p0": VISIT}
    for i in range(1, 13):
        define = f"V AS PATTERN p{i - 1}, U AS PATTERN p{max(i - 2, 0)} ON n > 1"
        patterns[f"p{i}"] = statement("V U", "NEXT", define, 60 + i)
    bind(parse(OF_BOX.replace("PATTERN visit", "PATTERN p12"), (), patterns), lambda _: EVENTS)
    assert sorted(bound) == sorted(patterns)


def test_a_pattern_is_named_from_outside_too() -> None:
    inside = bind(parse(over({"visit": VISIT}, OF_BOX)), lambda _: EVENTS).factors[-1].plan
    outside = bind(parse(OF_BOX, (), {"visit": VISIT}), lambda _: EVENTS).factors[-1].plan
    assert fingerprint(inside) == fingerprint(outside)
    assert fingerprint(inside) != fingerprint(plan_of(over({"visit": VISIT.replace("'y'", "'z'")}, OF_BOX)))


def test_a_pattern_made_of_itself_shows_the_ring() -> None:
    with pytest.raises(QueryError, match="visit -> theft -> visit"):
        parse(OF_BOX, (), {"visit": OF_BOX.replace("visit", "theft"), "theft": OF_BOX})


def test_an_entry_that_is_read_too_stays() -> None:
    text = over({"visit": VISIT}, OF_BOX.replace("SELECT *", "SELECT *, (SELECT count(*) FROM visit) AS visits"))
    assert len(bind(parse(text), lambda _: EVENTS).factors) == 2
    assert len(bind(parse(over({"visit": VISIT}, OF_BOX)), lambda _: EVENTS).factors) == 1


def test_a_pattern_of_boxes_has_entries_of_with_of_its_own() -> None:
    # Before: HQ100, "unexpected ) SELE"; what nothing reads was taken out twice.
    theft = over({"visit": VISIT}, OF_BOX)
    outer = OF_BOX.replace("PATTERN visit", "PATTERN theft")
    nested = bind(parse(over({"theft": theft}, outer)), lambda _: EVENTS)
    flat = bind(parse(over({"visit": VISIT, "theft": OF_BOX}, outer)), lambda _: EVENTS)
    assert len(nested.factors) == 1
    assert nested.factors[0].plan == flat.factors[0].plan


def test_a_pattern_of_boxes_that_reads_an_entry_of_with_says_what_to_do_instead() -> None:
    def resolve(name: str) -> Schema:
        if name == "late":
            raise LookupError
        return EVENTS

    late = "SELECT i, ts, s FROM events MATCH_RECOGNIZE (ORDER BY ts ALL ROWS PER MATCH PATTERN (A) DEFINE A AS i > 3)"
    text = over({"late": late, "visit": VISIT.replace("FROM events", "FROM late")}, OF_BOX)
    with pytest.raises(QueryError, match=r"FROM \(SELECT ...\) AS late in each layer"):
        bind(parse(text), resolve)


def test_the_plan_shows_its_boxes() -> None:
    shown = str(plan_of(over({"visit": VISIT}, OF_BOX)))
    assert "define      V AS PATTERN visit\n            B AS (s = 'b')" in shown
    assert "pattern     visit\n  input" in shown


def test_layers_are_plain_patterns() -> None:
    found = dict(layers(plan_of(over({"visit": VISIT}, OF_BOX)), "outer"))
    assert list(found) == ["outer", "visit"]
    assert not any(plan.boxes for plan in found.values())


def test_within_of_callers_bounds_a_pattern_that_gives_all_matches() -> None:
    def within(text: str) -> int | None:
        (box,) = bounded(plan_of(text)).boxes
        return None if box.plan.within is None else box.plan.within.interval_us

    assert within(over({"visit": VISIT}, OF_BOX)) == 60
    assert within(over({"visit": statement("X Y", "NEXT", "X AS s = 'x', Y AS s = 'y'", 5)}, OF_BOX)) == 5
    assert within(over({"visit": VISIT}, OF_BOX.replace("WITHIN INTERVAL 60 MICROSECOND", ""))) is None
    skipping = VISIT.replace("AFTER MATCH NO SKIP", "").replace("SKIP TILL NEXT MATCH", "PARTITION")
    assert within(over({"visit": skipping}, OF_BOX)) is None  # a longer match hides later ones


def test_keys_of_all_layers() -> None:
    visit = statement("X Y", "NEXT", "X AS s = 'x', Y AS s = 'y'", key=True)
    outer = statement("V B", "NEXT", "V AS PATTERN visit, B AS s = 'b'", key=True)
    assert common_keys(plan_of(over({"visit": visit}, outer))) == ("k",)
    named = statement("X Y", "NEXT", "X AS s = 'x', Y AS s = 'y'", measures="X.k AS k")
    assert common_keys(plan_of(over({"visit": named}, outer))) == ()


def test_which_patterns_need_nothing_of_before() -> None:
    assert independent_of_before(plan_of(over({"visit": VISIT}, OF_BOX)))
    led = statement("~N X Y", "NEXT", "X AS s = 'x', Y AS s = 'y', N AS s = 'n'", 5)
    assert not independent_of_before(plan_of(over({"visit": led}, OF_BOX)))


def test_a_negation_that_is_tested_apart_is_shown_as_it_runs() -> None:
    # Before: EXPLAIN said that such a pattern ran through the reference matcher.
    text = over({"visit": VISIT}, statement("B ~V E", "NEXT", "V AS PATTERN visit, B AS s = 'b', E AS s = 'e'"))
    assert [name for name, _ in layers(plan_of(text), "outer")] == ["outer", "outer ~V", "visit"]

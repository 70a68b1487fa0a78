"""The fingerprint of a plan: pinned for all constructs, complete, and changed by what changes the answer alone."""

from __future__ import annotations

import dataclasses
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from decimal import Decimal
from enum import Enum
from importlib import import_module
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

import query.plan
import query.schema
from query.errors import Span
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import TRUE, Column, Constant, Logical
from query.plan.fingerprint import CHOICES, KINDS, encoded, fingerprint, fingerprint_of_rows
from query.plan.pattern import Repeat, Variable
from query.plan.plan import AfterMatch, Define, FactorPlan, Joined, Plan, Reads, Within
from query.plan.trends import Trends
from query.schema import Field
from tests.query.plan.test_bind import plan_of
from tests.strategies import plans


def of(text: str) -> str:
    return fingerprint(plan_of(text).factors[-1].plan)


def over_ticks(clauses: str) -> str:
    return f"SELECT * FROM ticks MATCH_RECOGNIZE ({clauses})"


#: Of every construct one at least. These are in the ids of people's sinks: a change here is a break for all of them.
PINNED = {
    "8ae742eb39ae0ec40504d6493334f051":
        over_ticks("PATTERN (A)"),
    "9ba8bcbe2c28ce1ef0174f6fcd82032f":
        over_ticks("PARTITION BY symbol MEASURES B.price AS p PATTERN (A B+) DEFINE B AS price < PREV(price)"),
    "ba42f1c09c9438651700f988764b77da":
        over_ticks("ALL ROWS PER MATCH AFTER MATCH SKIP TO NEXT ROW PATTERN (^ A {- B*? -} (C | D){2,3} $)"
        " WITHIN 9 ROWS DEFINE B AS price > 1.50, C AS price = 1e1, D AS volume IS NULL"),
    "4f47a2d7c571202a9bd31d6667dd452e":
        over_ticks("MEASURES CLASSIFIER() AS c, MATCH_NUMBER() AS n, FINAL LAST(U.price, 2) AS l, NEXT(A.price, 3) AS x"
        " ALL ROWS PER MATCH WITH UNMATCHED ROWS AFTER MATCH SKIP TO LAST B PATTERN (A B) SUBSET U = (A, B)"),
    "8cdcc8fde763a89f0bdd28f84eed5b5d":
        over_ticks("MEASURES count(*) AS n, sum(DISTINCT A.volume) AS s, string_agg(A.symbol, ',' ORDER BY A.price"
        " DESC) FILTER (WHERE A.price > 1) AS t ONE ROW PER MATCH TIMEOUT ROWS PATTERN (A+) WITHIN INTERVAL '1' HOUR"),
    "4abc41241e73a2a025fdedf9ec535334":
        over_ticks("PATTERN (A ~N B) WITHIN INTERVAL '90' SECONDS SELECTION SKIP TILL NEXT MATCH"
        " DEFINE N AS symbol IN ('a', 'ß'), B AS CASE WHEN price > 2 THEN volume ELSE -1 END BETWEEN 1 AND 5"),
    "b3e8d31743516d12eafd8145f0dec1db":
        over_ticks("PATTERN (A B) WITHIN INTERVAL '1' DAY SELECTION SKIP TILL ANY MATCH"
        " DEFINE B AS ts > A.ts + INTERVAL 5 MINUTES AND lower(symbol) LIKE 'x%'"),
    "c3d3fd4e87d5e61a59cb3a2cd1eec0fa":
        over_ticks("PATTERN (PERMUTE(A, B) ()) SELECTION STRICT"
        " DEFINE A AS ts > TIMESTAMP '2024-02-29 12:00', B AS ts - INTERVAL 1 MONTH < DATE '2024-03-01'"),
    "68b9fef657faa13c15a34cfbae71a7a9":
        "SELECT * FROM rel MATCH_RECOGNIZE (PARTITION BY k ORDER BY day DESC NULLS FIRST, id PATTERN (A B?))",
    "9877d277406116c8615b6871d8a817f5":
        "SELECT * FROM (SELECT * FROM rel WHERE v > 0) MATCH_RECOGNIZE (ORDER BY id PATTERN (A B))",
    "b1678f27469499b5eceac61e8a372c3c":
        "SELECT * FROM (SELECT ts, p FROM ticks MATCH_RECOGNIZE (MEASURES LAST(ts) AS ts, A.price AS p PATTERN (A))"
        " WHERE p > 3) MATCH_RECOGNIZE (ORDER BY ts PATTERN (X Y) DEFINE Y AS p > X.p)",
    "a2fb651034082d402266aa3f4262ae90":
        "SELECT * FROM MERGE(ticks, rel) MATCH_RECOGNIZE (ORDER BY ts PATTERN (A B) DEFINE A AS stream = 'ticks')",
    "81e907c324df9fbfc0d083a41469c065":
        "FROM ticks PATTERN SEQ(ticks a, ticks+ b[]) WHERE SKIP_TILL_NEXT_MATCH(a, b[]) { b[i].price > b[i-1].price }"
        " WITHIN 1 hour RETURN count(b[].price) AS n",
    "4992271c703f6dd1340d2c5312f09b20":
        over_ticks("PARTITION BY symbol GROUP BY symbol MEASURES COUNT(MATCHES) AS n, SUM(A.volume) AS s ONE ROW"
        " PER WINDOW PATTERN (A+ ~C B) WITHIN 10 MINUTES SLIDE 5 MINUTES DEFINE B AS price < LAST(A.price),"
        " C AS price > 9"),
    "b4051b85e5aa6b607046db563b727929":
        "FROM ticks PATTERN SEQ(ticks a, ticks b) AND (ticks c)+ GROUP BY symbol HAVING COUNT(*) > 1 WITHIN 1 hour"
        " RETURN MIN(b.price), symbol, AVG(c.volume)",
}  # fmt: skip


@pytest.mark.parametrize("pinned", PINNED)
def test_fingerprints_are_pinned(pinned: str) -> None:
    # Before: a hash of EX5b8c3981c1d306c3da18c49e89956d42's text, so that another word there was another id everywhere.
    assert of(PINNED[pinned]) == pinned


def test_the_encoding_is_written_down() -> None:
    text = over_ticks("PATTERN (A B?) WITHIN 3 ROWS DEFINE B AS price > 1.50")
    assert encoded(plan_of(text).factors[0].plan) == (
        b"(plan;in=[s5:ticks]of=(rows;f=[(field;n=s2:tst=s9:TIMESTAMP)(field;n=s5:pricet=s6:DOUBLE)]t=s2:ts)"
        b"or=[(order;c=(col;n=s2:tst=s9:TIMESTAMP))]af=(after;)"
        b"pa=(seq;p=[(v;n=s1:A)(rep;b=(v;n=s1:B)m=i1;)])wi=(within;r=i3;)"
        b"de=[(define;v=s1:Bc=(call;f=s1:>a=[(col;n=s5:pricet=s6:DOUBLE)(const;v=d15e-1;t=s12:DECIMAL(3,2))]"
        b"t=s7:BOOLEAN))])"
    )


def test_plain_rows_have_one_by_their_stream() -> None:
    assert fingerprint_of_rows("Ticks") == fingerprint_of_rows("ticks") == "5b8c3981c1d306c3da18c49e89956d42"
    assert fingerprint_of_rows("tocks") != fingerprint_of_rows("ticks")
    assert fingerprint_of_rows("a.csv") == fingerprint_of_rows("there/b.csv")


# ---- nobody forgets


def plan_classes() -> Iterator[type]:
    """Every class that a plan may hold, found by what its fields are said to be."""
    modules = [import_module(f"query.plan.{m.name}") for m in pkgutil.iter_modules(query.plan.__path__)]
    every = {c.__name__: c for m in (*modules, query.schema) for c in vars(m).values() if isinstance(c, type)}
    aliases = {"Expression": query.plan.expression.Expression, "RowPattern": query.plan.pattern.RowPattern}
    left, seen = [Plan], set[type]()
    while left:
        one = left.pop()
        if one in seen:
            continue
        seen.add(one)
        yield one
        for field in fields(one) if is_dataclass(one) else ():
            if one is Joined and field.name == "factor":
                continue  # the box's plan has the pattern, and `key` its histories
            for word in str(field.type).replace("[", " ").replace("]", " ").replace(",", " ").split():
                named = every.get(word)
                left += [*getattr(aliases.get(word), "__args__", ())]
                left += [named] if named is not None and (is_dataclass(named) or issubclass(named, Enum)) else []


def test_every_class_and_field_of_a_plan_has_its_tag() -> None:
    classes = {c for c in plan_classes() if c is not Span}
    kinds = {c for c in classes if is_dataclass(c)}
    assert kinds == set(KINDS)
    for kind in kinds:
        _, known = KINDS[kind]
        assert {f.name for f in fields(kind)} == {*known}, kind
        tags = [f.tag for f in known.values() if f.tag is not None]
        assert len(set(tags)) == len(tags), kind
    assert len({tag for tag, _ in KINDS.values()}) == len(KINDS)
    choices = [c for c in classes if issubclass(c, Enum)]
    assert {member for c in choices for member in c} == set(CHOICES)
    for choice in choices:
        assert len({CHOICES[member] for member in choice}) == len(choice)


def test_a_new_field_with_its_default_and_a_new_name_change_nothing() -> None:
    @dataclass(frozen=True, slots=True)
    class Renamed:
        what: object
        least: int
        most: int | None
        eager: bool
        new: int = 0

    tag, known = KINDS[Repeat]
    names = dict(zip(("what", "least", "most", "eager"), known.values()))
    plan = plan_of(over_ticks("PATTERN (A+?)")).factors[0].plan
    assert isinstance(plan.pattern, Repeat)
    moved: Any = Renamed(plan.pattern.body, plan.pattern.at_least, plan.pattern.at_most, plan.pattern.greedy)
    of_new = dataclasses.replace(known["at_least"], tag="new")
    with patch.dict(KINDS, {Renamed: (tag, names | {"new": of_new})}):  # type: ignore[arg-type]
        assert fingerprint(replace(plan, pattern=moved)) == fingerprint(plan)
        assert fingerprint(replace(plan, pattern=replace(moved, new=1))) != fingerprint(plan)


# ---- what does not change it

SAME = [
    (over_ticks("PARTITION BY symbol MEASURES B.price AS p PATTERN (A B+) DEFINE B AS price<PREV(price)"),
     "select 1 from Ticks match_recognize (partition by SYMBOL -- why\n measures b.PRICE as P pattern ( a (b)+ )"
     " define b as /* */ Price  <  prev( PRICE ))"),
    (over_ticks("PATTERN (A B) WITHIN INTERVAL '1' HOUR DEFINE B AS price > 0.50 AND A.ts < ts - INTERVAL 1 MONTH"),
     over_ticks("PATTERN (A B) WITHIN INTERVAL 60 MINUTES DEFINE A AS TRUE, B AS price > 0.50"
                " AND A.ts < ts - to_months(1)")),
    (over_ticks("PATTERN (A) DEFINE A AS ts > TIMESTAMP '2024-01-02' AND symbol = 'x'"),
     over_ticks("ONE ROW PER MATCH AFTER MATCH SKIP PAST LAST ROW PATTERN (A) SELECTION PARTITION"
                " DEFINE A AS ts > CAST('2024-1-02 00:00:00' AS TIMESTAMP) AND symbol = 'x'")),
    ("SELECT * FROM (SELECT * FROM rel WHERE v > 0) MATCH_RECOGNIZE (ORDER BY id PATTERN (A B))",
     "SELECT * FROM (select *  from REL -- rows\n where V>0) AS r MATCH_RECOGNIZE (ORDER BY ID PATTERN (A B)) AS m"),
]  # fmt: skip


@pytest.mark.parametrize(("one", "other"), SAME)
def test_layout_comments_case_and_defaults_do_not_count(one: str, other: str) -> None:
    assert of(one) == of(other)


def test_the_declaration_of_a_stream_counts_as_far_as_it_is_read() -> None:
    plan = plan_of(over_ticks("MEASURES A.price AS p PATTERN (A)")).factors[0].plan
    whole = plan_of(over_ticks("ALL ROWS PER MATCH PATTERN (A)")).factors[0].plan
    schema = plan.schema
    wider = replace(schema, fields=(*schema.fields, Field("more", "INTEGER")), lateness_us=5, retention_us=6, keys=())
    assert fingerprint(replace(plan, schema=wider)) == fingerprint(plan)
    assert fingerprint(replace(whole, schema=wider)) != fingerprint(whole)
    assert fingerprint(replace(plan, schema=replace(schema, order=("volume",)))) != fingerprint(plan)
    assert fingerprint(replace(plan, inputs=("tocks",))) != fingerprint(plan)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Constant(1.0, "DOUBLE"), Constant(1.0, "DOUBLE", sql="1e0"), True),
        (Constant(float("nan"), "DOUBLE"), Constant(-float("nan"), "DOUBLE"), True),
        (Constant(0.0, "DOUBLE"), Constant(-0.0, "DOUBLE"), False),
        (Constant(0.1, "DOUBLE"), Constant(0.1 + 2**-56, "DOUBLE"), False),
        (Constant(Decimal("1.50"), "T"), Constant(Decimal("1.5"), "T"), True),
        (Constant(Decimal("0.0"), "T"), Constant(Decimal("-0"), "T"), True),
        (Constant(Decimal(10), "T"), Constant(Decimal(1), "T"), False),
        (Constant(1, "T"), Constant(True, "T"), False),
        (Constant(1, "T"), Constant("1", "T"), False),
        (Constant("\u00e9", "T"), Constant("e\u0301", "T"), False),  # to DuckDB they are two texts
        (Constant("\ud800", "T"), Constant("?", "T"), False),
    ],
)
def test_values_have_one_form_each(one: Constant, other: Constant, same: bool) -> None:
    plan = plan_of(over_ticks("PATTERN (A)")).factors[0].plan
    first, second = (fingerprint(replace(plan, defines=(Define("A", c),))) for c in (one, other))
    assert (first == second) is same


# ---- what does

EMPTY = Plan(
    query.schema.Schema("e", ()), (), (), (), RowsPerMatch.ONE, AfterMatch(AfterMatchKind.NO_SKIP), Variable("A"), None,
    Selection.PARTITION, (), (),
)  # fmt: skip
OTHERWISE: dict[str, object] = {
    "at_most": 77, "interval_us": 77, "rows": Within(rows=77), "value": 77, "time": "v", "logical": Logical.FIRST,
    "argument": Column("v", "INTEGER"), "where": Constant(77, "INTEGER"), "within": Within(rows=77),
    "trends": Trends(77, 7, (), ()), "having": TRUE, "joined": Joined(FactorPlan("e", "e", EMPTY, ()), (), "77"),
    "reads": Reads(("ticks",), (("v",),)),
}  # fmt: skip


def changes(node: Any, name: str) -> Iterator[Any]:
    """Other values of a field."""
    value = getattr(node, name)
    if value is None:
        yield 77 if name == "rows" else OTHERWISE[name]
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, Enum):
        yield from (other for other in type(value) if other is not value)
    elif isinstance(value, int | float | Decimal):
        yield value + 1
    elif isinstance(value, str):
        yield value + "x"
    elif isinstance(value, tuple):
        yield from ((), value[1:], value[:-1], (*value, value[0])) if value else ()
        yield value[::-1]
    for i, part in enumerate(value if isinstance(value, tuple) else [value]):
        for other in mutants(part) if type(part) in KINDS else ():
            yield (*value[:i], other, *value[i + 1 :]) if isinstance(value, tuple) else other


def mutants(node: Any) -> Iterator[Any]:
    """The same with one field of it, or of a part of it, changed: all those that count."""
    for name, field in KINDS[type(node)][1].items():
        if field.tag is not None:
            for value in changes(node, name):
                if value != getattr(node, name) or type(value) is not type(getattr(node, name)):
                    yield replace(node, **{name: value})


def counts(plan: Plan, other: Plan) -> bool:
    """Whether the two differ in more than columns that nothing reads and conditions that are TRUE."""

    def bare(p: Plan) -> Plan:
        read = tuple(f for f in p.schema.fields if f.name in p.columns)
        given = tuple(d for d in p.defines if d.condition != TRUE)
        return replace(p, schema=replace(p.schema, fields=read), defines=given)

    return bare(plan) != bare(other)


@pytest.mark.slow
@given(st.data())
def test_every_change_of_a_plan_changes_it(data: st.DataObject) -> None:
    plan = data.draw(plans(opaque=True, timeouts=True, anchored=True, exclusions=True, skip_to=True, negations=True))
    everything = list(mutants(plan))
    for other in data.draw(st.permutations(everything))[:25]:
        assert not counts(plan, other) or fingerprint(other) != fingerprint(plan)


@pytest.mark.slow
def test_every_change_of_a_rich_plan_changes_it() -> None:
    for text in PINNED.values():
        plan = plan_of(text).factors[-1].plan
        for other in mutants(plan):
            assert not counts(plan, other) or fingerprint(other) != fingerprint(plan), (plan, other)

"""Hypothesis strategies: random plans of every kind, and rows that often match them.

    @given(rows=events(), plan=plans())     # rows first: what is drawn last comes out short

All plans are over SCHEMA and all rows fit it, so `tests.events.batch_of(SCHEMA, rows)` makes a batch of them.
Conditions cannot raise (no division, and sums of at most a few thousand) unless `raising` is asked for. Strategies are
built once (`cache`): building them costs more than drawing from them. `traits` names what a plan has, to be counted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from hypothesis import strategies as st

from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import (
    TRUE,
    Aggregate,
    Call,
    Classifier,
    Column,
    Constant,
    Expression,
    Logical,
    MatchNumber,
    Navigation,
    Opaque,
    walk,
)
from query.plan.pattern import (
    Alternation,
    Anchor,
    Empty,
    Exclusion,
    Negation,
    Repeat,
    RowPattern,
    Variable,
    anchors,
    excludes,
    min_rows,
    variables,
)
from query.plan.pattern import Sequence as Concatenation
from query.plan.pattern import negated as negated_variables
from query.plan.plan import AfterMatch, Define, Measure, Order, Plan, Within
from query.schema import Field, Schema

SECOND_US = 1_000_000
SCHEMA = Schema(
    "e",
    (
        Field("ts", "TIMESTAMP"),
        Field("k", "VARCHAR"),
        Field("s", "VARCHAR"),
        Field("v", "BIGINT"),
        Field("x", "DOUBLE"),
    ),
    time="ts",
    keys=("k",),
)
TS, K, S, V, X = (Column(f.name, f.type) for f in SCHEMA.fields)
SQL_SELECTIONS = (Selection.STRICT, Selection.PARTITION)
SKIP_TILL = (Selection.SKIP_TILL_NEXT, Selection.SKIP_TILL_ANY)
NAMES = ("A", "B", "C", "D")
COMPARISONS = ("<=", ">=", "<>", "<", ">", "=")

Row = dict[str, object]


@cache
def among(*values: Hashable) -> st.SearchStrategy[Any]:
    """One of the values, by one object for equal values: hypothesis looks at every new one before it draws."""
    return st.sampled_from(values)


# ---- rows ----------------------------------------------------------------------------------------------------------


# one object each, since hypothesis looks at every new one before it draws
TICKS = st.sampled_from((1, 0, 1, 0, 1, 2, 4))
TEXTS = st.sampled_from(("a", "b", "a", "b", "a", "c", None))
WHOLE = st.sampled_from((0, 1, 2, 3, 4, 5, 2, 3, None))
FLOATING = st.sampled_from((0.1, 0.5, 1.5, 2.25, -0.0, math.nan, None))


@st.composite
def events(
    draw: st.DrawFn, min_size: int = 0, max_size: int = 14, keys: Sequence[str | None] = ("p", "q", None)
) -> list[Row]:
    """Rows of SCHEMA in total order: 1 to 3 partitions, ties in time, nulls and NaN; times as int microseconds."""
    sizes = range(min_size, max_size + 1)
    count = draw(among(*sizes, *sizes[len(sizes) // 3 :], *sizes[len(sizes) // 2 :]))
    partitions = draw(among(1, 1, *range(1, len(keys) + 1)))
    some = among(*keys[:partitions])
    rows: list[Row] = []
    seconds = draw(st.integers(0, 3))
    for _ in range(count):
        seconds += draw(TICKS)
        rows.append(
            {
                "ts": seconds * SECOND_US,
                "k": draw(some),
                "s": draw(TEXTS),
                "v": draw(WHOLE),
                "x": draw(FLOATING),
            }
        )
    return rows


# ---- patterns ------------------------------------------------------------------------------------------------------


def quantified(bodies: st.SearchStrategy[RowPattern]) -> st.SearchStrategy[RowPattern]:
    bounds = st.sampled_from(((0, None), (1, None), (0, 1), (1, None), (2, None), (1, 2), (0, 2), (2, 2), (2, 3)))
    return st.builds(
        lambda body, b, greedy: Repeat(body, b[0], b[1], greedy), bodies, bounds, st.sampled_from((True, True, False))
    )


def sequences(bodies: st.SearchStrategy[RowPattern]) -> st.SearchStrategy[RowPattern]:
    return st.lists(bodies, min_size=2, max_size=3).map(lambda parts: Concatenation(tuple(parts)))


@cache
def patterns(names: tuple[str, ...] = NAMES) -> st.SearchStrategy[RowPattern]:
    """Variables, quantifiers, groups, alternation, PERMUTE as bind writes it out, the empty pattern; at least one
    variable, at most 5 rows needed."""
    single: st.SearchStrategy[RowPattern] = st.sampled_from([Variable(name) for name in names])
    element = single | quantified(single)
    orders = st.sampled_from([permuted(names[:2]), permuted(names[1:3]), permuted(names[:3])])

    def larger(inner: st.SearchStrategy[RowPattern]) -> st.SearchStrategy[RowPattern]:
        choices = st.lists(inner, min_size=2, max_size=3).map(lambda parts: Alternation(tuple(parts)))
        return sequences(inner) | choices | quantified(inner)

    nested = st.recursive(element | element | element | orders | st.just(Empty()), larger, max_leaves=5)
    found = chains(names) | nested | sequences(nested)
    return found.filter(lambda p: bool(variables(p)) and min_rows(p) <= 5)


def permuted(names: tuple[str, ...]) -> RowPattern:
    """PERMUTE(names): all orders, in list order."""
    orders = itertools.permutations(map(Variable, names))
    return Alternation(tuple(Concatenation(order) if len(order) > 1 else order[0] for order in orders))


@cache
def chains(names: tuple[str, ...] = NAMES, reluctant: bool = True) -> st.SearchStrategy[RowPattern]:
    """Singletons and pluses one after the other, each variable at most once."""

    def chain(count: int, loops: list[bool], greedy: list[bool]) -> RowPattern:
        parts = [
            Repeat(Variable(n), 1, None, g or not reluctant) if loop else Variable(n)
            for n, loop, g in zip(names[:count], loops, greedy, strict=False)
        ]
        return Concatenation(tuple(parts)) if len(parts) > 1 else parts[0]

    flags = st.lists(st.booleans(), min_size=len(names), max_size=len(names))
    return st.builds(chain, st.integers(1, min(3, len(names))), flags, flags)


# ---- expressions ---------------------------------------------------------------------------------------------------


def compare(left: Expression, operator: str, right: Expression) -> Expression:
    return Call(operator, (left, right), "BOOLEAN")


def number(value: int) -> Constant:
    return Constant(value, "INTEGER")


def at(column: Expression, physical: int) -> Expression:
    """PREV or NEXT of the candidate or current row."""
    return Navigation(column, (), None, 0, physical, False, column.type)


def logical(
    which: Logical, column: Expression, names: tuple[str, ...], offset: int = 0, physical: int = 0, final: bool = False
) -> Expression:
    return Navigation(column, names, which, offset, physical, final, column.type)


def aggregate(
    function: str, argument: Expression | None, names: tuple[str, ...], final: bool = False, distinct: bool = False
) -> Expression:
    type = "" if argument is None else argument.type
    result = {"count": "BIGINT", "avg": "DOUBLE", "sum": "HUGEINT" if type == "BIGINT" else "DOUBLE"}.get(
        function, type
    )
    return Aggregate(function, argument, names, distinct, final, result)


def negated(condition: Expression) -> Expression:
    return Call("not", (condition,), "BOOLEAN")


columns: st.SearchStrategy[Expression] = st.sampled_from((V, V, X))
operators = st.sampled_from(COMPARISONS)
small = st.integers(0, 5)
letters = st.sampled_from("AB")


@cache
def row_local(after: bool = False) -> st.SearchStrategy[Expression]:
    """Conditions on the candidate and rows near it. after: NEXT too."""
    found = st.one_of(
        st.just(TRUE),
        st.builds(lambda n: compare(V, ">", number(n)), st.integers(0, 2)),
        st.builds(lambda n: compare(V, "<=", number(n)), st.integers(2, 5)),
        st.builds(lambda a: compare(S, "=", Constant(a, "VARCHAR")), st.sampled_from("ab")),
        st.builds(lambda a: compare(S, "<>", Constant(a, "VARCHAR")), st.sampled_from("ab")),
        st.builds(lambda c, op, n: compare(c, op, at(c, -n)), columns, operators, st.integers(1, 2)),
        st.builds(lambda c: Call("is_null", (c,), "BOOLEAN"), columns),
        st.builds(lambda c: Call("is_not_null", (c,), "BOOLEAN"), columns),
        st.just(Call("in", (V, number(1), number(2), number(4)), "BOOLEAN")),
        st.just(Call("between", (V, number(1), number(4)), "BOOLEAN")),
        st.just(compare(X, ">", Constant(0.5, "DOUBLE"))),
        st.just(compare(Call("-", (TS, at(TS, -1)), "INTERVAL"), "<=", Constant(SECOND_US, "INTERVAL"))),
        st.just(compare(Call("coalesce", (V, at(V, -1), number(3)), "BIGINT"), ">", number(1))),
    )
    if after:
        ahead = st.builds(lambda c, op, n: compare(c, op, at(c, n)), columns, operators, st.integers(1, 2))
        found = st.one_of(found, ahead)
    return found


@cache
def run_dependent(candidate: str, names: tuple[str, ...], numbered: bool = True) -> st.SearchStrategy[Expression]:
    """Conditions on the rows bound so far. numbered: MATCH_NUMBER() too."""
    others: list[tuple[str, ...]] = [(n,) for n in names if n != candidate] or [()]
    other: st.SearchStrategy[tuple[str, ...]] = st.sampled_from(others)
    group: st.SearchStrategy[tuple[str, ...]] = st.sampled_from([(), *((n,) for n in names), tuple(names[:2])])

    def lenient(column: Expression, condition: Expression) -> Expression:
        """Also true where there is nothing to compare with."""
        return Call("or", (Call("is_null", (column,), "BOOLEAN"), condition), "BOOLEAN")

    def against(value: Expression, operator: str, column: Expression, allow: bool) -> Expression:
        condition = compare(column, operator, value)
        return lenient(value, condition) if allow else condition

    found = st.one_of(
        st.builds(
            lambda c, o, op, f: against(logical(Logical.LAST, c, o), op, c, f), columns, other, operators, st.booleans()
        ),
        st.builds(
            lambda c, o, op, n: against(logical(Logical.LAST, c, (candidate,), n), op, c, True),
            columns,
            other,
            operators,
            st.integers(1, 2),
        ),
        st.builds(
            lambda c, o, op, n: against(logical(Logical.FIRST, c, o, n), op, c, True),
            columns,
            group,
            operators,
            st.integers(0, 2),
        ),
        st.builds(
            lambda c, o, n: against(logical(Logical.LAST, c, o, n, -1), "<>", c, True),
            columns,
            other,
            st.integers(0, 1),
        ),
        st.builds(lambda o, n: compare(aggregate("count", None, o), "<", number(n)), group, st.integers(2, 5)),
        st.builds(
            lambda c, o, n: compare(aggregate("count", c, o), "<=", number(n)), columns, group, st.integers(1, 3)
        ),
        st.builds(
            lambda c, o, op: compare(c, op, aggregate("avg", c, o)), columns, group, st.sampled_from(("<=", ">="))
        ),
        st.builds(lambda o: compare(Call("*", (V, number(10)), "BIGINT"), ">", aggregate("sum", V, o)), group),
        st.builds(
            lambda o, n: compare(aggregate("sum", X, o), "<", Constant(n / 2, "DOUBLE")), group, st.integers(1, 9)
        ),
        st.builds(
            lambda f, c, o, op: compare(c, op, aggregate(f, c, o)),
            st.sampled_from(("min", "max")),
            columns,
            group,
            st.sampled_from(("<=", ">=", "=")),
        ),
        st.builds(
            lambda which, o, op, f: against(logical(which, S, o), op, S, f),
            st.sampled_from(Logical),
            group,
            st.sampled_from(("=", "<>", "<=")),
            st.booleans(),
        ),
        st.builds(
            lambda o, op: compare(aggregate("max", S, o), op, S),
            group,
            st.sampled_from(("=", ">=")),
        ),
        st.builds(
            lambda n: against(logical(Logical.LAST, Classifier(), (), 1), "<>", Constant(n, "VARCHAR"), True),
            st.sampled_from(list(names)),
        ),
        st.builds(
            lambda n: compare(logical(Logical.FIRST, Classifier(), ()), "<>", Constant(n, "VARCHAR")),
            st.sampled_from(list(names)),
        ),
    )
    if numbered:
        found |= st.just(compare(Call("%", (MatchNumber(), number(2)), "BIGINT"), "=", number(1)))
    return found


@cache
def by_duckdb(candidate: str, names: tuple[str, ...], raising: bool) -> st.SearchStrategy[Expression]:
    """Conditions of functions that only DuckDB knows, on the row and on the rows so far. raising: some fail on some
    rows."""
    group: st.SearchStrategy[tuple[str, ...]] = st.sampled_from([(), (candidate,), tuple(names[:2])])
    found = st.one_of(
        st.builds(lambda n: compare(Opaque('upper("_0")', (S,), "VARCHAR"), "<>", Constant(n, "VARCHAR")), letters),
        st.just(Opaque('"_0" LIKE \'%a%\' OR "_1" > 2', (S, V), "BOOLEAN")),
        st.just(Opaque('coalesce(length("_0"), 0) < 2', (S,), "BOOLEAN")),
        st.builds(lambda o: Opaque('"_0" >= lower("_1")', (S, logical(Logical.FIRST, S, o)), "BOOLEAN"), group),
    )
    if raising:
        one_if_a = Opaque("CAST(replace(\"_0\", 'a', '1') AS INTEGER)", (S,), "INTEGER")
        fails = compare(one_if_a, ">", number(0))
        is_a = compare(S, "=", Constant("a", "VARCHAR"))
        cast = compare(Call("cast", (S,), "INTEGER"), ">", number(0))
        found |= st.sampled_from(
            [
                fails,
                Call("and", (is_a, fails), "BOOLEAN"),
                Call("or", (is_a, cast), "BOOLEAN"),
                Call("or", (compare(V, ">", number(1)), fails), "BOOLEAN"),
            ]
        )
    return found


@cache
def conditions(
    candidate: str,
    names: tuple[str, ...],
    after: bool = False,
    numbered: bool = True,
    opaque: bool = False,
    raising: bool = False,
) -> st.SearchStrategy[Expression]:
    """Conditions of every kind, alone and joined by AND, OR, NOT and CASE. opaque, raising: see `by_duckdb`."""
    single = row_local(after) | row_local(after) | run_dependent(candidate, names, numbered)
    if opaque:
        single |= by_duckdb(candidate, names, raising)
    joined = st.one_of(
        st.builds(lambda a, b: Call("or", (a, b), "BOOLEAN"), single, single),
        st.builds(lambda a, b: Call("and", (a, b), "BOOLEAN"), single, single),
        st.builds(negated, single),
        st.builds(lambda a, b, c: Call("case", (a, b, c), "BOOLEAN"), single, single, single),
    )
    kinds = [st.just(TRUE), st.just(TRUE), single, single, row_local(after), joined]
    if raising:
        kinds.append(guarded(candidate, names, numbered))
    # half of the random tables are to have a match
    return st.one_of(kinds)


@cache
def guarded(candidate: str, names: tuple[str, ...], numbered: bool = True) -> st.SearchStrategy[Expression]:
    """Conditions that read, or do not read, what cannot be computed for some rows, as the match so far says."""
    match = run_dependent(candidate, names, numbered)
    fails = compare(Call("cast", (S,), "INTEGER"), ">", number(0))
    failing = by_duckdb(candidate, names, True) | st.just(fails)
    return st.one_of(
        st.builds(lambda a, b: Call("or", (a, b), "BOOLEAN"), match, failing),
        st.builds(lambda a, b, c: Call("or", (a, b, c), "BOOLEAN"), match, row_local(), failing),
        st.builds(lambda a, b: Call("and", (a, b), "BOOLEAN"), match, failing),
        st.builds(lambda a, b, c: Call("or", (Call("and", (a, b), "BOOLEAN"), c), "BOOLEAN"), match, failing, match),
        st.builds(lambda a, b, c: Call("case", (a, b, c), "BOOLEAN"), match, row_local(), failing),
        st.builds(lambda a, b: Call("coalesce", (a, b), "BOOLEAN"), match, failing),
    )


@cache
def measures(
    names: tuple[str, ...], one_row: bool, after: bool = False, opaque: bool = True
) -> st.SearchStrategy[list[Measure]]:
    """0 to 4 measures of all kinds. after: NEXT too. opaque: functions that only DuckDB knows too."""
    group: st.SearchStrategy[tuple[str, ...]] = st.sampled_from([*((n,) for n in names), tuple(names[:2]), ()])
    final = st.just(False) if one_row else st.booleans()
    column: st.SearchStrategy[Expression] = st.sampled_from((V, X, S, TS))
    near: list[int] = [1, 2, 1, -1, 0] if after else [-2, -1, 0, 0]

    def navigation(which: Logical, c: Expression, o: tuple[str, ...], n: int, p: int, f: bool) -> Expression:
        if which is Logical.LAST and not o and n == 0 and not f:
            return c if p == 0 else at(c, p)
        return logical(which, c, o, n, p, f)

    kinds: list[st.SearchStrategy[Expression]] = [
        column,
        st.builds(navigation, st.sampled_from(Logical), column, group, st.integers(0, 2), st.sampled_from(near), final),
        st.builds(lambda o, f: aggregate("count", None, o, f), group, final),
        st.builds(lambda c, o, f, d: aggregate("count", c, o, f, d), column, group, final, st.booleans()),
        st.builds(lambda g, c, o, f: aggregate(g, c, o, f), st.sampled_from(("sum", "avg")), columns, group, final),
        st.builds(lambda g, c, o, f: aggregate(g, c, o, f), st.sampled_from(("min", "max")), column, group, final),
        st.just(Classifier()),
        st.builds(
            lambda which, o, n, f: logical(which, Classifier(), o, n, 0, f), st.just(Logical.FIRST), group, small, final
        ),
        st.just(MatchNumber()),
        st.builds(lambda o: Call("-", (TS, logical(Logical.FIRST, TS, o)), "INTERVAL"), group),
        st.builds(lambda o: Call("+", (V, aggregate("count", None, o)), "BIGINT"), group),
        st.builds(lambda o: Call("/", (aggregate("sum", V, o), number(2)), "DOUBLE"), group),
    ]
    if opaque:
        kinds.append(st.builds(lambda o: Opaque('upper("_0")', (logical(Logical.LAST, S, o),), "VARCHAR"), group))
        kinds.append(st.builds(lambda call, o, f: replace(call, variables=o, final=f), calls, group, final))
    if after:
        kinds += kinds[1:2] * 6
    expressions = st.lists(st.one_of(kinds), max_size=4)
    return expressions.map(lambda found: [Measure(f"m{i}", e) for i, e in enumerate(found)])


def call(
    function: str,
    argument: Expression | None,
    type: str,
    more: tuple[Expression, ...] = (),
    where: Expression | None = None,
    order: tuple[tuple[Expression, str], ...] = (),
    distinct: bool = False,
) -> Aggregate:
    return Aggregate(function, argument, (), distinct, False, type, more=more, where=where, order=order)


def whole_calls() -> list[Aggregate]:
    """Aggregates with several arguments, FILTER, ORDER BY in the call, CLASSIFIER() and MATCH_NUMBER() inside, over all
    rows. Their keys leave no ties that would show."""
    comma, low_v, is_a = (
        Constant(",", "VARCHAR"),
        compare(V, "<=", number(2)),
        compare(S, "=", Constant("a", "VARCHAR")),
    )
    is_first = compare(Classifier(), "=", Constant("A", "VARCHAR"))
    by_s, by_v = (S, "DESC NULLS LAST"), (V, "ASC NULLS FIRST")
    return [
        call("string_agg", S, "VARCHAR", (comma,)),
        call("string_agg", S, "VARCHAR", (comma,), order=(by_s,)),
        call("string_agg", S, "VARCHAR", (comma,), is_a, (by_v, by_s)),
        call("string_agg", Classifier(), "VARCHAR", (comma,)),
        call("string_agg", Classifier(), "VARCHAR", (comma,), low_v),
        call("list", V, "BIGINT[]", order=(by_v,)),
        call("list", V, "BIGINT[]", where=is_first),
        call("arg_max", S, "VARCHAR", (TS,)),
        call("any_value", V, "BIGINT"),
        call("quantile_disc", V, "BIGINT", (Constant(0.5, "DOUBLE"),)),
        call("count", None, "BIGINT", where=low_v),
        call("count", V, "BIGINT", where=is_first, distinct=True),
        call("count", Classifier(), "BIGINT", distinct=True),
        call("sum", V, "HUGEINT", where=is_a),
        call("max", Classifier(), "VARCHAR"),
        call("max", MatchNumber(), "BIGINT"),
        call("max", Call("+", (V, MatchNumber()), "BIGINT"), "BIGINT"),
        call("min", S, "VARCHAR", where=low_v),
        call("sum", V, "HUGEINT", order=(by_v,), distinct=True),
    ]


calls = st.sampled_from(whole_calls())


# ---- plans ---------------------------------------------------------------------------------------------------------


def with_negations(draw: st.DrawFn, pattern: RowPattern, edges: bool) -> RowPattern:
    """Negated variables N, M between the elements of a pattern. edges: where a match may begin or end, too."""
    parts = list(pattern.parts) if isinstance(pattern, Concatenation) else [pattern]
    for name in ("N", "M")[: draw(st.integers(1, 2))]:
        places = [
            i
            for i in range(len(parts) + 1)
            if edges or (any(map(min_rows, parts[:i])) and any(map(min_rows, parts[i:])))
        ]
        if places:
            parts.insert(draw(among(*places)), Negation(name))
    return Concatenation(tuple(parts)) if len(parts) > 1 else parts[0]


BOUNDS: list[Within] = [
    *(Within(interval_us=n * SECOND_US) for n in (3, 5, 8, 2, 1, 0)),
    *(Within(rows=n) for n in (5, 4, 6, 3, 2, 1)),
]
WITHINS = st.sampled_from([*[None] * 12, *BOUNDS])
#: Bounds that some partial matches run into.
TIGHT = st.sampled_from([*BOUNDS[:2], *BOUNDS[6:10], *BOUNDS[3:5], *BOUNDS[9:11]])
seldom = st.sampled_from([*[False] * 5, True, False, False])  # what hypothesis likes best are the ends
sometimes = st.sampled_from((False, True, False))
ROWS_PER_MATCH = (RowsPerMatch.ONE, RowsPerMatch.ONE, RowsPerMatch.ALL_SHOW_EMPTY, RowsPerMatch.ALL_OMIT_EMPTY)


def places(pattern: RowPattern) -> int:
    """How many parts a pattern has, itself one of them; an exclusion is one part."""
    match pattern:
        case Concatenation(parts) | Alternation(parts):
            return 1 + sum(map(places, parts))
        case Repeat(body):
            return 1 + places(body)
        case _:
            return 1


def rewritten(pattern: RowPattern, place: int, change: Callable[[RowPattern], RowPattern]) -> RowPattern:
    """The pattern with its part number `place` (0 is itself, then in order) changed."""
    if place == 0:
        return change(pattern)
    place -= 1

    def among(parts: tuple[RowPattern, ...]) -> tuple[RowPattern, ...]:
        start = 0
        found = []
        for part in parts:
            mine = start <= place < start + places(part)
            found.append(rewritten(part, place - start, change) if mine else part)
            start += places(part)
        return tuple(found)

    match pattern:
        case Concatenation(parts):
            return Concatenation(among(parts))
        case Alternation(choices):
            return Alternation(among(choices))
        case Repeat(body, at_least, at_most, greedy):
            return Repeat(rewritten(body, place, change), at_least, at_most, greedy)
        case _:
            raise ValueError(place)


def with_anchors(draw: st.DrawFn, pattern: RowPattern) -> RowPattern:
    """`^` before or `$` behind a pattern, or at some part of it: before or behind the part, or as another choice."""
    for _ in range(draw(st.integers(1, 2))):
        anchor = Anchor(draw(st.booleans()))
        place = draw(st.integers(0, places(pattern) - 1)) if draw(st.booleans()) else 0
        optional = draw(st.booleans())

        def change(part: RowPattern, anchor: Anchor = anchor, optional: bool = optional) -> RowPattern:
            held = Concatenation((anchor, part) if anchor.at_start else (part, anchor))
            return Alternation((held, part)) if optional else held

        pattern = rewritten(pattern, place, change)
    return pattern


def with_exclusions(draw: st.DrawFn, pattern: RowPattern) -> RowPattern:
    """{- -} around one or two parts of a pattern, not one in the other."""
    for _ in range(draw(st.integers(1, 2))):
        place = draw(st.integers(0, places(pattern) - 1))
        pattern = rewritten(pattern, place, lambda part: part if excludes(part) else Exclusion(part))
    return pattern


def traits(plan: Plan) -> list[str]:
    """What a plan asks for beyond the plainest, to be counted in the tests' summaries."""
    expressions = [e for m in plan.measures for e in walk(m.expression)]
    reads = [e for d in plan.defines for e in walk(d.condition)]
    found = {
        plan.after.kind.value: True,
        "WITHIN": plan.within is not None,
        "all rows": plan.rows is not RowsPerMatch.ONE,
        "unmatched rows": plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED,
        "timeout rows": plan.timeout_rows,
        "^": True in anchors(plan.pattern),
        "$": False in anchors(plan.pattern),
        "{- -}": excludes(plan.pattern),
        "negation": bool(negated_variables(plan.pattern)),
        "can be empty": min_rows(plan.pattern) == 0,
        "NEXT": any(isinstance(e, Navigation) and e.physical_offset > 0 for e in (*expressions, *reads)),
        "whole calls": any(isinstance(e, Aggregate) and not e.plain for e in expressions),
        "CLASSIFIER in DEFINE": any(isinstance(e, Classifier) for e in reads),
        "MATCH_NUMBER in DEFINE": any(isinstance(e, MatchNumber) for e in reads),
        "DuckDB in DEFINE": any(isinstance(e, Opaque) for e in reads),
    }
    return [name for name, has in found.items() if has]


@st.composite
def plans(
    draw: st.DrawFn,
    selections: Sequence[Selection] = SQL_SELECTIONS,
    shapes: Callable[[], st.SearchStrategy[RowPattern]] = patterns,
    after: bool = True,
    negations: bool = False,
    opaque: bool = True,
    no_skip: bool = True,
    anchored: bool = True,
    exclusions: bool = True,
    skip_to: bool = True,
    unmatched: bool = True,
    timeouts: bool = True,
    raising: bool = False,
) -> Plan:
    """A plan over SCHEMA. What some plans have if it is allowed: after: NEXT, in conditions and measures. negations.
    opaque: what only DuckDB can compute, in conditions and measures. no_skip: all matches under STRICT and PARTITION
    too. anchored: `^` and `$`. exclusions: {- -}. skip_to: SKIP TO FIRST and LAST, which may be stuck. unmatched: WITH
    UNMATCHED ROWS. timeouts: TIMEOUT ROWS. raising: conditions that fail on some rows (DataError where they are read).
    """
    selection = draw(among(*selections))
    kinds = [AfterMatchKind.PAST_LAST_ROW, AfterMatchKind.TO_NEXT_ROW, AfterMatchKind.NO_SKIP]
    if selection not in SKIP_TILL and not no_skip:
        kinds.pop()
    if selection not in SKIP_TILL and skip_to:
        kinds += [AfterMatchKind.TO_LAST, AfterMatchKind.TO_FIRST, AfterMatchKind.PAST_LAST_ROW]
    kind = draw(among(*kinds))
    overlapping = selection in SKIP_TILL or kind is AfterMatchKind.NO_SKIP
    pattern = draw(shapes())
    timeout_rows = timeouts and not overlapping and draw(sometimes)
    within = draw(TIGHT if timeout_rows else WITHINS)
    names = variables(pattern)
    subsets: tuple[tuple[str, tuple[str, ...]], ...] = ()
    target: tuple[str, ...] = ()
    if kind in (AfterMatchKind.TO_FIRST, AfterMatchKind.TO_LAST):
        target = draw(among(*((n,) for n in names[::-1]), names[-1:], names[-2:]))
        subsets = (("U", target),) if len(target) > 1 else ()
    if anchored and draw(seldom):
        pattern = with_anchors(draw, pattern)
    if exclusions and draw(seldom):
        pattern = with_exclusions(draw, pattern)
    if negations and draw(st.booleans()):
        pattern = with_negations(draw, pattern, within is not None and within.interval_us is not None)
    looks_ahead = after and draw(seldom)
    defines = []
    for name in (*names, "N", "M"):
        if name in names:
            condition = draw(conditions(name, names, looks_ahead, not overlapping, opaque, raising))
        elif name in negated_variables(pattern):
            condition = draw(conditions(name, names, looks_ahead, False))
        else:
            continue
        defines.append(Define(name, condition))
    rows = [*ROWS_PER_MATCH]
    if unmatched and not overlapping and not excludes(pattern):
        rows += [RowsPerMatch.ALL_WITH_UNMATCHED] * 2
    shape = draw(among(*rows))
    shown = draw(measures(names, shape is RowsPerMatch.ONE, looks_ahead, opaque))
    partition = (K,) if draw(st.integers(0, 4)) else ()
    return Plan(
        SCHEMA,
        partition,
        (Order(TS),),
        tuple(shown),
        shape,
        AfterMatch(kind, target),
        pattern,
        within,
        selection,
        subsets,
        tuple(defines),
        timeout_rows,
    )

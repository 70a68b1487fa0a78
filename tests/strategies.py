"""Hypothesis strategies: random plans of every kind, and rows that often match them.

    @given(rows=events(), plan=plans())     # rows first: what is drawn last comes out short

All plans are over SCHEMA and all rows fit it, so `tests.events.batch_of(SCHEMA, rows)` makes a batch of them.
Conditions cannot raise: no division, and sums of at most a few thousand. Strategies are built once (`cache`): building
them costs more than drawing from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

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
)
from query.plan.pattern import Alternation, Empty, Negation, Repeat, RowPattern, Variable, min_rows, variables
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


# ---- rows ----------------------------------------------------------------------------------------------------------


@st.composite
def events(
    draw: st.DrawFn, min_size: int = 0, max_size: int = 14, keys: Sequence[str | None] = ("p", "q", None)
) -> list[Row]:
    """Rows of SCHEMA in total order: 1 to 3 partitions, ties in time, nulls and NaN; times as int microseconds."""
    sizes = range(min_size, max_size + 1)
    count = draw(st.sampled_from([*sizes, *sizes[len(sizes) // 3 :], *sizes[len(sizes) // 2 :]]))
    partitions = draw(st.sampled_from([1, 1, *range(1, len(keys) + 1)]))
    rows: list[Row] = []
    seconds = draw(st.integers(0, 3))
    for _ in range(count):
        seconds += draw(st.sampled_from((1, 0, 1, 0, 1, 2, 4)))
        rows.append(
            {
                "ts": seconds * SECOND_US,
                "k": draw(st.sampled_from(keys[:partitions])),
                "s": draw(st.sampled_from(("a", "b", "a", "b", "a", "c", None))),
                "v": draw(st.sampled_from((0, 1, 2, 3, 4, 5, 2, 3, None))),
                "x": draw(st.sampled_from((0.1, 0.5, 1.5, 2.25, -0.0, math.nan, None))),
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
    """Variables, quantifiers, groups, alternation, the empty pattern; at least one variable, at most 5 rows needed."""
    single: st.SearchStrategy[RowPattern] = st.sampled_from([Variable(name) for name in names])
    element = single | quantified(single)

    def larger(inner: st.SearchStrategy[RowPattern]) -> st.SearchStrategy[RowPattern]:
        choices = st.lists(inner, min_size=2, max_size=3).map(lambda parts: Alternation(tuple(parts)))
        return sequences(inner) | choices | quantified(inner)

    nested = st.recursive(element | element | st.just(Empty()), larger, max_leaves=5)
    found = chains(names) | nested | sequences(nested)
    return found.filter(lambda p: bool(variables(p)) and min_rows(p) <= 5)


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
def conditions(
    candidate: str, names: tuple[str, ...], after: bool = False, numbered: bool = True
) -> st.SearchStrategy[Expression]:
    """Conditions of every kind, alone and joined by AND, OR, NOT and CASE."""
    single = row_local(after) | row_local(after) | run_dependent(candidate, names, numbered)
    joined = st.one_of(
        st.builds(lambda a, b: Call("or", (a, b), "BOOLEAN"), single, single),
        st.builds(lambda a, b: Call("and", (a, b), "BOOLEAN"), single, single),
        st.builds(negated, single),
        st.builds(lambda a, b, c: Call("case", (a, b, c), "BOOLEAN"), single, single, single),
    )
    # half of the random tables are to have a match
    return st.one_of(st.just(TRUE), st.just(TRUE), single, single, row_local(after), joined)


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
    if after:
        kinds += kinds[1:2] * 6
    expressions = st.lists(st.one_of(kinds), max_size=4)
    return expressions.map(lambda found: [Measure(f"m{i}", e) for i, e in enumerate(found)])


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
            parts.insert(draw(st.sampled_from(places)), Negation(name))
    return Concatenation(tuple(parts)) if len(parts) > 1 else parts[0]


WITHINS = st.sampled_from(
    [
        *[None] * 12,
        *(Within(interval_us=n * SECOND_US) for n in (3, 5, 8, 2, 1, 0)),
        *(Within(rows=n) for n in (5, 4, 6, 3, 2, 1)),
    ]
)
ROWS_PER_MATCH = st.sampled_from(
    (RowsPerMatch.ONE, RowsPerMatch.ONE, RowsPerMatch.ALL_SHOW_EMPTY, RowsPerMatch.ALL_OMIT_EMPTY)
)


@st.composite
def plans(
    draw: st.DrawFn,
    selections: Sequence[Selection] = SQL_SELECTIONS,
    shapes: Callable[[], st.SearchStrategy[RowPattern]] = patterns,
    after: bool = True,
    negations: bool = False,
    opaque: bool = True,
    no_skip: bool = True,
) -> Plan:
    """A plan over SCHEMA. after: NEXT, in conditions and measures, in some plans. negations: in some plans.
    no_skip: all matches under STRICT and PARTITION too."""
    selection = draw(st.sampled_from(selections))
    kinds = [AfterMatchKind.PAST_LAST_ROW, AfterMatchKind.TO_NEXT_ROW, AfterMatchKind.NO_SKIP]
    if selection not in SKIP_TILL and not no_skip:
        kinds.pop()
    kind = draw(st.sampled_from(kinds))
    overlapping = selection in SKIP_TILL or kind is AfterMatchKind.NO_SKIP
    pattern = draw(shapes())
    within = draw(WITHINS)
    names = variables(pattern)
    if negations and draw(st.booleans()):
        pattern = with_negations(draw, pattern, within is not None and within.interval_us is not None)
    looks_ahead = after and draw(st.integers(0, 5)) == 0
    defines = []
    for name in (*names, "N", "M"):
        if name in names:
            condition = draw(conditions(name, names, looks_ahead, not overlapping))
        elif name in negated_variables(pattern):
            condition = draw(conditions(name, names, looks_ahead, False))
        else:
            continue
        defines.append(Define(name, condition))
    rows = draw(ROWS_PER_MATCH)
    shown = draw(measures(names, rows is RowsPerMatch.ONE, looks_ahead, opaque))
    partition = (K,) if draw(st.integers(0, 4)) else ()
    return Plan(
        SCHEMA,
        partition,
        (Order(TS),),
        tuple(shown),
        rows,
        AfterMatch(kind),
        pattern,
        within,
        selection,
        (),
        tuple(defines),
    )

"""Trends: aggregates over all matches of a window, and the reach of the conditions that they allow.

A trend is one match. A plan with `Trends` returns one row per window and group instead of one per match.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import assert_never

from query.plan.expression import (
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
    children,
    show,
    show_interval,
    walk,
)
from query.plan.pattern import (
    Alternation,
    Anchor,
    Conjunction,
    Empty,
    Exclusion,
    Negation,
    Repeat,
    RowPattern,
    Sequence,
    Variable,
)
from query.schema import Field

#: The first columns of a row per window; times with a zone if those of the events have one.
WINDOW_COLUMNS = (Field("window_start", "TIMESTAMP"), Field("window_end", "TIMESTAMP"))
#: DuckDB's type of whole numbers without bound.
BIGNUM = "BIGNUM"


class Over(Enum):
    """The functions of an aggregate over the trends of a window."""

    MATCHES = "count(MATCHES)"  # trends
    EVENTS = "count(*)"  # events of the variables, summed over trends
    VALUES = "count"  # the same without events whose value is null
    SUM = "sum"
    AVG = "avg"
    MIN = "min"  # over events in any trend, as MAX
    MAX = "max"

_WHOLE = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT",
          "UHUGEINT", "BOOLEAN")  # fmt: skip


def result_type(over: Over, type: str) -> str | None:
    """Returns the type of an aggregate over values of a type, None if it has none."""
    whole, decimal = type in _WHOLE, type.startswith("DECIMAL(") and type.endswith(")")
    match over:
        case Over.MATCHES | Over.EVENTS | Over.VALUES:
            return BIGNUM
        case Over.MIN | Over.MAX:
            return type
        case _ if not (whole or decimal or type in ("FLOAT", "DOUBLE")):
            return None
        case Over.SUM:
            return "VARCHAR" if decimal and not type.endswith(",0)") else BIGNUM if whole or decimal else "DOUBLE"
        case Over.AVG:
            return "DOUBLE"
        case _:
            assert_never(over)


@dataclass(frozen=True, slots=True)
class TrendAggregate:
    """`over(argument)` over the events of `variables` (empty: all events) in the trends of a window.

    argument: row-local, over the columns of one event; None for MATCHES and EVENTS. type: BIGNUM of counts and of sums
    of whole numbers; VARCHAR, the digits, of sums of DECIMALs with a fraction; DOUBLE of averages and of other sums;
    the argument's own type of MIN and MAX.
    """

    over: Over
    argument: Expression | None
    variables: tuple[str, ...]
    type: str

    @property
    def name(self) -> str:
        """Returns the text of the call: the name of its column in the measures."""
        if self.over is Over.MATCHES:
            return str(self.over.value)
        plain = Aggregate(self.over.value.removesuffix("(*)"), self.argument, self.variables, False, False, self.type)
        return show(plain)


@dataclass(frozen=True, slots=True)
class Trends:
    """Windows [k * slide_us, k * slide_us + within_us) of event time, from the epoch, UTC.

    group_by: partition columns; one row for each of their values, aggregated over the other partition columns.
    aggregates: those that the plan's measures and `having` read, as Columns of their names. having: condition of a row,
    None without HAVING.
    """

    within_us: int
    slide_us: int
    group_by: tuple[Column, ...]
    aggregates: tuple[TrendAggregate, ...]
    having: Expression | None = None

    def windows(self, ts_us: int) -> range:
        """Returns the k of the windows that contain an event at that time."""
        last = ts_us // self.slide_us
        first = (ts_us - self.within_us) // self.slide_us + 1
        return range(first, last + 1)

    def show_windows(self) -> str:
        """Returns the line of EXPLAIN about the windows."""
        return f"windows     {show_interval(self.within_us)} every {show_interval(self.slide_us)}"

    def __str__(self) -> str:
        lines = [self.show_windows()]
        lines.append("group       " + (", ".join(c.name for c in self.group_by) or "(one)"))
        for i, a in enumerate(self.aggregates):
            lines.append(f"{'aggregates' if i == 0 else '':<12}{a.name} {a.type}")
        if self.having is not None:
            lines.append(f"having      {show(self.having)}")
        return "\n".join(lines)


# ---- the order of variables --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Neighbours:
    """The order of variables in a trend. first, last: those of its first and its last event. after: by
    variable, those of the next event. empty: a trend may have no event."""

    first: frozenset[str]
    last: frozenset[str]
    after: Mapping[str, frozenset[str]]
    empty: bool

    def before(self, variable: str) -> frozenset[str]:
        """Returns the variables of the event right before one of `variable`."""
        return frozenset(v for v, following in self.after.items() if variable in following)

    def reached(self, variable: str) -> frozenset[str]:
        """Returns the variables of any event after one of `variable`."""
        found: set[str] = set()
        pending = list(self.after.get(variable, ()))
        while pending:
            v = pending.pop()
            if v not in found:
                found.add(v)
                pending.extend(self.after.get(v, ()))
        return frozenset(found)


def neighbours(pattern: RowPattern) -> Neighbours:
    """Returns which variables may follow each other (the Glushkov sets of a pattern, by variable)."""
    nothing: frozenset[str] = frozenset()
    match pattern:
        case Variable(name):
            one = frozenset((name,))
            return Neighbours(one, one, {name: nothing}, False)
        case Sequence(parts):
            found = Neighbours(nothing, nothing, {}, True)
            for part in parts:
                found = _followed(found, neighbours(part))
            return found
        case Alternation(choices) | Conjunction(choices):
            sides = [neighbours(c) for c in choices]
            after: dict[str, frozenset[str]] = {}
            for side in sides:
                _join(after, side.after)
            first = frozenset(v for side in sides for v in side.first)
            last = frozenset(v for side in sides for v in side.last)
            return Neighbours(first, last, after, any(side.empty for side in sides))
        case Repeat(body, at_least, at_most):
            inner = neighbours(body)
            after = dict(inner.after)
            if at_most is None or at_most > 1:
                _join(after, dict.fromkeys(inner.last, inner.first))
            return Neighbours(inner.first, inner.last, after, inner.empty or not at_least)
        case Exclusion(body):
            return neighbours(body)
        case Empty() | Negation() | Anchor():
            return Neighbours(nothing, nothing, {}, True)
        case _:
            assert_never(pattern)


def _followed(one: Neighbours, two: Neighbours) -> Neighbours:
    after = dict(one.after)
    _join(after, two.after)
    _join(after, dict.fromkeys(one.last, two.first))
    first = one.first | two.first if one.empty else one.first
    last = one.last | two.last if two.empty else two.last
    return Neighbours(first, last, after, one.empty and two.empty)


def _join(after: dict[str, frozenset[str]], more: Mapping[str, frozenset[str]]) -> None:
    for v, following in more.items():
        after[v] = after.get(v, frozenset()) | following


def reaches_too_far(variable: str, condition: Expression, order: Neighbours) -> Iterator[tuple[Expression, str]]:
    """Yields the parts of a condition that read another event of a trend than the immediate predecessor, each with the
    reason. variable: whose condition it is."""
    def visit(e: Expression) -> Iterator[tuple[Expression, str]]:
        match e:
            case MatchNumber() | Classifier():
                yield e, "a condition of a trend reads its event and the one before"
            case Navigation(logical=None):
                yield e, "PREV and NEXT read rows that are in no trend"
            case Navigation(argument) if any(isinstance(x, Classifier | MatchNumber) for x in walk(argument)):
                yield e, "a condition of a trend reads columns of its event and the one before"
            case Navigation(variables=variables, logical=logical, logical_offset=offset, physical_offset=physical):
                if why := _navigates_too_far(variable, variables, logical, offset, physical, order):
                    yield e, why
            case Call() if (first := asks_whether_first(e, variable)) is not None:
                if why := _beside(variable, (variable,), order):
                    yield first, why
            case Aggregate():
                yield e, "an aggregate reads the whole trend so far"
            case _:
                for child in children(e):
                    yield from visit(child)

    yield from visit(condition)


def _navigates_too_far(
    variable: str, variables: tuple[str, ...], logical: Logical | None, offset: int, physical: int, order: Neighbours
) -> str:
    if physical:
        return "PREV and NEXT read rows that are in no trend"
    if logical is Logical.FIRST:
        return "FIRST reads the beginning of the trend"
    own = not variables or variable in variables
    if offset - own == -1:
        return ""  # the event itself
    if offset - own > 0:
        return "it reads further back than the event before"
    return _beside(variable, variables, order)


def reads_nothing(variable: str, condition: Expression, order: Neighbours) -> Iterator[tuple[Expression, str]]:
    """Yields the parts of a condition that read an event of variables none of which comes right before, each with the
    reason; what they read is null in every trend."""
    for e in walk(condition):
        if isinstance(e, Navigation) and e.variables and not (e.logical_offset == 0 and variable in e.variables):
            if not order.before(variable) & set(e.variables):
                yield e, f"no event of {' or '.join(e.variables)} comes right before one of {variable}"


def _beside(variable: str, variables: tuple[str, ...], order: Neighbours) -> str:
    """Returns why the latest earlier event of `variables` may not be the immediate predecessor, or an empty text."""
    if not variables:
        return ""
    for before in sorted(order.before(variable) - set(variables)):
        far = [v for v in variables if before in order.reached(v)]
        if far:
            return f"between an event of {far[0]} and one of {variable} may be one of {before}"
    return ""


#: Comparisons of a count with a number that ask whether it is 1, and their value if it is.
_ASKS_FIRST = {("=", 1): True, ("<=", 1): True, ("<", 2): True, ("<>", 1): False, (">", 1): False, (">=", 2): False}
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "=": "=", "<>": "<>"}


def asks_whether_first(e: Call, variable: str) -> Aggregate | None:
    """Returns the count in `count(V.*) = 1`, `count(V.*) > 1` and the like, in a condition of V; else None."""
    found = _first_asked(e, variable)
    return None if found is None else found[0]


def _first_asked(e: Call, variable: str) -> tuple[Aggregate, bool] | None:
    """Returns the count, and the value of the comparison for the first event of the variable."""
    if e.function not in _TURNED or len(e.arguments) != 2:
        return None
    function, (left, right) = e.function, e.arguments
    if isinstance(right, Aggregate):
        function, left, right = _TURNED[function], right, left
    if not isinstance(left, Aggregate) or not isinstance(right, Constant) or isinstance(right.value, bool):
        return None
    plain = left.function == "count" and left.argument is None and left.where is None and left.variables == (variable,)
    value = _ASKS_FIRST.get((function, right.value)) if isinstance(right.value, int) else None
    return None if not plain or value is None else (left, value)


# ---- the condition of a variable after one of another ------------------------------------------------------------


def previous(argument: Expression) -> Navigation:
    """Returns the value of `argument` at the event right before, in a trend."""
    return Navigation(argument, (), Logical.LAST, 1, 0, False, argument.type)


def condition_after(condition: Expression, variable: str, before: str | None) -> Expression:
    """Returns the condition of `variable` for an event right after one of `before` (None: the first of the trend).

    It reads the event's columns and `previous` ones; parts whose value is known are constants. `condition` reads no
    further back: see `reaches_too_far`."""

    def of(e: Expression) -> Expression:
        match e:
            case Navigation(argument, variables, Logical.LAST, offset, 0):
                own = not variables or variable in variables
                if offset - own == -1:
                    return argument
                return previous(argument) if before is not None and (not variables or before in variables) else (
                    Constant(None, e.type))  # fmt: skip
            case Call() if (asked := _first_asked(e, variable)) is not None:
                return Constant(asked[1] == (before != variable), "BOOLEAN")
            case Call():
                return _folded(replace(e, arguments=tuple(map(of, e.arguments))))
            case Opaque():
                return replace(e, arguments=tuple(map(of, e.arguments)))
            case _:
                return e

    return of(condition)


def _folded(e: Call) -> Expression:
    """Returns an operator with constants among its operands, as far as they decide it."""
    known = [isinstance(a, Constant) for a in e.arguments]
    if e.function in ("and", "or"):
        decides = e.function == "or"
        rest = [a for a in e.arguments if not (isinstance(a, Constant) and a.value is (not decides))]
        if any(isinstance(a, Constant) and a.value is decides for a in rest):
            return Constant(decides, "BOOLEAN")
        return Constant(not decides, "BOOLEAN") if not rest else rest[0] if len(rest) == 1 else replace(
            e, arguments=tuple(rest))  # fmt: skip
    if e.function in ("is_null", "is_not_null") and known[0]:
        (a,) = e.arguments
        assert isinstance(a, Constant)
        return Constant((a.value is None) == (e.function == "is_null"), "BOOLEAN")
    if e.function == "not" and known[0]:
        (a,) = e.arguments
        assert isinstance(a, Constant)
        return Constant(None if a.value is None else not a.value, "BOOLEAN")
    if e.function in (*_TURNED, "+", "-", "*", "/", "//", "%", "neg", "abs", "cast") and any(
        isinstance(a, Constant) and a.value is None for a in e.arguments
    ):
        return Constant(None, e.type)
    return e

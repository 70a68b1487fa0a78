"""The clauses of ONE ROW PER WINDOW to a plan: windows, groups, aggregates, and what a trend allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from query.errors import Diagnostic, Span
from query.language import ast
from query.language.ast import AfterMatchKind
from query.language.duck import NULL_TYPE
from query.plan import pattern as rp
from query.plan.bind_expression import MATCHES, Scope, bind_over_trends
from query.plan.expression import Aggregate, Call, Column, Expression, Navigation, show, walk
from query.plan.plan import Define, Measure
from query.plan.trends import (
    BIGNUM,
    WINDOW_COLUMNS,
    Neighbours,
    Over,
    TrendAggregate,
    Trends,
    neighbours,
    reaches_too_far,
    reads_nothing,
    result_type,
)
from query.plan.typed import base_type
from query.schema import Field

_COMPARISONS = ("=", "<>", "<", "<=", ">", ">=", "between", "in", "is_distinct", "is_not_distinct")
_OVER = {"count": Over.VALUES, "sum": Over.SUM, "avg": Over.AVG, "mean": Over.AVG, "min": Over.MIN, "max": Over.MAX}
#: Most windows that an event may be in: each has counts of its own.
WINDOWS_MAX = 10_000
#: An interval of a window, in microseconds: about 146,000 years, so that the bounds of windows are in 64 bits.
_WINDOW_MAX_US = 1 << 62


class TrendBinder:
    """Binds what ONE ROW PER WINDOW adds to the clauses of a pattern. text: of the whole query. Adds to `faults`."""

    def __init__(
        self, text: str, match: ast.MatchRecognize, syntax: ast.TrendSyntax, faults: list[Diagnostic]
    ) -> None:
        self.text = text
        self.match = match
        self.syntax = syntax
        self.faults = faults
        self.aggregates: dict[TrendAggregate, None] = {}

    def fault(self, message: str, span: Span, label: str = "", hint: str = "") -> None:
        self.faults.append(Diagnostic("HQ221", message, span, label, hint))

    def clauses(self, pattern: rp.RowPattern) -> None:
        """Checks the clauses that every pattern may have."""
        match = self.match
        if match.rows is not ast.RowsPerMatch.WINDOW:
            self.fault("this clause belongs to ONE ROW PER WINDOW", self.syntax.span, "of one row per match",
                       "write ONE ROW PER WINDOW before PATTERN")
        if match.after is not None and match.after.kind is not AfterMatchKind.NO_SKIP:
            self.fault("aggregates over all matches skip none", match.after.span, "would drop matches",
                       "leave AFTER MATCH out, or write AFTER MATCH NO SKIP")
        if match.timeout is not None:
            self.fault("TIMEOUT ROWS are partial matches, and no trends", match.timeout)
        if rp.anchors(pattern):
            self.fault("an anchor has no meaning in a window", match.pattern.span, "the first or last row of what?",
                       "leave ^ and $ out")
        if not rp.variables(pattern):
            return  # reported for every pattern
        if not all(map(rp.min_rows, rp.sides(pattern))):
            self.fault("a trend has an event at least", match.pattern.span, "may match nothing", "write A+ for A*")

    def windows(self) -> tuple[int, int]:
        """Returns the length of a window and the time from one to the next, in microseconds."""
        within, slide = self.match.within, self.syntax.slide
        if within is None or within.interval_us is None:
            span = within.span if within is not None else self.syntax.span
            self.fault("a window needs a length in time", span, "" if within is None else "a number of rows",
                       "add WITHIN INTERVAL '30' MINUTE after PATTERN")
            return 1, 1
        for clause, word in ((within, "WITHIN"), (slide, "SLIDE")):
            if clause is not None and not 0 < (clause.interval_us or 0) < _WINDOW_MAX_US:
                self.fault(f"{word} of a window takes more than no time", clause.span)
        length = within.interval_us or 1
        step = (slide.interval_us or 1) if slide is not None else length
        if slide is not None and not self.faults and -(-length // step) > WINDOWS_MAX:
            self.fault(f"each event would be in {-(-length // step):,} windows", slide.span,
                       f"at most {WINDOWS_MAX:,}", "write a longer SLIDE, or a shorter WITHIN")
        return length, step

    def reach(self, pattern: rp.RowPattern, defines: Sequence[Define]) -> None:
        """Checks that each condition reads its event and the one right before it in the trend."""
        primary = rp.variables(pattern)
        order: Neighbours = neighbours(pattern)
        for define in defines:
            if define.variable not in primary:
                hint = "[attr] says what must be equal" if self.match.sase else "partition by what must be equal"
                alone = Neighbours(frozenset(), frozenset(), {}, True)
                far = dict(reaches_too_far(define.variable, define.condition, alone))
                for e in far | dict(reads_nothing(define.variable, define.condition, alone)):
                    self.fault(f"{self.shown(e)} reads a trend", e.span, "a negated event is in none",
                               f"compare the event with constants; {hint}")
                continue
            found = list(reaches_too_far(define.variable, define.condition, order))
            if self.match.sase and not found:  # in SQL a condition may ask whether there is one
                found = list(reads_nothing(define.variable, define.condition, order))
            if self.match.sase and any(not isinstance(e, Aggregate) for e, _ in found):
                found = [(e, why) for e, why in found if not isinstance(e, Aggregate)]  # the count is of v[i] itself
            for e, why in found:
                hint = "a condition of a trend reads its own event and the one right before it"
                if isinstance(e, Navigation) and e.physical_offset == -1 and not self.match.sase:
                    hint += f": LAST({show(e.argument)}, 1) is that of the latter"
                self.fault(f"{self.shown(e)} is not of the event right before {define.variable}", e.span, why, hint)

    def shown(self, e: Expression) -> str:
        """Returns an expression as messages show it: as written in SASE+, whose text is not SQL."""
        return " ".join(self.text[e.span.start : e.span.end].split()) if self.match.sase else show(e)

    def groups(self, item: Callable[[ast.ExpressionText], Column | None], partition: Sequence[Column]
               ) -> tuple[Column, ...]:  # fmt: skip
        """Returns the columns of GROUP BY. item: binds one."""
        found: list[Column] = []
        for text in self.syntax.group_by:
            column = item(text)
            if column is None:
                continue
            if column.name not in (p.name for p in partition):
                self.fault(f"GROUP BY {column.name} needs PARTITION BY {column.name}", text.span,
                           "events of a trend may differ in it", f"add {column.name} to PARTITION BY")
            elif base_type(column.type) in ("STRUCT", "MAP", "INTERVAL") or column.type.endswith("]"):
                self.fault(f"GROUP BY {column.name}, which is {column.type}", text.span, "not supported yet",
                           "compute a text or a number of it in the input")
            elif column.name in (f.name for f in found):
                self.fault(f"grouped by {column.name} twice", text.span, "the second time")
            else:
                found.append(column)
        return tuple(found)

    def measures(self, scope: Scope, groups: Sequence[Column]) -> list[Measure]:
        found: list[Measure] = []
        for measure in self.match.measures:
            expression = self.over(measure.expression, scope, groups)
            if expression is not None:
                found.append(Measure(measure.name.written, expression))
        if not self.match.measures and self.match.sase is None:
            self.fault("ONE ROW PER WINDOW needs MEASURES", self.syntax.span, "nothing to compute",
                       "write MEASURES COUNT(MATCHES) AS trends")
        return found

    def having(self, scope: Scope, groups: Sequence[Column]) -> Expression | None:
        if self.syntax.having is None:
            return None
        condition = self.over(self.syntax.having, scope, groups)
        if condition is not None and condition.type != "BOOLEAN":
            self.fault(f"the condition of HAVING is {condition.type}, not BOOLEAN", self.syntax.having.span,
                       condition.type, "compare it with something")
        return condition

    def over(self, text: ast.ExpressionText, scope: Scope, groups: Sequence[Column]) -> Expression | None:
        """Returns an expression over aggregates and groups."""

        def fields() -> tuple[Field, ...]:
            seen = [Field(a.name, a.type) for a in self.aggregates]
            return (*(Field(c.name, c.type) for c in groups), *seen)

        expression = bind_over_trends(text, scope, self.faults, self.column, fields)
        if expression is not None:
            self.compared(expression)
        return expression

    def compared(self, expression: Expression) -> None:
        """Checks that no sums of DECIMALs are compared: they are texts, and '9.5' comes after '12.5'."""
        texts = {a.name: a.argument for a in self.aggregates if a.over is Over.SUM and a.type == "VARCHAR"}
        for e in walk(expression):
            if isinstance(e, Call) and e.function in _COMPARISONS:
                sums = [a for a in e.arguments if isinstance(a, Column) and a.name in texts]
                for a in sums[:1]:
                    summed = texts[a.name]
                    assert summed is not None
                    scale = summed.type.rstrip(")").split(",")[-1].strip()
                    self.fault(f"{a.name} is the text of its digits", e.span, "compares texts",
                               f"compare numbers: {a.name}::DECIMAL(38,{scale}), or ::DOUBLE")

    def column(self, e: Aggregate) -> Column | None:
        """Returns the column that holds an aggregate, None after adding a fault."""
        over = _OVER.get(e.function)
        if over is None or not e.plain or e.final:
            more = "" if over is None else " with DISTINCT, FILTER, ORDER BY or FINAL"
            self.fault(f"{e.function}{more} over all trends is not defined", e.span, "would need the trends themselves",
                       f"available: COUNT({'*' if self.match.sase else 'MATCHES'}), COUNT, SUM, AVG, MIN, MAX")
            return None
        argument = e.argument
        if argument == MATCHES:
            over, argument, kind = Over.MATCHES, None, BIGNUM
        elif argument is None:
            over, kind = Over.EVENTS, BIGNUM
        else:
            found = result_type(over, argument.type)
            if found is None:
                type = argument.type
                self.fault(f"{e.function} of {type}", e.span, "not a number" if type != NULL_TYPE else "a null")
                return None
            kind = found
        aggregate = TrendAggregate(over, argument, e.variables, kind)
        self.aggregates.setdefault(aggregate)
        return Column(aggregate.name, kind, e.span)

    def names(self, groups: Sequence[Column]) -> None:
        """Checks that the output has no two columns of one name."""
        taken = {f.name: "the bound of a window" for f in WINDOW_COLUMNS}
        for c in groups:
            if c.name.lower() in taken:
                self.faults.append(Diagnostic("HQ206", f"the output has two columns {c.name}", c.span,
                                              f"also {taken[c.name.lower()]}", "rename that column in the input"))
            taken.setdefault(c.name.lower(), "a column of GROUP BY")
        for measure in self.match.measures:
            name = measure.name.written.lower()
            if name in taken:
                self.faults.append(Diagnostic("HQ206", f"the output has two columns {measure.name.written}",
                                              measure.name.span, f"also {taken[name]}", "give it another name"))
            taken.setdefault(name, "a measure")

    def trends(self, windows: tuple[int, int], groups: tuple[Column, ...], having: Expression | None) -> Trends:
        return Trends(*windows, groups, tuple(self.aggregates), having)


def trend_scope(scope: Scope) -> Scope:
    """Returns the scope of measures over trends: columns need no variable there, they are groups."""
    return replace(scope, candidate=None, qualified=False, trends=True)

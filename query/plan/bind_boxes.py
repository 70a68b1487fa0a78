"""`variable AS PATTERN name` to a Box, and what a pattern with boxes may have beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from query.errors import Diagnostic, Span
from query.language import ast
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan import pattern as rp
from query.plan.boxes import keys_of_events
from query.plan.expression import Call, Column, Expression, MatchNumber, Navigation, conjuncts, walk
from query.plan.output import output_columns
from query.plan.pattern import RowPattern, anchors, excludes, gaps, min_rows, variables
from query.plan.plan import Box, Order, Plan, modules
from query.plan.typed import TIME_TYPES
from query.schema import Schema


class BoxBinder:
    """Binds the boxes of one MATCH_RECOGNIZE. modules: see MatchBinder. Adds to `faults`."""

    def __init__(
        self, match: ast.MatchRecognize, modules: Mapping[str, Box], faults: list[Diagnostic]
    ) -> None:
        self.match = match
        self.modules = modules
        self.faults = faults

    def fault(self, code: str, message: str, span: Span, label: str = "", hint: str = "") -> None:
        self.faults.append(Diagnostic(code, message, span, label, hint))

    def boxes(
        self, schema: Schema, partition: Sequence[Column], order: Sequence[Order], pattern: RowPattern
    ) -> tuple[Box, ...]:
        """Returns the boxes, none if one has a fault."""
        before = len(self.faults)
        found: list[Box] = []
        for define in self.match.defines:
            if define.box is None:
                continue
            name = define.box.written.lower()
            module = self.modules[name]
            self.keys(module, partition, define.box.span)
            found.append(replace(module, variable=define.variable.name))
        first = next(d.box.span for d in self.match.defines if d.box is not None)
        columns = [(schema.name or "the input", schema.names)]
        columns += [(box.name, tuple(c.name for c in output_columns(box.plan))) for box in modules(tuple(found))]
        for owner, names in columns:
            if hidden := [name for name in names if name.startswith("#")]:
                message = f"{owner} has a column {hidden[0]}: under a pattern with boxes no name may begin with #"
                self.fault("HQ500", message, first, hint="give it another name: AS name")
        self.clauses(order, pattern, first)
        return () if len(self.faults) > before else tuple(found)

    def keys(self, module: Box, partition: Sequence[Column], span: Span) -> None:
        """Checks that matches have the columns by which the pattern is partitioned."""
        types = {c.name: c.type for c in output_columns(module.plan)}
        shown = {name.lower(): types[column] for name, column in module.columns}
        between = self.match.selection is not None and self.match.selection.selection is Selection.PARTITION
        for column in partition:
            found = shown.get(column.name.lower())
            if found is None:
                self.fault("HQ222", f"matches of {module.name} have no column {column.name}, by which this pattern is "
                           "partitioned", span, "of which partition?",
                           f"add it to PARTITION BY or MEASURES of {module.name}")
            elif between and column.name.lower() not in self._of_events(module):
                self.fault("HQ222", f"events of a match of {module.name} may have several values of {column.name}, by "
                           "which this pattern is partitioned", span, "events of which partition may not lie between?",
                           f"write PARTITION BY {column.name} in {module.name}, or SELECTION SKIP TILL NEXT MATCH here")
            elif found != column.type:
                self.fault("HQ222", f"{column.name} of {module.name} is {found}, here it is {column.type}", span,
                           "another type", f"cast it in MEASURES of {module.name}")

    def _of_events(self, module: Box) -> set[str]:
        """Returns the columns in whose values all events of a match are equal, in lower case."""
        shown = {column.lower(): name.lower() for column, name in module.columns}
        return {name.lower() for name in keys_of_events(module.plan) if shown.get(name.lower()) == name.lower()}

    def clauses(self, order: Sequence[Order], pattern: RowPattern, span: Span) -> None:
        """Checks the clauses that boxes require, or do not go with."""
        match = self.match
        if match.selection is None:
            self.fault("HQ222", "a pattern with boxes needs SELECTION", span, "which events may lie between?",
                       "write SELECTION SKIP TILL NEXT MATCH, SKIP TILL ANY MATCH, PARTITION or STRICT after PATTERN")
        if match.rows is RowsPerMatch.ALL_WITH_UNMATCHED:
            self.fault("HQ500", f"{match.rows.value} of a pattern with boxes is not supported yet", match.span,
                       "of events, or of matches?", "write ALL ROWS PER MATCH")
        elif match.rows not in (None, RowsPerMatch.ONE) and excludes(pattern):
            self.fault("HQ500", "{- -} in ALL ROWS PER MATCH of a pattern with boxes is not supported yet",
                       match.pattern.span, hint="name CLASSIFIER() in MEASURES, and filter in SELECT")
        if match.timeout is not None:
            self.fault("HQ500", "TIMEOUT ROWS of a pattern with boxes is not supported yet", match.timeout,
                       "which of the events and matches ran out of time?",
                       "find what did not come by a negation at the end: PATTERN (V ~B)")
        if match.within is not None and match.within.rows is not None:
            self.fault("HQ500", "WITHIN a number of rows of a pattern with boxes is not supported yet",
                       match.within.span, "of events, or of matches?", "write WITHIN INTERVAL '...'")
        if anchors(pattern):
            self.fault("HQ500", "^ and $ in a pattern with boxes are not supported yet", match.pattern.span,
                       "at the edge of events, or of matches?",
                       "write them in the pattern of a box, whose rows are events; or PREV(ts) IS NULL for ^")
        for name, gap in gaps(pattern):
            if both := sorted(set(variables(gap[0])) & set(variables(gap[1]))):
                self.fault("HQ500", f"~{name} between two places of {both[0]} in a pattern with boxes is not supported "
                           "yet", match.pattern.span, "which of them is before it?",
                           f"give one {both[0]} another name")
        if not min_rows(pattern):
            self.fault("HQ500", "a pattern with boxes that may match nothing is not supported yet", match.pattern.span,
                       hint="let it match a row at least: A+ for A*")
        timed = order and order[0].column.type in TIME_TYPES and not order[0].descending
        if not timed and not (match.order_by and not order):
            self.fault("HQ222", "a pattern with boxes needs ORDER BY a time, ascending", match.span,
                       "matches are intervals of time", "write ORDER BY the time of its rows")


def module_faults(plan: Plan, name: str, span: Span) -> Iterator[Diagnostic]:
    """Yields why the matches of a pattern cannot be boxes. span: of what defines it."""
    if plan.trends is not None:
        yield Diagnostic("HQ500", "ONE ROW PER WINDOW as a box is not supported yet", span, "windows, no matches",
                         f"write ONE ROW PER MATCH in {name}, and aggregate in MEASURES around its matches")
    elif plan.rows is not RowsPerMatch.ONE:
        yield Diagnostic("HQ500", f"{plan.rows.value} as a box is not supported yet", span,
                         f"a match of {name} is one event", "write ONE ROW PER MATCH")
    elif plan.timeout_rows:
        yield Diagnostic("HQ500", "TIMEOUT ROWS as a box is not supported yet", span, "these are no matches",
                         f"leave them out of {name}, and find what did not come by a negation at the end")
    if not plan.order_by or plan.order_by[0].column.type not in TIME_TYPES or plan.order_by[0].descending:
        yield Diagnostic("HQ222", f"{name} needs ORDER BY a time, ascending", span, "matches are intervals of time",
                         "write ORDER BY the time of its rows")


def numbers(plan: Plan) -> Iterator[Diagnostic]:
    """Yields the MATCH_NUMBER() of a pattern with boxes that engines cannot give: they number matches at last."""
    for define in plan.defines:
        for e in walk(define.condition):
            if isinstance(e, MatchNumber):
                message = "MATCH_NUMBER() in DEFINE of a pattern with boxes is not supported yet"
                yield Diagnostic("HQ500", message, e.span, "matches are numbered last",
                                 "make it a measure, and filter in SELECT")
    for measure in plan.measures if plan.after.kind is not AfterMatchKind.NO_SKIP else ():
        for e in walk(measure.expression):
            if isinstance(e, MatchNumber) and e is not measure.expression:
                yield Diagnostic("HQ500", "MATCH_NUMBER() inside an expression is not supported yet where a pattern "
                                 f"with boxes has AFTER MATCH {plan.after.kind.value}", e.span, "",
                                 "make it a measure of its own, and compute with that in SELECT")


def never_true(plan: Plan) -> Iterator[tuple[Span, str, str]]:
    """Yields the comparisons of times in DEFINE by which what is later in the pattern would begin or end before
    something earlier, each with the two variables, the earlier one first."""
    order = _follows(plan.pattern) if plan.boxes else set()
    for define in plan.defines if order else ():
        for part in conjuncts(define.condition):
            if not isinstance(part, Call) or part.function not in ("<", ">") or len(part.arguments) != 2:
                continue
            left, right = (_time_of(plan, side, define.variable) for side in part.arguments)
            less, more = (left, right) if part.function == "<" else (right, left)
            if less is not None and more is not None and (more, less) in order:
                yield part.span, more, less


def _time_of(plan: Plan, side: Expression, variable: str) -> str | None:
    """Returns the variable of whose event or match an expression is a time, None for others. variable: of the row."""
    if isinstance(side, Navigation) and not side.physical_offset and len(side.variables) == 1:
        (variable,), side = side.variables, side.argument
    is_box = any(box.variable == variable for box in plan.boxes)
    times = ("#t0", "#t1") if is_box else ("#t0", "#t1", plan.order_by[0].column.name)
    return variable if isinstance(side, Column) and side.name in times else None


def _follows(pattern: RowPattern) -> set[tuple[str, str]]:
    """Returns the pairs of variables whose rows are always in this order."""
    found = rp.may_precede(pattern)
    return {(a, b) for a, b in found if a != b and (b, a) not in found}


def physical_steps(expression: Expression) -> Iterator[Diagnostic]:
    """Yields NEXT, for which rows would wait."""
    for e in walk(expression):
        if isinstance(e, Navigation) and e.physical_offset > 0:
            yield Diagnostic("HQ500", "NEXT in a pattern with boxes is not supported yet", e.span,
                             "the next row may be a match that is not yet known",
                             "add a variable that takes it, or read PREV from there")

"""MATCH_RECOGNIZE ( ... ) to a Plan over one input: clauses resolved, patterns simplified, defaults filled in."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import assert_never

from query.errors import Diagnostic, Span, nearest
from query.language import ast, duck
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.language.duck import DuckFault
from query.plan import pattern as rp
from query.plan.bind_expression import Scope, bind_expression, syntax_diagnostic
from query.plan.expression import TRUE, Column, Constant, Expression
from query.plan.plan import AfterMatch, Define, Measure, Order, Plan, Within
from query.schema import Schema

TIME_TYPES = ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "DATE", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS")
SKIP_TILL = (Selection.SKIP_TILL_NEXT, Selection.SKIP_TILL_ANY)


class MatchBinder:
    """Binds the clauses of one MATCH_RECOGNIZE. text: of the whole query. live: over an unbounded stream. volatile:
    whether now(), random() and their like may stand in it. Adds to `faults` and `warnings`."""

    def __init__(
        self, text: str, live: bool, volatile: bool, faults: list[Diagnostic], warnings: list[str]
    ) -> None:
        self.text = text
        self.live = live
        self.volatile = volatile
        self.faults = faults
        self.warnings = warnings

    def fault(self, code: str, message: str, span: Span, label: str = "", hint: str = "") -> None:
        self.faults.append(Diagnostic(code, message, span, label, hint))

    def match(self, match: ast.MatchRecognize, schema: Schema) -> Plan:
        partition = [c for text in match.partition_by if (c := self.item(text, schema, "PARTITION BY")) is not None]
        order = self.order(match, schema)
        pattern = simplified(self.pattern(match.pattern))
        selection = match.selection.selection if match.selection else Selection.PARTITION
        primary, negated = rp.variables(pattern), rp.negated(pattern)
        subsets = self.subsets(match, primary, negated)
        rows = match.rows or RowsPerMatch.ONE
        if rows is RowsPerMatch.ALL_WITH_UNMATCHED:
            words = re.search(r"WITH\s+UNMATCHED\s+ROWS", self.text[match.span.start : match.span.end], re.I)
            start = match.span.start
            span = Span(start + words.start(), start + words.end()) if words else match.span
            self.fault("HQ500", "WITH UNMATCHED ROWS is not supported yet", span,
                       hint="ALL ROWS PER MATCH shows the rows of the matches")
        after = self.after(match, selection, (*primary, *subsets))
        within = self.within(match, schema, order)
        self.negations(match, pattern, within, selection)
        scope = Scope(schema, primary, negated, subsets, None, rows is RowsPerMatch.ONE, self.volatile)
        defines = self.defines(match, pattern, scope)
        measures = self.measures(match, scope)
        self.output_names(match, partition, rows, schema)
        return Plan(
            schema, tuple(partition), tuple(order), tuple(measures), rows, after, pattern, within, selection,
            tuple(subsets.items()), tuple(defines),
        )  # fmt: skip

    def item(self, text: ast.ExpressionText, schema: Schema, clause: str) -> Column | None:
        """A column of PARTITION BY or ORDER BY."""
        try:
            node = duck.parse_expression(text.text)
        except DuckFault as fault:
            self.faults.append(syntax_diagnostic(fault, text.span))
            return None
        if node["class"] != "COLUMN_REF" or len(node["column_names"]) > 1:
            self.fault("HQ500", f"{clause} an expression is not supported yet", text.span, "not a column",
                       "compute it in the input: FROM (SELECT *, ... AS key FROM ...)")
            return None
        name = node["column_names"][0]
        found = schema.field(name)
        if found is None:
            self.fault("HQ201", f"{schema.name} has no column {name}", text.span, "no such column",
                       nearest(name, schema.names))
            return None
        return Column(found.name, found.type, text.span)

    def order(self, match: ast.MatchRecognize, schema: Schema) -> list[Order]:
        items: list[Order] = []
        complete = True
        for item in match.order_by:
            column = self.item(item.expression, schema, "ORDER BY")
            if column is None:
                complete = False
            else:
                items.append(Order(column, item.descending, bool(item.nulls_first)))
        time = schema.field(schema.time) if schema.time else None
        if time is None or not complete:
            return items
        if not match.order_by:
            return [Order(Column(time.name, time.type))]
        first = items[0]
        if first.column.name != time.name or first.descending:
            self.fault("HQ212", f"{schema.name} is ordered by its time {time.name}", match.order_by[0].span,
                       "not its time", f"write ORDER BY {time.name}")
        elif self.live:
            own = (time.name, *schema.order)
            for i, order in enumerate(items[1:], 1):
                if i >= len(own) or order.column.name.lower() != own[i].lower() or order.descending:
                    self.fault("HQ212", f"a live query is ordered by the stream's own order, {', '.join(own)}",
                               match.order_by[i].span, "not a tie column in its place",
                               f"write ORDER BY {', '.join(own)}")
                    break
        return items

    # ---- PATTERN

    def pattern(self, syntax: ast.PatternSyntax) -> rp.RowPattern:
        match syntax:
            case ast.PatternVariable(name):
                return rp.Variable(name.name)
            case ast.PatternSequence(parts):
                return rp.Sequence(tuple(map(self.pattern, parts)))
            case ast.PatternAlternation(choices):
                return rp.Alternation(tuple(self.in_group(c, "an alternation") for c in choices))
            case ast.PatternQuantified(body, at_least, at_most, greedy):
                if at_most is not None and (at_most < 1 or at_most < at_least):
                    self.fault("HQ104", "this quantifier can never be met", syntax.span)
                return rp.Repeat(self.in_group(body, "a quantified group"), at_least, at_most, greedy)
            case ast.PatternNegation(name):
                return rp.Negation(name.name)
            case ast.PatternEmpty():
                return rp.Empty()
            case ast.PatternAnchor(at_start):
                self.fault("HQ500", f"the anchor {'^' if at_start else '$'} is not supported yet", syntax.span)
            case ast.PatternPermute():
                self.fault("HQ500", "PERMUTE is not supported yet", syntax.span, hint="write the orders out: A B | B A")
            case ast.PatternExclusion():
                self.fault("HQ500", "the exclusion {- -} is not supported yet", syntax.span)
            case _:
                assert_never(syntax)
        # an unsupported construct still names its variables, so that they are not reported as missing
        names = _pattern_names(syntax)
        return rp.Sequence(tuple(rp.Variable(n) for n in names))

    def in_group(self, syntax: ast.PatternSyntax, group: str) -> rp.RowPattern:
        for negation in _negations(syntax):
            if any(f.span == negation.span for f in self.faults):
                continue  # said of the outer group
            self.fault("HQ500", f"a negation inside {group} is not supported yet", negation.span,
                       hint="negations stand between, before or behind the elements of the whole pattern")
        return self.pattern(syntax)

    def negations(
        self, match: ast.MatchRecognize, pattern: rp.RowPattern, within: Within | None, selection: Selection
    ) -> None:
        parts = pattern.parts if isinstance(pattern, rp.Sequence) else (pattern,)
        spans = {n.name.name: n.span for n in _negations(match.pattern)}
        if spans and not rp.variables(pattern):
            self.fault("HQ101", "a pattern of negations only matches nothing", match.pattern.span,
                       hint="a negation stands beside the elements it forbids events between")
            return
        for i, part in enumerate(parts):
            if not isinstance(part, rp.Negation):
                continue
            before = sum(map(rp.min_rows, parts[:i]))
            behind = sum(map(rp.min_rows, parts[i + 1 :]))
            if before and behind:
                if selection not in SKIP_TILL:
                    self.warnings.append(
                        f"~{part.name} between two elements has no effect under SELECTION {selection.value}: "
                        "no row may lie between them anyway"
                    )
            elif match.within is None or match.within.interval_us is None:
                place = "at the start" if not before else "at the end"
                self.fault("HQ214", f"a negation {place} needs WITHIN", spans[part.name], "how long is it forbidden?",
                           "add WITHIN INTERVAL '...' behind PATTERN")

    def subsets(
        self, match: ast.MatchRecognize, primary: tuple[str, ...], negated: tuple[str, ...]
    ) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        names = {s.name.name for s in match.subsets} - {*primary, *negated}
        for subset in match.subsets:
            name = subset.name.name
            if name in primary or name in negated:
                self.fault("HQ216", f"the subset {name} is named like a variable of PATTERN", subset.name.span)
                continue
            if name in found:
                self.fault("HQ216", f"the subset {name} is defined twice", subset.name.span)
                continue
            members: list[str] = []
            for member in subset.members:
                if member.name in names:
                    self.fault("HQ216", f"{member.written} is a subset itself", member.span,
                               hint="list the variables of PATTERN it stands for")
                elif member.name not in primary:
                    self.fault("HQ202", f"{member.written} is not a row pattern variable", member.span,
                               "not in PATTERN", nearest(member.name, primary))
                elif member.name not in members:
                    members.append(member.name)
            found[name] = tuple(members)
        return found

    def after(self, match: ast.MatchRecognize, selection: Selection, known: tuple[str, ...]) -> AfterMatch:
        if match.after is None:
            return AfterMatch(AfterMatchKind.NO_SKIP if selection in SKIP_TILL else AfterMatchKind.PAST_LAST_ROW)
        variable = match.after.variable
        if variable is not None:
            if variable.name not in known:
                self.fault("HQ202", f"{variable.written} is not a row pattern variable", variable.span,
                           "not in PATTERN", nearest(variable.name, known))
            else:
                self.fault("HQ500", "AFTER MATCH SKIP TO a variable is not supported yet", match.after.span,
                           hint="there is SKIP PAST LAST ROW, SKIP TO NEXT ROW and NO SKIP")
        return AfterMatch(match.after.kind)

    def within(self, match: ast.MatchRecognize, schema: Schema, order: list[Order]) -> Within | None:
        if match.within is None:
            return None
        within = Within(match.within.interval_us, match.within.rows)
        timed = order and order[0].column.type in TIME_TYPES and not order[0].descending
        failed = len(order) < len(match.order_by)
        if within.interval_us is not None and not timed and not failed:
            times = [f.name for f in schema.fields if f.type in TIME_TYPES]
            hint = f"write ORDER BY {times[0]}" if times else "there is no column of time; WITHIN n ROWS needs none"
            self.fault("HQ211", "WITHIN an interval needs ORDER BY a time, ascending", match.within.span, hint=hint)
        return within

    # ---- DEFINE and MEASURES

    def defines(self, match: ast.MatchRecognize, pattern: rp.RowPattern, scope: Scope) -> list[Define]:
        names = _in_order(pattern)
        conditions: dict[str, Expression] = {}
        seen: set[str] = set()
        for define in match.defines:
            name = define.variable.name
            if name in seen:
                self.fault("HQ203", f"{define.variable.written} is defined twice", define.variable.span,
                           "the second time", "join the conditions by AND")
                continue
            seen.add(name)
            if name in scope.subsets:
                self.fault("HQ204", f"DEFINE names the subset {define.variable.written}", define.variable.span,
                           "not a primary variable", f"define its members: {', '.join(scope.subsets[name])}")
                continue
            if name not in names:
                close = nearest(name, names)
                hint = f"PATTERN has {', '.join(names)}" + (f"; {close}" if close.startswith("did") else "")
                self.fault("HQ204", "DEFINE names a variable that is not in PATTERN", define.variable.span,
                           "not a primary variable", hint)
            condition = bind_expression(define.condition, replace(scope, candidate=name), self.faults)
            if condition is None:
                continue
            if condition.type == duck.NULL_TYPE:
                condition = Constant(None, "BOOLEAN", condition.span)
            if condition.type != "BOOLEAN":
                self.fault("HQ205", f"the condition of {define.variable.written} is {condition.type}, not BOOLEAN",
                           define.condition.span, condition.type, "compare it with something")
                continue
            conditions[name] = condition
        return [Define(name, conditions.get(name, TRUE)) for name in names]

    def measures(self, match: ast.MatchRecognize, scope: Scope) -> list[Measure]:
        found: list[Measure] = []
        for measure in match.measures:
            expression = bind_expression(measure.expression, scope, self.faults)
            if expression is None:
                continue
            if isinstance(expression, Constant) and expression.type == duck.NULL_TYPE:
                # DuckDB makes a column of bare nulls an INTEGER
                expression = replace(expression, type="INTEGER")
            found.append(Measure(measure.name.written, expression))
        return found

    def output_names(
        self, match: ast.MatchRecognize, partition: list[Column], rows: RowsPerMatch, schema: Schema
    ) -> None:
        if rows is RowsPerMatch.ONE:
            taken = {c.name.lower(): "a partition column" for c in partition}
        else:
            taken = {n.lower(): "a column of the input" for n in schema.names}
        for measure in match.measures:
            name = measure.name.written.lower()
            if not name:
                self.fault("HQ101", "a measure needs a name", measure.name.span, hint="write AS and a name")
            elif name in taken:
                self.fault("HQ206", f"the output has two columns {measure.name.written}", measure.name.span,
                           f"also {taken[name]}", "give the measure another name")
            taken.setdefault(name, "a measure")
        columns: set[str] = set()
        for column in partition:
            if column.name in columns:
                self.fault("HQ206", f"the output has two columns {column.name}", column.span, "partitioned by twice")
            columns.add(column.name)


# ---- patterns ------------------------------------------------------------------------------------------------------


def simplified(pattern: rp.RowPattern) -> rp.RowPattern:
    """The same pattern without groups that change nothing: nested sequences and alternations joined, {1} dropped."""
    match pattern:
        case rp.Sequence(parts):
            flat: list[rp.RowPattern] = []
            for part in map(simplified, parts):
                flat += part.parts if isinstance(part, rp.Sequence) else [part]
            return flat[0] if len(flat) == 1 else rp.Sequence(tuple(flat)) if flat else rp.Empty()
        case rp.Alternation(choices):
            open: list[rp.RowPattern] = []
            for choice in map(simplified, choices):
                open += choice.choices if isinstance(choice, rp.Alternation) else [choice]
            return open[0] if len(open) == 1 else rp.Alternation(tuple(open))
        case rp.Repeat(body, at_least, at_most, greedy):
            inner = simplified(body)
            return inner if (at_least, at_most) == (1, 1) else rp.Repeat(inner, at_least, at_most, greedy)
        case rp.Exclusion(body):
            return rp.Exclusion(simplified(body))
        case rp.Variable() | rp.Empty() | rp.Negation() | rp.Anchor():
            return pattern
        case _:
            assert_never(pattern)


def _in_order(pattern: rp.RowPattern) -> tuple[str, ...]:
    """All variables, negated ones too, in order of first appearance."""
    match pattern:
        case rp.Variable(name) | rp.Negation(name):
            return (name,)
        case rp.Sequence(parts) | rp.Alternation(parts):
            return tuple(dict.fromkeys(n for p in parts for n in _in_order(p)))
        case rp.Repeat(body) | rp.Exclusion(body):
            return _in_order(body)
        case rp.Empty() | rp.Anchor():
            return ()
        case _:
            assert_never(pattern)


def _negations(syntax: ast.PatternSyntax) -> list[ast.PatternNegation]:
    match syntax:
        case ast.PatternNegation():
            return [syntax]
        case ast.PatternSequence(parts) | ast.PatternAlternation(parts) | ast.PatternPermute(parts):
            return [n for p in parts for n in _negations(p)]
        case ast.PatternQuantified(body) | ast.PatternExclusion(body):
            return _negations(body)
        case ast.PatternVariable() | ast.PatternEmpty() | ast.PatternAnchor():
            return []
        case _:
            assert_never(syntax)


def _pattern_names(syntax: ast.PatternSyntax) -> list[str]:
    match syntax:
        case ast.PatternVariable(name):
            return [name.name]
        case ast.PatternSequence(parts) | ast.PatternAlternation(parts) | ast.PatternPermute(parts):
            return [n for p in parts for n in _pattern_names(p)]
        case ast.PatternQuantified(body) | ast.PatternExclusion(body):
            return _pattern_names(body)
        case ast.PatternNegation() | ast.PatternEmpty() | ast.PatternAnchor():
            return []
        case _:
            assert_never(syntax)

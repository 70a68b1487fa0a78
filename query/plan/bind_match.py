"""MATCH_RECOGNIZE ( ... ) to a Plan over one input: clauses resolved, patterns simplified, defaults filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from math import factorial
from types import MappingProxyType
from typing import assert_never

from query.errors import Diagnostic, QueryError, Span, nearest
from query.language import ast, duck
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.language.duck import DuckFault
from query.language.pieces import ComposedSql as Pieces
from query.language.pieces import SqlPiece
from query.language.session import NO_SESSION, Session
from query.plan import pattern as rp
from query.plan.any_row import any_row, elements
from query.plan.bind_boxes import BoxBinder, never_true, numbers, physical_steps
from query.plan.bind_expression import Scope, bind_expression, inexact
from query.plan.bind_faults import syntax_diagnostic
from query.plan.bind_trends import TrendBinder, trend_scope
from query.plan.boxes import merged_schema
from query.plan.expression import TRUE, Call, Column, Constant, Expression, quote
from query.plan.output import TIMEOUT_COLUMNS
from query.plan.plan import AfterMatch, Box, Define, Measure, Order, Plan, Within
from query.plan.read_too_early import read_too_early
from query.plan.tree import reads_match
from query.plan.typed import TIME_TYPES
from query.schema import Schema, is_unfaithful

SKIP_TILL = (Selection.SKIP_TILL_NEXT, Selection.SKIP_TILL_ANY)
#: Maximum number of positions (variables, multiplied by the bounds of their quantifiers) in the orders of one PERMUTE.
PERMUTE_MAX = 10_000
#: Maximum number of variables of one pattern.
VARIABLES_MAX = 1_000


class MatchBinder:
    """Binds the clauses of one MATCH_RECOGNIZE. text: of the whole query. live: over an unbounded stream. volatile:
    True if now(), random() and the like are allowed. session: the connection that runs the statement. modules: the
    patterns that boxes name, by name in lower case, each as a box without a variable. Adds to `faults` and
    `warnings`."""

    def __init__(
        self, text: str, live: bool, volatile: bool, faults: list[Diagnostic], warnings: list[Diagnostic],
        session: Session = NO_SESSION, modules: Mapping[str, Box] = MappingProxyType({}),
    ) -> None:
        self.text = text
        self.live = live
        self.volatile = volatile
        self.faults = faults
        self.warnings = warnings
        self.session = session
        self.modules = modules
        self.grouped_negations = False

    def fault(self, code: str, message: str, span: Span, label: str = "", hint: str = "") -> None:
        self.faults.append(Diagnostic(code, message, span, label, hint))

    def check_count(self, pattern: rp.RowPattern, at: ast.MatchRecognize) -> None:
        """Raises HQ600 for more variables than VARIABLES_MAX: what is to be known of each pair takes minutes."""
        if (count := len(rp.variables(pattern))) > VARIABLES_MAX:
            message = f"the pattern has {count:,} variables, the maximum is {VARIABLES_MAX:,}"
            hint = "give rows that meet one condition one variable: a condition may have OR, and a list after IN"
            raise QueryError([Diagnostic("HQ600", message, Span(at.span.start, at.span.start), hint=hint)], self.text)

    def match(self, match: ast.MatchRecognize, schema: Schema) -> Plan:
        if match.sase is not None:
            match = self.by_time(match, match.sase, schema)
        if match.trends is not None:
            return self.trends(match, match.trends, schema)
        partition = [c for text in match.partition_by if (c := self.item(text, schema, "PARTITION BY")) is not None]
        order = self.order(match, schema)
        pattern = simplified(self.pattern(match.pattern))
        self.check_count(pattern, match)
        selection = match.selection.selection if match.selection else Selection.PARTITION
        primary, negated = rp.variables(pattern), rp.negated(pattern)
        subsets = self.subsets(match, primary, negated)
        rows = match.rows or RowsPerMatch.ONE
        after = self.after(match, selection, primary, negated, subsets)
        within = self.within(match, schema, order)
        self.unmatched(match, selection, after, pattern)
        self.timeouts(match, selection, after)
        self.negations(match, pattern, within, selection)
        one_row = rows is RowsPerMatch.ONE
        qualified = match.sase is not None
        scope = Scope(schema, primary, negated, subsets, None, one_row, self.volatile, qualified, self.session)
        boxes: tuple[Box, ...] = ()
        if any(d.box is not None for d in match.defines):
            boxes = BoxBinder(match, self.modules, self.faults).boxes(schema, partition, order, pattern)
        if boxes:
            merged = merged_schema(schema, boxes, order[0].column)
            scope = replace(scope, schema=merged, boxes=boxes, own=schema)
        defines: list[Define] = []
        measures: list[Measure] = []
        if boxes or not any(d.box is not None for d in match.defines):  # else names of boxes mean nothing
            defines = self.defines(match, pattern, scope)
            measures = self.measures(match, replace(scope, qualified=match.sase is not None and match.sase.returned))
        self.output_names(match, partition, rows, schema)
        self.hint_at_measures(match, schema)
        for expression in (*(d.condition for d in defines), *(m.expression for m in measures)) if boxes else ():
            self.faults += physical_steps(expression)
        plan = Plan(
            schema, tuple(partition), tuple(order), tuple(measures), rows, after, pattern, within, selection,
            tuple(subsets.items()), tuple(defines), match.timeout is not None,
            settings=self.session.settings, boxes=boxes,
        )  # fmt: skip
        self.faults += numbers(plan) if boxes else ()
        self.warnings += [
            Diagnostic("", f"{self.text[span.start : span.end]} is never true, as {later} follows {earlier}", span,
                       "in a pattern with boxes each begins after the one before has ended",
                       "matches that overlap are found among rows: FROM a pattern")
            for span, earlier, later in never_true(plan)
        ]
        self.warnings += read_too_early(pattern, defines)
        self.undefined(match, pattern)
        return plan

    def trends(self, match: ast.MatchRecognize, syntax: ast.TrendSyntax, schema: Schema) -> Plan:
        """Binds ONE ROW PER WINDOW. Without SELECTION the trends are those of SKIP TILL ANY MATCH."""
        for box in (d.box for d in match.defines if d.box is not None):
            self.fault("HQ500", "a box in ONE ROW PER WINDOW is not supported yet", box.span, "a pattern of its own",
                       "aggregate in the SELECT around ONE ROW PER MATCH")
        of = TrendBinder(self.text, match, syntax, self.faults)
        partition = [c for text in match.partition_by if (c := self.item(text, schema, "PARTITION BY")) is not None]
        order = self.order(match, schema)
        self.grouped_negations = True
        pattern = simplified(self.pattern(match.pattern))
        self.check_count(pattern, match)
        self.grouped_negations = False
        selection = match.selection.selection if match.selection else Selection.SKIP_TILL_ANY
        primary, negated = rp.variables(pattern), rp.negated(pattern)
        if negated and not primary:
            self.negations(match, pattern, None, selection)
        of.clauses(pattern)
        windows = of.windows()
        within = self.within(match, schema, order) or Within(windows[0])
        scope = Scope(schema, primary, negated, self.subsets(match, primary, negated), None, True, self.volatile,
                      match.sase is not None, self.session)
        defines = self.defines(match, pattern, scope)
        self.undefined(match, pattern)
        of.reach(pattern, defines)
        groups = of.groups(lambda text: self.item(text, schema, "GROUP BY"), partition)
        measures = of.measures(trend_scope(scope), groups)
        having = of.having(trend_scope(scope), groups)
        of.names(groups)
        return Plan(
            schema, tuple(partition), tuple(order), tuple(measures), RowsPerMatch.WINDOW,
            AfterMatch(AfterMatchKind.NO_SKIP), pattern, within, selection, tuple(scope.subsets.items()),
            tuple(defines), settings=self.session.settings, trends=of.trends(windows, groups, having),
        )  # fmt: skip

    def undefined(self, match: ast.MatchRecognize, pattern: rp.RowPattern) -> None:
        """Warns about variables that take any row. Those of SASE+ have a type of event."""
        if match.sase is None:
            self.warnings += any_row(match.pattern, pattern, {d.variable.name for d in match.defines})

    def by_time(self, match: ast.MatchRecognize, sase: ast.SaseSyntax, schema: Schema) -> ast.MatchRecognize:
        """Returns a SASE+ statement with its order, that of time, and without RETURN with its default measures: the
        match number, the times of its first and last event, and the number of events."""
        times = [f.name for f in schema.fields if f.type in TIME_TYPES] if schema.time is None else [schema.time]
        if len(times) != 1:
            has = f"has several times: {', '.join(times)}" if times else "has no time column"
            columns = f"* EXCLUDE ({', '.join(times[1:])})" if times else "*, make_timestamp(us) AS ts"
            self.fault("HQ211", f"SASE+ is ordered by time, but {schema.name} {has}", sase.span, "in which order?",
                       f"write FROM (SELECT {columns} FROM {schema.name}) AS {schema.name}")
            return match
        time = ast.ExpressionText(quote(times[0]), sase.span)
        order = (ast.OrderItem(time, False, None, sase.span),) if schema.time is None else ()
        if sase.returned:
            return replace(match, order_by=order)
        boxed = any(define.box is not None for define in match.defines)
        begin, end = ("t0", "t1") if boxed and not {"t0", "t1"} & set(map(str.lower, schema.names)) else [time.text] * 2
        shown = {
            "match_number": "MATCH_NUMBER()",
            f"first_{times[0]}": f"FIRST({begin})",
            f"last_{times[0]}": f"LAST({end})",
            "events": "count(*)",
        }
        measures = [
            ast.MeasureSyntax(ast.ExpressionText(sql, sase.span, Pieces((SqlPiece(sql, sase.span, False),))),
                              ast.Identifier(name, name, True, sase.span), sase.span)
            for name, sql in shown.items()
        ]  # fmt: skip
        return replace(match, order_by=order, measures=tuple(measures))

    def item(self, text: ast.ExpressionText, schema: Schema, clause: str) -> Column | None:
        """A column of PARTITION BY or ORDER BY."""
        try:
            node = duck.parse_expression(text.text, self.session.settings)
        except DuckFault as fault:
            self.faults.append(syntax_diagnostic(fault, text))
            return None
        names = node["column_names"] if node["class"] == "COLUMN_REF" else []
        if len(names) == 2 and schema.field(names[0]) is None and schema.field(names[1]) is not None:
            self.fault("HQ500", f"{clause} a qualified name is not supported yet", text.span, "more than a column",
                       f"columns of the input are written without its name: {names[1]}")
            return None
        if len(names) != 1:
            hint = "compute it in the input: FROM (SELECT *, ... AS key FROM ...)"
            if reads_match(str(node.get("function_name", "")).lower()):
                hint = f"rows have no match yet: MEASURES {text.text.strip()} AS n, and ORDER BY n behind the pattern"
            self.fault("HQ500", f"{clause} an expression is not supported yet", text.span, "not a column", hint)
            return None
        name = names[0]
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
                descending = self.session.descends if item.descending is None else item.descending
                default = self.session.nulls_first[descending]
                nulls_first = default if item.nulls_first is None else item.nulls_first
                items.append(Order(column, descending, nulls_first))
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
                return rp.Anchor(at_start)
            case ast.PatternPermute(parts):
                return self.permute(parts, syntax.span)
            case ast.PatternExclusion(body):
                for inner in _exclusions(body):
                    self.fault("HQ101", "an exclusion inside an exclusion", inner.span, "excluded already",
                               "leave the inner {- -} out")
                return rp.Exclusion(self.in_group(body, "an exclusion"))
            case ast.PatternConjunction(sides):
                return rp.Conjunction(tuple(map(self.pattern, sides)))
            case _:
                assert_never(syntax)

    def permute(self, parts: tuple[ast.PatternSyntax, ...], span: Span) -> rp.RowPattern:
        """Returns the alternation of all orders of the parts, that of the list first."""
        bound = [self.in_group(part, "PERMUTE") for part in parts]
        orders = factorial(len(bound))
        positions = orders * max(1, sum(map(_positions, bound)))
        if positions > PERMUTE_MAX:
            self.fault("HQ600", f"this PERMUTE means {orders:,} orders of {len(bound)} elements", span,
                       f"{positions:,} positions, the maximum is {PERMUTE_MAX:,}",
                       "permute fewer elements, or write the orders that can occur as alternatives")
            return rp.Sequence(tuple(bound))  # so that its variables are known
        # equal orders, as of PERMUTE(A, A), are merged
        return rp.Alternation(tuple(dict.fromkeys(rp.Sequence(order) for order in permutations(bound))))

    def in_group(self, syntax: ast.PatternSyntax, group: str) -> rp.RowPattern:
        for negation in () if self.grouped_negations else _negations(syntax):
            if any(f.span == negation.span for f in self.faults):
                continue  # reported for the outer group
            self.fault("HQ500", f"a negation inside {group} is not supported yet", negation.span,
                       hint="negations are allowed between, before and after the elements of the whole pattern")
        return self.pattern(syntax)

    def negations(
        self, match: ast.MatchRecognize, pattern: rp.RowPattern, within: Within | None, selection: Selection
    ) -> None:
        parts = pattern.parts if isinstance(pattern, rp.Sequence) else (pattern,)
        spans = {n.name.name: n.span for n in _negations(match.pattern)}
        if spans and not rp.variables(pattern):
            self.fault("HQ101", "a pattern of negations only matches nothing", match.pattern.span,
                       hint="write the negation beside elements of the pattern")
            return
        for i, part in enumerate(parts):
            if not isinstance(part, rp.Negation):
                continue
            before = sum(map(rp.min_rows, parts[:i]))
            behind = sum(map(rp.min_rows, parts[i + 1 :]))
            if before and behind:
                if selection not in SKIP_TILL:
                    self.warnings.append(Diagnostic(
                        "", f"~{part.name} between two elements has no effect under SELECTION {selection.value}",
                        spans[part.name], "no row is allowed between them anyway",
                        "SELECTION SKIP TILL NEXT MATCH passes over rows between them",
                    ))  # fmt: skip
            elif match.within is None or match.within.interval_us is None:
                place = "at the start" if not before else "at the end"
                message, label = f"a negation {place} needs WITHIN", "for how long?"
                hint = "add WITHIN 1 hour after }" if match.sase else "add WITHIN INTERVAL '...' after PATTERN"
                if match.within is not None:
                    message = f"a negation {place} needs WITHIN an interval, not a number of rows"
                    label = "an absence lasts for a time: rows may stop coming, and time does not"
                    hint = "write WITHIN INTERVAL '...', the time in which no such row may be"
                self.fault("HQ214", message, spans[part.name], label, hint)

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
                               hint="list variables of PATTERN instead")
                elif member.name not in primary:
                    self.fault("HQ202", f"{member.written} is not a row pattern variable", member.span,
                               "not in PATTERN", nearest(member.name, primary))
                elif member.name not in members:
                    members.append(member.name)
            found[name] = tuple(members)
        return found

    def after(
        self, match: ast.MatchRecognize, selection: Selection, primary: tuple[str, ...], negated: tuple[str, ...],
        subsets: dict[str, tuple[str, ...]],
    ) -> AfterMatch:
        if match.after is None:
            return AfterMatch(AfterMatchKind.NO_SKIP if selection in SKIP_TILL else AfterMatchKind.PAST_LAST_ROW)
        variable = match.after.variable
        if variable is None:
            return AfterMatch(match.after.kind)
        if variable.name not in subsets and variable.name not in primary:
            if variable.name in negated:
                self.fault("HQ202", f"{variable.written} is negated: no row of a match is {variable.written}",
                           variable.span, hint=f"available: {', '.join((*primary, *subsets))}")
            else:
                self.fault("HQ202", f"{variable.written} is not a row pattern variable", variable.span,
                           "not in PATTERN", nearest(variable.name, (*primary, *subsets)))
        if selection in SKIP_TILL:
            self.fault("HQ215", f"{match.after.kind.value} {variable.written} cannot be combined with SELECTION "
                       f"{selection.value}", match.after.span, "rows between the matched ones are skipped",
                       "available: NO SKIP, SKIP TO NEXT ROW, SKIP PAST LAST ROW")
        return AfterMatch(match.after.kind, subsets.get(variable.name, (variable.name,)))

    def unmatched(
        self, match: ast.MatchRecognize, selection: Selection, after: AfterMatch, pattern: rp.RowPattern
    ) -> None:
        """Checks WITH UNMATCHED ROWS: it requires matches in order of their starts, and all rows shown."""
        if match.rows is not RowsPerMatch.ALL_WITH_UNMATCHED:
            return
        words = re.search(r"WITH\s+UNMATCHED\s+ROWS", self.text[match.span.start : match.span.end], re.I)
        start = match.span.start
        span = Span(start + words.start(), start + words.end()) if words else match.span
        if selection in SKIP_TILL or after.kind is AfterMatchKind.NO_SKIP:
            other = f"SELECTION {selection.value}" if selection in SKIP_TILL else "AFTER MATCH NO SKIP"
            self.fault("HQ215", f"WITH UNMATCHED ROWS cannot be combined with {other}", span,
                       "matches may overlap",
                       "use SHOW EMPTY MATCHES or OMIT EMPTY MATCHES")
        if rp.excludes(pattern):
            self.fault("HQ215", "WITH UNMATCHED ROWS cannot be combined with the exclusion {- -}", span,
                       "some rows are left out", "use SHOW EMPTY MATCHES or OMIT EMPTY MATCHES")

    def timeouts(self, match: ast.MatchRecognize, selection: Selection, after: AfterMatch) -> None:
        """Checks TIMEOUT ROWS: it requires that WITHIN ends one preferred partial match for each start."""
        if match.timeout is None:
            return
        if match.within is None:
            self.fault("HQ215", "TIMEOUT ROWS needs WITHIN", match.timeout, "without a time limit",
                       "add WITHIN INTERVAL '...' after PATTERN")
        if selection in SKIP_TILL or after.kind is AfterMatchKind.NO_SKIP:
            other = f"SELECTION {selection.value}" if selection in SKIP_TILL else "AFTER MATCH NO SKIP"
            self.fault("HQ500", f"TIMEOUT ROWS with {other} is not supported yet", match.timeout,
                       hint="it requires SELECTION PARTITION or STRICT, and another AFTER MATCH")

    def within(self, match: ast.MatchRecognize, schema: Schema, order: list[Order]) -> Within | None:
        if match.within is None:
            return None
        within = Within(match.within.interval_us, match.within.rows)
        timed = order and order[0].column.type in TIME_TYPES and not order[0].descending
        failed = len(order) < len(match.order_by)
        if within.interval_us is not None and not timed and not failed:
            times = [f.name for f in schema.fields if f.type in TIME_TYPES]
            hint = f"write ORDER BY {times[0]}" if times else "there is no time column; WITHIN n ROWS needs none"
            if order and order[0].column.type == "VARCHAR" and not times:
                name = order[0].column.name
                cast = f"SELECT * REPLACE (CAST({name} AS TIMESTAMP) AS {name}) FROM {schema.name}"
                hint = f"{name} is text: cast it, FROM ({cast})"
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
                hint = f"PATTERN has {', '.join(names) or 'no variable'}"
                hint += f"; {close}" if close.startswith("did") else ""
                self.fault("HQ204", "DEFINE names a variable that is not in PATTERN", define.variable.span,
                           "not a primary variable", hint)
            if define.condition is None:
                continue
            condition = bind_expression(define.condition, replace(scope, candidate=name), self.faults)
            if condition is None:
                word = define.condition.text.strip()
                if word.isidentifier() and self.faults and self.faults[-1].span == define.condition.span:
                    matches = f"{define.variable.written} AS PATTERN {word} takes matches of a pattern"
                    self.faults[-1] = replace(self.faults[-1], hint=f"{self.faults[-1].hint}; {matches}")
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
            if 'MAP("NULL"' in expression.type:  # Arrow has no keys that are null, and ends the process
                type = expression.type.replace(duck.NULL_TYPE, "INTEGER")
                expression = Call("cast", (expression,), type, expression.span)
            if is_unfaithful(expression.type):
                self.faults.append(inexact(replace(expression, span=measure.expression.span)))
            found.append(Measure(measure.name.written, expression))
        return found

    def output_names(
        self, match: ast.MatchRecognize, partition: list[Column], rows: RowsPerMatch, schema: Schema
    ) -> None:
        if rows is RowsPerMatch.ONE:
            taken = {c.name.lower(): "a partition column" for c in partition}
        else:
            taken = {n.lower(): "a column of the input" for n in schema.names}
        if match.timeout is not None:
            for added in TIMEOUT_COLUMNS:
                if added.name in taken:
                    self.fault("HQ206", f"the output has two columns {added.name}", match.timeout,
                               f"also {taken[added.name]}", "rename that column in the input")
                taken[added.name] = "a column of TIMEOUT ROWS"
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


    def hint_at_measures(self, match: ast.MatchRecognize, schema: Schema) -> None:
        """Changes the hints of faults about columns that have the names of measures."""
        missing = {f"{schema.name} has no column {m.name.written}".lower(): m.name.written for m in match.measures}
        for i, fault in enumerate(self.faults):
            if fault.code == "HQ201" and (name := missing.get(fault.message.lower())):
                hint = f"{name} is a measure, which only the SELECT reads: write its expression here"
                self.faults[i] = replace(fault, hint=hint)


# ---- patterns ------------------------------------------------------------------------------------------------------


def simplified(pattern: rp.RowPattern) -> rp.RowPattern:
    """Returns the same pattern without superfluous groups: nested sequences and alternations joined, {1} dropped."""
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
        case rp.Conjunction(sides):
            return rp.Conjunction(tuple(map(simplified, sides)))
        case rp.Variable() | rp.Empty() | rp.Negation() | rp.Anchor():
            return pattern
        case _:
            assert_never(pattern)


def _in_order(pattern: rp.RowPattern) -> tuple[str, ...]:
    """All variables, negated ones too, in order of first appearance."""
    match pattern:
        case rp.Variable(name) | rp.Negation(name):
            return (name,)
        case rp.Sequence(parts) | rp.Alternation(parts) | rp.Conjunction(parts):
            return tuple(dict.fromkeys(n for p in parts for n in _in_order(p)))
        case rp.Repeat(body) | rp.Exclusion(body):
            return _in_order(body)
        case rp.Empty() | rp.Anchor():
            return ()
        case _:
            assert_never(pattern)


def _negations(syntax: ast.PatternSyntax) -> list[ast.PatternNegation]:
    return [element for element in elements(syntax) if isinstance(element, ast.PatternNegation)]


def _exclusions(syntax: ast.PatternSyntax) -> list[ast.PatternExclusion]:
    """The outermost exclusions in a pattern."""
    match syntax:
        case ast.PatternExclusion():
            return [syntax]
        case ast.PatternSequence(parts) | ast.PatternAlternation(parts) | ast.PatternPermute(parts):
            return [e for p in parts for e in _exclusions(p)]
        case ast.PatternConjunction(sides):
            return [e for side in sides for e in _exclusions(side)]
        case ast.PatternQuantified(body):
            return _exclusions(body)
        case ast.PatternVariable() | ast.PatternEmpty() | ast.PatternAnchor() | ast.PatternNegation():
            return []
        case _:
            assert_never(syntax)


def _positions(pattern: rp.RowPattern) -> int:
    """Returns the number of variables in the pattern with its bounded quantifiers expanded."""
    match pattern:
        case rp.Variable():
            return 1
        case rp.Sequence(parts) | rp.Alternation(parts) | rp.Conjunction(parts):
            return sum(map(_positions, parts))
        case rp.Repeat(body, at_least, at_most):
            return _positions(body) * max(1, at_least if at_most is None else at_most)
        case rp.Exclusion(body):
            return _positions(body)
        case rp.Empty() | rp.Negation() | rp.Anchor():
            return 0
        case _:
            assert_never(pattern)

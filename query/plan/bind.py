"""AST to plan: names resolved, types from DuckDB, defaults filled in, all faults of a query collected, raised once."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import assert_never

from query.errors import Diagnostic, HybridWarning, QueryError, Span, nearest
from query.language import ast, duck
from query.language.ast import AfterMatchKind, HistoryKind, RowsPerMatch, Selection
from query.language.duck import DuckFault, Node
from query.plan import pattern as rp
from query.plan.bind_expression import (
    Scope,
    bind_expression,
    syntax_diagnostic,
    type_diagnostic,
    volatile_diagnostic,
)
from query.plan.expression import TRUE, Column, Constant, Expression, quote
from query.plan.output import output_columns
from query.plan.plan import AfterMatch, Define, FactorPlan, HistoryPlan, Measure, Order, Plan, QueryPlan, Within
from query.plan.statement import FACTOR_TABLE, HISTORY_TABLE, JOINING, check, rewrite, unbounded_clauses, volatile_calls
from query.schema import Field, Schema

TIME_TYPES = ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "DATE", "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS")
SKIP_TILL = (Selection.SKIP_TILL_NEXT, Selection.SKIP_TILL_ANY)
_BARE_NAME = re.compile(r'\s*("(?:[^"]|"")*"|[^\W\d]\w*)\s*')


def bind(
    query: ast.Query,
    resolve: Callable[[str], Schema],
    live: bool = False,
    relations: Mapping[str, Sequence[Field]] | None = None,
) -> QueryPlan:
    """The plan of a query.

    resolve: the schema of an input, given its SQL (a bare name, a subquery, a call); raises LookupError whose message
    says what there is instead. live: the query runs on unbounded streams. relations: the columns of other tables that
    the outer SELECT may use; names of its WITH list are known anyway.
    Raises QueryError with every fault found; warns (HybridWarning) of what is legal and probably not meant.
    """
    try:
        return _Query(query, resolve, live, relations or {}).bind()
    except RecursionError:
        fault = Diagnostic("HQ500", "the query is nested too deeply", Span(0, len(query.text)),
                           hint="split long chains of operators by parentheses, or compute them in the input")
        raise QueryError([fault], query.text) from None


class _Query:
    def __init__(
        self, query: ast.Query, resolve: Callable[[str], Schema], live: bool, relations: Mapping[str, Sequence[Field]]
    ) -> None:
        self.query = query
        self.resolve = resolve
        self.live = live
        self.relations = relations
        # a volatile function would give another answer on replay
        self.volatile = not live and not query.histories
        self.faults: list[Diagnostic] = []
        self.warnings: list[str] = []

    def fault(self, code: str, message: str, span: Span, label: str = "", hint: str = "") -> None:
        self.faults.append(Diagnostic(code, message, span, label, hint))

    # ---- the statement

    def bind(self) -> QueryPlan:
        factors: list[FactorPlan | None] = []
        for i, factor in enumerate(self.query.factors):
            end = self.query.factors[i + 1].span.start if i + 1 < len(self.query.factors) else len(self.query.text)
            joins = [h for h in self.query.histories if factor.span.end <= h.span.start < end]
            factors.append(self.factor(factor, joins))
        first = self.query.factors[0].span.end if self.query.factors else len(self.query.text)
        for join in self.query.histories:
            if join.span.start < first:
                self.fault("HQ300", "a history join needs a MATCH_RECOGNIZE before it", join.span, "joined to what?",
                           "write FROM stream MATCH_RECOGNIZE ( ... ) AS pl JOIN HISTORY OF ...")
        if self.live and len(self.query.factors) > 1:
            self.fault("HQ500", "a live query of two patterns is not supported yet", self.query.factors[1].span,
                       hint="watch each on its own, or ask for the second by JOIN HISTORY")
        elif self.live and not self.query.factors:
            self.fault("HQ100", "a live query needs a pattern", Span(0, len(self.query.text)),
                       hint="write FROM stream MATCH_RECOGNIZE ( ... )")
        self.raise_faults()
        bound = [f for f in factors if f is not None]
        select_sql = self.select(bound)
        self.raise_faults()
        for message in self.warnings:
            warnings.warn(message, HybridWarning, stacklevel=4)
        return QueryPlan(self.query.text, select_sql, tuple(bound))

    def raise_faults(self) -> None:
        if self.faults:
            raise QueryError(tuple(dict.fromkeys(self.faults)), self.query.text)

    def select(self, factors: list[FactorPlan]) -> str:
        cuts: list[tuple[Span, str]] = [(h.span, "") for h in self.query.histories]
        tables: dict[str, Sequence[Field]] = dict(self.relations)
        aliases: dict[str, str] = {}
        silent: set[str] = set()
        for i, (syntax, factor) in enumerate(zip(self.query.factors, factors, strict=True)):
            table = f"{FACTOR_TABLE}{i}"
            tables[table] = output_columns(factor.plan)
            aliases[table] = factor.alias
            sql = f"{table} AS {_alias_sql(factor.alias)}"
            joined = False
            for j, history in enumerate(factor.histories):
                if history.kind not in JOINING:
                    silent.add(history.alias.lower())
                    continue
                name = f"{HISTORY_TABLE}{i}_{j}"
                tables[name] = shown_columns(history, self.query.text)
                aliases[name] = history.alias
                sql += f" POSITIONAL JOIN {name} AS {_alias_sql(history.alias)}"
                joined = True
            cuts.append((syntax.span, f"({sql})" if joined else sql))
        statement = rewrite(self.query.text, cuts)
        self.faults += check(statement, self.query.text, tables, aliases, frozenset(silent))
        if not self.volatile:
            self.faults += volatile_calls(statement)
        if self.live:
            self.faults += unbounded_clauses(statement)
        return statement.sql

    # ---- factors

    def factor(self, factor: ast.PatternFactor, joins: list[ast.HistoryJoin]) -> FactorPlan | None:
        input_sql = factor.input.strip()
        schema = self.schema(input_sql, factor.input_span)
        plan = self.match(factor.match, schema) if schema is not None else None
        bare = _BARE_NAME.fullmatch(input_sql)
        alias = factor.alias.written if factor.alias else _unquote(bare[1]) if bare else "m"
        histories = [self.history(join, factor, alias, plan, joins[:i]) for i, join in enumerate(joins)]
        if plan is None:
            return None
        return FactorPlan(input_sql, alias, plan, tuple(h for h in histories if h is not None))

    def schema(self, input_sql: str, span: Span) -> Schema | None:
        try:
            schema = self.resolve(input_sql)
        except LookupError as error:
            what = input_sql if _BARE_NAME.fullmatch(input_sql) else "such a relation"
            hint = str(error.args[0]) if error.args else ""
            self.fault("HQ200", f"there is no {what}", span, "no such table or stream", hint)
            return None
        fields = tuple(Field(f.name, duck.canonical_type(f.type)) for f in schema.fields)
        return replace(schema, fields=fields)

    # ---- MATCH_RECOGNIZE

    def match(self, match: ast.MatchRecognize, schema: Schema) -> Plan:
        partition = [c for text in match.partition_by if (c := self.item(text, schema, "PARTITION BY")) is not None]
        order = self.order(match, schema)
        pattern = simplified(self.pattern(match.pattern))
        selection = match.selection.selection if match.selection else Selection.PARTITION
        primary, negated = rp.variables(pattern), rp.negated(pattern)
        subsets = self.subsets(match, primary, negated)
        rows = match.rows or RowsPerMatch.ONE
        if rows is RowsPerMatch.ALL_WITH_UNMATCHED:
            words = re.search(r"WITH\s+UNMATCHED\s+ROWS", self.query.text[match.span.start : match.span.end], re.I)
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

    # ---- JOIN HISTORY

    def history(
        self, join: ast.HistoryJoin, factor: ast.PatternFactor, live_alias: str, live: Plan | None,
        earlier: list[ast.HistoryJoin],
    ) -> HistoryPlan | None:
        stream = quote(join.stream.written) if join.stream.quoted else join.stream.written
        schema = self.schema(stream, join.stream.span)
        if schema is None:
            return None
        if schema.time is None:
            self.fault("HQ301", f"{schema.name} has no time, so it has no history", join.stream.span, "not a stream",
                       "HISTORY OF takes a stream, or a relation with a time column")
        plan = self.match(join.match, schema) if join.match is not None else None
        alias = join.alias.written if join.alias else join.stream.written
        taken = [live_alias, *(h.alias.written if h.alias else h.stream.written for h in earlier)]
        if alias.lower() in map(str.lower, taken):
            self.fault("HQ300", f"two sides of the join are called {alias}", (join.alias or join.stream).span,
                       "the same name again", "name both by AS: ... AS pl JOIN HISTORY OF ... AS pa ON ...")
            return None
        own = _BARE_NAME.fullmatch(factor.input.strip())
        same = own is not None and _unquote(own[1]).lower() == join.stream.written.lower()
        if same and join.closed and join.kind in (HistoryKind.SEMI, HistoryKind.ANTI):
            self.warnings.append(
                f"BETWEEN holds both ends, so the history {alias} may hold the {live_alias} match's own events; "
                "FROM ... TO ... leaves the upper end out"
            )
        if live is None:
            return None
        live_columns = output_columns(live)
        columns = output_columns(plan) if plan is not None else schema.fields
        self.bound(join.low, live_alias, live_columns)
        self.bound(join.high, live_alias, live_columns)
        equalities = self.on(join, live_alias, live_columns, alias, columns, plan)
        return HistoryPlan(
            join.kind, schema, alias, join.low.text.strip(), join.high.text.strip(), join.closed, join.as_known, plan,
            join.on.text.strip(), equalities,
        )  # fmt: skip

    def bound(self, text: ast.ExpressionText, alias: str, columns: Sequence[Field]) -> None:
        """Check one end of a history range."""
        before = len(self.faults)
        node = self.outside_pattern(text, "a history range")
        if node is None:
            return
        for ref in _nodes_of(node, "COLUMN_REF"):
            names, span = [str(n) for n in ref["column_names"]], _span(ref, text)
            if len(names) > 1 and names[0].lower() != alias.lower():
                self.fault("HQ301", f"a history range is made of {alias}'s columns and fixed times", span,
                           f"not of {alias}", f"there is {', '.join(f'{alias}.{c.name}' for c in columns[:8])}")
            else:
                self.column_of(names[1 if len(names) > 1 else 0], alias, columns, span)
        if len(self.faults) > before:
            return
        try:
            found = duck.describe([text.text], {alias: columns})[0]
        except DuckFault as fault:
            self.faults.append(type_diagnostic(fault, text.span))
            return
        if found not in TIME_TYPES:
            hint = "write a TIMESTAMP: TIMESTAMP '2024-01-01', or a time of the match minus an INTERVAL"
            self.fault("HQ301", f"a history range is made of times, and this is {found}", text.span, found, hint)

    def on(
        self, join: ast.HistoryJoin, live_alias: str, live_columns: Sequence[Field], alias: str,
        columns: Sequence[Field], plan: Plan | None,
    ) -> tuple[tuple[str, str], ...]:
        """Check ON; give the equalities that pin a key of the history to a value of the match."""
        before = len(self.faults)
        node = self.outside_pattern(join.on, "ON")
        if node is None:
            return ()
        for ref in _nodes_of(node, "COLUMN_REF"):
            self.side(ref, join.on, live_alias, live_columns, alias, columns)
        if len(self.faults) > before:
            return ()
        try:
            found = duck.describe([join.on.text], {live_alias: live_columns, alias: columns})[0]
        except DuckFault as fault:
            self.faults.append(type_diagnostic(fault, join.on.span))
            return ()
        if found != "BOOLEAN":
            self.fault("HQ205", f"the condition ON is {found}, not BOOLEAN", join.on.span, found)
        if plan is not None and plan.selection is Selection.STRICT:
            return ()  # STRICT has to see every row of the stream
        pinned = [c.name for c in plan.partition_by] if plan is not None else [f.name for f in columns]
        equalities: list[tuple[str, str]] = []
        conjuncts = node["children"] if node["type"] == "CONJUNCTION_AND" else [node]
        for conjunct in conjuncts:
            if conjunct["type"] != "COMPARE_EQUAL":
                continue
            sides = dict[str, Field]()
            for part in (conjunct["left"], conjunct["right"]):
                if part["class"] == "COLUMN_REF":
                    side = self.side(part, join.on, live_alias, live_columns, alias, columns)
                    if side is not None:
                        sides[side[0]] = side[1]
            if len(sides) == 2 and sides["history"].name in pinned and sides["history"].type == sides["live"].type:
                equalities.append((sides["history"].name, sides["live"].name))
        return tuple(dict.fromkeys(equalities))

    def side(
        self, ref: Node, text: ast.ExpressionText, live_alias: str, live_columns: Sequence[Field], alias: str,
        columns: Sequence[Field],
    ) -> tuple[str, Field] | None:
        """Which side of the join a column of ON belongs to, and the column; None for a field of a struct or a fault."""
        names, span = [str(n) for n in ref["column_names"]], _span(ref, text)
        if len(names) > 1 and names[0].lower() in (live_alias.lower(), alias.lower()):
            is_live = names[0].lower() == live_alias.lower()
            found = self.column_of(names[1], names[0], live_columns if is_live else columns, span)
            return ("live" if is_live else "history", found) if found is not None and len(names) == 2 else None
        found_live, found_history = _field(live_columns, names[0]), _field(columns, names[0])
        if found_live is not None and found_history is not None:
            self.fault("HQ201", f"both {live_alias} and {alias} have a column {names[0]}", span, "which one?",
                       f"write {live_alias}.{names[0]} or {alias}.{names[0]}")
        elif found_live is not None or found_history is not None:
            side = ("live", found_live) if found_live is not None else ("history", found_history)
            return (side[0], side[1]) if len(names) == 1 and side[1] is not None else None
        elif len(names) > 1:
            tables = [t.alias for t in self.query.histories] + [t.alias for t in self.query.factors]
            if names[0].lower() in [t.written.lower() for t in tables if t is not None]:
                self.fault("HQ500", f"ON of {alias} may speak of {live_alias} and {alias} only", span,
                           hint="compare further tables in WHERE")
            else:
                self.fault("HQ200", f"there is no table {names[0]} here", span, "no such table",
                           nearest(names[0], (live_alias, alias)))
        else:
            known = tuple(f.name for f in (*live_columns, *columns))
            self.fault("HQ201", f"neither {live_alias} nor {alias} has a column {names[0]}", span, "no such column",
                       nearest(names[0], known))
        return None

    def column_of(self, name: str, alias: str, columns: Sequence[Field], span: Span) -> Field | None:
        found = _field(columns, name)
        if found is None:
            self.fault("HQ201", f"{alias} has no column {name}", span, "no such column",
                       nearest(name, tuple(f.name for f in columns)))
        return found

    def outside_pattern(self, text: ast.ExpressionText, place: str) -> Node | None:
        """An expression over finished rows: no aggregates, windows, subqueries or volatile functions."""
        try:
            node = duck.parse_expression(text.text)
        except DuckFault as fault:
            self.faults.append(syntax_diagnostic(fault, text.span))
            return None
        for kind in ("SUBQUERY", "WINDOW", "PARAMETER", "STAR"):
            for part in _nodes_of(node, kind):
                self.fault("HQ500", f"{kind.lower()} in {place} is not supported yet", _span(part, text))
        for call in _nodes_of(node, "FUNCTION"):
            name = str(call["function_name"]).lower()
            if name in duck.aggregate_names() or name in ("prev", "next", "classifier", "match_number"):
                self.fault("HQ300", f"{name.removesuffix('_star')} may not stand in {place}", _span(call, text),
                           hint="compute it in MEASURES")
            elif name in duck.volatile_names():
                self.faults.append(volatile_diagnostic(name, _span(call, text)))
        clock = [r for r in _nodes_of(node, "COLUMN_REF") if str(r["column_names"][0]).lower() in duck.CLOCK_WORDS]
        for ref in clock:
            self.faults.append(volatile_diagnostic(str(ref["column_names"][0]), _span(ref, text)))
        return None if clock else node


def history_columns(history: HistoryPlan) -> tuple[Field, ...]:
    """Output columns of a history join's right side: PA's, or those of the stream for plain rows."""
    return output_columns(history.plan) if history.plan is not None else history.schema.fields


def shown_columns(history: HistoryPlan, text: str) -> tuple[Field, ...]:
    """What the outer SELECT sees of a history: its columns, and `history_complete` where the query speaks of it."""
    columns = history_columns(history)
    if re.search(r"\bhistory_complete\b", text, re.IGNORECASE) and _field(columns, "history_complete") is None:
        return (*columns, Field("history_complete", "BOOLEAN"))
    return columns


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
        case rp.Variable() | rp.Empty() | rp.Negation():
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
        case rp.Repeat(body):
            return _in_order(body)
        case rp.Empty():
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


# ---- small things --------------------------------------------------------------------------------------------------


def _field(columns: Sequence[Field], name: str) -> Field | None:
    return next((f for f in columns if f.name.lower() == name.lower()), None)


def _unquote(name: str) -> str:
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _alias_sql(name: str) -> str:
    return name if re.fullmatch(r"[a-z_]\w*", name, re.IGNORECASE | re.ASCII) else quote(name)


def _nodes_of(node: Node, kind: str) -> list[Node]:
    """Nodes of one class in a syntax tree."""
    found: list[Node] = []
    stack: list[object] = [node]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            if value.get("class") == kind:
                found.append(value)
            stack += value.values()
        elif isinstance(value, list):
            stack += value
    return found


def _span(node: Node, text: ast.ExpressionText) -> Span:
    found = duck.span_in(node)
    if found is None:
        return text.span
    return Span(min(text.span.start + found[0], text.span.end), min(text.span.start + found[1], text.span.end))

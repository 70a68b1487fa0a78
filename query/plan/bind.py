"""AST to plan: resolves names, takes types from DuckDB, fills in defaults, and raises all faults of a query at once.

Long: one class binds one query, since its parts collect their faults together.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from query.errors import Diagnostic, QueryError, Span, in_pattern, nearest, own_text, shown_at, warn
from query.language import ast, duck
from query.language.ast import HistoryKind, Selection, StatementKind
from query.language.duck import DuckFault, Node
from query.language.named import entry_around
from query.language.parse import UNREAD
from query.language.pieces import ComposedSql
from query.language.session import NO_SESSION, Session
from query.plan.bind_boxes import module_faults
from query.plan.bind_expression import Scope, bind_expression
from query.plan.bind_faults import syntax_diagnostic, volatile_diagnostic
from query.plan.bind_match import MatchBinder
from query.plan.boxes import TIMES, bounded, common_keys, reach_us, with_times
from query.plan.expression import TRUE, Expression, quote
from query.plan.fingerprint import fingerprint
from query.plan.inputs_of_layers import merged_inputs, read_alike, without_inputs
from query.plan.joined_rows import after_us, box_column, box_plan, history_columns, joined_faults, joins_of, known_span
from query.plan.lag import in_order_of_last_events, lag_us, last_event_lag_us
from query.plan.macros import in_place
from query.plan.merge import TIMES as MERGED_TIMES
from query.plan.merge import MergedInput, merge
from query.plan.output import output_columns
from query.plan.pattern import min_rows
from query.plan.plan import AlertOnce, Box, FactorPlan, HistoryPlan, Measure, Plan, QueryPlan, RowsOf, Shift, modules
from query.plan.statement import (
    BARE_NAME,
    FACTOR_TABLE,
    HISTORY_TABLE,
    JOINING,
    Describe,
    Names,
    check,
    factors_in,
    input_statement,
    only_read,
    origins,
    picks_only,
    rewrite,
    same_input,
    tables_of,
    unbounded_clauses,
    unquoted,
    volatile_calls,
)
from query.plan.statement import origin as origin_of
from query.plan.trends import BIGNUM
from query.plan.typed import TIME_TYPES, type_diagnostic
from query.schema import Field, Schema

#: The only column of history rows that are looked up without showing columns.
UNSEEN = "__hybrid_found"
#: The patterns of boxes, by id, and whether now() and the like are allowed in them.
Known = dict[tuple[int, bool], tuple[ast.ModuleSyntax, Box]]
#: Hint for matches with neither PARTITION BY nor MEASURES.
ADD_A_COLUMN = "add MEASURES, for example count(*) AS n, or ask for ALL ROWS PER MATCH"


def bind(
    query: ast.QuerySyntax,
    resolve: Callable[[str], Schema],
    live: bool = False,
    relations: Mapping[str, Sequence[Field]] | None = None,
    describe: Describe = duck.bind_statement,
    session: Session = NO_SESSION,
) -> QueryPlan:
    """Returns the plan of a query.

    resolve: returns the schema of an input, given its SQL (a bare name, a subquery, a call); raises LookupError whose
    message lists what is available. live: the query runs on unbounded streams. relations: the columns of other tables
    that the outer SELECT may use, besides those of its WITH list. describe: types SELECTs over those tables. session:
    the connection that runs the statement. Raises QueryError with every fault found; warns (HybridWarning) of what is
    legal but probably not intended.
    """
    try:
        return _Query(query, resolve, live, relations or {}, describe, session).bind()
    except RecursionError:
        fault = Diagnostic("HQ500", "the query is nested too deeply", Span(0, len(query.text)),
                           hint="split long chains of operators by parentheses, or compute them in the input")
        raise QueryError([fault], query.text) from None


def columns_of(
    query: ast.QuerySyntax, resolve: Callable[[str], Schema], describe: Describe = duck.bind_statement,
    known: Known | None = None,
) -> tuple[Field, ...]:  # fmt: skip
    """Returns the columns of the rows of a query, and checks it. known: the patterns of boxes of other queries, with
    the same inputs; those of this one are added. See `bind`."""
    whole = _Query(query, resolve, False, {}, describe, NO_SESSION, known)
    whole.bind()
    return tuple(whole.columns)


class _Query:
    def __init__(
        self, query: ast.QuerySyntax, resolve: Callable[[str], Schema], live: bool,
        relations: Mapping[str, Sequence[Field]], describe: Describe, session: Session, known: Known | None = None,
    ) -> None:  # fmt: skip
        self.query = query
        self.resolve = resolve
        self.live = live
        self.describe = describe
        self.session = session
        # a volatile function would give another answer on replay
        self.volatile = not live and not query.histories
        self.faults: list[Diagnostic] = []
        self.warnings: list[Diagnostic] = []
        self.boxes: Known = {} if known is None else known
        self.modules = {m.name: self.module(m, relations) for m in query.modules}
        self.match = MatchBinder(
            query.text, live, self.volatile, self.faults, self.warnings, session, self.modules
        ).match  # fmt: skip
        # of the factors bound so far: their tables, and the names in scope
        self.cuts: list[tuple[Span, str]] = [(h.span, "") for h in query.histories]
        self.cuts += [(span, UNREAD) for span in query.unread]
        self.cuts += [(query.alert.span, "")] if query.alert is not None else []
        self.tables: dict[str, Sequence[Field]] = dict(relations)
        self.shown: dict[str, Sequence[Field]] = {}
        self.aliases: dict[str, str] = {}
        self.silent: set[str] = set()
        self.fingerprints: dict[str, str] = {}
        self.is_module = False  # it is the query of a pattern that boxes name
        self.inputs: tuple[MergedInput, ...] = ()  # of the last factor

    def fault(self, code: str, message: str, span: Span, label: str = "", hint: str = "") -> None:
        self.faults.append(Diagnostic(code, message, span, label, hint))

    # ---- the statement

    def bind(self) -> QueryPlan:
        for join in self.query.histories:
            if join.factor is None:
                self.fault("HQ300", "a history join needs a MATCH_RECOGNIZE before it", join.span, "joined to what?",
                           "write FROM stream MATCH_RECOGNIZE ( ... ) AS pl JOIN HISTORY OF ...")
        if self.live:
            self.live_statement()
        elif self.query.alert is not None:
            self.fault("HQ400", "ALERT ONCE belongs to a live query", self.query.alert.span,
                       hint="watch it with db.watch, or replay it with db.backtest")
        factors: list[FactorPlan | None] = []
        for i, factor in enumerate(self.query.factors):
            joins = [h for h in self.query.histories if h.factor == i]
            within = [f for f in self.query.factors[:i] if factor.span.start <= f.span.start]
            known = all(factors[self.query.factors.index(f)] is not None for f in within)
            factors.append(self.factor(i, factor, joins) if known else None)
        self.raise_faults()
        select_sql, columns = self.select()
        self.raise_faults()
        select_sql = only_read(select_sql) if self.query.unread else select_sql
        self.columns = columns
        bound = tuple(f for f in factors if f is not None)
        alert: AlertOnce | None = None
        if self.live:
            bound = self.live_rows(bound, select_sql)
            self.raise_faults()
            if self.query.alert is not None:
                alert = self.alert(self.query.alert, select_sql, columns, len(bound) - 1, bound[-1])
                self.raise_faults()
        for warning in self.warnings:
            warn(shown_at(warning, self.query.text))
        return QueryPlan(self.query.text, select_sql, bound, self.query.kind, alert)

    def live_statement(self) -> None:
        query, whole = self.query, Span(0, len(self.query.text))
        if query.kind is not StatementKind.SELECT:
            self.fault("HQ400", f"{query.kind.value} never ends on an unbounded stream", whole,
                       hint="watch the SELECT, and keep the fetched tables")
        if not query.factors:
            self.fault("HQ100", "a live query needs a pattern", whole, hint="write FROM stream MATCH_RECOGNIZE ( ... )")

    def live_rows(self, factors: tuple[FactorPlan, ...], select_sql: str) -> tuple[FactorPlan, ...]:
        """Returns the factors of a live query with the sources of their rows. Rows of the last one are the output; rows
        of each other one feed exactly one later pattern."""
        readers = [i for f in factors for sql in f.inputs for i in factors_in(sql)]
        for i in range(len(factors) - 1):
            if i in factors_in(select_sql) or readers.count(i) != 1:
                self.fault("HQ500", "a live query of two patterns side by side is not supported yet",
                           self.query.factors[-1].span,
                           hint="watch each on its own, put one into FROM of the other, or merge their rows")
                return factors
        return tuple(self.fed(factor, k, factors) for k, factor in enumerate(factors))

    def fed(self, factor: FactorPlan, k: int, factors: tuple[FactorPlan, ...]) -> FactorPlan:
        """Returns the factor with the patterns that feed its inputs."""
        syntax = self.query.factors[k]
        orders = syntax.match.order_by
        where = orders[0].span if orders else syntax.match.sase.span if syntax.match.sase else syntax.match.pattern.span
        found: list[RowsOf | None] = []
        for n, sql in enumerate(factor.inputs):
            inner = factors_in(sql)
            if not inner:
                found.append(None)
                continue
            if len(inner) > 1:
                self.fault("HQ500", "a live pattern over the rows of two patterns at once is not supported yet",
                           syntax.input_span, hint="merge them by time: WITH a AS ..., b AS ... FROM MERGE(a, b)")
                continue
            order = factor.plan.order_by[0] if factor.plan.order_by else None
            time = order.column.name if order is not None else ""
            if factor.members:
                time, where = factor.members[n].schema.time or "", syntax.merged[n].span
            elif order is None or order.descending or order.column.type not in MERGED_TIMES:
                self.fault("HQ212", "a live pattern over rows of a pattern needs ORDER BY one of their times", where,
                           "in which order?", "write ORDER BY and a TIMESTAMP among them, ascending")
                continue
            origin = origin_of(sql, time)
            if faults := list(joined_faults(factors[inner[0]], time, origin, where)):
                self.faults += faults
                continue
            lag = lag_us(factors[inner[0]].plan, None if origin is None else origin[1])
            if lag is None:
                of = self.query.factors[inner[0]]
                around = entry_around(self.query.text, of.span.start) if of.alias is None else None
                alias = around or factors[inner[0]].alias
                self.fault("HQ220", f"rows of {alias} may be returned any time after {time}", where, "no bound",
                           f"add WITHIN INTERVAL '...' to {alias}; if each match ends with its last event, use LAST "
                           "of the time; NEXT and $ always wait")
                continue
            found.append(RowsOf(inner[0], time, lag))
        return replace(factor, rows_of=tuple(found))

    def raise_faults(self) -> None:
        if self.faults:
            raise QueryError(tuple(dict.fromkeys(self.faults)), self.query.text)

    def alert(
        self, syntax: ast.AlertOnceSyntax, select_sql: str, columns: Sequence[Field], k: int, factor: FactorPlan
    ) -> AlertOnce:
        """Returns ALERT ONCE over the columns of the output. The suppression of a row must not depend on the arrival of
        events: unless rows come in the order of their last events, only rows of one partition have an order.

        k: the index of the factor whose rows are the output."""
        named: list[str] = []
        aliases = [factor.alias, *(h.alias for h in factor.histories)]
        for column in syntax.columns:
            table, name = column.table, column.name.written
            if table is not None and table.written.lower() not in map(str.lower, aliases):
                self.fault("HQ200", f"table {table.written} is not in scope", table.span, "no such table",
                           nearest(table.written, aliases))
                continue
            found = [c for c in columns if c.name.lower() == name.lower()]
            if not found:
                self.fault("HQ201", f"the output has no column {name}", column.name.span, "no such column",
                           nearest(name, [c.name for c in columns]) or "PER takes columns of the outer SELECT")
            elif len(found) > 1:
                self.fault("HQ201", f"the output has several columns {name}", column.name.span, "which one?",
                           "give one of them another name with AS")
            elif found[0].name in named:
                self.fault("HQ103", f"{name} appears twice", column.span, "the second time", "leave it out")
            else:
                named.append(found[0].name)
        plan = factor.plan
        if plan.trends is not None:
            self.fault("HQ500", "ALERT ONCE over rows of windows is not supported yet", syntax.span,
                       "a window has no last event", "filter the rows: WHERE")
        if not min_rows(plan.pattern) and plan.rows is not ast.RowsPerMatch.ALL_OMIT_EMPTY:
            self.fault("HQ500", "ALERT ONCE over a pattern that may match nothing is not supported", syntax.span,
                       "an empty match has no time of its own", "let it match a row at least: A+ for A*")
        if plan.rows is ast.RowsPerMatch.ALL_WITH_UNMATCHED:
            self.fault("HQ500", "ALERT ONCE over unmatched rows is not supported", syntax.span,
                       "an unmatched row has no match time", "watch them in a query of their own")
        sources = {origin_of(select_sql, name) for name in named}
        apart = [c.name for c in plan.partition_by if (f"{FACTOR_TABLE}{k}", c.name.lower()) not in sources]
        if apart and not in_order_of_last_events(plan):
            self.fault("HQ500", f"ALERT ONCE over several values of {apart[0]} is not supported if a match may be "
                       "returned after its last event", syntax.span, f"order across values of {apart[0]} is undefined",
                       f"add {', '.join(apart)} to PER, make all matches equally long, or use AFTER MATCH NO SKIP")
        lag_us = last_event_lag_us(plan)
        if lag_us is None:
            self.warnings.append(Diagnostic("", "ALERT ONCE keeps every key forever, since matches may be emitted any "
                                            "time after their last event", syntax.span,
                                            hint="add WITHIN to the pattern"))
        return AlertOnce(tuple(named), syntax.interval_us, lag_us)

    def select(self) -> tuple[str, Sequence[Field]]:
        """Returns the SELECT that DuckDB runs, and its columns."""
        statement = rewrite(self.query.text, self.cuts)
        is_select = self.query.kind is StatementKind.SELECT
        found = self.check(statement, is_select)
        if isinstance(found, Diagnostic):
            self.faults.append(found)
        if is_select and not self.volatile:
            self.faults += volatile_calls(statement)
        if is_select and self.live:
            self.faults += unbounded_clauses(statement)
        return statement.sql, () if isinstance(found, Diagnostic) else found

    def check(self, statement: ComposedSql, select: bool = True) -> tuple[Field, ...] | Diagnostic:
        names = Names(self.tables, self.shown, self.aliases, frozenset(self.silent))
        return check(statement, self.query.text, names, self.describe, select)

    # ---- patterns of boxes

    def module(self, module: ast.ModuleSyntax, relations: Mapping[str, Sequence[Field]]) -> Box:
        """Returns the matches of a pattern that boxes name, as a box without a variable. Raises QueryError."""
        query, key = module.query, (id(module), self.volatile)
        if key in self.boxes:
            return self.boxes[key][1]
        inner = _Query(query, self.resolve, self.live, relations, self.describe, self.session, self.boxes)
        inner.volatile = inner.volatile and self.volatile
        try:
            box = inner.as_module(module.name)
            self.boxes[key] = module, box  # the id is of no other one as long as it is kept
            return box
        except QueryError as error:
            if error.text != own_text(query.text):
                raise  # a fault in a pattern that this one uses
            if _is_part(query.text, self.query.text):  # an entry of WITH has its place in this text
                raise QueryError([self.not_seen(d) for d in error.diagnostics], self.query.text) from None
            raise QueryError(*in_pattern(module.name, error.diagnostics, error.text)) from None

    def not_seen(self, fault: Diagnostic) -> Diagnostic:
        """Returns the fault of a pattern in WITH; if it reads an entry that it does not see, with a hint what to do
        instead."""
        name = self.query.text[fault.span.start : fault.span.end].strip('"').lower()
        entries = {name for factor in self.query.factors for scope in factor.scopes for name in scope.names}
        if fault.code != "HQ200" or name not in entries:
            return fault
        each = f"write FROM (SELECT ...) AS {name} in each layer, or keep the rows by CREATE TABLE AS"
        return replace(fault, hint=f"a pattern of boxes sees no entry of WITH with a pattern: {each}")

    def as_module(self, name: str) -> Box:
        """Binds the query of a pattern that boxes name: one pattern, whose columns the SELECT picks."""
        self.is_module = True
        plan = self.bind()
        whole = Span(len(self.query.text) - len(self.query.text.lstrip()), len(self.query.text))
        if len(plan.factors) != 1 or plan.kind is not StatementKind.SELECT or plan.alert is not None:
            several = len(plan.factors) > 1
            self.fault("HQ222", f"a box takes matches of one MATCH_RECOGNIZE over events, and {name} has "
                       f"{len(plan.factors)}" if several else "a named pattern is a SELECT from one MATCH_RECOGNIZE",
                       whole, "rows of patterns" if several else "another statement",
                       "the rows of a pattern become the events of a stream by db.watch(text, into=\"name\")"
                       if several else "write SELECT * FROM stream MATCH_RECOGNIZE ( ... )")
            self.raise_faults()
        (factor,), (syntax,) = plan.factors, self.query.factors
        columns: list[tuple[str, str]] = []
        for column in self.columns if output_columns(factor.plan) else ():  # a match without columns is an event, too
            found = origin_of(plan.select_sql, column.name)
            if found is None or not picks_only(plan.select_sql):
                self.fault("HQ500", "a named pattern whose SELECT does more than pick columns is not supported yet",
                           whole, "conditions and expressions", "compute them in MEASURES, and filter in ON of the box")
                break
            read = box_column(factor, found)
            if read is None:
                self.fault("HQ500", f"a box with the column {column.name} is not supported yet", whole,
                           "neither of the match nor of its history", "leave it out")
                break
            if column.name.lower() not in {shown.lower() for shown, _ in columns}:  # else the first one is meant
                columns.append((column.name, read))
        self.faults += module_faults(factor.plan, name, syntax.match.span)
        if factor.histories:
            self.joined_box(factor, name)
        self.raise_faults()
        return Box("", name, box_plan(factor) if factor.histories else factor.plan, tuple(columns), self.inputs)

    def joined_box(self, factor: FactorPlan, name: str) -> None:
        """Checks that rows joined with history can be boxes: each match has one row, as its events are its identity,
        and live the rows come out some time after it."""
        for history, join in zip(factor.histories, self.query.histories, strict=True):
            if history.kind in (HistoryKind.JOIN, HistoryKind.LEFT):
                self.fault("HQ500", f"{history.kind.value} HISTORY in a box is not supported yet", join.span,
                           f"a match of {name} may have several rows", "[LEFT] NEAREST, SEMI and ANTI JOIN have one at "
                           f"most; or read the rows: FROM {name}")
        if self.live:
            self.faults += joined_faults(factor, "", None, Span(0, 0))

    def read_beside(self, plan: Plan) -> tuple[str, ...]:
        """Returns the streams whose history boxes are joined with and that no layer reads, by name in lower case."""
        read = {same_input(one.input_sql) for one in self.inputs} | set(_read_below(plan))
        return tuple(sorted({name for history in joins_of(plan) for name in history.streams} - read))

    def bounded_boxes(self, plan: Plan, match: ast.MatchRecognize) -> None:
        """Checks that the matches of boxes come out some time after their last event: the events behind it wait."""
        for box in modules(bounded(plan).boxes):
            if last_event_lag_us(box.plan) is None:
                span = next(d.box.span for d in match.defines if d.box and d.box.written.lower() == box.name)
                self.fault("HQ220", f"matches of {box.name} may be decided any time after their last event", span,
                           "no bound", f"add WITHIN INTERVAL '...' to {box.name}, or let it give all matches: "
                           "AFTER MATCH NO SKIP; NEXT and $ always wait")

    # ---- factors

    def factor(self, i: int, factor: ast.PatternFactor, joins: list[ast.HistoryJoin]) -> FactorPlan | None:
        found = self.merged(factor) if factor.merged else self.input(factor)
        input_sql, schema, members = found if found is not None else (factor.input, None, ())
        plan = self.match(factor.match, schema) if schema is not None else None
        plan = with_times(plan) if plan is not None and factor.times else plan
        bare = BARE_NAME.fullmatch(factor.input)
        alias = factor.alias.written if factor.alias else unquoted(bare[1]) if bare else "m"
        columns = self.output(factor, plan) if plan is not None else ()
        histories = [self.history(join, factor, alias, plan, columns, joins[:k]) for k, join in enumerate(joins)]
        if plan is None:
            return None
        for name in (f.name for f in plan.schema.fields if f.type == BIGNUM and f.name in plan.columns):
            self.fault("HQ205", f"{name} is a BIGNUM, a number of any size, which patterns do not read yet",
                       factor.input_span, "", f"cast it in the input: SELECT {name}::DOUBLE AS {name}, or ::BIGINT")
        plan = replace(plan, inputs=origins([m.input_sql for m in members] or [input_sql], self.fingerprints))
        if self.live and plan.boxes:
            self.bounded_boxes(plan, factor.match)
        self.inputs = members or (self.alone(input_sql, plan),)
        merged: Schema | None = None
        beside: tuple[str, ...] = ()
        if plan.boxes and not self.is_module:
            beside = self.read_beside(plan) if self.live else ()
            if read_alike(plan, self.inputs):
                plan = without_inputs(plan)
            else:
                made = merged_inputs(plan, self.inputs, alias, factor.input_span, self.faults)
                if made is None:
                    return None
                plan, merged, members = made
                input_sql = f"MERGE({', '.join(m.name for m in members)})"
                plan = replace(plan, inputs=origins([m.input_sql for m in members], self.fingerprints))
        given = tuple(c.written for c in factor.columns)
        bound = FactorPlan(input_sql, alias, plan, tuple(h for h in histories if h is not None), given, members,
                           merged=merged, beside=beside)  # fmt: skip
        self.replace(i, factor, bound, columns)
        self.fingerprints[f"{FACTOR_TABLE}{i}"] = fingerprint(plan)
        return bound

    def alone(self, input_sql: str, plan: Plan) -> MergedInput:
        """Returns the only input of a factor as one that may be merged with those of its boxes."""
        schema = plan.schema
        if schema.time is None and plan.order_by:
            schema = replace(schema, time=plan.order_by[0].column.name)
        return MergedInput(schema.name, input_sql, schema)

    def replace(self, i: int, syntax: ast.PatternFactor, factor: FactorPlan, shown: Sequence[Field]) -> None:
        """Registers the tables that stand for a factor and the histories joined to it, and the SQL that names them."""
        quoted = syntax.alias is not None and syntax.alias.quoted
        table = f"{FACTOR_TABLE}{i}"
        self.tables[table] = output_columns(factor.plan)
        self.shown[table] = shown
        self.aliases[table] = factor.alias
        simple = not quoted and not factor.columns
        sql = f"{table} AS {_alias_sql(factor.alias) if simple else factor.alias_sql}"
        joined = False
        for j, history in enumerate(factor.histories):
            if history.kind not in JOINING:
                self.silent.add(history.alias.lower())
                continue
            name = f"{HISTORY_TABLE}{i}_{j}"
            self.tables[name] = shown_columns(history, self.query.text)
            self.aliases[name] = history.alias
            sql += f" POSITIONAL JOIN {name} AS {_alias_sql(history.alias)}"
            joined = True
        self.cuts.append((syntax.span, syntax.head + (f"({sql})" if joined else sql)))

    def output(self, factor: ast.PatternFactor, plan: Plan) -> tuple[Field, ...]:
        """Returns the columns of a factor under the names of its alias."""
        columns = output_columns(plan)
        taken: set[str] = set()
        for name in factor.columns:
            if name.written.lower() in taken:
                self.fault("HQ206", f"the output has two columns {name.written}", name.span, "the second one")
            taken.add(name.written.lower())
        if len(factor.columns) > len(columns):
            alias = factor.alias.written if factor.alias else "the output"
            self.fault("HQ201", f"{alias} has {len(columns)} columns", factor.columns[len(columns)].span,
                       "one name too many", f"available: {', '.join(c.name for c in columns)}" if columns else "")
        named = [replace(c, name=n.written) for c, n in zip(columns, factor.columns)]
        return (*named, *columns[len(named) :])

    def merged(self, factor: ast.PatternFactor) -> tuple[str, Schema, tuple[MergedInput, ...]] | None:
        """Returns the name, columns and members of MERGE(a, b)."""
        found: list[tuple[MergedInput, Span]] = []
        for name in factor.merged:
            sql = quote(name.written) if name.quoted else name.written
            one = self.input(replace(factor, input=sql, input_span=name.span, input_alias=None, merged=()))
            if one is not None:
                found.append((MergedInput(name.written, one[0], one[1]), name.span))
        if len(found) < len(factor.merged):
            return None
        shown = f"MERGE({', '.join(m.name for m, _ in found)})"
        orders = factor.match.order_by
        order = unquoted(orders[0].expression.text.strip()) if orders else None
        alias = factor.input_alias.written if factor.input_alias else shown
        made = merge(alias, found, order, self.faults)
        return None if made is None else (shown, *made)

    def input(self, factor: ast.PatternFactor) -> tuple[str, Schema, tuple[MergedInput, ...]] | None:
        """Returns the SQL from which DuckDB computes the input (a bare name if possible), and its columns; nothing is
        merged."""
        text = factor.input.strip()
        bare = BARE_NAME.fullmatch(text)
        names = {name for scope in factor.scopes for name in scope.names}
        statement = input_statement(self.query.text, factor, self.cuts)
        own = {scope.inside for scope in factor.scopes if scope.inside} - names
        if own and own & tables_of(statement):
            self.fault("HQ500", "a pattern over its own WITH RECURSIVE entry is not supported",
                       factor.input_span, "incomplete here",
                       "let the recursive entry gather the rows, and match them outside of it")
            return None
        nested = any(factor.span.start <= span.start < factor.span.end for span, sql in self.cuts if sql)
        if bare is None and not self.volatile:
            self.faults += volatile_calls(statement)
        if self.live:
            inner = factors_in(statement.sql)
            if not inner and (bare is not None if names & tables_of(statement) else bare is None):
                self.fault("HQ500", "a live query over anything but a stream is not supported yet", factor.input_span,
                           hint="let a pattern of one row choose the events: "
                           "FROM (SELECT ... FROM stream MATCH_RECOGNIZE (ORDER BY time ALL ROWS PER MATCH PATTERN (R) "
                           "DEFINE R AS condition)) MATCH_RECOGNIZE ( ... )")
                return None
            self.faults += unbounded_clauses(statement) if inner else []
        if not names & tables_of(statement) and not nested:
            schema = self.schema(text, factor.input_span)
            if schema is None or bare is not None:
                return None if schema is None else (text, schema, ())
            named = factor.input_alias.written if factor.input_alias else schema.name
            return f"SELECT * FROM {text}", replace(schema, name=named), ()
        fields = self.check(statement)
        if isinstance(fields, Diagnostic):
            self.faults.append(fields)
            return None
        alias = factor.input_alias.written if factor.input_alias else shortened(text)
        name = unquoted(bare[1]) if bare is not None else alias
        sql = only_read(statement.sql) if self.query.modules or self.is_module else statement.sql
        return sql, Schema(name, tuple(Field(f.name, duck.canonical_type(f.type)) for f in fields)), ()

    def schema(self, input_sql: str, span: Span, entry: bool = False) -> Schema | None:
        """Returns the columns of an input, None after a fault. entry: WITH has an entry of that name, which is none."""
        try:
            schema = self.resolve(input_sql)
        except LookupError as error:
            what = f"table or stream {input_sql}" if BARE_NAME.fullmatch(input_sql) else "relation"
            hint = str(error.args[0]) if error.args else ""
            if entry:
                hint = "an entry of WITH has no history: store its rows first, by CREATE TABLE AS, or, live, by into="
            self.fault("HQ200", f"unknown {what}", span, "no such table or stream", hint)
            return None
        fields = tuple(Field(f.name, duck.canonical_type(f.type)) for f in schema.fields)
        return replace(schema, fields=fields)

    # ---- JOIN HISTORY

    def history(
        self, join: ast.HistoryJoin, factor: ast.PatternFactor, live_alias: str, live: Plan | None,
        live_columns: Sequence[Field], earlier: list[ast.HistoryJoin],
    ) -> HistoryPlan | None:
        """Returns the plan of a history join, or None after a fault. live_columns: of `live`, under the names of its
        alias."""
        stream = quote(join.stream.written) if join.stream.quoted else join.stream.written
        entries = {name.lower() for scope in factor.scopes for name in scope.names}
        name = join.stream.written.lower()
        rows_of = None if name in entries else self.modules.get(name)
        if rows_of is not None and self.known(stream):
            rows_of = None  # a table of the name of the pattern
        schema: Schema | None
        merged: Schema | None = None
        if rows_of is not None:
            rows_of, schema, merged = self.rows_of(rows_of, join.stream.span)
        else:
            schema = self.schema(stream, join.stream.span, name in entries)
        if schema is None:
            return None
        if schema.time is None:
            self.fault("HQ301", f"{schema.name} has no time column, so no history", join.stream.span, "not a stream",
                       "HISTORY OF takes a stream, or a relation with a time column")
        plan = self.match(join.match, schema) if join.match is not None else None
        if plan is not None:
            alone = (self.alone(stream, plan),)
            other = next((b for b in plan.boxes if not read_alike(replace(plan, boxes=(b,)), alone)), None)
            named = {} if rows_of is None else {name: fingerprint(rows_of.plan)}
            plan = without_inputs(replace(plan, inputs=origins([stream], named)))
            if other is not None and join.match is not None:
                span = next(d.box.span for d in join.match.defines if d.box and d.box.written.lower() == other.name)
                self.fault("HQ500", f"matches of {other.name}, which reads another stream than HISTORY OF "
                           f"{schema.name}, are not supported in a pattern on history yet", span, "of another stream",
                           f"let {other.name} read {schema.name}")
        alias = join.alias.written if join.alias else join.stream.written
        if plan is not None and join.match is not None and not output_columns(plan):
            plan = self.with_a_column(plan, join.kind, alias, join.match.span)
        self.only_matches(join.match, "a pattern on history")
        self.only_matches(factor.match, "a pattern that is joined with history")
        taken = [live_alias, *(h.alias.written if h.alias else h.stream.written for h in earlier)]
        if alias.lower() in map(str.lower, taken):
            self.fault("HQ300", f"two sides of the join are called {alias}", (join.alias or join.stream).span,
                       "the same name again", "name both by AS: ... AS pl JOIN HISTORY OF ... AS pa ON ...")
            return None
        own = BARE_NAME.fullmatch(factor.input.strip())
        same = own is not None and unquoted(own[1]).lower() == join.stream.written.lower()
        if same and join.closed and join.kind in (HistoryKind.SEMI, HistoryKind.ANTI):
            self.warnings.append(Diagnostic(
                "", f"BETWEEN holds both ends, so the history {alias} may hold the {live_alias} match's own events",
                join.low.span.to(join.high.span), hint="FROM ... TO ... excludes the upper end",
            ))  # fmt: skip
        if live is None:
            return None
        columns = output_columns(plan) if plan is not None else schema.fields
        tables = {live_alias: live_columns, alias: columns}
        join = replace(join, low=self.plain(join.low, tables), high=self.plain(join.high, tables),
                       on=self.plain(join.on, tables))  # fmt: skip
        self.bound(join.low, live_alias, live_columns)
        self.bound(join.high, live_alias, live_columns)
        shown = {c.name: o.name for c, o in zip(live_columns, output_columns(live))}
        pinned, rest = self.on(join, live_alias, live_columns, alias, columns, plan)
        on_rest = self.over_both(rest, join.on, live_alias, live_columns, shown, alias, columns) if rest else None
        equalities = tuple((h, shown[c]) for h, c in pinned)
        names = {c.name.lower(): o for c, o in zip(live_columns, output_columns(live))}
        return HistoryPlan(
            join.kind, schema, alias, join.low.text.strip(), join.high.text.strip(), join.closed, join.as_known, plan,
            join.on.text.strip(), equalities, _shift(join.low, names), _shift(join.high, names), rest != [], on_rest,
            self.session.settings, after_us(join.high, live, names), join.high.span, known_span(self.query.text, join),
            rows_of, None if rows_of is None else reach_us(rows_of.plan), merged,
        )  # fmt: skip

    def known(self, input_sql: str) -> bool:
        """True if an input is a stream or relation."""
        try:
            self.resolve(input_sql)
        except LookupError:
            return False
        return True

    def rows_of(self, box: Box, span: Span) -> tuple[Box, Schema | None, Schema | None]:
        """Returns a named pattern whose rows are a history, with the times of its matches, their columns, None after a
        fault, and the columns of its events if it reads several streams."""
        before, name = len(self.faults), box.name
        plan, inputs, merged = box.plan, box.inputs, None
        if not read_alike(plan, inputs):
            made = merged_inputs(plan, inputs, name, span, self.faults)
            if made is not None:
                plan, merged, inputs = made
        else:
            plan = without_inputs(plan)
            merged = plan.schema if len(inputs) > 1 else None
        own = {column.lower() for column, _ in box.columns}
        if taken := own & set(TIMES):
            self.fault("HQ500", f"HISTORY OF {name}, which has a column {min(taken)} of its own, is not supported yet",
                       span, "the times of a match", "give that column another name")
        if joins_of(plan):
            self.fault("HQ500", f"HISTORY OF {name}, which is joined with history itself, is not supported yet", span,
                       "a history of its own", "keep its rows in a stream: into=, and join HISTORY OF that")
        if not all(BARE_NAME.fullmatch(one.input_sql) for one in inputs):
            self.fault("HQ500", f"HISTORY OF {name}, which reads a SELECT, is not supported yet", span)
        elif self.live and last_event_lag_us(box.plan) is None:
            self.fault("HQ220", f"rows of {name} may be returned any time after their last event", span, "no bound",
                       f"add WITHIN INTERVAL '...' to {name}; NEXT and $ always wait")
        if len(self.faults) > before:
            return box, None, None
        plan = with_times(plan)
        columns = (*box.columns, *((time, time) for time in TIMES))
        types = {c.name: c.type for c in output_columns(plan)}
        fields = tuple(Field(shown, types[column]) for shown, column in columns)
        shown = replace(box, plan=plan, columns=columns, inputs=inputs)
        return shown, Schema(name, fields, time=TIMES[1]), merged

    def with_a_column(self, plan: Plan, kind: HistoryKind, alias: str, span: Span) -> Plan:
        """Adds an invisible column to the rows of SEMI and ANTI joins without columns: rows without columns cannot be
        counted."""
        if kind in (HistoryKind.SEMI, HistoryKind.ANTI):
            return replace(plan, measures=(Measure(UNSEEN, TRUE),))
        self.fault("HQ217", f"the matches of {alias} have no column to show", span, "no PARTITION BY, and no MEASURES",
                   ADD_A_COLUMN)
        return plan

    def only_matches(self, match: ast.MatchRecognize | None, what: str) -> None:
        """Checks that only matches are returned: unmatched rows and timeouts have no history, and are none."""
        if match is not None and match.timeout is not None:
            self.fault("HQ300", f"{what} gives matches only", match.timeout, "these are no matches",
                       "ask for TIMEOUT ROWS in a query of their own")
        if match is not None and match.rows is ast.RowsPerMatch.ALL_WITH_UNMATCHED:
            words = re.search(r"WITH\s+UNMATCHED\s+ROWS", self.query.text[match.span.start : match.span.end], re.I)
            start = match.span.start
            span = Span(start + words.start(), start + words.end()) if words else match.span
            self.fault("HQ300", f"{what} gives matches only", span, "these are no matches",
                       "ask for the unmatched rows in a query of their own")

    def bound(self, text: ast.ExpressionText, alias: str, columns: Sequence[Field]) -> None:
        """Checks one end of a history range."""
        before = len(self.faults)
        node = self.outside_pattern(text, "a history range")
        if node is None:
            return
        for ref in _nodes_of(node, "COLUMN_REF"):
            names, span = [str(n) for n in ref["column_names"]], _span(ref, text)
            if len(names) > 1 and names[0].lower() != alias.lower():
                self.fault("HQ301", f"a history range is made of {alias}'s columns and fixed times", span,
                           f"not of {alias}", f"available: {', '.join(f'{alias}.{c.name}' for c in columns[:8])}")
            else:
                self.column_of(names[1 if len(names) > 1 else 0], alias, columns, span)
        if len(self.faults) > before:
            return
        try:
            found = duck.describe([text.text], {alias: columns}, self.session.settings)[0]
        except DuckFault as fault:
            self.faults.append(type_diagnostic(fault, text.span))
            return
        if found not in TIME_TYPES:
            hint = "write a TIMESTAMP: TIMESTAMP '2024-01-01', or a time of the match minus an INTERVAL"
            self.fault("HQ301", f"a history range is made of times, and this is {found}", text.span, found, hint)

    def on(
        self, join: ast.HistoryJoin, live_alias: str, live_columns: Sequence[Field], alias: str,
        columns: Sequence[Field], plan: Plan | None,
    ) -> tuple[tuple[tuple[str, str], ...], list[Node] | None]:
        """Checks ON. Returns the equalities that pin a key of the history to a value of the match, and the other
        conjuncts; None if none can be tested by itself."""
        before = len(self.faults)
        node = self.outside_pattern(join.on, "ON")
        if node is None:
            return (), None
        for ref in _nodes_of(node, "COLUMN_REF"):
            self.side(ref, join.on, live_alias, live_columns, alias, columns)
        if len(self.faults) > before:
            return (), None
        try:
            found = duck.describe(
                [join.on.text], {live_alias: live_columns, alias: columns}, self.session.settings
            )[0]
        except DuckFault as fault:
            self.faults.append(type_diagnostic(fault, join.on.span))
            return (), None
        if found != "BOOLEAN":
            self.fault("HQ205", f"the condition ON is {found}, not BOOLEAN", join.on.span, found)
        if plan is not None and plan.selection is Selection.STRICT:
            return (), None  # under STRICT every row of the stream counts
        keys: tuple[str, ...] = ()
        if plan is not None:
            keys = common_keys(plan) if plan.trends is None else tuple(c.name for c in plan.trends.group_by)
        pinned = list(keys) if plan is not None else [f.name for f in columns]
        equalities: list[tuple[str, str]] = []
        rest: list[Node] = []
        for conjunct in node["children"] if node["type"] == "CONJUNCTION_AND" else [node]:
            sides = dict[str, Field]()
            for part in (conjunct["left"], conjunct["right"]) if conjunct["type"] == "COMPARE_EQUAL" else ():
                if part["class"] == "COLUMN_REF":
                    side = self.side(part, join.on, live_alias, live_columns, alias, columns)
                    if side is not None:
                        sides[side[0]] = side[1]
            if len(sides) == 2 and sides["history"].name in pinned and sides["history"].type == sides["live"].type:
                equalities.append((sides["history"].name, sides["live"].name))
            else:
                rest.append(conjunct)
        return tuple(dict.fromkeys(equalities)), rest

    def over_both(
        self, conjuncts: list[Node], text: ast.ExpressionText, live_alias: str, live_columns: Sequence[Field],
        shown: Mapping[str, str], alias: str, columns: Sequence[Field],
    ) -> Expression | None:  # fmt: skip
        """Returns conjuncts of ON over columns called live.<column> and history.<column>; None if a pattern's condition
        cannot express them. shown: the columns of the match, by their names in its rows."""
        conjuncts = copy.deepcopy(conjuncts)
        for ref in _nodes_of(conjuncts, "COLUMN_REF"):
            side = self.side(ref, text, live_alias, live_columns, alias, columns)
            if side is None:
                return None
            name = shown[side[1].name] if side[0] == "live" else side[1].name
            ref["column_names"] = [f"{side[0]}.{name}"]
        fields = [Field(f"live.{shown[c.name]}", c.type) for c in live_columns]
        fields += [Field(f"history.{c.name}", c.type) for c in columns]
        scope = Scope(Schema("ON", tuple(fields)), (), (), {}, None, one_row=True, volatile=False,
                      session=self.session)
        written = " AND ".join(f"({duck.deserialize(conjunct)})" for conjunct in conjuncts)
        return bind_expression(ast.ExpressionText(written, text.span), scope, [])

    def side(
        self, ref: Node, text: ast.ExpressionText, live_alias: str, live_columns: Sequence[Field], alias: str,
        columns: Sequence[Field],
    ) -> tuple[str, Field] | None:
        """Returns the side of the join that a column of ON belongs to, and the column; None for a field of a struct or
        a fault."""
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
                self.fault("HQ500", f"ON of {alias} may refer to {live_alias} and {alias} only", span,
                           hint="compare further tables in WHERE")
            else:
                self.fault("HQ200", f"table {names[0]} is not in scope", span, "no such table",
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

    def plain(self, text: ast.ExpressionText, tables: Mapping[str, Sequence[Field]]) -> ast.ExpressionText:
        """Returns an expression over finished rows with bodies of the connection's macros, and what its types stand
        for, in their place."""
        try:
            node = duck.parse_expression(text.text, self.session.settings)
        except DuckFault:
            return text  # reported where it is checked

        def type_of(part: Node) -> str | None:
            if not _nodes_of(part, "COLUMN_REF"):
                return None
            try:
                return duck.describe([duck.deserialize(part)], tables, self.session.settings)[0]
            except DuckFault:
                return None

        made = in_place(node, self.session, type_of, lambda part: _span(part, text), self.faults)
        return text if made == node else replace(text, text=duck.deserialize(made), source=None)

    def outside_pattern(self, text: ast.ExpressionText, place: str) -> Node | None:
        """Returns an expression over finished rows: no aggregates, windows, subqueries or volatile functions."""
        try:
            node = duck.parse_expression(text.text, self.session.settings)
        except DuckFault as fault:
            self.faults.append(syntax_diagnostic(fault, text))
            return None
        for kind in ("SUBQUERY", "WINDOW", "PARAMETER", "STAR"):
            for part in _nodes_of(node, kind):
                self.fault("HQ500", f"{kind.lower()} in {place} is not supported yet", _span(part, text))
        for call in _nodes_of(node, "FUNCTION"):
            name = str(call["function_name"]).lower()
            if name in duck.aggregate_names() or name in ("prev", "next", "classifier", "match_number"):
                self.fault("HQ300", f"{name.removesuffix('_star')} is not allowed in {place}", _span(call, text),
                           hint="compute it in MEASURES")
            elif duck.is_volatile(name, len(call["arguments"])):
                self.faults.append(volatile_diagnostic(name, _span(call, text)))
        clock = [r for r in _nodes_of(node, "COLUMN_REF") if str(r["column_names"][0]).lower() in duck.CLOCK_WORDS]
        for ref in clock:
            self.faults.append(volatile_diagnostic(str(ref["column_names"][0]), _span(ref, text)))
        return None if clock else node


def shown_columns(history: HistoryPlan, text: str) -> tuple[Field, ...]:
    """Returns the columns of a history in the outer SELECT: its own, and `history_complete` if the query refers to
    that."""
    columns = history_columns(history)
    if re.search(r"\bhistory_complete\b", text, re.IGNORECASE) and _field(columns, "history_complete") is None:
        return (*columns, Field("history_complete", "BOOLEAN"))
    return columns


# ---- helpers -------------------------------------------------------------------------------------------------------


def _field(columns: Sequence[Field], name: str) -> Field | None:
    return next((f for f in columns if f.name.lower() == name.lower()), None)


def _is_part(part: str, text: str) -> bool:
    """True if a text is another one up to some place, of which the rest is blanks, or commas between its parts."""
    return len(part) <= len(text) and all(a == b or a in " ," for a, b in zip(part, text))


def shortened(text: str) -> str:
    """Returns an input's SQL as messages show it."""
    words = " ".join(text.split())
    return words if len(words) <= 40 else words[:37] + "..."


def _alias_sql(name: str) -> str:
    plain = re.fullmatch(r"[a-z_]\w*", name, re.IGNORECASE | re.ASCII) and name.lower() not in duck.reserved_words()
    return name if plain else quote(name)


def _shift(text: ast.ExpressionText, columns: Mapping[str, Field]) -> Shift | None:
    """Returns a bound of a history range as a column and a fixed duration; None if it is not of that form."""
    try:
        node = duck.parse_expression(text.text)
        us = 0
        if node["class"] == "FUNCTION" and node["function_name"] in ("+", "-") and len(node["arguments"]) == 2:
            (sign, node, by) = (node["function_name"], *(a["expression"] for a in node["arguments"]))
            folded = duck.fold(duck.deserialize(by)) if not any(_nodes_of(by, "COLUMN_REF")) else None
            if folded is None or folded.type != "INTERVAL" or folded.microseconds is None:
                return None
            us = folded.microseconds if sign == "+" else -folded.microseconds
        field = columns.get(str(node["column_names"][-1]).lower()) if node["class"] == "COLUMN_REF" else None
    except DuckFault:
        return None
    return Shift(field.name, us) if field is not None and field.type == "TIMESTAMP" else None


def _nodes_of(node: Node | list[Node], kind: str) -> list[Node]:
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


def _read_below(plan: Plan) -> Iterator[str]:
    """Yields the streams that the patterns of boxes read, in all layers, by name in lower case."""
    for box in modules(plan.boxes):
        yield from (same_input(one.input_sql) for one in box.inputs)
        yield from _read_below(box.plan)

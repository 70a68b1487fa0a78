"""Runs one bounded statement: reads inputs, matches patterns, joins histories, and lets DuckDB do the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa

from archive.interrupts import Deferred
from archive.reader import HistoryReader
from archive.search.search import SearchReport, search
from hybrid.join.driver import Driver, HistoryStream
from hybrid.join.joined_matcher import JoinedMatcher
from hybrid.join.strategies import strategy_of
from hybrid.rows import duck
from hybrid.rows.answer import Answer, answer_of, rows_alone, rows_of
from hybrid.rows.faults import placed, placed_data, placed_history
from hybrid.rows.inputs import OrderedInput
from hybrid.rows.limited import limited
from hybrid.rows.lookup import lookup_in
from hybrid.rows.outer import Outer, empty_answer
from hybrid.rows.reread import alike
from hybrid.rows.result import Lookups, Result, evidence_table, series
from hybrid.rows.taking import taken
from hybrid.statement.by_key import ByKey, run_by_key
from hybrid.statement.compressed import Compressed, compress
from hybrid.statement.counted import counted_answer, counted_select
from hybrid.statement.explain import explain_plan
from hybrid.statement.first_text import with_row
from hybrid.statement.flowing import OutOfOrder
from hybrid.statement.gathered import Gathered, dates, knowing, run_alone, run_gathered
from hybrid.statement.narrow import narrow_first
from hybrid.statement.open_matches import open_matches, outcomes_at_end
from hybrid.statement.progress import of_statement, progress
from hybrid.statement.relations import Relations
from hybrid.statement.resorted import resorted
from hybrid.statement.rows_met import order_of_rows, rows_met, waits
from matching.batch import EventBatch, Matcher, Matches
from matching.drive import run
from matching.purpose import Purpose
from matching.spill import Spill
from query.errors import DataError, NotComputed, Overflows, QueryError, TooWide, warn
from query.language.parse import parse
from query.plan.expression import Aggregate, walk
from query.plan.joined_rows import joins_of
from query.plan.plan import FactorPlan, Plan
from query.stopping import expect

if TYPE_CHECKING:
    from matching.hierarchy.modules import Join
    from matching.program.program import Program


def make_matcher(
    plan: Plan, purpose: Purpose = Purpose.MATCHES, spill: Spill | None = None, join: Join | None = None
) -> Matcher:
    """Returns a matcher of a plan; the first call loads the numba kernel. spill, join: see `live_matcher`."""
    with Deferred():  # an interrupted import would leave half a module
        from hybrid.statement.background_compile import builder
        from hybrid.statement.compile_notice import tell_people
        from matching.matcher import make_matcher as make

    tell_people()
    return make(plan, lenient=purpose.live, builder=builder(), purpose=purpose, spill=spill, join=join)


def joining_matcher(
    plan: Plan, histories: Mapping[str, HistoryStream], purpose: Purpose = Purpose.MATCHES, late: bool = False
) -> Matcher:
    """Returns the matcher of a pattern with boxes that are joined with history, for a bounded input. histories: by
    stream, in lower case. late: late rows of these count, too."""

    def join(box: Plan, matcher: Matcher) -> Matcher:
        return JoinedMatcher(box, matcher, histories, make_matcher, late)

    return make_matcher(plan, purpose, join=join)


def rows_matcher(plan: Plan) -> Matcher:
    """Returns a matcher for output rows without evidence, which may be cheaper."""
    return make_matcher(plan, Purpose.ROWS)


def live_matcher(
    plan: Plan, spill: Spill | None = None, purpose: Purpose = Purpose.LIVE, join: Join | None = None
) -> Matcher:
    """Returns a matcher for a live query. If AFTER MATCH SKIP TO would not move on, it emits the match and continues at
    the next row. spill: stores partial matches that do not fit in memory. purpose: the use of its matches. join: of
    boxes joined with history."""
    return make_matcher(plan, purpose, spill, join)


def sql(text: str, connection: duckdb.DuckDBPyConnection | None = None, timeout: Any = None, **tables: Any) -> Result:
    """Runs one statement over named tables; see hybrid.sql."""
    if connection is not None and not isinstance(connection, duckdb.DuckDBPyConnection):
        message = f"{type(connection).__module__}.{type(connection).__name__} is not a DuckDB connection"
        hint = "tables are passed by name: hybrid.sql(text, ticks=df)"
        if isinstance(connection, str):
            hint = "duckdb.connect opens a database"
        elif connection is duckdb:
            hint = "pass duckdb.default_connection()"
        raise DataError(message, hint)
    with (
        duck.interruptible(connection),
        limited(text, timeout, connection) as stop,
        progress(of_statement(stop)),
        Relations(text, tables, connection=connection).open() as relations,
    ):
        stop.bytes_max = relations.bytes_max
        return answer(text, relations)


def matches(
    text: str, connection: duckdb.DuckDBPyConnection | None = None, timeout: Any = None, **tables: Any
) -> Compressed:
    """Returns the matches of one statement over named tables as a graph; see hybrid.matches."""
    with (
        duck.interruptible(connection),
        limited(text, timeout, connection) as stop,
        progress(of_statement(stop)),
        Relations(text, tables, connection=connection).open() as relations,
    ):
        stop.bytes_max = relations.bytes_max
        query = parse(text, relations.names(), relations.patterns)
        relations.allow(query)
        plan = relations.bind(query)
        relations.load(plan)
        return compress(plan, relations)


def explain_tables(text: str, stage: str, tables: Mapping[str, Any]) -> str:
    """Explains a statement over named tables. Reads only their columns."""
    return explain_in(text, stage, Relations(text, tables))


def explain_in(text: str, stage: str, relations: Relations) -> str:
    """Explains a statement over relations."""
    query = parse(text, relations.names(), relations.patterns)
    with relations.open():
        return explain_plan(query, relations.bind(query), stage)


def answer(text: str, relations: Relations, make: Callable[[Plan], Matcher] = make_matcher) -> Result:
    """Parses, binds and runs a statement over relations."""
    query = parse(text, relations.names(), relations.patterns)
    relations.allow(query)
    plan = relations.bind(query)
    if relations.spark is not None:
        relations.spark.refuse(plan, relations.streams_in, relations.searched_by_spark)
    relations.load(plan)
    outer = Outer(plan, has_enums=relations.has_enums, collations=relations.collations(plan))
    ends_open = any(outcomes_at_end(f.plan) and relations.open_inputs(f) for f in plan.factors)
    counted = counted_select(plan) if make is make_matcher and not ends_open else None
    found: list[tuple[Answer, Lookups]] = []
    bare = make is make_matcher and not ends_open and not any(factor.histories for factor in plan.factors)

    def find(make: Callable[[Plan], Matcher]) -> None:
        found.clear()
        for i, factor in enumerate(plan.factors):
            try:
                found.append(answer_factor(factor, relations, make))
            except QueryError as error:
                if factor.histories:
                    raise placed_history(error, query) from None
                raise placed(error, query.factors[i].match, query.text) from None
            except NotComputed as error:
                error = with_row(error, query, factor.plan.schema.name, relations)
                raise placed_data(error, query) from None
            if i + 1 < len(plan.factors):  # a later input may read it
                for name, rows in outer.tables(i, found[i][0]).items():
                    relations.register(name, rows, outer.fields[name])

    connection = relations.connection
    table = None
    if counted is not None:
        with suppress(Overflows, NotComputed):  # raised again below, or matched in wider types
            table = counted_answer(counted, plan.factors[0], relations, outer, connection)
    if table is None:
        find(rows_matcher if bare else make)
        for message in relations.open_matches:
            warn(message)
        table = outer.run([a for a, _ in found], connection)

    def evidence(rows: int | None) -> pa.Table:
        nonlocal bare
        with relations.open():
            relations.load(plan)
            counts_only = counted is not None and not found
            if counts_only and rows is not None:  # for a preview: counted matches have no evidence
                _, reader, late = relations.factor(plan.factors[0])
                nothing = empty_answer(plan.factors[0])
                return evidence_table(plan, [nothing], None, [(lookup_in(reader, late), ())])
            if counts_only or bare:  # reads the input once more
                before = [a.live for a, _ in found]
                find(make)
                if any(not alike(rows, a.live) for rows, (a, _) in zip(before, found)):
                    what = "these are not the rows that the matches were found in: they have changed since"
                    raise DataError(what, "run the statement again")
                bare = False
            answers, lookups = [a for a, _ in found], [of for _, of in found]
            return evidence_table(plan, answers, outer.sources(answers, connection), lookups, rows)

    def around(low_us: int, high_us: int) -> pa.Table:
        return series(found[0][1][0], low_us, high_us)

    def explain(stage: str) -> str:
        shown = [f"searched    {alias}: {report}" for alias, report in relations.reports.items()]
        return "\n\n".join([explain_plan(query, plan, stage), *shown])

    def why_empty() -> str:
        from hybrid.statement import zero_rows  # loads the reference

        return zero_rows.why_empty(plan, relations, [len(answer) for answer, _ in found])

    between = around if len(plan.factors) == 1 else None
    return Result(table, plan, evidence, explain, between, given=relations.given, why_empty=why_empty)


def answer_factor(
    factor: FactorPlan, relations: Relations, make: Callable[[Plan], Matcher] = make_matcher
) -> tuple[Answer, Lookups]:
    """Returns the rows of one pattern factor, joined with its histories, and the lookups of its events."""
    if factor.histories or relations.searched_by_spark(factor):
        return _answer_factor(factor, relations, make)
    return narrow_first(factor.plan, lambda plan: _answer_factor(replace(factor, plan=plan), relations, make))


def _answer_factor(
    factor: FactorPlan, relations: Relations, make: Callable[[Plan], Matcher]
) -> tuple[Answer, Lookups]:
    histories = [relations.history(h) for h in factor.histories]
    beside = tuple(lookup_in(view.reader(), seen) for view, seen in histories)
    if beside_boxes := joins_of(factor.plan):
        views = {h.schema.name.lower(): relations.history(h) for h in beside_boxes}
        sources = {name: view for name, (view, _) in views.items()}
        seen_late = any(seen for _, seen in views.values())
        make = partial(joining_matcher, histories=sources, late=seen_late)
    alone = not factor.histories and factor.plan.trends is None and not factor.plan.boxes
    again = make is not rows_matcher
    flowing = relations.flowing(factor) if alone and not again else None
    if flowing is not None:
        try:
            with closing(flowing.batches()) as rows:
                matches = list(run(make(factor.plan), rows))
            nothing = OrderedInput.of(flowing.name, flowing.first.slice(0, 0), (), None)
            return _in_order(factor.plan, matches, nothing, False), (lookup_in(nothing, False), ())
        except (OutOfOrder, Overflows) as error:  # then all rows are read before they are matched
            if isinstance(error, TooWide) and factor.plan.narrow:
                raise
    matcher, met = None, None
    if alone and not again and relations.stream(factor.input_sql) is None:
        matcher = make(factor.plan)
        met = partial(rows_met, matcher)
    batches, reader, late = relations.factor(factor, by_key=alone, again=again, met=met)
    lookups: Lookups = (lookup_in(reader, late), beside)
    stream, by_spark = relations.searched(factor), relations.searched_by_spark(factor)
    if by_spark and relations.spark is not None:
        if make is rows_matcher:
            return rows_alone(relations.spark.rows(factor, by_spark)), lookups
        found = relations.spark.matches(factor, by_spark)
    elif stream is None or beside_boxes:
        try:
            found = _found(factor.plan, reader, batches, make, alone, matcher)
        except Overflows as overflow:
            if not alone or not may_be_wide(factor.plan, overflow):
                raise
            batches, reader, late = relations.factor(factor)
            lookups, all_rows = (lookup_in(reader, late), beside), list(batches)
            found = found_again(factor.plan, overflow, lambda plan, make: list(run(make(plan), all_rows)))
    else:
        arrange = partial(resorted, order_by=factor.plan.order_by)

        def searched(plan: Plan, make: Callable[[Plan], Matcher]) -> list[Matches]:
            report = relations.reports[factor.alias] = SearchReport()
            return list(search(stream.snapshot, plan, stream.request, make=make, arrange=arrange, report=report))

        try:
            found = searched(factor.plan, make)
        except Overflows as overflow:
            if not alone or not may_be_wide(factor.plan, overflow):
                raise
            found = found_again(factor.plan, overflow, searched)
    if (message := open_matches(factor.plan, found, relations.open_inputs(factor))) is not None:
        relations.open_matches.append(message)
    if make is rows_matcher or not factor.histories:
        return _in_order(factor.plan, found, reader, make is not rows_matcher), lookups
    driver = Driver(factor, strategy_of("auto"), make, spark=relations.large)
    driver.take(found)
    by_name = {h.schema.name.lower(): view for h, (view, _) in zip(factor.histories, histories)}
    answered = driver.settle(by_name, late=any(seen for _, seen in histories))
    return answered if answered is not None else empty_answer(factor), lookups


def _found(
    plan: Plan, reader: HistoryReader, batches: Iterable[EventBatch], make: Callable[[Plan], Matcher], alone: bool,
    matcher: Matcher | None,
) -> list[Matches]:  # fmt: skip
    """Returns the matches of an input. reader, batches: as of Relations.factor. alone: without histories, trends and
    boxes. matcher: a new one of the plan, if there is one."""
    matcher, again = make(plan) if matcher is None else matcher, make is not rows_matcher
    if isinstance(reader, ByKey | OrderedInput):
        expect(reader.table.num_rows)
    if isinstance(reader, ByKey):
        found = list(run_by_key(matcher, reader, plan.columns))
        return [reader.own_times(m) for m in found] if again else found
    if isinstance(reader, OrderedInput) and alone and not again:
        return found_in(matcher, reader, batches, plan, make)
    return list(run(matcher, batches))


def found_again(
    plan: Plan, overflow: Overflows, find: Callable[[Plan, Callable[[Plan], Matcher]], list[Matches]]
) -> list[Matches]:
    """Returns the matches where a number of a condition is beyond 64 bits: DuckDB computes such numbers, if that
    suffices; else the reference finds them. find: returns those of a plan by the matchers that it is given."""
    exact = replace(plan, narrow=False)
    if (program := wide_program(exact)) is not None:
        warn(matched_again(overflow, "with the numbers that DuckDB computes: exact, but slower"))
        with suppress(Overflows):
            return find(exact, partial(_by_program, program))
    warn(matched_again(overflow, "by the reference matcher: exact, but slow and with all rows kept in memory"))
    return find(exact, by_reference)


def _in_order(plan: Plan, found: Sequence[Matches], reader: HistoryReader, again: bool) -> Answer:
    """Returns the answer of matches of a table, those that wait in an order that does not depend on the way in which
    they were found. reader: as of Relations.factor. again: with their evidence."""
    answer = answer_of(plan, found) if again else rows_of(plan, found)
    if not waits(plan) or not isinstance(reader, ByKey | OrderedInput):
        return answer
    order = order_of_rows(found, reader if isinstance(reader, ByKey) else None)
    if order is None:
        return answer
    return answer.take(order) if again else rows_alone(taken(answer.live, order))


def found_in(
    matcher: Matcher, rows: OrderedInput, batches: Iterable[EventBatch], plan: Plan, make: Callable[[Plan], Matcher]
) -> list[Matches]:
    """Returns the bare matches of an input, whose rows come as batches, in the order in which they come out of these.
    make: makes another matcher of the plan."""
    gathered = Gathered.of(rows, plan) if dates(matcher) else None
    if gathered is not None:
        found = run_gathered(matcher, gathered.blocks(plan.columns), waits(plan))
        if found is not None:
            return found
        matcher = knowing(make(plan), matcher)
    elif (found := run_alone(matcher, rows, plan)) is not None:
        return found
    return list(run(matcher, batches))


def by_reference(plan: Plan) -> Matcher:
    """Returns the reference matcher of a plan."""
    from matching.by_reference import ReferenceMatcher
    from matching.hierarchy.matcher import HierarchyMatcher
    from matching.trends_by_reference import ReferenceTrends

    if plan.boxes:
        return HierarchyMatcher(plan, lambda layer, _: by_reference(layer))
    return ReferenceMatcher(plan) if plan.trends is None else ReferenceTrends(plan)


def wide_program(plan: Plan) -> Program | None:
    """Returns the program for which DuckDB computes sums, and numbers of columns, that may be beyond 64 bits; None
    unless there are some, or if only the reference can."""
    from matching.program.program import NoKernel, assemble

    try:
        program = assemble(plan, wide=True)
        return None if program == assemble(replace(plan, narrow=True)) else program
    except NoKernel:
        return None


def _by_program(program: Program, plan: Plan) -> Matcher:
    from matching.engines.choose import choose_engine
    from matching.matcher import KernelMatcher

    return KernelMatcher(plan, choose_engine(plan, Purpose.MATCHES, program))


def matched_again(overflow: Overflows, way: str) -> str:
    """Returns the warning that all rows are matched again."""
    what = overflow.message.partition(" at ")[0]
    return f"{what}{'' if '64 bits' in what else ' in 64 bits'}: all rows are matched again {way}"


def may_be_wide(plan: Plan, overflow: Overflows | None = None) -> bool:
    """True if conditions of a plan have aggregates, numbers of more than 64 bits, intervals that may have months, or
    decimals, which a comparison may scale beyond these: kernels compute with 64. overflow: of this plan; False for a
    value that is too wide for a narrow one, which is to be run without."""
    from matching.program.lanes import is_wide

    if plan.narrow and isinstance(overflow, TooWide):
        return False
    parts = (part for define in plan.defines for part in walk(define.condition))
    return any(
        isinstance(part, Aggregate) or is_wide(part.type) or part.type.startswith(("DECIMAL", "INTERVAL"))
        for part in parts
    )


def compare_with_reference(text: str, tables: Mapping[str, Any]) -> tuple[int, bool]:
    """Runs a statement with the kernel and with the reference matcher. Returns the number of rows, and True if both
    return the same rows."""
    answers = []
    for make in (make_matcher, by_reference):
        with Relations(text, tables).open() as relations:
            answers.append(answer(text, relations, make).arrow())
    first, second = ([repr(row) for row in table.to_pylist()] for table in answers)
    return len(first), sorted(first) == sorted(second)

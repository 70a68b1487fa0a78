"""The choice of the engine for a plan: made here only, executed by every path, printed by EXPLAIN."""

from __future__ import annotations

from dataclasses import replace

from matching.engines.engine import Engine, EnginePlan, WantedRows, spills
from matching.engines.run_awaited import RunAwaited, waits_alone
from matching.engines.run_blocks import RunBlocks
from matching.engines.run_conjoined import RunConjoined
from matching.engines.run_counts import RunCounts
from matching.engines.run_graph import RunGraph
from matching.engines.run_lists import RunLists
from matching.engines.run_merged import RunMerged
from matching.engines.run_ordered import RunOrdered
from matching.engines.run_panes import RunPanes
from matching.engines.run_starts import RunStarts
from matching.engines.run_table import RunTable
from matching.engines.run_trends import RunTrends
from matching.kernels.starts import COUNT_OF, FIRST_OF, LAST_OF
from matching.program.carried import Carried, Chain, Picked, carry, chain_of, pick
from matching.program.determinise import ListTable, determinise
from matching.program.equalities import equalities_of_steps
from matching.program.live import merges, merges_rows
from matching.program.program import Ignore, Mode, NoKernel, Program, Skip, assemble
from matching.program.starts import StartTable, start_table
from matching.program.trends import conjoined_program
from matching.purpose import Purpose
from matching.tied import Tied, tied
from query.language.ast import Selection
from query.plan.boxes import KIND
from query.plan.expression import Column, MatchNumber, walk
from query.plan.never_fails import never_fails
from query.plan.plan import Plan

#: Maximum number of states for which each partition has a list for every state.
GRAPH_STATES_MAX = 64
#: Maximum number of states for counting matches without finding them: each partition has a number for every two of
#: them.
COUNT_STATES_MAX = 16
#: Maximum number of partial matches of one partition at a time.
RUNS_MAX = 200_000
#: The same where a row meets the partial matches that wait for its value only.
RUNS_LOOKED_UP_MAX = 2_000_000
#: The engine that knows whether a condition that cannot be computed is read, and so continues after another one.
AFTER_FAILURE = RunLists
#: Types whose values all fit into a lane, or have a code.
_NARROW = ("BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "DOUBLE", "FLOAT", "VARCHAR", "DATE", "TIMESTAMP")


def choose_engine(plan: Plan, purpose: Purpose, program: Program | None = None) -> EnginePlan:
    """Returns the engine that runs a plan for a purpose: of the capable ones, that with the least work per row. Without
    an engine the plan runs through the reference matcher, and is neither counted nor kept as a graph. program: of the
    plan, if it has been assembled. Raises QueryError. Cost: that of making the tables, within their limits.

    A new engine is a file beside this one, and a line here before the engines that are to serve only as its
    fallback."""
    if plan.trends is not None:
        return _of_trends(plan, purpose)
    if plan.boxes:
        return EnginePlan(None, "a pattern with boxes: one matcher for each layer", purpose, None)
    gives_matches = purpose not in (Purpose.COUNTS, Purpose.GRAPH)
    looked_up = tied(plan) if gives_matches and program is None else None
    program = _among_rows_of_one_value(looked_up) if isinstance(looked_up, Tied) else program
    if program is None:
        looked_up = None if isinstance(looked_up, Tied) else looked_up
        try:
            program = assemble(plan)
        except NoKernel as construct:
            return EnginePlan(None, str(construct), purpose, None, instead=construct.instead)
    if purpose.again and not (found_again(plan, program) or (contiguous(program) and program.number < 0)):
        purpose = Purpose.LIVE

    looks_up_steps = bool(equalities_of_steps(program))

    def by(
        engine: type[Engine], why: str, table: ListTable | StartTable | None = None, carried: Carried | None = None,
        chain: Chain | None = None, picked: Picked | None = None,
    ) -> EnginePlan:  # fmt: skip
        divided = looked_up.plan if isinstance(looked_up, Tied) else plan
        resident = why_resident(divided, program if carried is None else carried.program, engine)
        columns = looked_up.columns if isinstance(looked_up, Tied) else ()
        if columns and program.reach.before:
            resident = "PREV reads rows of other values"
        if program.numbered:
            resident = "WITHIN counts rows of other values"
        if columns and program.absence.behind:
            resident = "matches of several values wait, to be put in order"
        return EnginePlan(
            engine, why, purpose, program, table, carried, picked, chain, rows_wanted(program), resident,
            RUNS_LOOKED_UP_MAX if looks_up_steps and engine is RunBlocks else RUNS_MAX,
            looked_up=columns, not_looked_up=looked_up if isinstance(looked_up, str) else "",
        )  # fmt: skip

    if purpose is Purpose.COUNTS and counts_paths(program):
        return by(RunCounts, "matches are counted by state without being found")
    if purpose is Purpose.COUNTS:
        return EnginePlan(None, "a count of these matches", purpose, program)
    if purpose is Purpose.ROWS and not isinstance(looked_up, Tied) and waits_alone(program) and _none_fails(plan):
        return by(RunAwaited, "each match is a single row that waits, and conditions read single rows")
    if gives_matches and (table := determinise(program)):
        where = "at the last row of" if program.skip.row is Skip.TO_LAST else "after"
        return by(RunTable, f"conditions read single rows, and a match begins {where} the one before", table)
    if gives_matches and (starts := start_table(program)):
        picked = pick(plan, program, (LAST_OF, FIRST_OF, COUNT_OF)) if purpose is Purpose.ROWS else None
        return by(RunStarts, "conditions read single rows, and each start is decided separately", starts, picked=picked)
    if shares_paths(program):
        as_chain = chain_of(plan, program) if purpose.carries else None
        return by(RunGraph, "all matches are wanted, and runs in the same state have the same future", chain=as_chain)
    # of a box there may be very many matches for each event
    boxed = any(field.name == KIND.name for field in plan.schema.fields)
    # few runs meet a row that looks them up
    merging = purpose is Purpose.GRAPH or (merges(program) and not looks_up_steps) or (boxed and merges_rows(program))
    if merges_runs(program) and merging:
        return by(RunMerged, "all matches are wanted, and runs with equal values have the same future")
    if purpose is Purpose.GRAPH:
        return EnginePlan(None, "a graph of these matches", purpose, program)
    if program.ignore:
        carried = carry(plan, program) if purpose.carries else None
        return by(RunBlocks, "rows may be skipped, and each run has its own future", carried=carried)
    return by(RunLists, "each run has its own future")


def _none_fails(plan: Plan) -> bool:
    """True if each condition can be computed for every row."""
    conditions = [d.condition for d in plan.defines]
    columns = (e for condition in conditions for e in walk(condition) if isinstance(e, Column))
    narrow = all(column.type in _NARROW for column in columns)
    return narrow and all(never_fails(condition, plan.order_by[0].column) for condition in conditions)


def _among_rows_of_one_value(looked_up: Tied) -> Program | None:
    """Returns the program that runs among the rows of each value alone; None if only the reference can run it."""
    try:
        return replace(assemble(looked_up.plan), numbered=looked_up.numbered)
    except NoKernel:
        return None


def _of_trends(plan: Plan, purpose: Purpose) -> EnginePlan:
    """Returns the engine of ONE ROW PER WINDOW, whose rows have no evidence."""
    if purpose in (Purpose.COUNTS, Purpose.GRAPH):
        return EnginePlan(None, "a row per window", purpose, None)
    try:
        program, table = conjoined_program(plan)
    except NoKernel as construct:
        return EnginePlan(None, str(construct), purpose, None)
    passes = plan.selection in (Selection.SKIP_TILL_ANY, Selection.SKIP_TILL_NEXT)
    why = "all matches of a window are counted by state, not found"
    wanted = rows_wanted(program) if passes else WantedRows.ALL
    engine: type[Engine] = RunConjoined if table.others else RunTrends
    if table.by_panes:
        engine = engine if table.others else RunPanes
        why = f"an event is in {table.pane_windows:,} windows, which are put together from panes"
    elif table.ordered:
        engine = engine if table.others else RunOrdered
        why = "an event continues the trends before it whose last value is smaller, larger or equal: trees find them"
    resident = f"the engine, {engine.name}, keeps them in memory"
    return EnginePlan(engine, why, purpose, program, trends=table, wanted=wanted, resident=resident)


def found_again(plan: Plan, program: Program) -> bool:
    """True if a second search from the first to the last row of a match finds the same match: the pattern may skip
    rows, no condition or measure reads rows outside of the match, no condition reads MATCH_NUMBER, and AFTER MATCH
    skips to the next row or past the last one."""
    reach, extras, absence = program.reach, program.extras, program.absence
    outside = reach.before or reach.after or reach.ahead or program.anchored
    kept = absence.before or absence.behind or extras.unmatched or extras.timeouts or program.strict
    skips_within = program.mode is Mode.TO_NEXT_ROW and program.skip.row is not Skip.NEXT_ROW
    numbered = any(isinstance(e, MatchNumber) for d in plan.defines for e in walk(d.condition))
    return bool(program.ignore) and not (outside or kept or skips_within or numbered or program.accept[0])


def contiguous(program: Program) -> bool:
    """True if a match consists of all rows of its partition from its first to its last one, whatever decides its
    end."""
    some = program.absent or program.extras.unmatched or program.extras.timeouts or program.strict
    return not (program.ignore or some or program.accept[0])


def after_failure(chosen: EnginePlan) -> EnginePlan:
    """Returns the engine to use after a condition could not be computed for a row: run lists know whether it is
    read."""
    why = "a condition could not be computed for a row, which is an error only if it is read"
    return replace(chosen, engine=AFTER_FAILURE, why=why, table=None, picked=None)


def rows_wanted(program: Program) -> WantedRows:
    """Returns the rows that may change the runs: all if rows of a partition are counted, or if each has an outcome;
    otherwise a row that meets no condition can only end runs, and changes nothing if they pass over it."""
    if _all_count(program):
        return WantedRows.ALL
    if not program.absent:
        return WantedRows.RUNS
    # a row before a match may be negated where no run is; any row may end the wait of a match for what is behind it
    return WantedRows.MEETING if _passes_over(program) and not program.absence.behind else WantedRows.ALL


def only_met_decide(program: Program) -> bool:
    """True if rows that meet no condition change no match of an input that is matched as a whole: at most when a match
    comes out."""
    return _passes_over(program) and not (_all_count(program) or program.numbered)


def _all_count(program: Program) -> bool:
    first = set(program.edge_variable[program.edge_start[0] : program.edge_start[1]])
    counted = program.strict or program.within_rows is not None
    tests = any(first.intersection(same) for same in program.tests)
    return program.accept[0] or program.extras.unmatched or counted or not tests or not first <= set(program.tested)


def _passes_over(program: Program) -> bool:
    return len(program.tested) == len(program.labels) and program.ignore is not Ignore.NONE


def why_resident(plan: Plan, program: Program, engine: type[Engine]) -> str | None:
    """Returns why partial matches of a query cannot leave memory, or None if they can."""
    if not spills(engine):
        return f"the engine, {engine.name}, keeps them in memory"
    if program.kept:
        return "a condition reads all rows of the match so far"
    if program.carries is not None:
        return "runs carry the places of rows"
    if not plan.partition_by:
        return "without PARTITION BY every event touches the only partition"
    if program.strict:
        return "under STRICT an event also touches the previous event's partition"
    if program.reach.after or program.reach.ahead:
        return "NEXT reads future rows"
    if program.extras.unmatched:
        return "with UNMATCHED ROWS each row waits for earlier ones"
    return None


def shares_paths(program: Program) -> bool:
    """True if all matches can be found as one graph: rows may be skipped, and conditions read single rows, so that runs
    in the same state have the same future."""
    return (
        bool(program.ignore) and program.mode is Mode.ALL and not any(program.code) and not program.absent
        and len(program.accept) <= GRAPH_STATES_MAX
    )  # fmt: skip


def merges_runs(program: Program) -> bool:
    """True if a graph can hold all matches although conditions read the match so far: equal runs are merged."""
    return (
        bool(program.ignore) and program.mode is Mode.ALL and any(program.code) and not (program.absent or program.kept)
    )  # fmt: skip


def counts_paths(program: Program) -> bool:
    """True if matches can be counted without being found (matching.kernels.counts): as for a graph, with few states."""
    return shares_paths(program) and len(program.accept) <= COUNT_STATES_MAX

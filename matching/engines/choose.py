"""Which engine runs a plan: decided here and nowhere else, executed by every path, printed by EXPLAIN."""

from __future__ import annotations

from dataclasses import replace

from matching.engines.engine import Engine, EnginePlan, Purpose, Wanted, spills
from matching.engines.run_blocks import RunBlocks
from matching.engines.run_counts import RunCounts
from matching.engines.run_graph import RunGraph
from matching.engines.run_lists import RunLists
from matching.engines.run_merged import RunMerged
from matching.engines.run_starts import RunStarts
from matching.engines.run_table import RunTable
from matching.program.carried import Carried, Chain, carry, chain_of
from matching.program.determinise import Table, determinise
from matching.program.live import merges
from matching.program.program import Mode, NoKernel, Program, Skip, assemble
from matching.program.starts import StartTable, start_table
from query.plan.expression import MatchNumber, walk
from query.plan.plan import Plan

#: Most states for which each partition has a list for every state.
GRAPH_STATES_MAX = 64
#: Most states for which matches are counted without being found: each partition has a number for every two of them.
COUNT_STATES_MAX = 16
#: Most partial matches one partition may have at a time.
RUNS_MAX = 200_000


def choose_engine(plan: Plan, purpose: Purpose, program: Program | None = None) -> EnginePlan:
    """The engine that runs a plan for a purpose: of those that can, the one with the least work for a row. Without an
    engine the plan runs through the reference matcher, and is neither counted nor kept as a graph. program: of the
    plan, where it has been assembled. Raises QueryError. Cost: that of making the tables, within their limits.

    A new engine is a file beside this one, and a line here before the engines that are to serve only what it cannot."""
    try:
        program = assemble(plan) if program is None else program
    except NoKernel as construct:
        return EnginePlan(None, str(construct), purpose, None)
    gives_matches = purpose not in (Purpose.COUNTS, Purpose.GRAPH)
    if purpose.again and not (found_again(plan, program) or contiguous(program)):
        purpose = Purpose.LIVE

    def by(
        engine: type[Engine], why: str, table: Table | StartTable | None = None, carried: Carried | None = None,
        chain: Chain | None = None,
    ) -> EnginePlan:  # fmt: skip
        resident = why_resident(plan, program if carried is None else carried.program, engine)
        wanted = rows_wanted(program)
        return EnginePlan(engine, why, purpose, program, table, carried, chain, wanted, resident, RUNS_MAX)

    if purpose is Purpose.COUNTS and counts_paths(program):
        return by(RunCounts, "matches are counted by state, none is found")
    if purpose is Purpose.COUNTS:
        return EnginePlan(None, "a count of these matches", purpose, program)
    if gives_matches and (table := determinise(program)):
        return by(RunTable, "conditions read single rows, and a match begins after the one before", table)
    if gives_matches and (starts := start_table(program)):
        return by(RunStarts, "conditions read single rows, and each first row is decided apart", starts)
    if shares_paths(program):
        as_chain = chain_of(plan, program) if purpose.carries else None
        return by(RunGraph, "all matches are wanted, and runs in one state have one future", chain=as_chain)
    if merges_runs(program) and (purpose is Purpose.GRAPH or merges(program)):
        return by(RunMerged, "all matches are wanted, and runs with equal values have one future")
    if purpose is Purpose.GRAPH:
        return EnginePlan(None, "a graph of these matches", purpose, program)
    if program.ignore:
        carried = carry(plan, program) if purpose.carries else None
        return by(RunBlocks, "rows may be passed over, and each run has a future of its own", carried=carried)
    return by(RunLists, "each run has a future of its own")


def found_again(plan: Plan, program: Program) -> bool:
    """Returns whether a second search from the first to the last row of a match finds the same match: the pattern
    passes over rows, no condition or measure reads rows outside of the match, no condition reads MATCH_NUMBER, and
    AFTER MATCH skips to the next row or past the last one."""
    outside = program.before or program.after or program.ahead or any(program.first_row) or any(program.last_row)
    kept = program.absent_before or program.absent_behind or program.unmatched or program.timeouts or program.strict
    skips_within = program.mode is Mode.TO_NEXT_ROW and program.skip is not Skip.NEXT_ROW
    numbered = any(isinstance(e, MatchNumber) for d in plan.defines for e in walk(d.condition))
    return bool(program.ignore) and not (outside or kept or skips_within or numbered or program.accept[0])


def contiguous(program: Program) -> bool:
    """Returns whether a match has all rows of its partition from its first to its last one, whatever decides where it
    ends."""
    some = program.absent or program.unmatched or program.timeouts or program.strict
    return not (program.ignore or some or program.accept[0])


def after_failure(chosen: EnginePlan) -> EnginePlan:
    """The engine that goes on where a condition could not be computed for a row: run lists know whether it is read."""
    why = "a condition could not be computed for a row, which is an error only once it is read"
    return replace(chosen, engine=RunLists, why=why, table=None)


def rows_wanted(program: Program) -> Wanted:
    """The rows that may change what runs have become: all where rows of a partition are counted, and where each has an
    outcome; else a row that meets no condition does no more than end runs."""
    first = set(program.edge_variable[program.edge_start[0] : program.edge_start[1]])
    counted = program.strict or program.within_rows is not None
    every = program.accept[0] or program.unmatched or program.absent or counted
    tests = any(first.intersection(same) for same in program.tests)
    return Wanted.RUNS if first <= set(program.tested) and tests and not every else Wanted.ALL


def why_resident(plan: Plan, program: Program, engine: type[Engine]) -> str | None:
    """Why partial matches of a query cannot leave memory, or None if they can."""
    if not spills(engine):
        return f"the engine, {engine.name}, keeps them there"
    if program.carries is not None:
        return "runs carry the places of rows"
    if not plan.partition_by:
        return "without PARTITION BY every event touches the one partition there is"
    if program.strict:
        return "under STRICT an event touches the partition before it, too"
    if program.after or program.ahead:
        return "NEXT reads rows that are still to come"
    if program.unmatched:
        return "with UNMATCHED ROWS each row waits for its turn"
    return None


def shares_paths(program: Program) -> bool:
    """Whether all matches can be found as one graph: rows are passed over, and conditions read single rows, so that
    runs in one state have one future."""
    return (
        bool(program.ignore) and program.mode is Mode.ALL and not any(program.code) and not program.absent
        and len(program.accept) <= GRAPH_STATES_MAX
    )  # fmt: skip


def merges_runs(program: Program) -> bool:
    """Whether a graph can have all matches though conditions read the match so far: equal runs are merged."""
    return (
        bool(program.ignore) and program.mode is Mode.ALL and any(program.code) and not program.absent
    )  # fmt: skip


def counts_paths(program: Program) -> bool:
    """Whether matches can be counted without being found (matching.kernels.counts): what a graph can do, of few
    states."""
    return shares_paths(program) and len(program.accept) <= COUNT_STATES_MAX

"""Which engine runs a program: a table over all runs of a partition, a table over one start, a graph, or run lists."""

from __future__ import annotations

from typing import assert_never

from matching.program.determinise import SHOWN_MAX, WAITING, Table, determinise
from matching.program.live import merges
from matching.program.program import Mode, Program
from matching.program.starts import FAILED, MATCHED, StartTable, start_table

#: Most states for which each partition has a list for every state.
GRAPH_STATES_MAX = 64
#: Most states for which matches are counted without being found: each partition has a number for every two of them.
COUNT_STATES_MAX = 16


def table_of(program: Program) -> Table | StartTable | None:
    """The table that finds a program's matches, or None: a graph or run lists do. The table of lists is the cheaper
    one, with one look-up a row. Cost: that of making both, within their limits."""
    table = determinise(program)
    return table if table is not None else start_table(program)


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


def runs_in_blocks(program: Program) -> bool:
    """Whether runs stand side by side in blocks: rows are passed over, and no graph finds all matches."""
    return bool(program.ignore) and not shares_paths(program) and not (merges_runs(program) and merges(program))


def show_engine(program: Program) -> str:
    """The engine that runs a program, with its table, as EXPLAIN prints it."""
    table = table_of(program)
    match table:
        case None if shares_paths(program):
            return "engine      graph of runs"
        case None if merges_runs(program) and merges(program):
            return "engine      graph of merged runs"
        case None if runs_in_blocks(program):
            return "engine      blocks of runs"
        case None:
            return "engine      run lists"
        case Table():
            return f"engine      table of lists\n{table}"
        case StartTable():
            return f"engine      table of starts\n{_starts(table, program)}"
        case _:
            assert_never(table)


def _starts(table: StartTable, program: Program) -> str:
    tested = [program.names[same[0]] for same in program.tests]
    lines = [f"table       {len(table.configs)} configurations x {table.masks} masks"]
    special = {FAILED: "failed", MATCHED: "matched"}
    for index, config in enumerate(table.configs[:SHOWN_MAX]):
        if index in special:
            lines.append(f"            {index}: {special[index]}")
            continue
        items = " ".join("match" if state == WAITING else str(state) for state in config)
        goes = []
        for mask in range(table.masks):
            transition = table.transitions[index * table.masks + mask]
            true = "".join(f" {v}" for bit, v in enumerate(tested) if mask >> bit & 1) or " none"
            goes.append(f"{true.strip()} -> {transition.next}{' ends' if transition.fresh else ''}")
        lines.append(f"            {index}: ({items})  " + ", ".join(goes))
    if len(table.configs) > SHOWN_MAX:
        lines.append(f"            and {len(table.configs) - SHOWN_MAX} more")
    return "\n".join(lines)

"""Row-local patterns as a table over one attempt: what a start has become is one state, its configuration.

A configuration is the ordered list of the partial matches of one start, and the match that waits after them, if there
is one. Where conditions depend on the row only, it depends on the rows since the start only; so all starts of a
partition in one configuration go on alike, and a row costs one look-up for each configuration alive there instead of
one for each start. It serves the plans where starts are kept apart: WITHIN, SKIP TO NEXT ROW or within a match, WITH
UNMATCHED ROWS, TIMEOUT ROWS. Plans that need none of these have matching.program.determinise.
"""

from __future__ import annotations

from dataclasses import dataclass

from matching.program.determinise import SHOWN_MAX, TESTED_MAX, WAITING, holding, step_items
from matching.program.program import Mode, Program, Skip

#: Limits beyond which the general kernel serves: configurations, transitions, and edges looked at to make them.
CONFIGS_MAX = 4096
TRANSITIONS_MAX = 1 << 14
EDGES_MAX = 1 << 18
#: The first configurations: the attempt has failed; it is decided as a match; it is before its first row.
FAILED = 0
MATCHED = 1
START = 2


@dataclass(frozen=True, slots=True)
class StartTransition:
    """One row taken by one configuration.

    items: the configuration after the row; for each item the index of the item it came from and the variable its row
    was bound to (-1: none, a match that waited on). next: index of the configuration. fresh: its match, which is its
    last item, ends at this row.
    """

    items: tuple[tuple[int, int], ...]
    next: int
    fresh: bool


@dataclass(frozen=True, slots=True)
class StartTable:
    """transitions[c * masks + m] is the step of configuration c on a row with mask m, where bit i of m is that of
    Program.tests[i]; the other variables are always true. In configs, WAITING is a match
    that waits; it can only be last. skip: where the scan goes on after a match."""

    configs: tuple[tuple[int, ...], ...]
    masks: int
    transitions: tuple[StartTransition, ...]
    skip: Skip


def start_table(program: Program) -> StartTable | None:
    """The table of a program, or None if conditions depend on the match so far, rows may be passed over, all matches
    or an absence are asked for, or it is too large. Cost: configurations * masks steps, within the limits above."""
    tests = program.tests
    if any(program.code) or program.mode is Mode.ALL or program.ignore or program.absent or len(tests) > TESTED_MAX:
        return None
    masks, hold = 1 << len(tests), holding(program)
    begin = (0, WAITING) if program.accept[0] else (0,)
    configs: list[tuple[int, ...]] = [(), (WAITING,), begin]
    number = {config: index for index, config in enumerate(configs)}
    transitions: list[StartTransition] = []
    edges = 0
    at = 0
    while at < len(configs):
        if len(configs) > CONFIGS_MAX or len(configs) * masks > TRANSITIONS_MAX:
            return None
        edges += masks * sum(program.edge_start[s + 1] - program.edge_start[s] for s in configs[at] if s != WAITING)
        if edges > EDGES_MAX:
            return None
        for holds in hold:
            items, _ = step_items(program, enumerate(configs[at]), holds)
            config = tuple(state for state, _, _ in items)
            if config not in number:
                number[config] = len(configs)
                configs.append(config)
            fresh = bool(items) and items[-1][0] == WAITING and items[-1][2] >= 0
            transitions.append(StartTransition(tuple((p, v) for _, p, v in items), number[config], fresh))
        at += 1
    skip = Skip.PAST_LAST_ROW if program.mode is Mode.PAST_LAST_ROW else program.skip.row
    return StartTable(tuple(configs), masks, tuple(transitions), skip)


def show_starts(table: StartTable, program: Program) -> str:
    """The table of a program, as EXPLAIN prints it."""
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

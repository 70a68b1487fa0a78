"""Row-local patterns as one table: the list of runs of a partition, in order of preference, is one state.

The general kernel keeps such a list per partition (matching.kernels.step): runs, and matches that wait for preferred
runs to fail. Where conditions depend on the row only, runs in one state merge and SKIP PAST LAST ROW applies, most
patterns have few lists; then a row costs one table look-up, and matches are read back along the transitions taken.
SKIP TO the last row of every match is the same, but that row begins an attempt too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from matching.program.program import Merge, Mode, Program, Skip

#: Limits beyond which the general kernel is used: different conditions, lists, transitions.
TESTED_MAX = 8
LISTS_MAX = 512
TRANSITIONS_MAX = 4096
#: Edges that are looked at to make the table: it takes a second or so.
LOOKED_AT_MAX = 4_000_000
#: Lists that EXPLAIN prints.
SHOWN_MAX = 32

#: A list is a tuple of states; WAITING is a match that waits.
WAITING = -1
#: Parent of an item that began at this row.
START = -1


@dataclass(frozen=True, slots=True)
class ListTransition:
    """One row taken by one list.

    items: the list after the row, before the matches at its head are handed out; for each the index of the item of the
    old list it came from (START: began at this row) and the variable its row was bound to (-1: none, a match that
    waited on or an empty match). emitted: matches at the head. next: index of the list that remains.
    """

    items: tuple[tuple[int, int], ...]
    emitted: int
    next: int


@dataclass(frozen=True, slots=True)
class ListTable:
    """lists[0] is empty. transitions[l * masks + m] is the step of list l on a row with mask m, where bit i of m is
    that of Program.tests[i], of which tested[i] is the first; the other variables are always true."""

    lists: tuple[tuple[int, ...], ...]
    tested: tuple[str, ...]
    transitions: tuple[ListTransition, ...]

    @property
    def masks(self) -> int:
        return 1 << len(self.tested)

    def __str__(self) -> str:
        lines = [f"table       {len(self.lists)} lists x {self.masks} masks"]
        for index, runs in enumerate(self.lists[:SHOWN_MAX]):
            items = " ".join("match" if state == WAITING else str(state) for state in runs) or "empty"
            goes = []
            for mask in range(self.masks):
                transition = self.transitions[index * self.masks + mask]
                true = "".join(f" {v}" for bit, v in enumerate(self.tested) if mask >> bit & 1) or " none"
                emitted = f" emits {transition.emitted}" if transition.emitted else ""
                goes.append(f"{true.strip()} -> {transition.next}{emitted}")
            lines.append(f"            {index}: ({items})  " + ", ".join(goes))
        if len(self.lists) > SHOWN_MAX:
            lines.append(f"            and {len(self.lists) - SHOWN_MAX} more")
        return "\n".join(lines)


def holding(program: Program) -> list[list[bool]]:
    """Returns, for each mask (bit i: Program.tests[i] holds), the variables that hold."""
    tests = program.tests
    found = []
    for mask in range(1 << len(tests)):
        holds = [True] * len(program.variables)
        for bit, same in enumerate(tests):
            for variable in same:
                holds[variable] = bool(mask >> bit & 1)
        found.append(holds)
    return found


def step_items(
    program: Program, runs: Iterable[tuple[int, int]], holds: Sequence[bool]
) -> tuple[list[tuple[int, int, int]], bool]:
    """Returns the list that follows a list of runs, (parent, state or WAITING) each, on a row on which these variables
    hold, as matching.kernels.step does: (state or WAITING, parent, variable); and True if a match cut it off."""
    edge_start, edge_variable, edge_target, accept = (
        program.edge_start, program.edge_variable, program.edge_target, program.accept,
    )  # fmt: skip
    out: list[tuple[int, int, int]] = []
    visited: set[int] = set()
    for parent, state in runs:
        if state == WAITING:
            out.append((WAITING, parent, -1))
            continue
        for e in range(edge_start[state], edge_start[state + 1]):
            variable, target = edge_variable[e], edge_target[e]
            if not holds[variable] or target in visited:
                continue
            visited.add(target)
            if edge_start[target + 1] > edge_start[target]:
                out.append((target, parent, variable))
            if accept[target]:
                out.append((WAITING, parent, variable))
                return out, True  # everything less preferred is cut
    return out, False


def shares_last_rows(program: Program) -> bool:
    """True if AFTER MATCH skips to the last row of every match, which has two rows or more, whatever the rows: each
    label that ends a match is skipped to, and none is the label of a first row as well."""
    kept_apart = program.within_us is not None or program.within_rows is not None or program.absent
    if program.merge is not Merge.START or program.skip.row is not Skip.TO_LAST or kept_apart or program.accept[0]:
        return False
    ends = [e for e, target in enumerate(program.edge_target) if program.accept[target]]
    return all(program.skip.counts[program.edge_variable[e]] and e >= program.edge_start[1] for e in ends)


def determinise(program: Program) -> ListTable | None:
    """Returns the table of a program; None if it has no use (runs carry values, other modes, WITHIN) or is too large.

    Cost: lists * masks steps, within the limits above."""
    tests = program.tests
    again = shares_last_rows(program)
    follows = again or (program.merge is Merge.STATE and program.mode is Mode.PAST_LAST_ROW)
    if not follows or len(tests) > TESTED_MAX or program.extras.unmatched:
        return None
    masks, hold = 1 << len(tests), holding(program)
    number: dict[tuple[int, ...], int] = {(): 0}
    lists: list[tuple[int, ...]] = [()]
    transitions: list[ListTransition] = []
    at = looked_at = 0
    while at < len(lists):
        if len(lists) > LISTS_MAX or len(lists) * masks > TRANSITIONS_MAX:
            return None
        runs = (*enumerate(lists[at]), (START, 0))
        looked_at += masks * sum(program.edge_start[s + 1] - program.edge_start[s] for _, s in runs if s != WAITING)
        if looked_at > LOOKED_AT_MAX:
            return None
        for holds in hold:
            items, cut = step_items(program, runs, holds)
            if program.accept[0] and not cut:
                items.append((WAITING, START, -1))
            if again and cut:  # if no preferred run matches later, the scan goes on at this row
                known = {state for state, _, _ in items}
                begun, _ = step_items(program, ((START, 0),), holds)
                items += [item for item in begun if item[0] not in known]
            emitted = 0
            while emitted < len(items) and items[emitted][0] == WAITING:
                emitted += 1
            rest = tuple([state for state, _, _ in items[emitted:]])
            if rest not in number:
                number[rest] = len(lists)
                lists.append(rest)
            transitions.append(ListTransition(tuple([(p, v) for _, p, v in items]), emitted, number[rest]))
        at += 1
    names = program.names
    return ListTable(tuple(lists), tuple(names[same[0]] for same in tests), tuple(transitions))

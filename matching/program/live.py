"""The values of the match so far that later conditions of a run can read, per state: the V vector of [SASE] section
5.2.2."""

from __future__ import annotations

from matching.program.opcodes import OpCode
from matching.program.program import Program
from matching.program.registers import RegisterKind


def live_registers(program: Program) -> tuple[frozenset[int], ...]:
    """Returns, per state, the registers on which the future of a run depends. Runs of one partition in one state that
    agree in these have the same future. Cost: a few passes over the edges, as most lead to a state of a larger number;
    edges * states * registers at most."""
    states = len(program.accept)
    live = [frozenset[int]() for _ in range(states)]
    reads = [frozenset(a for op, a, _ in code if op == OpCode.REGISTER) for code in program.code]
    before: dict[tuple[int, frozenset[int]], frozenset[int]] = {}  # the states of one loop have few that differ
    changed = True
    while changed:
        changed = False
        for q in reversed(range(states)):
            found = live[q]
            for e in range(program.edge_start[q], program.edge_start[q + 1]):
                v = program.edge_variable[e]
                then = (v, live[program.edge_target[e]] | reads[v])
                if then not in before:
                    before[then] = _before(program, *then)
                found |= before[then]
            if found != live[q]:
                live[q] = found
                changed = True
    return tuple(live)


def _before(program: Program, label: int, registers: frozenset[int]) -> frozenset[int]:
    """Returns the registers that determine these ones after a row bound to `label`, beside the row itself."""
    needed: set[int] = set()
    for r in registers:
        register = program.registers[r]
        if register.variables and program.variables[label] not in register.variables:
            needed.add(r)
            continue
        if register.kind.reads_itself:
            needed.add(r)
        if register.kind.reads_link:
            needed.add(register.link)
        if register.kind.beside:
            needed |= {r, register.link}
        if register.kind.reads_other:
            needed.add(register.depth)
    return frozenset(needed)


def count_caps(program: Program) -> tuple[int, ...]:
    """Returns, per register, the number from which on conditions do not distinguish its values; -1: there is none.
    Counts that are only compared with constants have one."""
    caps = [0 if r.kind.counts else -1 for r in program.registers]
    for code in program.code:
        for at, (op, r, _) in enumerate(code):
            if op != OpCode.REGISTER or caps[r] < 0:
                continue
            known, caps[r] = caps[r], -1
            match code[at + 1 : at + 3]:
                case ((OpCode.CONSTANT, c, _), (compared, _, _)) if OpCode.EQ <= compared <= OpCode.GE:
                    caps[r] = max(known, int(program.constants[c]) + 1)
    for register in program.registers:
        if register.kind is RegisterKind.FIRST and caps[register.link] >= 0:
            caps[register.link] = max(caps[register.link], register.depth + 1)
        elif register.link >= 0:
            caps[register.link] = -1
    return tuple(caps)


def merges(program: Program) -> bool:
    """True if some row makes runs equal, whatever came before it: it takes them from one state to one in which only
    values of this row can still be read, and counts of which few values are distinguished."""
    if program.kept:
        return False
    live = live_registers(program)
    few = {r for r, cap in enumerate(count_caps(program)) if cap >= 0}
    for q in range(1, len(program.accept)):
        for e in range(program.edge_start[q], program.edge_start[q + 1]):
            to = program.edge_target[e]
            goes_on = program.edge_start[to] < program.edge_start[to + 1]
            if goes_on and _before(program, program.edge_variable[e], live[to]) <= few:
                return True
    return False


def merges_rows(program: Program) -> bool:
    """True if all rows that take a run from one state to another make equal runs of it: none of their values can be
    read there."""
    live = live_registers(program)
    for q in range(1, len(program.accept)):
        for e in range(program.edge_start[q], program.edge_start[q + 1]):
            to, variable = program.edge_target[e], program.variables[program.edge_variable[e]]
            reads = (program.registers[r].variables for r in live[to])
            goes_on = program.edge_start[to] < program.edge_start[to + 1]
            if goes_on and all(read and variable not in read for read in reads):
                return True
    return False

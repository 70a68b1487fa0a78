"""The automaton of a row pattern: position states with edges in order of preference (NFA^b of [SASE] section 4).

State 0 is the start. Any other state means "a row was just bound to this state's variable". There are no epsilon
edges: what [SASE] writes as proceed followed by begin is one begin edge that consumes the row it peeked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class EdgeKind(Enum):
    BEGIN = "begin"  # forward: binds the row to the next element
    TAKE = "take"  # loop: binds the row to the same element


@dataclass(frozen=True, slots=True)
class Edge:
    """Consumes a row that meets the condition of `variable` and goes to state `target`."""

    kind: EdgeKind
    variable: str
    target: int


@dataclass(frozen=True, slots=True)
class State:
    """edges are in order of preference. accept_at: how many of them are preferred over ending the match here; None if
    the match cannot end here."""

    variable: str | None
    edges: tuple[Edge, ...]
    accept_at: int | None


@dataclass(frozen=True, slots=True)
class Automaton:
    """states[0] is the start. conditions: (variable, printed condition); ignore: printed ignore condition."""

    states: tuple[State, ...]
    conditions: tuple[tuple[str, str], ...]
    ignore: str

    def name(self, index: int) -> str:
        """`start`, or the variable with its position among the states of that variable: `A`, `D.2`."""
        variable = self.states[index].variable
        if variable is None:
            return "start"
        same = [i for i, s in enumerate(self.states) if s.variable == variable]
        return variable if len(same) == 1 else f"{variable}.{same.index(index) + 1}"

    def __str__(self) -> str:
        condition = dict(self.conditions)
        width = max(len(self.name(i)) for i in range(len(self.states)))
        shown = [condition[e.variable] for s in self.states for e in s.edges]
        wide = min(60, max(map(len, shown), default=0))
        lines = []
        for index, state in enumerate(self.states):
            rows = [
                f"{e.kind.value:<8}{condition[e.variable]:<{wide}}  -> {self.name(e.target)}" for e in state.edges
            ]
            if state.accept_at is not None:
                rows.insert(state.accept_at, "accept")
            for i, row in enumerate(rows or ["(dead end)"]):
                lines.append(f"{self.name(index) if i == 0 else '':<{width}}  {row}")
        lines.append(f"{'ignore':<{max(width, 6)}} {self.ignore}")
        return "\n".join(lines)

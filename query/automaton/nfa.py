"""The automaton of a row pattern: position states with edges in order of preference (NFA^b of [SASE] section 4).

State 0 is the start. Any other state means "a row was just bound to this state's variable". There are no epsilon edges:
proceed followed by begin in [SASE] is one begin edge here, which consumes the row it peeked at. An anchor is a
requirement of an edge on its row: `^` that it is the first of its partition, `$` that it is the last.

query/automaton/nfab.py shows a chain by the same states and edges as the paper draws them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import Enum
from typing import Generic, NamedTuple, TypeVar

from query.plan.pattern import Variable


class EdgeKind(Enum):
    BEGIN = "begin"  # forward: binds the row to the next element
    TAKE = "take"  # loop: binds the row to the same element
    IGNORE = "ignore"  # loop: passes the row over; only in query/automaton/nfab.py
    PROCEED = "proceed"  # forward: consumes no row; only in query/automaton/nfab.py


class Label(NamedTuple):
    """The label of a row on an edge: `variable`, omitted from ALL ROWS unless `shown`. first_row, last_row: it must be
    the first or last row of its partition."""

    variable: str
    shown: bool = True
    first_row: bool = False
    last_row: bool = False

    def __str__(self) -> str:
        name = str(Variable(self.variable))
        return ("^ " if self.first_row else "") + (name if self.shown else f"{{- {name} -}}") + (
            " $" if self.last_row else ""
        )


#: What an edge asks of its row: a Label here, the formula itself in query/automaton/nfab.py.
L = TypeVar("L")


@dataclass(frozen=True, slots=True)
class Edge(Generic[L]):
    """Goes to state `target` by a row that meets the edge's label: the condition of its variable, or a formula.

    waits: under SKIP TILL NEXT MATCH a row that meets the condition may not be skipped. negated: the variables that no
    row skipped since the last bound one may meet."""

    kind: EdgeKind
    label: L
    target: int
    waits: bool = True
    negated: tuple[str, ...] = ()

    @property
    def variable(self: Edge[Label]) -> str:
        return self.label.variable


@dataclass(frozen=True, slots=True)
class State(Generic[L]):
    """variable: that of the row just bound, or in query/automaton/nfab.py of the rows to bind here; None if there is
    none. edges are in order of preference. accept_at: how many of them are preferred over ending the match here; None
    if the match cannot end here. last_row: the row bound is the last of its partition, and the match ends with it;
    beside: the state of the same element without that requirement, -1 if no match can continue there. first_accept_at:
    of the start, accept_at if the row is the first of its partition, if that differs."""

    variable: str | None
    edges: tuple[Edge[L], ...]
    accept_at: int | None
    last_row: bool = False
    first_accept_at: int | None = None
    beside: int = -1

    def edge(self, kind: EdgeKind) -> Edge[L] | None:
        """Returns the most preferred edge of a kind."""
        return next((e for e in self.edges if e.kind is kind), None)


@dataclass(frozen=True, slots=True)
class Automaton:
    """states[0] is the start. conditions: (variable, printed condition); ignore: printed ignore condition."""

    states: tuple[State[Label], ...]
    conditions: tuple[tuple[str, str], ...]
    ignore: str

    def names(self) -> list[str]:
        """Returns the names of the states: `start`, or the variable with its position among the states of that
        variable: `A`, `D.2`; `A$` after the last row of a partition."""
        plain = ["start" if s.variable is None else s.variable + ("$" if s.last_row else "") for s in self.states]
        total, seen = Counter(plain), Counter[str]()
        names = []
        for name in plain:
            seen[name] += 1
            names.append(name if total[name] == 1 else f"{name}.{seen[name]}")
        return names

    def __str__(self) -> str:
        names = self.names()
        width = max(map(len, names))
        wide = min(60, max((len(self._shown(e)) for s in self.states for e in s.edges), default=0))
        lines = []
        for index, state in enumerate(self.states):
            rows = [f"{e.kind.value:<8}{self._shown(e):<{wide}}  -> {names[e.target]}" for e in state.edges]
            if state.accept_at is not None:
                rows.insert(state.accept_at, "accept")
            if state.first_accept_at is not None:
                rows.insert(state.first_accept_at, "accept  ^")
            for i, row in enumerate(rows or ["(dead end)"]):
                lines.append(f"{names[index] if i == 0 else '':<{width}}  {row}")
        lines.append(f"{'ignore':<{max(width, 6)}} {self.ignore}")
        return "\n".join(lines)

    def _shown(self, edge: Edge[Label]) -> str:
        """Returns the printed condition: its variable with the anchors and the {- -} of the edge."""
        condition = dict(self.conditions)[edge.variable]
        plain = Label(edge.variable)
        return condition if edge.label == plain else str(edge.label) + condition.removeprefix(edge.variable)

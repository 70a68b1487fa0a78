"""Counts the conditions that attempts at a pattern meet, and finds the longest attempt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from query.errors import QueryError
from query.moves import PatternPlace
from query.plan import pattern as rp
from query.plan.expression import TRUE, is_row_local
from query.plan.plan import Plan
from query.reference import Resume, RowSearch
from query.values import Evaluate, EvaluationScope, Label, PartitionRows, Row, value


class ConditionCount(NamedTuple):
    """Numbers of rows that met a condition, and that were tested for it. alone: it is about the row alone, and all rows
    were tested; otherwise those that an attempt reached."""

    met: int
    tested: int
    alone: bool


@dataclass(frozen=True, slots=True)
class AttemptSummary:
    """conditions: by variable, those that a row may fail. rows: number of rows looked at. longest: the variables of the
    longest attempt in order; waited: those that could come next, none where it is complete; violated: the negated
    variables of which it met a row. matches: number of matches. whole: all attempts were made."""

    conditions: dict[str, ConditionCount]
    rows: int
    longest: tuple[str, ...]
    waited: tuple[str, ...]
    violated: tuple[str, ...]
    matches: int
    whole: bool


class _Enough(Exception):
    """No more tests are allowed."""


@dataclass(slots=True)
class _Noted:
    """rows: those tested for each variable, by partition and position, and whether they met it."""

    tests_left: int
    rows: dict[str, dict[tuple[int, int], bool]] = field(default_factory=dict)
    longest: tuple[str, ...] = ()
    violated: dict[str, None] = field(default_factory=dict)


class _Search(RowSearch):
    """A search that notes what it tests."""

    def note(self, noted: _Noted, over: Callable[[], bool]) -> None:
        self.noted, self.over = noted, over
        self.negated = set(rp.negated(self.plan.pattern))

    def _holds(
        self, partition: PartitionRows, variable: str, labels: Sequence[Label], position: int, number: int
    ) -> bool:
        noted = self.noted
        noted.tests_left -= 1
        if noted.tests_left < 0 or self.over():
            raise _Enough
        held = super()._holds(partition, variable, labels, position, number)
        rows = noted.rows.setdefault(variable, {})
        row = id(partition), position
        rows[row] = held or rows.get(row, False)
        is_negated = variable in self.negated
        if held and is_negated and len(labels) == len(noted.longest):
            noted.violated[variable] = None
        elif held and not is_negated and len(labels) >= len(noted.longest):
            noted.longest, noted.violated = (*(name for name, _ in labels), variable), {}
        return held


def attempts(
    plan: Plan, rows: Sequence[Row], ts_us: Sequence[int], evaluate: Evaluate | None, tests_max: int,
    over: Callable[[], bool],
) -> AttemptSummary:  # fmt: skip
    """Returns what happens at the attempts at a pattern without boxes and windows. rows, ts_us, evaluate: as of
    query.reference.find. tests_max: most rows that attempts test; over: True if there is no more time. Raises
    DataError."""
    search = _Search(plan, rows, ts_us, evaluate)
    parts = search.partitions()
    alone = {d.variable: d.condition for d in plan.defines if d.condition != TRUE and is_row_local(d.condition)}
    met, looked = dict.fromkeys(alone, 0), 0
    for partition in parts:
        for position in range(len(partition.index)):
            if over():
                break
            for name, condition in alone.items():
                bound = ((name, position),)
                met[name] += value(condition, EvaluationScope(partition, rows, bound, 1, position, 0, evaluate)) is True
            looked += 1
    noted = _Noted(tests_max)
    search.note(noted, over)
    matches, whole = 0, True
    try:
        for partition in parts:
            matches += sum(1 for _ in search.in_partition(partition, Resume(0, 0)))
    except (_Enough, QueryError, RecursionError, AssertionError):  # a pattern that costs too much, or AND of two
        whole = False
    conditions = {name: ConditionCount(met[name], looked, alone=True) for name in alone}
    for define in plan.defines:
        if define.condition != TRUE and define.variable not in alone:
            tested = noted.rows.get(define.variable, {})
            conditions[define.variable] = ConditionCount(sum(tested.values()), len(tested), alone=False)
    waited = _waited(plan.pattern, noted.longest)
    return AttemptSummary(
        {d.variable: conditions[d.variable] for d in plan.defines if d.variable in conditions}, looked, noted.longest,
        waited, tuple(noted.violated), matches, whole and looked == len(rows),
    )  # fmt: skip


def _waited(pattern: rp.RowPattern, names: Sequence[str]) -> tuple[str, ...]:
    """Returns the variables that may come after these, in order of preference; none if they are complete."""
    places, holding = [PatternPlace((pattern,), {})], frozenset({True})
    for name in names:
        places = list(dict.fromkeys(b for place in places for v, b, _ in place.moves(holding) if v == name))
        holding = frozenset()
    options = dict.fromkeys(v for place in places for v, _, _ in place.moves(holding))
    return () if None in options else tuple(v for v in options if v is not None)

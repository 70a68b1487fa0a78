"""The meaning of patterns with boxes: composition. Slow and obvious; it is the definition.

The matches of a box's pattern are found first, by themselves, in the events of its own FROM. Each is an event with the
interval from its first to its last event. The pattern around it is then searched in its own events and these, by what
intervals mean; the conditions that query.plan.boxes writes for the engines are not used here.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from query.language.ast import AfterMatchKind, Selection
from query.moves import Rest, moves
from query.plan.boxes import column_of, kind_of, merged_time
from query.plan.output import Outcome
from query.plan.pattern import variables
from query.plan.plan import Box, Plan, modules
from query.reference import Came, Moment, ReferenceMatch, RowSearch, find, match_rows, partition_key
from query.schema import STREAM
from query.values import Evaluate, Label, PartitionRows, Row


@dataclass(frozen=True, slots=True)
class ComplexEvent:
    """An event of a pattern with boxes. kind: 0, or that of the box's pattern (query.plan.boxes.kind_of). first, last:
    indices of its first and last event in the input. row: its columns. parts: of a match, its events with their
    variables."""

    kind: int
    first: int
    last: int
    row: Row
    parts: tuple[tuple[str, ComplexEvent], ...] = ()


#: Joins a match of a box's pattern with its histories: from its output row to its rows, none or more.
Join = Callable[[Plan, Row], Sequence[Row]]


@dataclass(frozen=True, slots=True)
class Composed:
    """A match in its layers: its events with their variables, and its output rows: one, or under ALL ROWS PER MATCH one
    for each event and each match of a box."""

    parts: tuple[tuple[str, ComplexEvent], ...]
    rows: Sequence[Row]

    @property
    def row(self) -> Row:
        return self.rows[0] if self.rows else {}

    @property
    def first(self) -> int:
        return self.parts[0][1].first

    @property
    def last(self) -> int:
        return self.parts[-1][1].last

    def leaves(self) -> list[tuple[str, int]]:
        """Returns the events of the input with the path of their variables, in order: `V.X`, `V[2].X` of the
        second V."""
        return list(_leaves(self.parts, ""))


def compose(
    plan: Plan, rows: Sequence[Row], ts_us: Sequence[int], evaluate: Evaluate | None = None, join: Join | None = None
) -> list[Composed]:
    """Returns the matches of a plan, with or without boxes, in a bounded input, in order of emission. rows, ts_us: as
    in query.reference.find; where layers read several streams, of all their events in the total order. join: of boxes
    whose matches are joined with history. Raises its errors. Exponential in the number of rows at worst, in each
    layer."""
    if not plan.boxes:
        events = [ComplexEvent(0, i, i, row) for i, row in own_rows(plan, rows).items()]
        times = [ts_us[event.last] for event in events]
        found = find(plan, [event.row for event in events], times, evaluate=evaluate)
        return _shown(plan, events, found, times, evaluate)
    events = merged(plan, rows, ts_us, evaluate, join)
    times = [ts_us[event.last] for event in events]
    search = _OverIntervals(plan, events, rows, ts_us, times, evaluate)
    return _shown(plan, events, search.everywhere({}), times, evaluate)


def own_rows(plan: Plan, rows: Sequence[Row]) -> dict[int, Row]:
    """Returns the events that FROM of a plan reads, by their indices in the input."""
    reads = plan.reads
    if reads is None:
        return dict(enumerate(rows))
    found: dict[int, Row] = {}
    for i, row in enumerate(rows):
        if row[STREAM] in reads.streams:
            k = reads.streams.index(row[STREAM])
            at = [columns[k] for columns in reads.columns]
            found[i] = {f.name: None if c is None else row[c] for f, c in zip(plan.schema.fields, at, strict=True)}
    return found


def merged(
    plan: Plan, rows: Sequence[Row], ts_us: Sequence[int], evaluate: Evaluate | None = None, join: Join | None = None
) -> list[ComplexEvent]:
    """Returns the events of a pattern with boxes in their order: a match right after its last event, ties by first
    event, name of the pattern, and order of emission. A match that is joined with history is an event for each of its
    rows, in the interval of the match."""
    time, of_input = plan.order_by[0].column.name, merged_time(plan)
    none: dict[str, Any] = {column_of(box, shown): None for box in modules(plan.boxes) for shown, _ in box.columns}
    found: list[tuple[tuple[Any, ...], ComplexEvent]] = []
    for i, row in own_rows(plan, rows).items():
        own = {**none, **row, "#t0": row[time], "#t1": row[time]}
        found.append(((i, 0), ComplexEvent(0, i, i, own)))
    for box in modules(plan.boxes):
        kind = kind_of(plan.boxes, box.variable)
        for order, match in enumerate(compose(box.plan, rows, ts_us, evaluate, join)):
            if not match.parts:
                continue  # an empty match has no interval
            shown: Sequence[Row] = (match.row,)
            if box.plan.joined is not None:
                assert join is not None
                shown = join(box.plan, match.row)
            begin, end = rows[match.first][of_input], rows[match.last][of_input]
            for row in shown:
                own = {**dict.fromkeys(plan.schema.names), **none, **_columns(box, row)}
                own |= {c.name: _key(box, c.name, row) for c in plan.partition_by}
                own |= {time: end, "#t0": begin, "#t1": end}
                event = ComplexEvent(kind, match.first, match.last, own, match.parts)
                found.append(((match.last, 1, match.first, box.name, order), event))
    return [event for _, event in sorted(found, key=lambda one: one[0])]


def _columns(box: Box, row: Row) -> dict[str, object]:
    return {column_of(box, shown): row[name] for shown, name in box.columns}


def _key(box: Box, column: str, row: Row) -> object:
    return next(row[name] for shown, name in box.columns if shown.lower() == column.lower())


def _shown(
    plan: Plan, events: Sequence[ComplexEvent], found: Sequence[ReferenceMatch], ts_us: Sequence[int],
    evaluate: Evaluate | None,
) -> list[Composed]:  # fmt: skip
    shown = match_rows(plan, [event.row for event in events], ts_us, found, evaluate)
    parts = [tuple((name, events[i]) for name, i in match.labels) for match in found]
    return [Composed(part, rows) for part, rows in zip(parts, shown, strict=True)]


class _OverIntervals(RowSearch):
    """The search for matches whose events are intervals."""

    def __init__(
        self, plan: Plan, events: Sequence[ComplexEvent], rows: Sequence[Row], ts_us: Sequence[int],
        times: Sequence[int], evaluate: Evaluate | None,
    ) -> None:  # fmt: skip
        # contiguity is a matter of the events of FROM: see `_follows`
        passes = plan.selection in (Selection.SKIP_TILL_NEXT, Selection.SKIP_TILL_ANY)
        all_matches = plan.after.kind is AfterMatchKind.NO_SKIP
        searched = replace(plan, selection=Selection.SKIP_TILL_ANY) if all_matches and not passes else plan
        super().__init__(searched, [event.row for event in events], times, evaluate)
        self.strategy = plan.selection
        self.events = events
        self.base = own_rows(plan, rows)
        self.base_us = ts_us
        self.kinds = {d.variable: kind_of(plan.boxes, d.variable) for d in plan.defines}
        self.positive = frozenset(variables(plan.pattern))

    def event(self, partition: PartitionRows, position: int) -> ComplexEvent:
        return self.events[partition.index[position]]

    def _holds(
        self, partition: PartitionRows, variable: str, labels: Sequence[Label], position: int, number: int
    ) -> bool:
        event = self.event(partition, position)
        if self.kinds[variable] != event.kind:
            return False
        if variable in self.positive and labels and not self._follows(partition, labels[-1][1], position):
            return False
        if variable in self.positive and not self._fits(partition, labels[0][1] if labels else position, position):
            return False
        return super()._holds(partition, variable, labels, position, number)

    def _follows(self, partition: PartitionRows, before: int, position: int) -> bool:
        """True if an event begins after another has ended, and by the strategy directly after it."""
        end, begin = self.event(partition, before).last, self.event(partition, position).first
        between_them = [i for i in range(end + 1, begin) if i in self.base]
        if self.strategy is Selection.STRICT:
            return begin > end and not between_them
        if self.strategy is Selection.PARTITION:
            between = (partition_key(self.plan, self.base[i]) for i in between_them)
            own = partition_key(self.plan, self.event(partition, position).row)
            return begin > end and own not in between
        return begin > end

    def _fits(self, partition: PartitionRows, first: int, last: int) -> bool:
        if self.interval_us is None:
            return True
        start, end = self.event(partition, first).first, self.event(partition, last).last
        return self.base_us[end] - self.base_us[start] <= self.interval_us

    # ---- AFTER MATCH

    def _stretch(self, partition: PartitionRows, labels: tuple[Label, ...]) -> tuple[int, int]:
        return self.event(partition, labels[0][1]).first, self.event(partition, labels[-1][1]).last

    def _scan(self, partition: PartitionRows, start: int, number: int, covered: int) -> Iterator[Came]:
        """Yields the preferred match of each start, in order of starts, which are events or matches of boxes: under
        STRICT and PARTITION. After a match the next one begins at or after a place in the order of the events."""
        begin = 0
        for at in range(start, len(partition.index)):
            if self.event(partition, at).first < begin:
                continue
            self.steps_left = self.steps_max
            labels = self._preferred(partition, at, (), (self.plan.pattern,), (), number + 1)
            if labels is None:
                continue
            number += 1
            stuck = False
            match self.plan.after.kind:
                case AfterMatchKind.PAST_LAST_ROW:
                    begin = self.event(partition, labels[-1][1]).last + 1
                case AfterMatchKind.TO_FIRST | AfterMatchKind.TO_LAST as kind:
                    named = [position for name, position in labels if name in self.plan.after.variables]
                    to = at if not named else named[0] if kind is AfterMatchKind.TO_FIRST else named[-1]
                    stuck = to == at
                    begin = begin if stuck else self.event(partition, to).first
            if stuck and not self.lenient:
                raise self._would_not_move_on(labels)
            moment = self._decided(partition, labels)
            yield Came(Outcome.MATCH, at, labels, frozenset(), moment, (partition.index[at],), stuck=stuck)

    def _preferred(
        self, partition: PartitionRows, start: int, labels: tuple[Label, ...], rest: Rest,
        gaps: tuple[tuple[str, ...], ...], number: int,
    ) -> tuple[Label, ...] | None:  # fmt: skip
        """Returns the preferred match that begins with some labels: by the choices of PATTERN, and of several events
        or matches of boxes that may come next the first in order."""
        for variable, behind, negated in moves(rest, frozenset()):
            if variable is None:
                if self._negations(partition, labels, (*gaps, negated), number)[0]:
                    return labels
                continue
            places = range(labels[-1][1] + 1, len(partition.index)) if labels else (start,)
            for position in places:
                if self._holds(partition, variable, labels, position, number):
                    longer = (*labels, (variable, position))
                    found = self._preferred(partition, start, longer, behind, (*gaps, negated), number)
                    if found is not None:
                        return found
        return None

    def _decided(self, partition: PartitionRows, labels: Sequence[Label]) -> Moment:
        """Returns the moment at which all is known that may follow the first row of a match: when WITHIN has passed
        since its end."""
        if self.interval_us is None:
            return self.end
        deadline = self.ts_us[partition.index[labels[0][1]]] + self.interval_us
        return bisect_right(self.ts_us, deadline), 0, deadline

    # ---- negations

    def _negations(
        self, partition: PartitionRows, labels: Sequence[Label], gaps: Sequence[tuple[str, ...]], number: int
    ) -> tuple[bool | None, Moment]:
        for i, names in enumerate(gaps):
            after = self.event(partition, labels[i - 1][1]).last if i else -1
            until = self.event(partition, labels[i][1]).first if i < len(labels) else len(self.base_us)
            for g in range(len(partition.index)):
                inside = after < self.event(partition, g).first and self.event(partition, g).last < until
                ends = (g, labels[-1][1]) if i == 0 else (labels[0][1], g)
                near = 0 < i < len(labels) or self._fits(partition, *ends)
                if inside and near and any(self._holds(partition, name, labels, g, number) for name in names):
                    return False, (0, 0, 0)
        if gaps[-1] and self.interval_us is not None:
            return True, self._decided(partition, labels)
        return True, (0, 0, 0)


def _leaves(parts: Sequence[tuple[str, ComplexEvent]], path: str) -> Iterator[tuple[str, int]]:
    counts: dict[str, int] = {}
    for name, event in parts:
        if event.kind == 0:
            yield path + name, event.first
            continue
        counts[name] = counts.get(name, 0) + 1
        nth = f"[{counts[name]}]" if counts[name] > 1 else ""
        yield from _leaves(event.parts, f"{path}{name}{nth}.")

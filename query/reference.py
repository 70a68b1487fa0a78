"""The meaning of a plan: the matches it has in a table of rows, and what they say. Slow, obvious, right by definition.

It reads the plan and nothing else. Every other way to run a plan is checked against this one.
"""

from __future__ import annotations

import math
import struct
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any, assert_never

from query.errors import DataError, Diagnostic, QueryError
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import (
    Aggregate,
    Call,
    Classifier,
    Column,
    Constant,
    Expression,
    Logical,
    MatchNumber,
    Navigation,
    Opaque,
    children,
    show,
    walk,
)
from query.plan.pattern import Alternation, Empty, Negation, Repeat, RowPattern, Variable
from query.plan.pattern import Sequence as Concatenation
from query.plan.plan import Plan

#: Computes what this file does not: `evaluate(expression, leaves)` with the value of every leaf of the expression.
#: Leaves are its Columns, Navigations, Aggregates, Classifiers and MatchNumbers. An Aggregate comes with
#: {its argument: list of the argument's values, in order}. Raises DataError where DuckDB raises.
Evaluate = Callable[[Expression, Mapping[Expression, Any]], Any]

Row = Mapping[str, object]
#: (variable, position of the row in its partition)
Label = tuple[str, int]
#: A moment of the stream: (row index, 1, 0) is when that row has been seen; (i, 0, t) is when time t has passed,
#: i being the first row behind t.
Moment = tuple[int, int, int]

STEPS_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Found:
    """One match.

    partition: the values of PARTITION BY. number: MATCH_NUMBER. labels: (variable, row index) in order, empty for an
    empty match. start: the row index at which the attempt began. Row indices count the rows handed to `find`.
    """

    partition: tuple[object, ...]
    number: int
    labels: tuple[tuple[str, int], ...]
    start: int


@dataclass(frozen=True, slots=True)
class Resume:
    """Where to go on in a partition: attempts begin at row index `start` or later, numbers continue behind `number`."""

    start: int
    number: int


def find(
    plan: Plan,
    rows: Sequence[Row],
    ts_us: Sequence[int],
    *,
    evaluate: Evaluate | None = None,
    watermark_us: int | None = None,
    ended: bool = True,
    resume: Mapping[tuple[object, ...], Resume] | None = None,
    steps_max: int = STEPS_MAX,
) -> list[Found]:
    """The matches of a plan in rows of all partitions, in order of emission.

    rows: name -> value, in total order; None is null. TIMESTAMPs are int64 microseconds (datetimes are taken too, naive
    ones as UTC), DECIMALs Decimal, DATEs date. ts_us: event time of each row (zeros where there is none).

    ended: nothing comes after the rows. If not ended, more rows with time >= watermark_us may come (None: no promise
    about time), and only matches that no such row can change are returned. The answer then grows as rows and
    watermark do, and nothing in it is ever taken back.

    Order of emission: by the moment at which a match is decided, an expiry at time t before the first row behind t;
    then by completion, last row, first row, preference. In each partition it is the order of MATCH_NUMBER.

    resume: per partition key (see `partition_key`), skips what earlier calls have settled. Raises QueryError: HQ600 if
    one attempt tries more than steps_max rows, HQ500 for what is not supported yet, HQ214 for an edge negation without
    WITHIN; DataError where an expression cannot be computed. Exponential in the number of rows at worst.
    """
    search = _Search(plan, rows, ts_us, evaluate, watermark_us, ended, steps_max)
    decided: list[tuple[Moment, tuple[Any, ...], Found]] = []
    try:
        for key, partition in _partitions(plan, rows).items():
            at = (resume or {}).get(key, Resume(0, 0))
            decided += search.in_partition(partition, at)
    except RecursionError:
        raise search.too_much() from None
    return [found for _, _, found in sorted(decided, key=lambda d: d[:2])]


def match_rows(
    plan: Plan, rows: Sequence[Row], ts_us: Sequence[int], found: Sequence[Found], evaluate: Evaluate | None = None
) -> list[list[dict[str, Any]]]:
    """For each match its output rows. ONE ROW PER MATCH: partition columns, then measures. ALL ROWS PER MATCH:
    partition, order, measures, remaining input columns. Values as in `find`."""
    partitions = _partitions(plan, rows)
    output = []
    for match in found:
        partition = partitions[partition_key(plan, rows[match.start])]
        position = {index: p for p, index in enumerate(partition.index)}
        labels = tuple((name, position[index]) for name, index in match.labels)
        scope = _Scope(partition, rows, labels, len(labels), labels[-1][1] if labels else None, match.number, evaluate)
        output.append(_output(plan, scope, rows[match.start]))
    return output


def measure_rows(
    plan: Plan, rows: Sequence[Row], ts_us: Sequence[int], found: Sequence[Found], evaluate: Evaluate | None = None
) -> list[dict[str, Any]]:
    """The output rows of all matches, in their order. See `match_rows`."""
    return [row for match in match_rows(plan, rows, ts_us, found, evaluate) for row in match]


def partition_key(plan: Plan, row: Row) -> tuple[object, ...]:
    """What makes two rows lie in one partition: the values of PARTITION BY, with null equal to null and NaN to NaN."""

    def one(value: object) -> object:
        if isinstance(value, list | dict):  # of a LIST, STRUCT or MAP column
            return repr(value)
        return "NaN" if isinstance(value, float) and math.isnan(value) else value

    return tuple((one(row[c.name]), row[c.name] is None) for c in plan.partition_by)


@dataclass(frozen=True, slots=True)
class _Partition:
    """values: of PARTITION BY, as in its first row. index: row index of each position."""

    values: tuple[object, ...]
    index: list[int]


def _partitions(plan: Plan, rows: Sequence[Row]) -> dict[tuple[object, ...], _Partition]:
    partitions: dict[tuple[object, ...], _Partition] = {}
    for i, row in enumerate(rows):
        values = tuple(row[c.name] for c in plan.partition_by)
        partitions.setdefault(partition_key(plan, row), _Partition(values, [])).index.append(i)
    return partitions


def _output(plan: Plan, scope: _Scope, start: Row) -> list[dict[str, Any]]:
    keys = {c.name: start[c.name] for c in plan.partition_by}
    if plan.rows is RowsPerMatch.ONE:
        return [keys | {m.name: value(m.expression, scope) for m in plan.measures}]
    if plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED:
        raise _unsupported("WITH UNMATCHED ROWS")

    def row_of(row: Row, scope: _Scope) -> dict[str, Any]:
        first = keys | {o.column.name: row[o.column.name] for o in plan.order_by}
        measures = {m.name: value(m.expression, scope) for m in plan.measures}
        return first | measures | {n: row[n] for n in plan.schema.names if n not in first and n not in measures}

    if not scope.labels:
        return [] if plan.rows is RowsPerMatch.ALL_OMIT_EMPTY else [row_of(start, scope)]
    return [
        row_of(scope.rows[scope.partition.index[position]], replace(scope, seen=i + 1, at=position))
        for i, (_, position) in enumerate(scope.labels)
    ]


# ---- what is left of a pattern -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Round:
    """Stands behind the body of a loop: its round, number done + 1, ends here. moved: the round has taken a row."""

    loop: Repeat
    done: int
    moved: bool

    @property
    def may_repeat(self) -> bool:
        return self.loop.at_most is None or self.done + 1 < self.loop.at_most


#: What is still to be matched, next one first.
_Rest = tuple[RowPattern | _Round, ...]
#: A step from a rest: the variable of the next row (None: the pattern is complete), the rest behind it, and the negated
#: variables that stand between the last row and that one.
_Move = tuple[str | None, _Rest, tuple[str, ...]]


def moves(rest: _Rest, negated: tuple[str, ...] = ()) -> Iterator[_Move]:
    """All steps from `rest`, the preferred one first: left choices before right ones, another round before leaving a
    greedy loop, leaving a reluctant one before another round."""
    if not rest:
        yield None, (), negated
        return
    head, behind = rest[0], rest[1:]
    match head:
        case Variable(name):
            yield name, tuple(replace(r, moved=True) if isinstance(r, _Round) else r for r in behind), negated
        case Concatenation(parts):
            yield from moves((*parts, *behind), negated)
        case Alternation(choices):
            for choice in choices:
                yield from moves((choice, *behind), negated)
        case Empty():
            yield from moves(behind, negated)
        case Negation(name):
            yield from moves(behind, (*negated, name))
        case Repeat():
            yield from _rounds(head, 0, behind, negated)
        case _Round(loop, done, moved):
            # a round beyond the minimum that took no row is not tried, so that loops over empty bodies end
            if moved or done < loop.at_least:
                done += 1
                yield from _rounds(loop, done if loop.at_most else min(done, loop.at_least), behind, negated)
        case _:
            assert_never(head)


def _rounds(loop: Repeat, done: int, behind: _Rest, negated: tuple[str, ...]) -> Iterator[_Move]:
    """The steps where `done` rounds of a loop are over."""
    more = loop.at_most is None or done < loop.at_most
    stop = done >= loop.at_least
    if stop and not loop.greedy:
        yield from moves(behind, negated)
    if more:
        yield from moves((loop.body, _Round(loop, done, False), *behind), negated)
    if stop and loop.greedy:
        yield from moves(behind, negated)


#: One way to read the rows so far: the rest behind it, and the negated variables in each gap passed.
_Derivation = tuple[_Rest, tuple[tuple[str, ...], ...]]


# ---- the search --------------------------------------------------------------------------------------------------


class _Search:
    """One call of `find`."""

    def __init__(
        self,
        plan: Plan,
        rows: Sequence[Row],
        ts_us: Sequence[int],
        evaluate: Evaluate | None,
        watermark_us: int | None,
        ended: bool,
        steps_max: int,
    ) -> None:
        self.plan = plan
        self.rows = rows
        self.ts_us = ts_us
        self.evaluate = evaluate
        self.watermark_us = watermark_us
        self.ended = ended
        self.steps_left = self.steps_max = steps_max
        self.conditions = {d.variable: d.condition for d in plan.defines}
        self.interval_us = plan.within.interval_us if plan.within else None
        self.rows_max = plan.within.rows if plan.within else None
        #: rows of the partition behind a candidate that conditions may read
        self.reach = max((n.physical_offset for d in plan.defines for n in _navigations(d.condition)), default=0)
        self.reach = max(self.reach, 0)
        self.end: Moment = (len(rows), 1, 0)
        self.skip_till = plan.selection in (Selection.SKIP_TILL_NEXT, Selection.SKIP_TILL_ANY)
        self.all_matches = self.skip_till or plan.after.kind is AfterMatchKind.NO_SKIP
        if plan.after.kind in (AfterMatchKind.TO_FIRST, AfterMatchKind.TO_LAST):
            raise _unsupported(f"AFTER MATCH {plan.after.kind.value}")
        if self.all_matches and any(isinstance(e, MatchNumber) for d in plan.defines for e in walk(d.condition)):
            raise _unsupported("MATCH_NUMBER() in DEFINE where matches may overlap")

    def in_partition(self, partition: _Partition, at: Resume) -> Iterator[tuple[Moment, tuple[Any, ...], Found]]:
        """Decided matches of one partition in order of MATCH_NUMBER, each with the moment of its emission and what
        orders it among matches of other partitions at that moment."""
        start = next((p for p, i in enumerate(partition.index) if i >= at.start), len(partition.index))
        found = self._overlapping(partition, start) if self.all_matches else self._scan(partition, start, at.number)
        emitted: Moment = (0, 0, 0)
        for i, (moment, order, first, labels) in enumerate(found):
            # NEXT in MEASURES waits for its row, and later matches of the partition wait with it
            reach = max((p for n in self._output_navigations() for p in self._reads(n, labels)), default=-1)
            if reach >= len(partition.index) and not self.ended:
                return
            emitted = max(emitted, moment, self._seen(partition, reach) if reach >= 0 else emitted)
            named = tuple((name, partition.index[position]) for name, position in labels)
            yield emitted, order, Found(partition.values, at.number + i + 1, named, partition.index[first])

    # ---- when something is known

    def _known(self, partition: _Partition) -> int:
        """How many rows of a partition may be matched: where conditions read NEXT, a row waits for what it reads."""
        return len(partition.index) if self.ended else max(0, len(partition.index) - self.reach)

    def _seen(self, partition: _Partition, position: int) -> Moment:
        """The moment at which the row at that position has been seen, or the end if there is no such row."""
        return (partition.index[position], 1, 0) if position < len(partition.index) else self.end

    def _expired(self, partition: _Partition, first: int) -> Moment:
        """The moment at which no further row can lie within WITHIN of `first`."""
        deadline = self._time(partition, first) + (self.interval_us or 0)
        return bisect_right(self.ts_us, deadline), 0, deadline

    def _time_is_over(self, partition: _Partition, first: int) -> bool:
        """True if rows that still come lie behind first + WITHIN."""
        deadline = None if self.interval_us is None else self._time(partition, first) + self.interval_us
        return deadline is not None and self.watermark_us is not None and self.watermark_us > deadline

    def _time(self, partition: _Partition, position: int) -> int:
        return self.ts_us[partition.index[position]]

    def _fits(self, partition: _Partition, first: int, last: int) -> bool:
        """WITHIN for a match from one position to another."""
        if self.interval_us is not None:
            return self._time(partition, last) - self._time(partition, first) <= self.interval_us
        return self.rows_max is None or last - first + 1 <= self.rows_max

    # ---- conditions

    def _holds(self, partition: _Partition, variable: str, labels: Sequence[Label], position: int, number: int) -> bool:
        """The condition of a variable for the row at `position`, with the rows bound so far. Null is false."""
        self.steps_left -= 1
        if self.steps_left < 0:
            raise self.too_much()
        bound = (*labels, (variable, position))
        scope = _Scope(partition, self.rows, bound, len(bound), position, number, self.evaluate)
        return value(self.conditions[variable], scope) is True

    def too_much(self) -> QueryError:
        message = f"one attempt at the pattern {self.plan.pattern} tries more than {self.steps_max:,} rows"
        hint = "bound it with WITHIN, or make its conditions exclude each other"
        return QueryError([Diagnostic("HQ600", message, _span_of(self.plan), hint=hint)])

    def _negations(
        self, partition: _Partition, labels: Sequence[Label], gaps: Sequence[tuple[str, ...]], number: int
    ) -> tuple[bool | None, Moment]:
        """Do the negations hold for a match: True, False, or None where rows to come may still violate them; and the
        moment at which that is decided. gaps[i]: negated variables before the i-th row of the match."""
        decided: Moment = (0, 0, 0)
        if not labels:
            return True, decided
        first, last = labels[0][1], labels[-1][1]
        known = self._known(partition)
        open_end = False
        for i, names in enumerate(gaps):
            if not names:
                continue
            at_start, at_end = i == 0, i == len(labels)
            if (at_start or at_end) and self.plan.within is None:
                message = "a negation at the start or end of a pattern needs WITHIN"
                raise QueryError([Diagnostic("HQ214", message, _span_of(self.plan))])
            if at_start:
                inside = [g for g in range(first) if self._fits(partition, g, last)]
            elif at_end:
                inside = [g for g in range(last + 1, len(partition.index)) if self._fits(partition, first, g)]
            else:
                inside = list(range(labels[i - 1][1] + 1, labels[i][1]))
            for g in inside:
                if g < known and any(self._holds(partition, name, labels, g, number) for name in names):
                    return False, self._seen(partition, g + self.reach)
            if at_end:
                behind = inside[-1] + 1 if inside else last + 1
                over = self.ended or behind < len(partition.index) or self._time_is_over(partition, first)
                full = self.rows_max is not None and behind - first >= self.rows_max
                open_end = (bool(inside) and inside[-1] >= known) or not (over or full)
                if self.interval_us is not None:
                    decided = max(decided, self._expired(partition, first))
                else:
                    decided = max(decided, self._seen(partition, first + (self.rows_max or 0) - 1))
        return (None if open_end else True), decided

    # ---- SQL: one preferred match per attempt, then skip

    def _scan(
        self, partition: _Partition, start: int, number: int
    ) -> Iterator[tuple[Moment, tuple[Any, ...], int, tuple[Label, ...]]]:
        """Attempts in order of rows, as SQL:2016 has them. Stops at the first one that is not decided."""
        moment: Moment = (0, 0, 0)
        while start < self._known(partition):
            outcome = self._attempt(partition, start, number + 1)
            if outcome is None:
                return
            labels, decided = outcome
            moment = max(moment, decided)
            behind = start + 1
            if labels is not None:
                number += 1
                yield moment, (partition.index[start],), start, labels
                if labels and self.plan.after.kind is AfterMatchKind.PAST_LAST_ROW:
                    behind = labels[-1][1] + 1
            start = behind

    def _attempt(
        self, partition: _Partition, start: int, number: int
    ) -> tuple[tuple[Label, ...] | None, Moment] | None:
        """The preferred match that starts at a row (None: there is none) and the moment at which that is decided.
        None if rows to come may still decide it."""
        self.steps_left = self.steps_max
        decided = self._seen(partition, start)
        labels: list[Label] = []
        gaps: list[tuple[str, ...]] = []
        # stack[n]: the moves not tried yet behind the first n labels; depth first is the order of preference
        stack = [moves((self.plan.pattern,))]
        while stack:
            move = next(stack[-1], None)
            if move is None:
                stack.pop()
                if labels:
                    labels.pop()
                    gaps.pop()
                continue
            variable, rest, negated = move
            if variable is None:
                holds, moment = self._negations(partition, labels, (*gaps, negated), number)
                if holds is None:
                    return None
                decided = max(decided, moment)
                if holds:
                    return tuple(labels), decided
                continue
            position = labels[-1][1] + 1 if labels else start
            there, moment = self._candidate(partition, labels, position)
            if there is None:
                return None
            decided = max(decided, moment)
            if there and self._holds(partition, variable, labels, position, number):
                labels.append((variable, position))
                gaps.append(negated)
                stack.append(moves(rest))
        return None, decided

    def _candidate(self, partition: _Partition, labels: Sequence[Label], position: int) -> tuple[bool | None, Moment]:
        """Is there a row that may follow the labels, None if that is not known yet; and when it is decided."""
        first = labels[0][1] if labels else position
        if self.rows_max is not None and position - first >= self.rows_max:
            return False, (0, 0, 0)
        expired = self._expired(partition, first) if self.interval_us is not None else self.end
        if self.plan.selection is Selection.STRICT and labels:
            neighbour = partition.index[position - 1] + 1
            ours = position < len(partition.index) and partition.index[position] == neighbour
            if neighbour < len(self.rows) and not ours:
                return False, min(expired, (neighbour, 1, 0))
        if position < len(partition.index):
            if not self._fits(partition, first, position):
                return False, expired
            if position >= self._known(partition):
                return None, self.end
            return True, self._seen(partition, position + self.reach)
        if self.ended or self._time_is_over(partition, first):
            return False, min(expired, self.end)
        return None, self.end

    # ---- all matches

    def _overlapping(
        self, partition: _Partition, start: int
    ) -> Iterator[tuple[Moment, tuple[Any, ...], int, tuple[Label, ...]]]:
        """Matches by definition, in order of (completion, last row, first row, preference), less those that AFTER MATCH
        does not want."""
        found = [m for first in range(start, self._known(partition)) for m in self._all_from(partition, first)]
        stretches: list[tuple[int, int]] = []
        for order, labels in sorted(found):
            first, last = labels[0][1], labels[-1][1]
            match self.plan.after.kind:
                case AfterMatchKind.NO_SKIP:
                    wanted = True
                case AfterMatchKind.TO_NEXT_ROW:  # one match per start
                    wanted = all(first != f for f, _ in stretches)
                case _:  # matches that do not overlap, by first completion
                    wanted = all(last < f or la < first for f, la in stretches)
            if wanted:
                stretches.append((first, last))
                yield max(order[0], self._seen(partition, last + self.reach)), order, first, labels

    def _all_from(self, partition: _Partition, start: int) -> Iterator[tuple[tuple[Any, ...], tuple[Label, ...]]]:
        """Every decided match whose first row is at `start`, with its place in the order of matches."""
        self.steps_left = self.steps_max
        begin: tuple[_Derivation, ...] = (((self.plan.pattern,), ()),)
        # labels, their preference, the ways to read them, the next row to look at
        stack: list[tuple[tuple[Label, ...], tuple[tuple[int, int], ...], tuple[_Derivation, ...], int]] = []
        stack.append(((), (), begin, start))
        while stack:
            labels, preference, derivations, position = stack.pop()
            just_bound = bool(labels) and position == labels[-1][1] + 1
            if just_bound and (completion := self._completion(partition, labels, derivations)) is not None:
                last = labels[-1][1]
                yield (completion, partition.index[last], partition.index[start], preference), labels
            options = _options(derivations)
            if not options or position >= self._known(partition):
                continue
            if labels and not self._fits(partition, start, position):
                continue
            if labels and self.plan.selection is Selection.STRICT:
                if partition.index[position] != partition.index[position - 1] + 1:
                    continue
            holds = {v: self._holds(partition, v, labels, position, 0) for v in options}
            for rank, (variable, following) in enumerate(options.items()):
                if holds[variable]:
                    longer = (*labels, (variable, position))
                    stack.append((longer, (*preference, (position, rank)), following, position + 1))
            if labels and self._may_skip(derivations, holds):
                stack.append((labels, preference, derivations, position + 1))

    def _may_skip(self, derivations: tuple[_Derivation, ...], holds: Mapping[str, bool]) -> bool:
        """The edge formula `ignore` of the selection strategy, for a row of the same partition."""
        match self.plan.selection:
            case Selection.STRICT | Selection.PARTITION:
                return False
            case Selection.SKIP_TILL_NEXT:
                return not any(holds[v] for v in _waits_for(derivations))
            case Selection.SKIP_TILL_ANY:
                return True
            case _:
                assert_never(self.plan.selection)

    def _completion(
        self, partition: _Partition, labels: tuple[Label, ...], derivations: tuple[_Derivation, ...]
    ) -> Moment | None:
        """The moment at which labels are complete as a match, or None if they are none, or not yet."""
        moments = []
        for rest, gaps in derivations:
            for variable, _, negated in moves(rest):
                if variable is None:
                    holds, moment = self._negations(partition, labels, (*gaps, negated), 0)
                    if holds is not False:
                        moments.append((max(moment, self._seen(partition, labels[-1][1])), holds is None))
        # two ways to read one labelled sequence are one match, complete when the first of them is
        moment, pending = min(moments, default=(self.end, True))
        return None if pending else moment

    # ---- rows that MEASURES read

    def _output_navigations(self) -> list[Navigation]:
        return [n for m in self.plan.measures for n in _navigations(m.expression) if n.physical_offset > 0]

    def _reads(self, navigation: Navigation, labels: tuple[Label, ...]) -> Iterator[int]:
        if labels and (base := _logical_row(navigation, labels, labels[-1][1])) is not None:
            yield base + navigation.physical_offset


def _options(derivations: tuple[_Derivation, ...]) -> dict[str, tuple[_Derivation, ...]]:
    """The variables that may come next, in order of preference, each with the ways to read the sequence it makes."""
    options: dict[str, dict[_Derivation, None]] = {}
    for rest, gaps in derivations:
        for variable, behind, negated in moves(rest):
            if variable is not None:
                options.setdefault(variable, {}).setdefault((behind, (*gaps, negated)))
    return {variable: tuple(following) for variable, following in options.items()}


def _waits_for(derivations: tuple[_Derivation, ...]) -> set[str]:
    """The variables whose rows a run under SKIP TILL NEXT MATCH may not pass over.

    If a loop around the last row can go round again, those that stay in the innermost such loop; otherwise all that may
    come next. Where a labelled sequence can be read in several ways, those of all of them.
    """
    waits: set[str] = set()
    for rest, _ in derivations:
        loop = next((i for i, r in enumerate(rest) if isinstance(r, _Round) and r.may_repeat), None)
        inside = rest if loop is None else rest[: loop + 1]
        waits.update(variable for variable, _, _ in moves(inside) if variable is not None)
    return waits


def _navigations(expression: Expression) -> Iterator[Navigation]:
    return (e for e in walk(expression) if isinstance(e, Navigation))


def _span_of(plan: Plan) -> Any:
    """Patterns carry no spans: the first condition is near enough."""
    return plan.defines[0].condition.span if plan.defines else Constant(None, "").span


def _unsupported(what: str) -> QueryError:
    return QueryError([Diagnostic("HQ500", f"{what} is not supported yet", Constant(None, "").span)])


# ---- values of expressions ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Scope:
    """Where an expression is evaluated.

    labels: rows of the match with their variables; the first `seen` of them are visible to RUNNING. at: position of
    the candidate or current row, None for an empty match. number: MATCH_NUMBER.
    """

    partition: _Partition
    rows: Sequence[Row]
    labels: tuple[Label, ...]
    seen: int
    at: int | None
    number: int
    evaluate: Evaluate | None


def _logical_row(e: Navigation, visible: Sequence[Label], current: int) -> int | None:
    """The position a navigation starts its physical step from."""
    if e.logical is None:
        return current
    positions = [p for name, p in visible if not e.variables or name in e.variables]
    if e.logical_offset >= len(positions):
        return None
    return positions[e.logical_offset] if e.logical is Logical.FIRST else positions[-1 - e.logical_offset]


def value(e: Expression, scope: _Scope) -> Any:
    """The value of an expression; None is null."""
    match e:
        case Constant():
            return _constant(e, scope)
        case Column(name):
            return None if scope.at is None else _cell(scope.rows[scope.partition.index[scope.at]][name])
        case Navigation(argument, physical_offset=offset, final=final):
            if scope.at is None:
                return None
            base = _logical_row(e, scope.labels if final else scope.labels[: scope.seen], scope.at)
            if base is None or not 0 <= base + offset < len(scope.partition.index):
                return None
            return value(argument, replace(scope, at=base + offset))
        case Aggregate(_, argument, variables, final=final):
            visible = scope.labels if final else scope.labels[: scope.seen]
            positions = [p for name, p in visible if not variables or name in variables]
            if argument is None:
                return len(positions)
            return _aggregate(e, [value(argument, replace(scope, at=p)) for p in positions], scope.evaluate)
        case Classifier():
            return next((name for name, p in reversed(scope.labels) if p == scope.at), None)
        case MatchNumber():
            return scope.number
        case Opaque():
            return _outside(e, scope)
        case Call():
            return _call(e, scope)
        case _:
            assert_never(e)


def _cell(cell: object) -> Any:
    """Time is int64 microseconds, UTC."""
    if isinstance(cell, datetime):
        moment = cell if cell.tzinfo else cell.replace(tzinfo=UTC)
        return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    return cell


def _outside(e: Expression, scope: _Scope) -> Any:
    """What only DuckDB can compute."""
    if scope.evaluate is None:
        message = f"{show(e)} needs DuckDB to compute it"
        raise QueryError([Diagnostic("HQ500", message, e.span)])
    leaves: dict[Expression, Any] = {}

    def collect(x: Expression) -> None:
        if isinstance(x, Column | Navigation | Aggregate | Classifier | MatchNumber):
            leaves[x] = value(x, scope)
        else:
            for child in children(x):
                collect(child)

    collect(e)
    return scope.evaluate(e, leaves)


INTEGERS: dict[str, tuple[int, int]] = {
    "TINYINT": (-(2**7), 2**7 - 1),
    "SMALLINT": (-(2**15), 2**15 - 1),
    "INTEGER": (-(2**31), 2**31 - 1),
    "BIGINT": (-(2**63), 2**63 - 1),
    "HUGEINT": (-(2**127), 2**127 - 1),
    "UTINYINT": (0, 2**8 - 1),
    "USMALLINT": (0, 2**16 - 1),
    "UINTEGER": (0, 2**32 - 1),
    "UBIGINT": (0, 2**64 - 1),
    "UHUGEINT": (0, 2**128 - 1),
}
_TIMES = ("TIMESTAMP", "TIMESTAMP WITH TIME ZONE")
#: Types whose values, within one type, compare in Python as they do in DuckDB.
_ORDERED = {*_TIMES, "TIMESTAMP_S", "TIMESTAMP_MS", "TIMESTAMP_NS", "DATE", "VARCHAR", "BLOB", "BOOLEAN"}
_NULL = ("", "NULL", '"NULL"')
_EXACT = Context(prec=100)


def _is_decimal(type: str) -> bool:
    return type.startswith("DECIMAL(")


def _is_float(type: str) -> bool:
    return type in ("DOUBLE", "FLOAT")


def _is_exact(type: str) -> bool:
    return type in INTEGERS or _is_decimal(type)


def _is_number(type: str) -> bool:
    return _is_exact(type) or _is_float(type)


def _decimal_shape(type: str) -> tuple[int, int]:
    """(width, scale) of DECIMAL(width,scale)."""
    width, scale = type[len("DECIMAL(") : -1].split(",")
    return int(width), int(scale)


def _constant(e: Constant, scope: _Scope) -> Any:
    if e.value is None and (not e.sql or e.type in _NULL):
        return None
    known = _is_number(e.type) or e.type in ("BOOLEAN", "VARCHAR", "INTERVAL", *_TIMES)
    text = isinstance(e.value, str) and e.type != "VARCHAR"
    if e.value is None or text or not known:
        return _outside(e, scope)
    if _is_decimal(e.type):
        return _to_decimal(Decimal(str(e.value)), e.type, e)
    return float(e.value) if _is_float(e.type) else e.value


def _is_fixed_interval(e: Expression) -> bool:
    """True for an interval that is known to have no months: its value is int microseconds."""
    match e:
        case Constant(ticks, "INTERVAL"):
            return isinstance(ticks, int)
        case Call("-", (a, b), "INTERVAL") if a.type in _TIMES and a.type == b.type:
            return True
        case Call("+" | "-" | "neg", arguments, "INTERVAL"):
            return all(map(_is_fixed_interval, arguments))
        case _:
            return False


def _comparable(arguments: Sequence[Expression]) -> str | None:
    """The type that DuckDB compares these as, or "same" where they need no cast; None if it is left to DuckDB."""
    types = {a.type for a in arguments if a.type not in _NULL}
    if all(map(_is_number, types)):
        if any(map(_is_float, types)):
            return "DOUBLE" if "DOUBLE" in types else "FLOAT"
        if not any(map(_is_decimal, types)):
            return "same"  # Python compares integers of any width exactly
        shapes = [_decimal_shape(t) if _is_decimal(t) else (len(str(INTEGERS[t][1])), 0) for t in types]
        scale = max(s for _, s in shapes)
        return f"DECIMAL({min(38, max(w - s for w, s in shapes) + scale)},{scale})"
    if len(types) == 1 and (types <= _ORDERED or all(_is_fixed_interval(a) for a in arguments if a.type not in _NULL)):
        return "same"
    return None


def _fail(e: Expression, why: str) -> DataError:
    return DataError(f"{why} in {show(e)}", "write TRY(...) around it to get NULL instead")


def _call(e: Call, scope: _Scope) -> Any:
    """Operators of the core, with DuckDB's meaning. What is not known here by its types is left to DuckDB."""
    match e.function, e.arguments:
        case "and" | "or", arguments:
            return _connect(e.function == "or", (_boolean(a, scope) for a in arguments))
        case "not", (a,):
            truth = _boolean(a, scope)
            return None if truth is None else not truth
        case "is_null", (a,):
            return value(a, scope) is None
        case "is_not_null", (a,):
            return value(a, scope) is not None
        case "coalesce", arguments:
            return next((v for a in arguments if (v := _converted(a, e.type, scope)) is not None), None)
        case "case", arguments:
            for condition, then in zip(arguments[:-1:2], arguments[1::2], strict=True):
                if _boolean(condition, scope) is True:
                    return _converted(then, e.type, scope)
            return _converted(arguments[-1], e.type, scope)
        case "cast", (a,):
            return _converted(a, e.type, scope, e)
        case (("=" | "<>" | "<" | "<=" | ">" | ">=" | "is_distinct" | "is_not_distinct" | "in" | "between"), arguments):
            kind = _comparable(arguments)
            if kind is None:
                return _outside(e, scope)
            values = [_compared(value(a, scope), a, kind) for a in arguments]
            return _comparison(e.function, values)
        case (("+" | "-" | "*" | "/" | "//" | "%" | "neg" | "abs"), arguments):
            if all(a.type in _NULL or _is_number(a.type) for a in arguments) and _is_number(e.type):
                values = [value(a, scope) for a in arguments]
                if any(v is None for v in values):
                    return None
                return _arithmetic(e, values)
            return _time_arithmetic(e, scope)
        case _:
            return _outside(e, scope)


def _connect(wanted: bool, truths: Iterator[bool | None]) -> bool | None:
    """AND (wanted False) or OR (wanted True): stops at the first operand that decides it; null if none does but some
    operand is null."""
    result: bool | None = not wanted
    for truth in truths:
        if truth is wanted:
            return wanted
        if truth is None:
            result = None
    return result


def _boolean(e: Expression, scope: _Scope) -> bool | None:
    truth: bool | None = _converted(e, "BOOLEAN", scope)
    return truth


def _order_key(v: Any) -> tuple[bool, Any]:
    """NaN equals itself and is the largest."""
    is_nan = isinstance(v, float) and math.isnan(v)
    return is_nan, 0 if is_nan else v


def _compared(v: Any, e: Expression, kind: str) -> Any:
    return v if v is None or kind == "same" else _number(v, e.type, kind, e)


def _comparison(function: str, values: Sequence[Any]) -> bool | None:
    a, *others = values
    if function in ("is_distinct", "is_not_distinct"):
        (b,) = others
        same = a is None and b is None if a is None or b is None else _order_key(a) == _order_key(b)
        return same == (function == "is_not_distinct")
    if function == "in":
        return _connect(True, (_compare("=", a, item) for item in others))
    if function == "between":
        return _connect(False, iter([_compare(">=", a, others[0]), _compare("<=", a, others[1])]))
    return _compare(function, a, others[0])


def _compare(function: str, a: Any, b: Any) -> bool | None:
    if a is None or b is None:
        return None
    x, y = _order_key(a), _order_key(b)
    match function:
        case "=":
            return x == y
        case "<>":
            return x != y
        case "<":
            return x < y
        case "<=":
            return x <= y
        case ">":
            return x > y
        case ">=":
            return x >= y
        case _:
            raise ValueError(function)


def _to_float(v: Any, source: str, target: str) -> float:
    """An integer, DECIMAL or floating value as DOUBLE or FLOAT, rounded as DuckDB does."""
    if isinstance(v, Decimal):
        _, scale = _decimal_shape(source)
        unscaled, power = int(v.scaleb(scale, _EXACT)), 10**scale
        if abs(unscaled) <= 2**53 or scale == 0:
            result = float(unscaled) / power
        else:  # whole and fractional part apart
            sign = -1 if unscaled < 0 else 1
            whole, part = divmod(abs(unscaled), power)
            result = sign * (float(whole) + float(part) / power)
    elif isinstance(v, int) and abs(v) >= 2**64:
        sign = -1 if v < 0 else 1
        result = sign * (float(abs(v) % 2**64) + float(abs(v) >> 64) * 2.0**64)
    else:
        result = float(v)
    return _single(result) if target == "FLOAT" else result


def _single(v: float) -> float:
    """The nearest 32-bit float."""
    try:
        return float(struct.unpack("f", struct.pack("f", v))[0])
    except OverflowError:
        return math.copysign(math.inf, v)


def _to_integer(v: int, type: str, e: Expression) -> int:
    low, high = INTEGERS[type]
    if not low <= v <= high:
        raise _fail(e, f"{v} is out of the range of {type}")
    return v


def _to_decimal(v: Decimal | int, type: str, e: Expression) -> Decimal:
    """Rounds half away from zero."""
    width, scale = _decimal_shape(type)
    result = Decimal(v).quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP, _EXACT)
    if abs(result) >= Decimal(10) ** (width - scale):
        raise _fail(e, f"{v} is out of the range of {type}")
    return result


def _converted(a: Expression, type: str, scope: _Scope, e: Expression | None = None) -> Any:
    """The value of `a` cast to another type. e: the cast as written, if it is one."""
    e = e or Call("cast", (a,), type, a.span)
    if a.type == type or a.type in _NULL or type in _NULL:
        return value(a, scope)
    if type == "BOOLEAN" and _is_exact(a.type):
        v = value(a, scope)
        return None if v is None else v != 0
    if (_is_number(a.type) or (a.type == "BOOLEAN" and type in INTEGERS)) and _is_number(type):
        if not (_is_float(a.type) and _is_decimal(type)):  # DuckDB knows how it rounds there
            v = value(a, scope)
            return None if v is None else _number(v, a.type, type, e)
    return _outside(e, scope)


def _number(v: Any, source: str, target: str, e: Expression) -> Any:
    """A number of one type as another."""
    if _is_float(target):
        return _to_float(v, source, target)
    if _is_decimal(target):
        return _to_decimal(v, target, e)
    if isinstance(v, float):
        if not math.isfinite(v):
            raise _fail(e, f"{v} is out of the range of {target}")
        return _to_integer(round(v), target, e)  # half to even
    if isinstance(v, Decimal):
        return _to_integer(int(v.to_integral_value(ROUND_HALF_UP, _EXACT)), target, e)
    return _to_integer(int(v), target, e)


def _arithmetic(e: Call, values: Sequence[Any]) -> Any:
    """Arithmetic on numbers, none of them null, in the type of the call."""
    if _is_float(e.type):
        floats = [_to_float(v, a.type, e.type) for v, a in zip(values, e.arguments, strict=True)]
        result = _float_arithmetic(e, floats)
        return _single(result) if e.type == "FLOAT" else result
    if _is_decimal(e.type):
        # the factors of a product keep their scales, which add up
        product = e.function == "*"
        numbers = [Decimal(v) if product else _number(v, a.type, e.type, e) for v, a in zip(values, e.arguments)]
        return _to_decimal(_decimal_arithmetic(e, numbers), e.type, e)
    integers = [_number(v, a.type, e.type, e) for v, a in zip(values, e.arguments, strict=True)]
    return _to_integer(_integer_arithmetic(e, integers), e.type, e)


def _float_arithmetic(e: Call, v: Sequence[float]) -> float:
    match e.function:
        case "+":
            return v[0] + v[1]
        case "-":
            return v[0] - v[1]
        case "*":
            return v[0] * v[1]
        case "/":
            return _divide(v[0], v[1])
        case "//":
            if v[1] == 0:
                raise _fail(e, "division by zero")
            return _divide(v[0], v[1])  # on floating numbers DuckDB's // does not round
        case "%":
            if v[1] == 0 or math.isinf(v[0]) or math.isnan(v[0]) or math.isnan(v[1]):
                return math.nan
            return math.fmod(v[0], v[1])
        case "neg":
            return -v[0]
        case "abs":
            return abs(v[0])
        case _:
            raise ValueError(e.function)


def _divide(a: float, b: float) -> float:
    """IEEE 754 division."""
    if b != 0:
        return a / b
    return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1, b)


def _decimal_arithmetic(e: Call, v: Sequence[Decimal]) -> Decimal:
    match e.function:
        case "+":
            return _EXACT.add(v[0], v[1])
        case "-":
            return _EXACT.subtract(v[0], v[1])
        case "*":
            return _EXACT.multiply(v[0], v[1])
        case "%":
            if v[1] == 0:
                raise _fail(e, "division by zero")
            return _EXACT.remainder(v[0], v[1])  # has the sign of the dividend
        case "neg":
            return _EXACT.minus(v[0])
        case "abs":
            return _EXACT.abs(v[0])
        case _:
            raise ValueError(e.function)


def _integer_arithmetic(e: Call, v: Sequence[int]) -> int:
    match e.function:
        case "+":
            return v[0] + v[1]
        case "-":
            return v[0] - v[1]
        case "*":
            return v[0] * v[1]
        case "//" | "%":
            if v[1] == 0:
                raise _fail(e, "division by zero")
            quotient = abs(v[0]) // abs(v[1]) * (1 if (v[0] < 0) == (v[1] < 0) else -1)  # towards zero
            _to_integer(quotient, e.type, e)
            return quotient if e.function == "//" else v[0] - v[1] * quotient
        case "neg":
            return -v[0]
        case "abs":
            return abs(v[0])
        case _:
            raise ValueError(e.function)


def _time_arithmetic(e: Call, scope: _Scope) -> Any:
    """Times and intervals of fixed length are microseconds; anything else is left to DuckDB."""

    def is_ticks(a: Expression) -> bool:
        return a.type in _TIMES or a.type in _NULL or _is_fixed_interval(a)

    known = e.function in ("+", "-", "neg") and e.type in (*_TIMES, "INTERVAL")
    if not known or not all(map(is_ticks, e.arguments)):
        return _outside(e, scope)
    values = [value(a, scope) for a in e.arguments]
    if any(v is None for v in values):
        return None
    ticks = -values[0] if e.function == "neg" else values[0] + values[1] if e.function == "+" else values[0] - values[1]
    return _to_integer(ticks, "BIGINT", e)


def _aggregate(e: Aggregate, values: list[Any], evaluate: Evaluate | None) -> Any:
    """An aggregate over the values of its argument, in order. Floating sums go from left to right."""
    assert e.argument is not None
    type = e.argument.type
    there = [v for v in values if v is not None]
    if e.distinct:
        there = list({_order_key(v): v for v in reversed(there)}.values())[::-1]
    if e.function == "count":
        return len(there)
    summable = _is_number(type) or (type == "BOOLEAN" and e.function == "sum")
    if e.function in ("sum", "avg") and summable and type != "UHUGEINT":
        if not there:
            return None
        if _is_float(type):
            total = 0.0
            for v in there:
                total += v
            return total if e.function == "sum" else total / len(there)
        if _is_decimal(type):
            _, scale = _decimal_shape(type)
            unscaled = sum(int(v.scaleb(scale, _EXACT)) for v in there)
            if e.function == "sum":
                return _to_decimal(Decimal(unscaled).scaleb(-scale, _EXACT), e.type, e)
            return float(unscaled) / (float(len(there)) * 10.0**scale)
        integer = _to_integer(sum(there), "HUGEINT", e)
        return integer if e.function == "sum" else float(integer) / len(there)
    if e.function in ("min", "max") and (_is_number(type) or type in _ORDERED):
        return (min if e.function == "min" else max)(there, key=_order_key, default=None)
    if evaluate is None:
        raise QueryError([Diagnostic("HQ500", f"{show(e)} needs DuckDB to compute it", e.span)])
    return evaluate(e, {e.argument: values})

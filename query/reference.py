"""The meaning of a plan: the matches it has in a table of rows, and what they say. Slow, obvious, right by definition.

It reads the plan and nothing else. Every other way to run a plan is checked against this one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, assert_never

from query.errors import Diagnostic, QueryError
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import (
    Constant,
    Expression,
    MatchNumber,
    Navigation,
    walk,
)
from query.plan.output import Outcome
from query.plan.pattern import Alternation, Anchor, Empty, Exclusion, Negation, Repeat, RowPattern, Variable
from query.plan.pattern import Sequence as Concatenation
from query.plan.plan import Plan
from query.values import Evaluate, Label, Partition, Row, Scope, logical_row, value

#: A moment of the stream: (row index, 1, 0) is when that row has been seen; (i, 0, t) is when time t has passed,
#: i being the first row behind t.
Moment = tuple[int, int, int]

STEPS_MAX = 1_000_000


@dataclass(frozen=True, slots=True)
class Found:
    """One match, or what WITH UNMATCHED ROWS and TIMEOUT ROWS ask for besides.

    partition: the values of PARTITION BY. number: MATCH_NUMBER, 0 where it is no match. labels: (variable, row index)
    in order, empty for an empty match and an unmatched row. start: the row index at which the attempt began. Row
    indices count the rows handed to `find`. excluded: the row indices matched inside {- -}. waiting: of a TIMEOUT, the
    variables that could have come next, in order of preference.
    """

    partition: tuple[object, ...]
    number: int
    labels: tuple[tuple[str, int], ...]
    start: int
    outcome: Outcome = Outcome.MATCH
    excluded: frozenset[int] = frozenset()
    waiting: tuple[str, ...] = ()


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
        scope = Scope(partition, rows, labels, len(labels), labels[-1][1] if labels else None, match.number, evaluate)
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


def _partitions(plan: Plan, rows: Sequence[Row]) -> dict[tuple[object, ...], Partition]:
    partitions: dict[tuple[object, ...], Partition] = {}
    for i, row in enumerate(rows):
        values = tuple(row[c.name] for c in plan.partition_by)
        partitions.setdefault(partition_key(plan, row), Partition(values, [])).index.append(i)
    return partitions


def _output(plan: Plan, scope: Scope, start: Row) -> list[dict[str, Any]]:
    keys = {c.name: start[c.name] for c in plan.partition_by}
    if plan.rows is RowsPerMatch.ONE:
        return [keys | {m.name: value(m.expression, scope) for m in plan.measures}]
    if plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED:
        raise unsupported("WITH UNMATCHED ROWS")

    def row_of(row: Row, scope: Scope) -> dict[str, Any]:
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
        case Empty() | Anchor():
            yield from moves(behind, negated)
        case Exclusion(body):
            yield from moves((body, *behind), negated)
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
            raise unsupported(f"AFTER MATCH {plan.after.kind.value}")
        if self.all_matches and any(isinstance(e, MatchNumber) for d in plan.defines for e in walk(d.condition)):
            raise unsupported("MATCH_NUMBER() in DEFINE where matches may overlap")

    def in_partition(self, partition: Partition, at: Resume) -> Iterator[tuple[Moment, tuple[Any, ...], Found]]:
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

    def _known(self, partition: Partition) -> int:
        """How many rows of a partition may be matched: where conditions read NEXT, a row waits for what it reads."""
        return len(partition.index) if self.ended else max(0, len(partition.index) - self.reach)

    def _seen(self, partition: Partition, position: int) -> Moment:
        """The moment at which the row at that position has been seen, or the end if there is no such row."""
        return (partition.index[position], 1, 0) if position < len(partition.index) else self.end

    def _expired(self, partition: Partition, first: int) -> Moment:
        """The moment at which no further row can lie within WITHIN of `first`."""
        deadline = self._time(partition, first) + (self.interval_us or 0)
        return bisect_right(self.ts_us, deadline), 0, deadline

    def _time_is_over(self, partition: Partition, first: int) -> bool:
        """True if rows that still come lie behind first + WITHIN."""
        deadline = None if self.interval_us is None else self._time(partition, first) + self.interval_us
        return deadline is not None and self.watermark_us is not None and self.watermark_us > deadline

    def _time(self, partition: Partition, position: int) -> int:
        return self.ts_us[partition.index[position]]

    def _fits(self, partition: Partition, first: int, last: int) -> bool:
        """WITHIN for a match from one position to another."""
        if self.interval_us is not None:
            return self._time(partition, last) - self._time(partition, first) <= self.interval_us
        return self.rows_max is None or last - first + 1 <= self.rows_max

    # ---- conditions

    def _holds(self, partition: Partition, variable: str, labels: Sequence[Label], position: int, number: int) -> bool:
        """The condition of a variable for the row at `position`, with the rows bound so far. Null is false."""
        self.steps_left -= 1
        if self.steps_left < 0:
            raise self.too_much()
        bound = (*labels, (variable, position))
        scope = Scope(partition, self.rows, bound, len(bound), position, number, self.evaluate)
        return value(self.conditions[variable], scope) is True

    def too_much(self) -> QueryError:
        message = f"one attempt at the pattern {self.plan.pattern} tries more than {self.steps_max:,} rows"
        hint = "bound it with WITHIN, or make its conditions exclude each other"
        return QueryError([Diagnostic("HQ600", message, _span_of(self.plan), hint=hint)])

    def _negations(
        self, partition: Partition, labels: Sequence[Label], gaps: Sequence[tuple[str, ...]], number: int
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
        self, partition: Partition, start: int, number: int
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
        self, partition: Partition, start: int, number: int
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

    def _candidate(self, partition: Partition, labels: Sequence[Label], position: int) -> tuple[bool | None, Moment]:
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
        self, partition: Partition, start: int
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

    def _all_from(self, partition: Partition, start: int) -> Iterator[tuple[tuple[Any, ...], tuple[Label, ...]]]:
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
        self, partition: Partition, labels: tuple[Label, ...], derivations: tuple[_Derivation, ...]
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
        if labels and (base := logical_row(navigation, labels, labels[-1][1])) is not None:
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


def unsupported(what: str) -> QueryError:
    return QueryError([Diagnostic("HQ500", f"{what} is not supported yet", Constant(None, "").span)])

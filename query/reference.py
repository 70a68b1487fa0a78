"""The meaning of a plan: the matches in a table of rows, and their output. Slow and obvious; it is the definition.

Its only input is the plan. Every other way to run a plan is checked against it.

Long: one search, to be read from top to bottom beside docs/semantics.md.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any, assert_never

from query.errors import Diagnostic, QueryError
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.moves import Anchors, LoopRound, Move, PatternPlace, Rest, is_excluded, moves
from query.plan.expression import (
    Call,
    Constant,
    Expression,
    MatchNumber,
    Navigation,
    conjuncts,
    is_row_local,
    walk,
)
from query.plan.output import TIMEOUT_COLUMNS, Outcome
from query.plan.pattern import anchors
from query.plan.plan import AfterMatch, Plan
from query.stopping import heed
from query.values import Evaluate, EvaluationScope, Label, PartitionRows, Row, logical_row, value

#: A moment of the stream: (row index, 1, 0) after that row has been seen; (i, 0, t) after time t has passed, i being
#: the first row after t.
Moment = tuple[int, int, int]

STEPS_MAX = 1_000_000
#: Steps between two questions whether to stop.
_STEPS_UNASKED = 256


@dataclass(frozen=True, slots=True)
class ReferenceMatch:
    """One match, or one of the other results of WITH UNMATCHED ROWS and TIMEOUT ROWS.

    partition: the values of PARTITION BY. number: MATCH_NUMBER, 0 if it is no match. labels: (variable, row index) in
    order, empty for an empty match and an unmatched row. start: the row index at which the attempt began. Row indices
    count the rows handed to `find`. excluded: the row indices matched inside {- -}. waiting: of a TIMEOUT, the
    variables that could have come next, in order of preference. stuck: of a MATCH, True if AFTER MATCH SKIP TO would
    not have moved on from it (only if `find` was lenient).
    """

    partition: tuple[object, ...]
    number: int
    labels: tuple[tuple[str, int], ...]
    start: int
    outcome: Outcome = Outcome.MATCH
    excluded: frozenset[int] = frozenset()
    waiting: tuple[str, ...] = ()
    stuck: bool = False


@dataclass(frozen=True, slots=True)
class Resume:
    """The point from which a partition continues: attempts begin at row index `start` or later, numbers continue after
    `number`, rows from `start` up to row index `covered` belong to an earlier match."""

    start: int
    number: int
    covered: int = 0


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
    lenient: bool = False,
) -> list[ReferenceMatch]:
    """Returns the matches of a plan in rows of all partitions, in order of emission, including, if the plan requests
    them, unmatched rows and partial matches that WITHIN ended.

    rows: name -> value, in total order; None is null. TIMESTAMPs are int64 microseconds (datetimes are accepted too,
    naive ones as UTC), DECIMALs Decimal, DATEs date. ts_us: event time of each row (zeros if there is none).

    ended: True if no row follows. Otherwise more rows with time >= watermark_us may come (None: no promise about time),
    and only matches that no such row can change are returned. The answer then grows with rows and watermark, and is
    never retracted.

    Order of emission: by the moment at which a match is decided, an expiry at time t before the first row after t; then
    by completion, last row, first row, preference. In each partition it is the order of MATCH_NUMBER.

    Conditions are lazy: one is computed only for a row and a variable that the search, in order of preference, reaches,
    and only its error counts.

    lenient: AFTER MATCH SKIP TO that would not move on is marked (ReferenceMatch.stuck), and the scan continues one row
    after the start of the match; otherwise it is an error.

    resume: per partition key (see `partition_key`), skips what earlier calls have settled; if the pattern has `^`, the
    rows must then include one before `start`, if there was one.

    Raises QueryError: HQ600 if one attempt tests more than steps_max rows, HQ601 for SKIP TO that would not move on,
    HQ500 for unsupported features, HQ214 for an edge negation without WITHIN; DataError if an expression cannot be
    computed. Exponential in the number of rows at worst.
    """
    search = RowSearch(plan, rows, ts_us, evaluate, watermark_us, ended, steps_max, lenient)
    return search.everywhere(resume or {})


def match_rows(
    plan: Plan, rows: Sequence[Row], ts_us: Sequence[int], found: Sequence[ReferenceMatch],
    evaluate: Evaluate | None = None
) -> list[list[dict[str, Any]]]:
    """Returns the output rows of each of `found`, with the columns of `output_columns`. Values as in `find`.

    ONE ROW PER MATCH: partition columns, then measures. ALL ROWS PER MATCH: partition, order, measures, remaining input
    columns; one row for each row of the match except those inside {- -}, possibly none; one row for an empty match
    unless OMIT EMPTY MATCHES; the row itself for an unmatched row, measures null.
    """
    partitions = _partitions(plan, rows)
    output = []
    for match in found:
        partition = partitions[partition_key(plan, rows[match.start])]
        labels = tuple((name, bisect_left(partition.index, index)) for name, index in match.labels)
        number = match.number if match.outcome is Outcome.MATCH else None
        at = labels[-1][1] if labels else None
        scope = EvaluationScope(partition, rows, labels, len(labels), at, number, evaluate)
        output.append(_output(plan, scope, match))
    return output


def alerts_once(
    rows: Sequence[tuple[object, int, object]], interval_us: int
) -> list[tuple[bool, object]]:
    """Applies ALERT ONCE to rows (values of PER, time of the last event, match) in order of emission. Returns, for each
    row, True if it is an alert, and the match whose alert suppressed it, the earlier one of two."""
    alerts: list[tuple[object, int, object]] = []
    out: list[tuple[bool, object]] = []
    for values, time, match in rows:
        equal = [alert for alert in alerts if alert[0] == values]
        if any(of == match for _, _, of in equal):
            out.append((True, None))  # a further row of a match that has alerted
            continue
        near = [alert for alert in equal if abs(time - alert[1]) < interval_us]
        if near:
            out.append((False, min(near, key=lambda alert: alert[1])[2]))
        else:
            alerts.append((values, time, match))
            out.append((True, None))
    return out


def partition_key(plan: Plan, row: Row) -> tuple[object, ...]:
    """Returns the key by which rows share a partition: the values of PARTITION BY, with null equal to null and NaN to
    NaN."""

    def one(value: object) -> object:
        if isinstance(value, list | dict):  # of a LIST, STRUCT or MAP column
            return repr(value)
        return "NaN" if isinstance(value, float) and math.isnan(value) else value

    return tuple((one(row[c.name]), row[c.name] is None) for c in plan.partition_by)


def _partitions(plan: Plan, rows: Sequence[Row]) -> dict[tuple[object, ...], PartitionRows]:
    partitions: dict[tuple[object, ...], PartitionRows] = {}
    for i, row in enumerate(rows):
        values = tuple(row[c.name] for c in plan.partition_by)
        partitions.setdefault(partition_key(plan, row), PartitionRows(values, [])).index.append(i)
    return partitions


def of_one_zero(value: object) -> object:
    """Returns the value of a key, of the zeros that are equal the one without a sign."""
    return value + 0.0 if isinstance(value, float) else value


def _output(plan: Plan, scope: EvaluationScope, match: ReferenceMatch) -> list[dict[str, Any]]:
    start = scope.rows[match.start]
    keys = {c.name: of_one_zero(start[c.name]) for c in plan.partition_by}
    unmatched = match.outcome is Outcome.UNMATCHED
    behind = _timeout_columns(match) if plan.timeout_rows else {}

    def row_of(row: Row, scope: EvaluationScope) -> dict[str, Any]:
        measures = {m.name: None if unmatched else value(m.expression, scope) for m in plan.measures}
        if plan.rows is RowsPerMatch.ONE:
            return keys | measures | behind
        front = keys | {o.column.name: row[o.column.name] for o in plan.order_by}
        rest = {n: row[n] for n in plan.schema.names if n not in front and n not in measures}
        return front | measures | rest | behind

    if plan.rows is RowsPerMatch.ONE:
        return [row_of(start, scope)]
    if not scope.labels:  # an empty match or an unmatched row
        return [] if plan.rows is RowsPerMatch.ALL_OMIT_EMPTY else [row_of(start, scope)]
    return [
        row_of(scope.rows[scope.partition.index[position]], replace(scope, seen=i + 1, at=position))
        for i, (_, position) in enumerate(scope.labels)
        if scope.partition.index[position] not in match.excluded
    ]


def _timeout_columns(match: ReferenceMatch) -> dict[str, Any]:
    """Returns the values of TIMEOUT_COLUMNS, equal in all rows of a match: the variables of its rows, including those
    inside {- -} (null for an unmatched row), and the variables it waited for."""
    labels, timeout = TIMEOUT_COLUMNS
    unmatched = match.outcome is Outcome.UNMATCHED
    return {
        labels.name: None if unmatched else [name for name, _ in match.labels],
        timeout.name: "waiting for " + ", ".join(match.waiting) if match.outcome is Outcome.TIMEOUT else None,
    }


def next_start(after: AfterMatch, start: int, labels: Sequence[Label]) -> tuple[int, bool]:
    """Returns where SQL's scan continues after a match that began at `start`, and True if it is stuck: SKIP TO named a
    variable without a row, or the first row of the match. Positions are of the partition."""
    if not labels:
        return start + 1, False
    match after.kind:
        case AfterMatchKind.PAST_LAST_ROW:
            return labels[-1][1] + 1, False
        case AfterMatchKind.TO_NEXT_ROW | AfterMatchKind.NO_SKIP:
            return start + 1, False
        case AfterMatchKind.TO_FIRST | AfterMatchKind.TO_LAST:
            named = [position for name, position in labels if name in after.variables]
            if not named:
                return start + 1, True
            to = named[0] if after.kind is AfterMatchKind.TO_FIRST else named[-1]
            return (to, False) if to > start else (start + 1, True)
        case _:
            assert_never(after.kind)


#: One way to read the rows so far: the rest after it, and the negated variables in each gap passed.
_Derivation = tuple[PatternPlace, tuple[tuple[str, ...], ...]]
#: The ways to read a labelled sequence, the preferred one first, each with the positions it excludes. Of ways with
#: equal rests only the preferred one is kept.
_Derivations = Mapping[_Derivation, frozenset[int]]


# ---- the search --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Came:
    """The result of an attempt, or one of all matches. start, labels, excluded: positions in the partition. moment:
    when it is decided. order: sorts it among results of other partitions that are emitted at the same moment."""

    outcome: Outcome
    start: int
    labels: tuple[Label, ...]
    excluded: frozenset[int]
    moment: Moment
    order: tuple[Any, ...]
    waiting: tuple[str, ...] = ()
    stuck: bool = False


@dataclass(frozen=True, slots=True)
class _Next:
    """True if a row may come next in a match, None if that is open; the moment of the decision; and True if WITHIN is
    the reason that there is none, because it has passed or the input has ended."""

    there: bool | None
    moment: Moment
    timed_out: bool = False


@dataclass(slots=True)
class _Step:
    """A row bound by an attempt (the first step precedes the first row), and the moves after it that are still
    untried."""

    rest: Rest
    untried: Iterator[Move]
    variable: str = ""
    position: int = -1
    negated: tuple[str, ...] = ()  # between this row and the previous one


class RowSearch:
    """One call of `find`. query.hierarchy_reference overrides what is different for intervals."""

    def __init__(
        self,
        plan: Plan,
        rows: Sequence[Row],
        ts_us: Sequence[int],
        evaluate: Evaluate | None = None,
        watermark_us: int | None = None,
        ended: bool = True,
        steps_max: int = STEPS_MAX,
        lenient: bool = False,
    ) -> None:
        self.plan = plan
        self.rows = rows
        self.ts_us = ts_us
        self.evaluate = evaluate
        self.watermark_us = watermark_us
        self.ended = ended
        self.steps_left = self.steps_max = steps_max
        self.begin = PatternPlace((plan.pattern,), {})
        self.lenient = lenient
        self.conditions = {d.variable: _by_reach(d.condition) for d in plan.defines}
        #: Conditions on the row alone, by variable and position in the partition searched: every attempt asks again.
        self.of_row: dict[tuple[str, int], bool] = {}
        self.interval_us = plan.within.interval_us if plan.within else None
        self.rows_max = plan.within.rows if plan.within else None
        #: Rows of the partition after a candidate that must exist before it can be matched: those that conditions read,
        #: and the next one if `$` asks for it.
        self.reach = max((n.physical_offset for d in plan.defines for n in _navigations(d.condition)), default=0)
        self.reach = max(self.reach, 1 if False in anchors(plan.pattern) else 0)
        self.end: Moment = (len(rows), 1, 0)
        self.skip_till = plan.selection in (Selection.SKIP_TILL_NEXT, Selection.SKIP_TILL_ANY)
        self.all_matches = self.skip_till or plan.after.kind is AfterMatchKind.NO_SKIP
        if not self.all_matches:
            return
        if any(isinstance(e, MatchNumber) for d in plan.defines for e in walk(d.condition)):
            raise unsupported("MATCH_NUMBER() in DEFINE where matches may overlap")
        if plan.after.kind in (AfterMatchKind.TO_FIRST, AfterMatchKind.TO_LAST):
            raise unsupported(f"AFTER MATCH {plan.after} under {plan.selection.value}")
        if plan.timeout_rows or plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED:
            what = "TIMEOUT ROWS" if plan.timeout_rows else "WITH UNMATCHED ROWS"
            raise unsupported(f"{what} under {plan.selection.value} {plan.after}")

    def partitions(self) -> list[PartitionRows]:
        """Returns the rows by partition, in order of their first rows."""
        return list(_partitions(self.plan, self.rows).values())

    def everywhere(self, resume: Mapping[tuple[object, ...], Resume]) -> list[ReferenceMatch]:
        """Returns the decided results of all partitions, in order of emission. resume: see `find`."""
        decided: list[tuple[Moment, tuple[Any, ...], ReferenceMatch]] = []
        try:
            for key, partition in _partitions(self.plan, self.rows).items():
                decided += self.in_partition(partition, resume.get(key, Resume(0, 0)))
        except RecursionError:
            raise self.too_much() from None
        return [found for _, _, found in sorted(decided, key=lambda d: d[:2])]

    def in_partition(
        self, partition: PartitionRows, at: Resume
    ) -> Iterator[tuple[Moment, tuple[Any, ...], ReferenceMatch]]:
        """Yields the decided results of one partition, in order of MATCH_NUMBER, each with the moment of its emission
        and its order among those of other partitions at that moment."""
        start = next((p for p, i in enumerate(partition.index) if i >= at.start), len(partition.index))
        covered = sum(i < at.covered for i in partition.index)
        number = at.number
        self.of_row.clear()
        emitted: Moment = (0, 0, 0)
        all_came = self._overlapping(partition, start) if self.all_matches else None
        for came in all_came or self._scan(partition, start, number, covered):
            # NEXT in MEASURES waits for its row, and later results of the partition wait with it
            reach = max((p for n in self._output_navigations() for p in self._reads(n, came.labels)), default=-1)
            if reach >= len(partition.index) and not self.ended:
                return
            emitted = max(emitted, came.moment, self._seen(partition, reach) if reach >= 0 else emitted)
            number += came.outcome is Outcome.MATCH
            found = ReferenceMatch(
                partition.values,
                number if came.outcome is Outcome.MATCH else 0,
                tuple((name, partition.index[position]) for name, position in came.labels),
                partition.index[came.start],
                came.outcome,
                frozenset(partition.index[position] for position in came.excluded),
                came.waiting,
                came.stuck,
            )
            yield emitted, came.order, found

    # ---- moments of decisions

    def _known(self, partition: PartitionRows) -> int:
        """Returns how many rows of a partition may be matched: if conditions read NEXT, a row waits for the rows it
        reads."""
        return len(partition.index) if self.ended else max(0, len(partition.index) - self.reach)

    def _seen(self, partition: PartitionRows, position: int) -> Moment:
        """Returns the moment at which the row at that position has been seen, or the end if there is no such row."""
        return (partition.index[position], 1, 0) if position < len(partition.index) else self.end

    def _expired(self, partition: PartitionRows, first: int) -> Moment:
        """The moment at which no further row can lie within WITHIN of `first`."""
        deadline = self._time(partition, first) + (self.interval_us or 0)
        return bisect_right(self.ts_us, deadline), 0, deadline

    def _time_is_over(self, partition: PartitionRows, first: int) -> bool:
        """True if rows to come lie after first + WITHIN."""
        deadline = None if self.interval_us is None else self._time(partition, first) + self.interval_us
        return deadline is not None and self.watermark_us is not None and self.watermark_us > deadline

    def _time(self, partition: PartitionRows, position: int) -> int:
        return self.ts_us[partition.index[position]]

    def _fits(self, partition: PartitionRows, first: int, last: int) -> bool:
        """WITHIN for a match from one position to another."""
        if self.interval_us is not None:
            return self._time(partition, last) - self._time(partition, first) <= self.interval_us
        return self.rows_max is None or last - first + 1 <= self.rows_max

    # ---- conditions

    def _holds(
        self, partition: PartitionRows, variable: str, labels: Sequence[Label], position: int, number: int
    ) -> bool:
        """Returns the condition of a variable for the row at `position`, with the rows bound so far. Null is false."""
        self.steps_left -= 1
        if self.steps_left < 0:
            raise self.too_much()
        if self.steps_left % _STEPS_UNASKED == 0:
            heed()
        local, rest = self.conditions[variable]
        row = variable, position

        def scope(*bound: Label) -> EvaluationScope:
            return EvaluationScope(partition, self.rows, bound, len(bound), position, number, self.evaluate)

        if row not in self.of_row:
            self.of_row[row] = local is None or value(local, scope(row)) is True
        return self.of_row[row] and (rest is None or value(rest, scope(*labels, row)) is True)

    def too_much(self) -> QueryError:
        message = f"one attempt at the pattern {self.plan.pattern} tests more than {self.steps_max:,} rows"
        hint = "bound it with WITHIN, or make its conditions exclude each other"
        return QueryError([Diagnostic("HQ600", message, _span_of(self.plan), hint=hint)])

    def _negations(
        self, partition: PartitionRows, labels: Sequence[Label], gaps: Sequence[tuple[str, ...]], number: int
    ) -> tuple[bool | None, Moment]:
        """Tests the negations of a match: True, False, or None if rows to come may still violate them; and the moment
        of that decision. gaps[i]: negated variables before the i-th row of the match."""
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
            # defines the error of a negated condition that counts: rows are read from the match outwards
            if at_start:
                inside = list(takewhile(lambda g: self._fits(partition, g, last), reversed(range(first))))
            elif at_end:
                rows = range(last + 1, len(partition.index))
                inside = list(takewhile(lambda g: self._fits(partition, first, g), rows))
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

    def _scan(self, partition: PartitionRows, start: int, number: int, covered: int) -> Iterator[Came]:
        """Yields the results of attempts in order of rows, as SQL:2016 defines. Stops at the first undecided one.

        covered: the rows before this position belong to a match."""
        moment: Moment = (0, 0, 0)
        while start < self._known(partition):
            attempt = self._attempt(partition, start, number + 1)
            if attempt is None:
                return
            match, timeout, decided = attempt
            moment = max(moment, decided)
            order = (partition.index[start],)
            if match is not None:
                number += 1
                labels, excluded = _bound(match)
                if labels:
                    covered = max(covered, labels[-1][1] + 1)
                behind, stuck = next_start(self.plan.after, start, labels)
                if stuck and not self.lenient:
                    raise self._would_not_move_on(labels)
                yield Came(Outcome.MATCH, start, labels, excluded, moment, order, stuck=stuck)
                start = behind
                continue
            if timeout is not None and self.plan.timeout_rows:
                steps, waiting = timeout
                yield Came(Outcome.TIMEOUT, start, *_bound(steps), moment, order, waiting)
            # no later attempt takes rows before its own start: a row that is unmatched by now stays unmatched
            if start >= covered and self.plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED:
                yield Came(Outcome.UNMATCHED, start, (), frozenset(), moment, order)
            start += 1

    def _would_not_move_on(self, labels: Sequence[Label]) -> QueryError:
        names = [name for name in self.plan.after.variables if any(name == n for n, _ in labels)]
        why = f"{names[0]} is the first row of the match" if names else "the match has no such row"
        message = f"AFTER MATCH {self.plan.after} would not move on: {why}"
        hint = "AFTER MATCH SKIP TO NEXT ROW always moves on"
        return QueryError([Diagnostic("HQ601", message, _span_of(self.plan), hint=hint)])

    def _attempt(
        self, partition: PartitionRows, start: int, number: int
    ) -> tuple[list[_Step] | None, tuple[list[_Step], tuple[str, ...]] | None, Moment] | None:
        """Returns the preferred match that starts at a row (None: there is none); the preferred partial match that
        WITHIN ended (None: there is none) with the variables it waited for; and the moment of the decision. None while
        rows to come may change it."""
        heed()  # an attempt may be too short to ask by its steps
        self.steps_left = self.steps_max
        decided = self._seen(partition, start + self.reach)
        timeout: tuple[list[_Step], tuple[str, ...]] | None = None
        begin: Rest = (self.plan.pattern,)
        # depth first is the order of preference
        path = [_Step(begin, moves(begin, _holding(partition, start, bool(start))))]
        labels: list[Label] = []  # of all steps but the first
        while path:
            move = next(path[-1].untried, None)
            if move is None:
                path.pop()
                del labels[-1:]
                continue
            variable, rest, negated = move
            if variable is None:
                bound = path[1:]
                gaps = (*(step.negated for step in bound), negated)
                holds, moment = self._negations(partition, labels, gaps, number)
                if holds is None:
                    return None
                decided = max(decided, moment)
                if holds:
                    return bound, None, decided
                continue
            position = labels[-1][1] + 1 if labels else start
            candidate = self._candidate(partition, labels, position)
            if candidate.there is None:
                return None
            decided = max(decided, candidate.moment)
            if candidate.timed_out and labels and timeout is None:
                here = moves(path[-1].rest, _holding(partition, position, True))
                timeout = path[1:], tuple(dict.fromkeys(name for name, _, _ in here if name is not None))
            if candidate.there and self._holds(partition, variable, labels, position, number):
                untried = moves(rest, _holding(partition, position + 1, True))
                path.append(_Step(rest, untried, variable, position, negated))
                labels.append((variable, position))
        return None, timeout, decided

    def _candidate(self, partition: PartitionRows, labels: Sequence[Label], position: int) -> _Next:
        """Tests the row at a position as the one after the labels."""
        first = labels[0][1] if labels else position
        if self.rows_max is not None and position - first >= self.rows_max:
            return _Next(False, (0, 0, 0), timed_out=True)
        expired = self._expired(partition, first) if self.interval_us is not None else self.end
        bounded = self.plan.within is not None
        if self.plan.selection is Selection.STRICT and labels:
            neighbour = partition.index[position - 1] + 1
            ours = position < len(partition.index) and partition.index[position] == neighbour
            if neighbour < len(self.rows) and not ours:
                came: Moment = (neighbour, 1, 0)
                return _Next(False, min(expired, came), timed_out=bounded and expired < came)
        if position < len(partition.index):
            if not self._fits(partition, first, position):
                return _Next(False, expired, timed_out=True)
            if position >= self._known(partition):
                return _Next(None, self.end)
            return _Next(True, self._seen(partition, position + self.reach))
        if self.ended or self._time_is_over(partition, first):
            return _Next(False, min(expired, self.end), timed_out=bounded)
        return _Next(None, self.end)

    # ---- all matches

    def _overlapping(self, partition: PartitionRows, start: int) -> Iterator[Came]:
        """Yields the matches by definition, in order of (completion, last row, first row, preference), without those
        that AFTER MATCH rules out."""
        kind = self.plan.after.kind
        found: dict[object, Came] = {}
        for first in range(start, self._known(partition)):
            for came in self._all_from(partition, first):
                # of one start, or of one stretch, only the first one may be wanted, and there may be very many
                key: object = len(found)
                if kind is not AfterMatchKind.NO_SKIP:
                    key = first if kind is AfterMatchKind.TO_NEXT_ROW else self._stretch(partition, came.labels)
                known = found.get(key)
                if known is None or (came.order, came.labels) < (known.order, known.labels):
                    found[key] = came
        taken: list[tuple[int, int]] = []  # stretches, in order, if they may not overlap
        for came in sorted(found.values(), key=lambda c: (c.order, c.labels)):
            if kind not in (AfterMatchKind.NO_SKIP, AfterMatchKind.TO_NEXT_ROW):
                stretch = self._stretch(partition, came.labels)
                at = bisect_left(taken, stretch)
                if (at > 0 and taken[at - 1][1] >= stretch[0]) or (at < len(taken) and taken[at][0] <= stretch[1]):
                    continue
                taken.insert(at, stretch)
            yield came

    def _stretch(self, partition: PartitionRows, labels: tuple[Label, ...]) -> tuple[int, int]:
        """Returns the first and the last place that a match covers: others may not overlap it."""
        return labels[0][1], labels[-1][1]

    def _all_from(self, partition: PartitionRows, start: int) -> Iterator[Came]:
        """Yields every decided match whose first row is at `start`, with its order (completion, last row, first row,
        preference)."""
        heed()
        self.steps_left = self.steps_max
        begin: _Derivations = {(self.begin, ()): frozenset()}
        # labels, their preference, the ways to read them, the next row to test
        stack: list[tuple[tuple[Label, ...], tuple[tuple[int, int], ...], _Derivations, int]] = []
        stack.append(((), (), begin, start))
        while stack:
            labels, preference, derivations, position = stack.pop()
            just_bound = bool(labels) and position == labels[-1][1] + 1
            if just_bound and (complete := self._completion(partition, labels, derivations)) is not None:
                completion, excluded = complete
                last = labels[-1][1]
                moment = max(completion, self._seen(partition, last + self.reach))
                order = (completion, partition.index[last], partition.index[start], preference)
                yield Came(Outcome.MATCH, start, labels, excluded, moment, order)
            behind = labels[-1][1] + 1 if labels else start
            options = _options(derivations, _holding(partition, behind, bool(labels or start)), position)
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

    def _may_skip(self, derivations: _Derivations, holds: Mapping[str, bool]) -> bool:
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
        self, partition: PartitionRows, labels: tuple[Label, ...], derivations: _Derivations
    ) -> tuple[Moment, frozenset[int]] | None:
        """Returns the moment at which labels are complete as a match and the positions excluded from it, or None if
        they are no match, or not yet."""
        ways: list[tuple[Moment, bool, int, frozenset[int]]] = []
        last = labels[-1][1]
        for (place, gaps), excluded in derivations.items():
            for variable, _, negated in place.moves(_holding(partition, last + 1, True)):
                if variable is None:
                    holds, moment = self._negations(partition, labels, (*gaps, negated), 0)
                    if holds is not False:
                        ways.append((max(moment, self._seen(partition, last)), holds is None, len(ways), excluded))
        # two ways to read one labelled sequence are one match: the first that is complete, the preferred one of these
        if not ways:
            return None
        moment, pending, _, excluded = min(ways)
        return None if pending else (moment, excluded)

    # ---- rows that MEASURES read

    def _output_navigations(self) -> list[Navigation]:
        return [n for m in self.plan.measures for n in _navigations(m.expression) if n.physical_offset > 0]

    def _reads(self, navigation: Navigation, labels: tuple[Label, ...]) -> Iterator[int]:
        if labels and (base := logical_row(navigation, labels, labels[-1][1])) is not None:
            yield base + navigation.physical_offset


def _holding(partition: PartitionRows, position: int, begun: bool) -> Anchors:
    """Returns the anchors that hold before a position. begun: rows lie before it. If `$` occurs, a row is matched only
    when the next one exists or the input has ended: so no row at `position` means the end."""
    return frozenset((*([] if begun else [True]), *([False] if position == len(partition.index) else [])))


def _bound(steps: Sequence[_Step]) -> tuple[tuple[Label, ...], frozenset[int]]:
    """The labels of an attempt and the positions excluded."""
    excluded = frozenset(step.position for step in steps if is_excluded(step.rest))
    return tuple((step.variable, step.position) for step in steps), excluded


def _options(derivations: _Derivations, holding: Anchors, position: int) -> dict[str, _Derivations]:
    """Returns the variables that the row at `position` may be, in order of preference, each with the ways to read the
    resulting sequence."""
    options: dict[str, dict[_Derivation, frozenset[int]]] = {}
    for (place, gaps), excluded in derivations.items():
        for variable, behind, negated in place.moves(holding):
            if variable is not None:
                now = excluded | {position} if behind.excluded else excluded
                options.setdefault(variable, {}).setdefault((behind, (*gaps, negated)), now)
    return dict(options)


def _waits_for(derivations: _Derivations) -> set[str]:
    """Returns the variables whose rows a run under SKIP TILL NEXT MATCH may not skip.

    If a loop around the last row can repeat, those that stay in the innermost such loop; otherwise all that may come
    next. If a labelled sequence can be read in several ways, the union over all of them.
    """
    waits: set[str] = set()
    for place, _ in derivations:
        rest = place.rest
        loop = next((i for i, r in enumerate(rest) if isinstance(r, LoopRound) and r.may_repeat), None)
        inside = place if loop is None else place.at(rest[: loop + 1])
        # there is a row to skip, and rows before it: no anchor holds
        waits.update(variable for variable, _, _ in inside.moves(frozenset()) if variable is not None)
    return waits


def _by_reach(condition: Expression) -> tuple[Expression | None, Expression | None]:
    """Splits a condition into its conjuncts on the row alone and those on the match so far; None: there are none."""
    local: list[Expression] = []
    rest: list[Expression] = []
    for part in conjuncts(condition):
        (local if is_row_local(part) else rest).append(part)
    return _all_of(local), _all_of(rest)


def _all_of(parts: list[Expression]) -> Expression | None:
    return Call("and", tuple(parts), "BOOLEAN") if len(parts) > 1 else next(iter(parts), None)


def _navigations(expression: Expression) -> Iterator[Navigation]:
    return (e for e in walk(expression) if isinstance(e, Navigation))


def _span_of(plan: Plan) -> Any:
    """Returns a span for errors: patterns have none, so that of the first condition."""
    return plan.defines[0].condition.span if plan.defines else Constant(None, "").span


def unsupported(what: str) -> QueryError:
    return QueryError([Diagnostic("HQ500", f"{what} is not supported yet", Constant(None, "").span)])

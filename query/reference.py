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
from query.plan.pattern import Alternation, Anchor, Empty, Exclusion, Negation, Repeat, RowPattern, Variable, anchors
from query.plan.pattern import Sequence as Concatenation
from query.plan.plan import AfterMatch, Plan
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
    variables that could have come next, in order of preference. stuck: of a MATCH, AFTER MATCH SKIP TO would not have
    moved on from it (only if `find` was lenient).
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
    """Where to go on in a partition: attempts begin at row index `start` or later, numbers continue behind `number`,
    rows from `start` up to row index `covered` are in a match of before."""

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
) -> list[Found]:
    """The matches of a plan in rows of all partitions, in order of emission; among them, where the plan asks for them,
    unmatched rows and partial matches that WITHIN ended.

    rows: name -> value, in total order; None is null. TIMESTAMPs are int64 microseconds (datetimes are taken too, naive
    ones as UTC), DECIMALs Decimal, DATEs date. ts_us: event time of each row (zeros where there is none).

    ended: nothing comes after the rows. If not ended, more rows with time >= watermark_us may come (None: no promise
    about time), and only matches that no such row can change are returned. The answer then grows as rows and
    watermark do, and nothing in it is ever taken back.

    Order of emission: by the moment at which a match is decided, an expiry at time t before the first row behind t;
    then by completion, last row, first row, preference. In each partition it is the order of MATCH_NUMBER.

    Conditions are lazy: one is computed only for a row and a variable that the search, in order of preference, comes
    to, and only its error counts.

    lenient: AFTER MATCH SKIP TO that would not move on is marked (Found.stuck), and the scan goes on one row behind the
    start of the match; otherwise it is an error.

    resume: per partition key (see `partition_key`), skips what earlier calls have settled; where the pattern has `^`
    the rows must then hold one before `start`, if there was one.

    Raises QueryError: HQ600 if one attempt tries more than steps_max rows, HQ601 for SKIP TO that would not move on,
    HQ500 for what is not supported yet, HQ214 for an edge negation without WITHIN; DataError where an expression cannot
    be computed. Exponential in the number of rows at worst.
    """
    search = _Search(plan, rows, ts_us, evaluate, watermark_us, ended, steps_max, lenient)
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
    """For each of `found` its output rows, with the columns of `output_columns`. Values as in `find`.

    ONE ROW PER MATCH: partition columns, then measures. ALL ROWS PER MATCH: partition, order, measures, remaining input
    columns; a row for each row of the match but those inside {- -}, which may leave none; a row for an empty match
    unless OMIT EMPTY MATCHES; the row itself for an unmatched row, measures null.
    """
    partitions = _partitions(plan, rows)
    output = []
    for match in found:
        partition = partitions[partition_key(plan, rows[match.start])]
        position = {index: p for p, index in enumerate(partition.index)}
        labels = tuple((name, position[index]) for name, index in match.labels)
        number = match.number if match.outcome is Outcome.MATCH else None
        scope = Scope(partition, rows, labels, len(labels), labels[-1][1] if labels else None, number, evaluate)
        output.append(_output(plan, scope, match))
    return output


def measure_rows(
    plan: Plan, rows: Sequence[Row], ts_us: Sequence[int], found: Sequence[Found], evaluate: Evaluate | None = None
) -> list[dict[str, Any]]:
    """The output rows of all matches, in their order. See `match_rows`."""
    return [row for match in match_rows(plan, rows, ts_us, found, evaluate) for row in match]


def alerts_once(
    rows: Sequence[tuple[object, int, object]], interval_us: int
) -> list[tuple[bool, object]]:
    """ALERT ONCE over rows (values of PER, time of the last event, match) in the order in which they come out: for
    each whether it is an alert, and the match whose alert stood in its way, the earlier one of two."""
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


def _output(plan: Plan, scope: Scope, match: Found) -> list[dict[str, Any]]:
    start = scope.rows[match.start]
    keys = {c.name: start[c.name] for c in plan.partition_by}
    unmatched = match.outcome is Outcome.UNMATCHED
    behind = _timeout_columns(match) if plan.timeout_rows else {}

    def row_of(row: Row, scope: Scope) -> dict[str, Any]:
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


def _timeout_columns(match: Found) -> dict[str, Any]:
    """The values of TIMEOUT_COLUMNS, the same in all rows of a match: the variables of its rows, those inside {- -} too
    (null for an unmatched row), and what it waited for."""
    labels, timeout = TIMEOUT_COLUMNS
    unmatched = match.outcome is Outcome.UNMATCHED
    return {
        labels.name: None if unmatched else [name for name, _ in match.labels],
        timeout.name: "waiting for " + ", ".join(match.waiting) if match.outcome is Outcome.TIMEOUT else None,
    }


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


@dataclass(frozen=True, slots=True)
class _EndOfExclusion:
    """Stands behind the body of {- -}: a row matched while this is still to come is excluded."""


#: What is still to be matched, next one first.
_Rest = tuple[RowPattern | _Round | _EndOfExclusion, ...]
#: A step from a rest: the variable of the next row (None: the pattern is complete), the rest behind it, and the negated
#: variables that stand between the last row and that one.
_Move = tuple[str | None, _Rest, tuple[str, ...]]
#: The anchors that hold at a place between two rows: True for `^`, False for `$`.
_Anchors = frozenset[bool]


def moves(rest: _Rest, holding: _Anchors) -> Iterator[_Move]:
    """All steps from `rest`, the preferred one first: left choices before right ones, another round before leaving a
    greedy loop, leaving a reluctant one before another round. An anchor is a step of its own, taken where it holds."""
    yield from _moves(rest, holding, (), set())


def _moves(
    rest: _Rest, holding: _Anchors, negated: tuple[str, ...], seen: set[tuple[_Rest, tuple[str, ...]]]
) -> Iterator[_Move]:
    """seen: what was come to before; its steps are preferred, and the same once more."""
    if (rest, negated) in seen:
        return
    seen.add((rest, negated))
    if not rest:
        yield None, (), negated
        return
    head, behind = rest[0], rest[1:]
    match head:
        case Variable(name):
            yield name, tuple(_Round(r.loop, r.done, True) if isinstance(r, _Round) else r for r in behind), negated
        case Concatenation(parts):
            yield from _moves((*parts, *behind), holding, negated, seen)
        case Alternation(choices):
            for choice in choices:
                yield from _moves((choice, *behind), holding, negated, seen)
        case Empty() | _EndOfExclusion():
            yield from _moves(behind, holding, negated, seen)
        case Anchor(at_start):
            if at_start in holding and at_start:
                yield from _moves(behind, holding, negated, seen)
            elif at_start in holding:  # behind `$` only the empty string can be matched
                yield from (m for m in _moves(behind, holding, negated, set()) if m[0] is None)
        case Exclusion(body):
            yield from _moves((body, _EndOfExclusion(), *behind), holding, negated, seen)
        case Negation(name):
            yield from _moves(behind, holding, (*negated, name), seen)
        case Repeat():
            yield from _rounds(head, 0, behind, holding, negated, seen)
        case _Round(loop, done, moved):
            done += 1
            if moved or done < loop.at_least:
                done = done if loop.at_most else min(done, loop.at_least)
                yield from _rounds(loop, done, behind, holding, negated, seen)
            else:  # ISO 19075-5, 7.2.8: once the minimum is reached, a round without a row is the last one
                yield from _moves(behind, holding, negated, seen)
        case _:
            assert_never(head)


def _rounds(
    loop: Repeat,
    done: int,
    behind: _Rest,
    holding: _Anchors,
    negated: tuple[str, ...],
    seen: set[tuple[_Rest, tuple[str, ...]]],
) -> Iterator[_Move]:
    """The steps where `done` rounds of a loop are over."""
    more = loop.at_most is None or done < loop.at_most
    stop = done >= loop.at_least
    if stop and not loop.greedy:
        yield from _moves(behind, holding, negated, seen)
    if more:
        yield from _moves((loop.body, _Round(loop, done, False), *behind), holding, negated, seen)
    if stop and loop.greedy:
        yield from _moves(behind, holding, negated, seen)


class _Place:
    """A rest, one object for all that are equal: where all matches are wanted they are compared at every row."""

    __slots__ = ("_places", "_steps", "excluded", "rest")

    def __init__(self, rest: _Rest, places: dict[_Rest, _Place]) -> None:
        self.rest = rest
        self.excluded = _is_excluded(rest)
        places[rest] = self
        self._places = places
        self._steps: dict[_Anchors, tuple[tuple[str | None, _Place, tuple[str, ...]], ...]] = {}

    def at(self, rest: _Rest) -> _Place:
        """The place with that rest of the same pattern."""
        return self._places.get(rest) or _Place(rest, self._places)

    def moves(self, holding: _Anchors) -> tuple[tuple[str | None, _Place, tuple[str, ...]], ...]:
        """All steps from here, as `moves` has them."""
        found = self._steps.get(holding)
        if found is None:
            steps = [(variable, self.at(behind), negated) for variable, behind, negated in moves(self.rest, holding)]
            found = self._steps[holding] = tuple(steps)
        return found


def _is_excluded(behind: _Rest) -> bool:
    """Whether a row stands inside {- -}, by what is left behind it."""
    return any(isinstance(r, _EndOfExclusion) for r in behind)


def next_start(after: AfterMatch, start: int, labels: Sequence[Label]) -> tuple[int, bool]:
    """Where SQL's scan goes on behind a match that began at `start`, and whether it is stuck: SKIP TO named a variable
    without a row, or the first row of the match. Positions are of the partition."""
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


#: One way to read the rows so far: the rest behind it, and the negated variables in each gap passed.
_Derivation = tuple[_Place, tuple[tuple[str, ...], ...]]
#: The ways to read a labelled sequence, the preferred one first, each with the positions it excludes. Of two ways that
#: leave the same to be matched only the preferred one is kept.
_Derivations = Mapping[_Derivation, frozenset[int]]


# ---- the search --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Came:
    """What came of an attempt, or is one of all matches. start, labels, excluded: positions in the partition. moment:
    when it is decided. order: its place among those of other partitions that are emitted at the same moment."""

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
    """Whether there is a row that may come next in a match, None if that is not known yet; when it is decided; and
    whether WITHIN is why there is none, for it has passed or the input has ended."""

    there: bool | None
    moment: Moment
    timed_out: bool = False


@dataclass(slots=True)
class _Step:
    """A row bound by an attempt (but for the first step, which is before its first row), and the moves behind it that
    have not been tried."""

    rest: _Rest
    untried: Iterator[_Move]
    variable: str = ""
    position: int = -1
    negated: tuple[str, ...] = ()  # between this row and the one before


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
        lenient: bool,
    ) -> None:
        self.plan = plan
        self.rows = rows
        self.ts_us = ts_us
        self.evaluate = evaluate
        self.watermark_us = watermark_us
        self.ended = ended
        self.steps_left = self.steps_max = steps_max
        self.begin = _Place((plan.pattern,), {})
        self.lenient = lenient
        self.conditions = {d.variable: _by_reach(d.condition) for d in plan.defines}
        #: of the row alone: by variable and row index, for each attempt asks again
        self.of_row: dict[tuple[str, int], bool] = {}
        self.interval_us = plan.within.interval_us if plan.within else None
        self.rows_max = plan.within.rows if plan.within else None
        #: rows of the partition behind a candidate that must be there to match it: those that conditions read, and the
        #: next one where `$` asks whether there is one
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

    def in_partition(self, partition: Partition, at: Resume) -> Iterator[tuple[Moment, tuple[Any, ...], Found]]:
        """What is decided in one partition, in order of MATCH_NUMBER, each with the moment of its emission and what
        orders it among those of other partitions at that moment."""
        start = next((p for p, i in enumerate(partition.index) if i >= at.start), len(partition.index))
        covered = sum(i < at.covered for i in partition.index)
        number = at.number
        emitted: Moment = (0, 0, 0)
        all_came = self._overlapping(partition, start) if self.all_matches else None
        for came in all_came or self._scan(partition, start, number, covered):
            # NEXT in MEASURES waits for its row, and what comes later in the partition waits with it
            reach = max((p for n in self._output_navigations() for p in self._reads(n, came.labels)), default=-1)
            if reach >= len(partition.index) and not self.ended:
                return
            emitted = max(emitted, came.moment, self._seen(partition, reach) if reach >= 0 else emitted)
            number += came.outcome is Outcome.MATCH
            found = Found(
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
        local, rest = self.conditions[variable]
        row = variable, partition.index[position]
        if row not in self.of_row:
            self.of_row[row] = local is None or value(local, scope) is True
        return self.of_row[row] and (rest is None or value(rest, scope) is True)

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
            # which error of a negated condition counts: rows are read from the match outwards
            if at_start:
                inside = [g for g in reversed(range(first)) if self._fits(partition, g, last)]
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

    def _scan(self, partition: Partition, start: int, number: int, covered: int) -> Iterator[_Came]:
        """Attempts in order of rows, as SQL:2016 has them. Stops at the first one that is not decided.

        covered: the rows before this position are in a match."""
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
                yield _Came(Outcome.MATCH, start, labels, excluded, moment, order, stuck=stuck)
                start = behind
                continue
            if timeout is not None and self.plan.timeout_rows:
                steps, waiting = timeout
                yield _Came(Outcome.TIMEOUT, start, *_bound(steps), moment, order, waiting)
            # no later attempt takes rows before its own start: a row that is in no match by now will be in none
            if start >= covered and self.plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED:
                yield _Came(Outcome.UNMATCHED, start, (), frozenset(), moment, order)
            start += 1

    def _would_not_move_on(self, labels: Sequence[Label]) -> QueryError:
        names = [name for name in self.plan.after.variables if any(name == n for n, _ in labels)]
        why = f"{names[0]} is the first row of the match" if names else "the match has no such row"
        message = f"AFTER MATCH {self.plan.after} would not move on: {why}"
        hint = "AFTER MATCH SKIP TO NEXT ROW always moves on"
        return QueryError([Diagnostic("HQ601", message, _span_of(self.plan), hint=hint)])

    def _attempt(
        self, partition: Partition, start: int, number: int
    ) -> tuple[list[_Step] | None, tuple[list[_Step], tuple[str, ...]] | None, Moment] | None:
        """The preferred match that starts at a row (None: there is none); the preferred partial match that WITHIN ended
        (None: there is none) with what it waited for; and the moment at which that is decided. None if rows to come may
        still decide it."""
        self.steps_left = self.steps_max
        decided = self._seen(partition, start + self.reach)
        timeout: tuple[list[_Step], tuple[str, ...]] | None = None
        begin: _Rest = (self.plan.pattern,)
        # depth first is the order of preference
        path = [_Step(begin, moves(begin, _holding(partition, start, bool(start))))]
        while path:
            move = next(path[-1].untried, None)
            if move is None:
                path.pop()
                continue
            variable, rest, negated = move
            bound = path[1:]
            labels = [(step.variable, step.position) for step in bound]
            if variable is None:
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
                timeout = bound, tuple(dict.fromkeys(name for name, _, _ in here if name is not None))
            if candidate.there and self._holds(partition, variable, labels, position, number):
                untried = moves(rest, _holding(partition, position + 1, True))
                path.append(_Step(rest, untried, variable, position, negated))
        return None, timeout, decided

    def _candidate(self, partition: Partition, labels: Sequence[Label], position: int) -> _Next:
        """The row at a position, as the one behind the labels."""
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

    def _overlapping(self, partition: Partition, start: int) -> Iterator[_Came]:
        """Matches by definition, in order of (completion, last row, first row, preference), less those that AFTER MATCH
        does not want."""
        found = [c for first in range(start, self._known(partition)) for c in self._all_from(partition, first)]
        stretches: list[tuple[int, int]] = []
        for came in sorted(found, key=lambda c: (c.order, c.labels)):
            first, last = came.labels[0][1], came.labels[-1][1]
            match self.plan.after.kind:
                case AfterMatchKind.NO_SKIP:
                    wanted = True
                case AfterMatchKind.TO_NEXT_ROW:  # one match per start
                    wanted = all(first != f for f, _ in stretches)
                case _:  # matches that do not overlap, by first completion
                    wanted = all(last < f or la < first for f, la in stretches)
            if wanted:
                stretches.append((first, last))
                yield came

    def _all_from(self, partition: Partition, start: int) -> Iterator[_Came]:
        """Every decided match whose first row is at `start`; what orders it is (completion, last row, first row,
        preference)."""
        self.steps_left = self.steps_max
        begin: _Derivations = {(self.begin, ()): frozenset()}
        # labels, their preference, the ways to read them, the next row to look at
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
                yield _Came(Outcome.MATCH, start, labels, excluded, moment, order)
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
        self, partition: Partition, labels: tuple[Label, ...], derivations: _Derivations
    ) -> tuple[Moment, frozenset[int]] | None:
        """The moment at which labels are complete as a match and the positions excluded from it, or None if they are no
        match, or not yet."""
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


def _holding(partition: Partition, position: int, begun: bool) -> _Anchors:
    """The anchors that hold before a position. begun: rows lie before it. Where `$` is asked for, a row is matched only
    when the next one is there or the input has ended: so no row at `position` is the end."""
    return frozenset((*([] if begun else [True]), *([False] if position == len(partition.index) else [])))


def _bound(steps: Sequence[_Step]) -> tuple[tuple[Label, ...], frozenset[int]]:
    """The labels of an attempt and the positions excluded."""
    excluded = frozenset(step.position for step in steps if _is_excluded(step.rest))
    return tuple((step.variable, step.position) for step in steps), excluded


def _options(derivations: _Derivations, holding: _Anchors, position: int) -> dict[str, _Derivations]:
    """The variables that the row at `position` may be, in order of preference, each with the ways to read the sequence
    it makes."""
    options: dict[str, dict[_Derivation, frozenset[int]]] = {}
    for (place, gaps), excluded in derivations.items():
        for variable, behind, negated in place.moves(holding):
            if variable is not None:
                now = excluded | {position} if behind.excluded else excluded
                options.setdefault(variable, {}).setdefault((behind, (*gaps, negated)), now)
    return dict(options)


def _waits_for(derivations: _Derivations) -> set[str]:
    """The variables whose rows a run under SKIP TILL NEXT MATCH may not pass over.

    If a loop around the last row can go round again, those that stay in the innermost such loop; otherwise all that may
    come next. Where a labelled sequence can be read in several ways, those of all of them.
    """
    waits: set[str] = set()
    for place, _ in derivations:
        rest = place.rest
        loop = next((i for i, r in enumerate(rest) if isinstance(r, _Round) and r.may_repeat), None)
        inside = place if loop is None else place.at(rest[: loop + 1])
        # there is a row to pass over, and rows before it: no anchor holds
        waits.update(variable for variable, _, _ in inside.moves(frozenset()) if variable is not None)
    return waits


def _by_reach(condition: Expression) -> tuple[Expression | None, Expression | None]:
    """What a condition asks of the row alone and what it asks of the match so far, joined by AND; None: nothing."""
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
    """Patterns carry no spans: the first condition is near enough."""
    return plan.defines[0].condition.span if plan.defines else Constant(None, "").span


def unsupported(what: str) -> QueryError:
    return QueryError([Diagnostic("HQ500", f"{what} is not supported yet", Constant(None, "").span)])

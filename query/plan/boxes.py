"""Boxes: row pattern variables that stand for matches of another pattern, and the rows that a pattern with boxes reads.

Such a pattern reads its own input merged with the matches of its boxes. A match is a row with the interval from its
first to its last event, and stands right after its last event. `over_rows` writes what intervals mean as conditions on
these rows: then any matcher of plain rows finds the matches ([HIERARCHY]; composition is the meaning).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import (
    TRUE,
    Call,
    Column,
    Constant,
    Expression,
    Logical,
    MatchNumber,
    Navigation,
    conjuncts,
    is_row_local,
    show,
    walk,
)
from query.plan.fingerprint import fingerprint
from query.plan.lag import ends_at_once, prefers_one
from query.plan.never_fails import never_fails
from query.plan.output import output_columns
from query.plan.pattern import Negation, RowPattern, Sequence, Variable, anchors, gaps, min_rows, rows_before, variables
from query.plan.plan import AfterMatch, Box, Define, Measure, Plan, Within, modules
from query.schema import Field, Schema

#: Of a merged row: the box's pattern (0: an event of FROM), and the positions of its first and last event among those
#: of FROM.
KIND, FIRST, LAST = Field("#kind", "INTEGER"), Field("#first", "BIGINT"), Field("#last", "BIGINT")
#: The times of its first and last event, in microseconds.
FIRST_US, LAST_US = Field("#first_us", "BIGINT"), Field("#last_us", "BIGINT")
#: The column of `with_begin`.
BEGIN = "#begin"
#: The columns t0 and t1 of a variable.
TIMES = ("t0", "t1")


class CountedEvents(NamedTuple):
    """Events that are counted: those with equal values of the columns `keys`, of the streams `of` (none: of all)."""

    keys: tuple[str, ...]
    of: tuple[str, ...] = ()


def as_written(condition: Expression) -> str:
    """Returns a condition on merged rows without what composition adds to it, as it is shown to users."""
    added = {KIND.name, FIRST.name, LAST.name, FIRST_US.name, LAST_US.name}
    parts = [p for p in conjuncts(condition) if not any(isinstance(e, Column) and e.name in added for e in walk(p))]
    shown = " AND ".join(map(show, parts or [condition]))
    for name in TIMES:
        shown = shown.replace(f"#{name}", name)
    return shown


def kind_of(boxes: tuple[Box, ...], variable: str) -> int:
    """Returns the KIND of the rows that a variable takes."""
    name = next((box.name for box in boxes if box.variable == variable), None)
    return next((k for k, box in enumerate(modules(boxes), 1) if box.name == name), 0)


def common_keys(plan: Plan) -> tuple[str, ...]:
    """Returns the columns by which all layers of a pattern are partitioned: events with other values of them do not
    affect its matches. Of a pattern without boxes those of PARTITION BY, and none under STRICT."""
    if plan.selection is Selection.STRICT:
        return ()
    keys = tuple(c.name for c in plan.partition_by)
    for box in modules(plan.boxes):
        shown = {column.lower(): name for column, name in box.columns}
        below = {name.lower() for name in common_keys(box.plan)}
        keys = tuple(key for key in keys if shown.get(key.lower(), "").lower() == key.lower() and key.lower() in below)
    return keys


def reads_before(plan: Plan) -> bool:
    """True if a pattern reads PREV: the row before, among all events and matches that it reads."""
    read = (*(d.condition for d in plan.defines), *(m.expression for m in plan.measures))
    return any(isinstance(e, Navigation) and e.physical_offset for expression in read for e in walk(expression))


def bounded(plan: Plan) -> Plan:
    """Returns the pattern with the WITHIN of callers in the patterns of boxes that have none.

    A longer match fits into no match around it, but PREV there may read it. A pattern that gives all matches decides
    each start for itself, so that WITHIN only drops the longer ones. One that several layers call gets the longest of
    their times, so that it is still searched once."""
    widths: dict[str, list[int | None]] = {}

    def callers(one: Plan, width: int | None) -> None:
        width = None if reads_before(one) else width
        for box in modules(one.boxes):
            widths.setdefault(fingerprint(box.plan), []).append(width)
            callers(box.plan, _width(box.plan) if box.plan.within is not None else _pushed(box.plan, [width]))

    def rewritten(one: Plan) -> Plan:
        boxes = []
        for box in one.boxes:
            pushed = _pushed(box.plan, widths[fingerprint(box.plan)])
            inner = rewritten(box.plan)
            boxes.append(replace(box, plan=inner if pushed is None else replace(inner, within=Within(pushed))))
        return replace(one, boxes=tuple(boxes))

    callers(plan, _width(plan))
    return rewritten(plan)


def _width(plan: Plan) -> int | None:
    return None if plan.within is None else plan.within.interval_us


def _pushed(plan: Plan, widths: list[int | None]) -> int | None:
    """Returns the WITHIN that callers give to a pattern, None if it has its own or needs all its matches."""
    known = [width for width in widths if width is not None]
    free = plan.within is None and plan.after.kind is AfterMatchKind.NO_SKIP
    return max(known) if free and len(known) == len(widths) else None


def independent_of_before(plan: Plan) -> bool:
    """True if the matches from a start do not depend on earlier events, in any layer: all matches are given, none has a
    negation before its first event, and no condition or measure reads earlier rows or numbers matches."""
    parts = plan.pattern.parts if isinstance(plan.pattern, Sequence) else (plan.pattern,)
    leading = any(isinstance(part, Negation) and not sum(map(min_rows, parts[:i])) for i, part in enumerate(parts))
    read = (*(d.condition for d in plan.defines), *(m.expression for m in plan.measures))
    nodes = [e for expression in read for e in walk(expression)]
    outside = any(isinstance(e, MatchNumber) or (isinstance(e, Navigation) and e.physical_offset) for e in nodes)
    own = plan.after.kind is AfterMatchKind.NO_SKIP and not leading and not outside and not anchors(plan.pattern)
    return own and all(independent_of_before(box.plan) for box in plan.boxes)


def reach_us(plan: Plan) -> int | None:
    """Returns how long before its last event the first event is that a match depends on; None: any time."""
    return plan.within.interval_us if plan.within is not None and independent_of_before(plan) else None


def layers(plan: Plan, name: str = "") -> Iterator[tuple[str, Plan]]:
    """Yields the patterns of a hierarchy with their names, each as the plain pattern that its matcher runs: the
    outermost first, equal ones once. A negation that is tested apart is a pattern of its own behind its layer."""
    plan = bounded(plan)
    seen: set[str] = set()
    counted = all_counted_keys(plan)

    def below(one: Plan, name: str) -> Iterator[tuple[str, Plan]]:
        if one.boxes:
            upper, apart = gaps_apart(one, counted)
            yield name, upper
            yield from ((f"{name} {gap}", gap.rows) for gap in apart)
        else:
            yield name, one
        for box in modules(one.boxes):
            if box.name not in seen:
                seen.add(box.name)
                yield from below(box.plan, box.name)

    yield from below(plan, name)


def with_key(plan: Plan, key: Field) -> Plan:
    """Returns a pattern whose layers are all partitioned by a further column too, the first of the input and of the
    matches; windows are grouped by it."""
    boxes = tuple(
        replace(box, plan=with_key(box.plan, key), columns=((key.name, key.name), *box.columns)) for box in plan.boxes
    )
    schema = replace(plan.schema, fields=(key, *plan.schema.fields))
    by, trends = Column(key.name, key.type), plan.trends
    if trends is not None:
        trends = replace(trends, group_by=(by, *trends.group_by))
    return replace(plan, schema=schema, partition_by=(by, *plan.partition_by), boxes=boxes, trends=trends)


def column_of(box: Box, column: str) -> str:
    """Returns the merged column that holds a column of a box."""
    return f"{box.name}.{column}"


def keys_of_events(plan: Plan) -> tuple[str, ...]:
    """Returns the columns of PARTITION BY in whose values all events of a match are equal, in all layers."""
    keys = tuple(c.name for c in plan.partition_by)
    for box in modules(plan.boxes):
        shown = {column.lower(): name.lower() for column, name in box.columns}
        below = {name.lower() for name in keys_of_events(box.plan)}
        keys = tuple(key for key in keys if shown.get(key.lower()) == key.lower() and key.lower() in below)
    return keys


def merged_time(plan: Plan) -> str:
    """Returns the column of the events of a hierarchy that holds the time of one of its layers."""
    time = plan.order_by[0].column.name
    return time if plan.reads is None else plan.reads.column(plan.schema, time) or time


def merged_schema(
    schema: Schema, boxes: tuple[Box, ...], time: Column, counted: tuple[CountedEvents, ...] = ()
) -> Schema:
    """Returns the columns of merged rows: those of FROM, null in matches unless they are the time or columns of
    PARTITION BY; those of each pattern, null elsewhere; and the interval. time: of ORDER BY. counted: see
    `all_counted_keys`."""
    fields = list(schema.fields)
    for box in modules(boxes):
        types = {c.name: c.type for c in output_columns(box.plan)}
        fields += [Field(column_of(box, shown), types[name]) for shown, name in box.columns]
    return of_events(replace(schema, fields=(*fields, KIND)), time, counted)


def counted_keys(plan: Plan) -> CountedEvents | None:
    """Returns the events that are counted to know whether one lies between two rows of a pattern with boxes; None if
    any may."""
    if not plan.boxes or plan.selection in (Selection.SKIP_TILL_NEXT, Selection.SKIP_TILL_ANY):
        return None
    keys = () if plan.selection is Selection.STRICT else tuple(c.name for c in plan.partition_by)
    if plan.reads is None:
        return CountedEvents(keys)
    return CountedEvents(tuple(plan.reads.column(plan.schema, key) or key for key in keys), plan.reads.streams)


def all_counted_keys(plan: Plan) -> tuple[CountedEvents, ...]:
    """Returns `counted_keys` of all layers, each once."""
    own = counted_keys(plan)
    inner = [keys for box in modules(plan.boxes) for keys in all_counted_keys(box.plan)]
    return tuple(dict.fromkeys([*([] if own is None else [own]), *inner]))


def counts_of(counted: CountedEvents) -> tuple[Field, Field]:
    """Returns two columns of an event or match: the number of counted events with its keys before its first one, and up
    to its last one. It follows another without such an event between them if its first number is the other's second."""
    columns = ",".join(counted.keys) + (f" of {', '.join(counted.of)}" if counted.of else "")
    return Field(f"#before {columns}", "BIGINT"), Field(f"#upto {columns}", "BIGINT")


def of_events(schema: Schema, time: Column, counted: tuple[CountedEvents, ...]) -> Schema:
    """Returns columns with those of an interval; that of an event begins and ends with it."""
    times = [Field(f"#{name}", time.type) for name in TIMES]
    counts = [field for keys in counted for field in counts_of(keys)]
    return replace(schema, fields=(*schema.fields, *times, FIRST, LAST, FIRST_US, LAST_US, *counts))


def with_interval(plan: Plan, counted: tuple[CountedEvents, ...]) -> Plan:
    """Returns a pattern whose rows have, as further columns, the interval of each match: the first of a pair from its
    first row, the second from its last one."""
    time = plan.order_by[0].column
    pairs = [[Field(f"#{name}", time.type) for name in TIMES], [FIRST, LAST], [FIRST_US, LAST_US]]
    pairs += [list(counts_of(keys)) for keys in counted]
    measures = [
        Measure(field.name, Navigation(Column(field.name, field.type), (), logical, 0, 0, False, field.type))
        for pair in pairs for field, logical in zip(pair, (Logical.FIRST, Logical.LAST), strict=True)
    ]  # fmt: skip
    schema = plan.schema if plan.boxes else of_events(plan.schema, time, counted)
    return replace(plan, schema=schema, measures=(*plan.measures, *measures))


def with_times(plan: Plan) -> Plan:
    """Returns a pattern whose rows have, as further columns, the times of the first and the last event of each match,
    unless it has columns of these names; the pattern itself if its rows are no matches in the order of a time."""
    if plan.rows is not RowsPerMatch.ONE or plan.trends is not None or not plan.order_by:
        return plan
    time, known = plan.order_by[0].column, {c.name.lower() for c in output_columns(plan)}
    measures = [
        Measure(name, Navigation(
            Column(f"#{name}" if plan.boxes else time.name, time.type), (), logical, 0, 0, False, time.type
        ))
        for name, logical in zip(TIMES, (Logical.FIRST, Logical.LAST), strict=True)
        if name not in known
    ]  # fmt: skip
    return replace(plan, measures=(*plan.measures, *measures))


def over_rows(plan: Plan, counted: tuple[CountedEvents, ...] | None = None) -> Plan:
    """Returns the plain pattern over merged rows that finds the matches of a pattern with boxes. counted: of all layers
    if it is not the outermost."""
    begin = {name for name, least in rows_before(plan.pattern).items() if not least}
    boxed = {box.variable for box in plan.boxes}
    of_gaps = dict(gaps(plan.pattern))
    defines = []
    for define in plan.defines:
        name = define.variable
        parts: list[Expression] = [_call("=", _KIND, Constant(kind_of(plan.boxes, name), "INTEGER"))]
        if name in of_gaps:
            parts += _in_gap(plan, name, of_gaps[name], boxed)
        else:
            parts += _after_the_row_before(plan, begin, name in boxed, name in begin)
        parts += [define.condition] if define.condition != TRUE else []
        defines.append(replace(define, condition=Call("and", tuple(parts), "BOOLEAN") if parts[1:] else parts[0]))
    passes = plan.selection in (Selection.SKIP_TILL_NEXT, Selection.SKIP_TILL_ANY)
    selection = plan.selection if passes else Selection.SKIP_TILL_ANY
    counted = all_counted_keys(plan) if counted is None else counted
    schema = merged_schema(plan.schema, plan.boxes, plan.order_by[0].column, counted)
    after = _searched(plan)
    return replace(plan, schema=schema, boxes=(), reads=None, defines=tuple(defines), selection=selection,
                   after=after)  # fmt: skip


def _searched(plan: Plan) -> AfterMatch:
    """Returns AFTER MATCH of the plain pattern. Of matches from one start the first to come out is the only one that
    may remain, unless others rule it out before those that end earlier come."""
    if prefers_one(plan):
        return AfterMatch(AfterMatchKind.NO_SKIP)
    if plan.after.kind is AfterMatchKind.PAST_LAST_ROW:
        return AfterMatch(AfterMatchKind.TO_NEXT_ROW if ends_at_once(plan) else AfterMatchKind.NO_SKIP)
    return plan.after


def decides_apart(plan: Plan) -> bool:
    """True if some matches of the plain pattern are left out, or have another number, by AFTER MATCH."""
    numbered = any(isinstance(m.expression, MatchNumber) for m in plan.measures)
    return bool(skip_columns(plan)) or (numbered and bool(_gaps_apart(plan)))


def skip_columns(plan: Plan) -> tuple[Measure, ...]:
    """Returns further measures of a pattern with boxes, by which AFTER MATCH is decided: where the first row ends,
    where the match begins and ends, and where the row of SKIP TO begins; none if its matches are those of the plain
    pattern."""
    if plan.after.kind is AfterMatchKind.NO_SKIP:
        return ()
    if plan.after.kind is AfterMatchKind.TO_NEXT_ROW and not prefers_one(plan) and not _gaps_apart(plan):
        return ()
    to = Logical.FIRST if plan.after.kind is AfterMatchKind.TO_FIRST else Logical.LAST
    read: list[tuple[Column, tuple[str, ...], Logical]] = [
        (_LAST, (), Logical.FIRST), (_FIRST, (), Logical.FIRST), (_LAST, (), Logical.LAST),
        *([(_FIRST, plan.after.variables, to)] if plan.after.variables else []),
    ]  # fmt: skip
    final = plan.rows is not RowsPerMatch.ONE
    return tuple(
        Measure(f"#skip {i}", Navigation(column, variables, logical, 0, 0, final, column.type))
        for i, (column, variables, logical) in enumerate(read)
    )


class GapPlace(Enum):
    """The place of a negation: between two elements, or at an edge, where rows count that lie within WITHIN."""

    START = "before the first element"
    INSIDE = "between two elements"
    END = "behind the last element"


@dataclass(frozen=True, slots=True)
class Gap:
    """A negation that is tested on matches without it: none of its rows lies wholly between the last event before the
    gap and the first one behind it.

    rows: a plain pattern of one merged row, whose output is the PARTITION BY columns and its interval. columns: output
    columns of the matches. INSIDE: the positions of the event behind the gap and of that before it; START: the position
    of the event behind it, and the time of the last one; END: the position of the event before it, the time of the
    first one, and that at which the first element ends. within_us: WITHIN, 0 if there is none."""

    rows: Plan
    place: GapPlace
    columns: tuple[str, ...]
    within_us: int

    def __str__(self) -> str:
        return f"~{self.rows.pattern}"


def gaps_apart(plan: Plan, counted: tuple[CountedEvents, ...]) -> tuple[Plan, tuple[Gap, ...]]:
    """Returns the plain pattern over merged rows (see `over_rows`) without the negations that engines would test by
    conditions over the match, and these. Its rows have the columns of the gaps behind all others.

    Negations do not affect which rows a run takes; so a match without them is one if its gaps are free."""
    apart = _gaps_apart(plan)
    parts = plan.pattern.parts if isinstance(plan.pattern, Sequence) else (plan.pattern,)
    if not apart:
        return over_rows(plan, counted), ()
    kept = Sequence(tuple(part for part in parts if not (isinstance(part, Negation) and part.name in apart)))
    pattern = kept.parts[0] if len(kept.parts) == 1 else kept
    defines = tuple(d for d in plan.defines if d.variable not in apart)
    every = AfterMatch(AfterMatchKind.NO_SKIP)  # another match may take the place of one that is ruled out
    upper = over_rows(replace(plan, pattern=pattern, defines=defines, after=every), counted)
    found: list[Gap] = []
    measures: list[Measure] = []
    within_us = _width(plan) or 0
    for i, (name, (before_it, behind_it)) in enumerate(apart.items()):
        place = GapPlace.START if not before_it else GapPlace.INSIDE if behind_it else GapPlace.END
        until = (_FIRST, behind_it, Logical.FIRST)
        after = (_LAST, before_it, Logical.LAST)
        read: dict[GapPlace, tuple[tuple[Column, tuple[str, ...], Logical], ...]] = {
            GapPlace.START: (until, (_LAST_US, (), Logical.LAST)), GapPlace.INSIDE: (until, after),
            GapPlace.END: (after, (_FIRST_US, (), Logical.FIRST), (_LAST_US, (), Logical.FIRST)),
        }  # fmt: skip
        final = plan.rows is not RowsPerMatch.ONE
        own_measures = [
            Measure(f"#gap {i} {k}", Navigation(column, of, logical, 0, 0, final, column.type))
            for k, (column, of, logical) in enumerate(read[place])
        ]
        kind = _call("=", _KIND, Constant(kind_of(plan.boxes, name), "INTEGER"))
        own = plan.condition(name)
        condition = kind if own == TRUE else Call("and", (kind, own), "BOOLEAN")
        rows = replace(
            upper, pattern=Variable(name), defines=(Define(name, condition),), within=None, subsets=(),
            measures=tuple(Measure(c.name, c) for c in (_FIRST, _LAST, _FIRST_US, _LAST_US)),
            selection=Selection.SKIP_TILL_ANY, rows=RowsPerMatch.ONE,
        )  # fmt: skip
        measures += own_measures
        found.append(Gap(rows, place, tuple(m.name for m in own_measures), within_us))
    return replace(upper, measures=(*upper.measures, *measures)), tuple(found)


def with_begin(upper: Plan) -> Plan:
    """Returns a pattern over merged rows with the position of the first event of each match behind all columns."""
    begin = Navigation(_FIRST, (), Logical.FIRST, 0, 0, False, _FIRST.type)
    return replace(upper, measures=(*upper.measures, Measure(BEGIN, begin)))


def _gaps_apart(plan: Plan) -> dict[str, tuple[tuple[str, ...], tuple[str, ...]]]:
    """Returns the negated variables that are tested on matches without them, with those before and behind each."""
    boxed = {box.variable for box in plan.boxes}
    parts = plan.pattern.parts if isinstance(plan.pattern, Sequence) else (plan.pattern,)
    measures = (m.expression for m in plan.measures if not isinstance(m.expression, MatchNumber))  # see decides_apart
    read = (*(d.condition for d in plan.defines), *measures)
    if any(isinstance(e, MatchNumber) for expression in read for e in walk(expression)):
        return {}
    apart: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {}
    for name, (before, behind) in gaps(plan.pattern):
        rows_before_it, rows_behind = variables(before), variables(behind)
        alone = sum(isinstance(part, Negation) and part.name == name for part in parts) == 1
        apart_from_it = not set(rows_before_it) & set(rows_behind)
        inside = (min_rows(before) or not rows_before_it) and (min_rows(behind) or not rows_behind) and apart_from_it
        edge = not (rows_before_it and rows_behind)
        of_interval = name in boxed or boxed & {*rows_behind, *(rows_before_it if edge else ())}
        condition = plan.condition(name)
        local = is_row_local(condition) and never_fails(condition, plan.order_by[0].column)
        local &= not any(isinstance(e, Navigation) for e in walk(condition))
        if alone and inside and of_interval and local:
            apart[name] = rows_before_it, rows_behind
    return apart


def _after_the_row_before(plan: Plan, begin: set[str], boxed: bool, begins: bool) -> Iterator[Expression]:
    """Yields the conditions of a variable that takes rows: after the row before it in the match, next to it if the
    strategy asks for that, and within WITHIN of the earliest event."""
    before = Navigation(_LAST, (), Logical.LAST, 1, 0, False, _LAST.type)
    if boxed:  # an event stands after the last event of any row before it
        yield _or_first(_call(">", _FIRST, before), begins, before)
    if (keys := counted_keys(plan)) is not None:
        own, other = (Column(field.name, field.type) for field in counts_of(keys))
        yield _or_first(_call("=", own, Navigation(other, (), Logical.LAST, 1, 0, False, other.type)), begins, before)
    if plan.within is not None and plan.within.interval_us is not None and begin & {box.variable for box in plan.boxes}:
        # WITHIN counts from the first row's last event
        first = Navigation(_FIRST_US, (), Logical.FIRST, 0, 0, False, _FIRST_US.type)
        yield _call("<=", _call("-", _LAST_US, first), Constant(plan.within.interval_us, "BIGINT"))


def _in_gap(plan: Plan, name: str, gap: tuple[RowPattern, RowPattern], boxed: set[str]) -> Iterator[Expression]:
    """Yields the conditions of a negated variable: its rows lie wholly between those before and after the gap."""
    before, behind = (variables(side) for side in gap)
    assert not set(before) & set(behind), "refused by query.plan.bind_boxes"
    may_begin, may_end = (not min_rows(side) for side in gap)
    if before and name in boxed:
        last = Navigation(_LAST, before, Logical.LAST, 0, 0, False, _LAST.type)
        yield _or_first(_call(">", _FIRST, last), may_begin, last)
    if boxed & set(behind):
        next_one = Navigation(_FIRST, behind, Logical.FIRST, 0, 0, False, _FIRST.type)
        yield _or_first(_call("<", _LAST, next_one), may_end, next_one)
    if plan.within is None or plan.within.interval_us is None:
        return
    within = Constant(plan.within.interval_us, "BIGINT")
    # rows between others are within WITHIN, as these are
    if may_end and boxed & set(before):
        begin = Navigation(_FIRST_US, before, Logical.FIRST, 0, 0, False, _FIRST_US.type)
        yield _or_first(_call("<=", _call("-", _LAST_US, begin), within), not min_rows(gap[0]), begin)
    if may_begin and name in boxed:
        end = Navigation(_LAST_US, behind, Logical.LAST, 0, 0, False, _LAST_US.type)
        yield _or_first(_call("<=", _call("-", end, _FIRST_US), within), may_end, end)


def _or_first(condition: Expression, may_lack: bool, other: Expression) -> Expression:
    """Returns a condition on another row, which holds if there is none. may_lack: there may be none."""
    return _call("or", Call("is_null", (other,), "BOOLEAN"), condition) if may_lack else condition


def _call(function: str, left: Expression, right: Expression) -> Expression:
    return Call(function, (left, right), "BIGINT" if function == "-" else "BOOLEAN")


_KIND, _FIRST, _LAST, _FIRST_US, _LAST_US = (
    Column(field.name, field.type) for field in (KIND, FIRST, LAST, FIRST_US, LAST_US)
)

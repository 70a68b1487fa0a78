"""The input of a hierarchy whose layers read several streams: all of them, merged by time.

Each layer then reads its own part of the merged events (query.plan.plan.Reads). Columns of one name and type are one
column of the merged events; others get the name of the stream before theirs, so that each layer finds its columns as
declared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from query.errors import Diagnostic, Span
from query.language.ast import Selection
from query.plan.boxes import keys_of_events
from query.plan.merge import MergedInput, positions, ties
from query.plan.plan import Plan, Reads, modules
from query.plan.statement import same_input
from query.schema import STREAM, Field, Schema


def read_alike(plan: Plan, inputs: Sequence[MergedInput]) -> bool:
    """True if all layers of a hierarchy have the same input. inputs: of the outermost pattern."""
    read = {frozenset((same_input(i.input_sql), i.schema.time) for i in of) for _, of in _layers(plan, tuple(inputs))}
    return len(read) == 1


def without_inputs(plan: Plan) -> Plan:
    """Returns a hierarchy all of whose layers have the same input."""
    return replace(plan, boxes=tuple(replace(b, plan=without_inputs(b.plan), inputs=()) for b in plan.boxes))


def merged_inputs(
    plan: Plan, inputs: Sequence[MergedInput], name: str, span: Span, faults: list[Diagnostic]
) -> tuple[Plan, Schema, tuple[MergedInput, ...]] | None:
    """Returns a hierarchy whose layers read parts of merged events, with the columns and the inputs of these; None
    after adding faults to `faults`. inputs: of the outermost pattern. name: of the merged input. span: for faults."""
    before = len(faults)

    def fault(code: str, message: str, label: str = "", hint: str = "") -> None:
        faults.append(Diagnostic(code, message, span, label, hint))

    layers = list(_layers(plan, tuple(inputs)))
    members: dict[str, MergedInput] = {}
    for _, read in layers:
        for one in read:
            known = members.setdefault(one.name.lower(), one)
            same = same_input(known.input_sql) == same_input(one.input_sql)
            if not same or known.schema.time != one.schema.time:
                fault("HQ222", f"two inputs of this pattern and its boxes are called {one.name}", "which one?",
                      "give one of them another name")
    time = plan.order_by[0].column
    for layer, read in layers:
        own = layer.order_by[0].column
        if own.type != time.type:
            names = ", ".join(one.name for one in read)
            fault("HQ222", f"the time of {names} is {own.type}, and that of {', '.join(m.name for m in inputs)} "
                  f"{time.type}", "matches and events are ordered by time", "cast one of them by WITH")
        if len(layer.order_by) > 1:
            more = layer.order_by[1].column.name
            fault("HQ500", f"ORDER BY {more} after the time in patterns over several streams is not supported yet",
                  "", f"declare the stream with order=['{more}']")
    for one in members.values():
        if one.schema.field(STREAM) is not None:
            fault("HQ219", f"{one.name} has a column {STREAM}", "reserved for the name of the stream in merged rows",
                  "rename it by WITH, or declare the stream with another column name")
    common = {tuple(_common_ties(read)) for _, read in layers if len(read) > 1}
    if common - {tuple(_common_ties(tuple(members.values())))}:
        fault("HQ500", "boxes over a MERGE of streams that are ordered by further columns are not supported yet",
              "", "declare all streams with the same order")
    if len(faults) > before:
        return None
    order = ties(tuple(members.values()), [span] * len(members), faults)
    if len(faults) > before:
        return None
    return _merged(plan, tuple(inputs), members, order, name, span, faults)


def _merged(
    plan: Plan, inputs: tuple[MergedInput, ...], members: dict[str, MergedInput], order: Sequence[str], name: str,
    span: Span, faults: list[Diagnostic],
) -> tuple[Plan, Schema, tuple[MergedInput, ...]] | None:  # fmt: skip
    time = plan.order_by[0].column
    taken = {STREAM, time.name.lower()}
    fields = [Field(STREAM, "VARCHAR"), Field(time.name, time.type)]
    places: dict[tuple[str, str], str] = {}  # by name and type
    # the column of each member's column
    found: dict[str, list[str]] = {}

    def place(field: Field, of: str) -> str:
        key = field.name.lower(), field.type
        if key not in places:
            shown = field.name if field.name.lower() not in taken else f"{of}.{field.name}"
            while shown.lower() in taken:
                shown += "_"
            taken.add(shown.lower())
            places[key] = shown
            fields.append(Field(shown, field.type))
        return places[key]

    for one in members.values():
        found[one.name] = [
            time.name if f.name == one.schema.time else place(f, one.name) for f in one.schema.fields
        ]
    declared = {
        (one.name, f.name.lower()): at for one in members.values()
        for f, at in zip(one.schema.fields, found[one.name], strict=True)
    }  # fmt: skip
    tied: list[str] = []
    for tie in order:
        at = {declared[one.name, tie.lower()] for one in members.values() if (one.name, tie.lower()) in declared}
        tied.append(STREAM if tie == STREAM else at.pop())
        if tie != STREAM and at:
            faults.append(Diagnostic("HQ219", f"{tie}, which orders events of equal time, has several types", span, "",
                                     "declare it with one type"))
            return None
    schema = Schema(name, tuple(fields), time.name, order=tuple(tied))
    whole = []
    for one in members.values():
        index = {at: i for i, at in enumerate(found[one.name])}
        whole.append(replace(one, places=tuple(index.get(f.name) for f in fields)))

    def reads(layer: Plan, read: tuple[MergedInput, ...]) -> Reads:
        merged = len(read) > 1
        by_member = []
        for one in read:
            at = positions(layer.schema, one.schema) if merged else range(len(one.schema.fields))
            by_member.append([None if i is None else found[one.name][i] for i in at])
        columns = [tuple(column) for column in zip(*by_member, strict=True)]
        if merged:
            columns[0] = (STREAM,) * len(read)
        return Reads(tuple(one.name for one in read), tuple(columns))

    def rewritten(layer: Plan, read: tuple[MergedInput, ...]) -> Plan:
        boxes = tuple(replace(box, plan=rewritten(box.plan, box.inputs), inputs=()) for box in layer.boxes)
        return replace(layer, boxes=boxes, reads=reads(layer, read))

    out = rewritten(plan, inputs)
    for layer, _ in _layers(out, ()):
        if layer.boxes and layer.selection is Selection.PARTITION:
            for key in keys_of_events(layer):
                if len({_place_of(below, key) for below, _ in _layers(layer, ())}) > 1:
                    faults.append(Diagnostic("HQ222", f"{key} has several types in the streams of this pattern and its "
                                  "boxes", span, "of which partition?", "declare it with one type"))  # fmt: skip
                    return None
    return out, schema, tuple(whole)


def _place_of(layer: Plan, key: str) -> str | None:
    assert layer.reads is not None
    return layer.reads.column(layer.schema, layer.schema.column(key).name)


def _common_ties(read: Sequence[MergedInput]) -> Iterator[str]:
    """Yields the tie columns with which the orders of all inputs begin."""
    for names in zip(*([o.lower() for o in one.schema.order] for one in read)):
        if len(set(names)) > 1:
            return
        yield names[0]


def _layers(plan: Plan, inputs: tuple[MergedInput, ...]) -> Iterator[tuple[Plan, tuple[MergedInput, ...]]]:
    yield plan, inputs
    for box in modules(plan.boxes):
        yield from _layers(box.plan, box.inputs)

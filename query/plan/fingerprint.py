"""The fingerprint of a plan: a hash of its meaning, over an encoding of its own.

It enters match ids and the states of queries, so it must outlive releases. It does not depend on names of classes and
fields: each kind of node and each field has a tag that never changes. A field with its default value is omitted, so a
new field changes no fingerprint. Names are those of columns, inputs and variables, in lower case if case does not
matter; positions in the text, layout and file paths are omitted.

To add a class or a field: give it a tag that is unique in its place, and the default value that means its absence. To
rename one: change the name here and keep the tag. docs/identity.md specifies the format for other programs.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any

from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan import expression as e
from query.plan import pattern as p
from query.plan import plan as q
from query.plan import trends as t
from query.plan.merge import MergedInput
from query.schema import Field, Schema


class _Never:
    """The default of a field that is always written."""


@dataclass(frozen=True, slots=True)
class _Tagged:
    """A field: its tag, the value with which it is omitted, and True if it is a name without case. No tag: it does not
    affect the matches."""

    tag: str | None
    default: object = _Never
    any_case: bool = False


_SILENT = _Tagged(None)
_TYPE = _Tagged("t")

#: By class: its tag, and its fields in the order in which they are written.
KINDS: Mapping[type, tuple[str, Mapping[str, _Tagged]]] = {
    q.Plan: ("plan", {
        "inputs": _Tagged("in", ()), "schema": _Tagged("of"), "partition_by": _Tagged("by", ()),
        "order_by": _Tagged("or", ()), "measures": _Tagged("me", ()), "rows": _Tagged("ro", RowsPerMatch.ONE),
        "after": _Tagged("af"), "pattern": _Tagged("pa"), "within": _Tagged("wi", None),
        "selection": _Tagged("se", Selection.PARTITION), "subsets": _Tagged("su", ()), "defines": _Tagged("de", ()),
        "timeout_rows": _Tagged("ti", False), "settings": _Tagged("st", ()), "trends": _Tagged("tr", None),
        "boxes": _Tagged("bx", ()), "joined": _Tagged("jo", None), "reads": _Tagged("rd", None),
        "narrow": _SILENT,
    }),
    q.Joined: ("joined", {"factor": _SILENT, "columns": _SILENT, "key": _Tagged("k")}),
    q.Box: ("box", {
        "variable": _Tagged("v"), "name": _Tagged("n", any_case=True), "plan": _Tagged("p"), "columns": _Tagged("c"),
        "inputs": _SILENT,
    }),
    # what a layer reads is among the inputs of the outermost plan
    MergedInput: ("input", {"name": _SILENT, "input_sql": _SILENT, "schema": _SILENT, "places": _SILENT}),
    q.Reads: ("reads", {"streams": _Tagged("s"), "columns": _Tagged("c")}),
    t.Trends: ("trends", {
        "within_us": _Tagged("wi"), "slide_us": _Tagged("sl"), "group_by": _Tagged("by", ()),
        "aggregates": _Tagged("ag", ()), "having": _Tagged("ha", None),
    }),
    t.TrendAggregate: ("aggregate", {
        "over": _Tagged("o"), "argument": _Tagged("a", None), "variables": _Tagged("v", ()), "type": _TYPE,
    }),
    Schema: ("rows", {
        "name": _SILENT, "fields": _Tagged("f"), "time": _Tagged("t", None, any_case=True), "keys": _SILENT,
        "order": _Tagged("o", (), any_case=True), "lateness_us": _SILENT, "retention_us": _SILENT,
    }),
    Field: ("field", {"name": _Tagged("n", any_case=True), "type": _TYPE}),
    q.Order: ("order", {
        "column": _Tagged("c"), "descending": _Tagged("d", False), "nulls_first": _Tagged("n", False),
    }),
    q.Measure: ("measure", {"name": _Tagged("n", any_case=True), "expression": _Tagged("e")}),
    q.AfterMatch: ("after", {
        "kind": _Tagged("k", AfterMatchKind.PAST_LAST_ROW), "variables": _Tagged("v", ()),
    }),
    q.Within: ("within", {"interval_us": _Tagged("u", None), "rows": _Tagged("r", None)}),
    q.Define: ("define", {"variable": _Tagged("v"), "condition": _Tagged("c")}),
    p.Variable: ("v", {"name": _Tagged("n")}),
    p.Sequence: ("seq", {"parts": _Tagged("p")}),
    p.Alternation: ("alt", {"choices": _Tagged("p")}),
    p.Repeat: ("rep", {
        "body": _Tagged("b"), "at_least": _Tagged("l", 0), "at_most": _Tagged("m", None),
        "greedy": _Tagged("g", True),
    }),
    p.Empty: ("nil", {}),
    p.Negation: ("no", {"name": _Tagged("n")}),
    p.Anchor: ("anchor", {"at_start": _Tagged("s")}),
    p.Exclusion: ("hide", {"body": _Tagged("b")}),
    p.Conjunction: ("and", {"sides": _Tagged("p")}),
    # `sql` of a constant is its spelling; value and type are its meaning
    e.Constant: ("const", {"value": _Tagged("v", None), "type": _TYPE, "span": _SILENT, "sql": _SILENT}),
    e.Column: ("col", {"name": _Tagged("n", any_case=True), "type": _TYPE, "span": _SILENT}),
    e.Navigation: ("nav", {
        "argument": _Tagged("a"), "variables": _Tagged("v", ()), "logical": _Tagged("l", None),
        "logical_offset": _Tagged("lo", 0), "physical_offset": _Tagged("po", 0), "final": _Tagged("fi", False),
        "type": _TYPE, "span": _SILENT,
    }),
    e.Aggregate: ("agg", {
        "function": _Tagged("f"), "argument": _Tagged("a", None), "variables": _Tagged("v", ()),
        "distinct": _Tagged("di", False), "final": _Tagged("fi", False), "type": _TYPE, "span": _SILENT,
        "more": _Tagged("mo", ()), "where": _Tagged("w", None), "order": _Tagged("or", ()),
        "before": _Tagged("b", False),
    }),
    e.Classifier: ("cls", {"span": _SILENT, "type": _Tagged("t", "VARCHAR")}),
    e.MatchNumber: ("num", {"span": _SILENT, "type": _Tagged("t", "BIGINT")}),
    e.Call: ("call", {"function": _Tagged("f"), "arguments": _Tagged("a", ()), "type": _TYPE, "span": _SILENT}),
    e.Opaque: ("duck", {"sql": _Tagged("f"), "arguments": _Tagged("a", ()), "type": _TYPE, "span": _SILENT}),
}  # fmt: skip

#: Tags of the members of enumerations.
CHOICES: Mapping[Enum, str] = {
    RowsPerMatch.ONE: "one", RowsPerMatch.ALL_SHOW_EMPTY: "all", RowsPerMatch.ALL_OMIT_EMPTY: "nonempty",
    RowsPerMatch.ALL_WITH_UNMATCHED: "unmatched", RowsPerMatch.WINDOW: "window",
    AfterMatchKind.PAST_LAST_ROW: "past", AfterMatchKind.TO_NEXT_ROW: "next", AfterMatchKind.TO_FIRST: "first",
    AfterMatchKind.TO_LAST: "last", AfterMatchKind.NO_SKIP: "none",
    Selection.STRICT: "strict", Selection.PARTITION: "partition", Selection.SKIP_TILL_NEXT: "tillnext",
    Selection.SKIP_TILL_ANY: "tillany",
    e.Logical.FIRST: "first", e.Logical.LAST: "last",
    t.Over.MATCHES: "matches", t.Over.EVENTS: "events", t.Over.VALUES: "count", t.Over.SUM: "sum", t.Over.AVG: "avg",
    t.Over.MIN: "min", t.Over.MAX: "max",
}  # fmt: skip


class _ThisOne:
    """A plan that equals only itself: equal plans may differ in 0.0 and -0.0."""

    __slots__ = ("plan",)

    def __init__(self, plan: q.Plan) -> None:
        self.plan = plan

    def __hash__(self) -> int:
        return id(self.plan)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ThisOne) and self.plan is other.plan


def fingerprint(plan: q.Plan) -> str:
    """Returns the plan's fingerprint: 32 hex digits."""
    return _fingerprint(_ThisOne(plan))


@lru_cache(maxsize=256)
def _fingerprint(one: _ThisOne) -> str:
    return _digest(encoded(one.plan))


def fingerprint_of_rows(name: str) -> str:
    """Returns the fingerprint of the plain rows of a stream or table, which need no pattern."""
    return _digest(b"(plain;" + _put("" if names_a_file(name) else name.lower()) + b")")


def names_a_file(name: str) -> bool:
    """True if an input's name is that of a file, which may be moved."""
    return not set("./\\").isdisjoint(name)


def encoded(plan: q.Plan) -> bytes:
    """Returns the bytes that are hashed."""
    return _encoded(_ThisOne(plan))


@lru_cache(maxsize=256)  # a layer is part of all above it
def _encoded(one: _ThisOne) -> bytes:
    plan = one.plan
    # unread columns may be added or dropped, and DEFINE v AS TRUE is no condition
    read = set(plan.columns)
    fields = tuple(f for f in plan.schema.fields if f.name in read)
    conditions = tuple(d for d in plan.defines if d.condition != e.TRUE)
    changed: dict[str, object] = {"schema": _node(plan.schema, {"fields": fields}), "defines": conditions}
    if plan.boxes:
        parts = (_node(box, {"plan": encoded(box.plan)}) for box in plan.boxes)
        changed["boxes"] = b"[" + b"".join(parts) + b"]"
    return _node(plan, changed)


def _digest(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16, person=b"hybrid plan 1").hexdigest()


def _node(node: object, changed: Mapping[str, object]) -> bytes:
    """Encodes a node: (tag;, each field that differs from its default as its tag, = and its value, and )."""
    tag, fields = KINDS[type(node)]
    parts = [b"(", tag.encode(), b";"]
    for name, field in fields.items():
        value: Any = changed[name] if name in changed else getattr(node, name)
        if field.tag is None or value == field.default:
            continue
        if field.any_case:
            value = value.lower() if isinstance(value, str) else tuple(v.lower() for v in value)
        parts += [field.tag.encode(), b"=", value if isinstance(value, bytes) else _put(value)]
    return b"".join((*parts, b")"))


def _put(value: object) -> bytes:
    """Encodes a value; its first byte determines its end."""
    match value:
        case None:
            return b"~"
        case bool():
            return b"+" if value else b"-"
        case Enum():
            return b"e%s;" % CHOICES[value].encode()
        case int():
            return b"i%d;" % value
        case float():
            # one NaN, and 0.0 is another value than -0.0
            return b"f%s" % struct.pack(">d", value if value == value else float("nan")).hex().encode()
        case Decimal():
            sign, digits, exponent = value.as_tuple()
            number = int("".join(map(str, digits))) * (-1 if sign else 1)
            assert isinstance(exponent, int)
            while number and not number % 10:
                number, exponent = number // 10, exponent + 1
            return b"d%de%d;" % (number, exponent if number else 0)
        case str():
            text = value.encode("utf-8", "surrogatepass")
            return b"s%d:%s" % (len(text), text)
        case tuple():
            return b"[" + b"".join(map(_put, value)) + b"]"
        case _:
            return _node(value, {})

"""Scalar expressions of DEFINE and MEASURES: DuckDB's syntax tree to a bound, typed Expression.

Long: one class has a case for every node of DuckDB's syntax tree.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from query.errors import Diagnostic, Span, nearest
from query.language import duck
from query.language.ast import ExpressionText
from query.language.duck import DuckFault, Node
from query.language.session import NO_SESSION, Session, Settings
from query.plan.bind_faults import syntax_diagnostic, volatile_diagnostic
from query.plan.boxes import TIMES, column_of
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
    literal_sql,
    show,
    walk,
)
from query.plan.macros import in_place
from query.plan.plan import Box
from query.plan.tree import (
    INSTEAD,
    NAVIGATION,
    UNSUPPORTED,
    Word,
    blank_lists,
    blank_words,
    direction,
    expressions,
    is_plain_call,
    parameter_names,
    reads_match,
    reads_rows,
    type_name,
    word_without_call,
)
from query.plan.trends import WINDOW_COLUMNS
from query.plan.typed import ARITHMETIC, NUMERIC, base_type, typed
from query.schema import Field, Schema, is_unfaithful

COMPARISON = {
    "COMPARE_EQUAL": "=",
    "COMPARE_NOTEQUAL": "<>",
    "COMPARE_LESSTHAN": "<",
    "COMPARE_GREATERTHAN": ">",
    "COMPARE_LESSTHANOREQUALTO": "<=",
    "COMPARE_GREATERTHANOREQUALTO": ">=",
    "COMPARE_DISTINCT_FROM": "is_distinct",
    "COMPARE_NOT_DISTINCT_FROM": "is_not_distinct",
}
#: The argument of COUNT(MATCHES), no column of any input.
MATCHES = Column("MATCHES", "BIGINT")
#: Larger offsets are equivalent to this one: no partition has so many rows.
OFFSET_MAX = 1 << 40
CONJUNCTION = {"CONJUNCTION_AND": "and", "CONJUNCTION_OR": "or"}
#: Functions that sort a list in the default order; and in the other one.
_SORTS = ("list_sort", "array_sort", "list_grade_up", "array_grade_up", "grade_up")
_REVERSE_SORTS = ("list_reverse_sort", "array_reverse_sort")
OPERATOR = {
    "OPERATOR_NOT": "not",
    "OPERATOR_IS_NULL": "is_null",
    "OPERATOR_IS_NOT_NULL": "is_not_null",
    "OPERATOR_COALESCE": "coalesce",
    "COMPARE_IN": "in",
}


@dataclass(frozen=True, slots=True)
class Scope:
    """The meaning of names in one expression.

    candidate: the variable of DEFINE whose condition this is, or None in MEASURES. negated: variables that take no row.
    one_row: ONE ROW PER MATCH. volatile: True if now(), random() and the like are allowed. qualified: True if every
    column needs a variable. session: the connection that runs the statement. trends: True in the measures of ONE ROW
    PER WINDOW. boxes: the variables that stand for matches; then `schema` is that of merged rows, which begins with the
    `own` columns of the input. opens: True if a function that only DuckDB knows becomes an Opaque of its own, over the
    expressions that are its arguments.
    """

    schema: Schema
    primary: tuple[str, ...]
    negated: tuple[str, ...]
    subsets: dict[str, tuple[str, ...]]
    candidate: str | None
    one_row: bool
    volatile: bool
    qualified: bool = False
    session: Session = NO_SESSION
    trends: bool = False
    boxes: tuple[Box, ...] = ()
    own: Schema | None = None
    opens: bool = False

    def of_variable(self, variable: str | None) -> Mapping[str, Field]:
        """Returns the columns that a variable's rows show, by name in lower case; None: those that all rows have, and
        those of FROM."""
        if self.own is None:
            return {f.name.lower(): f for f in self.schema.fields}
        members = self.subsets.get(variable or "", (variable,))
        boxes = [next((b for b in self.boxes if b.variable == name), None) for name in members]
        times = {name: replace(self.schema.column(f"#{name}"), name=f"#{name}") for name in TIMES}
        if boxes and boxes[0] is not None and all(b is not None and b.name == boxes[0].name for b in boxes):
            shown = {name.lower(): self.schema.column(column_of(boxes[0], name)) for name, _ in boxes[0].columns}
            return times | shown
        return times | {f.name.lower(): f for f in self.own.fields}

    def members(self, variable: str) -> tuple[str, ...]:
        """Returns the primary variables of a name; empty for a name that takes no row."""
        if variable in self.subsets:
            return self.subsets[variable]
        return (variable,) if variable in self.primary else ()


def bind_expression(text: ExpressionText, scope: Scope, faults: list[Diagnostic]) -> Expression | None:
    """Returns the typed expression, or None after adding its faults to `faults`."""
    before = len(faults)
    binder = _Binder(text, scope, faults)
    expression = binder.bind()
    if expression is None or len(faults) > before:
        return None
    expression = typed(expression, scope.schema, faults, scope.session.settings)
    faults += map(inexact, filter(_is_inexact, walk(expression)))
    return expression if len(faults) == before else None


def _is_inexact(e: Expression) -> bool:
    """True for an aggregate that takes or gives values which do not reach DuckDB, or come from it, as they are."""
    if not isinstance(e, Aggregate) or e.function == "count":
        return False
    return is_unfaithful(e.type) or any(is_unfaithful(i.type) for i in e.inputs)


def inexact(e: Expression) -> Diagnostic:
    """Returns HQ205 for an expression of a type that patterns cannot compute with."""
    type = next(t for t in (e.type, *(i.type for i in getattr(e, "inputs", ()))) if is_unfaithful(t))
    message, hint = f"{type} is a type that patterns cannot hand on", "cast it, for example CAST(... AS VARCHAR)"
    return Diagnostic("HQ205", message, e.span, type, hint)


@lru_cache(maxsize=1024)
def opened(sql: str, types: tuple[str, ...], settings: Settings) -> Expression | None:
    """Returns an expression that only DuckDB computes as operators, and functions over their arguments: the columns
    "_0", "_1", ..., of these types. None if DuckDB reads it otherwise."""
    schema = Schema("", tuple(Field(f"_{i}", type) for i, type in enumerate(types)))
    scope = Scope(schema, (), (), {}, None, True, True, session=Session(settings=settings), opens=True)
    return bind_expression(ExpressionText(sql, Span(0, len(sql))), scope, [])


def bind_over_trends(
    text: ExpressionText, scope: Scope, faults: list[Diagnostic], column: Callable[[Aggregate], Column | None],
    fields: Callable[[], tuple[Field, ...]],
) -> Expression | None:
    """Returns the typed expression over aggregates and groups of trends, or None after adding its faults.

    column: the column that holds an aggregate, None after adding a fault; its argument has types. fields: the columns
    that the expression may read, after all calls of `column`."""
    before = len(faults)
    bound = _Binder(text, replace(scope, trends=True), faults).bind()
    if bound is None or len(faults) > before:
        return None

    def columns(e: Expression) -> Expression:
        match e:
            case Aggregate():
                argument = e.argument
                if argument is not None and argument != MATCHES:
                    argument = typed(argument, scope.schema, faults, scope.session.settings)
                return (column(replace(e, argument=argument)) if len(faults) == before else None) or e
            case Call() | Opaque():
                return replace(e, arguments=tuple(map(columns, e.arguments)))
            case _:
                return e

    expression = columns(bound)

    def outside(e: Expression) -> None:
        if isinstance(e, Navigation | Classifier | MatchNumber):
            faults.append(Diagnostic("HQ221", f"{show(e)} is a value of one match", e.span, "of which match?",
                                     "available: COUNT(MATCHES), COUNT, SUM, AVG, MIN, MAX, and columns of GROUP BY"))
            return
        if isinstance(e, Column) and e.name not in {f.name for f in fields()}:
            hint = _of_windows(e.name) or f"group by it, or aggregate it: max({e.name})"
            faults.append(Diagnostic("HQ221", f"{e.name} is no column of GROUP BY", e.span, "of which event?", hint))
        for child in children(e):
            outside(child)

    if len(faults) == before:
        outside(expression)
    if len(faults) > before:
        return None
    expression = typed(expression, Schema("", fields()), faults, scope.session.settings)
    return expression if len(faults) == before else None


#: Quotes that word processors make of straight ones.
_CURLY = "\u2018\u2019\u201c\u201d"


def _of_windows(name: str) -> str:
    """Returns a hint for names that only rows of windows know, else an empty text."""
    if name.lower() == "matches":
        return "COUNT(MATCHES) is a measure of ONE ROW PER WINDOW"
    if name.lower() in (f.name for f in WINDOW_COLUMNS):
        return f"{name} is a column of the rows of ONE ROW PER WINDOW: read it in the SELECT around them"
    return ""


def _without_parentheses(name: str) -> str:
    """Returns a hint for functions of the match without parentheses, as Snowflake allows, else an empty text."""
    return f"write {name.upper()}()" if name.lower() in ("classifier", "match_number") else ""


@dataclass(slots=True)
class _Inside:
    """The call whose argument is being bound: the variables it names (None: a bare column), and its position."""

    name: str
    seen: dict[str | None, Span] = field(default_factory=dict)


class _Binder:
    def __init__(self, text: ExpressionText, scope: Scope, faults: list[Diagnostic]) -> None:
        self.text = text
        self.whole = text.span
        self.scope = scope
        self.faults = faults
        source, self.words = blank_words(text)
        self.source, self.lists = blank_lists(source)
        self.used: set[int] = set()

    # ---- places and faults

    def span(self, node: Node) -> Span:
        found = duck.span_in(node)
        if found is None or found[0] == found[1]:
            return self.whole
        return self.text.place(*found)

    def fault(self, code: str, message: str, span: Span, label: str = "", hint: str = "") -> Constant:
        self.faults.append(Diagnostic(code, message, span, label, hint))
        return Constant(None, duck.NULL_TYPE, span)

    # ---- syntax tree to expression

    def bind(self) -> Expression | None:
        before = len(self.faults)
        try:
            node = duck.parse_expression(self.source, self.scope.session.settings)
        except DuckFault as fault:
            diagnostic = syntax_diagnostic(fault, self.text)
            if found := word_without_call(self.source):
                said, column = found
                diagnostic = replace(diagnostic, hint=f"{said} must precede a call: {said} LAST({column})")
            self.faults.append(diagnostic)
            return None
        node = in_place(self.unchained(node), self.scope.session, self.type_of, self.span, self.faults)
        expression = self.expression(self.of_session(node), None)
        for start, word in self.words.items():
            if start not in self.used and not self.faults[before:]:
                name = "FINAL" if word.final else "RUNNING"
                self.fault("HQ208", f"{name} must precede FIRST, LAST or an aggregate", word.span,
                           hint=f"leave {name} out, or write it as in PREV({name} LAST(A.x))")
        return expression

    def unchained(self, value: Any) -> Any:
        """Returns the tree with `A.x.f(y)` written as `f(A.x, y)`."""
        if isinstance(value, list):
            return [self.unchained(v) for v in value]
        if not isinstance(value, dict):
            return value
        value = {k: self.unchained(v) for k, v in value.items()}
        if value.get("class") != "FUNCTION" or not value["schema"]:
            return value
        path = [name for name in (value["catalog"], value["schema"]) if name]
        place = value["query_location"]
        text = self.source[place : place + value["query_location_length"]]
        if self.scope.schema.field(path[0]) is None and not self.is_variable(self.variable(path[0], text)):
            return value
        written = re.match(r"\s*\.\s*".join([r'(?:"(?:[^"]++|"")*+"|[^\W\d]\w*)'] * len(path)), text)
        length = written.end() if written else 0
        column = {"class": "COLUMN_REF", "type": "COLUMN_REF", "alias": "", "column_names": path,
                  "query_location": place, "query_location_length": length}  # fmt: skip
        alone = {"catalog": "", "schema": "", "qualified_name": {"path": [value["function_name"]]}}
        return {**value, **alone, "arguments": [{"name": "", "expression": column}, *value["arguments"]]}

    def of_session(self, value: Any) -> Any:
        """Returns the tree with values of the user's connection (variables, the schema, now) as constants."""
        if isinstance(value, list):
            return [self.of_session(v) for v in value]
        if not isinstance(value, dict):
            return value
        value = {k: self.of_session(v) for k, v in value.items()}
        session, name = self.scope.session, ""
        if value.get("class") == "FUNCTION":
            name = str(value["function_name"]).lower()
        elif value.get("class") == "COLUMN_REF" and len(value["column_names"]) == 1:
            word = str(value["column_names"][0]).lower()
            name = word if word in duck.CLOCK_WORDS and self.scope.schema.field(word) is None else ""
        if name in _SORTS and len(value["arguments"]) == 1 and session.descends:
            descending = {"name": "", "expression": duck.parse_expression("'DESC'")}
            return {**value, "arguments": [*value["arguments"], descending]}
        if name in _REVERSE_SORTS and session.descends:
            first, *nulls = value["arguments"]
            ascending = {"name": "", "expression": duck.parse_expression("'ASC'")}
            sort = {"function_name": "list_sort", "qualified_name": {"path": ["list_sort"]}}
            return {**value, **sort, "arguments": [first, ascending, *nulls]}
        if session.value is None or name not in duck.session_names() or not self.scope.volatile:
            return value
        arguments = [a["expression"] for a in value.get("arguments", ())]
        if any(reads_rows(part) for a in arguments for part in expressions(a)):
            message = f"{name} of the connection requires fixed arguments here"
            return self.faulty(value, message, "compute it in the input: FROM (SELECT *, ... AS x FROM ...)")
        found = session.value(duck.deserialize(value))
        if found is None:
            message = f"the value of {name} has a type that patterns cannot read"
            return self.faulty(value, message, "cast it, or write the value")
        place = {k: value[k] for k in ("alias", "query_location", "query_location_length") if k in value}
        return {**duck.parse_expression(found), **place}

    def type_of(self, node: Node) -> str | None:
        """Returns the type of an argument of a macro; None for constants, and for what cannot be bound by itself."""
        if not any(map(reads_rows, expressions(node))):
            return None
        faults: list[Diagnostic] = []
        alone = _Binder(self.text, self.scope, faults)
        bound = alone.expression(node, None)
        found = bound if faults else typed(bound, self.scope.schema, faults, self.scope.session.settings)
        return None if faults else found.type

    def faulty(self, node: Node, message: str, hint: str) -> Node:
        """Adds a fault and returns the node, which cannot be bound."""
        self.fault("HQ205", message, self.span(node), hint=hint)
        return node

    def variable(self, name: str, text: str) -> str:
        """Returns the row pattern variable of a name, given the text that begins with it."""
        return name if text.startswith('"') else name.upper()

    def is_variable(self, name: str) -> bool:
        return name in self.scope.subsets or name in (*self.scope.primary, *self.scope.negated)

    def expression(self, node: Node, inside: _Inside | None) -> Expression:
        if (constant := self.constant(node)) is not None:
            return constant
        match node["class"]:
            case "COLUMN_REF":
                return self.column(node, inside)
            case "FUNCTION":
                return self.function(node, inside)
            case "COMPARISON":
                return self.call(COMPARISON[node["type"]], [node["left"], node["right"]], node, inside)
            case "CONJUNCTION":
                return self.call(CONJUNCTION[node["type"]], node["children"], node, inside)
            case "BETWEEN":
                return self.call("between", [node["input"], node["lower"], node["upper"]], node, inside)
            case "OPERATOR" if (listed := self.listed(node)) is not None:
                value, span = self.expression(node["children"][0], inside), self.span(node)
                found = Opaque(f'("_0" IN ({listed}))', (value,), "", span)
                return found if node["type"] == "COMPARE_IN" else Call("not", (found,), "", span)
            case "OPERATOR" if node["type"] in OPERATOR:
                return self.call(OPERATOR[node["type"]], node["children"], node, inside)
            case "OPERATOR" if node["type"] == "COMPARE_NOT_IN":
                span = self.span(node)
                return Call("not", (self.call("in", node["children"], node, inside),), "", span)
            case "CASE":
                parts = [part for check in node["case_checks"] for part in (check["when_expr"], check["then_expr"])]
                return self.call("case", [*parts, node["else_expr"]], node, inside)
            case "CAST" if not node["try_cast"]:
                value = self.expression(node["child"], inside)
                return Call("cast", (value,), type_name(node), self.span(node))
            case _:
                return self.opaque(node, inside)

    def listed(self, node: Node) -> str | None:
        """Returns the long list of literals of an IN."""
        if node["type"] not in ("COMPARE_IN", "COMPARE_NOT_IN") or node["children"][1]["class"] != "COLUMN_REF":
            return None
        return self.lists.get(node["children"][1]["column_names"][0])

    def call(self, function: str, nodes: list[Node], node: Node, inside: _Inside | None) -> Expression:
        return Call(function, tuple(self.expression(n, inside) for n in nodes), "", self.span(node))

    def constant(self, node: Node) -> Expression | None:
        """Returns the value of a syntax tree without rows, or None if DuckDB cannot compute it."""
        own = self.scope.session.functions
        parts = expressions(node)
        if any(reads_rows(part) or (own and part.get("function_name", "").lower() in own) for part in parts):
            return None  # a user's function may have another value each time
        sql = duck.deserialize(node)
        folded = duck.fold(sql, self.scope.session.settings)
        if folded is None:
            return None
        span = self.span(node)
        literal = node["class"] == "CONSTANT"
        if folded.value is None:
            return Constant(None, folded.type, span)
        if folded.type == "INTERVAL":
            if folded.microseconds is None:
                return Opaque(f"CAST('{folded.text}' AS INTERVAL)", (), "INTERVAL", span)
            return Constant(folded.microseconds, "INTERVAL", span, f"CAST('{folded.text}' AS INTERVAL)")
        if folded.type == "BOOLEAN":
            return Constant(folded.value, "BOOLEAN", span)
        if folded.type == "VARCHAR":
            # a literal adopts the type it is compared with, a VARCHAR does not
            return Constant(folded.value, "VARCHAR", span, "" if literal else f"CAST({sql} AS VARCHAR)")
        if base_type(folded.type) in NUMERIC:
            return Constant(folded.value, folded.type, span, sql if literal else "")
        return Constant(folded.value, folded.type, span, sql)

    # ---- columns

    def column(self, node: Node, inside: _Inside | None) -> Expression:
        span = self.span(node)
        names = [str(name) for name in node["column_names"]]
        quoted = self.quoted(node, len(names))
        schema = self.scope.own or self.scope.schema
        variable = names[0] if quoted[0] else names[0].upper()
        is_variable = self.is_variable(variable)
        if len(names) > 1 and is_variable:
            shown = self.scope.of_variable(variable)
            found = shown.get(names[1].lower())
            if found is None:
                of = next((b.name for b in self.scope.boxes if b.variable == variable), schema.name)
                return self.fault("HQ201", f"{of} has no column {names[1]}", span, "no such column",
                                  nearest(names[1], list(shown)))
            column = _path(Column(found.name, found.type, span), names[2:], span)
            return self.of_variable(variable, column, span, inside)
        found = None
        if self.scope.boxes:  # in the condition of a box its own columns come first
            boxed = any(b.variable == self.scope.candidate for b in self.scope.boxes)
            shown = self.scope.of_variable(self.scope.candidate if boxed else None)
            found = shown.get(names[0].lower())
            if boxed and found is None and len(names) == 1:
                of = next(b.name for b in self.scope.boxes if b.variable == self.scope.candidate)
                return self.fault("HQ201", f"{of} has no column {names[0]}", span, "no such column",
                                  nearest(names[0], list(shown)))
        found = found or schema.field(names[0])
        if found is not None and self.scope.qualified:
            return self.fault("HQ202", f"{names[0]} lacks its variable", span, "of which event?",
                              f"write {self.scope.primary[0].lower()}.{names[0]}")
        if found is not None:
            if inside is not None:
                inside.seen.setdefault(None, span)
            return _path(Column(found.name, found.type, span), names[1:], span)
        if len(names) > 1:
            if names[0].lower() == schema.name.lower():
                hint = f"columns of the input are written without its name: {names[1]}"
                return self.fault("HQ202", f"{names[0]} is not a row pattern variable", span, "not in PATTERN", hint)
            return self.no_variable(names[0], variable, span, names[1] if schema.field(names[1]) else "")
        if names[0].lower() in duck.CLOCK_WORDS:
            self.volatile(names[0], span)
            return Opaque(duck.deserialize(node), (), "", span)
        if is_variable:
            counts = inside is not None and inside.name == "count"
            return self.fault("HQ201", f"{names[0]} is a row pattern variable, not a column", span,
                              hint=f"write {names[0]}.{'*' if counts else '<column>'}")
        told = _of_windows(names[0]) or _without_parentheses(names[0])
        hint = told or nearest(names[0], schema.names)
        if names[0][0] in _CURLY:
            hint = f"a text has straight quotes: '{names[0].strip(_CURLY)}'"
        elif quoted[0] and not told:
            hint = f"{hint}; a text has single quotes: '{names[0]}'"
        return self.fault("HQ201", f"{schema.name} has no column {names[0]}", span, "no such column", hint)

    def of_variable(self, variable: str, value: Expression, span: Span, inside: _Inside | None) -> Expression:
        """Returns `A.x`: its value at the last row of A so far; inside a navigation or aggregate, the column of A's
        rows."""
        if variable in self.scope.negated and variable not in self.scope.primary:
            if self.scope.candidate == variable and inside is None:
                return value
            if self.scope.candidate != variable or (inside is not None and inside.name not in ("prev", "next")):
                return self.no_variable(variable, variable, span)
        if inside is not None:
            inside.seen.setdefault(variable, span)
            return value
        return self.navigation(value, variable, Logical.LAST, 0, 0, False, span)

    def quoted(self, node: Node, count: int) -> list[bool]:
        """Returns, for each part of a dotted name, whether it is quoted in the text."""
        start = node["query_location"]
        text = self.source[start : start + node["query_location_length"]]
        parts = re.findall(r'"(?:[^"]++|"")*+"|[^".\s]+', text)
        return [p.startswith('"') for p in parts] if len(parts) == count else [False] * count

    # ---- functions

    def function(self, node: Node, inside: _Inside | None) -> Expression:
        name = str(node["function_name"]).lower()
        arguments = [a["expression"] for a in node["arguments"]]
        if reads_match(name) and node["schema"]:
            path = [p for p in (node["catalog"], node["schema"]) if p]
            return self.fault("HQ102", f"unknown function {'.'.join([*path, name])}", self.span(node),
                              "no such function", f"write {name}(...) alone")
        if name in NAVIGATION:
            return self.navigate(name, arguments, node, inside)
        if name == "classifier":
            return self.classifier(arguments, node, inside)
        if name == "match_number":
            self.bare(name, node)
            if arguments:
                return self.fault("HQ205", "MATCH_NUMBER() takes no argument", self.span(node))
            return MatchNumber(self.span(node))
        if name in duck.aggregate_names():
            return self.aggregate(name, arguments, node, inside)
        if node["is_operator"] and name in ARITHMETIC and len(arguments) == 2:
            return self.call(name, arguments, node, inside)
        if node["is_operator"] and name == "-":
            return self.call("neg", arguments, node, inside)
        if name == "abs" and len(arguments) == 1:
            return self.call("abs", arguments, node, inside)
        return self.opaque(node, inside)

    def word(self, node: Node) -> Word | None:
        start = node["query_location"]
        found = self.words.get(start)
        if found is not None:
            self.used.add(start)
            if found.final and self.scope.candidate is not None:
                self.fault("HQ209", "FINAL is not allowed in DEFINE", found.span, "the match is not complete here",
                           "leave FINAL out: a condition sees the rows matched so far")
        return found

    def is_final(self, node: Node) -> bool:
        word = self.word(node)
        # with one row per match the current row is the last: RUNNING and FINAL are equal, and RUNNING is used
        return word is not None and word.final and not self.scope.one_row

    def bare(self, name: str, node: Node) -> None:
        """Adds a fault for DISTINCT, FILTER or ORDER BY: FIRST, LAST, PREV, NEXT, CLASSIFIER and MATCH_NUMBER are no
        aggregates."""
        if node["distinct"] or node["filter"] or node["order_bys"]["orders"]:
            self.fault("HQ208", f"{name.upper()} takes no DISTINCT, FILTER or ORDER BY", self.span(node),
                       hint="FIRST and LAST go by the order of the match; arg_min(x, y) and arg_max(x, y) by y")

    def navigate(self, name: str, arguments: list[Node], node: Node, inside: _Inside | None) -> Expression:
        span = self.span(node)
        if inside is not None:
            within = f"{inside.name.upper()}"
            if inside.name in NAVIGATION:
                hint = "write physical(logical()): PREV or NEXT around FIRST or LAST"
            else:
                hint = "aggregate a column of the rows themselves"
                if name in ("prev", "next"):
                    over = f"{'lag' if name == 'prev' else 'lead'}(x) OVER (PARTITION BY k ORDER BY ts)"
                    hint += f": FROM (SELECT *, {over} AS y FROM t), then {within}(y)"
            return self.fault("HQ208", f"{name.upper()} is not allowed inside {within}", span, hint=hint)
        self.bare(name, node)
        if not arguments:
            return self.fault("HQ208", f"{name.upper()} takes a value and an offset", span)
        logical: Logical | None = None
        logical_offset, physical, final = 0, 0, False
        if name in ("prev", "next"):
            steps = self.steps(name, arguments, 1, span)
            physical = -steps if name == "prev" else steps
            inner = arguments[0]
            inner_name = str(inner.get("function_name", "")).lower()
            if inner["class"] == "FUNCTION" and inner_name in ("first", "last"):
                node, name, arguments = inner, inner_name, [a["expression"] for a in inner["arguments"]]
                self.bare(name, node)
        if name in ("first", "last"):
            logical, final = Logical(name.upper()), self.is_final(node)
            logical_offset = self.steps(name, arguments, 0, span)
        before = len(self.faults)
        call = _Inside(name)
        argument = self.expression(arguments[0], call) if arguments else Constant(None, duck.NULL_TYPE, span)
        if len(self.faults) > before or not self.one_variable(call, span):
            return argument
        if not call.seen:
            message = f"{name.upper()} needs a column or CLASSIFIER()"
            return self.fault("HQ207", message, span, "no column is read here")
        variable = next(iter(call.seen))
        if variable is not None and logical is None:
            logical = Logical.LAST
        return self.navigation(argument, variable, logical, logical_offset, physical, final, span)

    def steps(self, name: str, arguments: list[Node], default: int, span: Span) -> int:
        """Returns the offset of a navigation: its second argument; OFFSET_MAX for any that is larger."""
        if not 1 <= len(arguments) <= 2:
            self.fault("HQ208", f"{name.upper()} takes a value and an offset", span)
        if len(arguments) < 2:
            return default
        value = self.constant(arguments[1])
        if isinstance(value, Constant) and base_type(value.type) in NUMERIC and isinstance(value.value, int):
            if value.value >= 0:
                return min(value.value, OFFSET_MAX)
        message = f"the offset of {name.upper()} is a whole number, not negative"
        other = {"prev": "NEXT", "next": "PREV"}.get(name)
        back = isinstance(value, Constant) and isinstance(value.value, int) and value.value < 0 and other is not None
        self.fault("HQ205", message, self.span(arguments[1]), hint=f"{other} goes the other way" if back else "")
        return 0

    def navigation(
        self, argument: Expression, variable: str | None, logical: Logical | None, logical_offset: int, physical: int,
        final: bool, span: Span,
    ) -> Expression:
        """Returns the navigation in its simplest form: the candidate or current row is read directly."""
        candidate = self.scope.candidate
        members = () if variable is None else self.scope.members(variable)
        if logical is Logical.LAST and logical_offset == 0 and not final:
            if candidate is None:
                here = variable is None
            elif candidate in self.scope.primary:
                here = variable is None or candidate in members
            else:
                here = variable == candidate
            logical = None if here else logical
        if logical is None:
            members = ()
            if physical == 0:
                return argument if candidate is None else _labelled(argument, candidate)
        return Navigation(argument, members, logical, logical_offset, physical, final, "", span)

    def one_variable(self, call: _Inside, span: Span) -> bool:
        if len(call.seen) < 2:
            return True
        (first, _), (second, place) = list(call.seen.items())[:2]
        names = " and ".join("all rows" if v is None else v for v in (first, second))
        self.fault("HQ207", f"{call.name.upper()} reads rows of {names} at once", place, "another variable",
                   "split it into one call for each variable")
        return False

    def classifier(self, arguments: list[Node], node: Node, inside: _Inside | None) -> Expression:
        span = self.span(node)
        self.bare("classifier", node)
        if not arguments:
            if inside is not None:
                inside.seen.setdefault(None, span)
            elif self.scope.candidate is not None:
                return _labelled(Classifier(span), self.scope.candidate)
            return Classifier(span)
        name = arguments[0]["column_names"][0] if arguments[0]["class"] == "COLUMN_REF" else ""
        if len(arguments) > 1 or not name or len(arguments[0]["column_names"]) > 1:
            return self.fault("HQ205", "CLASSIFIER takes a row pattern variable, or nothing", span)
        variable = name if self.quoted(arguments[0], 1)[0] else name.upper()
        if not self.scope.members(variable):
            return self.no_variable(name, variable, self.span(arguments[0]))
        return self.of_variable(variable, Classifier(span), span, inside)

    def no_variable(self, written: str, name: str, span: Span, column: str = "") -> Constant:
        """Adds HQ202. column: of the input, if `written` qualifies one."""
        if name in self.scope.negated:
            hint = f"{name}.x is allowed only in the condition of {name}"
            return self.fault("HQ202", f"{name} is negated: no row of a match is {name}", span, hint=hint)
        known = (*self.scope.primary, *self.scope.subsets)
        hint = nearest(name, known)
        if column and not hint.startswith("did you mean"):
            hint += f"{'; ' if hint else ''}a column of the input is written alone: {column}"
        return self.fault("HQ202", f"{written} is not a row pattern variable", span, "not in PATTERN", hint)

    def aggregate(self, name: str, arguments: list[Node], node: Node, inside: _Inside | None) -> Expression:
        span = self.span(node)
        if inside is not None:
            message = f"{name.removesuffix('_star').upper()} is not allowed inside {inside.name.upper()}"
            return self.fault("HQ210", message, span, "an aggregate", "compute it beside the call")
        if node["export_state"]:
            return self.fault("HQ500", f"EXPORT_STATE of {name} is not supported yet", span)
        if name in duck.volatile_names():
            self.volatile(name, span)
        sound = len(self.faults)
        final, call = self.is_final(node), _Inside(name.removesuffix("_star"))
        if self.scope.trends and name == "count" and self.counts_matches(arguments):
            more = bool(node["distinct"] or node["filter"] or node["order_bys"]["orders"])  # all of them refused
            return Aggregate("count", MATCHES, (), more, final, "", span)
        if name == "count_star" or any(a["class"] == "STAR" for a in arguments):
            self.star(arguments, node, call)
            inputs: list[Expression] = []
        else:
            inputs = [self.expression(a, call) for a in arguments]
        where = self.expression(node["filter"], call) if node["filter"] else None
        session, orders = self.scope.session, node["order_bys"]["orders"]
        order = [(self.expression(o["expression"], call), direction(o, session)) for o in orders]
        inputs, order = _within_group(call.name, inputs, order, session.settings)
        if len(self.faults) == sound and not inputs and call.name != "count":
            self.fault("HQ205", f"{name} takes a value", span)
        if len(self.faults) > sound or not self.one_variable(call, span):
            return Constant(None, duck.NULL_TYPE, span)
        variable = next(iter(call.seen), None)
        members = () if variable is None else self.scope.members(variable)
        before = node["query_location"] in self.text.before
        if not inputs:
            return Aggregate("count", None, members, False, final, "", span, where=where, before=before)
        return Aggregate(
            name, inputs[0], members, bool(node["distinct"]), final, "", span, tuple(inputs[1:]), where, tuple(order),
            before,
        )  # fmt: skip

    def counts_matches(self, arguments: list[Node]) -> bool:
        """True if the argument is the word MATCHES; a column of that name is quoted or has its variable."""
        if len(arguments) != 1 or arguments[0]["class"] != "COLUMN_REF":
            return False
        names = [str(name) for name in arguments[0]["column_names"]]
        plain = len(names) == 1 and not self.quoted(arguments[0], 1)[0]
        return plain and names[0].upper() == MATCHES.name and not self.is_variable(MATCHES.name)

    def star(self, arguments: list[Node], node: Node, call: _Inside) -> None:
        """Checks the argument of count(*) or count(A.*)."""
        span = self.span(node)
        written = str(arguments[0].get("relation_name", "")) if arguments else ""
        what = f"{written}.*" if written else "*"
        if arguments and arguments[0]["class"] != "STAR":  # DuckDB reads B.count() as a call with the argument B
            of = str(arguments[0].get("column_names", ["A"])[0])
            self.fault("HQ205", "count has no argument before its name", span, hint=f"write {call.name}({of}.*)")
        elif call.name != "count" or len(arguments) > 1 or (arguments and arguments[0]["columns"]):
            hint = f"write {call.name}({written}.x)" if written else ""
            self.fault("HQ205", f"{call.name} takes a value, not {what}", span, hint=hint)
        elif node["distinct"]:
            hint = f"write count(DISTINCT {written + '.' if written else ''}x)"
            self.fault("HQ205", f"count(DISTINCT {what}) has no value to compare", span, hint=hint)
        elif not written:
            call.seen[None] = span
        else:
            start = arguments[0]["query_location"]
            variable = self.variable(written, self.source[start:])
            if self.scope.members(variable):
                call.seen[variable] = span
            else:
                self.no_variable(written, variable, self.text.place(start, start + len(written)))

    def volatile(self, name: str, span: Span) -> None:
        if not self.scope.volatile:
            self.faults.append(volatile_diagnostic(name, span))

    # ---- expressions that only DuckDB computes

    def opaque(self, node: Node, inside: _Inside | None) -> Expression:
        arguments: list[Expression] = []
        if self.scope.opens and is_plain_call(node):
            return self.opened(node)
        tree = self.template(copy.deepcopy(node), inside, arguments, frozenset())
        return Opaque(duck.deserialize(tree), tuple(arguments), "", self.span(node))

    def opened(self, node: Node) -> Expression:
        """Returns a function over the expressions that are its arguments; constants stay in its text, for a literal
        adopts the type that the function takes."""
        arguments: list[Expression] = []
        given: list[Node] = []
        for argument in node["arguments"]:
            if self.constant(argument["expression"]) is not None:
                given.append(argument)
                continue
            value = self.expression(argument["expression"], None)
            if value not in arguments:
                arguments.append(value)
            place = {k: argument["expression"][k] for k in ("alias", "query_location", "query_location_length")}
            names = [f"_{arguments.index(value)}"]
            column = {"class": "COLUMN_REF", "type": "COLUMN_REF", **place, "column_names": names}
            given.append({**argument, "expression": column})
        return Opaque(duck.deserialize({**node, "arguments": given}), tuple(arguments), "", self.span(node))

    def template(
        self, value: Any, inside: _Inside | None, arguments: list[Expression], parameters: frozenset[str]
    ) -> Any:
        """Returns the tree with every leaf that reads rows replaced by a column "_0", "_1", ..."""
        if isinstance(value, list):
            return [self.template(v, inside, arguments, parameters) for v in value]
        if not isinstance(value, dict):
            return value
        kind = value.get("class")
        if kind == "PARAMETER":
            self.fault("HQ100", "this parameter has no value", self.span(value), hint=INSTEAD[kind])
            return value
        if kind in UNSUPPORTED:
            self.fault("HQ500", f"{UNSUPPORTED[kind]} in a pattern's expression is not supported yet", self.span(value),
                       hint=INSTEAD.get(kind, ""))
            return value
        if kind == "COLUMN_REF" and value["column_names"][0].lower() in parameters:
            return value
        name = str(value.get("function_name", "")).lower() if kind == "FUNCTION" else ""
        if name and duck.is_volatile(name, len(value["arguments"])):
            self.volatile(name, self.span(value))
        if name in duck.lambda_names():
            return {**value, "arguments": [self.template_or_lambda(a, inside, arguments, parameters)
                                           for a in value["arguments"]]}  # fmt: skip
        if name == "unnest":
            self.fault("HQ500", "unnest in a pattern's expression is not supported yet", self.span(value))
            return value
        # a string that reads like a placeholder must become an argument itself
        doubtful = kind == "CONSTANT" and re.search(r'"_\d+"', str(value["literal"]["text"]))
        listed = kind == "OPERATOR" and self.listed(value) is not None
        if kind == "COLUMN_REF" or reads_match(name) or doubtful or listed:
            leaf = self.expression(value, inside)
            if isinstance(leaf, Opaque) and not leaf.arguments:
                return value
            if leaf not in arguments:
                arguments.append(leaf)
            location = {k: value[k] for k in ("alias", "query_location", "query_location_length")}
            placeholder = [f"_{arguments.index(leaf)}"]
            return {"class": "COLUMN_REF", "type": "COLUMN_REF", **location, "column_names": placeholder}
        return {k: self.template(v, inside, arguments, parameters) for k, v in value.items()}

    def template_or_lambda(
        self, argument: Node, inside: _Inside | None, arguments: list[Expression], parameters: frozenset[str]
    ) -> Node:
        """Returns an argument of a function that takes a lambda; inside a lambda its parameters are no columns."""
        value = argument["expression"]
        if value["class"] != "LAMBDA":
            return {**argument, "expression": self.template(value, inside, arguments, parameters)}
        names = parameter_names(value["lhs"])
        for name in names:
            if re.fullmatch(r"_\d+", name):  # reads like a placeholder
                self.fault("HQ500", f"a lambda's parameter may not be called {name}", self.span(value))
        body = self.template(value["expr"], inside, arguments, parameters | names)
        return {**argument, "expression": {**value, "expr": body}}


# ---- helpers without state ---------------------------------------------------------------------------------------


def _labelled(expression: Expression, variable: str) -> Expression:
    """Returns the expression at a row that is known to belong to `variable`."""
    match expression:
        case Classifier(span):
            text = variable.replace("'", "''")
            return Constant(variable, "VARCHAR", span, f"CAST('{text}' AS VARCHAR)")
        case Call(_, arguments) | Opaque(_, arguments):
            return replace(expression, arguments=tuple(_labelled(a, variable) for a in arguments))
        case _:
            return expression


def _within_group(
    name: str, inputs: list[Expression], order: list[tuple[Expression, str]], settings: Settings
) -> tuple[list[Expression], list[tuple[Expression, str]]]:
    """Returns `f(fraction) WITHIN GROUP (ORDER BY x)` as `f(x, fraction)`, so that ORDER BY always means the order of
    rows.

    In DuckDB the direction of a quantile's only sort key determines the end from which its fraction counts; a negative
    fraction counts from the upper end."""
    if len(order) != 1:
        return inputs, order
    ((key, how),) = order
    if name == "mode" and not inputs:
        return [key], []
    if name not in ("quantile_cont", "quantile_disc") or not 1 <= len(inputs) <= 2:
        return inputs, order
    value, fraction = (key, inputs[0]) if len(inputs) == 1 else inputs
    if how.startswith("DESC") and isinstance(fraction, Constant):
        # as DOUBLE, which has a negative zero
        written = literal_sql(fraction)
        many = fraction.type.endswith("]")
        sql = f"list_transform(CAST({written} AS DOUBLE[]), lambda q: -q)" if many else f"(-CAST({written} AS DOUBLE))"
        folded = duck.fold(sql, settings)
        if folded is not None:
            fraction = Constant(folded.value, folded.type, fraction.span, sql)
    return [value, fraction], []


def _path(column: Expression, names: list[str], span: Span) -> Expression:
    """Fields of a struct column."""
    for name in names:
        quoted = name.replace("'", "''")
        if isinstance(column, Opaque):
            column = Opaque(f"struct_extract({column.sql}, '{quoted}')", column.arguments, "", span)
        else:
            column = Opaque(f"""struct_extract("_0", '{quoted}')""", (column,), "", span)
    return column

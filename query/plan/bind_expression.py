"""Scalar expressions of DEFINE and MEASURES: DuckDB's syntax tree to a bound, typed Expression."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from query.errors import Diagnostic, Span, nearest
from query.language import duck
from query.language.ast import ExpressionText
from query.language.duck import DuckFault, Node
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
    to_sql,
)
from query.schema import Schema

NAVIGATION = {"prev", "next", "first", "last"}
ARITHMETIC = {"+", "-", "*", "/", "//", "%"}
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
CONJUNCTION = {"CONJUNCTION_AND": "and", "CONJUNCTION_OR": "or"}
OPERATOR = {
    "OPERATOR_NOT": "not",
    "OPERATOR_IS_NULL": "is_null",
    "OPERATOR_IS_NOT_NULL": "is_not_null",
    "OPERATOR_COALESCE": "coalesce",
    "COMPARE_IN": "in",
}
UNSUPPORTED = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "*",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "a positional reference",
    "COLLATE": "COLLATE",
    "DEFAULT": "DEFAULT",
}
#: Types whose operators every engine here computes; anything else is left to DuckDB as a whole.
NUMERIC = {
    *("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"),
    *("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"),
    *("FLOAT", "DOUBLE", "DECIMAL"),
}
TEMPORAL = {"DATE", "TIME", "TIMESTAMP", "TIMESTAMP WITH TIME ZONE", "INTERVAL"}
CORE = NUMERIC | TEMPORAL | {"BOOLEAN", "VARCHAR", duck.NULL_TYPE}


@dataclass(frozen=True, slots=True)
class Scope:
    """What names mean in one expression.

    candidate: the variable of DEFINE whose condition this is, or None in MEASURES. negated: variables that take no
    row. one_row: ONE ROW PER MATCH. volatile: whether now(), random() and their like may stand here.
    """

    schema: Schema
    primary: tuple[str, ...]
    negated: tuple[str, ...]
    subsets: dict[str, tuple[str, ...]]
    candidate: str | None
    one_row: bool
    volatile: bool

    def members(self, variable: str) -> tuple[str, ...]:
        """Primary variables a name stands for; none if it stands for no row."""
        if variable in self.subsets:
            return self.subsets[variable]
        return (variable,) if variable in self.primary else ()


def bind_expression(text: ExpressionText, scope: Scope, faults: list[Diagnostic]) -> Expression | None:
    """The typed expression, or None after adding what is wrong with it to `faults`."""
    before = len(faults)
    binder = _Binder(text, scope, faults)
    expression = binder.bind()
    if expression is None or len(faults) > before:
        return None
    typed = binder.typed(expression)
    return typed if len(faults) == before else None


@dataclass(slots=True)
class _Inside:
    """The call whose argument is being bound: which variables it names (None: a bare column), and where."""

    name: str
    seen: dict[str | None, Span] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Word:
    """RUNNING or FINAL in front of a call."""

    final: bool
    span: Span


class _Binder:
    def __init__(self, text: ExpressionText, scope: Scope, faults: list[Diagnostic]) -> None:
        self.whole = text.span
        self.scope = scope
        self.faults = faults
        self.source, self.words = _blank_words(text)
        self.used: set[int] = set()

    # ---- places and faults

    def span(self, node: Node) -> Span:
        found = duck.span_in(node)
        if found is None or found[0] == found[1]:
            return self.whole
        return Span(min(self.whole.start + found[0], self.whole.end), min(self.whole.start + found[1], self.whole.end))

    def fault(self, code: str, message: str, span: Span, label: str = "", hint: str = "") -> Constant:
        self.faults.append(Diagnostic(code, message, span, label, hint))
        return Constant(None, duck.NULL_TYPE, span)

    # ---- syntax tree to expression

    def bind(self) -> Expression | None:
        before = len(self.faults)
        try:
            node = duck.parse_expression(self.source)
        except DuckFault as fault:
            self.faults.append(syntax_diagnostic(fault, self.whole))
            return None
        expression = self.expression(node, None)
        for start, word in self.words.items():
            if start not in self.used and not self.faults[before:]:
                name = "FINAL" if word.final else "RUNNING"
                self.fault("HQ208", f"{name} stands before FIRST, LAST or an aggregate", word.span,
                           hint=f"leave {name} out, or write it as in PREV({name} LAST(A.x))")
        return expression

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
                return Call("cast", (value,), _type_name(node), self.span(node))
            case _:
                return self.opaque(node, inside)

    def call(self, function: str, nodes: list[Node], node: Node, inside: _Inside | None) -> Expression:
        return Call(function, tuple(self.expression(n, inside) for n in nodes), "", self.span(node))

    def constant(self, node: Node) -> Expression | None:
        """The value of a syntax tree without rows, where DuckDB can compute it."""
        if any(_reads_rows(part) for part in _parts(node)):
            return None
        sql = duck.deserialize(node)
        folded = duck.fold(sql)
        if folded is None:
            return None
        span = self.span(node)
        literal = node["class"] == "CONSTANT"
        if folded.value is None:
            return Constant(None, folded.type, span)
        if folded.type == "INTERVAL":
            if folded.microseconds is None:
                return Opaque(sql, (), "INTERVAL", span)
            return Constant(folded.microseconds, "INTERVAL", span, f"CAST('{folded.text}' AS INTERVAL)")
        if folded.type == "BOOLEAN":
            return Constant(folded.value, "BOOLEAN", span)
        if folded.type == "VARCHAR":
            # a literal takes the type of what it meets, a VARCHAR does not
            return Constant(folded.value, "VARCHAR", span, "" if literal else f"CAST({sql} AS VARCHAR)")
        if _base(folded.type) in NUMERIC:
            return Constant(folded.value, folded.type, span, sql if literal else "")
        return Constant(folded.value, folded.type, span, sql)

    # ---- columns

    def column(self, node: Node, inside: _Inside | None) -> Expression:
        span = self.span(node)
        names = [str(name) for name in node["column_names"]]
        quoted = self.quoted(node, len(names))
        schema = self.scope.schema
        variable = names[0] if quoted[0] else names[0].upper()
        is_variable = variable in self.scope.subsets or variable in (*self.scope.primary, *self.scope.negated)
        if len(names) > 1 and is_variable:
            found = schema.field(names[1])
            if found is None:
                return self.fault("HQ201", f"{schema.name} has no column {names[1]}", span, "no such column",
                                  nearest(names[1], schema.names))
            column = _path(Column(found.name, found.type, span), names[2:], span)
            return self.of_variable(variable, column, span, inside)
        found = schema.field(names[0])
        if found is not None:
            if inside is not None:
                inside.seen.setdefault(None, span)
            return _path(Column(found.name, found.type, span), names[1:], span)
        if len(names) > 1:
            if names[0].lower() == schema.name.lower():
                hint = f"columns of the input are written without its name: {names[1]}"
                return self.fault("HQ202", f"{names[0]} is not a row pattern variable", span, "not in PATTERN", hint)
            return self.no_variable(names[0], variable, span)
        if names[0].lower() in duck.CLOCK_WORDS:
            self.volatile(names[0], span)
            return Opaque(duck.deserialize(node), (), "", span)
        if is_variable:
            return self.fault("HQ201", f"{names[0]} is a row pattern variable, not a column", span,
                              hint=f"write {names[0]}.<column>")
        return self.fault("HQ201", f"{schema.name} has no column {names[0]}", span, "no such column",
                          nearest(names[0], schema.names))

    def of_variable(self, variable: str, value: Expression, span: Span, inside: _Inside | None) -> Expression:
        """`A.x` as it stands: the last row of A so far; inside a navigation or aggregate, a column of A's rows."""
        if variable in self.scope.negated and variable not in self.scope.primary:
            if self.scope.candidate == variable and inside is None:
                return value
            if self.scope.candidate != variable or (inside is not None and inside.name not in ("prev", "next")):
                return self.fault("HQ202", f"{variable} is negated: no row of a match is {variable}", span,
                                  hint=f"{variable}.x may stand in the condition of {variable} only")
        if inside is not None:
            inside.seen.setdefault(variable, span)
            return value
        return self.navigation(value, variable, Logical.LAST, 0, 0, False, span)

    def quoted(self, node: Node, count: int) -> list[bool]:
        """Which parts of a dotted name are quoted in the text."""
        start = node["query_location"]
        text = self.source[start : start + node["query_location_length"]]
        parts = re.findall(r'"(?:[^"]|"")*"|[^".\s]+', text)
        return [p.startswith('"') for p in parts] if len(parts) == count else [False] * count

    # ---- functions

    def function(self, node: Node, inside: _Inside | None) -> Expression:
        name = str(node["function_name"]).lower()
        arguments = [a["expression"] for a in node["arguments"]]
        if name in NAVIGATION:
            return self.navigate(name, arguments, node, inside)
        if name == "classifier":
            return self.classifier(arguments, node, inside)
        if name == "match_number":
            span = self.span(node)
            if inside is not None:
                return self.fault("HQ500", f"MATCH_NUMBER() inside {inside.name} is not supported yet", span)
            if arguments:
                return self.fault("HQ205", "MATCH_NUMBER() takes no argument", span)
            return MatchNumber(span)
        if name in duck.aggregate_names():
            return self.aggregate(name, arguments, node, inside)
        if node["is_operator"] and name in ARITHMETIC and len(arguments) == 2:
            return self.call(name, arguments, node, inside)
        if node["is_operator"] and name == "-":
            return self.call("neg", arguments, node, inside)
        if name == "abs" and len(arguments) == 1:
            return self.call("abs", arguments, node, inside)
        return self.opaque(node, inside)

    def word(self, node: Node) -> _Word | None:
        start = node["query_location"]
        found = self.words.get(start)
        if found is not None:
            self.used.add(start)
            if found.final and self.scope.candidate is not None:
                self.fault("HQ209", "FINAL may not stand in DEFINE", found.span, "the match is not complete here",
                           "leave FINAL out: a condition sees the rows matched so far")
        return found

    def is_final(self, node: Node) -> bool:
        word = self.word(node)
        # with one row per match the current row is the last: RUNNING and FINAL are one, and RUNNING is its name
        return word is not None and word.final and not self.scope.one_row

    def navigate(self, name: str, arguments: list[Node], node: Node, inside: _Inside | None) -> Expression:
        span = self.span(node)
        if inside is not None:
            within = f"{inside.name.upper()}"
            if inside.name in NAVIGATION:
                hint = "write physical(logical()): PREV or NEXT around FIRST or LAST"
            else:
                hint = "aggregate a column of the rows themselves"
            return self.fault("HQ208", f"{name.upper()} may not stand inside {within}", span, hint=hint)
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
            return self.fault("HQ207", message, span, "nothing of a row is read here")
        variable = next(iter(call.seen))
        if variable is not None and logical is None:
            logical = Logical.LAST
        return self.navigation(argument, variable, logical, logical_offset, physical, final, span)

    def steps(self, name: str, arguments: list[Node], default: int, span: Span) -> int:
        """The offset of a navigation: its second argument."""
        if not 1 <= len(arguments) <= 2:
            self.fault("HQ208", f"{name.upper()} takes a value and an offset", span)
        if len(arguments) < 2:
            return default
        value = self.constant(arguments[1])
        if isinstance(value, Constant) and _base(value.type) in NUMERIC and isinstance(value.value, int):
            if value.value >= 0:
                return value.value
        message = f"the offset of {name.upper()} is a whole number, not negative"
        self.fault("HQ205", message, self.span(arguments[1]))
        return 0

    def navigation(
        self, argument: Expression, variable: str | None, logical: Logical | None, logical_offset: int, physical: int,
        final: bool, span: Span,
    ) -> Expression:
        """The navigation in its simplest form: what is the candidate or current row is read as such."""
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
                return argument
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
        if not arguments:
            if inside is not None:
                inside.seen.setdefault(None, span)
            return Classifier(span)
        name = arguments[0]["column_names"][0] if arguments[0]["class"] == "COLUMN_REF" else ""
        if len(arguments) > 1 or not name or len(arguments[0]["column_names"]) > 1:
            return self.fault("HQ205", "CLASSIFIER takes a row pattern variable, or nothing", span)
        variable = name if self.quoted(arguments[0], 1)[0] else name.upper()
        if not self.scope.members(variable):
            return self.no_variable(name, variable, self.span(arguments[0]))
        return self.of_variable(variable, Classifier(span), span, inside)

    def no_variable(self, written: str, name: str, span: Span) -> Constant:
        known = (*self.scope.primary, *self.scope.subsets)
        message = f"{written} is not a row pattern variable"
        return self.fault("HQ202", message, span, "not in PATTERN", nearest(name, known))

    def aggregate(self, name: str, arguments: list[Node], node: Node, inside: _Inside | None) -> Expression:
        span = self.span(node)
        if inside is not None:
            message = f"{name.removesuffix('_star').upper()} may not stand inside {inside.name.upper()}"
            return self.fault("HQ210", message, span, "an aggregate", "compute it beside the call")
        final = self.is_final(node)
        distinct = bool(node["distinct"])
        if node["filter"] or node["order_bys"]["orders"]:
            return self.fault("HQ500", f"FILTER and ORDER BY inside {name}() are not supported yet", span,
                              hint="aggregate CASE WHEN ... THEN x END instead of filtering")
        if name == "count_star":
            return Aggregate("count", None, (), False, final, "", span)
        if len(arguments) == 1 and arguments[0]["class"] == "STAR" and arguments[0]["relation_name"]:
            written = arguments[0]["relation_name"]
            start = self.whole.start + arguments[0]["query_location"]
            variable = written if self.source[start - self.whole.start :].startswith('"') else written.upper()
            if name != "count":
                message = f"{name} takes a value, not {written}.*"
                return self.fault("HQ205", message, span, hint=f"write {name}({written}.x)")
            if not self.scope.members(variable):
                return self.no_variable(written, variable, Span(start, start + len(written)))
            return Aggregate("count", None, self.scope.members(variable), False, final, "", span)
        if len(arguments) != 1:
            return self.fault("HQ500", f"an aggregate of {len(arguments)} arguments is not supported yet", span)
        call = _Inside(name)
        argument = self.expression(arguments[0], call)
        if not self.one_variable(call, span):
            return argument
        variable_or_all = next(iter(call.seen), None)
        members = () if variable_or_all is None else self.scope.members(variable_or_all)
        return Aggregate(name, argument, members, distinct, final, "", span)

    def volatile(self, name: str, span: Span) -> None:
        if not self.scope.volatile:
            self.faults.append(volatile_diagnostic(name, span))

    # ---- what only DuckDB computes

    def opaque(self, node: Node, inside: _Inside | None) -> Expression:
        arguments: list[Expression] = []
        tree = self.template(copy.deepcopy(node), inside, arguments, frozenset())
        return Opaque(duck.deserialize(tree), tuple(arguments), "", self.span(node))

    def template(
        self, value: Any, inside: _Inside | None, arguments: list[Expression], parameters: frozenset[str]
    ) -> Any:
        """The tree with every leaf that reads rows replaced by a column "_0", "_1", ..."""
        if isinstance(value, list):
            return [self.template(v, inside, arguments, parameters) for v in value]
        if not isinstance(value, dict):
            return value
        kind = value.get("class")
        if kind in UNSUPPORTED:
            self.fault("HQ500", f"{UNSUPPORTED[kind]} in a pattern's expression is not supported yet", self.span(value))
            return value
        if kind == "LAMBDA":
            names = _parameter_names(value["lhs"])
            known = all(self.scope.schema.field(n) is None for n in names)
            if value.get("syntax_type") == "LAMBDA_KEYWORD" or (names and known):
                body = self.template(value["expr"], inside, arguments, parameters | names)
                return {**value, "expr": body}
        if kind == "COLUMN_REF" and value["column_names"][0].lower() in parameters:
            return value
        name = str(value.get("function_name", "")).lower() if kind == "FUNCTION" else ""
        if name in duck.volatile_names():
            self.volatile(name, self.span(value))
        rows = name in NAVIGATION or name in ("classifier", "match_number") or name in duck.aggregate_names()
        if name == "unnest":
            self.fault("HQ500", "unnest in a pattern's expression is not supported yet", self.span(value))
            return value
        # a string that reads like a placeholder has to become an argument itself
        doubtful = kind == "CONSTANT" and re.search(r'"_\d+"', str(value["literal"]["text"]))
        if kind == "COLUMN_REF" or rows or doubtful:
            leaf = self.expression(value, inside)
            if isinstance(leaf, Opaque) and not leaf.arguments:
                return value
            if leaf not in arguments:
                arguments.append(leaf)
            location = {k: value[k] for k in ("alias", "query_location", "query_location_length")}
            placeholder = [f"_{arguments.index(leaf)}"]
            return {"class": "COLUMN_REF", "type": "COLUMN_REF", **location, "column_names": placeholder}
        return {k: self.template(v, inside, arguments, parameters) for k, v in value.items()}

    # ---- types

    def typed(self, root: Expression) -> Expression:
        """The expression with DuckDB's type on every node; all of them asked for in one DESCRIBE."""
        order = list(dict.fromkeys(_post_order(root)))
        leaves: dict[Expression, str] = {}
        sql: dict[Expression, str] = {}
        for e in order:
            text = leaf_sql(e, leaves)
            if text is not None:
                leaves[e] = text
            if not isinstance(e, Constant | Column | Classifier | MatchNumber):
                sql[e] = to_sql(e, leaves)
        table = {"row": self.scope.schema.fields}
        types: dict[Expression, str] = {}
        if sql:
            try:
                types = dict(zip(sql, duck.describe(list(sql.values()), table), strict=True))
            except DuckFault as fault:
                self.untypable(sql, fault)
                return root
        return core(retyped(root, types))

    def untypable(self, sql: dict[Expression, str], fault: DuckFault) -> None:
        """Find the innermost expression that DuckDB refuses and say so there."""
        table = {"row": self.scope.schema.fields}
        span = self.whole
        for e, text in sql.items():
            try:
                duck.describe([text], table)
            except DuckFault as inner:
                fault, span = inner, e.span
                break
        self.faults.append(type_diagnostic(fault, span))


# ---- diagnostics that bind.py shares -----------------------------------------------------------------------------


def syntax_diagnostic(fault: DuckFault, whole: Span) -> Diagnostic:
    """HQ102, with the place inside the expression."""
    message = "an expression is missing here" if fault.message.startswith("SELECT clause") else fault.message
    if fault.start is None or fault.end is None or fault.kind == "parser":
        return Diagnostic("HQ102", message, whole)
    start = min(whole.start + fault.start, max(whole.start, whole.end - 1))
    return Diagnostic("HQ102", message, Span(start, max(start + 1, min(whole.start + fault.end, whole.end))))


def type_diagnostic(fault: DuckFault, span: Span) -> Diagnostic:
    """HQ102 for a function that does not exist, HQ205 for types that do not fit."""
    lines = [line.strip() for line in fault.message.splitlines() if line.strip()]
    hint = next((line for line in lines[1:] if line.startswith("Did you mean")), "")
    if fault.kind == "MISSING_ENTRY" and fault.name:
        hint = hint[:1].lower() + hint[1:]
        return Diagnostic("HQ102", f"there is no function {fault.name}", span, "no such function", hint)
    message = lines[0] if lines else "the types do not fit"
    message = message.replace("INTEGER_LITERAL", "INTEGER").replace("STRING_LITERAL", "VARCHAR")
    if call := re.search(r"(?:argument types|function call) ['\"](.+?)(\(.*\))['\"]", message):
        candidates = [line for line in lines[1:] if "->" in line]
        hint = "there is " + "; ".join(candidates[:3]) if call[1].isidentifier() and candidates else "cast one of them"
        message = f"{call[1]} does not take {call[2]}"
    elif message.startswith("Cannot compare"):
        hint = "cast one of them"
    return Diagnostic("HQ205", message, span, hint=hint)


def volatile_diagnostic(name: str, span: Span) -> Diagnostic:
    """HQ213 for now(), random() and their like."""
    return Diagnostic("HQ213", f"{name} has no fixed answer on a stream", span, "differs from run to run",
                      "use the event's own time and columns")


# ---- helpers without state ---------------------------------------------------------------------------------------


#: Words after which a column may be called final or running.
_OPERATOR_WORDS = "in|and|or|not|is|like|ilike|between|similar|glob|then|else|when|end|as|collate|at|over|filter"


def _blank_words(text: ExpressionText) -> tuple[str, dict[int, _Word]]:
    """The text with RUNNING and FINAL before a call blanked, and each of them by the offset of its call."""
    words: dict[int, _Word] = {}
    source = list(text.text)
    # literals and quoted names are matched first so that nothing inside them is taken for a word
    pattern = rf"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\b(running|final)\s+(?=(?!(?:{_OPERATOR_WORDS})\b)[a-z_]\w*\s*\()"""
    for found in re.finditer(pattern, text.text, re.IGNORECASE):
        if found[1]:
            start, end = found.span(1)
            source[start:end] = " " * (end - start)
            span = Span(text.span.start + start, text.span.start + end)
            words[found.end()] = _Word(found[1].upper() == "FINAL", span)
    return "".join(source), words


def _parts(value: Any) -> Iterator[Node]:
    """Every node of a syntax tree that is an expression."""
    if isinstance(value, dict):
        if "class" in value:
            yield value
        for child in value.values():
            yield from _parts(child)
    elif isinstance(value, list):
        for child in value:
            yield from _parts(child)


def _reads_rows(node: Node) -> bool:
    """True if the node alone keeps a tree from being a constant."""
    if node["class"] == "FUNCTION":
        name = str(node["function_name"]).lower()
        special = name in NAVIGATION or name in ("classifier", "match_number")
        return special or name in duck.volatile_names() | duck.aggregate_names() or name in ("error", "unnest")
    return node["class"] == "COLUMN_REF" or node["class"] in UNSUPPORTED


def _parameter_names(lhs: Node) -> frozenset[str]:
    return frozenset(str(n["column_names"][0]).lower() for n in _parts(lhs) if n["class"] == "COLUMN_REF")


def _type_name(cast: Node) -> str:
    """The type a CAST names, as DuckDB writes it."""
    null = {"class": "CONSTANT", "type": "VALUE_CONSTANT", "alias": "", "query_location": 0, "query_location_length": 0,
            "literal": {"kind": "NULL_LITERAL", "text": ""}}
    sql = duck.deserialize({**cast, "child": null, "alias": ""})
    return sql.removeprefix("CAST(NULL AS ").removesuffix(")")


def _path(column: Expression, names: list[str], span: Span) -> Expression:
    """Fields of a struct column."""
    for name in names:
        quoted = name.replace("'", "''")
        if isinstance(column, Opaque):
            column = Opaque(f"struct_extract({column.sql}, '{quoted}')", column.arguments, "", span)
        else:
            column = Opaque(f"""struct_extract("_0", '{quoted}')""", (column,), "", span)
    return column


def _post_order(expression: Expression) -> Iterator[Expression]:
    for child in children(expression):
        yield from _post_order(child)
    yield expression


def leaf_sql(expression: Expression, leaves: dict[Expression, str]) -> str | None:
    """SQL over a table "row" that has the type of a navigation, aggregate or other leaf; None for the rest."""
    match expression:
        case Navigation(argument):
            return to_sql(argument, leaves)
        case Aggregate(_, None):
            return "CAST(NULL AS BIGINT)"
        case Aggregate(function, argument, distinct=distinct) if argument is not None:
            return f'(SELECT {function}({"DISTINCT " if distinct else ""}{to_sql(argument, leaves)}) FROM "row")'
        case Classifier():
            return "CAST(NULL AS VARCHAR)"
        case MatchNumber():
            return "CAST(NULL AS BIGINT)"
        case _:
            return None


def retyped(expression: Expression, types: dict[Expression, str]) -> Expression:
    """The expression with the types found for its parts."""
    type = types.get(expression, "")
    match expression:
        case Call(_, arguments) | Opaque(_, arguments):
            return replace(expression, arguments=tuple(retyped(a, types) for a in arguments), type=type)
        case Navigation(argument):
            return replace(expression, argument=retyped(argument, types), type=type)
        case Aggregate(_, None):
            return replace(expression, type=type)
        case Aggregate(_, argument) if argument is not None:
            return replace(expression, argument=retyped(argument, types), type=type)
        case _:
            return expression


def _base(type: str) -> str:
    """DECIMAL of DECIMAL(9,2); lists, structs and the like stay what they are."""
    return "DECIMAL" if re.fullmatch(r"DECIMAL\(\d+,\d+\)", type) else type


def core(expression: Expression) -> Expression:
    """A typed expression in which string literals have the type they are compared as, and operators on types beyond
    numbers, times, booleans and text are left to DuckDB as a whole."""
    match expression:
        case Navigation(argument):
            return replace(expression, argument=core(argument))
        case Aggregate(_, argument) if argument is not None:
            return replace(expression, argument=core(argument))
        case Opaque(_, arguments):
            return replace(expression, arguments=tuple(map(core, arguments)))
        case Call(function, arguments, type):
            arguments = tuple(map(core, arguments))
            if function in COMPARISON.values() or function in ("between", "in"):
                arguments = _meeting(arguments)
            elif function == "coalesce":
                arguments = tuple(_as(a, type) for a in arguments)
            elif function == "case":
                last = len(arguments) - 1
                arguments = tuple(_as(a, type) if i % 2 or i == last else a for i, a in enumerate(arguments))
            call = replace(expression, arguments=arguments)
            return call if _is_core(call) else _as_opaque(call)
        case _:
            return expression


def _meeting(arguments: tuple[Expression, ...]) -> tuple[Expression, ...]:
    """String literals among compared values take the type of the values that are none."""
    others = [a.type for a in arguments if not (isinstance(a, Constant) and a.type in ("VARCHAR", duck.NULL_TYPE))]
    return tuple(_as(a, others[0]) for a in arguments) if others else arguments


def _as(value: Expression, type: str) -> Expression:
    """A string literal read as `type`; anything else as it is."""
    if not isinstance(value, Constant) or value.type != "VARCHAR" or type in ("VARCHAR", duck.NULL_TYPE):
        return value
    if _base(type) not in CORE:
        return value
    sql = f"CAST({to_sql(value)} AS {type})"
    folded = duck.fold(sql)
    if folded is None or (type == "INTERVAL" and folded.microseconds is None):
        # DuckDB raises when the value is needed, and so do we
        return Call("cast", (value,), type, value.span)
    if folded.microseconds is not None:
        return Constant(folded.microseconds, type, value.span, sql)
    numeric = _base(type) in NUMERIC or type == "BOOLEAN"
    return Constant(folded.value, type, value.span, "" if numeric else sql)


def _is_core(call: Call) -> bool:
    types = [_base(a.type) for a in call.arguments]
    if call.function in ARITHMETIC or call.function in ("neg", "abs"):
        return all(t in NUMERIC | TEMPORAL | {duck.NULL_TYPE} for t in types)
    if call.function in ("is_null", "is_not_null"):
        return True
    return all(t in CORE for t in [*types, _base(call.type)])


def _as_opaque(call: Call) -> Opaque:
    leaves = {a: f'"_{i}"' for i, a in enumerate(call.arguments)}
    return Opaque(to_sql(call, leaves), tuple(leaves), call.type, call.span)

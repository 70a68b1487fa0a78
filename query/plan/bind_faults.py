"""Diagnostics of bound expressions, shared by the binders of a query, its pattern and its expressions."""

from __future__ import annotations

from query.errors import Diagnostic, Span
from query.language.ast import ExpressionText
from query.language.duck import DuckFault
from query.language.names import quoting_hint
from query.language.operators import operator_hint


def syntax_diagnostic(fault: DuckFault, text: ExpressionText) -> Diagnostic:
    """Returns HQ102 with its position inside the expression."""
    message = "expected an expression" if fault.message.startswith("SELECT clause") else fault.message
    hint = operator_hint(fault.message, text.text)
    if not hint and fault.start is not None:
        hint = quoting_hint(text.text, fault.start)
    if fault.start is None or fault.end is None or fault.kind == "parser":
        return Diagnostic("HQ102", message, text.span, hint=hint)
    start = min(fault.start, max(0, len(text.text) - 1))
    return Diagnostic("HQ102", message, text.place(start, max(start + 1, min(fault.end, len(text.text)))), hint=hint)


def volatile_diagnostic(name: str, span: Span) -> Diagnostic:
    """Returns HQ213 for now(), random() and the like."""
    return Diagnostic("HQ213", f"{name} has no fixed answer on a stream", span, "differs from run to run",
                      "use the event's own time and columns")


def macro_diagnostic(name: str, span: Span, deep: bool = False) -> Diagnostic:
    """Returns HQ102 for a macro of the user's connection that cannot be put in place. deep: it calls itself."""
    if deep:
        return Diagnostic("HQ102", f"the macro {name} calls itself", span, "without end")
    message = f"{name} is a macro of the connection, and which one is unclear"
    hint = "call it by its schema: main.f(x)"
    return Diagnostic("HQ102", message, span, "in several schemas, or a table macro", hint)

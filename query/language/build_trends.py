"""Builds a SASE+ trend statement: tree of lark -> Trend. Variables are not looked up yet."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from query.errors import Span
from query.language import ast
from query.language.build import (
    SELECTIONS,
    Node,
    expression_of,
    name_of,
    span_of,
    tokens_of,
    trees_of,
    within_of,
)
from query.language.lexer import PATTERN_DEPTH_MAX
from query.language.read import error_at
from query.language.sase import Listed, Returned


@dataclass(frozen=True, slots=True)
class TrendEvent:
    """An event type of PATTERN. variable: named like the type unless `named`. many: a trend may have several of its
    events. side: the side of AND."""

    type: ast.Identifier
    variable: ast.Identifier
    named: bool
    many: bool
    negated: bool
    side: int
    span: Span


@dataclass(frozen=True, slots=True)
class Trend:
    """A trend statement as written. events: in the order of the text. conditions, having: the stretches of text;
    returned: None without RETURN."""

    pattern: ast.PatternSyntax
    events: tuple[TrendEvent, ...]
    selection: ast.SelectionSyntax | None
    listed: tuple[Listed, ...]
    conditions: Span | None
    group_by: tuple[ast.ExpressionText, ...]
    having: Span | None
    within: ast.WithinSyntax | None
    slide: ast.WithinSyntax | None
    returned: tuple[Returned, ...] | None
    span: Span


def trend_of(text: str, tree: Node, returned: Node | None) -> Trend:
    """Returns the statement of a tree. returned: of a RETURN before FROM and PATTERN."""
    reader = _Pattern(text)
    whole: ast.PatternSyntax | None = None
    selection: ast.SelectionSyntax | None = None
    listed: tuple[Listed, ...] = ()
    conditions = having = None
    groups: tuple[ast.ExpressionText, ...] = ()
    within = slide = None
    for child in trees_of(tree):
        match str(child.data):
            case "trend_where":
                conditions = next(map(span_of, tokens_of(child)), None)
                if trees := trees_of(child):
                    strategy, *names = trees
                    listed = listed_of(names)
                    selection = ast.SelectionSyntax(SELECTIONS[str(strategy.data)], span_of(strategy))
            case "group_by":
                groups = tuple(map(expression_of, child.children))
            case "having":
                having = span_of(tokens_of(child)[0])
            case "within" | "within_rows":
                within = within_of(text, child)
            case "slide":
                slide = within_of(text, child, "SLIDE")
            case "returns":
                returned = child
            case _:
                whole = reader.whole(child)
    assert whole is not None
    values = None if returned is None else returned_of(returned)
    return Trend(
        whole, tuple(reader.events), selection, listed, conditions, groups, having, within, slide, values, span_of(tree)
    )


def listed_of(names: Sequence[Node]) -> tuple[Listed, ...]:
    """Returns the variables that a strategy lists."""
    return tuple(Listed(name_of(x.children[0]), x.data == "many", span_of(x)) for x in names)


def returned_of(tree: Node) -> tuple[Returned, ...]:
    """Returns the values of RETURN."""
    return tuple(
        Returned(span_of(tokens_of(r)[0]), name_of(tokens_of(r)[1]) if len(tokens_of(r)) > 1 else None)
        for r in trees_of(tree)
    )


class _Pattern:
    """The pattern of one statement. Groups leave no node of their own, but their parentheses are in the span."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.events: list[TrendEvent] = []

    def whole(self, node: Node) -> ast.PatternSyntax:
        """Returns the pattern, its events marked with their side of AND."""
        found = self.pattern(node, 0)
        sides = sides_of(found)
        if len(sides) == 1:
            return sides[0]
        for i, side in enumerate(sides):
            inside = range(side.span.start, side.span.end)
            self.events = [replace(e, side=i) if e.span.start in inside else e for e in self.events]
        return ast.PatternConjunction(sides, found.span)

    def pattern(self, node: Node, depth: int, many: bool = False, negated: bool = False) -> ast.PatternSyntax:
        span = span_of(node)
        if depth > 3 * PATTERN_DEPTH_MAX:
            raise error_at(self.text, "HQ221", f"a pattern nested deeper than {PATTERN_DEPTH_MAX}", span)
        kind = str(node.data)
        signs = [str(t.data) for t in trees_of(node) if t.data in ("plus", "star")]
        parts = [t for t in trees_of(node) if t.data not in ("plus", "star")]
        if kind == "trend_negation":
            body = self.pattern(parts[0], depth + 1, many, True)
            if not isinstance(body, ast.PatternVariable):
                raise error_at(self.text, "HQ221", "NOT takes one event", body.span, "more than an event",
                               "write NOT(Type v) for each type that must not occur")
            return ast.PatternNegation(body.name, span)
        if kind in ("trend_events", "trend_array"):
            body = self.event(node, span, many or bool(signs), negated)
        else:
            of = [self.pattern(part, depth + 1, many or bool(signs), negated) for part in parts]
            match kind:
                case "trend_sequence":
                    body = ast.PatternSequence(tuple(of), span)
                case "trend_either" if len(of) > 1:
                    body = ast.PatternAlternation(tuple(of), span)
                case "trend_both" if len(of) > 1:
                    body = ast.PatternConjunction(tuple(of), span)
                case _:
                    body = replace(of[0], span=span)
        for sign in signs:
            body = ast.PatternQuantified(body, int(sign == "plus"), None, True, span)
        return body

    def event(self, node: Node, span: Span, many: bool, negated: bool) -> ast.PatternSyntax:
        type, *named = map(name_of, tokens_of(node))
        variable = named[0] if named else type
        if node.data == "trend_array" and not many:
            hint = f"an array is {type.written}+ {variable.written}[]"
            raise error_at(self.text, "HQ218", f"{variable.written} is one event, not an array", span, hint=hint)
        self.events.append(TrendEvent(type, variable, bool(named), many, negated, 0, span))
        return ast.PatternVariable(variable, span)


def sides_of(pattern: ast.PatternSyntax) -> tuple[ast.PatternSyntax, ...]:
    """Returns the sides of AND, or the pattern alone."""
    if not isinstance(pattern, ast.PatternConjunction):
        return (pattern,)
    return tuple(side for part in pattern.sides for side in sides_of(part))

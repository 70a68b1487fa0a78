"""Builds the syntax of MATCH_RECOGNIZE and its pattern: tree of lark -> ast."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import lark

from query.errors import Span
from query.language import ast
from query.language.duck import interval_parts
from query.language.read import error_at

ROWS_MAX = 10**9
REPEAT_MAX = 10**9

Node = Any  # lark.Tree or lark.Token: both have positions, and lark types neither

_ROWS = {
    "one_row": ast.RowsPerMatch.ONE,
    "all_rows_show_empty": ast.RowsPerMatch.ALL_SHOW_EMPTY,
    "all_rows_omit_empty": ast.RowsPerMatch.ALL_OMIT_EMPTY,
    "all_rows_with_unmatched": ast.RowsPerMatch.ALL_WITH_UNMATCHED,
    "one_row_per_window": ast.RowsPerMatch.WINDOW,
}
_AFTER = {
    "skip_past_last_row": ast.AfterMatchKind.PAST_LAST_ROW,
    "skip_to_next_row": ast.AfterMatchKind.TO_NEXT_ROW,
    "skip_to_first": ast.AfterMatchKind.TO_FIRST,
    "skip_to_last": ast.AfterMatchKind.TO_LAST,
    "no_skip": ast.AfterMatchKind.NO_SKIP,
}
SELECTIONS = {
    "strict": ast.Selection.STRICT,
    "partition": ast.Selection.PARTITION,
    "skip_till_next": ast.Selection.SKIP_TILL_NEXT,
    "skip_till_any": ast.Selection.SKIP_TILL_ANY,
}


def span_of(node: Node) -> Span:
    if isinstance(node, lark.Token):
        return Span(node.start_pos or 0, node.end_pos or 0)
    return Span(node.meta.start_pos, node.meta.end_pos)


def trees_of(node: Node) -> list[Node]:
    return [child for child in node.children if isinstance(child, lark.Tree)]


def tokens_of(node: Node) -> list[lark.Token]:
    return [child for child in node.children if isinstance(child, lark.Token)]


def expression_of(token: Node) -> ast.ExpressionText:
    return ast.ExpressionText(str(token), span_of(token))


def identifier_of(written: str, span: Span) -> ast.Identifier:
    if written.startswith('"'):
        name = written[1:-1].replace('""', '"')
        return ast.Identifier(name, name, True, span)
    return ast.Identifier(written.upper(), written, False, span)


def name_of(token: Node) -> ast.Identifier:
    return identifier_of(str(token), span_of(token))


def match_recognize(text: str, clauses: Node, span: Span) -> ast.MatchRecognize:
    partition_by: tuple[ast.ExpressionText, ...] = ()
    order_by: tuple[ast.OrderItem, ...] = ()
    measures: tuple[ast.MeasureSyntax, ...] = ()
    rows: ast.RowsPerMatch | None = None
    after: ast.AfterMatchSyntax | None = None
    pattern: ast.PatternSyntax | None = None
    within: ast.WithinSyntax | None = None
    selection: ast.SelectionSyntax | None = None
    subsets: tuple[ast.SubsetSyntax, ...] = ()
    defines: tuple[ast.DefineSyntax, ...] = ()
    timeout: Span | None = None
    groups: tuple[ast.ExpressionText, ...] = ()
    slide: ast.WithinSyntax | None = None
    windows: Span | None = None  # of the first clause that only windows have
    for clause in clauses.children:
        kind = str(clause.data)
        if kind in ("one_row_per_window", "group_by", "slide"):
            windows = span_of(clause) if windows is None or kind == "one_row_per_window" else windows
        if kind in _ROWS:
            rows = _ROWS[kind]
        elif kind in _AFTER:
            variable = next((name_of(t) for t in tokens_of(clause)), None)
            after = ast.AfterMatchSyntax(_AFTER[kind], variable, span_of(clause))
        elif kind in SELECTIONS:
            selection = ast.SelectionSyntax(SELECTIONS[kind], span_of(clause))
        else:
            match kind:
                case "partition_by":
                    partition_by = tuple(map(expression_of, clause.children))
                case "order_by":
                    order_by = tuple(map(_order_item, clause.children))
                case "group_by":
                    groups = tuple(map(expression_of, clause.children))
                case "slide":
                    slide = within_of(text, clause, "SLIDE")
                case "measures":
                    measures = tuple(
                        ast.MeasureSyntax(expression_of(m.children[0]), name_of(m.children[1]), span_of(m))
                        for m in clause.children
                    )
                case "timeout":
                    timeout = span_of(clause)
                case "pattern":
                    pattern = _whole_pattern(text, clause)
                case "within" | "within_rows":
                    within = within_of(text, clause)
                case "subset":
                    subsets = tuple(
                        ast.SubsetSyntax(name_of(s.children[0]), tuple(map(name_of, s.children[1:])), span_of(s))
                        for s in clause.children
                    )
                case "define":
                    defines = tuple(map(_definition, clause.children))
    assert pattern is not None
    trends = None if windows is None else ast.TrendSyntax(groups, slide, None, windows)
    return ast.MatchRecognize(
        partition_by, order_by, measures, rows, after, pattern, within, selection, subsets, defines, span, timeout,
        trends=trends,
    )  # fmt: skip


def _definition(node: Node) -> ast.DefineSyntax:
    variable, *rest = tokens_of(node)
    if str(node.data) == "definition":
        return ast.DefineSyntax(name_of(variable), expression_of(rest[0]), span_of(node))
    _, box, *on = rest
    return ast.DefineSyntax(name_of(variable), expression_of(on[0]) if on else None, span_of(node), name_of(box))


def _order_item(node: Node) -> ast.OrderItem:
    kinds = {str(child.data) for child in trees_of(node)}
    nulls_first = True if "nulls_first" in kinds else False if "nulls_last" in kinds else None
    descending = True if "descending" in kinds else False if "ascending" in kinds else None
    return ast.OrderItem(expression_of(node.children[0]), descending, nulls_first, span_of(node))


def within_of(text: str, node: Node, what: str = "WITHIN") -> ast.WithinSyntax:
    """Returns the bound of WITHIN. what: the words before the interval, for messages."""
    span = span_of(node)
    number = next((t for t in tokens_of(node) if t.type == "NUMBER"), None)
    if number is not None and not str(number).replace("_", "").isdecimal():
        raise error_at(
            text,
            "HQ105",
            f"expected a whole number, found {number}",
            span_of(number),
            hint="write a smaller unit, or INTERVAL '1 hour 30 minutes'",
        )
    if node.data == "within_rows":
        rows = _count(str(number))
        if not 1 <= rows <= ROWS_MAX:
            raise error_at(text, "HQ101", f"WITHIN takes 1 to {ROWS_MAX:,} rows", span_of(number))
        return ast.WithinSyntax(None, rows, span)

    length = next(t for t in tokens_of(node) if t.type in ("NUMBER", "STRING"))
    unit = next((t for t in tokens_of(node) if t.type == "UNIT"), None)
    where = Span(span_of(length).start, span_of(unit if unit is not None else length).end)
    if unit is not None and length.type == "STRING" and "." in length:  # DuckDB would truncate the fraction
        raise error_at(
            text,
            "HQ105",
            f"expected a whole number, found {length}",
            span_of(length),
            hint="write a smaller unit, or INTERVAL '1 hour 30 minutes'",
        )
    parts = interval_parts(f"INTERVAL {length} {unit or ''}")
    if parts is None:
        raise error_at(text, "HQ105", "an interval that cannot be read", where, hint="write INTERVAL '10' MINUTE")
    months, microseconds = parts
    if months:
        raise error_at(text, "HQ105", "months and years have no fixed length", where, hint="write it in days")
    if microseconds < 0:
        raise error_at(text, "HQ105", f"{what} cannot be negative", where)
    return ast.WithinSyntax(microseconds, None, span)


# ---- row patterns ----------------------------------------------------------------------------------------------


def _whole_pattern(text: str, node: Node) -> ast.PatternSyntax:
    inner = trees_of(node)
    if inner:
        return _pattern(text, inner[0])
    whole = span_of(node)
    return ast.PatternEmpty(Span(text.index("(", whole.start + len("PATTERN")), whole.end))


def _pattern(text: str, node: Node) -> ast.PatternSyntax:
    """A pattern's syntax; groups leave no node of their own, but their parentheses are in the span."""
    span = span_of(node)
    match str(node.data):
        case "variable":
            return ast.PatternVariable(name_of(node.children[0]), span)
        case "negation":
            return ast.PatternNegation(name_of(node.children[0]), span)
        case "alternation" | "sequence" if len(node.children) == 1:
            return _pattern(text, node.children[0])
        case "alternation":
            return ast.PatternAlternation(tuple(_pattern(text, c) for c in node.children), span)
        case "sequence":
            return ast.PatternSequence(tuple(_pattern(text, c) for c in node.children), span)
        case "quantified":
            body, quantifier = node.children
            return _quantified(text, _pattern(text, body), quantifier, span)
        case "start_anchor" | "end_anchor":
            return ast.PatternAnchor(node.data == "start_anchor", span)
        case "empty":
            return ast.PatternEmpty(span)
        case "group":
            return replace(_pattern(text, node.children[0]), span=span)
        case "permute":
            return ast.PatternPermute(tuple(_pattern(text, c) for c in node.children), span)
        case "exclusion":
            return ast.PatternExclusion(_pattern(text, node.children[0]), span)
        case other:
            raise AssertionError(other)


def _quantified(text: str, body: ast.PatternSyntax, node: Node, span: Span) -> ast.PatternSyntax:
    bounds = [_count(str(token)) for token in tokens_of(node)]
    greedy = not trees_of(node)
    least, most = 0, None
    match str(node.data):
        case "plus":
            least = 1
        case "optional":
            most = 1
        case "exactly":
            least, most = bounds[0], bounds[0]
        case "at_least":
            least = bounds[0]
        case "at_most":
            most = bounds[0]
        case "between":
            least, most = bounds
    if most == 0:
        raise error_at(
            text,
            "HQ104",
            "at most 0 repetitions",
            span_of(node),
            "never matches a row",
            "leave the element out, or write () for an empty pattern",
        )
    if most is not None and least > most:
        raise error_at(
            text,
            "HQ104",
            f"at least {least} and at most {most} repetitions",
            span_of(node),
            "can never be met",
            "the smaller number comes first",
        )
    if max([least, *bounds]) > REPEAT_MAX:
        raise error_at(text, "HQ104", f"more than {REPEAT_MAX:,} repetitions", span_of(node))
    return ast.PatternQuantified(body, least, most, greedy, span)


def _count(digits: str) -> int:
    """Returns the number, or one that exceeds every limit if it has more digits."""
    digits = digits.replace("_", "")
    return int(digits) if len(digits) <= 18 else 10**18

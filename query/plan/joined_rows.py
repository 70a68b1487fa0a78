"""Rows joined with history as the events of another pattern: how late they may come, and what has no answer then.

A row is known when its match is, and when no event can come any more in the ranges of its histories. So the time of the
rows to come is bounded if each range ends at the latest a constant after the last event of its match.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from query.errors import NO_SPAN, Diagnostic, Span
from query.language import ast, duck
from query.language.ast import RowsPerMatch
from query.language.duck import DuckFault, Node
from query.plan.expression import Aggregate, Call, Column, Constant, Expression, Navigation, Opaque
from query.plan.fingerprint import fingerprint, fingerprint_of_rows
from query.plan.output import output_columns
from query.plan.plan import FactorPlan, HistoryPlan, Joined, Measure, Plan
from query.plan.statement import HISTORY_TABLE, JOINING
from query.plan.trends import WINDOW_COLUMNS
from query.plan.typed import TIME_TYPES
from query.schema import Field


def after_us(bound: ast.ExpressionText, plan: Plan, columns: Mapping[str, Field]) -> int | None:
    """Returns how many microseconds a bound of a history range lies at most after the last event of the match, of rows
    of windows after the window's end; None if no constant is known. columns: of the match, by their names in the
    bound."""
    try:
        return _after(duck.parse_expression(bound.text), plan, columns)
    except DuckFault:
        return None


def _after(node: Node, plan: Plan, columns: Mapping[str, Field]) -> int | None:
    if node["class"] == "COLUMN_REF":
        field = columns.get(str(node["column_names"][-1]).lower())
        return None if field is None else column_after_us(plan, field.name)
    if node["class"] != "FUNCTION":
        return None
    name = str(node["function_name"]).lower()
    arguments = [a["expression"] for a in node["arguments"]]
    if name in ("+", "-") and len(arguments) == 2:
        at, by = (arguments[0], arguments[1]) if name == "-" or _us(arguments[0]) is None else arguments[::-1]
        base, us = _after(at, plan, columns), _us(by)
        return None if base is None or us is None else base + (us if name == "+" else -us)
    if name == "date_trunc" and len(arguments) == 2:
        return _after(arguments[1], plan, columns)
    bounds = [_after(a, plan, columns) for a in arguments]
    known = [us for us in bounds if us is not None]
    # all must be known, of LEAST too: nulls do not count in it
    every = name in ("greatest", "least", "coalesce") and known and len(known) == len(bounds)
    return max(known) if every else None


def _us(node: Node) -> int | None:
    """Returns the microseconds of a constant INTERVAL of fixed length."""
    if node["class"] == "COLUMN_REF":
        return None
    try:
        folded = duck.fold(duck.deserialize(node))
    except DuckFault:
        return None
    return folded.microseconds if folded is not None and folded.type == "INTERVAL" else None


def column_after_us(plan: Plan, column: str) -> int | None:
    """Returns how many microseconds the time in an output column lies at most after the last event of the match, or the
    end of the window; None if no constant is known."""
    if plan.trends is not None:
        return 0 if column.lower() in {field.name for field in WINDOW_COLUMNS} else None
    if not plan.order_by:
        return None
    time = plan.order_by[0].column
    measure = next((m.expression for m in plan.measures if m.name.lower() == column.lower()), None)
    if measure is not None:
        return _expression_after(measure, {time.name, "#t0", "#t1"})
    of_events = plan.rows is not RowsPerMatch.ONE and column.lower() == time.name.lower()
    return 0 if of_events and time.type in TIME_TYPES else None


def _expression_after(e: Expression, times: set[str]) -> int | None:
    match e:
        case Column(name):
            return 0 if name in times else None
        case Navigation(argument) if e.physical_offset <= 0:
            return _expression_after(argument, times)
        case Aggregate("min" | "max", argument) if argument is not None and e.plain:
            return _expression_after(argument, times)
        case Call("+" | "-", (at, Constant(int(us), "INTERVAL"))):
            base = _expression_after(at, times)
            return None if base is None else base + (us if e.function == "+" else -us)
        case Call("coalesce", arguments):
            return _latest(arguments, times)
        case Opaque(sql, arguments) if sql.startswith(("greatest(", "least(")):
            return _latest(arguments, times)
        case Opaque(sql, (at,)) if sql.startswith("date_trunc("):
            return _expression_after(at, times)
        case _:
            return None


def _latest(arguments: tuple[Expression, ...], times: set[str]) -> int | None:
    bounds = [_expression_after(a, times) for a in arguments]
    known = [us for us in bounds if us is not None]
    return max(known) if known and len(known) == len(bounds) else None


def rows_after_us(factor: FactorPlan) -> int:
    """Returns how many microseconds of event time after the last event of its match a row waits at most for its
    histories. No fault may be among `joined_faults`."""
    return max((history.after_us or 0 for history in factor.histories), default=0)


def joined_faults(factor: FactorPlan, time: str, source: tuple[str, str] | None, where: Span) -> Iterator[Diagnostic]:
    """Yields why rows joined with history cannot be the events of another pattern. time: their time column; source: the
    table and column that it copies, None if it is computed; where: the text that names it."""
    for history in factor.histories:
        if history.as_known:
            yield Diagnostic(
                "HQ300", f"rows that take the history {history.alias} AS KNOWN depend on when events arrive",
                history.known_span, "these cannot be events of a pattern", "leave AS KNOWN out: the rows then wait",
            )
        elif history.after_us is None:
            yield Diagnostic(
                "HQ220", f"the range of {history.alias} may end any time after the last event of {factor.alias}",
                history.high_span, "no bound",
                f"let it end at a time of {factor.alias}'s events, or at one plus an INTERVAL of fixed length",
            )
    if factor.histories and source is not None and of_history(factor, source):
        yield Diagnostic(
            "HQ220", f"{time} is a time of the history, and rows may have any before that of {factor.alias}", where,
            "no bound", f"order them by a time of {factor.alias}",
        )


def of_history(factor: FactorPlan, source: tuple[str, str]) -> bool:
    """True if a column of a SELECT over a factor and its histories is a copy of a history's column. source: its table
    and name; of a name without a table the first table is given, that of the factor."""
    table, column = source
    if table.startswith(HISTORY_TABLE):
        return True
    return column.lower() not in {c.name.lower() for c in output_columns(factor.plan)}


def box_plan(factor: FactorPlan) -> Plan:
    """Returns the pattern of a box whose matches are joined with histories: with null measures in the place of the
    histories' columns, named `<history>.<column>`."""
    columns = [
        (f"{history.alias}.{field.name}", k, field)
        for k, history in enumerate(factor.histories) if history.kind in JOINING
        for field in history_columns(history)
    ]  # fmt: skip
    measures = tuple(Measure(name, Constant(None, field.type)) for name, _, field in columns)
    joined = Joined(factor, tuple((name, k, field.name) for name, k, field in columns), _key(factor))
    return replace(factor.plan, measures=(*factor.plan.measures, *measures), joined=joined)


def box_column(factor: FactorPlan, source: tuple[str, str]) -> str | None:
    """Returns the output column of `box_plan` that a column of a SELECT copies; None if it has none. source: see
    `of_history`."""
    table, column = source
    if not of_history(factor, source):
        return next((c.name for c in output_columns(factor.plan) if c.name.lower() == column.lower()), None)
    for k, history in enumerate(factor.histories):
        if table.startswith(HISTORY_TABLE) and not table.endswith(f"_{k}"):
            continue
        for field in history_columns(history) if history.kind in JOINING else ():
            if field.name.lower() == column.lower():
                return f"{history.alias}.{field.name}"
    return None


def joins_of(plan: Plan) -> Sequence[HistoryPlan]:
    """Returns the histories that the boxes of a pattern are joined with, in all layers."""
    own = () if plan.joined is None else plan.joined.factor.histories
    return [*own, *(history for box in plan.boxes for history in joins_of(box.plan))]


def pattern_of(plan: Plan) -> Plan:
    """Returns the pattern of a `box_plan` alone."""
    assert plan.joined is not None
    beside = {name for name, _, _ in plan.joined.columns}
    return replace(plan, measures=tuple(m for m in plan.measures if m.name not in beside), joined=None)


def _key(factor: FactorPlan) -> str:
    parts = [factor.alias]
    for h in factor.histories:
        rows = fingerprint_of_rows(h.schema.name) if h.plan is None else fingerprint(h.plan)
        parts += [] if h.rows_of is None else [fingerprint(h.rows_of.plan)]
        parts += [h.kind.value, h.alias, rows, h.low_sql, h.high_sql, str(h.closed), h.on_sql]
    return json.dumps(parts)


def history_columns(history: HistoryPlan) -> tuple[Field, ...]:
    """Output columns of a history join's right side: PA's, or those of the stream for plain rows."""
    return output_columns(history.plan) if history.plan is not None else history.schema.fields


def known_span(text: str, join: ast.HistoryJoin) -> Span:
    """Returns the span of AS KNOWN of a history join."""
    if not join.as_known:
        return NO_SPAN
    start = text.upper().index("AS", join.high.span.end)
    return Span(start, text.upper().index("KNOWN", start) + len("KNOWN"))

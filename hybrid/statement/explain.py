"""EXPLAIN: the text of each compile stage of a statement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

from hybrid.rows.faults import fault
from query.errors import Span
from query.language import ast
from query.plan.boxes import layers
from query.plan.plan import Plan, QueryPlan
from query.schema import Schema

if TYPE_CHECKING:
    from hybrid.join.driver import Driver
    from hybrid.join.strategies.base import Strategy
    from matching.engines.engine import EnginePlan
    from matching.hierarchy.choice import AsOne
    from matching.purpose import Purpose

STAGES = ("ast", "plan", "nfab", "automaton", "program")
#: A stage that `all` leaves out, as it is long.
KERNEL = "kernel"


def explain(
    text: str, stage: str = "all", resolve: Callable[[str], Schema] | None = None, live: bool = False,
    inputs: Sequence[str] = (),
) -> str:
    """Returns the text of a stage of a statement: ast, plan, nfab, automaton, program, all of these, or kernel.

    resolve: returns the schema of an input, for every stage but ast. inputs: names of inputs, for statements without
    FROM. Raises QueryError."""
    from query.language.parse import parse

    query = parse(text, inputs)
    if stage == "ast":
        return show_ast(query)
    from query.plan.bind import bind

    def nothing(name: str) -> Schema:
        raise LookupError("no table was given")

    return explain_plan(query, bind(query, resolve or nothing, live=live), stage, live)


def explain_plan(
    query: ast.QuerySyntax, plan: QueryPlan, stage: str, live: bool = False, running: EnginePlan | None = None,
    why_layers: str | None = None,
) -> str:  # fmt: skip
    """Returns the text of a stage of a bound statement. live: as a live query, which keeps the evidence of all matches.
    running: the engine that runs its only pattern; None: the one that would be chosen. why_layers: why its only
    pattern, which has boxes, runs as layers where one pattern would be chosen; None: as chosen."""
    if stage not in (*STAGES, KERNEL, "all"):
        raise fault("HQ500", f"unknown stage {stage}", plan.text, f"available: {', '.join(STAGES)}, {KERNEL}, all")
    wanted: tuple[str, ...] = STAGES if stage == "all" else (stage,)
    keeps = any(factor.histories for factor in plan.factors)

    def purpose() -> Purpose:
        from matching.purpose import Purpose

        return Purpose.LIVE if live else Purpose.MATCHES if keeps else Purpose.ROWS

    def chosen(pattern: Plan) -> EnginePlan:
        from matching.engines.choose import choose_engine  # loads the kernels

        if running is not None and pattern is plan.factors[0].plan:
            return running
        alone = not live and not keeps and pattern.trends is None and not pattern.boxes
        return choose_engine(replace(pattern, narrow=True) if alone else pattern, purpose())

    def way(pattern: Plan) -> AsOne | str:
        from matching.hierarchy.choice import as_one

        found = as_one(pattern, purpose())
        return found if why_layers is None or isinstance(found, str) else why_layers

    def each(show: Callable[[Plan], str], of_one: Callable[[AsOne], str] | None = None) -> str:
        return _each(plan, show, way, of_one)

    shown = {
        "ast": lambda: show_ast(query),
        "plan": lambda: str(plan),
        "nfab": lambda: each(_nfab),
        "automaton": lambda: each(_automaton),
        "program": lambda: each(lambda p: str(chosen(p)), lambda way: str(way.chosen)) + _counted(plan),
        KERNEL: lambda: each(lambda p: _kernel(chosen(p)), lambda way: _kernel(way.chosen)),
    }
    if not plan.factors:
        wanted = tuple(name for name in wanted if name in ("ast", "plan"))
    parts = [(name, shown[name]()) for name in wanted] or [(stage, "none: the statement has no pattern")]
    if len(parts) == 1:
        return parts[0][1]
    return "\n\n".join(f"== {name}\n{body}" for name, body in parts)


def explain_live(
    query: ast.QuerySyntax, plan: QueryPlan, strategy: Strategy, stage: str, driver: Driver | None = None,
    shedding: str | None = None, running: EnginePlan | None = None, sharing: str = "", why_layers: str | None = None,
) -> str:  # fmt: skip
    """Returns the text of a stage of a live query, after lines about its strategy. driver: of a running query; adds the
    current costs. shedding: text about shed keys. running, why_layers: see `explain_plan`. sharing: lines about
    trends counted together with those of other queries."""
    text = explain_plan(query, plan, stage, live=True, running=running, why_layers=why_layers)
    lines = [f"strategy    {strategy}"] if plan.factors[-1].histories else []
    if driver is not None and strategy.sample_s is not None:
        lines.append(f"costs       {driver.costs}")
    if driver is not None:
        lines += driver.show_spark()
    if shedding is not None:
        lines.append(f"shedding    {shedding}")
    if sharing:
        lines.append(sharing)
    return "\n".join([*lines, "", text]) if lines else text


def _each(
    plan: QueryPlan, show: Callable[[Plan], str], way: Callable[[Plan], AsOne | str],
    of_one: Callable[[AsOne], str] | None = None,
) -> str:  # fmt: skip
    """Returns the text of a stage for each pattern of the statement. way: how a pattern with boxes runs. of_one: the
    text of one plain pattern in its place, if it is not that of its plan."""
    parts = []
    for factor in plan.factors:
        patterns = [(factor.alias, factor.plan), *((h.alias, h.plan) for h in factor.histories if h.plan is not None)]
        for alias, pattern in patterns:
            if pattern.boxes:
                found = way(pattern)
                if isinstance(found, str):
                    parts.append(f"-- {alias} runs as layers: {found}")
                    parts += [f"-- {name}\n{show(layer)}" for name, layer in layers(pattern, alias)]
                else:
                    text = show(found.plan) if of_one is None else of_one(found)
                    parts.append(f"-- {alias} {found}\n{text}")
            else:
                parts.append(f"-- {alias}\n{show(pattern)}")
    return "\n\n".join(parts)


def _nfab(plan: Plan) -> str:
    from query.automaton.nfab import explain_nfab
    from query.errors import QueryError

    if plan.trends is not None:
        return "none: trends are counted, and no run is kept"
    try:
        return explain_nfab(plan)
    except QueryError as why:
        return f"none: {why.diagnostics[0].message}"


def _automaton(plan: Plan) -> str:
    from matching.program.program import NoKernel
    from query.automaton.compile import compile_plan

    if plan.trends is not None:
        from query.automaton.trends import trend_automaton
        from query.plan.pattern import sides

        return "\n".join(str(trend_automaton(side)) for side in sides(plan.pattern))
    try:
        return str(compile_plan(plan))
    except NoKernel as why:
        return f"none: {why} runs through the reference matcher"


def _kernel(chosen: EnginePlan) -> str:
    """Returns the source of the query's own kernel, which replaces the interpreted one after a while."""
    from matching.engines.engine import specialisable

    if chosen.program is None:
        return f"# none: {chosen.why} runs through the reference matcher"
    engine = specialisable(chosen.make())
    return f"# none of its own\n{chosen.show_engine()}" if engine is None else engine.source


def _counted(plan: QueryPlan) -> str:
    from hybrid.statement.counted import counted_select

    counted = counted_select(plan)
    return "" if counted is None else f"\n\n{counted}"


def show_ast(query: ast.QuerySyntax) -> str:
    """Returns the syntax tree, one node per line, without spans."""
    lines: list[str] = []

    def visit(name: str, node: Any, depth: int) -> None:
        pad = "  " * depth + (f"{name}: " if name else "")
        if isinstance(node, ast.Identifier):
            lines.append(f"{pad}{node.written if not node.quoted else chr(34) + node.written + chr(34)}")
        elif isinstance(node, ast.ExpressionText):
            lines.append(f"{pad}{' '.join(node.text.split())}")
        elif isinstance(node, Enum):
            lines.append(f"{pad}{node.value}")
        elif is_dataclass(node):
            lines.append(f"{pad}{type(node).__name__}")
            for field in fields(node):
                value = getattr(node, field.name)
                if isinstance(value, Span) or field.name == "text" or value is None or value == ():
                    continue
                visit(field.name, value, depth + 1)
        elif isinstance(node, tuple):
            lines.append(f"{pad}".rstrip())
            for item in node:
                visit("", item, depth + 1)
        else:
            lines.append(f"{pad}{' '.join(str(node).split())}")

    visit("", query, 0)
    return "\n".join(lines)

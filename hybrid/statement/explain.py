"""EXPLAIN: the text of each compile stage of a statement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any

from hybrid.rows.faults import fault
from query.errors import Span
from query.language import ast
from query.plan.plan import Plan, QueryPlan
from query.schema import Schema

if TYPE_CHECKING:
    from hybrid.join.driver import Driver
    from hybrid.join.strategies.base import Strategy
    from matching.program.program import Program

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


def explain_plan(query: ast.Query, plan: QueryPlan, stage: str, live: bool = False) -> str:
    """Returns the text of a stage of a bound statement. live: a live query, which keeps the evidence of all matches."""
    if stage not in (*STAGES, KERNEL, "all"):
        raise fault("HQ500", f"unknown stage {stage}", plan.text, f"available: {', '.join(STAGES)}, {KERNEL}, all")
    wanted = STAGES if stage == "all" else (stage,)
    keeps = live or any(factor.histories for factor in plan.factors)
    shown = {
        "ast": lambda: show_ast(query),
        "plan": lambda: str(plan),
        "nfab": lambda: _each(plan, _nfab),
        "automaton": lambda: _each(plan, _automaton),
        "program": lambda: _each(plan, lambda p: _program(p, keeps, live)) + _counted(plan),
        KERNEL: lambda: _each(plan, lambda p: _kernel(p, keeps)),
    }
    parts = [(name, shown[name]()) for name in wanted]
    if len(parts) == 1:
        return parts[0][1]
    return "\n\n".join(f"== {name}\n{body}" for name, body in parts)


def explain_live(
    query: ast.Query, plan: QueryPlan, strategy: Strategy, stage: str, driver: Driver | None = None,
    shedding: str | None = None,
) -> str:  # fmt: skip
    """Returns the text of a stage of a live query, after lines about its strategy. driver: of a running query; adds the
    current costs. shedding: text about shed keys."""
    text = explain_plan(query, plan, stage, live=True)
    lines = [f"strategy    {strategy}"] if plan.factors[-1].histories else []
    if driver is not None and strategy.sample_s is not None:
        lines.append(f"costs       {driver.costs}")
    if driver is not None:
        lines += driver.show_spark()
    if shedding is not None:
        lines.append(f"shedding    {shedding}")
    return "\n".join([*lines, "", text]) if lines else text


def _each(plan: QueryPlan, show: Callable[[Plan], str]) -> str:
    """Returns the text of a stage for each pattern of the statement."""
    parts = []
    for factor in plan.factors:
        parts.append(f"-- {factor.alias}\n{show(factor.plan)}")
        parts += [f"-- {h.alias}\n{show(h.plan)}" for h in factor.histories if h.plan is not None]
    return "\n\n".join(parts)


def _nfab(plan: Plan) -> str:
    from query.automaton.nfab import explain_nfab
    from query.errors import QueryError

    try:
        return explain_nfab(plan)
    except QueryError as why:
        return f"none: {why.diagnostics[0].message}"


def _automaton(plan: Plan) -> str:
    from matching.program.program import NoKernel
    from query.automaton.compile import compile_plan

    try:
        return str(compile_plan(plan))
    except NoKernel as why:
        return f"none: {why} runs through the reference matcher"


def _program(plan: Plan, keeps: bool, live: bool) -> str:
    from matching.program.program import NoKernel, assemble
    from matching.program.tables import show_engine

    try:
        program = assemble(plan)
    except NoKernel as why:
        return f"engine      reference matcher: {why} has no kernel"
    text = f"{_run_as(plan, program, keeps)}\n{show_engine(program)}"
    return f"{text}\n{_memory(plan, program)}" if live else text


def _memory(plan: Plan, program: Program) -> str:
    """Returns the line that says whether partial matches can spill to disk."""
    from matching.spill import Policy
    from matching.spilled import why_resident

    why = why_resident(plan, program)
    if why is not None:
        return f"memory      partial matches stay in memory: {why}"
    return f"memory      with a limit, partial matches leave memory by key (policy {Policy.DUE.value})"


def _run_as(plan: Plan, program: Program, keeps: bool) -> Program:
    """Returns the program as it runs. Without kept evidence, runs may carry the values that measures read."""
    from matching.program.carried import carry
    from matching.program.tables import runs_in_blocks

    carried = carry(plan, program) if not keeps and runs_in_blocks(program) else None
    return program if carried is None else carried.program


def _kernel(plan: Plan, keeps: bool) -> str:
    """Returns the source of the query's own kernel, which replaces the interpreted one after a while."""
    from matching.kernels import skip_till, step
    from matching.matcher import RUNS_MAX
    from matching.program.program import NoKernel, assemble
    from matching.program.tables import runs_in_blocks, show_engine, table_of
    from matching.specialise import source_of

    try:
        program = assemble(plan)
    except NoKernel as why:
        return f"# none: {why} runs through the reference matcher"
    if table_of(program) is not None or (program.ignore and not runs_in_blocks(program)):
        return f"# none of its own\n{show_engine(program)}"
    return source_of(skip_till if program.ignore else step, _run_as(plan, program, keeps), RUNS_MAX)


def _counted(plan: QueryPlan) -> str:
    from hybrid.statement.counted import counted_select

    sql = counted_select(plan)
    return "" if sql is None else f"\n\n-- matches are counted, not searched for, by\n{sql}"


def show_ast(query: ast.Query) -> str:
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

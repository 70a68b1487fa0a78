"""Matchers by the engine that is chosen for a plan, or by another one that can run it too."""

from __future__ import annotations

from dataclasses import replace

from matching.engines.choose import choose_engine
from matching.engines.engine import Engine, EnginePlan
from matching.engines.run_starts import RunStarts
from matching.matcher import KernelMatcher
from matching.program.program import Program
from matching.program.starts import start_table
from matching.purpose import Purpose
from query.plan.plan import Plan


def planned(
    plan: Plan, engine: type[Engine] | None = None, purpose: Purpose = Purpose.MATCHES, program: Program | None = None
) -> EnginePlan:
    """engine: None for the one that is chosen. program: of the plan; else it is assembled."""
    chosen = choose_engine(plan, purpose, program)
    if engine is None or engine is chosen.engine:
        return chosen
    assert chosen.program is not None
    table = start_table(chosen.program) if engine is RunStarts else None
    return replace(chosen, engine=engine, why="a test asks for it", table=table, carried=None, chain=None)


def matcher_by(
    plan: Plan, engine: type[Engine] | None = None, purpose: Purpose = Purpose.MATCHES,
    program: Program | None = None, lenient: bool = False,
) -> KernelMatcher:  # fmt: skip
    return KernelMatcher(plan, planned(plan, engine, purpose, program), lenient=lenient)

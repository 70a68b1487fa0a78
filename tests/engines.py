"""Matchers by the engine that is chosen for a plan, or by another one that can run it too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

from matching.engines.choose import choose_engine
from matching.engines.engine import Engine, EnginePlan
from matching.engines.run_starts import RunStarts
from matching.matcher import KernelMatcher
from matching.program.program import Program
from matching.program.starts import start_table
from matching.purpose import Purpose
from query.plan.plan import Plan

T = TypeVar("T")
#: Plans of which `once` keeps what was made.
KEPT = 64


def once(make: Callable[..., T]) -> Callable[..., T]:
    """Makes the same of a plan only once, however often it is asked for: for the last plans, each of them known as an
    object, since equal ones may have constants that differ (0.0 and -0.0)."""
    kept: dict[tuple[object, ...], tuple[tuple[Any, ...], T]] = {}

    @wraps(make)
    def kept_or_made(*given: Any) -> T:
        key = tuple(map(id, given))
        if key not in kept:
            if len(kept) >= KEPT:
                kept.clear()
            kept[key] = given, make(*given)
        return kept[key][1]

    return kept_or_made


_chosen = once(choose_engine)


def planned(
    plan: Plan, engine: type[Engine] | None = None, purpose: Purpose = Purpose.MATCHES, program: Program | None = None
) -> EnginePlan:
    """engine: None for the one that is chosen. program: of the plan; else it is assembled."""
    chosen = _chosen(plan, purpose, program)
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

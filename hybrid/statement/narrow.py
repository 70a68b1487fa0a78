"""Runs a plan with numbers of 64 bits first: types that go beyond them seldom have values that do."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from query.errors import TooWide
from query.plan.plan import Plan

R = TypeVar("R")


def narrow_first(plan: Plan, run: Callable[[Plan], R]) -> R:
    """Returns what `run` returns of a narrow plan; of the plan as it is if a column has a value that needs more than 64
    bits, or if the plan has trends or boxes. Cost: the rows up to that value, twice."""
    if plan.trends is None and not plan.boxes:
        with suppress(TooWide):
            return run(replace(plan, narrow=True))
    return run(plan)

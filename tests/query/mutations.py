"""Queries with a token changed: whatever is wrong with them is said as a QueryError that points into their text."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Sequence

from query.errors import HybridWarning, QueryError
from query.plan.plan import QueryPlan


def mutated(query: str, draw: random.Random) -> str:
    """The query with one token deleted, doubled, misspelt or swapped with another."""
    tokens = re.findall(r"\w+|\s+|'[^']*'|.", query)
    places = [i for i, t in enumerate(tokens) if not t.isspace()]
    i, j = draw.choice(places), draw.choice(places)
    match draw.randrange(4):
        case 0:
            tokens[i] = ""
        case 1:
            tokens[i] += f" {tokens[i]}"
        case 2:
            at = draw.randrange(len(tokens[i]))
            tokens[i] = tokens[i][:at] + draw.choice("xé'\"(){}.,$~0") + tokens[i][at + draw.randrange(2) :]
        case _:
            tokens[i], tokens[j] = tokens[j], tokens[i]
    return "".join(tokens)


def count_failed(plan_of: Callable[[str, bool], QueryPlan], queries: Sequence[str], seed: int) -> int:
    """How many of 300 mutated queries fail: with a QueryError, none of whose spans lies outside of the text. The others
    are queries too, if other ones. plan_of: of a text, and whether it is to run live."""
    draw = random.Random(seed)
    failed: list[QueryError] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)
        for _ in range(300):
            text = mutated(draw.choice(queries), draw)
            try:
                plan_of(text, draw.random() < 0.4)
            except QueryError as error:
                failed.append(error)
    for fault in failed:
        assert all(0 <= d.span.start <= d.span.end <= len(fault.text) for d in fault.diagnostics)
        assert "__hybrid" not in fault.render()
    return len(failed)

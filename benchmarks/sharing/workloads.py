"""The workloads of [SHARING] section 4.1.2 in SASE+: queries that share sub-patterns and differ in all else.

A workload has a core for every 30 queries: a sequence of types, in Kleene queries repeated, and nested as deep
as asked. A query puts up to two types before its core and up to two behind it, and has conditions on single events,
aggregates and GROUP BY of its own. Windows and the partition are those of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.sharing.streams import Stream
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import Plan
from query.schema import Schema
from simulator.scenario import generator

#: Queries of one core.
CORE_QUERIES = 30
#: Types beside those of a core of which prefixes and suffixes are made, so that these are shared too.
OUTER_TYPES = 6
#: Shares of queries with a condition on an event of the prefix or suffix, with one in the core, and with GROUP BY.
OUTER_CONDITIONS, CORE_CONDITIONS, GROUPED = 0.5, 0.2, 0.7

#: [SHARING] figure 1, in the words of section 1.1: what is ordered anywhere and delivered; ordered in the app and
#: delivered to the pool; ordered in the app and cancelled after slow travels.
DELIVERIES = {
    "qa": """RETURN district, COUNT(*), SUM(Travel.duration)
FROM delivery TYPE BY type
PATTERN SEQ((AppOrder OR WebOrder), Request, (SEQ(Pickup, Travel))+, Dropoff)
WHERE [driver_id] GROUP BY district WITHIN 30 MINUTES SLIDE 5 MINUTES""",
    "qb": """RETURN district, COUNT(*), SUM(Travel.duration)
FROM delivery TYPE BY type
PATTERN SEQ(AppOrder, Request, (SEQ(Pickup, Travel))+, Dropoff)
WHERE [driver_id] AND Dropoff.place = 'pool' GROUP BY district WITHIN 30 MINUTES SLIDE 5 MINUTES""",
    "qc": """RETURN district, COUNT(*), AVG(Travel.speed)
FROM delivery TYPE BY type
PATTERN SEQ(AppOrder, Request, (SEQ(Pickup, Travel))+, Cancel)
WHERE [driver_id] AND Travel.speed < 10 GROUP BY district WITHIN 30 MINUTES SLIDE 5 MINUTES""",
}


@dataclass(frozen=True, slots=True)
class Shape:
    """kleene: the share of queries whose core is a Kleene pattern; length: its types within the innermost repetition;
    depth: repetitions around each other, each with a type before and behind the next. sequence: types of the core of
    the other queries. within, slide: minutes. conditions: some queries have them."""

    queries: int
    kleene: float = 0.6
    length: int = 2
    depth: int = 1
    sequence: int = 3
    within: int = 30
    slide: int = 10
    conditions: bool = True


@dataclass(frozen=True, slots=True)
class _Query:
    pattern: str
    conditions: tuple[str, ...]
    aggregates: frozenset[str]
    grouped: bool


def workload(stream: Stream, shape: Shape, seed: int) -> dict[str, str]:
    """Returns the texts of different queries by name. Those of a smaller workload are the first of a larger one. Raises
    ValueError if the stream has too few types."""
    by_core, rng = generator(seed).spawn(2)
    inside = max(shape.length + 2 * (shape.depth - 1), shape.sequence)
    if inside + 2 > len(stream.types):
        raise ValueError(f"{inside} types in the core and two beside it, of {len(stream.types)}")
    cores = -(-shape.queries // CORE_QUERIES)
    orders = [[str(t) for t in by_core.permutation(stream.types)] for _ in range(cores)]
    found: dict[_Query, str] = {}
    while len(found) < shape.queries:
        i = len(found)
        kleene = int((i + 1) * shape.kleene + 1e-9) > int(i * shape.kleene + 1e-9)
        drawn = _drawn(rng, stream, shape, orders[i // CORE_QUERIES], kleene)
        if drawn not in found:
            found[drawn] = _text(stream, shape, drawn)
    return {f"q{i:03}": text for i, text in enumerate(found.values(), 1)}


def _drawn(rng: np.random.Generator, stream: Stream, shape: Shape, order: Sequence[str], kleene: bool) -> _Query:
    """Returns a query over the core at the beginning of an order of types."""
    most = shape.length + 2 * (shape.depth - 1)
    inside = most if kleene else shape.sequence
    core = nested(order[: shape.length], order[shape.length : most]) if kleene else ", ".join(order[:inside])
    beside = order[max(most, shape.sequence) :][:OUTER_TYPES]
    outer = [str(t) for t in rng.permutation(beside)[: rng.integers(0, 5)]]
    before = int(rng.integers(max(0, len(outer) - 2), min(2, len(outer)) + 1))
    conditions = []
    if shape.conditions and outer and rng.random() < OUTER_CONDITIONS:
        conditions.append(_condition(rng, stream, outer))
    if shape.conditions and rng.random() < CORE_CONDITIONS:
        conditions.append(_condition(rng, stream, order[:inside]))
    wanted = ["COUNT(*)"]
    for name in (order[0], order[inside - 1], *outer[:1]):
        wanted.append(f"COUNT({name})")
        wanted += [f"{f}({name}.{attribute})" for f in ("SUM", "AVG", "MIN", "MAX") for attribute in stream.levels]
    aggregates = frozenset(str(a) for a in rng.permutation(wanted)[: rng.integers(1, 4)])
    pattern = ", ".join([*outer[:before], core, *outer[before:]])
    return _Query(pattern, tuple(conditions), aggregates, rng.random() < GROUPED)


def nested(inner: Sequence[str], around: Sequence[str]) -> str:
    """Returns a Kleene pattern of types, in repetitions that have two types of `around` each."""
    core = f"(SEQ({', '.join(inner)}))+" if len(inner) > 1 else f"{inner[0]}+"
    for before, behind in zip(around[::2], around[1::2], strict=True):
        core = f"(SEQ({before}, {core}, {behind}))+"
    return core


def _condition(rng: np.random.Generator, stream: Stream, types: Sequence[str]) -> str:
    attribute = str(rng.choice(list(stream.levels)))
    levels = stream.levels[attribute]
    return f"{rng.choice(list(types))}.{attribute} {rng.choice(['<=', '>'])} {rng.choice(levels)}"


def _text(stream: Stream, shape: Shape, query: _Query) -> str:
    key = stream.key
    group = f" GROUP BY {key}" if query.grouped else ""
    return (
        f"RETURN {', '.join([key] * query.grouped + sorted(query.aggregates))}\n"
        f"FROM {stream.schema.name} TYPE BY type\n"
        f"PATTERN SEQ({query.pattern})\n"
        f"WHERE {' AND '.join([f'[{key}]', *query.conditions])}{group} "
        f"WITHIN {shape.within} MINUTES SLIDE {shape.slide} MINUTES"
    )


def plans_of(schema: Schema, texts: dict[str, str]) -> dict[str, Plan]:
    """Returns the plan of each text."""
    return {name: bind(parse(text), lambda _: schema).factors[0].plan for name, text in texts.items()}

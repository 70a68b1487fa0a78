"""The workloads of [SHARING] section 4.1.2 in SASE+: queries that share sub-patterns and differ in all else.

A workload has some cores, each for as many queries as asked, as far as types suffice: a sequence of types, in Kleene
queries repeated, and nested as deep as asked. A query puts up to two types before its core and up to two behind it, and
has conditions on single events, aggregates and GROUP BY of its own. Windows and the partition are those of all. Types
follow each other in one order in all queries, as in the paper's, so that a template has no cycle but those of Kleene
patterns.
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

#: Types before a core of which prefixes are made, and behind it for suffixes; so few that these are shared too.
OUTER_TYPES = 3
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
    the other queries. within, slide: minutes. conditions: some queries have them. core_queries: as many have
    one core."""

    queries: int
    kleene: float = 0.6
    length: int = 2
    depth: int = 1
    sequence: int = 3
    within: int = 30
    slide: int = 10
    conditions: bool = True
    core_queries: int = 30


    @property
    def kleene_types(self) -> int:
        """Of the core of a Kleene query."""
        return self.length + 2 * (self.depth - 1)


@dataclass(frozen=True, slots=True)
class _Core:
    """types: of the longest core in order, and those before and behind of which prefixes and suffixes are made."""

    before: tuple[str, ...]
    types: tuple[str, ...]
    behind: tuple[str, ...]


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
    cores = _cores(by_core, stream, shape)
    found: dict[_Query, str] = {}
    while len(found) < shape.queries:
        i = len(found)
        kleene = int((i + 1) * shape.kleene + 1e-9) > int(i * shape.kleene + 1e-9)
        drawn = _drawn(rng, stream, shape, cores[i // shape.core_queries % len(cores)], kleene)
        if drawn not in found:
            found[drawn] = _text(stream, shape, drawn)
    return {f"q{i:03}": text for i, text in enumerate(found.values(), 1)}


def _cores(rng: np.random.Generator, stream: Stream, shape: Shape) -> list[_Core]:
    """Returns the cores that an order of all types has room for, in any order."""
    inside = max(shape.kleene_types, shape.sequence)
    outer = min(OUTER_TYPES, (len(stream.types) - inside) // 2)
    if outer < 1:
        raise ValueError(f"{inside} types in the core and two beside it, of {len(stream.types)}")
    order = tuple(str(t) for t in rng.permutation(stream.types))
    starts = rng.permutation(np.arange(outer, len(order) - inside - outer + 1))
    return [
        _Core(order[at - outer : at], order[at : at + inside], order[at + inside : at + inside + outer])
        for at in starts
    ]


def _some(rng: np.random.Generator, types: Sequence[str]) -> list[str]:
    """Returns none, one or two of some types, in their order."""
    count = min(int(rng.integers(0, 3)), len(types))
    return [types[i] for i in sorted(rng.permutation(len(types))[:count])]


def _drawn(rng: np.random.Generator, stream: Stream, shape: Shape, core: _Core, kleene: bool) -> _Query:
    before, behind = _some(rng, core.before), _some(rng, core.behind)
    outer = before + behind
    types = core.types[: shape.kleene_types if kleene else shape.sequence]
    conditions = []
    if shape.conditions and outer and rng.random() < OUTER_CONDITIONS:
        conditions.append(_condition(rng, stream, outer))
    if shape.conditions and rng.random() < CORE_CONDITIONS:
        conditions.append(_condition(rng, stream, types))
    wanted = ["COUNT(*)"]
    for name in (types[0], types[-1], *outer[:1]):
        wanted.append(f"COUNT({name})")
        wanted += [f"{f}({name}.{attribute})" for f in ("SUM", "AVG", "MIN", "MAX") for attribute in stream.levels]
    aggregates = frozenset(str(a) for a in rng.permutation(wanted)[: rng.integers(1, 4)])
    inside = nested(types, shape.depth) if kleene else ", ".join(types)
    return _Query(", ".join([*before, inside, *behind]), tuple(conditions), aggregates, bool(rng.random() < GROUPED))


def nested(types: Sequence[str], depth: int) -> str:
    """Returns a Kleene pattern of types in their order: repetitions around each other, each but the innermost with one
    type before the next and one behind it."""
    if depth > 1:
        return f"(SEQ({types[0]}, {nested(types[1:-1], depth - 1)}, {types[-1]}))+"
    return f"(SEQ({', '.join(types)}))+" if len(types) > 1 else f"{types[0]}+"


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

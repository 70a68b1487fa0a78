"""Streams and hierarchies with the parameters of [HIERARCHY] table 3.

A layer is a sequence of variables; the second one is a box with the layer below, except in the lowest. Each variable
has an event type of its own, in the order in which they come in the flattened sequence (they repeat if the stream has
fewer types). The window is that of every layer. One event comes each second, so a window of 150 s has 150 events.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import Plan
from query.schema import Field, Schema
from simulator.scenario import START_US, TIMESTAMP, generator

SECOND_US = 1_000_000
#: Of 100 events with a variable's type, how many meet its condition.
MEETS = 70
SCHEMA = Schema(
    "readings", (Field("ts", "TIMESTAMP"), Field("type", "VARCHAR"), Field("v", "BIGINT"), Field("id", "BIGINT")),
    time="ts",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """A hierarchy and its stream. length: variables of a layer. within: seconds. types: of events, equally frequent.
    planted: a match begins once in so many events, whatever the rest is; 0: none. related: a condition compares an
    event with the first one of its layer; otherwise it reads the event only."""

    layers: int = 3
    length: int = 3
    within: int = 150
    events: int = 25_000
    types: int = 24
    planted: int = 250
    related: bool = False

    @property
    def variables(self) -> int:
        """Returns how many events a match has."""
        return self.layers * (self.length - 1) + 1

    def elements(self, layer: int) -> tuple[int | None, ...]:
        """Returns the types of a layer's variables, None for the box. layer: 1 is the lowest."""
        above = self.layers - layer
        if layer == 1:
            own: list[int | None] = [above + i for i in range(self.length)]
        else:
            behind = self.variables - (above + 1) * (self.length - 2)
            own = [above, None, *(behind + i for i in range(self.length - 2))]
        return tuple(None if e is None else e % self.types for e in own)


def stream(shape: Shape, seed: int) -> pa.Table:
    """Returns the events: types and values are drawn independently, and matches are planted among them."""
    rng = generator(seed)
    n = shape.events
    kinds, v = rng.integers(0, shape.types, n), rng.integers(0, 100, n)
    for start in range(0, n - shape.within, shape.planted) if shape.planted else ():
        behind = rng.choice(np.arange(1, shape.within + 1), shape.variables - 1, replace=False)
        at = start + np.sort(np.append(behind, 0))
        kinds[at], v[at] = np.arange(shape.variables) % shape.types, 0
    return pa.table({
        "ts": pa.array(START_US + np.arange(n) * SECOND_US).cast(TIMESTAMP),
        "type": pa.DictionaryArray.from_arrays(
            pa.array(kinds, pa.int32()), [type_name(i) for i in range(shape.types)]
        ).cast(pa.string()),
        "v": pa.array(v),
        "id": pa.array(np.arange(n)),
    })  # fmt: skip


def type_name(number: int) -> str:
    return f"T{number:02}"


def query(shape: Shape) -> str:
    """Returns the text of the outermost layer, with the others before it."""
    layers = [_layer(shape, layer) for layer in range(1, shape.layers + 1)]
    below = ",\n".join(f"layer{i} AS ({text})" for i, text in enumerate(layers[:-1], 1))
    return (f"WITH {below}\n" if below else "") + layers[-1]


def plan_of(shape: Shape) -> Plan:
    return bind(parse(query(shape)), lambda name: SCHEMA).factors[-1].plan


def _layer(shape: Shape, layer: int) -> str:
    names = [f"E{i}" if e is not None else "M" for i, e in enumerate(shape.elements(layer))]
    return (
        f"SELECT * FROM {SCHEMA.name} MATCH_RECOGNIZE (ORDER BY ts\n"
        f"  MEASURES {names[0]}.id AS begun, {names[-1]}.id AS ended\n"
        f"  AFTER MATCH NO SKIP PATTERN ({' '.join(names)}) WITHIN INTERVAL '{shape.within}' SECOND\n"
        f"  SELECTION SKIP TILL ANY MATCH\n"
        f"  DEFINE {', '.join(_defines(shape, layer, names))})"
    )


def _defines(shape: Shape, layer: int, names: list[str]) -> Iterator[str]:
    for name, element in zip(names, shape.elements(layer), strict=True):
        if element is None:
            yield f"{name} AS PATTERN layer{layer - 1}"
        elif not shape.related:
            yield f"{name} AS type = '{type_name(element)}' AND v < {MEETS}"
        elif name == names[0]:
            yield f"{name} AS type = '{type_name(element)}'"
        else:
            yield f"{name} AS type = '{type_name(element)}' AND (v + {names[0]}.v) % 100 < {MEETS}"

"""Algorithm 1 of [HIERARCHY] as printed: hierarchical complex event detection, HCED.

A run that reaches a box is removed from the set of runs, and a run of the lower layer remembers it; when that run
accepts, it is removed, and the run above goes on behind the box. So a caller gets one match of its box, the first, and
is gone if that one does not lead to a match: it finds fewer matches than composition. An event that meets a condition
moves a run on; the algorithm does not say when a run is to be cloned.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa

from benchmarks.hierarchy.workloads import MEETS, SECOND_US, Shape, type_name


@dataclass(slots=True)
class Run:
    """A partial match of one layer. until_us: the end of the windows of its layer and of its callers. pre: the run that
    has called it."""

    layer: int
    state: int
    until_us: int
    pre: Run | None
    first_v: int = 0
    buffer: list[int] = field(default_factory=list)


class Hced:
    """The runs of a hierarchy over a stream."""

    def __init__(self, shape: Shape) -> None:
        self.layers = [
            [None if e is None else type_name(e) for e in shape.elements(layer)] for layer in range(1, shape.layers + 1)
        ]
        self.related = shape.related
        self.within_us = shape.within * SECOND_US
        self.runs: list[Run] = []

    def push(self, events: pa.RecordBatch) -> Iterator[list[int]]:
        """Yields the ids of the events of each match."""
        columns = (events.column(name) for name in ("ts", "type", "v", "id"))
        ts, kind, v, number = (
            column.cast(pa.int64()).to_pylist() if i == 0 else column.to_pylist() for i, column in enumerate(columns)
        )
        for event in zip(ts, kind, v, number, strict=True):
            yield from self._event(*event)

    def _event(self, ts: int, kind: str, v: int, number: int) -> Iterator[list[int]]:
        outermost = len(self.layers) - 1
        after: list[Run] = []
        for run in (*self.runs, Run(outermost, 0, ts + self.within_us, None)):
            if ts > run.until_us:
                continue  # with it its callers, which it alone remembers
            if not self._holds(run, kind, v):
                if run.state or run.pre is not None:
                    after.append(run)
                continue
            if not run.state:
                run.first_v = v
                run.until_us = min(run.until_us, ts + self.within_us)
            run.buffer.append(number)
            run.state += 1
            elements: Sequence[str | None] = self.layers[run.layer]
            if run.state < len(elements) and elements[run.state] is None:
                after.append(Run(run.layer - 1, 0, run.until_us, run))
                continue
            while run.state == len(elements) and run.pre is not None:
                run.pre.buffer += run.buffer
                run = run.pre
                run.state += 1
                elements = self.layers[run.layer]
            if run.state == len(elements):
                yield run.buffer
            else:
                after.append(run)
        self.runs = after

    def _holds(self, run: Run, kind: str, v: int) -> bool:
        if self.layers[run.layer][run.state] != kind:
            return False
        if not self.related:
            return v < MEETS
        return not run.state or (v + run.first_v) % 100 < MEETS

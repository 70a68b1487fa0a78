"""The patterns of boxes: each is searched once, for all layers and all queries that read it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import pyarrow as pa

from matching.batch import EventBatch, Matcher, Matches
from matching.engines.buffered_runs import group
from matching.hierarchy.counts import Counts
from matching.purpose import Purpose
from query.plan.boxes import FIRST, FIRST_US, LAST, LAST_US, TIMES, counts_of
from query.plan.expression import Column
from query.plan.fingerprint import fingerprint
from query.plan.lag import last_event_lag_us
from query.plan.plan import Plan

Make = Callable[[Plan, Purpose], Matcher]
Keys = tuple[tuple[str, ...], ...]


class Module:
    """A pattern of boxes and its matcher. searched: the number of events that it was searched in."""

    __slots__ = ("_failure", "_found", "_step", "lag_us", "matcher", "plan", "searched")

    def __init__(self, plan: Plan, matcher: Matcher) -> None:
        self.plan = plan
        self.matcher = matcher
        self.lag_us = last_event_lag_us(plan)
        self.searched = 0
        self._step = 0
        self._found: Matches | None = None
        self._failure: Exception | None = None

    def step(self, step: int, batch: EventBatch | None, watermark_us: int | None) -> Matches:
        """Returns the matches of a step, which all its readers ask for: of the next events, or of a watermark if there
        are none. Raises the error of the search, for each reader and in all later steps."""
        if self._failure is not None:
            raise self._failure
        if step != self._step or self._found is None:
            self._step = step
            self.searched += 0 if batch is None else len(batch)
            try:
                self._found = self.matcher.push(batch) if batch is not None else self.matcher.advance(watermark_us)
            except Exception as error:
                self._failure = error
                raise
        return self._found


class Modules:
    """The patterns of boxes over one stream, and the events as they read them.

    make: returns the matcher of a plan, for a use; of one with boxes a layer over these modules. time: the column of
    ORDER BY. counted: see query.plan.boxes.all_counted_keys. step: the number of batches and watermarks so far.
    position: the number of events so far. Its readers take the same steps, one after the other."""

    def __init__(self, make: Make, time: Column, counted: Keys) -> None:
        self.make = make
        self.time = time
        self.counted = counted
        self.step = self.position = 0
        self._counts = [Counts(keys) for keys in counted]
        self._known: dict[str, Module] = {}
        self._events: EventBatch | None = None

    def of(self, plan: Plan, purpose: Purpose) -> Module:
        """Returns the module of a plan with the columns of an interval. One that is new sees the events from now on."""
        key = _key(plan, purpose)
        if key not in self._known:
            self._known[key] = Module(plan, self.make(plan, purpose))
        return self._known[key]

    def begin(self, step: int, batch: EventBatch | None) -> EventBatch | None:
        """Begins a step, unless another reader has, and returns its events with the columns of an interval, which
        begins and ends with the event."""
        if step > self.step:
            self.step = step
            self._events = None if batch is None else self._with_interval(batch)
        return self._events

    def keep_only(self, used: set[int]) -> None:
        """Drops the modules that no layer reads any more. used: their ids."""
        self._known = {key: module for key, module in self._known.items() if id(module) in used}

    def __iter__(self) -> Iterator[Module]:
        return iter(self._known.values())

    def snapshot(self, used: set[int] | None = None) -> tuple[dict[str, object], dict[str, np.ndarray]]:
        """Returns a head for JSON and arrays. used: the ids of the modules to save, None: all."""
        known = {key: module for key, module in self._known.items() if used is None or id(module) in used}
        arrays = {f"module.{key}": as_array(module.matcher.snapshot()) for key, module in known.items()}
        for i, counts in enumerate(self._counts):
            arrays |= {f"counts{i}.{name}": array for name, array in counts.snapshot().items()}
        searched = {key: module.searched for key, module in known.items()}
        return {"step": self.step, "position": self.position, "modules": searched}, arrays

    def fits(self, head: Mapping[str, object], arrays: Mapping[str, np.ndarray]) -> bool:
        """True if it can restore a snapshot, which has the same modules."""
        known = self._known
        return set(known) == set(_dict(head["modules"])) and all(
            module.matcher.fits(arrays[f"module.{key}"].tobytes()) for key, module in known.items()
        )

    def restore(self, head: Mapping[str, object], arrays: dict[str, np.ndarray]) -> None:
        """Restores a snapshot that fits."""
        searched = _dict(head["modules"])
        for key, module in self._known.items():
            module.matcher.restore(arrays[f"module.{key}"].tobytes())
            module.searched = searched[key]
        for i, counts in enumerate(self._counts):
            counts.restore(group(f"counts{i}", arrays))
        self.step, self.position = int(str(head["step"])), int(str(head["position"]))

    def _with_interval(self, batch: EventBatch) -> EventBatch:
        n = len(batch)
        position = pa.array(np.arange(self.position, self.position + n))
        self.position += n
        us, at = pa.array(batch.ts_us), batch.columns.column(self.time.name)
        hidden: dict[str, pa.Array] = {f"#{name}": at for name in TIMES}
        hidden |= {FIRST.name: position, LAST.name: position, FIRST_US.name: us, LAST_US.name: us}
        for counts in self._counts:
            upto = counts.number(batch.columns)
            before, last = counts_of(counts.keys)
            hidden |= {before.name: pa.array(upto - 1), last.name: pa.array(upto)}
        columns = [*batch.columns.columns, *hidden.values()]
        return replace(batch, columns=pa.RecordBatch.from_arrays(columns, [*batch.columns.schema.names, *hidden]))


def _key(plan: Plan, purpose: Purpose) -> str:
    return f"{fingerprint(plan)}{'' if purpose is Purpose.MATCHES else purpose.name}"


def _dict(value: object) -> dict[str, int]:
    assert isinstance(value, dict)
    return value


def as_array(state: bytes) -> np.ndarray:
    """Returns bytes as an array that can be packed."""
    return np.frombuffer(state, np.uint8)

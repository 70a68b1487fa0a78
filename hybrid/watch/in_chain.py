"""The events of a live query over several streams or patterns: a chain of patterns that no other query shares."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from archive.reader import HistoryReader, RangeRequest
from archive.snapshot import HistorySnapshot
from hybrid.join.driver import Driver
from hybrid.join.strategies.base import Strategy
from hybrid.rows import duck
from hybrid.rows.times import show_us
from hybrid.statement.statement import live_matcher
from hybrid.watch.begun import Begun, cannot_go_on, events_had
from hybrid.watch.chain import PatternChain, plan_streams, streams_beside
from hybrid.watch.in_feed import join_of
from hybrid.watch.live_query import Events, Step
from hybrid.watch.memory import Holder
from hybrid.watch.merged_feed import HELD_BACK_WARNED, warn_of_held_back
from hybrid.watch.query_spec import END_US
from hybrid.watch.shedding import Shed
from hybrid.watch.stream import Stream
from matching.batch import EventBatch, Matches
from matching.feed import Member, Unread
from matching.spill import Spill, SpillStats
from query.plan.plan import FactorPlan, QueryPlan
from query.schema import Schema


class InChain:
    """See hybrid.watch.live_query.Events. static: the tables that SQL between patterns may read. streams: those that
    its patterns read and those whose history the inner ones are joined with."""

    __slots__ = ("_new", "_read", "_warned", "begun", "chain", "left", "streams")

    #: A chain has no member in a feed and no shedding: hybrid.watch.shedding refuses it.
    member = None
    shedding = None
    names_sequences = False

    def __init__(
        self, plan: QueryPlan, streams: Mapping[str, Stream], static: Mapping[str, pa.Table], spill: Spill | None,
        from_us: int | None = None, access: duck.Access = duck.NOTHING, strategy: Strategy | None = None,
    ) -> None:  # fmt: skip
        """spill: where partial matches go that do not fit in memory. from_us: the query also reads the kept events from
        then on. strategy: when inner patterns ask the history that they are joined with."""
        self.streams = dict(streams)
        self._read = plan_streams(plan)
        make = partial(live_matcher, spill=spill, join=join_of(*streams.values()))
        schemas = {name: s.schema for name, s in streams.items()}
        beside = {name: streams[name] for name in streams_beside(plan)}
        self._new: Callable[[], PatternChain] = partial(
            PatternChain, plan, schemas, static, make, access, beside, strategy
        )
        self.chain = self._new()
        self.begun = Begun.now(streams, from_us)
        self.left = False
        self._warned = False

    @property
    def factors(self) -> Sequence[FactorPlan]:
        return [pattern.factor for pattern in self.chain.patterns]

    @property
    def watermark_us(self) -> int | None:
        return self.chain.watermark_us

    @property
    def ended(self) -> bool:
        return self.left or self.chain.ended

    @property
    def accepted(self) -> int:
        return sum(s.on_time_count for s in self.streams.values())

    # ---- live

    def begin(self, shed: Shed | None) -> None:
        if self.begun.from_us is None:
            self._stand(self.chain)

    def _stand(self, chain: PatternChain) -> None:
        """Passes the progress of the streams to a chain."""
        for name, stream in self.streams.items():
            chain.push(name, None, END_US if stream.ended else stream.watermark_us)

    def push(self, stream: str, batch: EventBatch | None, watermark_us: int | None) -> list[Matches]:
        """Passes a step to the chain. Warns, once, if a slow stream holds back many events of the others."""
        if self.left:
            return []
        from_us = self.begun.from_us
        if batch is not None and from_us is not None and not bool((batch.ts_us >= from_us).all()):
            batch = batch.take(np.flatnonzero(batch.ts_us >= from_us))
        found = self.chain.push(stream, batch, watermark_us)
        if not self._warned and self.chain.held_back > HELD_BACK_WARNED:
            self._warned = True
            warn_of_held_back(self.chain.held_back, self.streams)
        return found

    @property
    def failure(self) -> Exception | None:
        return self.chain.failure

    @property
    def failed_us(self) -> int | None:
        return self.chain.watermark_us if self.chain.failure is not None else None

    def columns(self, stream: str) -> Collection[str] | None:
        return None  # later pushes carry all columns

    def enter(self, snapshots: Mapping[str, HistorySnapshot], low_us: Mapping[str, int]) -> Iterator[Step]:
        for name, snapshot in snapshots.items():
            yield name, snapshot.read(RangeRequest(low_us[name])), None
        for name, stream in self.streams.items():
            yield name, None, END_US if stream.ended else stream.watermark_us

    def leave(self) -> None:
        self.left = True  # the chain keeps the rows of patterns that matches consist of

    def declare(self, schema: Schema) -> None:
        self.chain.declare(schema)

    # ---- replay

    def replay(self) -> bool:
        had = {name: events_had(self.streams[name], self.begun) for name in self._read}
        self._go_through(had, self.begun)
        return all(whole for _, whole in had.values())

    def succeed(self, old: Events, fresh: bool) -> bool:
        had = {name: events_had(self.streams[name], old.begun) for name in self._read}
        if all(whole for _, whole in had.values()):
            self._go_through(had, old.begun)
            return True
        if not fresh:
            raise cannot_go_on()
        self.begin(None)
        return False

    def _go_through(self, had: Mapping[str, tuple[EventBatch, bool]], begun: Begun) -> None:
        chain = self._new()
        for name, (batch, _) in had.items():
            chain.push(name, batch, None)
        self._stand(chain)
        if chain.failure is not None:
            raise chain.failure
        self.chain, self.begun = chain, begun

    # ---- overload

    def allow(self, shed: Shed | None) -> None:
        assert shed is None

    def look(self, now_s: float, wall_us: int, name: str) -> list[str]:
        return []

    # ---- memory and checkpoints

    @property
    def drivers(self) -> Sequence[Driver]:
        return [pattern.joined.driver for pattern in self.chain.patterns if pattern.joined is not None]

    @property
    def holders(self) -> Sequence[Holder]:
        return () if self.left else self.chain.patterns

    @property
    def spill(self) -> Sequence[SpillStats]:
        return [stats for pattern in self.chain.patterns for stats in pattern.spill]

    @property
    def patterns(self) -> Mapping[str, Mapping[str, int]]:
        return {}  # no other query reads them

    def take_trouble(self) -> list[str]:
        return [trouble for pattern in self.chain.patterns for trouble in pattern.take_trouble()]

    def save(self) -> dict[str, Any]:
        return self.chain.save() | {"from_us": self.begun.from_us, "since": dict(self.begun.since)}

    def restore(self, saved: Mapping[str, Any], member: Member | Unread | None) -> bool:
        self.begun = Begun(dict(saved.get("since", {})), saved.get("from_us"))  # format 1 has no `since`
        if not self.chain.fits(saved):
            return False
        self.chain.restore(saved)
        return True

    # ---- for the user

    def reader(self) -> HistoryReader:
        return self.chain.reader({name: s.reader() for name, s in self.streams.items()})

    def stats(self) -> dict[str, Any]:
        """Returns the statistics. watermark: of the last pattern's input, which follows the slowest of `watermarks`."""
        return {
            "late": sum(s.live.late_count for s in self.streams.values()),
            "held_back": self.chain.held_back,
            "watermark": None if self.chain.ended else show_us(self.chain.watermark_us),
            "watermarks": {s.schema.name: show_us(s.watermark_us) for s in self.streams.values()},
            "held_by": {s.schema.name: s.held_by() for s in self.streams.values()},
        }

    @property
    def stuck(self) -> int:
        return self.chain.stuck

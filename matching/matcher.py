"""The Matcher: rows in, matches out, through the interpreted kernel, or the reference where it cannot serve yet."""

from __future__ import annotations

import io
import json
import warnings

import numpy as np
import pyarrow as pa

from matching.batch import EventBatch, Int64Array, Matcher, Matches
from matching.features import RowValues, columns_read, storable, truth
from matching.keys import Keys
from matching.lists import PER_MATCH, PER_ROW, Decode, OverBudget, Overflowed, RunLists
from matching.measures import Found, Measures
from matching.run_table import RunTable
from matching.store import RowStore
from matching.types import arrow_type
from query.automaton.determinise import determinise
from query.automaton.program import NoKernel, Program, assemble
from query.errors import NOWHERE, DataError, Diagnostic, HybridWarning, QueryError
from query.plan.plan import Plan

#: Version of KernelMatcher.snapshot; restore refuses others.
STATE_VERSION = 1
#: Most partial matches one partition may have at a time.
RUNS_MAX = 200_000
#: Rows and nodes that may pile up before what no run needs is dropped.
SLACK = 1 << 15


def make_matcher(plan: Plan, sources: tuple[str, ...] = ("default",)) -> Matcher:
    """The matcher of a plan: the kernel, or with a HybridWarning the reference (exact, slow) for what the kernel has
    not learnt yet. sources: names that EventBatch.source indexes."""
    try:
        program = assemble(plan)
    except NoKernel as why:
        from matching.by_reference import ReferenceMatcher

        warnings.warn(
            f"{why} runs through the reference matcher: exact, but slow and with all rows kept in memory",
            HybridWarning,
            stacklevel=2,
        )
        return ReferenceMatcher(plan, sources)
    return KernelMatcher(plan, program, sources)


class KernelMatcher:
    """Matcher over compiled kernels: a table for most row-local patterns, run lists for the rest. State is arrays."""

    def __init__(self, plan: Plan, program: Program, sources: tuple[str, ...] = ("default",)) -> None:
        self.plan = plan
        self.program = program
        self.sources = sources
        self.measures = Measures(plan, program.variables, program.shown, program.waiting)
        tested = program.tested
        table = determinise(program)
        self.engine: RunTable | RunLists
        if table is not None:
            self.engine = RunTable(table, program.strict)
            self._bits = {v: bit for bit, v in enumerate(tested)}
            self._always = 0
        else:
            self.engine = RunLists(program, RUNS_MAX)
            self._bits = {v: v for v in tested}
            self._always = sum(1 << v for v in range(len(program.variables)) if v not in tested)
        self._values = RowValues([*(program.local[v] for v in tested), *(f for f, _ in program.features)])
        wanted = columns_read([*self._values.expressions, *self.measures.needs()])
        fields = {f.name: f for f in plan.schema.fields}
        numeric, other = {}, []
        for name in wanted:
            lane = storable(fields[name].type)
            if lane is None:
                other.append(name)
            else:
                numeric[name] = lane.floating
        schema = pa.schema([(name, arrow_type(fields[name].type)) for name in wanted])
        self._reach = program.before + program.after + program.ahead
        self._held: Decode | None = None  # decided matches that wait for what NEXT in their measures reads
        self.store = RowStore(numeric, other, schema, linked=self._reach > 0)
        self.keys = Keys([arrow_type(c.type) for c in plan.partition_by])
        self._empty = self.measures.schema.empty_table()
        self._compact_at = SLACK

    # ---- Matcher

    def push(self, batch: EventBatch) -> Matches:
        """See matching.batch.Matcher. Raises DataError when a condition cannot be computed and QueryError HQ600 when a
        partition needs more than RUNS_MAX partial matches; the matcher is of no use after either."""
        self.sources = batch.sources
        keys = [batch.columns.column(c.name) for c in self.plan.partition_by]
        partition = self.keys.encode(keys, len(batch))
        self.engine.reserve(len(self.keys))
        begin = self.store.append(batch, partition, len(self.keys))
        if self.program.after:
            # a row is matched when the rows that NEXT reads behind it are there
            ready = self.store.chase(np.arange(begin, self.store.count), -self.program.after)
            self._run(ready[ready >= 0])
        else:
            self._run(slice(begin, self.store.count))
        matches = self._emit()
        self._compact()
        return matches

    def advance(self, watermark_us: int | None) -> Matches:
        """See matching.batch.Matcher."""
        held = np.zeros(0, np.int64)
        if self.program.after:
            held = np.flatnonzero(~self.store.released[: self.store.count])
        if watermark_us is None:
            self._run(held)
            self.engine.finish(len(self.keys))
        elif self.program.within_us is not None:
            if len(held):
                watermark_us = min(watermark_us, int(self.store.ts[held].min()))
            self.engine.expire(watermark_us)
        return self._emit(ended=watermark_us is None)

    def _run(self, positions: Int64Array | slice) -> None:
        """Computes masks and features of the rows at `positions` and takes them through the engine."""
        count = positions.stop - positions.start if isinstance(positions, slice) else len(positions)
        if count == 0:
            return
        values = self._values.evaluate(self.store, positions)
        mask = np.full(count, self._always, np.int64)
        for bit, value in zip(self._bits.values(), values, strict=False):
            mask |= truth(value).astype(np.int64) << bit
        features = values[len(self._bits) :]
        feature = np.zeros((max(1, len(features)), count if features else 0), np.int64)
        feature_valid = np.ones(feature.shape, np.bool_)
        for f, (numbers, valid) in enumerate(features):
            (feature.view(np.float64) if self.program.features[f][1].floating else feature)[f] = numbers
            if valid is not None:
                feature_valid[f] = valid
        if self.program.after:
            self.store.released[positions] = True
        try:
            self.engine.run(self.store, positions, mask, feature, feature_valid)
        except Overflowed as at:
            raise DataError(
                f"a condition overflows or divides by zero at {at} us",
                "widen the type (CAST to DOUBLE or HUGEINT) or guard the condition with CASE",
            ) from None
        except OverBudget:
            raise self._over_budget() from None

    def _over_budget(self) -> QueryError:
        dependent = [v for v, code in zip(self.program.variables, self.program.code, strict=True) if code]
        why = (
            f"the condition of {', '.join(dependent)} depends on the match so far, so partial matches cannot be merged"
            if dependent
            else "all matches are asked for, or WITHIN keeps the starts apart"
        )
        hint = "add or shorten WITHIN, partition by more columns, or make neighbouring conditions exclude each other"
        message = f"one partition needs more than {RUNS_MAX:,} partial matches at a time: {why}"
        return QueryError([Diagnostic("HQ600", message, NOWHERE, hint=hint)])

    def _compact(self) -> None:
        """Drops nodes and rows that no run, waiting match or navigation can reach; amortised by doubling."""
        store, partitions = self.store, len(self.keys)
        if max(self.engine.size, store.count) < self._compact_at:
            return
        keep = np.zeros(store.count + 1, np.bool_)
        self.engine.mark(store, partitions, keep)
        if self._held is not None:
            keep[self._held.rows] = True
            keep[self._held.start] = True
        if self._reach:
            behind = max(self.program.after, self.program.ahead)
            for offset in (*range(-self.program.before, 0), *range(1, behind + 1)):
                near = store.chase(np.flatnonzero(keep[: store.count]), offset)
                keep[near[near >= 0]] = True
            # the last rows of each partition, which later rows may read
            keep[: store.count] |= store.chase(np.arange(store.count), self._reach) < 0
        moved = store.compact(keep)
        self.engine.move(partitions, moved)
        if self._held is not None:
            self._held.rows, self._held.start = moved[self._held.rows], moved[self._held.start]
        self._compact_at = 2 * max(self.engine.size, store.count) + SLACK

    def _emit(self, ended: bool = False) -> Matches:
        """The matches decided since the last call, with their output rows and evidence."""
        if not self.engine.decided and self._held is None:
            return self._none()
        out = Decode()
        self.engine.decode(self.store, out)
        if self.measures.ahead:
            out = self._hold(out, ended)
            if not out.count:
                return self._none()
        bounds = out.bounds
        found = found_of(out)
        keys = [self.keys.values(i, out.partition) for i in range(len(self.plan.partition_by))]
        table, row_match = self.measures.table(self.store, found, keys)
        first_us = last_us = self.store.ts[out.start]
        some = np.flatnonzero(bounds[:-1] < bounds[1:])
        if len(some) == out.count:
            last_us = out.ts[bounds[1:] - 1]
        elif len(some):
            last_us = last_us.copy()
            last_us[some] = out.ts[bounds[some + 1] - 1]
        return Matches(
            table, row_match, out.number, first_us, last_us, bounds, out.variables, out.ts, out.source, out.offset,
            out.seq, self.program.variables, self.sources, out.outcome,
        )  # fmt: skip

    def _hold(self, out: Decode, ended: bool) -> Decode:
        """The matches that may come out now. One whose measures read a row that is not there yet waits, and the later
        matches of its partition wait with it, so that they keep their order."""
        if self._held is not None:
            out = self._held.then(out)
        self._held = None
        if ended:
            return out
        found = found_of(out)
        waiting = np.flatnonzero(self.measures.waits(self.store, found))
        if not len(waiting):
            return out
        first = np.full(len(self.keys), out.count)
        np.minimum.at(first, out.partition[waiting], waiting)
        held = np.arange(out.count) >= first[out.partition]
        self._held = out.take(np.flatnonzero(held))
        return out.take(np.flatnonzero(~held))

    def _none(self) -> Matches:
        """No matches: what most pushes of single events give."""
        n = np.zeros(0, np.int64)
        small, codes = np.zeros(0, np.int16), np.zeros(0, np.int32)
        return Matches(
            self._empty, n, n, n, n, np.zeros(1, np.int64), small, n, codes, n, n, self.program.variables, self.sources
        )

    # ---- state

    def snapshot(self) -> bytes:
        """All state as one npz archive; Arrow columns as IPC streams inside it."""
        arrays = {f"engine.{n}": a for n, a in self.engine.snapshot().items()}
        store, arrow = self.store.snapshot()
        arrays |= {f"store.{n}": a for n, a in store.items()}
        if self._held is not None:
            arrays |= {f"held.{n}": getattr(self._held, n) for n in ("bounds", *PER_MATCH, *PER_ROW)}
        arrays["arrow"] = _ipc(arrow)
        values, packed = self.keys.snapshot()
        for i, v in enumerate(values):
            arrays[f"key.{i}"] = _ipc(pa.table({"v": v}))
        if packed is not None:
            arrays["packed"] = packed
        head = {"version": STATE_VERSION, "plan": self.plan.fingerprint, "sources": list(self.sources)}
        arrays["head"] = np.frombuffer(json.dumps(head).encode(), np.uint8)
        out = io.BytesIO()
        np.savez(out, allow_pickle=False, **arrays)
        return out.getvalue()

    def restore(self, state: bytes) -> None:
        """Takes over a snapshot of the same plan. Raises DataError for another plan or version."""
        with np.load(io.BytesIO(state), allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        head = json.loads(arrays["head"].tobytes())
        if head["version"] != STATE_VERSION or head["plan"] != self.plan.fingerprint:
            raise DataError(
                f"this state is of plan {head['plan']}, version {head['version']}; this matcher runs plan "
                f"{self.plan.fingerprint}, version {STATE_VERSION}",
                "start the query anew, or run the version that wrote the state",
            )

        def group(name: str) -> dict[str, np.ndarray]:
            return {n.removeprefix(f"{name}."): a for n, a in arrays.items() if n.startswith(f"{name}.")}

        self.store.restore(group("store"), _table(arrays["arrow"]))
        values = [_table(arrays[f"key.{i}"]).column("v").combine_chunks() for i in range(len(self.plan.partition_by))]
        self.keys.restore(values, arrays.get("packed"))
        self.engine.restore(group("engine"))
        self.engine.reserve(len(self.keys))
        self._held = None
        if held := group("held"):
            self._held = Decode()
            self._held.count = len(held["number"])
            for name, array in held.items():
                setattr(self._held, name, array)
        self.sources = tuple(head["sources"])
        self._compact_at = 2 * max(self.engine.size, self.store.count) + SLACK


def found_of(out: Decode) -> Found:
    return Found(
        out.rows, out.variables, out.bounds, out.start, out.partition, out.number, out.outcome, out.waiting
    )


def _ipc(table: pa.Table) -> np.ndarray:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return np.frombuffer(sink.getvalue(), np.uint8)


def _table(data: np.ndarray) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()

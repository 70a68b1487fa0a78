"""The Matcher: rows in, matches out, through the interpreted kernel, or through the reference where it cannot serve yet."""

from __future__ import annotations

import io
import json
import warnings

import numpy as np
import pyarrow as pa

from matching.batch import EventBatch, Int64Array, Matcher, Matches
from matching.features import RowValues, columns_read, is_true, storable, truth
from matching.kernels import layout, step
from matching.kernels.layout import Counters
from matching.keys import Keys
from matching.measures import Found, Measures
from matching.store import RowStore
from matching.types import arrow_type
from query.automaton.program import NoKernel, Program, assemble
from query.errors import NOWHERE, DataError, Diagnostic, HybridWarning, QueryError
from query.plan.plan import Plan

#: Version of KernelMatcher.snapshot; restore refuses others.
STATE_VERSION = 1
#: Most partial matches one partition may have at a time.
RUNS_MAX = 200_000
#: Rows and nodes that may pile up before what no run needs is dropped.
SLACK = 1 << 17


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
    """Matcher over the interpreted kernel (matching.kernels.step). State is arrays only."""

    def __init__(self, plan: Plan, program: Program, sources: tuple[str, ...] = ("default",)) -> None:
        self.plan = plan
        self.program = program
        self.sources = sources
        self.runs_max = RUNS_MAX
        self.measures = Measures(plan, program.variables)
        tested = [(v, c) for v, c in enumerate(program.local) if not is_true(c)]
        self._tested = [v for v, _ in tested]
        self._always = sum(1 << v for v, c in enumerate(program.local) if is_true(c))
        self._values = RowValues([*(c for _, c in tested), *(f for f, _ in program.features)])
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
        self._types = {f.name: arrow_type(f.type) for f in plan.schema.fields}
        self._reach = program.before + program.after
        self.store = RowStore(numeric, other, schema, linked=self._reach > 0)
        self.keys = Keys([arrow_type(c.type) for c in plan.partition_by])
        self._tables = layout.program_arrays(program, self.runs_max)
        self._runs = layout.new_runs(4096, len(program.registers))
        self._buffer = layout.new_buffer(SLACK)
        self._partitions = layout.new_partitions(1024)
        self._heap = layout.Heap(np.zeros(1024, np.int64), np.zeros(1024, np.int64))
        self._decided = layout.new_decided(1 << 16)
        self._scratch = layout.new_scratch(program)
        self._counters = np.zeros(len(Counters), np.int64)
        self._counters[Counters.FREE] = 4096
        self._counters[Counters.LAST_PARTITION] = -1
        self._compact_at = SLACK

    # ---- Matcher

    def push(self, batch: EventBatch) -> Matches:
        """See matching.batch.Matcher. Raises DataError when a condition cannot be computed and QueryError HQ600 when a
        partition needs more than RUNS_MAX partial matches; the matcher is of no use after either."""
        self.sources = batch.sources
        if len(batch) == 0:
            return self._emit()
        keys = [batch.columns.column(c.name) for c in self.plan.partition_by]
        partition = self.keys.encode(keys, len(batch))
        self._room_for_partitions()
        begin = self.store.append(batch, partition, len(self.keys))
        if self.program.after:
            arrived = np.arange(begin, self.store.count)
            ready = self.store.chase(arrived, -self.program.after)
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
            self._finish()
        elif self.program.within_us is not None:
            if len(held):
                watermark_us = min(watermark_us, int(self.store.ts[held].min()))
            while self._expire(watermark_us) == step.ROOM:
                self._decided = self._more_decided(2 * len(self._decided.node))
        return self._emit()

    # ---- the kernel

    def _run(self, positions: Int64Array | slice) -> None:
        """Computes masks and features of the rows at `positions` and takes them through the kernel."""
        count = positions.stop - positions.start if isinstance(positions, slice) else len(positions)
        if count == 0:
            return
        store, program = self.store, self.program
        values = self._values.evaluate(store, positions)
        mask = np.full(count, self._always, np.int64)
        for v, value in zip(self._tested, values, strict=False):
            mask |= truth(value).astype(np.int64) << v
        features = values[len(self._tested) :]
        feature = np.zeros((max(1, len(features)), count), np.int64)
        feature_valid = np.ones((max(1, len(features)), count), np.bool_)
        feature_f = feature.view(np.float64)
        for f, (value, valid) in enumerate(features):
            (feature_f if program.features[f][1].floating else feature)[f] = value
            if valid is not None:
                feature_valid[f] = valid
        partition, ts = store.partition[positions], store.ts[positions]
        rows = np.arange(positions.start, positions.stop) if isinstance(positions, slice) else positions
        if program.after:
            store.released[positions] = True
        at = 0
        while at < count:
            at, status = step.step(
                at, count, partition, mask, ts, rows, feature, feature_f, feature_valid, self._tables, self._runs,
                self._buffer, self._partitions, self._heap, self._decided, self._scratch, self._counters,
            )  # fmt: skip
            if status == step.ROOM:
                self._grow(int(partition[at]))
            elif status == step.OVERFLOW:
                raise DataError(
                    f"a condition overflows or divides by zero at {int(ts[at])} us",
                    "widen the type (CAST to DOUBLE or HUGEINT) or guard the condition with CASE",
                )
            elif status == step.BUDGET:
                raise self._over_budget()

    def _expire(self, watermark_us: int) -> int:
        return int(
            step.expire(
                watermark_us, self._tables, self._runs, self._partitions, self._heap, self._decided, self._counters
            )
        )

    def _finish(self) -> None:
        count, at = len(self.keys), 0
        while True:
            at = step.finish(at, count, self._runs, self._partitions, self._decided, self._counters)
            if at >= count:
                break
            self._decided = self._more_decided(2 * len(self._decided.node))
        self._counters[Counters.HEAP] = 0
        self._partitions.queued[:] = False

    def _over_budget(self) -> QueryError:
        dependent = [v for v, code in zip(self.program.variables, self.program.code, strict=True) if code]
        why = (
            f"the condition of {', '.join(dependent)} depends on the match so far, so its partial matches cannot be merged"
            if dependent
            else "all matches are asked for, or WITHIN keeps the starts apart"
        )
        return QueryError(
            [
                Diagnostic(
                    "HQ600",
                    f"one partition needs more than {self.runs_max:,} partial matches at a time: {why}",
                    NOWHERE,
                    hint="add or shorten WITHIN, partition by more columns, or make neighbouring conditions exclude "
                    "each other",
                )
            ]
        )

    # ---- room

    def _room_for_partitions(self) -> None:
        count = len(self.keys)
        if count > len(self._partitions.head):
            self._partitions = layout.grown_partitions(self._partitions, max(count, 2 * len(self._partitions.head)))
        if count + 2 > len(self._heap.deadline):
            capacity = 2 * count + 2
            self._heap = layout.Heap(*(layout.grown(a, capacity) for a in self._heap))

    def _more_decided(self, capacity: int) -> layout.Decided:
        return layout.Decided(*(layout.grown(a, capacity) for a in self._decided))

    def _grow(self, partition: int) -> None:
        """Makes room for one more row of this partition, at least twice what there was of what is short."""
        c = self._counters
        length = int(self._partitions.length[partition])
        if c[Counters.LAST_PARTITION] >= 0:
            length += int(self._partitions.length[c[Counters.LAST_PARTITION]])
        most = (length + 2) * (int(self._tables.parameters[layout.Parameters.DEGREE]) + 1)
        if c[Counters.FREE] < 2 * most:
            capacity = max(2 * len(self._runs.state), len(self._runs.state) + 2 * most)
            self._runs, free = layout.grown_runs(self._runs, capacity, int(c[Counters.FREE]))
            c[Counters.FREE] = free
        if c[Counters.NODES] + most > len(self._buffer.row):
            capacity = max(2 * len(self._buffer.row), int(c[Counters.NODES]) + most)
            self._buffer = layout.Buffer(*(layout.grown(a, capacity) for a in self._buffer))
        if c[Counters.DECIDED] + most > len(self._decided.node):
            self._decided = self._more_decided(max(2 * len(self._decided.node), int(c[Counters.DECIDED]) + most))

    def _compact(self) -> None:
        """Drops nodes and rows that no run, waiting match or navigation can reach; amortised by doubling."""
        c, store = self._counters, self.store
        nodes = int(c[Counters.NODES])
        if max(nodes, store.count) < self._compact_at:
            return
        keep = np.zeros(store.count + 1, np.bool_)
        moved = np.empty(max(1, nodes), np.int64)
        live = step.mark_live(len(self.keys), self._runs, self._partitions, self._buffer, nodes, moved, keep)
        if self._reach:
            for offset in (*range(-self.program.before, 0), *range(1, self.program.after + 1)):
                near = store.chase(np.flatnonzero(keep[: store.count]), offset)
                keep[near[near >= 0]] = True
            everything = np.arange(store.count)
            keep[: store.count] |= store.chase(everything, self._reach) < 0  # the last rows of each partition
        row_moved = store.compact(keep)
        step.move_live(len(self.keys), self._runs, self._partitions, self._buffer, nodes, moved, row_moved)
        c[Counters.NODES] = live
        self._compact_at = 2 * max(live, store.count) + SLACK

    # ---- out

    def _emit(self) -> Matches:
        count = int(self._counters[Counters.DECIDED])
        self._counters[Counters.DECIDED] = 0
        decided, store = self._decided, self.store
        bounds = np.zeros(count + 1, np.int64)
        step.measure_lengths(decided, count, self._buffer, bounds)
        rows = np.empty(bounds[count], np.int64)
        variables = np.empty(bounds[count], np.int16)
        step.unroll(decided, count, self._buffer, bounds, rows, variables)
        start = decided.row[:count].copy()
        partition = decided.partition[:count].copy()
        found = Found(rows, variables, bounds, start, partition, decided.number[:count].copy())
        if count:
            keys = [self.keys.values(i, partition) for i in range(len(self.plan.partition_by))]
            table, row_match = self.measures.table(store, found, keys)
            empty = bounds[:-1] == bounds[1:]
            first = np.where(empty, start, rows[np.minimum(bounds[:-1], max(0, len(rows) - 1))] if len(rows) else start)
            last = np.where(empty, start, rows[bounds[1:] - 1] if len(rows) else start)
        else:
            table, row_match = self.measures.schema.empty_table(), np.zeros(0, np.int64)
            first = last = np.zeros(0, np.int64)
        return Matches(
            table, row_match, found.number, store.ts[first], store.ts[last], bounds, variables,
            store.ts[rows], store.source[rows], store.offset[rows], store.seq[rows], self.program.variables, self.sources,
        )  # fmt: skip

    # ---- state

    def snapshot(self) -> bytes:
        """All state as one npz archive; Arrow columns as IPC streams inside it."""
        arrays: dict[str, np.ndarray] = {}
        for group in ("_runs", "_buffer", "_partitions", "_heap"):
            for name, array in getattr(self, group)._asdict().items():
                arrays[f"{group}.{name}"] = array
        arrays["counters"] = self._counters
        arrays["stamp"] = self._scratch.stamp
        store, arrow = self.store.snapshot()
        arrays |= {f"store.{n}": a for n, a in store.items()}
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
        for group, kind in (("_runs", layout.Runs), ("_buffer", layout.Buffer), ("_partitions", layout.Partitions),
                            ("_heap", layout.Heap)):  # fmt: skip
            fields = {n: arrays[f"{group}.{n}"] for n in kind._fields}  # type: ignore[attr-defined]
            if kind is layout.Runs:
                fields["registers_f"] = fields["registers"].view(np.float64)
            setattr(self, group, kind(**fields))
        self._counters = arrays["counters"]
        self._scratch.stamp[:] = arrays["stamp"]
        self.store.restore(
            {n.removeprefix("store."): a for n, a in arrays.items() if n.startswith("store.")}, _table(arrays["arrow"])
        )
        values = [_table(arrays[f"key.{i}"]).column("v").combine_chunks() for i in range(len(self.plan.partition_by))]
        self.keys.restore(values, arrays.get("packed"))
        self.sources = tuple(head["sources"])
        self._room_for_partitions()


def _ipc(table: pa.Table) -> np.ndarray:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return np.frombuffer(sink.getvalue(), np.uint8)


def _table(data: np.ndarray) -> pa.Table:
    return pa.ipc.open_stream(pa.py_buffer(data)).read_all()

"""A Matcher that reruns the reference over the kept rows: exact for every plan, slow, the fallback without a kernel."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa

from matching.batch import EventBatch, Matches
from matching.identity import outcome_lanes
from matching.ipc import from_ipc, to_ipc
from matching.not_computed import not_computed
from matching.types import arrow_type
from query.errors import DataError, QueryError, first_line
from query.language.ast import AfterMatchKind, Selection
from query.language.duck import Settings, quiet_connection
from query.plan.expression import Aggregate, Constant, Expression, Navigation, Opaque, children, show, to_sql, walk
from query.plan.fingerprint import fingerprint
from query.plan.output import Outcome, has_others, output_columns
from query.plan.pattern import anchors, negated, variables
from query.plan.plan import Plan
from query.reference import ReferenceMatch, Resume, find, match_rows, next_start, partition_key

#: Version of ReferenceMatcher.snapshot; restore refuses others.
STATE_VERSION = 3
_MAGIC = b"HREF"
#: Number of cached values of expressions, so that no row is sent to DuckDB twice.
_VALUES_MAX = 100_000
_INTEGERS = ("HUGEINT", "UHUGEINT")  # Arrow has them as decimals


@dataclass(slots=True)
class _Progress:
    """Progress of a partition. values: of PARTITION BY. start: index of the first kept row at which an attempt may
    still match. number: emitted matches that begin before it. emitted: emitted matches that begin later. covered: kept
    rows before this index belong to an emitted match (SQL's scan only)."""

    values: tuple[Any, ...]
    start: int = 0
    number: int = 0
    emitted: int = 0
    covered: int = 0


@dataclass(slots=True)
class _Kept:
    """The rows kept, as Python values and as received."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    ts_us: list[int] = field(default_factory=list)
    source: list[int] = field(default_factory=list)
    offset: list[int] = field(default_factory=list)
    seq: list[int] = field(default_factory=list)

    def only(self, index: Sequence[int]) -> _Kept:
        def some(values: list[Any]) -> list[Any]:
            return [values[i] for i in index]

        return _Kept(some(self.rows), some(self.ts_us), some(self.source), some(self.offset), some(self.seq))


class ReferenceMatcher:
    """Matcher (matching.batch) by `query.reference.find` over the rows kept so far.

    A push costs as much as the reference over all rows kept: rows are dropped once WITHIN has passed them and no match,
    PREV or negation can use them, and never without WITHIN in modes with overlapping matches. Since rows come in the
    total order, time has reached the last one; so batching changes nothing, including the order across partitions.
    Raises QueryError HQ600 and DataError as the reference does, and HQ601 unless lenient. stuck: number of emitted
    matches from which AFTER MATCH SKIP TO would not have moved on.
    """

    def __init__(self, plan: Plan, sources: tuple[str, ...] = ("default",), lenient: bool = False) -> None:
        self.plan = plan
        self.sources = sources
        self.lenient = lenient
        self.stuck = 0
        self.variables = variables(plan.pattern)
        self._schema = pa.schema([(f.name, arrow_type(f.type)) for f in output_columns(plan)])
        self._kept = _Kept()
        self._progress: dict[tuple[object, ...], _Progress] = {}
        self._watermark_us: int | None = None
        self._came = 0  # rows of a push that is not over
        #: time of the event at which it has failed
        self.failed_us: int | None = None
        #: its source and offset
        self.failed_row: tuple[int, int] | None = None
        self._has_others = has_others(plan)
        self._evaluate = DuckEvaluation(plan.settings)
        expressions = [d.condition for d in plan.defines] + [m.expression for m in plan.measures]
        offsets = [e.physical_offset for x in expressions for e in walk(x) if isinstance(e, Navigation)]
        # an earlier row proves that a row is not the first of its partition, a later one that it is not the last
        anchored = anchors(plan.pattern)
        self._back = max([int(True in anchored), *(-o for o in offsets)])
        self._ahead = max([int(False in anchored), *offsets])

    def push(self, batch: EventBatch) -> Matches:
        """See matching.batch.Matcher."""
        self.keep(batch)
        self._came = len(batch)
        found = self._emit(ended=False)
        self._came = 0
        return found

    def before_failure(self) -> list[Matches]:
        """Returns the matches that were decided before the event at which `push` has failed; to be called once, right
        after its error."""
        if not self._came:
            return []
        kept, known = self._kept, len(self._kept.rows) - self._came
        low, high = 0, self._came - 1  # so many of the events do not fail
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (low, middle - 1) if self._fails(kept, known + middle) else (middle, high)
        if self._fails(kept, known + low, 0):
            self._fails(kept, known + low)
        self.failed_us = kept.ts_us[known + low]
        self.failed_row = kept.source[known + low], kept.offset[known + low]
        return [self._emit(ended=False)]

    def _fails(self, kept: _Kept, count: int, time: int = -1) -> bool:
        """True if an error comes of the first rows when time has reached the one that lies `time` behind their end."""
        self._kept = kept.only(range(count))
        self._watermark_us = kept.ts_us[max(count + time, 0)]
        try:
            self._matches(self._decide(ended=False)[1])
        except (DataError, QueryError):
            return True
        return False

    def keep(self, batch: EventBatch) -> None:
        """Takes events without searching: their matches come with the next push, or with `advance`."""
        self.sources = batch.sources
        kept = self._kept
        names = [f.name for f in self.plan.schema.fields]
        there = {name: batch.columns.column(name) for name in batch.columns.schema.names}
        # a column that the plan does not read may be absent
        columns = [
            to_python(there[f.name], f.type) if f.name in there else [None] * len(batch)
            for f in self.plan.schema.fields
        ]
        rows = [dict(zip(names, cells)) for cells in zip(*columns)]
        for row in rows:
            key = partition_key(self.plan, row)
            if key not in self._progress:
                values = tuple(row[c.name] for c in self.plan.partition_by)
                self._progress[key] = _Progress(values, len(kept.rows))
        kept.rows += rows
        kept.ts_us += batch.ts_us.tolist()
        kept.source += batch.source.tolist()
        kept.offset += batch.offset.tolist()
        kept.seq += batch.seq.tolist()
        if len(batch):
            self._raise(kept.ts_us[-1])

    def advance(self, watermark_us: int | None) -> Matches:
        """See matching.batch.Matcher."""
        if watermark_us is not None:
            timed = self.plan.within is not None and self.plan.within.interval_us is not None
            if not timed or (self._watermark_us is not None and watermark_us <= self._watermark_us):
                return self._matches(())  # time decides nothing new
            self._raise(watermark_us)
        return self._emit(ended=watermark_us is None)

    def snapshot(self) -> bytes:
        """Magic, then three parts with their lengths: json, the kept rows and the partitions, both as Arrow IPC."""
        state = {
            "version": STATE_VERSION,
            "plan": fingerprint(self.plan),
            "sources": self.sources,
            "watermark_us": self._watermark_us,
            "stuck": self.stuck,
            "progress": [(p.start, p.number, p.emitted, p.covered) for p in self._progress.values()],
        }
        kept = self._kept
        arrays = [to_arrow([row[f.name] for row in kept.rows], f.type) for f in self.plan.schema.fields]
        hidden = (kept.ts_us, kept.source, kept.offset, kept.seq)
        arrays += [pa.array(values, pa.int64()) for values in hidden]
        keys = [p.values for p in self._progress.values()]
        values = [to_arrow([k[i] for k in keys], c.type) for i, c in enumerate(self.plan.partition_by)]
        parts = [json.dumps(state).encode(), _to_ipc(arrays), _to_ipc(values)]
        return _MAGIC + b"".join(struct.pack("<q", len(part)) + part for part in parts)

    def fits(self, state: bytes) -> bool:
        """True if it can restore a snapshot: that is of the same plan."""
        try:
            known = json.loads(_split(state)[0])
        except (ValueError, struct.error):
            return False
        return (known["version"], known["plan"]) == (STATE_VERSION, fingerprint(self.plan))

    def restore(self, state: bytes) -> None:
        """Restores a snapshot of the same plan. Raises DataError for any other state."""
        try:
            found, rows, keys = _split(state)
            known = json.loads(found)
            arrays, values = _from_ipc(rows), _from_ipc(keys)
            if known["version"] != STATE_VERSION or known["plan"] != fingerprint(self.plan):
                raise ValueError("it belongs to another query or version")
        except (pa.ArrowException, OSError, KeyError, ValueError, struct.error) as error:
            raise DataError(f"the saved state of the query is invalid: {error}", "start from the archive") from None
        fields = self.plan.schema.fields
        columns = [to_python(array, f.type) for array, f in zip(arrays, fields)]
        kept_rows = [dict(zip((f.name for f in fields), cells)) for cells in zip(*columns)]
        self._kept = _Kept(kept_rows, *(array.to_pylist() for array in arrays[len(fields) :]))
        self.sources = tuple(known["sources"])
        self._watermark_us = known["watermark_us"]
        self.stuck = known["stuck"]
        keys_by_column = [to_python(array, c.type) for array, c in zip(values, self.plan.partition_by)]
        self._progress = {}
        for i, counts in enumerate(known["progress"]):
            cells = tuple(column[i] for column in keys_by_column)
            key = partition_key(self.plan, {c.name: v for c, v in zip(self.plan.partition_by, cells)})
            self._progress[key] = _Progress(cells, *counts)

    # ---- one step

    def _raise(self, watermark_us: int) -> None:
        if self._watermark_us is None or watermark_us > self._watermark_us:
            self._watermark_us = watermark_us

    def _emit(self, ended: bool) -> Matches:
        by_key, fresh = self._decide(ended)
        matches = self._matches(fresh)
        self.stuck += sum(match.stuck for match in fresh)
        self._forget(by_key)
        return matches

    def _decide(self, ended: bool) -> tuple[dict[tuple[object, ...], list[ReferenceMatch]], list[ReferenceMatch]]:
        """Returns the matches of each key, and of all keys those that are new, without any change."""
        kept = self._kept
        decided = find(
            self.plan,
            kept.rows,
            kept.ts_us,
            evaluate=self._evaluate,
            watermark_us=self._watermark_us,
            ended=ended,
            resume={key: Resume(p.start, p.number, p.covered) for key, p in self._progress.items()},
            lenient=self.lenient,
        )
        by_key: dict[tuple[object, ...], list[ReferenceMatch]] = {}
        fresh = []
        for match in decided:
            key = partition_key(self.plan, kept.rows[match.start])
            of_key = by_key.setdefault(key, [])
            of_key.append(match)
            if len(of_key) > self._progress[key].emitted:
                fresh.append(match)
        return by_key, fresh

    def _matches(self, found: Sequence[ReferenceMatch]) -> Matches:
        kept = self._kept
        output = match_rows(self.plan, kept.rows, kept.ts_us, found, self._evaluate)
        rows = [row for of_match in output for row in of_match]
        fields = output_columns(self.plan)
        arrays = [to_arrow([row[f.name] for row in rows], f.type) for f in fields]
        events = [event for match in found for event in match.labels]
        at = [index for _, index in events]
        first = [match.labels[0][1] if match.labels else match.start for match in found]
        last = [match.labels[-1][1] if match.labels else match.start for match in found]
        number_of = {name: i for i, name in enumerate(self.variables)}
        matches = Matches(
            rows=pa.Table.from_arrays(arrays, schema=self._schema),
            row_match=np.repeat(np.arange(len(found)), np.array([len(m) for m in output], np.int64)).astype(np.int64),
            number=np.array([match.number for match in found], np.int64),
            first_us=np.array([kept.ts_us[i] for i in first], np.int64),
            last_us=np.array([kept.ts_us[i] for i in last], np.int64),
            event_bounds=np.cumsum([0, *(len(match.labels) for match in found)], dtype=np.int64),
            event_variable=np.array([number_of[name] for name, _ in events], np.int16),
            event_ts_us=np.array([kept.ts_us[i] for i in at], np.int64),
            event_source=np.array([kept.source[i] for i in at], np.int32),
            event_offset=np.array([kept.offset[i] for i in at], np.int64),
            event_seq=np.array([kept.seq[i] for i in at], np.int64),
            variables=self.variables,
            sources=self.sources,
            outcome=np.array([match.outcome for match in found], np.int8) if self._has_others else None,
        )
        if not self._has_others:
            return matches
        starts = [match.start for match in found]
        source = np.array([kept.source[i] for i in starts], np.int32)
        offset = np.array([kept.offset[i] for i in starts], np.int64)
        return replace(matches, ids=outcome_lanes(fingerprint(self.plan), matches, source, offset))

    # ---- rows and attempts that are no longer needed

    def _forget(self, decided: Mapping[tuple[object, ...], Sequence[ReferenceMatch]]) -> None:
        """Moves each partition's start past the finished attempts, and drops the rows that nothing needs."""
        kept, plan = self._kept, self.plan
        index: dict[tuple[object, ...], list[int]] = {key: [] for key in self._progress}
        for i, row in enumerate(kept.rows):
            index[partition_key(plan, row)].append(i)
        needed: list[int] = []
        oldest = len(kept.rows)
        for key, progress in self._progress.items():
            rows = index[key]
            found = decided.get(key, ())
            begin = next((p for p, i in enumerate(rows) if i >= progress.start), len(rows))
            start = self._first_open(rows, begin, found)
            progress.start = rows[start] if start < len(rows) else len(kept.rows)
            behind = [match for match in found if match.start < progress.start]
            progress.number += sum(match.outcome is Outcome.MATCH for match in behind)
            progress.emitted = len(found) - len(behind)
            ends = [m.labels[-1][1] + 1 for m in behind if m.outcome is Outcome.MATCH and m.labels]
            progress.covered = max([progress.covered, *ends])
            used = rows[max(0, self._used_from(rows, start)) :]
            needed += used
            oldest = min([oldest, *used[:1]])
        if plan.selection is Selection.STRICT:  # neighbourhood of rows must be preserved
            needed = list(range(oldest, len(kept.rows)))
        if 2 * len(needed) > len(kept.rows):
            return
        needed.sort()
        self._kept = kept.only(needed)
        before = np.cumsum([0, *np.isin(np.arange(len(kept.rows)), needed)])
        for progress in self._progress.values():
            progress.start = int(before[progress.start])
            progress.covered = int(before[progress.covered])

    def _first_open(self, rows: Sequence[int], begin: int, found: Sequence[ReferenceMatch]) -> int:
        """Returns the first position of a partition at which an attempt may still give a new match."""
        plan = self.plan
        skip_till = plan.selection in (Selection.SKIP_TILL_NEXT, Selection.SKIP_TILL_ANY)
        overlapping = skip_till or plan.after.kind is AfterMatchKind.NO_SKIP
        disjoint = skip_till and plan.after.kind is AfterMatchKind.PAST_LAST_ROW
        position = {i: p for p, i in enumerate(rows)}
        start = begin
        if found and not overlapping:
            match = found[-1]
            labels = [(name, position[i]) for name, i in match.labels] if match.outcome is Outcome.MATCH else []
            start, _ = next_start(plan.after, position[match.start], labels)
        if found and disjoint and not negated(plan.pattern):
            start = max(start, max(position[match.labels[-1][1]] for match in found) + 1)
        while start < len(rows) and self._is_over(rows, start):
            start += 1
        if disjoint:
            # an emitted match keeps its rows from others: it is dropped only when no later start can reach it
            for match in sorted(found, key=lambda m: -m.start):
                if position[match.start] < start <= position[match.labels[-1][1]]:
                    start = position[match.start]
        return start

    def _is_over(self, rows: Sequence[int], start: int) -> bool:
        """True if no row to come lies within WITHIN of the row at a position, or is read by a match that does."""
        within = self.plan.within
        if within is None:
            return False
        if within.rows is not None:
            return start + within.rows + self._ahead <= len(rows)
        deadline_us = self._kept.ts_us[rows[start]] + (within.interval_us or 0)
        if self._watermark_us is None or self._watermark_us <= deadline_us:
            return False
        ahead = rows[len(rows) - self._ahead :]
        return len(ahead) == self._ahead and all(self._kept.ts_us[i] > deadline_us for i in ahead)

    def _used_from(self, rows: Sequence[int], start: int) -> int:
        """Returns the first position that attempts from `start` on may read, for example as a negation before the
        match, or PREV."""
        first = start
        within = self.plan.within
        if within is not None and negated(self.plan.pattern):
            if within.interval_us is not None:
                times = [self._kept.ts_us[i] for i in rows]
                first_us = times[start] if start < len(rows) else self._watermark_us
                while first_us is not None and first > 0 and times[first - 1] >= first_us - within.interval_us:
                    first -= 1
            first = min(first, start - (within.rows or 0))
        return first - self._back


# ---- DuckDB's values ----------------------------------------------------------------------------------------------


class DuckEvaluation:
    """The `evaluate` argument of the reference: an expression over values, computed by DuckDB. Remembers results."""

    def __init__(self, settings: Settings = ()) -> None:
        self._settings = settings
        self._values: dict[object, Any] = {}

    def __call__(self, expression: Expression, leaves: Mapping[Expression, Any]) -> Any:
        try:
            key = (expression, tuple((repr(v), type(v)) for v in leaves.values()))
            if key not in self._values:
                if len(self._values) >= _VALUES_MAX:
                    self._values.clear()
                self._values[key] = self._compute(expression, leaves)
            return self._values[key]
        except duckdb.Error as error:
            raise not_computed(show(expression), [expression], first_line(error)) from None

    def _compute(self, expression: Expression, leaves: Mapping[Expression, Any]) -> Any:
        whole = isinstance(expression, Aggregate)
        # some arguments of an aggregate (a separator, a quantile) must be constants to DuckDB
        columns = {leaf: v for leaf, v in leaves.items() if not (whole and _is_fixed(leaf))}
        names = {leaf: f'CAST("l{i}" AS {leaf.type})' for i, leaf in enumerate(columns)}
        sql = expression.sql(names) if isinstance(expression, Aggregate) else to_sql(expression, names)
        table = {f"l{i}": to_arrow(v if whole else [v], leaf.type) for i, (leaf, v) in enumerate(columns.items())}
        rows = len(next(iter(leaves.values()))) if whole else 1
        cursor = quiet_connection(self._settings)
        try:
            cursor.register("leaves", pa.table(table or {"nothing": pa.nulls(rows)}))
            found = cursor.sql(f"SELECT CAST({sql} AS {expression.type}) AS x FROM leaves").to_arrow_table()
        finally:
            cursor.close()
        return to_python(found.column("x").combine_chunks(), expression.type)[0]


def _is_fixed(expression: Expression) -> bool:
    """True if it has the same value at every row."""
    below = children(expression)
    return all(map(_is_fixed, below)) if below else isinstance(expression, Constant | Opaque)


def to_python(array: pa.Array, type: str) -> list[Any]:
    """A column as the reference takes it: times as int microseconds, UTC; integers of any width as int.

    Raises DataError for nanoseconds that are no whole microsecond."""
    if pa.types.is_timestamp(array.type):
        try:
            micros = array.cast(pa.timestamp("us", array.type.tz)).cast(pa.int64())
        except pa.ArrowInvalid:
            raise DataError("a time is not a whole number of microseconds", "round it to microseconds") from None
        return list(micros.to_pylist())
    values = array.to_pylist()
    if type in _INTEGERS:
        return [None if v is None else int(v) for v in values]
    return list(values)


def to_arrow(values: Sequence[Any], type: str) -> pa.Array:
    """The inverse of `to_python`: an array of the Arrow type of a DuckDB type."""
    target = arrow_type(type)
    if pa.types.is_timestamp(target):
        return pa.array(values, pa.int64()).cast(pa.timestamp("us")).cast(target)
    if type in _INTEGERS:
        values = [None if v is None else Decimal(v) for v in values]
    if pa.types.is_interval(target):
        values = [_days(v) if isinstance(v, int) else v for v in values]
    return pa.array(values, target)


def _days(micros: int) -> pa.MonthDayNano:
    """The difference of two times as DuckDB gives it: whole days and the rest."""
    sign = -1 if micros < 0 else 1
    days, rest = divmod(abs(micros), 86_400_000_000)
    return pa.MonthDayNano([0, sign * days, sign * rest * 1000])


def _to_ipc(arrays: Sequence[pa.Array]) -> bytes:
    """Columns without names, identified by position."""
    return to_ipc(pa.RecordBatch.from_arrays(list(arrays), names=[str(i) for i in range(len(arrays))]))


def _from_ipc(data: bytes) -> list[pa.Array]:
    return [column.combine_chunks() for column in from_ipc(data).columns]


def _split(state: bytes) -> list[bytes]:
    if state[:4] != _MAGIC:
        raise ValueError("the header is missing")
    parts, at = [], 4
    while at < len(state):
        (length,) = struct.unpack_from("<q", state, at)
        parts.append(state[at + 8 : at + 8 + length])
        at += 8 + length
    if len(parts) != 3 or at != len(state):
        raise ValueError("it is truncated")
    return parts

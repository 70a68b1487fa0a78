"""Finds candidates of a history join: rows of the history pattern (PA), or plain rows, in each of many ranges.

Each range is a separate bounded input, yet one run of PA's matcher covers all ranges: their rows are concatenated in
blocks, with the block number as first partition column, so that no match crosses ranges. This holds for STRICT too, as
rows of a block are contiguous. Trends are counted by block too; there the rows of all blocks are in the order of time,
as windows are, and windows that the range of their block cuts are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from archive.reader import HistoryReader
from archive.snapshot import GAP_ROWS, HistorySnapshot, merged
from hybrid.rows.answer import answer_of, output_schema
from hybrid.rows.evidence import Evidence, concat, of_rows, of_windows
from hybrid.rows.inputs import BATCH_ROWS
from matching.batch import EventBatch, Matcher
from matching.drive import run
from matching.emitted import ids_of_windows
from matching.types import arrow_type
from query.language.ast import Selection
from query.plan.boxes import with_key
from query.plan.fingerprint import fingerprint
from query.plan.plan import HistoryPlan, Plan
from query.schema import Field

BLOCK = "__hybrid_block"
#: Most rows of history in one run of PA's matcher, and most keys in one read.
RUN_ROWS_MAX = 2_000_000
READ_KEYS_MAX = 10_000
#: One request reads at most this multiple of its ranges without further checks.
WASTE_MAX = 1.5
#: VAIN_ROWS: most unneeded events read before a split is considered. KEYS_GUESS: least guess of the number of keys; the
#: guess is the number of keys requested together if that is more.
VAIN_ROWS, KEYS_GUESS = 32 * GAP_ROWS, 1_000
#: Scanning so many events of other keys in the same files costs as much as returning one event.
LOOKS = 16


@dataclass(frozen=True, slots=True)
class Ranges:
    """History ranges of n rows for one join: first and last instant, both included; low > last is an empty range."""

    low_us: np.ndarray
    last_us: np.ndarray

    def take(self, index: np.ndarray) -> Ranges:
        return Ranges(self.low_us[index], self.last_us[index])

    @staticmethod
    def concat(parts: Sequence[Ranges]) -> Ranges:
        return Ranges(np.concatenate([p.low_us for p in parts]), np.concatenate([p.last_us for p in parts]))


def whole_windows(plan: Plan, ranges: Ranges) -> Ranges:
    """Returns the ranges from the start of their first to the end of their last window that lies wholly inside; empty
    ones where no window does. The same windows lie wholly inside. plan: of trends."""
    assert plan.trends is not None
    slide_us, within_us = plan.trends.slide_us, plan.trends.within_us
    low = -(-ranges.low_us // slide_us) * slide_us
    end = (ranges.last_us + 1 - within_us) // slide_us * slide_us + within_us
    return Ranges(low, np.where(end - low < within_us, low, end) - 1)


# ---- which history rows ----------------------------------------------------------------------------------------


def read_together(
    reader: HistoryReader, codes: np.ndarray, low_us: np.ndarray, last_us: np.ndarray
) -> Iterator[np.ndarray]:
    """Groups n ranges [low, last], each of one key, into requests. Yields the range numbers of each group, ascending.
    Empty ranges are in no group.

    One request reads all keys of a group from its first to its last instant. Ranges that overlap, or nearly so, form a
    group, unless a split is cheaper. A group is split in halves by time if three conditions hold: it reads more than
    WASTE_MAX times its ranges; it scans more events than as many requests would cost, or returns more than VAIN_ROWS
    unneeded ones; and the halves together cost less, though both scan the same files."""
    archive = reader if isinstance(reader, HistorySnapshot) else None
    gap_us = 0 if archive is None else archive.gap_us()
    groups = [*merged(low_us, last_us, gap_us)][::-1]
    keys_max = max([KEYS_GUESS, *(len(np.unique(codes[group])) for group in groups)])

    def taken(snapshot: HistorySnapshot, group: np.ndarray) -> tuple[float, float]:
        """Returns the number of events that a request returns, and its cost in units of such events."""
        low, last = int(low_us[group].min()), int(last_us[group].max())
        keys = len(np.unique(codes[group]))
        given = snapshot.about_rows(low, last) * keys / keys_max
        return given, GAP_ROWS + snapshot.looked_at(low, last, keys) / LOOKS + given

    while groups:
        group = groups.pop()
        low, last = low_us[group], last_us[group]
        whole = (int(last.max()) - int(low.min()) + 1) * len(np.unique(codes[group]))
        asked = float(np.sum(last.astype(np.float64) - low + 1.0))
        if whole > WASTE_MAX * asked and archive is not None and len(group) > 1:
            events = archive.stretch_rows(int(low.min()), int(last.max()) + 1)[0]
            given, cost = taken(archive, group)
            if events > len(group) * GAP_ROWS or given * (1 - asked / whole) > VAIN_ROWS:
                by_time = group[np.argsort(low, kind="stable")]
                halves = np.sort(by_time[: len(group) // 2]), np.sort(by_time[len(group) // 2 :])
                parts = [half[part] for half in halves for part in merged(low_us[half], last_us[half], gap_us)]
                if sum(taken(archive, part)[1] for part in parts) < cost:
                    groups += parts[::-1]
                    continue
        yield group


@dataclass(frozen=True, slots=True)
class JoinKeys:
    """Equalities of ON that are pushed into the read: history columns, and for each the values of the live rows. Each
    combination of values has a code."""

    columns: tuple[str, ...]
    values: tuple[pa.Array, ...]

    def used_by(self, codes: np.ndarray) -> dict[str, list[Any]] | None:
        """Returns the key filter of a read for these codes, or None for all keys."""
        used: dict[str, list[Any]] = {}
        for column, values in zip(reversed(self.columns), reversed(self.values)):
            digit, codes = codes % len(values), codes // len(values)
            distinct = np.unique(digit)
            if len(distinct) <= READ_KEYS_MAX:
                used[column] = values.take(pa.array(distinct)).to_pylist()
        return used or None

    def values_of(self, code: int) -> tuple[Any, ...]:
        """Returns the values of a code."""
        found: list[Any] = []
        for values in reversed(self.values):
            code, digit = divmod(code, len(values))
            found.append(values[digit].as_py())
        return tuple(reversed(found))

    def codes(self, columns: Sequence[pa.Array], n: int) -> np.ndarray:
        """Returns one code per row, int64 (n,); -1 for combinations that no live row has, and for nulls."""
        code = np.zeros(n, np.int64)
        for column, values in zip(columns, self.values):
            found = pc.fill_null(pc.index_in(column, value_set=values), -1)
            digit = np.asarray(found, np.int64)
            code = np.where((code < 0) | (digit < 0), -1, code * len(values) + digit)
        return code


def keys_of(history: HistoryPlan, live: pa.Table) -> tuple[JoinKeys, np.ndarray]:
    """Returns the keys, and the code of each live row: 0 for all without keys, -1 for a row that can join nothing."""
    columns: list[str] = []
    values: list[pa.Array] = []
    used: list[pa.ChunkedArray] = []
    strict = history.plan is not None and history.plan.selection is Selection.STRICT
    for column, output in () if strict else history.equalities:
        field = history.schema.field(column)
        name = next((c for c in live.column_names if c.lower() == output.lower()), None)
        if field is None or name is None or field.name in columns:
            continue
        type = arrow_type(field.type)
        # ON compares values of two types (by DuckDB's casts) and floating ones (-0.0 = 0.0).
        if live.schema.field(name).type != type or pa.types.is_floating(type) or pa.types.is_nested(type):
            continue
        columns.append(field.name)
        used.append(live.column(name))
        values.append(pc.unique(live.column(name)).drop_null())
    keys = JoinKeys(tuple(columns), tuple(values))
    return keys, keys.codes(used, live.num_rows)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Distinct slices of `order` requested by live rows.

    order: positions in the batch, by (key, total order). Block b is order[start[b]:stop[b]]. Live row member[m]
    requests block member_block[m]. span: of trends the range of each block, else None.
    """

    order: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    member: np.ndarray
    member_block: np.ndarray
    span: Ranges | None = None

    def chunks(self, rows_max: int) -> Iterator[Blocks]:
        """Yields the blocks in parts of at most rows_max rows, at least one block each."""
        size = np.cumsum(self.stop - self.start)
        first = 0
        while first < len(self.start):
            before = int(size[first - 1]) if first else 0
            behind = max(first + 1, int(np.searchsorted(size, before + rows_max, "right")))
            inside = np.flatnonzero((self.member_block >= first) & (self.member_block < behind))
            yield Blocks(
                self.order, self.start[first:behind], self.stop[first:behind], self.member[inside],
                self.member_block[inside] - first,
                None if self.span is None else self.span.take(np.arange(first, behind)),
            )
            first = behind

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns for each row of each block, block by block, its position in the batch and its block."""
        lengths = self.stop - self.start
        block = np.repeat(np.arange(len(lengths)), lengths)
        within = np.arange(len(block)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return self.order[self.start[block] + within], block


def blocks_of(
    batch: EventBatch, keys: JoinKeys, codes: np.ndarray, low_us: np.ndarray, last_us: np.ndarray, spans: bool = False
) -> Blocks:
    """Returns the blocks of a batch in the total order that n live rows request: for row i the events of the key of
    codes[i], from low_us[i] to last_us[i]. Rows without events in their range request no block. spans: a block has one
    range, as trends need it, since ranges with the same events may have different windows."""
    have = keys.codes([batch.columns.column(c) for c in keys.columns], len(batch))
    order = np.argsort(have, kind="stable") if keys.columns else np.arange(len(batch))
    have, times = have[order], batch.ts_us[order]
    start, stop = np.zeros(len(codes), np.int64), np.zeros(len(codes), np.int64)
    for code in np.unique(codes):
        a, b = np.searchsorted(have, [code, code + 1])
        mine = codes == code
        start[mine] = a + np.searchsorted(times[a:b], low_us[mine], "left")
        stop[mine] = a + np.searchsorted(times[a:b], last_us[mine], "right")
    member = np.flatnonzero(stop > start)
    asked = [start[member], stop[member], *([low_us[member], last_us[member]] if spans else [])]
    slices, member_block = np.unique(np.stack(asked, axis=1), axis=0, return_inverse=True)
    span = Ranges(slices[:, 2], slices[:, 3]) if spans else None
    return Blocks(order, slices[:, 0], slices[:, 1], member, member_block.reshape(-1), span)


# ---- what may join ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Candidates:
    """Rows of PA in all blocks of a chunk, ordered by (block, last event, first event, emission); rows of windows by
    (block, window, group).

    block, match: for each row its block and the index of its match in `evidence`. first, last: places of the first and
    last event of its match, ascending with the total order; -1 for an empty match. Of a row of a window its place among
    them.
    """

    rows: pa.Table
    block: np.ndarray
    match: np.ndarray
    evidence: Evidence
    first: np.ndarray
    last: np.ndarray

    def behind(self, others: Candidates) -> Candidates:
        """Returns both, in order; among equals, `others` precede."""
        block = np.concatenate([others.block, self.block])
        first = np.concatenate([others.first, self.first])
        last = np.concatenate([others.last, self.last])
        match = np.concatenate([others.match, self.match + len(others.evidence)])
        order = np.lexsort((np.arange(len(block)), first, last, block))
        rows = pa.concat_tables([others.rows, self.rows]).take(pa.array(order))
        return Candidates(
            rows, block[order], match[order], concat([others.evidence, self.evidence]), first[order], last[order]
        )


def run_rows(plan: Plan | None) -> int:
    """Returns the most rows of history in one run of PA's matcher, which keeps each window that is open."""
    if plan is None or plan.trends is None:
        return RUN_ROWS_MAX
    return max(1, RUN_ROWS_MAX // max(1, plan.trends.within_us // plan.trends.slide_us))


def candidates_in(
    plan: Plan | None, batch: EventBatch, blocks: Blocks, matcher: Callable[[], Matcher] | None
) -> Candidates:
    """Returns the rows of PA in each block of a batch, or the plain rows if plan is None. matcher: returns a fresh
    matcher of `numbered(plan)`."""
    position, block = blocks.rows()
    if plan is None or matcher is None:
        rows = pa.Table.from_batches([batch.columns]).take(pa.array(position))
        return Candidates(rows, block, np.arange(len(position)), of_rows(batch, position), position, position)
    found = list(run(matcher(), _in_blocks(plan, batch, position, block)))
    if plan.trends is not None:
        rows = pa.concat_tables([output_schema(numbered(plan)).empty_table(), *(m.rows for m in found)])
        assert blocks.span is not None
        number = np.asarray(rows.column(BLOCK).to_numpy(), np.int64)
        return windows_of_blocks(plan, rows.drop_columns([BLOCK]), number, blocks.span)
    whole = answer_of(numbered(plan), found)
    events, bounds = whole.evidence, whole.evidence.bounds
    number = np.asarray(whole.live.column(0).to_numpy(), np.int64)
    # An empty match has no event: it precedes the others of its block.
    first, last = (
        np.where(np.diff(bounds) > 0, np.append(events.seq, 0)[at], -1) for at in (bounds[:-1], bounds[1:] - 1)
    )
    order = np.lexsort((np.arange(len(number)), whole.match, first[whole.match], last[whole.match], number))
    original = Evidence(
        bounds, events.variable, batch.ts_us[events.seq], batch.source[events.seq], batch.offset[events.seq],
        batch.seq[events.seq], events.variables, batch.sources,
    )
    rows = whole.live.select(range(1, whole.live.num_columns)).take(pa.array(order))
    match = whole.match[order]
    return Candidates(rows, number[order], match, original, first[match], last[match])


def windows_of_blocks(plan: Plan, rows: pa.Table, block: np.ndarray, span: Ranges) -> Candidates:
    """Returns the rows of windows that lie wholly inside the range of their block, as candidates. rows: in the order of
    windows. block: of each row. span: of each block."""
    start_us, end_us = window_bounds_us(rows)
    inside = np.flatnonzero((start_us >= span.low_us[block]) & (end_us - 1 <= span.last_us[block]))
    order = inside[np.argsort(block[inside], kind="stable")]
    rows, place = rows.take(pa.array(order)), np.arange(len(order))
    ids = ids_of_windows(plan, rows, fingerprint(plan))
    return Candidates(rows, block[order], place, of_windows(ids), place, place)


def window_bounds_us(rows: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Returns the starts and the ends of the windows of output rows."""
    start, end = (np.asarray(rows.column(i).cast(pa.int64()).to_numpy(), np.int64) for i in (0, 1))
    return start, end


def numbered(plan: Plan) -> Plan:
    """Returns the plan over blocks: with the block number as additional first column and first partition column, for
    windows also first column of GROUP BY."""
    return with_key(plan, Field(BLOCK, "BIGINT"))


def _in_blocks(plan: Plan, batch: EventBatch, position: np.ndarray, block: np.ndarray) -> Iterator[EventBatch]:
    """Yields the events of all blocks, for PA. The `seq` of an event is its position in the batch."""
    if plan.trends is not None:
        order = np.lexsort((block, position))
        position, block = position[order], block[order]
    ts_us = batch.ts_us[position]
    if plan.trends is None:
        begins = np.flatnonzero(np.diff(block, prepend=-1))
        ts_us = one_clock(ts_us, begins, (plan.within.interval_us or 0) if plan.within else 0)
    source, offset = batch.source[position], batch.offset[position]
    for start in range(0, len(position), BATCH_ROWS):
        stop = min(start + BATCH_ROWS, len(position))
        columns = batch.columns.take(pa.array(position[start:stop]))
        columns = pa.RecordBatch.from_arrays(
            [pa.array(block[start:stop], pa.int64()), *columns.columns], names=[BLOCK, *columns.schema.names]
        )
        cut = slice(start, stop)
        yield EventBatch(columns, ts_us[cut], source[cut], offset[cut], position[cut], batch.sources)


def one_clock(ts_us: np.ndarray, begins: np.ndarray, within_us: int) -> np.ndarray:
    """Returns times shifted block by block so that they never decrease and blocks are further apart than WITHIN, as a
    matcher may take the time of an event for all partitions. Distances within a block stay; only WITHIN reads them.
    begins: the first row of each block."""
    counts = np.diff(begins, append=len(ts_us))
    spans = ts_us[begins + counts - 1] - ts_us[begins] + within_us + 1
    clock_us = np.repeat(np.cumsum(spans) - spans - ts_us[begins], counts)
    clock_us += ts_us
    return clock_us

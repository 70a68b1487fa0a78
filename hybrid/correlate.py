"""Live matches against history: PA detected in the range of each PL match, joined by ON, by the kind of the join.

Each range is a bounded input of its own, yet all ranges go through one run of PA's matcher: their rows are put one
block after another with the block's number as the first partition column, so that no match crosses from one range into
another. Under STRICT too: the rows of a block stand together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from archive.snapshot import merged
from hybrid import duck
from hybrid.evidence import NO_EVIDENCE, Evidence, Parts, concat, of_matches, of_rows
from hybrid.inputs import BATCH_ROWS
from matching.batch import EventBatch, Matcher, Matches
from matching.types import arrow_schema, arrow_type
from query.language.ast import HistoryKind, Selection
from query.plan.bind import history_columns
from query.plan.expression import Column, quote
from query.plan.output import Outcome, output_columns
from query.plan.plan import FactorPlan, HistoryPlan, Plan
from query.schema import Field, Schema

BLOCK = "__hybrid_block"
ROW = "__hybrid_row"
COMPLETE = "history_complete"
#: Rows of history that one run of PA's matcher is given at most, and keys that one read is asked for at most.
RUN_ROWS_MAX = 2_000_000
READ_KEYS_MAX = 10_000


class Reader(Protocol):
    """History as of one moment; a snapshot of an archive, or a bounded input. columns: those that are needed (None:
    all); what is at hand may have more."""

    def read(
        self,
        low_us: int | None,
        high_us: int | None,
        *,
        closed: bool = False,
        keys: Mapping[str, Sequence[Any]] | None = None,
        late: bool = False,
        columns: Collection[str] | None = None,
    ) -> EventBatch: ...


@dataclass(frozen=True, slots=True)
class Side:
    """What one history join added to each row of an answer.

    rows: aligned with the answer, nulls where nothing joined; no columns after SEMI and ANTI. match: for each row the
    index of its archive match in `evidence`, -1 where there is none. complete: False where the history range begins
    before the stream does or reaches behind its retention, or was taken AS KNOWN before it was complete.
    """

    rows: pa.Table
    evidence: Evidence
    match: np.ndarray
    complete: np.ndarray


@dataclass(frozen=True, slots=True)
class Answer:
    """The rows of one pattern factor: PL's output rows and, row by row, what each history join added.

    events: the evidence, or its parts. match: for each row the index of its match in `evidence`. matched: for each row
    whether it belongs to a match, and not to an unmatched row or a partial match whose time ran out; None: all do, as
    always where there are sides.
    """

    live: pa.Table
    events: Evidence | Parts
    match: np.ndarray
    sides: tuple[Side, ...] = ()
    matched: np.ndarray | None = None

    def __len__(self) -> int:
        return int(self.live.num_rows)

    @property
    def evidence(self) -> Evidence:
        return self.events.whole() if isinstance(self.events, Parts) else self.events

    def take(self, index: np.ndarray) -> Answer:
        """The rows at `index`, in that order."""
        at = pa.array(index)
        return Answer(
            self.live.take(at), self.events, self.match[index],
            tuple(Side(_take(s.rows, at), s.evidence, s.match[index], s.complete[index]) for s in self.sides),
            None if self.matched is None else self.matched[index],
        )


def output_schema(plan: Plan) -> pa.Schema:
    """The columns a pattern factor puts out."""
    return arrow_schema(Schema("", output_columns(plan)))


def side_schema(history: HistoryPlan) -> pa.Schema:
    """The columns a history join adds: PA's output, or those of the plain rows."""
    return arrow_schema(Schema("", history_columns(history)))


def answer_of(plan: Plan, found: Sequence[Matches]) -> Answer:
    """The matches of a plan as an answer without history."""
    found = [m for m in found if len(m)]
    if not found:
        return Answer(output_schema(plan).empty_table(), NO_EVIDENCE, np.empty(0, np.int64))
    shifts = np.concatenate([[0], np.cumsum([len(m) for m in found])])
    return Answer(
        pa.concat_tables([m.rows for m in found]) if len(found) > 1 else found[0].rows,
        Parts([of_matches(m) for m in found]),
        np.concatenate([m.row_match + s for m, s in zip(found, shifts)]),
        matched=_matched(found),
    )


def rows_of(plan: Plan, found: Sequence[Matches]) -> Answer:
    """The rows of a plan's matches alone: an answer that knows of no match and no evidence."""
    rows = [m.rows for m in found]
    return rows_alone(pa.concat_tables(rows) if rows else output_schema(plan).empty_table())


def rows_alone(rows: pa.Table) -> Answer:
    """Output rows of which nobody knows the matches."""
    return Answer(rows, NO_EVIDENCE, np.empty(0, np.int64))


def _matched(found: Sequence[Matches]) -> np.ndarray | None:
    if all(m.outcome is None for m in found):
        return None
    return np.concatenate([
        np.ones(len(m.row_match), bool) if m.outcome is None else m.outcome[m.row_match] == Outcome.MATCH for m in found
    ])


def count_matches(found: Sequence[Matches]) -> int:
    """How many matches there are, without unmatched rows and partial matches whose time ran out."""
    return sum(len(m) if m.outcome is None else int(np.count_nonzero(m.outcome == Outcome.MATCH)) for m in found)


def concat_answers(parts: Sequence[Answer]) -> Answer:
    """One answer after the other; at least one part, all of one factor."""
    if len(parts) == 1:
        return parts[0]

    def joined(evidences: list[Evidence], matches: list[np.ndarray]) -> tuple[Evidence, np.ndarray]:
        shifts = np.concatenate([[0], np.cumsum([len(e) for e in evidences])])
        return concat(evidences), np.concatenate([np.where(m < 0, -1, m + s) for m, s in zip(matches, shifts)])

    evidence, match = joined([p.evidence for p in parts], [p.match for p in parts])
    sides = []
    for k in range(len(parts[0].sides)):
        part = [p.sides[k] for p in parts]
        side_evidence, side_match = joined([s.evidence for s in part], [s.match for s in part])
        rows = pa.concat_tables([s.rows for s in part])
        sides.append(Side(rows, side_evidence, side_match, np.concatenate([s.complete for s in part])))
    return Answer(pa.concat_tables([p.live for p in parts]), evidence, match, tuple(sides))


# ---- the join --------------------------------------------------------------------------------------------------


def correlate(
    history: HistoryPlan,
    factor: FactorPlan,
    answer: Answer,
    low_us: np.ndarray,
    last_us: np.ndarray,
    complete: np.ndarray,
    reader: Reader,
    matcher: Callable[[], Matcher] | None,
    late: bool = False,
) -> Answer:
    """Joins one history to every row of the answer of a factor.

    low_us, last_us: int64 (n,), first and last instant of each row's range, both inside; low > last is an empty range.
    complete: bool (n,), carried into the output. matcher: gives PA's matcher, made for `numbered(plan)`, with empty
    state; None for plain rows. Overlapping ranges are read once. Rows come out in the order of the
    answer; the joined matches of one row in the order of their last event, then their first.
    """
    found_row: list[np.ndarray] = [np.empty(0, np.int64)]
    found_rows: list[pa.Table] = [side_schema(history).empty_table()]
    found_evidence: list[Evidence] = []
    keys, codes = _keys(history, answer.live)
    columns = None if history.plan is None else {*history.plan.columns, *keys.columns}
    asking = np.flatnonzero(codes >= 0)  # the others can join nothing
    for group in merged(low_us[asking], last_us[asking]):
        rows = asking[group]
        low, last = int(low_us[rows].min()), int(last_us[rows].max())
        batch = reader.read(low, last, closed=True, keys=keys.used_by(codes[rows]), late=late, columns=columns)
        if not len(batch):
            continue
        blocks = _blocks(batch, keys, codes[rows], low_us[rows], last_us[rows])
        for chunk in blocks.chunks():
            candidates = _candidates(history.plan, batch, chunk, matcher)
            if not candidates.rows.num_rows:
                continue
            live = rows[chunk.member]
            i, j = _pairs(history, factor, answer.live.take(pa.array(live)), chunk.member_block, candidates)
            i, j = _kept(history.kind, i, j, candidates)
            found_row.append(live[i])
            found_rows.append(candidates.rows.take(pa.array(j)))
            found_evidence.append(candidates.evidence.take(candidates.match[j]))
    row = np.concatenate(found_row)
    order = np.argsort(row, kind="stable")
    row = row[order]
    evidence = concat(found_evidence)
    side_rows = pa.concat_tables(found_rows)
    return _joined(history.kind, answer, row, order, side_rows, evidence, complete)


def _joined(
    kind: HistoryKind, answer: Answer, row: np.ndarray, pair: np.ndarray, rows: pa.Table, evidence: Evidence,
    complete: np.ndarray,
) -> Answer:
    """Pair p joins answer row row[p] with side row pair[p]; `row` is ascending."""
    n = len(answer)
    if kind in (HistoryKind.SEMI, HistoryKind.ANTI):
        has = np.zeros(n, bool)
        has[row] = True
        keep = np.flatnonzero(has if kind is HistoryKind.SEMI else ~has)
        match = np.full(n, -1, np.int64)
        match[row[::-1]] = pair[::-1]  # the first pair of a row is its witness
        nothing = pa.table({})
        side = Side(nothing, evidence, match[keep], complete[keep])
        kept = answer.take(keep)
        return Answer(kept.live, kept.evidence, kept.match, (*kept.sides, side))
    if kind is HistoryKind.LEFT:
        missing = np.setdiff1d(np.arange(n), row)
        at = np.concatenate([row, missing])
        which = np.concatenate([pair, np.full(len(missing), -1, np.int64)])
        order = np.argsort(at, kind="stable")
        row, pair = at[order], which[order]
    kept = answer.take(row)
    joined = rows.take(pa.array(pair, mask=pair < 0))
    return Answer(kept.live, kept.evidence, kept.match, (*kept.sides, Side(joined, evidence, pair, complete[row])))


def _take(table: pa.Table, index: pa.Array) -> pa.Table:
    return table.take(index) if table.num_columns else table


# ---- which history rows ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Keys:
    """The equalities of ON that may be pushed into the read: history columns, and for each the values of the live
    rows. A combination of values is one code."""

    columns: tuple[str, ...]
    values: tuple[pa.Array, ...]

    def used_by(self, codes: np.ndarray) -> dict[str, list[Any]] | None:
        """What the read is asked for, or None for every key."""
        used: dict[str, list[Any]] = {}
        for column, values in zip(reversed(self.columns), reversed(self.values)):
            digit, codes = codes % len(values), codes // len(values)
            distinct = np.unique(digit)
            if len(distinct) <= READ_KEYS_MAX:
                used[column] = values.take(pa.array(distinct)).to_pylist()
        return used or None

    def codes(self, columns: Sequence[pa.Array], n: int) -> np.ndarray:
        """One code a row; -1 for a combination that no live row has, and for nulls, which equal nothing."""
        code = np.zeros(n, np.int64)
        for column, values in zip(columns, self.values):
            found = pc.fill_null(pc.index_in(column, value_set=values), -1)
            digit = np.asarray(found, np.int64)
            code = np.where((code < 0) | (digit < 0), -1, code * len(values) + digit)
        return code


def _keys(history: HistoryPlan, live: pa.Table) -> tuple[_Keys, np.ndarray]:
    """The keys and the code of each live row (0 for all where no key is pushed, -1 for a row that can join nothing)."""
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
        # Values of two types are compared by DuckDB's casts, and -0.0 = 0.0: those are left to ON.
        if live.schema.field(name).type != type or pa.types.is_floating(type) or pa.types.is_nested(type):
            continue
        columns.append(field.name)
        used.append(live.column(name))
        values.append(pc.unique(live.column(name)).drop_null())
    keys = _Keys(tuple(columns), tuple(values))
    return keys, keys.codes(used, live.num_rows)


@dataclass(frozen=True, slots=True)
class _Blocks:
    """The distinct slices of `order` that the live rows ask for.

    order: positions in the batch, by (key, total order). Block b is order[start[b]:stop[b]]. Live row member[m] asks
    for block member_block[m].
    """

    order: np.ndarray
    start: np.ndarray
    stop: np.ndarray
    member: np.ndarray
    member_block: np.ndarray

    def chunks(self) -> Iterator[_Blocks]:
        """The blocks in parts of at most RUN_ROWS_MAX rows (one block at least)."""
        size = np.cumsum(self.stop - self.start)
        first = 0
        while first < len(self.start):
            before = int(size[first - 1]) if first else 0
            behind = max(first + 1, int(np.searchsorted(size, before + RUN_ROWS_MAX, "right")))
            inside = np.flatnonzero((self.member_block >= first) & (self.member_block < behind))
            yield _Blocks(
                self.order, self.start[first:behind], self.stop[first:behind], self.member[inside],
                self.member_block[inside] - first,
            )
            first = behind

    def rows(self) -> tuple[np.ndarray, np.ndarray]:
        """For each row of each block, one block after the other: its position in the batch, and its block."""
        lengths = self.stop - self.start
        block = np.repeat(np.arange(len(lengths)), lengths)
        within = np.arange(len(block)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return self.order[self.start[block] + within], block


def _blocks(batch: EventBatch, keys: _Keys, codes: np.ndarray, low_us: np.ndarray, last_us: np.ndarray) -> _Blocks:
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
    slices, member_block = np.unique(np.stack([start[member], stop[member]], axis=1), axis=0, return_inverse=True)
    return _Blocks(order, slices[:, 0], slices[:, 1], member, member_block.reshape(-1))


# ---- what may join ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Candidates:
    """Rows of PA in all blocks of a chunk, by (block, last event, first event, order of emission).

    block, match: for each row its block and the index of its match in `evidence`.
    """

    rows: pa.Table
    block: np.ndarray
    match: np.ndarray
    evidence: Evidence


def _candidates(
    plan: Plan | None, batch: EventBatch, blocks: _Blocks, matcher: Callable[[], Matcher] | None
) -> _Candidates:
    position, block = blocks.rows()
    if plan is None or matcher is None:
        rows = pa.Table.from_batches([batch.columns]).take(pa.array(position))
        return _Candidates(rows, block, np.arange(len(position)), of_rows(batch, position))
    found = list(_detect(plan, batch, position, block, matcher()))
    whole = answer_of(numbered(plan), found)
    events, bounds = whole.evidence, whole.evidence.bounds
    number = np.asarray(whole.live.column(0).to_numpy(), np.int64)
    # An empty match has no event: it stands before the others of its block.
    first, last = (
        np.where(np.diff(bounds) > 0, np.append(events.seq, 0)[at], -1) for at in (bounds[:-1], bounds[1:] - 1)
    )
    order = np.lexsort((np.arange(len(number)), whole.match, first[whole.match], last[whole.match], number))
    original = Evidence(
        bounds, events.variable, batch.ts_us[events.seq], batch.source[events.seq], batch.offset[events.seq],
        batch.seq[events.seq], events.variables, batch.sources,
    )
    rows = whole.live.select(range(1, whole.live.num_columns)).take(pa.array(order))
    return _Candidates(rows, number[order], whole.match[order], original)


def numbered(plan: Plan) -> Plan:
    """The plan over blocks: one more column, by which it is partitioned first."""
    schema = replace(plan.schema, fields=(Field(BLOCK, "BIGINT"), *plan.schema.fields))
    return replace(plan, schema=schema, partition_by=(Column(BLOCK, "BIGINT"), *plan.partition_by))


def _detect(
    plan: Plan, batch: EventBatch, position: np.ndarray, block: np.ndarray, matcher: Matcher
) -> Iterator[Matches]:
    """Runs PA over all blocks; an event's `seq` is its position in the batch."""
    ts_us = _one_clock(batch.ts_us[position], block, (plan.within.interval_us or 0) if plan.within else 0)
    source, offset = batch.source[position], batch.offset[position]
    for start in range(0, len(position), BATCH_ROWS):
        stop = min(start + BATCH_ROWS, len(position))
        columns = batch.columns.take(pa.array(position[start:stop]))
        columns = pa.RecordBatch.from_arrays(
            [pa.array(block[start:stop], pa.int64()), *columns.columns], names=[BLOCK, *columns.schema.names]
        )
        cut = slice(start, stop)
        yield matcher.push(
            EventBatch(columns, ts_us[cut], source[cut], offset[cut], position[cut], batch.sources)
        )
    yield matcher.advance(None)


def _one_clock(ts_us: np.ndarray, block: np.ndarray, within_us: int) -> np.ndarray:
    """Times moved block by block so that they never go back and blocks lie further apart than WITHIN: a matcher may
    take the time of an event as news about all partitions. Distances inside a block stay; only WITHIN reads them."""
    if not len(ts_us):
        return ts_us
    begins = np.flatnonzero(np.diff(block, prepend=-1))
    ends = np.append(begins[1:], len(ts_us)) - 1
    spans = ts_us[ends] - ts_us[begins] + within_us + 1
    shift = np.cumsum(spans) - spans - ts_us[begins]
    return ts_us + shift[np.cumsum(np.diff(block, prepend=block[0]) != 0)]


def _pairs(
    history: HistoryPlan, factor: FactorPlan, live: pa.Table, live_block: np.ndarray, candidates: _Candidates
) -> tuple[np.ndarray, np.ndarray]:
    """(live row, candidate row) numbers of one block each that meet ON, in that order."""
    connection = duck.cursor()
    left = live.append_column(BLOCK, pa.array(live_block)).append_column(ROW, pa.array(np.arange(live.num_rows)))
    right = candidates.rows.append_column(BLOCK, pa.array(candidates.block))
    right = right.append_column(ROW, pa.array(np.arange(right.num_rows)))
    connection.register("__hybrid_live", left)
    connection.register("__hybrid_history", right)
    a, b = quote(factor.alias), quote(history.alias)
    try:
        pairs = connection.sql(
            f"SELECT {a}.{ROW} AS i, {b}.{ROW} AS j FROM __hybrid_live AS {factor.alias_sql} "
            f"JOIN __hybrid_history AS {b} ON {a}.{BLOCK} = {b}.{BLOCK} AND ({history.on_sql})"
        ).to_arrow_table()
    except duckdb.Error as error:
        raise duck.query_error(error, history.on_sql, code="HQ300") from None
    i, j = (np.asarray(c.to_numpy(), np.int64) for c in pairs.columns)
    order = np.lexsort((j, i))
    return i[order], j[order]


def _kept(kind: HistoryKind, i: np.ndarray, j: np.ndarray, candidates: _Candidates) -> tuple[np.ndarray, np.ndarray]:
    """The pairs that the kind of the join keeps of those that meet ON: NEAREST (and the witness of SEMI) the rows of
    the last match of each live row, the others all."""
    if kind not in (HistoryKind.NEAREST, HistoryKind.SEMI) or not len(i):
        return i, j
    match = candidates.match[j]
    ends = np.append(np.flatnonzero(np.diff(i)), len(i) - 1)
    latest = np.repeat(match[ends], np.diff(ends, prepend=-1))
    keep = match == latest
    return i[keep], j[keep]

"""Joins live matches with one history: finds PA in the range of each PL match, applies ON and the kind of the join."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import duckdb
import numpy as np
import pyarrow as pa

from archive.reader import HistoryReader, RangeRequest
from archive.snapshot import GAP_ROWS, HistorySnapshot
from hybrid.join.candidates import (
    BLOCK,
    Candidates,
    Ranges,
    blocks_of,
    candidates_in,
    keys_of,
    read_together,
    run_rows,
    whole_windows,
)
from hybrid.join.history_cache import HistoryCache
from hybrid.join.spark_ranges import LargeRanges
from hybrid.rows import duck
from hybrid.rows.answer import ROW, Answer, Side, side_schema
from hybrid.rows.evidence import Evidence, concat
from hybrid.rows.session import register, texts_of
from matching.array_lanes import Overflow, Values, run_lanes, truth
from matching.batch import Matcher
from matching.features import storable
from matching.program.lanes import Leaf, Lowered, NoLane, lower
from matching.store import lanes
from query.language.ast import HistoryKind
from query.plan.bind import history_columns
from query.plan.expression import Column, Expression, quote
from query.plan.output import output_columns
from query.plan.plan import FactorPlan, HistoryPlan

#: Most pairs of a live match and a candidate in memory.
PAIRS_MAX = 1 << 22
#: About how many events are scanned first if only the newest row is needed.
NEWEST_ROWS = 4 * GAP_ROWS


def correlate(
    history: HistoryPlan,
    factor: FactorPlan,
    answer: Answer,
    ranges: Ranges,
    complete: np.ndarray,
    requests: Sequence[np.ndarray],
    reader: HistoryReader,
    matcher: Callable[[], Matcher] | None,
    late: bool = False,
    cache: HistoryCache | None = None,
    known: np.ndarray | None = None,
    spark: LargeRanges | None = None,
    large: np.ndarray | None = None,
) -> tuple[Answer, int, int, int]:
    """Joins one history to every row of a factor's answer. Returns the joined answer, and the numbers of reads, of
    searches by Spark, and of searches in this process because Spark failed.

    Rows are in the order of the answer; the joined matches of one row by their last event, then their first.
    ranges: of each row. complete: bool (n,), copied to the output. requests: groups of rows; shared parts of the ranges
    of a group are read once, and groups are read separately. matcher: returns PA's matcher, made for `numbered(plan)`,
    with empty state; None for plain rows. cache: answers rows with True in `known`, whose ranges are complete. spark:
    searches the ranges of rows with True in `large`, one by one; the reader is then a snapshot of files only, and ON
    has no keys.
    """
    keys, codes = keys_of(history, answer.live)
    columns = None if history.plan is None else {*history.plan.columns, *keys.columns}
    trends = history.plan is not None and history.plan.trends is not None
    if history.plan is not None and trends:
        ranges = whole_windows(history.plan, ranges)
    low_us, last_us = ranges.low_us, ranges.last_us
    able = codes >= 0  # other rows can join nothing
    reads = searches = failures = 0
    pairs = _FoundPairs(history, factor, answer, len(keys.columns) == len(history.equalities))
    if spark is not None and large is not None and large.any():
        able = able & ~large
        far = np.flatnonzero(large & (low_us <= last_us))
        searches, failures = _join_large(pairs, history, spark, reader, ranges, far, late)
    for request in requests:
        asking = request[able[request]]
        if cache is not None and known is not None:
            before, left = cache.reads, [asking[~known[asking]]]
            for rows, candidates in cache.candidates(keys, codes, ranges, asking[known[asking]], reader, late):
                if candidates is None:
                    left.append(rows)
                else:
                    pairs.join(rows, np.arange(len(rows)), candidates)
            reads += cache.reads - before
            asking = np.sort(np.concatenate(left))
        for group in read_together(reader, codes[asking], low_us[asking], last_us[asking]):
            rows = asking[group]
            for low, last in _parts(history, reader, int(low_us[rows].min()), int(last_us[rows].max())):
                used = keys.used_by(codes[rows])
                batch = reader.read(RangeRequest(low, last, closed=True, keys=used, late=late, columns=columns))
                reads += 1
                if not len(batch):
                    continue
                first, until = np.maximum(low_us[rows], low), np.minimum(last_us[rows], last)
                served, before = rows, len(pairs.rows)
                blocks = blocks_of(batch, keys, codes[rows], first, until, trends)
                for chunk in blocks.chunks(run_rows(history.plan)):
                    found = candidates_in(history.plan, batch, chunk, matcher)
                    pairs.join(served[chunk.member], chunk.member_block, found)
                if _newest(history) and len(pairs.rows) > before:
                    rows = np.setdiff1d(rows, np.concatenate(pairs.rows[before:]), assume_unique=True)
                    if not len(rows):
                        break
    return pairs.joined(complete), reads, searches, failures


def _join_large(
    pairs: _FoundPairs, history: HistoryPlan, spark: LargeRanges, reader: HistoryReader, ranges: Ranges,
    rows: np.ndarray, late: bool,
) -> tuple[int, int]:  # fmt: skip
    """Joins rows of the answer whose ranges Spark searches, each different range once. Returns the numbers of searches
    by Spark, and of searches in this process because Spark failed."""
    assert history.plan is not None
    assert isinstance(reader, HistorySnapshot)
    searches = failures = 0
    both = np.stack([ranges.low_us[rows], ranges.last_us[rows]], axis=1)
    spans, of = np.unique(both, axis=0, return_inverse=True)
    for number, (low, last) in enumerate(spans.tolist()):
        some = rows[of.reshape(-1) == number]
        among, by_spark = spark.candidates(history.plan, reader, low, last, late)
        searches, failures = searches + by_spark, failures + (not by_spark)
        pairs.join(some, np.zeros(len(some), np.int64), among)
    return searches, failures


class _FoundPairs:
    """Rows of an answer with the rows of one history that they join, in the order in which they are found. pinned: ON
    has equalities of keys only. rows: of each call of `join`, the rows of the answer, one per pair."""

    def __init__(self, history: HistoryPlan, factor: FactorPlan, answer: Answer, pinned: bool) -> None:
        self.rows: list[np.ndarray] = [np.empty(0, np.int64)]
        self._history, self._factor, self._answer, self._pinned = history, factor, answer, pinned
        self._rest = _in_lanes(history.on_rest) if pinned else None
        self._sides: list[pa.Table] = [side_schema(history).empty_table()]
        self._evidence: list[Evidence] = []

    def join(self, live: np.ndarray, block: np.ndarray, candidates: Candidates) -> None:
        """Joins rows of the answer to the candidates of their blocks."""
        if not candidates.rows.num_rows:
            return
        history, answer, pairs = self._history, self._answer, None
        if self._pinned and not history.on_more:
            pairs = _all_pairs(block, candidates)
        elif self._rest is not None:
            pairs = _met(self._rest, answer.live, live, block, candidates)
        if pairs is None:
            pairs = _pairs(history, self._factor, answer.live.take(pa.array(live)), block, candidates)
        i, j = _kept(history.kind, *pairs, candidates)
        self.rows.append(live[i])
        self._sides.append(candidates.rows.take(pa.array(j)))
        self._evidence.append(candidates.evidence.take(candidates.match[j]))

    def joined(self, complete: np.ndarray) -> Answer:
        """Returns the answer with the found pairs, in the order of its rows."""
        row = np.concatenate(self.rows)
        order = np.argsort(row, kind="stable")
        evidence, sides = concat(self._evidence), pa.concat_tables(self._sides)
        return _joined(self._history.kind, self._answer, row[order], order, sides, evidence, complete)


def _joined(
    kind: HistoryKind, answer: Answer, row: np.ndarray, pair: np.ndarray, rows: pa.Table, evidence: Evidence,
    complete: np.ndarray,
) -> Answer:
    """Returns the answer with the new side. Pair p joins row[p] of the answer with row pair[p] of `rows`; `row` is
    ascending."""
    n = len(answer)
    if kind in (HistoryKind.SEMI, HistoryKind.ANTI):
        has = np.zeros(n, bool)
        has[row] = True
        keep = np.flatnonzero(has if kind is HistoryKind.SEMI else ~has)
        match = np.full(n, -1, np.int64)
        match[row[::-1]] = pair[::-1]  # the first pair of a row is its evidence
        nothing = pa.table({})
        side = Side(nothing, evidence, match[keep], complete[keep])
        kept = answer.take(keep)
        return Answer(kept.live, kept.evidence, kept.match, (*kept.sides, side))
    if kind.keeps_all:
        missing = np.setdiff1d(np.arange(n), row)
        at = np.concatenate([row, missing])
        which = np.concatenate([pair, np.full(len(missing), -1, np.int64)])
        order = np.argsort(at, kind="stable")
        row, pair = at[order], which[order]
    kept = answer.take(row)
    joined = rows.take(pa.array(pair, mask=pair < 0))
    return Answer(kept.live, kept.evidence, kept.match, (*kept.sides, Side(joined, evidence, pair, complete[row])))


def _newest(history: HistoryPlan) -> bool:
    """True if a live row needs only its newest history row that meets ON, so that older rows need not be read. False
    with PA: a match that begins earlier may end later."""
    return history.plan is None and (history.kind.takes_last or history.kind is HistoryKind.ANTI)


def _parts(history: HistoryPlan, reader: HistoryReader, low_us: int, last_us: int) -> Iterator[tuple[int, int]]:
    """Yields the parts of [low_us, last_us] in the order in which they are read."""
    if _newest(history) and isinstance(reader, HistorySnapshot):
        yield from reader.newest_first(low_us, last_us, NEWEST_ROWS)
    else:
        yield low_us, last_us


def _pairs(
    history: HistoryPlan, factor: FactorPlan, live: pa.Table, live_block: np.ndarray, candidates: Candidates
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pairs (live row, candidate row) of equal blocks that meet ON, in that order. Uses DuckDB."""
    connection = duck.cursor(settings=history.settings)
    left = live.append_column(BLOCK, pa.array(live_block)).append_column(ROW, pa.array(np.arange(live.num_rows)))
    right = candidates.rows.append_column(BLOCK, pa.array(candidates.block))
    right = right.append_column(ROW, pa.array(np.arange(right.num_rows)))
    # ON is typed with ENUMs, which have their own order and are text in Arrow
    register(connection, "__hybrid_live", left, texts_of(output_columns(factor.plan)))
    register(connection, "__hybrid_history", right, texts_of(history_columns(history)))
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


def _in_lanes(condition: Expression | None) -> Lowered | None:
    """Returns HistoryPlan.on_rest lowered to lanes, or None if that is impossible. Leaves: (side, column, True if
    floating)."""

    def leaf(expression: Expression) -> Leaf | None:
        match expression:
            case Column(name, type):
                lane = storable(type)
                if lane is None:
                    raise NoLane(f"column {name}")
                return Leaf((*name.split(".", 1), lane.floating), lane)
        return None

    try:
        return None if condition is None else lower(condition, leaf)
    except NoLane:
        return None


def _met(
    rest: Lowered, answer: pa.Table, live: np.ndarray, block: np.ndarray, candidates: Candidates
) -> tuple[np.ndarray, np.ndarray] | None:
    """Returns the pairs as _pairs does, without DuckDB, which takes milliseconds for a few rows. Needs all equalities
    of ON as keys. None if DuckDB is needed: on overflow, and for more than PAIRS_MAX pairs, which DuckDB streams."""
    start, stop = (np.searchsorted(candidates.block, block, side) for side in ("left", "right"))
    if int((stop - start).sum()) > PAIRS_MAX:
        return None
    i, j = _all_pairs(block, candidates)

    def read(leaf: tuple[str, str, bool]) -> Values:
        side, name, floating = leaf
        table, at = (answer, live[i]) if side == "live" else (candidates.rows, j)
        values, valid = lanes(table.column(name).combine_chunks(), floating)
        return values[at], None if valid is None else valid[at]

    try:
        held = truth(run_lanes(rest, len(i), read))
    except Overflow:
        return None
    return i[held], j[held]


def _all_pairs(live_block: np.ndarray, candidates: Candidates) -> tuple[np.ndarray, np.ndarray]:
    """Returns all pairs of equal blocks, for an ON of keys only, by which candidates were chosen."""
    start = np.searchsorted(candidates.block, live_block, "left")
    lengths = np.searchsorted(candidates.block, live_block, "right") - start
    i = np.repeat(np.arange(len(live_block)), lengths)
    return i, np.arange(len(i)) + np.repeat(start - np.cumsum(lengths) + lengths, lengths)


def _kept(kind: HistoryKind, i: np.ndarray, j: np.ndarray, candidates: Candidates) -> tuple[np.ndarray, np.ndarray]:
    """Returns the pairs that the kind of the join keeps: of those that read the last match of each live row (see
    HistoryKind.takes_last) its rows, of other kinds all."""
    if not kind.takes_last or not len(i):
        return i, j
    match = candidates.match[j]
    ends = np.append(np.flatnonzero(np.diff(i)), len(i) - 1)
    latest = np.repeat(match[ends], np.diff(ends, prepend=-1))
    keep = match == latest
    return i[keep], j[keep]

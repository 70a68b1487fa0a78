"""Live matches against history: PA detected in the range of each PL match, joined by ON, by the kind of the join."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import duckdb
import numpy as np
import pyarrow as pa

from archive.reader import HistoryReader, RangeRequest
from archive.snapshot import GAP_ROWS, HistorySnapshot
from hybrid.join.candidates import BLOCK, Candidates, Ranges, blocks_of, candidates_in, keys_of, read_together
from hybrid.join.history_cache import HistoryCache
from hybrid.join.spark_ranges import LargeRanges
from hybrid.rows import duck
from hybrid.rows.answer import ROW, Answer, Side, side_schema
from hybrid.rows.evidence import Evidence, concat
from hybrid.rows.session import enums_of, register
from matching.batch import Matcher
from matching.features import Overflow, Values, run_lanes, storable, truth
from matching.program.lanes import Leaf, Lowered, NoLane, lower
from matching.store import lanes
from query.language.ast import HistoryKind
from query.plan.bind import history_columns
from query.plan.expression import Column, Expression, quote
from query.plan.output import output_columns
from query.plan.plan import FactorPlan, HistoryPlan

#: Pairs of a match and what may join it that are held at a time.
PAIRS_MAX = 1 << 22
#: About how many events are looked at first where the newest row is asked for.
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
    """Joins one history to every row of the answer of a factor; and how many reads that took, searches by Spark, and
    searches in its place where it failed.

    ranges: of each row. complete: bool (n,), carried into the output. requests: the rows cut into groups; what the
    ranges of a group share is read once, and each group is read by itself. matcher: gives PA's matcher, made for
    `numbered(plan)`, with empty state; None for plain rows. cache: what answers the rows that are `known`, whose ranges
    nothing more can come into. spark: what searches in the ranges of the rows that are `large`, one by one; the reader
    then is a snapshot of files alone, and no row has a key. Rows come out in the order of the answer; the joined
    matches of one row in the order of their last event, then their first.
    """
    found_row: list[np.ndarray] = [np.empty(0, np.int64)]
    found_rows: list[pa.Table] = [side_schema(history).empty_table()]
    found_evidence: list[Evidence] = []
    keys, codes = keys_of(history, answer.live)
    columns = None if history.plan is None else {*history.plan.columns, *keys.columns}
    low_us, last_us = ranges.low_us, ranges.last_us
    able = codes >= 0  # the others can join nothing
    reads = searches = failures = 0
    pinned = len(keys.columns) == len(history.equalities)
    rest = _in_lanes(history.on_rest) if pinned else None

    def join(live: np.ndarray, block: np.ndarray, candidates: Candidates) -> None:
        """Joins rows of the answer to the candidates of the block of each."""
        if not candidates.rows.num_rows:
            return
        pairs = None
        if pinned and not history.on_more:
            pairs = _all_pairs(block, candidates)
        elif rest is not None:
            pairs = _met(rest, answer.live, live, block, candidates)
        if pairs is None:
            pairs = _pairs(history, factor, answer.live.take(pa.array(live)), block, candidates)
        i, j = _kept(history.kind, *pairs, candidates)
        found_row.append(live[i])
        found_rows.append(candidates.rows.take(pa.array(j)))
        found_evidence.append(candidates.evidence.take(candidates.match[j]))

    if spark is not None and large is not None and large.any():
        assert history.plan is not None
        assert isinstance(reader, HistorySnapshot)
        far = np.flatnonzero(large)
        able = able & ~large
        spans, of = np.unique(np.stack([low_us[far], last_us[far]], axis=1), axis=0, return_inverse=True)
        for number, (low, last) in enumerate(spans.tolist()):
            rows = far[of.reshape(-1) == number]
            among, by_spark = spark.candidates(history.plan, reader, low, last, late)
            searches, failures = searches + by_spark, failures + (not by_spark)
            join(rows, np.zeros(len(rows), np.int64), among)
    for request in requests:
        asking = request[able[request]]
        if cache is not None and known is not None:
            before, left = cache.reads, [asking[~known[asking]]]
            for rows, candidates in cache.candidates(keys, codes, ranges, asking[known[asking]], reader, late):
                if candidates is None:
                    left.append(rows)
                else:
                    join(rows, np.arange(len(rows)), candidates)
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
                served, before = rows, len(found_row)
                for chunk in blocks_of(batch, keys, codes[rows], first, until).chunks():
                    found = candidates_in(history.plan, batch, chunk, matcher)
                    join(served[chunk.member], chunk.member_block, found)
                if _newest(history) and len(found_row) > before:
                    rows = np.setdiff1d(rows, np.concatenate(found_row[before:]), assume_unique=True)
                    if not len(rows):
                        break
    row = np.concatenate(found_row)
    order = np.argsort(row, kind="stable")
    row = row[order]
    evidence = concat(found_evidence)
    side_rows = pa.concat_tables(found_rows)
    return _joined(history.kind, answer, row, order, side_rows, evidence, complete), reads, searches, failures


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


def _newest(history: HistoryPlan) -> bool:
    """Whether the newest row of history is all that a live row asks for: what lies before one that meets ON is not
    read. A match of PA is no such thing: one that began earlier may end later."""
    return history.plan is None and history.kind in (HistoryKind.SEMI, HistoryKind.ANTI, HistoryKind.NEAREST)


def _parts(history: HistoryPlan, reader: HistoryReader, low_us: int, last_us: int) -> Iterator[tuple[int, int]]:
    """[low_us, last_us] in the parts in which it is read, one after the other."""
    if _newest(history) and isinstance(reader, HistorySnapshot):
        yield from reader.newest_first(low_us, last_us, NEWEST_ROWS)
    else:
        yield low_us, last_us


def _pairs(
    history: HistoryPlan, factor: FactorPlan, live: pa.Table, live_block: np.ndarray, candidates: Candidates
) -> tuple[np.ndarray, np.ndarray]:
    """(live row, candidate row) numbers of one block each that meet ON, in that order."""
    connection = duck.cursor(settings=history.settings)
    left = live.append_column(BLOCK, pa.array(live_block)).append_column(ROW, pa.array(np.arange(live.num_rows)))
    right = candidates.rows.append_column(BLOCK, pa.array(candidates.block))
    right = right.append_column(ROW, pa.array(np.arange(right.num_rows)))
    # as ON is typed: an ENUM has its own order, and is text in Arrow
    register(connection, "__hybrid_live", left, enums_of(output_columns(factor.plan)))
    register(connection, "__hybrid_history", right, enums_of(history_columns(history)))
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
    """HistoryPlan.on_rest in lanes, or None where it has none. Its leaves: side, column, whether it is floating."""

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
    """The same as _pairs where keys pin the rest of ON, without DuckDB, which takes milliseconds for a few rows. None
    where it has to be asked: for what may overflow, and for very many pairs, of which it holds some at a time."""
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
    """The same where ON asks for keys alone, by which candidates were chosen: all of one block."""
    start = np.searchsorted(candidates.block, live_block, "left")
    lengths = np.searchsorted(candidates.block, live_block, "right") - start
    i = np.repeat(np.arange(len(live_block)), lengths)
    return i, np.arange(len(i)) + np.repeat(start - np.cumsum(lengths) + lengths, lengths)


def _kept(kind: HistoryKind, i: np.ndarray, j: np.ndarray, candidates: Candidates) -> tuple[np.ndarray, np.ndarray]:
    """The pairs that the kind of the join keeps of those that meet ON: NEAREST (and the witness of SEMI) the rows of
    the last match of each live row, the others all."""
    if kind not in (HistoryKind.NEAREST, HistoryKind.SEMI) or not len(i):
        return i, j
    match = candidates.match[j]
    ends = np.append(np.flatnonzero(np.diff(i)), len(i) - 1)
    latest = np.repeat(match[ends], np.diff(ends, prepend=-1))
    keep = match == latest
    return i[keep], j[keep]

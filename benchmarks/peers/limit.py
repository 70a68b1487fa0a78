"""The practical limit: each query written by hand in numba, one pass in time order, from Arrow to Arrow.

Where a query keeps starts, those of a partition lie side by side in the order of time: the rows of each partition that
can start a match are counted beforehand. What WITHIN has ended is at the front, so that a partition needs no more than
the numbers of its first and last start.
"""

from __future__ import annotations

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.peers.questions import Drop, Funnel, Path
from simulator.scenario import MINUTE_US, SECOND_US


def coded(column: pa.ChunkedArray) -> tuple[np.ndarray, pa.Array]:
    """int32 codes of the rows, and the values they stand for."""
    whole = column.combine_chunks()
    whole = (whole if isinstance(whole, pa.Array) else whole.chunk(0)).dictionary_encode()
    return whole.indices.to_numpy(), whole.dictionary


def micros(column: pa.ChunkedArray) -> np.ndarray:
    return column.combine_chunks().cast(pa.int64()).to_numpy()


def times(us: np.ndarray) -> pa.Array:
    return pa.array(us).view(pa.timestamp("us"))


def roles(column: pa.ChunkedArray, words: tuple[str, ...]) -> np.ndarray:
    """For each row the place of its word among `words`, -1 if it is another one. int8 (n,)."""
    code, values = coded(column)
    place = pc.fill_null(pc.index_in(values, pa.array(words)), -1).to_numpy().astype(np.int8)
    return place[code]


@numba.njit(cache=True, nogil=True)
def slots(code, wanted, partitions):
    """Where the places of each partition begin, one for each of its wanted rows. int64 (partitions + 1,)."""
    begin = np.zeros(partitions + 1, np.int64)
    for i in range(code.shape[0]):
        begin[code[i] + 1] += wanted[i]
    for p in range(partitions):
        begin[p + 1] += begin[p]
    return begin


@numba.njit(cache=True, nogil=True)
def grown(column, size):
    """The same values with room for `size` at least."""
    larger = np.empty(max(size, 2 * column.shape[0]), column.dtype)
    larger[: column.shape[0]] = column
    return larger


# ---- Q1

WAITING, RISING, TAKEN = range(3)


@numba.njit(cache=True, nogil=True)
def _rises(code, ts, price, symbols, out_code, out_start, out_top, out_low):
    """TAKEN: the row before is the C of a match, so it is no A. Returns the number of matches."""
    phase = np.zeros(symbols, np.int8)
    last_ts, start = np.zeros(symbols, np.int64), np.zeros(symbols, np.int64)
    last_price = np.full(symbols, np.nan)
    found = 0
    for i in range(code.shape[0]):
        s = code[i]
        p = price[i]
        before = last_price[s]
        if phase[s] == RISING:
            if p < before:
                out_code[found] = s
                out_start[found] = start[s]
                out_top[found] = before
                out_low[found] = p
                found += 1
                phase[s] = TAKEN
            elif not p > before:
                phase[s] = WAITING
        elif phase[s] == TAKEN:
            phase[s] = WAITING
        elif p > before:
            phase[s] = RISING
            start[s] = last_ts[s]
        last_ts[s] = ts[i]
        last_price[s] = p
    return found


def rise(ticks: pa.Table) -> pa.Table:
    """Q1."""
    code, symbols = coded(ticks["symbol"])
    size = len(ticks) // 3 + 1
    out_code, out_start = np.empty(size, np.int32), np.empty(size, np.int64)
    out_top, out_low = np.empty(size), np.empty(size)
    price = ticks["price"].to_numpy()
    n = _rises(code, micros(ticks["ts"]), price, len(symbols), out_code, out_start, out_top, out_low)
    return pa.table({
        "symbol": symbols.take(pa.array(out_code[:n])), "start_ts": times(out_start[:n]), "top": out_top[:n],
        "low": out_low[:n],
    })  # fmt: skip


# ---- Q2


@numba.njit(cache=True, nogil=True)
def _drops(code, ts, price, volume, begin, floor, percent, within):
    """A start has one run, which takes an event or lets it pass; a drop ends a copy of it. Returns the columns of the
    answer. price and volume have one type, in which their sums and products fit."""
    head, tail = begin[:-1].copy(), begin[:-1].copy()
    start = np.empty(begin[-1], np.int64)
    total = np.empty(begin[-1], price.dtype)
    count = np.empty(begin[-1], price.dtype)
    last = np.empty(begin[-1], price.dtype)
    size = 1024
    out_code, out_start = np.empty(size, np.int32), np.empty(size, np.int64)
    out_taken, out_price = np.empty(size, np.int64), np.empty(size, np.int64)
    found = 0
    hundred = price.dtype.type(100)
    for i in range(code.shape[0]):
        s = code[i]
        t = ts[i]
        p = price[i]
        v = volume[i]
        first, end = head[s], tail[s]
        while first < end and t - start[first] > within:
            first += 1
        head[s] = first
        totals, counts, lasts = total[first:end], count[first:end], last[first:end]
        scaled = hundred * v
        drops = 0
        for r in range(lasts.shape[0]):  # without a branch, so that it runs on vectors
            drops += scaled < percent * lasts[r]
        if drops:
            if found + drops > size:
                out_code, out_start = grown(out_code, found + drops), grown(out_start, found + drops)
                out_taken, out_price = grown(out_taken, found + drops), grown(out_price, found + drops)
                size = out_code.shape[0]
            for r in range(lasts.shape[0]):
                if scaled < percent * lasts[r]:
                    out_code[found] = s
                    out_start[found] = start[first + r]
                    out_taken[found] = counts[r]
                    out_price[found] = p
                    found += 1
        for r in range(lasts.shape[0]):
            take = p * counts[r] > totals[r]
            totals[r] += p if take else 0
            counts[r] += take
            lasts[r] = v if take else lasts[r]
        if v > floor:
            start[end] = t
            total[end] = p
            count[end] = 1
            last[end] = v
            tail[s] = end + 1
    return out_code[:found], out_start[:found], out_taken[:found], out_price[:found]


def drop(stock: pa.Table, constants: Drop) -> pa.Table:
    """Q2. Prices and volumes are not negative."""
    code, symbols = coded(stock["symbol"])
    price, volume = stock["price"].to_numpy(), stock["volume"].to_numpy()
    begin = slots(code, volume > constants.volume, len(symbols))
    # A run takes an event of its symbol once at most, so that its sum is below this. A narrow type makes wide vectors.
    most = 0
    if len(stock):
        most = max(int(price.max()) * int(np.bincount(code).max()), int(volume.max()) * 100)
    kind = np.dtype(np.int32 if most < 2**31 else np.int64)
    out_code, start, taken, last_price = _drops(
        code, micros(stock["ts"]), price.astype(kind), volume.astype(kind), begin, kind.type(constants.volume),
        kind.type(constants.percent), constants.seconds * SECOND_US,
    )  # fmt: skip
    return pa.table({
        "symbol": symbols.take(pa.array(out_code)), "start_ts": times(start), "taken": taken, "last_price": last_price,
    })  # fmt: skip


# ---- Q3


@numba.njit(cache=True, nogil=True)
def _paths(code, ts, role, begin, within, out_code, out_times):
    """Runs that wait for the same event go on together, and those further on started earlier: of a tag's starts
    [head, third) wait for D, [third, second) for C, [second, tail) for B. out_times: int64 (4, starts). Returns the
    number of matches."""
    head, tail = begin[:-1].copy(), begin[:-1].copy()
    second, third = begin[:-1].copy(), begin[:-1].copy()
    seen = np.empty((3, begin[-1]), np.int64)
    found = 0
    for i in range(code.shape[0]):
        r = role[i]
        if r < 0:
            continue
        s = code[i]
        t = ts[i]
        if r == 0:
            seen[0, tail[s]] = t
            tail[s] += 1
        elif r == 1:
            seen[1, second[s] : tail[s]] = t
            second[s] = tail[s]
        elif r == 2:
            seen[2, third[s] : second[s]] = t
            third[s] = second[s]
        else:
            for at in range(head[s], third[s]):
                if t - seen[0, at] <= within:
                    out_code[found] = s
                    out_times[0, found] = seen[0, at]
                    out_times[1, found] = seen[1, at]
                    out_times[2, found] = seen[2, at]
                    out_times[3, found] = t
                    found += 1
            head[s] = third[s]
    return found


def path(readings: pa.Table, constants: Path) -> pa.Table:
    """Q3."""
    code, tags = coded(readings["tag"])
    role = roles(readings["reader"], tuple(constants.readers))
    begin = slots(code, role == 0, len(tags))
    out_code, out_times = np.empty(begin[-1], np.int32), np.empty((4, begin[-1]), np.int64)
    within = constants.minutes * MINUTE_US
    n = _paths(code, micros(readings["ts"]), role, begin, within, out_code, out_times)
    columns = {f"{v}_ts": times(us[:n]) for v, us in zip("abcd", out_times)}
    return pa.table({"tag": tags.take(pa.array(out_code[:n]))} | columns)


# ---- Q4


@numba.njit(cache=True, nogil=True)
def _funnels(code, ts, role, begin_a, begin_b, within):
    """Before each B stand the first so many A's of its partition, and of these those not yet ended by WITHIN count.
    Returns the columns of the answer."""
    head_a, tail_a = begin_a[:-1].copy(), begin_a[:-1].copy()
    head_b, tail_b = begin_b[:-1].copy(), begin_b[:-1].copy()
    a_ts, b_ts = np.empty(begin_a[-1], np.int64), np.empty(begin_b[-1], np.int64)
    before_b = np.empty(begin_b[-1], np.int64)
    size = max(1024, code.shape[0] // 4)
    out_code, out_a = np.empty(size, np.int32), np.empty(size, np.int64)
    out_b, out_c = np.empty(size, np.int64), np.empty(size, np.int64)
    found = 0
    for i in range(code.shape[0]):
        r = role[i]
        if r < 0:
            continue
        s = code[i]
        t = ts[i]
        if r == 0:
            a_ts[tail_a[s]] = t
            tail_a[s] += 1
        elif r == 1:
            b_ts[tail_b[s]] = t
            before_b[tail_b[s]] = tail_a[s]
            tail_b[s] += 1
        else:
            first, b = head_a[s], head_b[s]
            while first < tail_a[s] and t - a_ts[first] > within:
                first += 1
            while b < tail_b[s] and before_b[b] <= first:
                b += 1
            head_a[s], head_b[s] = first, b
            most = found + (tail_a[s] - first) * (tail_b[s] - b)
            if most > size:
                out_code, out_a = grown(out_code, most), grown(out_a, most)
                out_b, out_c = grown(out_b, most), grown(out_c, most)
                size = out_code.shape[0]
            for at in range(b, tail_b[s]):
                for a in range(first, before_b[at]):
                    out_code[found] = s
                    out_a[found] = a_ts[a]
                    out_b[found] = b_ts[at]
                    out_c[found] = t
                    found += 1
    return out_code[:found], out_a[:found], out_b[:found], out_c[:found]


@numba.njit(cache=True, nogil=True)
def _funnel_counts(code, ts, role, begin_a, begin_b, within):
    """As _funnels, with sums instead of loops: the number of matches of each partition."""
    head_a, tail_a = begin_a[:-1].copy(), begin_a[:-1].copy()
    head_b, tail_b = begin_b[:-1].copy(), begin_b[:-1].copy()
    a_ts, before_b = np.empty(begin_a[-1], np.int64), np.empty(begin_b[-1], np.int64)
    sums = np.zeros(begin_a.shape[0] - 1, np.int64)  # of before_b of the B's from head_b on
    found = np.zeros(begin_a.shape[0] - 1, np.int64)
    for i in range(code.shape[0]):
        r = role[i]
        if r < 0:
            continue
        s = code[i]
        if r == 0:
            a_ts[tail_a[s]] = ts[i]
            tail_a[s] += 1
        elif r == 1:
            before_b[tail_b[s]] = tail_a[s]
            sums[s] += tail_a[s]
            tail_b[s] += 1
        else:
            first, b = head_a[s], head_b[s]
            while first < tail_a[s] and ts[i] - a_ts[first] > within:
                first += 1
            while b < tail_b[s] and before_b[b] <= first:
                sums[s] -= before_b[b]
                b += 1
            head_a[s], head_b[s] = first, b
            found[s] += sums[s] - first * (tail_b[s] - b)
    return found


def funnel(clicks: pa.Table, constants: Funnel) -> pa.Table:
    """Q4, counted or not."""
    code, visitors = coded(clicks["visitor"])
    role = roles(clicks["action"], constants.actions)
    begin_a, begin_b = slots(code, role == 0, len(visitors)), slots(code, role == 1, len(visitors))
    ts, within = micros(clicks["ts"]), constants.minutes * MINUTE_US
    if constants.counted:
        found = _funnel_counts(code, ts, role, begin_a, begin_b, within)
        there = np.flatnonzero(found)
        return pa.table({"visitor": visitors.take(pa.array(there)), "found": found[there]})
    out_code, a, b, c = _funnels(code, ts, role, begin_a, begin_b, within)
    return pa.table({
        "visitor": visitors.take(pa.array(out_code)), "a_ts": times(a), "b_ts": times(b), "c_ts": times(c),
    })  # fmt: skip

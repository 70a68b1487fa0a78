"""Row numbers by whole numbers in no order: a radix sort, much faster than comparing; by ids; and by ranges."""

from __future__ import annotations

import numpy as np

from matching.kernels.jit import kernel

#: Bits of the most significant digit: as many places are written to at once as the nearest cache has lines for.
DIGIT = 11
#: Bits of a digit within the rows of one most significant digit: few and many of them.
DIGIT_FEW, DIGIT_MANY, MANY = 8, 11, 1 << 13
#: Rows whose addresses are read before any of them is written to. A processor lets no read pass a write whose address
#: it does not know, so that a loop which reads an address far away and then writes there waits for memory at each row;
#: in two loops it waits for many rows at once: 20 million rows of a million numbers take a quarter of the time.
BLOCK = 1 << 12


def radix_argsort(values: np.ndarray) -> np.ndarray:
    """The row numbers that sort int64 values (n,), n > 0, equal ones in their order; int32 (n,), int64 of more than
    2**31. Cost: a pass over all rows by the most significant digit, then passes within the rows of each, which fit
    into a cache unless most values lie near each other. Memory: 12 bytes a row, and twice that of the largest digit."""
    n, low, high = len(values), int(values.min()), int(values.max())
    shift = max(0, (high - low).bit_length() - DIGIT)
    keys, order, ends = np.empty(n, np.int64), row_numbers(n), np.zeros(1 << DIGIT, np.int64)
    most = _by_first_digit(values, low, shift, keys, order, ends)
    if shift and most > 1:
        counts = np.empty(1 << DIGIT_MANY, np.int64)
        _by_further_digits(shift, keys, order, ends, np.empty(most, np.int64), np.empty(most, order.dtype), counts)
    return order


def row_numbers(n: int) -> np.ndarray:
    """Room for the numbers of n rows, in 32 bits if they fit."""
    return np.empty(n, np.int32 if n < 1 << 31 else np.int64)


@kernel
def _by_first_digit(values, low, shift, keys, order, ends):
    """Puts the rows in the order of their first digit, and what is left of their values beside them. ends: zeros, gets
    the end of each digit. Returns the rows of the largest digit. Differences are unsigned: they need 64 bits."""
    base, by = np.uint64(low), np.uint64(shift)
    rest = (np.uint64(1) << by) - np.uint64(1)
    for i in range(len(values)):
        ends[np.int64((np.uint64(values[i]) - base) >> by)] += 1
    most, total = 0, 0
    for d in range(len(ends)):
        count = ends[d]
        most = max(most, count)
        ends[d] = total
        total += count
    for i in range(len(values)):
        key = np.uint64(values[i]) - base
        d = np.int64(key >> by)
        at = ends[d]
        ends[d] = at + 1
        keys[at] = np.int64(key & rest)
        order[at] = i
    return most


@kernel
def _by_further_digits(bits, keys, order, ends, other_keys, other_order, counts):
    """Sorts the rows of each first digit by what is left of their values, least digits first. ends: of each; other_*
    and counts: room."""
    begin = 0
    for d in range(len(ends)):
        n = ends[d] - begin
        if n > 1:
            _sorted(bits, keys[begin : begin + n], order[begin : begin + n], other_keys, other_order, counts)
        begin = ends[d]


@kernel
def _sorted(bits, keys, order, other_keys, other_order, counts):
    n = len(keys)
    digit = DIGIT_FEW if n < MANY else DIGIT_MANY
    size = 1 << digit
    source, source_order, target, target_order = keys, order, other_keys, other_order
    passes = -(-bits // digit)
    for p in range(passes):
        shift = p * digit
        for d in range(size):
            counts[d] = 0
        for i in range(n):
            counts[(source[i] >> shift) & (size - 1)] += 1
        total = 0
        for d in range(size):
            count = counts[d]
            counts[d] = total
            total += count
        for i in range(n):
            key = source[i]
            at = counts[(key >> shift) & (size - 1)]
            counts[(key >> shift) & (size - 1)] = at + 1
            target[at] = key
            target_order[at] = source_order[i]
        source, target = target, source
        source_order, target_order = target_order, source_order
    if passes % 2:
        for i in range(n):
            order[i] = source_order[i]


def by_number(numbers: np.ndarray, order: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Puts rows together by whole numbers from 0 on (n,), those first that come first in the order, and each in it.
    Returns (places, rows, begins): the places in the order, the row numbers, int32 or int64 (n,), both the same array
    without an order, and the first one of each number. numbers: of the rows, in order of first appearance if `order` is
    None; else order: the rows in that order."""
    kind = np.int32 if len(numbers) < 1 << 31 else np.int64
    seen = np.zeros((int(numbers.max(initial=-1)) + 1, 2), kind)  # side by side: a row of many misses the cache once
    if order is None:
        _count(numbers, seen)
        begins = np.cumsum(seen[:, 1]) - seen[:, 1]
        places = row_numbers(len(numbers))
        _place(numbers, begins.astype(kind), places, np.empty(BLOCK, kind))
        return places, places, begins
    there, block = np.empty(len(order), kind), np.empty(BLOCK, kind)
    _count_in_order(numbers, order, seen, there, block)
    counts = np.empty(len(seen), np.int64)
    counts[seen[:, 0] - 1] = seen[:, 1]
    begins = np.cumsum(counts) - counts
    both = np.empty((len(order), 2), kind)
    _place_both(there, order, begins.astype(kind), both, block)
    return both[:, 0], both[:, 1], begins


@kernel
def _count(numbers, seen):
    for number in numbers:
        seen[number, 1] += 1


@kernel
def _count_in_order(numbers, order, seen, there, block):
    """Writes the numbers in the order, new ones by their first appearance there, and counts them. seen: zeros, for each
    number; gets the new one, plus 1, and the count. block: room for BLOCK of them."""
    count = 0
    for begin in range(0, len(order), BLOCK):
        n = min(BLOCK, len(order) - begin)
        for i in range(n):
            block[i] = numbers[order[begin + i]]
        for i in range(n):
            number = block[i]
            if seen[number, 0] == 0:
                count += 1
                seen[number, 0] = count
            seen[number, 1] += 1
            there[begin + i] = seen[number, 0] - 1


@kernel
def _place(numbers, ends, places, block):
    for begin in range(0, len(numbers), BLOCK):
        n = min(BLOCK, len(numbers) - begin)
        _next_places(numbers, begin, n, ends, block)
        for i in range(n):
            places[block[i]] = begin + i


@kernel
def _place_both(numbers, order, ends, both, block):
    for begin in range(0, len(numbers), BLOCK):
        n = min(BLOCK, len(numbers) - begin)
        _next_places(numbers, begin, n, ends, block)
        for i in range(n):
            both[block[i], 0] = begin + i
            both[block[i], 1] = order[begin + i]


@kernel
def _next_places(numbers, begin, n, ends, block):
    """Writes where the numbers [begin, begin + n) go, each behind those of its own before it."""
    for i in range(n):
        number = numbers[begin + i]
        block[i] = ends[number]
        ends[number] = block[i] + 1


def by_range(rows: np.ndarray, begins: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns row numbers (n,) range by range, each less the begin of its range, int64 (n,); their places there, int32
    or int64 (n,); and the end of each range. begins: of the ranges, ascending, and the end of the last one."""
    # the first range that a row of a stretch may be in: few are looked at for each row
    shift = max(0, int(begins[-1]).bit_length() - 12)
    stretches = np.arange((int(begins[-1]) >> shift) + 1) << shift
    first = np.searchsorted(begins, stretches, "right") - 1
    within, place, ends = np.empty(len(rows), np.int64), row_numbers(len(rows)), np.zeros(len(begins) - 1, np.int64)
    _by_range(rows, begins, first, shift, within, place, ends)
    return within, place, ends


@kernel
def _by_range(rows, begins, first, shift, within, place, ends):
    for i in range(len(rows)):
        r = first[rows[i] >> shift]
        while rows[i] >= begins[r + 1]:
            r += 1
        place[i] = r
        ends[r] += 1
    total = 0
    for r in range(len(ends)):
        count = ends[r]
        ends[r] = total
        total += count
    for i in range(len(rows)):
        r = place[i]
        at = ends[r]
        ends[r] = at + 1
        within[at] = rows[i] - begins[r]
        place[i] = at

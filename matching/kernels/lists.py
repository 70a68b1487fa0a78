"""Lists of rows, each with a number: equal lists have one number, by which what DuckDB has computed is looked up.

A list is the list before its last row, and this row. List 0 is empty; its line has how many lists there are, and which
time they are counted. When there are too many all are forgotten, and numbers begin again.
"""

from __future__ import annotations

import numpy as np

from matching.kernels.jit import called, inlined, kernel

#: Slots of a list's line: the list before its last row, and the position of this row; -1 once it is gone.
BEFORE, ROW = range(2)
#: Slots of line 0.
COUNT, TIME = range(2)


@inlined
def _place(table, before, row):
    h = (np.uint64(before) * np.uint64(0x9E3779B97F4A7C15)) ^ np.uint64(row)
    h = (h ^ (h >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(29)
    return np.int64(h & np.uint64(len(table) - 1))


@called
def with_row(lines, table, before, row):
    """Returns the list with one more row; -1: there is no room for it. table: numbers by hash, 0 none, at least twice
    as many as lines."""
    place = _place(table, before, row)
    while table[place] != 0:
        found = table[place]
        if lines[found, BEFORE] == before and lines[found, ROW] == row:
            return found
        place = (place + 1) & (len(table) - 1)
    count = lines[0, COUNT]
    if count >= len(lines):
        return np.int64(-1)
    lines[0, COUNT] = count + 1
    lines[count, BEFORE], lines[count, ROW] = before, row
    table[place] = count
    return count


@called
def forget(lines, table, at_rows, asked):
    """Forgets all lists, and what is known of them. asked: AskedArrays; None: nothing is asked of any."""
    lines[0, COUNT] = 1
    lines[0, TIME] += 1
    table[:] = 0
    at_rows[:] = -1
    if asked is not None:
        asked.asked_known[:] = 0


@kernel
def renumber(lines, table, moved):
    """Gives the rows of lists other positions; lists with a row that is gone are. moved: by position, -1 gone."""
    table[:] = 0
    for at in range(1, lines[0, COUNT]):
        before, row = lines[at, BEFORE], lines[at, ROW]
        if row >= 0:
            row = moved[row] if row < len(moved) else np.int64(-1)
            if before != 0 and lines[before, ROW] < 0:
                row = np.int64(-1)
            lines[at, ROW] = row
        if row >= 0:
            place = _place(table, before, row)
            while table[place] != 0:
                place = (place + 1) & (len(table) - 1)
            table[place] = at


@kernel
def rows_of(lines, numbers, bounds, rows):
    """Writes the rows of lists, in order. bounds: of each list in `rows`; if `rows` is empty, they are measured."""
    if len(rows) == 0:
        bounds[0] = 0
        for k in range(len(numbers)):
            at, length = numbers[k], 0
            while at != 0:
                length += 1
                at = lines[at, BEFORE]
            bounds[k + 1] = bounds[k] + length
        return
    for k in range(len(numbers)):
        at = numbers[k]
        for place in range(bounds[k + 1] - 1, bounds[k] - 1, -1):
            rows[place] = lines[at, ROW]
            at = lines[at, BEFORE]


@kernel
def foresee(
    lines, table, base, first, since, upto, here, position, index, joins, asks, includes, length_max, values_max,
    numbers, at,
):  # fmt: skip
    """Finds the lists that are probably asked for soon, where no row lies between two rows of a match. Returns their
    number.

    base: by partition, the list before the last row that asked, -1 none; first: the place of that row, in the order of
    partitions; since: the first place where another list may begin; upto: the places to look at. position, index: of
    the row at a place, in the row store and in the order of events; those from `here` on are foreseen, where several
    runs may ask. joins: whether the
    row may be of the match; asks: whether its condition may ask. includes: a list has the row that asks. numbers, at:
    get the lists and the places of the rows that ask. length_max, values_max: rows of a list, and of all, at most."""
    found, left = 0, values_max
    for p in range(len(base)):
        for start in range(since[p] - 1, upto[p]):
            goes_on = start < since[p]
            begin, number, length = np.int64(start), np.int64(0), 0
            if goes_on:
                if base[p] < 0:
                    continue
                begin, number = first[p], base[p]
                before = number
                while before != 0:
                    length += 1
                    before = lines[before, BEFORE]
            elif not joins[start]:
                continue
            for place in range(begin, upto[p]):
                more = with_row(lines, table, number, position[place]) if joins[place] else np.int64(-1)
                asked = more if includes else number
                if asks[place] and asked > 0 and index[place] >= here:
                    if found == len(numbers) or left < length:
                        return found
                    numbers[found], at[found] = asked, place
                    found += 1
                    left -= length
                if more < 0 or length >= length_max:
                    break
                number = more
                length += 1
    return found

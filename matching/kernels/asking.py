"""Values that only DuckDB computes, of rows that a run brings together: a table of what is known, and a call to Python
for what is not, which fills the table for many runs at once (matching.answers.Answers).

The table has a line for each known combination of values. A line may be in one of PROBES places; where all of these are
taken, one is lost: it is asked again, so memory is bounded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
from llvmlite import binding
from numba import types

from matching.kernels.jit import called, inlined, kernel
from matching.program.lanes import OPERANDS_MAX
from query.stopping import drops

#: What is known of a line: nothing yet, that it is null, that it has a value, or that it cannot be computed.
UNKNOWN, IS_NULL, IS_VALUE, FAILS = 0, 2, 1, -1
PROBES = 16
#: Slots of an answer: its value, the number of its matching.answers.Answers, how many rows came before the block, the
#: row of the block; and the key: which function it is, with a bit for each operand that is not null, and the operands.
VALUE, NUMBER, BEFORE, ROW, KEY = range(5)
#: Why a line is known: it has been asked; and how it was foreseen, if it has not been asked yet (matching.foreseen).
ASKED, OF_WAITING, OF_PAIRS, OF_OTHERS, OF_DISTANCES, OF_LISTS = range(6)
WAYS = 6


def _nobody(number: int) -> int:
    raise AssertionError("a kernel asks, and nobody answers")


_answer: Callable[[int], int] = _nobody


def answer_by(function: Callable[[int], int]) -> None:
    """Sets the function that kernels call for a line that is not known, with the number of its answers; it puts the
    value into the answer, and returns what is known then."""
    global _answer
    _answer = function


def _asked(number: int) -> int:
    return _answer(number)


drops(_asked)
_TYPE = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
_CALLBACK = _TYPE(_asked)
# resolved by name when compiled code is loaded, so that it can be cached
binding.add_symbol("hybrid_ask", ctypes.cast(_CALLBACK, ctypes.c_void_p).value)
_ask = types.ExternalFunction("hybrid_ask", types.int64(types.int64))


@inlined
def place_of(keys, line, width):
    """Returns the first place of a line. keys: int64 (2**n, width)."""
    h = np.uint64(width)
    for c in range(width):
        h = (h ^ np.uint64(line[c])) * np.uint64(0x9E3779B97F4A7C15)
        h ^= h >> np.uint64(29)
    return np.int64(h & np.uint64(len(keys) - 1))


@inlined
def is_line(keys, place, line, width):
    """True if the line is at a place."""
    same = True
    for c in range(width):
        same = same and keys[place, c] == line[c]
    return same


@called
def answer(asked, which, count, top, stack, ok, row):
    """Returns what is known of a function of the `count` values from `top` on. asked: AskedArrays; None: nothing is
    asked, and a kernel is compiled without it."""
    if asked is None:
        return np.int64(FAILS)
    keys, values, known, out = asked.asked_keys, asked.asked_values, asked.asked_known, asked.answer
    ways = asked.asked_way
    line = out[KEY:]
    width = keys.shape[1]
    there = np.int64(0)
    for k in range(width - 1):
        line[1 + k] = 0
    at = np.int64(top)
    for k in range(count):
        if ok[at + k]:
            there |= np.int64(1) << k
            line[1 + k] = stack[at + k]
    line[0] = (which << OPERANDS_MAX) | there
    for c in range(width):
        asked.asked_line[which, row, c] = line[c]
    first = place_of(keys, line, width)
    for probe in range(PROBES):
        place = (first + probe) & (len(keys) - 1)
        if known[place] == UNKNOWN:
            break
        if is_line(keys, place, line, width):
            out[VALUE] = values[place]
            asked.asked_row[place] = out[BEFORE] + row
            if ways[place] != ASKED:
                asked.asked_used[which, ways[place]] += 1
                ways[place] = ASKED
            return np.int64(known[place])
    out[ROW] = row
    known = _ask(out[NUMBER])
    return known if known != UNKNOWN else np.int64(FAILS)  # Python drops a Ctrl-C that comes as the call begins


@inlined
def answered(asked):
    """Returns the value of the last answer."""
    if asked is None:
        return np.int64(0)
    return asked.answer[VALUE]


@kernel
def put_new(lines, rows, ways, keys, known, row, way, now, places):
    """Gives each line that is not known a place, in `places`; -1 for one that is known, or has been put before, or for
    which there is no place. rows: for which row each line is; ways: why; row, way: the same of each known one; now: the
    row that is taken. Of the places of a line that for the earliest row is lost, if it has been taken, else that
    for the last one, if that is later; the first line gets a place whatever is there. The places are taken by
    `put_values` then: a line without a value yet is FAILS - 1."""
    width = keys.shape[1]
    for i in range(len(lines)):
        line = lines[i]
        first = place_of(keys, line, width)
        places[i] = -1
        found, earliest, last = np.int64(-1), np.int64(-1), np.int64(-1)
        for probe in range(PROBES):
            place = (first + probe) & (len(keys) - 1)
            if known[place] == UNKNOWN:
                found = place
                break
            if is_line(keys, place, line, width):
                found = -2
                row[place] = max(row[place], rows[i])
                break
            if known[place] >= FAILS:
                if earliest < 0 or row[place] < row[earliest]:
                    earliest = place
                if last < 0 or row[place] > row[last]:
                    last = place
        if found == -1 and earliest >= 0:
            if row[earliest] < now:
                found = earliest
            elif row[last] > rows[i] or i == 0:
                found = last
        if found >= 0:
            for c in range(width):
                keys[found, c] = line[c]
            known[found] = FAILS - 1
            row[found], way[found] = rows[i], ways[i]
            places[i] = found


@kernel
def put_values(places, now, numbers, values, known):
    """Puts values, and what is known, at places."""
    for i in range(len(places)):
        values[places[i]] = numbers[i]
        known[places[i]] = now[i]

"""Values as dense codes: hash tables in arrays, by linear probing, at most half full.

A code that was freed is handed out again before a new one is made. Hashes mix every bit of a value into every bit of
the place, so that no regular sequence of keys makes long probes.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from matching.kernels.integers import wrapped_product
from matching.kernels.jit import inlined, kernel

#: Odd numbers with bits in no pattern: 2**64 / golden ratio, and those of MurmurHash3, as signed numbers.
FACTOR = -7046029254386353131
MIX_1 = -49064778989728563
MIX_2 = -4265267296055464877
LOW_32 = (1 << 32) - 1


class HashCounters(IntEnum):
    """Slots of the one array of scalars of a table."""

    CODES = 0  # codes made so far, in use or free
    LIVE = 1  # values in the slots
    FREE = 2  # codes in the array `free`
    NULL = 3  # the code of null, -1 none
    BYTES = 4  # bytes of texts kept


C_CODES, C_LIVE, C_FREE = int(HashCounters.CODES), int(HashCounters.LIVE), int(HashCounters.FREE)
C_NULL, C_BYTES = int(HashCounters.NULL), int(HashCounters.BYTES)


def _loader(bits: int) -> Any:
    @intrinsic
    def load(context: Any, data: Any, at: Any) -> Any:
        def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            array = target.make_array(signature.args[0])(target, builder, arguments[0])
            place = cgutils.gep(builder, array.data, arguments[1])
            word = builder.load(builder.bitcast(place, ir.IntType(bits).as_pointer()), align=1)
            return word if bits == 64 else builder.zext(word, ir.IntType(64))

        return types.int64(data, types.intp), build

    return load


#: The 8 or 4 bytes of a uint8 array from an index on as a number; nothing checks that they are there.
word_at = _loader(64)
half_at = _loader(32)


@inlined
def mixed(h):
    """MurmurHash3's finalizer."""
    h = wrapped_product(h ^ ((h >> 33) & 0x7FFFFFFF), MIX_1)
    h = wrapped_product(h ^ ((h >> 33) & 0x7FFFFFFF), MIX_2)
    return h ^ ((h >> 33) & 0x7FFFFFFF)


@inlined
def end_word(data, at, n):
    """The last 8 bytes as a number; of fewer another one, different for different bytes of one length."""
    if n >= 8:
        return word_at(data, at + n - 8)
    if n >= 4:
        return half_at(data, at) | (half_at(data, at + n - 4) << 32)
    if n > 0:
        return np.int64(data[at]) | (np.int64(data[at + (n >> 1)]) << 8) | (np.int64(data[at + n - 1]) << 16)
    return np.int64(0)


@inlined
def begin_word(data, at, n):
    """The first 8 bytes as a number, 0 of fewer."""
    return word_at(data, at) if n >= 8 else np.int64(0)


@inlined
def put_slot(slots, slot, entry, word, front, n):
    slots[slot, 0] = entry
    slots[slot, 1] = word
    slots[slot, 2] = front
    slots[slot, 3] = n


@inlined
def hash_text(data, at, n, word):
    """Returns the hash of the n bytes from `at` on. word: their `end_word`."""
    h = wrapped_product(n, FACTOR)
    for i in range(at, at + n - 8, 8):
        h = wrapped_product(h ^ word_at(data, i), MIX_1)
        h ^= (h >> 32) & LOW_32
    return mixed(h ^ word)


@inlined
def same_beginning(data, at, other, there, n):
    """True if n bytes are equal in both arrays; the last 8 are known to be."""
    differ = np.int64(0)
    for i in range(0, n - 8, 8):
        differ |= word_at(data, at + i) ^ word_at(other, there + i)
    return differ == 0


@inlined
def next_code(free, counters):
    """A code for a new value."""
    if counters[C_FREE]:
        counters[C_FREE] -= 1
        return free[counters[C_FREE]]
    counters[C_CODES] += 1
    return counters[C_CODES] - 1


@inlined
def null_code(free, counters):
    """The code of null."""
    if counters[C_NULL] < 0:
        counters[C_NULL] = next_code(free, counters)
    return counters[C_NULL]


@kernel
def encode_near(at, values, valid, low, known, numbers, free, counters, codes):
    """Does what `encode_numbers` does for values that lie near each other. known: int32, 1 + code (0: none) of the
    value `low` and of each that follows it. Returns the next position; that is not the end where a value is none of
    them, or `numbers` is full."""
    high = low + len(known) - 1
    room = len(numbers)
    for i in range(at, len(values)):
        if len(valid) and not valid[i]:
            if counters[C_NULL] < 0 and counters[C_CODES] >= room:
                return i
            codes[i] = null_code(free, counters)
            continue
        value = values[i]
        if value < low or value > high:
            return i
        code = np.int64(known[value - low])
        if code == 0:
            if counters[C_CODES] >= room:
                return i
            code = next_code(free, counters) + 1
            counters[C_LIVE] += 1
            known[value - low] = code
            numbers[code - 1] = value
        codes[i] = code - 1
    return len(values)


@kernel
def put_near(live, numbers, low, known):
    """Fills an empty `known` of `encode_near`; live: the codes in use, without that of null."""
    for code in live:
        known[numbers[code] - low] = code + 1


@kernel
def encode_numbers(at, values, valid, slots, numbers, free, counters, codes):
    """Writes the codes of values[at:] to codes; valid: bool, empty if none is null.

    slots: int64 (capacity, 2), a power of two, number and 1 + code (0: none); numbers: by code, room for one more than
    half the capacity. Returns the next position; that is not the end where the table is half full."""
    full = len(slots) >> 1
    last = len(slots) - 1
    for i in range(at, len(values)):
        if len(valid) and not valid[i]:
            if counters[C_NULL] < 0 and counters[C_LIVE] >= full:
                return i
            codes[i] = null_code(free, counters)
            continue
        value = values[i]
        slot = mixed(value) & last
        while slots[slot, 1] != 0 and slots[slot, 0] != value:
            slot = (slot + 1) & last
        if slots[slot, 1] == 0:
            if counters[C_LIVE] >= full:
                return i
            code = next_code(free, counters)
            counters[C_LIVE] += 1
            slots[slot, 0] = value
            slots[slot, 1] = code + 1
            numbers[code] = value
        codes[i] = slots[slot, 1] - 1
    return len(values)


@kernel
def number_near(values, low, known, ids):
    """Writes to ids the numbers 0, 1, 2, ... of values, in order of first appearance; returns how many there are. low:
    the least value; known: int32, 0, one for each from there to the largest."""
    count = 0
    for i in range(len(values)):
        at = values[i] - low
        if known[at] == 0:
            count += 1
            known[at] = count
        ids[i] = known[at] - 1
    return count


@kernel
def put_numbers(live, numbers, slots):
    """Fills an empty table; live: the codes in use, without that of null."""
    last = len(slots) - 1
    for code in live:
        slot = mixed(numbers[code]) & last
        while slots[slot, 1] != 0:
            slot = (slot + 1) & last
        slots[slot, 0] = numbers[code]
        slots[slot, 1] = code + 1


@kernel
def encode_texts(at, offsets, data, valid, slots, places, kept, free, counters, codes):
    """Writes the codes of the texts data[offsets[i] : offsets[i + 1]] from `at` on.

    slots: int64 (capacity, 4), a power of two: the upper half of a hash and 1 + code, 0: none, then `end_word`,
    `begin_word` and length, so that a look-up of a short text reads one place; places: int64 (n, 3), by code where its
    text begins in `kept`, its length and its `end_word`, with room for one more than half the capacity.
    Returns the next position; that is not the end where the table is half full or `kept` has no room for the text."""
    full = len(slots) >> 1
    last = len(slots) - 1
    for i in range(at, len(codes)):
        if len(valid) and not valid[i]:
            if counters[C_NULL] < 0 and counters[C_LIVE] >= full:
                return i
            codes[i] = null_code(free, counters)
            continue
        begin = np.int64(offsets[i])
        n = np.int64(offsets[i + 1]) - begin
        word = end_word(data, begin, n)
        front = begin_word(data, begin, n)
        h = hash_text(data, begin, n, word)
        tag = h & ~LOW_32
        slot = h & last
        while True:
            entry = slots[slot, 0]
            if entry == 0:
                if counters[C_LIVE] >= full or counters[C_BYTES] + n > len(kept):
                    return i
                code = next_code(free, counters)
                counters[C_LIVE] += 1
                there = counters[C_BYTES]
                put_slot(slots, slot, tag | (code + 1), word, front, n)
                places[code, 0] = there
                places[code, 1] = n
                places[code, 2] = word
                for j in range(n):
                    kept[there + j] = data[begin + j]
                counters[C_BYTES] += n
                codes[i] = code
                break
            same = slots[slot, 1] == word and slots[slot, 2] == front and slots[slot, 3] == n
            if same and (entry & ~LOW_32) == tag:
                code = (entry & LOW_32) - 1
                if n <= 16 or same_beginning(data, begin, kept, places[code, 0], n):
                    codes[i] = code
                    break
            slot = (slot + 1) & last
    return len(codes)


@kernel
def put_words(places, kept):
    """Sets the words of all places."""
    for code in range(len(places)):
        places[code, 2] = end_word(kept, places[code, 0], places[code, 1])


@kernel
def put_texts(live, places, kept, slots):
    """Fills an empty table; live: the codes in use, without that of null."""
    last = len(slots) - 1
    for code in live:
        there, n, word = places[code, 0], places[code, 1], places[code, 2]
        h = hash_text(kept, there, n, word)
        slot = h & last
        while slots[slot, 0] != 0:
            slot = (slot + 1) & last
        put_slot(slots, slot, (h & ~LOW_32) | (code + 1), word, begin_word(kept, there, n), n)


@kernel
def measure_texts(codes, places, ends):
    """ends[i + 1]: how many bytes the first i + 1 texts have together."""
    total = np.int64(0)
    ends[0] = 0
    for i in range(len(codes)):
        total += places[codes[i], 1]
        ends[i + 1] = total


@kernel
def gather_texts(codes, places, kept, ends, out):
    """The bytes of the texts, one after the other."""
    for i in range(len(codes)):
        there = places[codes[i], 0]
        begin = ends[i]
        n = ends[i + 1] - begin
        if n >= 8:
            for j in range(0, n - 8, 8):
                store_word(out, begin + j, word_at(kept, there + j))
            store_word(out, begin + n - 8, word_at(kept, there + n - 8))
        else:
            for j in range(n):
                out[begin + j] = kept[there + j]


@intrinsic
def store_word(context: Any, data: Any, at: Any, word: Any) -> Any:
    """Writes 8 bytes of a uint8 array; nothing checks that they are there."""

    def build(target: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = target.make_array(signature.args[0])(target, builder, arguments[0])
        place = cgutils.gep(builder, array.data, arguments[1])
        builder.store(arguments[2], builder.bitcast(place, ir.IntType(64).as_pointer()), align=1)
        return target.get_dummy_value()

    return types.void(data, types.intp, types.int64), build


@kernel
def spread_numbers(values, valid, out):
    """Mixes a column of numbers into the hashes of its rows. valid: bool, empty if none is null. O(rows)."""
    for i in range(len(values)):
        null = len(valid) > 0 and not valid[i]
        out[i] = mixed(wrapped_product(out[i], FACTOR) ^ (np.int64(1) if null else values[i]))


@kernel
def spread_texts(offsets, data, valid, out):
    """The same for a column of texts, which lie in `data` between its offsets. O(bytes)."""
    for i in range(len(out)):
        at = np.int64(offsets[i])
        n = np.int64(offsets[i + 1]) - at
        null = len(valid) > 0 and not valid[i]
        h = np.int64(1) if null else hash_text(data, at, n, end_word(data, at, n))
        out[i] = mixed(wrapped_product(out[i], FACTOR) ^ h)

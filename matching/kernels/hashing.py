"""Whole numbers as dense codes: a hash table in two arrays, by linear probing."""

from __future__ import annotations

from matching.kernels.jit import kernel

#: Fibonacci hashing: 2**64 / golden ratio, as a signed number.
FACTOR = -7046029254386353131


@kernel
def encode(at, values, numbers, slots, count, codes, fresh, fresh_count):
    """Writes the code of values[at:] into codes; a new value gets the next one and goes to `fresh`.

    numbers, slots: int64 (capacity,), a power of two; slots: 1 + code of the number there, 0 for none. count: codes
    given so far. Returns (next position, count, fresh_count); that is not the end where the table is half full."""
    capacity = len(slots)
    bits = 0
    while 1 << bits < capacity:
        bits += 1
    for i in range(at, len(values)):
        value = values[i]
        slot = ((value * FACTOR) >> (64 - bits)) & (capacity - 1)
        while slots[slot] != 0 and numbers[slot] != value:
            slot = (slot + 1) & (capacity - 1)
        if slots[slot] == 0:
            if 2 * count >= capacity:
                return i, count, fresh_count
            count += 1
            slots[slot] = count
            numbers[slot] = value
            fresh[fresh_count] = value
            fresh_count += 1
        codes[i] = slots[slot] - 1
    return len(values), count, fresh_count


@kernel
def put_all(values, numbers, slots):
    """Fills an empty table with values whose codes are their positions."""
    capacity = len(slots)
    bits = 0
    while 1 << bits < capacity:
        bits += 1
    for i in range(len(values)):
        slot = ((values[i] * FACTOR) >> (64 - bits)) & (capacity - 1)
        while slots[slot] != 0:
            slot = (slot + 1) & (capacity - 1)
        slots[slot] = i + 1
        numbers[slot] = values[i]

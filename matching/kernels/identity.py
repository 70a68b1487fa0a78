"""The identity of a match, 128 bits in two lanes of 64, as a chain over its events that a run can carry along.

One round of MurmurHash3 (x64, 128 bits; Appleby, public domain) takes an event into the lanes and its end mixes them.
All sums and products are modulo 2**64; lanes are signed here, for numba's sake. docs/identity.md is the definition for
others: nothing of it may change, or all ids do.
"""

from __future__ import annotations

from matching.kernels.hashing import mixed
from matching.kernels.integers import wrapped_product, wrapped_sum
from matching.kernels.jit import inlined, kernel

#: 0x87C37B91114253D5 and 0x4CF5AD432745937F, as signed numbers.
FIRST = 0x87C37B91114253D5 - (1 << 64)
SECOND = 0x4CF5AD432745937F


@inlined
def rotated(x, bits):
    """To the left."""
    return (x << bits) | ((x >> (64 - bits)) & ((1 << bits) - 1))


@inlined
def chained(a, b, name, offset):
    """The lanes with one event more. name: the sum of the words of its variable and of its source."""
    a ^= wrapped_product(rotated(wrapped_product(name, FIRST), 31), SECOND)
    a = wrapped_sum(wrapped_product(wrapped_sum(rotated(a, 27), b), 5), 0x52DCE729)
    b ^= wrapped_product(rotated(wrapped_product(offset, SECOND), 33), FIRST)
    b = wrapped_sum(wrapped_product(wrapped_sum(rotated(b, 31), a), 5), 0x38495AB5)
    return a, b


@inlined
def finished(a, b):
    """The identity of a chain that ends here."""
    a = wrapped_sum(a, b)
    b = wrapped_sum(b, a)
    a, b = mixed(a), mixed(b)
    a = wrapped_sum(a, b)
    return a, wrapped_sum(b, a)


@kernel
def chains(a, b, bounds, variable, source, offset, variables, sources, out):
    """out, int64 (matches, 2): the identities of the chains of events [bounds[i], bounds[i + 1]) that begin with the
    lanes a, b. variables, sources: the words of the names that `variable` and `source` index, the last one of -1."""
    for i in range(len(bounds) - 1):
        x, y = a, b
        for e in range(bounds[i], bounds[i + 1]):
            x, y = chained(x, y, wrapped_sum(variables[variable[e]], sources[source[e]]), offset[e])
        out[i, 0], out[i, 1] = finished(x, y)


@kernel
def chains_of_rows(a, b, bounds, variable, rows, source, offset, variables, sources, out):
    """Returns the result of `chains` for events that are rows of a store. source, offset: by row."""
    for i in range(len(bounds) - 1):
        x, y = a, b
        for e in range(bounds[i], bounds[i + 1]):
            r = rows[e]
            x, y = chained(x, y, wrapped_sum(variables[variable[e]], sources[source[r]]), offset[r])
        out[i, 0], out[i, 1] = finished(x, y)

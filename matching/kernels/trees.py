"""Persistent trees of values: the trees of all runs share what they have in common.

A tree is a crit-bit tree over whole numbers: an inner item divides the values below it by one bit, the highest in which
they differ. So its shape depends on the values alone, and nothing is balanced. `insert` copies the items on its path,
but for those that the same call of its caller made. Item 0 is none: the empty tree; its first slot is the number of
items.
"""

from __future__ import annotations

import numpy as np

from matching.kernels.jit import called, inlined

#: Slots of an item. Of a leaf: the value with another first bit, 0, the position of the first row with it, how many
#: rows have it. Of an inner item: the number of its bit, its items where that is 0 and 1, how many rows are below it.
KEY, LOWER, UPPER, SIZE = range(4)
#: Most items that `insert` makes.
ITEMS_MAX = 68
_SIGN = -(2**63)


@inlined
def made(tree, key, lower, upper, size):
    """Returns a new item."""
    at = tree[0, 0]
    tree[0, 0] = at + 1
    tree[at, KEY], tree[at, LOWER], tree[at, UPPER], tree[at, SIZE] = key, lower, upper, size
    return at


@inlined
def below(tree, at, key):
    """Returns the item below an inner one on the way to a key."""
    return tree[at, UPPER] if (key >> tree[at, KEY]) & 1 == 1 else tree[at, LOWER]


@called
def leaf_of(tree, root, value):
    """Returns the leaf of a value, 0 if it is not in the tree."""
    key = value ^ np.int64(_SIGN)
    at = root
    while tree[at, LOWER] != 0:
        at = below(tree, at, key)
    return at if at != 0 and tree[at, KEY] == key else np.int64(0)


@called
def insert(tree, root, value, row, mark):
    """Returns the tree with one more row of a value, and the value's leaf. mark: items from this one on may change.
    There must be room for ITEMS_MAX items."""
    key = value ^ np.int64(_SIGN)
    if root == 0:
        at = made(tree, key, np.int64(0), row, np.int64(1))
        return at, at
    at = root
    while tree[at, LOWER] != 0:
        at = below(tree, at, key)
    differ = np.uint64(tree[at, KEY] ^ key)
    bit = np.int64(-1)  # the highest one that differs
    while differ != 0:
        differ >>= np.uint64(1)
        bit += 1
    at, above, side, whole, leaf = root, np.int64(0), LOWER, root, np.int64(0)
    while True:
        inner = tree[at, LOWER] != 0
        ends = bit >= 0 and (not inner or tree[at, KEY] < bit)
        if ends:
            leaf = made(tree, key, np.int64(0), row, np.int64(1))
            if (key >> bit) & 1 == 1:
                here = made(tree, bit, at, leaf, tree[at, SIZE] + 1)
            else:
                here = made(tree, bit, leaf, at, tree[at, SIZE] + 1)
        else:
            here = at
            if at < mark:
                here = made(tree, tree[at, KEY], tree[at, LOWER], tree[at, UPPER], tree[at, SIZE])
            tree[here, SIZE] += 1
        if above == 0:
            whole = here
        else:
            tree[above, side] = here
        if ends:
            return whole, leaf
        if not inner:
            return whole, here
        side = UPPER if (key >> tree[here, KEY]) & 1 == 1 else LOWER
        above, at = here, tree[here, side]


@called
def at_place(tree, root, k):
    """Returns the value at place k in order, from 0 on."""
    at = root
    while tree[at, LOWER] != 0:
        less = tree[tree[at, LOWER], SIZE]
        if k < less:
            at = tree[at, LOWER]
        else:
            k -= less
            at = tree[at, UPPER]
    return tree[at, KEY] ^ np.int64(_SIGN)


@called
def at_place_with(tree, root, k, there, value):
    """Returns the value at place k in order of a tree and, if `there`, one more value."""
    if not there:
        return at_place(tree, root, k)
    count = tree[root, SIZE] if root != 0 else np.int64(0)
    if k < count:
        found = at_place(tree, root, k)
        if found <= value:
            return found
    if k > 0:
        found = at_place(tree, root, k - 1)
        if found >= value:
            return found
    return value

"""Values of the rows of a run, found by walking back over its nodes: what no register can hold.

The rows' values are kept by position in the row store, as integers in the order of the values; see
matching.walked. What is walked is in matching.kernels.layout.ProgramArrays.
"""

from __future__ import annotations

import numpy as np

from matching.kernels.jit import called, inlined
from matching.kernels.libm import multiplied_and_added

#: Slots of ProgramArrays.at: the last node of the run that is advanced, and a result.
NODE, RESULT = 0, 1
#: Columns of ProgramArrays.walks: the place of the values among those that are kept, the labels whose rows count, 1 if
#: the row that is tried is left out, 1 if the value between two others is wanted, the fraction of a quantile as
#: numerator and denominator, 1 if the values are doubles.
PLACE, LABELS, BEFORE, BETWEEN, OVER, UNDER, IS_DOUBLE = range(7)


@called
def unseen(previous, variable, row, kept, kept_valid, place, labels, here, node):
    """True if no earlier row of a run has the value of the row `here`, which has one. Cost: up to the last row with
    that value."""
    value = kept[place, here]
    while node >= 0:
        r = row[node]
        if (labels >> variable[node]) & 1 == 1 and kept_valid[place, r] and kept[place, r] == value:
            return False
        node = previous[node]
    return True


@inlined
def bits_of(ordered):
    """Returns the bits of a double that is given by its place in their order."""
    return ordered ^ np.int64(2**63 - 1) if ordered < 0 else ordered


@called
def select(values, count, k):
    """Returns the value at place k in order, and moves it there, smaller ones before and larger ones behind it. Cost:
    linear on average."""
    low, high = np.int64(0), np.int64(count - 1)
    while low < high:
        middle = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] < middle:
                i += 1
            while values[j] > middle:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if k <= j:
            high = j
        elif k >= i:
            low = i
        else:
            break
    return values[k]


@called
def quantile(previous, variable, row, kept, kept_valid, walk, fraction, label, here, values, at, at_f):
    """Puts a quantile of the values of a run and the row `here`, of that label, into `at`; False if there are none.
    walk: a row of ProgramArrays.walks. fraction: as a double."""
    place, labels = walk[PLACE], walk[LABELS]
    count = np.int64(0)
    if walk[BEFORE] == 0 and (labels >> label) & 1 == 1 and kept_valid[place, here]:
        values[0] = kept[place, here]
        count = np.int64(1)
    node = at[NODE]
    while node >= 0:
        r = row[node]
        if (labels >> variable[node]) & 1 == 1 and kept_valid[place, r]:
            values[count] = kept[place, r]
            count += 1
        node = previous[node]
    if count == 0:
        return False
    if walk[BETWEEN] == 0:
        beyond = (count * (walk[UNDER] - walk[OVER])) // walk[UNDER]
        found = select(values, count, max(count - beyond, 1) - 1)
        at[RESULT] = bits_of(found) if walk[IS_DOUBLE] == 1 else found
        return True
    wanted = (count - 1) * fraction
    low = np.int64(np.floor(wanted))
    high = np.int64(np.ceil(wanted))
    first = select(values, count, low)
    second = first
    if high > low:
        second = values[high]
        for k in range(high + 1, count):
            second = min(second, values[k])
    x, y = np.float64(first), np.float64(second)
    if walk[IS_DOUBLE] == 1:
        at[RESULT] = bits_of(first)
        x = at_f[RESULT]
        at[RESULT] = bits_of(second)
        y = at_f[RESULT]
    # as DuckDB is compiled: the sum of two products is rounded once
    at_f[RESULT] = x if low == high else multiplied_and_added(x, 1.0 - (wanted - low), y * (wanted - low))
    return True

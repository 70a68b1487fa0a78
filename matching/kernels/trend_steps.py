"""Counts and sums of trends where an event has one label and one window: the loop that most queries need.

What matching.kernels.trends.step does for such events, over the same nodes and with the same bits, without what they do
not need: there are no negated events and no conditions between two events. What an event of a label adds to the numbers
of its node is a list of steps, made once (matching.trend_steps).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np

from matching.kernels.jit import called, inlined, kernel
from matching.kernels.limbs import (
    add_limb,
    add_product_limb,
    bits_of,
    number_of,
    subtract_product_limb,
    trailing_zeros,
)
from matching.kernels.trend_records import NONE
from matching.kernels.trends import (
    CLOSED_BEFORE,
    DONE,
    FREE,
    LIVE,
    MORE_LIMBS,
    MORE_NODES,
    MORE_OUTPUT,
    NEXT_NODE,
    OPEN,
    OUT,
    PARTITION,
    USED,
    VALUE_BITS,
    WIDTH,
    TrendNode,
    new_node,
    widen,
)

#: The status of a row that has several labels: `matching.kernels.trends.step` takes it.
SEVERAL_LABELS = 6
#: Fewer bits than these must be enough for what an event adds to a number.
BITS_MAX = 63


class Step(IntEnum):
    """Numbers of a step. Places are in the records of a node, one after the other; a count is the first of its
    record."""

    KIND = 0
    FROM = 1  # the place of what is added
    TO = 2  # the place of what grows
    MORE = 3  # 1 to add 1 besides; of a minimum or maximum, 1 for a maximum
    VALUE = 4  # the value of the event that is read


#: Kinds of steps. A count, or a sum, grows by a number and MORE; a count, or a sum, by 1; if a value of the event is
#: not null, a sum by a number and MORE, or by 1; by the product of a number and the value; or by the value. A double
#: grows by another; by the product of a count and the value; or by the value. A minimum or maximum takes in another;
#: the value, if a count is not 0; or the value.
COUNT, SUM, BEGIN, ONE, SUM_IF, ONE_IF, PRODUCT, VALUE = range(8)
FLOAT, FLOAT_PRODUCT, FLOAT_VALUE, LEAST, LEAST_AFTER, LEAST_FIRST = range(8, 14)
#: Logarithm of the numbers from one step to the next.
STEP_BITS = 3

FROM = np.uint64(Step.FROM)
TO = np.uint64(Step.TO)
MORE = np.uint64(Step.MORE)
VALUE_AT = np.uint64(Step.VALUE)
ONE_MORE = np.uint64(1)
A_STEP = np.uint64(1 << STEP_BITS)
#: Columns of a node.
WIDTH_AT = np.uint64(TrendNode.WIDTH)
FULL_AT = np.uint64(TrendNode.FULL)
A_NODE = np.uint64(len(TrendNode))


class TrendSteps(NamedTuple):
    """What events add. steps: int64, see Step, one step after the other; begin: per label, where its steps begin, and
    last where all end. taken: bits of labels; begins: of those that begin a trend. results: int64, the cells of
    finished trends."""

    begin: np.ndarray
    steps: np.ndarray
    taken: int
    begins: int
    results: np.ndarray
    within_us: int
    slide_us: int


@inlined
def add(numbers, to, more, width, carry):
    """Adds a number and a carry to another; returns the highest limb."""
    top = np.int64(0)
    i = np.uint64(0)
    if to == more:  # one read instead of two
        while i < width:
            top, carry = add_limb(numbers[to + i], numbers[to + i], carry)
            numbers[to + i] = top
            i += ONE_MORE
        return top
    while i < width:
        top, carry = add_limb(numbers[to + i], numbers[more + i], carry)
        numbers[to + i] = top
        i += ONE_MORE
    return top


@inlined
def add_whole(numbers, to, value, width):
    """Adds an int64 to a number; returns the highest limb."""
    carry = np.int64(0)
    high = value >> 63
    top = np.int64(0)
    i = np.uint64(0)
    while i < width:
        top, carry = add_limb(numbers[to + i], value if i == 0 else high, carry)
        numbers[to + i] = top
        i += ONE_MORE
    return top


@inlined
def add_product(numbers, to, more, value, width):
    """Adds the product of a number and an int64 to another; returns the highest limb."""
    carry = np.int64(0)
    top = np.int64(0)
    i = np.uint64(0)
    if value >= 0:
        while i < width:
            top, carry = add_product_limb(numbers[to + i], numbers[more + i], value, carry)
            numbers[to + i] = top
            i += ONE_MORE
        return top
    while i < width:
        top, carry = subtract_product_limb(numbers[to + i], numbers[more + i], -value, carry)
        numbers[to + i] = top
        i += ONE_MORE
    return top


@inlined
def add_double(numbers, to, value):
    numbers[to] = bits_of(number_of(numbers[to]) + value)


@inlined
def rounded(numbers, count, width):
    """A count as a double; the same as matching.kernels.trend_records.as_double."""
    result = 0.0
    i = width
    while i > 0:
        i -= ONE_MORE
        low = numbers[count + i] & 0xFFFFFFFF
        high = (numbers[count + i] >> 32) & 0xFFFFFFFF
        result = (result * 4294967296.0 + high) * 4294967296.0 + low
    return result


@inlined
def take_in(numbers, to, apart, value, largest):
    """Takes a value into a minimum or maximum. apart: from its place to that of whether there is one."""
    if numbers[to + apart] == 0 or (value > numbers[to] if largest else value < numbers[to]):
        numbers[to] = value
        numbers[to + apart] = 1


@called
def take_besides(numbers, node, q, alive, apart, row, width, values, doubles, valid, steps):
    """Takes the steps of doubles, minima and maxima from q on; returns the next one."""
    kind = steps[q]
    while kind >= FLOAT:  # a step of a count follows
        source, to = node + np.uint64(steps[q + FROM]), node + np.uint64(steps[q + TO])
        v, largest = np.uint64(steps[q + VALUE_AT]), steps[q + MORE] != 0
        if kind == FLOAT:
            add_double(numbers, to, number_of(numbers[source]))
        elif kind == LEAST:
            if numbers[source + apart] != 0:
                take_in(numbers, to, apart, numbers[source], largest)
        elif valid[v, row] and (kind in (FLOAT_VALUE, LEAST_FIRST) or numbers[source + alive] != 0):
            if kind >= LEAST:
                take_in(numbers, to, apart, values[v, row], largest)
            elif doubles[v, row] != 0.0:  # 0 times infinity is 0 here
                count = rounded(numbers, source, width) if kind == FLOAT_PRODUCT else 1.0
                add_double(numbers, to, doubles[v, row] * count)
        q += A_STEP
        kind = steps[q]
    return q


@inlined
def close_open(window, moves, sums, shape, pool, numbers):
    """Closes the open window, which is before `window`; as matching.kernels.trends.close_before does."""
    counters, nodes, out = pool.counters, pool.nodes, pool.out
    cells, columns = pool.cells.shape[1], pool.cells.shape[2]
    apart = shape.there - shape.least
    k = counters[CLOSED_BEFORE]
    node = pool.first[0]
    row = counters[OUT]
    while node >= 0:
        after = nodes[node, NEXT_NODE]
        width = nodes[node, WIDTH]
        some = False
        for r in range(len(moves.results)):
            at = (node * cells + moves.results[r]) * columns
            if numbers[at + shape.alive] == 0:
                continue
            for n in range(shape.whole):
                begin = at + n * shape.limbs
                carry = np.int64(0)
                high = np.int64(0)
                for i in range(width):
                    before = out[row, 2 + n * shape.limbs + i] if some else np.int64(0)
                    high = numbers[begin + i]
                    out[row, 2 + n * shape.limbs + i], carry = add_limb(before, high, carry)
                high >>= 63
                for i in range(width, shape.limbs):
                    before = out[row, 2 + n * shape.limbs + i] if some else np.int64(0)
                    out[row, 2 + n * shape.limbs + i], carry = add_limb(before, high, carry)
            for c in range(shape.floats, shape.least):
                out[row, 2 + c] = bits_of((number_of(out[row, 2 + c]) if some else 0.0) + number_of(numbers[at + c]))
            for c in range(shape.least, shape.there):
                flag = c + apart
                if not some:
                    out[row, 2 + c], out[row, 2 + flag] = numbers[at + c], numbers[at + flag]
                elif numbers[at + flag] != 0:
                    largest = sums.least_largest[c - shape.least]
                    take_in(out[row], 2 + c, apart, numbers[at + c], largest)
            some = True
        if some:
            out[row, 0] = nodes[node, PARTITION]
            out[row, 1] = k
            out[row, 2 + shape.alive] = 1
            row += 1
        for cell in range(cells):
            at = (node * cells + cell) * columns
            if numbers[at + shape.alive] != 0:
                for c in range(columns):
                    numbers[at + c] = 0
        pool.of[nodes[node, PARTITION], 0] = NONE
        nodes[node, NEXT_NODE] = counters[FREE]
        counters[FREE] = node
        counters[OPEN] -= 1
        node = after
    pool.first[0] = NONE
    counters[OUT] = row
    counters[CLOSED_BEFORE] = window


@inlined
def take(numbers, node, q, last, nodes, of_node, single, alive, apart, row, values, doubles, valid, steps):
    """Takes the steps [q, last) of an event in a node, whose records begin at `node`. Returns bits of the highest limbs
    of all numbers that have grown, less their sign."""
    high = np.int64(0)
    while q < last:
        kind = steps[q]
        # read each time, so that what loops over limbs prepare is not computed for those that do not run
        width = ONE_MORE if single else np.uint64(nodes[of_node + WIDTH_AT])
        source, to = node + np.uint64(steps[q + FROM]), node + np.uint64(steps[q + TO])
        top = np.int64(0)
        if kind <= SUM:
            top = add(numbers, to, source, width, steps[q + MORE])
            if kind == COUNT:
                numbers[to + alive] |= numbers[source + alive] | steps[q + MORE]
        elif kind <= ONE:
            top = add_whole(numbers, to, np.int64(1), width)
            if kind == BEGIN:
                numbers[to + alive] = 1
        elif kind >= FLOAT:
            q = take_besides(numbers, node, q, alive, apart, row, width, values, doubles, valid, steps)
            continue
        else:
            v = np.uint64(steps[q + VALUE_AT])
            if valid[v, row]:
                if kind == PRODUCT:
                    top = add_product(numbers, to, source, values[v, row], width)
                elif kind == SUM_IF:
                    top = add(numbers, to, source, width, steps[q + MORE])
                else:
                    top = add_whole(numbers, to, values[v, row] if kind == VALUE else np.int64(1), width)
        high |= top ^ (top >> 63)
        q += A_STEP
    return high


@kernel
def step(begin, end, partition, mask, ts, values, doubles, valid, moves, sums, shape, pool):
    """Takes rows [begin, end) as matching.kernels.trends.step does; with one window at a time. moves: TrendSteps."""
    counters, steps = pool.counters, moves.steps
    # indices without a sign: others are tested
    nodes, node_of, numbers = pool.nodes.reshape(-1), pool.of.reshape(-1), pool.cells.reshape(-1)
    size, alive = np.uint64(pool.cells.shape[1] * pool.cells.shape[2]), np.uint64(shape.alive)
    apart = np.uint64(shape.there - shape.least)
    room = 62 - counters[VALUE_BITS]
    window = np.int64(0)
    until = np.int64(-0x8000000000000000)  # times before this one have the same window, or none
    inside = False
    for row in range(np.uint64(begin), np.uint64(end)):
        m = mask[row] & moves.taken
        if m == 0:
            continue
        if m & (m - 1) != 0:
            return np.int64(row), SEVERAL_LABELS
        t = ts[row]
        if t >= until:
            window = t // moves.slide_us
            until = window * moves.slide_us + moves.within_us
            inside = t < until
            if not inside:  # between two windows
                window += 1
                until = window * moves.slide_us
            if counters[LIVE] == 0:
                counters[LIVE] = 1
                counters[CLOSED_BEFORE] = window
            elif window > counters[CLOSED_BEFORE]:
                if counters[OUT] + counters[OPEN] > len(pool.out) - 1:
                    return np.int64(row), MORE_OUTPUT
                close_open(window, moves, sums, shape, pool, numbers)
        if not inside:
            continue
        node = np.int64(node_of[np.uint64(partition[row])])
        if node < 0:
            if m & moves.begins == 0:
                continue
            if counters[FREE] < 0 and counters[USED] == len(pool.nodes):
                return np.int64(row), MORE_NODES
            node = new_node(pool, partition[row], window, 0, 1)
        of_node = np.uint64(node) * A_NODE
        if nodes[of_node + FULL_AT] == 1:
            if nodes[of_node + WIDTH_AT] == shape.limbs:
                return np.int64(row), MORE_LIMBS
            widen(pool, node, nodes[of_node + WIDTH_AT], shape)
        first = np.uint64(node) * size
        label = np.uint64(trailing_zeros(m))
        q, last = np.uint64(moves.begin[label]), np.uint64(moves.begin[label + ONE_MORE])
        # the loops over limbs are folded away where a limb is enough
        if nodes[of_node + WIDTH_AT] == 1:
            high = take(
                numbers, first, q, last, nodes, of_node, True, alive, apart, row, values, doubles, valid, steps
            )
        else:
            high = take(
                numbers, first, q, last, nodes, of_node, False, alive, apart, row, values, doubles, valid, steps
            )
        if high >> room != 0:
            nodes[of_node + FULL_AT] = 1
    return end, DONE

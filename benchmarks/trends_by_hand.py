"""The practical limit of counting trends: two patterns in tumbling windows, each written by hand in numba.

Exact like the engine: numbers of as many limbs of 64 bits as they need, two's complement. A kernel that runs out of
limbs returns -1 and is called again with twice as many. Events are without nulls and in the order of time.
"""

from __future__ import annotations

import numba
import numpy as np

from matching.kernels.limbs import add_limb, add_product_limb, subtract_product_limb

#: Codes of the types of events.
A, B = 0, 1
START, PICKUP, TRAVEL, DROPOFF = range(4)


@numba.njit(forceinline=True)
def _add(to, more, width, carry):
    """Adds a number and a carry to another."""
    for k in range(width):
        to[k], carry = add_limb(to[k], more[k], carry)


@numba.njit(forceinline=True)
def _closed(live, count, width, window, done, sums, out_partition, out_window, out, found):
    """Writes the rows of the partitions with a trend, of those that are live."""
    for i in range(count):
        p = live[i]
        some = np.int64(0)
        for k in range(done.shape[1]):
            some |= done[p, k]
        if some != 0:
            out_partition[found] = p
            out_window[found] = window
            for k in range(done.shape[1]):
                out[found, 0, k] = done[p, k]
                if out.shape[1] > 1:
                    out[found, 1, k] = sums[p, k] if k < width[p] else out[found, 1, k - 1] >> 63
            found += 1
    return found


@numba.njit(cache=True, nogil=True)
def kleene(partition, label, ts, values, within, limbs, cells, width, live, out_partition, out_window, out):
    """A+ B: counts. cells: 0 int64 (2, partitions, limbs): partial trends that end with an A, and trends. width: 0
    int64 (partitions,), limbs in use, 0 if there is no event in the window; live: the partitions with one."""
    count = found = 0
    window = np.int64(-1)
    open, done = cells[0], cells[1]
    for i in range(len(label)):
        w = ts[i] // within
        if w != window:
            found = _closed(live, count, width, window, done, done, out_partition, out_window, out, found)
            for j in range(count):
                open[live[j]] = 0
                done[live[j]] = 0
                width[live[j]] = 0
            count = 0
            window = w
        p = partition[i]
        n = width[p]
        if label[i] == A:
            if n == 0:
                live[count] = p
                count += 1
                n = width[p] = 1
            _add(open[p], open[p], n, np.int64(1))
            if open[p, n - 1] >> 62 != 0:  # the next one may overflow
                if n == limbs:
                    return -1
                width[p] = n + 1
        elif label[i] == B and n != 0:
            _add(done[p], open[p], n, np.int64(0))
            if done[p, n - 1] >> 62 != 0:
                if n == limbs:
                    return -1
                width[p] = n + 1
    return _closed(live, count, width, window, done, done, out_partition, out_window, out, found)


@numba.njit(cache=True, nogil=True)
def trips(partition, label, ts, values, within, limbs, cells, width, live, out_partition, out_window, out):
    """SEQ(Start, (SEQ(Pickup, Travel))+, Dropoff): counts, and sums of values over Travel. cells: as of `kleene`, of
    Start, Pickup, Travel and Dropoff, and the sums of the last three."""
    count = found = 0
    window = np.int64(-1)
    started, picked, travelled, done = cells[0], cells[1], cells[2], cells[3]
    of_picked, of_travelled, of_done = cells[4], cells[5], cells[6]
    for i in range(len(label)):
        w = ts[i] // within
        if w != window:
            found = _closed(live, count, width, window, done, of_done, out_partition, out_window, out, found)
            for j in range(count):
                for c in range(7):
                    cells[c, live[j]] = 0
                width[live[j]] = 0
            count = 0
            window = w
        p = partition[i]
        n = width[p]
        if label[i] == START:
            if n == 0:
                live[count] = p
                count += 1
                n = width[p] = 1
            carry = np.int64(1)
            for k in range(n):
                started[p, k], carry = add_limb(started[p, k], np.int64(0), carry)
            continue
        if n == 0:
            continue
        if label[i] == PICKUP:
            _add(picked[p], started[p], n, np.int64(0))
            _add(picked[p], travelled[p], n, np.int64(0))
            _add(of_picked[p], of_travelled[p], n, np.int64(0))
            top = of_picked[p, n - 1] ^ (of_picked[p, n - 1] >> 63) | picked[p, n - 1]
        elif label[i] == TRAVEL:
            _add(travelled[p], picked[p], n, np.int64(0))
            _add(of_travelled[p], of_picked[p], n, np.int64(0))
            v, carry = values[i], np.int64(0)
            for k in range(n):
                if v >= 0:
                    of_travelled[p, k], carry = add_product_limb(of_travelled[p, k], picked[p, k], v, carry)
                else:
                    of_travelled[p, k], carry = subtract_product_limb(of_travelled[p, k], picked[p, k], -v, carry)
            top = of_travelled[p, n - 1] ^ (of_travelled[p, n - 1] >> 63) | travelled[p, n - 1]
        else:
            _add(done[p], travelled[p], n, np.int64(0))
            _add(of_done[p], of_travelled[p], n, np.int64(0))
            top = of_done[p, n - 1] ^ (of_done[p, n - 1] >> 63) | done[p, n - 1]
        if top >> 40 != 0:  # values are less than 2**22
            if n == limbs:
                return -1
            for c in range(4, 7):
                cells[c, p, n] = cells[c, p, n - 1] >> 63
            width[p] = n + 1
    return _closed(live, count, width, window, done, of_done, out_partition, out_window, out, found)

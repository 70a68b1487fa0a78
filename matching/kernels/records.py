"""Records of partitions: what belongs to one partition lies together, in whole words of 64 bits."""

from __future__ import annotations

from matching.kernels.integers import wrapped_product, wrapped_sum
from matching.kernels.jit import kernel

#: In the place of a partition: it is in memory; it has nothing, neither there nor on disk.
RESIDENT = -1
EMPTY = -2


@kernel
def group(which, bounds, order):
    """Sorts items by the group they are in, those of one group in their order. which: int64 (n,), below 0: in none.
    bounds: int64 (groups + 1,), filled with where each group begins in `order`, int64 (n,). O(n + groups)."""
    groups = len(bounds) - 1
    for k in range(groups + 1):
        bounds[k] = 0
    for i in range(len(which)):
        if which[i] >= 0:
            bounds[which[i] + 1] += 1
    for k in range(groups):
        bounds[k + 1] += bounds[k]
    for i in range(len(which)):
        k = which[i]
        if k >= 0:
            order[bounds[k]] = i
            bounds[k] += 1
    for k in range(groups, 0, -1):
        bounds[k] = bounds[k - 1]
    bounds[0] = 0


@kernel
def copy_out(items, width, bounds, data, at):
    """Appends the items [bounds[k], bounds[k + 1]) to record k, which goes on at data[at[k]]; moves `at` on. items,
    data: uint8; width: bytes of an item."""
    for k in range(len(bounds) - 1):
        to = at[k]
        low = bounds[k] * width
        n = bounds[k + 1] * width - low
        for i in range(n):
            data[to + i] = items[low + i]
        at[k] = to + n


@kernel
def copy_in(data, width, bounds, items, at):
    """Reads what `copy_out` has written."""
    for k in range(len(bounds) - 1):
        of = at[k]
        low = bounds[k] * width
        n = bounds[k + 1] * width - low
        for i in range(n):
            items[low + i] = data[of + i]
        at[k] = of + n


@kernel
def put_counts(bounds, words, at, place):
    """Writes how many items of a block each record has. words: int32 of the data; at: where records begin, in bytes."""
    for k in range(len(bounds) - 1):
        words[(at[k] >> 2) + place] = bounds[k + 1] - bounds[k]


@kernel
def get_counts(words, at, place, bounds):
    """Reads what `put_counts` has written, summed up."""
    bounds[0] = 0
    for k in range(len(bounds) - 1):
        bounds[k + 1] = bounds[k] + words[(at[k] >> 2) + place]


@kernel
def checksum(words, begin, end):
    """Returns the checksum of the words [begin, end), 32 bits: damaged words have another one, but for one in 2**32."""
    h = wrapped_sum(end - begin, 7640891576956012809)
    for i in range(begin, end):
        h = wrapped_product(h ^ words[i], -7046029254386353131)
        h ^= (h >> 29) & 0x7FFFFFFFF
    h = wrapped_product(h, -4658895280553007687)
    return (h >> 32) & 0xFFFFFFFF


@kernel
def frame(bounds, words, framed):
    """Copies records, each after a word with its length in words and its checksum. bounds: int64 (records + 1,), in
    words; framed: int64, a word more for each record."""
    to = 0
    for k in range(len(bounds) - 1):
        low = bounds[k]
        n = bounds[k + 1] - low
        framed[to] = (checksum(words, low, low + n) << 32) | n
        for i in range(n):
            framed[to + 1 + i] = words[low + i]
        to += n + 1


@kernel
def unframe(framed, at, bounds, words):
    """Copies records out of their frames. at: int64 (records,), the words with their lengths. Returns the first record
    that is not what was written, -1 if all are."""
    for k in range(len(at)):
        low = bounds[k]
        n = bounds[k + 1] - low
        head = framed[at[k]]
        if (head & 0xFFFFFFFF) != n:
            return k
        for i in range(n):
            words[low + i] = framed[at[k] + 1 + i]
        if ((head >> 32) & 0xFFFFFFFF) != checksum(words, low, low + n):
            return k
    return -1


@kernel
def due_first(watermark, count, deadline, partition, wanted, stack, out):
    """The wanted partitions of a deadline heap whose deadline lies before the watermark; returns how many. wanted: bool
    per partition; stack, out: room for all entries. O(entries that are due)."""
    found = 0
    top = 0
    if count > 0:
        stack[0] = 0
        top = 1
    while top > 0:
        top -= 1
        i = stack[top]
        if deadline[i] >= watermark:
            continue
        if wanted[partition[i]]:
            out[found] = partition[i]
            found += 1
        child = 2 * i + 1
        if child < count:
            stack[top] = child
            top += 1
        if child + 1 < count:
            stack[top] = child + 1
            top += 1
    return found


@kernel
def touch(partition, ts, batch, touched, last, place, ids, new, out):
    """Notes that the partitions of a batch have had an event. Writes each of them once to `ids`, those that were EMPTY,
    which are RESIDENT now, to `new`, and those on disk to `out`. Returns the three numbers."""
    n = 0
    came = 0
    absent = 0
    for i in range(len(partition)):
        p = partition[i]
        last[p] = ts[i]
        if touched[p] != batch:
            touched[p] = batch
            ids[n] = p
            n += 1
            if place[p] == EMPTY:
                place[p] = RESIDENT
                new[came] = p
                came += 1
            elif place[p] >= 0:
                out[absent] = p
                absent += 1
    return n, came, absent


@kernel
def follow(ids, now, within, state, since, last, entered, followed, longest):
    """See matching.spill.Learnt.follow."""
    for k in range(len(ids)):
        p = ids[k]
        was = state[p]
        if now[k] == was:
            continue
        gap = last[p] - since[p]
        if was >= 0 and gap <= within:
            followed[was] += 1
            longest[was] = max(longest[was], gap)
        if now[k] >= 0:
            entered[now[k]] += 1
        state[p] = now[k]
        since[p] = last[p]


@kernel
def outline(count, keep, partition, ts, place, ids, counts, begun, last):
    """The partitions of the rows that are kept, in the order of their first row; returns how many. keep, partition, ts:
    by row; place: by partition id, all -1, set to the place in `ids` of those. For each the number of its rows and the
    times of the first and the last."""
    n = 0
    for i in range(count):
        if not keep[i]:
            continue
        k = place[partition[i]]
        if k < 0:
            k = n
            place[partition[i]] = n
            ids[n] = partition[i]
            counts[n] = 0
            begun[n] = ts[i]
            n += 1
        counts[k] += 1
        last[k] = ts[i]
    return n

"""The order of matches with different numbers of events, as layers give them (see matching.hierarchy.ragged)."""

from __future__ import annotations

from matching.kernels.jit import kernel

#: Bits of the number of a pattern in a token, and of the place of a variable in its pattern.
BITS = 8


@kernel
def tokens_of(leaf, place, bounds, step, anew, repeated, rank, box, base, width, began, tokens, number):
    """Writes the tokens of events, for each level that of the element that begins with it, and behind them the places
    of the variables of all elements that end with it; and the number of each event's element among equal ones in a row.

    leaf: the variable of an event. step, anew, repeated, rank, box: of a level and variable, see
    `matching.hierarchy.ragged`. base: the smallest place. width: bits of a place. began: of an event."""
    levels = len(step)
    for m in range(len(bounds) - 1):
        first, behind = bounds[m], bounds[m + 1]
        for e in range(first, behind):
            began[e] = e == first
        for level in range(levels):
            before, nth, e = -1, 0, first
            while e < behind:
                own = step[level, leaf[e]]
                if own < 0:  # its event is an element of a level above, which begins with it
                    e += 1
                    before = -1
                    continue
                end = e + 1
                while end < behind and not (
                    began[end] or anew[level, leaf[end]] or step[level, leaf[end]] != own
                ):
                    end += 1
                nth = nth + 1 if own == before and repeated[level, leaf[e]] else 0
                before = own
                kind = box[level, leaf[e]]
                token = (place[end - 1] - base) << (width + BITS + 1)
                if kind > 0:
                    token |= (1 << (width + BITS)) | ((place[e] - base) << BITS) | kind
                tokens[e, level] = token
                tokens[end - 1, levels] |= rank[level, leaf[e]] << (BITS * level)
                for i in range(e, end):
                    number[i, level] = nth
                e = end
            for e in range(first, behind):  # elements of the next level begin where those of this one do
                began[e] = began[e] or tokens[e, level] >= 0


@kernel
def comes_before(tokens, bounds, last_element, a, b):
    """Returns whether match a comes before match b: by the last element, without the place of its variable, and then
    by all elements."""
    width = tokens.shape[1]
    for part in range(2):
        i = last_element[a] if part == 0 else bounds[a]
        j = last_element[b] if part == 0 else bounds[b]
        while i < bounds[a + 1] and j < bounds[b + 1]:
            for k in range(width):
                x, y = tokens[i, k], tokens[j, k]
                if part == 0 and k == width - 1:
                    x, y = x >> BITS, y >> BITS
                if x != y:
                    return x < y
            i += 1
            j += 1
    return False


@kernel
def put_in_order(tokens, place, bounds, last_element, order, other):
    """Sorts the numbers of matches in `order` among those with one last event, by merging. other: of the same size."""
    n, start = len(order), 0
    while start < n:
        stop = start + 1
        while stop < n and place[bounds[stop + 1] - 1] == place[bounds[start + 1] - 1]:
            stop += 1
        width = 1
        while width < stop - start:
            for low in range(start, stop, 2 * width):
                middle, high = min(low + width, stop), min(low + 2 * width, stop)
                i, j = low, middle
                for k in range(low, high):
                    if j >= high or (i < middle and not comes_before(tokens, bounds, last_element, order[j], order[i])):
                        other[k] = order[i]
                        i += 1
                    else:
                        other[k] = order[j]
                        j += 1
            for k in range(start, stop):
                order[k] = other[k]
            width *= 2
        start = stop

"""Values of the rows of a run, found by walking back over its nodes: what no register can hold.

The rows' values are kept by position in the row store, as integers in the order of the values; see
matching.walked. What is walked is in matching.kernels.layout.WalkArrays; where there are none, kernels are compiled
without the functions below. What has been found for a node is kept: the tree of its values (matching.kernels.trees),
their moments (matching.kernels.moments), or the number of its list of rows (matching.kernels.lists). So a walk goes
back to the last node of the run for which it is known, mostly by one row.
"""

from __future__ import annotations

import numpy as np

from matching.kernels.estimates import estimated, ranks_of
from matching.kernels.floats import float_larger, float_less
from matching.kernels.jit import called, inlined
from matching.kernels.libm import multiplied_and_added
from matching.kernels.lists import COUNT, forget, with_row
from matching.kernels.moments import add, kurtosis, skewness
from matching.kernels.trees import ITEMS_MAX, SIZE, UPPER, at_place_with, insert, leaf_of
from matching.program.conditions import Wanted
from matching.program.hashed import RANKS

#: Slots of WalkArrays.at: the last node of the run that is advanced, a result, moments, and counts of ranks.
NODE, RESULT, MOMENTS, COUNTS = 0, 1, 2, 6
SLOTS = COUNTS + RANKS
#: Rows of WalkArrays.found for each walk.
FOUND = 4
#: Columns of WalkArrays.walks: the place of the values among those that are kept, the labels whose rows count, 1 if
#: the row that is tried is left out, what is wanted, the fraction of a quantile as numerator and denominator, 1 if the
#: values are doubles.
PLACE, LABELS, BEFORE, WANTED, OVER, UNDER, IS_DOUBLE = range(7)
AT, MODE, LIST, MAD, ESTIMATE = (int(w) for w in (Wanted.AT, Wanted.MODE, Wanted.LIST, Wanted.MAD, Wanted.ESTIMATE))
SKEWNESS, KURTOSIS, KURTOSIS_POP = int(Wanted.SKEWNESS), int(Wanted.KURTOSIS), int(Wanted.KURTOSIS_POP)


@inlined
def walks_from(walked, node):
    """Sets the last node of the run that is advanced, from which its conditions walk over its rows."""
    if walked is not None:
        walked.at[NODE] = node


@called
def unseen(walked, f, labels, i):
    """True if no earlier row of a run has the value of feature f of row i, which has one. Cost: up to the last row with
    that value."""
    if walked is None:
        return True
    place = walked.kept_of[f]
    value, node = walked.of_rows[place, walked.rows[i]], walked.at[NODE]
    while node >= 0:
        r = walked.row[node]
        if (labels >> walked.variable[node]) & 1 == 1 and walked.of_rows_valid[place, r]:
            if walked.of_rows[place, r] == value:
                return False
        node = walked.previous[node]
    return True


@inlined
def bits_of(ordered):
    """Returns the bits of a double that is given by its place in their order."""
    return ordered ^ np.int64(2**63 - 1) if ordered < 0 else ordered


@called
def tree_of(previous, variable, row, kept, kept_valid, place, labels, node, roots, found, tree, rows):
    """Returns the tree of the values of a run; -1 if there is no room. roots: by node, -1 not known. found: by node,
    the first row with the most frequent value, and how many have it. rows: room for those of the run."""
    count, at = np.int64(0), node
    while at >= 0 and roots[at] < 0:
        r = row[at]
        if (labels >> variable[at]) & 1 == 1 and kept_valid[place, r]:
            rows[count] = r
            count += 1
        at = previous[at]
    root, first, most = np.int64(0), np.int64(-1), np.int64(0)
    if at >= 0:
        root, first, most = roots[at], found[0, at], found[1, at]
    mark = tree[0, 0]
    for k in range(count - 1, -1, -1):
        if tree[0, 0] + ITEMS_MAX > len(tree):
            return np.int64(-1)
        root, leaf = insert(tree, root, kept[place, rows[k]], rows[k], mark)
        if tree[leaf, SIZE] > most or (tree[leaf, SIZE] == most and tree[leaf, UPPER] < first):
            first, most = tree[leaf, UPPER], tree[leaf, SIZE]
    if node >= 0:
        roots[node], found[0, node], found[1, node] = root, first, most
    return root


@called
def moments_of(previous, variable, row, kept, kept_valid, place, labels, node, counts, found, at, at_f, rows):
    """Puts the moments of the values of a run into `at`. Returns how many values there are. counts: that by node, -1
    not known. found: by node, its moments. rows: room for those of the run."""
    many, last = np.int64(0), node
    while last >= 0 and counts[last] < 0:
        r = row[last]
        if (labels >> variable[last]) & 1 == 1 and kept_valid[place, r]:
            rows[many] = r
            many += 1
        last = previous[last]
    count = counts[last] if last >= 0 else np.int64(0)
    moments = at_f[MOMENTS:COUNTS]
    for k in range(FOUND):
        at[MOMENTS + k] = found[k, last] if last >= 0 else np.int64(0)
    for k in range(many - 1, -1, -1):
        at[RESULT] = bits_of(kept[place, rows[k]])
        add(moments, count, at_f[RESULT])
        count += 1
    if node >= 0:
        counts[node] = count
        for k in range(FOUND):
            found[k, node] = at[MOMENTS + k]
    return count


@inlined
def double_at(tree, root, k, there, value, double, at, at_f):
    """Returns the number at place k of a tree and one more value, as a double. double: values are doubles."""
    found = at_place_with(tree, root, k, there, value)
    if not double:
        return np.float64(found)
    at[RESULT] = bits_of(found)
    return at_f[RESULT]


@called
def between_at(tree, root, between, there, value, double, at, at_f):
    """Returns the value at a place between two in order."""
    low, high = np.int64(np.floor(between)), np.int64(np.ceil(between))
    x = double_at(tree, root, low, there, value, double, at, at_f)
    if low == high:
        return x
    y = double_at(tree, root, high, there, value, double, at, at_f)
    # as DuckDB is compiled: the sum of two products is rounded once
    return multiplied_and_added(x, 1.0 - (between - low), y * (between - low))


@called
def distance_at(tree, root, k, count, there, value, middle, at, at_f):
    """Returns the distance at place k in order of `count` doubles from the one in their middle, which is finite.

    Those up to the middle are nearer to it the later they come, those behind it the earlier."""
    of_lower = (count - 1) // 2 + 1
    first, last = max(np.int64(0), k + 1 - (count - of_lower)), min(k + 1, of_lower)
    while first < last:  # how many of the k + 1 nearest are not behind the middle
        some = (first + last) // 2
        beyond = abs(double_at(tree, root, of_lower + k - some, there, value, True, at, at_f) - middle)
        within = abs(double_at(tree, root, of_lower - 1 - some, there, value, True, at, at_f) - middle)
        if float_less(within, beyond):
            first = some + 1
        else:
            last = some
    farthest, known = 0.0, False
    if first > 0:
        farthest = abs(double_at(tree, root, of_lower - first, there, value, True, at, at_f) - middle)
        known = True
    if k - first >= 0:
        beyond = abs(double_at(tree, root, of_lower + k - first, there, value, True, at, at_f) - middle)
        farthest = float_larger(farthest, beyond, known, True)
    return farthest


@called
def endless_distance_at(tree, root, k, count, there, value, middle, at, at_f):
    """Like `distance_at`, where the middle is infinite: it has no distance from itself and NaN."""
    same = np.int64(0)
    for place in range(count):
        x = double_at(tree, root, place, there, value, True, at, at_f)
        same += x == middle or np.isnan(x)
    return np.inf if k < count - same else np.nan


@called
def mad(tree, root, count, there, value, at, at_f):
    """Returns the median of the distances of `count` doubles from their median."""
    between = (count - 1) * 0.5
    middle = between_at(tree, root, between, there, value, True, at, at_f)
    if np.isnan(middle):
        return middle
    low, high = np.int64(np.floor(between)), np.int64(np.ceil(between))
    if np.isinf(middle):
        x = endless_distance_at(tree, root, low, count, there, value, middle, at, at_f)
        y = endless_distance_at(tree, root, high, count, there, value, middle, at, at_f)
    else:
        x = distance_at(tree, root, low, count, there, value, middle, at, at_f)
        y = distance_at(tree, root, high, count, there, value, middle, at, at_f) if high > low else x
    return x if low == high else multiplied_and_added(x, 1.0 - (between - low), y * (between - low))


@called
def list_of(previous, variable, row, labels, node, numbers, lines, table, rows):
    """Returns the number of the list of a run's rows; -1 if there is no room. numbers: by node, -1 not known."""
    count, at = np.int64(0), node
    while at >= 0 and numbers[at] < 0:
        if (labels >> variable[at]) & 1 == 1:
            rows[count] = row[at]
            count += 1
        at = previous[at]
    number = numbers[at] if at >= 0 else np.int64(0)
    for k in range(count - 1, -1, -1):
        number = with_row(lines, table, number, rows[k])
        if number < 0:
            return number
    if node >= 0:
        numbers[node] = number
    return number


@called
def moment(wanted, moments, count):
    """Returns (whether there is one, skewness or kurtosis)."""
    if wanted == SKEWNESS:
        return skewness(moments, count)
    return kurtosis(moments, count, wanted == KURTOSIS_POP)


@inlined
def result_of(walked):
    """Returns the value that the last walk has found."""
    if walked is None:
        return np.int64(0)
    return walked.at[RESULT]


@called
def walks_to(walked, which, label, i, asked):
    """Puts a value of the rows of a run and the row i, of that label, into `at`; False if it is null. which: of the
    walks; asked: AskedArrays, which have answers of lists.

    Long: what is walked, and what each walk finds."""
    if walked is None:
        return False
    previous, variable, row, kept, kept_valid = (
        walked.previous, walked.variable, walked.row, walked.of_rows, walked.of_rows_valid
    )  # fmt: skip
    walks, at, at_f, rows = walked.walks, walked.at, walked.at_f, walked.values
    roots, found, tree = walked.roots, walked.found, walked.tree
    lines, table, at_rows = walked.list_lines, walked.list_table, walked.list_rows
    walk = walks[which]
    place, labels, wanted, node, here = walk[PLACE], walk[LABELS], walk[WANTED], at[NODE], walked.rows[i]
    counts = walk[BEFORE] == 0 and (labels >> label) & 1 == 1
    if wanted == LIST:
        full = lines[0, COUNT] >= len(lines)  # nothing more could be foreseen
        while True:
            number = np.int64(-1)
            if not full:
                number = list_of(previous, variable, row, labels, node, roots[which], lines, table, rows)
            if number >= 0 and counts:
                number = with_row(lines, table, number, here)
            if number >= 0:
                break
            forget(lines, table, at_rows, asked)  # those of one run have room
            for w in range(len(walks)):
                if walks[w, WANTED] == LIST:
                    roots[w, :] = -1
            full = False
        at_rows[which, i] = number
        at[RESULT] = number
        return True
    counts = counts and kept_valid[place, here]
    own = kept[place, here]
    of_nodes = found[FOUND * which : FOUND * (which + 1)]
    if wanted >= SKEWNESS:
        count = moments_of(previous, variable, row, kept, kept_valid, place, labels, node, roots[which], of_nodes, at,
                           at_f, rows)  # fmt: skip
        if counts:
            at[RESULT] = bits_of(own)
            add(at_f[MOMENTS:COUNTS], count, at_f[RESULT])
        there, at_f[RESULT] = moment(wanted, at_f[MOMENTS:COUNTS], count + counts)
        return there
    root = tree_of(previous, variable, row, kept, kept_valid, place, labels, node, roots[which], of_nodes, tree, rows)
    if root < 0:
        tree[0, 0] = 1  # those of one run have room
        for w in range(len(walks)):
            if walks[w, WANTED] < LIST:
                roots[w, :] = -1
        root = tree_of(previous, variable, row, kept, kept_valid, place, labels, node, roots[which], of_nodes, tree,
                       rows)  # fmt: skip
    if wanted == ESTIMATE:
        ranks_of(tree, root, counts, own, rows, at[COUNTS:])
        at[RESULT] = estimated(at[COUNTS:])
        return True
    count = (tree[root, SIZE] if root != 0 else np.int64(0)) + counts
    if count == 0:
        return False
    double = walk[IS_DOUBLE] == 1
    if wanted == MODE:
        first, most = np.int64(-1), np.int64(0)
        if node >= 0:
            first, most = of_nodes[0, node], of_nodes[1, node]
        if counts:
            leaf = leaf_of(tree, root, own)
            same = tree[leaf, SIZE] + 1 if leaf != 0 else np.int64(1)
            since = tree[leaf, UPPER] if leaf != 0 else here
            if same > most or (same == most and since < first):
                first = since
        at[RESULT] = bits_of(kept[place, first]) if double else kept[place, first]
        return True
    if wanted == AT:
        beyond = (count * (walk[UNDER] - walk[OVER])) // walk[UNDER]
        value = at_place_with(tree, root, max(count - beyond, 1) - 1, counts, own)
        at[RESULT] = bits_of(value) if double else value
        return True
    if wanted == MAD:
        at_f[RESULT] = mad(tree, root, count, counts, own, at, at_f)
        return True
    at_f[RESULT] = between_at(tree, root, (count - 1) * walked.walks_f[which], counts, own, double, at, at_f)
    return True

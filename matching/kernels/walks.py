"""Values of the rows of a run, found by walking back over its nodes: what no register can hold.

The rows' values are kept by position in the row store, as integers in the order of the values; see
matching.walked. What is walked is in matching.kernels.layout.WalkArrays; a kernel for which there are none is compiled
without the functions below. What has been found for a node is kept: the
tree of its values (matching.kernels.trees), or the number of its list of rows (matching.kernels.lists). So a walk goes
back to the last node of the run for which it is known, mostly by one row.
"""

from __future__ import annotations

import numpy as np

from matching.kernels.jit import called, inlined
from matching.kernels.libm import multiplied_and_added
from matching.kernels.lists import forget, with_row
from matching.kernels.trees import ITEMS_MAX, SIZE, UPPER, at_place_with, insert, leaf_of
from matching.program.conditions import Wanted

#: Slots of WalkArrays.at: the last node of the run that is advanced, and a result.
NODE, RESULT = 0, 1
#: Columns of WalkArrays.walks: the place of the values among those that are kept, the labels whose rows count, 1 if
#: the row that is tried is left out, what is wanted, the fraction of a quantile as numerator and denominator, 1 if the
#: values are doubles.
PLACE, LABELS, BEFORE, WANTED, OVER, UNDER, IS_DOUBLE = range(7)
AT, MODE, LIST = int(Wanted.AT), int(Wanted.MODE), int(Wanted.LIST)


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
def tree_of(previous, variable, row, kept, kept_valid, place, labels, node, roots, best, tree, rows):
    """Returns the tree of the values of a run; -1 if there is no room. roots: by node, -1 not known. best: by node, the
    first row with the most frequent value, and how many have it. rows: room for those of the run."""
    count, at = np.int64(0), node
    while at >= 0 and roots[at] < 0:
        r = row[at]
        if (labels >> variable[at]) & 1 == 1 and kept_valid[place, r]:
            rows[count] = r
            count += 1
        at = previous[at]
    root, first, most = np.int64(0), np.int64(-1), np.int64(0)
    if at >= 0:
        root, first, most = roots[at], best[0, at], best[1, at]
    mark = tree[0, 0]
    for k in range(count - 1, -1, -1):
        if tree[0, 0] + ITEMS_MAX > len(tree):
            return np.int64(-1)
        root, leaf = insert(tree, root, kept[place, rows[k]], rows[k], mark)
        if tree[leaf, SIZE] > most or (tree[leaf, SIZE] == most and tree[leaf, UPPER] < first):
            first, most = tree[leaf, UPPER], tree[leaf, SIZE]
    if node >= 0:
        roots[node], best[0, node], best[1, node] = root, first, most
    return root


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
    roots, best, tree = walked.roots, walked.best, walked.tree
    lines, table, at_rows = walked.list_lines, walked.list_table, walked.list_rows
    walk = walks[which]
    place, labels, wanted, node, here = walk[PLACE], walk[LABELS], walk[WANTED], at[NODE], walked.rows[i]
    counts = walk[BEFORE] == 0 and (labels >> label) & 1 == 1
    if wanted == LIST:
        while True:
            number = list_of(previous, variable, row, labels, node, roots[which], lines, table, rows)
            if number >= 0 and counts:
                number = with_row(lines, table, number, here)
            if number >= 0:
                break
            forget(lines, table, at_rows, asked)  # those of one run have room
            for w in range(len(walks)):
                if walks[w, WANTED] == LIST:
                    roots[w, :] = -1
        at_rows[which, i] = number
        at[RESULT] = number
        return True
    root = tree_of(previous, variable, row, kept, kept_valid, place, labels, node, roots[which],
                   best[2 * which : 2 * which + 2], tree, rows)  # fmt: skip
    if root < 0:
        tree[0, 0] = 1  # those of one run have room
        for w in range(len(walks)):
            if walks[w, WANTED] != LIST:
                roots[w, :] = -1
        root = tree_of(previous, variable, row, kept, kept_valid, place, labels, node, roots[which],
                       best[2 * which : 2 * which + 2], tree, rows)  # fmt: skip
    counts = counts and kept_valid[place, here]
    own = kept[place, here]
    count = (tree[root, SIZE] if root != 0 else np.int64(0)) + counts
    if count == 0:
        return False
    double = walk[IS_DOUBLE] == 1
    if wanted == MODE:
        first, most = np.int64(-1), np.int64(0)
        if node >= 0:
            first, most = best[2 * which, node], best[2 * which + 1, node]
        if counts:
            leaf = leaf_of(tree, root, own)
            same = tree[leaf, SIZE] + 1 if leaf != 0 else np.int64(1)
            since = tree[leaf, UPPER] if leaf != 0 else here
            if same > most or (same == most and since < first):
                first = since
        found = kept[place, first]
        at[RESULT] = bits_of(found) if double else found
        return True
    if wanted == AT:
        beyond = (count * (walk[UNDER] - walk[OVER])) // walk[UNDER]
        found = at_place_with(tree, root, max(count - beyond, 1) - 1, counts, own)
        at[RESULT] = bits_of(found) if double else found
        return True
    between = (count - 1) * walked.walks_f[which]
    low = np.int64(np.floor(between))
    high = np.int64(np.ceil(between))
    first = at_place_with(tree, root, low, counts, own)
    second = at_place_with(tree, root, high, counts, own) if high > low else first
    x, y = np.float64(first), np.float64(second)
    if double:
        at[RESULT] = bits_of(first)
        x = at_f[RESULT]
        at[RESULT] = bits_of(second)
        y = at_f[RESULT]
    # as DuckDB is compiled: the sum of two products is rounded once
    at_f[RESULT] = x if low == high else multiplied_and_added(x, 1.0 - (between - low), y * (between - low))
    return True

"""Selects the rows of a block that can matter to a pattern."""

from __future__ import annotations

from matching.kernels.jit import kernel


@kernel
def rows_that_matter(partition, begins, some, hot, passes, out):
    """Writes the indices i of the rows that may begin a match (begins[i]) or meet a run; returns their number.

    some: True if a row meets any condition. hot: bool per partition, True if it may have runs; updated.
    passes: runs pass over rows, so that one which meets no condition changes nothing; else it ends them, and the rows
    after it meet none. O(rows)."""
    count = 0
    for i in range(len(partition)):
        p = partition[i]
        if begins[i]:
            hot[p] = True
        elif not hot[p]:
            continue
        elif not some[i]:
            if passes:
                continue
            hot[p] = False
        out[count] = i
        count += 1
    return count

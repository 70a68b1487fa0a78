"""The match buffer (matching.kernels.layout.Buffer): matches read from it, and what no run can reach dropped.

Dropping is in three steps: runs mark what they reach (mark_chain), what is marked gets its new number (number), and
nodes (move_nodes) and runs are renumbered.
"""

from __future__ import annotations

from matching.kernels.jit import inlined, kernel


@inlined
def row_before(node, row, buffer, prior):
    """The row before one that is bound like the row of `node`, or is that row: (node, row); -1, -1: there is none."""
    if row > buffer.row[node]:
        return node, prior[row]
    before = buffer.previous[node]
    if before < 0:
        return before, before
    return before, prior[row] if len(prior) > 0 else buffer.row[before]


@kernel
def measure_lengths(decided, count, buffer, prior, bounds):
    """bounds: int64 (count + 1,), filled with the running number of matched rows. prior: see
    matching.kernels.layout.Links."""
    bounds[0] = 0
    for k in range(count):
        n = decided.node[k]
        r = buffer.row[n] if n >= 0 else n
        length = 0
        while n >= 0:
            length += 1
            n, r = row_before(n, r, buffer, prior)
        bounds[k + 1] = bounds[k] + length


@kernel
def unroll(
    decided, count, buffer, prior, bounds, rows, variables,
    ts, source, offset, seq, out_ts, out_source, out_offset, out_seq,
):  # fmt: skip
    """Walks the buffer back from each match and writes its rows and variables in order, with the rows' identities, if
    there is room for these."""
    identified = len(out_ts) > 0
    for k in range(count):
        n = decided.node[k]
        r = buffer.row[n] if n >= 0 else n
        j = bounds[k + 1]
        while n >= 0:
            j -= 1
            rows[j] = r
            variables[j] = buffer.variable[n]
            if identified:
                out_ts[j] = ts[r]
                out_source[j] = source[r]
                out_offset[j] = offset[r]
                out_seq[j] = seq[r]
            n, r = row_before(n, r, buffer, prior)


@inlined
def mark_one(node, buffer, moved, keep):
    """Marks a node, if it is one (>= 0), and its row. moved: int64 (nodes,), -1 where not marked; keep: bool per row of
    the store."""
    if node >= 0:
        moved[node] = 0
        keep[buffer.row[node]] = True


@inlined
def mark_chain(node, buffer, moved, keep):
    """Marks a node and those before it, and their rows."""
    n = node
    while n >= 0 and moved[n] < 0:
        moved[n] = 0
        keep[buffer.row[n]] = True
        n = buffer.previous[n]


@kernel
def number(nodes, moved):
    """Gives each marked node its new number. Returns how many are marked."""
    live = 0
    for n in range(nodes):
        if moved[n] == 0:
            moved[n] = live
            live += 1
    return live


@kernel
def move_nodes(nodes, buffer, moved, row_moved):
    """Compacts the buffer in place and renumbers rows; order is kept, so predecessors stay before."""
    for n in range(nodes):
        to = moved[n]
        if to >= 0:
            previous = buffer.previous[n]
            buffer.previous[to] = moved[previous] if previous >= 0 else -1
            buffer.row[to] = row_moved[buffer.row[n]]
            buffer.variable[to] = buffer.variable[n]


@kernel
def cut_nodes(nodes, first, buffer, row_moved):
    """Drops the nodes before `first` and renumbers the others and their rows."""
    for n in range(first, nodes):
        buffer.previous[n - first] = max(buffer.previous[n] - first, -1)
        buffer.row[n - first] = row_moved[buffer.row[n]]
        buffer.variable[n - first] = buffer.variable[n]


@kernel
def first_behind(row, buffer, nodes):
    """The first node that is not before this row. Nodes are made in the order of their rows."""
    low = 0
    high = nodes
    while low < high:
        middle = (low + high) // 2
        if buffer.row[middle] < row:
            low = middle + 1
        else:
            high = middle
    return low


@kernel
def keep_rows(begin, end, buffer, keep):
    """Marks the rows of the nodes [begin, end)."""
    for n in range(begin, end):
        keep[buffer.row[n]] = True

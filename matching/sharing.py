"""A pattern found once over a wide range, for the answers of many ranges inside it.

The answer of a range is the matches among its rows alone. For many patterns it follows from the matches of a wider
range: for all matches, and for one match per start by first completion, it is those whose rows lie inside; for
windows of trends, which have only their own events, those whose bounds lie inside. If SQL
skips, the wide range gives for each row the end of its preferred match, and skipping is replayed from the first row of
each range: a match that ends inside is the preferred one there too, since every match of the range is one of the wide
range. One that ends beyond the range is no answer: the matches that its first row begins inside are then found by
matching the rows from there on.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

import numpy as np

from matching.batch import Int64Array
from matching.kernels.jit import kernel
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import MatchNumber, Navigation, walk
from query.plan.pattern import Negation, Sequence, anchors, excludes, min_rows, rows_before
from query.plan.plan import AfterMatch, Plan


class Sharing(Enum):
    """The way the answer of a range follows from a wider one."""

    FILTER = "the matches whose events, or the windows whose instants, all lie in the range"
    REPLAY = "skipping replayed over the preferred match of each row"
    NOTHING = "each range is matched by itself"


def sharing_of(plan: Plan) -> Sharing:
    """Returns how ranges may share the matches of a plan's pattern, or its windows."""
    if plan.trends is not None:
        return Sharing.FILTER
    skips = plan.after.kind
    if plan.boxes and skips is not AfterMatchKind.NO_SKIP:
        return Sharing.NOTHING
    if any(sharing_of(box.plan) is not Sharing.FILTER for box in plan.boxes):
        return Sharing.NOTHING
    expressions = [*(d.condition for d in plan.defines), *(m.expression for m in plan.measures)]
    nodes = [node for expression in expressions for node in walk(expression)]
    numbered = any(isinstance(n, MatchNumber) for n in nodes)
    parts = plan.pattern.parts if isinstance(plan.pattern, Sequence) else (plan.pattern,)
    edges = any(isinstance(part, Negation) for part in (parts[0], parts[-1]))
    unmatched = plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED or plan.timeout_rows or excludes(plan.pattern)
    if plan.selection is Selection.STRICT or numbered or edges or unmatched or anchors(plan.pattern):
        return Sharing.NOTHING
    if _reads_beyond(plan):
        return Sharing.NOTHING
    if skips is AfterMatchKind.NO_SKIP:
        return Sharing.FILTER
    if plan.selection is not Selection.PARTITION:
        return Sharing.FILTER if skips is AfterMatchKind.TO_NEXT_ROW else Sharing.NOTHING
    skipping = skips in (AfterMatchKind.TO_NEXT_ROW, AfterMatchKind.PAST_LAST_ROW)
    return Sharing.REPLAY if skipping and min_rows(plan.pattern) else Sharing.NOTHING


def _reads_beyond(plan: Plan) -> bool:
    """True if PREV or NEXT may reach a row outside of the match. If a match is a contiguous part of its partition, PREV
    of a row that always has enough rows of the match before it does not."""
    contiguous = plan.selection is Selection.PARTITION
    before = rows_before(plan.pattern)
    roots = [((d.variable,), d.condition) for d in plan.defines] + [((), m.expression) for m in plan.measures]
    for current, expression in roots:
        for node in walk(expression):
            if not isinstance(node, Navigation) or not node.physical_offset:
                continue
            reached = current if node.logical is None else node.variables
            least = min((before.get(variable, 0) for variable in reached), default=0)
            if node.physical_offset > 0 or not contiguous or least < -node.physical_offset:
                return True
    return False


def widened(plan: Plan) -> Plan:
    """Returns the plan of the wide range: shared ranges need a match for every row that begins one."""
    if sharing_of(plan) is Sharing.REPLAY:
        return replace(plan, after=AfterMatch(AfterMatchKind.TO_NEXT_ROW))
    return plan




def replay(
    sharing: Sharing, past_last: bool, bounds: Int64Array, start: Int64Array, start_us: Int64Array, end: Int64Array,
    end_us: Int64Array, partitions: Int64Array, low_us: Int64Array, last_us: Int64Array,
) -> tuple[Int64Array, Int64Array, Int64Array, Int64Array]:  # fmt: skip
    """Returns the matches of a wide range that are the answers of n ranges of one partition each.

    Matches are ordered by partition, then by start: those of partition p are bounds[p] to bounds[p + 1]. start, end:
    the places of their first and last rows, which ascend with the total order; start_us, end_us: the times of these.
    past_last: SKIP PAST LAST ROW. partitions: of each range, low_us and last_us its first and last instant. Returns
    pairs (range, match), by range, in the order of the matches; and pairs (range, match) of those that must be matched
    again from the first row of that match on: it reaches beyond the range. O(answers + n log matches)."""
    room = max(16, 4 * len(partitions))
    while True:
        out_range, out_match = np.empty(room, np.int64), np.empty(room, np.int64)
        cut = np.empty(len(partitions), np.int64)
        count = _replay(
            sharing is Sharing.REPLAY, past_last, bounds, start, start_us, end, end_us, partitions, low_us, last_us,
            out_range, out_match, cut,
        )  # fmt: skip
        if count <= room:
            again = np.flatnonzero(cut >= 0)
            return out_range[:count], out_match[:count], again, cut[again]
        room = count


@kernel
def _replay(
    replays, past_last, bounds, start, start_us, end, end_us, partitions, low_us, last_us, out_range, out_match, cut
):
    """Returns the number of pairs; pairs beyond the room are only counted."""
    count = 0
    for r in range(len(partitions)):
        cut[r] = -1
        p = partitions[r]
        if p < 0:
            continue
        stop = bounds[p + 1]
        at = bounds[p]
        high = stop
        while at < high:  # the first match that begins in the range
            middle = (at + high) // 2
            if start_us[middle] < low_us[r]:
                at = middle + 1
            else:
                high = middle
        while at < stop and start_us[at] <= last_us[r]:
            if end_us[at] > last_us[r]:
                if replays:
                    cut[r] = at
                    break
                at += 1
                continue
            if count < len(out_range):
                out_range[count] = r
                out_match[count] = at
            count += 1
            if replays and past_last:
                behind = end[at]
                step = 1
                low = at + 1
                while low + step < stop and start[low + step] <= behind:
                    low += step
                    step *= 2
                high = min(low + step, stop)
                while low < high:  # the first match that begins after this one
                    middle = (low + high) // 2
                    if start[middle] <= behind:
                        low = middle + 1
                    else:
                        high = middle
                at = low
            else:
                at += 1
    return count

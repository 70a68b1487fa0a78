"""What the two matchers of the experiments share: a step of a run, and matches with their rows.

They test the conditions that the engine tests, by the same code, and write matches as the engine does. They know chains
of variables without negation, under all strategies, whose matches may overlap or not.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from matching.decode import Decode
from matching.kernels.jit import inlined
from matching.kernels.layout import grown
from matching.kernels.predicate import holds, update_registers
from matching.program.program import Mode, Program
from matching.store import RowStore

#: What `taken` says of a row that the label does not take.
NOT_TAKEN = -2

DONE = 0
ROOM = 1
FOUND_ROOM = 2


class Found(NamedTuple):
    """Matches in order of discovery. Rows of match k: [bound[k], bound[k + 1]) of row and label."""

    bound: np.ndarray
    partition: np.ndarray
    row: np.ndarray
    label: np.ndarray  # int16
    total: np.ndarray  # (2,): matches; their rows, which are counted even if they are not written


def new_found(matches: int, rows: int) -> Found:
    return Found(
        np.zeros(matches + 1, np.int64), np.zeros(matches, np.int64), np.zeros(rows, np.int64),
        np.zeros(rows, np.int16), np.zeros(2, np.int64),
    )  # fmt: skip


def larger_found(found: Found) -> Found:
    names = ("bound", "partition", "row", "label")
    return found._replace(**{name: grown(getattr(found, name), 2 * len(getattr(found, name))) for name in names})


def refuse(program: Program) -> None:
    """ValueError for what the matchers of the experiments do not know."""
    if program.absent or program.strict or program.within_rows is None:
        raise ValueError("chains without negation, WITHIN rows, not under STRICT")
    if program.mode not in (Mode.ALL, Mode.PAST_LAST_ROW) or program.ambiguous:
        raise ValueError("all matches, or those that do not overlap")


def decode(found: Found, store: RowStore, out: Decode) -> None:
    """Writes the matches found into `out` and forgets them; as matching.engines.run_graph.RunGraph.decode."""
    count, rows = found.total
    out.begin(int(count))
    out.room(int(rows))
    out.bounds[:] = found.bound[: count + 1]
    out.rows[:] = at = found.row[:rows]
    out.variables[:] = found.label[:rows]
    out.ts[:], out.source[:] = store.ts[at], store.source[at]
    out.offset[:], out.seq[:] = store.offset[at], store.seq[at]
    out.start[:] = at[out.bounds[:-1]]
    out.partition[:] = found.partition[:count]
    found.total[:] = 0


def counted(found: Found) -> tuple[int, int]:
    """Matches and their rows since the last call, where they are not written."""
    matches, rows = (int(n) for n in found.total)
    found.total[:] = 0
    return matches, rows


@inlined
def taken(program, v, held, into, into_f, valid, mask, feature, feature_f, feature_valid, i, scratch):
    """Whether a run with the register values `held` takes row i as label v: its values then are in `into`; returns
    which of them are not null, or less than 0."""
    if (mask >> v) & 1 == 0:
        return np.int64(NOT_TAKEN)
    for r in range(len(program.register_kind)):
        into[r] = held[r]
    after = update_registers(program, into, into_f, valid, v, feature, feature_f, feature_valid, i)
    if after >= 0 and program.code_start[v + 1] > program.code_start[v]:
        if holds(program, v, into, after, feature, feature_valid, i, scratch) != 1:
            return np.int64(NOT_TAKEN)
    return after

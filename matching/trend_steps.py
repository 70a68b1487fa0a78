"""The steps by which an event adds to the numbers of its window, for matching.kernels.trend_steps."""

from __future__ import annotations

import numpy as np

from matching.kernels.trend_records import NONE, Shape, TrendSums
from matching.kernels.trend_steps import (
    BEGIN,
    COUNT,
    ONE,
    ONE_IF,
    PRODUCT,
    STEP_BITS,
    SUM,
    SUM_IF,
    VALUE,
    Step,
    TrendSteps,
)
from matching.kernels.trends import ANY, TrendMoves


def has_steps(moves: TrendMoves, sums: TrendSums, pairs: int) -> bool:
    """True if events are taken by steps unless they have several labels: each is in one window at most, no event is
    negated, and nothing but whole numbers is added. pairs: number of the conditions between two events."""
    whole = not len(sums.float_value) and not len(sums.least_value)
    plain = moves.policy == ANY and moves.broken == 0 and moves.alone & moves.taken == moves.taken
    return whole and plain and not pairs and moves.within_us <= moves.slide_us


def steps_of(moves: TrendMoves, sums: TrendSums, shape: Shape) -> TrendSteps:
    """Returns the steps of each label, with places in records of a shape."""
    columns = shape.alive + 1
    seen = _labels_before(moves)
    begin, steps = [0], []
    for label in range(len(moves.alone_begin) - 1):
        for source, to, begins in _copies(moves, label):
            if source == NONE:
                steps += _first_steps(sums, shape, label, to * columns)
            else:
                steps += _steps(sums, shape, label, source * columns, to * columns, seen[source], begins)
        begin.append(len(steps))
    flat = np.zeros((len(steps), 1 << STEP_BITS), np.int64)
    flat[:, : len(Step)] = np.array(steps, np.int64).reshape(-1, len(Step))
    return TrendSteps(
        np.array(begin, np.int64) << STEP_BITS, flat.reshape(-1), moves.taken, int(moves.takes[0]),
        np.flatnonzero(moves.results), moves.within_us, moves.slide_us,
    )  # fmt: skip


def _copies(moves: TrendMoves, label: int) -> list[tuple[int, int, bool]]:
    """Returns the cells that trends are copied from and to, and whether one begins there besides: NONE if nothing else
    comes there. Each cell is read before it grows."""
    copies: list[tuple[int, int]] = []
    begins: list[int] = []
    for e in range(moves.alone_begin[label], moves.alone_begin[label + 1]):
        source = int(moves.alone_source[e])
        # the end first: the next state may be the source itself
        for to in (int(moves.alone_end[e]), int(moves.alone_state[e])):
            if to >= 0 and moves.starts[source]:
                begins.append(to)
            elif to >= 0:
                copies.append((source, to))
    found = []
    for source, to in copies:
        found.append((source, to, to in begins))
        begins = [b for b in begins if b != to]
    return found + [(NONE, to, True) for to in begins]


def _labels_before(moves: TrendMoves) -> list[int]:
    """Returns for each cell bits of the labels that events of its trends may have."""
    seen = [0] * len(moves.results)
    copies = [(label, s, to) for label in range(len(moves.alone_begin) - 1) for s, to, _ in _copies(moves, label)]
    for _ in seen:
        for label, source, to in copies:
            seen[to] |= 1 << label | (0 if source == NONE else seen[source])
    return seen


def _whole(sums: TrendSums) -> list[tuple[int, int, bool]]:
    """Returns of each sum the index of its value (NONE: the number 1), the bits of its labels, and whether it counts
    values."""
    return [
        (int(v), int(labels), bool(ones))
        for v, labels, ones in zip(sums.whole_value, sums.whole_labels, sums.whole_ones, strict=True)
    ]


def _steps(
    sums: TrendSums, shape: Shape, label: int, source: int, to: int, seen: int, begins: bool
) -> list[tuple[int, ...]]:  # fmt: skip
    """Returns the steps of one copy between records at two places: sums, and last the count that they read. seen: bits
    of the labels of its trends; begins: one more trend begins with the event."""
    found = []
    for k, (value, labels, ones) in enumerate(_whole(sums), start=1):
        at = k * shape.limbs
        if labels & seen:
            found.append((SUM, source + at, to + at, 0, 0))
        if labels >> label & 1:
            kind = SUM if value < 0 else SUM_IF if ones else PRODUCT
            found.append((kind, source, to + at, int(begins), max(0, value)))
            if begins and kind == PRODUCT:
                found.append((VALUE, 0, to + at, 0, value))
    return [*found, (COUNT, source, to, int(begins), 0)]


def _first_steps(sums: TrendSums, shape: Shape, label: int, to: int) -> list[tuple[int, ...]]:
    """Returns the steps of a trend that begins with an event."""
    found = [
        (ONE if value < 0 else ONE_IF if ones else VALUE, 0, to + k * shape.limbs, 0, max(0, value))
        for k, (value, labels, ones) in enumerate(_whole(sums), start=1)
        if labels >> label & 1
    ]
    return [*found, (BEGIN, 0, to, 0, 0)]

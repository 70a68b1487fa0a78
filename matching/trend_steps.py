"""The steps by which an event adds to the numbers of its window, for matching.kernels.trend_steps."""

from __future__ import annotations

import numpy as np

from matching.kernels.trend_records import NONE, Shape, TrendSums
from matching.kernels.trend_steps import (
    BEGIN,
    COUNT,
    FLOAT,
    FLOAT_PRODUCT,
    FLOAT_VALUE,
    LEAST,
    LEAST_AFTER,
    LEAST_FIRST,
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


def has_steps(moves: TrendMoves, pairs: int) -> bool:
    """True if events are taken by steps unless they have several labels: each is in one window at most, and no event is
    negated. pairs: number of the conditions between two events."""
    plain = moves.policy == ANY and moves.broken == 0 and moves.alone & moves.taken == moves.taken
    return plain and not pairs and moves.within_us <= moves.slide_us


def steps_of(moves: TrendMoves, sums: TrendSums, shape: Shape) -> TrendSteps:
    """Returns the steps of each label, with places in records of a shape."""
    columns = shape.alive + 1
    joined = not len(sums.float_value)  # doubles are added in the order of matching.kernels.trends
    seen = _labels_before(moves)
    begin, steps = [0], []
    for label in range(len(moves.alone_begin) - 1):
        for source, to, begins in _copies(moves, label, joined):
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


def _copies(moves: TrendMoves, label: int, joined: bool) -> list[tuple[int, int, bool]]:
    """Returns the cells that trends are copied from and to, each read before it grows, and whether one begins there
    besides; NONE as the source: one begins. joined: one that begins is put together with others that come there."""
    copies: list[tuple[int, int]] = []
    for e in range(moves.alone_begin[label], moves.alone_begin[label + 1]):
        source = NONE if moves.starts[moves.alone_source[e]] else int(moves.alone_source[e])
        # the end first: the next state may be the source itself
        copies += [(source, to) for to in (int(moves.alone_end[e]), int(moves.alone_state[e])) if to >= 0]
    if not joined:
        return [(source, to, source == NONE) for source, to in copies]
    begins = {to for source, to in copies if source == NONE}
    found = []
    for source, to in copies:
        if source != NONE:
            found.append((source, to, to in begins))
            begins.discard(to)
    return found + [(NONE, to, True) for source, to in copies if source == NONE and to in begins]


def _labels_before(moves: TrendMoves) -> list[int]:
    """Returns for each cell bits of the labels that events of its trends may have."""
    seen = [0] * len(moves.results)
    copies = [(label, s, to) for label in range(len(moves.alone_begin) - 1) for s, to, _ in _copies(moves, label, True)]
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


def _pairs(values: np.ndarray, labels: np.ndarray) -> list[tuple[int, int]]:
    return list(zip(values.tolist(), labels.tolist(), strict=True))


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
    for k, (value, labels) in enumerate(_pairs(sums.float_value, sums.float_labels), start=shape.floats):
        found += [(FLOAT, source + k, to + k, 0, 0)] if labels & seen else []
        found += [(FLOAT_PRODUCT, source, to + k, 0, value)] if labels >> label & 1 else []
    for k, (value, labels) in enumerate(_pairs(sums.least_value, sums.least_labels), start=shape.least):
        largest = int(sums.least_largest[k - shape.least])
        found += [(LEAST, source + k, to + k, largest, 0)] if labels & seen else []
        found += [(LEAST_AFTER, source, to + k, largest, value)] if labels >> label & 1 and not begins else []
        found += [(LEAST_FIRST, 0, to + k, largest, value)] if labels >> label & 1 and begins else []
    return [*found, (COUNT, source, to, int(begins), 0)]


def _first_steps(sums: TrendSums, shape: Shape, label: int, to: int) -> list[tuple[int, ...]]:
    """Returns the steps of a trend that begins with an event."""
    found = [
        (ONE if value < 0 else ONE_IF if ones else VALUE, 0, to + k * shape.limbs, 0, max(0, value))
        for k, (value, labels, ones) in enumerate(_whole(sums), start=1)
        if labels >> label & 1
    ]
    for k, (value, labels) in enumerate(_pairs(sums.float_value, sums.float_labels), start=shape.floats):
        found += [(FLOAT_VALUE, 0, to + k, 0, value)] if labels >> label & 1 else []
    for k, (value, labels) in enumerate(_pairs(sums.least_value, sums.least_labels), start=shape.least):
        largest = int(sums.least_largest[k - shape.least])
        found += [(LEAST_FIRST, 0, to + k, largest, value)] if labels >> label & 1 else []
    return [*found, (BEGIN, 0, to, 0, 0)]

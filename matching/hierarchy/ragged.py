"""The order of layers among matches of a plain pattern that have different numbers of events, and the paths of these.

Layers order matches with one last event by their last element, and then by their elements from the first on: each by
its place among merged rows, and where two variables may take one row by the place of the variable in the pattern. A
match of a box is at the place of its last event, then of its first one, then by its own elements. So an event has
tokens, numbers of the elements that begin or end with it; the tokens of all events of a match, one event after the
other, are in the order of the matches: up to the first difference two matches have the same elements.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from matching.batch import Int64Array, Matches
from matching.hierarchy.layer import PATHS_MAX
from matching.hierarchy.members import distinct
from matching.kernels.ragged import BITS, put_in_order, tokens_of
from query.errors import DataError
from query.plan.one_pattern import ElementStep, OnePattern

#: Most bits of the place of an event among those that are looked at together.
WIDTH_MAX = (61 - BITS) // 2


class RaggedOrder:
    """Puts matches in the order of layers, under the paths of their events."""

    def __init__(self, one: OnePattern) -> None:
        self._names, self._paths = one.names, one.paths
        self._levels = _Levels(one.steps)

    def ordered(self, found: Matches) -> Matches:
        """Returns matches as layers give them. `event_seq` has the positions of events. Raises DataError if they lie
        too far from each other, or have too many paths."""
        if not len(found):
            return replace(found, variables=self._paths)
        leaf_of = np.array([self._names.index(n) if n in self._names else -1 for n in found.variables])  # -1: negated
        leaf, place, bounds = leaf_of[found.event_variable], found.event_seq, found.event_bounds
        base = int(place.min())
        width = int(place.max() - base).bit_length()
        if width > WIDTH_MAX:
            raise DataError("matches lie too far from each other for one pattern")
        n, levels = len(leaf), self._levels
        tokens = np.full((n, levels.count + 1), -1)
        tokens[:, levels.count] = 0
        number, began = np.zeros((n, levels.count), np.int64), np.zeros(n, np.bool_)
        tokens_of(
            leaf, place, bounds, levels.step, levels.anew, levels.repeated, levels.rank, levels.box, base, width, began,
            tokens, number,
        )  # fmt: skip
        variables, path = self._path_of(leaf, number)
        begins = np.flatnonzero(tokens[:, 0] >= 0)
        last_element = begins[np.searchsorted(begins, bounds[1:]) - 1]
        order = np.arange(len(found))
        put_in_order(tokens, place, bounds, last_element, order, np.empty_like(order))
        counts = np.diff(bounds)[order]
        new_bounds = np.concatenate([[0], np.cumsum(counts)])
        at = np.repeat(bounds[:-1][order] - new_bounds[:-1], counts) + np.arange(new_bounds[-1])
        return replace(
            found, rows=found.rows.take(pa.array(order)), first_us=found.first_us[order], last_us=found.last_us[order],
            event_bounds=new_bounds, event_variable=path[at], variables=variables, event_ts_us=found.event_ts_us[at],
            event_source=found.event_source[at], event_offset=found.event_offset[at], event_seq=place[at],
        )  # fmt: skip

    def _path_of(
        self, leaf: Int64Array, number: np.ndarray
    ) -> tuple[tuple[str, ...], np.ndarray[tuple[int], np.dtype[np.int16]]]:
        """Returns the paths of events, and which one each has. number: of the elements of each level among equal
        ones."""
        sizes = (number.max(axis=0) + 1).tolist()
        code = leaf
        for level, size in enumerate(sizes):
            code = code * size + number[:, level] if size > 1 else code
        used, places = distinct(code)
        if len(used) > PATHS_MAX:
            raise DataError("matches have too many paths for one pattern")
        names = []
        for one in used.tolist():
            numbers = []
            for size in reversed(sizes):
                one, k = divmod(one, size)
                numbers.append(k)
            parts = self._paths[one].split(".")
            names.append(".".join(part + (f"[{k + 1}]" if k else "") for part, k in zip(parts, reversed(numbers))))
        return tuple(names), places.astype(np.int16)


class _Levels:
    """The variables of the plain pattern in each layer, of which 0 is the outermost: arrays by level and variable.

    step: number of the element, -1 if there is none. anew: each of its events begins one. repeated: the element may
    occur several times. rank: of its variable. box: number of its pattern in the order of names; 0: it is an event."""

    def __init__(self, steps: Sequence[Sequence[ElementStep]]) -> None:
        self.count = max(map(len, steps))
        shape = self.count, len(steps)
        self.step, self.rank, self.box = np.full(shape, -1), np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.anew, self.repeated = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
        boxes = ["", *sorted({step.box for of in steps for step in of if step.box})]
        ways: dict[tuple[str, ...], int] = {}
        for i, of in enumerate(steps):
            for level, step in enumerate(of):
                way = tuple(s.variable for s in of[: level + 1])
                at = level, i
                self.step[at] = ways.setdefault(way, len(ways))
                self.rank[at], self.box[at] = step.rank, boxes.index(step.box)
                self.anew[at], self.repeated[at] = step.begins or not step.box, bool(step.box) and step.repeated

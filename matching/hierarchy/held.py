"""Matches of a layer that wait until they are decided: put together, taken apart and saved."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from matching.batch import Int64Array, Matches
from matching.emitted import only
from matching.hierarchy.gaps import GapTest
from matching.state import as_array, read_table, saved_table

#: The arrays of Matches, in its order.
ARRAYS = (
    "row_match", "number", "first_us", "last_us", "event_bounds", "event_variable", "event_ts_us", "event_source",
    "event_offset", "event_seq",
)  # fmt: skip
#: Later than any time.
NEVER_US = 2**63 - 1
#: Matches of merged rows, and the same as matches of events.
Pair = tuple[Matches, Matches]


class Awaited:
    """Matches of a layer whose pattern ends in negations, until no row to come can violate these: then WITHIN has
    passed since the end of the first row. gaps: the negations."""

    def __init__(self, gaps: Sequence[GapTest]) -> None:
        self._gaps = gaps
        self._held: list[Pair] = []
        self._first_due_us = NEVER_US

    def step(self, found: Sequence[Pair], reached_us: int | None, ended: bool) -> list[Pair]:
        """Returns the matches that are decided and not violated, of those that came before and the next, in the order
        of decisions. reached_us: no merged row with a lower time can still come."""
        for pair in found:
            if len(pair[0]):
                self._held.append(pair)
                self._first_due_us = min(self._first_due_us, int(self._gaps[0].due_us(of_matches(pair[0])).min()))
        if not self._held or not (ended or (reached_us is not None and self._first_due_us < reached_us)):
            return []
        rows, events = (joined([pair[side] for pair in self._held]) for side in (0, 1))
        due_us = self._gaps[0].due_us(of_matches(rows))
        now = np.ones(len(rows), np.bool_) if ended or reached_us is None else due_us < reached_us
        left = np.flatnonzero(~now)
        self._first_due_us = int(due_us[left].min(initial=NEVER_US))
        self._held = [(only(rows, left), only(events, left))] if len(left) else []
        for gap in self._gaps:
            now &= ~gap.violated(of_matches(rows))
        index = np.flatnonzero(now)
        order = index[np.argsort(due_us[index], kind="stable")]
        cuts = np.flatnonzero(np.diff(order) < 0) + 1
        return [(only(rows, some), only(events, some)) for some in np.split(order, cuts) if len(some)]

    def snapshot(self) -> dict[str, np.ndarray]:
        """Returns its state."""
        arrays = {"count": np.array([len(self._held)])}
        for i, pair in enumerate(self._held):
            for side, matches in enumerate(pair):
                arrays |= saved(matches, f"{i} {side} ")
        return arrays

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restores a snapshot."""
        count = int(state["count"][0])
        self._held = [(restored(state, f"{i} 0 "), restored(state, f"{i} 1 ")) for i in range(count)]
        due_us = [int(self._gaps[0].due_us(of_matches(rows)).min()) for rows, _ in self._held]
        self._first_due_us = min(due_us, default=NEVER_US)


def of_matches(matches: Matches) -> pa.Table:
    """Returns the first output row of each match."""
    if len(matches.rows) == len(matches):
        return matches.rows
    return matches.rows.take(pa.array(np.searchsorted(matches.row_match, np.arange(len(matches)))))


def bare(matches: Matches, sources: tuple[str, ...]) -> Matches:
    """Returns matches without their evidence."""
    none: Int64Array = np.zeros(0, np.int64)
    return replace(
        matches, first_us=none, last_us=none, event_bounds=np.zeros(len(matches) + 1, np.int64),
        event_variable=none.astype(np.int16), event_ts_us=none, event_source=none.astype(np.int32), event_offset=none,
        event_seq=none, variables=(), sources=sources,
    )  # fmt: skip


def none(sources: tuple[str, ...]) -> Matches:
    """Returns no matches, without their columns."""
    empty: Int64Array = np.zeros(0, np.int64)
    return Matches(
        pa.table({}), empty, empty, empty, empty, np.zeros(1, np.int64), empty.astype(np.int16), empty,
        empty.astype(np.int32), empty, empty, (), sources,
    )  # fmt: skip


def joined(parts: Sequence[Matches]) -> Matches:
    """Returns the matches of all parts, one after the other; there is at least one part."""
    if len(parts) == 1:
        return parts[0]
    names = tuple(dict.fromkeys(name for part in parts for name in part.variables))
    places = {name: i for i, name in enumerate(names)}
    recoded = [
        np.array([places[name] for name in part.variables] or [0], np.int16)[part.event_variable] for part in parts
    ]

    def all_of(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name) for part in parts])

    def behind(name: str, sizes: list[int]) -> list[np.ndarray]:
        begins = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        return [getattr(part, name) + begin for part, begin in zip(parts, begins, strict=True)]

    bounds = behind("event_bounds", [int(part.event_bounds[-1]) for part in parts])
    return Matches(
        pa.concat_tables([part.rows for part in parts]),
        np.concatenate(behind("row_match", [len(part) for part in parts])), all_of("number"), all_of("first_us"),
        all_of("last_us"), np.concatenate([np.zeros(1, np.int64), *(part[1:] for part in bounds)]),
        np.concatenate(recoded), all_of("event_ts_us"), all_of("event_source"), all_of("event_offset"),
        all_of("event_seq"), names, parts[-1].sources,
    )  # fmt: skip


def saved(matches: Matches, tag: str) -> dict[str, np.ndarray]:
    """Returns matches as arrays, whose names begin with a tag."""
    names = as_array(json.dumps([matches.variables, matches.sources]).encode())
    arrays = {f"{tag}{name}": getattr(matches, name) for name in ARRAYS}
    return arrays | {f"{tag}rows": saved_table(matches.rows), f"{tag}names": names}


def restored(state: Mapping[str, np.ndarray], tag: str) -> Matches:
    """Returns saved matches."""
    row_match, number, first_us, last_us, bounds, *events = (state[f"{tag}{name}"] for name in ARRAYS)
    variable, ts_us, source, offset, seq = events
    variables, sources = map(tuple, json.loads(state[f"{tag}names"].tobytes()))
    return Matches(
        read_table(state[f"{tag}rows"]), row_match, number, first_us, last_us, bounds, variable, ts_us, source, offset,
        seq, variables, sources,
    )  # fmt: skip

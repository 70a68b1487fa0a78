"""Evidence of matches: their events, their ids, and the long table that shows both."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from matching.batch import EventBatch, Matches
from matching.identity import id_texts, match_ids


@dataclass(frozen=True, slots=True)
class Evidence:
    """Events of n matches, as arrays. Match i has the events bounds[i] to bounds[i + 1].

    variable: index into `variables`, -1 without a variable (plain history rows). source: index into `sources`.
    seq: ingest sequence, by which a Lookup finds the event. lanes: int64 (n, 2), the ids, if they do not come from the
    events: of rows of windows, and of all where some are timeouts, unmatched rows or empty matches; else None.
    """

    bounds: np.ndarray
    variable: np.ndarray
    ts_us: np.ndarray
    source: np.ndarray
    offset: np.ndarray
    seq: np.ndarray
    variables: tuple[str, ...]
    sources: tuple[str, ...]
    lanes: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.bounds) - 1

    def take(self, index: np.ndarray) -> Evidence:
        """Returns the matches at `index`, in that order."""
        lengths = np.diff(self.bounds)[index]
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        events = np.repeat(self.bounds[:-1][index] - bounds[:-1], lengths) + np.arange(bounds[-1])
        return Evidence(
            bounds, self.variable[events], self.ts_us[events], self.source[events], self.offset[events],
            self.seq[events], self.variables, self.sources, None if self.lanes is None else self.lanes[index],
        )

    def last_us(self) -> np.ndarray:
        """Returns the time of the last event of each match, int64 (n,). No match may be empty."""
        return self.ts_us[self.bounds[1:] - 1]

    def span_us(self, nothing: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the times of the first and the last event of each match, int64 (n,) each; `nothing` if empty."""
        empty = self.bounds[1:] == self.bounds[:-1]
        times = np.append(self.ts_us, nothing)
        first, last = times[self.bounds[:-1]], times[self.bounds[1:] - 1]
        return np.where(empty, nothing, first), np.where(empty, nothing, last)

    def ids(self, fingerprint: str) -> list[str]:
        """Returns the match ids under a plan's fingerprint; see matching.identity."""
        if self.lanes is not None:
            return [str(name) for name in id_texts(self.lanes).to_pylist()]
        return match_ids(
            fingerprint, self.bounds, self.variable, self.source, self.offset, self.variables, self.sources
        )


NO_EVIDENCE = Evidence(
    np.zeros(1, np.int64), np.empty(0, np.int16), np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, np.int64),
    np.empty(0, np.int64), (), (),
)


def join_id(*ids: str) -> str:
    """Returns the id of a joined row, a hash of its match ids: the live one, then one per history join, empty where
    nothing joined."""
    return hashlib.blake2b("/".join(ids).encode(), digest_size=16).hexdigest()


def of_matches(matches: Matches) -> Evidence:
    """Returns the evidence of matches, zero copy."""
    return Evidence(
        matches.event_bounds, matches.event_variable, matches.event_ts_us, matches.event_source, matches.event_offset,
        matches.event_seq, matches.variables, matches.sources, matches.ids,
    )


def of_windows(lanes: np.ndarray) -> Evidence:
    """Returns rows of windows, given their ids, as matches without events."""
    return replace(NO_EVIDENCE, bounds=np.zeros(len(lanes) + 1, np.int64), lanes=lanes)


def of_rows(batch: EventBatch, index: np.ndarray) -> Evidence:
    """Returns plain rows as matches of one event each, without a variable."""
    n = len(index)
    return Evidence(
        np.arange(n + 1, dtype=np.int64), np.full(n, -1, np.int16), batch.ts_us[index], batch.source[index],
        batch.offset[index], batch.seq[index], (), batch.sources,
    )


def concat(parts: Sequence[Evidence]) -> Evidence:
    """Concatenates evidence. Names may differ between parts: indices are rewritten."""
    parts = [p for p in parts if len(p)]
    if not parts:
        return NO_EVIDENCE
    if len(parts) == 1:
        return parts[0]
    variables = tuple(dict.fromkeys(v for p in parts for v in p.variables))
    sources = tuple(dict.fromkeys(s for p in parts for s in p.sources))

    def renamed(index: np.ndarray, names: tuple[str, ...], union: tuple[str, ...]) -> np.ndarray:
        if names == union[: len(names)]:
            return index
        table = np.array([union.index(x) for x in names] + [-1], index.dtype)
        return table[index]

    shifts = np.concatenate([[0], np.cumsum([p.bounds[-1] for p in parts])])
    lanes = [p.lanes for p in parts if p.lanes is not None]
    return Evidence(
        np.concatenate([[0]] + [p.bounds[1:] + s for p, s in zip(parts, shifts)]).astype(np.int64),
        np.concatenate([renamed(p.variable, p.variables, variables) for p in parts]),
        np.concatenate([p.ts_us for p in parts]),
        np.concatenate([renamed(p.source, p.sources, sources) for p in parts]),
        np.concatenate([p.offset for p in parts]),
        np.concatenate([p.seq for p in parts]),
        variables, sources,
        np.concatenate(lanes) if len(lanes) == len(parts) else None,
    )


class Parts:
    """Evidence in parts, concatenated on first use: most answers never need it."""

    def __init__(self, parts: Sequence[Evidence]) -> None:
        self._parts = parts
        self._whole: Evidence | None = None

    def whole(self) -> Evidence:
        if self._whole is None:
            self._whole, self._parts = concat(self._parts), ()
        return self._whole


class Lookup(Protocol):
    """Reads events again. A call returns the columns of the events with these sequence numbers and times, in that
    order; `between` returns all events between two times, both included."""

    def __call__(self, seq: np.ndarray, ts_us: np.ndarray) -> pa.Table: ...
    def between(self, low_us: int, high_us: int) -> EventBatch: ...


FIXED = {
    "row": pa.int64(), "match_id": pa.string(), "join_id": pa.string(), "side": pa.string(), "variable": pa.string(),
    "event_time": pa.timestamp("us"), "source": pa.string(), "offset": pa.int64(), "history_complete": pa.bool_(),
}  # fmt: skip


def long_table(
    rows: np.ndarray, match_ids: Sequence[str | None], join_ids: Sequence[str | None], complete: Sequence[bool | None],
    side: str, evidence: Evidence, lookup: Lookup,
) -> pa.Table:
    """Returns one line per event of each match: output row, ids, side, variable, source, offset, completeness of
    history, and the event's columns."""
    lengths = np.diff(evidence.bounds)
    which = np.repeat(np.arange(len(evidence)), lengths)
    names = pa.array([*evidence.variables, None], pa.string())
    sources = pa.array([*evidence.sources, None], pa.string())
    variable = np.where(evidence.variable < 0, len(evidence.variables), evidence.variable)
    fixed = {
        "row": pa.array(rows[which], pa.int64()),
        "match_id": pa.array(list(match_ids), pa.string()).take(pa.array(which)),
        "join_id": pa.array(list(join_ids), pa.string()).take(pa.array(which)),
        "side": pa.repeat(pa.scalar(side, pa.string()), len(which)),
        "variable": names.take(pa.array(variable)),
        "event_time": pa.array(evidence.ts_us, pa.int64()).cast(pa.timestamp("us")),
        "source": sources.take(pa.array(evidence.source)),
        "offset": pa.array(evidence.offset, pa.int64()),
        "history_complete": pa.array(list(complete), pa.bool_()).take(pa.array(which)),
    }
    columns = lookup(evidence.seq, evidence.ts_us)
    for name, column in zip(columns.column_names, columns.columns):
        fixed[name if name not in FIXED else f"{name}_"] = column
    return pa.table(fixed)


def stacked(tables: Sequence[pa.Table]) -> pa.Table:
    """Concatenates long tables of several sides. A column of two types becomes text."""
    if not tables:
        return pa.schema(list(FIXED.items())).empty_table()
    types: dict[str, pa.DataType] = {}
    for t in tables:
        for field in t.schema:
            types[field.name] = field.type if types.setdefault(field.name, field.type) == field.type else pa.string()
    aligned = [
        pa.table({name: t.column(name).cast(type) if name in t.column_names else pa.nulls(t.num_rows, type)
                  for name, type in types.items()})
        for t in tables
    ]
    return pa.concat_tables(aligned)

"""Decided matches as arrays, written by an engine and read by matching.measures."""

from __future__ import annotations

import numpy as np

from matching.batch import Int64Array

PER_MATCH = ("start", "partition", "number", "outcome", "waiting")
PER_ROW = ("rows", "variables", "ts", "source", "offset", "seq")


class Decode:
    """The buffer for decided matches: per match bounds (n + 1), start row, partition, number, outcome
    (query.plan.output.Outcome) and, for a TIMEOUT, the state it waited in (else -1); per matched row its position,
    variable and identity. Of carried matches (matching.program.carried) only the last row, and per match the registers,
    `carried`, int64 (n, registers), -1 null."""

    carried: np.ndarray
    #: per match the row that decided it, if the engine notes it (matching.engines.engine.Engine.dates)
    at: Int64Array | None = None

    def __init__(self, bare: bool = False) -> None:
        """bare: True if the identities of rows are not needed; they then get no room."""
        self.bare = bare

    def begin(self, count: int) -> None:
        self.count = count
        self.bounds = np.zeros(count + 1, np.int64)
        self.start = np.empty(count, np.int64)
        self.partition = np.empty(count, np.int64)
        self.number = np.empty(count, np.int64)
        self.outcome = np.zeros(count, np.int8)
        self.waiting = np.full(count, -1, np.int64)

    def room(self, total: int) -> None:
        """Makes room for `total` matched rows."""
        self.rows = np.empty(total, np.int64)
        self.variables = np.empty(total, np.int16)
        total = 0 if self.bare else total
        self.ts = np.empty(total, np.int64)
        self.source = np.empty(total, np.int32)
        self.offset = np.empty(total, np.int64)
        self.seq = np.empty(total, np.int64)

    def take(self, index: Int64Array, length: int = 0) -> Decode:
        """The matches at `index`, in that order. length: see `head`."""
        if length:
            lengths, begins = np.full(len(index), length), index * length
        else:
            lengths, begins = np.diff(self.bounds)[index], self.bounds[index]
        out = Decode(self.bare)
        out.begin(len(index))
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        out.bounds = out.bounds if length else bounds
        at = np.arange(bounds[-1]) - np.repeat(bounds[:-1] - begins, lengths)
        for name in PER_MATCH:
            setattr(out, name, getattr(self, name)[index])
        for name in PER_ROW:
            if hasattr(self, name):
                values = getattr(self, name)
                setattr(out, name, values[at] if len(values) else values)
        if hasattr(self, "carried"):
            out.carried = self.carried[index]
        out.at = None if self.at is None else self.at[index]
        return out

    def head(self, count: int, length: int = 0) -> Decode:
        """Returns the first matches. length: of each, if all have the same rows, which then have no bounds."""
        out = Decode(self.bare)
        out.begin(count)
        out.bounds = self.bounds[: count + 1]
        for name in PER_MATCH:
            setattr(out, name, getattr(self, name)[:count])
        total = length * count if length else int(out.bounds[-1])
        for name in PER_ROW:
            if hasattr(self, name):
                setattr(out, name, getattr(self, name)[:total])
        if hasattr(self, "carried"):
            out.carried = self.carried[:count]
        out.at = None if self.at is None else self.at[:count]
        return out

    def last_rows(self, length: int = 0) -> Int64Array:
        """Returns the last row of each match; of an empty one its start. length: see `head`."""
        if length:
            return self.rows.reshape(self.count, length)[:, -1]
        some = self.bounds[:-1] < self.bounds[1:]
        last = self.start.copy()
        last[some] = self.rows[self.bounds[1:][some] - 1]
        return last

    def then(self, other: Decode) -> Decode:
        """Returns these matches followed by those of another."""
        out = Decode()
        out.begin(self.count + other.count)
        out.bounds = np.concatenate([self.bounds, other.bounds[1:] + self.bounds[-1]])
        for name in (*PER_MATCH, *PER_ROW):
            setattr(out, name, np.concatenate([getattr(self, name), getattr(other, name)]))
        return out

    def trim(self) -> None:
        """Drops the room beyond the last bound."""
        total = int(self.bounds[-1])
        for name in PER_ROW:
            setattr(self, name, getattr(self, name)[:total].copy())

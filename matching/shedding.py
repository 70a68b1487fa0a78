"""Load shedding: whole partitions of one query are left out, so that all rows emitted are those of the others.

A partition is kept or left out by a hash of its key, never by chance, and by the same hash in every query: it falls
into one of BUCKETS, and those below `kept` are kept. Counts by bucket record the effect: events taken, events left out,
and rows that resulted from those taken. From these the recall is estimated.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from matching.batch import EventBatch, Int64Array, Matches
from matching.emitted import only
from matching.keys import hashes
from matching.types import plain_type
from query.plan.expression import Column

#: Number of buckets: steps of the share of keys that are kept, and units of the counts.
BUCKETS = 1 << 10
#: Number of marks that count the keys left out, each key at one of them: approximate beyond some thousands.
MARKS = 1 << 20

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Account:
    """The effect of shedding on a query since it began.

    taken, shed: events; keys: partitions left out at some time, approximately; rows: emitted rows of the pattern;
    withheld: rows of partitions left out that resulted from their earlier events. recall: estimated share of the rows
    without shedding that were emitted; None before the first row.
    """

    taken: int
    shed: int
    keys: int
    rows: int
    withheld: int
    recall: float | None


class Shedder:
    """Leaves out the events and the rows of partitions of one query. Not thread safe. kept: buckets that are kept.

    Raises pa.ArrowException where the type of a partition column has no hash."""

    def __init__(self, partition_by: Sequence[Column]) -> None:
        self._names = tuple(c.name for c in partition_by)
        self._types = tuple(plain_type(c.type) for c in partition_by)
        self.kept = BUCKETS
        self._taken, self._shed, self._rows = (np.zeros(BUCKETS, np.int64) for _ in range(3))
        self._withheld = 0
        self._marks = np.zeros(MARKS, np.bool_)
        self.hashes([pa.array([], t) for t in self._types], 0)

    def keep(self, share: float) -> None:
        """Keeps that share of the keys from now on, more than 0."""
        self.kept = math.ceil(share * BUCKETS)

    @property
    def keeps_all(self) -> bool:
        """True if nothing is left out now."""
        return self.kept == BUCKETS

    def anew(self, partition_by: Sequence[Column]) -> Shedder:
        """Returns the shedder of a new version of the query, which keeps all keys, with the same counts if they are of
        the same partitions."""
        new = Shedder(partition_by)
        if (new._names, new._types) == (self._names, self._types):
            new.restore(self.snapshot())
        new.kept = BUCKETS
        return new

    def hashes(self, columns: Sequence[pa.Array], rows: int) -> Int64Array:
        return hashes(columns, self._types, rows)

    def take(self, batch: EventBatch) -> EventBatch:
        """Returns the events of partitions that are kept, in their order; the others are counted. O(events)."""
        found = self.hashes([batch.columns.column(name) for name in self._names], len(batch))
        bucket = found & (BUCKETS - 1)
        if self.kept == BUCKETS:
            self._taken += np.bincount(bucket, minlength=BUCKETS)
            return batch
        keeps = bucket < self.kept
        self._taken += np.bincount(bucket[keeps], minlength=BUCKETS)
        self._shed += np.bincount(bucket[~keeps], minlength=BUCKETS)
        self._marks[(found[~keeps] >> 10) & (MARKS - 1)] = True
        return batch.take(np.flatnonzero(keeps))

    def among(self, matches: Matches) -> Matches:
        """Returns the matches of partitions that are kept. A partition that is left out still has its runs, but has
        missed rows, so decisions by time alone would be wrong."""
        if not matches.rows.num_rows:
            return matches if self.kept == BUCKETS else only(matches, np.zeros(0, np.int64))
        columns = [matches.rows.column(i).combine_chunks() for i in range(len(self._names))]
        bucket = self.hashes(columns, matches.rows.num_rows) & (BUCKETS - 1)
        self._rows += np.bincount(bucket[bucket < self.kept], minlength=BUCKETS)
        if self.kept == BUCKETS:
            return matches
        keeps = np.zeros(len(matches), np.bool_)
        keeps[matches.row_match[bucket < self.kept]] = True
        self._withheld += int(np.count_nonzero(bucket >= self.kept))
        return only(matches, np.flatnonzero(keeps))

    def account(self) -> Account:
        """Returns the account. Estimates the missing rows as those of the events left out, at the bucket's own rate of
        rows per event or, the fewer of its events were seen, at the rate of all buckets together."""
        taken, shed, rows = int(self._taken.sum()), int(self._shed.sum()), int(self._rows.sum())
        marked = int(np.count_nonzero(self._marks))
        keys = round(-MARKS * math.log1p(-min(marked, MARKS - 1) / MARKS))
        recall: float | None = None
        if not shed:
            recall = 1.0
        elif rows:
            rates = (self._rows + 1.0) / (self._taken + taken / rows)  # smoothed by one row
            recall = rows / (rows + float((self._shed * rates).sum()))
        return Account(taken, shed, keys, rows, self._withheld, recall)

    def snapshot(self) -> dict[str, np.ndarray]:
        """Returns its decisions and counts."""
        return {
            "kept": np.array([self.kept, self._withheld]), "taken": self._taken, "shed": self._shed,
            "rows": self._rows, "marks": np.packbits(self._marks),
        }  # fmt: skip

    def restore(self, arrays: Arrays) -> None:
        """Restores a snapshot of a shedder with the same PARTITION BY."""
        self.kept, self._withheld = map(int, arrays["kept"])
        self._taken, self._shed, self._rows = (arrays[name].copy() for name in ("taken", "shed", "rows"))
        self._marks = np.unpackbits(arrays["marks"]).astype(np.bool_)

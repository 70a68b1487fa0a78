"""Finds matched events again: their columns, by time and ingest sequence."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from hybrid.correlate import Reader
from hybrid.evidence import Lookup
from query.errors import DataError


def lookup_in(reader: Reader, late: bool = False) -> Lookup:
    """Reads events back from a snapshot or a bounded input: one read over the time they span."""

    def lookup(seq: np.ndarray, ts_us: np.ndarray) -> pa.Table:
        if not len(seq):
            return pa.Table.from_batches([reader.read(0, 0).columns])
        batch = reader.read(int(ts_us.min()), int(ts_us.max()), closed=True, late=late)
        order = np.argsort(batch.seq, kind="stable")
        have = batch.seq[order]
        at = np.searchsorted(have, seq)
        if not len(have) or (have[np.minimum(at, len(have) - 1)] != seq).any():
            raise DataError("some matched events are no longer in the archive", "keep them longer: retention=")
        return pa.Table.from_batches([batch.columns]).take(pa.array(order[at]))

    return lookup

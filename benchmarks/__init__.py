"""Benchmarks beside peers: each prints one JSON object with times, match counts and a hash of the matches."""

from __future__ import annotations

import os

# One thread per library. They read this when they are imported, so it stands here, before any of them.
for _variable in ("NUMBA_NUM_THREADS", "POLARS_MAX_THREADS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_variable] = "1"

"""DuckDB's order of doubles."""

from __future__ import annotations

import numpy as np

from matching.kernels.jit import inlined


@inlined
def float_less(x, y):
    """NaN equals itself and is the largest."""
    if np.isnan(x):
        return False
    return x < y or np.isnan(y)


@inlined
def float_equal(x, y):
    return x == y or (np.isnan(x) and np.isnan(y))


@inlined
def to_float(x, divisor):
    """An integer of a scale, whose divisor is 10**scale, as a double."""
    return x / divisor

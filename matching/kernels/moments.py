"""Moments of the values of a run, one row after the other, as DuckDB adds them up and is compiled: where a product is
added, both are rounded once. The update is that of P. Pebay, Formulas for Robust, One-Pass Parallel Computation of
Covariances and Arbitrary-Order Statistical Moments (2008), section 2."""

from __future__ import annotations

import numpy as np

from matching.kernels.jit import called
from matching.kernels.libm import multiplied_and_added

#: Slots of the moments: the mean, and the sums of the powers 2, 3 and 4 of the distances from it.
MEAN, SECOND, THIRD, FOURTH = range(4)


@called
def add(moments, before, x):
    """Adds a value to the moments of `before` others."""
    n = np.float64(before + 1)
    second, third = moments[SECOND], moments[THIRD]
    apart = x - moments[MEAN]
    step = apart / n
    squared = step * step
    more = apart * step * np.float64(before)
    weight = multiplied_and_added(n, n, n * -3.0) + 3.0
    rest = multiplied_and_added(weight, squared * more, second * (squared * 6.0))
    moments[FOURTH] += multiplied_and_added(step * -4.0, third, rest)
    moments[THIRD] += multiplied_and_added(n - 2.0, step * more, -(step * 3.0 * second))
    moments[MEAN] += step
    moments[SECOND] += more


@called
def skewness(moments, count):
    """Returns (whether there is one, the skewness) of `count` values. Where it is not finite DuckDB has an error."""
    n, second = np.float64(count), moments[SECOND]
    if count < 3 or second <= 0.0:
        return False, 0.0
    of_all = np.sqrt(n) * (moments[THIRD] / second) / np.sqrt(second)
    return True, np.sqrt((n - 1.0) * n) / (n - 2.0) * of_all


@called
def kurtosis(moments, count, of_all):
    """Like `skewness`. of_all: of a population, else of a sample."""
    n, second = np.float64(count), moments[SECOND]
    if count < (2 if of_all else 4) or second <= 0.0:
        return False, 0.0
    found = moments[FOURTH] / second * n / second
    if of_all:
        return True, found - 3.0
    beyond = multiplied_and_added(found, n + 1.0, (n - 1.0) * -3.0)
    return True, (n - 1.0) * beyond / ((n - 2.0) * (n - 3.0))

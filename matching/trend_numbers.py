"""Numbers of several limbs, as kernels count trends (matching.kernels.limbs), and Python's ints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from math import fsum

import numpy as np

from matching.batch import Int64Array


def whole_numbers(whole: np.ndarray, group: np.ndarray, count: int) -> np.ndarray:
    """Returns the sums of numbers by group, as Python's ints, object (count, numbers). whole: int64 (rows, numbers,
    limbs), two's complement, the lowest limb first."""
    rows, numbers, limbs = whole.shape
    out = np.empty((count, numbers), object)
    if limbs == 1 and (rows == 0 or int(np.abs(whole >> 1).max()) < (1 << 61) // rows):
        added = np.zeros((count, numbers), np.int64)
        np.add.at(added, group, whole[:, :, 0])
        out[:] = added
        return out
    content, size = whole.tobytes(), 8 * limbs
    each = [int.from_bytes(content[at : at + size], "little", signed=True) for at in range(0, len(content), size)]
    values = np.array(each, object).reshape(rows, numbers)
    if rows == count:  # each group has a row
        out[group] = values
        return out
    out[:] = 0
    np.add.at(out, group, values)
    return out


def limbs_of(numbers: np.ndarray, columns: int) -> np.ndarray:
    """Returns numbers in limbs, int64 (rows, columns, limbs), as `whole_numbers` takes them. numbers: Python's ints,
    object (rows, columns)."""
    bits = max((n.bit_length() for n in numbers.flat), default=0)
    size = 8 * (bits // 64 + 1)  # a bit for the sign
    content = b"".join(n.to_bytes(size, "little", signed=True) for n in numbers.flat)
    return np.frombuffer(content, np.int64).reshape(len(numbers), columns, size // 8)


def sums_of_doubles(values: np.ndarray, group: Int64Array, count: int) -> np.ndarray:
    """Returns the sums of doubles by group, float64 (count,): each is the double next to the exact sum, so that no
    order of the values matters. values: float64 (n,)."""
    added = np.zeros(count)
    with np.errstate(over="ignore", invalid="ignore"):
        np.add.at(added, group, values)
    many = np.flatnonzero(np.bincount(group, minlength=count) > 2)  # a sum of two is rounded once
    if len(many):
        order = np.argsort(group, kind="stable")
        ordered, by = values[order].tolist(), group[order]
        bounds = [np.searchsorted(by, many, side).tolist() for side in ("left", "right")]
        try:
            added[many] = [fsum(ordered[a:b]) for a, b in zip(*bounds, strict=True)]
        except (ValueError, OverflowError):
            added[many] = [exactly_added(ordered[a:b]) for a, b in zip(*bounds, strict=True)]
    return added


def exactly_added(values: Sequence[float]) -> float:
    """Returns the double next to the exact sum of doubles."""
    try:
        return fsum(values)
    except ValueError:  # of both infinities
        return math.nan
    except OverflowError:  # perhaps of a part of them only
        return nearest(sum(map(Fraction, values), Fraction()))


def nearest(value: Fraction) -> float:
    """Returns the double next to a number, infinity beyond the largest one."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def few_doubles(values: Sequence[float]) -> list[float]:
    """Returns a few doubles with the same exact sum."""
    left, few = list(values), list[float]()
    while len(few) < len(values):
        try:
            part = fsum(left)
        except (ValueError, OverflowError):
            return list(values)
        if part == 0.0:
            return few
        few.append(part)
        if not math.isfinite(part):
            return few
        left.append(-part)
    return list(values)

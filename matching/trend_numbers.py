"""Numbers of several limbs, as kernels count trends (matching.kernels.limbs), and Python's ints."""

from __future__ import annotations

import numpy as np


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

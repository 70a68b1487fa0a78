"""Numbers of several limbs, as kernels count trends (matching.kernels.limbs), and Python's ints."""

from __future__ import annotations

import numpy as np

#: Bits of a digit while numbers are added: so many rows of them fit into an int64.
_DIGIT = 32


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
    unsigned = whole.view(np.uint64)
    digits = np.empty((rows, numbers, 2 * limbs), np.int64)
    digits[:, :, 0::2] = (unsigned & np.uint64(0xFFFFFFFF)).astype(np.int64)
    digits[:, :, 1::2] = (unsigned >> np.uint64(_DIGIT)).astype(np.int64)
    digits[:, :, -1] = whole[:, :, -1] >> _DIGIT  # the highest digit has the sign
    added = np.zeros((count, numbers, 2 * limbs), np.int64)
    np.add.at(added, group, digits)
    for i in range(count):
        for k in range(numbers):
            value = 0
            for digit in reversed(added[i, k].tolist()):
                value = (value << _DIGIT) + digit
            out[i, k] = value
    return out


def limbs_of(numbers: np.ndarray, columns: int) -> np.ndarray:
    """Returns numbers in limbs, int64 (rows, columns, limbs), as `whole_numbers` takes them. numbers: Python's ints,
    object (rows, columns)."""
    bits = max((n.bit_length() for n in numbers.flat), default=0)
    size = 8 * (bits // 64 + 1)  # a bit for the sign
    content = b"".join(n.to_bytes(size, "little", signed=True) for n in numbers.flat)
    return np.frombuffer(content, np.int64).reshape(len(numbers), columns, size // 8)

"""Texts that are joined, compared with a constant: by what is left of the constant, text by text."""

from __future__ import annotations

import numpy as np

from matching.kernels.jit import kernel


@kernel
def step_texts(offsets, data, constant, out):
    """out[i, s]: the state after text i in state s; see matching.features.Codes.steps. offsets: of the texts in
    `data`."""
    size = len(constant)
    for i in range(len(out)):
        begin, length = np.int64(offsets[i]), np.int64(offsets[i + 1]) - np.int64(offsets[i])
        out[i, 0], out[i, size + 2] = 0, size + 2
        for s in range(size + 1):
            known = min(length, size - s)
            state = s + length + 1 if known == length else size + 2
            for k in range(known):
                if data[begin + k] != constant[s + k]:
                    state = 0 if data[begin + k] < constant[s + k] else size + 2
                    break
            out[i, s + 1] = state

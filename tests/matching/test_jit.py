"""Kernels that only kernels call have no code for Python."""

from __future__ import annotations

from matching.kernels import integers


def test_a_kernel_that_only_kernels_call_can_be_called_by_a_test() -> None:
    # It has no code for that: numba would jump to address 0.
    assert integers.many_sum(1, 2) == 3
    assert integers.wrapped_sum(1, -2) == -1

"""Integers that overflow knowingly, beside those of Python, which have no end."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from matching.kernels import integers
from matching.kernels.integers import MANY

LOW, HIGH = -(1 << 63), (1 << 63) - 1
numbers = st.integers(LOW, HIGH) | st.sampled_from((LOW, LOW + 1, -1, 0, 1, 1 << 31, 1 << 32, HIGH - 1, HIGH))


def wrapped(value: int) -> int:
    return (value - LOW) % (1 << 64) + LOW


@given(x=numbers, y=numbers)
@example(x=8, y=-7046029254386353131)  # of this product numba alone makes anything at all
@example(x=LOW, y=-1)
def test_overflow_is_seen_and_wraps_around(x: int, y: int) -> None:
    for asked, value in (
        (integers.add_overflows, x + y), (integers.sub_overflows, x - y), (integers.mul_overflows, x * y),
    ):  # fmt: skip
        assert asked(x, y) == (not LOW <= value <= HIGH)
    assert integers.wrapped_sum(x, y) == wrapped(x + y)
    assert integers.wrapped_product(x, y) == wrapped(x * y)


@given(x=st.integers(0, HIGH), y=st.integers(0, HIGH) | st.just(HIGH))
def test_a_sum_stops_at_many(x: int, y: int) -> None:
    assert integers.many_sum(x, y) == min(x + y, MANY)

"""Lowered expressions over whole batches, by numpy: the array form of the operations in matching.program.opcodes.

matching.features evaluates row-local expressions by it, hybrid.join.correlate the conditions of ON.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from functools import cache
from typing import Any, cast

import numpy as np

from matching.program.lanes import INT64_MAX, INT64_MIN, Lane, Leaf, Literal, Lowered, Op
from matching.program.opcodes import Compute, OpCode, constants_of

#: The values of an expression for n rows, and which are not null (None: all).
Values = tuple[np.ndarray, np.ndarray | None]


class Overflow(Exception):
    """A lane overflowed for one of the rows; DuckDB decides whether that row was ever read."""


def _some_nan(x: np.ndarray) -> bool:
    return bool(x.size) and bool(np.isnan(np.min(x)))


def _float_less(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """DuckDB's order of doubles: NaN is the largest."""
    less = x < y  # false where one is NaN
    return less | (np.isnan(y) & ~np.isnan(x)) if _some_nan(y) else less


def _float_equal(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    equal = x == y
    return equal | (np.isnan(x) & np.isnan(y)) if _some_nan(x) else equal


def _extremes(x: np.ndarray) -> tuple[int, int]:
    """The smallest and the largest integer, or 0 if that is beyond them. np.min takes twice as long of few rows."""
    smallest, largest = np.minimum.reduce, np.maximum.reduce
    return int(smallest(x, axis=None, initial=0)), int(largest(x, axis=None, initial=0))


def _size(x: np.ndarray) -> int:
    """Returns the distance of the farthest integer from 0."""
    low, high = _extremes(x)
    return max(-low, high)


def _add_overflows(x: np.ndarray, y: np.ndarray) -> np.ndarray | bool:
    if _size(x) + _size(y) <= INT64_MAX:
        return False
    r = x + y
    return ((x ^ r) & (y ^ r)) < 0


def _sub_overflows(x: np.ndarray, y: np.ndarray) -> np.ndarray | bool:
    if _size(x) + _size(y) <= INT64_MAX:
        return False
    r = x - y
    return ((x ^ y) & (x ^ r)) < 0


def _mul_overflows(x: np.ndarray, y: np.ndarray) -> np.ndarray | bool:
    if _size(x) * _size(y) <= INT64_MAX:
        return False
    # the product of doubles is off by a little, the wrapped one by 2**64 or more
    return np.abs((x * y).astype(np.float64) - x.astype(np.float64) * y.astype(np.float64)) > 2.0**62


def _quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    q = (np.abs(x).view(np.uint64) // np.abs(y).view(np.uint64)).view(np.int64)  # unsigned: abs(INT64_MIN) is 2**63
    return np.where((x < 0) != (y < 0), -q, q)


def _larger(x: np.ndarray, y: np.ndarray, xv: np.ndarray | bool, yv: np.ndarray | bool) -> np.ndarray:
    return np.where(xv & ((yv == False) | (x > y)), x, y)  # noqa: E712


def _smaller(x: np.ndarray, y: np.ndarray, xv: np.ndarray | bool, yv: np.ndarray | bool) -> np.ndarray:
    return np.where(xv & ((yv == False) | (x < y)), x, y)  # noqa: E712


def _float_larger(x: np.ndarray, y: np.ndarray, xv: np.ndarray | bool, yv: np.ndarray | bool) -> np.ndarray:
    return np.where(xv & ((yv == False) | (_float_less(x, y) == False)), x, y)  # noqa: E712


def _float_smaller(x: np.ndarray, y: np.ndarray, xv: np.ndarray | bool, yv: np.ndarray | bool) -> np.ndarray:
    return np.where(xv & ((yv == False) | (_float_less(y, x) == False)), x, y)  # noqa: E712


def _lower_quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x // y


def _upper_quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return x // y + (x % y != 0)


def _rounded_quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    whole = _quotient(x, y)
    rest = x - whole * y
    size = np.abs(rest)
    return whole + np.sign(rest) * (size >= y - size)


def _stretched(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    beyond = _mul_overflows(x, y)
    return x * y if beyond is False else np.where(beyond, np.where(x > 0, INT64_MAX, INT64_MIN), x * y)


def _nearest(x: np.ndarray) -> np.ndarray:
    return np.rint(x).astype(np.int64)


def _left_to_duckdb(*_: object) -> np.ndarray:
    """numpy's functions round differently from those of the C library."""
    raise Overflow


#: The functions that the texts of matching.program.opcodes call, for arrays.
ARRAY_FUNCTIONS: dict[str, Any] = {
    "INT64_MIN": np.int64(INT64_MIN), "abs": np.abs, "float_less": _float_less, "float_equal": _float_equal,
    "add_overflows": _add_overflows, "sub_overflows": _sub_overflows, "mul_overflows": _mul_overflows,
    "larger": _larger, "smaller": _smaller, "float_larger": _float_larger, "float_smaller": _float_smaller,
    "lower_quotient": _lower_quotient, "upper_quotient": _upper_quotient, "rounded_quotient": _rounded_quotient,
    "nearest": _nearest, "stretched": _stretched, "function_of": _left_to_duckdb, "function_of_two": _left_to_duckdb,
    "rounded": _left_to_duckdb, "quotient": _quotient, "remainder": lambda x, y: x - _quotient(x, y) * y,
    "to_float": lambda x, c: x.astype(np.float64) if c == 1 else x.astype(np.float64) / c,
}  # fmt: skip


@cache
def _array_form(text: str) -> Callable[..., Any]:
    """A text of matching.program.opcodes as a function of arrays."""
    return cast(Callable[..., Any], eval(f"lambda x, y, xv, yv, c: {text}", ARRAY_FUNCTIONS))


def _computed(does: Compute, arguments: Sequence[Values], constants: Sequence[int | float], count: int) -> Values:
    """An operation of whole batches. Raises Overflow if it cannot be computed for one of the rows."""
    (x, xv), (y, yv) = arguments[0], arguments[-1]
    if len(arguments) == 1:
        valid = xv
    else:
        valid = yv if xv is None else xv if yv is None else xv & yv
        if does.takes[0] == "truth":
            x, y = (z if z.dtype == np.bool_ else z != 0 for z in (x, y))
    if (does.null or does.valid) and valid is not None:
        xv, yv = (np.ones(count, np.bool_) if z is None else z for z in (xv, yv))
    given = x, y, True if xv is None else xv, yv, np.asarray(constants[0]) if constants else None
    if does.fails:
        _refuse(_array_form(does.fails)(*given), valid)
    result = _array_form(does.value)(*given)
    if "low" in does.operands:
        low, high = constants
        smallest, largest = _extremes(result)
        if smallest < low or largest > high:
            _refuse((result < low) | (result > high), valid)
    if valid is not None and does.null:
        return np.where(valid, result, _array_form(does.null)(*given)), None
    if valid is not None and does.valid:
        valid = None if does.valid == "True" else valid | _array_form(does.valid)(*given)
    return np.asarray(result), valid


def _refuse(bad: np.ndarray | bool, valid: np.ndarray | None) -> None:
    if bad is not False and np.any(bad if valid is None else bad & valid):
        raise Overflow


#: By their names in trees, where two have a second one.
_OPERATIONS = {code.name.lower(): code.does for code in OpCode if isinstance(code.does, Compute)}
_OPERATIONS |= {"both": _OPERATIONS["and"], "either": _OPERATIONS["or"]}


class _Run:
    """One run_lanes. A class, because functions that call each other would keep themselves, and the rows that `read`
    reads, until the next garbage collection."""

    __slots__ = ("computed", "count", "read", "repeated")

    def __init__(
        self, count: int, read: Callable[[Any], Values], repeated: Set[int], computed: dict[int, Values] | None
    ) -> None:
        self.count, self.read, self.repeated, self.computed = count, read, repeated, computed

    def value(self, node: Lowered) -> Values:
        if self.computed is None or id(node) not in self.repeated:
            return self._compute(node)
        if id(node) not in self.computed:
            self.computed[id(node)] = self._compute(node)
        return self.computed[id(node)]

    def _compute(self, node: Lowered) -> Values:
        count, run = self.count, self.value
        match node:
            case Leaf(key):
                return self.read(key)
            case Literal(None, lane):
                return np.zeros(count, np.float64 if lane.floating else np.int64), np.zeros(count, np.bool_)
            case Literal(constant, lane):
                # a scalar broadcasts; it is all valid
                return np.asarray(constant, np.float64 if lane.floating else np.int64), None
            case Op("case", parts):
                return _case([run(p) for p in parts], count, node.lane)
            case Op("coalesce", parts):
                values = [run(p) for p in parts]
                pairs: list[Values] = []
                for value in values[:-1]:
                    valid = np.ones(count, np.bool_) if value[1] is None else value[1]
                    pairs += [(valid, None), value]
                return _case([*pairs, values[-1]], count, node.lane)
            case Op(name, arguments):
                does = _OPERATIONS[name]
                constants = constants_of(node) if does.operands else ()
                return _computed(does, [run(a) for a in arguments], constants, count)
            case _:
                raise AssertionError(node)


def run_lanes(
    low: Lowered, count: int, read: Callable[[Any], Values], repeated: Set[int] = frozenset(),
    computed: dict[int, Values] | None = None,
) -> Values:  # fmt: skip
    """Values and validity of a lowered expression for `count` rows. read: those of a leaf, by its key. computed: of
    nodes, by id; those in `repeated` are taken from there, and put there.

    Raises Overflow where DuckDB may raise."""

    with np.errstate(all="ignore"):
        values, valid = _Run(count, read, repeated, computed).value(low)
    if values.ndim == 0:
        values = np.full(count, values)
    if valid is not None and valid.ndim == 0:
        valid = np.full(count, valid)
    return values, valid


def _case(parts: list[Values], count: int, lane: Lane) -> Values:
    values = np.zeros(count, np.float64 if lane.floating else np.int64)
    valid = np.ones(count, np.bool_)
    left = np.ones(count, np.bool_)
    for (condition, known), (value, ok) in zip(parts[:-1:2], parts[1::2], strict=True):
        chosen = left & (condition != 0) & (True if known is None else known)
        values = np.where(chosen, value, values)
        valid = np.where(chosen, True if ok is None else ok, valid)
        left &= ~chosen
    value, ok = parts[-1]
    return np.where(left, value, values), np.where(left, True if ok is None else ok, valid)


def truth(values: Values) -> np.ndarray:
    """True where the value is true (not null, not false), bool (n,)."""
    v, valid = values
    held = v if v.dtype == np.bool_ else v != 0
    return held if valid is None else held & valid

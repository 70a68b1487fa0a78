"""Each operation of a condition means the same to the interpreter, in a kernel written out, in numpy, and in Python."""

from __future__ import annotations

import ctypes
import ctypes.util
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.array_lanes import ARRAY_FUNCTIONS, Overflow, run_lanes
from matching.kernels import floats, integers, libm
from matching.kernels.jit import module_of
from matching.kernels.layout import new_scratch, program_arrays
from matching.kernels.predicate import holds
from matching.program.lanes import INT64_MAX, INT64_MIN, Lane, Leaf, Literal, Lowered, Op
from matching.program.opcodes import (
    OF_ONE_ROW,
    PRIMITIVES,
    Ask,
    Compute,
    Jump,
    Kind,
    OpCode,
    Push,
    Walk,
    constants_of,
    written,
)
from matching.program.program import Program, SkipTo, TextCodes, assemble
from matching.program.registers import Register, RegisterKind
from matching.written_conditions import IMPORTS, condition, interpreter
from query.automaton.nfa import Label
from query.plan.expression import TRUE
from tests.matching.program.test_lanes import plan_of
from tests.properties.comparing import fewer

FAILS = "it cannot be computed"
Value = int | float | None
SCALES = (0, 2, 18)
RANGES = ((INT64_MIN, INT64_MAX), (-(2**31), 2**31 - 1), (-999_999_999, 999_999_999))  # BIGINT, INTEGER, DECIMAL(9, 2)
#: But for RANK, ASK and WALK, which read what a kernel has; see tests.properties.test_pairs and test_run_aggregates.
COMPUTED = [code for code in OpCode if isinstance(code.does, Compute) and code is not OpCode.RANK]
JUMPS = [code for code in OpCode if isinstance(code.does, Jump)]


# ---- what each means, in Python ---------------------------------------------------------------------------------


def truncated(x: int, y: int) -> int:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def divided(x: float, y: float) -> float:
    if y:
        return x / y
    return math.nan if x == 0 or math.isnan(x) else math.copysign(math.inf, x) * math.copysign(1, y)


def rank(x: float) -> tuple[bool, float]:
    """By which DuckDB orders doubles."""
    return math.isnan(x), 0.0 if math.isnan(x) else x


def rounded_away(x: int, c: int) -> int:
    whole = (2 * abs(x) + c) // (2 * c)
    return whole if x >= 0 else -whole


@cache
def library() -> ctypes.CDLL:
    found = ctypes.CDLL(ctypes.util.find_library("m"))
    for names, count in ((libm.FUNCTIONS, 1), (libm.FUNCTIONS_OF_TWO, 2)):
        for name in names:
            getattr(found, name).restype = ctypes.c_double
            getattr(found, name).argtypes = [ctypes.c_double] * count
    return found


def rounded(x: float, c: float) -> float:
    """As DuckDB rounds to places: the product in doubles, but a half is one only if it is exact."""
    if not math.isfinite(x):
        return x
    product = x * c
    if not math.isfinite(product):
        return x
    whole = library().round(product)
    exact = Fraction(x) * Fraction(c)
    if abs(Fraction(product) - math.trunc(product)) == Fraction(1, 2) and abs(exact) < abs(Fraction(product)):
        whole -= math.copysign(1.0, product)
    return float(whole / c)


#: Of values that are not null; c is the constant.
MEANING: dict[str, Callable[..., Any]] = {
    "TO_FLOAT": lambda x, c: float(x) / c, "RESCALE": lambda x, c: x * c,
    "ADD": lambda x, y: x + y, "SUB": lambda x, y: x - y, "MUL": lambda x, y: x * y,
    "IDIV": lambda x, y: truncated(x, y) if y else FAILS,
    # an error too where the quotient has no 64 bits
    "MOD": lambda x, y: FAILS if y == 0 or (x, y) == (INT64_MIN, -1) else x - truncated(x, y) * y,
    "NEG": lambda x: -x, "ABS": abs,
    "FADD": lambda x, y: x + y, "FSUB": lambda x, y: x - y, "FMUL": lambda x, y: x * y, "FDIV": divided,
    "FNEG": lambda x: -x, "FABS": abs,
    "EQ": lambda x, y: x == y, "NE": lambda x, y: x != y, "LT": lambda x, y: x < y, "LE": lambda x, y: x <= y,
    "GT": lambda x, y: x > y, "GE": lambda x, y: x >= y,
    "FEQ": lambda x, y: rank(x) == rank(y), "FNE": lambda x, y: rank(x) != rank(y),
    "FLT": lambda x, y: rank(x) < rank(y), "FLE": lambda x, y: rank(x) <= rank(y),
    "FGT": lambda x, y: rank(x) > rank(y), "FGE": lambda x, y: rank(x) >= rank(y),
    "AND": lambda x, y: min(x, y), "OR": lambda x, y: max(x, y), "NOT": lambda x: 1 - x,
    "IS_NULL": lambda x: 0, "DISTINCT": lambda x, y: x != y, "FDISTINCT": lambda x, y: rank(x) != rank(y),
    "AVG": lambda x, y, c: divided(float(x), y * c), "FAVG": lambda x, y, c: divided(x, y * c),
    "STRETCH": lambda x, c: max(min(x * c, INT64_MAX), INT64_MIN),
    "SHRINK": rounded_away, "FLOOR": lambda x, c: x // c, "CEIL": lambda x, c: -(-x // c), "TRUNC": truncated,
    "FIT": lambda x: x, "TO_INTEGER": lambda x: round(x) if abs(x) < 2.0**63 else FAILS,
    "FUNCTION": lambda x, c: getattr(library(), libm.FUNCTIONS[c])(x),
    "FUNCTION_OF_TWO": lambda x, y, c: getattr(library(), libm.FUNCTIONS_OF_TWO[c])(x, y), "ROUNDED": rounded,
    "LARGER": max, "SMALLER": min, "FLARGER": lambda x, y: y if rank(x) < rank(y) else x,
    "FSMALLER": lambda x, y: y if rank(y) < rank(x) else x,
    "BIT_AND": lambda x, y: x & y, "BIT_OR": lambda x, y: x | y, "REFUSE": lambda x: FAILS if x else 0,
}  # fmt: skip
#: Of values some of which are null, where the result may be none.
OF_NULLS: dict[str, Callable[..., Value]] = {
    "AND": lambda x, y: 0 if 0 in (x, y) else None, "OR": lambda x, y: 1 if 1 in (x, y) else None,
    "IS_NULL": lambda x: 1, "DISTINCT": lambda x, y: int((x is None) != (y is None)),
    "FDISTINCT": lambda x, y: int((x is None) != (y is None)),
    **dict.fromkeys(("LARGER", "SMALLER", "FLARGER", "FSMALLER"), lambda x, y: y if x is None else x),
}  # fmt: skip


def meaning(case: Case, taken: list[Value]) -> Value | str:
    name = case.code.name
    if None in taken:
        return OF_NULLS.get(name, lambda *_: None)(*taken)
    does, constants = case.code.does, case.constants
    result = MEANING[name](*taken, *(constants if len(constants) == 1 else ()))
    if result == FAILS or isinstance(result, float):
        return result
    low, high = constants if "low" in does.operands else (INT64_MIN, INT64_MAX)
    # 64 bits are the bound of each step, whatever the type
    return int(result) if low <= result <= high else FAILS


# ---- the programs -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """An operation with constants that `lanes` bring: those of its arguments, and its own."""

    code: OpCode
    lanes: tuple[Lane, ...]
    lane: Lane
    constant: int | None = None

    @property
    def name(self) -> str:
        return self.code.name.lower()

    def tree(self, arguments: tuple[Lowered, ...]) -> Op:
        return Op(self.name, arguments, self.lane, self.constant)

    @property
    def constants(self) -> tuple[Any, ...]:
        return constants_of(self.tree(tuple(Leaf(k, lane) for k, lane in enumerate(self.lanes))))


def cases_of(code: OpCode) -> list[Case]:
    does = code.does
    assert isinstance(does, Compute)
    lanes = tuple(Lane(kind == "float") for kind in does.takes)
    gives = Lane(does.gives == "float")
    match does.operands:
        case ("low", "high"):
            return [Case(code, lanes, replace(gives, low=low, high=high)) for low, high in RANGES]
        case ("divisor",):
            return [Case(code, (replace(lanes[0], scale=scale), *lanes[1:]), gives) for scale in SCALES]
        case ("factor",):
            return [Case(code, lanes, replace(gives, scale=scale)) for scale in SCALES]
        case ("which",):
            names = libm.FUNCTIONS if len(does.takes) == 1 else libm.FUNCTIONS_OF_TWO
            return [Case(code, lanes, gives, which) for which in range(len(names))]
    assert does.operands == ()
    return [Case(code, lanes, gives)]


CASES = [case for code in COMPUTED for case in cases_of(code)]
#: Features: x, y and the expected result, as integers, then as floats. Register 0 is an integer.
X, Y, EXPECTED, FLOATS = 0, 1, 2, 3
#: By jump: code that leaves 1 or 0, and which of them for each value of x.
JUMPING: dict[str, tuple[list[tuple[OpCode, int]], dict[Value, int]]] = {
    "JUMP": (
        [(OpCode.FEATURE, X), (OpCode.POP_JUMP_UNLESS_TRUE, 4), (OpCode.CONSTANT, 0), (OpCode.JUMP, 5),
         (OpCode.CONSTANT, 1), (OpCode.NOT, 0)],
        {0: 0, 1: 1, None: 0},
    ),
    "JUMP_IF_FALSE": (
        [(OpCode.FEATURE, X), (OpCode.JUMP_IF_FALSE, 4), (OpCode.CONSTANT, 1), (OpCode.OR, 0), (OpCode.NOT, 0)],
        {0: 1, 1: 0, None: 0},
    ),
    "JUMP_IF_TRUE": (
        [(OpCode.FEATURE, X), (OpCode.JUMP_IF_TRUE, 4), (OpCode.CONSTANT, 0), (OpCode.AND, 0)],
        {0: 0, 1: 1, None: 0},
    ),
    "POP_JUMP_UNLESS_TRUE": (
        [(OpCode.CONSTANT, 1), (OpCode.FEATURE, X), (OpCode.POP_JUMP_UNLESS_TRUE, 4), (OpCode.NOT, 0)],
        {0: 1, 1: 0, None: 1},
    ),
    "JUMP_IF_VALUE": (
        [(OpCode.FEATURE, X), (OpCode.JUMP_IF_VALUE, 3), (OpCode.CONSTANT, 1)],
        {0: 0, 1: 1, None: 1},
    ),
}
PUSHING: dict[str, list[tuple[OpCode, int]]] = {
    "FEATURE": [(OpCode.FEATURE, X)],
    "REGISTER": [(OpCode.REGISTER, 0)],
    "CONSTANT": [(OpCode.CONSTANT, 1)],
    "NULL": [(OpCode.NULL, 0), (OpCode.IS_NULL, 0)],
}


def at(kind: Kind, feature: int) -> int:
    return feature + FLOATS if kind == "float" else feature


@cache
def everything() -> Program:
    """A label for each case: first whether the result is as expected, then, for each, the result alone; then the jumps,
    and what is pushed."""
    constants: list[int | float] = [0, 1]
    compared, alone = [], []
    for case in CASES:
        does = case.code.does
        assert isinstance(does, Compute)
        code = [(int(OpCode.FEATURE), at(kind, feature), 0) for feature, kind in enumerate(does.takes)]
        operands = [len(constants) + k for k in range(len(case.constants))]
        constants += case.constants
        code.append((int(case.code), *operands, *[0] * (2 - len(operands))))  # type: ignore[arg-type]
        distinct = OpCode.FDISTINCT if does.gives == "float" else OpCode.DISTINCT
        expected = (int(OpCode.FEATURE), at(does.gives, EXPECTED), 0)
        alone.append(tuple(code))
        compared.append((*code, expected, (int(distinct), 0, 0), (int(OpCode.NOT), 0, 0)))
    of_x = [code for code, _ in JUMPING.values()] + list(PUSHING.values())
    codes = [*compared, *alone, *(tuple((int(op), a, 0) for op, a in code) for code in of_x)]
    n = len(codes)
    return replace(
        assemble(plan_of("TRUE")), labels=(Label("A"),) * n, local=(TRUE,) * n, code=tuple(codes),
        constants=tuple(constants), features=tuple((TRUE, Lane(feature >= FLOATS)) for feature in range(2 * FLOATS)),
        registers=(Register(RegisterKind.LAST, X, ("B",), 0, -1, Lane(False)),), skip=SkipTo(counts=(False,) * n),
        texts=TextCodes(of_label=(-1,) * n),
    )  # fmt: skip


def label_of(name: str) -> int:
    return 2 * len(CASES) + [*JUMPING, *PUSHING].index(name)


class Machines:
    """The interpreter and the functions written out, for the program of all cases."""

    def __init__(self) -> None:
        program = everything()
        self.arrays, self.scratch = program_arrays(program, 1), new_scratch(program)
        labels = [v for v in range(len(program.code)) if not len(CASES) <= v < 2 * len(CASES)]
        called = (condition(program, v).replace("@inlined", "@kernel") for v in labels)  # here Python calls them
        self.module = module_of("\n\n\n".join([IMPORTS, *called]) + "\n")

    def interpreted(self, label: int, row: dict[int, Value], register: Value = None, failing: int = -1) -> int:
        """row: values by feature. failing: a feature that cannot be computed."""
        feature = np.zeros((2 * FLOATS, 1), np.int64)
        ok = np.zeros((2 * FLOATS * (1 if failing < 0 else 2), 1), np.bool_)
        for f, value in row.items():
            ok[f] = value is not None
            (feature.view(np.float64) if f >= FLOATS else feature)[f] = 0 if value is None else value
        if failing >= 0:
            ok[2 * FLOATS + failing] = True
        registers = np.array([register or 0], np.int64)
        valid = np.int64(register is not None)
        return int(holds(self.arrays, label, registers, valid, feature, ok, 0, self.scratch))

    def left(self, floating: bool) -> Value:
        """Returns the result of the code, None for null."""
        if not self.scratch.stack_valid[0]:
            return None
        return float(self.scratch.stack_f[0]) if floating else int(self.scratch.stack[0])

    def written(self, label: int, row: dict[int, Value], register: Value = None) -> int:
        given: list[Any] = [register or 0]
        for f in range(2 * FLOATS):
            value = row.get(f)
            given += [(float if f >= FLOATS else int)(0 if value is None else value), value is not None]
        return int(getattr(self.module, f"meets_{label}")(*given, int(register is not None)))


@cache
def machines() -> Machines:
    return Machines()


# ---- the table --------------------------------------------------------------------------------------------------


def texts_of(does: Compute | Jump) -> list[str]:
    if isinstance(does, Jump):
        return [does.when]
    return [text for text in (does.value, does.fails, does.null, does.valid) if text]


@pytest.mark.parametrize("code", OpCode, ids=lambda code: code.name)
def test_an_entry_is_complete(code: OpCode) -> None:
    does = code.does
    if isinstance(does, Push):
        assert code.name in PUSHING
        return
    if isinstance(does, Ask | Walk):
        assert code.name.lower() in OF_ONE_ROW
        return
    assert len(does.takes) <= 2
    known = {"xv", "True", "False", "abs", "INT64_MIN", *PRIMITIVES}
    known |= {name for name, kind in zip("xy", does.takes) if kind != "any"}
    known |= {"yv"} if len(does.takes) == 2 else set()
    if isinstance(does, Jump):
        assert code.name in JUMPING
        assert set(re.findall(r"[a-z]\w*|[A-Z]\w*", does.when)) <= known | {"and", "or", "not"}
        return
    assert code.name in MEANING or code is OpCode.RANK
    known |= {"c"} if {"factor", "divisor", "which", "ranks"} & set(does.operands) else set()
    for text in texts_of(does):
        assert set(re.findall(r"[a-z]\w*|[A-Z]\w*", text)) <= known, text  # arrays have no `and`, `or`, `not`
    # numba would compute with what is not there
    assert not does.fails or not (does.null or does.valid)
    assert not (does.null and does.valid)
    assert (code.name in OF_NULLS) == bool(does.null or does.valid)


def test_what_the_texts_call_has_both_forms() -> None:

    for name in PRIMITIVES:
        assert any(hasattr(module, name) for module in (integers, floats, libm))
        assert re.search(rf"\b{name}\b", IMPORTS)
        assert name in ARRAY_FUNCTIONS
    assert any("quotient" in text for code in COMPUTED for text in texts_of(code.does))  # type: ignore[arg-type]


def test_names_are_replaced_whole_and_once() -> None:
    assert written("xv & (x == y)", {"x": "y", "y": "stack[x]", "xv": "ok"}) == "ok & (y == stack[x])"


@pytest.mark.slow
def test_the_interpreter_is_found_in_the_cache_by_every_process() -> None:
    code = "import sys; from matching.written_conditions import interpreter; sys.stdout.write(interpreter())"
    environment = os.environ | {"PYTHONHASHSEED": "7"}
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout == interpreter()


# ---- values -----------------------------------------------------------------------------------------------------

NUMBERS = st.sampled_from(
    (INT64_MIN, INT64_MIN + 1, INT64_MAX, INT64_MAX - 1, -(2**62), 2**62, 2**53 + 1, 10**18, -(2**31), 2**31 - 1,
     3_037_000_499, 3_037_000_500, 1_000_000_000, -7, -2, -1, 0, 1, 2, 3, 7, 10)
) | st.integers(INT64_MIN, INT64_MAX) | st.integers(-100, 100)  # fmt: skip
DOUBLES = st.sampled_from(
    (math.nan, math.inf, -math.inf, 0.0, -0.0, 0.1, 1.5, -2.0, 1e300, -1e300, 5e-324, 2.0**53, 2.0**63)
) | st.floats()  # fmt: skip
OF_KIND: dict[Kind, st.SearchStrategy[Any]] = {
    "integer": NUMBERS, "float": DOUBLES, "truth": st.sampled_from((0, 1)), "any": NUMBERS,
}  # fmt: skip


def shown(value: Value) -> str:
    """The value with its sign, for 0.0 is not -0.0 here, and NaN is like NaN."""
    return str(float("nan")) if value != value else repr(value)


# hypothesis checks a strategy when it is first drawn from: one for each example would cost as much as the example
@cache
def rows_of(takes: tuple[Kind, ...], counts: bool) -> st.SearchStrategy[list[tuple[Value, ...]]]:
    """Rows of operands. counts: whether y is a number of rows, which is neither negative nor null."""
    kinds = [st.none() | OF_KIND[kind] for kind in takes]
    if counts:
        kinds[1] = st.integers(1, 1 << 40)
    return st.lists(st.tuples(*kinds), min_size=1, max_size=6)


def columns(rows: list[list[Value]], kinds: tuple[Kind, ...]) -> list[tuple[np.ndarray, np.ndarray | None]]:
    found = []
    for values, kind in zip(zip(*rows), kinds):
        ok = np.array([v is not None for v in values])
        filled = [0 if v is None else v for v in values]
        found.append((np.array(filled, np.float64 if kind == "float" else np.int64), None if ok.all() else ok))
    return found


@pytest.mark.slow
@pytest.mark.thinned(2)
@pytest.mark.parametrize("case", CASES, ids=lambda c: "-".join([c.name, *map(str, c.constants)]))
@fewer(6, least=6)  # of several rows each
@given(data=st.data())
def test_an_operation_means_the_same_everywhere(case: Case, data: st.DataObject) -> None:
    does = case.code.does
    assert isinstance(does, Compute)
    rows = list(map(list, data.draw(rows_of(does.takes, case.code in (OpCode.AVG, OpCode.FAVG)))))
    expected = [meaning(case, row) for row in rows]
    label, floating = CASES.index(case), does.gives == "float"
    for row, value in zip(rows, expected, strict=True):
        given_row = {at(kind, f): v for f, (kind, v) in enumerate(zip(does.takes, row))}
        fails = value == FAILS
        compared = given_row | {at(does.gives, EXPECTED): None if fails else value}
        assert machines().interpreted(label, compared) == (-1 if fails else 1)
        assert machines().written(label, compared) == (-1 if fails else 1)
        alone = machines().interpreted(len(CASES) + label, given_row)
        assert (alone == -1) == fails
        if not fails:
            assert shown(machines().left(floating)) == shown(value)

    leaves: list[Lowered] = [Leaf(k, lane) for k, lane in enumerate(case.lanes)]
    read = columns(rows, does.takes)
    if data.draw(st.booleans(), label="one operand is a constant"):
        k = data.draw(st.integers(0, len(leaves) - 1))
        constant = rows[0][k]
        leaves[k] = Literal(constant, case.lanes[k])
        rows = [[constant if i == k else v for i, v in enumerate(row)] for row in rows]
        expected = [meaning(case, row) for row in rows]
    if FAILS in expected or case.name in OF_ONE_ROW:
        with pytest.raises(Overflow):
            run_lanes(case.tree(tuple(leaves)), len(rows), lambda k: read[k])
        return
    values, valid = run_lanes(case.tree(tuple(leaves)), len(rows), lambda k: read[k])
    there = [True] * len(rows) if valid is None else valid.tolist()
    found = [(float(v) if floating else int(v)) if ok else None for v, ok in zip(values.tolist(), there, strict=True)]
    assert list(map(shown, found)) == [shown(v) for v in expected]  # type: ignore[arg-type]


@pytest.mark.parametrize("name", JUMPING)
@pytest.mark.parametrize("x", [0, 1, None])
def test_a_jump_goes_where_it_is_to(name: str, x: Value) -> None:
    label, row = label_of(name), {X: x}
    expected = JUMPING[name][1][x]
    assert machines().interpreted(label, row) == expected
    assert machines().written(label, row) == expected


@pytest.mark.parametrize("x", [0, 1, None])
def test_a_value_is_pushed(x: Value) -> None:
    for name, expected in (("FEATURE", x or 0), ("REGISTER", x or 0), ("CONSTANT", 1), ("NULL", 1)):
        assert machines().interpreted(label_of(name), {X: x}, register=x) == expected, name
        assert machines().written(label_of(name), {X: x}, register=x) == expected, name


def test_a_feature_that_cannot_be_computed_fails_where_it_is_read() -> None:
    assert machines().interpreted(label_of("FEATURE"), {X: 1}, failing=X) == -1
    assert machines().interpreted(label_of("FEATURE"), {X: 1}, failing=Y) == 1

"""The operations of conditions, in one table.

An entry defines an operation's arity and operands, its branch of the interpreter and its statements in a kernel written
out for a program (matching.written_conditions), and its form for whole batches (matching.array_lanes). A new operation
is an entry here and its lowering in matching.program.lanes.

The texts of an entry are Python over x and y, the values that are taken (y was on top), xv and yv, True if these are
not null, and c, the constant that the instruction names. numba reads a text for one row and numpy for all rows at once.
So a text uses what both know: `&`, `|` and `== False`, no `and`, `or`, `not`, no conditional expression; and PRIMITIVES
that have a form for each. Only `when` of a jump is for one row alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

from matching.program.lanes import Op

#: Functions that texts may call: the scalar form is in matching.kernels.integers, .floats or .libm, that of arrays in
#: matching.array_lanes. Two more names are numbers: INT64_MIN, and c.
PRIMITIVES = (
    "add_overflows", "sub_overflows", "mul_overflows", "stretched", "quotient", "remainder", "rounded_quotient",
    "lower_quotient", "upper_quotient", "larger", "smaller", "to_float", "float_less", "float_equal", "float_larger",
    "float_smaller", "function_of", "function_of_two", "rounded", "nearest",
)  # fmt: skip

#: A truth is an integer, 0 or 1. Of a value of any kind only xv is read.
Kind = Literal["integer", "float", "truth", "any"]
#: What a and b of an instruction are: the index of a feature, of a register, or of a constant (a value to push, the
#: `low` and `high` of the result's type, the `factor`, a function's number (`which`) or, a float, the `divisor` c), the
#: `ranks` c of the texts known so far, by code, the instruction jumped to, or which of Program.asked is `asked` and the
#: `count` of its operands, or which of Program.walks it is.
Operand = Literal[
    "feature", "register", "value", "low", "high", "factor", "which", "divisor", "ranks", "target", "asked", "count",
    "walk",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Push:
    """Puts a value from outside on the stack; without an operand, NULL."""

    operands: tuple[Operand, ...]
    takes: tuple[Kind, ...] = ()


@dataclass(frozen=True, slots=True)
class Compute:
    """Puts one value in the place of those it takes.

    value: the result. fails: where it cannot be computed, tested first, and only where no operand is null. With the
    operands low and high, a result outside of these cannot be computed either. Where no operand is null, the result is
    not null. Where one is, it is null by default; null: or it is this text; valid: or it is `value` where this is true.
    """

    takes: tuple[Kind, ...]
    gives: Kind
    value: str
    fails: str = ""
    null: str = ""
    valid: str = ""
    operands: tuple[Operand, ...] = ()


@dataclass(frozen=True, slots=True)
class Jump:
    """Goes forward to the instruction a where `when` is true. drops: True if the value tested leaves the stack, for a
    jump that is taken and for one that is not."""

    takes: tuple[Kind, ...]
    when: str
    drops: tuple[bool, bool] = (False, False)
    operands: tuple[Operand, ...] = ("target",)


@dataclass(frozen=True, slots=True)
class Ask:
    """Puts what DuckDB computes of several values in their place (matching.kernels.asking)."""

    operands: tuple[Operand, ...] = ("asked", "count")


@dataclass(frozen=True, slots=True)
class Walk:
    """Puts a value of the rows of the run on the stack (matching.kernels.walks)."""

    operands: tuple[Operand, ...] = ("walk",)


_ONE: tuple[Kind, ...] = ("integer",)
_TWO: tuple[Kind, ...] = ("integer", "integer")
_NO_QUOTIENT = "(y == 0) | ((x == INT64_MIN) & (y == -1))"
#: A sum by a count, which is 0 where the sum is null: that must be no division by 0 either.
_OF_COUNT = "x / (y * c + (y == 0))"


def _checked(takes: tuple[Kind, ...], value: str, fails: str) -> Compute:
    return Compute(takes, "integer", value, fails, operands=("low", "high"))


def _compared(kind: Kind, value: str) -> Compute:
    return Compute((kind, kind), "truth", value)


class OpCode(IntEnum):
    """The operations of a stack machine, numbered by place. Neighbours that take and give the same share a branch of
    the interpreter, so a new operation belongs beside its like; the branches are tested in this order."""

    does: Push | Compute | Jump | Ask | Walk

    def __new__(cls, does: Push | Compute | Jump | Ask | Walk) -> OpCode:
        member = int.__new__(cls, len(cls.__members__))
        member._value_ = len(cls.__members__)
        member.does = does
        return member

    FEATURE = Push(("feature",))
    REGISTER = Push(("register",))
    CONSTANT = Push(("value",))
    NULL = Push(())
    EQ = _compared("integer", "x == y")
    NE = _compared("integer", "x != y")
    LT = _compared("integer", "x < y")
    LE = _compared("integer", "x <= y")
    GT = _compared("integer", "x > y")
    GE = _compared("integer", "x >= y")
    FEQ = _compared("float", "float_equal(x, y)")  # NaN equals itself and is the largest
    FNE = _compared("float", "float_equal(x, y) == False")
    FLT = _compared("float", "float_less(x, y)")
    FLE = _compared("float", "float_less(y, x) == False")
    FGT = _compared("float", "float_less(y, x)")
    FGE = _compared("float", "float_less(x, y) == False")
    ADD = _checked(_TWO, "x + y", "add_overflows(x, y)")
    SUB = _checked(_TWO, "x - y", "sub_overflows(x, y)")
    MUL = _checked(_TWO, "x * y", "mul_overflows(x, y)")
    IDIV = _checked(_TWO, "quotient(x, y)", _NO_QUOTIENT)
    MOD = _checked(_TWO, "remainder(x, y)", _NO_QUOTIENT)
    NEG = _checked(_ONE, "-x", "x == INT64_MIN")
    ABS = _checked(_ONE, "abs(x)", "x == INT64_MIN")
    FADD = Compute(("float", "float"), "float", "x + y")
    FSUB = Compute(("float", "float"), "float", "x - y")
    FMUL = Compute(("float", "float"), "float", "x * y")
    FDIV = Compute(("float", "float"), "float", "x / y")
    FNEG = Compute(("float",), "float", "-x")
    FABS = Compute(("float",), "float", "abs(x)")
    TO_FLOAT = Compute(_ONE, "float", "to_float(x, c)", operands=("divisor",))  # c: 10**scale
    RESCALE = Compute(_ONE, "integer", "x * c", "mul_overflows(x, c)", operands=("factor",))  # c: 10**more
    AVG = Compute(_TWO, "float", _OF_COUNT, operands=("divisor",))  # c: 10**scale
    FAVG = Compute(("float", "integer"), "float", _OF_COUNT, operands=("divisor",))
    STRETCH = Compute(_ONE, "integer", "stretched(x, c)", operands=("factor",))  # c: 10**more
    SHRINK = Compute(_ONE, "integer", "rounded_quotient(x, c)", operands=("factor",))  # c: 10**less
    FLOOR = Compute(_ONE, "integer", "lower_quotient(x, c)", operands=("factor",))
    CEIL = Compute(_ONE, "integer", "upper_quotient(x, c)", operands=("factor",))
    TRUNC = Compute(_ONE, "integer", "quotient(x, c)", operands=("factor",))
    FIT = _checked(_ONE, "x", "xv == False")
    TO_INTEGER = _checked(("float",), "nearest(x)", "(abs(x) < 9223372036854775808.0) == False")
    FUNCTION = Compute(("float",), "float", "function_of(x, c)", operands=("which",))
    FUNCTION_OF_TWO = Compute(("float", "float"), "float", "function_of_two(x, y, c)", operands=("which",))
    ROUNDED = Compute(("float",), "float", "rounded(x, c)", operands=("divisor",))  # c: 10**places
    LARGER = Compute(_TWO, "integer", "larger(x, y, xv, yv)", valid="xv | yv")
    SMALLER = Compute(_TWO, "integer", "smaller(x, y, xv, yv)", valid="xv | yv")
    FLARGER = Compute(("float", "float"), "float", "float_larger(x, y, xv, yv)", valid="xv | yv")
    FSMALLER = Compute(("float", "float"), "float", "float_smaller(x, y, xv, yv)", valid="xv | yv")
    BIT_AND = Compute(_TWO, "integer", "x & y")
    BIT_OR = Compute(_TWO, "integer", "x | y")
    RANK = Compute(_ONE, "integer", "c[x]", operands=("ranks",))  # by which texts are ordered
    REFUSE = Compute(("truth",), "truth", "x == True", "x == True")
    DISTINCT = Compute(_TWO, "truth", "x != y", null="xv != yv")
    FDISTINCT = Compute(("float", "float"), "truth", "float_equal(x, y) == False", null="xv != yv")
    AND = Compute(("truth", "truth"), "truth", "x & y", valid="(xv & (x == False)) | (yv & (y == False))")
    OR = Compute(("truth", "truth"), "truth", "x | y", valid="(xv & (x == True)) | (yv & (y == True))")
    NOT = Compute(("truth",), "truth", "x == False")
    IS_NULL = Compute(("any",), "truth", "xv == False", valid="True")
    JUMP = Jump((), "True")
    JUMP_IF_FALSE = Jump(("truth",), "xv and x == 0")
    JUMP_IF_TRUE = Jump(("truth",), "xv and x == 1")
    POP_JUMP_UNLESS_TRUE = Jump(("truth",), "not xv or x == 0", drops=(True, True))
    JUMP_IF_VALUE = Jump(("any",), "xv", drops=(False, True))
    ASK = Ask()
    WALK = Walk()


#: By number.
OPCODES = tuple(OpCode)
#: `CASE WHEN refuse(r) THEN NULL ELSE s END` of two registers: a value, or its error.
REFUSED = [
    OpCode.REGISTER, OpCode.REFUSE, OpCode.POP_JUMP_UNLESS_TRUE, OpCode.NULL, OpCode.JUMP, OpCode.REGISTER,
]  # fmt: skip
#: The operations, as they are called in trees, that numpy does not compute as the C library and DuckDB do; and those
#: that read what only a kernel has.
OF_ONE_ROW = frozenset({"function", "function_of_two", "rounded", "rank", "ask", "walk"})


def constants_of(op: Op) -> tuple[int | float, ...]:
    """Returns the constants of a lowered operation's operands, in order: its own, or what its lanes say."""
    if op.constant is not None:
        return (op.constant,)
    match OpCode[op.name.upper()].does.operands:
        case ("low", "high"):
            return op.lane.low, op.lane.high
        case ("factor",):
            return (10 ** (op.lane.scale - op.arguments[0].lane.scale),)
        case ("divisor",):
            return (10.0 ** op.arguments[0].lane.scale,)
        case _:
            return ()


def written(text: str, names: Mapping[str, str]) -> str:
    """A text of the table with other names for x, y, xv, yv and c."""
    return re.sub(r"\w+", lambda word: names.get(word[0], word[0]), text)

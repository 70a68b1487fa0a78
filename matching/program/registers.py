"""The values that a run keeps of its match so far, in one table: the V vector of [SASE] section 5.2.2.

An entry defines what a row does to a register when it is bound to one of its variables. From it come the interpreter,
the statements of a kernel written out for a program (matching.written_registers), and what the value depends on
(matching.program.live). A new kind of register is an entry here.

The texts of an entry are Python over x, the register before the row, y, the value of the row, z, the linked register
before the row, and d, the depth; xv, yv and zv are True if these are not null; w is the float register of the number d,
before the row; k is the value of feature d, and kv true if it is not null; u is True if y is not null and no earlier
row has it; c are the places of texts in their order, by code; t are tables by which joined texts are compared
(matching.features.Codes.steps). They may call the functions of matching.program.opcodes.PRIMITIVES.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum
from functools import cache

from matching.program.lanes import Lane

#: Most registers of a run: bits of its validity.
REGISTERS_MAX = 62


@dataclass(frozen=True, slots=True)
class Assign:
    """Gives the register a value where `when` is true, always by default. valid: True where this value is not null; by
    default the register is never null, and 0 before the first row."""

    value: str
    valid: str = ""
    when: str = ""


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Gives the register a value where that of the row is not null: `first` if the register is null, otherwise `value`
    where `when` is true, always by default. fails: where this value cannot be computed, tested first."""

    value: str
    first: str = "y"
    when: str = ""
    fails: str = ""


class RegisterKind(IntEnum):
    """The kinds of registers, numbered by place. does: what a row does to one of integers, does_float: of floats."""

    does: Assign | Accumulate
    does_float: Assign | Accumulate

    def __new__(cls, does: Assign | Accumulate, does_float: Assign | Accumulate | None = None) -> RegisterKind:
        member = int.__new__(cls, len(cls.__members__))
        member._value_ = len(cls.__members__)
        member.does, member.does_float = does, does_float or does
        return member

    COUNT_ROWS = Assign("x + 1")
    COUNT_VALUES = Assign("x + 1", when="yv")
    # a sum begins with 0.0, so that -0.0 alone is 0.0
    SUM = Accumulate("x + y", fails="add_overflows(x, y)"), Accumulate("x + y", first="y + 0.0")
    MIN = Accumulate("y", when="y < x"), Accumulate("y", when="float_less(y, x)")
    MAX = Accumulate("y", when="y > x"), Accumulate("y", when="float_less(x, y)")
    LAST = Assign("y", valid="yv")
    FIRST = Assign("y", valid="yv", when="z == d")
    BEFORE = Assign("z", valid="zv")
    # of the count z before the row, as DuckDB has them: the mean, and the sum of squared distances from it
    MEAN = Accumulate("x + (y - x) / (z + 1)", first="y + 0.0")
    SPREAD = Accumulate("x + (y - w) * (y - (w + (y - w) / (z + 1)))", first="y * (y - y) + 0.0")

    COUNT_NEW = Assign("x + 1", when="u")
    ANY = Accumulate("x")
    FIRST_TEXT = Accumulate("y", when="c[y] < c[x]")
    LAST_TEXT = Accumulate("y", when="c[y] > c[x]")
    # beside the least or largest one of another feature k, which is z before the row
    AT_LEAST = Assign("y", valid="yv", when="kv and (not zv or k < z)")
    AT_LARGEST = Assign("y", valid="yv", when="kv and (not zv or k > z)")
    AT_LEAST_FLOAT = Assign("y", valid="yv", when="kv and (not zv or float_less(k, z))")
    AT_LARGEST_FLOAT = Assign("y", valid="yv", when="kv and (not zv or float_less(z, k))")
    SUM_NEW = Accumulate("x + y", when="u", fails="u and add_overflows(x, y)"), Accumulate("x + y", "y + 0.0", "u")
    PRODUCT = Accumulate("x * y")
    BITS_OF_ALL = Accumulate("x & y")
    BITS_OF_ANY = Accumulate("x | y")
    BITS_OF_ODD = Accumulate("x ^ y")
    NUMBER = Assign("x")  # of MATCH_NUMBER(), given to a run as it begins
    # of texts joined: how they stand to a constant, in the table of the number d
    JOINED = Accumulate("t[d, y + 1, t[d, 0, x]]", first="t[d, y + 1, 1]")

    @property
    def counts(self) -> bool:
        """True if the register is a number of rows, never null."""
        return isinstance(self.does, Assign) and not self.does.valid

    @property
    def reads_itself(self) -> bool:
        """True if the value after a row depends on the one before."""
        return isinstance(self.does, Accumulate) or bool(self.does.when) or _reads("x", self.does)

    @property
    def reads_link(self) -> bool:
        """True if the value after a row depends on the linked register."""
        return _reads("z", self.does)

    @property
    def reads_other(self) -> bool:
        """True if the value after a row depends on the register of the number d."""
        return _reads("w", self.does)

    @property
    def floats_only(self) -> bool:
        """True if the register is a float always."""
        return self in (RegisterKind.MEAN, RegisterKind.SPREAD, RegisterKind.PRODUCT)

    @property
    def whole_only(self) -> bool:
        """True if the register is no float ever."""
        return self.ranks_texts or self.joins_texts or self.name.startswith("BITS")

    @property
    def asks_for_new(self) -> bool:
        """True if the value after a row depends on whether an earlier one has the same."""
        return _reads("u", self.does)

    @property
    def ranks_texts(self) -> bool:
        """True if the value after a row depends on the order of texts."""
        return _reads("c", self.does)

    @property
    def joins_texts(self) -> bool:
        """True if the register says how joined texts stand to a constant."""
        return _reads("t", self.does)

    @property
    def beside(self) -> bool:
        """True if the register is the value of a row that another one chooses."""
        return _reads("k", self.does)

    @property
    def over_floats(self) -> bool:
        """True if that other one is a float."""
        return self in (RegisterKind.AT_LEAST_FLOAT, RegisterKind.AT_LARGEST_FLOAT)

    @property
    def reads_row(self) -> bool:
        """True if the value after a row may be that of the row."""
        return _reads("y", self.does)


@cache
def _reads(name: str, does: Assign | Accumulate) -> bool:
    texts = (does.value, does.when, does.first if isinstance(does, Accumulate) else "")
    return any(re.search(rf"\b{name}\b", text) for text in texts)


@dataclass(frozen=True, slots=True)
class Register:
    """A value kept per run, updated when a row is bound to one of `variables` (empty: to any).

    feature: index of the row value it reads; -1 for COUNT_ROWS, and where the value is the code of the variable that is
    bound. depth: the offset of FIRST and LAST, which is kept as BEFORE from 1 on; 0 for what an aggregate was before
    its last row; of SPREAD the number of its MEAN; of AT_LEAST and the like the other feature; of JOINED the number of
    its table. link: of BEFORE the register whose value before the row it keeps, of FIRST the COUNT_ROWS it reads, of
    MEAN and SPREAD the COUNT_VALUES, of AT_LEAST and the like the MIN or MAX, else -1. A register comes after the one
    it links to, and updates go from the last register to the first, so that each reads the value before."""

    kind: RegisterKind
    feature: int
    variables: tuple[str, ...]
    depth: int
    link: int
    lane: Lane


def register_of(
    registers: list[Register], kind: RegisterKind, feature: int, variables: tuple[str, ...], depth: int, lane: Lane
) -> int:
    """Returns the index of a register among `registers`, to which it is added, with those it links to, if it is not
    there. Cost: of LAST, linear in the depth."""
    names = tuple(sorted(variables))
    if kind is RegisterKind.LAST and depth > 0:
        kind = RegisterKind.BEFORE
    for i, r in enumerate(registers):
        if (r.kind, r.feature, r.variables, r.depth) == (kind, feature, names, depth):
            return i
    link = -1
    if kind is RegisterKind.FIRST:
        link = register_of(registers, RegisterKind.COUNT_ROWS, -1, names, 0, Lane(False))
    if kind in (RegisterKind.MEAN, RegisterKind.SPREAD):
        link = register_of(registers, RegisterKind.COUNT_VALUES, feature, names, 0, Lane(False))
    if kind is RegisterKind.BEFORE:
        link = register_of(registers, RegisterKind.LAST, feature, names, depth - 1, lane)
    registers.append(Register(kind, feature, names, depth, link, lane))
    return len(registers) - 1


def register_beside(
    registers: list[Register], kind: RegisterKind, feature: int, variables: tuple[str, ...], chooses: int, lane: Lane
) -> int:
    """Returns the index of a register with the value of the row that gave another one, `chooses`, its value; adds it if
    it is not there."""
    other = registers[chooses]
    wanted = Register(kind, feature, tuple(sorted(variables)), other.feature, chooses, lane)
    if wanted not in registers:
        registers.append(wanted)
    return registers.index(wanted)


def before_last_row(registers: list[Register], index: int) -> int:
    """Returns the index of the register with the value that another one had before its last row; adds it if it is not
    there."""
    r = registers[index]
    wanted = Register(RegisterKind.BEFORE, r.feature, r.variables, 0, index, r.lane)
    if wanted not in registers:
        registers.append(wanted)
    return registers.index(wanted)

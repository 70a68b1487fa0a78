"""Each kind of register means the same to the interpreter, in a kernel written out, and in Python."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache, reduce
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from matching.kernels.jit import module_of
from matching.kernels.layout import Parameters, program_arrays
from matching.kernels.predicate import update_registers
from matching.program.lanes import INT64_MAX, INT64_MIN, Lane
from matching.program.live import live_registers
from matching.program.opcodes import PRIMITIVES, OpCode
from matching.program.program import Program, SkipTo, TextCodes, assemble
from matching.program.registers import Accumulate, Register, RegisterKind, before_last_row, register_beside, register_of
from matching.written_conditions import IMPORTS
from matching.written_registers import binding
from query.automaton.nfa import Label
from query.plan.expression import TRUE
from tests.matching.program.test_lanes import plan_of
from tests.matching.program.test_opcodes import DOUBLES, NUMBERS, Value, rank, shown
from tests.properties.comparing import FEWER

LABELS = ("A", "B")
TEXTS = (7, 9)
WHOLE, FLOAT = 0, 1
LANES = Lane(False), Lane(True)
#: They read what a kernel has; see tests.properties.test_run_aggregates and test_joined_texts.
OF_KERNELS = {
    RegisterKind.COUNT_NEW, RegisterKind.SUM_NEW, RegisterKind.FIRST_TEXT, RegisterKind.LAST_TEXT, RegisterKind.JOINED,
}  # fmt: skip
BITS = {
    RegisterKind.BITS_OF_ALL: int.__and__, RegisterKind.BITS_OF_ANY: int.__or__, RegisterKind.BITS_OF_ODD: int.__xor__,
}  # fmt: skip


@dataclass(frozen=True)
class Bound:
    """A row bound to a label, with its two features."""

    label: int
    values: tuple[Value, Value]


def registers(beside: bool) -> list[Register]:
    """Every kind, of one label and of both, over integers, floats and names of variables. beside: those beside others,
    products, bits, and the first value that is there; else the others."""
    found: list[Register] = []
    for variables in (("A",), ()):
        if beside:
            _beside(found, variables)
            continue
        register_of(found, RegisterKind.COUNT_ROWS, -1, variables, 0, LANES[0])
        for feature, lane in enumerate(LANES):
            register_of(found, RegisterKind.COUNT_VALUES, feature, variables, 0, LANES[0])
            for kind in (RegisterKind.SUM, RegisterKind.MIN, RegisterKind.MAX):
                before_last_row(found, register_of(found, kind, feature, variables, 0, lane))
            for kind in (RegisterKind.LAST, RegisterKind.FIRST):
                register_of(found, kind, feature, variables, 2, lane)
        mean = register_of(found, RegisterKind.MEAN, FLOAT, variables, 0, LANES[1])
        before_last_row(found, register_of(found, RegisterKind.SPREAD, FLOAT, variables, mean, LANES[1]))
        for kind in (RegisterKind.LAST, RegisterKind.FIRST):
            register_of(found, kind, -1, variables, 1, LANES[0])
        before_last_row(found, register_of(found, RegisterKind.COUNT_ROWS, -1, variables, 0, LANES[0]))
    register_of(found, RegisterKind.NUMBER, -1, (), 0, LANES[0])
    return found


def _beside(found: list[Register], variables: tuple[str, ...]) -> None:
    before_last_row(found, register_of(found, RegisterKind.PRODUCT, FLOAT, variables, 0, LANES[1]))
    for kind in BITS:
        register_of(found, kind, WHOLE, variables, 0, LANES[0])
    for value in (WHOLE, FLOAT):
        before_last_row(found, register_of(found, RegisterKind.ANY, value, variables, 0, LANES[value]))
        for key, ending in ((WHOLE, ""), (FLOAT, "_FLOAT")):
            for chooses, name in ((RegisterKind.MIN, "AT_LEAST"), (RegisterKind.MAX, "AT_LARGEST")):
                at = register_of(found, chooses, key, variables, 0, LANES[key])
                register_beside(found, RegisterKind[name + ending], value, variables, at, LANES[value])


@cache
def program_of_all(beside: bool) -> Program:
    return replace(
        assemble(plan_of("TRUE")), labels=tuple(map(Label, LABELS)), local=(TRUE, TRUE), code=((), ()),
        texts=TextCodes(of_label=TEXTS), skip=SkipTo(counts=(False, False)), registers=tuple(registers(beside)),
        features=tuple((TRUE, lane) for lane in LANES),
    )  # fmt: skip


def meaning(r: Register, rows: list[Bound], beside: bool) -> Value:
    """The value of a register after these rows, None for null. Raises OverflowError."""
    rows = [row for row in rows if not r.variables or LABELS[row.label] in r.variables]
    of = [TEXTS[row.label] if r.feature < 0 else row.values[r.feature] for row in rows]
    there = [value for value in of if value is not None]
    match r.kind:
        case RegisterKind.COUNT_ROWS:
            return len(rows)
        case RegisterKind.COUNT_VALUES:
            return len(there)
        case RegisterKind.SUM:
            total: int | float = 0.0 if r.lane.floating else 0
            for value in there:
                total += value
                if not r.lane.floating and not INT64_MIN <= total <= INT64_MAX:
                    raise OverflowError
            return total if there else None
        case RegisterKind.MIN:
            return min(there, key=rank, default=None) if r.lane.floating else min(there, default=None)
        case RegisterKind.MAX:
            return max(there, key=rank, default=None) if r.lane.floating else max(there, default=None)
        case RegisterKind.PRODUCT:
            return reduce(float.__mul__, there) if there else None
        case kind if kind in BITS:
            return reduce(BITS[kind], there) if there else None
        case RegisterKind.ANY:
            return there[0] if there else None
        case _ if r.kind.beside:
            least = "LEAST" in r.kind.name
            best: tuple[Value, Value] | None = None
            for row in rows:
                key = row.values[r.depth]
                if key is None:
                    continue
                better = best is None or (rank(key) < rank(best[0]) if least else rank(best[0]) < rank(key))
                best = (key, row.values[r.feature]) if better else best
            return None if best is None else best[1]
        case RegisterKind.LAST:
            return of[-1] if of else None
        case RegisterKind.FIRST:
            return of[r.depth] if len(of) > r.depth else None
        case RegisterKind.MEAN | RegisterKind.SPREAD:
            mean, spread = 0.0, 0.0
            for count, value in enumerate(there, 1):
                moved = mean + (value - mean) / count
                mean, spread = moved, spread + (value - mean) * (value - moved)
            return (mean if r.kind is RegisterKind.MEAN else spread) if there else None
        case RegisterKind.BEFORE if r.depth:
            return of[-1 - r.depth] if len(of) > r.depth else None
        case RegisterKind.BEFORE:
            return meaning(program_of_all(beside).registers[r.link], rows[:-1], beside) if rows else None
        case RegisterKind.NUMBER:
            return 0  # as it was given to the run


@cache
def bindings(beside: bool) -> Any:
    return module_of("\n\n\n".join([IMPORTS, *(binding(program_of_all(beside), v) for v in range(2))]) + "\n")


def kept(values: np.ndarray, valid: int, beside: bool) -> list[str]:
    """The registers of a run as they are to be read."""
    return [
        shown((float(values.view(np.float64)[i]) if r.lane.floating else int(values[i])) if valid >> i & 1 else None)
        for i, r in enumerate(program_of_all(beside).registers)
    ]


def interpreted(rows: list[Bound], beside: bool) -> list[str]:
    """Raises OverflowError."""
    arrays = program_arrays(program_of_all(beside), 1)
    values = np.zeros(len(program_of_all(beside).registers), np.int64)
    feature, ok = np.zeros((2, len(rows)), np.int64), np.zeros((2, len(rows)), np.bool_)
    for i, row in enumerate(rows):
        for f, value in enumerate(row.values):
            ok[f, i] = value is not None
            (feature.view(np.float64) if f == FLOAT else feature)[f, i] = 0 if value is None else value
    valid = arrays.parameters[Parameters.COUNT_REGISTERS]
    for i, row in enumerate(rows):
        floats = values.view(np.float64), feature.view(np.float64)
        valid = update_registers(arrays, values, floats[0], valid, np.int64(row.label), feature, floats[1], ok, i)
        if valid == -1:
            raise OverflowError
    return kept(values, int(valid), beside)


def written_out(rows: list[Bound], beside: bool) -> list[str]:
    """Raises OverflowError."""
    of = program_of_all(beside).registers
    values: list[Any] = [0.0 if r.lane.floating else 0 for r in of]
    valid = int(program_arrays(program_of_all(beside), 1).parameters[Parameters.COUNT_REGISTERS])
    for row in rows:
        filled = [0 if v is None else v for v in row.values]
        read = [int(filled[WHOLE]), row.values[WHOLE] is not None, float(filled[FLOAT]), row.values[FLOAT] is not None]
        valid, *values = getattr(bindings(beside), f"bind_{row.label}")(*values, *read, valid)
        if valid == -1:
            raise OverflowError
    return [shown(value if valid >> i & 1 else None) for i, value in enumerate(values)]


ROWS = st.lists(
    st.builds(Bound, st.integers(0, 1), st.tuples(st.none() | NUMBERS | st.integers(-9, 9), st.none() | DOUBLES)),
    min_size=1, max_size=6,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("beside", [False, True])
@FEWER
@given(rows=ROWS)
def test_a_register_means_the_same_everywhere(beside: bool, rows: list[Bound]) -> None:
    try:
        expected = [shown(meaning(r, rows, beside)) for r in program_of_all(beside).registers]
    except OverflowError:
        for by in (interpreted, written_out):
            with pytest.raises(OverflowError):
                by(rows, beside)
        return
    assert interpreted(rows, beside) == expected
    assert written_out(rows, beside) == expected


def test_every_kind_is_tried() -> None:
    kinds = {(r.kind, r.lane.floating) for beside in (False, True) for r in program_of_all(beside).registers}
    assert {kind for kind, _ in kinds} == set(RegisterKind) - OF_KERNELS
    assert {kind for kind, floating in kinds if floating} >= {
        kind for kind in RegisterKind if not (kind.counts or kind.whole_only or kind in OF_KERNELS)
    }


@pytest.mark.parametrize("kind", RegisterKind, ids=lambda kind: kind.name)
def test_an_entry_is_complete(kind: RegisterKind) -> None:
    for does in (kind.does, kind.does_float):
        accumulates = isinstance(does, Accumulate)
        known = {*"xyzwcutd"} if accumulates else {*"xyzdku", "yv", "zv", "kv"}
        known |= {"and", "or", "not", *PRIMITIVES}
        texts = (does.value, does.first, does.when, does.fails) if accumulates else (does.value, does.valid, does.when)
        for text in texts:
            assert set(re.findall(r"[a-z]\w*|[A-Z]\w*", text)) <= known, text


def test_what_a_register_depends_on() -> None:
    read = {k.name: (k.counts, k.reads_itself, k.reads_link, k.reads_row) for k in RegisterKind}
    accumulates = (False, True, False, True)
    assert read == {
        "COUNT_ROWS": (True, True, False, False), "COUNT_VALUES": (True, True, False, False),
        "SUM": accumulates, "MIN": accumulates, "MAX": accumulates,
        "LAST": (False, False, False, True), "FIRST": (False, True, True, True), "BEFORE": (False, False, True, False),
        "COUNT_NEW": (True, True, False, False), "ANY": accumulates, "FIRST_TEXT": accumulates,
        "LAST_TEXT": accumulates, "AT_LEAST": (False, True, True, True), "AT_LARGEST": (False, True, True, True),
        "AT_LEAST_FLOAT": (False, True, True, True), "AT_LARGEST_FLOAT": (False, True, True, True),
        "MEAN": (False, True, True, True), "SPREAD": (False, True, True, True),
        "SUM_NEW": accumulates, "PRODUCT": accumulates, "BITS_OF_ALL": accumulates, "BITS_OF_ANY": accumulates,
        "BITS_OF_ODD": accumulates, "NUMBER": (True, True, False, False),
        "JOINED": accumulates,
    }  # fmt: skip
    program = assemble(plan_of("i > LAST(A.i, 1)"))
    reads = {a for code in program.code for op, a, _ in code if op == OpCode.REGISTER}
    kinds = [program.registers[r].kind for live in live_registers(program) for r in live]
    assert [program.registers[r].kind for r in reads] == [RegisterKind.BEFORE]
    assert set(kinds) == {RegisterKind.LAST}  # the row makes it the value before

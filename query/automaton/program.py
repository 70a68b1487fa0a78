"""Automaton to program: flat tables and bytecode that one interpreted kernel runs for every query.

A DEFINE condition is split at its top-level ANDs: what depends on the candidate row only is computed for whole batches
beforehand and becomes one bit of the row's mask; the rest is bytecode over the run's registers (the V vector of [SASE]
section 5.2.2: only the values that later conditions need, never the events).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum

from query.automaton.compile import by_labels, compile_plan, is_ambiguous
from query.automaton.lanes import Lane, Leaf, Literal, Lowered, NoLane, Op, lane_of, lower
from query.automaton.nfa import Automaton
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import (
    TRUE,
    Aggregate,
    Call,
    Constant,
    Expression,
    Logical,
    Navigation,
    is_row_local,
    show,
    walk,
)
from query.plan.pattern import anchors, excludes, negated
from query.plan.plan import Plan

#: Most variables of one pattern (bits of a row's mask) and most registers of a run (bits of its validity).
VARIABLES_MAX = 62
REGISTERS_MAX = 62


class NoKernel(Exception):
    """The plan cannot run in the kernel; the message names the construct."""


class RegisterKind(IntEnum):
    COUNT_ROWS = 0
    COUNT_VALUES = 1
    SUM = 2
    MIN = 3
    MAX = 4
    LAST = 5
    FIRST = 6


@dataclass(frozen=True, slots=True)
class Register:
    """A value kept per run, updated when a row is bound to one of `variables` (empty: to any).

    feature: index of the row value it reads, -1 for COUNT_ROWS. depth: offset of LAST / FIRST. link: for LAST of depth
    d > 0 the index of LAST of depth d - 1, for FIRST that of the COUNT_ROWS it reads, else -1. A register stands behind
    the one it links to, and updates go from the last register to the first, so that each reads the value before.
    """

    kind: RegisterKind
    feature: int
    variables: tuple[str, ...]
    depth: int
    link: int
    lane: Lane


class OpCode(IntEnum):
    """Stack machine; a and b are the operands of an instruction."""

    FEATURE = 0  # push feature a of the row
    REGISTER = 1  # push register a of the run
    CONSTANT = 2  # push constant a
    NULL = 3
    ADD = 4  # int64, checked; a, b: constants low, high of the result's type
    SUB = 5
    MUL = 6
    NEG = 7
    ABS = 8
    IDIV = 9
    MOD = 10
    FADD = 11
    FSUB = 12
    FMUL = 13
    FDIV = 14
    FNEG = 15
    FABS = 16
    TO_FLOAT = 17  # a: constant with 10**scale as float64
    RESCALE = 18  # a: constant with the factor
    EQ = 19
    NE = 20
    LT = 21
    LE = 22
    GT = 23
    GE = 24
    FEQ = 25
    FNE = 26
    FLT = 27
    FLE = 28
    FGT = 29
    FGE = 30
    DISTINCT = 31
    FDISTINCT = 32
    AND = 33
    OR = 34
    NOT = 35
    IS_NULL = 36
    JUMP = 37  # to a
    JUMP_IF_FALSE = 38  # to a if the top is false (not null); keeps it
    JUMP_IF_TRUE = 39  # to a if the top is true; keeps it
    POP_JUMP_UNLESS_TRUE = 40  # pops; to a if it was false or null
    JUMP_IF_VALUE = 41  # to a if the top is not null, else pops it
    FAVG = 42  # sum, count -> sum / count in float64; a: constant with 10**scale of the sum


class Merge(Enum):
    """When two runs of a partition are one run."""

    STATE = "equal state"
    START = "equal state and start"
    PATH = "equal state and rows"


class Mode(IntEnum):
    """Which matches the runs look for: one after the other, one per start, or all. Where AFTER MATCH skips within a
    match, or time decides, one per start is found and `Program.skip` chooses among them in the order of starts."""

    PAST_LAST_ROW = 0
    TO_NEXT_ROW = 1
    ALL = 2


class Skip(IntEnum):
    """Where the scan goes on behind a match, of those found one per start: a start before that row is passed over."""

    NEXT_ROW = 0
    PAST_LAST_ROW = 1
    TO_FIRST = 2
    TO_LAST = 3


@dataclass(frozen=True, slots=True)
class Program:
    """What the kernel runs.

    Edges of state s are [edge_start[s], edge_start[s + 1]) of edge_variable (index into `variables`) and edge_target,
    in order of preference; in the modes with one match per start those less preferred than ending are left out.
    local: per variable the row-local part of its condition (TRUE if none). code: per variable the instructions
    (opcode, a, b) of the rest, empty if none; `constants` are its operands. features: row-local expressions the
    bytecode and the registers read, each with its lane.
    A variable occurs several times in `variables` where pattern positions of it differ: shown: false inside {- -};
    first_row, last_row: behind `^` and before `$`, the row has to be the first or last one of its partition (last_row
    needs the row behind it, so `after` is 1 at least).
    skip, skip_to: what AFTER MATCH does behind a match found in Mode.TO_NEXT_ROW; skip_to: of SKIP TO FIRST / LAST, per
    entry of `variables` whether its rows count. unmatched, timeouts: WITH UNMATCHED ROWS, TIMEOUT ROWS. waiting: per
    state what a partial match there waits for, as the column `timeout` shows it.
    before: how many rows of the partition before a row any expression reads. after: how many behind it conditions
    read: a row is matched when they are there. ahead: how many behind it measures read: a match comes out with them.
    """

    variables: tuple[str, ...]
    edge_start: tuple[int, ...]
    edge_variable: tuple[int, ...]
    edge_target: tuple[int, ...]
    accept: tuple[bool, ...]
    local: tuple[Expression, ...]
    code: tuple[tuple[tuple[int, int, int], ...], ...]
    constants: tuple[int | float, ...]
    features: tuple[tuple[Expression, Lane], ...]
    registers: tuple[Register, ...]
    merge: Merge
    ambiguous: bool
    mode: Mode
    strict: bool
    within_us: int | None
    within_rows: int | None
    before: int
    after: int
    ahead: int
    shown: tuple[bool, ...] = ()
    first_row: tuple[bool, ...] = ()
    last_row: tuple[bool, ...] = ()
    skip: Skip = Skip.NEXT_ROW
    skip_to: tuple[bool, ...] = ()
    unmatched: bool = False
    timeouts: bool = False
    waiting: tuple[str, ...] = ()

    @property
    def tested(self) -> tuple[int, ...]:
        """Variables whose row-local condition is not just TRUE: each needs a bit of the mask."""
        return tuple(v for v, c in enumerate(self.local) if not (isinstance(c, Constant) and c.value is True))

    def __str__(self) -> str:
        lines = [
            f"mode        {self.mode.name.lower().replace('_', ' ')}, {'strict' if self.strict else 'partition'}",
            f"runs merge  {self.merge.value}",
            f"reads       {self.before} rows before, {self.after} behind" + (
                f", {self.ahead} behind in measures" if self.ahead else ""
            ),
        ]
        if self.within_us is not None:
            lines.append(f"within      {self.within_us} us")
        if self.within_rows is not None:
            lines.append(f"within      {self.within_rows} rows")
        for i, (v, condition) in enumerate(zip(self.variables, self.local, strict=True)):
            lines.append(f"{'mask' if i == 0 else '':<12}bit {i} {v}: {show(condition)}")
        for i, (feature, lane) in enumerate(self.features):
            lines.append(f"{'features' if i == 0 else '':<12}f{i} {_lane(lane)} = {show(feature)}")
        for i, r in enumerate(self.registers):
            reads = "" if r.feature < 0 else f" f{r.feature}"
            depth = f" {r.depth}" if r.kind in (RegisterKind.LAST, RegisterKind.FIRST) else ""
            over = "|".join(r.variables) or "all"
            kind = r.kind.name.lower()
            lines.append(f"{'registers' if i == 0 else '':<12}r{i} {_lane(r.lane)} = {kind}{depth}{reads} of {over}")
        first = True
        for v, code in zip(self.variables, self.code, strict=True):
            for j, (op, a, b) in enumerate(code):
                operands = self._operands(OpCode(op), a, b)
                step = f"{j:>3} {OpCode(op).name.lower()}{operands}"
                lines.append(f"{'code' if first else '':<12}{v if j == 0 else '':<4}{step}")
                first = False
        for s in range(len(self.accept)):
            edges = range(self.edge_start[s], self.edge_start[s + 1])
            shown = ", ".join(f"{self.variables[self.edge_variable[e]]} -> {self.edge_target[e]}" for e in edges)
            tail = "accept" if self.accept[s] else ""
            lines.append(f"{'states' if s == 0 else '':<12}{s}: {', '.join(x for x in (shown, tail) if x)}")
        return "\n".join(lines)

    def _operands(self, op: OpCode, a: int, b: int) -> str:
        match op:
            case OpCode.FEATURE:
                return f" f{a}"
            case OpCode.REGISTER:
                return f" r{a}"
            case OpCode.CONSTANT | OpCode.TO_FLOAT | OpCode.RESCALE | OpCode.FAVG:
                return f" {self.constants[a]}"
            case OpCode.JUMP | OpCode.JUMP_IF_FALSE | OpCode.JUMP_IF_TRUE | OpCode.POP_JUMP_UNLESS_TRUE:
                return f" {a}"
            case OpCode.JUMP_IF_VALUE:
                return f" {a}"
            case _:
                return ""


def _lane(lane: Lane) -> str:
    return "float64" if lane.floating else ("int64" if not lane.scale else f"int64/1e{lane.scale}")


def conjuncts(condition: Expression) -> tuple[Expression, ...]:
    """The top-level ANDs of a condition, flattened, in order."""
    if isinstance(condition, Call) and condition.function == "and":
        return tuple(c for a in condition.arguments for c in conjuncts(a))
    return (condition,)


def _and(parts: list[Expression]) -> Expression:
    if not parts:
        return TRUE
    return parts[0] if len(parts) == 1 else Call("and", tuple(parts), "BOOLEAN")


class _Assembler:
    """Collects features, registers, constants and code while conditions are lowered."""

    def __init__(self) -> None:
        self.features: dict[Expression, int] = {}
        self.lanes: list[Lane] = []
        self.registers: list[Register] = []
        self.constants: dict[tuple[type, int | float | str], int] = {}
        self.values: list[int | float] = []

    def feature(self, expression: Expression) -> int:
        if expression not in self.features:
            self.features[expression] = len(self.features)
            self.lanes.append(lane_of(expression.type))
        return self.features[expression]

    def constant(self, value: int | float) -> int:
        key = (type(value), repr(value))
        if key not in self.constants:
            self.constants[key] = len(self.values)
            self.values.append(value)
        return self.constants[key]

    def register(self, kind: RegisterKind, feature: int, variables: tuple[str, ...], depth: int, lane: Lane) -> int:
        names = tuple(sorted(variables))
        for i, r in enumerate(self.registers):
            if (r.kind, r.feature, r.variables, r.depth) == (kind, feature, names, depth):
                return i
        link = -1
        if kind is RegisterKind.FIRST:
            link = self.register(RegisterKind.COUNT_ROWS, -1, names, 0, Lane(False))
        if kind is RegisterKind.LAST and depth > 0:
            link = self.register(kind, feature, names, depth - 1, lane)
        self.registers.append(Register(kind, feature, names, depth, link, lane))
        return len(self.registers) - 1

    def leaf(self, expression: Expression) -> Leaf | None:
        match expression:
            case Constant():
                return None
            case Navigation(argument, variables, logical, logical_offset, physical) if logical is not None:
                if not is_row_local(argument):
                    raise NoLane("CLASSIFIER in a navigation")
                reads = argument
                if physical:
                    reads = Navigation(argument, (), None, 0, physical, False, expression.type)
                lane = lane_of(expression.type)
                kind = RegisterKind.LAST if logical is Logical.LAST else RegisterKind.FIRST
                return Leaf(self.register(kind, self.feature(reads), variables, logical_offset, lane), lane)
            case Aggregate():
                return self._aggregate(expression)
            case _ if is_row_local(expression) and not isinstance(expression, Constant):
                return Leaf(("feature", self.feature(expression)), lane_of(expression.type))
        return None

    def _aggregate(self, e: Aggregate) -> Leaf:
        if e.distinct:
            raise NoLane(f"{e.function}(DISTINCT ...)")
        whole = Lane(False)
        if e.argument is None:
            return Leaf(self.register(RegisterKind.COUNT_ROWS, -1, e.variables, 0, whole), whole)
        if not is_row_local(e.argument):
            raise NoLane(f"the argument of {e.function}")
        if e.function == "count":
            lane_of(e.argument.type)
            return Leaf(
                self.register(RegisterKind.COUNT_VALUES, self.feature(e.argument), e.variables, 0, whole), whole
            )
        lane = lane_of(e.argument.type)
        if lane.boolean or e.argument.type in ("FLOAT", "INTERVAL"):
            raise NoLane(f"{e.function} of {e.argument.type}")
        feature = self.feature(e.argument)
        match e.function:
            case "sum":
                return Leaf(self.register(RegisterKind.SUM, feature, e.variables, 0, lane_of(e.type)), lane_of(e.type))
            case "min" | "max":
                kind = RegisterKind.MIN if e.function == "min" else RegisterKind.MAX
                return Leaf(self.register(kind, feature, e.variables, 0, lane), lane)
            case "avg" | "mean" if e.type == "DOUBLE":
                sums = lane if lane.floating else Lane(False, lane.scale)
                total = self.register(RegisterKind.SUM, feature, e.variables, 0, sums)
                count = self.register(RegisterKind.COUNT_VALUES, feature, e.variables, 0, whole)
                return Leaf(("avg", total, count), Lane(True))
            case _:
                raise NoLane(f"{e.function}()")

    def code(self, lowered: Lowered, out: list[tuple[int, int, int]]) -> None:
        """Appends the instructions that leave the value on the stack."""

        def emit(op: OpCode, a: int = 0, b: int = 0) -> int:
            out.append((int(op), a, b))
            return len(out) - 1

        def land(*places: int) -> None:
            for place in places:
                out[place] = (out[place][0], len(out), 0)

        match lowered:
            case Leaf(("feature", int(index))):
                emit(OpCode.FEATURE, index)
            case Leaf(("avg", int(total), int(count))):
                emit(OpCode.REGISTER, total)
                emit(OpCode.REGISTER, count)
                lane = self.registers[total].lane
                emit(OpCode.FAVG, self.constant(1.0 if lane.floating else 10.0**lane.scale), int(lane.floating))
            case Leaf(int(register)):
                emit(OpCode.REGISTER, register)
            case Leaf():
                raise NoLane("an unknown leaf")
            case Literal(None):
                emit(OpCode.NULL)
            case Literal(constant):
                assert constant is not None
                emit(OpCode.CONSTANT, self.constant(constant))
            case Op("and" | "or" as name, (a, b)):
                self.code(a, out)
                jump = emit(OpCode.JUMP_IF_FALSE if name == "and" else OpCode.JUMP_IF_TRUE)
                self.code(b, out)
                emit(OpCode.AND if name == "and" else OpCode.OR)
                land(jump)
            case Op("case", parts):
                ends = []
                for condition, value in zip(parts[:-1:2], parts[1::2], strict=True):
                    self.code(condition, out)
                    skip = emit(OpCode.POP_JUMP_UNLESS_TRUE)
                    self.code(value, out)
                    ends.append(emit(OpCode.JUMP))
                    land(skip)
                self.code(parts[-1], out)
                land(*ends)
            case Op("coalesce", parts):
                ends = []
                for part in parts[:-1]:
                    self.code(part, out)
                    ends.append(emit(OpCode.JUMP_IF_VALUE))
                self.code(parts[-1], out)
                land(*ends)
            case Op(name, arguments, lane):
                for argument in arguments:
                    self.code(argument, out)
                match name:
                    case "to_float":
                        emit(OpCode.TO_FLOAT, self.constant(10.0 ** arguments[0].lane.scale))
                    case "rescale":
                        emit(OpCode.RESCALE, self.constant(10 ** (lane.scale - arguments[0].lane.scale)))
                    case "add" | "sub" | "mul" | "neg" | "abs" | "idiv" | "mod":
                        emit(OpCode[name.upper()], self.constant(lane.low), self.constant(lane.high))
                    case _:
                        emit(OpCode[name.upper()])


def _reach(expressions: list[Expression]) -> tuple[int, int]:
    """Rows before and behind a row that any physical navigation reads."""
    offsets = [e.physical_offset for x in expressions for e in walk(x) if isinstance(e, Navigation)]
    return max([0, *(-o for o in offsets)]), max([0, *offsets])


def assemble(plan: Plan, automaton: Automaton | None = None) -> Program:
    """The program of a plan. Raises NoKernel, naming the construct, where only the reference can run it.

    Cost: linear in the automaton and the conditions."""
    if plan.selection in (Selection.SKIP_TILL_NEXT, Selection.SKIP_TILL_ANY):
        raise NoKernel(f"SELECTION {plan.selection.value}")
    more = plan.timeout_rows or plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED
    if anchors(plan.pattern) or excludes(plan.pattern) or more:
        raise NoKernel("a clause that is not in the kernel yet")
    if negated(plan.pattern):
        raise NoKernel(f"the negation ~{negated(plan.pattern)[0]}")
    modes = {
        AfterMatchKind.PAST_LAST_ROW: Mode.PAST_LAST_ROW,
        AfterMatchKind.TO_NEXT_ROW: Mode.TO_NEXT_ROW,
        AfterMatchKind.NO_SKIP: Mode.ALL,
    }
    if plan.after.kind not in modes:
        raise NoKernel(f"AFTER MATCH {plan.after.kind.value}")
    mode = modes[plan.after.kind]
    automaton = automaton or compile_plan(plan)
    variables = tuple(d.variable for d in plan.defines)
    if len(variables) > VARIABLES_MAX:
        raise NoKernel(f"more than {VARIABLES_MAX} pattern variables")

    assembler = _Assembler()
    local: list[Expression] = []
    codes: list[tuple[tuple[int, int, int], ...]] = []
    for define in plan.defines:
        parts = conjuncts(define.condition)
        local.append(_and([c for c in parts if is_row_local(c)]))
        rest = [c for c in parts if not is_row_local(c)]
        code: list[tuple[int, int, int]] = []
        if rest:
            try:
                assembler.code(lower(_and(rest), assembler.leaf), code)
            except NoLane as why:
                raise NoKernel(f"DEFINE {define.variable}: {why}") from None
        codes.append(tuple(code))
    if len(assembler.registers) > REGISTERS_MAX:
        raise NoKernel(f"more than {REGISTERS_MAX} values kept per run")
    dependent = any(codes)

    before, after = _reach([*local, *assembler.features])
    shown_before, ahead = _reach([m.expression for m in plan.measures])
    before = max(before, shown_before)
    if after and plan.selection is Selection.STRICT:
        raise NoKernel("NEXT under SELECTION STRICT")

    run = automaton
    if mode is Mode.ALL and is_ambiguous(automaton):
        labelled = by_labels(automaton)
        if labelled is None:
            raise NoKernel("a pattern with very many ways to read one sequence")
        run = labelled
    edge_start, edge_variable, edge_target, accept = [0], [], [], []
    for state in run.states:
        edges = state.edges
        if state.accept_at is not None and mode is not Mode.ALL:
            edges = edges[: state.accept_at]
        edge_variable += [variables.index(e.variable) for e in edges]
        edge_target += [e.target for e in edges]
        edge_start.append(len(edge_target))
        accept.append(state.accept_at is not None)
    within = plan.within
    if dependent or mode is Mode.ALL:
        merge = Merge.PATH
    elif within is not None or mode is Mode.TO_NEXT_ROW:
        merge = Merge.START
    else:
        merge = Merge.STATE
    return Program(
        variables=variables,
        edge_start=tuple(edge_start),
        edge_variable=tuple(edge_variable),
        edge_target=tuple(edge_target),
        accept=tuple(accept),
        local=tuple(local),
        code=tuple(codes),
        constants=tuple(assembler.values),
        features=tuple(zip(assembler.features, assembler.lanes, strict=True)),
        registers=tuple(assembler.registers),
        merge=merge,
        ambiguous=merge is Merge.PATH and is_ambiguous(run),
        mode=mode,
        strict=plan.selection is Selection.STRICT,
        within_us=within.interval_us if within else None,
        within_rows=within.rows if within else None,
        before=before,
        after=after,
        ahead=ahead,
    )

"""Automaton to program: flat tables and bytecode that one interpreted kernel runs for every query.

A DEFINE condition is split at its top-level ANDs: what depends on the candidate row only is computed for whole batches
beforehand and becomes one bit of the row's mask; the rest is bytecode over the run's registers (the V vector of [SASE]
section 5.2.2: only the values that later conditions need, never the events).

Long: Program and its printed form are one half, `assemble`, which fills its fields in one pass, is the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import assert_never

from matching.program.lanes import (
    Lane,
    Leaf,
    Literal,
    Lowered,
    NoLane,
    Op,
    Unit,
    is_wide,
    kept_lane,
    lane_of,
    lower,
)
from matching.program.opcodes import OPCODES, OpCode, constants_of
from query.automaton.compile import by_labels, compile_plan, is_ambiguous
from query.automaton.nfa import Automaton, Label
from query.language.ast import AfterMatchKind, RowsPerMatch, Selection
from query.plan.expression import (
    TRUE,
    Aggregate,
    Call,
    Classifier,
    Column,
    Constant,
    Expression,
    Logical,
    Navigation,
    conjuncts,
    is_row_local,
    show,
    walk,
)
from query.plan.pattern import (
    Alternation,
    Anchor,
    Conjunction,
    Empty,
    Exclusion,
    Negation,
    Repeat,
    RowPattern,
    Sequence,
    Variable,
    anchors,
    excludes,
    min_rows,
)
from query.plan.plan import Plan

#: Most labels of one pattern (bits of a row's mask) and most registers of a run (bits of its validity).
VARIABLES_MAX = 62
#: A run keeps two bits for each in one number.
GAPS_MAX = 30
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

    feature: index of the row value it reads; -1 for COUNT_ROWS, and where the value is the code of the variable that is
    bound. depth: offset of LAST / FIRST. link: for LAST of depth d > 0 the index of LAST of depth d - 1, or of the
    aggregate whose value before its last row it keeps; for FIRST that of the COUNT_ROWS it reads, else -1. A register
    comes after the one it links to, and updates go from the last register to the first, so that each reads the value
    before.
    """

    kind: RegisterKind
    feature: int
    variables: tuple[str, ...]
    depth: int
    link: int
    lane: Lane


class Merge(Enum):
    """When two runs of a partition are one run."""

    STATE = "equal state"
    START = "equal state and start"
    PATH = "equal state and rows"


class Mode(IntEnum):
    """The matches that runs look for: one after the other, one per start, or all. If AFTER MATCH skips within a match,
    or time or absence decides, one per start is found and `Program.skip` chooses among them in the order of
    starts."""

    PAST_LAST_ROW = 0
    TO_NEXT_ROW = 1
    ALL = 2


class Ignore(IntEnum):
    """The rows of its partition that a run may pass over ([SASE] section 4.2, step 3)."""

    NONE = 0
    NOT_WAITED_FOR = 1  # SKIP TILL NEXT MATCH
    ANY = 2  # SKIP TILL ANY MATCH


class Skip(IntEnum):
    """The row where the scan goes on after a match, of those found one per start: earlier starts are passed over."""

    NEXT_ROW = 0
    PAST_LAST_ROW = 1
    TO_FIRST = 2
    TO_LAST = 3


@dataclass(frozen=True, slots=True)
class Program:
    """A plan as engines run it.

    Edges of state s are [edge_start[s], edge_start[s + 1]) of edge_variable (index into `variables`) and edge_target,
    in order of preference; in the modes with one match per start those less preferred than ending are left out.
    local: per variable the row-local part of its condition (TRUE if none). code: per variable the instructions
    (opcode, a, b) of the rest, empty if none; `constants` are its operands. features: row-local expressions the
    bytecode and the registers read, each with its lane. texts: the VARCHAR values that have the codes 0, 1, ... from
    the start, for the constants of the bytecode; label_text: the code of each variable's name (-1: never read).
    A variable occurs several times in `variables` where labels of it differ (query.automaton.nfa.Label), and only if
    an edge has it: shown: false inside {- -}; first_row, last_row: after `^` and before `$`, the row has to be the
    first or last one of its partition (last_row needs the row after it, so `after` is 1 at least).
    skip: what AFTER MATCH does; in Mode.TO_NEXT_ROW it chooses among the matches found. skip_to: of SKIP TO FIRST /
    LAST, per entry of `variables` whether its rows count. unmatched, timeouts: WITH UNMATCHED ROWS, TIMEOUT ROWS.
    waiting: per state what a partial match there waits for, as the column `timeout` shows it.
    absent_before, absent_behind: entries of `variables` on no edge: the negations before the first row of a match, and
    after its last one. Their conditions are row-local. With any, a match may turn out to be none, so nothing is left
    out after an accepting state's end: where no row is passed over, `lesser` is per state the one with its edges that
    are less preferred than ending (-1: none), on no edge itself.
    ignore: which rows a run may pass over. If any: edge_waits, per edge whether a row that meets its condition is none
    of these under SKIP TILL NEXT MATCH; gaps, tuples of entries of `variables` on no edge whose conditions, row-local
    ones, no row passed over may meet; edge_gap, per edge the one for the rows since the last row bound (-1: none).
    carries: the registers that come out with a match instead of its rows (matching.program.carried); None: its rows do.
    before: how many rows of the partition before a row any expression reads. after: how many after it conditions
    read: a row is matched when they are there. ahead: how many after it measures read: a match comes out with them.
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
    texts: tuple[str, ...] = ()
    label_text: tuple[int, ...] = ()
    absent_before: tuple[int, ...] = ()
    absent_behind: tuple[int, ...] = ()
    lesser: tuple[int, ...] = ()
    ignore: Ignore = Ignore.NONE
    edge_waits: tuple[bool, ...] = ()
    edge_gap: tuple[int, ...] = ()
    gaps: tuple[tuple[int, ...], ...] = ()
    carries: tuple[int, ...] | None = None

    @property
    def absent(self) -> frozenset[int]:
        """The labels that no row of a match has."""
        return frozenset((*self.absent_before, *self.absent_behind, *(v for gap in self.gaps for v in gap)))

    @property
    def tested(self) -> tuple[int, ...]:
        """Labels whose row-local condition, anchors included, is not just TRUE: each needs a bit of the mask."""
        return tuple(
            v for v, c in enumerate(self.local)
            if self.first_row[v] or self.last_row[v] or not (isinstance(c, Constant) and c.value is True)
        )  # fmt: skip

    @property
    def tests(self) -> tuple[tuple[int, ...], ...]:
        """The tested labels, those with the same condition and the same anchors together."""
        together: dict[tuple[Expression, bool, bool], list[int]] = {}
        for v in self.tested:
            together.setdefault((self.local[v], self.first_row[v], self.last_row[v]), []).append(v)
        return tuple(map(tuple, together.values()))

    @property
    def labels(self) -> tuple[Label, ...]:
        """Returns the entries of `variables`, distinguished if they are of one variable."""
        return tuple(
            Label(*of) for of in zip(self.variables, self.shown, self.first_row, self.last_row, strict=True)
        )  # fmt: skip

    @property
    def names(self) -> tuple[str, ...]:
        """The labels as they are printed."""
        return tuple(label.variable if label == Label(label.variable) else str(label) for label in self.labels)

    def __str__(self) -> str:
        names = self.names
        lines = [
            f"mode        {self.mode.name.lower().replace('_', ' ')}, {'strict' if self.strict else 'partition'}",
            f"runs merge  {self.merge.value}",
            f"reads       {self.before} rows before, {self.after} after" + (
                f", {self.ahead} after for measures" if self.ahead else ""
            ),
        ]
        if self.within_us is not None:
            lines.append(f"within      {self.within_us} us")
        if self.within_rows is not None:
            lines.append(f"within      {self.within_rows} rows")
        if self.skip in (Skip.TO_FIRST, Skip.TO_LAST):
            to = "|".join(dict.fromkeys(v for v, counts in zip(self.variables, self.skip_to, strict=True) if counts))
            lines.append(f"skip        {self.skip.name.lower().replace('_', ' ')} {to or '(no row)'}")
        for asked, what in ((self.unmatched, "unmatched rows"), (self.timeouts, "timeout rows")):
            if asked:
                lines.append(f"gives       {what}")
        for where, absent in (("before", self.absent_before), ("behind", self.absent_behind)):
            if absent:
                lines.append(f"absent      {where} a match: {', '.join(names[v] for v in absent)}")
        if self.ignore is not Ignore.NONE:
            lines.append(f"passes over {self.ignore.name.lower().replace('_', ' ')}")
        for i, (v, condition) in enumerate(zip(names, self.local, strict=True)):
            lines.append(f"{'mask' if i == 0 else '':<12}bit {i} {v}: {show(condition)}")
        for i, (feature, lane) in enumerate(self.features):
            lines.append(f"{'features' if i == 0 else '':<12}f{i} {_lane(lane)} = {show(feature)}")
        for i, r in enumerate(self.registers):
            if r.kind is RegisterKind.LAST and r.link >= 0 and self.registers[r.link].kind is not r.kind:
                lines.append(f"{'':<12}r{i} {_lane(r.lane)} = r{r.link} before the last row")
                continue
            named = " classifier" if r.kind in (RegisterKind.LAST, RegisterKind.FIRST) else ""
            reads = named if r.feature < 0 else f" f{r.feature}"
            depth = f" {r.depth}" if r.kind in (RegisterKind.LAST, RegisterKind.FIRST) else ""
            over = "|".join(r.variables) or "all"
            kind = r.kind.name.lower()
            lines.append(f"{'registers' if i == 0 else '':<12}r{i} {_lane(r.lane)} = {kind}{depth}{reads} of {over}")
        if self.carries is not None:
            lines.append(" ".join(["carries    ", "first row, last row", *(f"r{r}" for r in self.carries)]))
        if self.texts:
            lines.append(f"texts       {', '.join(f'{i} {text!r}' for i, text in enumerate(self.texts))}")
        first = True
        for v, code in zip(names, self.code, strict=True):
            for j, (op, a, _) in enumerate(code):
                step = f"{j:>3} {OPCODES[op].name.lower()}{self._operand(OPCODES[op], a)}"
                lines.append(f"{'code' if first else '':<12}{v if j == 0 else '':<4}{step}")
                first = False
        for s in range(len(self.accept)):
            edges = range(self.edge_start[s], self.edge_start[s + 1])
            shown = ", ".join(self._edge(e) for e in edges)
            tail = "accept" if self.accept[s] else ""
            then = f"then {self.lesser[s]}" if self.lesser and self.lesser[s] >= 0 else ""
            lines.append(f"{'states' if s == 0 else '':<12}{s}: {', '.join(x for x in (shown, tail, then) if x)}")
        return "\n".join(lines)

    def _edge(self, edge: int) -> str:
        names = self.names
        shown = f"{names[self.edge_variable[edge]]} -> {self.edge_target[edge]}"
        if self.ignore is Ignore.NOT_WAITED_FOR and not self.edge_waits[edge]:
            shown += " or passed over"
        if self.edge_gap and self.edge_gap[edge] >= 0:
            shown += " after no " + ", ".join(names[v] for v in self.gaps[self.edge_gap[edge]])
        return shown

    def _operand(self, op: OpCode, a: int) -> str:
        match op.does.operands:
            case ("feature",):
                return f" f{a}"
            case ("register",):
                return f" r{a}"
            case ("value" | "factor" | "divisor",):
                return f" {self.constants[a]}"
            case ("target",):
                return f" {a}"
            case _:
                return ""


def _lane(lane: Lane) -> str:
    if lane.unit is Unit.CODE:
        return "code"
    return "float64" if lane.floating else ("int64" if not lane.scale else f"int64/1e{lane.scale}")


def _and(parts: list[Expression]) -> Expression:
    if not parts:
        return TRUE
    return parts[0] if len(parts) == 1 else Call("and", tuple(parts), "BOOLEAN")


def register_of(
    registers: list[Register], kind: RegisterKind, feature: int, variables: tuple[str, ...], depth: int, lane: Lane
) -> int:
    """The index of a register among `registers`, to which it is added, with those it links to, if it is not there.

    Raises NoKernel for a value that lies more than REGISTERS_MAX rows back."""
    if kind is RegisterKind.LAST and depth >= REGISTERS_MAX:
        raise NoKernel(f"more than {REGISTERS_MAX} values kept per run")
    names = tuple(sorted(variables))
    for i, r in enumerate(registers):
        aggregate = r.link >= 0 and kind is RegisterKind.LAST and registers[r.link].kind is not kind
        if (r.kind, r.feature, r.variables, r.depth) == (kind, feature, names, depth) and not aggregate:
            return i
    link = -1
    if kind is RegisterKind.FIRST:
        link = register_of(registers, RegisterKind.COUNT_ROWS, -1, names, 0, Lane(False))
    if kind is RegisterKind.LAST and depth > 0:
        link = register_of(registers, kind, feature, names, depth - 1, lane)
    registers.append(Register(kind, feature, names, depth, link, lane))
    return len(registers) - 1


class Assembler:
    """Collects features, registers, constants and code while conditions are lowered."""

    def __init__(self) -> None:
        self.features: dict[Expression, int] = {}
        self.lanes: list[Lane] = []
        self.registers: list[Register] = []
        self.constants: dict[tuple[type, int | float | str], int] = {}
        self.values: list[int | float] = []
        self.texts: dict[str, int] = {}

    def feature(self, expression: Expression) -> int:
        if expression not in self.features:
            lane = kept_lane(expression.type)
            storable_feature(expression)
            self.features[expression] = len(self.features)
            self.lanes.append(lane)
        return self.features[expression]

    def text(self, value: str) -> int:
        """The code of a constant."""
        return self.texts.setdefault(value, len(self.texts))

    def constant(self, value: int | float) -> int:
        key = (type(value), repr(value))
        if key not in self.constants:
            self.constants[key] = len(self.values)
            self.values.append(value)
        return self.constants[key]

    def register(self, kind: RegisterKind, feature: int, variables: tuple[str, ...], depth: int, lane: Lane) -> int:
        return register_of(self.registers, kind, feature, variables, depth, lane)

    def leaf(self, expression: Expression) -> Leaf | None:
        match expression:
            case Constant(value=str(text), type="VARCHAR"):
                return Leaf(("text", self.text(text)), kept_lane("VARCHAR"))
            case Constant():
                try:
                    lower(expression, lambda _: None)
                except NoLane:  # DuckDB computes it, as a value of every row
                    return Leaf(("feature", self.feature(expression)), kept_lane(expression.type))
                return None
            case Navigation(Classifier(), variables, logical, logical_offset, 0) if logical is not None:
                kind = RegisterKind.LAST if logical is Logical.LAST else RegisterKind.FIRST
                lane = kept_lane("VARCHAR")
                return Leaf(self.register(kind, -1, variables, logical_offset, lane), lane)
            case Navigation(argument, variables, logical, logical_offset, physical) if logical is not None:
                if not is_row_local(argument):
                    raise NoLane("CLASSIFIER in a navigation")
                reads = argument
                if physical:
                    reads = Navigation(argument, (), None, 0, physical, False, expression.type)
                lane = kept_lane(expression.type)
                kind = RegisterKind.LAST if logical is Logical.LAST else RegisterKind.FIRST
                return Leaf(self.register(kind, self.feature(reads), variables, logical_offset, lane), lane)
            case Aggregate(before=True):
                return self._before(self._aggregate(expression))
            case Aggregate():
                return self._aggregate(expression)
            case _ if is_row_local(expression):
                return Leaf(("feature", self.feature(expression)), kept_lane(expression.type))
        return None

    def _before(self, leaf: Leaf) -> Leaf:
        """An aggregate without the row that is tried: what its registers held before they took it."""

        def shifted(index: int) -> int:
            r = self.registers[index]
            register = Register(RegisterKind.LAST, r.feature, r.variables, 1, index, r.lane)
            if register not in self.registers:
                self.registers.append(register)
            return self.registers.index(register)

        match leaf.source:
            case ("avg", int(total), int(count)):
                return Leaf(("avg", shifted(total), shifted(count)), leaf.lane)
            case int(index):
                return Leaf(shifted(index), leaf.lane)
            case _:
                raise NoLane("an unknown leaf")

    def _aggregate(self, e: Aggregate) -> Leaf:
        whole = Lane(False)
        if e.more or e.order or (e.distinct and e.function not in ("min", "max")):
            raise NoLane(f"{e.function}() with DISTINCT, ORDER BY or several arguments")
        argument = e.argument
        if e.where is not None:
            # a value that is filtered out counts as little as a null; a row does too if something of it is counted
            value = Constant(True, "BOOLEAN") if argument is None else argument
            argument = Call("case", (e.where, value, Constant(None, value.type)), value.type)
        if argument is None:
            return Leaf(self.register(RegisterKind.COUNT_ROWS, -1, e.variables, 0, whole), whole)
        if not is_row_local(argument):
            raise NoLane(f"the argument of {e.function}")
        if e.function == "count":
            there = Call("is_not_null", (argument,), "BOOLEAN")
            counted = Call("case", (there, TRUE, Constant(None, "BOOLEAN")), "BOOLEAN")
            feature = self.feature(argument if _has_lane(argument) else counted)
            return Leaf(self.register(RegisterKind.COUNT_VALUES, feature, e.variables, 0, whole), whole)
        lane = lane_of(argument.type)
        adds = e.function not in ("min", "max")
        if lane.boolean or argument.type == "INTERVAL" or (adds and lane.unit is not Unit.NUMBER):
            raise NoLane(f"{e.function} of {argument.type}")
        match e.function:
            case "sum":
                total = lane_of(e.type)
                return Leaf(self.register(RegisterKind.SUM, self.feature(argument), e.variables, 0, total), total)
            case "min" | "max":
                kind = RegisterKind.MIN if e.function == "min" else RegisterKind.MAX
                return Leaf(self.register(kind, self.feature(argument), e.variables, 0, lane), lane)
            case "avg" | "mean" if e.type == "DOUBLE":
                feature = self.feature(argument)
                sums = lane if lane.floating else Lane(False, lane.scale)
                added = self.register(RegisterKind.SUM, feature, e.variables, 0, sums)
                count = self.register(RegisterKind.COUNT_VALUES, feature, e.variables, 0, whole)
                return Leaf(("avg", added, count), Lane(True))
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
            case Leaf(("text", int(text))):
                emit(OpCode.CONSTANT, self.constant(text))
            case Leaf(("avg", int(total), int(count))):
                emit(OpCode.REGISTER, total)
                emit(OpCode.REGISTER, count)
                lane = self.registers[total].lane
                divisor = self.constant(1.0 if lane.floating else 10.0**lane.scale)
                emit(OpCode.FAVG if lane.floating else OpCode.AVG, divisor)
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
            case Op("both" | "either" as name, (a, b)):
                self.code(a, out)
                self.code(b, out)
                emit(OpCode.AND if name == "both" else OpCode.OR)
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
            case Op(name, arguments):
                for argument in arguments:
                    self.code(argument, out)
                emit(OpCode[name.upper()], *map(self.constant, constants_of(lowered)))


def _has_lane(expression: Expression) -> bool:
    """True if a row-local value is kept as a number."""
    try:
        lane_of(expression.type)
        storable_feature(expression)
    except NoLane:
        return False
    return True


def storable_feature(feature: Expression) -> None:
    """Raises NoLane for values of the rows that a lane may not hold: whole numbers and decimals of columns beyond 64
    bits, and intervals that may have months."""
    columns = [e for e in walk(feature) if isinstance(e, Column)]
    if is_wide(feature.type) and any(is_wide(c.type) for c in columns):
        raise NoLane(f"values of type {feature.type}")

    def fixed(e: Expression) -> Leaf | None:
        match e:
            case Column() | Navigation(Column()) if e.type != "INTERVAL":
                return Leaf(e, lane_of(e.type))
        return None

    if feature.type == "INTERVAL":
        lower(feature, fixed)


def _reach(expressions: list[Expression]) -> tuple[int, int]:
    """Returns the numbers of rows before and after a row that any physical navigation reads."""
    offsets = [e.physical_offset for x in expressions for e in walk(x) if isinstance(e, Navigation)]
    return max([0, *(-o for o in offsets)]), max([0, *offsets])


def _edge_negation(pattern: RowPattern, before: bool, behind: bool) -> str | None:
    """Returns a negated variable that may come before the first or after the last row of a match. before, behind: True
    if rows of the match always come there."""
    match pattern:
        case Negation(name):
            return None if before and behind else name
        case Sequence(parts):
            for i, part in enumerate(parts):
                rows_before = before or any(map(min_rows, parts[:i]))
                rows_behind = behind or any(map(min_rows, parts[i + 1 :]))
                if (found := _edge_negation(part, rows_before, rows_behind)) is not None:
                    return found
            return None
        case Alternation(choices) | Conjunction(choices):
            return next((n for c in choices if (n := _edge_negation(c, before, behind)) is not None), None)
        case Repeat(body) | Exclusion(body):
            return _edge_negation(body, before, behind)
        case Variable() | Empty() | Anchor():
            return None
        case _:
            assert_never(pattern)


@dataclass(frozen=True, slots=True)
class _Absence:
    """Negated variables before the first row of every match and after the last one, in order; `middle`: the pattern
    between them."""

    before: tuple[str, ...]
    middle: RowPattern
    behind: tuple[str, ...]


def _absence(pattern: RowPattern) -> _Absence:
    parts = pattern.parts if isinstance(pattern, Sequence) else (pattern,)
    takes = [i for i, part in enumerate(parts) if not isinstance(part, Negation | Anchor | Empty)]
    if not takes:
        return _Absence((), pattern, ())
    first, last = takes[0], takes[-1] + 1
    before = tuple(part.name for part in parts[:first] if isinstance(part, Negation))
    behind = tuple(part.name for part in parts[last:] if isinstance(part, Negation))
    return _Absence(before, Sequence(parts[first:last]), behind)


_IGNORE = {Selection.SKIP_TILL_NEXT: Ignore.NOT_WAITED_FOR, Selection.SKIP_TILL_ANY: Ignore.ANY}

_AFTER = {
    AfterMatchKind.PAST_LAST_ROW: (Mode.PAST_LAST_ROW, Skip.PAST_LAST_ROW),
    AfterMatchKind.TO_NEXT_ROW: (Mode.TO_NEXT_ROW, Skip.NEXT_ROW),
    AfterMatchKind.TO_FIRST: (Mode.TO_NEXT_ROW, Skip.TO_FIRST),
    AfterMatchKind.TO_LAST: (Mode.TO_NEXT_ROW, Skip.TO_LAST),
    AfterMatchKind.NO_SKIP: (Mode.ALL, Skip.NEXT_ROW),
}


def _refuse(plan: Plan, mode: Mode, strict: bool) -> None:
    """Raises NoKernel for clauses that only the reference can run."""
    if isinstance(plan.pattern, Conjunction):
        raise NoKernel("AND of two patterns")
    absence = _absence(plan.pattern)
    if plan.selection in _IGNORE:
        if anchors(plan.pattern):
            raise NoKernel(f"anchors under SELECTION {plan.selection.value}")
    # under STRICT and PARTITION no row lies between two rows of a match: a negation there is met by nothing
    if (name := _edge_negation(absence.middle, False, False)) is not None:
        raise NoKernel(f"the negation ~{name}, at the start or end of some matches only,")
    if absence.before or absence.behind:
        negation = f"the negation ~{(*absence.before, *absence.behind)[0]} at the start or end of a match"
        if plan.within is None:
            raise NoKernel(f"{negation} without WITHIN")
        if mode is Mode.ALL and plan.selection not in _IGNORE:
            raise NoKernel(f"{negation} with NO SKIP")
        if plan.timeout_rows:
            raise NoKernel(f"{negation} with TIMEOUT ROWS")
        for absent in (*absence.before, *absence.behind):
            if not is_row_local(plan.condition(absent)):
                raise NoKernel(f"{negation}: its condition depends on the match,")
    if strict and False in anchors(plan.pattern):
        raise NoKernel("$ under SELECTION STRICT")
    if plan.timeout_rows and strict:
        raise NoKernel("TIMEOUT ROWS under SELECTION STRICT")
    if plan.timeout_rows and False in anchors(plan.pattern):
        raise NoKernel("TIMEOUT ROWS of a pattern with $")
    if mode is Mode.ALL and (plan.timeout_rows or plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED):
        raise NoKernel("TIMEOUT ROWS or WITH UNMATCHED ROWS with NO SKIP")


def _run_by(plan: Plan, mode: Mode) -> Automaton:
    """The automaton that is run. NoKernel where it cannot be."""
    automaton = compile_plan(plan)
    start = automaton.states[0]
    all_matches = mode is Mode.ALL or plan.selection in _IGNORE
    if not all_matches:
        first, at = start.first_accept_at, start.accept_at
        if first is not None and (at is None or first < at):
            raise NoKernel("an empty match after ^")
        return automaton
    if not is_ambiguous(automaton, by_name=True):
        return automaton
    if anchors(plan.pattern) or (excludes(plan.pattern) and plan.rows is not RowsPerMatch.ONE):
        raise NoKernel("all matches of a pattern with anchors or {- -} and several ways to read one sequence")
    if any(edge.negated for state in automaton.states for edge in state.edges) and plan.selection in _IGNORE:
        raise NoKernel("a negation in a pattern with several ways to read one sequence")
    labelled = by_labels(automaton)
    if labelled is None:
        raise NoKernel("a pattern with very many ways to read one sequence")
    return labelled


def assemble(plan: Plan) -> Program:
    """Returns the program of a plan. Raises NoKernel, naming the construct, if only the reference can run it.

    Cost: linear in the automaton and the conditions."""
    mode, skip = _AFTER[plan.after.kind]
    # where all rows are of one partition, a row of another cannot come between
    strict = plan.selection is Selection.STRICT and bool(plan.partition_by)
    _refuse(plan, mode, strict)
    run = _run_by(plan, mode)
    absence = _absence(plan.pattern)
    ignore = _IGNORE.get(plan.selection, Ignore.NONE)
    if (absence.before or absence.behind) and ignore is Ignore.NONE:
        mode = Mode.TO_NEXT_ROW  # one per start, for a match that is none cuts nothing

    whole = mode is Mode.ALL or ignore is not Ignore.NONE
    cut = [s.edges if s.accept_at is None or whole else s.edges[: s.accept_at] for s in run.states]
    accept = [s.accept_at is not None for s in run.states]
    lesser: list[int] = []
    if (absence.before or absence.behind) and not whole:
        lesser = [-1] * len(cut)
        for index, state in enumerate(run.states):
            # nothing forbids an empty match, so nothing is read after one
            if index and state.accept_at is not None and state.accept_at < len(state.edges):
                lesser[index] = len(cut)
                cut.append(state.edges[state.accept_at :])
        accept += [False] * (len(cut) - len(accept))
        lesser += [-1] * (len(cut) - len(lesser))
    occur = {e.label for edges in cut for e in edges}
    labels = [label for d in plan.defines for label in sorted(occur, key=_plain_first) if label.variable == d.variable]
    absent = tuple(dict.fromkeys((*absence.before, *absence.behind)))
    gaps = list(dict.fromkeys(e.negated for edges in cut for e in edges if e.negated)) if ignore else []
    absent = tuple(dict.fromkeys((*absent, *(name for gap in gaps for name in gap))))
    taken = len(labels)
    labels += [Label(name) for name in absent]
    if len(labels) > VARIABLES_MAX:
        raise NoKernel(f"more than {VARIABLES_MAX} pattern variables")

    assembler = Assembler()
    local: dict[str, Expression] = {}
    codes: dict[str, tuple[tuple[int, int, int], ...]] = {}
    for variable in dict.fromkeys(label.variable for label in labels):
        parts = conjuncts(plan.condition(variable))
        local[variable] = _and([c for c in parts if is_row_local(c)])
        rest = [c for c in parts if not is_row_local(c)]
        code: list[tuple[int, int, int]] = []
        if rest:
            try:
                assembler.code(lower(_and(rest), assembler.leaf), code)
            except NoLane as why:
                raise NoKernel(f"DEFINE {variable}: {why}") from None
        codes[variable] = tuple(code)
    labelled = (r for r in assembler.registers if r.kind in (RegisterKind.LAST, RegisterKind.FIRST) and r.feature < 0)
    if any(r.depth == 0 or r.kind is RegisterKind.FIRST for r in labelled):
        label_text = tuple(assembler.text(label.variable) for label in labels)
    else:
        label_text = (-1,) * len(labels)
    if len(assembler.registers) > REGISTERS_MAX:
        raise NoKernel(f"more than {REGISTERS_MAX} values kept per run")

    # of all conditions: that of a variable no match can reach too, for `after` says when a row is matched
    before, after = _reach([*(d.condition for d in plan.defines), *assembler.features])
    if False in anchors(plan.pattern):
        after = max(after, 1)  # whether a row is the last one shows when the next one comes
    shown_before, ahead = _reach([m.expression for m in plan.measures])
    if strict and after:
        raise NoKernel("NEXT under SELECTION STRICT")

    for name in (name for gap in gaps for name in gap):
        if codes[name]:
            raise NoKernel(f"the negation ~{name}: its condition depends on the match,")
    if len(gaps) > GAPS_MAX:
        raise NoKernel(f"negations at more than {GAPS_MAX} places")

    edge_start, edge_variable, edge_target = [0], [], []
    for edges in cut:
        edge_variable += [labels.index(e.label) for e in edges]
        edge_target += [e.target for e in edges]
        edge_start.append(len(edge_target))
    if any(codes.values()) or whole:
        merge = Merge.PATH
    elif plan.within is not None or mode is Mode.TO_NEXT_ROW:
        merge = Merge.START
    else:
        merge = Merge.STATE
    waiting = [", ".join(dict.fromkeys(e.variable for e in s.edges)) for s in run.states]
    waiting += [""] * (len(cut) - len(waiting))
    return Program(
        variables=tuple(label.variable for label in labels),
        edge_start=tuple(edge_start),
        edge_variable=tuple(edge_variable),
        edge_target=tuple(edge_target),
        accept=tuple(accept),
        local=tuple(local[label.variable] for label in labels),
        code=tuple(codes[label.variable] for label in labels),
        constants=tuple(assembler.values),
        features=tuple(zip(assembler.features, assembler.lanes, strict=True)),
        registers=tuple(assembler.registers),
        merge=merge,
        ambiguous=merge is Merge.PATH and is_ambiguous(run),
        mode=mode,
        strict=strict,
        within_us=plan.within.interval_us if plan.within else None,
        within_rows=plan.within.rows if plan.within else None,
        before=max(before, shown_before),
        after=after,
        ahead=ahead,
        shown=tuple(label.shown for label in labels),
        first_row=tuple(label.first_row for label in labels),
        last_row=tuple(label.last_row for label in labels),
        skip=skip,
        skip_to=tuple(label.variable in plan.after.variables for label in labels),
        unmatched=plan.rows is RowsPerMatch.ALL_WITH_UNMATCHED,
        timeouts=plan.timeout_rows,
        waiting=tuple(f"waiting for {names}" if names else "" for names in waiting),
        texts=tuple(assembler.texts),
        label_text=label_text,
        absent_before=tuple(taken + absent.index(name) for name in absence.before),
        absent_behind=tuple(taken + absent.index(name) for name in absence.behind),
        lesser=tuple(lesser),
        ignore=ignore,
        edge_waits=tuple(e.waits for edges in cut for e in edges) if ignore else (),
        edge_gap=tuple(gaps.index(e.negated) if e.negated else -1 for edges in cut for e in edges) if ignore else (),
        gaps=tuple(tuple(taken + absent.index(name) for name in gap) for gap in gaps),
    )


def _plain_first(label: Label) -> tuple[bool, bool, bool]:
    return not label.shown, label.first_row, label.last_row

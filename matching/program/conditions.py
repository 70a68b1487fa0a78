"""Conditions that depend on the match, as bytecode over features and registers."""

from __future__ import annotations

from dataclasses import replace

from matching.program.lanes import (
    BOOLEAN,
    FLOAT,
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
    sqrt,
)
from matching.program.opcodes import OpCode, constants_of
from matching.program.registers import Register, RegisterKind, before_last_row, register_of
from query.language.duck import Settings
from query.plan.expression import (
    TRUE,
    Aggregate,
    Call,
    Classifier,
    Column,
    Constant,
    Expression,
    Logical,
    MatchNumber,
    Navigation,
    conjuncts,
    is_row_local,
    walk,
)
from query.plan.row_parts import by_rows


class ConditionCode:
    """Lowers conditions that depend on the match; collects what their code reads: features with their lanes, registers,
    constants (`values`) and texts. settings: of DuckDB, under which they are meant."""

    def __init__(self, settings: Settings = ()) -> None:
        self._settings = settings
        self.features: dict[Expression, int] = {}
        self.lanes: list[Lane] = []
        self.registers: list[Register] = []
        self._constants: dict[tuple[type, int | float | str], int] = {}
        self.values: list[int | float] = []
        self.texts: dict[str, int] = {}

    def feature(self, expression: Expression) -> int:
        if expression not in self.features:
            lane = kept_lane(expression.type)
            storable_feature(expression)
            self.features[expression] = len(self.features)
            self.lanes.append(lane)
        return self.features[expression]

    def code(self, condition: Expression) -> tuple[tuple[int, int, int], ...]:
        """Returns the instructions (opcode, a, b) of a condition. Raises NoLane for a value that is not kept."""
        out: list[tuple[int, int, int]] = []
        self.emit(lower(self._known(condition), self.leaf), out)
        return tuple(out)

    def _known(self, condition: Expression) -> Expression:
        """Returns the condition with what it reads of one row as values of that row, where it has no other form."""
        settings = self._settings
        parts = tuple(part if _lowers(part) else by_rows(part, _lowers, settings) for part in conjuncts(condition))
        return parts[0] if len(parts) == 1 else Call("and", parts, "BOOLEAN")

    def text(self, value: str) -> int:
        """Returns the code of a VARCHAR constant."""
        return self.texts.setdefault(value, len(self.texts))

    def _constant(self, value: int | float) -> int:
        key = (type(value), repr(value))
        if key not in self._constants:
            self._constants[key] = len(self.values)
            self.values.append(value)
        return self._constants[key]

    def _register(self, kind: RegisterKind, feature: int, variables: tuple[str, ...], depth: int, lane: Lane) -> int:
        return register_of(self.registers, kind, feature, variables, depth, lane)

    def leaf(self, expression: Expression) -> Lowered | None:
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
                return Leaf(self._register(kind, -1, variables, logical_offset, lane), lane)
            case Navigation(argument, variables, logical, logical_offset, physical) if logical is not None:
                if not is_row_local(argument):
                    raise NoLane("CLASSIFIER in a navigation")
                reads = argument
                if physical:
                    reads = Navigation(argument, (), None, 0, physical, False, expression.type)
                lane = kept_lane(expression.type)
                kind = RegisterKind.LAST if logical is Logical.LAST else RegisterKind.FIRST
                return Leaf(self._register(kind, self.feature(reads), variables, logical_offset, lane), lane)
            case MatchNumber():
                return Leaf(self._register(RegisterKind.NUMBER, -1, (), 0, Lane(False)), Lane(False))
            case Aggregate(before=True):
                return self._before(self._aggregate(expression))
            case Aggregate():
                return self._aggregate(expression)
            case _ if is_row_local(expression):
                return Leaf(("feature", self.feature(expression)), kept_lane(expression.type))
        return None

    def _before(self, lowered: Lowered) -> Lowered:
        """Returns an aggregate without the row that is tried: what its registers held before they took it."""

        match lowered:
            case Leaf(("avg", int(total), int(count)), lane):
                places = (before_last_row(self.registers, index) for index in (total, count))
                return Leaf(("avg", *places), lane)
            case Leaf(int(index), lane):
                return Leaf(before_last_row(self.registers, index), lane)
            case Op(arguments=arguments):
                return replace(lowered, arguments=tuple(map(self._before, arguments)))
            case Literal():
                return lowered
            case _:
                raise NoLane("an unknown leaf")

    def _spread(self, function: str, argument: Expression, variables: tuple[str, ...]) -> Lowered:
        """Returns a variance or standard deviation of doubles."""
        feature = self.feature(argument)
        mean = self._register(RegisterKind.MEAN, feature, variables, 0, FLOAT)
        spread = Leaf(self._register(RegisterKind.SPREAD, feature, variables, mean, FLOAT), FLOAT)
        whole = Lane(False)
        count = Leaf(self._register(RegisterKind.COUNT_VALUES, feature, variables, 0, whole), whole)
        of_all = function.endswith("_pop")
        divisor = count if of_all else Op("sub", (count, Literal(1, whole)), whole)
        found: Lowered = Op("fdiv", (spread, Op("to_float", (divisor,), FLOAT)), FLOAT)
        if function.startswith("stddev"):
            found = sqrt(found)
        one = Op("eq", (count, Literal(1, whole)), BOOLEAN)
        return Op("case", (one, Literal(0.0 if of_all else None, FLOAT), found), FLOAT)

    def _aggregate(self, e: Aggregate) -> Lowered:
        whole = Lane(False)
        if e.more or e.order or (e.distinct and e.function not in ("min", "max")):
            raise NoLane(f"{e.function}() with DISTINCT, ORDER BY or several arguments")
        argument = e.argument
        if e.where is not None:
            # a value that is filtered out counts as little as a null; a row does too if something of it is counted
            value = Constant(True, "BOOLEAN") if argument is None else argument
            argument = Call("case", (e.where, value, Constant(None, value.type)), value.type)
        if argument is None:
            return Leaf(self._register(RegisterKind.COUNT_ROWS, -1, e.variables, 0, whole), whole)
        if not is_row_local(argument):
            raise NoLane(f"the argument of {e.function}")
        if e.function == "count":
            there = Call("is_not_null", (argument,), "BOOLEAN")
            counted = Call("case", (there, TRUE, Constant(None, "BOOLEAN")), "BOOLEAN")
            feature = self.feature(argument if _has_lane(argument) else counted)
            return Leaf(self._register(RegisterKind.COUNT_VALUES, feature, e.variables, 0, whole), whole)
        lane = lane_of(argument.type)
        adds = e.function not in ("min", "max")
        if lane.boolean or argument.type == "INTERVAL" or (adds and lane.unit is not Unit.NUMBER):
            raise NoLane(f"{e.function} of {argument.type}")
        match e.function:
            case "sum":
                total = lane_of(e.type)
                return Leaf(self._register(RegisterKind.SUM, self.feature(argument), e.variables, 0, total), total)
            case "min" | "max":
                kind = RegisterKind.MIN if e.function == "min" else RegisterKind.MAX
                return Leaf(self._register(kind, self.feature(argument), e.variables, 0, lane), lane)
            case "avg" | "mean" if e.type == "DOUBLE":
                feature = self.feature(argument)
                sums = lane if lane.floating else Lane(False, lane.scale)
                added = self._register(RegisterKind.SUM, feature, e.variables, 0, sums)
                count = self._register(RegisterKind.COUNT_VALUES, feature, e.variables, 0, whole)
                return Leaf(("avg", added, count), Lane(True))
            case "stddev" | "stddev_samp" | "stddev_pop" | "variance" | "var_samp" | "var_pop":
                as_double = argument if argument.type == "DOUBLE" else Call("cast", (argument,), "DOUBLE")
                return self._spread(e.function, as_double, e.variables)
            case _:
                raise NoLane(f"{e.function}()")

    def emit(self, lowered: Lowered, out: list[tuple[int, int, int]]) -> None:
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
                emit(OpCode.CONSTANT, self._constant(text))
            case Leaf(("avg", int(total), int(count))):
                emit(OpCode.REGISTER, total)
                emit(OpCode.REGISTER, count)
                lane = self.registers[total].lane
                divisor = self._constant(1.0 if lane.floating else 10.0**lane.scale)
                emit(OpCode.FAVG if lane.floating else OpCode.AVG, divisor)
            case Leaf(int(register)):
                emit(OpCode.REGISTER, register)
            case Leaf():
                raise NoLane("an unknown leaf")
            case Literal(None):
                emit(OpCode.NULL)
            case Literal(constant):
                assert constant is not None
                emit(OpCode.CONSTANT, self._constant(constant))
            case Op("and" | "or" as name, (a, b)):
                self.emit(a, out)
                jump = emit(OpCode.JUMP_IF_FALSE if name == "and" else OpCode.JUMP_IF_TRUE)
                self.emit(b, out)
                emit(OpCode.AND if name == "and" else OpCode.OR)
                land(jump)
            case Op("both" | "either" as name, (a, b)):
                self.emit(a, out)
                self.emit(b, out)
                emit(OpCode.AND if name == "both" else OpCode.OR)
            case Op("case", parts):
                ends = []
                for condition, value in zip(parts[:-1:2], parts[1::2], strict=True):
                    self.emit(condition, out)
                    skip = emit(OpCode.POP_JUMP_UNLESS_TRUE)
                    self.emit(value, out)
                    ends.append(emit(OpCode.JUMP))
                    land(skip)
                self.emit(parts[-1], out)
                land(*ends)
            case Op("coalesce", parts):
                ends = []
                for part in parts[:-1]:
                    self.emit(part, out)
                    ends.append(emit(OpCode.JUMP_IF_VALUE))
                self.emit(parts[-1], out)
                land(*ends)
            case Op(name, arguments):
                for argument in arguments:
                    self.emit(argument, out)
                emit(OpCode[name.upper()], *map(self._constant, constants_of(lowered)))


def _lowers(expression: Expression) -> bool:
    """True if a part of a condition has a form as it is."""
    try:
        lower(expression, ConditionCode().leaf)
    except NoLane:
        return False
    return True


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

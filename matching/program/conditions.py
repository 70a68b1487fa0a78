"""Conditions that depend on the match, as bytecode over features and registers.

Long: a case for each value of the match that conditions read."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction

from matching.program.hashed import register_and_rank
from matching.program.lanes import (
    BOOLEAN,
    FLOAT,
    OPERANDS_MAX,
    Lane,
    Leaf,
    Literal,
    Lowered,
    NoLane,
    Op,
    Unit,
    equality,
    exp,
    is_wide,
    kept_lane,
    lane_of,
    lower,
    sqrt,
)
from matching.program.opcodes import OpCode, constants_of
from matching.program.registers import Register, RegisterKind, before_last_row, register_beside, register_of
from query.language.duck import Settings
from query.language.session import collation_of
from query.plan.by_elements import by_elements
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
    Opaque,
    conjuncts,
    is_row_local,
    walk,
)
from query.plan.row_parts import at_its_row, by_rows, has_refused, total

#: What may be written instead.
_AGGREGATES = "write it by count, sum, avg, min, max, stddev, median, quantile_cont, min_by or count(DISTINCT ...)"
_IN_ORDER = "say in which order of its values: DISTINCT x ORDER BY x"
_OF_VARIABLES = "count the rows of a variable by count(A.*), and read its first and last by FIRST(A.x) and LAST(A.x)"
_IN_SECONDS = "read its seconds, epoch(x)"
_NARROWER = "CAST it to DOUBLE, BIGINT or DECIMAL(18, ...)"
#: Types with values that are equal in DuckDB, or are not, otherwise than in Arrow.
_OTHERWISE_EQUAL = re.compile("TIME WITH TIME ZONE|TIME_NS|MAP|UNION|VARIANT|BIT|GEOMETRY|JSON|COLLATE")
#: Bytes of a constant that joined texts are compared with, at most.
JOINED_MAX = 64
_COMPARED = {"=": "eq", "<>": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
_SWAPPED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
#: DuckDB's functions for the length of a list.
_LENGTHS = ("len", "length", "array_length", "list_length")
#: Aggregates whose value is exactly independent of the order of their rows.
IN_ANY_ORDER = {
    "count", "min", "max", "bool_and", "bool_or", "bit_and", "bit_or", "bit_xor", "count_if", "countif", "median",
    "quantile", "quantile_cont", "quantile_disc", "approx_count_distinct", "bitstring_agg", "histogram",
}  # fmt: skip
_BITS = {
    "bit_and": RegisterKind.BITS_OF_ALL, "bit_or": RegisterKind.BITS_OF_ANY, "bit_xor": RegisterKind.BITS_OF_ODD,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class AskedRows:
    """Aggregates over one list of rows of the match, which DuckDB computes. walk: the one of Program.walks that gives
    the number of the list; it is the last operand. features: of `inputs`, all that is read of the rows, but for
    constants."""

    walk: int
    aggregates: tuple[Aggregate, ...]
    inputs: tuple[Expression, ...]
    features: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class AskedFunction:
    """A function between rows that DuckDB computes, for many runs at a time (matching.answers). operands: what it reads
    of the match, with the lane of each. sources: of each the feature that it is, or was at another row (-1: neither),
    and whether it is of the row that is tried. lane: of the result. rows: the aggregates in it, if any."""

    expression: Expression
    operands: tuple[Expression, ...]
    lanes: tuple[Lane, ...]
    sources: tuple[tuple[int, bool], ...]
    lane: Lane
    rows: AskedRows | None = None


class Wanted(IntEnum):
    """The result of a walk over the rows of a run. Those before LIST have the values in order; those behind it add them
    up."""

    AT = 0  # the value at a fraction of those in order
    BETWEEN = 1  # or between two of them
    MODE = 2  # the most frequent value
    MAD = 3  # the median distance from the median
    ESTIMATE = 4  # of how many different values there are
    LIST = 5  # the rows
    SKEWNESS = 6
    KURTOSIS = 7
    KURTOSIS_POP = 8


@dataclass(frozen=True, slots=True)
class Walked:
    """A walk over the rows of a run that are bound to `variables` (empty: all). It finds a quantile of a feature, its
    most frequent value and the like, or the list of the rows (feature -1). before: without the row that is tried."""

    feature: int
    variables: tuple[str, ...]
    before: bool
    wanted: Wanted
    fraction: Fraction = Fraction(0)

    def __str__(self) -> str:
        match self.wanted:
            case Wanted.LIST:
                return "the rows"
            case Wanted.MODE:
                return f"most frequent f{self.feature}"
            case Wanted.AT | Wanted.BETWEEN:
                return f"{'between' if self.wanted == Wanted.BETWEEN else 'at'} {self.fraction} of f{self.feature}"
            case wanted:
                return f"{wanted.name.lower()} of f{self.feature}"


@dataclass(frozen=True, slots=True)
class JoinedTexts:
    """Texts that are joined, compared with a constant."""

    constant: bytes
    separator: bytes

    @property
    def equal(self) -> int:
        """The state in which they are equal to it; lower ones are less, larger ones greater."""
        return len(self.constant) + 1


class ConditionCode:
    """Lowers conditions that depend on the match; collects what their code reads: features with their lanes, registers,
    constants (`values`), texts, and functions that DuckDB is asked for. settings: of DuckDB, under which they are
    meant. wide: sums of whole numbers may be beyond 64 bits, so DuckDB computes what is read of them. narrow: as of
    Plan. waiting: runs may be looked up by the value that they wait for (matching.program.equalities)."""

    def __init__(
        self, settings: Settings = (), wide: bool = False, narrow: bool = False, waiting: bool = False
    ) -> None:
        self._settings = settings
        self._wide = wide
        self._narrow = narrow
        self._waiting = waiting
        self.features: dict[Expression, int] = {}
        self.lanes: list[Lane] = []
        self.registers: list[Register] = []
        self._constants: dict[tuple[type, int | float | str], int] = {}
        self.values: list[int | float] = []
        self.texts: dict[str, int] = {}
        self._asked: dict[Expression, int] = {}
        self.walks: list[Walked] = []
        self.joined: list[JoinedTexts] = []

    def feature(self, expression: Expression) -> int:
        """Returns the feature of a value that has a lane. Raises NoLane for others, though they may be kept by code."""
        lane = kept_lane(expression.type)
        storable_feature(expression, self._narrow)
        if expression not in self.features:
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
        parts = tuple(map(self._with_asked, map(self._waited_for, conjuncts(by_elements(condition, self._settings)))))
        return parts[0] if len(parts) == 1 else Call("and", parts, "BOOLEAN")

    def _waited_for(self, e: Expression) -> Expression:
        """Returns a comparison with what is computed of an earlier row, `x = A.x + 1`, as one with a value of that row:
        runs are looked up by it, or beside it, as it says which of them may fail."""
        if not self._waiting or not isinstance(e, Call) or e.function not in _COMPARED:
            return e
        by_row = replace(e, arguments=tuple(self._of_its_row(a, e.function == "=") for a in e.arguments))
        return by_row if by_row != e and self._lowers(by_row) else e

    def _of_its_row(self, e: Expression, key: bool) -> Expression:
        """Returns what is computed of an earlier row as a value of that row. key: also where it cannot fail."""
        if is_row_local(e) or not isinstance(e, Call | Opaque) or not (key or not total(e, self._settings)):
            return e
        value = at_its_row(e, self._settings)
        return e if value is None else value

    def _lowers(self, expression: Expression) -> bool:
        """True if a part of a condition has a form as it is."""
        alone = ConditionCode(self._settings, self._wide, self._narrow)
        alone._asked = dict(self._asked)
        try:
            lower(expression, alone.leaf)
        except NoLane:
            return False
        return True

    def _with_asked(self, e: Expression) -> Expression:
        """Returns a part of a condition in which what it reads of one row is a value of that row, and DuckDB is asked
        for the functions between rows that have no form."""
        e = _counted(e)
        if self._lowers(e):
            return e
        by_row = by_rows(e, self._lowers, self._settings)
        if isinstance(e, Aggregate) and self._can_ask(e) and not (self._wide and is_wide(e.type)):
            self._asked.setdefault(e, len(self._asked))
            return e
        if not isinstance(e, Call | Opaque) or self._lowers(by_row):
            return by_row
        for whole in dict.fromkeys((e, by_row)):
            if isinstance(whole, Call | Opaque):
                with_parts = replace(whole, arguments=tuple(map(self._with_asked, whole.arguments)))
                if self._lowers(with_parts):
                    return with_parts
        if self._can_ask(e):
            self._asked.setdefault(e, len(self._asked))
            return e
        return by_row

    def _can_ask(self, e: Expression) -> bool:
        """True if DuckDB can be asked for a function between rows: by values that runs keep, and the rows of the match,
        for a number or truth."""
        values, lists = self._operands(e)
        if e.type == "INTERVAL" or not _has_lane(e, self._narrow) or not 0 < len(values) + bool(lists) <= OPERANDS_MAX:
            return False
        if len({(a.variables, a.before) for a in lists}) > 1 or not all(map(_is_whole_interval, values)):
            return False
        if has_refused(e):
            return False
        return all(self._lowers(v) or _told_apart(v, self._narrow) for v in values) and all(map(self._can_list, lists))

    def _operands(self, e: Expression) -> tuple[list[Expression], list[Aggregate]]:
        """Returns what a function between rows reads: values, and aggregates that only DuckDB computes."""
        values: list[Expression] = []
        lists: list[Aggregate] = []
        for part in operands_of(e):
            if isinstance(part, Aggregate) and (part == e or not self._lowers(part)):
                lists.append(part)
            else:
                values.append(part)
        return values, lists

    def _can_list(self, e: Aggregate) -> bool:
        """True if DuckDB can compute an aggregate of values that are kept of each row."""
        inputs = inputs_of(e)
        if not inputs or _order_is_open(e):
            return False
        alone = ConditionCode(self._settings, self._wide, self._narrow)
        try:
            for value in inputs:
                alone._feature_of_list(value)
        except NoLane:
            return False
        return True

    def _feature_of_list(self, value: Expression) -> int:
        if not is_row_local(value) or _reads_neighbours(value):
            raise NoLane("values of other rows")
        if is_storable(value, self._narrow) and _is_whole_interval(value):
            return self.feature(value)
        if not _told_apart(value, self._narrow):
            raise NoLane(f"values of type {value.type}", _NARROWER)
        return self._coded(value)

    def _ask(self, e: Expression) -> Lowered:
        values, lists = self._operands(e)
        operands = list(map(self._operand, values))
        if lists:
            for value in (value for of in lists for value in inputs_of(of)):
                self._feature_of_list(value)
            operands.append(self._walk(self._list_of(lists), Lane(False)))
        return Op("ask", tuple(operands), lane_of(e.type), self._asked[e])

    def _list_of(self, aggregates: list[Aggregate]) -> Walked:
        one = aggregates[0]
        return Walked(-1, tuple(sorted(one.variables)), one.before, Wanted.LIST)

    def _coded(self, value: Expression) -> int:
        """Returns the feature of a value that has no lane but codes."""
        if value not in self.features:
            self.features[value] = len(self.features)
            self.lanes.append(Lane(False, unit=Unit.CODE, coded=value.type))
        return self.features[value]

    def _operand(self, e: Expression) -> Lowered:
        """Returns what DuckDB is given: a value in its lane, or by its code."""
        return lower(e, self.leaf) if self._lowers(e) else self._by_code(e)

    def _by_code(self, e: Expression) -> Leaf:
        """Returns the code of a value that has no lane."""
        feature = self._coded(e.argument if isinstance(e, Navigation) and e.logical is not None else e)
        lane = self.lanes[feature]
        if not isinstance(e, Navigation) or e.logical is None:
            return Leaf(("feature", feature), lane)
        kind = RegisterKind.LAST if e.logical is Logical.LAST else RegisterKind.FIRST
        return Leaf(self._register(kind, feature, e.variables, e.logical_offset, lane), lane)

    def asked_of_rows(self) -> tuple[AskedFunction, ...]:
        """Returns the functions that DuckDB is asked for."""

        def source(lowered: Lowered) -> tuple[int, bool]:
            match lowered:
                case Leaf(("feature", int(feature))):
                    return feature, True
                case Leaf(int(register)):
                    r = self.registers[register]
                    kept = r.kind in (RegisterKind.LAST, RegisterKind.FIRST, RegisterKind.BEFORE)
                    return r.feature if kept else -1, False
                case _:
                    return -1, False

        found = []
        for e in self._asked:
            operands, lists = self._operands(e)
            low = [self._operand(operand) for operand in operands]
            lanes = tuple(x.lane for x in low)
            rows = None
            if lists:
                inputs = tuple(dict.fromkeys(value for of in lists for value in inputs_of(of)))
                features = tuple(map(self._feature_of_list, inputs))
                rows = AskedRows(self.walks.index(self._list_of(lists)), tuple(lists), inputs, features)
            found.append(AskedFunction(e, tuple(operands), lanes, tuple(map(source, low)), lane_of(e.type), rows))
        return tuple(found)

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
        if expression in self._asked:
            return self._ask(expression)
        match expression:
            case Call("=" | "<>" | "<" | "<=" | ">" | ">=" as name, (Aggregate() as of, Constant(str(text)))):
                return self._compared_joined(name, of, text)
            case Call("=" | "<>" | "<" | "<=" | ">" | ">=" as name, (Constant(str(text)), Aggregate() as of)):
                return self._compared_joined(_SWAPPED.get(name, name), of, text)
            case Call("=" | "<>" | "is_distinct" | "is_not_distinct" as name, (a, b)) if self._same_codes(a, b):
                return self._compared_codes(name, a, b)
            case Opaque(sql, (a, b), "BOOLEAN") if (written := equality(sql, 1)) and self._same_codes(a, b):
                return self._compared_codes(written, a, b)
            case Constant(value=str(text), type="VARCHAR"):
                return Leaf(("text", self.text(text)), kept_lane("VARCHAR"))
            case Constant():
                try:
                    lower(expression, lambda _: None)
                except NoLane:  # DuckDB computes it, as a value of every row
                    if is_wide(expression.type) and isinstance(expression.value, int | Decimal):
                        raise
                    return Leaf(("feature", self.feature(expression)), kept_lane(expression.type))
                return None
            case Navigation(Classifier(), variables, logical, logical_offset, 0) if logical is not None:
                kind = RegisterKind.LAST if logical is Logical.LAST else RegisterKind.FIRST
                lane = kept_lane("VARCHAR")
                return Leaf(self._register(kind, -1, variables, logical_offset, lane), lane)
            case Navigation(argument, variables, logical, logical_offset, physical) if logical is not None:
                if not is_row_local(argument):
                    raise NoLane(f"{logical.value} of {_of_match(argument)}")
                reads = argument
                if physical:
                    reads = Navigation(argument, (), None, 0, physical, False, expression.type)
                lane = kept_lane(expression.type)
                kind = RegisterKind.LAST if logical is Logical.LAST else RegisterKind.FIRST
                return Leaf(self._register(kind, self.feature(reads), variables, logical_offset, lane), lane)
            case MatchNumber():
                return Leaf(self._register(RegisterKind.NUMBER, -1, (), 0, Lane(False)), Lane(False))
            case Aggregate("sum" | "avg" | "mean") if self._wide and is_exact(expression):
                raise NoLane("sums beyond 64 bits")
            case Aggregate(before=True):
                return self._before(self._aggregate(expression))
            case Aggregate():
                return self._aggregate(expression)
            case _ if is_row_local(expression):
                return Leaf(("feature", self.feature(expression)), kept_lane(expression.type))
        return None

    def _same_codes(self, a: Expression, b: Expression) -> bool:
        """True if two values without a lane are equal in DuckDB exactly where they have one code."""
        if a.type != b.type or _OTHERWISE_EQUAL.search(a.type):
            return False
        if not _is_coded(a, self._narrow) or not _is_coded(b, self._narrow):
            return False
        return not (collation_of(self._settings) and "VARCHAR" in a.type)

    def _compared_codes(self, name: str, a: Expression, b: Expression) -> Lowered:
        return lower(Call(name, (a, b), "BOOLEAN"), lambda e: self._by_code(e) if e in (a, b) else None)

    def _compared_joined(self, name: str, e: Aggregate, text: str) -> Lowered | None:
        """Returns the comparison of joined texts with a constant, which is decided by the first difference. None for
        other aggregates, texts in an order of their own, and long constants."""
        match e.more:
            case ():
                separator = ","
            case (Constant(str(separator)),):
                pass
            case _:
                return None
        argument, constant = e.argument, text.encode()
        plain = e.function in ("string_agg", "group_concat", "listagg") and not e.distinct and not e.order
        if not plain or argument is None or not is_row_local(argument) or len(constant) > JOINED_MAX:
            return None
        if (argument.type, e.type) != ("VARCHAR", "VARCHAR"):
            return None
        if e.where is not None:
            argument = Call("case", (e.where, argument, Constant(None, argument.type)), argument.type)
        joined, whole = JoinedTexts(constant, separator.encode()), Lane(False)
        if joined not in self.joined:
            self.joined.append(joined)
        table = self.joined.index(joined)
        kept = Leaf(self._register(RegisterKind.JOINED, self.feature(argument), e.variables, table, whole), whole)
        state = self._before(kept) if e.before else kept
        return Op(_COMPARED[name], (state, Literal(joined.equal, whole)), BOOLEAN)

    def _before(self, lowered: Lowered) -> Lowered:
        """Returns an aggregate without the row that is tried: what its registers held before they took it."""

        match lowered:
            case Leaf(("avg", int(total), int(count)), lane):
                places = (before_last_row(self.registers, index) for index in (total, count))
                return Leaf(("avg", *places), lane)
            case Leaf(int(index), lane):
                return Leaf(before_last_row(self.registers, index), lane)
            case Op("walk", (), lane, int(index)):
                return self._walk(replace(self.walks[index], before=True), lane)
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
        if (found := self._of_rows(e)) is not None:
            return found
        if (why := only_by_reference(e)) is not None:
            raise why
        if e.more or e.order or (e.distinct and e.function not in ("min", "max")):
            raise NoLane(f"{e.function}() with DISTINCT, ORDER BY or several arguments", _AGGREGATES)
        argument = e.argument
        if e.where is not None:
            # a value that is filtered out counts as little as a null; a row does too if something of it is counted
            value = Constant(True, "BOOLEAN") if argument is None else argument
            argument = Call("case", (e.where, value, Constant(None, value.type)), value.type)
        if argument is None:
            return Leaf(self._register(RegisterKind.COUNT_ROWS, -1, e.variables, 0, whole), whole)
        if e.function == "count":
            there = Call("is_not_null", (argument,), "BOOLEAN")
            counted = Call("case", (there, TRUE, Constant(None, "BOOLEAN")), "BOOLEAN")
            feature = self.feature(argument if _has_lane(argument, self._narrow) else counted)
            return Leaf(self._register(RegisterKind.COUNT_VALUES, feature, e.variables, 0, whole), whole)
        if e.function in ("min", "max") and argument.type == "VARCHAR":
            kind = RegisterKind.FIRST_TEXT if e.function == "min" else RegisterKind.LAST_TEXT
            lane = kept_lane("VARCHAR")
            return Leaf(self._register(kind, self.feature(argument), e.variables, 0, lane), lane)
        lane = lane_of(argument.type)
        adds = e.function not in ("min", "max")
        if e.function in ("bool_and", "bool_or", "min", "max") and lane.boolean:
            kind = RegisterKind.MIN if e.function in ("bool_and", "min") else RegisterKind.MAX
            return Leaf(self._register(kind, self.feature(argument), e.variables, 0, lane), lane)
        if lane.boolean or (adds and lane.unit is not Unit.NUMBER):
            raise NoLane(f"{e.function} of {argument.type}", _NARROWER)
        if argument.type == "INTERVAL" and not self._narrow:
            raise NoLane(f"{e.function} of INTERVAL", _IN_SECONDS)
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
                return self._spread(e.function, _as_double(argument), e.variables)
            case _:
                raise NoLane(f"{e.function}()", _AGGREGATES)

    def _of_rows(self, e: Aggregate) -> Lowered | None:
        """Returns an aggregate whose value is that of a row, of values between two, or a count of different ones. None
        if it is another one, or has no form."""
        inputs = [e.argument, *e.more]
        if e.order or not all(x is not None and is_row_local(x) for x in inputs):
            return None
        argument = e.argument
        assert argument is not None
        if e.where is not None:
            argument = Call("case", (e.where, argument, Constant(None, argument.type)), argument.type)
        match e.function, e.more:
            case "count", () if e.distinct and not _reads_neighbours(argument):
                return self._new(self.feature(argument), e)
            case ("sum" | "avg" | "mean"), () if e.distinct and not _reads_neighbours(argument):
                return self._sum_of_new(e, argument)
            case ("count_if" | "countif"), () if argument.type == "BOOLEAN" and not e.distinct:
                feature, total = self.feature(Call("cast", (argument,), "BIGINT")), lane_of(e.type)
                return Leaf(self._register(RegisterKind.SUM, feature, e.variables, 0, total), total)
            case ("bit_and" | "bit_or" | "bit_xor" as name), () if not e.distinct and e.type == argument.type:
                lane = lane_of(argument.type)
                whole = argument.type.endswith("INT") or argument.type == "INTEGER"
                if not whole or is_wide(argument.type):
                    return None
                return Leaf(self._register(_BITS[name], self.feature(argument), e.variables, 0, lane), lane)
            case "product", () if not e.distinct:
                feature = self.feature(_as_double(argument))
                return Leaf(self._register(RegisterKind.PRODUCT, feature, e.variables, 0, FLOAT), FLOAT)
            case ("geomean" | "geometric_mean"), () if not e.distinct:
                logarithm = Opaque('ln("_0")', (_as_double(argument),), "DOUBLE")
                mean = Aggregate("avg", logarithm, e.variables, False, e.final, "DOUBLE", where=e.where)
                return exp(self._aggregate(mean))
            case "sem", () if not e.distinct:
                return self._error_of_mean(_as_double(argument), e.variables)
            case "mode", () if not e.distinct and e.type == argument.type and not _reads_neighbours(argument):
                lane = kept_lane(argument.type)
                walked = Walked(self.feature(argument), tuple(sorted(e.variables)), e.before, Wanted.MODE)
                return self._walk(walked, lane)
            case "approx_count_distinct", () if not e.distinct and not _reads_neighbours(argument):
                return self._value_of_rows(Wanted.ESTIMATE, register_and_rank(argument), e)
            case "mad", () if not e.distinct and e.type == "DOUBLE" and not _reads_neighbours(argument):
                return self._value_of_rows(Wanted.MAD, _as_double(argument), e)
            case ("skewness" | "kurtosis" | "kurtosis_pop" as name), () if (
                not e.distinct and not _reads_neighbours(argument)
            ):  # fmt: skip
                found = self._value_of_rows(Wanted[name.upper()], _as_double(argument), e)
                endless = Op("fgt", (Op("fabs", (found,), FLOAT), Literal(sys.float_info.max, FLOAT)), BOOLEAN)
                return Op("case", (Op("refuse", (endless,), BOOLEAN), Literal(None, FLOAT), found), FLOAT)
            case "any_value", ():
                lane = kept_lane(argument.type)
                return Leaf(self._register(RegisterKind.ANY, self.feature(argument), e.variables, 0, lane), lane)
            case ("arg_min" | "argmin" | "min_by" | "arg_max" | "argmax" | "max_by" as name), (key,):
                return self._value_at("min" in name, argument, key, e.variables)
            case "median", () if not e.distinct:
                return self._quantile(e, argument, Fraction(1, 2))
            case ("quantile_cont" | "quantile_disc" | "quantile"), (Constant(int() | float() | Decimal() as of),) if (
                not e.distinct and not isinstance(of, bool) and 0 <= of <= 1
            ):  # fmt: skip
                return self._quantile(e, argument, Fraction(of))
        return None

    def _value_at(self, least: bool, value: Expression, key: Expression, variables: tuple[str, ...]) -> Lowered:
        """Returns the value of the row with the least or largest key; rows where one of them is null do not count."""
        there = Call("is_not_null", (value,), "BOOLEAN")
        key = Call("case", (there, key, Constant(None, key.type)), key.type)
        lane, of_key = kept_lane(value.type), lane_of(key.type)
        if key.type == "INTERVAL":
            raise NoLane("the order of INTERVAL")
        chooses = RegisterKind.MIN if least else RegisterKind.MAX
        kind = RegisterKind[("AT_LEAST" if least else "AT_LARGEST") + ("_FLOAT" if of_key.floating else "")]
        chosen = self._register(chooses, self.feature(key), variables, 0, of_key)
        feature = self.feature(value)
        return Leaf(register_beside(self.registers, kind, feature, variables, chosen, lane), lane)

    def _quantile(self, e: Aggregate, argument: Expression, fraction: Fraction) -> Lowered | None:
        lane = lane_of(argument.type)
        one = e.function in ("quantile_disc", "quantile")
        number = lane.unit is Unit.NUMBER and not lane.scale and not lane.boolean
        between = not one and e.type == "DOUBLE" and number
        if argument.type == "INTERVAL" or not (between or (one and e.type == argument.type)):
            return None
        if _reads_neighbours(argument):
            return None
        wanted = Wanted.BETWEEN if between else Wanted.AT
        found = Walked(self.feature(argument), tuple(sorted(e.variables)), e.before, wanted, fraction)
        return self._walk(found, FLOAT if between else lane)

    def _new(self, feature: int, e: Aggregate) -> Lowered:
        """Returns how many different values there are."""
        return Leaf(self._register(RegisterKind.COUNT_NEW, feature, e.variables, 0, Lane(False)), Lane(False))

    def _sum_of_new(self, e: Aggregate, argument: Expression) -> Lowered | None:
        """Returns the sum or mean of the different values of numbers."""
        lane = lane_of(argument.type)
        if lane.boolean or lane.unit is not Unit.NUMBER or (e.function != "sum" and e.type != "DOUBLE"):
            return None
        total = lane_of(e.type) if e.function == "sum" else lane if lane.floating else Lane(False, lane.scale)
        feature = self.feature(argument)
        added = self._register(RegisterKind.SUM_NEW, feature, e.variables, 0, total)
        if e.function == "sum":
            return Leaf(added, total)
        count = self._new(feature, e)
        assert isinstance(count, Leaf)
        return Leaf(("avg", added, count.source), FLOAT)

    def _error_of_mean(self, argument: Expression, variables: tuple[str, ...]) -> Lowered:
        """Returns the standard error of the mean of doubles."""
        feature = self.feature(argument)
        mean = self._register(RegisterKind.MEAN, feature, variables, 0, FLOAT)
        spread = Leaf(self._register(RegisterKind.SPREAD, feature, variables, mean, FLOAT), FLOAT)
        count = Leaf(self._register(RegisterKind.COUNT_VALUES, feature, variables, 0, Lane(False)), Lane(False))
        number = Op("to_float", (count,), FLOAT)
        return Op("fdiv", (sqrt(Op("fdiv", (spread, number), FLOAT)), sqrt(number)), FLOAT)

    def _value_of_rows(self, wanted: Wanted, value: Expression, e: Aggregate) -> Lowered:
        """Returns what a walk finds of the values of an aggregate's rows."""
        walked = Walked(self.feature(value), tuple(sorted(e.variables)), e.before, wanted)
        return self._walk(walked, lane_of(e.type))

    def _walk(self, walked: Walked, lane: Lane) -> Lowered:
        if walked not in self.walks:
            self.walks.append(walked)
        return Op("walk", (), lane, self.walks.index(walked))

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
            case Op("walk", (), _, int(walked)):
                emit(OpCode.WALK, self._constant(walked))
            case Op("ask", arguments, _, int(asked)):
                for argument in arguments:
                    self.emit(argument, out)
                emit(OpCode.ASK, self._constant(asked), len(arguments))
            case Op(name, arguments):
                for argument in arguments:
                    self.emit(argument, out)
                emit(OpCode[name.upper()], *map(self._constant, constants_of(lowered)))


def operands_of(e: Expression) -> tuple[Expression, ...]:
    """Returns what a function between rows reads: columns, navigations, aggregates and so on, each once."""

    def reads(part: Expression) -> Iterator[Expression]:
        if isinstance(part, Call | Opaque):
            for child in part.arguments:
                yield from reads(child)
        elif not isinstance(part, Constant):
            yield part

    return tuple(dict.fromkeys(reads(e)))


def inputs_of(e: Aggregate) -> tuple[Expression, ...]:
    """Returns what an aggregate reads of each row, but for constants."""
    fixed = Constant | Call | Opaque
    return tuple(value for value in e.inputs if any(not isinstance(part, fixed) for part in walk(value)))


def is_exact(e: Aggregate) -> bool:
    """True if it is over whole numbers or decimals."""
    type = e.argument.type if e.argument is not None else ""
    return type.startswith("DECIMAL") or type.endswith("INT") or type == "INTEGER"


def _of_match(e: Expression) -> str:
    """Returns what an expression over rows of the match reads of the match itself."""
    return "MATCH_NUMBER()" if any(isinstance(part, MatchNumber) for part in walk(e)) else "CLASSIFIER()"


def only_by_reference(condition: Expression) -> NoLane | None:
    """Returns why no engine runs a condition with an aggregate over CLASSIFIER() or MATCH_NUMBER(), or over DISTINCT
    values in no order; None for others."""
    for e in walk(condition):
        if isinstance(e, Aggregate) and not all(map(is_row_local, e.inputs)):
            read = next(x for x in e.inputs if not is_row_local(x))
            return NoLane(f"{e.function}() of {_of_match(read)}", _OF_VARIABLES)
        if isinstance(e, Aggregate) and _order_is_open(e):
            return NoLane(f"{e.function}() of DISTINCT values in no order", _IN_ORDER)
    return None


def _order_is_open(e: Aggregate) -> bool:
    """True if DuckDB does not say in which order an aggregate reads its values."""
    return e.distinct and not e.order and e.function not in IN_ANY_ORDER and not (
        e.function in ("sum", "avg", "mean") and is_exact(e)
    )


def _as_double(e: Expression) -> Expression:
    return e if e.type == "DOUBLE" else Call("cast", (e,), "DOUBLE")


def _is_whole_interval(e: Expression) -> bool:
    """False for an interval of which the microseconds do not tell its days: one that is no difference of two times."""
    if isinstance(e, Navigation) and e.logical is not None:
        return _is_whole_interval(e.argument)
    if e.type != "INTERVAL":
        return True
    return isinstance(e, Call) and e.function == "-" and all(a.type == "TIMESTAMP" for a in e.arguments)


def _told_apart(e: Expression, narrow: bool) -> bool:
    """True if values of rows without a lane have codes that tell each from all others: equal ones are the same to every
    function."""
    return _is_coded(e, narrow) and not re.search("DOUBLE|FLOAT", e.type)


def _is_coded(e: Expression, narrow: bool) -> bool:
    """True if values of rows without a lane have codes; equal ones have one, such as [0.0] and [-0.0]."""
    if isinstance(e, Navigation) and e.logical is not None:
        return e.physical_offset == 0 and is_row_local(e.argument) and _is_coded(e.argument, narrow)
    return is_row_local(e) and not is_storable(e, narrow) and "INTERVAL" not in e.type


def is_storable(feature: Expression, narrow: bool = False) -> bool:
    """True if the values of the rows have a lane of their own, which is none of codes for DuckDB alone. narrow: as of
    Plan."""
    try:
        kept_lane(feature.type)
        storable_feature(feature, narrow)
    except NoLane:
        return False
    return True


def _counted(e: Expression) -> Expression:
    """Returns the length of a list of the rows' values as a count of rows; other expressions as they are."""
    called = re.fullmatch(r'"?(\w+)"?\("_0"\)', e.sql) if isinstance(e, Opaque) else None
    if called is None or not isinstance(e, Opaque) or called[1].lower() not in _LENGTHS:
        return e
    match e.arguments:
        case (Aggregate("list" | "array_agg", distinct=False) as of,) if not of.more:
            value = Constant(True, "BOOLEAN")
            count = replace(of, function="count", argument=value if of.where else None, order=(), type="BIGINT")
            none = Call("=", (count, Constant(0, "BIGINT")), "BOOLEAN")
            return Call("case", (none, Constant(None, "BIGINT"), count), "BIGINT")
    return e


def _reads_neighbours(e: Expression) -> bool:
    """True if a value of a row cannot be computed again when the rows around it are gone."""
    return any(isinstance(part, Navigation) for part in walk(e))


def _has_lane(expression: Expression, narrow: bool) -> bool:
    """True if a value is kept as a number."""
    try:
        lane_of(expression.type)
        storable_feature(expression, narrow)
    except NoLane:
        return False
    return True


def storable_feature(feature: Expression, narrow: bool = False) -> None:
    """Raises NoLane for values of the rows that a lane may not hold: whole numbers and decimals of columns beyond 64
    bits, and intervals that may have months. narrow: as of Plan, they are held until one is met."""
    columns = [e for e in walk(feature) if isinstance(e, Column)]
    of_wide = any(is_wide(c.type) for c in columns)
    # other numbers of 64 bits without a sign are hashes
    if is_wide(feature.type) and (not narrow if of_wide else feature.type == "UBIGINT"):
        raise NoLane(f"values of type {feature.type}", _NARROWER)

    def fixed(e: Expression) -> Leaf | None:
        match e:
            case Column() | Navigation(Column()) if e.type != "INTERVAL":
                return Leaf(e, lane_of(e.type))
        return None

    if feature.type == "INTERVAL" and not (narrow and columns):
        lower(feature, fixed)

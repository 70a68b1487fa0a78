"""Conditions and registers of a program as source: what matching.kernels.predicate interprets, written out.

A condition of label v becomes `meets_v`, the registers of a row bound to it `bind_v`, over local variables: n{r} is
register r (o{r} before the row), f{f} and k{f} the value of feature f and whether it is there.
"""

from __future__ import annotations

from matching.program.lanes import INT64_MAX, INT64_MIN
from matching.program.program import OpCode, Program, RegisterKind

_INT_OPERATORS = {OpCode.ADD: "+", OpCode.SUB: "-", OpCode.MUL: "*"}
_OVERFLOWS = {OpCode.ADD: "add_overflows", OpCode.SUB: "sub_overflows", OpCode.MUL: "mul_overflows"}
_FLOAT_OPERATORS = {OpCode.FADD: "+", OpCode.FSUB: "-", OpCode.FMUL: "*", OpCode.FDIV: "/"}
_COMPARISONS = {
    OpCode.EQ: "==", OpCode.NE: "!=", OpCode.LT: "<", OpCode.LE: "<=", OpCode.GT: ">", OpCode.GE: ">=",
}  # fmt: skip
_FLOAT_COMPARISONS = {
    OpCode.FEQ: "float_equal({x}, {y})", OpCode.FNE: "not float_equal({x}, {y})", OpCode.FLT: "float_less({x}, {y})",
    OpCode.FLE: "not float_less({y}, {x})", OpCode.FGT: "float_less({y}, {x})", OpCode.FGE: "not float_less({x}, {y})",
}  # fmt: skip
_JUMPS = (
    OpCode.JUMP, OpCode.JUMP_IF_FALSE, OpCode.JUMP_IF_TRUE, OpCode.POP_JUMP_UNLESS_TRUE, OpCode.JUMP_IF_VALUE,
)  # fmt: skip


def condition(program: Program, v: int) -> str:
    """The function that computes the condition of label v."""
    return "\n".join([
        "@inlined",
        f"def meets_{v}({', '.join(operands(program))}, valid):",
        f'    """{program.names[v]}: 1 it is met, 0 not, -1 it cannot be computed."""',
        *("    " + line for line in _Bytecode(program, v).lines),
    ])  # fmt: skip


def operands(program: Program) -> list[str]:
    registers = [f"n{r}" for r in range(len(program.registers))]
    return [*registers, *(name for f in range(len(program.features)) for name in (f"f{f}", f"k{f}"))]


class _Bytecode:
    """The instructions of a condition as statements: slot d of the stack is s{d} or, of a float, t{d}, and is null
    unless v{d}. Jumps go forward only: what they pass over stands under an `if`."""

    def __init__(self, program: Program, v: int) -> None:
        self.program = program
        self.lines: list[str] = []
        code = program.code[v]
        targets = {a for op, a, _ in code if op in _JUMPS}
        depths = {0: 0}
        jumped = 0  # the farthest that a jump so far goes
        guarded = False
        if targets:
            self.lines.append("to = 0")
        self.indent = ""
        for pc, (op, a, b) in enumerate(code):
            starts = pc in targets or (pc > 0 and code[pc - 1][0] in _JUMPS)
            if starts:
                guarded = jumped > pc
                self.indent = ""
                if guarded:
                    self.say(f"if to <= {pc}:")
                self.indent = "    " if guarded else ""
            depth = depths[pc]
            after = self._instruction(OpCode(op), a, b, depth)
            if op in _JUMPS:
                jumped = max(jumped, a)
                depths.setdefault(a, depth if op in (OpCode.JUMP, OpCode.JUMP_IF_FALSE, OpCode.JUMP_IF_TRUE,
                                                     OpCode.JUMP_IF_VALUE) else depth - 1)  # fmt: skip
            if op != OpCode.JUMP:
                depths.setdefault(pc + 1, after)
        self.indent = ""
        self.say("return 1 if v0 and s0 == 1 else 0")

    def say(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def _push(self, d: int, value: str, valid: str, floating: bool) -> None:
        self.say(f"{'t' if floating else 's'}{d} = {value}")
        self.say(f"v{d} = {valid}")

    def _instruction(self, op: OpCode, a: int, b: int, depth: int) -> int:
        """Writes one instruction; returns the depth of the stack behind it."""
        program, say = self.program, self.say
        top, under = depth - 1, depth - 2
        constants = program.constants
        match op:
            case OpCode.FEATURE:
                self._push(depth, f"f{a}", f"k{a}", program.features[a][1].floating)
                return depth + 1
            case OpCode.REGISTER:
                self._push(depth, f"n{a}", f"(valid >> {a}) & 1 != 0", program.registers[a].lane.floating)
                return depth + 1
            case OpCode.CONSTANT:
                self._push(depth, _literal(constants[a]), "True", isinstance(constants[a], float))
                return depth + 1
            case OpCode.NULL:
                say(f"s{depth} = 0")
                self._push(depth, "0.0", "False", True)
                return depth + 1
            case OpCode.TO_FLOAT:
                say(f"t{top} = s{top} / {_literal(float(constants[a]))}")
            case OpCode.RESCALE:
                say(f"if v{top}:")
                say(f"    if mul_overflows(s{top}, {constants[a]}):")
                say("        return -1")
                say(f"    s{top} = s{top} * {constants[a]}")
            case OpCode.ADD | OpCode.SUB | OpCode.MUL:
                say(f"v{under} = v{under} and v{top}")
                say(f"if v{under}:")
                say(f"    if {_OVERFLOWS[op]}(s{under}, s{top}):")
                say("        return -1")
                say(f"    s{under} = s{under} {_INT_OPERATORS[op]} s{top}")
                self._range(under, a, b)
                return depth - 1
            case OpCode.IDIV | OpCode.MOD:
                say(f"v{under} = v{under} and v{top}")
                say(f"if v{under}:")
                say(f"    if s{top} == 0 or (s{top} == -1 and s{under} == {INT64_MIN}):")
                say("        return -1")
                say(f"    q = abs(s{under}) // abs(s{top})")
                say(f"    if (s{under} < 0) != (s{top} < 0):")
                say("        q = -q")
                say(f"    s{under} = {'q' if op == OpCode.IDIV else f's{under} - q * s{top}'}")
                self._range(under, a, b)
                return depth - 1
            case OpCode.NEG | OpCode.ABS:
                say(f"if v{top}:")
                say(f"    if s{top} == {INT64_MIN}:")
                say("        return -1")
                say(f"    s{top} = {f'-s{top}' if op == OpCode.NEG else f'abs(s{top})'}")
                self._range(top, a, b)
            case OpCode.FADD | OpCode.FSUB | OpCode.FMUL | OpCode.FDIV:
                say(f"v{under} = v{under} and v{top}")
                say(f"t{under} = t{under} {_FLOAT_OPERATORS[op]} t{top}")
                return depth - 1
            case OpCode.FNEG:
                say(f"t{top} = -t{top}")
            case OpCode.FABS:
                say(f"t{top} = abs(t{top})")
            case OpCode.EQ | OpCode.NE | OpCode.LT | OpCode.LE | OpCode.GT | OpCode.GE:
                say(f"v{under} = v{under} and v{top}")
                say(f"s{under} = 1 if s{under} {_COMPARISONS[op]} s{top} else 0")
                return depth - 1
            case OpCode.FEQ | OpCode.FNE | OpCode.FLT | OpCode.FLE | OpCode.FGT | OpCode.FGE:
                say(f"v{under} = v{under} and v{top}")
                say(f"s{under} = 1 if {_FLOAT_COMPARISONS[op].format(x=f't{under}', y=f't{top}')} else 0")
                return depth - 1
            case OpCode.DISTINCT | OpCode.FDISTINCT:
                differs = f"s{under} != s{top}" if op == OpCode.DISTINCT else f"not float_equal(t{under}, t{top})"
                say(f"if v{under} and v{top}:")
                say(f"    s{under} = 1 if {differs} else 0")
                say("else:")
                say(f"    s{under} = 1 if v{under} != v{top} else 0")
                say(f"v{under} = True")
                return depth - 1
            case OpCode.AND | OpCode.OR:
                decides = 0 if op == OpCode.AND else 1
                say(f"if v{under} and v{top}:")
                say(f"    s{under} = s{under} {'&' if op == OpCode.AND else '|'} s{top}")
                say(f"elif (v{under} and s{under} == {decides}) or (v{top} and s{top} == {decides}):")
                say(f"    s{under} = {decides}")
                say(f"    v{under} = True")
                say("else:")
                say(f"    v{under} = False")
                return depth - 1
            case OpCode.NOT:
                say(f"s{top} = 1 - s{top}")
            case OpCode.IS_NULL:
                say(f"s{top} = 0 if v{top} else 1")
                say(f"v{top} = True")
            case OpCode.JUMP:
                say(f"to = {a}")
            case OpCode.JUMP_IF_FALSE:
                say(f"if v{top} and s{top} == 0:")
                say(f"    to = {a}")
            case OpCode.JUMP_IF_TRUE:
                say(f"if v{top} and s{top} == 1:")
                say(f"    to = {a}")
            case OpCode.POP_JUMP_UNLESS_TRUE:
                say(f"if not v{top} or s{top} == 0:")
                say(f"    to = {a}")
                return depth - 1
            case OpCode.JUMP_IF_VALUE:
                say(f"if v{top}:")
                say(f"    to = {a}")
                return depth - 1
            case OpCode.FAVG:
                sum_ = f"t{under}" if b == 1 else f"float(s{under})"
                say(f"v{under} = v{under} and v{top} and s{top} > 0")
                say(f"if v{under}:")
                say(f"    t{under} = {sum_} / (float(s{top}) * {_literal(float(constants[a]))})")
                say("else:")
                say(f"    t{under} = 0.0  # any number: it is null")
                return depth - 1
        return depth

    def _range(self, d: int, low: int, high: int) -> None:
        """The result in slot d is checked against the range of its type."""
        tests = [
            f"s{d} {sign} {self.program.constants[at]}"
            for sign, at, limit in (("<", low, INT64_MIN), (">", high, INT64_MAX))
            if self.program.constants[at] != limit
        ]
        if tests:
            self.say(f"    if {' or '.join(tests)}:")
            self.say("        return -1")


def _literal(value: float) -> str:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f"np.{value}"
    return repr(value)


def binding(program: Program, v: int) -> str:
    """The function that updates the registers for a row bound to label v."""
    n = len(program.registers)
    olds = [f"o{r}" for r in range(n)]
    given = [*olds, *operands(program)[n:], "valid"]
    lines = [f"n{r} = o{r}" for r in range(n)]
    variable = program.variables[v]
    everything = not program.registers
    failed = f"return -1{''.join(f', n{r}' for r in range(n))}"
    for r in range(n - 1, -1, -1):
        register = program.registers[r]
        if register.variables and variable not in register.variables:
            continue
        named = register.feature < 0
        value = str(program.label_text[v]) if named else f"f{register.feature}"
        has = "" if named else f"k{register.feature}"
        bit = 1 << r
        set_bit = f"valid = valid | {bit}"
        if has:
            set_bit = f"valid = valid | {bit} if {has} else valid & {~bit}"
        match register.kind:
            case RegisterKind.COUNT_ROWS:
                lines.append(f"n{r} = o{r} + 1")
            case RegisterKind.COUNT_VALUES:
                lines += [f"if {has}:", f"    n{r} = o{r} + 1"] if has else [f"n{r} = o{r} + 1"]
            case RegisterKind.LAST if register.depth > 0:
                link = register.link
                lines.append(f"n{r} = o{link}")
                lines.append(f"valid = valid | {bit} if (valid >> {link}) & 1 else valid & {~bit}")
            case RegisterKind.LAST:
                lines += [f"n{r} = {value}", set_bit]
            case RegisterKind.FIRST:
                lines += [f"if o{register.link} == {register.depth}:", f"    n{r} = {value}", f"    {set_bit}"]
            case RegisterKind.SUM | RegisterKind.MIN | RegisterKind.MAX:
                lines += _accumulated(r, register.kind, register.lane.floating, value, has or "True", failed)
    if everything:
        lines.append("pass")
    return "\n".join([
        "@inlined",
        f"def bind_{v}({', '.join(given)}):",
        f'    """Binds a row to {program.names[v]}: the validity bits (-1: overflow) and the registers."""',
        *("    " + line for line in lines),
        f"    return valid{''.join(f', n{r}' for r in range(n))}",
    ])  # fmt: skip


def _accumulated(r: int, kind: RegisterKind, floating: bool, value: str, has: str, failed: str) -> list[str]:
    bit = 1 << r
    first = f"{value} + 0.0" if kind is RegisterKind.SUM and floating else value
    if kind is RegisterKind.SUM:
        more = [f"n{r} = o{r} + {value}"]
        if not floating:
            more = [f"if add_overflows(o{r}, {value}):", f"    {failed}", *more]
    elif floating:
        less = f"float_less({value}, o{r})" if kind is RegisterKind.MIN else f"float_less(o{r}, {value})"
        more = [f"if {less}:", f"    n{r} = {value}"]
    else:
        more = [f"if {value} {'<' if kind is RegisterKind.MIN else '>'} o{r}:", f"    n{r} = {value}"]
    return [
        f"if {has}:", f"    if valid & {bit} == 0:", f"        n{r} = {first}", f"        valid = valid | {bit}",
        "    else:", *(f"        {line}" for line in more),
    ]  # fmt: skip


def passing(program: Program) -> str:
    """The function of what a row that is passed over says of each gap; see skip_till.passed_over."""
    lines = []
    for g, labels in enumerate(program.gaps):
        mask = sum(1 << v for v in set(labels))  # a negation may stand there twice
        lines += [f"if mask & {mask} != 0:", f"    passed |= {1 << g}"]
    return "\n".join([
        "@inlined", "def passed_over(mask):", '    """What a row that is passed over says of the gaps."""',
        "    passed = np.int64(0)", *("    " + line for line in lines), "    return passed",
    ])  # fmt: skip

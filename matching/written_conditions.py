"""Conditions as source: the interpreter of all conditions, and those of one program written out.

matching.program.opcodes defines what an operation computes; here it gets its operands: places on a stack, or local
variables. Written out, a condition of label v becomes `meets_v`, over local variables: n{r} is register r (o{r} before
the row; matching.written_registers), f{f} and k{f} the value of feature f and whether it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from matching.program.lanes import INT64_MAX, INT64_MIN
from matching.program.opcodes import OPCODES, Ask, Compute, Jump, Kind, OpCode, Push, Walk, written
from matching.program.program import Program

#: The head of a module of kernels: matching.program.opcodes.PRIMITIVES, beside what all kernels need.
IMPORTS = """import numpy as np

from matching.kernels.floats import float_equal, float_larger, float_less, float_smaller, to_float
from matching.kernels.integers import (
    add_overflows, larger, lower_quotient, mul_overflows, quotient, remainder, rounded_quotient, smaller, stretched,
    sub_overflows, upper_quotient,
)
from matching.kernels.apart import called_apart
from matching.kernels.asking import answer
from matching.kernels.jit import inlined, kernel
from matching.kernels.libm import function_of, function_of_two, nearest, rounded
from matching.kernels.walks import unseen"""

_INTERPRETER = '''"""Interprets conditions: made from matching.program.opcodes."""

{imports}

ONE = np.uint64(1)  # numba looks for places from the end only where numbers may be negative
NOTHING = np.uint64(2**64 - 1)  # one below the first place


@inlined
def holds(program, variable, registers, valid, feature, feature_valid, i, scratch):
    """Runs the code of `variable` for row i: 1 true, 0 false or null, -1 it cannot be computed. Further
    rows of feature_valid, if any, are those where a feature cannot be computed."""
    features = feature.shape[0]
    some_fail = feature_valid.shape[0] > features
    stack = scratch.stack
    stack_f = scratch.stack_f
    ok = scratch.stack_valid
    top = NOTHING
    start = program.code_start[variable]
    end = program.code_start[variable + 1]
    pc = start
    while pc < end:
        op = program.code[pc, 0]
        a = program.code[pc, 1]
        b = program.code[pc, 2]
        pc += 1
{branches}
    return 1 if ok[0] and stack[0] == 1 else 0
'''


def interpreter() -> str:
    """The source of a module with `holds`, which runs the code of any condition."""
    lines: list[str] = []
    groups = [list(group) for _, group in groupby(OpCode, _shape)]
    for codes in groups:
        last = codes is groups[-1]
        asked = f"op == {int(codes[0])}" if len(codes) == 1 else f"op <= {int(codes[-1])}"
        lines.append("else:" if last else f"{'elif' if lines else 'if'} {asked}:")
        match codes[0].does:
            case Push():
                branch = _pushed(codes)
            case Compute():
                branch = _computed(codes)
            case Jump() as does:
                branch = _jumped(does)
            case Ask():
                branch = _asked()
            case Walk():
                branch = _walked()
        lines += ["    " + line for line in branch]
    return _INTERPRETER.format(imports=IMPORTS, branches="\n".join("        " + line for line in lines))


def _shape(code: OpCode) -> tuple[object, ...]:
    """Equal for operations that share a branch. The others are tested by an equal sign alone: LLVM makes one jump of a
    chain of these, as fast for its last operation as for its first."""
    match code.does:
        case Push():
            return (Push,)
        case Compute(takes, gives, _, fails, "", "", operands):
            return takes, gives, bool(fails), operands
        case _:
            return (code,)


def _pushed(codes: list[OpCode]) -> list[str]:
    assert codes == [OpCode.FEATURE, OpCode.REGISTER, OpCode.CONSTANT, OpCode.NULL]
    return [
        "top += ONE",
        f"if op == {int(OpCode.FEATURE)}:",
        "    if some_fail and feature_valid[features + a, i]:",
        "        return -1",
        "    stack[top] = feature[a, i]",
        "    ok[top] = feature_valid[a, i]",
        f"elif op == {int(OpCode.REGISTER)}:",
        "    stack[top] = registers[a]",
        "    ok[top] = (valid >> a) & 1 != 0",
        "else:",
        "    stack[top] = program.constant[a]",
        f"    ok[top] = op == {int(OpCode.CONSTANT)}",
    ]


def _stack(kind: Kind) -> str:
    return "stack_f" if kind == "float" else "stack"


def _computed(codes: list[OpCode]) -> list[str]:
    """The branch of operations that take and give the same."""
    does = [code.does for code in codes if isinstance(code.does, Compute)]
    first = does[0]
    two = len(first.takes) == 2
    names = _names(first.takes, "top", "top + ONE") | {"c": "program.constant[a]"}
    if "divisor" in first.operands:
        names["c"] = "program.constant_f[a]"
    if "ranks" in first.operands:
        names["c"] = "program.ranks"
    lines = ["top -= ONE"] if two else []
    if two and not first.null and not first.valid:
        lines.append("ok[top] = ok[top] and ok[top + ONE]")
    body = []
    if len(codes) > 1:  # read once, not in each branch
        body = [f"{name} = {names.pop(name)}" for name in "xy"[: len(first.takes)]]
    body += _chosen(codes, [_of_one(each, names) for each in does])
    if "low" in first.operands:
        body += ["if r < program.constant[a] or r > program.constant[b]:", "    return -1"]
    body.append(f"{_stack(first.gives)}[top] = {'1 if r else 0' if first.gives == 'truth' else 'r'}")
    return [*lines, "if ok[top]:", *("    " + line for line in body)] if first.fails else [*lines, *body]


def _names(takes: Sequence[Kind], *places: str) -> dict[str, str]:
    """The places on the stack of the values that are taken. Places, not variables read before: a condition is then read
    only as far as it is needed, and a branch is foreseen where LLVM would compute both sides."""
    values = {name: f"{_stack(kind)}[{at}]" for name, kind, at in zip("xy", takes, places, strict=False)}
    return values | {"xv": f"ok[{places[0]}]", "yv": f"ok[{places[-1]}]", "INT64_MIN": str(INT64_MIN)}


def _of_one(does: Compute, names: dict[str, str]) -> list[str]:
    """Assigns the value to r; for an operation that is not always null with an operand, sets ok[top] too."""
    value = written(does.value, names)
    if does.fails:
        return [f"if {written(does.fails, names)}:", "    return -1", f"r = {value}"]
    all_there = written("xv and yv" if len(does.takes) == 2 else "xv", names)
    if does.null:
        return [f"r = {value} if {all_there} else {written(does.null, names)}", "ok[top] = True"]
    if does.valid:
        return [f"r = {value}", f"if not ({all_there}):", f"    ok[top] = {written(does.valid, names)}"]
    return [f"r = {value}"]


def _chosen(codes: list[OpCode], branches: list[list[str]]) -> list[str]:
    """One branch for each operation; the last one needs no test."""
    if len(codes) == 1:
        return branches[0]
    lines: list[str] = []
    for code, branch in zip(codes, branches, strict=True):
        asked = "else:" if code is codes[-1] else f"{'elif' if lines else 'if'} op == {int(code)}:"
        lines += [f"{asked}  # {code.name.lower()}", *("    " + line for line in branch)]
    return lines


def _jumped(does: Jump) -> list[str]:
    if not does.takes:
        return ["pc = start + a"]
    pops, pops_else = does.drops
    asked = f"if {written(does.when, _names(does.takes, 'top + ONE' if pops else 'top'))}:"
    lines = ["top -= ONE"] if pops else []
    return [*lines, asked, "    pc = start + a", *(["else:", "    top -= ONE"] if pops_else and not pops else [])]


def _asked() -> list[str]:
    return [
        "top -= np.uint64(b - 1)",
        "known = answer(",
        "    program.asked_keys, program.asked_values, program.asked_known, program.answer, program.constant[a], b,",
        "    top, stack, ok, i,",
        ")",
        "if known < 0:",
        "    return -1",
        "stack[top] = program.answer[0]",
        "ok[top] = known == 1",
    ]


def _walked() -> list[str]:
    return [
        "top += ONE",
        "ok[top] = called_apart(program.apart[0], program.apart[1], program.constant[a], variable, i) == 1",
        "stack[top] = program.at[1]",
    ]


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
    unless v{d}. Jumps go forward only: the statements passed over are under an `if`."""

    def __init__(self, program: Program, v: int) -> None:
        self.program = program
        self.lines: list[str] = []
        code = [(OPCODES[op], a, b) for op, a, b in program.code[v]]
        jumps = [isinstance(op.does, Jump) for op, _, _ in code]
        targets = {a for (_, a, _), jump in zip(code, jumps, strict=True) if jump}
        depths = {0: 0}
        jumped = 0  # the farthest that a jump so far goes
        guarded = False
        if targets:
            self.lines.append("to = 0")
        self.indent = ""
        for pc, (op, a, b) in enumerate(code):
            starts = pc in targets or (pc > 0 and jumps[pc - 1])
            if starts:
                guarded = jumped > pc
                self.indent = ""
                if guarded:
                    self.say(f"if to <= {pc}:")
                self.indent = "    " if guarded else ""
            depth = depths[pc]
            match op.does:
                case Push():
                    self._push(op, a, depth)
                    depths.setdefault(pc + 1, depth + 1)
                case Compute() as does:
                    self._compute(does, a, b, depth - len(does.takes))
                    depths.setdefault(pc + 1, depth - len(does.takes) + 1)
                case Jump(_, when, drops):
                    jumped = max(jumped, a)
                    self._jump(when, a, depth - 1)
                    depths.setdefault(a, depth - drops[0])
                    if op is not OpCode.JUMP:
                        depths.setdefault(pc + 1, depth - drops[1])
        self.indent = ""
        self.say("return 1 if v0 and s0 == 1 else 0")

    def say(self, text: str) -> None:
        self.lines.append(self.indent + text)

    def _push(self, op: OpCode, a: int, d: int) -> None:
        program = self.program
        match op:
            case OpCode.FEATURE:
                value, valid, floating = f"f{a}", f"k{a}", program.features[a][1].floating
            case OpCode.REGISTER:
                value, valid, floating = f"n{a}", f"(valid >> {a}) & 1 != 0", program.registers[a].lane.floating
            case OpCode.CONSTANT:
                constant = program.constants[a]
                value, valid, floating = _literal(constant), "True", isinstance(constant, float)
            case _:  # NULL may be read as either
                self.say(f"s{d} = 0")
                value, valid, floating = "0.0", "False", True
        self.say(f"{'t' if floating else 's'}{d} = {value}")
        self.say(f"v{d} = {valid}")

    def _compute(self, does: Compute, a: int, b: int, d: int) -> None:
        """The values taken begin in slot d, which gets the result."""
        say = self.say
        names = {name: f"{_slot(kind)}{d + k}" for k, (name, kind) in enumerate(zip("xy", does.takes, strict=False))}
        names |= {f"{name}v": f"v{d + k}" for k, name in enumerate("xy"[: len(does.takes)])}
        names["INT64_MIN"] = str(INT64_MIN)
        if {"divisor", "factor", "which"} & set(does.operands):
            names["c"] = _literal(self.program.constants[a])
        value = written(does.value, names)
        all_there = " and ".join(f"v{d + k}" for k in range(len(does.takes)))
        if does.null:
            value = f"{value} if {all_there} else {written(does.null, names)}"
        result = f"{_slot(does.gives)}{d} = " + (f"1 if ({value}) else 0" if does.gives == "truth" else value)
        if set(does.takes) == {"truth"} and does.valid:  # branches, as most are foreseen: both sides take longer
            result = f"s{d} = {value}"
            say(f"if {all_there}:")
            say(f"    {result}")
            say("else:")
            say(f"    v{d} = {written(does.valid, names).replace(' & ', ' and ').replace(' | ', ' or ')}")
            say(f"    {result}")
            return
        if does.null or does.valid:
            say(result)
            valid = written(does.valid, names).replace(" | ", " or ") if does.valid else "True"
            say(f"v{d} = {valid}")
            return
        if len(does.takes) == 2:
            say(f"v{d} = v{d} and v{d + 1}")
        if not does.fails:
            say(result)
            return
        say(f"if v{d}:")
        say(f"    if {written(does.fails, names)}:")
        say("        return -1")
        say(f"    {result}")
        if "low" in does.operands:
            self._range(d, a, b)

    def _jump(self, when: str, to: int, d: int) -> None:
        say = self.say
        if when == "True":
            say(f"to = {to}")
            return
        say(f"if {written(when, {'x': f's{d}', 'xv': f'v{d}'})}:")
        say(f"    to = {to}")

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


def _slot(kind: Kind) -> str:
    return "t" if kind == "float" else "s"


def _literal(value: float) -> str:
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return f"np.{value}"
    return repr(value)


def passing(program: Program) -> str:
    """Returns the function that computes the bits of a row that is passed over; see skip_till.passed_over."""
    lines = []
    for g, labels in enumerate(program.absence.gaps):
        mask = sum(1 << v for v in set(labels))  # a negation may be there twice
        lines += [f"if mask & {mask} != 0:", f"    passed |= {1 << g}"]
    return "\n".join([
        "@inlined", "def passed_over(mask):", '    """Returns the bits of a row that is passed over."""',
        "    passed = np.int64(0)", *("    " + line for line in lines), "    return passed",
    ])  # fmt: skip

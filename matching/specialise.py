"""Source of the kernel of one program: the interpreted one, `step` of matching.kernels.step or skip_till, written out.

What a program fixes is computed here, and the rest of the interpreted kernel stays as it is (partial evaluation; Jones,
Gomard, Sestoft 1993): parameters become numbers, branches that cannot be taken go, the edges of a state are written one
after the other, and conditions and registers become expressions over local variables. So there is one source of what a
step means, and both kernels give the same results.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from matching.kernels import layout, skip_till
from query.automaton.lanes import INT64_MAX, INT64_MIN
from query.automaton.program import OpCode, Program, RegisterKind

#: What a name stands for where that is known.
Known = Mapping[str, Any]
_MISSING = object()
Node = TypeVar("Node", bound=ast.AST)

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


def source_of(kernel: ModuleType, program: Program, runs_max: int) -> str:
    """The source of a module whose function `step` is that of the module `kernel` for this program, and for rows whose
    conditions can all be computed (an empty `bad`)."""
    writer = _Writer(kernel, program, runs_max)
    function = _function(kernel.step)
    body = writer.block(function.body[1:], {"program": writer.tables, "bad": ()})
    names = ", ".join(sorted(n for n in writer.used if n in vars(kernel)))
    parts = [
        '"""' + "\n".join(_title(program)) + '\n"""',
        "import numpy as np",
        "from matching.kernels.jit import inlined, kernel\n"
        "from matching.kernels.predicate import add_overflows, float_equal, float_less, mul_overflows, sub_overflows\n"
        f"from {kernel.__name__} import {names}",
        *(_condition(program, v) for v in writer.conditions),
        *(_binding(program, v) for v in writer.bindings),
        *([_passed_over(program)] if program.gaps else []),
        f"@kernel\ndef step({', '.join(a.arg for a in function.args.args)}):\n" + textwrap.indent(_text(body), "    "),
    ]
    return "\n\n\n".join(parts) + "\n"


def _title(program: Program) -> list[str]:
    return ["The kernel of a query, made from its program:", "", *str(program).replace("\\", "\\\\").split("\n")]


def _function(function: Callable[..., object]) -> ast.FunctionDef:
    text = inspect.getsource(getattr(function, "py_func", function))
    tree = ast.parse(textwrap.dedent(text)).body[0]
    assert isinstance(tree, ast.FunctionDef)
    return tree


def _text(statements: Sequence[ast.stmt]) -> str:
    return ast.unparse(ast.fix_missing_locations(ast.Module(list(statements), [])))


def _parsed(text: str) -> list[ast.stmt]:
    return ast.parse(textwrap.dedent(text)).body


def _condition(program: Program, v: int) -> str:
    """The function that computes the condition of label v."""
    return "\n".join([
        "@inlined",
        f"def meets_{v}({', '.join(_operands(program))}, valid):",
        f'    """{program.names[v]}: 1 it is met, 0 not, -1 it cannot be computed."""',
        *("    " + line for line in _Bytecode(program, v).lines),
    ])  # fmt: skip


def _operands(program: Program) -> list[str]:
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


def _binding(program: Program, v: int) -> str:
    """The function that updates the registers for a row bound to label v."""
    n = len(program.registers)
    olds = [f"o{r}" for r in range(n)]
    operands = [*olds, *_operands(program)[n:], "valid"]
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
        f"def bind_{v}({', '.join(operands)}):",
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


def _passed_over(program: Program) -> str:
    """The function of what a row that is passed over says of each gap; see skip_till.passed_over."""
    lines = []
    for g, labels in enumerate(program.gaps):
        mask = sum(1 << v for v in labels)
        lines += [f"if mask & {mask} != 0:", f"    passed |= {1 << g}"]
    return "\n".join([
        "@inlined", "def passed_over(mask):", '    """What a row that is passed over says of the gaps."""',
        "    passed = np.int64(0)", *("    " + line for line in lines), "    return passed",
    ])  # fmt: skip


class _Writer:
    """Writes a kernel out for a program. used: global names that are left in it; conditions, bindings: labels whose
    functions it calls."""

    def __init__(self, kernel: ModuleType, program: Program, runs_max: int) -> None:
        self.program = program
        self.tables = layout.program_arrays(program, runs_max)
        self.globals = vars(kernel)
        self.known_names: frozenset[str] = kernel.STATIC
        self.place: str = kernel.PLACE
        self.constants = {n for n, value in self.globals.items() if isinstance(value, int)}
        self.used: set[str] = set()
        self.conditions: dict[int, None] = {}
        self.bindings: dict[int, None] = {}
        always = [v for v in range(len(program.variables)) if v not in program.tested]
        self.always = set(always)
        self.masks = [int(m) for m in self.tables.state_mask]
        self.states = [s for s in range(len(program.accept)) if program.edge_start[s + 1] > program.edge_start[s]]

    # ---- statements

    def block(self, statements: Sequence[ast.stmt], known: dict[str, Any]) -> list[ast.stmt]:
        """What is left of statements; `known` grows by what they make known."""
        out: list[ast.stmt] = []
        for statement in statements:
            out += self.statement(statement, known)
            if out and isinstance(out[-1], ast.Break | ast.Continue):
                break  # nothing behind it is reached
        return out

    def statement(self, node: ast.stmt, known: dict[str, Any]) -> list[ast.stmt]:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) if name in self.known_names:
                value = self.value(node.value, known)
                if value is not _MISSING:
                    known[name] = value
                    return []
            case ast.Assign(targets=[target], value=ast.Call(func=ast.Name(id="bind"), args=args)):
                return self.bound(target, args, known)
            case ast.Assign(targets=[target], value=ast.Call(func=ast.Name(id="meets"), args=args)):
                return self.met(target, args, known)
            case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=args)) if hasattr(self, f"_{name}"):
                written: list[ast.stmt] = getattr(self, f"_{name}")(args, known)
                return written
            case ast.If(test=test, body=body, orelse=orelse):
                if (state := _state_asked(test)) and state not in known and _reads_edges(body):
                    return self.dispatched(node, state, known)
                value = self.value(test, known)
                if value is not _MISSING:
                    return self.block(body if value else orelse, known)
                then, otherwise = self.block(body, dict(known)), self.block(orelse, dict(known))
                if not then and not otherwise:
                    return []
                return [ast.If(self.expression(test, known), then or [ast.Pass()], otherwise)]
            case ast.For(target=ast.Name(id=name), iter=iterator, body=body) if name in self.known_names:
                return self.unrolled(name, self.value(iterator, known), body, known)
            case ast.For() | ast.While():
                copy = _copied(node)
                inner = dict(known)
                if isinstance(copy, ast.While):
                    copy.test = self.expression(copy.test, known)
                else:
                    copy.iter = self.expression(copy.iter, known)
                copy.body = self.block(copy.body, inner) or [ast.Pass()]
                return [copy]
            case ast.Expr(value=ast.Constant()):
                return []
        rewritten = _Expressions(self, known).visit(_copied(node))
        assert isinstance(rewritten, ast.stmt)
        return [rewritten]

    def dispatched(self, node: ast.If, state: str, known: dict[str, Any]) -> list[ast.stmt]:
        """The statement once for each state that waits for rows."""
        chain: list[ast.stmt] = []
        for s in reversed(self.states):
            body = self.statement(node, {**known, state: s}) or [ast.Pass()]
            if not chain and len(self.states) == 1:
                return body
            test = ast.parse(f"{state} == {s}", mode="eval").body
            chain = [ast.If(test, body, chain)] if chain else body
        return chain

    def unrolled(self, name: str, values: Any, body: list[ast.stmt], known: dict[str, Any]) -> list[ast.stmt]:
        """A loop whose rounds are known, one round after the other: `continue` leaves a loop of one round."""
        out: list[ast.stmt] = []
        leaves = False
        for value in values:
            written = self.block(body, {**known, name: value})
            leaves = leaves or _has(written, ast.Break)
            written = [_Leaving().visit(s) for s in written]
            ends = bool(written) and isinstance(written[-1], ast.Break)
            one = ast.While(ast.Constant(True), written if ends else [*written, ast.Break()], [])
            if out and leaves:
                out.append(ast.If(ast.parse("not left", mode="eval").body, [one], []))
            else:
                out.append(one)
        return [*_parsed("left = False"), *out] if leaves else out

    def bound(self, target: ast.expr, args: list[ast.expr], known: Known) -> list[ast.stmt]:
        v = known["v"]
        n = len(self.program.registers)
        self.bindings[v] = None
        features = _operands(self.program)[n:]
        call = f"bind_{v}({', '.join([*(f'o{r}' for r in range(n)), *features, 'valid'])})"
        names = ", ".join([ast.unparse(target), *(f"n{r}" for r in range(n))])
        return _parsed(f"{names} = {call}")

    def met(self, target: ast.expr, args: list[ast.expr], known: Known) -> list[ast.stmt]:
        v = known["v"]
        if not self.program.code[v]:
            return _parsed(f"{ast.unparse(target)} = 1")
        self.conditions[v] = None
        return _parsed(f"{ast.unparse(target)} = meets_{v}({', '.join(_operands(self.program))}, new_valid)")

    def _read_features(self, args: list[ast.expr], known: Known) -> list[ast.stmt]:
        lines = []
        for f, (_, lane) in enumerate(self.program.features):
            lines += [f"f{f} = feature{'_f' if lane.floating else ''}[{f}, i]", f"k{f} = feature_valid[{f}, i]"]
        return _parsed("\n".join(lines))

    def _begin_registers(self, args: list[ast.expr], known: Known) -> list[ast.stmt]:
        registers = enumerate(self.program.registers)
        return _parsed("\n".join(f"o{r} = {'0.0' if x.lane.floating else 'np.int64(0)'}" for r, x in registers))

    def _read_registers(self, args: list[ast.expr], known: Known) -> list[ast.stmt]:
        of = ast.unparse(args[1])
        return _parsed("\n".join(f"o{r} = {self.register(r, of)}" for r in range(len(self.program.registers))))

    def _read_or_begin(self, args: list[ast.expr], known: Known) -> list[ast.stmt]:
        begins, goes_on = self._begin_registers(args, known), self._read_registers(args, known)
        if known["state"] != 0:
            return goes_on
        if 0 not in self.program.edge_target:
            return begins
        test = ast.parse(f"{ast.unparse(args[1])} < 0", mode="eval").body
        return [ast.If(test, begins, goes_on)] if begins else []

    def register(self, r: int, at: str) -> str:
        """Where register r of the run at `at` stands."""
        f = "_f" if self.program.registers[r].lane.floating else ""
        return self.place.format(line=f"line{f}", registers=f"registers{f}", at=at, r=r, column=skip_till.REGISTERS + r)

    def _write_fresh(self, args: list[ast.expr], known: Known) -> list[ast.stmt]:
        return self._written("n", args)

    def _write_old(self, args: list[ast.expr], known: Known) -> list[ast.stmt]:
        return self._written("o", args)

    def _written(self, of: str, args: list[ast.expr]) -> list[ast.stmt]:
        to = ast.unparse(args[1])
        return _parsed("\n".join(f"{self.register(r, to)} = {of}{r}" for r in range(len(self.program.registers))))

    def _copy_line(self, args: list[ast.expr], known: Known) -> list[ast.stmt]:
        of, to = map(ast.unparse, args[:2])
        width = skip_till.REGISTERS + len(self.program.registers)
        return _parsed(f"for c in range({width}):\n    line[{to}, c] = line[{of}, c]")

    # ---- expressions

    def value(self, node: ast.expr, known: Known) -> Any:
        """What an expression is, or _MISSING if that is not known."""
        match node:
            case ast.BoolOp(op=op, values=values):
                found = [self.value(v, known) for v in values]
                decides = isinstance(op, ast.Or)
                if any(v is not _MISSING and bool(v) == decides for v in found):
                    return decides
                return _MISSING if _MISSING in found else not decides
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                of = self.value(operand, known)
                return _MISSING if of is _MISSING else not of
            case ast.IfExp(test=test, body=body, orelse=orelse):
                chosen = self.value(test, known)
                return _MISSING if chosen is _MISSING else self.value(body if chosen else orelse, known)
            case ast.Call(func=ast.Name(id="has"), args=[_, _, v]):
                return True if self.value(v, known) in self.always else _MISSING
            case ast.Call(func=ast.Name(id="concerns"), args=[_, _, state]):
                s = self.value(state, known)
                masks = self.masks if s is _MISSING else [self.masks[s]]
                sure = all(any(mask >> v & 1 for v in self.always) for mask in masks if mask)
                return True if sure else _MISSING
        names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        local = {n for n in names if n not in known}
        if local - {"np", "len", "range"} - self.constants:
            return _MISSING
        scope = {n: self.globals[n] for n in local if n in self.globals} | dict(known)
        try:
            found_value = eval(
                compile(ast.Expression(_plain(node)), "<kernel>", "eval"), {"len": len, "range": range}, scope
            )
        except (NameError, AttributeError, IndexError, TypeError):
            return _MISSING
        return found_value.item() if isinstance(found_value, np.generic) else found_value

    def expression(self, node: ast.expr, known: Known) -> ast.expr:
        rewritten = _Expressions(self, known).visit(_copied(node))
        assert isinstance(rewritten, ast.expr)
        return rewritten


class _Expressions(ast.NodeTransformer):
    """Rewrites expressions: what is known becomes a number."""

    def __init__(self, writer: _Writer, known: Known) -> None:
        self.writer = writer
        self.known = known

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            if isinstance(node, ast.Name) and node.id not in self.known:
                if node.id in self.writer.globals and node.id != "np":
                    self.writer.used.add(node.id)
                return node
            if not isinstance(node, ast.Constant) and not _is_typed(node):
                value = self.writer.value(node, self.known)
                if isinstance(value, bool | int | float):
                    return ast.Constant(value)
                if isinstance(value, np.ndarray):
                    return ast.parse(repr(tuple(value.tolist())), mode="eval").body
        return super().visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> Any:
        """Parts that are known decide nothing here."""
        left = [v for v in node.values if self.writer.value(v, self.known) is _MISSING]
        values = [self.visit(v) for v in left]
        return values[0] if len(values) == 1 else ast.BoolOp(node.op, values)

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        if isinstance(node.op, ast.BitOr) and self.writer.value(node.right, self.known) == 0:
            return self.visit(node.left)
        return self.generic_visit(node)

    def visit_IfExp(self, node: ast.IfExp) -> Any:
        chosen = self.writer.value(node.test, self.known)
        if chosen is not _MISSING:
            return self.visit(node.body if chosen else node.orelse)
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        match node:
            case ast.Call(func=ast.Name(id="has"), args=[_, mask, v]):
                bit = 1 << self.writer.value(v, self.known)
                return ast.parse(f"{ast.unparse(self.visit(mask))} & {bit} != 0", mode="eval").body
            case ast.Call(func=ast.Name(id="concerns"), args=[_, mask, state]):
                return self._concerns(ast.unparse(self.visit(mask)), state)
            case ast.Call(func=ast.Name(id="passed_over"), args=[_, mask, _]):
                return ast.parse(f"passed_over({ast.unparse(self.visit(mask))})", mode="eval").body
        return self.generic_visit(node)

    def _concerns(self, mask: str, state: ast.expr) -> ast.expr:
        s = self.writer.value(state, self.known)
        masks = self.writer.masks
        if s is not _MISSING:
            return ast.parse(f"{mask} & {masks[s]} != 0", mode="eval").body
        table = tuple(masks)
        return ast.parse(f"{mask} & {table!r}[{ast.unparse(state)}] != 0", mode="eval").body


class _Leaving(ast.NodeTransformer):
    """Turns `continue` of an unrolled loop into `break` of its loop of one round, and its `break` into one that says
    so. Loops inside keep theirs."""

    def visit_Continue(self, node: ast.Continue) -> Any:
        return ast.Break()

    def visit_Break(self, node: ast.Break) -> Any:
        return [*_parsed("left = True"), ast.Break()]

    def visit_While(self, node: ast.While) -> Any:
        return node

    def visit_For(self, node: ast.For) -> Any:
        return node


def _has(statements: Sequence[ast.stmt], kind: type[ast.stmt]) -> bool:
    """Whether a statement of this kind stands in them outside of loops."""
    for statement in statements:
        if isinstance(statement, kind):
            return True
        if isinstance(statement, ast.If) and (_has(statement.body, kind) or _has(statement.orelse, kind)):
            return True
    return False


def _state_asked(test: ast.expr) -> str:
    """The name of the state in a test that is a call of `concerns` alone."""
    match test:
        case ast.Call(func=ast.Name(id="concerns"), args=[_, _, ast.Name(id=name)]):
            return name
    return ""


def _reads_edges(body: Sequence[ast.stmt]) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr == "edge_start" for s in body for n in ast.walk(s))


def _is_typed(node: ast.expr) -> bool:
    """np.int64(...): it says what type a variable begins with."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="np"))):
            return True
    return False


def _plain(node: ast.expr) -> ast.expr:
    """The expression without np.int64( ), which wraps nothing here."""

    class Plain(ast.NodeTransformer):
        def visit_Call(self, call: ast.Call) -> Any:
            self.generic_visit(call)
            return call.args[0] if _is_typed(call) else call

    return ast.fix_missing_locations(Plain().visit(_copied(node)))


def _copied(node: Node) -> Node:
    return copy.deepcopy(node)

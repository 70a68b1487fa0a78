"""Source of the specialised kernel of one program: the interpreted one, `step` of matching.kernels.step or skip_till,
written out.

Values fixed by a program are computed here, and the rest of the interpreted kernel is unchanged (partial evaluation;
Jones, Gomard, Sestoft 1993): parameters become numbers, branches that cannot be taken are removed, the edges of a state
are written one after the other, and conditions and registers become expressions over local variables. So a step is
defined in one place, and both kernels give the same results.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from matching.kernels import layout, runs_in_blocks
from matching.program.program import Program
from matching.written_conditions import IMPORTS, condition, operands, passing
from matching.written_registers import binding

#: The value of a name, if it is known.
Known = Mapping[str, Any]
_MISSING = object()
Node = TypeVar("Node", bound=ast.AST)


def source_of(kernel: ModuleType, program: Program, runs_max: int) -> str:
    """Returns the source of a module whose function `step` is that of the module `kernel` for this program, and for
    rows whose conditions can all be computed (an empty `bad`)."""
    writer = _Writer(kernel, program, runs_max)
    function = _function(kernel.step)
    body = writer.block(function.body[1:], {"program": writer.tables, "bad": ()})
    names = ", ".join(sorted(n for n in writer.used if n in vars(kernel)))
    parts = [
        '"""' + "\n".join(_title(program)) + '\n"""',
        f"{IMPORTS}\nfrom {kernel.__name__} import {names}",
        *(condition(program, v) for v in writer.conditions),
        *(binding(program, v) for v in writer.bindings),
        *([passing(program)] if program.absence.gaps else []),
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


class _Writer:
    """Writes a kernel out for a program. used: global names that remain in it; conditions, bindings: labels whose
    functions it calls."""

    def __init__(self, kernel: ModuleType, program: Program, runs_max: int) -> None:
        self.program = program
        self.tables = layout.program_arrays(program, runs_max)
        self.globals = vars(kernel)
        self.known_names: frozenset[str] = kernel.STATIC
        self.place: str = kernel.PLACE
        self.unfolded = {name: _function(self.globals[name]) for name in kernel.UNFOLDED}
        self.constants = {n for n, value in self.globals.items() if isinstance(value, int)}
        self.used: set[str] = set()
        self.conditions: dict[int, None] = {}
        self.bindings: dict[int, None] = {}
        always = [v for v in range(len(program.variables)) if v not in program.tested]
        self.always = set(always)
        self.masks = [int(m) for m in self.tables.state_mask]
        edges = np.diff(program.edge_start)
        #: states that a run can be in, or that a row begins with, though it may have no edges (if the empty match is
        #: best)
        self.states = [s for s in range(len(program.accept)) if s == 0 or edges[s]]

    # ---- statements

    def block(self, statements: Sequence[ast.stmt], known: dict[str, Any]) -> list[ast.stmt]:
        """Returns the remaining statements; adds the values that they determine to `known`."""
        out: list[ast.stmt] = []
        for statement in statements:
            out += self.statement(statement, known)
            if out and isinstance(out[-1], ast.Break | ast.Continue):
                break  # later statements are unreachable
        return out

    def statement(self, node: ast.stmt, known: dict[str, Any]) -> list[ast.stmt]:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)]) if name in self.known_names:
                value = self.value(node.value, known)
                if value is not _MISSING:
                    known[name] = value
                    return []
            case ast.Assign(targets=[ast.Tuple(elts=[truth, valid])], value=ast.Call(func=ast.Name(id="take"))):
                return self.taken(truth, valid, known)
            case ast.Assign(value=ast.Call(func=ast.Name(id=name))) if name in self.unfolded:
                return self.unfold(node, self.unfolded[name], known)
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
                loop = _copied(node)
                inner = dict(known)
                if isinstance(loop, ast.While):
                    loop.test = self.expression(loop.test, known)
                else:
                    loop.iter = self.expression(loop.iter, known)
                loop.body = self.block(loop.body, inner) or [ast.Pass()]
                return [loop]
            case ast.Expr(value=ast.Constant()):
                return []
        rewritten = _Expressions(self, known).visit(_copied(node))
        assert isinstance(rewritten, ast.stmt)
        return [rewritten]

    def dispatched(self, node: ast.If, state: str, known: dict[str, Any]) -> list[ast.stmt]:
        """Returns the statement once for each state that waits for rows."""
        chain: list[ast.stmt] = []
        for s in reversed(self.states):
            body = self.statement(node, {**known, state: s}) or [ast.Pass()]
            if not chain and len(self.states) == 1:
                return body
            test = ast.parse(f"{state} == {s}", mode="eval").body
            chain = [ast.If(test, body, chain)] if chain else body
        return chain

    def unrolled(self, name: str, values: Any, body: list[ast.stmt], known: dict[str, Any]) -> list[ast.stmt]:
        """Returns a loop with known rounds, one round after the other: `continue` leaves a loop of one round."""
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

    def unfold(self, call: ast.Assign, function: ast.FunctionDef, known: dict[str, Any]) -> list[ast.stmt]:
        """Returns the body of a function in place of its call: their variables have the same names."""
        *body, returned = function.body[1:]
        assert isinstance(call.value, ast.Call)
        assert isinstance(returned, ast.Return)
        assert [ast.unparse(a) for a in call.value.args] == [a.arg for a in function.args.args]
        assert ast.unparse(call.targets[0]) == ast.unparse(returned).removeprefix("return ")
        return self.block(body, known)

    def taken(self, truth: ast.expr, valid: ast.expr, known: Known) -> list[ast.stmt]:
        """Binds a row to a label and tests its condition."""
        v = known["v"]
        n = len(self.program.registers)
        given, after = operands(self.program), ast.unparse(valid)
        bound = ", ".join([*(f"o{r}" for r in range(n)), *given[n:], "valid"])
        met = "1"
        self.bindings[v] = None
        if self.program.code[v]:
            self.conditions[v] = None
            met = f"meets_{v}({', '.join([*given, after])})"
        return _parsed(f"""
            {', '.join([after, *given[:n]])} = bind_{v}({bound})
            {ast.unparse(truth)} = -1 if {after} == -1 else {met}""")

    def _read_features(self, args: list[ast.expr], known: Known) -> list[ast.stmt]:
        lines = []
        for f, (_, lane) in enumerate(self.program.features):
            lines += [f"f{f} = feature{'_f' if lane.floating else ''}[{f}, i]", f"k{f} = feature_valid[{f}, i]"]
        return _parsed("\n".join(lines))

    def _walks_from(self, args: list[ast.expr], known: Known) -> list[ast.stmt]:
        return []

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
        """Returns the place of register r of the run at `at`."""
        f = "_f" if self.program.registers[r].lane.floating else ""
        column = runs_in_blocks.REGISTERS + r
        return self.place.format(line=f"line{f}", registers=f"registers{f}", at=at, r=r, column=column)

    def _write_fresh(self, args: list[ast.expr], known: Known) -> list[ast.stmt]:
        return self._written("n", args)

    def _write_old(self, args: list[ast.expr], known: Known) -> list[ast.stmt]:
        return self._written("o", args)

    def _hand_out(self, args: list[ast.expr], known: Known) -> list[ast.stmt]:
        self.used.add("C_DECIDED")
        return _parsed("\n".join(
            f"decided.carried[counters[C_DECIDED], {k}] = n{r} if (new_valid >> {r}) & 1 != 0 else -1"
            for k, r in enumerate(self.program.carries or ())
        ))  # fmt: skip

    def _written(self, of: str, args: list[ast.expr]) -> list[ast.stmt]:
        to = ast.unparse(args[1])
        return _parsed("\n".join(f"{self.register(r, to)} = {of}{r}" for r in range(len(self.program.registers))))

    def _copy_line(self, args: list[ast.expr], known: Known) -> list[ast.stmt]:
        of, to = map(ast.unparse, args[:2])
        width = runs_in_blocks.width_of(self.program)
        return _parsed(f"for c in range({width}):\n    line[{to}, c] = line[{of}, c]")

    # ---- expressions

    def value(self, node: ast.expr, known: Known) -> Any:
        """Returns the value of an expression, or _MISSING if it is unknown."""
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
    """Rewrites expressions: known values become numbers."""

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
        """Drops known parts, which decide nothing here."""
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
            case ast.Call(func=ast.Name(id=name)) if name in self.writer.globals:
                self.generic_visit(node)
                node.args = [_typed(a) for a in node.args]
                return node
        return self.generic_visit(node)

    def _concerns(self, mask: str, state: ast.expr) -> ast.expr:
        s = self.writer.value(state, self.known)
        masks = self.writer.masks
        if s is not _MISSING:
            return ast.parse(f"{mask} & {masks[s]} != 0", mode="eval").body
        table = tuple(masks)
        return ast.parse(f"{mask} & {table!r}[{ast.unparse(state)}] != 0", mode="eval").body


class _Leaving(ast.NodeTransformer):
    """Turns `continue` of an unrolled loop into `break` of its loop of one round, and its `break` into one that sets a
    flag. Inner loops are unchanged."""

    def visit_Continue(self, node: ast.Continue) -> Any:
        return ast.Break()

    def visit_Break(self, node: ast.Break) -> Any:
        return [*_parsed("left = True"), ast.Break()]

    def visit_While(self, node: ast.While) -> Any:
        return node

    def visit_For(self, node: ast.For) -> Any:
        return node


def _has(statements: Sequence[ast.stmt], kind: type[ast.stmt]) -> bool:
    """True if they contain a statement of this kind outside of loops."""
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


def _typed(node: ast.expr) -> ast.expr:
    """Returns a number as np.int64(...): a function is compiled once more for each number that is given to it as
    such."""
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return ast.parse(f"np.int64({value})", mode="eval").body
    return node


def _is_typed(node: ast.expr) -> bool:
    """True for np.int64(...), which determines the initial type of a variable."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="np"))):
            return True
    return False


def _plain(node: ast.expr) -> ast.expr:
    """Returns the expression without np.int64( ), which is superfluous here."""

    class Plain(ast.NodeTransformer):
        def visit_Call(self, call: ast.Call) -> Any:
            self.generic_visit(call)
            return call.args[0] if _is_typed(call) else call

    return ast.fix_missing_locations(Plain().visit(_copied(node)))


def _copied(node: Node) -> Node:
    """A copy without positions, some ten times faster than copy.deepcopy."""
    new = type(node)()
    for field, value in ast.iter_fields(node):
        if isinstance(value, ast.AST):
            value = _copied(value)
        elif isinstance(value, list):
            value = [_copied(v) if isinstance(v, ast.AST) else v for v in value]
        setattr(new, field, value)
    return new

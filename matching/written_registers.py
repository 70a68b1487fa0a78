"""Updates of registers as source: of the interpreter, and those of one program written out.

matching.program.registers defines what a row does to a register; here it gets its operands: arrays, or local variables.
Written out, the registers of a row bound to label v are `bind_v`; its variables are those of
matching.written_conditions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matching.program.opcodes import written
from matching.program.program import Program
from matching.program.registers import Accumulate, Assign, RegisterKind
from matching.written_conditions import IMPORTS, operands

_INTERPRETER = '''"""Interprets updates of registers: made from matching.program.registers."""

{imports}


@inlined
def update_registers(program, registers, registers_f, valid, variable, feature, feature_f, feature_valid, i):
    """Binds row i to `variable`: updates the registers of one run in place. Returns the validity bits, or -1 on
    overflow (bit 62 and 63 are never used)."""
    for r in range(len(program.register_kind) - 1, -1, -1):
        if (program.register_mask[r] >> variable) & 1 == 0:
            continue
        kind = program.register_kind[r]
        f = program.register_feature[r]
        bit = np.int64(1) << r
{branches}
    return valid
'''

_ASSIGNED = {
    "x": "registers[r]",
    "y": "(program.label_text[variable] if f < 0 else feature[f, i])",
    "yv": "f < 0 or feature_valid[f, i]",
    "z": "registers[program.register_link[r]]",
    "zv": "(valid >> program.register_link[r]) & 1 != 0",
    "d": "program.register_depth[r]",
    "k": "feature[program.register_depth[r], i]",
    "t": "program.steps",
    "kv": "feature_valid[program.register_depth[r], i]",
    "u": "(feature_valid[f, i] and unseen(program.walked, f, program.register_mask[r], i))",
}
_OVER_FLOATS = {
    "z": "registers_f[program.register_link[r]]", "k": "feature_f[program.register_depth[r], i]",
}  # fmt: skip


def register_interpreter() -> str:
    """Returns the source of a module with `update_registers`, for the registers of any program."""
    lines: list[str] = []
    for kind in RegisterKind:
        if isinstance(kind.does, Assign):
            lines.append(f"{'elif' if lines else 'if'} kind == {int(kind)}:")
            names = _ASSIGNED | _OVER_FLOATS if kind.over_floats else _ASSIGNED
            lines += _indented(_update(kind.does, names, "registers[r]", "bit", "~bit", ""))
    # the value of a register that accumulates is always a feature; a branch for each kind took 5 % longer
    lines += ["elif feature_valid[f, i]:", "    if valid & bit == 0:", *_indented(_indented(_begun()))]
    lines += ["    elif program.register_float[r]:", *_indented(_indented(_accumulated("_f")))]
    lines += ["    else:", *_indented(_indented(_accumulated("")))]
    return _INTERPRETER.format(imports=IMPORTS, branches="\n".join("        " + line for line in lines))


def _accumulating(f: str) -> list[tuple[RegisterKind, Accumulate]]:
    """Returns the kinds that accumulate, with what they do; f: "_f" of floats, or ""."""
    found = [(kind, kind.does_float if f else kind.does) for kind in RegisterKind if not (
        kind.whole_only if f else kind.floats_only)]  # fmt: skip
    return [(kind, does) for kind, does in found if isinstance(does, Accumulate)]


def _begun() -> list[str]:
    """Returns the statements by which a register gets its first value: mostly the bits of the row's, whatever they
    mean."""
    lines = ["registers[r] = feature[f, i]", "valid = valid | bit"]
    for f, asked in (("_f", "program.register_float[r]"), ("", "not program.register_float[r]")):
        for kind, does in _accumulating(f):
            if does.first != "y":
                lines.append(f"if kind == {int(kind)} and {asked}:")
                lines.append(f"    registers{f}[r] = {written(does.first, _ASSIGNED | {'y': f'feature{f}[f, i]'})}")
    return lines


def _accumulated(f: str) -> list[str]:
    """Returns the statements by which a register that has a value gets the next one. f: as above."""
    names = {name: name + f for name in "xy"}
    lines = [f"{names[name]} = {of}{f}{at}" for name, of, at in (("x", "registers", "[r]"), ("y", "feature", "[f, i]"))]
    names |= {name: _ASSIGNED[name] for name in "ztdu"}
    names |= {"c": "program.ranks", "w": "registers_f[program.register_depth[r]]"}
    for k, (kind, does) in enumerate(_accumulating(f)):
        lines.append(f"{'elif' if k else 'if'} kind == {int(kind)}:")
        lines += _indented(_more(does, names, f"registers{f}[r]", "return np.int64(-1)"))
    return lines


def binding(program: Program, v: int) -> str:
    """Returns the function that updates the registers for a row bound to label v."""
    n = len(program.registers)
    olds = [f"o{r}" for r in range(n)]
    given = [*olds, *operands(program)[n:], "valid"]
    results = "".join(f", n{r}" for r in range(n))
    lines = [f"n{r} = o{r}" for r in range(n)]
    for r in range(n - 1, -1, -1):
        register = program.registers[r]
        if register.variables and program.variables[v] not in register.variables:
            continue
        named = register.feature < 0
        names = {
            "x": f"o{r}",
            "y": str(program.texts.of_label[v]) if named else f"f{register.feature}",
            "yv": "True" if named else f"k{register.feature}",
            "z": f"o{register.link}",
            "zv": f"(valid >> {register.link}) & 1",
            "d": str(register.depth),
            "w": f"o{register.depth}",
            "k": f"f{register.depth}",
            "kv": f"k{register.depth}",
        }
        does = register.kind.does_float if register.lane.floating else register.kind.does
        lines += _update(does, names, f"n{r}", str(1 << r), str(~(1 << r)), f"return -1{results}")
    return "\n".join([
        "@inlined",
        f"def bind_{v}({', '.join(given)}):",
        f'    """Binds a row to {program.names[v]}: the validity bits (-1: overflow) and the registers."""',
        *_indented(lines or ["pass"]),
        f"    return valid{results}",
    ])  # fmt: skip


def _update(
    does: Assign | Accumulate, names: Mapping[str, str], to: str, bit: str, others: str, failed: str
) -> list[str]:
    """Returns the statements of an entry. names: its operands; to: the register; bit, others: its place in the validity
    bits, and all places but this; failed: what to do where the value cannot be computed."""
    if isinstance(does, Assign):
        put = f"{to} = {written(does.value, names)}"
        return _where(written(does.when, names), [put, *_validity(written(does.valid, names), bit, others)])
    more = _more(does, names, to, failed)
    first = [f"if valid & {bit} == 0:", f"    {to} = {written(does.first, names)}", f"    valid = valid | {bit}"]
    return _where(names["yv"], [*first, "else:", *_indented(more)])


def _more(does: Accumulate, names: Mapping[str, str], to: str, failed: str) -> list[str]:
    """Returns the statements of an entry for a register that is not null."""
    lines = _where(written(does.when, names), [f"{to} = {written(does.value, names)}"])
    return [f"if {written(does.fails, names)}:", f"    {failed}", *lines] if does.fails else lines


def _validity(valid: str, bit: str, others: str) -> list[str]:
    match valid:
        case "":
            return []
        case "True":
            return [f"valid = valid | {bit}"]
        case _:
            return [f"valid = (valid | {bit}) if {valid} else (valid & {others})"]


def _where(condition: str, lines: list[str]) -> list[str]:
    return lines if condition in ("", "True") else [f"if {condition}:", *_indented(lines)]


def _indented(lines: Sequence[str]) -> list[str]:
    return ["    " + line for line in lines]

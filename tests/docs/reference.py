"""The reference of the Python interface, from signatures and docstrings: a page of the site, never written by hand.

`python -m tests.docs.reference` prints it as Markdown.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import hybrid
from hybrid.database.database import OF_SERVICES

#: Classes that methods of the exported ones return, with the members that are for users; None: all public ones.
RETURNED: dict[str, tuple[str, ...] | None] = {
    "hybrid.watch.alerts.Alerts": (
        "fetch", "__iter__", "wait", "join", "evidence", "evidence_batches", "tree", "plot", "stats", "suppressed",
        "explain", "put_back", "close",
    ),
    "hybrid.watch.pushed.Pushed": (),
    "hybrid.watch.late.LateEvents": ("fetch",),
    "hybrid.rows.evidence_tree.EvidenceTree": None,
    "hybrid.rows.picture.Picture": None,
    "hybrid.rows.result.ArrowRows": None,
    "hybrid.rows.compare.Difference": None,
    "hybrid.watch.rewind.Rewound": None,
    "hybrid.database.backup.Copied": None,
    "archive.ingest.IngestReport": None,
    "query.schema.Schema": ("column", "field", "names", "widens", "to_dict", "from_dict"),
    "query.schema.Field": None,
    "query.plan.plan.QueryPlan": (),
    "query.errors.Diagnostic": None,
}  # fmt: skip
#: Public members of the exported classes that the service needs, and nobody else.
OF_THE_SERVICE = {
    "hybrid.database.database.Database": tuple(OF_SERVICES),
    "hybrid.watch.shedding.Shed": ("save",),
}
#: Special methods that a reader looks for.
SPECIAL = ("__iter__",)
HEAD = """\
# Reference

All functions, classes and methods of the Python interface, as their docstrings describe them. [Python](python.md)
is the guide.

`import hybrid` gives {names}.
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """One function, class, method or property. level: of its heading. signature: as Python writes it."""

    name: str
    level: int
    signature: str
    docstring: str
    parameters: tuple[str, ...] = ()


class _Written(str):
    """An annotation as its author wrote it: `from __future__ import annotations` keeps it as a text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _signature(function: Any, name: str, method: bool) -> tuple[str, tuple[str, ...]]:
    """Returns the text of a call with its annotations, and the names of its parameters."""
    found = inspect.signature(function)
    parameters = [
        p.replace(annotation=p.annotation if p.annotation is p.empty else _Written(p.annotation))
        for p in found.parameters.values()
    ][1 if method else 0 :]
    returned = found.return_annotation
    written = found.replace(
        parameters=parameters, return_annotation=returned if returned is found.empty else _Written(returned)
    )
    text = f"{name}{written}"
    if len(text) > 100:
        inside = ",\n".join(f"    {p}" for p in _with_marks(parameters))
        after = "" if returned is found.empty else f" -> {returned}"
        text = f"{name}(\n{inside},\n){after}"
    return text, tuple(p.name for p in parameters)


def _with_marks(parameters: list[inspect.Parameter]) -> Iterator[str]:
    """Yields parameters as they are written, with the `*` before those that are given by name only."""
    starred = False
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and not starred:
            yield "*"
            starred = True
        starred = starred or p.kind is p.VAR_POSITIONAL
        yield str(p)


def classes() -> dict[str, tuple[type, tuple[str, ...]]]:
    """Returns the classes of the reference with their members, by the names that are shown."""
    found = {}
    for name in hybrid.__all__:
        value = getattr(hybrid, name)
        if inspect.isclass(value):
            found[f"hybrid.{name}"] = (value, _public(value))
    for path, chosen in RETURNED.items():
        module, _, name = path.rpartition(".")
        value = getattr(importlib.import_module(module), name)
        found[name] = (value, _public(value) if chosen is None else chosen)
    return found


def _public(cls: type) -> tuple[str, ...]:
    left_out = OF_THE_SERVICE.get(f"{cls.__module__}.{cls.__qualname__}", ())
    package = cls.__module__.partition(".")[0]
    bases = [base for base in reversed(cls.__mro__) if base.__module__.partition(".")[0] == package]
    return tuple(
        name for name, value in {name: value for base in bases for name, value in vars(base).items()}.items()
        if (not name.startswith("_") or name in SPECIAL) and name not in left_out and _function(value) is not None
    )  # fmt: skip


def _function(value: object) -> Any:
    """Returns the function of a method, a property or a static method; None for what is none."""
    inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
    return inner if inspect.isfunction(inner) else None


def entries() -> Iterator[Entry]:
    """Yields functions, then classes with their members, in the order of their definitions."""
    for name in hybrid.__all__:
        value = getattr(hybrid, name)
        if inspect.isfunction(value):
            yield Entry(f"hybrid.{name}", 2, *_described(value, f"hybrid.{name}", False))
    for shown, (cls, members) in classes().items():
        yield Entry(shown, 2, _class_signature(cls, shown), inspect.cleandoc(cls.__doc__ or ""), _fields(cls))
        for name in members:
            raw = inspect.getattr_static(cls, name)
            function = _function(raw)
            if function is None:
                raise LookupError(f"{shown} has no method {name}")
            short = f"{shown.removeprefix('hybrid.')}.{name}"
            if isinstance(raw, property):
                returned = function.__annotations__.get("return", "Any")
                yield Entry(short, 3, f"{name}: {returned}", inspect.cleandoc(function.__doc__ or ""))
            else:
                yield Entry(short, 3, *_described(function, name, not isinstance(raw, staticmethod)))


def _described(function: Any, name: str, method: bool) -> tuple[str, str, tuple[str, ...]]:
    signature, parameters = _signature(function, name, method)
    return signature, inspect.cleandoc(function.__doc__ or ""), parameters


def _fields(cls: type) -> tuple[str, ...]:
    """Returns the attributes that a docstring may explain: fields, or slots."""
    named = inspect.get_annotations(cls) or getattr(cls, "__slots__", ()) or ("plan", "schema", "patterns")
    return tuple(name for name in named if not name.startswith("_"))


def _class_signature(cls: type, shown: str) -> str:
    """Returns how a class is made, where users make it, else its fields with their types."""
    if shown == "hybrid.Shed":
        return _signature(cls, shown, False)[0]
    head = f"class {shown}" + "".join(f"({base.__name__})" for base in cls.__bases__ if base is not object)
    fields = [f"    {n}: {t}" for n, t in inspect.get_annotations(cls).items() if not n.startswith("_")]
    return "\n".join([head, *fields])


def markdown(docstring: str, parameters: tuple[str, ...]) -> str:
    """Returns a docstring as Markdown: a list item for each parameter that it explains, `name: what it is`."""
    name = "|".join(map(re.escape, parameters))
    starts = re.compile(rf"(?:^|(?<=[.;)] ))((?:{name})(?:, (?:{name}))*): ") if parameters else None
    parts = []
    for paragraph in re.split(r"\n\s*\n", docstring):
        if re.match(r" {4}", paragraph):
            parts.append(f"```python\n{inspect.cleandoc(paragraph)}\n```")
            continue
        text = re.sub(r"\s*\n\s*", " ", paragraph.strip())
        pieces = starts.split(text) if starts else [text]
        lead, items = pieces[0].strip(), []
        for name, said in zip(pieces[1::2], pieces[2::2]):
            what, *after = re.split(r"(?<=[.;)]) (?=(?:Returns|Raises|Warns) )", said.strip(), maxsplit=1)
            items.append(f"- **{name}**: {_escaped(what.removesuffix(';'))}")
            items += ["", *map(_escaped, after), ""] if after else []
        parts += [_escaped(lead)] * bool(lead) + ["\n".join(items)] * bool(items)
    return "\n\n".join(parts)


def _escaped(text: str) -> str:
    """Returns a text with the characters escaped that Markdown would read, outside of backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if i % 2 else re.sub(r"([*_<>\[\]|#])", r"\\\1", part) for i, part in enumerate(parts))


def rendered() -> str:
    """Returns the page."""
    names = ", ".join(f"[`{n}`](#{anchor(f'hybrid.{n}')})" for n in hybrid.__all__ if n != "__version__")
    parts = [HEAD.format(names=f"{names} and `__version__`")]
    for entry in entries():
        parts.append(f"{'#' * entry.level} {entry.name.replace('__', chr(92) + '_' + chr(92) + '_')}\n")
        parts.append(f"```python\n{entry.signature}\n```\n")
        parts.append(markdown(entry.docstring, entry.parameters) + "\n")
    return "\n".join(parts)


def anchor(heading: str) -> str:
    """Returns what a link to a heading has after `#`."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


if __name__ == "__main__":
    sys.stdout.write(rendered())

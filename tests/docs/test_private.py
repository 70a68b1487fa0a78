"""Tests and benchmarks read private names of the room they are about, and of no other: a room may change what it hides.

A room is a package, or a folder of `hybrid`; tests/live is about `live`, tests/hybrid/watch about `hybrid.watch`.
tests/hybrid/inside.py is the one place for what tests of other rooms need of a database.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_imports import PACKAGES, ROOT

OUTSIDE = ("tests", "benchmarks")
INSIDE = "tests/hybrid/inside.py"
PRIVATE = re.compile(r"_[a-zA-Z]\w*(?<!_)")
PRIVATE_WORD = re.compile(rf"\b{PRIVATE.pattern}")
#: Of named tuples, of the standard library and of pyspark.
OTHERS = ("_replace", "_fields", "_exit", "_gateway")
#: Calls whose string arguments name attributes, or paths to them.
BY_NAME = ("setattr", "getattr", "delattr", "hasattr", "patch", "object")


def room_of(path: Path) -> str:
    """Returns the room of a file, whose path is relative to its package's or the tests' parent."""
    parts = path.parts[1:] if path.parts[0] == "tests" else path.parts
    return ".".join(parts[:2] if parts[0] == "hybrid" and len(parts) > 2 else parts[:1])


def defined(tree: ast.AST) -> Iterator[str]:
    """Returns the private names that a file defines: functions, classes, variables and attributes."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name


def reached(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Returns the lines and names of what a file reads of others."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                continue
            case ast.Attribute(attr=name):
                yield node.lineno, name
            case ast.ImportFrom(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.Call(func=ast.Name(id=by) | ast.Attribute(attr=by), args=args) if by in BY_NAME:
                for arg in args:
                    if isinstance(arg, ast.Constant) and isinstance(arg.value, str):
                        yield arg.lineno, arg.value.rpartition(".")[2]


def foreign(root: Path) -> list[str]:
    """Returns the places where a test or benchmark reads a private name of another room."""
    rooms = defaultdict(set)
    for package in PACKAGES:
        for path in (root / package).rglob("*.py"):
            for name in defined(ast.parse(path.read_text(encoding="utf-8"))):
                rooms[name].add(room_of(path.relative_to(root)))
    found = []
    for folder in OUTSIDE:
        for path in sorted((root / folder).rglob("*.py")):
            place, text = path.relative_to(root), path.read_text(encoding="utf-8")
            if not any(name in rooms and name not in OTHERS for name in PRIVATE_WORD.findall(text)):
                continue  # nothing to look for
            tree = ast.parse(text)
            own = {*defined(tree)}
            for line, name in reached(tree):
                hidden = PRIVATE.fullmatch(name) and name in rooms and name not in own and name not in OTHERS
                if hidden and room_of(place) not in rooms[name] and str(place) != INSIDE:
                    found.append(f"{place}:{line}: {name} of {', '.join(sorted(rooms[name]))}")
    return found


@pytest.mark.slow
def test_no_private_name_of_another_room_is_read() -> None:
    # Before: tests of `hybrid` and `live` read what `archive` hides, and benchmarks what a database hides.
    assert foreign(ROOT) == []


@pytest.mark.parametrize(("place", "text", "found"), [
    ("tests/live/test_a.py", "table._commit()\n", ["tests/live/test_a.py:1: _commit of archive"]),
    ("tests/live/test_a.py", "Table._commit = print\n", ["tests/live/test_a.py:1: _commit of archive"]),
    ("tests/live/test_a.py", "from archive.table import _sync\n", ["tests/live/test_a.py:1: _sync of archive"]),
    ("tests/live/test_a.py", "patch.setattr('archive.table._sync', 1)\n", ["tests/live/test_a.py:1: _sync of archive"]),
    ("tests/hybrid/watch/test_a.py", "db._flow\n", ["tests/hybrid/watch/test_a.py:1: _flow of hybrid.database"]),
    ("benchmarks/a.py", "db._flow\n", ["benchmarks/a.py:1: _flow of hybrid.database"]),
    ("tests/archive/test_a.py", "table._commit()\n", []),
    ("tests/hybrid/database/test_a.py", "db._flow\n", []),
    (INSIDE, "db._flow\n", []),
    ("tests/live/test_a.py", "class Own:\n    def _commit(self):\n        self._commit()\nOwn()._commit()\n", []),
    ("tests/live/test_a.py", "event._replace(x=1), value._of_a_library\n", []),
])  # fmt: skip
def test_a_private_name_of_another_room_is_found(tmp_path: Path, place: str, text: str, found: list[str]) -> None:
    for path, written in {
        "archive/table.py": "class Table:\n    def _commit(self): ...\ndef _sync(): ...\n",
        "hybrid/database/database.py": "class Database:\n    def __init__(self):\n        self._flow = 1\n",
        place: text,
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(written)
    assert foreign(tmp_path) == found

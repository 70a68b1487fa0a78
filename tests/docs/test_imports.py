"""Imports between modules have no circle, wherever in a file they stand: at its top, in a function, or for types. And
one module makes the databases of DuckDB."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGES = ("query", "matching", "live", "archive", "simulator", "hybrid")


def modules(root: Path) -> dict[str, Path]:
    """The files of the packages under `root`, by the names of their modules."""
    found = {}
    for package in PACKAGES:
        for path in (root / package).rglob("*.py"):
            parts = path.relative_to(root).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of ours that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                if whole in known or node.module in known:
                    yield whole if whole in known else node.module


def circle(root: Path) -> list[str] | None:
    """The modules of a circle, the first also at the end, or None."""
    known = modules(root)
    # the face of the whole package loads what it is asked for: it is a name of the top, not of a floor
    graph = {name: set(imports(path, known)) - {name} for name, path in known.items() if name != "hybrid"}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


@pytest.mark.slow
def test_no_module_imports_itself_by_others() -> None:
    assert circle(ROOT) is None
    assert len(modules(ROOT)) > 200


def test_a_circle_is_found(tmp_path: Path) -> None:
    for name, text in {"a": "from query import b\n", "b": "def f():\n    from query.a import g\n"}.items():
        (tmp_path / "query").mkdir(exist_ok=True)
        (tmp_path / f"query/{name}.py").write_text(text)
    assert set(circle(tmp_path) or ()) == {"query.a", "query.b"}


def test_databases_of_duckdb_are_made_in_one_place() -> None:
    made = [name for name, path in modules(ROOT).items() if "duckdb.connect(" in path.read_text(encoding="utf-8")]
    assert made == ["query.language.duck"]

"""A word means one thing: no two modules have a public class of the same name."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

from tests.docs.test_imports import ROOT, modules


def defined_twice(root: Path) -> dict[str, list[str]]:
    """Returns the names of public classes at the top of several modules, with these modules."""
    found = defaultdict(list)
    for module, path in sorted(modules(root).items()):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(module)
    return {name: places for name, places in found.items() if len(places) > 1}


@pytest.mark.slow
def test_no_two_classes_have_one_name() -> None:
    # Before: four classes Counters, three Found, four Table; a reader had to look up the import of each.
    assert defined_twice(ROOT) == {}


@pytest.mark.parametrize(("second", "twice"), [
    ("class Rows:\n    pass\n", {"Rows": ["matching.a", "query.b"]}),
    ("class _Rows:\n    pass\n", {}),
    ("def f():\n    class Rows:\n        pass\n", {}),
])  # fmt: skip
def test_a_name_that_is_defined_twice_is_found(tmp_path: Path, second: str, twice: dict[str, list[str]]) -> None:
    (tmp_path / "matching").mkdir()
    (tmp_path / "query").mkdir()
    (tmp_path / "matching" / "a.py").write_text("class Rows:\n    pass\n")
    (tmp_path / "query" / "b.py").write_text(second)
    assert defined_twice(tmp_path) == twice

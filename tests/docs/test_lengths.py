"""A long file or function is one idea, and its docstring says why it is long, in a line that begins with `Long:`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.test_imports import PACKAGES, ROOT

FILE_LINES_MAX = 600
#: Without the docstring. A step of a kernel is one pass over rows, and calls cost.
FUNCTION_LINES_MAX = 80
KERNEL_LINES_MAX = 150


def says_why(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return "Long: " in (ast.get_docstring(node) or "")


def length(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Returns the number of lines of a function without its docstring."""
    said = 0
    if ast.get_docstring(node) is not None:
        said = (node.body[0].end_lineno or 0) - node.body[0].lineno + 1
    return (node.end_lineno or 0) - node.lineno + 1 - said


def long_without_a_word(root: Path) -> Iterator[str]:
    """Returns the files and functions of the packages that are long and do not say why."""
    for package in (*PACKAGES, "benchmarks"):
        for path in sorted((root / package).rglob("*.py")):
            text, place = path.read_text(encoding="utf-8"), path.relative_to(root).as_posix()
            tree = ast.parse(text)
            if len(text.splitlines()) > FILE_LINES_MAX and not says_why(tree):
                yield place
            most = KERNEL_LINES_MAX if place.startswith("matching/kernels/") else FUNCTION_LINES_MAX
            for node in ast.walk(tree):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    if length(node) > most and not says_why(node):
                        yield f"{place}: {node.name}"


@pytest.mark.slow
def test_what_is_long_says_why() -> None:
    # Before: nothing asked; four files of kernels and six functions said nothing, or not where it is looked for.
    assert set(long_without_a_word(ROOT)) == set()


@pytest.mark.parametrize(("text", "found"), [
    ("x = 1\n" * 601, ["query/a.py"]),
    ("x = 1\n" * 600, []),
    ('"""What it does.\n\nLong: one table.\n"""\n' + "x = 1\n" * 601, []),
    ("def f():\n" + "    x = 1\n" * 80, ["query/a.py: f"]),
    ("def f():\n" + "    x = 1\n" * 79, []),
    ('def f():\n    """What it does.\n\n    More.\n    """\n' + "    x = 1\n" * 79, []),
    ('def f():\n    """What it does. Long: a case for each."""\n' + "    x = 1\n" * 90, []),
])  # fmt: skip
def test_what_is_long_without_a_word_is_found(tmp_path: Path, text: str, found: list[str]) -> None:
    (tmp_path / "query").mkdir()
    (tmp_path / "query" / "a.py").write_text(text)
    assert list(long_without_a_word(tmp_path)) == found

"""The notebooks of docs/: their cells are run in order, and their outputs are kept in them.

`python -m tests.docs.notebook` runs them and writes what comes out. No Jupyter is needed for that: a cell is Python,
lines that begin with % are left out, and of its last expression is shown what a notebook would show.
"""

from __future__ import annotations

import ast
import base64
import io
import json
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from hybrid.rows.picture import Picture
from tests.docs.documents import ROOT

NOTEBOOKS = sorted((ROOT / "docs").glob("*.ipynb"))
#: Dots per inch of pictures, so that they are small files.
DPI = 60
#: The pictures of outputs that a page shows, the preferred one first, and the ends of their files.
PICTURES = {"image/svg+xml": "svg", "image/png": "png"}


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def executed(notebook: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """The outputs of each cell, in the format of notebooks; none for text. Runs all code in one new module."""
    variables: dict[str, Any] = {"__name__": "__main__"}
    return [
        _run("".join(cell["source"]), variables) if cell["cell_type"] == "code" else [] for cell in notebook["cells"]
    ]


def _run(source: str, variables: dict[str, Any]) -> list[dict[str, Any]]:
    tree = ast.parse("\n".join("" if line.startswith("%") else line for line in source.split("\n")))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with redirect_stdout(printed):
        exec(compile(tree, "cell", "exec"), variables)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), variables)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())})
    if value is not None:
        outputs.append({"output_type": "display_data", "metadata": {}, "data": _shown(value)})
    return outputs


def _shown(value: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {"text/plain": _lines(repr(value))}
    if isinstance(value, Picture):
        drawn = io.BytesIO()
        value.figure.savefig(drawn, format="png", dpi=DPI, metadata={"Software": None})
        shown["image/png"] = base64.b64encode(drawn.getvalue()).decode()
    if hasattr(value, "_repr_html_"):
        shown["text/html"] = _lines(value._repr_html_())
    return shown


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def page(notebook: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """Returns a notebook with its outputs as Markdown, and its pictures by file name, `NAME_1.png` and so on."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = {kind: "".join(lines) for kind, lines in output.get("data", {}).items()}
            kind = next((kind for kind in PICTURES if kind in data), None)
            if kind is not None:
                file = f"{name}_{len(pictures) + 1}.{PICTURES[kind]}"
                drawn = data[kind]
                pictures[file] = base64.b64decode(drawn) if kind == "image/png" else drawn.encode()
                parts.append(f"![What the cell draws]({file})")
            elif "text/html" in data:
                parts.append(f'<div class="notebook-output">{data["text/html"]}</div>')
            else:
                text = "".join(output.get("text", [])) or data["text/plain"]
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n", pictures


def main() -> None:
    for path in NOTEBOOKS:
        notebook = read(path)
        for number, (cell, outputs) in enumerate(zip(notebook["cells"], executed(notebook)), 1):
            if cell["cell_type"] == "code":
                cell["outputs"], cell["execution_count"] = outputs, number
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

"""The notebooks do what stands in them: run anew, they print the same and draw pictures of the same size."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib import image

from tests.docs.notebook import NOTEBOOKS, executed, read

#: A notebook is read in the repository, so it must not be large.
BYTES_MAX = 250_000


def picture(output: dict[str, Any]) -> np.ndarray | None:
    """The picture of an output, float (height, width, 4), or None."""
    data = output.get("data", {})
    return image.imread(io.BytesIO(base64.b64decode(data["image/png"]))) if "image/png" in data else None


def texts(output: dict[str, Any]) -> dict[str, Any]:
    """An output without its picture."""
    return output | {"data": {k: v for k, v in output.get("data", {}).items() if k != "image/png"}}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_what_stands_there_is_what_comes_out(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = read(path)
    for number, (cell, outputs) in enumerate(zip(notebook["cells"], executed(notebook)), 1):
        committed = cell.get("outputs", [])
        assert [texts(o) for o in outputs] == [texts(o) for o in committed], f"cell {number}"
        for now, then in zip(map(picture, outputs), map(picture, committed)):
            assert (now is None) == (then is None)
            if now is not None and then is not None:
                assert now.shape == then.shape
                # Lines and letters differ a little between versions; two of these pictures by 0.014 at least.
                assert np.abs(now - then).mean() < 0.012
    assert list(tmp_path.iterdir()) == []


def test_there_is_the_stock_story() -> None:
    assert [path.name for path in NOTEBOOKS] == ["stock_story.ipynb"]
    cells = read(NOTEBOOKS[0])["cells"]
    pictures = [o for cell in cells for o in cell.get("outputs", []) if picture(o) is not None]
    assert len(pictures) >= 4


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_links_and_size(path: Path) -> None:
    assert path.stat().st_size < BYTES_MAX
    text = "".join("".join(cell["source"]) for cell in read(path)["cells"] if cell["cell_type"] == "markdown")
    targets = [t for t in re.findall(r"\]\(([^)\s#]+)", text) if not t.startswith("http")]
    assert targets
    assert [t for t in targets if not (path.parent / t).exists()] == []

"""A picture: a matplotlib figure of its own, which a notebook shows and `save` writes, without pyplot."""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import Any

from hybrid.rows.words import counted
from query.errors import DataError, first_line
from query.extras import not_installed

#: Dots per inch of files, and of a picture in a notebook, where it is shown at INCH_POINTS.
FILE_DPI, NOTEBOOK_DPI, INCH_POINTS = 120, 144, 80


def new_figure(width: float, height: float) -> Any:
    """Returns an empty matplotlib figure of so many inches. It belongs to no window and to no list of open figures.
    Raises DataError without matplotlib."""
    try:
        import matplotlib.figure
    except ImportError:
        raise not_installed("plots need matplotlib", "plot") from None
    return matplotlib.figure.Figure(figsize=(width, height), layout="constrained")


class Picture:
    """A picture of matches, which a notebook shows.

    figure: the matplotlib figure, to change or to embed."""

    __slots__ = ("figure",)

    def __init__(self, figure: Any) -> None:
        self.figure = figure

    def save(self, path: str | os.PathLike[str]) -> Picture:
        """Writes the picture to a file, whose extension is the format (.png, .svg, .pdf), and returns the picture. The
        same picture is the same SVG. Raises DataError if the file cannot be written."""
        import matplotlib

        place = Path(path)
        svg = place.suffix == ".svg"
        try:
            with matplotlib.rc_context({"svg.hashsalt": "hybrid", "svg.fonttype": "none"}):
                self.figure.savefig(place, dpi=FILE_DPI, metadata={"Date": None} if svg else None)
            if svg:  # half as large, and the same where the fonts differ
                drawn = re.sub(r"(\d\.\d{2})\d+", r"\1", place.read_text(encoding="utf-8"))
                drawn = re.sub("font-family: '[^;]*sans-serif", "font-family: sans-serif", drawn)
                place.write_text(drawn, encoding="utf-8")
        except (OSError, ValueError) as error:
            hint = "check the directory, and that the name ends in .png, .svg or .pdf"
            raise DataError(f"{path} cannot be written: {first_line(error)}", hint) from None
        return self

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        # a PNG has the same size for ten events and for a million
        drawn = io.BytesIO()
        self.figure.savefig(drawn, format="png", dpi=NOTEBOOK_DPI)
        return drawn.getvalue(), {"width": int(self.figure.get_figwidth() * INCH_POINTS)}

    def __repr__(self) -> str:
        return f"<picture of {counted(len(self.figure.axes), 'panel')}: a notebook shows it, .save(path) writes it>"

"""The picture of the experiments of [SHARING]: the paper's figures 12 to 14."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

#: What an experiment changes, as a label.
LABELS = {
    "queries": "queries", "length": "types in the Kleene pattern", "depth": "Kleene patterns around each other",
    "kleene": "share of Kleene queries",
}  # fmt: skip


def panels(result: dict[str, Any]) -> list[tuple[str, str, str, dict[str, list[tuple[float, float]]]]]:
    """Returns title, labels of both axes, and by contender the points, of each panel for which there are results."""
    found = []
    for experiment, titles in {
        "1": ("cpu_latency_ms", "events_per_second"), "2": ("cpu_seconds",), "3": ("peak_bytes",),
    }.items():  # fmt: skip
        there = [r for r in result["results"] if r["experiment"] == experiment]
        for stream, by in dict.fromkeys((r["stream"], r["by"]) for r in there):
            for what in titles:
                lines: dict[str, list[tuple[float, float]]] = {}
                for r in there:
                    if (r["stream"], r["by"]) == (stream, by):
                        for name, told in r["contenders"].items():
                            if what in told:
                                lines.setdefault(name, []).append((r["x"], _value(what, told[what])))
                if lines:
                    found.append((f"Experiment {experiment}, {stream}", LABELS[by], _unit(what), lines))
    return found


def _value(what: str, told: Any) -> float:
    if what == "cpu_latency_ms":
        return float(told["mean"])
    return told / 2**20 if what == "peak_bytes" else float(told)


def _unit(what: str) -> str:
    return {
        "cpu_latency_ms": "mean latency, processor ms", "events_per_second": "events/s through all queries",
        "cpu_seconds": "processor seconds", "peak_bytes": "peak memory, MiB",
    }[what]  # fmt: skip


def draw(result: dict[str, Any], path: str) -> None:
    """Draws a panel for each figure. ImportError without matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    asked = panels(result)
    if not asked:
        raise ValueError("no results of the experiments 1, 2 or 3 to draw")
    across = min(3, len(asked))
    down = -(-len(asked) // across)
    figure = Figure(figsize=(4 * across, 3.2 * down), layout="constrained")
    places = figure.subplots(down, across, squeeze=False).ravel().tolist()
    for axes, (title, x, y, lines) in zip(places, asked):
        for name, points in lines.items():
            axes.plot(*zip(*points), marker="." if len(points) == 1 else None, label=name)
        axes.set(title=title, xlabel=x, ylabel=y)
        axes.set_ylim(bottom=0)
        axes.locator_params(nbins=5)
        if axes is places[0] or len(lines) > len(places[0].get_lines()):
            axes.legend(fontsize="small")
    for axes in places[len(asked) :]:
        axes.set_axis_off()
    with matplotlib.rc_context({"svg.hashsalt": "sharing", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)
    if path.endswith(".svg"):
        drawn = re.sub(r"(\d\.\d{2})\d+", r"\1", Path(path).read_text(encoding="utf-8"))
        drawn = re.sub("font-family: '[^;]*sans-serif", "font-family: sans-serif", drawn)
        Path(path).write_text(drawn, encoding="utf-8")  # half as large

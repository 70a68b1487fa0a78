"""The picture of the experiments of [HIERARCHY]: the paper's figures 10 to 17."""

from __future__ import annotations

from typing import Any

Lines = dict[str, list[tuple[float, float]]]
#: What an experiment changes, as a label.
LABELS = {"layers": "layers", "length": "length of a layer", "within": "window, s", "events": "events"}
MEASURES = {"events_per_second": "events/s, processor", "peak_bytes": "peak memory, MiB"}


def panels(result: dict[str, Any]) -> list[tuple[str, str, str, Lines]]:
    """Returns title, labels of both axes, and by contender the points, of each panel for which there are results."""
    found = []
    for experiment in dict.fromkeys(r["experiment"] for r in result["results"]):
        there = [r for r in result["results"] if r["experiment"] == experiment]
        for figure in dict.fromkeys(r["figure"] for r in there):
            for what, label in MEASURES.items():
                lines: Lines = {}
                for r in there:
                    for name, told in r["contenders"].items() if r["figure"] == figure else ():
                        if what in told:
                            value = told[what] / 2**20 if what == "peak_bytes" else float(told[what])
                            lines.setdefault(name, []).append((r["x"], value))
                if lines:
                    found.append((f"Experiment {experiment}, {figure}", LABELS[there[0]["by"]], label, lines))
    return found


def draw(result: dict[str, Any], path: str) -> None:
    """Draws a panel for each figure, throughput on a logarithmic axis. ImportError without matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    asked = panels(result)
    if not asked:
        raise ValueError("no results to draw")
    across = min(4, len(asked))
    down = -(-len(asked) // across)
    figure = Figure(figsize=(3.6 * across, 2.9 * down), layout="constrained")
    places = figure.subplots(down, across, squeeze=False).ravel().tolist()
    for axes, (title, x, y, lines) in zip(places, asked):
        for name, points in lines.items():
            axes.plot(*zip(*points), "o-", label=name)
        axes.set(title=title, xlabel=x, ylabel=y)
        if y == MEASURES["events_per_second"]:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.legend(fontsize="small")
    for axes in places[len(asked) :]:
        axes.set_axis_off()
    with matplotlib.rc_context({"svg.hashsalt": "hierarchy"}):
        figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)

"""Pictures of the demos of layers: thieves as lanes over time, and delays of aircraft over a day."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from hybrid.rows.evidence_tree import EvidenceTree
from query.errors import DataError

Row = Mapping[str, Any]
HINT = "pip install -e '.[plot]' in the project's directory"
VISIT, ELSEWHERE, SUSPICIOUS, THEFT, RING = "tab:blue", "0.8", "tab:orange", "tab:red", "0.25"
AROUND = timedelta(minutes=12)


def draw_ring(
    layers: Mapping[str, pa.Table], row: int, path: str | os.PathLike[str], around: timedelta = AROUND
) -> Any:
    """Draws a ring of thieves: a lane for each person in that shop, with visits as bars, suspicious ones and thefts
    under them, and the ring around its three thefts. Returns the matplotlib figure.

    layers: the rows of visit, suspicious, theft and ring; row: of the ring. path: the file to save; its extension is
    the format. Raises DataError without matplotlib."""
    ring = layers["ring"].slice(row, 1).to_pylist()[0]
    since, until = ring["t0"] - around, ring["t1"] + around
    here = {
        name: [r for r in layers[name].to_pylist() if r["shop"] == ring["shop"] and since < r["t1"] and r["t0"] < until]
        for name in ("visit", "suspicious", "theft")
    }
    persons = list(dict.fromkeys(r["person"] for r in sorted(here["visit"], key=lambda r: r["t0"])))
    lane = {person: -i for i, person in enumerate(persons)}
    figure = _figure(9, 1.2 + 0.26 * len(persons))
    axes = figure.subplots()

    def bars(rows: Sequence[Row], colour: str, label: str, low: float, height: float) -> None:
        for i, r in enumerate(rows):
            axes.broken_barh(
                [(r["t0"], r["t1"] - r["t0"])], (lane[r["person"]] + low, height), color=colour,
                label=None if i else label, zorder=3,
            )  # fmt: skip

    bars([r for r in here["visit"] if r["shelf"] != ring["shelf"]], ELSEWHERE, "visit of another shelf", -0.1, 0.4)
    bars([r for r in here["visit"] if r["shelf"] == ring["shelf"]], VISIT, f"visit of {ring['shelf']}", -0.1, 0.4)
    bars(here["theft"], THEFT, "theft, to the exit", -0.38, 0.1)
    bars(here["suspicious"], SUSPICIOUS, "suspicious, to the corner", -0.25, 0.1)
    for r in here["theft"]:
        axes.plot([r["t1"]], [lane[r["person"]] - 0.33], marker="x", color=THEFT, markersize=6, zorder=4)
    thefts = _thefts_of(ring, here["theft"])
    low, high = (f(lane[r["person"]] for r in thefts) for f in (min, max))
    corners = [(ring["t0"], low - 0.5), (ring["t1"], low - 0.5), (ring["t1"], high + 0.5), (ring["t0"], high + 0.5)]
    xs, ys = zip(*corners, corners[0])
    axes.plot(xs, ys, color=RING, linewidth=1.2, linestyle="--", zorder=2, label="ring")
    for one, other in pairwise(thefts):
        axes.annotate(
            "", (other["t0"], lane[other["person"]] + 0.1), (one["t1"], lane[one["person"]] - 0.33),
            arrowprops={"arrowstyle": "->", "color": RING}, zorder=5,
        )  # fmt: skip
    axes.set_yticks(list(lane.values()), persons, fontsize="small")
    axes.set_xlim(since, until)
    title = f"{ring['shop']}, {ring['t0']:%d %B %Y}: {ring['first']}, {ring['second']} and {ring['third']}"
    axes.set_title(f"{title} at the {ring['shelf']} shelf", loc="left", fontsize="medium")
    return _saved(figure, axes, path)


def draw_delays(growth: pa.Table, day: EvidenceTree, path: str | os.PathLike[str]) -> Any:
    """Draws a bad day of departures: a line for each aircraft whose delay grew, and the waves at the three airports.
    Returns the matplotlib figure.

    growth: the rows of growing delays; day: the tree of a bad day, with its waves, and theirs. path: the file to save.
    Raises DataError without matplotlib."""
    figure = _figure(9, 4.2)
    axes = figure.subplots()
    of_wave = {(leaf.event["tailnum"], leaf.end): i for i, wave in enumerate(day.parts) for leaf in wave.parts
               if leaf.event is not None}  # fmt: skip
    since = day.begin - timedelta(hours=14)
    lines = [g for g in growth.to_pylist() if since <= g["began"] and g["ended"] <= day.end]
    colours = ("tab:blue", "tab:orange", "tab:green")
    for g in lines:
        i = of_wave.get((g["tailnum"], g["ended"]))
        axes.plot(
            [g["began"], g["went_on"], g["ended"]], [g["first_delay"], g["second_delay"], g["delay"]],
            color="0.8" if i is None else colours[i], marker="o", markersize=3, linewidth=1, zorder=2 + (i is not None),
        )  # fmt: skip
    top = max(g["delay"] for g in lines)
    for i, wave in enumerate(day.parts):
        event = wave.parts[0].event
        assert event is not None
        label = f"wave at {event['origin']}, {len(wave.parts)} aircraft"
        axes.axvspan(wave.begin, wave.end, color=colours[i], alpha=0.15, zorder=0, label=label)
        middle = wave.begin + (wave.end - wave.begin) / 2
        axes.text(middle, top * 1.08, str(event["origin"]), ha="center", fontsize="small")
    axes.plot([], [], color="0.8", marker="o", markersize=3, label="others")
    axes.plot([day.begin, day.end], [top * 1.2] * 2, color=RING, linewidth=1.5, marker="|", label="bad day")
    axes.set_ylim(top=top * 1.28)
    axes.set_ylabel("delay, minutes")
    axes.set_xlabel("time of departure, UTC")
    axes.set_title(f"{len(of_wave)} aircraft in three waves, {day.begin:%d %B %Y}", loc="left", fontsize="medium")
    return _saved(figure, axes, path)


def _thefts_of(ring: Row, thefts: Sequence[Row]) -> list[Row]:
    """Returns the thefts of a ring, in order."""
    inside = [r for r in thefts if r["shelf"] == ring["shelf"] and ring["t0"] <= r["t0"] and r["t1"] <= ring["t1"]]
    return [next(r for r in inside if r["person"] == ring[nth]) for nth in ("first", "second", "third")]


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DataError("plots need matplotlib, which is not installed", HINT) from None
    return Figure(figsize=(width, height), layout="constrained")


def _saved(figure: Any, axes: Any, path: str | os.PathLike[str]) -> Any:
    import matplotlib
    from matplotlib.dates import DateFormatter

    axes.xaxis.set_major_formatter(DateFormatter("%H:%M"))
    axes.grid(axis="x", alpha=0.2)
    figure.legend(loc="outside lower center", ncols=5, fontsize="small", frameon=False)
    place, svg = Path(path), str(path).endswith(".svg")
    place.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": place.stem, "svg.fonttype": "none"}):
        figure.savefig(place, dpi=120, metadata={"Date": None} if svg else None)
    if svg:
        drawn = re.sub(r"(\d\.\d{2})\d+", r"\1", place.read_text(encoding="utf-8"))
        drawn = re.sub("font-family: '[^;]*sans-serif", "font-family: sans-serif", drawn)
        place.write_text(drawn, encoding="utf-8")  # half as large
    return figure

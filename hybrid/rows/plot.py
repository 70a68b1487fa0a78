"""Plots of matches: the series over time, and the matched live and history events coloured by variable."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hybrid.rows.evidence import FIXED
from query.errors import DataError

LIKELY = ("close", "price", "value", "km", "speed")
HINT = "pip install -e '.[plot]' in the project's directory"


def plot_evidence(
    evidence: pa.Table,
    row: int | None = 0,
    value: str | None = None,
    path: str | os.PathLike[str] | None = None,
    context: pa.Table | None = None,
    time: str | None = None,
    title: str = "",
) -> Any:
    """Plots the events of one output row, or of all rows (None), and returns the matplotlib figure.

    evidence: as of Result.evidence() or Alerts.evidence(). value: the column of the y axis; by default a numeric one,
    or else a text column as categories. context: rows for a line behind the events, with the columns `time` and
    value. The x axis is the event time, or the offset if events have no time. path: the file to save; its extension
    is the format. Raises DataError without matplotlib, or if the row or the column does not exist.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise DataError("plots need matplotlib, which is not installed", HINT) from None
    rows = evidence if row is None else evidence.filter(pc.equal(evidence.column("row"), row))
    if not rows.num_rows:
        last = pc.max(evidence.column("row")).as_py()
        if last == -1:
            hint = "row=None plots all matches"
            raise DataError("output rows of this statement do not come from one match each", hint)
        raise DataError(
            f"row {row} has no evidence" if evidence.num_rows else "no match to plot",
            f"rows are 0 to {last}" if last is not None else "",
        )
    value = value or _likely(rows)
    if value is None or value not in rows.column_names:
        known = [c for c in rows.column_names if c not in FIXED]
        raise DataError(f"no column {value or 'of values'} to plot", f"set value= to one of {', '.join(known)}")
    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.subplots()
    timed = len(pc.unique(rows.column("event_time"))) > 1 or pc.max(rows.column("event_time")).value != 0
    axis = "event_time" if timed else "offset"
    line = rows if context is None else context
    when = line.column((time or axis) if context is not None else axis)
    when = (when.cast(pa.timestamp("us")) if timed else when).to_numpy()
    order = np.argsort(when, kind="stable")
    values = np.array(line.column(value).to_pylist())
    axes.plot(when[order], values[order], color="0.75", linewidth=1.2, zorder=1)
    joined = "pa" in rows.column("side").to_pylist()
    for side, marker, palette in (("pl", "o", "tab10"), ("pa", "s", "Dark2")):
        part = rows.filter(pc.equal(rows.column("side"), side))
        names = [v or "row" for v in part.column("variable").to_pylist()]
        for i, name in enumerate(dict.fromkeys(names)):
            at = np.flatnonzero([n == name for n in names])
            x = part.column(axis).to_numpy()[at]
            y = np.array(part.column(value).to_pylist(), dtype=None)[at]
            label = f"{'live' if side == 'pl' else 'history'}: {name}" if joined else name
            axes.scatter(x, y, s=42, marker=marker, color=_colour(palette, i), label=label, zorder=3)
    colours = {"pl": "tab:blue", "pa": "tab:green"}
    spans = rows.select(["match_id", "side", axis]).group_by(["match_id", "side"], use_threads=False)
    for span in spans.aggregate([(axis, "min"), (axis, "max")]).to_pylist():
        low, high = span[f"{axis}_min"], span[f"{axis}_max"]
        if low < high:
            axes.axvspan(low, high, color=colours[span["side"]], alpha=0.08, zorder=0)
    if not timed:
        axes.set_xlabel("row of the input")
    axes.set_ylabel(value)
    matches = len(pc.unique(rows.column("match_id")))
    axes.set_title(title or (f"match {rows['match_id'][0]}" if matches == 1 else f"{matches:,} matches"), loc="left")
    axes.legend(loc="best", fontsize="small")
    axes.grid(alpha=0.2)
    if path is not None:
        figure.savefig(path, dpi=120)
    return figure


def _numeric(table: pa.Table, column: str) -> bool:
    type = table.schema.field(column).type
    return pa.types.is_integer(type) or pa.types.is_floating(type)


def _likely(rows: pa.Table) -> str | None:
    """Returns the likely column of values: a well-known name, else a numeric one, else the last text one, or None."""
    own = [c for c in rows.column_names if c not in FIXED]
    numeric = [c for c in own if _numeric(rows, c)]
    named = [c for wanted in LIKELY for c in numeric if c.lower() == wanted]
    text = [c for c in own if pa.types.is_string(rows.schema.field(c).type)]
    return next(iter([*named, *numeric, *reversed(text)]), None)


def _colour(palette: str, i: int) -> Any:
    from matplotlib import colormaps

    colours = colormaps[palette].colors  # type: ignore[attr-defined]
    return colours[(i + (0 if palette == "tab10" else 3)) % len(colours)]

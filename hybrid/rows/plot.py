"""Plots of matches: the series over time, and the matched live and history events coloured by variable."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hybrid.rows.evidence import FIXED
from query.errors import DataError, first_line

LIKELY = ("close", "price", "value", "km", "speed")
#: Panels of one figure.
PANELS_MAX = 6
HINT = "pip install -e '.[plot]' in the project's directory"


def plot_evidence(
    evidence: pa.Table,
    row: int | None = 0,
    value: str | None = None,
    path: str | os.PathLike[str] | None = None,
    around: Callable[[pa.Table], pa.Table | None] | None = None,
    time: str | None = None,
    title: str = "",
    keys: Sequence[str] = (),
) -> Any:
    """Plots the events of one output row, or of all rows (None), and returns the matplotlib figure.

    evidence: as of Result.evidence() or Alerts.evidence(). value: the column of the y axis; by default a numeric one
    that is no key, or else a text column as categories. around: returns the rows for a line behind events, with the
    columns `time` and value. keys: the partition columns: they are in the title, and all rows have a panel for each
    partition, of the PANELS_MAX with most events. The x axis is the event time, or the offset if events have no time.
    path: the file to save; its extension is the format. Raises DataError without matplotlib, or if the row or the
    column does not exist.
    """
    try:
        import matplotlib
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
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
    keys = [k if k not in FIXED else f"{k}_" for k in keys]
    value = value or _likely(rows, keys)
    if value is None or value not in rows.column_names:
        known = [c for c in rows.column_names if c not in FIXED]
        raise DataError(f"no column {value or 'of values'} to plot", f"set value= to one of {', '.join(known)}")
    parts, more = _panels(rows, keys) if row is None else ([rows], 0)
    figure = Figure(figsize=(11, max(5, 2.2 * len(parts))), layout="constrained")
    timed = len(pc.unique(rows.column("event_time"))) > 1 or pc.max(rows.column("event_time")).value != 0
    colours = _Colours()
    panels = figure.subplots(len(parts), sharex=True, squeeze=False)[:, 0]
    for axes, part in zip(panels, parts):
        context = None if around is None else around(part)
        _draw(axes, part, value, context, time, timed, colours)
        axes.set_title(title or _title(part, keys, timed), loc="left", fontsize="medium")
    if timed:
        ticks = AutoDateLocator()
        panels[-1].xaxis.set_major_locator(ticks)
        panels[-1].xaxis.set_major_formatter(ConciseDateFormatter(ticks))
    else:
        panels[-1].set_xlabel("row of the input")
    if more:
        figure.supxlabel(f"and {more:,} partitions more", fontsize="small", x=0.99, ha="right")
    if path is not None:
        svg = str(path).endswith(".svg")  # the same bytes for the same plot
        try:
            with matplotlib.rc_context({"svg.hashsalt": "hybrid", "svg.fonttype": "none"}):
                figure.savefig(path, dpi=120, metadata={"Date": None} if svg else None)
        except (OSError, ValueError) as error:
            hint = "check the directory, and that the name ends in .png, .svg or .pdf"
            raise DataError(f"{path} cannot be written: {first_line(error)}", hint) from None
    return figure


def _panels(rows: pa.Table, keys: Sequence[str]) -> tuple[list[pa.Table], int]:
    """Returns the events of each partition, of those with most events, in the order of the rows; and how many are left
    out."""
    of = list(map(repr, zip(*(rows.column(k).to_pylist() for k in keys)))) if keys else [""] * rows.num_rows
    live = np.array(rows.column("side").to_pylist()) == "pl"
    partition = dict(zip(rows.column("row").to_numpy()[live].tolist(), np.array(of, object)[live].tolist()))
    of = [partition.get(r, o) if r >= 0 else o for r, o in zip(rows.column("row").to_pylist(), of)]  # with its history
    counts = Counter(of)
    chosen = {name for name, _ in counts.most_common(PANELS_MAX)}
    order = [name for name in dict.fromkeys(of) if name in chosen]
    return [rows.filter(pa.array([o == name for o in of])) for name in order], len(counts) - len(chosen)


def _title(rows: pa.Table, keys: Sequence[str], timed: bool) -> str:
    """Returns the key of events, the number of their matches, and their times."""
    live = rows.filter(pc.equal(rows.column("side"), "pl"))
    live = live if live.num_rows else rows
    matches = len(pc.unique(live.column("match_id")))
    of_one = [k for k in keys if len(pc.unique(live.column(k))) == 1]
    parts = [f"{'' if _is_text(live, k) else f'{k} '}{live.column(k)[0].as_py()}" for k in of_one]
    if matches > 1:
        parts.append(f"{matches:,} matches")
    if timed:
        low, high = (str(at.as_py()) for at in pc.min_max(live.column("event_time")).values())
        if low.endswith(" 00:00:00") and high.endswith(" 00:00:00"):
            low, high = low.removesuffix(" 00:00:00"), high.removesuffix(" 00:00:00")
        parts.append(low if low == high else f"{low} to {high}")
    return ", ".join(parts) or f"match {live['match_id'][0]}"


class _Colours:
    """The colours of variables, the same in all panels."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {"pl": [], "pa": []}

    def of(self, side: str, name: str) -> Any:
        from matplotlib import colormaps

        names = self._names[side]
        if name not in names:
            names.append(name)
        colours = colormaps["tab10" if side == "pl" else "Dark2"].colors  # type: ignore[attr-defined]
        return colours[(names.index(name) + (0 if side == "pl" else 3)) % len(colours)]


def _draw(
    axes: Any, rows: pa.Table, value: str, context: pa.Table | None, time: str | None, timed: bool, colours: _Colours
) -> None:
    """Draws events, and the line of `context` or of themselves behind them."""
    axis = "event_time" if timed else "offset"
    line = rows if context is None else context
    when = line.column((time or axis) if context is not None else axis)
    when = (when.cast(pa.timestamp("us")) if timed else when).to_numpy()
    values = _drawn(line, value)
    known = np.flatnonzero(values == values)  # the line goes on over nulls
    order = known[np.argsort(when[known], kind="stable")]
    # no line between texts: what would be halfway between two pages?
    style = {"linestyle": "none", "marker": "."} if values.dtype == object else {"linewidth": 1.2}
    axes.plot(when[order], values[order], color="0.75", zorder=1, **style)
    joined = "pa" in rows.column("side").to_pylist()
    for side, marker in (("pl", "o"), ("pa", "s")):
        part = rows.filter(pc.equal(rows.column("side"), side))
        names = [v or "row" for v in part.column("variable").to_pylist()]
        for name in dict.fromkeys(names):
            at = np.flatnonzero([n == name for n in names])
            x = part.column(axis).to_numpy()[at]
            y = _drawn(part, value)[at]
            label = f"{'live' if side == 'pl' else 'history'}: {name}" if joined else name
            axes.scatter(x, y, s=42, marker=marker, color=colours.of(side, name), label=label, zorder=3)
    shades = {"pl": "tab:blue", "pa": "tab:green"}
    spans = rows.select(["match_id", "side", axis]).group_by(["match_id", "side"], use_threads=False)
    for span in spans.aggregate([(axis, "min"), (axis, "max")]).to_pylist():
        low, high = span[f"{axis}_min"], span[f"{axis}_max"]
        if low < high:
            axes.axvspan(low, high, color=shades[span["side"]], alpha=0.08, zorder=0)
    axes.set_ylabel(value)
    axes.legend(loc="best", fontsize="small")
    axes.grid(alpha=0.2)


def _drawn(table: pa.Table, column: str) -> np.ndarray:
    """Returns the values of a column as matplotlib draws them: numbers, null as NaN, or texts."""
    values = table.column(column).to_pylist()
    if _numeric(table, column):
        return np.array([np.nan if v is None else v for v in values], np.float64)
    return np.array(["NULL" if v is None else str(v) for v in values], object)


def _is_text(table: pa.Table, column: str) -> bool:
    return bool(pa.types.is_string(table.schema.field(column).type))


def _numeric(table: pa.Table, column: str) -> bool:
    type = table.schema.field(column).type
    return pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type)


def _likely(rows: pa.Table, keys: Sequence[str]) -> str | None:
    """Returns the likely column of values: a well-known name, else a numeric one, else the last text one, or None. A
    key is none, unless there is nothing else."""
    own = [c for c in rows.column_names if c not in FIXED]
    others = [c for c in own if c not in keys]
    numeric = [c for c in others if _numeric(rows, c)]
    named = [c for wanted in LIKELY for c in numeric if c.lower() == wanted]
    text = [c for c in others if pa.types.is_string(rows.schema.field(c).type)]
    last = [c for c in own if _numeric(rows, c) or pa.types.is_string(rows.schema.field(c).type)]
    return next(iter([*named, *numeric, *reversed(text), *last]), None)

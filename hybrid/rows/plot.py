"""Plots of matches: the series over time, and the matched live and history events coloured by variable."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hybrid.rows.evidence import FIXED
from query.errors import DataError, first_line
from query.extras import not_installed

LIKELY = ("close", "price", "value", "km", "speed")
#: Panels of one figure.
PANELS_MAX = 6


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
        from matplotlib.text import Text
    except ImportError:
        raise not_installed("plots need matplotlib", "plot") from None
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
    zone = rows.schema.field("event_time").type.tz
    value = value or _likely(rows, keys)
    if value is None or value not in rows.column_names:
        known = [c for c in rows.column_names if c not in FIXED]
        raise DataError(f"no column {value or 'of values'} to plot", f"set value= to one of {', '.join(known)}")
    parts, more = _panels(rows, keys) if row is None else ([rows], 0)
    figure = Figure(figsize=(11, max(5, 2.2 * len(parts))), layout="constrained")
    timed = len(pc.unique(rows.column("event_time"))) > 1 or pc.max(rows.column("event_time")).value != 0
    colours = _Colours()
    contexts = [None if around is None else around(part) for part in parts]
    shown = [rows.select(["variable", *keys, value]), *(c.select([value]) for c in contexts if c is not None)]
    families, plain = _letters({*title, *_letters_of(shown)})
    panels = figure.subplots(len(parts), sharex=True, squeeze=False)[:, 0]
    for axes, part, context in zip(panels, parts, contexts):
        _draw(axes, part, value, context, time, timed, colours, plain)
        axes.set_title(plain(title or _title(part, keys, timed)), loc="left", fontsize="medium")
    if timed:
        ticks = AutoDateLocator()
        panels[-1].xaxis.set_major_locator(ticks)
        panels[-1].xaxis.set_major_formatter(ConciseDateFormatter(ticks))
        panels[-1].set_xlabel("event time" if zone is None else f"event time, {zone}")
    else:
        panels[-1].set_xlabel("row of the input")
    if more:
        figure.supxlabel(f"and {more:,} partitions more", fontsize="small", x=0.99, ha="right")
    if families:
        for axes in panels:
            axes.tick_params(labelfontfamily=families)
        for text in figure.findobj(Text):
            text.set_fontfamily(families)
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
        low, high = (str(at.as_py()) for at in pc.min_max(_local(live.column("event_time"), None)).values())
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
    axes: Any, rows: pa.Table, value: str, context: pa.Table | None, time: str | None, timed: bool, colours: _Colours,
    plain: Callable[[str], str],
) -> None:  # fmt: skip
    """Draws events, and the line of `context` or of themselves behind them. plain: see `_letters`."""
    axis = "event_time" if timed else "offset"
    zone = rows.schema.field("event_time").type.tz
    rows = rows.set_column(rows.column_names.index("event_time"), "event_time", _local(rows["event_time"], zone))
    line = rows if context is None else context
    when = line.column((time or axis) if context is not None else axis)
    when = (_local(when, zone).cast(pa.timestamp("us")) if timed else when).to_numpy()
    values = _drawn(line, value, plain)
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
            y = _drawn(part, value, plain)[at]
            label = f"{'live' if side == 'pl' else 'history'}: {name}" if joined else name
            axes.scatter(x, y, s=42, marker=marker, color=colours.of(side, name), label=plain(label), zorder=3)
    shades = {"pl": "tab:blue", "pa": "tab:green"}
    spans = rows.select(["match_id", "side", axis]).group_by(["match_id", "side"], use_threads=False)
    for span in spans.aggregate([(axis, "min"), (axis, "max")]).to_pylist():
        low, high = span[f"{axis}_min"], span[f"{axis}_max"]
        if low < high:
            axes.axvspan(low, high, color=shades[span["side"]], alpha=0.08, zorder=0)
    axes.set_ylabel(plain(value))
    axes.legend(loc="best", fontsize="small")
    axes.grid(alpha=0.2)


def _local(times: pa.ChunkedArray, zone: str | None) -> pa.ChunkedArray:
    """Returns times as a clock of the time zone shows them. zone: that of times without one, which are UTC; None: they
    stay as they are."""
    own = getattr(times.type, "tz", None)  # a DATE has none
    if own is None and (zone is None or not pa.types.is_timestamp(times.type)):
        return times
    return pc.local_timestamp(times if zone is None else times.cast(pa.timestamp("us", zone)))


def _letters_of(tables: Sequence[pa.Table]) -> set[str]:
    """Returns the letters of the names and texts of tables."""
    texts = [name for table in tables for name in table.column_names]
    for column in (column for table in tables for column in table.columns if not _is_number(column.type)):
        texts += map(str, pc.unique(column).to_pylist())
    return set().union(*texts)


def _letters(letters: Collection[str]) -> tuple[list[str], Callable[[str], str]]:
    """Returns the fonts that have these letters, none if the usual one has them; and what makes a text of letters that
    can be drawn: of others, which would be boxes and warnings, it writes the codes."""
    import matplotlib
    from matplotlib.font_manager import FontProperties, fontManager, get_font

    usual = get_font(fontManager.findfont(FontProperties())).get_charmap()
    missing = {letter for letter in letters if letter.isprintable() and ord(letter) not in usual}
    families: list[str] = []
    for font in fontManager.ttflist if missing else ():
        if font.name.startswith("Last Resort"):  # a box for every letter
            continue
        with suppress(OSError, RuntimeError):
            here = get_font(font.fname).get_charmap()
            found = {letter for letter in missing if ord(letter) in here}
            families += [font.name] if found else []
            missing -= found
    missing |= {letter for letter in letters if not letter.isprintable()}
    codes = {ord(letter): letter.encode("unicode_escape").decode() for letter in missing} | {ord("$"): r"\$"}
    usual_families = matplotlib.rcParams["font.family"]
    return [*usual_families, *families] if families else [], lambda text: text.translate(codes)


def _drawn(table: pa.Table, column: str, plain: Callable[[str], str]) -> np.ndarray:
    """Returns the values of a column as matplotlib draws them: numbers, null as NaN, or texts."""
    values = table.column(column).to_pylist()
    if _numeric(table, column):
        return np.array([np.nan if v is None else v for v in values], np.float64)
    return np.array(["NULL" if v is None else plain(str(v)) for v in values], object)


def _is_text(table: pa.Table, column: str) -> bool:
    return bool(pa.types.is_string(table.schema.field(column).type))


def _numeric(table: pa.Table, column: str) -> bool:
    return _is_number(table.schema.field(column).type)


def _is_number(type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type))


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

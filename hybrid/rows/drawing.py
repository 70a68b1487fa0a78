"""How matches are drawn: panels on one axis of time, or lanes of a timeline, with one legend."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from query.plan import pattern
from query.plan.plan import Plan

OTHERS = "other events"
#: Letters of a line of the legend, and of a key or category.
LINE_LETTERS, KEY_LETTERS = 170, 28
#: With more events marks are small.
MANY = 300
#: Names of categories at most.
NAMES_MAX = 15
Span = tuple[float, float]


def text_of(value: object) -> str:
    return "NULL" if value is None else str(value)


def short(text: str) -> str:
    return text if len(text) <= KEY_LETTERS else f"{text[: KEY_LETTERS - 9]}…{text[-8:]}"


def us_of(table: pa.Table) -> np.ndarray:
    """Returns the times of events in microseconds."""
    return np.asarray(table.column("event_time").cast(pa.timestamp("us")).cast(pa.int64()).to_numpy())


def is_text(table: pa.Table, column: str) -> bool:
    return bool(pa.types.is_string(table.schema.field(column).type))


def is_numeric(table: pa.Table, column: str) -> bool:
    return is_a_number(table.schema.field(column).type)


def is_a_number(type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type))


@dataclass(slots=True)
class Panel:
    """One partition. context: the rows around its events."""

    title: str
    events: pa.Table
    context: pa.Table | None


@dataclass(slots=True)
class Drawing:
    """What the panels of a figure share: axes, colours, letters and the legend."""

    rows: pa.Table
    shown: list[Panel]
    kind: str
    value: str | None
    plan: Plan | None
    colours: dict[tuple[str, str], Any] = field(default_factory=dict)
    legend: dict[str, Any] = field(default_factory=dict)
    families: list[str] = field(default_factory=list)
    plain: Callable[[str], str] = str
    limits: list[float] = field(default_factory=list)
    categories: dict[str, int] = field(default_factory=dict)

    @property
    def timed(self) -> bool:
        times = self.rows.column("event_time")
        return len(pc.unique(times)) > 1 or pc.max(times).value != 0

    @property
    def zone(self) -> str | None:
        zone: str | None = self.rows.schema.field("event_time").type.tz
        return zone

    def x(self, table: pa.Table) -> np.ndarray:
        """Returns where events are on the x axis."""
        if not self.timed:
            return table.column("offset").to_numpy().astype(np.float64)
        return self.x_of(us_of(table))

    def x_of(self, us: Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns where times are on the x axis, which shows the clock of the time zone."""
        from matplotlib.dates import date2num

        at = pa.array(us, pa.int64())
        if self.zone is not None:
            at = pc.local_timestamp(at.cast(pa.timestamp("us", self.zone)))
        found = date2num(at.cast(pa.timestamp("us")).to_numpy(zero_copy_only=False))
        self.limits += [found.min(), found.max()] if len(found) else []
        return np.asarray(found, np.float64)

    def colour(self, side: str, name: str) -> Any:
        """Returns the colour of a variable, the same in all panels."""
        from matplotlib import colormaps

        if (side, name) not in self.colours:
            nth = sum(other == side for other, _ in self.colours)
            colours = colormaps["tab10" if side == "pl" else "Dark2"].colors  # type: ignore[attr-defined]
            self.colours[side, name] = colours[(nth + (0 if side == "pl" else 3)) % len(colours)]
        return self.colours[side, name]

    def letters(self, letters: Collection[str]) -> None:
        """Chooses the fonts for these letters."""
        self.families, self.plain = _letters(letters)

    def groups(self, events: pa.Table) -> Iterator[tuple[str, str, str, np.ndarray]]:
        """Yields the side, the variable, the label and the positions of the events of each variable."""
        joined = "pa" in self.rows.column("side").to_pylist()
        names = list(zip(events.column("side").to_pylist(), events.column("variable").to_pylist()))
        for side in ("pl", "pa"):
            for name in dict.fromkeys(v or "row" for s, v in names if s == side):
                at = np.flatnonzero([s == side and (v or "row") == name for s, v in names])
                label = f"{'live' if side == 'pl' else 'history'}: {name}" if joined else name
                yield side, name, self.plain(label), at

    def scatter(self, axes: Any, side: str, name: str, label: str, x: np.ndarray, y: np.ndarray) -> None:
        """Draws events of a variable, once each: pairs of matches share them."""
        points = np.unique(np.column_stack([x, y]), axis=0)
        dots = axes.scatter(
            points[:, 0], points[:, 1], s=14 if self.rows.num_rows > MANY else 42, marker="o" if side == "pl" else "s",
            color=self.colour(side, name), label=label, zorder=3,
        )  # fmt: skip
        self.legend.setdefault(label, dots)

    def bars(self, axes: Any, spans: Sequence[Span], y: Span | None, label: str, **look: Any) -> None:
        """Draws spans of time as bars on a lane, or over the height of the panel (None)."""
        if spans:
            place = {"transform": axes.get_xaxis_transform()} if y is None else {}
            bars = axes.broken_barh([(a, b - a) for a, b in spans], y or (0, 1), zorder=0, **place, **look)
            self.legend.setdefault(label, bars)

    def matches(self, axes: Any, events: pa.Table, y: Span | None = None) -> None:
        """Draws the matches of events as bars, and the waits of their absences."""
        table = pa.table({"match": events.column("match_id"), "side": events.column("side"), "x": self.x(events)})
        spans: dict[str, list[Span]] = {"pl": [], "pa": []}
        of_one = table.group_by(["match", "side"], use_threads=False).aggregate([("x", "min"), ("x", "max")])
        for one in of_one.to_pylist():
            if one["x_min"] < one["x_max"]:
                spans[one["side"]].append((one["x_min"], one["x_max"]))
        alpha = 0.08 if y is None else 0.3
        joined = bool(spans["pa"])
        self.bars(axes, spans["pl"], y, "live: match" if joined else "match", color="tab:blue", alpha=alpha)
        self.bars(axes, spans["pa"], y, "history: match", color="tab:green", alpha=alpha)
        for label, waits in self.waits(events).items():
            look = {"facecolor": "none", "edgecolor": "tab:red", "alpha": 0.45, "hatch": "///", "linewidth": 0}
            self.bars(axes, waits, y, self.plain(label), **look)

    def waits(self, events: pa.Table) -> dict[str, list[Span]]:
        """Returns the spans in which an absence at an edge of the pattern held: from the last event to the end of
        WITHIN, or from its begin to the first event; by label."""
        within = self.plan.within.interval_us if self.plan is not None and self.plan.within is not None else None
        if self.plan is None or within is None or not self.timed:
            return {}
        live = events.filter(pc.equal(events.column("side"), "pl"))
        ends = pa.table({"match": live.column("match_id"), "us": us_of(live)}).group_by("match", use_threads=False)
        found = ends.aggregate([("us", "min"), ("us", "max")])
        first, last = found.column("us_min").to_numpy(), found.column("us_max").to_numpy()
        spans = {}
        before, after = _edges(self.plan.pattern)
        if before:
            spans[f"no {' or '.join(before)}"] = (last - within, first)
        if after:
            spans[f"no {' or '.join(after)}"] = (last, first + within)
        return {name: list(zip(self.x_of(a).tolist(), self.x_of(b).tolist())) for name, (a, b) in spans.items()}

    # ---- panels

    def panels(self, figure: Any) -> None:
        """Draws a panel for each partition, on one axis of time."""
        n = len(self.shown)
        columns = 1 if n <= 6 else 2 if n <= 16 else 3
        lines = -(-n // columns)
        number = self.value is not None and is_numeric(self.rows, self.value)
        if not number:
            self.categories = self._categories()
        height = max(1.5, 0.4 + 0.24 * min(len(self.categories), NAMES_MAX))
        figure.set_size_inches(11, 5 if n == 1 else 1.1 + height * lines)
        axes = figure.subplots(lines, columns, sharex=True, sharey=not number or self._comparable(), squeeze=False)
        for i, (one, panel) in enumerate(zip(axes.flat, self.shown)):
            self._panel(one, panel)
            one.set_title(self.plain(panel.title), loc="left", fontsize="medium" if n == 1 else "small")
            one.xaxis.set_tick_params(labelbottom=i + columns >= n)
        for one in axes.flat[n:]:
            one.remove()
        named = axes[0, 0].set_ylabel if n == 1 else figure.supylabel
        named(self.plain(self.value or ""), fontsize="medium")

    def _panel(self, axes: Any, panel: Panel) -> None:
        from matplotlib.ticker import EngFormatter

        line = panel.events if panel.context is None else panel.context
        x, y = self.x(line), self._y(line)
        known = np.flatnonzero(y == y)  # the line goes on over nulls
        order = known[np.argsort(x[known], kind="stable")]
        style = {"linewidth": 1.2} if self.kind == "line" else {"linestyle": "none", "marker": ".", "markersize": 5}
        axes.plot(x[order], y[order], color="0.75", zorder=1, **style)
        at, values = self.x(panel.events), self._y(panel.events)
        for side, name, label, mine in self.groups(panel.events):
            self.scatter(axes, side, name, label, at[mine], values[mine])
        self.matches(axes, panel.events)
        if self.categories:
            step = -(-len(self.categories) // NAMES_MAX)
            names = [self.plain(short(name)) for name in self.categories]
            axes.set_yticks(range(0, len(names), step), names[::step])
            axes.margins(y=0.15)
        elif max(map(abs, axes.get_ylim())) >= 1e6:
            axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        else:
            axes.ticklabel_format(axis="y", useOffset=False)
        axes.grid(alpha=0.2)

    def _y(self, table: pa.Table) -> np.ndarray:
        """Returns the values as numbers: null is NaN, and so is a text that is no category."""
        values = table.column(self.value).to_pylist()
        if self.categories:
            return np.array([self.categories.get(text_of(v), np.nan) for v in values], np.float64)
        return np.array([np.nan if v is None else v for v in values], np.float64)

    def _categories(self) -> dict[str, int]:
        """Returns the texts of the y axis with their numbers: those of events, and if they are few, those around."""
        tables = [*(p.events for p in self.shown), *(p.context for p in self.shown if p.context is not None)]
        texts = [list(map(text_of, table.column(self.value).to_pylist())) for table in tables]
        names = list(dict.fromkeys(itertools.chain.from_iterable(texts)))
        if len(names) > NAMES_MAX:
            names = list(dict.fromkeys(itertools.chain.from_iterable(texts[: len(self.shown)])))
        return {name: i for i, name in enumerate(names)}

    def _comparable(self) -> bool:
        """True if one y axis shows each panel in a fifth of its height at least."""
        tables = [p.events if p.context is None else p.context for p in self.shown]
        with np.errstate(all="ignore"):
            ranges = [(np.nanmin(y), np.nanmax(y)) for y in map(self._y, tables) if (y == y).any()]
        if not ranges:
            return True
        whole = max(high for _, high in ranges) - min(low for low, _ in ranges)
        return all(high - low >= whole / 5 for low, high in ranges)

    # ---- timeline

    def timeline(self, figure: Any) -> None:
        """Draws a lane for each partition, or, of one partition, for each variable."""
        axes = figure.subplots()
        if len(self.shown) > 1:
            lanes = [self.plain(panel.title) for panel in self.shown]
            for i, panel in enumerate(self.shown):
                self._others(axes, panel, i)
                at = self.x(panel.events)
                for side, name, label, mine in self.groups(panel.events):
                    self.scatter(axes, side, name, label, at[mine], np.full(len(mine), float(i)))
                self.matches(axes, panel.events, (i - 0.3, 0.6))
        else:
            (panel,) = self.shown
            groups = list(self.groups(panel.events))
            lanes = ["match"]
            self.matches(axes, panel.events, (-0.3, 0.6))
            at = self.x(panel.events)
            for side, name, label, mine in groups:
                self.scatter(axes, side, name, label, at[mine], np.full(len(mine), float(len(lanes))))
                lanes.append(label + self._alike(panel.events, mine))
                self.legend.pop(label)
            if self._others(axes, panel, len(lanes)):
                lanes.append(OTHERS)
                self.legend.pop(OTHERS)
            axes.set_title(self.plain(panel.title), loc="left", fontsize="medium")
        axes.set_yticks(range(len(lanes)), lanes)
        axes.set_ylim(len(lanes) - 0.4, -0.6)
        axes.grid(axis="x", alpha=0.2)
        figure.set_size_inches(11, 1.5 + 0.42 * len(lanes))

    def _others(self, axes: Any, panel: Panel, lane: int) -> bool:
        """Draws the events around those of the matches on a lane. Returns False if there are none."""
        if panel.context is None:
            return False
        matched = set(zip(self.x(panel.events).tolist(), panel.events.column("offset").to_pylist()))
        around = zip(self.x(panel.context).tolist(), panel.context.column("offset").to_pylist())
        others = [x for x, offset in around if (x, offset) not in matched]
        if others:
            dots = axes.scatter(others, [lane] * len(others), s=12, color="0.6", zorder=2, label=OTHERS)
            self.legend.setdefault(OTHERS, dots)
        return bool(others)

    def _alike(self, events: pa.Table, at: np.ndarray) -> str:
        """Returns the value that all these events have, for the name of their lane."""
        values = {} if self.value is None else dict.fromkeys(events.column(self.value).take(pa.array(at)).to_pylist())
        return f": {self.plain(short(text_of(next(iter(values)))))}" if len(values) == 1 else ""

    # ---- the whole

    def finish(self, figure: Any) -> None:
        """Draws the axis of time and the legend, and sets the fonts."""
        from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
        from matplotlib.text import Text

        low, high = (min(self.limits), max(self.limits)) if self.limits else (0, 0)
        for axes in figure.axes:
            if self.timed:
                ticks = AutoDateLocator(minticks=3, maxticks=9)
                axes.xaxis.set_major_locator(ticks)
                axes.xaxis.set_major_formatter(ConciseDateFormatter(ticks))
            if low < high:
                axes.set_xlim(low - (high - low) / 50, high + (high - low) / 50)
            if axes.xaxis.get_tick_params()["labelbottom"]:
                clock = "event time" if self.zone is None else f"event time, {self.zone}"
                axes.set_xlabel(clock if self.timed else "row of the input")
        if self.legend:
            order = sorted(self.legend, key=lambda label: label == OTHERS)  # the last one
            most = max(1, LINE_LETTERS // (8 + max(map(len, order))))
            lines = -(-len(order) // most)
            figure.legend(
                [self.legend[label] for label in order], order, ncols=-(-len(order) // lines),
                loc="outside lower center", fontsize="small",
                frameon=False, handletextpad=0.4, columnspacing=1.6,
            )  # fmt: skip
        if self.families:
            for axes in figure.axes:
                axes.tick_params(labelfontfamily=self.families)
            for text in figure.findobj(Text):
                text.set_fontfamily(self.families)


def _edges(whole: pattern.RowPattern) -> tuple[list[str], list[str]]:
    """Returns the variables that are negated at the begin and at the end of a pattern."""
    parts = whole.parts if isinstance(whole, pattern.Sequence) else (whole,)
    taking = [i for i, part in enumerate(parts) if not isinstance(part, pattern.Negation)]
    before, after = (parts[: taking[0]], parts[taking[-1] + 1 :]) if taking else ((), ())
    return [n for p in before for n in pattern.negated(p)], [n for p in after for n in pattern.negated(p)]


def letters_of(tables: Sequence[pa.Table]) -> set[str]:
    """Returns the letters of the names and texts of tables."""
    texts = [name for table in tables for name in table.column_names]
    for column in (column for table in tables for column in table.columns if not is_a_number(column.type)):
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

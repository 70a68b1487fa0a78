"""Plots of matches: a series over time with its matched events coloured by variable, or events on a timeline."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hybrid.rows.evidence import FIXED
from hybrid.rows.picture import Picture, new_figure
from hybrid.rows.times import BadTime, duration_us
from query.errors import DataError
from query.plan import pattern
from query.plan.expression import Call, Column, Expression, Navigation, children, walk
from query.plan.plan import FactorPlan, Plan

LIKELY = ("close", "price", "value", "km", "speed")
KINDS = ("line", "points", "timeline")
#: Panels of a figure and lanes of a timeline without keys=, those with most matches; and of either with keys=.
PANELS_MAX, LANES_MAX, KEYS_MAX = 6, 20, 60
#: Keys in a hint.
KEYS_SHOWN = 8
OTHERS = "other events"
#: Letters of a line of the legend, and of a key or category.
LINE_LETTERS, KEY_LETTERS = 170, 28
#: With more events marks are small.
MANY = 300
#: Names of categories, and of keys in an error, at most.
NAMES_MAX = 15
EQUALITIES = {"=", "<>", "in", "is_distinct", "is_not_distinct", "is_null", "is_not_null"}
#: Rows of each key before and after matches of one moment.
NEIGHBOURS = 10
#: Before and after matches: a duration, a number of rows, or by the length of the matches (None).
Around = timedelta | int | None
Key = tuple[str, ...]
Span = tuple[float, float]


def plot_evidence(
    evidence: pa.Table,
    row: int | None = 0,
    value: str | None = None,
    path: str | os.PathLike[str] | None = None,
    *,
    keys: object = None,
    around: object = None,
    kind: str | None = None,
    between: Callable[[int, int], pa.Table] | None = None,
    plan: FactorPlan | None = None,
    title: str = "",
) -> Picture:
    """Draws the match of one output row, or all matches (None), and returns the picture.

    evidence: as of Result.evidence() or Alerts.evidence(). value, path, keys, around, kind: as of Result.plot. between:
    returns the rows between two times, in microseconds, in the columns of evidence. plan: has the partition columns,
    those that conditions read, and absences. title: of a single panel. The x axis is the event time, or the offset if
    events have no time. Raises DataError without matplotlib, or for an argument that names what is not there.
    """
    if keys is not None:
        if row:
            raise DataError(f"row {row} has one key", "leave out row= for all matches of keys=, or keys= for one match")
        row = None
    figure = new_figure(11, 5)
    rows = _rows(evidence, row)
    partition_by = [_column(c.name) for c in plan.plan.partition_by] if plan is not None else []
    kind, value = _chosen(rows, plan.plan if plan is not None else None, partition_by, kind, value)
    parts, count = _partitions(rows, partition_by, keys, LANES_MAX if kind == "timeline" else PANELS_MAX)
    contexts = _contexts(parts, partition_by, _around(around), between, plan)
    panels = [
        _Panel(_title(part, partition_by, len(parts) == 1), part, context)
        for part, context in zip(parts.values(), contexts)
    ]
    texts = [t.select([c for c in ("variable", *partition_by, value) if c in t.column_names])
             for p in panels for t in (p.events, p.context) if t is not None]  # fmt: skip
    drawing = _Drawing(rows, panels, kind, value, plan.plan if plan is not None else None)
    drawing.letters({*title, *"".join(p.title for p in panels), *_letters_of(texts)})
    if title:
        panels[0].title = title
    draw = drawing.timeline if kind == "timeline" else drawing.panels
    draw(figure)
    if len(parts) < count:
        most = ", those with most matches" if keys is None else ""
        said = f"{len(parts)} of {count:,} keys with matches{most}"
        figure.suptitle(said, x=0.01, ha="left", fontsize="medium")
    drawing.finish(figure)
    picture = Picture(figure)
    return picture if path is None else picture.save(path)


def _rows(evidence: pa.Table, row: int | None) -> pa.Table:
    """Returns the evidence of one row, or of all (None)."""
    rows = evidence if row is None else evidence.filter(pc.equal(evidence.column("row"), row))
    if rows.num_rows:
        return rows
    last = pc.max(evidence.column("row")).as_py()
    if last == -1:
        hint = "row=None plots all matches"
        raise DataError("output rows of this statement do not come from one match each", hint)
    raise DataError(
        f"row {row} has no evidence" if evidence.num_rows else "no match to plot",
        f"rows are 0 to {last}" if last is not None else "",
    )


def _column(name: str) -> str:
    """Returns the name that a column of the input has in evidence."""
    return name if name not in FIXED else f"{name}_"


def _around(around: object) -> Around:
    if around is None or (isinstance(around, int) and not isinstance(around, bool) and around >= 0):
        return around
    try:
        return timedelta(microseconds=duration_us(around, "around"))
    except BadTime as error:
        hint = "around= is a duration, such as '2 hours', or a number of rows, such as 10"
        raise DataError(f"around is {error.value!r}{error.reason}", hint) from None


# ---- what is drawn


def _chosen(
    rows: pa.Table, plan: Plan | None, keys: Sequence[str], kind: str | None, value: str | None
) -> tuple[str, str | None]:
    """Returns the kind of the plot and the column of its values, as given, or else as conditions read them: a number
    that they compare by size is a line, and texts and times are events on a timeline."""
    if kind is not None and kind not in KINDS:
        raise DataError(f"{kind!r:.60} is no kind of plot", f"kind= is one of {', '.join(KINDS)}")
    own = [c for c in rows.column_names if c not in FIXED]
    if value is not None and value not in own:
        raise DataError(f"no column {value} to plot", f"set value= to one of {', '.join(own)}")
    sizes, read = ([c for c in names if c in own and c not in keys] for names in _conditions(plan))
    numbers = [c for c in own if _numeric(rows, c)]
    if value is None:
        order = [_column(o.column.name) for o in plan.order_by] if plan is not None else []
        sized = [c for c in sizes if c in numbers]
        texts = [c for c in read if c not in numbers and _is_text(rows, c)]
        likely = sized or ([] if read and kind is None else [c for c in numbers if c not in (*keys, *order)])
        named = [c for wanted in LIKELY for c in likely if c.lower() == wanted]
        found = [*texts] if kind == "timeline" else [*named, *likely]
        found += [*texts, *(c for c in own if c not in keys and _is_text(rows, c))] if kind == "points" else []
        value = next(iter(found), None)
        if kind is None and value is None:
            return "timeline", next(iter(texts), None)
    kind = kind or ("line" if value in numbers else "points")
    if (kind == "line" and value not in numbers) or (kind == "points" and value is None):
        known = f"the numbers are {', '.join(numbers)}" if numbers else "there are none here"
        hint = "kind='timeline' draws events without values"
        raise DataError(f"kind={kind!r} draws a column of numbers, and {known}", hint)
    return kind, value


def _conditions(plan: Plan | None) -> tuple[list[str], list[str]]:
    """Returns the columns that conditions compare by size or compute with, and all columns that they read, in order."""
    if plan is None:
        return [], []
    conditions = [d.condition for d in plan.defines]
    sizes = [_column(name) for e in conditions for name in _sizes(e)]
    read = [_column(e.name) for condition in conditions for e in walk(condition) if isinstance(e, Column)]
    for box in plan.boxes:
        of_box = _conditions(box.plan)
        sizes, read = sizes + of_box[0], read + of_box[1]
    return list(dict.fromkeys(sizes)), list(dict.fromkeys(read))


def _sizes(expression: Expression, equality: bool = False) -> Iterator[str]:
    if isinstance(expression, Column) and not equality:
        yield expression.name
    below = isinstance(expression, Call) and expression.function in EQUALITIES
    for child in children(expression):
        yield from _sizes(child, below or (equality and isinstance(expression, Navigation)))


def _keys(table: pa.Table, names: Sequence[str]) -> list[str]:
    """Returns the key of each row as one text."""
    columns = [list(map(_text, table.column(name).to_pylist())) for name in names]
    return list(map(_joined, zip(*columns))) if columns else [_joined(())] * table.num_rows


def _joined(key: Iterable[str]) -> str:
    return "\0".join(key)


def _text(value: object) -> str:
    return "NULL" if value is None else str(value)


def _short(text: str) -> str:
    return text if len(text) <= KEY_LETTERS else f"{text[: KEY_LETTERS - 9]}…{text[-8:]}"


def _partitions(rows: pa.Table, names: Sequence[str], asked: object, most: int) -> tuple[dict[Key, pa.Table], int]:
    """Returns the events of each partition by key, history beside its live match: of those that are asked for, in that
    order, or of those with most matches; and how many partitions there are."""
    of = _keys(rows, names)
    numbers = rows.column("row").to_pylist()
    live = [side == "pl" for side in rows.column("side").to_pylist()]
    at = {number: key for number, key, mine in zip(numbers, of, live) if mine and number >= 0}
    of = [at.get(number, key) for number, key in zip(numbers, of)]
    matches: dict[str, set[str | None]] = {}
    for key, match, mine in zip(of, rows.column("match_id").to_pylist(), live):
        matches.setdefault(key, set()).update([match] if mine else [])
    by_count = sorted(matches, key=lambda key: -len(matches[key]))  # stable: equal ones stay in the order of the rows
    chosen = by_count[:most] if asked is None else [_joined(key) for key in _asked(asked, names, by_count)]
    array = np.array(of, object)
    return {tuple(key.split("\0")): rows.filter(pa.array((array == key).astype(bool))) for key in chosen}, len(matches)


def _asked(keys: object, names: Sequence[str], found: Sequence[str]) -> list[Key]:
    """Returns the keys that are asked for. Raises DataError if one has no match, or if there are too many."""
    if not names:
        raise DataError("there are no keys: the statement has no PARTITION BY, or several patterns", "leave out keys=")
    some = [keys] if isinstance(keys, str) or not isinstance(keys, Iterable) else list(keys)
    asked = [tuple(map(_text, k)) if isinstance(k, tuple | list) else (_text(k),) for k in some]
    shown = [", ".join(map(_short, key.split("\0"))) for key in found[:KEYS_SHOWN]]
    more = [f"... {len(found) - KEYS_SHOWN:,} more"] if len(found) > KEYS_SHOWN else []
    hint = f"keys with matches: {', '.join([*(f'({key})' if len(names) > 1 else key for key in shown), *more])}"
    for key in asked:
        if len(key) != len(names):
            raise DataError(f"a key has {len(names)} values, of {', '.join(names)}", f"keys= is a list of keys; {hint}")
        if _joined(key) not in found:
            raise DataError(f"no match has the key {', '.join(key)}", hint)
    if not 0 < len(asked) <= KEYS_MAX:
        raise DataError(f"{len(asked)} keys to plot", f"keys= lists 1 to {KEYS_MAX} of them; {hint}")
    return list(dict.fromkeys(asked))


def _contexts(
    parts: Mapping[Key, pa.Table], names: Sequence[str], around: Around,
    between: Callable[[int, int], pa.Table] | None, plan: FactorPlan | None,
) -> list[pa.Table | None]:  # fmt: skip
    """Returns the rows before, between and after the events of each partition."""
    if between is None:
        return [None] * len(parts)
    joined = plan is not None and any(plan.plan.schema.name.lower() in h.streams for h in plan.histories)
    times = [_us(part if joined else part.filter(pc.equal(part.column("side"), "pl"))) for part in parts.values()]
    whole = np.concatenate(times)
    if not len(whole):
        return [None] * len(parts)
    low, high = int(whole.min()), int(whole.max())
    around = NEIGHBOURS if around is None and low == high else around
    if isinstance(around, int):
        margin = 1 << 61
    else:
        margin = (high - low) // 2 if around is None else around // timedelta(microseconds=1)
    rows = between(low - margin, high + margin)
    of = np.array(_keys(rows, names), object)
    found: list[pa.Table | None] = []
    for key, mine in zip(parts, times):
        context = rows.filter(pa.array((of == _joined(key)).astype(bool)))
        if len(mine) and around is not None:
            at = _us(context)
            first, last = int(mine.min()), int(mine.max())
            wide = 0 if isinstance(around, int) else margin
            begin, end = np.searchsorted(at, first - wide), np.searchsorted(at, last + wide, side="right")
            more = around if isinstance(around, int) else 0
            start = max(0, int(begin) - more)
            context = context.slice(start, int(end) + more - start)
        found.append(context)
    return found


def _us(table: pa.Table) -> np.ndarray:
    """Returns the times of events in microseconds."""
    return np.asarray(table.column("event_time").cast(pa.timestamp("us")).cast(pa.int64()).to_numpy())


def _title(rows: pa.Table, keys: Sequence[str], alone: bool) -> str:
    """Returns the key of events, the number of their matches, and, if the panel is alone, their times."""
    live = rows.filter(pc.equal(rows.column("side"), "pl"))
    live = live if live.num_rows else rows
    matches = len(pc.unique(live.column("match_id")))
    of_one = [k for k in keys if len(pc.unique(live.column(k))) == 1]
    parts = [f"{'' if _is_text(live, k) else f'{k} '}{_short(_text(live.column(k)[0].as_py()))}" for k in of_one]
    if matches > 1 or not alone:
        parts.append(f"{matches:,} match{'' if matches == 1 else 'es'}")
    at = live.column("event_time")
    if alone and (len(pc.unique(at)) > 1 or pc.max(at).value):
        at = at if at.type.tz is None else pc.local_timestamp(at)
        low, high = (str(time.as_py()) for time in pc.min_max(at).values())
        if low.endswith(" 00:00:00") and high.endswith(" 00:00:00"):
            low, high = low.removesuffix(" 00:00:00"), high.removesuffix(" 00:00:00")
        parts.append(low if low == high else f"{low} to {high}")
    return ", ".join(parts) or f"match {live['match_id'][0]}"


# ---- how it is drawn


@dataclass(slots=True)
class _Panel:
    """One partition. context: the rows around its events."""

    title: str
    events: pa.Table
    context: pa.Table | None


@dataclass(slots=True)
class _Drawing:
    """What the panels of a figure share: axes, colours, letters and the legend."""

    rows: pa.Table
    shown: list[_Panel]
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
        return self.x_of(_us(table))

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
        ends = pa.table({"match": live.column("match_id"), "us": _us(live)}).group_by("match", use_threads=False)
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
        number = self.value is not None and _numeric(self.rows, self.value)
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

    def _panel(self, axes: Any, panel: _Panel) -> None:
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
            names = [self.plain(_short(name)) for name in self.categories]
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
            return np.array([self.categories.get(_text(v), np.nan) for v in values], np.float64)
        return np.array([np.nan if v is None else v for v in values], np.float64)

    def _categories(self) -> dict[str, int]:
        """Returns the texts of the y axis with their numbers: those of events, and if they are few, those around."""
        tables = [*(p.events for p in self.shown), *(p.context for p in self.shown if p.context is not None)]
        texts = [list(map(_text, table.column(self.value).to_pylist())) for table in tables]
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

    def _others(self, axes: Any, panel: _Panel, lane: int) -> bool:
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
        return f": {self.plain(_short(_text(next(iter(values)))))}" if len(values) == 1 else ""

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
            wide = 8 + max(map(len, order))
            figure.legend(
                [self.legend[label] for label in order], order, ncols=max(1, min(len(order), LINE_LETTERS // wide)),
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


def _is_text(table: pa.Table, column: str) -> bool:
    return bool(pa.types.is_string(table.schema.field(column).type))


def _numeric(table: pa.Table, column: str) -> bool:
    return _is_number(table.schema.field(column).type)


def _is_number(type: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type) or pa.types.is_floating(type) or pa.types.is_decimal(type))

"""Plots of matches: a series over time with its matched events coloured by variable, or events on a timeline."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hybrid.rows.drawing import Drawing, Panel, is_numeric, is_text, letters_of, short, text_of, us_of
from hybrid.rows.evidence import FIXED
from hybrid.rows.picture import Picture, new_figure
from hybrid.rows.times import BadTime, duration_us
from query.errors import DataError
from query.plan.expression import Call, Column, Expression, Navigation, children, walk
from query.plan.plan import FactorPlan, Plan

LIKELY = ("close", "price", "value", "km", "speed")
KINDS = ("line", "points", "timeline")
#: Panels of a figure and lanes of a timeline without keys=, those with most matches; and of either with keys=.
PANELS_MAX, LANES_MAX, KEYS_MAX = 6, 20, 60
#: Keys in a hint.
KEYS_SHOWN = 8
EQUALITIES = {"=", "<>", "in", "is_distinct", "is_not_distinct", "is_null", "is_not_null"}
#: Rows of each key before and after matches of one moment.
NEIGHBOURS = 10
#: Before and after matches: a duration, a number of rows, or by the length of the matches (None).
Around = timedelta | int | None
Key = tuple[str, ...]


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
        Panel(_title(part, partition_by, len(parts) == 1), part, context)
        for part, context in zip(parts.values(), contexts)
    ]
    texts = [t.select([c for c in ("variable", *partition_by, value) if c in t.column_names])
             for p in panels for t in (p.events, p.context) if t is not None]  # fmt: skip
    drawing = Drawing(rows, panels, kind, value, plan.plan if plan is not None else None)
    drawing.letters({*title, *"".join(p.title for p in panels), *letters_of(texts)})
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
    numbers = [c for c in own if is_numeric(rows, c)]
    if value is None:
        order = [_column(o.column.name) for o in plan.order_by] if plan is not None else []
        sized = [c for c in sizes if c in numbers]
        texts = [c for c in read if c not in numbers and is_text(rows, c)]
        likely = sized or ([] if read and kind is None else [c for c in numbers if c not in (*keys, *order)])
        named = [c for wanted in LIKELY for c in likely if c.lower() == wanted]
        found = [*texts] if kind == "timeline" else [*named, *likely]
        found += [*texts, *(c for c in own if c not in keys and is_text(rows, c))] if kind == "points" else []
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
    columns = [list(map(text_of, table.column(name).to_pylist())) for name in names]
    return list(map(_joined, zip(*columns))) if columns else [_joined(())] * table.num_rows


def _joined(key: Iterable[str]) -> str:
    return "\0".join(key)


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
    asked = [tuple(map(text_of, k)) if isinstance(k, tuple | list) else (text_of(k),) for k in some]
    shown = [", ".join(map(short, key.split("\0"))) for key in found[:KEYS_SHOWN]]
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
    times = [us_of(part if joined else part.filter(pc.equal(part.column("side"), "pl"))) for part in parts.values()]
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
            at = us_of(context)
            first, last = int(mine.min()), int(mine.max())
            wide = 0 if isinstance(around, int) else margin
            begin, end = np.searchsorted(at, first - wide), np.searchsorted(at, last + wide, side="right")
            more = around if isinstance(around, int) else 0
            start = max(0, int(begin) - more)
            context = context.slice(start, int(end) + more - start)
        found.append(context)
    return found


def _title(rows: pa.Table, keys: Sequence[str], alone: bool) -> str:
    """Returns the key of events, the number of their matches, and, if the panel is alone, their times."""
    live = rows.filter(pc.equal(rows.column("side"), "pl"))
    live = live if live.num_rows else rows
    matches = len(pc.unique(live.column("match_id")))
    of_one = [k for k in keys if len(pc.unique(live.column(k))) == 1]
    parts = [f"{'' if is_text(live, k) else f'{k} '}{short(text_of(live.column(k)[0].as_py()))}" for k in of_one]
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

"""Results in notebooks: an HTML table of the rows, each with the variables of its match in colour."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from html import escape
from itertools import groupby

import pyarrow as pa

from hybrid.rows.frames import python_columns
from query.printable import printable

#: Background colours for black text. A variable has one colour in the whole table.
COLOURS = ("#cfe2f3", "#fce5cd", "#d9ead3", "#ead1dc", "#fff2cc", "#d9d2e9", "#d0e0e3", "#f4cccc", "#e6e6e6", "#e2efda")
#: Most items shown of a list.
ITEMS_MAX = 8
#: Most runs of equal variables shown in a row.
CHIPS_MAX = 24


def cell(value: object) -> str:
    """Returns one value as tables print it, of a long list the first and the last items."""
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, list):
        items = [cell(v) for v in (value if len(value) <= ITEMS_MAX else value[: ITEMS_MAX - 1])]
        if len(value) > ITEMS_MAX:
            items += [f"... {len(value) - ITEMS_MAX:,} more", cell(value[-1])]
        return f"[{', '.join(items)}]"
    if isinstance(value, timedelta):
        return _duration(value)
    return printable(str(value))


def _duration(value: timedelta) -> str:
    """Returns the days and the time of a duration, each only where there is one, and each with its sign."""
    if value < timedelta(0):
        return ", ".join(f"-{part}" for part in _duration(-value).split(", "))
    return str(value).removesuffix(", 0:00:00")


def row_count(count: int, shown: int, note: str) -> str:
    """Returns the line under a table: the number of its rows, how many are shown, and a note if there is one."""
    said = f"{count:,} row{'' if count == 1 else 's'}" + (f", the first {shown} shown" if count > shown else "")
    return f"{said}. {note}" if note else said


def html_table(table: pa.Table, evidence: pa.Table | None, rows: int, note: str = "") -> str:
    """Returns an HTML table of the first rows.

    evidence: their events, as of Result.evidence(), None if they have none. If it assigns events to output rows, a last
    column has their variables in order (`A B\u00d73 C`), with times in the tooltip.
    """
    shown = table.slice(0, rows)
    chips = {} if evidence is None else _chips(evidence)
    names = [*map(printable, table.column_names), *(["match"] if chips else [])]
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    columns = python_columns(shown, shown=True)
    body = []
    for i in range(shown.num_rows):
        cells = [f"<td>{_value(column[i])}</td>" for column in columns]
        if chips:
            cells.append(f'<td style="text-align:left">{chips.get(i, "")}</td>')
        body.append(f"<tr>{''.join(cells)}</tr>")
    count = escape(row_count(table.num_rows, rows, note))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table><p>{count}</p>"


def _value(value: object) -> str:
    return '<span style="color:#999">NULL</span>' if value is None else escape(cell(value))


def _chips(evidence: pa.Table) -> dict[int, str]:
    """Returns the variables of each output row, as HTML."""
    rows = evidence.column("row").to_pylist()
    if not rows or rows[0] < 0:
        return {}
    sides, variables = evidence.column("side").to_pylist(), evidence.column("variable").to_pylist()
    labels = [v if v is not None else "row" for v in variables]
    colour = {name: COLOURS[i % len(COLOURS)] for i, name in enumerate(dict.fromkeys(zip(sides, labels)))}
    times = [str(t) for t in python_columns(evidence.select(["event_time"]), shown=True)[0]]
    found: dict[int, str] = {}
    for row, events in groupby(range(len(rows)), lambda e: rows[e]):
        runs = [list(run) for _, run in groupby(events, lambda e: (sides[e], labels[e]))]
        parts = [_chip(run, labels, colour[sides[run[0]], labels[run[0]]], times) for run in runs[:CHIPS_MAX]]
        found[row] = " ".join(parts) + (" \u2026" if len(runs) > CHIPS_MAX else "")
    return found


def _chip(run: Sequence[int], labels: Sequence[str], colour: str, times: Sequence[str]) -> str:
    first, last = run[0], run[-1]
    count = f"\u00d7{len(run)}" if len(run) > 1 else ""
    when = times[first] if first == last else f"{times[first]} to {times[last]}"
    style = f"background:{colour};color:#000;border-radius:3px;padding:0 4px"
    return f'<span style="{style}" title="{escape(when)}">{escape(labels[first])}{count}</span>'

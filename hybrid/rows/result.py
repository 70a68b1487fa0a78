"""Results of bounded statements: rows in any shape, EXPLAIN, evidence and plots."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hybrid.rows.answer import COMPLETE, Answer
from hybrid.rows.evidence import FIXED, Lookup, join_id, long_table, stacked
from hybrid.rows.evidence_tree import EvidenceTree, check_row, counts, tree_of
from hybrid.rows.faults import fault
from hybrid.rows.frames import (
    Given,
    distinct_names,
    in_zone,
    pandas_frame,
    polars_frame,
    python_columns,
    with_durations,
)
from hybrid.rows.html import cell, html_table, row_count
from hybrid.rows.words import PrintedText, counted
from matching.batch import Matches
from matching.emitted import ids_of_windows
from matching.identity import id_lanes, id_texts
from query.errors import DataError, public, width
from query.plan.fingerprint import fingerprint, fingerprint_of_rows
from query.plan.output import Outcome
from query.plan.plan import FactorPlan, Plan, QueryPlan
from query.printable import printable

if TYPE_CHECKING:
    import os

    import pandas
    import polars

    from hybrid.rows.picture import Picture

#: Rows printed by `show` and in a notebook.
SHOWN_ROWS = 20

#: The type of times that are shown in a time zone.
ZONED = "TIMESTAMP WITH TIME ZONE"
#: Lookups of one factor: for its live events, and for the events of each history join.
Lookups = tuple[Lookup, tuple[Lookup, ...]]

NOTHING_GIVEN = Given()


def _joined_ids(
    factor: FactorPlan, answer: Answer, at: np.ndarray
) -> tuple[list[str], list[str] | list[None], list[list[str]]]:
    """Returns three lists of ids for rows `at` of an answer.

    First, ids of live matches. Second, ids of joined rows, None without history joins. Third, for each history join the
    ids of the archive matches, only of rows that have one.
    """
    live_ids = answer.evidence.take(answer.match[at]).ids(fingerprint(factor.plan))
    if not factor.histories:
        return live_ids, [None] * len(at), []
    archive: list[list[str]] = []
    side_ids = []
    for history, side in zip(factor.histories, answer.sides):
        has = np.flatnonzero(side.match[at] >= 0)
        source = fingerprint_of_rows(history.schema.name) if history.plan is None else fingerprint(history.plan)
        ids = side.evidence.take(side.match[at][has]).ids(source)
        every = [""] * len(at)
        for i, name in zip(has, ids):
            every[i] = name
        archive.append(every)
        side_ids.append(ids)
    return live_ids, [join_id(*ids) for ids in zip(live_ids, *archive)], side_ids


def _complete(answer: Answer, at: np.ndarray) -> np.ndarray:
    complete = np.ones(len(at), bool)
    for side in answer.sides:
        complete &= side.complete[at]
    return complete


def ids_of_rows(plan: Plan, found: Sequence[Matches]) -> pa.Array:
    """Returns the match ids of the output rows of matches; null for timeouts, unmatched rows and empty matches that a
    release without ids for them has found."""
    lanes, has = [np.zeros((0, 2), np.int64)], [np.zeros(0, bool)]
    for m in found:
        ids, some = m.ids, np.ones(len(m), bool)
        if ids is None and plan.trends is not None:
            ids = ids_of_windows(plan, m.rows, fingerprint(plan))
        elif ids is None:
            ids = id_lanes(
                fingerprint(plan), m.event_bounds, m.event_variable, m.event_source, m.event_offset, m.variables,
                m.sources,
            )  # fmt: skip
            some = np.diff(m.event_bounds) > 0
            if m.outcome is not None:
                some &= m.outcome == Outcome.MATCH
        lanes.append(ids[m.row_match])
        has.append(some[m.row_match])
    known = np.concatenate(has)
    texts = id_texts(np.concatenate(lanes))
    return texts if known.all() else pc.if_else(pa.array(known), texts, pa.scalar(None, pa.string()))


def identities(factor: FactorPlan, answer: Answer, at: np.ndarray) -> dict[str, pa.Array]:
    """Returns the identity columns of rows `at`: match_id and, with history joins, join_id and history_complete."""
    live_ids, join_ids, _ = _joined_ids(factor, answer, at)
    found = {"match_id": pa.array(live_ids, pa.string())}
    if factor.histories:
        found |= {"join_id": pa.array(join_ids, pa.string()), COMPLETE: pa.array(_complete(answer, at))}
    return found


def evidence_table(
    plan: QueryPlan,
    answers: Sequence[Answer],
    sources: Sequence[np.ndarray] | None,
    lookups: Sequence[Lookups],
    rows: int | None = None,
    first: int = 0,
) -> pa.Table:
    """Returns the events of the output rows, one line per event, in the order of output rows, live before history.

    rows: only of the first `rows` output rows. first: number of the first output row. Columns: row (number of the
    output row; -1 if output rows have no single origin, and then all matches are listed), match_id, join_id (null
    without a history join), side (pl for live, pa for history), variable (null for plain history rows), event_time,
    source, offset, history_complete (null without a history join), then the event's own columns. Raises QueryError for
    rows of windows.
    """
    if any(factor.plan.trends is not None for factor in plan.factors):
        message = "rows of ONE ROW PER WINDOW have no evidence: they aggregate matches that are never found one by one"
        raise fault("HQ221", message, plan.text, "ask for ONE ROW PER MATCH to see the matches")
    parts: list[pa.Table] = []
    for f, (factor, answer, (lookup, side_lookups)) in enumerate(zip(plan.factors, answers, lookups)):
        at = (np.arange(len(answer)) if sources is None else sources[f])[:rows]
        row = np.full(len(at), -1, np.int64) if sources is None else np.arange(first, first + len(at))
        live_ids, join_ids, side_ids = _joined_ids(factor, answer, at)
        complete = [bool(c) for c in _complete(answer, at)] if factor.histories else [None] * len(at)
        live = answer.evidence.take(answer.match[at])
        parts.append(long_table(row, live_ids, join_ids, complete, "pl", live, lookup))
        for side, ids, side_lookup in zip(answer.sides, side_ids, side_lookups):
            has = np.flatnonzero(side.match[at] >= 0)
            found = side.evidence.take(side.match[at][has])
            mine, flags = [join_ids[i] for i in has], [complete[i] for i in has]
            parts.append(long_table(row[has], ids, mine, flags, "pa", found, side_lookup))
    whole = stacked(parts)
    if sources is None:
        return whole
    return whole.take(pa.array(np.argsort(whole.column("row").to_numpy(), kind="stable")))


def evidence_tables(
    plan: QueryPlan, parts: Iterable[Answer], sources: np.ndarray | None, lookups: Lookups, lines_max: int
) -> Iterator[pa.Table]:  # fmt: skip
    """Yields `evidence_table` of a query with one pattern in parts of about `lines_max` lines.

    parts: the rows of the pattern, one answer after the other. sources: ascending row numbers, see `Outer.sources`."""
    begin = first = 0
    for part in parts:
        at = np.arange(len(part))
        if sources is not None:
            stop = int(np.searchsorted(sources, begin + len(part)))
            at = sources[first:stop] - begin
        for some in _pieces(part, at, lines_max):
            yield evidence_table(plan, [part], None if sources is None else [some], [lookups], first=first)
            first += len(some)
        begin += len(part)


def _pieces(answer: Answer, at: np.ndarray, lines_max: int) -> Iterator[np.ndarray]:
    """Yields row numbers of an answer, so many at a time that they have about `lines_max` lines of evidence."""
    lines = np.diff(answer.evidence.bounds)[answer.match[at]]
    for side in answer.sides:
        has = side.match[at] >= 0
        lines[has] += np.diff(side.evidence.bounds)[side.match[at][has]]
    cuts = np.flatnonzero(np.diff(np.cumsum(lines) // lines_max)) + 1
    yield from (some for some in np.split(at, cuts) if len(some))


def series(lookup: Lookup, low_us: int, high_us: int) -> pa.Table:
    """Returns the events of [low_us, high_us] in the total order, in the columns of evidence: event_time, offset, and
    those of the event."""
    batch = lookup.between(low_us, high_us)
    table = pa.Table.from_batches([batch.columns])
    table = table.rename_columns([name if name not in FIXED else f"{name}_" for name in table.column_names])
    table = table.append_column("event_time", pa.array(batch.ts_us).cast(pa.timestamp("us")))
    return table.append_column("offset", pa.array(batch.offset))


class ShownRows:
    """Rows in memory, as an Arrow table: in any shape, and shown as a table by `print`, a shell and a notebook. given:
    what pandas and polars frames of the rows take over from those of the statement."""

    __slots__ = ("_given", "_table")

    def __init__(self, table: pa.Table, given: Given = NOTHING_GIVEN) -> None:
        self._table = table
        self._given = given

    def arrow(self) -> pa.Table:
        """Returns the rows as an Arrow table."""
        return self._table

    def df(self) -> pandas.DataFrame:
        """Returns the rows as a pandas frame. A HUGEINT is a float, as DuckDB has it, a BIGNUM an int of Python, an
        INTERVAL without months a duration; time zones and categories are those of the frames given. Needs pandas."""
        return pandas_frame(self._table, self._given)

    def pl(self) -> polars.DataFrame:
        """Returns the rows as a polars frame. An INTERVAL without months is a duration; time zones and enumerations are
        those of the frames given. Raises DataError for intervals with months. Needs polars."""
        return polars_frame(self._table, self._given)

    @property
    def _zoned(self) -> pa.Table:
        """The rows with their times in the time zone of the frames given."""
        return in_zone(self._table, self._given)

    def show(self, rows: int = SHOWN_ROWS) -> None:
        """Prints the first rows as a table, and the number of all rows. On a terminal: the columns that fit."""
        if not counts(rows):
            raise DataError(f"{rows!r:.60} is no number of rows", "show(50) prints the first 50")
        sys.stdout.write(text_table(self._zoned, rows, terminal_width(), self.why_empty()))
        sys.stdout.write("\n")

    def why_empty(self) -> str:
        """Returns why there are no rows, empty if that is not known."""
        return ""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return with_durations(self._zoned).__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __repr__(self) -> str:
        return text_table(self._zoned, SHOWN_ROWS, note=self.why_empty())

    def _repr_html_(self) -> str:
        return html_table(self._zoned, None, SHOWN_ROWS)


class ArrowRows(ShownRows):
    """Rows that are an Arrow table: they have all its methods and columns, and are shown as a table. What takes only a
    `pyarrow.Table` itself, such as `pyarrow.concat_tables` or `pyarrow.parquet.write_table`, takes `rows.arrow()`."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name in ShownRows.__slots__:
            raise AttributeError(name)  # of a copy that has no table yet
        return getattr(self._table, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *dir(self._table)})

    def __getitem__(self, key: Any) -> Any:
        return self._table[key]

    def __eq__(self, other: object) -> bool:
        return bool(self._table == (other.arrow() if isinstance(other, ShownRows) else other))

    __hash__ = None  # type: ignore[assignment]  # as of a table

    def equals(self, other: pa.Table | ShownRows, check_metadata: bool = False) -> bool:
        """True if the other table has the same columns and rows."""
        return bool(self._table.equals(other.arrow() if isinstance(other, ShownRows) else other, check_metadata))

    def __reduce__(self) -> tuple[type[ArrowRows], tuple[pa.Table]]:
        return ArrowRows, (self._table,)


@public
class Result(ShownRows):
    """The rows of a statement, in memory as an Arrow table, in the order of its outer ORDER BY.

    Iterates over the rows, has their number as len(), and can be read by anything with the Arrow PyCapsule protocol.
    Evidence is read from the input on first use, and kept. A pickle has the rows, and the evidence if it was read
    before. plan: the plan of the statement.
    """

    __slots__ = ("_around", "_at", "_evidence", "_explain", "_suppressed", "_whole", "_why_empty", "plan")

    def __init__(
        self,
        table: pa.Table,
        plan: QueryPlan,
        evidence: Callable[[int | None], pa.Table] | None,
        explain: Callable[[str], str],
        around: Callable[[int, int], pa.Table] | None,
        suppressed: pa.Table | None = None,
        given: Given = NOTHING_GIVEN,
        why_empty: Callable[[], str] | None = None,
    ) -> None:
        """evidence: returns `evidence_table` of the first n output rows, or of all (None); None: of a pickle. around:
        returns `series` between two times. given: what pandas and polars frames of the rows take over from those of the
        statement. why_empty: returns why there is no row."""
        super().__init__(table, given)
        self._suppressed = suppressed
        self._at = 0
        self._evidence = evidence
        self._whole: pa.Table | None = None
        self._explain = explain
        self._around = around
        self._why_empty: Callable[[], str] | str | None = why_empty
        self.plan = plan

    to_pandas = ShownRows.df

    @property
    def columns(self) -> list[str]:
        """The names of the columns, as of a DuckDB relation."""
        return list(self._table.column_names)

    def fetchone(self) -> tuple[Any, ...] | None:
        """Returns the next row as a tuple, and None after the last. `fetchall` and iteration start at the first row all
        the same."""
        rows = list(zip(*python_columns(self._zoned.slice(self._at, 1))))
        self._at += len(rows)
        return rows[0] if rows else None

    def fetchall(self) -> list[tuple[Any, ...]]:
        """Returns the rows as tuples of Python values, as a DuckDB connection does."""
        return list(zip(*python_columns(self._zoned)))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yields the rows as dicts of Python values."""
        names = distinct_names(self._table.column_names)
        for batch in self._zoned.to_batches():
            for row in zip(*python_columns(pa.Table.from_batches([batch]))):
                yield dict(zip(names, row))

    def why_empty(self) -> str:
        """Returns why there are no rows, in one line: how many rows of the input met each condition, and how far the
        longest attempt at the pattern came. Empty if there are rows, or if it is not known. Reads the first 10,000 rows
        of the input, for two seconds at most."""
        if len(self) or self._why_empty is None:
            return ""
        if not isinstance(self._why_empty, str):
            self._why_empty = self._why_empty()
        return self._why_empty

    def explain(self, stage: str = "all") -> str:
        """Returns the text of a compile stage: ast, plan, nfab, automaton, program or all."""
        return PrintedText(self._explain(stage))

    def suppressed(self) -> ArrowRows:
        """Returns the rows of a backtest that ALERT ONCE suppressed, as Alerts.suppressed does.
        Raises DataError if the statement has no ALERT ONCE."""
        if self._suppressed is None:
            raise DataError("the statement has no ALERT ONCE", "add it at the end of a live query")
        return ArrowRows(self._suppressed)

    def evidence(self) -> ArrowRows:
        """Returns the events of all rows, a line for each, in the order of the rows, live events before history, as an
        Arrow table that is shown as one.

        Columns: row (its number; -1 where rows have no single origin), match_id, join_id (null without a history join),
        side (pl for live, pa for history), variable, event_time, source, offset, history_complete, then the columns of
        the event. Raises QueryError for ONE ROW PER WINDOW, DataError if the input has changed since."""
        return ArrowRows(self._all())

    def _all(self) -> pa.Table:
        if self._whole is None:
            self._whole = self._read(None)
        return self._whole

    def _read(self, rows: int | None) -> pa.Table:
        """Returns the evidence of the first rows (None: of all)."""
        if self._whole is not None:
            return self._whole if rows is None else self._whole.filter(pc.less(self._whole.column("row"), rows))
        if self._evidence is None:
            hint = "call result.evidence() before the result is pickled, or run the statement again"
            raise DataError("a pickled result has no evidence: it is read from the input", hint)
        return self._with_zone(self._evidence(rows))

    def _with_zone(self, evidence: pa.Table) -> pa.Table:
        """Returns evidence with its times in the time zone of the frames given, if the column of the time has one."""
        orders = [factor.plan.order_by for factor in self.plan.factors]
        if not orders or any(not order or order[0].column.type != ZONED for order in orders):
            return evidence
        at = evidence.column_names.index("event_time")
        zoned = evidence.column(at).cast(pa.timestamp("us", "UTC"))
        shown = in_zone(evidence.set_column(at, "event_time", zoned), self._given)
        return evidence if shown.column(at).type.tz == "UTC" else shown

    def tree(self, row: int = 0, side: str = "pl") -> EvidenceTree:
        """Returns the evidence of one row as a tree, in which matches of boxes open down to their events; print it, or
        show it in a notebook. side: `pl`, or `pa` for what was found in the history. Raises DataError if the row has no
        evidence."""
        check_row(row)
        if row >= len(self):
            no_rows = f"there is no row {row}: the last one is {len(self) - 1}" if len(self) else "there are no rows"
            raise DataError(no_rows, self.why_empty())
        return tree_of(self._read(row + 1), row, side)

    def plot(
        self, row: int | None = 0, value: str | None = None, path: str | os.PathLike[str] | None = None, *,
        keys: Any = None, around: Any = None, kind: str | None = None,
    ) -> Picture:  # fmt: skip
        """Returns a picture of the match of one output row, or of all matches (None), which a notebook shows. Needs the
        extra `plot`.

        value: the column to draw; None: a number that the conditions compare by size, such as price. path: the file to
        save. keys: draws all matches of these keys of PARTITION BY, a list of values, or of tuples for several columns;
        None, and row=None: those with most matches. around: how much is shown before the first match and after the last
        one, a duration such as "2 hours", or a number of rows of each key; None: half the time between the two.

        kind: "line" (the series, with matched events in the colours of their variables) or "points" (the same without
        lines, and texts as categories) have a panel for each key, on one axis of time; "timeline" has a lane for each
        key, or, of one key, for each variable. None: a line if there are such numbers, else a timeline. Matches are
        bars, and the wait of an absence at an edge of the pattern is hatched, until WITHIN ends.

        Reads the rows around from the input. Raises DataError for a row, key, column or kind that is not there, and
        QueryError for ONE ROW PER WINDOW."""
        from hybrid.rows.plot import plot_evidence

        if row is not None and not counts(row):
            hint = "rows count from 0, None plots all matches"
            if isinstance(row, str | PurePath):
                hint = f"name the file: plot(path={str(row)!r})"
            raise DataError(f"{row!r:.60} is no number of a row", hint)
        plan = self.plan.factors[0] if len(self.plan.factors) == 1 else None
        read = None if row is None or keys is not None or row >= SHOWN_ROWS else row + 1
        evidence = self._all() if read is None else self._read(read)
        return plot_evidence(
            evidence, row, value, path, keys=keys, around=around, kind=kind, between=self._around, plan=plan
        )

    def __reduce__(self) -> tuple[Callable[..., Result], tuple[Any, ...]]:
        return _unpickled, (self._table, self.plan, self._whole, self._suppressed, self._given)

    def __copy__(self) -> Result:
        return self  # its rows do not change, and it can read its evidence

    def __deepcopy__(self, memo: object) -> Result:
        return self

    def _repr_html_(self) -> str:
        windows = any(factor.plan.trends is not None for factor in self.plan.factors)
        rows = self._zoned
        known = not windows and (self._whole is not None or self._evidence is not None)
        return html_table(rows, self._read(SHOWN_ROWS) if known and len(rows) else None, SHOWN_ROWS, self.why_empty())


def _unpickled(
    table: pa.Table, plan: QueryPlan, whole: pa.Table | None, suppressed: pa.Table | None, given: Given
) -> Result:  # fmt: skip
    """Returns the result of a pickle. whole: its evidence, None if that was not read before."""

    def explain(stage: str) -> str:
        raise DataError("a pickled result has no explain()", "run the statement again")

    found = Result(table, plan, None, explain, None, suppressed, given)
    found._whole = whole
    return found


def terminal_width() -> int | None:
    """Returns the width of the terminal that standard output is, None if it is none."""
    return shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None


def text_table(table: pa.Table, rows: int = SHOWN_ROWS, width_max: int | None = None, note: str = "") -> str:
    """Returns the first rows as text in columns, numbers aligned right, and a line with the number of all rows, and
    with a note if there is one. width_max: of a line: columns beyond it are named in the last line, and longer values
    are cut; None: all is shown."""
    shown = table.slice(0, rows)
    cells = [[cell(v) for v in column] for column in python_columns(shown, shown=True)]
    if width_max is not None:
        cells = [[_cut(text, width_max) for text in column] for column in cells]
    numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    right = [any(is_numeric(c.type) for is_numeric in numeric) for c in shown.columns]
    names = list(map(printable, shown.column_names))
    widths = [max([width(name), *map(width, column)]) for name, column in zip(names, cells)]
    fit = len(widths)
    while width_max is not None and fit > 1 and sum(widths[:fit]) + 2 * (fit - 1) > width_max:
        fit -= 1

    def line(values: Sequence[str]) -> str:
        pads = [" " * (w - width(v)) for v, w in zip(values, widths)]
        return "  ".join(p + v if r else v + p for v, p, r in zip(values[:fit], pads, right)).rstrip()

    lines = [line(names), "  ".join("-" * w for w in widths[:fit])]
    lines += [line(row) for row in zip(*cells)]
    last = row_count(table.num_rows, rows, note)
    if hidden := names[fit:]:
        last = _cut(f"{last}; {counted(len(hidden), 'more column')}: {', '.join(hidden)}", width_max or 0)
    return "\n".join([*lines, last])


def _cut(text: str, width_max: int) -> str:
    """Returns a text, or its beginning if it is wider."""
    if width(text) <= width_max:
        return text
    while width(text) >= width_max:
        text = text[: min(len(text) - 1, width_max - 1)]
    return f"{text}…"

"""What a bounded statement returns: its rows in any shape, the stages that made them, and the evidence behind them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hybrid.correlate import COMPLETE, Answer
from hybrid.evidence import Lookup, join_id, long_table, stacked
from query.plan.plan import FactorPlan, QueryPlan

if TYPE_CHECKING:
    import os

    import pandas
    import polars

#: Lookups of one factor: for its live events, and for those of each history join.
Lookups = tuple[Lookup, tuple[Lookup, ...]]


def _joined_ids(
    factor: FactorPlan, answer: Answer, at: np.ndarray
) -> tuple[list[str], list[str] | list[None], list[list[str]]]:
    """For rows `at` of an answer: PL's match ids, the ids of the joined rows (None without history), and for each
    history join the ids of the matches that the rows have there."""
    live_ids = answer.evidence.take(answer.match[at]).ids(factor.plan.fingerprint)
    if not factor.histories:
        return live_ids, [None] * len(at), []
    archive = [""] * len(at)
    side_ids = []
    for history, side in zip(factor.histories, answer.sides):
        has = np.flatnonzero(side.match[at] >= 0)
        fingerprint = history.plan.fingerprint if history.plan is not None else history.schema.name
        ids = side.evidence.take(side.match[at][has]).ids(fingerprint)
        for i, name in zip(has, ids):
            archive[i] += name
        side_ids.append(ids)
    return live_ids, [join_id(a, b) for a, b in zip(live_ids, archive)], side_ids


def _complete(answer: Answer, at: np.ndarray) -> np.ndarray:
    complete = np.ones(len(at), bool)
    for side in answer.sides:
        complete &= side.complete[at]
    return complete


def identities(factor: FactorPlan, answer: Answer, at: np.ndarray) -> dict[str, pa.Array]:
    """The identity columns of rows `at`: match_id and, with history, join_id and history_complete."""
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
) -> pa.Table:
    """The events behind the output rows, one line for each, by output row, PL before PA.

    Columns: row (of the output; -1 where rows have no one origin: then all matches are listed), match_id, join_id (null
    without a history join), side (pl or pa), variable (null for plain history rows), event_time, source, offset,
    history_complete (null without a history join), then the event's own columns.
    """
    parts: list[pa.Table] = []
    for f, (factor, answer, (lookup, side_lookups)) in enumerate(zip(plan.factors, answers, lookups)):
        at = np.arange(len(answer)) if sources is None else sources[f]
        row = np.full(len(at), -1, np.int64) if sources is None else np.arange(len(at), dtype=np.int64)
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


class Result:
    """The rows of a statement. Nothing is computed twice; evidence is looked up when it is asked for."""

    __slots__ = ("_evidence", "_explain", "_table", "plan")

    def __init__(
        self, table: pa.Table, plan: QueryPlan, evidence: Callable[[], pa.Table], explain: Callable[[str], str]
    ) -> None:
        self._table = table
        self._evidence: Callable[[], pa.Table] | pa.Table = evidence
        self._explain = explain
        self.plan = plan

    def arrow(self) -> pa.Table:
        """The rows as an Arrow table."""
        return self._table

    def df(self) -> pandas.DataFrame:
        """The rows as a pandas frame. Needs pandas."""
        return self._table.to_pandas()

    def pl(self) -> polars.DataFrame:
        """The rows as a polars frame. Needs polars."""
        import polars

        frame = polars.from_arrow(self._table)
        assert isinstance(frame, polars.DataFrame)
        return frame

    def show(self, rows: int = 20) -> None:
        """Prints the first rows as a table, and how many there are."""
        import sys

        sys.stdout.write(self.__repr__() if rows == 20 else text_table(self._table, rows))
        sys.stdout.write("\n")

    def explain(self, stage: str = "all") -> str:
        """What a stage made of the text: ast, plan, automaton, program or all."""
        return self._explain(stage)

    def evidence(self) -> pa.Table:
        """The events behind every row, see `evidence_table`."""
        if callable(self._evidence):
            self._evidence = self._evidence()
        return self._evidence

    def plot(self, row: int = 0, value: str | None = None, path: str | os.PathLike[str] | None = None) -> Any:
        """A picture of the match behind one output row; see hybrid.plot. Needs the extra `plot`."""
        from hybrid.plot import plot_evidence

        return plot_evidence(self.evidence(), row, value, path)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __repr__(self) -> str:
        return text_table(self._table, 20)

    def _repr_html_(self) -> str:
        from html import escape

        head = "".join(f"<th>{escape(c)}</th>" for c in self._table.column_names)
        columns = [column.to_pylist() for column in self._table.slice(0, 20).columns]  # names may repeat
        body = "".join("<tr>" + "".join(f"<td>{escape(_cell(v))}</td>" for v in row) + "</tr>" for row in zip(*columns))
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{len(self):,} rows</p>"


def _cell(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, float):
        return repr(value)
    return str(value)


def text_table(table: pa.Table, rows: int = 20) -> str:
    """The first rows, in columns, with a line that counts all of them. Numbers stand to the right."""
    shown = table.slice(0, rows)
    cells = [[_cell(v) for v in column.to_pylist()] for column in shown.columns]
    numeric = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    right = [any(is_numeric(c.type) for is_numeric in numeric) for c in shown.columns]
    widths = [max([len(name), *map(len, column)]) for name, column in zip(shown.column_names, cells)]

    def line(values: Sequence[str]) -> str:
        return "  ".join(v.rjust(w) if r else v.ljust(w) for v, w, r in zip(values, widths, right)).rstrip()

    lines = [line(shown.column_names), "  ".join("-" * w for w in widths)]
    lines += [line(row) for row in zip(*cells)]
    n = table.num_rows
    lines.append(f"{n:,} row{'' if n == 1 else 's'}" + (f", the first {rows} shown" if n > rows else ""))
    return "\n".join(lines)

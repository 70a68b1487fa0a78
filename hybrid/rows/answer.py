"""Rows of one pattern factor: output of the live pattern (PL), columns of its history joins, and matched events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from hybrid.rows.evidence import NO_EVIDENCE, Evidence, Parts, concat, of_matches
from matching.batch import Ends, Matches
from matching.types import arrow_schema
from query.plan.bind import history_columns
from query.plan.output import Outcome, output_columns
from query.plan.plan import FactorPlan, HistoryPlan, Plan
from query.schema import Schema

ROW = "__hybrid_row"
COMPLETE = "history_complete"


@dataclass(frozen=True, slots=True)
class Side:
    """Columns that one history join adds to each row of an answer.

    rows: aligned with the answer, nulls where nothing joined; no columns after SEMI and ANTI. match: for each row the
    index of its archive match in `evidence`, -1 if none. complete: False if the history range begins before the stream
    or before its retention, or was read AS KNOWN before it was complete.
    """

    rows: pa.Table
    evidence: Evidence
    match: np.ndarray
    complete: np.ndarray


@dataclass(frozen=True, slots=True)
class Answer:
    """Rows of one pattern factor: output rows of PL and, row by row, the columns of each history join.

    events: the evidence, or its parts. match: for each row the index of its match in `evidence`.
    """

    live: pa.Table
    events: Evidence | Parts
    match: np.ndarray
    sides: tuple[Side, ...] = ()

    def __len__(self) -> int:
        return int(self.live.num_rows)

    @property
    def evidence(self) -> Evidence:
        return self.events.whole() if isinstance(self.events, Parts) else self.events

    def take(self, index: np.ndarray) -> Answer:
        """Returns the rows at `index`, in that order."""
        at = pa.array(index)
        return Answer(
            self.live.take(at), self.events, self.match[index],
            tuple(Side(taken(s.rows, at), s.evidence, s.match[index], s.complete[index]) for s in self.sides),
        )


def output_schema(plan: Plan) -> pa.Schema:
    """Returns the output columns of a pattern factor."""
    return arrow_schema(Schema("", output_columns(plan)))


def side_schema(history: HistoryPlan) -> pa.Schema:
    """Returns the columns that a history join adds: output of the history pattern (PA), or the plain rows' columns."""
    return arrow_schema(Schema("", history_columns(history)))


def fitted(rows: pa.Table, schema: pa.Schema) -> pa.Table:
    """Returns rows that were saved before a stream got more columns, with nulls in the new ones; other rows as is."""
    known = {field.name: field.type for field in schema}
    if rows.schema.equals(schema) or any(known.get(field.name) != field.type for field in rows.schema):
        return rows
    nothing = {name: pa.nulls(rows.num_rows, schema.field(name).type) for name in schema.names}
    return pa.table([rows[n] if n in rows.schema.names else nothing[n] for n in schema.names], schema=schema)


def fitted_answer(answer: Answer, factor: FactorPlan) -> Answer:
    """Applies `fitted` to the rows and the history columns of an answer."""
    live = fitted(answer.live, output_schema(factor.plan))
    sides = tuple(
        replace(side, rows=fitted(side.rows, side_schema(history)) if side.rows.num_columns else side.rows)
        for side, history in zip(answer.sides, factor.histories)
    )
    return replace(answer, live=live, sides=sides)


def answer_of(plan: Plan, found: Sequence[Matches]) -> Answer:
    """Returns the matches of a plan as an answer without history joins."""
    found = [m for m in found if len(m)]
    if not found:
        return Answer(output_schema(plan).empty_table(), NO_EVIDENCE, np.empty(0, np.int64))
    shifts = np.concatenate([[0], np.cumsum([len(m) for m in found])])
    return Answer(
        pa.concat_tables([m.rows for m in found]) if len(found) > 1 else found[0].rows,
        Parts([of_matches(m) for m in found]),
        np.concatenate([m.row_match + s for m, s in zip(found, shifts)]),
    )


def rows_of(plan: Plan, found: Sequence[Matches]) -> Answer:
    """Returns the output rows of a plan's matches as an answer without matches and evidence."""
    rows = [m.rows for m in found]
    return rows_alone(pa.concat_tables(rows) if rows else output_schema(plan).empty_table())


def rows_alone(rows: pa.Table) -> Answer:
    """Returns output rows as an answer without matches and evidence."""
    return Answer(rows, NO_EVIDENCE, np.empty(0, np.int64))


def count_matches(found: Sequence[Matches]) -> int:
    """Counts matches, without unmatched rows and timed-out partial matches."""
    return sum(len(m) if m.outcome is None else int(np.count_nonzero(m.outcome == Outcome.MATCH)) for m in found)


def concat_matches(parts: Sequence[Matches]) -> Matches:
    """Concatenates matches of one plan; at least one, and all with ends or all with events."""
    if len(parts) == 1:
        return parts[0]
    shifts = np.concatenate([[0], np.cumsum([len(m) for m in parts])])
    events, some = concat([of_matches(m) for m in parts]), [m for m in parts if len(m)]
    outcome = None
    if any(m.outcome is not None for m in parts):
        every = [np.full(len(m), Outcome.MATCH, np.int8) if m.outcome is None else m.outcome for m in parts]
        outcome = np.concatenate(every)
    return Matches(
        pa.concat_tables([m.rows for m in parts]),
        np.concatenate([m.row_match + s for m, s in zip(parts, shifts)]),
        np.concatenate([m.number for m in parts]),
        np.concatenate([m.first_us for m in parts]), np.concatenate([m.last_us for m in parts]),
        events.bounds, events.variable, events.ts_us, events.source, events.offset, events.seq, events.variables,
        events.sources, outcome, Ends.concat([m.ends for m in some if m.ends is not None]),
        None if any(m.ids is None for m in some) or not some else np.concatenate([m.ids for m in some]),
    )  # fmt: skip


def concat_answers(parts: Sequence[Answer]) -> Answer:
    """Concatenates answers of one factor; at least one."""
    if len(parts) == 1:
        return parts[0]

    def joined(evidences: list[Evidence], matches: list[np.ndarray]) -> tuple[Evidence, np.ndarray]:
        shifts = np.concatenate([[0], np.cumsum([len(e) for e in evidences])])
        return concat(evidences), np.concatenate([np.where(m < 0, -1, m + s) for m, s in zip(matches, shifts)])

    evidence, match = joined([p.evidence for p in parts], [p.match for p in parts])
    sides = []
    for k in range(len(parts[0].sides)):
        part = [p.sides[k] for p in parts]
        side_evidence, side_match = joined([s.evidence for s in part], [s.match for s in part])
        rows = pa.concat_tables([s.rows for s in part])
        sides.append(Side(rows, side_evidence, side_match, np.concatenate([s.complete for s in part])))
    return Answer(pa.concat_tables([p.live for p in parts]), evidence, match, tuple(sides))


def taken(table: pa.Table, index: pa.Array) -> pa.Table:
    """Returns the rows at `index`; a table without columns as is."""
    return table.take(index) if table.num_columns else table

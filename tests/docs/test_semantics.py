"""The examples of docs/semantics.md, run through the reference and through the matcher that users get."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pytest

from matching.batch import EventBatch, Matcher, Matches
from matching.by_reference import ReferenceMatcher
from matching.matcher import make_matcher
from matching.types import arrow_type
from query.errors import DataError, HybridWarning, QueryError
from query.language.ast import RowsPerMatch
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.output import Outcome
from query.plan.plan import Plan
from query.schema import Field, Schema
from tests.docs.documents import blocks

TYPES = {"ts": "TIMESTAMP", "k": "VARCHAR", "s": "VARCHAR", "v": "BIGINT", "price": "BIGINT"}
SCHEMA = Schema("e", tuple(Field(name, type) for name, type in TYPES.items()), time="ts")

Event = dict[str, object]


def _examples() -> Iterator[tuple[str, str, str, str]]:
    """(where, events, clauses, expected)"""
    for block in blocks("example"):
        events = ""
        for number, line in enumerate(block.text.splitlines(), block.line + 1):
            if line.startswith("events"):
                events = line.removeprefix("events").strip()
            else:
                clauses, expected = line.rsplit("->", 1)
                yield f"{block.path}:{number}", events, clauses.strip(), expected.strip()


def _events(text: str) -> tuple[list[str], list[Event]]:
    names, rows = [], []
    for name, seconds, columns in re.findall(r"(\w+)@(\d+)(?:\{(.*?)\})?", text):
        row: Event = {"ts": int(seconds) * 1_000_000, "k": "p", "s": name.rstrip("0123456789")}
        row |= {"v": None, "price": None}
        for item in filter(None, columns.split(",")):
            key, value = item.split("=")
            row[key] = value if key == "k" else int(value)
        names.append(name)
        rows.append(row)
    return names, rows


def _found(plan: Plan, text: str, make: Callable[[Plan], Matcher]) -> str:
    names, rows = _events(text)
    columns = pa.RecordBatch.from_arrays(
        [pa.array([r[name] for r in rows], arrow_type(type)) for name, type in TYPES.items()], names=list(TYPES)
    )
    position = np.arange(len(rows))
    ts_us = columns.column("ts").cast(pa.int64()).to_numpy()
    batch = EventBatch(columns, ts_us, np.zeros(len(rows), np.int32), position, position)
    matcher = make(plan)
    name_at = dict(zip(ts_us.tolist(), names))  # of an unmatched row, and of rows shown
    shown = plan.rows is not RowsPerMatch.ONE
    parts = [matcher.push(batch), matcher.advance(None)]
    return " ; ".join(_one(part, i, names, name_at, shown) for part in parts for i in range(len(part))) or "none"


def _one(matches: Matches, i: int, names: list[str], name_at: dict[int, str], shown: bool) -> str:
    """One match as the examples write it."""
    outcome = Outcome.MATCH if matches.outcome is None else matches.outcome[i]
    if outcome == Outcome.UNMATCHED:
        return f"unmatched {name_at[int(matches.first_us[i])]}"
    labels: dict[str, list[str]] = {}
    for e in range(matches.event_bounds[i], matches.event_bounds[i + 1]):
        name = matches.variables[matches.event_variable[e]]
        labels.setdefault(name, []).append(names[matches.event_offset[e]])
    text = " ".join(f"{variable}={','.join(events)}" for variable, events in labels.items()) or "()"
    rows = matches.rows.take(pa.array(np.flatnonzero(matches.row_match == i)))
    if outcome == Outcome.TIMEOUT:
        text = f"timeout {text} {rows.column('timeout')[0]}"
    if shown:
        times = rows.column("ts").cast(pa.int64()).to_pylist()
        text += " shows " + (",".join(name_at[t] for t in times) or "nothing")
    if "answer" in rows.column_names:
        text += f" answer {rows.column('answer')[-1]}"
    return text


@pytest.mark.parametrize(("where", "events", "clauses", "expected"), list(_examples()))
@pytest.mark.parametrize("make", [ReferenceMatcher, make_matcher])
def test_example(where: str, events: str, clauses: str, expected: str, make: Callable[[Plan], Matcher]) -> None:
    text = f"SELECT * FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts {clauses})"
    plan = bind(parse(text), lambda name: SCHEMA).factors[0].plan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HybridWarning)  # a slow path is a path
        try:
            found = _found(plan, events, make)
        except QueryError as error:
            found = f"error {error.diagnostics[0].code}"
        except DataError:
            found = "error DataError"
    assert found == expected, where


def test_there_are_many_examples() -> None:
    assert len(list(_examples())) >= 50

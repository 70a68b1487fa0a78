"""Plays a simulated scenario through a database and compares the rows of the query with the planted matches."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import pyarrow as pa

from hybrid.database.database import Database
from simulator.scenario import Scenario


@dataclass(frozen=True, slots=True)
class ScenarioResult:
    """Result of a scenario. rows: all rows, as fetched. evidence: of the rows fetched last. missing: planted rows that
    were not found. unexpected: found rows that were not planted. kinds: kind -> (planted, expected, found). events: of
    its first stream, each once, in order of time."""

    rows: pa.Table
    evidence: pa.Table
    missing: list[tuple[object, ...]]
    unexpected: list[tuple[object, ...]]
    kinds: dict[str, tuple[int, int, int]]
    stats: dict[str, object]
    events: pa.Table

    @property
    def exact(self) -> bool:
        return not self.missing and not self.unexpected


def play(scenario: Scenario, directory: str | Path | None = None, flush_every: int = 50) -> ScenarioResult:
    """Pushes all arrivals in order, flushes to the archive after every flush_every of them, then ends the streams.

    directory: of the database, which is kept. None: a temporary directory."""
    if directory is not None:
        return _play(scenario, directory, flush_every)
    with TemporaryDirectory(prefix="hybrid-demo-") as path:
        return _play(scenario, Path(path), flush_every)


def _play(scenario: Scenario, directory: str | Path, flush_every: int) -> ScenarioResult:
    with Database(directory) as db:
        for schema in scenario.schemas:
            assert schema.time is not None
            db.create_stream(
                schema.name, {f.name: f.type for f in schema.fields}, time=schema.time, key=schema.keys,
                order=schema.order, lateness=f"{schema.lateness_us} us",
            )
        alerts = db.watch(scenario.query)
        found = []
        for i, arrival in enumerate(scenario.arrivals, 1):
            db.push(arrival.stream, arrival.batch, source=arrival.source, offset=arrival.offset)
            if i % flush_every == 0:
                db.flush()
                found.append(alerts.take())
        for schema in scenario.schemas:
            db.advance(schema.name, None)
        found.append(alerts.take())
        rows = pa.concat_tables(found)
        evidence = alerts.evidence().arrow()
        stats = alerts.stats()
    truth, got = Counter(_tuples(scenario.truth)), Counter(_tuples(rows))
    return ScenarioResult(
        rows, evidence, sorted((truth - got).elements(), key=repr), sorted((got - truth).elements(), key=repr),
        _by_kind(scenario, rows), stats, scenario.events(scenario.schemas[0].name),
    )


def _by_kind(scenario: Scenario, rows: pa.Table) -> dict[str, tuple[int, int, int]]:
    """Counts by kind the cases that were planted, that are expected as rows, and that were found."""
    keys = [c for c in scenario.cases.column_names if c not in ("kind", "expected") and c in rows.column_names]
    seen = set(_tuples(rows.select(keys)))
    counts: dict[str, tuple[int, int, int]] = {}
    for case, key in zip(scenario.cases.to_pylist(), _tuples(scenario.cases.select(keys))):
        planted, expected, found = counts.get(case["kind"], (0, 0, 0))
        counts[case["kind"]] = (planted + 1, expected + case["expected"], found + (key in seen))
    return dict(sorted(counts.items()))


def _tuples(table: pa.Table) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]

"""Thieves in shops, four layers of patterns: visits of a shelf, suspicious visits, thefts, and rings of thieves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa

from hybrid.database.database import Database
from hybrid.rows.evidence_tree import EvidenceTree
from simulator.thieves import FIELDS, LAYERS, TOGETHER_QUERY, Thieves, thieves

#: Layer -> its query; and that of thieves who work at the same time, over the rows of thefts.
PATTERNS = {**LAYERS, "together": TOGETHER_QUERY}
QUERY = "\n".join(f"CREATE PATTERN {name} AS\n{text}" for name, text in PATTERNS.items())
#: Rings as one statement, for tables.
STATEMENT = f"WITH {', '.join(f'{name} AS ({text})' for name, text in LAYERS.items())} SELECT * FROM ring"


@dataclass(frozen=True, slots=True)
class ThievesResult:
    """Result of the demo. rows: layer -> its rows. missing, unexpected: layer -> rows that were planted and not found,
    and found and not planted. shown_row: number of a ring that was planted as such; tree: of it. people: of each kind
    the persons, those who stole, and the thefts that their readings show and that were found. rings: of each kind the
    cases, those that are rings and those found."""

    planted: Thieves
    rows: Mapping[str, pa.Table]
    missing: Mapping[str, list[tuple[object, ...]]]
    unexpected: Mapping[str, list[tuple[object, ...]]]
    shown_row: int
    tree: EvidenceTree
    people: pa.Table
    rings: pa.Table
    events: int
    stats: Mapping[str, Any]

    @property
    def exact(self) -> bool:
        return not any(self.missing.values()) and not any(self.unexpected.values())


def run(
    seed: int = 1, directory: str | Path | None = None, interleaving: int = 0, visitors: int = 400, copies: int = 2
) -> ThievesResult:
    """Simulates the shops of a seed, with delayed and repeated deliveries, and watches all layers at once.

    directory: of the database, which is kept. None: a temporary directory."""
    scenario = thieves(seed, visitors, copies, interleaving=interleaving)
    place = TemporaryDirectory(prefix="hybrid-demo-") if directory is None else nullcontext(str(directory))
    with place as path, Database(path) as db:
        open_shops(db)
        alerts = {name: db.watch(f"SELECT * FROM {name}", name=name) for name in PATTERNS}
        for arrival in scenario.scenario.arrivals:
            db.push(arrival.stream, arrival.batch, source=arrival.source, offset=arrival.offset)
        db.advance("readings", None)
        rows = {name: alerts[name].take() for name in PATTERNS}
        plain = [case["t0"] for case in scenario.scenario.cases.to_pylist() if case["kind"] == "ring"]
        shown_row = next((i for i, t0 in enumerate(rows["ring"]["t0"].to_pylist()) if t0 in plain), 0)
        tree, stats = alerts["ring"].tree(shown_row), alerts["ring"].stats()
    planted = {name: Counter(tuples(table)) for name, table in scenario.truths.items()}
    found = {name: Counter(tuples(rows[name])) for name in LAYERS}
    return ThievesResult(
        scenario, rows,
        {name: sorted((planted[name] - found[name]).elements(), key=repr) for name in LAYERS},
        {name: sorted((found[name] - planted[name]).elements(), key=repr) for name in LAYERS},
        shown_row, tree, _people(scenario, rows["theft"]), _rings(scenario, rows["ring"]),
        scenario.scenario.events("readings").num_rows, stats,
    )  # fmt: skip


def open_shops(db: Database) -> None:
    """Creates the stream of readings and the patterns of all layers."""
    columns = {field.name: field.type for field in FIELDS}
    db.create_stream("readings", columns, time="ts", key="person", lateness="30 minutes")
    db.create_patterns(PATTERNS)


def tuples(table: pa.Table) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in table.to_pylist()]


def _people(scenario: Thieves, thefts: pa.Table) -> pa.Table:
    """Counts persons by kind: what happened, what the readings show, and what was found."""
    found = Counter(zip(thefts["shop"].to_pylist(), thefts["person"].to_pylist()))
    seen: set[tuple[str, str]] = set()
    kinds: dict[str, list[int]] = {}
    for one in scenario.people.to_pylist():
        counts = kinds.setdefault(one["kind"], [0, 0, 0, 0])
        who = (one["shop"], one["person"])
        here = [1, one["stole"], one["thefts"], 0 if who in seen else found[who]]
        seen.add(who)
        kinds[one["kind"]] = [a + b for a, b in zip(counts, here)]
    names = ("persons", "stole", "thefts shown", "thefts found")
    return pa.table({"kind": sorted(kinds)} | {
        name: [kinds[kind][i] for kind in sorted(kinds)] for i, name in enumerate(names)
    })  # fmt: skip


def _rings(scenario: Thieves, rings: pa.Table) -> pa.Table:
    """Counts by kind the cases that were planted, that are rings, and in whose time and place one was found."""
    begins = Counter(zip(rings["shop"].to_pylist(), rings["shelf"].to_pylist(), rings["t0"].to_pylist()))
    kinds: dict[str, list[int]] = {}
    for case in scenario.scenario.cases.to_pylist():
        found = int(begins[case["shop"], case["shelf"], case["t0"]] > 0)
        counts = kinds.setdefault(case["kind"], [0, 0, 0])
        kinds[case["kind"]] = [a + b for a, b in zip(counts, [1, case["expected"], found])]
    return pa.table({"kind": sorted(kinds)} | {
        name: [kinds[kind][i] for kind in sorted(kinds)] for i, name in enumerate(("planted", "rings", "found"))
    })  # fmt: skip

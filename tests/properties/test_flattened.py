"""Hierarchies against their flattened patterns: the same matches and rows wherever there is a plain pattern."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from matching.batch import Matches
from matching.by_reference import DuckEvaluation
from matching.matcher import make_matcher
from query.errors import QueryError
from query.hierarchy_reference import compose
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.flatten import flattened
from query.plan.plan import Plan
from query.reference import find, match_rows
from query.schema import Field, Schema
from tests.events import batch_of
from tests.properties.comparing import is_nightly

SCHEMA = Schema(
    "s", (Field("ts", "TIMESTAMP"), Field("s", "VARCHAR"), Field("k", "VARCHAR"), Field("i", "BIGINT")), time="ts"
)
TYPES = "abx"
Event = dict[str, Any]
#: The events of a match, with the path of their variables, and its row.
Found = tuple[tuple[tuple[str, int], ...], str]


def define(rng: Random, name: str, modules: Sequence[str]) -> str:
    if modules and rng.random() < 0.6:
        on = rng.choice(["", "", "", f" ON {name}.n >= 2", " ON n < 4",
                         f" ON {name}.t1 - {name}.t0 <= INTERVAL 4 MICROSECOND"])  # fmt: skip
        return f"{name} AS PATTERN {rng.choice(modules)}{on}"
    return f"{name} AS s = '{rng.choice(TYPES)}'" + (" AND i % 3 <> 0" if rng.random() < 0.2 else "")


def elements(rng: Random, names: Sequence[str], gap: bool) -> str:
    parts = [name + rng.choices(["", "+", "?", "*"], [84, 9, 6, 1])[0] for name in names]
    if len(parts) > 2 and rng.random() < 0.15:
        parts = [f"({parts[0]} | {parts[1]})", *parts[2:]]
    elif len(parts) > 1 and rng.random() < 0.06:
        parts = [f"({' '.join(parts)})+"]
    if gap:
        parts.insert(rng.choice([*range(1, len(parts)), 0, len(parts)]), "~N")
    return f"({' '.join(parts)})"


def query(rng: Random, modules: Sequence[str], keys: str) -> str:
    """A pattern that may have boxes of these modules."""
    names = ["A", "B", "C"][: rng.choice([1, 2, 2, 2, 3])]
    defines = [define(rng, name, modules) for name in names]
    boxed = ["PATTERN" in text for text in defines]
    if len(names) > 1 and rng.random() < 0.4:
        own = f"{names[-1]}.n" if boxed[-1] else "i"
        word = " ON " if boxed[-1] and " ON " not in defines[-1] else " AND "
        defines[-1] += f"{word}{own} > LAST(A.{'n' if boxed[0] else 'i'}) - 3"
    gap = len(names) > 1 and rng.random() < 0.2
    if gap:
        defines.append(f"N AS s = '{rng.choice(TYPES)}'")
    measures = ["count(*) AS n", f"LAST(A.{'t1' if boxed[0] else 'ts'}) AS m"]
    measures += [more for more in ("FIRST(ts) AS f", "i AS l") if rng.random() < 0.1]
    if rng.random() < 0.1:
        measures.append("max(A.n) + 1 AS q" if boxed[0] else "sum(A.i) + 1 AS q")
    if len(names) > 1 and boxed[1] and rng.random() < 0.3:
        measures.append("B.n + 1 AS b, B.t0 AS bt")
    within = rng.choice([None, None, 3, 6, 12])
    within = within or 6 if gap else within
    return text(", ".join(measures), elements(rng, names, gap), within, ", ".join(defines), keys)


def text(measures: str, pattern: str, within: int | None, defines: str, keys: str) -> str:
    bound = f"WITHIN INTERVAL {within} MICROSECOND" if within else ""
    return (
        f"SELECT * FROM s MATCH_RECOGNIZE ({keys} ORDER BY ts MEASURES {measures} AFTER MATCH NO SKIP "
        f"PATTERN {pattern} {bound} SELECTION SKIP TILL ANY MATCH DEFINE {defines})"
    )


def case(seed: int) -> tuple[str, list[Event]]:
    rng = Random(seed)
    keys = rng.choice(["PARTITION BY k", "", ""])
    modules: dict[str, str] = {}
    if rng.random() < 0.1:  # a box that a match has several times
        modules["p0"] = text("LAST(A.i) AS n", "(A B)", 6, "A AS s = 'a', B AS s <> 'x' AND i > A.i + 1", keys)
        outer = text("count(*) AS n, count(B.*) AS m", "(A B+)", 12, "A AS s = 'a', B AS PATTERN p0 ON n > 1", keys)
    else:
        for i in range(rng.choice([1, 1, 2, 2, 3])):
            modules[f"p{i}"] = query(rng, list(modules), keys)
        outer = query(rng, list(modules), keys)
        while "AS PATTERN" not in outer:
            outer = query(rng, list(modules), keys)
    rows: list[Event] = []
    ts = 0
    for i in range(rng.randrange(6, 13)):
        ts += rng.choice([0, 1, 1, 2])
        rows.append({"ts": ts, "s": rng.choice(TYPES), "k": rng.choice([None, "p", "q"]) if keys else None, "i": i})
    with_ = ", ".join(f"{name} AS ({text})" for name, text in modules.items())
    return f"WITH {with_} {outer}", rows


def flat_name(path: str) -> str:
    """`V[2].X` is V_X."""
    return re.sub(r"\[\d+\]", "", path).replace(".", "_")


def composed(plan: Plan, rows: list[Event]) -> list[Found]:
    found = compose(plan, rows, [row["ts"] for row in rows], DuckEvaluation(()))
    return sorted((tuple((flat_name(path), i) for path, i in one.leaves()), str(one.row)) for one in found)


def by_definition(plan: Plan, rows: list[Event]) -> list[Found]:
    times, evaluate = [row["ts"] for row in rows], DuckEvaluation(())
    found = find(plan, rows, times, evaluate=evaluate)
    shown = match_rows(plan, rows, times, found, evaluate)
    return sorted((match.labels, str(row)) for match, (row,) in zip(found, shown, strict=True))


def by_engine(plan: Plan, rows: list[Event]) -> list[Found]:
    matcher = make_matcher(plan)
    parts = [matcher.push(batch_of(SCHEMA, rows)), matcher.advance(None)]
    return sorted(one for matches in parts for one in events_of(matches))


def events_of(matches: Matches) -> list[Found]:
    bounds, rows = matches.event_bounds.tolist(), matches.rows.to_pylist()
    names = [flat_name(matches.variables[v]) for v in matches.event_variable]
    at = list(zip(names, matches.event_offset.tolist(), strict=True))
    return [(tuple(at[a:b]), str(row)) for a, b, row in zip(bounds, bounds[1:], rows, strict=False)]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")  # some conditions are left to DuckDB
def test_flattened_patterns_find_what_hierarchies_find() -> None:
    least = {"composed only": 200, "no match": 100, "matches": 60, "within": 40, "ON": 40, "gap": 10, "keys": 8,
             "repeated": 5, "several": 5, "deep": 2}  # fmt: skip
    if not is_nightly():
        least = {what: max(1, n // 3) for what, n in least.items()}
    tally: Counter[str] = Counter()
    for seed in range(500):
        if not is_nightly() and all(tally[what] >= n for what, n in least.items()):
            break
        whole, rows = case(seed)
        try:
            plan = bind(parse(whole), lambda name: SCHEMA).factors[-1].plan
        except QueryError:
            continue
        flat = flattened(plan)
        if isinstance(flat, str):
            tally["composed only"] += 1
            continue
        expected = composed(plan, rows)
        assert by_definition(flat, rows) == expected, whole
        assert by_engine(flat, rows) == (by_engine(plan, rows) if expected or is_nightly() else []), whole
        twice = any([path for path, _ in one].count("B_A") > 1 for one, _ in expected)
        tally["matches" if expected else "no match"] += 1
        for what, there in (("gap", "~" in whole), ("keys", "PARTITION BY k" in whole), ("ON", " ON " in whole),
                            ("several", len(plan.boxes) > 1), ("within", any(b.plan.within for b in plan.boxes)),
                            ("deep", any(b.plan.boxes for b in plan.boxes)), ("repeated", twice)):
            tally[what] += bool(expected) and there
    assert {what: n for what, n in least.items() if tally[what] < n} == {}

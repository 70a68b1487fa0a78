"""One answer: every strategy, with any tolerance, with and without what is kept, gives the naive answer, which is all
events in one table, the reference for PL and for PA on each range, and a loop over both for the join."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybrid
from hybrid.join.history_cache import HistoryCache
from query.language.parse import parse
from query.plan.bind import bind
from query.plan.plan import Plan
from query.schema import Field, Schema
from tests.hybrid.ends import opened_again
from tests.properties.comparing import by_reference, drawn_until, drawn_until_told, fewer
from tests.strategies import Row

SECOND_US = 1_000_000
COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "s": "VARCHAR", "v": "BIGINT", "x": "DOUBLE"}
KINDS = ("JOIN", "LEFT JOIN", "SEMI JOIN", "ANTI JOIN", "NEAREST JOIN", "LEFT NEAREST JOIN")
STRATEGIES: tuple[tuple[str, str | None], ...] = (
    ("llaa", None), ("alaa", None), ("ollaa", None), ("sllaa", None), ("sllaa", "0"), ("sllaa", "3s"), ("auto", None),
    ("auto", "2s"),
)  # fmt: skip
LIVE = (
    "P", "P Q", "P Q*", "P+ Q",
)  # fmt: skip
ARCHIVE = (
    "A", "A B+", "A+ B", "A B* C", "(A | B) C?", "A (B C)+", "A{2,3}", "A B+? C", "(A|B)+ C", "A+ B+",
)  # fmt: skip
CONDITIONS = ("TRUE", "s = 'a'", "s = 'b'", "s <> 'c'", "v >= 2", "COUNT(*) < 3", "v > PREV(v)")
ON = ("pa.k = pl.k", "pa.k = pl.k AND pa.w >= pl.w", "pa.w >= pl.w", "pa.k = pl.k")
AFTER = ("SKIP PAST LAST ROW", "SKIP PAST LAST ROW", "SKIP TO NEXT ROW", "NO SKIP")


@dataclass(frozen=True)
class Case:
    """events: in the total order. before, after: the range is [at - before, at + after), or with its end if closed."""

    events: tuple[Row, ...]
    live: str
    archive: str
    before: int
    after: int
    closed: bool
    kind: str
    on: str
    cuts: tuple[int, ...]

    @property
    def text(self) -> str:
        low, high = f"pl.at - INTERVAL '{self.before}' SECOND", f"pl.at + INTERVAL '{self.after}' SECOND"
        range_ = f"BETWEEN {low} AND {high}" if self.closed else f"FROM {low} TO {high}"
        shown = "" if self.kind in ("SEMI JOIN", "ANTI JOIN") else ", pa.n, pa.w AS aw"
        return (
            f"SELECT pl.k, pl.at, pl.w{shown} FROM e MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts "
            f"MEASURES LAST(ts) AS at, LAST(v) AS w AFTER MATCH SKIP TO NEXT ROW {self.live}) AS pl "
            f"{self.kind} HISTORY OF e {range_} "
            f"MATCH_RECOGNIZE (PARTITION BY k ORDER BY ts MEASURES COUNT(*) AS n, LAST(v) AS w {self.archive}) AS pa "
            f"ON {self.on}"
        )


@cache
def planned(text: str) -> tuple[Plan, Plan]:
    """PL and PA."""
    schema = Schema("e", tuple(Field(name, type) for name, type in COLUMNS.items()), time="ts", keys=("k",))
    factor = bind(parse(text), lambda _: schema, live=True).factors[0]
    archive = factor.histories[0].plan
    assert archive is not None
    return factor.plan, archive


@st.composite
def cases(draw: st.DrawFn) -> Case:
    count = draw(st.integers(4, 18))
    seconds, events = 0, []
    for _ in range(count):
        seconds += draw(st.sampled_from((0, 1, 1, 1, 2, 5)))
        events.append({
            "ts": seconds * SECOND_US, "k": draw(st.sampled_from(("p", "p", "q", None))),
            "s": draw(st.sampled_from(("a", "b", "a", "b", "c"))), "v": draw(st.sampled_from((0, 1, 2, 3, None))),
            "x": 0.5,
        })  # fmt: skip

    def pattern(choices: tuple[str, ...], names: str) -> str:
        chosen = draw(st.sampled_from(choices))
        return f"PATTERN ({chosen}) DEFINE " + ", ".join(
            f"{name} AS {draw(st.sampled_from(CONDITIONS))}" for name in names if name in chosen
        )

    archive = f"AFTER MATCH {draw(st.sampled_from(AFTER))} {pattern(ARCHIVE, 'ABC')}"
    return Case(
        tuple(events), pattern(LIVE, "PQ"), archive, draw(st.integers(0, 12)), draw(st.integers(-2, 3)),
        draw(st.booleans()), draw(st.sampled_from(KINDS)), draw(st.sampled_from(ON)),
        tuple(sorted(draw(st.lists(st.integers(0, count), max_size=3)))),
    )  # fmt: skip


Rows = list[tuple[Any, ...]]


def naive(case: Case) -> Rows:
    """The definition, by the reference alone."""
    live, archive = planned(case.text)
    found: Rows = []
    for pl in by_reference(live, case.events).rows.to_pylist():
        if pl["at"] is None:
            continue
        at = int(pl["at"].timestamp()) * SECOND_US
        low, high = at - case.before * SECOND_US, at + case.after * SECOND_US
        inside = [row for row in case.events if low <= row["ts"] < high + case.closed]  # type: ignore[operator]
        matches = by_reference(archive, inside)
        shown = matches.rows.to_pylist()
        first, last = matches.event_bounds[:-1], matches.event_bounds[1:] - 1
        joined = [
            m for m, pa_ in enumerate(shown)
            if ("pa.k" not in case.on or (pa_["k"] is not None and pa_["k"] == pl["k"]))
            and ("pa.w" not in case.on or (None not in (pa_["w"], pl["w"]) and pa_["w"] >= pl["w"]))
        ]  # fmt: skip
        place = matches.event_offset
        joined.sort(key=lambda m: (place[last[m]], place[first[m]], m))
        mine = (pl["k"], pl["at"], pl["w"])
        others = [(shown[m]["n"], shown[m]["w"]) for m in joined]
        match case.kind:
            case "SEMI JOIN":
                found += [mine] if others else []
            case "ANTI JOIN":
                found += [] if others else [mine]
            case "NEAREST JOIN":
                found += [(*mine, *other) for other in others[-1:]]
            case "LEFT NEAREST JOIN":
                found += [(*mine, *other) for other in others[-1:] or [(None, None)]]
            case "LEFT JOIN":
                found += [(*mine, *other) for other in others or [(None, None)]]
            case _:
                found += [(*mine, *other) for other in others]
    return sorted(found, key=repr)


def table(rows: tuple[Row, ...]) -> pa.Table:
    types = {"ts": pa.timestamp("us"), "k": pa.string(), "s": pa.string(), "v": pa.int64(), "x": pa.float64()}
    return pa.table({name: pa.array([row[name] for row in rows], type) for name, type in types.items()})


def watched(
    case: Case, strategy: str, tolerance: str | None, on_disk: OnDisk | None = None
) -> tuple[Rows, dict[str, Any]]:
    """What a live query finds, in batches that end at the cuts."""
    events, found, start = table(case.events), [], 0
    db, alerts = begun(case, strategy, tolerance, on_disk)
    try:
        for i, end in enumerate([*case.cuts, len(case.events)]):
            if on_disk is not None and i == on_disk.restart:
                if on_disk.killed:
                    on_disk = on_disk.as_it_is()
                db.close()
                db, alerts = begun(case, strategy, tolerance, on_disk)
            db.push("e", events.slice(start, end - start))
            if on_disk is not None:
                (db.flush, db.checkpoint, lambda: None)[i % 3]()
            start = end
            found.append(alerts.take())
        db.advance("e", None)
        found.append(alerts.take())
        rows = pa.concat_tables(found).to_pylist()
        if on_disk is not None:
            on_disk.examples["read back"] += alerts.stats().get("read_back", 0) > 0
            # what came after the last checkpoint comes again, with the same ids
            rows = [*{repr(row): row for row in rows}.values()]
        ours = ("match_id", "join_id", "history_complete")
        return sorted((tuple(v for c, v in row.items() if c not in ours) for row in rows), key=repr), alerts.stats()
    finally:
        db.close()


@dataclass(frozen=True)
class OnDisk:
    """A database in files. limit: of its memory. restart: before which batch it ends; killed: at once, as it is."""

    directory: Path
    limit: str | None
    restart: int
    killed: bool
    examples: Counter[str]

    def as_it_is(self) -> OnDisk:
        """What a process that is killed now leaves."""
        copy = self.directory.with_name(f"{self.directory.name}-left")
        shutil.copytree(self.directory, copy)
        return replace(self, directory=copy)


def begun(case: Case, strategy: str, tolerance: str | None, on_disk: OnDisk | None) -> tuple[Any, Any]:
    """The database and the alerts of the query, which goes on where it has been before."""
    if on_disk is None:
        db = hybrid.connect()
    else:
        db = opened_again(on_disk.directory, memory_limit=on_disk.limit, maintenance=False, log="os")
    if not db.streams():
        db.create_stream("e", COLUMNS, time="ts", key="k", lateness="1s")
    how = {} if on_disk is None else {"name": "q", "evidence": True}
    return db, db.watch(case.text, strategy=strategy, tolerance=tolerance, **how)


pytestmark = [
    pytest.mark.filterwarnings("ignore:BETWEEN holds both ends:hybrid.HybridWarning"),
    pytest.mark.filterwarnings("ignore:the pattern ends in a greedy:hybrid.HybridWarning"),
    pytest.mark.filterwarnings("ignore:partial matches of:hybrid.HybridWarning"),
]


@pytest.mark.slow
def test_every_strategy_gives_the_naive_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    examples: Counter[str] = Counter()
    monkeypatch.setattr("hybrid.join.history_cache.SAMPLE_STAKE_S", 0.0)  # costs are known from the first match on
    monkeypatch.setattr("hybrid.join.driver.PER_MATCH_S", 0.5)

    @fewer(8, least=15, by_day=8)
    @given(case=cases(), ways=st.lists(st.sampled_from(STRATEGIES), min_size=4, max_size=4, unique=True))
    def check(case: Case, ways: list[tuple[str, str | None]]) -> None:
        expected = naive(case)
        for strategy, tolerance in ways:
            rows, stats = watched(case, strategy, tolerance)
            assert rows == expected, (strategy, tolerance)
            examples[strategy] += 1
            examples[f"{strategy} found ahead"] += stats["history_found_ahead"] > 0
            examples["from what is kept"] += stats["history_kept"] > 0
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(HistoryCache, "serves", lambda history: False)
            rows, stats = watched(case, *ways[0])
            assert rows == expected, ("nothing kept", ways[0])
            assert stats["history_kept"] == 0
        examples["cases"] += 1
        examples["rows"] += bool(expected)

    def told() -> None:
        assert 3 * examples["rows"] >= examples["cases"]
        assert 3 * examples["alaa found ahead"] >= examples["alaa"] > 0
        for strategy in ("ollaa", "auto"):
            assert 20 * examples[f"{strategy} found ahead"] >= examples[strategy] > 0
        assert 5 * examples["from what is kept"] >= examples["cases"]

    drawn_until_told(check, told)


@pytest.mark.slow
def test_files_spilling_and_a_kill_or_restart_change_nothing(tmp_path_factory: pytest.TempPathFactory) -> None:
    examples: Counter[str] = Counter()

    @fewer(12)
    @given(
        case=cases(), how=st.sampled_from(STRATEGIES), limit=st.sampled_from((None, "1 B", "200 B", "1 kB")),
        restart=st.integers(0, 3), killed=st.booleans(),
    )
    def check(case: Case, how: tuple[str, str | None], limit: str | None, restart: int, killed: bool) -> None:
        on_disk = OnDisk(tmp_path_factory.mktemp("db"), limit, restart, killed, examples)
        assert watched(case, *how, on_disk)[0] == naive(case)
        examples["killed"] += killed and restart <= len(case.cuts)

    drawn_until(check, lambda: examples["killed"] > 0)
    assert examples["killed"] > 0

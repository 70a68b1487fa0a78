"""Checkpoints outlive releases: what is written has tags and a number of its own, of older formats nothing is lost, and
what is missing or spoilt is said by name."""

from __future__ import annotations

import datetime as dt
import json
import random
import shutil
import tarfile
import warnings
from dataclasses import dataclass, fields, make_dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hybrid
from hybrid.rows.evidence import Evidence
from hybrid.watch import checkpoint, saved
from hybrid.watch.query_spec import ASKED_TAGS, Asked, read_asked
from matching import matcher, spilled, store
from matching.by_reference import ReferenceMatcher
from matching.decode import PER_MATCH, PER_ROW
from matching.engines import buffered_runs
from matching.engines.run_blocks import RunBlocks
from matching.engines.run_counts import RunCounts
from matching.engines.run_graph import RunGraph
from matching.engines.run_lists import RunLists
from matching.engines.run_merged import RunMerged
from matching.engines.run_ordered import RunOrdered
from matching.engines.run_panes import RunPanes
from matching.engines.run_starts import RunStarts
from matching.engines.run_table import RunTable
from matching.engines.run_trends import RunTrends
from matching.kernels import layout
from matching.matcher import KernelMatcher
from matching.state import stamp, unpack_head
from query.errors import DataError, HybridWarning, Span
from tests.hybrid.ends import killed
from tests.hybrid.watch.test_checkpoint import (
    ABSENT,
    CHAINED,
    COLUMNS,
    FALLS,
    JOINED,
    JOINED_ONCE,
    ONCE,
    PASSING,
    START,
    steps,
)
from tests.hybrid.watch.test_checkpoint import test_matches_are_those_of_a_run_without_end as whole_runs
from tests.properties.comparing import fewer, is_nightly

QUERIES = {"falls": FALLS, "passing": PASSING, "absent": ABSENT, "joined": JOINED, "chained": CHAINED, "once": ONCE}
#: Made by the release before format 2: ten events, then QUERIES, fifteen more, whose rows were fetched (fetched.json),
#: and fifteen more; a checkpoint; and ten events of which no checkpoint knows.
FORMAT_1 = Path(__file__).parents[1] / "databases" / "format_1.tar.xz"
#: Made by the last release of format 2: ten events, then QUERIES_2, thirty more; a checkpoint, with rows that nobody
#: had fetched, among them matches with ends instead of events; and ten events of which no checkpoint knows.
FORMAT_2 = Path(__file__).parents[1] / "databases" / "format_2.tar.xz"
NUMBERED = """
    SELECT * FROM ticks MATCH_RECOGNIZE (
        PARTITION BY k MEASURES MATCH_NUMBER() AS n, A.v AS x PATTERN (A B C) SELECTION SKIP TILL NEXT MATCH
        DEFINE A AS v > 4, B AS v < 4, C AS v > 3) AS m"""
#: With evidence=True or without.
QUERIES_2 = {
    "falls": (FALLS, False), "falls_ids": (FALLS, True), "passing": (PASSING, False), "passing_ids": (PASSING, True),
    "numbered": (NUMBERED, False), "joined": (JOINED, False), "once": (ONCE, True),
}  # fmt: skip
#: What hybrid.watch.saved wrote in format 2.
STATE_2 = Path(__file__).parents[1] / "databases" / "state_2.bin"


def events(count: int, seed: int = 7) -> list[dict[str, Any]]:
    rng = random.Random(seed)
    found, at = [], 0
    for _ in range(count):
        at += rng.randint(0, 2)
        ts = START + dt.timedelta(seconds=max(0, at - rng.choice((0, 0, 0, 1, 2))))
        found.append({"ts": ts, "k": rng.choice("ab"), "v": rng.randint(0, 8)})
    return found


EVENTS = events(60)


def push(db: hybrid.Database, first: int, last: int) -> None:
    for i in range(first, last):
        db.push("ticks", [EVENTS[i]], "x", i)


def created(path: Path | None) -> hybrid.Database:
    db = hybrid.connect(path, maintenance=False, log=None if path is None else "os")
    db.create_stream("ticks", COLUMNS, time="ts", key="k", lateness="2s")
    return db


def plain(rows: list[dict[str, Any]]) -> list[str]:
    """Rows without their ids."""
    kept = ({n: v for n, v in row.items() if n not in ("match_id", "join_id")} for row in rows)
    return [json.dumps(row, default=str) for row in kept]


def of_one_run(queries: dict[str, str], **options: Any) -> dict[str, list[str]]:
    """The rows of a run without end, in which the queries begin behind the tenth event."""
    with created(None) as db:
        push(db, 0, 10)
        alerts = {name: db.watch(text, evidence=True, **options) for name, text in queries.items()}
        push(db, 10, 60)
        db.advance("ticks", None)
        return {name: plain(a.fetch().to_pylist()) for name, a in alerts.items()}


# ---- older and newer formats


@pytest.mark.slow
def test_a_database_of_format_1_goes_on(tmp_path):
    """All of it, with matches that were in progress, rows that nobody had fetched, and events behind the checkpoint."""
    # Before: class and field names in the file; a state whose plan hashed otherwise could not be opened at all.
    with tarfile.open(FORMAT_1) as file:
        file.extractall(tmp_path, filter="data")
    fetched = json.loads((tmp_path / "fetched.json").read_text())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        db = hybrid.connect(tmp_path, maintenance=False, log="os")
    assert [str(w.message) for w in said if w.category is HybridWarning] == [
        "the checkpoint was written by another release: falls, passing, absent, joined, chained, once replayed the "
        "kept events and resumed where they were",
        "events of chained are no longer kept, or their beginning is unknown: a match that depends on those may be "
        "missing or superfluous",
        "the checkpoint was written by a release with other match ids: rows delivered since then come again "
        "under new ids",
    ]
    assert db.notes == {"note": "from before"}
    alerts = db.watching()
    push(db, 50, 60)
    db.advance("ticks", None)
    rows = {name: plain(fetched[name]) + plain(alerts[name].fetch().to_pylist()) for name in QUERIES}
    assert rows == of_one_run(QUERIES)
    db.checkpoint()
    db.close()
    with hybrid.connect(tmp_path, maintenance=False, log="os") as again:  # nothing is said any more
        assert [*again.watching()] == [*QUERIES]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")  # of patterns without WITHIN
def test_a_database_of_format_2_goes_on(tmp_path):
    """With the same rows, ids and evidence as a run without end."""
    with tarfile.open(FORMAT_2) as file:
        file.extractall(tmp_path, filter="data")
    db = hybrid.connect(tmp_path, maintenance=False, log="os")
    assert db.notes == {"note": "from before"}
    with created(None) as other:
        push(other, 0, 10)
        wanted = {name: other.watch(text, evidence=ids) for name, (text, ids) in QUERIES_2.items()}
        push(other, 10, 60)
        other.advance("ticks", None)
        push(db, 50, 60)
        db.advance("ticks", None)
        assert [*db.watching()] == [*QUERIES_2]
        for name, alerts in db.watching().items():
            found, expected = alerts.fetch(), wanted[name].fetch()
            assert found.num_rows > 0, name
            assert found.equals(expected), name
            assert alerts.evidence().equals(wanted[name].evidence()), name
    db.close()
    with hybrid.connect(tmp_path, maintenance=False, log="os") as again:
        assert [*again.watching()] == [*QUERIES_2]


def test_a_newer_format_is_refused_with_what_to_do(tmp_path, monkeypatch):
    with created(tmp_path) as db:
        db.watch(FALLS, name="falls")
        with monkeypatch.context() as later:
            later.setattr("hybrid.watch.checkpoint.VERSION", 4)
            later.setitem(saved.KINDS, "Answer", ("?", {}))  # type: ignore[misc]
            db.checkpoint()
            # the one at close, too
            db.close()
    with pytest.raises(DataError) as error:
        hybrid.connect(tmp_path, maintenance=False)
    newest = max((tmp_path / checkpoint.CHECKPOINTS).glob("*.state"))
    assert error.value.message == f"the checkpoint {newest} has format 4; this program reads up to 3"
    assert error.value.hint is not None
    assert error.value.hint.startswith("open the database with the release that wrote it or a later one, or remove")


@pytest.mark.slow
@pytest.mark.thinned(4)
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("start", [None, "past"])
def test_states_that_mean_something_else_are_made_anew(tmp_path, seed, start):
    """Another release numbers its states otherwise: queries go through their events once more, and nothing is lost or
    comes twice; with what the archive has read first, too."""
    rng = random.Random(seed)
    first, second = sorted(rng.sample(range(11, 60), 2))
    queries = QUERIES | {"joined_once": JOINED_ONCE}
    options = {} if start is None else {"start": START + dt.timedelta(seconds=4)}
    wanted = of_one_run(queries, **options)
    db = created(tmp_path)
    push(db, 0, 10)
    alerts = {name: db.watch(text, name=name, evidence=True, **options) for name, text in queries.items()}
    push(db, 10, first)
    found = {name: plain(a.fetch().to_pylist()) for name, a in alerts.items()}
    db.checkpoint()
    push(db, first, second)  # these are in the log alone
    killed(db)
    with patch("matching.matcher.STATE_VERSION", 99), patch("matching.by_reference.STATE_VERSION", 99):
        with pytest.warns(HybridWarning, match="the checkpoint was written by another release") as said:
            again = hybrid.connect(tmp_path, maintenance=False, log="os")
        assert len(said) == 1
        alerts = again.watching()
        push(again, second, 60)
        again.advance("ticks", None)
        assert {name: found[name] + plain(alerts[name].fetch().to_pylist()) for name in queries} == wanted
        again.close()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::query.errors.HybridWarning")
@fewer(25, least=2)
@given(steps=steps(), data=st.data())
def test_whatever_is_made_anew_goes_on_as_it_was(steps: list[Any], data: st.DataObject) -> None:
    """At every restart, all of it."""
    never = {"new": lambda *_: False}
    with patch.object(KernelMatcher, "fits", **never), patch.object(ReferenceMatcher, "fits", **never):
        whole_runs.hypothesis.inner_test("os", steps, data)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_what_is_no_longer_kept_is_said(tmp_path):
    db = hybrid.connect(tmp_path, maintenance=False)
    db.create_stream("ticks", COLUMNS, time="ts", key="k", retention="10s")
    db.watch(FALLS, name="falls")
    for i in range(60):
        db.push("ticks", [{"ts": START + dt.timedelta(seconds=i), "k": "a", "v": (5, 4, 3)[max(i - 57, 0)]}])
    db.checkpoint()
    killed(db)
    with patch("matching.matcher.STATE_VERSION", 99), pytest.warns(HybridWarning) as said:
        again = hybrid.connect(tmp_path, maintenance=False)
    assert "events of falls are no longer kept" in str(said[1].message)
    again.push("ticks", [{"ts": START + dt.timedelta(seconds=60 + i), "k": "a", "v": v} for i, v in enumerate((2, 6))])
    assert again.watching()["falls"].fetch().num_rows == 1  # it has seen those that are
    with patch("matching.matcher.STATE_VERSION", 99):
        again.close()


# ---- missing and spoilt


def with_checkpoints(path: Path) -> dict[str, list[str]]:
    """A database with two checkpoints and events behind them; what has been fetched."""
    db = created(path)
    push(db, 0, 10)
    alerts = {name: db.watch(text, name=name, evidence=True) for name, text in QUERIES.items()}
    push(db, 10, 30)
    found = {name: plain(a.fetch().to_pylist()) for name, a in alerts.items()}
    db.checkpoint()
    push(db, 30, 40)
    db.checkpoint()
    push(db, 40, 50)
    return found


def went_on(path: Path, found: dict[str, list[str]]) -> dict[str, list[str]]:
    db = hybrid.connect(path, maintenance=False, log="os")
    alerts = db.watching()
    push(db, 50, 60)
    db.advance("ticks", None)
    whole = {name: found[name] + plain(alerts[name].fetch().to_pylist()) for name in QUERIES}
    db.close()
    return whole


@pytest.mark.slow
def test_without_the_newest_checkpoint_queries_go_on_from_the_one_before(tmp_path):
    found = with_checkpoints(tmp_path)
    max((tmp_path / checkpoint.CHECKPOINTS).glob("*.state")).unlink()
    assert went_on(tmp_path, found) == of_one_run(QUERIES)


@pytest.mark.slow
def test_a_spoilt_checkpoint_is_told_and_nothing_is_lost(tmp_path):
    """Cut, emptied, or with a bit flipped anywhere: what is said names the file."""
    found = with_checkpoints(tmp_path / "db")
    newest = max((tmp_path / "db" / checkpoint.CHECKPOINTS).glob("*.state"))
    whole = newest.read_bytes()
    rng = random.Random(1)
    spoilt = [b"", whole[:1], whole[:-1], whole[:60], whole + b"\0"]
    for at in (0, 17, 18, 49, 50, len(whole) - 1, *rng.sample(range(len(whole)), 8)):
        spoilt.append(whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :])
    for i, content in enumerate(spoilt):
        newest.write_bytes(content)
        state = checkpoint.newest
        with pytest.warns(HybridWarning, match=f"{newest.name} is damaged: queries resume from the previous one"):
            assert state(hybrid_place(tmp_path / "db")) is not None
        if i % (6 if is_nightly() else 12) == 0:
            shutil.copytree(tmp_path / "db", tmp_path / str(i))
            with pytest.warns(HybridWarning, match=f"{newest.name} is damaged"):
                assert went_on(tmp_path / str(i), found) == of_one_run(QUERIES)


def hybrid_place(path: Path) -> Any:
    from archive.place import place_of

    return place_of(path)


@pytest.mark.slow
def test_checkpoints_that_are_gone_are_missed(tmp_path):
    # Before: no word; the queries were not there any more.
    with_checkpoints(tmp_path)
    shutil.rmtree(tmp_path / checkpoint.CHECKPOINTS)
    for _ in range(2):
        with pytest.warns(HybridWarning) as said:
            db = hybrid.connect(tmp_path, maintenance=False, log="os")
        (message,) = (str(w.message) for w in said)
        assert message.startswith(f"the checkpoints in {tmp_path / checkpoint.CHECKPOINTS} are missing, and with them")
        assert "queries falls, passing, absent, joined, chained, once: start them again with db.watch" in message
        assert db.sql("SELECT count(*) AS n FROM ticks").arrow().to_pylist() == [{"n": 50}]
        db.close()
    with pytest.warns(HybridWarning):
        db = hybrid.connect(tmp_path, maintenance=False, log="os")
    db.watch(FALLS, name="falls")
    db.close()
    hybrid.connect(tmp_path, maintenance=False, log="os").close()  # it is enough
    (tmp_path / checkpoint.NAMES).write_text("{")
    with hybrid.connect(tmp_path, maintenance=False, log="os") as again:
        assert [*again.watching()] == ["falls"]
        again.checkpoint()
    assert json.loads((tmp_path / checkpoint.NAMES).read_text()) == {"version": 1, "queries": ["falls"]}


# ---- tags


def test_what_is_written_has_tags(tmp_path):
    """These are in people's files."""
    one = Evidence(
        np.array([0, 1]), np.array([0], np.int16), np.array([5]), np.array([0], np.int32), np.array([7]), np.array([9]),
        ("A",), ("x",),
    )  # fmt: skip
    assert unpack_head(saved.save({"version": 2, "value": (one, b"x", [None, 1.5])}))["value"] == {"dict": {
        "version": 2,
        "value": {"tuple": [
            {"Evidence": {
                "bounds": {"array": "0"}, "variable": {"array": "1"}, "ts_us": {"array": "2"},
                "source": {"array": "3"}, "offset": {"array": "4"}, "seq": {"array": "5"},
                "variables": {"tuple": ["A"]}, "sources": {"tuple": ["x"]}, "lanes": None,
            }},
            {"bytes": "6"}, [None, 1.5],
        ]},
    }}  # fmt: skip


def test_what_was_written_is_read():
    state = saved.load(STATE_2.read_bytes())
    assert state["version"] == 2
    assert state["numbers"].tolist() == [1, 2, 3]
    assert state["rows"].to_pylist() == [{"k": "ä", "v": 1}]
    evidence = state["evidence"]
    assert evidence.ids("00" * 16) == ["cab4e55257addb7e202a9d7559a193bd"]
    assert (evidence.variables, evidence.sources, evidence.seq.tolist()) == (("A", "B"), ("x",), [9, 10])


def test_a_rename_changes_nothing_that_is_written():
    one = Evidence(*(np.zeros(0, np.int64) for _ in range(6)), (), ())
    names = [f"renamed_{f.name}" for f in fields(Evidence)]
    renamed = make_dataclass("Renamed", names, frozen=True)
    other = renamed(*(getattr(one, f.name) for f in fields(Evidence)))
    tags = dict(zip(names, saved.KINDS["Evidence"][1].values(), strict=True))
    before = saved.save(one)
    kinds = {**saved.KINDS, "Evidence": (renamed, tags)}
    with patch.multiple(saved, KINDS=kinds, Evidence=renamed, _TAGS={kind: tag for tag, (kind, _) in kinds.items()}):
        assert saved.save(other) == before
        assert isinstance(saved.load(before), renamed)


def test_a_field_that_is_younger_than_a_state_has_its_default():
    @dataclass(frozen=True)
    class Younger:
        bounds: object
        more: int = 4

    before = saved.save(Evidence(*(np.zeros(0, np.int64) for _ in range(6)), (), ()))
    with patch.object(saved, "KINDS", {"Evidence": (Younger, {"bounds": "bounds", "more": "more"})}):
        assert saved.load(before).more == 4
    least = {"name": "n", "text": "t", "strategy": "auto"}
    assert read_asked(least) == Asked("n", "t", "auto", None, False, None, None)


#: The engines, and in this order the tags by which states name them: tags stay when classes are renamed.
ENGINES = (RunTable, RunStarts, RunGraph, RunMerged, RunBlocks, RunLists, RunCounts, RunTrends, RunPanes, RunOrdered)
TAGS = ["table", "starts", "graph", "merged", "blocks", "lists", "counts", "trends", "panes", "ordered trends"]


def test_every_field_has_a_tag():
    for kind, tags in saved.KINDS.values():
        assert [f.name for f in fields(kind)] == [*tags], kind
    assert [*ASKED_TAGS] == [f.name for f in fields(Asked)]
    assert [*spilled.LINE_TAGS] == [f.name for f in fields(spilled.PartitionLines)]
    assert {*matcher.HELD_TAGS} == {"bounds", *PER_MATCH, *PER_ROW}
    assert [engine.tag for engine in ENGINES] == TAGS
    assert [*store.TAGS] == [*store.FIXED]
    for kind, tags in buffered_runs.TAGS.items():
        derived = {"registers_f"} if kind is layout.LinkedRuns else set()  # the memory of `registers`
        assert {*kind._fields} - derived == {*tags}
    every = (saved.KINDS[k][1] for k in saved.KINDS)
    for tags in (*every, spilled.LINE_TAGS, matcher.HELD_TAGS, *buffered_runs.TAGS.values()):
        assert len({*tags.values()}) == len(tags)


def test_a_stamp_knows_values_and_no_names():
    @dataclass
    class One:
        a: int
        span: Span
        b: tuple[str, ...]

    class Other(NamedTuple):
        x: int
        z: list[str]

    assert stamp(One(1, Span(0, 1), ("x",))) == stamp(One(1, Span(4, 5), ("x",))) == stamp(Other(1, ["x"]))
    found = [1, "1", (1,), ((1,),), (1, 2), (12,), ("1", "2"), ("12",), None, (), True, 1.0, {"a": 1}]
    assert len({stamp(one) for one in found}) == len(found)
    assert stamp(frozenset({2, 1})) == stamp((1, 2))

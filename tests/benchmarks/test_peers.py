"""Four common queries: this engine, code by hand and other engines find the same matches."""

from __future__ import annotations

import warnings

import pyarrow as pa
import pyarrow.compute as pc
import pytest

import hybrid
from benchmarks import answers, v_pattern
from benchmarks.peers import frames, limit
from benchmarks.peers.__main__ import outside
from benchmarks.peers.contenders import BY_HAND, CEP, CORE, PANDAS, READY, SQL, Inside, Outside, contenders, unable
from benchmarks.peers.questions import Drop, Funnel, Path, Question, drop, funnel, path, questions, rise
from simulator import stock
from simulator.scenario import generator
from tests.benchmarks.test_benchmarks import printed
from tests.properties.comparing import is_nightly

pytestmark = pytest.mark.slow

LABELS = tuple(questions(0))


def found(question: Question, events: pa.Table) -> dict[str, tuple[int, str]]:
    """For each contender in this process the number of rows of its answer and their hash. watch gets its rows in small
    batches."""
    result = {}
    for name, contender in contenders(question).items():
        if not isinstance(contender, Inside):
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", hybrid.HybridWarning)
            answer = contender.run(events, question.text)[2]
        result[name] = (len(answer), answers.fingerprint(answer, list(question.columns)))
    return result


def agreed(question: Question, events: pa.Table) -> int:
    """The number of rows of the answer, the same by all contenders."""
    result = found(question, events)
    assert {"hybrid sql", BY_HAND} < set(result) or question.counts
    assert len(set(result.values())) == 1, result
    return result[BY_HAND][0]


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(v_pattern, "BATCH_ROWS", 97)


@pytest.mark.slow
def test_the_benchmark_runs_small_and_all_agree() -> None:
    here = ("hybrid", "by hand", READY)
    result = printed("benchmarks.peers", "--rows", "4_000", "--keys", "40", "--repeat", "1", "--only", *here)
    assert result["disagreements"] == []
    assert set(result["questions"]) == set(LABELS)
    for label, answered in result["questions"].items():
        (sample,) = answered["samples"]
        full = sample["contenders"]
        assert {"hybrid sql", BY_HAND} <= set(full), label
        assert ("hybrid watch" in full) != ("hybrid watch" in answered["skipped"]), label
        assert len({(r["matches"], r["hash"]) for r in full.values()}) == 1, label
        assert full["hybrid sql"]["matches"] > 10, label
        assert sample["ratios"]["hybrid sql"] > 0, label
    asked = {label: answered["samples"][0]["contenders"] for label, answered in result["questions"].items()}
    assert asked["q4"][BY_HAND]["matches"] == asked["q4 counted"][BY_HAND]["matches"]
    assert {"polars by hand", "duckdb by hand"} <= set(asked["q1"])
    assert READY in asked["q4"]
    assert result["questions"]["q2"]["constants"] != result["questions"]["q2 drawn"]["constants"]


@pytest.mark.parametrize("label", LABELS)
def test_every_engine_has_a_figure_or_a_reason(label: str) -> None:
    question = questions(0)[label]
    assert set(contenders(question)) & set(unable(question)) == set()
    assert {"hybrid sql", "hybrid watch", BY_HAND, CEP, SQL, CORE} <= set(contenders(question)) | set(unable(question))


@pytest.mark.slow
@pytest.mark.peers
@pytest.mark.parametrize(
    ("label", "name"), [("q1", PANDAS), ("q1", CEP), ("q1", SQL), ("q3", CEP), ("q3 drawn", SQL),
                        ("q4", CORE), ("q4 counted", CEP)],
)  # fmt: skip
def test_engines_outside_find_the_same(label: str, name: str) -> None:
    question = questions(2)[label]
    contender = contenders(question)[name]
    assert isinstance(contender, Outside)
    if contender.absent:
        pytest.skip(contender.absent)
    events = question.events(2, 3000, 30).combine_chunks()
    theirs, ours = outside(contender, question, events), contenders(question)[BY_HAND]
    assert isinstance(ours, Inside)
    expected = ours.run(events, question.text)[2]
    assert theirs["hash"] == answers.fingerprint(expected, list(question.columns))
    assert theirs["matches"] > 100
    assert theirs["seconds"] > 0


@pytest.mark.slow
@pytest.mark.peers
def test_flink_answers_another_query_than_q2() -> None:
    """It has matches that stop before a row they would have taken, and not those that pass over a row that could end
    them."""
    question = drop(Drop(volume=900, percent=97, seconds=20))
    contender = contenders(question)[CEP]
    assert isinstance(contender, Outside)
    if contender.absent:
        pytest.skip(contender.absent)
    assert contender.other
    events = question.events(1, 40, 1).combine_chunks()
    columns = list(question.columns)
    theirs = {tuple(row.values()) for row in contender.run(events, 40)[1].select(columns).to_pylist()}
    by_hand = {tuple(row.values()) for row in limit.drop(events, question.constants).select(columns).to_pylist()}
    assert theirs - by_hand
    assert by_hand - theirs


@pytest.mark.parametrize("label", LABELS)
@pytest.mark.parametrize("seed", range(20 if is_nightly() else 1))
def test_contenders_agree_on_random_events(label: str, seed: int) -> None:
    question = questions(seed)[label]
    assert agreed(question, question.events(seed, 3000, 1 + 7 * seed)) > 0


@pytest.mark.thinned(3)
@pytest.mark.parametrize("label", LABELS)
def test_contenders_agree_on_hardly_any_events(label: str) -> None:
    question = questions(0)[label]
    for rows in range(4):
        agreed(question, question.events(0, rows, 2))


@pytest.mark.parametrize("seed", range(6))
def test_rises_with_single_falls_between_them(seed: int) -> None:
    """Cheap prices of one symbol: many ties, and many islands of one row, where matches take rows from each other."""
    price = (generator(seed).random(300) * 3).round()
    ticks = stock.walk(seed, 300, 1).set_column(2, "price", pa.array(price))
    assert agreed(rise(), ticks) > 20


@pytest.mark.nightly
def test_many_drops_and_large_prices() -> None:
    """More matches than the code by hand has room for at first, and sums that need 64 bits."""
    question = drop(Drop(volume=940, percent=99, seconds=60))
    events = question.events(3, 1500, 10)
    dear = events.set_column(2, "price", pc.multiply(events["price"], 1_000_000))
    assert agreed(question, events) == agreed(question, dear) > 2048


def test_long_windows_and_short_ones() -> None:
    """Nothing ends, and nearly everything does."""
    for minutes, fewest in ((100_000, 5000), (6, 1)):
        few = funnel(Funnel(counted=False, minutes=minutes))
        assert agreed(few, few.events(5, 1000, 4)) > fewest
    for minutes, fewest in ((100_000, 50), (20, 1)):
        tags = path(Path("ACDE", minutes))
        assert agreed(tags, tags.events(5, 4000, 20)) >= fewest


def test_a_path_takes_the_next_reading_and_never_goes_back() -> None:
    rows = [(0, "t", "A"), (1, "u", "A"), (2, "t", "A"), (3, "t", "B"), (4, "t", "A"), (5, "t", "B"), (6, "t", "C"),
            (7, "u", "D"), (8, "t", "D"), (9, "t", "D")]  # fmt: skip
    minute = 60_000_000
    readings = pa.table({
        "ts": pa.array([t * minute for t, _, _ in rows]).view(pa.timestamp("us")),
        "tag": [tag for _, tag, _ in rows], "reader": [reader for _, _, reader in rows],
    })
    expected = [(0, 3, 6, 8), (2, 3, 6, 8), (4, 5, 6, 8)]
    for answer in (limit.path(readings, Path(minutes=8)), frames.path_polars(readings, Path(minutes=8))):
        times = [[us // minute for us in answer[c].cast(pa.int64()).to_pylist()] for c in answer.column_names[1:]]
        assert sorted(zip(*times)) == expected
    assert len(limit.path(readings, Path(minutes=7))) == 2  # WITHIN is inclusive, but not by so much


@pytest.mark.parametrize("label", LABELS)
def test_events_come_in_the_order_of_time_and_none_at_one_time(label: str) -> None:
    question = questions(1)[label]
    ts = question.events(1, 2000, question.keys)["ts"].cast(pa.int64()).to_numpy()
    assert (ts[1:] > ts[:-1]).all()

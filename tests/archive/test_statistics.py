"""Statistics of a history, and of a pattern over it, against what is there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from archive.history import History
from archive.statistics import pattern_statistics, stream_statistics
from tests.archive.test_search import PAIR, TICK, history_of, whole
from tests.events import batch_of
from tests.strategies import SECOND_US


def test_of_a_stream(tmp_path):
    keys = [f"k{i:02}" for i in range(40)]
    history = history_of(tmp_path / "t", keys, 3, 400)
    found = stream_statistics(history.snapshot())
    assert (found.events, found.recent, found.files) == (1600, 400, 3)
    assert (found.first_us, found.last_us) == (0, 1599 * SECOND_US)
    assert found.archived_bytes == sum(path.stat().st_size for path in (tmp_path / "t").rglob("*.parquet")
                                       if "_delta_log" not in str(path))  # fmt: skip
    assert found.per_second == pytest.approx(1600 / 1599)
    assert found.keys["k"] == pytest.approx(40, rel=0.2)
    assert found.keys["n"] == pytest.approx(7, abs=1)
    assert found.events_per_value("k") == pytest.approx(40, rel=0.2)


@pytest.mark.parametrize("place", ["memory", "files"])
def test_of_nothing(tmp_path, place):
    history = History(TICK, None if place == "memory" else tmp_path / "t")
    found = stream_statistics(history.snapshot())
    assert (found.events, found.first_us, found.files, found.per_second) == (0, None, 0, 0.0)
    assert found.keys == {"k": 0, "n": 0}
    assert pattern_statistics(history.snapshot(), PAIR).per_event == 0


def test_of_a_stream_in_memory():
    history = History(TICK, None)
    rows = [{"ts": i * SECOND_US, "k": "ab"[i % 2], "n": 1, "x": 1.0} for i in range(10)]
    history.append(batch_of(TICK, rows), np.zeros(10, np.bool_))
    found = stream_statistics(history.snapshot())
    assert (found.events, found.recent, found.first_us, found.files, found.keys) == (10, 10, 0, 0, {"k": 2, "n": 1})


def test_of_a_pattern(tmp_path):
    """A sample of keys, or of time where matches lie in no single key, is near what all events give."""
    keys = [f"k{i:02}" for i in range(40)]
    snapshot = history_of(tmp_path / "t", keys, 5, 1000).snapshot()
    for plan, cut in ((PAIR, True), (replace(PAIR, partition_by=()), False)):
        expected = len(whole(snapshot, plan, None, None, False))
        all_of_it = pattern_statistics(snapshot, plan)
        assert (all_of_it.events, all_of_it.matches, all_of_it.whole) == (6000, expected, True)
        sample = pattern_statistics(snapshot, plan, events_max=1500)
        assert not sample.whole
        assert 700 < sample.events <= 2000
        assert sample.per_event == pytest.approx(expected / 6000, rel=0.5)
        assert (sample.values is not None) == cut
        if sample.per_value is not None:
            assert sample.per_value == pytest.approx(expected / 40, rel=0.5)

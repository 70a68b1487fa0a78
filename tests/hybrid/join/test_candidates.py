"""Which ranges of history are read in one request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from archive.layout import ROW_GROUP_ROWS
from hybrid.join import candidates
from hybrid.join.candidates import read_together

HOUR = 3_600_000_000


class Archive:
    """So many events a second, of all keys; files have those of `file_us` each."""

    def __init__(self, rate: float, file_us: int) -> None:
        self.rate, self.file_us = rate, file_us

    def stretch_rows(self, low_us: int, high_us: int) -> tuple[int, int]:
        return int(self.rate * (high_us - low_us) / 1e6), 0

    def looked_at(self, low_us: int, last_us: int, keys: int) -> int:
        files = last_us // self.file_us - low_us // self.file_us + 1
        return files * min(int(self.rate * self.file_us / 1e6), keys * ROW_GROUP_ROWS)

    def about_rows(self, low_us: int, last_us: int) -> int:
        return int(self.rate * (last_us - low_us + 1) / 1e6)

    def gap_us(self) -> int:
        return int(candidates.GAP_ROWS / self.rate * 1e6)


def groups(
    monkeypatch: pytest.MonkeyPatch, rate: float, codes: Any, low: Any, last: Any, file_us: int = HOUR
) -> list[list[int]]:
    monkeypatch.setattr(candidates, "HistorySnapshot", Archive)
    archive: Any = Archive(rate, file_us)
    found = read_together(archive, np.array(codes), np.array(low, np.int64), np.array(last, np.int64))
    return [group.tolist() for group in found]


def test_ranges_of_one_key_that_overlap_are_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    low = [0, HOUR // 2, 5 * HOUR, 6 * HOUR, 9]
    last = [HOUR, 2 * HOUR, 6 * HOUR, 7 * HOUR, 8]
    assert groups(monkeypatch, 1e6, [0] * 5, low, last) == [[0, 1], [2, 3]]  # the last is empty


def test_long_ranges_of_many_keys_at_one_time_are_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    n, week = 100, 7 * 24 * HOUR
    low = [i * 1_000_000 for i in range(n)]
    assert groups(monkeypatch, 1e6, range(n), low, [us + week for us in low]) == [list(range(n))]


def test_an_hour_each_over_a_day_is_cut_where_events_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read in vain stays within bounds, and most requests are saved."""
    n = 1_000
    low = np.sort(np.random.default_rng(1).integers(0, 23 * HOUR, n))
    last = low + HOUR
    assert groups(monkeypatch, 10, range(n), low, last) == [list(range(n))]  # 864,000 events in all: as well at once
    found = groups(monkeypatch, 1e5, range(n), low, last)
    assert sorted(i for group in found for i in group) == list(range(n))
    assert len(found) < n / 5
    for group in found:
        whole = (last[group].max() - low[group].min()) * len(group)
        assert whole <= candidates.WASTE_MAX * HOUR * len(group) + n


def test_short_ranges_that_lie_near_are_one_request(monkeypatch: pytest.MonkeyPatch) -> None:
    low = [i * HOUR // 6 for i in range(100)]
    last = [us + 1_000_000 for us in low]
    assert groups(monkeypatch, 4, range(100), low, last) == [list(range(100))]
    assert groups(monkeypatch, 1e5, range(100), low, last) == [[i] for i in range(100)]


def test_a_day_each_over_a_year_is_not_read_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many requests would be saved by that."""
    n, keys, day, rate = 30_000, 10_000, 24 * HOUR, 1.6
    rng = np.random.default_rng(1)
    low, codes = np.sort(rng.integers(0, 364 * day, n)), rng.integers(0, keys, n)
    found = groups(monkeypatch, rate, codes, low, low + day)
    assert sorted(i for group in found for i in group) == list(range(n))
    assert 10 < len(found) < n / 100
    read = sum((low[g].max() + day - low[g].min()) / 1e6 * rate * len(np.unique(codes[g])) / keys for g in found)
    assert read < 364 * 86_400 * rate / 5


def test_what_lies_in_the_same_files_is_not_cut_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour each over a day of 1.7 million events: each request would look at all of them."""
    n, keys, rate = 1_000, 1_000, 20
    rng = np.random.default_rng(1)
    low, codes = np.sort(rng.integers(0, 23 * HOUR, n)), rng.integers(0, keys, n)
    found = groups(monkeypatch, rate, codes, low, low + HOUR, file_us=24 * HOUR)
    assert sorted(i for group in found for i in group) == list(range(n))
    assert 2 <= len(found) <= 4

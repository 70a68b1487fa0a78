"""The experiments of partial matches that do not fit in memory: all settings agree, and the page is what they say."""

from __future__ import annotations

import json

import pytest

from benchmarks.spill import page
from tests.benchmarks.test_benchmarks import printed

pytestmark = pytest.mark.slow


def test_every_policy_finds_the_same() -> None:
    small = "--events", "30_000", "--sizes", "20_000", "--ratios", "0.3", "--fits", "500", "--repeat", "1"
    result = printed("benchmarks.spill", *small)
    assert result["disagreements"] == []
    (by_ratio,), (by_size,) = result["by_ratio"], result["by_size"]
    for row in (by_ratio, by_size):
        by = row["policies"]
        assert set(by) == {"unlimited", "tpm", "stpm", "lru", "due"}
        assert by["unlimited"]["matches"] > 1_000
        assert by["unlimited"]["written"] == by["unlimited"]["misses"] == 0
        for name in ("tpm", "stpm", "lru", "due"):
            assert by[name]["written"] > 1_000
            assert by[name]["bytes"] <= result["limit_bytes"]
        assert by["stpm"]["misses"] <= by["tpm"]["misses"]
    text = page.render(result)
    assert "30,000 events" in text


def test_the_page_is_what_was_measured() -> None:
    measured = json.loads(page.MEASURED.read_text(encoding="utf-8"))
    assert measured["disagreements"] == []
    assert page.PAGE.read_text(encoding="utf-8") == page.render(measured), "run python -m benchmarks.spill --page"

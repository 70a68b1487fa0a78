"""What the properties need to reach with their few rows."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from matching.engines.choose import choose_engine
from tests.engines import once


@pytest.fixture(autouse=True, scope="module")
def every_snapshot_looks_at_what_is_needed() -> Iterator[None]:
    """Otherwise none would: a snapshot of so few rows has them all. For no test of another folder, which may count
    what is in memory."""
    with patch("matching.rows.FEW", 0):
        yield


@pytest.fixture(autouse=True, scope="module")
def an_engine_is_chosen_once() -> Iterator[None]:
    """For each plan, though a property makes many matchers of it."""
    with patch("matching.matcher.choose_engine", once(choose_engine)):
        yield

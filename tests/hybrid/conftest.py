"""A fixture of all tests of hybrid: no process outlives its test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hybrid.processes import end_all


@pytest.fixture(autouse=True)
def _processes_end_with_their_test() -> Iterator[None]:
    # Before: the service of a test that failed ran on, and its ResourceWarning failed one that came later.
    yield
    end_all()

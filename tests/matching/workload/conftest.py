"""Plans are compared by the units of the equations: what is expected of them does not depend on a machine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from matching.workload import cost


@pytest.fixture(autouse=True, scope="module")
def additions() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cost, "WEIGHTS", cost.ADDITIONS)
        yield

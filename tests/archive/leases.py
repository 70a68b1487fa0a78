"""Leases of a database in a store, as tests of other folders break them: it alone knows what a writer hides."""

from __future__ import annotations

import pytest

from archive.writer import Writer
from tests.waiting import GUARD_S


def stalled(writer: Writer) -> None:
    """Stops the thread that renews a lease, as a process does that is stopped for long."""
    writer._stopping.set()


def goes_on(writer: Writer) -> None:
    """Lets it renew once more, as if it had noticed nothing: it finds who has the lease, and ends."""
    writer._lost = None
    writer._stopping.clear()
    writer.renew()
    assert writer._thread is not None
    writer._thread.join(GUARD_S)


def claims_fail(patch: pytest.MonkeyPatch, error: OSError) -> None:
    """Makes the claim of the tables fail."""

    def fail(*given: object) -> None:
        raise error

    patch.setattr("archive.writer._claimed", fail)

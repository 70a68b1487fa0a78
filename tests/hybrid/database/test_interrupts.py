"""A session ended at any line of our code, or at any call of the system, goes on as if it had not been.

INTERRUPTS=all tries every line that a step reaches, at a drawn one of the times when it does (hours); otherwise it is
so many seconds of the processor for each kind, a seeded choice (SEED) of these: as many on a busy machine."""

from __future__ import annotations

import errno
import os
import random
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hybrid
from tests.hybrid.interrupted import Session, disturbed, interrupt, points, raising, undisturbed
from tests.in_memory import MEMORY

pytestmark = pytest.mark.filterwarnings("ignore::hybrid.HybridWarning")

CHOSEN = os.environ.get("INTERRUPTS", "1")
#: So many points are tried however long each takes: a machine that is busy tries a few all the same.
LEAST = 8
SEED = int(os.environ.get("SEED", "22"))
KINDS: dict[str, Callable[[], None]] = {
    "ctrl-c": interrupt,
    "KeyboardInterrupt": raising(KeyboardInterrupt),
    "MemoryError": raising(MemoryError),
}


def full_disk() -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture(scope="module", params=["memory", "disk"])
def place(request: pytest.FixtureRequest) -> Iterator[Path | None]:
    if request.param == "memory":
        yield None
        return
    with tempfile.TemporaryDirectory(dir=MEMORY) as root:
        yield Path(root)


@pytest.fixture(scope="module")
def wanted(place: Path | None) -> Session:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hybrid.HybridWarning)
        undisturbed(fresh(place))  # compiles
        return undisturbed(fresh(place))


@pytest.fixture(scope="module", autouse=True)
def parts() -> Iterator[None]:
    """A push reaches the queries in two parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hybrid.watch.flow.PART_ROWS", 5)
        yield


def fresh(place: Path | None) -> Path | None:
    if place is None:
        return None
    shutil.rmtree(place / "db", ignore_errors=True)
    return place / "db"


def chosen(found: dict[str, list[str]]) -> list[tuple[str, int]]:
    """For each place that a step reaches one of the times when it does, drawn, in the order of a draw."""
    all_points = [(name, at + 1, where) for name, places in found.items() for at, where in enumerate(places)]
    random.Random(SEED).shuffle(all_points)
    return [(name, at) for (name, _), at in {(name, where): at for name, at, where in all_points}.items()]


def end_of(share: float) -> float:
    """The processor time until which points are tried."""
    return time.process_time() + (float("inf") if CHOSEN == "all" else share * float(CHOSEN))


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", KINDS)
def test_every_line(place: Path | None, wanted: Session, kind: str, record_property: Callable[..., None]) -> None:
    # Before: Ctrl-C in a push lost rows of live queries (10 of 16 in one case), and left events that the stream had
    # counted and the archive had not, whose checkpoint could not be opened.
    everything, tried, until = chosen(points(fresh(place))), 0, end_of(1 if place is None else 2 / 3)
    for name, at in everything:
        if tried >= LEAST and time.process_time() > until:
            break
        check(place, wanted, kind, name, at)
        tried += 1
    record_property("examples", f"{tried:,} of {len(everything):,} points")
    assert tried >= LEAST


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_every_call(record_property: Callable[..., None]) -> None:
    """The system refuses one call: the disk is full at that moment."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as root:
        every_call(Path(root), record_property)


def every_call(place: Path, record_property: Callable[..., None]) -> None:
    undisturbed(fresh(place))
    wanted = undisturbed(fresh(place))
    everything, tried, until = chosen(points(fresh(place), calls=True)), 0, end_of(1)
    for name, at in everything:
        if tried >= LEAST and time.process_time() > until:
            break
        check(place, wanted, "OSError", name, at)
        tried += 1
    record_property("examples", f"{tried:,} of {len(everything):,} points")
    assert tried >= LEAST


def check(place: Path | None, wanted: Session, kind: str, name: str, at: int) -> None:
    act, calls = (full_disk, True) if kind == "OSError" else (KINDS[kind], False)
    session, disturbance, seen = disturbed(fresh(place), name, at, act, calls, reopen=at % 2 == 0)
    where = f"{kind} at point {at} of {name}, {disturbance.where}"
    if not disturbance.where:
        return  # this time the step had fewer points
    if kind == "ctrl-c":
        assert isinstance(seen, KeyboardInterrupt), where
    assert session.kept == wanted.kept, where
    for query, rows in wanted.rows.items():
        found = session.rows.get(query, {})
        if query in session.failed:
            # the query says so, and has given nothing that is wrong; after a Ctrl-C it goes on
            assert kind != "ctrl-c", where
            assert "interrupted" in session.failed[query], (where, session.failed)
            assert place is None, where
            assert all(rows[key] == some for key, some in found.items()), where
        else:
            assert found == rows, where

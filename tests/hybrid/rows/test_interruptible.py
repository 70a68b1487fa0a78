"""Ctrl-C while DuckDB may run: raised once, never lost, and nothing of it stays."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import hybrid
from hybrid.rows.duck import cursor, interruptible

LONG = "SELECT count(*) FROM range(200000) a, range(100000) b WHERE (a.range * b.range) % 7 = 3"


@pytest.fixture(autouse=True)
def pythons_own_handler() -> Iterator[None]:
    """A session of Spark in this process has set another one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Deleted:
    def __del__(self) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        len([])  # it is raised here at the latest


def run_with_one_dropped() -> None:
    with interruptible():
        connection = cursor()
        Deleted()
        connection.execute(LONG).fetchall()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_ctrl_c_that_python_drops_is_raised_again() -> None:
    # Before: the statement ran to its end. Python prints and drops what is raised while an object is deleted, also at
    # the end of a generator that was not read to its end, of which parsing a statement has many.
    with pytest.raises(KeyboardInterrupt):  # raised again: at its end it would return its rows
        run_with_one_dropped()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    time.sleep(1.5)  # none comes afterwards


def run_with_ctrl_c_at(point: int) -> tuple[bool, bool]:
    """Returns whether a Ctrl-C came at that call or return of a block, and whether it was raised."""
    seen = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal seen
        if event in ("call", "c_return"):
            seen += 1
            if seen == point:
                sys.setprofile(None)
                os.kill(os.getpid(), signal.SIGINT)

    try:
        sys.setprofile(count)
        with interruptible():
            str(1)
        sys.setprofile(None)
    except KeyboardInterrupt:
        return True, True
    finally:
        sys.setprofile(None)
    return seen >= point, False


def test_a_ctrl_c_at_any_point_of_a_block_is_raised_and_leaves_nothing() -> None:
    # Before: one at the beginning or the end of a block left a handler or a mark, and no later statement could be
    # interrupted.
    point, came = 0, True
    while came:
        point += 1
        came, raised = run_with_ctrl_c_at(point)
        assert raised == came, point
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, point
    assert point > 10


class Told:
    """A connection that counts interrupts."""

    def __init__(self) -> None:
        self.interrupts = 0

    def interrupt(self) -> None:
        self.interrupts += 1


def wait_in(connection: Told, seconds: float) -> None:
    with interruptible(connection):  # type: ignore[arg-type]
        for _ in range(int(seconds * 100)):
            time.sleep(0.01)


def test_the_next_statement_is_not_interrupted() -> None:
    # Before: HQ100, Interrupted!, in about half of the statements that began within 0.2 s after a Ctrl-C.
    told = Told()
    for _ in range(4):
        threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            wait_in(told, 5)
        before = told.interrupts
        wait_in(told, 0.4)
        assert told.interrupts == before


@pytest.mark.slow
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_ctrl_c_ends_functions_between_rows() -> None:
    # Before: Python dropped it, since it came as compiled code called Python: it was raised seconds later.
    n = 60_000
    t = pa.table({"ts": range(n), "s": [f"s{i * 7919 % 500}" for i in range(n)]})
    text = """SELECT * FROM t MATCH_RECOGNIZE (ORDER BY ts MEASURES A.ts AS a PATTERN (A B) WITHIN 200 ROWS
        SELECTION SKIP TILL NEXT MATCH DEFINE B AS levenshtein(s, A.s) > 5)"""
    hybrid.sql(text, t=t.slice(0, 50)).arrow()
    for wait_s in (0.1, 0.2, 0.3, 0.4):
        sent = threading.Timer(wait_s, os.kill, (os.getpid(), signal.SIGINT))
        sent.start()
        begun = time.process_time()
        with pytest.raises(KeyboardInterrupt):
            hybrid.sql(text, t=t).arrow()
        assert time.process_time() - begun < 20

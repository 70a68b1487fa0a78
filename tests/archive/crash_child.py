"""A process that appends to an archive until it is killed; started by test_crash, not by hand.

Arguments: directory, seed, point, count. It dies by SIGKILL at the count-th time it gets to the named point of a flush;
the point "anywhere" leaves the killing to the parent. After each flush it prints what it was promised."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from archive import layout
from archive.history import History
from archive.table import Table
from tests.archive.events import TICKS, Event, batch_of

POINTS = ("source named", "file half written", "file written", "before commit", "after commit", "flushed")


def event_at(source: str, offset: int, seq: int) -> Event:
    """The event of that identity: every process that appends it appends the same one."""
    rng = np.random.default_rng((len(source), offset))
    ts_us = 1_704_067_200_000_000 + offset * 40_000_000 + int(rng.integers(0, 60_000_000))
    symbol = (None, "A", "B")[rng.integers(0, 3)]
    return Event(ts_us, symbol, float(rng.normal()), None, source, offset, seq, bool(rng.integers(0, 10) == 0))


def say(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


def main(directory: str, seed: str, point: str, count: str) -> None:
    seen = 0

    def passing(name: str) -> None:
        nonlocal seen
        if name == point:
            seen += 1
            if seen == int(count):
                os.kill(os.getpid(), signal.SIGKILL)

    def after(call: Callable[..., Any], name: str) -> Callable[..., Any]:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            result = call(*args, **kwargs)
            passing(name)
            return result

        return wrapped

    def write_table(rows: Any, path: str, **options: Any) -> None:
        whole(rows, path, **options)
        if point == "file half written" and seen + 1 == int(count):
            os.truncate(path, os.path.getsize(path) // 2)
        passing("file half written")
        passing("file written")

    whole = pq.write_table
    layout.pq.write_table = write_table
    commit = Table._commit

    def committing(self: Table, *args: Any) -> None:
        passing("before commit")
        commit(self, *args)
        passing("after commit")

    Table._register = after(Table._register, "source named")  # type: ignore[method-assign]
    Table._commit = committing  # type: ignore[method-assign]
    history = History(TICKS, Path(directory), memory_rows_max=10**9)
    rng = np.random.default_rng(int(seed))
    say("ready")
    while True:
        for _ in range(3):
            events = []
            offsets, seq = history.offsets, history.last_seq + 1
            for source in ("a", "bb", f"c{seed}"):
                for _ in range(int(rng.integers(0, 40))):
                    offset = offsets.get(source, 0)
                    offsets[source] = offset + 1
                    events.append(event_at(source, offset, seq))
                    seq += 1
            if events:
                history.append(*batch_of(events))
        promised = history.offsets
        history.flush()
        say("kept", *(f"{source}={offset}" for source, offset in promised.items()))
        passing("flushed")


if __name__ == "__main__":
    main(*sys.argv[1:])

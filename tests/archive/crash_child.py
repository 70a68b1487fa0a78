"""A process that writes to an archive until it is killed; started by test_crash and test_races, not by hand.

Arguments: directory, seed, point, count, and what it does: "append", "maintain" (append, compact, take out what is old,
vacuum), or "compact". It dies by SIGKILL at the count-th time it gets to the named point; the point "anywhere" leaves
the killing to the parent. It prints what it was promised after each flush, and what it takes out before it does."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from archive import layout, table, upkeep
from archive.history import History
from archive.place import Place
from archive.table import Table
from tests.archive.events import TICKS, Event, batch_of
from tests.archive.kills import Death

APPENDING = ("source named", "file half written", "file written", "before commit", "after commit", "flushed")
MAINTAINING = (
    "rewrite half written", "rewrite written", "before rewrite commit", "rewrite committed, not forced",
    "after rewrite commit", "rewritten", "before taking out", "after taking out", "before vacuum", "after vacuum",
)  # fmt: skip
POINTS = (*APPENDING, *MAINTAINING)
STEP_US = 40_000_000


def event_at(source: str, offset: int, seq: int) -> Event:
    """The event of that identity: every process that appends it appends the same one."""
    rng = np.random.default_rng((len(source), offset))
    ts_us = 1_704_067_200_000_000 + offset * STEP_US + int(rng.integers(0, 60_000_000))
    symbol = (None, "A", "B")[rng.integers(0, 3)]
    return Event(ts_us, symbol, float(rng.normal()), None, source, offset, seq, bool(rng.integers(0, 10) == 0))


def say(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


def small_files() -> None:
    """Layout in small: an hour is over soon, and a few rows are many files."""
    layout.ROW_GROUP_ROWS = upkeep.ROW_GROUP_ROWS = 8
    layout.FILE_ROWS_MAX = upkeep.FILE_ROWS_MAX = 32
    layout._ENOUGH = {"h": 8, "D": 8, "M": 8, "Y": 8}
    upkeep.DAY_US = 3_600_000_000
    upkeep.FAN_IN = 4


def main(directory: str, seed: str, point: str, count: str, role: str = "append", *sources: str) -> None:
    doing = ""

    death = Death(point, int(count))
    passing, after = death.passing, death.after

    def put(path: Place, data: memoryview) -> None:
        whole(path, data)
        kind = "rewrite" if doing == "rewriting" else "file"
        if death.next_at(f"{kind} half written"):
            os.truncate(path, os.path.getsize(path) // 2)
        passing(f"{kind} half written")
        passing(f"{kind} written")

    whole = layout.put_file
    layout.put_file = put
    commit, force = Table.commit, table._sync_log

    def committing(self: Table, *args: Any) -> None:
        what = {"rewriting": "rewrite commit", "expiring": "taking out"}.get(doing, "commit")
        passing(f"before {what}")
        commit(self, *args)
        passing(f"after {what}")

    def forcing(*args: Any) -> None:
        if doing == "rewriting":
            passing("rewrite committed, not forced")
        force(*args)

    Table._register = after(Table._register, "source named")  # type: ignore[method-assign]
    Table.commit = committing  # type: ignore[method-assign]
    table._sync_log = forcing
    if role != "append":
        small_files()
    history = History(TICKS, Path(directory), memory_rows_max=10**9)
    rng = np.random.default_rng(int(seed))
    maintained = Table.open(directory)
    say("ready")
    while role == "compact":
        for _ in upkeep.compact(maintained):
            say("rewritten")
    for turn in range(10**9):
        for _ in range(3):
            events = []
            offsets, seq = history.offsets, history.last_seq + 1
            for source in sources or ("a", "bb", f"c{seed}"):
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
        if role == "append" or turn % 3:
            continue
        doing = "rewriting"
        for _ in upkeep.compact(maintained):
            passing("rewritten")
        doing = "expiring"
        edge_us = maintained.snapshot().max_us.max() - int(rng.integers(50, 400)) * STEP_US
        say("old", str(edge_us))
        upkeep.expire(maintained, edge_us)
        doing = ""
        passing("before vacuum")
        upkeep.vacuum(maintained, grace_hours=0)
        passing("after vacuum")
        history.refresh()


if __name__ == "__main__":
    main(*sys.argv[1:])

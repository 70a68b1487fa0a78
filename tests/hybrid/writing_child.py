"""A process that pushes to a database; started by test_writer and test_endings, not by hand.

Arguments: the directory, what `connect` takes as JSON, how it ends ("end", "exit", "raise", "_exit", "gc", "fork",
"never": it pushes until it is killed, "slowly": the same, 100 times a second), and how many events there are in a push.
It says what was taken."""

from __future__ import annotations

import datetime as dt
import gc
import json
import os
import sys
import time
from typing import Any

import hybrid

START = dt.datetime(2024, 1, 1)
COLUMNS = {"ts": "TIMESTAMP", "k": "VARCHAR", "v": "BIGINT"}


def events(first: int, count: int) -> list[dict[str, Any]]:
    return [{"ts": START + dt.timedelta(seconds=i), "k": "ab"[i % 2], "v": i} for i in range(first, first + count)]


def say(word: object) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main(directory: str, options: str, how: str, count: int) -> None:
    db = hybrid.connect(directory, **json.loads(options))
    db.create_stream("ticks", COLUMNS, time="ts", key="k")
    done = db.streams()["ticks"]["offsets"].get("default", 0)
    say("open")
    turns = 10**9 if how in ("never", "slowly") else 5
    for _ in range(turns):
        db.push("ticks", events(done, count))
        done += count
        say(done)
        if how == "slowly":
            time.sleep(0.01)
    if how == "exit":
        sys.exit(0)
    if how == "raise":
        raise ValueError("of the user's own")
    if how == "_exit":
        os._exit(0)
    if how == "gc":
        del db
        gc.collect()
        with hybrid.connect(directory) as again:
            say(again.streams()["ticks"]["offsets"])
    if how == "fork":
        child = os.fork()
        if child == 0:
            try:
                db.push("ticks", events(done, 1))
            except hybrid.DataError as error:
                say(error.message)
            time.sleep(1)
            sys.exit(0)  # runs what a process runs at its end: the parent's events are not its own
        db.push("ticks", events(done, count))
        db.close()
        with hybrid.connect(directory) as again:  # the child is still there, and does not hold the lock
            say(again.streams()["ticks"]["offsets"])
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))

"""A process that archives files until it kills itself at a named point; started by test_ingest, not by hand.

Arguments: directory of the table, input, point, count, and a master if Spark does it: it dies by SIGKILL at the
count-th time it gets to the point."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from archive import ingest, layout
from archive.place import Place, place_of
from archive.table import Table
from tests.archive.events import TICKS
from tests.archive.kills import Death

POINTS = (
    "source named", "bad rows written", "file half written", "file written", "list written", "before commit",
    "after commit", "published",
)  # fmt: skip


def main(directory: str, source: str, point: str, count: str, master: str = "") -> None:
    death = Death(point, int(count))
    passing, after = death.passing, death.after

    def write_file(*args: Any) -> Any:
        file = whole(*args)
        if death.next_at("file half written"):
            os.truncate(Path(directory) / file.path, file.size // 2)
        passing("file half written")
        passing("file written")
        return file

    whole = layout._write_file
    layout._write_file = write_file
    commit = Table.commit

    def committing(self: Table, *args: Any) -> None:
        passing("before commit")
        commit(self, *args)
        passing("after commit")

    Table._register = after(Table._register, "source named")  # type: ignore[method-assign]
    Table.commit = committing  # type: ignore[method-assign]
    ingest.write_bad = after(ingest.write_bad, "bad rows written")
    ingest.write_list = after(ingest.write_list, "list written")
    publish = ingest.publish

    def publishing(directory: Place, mark: int | None, files: Any) -> None:
        publish(directory, mark, files)
        if files:
            passing("published")

    ingest.publish = publishing
    job = ingest.Job(TICKS, place_of(directory), (source,))
    if master:
        from archive.spark.ingest import ingest as ingest_by_spark

        ingest_by_spark(master, job)
    else:
        ingest.ingest(job)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A driver in a process of its own: searches the archive in a directory by Spark at an address, archives files, and
says what its executors knew of us before and after.

    python -m tests.archive.spark.driver_child DIRECTORY ADDRESS OUTPUT FILES ARCHIVE TEXT...

OUTPUT becomes an Arrow file for each text, and where executors have `matching` from: before.txt and after.txt of the
searches, ingest_before.txt and ingest_after.txt. FILES, a pattern, go into the table ARCHIVE. Executors forget us
between both: other executors, in another driver, would start five times Java and Python."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import hybrid
from archive.ingest import Job
from archive.place import place_of
from archive.spark import search
from archive.spark.ingest import ingest
from archive.spark.session import ignore_pandas, spark_session
from archive.spark.ship import PACKAGES
from tests.archive.events import TICKS


def asked(session: Any) -> set[str]:
    """Where the Python processes of executors find `matching`."""

    def look(batches: Iterator[Any]) -> Iterator[Any]:
        import importlib.util

        import pyarrow

        for batch in batches:
            found = importlib.util.find_spec("matching")
            place = "" if found is None or found.origin is None else found.origin
            yield pyarrow.RecordBatch.from_pydict({"place": [place] * batch.num_rows})

    ignore_pandas()
    table = session.range(0, 40, 1, 4).mapInArrow(look, "place string").toArrow()
    return set(table.column("place").to_pylist())


def forget(session: Any) -> None:
    """Makes the Python processes of executors like new ones: without our code."""
    packages = PACKAGES

    def leave(batches: Iterator[Any]) -> Iterator[Any]:
        import sys
        import time

        for name in [m for m in sys.modules if m.partition(".")[0] in packages]:
            del sys.modules[name]
        sys.path[:] = [p for p in sys.path if "code-" not in p]
        vars(sys).pop("_hybrid_code", None)
        for batch in batches:
            time.sleep(0.2)  # so that no process takes all tasks
            yield batch

    session.range(0, 8, 1, 8).mapInArrow(leave, "id long").toArrow()


def main(directory: str, address: str, output: str, files: str, archive: str, *texts: str) -> None:
    options = {"spark.executor.memory": "512m", "spark.cores.max": "2"} if address.startswith("spark://") else {}
    session = spark_session(address, memory="1g", options=options)
    search.TASK_ROWS = 300  # several tasks
    out = Path(output)

    def tell(name: str) -> None:
        (out / f"{name}.txt").write_text("\n".join(sorted(asked(session))))

    tell("before")
    with hybrid.connect(directory) as db:
        for i, text in enumerate(texts):
            result = db.sql(text, engine="spark", spark=address)
            for name, table in ((f"{i}", result.arrow()), (f"{i}-evidence", result.evidence().arrow())):
                with pa.ipc.new_file(out / f"{name}.arrow", table.schema) as writer:
                    writer.write_table(table)
    tell("after")
    forget(session)
    tell("ingest_before")
    ingest(address, Job(TICKS, place_of(archive), (files,)))
    tell("ingest_after")
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

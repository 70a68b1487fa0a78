"""A driver in a process of its own: searches the archive in a directory by Spark at an address, and says what its
executors knew of us before and after.

    python -m tests.archive.spark.driver_child DIRECTORY ADDRESS OUTPUT TEXT...

OUTPUT becomes an Arrow file for each text, and before.txt and after.txt: where executors have `matching` from."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import hybrid
from archive.spark import search
from archive.spark.session import ignore_pandas, spark_session


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


def main(directory: str, address: str, output: str, *texts: str) -> None:
    options = {"spark.executor.memory": "512m", "spark.cores.max": "2"} if address.startswith("spark://") else {}
    session = spark_session(address, memory="1g", options=options)
    search.TASK_ROWS = 300  # several tasks
    out = Path(output)
    (out / "before.txt").write_text("\n".join(sorted(asked(session))))
    with hybrid.connect(directory) as db:
        for i, text in enumerate(texts):
            result = db.sql(text, engine="spark", spark=address)
            for name, table in ((f"{i}", result.arrow()), (f"{i}-evidence", result.evidence())):
                with pa.ipc.new_file(out / f"{name}.arrow", table.schema) as writer:
                    writer.write_table(table)
    (out / "after.txt").write_text("\n".join(sorted(asked(session))))
    session.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])

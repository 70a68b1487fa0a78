"""Writes the classes that Spark loads into an archive for Java: `python -m tests.spark_classes`, once for each .venv.

Each Java of a test maps the archive instead of reading and checking 15,000 classes anew, which is half of what its
start takes. Where Java or the archive is missing or another, it loads them as ever.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from tests.conftest import JAVA_OPTIONS, SPARK_CLASSES


def main() -> None:
    from archive.spark.session import spark_session
    from tests.archive.spark.conftest import why_no_spark

    if why_no_spark():
        return
    written = SPARK_CLASSES.with_suffix(".new")
    os.environ["SPARK_SUBMIT_OPTS"] = f"{JAVA_OPTIONS} -XX:ArchiveClassesAtExit={written}"
    session = spark_session("local[2]", options={"spark.sql.shuffle.partitions": "3"})
    _work(session)
    gateway = session.sparkContext._gateway
    session.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # Java ends, and writes the archive
    if gateway.proc.wait() == 0 and written.exists():
        written.replace(SPARK_CLASSES)


def _work(session: object) -> None:
    """Does a little of what tests do: files, a shuffle, Python over batches, rows that are fetched."""
    with tempfile.TemporaryDirectory() as place:
        files = str(Path(place) / "rows")
        rows = session.createDataFrame([(i, i % 3, str(i)) for i in range(100)], "a long, b int, c string")
        rows.write.parquet(files)
        read = session.read.parquet(files).repartition(3, "b").sortWithinPartitions("a")
        read.mapInArrow(lambda batches: batches, read.schema).toArrow()
        read.groupBy("b").applyInArrow(lambda group: group, read.schema).collect()
        read.groupBy("b").count().collect()


if __name__ == "__main__":
    main()

"""One Spark session for all tests of Spark: starting one takes longer than most of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


def why_no_spark() -> str:
    """Why Spark cannot run here, or nothing."""
    from archive.spark.session import JAVA_VERSION_MIN, java_version

    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "the spark extra is not installed"
    version = java_version()
    return "" if version is not None and version >= JAVA_VERSION_MIN else f"Java is {version}, and 17 is needed"


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A session of two tasks at a time in this process."""
    why = why_no_spark()
    if why:
        pytest.skip(why)
    from archive.spark.session import spark_session

    session = spark_session("local[2]", options={"spark.sql.shuffle.partitions": "3"})
    yield session
    session.stop()



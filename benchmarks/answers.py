"""What makes two contenders comparable: the count and a hash of their matches, and what machine they ran on."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

PACKAGES = ("pyarrow", "duckdb", "numba", "numpy", "polars", "deltalake")


def mixed(words: np.ndarray) -> np.ndarray:
    """splitmix64 of each uint64."""
    with np.errstate(over="ignore"):
        words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return words ^ (words >> np.uint64(31))


def _words(column: pa.ChunkedArray) -> np.ndarray:
    """A column as uint64, the same for every way to store the same values."""
    if column.null_count:
        raise ValueError("answers hold no nulls")
    kind = column.type
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind) or (
        pa.types.is_string_view(kind)
    ):
        if not pa.types.is_dictionary(kind):
            column = pc.cast(column, pa.string())
        encoded = pc.dictionary_encode(column).unify_dictionaries().combine_chunks()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.chunk(0)
        values = np.array([zlib.crc32(v.encode()) for v in encoded.dictionary.to_pylist()], np.uint64)
        return values[encoded.indices.to_numpy()]
    if pa.types.is_timestamp(kind):
        column = pc.cast(column.cast(pa.timestamp("us", kind.tz)), pa.int64())
    elif pa.types.is_floating(kind):
        column = pc.add(pc.cast(column, pa.float64()), 0.0)  # -0.0 and 0.0 are one value
    return np.ascontiguousarray(column.to_numpy()).view(np.uint64)


def fingerprint(answer: pa.Table, names: list[str]) -> str:
    """16 hex digits of the named columns, whatever the order of the rows and whatever types hold the same values."""
    if not len(answer):
        return f"{0:016x}"
    total = np.zeros(len(answer), np.uint64)
    with np.errstate(over="ignore"):
        for name in names:
            total = mixed(total * np.uint64(31) + _words(answer.column(name)))
        return f"{int(total.sum()):016x}"


def machine() -> dict[str, object]:
    """What the numbers depend on, without naming the machine."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [line for line in info.read_text().splitlines() if line.startswith("model name")]
        model = names[0].split(":", 1)[1].strip() if names else model
    return {"cpu": model, "cores": os.cpu_count(), "system": platform.system(), "python": platform.python_version()}


def versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in PACKAGES}

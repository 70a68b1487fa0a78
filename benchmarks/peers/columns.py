"""What engines outside of this process are given and give back: a file for each column, little-endian."""

from __future__ import annotations

from pathlib import Path as Folder

import numpy as np
import pyarrow as pa

from benchmarks.peers.limit import coded, micros, times
from benchmarks.peers.questions import Question


def written(events: pa.Table, question: Question, folder: Folder) -> pa.Array:
    """Writes the columns that the question reads, and returns the keys by their codes.

    ts: int64, microseconds since the first event; code: int64, of the key; names: the keys by their codes, a line each,
    where they are texts; word: int8, place in `words` of the text that conditions compare; price: float64, or whole:
    int64 where prices are whole numbers; volume: int64.
    """
    us = micros(events["ts"])
    (us - first_us(events)).astype("<i8").tofile(folder / "ts")
    code, keys = coded(events[question.schema.keys[0]])
    code.astype("<i8").tofile(folder / "code")
    if pa.types.is_string(keys.type):
        _lines(keys, folder / "names")
    for name in {"reader", "action"} & set(events.column_names):
        word, words = coded(events[name])
        word.astype("i1").tofile(folder / "word")
        _lines(words, folder / "words")
    if "price" in events.column_names:
        price = events["price"].to_numpy()
        whole = price.dtype.kind == "i"
        price.astype("<i8" if whole else "<f8").tofile(folder / ("whole" if whole else "price"))
    if "volume" in events.column_names:
        events["volume"].to_numpy().astype("<i8").tofile(folder / "volume")
    return keys


def first_us(events: pa.Table) -> int:
    """What the times of an engine outside count from."""
    return int(micros(events["ts"].slice(0, 1))[0]) if len(events) else 0


def since(us: np.ndarray, events: pa.Table) -> pa.Array:
    """Times from microseconds since the first event."""
    return times(us + first_us(events))


def _lines(texts: pa.Array, file: Folder) -> None:
    file.write_text("".join(f"{text}\n" for text in texts.to_pylist()), encoding="utf-8")

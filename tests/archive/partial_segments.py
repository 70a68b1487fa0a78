"""Checks segments of partial matches, frame by frame."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from archive.partials import MAGIC, SUFFIX, WORD
from matching.kernels.records import checksum
from query.errors import first_line


def check(directory: str | os.PathLike[str]) -> list[str]:
    """Checks all frames of the segments in a directory; returns texts about the faults. A torn end is not a fault,
    because no manifest needs it."""
    found = []
    for path in sorted(Path(directory).glob(f"*{SUFFIX}")):
        try:
            data = path.read_bytes()
        except OSError as error:
            found.append(f"{path}: {first_line(error)}")
            continue
        if not data.startswith(MAGIC):
            found.append(f"{path}: not a segment of partial matches")
            continue
        words = np.frombuffer(data[: len(data) // WORD * WORD], np.int64)
        at = len(MAGIC) // WORD
        while at < len(words):
            length = int(words[at]) & 0xFFFFFFFF
            if at + 1 + length > len(words):
                break
            if checksum(words, at + 1, at + 1 + length) != (int(words[at]) >> 32) & 0xFFFFFFFF:
                found.append(f"{path}: the record at byte {at * WORD} is damaged")
            at += 1 + length
    return found

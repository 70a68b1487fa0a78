"""Pending rows of live queries, and the evidence of the last fetch, in files instead of memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from hybrid.rows.answer import Answer, concat_answers, concat_matches
from hybrid.rows.evidence import Parts
from hybrid.watch.saved import put_together, taken_apart
from matching.batch import Matches

#: Directory of the files, in the directory of a database.
PAGES = "_pages"
SUFFIX = ".page"
#: Approximate bytes of the objects around the arrays of one Matches or Answer.
OBJECT_BYTES = 4096
ALIGNED = 64


class FoundPiece:
    """Matches or joined rows of a live query, in memory or in a file."""

    __slots__ = ("_bytes", "content", "in_file")

    def __init__(self, content: Matches | Answer, in_file: bool = False) -> None:
        self.content = content
        self.in_file = in_file
        self._bytes: int | None = 0 if in_file else None

    @property
    def bytes(self) -> int:
        """Approximate bytes in memory; counted at the first call, which takes longer than to find a match."""
        if self._bytes is None:
            self._bytes = OBJECT_BYTES + size_of(self.content)
        return self._bytes

    @property
    def row_count(self) -> int:
        content = self.content
        return int(content.rows.num_rows) if isinstance(content, Matches) else len(content)


def size_of(value: Any) -> int:
    """Returns the bytes of the arrays and tables of a dataclass."""
    if isinstance(value, np.ndarray | pa.Table):
        return int(value.nbytes)
    if isinstance(value, Parts):
        value = value.whole()
    if isinstance(value, tuple):
        return sum(map(size_of, value))
    return sum(size_of(getattr(value, field.name)) for field in fields(value)) if is_dataclass(value) else 0


class Pages:
    """The files of one database. A file is unlinked once it is written; its space is free after its last piece."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """Reads and writes nothing until first use."""
        self._directory = Path(directory)
        self._begun = False

    def moved(self, pieces: Sequence[FoundPiece]) -> list[FoundPiece]:
        """Returns the pieces after moving those in memory to files, neighbours as one piece. Raises OSError and then
        changes nothing."""
        found: list[FoundPiece] = []
        for (in_memory, *_), group in groupby(pieces, _kind):
            some = list(group)
            found += [FoundPiece(self._in_file(_joined(some)), in_file=True)] if in_memory else some
        return found

    def _in_file(self, content: Matches | Answer) -> Matches | Answer:
        head, arrays = taken_apart(content)
        begin = {}
        self._prepare()
        descriptor, path = tempfile.mkstemp(SUFFIX, dir=self._directory)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for name, array in arrays.items():
                    file.write(bytes(-file.tell() % ALIGNED))
                    begin[name] = file.tell()
                    file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
                file.write(bytes(ALIGNED))  # an empty file cannot be mapped
            with pa.memory_map(path) as mapped:
                buffer = mapped.read_buffer()  # outlives the file object and its descriptor
        finally:
            os.unlink(path)
        found: Matches | Answer = put_together(head, _views(buffer, arrays, begin))
        return found

    def _prepare(self) -> None:
        """Creates the directory if it is missing, and the first time removes the files of a killed process."""
        self._directory.mkdir(mode=0o700, exist_ok=True)
        if not self._begun:
            for left in self._directory.glob(f"*{SUFFIX}"):
                left.unlink()
            self._begun = True


def _kind(piece: FoundPiece) -> tuple[bool, bool]:
    """Returns whether a piece is in memory and has ends; pieces that agree in both can be joined."""
    return not piece.in_file, isinstance(piece.content, Matches) and piece.content.ends is not None


def _joined(pieces: Sequence[FoundPiece]) -> Matches | Answer:
    contents = [piece.content for piece in pieces]
    matches = [c for c in contents if isinstance(c, Matches)]
    return concat_matches(matches) if matches else concat_answers([c for c in contents if isinstance(c, Answer)])


def _views(buffer: pa.Buffer, arrays: Mapping[str, np.ndarray], begin: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Returns arrays of the same types and shapes over the bytes of a file."""
    return {
        name: np.frombuffer(buffer, array.dtype, array.size, begin[name]).reshape(array.shape)
        for name, array in arrays.items()
    }

"""Dead letters: rejected payloads and rows as lines of a file, which is rotated when it is full."""

from __future__ import annotations

import os
from pathlib import Path

from archive.place import open_private

#: Number of full files that are kept. bad.ndjson.1 is the newest; the oldest is deleted for a new one.
KEPT = 9


def append(file: Path, line: str, bytes_max: int) -> Path | None:
    """Appends a line, whole or not at all. Returns the oldest file if it was deleted for it, else None. bytes_max: the
    largest size of a file. Raises OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    data = line.encode() + b"\n"
    removed = None
    out = open_private(file, os.O_RDWR | os.O_APPEND)
    try:
        size = os.fstat(out).st_size
        if size and size + len(data) > bytes_max:
            removed = _rotate(file)
            full, out, size = out, open_private(file, os.O_RDWR | os.O_APPEND), 0
            os.close(full)
        if size and os.pread(out, 1, size - 1) != b"\n":
            data = b"\n" + data  # keeps a line torn by a crash separate
        try:
            done = 0
            while done < len(data):
                done += os.write(out, data[done:])
        except OSError:
            os.ftruncate(out, size)
            raise
    finally:
        os.close(out)
    return removed


def _rotate(file: Path) -> Path | None:
    """Renames each full file to the next number. Returns the oldest one if it was deleted, else None."""
    names = [file, *(file.with_name(f"{file.name}.{i}") for i in range(1, KEPT + 1))]
    used = next((i for i, name in enumerate(names) if not name.exists()), len(names))
    removed = names[-1] if used == len(names) else None
    for i in reversed(range(min(used, KEPT))):
        os.replace(names[i], names[i + 1])
    return removed

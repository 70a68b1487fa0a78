"""Damage to files, point by point: each bit flipped, each length that a file can be cut to, each file removed.

DAMAGE=all tries all of one file of each kind, and one in RARE of the others (make nightly); else those that say most,
and others by a seed until so much time of the processor is over: as many on a busy machine."""

from __future__ import annotations

import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from query.errors import DataError

ALL = os.environ.get("DAMAGE") == "all"
RARE = 50


@dataclass(frozen=True, slots=True)
class Point:
    """at: the number of a bit, or of bytes."""

    path: str
    what: str  # flip, cut, remove
    at: int = 0

    def apply(self, directory: Path) -> None:
        file = directory / self.path
        if self.what == "remove":
            file.unlink()
            return
        data = bytearray(file.read_bytes())
        if self.what == "flip":
            data[self.at // 8] ^= 1 << self.at % 8
        file.write_bytes(data if self.what == "flip" else data[: self.at])


def points(directory: Path, left_out: tuple[str, ...]) -> Iterator[Point]:
    """All that can happen to the files in a directory. left_out: names of files and directories that are not looked
    at."""
    for file in sorted(directory.rglob("*")):
        path = str(file.relative_to(directory))
        if file.is_file() and not set(path.split("/")) & set(left_out):
            size = file.stat().st_size
            yield Point(path, "remove")
            yield from (Point(path, "cut", length) for length in range(size))
            yield from (Point(path, "flip", bit) for bit in range(8 * size))


def one_of_each_kind(found: list[Point], rare: int = RARE) -> list[Point]:
    """The points of the last file of each kind, and one in `rare` of the others."""
    last: dict[tuple[str, str], str] = {}
    for path in sorted({point.path for point in found}):
        folder, _, name = path.rpartition("/")
        if not (folder.endswith("_head") and name.endswith(".parquet")) and not name.endswith(".copy"):
            last[folder if "_" in folder else "data", name.rpartition(".")[2]] = path
    wanted = set(last.values())
    return [point for i, point in enumerate(found) if point.path in wanted or i % rare == 0]


def try_all(
    found: list[Point], seconds: float, everything: bool, ask: Callable[[Point], tuple[bool, str]]
) -> tuple[Counter[str], list[tuple[Point, str]]]:
    """Asks again at each point: how it went, counted, and where fewer events or others came without a word, or with one
    that does not name the file. ask: whether the answers are the same, and the warnings; raises DataError."""
    plain = [p for p in found if p.what == "remove" or (p.what == "cut" and p.at == 0)]
    plain = plain if everything else one_of_each_kind(plain, 9)
    some = min(len(found), int(seconds * 400))
    rest = one_of_each_kind(found) if everything else random.Random(7).sample(found, some)
    end = time.process_time() + seconds
    counts: Counter[str] = Counter()
    silent: list[tuple[Point, str]] = []
    for number, point in enumerate([*plain, *rest]):
        if not everything and number >= len(plain) and time.process_time() > end:
            break
        folder, _, name = point.path.rpartition("/")
        names = (name, folder) if point.what == "remove" else (name,)  # of what is gone nothing may know the name
        try:
            same, said = ask(point)
            outcome = "same" if same else "said"
            if not same and not any(one in said for one in names):
                silent.append((point, said))
        except DataError as error:
            outcome = "refused"
            if not any(one in str(error) for one in names):
                silent.append((point, str(error)))
        counts[f"{point.what} {outcome}"] += 1
    files = len({point.path for point in found})
    sys.stdout.write(f"\n{sum(counts.values()):,} points in {files} files: {dict(counts)}\n")
    return counts, silent

"""Checksums of data files: what a disk has spoilt is found before a reader sees it.

Parquet's own checksums cover the contents of pages, and DuckDB does not look at them. So a file of ours carries, under
SUMS in its footer, the CRC-32 of each row group, with the bounds of the columns by which readers leave row groups out;
and its name ends with a digest of the footer. The log names the file, so the footer is known by the log, and the row
groups by the footer. A reader checks the row groups that it is about to read, each once in a process.

Files of a store are not checked while they are read: a store checks what it keeps and what it sends. `hybrid archive
verify --deep` checks all of them. Files without a digest in their name are older, or of another writer: only their
sizes are known.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from archive.place import Place
from archive.recent import BoolArray, Wanted
from matching.batch import Int64Array

SUMS = "hybrid.sums"
#: Hexadecimal digits of the digest in a name.
_DIGITS = 16
_NAME = re.compile(rf"\.([0-9a-f]{{{_DIGITS}}})\.parquet$")
#: Longer strings have no bounds: their row groups are always checked.
_LENGTH_MAX = 256
#: Of more values than this DuckDB is told by a join, and leaves row groups out by the least and the greatest of them.
_VALUES_MAX = 64
#: So many bytes are checked by several threads.
_THREADS_FROM = 32 << 20


# ---- written


def sums_text(data: bytes | memoryview, ends: list[int], groups: Iterable[pa.Table], columns: Iterable[str]) -> str:
    """What stands under SUMS. data: the bytes of all row groups, with the file's head; ends: where each group ends;
    groups: their rows; columns: those that get bounds, if they are integers, times or strings."""
    crcs = [zlib.crc32(data[start:end]) for start, end in zip([0, *ends], ends)]
    groups = list(groups)
    bounds: dict[str, list[list[Any]]] = {name: [[], [], []] for name in columns}
    for rows in groups:
        for name, (least, greatest, nulls) in bounds.items():
            column = rows.column(name)
            low, high = _bounds(column)
            least.append(low)
            greatest.append(high)
            nulls.append(column.null_count)
    return json.dumps({"ends": ends, "crcs": crcs, "rows": [rows.num_rows for rows in groups], "bounds": bounds})


def _bounds(column: pa.ChunkedArray) -> tuple[Any, Any]:
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if not pa.types.is_integer(column.type) and not pa.types.is_string(column.type):
        return None, None
    both = pc.min_max(column).as_py()
    low, high = both["min"], both["max"]
    if isinstance(low, str) and max(len(low), len(high)) > _LENGTH_MAX:
        return None, None
    return low, high


def digest_of(footer: bytes | memoryview) -> str:
    """What the name of a file says of its bytes behind the last row group."""
    return hashlib.sha256(footer).hexdigest()[:_DIGITS]


def has_sums(path: str) -> bool:
    """Whether a file, by its name, can be checked."""
    return _NAME.search(path) is not None


# ---- read


#: Nothing: only that the files are there, with the footers that they had.
FOOTERS = Wanted(2**62, -(2**62), {}, True, ())


class Damaged(Exception):
    """A file whose bytes are not those that were written. path: below the table; what: in words. groups: the numbers of
    the row groups that are damaged, with the sums of the file; None: all that is in it."""

    def __init__(self, path: str, what: str, sums: Sums | None = None, groups: list[int] | None = None) -> None:
        super().__init__(f"{path} {what}")
        self.path = path
        self.sums = sums
        self.groups = groups


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one column, for each row group: least and greatest value, whether these are known, and whether there is a
    null."""

    least: np.ndarray
    greatest: np.ndarray
    known: BoolArray
    null: BoolArray

    def may_hold(self, values: pa.Array) -> BoolArray:
        """For each row group whether it may hold one of the values."""
        some = sorted(set(values.drop_null().to_pylist()))
        found = ~self.known
        if values.null_count:
            found |= self.null
        if some:
            known = np.flatnonzero(self.known)
            least, greatest = self.least[known], self.greatest[known]
            if 1 < len(some) <= _VALUES_MAX:
                wanted = np.array(some, object)
                at = np.searchsorted(wanted, least)
                inside = (at < len(wanted)) & (wanted[np.minimum(at, len(wanted) - 1)] <= greatest)
            else:
                inside = (greatest >= some[0]) & (least <= some[-1])
            found[known] |= inside.astype(np.bool_)
        return found


@dataclass(slots=True)
class Sums:
    """Of one file: where its row groups end, their CRC-32 and rows, the bounds of some columns in each, and
    which groups have been found whole."""

    ends: Int64Array
    crcs: list[int]
    rows: list[int]
    bounds: Mapping[str, Bounds]
    whole: BoolArray = field(repr=False)

    def may_hold(self, wanted: Wanted, time: str) -> BoolArray:
        """For each row group whether it may be read for what is wanted."""
        found = np.ones(len(self.crcs), np.bool_)
        if time in self.bounds and (wanted.low_us is not None or wanted.end_us is not None):
            of = self.bounds[time]
            if wanted.low_us is not None:
                found &= (of.greatest >= wanted.low_us).astype(np.bool_)
            if wanted.end_us is not None:
                found &= (of.least < wanted.end_us).astype(np.bool_)
        for name, values in wanted.keys.items():
            if name in self.bounds and (pa.types.is_string(values.type) or pa.types.is_integer(values.type)):
                found &= self.bounds[name].may_hold(values)
        if wanted.span is not None and wanted.span.column in self.bounds:
            of = self.bounds[wanted.span.column]
            known = np.flatnonzero(of.known)
            if wanted.span.low is not None:
                found[known] &= (of.greatest[known] >= wanted.span.low).astype(np.bool_)
            if wanted.span.end is not None:
                found[known] &= (of.least[known] < wanted.span.end).astype(np.bool_)
        return found

    def range_of(self, group: int) -> tuple[int, int]:
        """Where the bytes of a row group stand."""
        return int(self.ends[group - 1]) if group else 0, int(self.ends[group])


_KNOWN_MAX = 20_000
#: What is known of the files of this process: by path, with what the operating system says of the file.
_known: dict[str, tuple[tuple[int, int, int], Sums | None]] = {}


def check(directory: Place, files: Iterable[tuple[str, int]], wanted: Wanted | None, time: str) -> None:
    """Raises Damaged for the first file that is not what was written, or is gone. files: paths below the directory with
    their sizes, of which the row groups that hold what is wanted are about to be read (None: all)."""
    if not directory.on_disk:
        return
    todo: list[tuple[str, Sums, list[int]]] = []
    total = 0
    for path, size in files:
        sums = _sums_on_disk(f"{directory.root}/{path}", path, size)
        if sums is None:
            continue
        groups = ~sums.whole if wanted is None else ~sums.whole & sums.may_hold(wanted, time)
        if groups.any():
            numbers = np.flatnonzero(groups).tolist()
            total += sum(end - start for start, end in map(sums.range_of, numbers))
            todo.append((path, sums, numbers))
    if total > _THREADS_FROM and len(todo) > 1:
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            list(pool.map(lambda one: _check_groups(directory, *one), todo))
    else:
        for one in todo:
            _check_groups(directory, *one)


def _sums_on_disk(full: str, path: str, size: int) -> Sums | None:
    """What is to be checked of a file; None where nothing is left, or nothing is known but its size."""
    try:
        status = os.stat(full)
    except OSError as error:
        gone = isinstance(error, FileNotFoundError)
        raise Damaged(path, "is gone" if gone else f"cannot be read: {error.strerror}") from None
    stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
    known = _known.get(full)
    if known is None or known[0] != stamp:
        if status.st_size != size:
            raise Damaged(path, f"has {status.st_size:,} bytes, not {size:,}")
        sums = None
        if has_sums(path):
            with open(full, "rb", buffering=0) as file:
                sums = read_sums(path, size, lambda start, end: os.pread(file.fileno(), end - start, start))
        if len(_known) > _KNOWN_MAX:  # files come and go for as long as a process lives
            for old in list(_known)[: _KNOWN_MAX // 2]:
                _known.pop(old, None)
        known = _known[full] = (stamp, sums)
    sums = known[1]
    if sums is not None and sums.whole.all():
        _known[full] = (stamp, None)  # nothing of it is needed any more
        return None
    return sums


def read_sums(path: str, size: int, read: Any) -> Sums:
    """The sums of a file whose name has a digest. read: gives the bytes from one place to another. Raises Damaged."""
    match = _NAME.search(path)
    assert match is not None
    tail = bytes(read(max(size - 8, 0), size))
    length = int.from_bytes(tail[:4], "little")
    footer = bytes(read(size - 8 - length, size)) if len(tail) == 8 and length <= size - 8 else b""
    if digest_of(footer) != match[1]:
        raise Damaged(path, "is damaged in its footer")
    at = footer.index(SUMS.encode())
    found, _ = json.JSONDecoder().raw_decode(footer[footer.index(b"{", at) :].decode("latin-1"))
    bounds = {name: _bounds_of(*parts) for name, parts in found["bounds"].items()}
    ends = np.array(found["ends"], np.int64)
    return Sums(ends, found["crcs"], found["rows"], bounds, np.zeros(len(ends), np.bool_))


def _bounds_of(least: list[Any], greatest: list[Any], nulls: list[int]) -> Bounds:
    known = np.array([value is not None for value in least], np.bool_)
    number = np.int64 if known.all() and not isinstance(least[0], str) else object
    return Bounds(np.array(least, number), np.array(greatest, number), known, np.array(nulls) > 0)


def _check_groups(directory: Place, path: str, sums: Sums, groups: list[int]) -> None:
    with open(f"{directory.root}/{path}", "rb", buffering=0) as file:
        number = file.fileno()
        bad = damaged_groups(sums, groups, lambda start, end: os.pread(number, end - start, start))
    if bad:
        raise Damaged(path, f"is damaged in {said(bad, len(sums.crcs))}", sums, bad)


def damaged_groups(sums: Sums, groups: Iterable[int], read: Any) -> list[int]:
    """Those of some row groups whose bytes are not what was written; the others are marked as whole."""
    bad = []
    for group in groups:
        start, end = sums.range_of(group)
        if zlib.crc32(read(start, end)) == sums.crcs[group]:
            sums.whole[group] = True
        else:
            bad.append(group)
    return bad


def said(groups: list[int], of: int) -> str:
    """Row groups in words."""
    if len(groups) == of:
        return "all row groups" if of > 1 else "its only row group"
    return f"row group{'s' * (len(groups) > 1)} {', '.join(str(g + 1) for g in groups)} of {of}"


def inspect(place: Place, path: str, size: int, deep: bool = True) -> tuple[Sums, list[int]] | None:
    """The sums of a file, on disk or in a store, and which of its row groups are damaged (none if not deep: these are
    not read then); None for one that has no sums. Raises Damaged where the footer is, and OSError."""
    if not has_sums(path):
        return None
    with (place / path).filesystem.open_input_file((place / path).key) as file:
        if file.size() != size:
            raise Damaged(path, f"has {file.size():,} bytes, not {size:,}")

        def read(start: int, end: int) -> bytes:
            return bytes(file.read_at(end - start, start))

        sums = read_sums(path, size, read)
        return sums, damaged_groups(sums, range(len(sums.crcs)), read) if deep else []


def inspect_bytes(path: str, size: int, data: bytes) -> None:
    """Raises Damaged where these are not the bytes of a file. size: what the log says, negative if it says nothing."""
    if size >= 0 and len(data) != size:
        raise Damaged(path, f"has {len(data):,} bytes, not {size:,}")
    if size >= 0 and has_sums(path):
        sums = read_sums(path, size, lambda start, end: data[start:end])
        bad = damaged_groups(sums, range(len(sums.crcs)), lambda start, end: data[start:end])
        if bad:
            raise Damaged(path, f"is damaged in {said(bad, len(sums.crcs))}", sums, bad)

"""Checksums of data files: detect damage before a reader returns damaged rows.

Parquet's own checksums cover only page contents, and DuckDB ignores them. So our files store in their footer, under
SUMS, the CRC-32 of each row group and the bounds of the columns by which readers skip row groups; and their names end
with a digest of the footer. The log lists the names, so it authenticates the footers, and these the row groups. A
reader checks the row groups that it is about to read, each once per process.

Files in a store are not checked when read: a store checks what it stores and sends. `hybrid archive verify --deep`
checks all files. Files without a digest in the name are older or of another writer: only their sizes are known.
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
from archive.recent import BoolArray, ResolvedRequest
from matching.batch import Int64Array

SUMS = "hybrid.sums"
#: Hexadecimal digits of the digest in a name.
_DIGITS = 16
_NAME = re.compile(rf"\.([0-9a-f]{{{_DIGITS}}})\.parquet$")
#: Longer strings get no bounds: their row groups are always checked.
_LENGTH_MAX = 256
#: DuckDB gets more values than this as a join, and then prunes row groups by the least and the greatest value.
_VALUES_MAX = 64
#: More bytes than this are checked by several threads.
_THREADS_FROM = 32 << 20


# ---- written


def sums_text(data: bytes | memoryview, ends: list[int], groups: Iterable[pa.Table], columns: Iterable[str]) -> str:
    """Returns the JSON text under SUMS. data: the file up to the end of its last row group. ends: end of each group in
    bytes. groups: the rows of each group. columns: the columns that get bounds, if integers, times or strings."""
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
    """Returns the digest in a file's name: of the bytes after the last row group."""
    return hashlib.sha256(footer).hexdigest()[:_DIGITS]


def has_sums(path: str) -> bool:
    """Returns True if the name of a file has a digest, so that the file can be checked."""
    return _NAME.search(path) is not None


# ---- read


#: A request that matches no row group: checks only that the files exist with their original footers.
FOOTERS = ResolvedRequest(2**62, -(2**62), {}, True, ())


class Damaged(Exception):
    """A missing or damaged file. path: relative to the table. what: the end of a sentence that begins with the path.
    sums, groups: the file's sums and the numbers of its damaged row groups; None if the whole file is damaged. gone:
    True if there is no such file."""

    def __init__(
        self, path: str, what: str, sums: Sums | None = None, groups: list[int] | None = None, gone: bool = False
    ) -> None:  # fmt: skip
        super().__init__(f"{path} {what}")
        self.path = path
        self.what = what
        self.gone = gone
        self.sums = sums
        self.groups = groups


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one column, one item per row group. known: least and greatest are known. null: there is a null."""

    least: np.ndarray
    greatest: np.ndarray
    known: BoolArray
    null: BoolArray

    def may_hold(self, values: pa.Array) -> BoolArray:
        """Returns for each row group True if it may hold one of the values."""
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
    """Checksums of one file, per row group: end in bytes, CRC-32, number of rows, and bounds of some columns. whole:
    groups that were checked and found intact."""

    ends: Int64Array
    crcs: list[int]
    rows: list[int]
    bounds: Mapping[str, Bounds]
    whole: BoolArray = field(repr=False)

    def may_hold(self, wanted: ResolvedRequest, time: str) -> BoolArray:
        """Returns for each row group True if a read of the request may touch it."""
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
        """Returns the byte range [start, end) of a row group."""
        return int(self.ends[group - 1]) if group else 0, int(self.ends[group])


_KNOWN_MAX = 20_000
#: Cache of this process: full path -> (file's time of change, size and inode; sums, or None if nothing is to check).
_known: dict[str, tuple[tuple[int, int, int], Sums | None]] = {}


def check(directory: Place, files: Iterable[tuple[str, int]], wanted: ResolvedRequest | None, time: str) -> None:
    """Checks files before a read; raises Damaged for the first missing or damaged one. Does nothing for a store.

    files: (path relative to the directory, size). wanted: the request; only row groups that it may touch are checked
    (None: all). time: name of the time column."""
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
    """Returns the sums of a file; None if all row groups are checked, or if the file has no sums. Raises Damaged."""
    try:
        status = os.stat(full)
    except OSError as error:
        gone = isinstance(error, FileNotFoundError)
        raise Damaged(path, "is missing" if gone else f"cannot be read: {error.strerror}", gone=gone) from None
    stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
    known = _known.get(full)
    if known is None or known[0] != stamp:
        if status.st_size != size:
            raise Damaged(path, f"has {status.st_size:,} bytes, not {size:,}")
        sums = None
        if has_sums(path):
            with open(full, "rb", buffering=0) as file:
                sums = read_sums(path, size, lambda start, end: os.pread(file.fileno(), end - start, start))
        if len(_known) > _KNOWN_MAX:  # a process may see any number of files
            for old in list(_known)[: _KNOWN_MAX // 2]:
                _known.pop(old, None)
        known = _known[full] = (stamp, sums)
    sums = known[1]
    if sums is not None and sums.whole.all():
        _known[full] = (stamp, None)  # nothing is left to check
        return None
    return sums


def read_sums(path: str, size: int, read: Any) -> Sums:
    """Returns the sums of a file whose name has a digest. read: returns the bytes [start, end). Raises Damaged if the
    footer is damaged."""
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
    """Returns the damaged ones of some row groups; marks the others as whole."""
    bad = []
    for group in groups:
        start, end = sums.range_of(group)
        if zlib.crc32(read(start, end)) == sums.crcs[group]:
            sums.whole[group] = True
        else:
            bad.append(group)
    return bad


def said(groups: list[int], of: int) -> str:
    """Returns a text that names row groups, counted from 1. of: number of row groups of the file."""
    if len(groups) == of:
        return "all row groups" if of > 1 else "its only row group"
    return f"row group{'s' * (len(groups) > 1)} {', '.join(str(g + 1) for g in groups)} of {of}"


def inspect(place: Place, path: str, size: int, deep: bool = True) -> tuple[Sums, list[int]] | None:
    """Returns the sums of a file, on disk or in a store, and its damaged row groups (deep=False: not checked, empty);
    None for a file without sums. Raises Damaged if its size or footer is wrong, and OSError."""
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
    """Raises Damaged if the bytes of a file are damaged. size: its size by the log, negative if unknown."""
    if size >= 0 and len(data) != size:
        raise Damaged(path, f"has {len(data):,} bytes, not {size:,}")
    if size >= 0 and has_sums(path):
        sums = read_sums(path, size, lambda start, end: data[start:end])
        bad = damaged_groups(sums, range(len(sums.crcs)), lambda start, end: data[start:end])
        if bad:
            raise Damaged(path, f"is damaged in {said(bad, len(sums.crcs))}", sums, bad)

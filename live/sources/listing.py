"""The files that a path names: their formats, and the order in which they are read."""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from live.sources.decode import Finer, Times
from query.errors import first_line

FileFormat: TypeAlias = Literal["csv", "ndjson", "parquet"]

_SUFFIXES: dict[str, FileFormat] = {
    ".csv": "csv", ".ndjson": "ndjson", ".jsonl": "ndjson", ".json": "ndjson", ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FileSettings:
    """The files to read, and the way to read them.

    path: a file, a directory (all files below it) or a glob; below directories, names that begin with a dot or an
    underscore are ignored.
    format: None: by suffix, .csv .ndjson .jsonl .json .parquet .pq, each optionally with .gz; other files are ignored.
    follow: True: waits for new records and new files; False: reads everything once. A .gz file is read when it is
    complete; it cannot be followed alone.
    rotation: the meaning of new content at a path whose earlier content is nowhere to be found: "error", or "follow":
    a new file. With "follow", app.log.1 and app.log-20240301.gz belong to app.log and are read before it.
    times, missing, finer: see Decoding. delimiter, header, nulls: of CSV. Without a header the fields are the declared
    columns in order. An unquoted field that equals one of `nulls` is null.
    """

    path: str
    format: FileFormat | None = None
    follow: bool = True
    times: Times = "iso"
    missing: Literal["error", "null"] = "error"
    delimiter: str = ","
    header: bool = True
    nulls: tuple[str, ...] = ("",)
    rotation: Literal["error", "follow"] = "error"
    finer: Finer = "error"


@dataclass(frozen=True, slots=True)
class Identity:
    """Inode, size and modification time of a file: unchanged if all are equal."""

    inode: tuple[int, int]
    size: int
    modified_ns: int

    @staticmethod
    def of(file: str | int) -> Identity:
        """Returns the identity of a path or an open file. Raises OSError."""
        return Identity.from_stat(os.stat(file))

    @staticmethod
    def from_stat(state: os.stat_result) -> Identity:
        return Identity((state.st_dev, state.st_ino), state.st_size, state.st_mtime_ns)

    @property
    def stamp(self) -> tuple[int, int]:
        return self.size, self.modified_ns


_ROTATED = re.compile(r"(?<=.)[.-]\d[\dT_:.Z-]*$")


def base_of(name: str) -> str:
    """Returns the path without the suffix of rotation: .1, .12, -20240301."""
    folder, name = os.path.split(name)
    return os.path.join(folder, _ROTATED.sub("", name))


def reading_order(there: Mapping[str, Identity], rotated: bool) -> list[str]:
    """Returns the paths in reading order: by name. With followed rotation, rotated files precede the current one, the
    oldest first, by counter or date."""
    if not rotated:
        return sorted(there)

    def place(path: str) -> tuple[str, bool, list[int], int, str]:
        name = path.removesuffix(".gz")
        base = base_of(name)
        return base, base == name, _age(name[len(base) :]), there[path].modified_ns, path

    return sorted(there, key=place)


def _age(behind: str) -> list[int]:
    """Returns the sort key of a rotation suffix, from old to new: a counter, of which 1 is the newest, or the digits of
    a date. Names are compared rather than modification times, which a copy or a packer may change."""
    numbers = [int(digits) for digits in re.findall(r"\d+", behind)]
    return [-numbers[0]] if len(numbers) == 1 and numbers[0] < 10_000_000 else numbers


def covers(path: str, name: str) -> bool:
    """True if `name`, which does not exist, would belong to `path`."""
    return name.startswith(path + os.sep) or name == path or (glob.has_magic(path) and fnmatch.fnmatch(name, path))


def format_at(path: str, settings: FileSettings) -> FileFormat | None:
    """Returns the format of a file by its path, or None if it is not read."""
    name = path.removesuffix(".gz")
    if settings.rotation == "follow":
        name = base_of(name)
    return settings.format or _SUFFIXES.get(os.path.splitext(name.lower())[1])


def read_by_both(one: FileSettings, other: FileSettings) -> str | None:
    """Returns a path that both sources read, in any spelling, existing or not, or None."""
    here, there = (
        {identity.inode: path for path, identity in found.items() if format_at(path, settings) is not None}
        for settings in (one, other)
        for found in (listed(absolute(settings.path), settings.rotation == "follow")[0],)
    )
    shared = sorted(here[inode] for inode in here.keys() & there.keys())
    if shared:
        return shared[0]
    return next((b.path for a, b in ((one, other), (other, one)) if may_read(a, b.path)), None)


def may_read(settings: FileSettings, path: str) -> bool:
    """True if the settings cover a path, whether or not the file exists."""
    own, name = os.path.realpath(absolute(settings.path)), os.path.realpath(absolute(path))
    if name == own:
        return True
    if format_at(name, settings) is None and not os.path.isdir(name):
        return False
    if glob.has_magic(own) and not os.path.exists(own):
        parts, wanted = name.split(os.sep), own.split(os.sep)
        if "**" in wanted:
            return fnmatch.fnmatch(name, own.replace("**" + os.sep, "*"))
        return len(parts) == len(wanted) and all(map(fnmatch.fnmatch, parts, wanted))
    below = name.removeprefix(own + os.sep)
    return below != name and not any(part.startswith((".", "_")) for part in below.split(os.sep))


def absolute(path: str) -> str:
    return os.path.abspath(os.path.expanduser(path))


def listed(path: str, rotated: bool) -> tuple[dict[str, Identity], dict[str, str], bool]:
    """Returns the existing files of a path; the reason, by path, why others cannot be read; and whether some could not
    be listed. rotated: rotated predecessors of a single file belong to it."""
    found: dict[str, Identity] = {}
    odd: dict[str, str] = {}
    blind = False

    def refused(error: OSError) -> None:
        nonlocal blind
        blind = True
        odd[str(error.filename)] = f"{error.filename} cannot be read: {reason_of(error)}"

    if os.path.isdir(path):
        names = []
        for folder, folders, here in os.walk(path, onerror=refused):
            folders[:] = [name for name in folders if not name.startswith((".", "_"))]
            names += [os.path.join(folder, name) for name in here if not name.startswith((".", "_"))]
    elif glob.has_magic(path) and not os.path.exists(path):
        names = [name for name in glob.glob(path, recursive=True) if not os.path.isdir(name)]
    else:
        names = [path]
        if rotated:
            beside = re.compile(re.escape(path) + r"[.-]\d[\dT_:.Z-]*(\.gz)?")
            names += [name for name in glob.glob(glob.escape(path) + "*") if beside.fullmatch(name)]
    for name in names:
        try:
            state = os.stat(name)
        except (FileNotFoundError, NotADirectoryError):
            if os.path.islink(name):
                odd[name] = f"{name} is a link to {os.readlink(name)}, which does not exist"
            continue
        except OSError as error:
            refused(error)
            continue
        if stat.S_ISREG(state.st_mode):
            found[name] = Identity.from_stat(state)
        else:
            odd[name] = f"{name} is {_kind(state.st_mode)}, not a file, and is not read"
    return found, odd, blind


def _kind(mode: int) -> str:
    if stat.S_ISFIFO(mode):
        return "a FIFO"
    return "a socket" if stat.S_ISSOCK(mode) else "a directory" if stat.S_ISDIR(mode) else "a device"


def reason_of(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or first_line(error) or type(error).__name__

"""Location of an archive: a directory on disk, or a prefix in an S3-compatible store.

Other modules need not know which of the two it is. Arrow's file systems read and write bytes in both. This module
handles the differences: addresses for deltalake and DuckDB, forcing files to disk (a store has stored what it has
acknowledged), and atomic replacement of small files (built into a store).
"""

from __future__ import annotations

import os
import urllib.parse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from archive.forks import check_delta
from query.errors import DataError

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

SCHEME = "s3://"
#: Default timeouts for a store; deltalake's own are three minutes per request.
PATIENCE = {"timeout": "30s", "connect_timeout": "5s", "max_retries": "3", "retry_timeout": "20s"}

Options = tuple[tuple[str, str], ...]


class FileEntry(NamedTuple):
    """A file: path relative to the place, size in bytes, and time of the last change in microseconds UTC."""

    path: str
    size: int
    written_us: int


@dataclass(frozen=True, slots=True)
class Place:
    """A directory or file on disk or in a store. root: an absolute path, or s3://bucket/prefix. options: of a store, as
    for deltalake and polars (aws_endpoint_url, aws_region, aws_access_key_id, ...), in lower case; missing ones come
    from the environment (AWS_ENDPOINT_URL and so on). Empty for a directory."""

    root: str
    options: Options = ()

    def __truediv__(self, path: str) -> Place:
        return Place(f"{self.root.rstrip('/')}/{path}", self.options)

    def __str__(self) -> str:
        return self.root

    def __fspath__(self) -> str:
        if not self.on_disk:
            raise TypeError(f"{self.root} is not on disk")
        return self.root

    @property
    def on_disk(self) -> bool:
        return not self.root.startswith(SCHEME)

    @property
    def name(self) -> str:
        return self.root.rstrip("/").rsplit("/", 1)[-1]

    # ---- addresses for other libraries

    @property
    def filesystem(self) -> FileSystem:
        """Arrow's file system, in which `key` is the path of the place."""
        return filesystem_of(self.on_disk, self.options)

    @property
    def key(self) -> str:
        return self.root.removeprefix(SCHEME)

    @property
    def storage_options(self) -> dict[str, str] | None:
        """Storage options for deltalake; None for a directory."""
        return None if self.on_disk else {**PATIENCE, **dict(self.options)}

    @property
    def delta_uri(self) -> str:
        """The address for deltalake, on each way into it. Raises DataError for percent escapes, which deltalake decodes
        inconsistently, and in a forked child (archive.forks)."""
        check_delta(used=True)
        if urllib.parse.unquote(self.root) != self.root:
            message = f"an archive cannot be in {self.root}: the path has a percent sign"
            raise DataError(message, "use another directory")
        return self.root

    # ---- files

    def make(self, private: bool = False) -> None:
        """Creates the directory and its parents; does nothing in a store. private: see make_private."""
        if self.on_disk and private:
            make_private(self.root)
        elif self.on_disk:
            Path(self.root).mkdir(parents=True, exist_ok=True)

    def sync(self) -> None:
        """Forces a file, or the names in a directory, to disk; does nothing in a store. Delta itself does not sync."""
        if not self.on_disk:
            return
        descriptor = os.open(self.root, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def exists(self) -> bool:
        """Returns True if the file or directory exists. Raises OSError if that cannot be checked."""
        from pyarrow.fs import FileType

        return bool(self.filesystem.get_file_info(self.key).type != FileType.NotFound)

    def size(self) -> int:
        """Returns the size of a file in bytes. Raises FileNotFoundError."""
        size = self.filesystem.get_file_info(self.key).size
        if size is None:
            raise FileNotFoundError(f"there is no file {self}")
        return int(size)

    def written_us(self) -> int:
        """Returns the time of a file's last change, in microseconds UTC."""
        return int(self.filesystem.get_file_info(self.key).mtime_ns) // 1000

    def entries(self) -> Iterator[FileEntry]:
        """Yields all files below, recursively, sorted by path; none if the place does not exist."""
        from pyarrow.fs import FileSelector, FileType

        found = self.filesystem.get_file_info(FileSelector(self.key, allow_not_found=True, recursive=True))
        below = self.key.rstrip("/") + "/"
        for info in sorted(found, key=lambda info: info.path):
            if info.type == FileType.File:
                yield FileEntry(info.path.removeprefix(below), info.size, info.mtime_ns // 1000)

    def names(self) -> list[str]:
        """Returns the sorted names of files and directories directly in it."""
        from pyarrow.fs import FileSelector

        found = self.filesystem.get_file_info(FileSelector(self.key, allow_not_found=True))
        return sorted(info.base_name for info in found)

    def remove(self) -> None:
        """Deletes a file; does nothing if it does not exist."""
        try:
            self.filesystem.delete_file(self.key)
        except FileNotFoundError:
            pass
        except OSError:
            # Arrow replaces an emptied folder by an empty object, which some stores refuse.
            if self.on_disk or self.exists():
                raise

    def move(self, to: Place) -> None:
        """Moves a file or a directory within the same disk or store."""
        from pyarrow.fs import FileType

        if self.on_disk:
            os.replace(self.root, to.root)
        elif self.filesystem.get_file_info(self.key).type == FileType.File:
            to.write_bytes(self.read_bytes())
            self.remove()
        else:
            for path in [entry.path for entry in self.entries()]:
                (self / path).move(to / path)

    def read_text(self) -> str:
        with self.filesystem.open_input_stream(self.key) as file:
            return str(file.read().decode("utf-8"))

    def read_bytes(self) -> bytes:
        with self.filesystem.open_input_stream(self.key) as file:
            return bytes(file.read())

    def write_text(self, text: str) -> None:
        """Writes or replaces a small file atomically."""
        self.write_bytes(text.encode())

    def write_bytes(self, data: bytes, private: bool = False) -> None:
        """Writes or replaces a file atomically. The name of a new file is durable after `sync` of its directory.
        private: on disk, readable by its owner only."""
        if not self.on_disk:
            with self.filesystem.open_output_stream(self.key) as file:
                file.write(data)
            return
        part = f"{self.root}.part"
        with open(open_private(part, os.O_WRONLY | os.O_TRUNC) if private else part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, self.root)


def make_private(path: str | os.PathLike[str]) -> None:
    """Creates a directory of a database and its missing parents, which only their owner may enter, so that it does not
    matter with which mode deltalake, Arrow or Spark creates files in them. A directory that exists keeps its mode."""
    whole = Path(path)
    for directory in (*reversed(whole.parents), whole):
        if not directory.is_dir():
            directory.mkdir(mode=0o700, exist_ok=True)


def open_private(path: str | os.PathLike[str], flags: int) -> int:
    """Opens or creates a local file that only its owner may read, regardless of the umask; returns its descriptor."""
    file = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(file, 0o600)
    except PermissionError:
        pass  # owned by another user, but writable
    except BaseException:
        os.close(file)
        raise
    return file


def place_of(where: str | os.PathLike[str] | Place, options: Mapping[str, str] | None = None) -> Place:
    """Returns the place of a path or of an s3:// address. options: of a store, see Place. Raises DataError for other
    addresses."""
    if isinstance(where, Place):
        return where
    text = where if isinstance(where, str) else os.fspath(where) if isinstance(where, os.PathLike) else None
    if not isinstance(text, str):
        raise DataError(f"{where!r:.60} is no path", "give a text, a pathlib.Path or an s3:// address")
    if text.startswith(SCHEME):
        if not text[len(SCHEME) :].strip("/"):
            raise DataError(f"{text} names no bucket", "write s3://bucket/prefix")
        return Place(text.rstrip("/"), tuple(sorted((k.lower(), str(v)) for k, v in (options or {}).items())))
    if "://" in text:
        raise DataError(f"{text} is neither a directory nor an s3:// address", "archives are on disk or in S3")
    return Place(os.path.abspath(text))


@cache
def filesystem_of(on_disk: bool, options: Options) -> FileSystem:
    from pyarrow import fs

    if on_disk:
        return fs.LocalFileSystem()
    given = dict(options)

    def option(*names: str) -> str | None:
        for name in names:
            found = given.get(name, given.get(f"aws_{name}", os.environ.get(f"AWS_{name.upper()}")))
            if found is not None:
                return found
        return None

    endpoint = option("endpoint_url", "endpoint", "endpoint_url_s3")
    scheme, sign, rest = (endpoint or "").partition("://")
    return fs.S3FileSystem(
        access_key=option("access_key_id"),
        secret_key=option("secret_access_key"),
        session_token=option("session_token"),
        region=option("region", "default_region"),
        endpoint_override=(rest if sign else endpoint) or None,
        scheme=scheme if sign else None,
        force_virtual_addressing=option("virtual_hosted_style_request") == "true",
        connect_timeout=5,
        request_timeout=30,
        retry_strategy=fs.AwsStandardS3RetryStrategy(max_attempts=3),
    )

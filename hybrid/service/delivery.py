"""Stores the cursors of sinks and their undelivered rows in the directory of the service."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from archive.place import open_private, place_of
from hybrid.service.sink_writer import Parcel
from query.errors import DataError, first_line

#: Version of the file format. Rows are Arrow files.
FORMAT = 1


class Delivery:
    """The directory of one service, locked until `close`.

    Each write has a number, which the next checkpoint of the database names. So the state of queries and the deliveries
    of sinks are of one moment. Older files stay until `forget`. From `read` on, cursors: the cursor of each sink;
    backlog: its undelivered rows; lost: the report of a missing file, or None. Files are readable by their owner only,
    and have checksums.
    Raises DataError if another service runs with the directory, or if it cannot be used.
    """

    def __init__(self, directory: Path) -> None:
        self.cursors: dict[str, str | None] = {}
        self.backlog: dict[str, list[Parcel]] = {}
        self.lost: str | None = None
        self._targets: dict[str, str] = {}
        self._directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._number = max(self._numbers(), default=0)
            self._lock = open(open_private(directory / "lock", os.O_RDWR), "w", encoding="utf-8")  # noqa: SIM115  (as long as the service)
        except OSError as error:
            message = f"the directory {directory} of the service cannot be used: {error.strerror}: {error.filename}"
            hint = "give it to the user of the service, or choose another one: [database] state"
            raise DataError(message, hint) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            message = f"another service runs with {directory}"
            raise DataError(message, "stop it first; hybrid status shows it") from None

    def make_again(self) -> bool:
        """Creates and locks the directory again if it or its content was removed. Returns True if so. Raises OSError if
        it cannot be created: a missing parent is not created, as it may be a disk that is not mounted."""
        file = self._directory / "lock"
        with suppress(FileNotFoundError):
            if os.path.samestat(os.stat(file), os.fstat(self._lock.fileno())):
                return False
        self._directory.mkdir(exist_ok=True)
        lock = open(open_private(file, os.O_RDWR), "w", encoding="utf-8")  # noqa: SIM115  (as long as the service)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise OSError(error.errno, "another service has locked it meanwhile", str(file)) from None
        self._lock.close()
        self._lock = lock
        return True

    @property
    def closed(self) -> bool:
        return self._lock.closed

    @property
    def replaced(self) -> bool:
        """True if the directory was removed, and another one is in its place, which this service has not locked."""
        with suppress(OSError, ValueError):  # it is missing; it is closed
            return not os.path.samestat(os.stat(self._directory / "lock"), os.fstat(self._lock.fileno()))
        return False

    def close(self) -> None:
        with suppress(OSError):  # it is closed even if this raises
            self._lock.close()

    def cursor(self, sink: str, target: str) -> str | None:
        """Returns the cursor of a sink; None if it has none for this target."""
        return self.cursors.get(sink) if self._targets.get(sink, target) == target else None

    def write(
        self, cursors: dict[str, str | None], targets: dict[str, str], kept: Mapping[str, list[Parcel]]
    ) -> str:
        """Writes cursors with their targets, and undelivered rows, atomically: a directory of rows, then the file that
        names it. Returns its number. Durable. After an OSError the earlier files are still valid."""
        number = self._number + 1
        folder = self._rows(number)
        parcels = [(sink, parcel) for sink, those in kept.items() for parcel in _together(those)]
        shutil.rmtree(folder, ignore_errors=True)
        undelivered = []
        if parcels:
            folder.mkdir()
            for i, (sink, parcel) in enumerate(parcels):
                out = pa.BufferOutputStream()
                with pa.ipc.new_file(out, parcel.rows.schema) as to:
                    to.write_table(parcel.rows)
                data = out.getvalue()
                _write(folder / f"{i}.arrow", data)
                undelivered.append([sink, parcel.query, _sum(data)])
            place_of(folder).sync()
        all_cursors, all_targets = self.cursors | cursors, self._targets | targets
        told = {"version": FORMAT, "cursors": all_cursors, "targets": all_targets, "undelivered": undelivered}
        part = self._directory / "delivery.json.part"
        _write(part, json.dumps({**told, "sum": _sum(json.dumps(told).encode())}).encode())
        os.replace(part, self._file(number))
        place_of(self._directory).sync()
        self._number, self.cursors, self._targets = number, all_cursors, all_targets
        return str(number)

    def forget(self, named: str) -> None:
        """Deletes files older than `named`, after a checkpoint that names it is durable."""
        for number in self._numbers():
            if number < int(named):
                self._file(number).unlink(missing_ok=True)
                shutil.rmtree(self._rows(number), ignore_errors=True)

    def read(self, named: str | None) -> None:
        """Reads the file that a checkpoint names, or the last one written if it names none or the file is missing; rows
        may then come again, with the same ids. Raises DataError if the file is damaged."""
        numbers = self._numbers()
        if named is not None and int(named) not in numbers:
            self._number = max(self._number, int(named))  # its directory of rows may still exist
            self.lost = (
                f"{self._file(int(named))}, which the last checkpoint names, is missing: its rows for sinks (in "
                f"{self._rows(int(named)).name}) are not delivered, and others may come again, with the same ids\n"
                "hint: stop, restore it, and start again; or continue: this is reported until the next start"
            )
        if not numbers:
            return
        number = int(named) if named is not None and int(named) in numbers else max(numbers)
        file = self._file(number)
        try:
            told = json.loads(file.read_text(encoding="utf-8"))
            if told["version"] != FORMAT:
                has = f"{file} has format {told['version']}; this program reads format {FORMAT}"
                raise DataError(has, "run the release that wrote it or a later one, or delete it to deliver again")
            expected = told.pop("sum", None)  # older releases wrote none
            if expected is not None and expected != _sum(json.dumps(told).encode()):
                raise ValueError("wrong checksum")
            self.cursors, self._targets = told["cursors"], told.get("targets", {})
            for i, (sink, query, *sums) in enumerate(told["undelivered"]):
                file = self._rows(number) / f"{i}.arrow"
                self.backlog.setdefault(sink, []).append(Parcel(query, _rows_of(file, sums)))
        except (ValueError, KeyError, TypeError, AttributeError, OSError, pa.ArrowException) as error:
            message = f"{file} cannot be read: {first_line(error)}"
            hint = f"it records the deliveries: restore it, or delete {self._file(number)} to deliver again"
            raise DataError(message, hint) from None

    def _numbers(self) -> list[int]:
        stems = [n[len("delivery-") : -len(".json")] for n in os.listdir(self._directory) if _is_ours(n)]
        return [int(stem) for stem in stems if stem.isdigit()]

    def _file(self, number: int) -> Path:
        return self._directory / f"delivery-{number}.json"

    def _rows(self, number: int) -> Path:
        return self._directory / f"undelivered-{number}"


def _together(parcels: list[Parcel]) -> list[Parcel]:
    """Merges the parcels of each query, in order: a sink that was down for long has thousands."""
    found: dict[tuple[str, pa.Schema], list[pa.Table]] = {}
    for parcel in parcels:
        found.setdefault((parcel.query, parcel.rows.schema), []).append(parcel.rows)
    return [Parcel(query, pa.concat_tables(tables)) for (query, _), tables in found.items()]


def _is_ours(name: str) -> bool:
    return name.startswith("delivery-") and name.endswith(".json")


def _rows_of(file: Path, sums: list[Any]) -> pa.Table:
    data = file.read_bytes()
    if sums and sums[0] != _sum(data):
        raise ValueError("wrong checksum")
    return pa.ipc.open_file(pa.py_buffer(data)).read_all()


def _write(path: Path, data: bytes | pa.Buffer) -> None:
    """Writes a file that only its owner can read. Durable."""
    with open(open_private(path, os.O_WRONLY | os.O_TRUNC), "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())


def _sum(data: bytes | pa.Buffer) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()

"""What a service keeps of its sinks in its directory: how far each of them came, and rows that they have not taken."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa

from archive.place import place_of
from hybrid.outlet import Parcel
from query.errors import DataError, first_line

#: The number of the format of the file. Its keys are tags of their own, and rows are Arrow files.
FORMAT = 1


class Delivery:
    """The directory of one service, which has it for itself until `close`.

    What is written down has a number, which the next checkpoint of the database names: a state of queries and what
    sinks have of their rows are of one moment, and older ones stay until `forget`. cursors: where each sink stood;
    backlog: what it had not taken by then; both from `read` on. Raises DataError where another service runs with the
    directory.
    """

    def __init__(self, directory: Path) -> None:
        self.cursors: dict[str, str | None] = {}
        self.backlog: dict[str, list[Parcel]] = {}
        self._directory = directory
        self._number = max(self._numbers(), default=0)
        self._lock = open(directory / "lock", "w", encoding="utf-8")  # noqa: SIM115  (open as long as the service is)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            message = f"a service runs with {directory} already"
            raise DataError(message, "stop it first; hybrid status shows it") from None

    @property
    def closed(self) -> bool:
        return self._lock.closed

    def close(self) -> None:
        self._lock.close()

    def write(self, cursors: dict[str, str | None], kept: Mapping[str, list[Parcel]]) -> str:
        """Cursors and undelivered rows, as one: a file, named last, that goes with a directory of rows; its number.
        Durable; raises OSError, with what was written before still there."""
        number = self._number + 1
        folder = self._rows(number)
        parcels = [(sink, parcel) for sink, those in kept.items() for parcel in those]
        shutil.rmtree(folder, ignore_errors=True)
        if parcels:
            folder.mkdir()
            for i, (_, parcel) in enumerate(parcels):
                with pa.OSFile(str(folder / f"{i}.arrow"), "wb") as out, pa.ipc.new_file(out, parcel.rows.schema) as to:
                    to.write_table(parcel.rows)
                place_of(folder / f"{i}.arrow").sync()
            place_of(folder).sync()
        undelivered = [[sink, parcel.query] for sink, parcel in parcels]
        part = self._directory / "delivery.json.part"
        with open(part, "w", encoding="utf-8") as out:
            out.write(json.dumps({"version": FORMAT, "cursors": cursors, "undelivered": undelivered}))
            out.flush()
            os.fsync(out.fileno())
        os.replace(part, self._file(number))
        place_of(self._directory).sync()
        self._number, self.cursors = number, cursors
        return str(number)

    def forget(self, named: str) -> None:
        """A checkpoint that names this one is durable: the older ones go."""
        for number in self._numbers():
            if number < int(named):
                self._file(number).unlink(missing_ok=True)
                shutil.rmtree(self._rows(number), ignore_errors=True)

    def read(self, named: str | None) -> None:
        """Takes over what a checkpoint names; the last that was written, where it names none or that is gone: then
        rows may come again, under the same ids. Raises DataError for what cannot be read."""
        numbers = self._numbers()
        if not numbers:
            return
        number = int(named) if named is not None and int(named) in numbers else max(numbers)
        file = self._file(number)
        try:
            told = json.loads(file.read_text(encoding="utf-8"))
            if told["version"] != FORMAT:
                has = f"{file} has format {told['version']}; this program reads format {FORMAT}"
                raise DataError(has, "run the release that wrote it or a later one, or delete it to deliver anew")
            self.cursors = told["cursors"]
            for i, (sink, query) in enumerate(told["undelivered"]):
                with pa.memory_map(str(self._rows(number) / f"{i}.arrow")) as data:
                    rows = pa.ipc.open_file(pa.py_buffer(data.read())).read_all()
                self.backlog.setdefault(sink, []).append(Parcel(query, rows))
        except (ValueError, KeyError, TypeError, OSError, pa.ArrowException) as error:
            message = f"{file} cannot be read: {first_line(error)}"
            hint = "it says what sinks have taken: restore it, or delete it to deliver anew"
            raise DataError(message, hint) from None

    def _numbers(self) -> list[int]:
        stems = [path.stem.removeprefix("delivery-") for path in self._directory.glob("delivery-*.json")]
        return [int(stem) for stem in stems if stem.isdigit()]

    def _file(self, number: int) -> Path:
        return self._directory / f"delivery-{number}.json"

    def _rows(self, number: int) -> Path:
        return self._directory / f"undelivered-{number}"

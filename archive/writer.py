"""The exclusive writer of a database: one process at a time pushes, logs and takes checkpoints. Other processes may
still commit to its tables (bulk archiving, compaction, retention, Spark).

On disk the writer holds a lock (flock) on the file WRITER, which ends with the process. In a store, which has no locks,
the file is a lease: renewed every RENEW_S, and free if not renewed for LEASE_S.

Each writer has an epoch above the last one: milliseconds since 1970, so that it is new even if the last one is unknown.
If the previous writer may still be alive (an expired lease, a removed lock file), the new one claims the tables: it
commits its epoch to each, after which appends of older writers are refused (archive.table). So two writers that each
take the other for dead never both append.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from archive.place import Place
from query.errors import DataError, NotKept, first_line

#: Lock or lease file in the directory of a database.
WRITER = "_writer"
#: Seconds after which a lease that was not renewed is free, and between renewals. Clocks may differ by LEASE_S -
#: RENEW_S; if they differ by more, the epoch decides.
LEASE_S, RENEW_S = 30.0, 5.0
#: Name of the thread that renews the lease.
RENEWER = "hybrid-lease"
_RUN = uuid.uuid4().hex
BESIDE = "close it there, or open it for reading: hybrid.connect(path, read_only=True)"


@dataclass(frozen=True, slots=True)
class WriterClaim:
    """Contents of the file WRITER. process: the process id. run: unique to one process, whose id may be reused. token:
    unique to one opening. released: the writer has closed the database."""

    epoch: int
    process: int
    host: str
    since: str
    run: str
    token: str
    released: bool = False

    @property
    def is_me(self) -> bool:
        return (self.process, self.run) == (os.getpid(), _RUN)

    @property
    def is_dead(self) -> bool:
        """True if its process is known to have ended."""
        if self.host != socket.gethostname() or self.run == _RUN:
            return False
        if self.process == os.getpid():  # a restarted container reuses process ids
            return True
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            pass
        return False

    def __str__(self) -> str:
        where = "this process" if self.is_me else f"process {self.process} on {self.host}"
        return f"{where} since {self.since}"


class WriterLocked(DataError):
    """Another opening of the database has the right to write. mine: it is one of this process."""

    code = "HQ802"
    mine = False


def _locked(place: Place, holder: WriterClaim | None) -> WriterLocked:
    said = "another process" if holder is None else str(holder)
    error = WriterLocked(f"{place} is open for writing in {said}", BESIDE)
    error.mine = holder is not None and holder.is_me
    return error


class Writer:
    """The right to write a database, until `release` or the end of the process. Threads may share it."""

    def __init__(self, place: Place, holder: WriterClaim, file: int | None) -> None:
        self._place = place
        self._holder = holder
        self._file = file  # the descriptor that holds the lock
        self._stopping = threading.Event()
        self._lost: WriterClaim | None = None
        self._thread: threading.Thread | None = None

    @property
    def epoch(self) -> int:
        return self._holder.epoch

    def check(self) -> None:
        """Raises NotKept if another process may write. Costs a microsecond or two on disk."""
        path = f"{self._place}/{WRITER}"
        if self._lost is not None:
            raise NotKept(
                f"{self._place} has been taken over by {self._lost}, because the lease was not renewed in time",
                "close this database; events not yet flushed were not taken over",
            )
        if self._file is not None:
            try:
                there, own = os.stat(path), os.fstat(self._file)
                same = (there.st_dev, there.st_ino) == (own.st_dev, own.st_ino)
            except FileNotFoundError:
                same = False
            except OSError as error:
                hint = "check the disk, and push again"
                raise NotKept(f"{path} cannot be checked: {error.strerror}", hint) from None
            if not same:
                raise NotKept(
                    f"{path} was removed or replaced while the database is open: another process may write it",
                    "close this database and open it again",
                )

    def release(self) -> None:
        """Releases the right to write. Does nothing if already released, or in a forked child."""
        file = self._file
        self._stopping.set()
        mine = self._holder.process == os.getpid()
        if self._thread is not None and mine and self._thread is not threading.current_thread():
            self._thread.join()
        if file is not None:
            try:
                if mine:
                    _say(file, _released(self._holder))
            except OSError:
                pass  # a full disk: closing the descriptor releases the lock
            finally:
                # None; in one line, so that an error leaves both undone
                self._file = os.close(file)  # type: ignore[func-returns-value]
        elif self._thread is not None and mine and self._lost is None:
            _give_back(self._place, self._holder)
        self._thread = None

    def renew(self) -> None:
        """Starts the thread that renews the lease."""
        self._thread = threading.Thread(target=self._renew, name=RENEWER, daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        while not self._stopping.wait(RENEW_S):
            try:
                found = _read(self._place / WRITER)
                if found is not None and found.token != self._holder.token:
                    self._lost = found
                    return
                _write(self._place, self._holder)
            except OSError:
                continue  # the store does not respond: retried; meanwhile the epoch in the tables decides


def claim(place: Place, tables: Sequence[Place]) -> Writer:
    """Acquires the right to write the database at a place. tables: the places of its tables. Raises WriterLocked if
    another opening has it, and DataError if it cannot be acquired."""
    try:
        return _lock(place, tables) if place.on_disk else _lease(place, tables)
    except OSError as error:
        message = f"{place} cannot be opened for writing: {first_line(error)}"
        raise DataError(message, "give permission, or open it with hybrid.connect(path, read_only=True)") from error


def _lock(place: Place, tables: Sequence[Place]) -> Writer:
    import fcntl

    path = Path(place) / WRITER
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _parsed(os.pread(file, 1 << 16, 0))
            os.close(file)
            raise _locked(place, holder) from None
        except OSError:
            os.close(file)
            raise
        try:
            there = os.stat(path)
        except FileNotFoundError:
            there = None
        if there is not None and os.path.samestat(there, os.fstat(file)):
            break
        os.close(file)  # the file was removed meanwhile
    try:
        before = _parsed(os.pread(file, 1 << 16, 0))
        holder = _mine(0 if before is None else before.epoch)
        # A removed file, or a host that does not see the lock: the last writer may be alive. Or a new database.
        if before is None or (not before.released and before.host != holder.host):
            holder = _claimed(holder, tables)
        _say(file, holder)
    except BaseException:
        os.close(file)
        raise
    return Writer(place, holder, file)


def _lease(place: Place, tables: Sequence[Place]) -> Writer:
    where = place / WRITER
    before = _read(where)
    if before is not None and not before.released and not before.is_dead:
        age_s = time.time() - where.written_us() / 1e6
        if age_s < LEASE_S:
            raise _locked(place, before)
    holder = _mine(0 if before is None else before.epoch)
    try:
        _write(place, holder)
        holder = _claimed(holder, tables)
        found = _read(where)
        if found is not None and found.token != holder.token:
            raise _locked(place, found)
        _write(place, holder)
    except BaseException:
        _give_back(place, holder)  # else the next writer waits until the lease expires
        raise
    writer = Writer(place, holder, None)
    writer.renew()
    return writer


def _give_back(place: Place, holder: WriterClaim) -> None:
    """Releases the lease if this writer still has it."""
    try:
        found = _read(place / WRITER)
        if found is not None and found.token == holder.token:
            _write(place, _released(holder))
    except OSError:
        pass  # the lease expires


def _released(holder: WriterClaim) -> WriterClaim:
    return WriterClaim(**{**asdict(holder), "released": True})


def _claimed(holder: WriterClaim, tables: Sequence[Place]) -> WriterClaim:
    """Claims the tables with an epoch above theirs; returns the holder with it."""
    from archive.table import Table, is_table

    opened = [Table.open(where) for where in tables if is_table(where)]
    epoch = max([holder.epoch, *(table.last_epoch + 1 for table in opened)])
    for table in opened:
        table.epoch = epoch
        table.claim()
    return WriterClaim(**{**asdict(holder), "epoch": epoch})


def _mine(last: int) -> WriterClaim:
    since = f"{datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC"
    epoch = max(last + 1, time.time_ns() // 1_000_000)
    return WriterClaim(epoch, os.getpid(), socket.gethostname(), since, _RUN, uuid.uuid4().hex)


def _say(file: int, holder: WriterClaim) -> None:
    text = json.dumps(asdict(holder)).encode()
    try:
        os.pwrite(file, text.ljust(512), 0)
    except OSError:
        pass  # the disk is full: the lock holds, but the file does not name its holder


def _read(where: Place) -> WriterClaim | None:
    try:
        return _parsed(where.read_bytes())
    except FileNotFoundError:
        return None


def _write(place: Place, holder: WriterClaim) -> None:
    (place / WRITER).write_text(json.dumps(asdict(holder)))


def _parsed(data: bytes) -> WriterClaim | None:
    try:
        said = json.loads(data)
        return WriterClaim(**{name: said[name] for name in WriterClaim.__slots__})
    except (ValueError, TypeError, KeyError):
        return None

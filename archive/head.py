"""The head of a table's log: a record of its entries, written beside it after each commit.

A Delta log ends with its last entry. If that is removed or emptied, its data files are lost silently. So each of our
commits is followed by a file `_head/<version>.head` with the entries that a reader needs at that version (the newest
checkpoint and the later entries), their SHA-256 and their contents. A head is written once under an increasing name
and never changed, so concurrent writers cannot revert it.

A log with more entries than its head is not a fault: another program has written to it, or a process has ended between
commit and head; our next commit adds them to the head. A missing or changed entry is a fault: `faults` returns it with
its copy, and archive.repair restores it.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal

from archive.layout import events_in_words
from archive.place import Place
from query.errors import DataError

HEAD, LOG = "_head", "_delta_log"
#: File of the log that names the newest checkpoint, so that readers need not list the log.
HINT = "_last_checkpoint"
_MAGIC = b"hybrid head 1 "
_SUFFIX = ".head"
_ENTRY = re.compile(r"^(\d{20})\.(json|checkpoint\..*parquet)$")
#: When there are _TIDY_FROM heads, all but _KEPT are removed: in batches, because removing costs more than writing.
_KEPT, _TIDY_FROM = 2, 8
_ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A file of the log. copy: its bytes; None for a checkpoint, whose copy is a separate file beside the head."""

    name: str
    sha256: str
    copy: bytes | None

    @property
    def version(self) -> int:
        return int(self.name[:20])

    @property
    def is_checkpoint(self) -> bool:
        return not self.name.endswith(".json")


@dataclass(frozen=True, slots=True)
class Head:
    """The entries of a log at one version."""

    version: int
    entries: tuple[LogEntry, ...]

    @property
    def checkpoint(self) -> int:
        """Version of its checkpoint, -1 without one."""
        return max((e.version for e in self.entries if e.is_checkpoint), default=-1)


@dataclass(frozen=True, slots=True)
class LogFault:
    """A missing or damaged file of the log or of its heads. path: relative to the table. copy: its original bytes, None
    if unknown. needed: True if the log is incomplete without it."""

    path: str
    what: Literal["missing", "damaged"]
    copy: bytes | None
    needed: bool = True

    def __str__(self) -> str:
        return f"{self.path} is {self.what}"


# ---- written


def advance(directory: Place) -> None:
    """Writes the head for the newest version of the log, if it does not exist. Raises OSError if it cannot be written;
    the commit stays valid, and the next one writes the head."""
    log, heads = directory / LOG, directory / HEAD
    for _ in range(_ATTEMPTS_MAX):
        names = log.names()
        version, checkpoint = newest(names)
        known = next(_readable(directory), None)
        if version < 0 or (known is not None and known.version >= version):
            return
        wanted = [n for n in names if (m := _ENTRY.match(n)) and _is_needed(int(m[1]), m[2], checkpoint)]
        old = {} if known is None else {entry.name: entry for entry in known.entries}
        # A needed entry that was removed stays in the head, so that the fault is found when the log is read.
        wanted += [n for n, e in old.items() if e.version > checkpoint and n not in wanted]
        heads.make()
        try:
            entries = [old[name] if name in old else _entry(directory, name) for name in sorted(wanted)]
            body = _packed(Head(version, tuple(entries)))
            _put(heads, f"{version:020}{_SUFFIX}", _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        except FileNotFoundError:
            continue  # another writer has written a newer checkpoint or the same head
        # The directory is not synced: a head lost in a power failure leaves an older one, which is not a fault.
        _tidy(heads)
        return


def _put(heads: Place, name: str, data: bytes) -> None:
    """Writes a file atomically, also if two processes write it at once."""
    if not heads.on_disk:
        (heads / name).write_bytes(data)
        return
    part = heads / f"{uuid.uuid4().hex}.part"
    part.write_bytes(data)
    os.replace(part.root, (heads / name).root)


def newest(names: list[str]) -> tuple[int, int]:
    """Returns the last version of a log and the version of its newest checkpoint; -1 for none."""
    found = [(int(m[1]), m[2] != "json") for name in names if (m := _ENTRY.match(name))]
    return max((v for v, _ in found), default=-1), max((v for v, whole in found if whole), default=-1)


def needed(directory: Place) -> dict[str, bytes]:
    """Returns name -> bytes of the entries that a reader or a writer needs: the newest checkpoint, the later entries,
    the JSON entry of the checkpoint's version, and the hint. Without the last two Delta refuses to append to a log that
    ends with the checkpoint. Raises DataError if the log changes too fast."""
    log = directory / LOG
    for _ in range(_ATTEMPTS_MAX):
        names = log.names()
        _, checkpoint = newest(names)
        wanted = [n for n in names if (m := _ENTRY.match(n)) and _is_needed(int(m[1]), m[2], checkpoint)]
        own = f"{checkpoint:020}.json"
        try:
            found = {name: (log / name).read_bytes() for name in wanted}
        except FileNotFoundError:
            continue  # deleted after a newer checkpoint
        found |= {name: data for name in (own, HINT) if (data := _content(log, name)) is not None}
        if HINT in found and _hinted(found[HINT]) != checkpoint:
            del found[HINT]
        return found
    raise DataError(f"the log of {directory} changes faster than it can be read", "run it again under less load")


def _is_needed(version: int, kind: str, checkpoint: int) -> bool:
    return version > checkpoint if kind == "json" else version == checkpoint


def _entry(directory: Place, name: str) -> LogEntry:
    data = (directory / LOG / name).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if name.endswith(".json"):
        return LogEntry(name, digest, data)
    (directory / LOG / name).sync()  # Delta does not sync it
    _put(directory / HEAD, name, data)
    return LogEntry(name, digest, None)


def _packed(head: Head) -> bytes:
    rows = [[e.name, e.sha256, None if e.copy is None else base64.b64encode(e.copy).decode()] for e in head.entries]
    return json.dumps({"version": head.version, "entries": rows}).encode()


def _tidy(heads: Place) -> None:
    """Removes all but the last heads and the last copies of checkpoints; also removes unfinished files."""
    names = heads.names()
    if len(names) < _TIDY_FROM:
        return
    checkpoints = sorted({name[:20] for name in names if _ENTRY.match(name)})[-_KEPT:]
    kept = {f"{number:020}{_SUFFIX}" for number in _numbered(names)[:_KEPT]}
    kept |= {name for name in names if _ENTRY.match(name) and name[:20] in checkpoints}
    for name in names:
        if name not in kept:
            (heads / name).remove()


# ---- read


def _numbered(names: list[str]) -> list[int]:
    """Returns the versions of heads, newest first."""
    stems = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
    return sorted((int(stem) for stem in stems if stem.isdigit()), reverse=True)


def _readable(directory: Place, broken: list[str] | None = None) -> Iterator[Head]:
    """Yields the intact heads, newest first. broken: list to which the paths of damaged ones are added."""
    heads = directory / HEAD
    for number in _numbered(heads.names()):
        name = f"{number:020}{_SUFFIX}"
        try:
            data = (heads / name).read_bytes()
        except FileNotFoundError:
            continue  # removed by another writer
        head, _, body = data.partition(b"\n")
        if head != _MAGIC + hashlib.sha256(body).hexdigest().encode():
            if broken is not None:
                broken.append(f"{HEAD}/{name}")
            continue
        state = json.loads(body)
        rows = ((n, d, None if c is None else base64.b64decode(c)) for n, d, c in state["entries"])
        yield Head(state["version"], tuple(LogEntry(*row) for row in rows))


def faults(directory: Place) -> list[LogFault]:
    """Returns the missing or damaged entries of the log by its newest head, and damaged heads."""
    broken: list[str] = []
    head = next(_readable(directory, broken=broken), None)
    found = [LogFault(path, "damaged", None, False) for path in broken]
    if head is None:
        return found
    log = directory / LOG
    names = set(log.names())  # read after the head: has all entries of the head, or newer ones in their place
    for _ in range(_ATTEMPTS_MAX):
        torn = _torn_checkpoints(log, names, head.checkpoint)
        _, checkpoint = newest(sorted(names - torn))
        wanted = [e for e in head.entries if checkpoint <= head.checkpoint or e.version > checkpoint]
        read = _contents(log, [entry.name for entry in wanted])
        again = set(log.names())
        if again == names or None not in read:
            break
        names = again  # missing entries may have been deleted after a newer checkpoint
    found += [LogFault(f"{LOG}/{name}", "damaged", None, False) for name in sorted(torn)]
    for entry, data in zip(wanted, read):
        if data is None or hashlib.sha256(data).hexdigest() != entry.sha256:
            what: Literal["missing", "damaged"] = "missing" if data is None else "damaged"
            found.append(LogFault(f"{LOG}/{entry.name}", what, _copy(directory, entry)))
    # A hint to a checkpoint after the end of the log is damaged, unless entries of the log are missing.
    if HINT in names and not any(fault.path.startswith(LOG) for fault in found):
        if _hinted(_content(log, HINT) or b"") > checkpoint:
            found.append(LogFault(f"{LOG}/{HINT}", "damaged", None, False))
    return found


def _hinted(data: bytes) -> int:
    """Returns the version in a hint, before which Delta reads nothing; -1 for an unreadable hint, which is harmless."""
    try:
        return int(json.loads(data).get("version", -1))
    except (ValueError, TypeError, AttributeError):
        return -1


def _torn_checkpoints(log: Place, names: set[str], above: int) -> set[str]:
    """Returns the names of checkpoints after version `above` that are not Parquet files, after a power failure."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    torn = set()
    for name in names:
        match = _ENTRY.match(name)
        if match is not None and match[2] != "json" and int(match[1]) > above:
            try:
                pq.read_metadata(pa.BufferReader((log / name).read_bytes()))
            except pa.ArrowInvalid:
                torn.add(name)
            except FileNotFoundError:
                pass
    return torn


def _contents(log: Place, names: list[str]) -> list[bytes | None]:
    """Returns the bytes of entries, None for missing ones; reads several at a time from a store."""
    if log.on_disk:
        return [_content(log, name) for name in names]
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda name: _content(log, name), names))


def _content(log: Place, name: str) -> bytes | None:
    try:
        return (log / name).read_bytes()
    except FileNotFoundError:
        return None


def _copy(directory: Place, entry: LogEntry) -> bytes | None:
    """Returns the original bytes of an entry, or None if its copy is missing or damaged."""
    data = _content(directory / HEAD, entry.name) if entry.copy is None else entry.copy
    return data if data is not None and hashlib.sha256(data).hexdigest() == entry.sha256 else None


def copies_damaged(directory: Place) -> list[LogFault]:
    """Returns the missing or damaged copies of checkpoints beside the head. Nothing is lost as long as the log is
    intact."""
    head = next(_readable(directory), None)
    found = []
    for entry in () if head is None else head.entries:
        if entry.copy is None and _copy(directory, entry) is None:
            there = _content(directory / HEAD, entry.name) is not None
            found.append(LogFault(f"{HEAD}/{entry.name}", "damaged" if there else "missing", None))
    return found


def copy_again(directory: Place, path: str) -> None:
    """Copies a checkpoint from the log again."""
    name = path.removeprefix(f"{HEAD}/")
    _put(directory / HEAD, name, (directory / LOG / name).read_bytes())


def knows(directory: Place) -> bool:
    """Returns True if there is a head, by which a lost commit is noticed."""
    return next(_readable(directory), None) is not None


def has_log(directory: Place) -> bool:
    """Returns True if the log has entries, damaged or not."""
    return newest((directory / LOG).names()) != (-1, -1)


def check(directory: Place) -> list[str]:
    """Raises DataError if entries of the log are missing or damaged. Returns texts about damaged heads, which are not
    needed."""
    found = faults(directory)
    lost = [fault for fault in found if fault.path.startswith(LOG)]
    if lost:
        fault = lost[0]
        more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise DataError(
            f"the log of {directory} is damaged: {fault}{more}{_missing(lost)}",
            "nothing was changed: hybrid archive repair restores the log"
            if all(one.copy is not None or not one.needed for one in lost)
            else f"restore {fault.path} from a copy, or run hybrid archive repair to add the readable files",
        )
    return [f"{fault} in {directory}; the log is complete without it" for fault in found]


def _missing(lost: list[LogFault]) -> str:
    """Describes the events that lost entries had added."""
    rows, sources, offsets = 0, [], []
    for action in (action for fault in lost for action in entry_actions(fault.copy or b"")):
        add = action.get("add")
        if add and add.get("stats") and add.get("dataChange", True):
            stats = json.loads(add["stats"])
            rows += stats.get("numRecords", 0)
            least, greatest = stats.get("minValues", {}), stats.get("maxValues", {})
            if "_source" in least and "_offset" in least:
                sources += [least["_source"], greatest["_source"]]
                offsets += [least["_offset"], greatest["_offset"]]
    if not rows:
        return ""
    bounds = (min(sources), max(sources), min(offsets), max(offsets)) if sources else (None, None, None, None)
    return f"; without it {events_in_words(rows, *bounds)} would be missing"


def entry_actions(data: bytes) -> Iterator[Mapping[str, dict[str, Any]]]:
    """Yields the actions of a log entry; none for a checkpoint."""
    if data[:1] == b"{":
        for line in data.splitlines():
            if line.strip():
                yield json.loads(line)

"""The head of a table's log: how far the log goes, and what stands in it, written beside it after each commit.

A Delta log ends where its last entry is: one that was removed or emptied takes its files with it, and nothing says so.
So each commit of ours leaves `_head/<version>.head` behind: the entries that a reader needs at that version (the newest
checkpoint, and what came after it) with their SHA-256, and copies of them. A head is written once and never changed,
under a name that grows: writers that race cannot take it back.

A log that goes further than its head is no fault: another program has written to it, or a process has ended between
commit and head; the next commit of ours takes it over. A log that has less is one, and so is an entry with other bytes:
`faults` names them, and `restore` puts the copies in their place.
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
#: What spares a reader of the log the look at all names.
HINT = "_last_checkpoint"
_MAGIC = b"hybrid head 1 "
_SUFFIX = ".head"
_ENTRY = re.compile(r"^(\d{20})\.(json|checkpoint\..*parquet)$")
#: So many are left of _TIDY_FROM: to remove a file costs more than to write one.
_KEPT, _TIDY_FROM = 2, 8
_ATTEMPTS_MAX = 5


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the log. copy: its bytes, or None where they are in a file of their own beside the head."""

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
    entries: tuple[Entry, ...]

    @property
    def checkpoint(self) -> int:
        """The version of the checkpoint that it goes on from, -1 if there was none."""
        return max((e.version for e in self.entries if e.is_checkpoint), default=-1)


@dataclass(frozen=True, slots=True)
class LogFault:
    """A file of the log, or of its heads, that is not what was written. path: below the table; copy: what stood in it,
    None if that is not known; needed: whether the log is not whole without it."""

    path: str
    what: Literal["missing", "damaged"]
    copy: bytes | None
    needed: bool = True

    def __str__(self) -> str:
        return f"{self.path} is {'gone' if self.what == 'missing' else 'damaged'}"


# ---- written


def advance(directory: Place) -> None:
    """Writes the head for the newest version of the log, if it has none yet. OSError where that cannot be done: the
    commit stands, and the next one does it."""
    log, heads = directory / LOG, directory / HEAD
    for _ in range(_ATTEMPTS_MAX):
        names = log.names()
        version, checkpoint = newest(names)
        known = next(_readable(directory), None)
        if version < 0 or (known is not None and known.version >= version):
            return
        wanted = [n for n in names if (m := _ENTRY.match(n)) and _is_needed(int(m[1]), m[2], checkpoint)]
        old = {} if known is None else {entry.name: entry for entry in known.entries}
        # An entry that was there and is needed, but is gone, stays in the head: so it is missed when the log is read.
        wanted += [n for n, e in old.items() if e.version > checkpoint and n not in wanted]
        heads.make()
        try:
            entries = [old[name] if name in old else _entry(directory, name) for name in sorted(wanted)]
            body = _packed(Head(version, tuple(entries)))
            _put(heads, f"{version:020}{_SUFFIX}", _MAGIC + hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        except FileNotFoundError:
            continue  # another writer has gone on, with a newer checkpoint or this very head
        # Its name need not be on disk: a head that a loss of power takes is behind the log, and no fault.
        _tidy(heads)
        return


def _put(heads: Place, name: str, data: bytes) -> None:
    """Writes a file whole or not at all, also where two processes write it at once."""
    if not heads.on_disk:
        (heads / name).write_bytes(data)
        return
    part = heads / f"{uuid.uuid4().hex}.part"
    part.write_bytes(data)
    os.replace(part.root, (heads / name).root)


def newest(names: list[str]) -> tuple[int, int]:
    """The last version that a log has, and that of its newest checkpoint; -1 for none."""
    found = [(int(m[1]), m[2] != "json") for name in names if (m := _ENTRY.match(name))]
    return max((v for v, _ in found), default=-1), max((v for v, whole in found if whole), default=-1)


def needed(directory: Place) -> dict[str, bytes]:
    """The entries that a reader or a writer needs now, by name: the newest checkpoint, what came after it, and that of
    its own version with the hint, without one of which Delta appends nothing to a log that ends there."""
    log = directory / LOG
    for _ in range(_ATTEMPTS_MAX):
        names = log.names()
        _, checkpoint = newest(names)
        wanted = [n for n in names if (m := _ENTRY.match(n)) and _is_needed(int(m[1]), m[2], checkpoint)]
        own = f"{checkpoint:020}.json"
        try:
            found = {name: (log / name).read_bytes() for name in wanted}
        except FileNotFoundError:
            continue  # a newer checkpoint has made it superfluous meanwhile
        found |= {name: data for name in (own, HINT) if (data := _content(log, name)) is not None}
        if HINT in found and _hinted(found[HINT]) != checkpoint:
            del found[HINT]
        return found
    raise DataError(f"the log of {directory} changes all the time", "try again when less is written")


def _is_needed(version: int, kind: str, checkpoint: int) -> bool:
    return version > checkpoint if kind == "json" else version == checkpoint


def _entry(directory: Place, name: str) -> Entry:
    data = (directory / LOG / name).read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    if name.endswith(".json"):
        return Entry(name, digest, data)
    (directory / LOG / name).sync()  # which Delta does not
    _put(directory / HEAD, name, data)
    return Entry(name, digest, None)


def _packed(head: Head) -> bytes:
    rows = [[e.name, e.sha256, None if e.copy is None else base64.b64encode(e.copy).decode()] for e in head.entries]
    return json.dumps({"version": head.version, "entries": rows}).encode()


def _tidy(heads: Place) -> None:
    """Removes all but the last heads and the last copies of checkpoints, and what was never finished."""
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
    """The versions of heads, the newest first."""
    stems = [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX)]
    return sorted((int(stem) for stem in stems if stem.isdigit()), reverse=True)


def _readable(directory: Place, broken: list[str] | None = None) -> Iterator[Head]:
    """The heads that are whole, the newest first. broken: takes the paths of the others."""
    heads = directory / HEAD
    for number in _numbered(heads.names()):
        name = f"{number:020}{_SUFFIX}"
        try:
            data = (heads / name).read_bytes()
        except FileNotFoundError:
            continue  # another writer has gone on
        head, _, body = data.partition(b"\n")
        if head != _MAGIC + hashlib.sha256(body).hexdigest().encode():
            if broken is not None:
                broken.append(f"{HEAD}/{name}")
            continue
        state = json.loads(body)
        rows = ((n, d, None if c is None else base64.b64decode(c)) for n, d, c in state["entries"])
        yield Head(state["version"], tuple(Entry(*row) for row in rows))


def faults(directory: Place) -> list[LogFault]:
    """Entries of the log that are missing or damaged, as far as its head knows; the head itself included."""
    broken: list[str] = []
    head = next(_readable(directory, broken=broken), None)
    found = [LogFault(path, "damaged", None, False) for path in broken]
    if head is None:
        return found
    log = directory / LOG
    names = set(log.names())  # behind the head: it has all that the head has, or something newer in its place
    for _ in range(_ATTEMPTS_MAX):
        torn = _torn_checkpoints(log, names, head.checkpoint)
        _, checkpoint = newest(sorted(names - torn))
        wanted = [e for e in head.entries if checkpoint <= head.checkpoint or e.version > checkpoint]
        read = _contents(log, [entry.name for entry in wanted])
        again = set(log.names())
        if again == names or None not in read:
            break
        names = again  # a newer checkpoint may have made superfluous what was not there any more
    found += [LogFault(f"{LOG}/{name}", "damaged", None, False) for name in sorted(torn)]
    for entry, data in zip(wanted, read):
        if data is None or hashlib.sha256(data).hexdigest() != entry.sha256:
            what: Literal["missing", "damaged"] = "missing" if data is None else "damaged"
            found.append(LogFault(f"{LOG}/{entry.name}", what, _copy(directory, entry)))
    # A hint that leads past the log is wrong itself, if what it names is not what is gone.
    if HINT in names and not any(fault.path.startswith(LOG) for fault in found):
        if _hinted(_content(log, HINT) or b"") > checkpoint:
            found.append(LogFault(f"{LOG}/{HINT}", "damaged", None, False))
    return found


def _hinted(data: bytes) -> int:
    """The version that a hint names: Delta reads nothing before it. -1 for one that is none, which does no harm."""
    try:
        return int(json.loads(data).get("version", -1))
    except (ValueError, TypeError, AttributeError):
        return -1


def _torn_checkpoints(log: Place, names: set[str], above: int) -> set[str]:
    """Checkpoints behind a version that are no Parquet files: their writer has lost its power."""
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
    """The bytes of some entries, None for those that are not there; from a store several at a time."""
    if log.on_disk:
        return [_content(log, name) for name in names]
    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(lambda name: _content(log, name), names))


def _content(log: Place, name: str) -> bytes | None:
    try:
        return (log / name).read_bytes()
    except FileNotFoundError:
        return None


def _copy(directory: Place, entry: Entry) -> bytes | None:
    """The bytes of an entry, if they are still known."""
    data = _content(directory / HEAD, entry.name) if entry.copy is None else entry.copy
    return data if data is not None and hashlib.sha256(data).hexdigest() == entry.sha256 else None


def copies_damaged(directory: Place) -> list[LogFault]:
    """Copies of checkpoints beside the head that are gone or damaged: nothing is missing without them, as long as the
    log is whole."""
    head = next(_readable(directory), None)
    found = []
    for entry in () if head is None else head.entries:
        if entry.copy is None and _copy(directory, entry) is None:
            there = _content(directory / HEAD, entry.name) is not None
            found.append(LogFault(f"{HEAD}/{entry.name}", "damaged" if there else "missing", None))
    return found


def copy_again(directory: Place, path: str) -> None:
    """Makes the copy of a checkpoint anew, from the log."""
    name = path.removeprefix(f"{HEAD}/")
    _put(directory / HEAD, name, (directory / LOG / name).read_bytes())


def knows(directory: Place) -> bool:
    """Whether there is a head, so that a commit that is lost would be missed."""
    return next(_readable(directory), None) is not None


def has_log(directory: Place) -> bool:
    """Whether there are entries, damaged or not."""
    return newest((directory / LOG).names()) != (-1, -1)


def check(directory: Place) -> list[str]:
    """Raises DataError where the log has less than its head says. Returns what is damaged but not needed."""
    found = faults(directory)
    lost = [fault for fault in found if fault.path.startswith(LOG)]
    if lost:
        fault = lost[0]
        more = f", and {len(lost) - 1} more" if len(lost) > 1 else ""
        raise DataError(
            f"the log of {directory} is not what was written: {fault}{more}{_missing(lost)}",
            "nothing was changed: hybrid archive repair puts the log in order again"
            if all(one.copy is not None or not one.needed for one in lost)
            else f"restore {fault.path} from a copy, or let hybrid archive repair take in the files that it can read",
        )
    return [f"{fault} in {directory}; the log is whole without it" for fault in found]


def _missing(lost: list[LogFault]) -> str:
    """The events that entries have added, in words."""
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
    """The actions of an entry of the log; none of a checkpoint."""
    if data[:1] == b"{":
        for line in data.splitlines():
            if line.strip():
                yield json.loads(line)

"""State by bucket: the state of matchers, split by a hash of the key, and joined again.

The buckets of one state, or of several, may go to any number of matchers of the same plan, here or in another process:
each continues with the keys of its buckets, and together they find the same matches as one matcher. The parts consist
of partitions as records, as in spilling (matching.spilled).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from matching.batch import Int64Array
from matching.keys import hashes
from matching.matcher import KernelMatcher
from matching.records import Grouped, Leaving, layout_of, pack, read_layout, unpack
from matching.rows import Rows
from matching.state import pack as packed
from matching.state import read_array, saved_array, unpack_head
from matching.state import unpack as unpacked
from query.errors import DataError

#: Version of a part; join refuses others.
STATE_VERSION = 1


def bucket_of(columns: Sequence[pa.Array], rows: int, buckets: int) -> Int64Array:
    """Returns the bucket of each row's key, int64 (rows,), from 0; equal in every process. columns: of PARTITION BY."""
    return _bucket(hashes(columns, [c.type for c in columns], rows), buckets)


def _bucket(hashed: Int64Array, buckets: int) -> Int64Array:
    return (hashed.view(np.uint64) % np.uint64(buckets)).astype(np.int64)


def split(kernels: Sequence[KernelMatcher], buckets: int) -> list[bytes]:
    """Returns the state of matchers over the same rows, a part for each bucket. They must have emitted their matches,
    and may continue. Raises DataError if partitions cannot be separated."""
    rows = kernels[0].rows
    _refuse(kernels)
    rows.bring_all()
    in_use = np.ones(len(rows.keys), np.bool_)
    in_use[rows.keys.free] = False
    ids = np.flatnonzero(in_use)
    keys = [rows.keys.values(i, ids) for i in range(len(rows.partition_by))]
    bucket = _bucket(hashes(keys, [k.type for k in keys], len(ids)), buckets)
    keep = rows.mark(exact=True)
    parts = [_part(kernels, ids[bucket == b], keep) for b in range(buckets)]
    rows.drop(keep)
    return parts


def join(kernels: Sequence[KernelMatcher], parts: Sequence[bytes]) -> None:
    """Adds the keys of these parts to matchers of the same plans, in the order of `split`, over rows of their own. They
    must not have had an event of these keys, and their watermark must be that of the parts. Raises DataError for parts
    of other plans or releases, and for a key that they have already."""
    _refuse(kernels)
    for part in parts:
        _take_in(kernels, part)


def _refuse(kernels: Sequence[KernelMatcher]) -> None:
    why = kernels[0].rows.why
    if any(kernel.chosen.looked_up for kernel in kernels):
        why = "the rows of a key are divided by another column, and its matches are numbered together"
    if why is not None:
        raise DataError(f"this state cannot be split by key: {why}", "let one matcher keep the whole state")


def _part(kernels: Sequence[KernelMatcher], ids: Int64Array, keep: np.ndarray) -> bytes:
    """Returns the part of partitions `ids`, whose rows to keep have been marked."""
    rows = kernels[0].rows
    store, place = rows.store, np.full(len(rows.keys), -1, np.int64)
    place[ids] = np.arange(len(ids))
    of = np.where(keep[: store.count], place[store.partition[: store.count]], -1)
    blocks = rows.copy_out(Leaving(ids, place, Grouped(of, len(ids))))
    numbers = {f"{kernel.serial}": str(i) for i, kernel in enumerate(kernels)}
    blocks = {_renamed(name, numbers): block for name, block in blocks.items()}
    bounds, data = pack(blocks)
    arrays = {"bounds": bounds, "data": data}
    for i in range(len(rows.partition_by)):
        arrays[f"key.{i}"] = saved_array(rows.keys.values(i, ids))
    for i, kernel in enumerate(kernels):
        arrays |= {f"code.{i}.{type}": saved_array(values) for type, values in kernel.codes.snapshot().items()}
    return packed({"version": STATE_VERSION, "layout": layout_of(blocks), "kernels": _heads(kernels)}, arrays)


def _renamed(name: str, numbers: Mapping[str, str]) -> str:
    """Returns the name of a matcher's block with another number for the matcher; blocks of rows have none."""
    number, slash, rest = name.partition("/")
    return f"{numbers[number]}/{rest}" if slash and number in numbers else name


def _heads(kernels: Sequence[KernelMatcher]) -> list[list[object]]:
    return [[*kernel.meaning, kernel.engine.tag, [*kernel.sources]] for kernel in kernels]


def _take_in(kernels: Sequence[KernelMatcher], part: bytes) -> None:
    if unpack_head(part).get("version") != STATE_VERSION:
        raise DataError(f"this part of a state has another version than {STATE_VERSION}", "split the state again")
    head, arrays = unpacked(part)
    for kernel, (*meaning, tag, sources) in zip(kernels, head["kernels"], strict=True):
        if meaning != [*kernel.meaning]:
            raise DataError("this part of a state belongs to another plan or release", "join parts of one query")
        kernel.take_over(tag, tuple(sources))
    rows = kernels[0].rows
    keys = [read_array(arrays[f"key.{i}"]) for i in range(len(rows.partition_by))]
    ids = _new_ids(rows, keys)
    if not len(ids):
        return
    blocks = unpack(arrays["bounds"], arrays["data"], read_layout(head["layout"]))
    for i, kernel in enumerate(kernels):
        own, coded = f"{i}/", f"code.{i}."
        codes = {n.removeprefix(coded): read_array(a) for n, a in arrays.items() if n.startswith(coded)}
        kernel.recode({n.removeprefix(own): b for n, b in blocks.items() if n.startswith(own)}, codes)
    if rows.spilled is not None:
        rows.spilled.have_come(ids, len(rows.keys))
    numbers = {str(i): f"{kernel.serial}" for i, kernel in enumerate(kernels)}
    rows.put_in(ids, {_renamed(name, numbers): block for name, block in blocks.items()})
    rows.began = True


def _new_ids(rows: Rows, keys: Sequence[pa.Array]) -> Int64Array:
    """Returns partition ids for keys that are new to the rows."""
    used = np.ones(len(rows.keys), np.bool_)
    used[rows.keys.free] = False
    ids = rows.keys.encode(keys, len(keys[0]))
    known = ids[ids < len(used)]
    if used[known].any():
        raise DataError("a key of this part of a state already exists", "join the parts of disjoint buckets")
    return ids

"""Ids of matches: 32 hex digits for the chain of (variable, source, offset) of the events, which begins with the
fingerprint of the plan. The arithmetic is in matching.kernels.identity, its definition in docs/identity.md."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from matching.batch import Int64Array, Matches
from matching.kernels.identity import chains, chains_of_rows
from query.plan.output import Outcome

#: What ends the chain of a match without events, of an unmatched row, and of a timeout (query.plan.output.Outcome).
OUTCOMES = ("empty", "unmatched", "timeout")


@lru_cache(maxsize=4096)
def variable_word(label: str) -> int:
    """Returns the word of a variable in a chain; a row without a variable has the label ""."""
    return _word(label, b"hybrid variable")


@lru_cache(maxsize=8)
def _outcome_word(name: str) -> int:
    return _word(name, b"hybrid outcome")


@lru_cache(maxsize=4096)
def source_word(name: str) -> int:
    """Returns the word of a source in a chain."""
    return _word(name, b"hybrid source")


def beginning(fingerprint: str) -> tuple[int, int]:
    """The lanes of a chain without events: the halves of a fingerprint, 32 hex digits."""
    high, low = np.frombuffer(bytes.fromhex(fingerprint), ">i8").tolist()
    return high, low


def match_ids(
    fingerprint: str, bounds: Int64Array, variable: np.ndarray, source: np.ndarray, offset: Int64Array,
    variables: Sequence[str], sources: Sequence[str],
) -> list[str]:  # fmt: skip
    """The ids of n matches; arrays as those of matching.batch.Matches. variable: -1 where a row has none. O(events)."""
    digits = _digits(id_lanes(fingerprint, bounds, variable, source, offset, variables, sources))
    return [digits[i : i + 32] for i in range(0, len(digits), 32)]


def id_lanes(
    fingerprint: str, bounds: Int64Array, variable: np.ndarray, source: np.ndarray, offset: Int64Array,
    variables: Sequence[str], sources: Sequence[str], rows: Int64Array | None = None,
) -> np.ndarray:  # fmt: skip
    """Returns the ids of n matches as numbers, int64 (n, 2). rows: the matched rows, if source and offset are those of
    a store."""
    words = [*map(variable_word, variables), variable_word("")]
    return _lanes(fingerprint, bounds, variable, source, offset, words, sources, rows)


def outcome_lanes(fingerprint: str, found: Matches, start_source: np.ndarray, start_offset: Int64Array) -> np.ndarray:
    """Returns the ids of n matches, among them timeouts, unmatched rows and empty matches, as numbers, int64 (n, 2).
    The chain of one of these ends in the row where the attempt began, with its outcome as the variable. start_source,
    start_offset: of that row, (n,)."""
    bounds, n = found.event_bounds, len(found)
    outcome = np.zeros(n, np.int8) if found.outcome is None else found.outcome
    added = np.flatnonzero((outcome != Outcome.MATCH) | (bounds[:-1] == bounds[1:]))
    at = bounds[added + 1]
    more = np.zeros(n + 1, np.int64)
    more[added + 1] = 1
    variable = np.insert(found.event_variable, at, len(found.variables) + outcome[added])
    source = np.insert(found.event_source, at, start_source[added])
    offset = np.insert(found.event_offset, at, start_offset[added])
    words = [*map(variable_word, found.variables), *map(_outcome_word, OUTCOMES), variable_word("")]
    return _lanes(fingerprint, bounds + np.cumsum(more), variable, source, offset, words, found.sources)


def _lanes(
    fingerprint: str, bounds: Int64Array, variable: np.ndarray, source: np.ndarray, offset: Int64Array,
    labels: Sequence[int], sources: Sequence[str], rows: Int64Array | None = None,
) -> np.ndarray:  # fmt: skip
    """See `id_lanes`. labels: the words that `variable` indexes."""
    out, words = np.empty((len(bounds) - 1, 2), np.int64), np.array(labels, np.int64)
    names = np.array([*map(source_word, sources), 0], np.int64)
    bounds, variable = _plain(bounds, np.int64), _plain(variable, np.int16)
    source, offset = _plain(source, np.int32), _plain(offset, np.int64)
    if rows is None:
        chains(*beginning(fingerprint), bounds, variable, source, offset, words, names, out)
    else:
        rows = _plain(rows, np.int64)
        chains_of_rows(*beginning(fingerprint), bounds, variable, rows, source, offset, words, names, out)
    return out


def id_texts(lanes: np.ndarray) -> pa.Array:
    """Returns ids as text: 32 hex digits each."""
    bounds = np.arange(len(lanes) + 1, dtype=np.int64) * 32
    digits = pa.py_buffer(_digits(lanes).encode())
    texts = pa.LargeStringArray.from_buffers(len(lanes), pa.py_buffer(bounds), digits)
    return texts.cast(pa.string())


def window_ids(fingerprint: str, start_us: Int64Array, groups: Sequence[pa.Array]) -> np.ndarray:
    """Returns the ids of n rows of windows as numbers, int64 (n, 2): of the plan, the window and its group. groups: the
    values of GROUP BY, n of each."""
    texts = [_texts(values) for values in groups]
    before = hashlib.blake2b(f"{fingerprint};".encode(), digest_size=16, person=b"hybrid window")
    digests = []
    for start, *group in zip(start_us.tolist(), *texts, strict=True):
        one = before.copy()
        one.update(b"%d;%s" % (start, b"".join(group)))
        digests.append(one.digest())
    return np.frombuffer(b"".join(digests), ">i8").reshape(-1, 2).astype(np.int64)


def _texts(values: pa.Array) -> list[bytes]:
    """Returns values of a column of GROUP BY as bytes whose ends are known, `~` for null. Both zeros are one group."""
    if pa.types.is_floating(values.type):
        values = pc.add(values, pa.scalar(0.0, values.type))
    try:
        shown = values.cast(pa.string()).to_pylist()
    except pa.ArrowException:
        shown = [None if v is None else repr(v) for v in values.to_pylist()]
    found = (None if v is None else v.encode("utf-8", "surrogatepass") for v in shown)
    return [b"~" if v is None else b"%d:%s" % (len(v), v) for v in found]


def _digits(lanes: np.ndarray) -> str:
    return lanes.astype(">i8").tobytes().hex()


def _plain(array: np.ndarray, type: type[np.generic]) -> np.ndarray:
    """One form for each argument, so that one kernel is compiled."""
    return np.require(array, type, ("C", "W"))


def _word(name: str, kind: bytes) -> int:
    """The first 8 bytes, as a signed number, highest first."""
    digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, person=kind).digest()
    return int.from_bytes(digest, "big", signed=True)

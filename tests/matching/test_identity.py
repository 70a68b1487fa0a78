"""Ids of matches: the kernel beside the definition in docs/identity.md, which has Python's own integers; and how well
the chain spreads."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.rows.evidence import join_id
from matching.identity import beginning, match_ids, source_word, variable_word
from matching.kernels.identity import chains
from tests.docs.documents import blocks

NAMES = ("A", "B", "", "ß", "a/b")
SOURCES = ("default", "", "left/default", "right/default", "Börse \U0001f4c8")


@pytest.fixture(scope="module")
def documented() -> Any:
    """The function match_id of the document."""
    (block,) = (b for b in blocks("python") if b.path == "docs/identity.md")
    found: dict[str, Any] = {}
    with contextlib.redirect_stdout(io.StringIO()):
        exec(block.text, found)
    return found["match_id"]


def ids_of(fingerprint: str, matches: list[list[tuple[int, int, int]]]) -> list[str]:
    """The ids of matches of (variable, source, offset)."""
    events = np.array([e for m in matches for e in m], np.int64).reshape(-1, 3)
    bounds = np.cumsum([0, *map(len, matches)])
    variable, source = events[:, 0].astype(np.int16), events[:, 1].astype(np.int32)
    return match_ids(fingerprint, bounds, variable, source, events[:, 2], NAMES, SOURCES)


@pytest.mark.slow
@given(
    st.binary(min_size=16, max_size=16),
    st.lists(st.lists(
        st.tuples(st.integers(-1, len(NAMES) - 1), st.integers(0, len(SOURCES) - 1),
                  st.integers(0, 2**62) | st.sampled_from((0, 1, 2**63 - 1))), max_size=6,
    ), max_size=4),
)  # fmt: skip
def test_the_kernel_does_what_the_document_says(
    documented: Any, fingerprint: bytes, matches: list[list[tuple[int, int, int]]]
) -> None:
    name = fingerprint.hex()
    # of a row without a variable the label is empty
    named = [[((*NAMES, "")[v], SOURCES[s], o) for v, s, o in m] for m in matches]
    assert ids_of(name, matches) == [documented(name, m) for m in named]


def test_ids_are_pinned() -> None:
    # Before: 16 digits of a hash over the whole list, which no run could carry along.
    plan = "000102030405060708090a0b0c0d0e0f"
    assert ids_of(plan, [[], [(0, 0, 0)], [(0, 0, 0), (1, 0, 1)], [(-1, 4, 2**63 - 1)]]) == [
        "85374998ab4876844611f72f4a573bd8", "d999aec5cf480a8e8ae1e12600a9787a",
        "406f2d26e96f0374344a6851e15dca8c", "60634771f950f281488843bf072ec4f4",
    ]  # fmt: skip
    assert join_id("a", "b") == "575aa62220a2c597f5def8d269b6acac"


def test_everything_about_an_event_counts_and_so_does_the_order() -> None:
    plan = "00" * 16
    a, b = (0, 0, 1), (1, 0, 2)
    others = [
        [a, b], [b, a], [a], [b], [], [a, a], [a, a, a], [a, b, b], [(1, 0, 1), b], [(0, 2, 1), b], [(0, 3, 1), b],
        [(0, 0, 2), b], [(-1, 0, 1), b], [a, (1, 1, 2)], [a, (0, 0, 2)],
    ]  # fmt: skip
    found = ids_of(plan, others) + ids_of("00" * 15 + "01", [[a, b]])
    assert len(set(found)) == len(found)
    assert len({join_id("a", "b", ""), join_id("a", "", "b"), join_id("a", "b"), join_id("a"), join_id("", "a")}) == 5


def lanes(offset: np.ndarray, length: int, words: np.ndarray, sources: np.ndarray) -> np.ndarray:
    """uint64 (n, 2): ids of chains of that length over offsets (n * length,), variables and sources in turn."""
    n = len(offset) // length
    out = np.empty((n, 2), np.int64)
    at = np.arange(len(offset))
    variable, source = (at % length % len(words)).astype(np.int16), (at // length % len(sources)).astype(np.int32)
    chains(*beginning("5a" * 16), np.arange(n + 1) * length, variable, source, offset, words, sources, out)
    return out.view(np.uint64)


@pytest.mark.slow
@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", ["dense", "sparse", "random"])
def test_millions_of_chains_have_ids_of_their_own(kind: str) -> None:
    """Each lane alone has no equal ones either: of so many, two are equal once in four million such tests."""
    length, n = 3, 1 << 21
    rng = np.random.default_rng(22)
    at = np.arange(n)
    offsets = {
        "dense": np.stack([at >> 14, (at >> 7) & 127, at & 127], 1),  # all chains of three small numbers
        "sparse": np.stack([at << 40, at << 20, at ^ (at >> 1)], 1),
        "random": rng.integers(0, 2**63 - 1, (n, length)),
    }[kind].astype(np.int64)
    words = np.array([variable_word(v) for v in ("A", "B", "C")])
    found = lanes(offsets.reshape(-1), length, words, np.array([source_word("default")]))
    for lane in (found[:, 0], found[:, 1]):
        in_order = np.sort(lane)  # np.unique hashes, which takes ten times as long
        assert (in_order[1:] != in_order[:-1]).all()


@pytest.mark.slow
def test_each_bit_of_an_event_changes_half_of_the_id() -> None:
    """The avalanche, for every bit of the offsets of the first, the middle and the last event, and of their words."""
    length, n = 4, 4000
    rng = np.random.default_rng(23)
    offsets = rng.integers(0, 2**20, n * length)
    words = rng.integers(-(2**63), 2**63 - 1, length, dtype=np.int64)
    source = np.array([source_word("default")])

    def flipped_share(found: np.ndarray) -> np.ndarray:
        """For each of the 128 bits the share of ids in which it differs."""
        bits = np.unpackbits((found ^ plain).view(np.uint8).reshape(n, 16), axis=1)
        return bits.mean(axis=0)

    plain = lanes(offsets, length, words, source)
    for bit in range(63):
        for event in (0, 1, length - 1):
            other = offsets.reshape(n, length).copy()
            other[:, event] ^= np.int64(1) << bit
            shares = flipped_share(lanes(other.reshape(-1), length, words, source))
            assert abs(shares - 0.5).max() < 0.06, (bit, event)
    for bit in range(0, 64, 3):
        other = words.copy()
        other[length - 1] ^= np.array(1 << bit, np.uint64).astype(np.int64)
        assert abs(flipped_share(lanes(offsets, length, other, source)) - 0.5).max() < 0.06, bit

"""The log of partial matches: what was put is read, what is torn is not asked for, what a manifest names stays."""

from __future__ import annotations

import errno
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from archive import partials
from archive.partials import MAGIC, PartialStore
from matching.batch import Int64Array
from query.errors import DataError
from tests.archive.partial_segments import check


def records(*lengths: int, seed: int = 0) -> tuple[Int64Array, np.ndarray]:
    """Random records of so many words."""
    bounds = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(8 * np.array(lengths), out=bounds[1:])
    return bounds, np.random.default_rng(seed).integers(0, 256, int(bounds[-1]), np.uint8)


def parts(bounds: Int64Array, data: np.ndarray) -> list[bytes]:
    return [data[a:b].tobytes() for a, b in pairwise(bounds)]


def files(directory: Path) -> list[str]:
    return sorted(path.stem.lstrip("0") or "0" for path in directory.glob("*.partials"))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A segment for every put."""
    monkeypatch.setattr(partials, "SEGMENT_BYTES", 1)


@pytest.mark.slow
def test_records_are_read_in_the_order_asked_for(tmp_path: Path) -> None:
    store, rng = PartialStore(tmp_path), np.random.default_rng(1)
    places, lengths, wanted = [], [], []
    for i in range(20):
        bounds, data = records(*rng.integers(0, 3_000, 7).tolist(), seed=i)
        places += store.put(bounds, data).tolist()
        lengths += np.diff(bounds).tolist()
        wanted += parts(bounds, data)
    for size in (1, 5, 140):
        some = rng.permutation(len(places))[:size]
        found = store.read(np.array(places)[some], np.array(lengths)[some])
        assert parts(*found) == [wanted[i] for i in some]
    none = np.zeros(0, np.int64)
    assert parts(*store.read(none, none)) == []
    assert check(tmp_path) == []


@pytest.mark.parametrize("at", [len(MAGIC), len(MAGIC) + 5, len(MAGIC) + 8, -1])
def test_a_spoilt_record_is_an_error(tmp_path: Path, at: int) -> None:
    store = PartialStore(tmp_path)
    bounds, data = records(3)
    places = store.put(bounds, data)
    path = next(tmp_path.iterdir())
    content = bytearray(path.read_bytes())
    content[at] ^= 4
    path.write_bytes(content)
    with pytest.raises(DataError, match="damaged"):
        store.read(places, np.diff(bounds))
    assert check(tmp_path) != [] or at == len(MAGIC)  # a length that is too large is a torn end


def test_a_record_that_is_cut_off_is_an_error(tmp_path: Path) -> None:
    store = PartialStore(tmp_path)
    bounds, data = records(3, 5)
    places = store.put(bounds, data)
    os.truncate(next(tmp_path.iterdir()), len(MAGIC) + 40)
    assert parts(*store.read(places[:1], np.array([24]))) == parts(bounds, data)[:1]
    with pytest.raises(DataError, match="damaged"):
        store.read(places, np.diff(bounds))


def test_another_process_goes_on_from_a_manifest(tmp_path: Path) -> None:
    store = PartialStore(tmp_path)
    bounds, data = records(3, 4, 5)
    places, lengths = store.put(bounds, data), np.diff(bounds)
    store.drop(places[1:2], lengths[1:2])
    manifest = store.manifest()
    store.put(*records(7, seed=2))  # never asked for: torn
    os.truncate(next(tmp_path.iterdir()), os.path.getsize(next(tmp_path.iterdir())) - 11)
    store.drop(places[:1], lengths[:1])  # read back since, and asked for again
    other = PartialStore(tmp_path)
    other.restore(manifest)
    other.restore(manifest)  # another part of the same checkpoint
    other.adopt(places[[0, 2]], lengths[[0, 2]])
    assert parts(*other.read(places[[2, 0]], lengths[[2, 0]])) == [parts(bounds, data)[2], parts(bounds, data)[0]]
    more = other.put(*records(2, seed=3))
    assert len(list(tmp_path.iterdir())) == 2, "a segment of its own"
    assert parts(*other.read(more, np.array([16]))) == parts(*records(2, seed=3))
    assert check(tmp_path) == []


def test_a_manifest_of_what_is_gone_is_an_error(tmp_path: Path) -> None:
    store = PartialStore(tmp_path)
    store.put(*records(3))
    manifest = store.manifest()
    path = next(tmp_path.iterdir())
    os.truncate(path, 20)
    with pytest.raises(DataError, match="damaged"):
        PartialStore(tmp_path).restore(manifest)
    path.unlink()
    with pytest.raises(DataError, match="damaged"):
        PartialStore(tmp_path).restore(manifest)


@pytest.mark.usefixtures("small")
def test_what_the_last_two_manifests_name_stays(tmp_path: Path) -> None:
    store, lengths = PartialStore(tmp_path), np.array([24])
    one, two, three = (store.put(*records(3, seed=i)) for i in range(3))
    store.drop(one, lengths)
    assert files(tmp_path) == ["1", "2"], "no manifest names it"
    store.manifest()
    store.kept()  # names 1 and 2
    store.drop(two, lengths)
    assert files(tmp_path) == ["1", "2"]
    store.manifest()
    store.kept()  # names 2
    assert files(tmp_path) == ["1", "2"]
    store.drop(three, lengths)
    store.manifest()
    assert files(tmp_path) == ["1", "2"], "it may not get to the disk"
    store.kept()
    assert files(tmp_path) == ["2"]
    store.kept()
    assert files(tmp_path) == []


@pytest.mark.usefixtures("small")
def test_a_checkpoint_that_was_not_written_frees_nothing(tmp_path: Path) -> None:
    store, lengths = PartialStore(tmp_path), np.array([24])
    one = store.put(*records(3))
    manifest = store.manifest()
    store.kept()
    store.drop(one, lengths)
    for _ in range(5):
        store.manifest()
    other = PartialStore(tmp_path)
    other.restore(manifest)
    assert parts(*other.read(one, lengths)) == parts(*records(3))


@pytest.mark.usefixtures("small")
def test_what_stood_there_at_the_start_stays_until_the_next_checkpoint(tmp_path: Path) -> None:
    """The one before the newest may be needed yet."""
    store, lengths = PartialStore(tmp_path), np.array([24])
    one, two = (store.put(*records(3, seed=i)) for i in range(2))
    store.manifest()
    store.kept()
    store.drop(one, lengths)
    manifest = store.manifest()
    store.kept()
    other = PartialStore(tmp_path)
    other.restore(manifest)
    other.adopt(two, lengths)
    other.put(*records(3, seed=2))
    other.manifest()
    assert files(tmp_path) == ["0", "1", "2"]
    other.kept()
    assert files(tmp_path) == ["1", "2"]


@pytest.mark.usefixtures("small")
def test_without_a_checkpoint_what_is_there_goes_with_the_first_record(tmp_path: Path) -> None:
    PartialStore(tmp_path).put(*records(3))
    store = PartialStore(tmp_path)
    store.clear()
    assert files(tmp_path) == ["0"], "who only looks removes nothing"
    store.put(*records(3))
    assert files(tmp_path) == ["1"]


def test_worn_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partials, "SEGMENT_BYTES", 300)
    store = PartialStore(tmp_path)
    places, lengths = store.put(*records(*[3] * 10)), np.full(10, 24)
    other = store.put(*records(3))
    store.drop(places[:7], lengths[:7])
    assert not store.worn(places).any()
    store.drop(places[7:8], lengths[7:8])
    assert store.worn(np.concatenate([places[8:], other])).tolist() == [True, True, False]


def test_a_full_disk_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, lengths = PartialStore(tmp_path), np.array([24])
    one = store.put(*records(3))
    write, left = os.write, [30]

    def writing(file: int, data: memoryview) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        size = write(file, data[: left[0]])
        left[0] -= size
        return size

    monkeypatch.setattr(os, "write", writing)
    size = os.path.getsize(next(tmp_path.iterdir()))
    with pytest.raises(OSError, match="No space"):
        store.put(*records(9, seed=1))
    assert os.path.getsize(next(tmp_path.iterdir())) == size
    monkeypatch.setattr(os, "write", write)
    two = store.put(*records(3, seed=2))
    found = parts(*store.read(np.concatenate([two, one]), np.array([24, 24])))
    assert found == [*parts(*records(3, seed=2)), *parts(*records(3))]
    assert check(tmp_path) == []
    # nor does one on which no segment can begin
    monkeypatch.setattr(os, "write", writing)
    fresh = PartialStore(tmp_path / "other")
    with pytest.raises(OSError, match="No space"):
        fresh.put(*records(3))
    assert files(tmp_path / "other") == []
    assert parts(*store.read(one, lengths)) == parts(*records(3))


def test_closing_leaves_what_was_written(tmp_path: Path) -> None:
    store = PartialStore(tmp_path)
    places = store.put(*records(3))
    manifest = store.manifest()
    store.close()
    other = PartialStore(tmp_path)
    other.restore(manifest)
    assert parts(*other.read(places, np.array([24]))) == parts(*records(3))

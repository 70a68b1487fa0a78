"""Kernels are compiled by one process, and those that only kernels call without code for Python."""

from __future__ import annotations

import gc
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from matching.kernels import integers, jit
from tests.forked import Child

SOURCE = """
from matching.kernels.jit import kernel

@kernel
def twice(number):
    return number + number
"""


def test_a_kernel_that_only_kernels_call_can_be_called_by_a_test() -> None:
    # It has no code for that: numba would jump to address 0.
    assert integers.many_sum(1, 2) == 3
    assert integers.wrapped_sum(1, -2) == -1


def compile_at(place: str) -> None:
    """Compiles a kernel once there is a file, and prints what it gives and how often numba compiled it here."""
    jit._CACHE = Path(place)
    twice = jit.module_of(SOURCE).twice
    print("ready", flush=True)  # noqa: T201
    while not (Path(place) / "go").exists():
        time.sleep(0.001)
    print(twice(2), sum(twice.stats.cache_misses.values()), flush=True)  # noqa: T201


@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_after_a_kernel_was_compiled_if_it_was_before(
    collects: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jit, "_CACHE", tmp_path)
    monkeypatch.setattr(jit, "while_compiling", lambda: seen.append(gc.isenabled()) or nullcontext())
    seen: list[bool] = []
    was = gc.isenabled()
    (gc.enable if collects else gc.disable)()
    try:
        assert jit.module_of(SOURCE + f"# {collects}").twice(2) == 4
        assert gc.isenabled() == collects
    finally:
        (gc.enable if was else gc.disable)()
    assert seen == [collects]


@pytest.mark.slow
def test_one_process_compiles_and_others_read_what_it_compiled(tmp_path: Path) -> None:
    # Before: each compiled it. Two that compiled it for different types could even take each other's code.
    children = [Child(compile_at, str(tmp_path)) for _ in range(3)]
    try:
        assert [child.stdout.readline() for child in children] == ["ready\n"] * 3
        (tmp_path / "go").touch()
        said = sorted(child.stdout.readline() for child in children)
    finally:
        for child in children:
            child.kill()
            child.stdout.close()
    assert said == ["4 0\n", "4 0\n", "4 1\n"]

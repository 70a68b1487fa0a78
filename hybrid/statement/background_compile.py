"""Decides when a query gets a kernel of its own, and compiles it in the background.

A kernel takes seconds to compile, so a child process compiles it while the query runs, and puts it into the cache on
disk for later queries of the same text. HYBRID_KERNELS=interpreted never compiles a kernel; HYBRID_KERNELS=specialised
compiles it in this process before the query continues.
"""

from __future__ import annotations

import atexit
import os
import pickle
import subprocess
import sys
import threading
from types import ModuleType

from matching.engines.engine import Builder, EnginePlan, Specialisable, specialisable
from matching.kernels.jit import built, mark_built, module_of

#: Rows from which compiling pays (ROWS_BUILD), and from which reading the cache pays, 20 ms (ROWS_LOAD).
ROWS_BUILD = 1 << 18
ROWS_LOAD = 1 << 15
#: Most edges of an automaton that gets a kernel of its own: the kernel has code for each edge.
EDGES_MAX = 100
MODES = ("auto", "interpreted", "specialised")

_lock = threading.Lock()
#: The compiling child process, by the key of its kernel; one at a time.
_children: dict[str, subprocess.Popen[bytes]] = {}
#: Keys of kernels that a child failed to compile: their queries keep the interpreted kernel.
failed: set[str] = set()
#: Keys of kernels that were not in the cache at the last look.
_missing: set[str] = set()


def builder() -> Builder | None:
    """Returns the kernel builder for matchers, by the environment variable HYBRID_KERNELS. Raises ValueError for an
    unknown value."""
    match os.environ.get("HYBRID_KERNELS", "auto"):
        case "auto":
            return _in_background
        case "interpreted":
            return None
        case "specialised":
            return _at_once
        case other:
            raise ValueError(f"HYBRID_KERNELS is {other!r}; available: {', '.join(MODES)}")


def _at_once(engine: Specialisable, rows: int) -> ModuleType | None:
    with _lock:
        return built_kernel(engine) if len(engine.program.edge_target) <= EDGES_MAX else None


def built_kernel(engine: Specialisable) -> ModuleType:
    """Returns the kernel module of an engine. Compiles it in this process unless it is in the cache."""
    module = built(engine.key)
    if module is None:
        module = module_of(engine.source)
        engine.run_by(module.step)
        mark_built(engine.key, engine.source)
    return module


def _in_background(engine: Specialisable, rows: int) -> ModuleType | None:
    if rows < ROWS_LOAD or len(engine.program.edge_target) > EDGES_MAX:
        return None
    with _lock:  # a search runs matchers in several threads
        return _looked_for(engine, rows)


def _looked_for(engine: Specialisable, rows: int) -> ModuleType | None:
    key = engine.key
    if key not in _missing:
        module = built(key)
        if module is not None:
            return module
        _missing.add(key)
    if key in _children:
        if _children[key].poll() is None:
            return None
        _ended(key)
        return built(key)
    if rows >= ROWS_BUILD and key not in failed:
        for other in [k for k, child in _children.items() if child.poll() is not None]:
            _ended(other)
        if not _children:
            _children[key] = _start(engine.chosen)
    return None


def _ended(key: str) -> None:
    """Removes a child that has exited, and records a failure."""
    if _children.pop(key).wait() != 0:
        failed.add(key)
    _missing.discard(key)


def _start(chosen: EnginePlan) -> subprocess.Popen[bytes]:
    code = f"import sys; sys.path[:] = {sys.path!r}; from hybrid.statement.background_compile import build; build()"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert child.stdin is not None
    child.stdin.write(pickle.dumps(chosen))
    child.stdin.close()
    return child


@atexit.register
def _stop() -> None:
    """Kills the children when this process exits."""
    for child in _children.values():
        child.kill()
        child.wait()
    _children.clear()


def build() -> None:
    """Runs in the child: compiles the kernel of the engine on standard input, at lower priority."""
    os.nice(5)
    chosen: EnginePlan = pickle.loads(sys.stdin.buffer.read())
    engine = specialisable(chosen.make())
    assert engine is not None
    built_kernel(engine)
    os._exit(0)  # at once: the parent may be waiting

"""When a query goes on with a kernel of its own, and who compiles it.

A kernel takes seconds to compile, so a child process does it while the query runs, and leaves it in the cache on disk,
where the next query of this text finds it at once. HYBRID_KERNELS says otherwise: `interpreted` never makes one,
`specialised` waits for it.
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

#: Rows with which a query is worth a compiler's time, and with which it is worth that of reading the cache (20 ms).
ROWS_BUILD = 1 << 18
ROWS_LOAD = 1 << 15
#: Edges of the largest automaton that gets a kernel of its own: the kernel has a piece of code for each of them.
EDGES_MAX = 100
MODES = ("auto", "interpreted", "specialised")

_lock = threading.Lock()
#: The child that compiles, by the key of the kernel; one at a time.
_children: dict[str, subprocess.Popen[bytes]] = {}
#: Kernels that a child could not compile: their queries stay with the interpreted one.
_failed: set[str] = set()
#: Kernels that were not in the cache when they were looked for.
_missing: set[str] = set()


def builder() -> Builder | None:
    """What a matcher is given, by the environment variable HYBRID_KERNELS. Raises ValueError if it says anything
    else."""
    match os.environ.get("HYBRID_KERNELS", "auto"):
        case "auto":
            return _in_background
        case "interpreted":
            return None
        case "specialised":
            return _at_once
        case other:
            raise ValueError(f"HYBRID_KERNELS is {other!r}; it may be {', '.join(MODES)}")


def _at_once(engine: Specialisable, rows: int) -> ModuleType | None:
    with _lock:
        return _built(engine) if len(engine.program.edge_target) <= EDGES_MAX else None


def _built(engine: Specialisable) -> ModuleType:
    """The module of an engine, compiled by this process unless it is in the cache."""
    module = built(engine.key)
    if module is None:
        module = module_of(engine.source)
        engine.run_by(module.step)
        mark_built(engine.key, engine.source)
    return module


def _in_background(engine: Specialisable, rows: int) -> ModuleType | None:
    if rows < ROWS_LOAD or len(engine.program.edge_target) > EDGES_MAX:
        return None
    with _lock:  # matchers of one search run in threads
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
    if rows >= ROWS_BUILD and key not in _failed:
        for other in [k for k, child in _children.items() if child.poll() is not None]:
            _ended(other)
        if not _children:
            _children[key] = _start(engine.chosen)
    return None


def _ended(key: str) -> None:
    """Forgets a child that has nothing more to do."""
    if _children.pop(key).wait() != 0:
        _failed.add(key)
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
    """The process ends, and nobody waits for the children any more."""
    for child in _children.values():
        child.kill()
        child.wait()
    _children.clear()


def build() -> None:
    """What the child does: compiles the kernel of the engine on its standard input, at a lower priority."""
    os.nice(5)
    chosen: EnginePlan = pickle.loads(sys.stdin.buffer.read())
    engine = specialisable(chosen.make())
    assert engine is not None
    _built(engine)
    os._exit(0)  # at once: somebody may wait

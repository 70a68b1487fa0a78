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
from types import ModuleType

from matching.kernels.jit import is_built, mark_built, module_of
from matching.matcher import RUNS_MAX, Builder
from matching.run_blocks import RunBlocks
from matching.run_lists import RunLists
from query.automaton.program import Program

#: Rows after which a query is worth a compiler's time, and after which it is worth that of reading the cache.
ROWS_BUILD = 1 << 18
ROWS_LOAD = 1 << 17
MODES = ("auto", "interpreted", "specialised")

#: The child that compiles, by the source it compiles; one at a time.
_children: dict[str, subprocess.Popen[bytes]] = {}
#: Sources that a child could not compile: their queries stay with the interpreted kernel.
_failed: set[str] = set()


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


def _at_once(engine: RunBlocks | RunLists, rows: int) -> ModuleType | None:
    return _built(engine)


def _built(engine: RunBlocks | RunLists) -> ModuleType:
    """The module of an engine, compiled by this process unless it is in the cache."""
    module = module_of(engine.source)
    if not is_built(engine.source):
        engine.run_by(module.step)
        mark_built(engine.source)
    return module


def _in_background(engine: RunBlocks | RunLists, rows: int) -> ModuleType | None:
    if rows < ROWS_LOAD:
        return None
    source = engine.source
    if is_built(source):
        if source in _children:
            _ended(source)
        return module_of(source)
    if rows < ROWS_BUILD or source in _failed:
        return None
    child = _children.get(source)
    if child is None:
        for other in [s for s, c in _children.items() if c.poll() is not None]:
            _ended(other)
        if not _children:
            _children[source] = _start(engine.program)
    elif child.poll() is not None:
        _ended(source)
    return None


def _ended(source: str) -> None:
    """Forgets a child that has nothing more to do."""
    if _children.pop(source).wait() != 0:
        _failed.add(source)


def _start(program: Program) -> subprocess.Popen[bytes]:
    code = f"import sys; sys.path[:] = {sys.path!r}; from hybrid.kernels import build; build()"
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    assert child.stdin is not None
    child.stdin.write(pickle.dumps(program))
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
    """What the child does: compiles the kernel of the program on its standard input, at a lower priority."""
    os.nice(5)
    program = pickle.loads(sys.stdin.buffer.read())
    engine = RunBlocks(program, RUNS_MAX) if program.ignore else RunLists(program, RUNS_MAX)
    _built(engine)
    os._exit(0)  # at once: somebody may wait

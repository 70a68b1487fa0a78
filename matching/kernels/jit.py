"""The one place of jit options, and of where compiled kernels are kept.

numba's disk cache does not notice a changed callee or constant in another file, so the cache directory is named by a
hash of all kernel sources, of the files whose numbers kernels bake in, and of the versions that compiled code depends
on. Within it a kernel is found by what its file has in it, not by the file's place: code that was shipped to an
executor, and another checkout, do not compile it again. (Where numba knows no setting for that, they do.)

One process at a time compiles a kernel; others that want it wait, and read it from the cache.
"""

from __future__ import annotations

import fcntl
import gc
import hashlib
import importlib.util
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core import config
from numba.core.caching import _CacheLocator
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import CPUDispatcher

from query.cache import cache_home, is_private

F = TypeVar("F", bound=Callable[..., object])


def cache_directory() -> Path:
    """Returns the directory of compiled kernels of these sources and versions; a temporary one if there is no home."""
    digest = hashlib.blake2b(digest_size=8)
    matching, query = Path(__file__).parents[1], Path(__file__).parents[2] / "query"
    # kernels bake in numbers that these name, and these write kernels out
    named = [*(matching / "program").glob("*.py"), *(query / "automaton").glob("*.py"), query / "plan" / "output.py"]
    writers = [matching / "specialise.py", *matching.glob("written_*.py")]
    sources = [*Path(__file__).parent.glob("*.py"), *named, *writers]
    for source in sorted(sources):
        digest.update(source.read_bytes())
    digest.update(f"{numba.__version__} {np.__version__} {platform.python_version()} {platform.machine()}".encode())
    name = f"kernels-{digest.hexdigest()}"
    for home in (cache_home(), Path(tempfile.gettempdir()) / f"hybrid-{os.getuid()}"):
        if is_private(home) and is_private(home / name):
            return home / name
    return Path(tempfile.mkdtemp(prefix="hybrid-")) / name  # it belongs to another user: compiled anew, each time


_CACHE = cache_directory()


#: Entered while a kernel is compiled or read from the cache; replaced by whoever tells people about it.
while_compiling: Callable[[], AbstractContextManager[object]] = nullcontext


class ByContent(_CacheLocator):
    """Names the directory of a file's compiled kernels by the file's content."""

    def __init__(self, function: Callable[..., object], file: str) -> None:
        digest = hashlib.blake2b(Path(file).read_bytes(), digest_size=12)
        self._path = str(_CACHE / f"{Path(file).stem}_{digest.hexdigest()}")
        self._line = function.__code__.co_firstlineno
        self._py_file = file  # numba names it where it does not cache a kernel, as with NUMBA_OPT=0

    @classmethod
    def from_function(cls, function: Callable[..., object], file: str) -> ByContent:
        found = cls(function, file)
        found.ensure_cache_path()
        return found

    def get_cache_path(self) -> str:
        return self._path

    def get_source_stamp(self) -> str:
        return ""  # another content is another directory

    def get_disambiguator(self) -> str:
        return str(self._line)


def kernel(function: F) -> F:
    """Compiles on first call, without the GIL, cached on disk; floats follow IEEE (1/0 = inf), no fast math.

    A kernel makes no arrays, so references to them are not counted: that took most of the time where they come in
    tuples. numba does not compile a kernel that makes one."""
    return _compiled(function, _Kernel)


def called(function: F) -> F:
    """A kernel that only kernels call: code for calls from Python would take a third of the time to compile it."""
    return _compiled(function, _Called, no_cpython_wrapper=True)


def inlined(function: F) -> F:
    """A kernel whose code is inlined where kernels call it: passing it tuples of arrays would copy them."""
    return _compiled(function, _Called, no_cpython_wrapper=True, forceinline=True)


class _Kernel(CPUDispatcher):
    """A compiled function that one process at a time compiles."""

    def compile(self, sig: Any) -> Any:
        # numba's lock first: two threads may not wait for each other; processes do not, as no kernel calls its callers
        with global_compiler_lock:
            if sig in self.overloads:
                return super().compile(sig)
            lock = Path(str(self.stats.cache_path)) / f"{self.py_func.__name__}.lock"
            with while_compiling(), _locked(lock), _uncollected():
                return super().compile(sig)


class _Called(_Kernel):
    """A kernel without code for calls from Python, where numba would jump to address 0. It gets some once a test calls
    it."""

    def __call__(self, *arguments: object) -> object:
        return _from_python(self)(*arguments)


@cache
def _from_python(called: _Called) -> Callable[..., object]:
    options: dict[str, Any] = {"nogil": True, "_nrt": False}
    return cast(Callable[..., object], numba.njit(**options)(lambda *arguments: called(*arguments)))


@contextmanager
def _uncollected() -> Iterator[None]:
    """Leaves garbage where it is: a compiler makes millions of objects that live as long as it, and looking for garbage
    among them takes a tenth of its time."""
    if not gc.isenabled():  # also: of a kernel that is compiled for another one
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Waits until no other process has the lock of this file; without it where files have no locks. A lock ends with
    its process, and children do not inherit it."""
    try:
        file = path.open("ab")
    except OSError:
        yield
        return
    with file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX)
        except OSError:
            pass
        yield


def module_of(source: str) -> ModuleType:
    """The module with this source, which is kept beside the compiled kernels; its kernels are cached like any other."""
    path = _place(source)
    if not path.exists():
        _put(path, source)
    return _module_at(path)


def _module_at(path: Path) -> ModuleType:
    if path.stem in sys.modules:
        return sys.modules[path.stem]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # numba finds what it has cached by the name
    spec.loader.exec_module(module)
    return module


def key_of(*parts: object) -> str:
    """Returns the key of the parts that make a module, for `built`: their repr, the same in all processes."""
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()


def built(key: str) -> ModuleType | None:
    """The module for which `mark_built` was called with this key, by any process; None: for none."""
    try:
        path = _CACHE / _mark(key).read_text()
    except FileNotFoundError:
        return None
    return _module_at(path) if path.exists() else None


def mark_built(key: str, source: str) -> None:
    """Notes that the functions of the module with this source are compiled and in the cache."""
    _put(_mark(key), _place(source).name)


def _mark(key: str) -> Path:
    return _CACHE / f"built_{key}.txt"


def _place(source: str) -> Path:
    return _CACHE / f"kernel_{hashlib.blake2b(source.encode(), digest_size=12).hexdigest()}.py"


def _put(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, suffix=".tmp", delete=False) as file:
        file.write(text)
    os.replace(file.name, path)


def _compiled(function: F, kind: type[_Kernel], **more: bool) -> F:
    # no kernel is called from C
    options: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "_nrt": False, **more}
    options["no_cfunc_wrapper"] = True
    settings = cast(Any, config)
    before = settings.CACHE_DIR, getattr(settings, "CACHE_LOCATOR_CLASSES", "")
    # read when the decorator runs; a user's own functions keep their place
    settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES = str(_CACHE), f"{__name__}.{ByContent.__name__}"
    try:
        compiled = numba.njit(**options)(function)
    finally:
        settings.CACHE_DIR, settings.CACHE_LOCATOR_CLASSES = before
    if isinstance(compiled, CPUDispatcher):  # not where NUMBA_DISABLE_JIT is set
        cast(Any, compiled).__class__ = kind
    return cast(F, compiled)

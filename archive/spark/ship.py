"""Sends our code to executors, unless they have the same version installed.

A task's function is named by a text, `module:function`, and imported in the executor; only a small function that uses
the standard library is pickled. It carries the sources of our packages as a zip file: 0.4 MB, less than a task's own
data. They are unpacked once per version into a directory named by their hash, because numba caches compiled code only
for modules in files, and by the contents of these files. Refused: addPyFile and artifacts, which leave the code in a
zip file, work differently in Spark Connect, and change a session that may be the user's.
"""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

#: Packages that tasks import; `hybrid` and `live` are not sent.
PACKAGES = ("query", "matching", "archive")


@cache
def sources() -> tuple[bytes, str]:
    """Returns our packages as a zip file, and the hash of their sources."""
    digest = hashlib.blake2b(digest_size=8)
    out = io.BytesIO()
    home = Path(__file__).parents[2]
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(p for name in PACKAGES for p in (home / name).rglob("*")):
            if not path.is_file() or path.suffix == ".pyc":
                continue
            name, data = path.relative_to(home).as_posix(), path.read_bytes()
            digest.update(f"{name} {len(data)} ".encode() + data)
            archive.writestr(zipfile.ZipInfo(name), data, zipfile.ZIP_DEFLATED, compresslevel=9)
    return out.getvalue(), digest.hexdigest()


def task(function: str, argument: bytes) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Returns the function that Spark runs in executors: it calls `function` ("package.module:name") with the argument
    and the iterator of batches.

    Executors need numpy, pyarrow, duckdb and numba; without them tasks raise ImportError with a hint."""
    data, name = sources()
    packages = PACKAGES
    module, _, attribute = function.partition(":")

    def run(batches: Iterator[Any]) -> Iterator[Any]:  # pickled by value: must not refer to globals
        import hashlib
        import importlib.util
        import io
        import os
        import pathlib
        import sys
        import tempfile
        import zipfile

        def same(home: pathlib.Path) -> bool:
            """Returns True if the packages in `home` are these sources."""
            digest = hashlib.blake2b(digest_size=8)
            for path in sorted(p for package in packages for p in (home / package).rglob("*")):
                if path.is_file() and path.suffix != ".pyc":
                    content = path.read_bytes()
                    digest.update(f"{path.relative_to(home).as_posix()} {len(content)} ".encode() + content)
            return digest.hexdigest() == name

        def unpacked() -> pathlib.Path:
            """Returns the directory of the unpacked packages; unpacks them if needed."""
            roots = [pathlib.Path(tempfile.gettempdir()) / f"hybrid-{os.getuid()}"]
            cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
            if os.path.isabs(cache):
                roots.insert(0, pathlib.Path(cache) / "hybrid")
            for root in roots:
                home = root / f"code-{name}"
                if home.is_dir() and root.stat().st_uid == home.stat().st_uid == os.getuid():
                    return home
                try:
                    root.mkdir(mode=0o700, parents=True, exist_ok=True)
                    if root.stat().st_uid != os.getuid():  # its owner could replace the code
                        continue
                    part = tempfile.mkdtemp(prefix="code-", dir=root)
                except OSError:
                    continue
                zipfile.ZipFile(io.BytesIO(data)).extractall(part)
                for path in pathlib.Path(part).rglob("*"):
                    os.utime(path, (0, 0))  # numba compares file times with its cache
                try:
                    os.rename(part, home)
                except OSError:  # another task was faster
                    import shutil

                    shutil.rmtree(part)
                return home
            raise OSError(f"the code cannot be unpacked into any of {', '.join(map(str, roots))}")

        key = "_hybrid_code"
        if getattr(sys, key, None) != name:  # once per process of an executor
            found = importlib.util.find_spec(packages[0])
            places = list(found.submodule_search_locations or ()) if found is not None else []
            if not (places and same(pathlib.Path(places[0]).parent)):
                for loaded in [m for m in sys.modules if m.partition(".")[0] in packages]:
                    del sys.modules[loaded]
                sys.path.insert(0, str(unpacked()))
                importlib.invalidate_caches()
            setattr(sys, key, name)
        try:
            called = getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            raise ImportError(f"{error}: executors need numpy, pyarrow, duckdb and numba") from None
        yield from called(argument, batches)

    return run

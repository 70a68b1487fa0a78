"""Programs run by children that are forked (tests.forked): they load neither Python nor numba, DuckDB and Arrow anew,
which takes longer than most of them."""

from __future__ import annotations

import os
import runpy
import sys
import tempfile
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path

from tests.forked import CHILDREN
from tests.in_memory import MEMORY


@dataclass(frozen=True)
class Ended:
    returncode: int | None
    stdout: str
    stderr: str


def run_text(text: str, directory: Path) -> Ended:
    """Runs a text as `python -W error -c` does."""
    return _run(str(directory), "", text)


def run_module(directory: Path, module: str, *arguments: str) -> Ended:
    """Runs a module as `python -m` does."""
    return _run(str(directory), module, *arguments)


def _run(directory: str, module: str, *arguments: str) -> Ended:
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        process = CHILDREN.Process(target=_child, args=(place, directory, module, *arguments))
        process.start()
        process.join(300)
        if process.exitcode is None:
            process.kill()
            process.join()
        said = [Path(place, name).read_text(encoding="utf-8") for name in ("stdout", "stderr")]
    return Ended(process.exitcode, *said)


def _child(place: str, directory: str, module: str, *arguments: str) -> None:
    os.chdir(directory)
    for number, name in ((1, "stdout"), (2, "stderr")):
        file = os.open(Path(place, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, number)
        setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115  (to the end)
    try:
        if module:
            sys.argv = [module, *arguments]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        else:
            warnings.simplefilter("error")
            exec(compile(arguments[0], "<text>", "exec"), {"__name__": "__main__"})
    except Exception:  # noqa: BLE001  (whatever the program raises)
        traceback.print_exc()
        raise SystemExit(1) from None
    finally:
        sys.stdout.flush()
        sys.stderr.flush()

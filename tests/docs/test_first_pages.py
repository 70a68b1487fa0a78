"""README, the first quarter of an hour and the tutorial print what they show where nothing but the wheel is installed,
with the extras that the page names."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.documents import ROOT, Block, blocks, installs
from tests.live.servers import missing
from tests.properties.comparing import is_nightly

README, QUARTER, TUTORIAL = "README.md", "docs/first_quarter.md", "docs/tutorial.md"
#: Runs texts, and prints a list of what each has printed. SQL is asked of the tables that the first text makes.
RUN = """
import contextlib, io, json, sys
printed, first = [], None
for language, text in json.load(sys.stdin):
    names = {"__name__": "__main__"} if language == "python" else first | {"text": text}
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(text if language == "python" else "import hybrid; print(hybrid.sql(text))", names)
    first = first or names
    printed.append(out.getvalue())
json.dump(printed, sys.stdout)
"""
HINT = """
try:
    valleys.plot()
except hybrid.DataError as error:
    print(error.hint)
"""
#: Modules are compiled once, and nothing of this project is on the path.
_LEFT_OUT = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
ENVIRONMENT |= {"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "COLUMNS": "100"}


class Fresh:
    """An environment with a wheel of this project and the extras that were asked for last."""

    def __init__(self, python: str, wheel: Path, place: Path) -> None:
        self.bin, self.home, self._wheel = place / "env" / "bin", place / "home", wheel
        self._extras: frozenset[str] | None = None
        self.home.mkdir()
        subprocess.run([python, "-m", "venv", "--without-pip", place / "env"], check=True, env=ENVIRONMENT)

    def install(self, extras: frozenset[str]) -> None:
        """Adds extras; those that are there must be among them, so that there is nothing else."""
        if extras == self._extras:
            return
        assert self._extras is None or self._extras < extras
        self._extras = extras
        with_extras = f"{self._wheel}[{','.join(sorted(extras))}]" if extras else self._wheel
        pip("--python", self.bin / "python", "install", "--no-compile", with_extras)

    def printed(self, *texts: tuple[str, str]) -> list[str]:
        """Returns what texts of Python and SQL print, one after the other in one process."""
        command, given = [self.bin / "python", "-c", RUN], json.dumps(texts)
        ran = subprocess.run(command, cwd=self.home, env=ENVIRONMENT, input=given, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return list(json.loads(ran.stdout))

    def typed(self, text: str) -> str:
        """Returns what lines of the shell print, on both streams."""
        return subprocess.run(
            ["bash", "-c", text], cwd=self.home, env=ENVIRONMENT | {"PATH": f"{self.bin}:{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        ).stdout  # fmt: skip


def pip(*arguments: str | Path) -> None:
    command = [sys.executable, "-m", "pip", *arguments, "--quiet"]
    ran = subprocess.run(command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if "Retrying (" in ran.stderr:
        missing("no package index can be reached")
    assert ran.returncode == 0, ran.stderr


def newest() -> str:
    """Returns the newest Python above the running one; skips the test if there is none."""
    home = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    for minor in range(19, sys.version_info.minor, -1):
        for name in (shutil.which(f"python3.{minor}"), *home.glob(f"3.{minor}.*/bin/python")):
            if name and subprocess.run([name, "-c", "import venv"], capture_output=True).returncode == 0:
                return str(name)
    pytest.skip("there is no Python newer than the running one")


def page(path: str, *languages: str) -> list[Block]:
    return [block for block in blocks(*languages) if block.path == path]


@pytest.mark.slow
@pytest.mark.timeout(3600)  # a slow disk has to take a gigabyte
@pytest.mark.parametrize("which", ["running", "newest"])
def test_the_first_pages_run_from_the_wheel(which: str, tmp_path: Path) -> None:
    # Before: the first code of README needed pandas, which no line of it installed.
    if which == "newest" and not (is_nightly() or os.environ.get("CI")):
        pytest.skip("the newest Python is tried by .ci/run and make nightly: it compiles all kernels anew")
    python = sys.executable if which == "running" else newest()
    pip("wheel", "--no-deps", "--wheel-dir", tmp_path, ROOT)
    (wheel,) = tmp_path.glob("*.whl")
    fresh = Fresh(python, wheel, tmp_path)

    readme = (ROOT / README).read_text(encoding="utf-8")
    (first,), (plain, plot, *_) = page(README, "python"), installs(README)
    assert first.output is not None
    (picture,) = re.findall(r"`(valleys\.plot\(path=\"valley\.svg\"\))`", readme)
    fresh.install(plain)
    hint = "pip install 'matplotlib<4,>=3.9'\n"
    assert fresh.printed(("python", first.text), ("python", first.text + HINT)) == [first.output, first.output + hint]
    fresh.install(plot)
    assert fresh.printed(("python", first.text + picture)) == [first.output]
    assert (fresh.home / "valley.svg").stat().st_size > 5_000

    (demo,), (tutorial,) = set(installs(QUARTER)), set(installs(TUTORIAL))
    fresh.install(demo)
    steps = page(QUARTER, "sh")
    assert len(steps) == 9
    assert {str(block): fresh.typed(block.text) for block in steps} == {str(block): block.output for block in steps}
    assert (fresh.home / "demo-output" / "stock.png").stat().st_size > 10_000
    assert (fresh.home / "left.png").stat().st_size > 10_000
    fresh.install(tutorial)
    lines = page(TUTORIAL, "python", "sql")
    assert len(lines) == 10
    found = fresh.printed(*((block.language, block.text) for block in lines))
    assert dict(zip(map(str, lines), found)) == {str(block): block.output or "" for block in lines}


def test_the_demo_of_make_is_the_first_step() -> None:
    (first,) = (b.text for b in page(QUARTER, "sh") if "demo" in b.text)
    command = first.partition(" 2>")[0]
    assert f"\t$(BIN)/{command} </dev/null\n" in (ROOT / "Makefile").read_text(encoding="utf-8")

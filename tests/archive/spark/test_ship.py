"""Our code on executors: unpacked where it is not, or where it is another version; left alone where it is the same."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from archive.spark import ship
from tests.archive.spark.servers import WITHOUT_US

ROOT = Path(__file__).parents[3]

#: What an executor does with a task: it runs the function that it unpickles.
EXECUTOR = """
import pickle, sys
run = pickle.load(open(sys.argv[1], "rb"))
print(list(run(iter([1, 2]))))
import query.errors
print(query.errors.__file__)
"""


def executed(tmp_path: Path, function: str, before: str = "", path: tuple[Path, ...] = ()) -> list[str]:
    """The lines that an executor prints; `path` is all it has of ours."""
    cloudpickle = pytest.importorskip("pyspark.cloudpickle")
    site = tmp_path / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(WITHOUT_US + f"sys.path[:0] = {[str(p) for p in path]!r}\n")
    task = tmp_path / "task"
    task.write_bytes(cloudpickle.dumps(ship.task(function, b"argument")))
    env = {"PYTHONPATH": str(site), "XDG_CACHE_HOME": str(tmp_path / "cache"), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [sys.executable, "-c", before + EXECUTOR, str(task)], env=env, cwd=tmp_path, capture_output=True, text=True,
        timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch) -> str:
    """A function of ours that tasks may run: what is shipped has it, what is here has not."""
    data, name = ship.sources()
    out = io.BytesIO(data)
    with zipfile.ZipFile(out, "a") as archive:
        archive.writestr("query/echo.py", "def echo(argument, items):\n    yield argument\n    yield from items\n")
    monkeypatch.setattr(ship, "sources", lambda: (out.getvalue(), name + "e"))
    return "query.echo:echo"


@pytest.mark.slow
def test_code_is_unpacked(tmp_path: Path, echo: str) -> None:
    home = tmp_path / "cache" / "hybrid" / f"code-{ship.sources()[1]}"
    for _ in range(2):
        said, where = executed(tmp_path, echo)
        assert said == "[b'argument', 1, 2]"
        assert where == str(home / "query" / "errors.py")
    assert (home / "query" / "language" / "match_recognize.lark").is_file()
    assert (home / "query" / "errors.py").stat().st_mtime == 0
    assert not [path for path in home.parent.iterdir() if path != home]


@pytest.mark.slow
def test_another_version_makes_way(tmp_path: Path, echo: str) -> None:
    old = tmp_path / "old"
    for package in ship.PACKAGES:
        (old / package).mkdir(parents=True)
        (old / package / "__init__.py").write_text("")
    (old / "query" / "errors.py").write_text("raise SystemExit('this is the old one')")
    said, where = executed(tmp_path, echo, "import query, matching\n", (old,))
    assert said == "[b'argument', 1, 2]"
    assert "code-" in where


@pytest.mark.slow
def test_the_same_version_is_used_as_it_is(tmp_path: Path) -> None:
    """With all that compiled kernels and grammars are looked for."""
    home = tmp_path / "here"
    zipfile.ZipFile(io.BytesIO(ship.sources()[0])).extractall(home)
    task = executed(tmp_path, "operator:concat", "import operator\noperator.concat = lambda a, b: [a, *b]\n", (home,))
    assert task == ["[b'argument', 1, 2]", str(home / "query" / "errors.py")]
    assert not (tmp_path / "cache").exists()


def test_a_task_is_small() -> None:
    data, name = ship.sources()
    assert len(data) < 1 << 20
    assert len(name) == 16
    names = zipfile.ZipFile(io.BytesIO(data)).namelist()
    assert {n.split("/")[0] for n in names} == set(ship.PACKAGES)
    assert not [n for n in names if n.endswith(".pyc")]

"""What is kept among the user's caches is run: nobody else may have put it there."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from query.cache import is_private
from query.language.read import parser_of
from tests.query.language.test_grammar import TEXT

RAN: list[str] = []


def ran() -> dict[str, Any]:
    RAN.append("code")
    return {}


class Hostile:
    def __reduce__(self) -> Any:
        return ran, ()


def test_a_directory_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "a" / "b"
    assert is_private(own)
    assert own.stat().st_mode & 0o777 == 0o700
    own.chmod(0o777)
    assert is_private(own)
    assert own.stat().st_mode & 0o022 == 0
    (tmp_path / "file").write_text("")
    assert not is_private(tmp_path / "file" / "below")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert not is_private(own)


# Before: what lay in a directory of somebody else was unpickled.
def test_a_grammar_of_somebody_else_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parser_of(TEXT, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(pickle.dumps(Hostile()))
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert parser_of(TEXT, tmp_path).terminals
    assert RAN == []


def test_kernels_are_kept_where_nobody_else_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matching.kernels import jit

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert jit.cache_directory().parent == tmp_path / "cache" / "hybrid"
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert jit.cache_directory().parent == tmp_path / f"hybrid-{os.getuid()}"
    monkeypatch.setattr(jit, "is_private", lambda directory: False)
    other = jit.cache_directory().parent
    assert other != tmp_path / f"hybrid-{os.getuid()}"
    assert other.stat().st_mode & 0o077 == 0

"""People at a terminal are told what takes long, once it does."""

from __future__ import annotations

import io
import sys
import time

import pytest

from hybrid.statement import compile_notice
from hybrid.statement.compile_notice import TEXT, noticed, tell_people
from matching.kernels import jit
from tests.waiting import GUARD_S, until


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def watched(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Makes stderr a terminal; called in the test, whose stderr pytest replaces after the fixtures."""
    found = Terminal()
    monkeypatch.setattr(sys, "stderr", found)
    monkeypatch.setattr(compile_notice, "PATIENCE_S", 0.2)
    monkeypatch.setattr(compile_notice, "_spent_s", 0.0)
    monkeypatch.setattr(jit, "while_compiling", jit.while_compiling)
    return found


def test_a_long_compilation_says_so_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    with noticed(), noticed():  # a kernel compiles those that it calls
        until(lambda: terminal.getvalue() == TEXT)
    assert terminal.getvalue() == f"{TEXT}\r{' ' * len(TEXT)}\r"


def test_short_ones_say_so_when_they_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    monkeypatch.setattr(compile_notice, "PATIENCE_S", 600.0)
    with noticed():
        time.sleep(0.15)
    assert compile_notice._spent_s >= 0.15
    assert terminal.getvalue() == ""
    monkeypatch.setattr(compile_notice, "_spent_s", 599.0 + compile_notice._spent_s)
    with noticed():
        until(lambda: terminal.getvalue() == TEXT)


def test_what_is_read_from_the_cache_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    monkeypatch.setattr(compile_notice, "COMPILED_S", GUARD_S)
    for _ in range(30):
        with noticed():
            time.sleep(0.01)
    assert terminal.getvalue() == ""
    assert compile_notice._spent_s == 0.0


def test_only_terminals_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    watched(monkeypatch)
    tell_people()
    assert jit.while_compiling is noticed
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    tell_people()
    assert jit.while_compiling is not noticed

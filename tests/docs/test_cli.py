"""docs/cli.md has the help text of every command."""

from __future__ import annotations

import re

import pytest

from tests.docs.cli_help import DOCUMENT, MARKER, commands, rendered


@pytest.mark.slow
def test_help_texts_are_the_programs() -> None:
    _, marker, below = DOCUMENT.read_text(encoding="utf-8").partition(MARKER)
    assert marker, f"{DOCUMENT.name} has no line {MARKER!r}"
    # Words, not blanks: where a line breaks is the business of the library that formats it.
    assert below.split() == rendered().split(), "run python -m tests.docs.cli_help"


def test_every_command_is_used_in_an_example() -> None:
    above, _, _ = DOCUMENT.read_text(encoding="utf-8").partition(MARKER)
    lines = [" ".join(words) for words in commands()]
    assert [line for line in lines if not re.search(rf"^hybrid {line}\b", above, re.MULTILINE)] == []

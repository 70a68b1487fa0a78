"""Numbers of things in messages, and texts that are shown as they are."""

from __future__ import annotations


def counted(number: int, noun: str) -> str:
    """Returns a number with its noun: 1 file, 1,234 files, 2 queries, 3 matches."""
    if number == 1:
        return f"1 {noun}"
    if noun.endswith("y"):
        return f"{number:,} {noun[:-1]}ies"
    return f"{number:,} {noun}es" if noun.endswith("ch") else f"{number:,} {noun}s"


def counted_are(number: int, noun: str) -> str:
    """Returns a number with its noun and its verb: 1 file is, 2 files are."""
    return f"{counted(number, noun)} {'is' if number == 1 else 'are'}"


class PrintedText(str):
    """A text of several lines, which a shell and a notebook show as `print` does."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

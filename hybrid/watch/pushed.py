"""The result of a push."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, repr=False, eq=False)
class Pushed(int):
    """The events of one push, by number: accepted ones, which is its value as an int, the late ones among them, and
    known ones, which had come before and were dropped."""

    accepted: int
    late: int = 0
    known: int = 0

    def __new__(cls, accepted: int, late: int = 0, known: int = 0) -> Pushed:
        return super().__new__(cls, accepted)

    def __getnewargs__(self) -> tuple[int, int, int]:  # type: ignore[override]
        return self.accepted, self.late, self.known

    def __repr__(self) -> str:
        return f"{self.accepted:,} accepted, {self.late:,} late, {self.known:,} known"

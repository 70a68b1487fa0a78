"""Members that stand twice, held against a plain parse of each object."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest

from matching.json_members import members_twice

DECLARED = ("a", "b", "tr\u00e9s", 'q"')


def plain(line: bytes) -> str | None:
    """The first declared member that occurs twice, at whatever depth below one, by the standard library."""

    def walk(members: Any, path: str) -> str | None:
        seen = set()
        for name, value in members:
            if path or name in DECLARED:
                if name in seen:
                    return path + name
                seen.add(name)
                found = walk(value[1], f"{path}{name}.") if isinstance(value, tuple) else None
                if found is not None:
                    return found
        return None

    return walk(json.loads(line, object_pairs_hook=lambda pairs: ("object", pairs))[1], "")


def written(random: Random, name: str) -> str:
    """A name as some writer may write it."""
    if random.random() < 0.2:
        return '"' + "".join(f"\\u{ord(c):04x}" for c in name) + '"'
    return json.dumps(name, ensure_ascii=random.random() < 0.5)


def value(random: Random, depth: int = 0) -> str:
    kind = random.randrange(8 if depth < 2 else 6)
    if kind == 0:
        return "null"
    if kind < 3:
        return str(random.randint(0, 9))
    if kind < 6:
        return random.choice(('"x"', '"a"', '", "', '"a\\":1"', '"\\"a\\": 2, \\"a\\": 3"', '"tr\u00e9s"'))
    inside = [f'"{random.choice("ab")}": {value(random, depth + 1)}' for _ in range(random.randint(0, 3))]
    return "{" + ", ".join(inside) + "}"


def line(random: Random, usual: float) -> bytes:
    """An object, with one of each member unless something is otherwise."""
    members = [(name, "1" if random.random() < usual else value(random)) for name in DECLARED[: random.choice((2, 4))]]
    if random.random() > usual:
        members += [(random.choice((*DECLARED, "other", "more")), value(random)) for _ in range(random.randint(1, 2))]
        random.shuffle(members)
        members = members[random.randint(0, 1) :]
    colon = random.choice((":", ": ", " :")) if random.random() > usual else ": "
    names = [written(random, name) if random.random() > usual else json.dumps(name) for name, _ in members]
    return ("{" + ", ".join(f"{name}{colon}{value}" for name, (_, value) in zip(names, members)) + "}").encode()


@pytest.mark.parametrize("usual", [0.99, 0.8, 0.2])
def test_what_is_found_is_what_a_parse_of_each_object_finds(usual: float) -> None:
    found = 0
    for seed in range(400):
        random = Random(seed)
        lines = [line(random, usual) for _ in range(random.randint(1, 12))]
        values = [json.loads(text) for text in lines]
        present = {name: sum(v.get(name) is not None for v in values) for name in DECLARED}
        nested = DECLARED if any(text.count(b"{") > 1 for text in lines) or random.random() < 0.1 else ()
        told = members_twice(b"\n".join(lines), lambda: lines, len(lines), present, nested)  # noqa: B023
        assert told == [(i, name) for i, name in enumerate(map(plain, lines)) if name is not None], seed
        found += len(told)
    assert found > 10


def test_good_objects_are_not_looked_at_one_by_one() -> None:
    def never() -> list[bytes]:
        raise AssertionError("each object was looked at")

    assert members_twice(b'{"a": 1, "b": "x"}\n{"b": 2}', never, 2, {"a": 1, "b": 2}) == []
    assert members_twice(b'{"a": 1, "other": 1, "other": 2, "b": "x, y"}', never, 1, {"a": 1, "b": 1}) == []

"""Where keys and values stand in a TOML text: what is found there says the same as the whole text does."""

from __future__ import annotations

import json
import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hybrid.service.toml_places import Path, read_toml, written
from query.errors import Span

TEXT = '''\
# [not.a.table]
title = "a # no comment" # a comment = 1
a.b . "c d" = 1
when = 1979-05-27 07:32:00   # with a blank in it
list = [ 1, [2, "]"], { x = "}", y.z = 3 }, # inside
  """four
""", ]

[ servers . "alpha" ]
ip = '10.0.0.1'
regex = '<\\i\\c*\\s*>'

[[fruit]]
name = "apple"
[fruit.size]
cm = 7
[[fruit]]
name = "pear"
more = """
  one \\
     two"""""
'''

KEYS = st.text("ab-_", min_size=1, max_size=3) | st.text("a. =#\"'\\\n[]{}é", min_size=1, max_size=4)
TEXTS = st.text("ab\"'\\\n\t#]}=,\U0001f600", max_size=6)
SCALARS = st.integers(-(10**9), 10**9) | st.booleans() | TEXTS | st.floats(-1e9, 1e9)
VALUES = st.recursive(SCALARS, lambda v: st.lists(v, max_size=3) | st.dictionaries(KEYS, v, max_size=3))


def inline(value: Any) -> str:
    """A value as TOML on one line. JSON's strings are TOML's."""
    match value:
        case dict():
            return "{ " + ", ".join(f"{json.dumps(k)} = {inline(v)}" for k, v in value.items()) + " }"
        case list():
            return "[" + ",\n# c\n".join(map(inline, value)) + "]"
        case str():
            return json.dumps(value, ensure_ascii=False)
        case bool():
            return str(value).lower()
        case _:
            return repr(value)


def check(text: str) -> int:
    """Compares each leaf with what stands at its place; how many there are."""
    data, places = read_toml(text)
    assert data == tomllib.loads(text)
    count = 0

    def look(value: Any, path: Path) -> None:
        nonlocal count
        match value:
            case dict():
                for key, below in value.items():
                    name = text[places.keys[*path, key].start : places.keys[*path, key].end]
                    assert list(tomllib.loads(f"{name} = 1")) == [key]
                    look(below, (*path, key))
            case list():
                for i, below in enumerate(value):
                    look(below, (*path, i))
            case _:
                count += 1
                span = places.values[path]
                assert tomllib.loads(f"x = {text[span.start : span.end]}")["x"] == value
                if isinstance(value, str):
                    at = written(text, span)
                    assert len(at) == len(value) + 1
                    assert all(span.start <= i < span.end for i in at)
                    assert at == sorted(set(at))
                    assert all(text[i] in (c, "\\") for i, c in zip(at, value))

    look(data, ())
    return count


def test_everything_that_toml_has() -> None:
    assert check(TEXT) == 15


@pytest.mark.slow
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_any_value(data: dict[str, Any]) -> None:
    text = "".join(f"{json.dumps(key, ensure_ascii=False)} = {inline(value)}\n" for key, value in data.items())
    check(text)
    tables = {key: value for key, value in data.items() if isinstance(value, dict)}
    below = "".join(
        f"[{json.dumps(key, ensure_ascii=False)}] # t\n"
        + "".join(f"  {json.dumps(k, ensure_ascii=False)}={inline(v)}\n" for k, v in value.items())
        for key, value in tables.items()
    )
    check(below)


def test_a_span_of_a_string_as_the_place_where_it_is_written() -> None:
    text = 'q = "a\\tb\\u0041c"'
    _, places = read_toml(text)
    span = places.in_string(("q",), Span(2, 4))  # b and the A
    assert text[span.start : span.end] == "b\\"
    assert places.in_string(("q",), Span(9, 12)) == Span(16, 16)  # behind its end
    assert places.key(("q", "missing")) == places.keys[("q",)]
    assert places.value(("nothing",)) == Span(0, 0)

"""The watermark against a loop over single events, written from its definition."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from live.watermark import Watermark


def one_by_one(events: list[tuple[str, int]], lateness_us: int) -> tuple[list[bool], list[int]]:
    """For each event whether it is late, and the watermark after it."""
    highest: dict[str, int] = {}
    w: int | None = None
    late, after = [], []
    for source, t in events:
        late.append(w is not None and t < w)
        highest[source] = max(t, highest.get(source, t))
        reached = min(highest.values()) - lateness_us
        w = reached if w is None else max(w, reached)
        after.append(w)
    return late, after


def observe(watermark: Watermark, source: str, *times: int) -> list[bool]:
    return watermark.observe(source, np.array(times, np.int64)).tolist()


def test_time_equal_to_the_watermark_is_on_time() -> None:
    watermark = Watermark(5)
    assert observe(watermark, "a", 100) == [False]
    assert watermark.value_us == 95
    assert observe(watermark, "a", 95, 94) == [False, True]
    assert watermark.value_us == 95


def test_lateness_is_judged_inside_a_batch() -> None:
    watermark = Watermark(10)
    assert observe(watermark, "a", 100, 90, 89, 120, 109, 110) == [False, False, True, False, True, False]
    assert watermark.value_us == 110


def test_the_slowest_source_holds_the_watermark() -> None:
    watermark = Watermark(0)
    observe(watermark, "a", 100)
    assert observe(watermark, "b", 150) == [False]
    assert watermark.value_us == 100
    observe(watermark, "b", 200)
    assert watermark.value_us == 100
    observe(watermark, "a", 170)
    assert watermark.value_us == 170


def test_a_source_that_appears_late_does_not_pull_the_watermark_back() -> None:
    watermark = Watermark(0)
    observe(watermark, "a", 100)
    assert observe(watermark, "b", 40, 99, 100) == [True, True, False]
    assert watermark.value_us == 100
    observe(watermark, "a", 300)
    assert watermark.value_us == 100, "b has only reached 100"


def test_raise_to_makes_older_events_late_and_never_lowers() -> None:
    watermark = Watermark(0)
    watermark.raise_to(50)
    assert observe(watermark, "a", 49, 50) == [True, False]
    watermark.raise_to(20)
    assert watermark.value_us == 50


def test_known_sources_hold_the_watermark_where_it_stood() -> None:
    watermark = Watermark(10, 100, ["a", "b"])
    observe(watermark, "a", 500)
    assert watermark.value_us == 100
    observe(watermark, "b", 300)
    assert watermark.value_us == 290


def test_no_events_change_nothing() -> None:
    watermark = Watermark(0)
    assert observe(watermark, "a") == []
    assert watermark.value_us is None
    observe(watermark, "b", 7)
    assert watermark.value_us == 7, "a source that sent nothing is not active"


@given(
    events=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), min_size=1, max_size=40),
    lateness_us=st.integers(0, 10),
    glue=st.lists(st.booleans(), min_size=40, max_size=40),
)
def test_any_cutting_into_pushes_is_event_by_event(
    events: list[tuple[str, int]], lateness_us: int, glue: list[bool]
) -> None:
    expected_late, expected_after = one_by_one(events, lateness_us)
    watermark = Watermark(lateness_us)
    late: list[bool] = []
    start = 0
    for stop in range(1, len(events) + 1):
        source = events[start][0]
        if stop < len(events) and events[stop][0] == source and glue[stop]:
            continue
        late += observe(watermark, source, *(t for _, t in events[start:stop]))
        assert watermark.value_us == expected_after[stop - 1]
        start = stop
    assert late == expected_late


def test_an_expected_source_holds_it_back_until_it_begins() -> None:
    watermark = Watermark(10)
    watermark.expect(["a", "b", "c"])
    assert observe(watermark, "a", 100, 300, 5) == [False, False, False]
    assert (watermark.value_us, watermark.expected) == (None, ("b", "c"))
    watermark.idle(["c"])
    assert observe(watermark, "b", 50) == [False]
    assert (watermark.value_us, watermark.expected) == (40, ())
    watermark.expect(["a", "d"])
    assert observe(watermark, "b", 400) == [False]
    assert watermark.value_us == 40
    again = Watermark.from_dict(10, watermark.to_dict())
    assert observe(again, "d", 70) == [False]
    assert (again.value_us, watermark.value_us) == (60, 40)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), max_size=40), st.integers(0, 20))
def test_no_event_is_late_before_all_have_begun(events: list[tuple[str, int]], lateness_us: int) -> None:
    watermark = Watermark(lateness_us)
    watermark.expect("abc")
    begun: set[str] = set()
    for source, t in events:
        waits = begun != set("abc")
        assert observe(watermark, source, t) == [False] or not waits
        begun.add(source)
        assert (watermark.value_us is None) == (begun != set("abc"))


def test_expected_sources_that_stay_silent_with_all_others() -> None:
    """The others fell silent while it waited: it goes as far as the one furthest behind."""
    watermark = Watermark(0)
    watermark.expect(["b"])
    watermark.observe("a", np.array([10]))
    watermark.idle(["a"])
    assert watermark.value_us is None
    watermark.idle(["b"])
    assert watermark.value_us == 10

"""Texts of expressions before DuckDB reads them."""

from query.plan.tree import LIST_MIN, blank_lists

LONG = ",".join(map(str, range(LIST_MIN)))


def test_a_long_list_is_one_column_and_places_stay() -> None:
    source, lists = blank_lists(f"a + 1 IN ({LONG}) AND b NOT in ( 'it''s', {LONG}) OR c")
    assert list(lists.values()) == [LONG, f" 'it''s', {LONG}"]
    blanks = '"(list 0)"'.ljust(len(LONG)), '"(list 1)"'.ljust(len(LONG) + 10)
    assert source == f"a + 1 IN ({blanks[0]}) AND b NOT in ({blanks[1]}) OR c"


def test_other_lists_stay_as_they_are() -> None:
    short = LONG.rpartition(",")[0]
    texts = [f"a IN ({short})", f"a IN (x,{LONG})", f"f({LONG})", f"a = ' IN ({LONG})'", f'" IN ({LONG})"']
    assert [blank_lists(text) for text in texts] == [(text, {}) for text in texts]

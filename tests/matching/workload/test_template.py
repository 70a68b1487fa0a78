"""Templates of workloads: matching/workload/template.py."""

from __future__ import annotations

from matching.workload.template import START, TemplateNode, template
from query.plan.expression import show
from tests.matching.workload.workloads import ENDING, QA, QB, QC, planned

TEXT = """\
template    start -> AppOrder: qa, qb, qc
            start -> WebOrder: qa
            AppOrder -> Request: qa, qb, qc
            WebOrder -> Request: qa
            Request -> Pickup: qa, qb, qc
            Pickup -> Travel: qa, qb, qc
            Travel -> Pickup: qa, qb, qc
            Travel -> Dropoff: qa, qb
            Travel -> Cancel: qc
trends      qa: at Dropoff
            qb: at Dropoff
            qc: at Cancel"""


def query(pattern: str, where: str = "[driver_id]") -> str:
    return f"RETURN district, COUNT(*) FROM s TYPE BY type PATTERN {pattern} WHERE {where} {ENDING}"


def test_delivery_workload():
    made = template({"qa": planned(QA), "qb": planned(QB), "qc": planned(QC)})
    assert str(made) == TEXT
    assert made.exclusive
    # Three conditions narrow a type: those of qb and qc at Dropoff and Travel are their own.
    assert len(made.conditions) == 9
    names = [str(n) for n in made.nodes]
    travel, dropoff = names.index("Travel"), names.index("Dropoff")
    qa, qb, qc = made.queries
    assert qa.labels[travel] == qb.labels[travel] != qc.labels[travel]
    assert qa.labels[dropoff] != qb.labels[dropoff]
    assert "speed" in show(made.conditions[qc.labels[travel]])
    assert "pool" in show(made.conditions[qb.labels[dropoff]])


def test_place_of_a_type_in_a_pattern():
    made = template({"q": planned(query("SEQ(Pickup P, Travel T, Pickup Q)"))})
    assert [str(n) for n in made.nodes] == ["Pickup", "Travel", "Pickup (2)"]
    (path,) = made.queries
    assert path.edges == {(START, 0), (0, 1), (1, 2)}
    assert path.last == {2}
    assert path.before(2) == {1}
    assert path.before(0) == {START}
    assert len(made.conditions) == 2  # both places of Pickup have one


def test_closure_is_a_loop_and_alternatives_are_edges():
    made = template({"q": planned(query("SEQ(AppOrder A, (Pickup P)+)"))})
    (path,) = made.queries
    assert path.edges == {(START, 0), (0, 1), (1, 1)}
    made = template({"q": planned(query("SEQ((AppOrder A OR WebOrder W), Request R)"))})
    (path,) = made.queries
    names = {(a if a == START else str(made.nodes[a]), str(made.nodes[b])) for a, b in path.edges}
    start = {(START, "AppOrder"), (START, "WebOrder")}
    assert names == start | {("AppOrder", "Request"), ("WebOrder", "Request")}


def test_types_of_two_columns_are_written_out():
    """A name is short only where it cannot be mistaken."""
    text = (
        "RETURN district, COUNT(*) FROM s PATTERN SEQ(s A, s P) "
        f"WHERE [driver_id] AND A.place = 'x' AND P.type = 'y' {ENDING}"
    )
    made = template({"q": planned(text)})
    assert not made.exclusive
    assert made.nodes == (TemplateNode("place = 'x'", 0), TemplateNode("type = 'y'", 0))
    one = template({"q": planned(text.replace("A.place", "A.type"))})
    assert one.exclusive
    assert one.nodes == (TemplateNode("x", 0), TemplateNode("y", 0))

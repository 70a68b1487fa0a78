"""Queries with boxes of one feed that began apart, and read the same patterns later on; and who reads which."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import ReferenceType

from matching.hierarchy.choice import shares_patterns
from matching.hierarchy.earlier import can_be_divided
from matching.hierarchy.followed import Followed
from matching.hierarchy.matcher import HierarchyMatcher, may_join
from matching.hierarchy.module import Module
from matching.members import Group, Member
from query.plan.plan import Plan


def unite(groups: list[Group], sources: tuple[str, ...], first_us: int) -> bool:
    """Lets queries with boxes that began apart from others join the patterns that both read, from the next event on:
    the others have read events that these do not see. Returns True if some of them may join later.

    groups: of the feed; those whose queries have joined others are removed. sources: as the feed's events name them.
    first_us: the time of the next event, which is later than that of all before it."""
    later = False
    for group in list(groups):
        matchers = [m.matcher for m in group.members if isinstance(m.matcher, HierarchyMatcher)]
        if len(matchers) < len(group.members) or any(m.shedder is not None for m in group.members):
            continue
        if not group.plain or group.since_seq:
            later = True
        elif all(matcher.earlier is None and can_be_divided(matcher.plan) for matcher in matchers):
            target = _to_join(groups, group, [matcher.plan for matcher in matchers])
            if target is not None and target.modules is not None:
                for member, matcher in zip(group.members, matchers, strict=True):
                    member.matcher = matcher.joins(target.modules, first_us, group.sources or sources)
                target.members += group.members
                groups.remove(group)
    return later


def _to_join(groups: Sequence[Group], group: Group, plans: Sequence[Plan]) -> Group | None:
    """Returns the group whose patterns of boxes the queries of another one can read instead of their own, None without
    one. plans: of the queries."""
    before = groups.index(group)
    for i, other in enumerate(groups):
        modules = other.modules
        if other is group or modules is None or not other.plain or other.since_seq or other.sources:
            continue
        if i > before and group.modules is not None and not group.sources:
            break  # that one joins this one
        known = [plan for m in other.members if (plan := m.plan_of_boxes) is not None]
        if all(may_join(plan, modules) and shares_patterns(plan, known) for plan in plans):
            return other
    return None


def patterns_read(group: Group, member: Member) -> dict[str, dict[str, int]]:
    """Returns, for each pattern of a query's boxes that is searched as a layer, the number of events that it was
    searched in, and of queries that read it: those of its group and, if feeds share the search, of all of them."""
    if not isinstance(member.matcher, HierarchyMatcher):
        return {}
    return {
        name: {"events": module.searched, "queries": _readers(group, module)}
        for name, module in member.matcher.patterns().items()
    }


def queries_of(of: ReferenceType[Group], module: int) -> int:
    """Returns the number of queries of a group that read a module, by its id; 0 if nothing else has the group."""
    group = of()
    return 0 if group is None else _in_group(group, module)


def _in_group(group: Group, module: int) -> int:
    return sum(module in m.matcher.used().modules for m in group.members if isinstance(m.matcher, HierarchyMatcher))


def _readers(group: Group, module: Module) -> int:
    if isinstance(module.matcher, Followed):
        return sum(reader.queries for reader in module.matcher.search.readers)
    return _in_group(group, id(module))

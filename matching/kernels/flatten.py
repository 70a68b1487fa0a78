"""Replaces complex events in matches by their events."""

from __future__ import annotations

from matching.kernels.jit import kernel


@kernel
def flat_bounds(bounds, variable, source, number, members, first, seen, out):
    """Writes the bounds of matches whose complex events (source 0) are replaced by their events. Returns how often a
    variable takes a complex event in one match at most.

    number: of a complex event, from `first` on; members: the bounds of their events. seen: zeros by variable."""
    total, most = 0, 0
    out[0] = 0
    for i in range(len(bounds) - 1):
        for e in range(bounds[i], bounds[i + 1]):
            if source[e] == 0:
                at = number[e] - first
                total += members[at + 1] - members[at]
                seen[variable[e]] += 1
                most = max(most, seen[variable[e]])
            else:
                total += 1
        for e in range(bounds[i], bounds[i + 1]):
            seen[variable[e]] = 0
        out[i + 1] = total
    return most


@kernel
def flatten(
    bounds, variable, source, offset, seq, ts, members, first, m_path, m_source, m_offset, m_seq, m_ts, seen, most,
    paths, out_key, out_source, out_offset, out_seq, out_ts,
):  # fmt: skip
    """Writes the events of matches whose complex events are replaced by theirs. most: see `flat_bounds`; paths: number
    of paths of members. out_key: of an event its variable; of one of a complex event the number of variables, plus
    (variable * most + place among the complex events of the variable) * paths + path."""
    k, variables = 0, len(seen)
    for i in range(len(bounds) - 1):
        for e in range(bounds[i], bounds[i + 1]):
            v = variable[e]
            if source[e] != 0:
                out_key[k] = v
                out_source[k] = source[e] - 1
                out_offset[k] = offset[e]
                out_seq[k] = seq[e]
                out_ts[k] = ts[e]
                k += 1
                continue
            base = variables + (v * most + seen[v]) * paths
            seen[v] += 1
            at = offset[e] - first
            for m in range(members[at], members[at + 1]):
                out_key[k] = base + m_path[m]
                out_source[k] = m_source[m]
                out_offset[k] = m_offset[m]
                out_seq[k] = m_seq[m]
                out_ts[k] = m_ts[m]
                k += 1
        for e in range(bounds[i], bounds[i + 1]):
            seen[variable[e]] = 0

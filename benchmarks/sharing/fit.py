"""Fits the weights of the cost of sharing plans (matching.workload.cost.FITTED) to this machine.

    python -m benchmarks.sharing.fit [--events 20_000] [--seed 1]

Workloads of several kinds are counted by plans of all kinds: without sharing, the lightest plan, and plans drawn at
random. The time of the kernels is compared with the cost by the rates of the whole run; the weights are those, not
negative, with the least squares of relative errors. Prints them, and the errors on standard error.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa

from benchmarks.sharing.contenders import BATCH_ROWS, pieces_of
from benchmarks.sharing.streams import STREAMS
from benchmarks.sharing.workloads import Shape, plans_of, workload
from benchmarks.v_pattern import one_core
from matching.batch import EventBatch
from matching.engines import shared_trends as engine
from matching.kernels import shared_trends as kernels
from matching.shared_queries import groups_of
from matching.workload.cost import EventRates, Weights, cost
from matching.workload.graph import lightest
from matching.workload.plan import SharedSet, SharingPlan, unshared
from matching.workload.sharing_mode import Splitting
from matching.workload.template import Template
from matching.workload_matcher import WorkloadMatcher
from query.plan.plan import Plan
from query.schema import Field, Schema

#: Weights that are fitted, in nanoseconds, with a guess of each; and how much that counts beside what is measured.
GUESS = {
    "visit": 3.0, "event": 30.0, "entry": 2.0, "column": 5.0, "addition": 25.0, "limb": 3.0, "snapshot": 100.0,
    "record": 2.0, "own": 2.0, "value": 10.0, "product": 30.0, "product_limb": 10.0, "result": 10.0,
}  # fmt: skip
GUESSED = 0.05
NOTHING = dict.fromkeys((f.name for f in fields(Weights)), 0.0)
#: Types at which trends start where these are rare.
STARTS = 24
#: Plans drawn of each workload, and snapshots of a window above which a plan is left out: none is so bad.
DRAWN, SNAPSHOTS_MAX = 3, 60


def workloads(events: int, seed: int) -> Iterator[tuple[str, dict[str, Plan], EventBatch]]:
    """Yields streams and queries: few and many events of a key and window, with and without conditions."""
    for name, keys, within, shape in (
        ("stock", 512, 30, Shape(40)),
        ("stock", 512, 30, Shape(40, kleene=1.0, conditions=False)),
        ("stock", 512, 120, Shape(24, kleene=1.0, conditions=False)),
        ("stock", 64, 60, Shape(24, kleene=0.0)),
        ("stock", 16, 240, Shape(24)),
        ("stock", 16, 600, Shape(16, kleene=1.0, conditions=False)),
        ("bus", 512, 30, Shape(40, kleene=1.0, length=4)),
        ("bus", 64, 60, Shape(40, kleene=0.5, conditions=False)),
        ("bus", 64, 240, Shape(24, kleene=1.0, conditions=False)),
        ("bus", 16, 1200, Shape(24, kleene=1.0)),
    ):
        stream = STREAMS[name](seed, events, 1, keys)
        plans = plans_of(stream.schema, workload(stream, replace(shape, within=within, slide=within), seed))
        (piece,) = pieces_of(stream.events, 1 << 30, events)
        yield f"{name} {keys} keys, {within} min", groups_of(plans)[0], piece.batch
    for share, columns, within in ((0.01, "COUNT(*)", 10), (0.1, "COUNT(*), SUM(B.v)", 2), (0.03, "COUNT(*)", 60)):
        schema, events_of = rare(events, share, seed)
        texts = {
            f"q{i:02}": f"RETURN {columns}\nFROM rare TYPE BY type\nPATTERN SEQ(P{i:02}, (SEQ(B, C))+, D)\n"
            f"WITHIN {within} SECONDS SLIDE {within} SECONDS"
            for i in range(STARTS)
        }
        (piece,) = pieces_of(events_of, 1 << 30, events)
        yield f"rare {share:g}, {within} s", plans_of(schema, texts), piece.batch


def rare(events: int, share: float, seed: int) -> tuple[Schema, pa.Table]:
    """Returns a stream of a hundred events a second, of which so many are of the types at which trends start."""
    rng = np.random.default_rng(seed)
    types = np.array([*(f"P{i:02}" for i in range(STARTS)), "B", "C", "D"])
    often = [share / STARTS] * STARTS + [0.45 * (1 - share), 0.45 * (1 - share), 0.1 * (1 - share)]
    columns = {
        "ts": pa.array(np.arange(events) * 10_000).cast(pa.timestamp("us")), "type": types[rng.choice(
            len(types), events, p=often)], "v": rng.integers(0, 9, events),
    }  # fmt: skip
    fields_of = (Field("ts", "TIMESTAMP"), Field("type", "VARCHAR"), Field("v", "BIGINT"))
    return Schema("rare", fields_of, time="ts"), pa.table(columns)


def drawn(template: Template, rng: np.random.Generator) -> SharingPlan:
    """Returns sets of queries that have some nodes in common; the rest alone."""
    left = {(q, n) for q, path in enumerate(template.queries) for n in path.labels}
    sets = []
    for _ in range(int(rng.integers(1, 6))):
        q, n = sorted(left)[int(rng.integers(len(left)))]
        queries = [p for p in range(len(template.queries)) if (p, n) in left and (p == q or rng.random() < 0.6)]
        nodes = [m for m in template.queries[q].labels if all((p, m) in left for p in queries)]
        nodes = [m for m in nodes if m == n or rng.random() < 0.7]
        if len(queries) > 1:
            sets.append(SharedSet(tuple(queries), tuple(sorted(nodes))))
            left -= {(p, m) for p in queries for m in nodes}
    for q, path in enumerate(template.queries):
        nodes = sorted(m for m in path.labels if (q, m) in left)
        if nodes:
            sets.append(SharedSet((q,), tuple(nodes)))
    return SharingPlan(tuple(sets))


def shared(template: Template, nodes: list[int]) -> SharingPlan:
    """Returns the plan in which all queries share these nodes, and nothing else."""
    every = SharedSet(tuple(range(len(template.queries))), tuple(nodes))
    alone = [SharedSet((q,), tuple(sorted(set(p.labels) - set(nodes)))) for q, p in enumerate(template.queries)]
    return SharingPlan((every, *(s for s in alone if s.nodes)))


class Timed:
    """The kernels, and the nanoseconds that they have taken."""

    def __init__(self) -> None:
        self.ns = 0
        names = vars(kernels) | {name: self._timed(getattr(kernels, name)) for name in ("step", "close_before")}
        engine.kernels = SimpleNamespace(**names)  # type: ignore[assignment]

    def _timed(self, kernel: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            begun = time.process_time_ns()
            found = kernel(*arguments)
            self.ns += time.process_time_ns() - begun
            return found

        return call


def measured(
    plans: dict[str, Plan], plan: SharingPlan | None, events: EventBatch, timed: Timed, rounds: int = 2
) -> tuple[float, EventRates, int, int]:  # fmt: skip
    """Returns the least nanoseconds, the rates of the whole run, windows of partitions and snapshots."""
    best = np.inf
    for _ in range(rounds):
        matcher = WorkloadMatcher(plans, plan, splitting=Splitting.NEVER)
        timed.ns, limbs, counts = 0, [], np.zeros(len(matcher.table.template.conditions))
        for at in range(0, len(events), BATCH_ROWS):
            matcher.push(events.slice(at, min(at + BATCH_ROWS, len(events))))
            limbs.append(matcher.engine.limbs)
            counts += matcher.engine.seen
            matcher.engine.measured()
        matcher.advance(None)
        best = min(best, timed.ns)
    windows = matcher.table.within_us / matcher.table.slide_us  # of an event
    rates = EventRates(tuple((counts * windows / matcher.engine.opened).tolist()), float(np.mean(limbs)))
    return best, rates, matcher.engine.opened, matcher.engine.snapshots


def fitted(a: np.ndarray, b: np.ndarray, guess: np.ndarray) -> np.ndarray:
    """Returns x >= 0 with the least |a x - b|, coordinate by coordinate; what the rows do not tell stays near a
    guess."""
    a, b = np.vstack([a, GUESSED * np.diag(1 / guess)]), np.concatenate([b, np.full(len(guess), GUESSED)])
    gram, right, x = a.T @ a, a.T @ b, guess.copy()
    for _ in range(20_000):
        for i in range(len(x)):
            x[i] = max(0.0, x[i] + (right[i] - gram[i] @ x) / gram[i, i])
    return x


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sharing.fit", description=__doc__.split("\n\n")[0])
    parser.add_argument("--events", type=int, default=20_000, help="of a stream of many keys (default 20_000)")
    parser.add_argument("--seed", type=int, default=1, help="of streams, queries and plans (default 1)")
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(options.seed)
    timed = Timed()
    rows, times, names = [], [], []
    with one_core(True):
        for name, plans, events in workloads(options.events, options.seed):
            template = WorkloadMatcher(plans).table.template
            _, rates, _, _ = measured(plans, None, events, timed, 1)
            tried = {"alone": unshared(template), "lightest": lightest(template, rates)}
            with_all = sorted(set.intersection(*(set(path.labels) for path in template.queries)))
            if with_all:
                tried["middle"] = shared(template, with_all)
            tried |= {f"drawn {i}": drawn(template, rng) for i in range(DRAWN)}
            for kind, plan in tried.items():
                ns, _, opened, snapshots = measured(plans, plan, events, timed)
                if snapshots > SNAPSHOTS_MAX * opened:
                    continue
                each = [Weights(**{**NOTHING, weight: 1.0, "live": True}) for weight in GUESS]  # type: ignore[arg-type]
                rows.append([cost(template, plan, rates, w).total * opened for w in each])
                times.append(ns)
                names.append(f"{name} {kind} ({snapshots / opened:.1f} snapshots, {rates.limbs:.1f} limbs)")
    a, b = np.array(rows) / np.array(times)[:, None], np.ones(len(times))
    found = fitted(a, b, np.array(list(GUESS.values())))
    for text, ns, part in zip(names, times, a @ found, strict=True):
        print(f"{text:<60} {ns / 1e6:9.1f} ms, {part:5.2f} of it by the cost", file=sys.stderr)
    for name, weight in zip(GUESS, found, strict=True):
        print(f"{name}={weight:.3g},")
    return 0


if __name__ == "__main__":
    sys.exit(main())

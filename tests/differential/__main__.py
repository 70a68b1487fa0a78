"""`make differential` and `make golden-verify`.

    python -m tests.differential compare [ENGINE ...] [--seed N] [--queries N]
    python -m tests.differential verify
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections import Counter
from collections.abc import Callable
from random import Random

from tests.cases.golden import HOME, Case, read_file
from tests.differential import draw
from tests.differential.engines import (
    ENGINES,
    FLINK,
    PANDAS,
    Answer,
    Engine,
    Job,
    Refusal,
    Rows,
    ask,
    canonical_text,
    ours,
    same,
)  # fmt: skip

DRAWS: dict[str, Callable[[Random], draw.Drawn]] = {PANDAS.name: draw.pandas, FLINK.name: draw.flink}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.differential")
    commands = parser.add_subparsers(dest="command", required=True)
    compare = commands.add_parser("compare", help="random statements, ours beside another engine")
    compare.add_argument("engines", nargs="*", metavar="ENGINE", help="which ones; all by default")
    compare.add_argument("--seed", type=int, default=1)
    compare.add_argument("--queries", type=int, default=300)
    commands.add_parser("verify", help="the cases that name an engine, on that engine")
    given = parser.parse_args()
    if given.command == "verify":
        return 1 if sum(verify(engine) for engine in ENGINES) else 0
    wanted = [e for e in ENGINES if not given.engines or e.name in given.engines]
    return 1 if sum(differences(engine, given.seed, given.queries) for engine in wanted) else 0


# ---- golden cases ----------------------------------------------------------------------------------------------


def verify(engine: Engine) -> int:
    """Asks the engine every case that names it as its source; returns how many do not stand as written."""
    cases = [c for c in engine_cases() if c.source.startswith(f"engine: {engine.name} ")]
    version, answers = ask(engine, [Job(case.inputs, case.query) for case in cases])
    wrong = 0
    for case, answer in zip(cases, answers):
        complaint = disagreement(case, f"engine: {engine.name} {version}", answer)
        if complaint:
            wrong += 1
            print(f"{case.name}: {complaint}")
    print(f"{engine.name} {version}: {len(cases)} cases, {wrong} do not stand as written")
    return wrong


def engine_cases() -> list[Case]:
    return [c for path in sorted(HOME.glob("engine/*.case")) for c in read_file(path, path.relative_to(HOME))]


def disagreement(case: Case, source: str, answer: Answer) -> str:
    """What is wrong with a case by its engine's answer; empty where nothing is."""
    if isinstance(answer, Refusal):
        return answer.text
    if case.source != source:
        return f"written for {case.source.removeprefix('engine: ')}, run on {source.removeprefix('engine: ')}"
    assert case.rows is not None
    names = tuple(name for name, _ in case.rows.columns)
    written = Rows(names, tuple(tuple(map(canonical_text, row)) for row in case.rows.rows))
    if case.rows.in_order:
        return "" if same(written, answer) else f"the engine gives {answer.rows}"
    equal = [n.lower() for n in names] == [n.lower() for n in answer.columns]
    equal = equal and sorted(map(repr, written.rows)) == sorted(map(repr, answer.rows))
    return "" if equal else f"the engine gives {answer.rows}"


# ---- random statements -----------------------------------------------------------------------------------------


def differences(engine: Engine, seed: int, queries: int) -> int:
    """Draws statements, asks both, prints counts and what is not explained; returns how many are not."""
    random = Random(f"{engine.name} {seed}")
    drawn = [DRAWS[engine.name](random) for _ in range(queries)]
    version, answers = ask(engine, [each.job for each in drawn])
    counts: Counter[str] = Counter()
    explained: Counter[str] = Counter()
    rows = 0
    for number, (each, theirs) in enumerate(zip(drawn, answers)):
        mine = ours(each.job)
        match theirs, mine:
            case Refusal(text), Refusal():
                counts["refused by both"] += 1
            case Refusal(text), Rows():
                counts["refused by it"] += 1
                explained[f"refused by it: {reason(text)}"] += 1
            case Rows(), Refusal(text):
                counts["different"] += 1
                show(number, each.job, theirs, mine)
            case Rows() as left, Rows() as right if same(left, right):
                counts["equal"] += 1
                rows += len(right.rows)
                counts["with rows"] += bool(right.rows)
            case _:
                rule = explanation(each, theirs)
                if rule:
                    counts["different by a rule"] += 1
                    explained[rule] += 1
                else:
                    counts["different"] += 1
                    show(number, each.job, theirs, mine)
    digest = hashlib.sha256("\n".join(repr(each.job) for each in drawn).encode()).hexdigest()[:16]
    print(f"{engine.name} {version}, seed {seed}, {queries} statements {digest}")
    for name in ("equal", "different", "different by a rule", "refused by it", "refused by both"):
        more = f" ({counts['with rows']} with rows, {rows} rows)" if name == "equal" else ""
        print(f"  {name}: {counts[name]}{more}")
    for name, count in sorted(explained.items()):
        print(f"    {name}: {count}")
    return counts["different"]


def explanation(drawn: draw.Drawn, theirs: Answer) -> str | None:
    """The first rule under which ours gives what the engine gave."""
    for rule, job in drawn.variants:
        if same(theirs, ours(job)):
            return rule
    if drawn.every and isinstance(theirs, Rows) and first_ends(theirs, ours(drawn.every)):
        return draw.FIRST
    if drawn.undecided and isinstance(theirs, Rows):
        undecided = ours(drawn.undecided)
        if any(held_back(theirs, ours(job), undecided) for job in (drawn.job, *(job for _, job in drawn.variants))):
            return draw.HELD
    return None


def held_back(theirs: Rows, mine: Answer, undecided: Answer) -> bool:
    """Whether of each key the first matches are there, and all missing ones start behind one that is undecided."""
    if isinstance(mine, Refusal) or isinstance(undecided, Refusal):
        return False
    starts: dict[str, int] = {}
    for key, start, number, *_ in undecided.rows:
        if number is None:
            starts[str(key)] = min(int(str(start)), starts.get(str(key), int(str(start))))
    for key in {row[0] for row in mine.rows + theirs.rows}:
        left = [row for row in theirs.rows if row[0] == key]
        right = [row for row in mine.rows if row[0] == key]
        if left != right[: len(left)]:
            return False
        missing = Rows(mine.columns, tuple(right[len(left) :]))
        if any(str(key) not in starts or start <= starts[str(key)] for _, start, _ in spans(missing)):
            return False
    return True


def first_ends(theirs: Rows, every: Answer) -> bool:
    """Whether each row is a match, of which none of the same key and start ends before it; and the first match of each
    key is there."""
    if isinstance(every, Refusal) or not set(theirs.rows) <= set(every.rows):
        return False
    ends: dict[tuple[str, int], int] = {}
    for key, start, end in spans(every):
        ends[key, start] = min(end, ends.get((key, start), end))
    found = {(key, start): end for key, start, end in spans(theirs)}
    firsts = {key: min(start for other, start in ends if other == key) for key, _ in ends}
    return all(ends[at] == end for at, end in found.items()) and all(at in found for at in firsts.items())


def spans(rows: Rows) -> list[tuple[str, int, int]]:
    """Key, start and end of each match, in seconds."""
    return [(str(key), int(str(start)), int(str(end))) for key, start, end, *_ in rows.rows]


def reason(text: str) -> str:
    return text.split(":")[-1].strip()[:90]


def show(number: int, job: Job, theirs: Answer, mine: Answer) -> None:
    print(f"--- statement {number} differs")
    print(job.query)
    for name, cells in job.inputs.items():
        print(f"  {name}:", " ".join(",".join("null" if c is None else c for c in row) for row in cells.rows))
    print("  theirs:", theirs.text if isinstance(theirs, Refusal) else theirs.rows)
    print("  ours:  ", mine.text if isinstance(mine, Refusal) else mine.rows)


if __name__ == "__main__":
    sys.exit(main())

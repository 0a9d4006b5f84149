"""Why two values are, or are not, computed by one kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from stack.errors import UsageError, unknown_name
from stack.explore.fate import KINDS, Fate, fates
from stack.explore.retrace import Retraced, Step, holders
from stack.explore.where import matches
from stack.ir.node import Block, Func, Node, deps
from stack.ir.traits import is_group
from stack.rewrite.verdict import REASONS

# the fixed vocabulary of answers: what fusion says, what becomes of a node, and what stands between
WORDS: dict[str, str] = {
    "together": "one step computes both",
    **REASONS,
    **{kind: KINDS[kind] for kind in ("library", "hosted", "fallback", "view", "fold")},
    "stream": "no pass over the axis was derived that holds both",
    "split": "one group held both, and a pass cut it",
    "between": "a step between them is neither's",
    "unrelated": "neither is computed from the other, and no rule joins such pairs",
}


@dataclass(frozen=True)
class Answer:
    """One reason: a word of `WORDS`, what it is about, the pass that decided, and its stage."""

    word: str
    text: str
    by: str = ""


@dataclass(frozen=True)
class Pair:
    """Two nodes of the imported function, the steps that compute each, and why they are those."""

    a: Fate
    b: Fate
    answers: tuple[Answer, ...] = field(default=())

    @property
    def is_together(self) -> bool:
        """Whether one step computes both."""
        return self.answers[0].word == "together"


def explain_pairs(run: Retraced, a: str, b: str) -> list[Pair]:
    """Every node that A names with every one that B names, each pair with its reasons.

    A and B are nodes, source lines or module paths. Raises UsageError with the nearest names, and
    where both name one node.
    """
    told = {fate.origin.mark: fate for fate in fates(run)}
    found = [
        Pair(told[x], told[y], tuple(_answers(run, told, x, y)))
        for x in _marks(run, a)
        for y in _marks(run, b)
        if x != y
    ]
    if not found:
        raise UsageError(f"{a} and {b} are one node")
    return found


def _marks(run: Retraced, what: str) -> list[str]:
    name = f"%{what.lstrip('%')}"
    if name in run.origins:
        return [name]
    found = [m for m, o in run.origins.items() if any(matches(line, what) for line in o.source)]
    if not found:
        known = {line.split(" ")[0] for o in run.origins.values() for line in o.source}
        raise unknown_name("no node or source line", what, [*run.origins, *sorted(known)])
    return found


def _answers(run: Retraced, told: dict[str, Fate], a: str, b: str) -> Iterator[Answer]:
    both = (told[a], told[b])
    shared = [step for step in both[0].steps if step in both[1].steps]
    if shared and all(f.kind in ("kernel", "recomputation") for f in both):
        yield _joined(run.steps, a, b, shared[0])
        return
    if shared and both[0].kind == both[1].kind != "fold":
        yield Answer("together", f"{shared[0]}: {KINDS[both[0].kind]}")
        return
    apart = [f for f in both if f.kind not in ("kernel", "recomputation")]
    for fate in apart:
        notes = "; ".join(_notes(run.steps, fate.origin.mark))
        yield Answer(fate.kind, f"{fate.origin.mark} is {KINDS[fate.kind]}", notes)
    if apart:
        return
    found = [*_refusals(run.steps, a, b), *_streams(run.steps, a, b), *_split(run.steps, a, b)]
    yield from found or _between(run, told, a, b)


def _joined(steps: Iterable[Step], a: str, b: str, where: str) -> Answer:
    """The first rewrite that was about both."""
    for step in steps:
        for rewrite in step.record.rewrites:
            if {a, b} <= set(rewrite.source):
                text = f"{where} computes both, since {rewrite.rule}"
                return Answer("together", text, _by(step))
    return Answer("together", f"{where} computes both")


def _by(step: Step) -> str:
    return f"{step.record.name.partition('{')[0]} in {step.stage}"


def _notes(steps: Iterable[Step], mark: str) -> Iterator[str]:
    """The first lines of what passes said about a node."""
    for step in steps:
        for note in step.record.remarks:
            if mark in note.source:
                yield note.text.partition("\n")[0]


def _refusals(steps: Iterable[Step], a: str, b: str) -> Iterator[Answer]:
    """What fusion said of the groups that held them."""
    for step in steps:
        for refused in step.record.refused:
            first, second = refused.between
            if (a in first and b in second) or (b in first and a in second):
                text = f"{refused.producer} and {refused.consumer}: {refused.reason}"
                yield Answer(refused.kind, text, _by(step))


def _streams(steps: Iterable[Step], a: str, b: str) -> Iterator[Answer]:
    """Where one of them is in a stream: why the other is in none, or in another."""
    for step in steps:
        made = [set(r.source) for r in step.record.rewrites if r.rule == "stream"]
        for x, y in ((a, b), (b, a)):
            if not any(x in source and y not in source for source in made):
                continue
            for note in step.record.remarks:
                if y in note.source and x not in note.source:
                    yield Answer("stream", note.text.partition("\n")[0], _by(step))


def _split(steps: Iterable[Step], a: str, b: str) -> Iterator[Answer]:
    """The pass after which no group holds both any more."""
    for step in steps:
        if _is_held(step.record.before, a, b) and not _is_held(step.record.after, a, b):
            yield Answer("split", f"one group held {a} and {b} before it", _by(step))


def _is_held(func: Func, a: str, b: str) -> bool:
    held = holders(func)
    first = {node for _, node in held.get(a, ()) if is_group(node) or node.op == "stream"}
    return any(node in first for _, node in held.get(b, ()))


def _between(run: Retraced, told: dict[str, Fate], a: str, b: str) -> Iterator[Answer]:
    """The steps on the way from one to the other, or that there is no way."""
    block = run.func.body
    for x, y in ((a, b), (b, a)):
        way = _way(block, told[x].steps, told[y].steps)
        if len(way) > 2:
            names = ", ".join(way[1:-1])
            yield Answer("between", f"{names}: on the way from {way[0]} to {way[-1]}")
            return
        if way:
            yield Answer("rule", f"no rule was asked about {way[0]} and {way[-1]}")
            return
    yield Answer("unrelated", f"{', '.join(told[a].steps)} and {', '.join(told[b].steps)}")


def _way(block: Block, start: Iterable[str], end: Iterable[str]) -> list[str]:
    """The steps of a shortest way along values, ends included; empty where there is none."""
    by_name = {f"%{name}": node for node, name in block.names.items()}
    goal = {by_name[s] for s in start if s in by_name}
    ways: list[tuple[Node, ...]] = [(by_name[s],) for s in end if s in by_name]
    seen = {way[0] for way in ways}
    for way in ways:  # grows as it is walked
        if way[0] in goal:
            return [f"%{block.names[n]}" for n in way if n.op not in ("item", "reshape")]
        for dep in deps(way[0]):
            if dep not in seen:
                seen.add(dep)
                ways.append((dep, *way))
    return []

"""Explain why two values are, or are not, computed by one kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from stack.errors import UsageError, unknown_name
from stack.explore.node_outcomes import KINDS, NodeOutcome, fates
from stack.explore.provenance import matches
from stack.explore.retrace import PassStep, RetracedRun, holders
from stack.ir.func import Func
from stack.ir.node import Block, Node, deps, walk
from stack.ir.traits import is_contraction, is_control, is_group
from stack.rewrite.verdict import REASONS

# the fixed vocabulary of answers: reasons of fusion, outcomes of nodes, and steps between
WORDS: dict[str, str] = {
    "together": "one step computes both",
    **REASONS,
    **{kind: KINDS[kind] for kind in ("library", "hosted", "fallback", "view", "fold")},
    "stream": "no single pass over the axis was derived for both",
    "split": "one group contained both, and a pass split it",
    "body": "one is computed inside a loop or a branch, which is a separate step",
    "alone": "no fusion rule accepts the op, so it is a separate kernel",
    "between": "a separate step lies on the path between them",
    "unrelated": "neither depends on the other, and no rule fuses such pairs",
}


@dataclass(frozen=True)
class Answer:
    """One reason why one kernel computes two imported nodes, or why separate kernels do.

    `word` is a key of `WORDS`, `text` adds details, and `by` names the pass and stage that decided,
    or quotes the notes of passes on the node.
    """

    word: str
    text: str
    by: str = ""


@dataclass(frozen=True)
class Pair:
    """Two imported nodes, their outcomes, and why one kernel computes both or separate ones do."""

    a: NodeOutcome
    b: NodeOutcome
    answers: tuple[Answer, ...] = field(default=())

    @property
    def is_together(self) -> bool:
        """True if one node of the lowered function, such as a kernel, computes both."""
        return self.answers[0].word == "together"


def explain_pairs(run: RetracedRun, a: str, b: str) -> list[Pair]:
    """Pairs every node that A names with every node that B names, and gives the reasons.

    A and B are nodes, source lines or module paths. Raises UsageError, with similar names, if one
    of them names nothing, or if both name the same single node.
    """
    ends = {fate.origin.mark: fate for fate in fates(run)}
    found = [
        Pair(ends[x], ends[y], tuple(_answers(run, ends, x, y)))
        for x in _marks(run, a)
        for y in _marks(run, b)
        if x != y
    ]
    if not found:
        raise UsageError(f"{a} and {b} are the same node")
    return found


def alike(pairs: Sequence[Pair]) -> list[tuple[list[str], list[str], Pair]]:
    """Merges pairs of nodes that have equal reasons for sharing a kernel, or for not sharing one.

    Returns for each set of equal pairs the names of its first nodes, of its second nodes, and one
    of the pairs.
    """
    rows: dict[tuple[str, tuple[Answer, ...]], list[str]] = {}
    for pair in pairs:
        rows.setdefault((pair.a.origin.mark, pair.answers), []).append(pair.b.origin.mark)
    found: dict[tuple[tuple[str, ...], tuple[Answer, ...]], list[str]] = {}
    for (a, answers), names in rows.items():
        found.setdefault((tuple(names), answers), []).append(a)
    shown = {pair.answers: pair for pair in pairs}
    return [(a, list(b), shown[answers]) for (b, answers), a in found.items()]


def told(pairs: Sequence[Pair]) -> str:
    """Formats pairs of nodes as text: names, "one kernel" or "separate kernels", and reasons."""
    lines: list[str] = []
    for a, b, pair in alike(pairs):
        state = "one kernel" if pair.is_together else "separate kernels"
        lines.append(f"{', '.join(a)} and {', '.join(b)}: {state}")
        for reason in pair.answers:
            by = f" ({reason.by})" if reason.by else ""
            lines.append(f"  {reason.word}: {reason.text}{by}")
    return "\n".join(lines)


def _marks(run: RetracedRun, what: str) -> list[str]:
    name = what.lstrip("%")
    if f"%{name}" in run.origins:
        return [f"%{name}"]
    found = [mark for mark in run.origins if mark.endswith(f"/{name}")]
    if not found:
        named = run.origins.items()
        found = [m for m, o in named if any(matches(line, what) for line in o.source)]
    if not found:
        known = {line.split(" ")[0] for o in run.origins.values() for line in o.source}
        raise unknown_name("no node or source line", what, [*run.origins, *sorted(known)])
    return found


def _answers(run: RetracedRun, told: Mapping[str, NodeOutcome], a: str, b: str) -> Iterator[Answer]:
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
    outer = _outside(a, b)
    if outer:
        yield outer
        return
    found = [
        *_refusals(run.steps, {a}, {b}),
        *_streams(run.steps, a, b),
        *_split(run.steps, a, b),
    ]
    yield from found or _between(run, told, a, b)


def _outside(a: str, b: str) -> Answer | None:
    """Returns the answer `body` if a loop or branch contains only one of two nodes, else None.

    `a` and `b` are names of imported nodes, with the loops and branches around: `%loop/y`.
    """
    for x, y in ((a, b), (b, a)):
        body = x.rpartition("/")[0]
        if body and not y.startswith(f"{body}/"):
            return Answer("body", f"the body of the loop or branch {body} is computed inside it")
    return None


def _joined(steps: Iterable[PassStep], a: str, b: str, where: str) -> Answer:
    """Returns the answer `together`, with the pass and rule that first rewrote both nodes.

    Without a recorded rewrite of both, only names `where`, the lowered node that computes them.
    """
    for step in steps:
        for rewrite in step.record.rewrites:
            if {a, b} <= set(rewrite.source):
                text = f"{where} computes both, since {rewrite.rule}"
                return Answer("together", text, _by(step))
    return Answer("together", f"{where} computes both")


def _by(step: PassStep) -> str:
    return f"{step.record.name.partition('{')[0]} in {step.stage}"


def _notes(steps: Iterable[PassStep], mark: str) -> Iterator[str]:
    """Yields the first line of each pass's note about one imported node, identified by its mark.

    `steps` are the records of the passes in order. A mark is the node's name at import.
    """
    for step in steps:
        for note in step.record.remarks:
            if mark in note.source:
                yield note.text.partition("\n")[0]


def _refusals(steps: Iterable[PassStep], a: set[str], b: set[str]) -> Iterator[Answer]:
    """Yields the refused fusions of a group with a node of `a` and a group with a node of `b`.

    `steps` are the records of the passes in order; `a` and `b` hold names of imported nodes.
    """
    for step in steps:
        for refused in step.record.refused:
            first, second = map(set, refused.between)
            if (a & first and b & second) or (b & first and a & second):
                text = f"{refused.producer} and {refused.consumer}: {refused.reason}"
                yield Answer(refused.kind, text, _by(step))


def _streams(steps: Iterable[PassStep], a: str, b: str) -> Iterator[Answer]:
    """Yields the notes on why a `stream` loop contains one of two imported nodes but not the other.

    A `stream` loop computes dependent reductions in one pass; `steps` are the records of the
    passes.
    """
    for step in steps:
        made = [set(r.source) for r in step.record.rewrites if r.rule == "stream"]
        for x, y in ((a, b), (b, a)):
            if not any(x in source and y not in source for source in made):
                continue
            for note in step.record.remarks:
                if y in note.source and x not in note.source:
                    yield Answer("stream", note.text.partition("\n")[0], _by(step))


def _split(steps: Iterable[PassStep], a: str, b: str) -> Iterator[Answer]:
    """Yields an answer for each pass that split a fusion group containing both nodes.

    `steps` are the records of the passes in order; `a` and `b` are names of imported nodes.
    """
    for step in steps:
        if _is_held(step.record.before, a, b) and not _is_held(step.record.after, a, b):
            yield Answer("split", f"one group contained {a} and {b} before it", _by(step))


def _is_held(func: Func, a: str, b: str) -> bool:
    held = holders(func)
    first = {node for _, node in held.get(a, ()) if is_group(node) or node.op == "stream"}
    return any(node in first for _, node in held.get(b, ()))


def _between(run: RetracedRun, told: Mapping[str, NodeOutcome], a: str, b: str) -> Iterator[Answer]:
    """Explains why two lowered nodes are separate by the dependence path between them.

    Yields the nodes on the path; or, if one reads the other directly, why they were not fused; or,
    without a path, that neither depends on the other.
    """
    by_name = _steps(run.func.body)
    for x, y in ((a, b), (b, a)):
        way = _way(by_name, told[x].steps, told[y].steps)
        if len(way) > 2:
            names = ", ".join(way[1:-1])
            yield Answer("between", f"{names}: on the path from {way[0]} to {way[-1]}")
            return
        if way:
            yield from _of_steps(run, told, way[0], way[-1])
            return
    first, second = (", ".join(told[x].steps) for x in (a, b))
    yield Answer("unrelated", f"neither of {first} and {second} is computed from the other")


def _steps(block: Block) -> dict[str, Node]:
    """Maps names such as `%y` to the nodes of a lowered block, and of loops and branches in it."""
    found = {f"%{name}": node for node, name in block.names.items()}
    for body in (b for node in block.nodes if is_control(node) for b in node.blocks):
        found = _steps(body) | found
    return found


def _of_steps(
    run: RetracedRun, told: Mapping[str, NodeOutcome], a: str, b: str
) -> Iterator[Answer]:
    """Explains why two lowered nodes `a` and `b`, one of which reads the other, were not fused.

    Yields the refusals that passes recorded; without any, an answer for each node whose op no
    fusion rule accepts; without these, that no fusion rule was asked.
    """
    held = [{mark for mark, fate in told.items() if step in fate.steps} for step in (a, b)]
    refused = list(dict.fromkeys(_refusals(run.steps, *held)))
    alone = [
        Answer("alone", f"no fusion rule accepts {step}, which is a {op}")
        for step in (a, b)
        if (op := _lone_op(run.steps, step))
    ]
    yield from refused or alone or [Answer("rule", f"no rule was asked about {a} and {b}")]


def _lone_op(steps: Iterable[PassStep], name: str) -> str:
    """Returns the op of the lowered node `name` if no fusion group can contain it, else "".

    Reads the function after the last pass that formed groups; returns "" if no pass did. `steps`
    are the records of the passes.
    """
    formed = [step for step in steps if step.record.formed]
    func = formed[-1].record.after if formed else None
    for block, node in walk(func.body) if func is not None else ():
        if f"%{block.names.get(node)}" == name:
            # a lone matmul needs no group, but may be in one
            can_be_held = is_group(node) or node.op == "stream" or is_contraction(node)
            return "" if can_be_held else node.op
    return ""


def _way(by_name: Mapping[str, Node], start: Iterable[str], end: Iterable[str]) -> list[str]:
    """Returns the nodes on a shortest dependence path from `start` to `end`, both included.

    `by_name` maps names to lowered nodes. Views are left out. Returns [] if no node of `end`
    depends on one of `start`.
    """
    names = {node: name for name, node in by_name.items()}
    goal = {by_name[s] for s in start if s in by_name}
    ways: list[tuple[Node, ...]] = [(by_name[s],) for s in end if s in by_name]
    seen = {way[0] for way in ways}
    for way in ways:  # grows during the loop
        if way[0] in goal:
            return [names[n] for n in way if n in names and n.op not in ("item", "reshape")]
        for dep in deps(way[0]):
            if dep not in seen:
                seen.add(dep)
                ways.append((dep, *way))
    return []

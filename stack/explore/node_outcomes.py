"""The outcome of every node of a program: the step that computes it or the rule that removed it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from stack.explore.kernel_rows import source_text
from stack.explore.layers import alike, base_name, folded, pattern
from stack.explore.retrace import Origin, PassStep, RetracedRun, holders
from stack.explore.table import table
from stack.explore.terminal import Loud, view
from stack.ir.node import Block, Node, deps
from stack.ir.ops import lookup
from stack.ir.traits import is_control
from stack.run.backend import module_paths, source_lines

KINDS = {
    "kernel": "computed in a generated kernel",
    "library": "computed by a library",
    "hosted": "computed by the code of a hosted operator",
    "fallback": "left to the framework",
    "python": "run from Python, one step after the other",
    "view": "read in place, without code",
    "fold": "removed by a rewrite rule",
    "recomputation": "computed in several steps, repeatedly or in parts",
    "lost": "of unknown outcome: no pass recorded it",
}
# how the record of a kernel calls these
_OWN = ("library", "fallback", "python")
_RUN_BY = {"generated": "kernel", "hand": "hosted", **{kind: kind for kind in _OWN}}
_ROLES = {"foreign": "fallback", "group": "library", "contraction": "library"}


@dataclass(frozen=True)
class NodeOutcome:
    """The outcome of one imported node; `kind` is a key of `KINDS`.

    `steps` names the nodes of the last stage that compute it. For a node that was removed, it names
    the rule, or the pass if no rule recorded it, with the stage.
    """

    origin: Origin
    kind: str
    steps: tuple[str, ...] = ()


def fates(run: RetracedRun) -> list[NodeOutcome]:
    """Returns the outcome of every imported node: what computes it, or how it was removed."""
    held = _ends(run.func.body, {}, run.kinds)
    found: list[NodeOutcome] = []
    for mark, origin in run.origins.items():
        ends = held.get(mark, {})
        if not ends:
            found.append(_folded(origin, run.steps))
            continue
        computed = {step: kind for step, kind in ends.items() if kind != "view"}
        kinds = dict.fromkeys((computed or ends).values())
        kind = "recomputation" if len(computed) > 1 else next(iter(kinds))
        found.append(NodeOutcome(origin, kind, tuple(computed or ends)))
    return found


def fate_table(found: Sequence[NodeOutcome]) -> str:
    """Formats the outcomes of nodes as a table, one row per node.

    Corresponding nodes of equal layers share a row, which names the first.
    """
    groups = [[i] for i in range(len(found))] if view().is_whole else alike(_layer_keys(found))
    is_folded = len(groups) < len(found)
    rows: list[list[object]] = []
    for group in groups:
        first, held = found[group[0]], [found[i].origin.source for i in group]
        kind = Loud(first.kind) if first.kind in ("fallback", "python", "lost") else first.kind
        calls = [f"x {len(group)}"] if is_folded else []
        path = [folded(m for lines in held for m in module_paths(lines))] if is_folded else []
        rows.append([first.origin.mark, first.origin.op, *calls, kind, ", ".join(first.steps),
                     *path, source_text(list(first.origin.source))])  # fmt: skip
    calls, path = ["nodes"] * is_folded, ["module"] * is_folded
    note = f"{len(found)} nodes in {len(groups)} rows, which name the first of equal layers"
    return table(
        ["node", "op", *calls, "became", "in", *path, "source"],
        rows,
        drop=["module", "op"],
        note=note if is_folded else "",
    )


def _layer_keys(found: Sequence[NodeOutcome]) -> Iterator[object]:
    """Yields a key for each node; nodes at the same position of equal layers get equal keys."""
    seen: Counter[object] = Counter()
    for fate in found:
        origin, modules = fate.origin, frozenset(module_paths(fate.origin.source))
        steps = frozenset(map(base_name, fate.steps))
        key = (base_name(origin.mark), origin.op, fate.kind, steps, source_lines(origin.source))
        # the first such node of a layer is the first of the others, the second the second
        seen[key, modules] += 1
        yield key, frozenset(map(pattern, modules)), seen[key, modules]


def _ends(
    block: Block, found: dict[str, dict[str, str]], kinds: Mapping[str, str]
) -> dict[str, dict[str, str]]:
    """Maps each imported node to the nodes of the last stage that compute it, and their kinds.

    Imported nodes are identified by marks: their names, which passes keep like source lines. Adds
    the nodes of `block`, and of loops and branches in it, to `found`, and returns `found`.
    """
    for node in block.nodes:
        name = block.names.get(node)
        if name is None:
            continue
        marks = dict.fromkeys(block.locs.get(node, ()))
        if is_control(node):
            for inner in node.blocks:
                _ends(inner, found, kinds)
        else:
            marks.update((m, None) for b in node.blocks for m in _inside(b))
        kind = _RUN_BY.get(kinds.get(f"%{name}", ""), _kind(node))
        for mark in marks:
            if mark not in found or not is_control(node):
                found.setdefault(mark, {})[f"%{name}"] = kind
    return found


def _inside(block: Block) -> Iterable[str]:
    for lines in block.locs.values():
        yield from lines
    for node in block.nodes:
        for inner in node.blocks:
            yield from _inside(inner)


def _kind(node: Node) -> str:
    if node.op == "custom":
        return "hosted"
    if node.op == "kernel" or is_control(node):
        return "kernel"
    return _ROLES.get(lookup(node.op).kind, "view")


def _folded(origin: Origin, steps: Sequence[PassStep]) -> NodeOutcome:
    """Returns the outcome of an imported node that no node of the last stage computes.

    It is `fold` if a recorded rule removed the node, or a node that used it, and names the rule;
    else `lost`, with the pass after which the node was absent. `steps` are the records of the
    passes.
    """
    for step in steps:
        before = holders(step.record.before)
        if origin.mark not in before or origin.mark in holders(step.record.after):
            continue
        touched = {mark: r.rule for r in step.record.rewrites for mark in r.source}
        for block, node in _upwards(before[origin.mark]):
            for mark in block.locs.get(node, ()):
                if mark in touched:
                    return NodeOutcome(origin, "fold", (f"{touched[mark]} in {step.stage}",))
        return NodeOutcome(origin, "lost", (f"{step.record.name} in {step.stage}",))
    return NodeOutcome(origin, "lost")


def _upwards(start: Iterable[tuple[Block, Node]]) -> Iterable[tuple[Block, Node]]:
    """Yields each of the given nodes, then all nodes of its block that depend on it, in order."""
    for block, root in start:
        seen = {root}
        yield block, root
        for node in block.nodes:
            if not seen.isdisjoint(deps(node)):
                seen.add(node)
                yield block, node

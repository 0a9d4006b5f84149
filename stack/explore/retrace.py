"""Trace the nodes of a saved run's program through its stages, by a unique mark on each node.

Several values can share a source line. So the lines are replaced by marks, one for each imported
node, and the recorded pipelines run again. The engine carries marks as it carries lines, so each
value can be traced to its exact nodes.

A pass may have used what a saved run lacks: weights, a plug-in, measured times. If a stage does not
come out as it was recorded, its recorded function and decisions count; see `recorded_marks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields

from stack.errors import StackError, UsageError
from stack.explore.diff import without_lines
from stack.explore.kernel_rows import kernel_of, kind_of
from stack.explore.saved_run import SavedRun, machine_of
from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.ir.node import walk as walk_blocks
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.pipeline import Pipeline, Record, Result
from stack.run.decisions import Decisions
from stack.target import Target

Marks = Mapping[str, "Origin"]


@dataclass(frozen=True)
class Origin:
    """One node of the imported function: its mark, such as `%loop/y`, its op and source lines."""

    mark: str
    op: str
    source: tuple[str, ...]


@dataclass(frozen=True)
class PassStep:
    """The record of one pass (its decisions, and the functions around it), and its stage's name."""

    stage: str
    record: Record


@dataclass(frozen=True)
class RetracedRun:
    """The passes of a run in order, over marked functions.

    Attributes:
        origins: the imported nodes by mark.
        func: the function after the last pass.
        kinds: the kind of kernel that runs a step, by the step's name, if known.
    """

    origins: Marks
    steps: tuple[PassStep, ...]
    func: Func
    kinds: Mapping[str, str] = field(default_factory=dict[str, str])


def marked(func: Func) -> tuple[Func, dict[str, Origin]]:
    """Replaces the source lines of nodes by marks: their names, such as `%y` and `%loop/y`.

    Passes keep marks as they keep source lines, so a mark shows which imported node a later node
    comes from. Also returns the node of each mark. Equal bodies, as of equal layers, stay equal:
    their nodes share a mark.
    """
    origins: dict[str, Origin] = {}
    done: dict[Block, Block] = {}

    def mark(block: Block, path: str) -> Block:
        if block not in done:
            changed: dict[Node, Replacement] = {}
            for node in block.nodes:
                if node.op != "custom" and any(not b.is_open for b in node.blocks):
                    own = f"{path}{block.names[node]}/"
                    blocks = [b if b.is_open else mark(b, own) for b in node.blocks]
                    new = Node(node.op, node.args, node.attrs, node.type, blocks)
                    changed[node] = Replacement(new)
            found = replace(block, changed)
            marks = {node: f"%{path}{name}" for node, name in found.names.items()}
            lines = {name: block.locs.get(node, ()) for node, name in block.names.items()}
            for node, each in marks.items():
                origins[each] = Origin(each, node.op, lines.get(found.names[node], ()))
            locs = {node: (each,) for node, each in marks.items()}
            done[block] = Block(found.params, found.results, found.names, locs)
        return done[block]

    return Func(func.name, mark(func.body, ""), func.level), origins


def follow(
    func: Func, stages: Iterable[tuple[str, str]], machine: Target | None = None
) -> RetracedRun:
    """Marks a function and runs the pipelines of some stages over it."""
    func, origins = marked(func)
    steps: list[PassStep] = []
    for stage, passes in stages:
        result = Pipeline(passes).run(func, verify=False, verbose=True, target=machine)
        steps.extend(PassStep(stage, record) for record in result.records)
        func = result.func
    return RetracedRun(origins, tuple(steps), func)


def retrace(run: SavedRun) -> RetracedRun:
    """Traces each imported node of a saved run through the passes, and returns them in order.

    Each imported node gets a unique mark, and the recorded pipelines run again on the marked
    function. If a pipeline fails or gives another function, the recorded function is used.

    Raises UsageError if the run has no IR text to start from.
    """
    stages = [name for name in run.stages if run.is_ir(name)]
    if not stages:
        raise UsageError(f"{run.folder} has no stage of IR text to start from")
    func, origins = marked(run.func(stages[0]))
    steps: list[PassStep] = []
    machine = machine_of(run)
    for name in stages[1:]:
        recorded = run.func(name)
        result = _again(func, str(run.stage(name)["pass"]), machine)
        if result is not None and _is_same(result.func, recorded):
            steps.extend(PassStep(name, record) for record in result.records)
            func = result.func
            continue
        after = recorded_marks(func, recorded)
        steps.extend(
            PassStep(name, _with_marks(decisions, func, after, origins))
            for decisions in run.decisions(name)
        )
        func = after
    kinds = {f"%{k['stage_node']}": kind_of(kernel_of(k)) for k in run.kernels if k["stage_node"]}
    return RetracedRun(origins, tuple(steps), func, kinds)


def _again(func: Func, passes: str, machine: Target | None) -> Result | None:
    """Runs a pipeline again; returns None if it cannot run here, as without the file of a pass."""
    try:
        return Pipeline(passes).run(func, verify=False, verbose=True, target=machine)
    except StackError:
        return None


def _is_same(func: Func, recorded: Func) -> bool:
    return without_lines(str(func)) == without_lines(str(recorded))


def recorded_marks(before: Func, after: Func) -> Func:
    """Returns the function `after` a pass, with marks taken from nodes of equal names in `before`.

    A mark is the name of an imported node that a later node comes from. A node of a new group is
    looked up by the name that it had outside of the group.
    """
    known: dict[tuple[str, ...], tuple[str, ...]] = {}
    for path, block, node in _named(before.body, ()):
        known[path] = tuple(dict.fromkeys((*block.locs.get(node, ()), *_inside(node))))
    done: dict[Block, Block] = {}

    def mark(block: Block, path: tuple[str, ...]) -> Block:
        if block in done:
            return done[block]
        changed: dict[Node, Replacement] = {}
        for node in block.nodes:
            if any(not b.is_open for b in node.blocks):
                own = (*path, block.names.get(node, ""))
                blocks = [b if b.is_open else mark(b, own) for b in node.blocks]
                changed[node] = Replacement(node.rebuilt(blocks=blocks))
        found = replace(block, changed) if changed else block
        locs = {
            node: known.get((*path, name)) or known.get((name,), ())
            for node, name in found.names.items()
        }
        done[block] = Block(found.params, found.results, found.names, locs)
        return done[block]

    return Func(after.name, mark(after.body, ()), after.level)


def _named(block: Block, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Block, Node]]:
    """Yields every named node of a block, and of the closed blocks nested in it.

    Each item has the path of names from the outermost node to the node itself, the block that
    contains the node, and the node. A block is closed if it cannot use values of the enclosing
    block.
    """
    for node, name in block.names.items():
        yield (*path, name), block, node
        for inner in node.blocks:
            if not inner.is_open:
                yield from _named(inner, (*path, name))


def _inside(node: Node) -> Iterator[str]:
    """Yields the marks (names of imported nodes) of all nodes in the blocks of a node."""
    for block in node.blocks:
        for inner, _ in walk_blocks(block):
            for marks in inner.locs.values():
                yield from marks


def _with_marks(
    made: Decisions, before: Func, after: Func, origins: Mapping[str, Origin]
) -> Record:
    """Converts the saved decisions of a pass to a record with marks in place of source lines.

    A rewrite names its node and gets the marks of that node. Other decisions only name source
    lines: they get the marks of all imported nodes of these lines.
    """
    by_name = {f"%{name}": before.body.locs.get(n, ()) for n, name in before.body.names.items()}

    def marks(lines: Iterable[str]) -> tuple[str, ...]:
        asked = set(lines)
        return tuple(mark for mark, o in origins.items() if not asked.isdisjoint(o.source))

    return Record(
        made.name,
        before,
        after if made.rewrites else before,
        0.0,
        tuple(replace_fields(r, source=by_name.get(r.node) or marks(r.source))
              for r in made.rewrites),
        tuple(replace_fields(m, source=marks(m.source)) for m in made.misses),
        tuple(replace_fields(f, source=marks(f.source)) for f in made.formed),
        tuple(
            replace_fields(r, source=marks(r.source), between=tuple(map(marks, r.between)))
            for r in made.refused
        ),
        tuple(replace_fields(n, source=marks(n.source)) for n in made.remarks),
        idle=made.idle,
    )  # fmt: skip


def holders(func: Func) -> dict[str, list[tuple[Block, Node]]]:
    """Maps every source line, or mark in its place, to the nodes that have it, and their blocks.

    Includes nodes in nested closed blocks. A mark is the name of an imported node.
    """
    found: dict[str, list[tuple[Block, Node]]] = {}
    for block, node in walk_blocks(func.body):
        for line in block.locs.get(node, ()):
            found.setdefault(line, []).append((block, node))
    return found

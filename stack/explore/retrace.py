"""Run the passes of a saved run again, with a unique mark on every node of the program.

Several values can share a source line. So the lines are replaced by marks, one for each imported
node, and the recorded pipelines run again. The engine carries marks as it carries lines, so each
value can be traced to its exact nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields

from stack.errors import UsageError
from stack.explore.saved_run import SavedRun, machine_of
from stack.ir.node import Block, Func, Node
from stack.ir.node import walk as walk_blocks
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.pipeline import Pipeline, Record
from stack.target import Target

Marks = Mapping[str, "Origin"]


@dataclass(frozen=True)
class Origin:
    """One node of the imported function: its mark, op and source lines."""

    mark: str
    op: str
    source: tuple[str, ...]


@dataclass(frozen=True)
class PassStep:
    """One pass of one stage."""

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
    """Replaces source lines by marks such as `%y` and `%loop/y`; returns also their origins.

    Equal bodies, as of equal layers, stay equal: their nodes share a mark.
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
    """Runs the pipelines of a saved run again, from its imported function.

    A stage chosen by measurement has no pipeline and is skipped; it changes only schedules. Raises
    UsageError if the run has no IR text to start from.
    """
    stages = [name for name in run.stages if run.is_ir(name)]
    if not stages:
        raise UsageError(f"{run.folder} has no stage of IR text to start from")
    passes = [(name, str(run.stage(name)["pass"])) for name in stages[1:]]
    found = follow(run.func(stages[0]), passes, machine_of(run))
    kinds = {f"%{k['stage_node']}": str(k["kind"]) for k in run.kernels if k["stage_node"]}
    return replace_fields(found, kinds=kinds)


def holders(func: Func) -> dict[str, list[tuple[Block, Node]]]:
    """Maps every mark or source line to the nodes that carry it, with their closed blocks."""
    found: dict[str, list[tuple[Block, Node]]] = {}
    for block, node in walk_blocks(func.body):
        for line in block.locs.get(node, ()):
            found.setdefault(line, []).append((block, node))
    return found

"""What takes the place of a kernel that its compiler refuses: the next schedule, then smaller
groups, then a library step.

The group that a refused kernel was made from is marked, and the pipeline that the backend names
(`Lowering.retreat`) gives it another way to be computed; then all is lowered again. Each round
takes a marked group closer to a library step, which nobody compiles: it comes to an end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from stack.errors import KernelRefused
from stack.ir.builder import block_of, param, results_of
from stack.ir.node import Block, Func, Node, walk
from stack.ir.traits import behind, maker, runs_once
from stack.ir.types import TupleType
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.pipeline import Pipeline
from stack.run.backend import Backend
from stack.run.record import Run, Stage
from stack.target import Target

STAGE = "retreat"
MOST_TEXT = 400  # of what a compiler says
CONTROL = ("call", "cond", "while")
NO_KERNEL = ("const", "custom", "item", "opaque", "param", "reshape")
Made = TypeVar("Made")


def compile_or_retreat(
    groups: Func,
    backend: Backend,
    run: Run,
    lower: Callable[[Func], Func],
    make: Callable[[Func], Made],
    target: Target | None = None,
) -> Made:
    """What `make` builds of the lowered groups of a function.

    Args:
        groups: what `lower` takes, a function of fusion groups.
        run: gets the stages of the last round, and a stage that says what was refused before.
        lower: to the level of the backend; records its stages.
        make: the backend's compiler. Either may raise KernelRefused.
        target: the machine that all is lowered for.

    Raises:
        KernelRefused: a kernel that no group is known for.
    """
    start = len(run.records)
    stage = Stage(STAGE, passes=backend.lowering.retreat)
    while True:
        try:
            return make(lower(groups))
        except KernelRefused as refused:
            if not backend.lowering.retreat:
                raise
            begin = time.perf_counter()
            del run.records[start:]
            marked = _mark(groups, refused, lambda func: _quietly(lower, func, run))
            result = Pipeline(backend.lowering.retreat).run(marked, target=target)
            groups = stage.func = result.func
            stage.notes += [str(note) for record in result.records for note in record.notes]
            stage.ms += (time.perf_counter() - begin) * 1e3
            run.add(stage)


def _quietly(lower: Callable[[Func], Func], func: Func, run: Run) -> Func:
    """A function lowered, without a record."""
    count = len(run.records)
    try:
        return lower(func)
    finally:
        del run.records[count:]


def _mark(func: Func, refused: KernelRefused, lower: Callable[[Func], Func]) -> Func:
    """The function with `refused` on every group that a refused kernel comes from."""
    whys = {_code(node): why for node, why in refused.kernels.items()}
    found: dict[str, str] = {}

    def why(node: Node) -> str:
        """Why a kernel of a group was refused; "" where none was."""
        program = _alone(node)
        text = str(program)
        if text not in found:
            found[text] = _why(program, whys, lower)
        return found[text]

    def visit(block: Block) -> Block:
        changed: dict[Node, Replacement] = {}
        for node in block.nodes:
            if node.op in CONTROL:
                blocks = [visit(b) for b in node.blocks]
                if tuple(blocks) != node.blocks:
                    new = Node(node.op, node.args, node.attrs, node.type, blocks)
                    changed[node] = Replacement(new)
            elif node.op not in NO_KERNEL and node.attrs.get("kind") != "library":
                reason = why(node)
                if reason:
                    changed[node] = Replacement(_marked(node, reason))
        return replace(block, changed) if changed else block

    body = visit(func.body)
    if not any(found.values()):
        raise refused
    return Func(func.name, body, func.level)


def _why(program: Func, whys: Mapping[Any, str], lower: Callable[[Func], Func]) -> str:
    try:
        lowered = lower(program)
    except KernelRefused as refused:
        return next(iter(refused.kernels.values()))
    made = (node for _, node in walk(lowered.body) if node.op == "kernel")
    return next((whys[_code(node)] for node in made if _code(node) in whys), "")


def _code(kernel: Node) -> Any:
    """What the code of a kernel is made from: not its operands, nor where its results go."""
    attrs = tuple((k, v) for k, v in kernel.attrs.items() if k != "at")
    return kernel.blocks[0].params, kernel.blocks[0].results, attrs


def _alone(node: Node) -> Func:
    """A function that only does what a node does, to operands that stay where its own ones do."""
    params = {a: param(f"x{i}", a.type) for i, a in enumerate(dict.fromkeys(node.args))}
    used = [p for a, p in params.items() if a.op != "const"]
    staying = [p for a, p in params.items() if runs_once(maker(behind(a)))]
    given = dict(zip(staying, results_of(_as_they_are(staying)) if staying else (), strict=True))
    args = [a if a.op == "const" else given.get(params[a], params[a]) for a in node.args]
    return Func("group", Block(used, results_of(node.rebuilt(args))))


def _as_they_are(params: Sequence[Node]) -> Node:
    """A call with `once` that gives its operands."""
    types = tuple(p.tensor for p in params)
    type_ = types[0] if len(types) == 1 else TupleType(types)
    attrs = {"name": "weights", "once": True}
    return Node("call", params, attrs, type_, (Block(params, params),))


def _marked(node: Node, why: str) -> Node:
    """The group with the reason on it; an op on its own becomes a group of one."""
    if node.op not in ("fusion", "stream"):
        attrs = {"kind": "loop", "name": node.op}
        node = Node("fusion", node.args, attrs, node.type, (block_of(node),))
    return node.rebuilt(attrs={**node.attrs, "refused": " ".join(why.split())[:MOST_TEXT]})

"""Replaces kernels that the backend's compiler rejects: by the next schedule, then by smaller
groups, then by a library step.

The group of a rejected kernel is marked `refused`, and the backend's pipeline (`Lowering.retreat`)
computes it in another way; then the function is lowered again. Each round moves a marked group
closer to a library step, which needs no compilation, so the loop terminates.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stack.ir.builder import block_of, param, results_of
from stack.ir.func import Func
from stack.ir.node import Block, Node, walk
from stack.ir.refusal import KernelRefused
from stack.ir.traits import is_computed_once
from stack.ir.types import TupleType
from stack.rewrite.engine import Replacement, replace
from stack.rewrite.pipeline import Pipeline
from stack.run.backend import Backend
from stack.run.record import Run, Stage, decided
from stack.target import Target

STAGE = "retreat"
MOST_TEXT = 400  # characters of a compiler's message
CONTROL = ("call", "cond", "while")
NO_KERNEL = ("const", "custom", "item", "opaque", "param", "reshape")


def without_refused(
    groups: Func,
    refused: KernelRefused,
    backend: Backend,
    run: Run,
    start: int,
    lower: Callable[[Func], Func],
    target: Target | None = None,
) -> Func:
    """Returns the function with other groups in place of those whose kernels were rejected.

    Args:
        groups: a function of fusion groups, the input of `lower`.
        run: its records from number `start` on are replaced by a stage that lists all rejections.
        lower: lowers to the level of the backend; records its stages. May raise KernelRefused.
        target: the machine to lower for.

    Raises:
        KernelRefused: the group of a rejected kernel cannot be found.
    """
    begin = time.perf_counter()
    held = [stage for stage in run.records[start:] if stage.name == STAGE]
    stage = held[0] if held else Stage(STAGE, passes=backend.lowering.retreat)
    run.on_kernel = None  # `_mark` lowers groups whose kernels are compiled
    del run.records[start:]
    marked = _mark(groups, refused, lambda func: _quietly(lower, func, run))
    result = Pipeline(backend.lowering.retreat).run(marked, verbose=True, target=target)
    stage.func = result.func
    stage.decisions += decided(result.records)
    stage.ms += (time.perf_counter() - begin) * 1e3
    run.records.append(stage)
    return result.func


def _quietly(lower: Callable[[Func], Func], func: Func, run: Run) -> Func:
    """Lowers a function, and removes the stages that `lower` added to the record."""
    count = len(run.records)
    try:
        return lower(func)
    finally:
        del run.records[count:]


def _mark(func: Func, refused: KernelRefused, lower: Callable[[Func], Func]) -> Func:
    """Adds attribute `refused`, the reason, to every group whose kernel the compiler rejected.
    Raises `refused` if no group of the function has such a kernel.
    """
    whys = {_code(node): why for node, why in refused.kernels.items()}
    found: dict[str, str] = {}

    def why(node: Node) -> str:
        """The reason why a kernel of a group was rejected; "" if none was."""
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
    """A key that is equal for kernels with the same code. It leaves out the operands, and attribute
    `at`, the memory of the results.
    """
    attrs = tuple((k, v) for k, v in kernel.attrs.items() if k != "at")
    return kernel.blocks[0].params, kernel.blocks[0].results, attrs


def _alone(node: Node) -> Func:
    """Returns a function that computes only this node, with parameters for operands. Operands that
    a call with `once` computed come from such a call here too, so that the node is lowered in the
    same way.
    """
    params = {a: param(f"x{i}", a.type) for i, a in enumerate(dict.fromkeys(node.args))}
    used = [p for a, p in params.items() if a.op != "const"]
    staying = [p for a, p in params.items() if is_computed_once(a)]
    given = dict(zip(staying, results_of(_as_they_are(staying)) if staying else (), strict=True))
    args = [a if a.op == "const" else given.get(params[a], params[a]) for a in node.args]
    return Func("group", Block(used, results_of(node.rebuilt(args))))


def _as_they_are(params: Sequence[Node]) -> Node:
    """Returns a call that returns its operands unchanged and is marked `once`, so that they count
    as computed once.
    """
    types = tuple(p.tensor for p in params)
    type_ = types[0] if len(types) == 1 else TupleType(types)
    attrs = {"name": "weights", "once": True}
    return Node("call", params, attrs, type_, (Block(params, params),))


def _marked(node: Node, why: str) -> Node:
    """Adds attribute `refused`, the reason, to a group. A single op first becomes a fusion."""
    if node.op not in ("fusion", "stream"):
        attrs = {"kind": "loop", "name": node.op}
        node = Node("fusion", node.args, attrs, node.type, (block_of(node),))
    return node.rebuilt(attrs={**node.attrs, "refused": " ".join(why.split())[:MOST_TEXT]})

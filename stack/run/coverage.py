"""Coverage: how each imported op runs: compiled, by a library, hosted, or as a fallback."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.run.backend import Kernel

_UNCOUNTED = frozenset({"const", "item", "call"})
# nodes of a lowered program that are not library steps
_NO_STEP = frozenset({
    "call", "cond", "const", "custom", "item", "kernel", "opaque", "reshape", "while",
})  # fmt: skip


@dataclass
class LibraryStep:
    """One library call of the compiled program: the names of the ops that it computes, and their
    source lines.
    """

    ops: list[str]
    lines: frozenset[str]


@dataclass
class _Op:
    """An op of the imported function, and who runs it: `kind` is "native" (compiled), "library",
    "hosted", "python" (control flow that is not compiled whole) or "fallback".
    """

    name: str
    lines: frozenset[str]
    kind: str = "native"
    target: str = field(default="")
    inner: frozenset[str] = frozenset()  # ops of a hosted operator's decomposition


def walk(func: Func) -> list[Node]:
    """All nodes of a function, nested blocks included; the nodes of a block once for each use."""
    return [node for _, node in _walk(func.body)]


def _walk(body: Block) -> Iterator[tuple[Block, Node]]:
    pending = [body]
    while pending:
        block = pending.pop()
        for node in block.nodes:
            yield block, node
            pending.extend(node.blocks if node.op != "custom" else ())


def coverage_of(
    func: Func, lowered: Func | None = None, kernels: Sequence[Kernel] = ()
) -> dict[str, Any]:
    """Counts the ops of an imported function that are compiled, library calls, hosted, or
    fallbacks, and the steps that Python runs in each iteration of loops.

    Args:
        lowered: the function after the passes; has no groups if another compiler continues.
        kernels: the kernels that the backend reports.
    """
    ops = [
        _Op(
            n.op,
            frozenset(block.locs.get(n, ())),
            "hosted" if n.op == "custom" else "native",
            str(n.attrs.get("target", "")),
            frozenset(inner.op for b in n.blocks for inner in b.nodes),
        )
        for block, n in _walk(func.body)
        if n.op not in _UNCOUNTED
    ]
    fallback: dict[str, int] = {}
    for op in ops:
        if op.name == "opaque":
            op.kind = "fallback"
            fallback[op.target] = fallback.get(op.target, 0) + 1
    if lowered is not None and any(n.op in ("kernel", "fusion") for n in walk(lowered)):
        steps = _library_steps(lowered, kernels)
    else:
        steps = _library_calls(kernels)
    for step in steps:
        _give(step, ops)
    for block, node in _walk(lowered.body) if lowered is not None else ():
        if node.op == "custom":
            _take(node, frozenset(block.locs.get(node, ())), ops)
    stepwise = {k.stage_node for k in kernels if k.loop_steps}
    top = lowered.body if lowered is not None else Block((), ())
    for node in top.nodes:
        if top.names.get(node) in stepwise:
            own = (op for op in ops if op.name == node.op)
            _mark(own, frozenset(top.locs.get(node, ())), "python")
    kinds = [op.kind for op in ops]
    return {
        "ops": len(ops),
        "native": kinds.count("native"),
        "library": kinds.count("library"),
        "hosted": kinds.count("hosted"),
        "python": kinds.count("python"),
        "fallback": kinds.count("fallback"),
        "fallback_ops": dict(sorted(fallback.items())),
        "loop_steps": sum(k.loop_steps for k in kernels),
    }


def _library_steps(lowered: Func, kernels: Sequence[Kernel]) -> Iterator[LibraryStep]:
    """Library steps of a program, including those in loops and branches."""
    said = {k.stage_node: k.kind for k in kernels if k.stage_node}
    pending = [lowered.body]
    while pending:
        block = pending.pop()
        for node in block.nodes:
            kind = said.get(block.names.get(node, "")) if block is lowered.body else None
            if node.op in _NO_STEP and kind != "library":
                pending.extend(node.blocks if node.op not in ("custom", "kernel") else ())
            elif kind != "generated":
                yield LibraryStep(_ops_of(node), frozenset(block.locs.get(node, ())))


def _ops_of(step: Node) -> list[str]:
    if step.op == "kernel":
        names: Any = step.attrs.get("ops") or ()
        return list(names)
    inner = step.blocks[0].nodes if step.op == "fusion" else (step,)
    return [n.op for n in inner if n.op not in (*_UNCOUNTED, "reshape")]


def _library_calls(kernels: Iterable[Kernel]) -> Iterator[LibraryStep]:
    """Yields the library kernels of a backend as library steps without source lines, for compilers
    that do not report which lines a kernel computes.
    """
    for kernel in kernels:
        if kernel.kind == "library":
            yield LibraryStep(list(kernel.ops), frozenset())


def _give(step: LibraryStep, ops: Sequence[_Op]) -> None:
    """Marks the imported ops that a library step runs: for each op name of the step, one op with
    that name on the step's source lines.

    If there is none, a pass inserted the step; then one op of any name on its lines is marked.
    """
    found = False
    for name in step.ops:
        own = [op for op in ops if op.name == name]
        found |= _mark(own, step.lines) or _is_of_operator(name, step.lines, ops)
    if not found and step.lines:
        _mark(ops, step.lines)


def _take(call: Node, lines: frozenset[str], ops: Sequence[_Op]) -> None:
    """Marks an imported op as hosted if a pass replaced it by the hosted operator `call`: the first
    op on the call's source lines that the operator's decomposition contains. Marks none if the
    program itself calls an operator on these lines.
    """
    inner = {n.op for b in call.blocks for n in b.nodes}
    here = [op for op in ops if not lines.isdisjoint(op.lines)]
    own = [op for op in here if op.kind == "native" and op.name in inner]
    if own and all(op.name != "custom" for op in here):
        own[0].kind = "hosted"


def _is_of_operator(name: str, lines: frozenset[str], ops: Sequence[_Op]) -> bool:
    """True if the op named `name` is in the decomposition of a hosted operator on one of these
    source lines: the operator was replaced by its decomposition.
    """
    return any(name in op.inner and not lines.isdisjoint(op.lines) for op in ops)


def _mark(ops: Iterable[_Op], lines: frozenset[str], kind: str = "library") -> bool:
    """Sets the kind of the first of `ops` that is still "native" and has one of these source lines;
    lines are not compared if the op or `lines` has none. Returns False if no op matches.
    """
    for op in ops:
        if op.kind == "native" and (not lines or not op.lines or not lines.isdisjoint(op.lines)):
            op.kind = kind
            return True
    return False

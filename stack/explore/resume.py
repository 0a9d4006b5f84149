"""Continue from a stage: run an edited function, or one kernel alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from stack.errors import UsageError, unknown_name
from stack.explore.saved_run import SavedRun
from stack.ir.builder import param
from stack.ir.data import decode, encode
from stack.ir.func import Func
from stack.ir.node import Block, Node
from stack.run.backend import Executable
from stack.run.compile import compile_func
from stack.run.record import Run
from stack.run.trace import IRFrontend

Arrays = Sequence[np.ndarray]


def executable_from(func: Func, stage: str, backend: str, record: Run | None = None) -> Executable:
    """Compiles a function in the form of stage `stage`: applies only the later stages to it."""
    options = {"call_opaque": IRFrontend().call_opaque}
    return compile_func(func, backend, record, options=options, after=stage)


def results_of(made: Executable, func: Func, inputs: Arrays) -> list[np.ndarray]:
    """Runs an executable; inputs and results have the interpreter's format, not that of storage."""
    ready = [encode(a, p.dtype) for a, p in zip(inputs, func.params, strict=True)]
    return [decode(r, n.dtype) for r, n in zip(made.run(ready), func.results, strict=True)]


def alone(run: SavedRun, kernel: str) -> tuple[Func, str]:
    """Returns a function that computes only the group of a kernel, and the stage of that group."""
    stage, func, group = group_of(run, kernel)
    return step_alone(func.body, group), stage


def step_alone(block: Block, node: Node) -> Func:
    """Returns a function that computes one node of a block; its operands become parameters.

    Operands that are constants stay constants. Results get buffers of their own: offsets in the
    arena and updates in place are dropped.
    """
    new: dict[Node, Node] = {}
    for arg in dict.fromkeys(node.args):
        new[arg] = arg if arg.op == "const" else param(f"p{len(new)}", arg.type)
    attrs = {k: v for k, v in node.attrs.items() if k not in ("updates", "reuses")}
    if "at" in attrs:
        attrs["at"] = (-1,) * len(node.types)
    made = Node(node.op, [new[a] for a in node.args], attrs, node.type, node.blocks)
    results = [made]
    if len(node.types) > 1:
        results = [Node("item", (made,), {"index": i}, t) for i, t in enumerate(node.types)]
    names = {made: block.names[node]} if node in block.names else {}
    locs = {made: block.locs.get(node, ())}
    params = [p for p in new.values() if p.op == "param"]
    return Func("step", Block(params, results, names, locs))


def group_of(run: SavedRun, kernel: str) -> tuple[str, Func, Node]:
    """Returns the last stage before groups become kernels, its function, and a kernel's group.

    Raises UsageError if the run has no such kernel, or if the kernel has no group of its own.
    """
    entries = {str(k["name"]): k for k in run.kernels}
    if kernel not in entries:
        raise unknown_name(f"{run.folder} has no kernel", kernel, entries)
    name = str(entries[kernel]["stage_node"])
    stages = [s for s in run.stages if run.is_ir(s) and _is_of_tensors(run.func(s))]
    func = run.func(stages[-1])
    for node in func.nodes:
        if func.body.names.get(node) == name:
            return stages[-1], func, node
    raise UsageError(f"the kernel {kernel} has no step of its own in stage {stages[-1]}")


def _is_of_tensors(func: Func) -> bool:
    return func.level == "tensor" and all(n.op != "kernel" for n in func.nodes)

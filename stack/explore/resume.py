"""Continue from a stage: run an edited function, or a hand-written replacement for a kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from stack.errors import StackError, UsageError, unknown_name
from stack.explore.saved_run import SavedRun
from stack.imports import function_of
from stack.ir.builder import param
from stack.ir.node import Block, Func, Node
from stack.ir.storage import decode, encode
from stack.ir.tensor_ops import result_type
from stack.ir.verifier import verify
from stack.rewrite.engine import Replacement, replace
from stack.run.backend import Executable
from stack.run.compile import compile_func
from stack.run.ir_frontend import IRFrontend
from stack.run.record import Run

ROUNDS = 15
Arrays = Sequence[np.ndarray]


def executable_from(func: Func, stage: str, backend: str, record: Run | None = None) -> Executable:
    """Lowers and compiles a function that has already passed `stage`."""
    options = {"call_opaque": IRFrontend().call_opaque}
    return compile_func(func, backend, record, options=options, after=stage)


def results_of(made: Executable, func: Func, inputs: Arrays) -> list[np.ndarray]:
    """Runs an executable; returns its results in the interpreter's format."""
    ready = [encode(a, p.dtype) for a, p in zip(inputs, func.params, strict=True)]
    return [decode(r, n.dtype) for r, n in zip(made.run(ready), func.results, strict=True)]


@dataclass(frozen=True)
class ReplacedKernel:
    """A function with a hand-written replacement for one kernel.

    Attributes:
        stage: the last stage whose groups are on tensors.
        before, after: the function at that stage, with the group and with its replacement.
        step: the name of the kernel's value.
    """

    stage: str
    before: Func
    after: Func
    step: str


def swap(run: SavedRun, kernel: str, code: str) -> ReplacedKernel:
    """Replaces a kernel of a run by the function `file.py:function`.

    The function takes the arrays that the kernel reads, in the order of its group's operands. It
    returns the group's results: NumPy arrays on a CPU, torch tensors on a GPU. Raises UsageError
    with the known kernels.
    """
    function_of(code)
    stage, before, group = _group(run, kernel)
    params = [param(f"p{i}", a.type) for i, a in enumerate(group.args)]
    inner = Node(group.op, params, group.attrs, group.type, group.blocks)
    items = [Node("item", (inner,), {"index": i}, t) for i, t in enumerate(group.types)]
    body = Block(params, items if len(items) > 1 else [inner])
    attrs = {"name": f"hand.{kernel}", "kernel": code}
    new = Node("custom", group.args, attrs, result_type(body.type), (body,))
    after = Func(before.name, replace(before.body, {group: Replacement(new)}), before.level)
    verify(after)
    return ReplacedKernel(stage, before, after, before.body.names[group])


def alone(run: SavedRun, kernel: str) -> tuple[Func, str]:
    """Returns the group of a kernel as a function of its own, and its stage."""
    stage, func, group = _group(run, kernel)
    return step_alone(func.body, group), stage


def step_alone(block: Block, node: Node) -> Func:
    """Returns a function of one step. Constants stay; results get their own buffers."""
    new: dict[Node, Node] = {}
    for arg in dict.fromkeys(node.args):
        new[arg] = arg if arg.op == "const" else param(f"p{len(new)}", arg.type)
    attrs = {k: v for k, v in node.attrs.items() if k != "updates"}
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


def _group(run: SavedRun, kernel: str) -> tuple[str, Func, Node]:
    """Returns the last stage whose groups are on tensors, and a kernel's group in it."""
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


def step_seconds(made: Executable, func: Func, inputs: Arrays, step: str) -> float:
    """Returns the median seconds of one step. Raises StackError if it cannot be measured."""
    if made.profile is None:
        raise StackError("the backend does not measure single kernels")
    ready = [encode(a, p.dtype) for a, p in zip(inputs, func.params, strict=True)]
    places = [i for i, k in enumerate(made.kernels) if k.stage_node == step]
    made.profile(ready)
    runs = [made.profile(ready) for _ in range(ROUNDS)]
    return sum(median(times[i] for times in runs) for i in places)

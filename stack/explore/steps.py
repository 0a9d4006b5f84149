"""The schedule steps of a kernel: its naive loop nest, and the kernel after each step.

Steps are named after the value that the kernel computes: `y.step0` is the loop nest, `y.step1` the
kernel after the first step, and so on. They are recomputed from the group at stage `scheduled`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import stack.plugins as plugins
from stack.errors import UsageError, unknown_name
from stack.explore.saved_run import SavedRun, is_run, load_run, machine_of
from stack.imports import function_of
from stack.ir.builder import param, remade, results_of
from stack.ir.func import Func
from stack.ir.kernel_ops import iterations
from stack.ir.node import Block, Node
from stack.ir.traits import is_control, is_loop
from stack.rewrite.truth import Truth
from stack.run.backend import Backend
from stack.target import Target

STAGE = "scheduled"
MOST_TURNS = 1 << 15  # limit of loop iterations for the interpreter: some seconds
_NAME = re.compile(r"%?(?P<value>.+)\.step(?P<number>\d+)")
_STEP = re.compile(r"step\d+")
Shown = Callable[[Node, Target], list[tuple[str, str, Node]]]


class KernelStage(NamedTuple):
    """A kernel after one step of its schedule.

    Attributes:
        text: the step, spelled as in a schedule.
        why: the reason that the policy gives for the step; "" if it gives none.
        func: the kernel after the step, as a function.
    """

    text: str
    why: str
    func: Func


@dataclass(frozen=True)
class KernelSteps:
    """A kernel after each step of its schedule, such as tiling a loop or vectorizing it.

    Attributes:
        value: the name of the value that the kernel computes.
        steps: in order; the first is the naive loop nest.
    """

    value: str
    steps: tuple[KernelStage, ...]

    def told(self) -> str:
        """Returns the numbered list of steps, with their reasons."""
        width = max(len(step.text) for step in self.steps)
        lines = (f"  {i:2} {s.text:{width}}  {s.why}" for i, s in enumerate(self.steps))
        return "\n".join(line.rstrip() for line in lines)

    def __str__(self) -> str:
        return f"%{self.value}\n{self.told()}"

    __repr__ = __str__


def is_step(name: str) -> bool:
    """True if `name` is that of a kernel after a schedule step, such as `y.step3`."""
    return _NAME.fullmatch(name) is not None


def stepped(func: Func, backend: Backend, target: Target | None) -> Iterator[KernelSteps]:
    """Yields the kernels of a function at stage `scheduled`, step by step.

    Groups without a generated kernel, such as library calls, are skipped.

    Raises:
        UsageError: the backend has no schedule steps.
    """
    shown = shown_by(backend)
    assert target is not None
    for block, node in in_bodies(func.body):
        found = shown(node, target)
        if found:
            operands = found[0][-1].args
            steps = tuple(
                KernelStage(text, why, alone(kernel, operands)) for text, why, kernel in found
            )
            yield KernelSteps(block.names.get(node, node.op), steps)


def in_bodies(block: Block) -> Iterator[tuple[Block, Node]]:
    """Yields the nodes of a block and of the bodies of loops, branches and calls in it, but not of
    groups, each with its block.
    """
    for node in block.nodes:
        if is_control(node):
            for body in node.blocks:
                yield from in_bodies(body)
        else:
            yield block, node


def shown_by(backend: Backend) -> Shown:
    """Returns a backend's function that lists the schedule steps of a kernel.

    Raises UsageError if the backend has none.
    """
    if not backend.lowering.steps:
        raise UsageError(f"backend {backend.name} has no schedule steps to show")
    return cast("Shown", function_of(backend.lowering.steps))


def step_text(name: str, func: Func, backend: Backend, target: Target | None) -> str:
    """Returns the text of a kernel after the step `name`, such as `y.step3`.

    Raises UsageError, with the known values or steps, if there is no such step.
    """
    kernel, number = _found(name, func, backend, target)
    return str(kernel.steps[number].func)


def _found(
    name: str, func: Func, backend: Backend, target: Target | None
) -> tuple[KernelSteps, int]:
    """Returns the kernel and the number of a step, from a name such as `y.step3`.

    Raises UsageError if no kernel computes this value, or if its kernel has fewer steps.
    """
    match = _NAME.fullmatch(name)
    assert match is not None
    known = [*stepped(func, backend, target)]
    kernel = next((k for k in known if k.value == match["value"]), None)
    if kernel is None:
        names = [k.value for k in known]
        raise unknown_name("no kernel with schedule steps computes", match["value"], names)
    number, last = int(match["number"]), len(kernel.steps) - 1
    if number > last:
        raise UsageError(f"%{kernel.value} has steps 0 to {last}, not {number}")
    return kernel, number


def explain_step(run: SavedRun, name: str) -> list[str]:
    """Explains a step of a kernel, as `y.step3`: what it changed, and the policy's reason.

    Raises:
        UsageError: the run has no such step.
    """
    backend = plugins.load("stack.backends", str(run.manifest["backend"]))
    kernel, number = _found(name, run.func(STAGE), backend, machine_of(run))
    step = kernel.steps[number]
    if not number:
        return [f"%{kernel.value}, {step.text}", f"loops: {_loops(step.func)}"]
    before = kernel.steps[number - 1].func
    return [
        f"%{kernel.value}, step {number}: {step.text}",
        f"why: {step.why or 'no reason given: it completes the step before or is hand-written'}",
        f"loops: {_loops(before)}",
        f"  now: {_loops(step.func)}",
        f"loads and stores in the text: {_accesses(before)}, now {_accesses(step.func)}",
    ]


def _loops(func: Func) -> str:
    """Lists the loops of a kernel as text, one line per loop: variable, extent, and kind."""
    found: dict[str, None] = {}
    for node in _nodes(func):
        if is_loop(node):
            kind = node.attrs["kind"]
            variable = node.blocks[0].params[0].attrs
            extra = "" if kind == "serial" else f" ({kind})"
            found[f"{variable['name']} < {variable['extent']}{extra}"] = None
    return ", ".join(found) or "none"


def _accesses(func: Func) -> int:
    return sum(node.op in ("load", "store") for node in _nodes(func))


def _nodes(func: Func) -> Iterator[Node]:
    """Yields all nodes of a function, including those in nested blocks."""
    pending = [func.body]
    while pending:
        block = pending.pop(0)
        for node in block.nodes:
            yield node
            pending += node.blocks


def turns(func: Func) -> int:
    """Counts the loop iterations that all kernels of a function run, nested loops multiplied."""
    total = 0
    pending = [(func.body, 1)]
    while pending:
        block, around = pending.pop()
        for node in block.nodes:
            inner = around * iterations(node) if is_loop(node) else around
            total += inner if is_loop(node) else 0
            pending += [(b, inner) for b in node.blocks]
    return total


def refuse_long(kernel: KernelSteps) -> None:
    """Refuses a kernel whose naive loop nest has too many iterations to interpret.

    Raises:
        UsageError: it has.
    """
    nest = kernel.steps[0].func
    if turns(nest) > MOST_TURNS:
        raise UsageError(
            f"the nest of %{kernel.value} has {turns(nest)} iterations, too many to interpret (at"
            f" most {MOST_TURNS}); give smaller inputs with -i"
        )


def check_steps(kernel: KernelSteps) -> Iterator[tuple[int, str]]:
    """Checks every step; yields its number and what is wrong with the kernel, or "".

    Every step is interpreted on inputs of all kinds, and compared with the naive loop nest.

    Raises:
        UsageError: the nest has too many iterations to interpret.
    """
    refuse_long(kernel)
    truth = Truth(kernel.steps[0].func)
    for number, step in enumerate(kernel.steps[1:], 1):
        problems = (truth.verdict("", kind, step.func) for kind in truth.kinds)
        yield number, next((f"{v.problem} ({v.kind})" for v in problems if v.problem), "")


def steps_of(run: SavedRun) -> list[KernelSteps]:
    """Returns the kernels of a saved run that have several steps, each once.

    Returns none if the run's backend has no schedule steps.
    """
    backend = plugins.load("stack.backends", str(run.manifest["backend"]))
    machine = machine_of(run)
    if not backend.lowering.steps or machine is None or STAGE not in run.stages:
        return []
    found = {k.steps[-1].func: k for k in stepped(run.func(STAGE), backend, machine)}
    return [k for k in found.values() if len(k.steps) > 2]


def stage_text(run: SavedRun, name: str) -> str:
    """Returns the text of a stage of a saved run, or of a step of a kernel, as `y.step3`.

    Raises:
        UsageError: the run has neither.
    """
    if name not in run.stages and _STEP.fullmatch(name):
        raise UsageError(
            f"{name!r} lacks the name of a kernel: steps are `softmax.{name}` for the kernel of"
            " %softmax; `stackc dump --steps` lists them"
        )
    if name in run.stages or not is_step(name):
        return run.text(name)
    backend = plugins.load("stack.backends", str(run.manifest["backend"]))
    return step_text(name, run.func(STAGE), backend, machine_of(run))


def same_run(spec: str, other: str) -> str:
    """Completes `spec` to `RUN:spec` if `other` is `RUN:stage`, so that users name the run once.

    Only a stage of RUN, or a name such as `y.step3` (a kernel after a schedule step), is completed;
    other texts are returned unchanged.
    """
    folder, colon, _ = other.rpartition(":")
    if not colon or Path(spec).exists() or not is_run(Path(folder)):
        return spec
    stages = load_run(folder).stages
    if is_step(spec) or spec in stages:
        return f"{folder}:{spec}"
    if spec.isidentifier():
        raise unknown_name(f"no file, and {folder} has no stage", spec, stages)
    return spec


def alone(kernel: Node, operands: Sequence[Node] = ()) -> Func:
    """Returns a function that runs one kernel or one group, with its operands as parameters.

    `operands`: those of its loop nest, if a step gave some of them to a kernel of their own.
    """
    operands = operands or kernel.args
    params = [param(f"x{i}", a.type) for i, a in enumerate(operands)]
    made = remade([kernel], dict(zip(operands, params, strict=True)))[kernel]
    return Func(str(kernel.attrs.get("name") or kernel.op), Block(params, results_of(made)))

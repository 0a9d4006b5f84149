"""Find the first wrong pass, and its first wrong rewrite: rule, node, source line.

Every pass runs alone over marked functions (see `retrace`), so the result is exact. It depends only
on the arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from stack.errors import StackError
from stack.explore.check import overlaps
from stack.explore.lowering import own_inputs
from stack.explore.resume import step_alone
from stack.explore.retrace import Marks, marked
from stack.explore.steps import Shown, alone, in_bodies
from stack.ir.data import decode, encode
from stack.ir.func import Func
from stack.ir.node import walk
from stack.ir.verifier import verify
from stack.rewrite.blame import first_wrong, shown
from stack.rewrite.check import NATIVE, TOLERANCE, Inexact, as_list, difference
from stack.rewrite.inputs import OVERFLOWING, kinds_for
from stack.rewrite.pipeline import Pipeline
from stack.rewrite.truth import Arrays, Truth, interpreted
from stack.run.backend import Executable
from stack.run.frontend import Captured, Frontend
from stack.run.pipeline_edits import Stages
from stack.target import Target

Runs = Callable[[Func, Sequence[np.ndarray]], Sequence[np.ndarray]]


@dataclass(frozen=True)
class Culprit:
    """The first wrong step of a lowering: a pass, one of its rewrites, or a kernel.

    Attributes:
        problem: the error that the step raises, or the difference in results.
        stage: name of the stage, or "frontend" or "backend".
        by: the pass with its options, or the kernel.
        rule: rule of the wrong rewrite; "" if no single rewrite makes the pass wrong.
        number: position of that rewrite in the pass, counted from 1; 0 if there is none. With
            `--fuel` one less, the pass is right.
        nodes: nodes of the imported function that the rewrite changes or the kernel computes.
        source: source lines of `nodes`.
        step: number and text of the kernel's first wrong schedule step; "" if unknown.
    """

    problem: str
    stage: str
    by: str
    rule: str = ""
    number: int = 0
    nodes: tuple[str, ...] = ()
    source: tuple[str, ...] = ()
    step: str = ""

    def __str__(self) -> str:
        text = f"{self.stage}: {self.by}: {self.problem}"
        if self.rule:
            text += f"\n  rewrite {self.number}, by {self.rule}"
        text += f"\n  in its kernel: {self.step}" if self.step else ""
        if self.nodes:
            text += f"\n  nodes: {', '.join(self.nodes)}"
        return text + (f"\n  from: {', '.join(self.source)}" if self.source else "")


def bisect(
    func: Func,
    stages: Stages,
    machine: Target | None = None,
    native: Runs | None = None,
    shown_steps: Shown | None = None,
    given: Arrays = (),
) -> Culprit | None:
    """Returns the first wrong step of a lowering, or None if every step is right.

    Args:
        stages: names and pipelines, as a backend has them.
        native: runs a lowered function in the backend's own code. It is checked last, one step of
            the program at a time.
        shown_steps: returns the schedule steps of a kernel, see `Lowering.steps`. If a kernel is
            wrong, its first wrong step is searched for.
        given: the program's own arguments, which are checked first.
    """
    truth = Truth(func, given=given)
    current, marks = marked(truth.func)
    for stage, passes in stages:
        for one in Pipeline(passes).passes:
            before = current
            try:
                result = Pipeline([one]).run(before, verify=False, target=machine)
                current = result.func
                truth.allow(result.inexact)
                problem = _problem(current, truth) if current is not before else ""
            except Exception as error:  # a pass that crashes is the first wrong step too
                problem = shown(error)
            if problem:
                blame = first_wrong(one, before, lambda f: _problem(f, truth), machine)
                if blame is None:
                    return Culprit(problem, stage, str(one))
                rewrite = blame.rewrite
                nodes, lines = _origins(marks, rewrite.source or _lines_of(before, rewrite.node))
                found = (rewrite.rule, blame.number, nodes or (rewrite.node,), lines)
                step = ""
                if shown_steps is not None and machine is not None:
                    step = _wrong_kernel_step(
                        before, rewrite.node, shown_steps, machine, truth.allowed
                    )
                return Culprit(blame.problem, stage, str(one), *found, step)
    return _wrong_step(current, marks, native) if native is not None else None


def _wrong_kernel_step(
    func: Func, name: str, shown_steps: Shown, machine: Target, allowed: Inexact
) -> str:
    """Returns the first schedule step after which the kernel of the value `name` is wrong.

    Returns "" if every step is right, or if the value has no kernel with schedule steps.
    """
    named = (node for block, node in in_bodies(func.body) if f"%{block.names.get(node)}" == name)
    group = next(named, None)
    kernels = shown_steps(group, machine) if group is not None else []
    if group is None or len(kernels) < 2:
        return ""
    truth = Truth(alone(group))
    truth.allow(allowed)
    for number, (text, _, kernel) in enumerate(kernels):
        try:
            problem = _problem(alone(kernel, kernels[0][-1].args), truth)
        except Exception as error:  # the verifier or the interpreter refuses it
            problem = shown(error)
        if problem:
            return f"{f'step {number}, `{text}`' if number else text}: {problem}"
    return ""


def frontend_culprit(captured: Captured, frontend: Frontend, eager: Executable) -> Culprit | None:
    """Compares the imported function with eager execution; returns the first wrong result.

    Runs it on its own arguments first. Other inputs keep the program's weights, and do not overflow
    in sums: frameworks accumulate some of them in double precision. Returns None if all results
    agree, or if the function has symbolic sizes.
    """
    func = captured.func
    if func.symbols:
        return None
    own = own_inputs(captured, frontend)
    kinds = [kind for kind in kinds_for(func) if kind not in OVERFLOWING]
    truth = Truth(func, given=own, kinds=kinds)
    weights = own[: len(captured.bound)]
    for kind in truth.kinds:
        inputs = [*weights, *truth.inputs[kind][len(weights) :]]
        ready = [encode(a, p.dtype) for a, p in zip(inputs, func.params, strict=True)]
        wanted = [decode(r, n.dtype) for r, n in zip(eager.run(ready), func.results, strict=True)]
        found = interpreted(func, inputs)
        for want, have, result in zip(wanted, found, func.results, strict=True):
            error = difference(want, have, result.dtype)
            if error > TOLERANCE.get(result.dtype.name, 0.0):
                name = f"%{func.body.names.get(result, result.op)}"
                text = f"{name} differs from eager by {error:.3g} of its largest value ({kind})"
                lines = func.body.locs.get(result, ())
                return Culprit(text, "frontend", "imported", "", 0, (name,), lines)
    return None


def _lines_of(func: Func, name: str) -> tuple[str, ...]:
    """Returns the source lines of the node that computes the value `name`.

    If the node is a fusion group, the source lines of the nodes in its body follow. Returns () if
    no node of the function has this name.
    """
    for block, node in walk(func.body):
        if f"%{block.names.get(node)}" == name:
            inside = (line for b in node.blocks for lines in b.locs.values() for line in lines)
            return (*block.locs.get(node, ()), *inside)
    return ()


def _origins(marks: Marks, lines: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the imported nodes whose marks occur in `lines`, and the source lines of these nodes.

    A mark is the name of an imported node; passes keep marks in place of source lines.
    """
    held = set(lines)
    nodes = tuple(mark for mark in marks if mark in held)
    return nodes, tuple(dict.fromkeys(line for n in nodes for line in marks[n].source))


def _problem(after: Func, truth: Truth) -> str:
    verify(after)
    held = overlaps(after)
    return str(held[0]) if held else truth.problem(after)


def _wrong_step(func: Func, marks: Marks, native: Runs) -> Culprit | None:
    """Runs each node of a lowered function alone, in native code and in the interpreter.

    Returns the first node whose native results differ from the interpreter's, or None if none does.
    """
    for node in func.nodes:
        if node.op in ("const", "item", "reshape", "param"):
            continue
        problem = _native_problem(step_alone(func.body, node), native)
        if problem:
            held = {x for b in node.blocks for lines in b.locs.values() for x in lines}
            held.update(func.body.locs.get(node, ()))
            nodes, lines = _origins(marks, held)
            name = f"%{func.body.names.get(node, node.op)} = {node.attrs.get('name', node.op)}"
            return Culprit(problem, "backend", name, "", 0, nodes, lines)
    return None


def _native_problem(func: Func, native: Runs) -> str:
    truth = Truth(func)
    truth.allow(NATIVE)
    for kind in truth.kinds:
        try:
            found = native(func, truth.inputs[kind])
        except StackError as error:
            return str(error).splitlines()[0]
        problem = truth.error(kind, as_list(tuple(found)))[1]
        if problem:
            return f"{problem} ({kind})"
    return ""

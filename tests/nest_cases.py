"""Groups as plain loop nests, and functions of one kernel, for the tests of steps."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from difflib import unified_diff
from math import prod
from typing import NamedTuple

import numpy as np
from random_programs import random_program

from stack.ir import Func, Node, parse
from stack.ir.builder import remade, results_of
from stack.ir.node import Block
from stack.ir.types import TensorType
from stack.passes.nest.emit import emit
from stack.passes.policies.step_lowering import plain_nest
from stack.passes.steps.loops import axes
from stack.passes.steps.primitives import Step, parse_steps, run_steps
from stack.passes.steps.rewrite import RULES
from stack.passes.tiling.frame import CannotTile
from stack.rewrite import Pipeline, random_inputs
from stack.target import Target, as_gpu

AXIS_SIZES = (1, 2, 3, 4, 7, 8, 16, 64)


def around(node: Node) -> Func:
    """A function of a group or a kernel alone, with a kernel that packs operands of it."""
    found = [_unpacked(a) for a in node.args]
    params = [Node("param", (), {"name": f"a{i}"}, a.type) for i, a in enumerate(found)]
    known = dict(zip(found, params, strict=True))
    return Func("g", Block(params, results_of(remade([node], known)[node])))


def _unpacked(operand: Node) -> Node:
    """The operand of the kernels that pack an operand of a kernel."""
    return _unpacked(operand.args[0]) if operand.op == "kernel" else operand


def group_in(text: str) -> Node:
    """The only group of a function, alone."""
    (group,) = (n for n in parse(text).nodes if n.op in ("fusion", "stream"))
    return next(n for n in around(group).nodes if n.op == group.op)


def fused(text: str) -> Node:
    """The only group of a function, or the one that pass fuse builds."""
    func = parse(text)
    is_fused = any(n.op == "fusion" for n in func.nodes)
    return group_in(str(func if is_fused else Pipeline("fuse").run(func).func))


def kernel_of(text: str, steps: str = "") -> Node:
    """The nest of the only group of a function, after steps."""
    return run_steps(emit(fused(text)), parse_steps(steps))


def groups(
    seeds: Sequence[int], most: int = 400, target: Target | None = None
) -> Iterator[tuple[Func, Node]]:
    """Groups of random programs with their plain nests; small enough to be interpreted."""
    for seed in seeds:
        func = Pipeline("canonicalize,fuse").run(random_program(seed).func).func
        for node in func.nodes:
            if node.op != "fusion":
                continue
            alone = around(node)
            (group,) = (n for n in alone.nodes if n.op == "fusion")
            values = (*group.blocks[0].params, *group.blocks[0].nodes)
            if max(prod(map(int, t.shape)) for v in values for t in v.types) > most:  # pyright: ignore[reportArgumentType]
                continue
            try:
                yield alone, plain_nest(group, target or as_gpu(None))
            except CannotTile:
                continue


def inside(kernel: Node) -> str:
    """The text of what a kernel does."""
    lines = str(around(kernel)).split("\n")
    first = next(k for k, line in enumerate(lines) if "= kernel(" in line)
    depth = len(lines[first]) - len(lines[first].lstrip())
    end = lines.index(" " * depth + "}", first)
    return "\n".join(line[depth + 2 :] for line in lines[first + 1 : end]).replace(" in global", "")


def altered(kernel: Node, old: str, new: str) -> Node:
    """The kernel with a part of its text, which has to be there, replaced."""
    text = str(around(kernel))
    assert old in text
    (made,) = (n for n in parse(text.replace(old, new)).nodes if n.op == "kernel")
    return made


def is_short(func: Func) -> bool:
    """True if a group has floats of 16 bits: a kernel rounds those only where it stores."""
    (group,) = (n for n in func.nodes if n.blocks)
    values = (*group.blocks[0].params, *group.blocks[0].nodes)
    return any(t.dtype.is_float and t.dtype.bits <= 16 for v in values for t in v.types)


def results(func: Func, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """The results of a function."""
    with np.errstate(all="ignore"):
        return [np.asarray(r) for r in _all(func.interpret(*arrays))]


class Drawn(NamedTuple):
    """A nest for random steps: its function, inputs, and results, that others may be `near`."""

    seed: int
    rng: random.Random
    func: Func
    kernel: Node
    arrays: Sequence[np.ndarray]
    want: list[np.ndarray]
    near: float


def drawn_nests(seeds: Sequence[int], found: Sequence[tuple[Func, Node]]) -> Iterator[Drawn]:
    """For each seed one of some nests, with what it computes of random inputs."""
    for seed in seeds:
        rng = random.Random(seed)
        func, kernel = rng.choice(found)
        arrays = random_inputs(func)
        try:
            want = results(around(kernel), arrays)
        except IndexError:
            continue  # what it is given to look up lies outside
        yield Drawn(seed, rng, func, kernel, arrays, want, 3e-2 if is_short(func) else 1e-4)


def wrong(
    kernel: Node, arrays: Sequence[np.ndarray], want: Sequence[np.ndarray], near: float
) -> str:
    """The difference of a kernel from the wanted results; "" if there is none."""
    made = around(kernel)
    if parse(str(made)) is not made:
        return "its text reads back as another kernel"
    for i, (have, expected) in enumerate(zip(results(made, arrays), want, strict=True)):
        if not close(have, expected, near):
            return f"result {i} differs"
    return ""


def gpu_nest(program: str, steps: str = "") -> Node:
    """The nest of the stream that a program becomes, or else of its only group, after steps."""
    func = Pipeline("canonicalize,stream{min_axis=2}").run(parse(program)).func
    streams = [n for n in func.nodes if n.op == "stream"]
    group = streams[0] if streams else fused(program)
    return run_steps(plain_nest(group, as_gpu(None)), parse_steps(steps))


def texts_differ(program: str, first: str, step: str, before: str, expected: str) -> str:
    """The differences of a kernel before or after a step, as text or in values; "" if none.

    Args:
        program: a program of one group, or of one stream.
        first: the steps before.
        step: the step.
        before: the text of the kernel before the step. Long lines are broken before attributes,
            types and bodies.
        expected: the text of the kernel after it.
    """
    kernel = gpu_nest(program, first)
    made = run_steps(kernel, parse_steps(step))
    for have, text in ((kernel, before), (made, expected)):
        want = re.sub(r"\n *(\{\(|\{\w+=|: \()", r" \1", text.strip())
        if inside(have) != want:
            lines = unified_diff(want.split("\n"), inside(have).split("\n"), lineterm="")
            return "\n".join(lines)
    arrays = random_inputs(around(kernel))
    return wrong(made, arrays, results(around(kernel), arrays), 1e-5)


def _all(found: object) -> tuple[object, ...]:
    return found if isinstance(found, tuple) else (found,)


def close(have: np.ndarray, want: np.ndarray, near: float) -> bool:
    """True if nearly all elements agree, nan with nan."""
    if have.shape != want.shape or not have.size:
        return have.shape == want.shape
    if want.dtype.kind in "biu":
        # what a float rounds to may jump where it is compared or made an integer
        return bool((have != want).mean() < 0.02)
    a, b = have.astype(np.float64), want.astype(np.float64)
    scale = np.abs(b[np.isfinite(b)]).max(initial=0)
    with np.errstate(invalid="ignore"):
        same = (np.abs(a - b) <= near * scale) | (a == b) | (np.isnan(a) & np.isnan(b))
    return bool(same.mean() > 0.98)


def _scalars(kernel: Node) -> list[str]:
    """Names of values of one element; one that is none, where there are none."""
    named = kernel.blocks[0].names.items()
    found = (v for n, v in named if isinstance(n.type, TensorType) and not n.tensor.rank)
    return sorted(found) or ["z"]


def drawn(rng: random.Random, kernel: Node) -> Step:
    """A step that may be legal for a kernel, or not: of any primitive."""
    known = [*axes(kernel), "z"]
    axis, other = rng.choice(known), rng.choice(known)
    size = rng.choice(AXIS_SIZES)
    memory = rng.choice([str(p.attrs["name"]) for p in kernel.blocks[0].params])
    points = ",".join(map(str, sorted(rng.sample(range(1, 9), rng.choice((1, 2))))))
    texts = [
        *(f"split {axis} {size} tail={tail}" for tail in ("mask", "front", "peel", "overlap")),
        *(f"{name} {axis}" for name in ("vectorize", "unroll", "rfactor", "compute_with", "block")),
        *(f"{name} {axis} {other}" for name in ("fuse", "reorder", "fission", "sink")),
        *(f"{name} {axis} {rng.choice((0, 1, 2, 3))}" for name in ("peel", "hold", "pipeline")),
        *(f"split {axis} {size}", f"vectorize {axis}", f"bind {axis} grid", "evict o0 first"),
        *("tensorize", "threads 2 2", f"rasterize {axis} 2"),
        *(f"microkernel {axis}", f"microkernel {axis}", f"pack {memory}"),
        *(f"accumulate k {size}", f"prefetch {memory}", f"pack {memory} once"),
        "compensate vpdpbusd",
        f"stage {rng.choice(_scalars(kernel))} local",
        *(f"partition {axis} {points}", f"specialize {axis}", f"specialize {axis} at={other}"),
        *(f"stage_mem {memory} {axis}", f"launch {size}", f"window {memory}"),
        *(f"{name} {axis}" for name in ("bound", "branch", "assume", "reverse")),
        *(f"bound {axis} where=cut", f"evict {memory} reuse"),
        *(f"rewrite {rule}" for rule in RULES),
    ]
    (step,) = parse_steps(rng.choice(texts))
    return step


__all__ = [
    "around",
    "close",
    "drawn",
    "fused",
    "gpu_nest",
    "groups",
    "inside",
    "is_short",
    "kernel_of",
    "random_inputs",
    "results",
    "texts_differ",
    "wrong",
]

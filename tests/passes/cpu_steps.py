"""The steps that policies of a CPU take for a function, and the kernels that they make."""

from __future__ import annotations

import numpy as np

from stack.ir import Func, parse, verify
from stack.ir.kernel_ops import access_parts
from stack.ir.node import Node, walk
from stack.ir.traits import is_generated, is_load, is_loop
from stack.passes.policies.lowerings import lowering_of
from stack.passes.policies.step_lowering import StepLowering
from stack.passes.tiling.frame import extent_of
from stack.passes.tiling.single_ops import alone, is_bare
from stack.rewrite import Pipeline, random_inputs
from stack.target import as_cpu, load


def steps_of(func: Func, target: str = "avx2") -> list[str]:
    """The steps of the kernels of all groups of a function, in order."""
    cpu = as_cpu(load(target))
    found: list[str] = []
    for node in Pipeline("fuse").run(func, target=cpu).func.nodes:
        group = alone(node) if is_bare(node) else node
        made = lowering_of(group, cpu) if is_generated(group) else None
        if isinstance(made, StepLowering):
            found += [text for text, _, _ in made.made().done[1:]]
    return found


def lowered(func: Func, target: str = "avx2", passes: str = "fuse,coalesce") -> Func:
    """A function whose groups are kernels of loops, all of them where no array is empty."""
    made = Pipeline(f"{passes},tile,distribute").run(func, target=load(target)).func
    verify(made)
    is_empty = any(0 in t.shape for n in (*func.params, *func.nodes) for t in n.types)
    assert is_empty or not any(map(is_generated, made.nodes)), "a group has no kernel"
    return made


def check_steps(text: str, steps: str, near: float = 1e-6) -> None:
    """A group takes these steps, and its kernel computes what it does."""
    func = parse(text)
    assert "; ".join(steps_of(func)) == steps
    args = random_inputs(func)
    found = lowered(func, passes="fuse").interpret(*args)
    np.testing.assert_allclose(found, func.interpret(*args), rtol=1e-5, atol=near)


def masks(func: Func) -> int:
    """Loads under a condition."""
    return sum(is_load(n) and access_parts(n)[1] is not None for n in all_nodes(func))


def widths(func: Func) -> set[int]:
    """Lanes of all vectors."""
    tiles = [t for n in all_nodes(func) for t in n.types if t.space == "tile" and t.rank]
    return {int(t.shape[0]) for t in tiles}


def extents(func: Func, kind: str) -> list[int]:
    """Iterations of all loops of a kind, outermost first."""
    loops = (n for n in all_nodes(func) if is_loop(n))
    return [extent_of(n) for n in loops if n.attrs["kind"] == kind]


def all_nodes(func: Func) -> list[Node]:
    """Values of all blocks, each once."""
    return list(dict.fromkeys(n for b, _ in walk(func.body) for n in (*b.params, *b.nodes)))

"""Random meshes and places for random programs, and the comparison with the whole program."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from stack.ir import Block, Func, Node
from stack.ir.data import round_bf16
from stack.ir.types import TensorType, TupleType
from stack.mesh.meshes import Mesh, MeshAxis, parse_mesh, size_of
from stack.mesh.sharding import DimSharding, Sharding
from stack.passes.propagate import Propagate
from stack.passes.reshard import Reshard
from stack.passes.spmd import Spmd
from stack.rewrite import Pipeline
from stack.run.mesh import SimulatedRun, simulate

Array = np.ndarray[Any, Any]
MESHES = tuple(
    map(parse_mesh, ("a=2", "a=4", "a=3", "a=2, b=2", "a=2, b=3", "a=3, b=2", "a=2, b=2, c=2"))
)


def random_sharding(mesh: Mesh, type_: TensorType, rng: random.Random) -> Sharding:
    """Each axis of the mesh, or a half of it, on a dim that has as many elements, or on none."""
    dims: list[list[MeshAxis]] = [[] for _ in type_.shape]
    axes = [mesh.axis(name) for name, _ in mesh.axes]
    rng.shuffle(axes)
    for axis in axes:
        parts = axis.split(2) if axis.size == 4 and rng.random() < 0.2 else (axis,)
        for part in parts:
            fits = [
                d
                for d, size in enumerate(type_.shape)
                if size_of([*dims[d], part]) <= int(str(size))
            ]
            if fits and rng.random() < 0.8:
                dims[rng.choice(fits)].append(part)
    made = tuple(DimSharding(tuple(found), rng.random() < 0.5) for found in dims)
    return Sharding(mesh, made)


def annotated(func: Func, mesh: Mesh, rng: random.Random) -> Func:
    """The function with places for some parameters, and for some results."""
    done: dict[Node, Node] = {}
    for p in func.params:
        if rng.random() < 0.8:
            type_ = p.tensor.with_sharding(random_sharding(mesh, p.tensor, rng))
            done[p] = Node("param", (), p.attrs, type_)
        else:
            done[p] = p
    for node in func.nodes:
        args = [done[a] for a in node.args]
        done[node] = Node(node.op, args, node.attrs, node.type, node.blocks)
    results = [done[r] for r in func.results]
    for i, r in enumerate(results):
        if rng.random() < 0.5 or not any(n.type.sharding for n in done.values()):
            type_ = r.tensor.with_sharding(random_sharding(mesh, r.tensor, rng))
            results[i] = Node("reshard", (r,), {}, type_)
    return Func(func.name, Block([done[p] for p in func.params], results), func.level)


def partition(func: Func) -> tuple[Func, Func]:
    """The planned program, and that of one rank; verified after every pass."""
    planned = Pipeline([Propagate(), Reshard()]).run(func).func
    return planned, Pipeline([Spmd()]).run(planned).func


def run(func: Func, arrays: Sequence[Array]) -> SimulatedRun:
    """Partition and run, with parts filled up by numbers that would show."""
    planned, local = partition(func)
    return simulate(planned, local, arrays, filler=77)


def function(node: Node) -> Func:
    """A function of one node, or of all its items."""
    results = [node]
    if isinstance(node.type, TupleType):
        count = len(node.type.items)
        results = [Node("item", (node,), {"index": i}, node.type.items[i]) for i in range(count)]
    return Func("f", Block(node.args, results))


def differences(want: Any, found: Sequence[Array], dtypes: Sequence[str]) -> str:
    """The differences of results; integers are to be equal, floats nearly."""
    wanted = list(want) if isinstance(want, tuple) else [want]
    for i, (w, f, dtype) in enumerate(zip(wanted, found, dtypes, strict=True)):
        w = np.asarray(w)
        if w.shape != f.shape or w.dtype != f.dtype:
            return f"result {i} is {f.dtype}{f.shape}, not {w.dtype}{w.shape}"
        if w.dtype.kind not in "fc":
            if not np.array_equal(w, f):
                return f"result {i} differs: {f.tolist()}, not {w.tolist()}"
            continue
        eps = {"bf16": 1e-2, "f16": 2e-3, "f32": 1e-5}.get(dtype, 1e-12)
        with np.errstate(invalid="ignore"):
            scale = np.abs(w[np.isfinite(w)]).max(initial=1.0)
            near = (np.abs(w - f) <= 64 * eps * scale) | (w == f) | (np.isnan(w) & np.isnan(f))
        if not near.all():
            return f"result {i} differs: {f.tolist()}, not {w.tolist()}"
    return ""


__all__ = ["MESHES", "annotated", "differences", "function", "partition", "random_sharding"]
_ = round_bf16

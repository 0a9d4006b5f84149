"""Inputs of a program's matmuls, from a sample of its arguments.

A file (`.npz`) has an array for each argument by its name, `[count, *shape]`, for `count` calls.
Without a file, floats are normal random numbers. The program is interpreted in NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stack.errors import UsageError
from stack.ir.func import Func
from stack.ir.interpreter import evaluate
from stack.ir.node import Node
from stack.ir.space import NumpySpace

Array = np.ndarray[Any, Any]
Calls = Sequence[tuple[Array, ...]]
MOST = 64  # most calls with random arguments


def calls(func: Func, file: str, enough: int) -> Calls:
    """Returns the arguments of sample calls: those in `file`, or else `enough` random ones, but at
    least one and at most MOST.

    Raises:
        UsageError: no such file, an argument that it lacks, has in another shape or for another
            number of calls, or one that cannot be random: no floats, or a symbolic size.
    """
    if file:
        return _of_file(func, Path(file))
    rng = np.random.default_rng(0)
    return [tuple(_drawn(p, rng) for p in func.params) for _ in range(max(1, min(enough, MOST)))]


def _of_file(func: Func, path: Path) -> Calls:
    if not path.is_file():
        raise UsageError(f"quantize: there is no sample {str(path)!r}")
    with np.load(path, allow_pickle=False) as held:
        arrays = [_stored(held, p, path) for p in func.params]
    counts = {len(a) for a in arrays}
    if len(counts) != 1:
        raise UsageError(f"quantize: {path} has {sorted(counts)} calls for its arguments")
    return list(zip(*arrays, strict=True))


def _stored(held: Any, p: Node, path: Path) -> Array:
    name = str(p.attrs["name"])
    if name not in held:
        raise UsageError(f"quantize: {path} has no {name!r}, only {', '.join(held) or 'nothing'}")
    array = held[name]
    if array.shape[1:] != p.shape:
        raise UsageError(
            f"quantize: {path} has {name!r} of shape {list(array.shape)}, not of calls by"
            f" {list(p.shape)}"
        )
    return array.astype(p.dtype.numpy)


def _drawn(p: Node, rng: np.random.Generator) -> Array:
    if not p.dtype.is_float or not all(isinstance(s, int) for s in p.shape):
        raise UsageError(
            f"quantize: no random values for {p.attrs['name']!r} ({p.type}): give"
            " sample=FILE.npz, with calls of each argument by its name"
        )
    return rng.standard_normal(tuple(map(int, p.shape))).astype(p.dtype.numpy)


def rows_of(x: Node) -> int:
    """Returns the number of rows of a matmul's left operand in one call: the product of its sizes
    but the last."""
    return math.prod(s for s in x.shape[:-1] if isinstance(s, int))


def seen(func: Func, arguments: Calls, nodes: Collection[Node]) -> dict[Node, Array]:
    """Runs a program for sample calls, and returns the values of some nodes, joined over all calls.

    A node's values are a matrix in f64 with its last axis as columns. Parameters may be asked for
    too. Nodes that never ran are left out.
    """
    wanted, found = set(nodes), {n: list[Array]() for n in nodes}

    def observe(node: Node, value: Any, _: Sequence[Any] = ()) -> None:
        if node in wanted:
            held = np.asarray(value)
            found[node].append(held.reshape(-1, held.shape[-1]).astype(np.float64))

    for given in arguments:
        evaluate(func.body, given, NumpySpace(), observe)
        for p, value in zip(func.params, given, strict=True):
            observe(p, value)
    return {n: np.concatenate(rows) for n, rows in found.items() if rows}

"""Runs what the pass `stream` made: streams tile by tile, everything else in the interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stack.ir import Block, Func, Node, evaluate
from stack.ir.space import NumpySpace
from stack.ir.streaming import interpret_in_tiles
from stack.ir.types import TupleType
from stack.rewrite import Pipeline

PREPARED = "inline,canonicalize,fold,decompose,canonicalize,layout,canonicalize"
# tile and parts of the axis: one element, a prime, all at once, parts that merge
RUNS = ((1, 1), (7, 1), (1 << 20, 1), (5, 3))


def prepared(func: Func) -> Func:
    """A captured function as the pass takes it."""
    return Pipeline(PREPARED).run(func).func


def streamed(func: Func, options: str = "min_axis=2") -> tuple[Func, list[str]]:
    """The function after the pass, verified, and what the pass had to say."""
    result = Pipeline(f"stream{{{options}}}").run(func, verbose=True)
    return result.func, [note for record in result.records for note in record.notes]


def streams(func: Func) -> list[Node]:
    return [n for n in func.nodes if n.op == "stream"]


def run_in_tiles(func: Func, arrays: Sequence[Any], tile: int, splits: int = 1) -> list[Any]:
    """Results, with every stream run in tiles of its axis."""
    env: dict[Node, Any] = dict(zip(func.params, arrays, strict=True))
    for node in func.nodes:
        args = [env[a] for a in node.args]
        if node.op == "stream":
            with np.errstate(all="ignore"):
                found = interpret_in_tiles(node, args, tile, splits)
            env[node] = found if isinstance(node.type, TupleType) else found[0]
        elif node.op == "item":
            env[node] = args[0][node.attrs["index"]]
        else:
            params = [Node("param", (), {"name": f"a{i}"}, a.type) for i, a in enumerate(node.args)]
            copy = Node(node.op, params, node.attrs, node.type, node.blocks)
            (env[node],) = evaluate(Block(params, (copy,)), args, NumpySpace())
    return [env[r] for r in func.results]


def check_tiles(func: Func, arrays: Sequence[Any], want: Sequence[Any], rtol: float) -> None:
    """The results of all runs agree with `want`, nan and infinities included."""
    for tile, splits in RUNS:
        for got, ref in zip(run_in_tiles(func, arrays, tile, splits), want, strict=True):
            largest = np.max(np.abs(ref[np.isfinite(ref)]), initial=1e-30)
            np.testing.assert_allclose(
                got, ref, rtol=rtol, atol=rtol * largest, err_msg=f"tile {tile}, {splits} parts"
            )

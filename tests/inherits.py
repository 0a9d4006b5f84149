"""Lists what each own backend generates: `python tests/inherits.py` prints the table.

Rows are families of ops and the streams that are derived, at small sizes, where the passes would
not pay; so they are asked to stream all the same.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import stream_inputs
import stream_torch
import torch
import torch.nn.functional as F

import stack
import stack.plugins as plugins
from stack.demos import gpu_attention, gpu_masks
from stack.explore.table import table
from stack.run.compile import lower
from stack.run.coverage import walk
from stack.run.record import Run
from stack.target import load

TARGETS = {"triton": "sm_90", "cuda": "sm_90", "mlir": "avx512"}
X = torch.randn(6, 40)
IMAGE = torch.randn(2, 8, 12, 12)

FAMILIES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "elementwise": (lambda x: torch.erf(x).exp() * x.sigmoid(), (X,)),
    "comparison, selection": (lambda x: torch.where(x > 0, x, -x), (X,)),
    "cast": (lambda x: x.to(torch.bfloat16), (X,)),
    "reshape, transpose": (lambda x: x.reshape(4, 60).t().contiguous(), (X,)),
    "slice, pad, concat": (lambda x: F.pad(torch.cat([x[:, 3:9], x[:, ::2]], 1), (1, 2)), (X,)),
    "gather": (lambda x, i: x[i], (X, torch.tensor([3, 0, 5]))),
    "scatter": (lambda x, i: x.index_add(0, i, x[:3]), (X, torch.tensor([3, 0, 3]))),
    "sum over rows": (lambda x: x.sum(1), (X,)),
    "sum over columns": (lambda x: x.sum(0), (X,)),
    "argmax": (lambda x: x.argmax(1), (X,)),
    "scan": (lambda x: x.cumsum(1), (X,)),
    "sort": (lambda x: x.sort(1).values, (X,)),
    "product": (lambda x: x @ x.t(), (X,)),
    "product, epilogue": (lambda x: torch.relu(x @ x.t() + 1), (X,)),
    "norm, product": (lambda x, w: F.layer_norm(x, (40,)) @ w, (X, torch.randn(40, 16))),
    "grouped product": (lambda x: x[None] @ x.t()[None].expand(3, -1, -1), (X,)),
    "convolution": (
        lambda x, w: F.conv2d(x, w, padding=1).relu(),
        (IMAGE, torch.randn(4, 8, 3, 3)),
    ),
    "window": (lambda x: F.max_pool2d(x, 3, 2), (IMAGE,)),
    "loop": (lambda x: _loop(x), (X,)),
}


def _loop(x: torch.Tensor) -> torch.Tensor:
    state = torch.zeros_like(x[:, 0])
    for step in range(40):
        state = torch.tanh(state + x[:, step])
    return state


def programs() -> Iterator[tuple[str, str, Callable[..., Any], tuple[Any, ...]]]:
    """Kind, name, function, arguments."""
    for name, (fn, args) in FAMILIES.items():
        yield "ops", name, fn, args
    for name in gpu_attention.VARIANTS:
        sizes = {"batch": 1, "heads": 4, "seq": 64, "width": 16}
        made = gpu_attention.attention(name, **sizes, device="cpu", dtype="float32")
        yield "G4", name, made.fn, made.args
    made = gpu_masks.decode(1, 64, device="cpu")
    yield "G5", "decode", made.fn, made.args
    for name, fn in stream_torch.PROGRAMS.items():
        arrays = stream_inputs.inputs(name, np.random.default_rng(0))
        yield "cascade", name, fn, tuple(map(torch.as_tensor, arrays))


def generated(backend: str, func: Any) -> str:
    """`1 kernel`, `3 kernels`, or with what else there is: `2 kernels; library: sort`."""
    made = plugins.load("stack.backends", backend)
    lowering = made.lowering
    stages = tuple((name, _eager_to_stream(text)) for name, text in lowering.stages)
    made = dataclasses.replace(made, lowering=dataclasses.replace(lowering, stages=stages))
    try:
        done = lower(func, made, Run(), target=load(TARGETS[backend]))
    except stack.errors.StackError as error:
        return f"refused: {str(error).splitlines()[0][:60]}"
    kernels, others = 0, dict[str, None]()
    for node in walk(done):
        if node.op == "kernel":
            kernels += 1
        elif node.op == "fusion" and node.attrs["kind"] == "library":
            others.update(dict.fromkeys(f"library: {n.op}" for n in node.blocks[0].nodes))
        elif node.op in ("opaque", "stream", "fusion"):
            others[node.op] = None
    text = f"{kernels} kernel" + "s" * (kernels != 1)
    return "; ".join([text, *others])


def _eager_to_stream(text: str) -> str:
    return re.sub(r"min_axis=\d+", "min_axis=2,balance=0", text)


def main() -> None:
    lines: list[list[object]] = []
    for kind, name, fn, args in programs():
        func = stack.trace(fn, *args)
        lines.append([kind, name, *(generated(b, func) for b in TARGETS)])
    print(table(["kind", "program", *TARGETS], lines))


if __name__ == "__main__":
    main()

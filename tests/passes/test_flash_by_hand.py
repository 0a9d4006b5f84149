"""Attention by a list of steps: the values, and the work of the kernel that the policy builds."""

from __future__ import annotations

from collections import Counter

import pytest
from nest_cases import around, random_inputs, results, wrong
from stream_harness import prepared
from stream_harness import streamed as with_streams

import stack
from stack.explore.lowering import Settings, inspect_target
from stack.explore.target import ExampleCall
from stack.ir import Node
from stack.ir.traits import is_loop, is_stream
from stack.passes.nest.emit import emit
from stack.passes.policies.gpu_streams import ProductStreams
from stack.passes.steps.loops import axes
from stack.passes.steps.primitives import parse_steps, run_steps
from stack.target import load

torch = pytest.importorskip("torch")

# the policy also cuts loops where a mask of positions hides blocks, and loads runs of tables
ELSE = {
    *("causal", "alibi", "softcap", "gqa", "finite_mask", "sink_column", "sink_floor"),
    *("softmax_plus_one", "learned"),
}
VARIANTS = ("window", "document", "differential", "bias", "full", *sorted(ELSE))


def stream_of(name: str, seq: int, width: int) -> Node:
    from stack.demos.gpu_attention import attention

    sizes = {"batch": 1, "heads": 4, "seq": seq, "width": width}
    made = attention(name, **sizes, device="cpu", dtype="float16")
    func, _ = with_streams(prepared(stack.trace(made.fn, *made.args)), "min_axis=2,balance=0")
    (stream,) = filter(is_stream, func.nodes)
    return stream


def by_hand(nest: Node, block: int = 64) -> str:
    """The steps of flash attention for a nest: heads, rows and columns, then the streamed axis."""
    names = list(axes(nest))
    heads, rows, columns = names[: names.index("r")]
    sums = [f"vectorize {axis}" for axis in names[names.index("r") + 1 :]]
    steps = [
        *(f"split {rows} {block}", f"split r {block}", "block r.1", *sums, "vectorize r.1"),
        *(f"vectorize {columns}", f"vectorize {rows}.1", "tensorize", f"bind {heads} grid"),
        *(f"bind {rows}.0 grid", "launch 4 stages=3"),
    ]
    return "; ".join(steps)


def work(kernel: Node) -> Counter[str]:
    """The loads, products and exponentials in serial loops, by shape. exp2 counts as exp."""
    loops = (n for n in kernel.blocks[0].all_nodes if is_loop(n, "serial"))
    nodes = [n for loop in loops for n in loop.blocks[0].nodes]
    found = (n for n in nodes if n.op in ("load", "dot", "exp", "exp2"))
    return Counter(f"{n.op.rstrip('2')} {n.type}" for n in found)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", VARIANTS)
def test_work(name: str) -> None:
    stream = stream_of(name, 256, 64)
    kernel = emit(stream)
    made = run_steps(kernel, parse_steps(by_hand(kernel)), load("sm_90"))
    attrs = {**stream.attrs, "schedule": "m=64@grid k=64@serial"}
    tiled = ProductStreams(stream.rebuilt(attrs=attrs), load("sm_90")).kernel()
    assert (work(made) == work(tiled)) == (name not in ELSE)
    products = [n for n in work(made).elements() if n.startswith("dot")]
    assert len(products) == (4 if name == "differential" else 2)


@pytest.mark.every(2)
@pytest.mark.parametrize("name", VARIANTS)
def test_values(name: str) -> None:
    func = around(stream_of(name, 80, 16))
    (stream,) = filter(is_stream, func.nodes)
    kernel, arrays = emit(stream), random_inputs(func)
    made = run_steps(kernel, parse_steps(by_hand(kernel, 32)), load("sm_90"))
    assert not wrong(made, arrays, results(func, arrays), 3e-2)


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_code(backend: str) -> None:
    def attention(q, k, v):
        o = torch.softmax(q @ k.transpose(-1, -2) * 0.125, -1) @ v
        return o

    args = (torch.zeros(2, 256, 64, dtype=torch.float16),) * 3
    steps = "split j 64; split r 64; block r.1; vectorize c; vectorize r.1; vectorize k; "
    steps += "vectorize j.1; tensorize; bind i grid; bind j.0 grid; launch 4"
    target = ExampleCall("attention", attention, args, "torch")
    run = inspect_target(target, Settings(backend, machine="sm_90", schedules=(f"o: {steps}",)))
    (kernel,) = run.kernels
    product = {"triton": "tl.dot(", "cuda": "multiply_64_f16<"}[backend]
    assert kernel.text.count(product) == 2

"""The order of a stream's programs."""

from __future__ import annotations

import pytest
from stream_harness import prepared, streamed

import stack
from stack.ir.node import walk
from stack.rewrite import Pipeline

torch = pytest.importorskip("torch")


def extents(name: str, seq: int, heads: int, batch: int) -> list[int]:
    """The extents of the grid's loops, the innermost last."""
    from stack.demos.gpu_attention import VARIANTS

    def made(*shape: int) -> object:
        return torch.empty(*shape, device="meta", dtype=torch.bfloat16)

    args = [made(batch, heads, seq, 64) for _ in range(3)]
    if name == "bias":
        args.append(made(heads, seq, seq))
    func, _ = streamed(prepared(stack.trace(VARIANTS[name], *args)), "min_axis=2,balance=150")
    func = Pipeline("fuse,schedule,blocks").run(func, schedules={"*": "m=128 k=64"}).func
    loops = [n for _, n in walk(func.body) if n.op == "loop" and n.attrs["kind"] == "grid"]
    return [n.blocks[0].params[0].attrs["extent"] for n in loops]


def test_what_does_not_depend_on_the_batch_is_read_once_for_all() -> None:
    assert extents("bias", 4096, 8, 3) == [8, 32, 3]


def test_what_the_cache_holds_stays_there() -> None:
    """Eight biases of 512 x 512 take 4 MB."""
    assert extents("bias", 512, 8, 3) == [3, 8, 4]


def test_without_such_an_operand_the_order_stays() -> None:
    assert extents("causal", 4096, 8, 3) == [3, 8, 32]

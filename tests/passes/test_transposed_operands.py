"""Operands that instructions multiply in pairs: transposed once, and depths padded for tiles."""

from __future__ import annotations

import numpy as np
import pytest
from kernel_cases import tile_group
from stream_harness import prepared, streamed
from stream_variants import normal

import stack
from stack import Pipeline
from stack.backends.mlir.views import mma_of
from stack.ir import Func, Node, parse, verify
from stack.ir.node import walk
from stack.ir.traits import is_contraction
from stack.passes.distribute import distribute_kernel
from stack.rewrite.engine import Replacement, replace
from stack.target import as_cpu, load

torch = pytest.importorskip("torch")

ON_CPUS = "stream{loops=cpu}"


def attended(rows: int, keys: int, width: int, dtype: str = "bfloat16") -> Func:
    args = [torch.zeros(8, n, width, dtype=getattr(torch, dtype)) for n in (rows, keys, keys)]
    return prepared(stack.trace(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, *args))


@pytest.mark.parametrize(
    "rows, dtype, target, count",
    [
        (512, "bfloat16", "amx", 1),
        (64, "bfloat16", "amx", 0),  # one program of rows
        (512, "float32", "amx", 0),
        (512, "bfloat16", "avx2", 0),  # it has no such instruction
    ],
)
def test_values_are_turned_once(rows: int, dtype: str, target: str, count: int) -> None:
    before = attended(rows, 512, 64, dtype)
    made = Pipeline(ON_CPUS).run(before, target=load(target)).func
    streams = [n for n in made.nodes if n.op == "stream"]
    assert sum(a.op == "transpose" for n in streams for a in n.args) == count
    assert Pipeline(ON_CPUS).run(made, target=load(target)).func is made


def test_turned_values_are_the_same(rng: np.random.Generator) -> None:
    before = attended(256, 128, 32)
    made = Pipeline(ON_CPUS).run(before, target=load("amx")).func
    assert any(a.op == "transpose" for n in made.nodes if n.op == "stream" for a in n.args)
    verify(made)
    arrays = [rng.standard_normal(p.shape).astype(p.dtype.numpy) for p in before.params]
    want = Pipeline("stream").run(before).func
    assert any(n.op == "stream" for n in want.nodes) and want is not made
    np.testing.assert_array_equal(made.interpret(*arrays), want.interpret(*arrays))


def kernels(func: Func, stream: Node) -> list[Func]:
    tiled = tile_group(stream, load("amx"))
    found: list[Func] = []
    for kernel in (tiled, distribute_kernel(tiled)):
        made = Func(func.name, replace(func.body, {stream: Replacement(kernel)}), func.level)
        verify(made)
        assert parse(str(made)) is made
        found.append(made)
    return found


@pytest.mark.parametrize("width", [64, 40, 80])
def test_depths_of_tiles(width: int, rng: np.random.Generator) -> None:
    """A tile takes 32 numbers along the depth. Products with other depths are by vectors."""
    args = [normal(rng, 1, n, width).to(torch.bfloat16) for n in (64, 128, 128)]
    func, _ = streamed(
        prepared(stack.trace(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v, *args)), ""
    )
    (stream,) = (n for n in func.nodes if n.op == "stream")
    want = torch.softmax((args[0].float() @ args[1].float().mT), -1) @ args[2].float()
    for made in kernels(func, stream):
        (kernel,) = (n for n in made.nodes if n.op == "kernel")
        dots = [n for _, n in walk(kernel.blocks[0]) if is_contraction(n)]
        rows = {mma.rows for dot in dots if (mma := mma_of(dot, as_cpu(load("amx"))))}
        assert rows == ({16} if width % 32 == 0 else {1, 16})
        with np.errstate(all="ignore"):
            got = made.interpret(*(a.float().numpy() for a in args))
        np.testing.assert_allclose(np.float32(got), want.numpy(), rtol=3e-2, atol=3e-2)

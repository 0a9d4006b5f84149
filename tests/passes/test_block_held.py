"""Long rows that are walked twice: the last tiles of the first walk are held for the second."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from stream_harness import prepared, streamed

import stack
from stack.ir import Block, Func, Node, parse, verify
from stack.ir.data import round_bf16
from stack.ir.node import walk
from stack.passes.policies import row_space, row_streams
from stack.passes.policies.reduction_loops import ReductionLoop
from stack.rewrite import Pipeline
from stack.target import Gpu, as_gpu

torch = pytest.importorskip("torch")
Tensor = Any
USUAL = as_gpu(None)
GPU = replace(USUAL, rows=replace(USUAL.rows, whole_share=0))  # no row is held whole


@pytest.fixture(autouse=True)
def short_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 64 elements, as of rows that are a few hundred times as long."""
    for module in (row_streams, row_space):
        monkeypatch.setattr(module, "TWICE", ReductionLoop(64, 1, 0, True))


def rms(x: Tensor, gain: Tensor) -> Tensor:
    y = x.float() if x.dtype != torch.float64 else x
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * gain


def shares(x: Tensor, gain: Tensor) -> Tensor:
    return torch.softmax(x, -1) * gain


def sum_only(x: Tensor, gain: Tensor) -> Tensor:
    return (x * gain).exp().sum(-1)


def kernel_of(fn: Any, x: Tensor, gain: Tensor) -> tuple[Func, list[Node]]:
    """The function as kernels, and all nodes in them."""
    func = streamed(prepared(stack.trace(fn, x, gain)), "min_axis=100")[0]
    result = Pipeline("fuse,blocks").run(func, target=GPU).func
    verify(result)
    assert parse(str(result)) is result
    assert {n.op for n in result.nodes} <= {"kernel", "item", "reshape"}
    return result, [n for _, n in walk(result.body)]


def kernel_block(func: Func) -> Block:
    """What the only kernel of a function does."""
    (kernel,) = (n for n in func.nodes if n.op == "kernel")
    return kernel.blocks[0]


def reads(block: Block, memory: str) -> int:
    """Elements of a row of an input that one program reads."""
    total = 0
    for node in block.nodes:
        if node.op == "load" and node.args[0].attrs["name"] == memory:
            total += int(np.prod([int(s) for s in node.shape]))
        if node.op != "loop":
            continue
        turns = int(node.blocks[0].params[0].attrs["extent"])
        if node.attrs.get("limited"):
            first, last = (int(a.attrs["value"].array) for a in node.args[:2])
            turns = last - first
        total += (turns if node.attrs["kind"] == "serial" else 1) * reads(node.blocks[0], memory)
    return total


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(("rows", "width", "again"), [(3, 256, 128), (2, 199, 128), (5, 601, 512)])
def test_a_part_of_a_row_is_read_once(
    rows: int, width: int, again: int, dtype: str, rng: np.random.Generator
) -> None:
    x, gain = (
        torch.from_numpy(rng.standard_normal(s).astype(np.float32)).to(getattr(torch, dtype))
        for s in ((rows, width), (width,))
    )
    result, nodes = kernel_of(rms, x, gain)
    tiles = -(-width // 64)
    held = min({"float32": 8, "bfloat16": 16, "float16": 16}[dtype], -(-tiles // 2))
    assert reads(kernel_block(result), "p0") == 64 * (2 * tiles - held)
    assert sum(n.op == "again" for n in nodes) == (held if dtype != "float32" else 0)
    assert 64 * tiles - 64 * held <= again
    arrays = [a.float().numpy() if dtype == "bfloat16" else a.numpy() for a in (x, gain)]
    got = np.asarray(result.interpret(*arrays), np.float64)
    want = rms(x.double(), gain.double()).numpy()
    tolerance = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 3e-3}[dtype]
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def test_infinite_values_and_nan() -> None:
    x = np.ones((3, 256), np.float32)
    x[0, 200], x[1, 3], x[2, 255] = np.inf, np.nan, -np.inf
    gain = torch.ones(256, dtype=torch.bfloat16)
    tensor = torch.from_numpy(round_bf16(x)).to(torch.bfloat16)
    result, _ = kernel_of(rms, tensor, gain)
    with np.errstate(all="ignore"):
        got = result.interpret(x, np.ones(256, np.float32))
    np.testing.assert_array_equal(np.isnan(got), np.isnan(rms(tensor, gain).float().numpy()))


def test_rows_that_are_read_once_hold_nothing(rng: np.random.Generator) -> None:
    x, gain = (torch.from_numpy(rng.standard_normal(s)).float() for s in ((3, 300), (300,)))
    for fn in (sum_only, shares):  # the steps of a softmax wait for each other: they read ahead
        _, nodes = kernel_of(fn, x.bfloat16(), gain.bfloat16())
        assert not any(n.op == "again" for n in nodes)
        assert not any(n.attrs.get("limited") for n in nodes if n.op == "loop")


@pytest.mark.parametrize("width", [256, 199, 601])
def test_reductions_that_are_no_stream(
    width: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a tile needs of the whole row is computed before the tiles that are held."""
    monkeypatch.setattr(Gpu, "tile_registers", 64)

    def mixed(x: Tensor) -> Tensor:
        y = x.float() if x.dtype != torch.float64 else x
        return (y.exp() / y.exp().sum(-1, keepdim=True) + y * (y * y).sum(-1, keepdim=True)) * 0.5

    x = torch.from_numpy(rng.standard_normal((3, width)).astype(np.float32)).bfloat16()
    func = prepared(stack.trace(mixed, x))
    result = Pipeline("fuse,blocks").run(func, target=GPU).func
    assert [n.op for n in result.nodes].count("kernel") == 1
    nodes = [n for _, n in walk(result.body)]
    tiles = -(-width // 64)
    held = sum(n.op == "again" for n in nodes)
    assert held == -(-tiles // 2)
    assert reads(kernel_block(result), "p0") == 64 * (2 * tiles - held)
    got = np.asarray(result.interpret(x.float().numpy()), np.float64)
    np.testing.assert_allclose(got, mixed(x.double()).numpy(), rtol=1e-5, atol=1e-5)

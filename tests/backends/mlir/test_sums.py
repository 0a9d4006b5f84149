"""Sums of f32 products in registers: the elements that one iteration of the loop takes."""

from __future__ import annotations

import re

import numpy as np
import pytest
from emulated_amx import NATIVE, compiled
from kernel_cases import tile_group

from stack.ir import Builder, param, tensor
from stack.passes.distribute import distribute_kernel
from stack.passes.tiling.single_ops import alone

pytest.importorskip("torch_mlir")


# an even axis, an odd one, blocks of sums that end inside of the axis, and two axes in one run
@pytest.mark.parametrize(
    ("depth", "places"),
    [((64,), 2), ((63,), 1), ((514,), 2), ((769,), 1), ((3, 6), 2), ((3, 3), 1)],
)
def test_an_even_axis_goes_two_by_two(
    depth: tuple[int, ...], places: int, rng: np.random.Generator
) -> None:
    names = " ".join("kl"[: len(depth)])
    x = rng.normal(size=(70, *depth)).astype(np.float32)
    w = rng.normal(size=(*depth, 96)).astype(np.float32)
    operands = [param(n, tensor("f32", *v.shape)) for n, v in (("x", x), ("w", w))]
    group = alone(Builder().dot(*operands, rule=f"m {names}, {names} n -> m n"))
    kernel = distribute_kernel(tile_group(group, NATIVE))
    text, run = compiled(kernel, NATIVE)
    out = np.full((70, 96), np.nan, np.float32)
    run(*(a.ctypes.data for a in (x, w, out)))
    axes = len(depth)
    want = np.tensordot(x.astype(np.float64), w.astype(np.float64), axes=axes)
    most = np.tensordot(np.abs(x).astype(np.float64), np.abs(w).astype(np.float64), axes=axes)
    assert np.all(np.abs(out - want) <= 2e-6 * most)
    sums = re.findall(r"(%sum\d+):(\d+) = scf\.for", text)[-1][1]  # of the innermost loop
    assert text.count("llvm.intr.fmuladd") == places * int(sums)

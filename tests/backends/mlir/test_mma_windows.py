"""Convolutions of bf16 by instructions for pairs, against windows in f64; AMX by functions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from emulated_amx import NATIVE, TILES, compiled
from kernel_cases import tile_group
from numpy.lib.stride_tricks import sliding_window_view

from stack.ir import parse
from stack.ir.data import decode, encode, round_bf16
from stack.ir.traits import is_fusion
from stack.ir.types import BF16
from stack.passes.distribute import distribute_kernel
from stack.rewrite import Pipeline
from stack.target import Cpu, cpu_at_hand

pytest.importorskip("torch_mlir")
has_vectors = pytest.mark.skipif(
    "avx512bf16" not in cpu_at_hand().features, reason="this CPU has no vdpbf16ps"
)


class Case(NamedTuple):
    """A convolution: sizes of its image, channels of a group, its results, its window."""

    places: tuple[int, ...]
    channels: int
    outs: int
    window: tuple[int, ...]
    stride: int = 1
    dilation: int = 1
    groups: int = 1


# places and results with and without a rest, taps in a row of four or less, blocks of taps
CASES = {
    "one tap of many": Case((20,), 32, 40, (1,), groups=2),
    "a line": Case((40,), 32, 70, (5,), 2),
    "taps with gaps": Case((19, 41), 32, 32, (3, 2), 1, 2),
    "groups": Case((6, 24), 32, 16, (3, 3), groups=3),
    "a volume": Case((4, 5, 20), 64, 16, (3, 2, 3)),
    "blocks of taps": Case((3, 36), 768, 64, (3, 3)),
    "rows of a part of a register": Case((8, 9), 32, 32, (3, 3)),
}


def check(case: Case, cpu: Cpu, rng: np.random.Generator) -> str:
    """The text of the kernel of a convolution, after its values have proved right."""
    rank, groups = len(case.places), case.groups
    image = rng.normal(size=(2, *case.places, groups * case.channels))
    weight = rng.normal(size=(groups * case.outs, case.channels, *case.window))
    x, w = (round_bf16(v.astype(np.float32)) for v in (image, weight))
    spans = [(k - 1) * case.dilation + 1 for k in case.window]
    axes = tuple(range(1, rank + 1))
    step = (slice(None), *[slice(None, None, case.stride)] * rank)
    taps = (..., *[slice(None, None, case.dilation)] * rank)
    windows = sliding_window_view(x.astype(np.float64), spans, axis=axes)[step][taps]
    split = windows.reshape(*windows.shape[: rank + 1], groups, case.channels, -1)
    flat = w.astype(np.float64).reshape(groups, case.outs, case.channels, -1)
    want = np.einsum("...gck,gock->...go", split, flat)
    want = want.reshape(*want.shape[: rank + 1], -1)
    numbers = {"stride": case.stride, "rhs_dilation": case.dilation, "lhs_dilation": 1}
    lists = {k: [v] * rank for k, v in (*numbers.items(), ("low", 0), ("high", 0))}
    w = np.moveaxis(w, 1, -1).copy()  # pairs of channels are contiguous
    text = f"""func @f(%x: bf16{list(x.shape)}, %w: bf16{list(w.shape)})
  -> (bf16{list(want.shape)}) at tensor {{
  %z = conv(%x, %w) {{channels_last=true, groups={groups},
    {", ".join(f"{k}={v}" for k, v in lists.items())}}} : bf16{list(want.shape)}
  return %z
}}"""
    func = Pipeline("unfold,fuse").run(parse(text), target=cpu).func
    (group,) = (n for n in func.nodes if is_fusion(n))
    made, run = compiled(distribute_kernel(tile_group(group, cpu)), cpu)
    stored = [encode(v, BF16) for v in (x, w)]
    out = encode(np.full(want.shape, np.nan, np.float32), BF16)
    run(*(a.ctypes.data for a in (*stored, out)))
    # sums are in f32 and rounded once: half a unit in the last of eight bits
    slack = 1e-6 * np.abs(want).max() * np.sqrt(flat.shape[-1] * case.channels)
    np.testing.assert_allclose(decode(out, BF16), want, rtol=2**-8, atol=slack)
    return made


@has_vectors
@pytest.mark.parametrize("name", CASES)
def test_vectors(name: str, rng: np.random.Generator) -> None:
    assert "dpbf16ps.512" in check(CASES[name], NATIVE, rng)


@has_vectors  # which round what the tiles sum
@pytest.mark.parametrize("name", CASES)
def test_tiles(name: str, rng: np.random.Generator) -> None:
    assert "tdpbf16ps" in check(CASES[name], TILES, rng)

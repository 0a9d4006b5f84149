"""Words of AutoAWQ and AutoGPTQ laid out anew stand for the same weights, and are made once."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from stack.hosted import find
from stack.ir.types import DTYPES, TensorType
from stack.ops.qgemm import w4a16_layouts
from stack.ops.qgemm.w4a16_cuda import zero
from stack.ops.qgemm.w4a16_layouts import kept, lay_awq, lay_gptq

DEPTH, COLUMNS, GROUP = 256, 40, 64


def packed(name: str) -> list[torch.Tensor]:
    packs = find(name).packs
    assert packs is not None
    held = map(torch.from_numpy, packs(torch.randn(COLUMNS, DEPTH).numpy(), GROUP))
    return [t.half() if t.is_floating_point() else t for t in held]


def weight_of(name: str, held: list[torch.Tensor]) -> torch.Tensor:
    exact = (t.double() if t.is_floating_point() else t for t in held)
    return find(name)(torch.eye(DEPTH, dtype=torch.float64), *exact).T


def laid_weight(words: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    """8 neighbours of k to 4 bytes, the last 4 in high halves."""
    fours = words.reshape(COLUMNS, -1, 4)
    codes = torch.stack([fours & 15, fours >> 4], 2).reshape(*steps.shape[:2], -1)
    scale, centre = steps.double()[..., None].unbind(2)
    return ((codes - centre + zero(steps.dtype)) * scale).reshape(COLUMNS, -1)


def test_awq() -> None:
    held = packed("qgemm.w4a16_awq")
    assert torch.equal(laid_weight(*lay_awq(*held)), weight_of("qgemm.w4a16_awq", held))


@pytest.mark.parametrize("is_ordered", [True, False])
def test_gptq(is_ordered: bool) -> None:
    held = packed("qgemm.w4a16_gptq")
    if not is_ordered:
        held[3] = held[3][torch.randperm(DEPTH)]
    words, steps, *order = lay_gptq(*held)
    weight = weight_of("qgemm.w4a16_gptq", held)
    assert torch.equal(laid_weight(words, steps), weight[:, order[0]] if order else weight)
    assert len(order) == (0 if is_ordered else 1)


def test_groups_of_several_sizes_are_weights_themselves() -> None:
    held = packed("qgemm.w4a16_gptq")
    held[3] = held[3].clamp(max=2)
    (weight,) = lay_gptq(*held)
    torch.testing.assert_close(
        weight.double(), weight_of("qgemm.w4a16_gptq", held).T, rtol=1e-3, atol=0
    )
    x = torch.randn(3, DEPTH).half()
    assert torch.equal(w4a16_layouts.gptq(x, *held), x @ weight)


def test_it_is_made_once_for_weights_as_they_are() -> None:
    held = packed("qgemm.w4a16_awq")
    first = kept(lay_awq, *held)
    assert kept(lay_awq, *(t.detach() for t in held)) is first
    held[0].bitwise_not_()
    second = kept(lay_awq, *held)
    assert not torch.equal(second[0], first[0])
    assert torch.equal(laid_weight(*second), weight_of("qgemm.w4a16_awq", held))


def test_nothing_is_kept_of_weights_that_are_gone_or_part_of_other_memory() -> None:
    before = {k for k, v in w4a16_layouts._KEPT.items() if v.is_alive}
    held = packed("qgemm.w4a16_awq")
    kept(lay_awq, *held)
    (made,) = {k for k, v in w4a16_layouts._KEPT.items() if v.is_alive} - before
    del held
    assert not w4a16_layouts._KEPT[made].is_alive
    arena = torch.cat([packed("qgemm.w4a16_awq")[0]] * 2)
    _, zeros, scales = packed("qgemm.w4a16_awq")
    first = kept(lay_awq, arena[:DEPTH], zeros, scales)
    assert kept(lay_awq, arena[:DEPTH], zeros, scales) is not first


@pytest.mark.parametrize(
    ("rows", "depth", "group", "scales", "why"),
    [
        (33, 256, 64, "bf16", "33 rows of x are more than 32"),
        (1, 256, 16, "bf16", "groups are 16 weights, not multiples of 32"),
        (1, 288, 96, "bf16", "groups are 96 weights, not multiples of 32 that fit 128"),
        (1, 320, 64, "bf16", "rows of 320 weights are not multiples of 128"),
        (1, 256, 64, "f16", "two element types"),
    ],
)
def test_refusals(rows: int, depth: int, group: int, scales: str, why: str) -> None:
    def type_of(dtype: str, *shape: int) -> TensorType:
        return TensorType(DTYPES[dtype], shape)

    x, groups = type_of("bf16", rows, depth), depth // group
    awq: list[Any] = [x, type_of("i32", depth, 8), type_of("i32", groups, 8)]
    gptq: list[Any] = [x, type_of("i32", depth // 8, 64), type_of("i32", groups, 8)]
    shared = type_of(scales, groups, 64)
    nf4 = x, type_of("u8", 64, depth // 2), type_of(scales, 64, groups)
    for name, types in (
        ("w4a16_awq", [*awq, shared]),
        ("w4a16_gptq", [*gptq, shared, type_of("i32", depth)]),
        ("nf4", nf4),
    ):
        assert find(f"qgemm.{name}").kernels[0].why_not(types, {}) == why

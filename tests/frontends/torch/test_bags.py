"""`embedding_bag`: every way to say what is in a bag, forward and backward, against eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import stack

Tensor = torch.Tensor
LINES = torch.tensor([[1, 3, 3], [5, 0, 1], [2, 2, 2], [0, 0, 4]])
INDICES = torch.tensor([4, 1, 1, 0, 3, 5, 2, 2, 0])
OFFSETS = {
    "plain": torch.tensor([0, 2, 5]),
    "empty": torch.tensor([0, 0, 4, 4, 9]),  # the second, the fourth and the last are empty
    "32 bits": torch.tensor([0, 3, 8], dtype=torch.int32),
}


def table(dtype: torch.dtype = torch.float64) -> Tensor:
    torch.manual_seed(0)
    return torch.randint(-3, 4, (6, 5)).to(dtype) / 2  # there are ties


def check(make: Any, *args: Tensor, **limits: float) -> None:
    """Values and gradients of a compiled function against eager's; nothing falls back."""
    floats = [a for a in args if a.is_floating_point()]
    compiled = stack.compile(make, *args)
    assert compiled.run.coverage["fallback"] == 0
    torch.testing.assert_close(compiled(*args), make(*args), **limits)
    found: list[list[Tensor | None]] = []
    for call in (torch.compile(make, backend="stack", dynamic=False), make):
        for a in floats:
            a.requires_grad_().grad = None
        out = call(*args)
        out.backward(torch.cos(torch.arange(out.numel())).reshape(out.shape).to(out.dtype))
        found.append([a.grad for a in floats])
    torch.testing.assert_close(*found, **limits)


@pytest.mark.each
@pytest.mark.parametrize("padding", [None, 2, -6])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_lines(mode: str, padding: int | None) -> None:
    def make(indices: Tensor, weight: Tensor) -> Tensor:
        return F.embedding_bag(indices, weight, mode=mode, padding_idx=padding)

    check(make, LINES, table())


@pytest.mark.each
@pytest.mark.parametrize("name", OFFSETS)
@pytest.mark.parametrize("padding", [None, 1])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_ranges(mode: str, padding: int | None, name: str) -> None:
    def make(indices: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
        return F.embedding_bag(indices, weight, offsets, mode=mode, padding_idx=padding)

    offsets = OFFSETS[name]
    check(make, INDICES.to(offsets.dtype), offsets, table())


@pytest.mark.every(2)
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_the_end_of_the_last_bag(mode: str) -> None:
    def make(indices: Tensor, offsets: Tensor, weight: Tensor) -> Tensor:
        return F.embedding_bag(indices, weight, offsets, mode=mode, include_last_offset=True)

    check(make, INDICES, torch.tensor([0, 2, 2, 9]), table())


@pytest.mark.parametrize("padding", [None, 3])
def test_weights_of_samples(padding: int | None) -> None:
    def lines(indices: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        return F.embedding_bag(
            indices, weight, mode="sum", per_sample_weights=scale, padding_idx=padding
        )

    def ranges(indices: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
        return F.embedding_bag(
            indices, weight, OFFSETS["empty"], mode="sum", per_sample_weights=scale,
            padding_idx=padding,
        )  # fmt: skip

    check(lines, LINES, table(), torch.linspace(-1, 2, 12, dtype=torch.float64).reshape(4, 3))
    check(ranges, INDICES, table(), torch.linspace(-1, 2, 9, dtype=torch.float64))


def test_sums_are_rounded_once() -> None:
    def make(indices: Tensor, weight: Tensor) -> Tensor:
        return F.embedding_bag(indices, weight, mode="sum")

    indices = torch.arange(256).reshape(2, 128)
    weight = 1 + torch.rand(256, 4, generator=torch.Generator().manual_seed(0)) / 16
    weight = weight.bfloat16()
    want = weight.double().reshape(2, 128, 4).sum(1).bfloat16()
    assert torch.equal(stack.compile(make, indices, weight)(indices, weight), want)


@pytest.mark.parametrize("option", ["scale_grad_by_freq", "max_norm"])
def test_what_keeps_the_way_of_torch(option: str) -> None:
    """A gradient of another kind, a table that is written to."""
    found: list[Any] = []
    for backend in ("stack", "eager"):
        bag = torch.nn.EmbeddingBag.from_pretrained(table(), freeze=False, **{option: True})
        out = torch.compile(bag, backend=backend)(LINES)
        out.square().sum().backward()
        found.append((out, bag.weight, bag.weight.grad))
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("kind", [torch.nn.Embedding, torch.nn.EmbeddingBag])
def test_sparse_gradients_are_torchs_and_counted(kind: Any) -> None:
    torch._dynamo.reset()
    module = kind(6, 5, sparse=True)
    dynamo = pytest.importorskip("stack.frontends.torch")
    known = len(dynamo.runs())
    with pytest.warns(UserWarning, match="runs op by op in torch: .*sparse_coo"):
        torch.compile(module, backend="stack", dynamic=False)(LINES).square().sum().backward()
    found, module.weight.grad = module.weight.grad, None
    module(LINES).square().sum().backward()
    assert found.layout is torch.sparse_coo
    torch.testing.assert_close(found.to_dense(), module.weight.grad.to_dense())
    coverage = dynamo.runs()[known:][-1].coverage
    assert coverage["fallback"] == coverage["ops"] > 0
    torch._dynamo.reset()
    strict = torch.compile(module, backend="stack", options={"strict": True})
    with pytest.raises(Exception, match="unsupported op"):
        strict(LINES).square().sum().backward()

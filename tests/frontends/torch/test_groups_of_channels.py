"""Group norms, and dense memory read by strides."""

from __future__ import annotations

from typing import Any

import pytest

import stack

torch = pytest.importorskip("torch")

SHAPES = ((2, 6, 5, 3), (1, 6, 7), (3, 6), (2, 6, 2, 3, 4))


@pytest.mark.each
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", ["f32", "bf16", "last"])
@pytest.mark.parametrize("is_affine", [True, False])
def test_group_norm(shape: tuple[int, ...], kind: str, is_affine: bool) -> None:
    if kind == "last" and len(shape) != 4:
        pytest.skip("channels last are of images")
    x = torch.randn(shape) * 3 + 100
    x = x.to(torch.bfloat16) if kind == "bf16" else x
    x = x.to(memory_format=torch.channels_last) if kind == "last" else x
    scale = [torch.randn(6).to(x.dtype) for _ in range(2)] if is_affine else [None, None]

    def norm(x: Any, *scale: Any) -> Any:
        return torch.nn.functional.group_norm(x, 3, *scale)

    compiled = stack.compile(norm, x, *scale, backend="mlir")
    got = compiled(x, *scale)
    exact = norm(x.double(), *(v if v is None else v.double() for v in scale))
    near = 2e-2 if kind == "bf16" else 1e-4
    torch.testing.assert_close(got.double(), exact, rtol=near, atol=near)
    assert got.stride() == norm(x, *scale).stride()
    assert compiled.run.coverage["library"] == compiled.run.coverage["fallback"] == 0


def test_gradients_of_a_group_norm() -> None:
    module = torch.nn.GroupNorm(3, 6)
    x = torch.randn(2, 6, 4, 5)
    grads: list[Any] = []
    for run in (module, torch.compile(module, backend="stack")):
        own = x.clone().requires_grad_()
        module.zero_grad()
        run(own).square().sum().backward()
        grads.append([own.grad, *(p.grad.clone() for p in module.parameters())])
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "size, stride",
    [((4, 3), (3, 1)), ((2, 1, 5), (5, 7, 1)), ((0, 3), (3, 1)), ((3, 4), (1, 3))],
)
@pytest.mark.parametrize("offset", [0, 2])
def test_dense_memory_is_a_view(size: Any, stride: Any, offset: int) -> None:
    def read(x: Any) -> Any:
        return torch.as_strided(x * 2, size, stride, offset) + 1

    x = torch.randn(3, 5)
    func = stack.trace(read, x)
    assert not [n for n in func.nodes if n.op == "gather"]
    assert torch.equal(stack.compile(read, x, backend="mlir")(x), read(x))


@pytest.mark.parametrize("size, stride", [((4, 3), (3, 2)), ((3, 4), (1, 2)), ((2, 5), (4, 1))])
def test_what_is_not_dense_is_gathered(size: Any, stride: Any) -> None:
    def read(x: Any) -> Any:
        return torch.as_strided(x * 2, size, stride) + 1

    x = torch.randn(3, 5)
    assert [n for n in stack.trace(read, x).nodes if n.op == "gather"]
    assert torch.equal(stack.compile(read, x, backend="mlir")(x), read(x))

"""Gradients of windows of several sizes and of repeated borders are compiled, and are right."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import stack

Tensor = torch.Tensor

PROGRAMS: dict[str, tuple[Callable[[Tensor], Tensor], tuple[int, ...]]] = {
    "windows of two sizes": (lambda x: F.adaptive_avg_pool2d(x, (4, 5)), (2, 3, 9, 8)),
    "windows of one size": (lambda x: F.adaptive_avg_pool2d(x, (3, 4)), (2, 3, 9, 8)),
    "more windows than elements": (lambda x: F.adaptive_avg_pool2d(x, (7, 11)), (1, 2, 3, 8)),
    "windows of a volume": (lambda x: F.adaptive_avg_pool3d(x, (3, 4, 2)), (1, 2, 5, 8, 3)),
    "means of a volume": (
        lambda x: F.avg_pool3d(x, (3, 2, 2), 2, 1, ceil_mode=True, count_include_pad=False),
        (1, 2, 5, 8, 5),
    ),
    "neighbouring channels": (lambda x: F.local_response_norm(x, 3), (2, 4, 5, 8)),
    "a line's border": (lambda x: F.pad(x, (2, 1), "replicate"), (2, 3, 5)),
    "a border of the only element": (lambda x: F.pad(x, (2, 1), "replicate"), (2, 3, 1)),
    "an image's border": (lambda x: F.pad(x, (2, 1, 3, 0), "replicate"), (2, 3, 5, 6)),
    "a border cut off": (lambda x: F.pad(x, (-2, 1, 2, -1), "replicate"), (2, 3, 5, 6)),
    "a volume's border": (lambda x: F.pad(x, (2, 1, 1, 1, 0, 2), "replicate"), (1, 2, 3, 5, 2)),
}
# torch computes maxima of windows of several sizes; their gradient is compiled
BY_TORCH = {
    "maxima of windows of two sizes": (lambda x: F.adaptive_max_pool2d(x, (4, 5)), (2, 3, 9, 8)),
}


@pytest.mark.parametrize("name", [*PROGRAMS, *BY_TORCH])
def test_gradients(name: str) -> None:
    torch.compiler.reset()
    program, shape = (PROGRAMS | BY_TORCH)[name]
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    exact, found = values.double().requires_grad_(), values.clone().requires_grad_()
    wanted = program(exact)
    wanted.sin().sum().backward()
    with stack.capture() as seen:
        got = torch.compile(program, backend="stack")(found)
        got.sin().sum().backward()
    torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)
    assert found.grad is not None
    torch.testing.assert_close(found.grad.double(), exact.grad, rtol=1e-5, atol=1e-5)
    by_torch = {op for run in seen.runs for op in run.coverage["fallback_ops"]}
    assert by_torch == ({"torch:aten.adaptive_max_pool2d.default"} if name in BY_TORCH else set())


def test_bilinear_forms_are_compiled() -> None:
    x, y, w, b = (torch.randn(s) for s in ((5, 3), (5, 4), (2, 3, 4), (2,)))
    compiled = stack.compile(F.bilinear, x, y, w, b)
    assert not compiled.run.coverage["fallback_ops"]
    wanted = F.bilinear(*(v.double() for v in (x, y, w, b)))
    torch.testing.assert_close(compiled(x, y, w, b).double(), wanted, rtol=1e-5, atol=1e-5)

"""`grid_sample` where coordinates are nan, infinite, far outside or on an edge."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
import torch.nn.functional as F

import stack

Tensor = torch.Tensor
NAN, INF = math.nan, math.inf
# eager's gradients of the first ones end the process where places are clipped
UNKNOWN = [
    (NAN, 0.0), (0.0, NAN), (INF, 0.3), (-INF, -0.2), (0.1, INF), (0.2, -INF), (NAN, NAN),
    (INF, -INF),
]  # fmt: skip
KNOWN = [
    (1e30, 0.0), (-1e30, 0.5), (0.3, -0.7), (2.5, -3.1), (1.0, 1.0), (-1.0, -1.0), (0.1, 0.25),
    (-0.6, 3.3),
]  # fmt: skip
MODES = list(
    itertools.product(("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection"))
)
FEW = [("bilinear", "zeros"), ("bilinear", "reflection"), ("nearest", "border")]
sweep = pytest.mark.slow


def sampled(modes: list[tuple[str, str]], x: Tensor, grid: Tensor, aligned: bool) -> list[Tensor]:
    return [
        F.grid_sample(x, grid, mode=mode, padding_mode=padding, align_corners=aligned)
        for mode, padding in modes
    ]


@pytest.mark.parametrize(
    ("dtype", "modes"),
    [
        (torch.float32, FEW),
        pytest.param(torch.float32, MODES, marks=sweep),
        pytest.param(torch.float64, MODES, marks=sweep),
    ],
)
def test_values_at_any_coordinate(dtype: torch.dtype, modes: list[tuple[str, str]]) -> None:
    def program(x: Tensor, grid: Tensor) -> list[Tensor]:
        both = (False,) if modes is FEW else (False, True)
        return [y for aligned in both for y in sampled(modes, x, grid, aligned)]

    torch.manual_seed(0)
    x = torch.randn(1, 2, 4, 5, dtype=dtype)
    grid = torch.tensor(UNKNOWN + KNOWN, dtype=dtype).view(1, 4, 4, 2)
    found = stack.compile(program, x, grid)(x, grid)
    for number, (a, b) in enumerate(zip(found, program(x, grid), strict=True)):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, equal_nan=True, msg=f"{number}")


@pytest.mark.parametrize(
    ("places", "modes"),
    [
        (KNOWN[2:], FEW[1:]),
        (UNKNOWN, FEW[:1]),
        pytest.param(KNOWN[2:], MODES, marks=sweep),
        pytest.param(UNKNOWN, [MODES[0], *MODES[3:]], marks=sweep),
    ],
)
def test_gradients(places: list[tuple[float, float]], modes: list[tuple[str, str]]) -> None:
    """Corners are aligned: places are on the edges, where clipped ones have no gradient."""

    def program(x: Tensor, grid: Tensor) -> Tensor:
        return torch.stack(sampled(modes, x, grid, True))

    torch.manual_seed(0)
    pictures = torch.randn(1, 2, 4, 5)
    grads: list[list[Tensor]] = []
    for call in (program, torch.compile(program, backend="stack", fullgraph=True)):
        x = pictures.clone().requires_grad_()
        grid = torch.tensor(places).view(1, -1, 1, 2).requires_grad_()
        made = call(x, grid)
        (made * torch.linspace(-1, 1, made.numel()).view(made.shape)).sum().backward()
        grads.append([x.grad, grid.grad])
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4, equal_nan=True)


@pytest.mark.each
@pytest.mark.parametrize(
    ("mode", "size"),
    [(m, (4, 5)) for m in FEW]
    + [pytest.param(m, s, marks=sweep) for m in MODES for s in ((1, 1), (1, 5), (4, 5))],
)
@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("wanted", ["both", "grid"])
def test_gradients_are_compiled(
    mode: tuple[str, str], size: tuple[int, int], aligned: bool, wanted: str
) -> None:
    def program(x: Tensor, grid: Tensor) -> Tensor:
        return sampled([mode], x, grid, aligned)[0]

    torch.manual_seed(0)
    pictures, places = torch.randn(2, 3, *size), 1.7 * torch.randn(2, 4, 6, 2)
    torch._dynamo.reset()
    grads: list[list[Tensor | None]] = []
    with stack.capture() as seen:
        for call in (program, torch.compile(program, backend="stack", fullgraph=True)):
            x = pictures.clone().requires_grad_(wanted == "both")
            grid = places.clone().requires_grad_()
            made = call(x, grid)
            (made * torch.linspace(-1, 1, made.numel()).view(made.shape)).sum().backward()
            grads.append([x.grad, grid.grad])
    for a, b in zip(*grads, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
    assert len(seen.runs) == 2
    assert not any(run.coverage["fallback"] for run in seen.runs)


def test_volumes_are_torchs() -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 2, 3, 4, 5)
    grid = torch.tensor([(*p, p[0]) for p in UNKNOWN]).view(1, 2, 2, 2, 3)

    def program(x: Tensor, grid: Tensor) -> list[Tensor]:
        return [F.grid_sample(x, grid, padding_mode=p, align_corners=False) for _, p in MODES[:3]]

    for a, b in zip(stack.compile(program, x, grid)(x, grid), program(x, grid), strict=True):
        torch.testing.assert_close(a, b, equal_nan=True)

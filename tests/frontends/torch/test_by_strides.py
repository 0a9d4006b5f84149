"""Calls that read and write memory by strides: results have eager's strides; views too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import stack

Tensor = torch.Tensor
Program = Callable[..., Any]


def from_torch(fn: Program, *args: Tensor) -> Program:
    torch._dynamo.reset()
    return torch.compile(fn, backend="stack", fullgraph=True, dynamic=False)


ENTRIES = pytest.mark.parametrize("entry", [stack.compile, from_torch], ids=["stack", "torch"])

MAKERS: dict[str, Program] = {
    "roll": lambda x: x.roll(-1, 0),
    "roll two": lambda x: x.roll((1, 2), (0, 3)),
    "flip": lambda x: x.flip(1),
    "clone": lambda x: x.clone(),
    "add": lambda x: x + 1,
    "cat": lambda x: torch.cat([x, x + 1], 1),
    "pad": lambda x: F.pad(x, (1, 1)),
    "where": lambda x: torch.where(x > 9, x, 0.0),
    "batch_norm": lambda x: F.batch_norm(x, None, None, training=True),
    "rrelu": lambda x: F.rrelu(x - 20),
    "slice_scatter": lambda x: x.slice_scatter(x[:1] * 2, 0, 0, 1),
    "roll, then more": lambda x: (x.roll(1, 1) * 2).relu(),
    "contiguous": lambda x: (x + 1).contiguous(),
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "permuted": lambda x: x.permute(3, 1, 0, 2),
    "plain": lambda x: x,
}


@pytest.mark.every(5)
@pytest.mark.parametrize("layout", LAYOUTS)
@ENTRIES
def test_memory_of_values_is_eagers(entry: Program, layout: str) -> None:
    x = LAYOUTS[layout](torch.arange(240.0).reshape(2, 5, 4, 6))
    for name, make in MAKERS.items():

        def program(x: Tensor, make: Program = make) -> Tensor:
            made = make(x)
            return torch.as_strided(made, (5, 10), (4, 1), 3)

        found = entry(program, x)(x)
        assert torch.allclose(found, program(x)), name


@ENTRIES
def test_what_rolls_lies_as_its_operand(entry: Program) -> None:
    for layout in LAYOUTS.values():
        x = layout(torch.arange(240.0).reshape(2, 5, 4, 6))
        found, want = entry(MAKERS["roll"], x)(x), x.roll(-1, 0)
        assert torch.equal(found, want)
        assert found.stride() == want.stride()


def filled(view: Program) -> Program:
    """Fills the diagonal of a view; gives it, and what it is a view of."""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        base = x + 1
        return view(base).fill_diagonal_(7.0) + 0, base

    return program


def through(write: Program) -> Program:
    """Writes through views of a value; gives what was written, and the value."""

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        base = x + 1
        return write(base) + 0, base

    return program


WRITES: dict[str, tuple[Program, tuple[int, ...]]] = {
    "reshape": (filled(lambda y: y.reshape(3, 3)), (9,)),
    "tall": (filled(lambda y: y), (7, 3)),
    "transposed": (filled(lambda y: y.t()), (4, 3)),
    "rows": (filled(lambda y: y[1:4]), (5, 3)),
    "plane": (filled(lambda y: y.permute(1, 0, 2)[0]), (3, 4, 3)),
    "cube": (filled(lambda y: y.view(2, 2, 2)), (8,)),
    "chunk": (filled(lambda y: y.chunk(2)[1]), (6, 3)),
    "wrap": (through(lambda y: y.fill_diagonal_(7.0, wrap=True)), (11, 3)),
    "argument": (lambda x: x.view(3, 3).fill_diagonal_(7.0), (9,)),
    "result alone": (lambda x: (x + 1).reshape(3, 3).fill_diagonal_(7.0), (9,)),
    "strides": (through(lambda y: y.view(3, 3).as_strided((3,), (4,)).fill_(5.0)), (9,)),
    "view": (through(lambda y: y.as_strided((3,), (4,)).view(3, 1).fill_(5.0)), (9,)),
    "part": (through(lambda y: y[2:].as_strided((2, 2), (3, 1)).add_(5.0)), (9,)),
    "scatter": (through(lambda y: y.view(3, 3).as_strided_scatter(y[:3], (3,), (4,))), (9,)),
    "scatter across": (through(lambda y: y.t().as_strided_scatter(y[0], (3,), (4,))), (4, 3)),
}


@pytest.mark.every(2)
@ENTRIES
@pytest.mark.parametrize("name", WRITES)
def test_writes_through_views(entry: Program, name: str) -> None:
    program, shape = WRITES[name]
    x = torch.arange(float(torch.Size(shape).numel())).reshape(shape)
    given, own = x.clone(), x.clone()
    found, want = entry(program, x.clone())(given), program(own)
    torch.testing.assert_close(found, want, rtol=0, atol=0)
    torch.testing.assert_close(given, own, rtol=0, atol=0)


@ENTRIES
def test_diagonals_of_integers_cut_fractions(entry: Program) -> None:
    def program(x: Tensor) -> Tensor:
        return (x + 1).reshape(3, 3).fill_diagonal_(-2.7)

    x = torch.arange(9)
    assert torch.equal(entry(program, x)(x), program(x))


@ENTRIES
def test_a_row_has_no_diagonal(entry: Program) -> None:
    def program(x: Tensor) -> Tensor:
        return (x + 1).fill_diagonal_(2.0)

    with pytest.raises(Exception, match="dimensions must larger than 1"):
        entry(program, torch.zeros(3))(torch.zeros(3))


def test_gradients_of_filled_diagonals() -> None:
    def program(x: Tensor) -> Tensor:
        return ((x * 2).reshape(3, 3).fill_diagonal_(2.0) ** 2).sum()

    a, b = (torch.arange(9.0).requires_grad_() for _ in range(2))
    program(a).backward()
    stack.compile(program, b)(b).backward()
    torch.testing.assert_close(a.grad, b.grad)

"""Arguments with strides are read in place: no copy, and nothing but their own elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stack

torch = pytest.importorskip("torch")

Make = Callable[[Any], Any]


def memory(*shape: int, dtype: Any = None) -> Any:
    drawn = np.random.default_rng().standard_normal(shape).astype(np.float32)
    return torch.from_numpy(drawn).to(dtype or torch.float32)


LAYOUTS: dict[str, Callable[[], Any]] = {
    "columns": lambda: memory(7, 26)[:, ::2],
    "odd columns": lambda: memory(7, 26)[:, 1::2],
    "columns of a transposed array": lambda: memory(26, 7)[1::2].T,
    "a slice": lambda: memory(9, 19)[1:-1, 4:17],
    "of q, k and v": lambda: memory(2, 5, 3, 4, 8)[:, :, 1].transpose(1, 2),
    "one row for all": lambda: memory(1, 13).expand(7, 13),
    "windows that overlap": lambda: memory(40).unfold(0, 13, 4),
    "steps in one axis": lambda: memory(30)[2::3],
    "axes of one element": lambda: memory(7, 1, 26)[:, :, ::2],
    "far apart": lambda: memory(7, 13, 33)[:, :, 31],
    "in half": lambda: memory(7, 26, dtype=torch.float16)[:, 1::2],
    "in bfloat16": lambda: memory(7, 39, dtype=torch.bfloat16)[:, 1::3],
    "in double": lambda: memory(7, 39, dtype=torch.float64)[:, 1::3],
}
PROGRAMS: dict[str, Make] = {
    "pointwise": lambda x: torch.tanh(x) * 2,
    "rows": lambda x: torch.softmax(x, -1),
    "columns": lambda x: x.sum(0),
    "product": lambda x: x @ torch.linspace(-1, 1, 3 * x.shape[-1]).to(x).view(-1, 3),
}


@pytest.fixture(autouse=True)
def _without_gradients() -> Any:
    with torch.no_grad():
        yield


def held(compiled: Any) -> list[int]:
    """Ranks of the parameters."""
    return [p.tensor.rank for p in compiled.graph.func.params]


def near(found: Any, wanted: Any, dtype: Any) -> None:
    tolerance = 2e-2 if dtype.itemsize == 2 else 1e-5
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.every(2)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_in_every_call(layout: str) -> None:
    x = LAYOUTS[layout]()
    for program in PROGRAMS.values():
        compiled = stack.compile(program, x)
        assert held(compiled) == [1]
        for _ in range(2):
            near(compiled(x), program(x.double()), x.dtype)
        if all(k.kind == "generated" for k in compiled.run.kernels):
            assert compiled.graph.direct is not None


@pytest.mark.parametrize("shape", [(7, 1), (1, 1)])
def test_rows_of_one_number_are_written_out(shape: tuple[int, int]) -> None:
    x = memory(*shape).expand(7, 13)
    for program in PROGRAMS.values():
        compiled = stack.compile(program, x)
        assert held(compiled) == [2]
        near(compiled(x), program(x.double()), x.dtype)


def test_another_offset_is_no_other_program() -> None:
    whole = memory(7, 26)
    compiled = stack.compile(torch.tanh, whole[:, ::2])
    for x in (whole[:, ::2], whole[:, 1::2]):
        near(compiled(x), torch.tanh(x.double()), x.dtype)
    assert len(compiled.graphs) == 1


def test_other_strides_are() -> None:
    whole = memory(13, 52)
    compiled = stack.compile(lambda x: torch.softmax(x, -1), whole[:, ::4])
    for x in (whole[:, ::4], whole[:, 13:26], whole[:, :13].T, memory(13, 13)):
        near(compiled(x), torch.softmax(x.double(), -1), x.dtype)


def test_what_lies_between_is_not_looked_at() -> None:
    whole = torch.full((7, 26), torch.nan)
    whole[:, ::2] = torch.tensor([torch.inf, -0.0, 1.5]).repeat(31)[: 7 * 13].view(7, 13)
    found = stack.compile(lambda x: x * 2, whole[:, ::2])(whole[:, ::2])
    assert torch.equal(found, whole[:, ::2] * 2)
    assert torch.equal(torch.signbit(found), torch.signbit(whole[:, ::2]))


def test_what_is_dense_is_a_parameter_of_its_shape() -> None:
    x = memory(7, 13)
    for given, rank in ((x, 2), (x.T, 2), (x[2:5], 2), (memory(92)[1:].view(7, 13), 2)):
        assert held(stack.compile(torch.tanh, given)) == [rank]


def test_places_are_copied() -> None:
    """The gap between elements need not be a multiple of an element."""
    places = torch.stack([torch.arange(5), torch.full((5,), 99)], 1)[:, 0]
    table = memory(5, 3)
    compiled = stack.compile(lambda t, i: t[i], table, places)
    for _ in range(2):
        assert torch.equal(compiled(table, places), table)
    places[3] = 5
    with pytest.raises(IndexError):
        compiled(table, places)


@pytest.mark.parametrize("shape", [(0, 26), (7, 0)])
def test_nothing_has_no_strides(shape: tuple[int, int]) -> None:
    x = memory(*shape)[:, ::2]
    assert stack.compile(torch.tanh, x)(x).shape == x.shape


def test_sizes_that_change_are_right() -> None:
    compiled = stack.compile(lambda x: torch.softmax(x, -1), memory(7, 26)[:, ::2], dynamic=True)
    for rows in (7, 5, 11):
        x = memory(rows, 26)[:, ::2]
        near(compiled(x), torch.softmax(x.double(), -1), x.dtype)


def test_a_program_that_writes_to_its_argument() -> None:
    whole = memory(7, 26)
    wanted = whole.double()
    wanted[:, 1::2] = wanted[:, 1::2] * 2 + 1

    def program(x: Any) -> Any:
        return x.mul_(2).add_(1).sum()

    compiled = stack.compile(program, whole[:, 1::2].clone(memory_format=torch.preserve_format))
    total = compiled(whole[:, 1::2])
    near(whole, wanted, whole.dtype)
    near(total, wanted[:, 1::2].sum(), torch.bfloat16)


def test_gradients_go_where_the_elements_are() -> None:
    whole = memory(7, 26)
    found, wanted = whole.clone().requires_grad_(), whole.double().requires_grad_()
    with torch.enable_grad():
        compiled = stack.compile(lambda x: torch.tanh(x).sum(), found[:, ::2])
        compiled(found[:, ::2]).backward()
        torch.tanh(wanted[:, ::2]).sum().backward()
    near(found.grad, wanted.grad, whole.dtype)

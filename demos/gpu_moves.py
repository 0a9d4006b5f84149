"""Memory-bound programs: gathers and their gradients, reductions, scalings."""

from __future__ import annotations

from collections.abc import Callable

import torch

from stack.measure.gpu_program import GpuProgram

Tensor = torch.Tensor


def twice_the_rows(table: Tensor, index: Tensor) -> Tensor:
    return table[index] * 2


def least(x: Tensor) -> Tensor:
    return x.amin(1)


def scaled_rows(a: Tensor, b: Tensor) -> Tensor:
    return torch.diag(a) @ b


def embedded(table: Tensor, index: Tensor) -> Tensor:
    return torch.nn.functional.embedding(index, table)


def _draw(*shape: int, device: str, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device=device).to(dtype)


def gather(rows: int = 8192, width: int = 4096, device: str = "cuda") -> GpuProgram:
    """Gathers rows of a table in any order."""
    table = _draw(32000, width, device=device)
    index = torch.randint(0, len(table), (rows,), device=device)
    moved = 2.0 * rows * width * table.element_size()
    return GpuProgram(twice_the_rows, (table, index), bytes=moved)


def embedding_gradient(
    rows: int = 8192, width: int = 4096, vocabulary: int = 32000, device: str = "cuda"
) -> GpuProgram:
    """Computes the gradient of a word table: rows are added at the index of their word."""
    table = _draw(vocabulary, width, device=device)
    index = torch.randint(0, vocabulary, (rows,), device=device)
    moved = (rows + vocabulary) * width * 2.0
    return GpuProgram(embedded, (table, index), bytes=moved, mode="backward", wanted=(0,))


def least_of_middle(
    shape: tuple[int, int, int] = (64, 1024, 1024), dtype: str = "float32", device: str = "cuda"
) -> GpuProgram:
    """Computes the minimum over the middle one of three axes."""
    x = _draw(*shape, device=device, dtype=getattr(torch, dtype))
    return GpuProgram(least, (x,), bytes=x.nbytes * (1 + 1 / shape[1]))


def diagonal_product(size: int = 8192, width: int = 4096, device: str = "cuda") -> GpuProgram:
    """Multiplies by a diagonal matrix, which scales rows."""
    a, b = _draw(size, device=device), _draw(size, width, device=device)
    return GpuProgram(scaled_rows, (a, b), bytes=a.nbytes + 2.0 * b.nbytes)


MOVES: dict[str, Callable[..., GpuProgram]] = {
    "gather": gather,
    "embedding_gradient": embedding_gradient,
    "least_of_middle": least_of_middle,
    "diagonal_product": diagonal_product,
}


def move(name: str, device: str = "cuda") -> GpuProgram:
    """Returns the program of `MOVES` with this name, in its default size."""
    return MOVES[name](device=device)

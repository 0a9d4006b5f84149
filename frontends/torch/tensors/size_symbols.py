"""Values of size symbols, from the tensors of a call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from stack.ir.dim import Expr, Symbol, substitute
from stack.ir.node import Node


def lone_symbol(size: Any) -> str | None:
    """Returns the name of a size that is a single symbol, else None."""
    if isinstance(size, Expr) and len(size.terms) == 1:
        monomial, coefficient = size.terms[0]
        if coefficient == 1 and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            return monomial[0].name
    return None


def size_number(size: Any, tensors: Sequence[torch.Tensor], params: Sequence[Node]) -> int:
    """Evaluates a size of a function for the tensors of its parameters."""
    if isinstance(size, int):
        return size
    found = substitute(size, {**size_values(tensors, params)})
    assert isinstance(found, int)
    return found


def size_values(tensors: Sequence[torch.Tensor], params: Sequence[Node]) -> dict[str, int]:
    """Returns the values of symbols that are a whole dimension of some shape."""
    values: dict[str, int] = {}
    for p, tensor in zip(params, tensors, strict=True):
        for dim, length in zip(p.shape, tensor.shape, strict=True):
            name = lone_symbol(dim)
            if name is not None:
                values[name] = int(length)
    return values

"""Converts symbolic sizes of `jax.export` to the IR's."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from stack.frameworks.jax_private import size_terms
from stack.ir.dim import Dim, floordiv, maximum, minimum, mod, mul, symbol

_OPERATIONS = {"floordiv": floordiv, "mod": mod, "max": maximum, "min": minimum}


class DimReader:
    """Converts sizes of JAX to sizes of the IR.

    Args:
        limits: inclusive upper bounds of symbols.
    """

    def __init__(self, limits: dict[str, int] | None = None) -> None:
        self.limits = limits or {}

    def shape(self, shape: Iterable[Any]) -> tuple[Dim, ...]:
        """Converts a shape, or any sequence of sizes."""
        return tuple(map(self.dim, shape))

    def dim(self, size: Any) -> Dim:
        """Converts one size."""
        terms = size_terms(size)
        if terms is not None:
            return _sum(mul(self._term(factors), count) for factors, count in terms)
        return operator.index(size)

    def _term(self, factors: Any) -> Dim:
        out: Dim = 1
        for factor, exponent in factors:
            for _ in range(exponent):
                out = mul(out, self._factor(factor))
        return out

    def _factor(self, factor: Any) -> Dim:
        if factor.var is not None:
            high = self.limits.get(factor.var)
            return symbol(factor.var) if high is None else symbol(factor.var, 1, high)
        if factor.operation not in _OPERATIONS:
            raise TypeError(f"the IR cannot express the size {factor}")
        return _OPERATIONS[factor.operation](*map(self.dim, factor.operands))


def _sum(dims: Iterable[Dim]) -> Dim:
    total: Dim = 0
    for dim in dims:
        total = total + dim
    return total


def known(shape: Sequence[Dim]) -> bool:
    """True if every size is a number."""
    return all(isinstance(d, int) for d in shape)

"""Converts torch's symbolic sizes to size expressions of the IR."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import sympy
import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

from stack.errors import StackError
from stack.frameworks.torch_private import sympy_functions
from stack.ir.builder import Builder
from stack.ir.dim import INF, Dim, add, floordiv, maximum, minimum, mod, mul, symbol
from stack.ir.node import Node
from stack.ir.types import BOOL, F64, TensorType

F = sympy_functions()


@dataclass
class Sizes:
    """Converts SymInts. Symbols get short names in order of first use.

    Attributes:
        symbols: the symbols that were used, and what they became.
    """

    symbols: dict[sympy.Symbol, Dim] = field(default_factory=dict[sympy.Symbol, Dim])
    _env: Any = None

    def dim(self, value: Any) -> Dim:
        """Converts an int or SymInt to a size.

        An expression that the IR cannot express (`floor(1.7 * s0)`) becomes its value in this call.
        Torch guards on the value, so a call with another one is captured again.

        Raises:
            StackError: if such an expression depends on data.
        """
        if isinstance(value, int):
            return value
        self.dim_env(value)
        try:
            return self.convert(value.node.expr)
        except StackError:
            if free_unbacked_symbols(value):
                raise
            return int(value)

    def broken(self, values: dict[str, int]) -> str | None:
        """Returns an assumption of tracing about sizes that is false for these values, or None."""
        known = {
            sym: sympy.Integer(values[str(size)])
            for sym, size in self.symbols.items()
            if str(size) in values
        }
        for sym, number in known.items():
            bounds = self._env.var_to_range.get(sym)
            if bounds is not None and not bounds.lower <= number <= bounds.upper:
                return f"{self.symbols[sym]} is between {bounds.lower} and {bounds.upper}"
        for guard in self._env.guards if self._env is not None else ():
            if guard.expr.free_symbols <= known.keys():
                if guard.expr.xreplace(known) == sympy.false:
                    names = {s: sympy.Symbol(str(d)) for s, d in self.symbols.items()}
                    return str(guard.expr.xreplace(names))
        return None

    def dim_env(self, value: Any) -> None:
        """Keep the shape environment of a value, which has the bounds of its symbols."""
        self._env = value.node.shape_env

    def shape(self, sizes: Any) -> tuple[Dim, ...]:
        return tuple(self.dim(s) for s in sizes)

    def _symbol(self, sym: sympy.Symbol) -> Dim:
        if sym not in self.symbols:
            low, high = -INF, INF  # a number that is not a size may be negative
            bounds = self._env.var_to_range.get(sym) if self._env is not None else None
            if bounds is not None:
                low = max(int(bounds.lower), -INF) if bounds.lower.is_Integer else -INF
                high = int(bounds.upper) if bounds.upper.is_Integer else INF
            letter = "u" if str(sym).startswith("u") else "s"
            name = f"{letter}{len(self.symbols)}"
            self.symbols[sym] = symbol(name, low, min(high, INF))
        return self.symbols[sym]

    def convert(self, expr: Any) -> Dim:
        """Converts a sympy expression to a size."""
        if isinstance(expr, sympy.Integer | int):
            return int(expr)
        if isinstance(expr, sympy.Symbol):
            return self._symbol(expr)
        if isinstance(expr, sympy.Pow):
            base, power = expr.args
            if not (power.is_Integer and int(power) > 0):
                raise StackError(f"the IR cannot express the size {expr}")
            return self._power(self.convert(base), int(power))
        parts = [self.convert(a) for a in expr.args]
        if isinstance(expr, sympy.Add):
            return _fold(add, parts)
        if isinstance(expr, sympy.Mul):
            return _fold(mul, parts)
        if isinstance(expr, F.CleanDiv | F.FloorDiv):
            return floordiv(parts[0], parts[1])
        if isinstance(expr, F.Mod | F.PythonMod):
            return mod(parts[0], parts[1])
        if isinstance(expr, F.ModularIndexing):
            return mod(floordiv(parts[0], parts[1]), parts[2])
        if isinstance(expr, sympy.Abs):
            return maximum(parts[0], mul(parts[0], -1))
        if isinstance(expr, F.Max):
            return _fold(maximum, parts)
        if isinstance(expr, F.Min):
            return _fold(minimum, parts)
        raise StackError(f"the IR cannot express the size {expr}")

    def _power(self, base: Dim, power: int) -> Dim:
        out: Dim = 1
        for _ in range(power):
            out = mul(out, base)
        return out


def _fold(op: Any, parts: list[Dim]) -> Dim:
    total = parts[0]
    for part in parts[1:]:
        total = op(total, part)
    return total


def is_size(value: Any) -> bool:
    """True if a traced value is an integer, not a tensor."""
    return isinstance(value, torch.SymInt) or (
        isinstance(value, int) and not isinstance(value, bool)
    )


def number_value(b: Builder, sizes: Sizes, value: Any) -> Node | Dim | None:
    """Converts a traced integer to a size, and a float or bool that sizes decide to a scalar node.

    Returns None for other bools: those that depend on data, and Python's.

    Raises:
        StackError: if the IR cannot express it.
    """
    if is_size(value):
        return sizes.dim(value)
    if isinstance(value, torch.SymFloat):
        sizes.dim_env(value)
        return _float(b, sizes, value.node.expr)
    if isinstance(value, torch.SymBool) and not free_unbacked_symbols(value):
        sizes.dim_env(value)
        return _truth(b, sizes, value.node.expr)
    return None


_COMPARED = {
    sympy.Eq: "eq", sympy.Ne: "ne", sympy.Lt: "lt", sympy.Le: "le", sympy.Gt: "gt", sympy.Ge: "ge",
}  # fmt: skip


def _truth(b: Builder, sizes: Sizes, expr: Any) -> Node:
    if expr in (sympy.true, sympy.false):
        return b.const(bool(expr), BOOL)
    if isinstance(expr, sympy.And | sympy.Or):
        parts = [_truth(b, sizes, a) for a in expr.args]
        op = "and" if isinstance(expr, sympy.And) else "or"
        return reduce(lambda x, y: b.op(op, [x, y]), parts)
    if isinstance(expr, sympy.Not):
        return b.op("not", [_truth(b, sizes, expr.args[0])])
    op = _COMPARED.get(type(expr))
    if op is None or not all(a.is_integer for a in expr.args):
        raise StackError(f"the IR cannot express the condition {expr}")
    return b.op(op, [b.size_of(sizes.convert(a)) for a in expr.args])


_FLOAT_BINARY = {
    F.IntTrueDiv: "div", F.FloatTrueDiv: "div", F.FloatPow: "pow", sympy.Pow: "pow",
    F.PowByNatural: "pow",
}  # fmt: skip


def _float(b: Builder, sizes: Sizes, expr: Any) -> Node:
    if expr.is_number:
        return b.const(float(expr), F64)
    if expr.is_integer:
        return b.cast(b.size_of(sizes.convert(expr)), type=TensorType(F64, ()))
    name = type(expr).__name__
    if name in ("ToFloat", "Identity"):
        return _float(b, sizes, expr.args[0])
    parts = [_float(b, sizes, a) for a in expr.args]
    if name.startswith("OpaqueUnaryFn_"):
        return b.op(name.removeprefix("OpaqueUnaryFn_"), parts)
    if isinstance(expr, sympy.Add | sympy.Mul):
        op = "add" if isinstance(expr, sympy.Add) else "mul"
        return reduce(lambda x, y: b.op(op, [x, y]), parts)
    for kind, op in _FLOAT_BINARY.items():
        if isinstance(expr, kind):
            return b.op(op, parts)
    raise StackError(f"the IR cannot express the number {expr}")

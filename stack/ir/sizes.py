"""Size symbols of a function: their values from the shapes of arguments, and numbers for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from stack.ir.data import Data
from stack.ir.dim import INF, Dim, Expr, Symbol, equal, substitute, symbols
from stack.ir.node import Attr, Block, Node, remade_block
from stack.ir.types import TensorType, TupleType, Type, type_symbols


def sizes_of(name: str, params: Sequence[Node], shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    """Values of size symbols from argument shapes; checks every shape.

    Raises TypeError or ValueError, which name the argument.
    """
    if len(shapes) != len(params):
        listed = ", ".join(str(p.attrs["name"]) for p in params)
        raise TypeError(f"@{name} takes {len(params)} arguments ({listed}), got {len(shapes)}")
    values: dict[str, int] = {}
    for p, shape in zip(params, shapes, strict=True):
        if len(shape) != p.tensor.rank:
            raise _misfit(p, shape)
        for dim, size in zip(p.shape, shape, strict=True):
            solved = _solve(dim, int(size))
            if solved is not None:
                values.setdefault(*solved)
    for p, shape in zip(params, shapes, strict=True):
        for dim, size in zip(p.shape, shape, strict=True):
            if equal(substitute(dim, values), int(size)) is not True:
                raise _misfit(p, shape)
            for s in symbols(dim):
                if not s.low <= values[s.name] <= s.high or values[s.name] % s.multiple:
                    raise _misfit(p, shape)
    return values


def _misfit(p: Node, shape: Sequence[int]) -> ValueError:
    ranges: list[str] = []
    for s in sorted(type_symbols(p.type), key=str):
        low = "" if s.low == -INF else s.low
        high = "" if s.high == INF else s.high
        multiple = f", a multiple of {s.multiple}" if s.multiple != 1 else ""
        ranges.append(f"{s.name} in {low}..{high}{multiple}")
    where = f" with {', '.join(ranges)}" if ranges else ""
    return ValueError(f"argument %{p.attrs['name']} is {p.type}{where}, got shape {list(shape)}")


def _solve(dim: Dim, size: int) -> tuple[str, int] | None:
    """Solves `dim = size` for the one symbol of the size expression `dim`. Returns the symbol's
    name and value; None unless `dim` is linear in exactly one symbol.
    """
    rest = size
    factor: tuple[str, int] | None = None
    for monomial, coefficient in dim.terms if isinstance(dim, Expr) else ():
        if not monomial:
            rest -= coefficient
        elif factor is None and len(monomial) == 1 and isinstance(monomial[0], Symbol):
            factor = monomial[0].name, coefficient
        else:
            return None
    return (factor[0], rest // factor[1]) if factor is not None else None


def substitute_sizes(body: Block, values: Mapping[str, int]) -> Block:
    """The same body with size symbols replaced by numbers, in types and attributes."""
    return _substitute(body, values, {})


def _substitute(block: Block, values: Mapping[str, int], mapping: dict[Node, Node]) -> Block:
    if not block.is_open:
        mapping = {}
    for p in block.params:
        attrs = {k: _attr(v, values) for k, v in p.attrs.items()}
        mapping[p] = Node(p.op, (), attrs, _type(p.type, values))
    for node in block.nodes:
        blocks = [_substitute(b, values, mapping) for b in node.blocks]
        args = [mapping[a] for a in node.args]
        attrs = {k: _attr(v, values) for k, v in node.attrs.items()}
        if node.op == "size" and isinstance(attrs["value"], int):
            data = Data(np.asarray(attrs["value"]), node.dtype)
            mapping[node] = Node("const", (), {"value": data}, TensorType(node.dtype, ()))
        else:
            mapping[node] = Node(node.op, args, attrs, _type(node.type, values), blocks)
    return remade_block(block, mapping)


def _type(type_: Type, values: Mapping[str, Dim]) -> Type:
    """A type with size symbols replaced."""
    if isinstance(type_, TupleType):
        items = tuple(
            replace(t, shape=tuple(substitute(d, values) for d in t.shape)) for t in type_.items
        )
        return TupleType(items)
    return replace(type_, shape=tuple(substitute(d, values) for d in type_.shape))


def _attr(value: Attr, values: Mapping[str, Dim]) -> Attr:
    """An attribute with size symbols replaced."""
    if isinstance(value, tuple):
        return tuple(_attr(v, values) for v in cast("tuple[Any]", value))
    return substitute(value, values) if isinstance(value, Expr) else value

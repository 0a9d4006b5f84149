"""Elementwise ops: unary, binary, compare, select and cast.

All operands have the same shape, except that operands of rank 0 are broadcast: their axis rule has
no axes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from stack.ir.algebra import ELEMENTWISE, NOTHING
from stack.ir.axes import Rule, names, plain
from stack.ir.dim import Dim
from stack.ir.node import Node
from stack.ir.ops import LEVELS, Applied, OpDef, Site, define
from stack.ir.types import BOOL, TensorType, Type

EVERYWHERE = frozenset(LEVELS)

# name: (dtype kinds of operands, scalar operations, description)
UNARY: dict[str, tuple[str, float, str]] = {
    "neg": ("iufc", 1, "-x"),
    "abs": ("iuf", 1, "|x|"),
    "sign": ("iuf", 1, "-1, a zero of either sign or 1; nan stays nan"),
    "not": ("biu", 1, "logical not of bool, bitwise not of integers"),
    "floor": ("f", 1, "largest integer <= x"),
    "ceil": ("f", 1, "smallest integer >= x"),
    "round": ("f", 1, "nearest integer, ties to even"),
    "trunc": ("f", 1, "integer part"),
    "sqrt": ("f", 1, "square root"),
    "rsqrt": ("f", 2, "1 / sqrt(x)"),
    "exp": ("f", 10, "e ** x"),
    "exp2": ("f", 8, "2 ** x"),
    "expm1": ("f", 12, "exp(x) - 1, accurate for small x"),
    "log": ("f", 10, "natural logarithm"),
    "log2": ("f", 10, "logarithm to base 2"),
    "log1p": ("f", 12, "log(1 + x), accurate for small x"),
    "sin": ("f", 12, "sine"),
    "cos": ("f", 12, "cosine"),
    "tan": ("f", 20, "tangent"),
    "asin": ("f", 20, "inverse sine"),
    "acos": ("f", 20, "inverse cosine"),
    "atan": ("f", 20, "inverse tangent"),
    "sinh": ("f", 20, "hyperbolic sine"),
    "cosh": ("f", 20, "hyperbolic cosine"),
    "tanh": ("f", 12, "hyperbolic tangent"),
    "asinh": ("f", 20, "inverse hyperbolic sine"),
    "acosh": ("f", 20, "inverse hyperbolic cosine"),
    "atanh": ("f", 20, "inverse hyperbolic tangent"),
    "sigmoid": ("f", 12, "1 / (1 + exp(-x))"),
    "erf": ("f", 15, "Gauss error function"),
    "erfinv": ("f", 30, "inverse of erf"),
    "lgamma": ("f", 40, "log of |gamma(x)|"),
    "digamma": ("f", 40, "derivative of lgamma"),
    "isnan": ("f", 1, "true if x is nan"),
    "isfinite": ("f", 1, "true if x is neither inf nor nan"),
}
BINARY: dict[str, tuple[str, float, str]] = {
    "add": ("biufc", 1, "x + y; or, of bool"),
    "sub": ("iufc", 1, "x - y"),
    "mul": ("biufc", 1, "x * y; and, of bool"),
    "div": ("iufc", 1, "x / y; integers truncate toward zero, x / 0 has all bits set"),
    "rem": ("iuf", 2, "remainder with the sign of x, as C's fmod; of integers by 0, x"),
    "pow": ("iuf", 25, "x ** y; of integers, 1 and -1 alone have negative powers"),
    "atan2": ("f", 25, "angle of the point whose y is operand 0 and x operand 1"),
    "max": ("biuf", 1, "larger; nan wins; of two zeros either"),
    "min": ("biuf", 1, "smaller; nan wins; of two zeros either"),
    "and": ("biu", 1, "logical or bitwise and"),
    "or": ("biu", 1, "logical or bitwise or"),
    "xor": ("biu", 1, "logical or bitwise exclusive or"),
    "shl": ("iu", 1, "x << y; 0 if y is negative or not below the width"),
    "shr": ("iu", 1, "x >> y, arithmetic if signed, else logical; a y out of range shifts out all"),
}
COMPARE: dict[str, str] = {
    "eq": "x == y",
    "ne": "x != y",
    "lt": "x < y",
    "le": "x <= y",
    "gt": "x > y",
    "ge": "x >= y",
}


def result_space(site: Site) -> str:
    """Returns the memory space of an elementwise result: "tile" if any operand is a tile, else
    "value".
    """
    return "tile" if any(a.tensor.space == "tile" for a in site.args) else "value"


def common_shape(site: Site, args: tuple[Node, ...]) -> tuple[Dim, ...]:
    """Returns the shape of an elementwise result: the one shape of all operands that are no
    scalars; () if all are scalars. Raises RuleError if two shapes differ.
    """
    shape: tuple[Dim, ...] | None = None
    for arg in args:
        if arg.tensor.rank == 0:
            continue
        if shape is None:
            shape = arg.shape
        elif arg.shape != shape:
            raise site.fail("operands of an elementwise op have one shape, or rank 0")
    return shape or ()


def _same_dtype(site: Site, args: tuple[Node, ...], kinds: str) -> TensorType:
    dtypes = {a.dtype for a in args}
    if len(dtypes) != 1:
        raise site.fail("operands have one element type; insert casts")
    dtype = args[0].dtype
    if dtype.kind not in kinds:
        raise site.fail(f"does not take {dtype}")
    return TensorType(dtype, common_shape(site, site.args), result_space(site))


def _elementwise_infer(kinds: str) -> Callable[[Site], Type]:
    return lambda site: _same_dtype(site, site.args, kinds)


def _bool_infer(kinds: str) -> Callable[[Site], Type]:
    return lambda site: _same_dtype(site, site.args, kinds).with_dtype(BOOL)


def elementwise_rule(node: Applied) -> Rule:
    """`a b, , a b -> a b`: every operand has all axes or none."""
    ranks = [a.tensor.rank for a in node.args]
    return _aligned(max(ranks), tuple([bool(rank) for rank in ranks]))


@lru_cache(maxsize=1 << 8)
def _aligned(rank: int, is_full: tuple[bool, ...]) -> Rule:
    axes = plain(names(rank))
    return Rule(tuple(axes if full else () for full in is_full), (axes,))


# rare ops as compositions of ops that every backend has
SPELLED: dict[str, Callable[[Any, Node], Node]] = {
    "isnan": lambda b, node: b.ne(node.args[0], node.args[0]),  # only nan differs from itself
}


def _elementwise(
    name: str,
    doc: str,
    arity: int,
    infer: Callable[[Site], Type],
    flops: float = 1,
) -> None:
    define(
        OpDef(
            name,
            doc,
            "elementwise",
            infer,
            rule=elementwise_rule,
            algebra=ELEMENTWISE.get(name, NOTHING),
            spelled=SPELLED.get(name),
            flops=flops,
            arity=arity,
            levels=EVERYWHERE,
        )
    )


for _name, (_kinds, _flops, _doc) in UNARY.items():
    _infer = _bool_infer(_kinds) if _name.startswith("is") else _elementwise_infer(_kinds)
    _elementwise(_name, _doc, 1, _infer, _flops)
for _name, (_kinds, _flops, _doc) in BINARY.items():
    _elementwise(_name, _doc, 2, _elementwise_infer(_kinds), _flops)
for _name, _doc in COMPARE.items():
    _elementwise(_name, _doc, 2, _bool_infer("biufc"))


def _select_infer(site: Site) -> Type:
    if site.args[0].dtype != BOOL:
        raise site.fail("the condition is bool")
    return _same_dtype(site, site.args[1:], "biufcs")


def hinted(site: Site) -> TensorType:
    """Returns the result type that the caller of `make` gave as `hint`. Raises RuleError if there
    is none.
    """
    if not isinstance(site.hint, TensorType):
        raise site.fail("the result type must be given")
    return site.hint


def _cast_infer(site: Site) -> Type:
    hint = hinted(site)
    if hint != site.args[0].tensor.with_dtype(hint.dtype):
        raise site.fail(f"a cast keeps the shape, asked for {hint}")
    if "s" in hint.dtype.kind + site.args[0].dtype.kind:
        raise site.fail("elements of storage types are bytes; bitcast them and compute")
    return hint


def _bitcast_infer(site: Site) -> Type:
    hint = hinted(site)
    source = site.args[0].tensor
    if hint != source.with_dtype(hint.dtype) or hint.dtype.bits != source.dtype.bits:
        raise site.fail(f"a bitcast keeps shape and width, asked for {hint}")
    if "b" in hint.dtype.kind + source.dtype.kind and hint.dtype != source.dtype:
        raise site.fail("a bitcast neither takes nor makes bool; compare or cast")
    return hint


_elementwise("select", "y where the bool operand is true, else z", 3, _select_infer)
_elementwise(
    "cast", "convert the element type; floats to integers truncate, to bool: x != 0", 1, _cast_infer
)
_elementwise(
    "bitcast",
    "same bits, another element type; the bits of a nan are unspecified",
    1,
    _bitcast_infer,
    0,
)

"""Complex numbers of JAX: stored with a last axis of two real words, computed as pairs.

Loops and branches carry the words like any array. Linear ops without a rule of their own are
applied to each part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stack.frontends.arithmetic import complex_functions
from stack.frontends.arithmetic.complex_pairs import Pair, magnitude
from stack.frontends.jax.jaxpr.element_words import is_complex
from stack.frontends.jax.lax.elementwise_ops import aligned, converted
from stack.frontends.jax.lax.lowering import LOWERINGS, Lowering, NoLowering, Site, dtype_of
from stack.ir.builder import constant
from stack.ir.node import Node
from stack.ir.types import BOOL

Rule = Callable[..., "Pair | Node"]
RULES: dict[str, Rule] = {}

# Primitives that are linear in all their complex operands, or move elements.
_BY_PART = frozenset({
    "add", "add_any", "broadcast_in_dim", "broadcast_to", "concatenate", "cumsum", "dynamic_slice",
    "dynamic_update_slice", "empty", "empty2", "expand_dims", "gather", "neg", "pad", "psum",
    "reduce_sum", "reshape", "rev", "scatter", "scatter-add", "scatter-sub", "slice", "split",
    "squeeze", "stack", "sub", "tile", "transpose", "unstack", "zeros_like",
})  # fmt: skip


def complex_equation(s: Site, lowering: Lowering | None, args: Sequence[Node]) -> Node | list[Node]:
    """Returns the results of an equation with complex operands or results.

    Raises:
        NoLowering: if there is no rule.
    """
    name, params = s.eqn.primitive.name, s.eqn.params
    given = [
        parts(s, x) if is_complex(v.aval) else x for x, v in zip(args, s.eqn.invars, strict=True)
    ]
    types = tuple(
        t.with_shape(t.shape[:-1]) if is_complex(v.aval) else t
        for t, v in zip(s.types, s.eqn.outvars, strict=True)
    )
    inner = Site(s.importer, s.eqn, types)
    if name in RULES:
        found = RULES[name](inner, *given, **params)
        return words(inner, found) if isinstance(found, Pair) else found
    if name not in _BY_PART or lowering is None:
        raise NoLowering("complex numbers")
    sides = [_side(inner, lowering, given, params, i) for i in (0, 1)]
    return [words(inner, Pair(re, im)) for re, im in zip(*sides, strict=True)]


def _side(
    s: Site, lowering: Lowering, given: Sequence[Pair | Node], params: dict[str, Any], i: int
) -> list[Node]:
    operands = [(x.re, x.im)[i] if isinstance(x, Pair) else x for x in given]
    if "fill_value" in params:  # of a gather; default: nan + 0i
        filler = complex(np.nan if params["fill_value"] is None else params["fill_value"])
        params = params | {"fill_value": (filler.real, filler.imag)[i]}
    made = lowering(s, *operands, **params)
    return [made] if isinstance(made, Node) else list(made)


# ---- words


def parts(s: Site, x: Node) -> Pair:
    """Returns the parts of words; the original parts if `words` joined them."""
    shape = x.shape[:-1]
    if x.op == "const":
        array = x.attrs["value"].array
        return Pair(constant(array[..., 0], x.dtype), constant(array[..., 1], x.dtype))
    if x.op == "concat" and [a.op for a in x.args] == ["reshape", "reshape"]:
        re, im = (a.args[0] for a in x.args)
        if re.shape == im.shape == shape and x.attrs["axis"] == x.tensor.rank - 1:
            return Pair(re, im)
    low, high = [0] * len(shape), [*shape]
    halves = (s.slice(x, [*low, i], [*high, i + 1]) for i in (0, 1))
    return Pair(*(s.reshape(half, shape) for half in halves))


def words(s: Site, x: Pair) -> Node:
    """Joins both parts along a new last axis."""
    columns = [s.b.reshape(p, type=p.tensor.with_shape((*p.shape, 1))) for p in (x.re, x.im)]
    return s.b.concat(*columns, axis=x.re.tensor.rank)


# ---- rules


def rule(*names: str) -> Callable[[Rule], Rule]:
    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return enter


def _together(s: Site, *values: Pair) -> list[Pair]:
    """Broadcasts all operands, as pairs, to the shape of the equation's result."""
    found = aligned(s, [p for v in values for p in (v.re, v.im)])
    return [Pair(*found[i : i + 2]) for i in range(0, len(found), 2)]


def _zero(s: Site, like: Node) -> Node:
    return s.fill(0, like.tensor)


@rule("complex")
def _complex(s: Site, re: Node, im: Node, **_: Any) -> Pair:
    re, im = aligned(s, (re, im))
    return Pair(*(x if x.tensor.rank else _spread(s, x) for x in (re, im)))


def _spread(s: Site, x: Node) -> Node:
    """Broadcasts a scalar to the shape of the equation's result."""
    type_ = x.tensor.with_shape(s.type.shape)
    return s.b.broadcast(x, axes=(), type=type_) if type_.rank else x


@rule("real")
def _real(s: Site, x: Pair, **_: Any) -> Node:
    return x.re


@rule("imag")
def _imag(s: Site, x: Pair, **_: Any) -> Node:
    return x.im


@rule("conj")
def _conj(s: Site, x: Pair | Node, **_: Any) -> Pair:
    return complex_functions.conjugate(s.b, x) if isinstance(x, Pair) else Pair(x, _zero(s, x))


@rule("convert_element_type")
def _convert(s: Site, x: Pair | Node, *, new_dtype: Any, **_: Any) -> Pair | Node:
    if isinstance(x, Node):
        re = s.cast(x, s.type.dtype)
        return Pair(re, _zero(s, re))
    if np.issubdtype(new_dtype, np.complexfloating):
        return Pair(s.cast(x.re, s.type.dtype), s.cast(x.im, s.type.dtype))
    if dtype_of(new_dtype) is BOOL:
        return s.b.or_(s.b.ne(x.re, 0.0), s.b.ne(x.im, 0.0))
    return converted(s, x.re, dtype_of(new_dtype))


@rule("mul")
def _mul(s: Site, x: Pair, y: Pair, **_: Any) -> Pair:
    x, y = _together(s, x, y)
    return complex_functions.product(s.b, x, y)


@rule("div")
def _div(s: Site, x: Pair, y: Pair, **_: Any) -> Pair:
    return complex_functions.c_quotient(s.b, *_together(s, x, y))


@rule("reduce_prod")
def _reduce_prod(s: Site, x: Pair, *, axes: Sequence[int], **_: Any) -> Pair:
    for axis in sorted(axes, reverse=True):
        size = x.re.shape[axis]
        if not isinstance(size, int) or not size:
            raise NoLowering("a product of an unknown number of factors, or of none")
        x = _product_along(s, x, axis, size)
        shape = [d for i, d in enumerate(x.re.shape) if i != axis]
        x = Pair(s.reshape(x.re, shape), s.reshape(x.im, shape))
    return x


def _product_along(s: Site, x: Pair, axis: int, size: int) -> Pair:
    """Returns the product of the `size` elements along an axis, which gets size 1.

    Multiplies one half of the axis by the other, recursively; the last element of an odd size comes
    last.
    """
    if size == 1:
        return x

    def cut(first: int, last: int) -> Pair:
        low, high = [0] * x.re.tensor.rank, [*x.re.shape]
        low[axis], high[axis] = first, last
        return Pair(s.slice(x.re, low, high), s.slice(x.im, low, high))

    half = size // 2
    found = _product_along(
        s, complex_functions.product(s.b, cut(0, half), cut(half, 2 * half)), axis, half
    )
    return complex_functions.product(s.b, found, cut(2 * half, size)) if size % 2 else found


@rule("square")
def _square(s: Site, x: Pair, **_: Any) -> Pair:
    """Computes `x * x`, with real part (re - im)(re + im), as XLA does: re * re may overflow."""
    b = s.b
    re = b.mul(b.sub(x.re, x.im), b.add(x.re, x.im))
    return Pair(re, b.mul(b.mul(x.re, x.im), 2.0))


@rule("integer_pow")
def _integer_pow(s: Site, x: Pair, *, y: int, **_: Any) -> Pair:
    one = Pair(s.fill(1, x.re.tensor), _zero(s, x.re))
    found = complex_functions.power(s.b, x, abs(y)) if y else one
    return found if y >= 0 else complex_functions.c_quotient(s.b, one, found)


@rule("eq", "ne")
def _compare(s: Site, x: Pair, y: Pair, **_: Any) -> Node:
    same = complex_functions.equal(s.b, *_together(s, x, y))
    return same if s.eqn.primitive.name == "eq" else s.b.not_(same)


@rule("abs")
def _abs(s: Site, x: Pair, **_: Any) -> Node:
    return magnitude(s.b, x)


@rule("sign")
def _sign(s: Site, x: Pair, **_: Any) -> Pair:
    return complex_functions.direction(s.b, x)


@rule(*complex_functions.FUNCTIONS)
def _function(s: Site, x: Pair, **_: Any) -> Pair:
    return complex_functions.FUNCTIONS[s.eqn.primitive.name](s.b, x)


@rule("dot_general", "conv_general_dilated")
def _bilinear(s: Site, x: Pair, y: Pair, **params: Any) -> Pair:
    lowering: Any = LOWERINGS[s.eqn.primitive.name]
    return complex_functions.product(s.b, x, y, lambda a, b: lowering(s, a, b, **params))

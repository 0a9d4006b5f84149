"""Rules for ops on complex numbers of torch: ops on pairs become ops on their parts.

Linear ops without a rule of their own, such as movements and sums, are applied to each part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from stack.frontends.arithmetic import complex_functions
from stack.frontends.arithmetic.complex_pairs import PART, Pair, magnitude
from stack.frontends.torch.aten.complex_numbers import foreign, is_complex, part_type, stacked
from stack.frontends.torch.aten.lowering import LOWERINGS, Context, NotLowered
from stack.ir.node import Node
from stack.ir.types import DType, TensorType

Rule = Callable[..., "Pair | Node"]
RULES: dict[str, Rule] = {}

# Ops that are linear in all their complex operands, or move elements.
_BY_PART = frozenset({
    "_reshape_alias", "_unsafe_view", "alias", "cat", "clone", "cumsum", "detach", "diagonal",
    "diagonal_scatter", "empty", "empty_like", "expand", "flip", "gather", "index", "index_add",
    "index_select", "mean", "neg", "new_empty", "new_zeros", "permute", "repeat", "reshape", "roll",
    "scatter_add", "select", "select_backward", "select_scatter", "slice", "slice_backward",
    "slice_scatter", "split", "split_with_sizes", "squeeze", "stack", "sum", "t", "transpose",
    "tril", "triu", "unbind", "unsqueeze", "view", "where", "zeros", "zeros_like",
})  # fmt: skip


def complex_call(
    cx: Context, name: str, args: Sequence[Any], kwargs: dict[str, Any], want: Any
) -> Any:
    """Imports an op with complex operands or results.

    Raises:
        NotLowered: if there is no rule.
    """
    short = name.split(".")[1] if name.count(".") == 2 else ""
    if short not in RULES:
        short = short.removesuffix("_copy")
    ready = [_ready(cx, a) for a in args]
    more = {k: _ready(cx, v) for k, v in kwargs.items()}
    if short in RULES:
        cx.want = want
        return RULES[short](cx, *ready, **more)
    lowering = LOWERINGS.get(name) or LOWERINGS.get(name.replace("_copy.", "."))
    if short not in _BY_PART or lowering is None:
        raise NotLowered("complex numbers")
    cx.want = part_type(want)
    sides = [
        lowering(cx, *_side(cx, ready, i), **{k: _side(cx, v, i) for k, v in more.items()})
        for i in (0, 1)
    ]
    if isinstance(sides[0], tuple | list):
        return tuple(Pair(re, im) for re, im in zip(*sides, strict=True))
    return Pair(*sides)


def _ready(cx: Context, value: Any) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_ready(cx, v) for v in value)
    return parts(cx, value) if isinstance(value, Node) and is_complex(value) else value


def _side(cx: Context, value: Any, i: int) -> Any:
    """Returns the real (`i` = 0) or imaginary (`i` = 1) part of a value, or of each of a list.

    The imaginary part of a float is 0; integers and other values are unchanged.
    """
    if isinstance(value, list | tuple):
        return type(value)(_side(cx, v, i) for v in value)
    if isinstance(value, Pair):
        return value.im if i else value.re
    if isinstance(value, complex):
        return value.imag if i else value.real
    if i and isinstance(value, Node) and value.dtype.kind == "f":
        return cx.full(0, value.tensor)
    if i and isinstance(value, float):
        return 0.0
    return PART.get(value, value) if isinstance(value, DType) else value


def _pair(cx: Context, value: Any) -> Pair:
    """Converts a number, real array or pair to a pair of the real type of the op's result."""
    kind = _kind(cx)
    if isinstance(value, Pair):
        return Pair(cx.cast(value.re, kind), cx.cast(value.im, kind))
    if isinstance(value, complex):
        return Pair(cx.scalar(value.real, kind), cx.scalar(value.imag, kind))
    re = cx.scalar(value, kind)
    return Pair(re, cx.full(0, re.tensor))


def _kind(cx: Context) -> DType:
    return part_type(cx.want).dtype


def rule(*names: str) -> Callable[[Rule], Rule]:
    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return enter


# ---- construction from parts, and access to parts


def parts(cx: Context, x: Node) -> Pair:
    """Returns the parts of a framework's complex array."""
    shape, part = x.shape, PART[x.dtype]
    return halves(cx, foreign(cx, "view_as_real", x, TensorType(part, (*shape, 2))))


def halves(cx: Context, x: Node) -> Pair:
    """Returns the two columns of the last axis as a pair."""
    axis = x.tensor.rank - 1
    return Pair(cx.select_at(x, axis, 0), cx.select_at(x, axis, 1))


@rule("view_as_complex")
def _view_as_complex(cx: Context, x: Node) -> Pair:
    return halves(cx, x)


@rule("view_as_real")
def _view_as_real(cx: Context, x: Pair) -> Node:
    return stacked(cx, x)


@rule("complex")
def _complex(cx: Context, re: Node, im: Node) -> Pair:
    return Pair(*_full_shape(cx, re, im))


@rule("polar")
def _polar(cx: Context, size: Node, angle: Node) -> Pair:
    return complex_functions.polar(cx.b, *_full_shape(cx, size, angle))


@rule("real")
def _real(cx: Context, x: Pair) -> Node:
    return x.re


@rule("imag")
def _imag(cx: Context, x: Pair) -> Node:
    return x.im


@rule("_conj", "conj", "_conj_physical", "conj_physical")
def _conj(cx: Context, x: Any) -> Pair:
    return complex_functions.conjugate(cx.b, _pair(cx, x))


@rule("resolve_conj", "resolve_neg", "contiguous", "lift_fresh")
def _same(cx: Context, x: Pair, **_: Any) -> Pair:
    return x


@rule("_neg_view")
def _neg(cx: Context, x: Pair) -> Pair:
    return complex_functions.each(cx.b, "neg", x)


@rule("_to_copy")
def _to_copy(cx: Context, x: Any, *, dtype: DType | None = None, **_: Any) -> Pair | Node:
    if is_complex(cx.want):
        return _pair(cx, x)
    return cx.cast(x.re, cx.want.dtype)


@rule("full", "full_like", "new_full", "ones", "ones_like", "new_ones", "scalar_tensor", "fill")
def _full(cx: Context, *args: Any, **_: Any) -> Pair:
    numbers = [a for a in args if isinstance(a, bool | int | float | complex)]
    value = complex(numbers[-1]) if numbers else 1 + 0j
    type_ = part_type(cx.want)
    return Pair(cx.full(value.real, type_), cx.full(value.imag, type_))


@rule("masked_fill")
def _masked_fill(cx: Context, x: Pair, mask: Node, value: Any) -> Pair:
    filler = _pair(cx, value)
    return Pair(cx.select(mask, filler.re, x.re), cx.select(mask, filler.im, x.im))


@rule("constant_pad_nd")
def _padded(cx: Context, x: Pair, amounts: Any, value: Any = 0) -> Pair:
    lowering, cx.want = LOWERINGS[cx.name], part_type(cx.want)
    number = complex(value)
    return Pair(lowering(cx, x.re, amounts, number.real), lowering(cx, x.im, amounts, number.imag))


# ---- arithmetic


def _full_shape(cx: Context, *values: Node) -> list[Node]:
    shape = cx.shape_of(*values)
    return [cx.broadcast(v, shape) for v in values]


def _aligned(cx: Context, x: Any, y: Any) -> tuple[Pair, Pair]:
    """Returns two operands as pairs of the same shape."""
    a, b = _pair(cx, x), _pair(cx, y)
    re, other_re = _full_shape(cx, a.re, b.re)
    im, other_im = _full_shape(cx, a.im, b.im)
    return Pair(re, im), Pair(other_re, other_im)


def _by_term(name: str) -> Rule:
    def run(cx: Context, x: Any, y: Any, *, alpha: Any = 1) -> Pair:
        if alpha != 1:
            y = complex_functions.product(cx.b, *_aligned(cx, y, alpha))
        return complex_functions.each(cx.b, name, *_aligned(cx, x, y))

    return run


RULES["add"], RULES["sub"] = _by_term("add"), _by_term("sub")
RULES["rsub"] = lambda cx, x, y, *, alpha=1: RULES["sub"](cx, y, x, alpha=alpha)


@rule("mul")
def _mul(cx: Context, x: Any, y: Any) -> Pair:
    return complex_functions.product(cx.b, *_aligned(cx, x, y))


@rule("div", "true_divide")
def _div(cx: Context, x: Any, y: Any) -> Pair:
    return complex_functions.quotient(cx.b, *_aligned(cx, x, y))


@rule("reciprocal")
def _reciprocal(cx: Context, x: Pair) -> Pair:
    return complex_functions.quotient(cx.b, *_aligned(cx, 1, x))


@rule("mm", "bmm", "mv", "dot")
def _product(cx: Context, x: Pair, y: Pair) -> Pair:
    lowering, cx.want = LOWERINGS[cx.name], part_type(cx.want)
    return complex_functions.product(cx.b, x, y, lambda a, b: lowering(cx, a, b))  # pyright: ignore


@rule("addmm")
def _addmm(cx: Context, bias: Any, x: Pair, y: Pair, *, beta: Any = 1, alpha: Any = 1) -> Pair:
    want, cx.name = cx.want, "aten.mm.default"
    made = _product(cx, x, y)
    cx.want = want
    return RULES["add"](cx, _mul(cx, bias, beta), made, alpha=alpha)  # pyright: ignore


@rule("eq", "ne")
def _compare(cx: Context, x: Any, y: Any) -> Node:
    cx.want = next(v for v in (x, y) if isinstance(v, Pair)).re.type
    same = complex_functions.equal(cx.b, *_aligned(cx, x, y))
    return same if cx.name.startswith("aten.eq") else cx.b.not_(same)


# ---- functions


@rule("abs")
def _abs(cx: Context, x: Pair) -> Node:
    return magnitude(cx.b, x)


@rule("angle")
def _angle(cx: Context, x: Pair) -> Node:
    return complex_functions.angle(cx.b, x)


@rule("sgn")
def _sgn(cx: Context, x: Pair) -> Pair:
    return complex_functions.direction(cx.b, x)


@rule(*complex_functions.FUNCTIONS)
def _function(cx: Context, x: Pair) -> Pair:
    return complex_functions.FUNCTIONS[cx.name.split(".")[1]](cx.b, x)


@rule("pow")
def _pow(cx: Context, x: Any, power: Any) -> Pair:
    """Expands a small integer power to products."""
    if not isinstance(power, int | float) or power != int(power) or not 1 <= power <= 8:
        raise NotLowered("a complex power other than of 1 to 8")
    return complex_functions.power(cx.b, _pair(cx, x), int(power))

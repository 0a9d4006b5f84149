"""Complex numbers as two real values: an op on them is ops on their parts.

What is linear and needs no rule of its own, such as a movement or a sum, is done to each part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from stack.frontends.aten import LOWERINGS, Context, NotLowered
from stack.frontends.torch_arrays import encode_call
from stack.ir.node import Node
from stack.ir.types import DTYPES, F32, F64, DType, TensorType

C64, C128 = DTYPES["c64"], DTYPES["c128"]
_PART = {C64: F32, C128: F64}
_WHOLE = {F32: C64, F64: C128}


@dataclass(frozen=True)
class Pair:
    """A complex value: its real and its imaginary part, of one shape."""

    re: Node
    im: Node


Rule = Callable[..., "Pair | Node"]
RULES: dict[str, Rule] = {}

# Complex results of real operands; torch would write to the parts of an array.
MADE_OF_PARTS = frozenset({"aten.complex.default", "aten.polar.default"})

# Ops that are linear in all their complex operands, or move them.
_BY_PART = frozenset({
    "_reshape_alias", "_unsafe_view", "alias", "cat", "clone", "cumsum", "detach", "diagonal",
    "diagonal_scatter", "empty", "empty_like", "expand", "flip", "gather", "index", "index_add",
    "index_select", "mean", "neg", "new_empty", "new_zeros", "permute", "repeat", "reshape", "roll",
    "scatter_add", "select", "select_backward", "select_scatter", "slice", "slice_backward",
    "slice_scatter", "split", "split_with_sizes", "squeeze", "stack", "sum", "t", "transpose",
    "tril", "triu", "unbind", "unsqueeze", "view", "where", "zeros", "zeros_like",
})  # fmt: skip


def part_type(type_: Any) -> Any:
    """The type of the parts of what has a complex type."""
    if isinstance(type_, tuple):
        return tuple(map(part_type, type_))
    is_whole = isinstance(type_, TensorType) and type_.dtype in _PART
    return type_.with_dtype(_PART[type_.dtype]) if is_whole else type_


def is_complex(value: Any) -> bool:
    """Whether a value, a type or something in a list of them is complex."""
    if isinstance(value, list | tuple):
        return any(map(is_complex, value))
    if isinstance(value, Node):
        value = value.type
    if isinstance(value, TensorType):
        return value.dtype in _PART
    return isinstance(value, Pair | complex) or value in (C64, C128)


# ---- from and to arrays of complex numbers, which only the framework has


def parts(cx: Context, x: Node) -> Pair:
    """The parts of a complex array of the framework's own."""
    shape, part = x.shape, _PART[x.dtype]
    return _halves(cx, _foreign(cx, "view_as_real", x, TensorType(part, (*shape, 2))))


def joined(cx: Context, value: Any) -> Any:
    """Values with complex arrays of the framework's own in place of pairs."""
    if isinstance(value, list | tuple):
        return type(value)(joined(cx, v) for v in value)
    if not isinstance(value, Pair):
        return value
    type_ = value.re.tensor
    return _foreign(
        cx, "view_as_complex", _stacked(cx, value), type_.with_dtype(_WHOLE[type_.dtype])
    )


def _foreign(cx: Context, name: str, x: Node, type_: TensorType) -> Node:
    operands: list[Node] = []
    attrs = {"target": f"torch:aten.{name}.default", "call": encode_call([x], {}, operands)}
    return cx.b.op("opaque", operands, attrs, hint=type_)


def _halves(cx: Context, x: Node) -> Pair:
    axis = x.tensor.rank - 1
    return Pair(cx.select_at(x, axis, 0), cx.select_at(x, axis, 1))


def _stacked(cx: Context, p: Pair) -> Node:
    columns = [cx.reshape(v, (*v.shape, 1)) for v in (p.re, p.im)]
    return cx.concat(columns, p.re.tensor.rank)


# ---- calls


def complex_call(
    cx: Context, name: str, args: Sequence[Any], kwargs: dict[str, Any], want: Any
) -> Any:
    """What an op with complex operands or results is.

    Raises:
        NotLowered: where there is no rule.
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
    """One part of everything: floats have no imaginary one."""
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
    return _PART.get(value, value) if isinstance(value, DType) else value


def _pair(cx: Context, value: Any) -> Pair:
    """A number, a real array or a pair, as a pair in the type that is wanted."""
    kind = _kind(cx)
    if isinstance(value, Pair):
        return Pair(cx.cast(value.re, kind), cx.cast(value.im, kind))
    if isinstance(value, complex):
        return Pair(cx.const(value.real, kind), cx.const(value.imag, kind))
    re = cx.scalar(value, kind)
    return Pair(re, cx.full(0, re.tensor))


def _kind(cx: Context) -> DType:
    return part_type(cx.want).dtype


def rule(*names: str) -> Callable[[Rule], Rule]:
    def enter(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        return function

    return enter


# ---- made of parts, and taken apart


@rule("view_as_complex")
def _view_as_complex(cx: Context, x: Node) -> Pair:
    return _halves(cx, x)


@rule("view_as_real")
def _view_as_real(cx: Context, x: Pair) -> Node:
    return _stacked(cx, x)


@rule("complex")
def _complex(cx: Context, re: Node, im: Node) -> Pair:
    shape = cx.shape_of(re, im)
    return Pair(cx.broadcast(re, shape), cx.broadcast(im, shape))


@rule("polar")
def _polar(cx: Context, size: Node, angle: Node) -> Pair:
    return Pair(*(_op(cx, "mul", size, _op(cx, f, angle)) for f in ("cos", "sin")))


@rule("real")
def _real(cx: Context, x: Pair) -> Node:
    return x.re


@rule("imag")
def _imag(cx: Context, x: Pair) -> Node:
    return x.im


@rule("_conj", "conj", "_conj_physical", "conj_physical")
def _conj(cx: Context, x: Any) -> Pair:
    pair = _pair(cx, x)
    return Pair(pair.re, _op(cx, "neg", pair.im))


@rule("resolve_conj", "resolve_neg", "contiguous", "lift_fresh")
def _same(cx: Context, x: Pair, **_: Any) -> Pair:
    return x


@rule("_neg_view")
def _neg(cx: Context, x: Pair) -> Pair:
    return Pair(_op(cx, "neg", x.re), _op(cx, "neg", x.im))


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


def _op(cx: Context, name: str, *values: Any) -> Node:
    return cx.elementwise(name, *values)


def _by_term(name: str) -> Rule:
    def run(cx: Context, x: Any, y: Any, *, alpha: Any = 1) -> Pair:
        a, b = _pair(cx, x), _pair(cx, y)
        if alpha != 1:
            b = _times(cx, b, _pair(cx, alpha))
        return Pair(_op(cx, name, a.re, b.re), _op(cx, name, a.im, b.im))

    return run


RULES["add"], RULES["sub"] = _by_term("add"), _by_term("sub")
RULES["rsub"] = lambda cx, x, y, *, alpha=1: RULES["sub"](cx, y, x, alpha=alpha)


def _times(cx: Context, a: Pair, b: Pair, of: Callable[[Node, Node], Node] | None = None) -> Pair:
    """A product, of elements or by another function that is linear in both."""
    of = of or (lambda x, y: _op(cx, "mul", x, y))
    re = _op(cx, "sub", of(a.re, b.re), of(a.im, b.im))
    return Pair(re, _op(cx, "add", of(a.re, b.im), of(a.im, b.re)))


@rule("mul")
def _mul(cx: Context, x: Any, y: Any) -> Pair:
    """A real factor scales both parts: 0 times an infinite part it has not is nothing."""
    for one, other in ((x, y), (y, x)):
        if not isinstance(one, Pair | complex):
            scale, pair = cx.scalar(one, _kind(cx)), _pair(cx, other)
            return Pair(_op(cx, "mul", pair.re, scale), _op(cx, "mul", pair.im, scale))
    return _times(cx, _pair(cx, x), _pair(cx, y))


@rule("div", "true_divide")
def _div(cx: Context, x: Any, y: Any) -> Pair:
    a = _pair(cx, x)
    if not isinstance(y, Pair | complex):
        scale = cx.scalar(y, _kind(cx))
        return Pair(_op(cx, "div", a.re, scale), _op(cx, "div", a.im, scale))
    return _quotient(cx, a, _pair(cx, y))


@rule("reciprocal")
def _reciprocal(cx: Context, x: Pair) -> Pair:
    return _quotient(cx, _pair(cx, 1), x)


def _quotient(cx: Context, a: Pair, b: Pair) -> Pair:
    """By b scaled by its larger part, so that no square overflows."""
    larger = _op(cx, "max", _op(cx, "abs", b.re), _op(cx, "abs", b.im))
    c = Pair(_op(cx, "div", b.re, larger), _op(cx, "div", b.im, larger))
    size = _op(cx, "add", _op(cx, "mul", c.re, c.re), _op(cx, "mul", c.im, c.im))
    size = _op(cx, "mul", size, larger)
    top = _times(cx, a, Pair(c.re, _op(cx, "neg", c.im)))
    return Pair(_op(cx, "div", top.re, size), _op(cx, "div", top.im, size))


@rule("mm", "bmm", "mv", "dot")
def _product(cx: Context, x: Pair, y: Pair) -> Pair:
    lowering, cx.want = LOWERINGS[cx.name], part_type(cx.want)
    return _times(cx, x, y, lambda a, b: lowering(cx, a, b))


@rule("addmm")
def _addmm(cx: Context, bias: Any, x: Pair, y: Pair, *, beta: Any = 1, alpha: Any = 1) -> Pair:
    want, cx.name = cx.want, "aten.mm.default"
    made = _product(cx, x, y)
    cx.want = want
    return RULES["add"](cx, _mul(cx, bias, beta), made, alpha=alpha)  # pyright: ignore


@rule("eq", "ne")
def _compare(cx: Context, x: Any, y: Any) -> Node:
    cx.want = next(v for v in (x, y) if isinstance(v, Pair)).re.type
    a, b = _pair(cx, x), _pair(cx, y)
    is_equal = cx.name.startswith("aten.eq")
    same = [_op(cx, "eq" if is_equal else "ne", p, q) for p, q in ((a.re, b.re), (a.im, b.im))]
    return _op(cx, "and" if is_equal else "or", *same)


# ---- functions


@rule("abs")
def _abs(cx: Context, x: Pair) -> Node:
    cx.want = x.re.type
    return LOWERINGS["aten.hypot.default"](cx, x.re, x.im)


@rule("angle")
def _angle(cx: Context, x: Pair) -> Node:
    return _op(cx, "atan2", x.im, x.re)


@rule("sgn")
def _sgn(cx: Context, x: Pair) -> Pair:
    size = _abs(cx, x)
    is_zero = _op(cx, "eq", size, 0.0)
    size = cx.select(is_zero, 1.0, size, x.re.dtype)  # pyright: ignore[reportArgumentType]
    return Pair(_op(cx, "div", x.re, size), _op(cx, "div", x.im, size))


@rule("exp")
def _exp(cx: Context, x: Pair) -> Pair:
    return _polar(cx, _op(cx, "exp", x.re), x.im)  # pyright: ignore[reportReturnType]


@rule("log")
def _log(cx: Context, x: Pair) -> Pair:
    return Pair(_op(cx, "log", _abs(cx, x)), _angle(cx, x))  # pyright: ignore


@rule("cos", "sin", "cosh", "sinh")
def _circular(cx: Context, x: Pair) -> Pair:
    """By cosh(a + bi) = cosh a cos b + i sinh a sin b, and its kin."""
    name = cx.name.split(".")[1]
    is_real_first = name in ("cosh", "sinh")
    a, b = (x.re, x.im) if is_real_first else (x.im, x.re)
    cosh, sinh = _op(cx, "cosh", a), _op(cx, "sinh", a)
    cos, sin = _op(cx, "cos", b), _op(cx, "sin", b)
    if name == "cosh":
        return Pair(_op(cx, "mul", cosh, cos), _op(cx, "mul", sinh, sin))
    if name == "sinh":
        return Pair(_op(cx, "mul", sinh, cos), _op(cx, "mul", cosh, sin))
    if name == "cos":
        return Pair(_op(cx, "mul", cosh, cos), _op(cx, "neg", _op(cx, "mul", sinh, sin)))
    return Pair(_op(cx, "mul", cosh, sin), _op(cx, "mul", sinh, cos))


@rule("pow")
def _pow(cx: Context, x: Any, power: Any) -> Pair:
    """A small whole power is products."""
    if not isinstance(power, int | float) or power != int(power) or not 1 <= power <= 8:
        raise NotLowered("a complex power other than of 1 to 8")
    base = found = _pair(cx, x)
    for _ in range(int(power) - 1):
        found = _times(cx, found, base)
    return found

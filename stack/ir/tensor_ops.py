"""The tensor level: pure ops on whole arrays. Every op states its axes once.

Elementwise ops take operands of one shape; an operand of rank 0 is broadcast (its axis rule has no
axes, so nothing else needs to know).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stack.errors import RuleError
from stack.ir.axes import (
    Axis,
    Index,
    Rule,
    delinearize,
    linearize,
    names,
    parse_rule,
    plain,
    reshape_rule,
)
from stack.ir.dim import Dim, add, equal, floordiv, mul
from stack.ir.node import Node
from stack.ir.ops import OPS, OpDef, Site, define
from stack.ir.types import BOOL, TensorType, TupleType, Type

EVERYWHERE = frozenset({"tensor", "tile", "loop"})
REDUCE_KINDS = ("sum", "prod", "max", "min", "and", "or")
SCAN_KINDS = ("sum", "prod", "max", "min")
SCATTER_KINDS = ("set", "add", "mul", "max", "min")

# name: (dtype kinds it takes, scalar operations, what it computes)
UNARY: dict[str, tuple[str, float, str]] = {
    "neg": ("iufc", 1, "-x"),
    "abs": ("iuf", 1, "|x|"),
    "sign": ("iuf", 1, "-1, 0 or 1; nan stays nan"),
    "not": ("biu", 1, "logical not of bool, bitwise not of integers"),
    "floor": ("f", 1, "largest integer <= x"),
    "ceil": ("f", 1, "smallest integer >= x"),
    "round": ("f", 1, "nearest integer, ties to even"),
    "trunc": ("f", 1, "integer part"),
    "sqrt": ("f", 1, "square root"),
    "rsqrt": ("f", 2, "1 / sqrt(x)"),
    "exp": ("f", 10, "e ** x"),
    "exp2": ("f", 8, "2 ** x"),
    "expm1": ("f", 12, "exp(x) - 1, exact near 0"),
    "log": ("f", 10, "natural logarithm"),
    "log2": ("f", 10, "logarithm to base 2"),
    "log1p": ("f", 12, "log(1 + x), exact near 0"),
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
    "isnan": ("f", 1, "whether x is nan"),
    "isfinite": ("f", 1, "whether x is neither inf nor nan"),
}
BINARY: dict[str, tuple[str, float, str]] = {
    "add": ("biufc", 1, "x + y; or, of bool"),
    "sub": ("iufc", 1, "x - y"),
    "mul": ("biufc", 1, "x * y; and, of bool"),
    "div": ("iufc", 1, "x / y; integers truncate toward zero"),
    "rem": ("iuf", 2, "remainder with the sign of x, as C's fmod"),
    "pow": ("iuf", 25, "x ** y"),
    "atan2": ("f", 25, "angle of the point (y=x operand 0, x=operand 1)"),
    "max": ("biuf", 1, "larger; nan wins"),
    "min": ("biuf", 1, "smaller; nan wins"),
    "and": ("biu", 1, "logical or bitwise and"),
    "or": ("biu", 1, "logical or bitwise or"),
    "xor": ("biu", 1, "logical or bitwise exclusive or"),
    "shl": ("iu", 1, "x << y"),
    "shr": ("iu", 1, "x >> y, arithmetic for signed, logical for unsigned"),
}
COMPARE: dict[str, str] = {
    "eq": "x == y",
    "ne": "x != y",
    "lt": "x < y",
    "le": "x <= y",
    "gt": "x > y",
    "ge": "x >= y",
}


def _space(site: Site) -> str:
    return "tile" if any(a.tensor.space == "tile" for a in site.args) else "value"


def common_shape(site: Site, args: tuple[Node, ...]) -> tuple[Dim, ...]:
    """Shape of an elementwise result: that of the operands that are not of rank 0."""
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
    return TensorType(dtype, common_shape(site, args), _space(site))


def _elementwise_infer(kinds: str) -> Callable[[Site], Type]:
    return lambda site: _same_dtype(site, site.args, kinds)


def _bool_infer(kinds: str) -> Callable[[Site], Type]:
    return lambda site: _same_dtype(site, site.args, kinds).with_dtype(BOOL)


def elementwise_rule(node: Node) -> Rule:
    """`a b, , a b -> a b`: every operand has all axes, or none."""
    axes = names(node.tensor.rank)
    return Rule(
        tuple(plain(axes) if a.tensor.rank else () for a in node.args), (plain(axes),)
    )


def _elementwise(
    name: str,
    doc: str,
    arity: int,
    infer: Callable[[Site], Type],
    flops: float = 1,
    attrs: tuple[str, ...] = (),
) -> None:
    define(
        OpDef(
            name,
            doc,
            "elementwise",
            infer,
            rule=elementwise_rule,
            flops=flops,
            arity=arity,
            attrs=attrs,
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
    chosen = _same_dtype(site, site.args[1:], "biufc")
    return chosen.with_shape(common_shape(site, site.args))


def _hinted(site: Site) -> TensorType:
    if not isinstance(site.hint, TensorType):
        raise site.fail("the result type must be given")
    return site.hint


def _cast_infer(site: Site) -> Type:
    hint = _hinted(site)
    if hint.shape != site.args[0].shape:
        raise site.fail(f"a cast keeps the shape, asked for {hint}")
    return hint


def _bitcast_infer(site: Site) -> Type:
    hint = _hinted(site)
    if hint.shape != site.args[0].shape or hint.dtype.bits != site.args[0].dtype.bits:
        raise site.fail(f"a bitcast keeps shape and width, asked for {hint}")
    return hint


_elementwise("select", "y where the bool operand holds, else z", 3, _select_infer)
_elementwise("cast", "convert the element type; floats to integers truncate", 1, _cast_infer)
_elementwise("bitcast", "same bits, another element type", 1, _bitcast_infer, 0)


# ---- leaves


def _const_infer(site: Site) -> Type:
    data = site.attrs["value"]
    space = site.hint.space if isinstance(site.hint, TensorType) else "value"
    return TensorType(data.dtype, data.shape, space)


def _iota_infer(site: Site) -> Type:
    hint = _hinted(site)
    if not 0 <= site.attrs["axis"] < hint.rank:
        raise site.fail(f"axis {site.attrs['axis']} is outside of {hint}")
    return hint


def _size_infer(site: Site) -> Type:
    return TensorType(_hinted(site).dtype, ())


define(OpDef("param", "an input of a block", "leaf", _hinted, attrs=("name",), arity=0, levels=EVERYWHERE))
define(
    OpDef("const", "a constant array", "leaf", _const_infer, attrs=("value",), arity=0, levels=EVERYWHERE)
)
define(
    OpDef(
        "iota",
        "position along one axis: 0, 1, 2, ...",
        "leaf",
        _iota_infer,
        rule=lambda n: Rule((), (plain(names(n.tensor.rank)),)),
        attrs=("axis",),
        arity=0,
        levels=EVERYWHERE,
    )
)
define(
    OpDef(
        "size",
        "the value of a size expression, as an integer",
        "leaf",
        _size_infer,
        rule=lambda n: Rule((), ((),)),
        attrs=("value",),
        arity=0,
        levels=EVERYWHERE,
    )
)


# ---- movement


def _reshape_infer(site: Site) -> Type:
    hint = _hinted(site)
    if equal(hint.size, site.args[0].tensor.size) is False or hint.dtype != site.args[0].dtype:
        raise site.fail(f"cannot reshape to {hint}: the number of elements differs")
    return hint


def _reshape_rule(node: Node) -> Rule:
    source, target = node.args[0].shape, node.shape
    found = reshape_rule(source, target)
    if found is not None:
        return found
    # neither splits nor merges: one flat axis, needed whole
    flat = names(len(source) + len(target))
    return Rule((plain(flat[: len(source)], "!"),), (plain(flat[len(source) :], "!"),))


def _reshape_pull(node: Node, index: Index) -> list[Index]:
    rule = reshape_rule(node.args[0].shape, node.shape)
    if rule is not None:
        # sizes of the split axes are known from whichever side has them alone
        sizes: dict[str, Dim] = {}
        for operand, shape in ((rule.inputs[0], node.args[0].shape), (rule.outputs[0], node.shape)):
            sizes.update(
                {a.names[0]: s for a, s in zip(operand, shape, strict=True) if len(a.names) == 1}
            )
        return rule.pull(index, sizes, {})
    return [delinearize(linearize(index, node.shape), node.args[0].shape)]


def _transpose_infer(site: Site) -> Type:
    perm = site.attrs["perm"]
    source = site.args[0].tensor
    if sorted(perm) != list(range(source.rank)):
        raise site.fail(f"perm {list(perm)} is not a permutation of its {source.rank} axes")
    return source.with_shape(tuple(source.shape[p] for p in perm))


def _transpose_rule(node: Node) -> Rule:
    axes = names(node.tensor.rank)
    return Rule((plain(axes),), (plain([axes[p] for p in node.attrs["perm"]]),))


def _broadcast_infer(site: Site) -> Type:
    hint, source, axes = _hinted(site), site.args[0].tensor, site.attrs["axes"]
    if len(axes) != source.rank or list(axes) != sorted(set(axes)):
        raise site.fail(f"axes {list(axes)} must name one result axis for each operand axis, rising")
    for axis, size in zip(axes, source.shape, strict=True):
        if not 0 <= axis < hint.rank or hint.shape[axis] != size:
            raise site.fail(f"operand axis of size {size} does not match axis {axis} of {hint}")
    return hint


def _broadcast_rule(node: Node) -> Rule:
    axes = names(node.tensor.rank)
    return Rule((plain([axes[i] for i in node.attrs["axes"]]),), (plain(axes),))


def _slice_infer(site: Site) -> Type:
    source = site.args[0].tensor
    start, limit, step = (site.attrs[k] for k in ("start", "limit", "step"))
    if not len(start) == len(limit) == len(step) == source.rank:
        raise site.fail("start, limit and step need one entry for each axis")
    for s, e, size in zip(start, limit, source.shape, strict=True):
        if any(isinstance(v, int) and v < 0 for v in (s, e)):
            raise site.fail(f"slice {s}:{e} has a negative bound")
        if isinstance(e, int) and isinstance(size, int) and e > size:
            raise site.fail(f"slice {s}:{e} reaches past the size {size}")
    if any(not isinstance(k, int) or k < 1 for k in step):
        raise site.fail("steps are positive")
    return source.with_shape(
        tuple(
            _at_least_zero(floordiv(add(add(e, mul(s, -1)), k - 1), k))
            for s, e, k in zip(start, limit, step, strict=True)
        )
    )


def _at_least_zero(size: Dim) -> Dim:
    return max(size, 0) if isinstance(size, int) else size


def _windowed(node: Node) -> Rule:
    """Operand axes read through an offset, where the op changes them."""
    axes = names(node.tensor.rank)
    source = node.args[0].shape
    read = tuple(
        Axis((a,), "" if s == t else "^")
        for a, s, t in zip(axes, source, node.shape, strict=True)
    )
    extra = tuple(() for _ in node.args[1:])
    return Rule((read, *extra), (plain(axes),))


def _slice_pull(node: Node, index: Index) -> list[Index]:
    start, step = node.attrs["start"], node.attrs["step"]
    return [tuple(add(s, mul(i, k)) for i, s, k in zip(index, start, step, strict=True))]


def _reverse_pull(node: Node, index: Index) -> list[Index]:
    axes = node.attrs["axes"]
    return [
        tuple(
            add(add(size, -1), mul(i, -1)) if axis in axes else i
            for axis, (i, size) in enumerate(zip(index, node.shape, strict=True))
        )
    ]


def _pad_infer(site: Site) -> Type:
    source, value = site.args[0].tensor, site.args[1].tensor
    low, high, inner = (site.attrs[k] for k in ("low", "high", "interior"))
    if value.rank or value.dtype != source.dtype:
        raise site.fail("the padding value is a scalar of the operand's element type")
    if not len(low) == len(high) == len(inner) == source.rank:
        raise site.fail("low, high and interior need one entry for each axis")
    if any(isinstance(v, int) and v < 0 for v in (*low, *high, *inner)):
        raise site.fail("padding is not negative; slice instead")
    shape: list[Dim] = []
    for size, lo, hi, gap in zip(source.shape, low, high, inner, strict=True):
        gaps = 0 if size == 0 else mul(gap, add(size, -1))
        shape.append(add(add(size, gaps), add(lo, hi)))
    return source.with_shape(tuple(shape))


def _concat_infer(site: Site) -> Type:
    axis = site.attrs["axis"]
    if not site.args:
        raise site.fail("needs at least one operand")
    first = site.args[0].tensor
    if not 0 <= axis < first.rank:
        raise site.fail(f"axis {axis} is outside of {first}")
    total: Dim = 0
    for arg in site.args:
        rest = arg.shape[:axis] + arg.shape[axis + 1 :]
        if arg.dtype != first.dtype or rest != first.shape[:axis] + first.shape[axis + 1 :]:
            raise site.fail(f"operands differ outside of axis {axis}")
        total = add(total, arg.shape[axis])
    return first.with_shape((*first.shape[:axis], total, *first.shape[axis + 1 :]))


def _concat_rule(node: Node) -> Rule:
    axes = names(node.tensor.rank)
    at = node.attrs["axis"]
    operand = tuple(
        Axis((f"{a}{i}",), "^") if axis == at else Axis((a,))
        for i in range(len(node.args))
        for axis, a in enumerate(axes)
    )
    rank = node.tensor.rank
    operands = tuple(operand[i * rank : (i + 1) * rank] for i in range(len(node.args)))
    return Rule(operands, (plain(axes),))


def _rule_attr(node: Node) -> Rule:
    return parse_rule(node.attrs["rule"])


def _gather_infer(site: Site) -> Type:
    rule = parse_rule(site.attrs["rule"])
    source = site.args[0].tensor if site.args else None
    if source is None or len(rule.inputs) != len(site.args) or len(rule.outputs) != 1:
        raise site.fail(f"rule {str(rule)!r} does not fit {len(site.args)} operands")
    indexed = [a for a in rule.inputs[0] if a.mark == "!"]
    if len(indexed) != len(site.args) - 1:
        raise site.fail(f"{len(indexed)} axes are marked '!', {len(site.args) - 1} indices given")
    if any(not a.dtype.is_integer for a in site.args[1:]):
        raise site.fail("indices are integers")
    sizes = rule.sizes([a.shape for a in site.args])
    missing = [n for a in rule.outputs[0] for n in a.names if n not in sizes]
    if missing or any(len(a.names) != 1 for a in rule.outputs[0]):
        raise site.fail(f"rule {str(rule)!r}: the result must be plain axes of the operands")
    return source.with_shape(tuple(sizes[a.names[0]] for a in rule.outputs[0]))


def _scatter_infer(site: Site) -> Type:
    rule = parse_rule(site.attrs["rule"])
    if site.attrs["kind"] not in SCATTER_KINDS:
        raise site.fail(f"kind {site.attrs['kind']!r} is not one of {', '.join(SCATTER_KINDS)}")
    if len(site.args) < 2 or len(rule.inputs) != len(site.args) or rule.inputs[0] == ():
        raise site.fail(f"rule {str(rule)!r} does not fit {len(site.args)} operands")
    indexed = [a for a in rule.inputs[0] if a.mark == "!"]
    if len(indexed) != len(site.args) - 2:
        raise site.fail(f"{len(indexed)} axes are marked '!', {len(site.args) - 2} indices given")
    if any(not a.dtype.is_integer for a in site.args[1:-1]):
        raise site.fail("indices are integers")
    if site.args[-1].dtype != site.args[0].dtype:
        raise site.fail("the updates have the operand's element type")
    rule.sizes([a.shape for a in site.args])
    return site.args[0].type


def _movement(name: str, doc: str, infer: Any, rule: Any, **more: Any) -> None:
    define(OpDef(name, doc, "movement", infer, rule=rule, **more))


_movement("reshape", "same elements in row-major order, another shape", _reshape_infer, _reshape_rule,
          pull=_reshape_pull, arity=1, levels=EVERYWHERE)
_movement("transpose", "axis i of the result is axis perm[i] of the operand", _transpose_infer,
          _transpose_rule, arity=1, attrs=("perm",), levels=EVERYWHERE)
_movement("broadcast", "operand axis i becomes result axis axes[i]; the others repeat",
          _broadcast_infer, _broadcast_rule, arity=1, attrs=("axes",), levels=EVERYWHERE)
_movement("slice", "elements start, start+step, ... below limit", _slice_infer, _windowed,
          pull=_slice_pull, arity=1, attrs=("start", "limit", "step"))
_movement("reverse", "flip the axes", lambda s: s.args[0].type, _windowed,
          pull=_reverse_pull, arity=1, attrs=("axes",))
_movement("pad", "put `low`, `high` and, between elements, `interior` copies of the scalar operand",
          _pad_infer, _windowed, arity=2, attrs=("low", "high", "interior"))
_movement("concat", "operands one after another along an axis", _concat_infer, _concat_rule,
          attrs=("axis",))
_movement("gather", "read at data-dependent positions of the axes marked '!'; indices in range",
          _gather_infer, _rule_attr, attrs=("rule",))
_movement("scatter", "combine updates into operand 0 at data-dependent positions; indices in range",
          _scatter_infer, _rule_attr, attrs=("rule", "kind"))


# ---- reductions and contractions


def _reduce_infer(site: Site) -> Type:
    source, axes, kind = site.args[0].tensor, site.attrs["axes"], site.attrs["kind"]
    if kind not in REDUCE_KINDS:
        raise site.fail(f"kind {kind!r} is not one of {', '.join(REDUCE_KINDS)}")
    if list(axes) != sorted(set(axes)) or any(not 0 <= a < source.rank for a in axes):
        raise site.fail(f"axes {list(axes)} are not distinct rising axes of {source}")
    shape = tuple(s for i, s in enumerate(source.shape) if i not in axes)
    # a tile reduced to one element is a scalar
    return source.with_shape(shape) if shape else TensorType(source.dtype, ())


def _reduce_rule(node: Node) -> Rule:
    axes = names(node.args[0].tensor.rank)
    gone = node.attrs["axes"]
    return Rule((plain(axes),), (plain([a for i, a in enumerate(axes) if i not in gone]),))


def _argreduce_infer(site: Site) -> Type:
    source, axis, hint = site.args[0].tensor, site.attrs["axis"], _hinted(site)
    if site.attrs["kind"] not in ("max", "min"):
        raise site.fail(f"kind {site.attrs['kind']!r} is not max or min")
    if not 0 <= axis < source.rank or not hint.dtype.is_integer:
        raise site.fail(f"axis {axis} of {source} to {hint}: a valid axis and an integer result")
    return hint.with_shape(source.shape[:axis] + source.shape[axis + 1 :])


def _argreduce_rule(node: Node) -> Rule:
    axes = names(node.args[0].tensor.rank)
    return Rule((plain(axes),), (plain([a for i, a in enumerate(axes) if i != node.attrs["axis"]]),))


def _carried_rule(node: Node) -> Rule:
    axes = names(node.tensor.rank)
    marked = tuple(
        Axis((a,), "~" if i == node.attrs["axis"] else "") for i, a in enumerate(axes)
    )
    return Rule((marked,), (marked,))


def _scan_infer(site: Site) -> Type:
    if site.attrs["kind"] not in SCAN_KINDS:
        raise site.fail(f"kind {site.attrs['kind']!r} is not one of {', '.join(SCAN_KINDS)}")
    if not 0 <= site.attrs["axis"] < site.args[0].tensor.rank:
        raise site.fail(f"axis {site.attrs['axis']} is outside of {site.args[0].type}")
    return site.args[0].type


def _sort_infer(site: Site) -> Type:
    axis, keys = site.attrs["axis"], site.attrs["num_keys"]
    shapes = {a.shape for a in site.args}
    if len(shapes) != 1 or not 0 <= axis < site.args[0].tensor.rank:
        raise site.fail(f"operands have one shape that has axis {axis}")
    if not 1 <= keys <= len(site.args):
        raise site.fail(f"num_keys {keys} is not between 1 and {len(site.args)}")
    return TupleType(tuple(a.tensor for a in site.args))


def _sort_rule(node: Node) -> Rule:
    rank = node.args[0].tensor.rank
    operand = tuple(
        Axis((a,), "!" if i == node.attrs["axis"] else "") for i, a in enumerate(names(rank))
    )
    return Rule((operand,) * len(node.args), (operand,) * len(node.args))


def _dot_infer(site: Site) -> Type:
    rule = parse_rule(site.attrs["rule"])
    if len(rule.outputs) != 1 or any(a.mark or len(a.names) != 1 for o in rule.inputs for a in o):
        raise site.fail(f"rule {str(rule)!r}: plain axes and one result")
    if len({a.dtype for a in site.args}) != 1:
        raise site.fail("operands have one element type; insert casts")
    (shape,) = rule.output_shapes([a.shape for a in site.args])
    dtype = site.hint.dtype if isinstance(site.hint, TensorType) else site.args[0].dtype
    return TensorType(dtype, shape, _space(site))


def conv_rule(node: Node) -> Rule:
    """`n (g c) h^ w^, (g o) c kh kw -> n (g o) h w`, without g when there is one group."""
    spatial = [f"s{i}" for i in range(node.tensor.rank - 2)]
    grouped = node.attrs["groups"] != 1
    channels = Axis(("g", "c") if grouped else ("c",))
    out = Axis(("g", "o") if grouped else ("o",))
    window = tuple(Axis((s,), "^") for s in spatial)
    taps = plain([f"k{i}" for i in range(len(spatial))])
    return Rule(
        ((Axis(("n",)), channels, *window), (out, Axis(("c",)), *taps)),
        ((Axis(("n",)), out, *plain(spatial)),),
    )


def _conv_infer(site: Site) -> Type:
    x, w = site.args[0].tensor, site.args[1].tensor
    stride, low, high, ldil, rdil, groups = (
        site.attrs[k]
        for k in ("stride", "low", "high", "lhs_dilation", "rhs_dilation", "groups")
    )
    rank = x.rank - 2
    if x.rank < 2 or w.rank != x.rank or any(len(v) != rank for v in (stride, low, high, ldil, rdil)):
        raise site.fail("operands are [n, c, spatial...] and [o, c / groups, window...]")
    if x.dtype != w.dtype or equal(x.shape[1], mul(w.shape[1], groups)) is False:
        raise site.fail(f"{groups} group(s) of {w.shape[1]} channels do not make {x.shape[1]}")
    shape: list[Dim] = [x.shape[0], w.shape[0]]
    for i in range(rank):
        size = add(mul(add(x.shape[2 + i], -1), ldil[i]), add(1, add(low[i], high[i])))
        window = add(mul(add(w.shape[2 + i], -1), rdil[i]), 1)
        shape.append(_at_least_zero(add(floordiv(add(size, mul(window, -1)), stride[i]), 1)))
    return x.with_shape(tuple(shape))


define(OpDef("reduce", "combine along axes: sum, prod, max, min, and, or", "reduction",
             _reduce_infer, rule=_reduce_rule, flops=1, attrs=("kind", "axes"), arity=1,
             levels=EVERYWHERE))
define(OpDef("argreduce", "first position of the max or min along an axis; nan wins", "reduction",
             _argreduce_infer, rule=_argreduce_rule, flops=1, attrs=("kind", "axis"), arity=1))
define(OpDef("scan", "inclusive running sum, prod, max or min along an axis", "reduction",
             _scan_infer, rule=_carried_rule, flops=1, attrs=("kind", "axis", "reverse"), arity=1))
define(OpDef("sort", "stable sort of all operands by the first num_keys; nan is largest", "reduction",
             _sort_infer, rule=_sort_rule, flops=1, attrs=("axis", "num_keys", "descending")))
define(OpDef("dot", "contract two operands by an axis rule", "contraction", _dot_infer,
             rule=_rule_attr, flops=2, attrs=("rule",), arity=2, levels=EVERYWHERE))
define(OpDef("conv", "convolution (cross-correlation) with stride, padding, dilations, groups",
             "contraction", _conv_infer, rule=conv_rule, flops=2, arity=2,
             attrs=("stride", "low", "high", "lhs_dilation", "rhs_dilation", "groups")))


# ---- control, calls and the outside


def result_type(types: tuple[Type, ...]) -> Type:
    """Type of a node that returns a block's results: plain for one, a tuple otherwise."""
    items = tuple(t for t in types if isinstance(t, TensorType))
    if len(items) != len(types):
        raise RuleError("a block returns tensors; pick items of tuples first")
    return items[0] if len(items) == 1 else TupleType(items)


def _match_params(site: Site, block: int, args: tuple[Node, ...]) -> None:
    expected = [p.type for p in site.blocks[block].params]
    if [a.type for a in args] != expected:
        raise site.fail(f"block {block} takes ({', '.join(map(str, expected))})")


def _call_infer(site: Site) -> Type:
    if len(site.blocks) != 1:
        raise site.fail("has one block")
    _match_params(site, 0, site.args)
    return result_type(site.blocks[0].type)


def _cond_infer(site: Site) -> Type:
    if not site.blocks or site.args[0].tensor.rank or site.args[0].dtype.kind not in "biu":
        raise site.fail("operand 0 is a bool or integer scalar that picks a block")
    for i in range(len(site.blocks)):
        _match_params(site, i, site.args[1:])
        if site.blocks[i].type != site.blocks[0].type:
            raise site.fail(f"block {i} returns {site.blocks[i].type}, block 0 {site.blocks[0].type}")
    return result_type(site.blocks[0].type)


def _while_infer(site: Site) -> Type:
    if len(site.blocks) != 2:
        raise site.fail("has two blocks: condition and body")
    for i in range(2):
        _match_params(site, i, site.args)
    test = site.blocks[0].type
    if test != (TensorType(BOOL, ()),):
        raise site.fail(f"the condition block returns bool[], not {test}")
    if site.blocks[1].type != tuple(a.type for a in site.args):
        raise site.fail("the body returns the types that it takes")
    return result_type(site.blocks[1].type)


def _item_infer(site: Site) -> Type:
    source, index = site.args[0].type, site.attrs["index"]
    if not isinstance(source, TupleType) or not 0 <= index < len(source.items):
        raise site.fail(f"has no item {index}")
    return source.items[index]


def _opaque_infer(site: Site) -> Type:
    if site.hint is None:
        raise site.fail("the result type must be given")
    return site.hint


def _control(name: str, doc: str, infer: Any, **more: Any) -> None:
    define(OpDef(name, doc, "control", infer, **more))


_control("item", "one result of a node with several", _item_infer, attrs=("index",), arity=1,
         levels=EVERYWHERE)
_control("call", "run a named block", _call_infer, attrs=("name",))
_control("fusion", "one group: inline the body; `kind` says what will run it", _call_infer,
         attrs=("kind", "name?", "why?"))
_control("cond", "run block number `operand 0` (false is 0) on the other operands", _cond_infer)
_control("while", "repeat the body while the condition holds", _while_infer)
define(OpDef("opaque", "call the framework for an op without a lowering; counted as a fallback",
             "foreign", _opaque_infer, attrs=("target", "call", "effect?")))
define(OpDef("custom", "a hosted operator, by name", "foreign", _opaque_infer,
             attrs=("name", "params?")))

TENSOR_OPS = frozenset(name for name, op in OPS.items() if "tensor" in op.levels)

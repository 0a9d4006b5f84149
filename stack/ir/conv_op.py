"""Convolution: its type, its axis rule, and the index maps of its reads.

With `n` images, `c` channels, `o` output channels, `g` groups, spatial axes `s` and window axes
`k`:

- default: `[n, c, s...]` by `[o, c / g, k...]` is `[n, o, s...]`;
- `transposed`: the weight is `[c, o / g, k...]` and its taps are read in reverse. It is the weight
  of the convolution whose gradient this op computes, in the layout that libraries' transposed
  kernels take;
- `over_images`: swaps the first two axes of operands and result. The gradient of a weight is such a
  convolution of images and gradients in their own layouts, summed over images;
- `channels_last`: after that, the second axis of operands and result is stored last.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from stack.ir.algebra import Algebra
from stack.ir.axes import Axis, Rule, plain
from stack.ir.contraction import check_precision
from stack.ir.dim import Dim, add, equal, floordiv, maximum, mul, product
from stack.ir.node import Node
from stack.ir.ops import OpDef, Site, define
from stack.ir.relation import Window, Windows
from stack.ir.types import Type

T = TypeVar("T")


def channels_second(axes: Sequence[T], attrs: Mapping[str, object]) -> tuple[T, ...]:
    """Reorders a list with one entry for each dim of a convolution's operand or result, from the
    order in memory to images, channels, spatial dims.
    """
    first, second, *rest = (
        (axes[0], axes[-1], *axes[1:-1]) if attrs.get("channels_last") else tuple(axes)
    )
    return (second, first, *rest) if attrs.get("over_images") else (first, second, *rest)


def as_stored(axes: Sequence[T], attrs: Mapping[str, object]) -> tuple[T, ...]:
    """The inverse of `channels_second`: reorders a list with one entry for each dim from the order
    images, channels, spatial dims to the order in memory.
    """
    first, second, *rest = axes
    if attrs.get("over_images"):
        first, second = second, first
    return (first, *rest, second) if attrs.get("channels_last") else (first, second, *rest)


def sums_over_images(node: Node) -> bool:
    """True if the convolution computes the gradient of a weight: its channels are images, and its
    window is the gradient of a result.

    The window is then far larger than the result. Or each of several groups has many channels and a
    single result of a single image; with images and channels swapped, these are single channels of
    many images.
    """
    at = node.attrs
    images = channels_second(node.args[0].shape, at)[0]
    outs, per_group, *window = channels_second(node.args[1].shape, at)
    result = channels_second(node.shape, at)[2:]
    plain = not at.get("transposed") and all(d == 1 for d in at["lhs_dilation"])
    is_single = images == 1 and outs == at["groups"] != 1 and per_group != 1
    taps, places = product(window), product(result)
    is_long = isinstance(taps, int) and isinstance(places, int) and taps >= 4 * places
    return plain and (is_single or is_long)


def conv_rule(node: Node) -> Rule:
    """Returns the axis rule of a convolution, as `n (g c) h^ w^, (g o) c kh kw -> n (g o) h w`.
    Without g if there is one group; dims are in the order in memory.
    """
    at = node.attrs
    spatial = [f"s{i}" for i in range(node.tensor.rank - 2)]
    grouped = at["groups"] != 1
    channels = Axis(("g", "c") if grouped else ("c",))
    out = Axis(("g", "o") if grouped else ("o",))
    window = tuple(Axis((s,), "^") for s in spatial)
    taps = plain([f"k{i}" for i in range(len(spatial))])
    weight = (channels, Axis(("o",))) if at.get("transposed") else (out, Axis(("c",)))
    return Rule(
        (as_stored((Axis(("n",)), channels, *window), at), as_stored((*weight, *taps), at)),
        (as_stored((Axis(("n",)), out, *plain(spatial)), at),),
    )


def _infer(site: Site) -> Type:
    at, ranks = site.attrs, {a.tensor.rank for a in site.args}
    if len(ranks) != 1 or min(ranks) < 2:
        raise site.fail("operands are [n, c, spatial...] and [o, c / groups, window...]")
    x, w = (a.tensor.with_shape(channels_second(a.shape, at)) for a in site.args)
    stride, low, high, ldil, rdil, groups = (
        at[k] for k in ("stride", "low", "high", "lhs_dilation", "rhs_dilation", "groups")
    )
    rank = x.rank - 2
    lists = (stride, low, high, ldil, rdil)
    if any(len(v) != rank for v in lists):
        raise site.fail(f"one stride, padding and dilation for each of {rank} axes")
    if any(v < 1 for v in (*stride, *ldil, *rdil, groups)):
        raise site.fail("stride, dilations and groups are positive")
    check_precision(site)
    ins, outs = (w.shape[0], mul(w.shape[1], groups))
    if not at.get("transposed"):
        ins, outs = outs, ins
    if x.dtype != w.dtype or equal(x.shape[1], ins) is False:
        raise site.fail(f"a weight of {ins} channels, {groups} group(s), for {x.shape[1]}")
    if any(isinstance(v, int) and v % groups for v in (ins, outs)):
        raise site.fail(f"{ins} channels and {outs} results do not divide into {groups} groups")
    shape: list[Dim] = [x.shape[0], outs]
    for i in range(rank):
        spread = maximum(add(mul(add(x.shape[2 + i], -1), ldil[i]), 1), 0)
        size = add(spread, add(low[i], high[i]))
        window = add(mul(add(w.shape[2 + i], -1), rdil[i]), 1)
        shape.append(maximum(add(floordiv(add(size, mul(window, -1)), stride[i]), 1), 0))
    return x.with_shape(as_stored(shape, at))


def _windows(node: Node) -> Windows:
    """Returns how a convolution reads each spatial dim: element `s` of the result and tap `k` of
    the weight read index `dim` with `spread * dim = stride * s + dilation * k - low`. The taps of a
    transposed weight are reversed.
    """
    at = node.attrs
    dims = as_stored(range(node.tensor.rank), at)
    taps = channels_second(node.args[1].shape, at)[2:]
    found: dict[tuple[int, int], Window] = {}
    for i, (stride, low, spread, dilation) in enumerate(
        zip(*(at[k] for k in ("stride", "low", "lhs_dilation", "rhs_dilation")), strict=True)
    ):
        offset: Dim = -low
        if at.get("transposed"):
            offset, dilation = add(offset, mul(add(taps[i], -1), dilation)), -dilation
        terms = ((f"s{i}", stride), (f"k{i}", dilation))
        found[0, dims.index(2 + i)] = Window(terms, offset, spread)
    return found


define(
    OpDef(
        "conv",
        "convolution (cross-correlation) with stride, padding, dilations, groups",
        "contraction",
        _infer,
        rule=conv_rule,
        windows=_windows,
        beyond="zero",
        algebra=Algebra(((0,), (1,))),
        flops=2,
        attrs=(
            "stride: ints",
            "low: ints",
            "high: ints",
            "lhs_dilation: ints",
            "rhs_dilation: ints",
            "groups: int",
            "transposed?: bool",
            "channels_last?: bool",
            "over_images?: bool",
            "precision?: str",
        ),
        arity=2,
    )
)

"""Reductions, scans, sorting, and matmuls."""

from __future__ import annotations

from functools import lru_cache
from typing import cast

from stack.ir.algebra import Algebra, reduction
from stack.ir.axes import Axis, Rule, names, parse_rule, plain
from stack.ir.contraction import check_precision
from stack.ir.dim import Dim, mul
from stack.ir.elementwise_ops import EVERYWHERE, hinted, result_space
from stack.ir.movement_ops import rule_attr
from stack.ir.node import Node
from stack.ir.ops import Applied, OpDef, Site, define
from stack.ir.relation import Window, Windows
from stack.ir.types import TensorType, TupleType, Type

# kind: the element types that it accepts
REDUCE_TYPES = {
    "sum": "biufc",
    "prod": "biufc",
    "max": "biuf",
    "min": "biuf",
    "and": "biu",
    "or": "biu",
}
REDUCE_KINDS = tuple(REDUCE_TYPES)
SCAN_KINDS = ("sum", "prod", "max", "min")


def _check_kind(site: Site, kinds: tuple[str, ...]) -> None:
    kind, dtype = site.attrs["kind"], site.args[0].dtype
    if kind not in kinds:
        raise site.fail(f"kind {kind!r} is not one of {', '.join(kinds)}")
    if dtype.kind not in REDUCE_TYPES[kind]:
        raise site.fail(f"no {kind} of {dtype}")


def _kind_algebra(node: Node) -> Algebra:
    return reduction(node.attrs["kind"])


def _kind(node: Node) -> str:
    return str(node.attrs["kind"])


def _reduce_infer(site: Site) -> Type:
    _check_kind(site, REDUCE_KINDS)
    source, axes = site.args[0].tensor, site.attrs["axes"]
    if list(axes) != sorted(set(axes)) or any(not 0 <= a < source.rank for a in axes):
        raise site.fail(f"axes {list(axes)} are not distinct rising axes of {source}")
    shape = site.shape()
    # a tile reduced to one element is a scalar
    return source.with_shape(shape) if shape else TensorType(source.dtype, ())


def _reduce_rule(node: Applied) -> Rule:
    return _without(node.args[0].tensor.rank, tuple(node.attrs["axes"]))


@lru_cache(maxsize=1 << 8)
def _without(rank: int, gone: tuple[int, ...]) -> Rule:
    axes = names(rank)
    return Rule((plain(axes),), (plain([a for i, a in enumerate(axes) if i not in gone]),))


def _restated_reduce(node: Node, rule: Rule) -> dict[str, object]:
    kept = {a.names for a in rule.outputs[0]}
    return {"axes": tuple(i for i, a in enumerate(rule.inputs[0]) if a.names not in kept)}


def _argreduce_infer(site: Site) -> Type:
    source, axis, hint = site.args[0].tensor, site.attrs["axis"], hinted(site)
    _check_kind(site, ("max", "min"))
    if not 0 <= axis < source.rank or not hint.dtype.is_integer:
        raise site.fail(f"axis {axis} of {source} to {hint}: a valid axis and an integer result")
    return hint.with_shape(site.shape())


def _argreduce_rule(node: Applied) -> Rule:
    return _without(node.args[0].tensor.rank, (node.attrs["axis"],))


def _carried_rule(node: Applied) -> Rule:
    axes = names(node.args[0].tensor.rank)
    marked = tuple(Axis((a,), "~" if i == node.attrs["axis"] else "") for i, a in enumerate(axes))
    return Rule((marked,), (marked,))


def _carried_windows(node: Node) -> Windows:
    """Returns the window of a scan along its axis: a result element depends on the operand elements
    at its index and before; in a reversed scan, at its index and after.
    """
    at: int = node.attrs["axis"]
    lag = 1 if node.attrs["reverse"] else -1
    axis = names(node.tensor.rank)[at]
    return {(0, at): Window(((axis, 1), ("~", lag)), free=(("~", node.shape[at]),))}


def _scan_infer(site: Site) -> Type:
    _check_kind(site, SCAN_KINDS)
    if not 0 <= site.attrs["axis"] < site.args[0].tensor.rank:
        raise site.fail(f"axis {site.attrs['axis']} is outside of {site.args[0].type}")
    return site.args[0].tensor.with_shape(site.shape())


def _sort_infer(site: Site) -> Type:
    axis, keys = site.attrs["axis"], site.attrs["num_keys"]
    if not 0 <= axis < site.args[0].tensor.rank:
        raise site.fail(f"operands have one shape that has axis {axis}")
    shapes = [a.shape for a in site.args]
    if len(set(shapes)) > 1:
        number, other = next((i, s) for i, s in enumerate(shapes) if s != shapes[0])
        raise site.fail(
            f"operands have one shape: operand {number}: its value has shape {[*other]}"
        )
    if not 1 <= keys <= len(site.args):
        raise site.fail(f"num_keys {keys} is not between 1 and {len(site.args)}")
    if any(a.dtype.kind == "c" for a in site.args[:keys]):
        raise site.fail("complex numbers have no order")
    start, first = site.attrs.get("start", 0), site.attrs.get("first")
    if first is None and start:
        raise site.fail(f"start {start} without first")
    if first is not None:
        size = cast("Dim", site.args[0].shape[axis])
        if not isinstance(size, int) or not 0 <= start <= first <= size:
            raise site.fail(f"the first {first} of {size} elements, from {start} on")
        shapes = [(*s[:axis], first - start, *s[axis + 1 :]) for s in shapes]
    return TupleType(tuple(a.tensor.with_shape(s) for a, s in zip(site.args, shapes, strict=True)))


def _sort_rule(node: Applied) -> Rule | None:
    """The axis rule of a sort, which needs the whole sorted axis. None if attribute `first`
    shortens that axis in the results: no rule describes it.
    """
    if "first" in node.attrs:
        return None
    rank = node.args[0].tensor.rank
    operand = tuple(
        Axis((a,), "!" if i == node.attrs["axis"] else "") for i, a in enumerate(names(rank))
    )
    return Rule((operand,) * len(node.args), (operand,) * len(node.args))


def _sort_operations(node: Node) -> Dim:
    """The operations of a merge sort: log2(length) rounds, each comparing every key once."""
    first = node.args[0].tensor
    axis: int = node.attrs["axis"]
    length = first.shape[axis]
    rounds = (length - 1).bit_length() if isinstance(length, int) and length else 1
    return mul(first.size, rounds * node.attrs["num_keys"])


def _dot_infer(site: Site) -> Type:
    rule = parse_rule(site.attrs["rule"])
    operands = (*rule.inputs, *rule.outputs)
    if len(rule.outputs) != 1 or any(a.mark or len(a.names) != 1 for o in operands for a in o):
        raise site.fail(f"rule {str(rule)!r}: needs unmarked axes and one result")
    made = [a.names[0] for a in rule.outputs[0]]
    if len(set(made)) != len(made):
        raise site.fail(f"rule {str(rule)!r}: the result has each axis once")
    if len({a.dtype for a in site.args}) != 1:
        raise site.fail("operands have one element type; insert casts")
    check_precision(site)
    shape = site.shape()
    dtype = site.hint.dtype if isinstance(site.hint, TensorType) else site.args[0].dtype
    if dtype.kind != site.args[0].dtype.kind:
        raise site.fail(f"accumulates in a wider type of the same kind, not in {dtype}")
    return TensorType(dtype, shape, result_space(site) if shape else "value")


define(
    OpDef(
        "reduce",
        "combine along axes: sum, prod, max, min, and, or; a zero sum has either sign",
        "reduction",
        _reduce_infer,
        rule=_reduce_rule,
        restated=_restated_reduce,
        algebra=_kind_algebra,
        folds=_kind,
        flops=1,
        attrs=("kind: str", "axes: ints"),
        arity=1,
        levels=EVERYWHERE,
    )
)
define(
    OpDef(
        "argreduce",
        "index of the first max or min along an axis; nan wins",
        "reduction",
        _argreduce_infer,
        rule=_argreduce_rule,
        flops=1,
        attrs=("kind: str", "axis: int"),
        arity=1,
    )
)
define(
    OpDef(
        "scan",
        "inclusive running sum, prod, max or min along an axis; a zero sum has either sign",
        "reduction",
        _scan_infer,
        rule=_carried_rule,
        windows=_carried_windows,
        algebra=_kind_algebra,
        flops=1,
        attrs=("kind: str", "axis: int", "reverse: bool"),
        levels=EVERYWHERE,
        arity=1,
    )
)
define(
    OpDef(
        "sort",
        "stable sort of all operands by the first num_keys; nan is largest; with `first`, keeps"
        " only elements `start` to `first`",
        "reduction",
        _sort_infer,
        rule=_sort_rule,
        operations=_sort_operations,
        attrs=("axis: int", "num_keys: int", "descending: bool", "first?: int", "start?: int"),
        at_least=1,
    )
)
define(
    OpDef(
        "dot",
        "contract two operands by an axis rule",
        "contraction",
        _dot_infer,
        rule=rule_attr,
        algebra=Algebra(((0,), (1,))),
        folds=lambda node: "sum",
        restated=lambda node, rule: {"rule": str(rule)},
        flops=2,
        attrs=("rule: str", "precision?: str", "ahead?: int"),
        arity=2,
        levels=EVERYWHERE,
    )
)

"""Leaves, and ops that move elements without arithmetic: views, gather and scatter."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

from stack.ir.algebra import INF, NOTHING, RISING, Algebra
from stack.ir.axes import (
    Operand,
    Rule,
    names,
    operand_text,
    parse_rule,
    plain,
    reshape_groups,
    reshape_rule,
    unmarked,
)
from stack.ir.dim import Dim, equal, product
from stack.ir.elementwise_ops import EVERYWHERE, hinted
from stack.ir.node import Node
from stack.ir.ops import Applied, OpDef, Site, define
from stack.ir.relation import Equation, Linear, Relation, related, row_major
from stack.ir.types import TensorType, Type

MOVED = Algebra(((0,),), (RISING,), exact=True)
SCATTER_KINDS = ("set", "add", "mul", "max", "min")


def _const_infer(site: Site) -> Type:
    data = site.attrs["value"]
    space = site.hint.space if isinstance(site.hint, TensorType) else "value"
    return TensorType(data.dtype, data.shape, space)


def _iota_infer(site: Site) -> Type:
    hint = hinted(site)
    if not 0 <= site.attrs["axis"] < hint.rank:
        raise site.fail(f"axis {site.attrs['axis']} is outside of {hint}")
    if hint.dtype.kind not in "iuf":
        raise site.fail(f"counts in integers or floats, not in {hint.dtype}")
    return hint


def _size_infer(site: Site) -> Type:
    dtype = hinted(site).dtype
    if not dtype.is_integer:
        raise site.fail(f"a size is an integer, not {dtype}")
    return TensorType(dtype, ())


def _leaf_rule(node: Node) -> Rule:
    return Rule((), (plain(names(node.tensor.rank)),))


def _leaf(
    name: str, doc: str, infer: Callable[[Site], Type], kind: str = "leaf", **more: Any
) -> None:
    define(OpDef(name, doc, kind, infer, arity=0, levels=EVERYWHERE, **more))


_leaf("param", "an input of a block", hinted, "input", attrs=("name: str",))
_leaf("const", "a constant array", _const_infer, attrs=("value: data",))
_leaf(
    "iota",
    "index along one axis: 0, 1, 2, ...",
    _iota_infer,
    rule=_leaf_rule,
    algebra=Algebra(range=(0, INF), exact=True),
    attrs=("axis: int",),
)
_leaf(
    "size",
    "the value of a size expression, as an integer",
    _size_infer,
    rule=_leaf_rule,
    algebra=Algebra(range=(0, INF), exact=True),
    attrs=("value: dim",),
)


# ---- views


def _reshape_infer(site: Site) -> Type:
    hint = hinted(site)
    if equal(hint.size, site.args[0].tensor.size) is False or hint.dtype != site.args[0].dtype:
        raise site.fail(f"cannot reshape to {hint}: the number or type of elements differs")
    return hint


def _reshape_rule(node: Node) -> Rule:
    return reshape_rule(node.args[0].shape, node.shape)


def _reshape_relation(node: Node) -> Relation:
    """Returns the dependence between elements of a reshape: in each minimal group of dims of equal
    size, operand and result elements with the same row-major number are equal.
    """
    source, target = node.args[0].shape, node.shape
    sizes: dict[str, Dim] = {}
    read: list[Equation] = []
    made: list[Equation] = []
    for group, (left, right) in enumerate(reshape_groups(source, target)):
        flat = f"f{group}"
        sizes[flat] = product(source[left])
        for found, dims, shape in ((read, left, source), (made, right, target)):
            terms = row_major(range(len(shape))[dims], shape[dims])
            found.append(Equation(terms, ((flat, 1),)))
    return Linear(sizes, ((source, tuple(read)),), ((target, tuple(made)),))


def _transpose_infer(site: Site) -> Type:
    perm: tuple[int, ...] = site.attrs["perm"]
    source = site.args[0].tensor
    if sorted(perm) != list(range(source.rank)):
        raise site.fail(f"perm {list(perm)} is not a permutation of its {source.rank} axes")
    return source.with_shape(site.shape())


def _transpose_rule(node: Applied) -> Rule:
    return _permuted(tuple(node.attrs["perm"]))


@lru_cache(maxsize=1 << 8)
def _permuted(perm: tuple[int, ...]) -> Rule:
    axes = names(len(perm))
    return Rule((plain(axes),), (plain([axes[p] for p in perm]),))


def _restated_transpose(node: Node, rule: Rule) -> dict[str, object]:
    return {"perm": tuple(rule.inputs[0].index(a) for a in rule.outputs[0])}


def _broadcast_infer(site: Site) -> Type:
    hint, source, axes = hinted(site), site.args[0].tensor, site.attrs["axes"]
    if len(axes) != source.rank or list(axes) != sorted(set(axes)):
        raise site.fail(
            f"axes {list(axes)} must name one result axis for each operand axis, rising"
        )
    for axis, size in zip(axes, source.shape, strict=True):
        if not 0 <= axis < hint.rank or hint.shape[axis] != size:
            raise site.fail(f"operand axis of size {size} does not match axis {axis} of {hint}")
    return hint


def _broadcast_rule(node: Node) -> Rule:
    return _spread(node.tensor.rank, tuple(node.attrs["axes"]))


@lru_cache(maxsize=1 << 8)
def _spread(rank: int, kept: tuple[int, ...]) -> Rule:
    axes = names(rank)
    return Rule((plain([axes[i] for i in kept]),), (plain(axes),))


def _restated_broadcast(node: Node, rule: Rule) -> dict[str, object]:
    return {"axes": tuple(rule.outputs[0].index(a) for a in rule.inputs[0])}


# ---- gather and scatter


def rule_attr(node: Applied) -> Rule:
    """Parses the axis rule of an op that has it as attribute `rule`."""
    return parse_rule(node.attrs["rule"])


def _check_indices(
    site: Site, rule: Rule, indices: tuple[Node, ...], frame: Operand
) -> dict[str, Dim]:
    """Checks the rule and the index operands of a gather or scatter and returns the sizes of the
    axes; raises RuleError. `frame`: the operand or result that must have every unmarked axis.
    """
    if len(rule.inputs) != len(site.args) or len(rule.outputs) != 1:
        raise site.fail(f"rule {str(rule)!r} does not fit {len(site.args)} operands")
    indexed = [a for a in rule.inputs[0] if a.mark == "!"]
    if len(indexed) != len(indices):
        raise site.fail(f"{len(indexed)} axes are marked '!', {len(indices)} indices given")
    if any(not a.dtype.is_integer for a in indices):
        raise site.fail("indices are integers")
    read = [*(a for a in rule.inputs[0] if a.mark != "!"), *(a for o in rule.inputs[1:] for a in o)]
    if any(a.mark or len(a.names) != 1 for a in (*read, *frame)):
        raise site.fail(f"rule {str(rule)!r}: axes are single names, '!' marks axes of operand 0")
    have = [a.names[0] for a in frame]
    missing = [a.names[0] for a in read if a.names[0] not in have]
    if missing or len(set(have)) != len(have):
        raise site.fail(
            f"rule {str(rule)!r}: {operand_text(frame)!r} needs each axis once"
            + "".join(f", {name!r} is missing" for name in dict.fromkeys(missing))
        )
    return rule.sizes([a.shape for a in site.args])


def _gather_infer(site: Site) -> Type:
    rule = parse_rule(site.attrs["rule"])
    if len(rule.outputs) != 1:
        raise site.fail(f"rule {str(rule)!r} has one result")
    frame = rule.outputs[0]
    sizes = _check_indices(site, rule, site.args[1:], frame)
    loose = [a.names[0] for a in frame if a.names[0] not in sizes]
    if loose or any(a.names[0] in rule.whole for a in frame):
        raise site.fail(f"rule {str(rule)!r}: the result has the unmarked axes of the operands")
    return site.args[0].tensor.with_shape(site.shape())


def _scatter_infer(site: Site) -> Type:
    rule = parse_rule(site.attrs["rule"])
    if site.attrs["kind"] not in SCATTER_KINDS:
        raise site.fail(f"kind {site.attrs['kind']!r} is not one of {', '.join(SCATTER_KINDS)}")
    if rule.outputs != rule.inputs[:1]:
        raise site.fail(f"rule {str(rule)!r}: the result has the axes of operand 0")
    _check_indices(site, rule, site.args[1:-1], rule.inputs[-1])
    if site.args[-1].dtype != site.args[0].dtype:
        raise site.fail("the updates have the operand's element type")
    if site.attrs["kind"] in ("max", "min") and site.args[0].dtype.kind == "c":
        raise site.fail("complex numbers have no order")
    return site.args[0].type


def _scatter_relation(node: Node) -> Relation:
    """An element of operand 0 keeps its index; an update may go anywhere along the marked axes."""
    return related(unmarked(rule_attr(node)), [a.shape for a in node.args], [node.shape], {})


def _scatter_operations(node: Node) -> Dim:
    return 0 if node.attrs["kind"] == "set" else node.args[-1].tensor.size


def movement(
    name: str,
    doc: str,
    infer: Callable[[Site], Type],
    rule: Callable[[Node], Rule],
    algebra: Algebra | Callable[[Node], Algebra] = MOVED,
    **more: Any,
) -> None:
    """Defines an op that moves elements. By default it is linear, increasing and exact in operand
    0.
    """
    define(OpDef(name, doc, "movement", infer, rule=rule, algebra=algebra, **more))


movement(
    "reshape",
    "same elements in row-major order, another shape",
    _reshape_infer,
    _reshape_rule,
    relation=_reshape_relation,
    aliases=True,
    arity=1,
    levels=EVERYWHERE,
)
movement(
    "transpose",
    "axis i of the result is axis perm[i] of the operand",
    _transpose_infer,
    _transpose_rule,
    restated=_restated_transpose,
    arity=1,
    attrs=("perm: ints",),
    levels=EVERYWHERE,
)
movement(
    "broadcast",
    "operand axis i becomes result axis axes[i]; the operand repeats along the others",
    _broadcast_infer,
    _broadcast_rule,
    restated=_restated_broadcast,
    arity=1,
    attrs=("axes: ints",),
    levels=EVERYWHERE,
)
movement(
    "gather",
    "read at data-dependent indices of the axes marked '!'; indices must be in range",
    _gather_infer,
    rule_attr,
    at_least=1,
    attrs=("rule: str",),
    levels=frozenset({"tensor", "tile"}),
)
movement(
    "scatter",
    "combine updates into operand 0 at data-dependent indices; indices must be in range, or with"
    " `drop` updates out of range are ignored",
    _scatter_infer,
    rule_attr,
    relation=_scatter_relation,
    algebra=NOTHING,
    operations=_scatter_operations,
    at_least=2,
    attrs=("rule: str", "kind: str", "drop?: bool"),
)

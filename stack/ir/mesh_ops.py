"""Ops of a mesh: `reshard`, which moves a value as a whole, and what one rank does of it.

A program before partitioning speaks of whole values, and `reshard` changes nothing but where their
elements lie. After it, every rank runs one program on its parts, and these ops are where ranks
meet. `mesh` and `over` say which: groups of ranks that differ along the axes `over` only.

    all_reduce      the combination of what all hold
    all_gather      the parts of all, one after another along a dim
    reduce_scatter  the combination, of which each keeps a part of a dim
    all_to_all      each gives a part of a dim to every other, and joins what comes along another
    permute         what the rank before in `order` holds
    halo            overlapping parts of a dim, of which all hold plain ones
    shard           its own part of a dim of what all hold; sends nothing
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stack.errors import RuleError
from stack.ir.dim import Dim, equal, floordiv, mod, mul
from stack.ir.elementwise_ops import hinted
from stack.ir.mesh import Axes, Mesh, parse_mesh, size_of
from stack.ir.node import Node
from stack.ir.ops import OpDef, Site, define
from stack.ir.overlap import Overlap, sends
from stack.ir.sharding import PARTIAL_KINDS
from stack.ir.types import I64, TensorType, Type


def group_of(attrs: Any) -> tuple[Mesh, Axes]:
    """The mesh of a collective, and the axes that it runs over."""
    mesh = parse_mesh(str(attrs["mesh"]))
    return mesh, mesh.axes_of(str(attrs["over"]))


def _resized(site: Site, *changes: tuple[str, bool]) -> TensorType:
    """The operand's type with dims that an attribute names longer, or shorter, by the group."""
    _, over = group_of(site.attrs)
    ranks, source = size_of(over), site.args[0].tensor
    shape: list[Dim] = list(source.shape)
    for name, grows in changes:
        at: int = site.attrs[name]
        if not 0 <= at < source.rank:
            raise site.fail(f"has no dim {at}")
        if not grows and equal(mod(shape[at], ranks), 0) is not True:
            raise site.fail(f"dim {at} does not make {ranks} equal parts; pad it")
        shape[at] = mul(shape[at], ranks) if grows else floordiv(shape[at], ranks)
    return source.with_shape(tuple(shape))


def _kind(site: Site) -> None:
    if site.attrs["kind"] not in PARTIAL_KINDS:
        raise site.fail(f"kind {site.attrs['kind']!r} is not one of {', '.join(PARTIAL_KINDS)}")


def _all_reduce(site: Site) -> Type:
    _kind(site)
    return _resized(site)


def _reduce_scatter(site: Site) -> Type:
    _kind(site)
    return _resized(site, ("axis", False))


def _all_to_all(site: Site) -> Type:
    if site.attrs["split"] == site.attrs["concat"]:
        raise site.fail("splits one dim and joins another")
    return _resized(site, ("split", False), ("concat", True))


def _permute(site: Site) -> Type:
    mesh, order = parse_mesh(str(site.attrs["mesh"])), site.attrs["order"]
    if sorted(order) != list(range(mesh.ranks)):
        raise site.fail(f"order {list(order)} is not one of {mesh.ranks} ranks")
    return site.args[0].tensor


def overlap_of(attrs: Any) -> Overlap | None:
    """The parts that a `halo` or a `shard` makes, where they are no plain ones."""
    return Overlap(*attrs["overlap"]) if "overlap" in attrs else None


def _overlapping(site: Site) -> TensorType:
    group_of(site.attrs)
    source, at, ends = site.args[0].tensor, site.attrs["axis"], site.attrs["overlap"]
    if not 0 <= at < source.rank:
        raise site.fail(f"has no dim {at}")
    if len(ends) != 3 or ends[1] <= ends[0]:
        raise site.fail(f"overlap {list(ends)} is no start, stop and step of parts")
    return source.with_shape((*source.shape[:at], ends[1] - ends[0], *source.shape[at + 1 :]))


def _shard(site: Site) -> TensorType:
    return _overlapping(site) if "overlap" in site.attrs else _resized(site, ("axis", False))


def _halo(site: Site) -> TensorType:
    _, over = group_of(site.attrs)
    made, at = _overlapping(site), int(site.attrs["axis"])
    part = -(-site.attrs["size"] // size_of(over))
    if equal(site.args[0].shape[at], part) is not True:
        raise site.fail(f"dim {at} is not a part of {part}, of {site.attrs['size']} elements")
    return made


def _place(site: Site) -> Type:
    group_of(site.attrs)
    return TensorType(I64, ())


def _reshard(site: Site) -> Type:
    hint = hinted(site)
    if hint != site.args[0].tensor:
        raise site.fail(f"changes places only, not to {hint}")
    return hint


def _mesh_op(
    name: str, doc: str, infer: Callable[[Site], Type], *attrs: str, arity: int = 1
) -> None:
    given = ("mesh: str", *attrs)
    define(OpDef(name, doc, "collective", infer, attrs=given, arity=arity))


def _unchanged(space: Any, node: Node, run: Any, x: Any) -> Any:
    return x


define(
    OpDef(
        "reshard",
        "the same value, its elements elsewhere",
        "collective",
        _reshard,
        evaluate=_unchanged,
        arity=1,
        spelled=lambda b, node: node.args[0],  # in a program for one device
    )
)
_mesh_op("all_reduce", "what all ranks hold, combined", _all_reduce, "over: str", "kind: str")
_mesh_op(
    "all_gather",
    "the parts of all ranks along a dim",
    lambda site: _resized(site, ("axis", True)),
    "over: str",
    "axis: int",
)
_mesh_op(
    "reduce_scatter",
    "a part of what all ranks hold, combined",
    _reduce_scatter,
    "over: str",
    "kind: str",
    "axis: int",
)
_mesh_op(
    "all_to_all",
    "split one dim among the ranks, join their parts along another",
    _all_to_all,
    "over: str",
    "split: int",
    "concat: int",
)
_mesh_op("permute", "what rank i holds goes to rank order[i]", _permute, "order: ints")
_mesh_op(
    "halo",
    "parts of a dim of `size` that overlap, from plain ones: `start, stop, step`; outside is 0",
    _halo,
    "over: str",
    "axis: int",
    "size: int",
    "overlap: ints",
)
_mesh_op(
    "shard",
    "the rank's part of a dim; of those that overlap, as those of a `halo`",
    _shard,
    "over: str",
    "axis: int",
    "overlap?: ints",
)
_mesh_op(
    "part_start",
    "where the rank's part of a dim of `size` starts",
    _place,
    "over: str",
    "size: int",
    arity=0,
)
_mesh_op(
    "part_held",
    "how many elements the rank's part of a dim of `size` has",
    _place,
    "over: str",
    "size: int",
    arity=0,
)


def sent_bytes(op: str, ranks: int, size: int) -> int:
    """Bytes that a rank sends in a collective of that many, for an input of `size` bytes.

    Those of the algorithms that send least: a ring, and pairs for `all_to_all`.
    """
    if ranks == 1 or not size:
        return 0
    part = -(-size // ranks)
    return {
        "all_reduce": 2 * (ranks - 1) * part,
        "all_gather": (ranks - 1) * size,
        "reduce_scatter": (ranks - 1) * part,
        "all_to_all": (ranks - 1) * part,
        "permute": size,
    }.get(op, 0)


MEETINGS = frozenset(
    {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", "halo"}
)


PLACES = frozenset({"part_start", "part_held", "shard"})


def is_meeting(node: Node) -> bool:
    """Whether ranks send each other something in a node."""
    return node.op in MEETINGS


def is_place(node: Node) -> bool:
    """Whether what a node gives depends on the rank's place, and on nothing that others send."""
    return node.op in PLACES


def traffic(node: Node) -> int:
    """Bytes that a rank sends in a node; 0 for what is no collective."""
    if not is_meeting(node):
        return 0
    if node.op == "halo":
        return sum(halo_messages(node))
    ranks = 2 if node.op == "permute" else size_of(group_of(node.attrs)[1])
    size = node.args[0].tensor.bytes
    if not isinstance(size, int):
        raise RuleError(f"{node.op} of {node.args[0].type}: bytes of a symbolic size")
    return sent_bytes(node.op, ranks, size)


def halo_messages(node: Node) -> list[int]:
    """Bytes of each message of the rank that sends most in a `halo`."""
    source, over = node.args[0].tensor, group_of(node.attrs)[1]
    size, at = int(node.attrs["size"]), int(node.attrs["axis"])
    row = int(str(source.bytes)) // int(str(source.shape[at]))
    counts = sends(size, size_of(over), Overlap(*node.attrs["overlap"]))
    return [row * count for count in counts]

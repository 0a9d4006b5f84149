"""Ops of a mesh: `reshard`, and the collectives of one rank.

Before partitioning, a program uses global values, and `reshard` changes only their sharding. After
it, every rank runs the same program on its parts, and these ops communicate. `mesh` and `over`
define the groups: ranks that differ only along the axes `over`.

    all_reduce      the reduction of the parts of all ranks
    all_gather      the concatenation of all parts along a dim
    reduce_scatter  the reduction, of which each rank keeps its part of a dim
    all_to_all      splits one dim among all ranks and concatenates the received parts along another
    permute         the value of the rank that sends to this one, by `order`
    halo            overlapping parts of a dim, from disjoint parts (halo exchange)
    shard           the rank's own part of a dim of a replicated value; sends nothing
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stack.errors import RuleError
from stack.ir.dim import Dim, equal, floordiv, mod, mul
from stack.ir.elementwise_ops import hinted
from stack.ir.node import Node
from stack.ir.ops import OpDef, Site, define
from stack.ir.types import I64, TensorType, Type
from stack.mesh.meshes import Axes, Mesh, parse_mesh, size_of
from stack.mesh.overlap import Overlap, sends
from stack.mesh.sharding import PARTIAL_KINDS


def group_of(attrs: Any) -> tuple[Mesh, Axes]:
    """Reads the attributes of a collective: returns its mesh, and the mesh axes along which the
    ranks of one group differ.
    """
    mesh = parse_mesh(str(attrs["mesh"]))
    return mesh, mesh.axes_of(str(attrs["over"]))


def _resized(site: Site, *changes: tuple[str, bool]) -> TensorType:
    """The result type of a collective: its operand's type with some dims multiplied or divided by
    the number of ranks in a group. Raises RuleError for a dim that does not divide evenly.

    `changes`: for each dim the attribute with its index, and True if the dim grows.
    """
    _, over = group_of(site.attrs)
    ranks, source = size_of(over), site.args[0].tensor
    shape: list[Dim] = list(source.shape)
    for name, grows in changes:
        at: int = site.attrs[name]
        if not 0 <= at < source.rank:
            raise site.fail(f"has no dim {at}")
        if not grows and equal(mod(shape[at], ranks), 0) is not True:
            raise site.fail(f"dim {at} does not split into {ranks} equal parts; pad it")
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
    """Reads attribute `overlap` of a `halo` or `shard` node: the ranges of elements that the ranks
    get. None if the parts are disjoint.
    """
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
        raise site.fail(f"changes only the sharding, not the type to {hint}")
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
        "the same value with another sharding",
        "collective",
        _reshard,
        evaluate=_unchanged,
        arity=1,
        spelled=lambda b, node: node.args[0],  # in a program for one device
    )
)
_mesh_op("all_reduce", "the reduction over all ranks", _all_reduce, "over: str", "kind: str")
_mesh_op(
    "all_gather",
    "the parts of all ranks, concatenated along a dim",
    lambda site: _resized(site, ("axis", True)),
    "over: str",
    "axis: int",
)
_mesh_op(
    "reduce_scatter",
    "the rank's part of the reduction over all ranks",
    _reduce_scatter,
    "over: str",
    "kind: str",
    "axis: int",
)
_mesh_op(
    "all_to_all",
    "split one dim among the ranks, concatenate the received parts along another",
    _all_to_all,
    "over: str",
    "split: int",
    "concat: int",
)
_mesh_op("permute", "send the part of rank i to rank order[i]", _permute, "order: ints")
_mesh_op(
    "halo",
    "halo exchange: overlapping parts `start, stop, step` of a dim of `size`; 0 outside of it",
    _halo,
    "over: str",
    "axis: int",
    "size: int",
    "overlap: ints",
)
_mesh_op(
    "shard",
    "the rank's part of a dim; with `overlap`, an overlapping part as in `halo`",
    _shard,
    "over: str",
    "axis: int",
    "overlap?: ints",
)
_mesh_op(
    "part_start",
    "start of the rank's part of a dim of `size`",
    _place,
    "over: str",
    "size: int",
    arity=0,
)
_mesh_op(
    "part_held",
    "number of elements of the rank's part of a dim of `size`",
    _place,
    "over: str",
    "size: int",
    arity=0,
)


def sent_bytes(op: str, ranks: int, size: int) -> int:
    """Bytes that a rank sends in a collective over `ranks` ranks, for an input of `size` bytes.

    Assumes the algorithms that send least: a ring, and pairwise exchange for `all_to_all`.
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
    """True if a node is a collective, in which ranks communicate."""
    return node.op in MEETINGS


def is_place(node: Node) -> bool:
    """True if a node depends on the rank's coordinates but not on other ranks' data."""
    return node.op in PLACES


def traffic(node: Node) -> int:
    """Bytes that a rank sends in a node; 0 if the node does not communicate."""
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

"""Constructs nodes: `Builder` infers types and records names and source lines; `rebuild` maps
functions.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from stack.errors import RuleError
from stack.ir.data import Data
from stack.ir.dim import Dim
from stack.ir.func import Func
from stack.ir.node import Block, Node, deps, topological, unique_name
from stack.ir.ops import OPS, find, infer_type
from stack.ir.types import (
    I64,
    DType,
    TensorType,
    TupleType,
    Type,
    dtype_named,
    dtype_of,
)

Operand = Node | int | float | bool


def constant(value: Any, dtype: DType | str | None = None) -> Node:
    """A `const` node from a number or an array. The element type defaults to the array's."""
    kind = dtype_named(dtype) if isinstance(dtype, str) else dtype
    if type(value) is int:
        return _integer(value, kind)
    array = np.asarray(value)
    data = Data(array, kind or dtype_of(array))
    return Node("const", (), {"value": data}, TensorType(data.dtype, data.shape))


@lru_cache(maxsize=1 << 10)
def _integer(value: int, dtype: DType | None) -> Node:
    """A scalar constant, such as an index of a kernel, of which steps make many."""
    return constant(np.asarray(value), dtype)


def param(name: str, type_: Type) -> Node:
    """A parameter of a closed block."""
    return Node("param", (), {"name": name}, type_)


def new_params(hint: str, types: Iterable[Type], beside: Iterable[Node]) -> list[Node]:
    """Parameters `hint0`, `hint1`, ... of these types, renamed if a parameter in `beside` has the
    name.
    """
    taken = {str(p.attrs["name"]) for p in beside}
    return [param(unique_name(f"{hint}{i}", taken, {}), t) for i, t in enumerate(types)]


def make(
    op: str,
    args: Sequence[Node],
    attrs: Mapping[str, Any] | None = None,
    blocks: Sequence[Block] = (),
    hint: Type | None = None,
) -> Node:
    """Returns a node with its inferred type. Raises RuleError, which names operands and rule."""
    attrs = attrs or {}
    made = Node(op, args, attrs, infer_type(op, args, attrs, blocks, hint), blocks)
    made.is_typed = True
    return made


@dataclass(eq=False, repr=False)
class Builder:
    """Makes nodes by op name, `b.add(x, 1.0)`, and records names and source lines.

    New nodes get the source lines `loc`. Names and lines go into the block that `block` or `func`
    makes. Python keywords take a trailing underscore: `b.and_(x, y)`. Numbers among operands become
    constants of the first operand's element type.
    """

    names: dict[Node, str] = field(default_factory=dict[Node, str])
    locs: dict[Node, tuple[str, ...]] = field(default_factory=dict[Node, tuple[str, ...]])
    loc: tuple[str, ...] = ()

    def __getattr__(self, op: str) -> Callable[..., Node]:
        name = op[:-1] if op.endswith("_") and keyword.iskeyword(op[:-1]) else op
        if name not in OPS and find(name) is None:
            raise AttributeError(f"no op {name!r}")

        def build(
            *args: Operand,
            type: Type | None = None,
            blocks: Sequence[Block] = (),
            named: str | None = None,
            **attrs: Any,
        ) -> Node:
            return self.op(name, args, attrs, blocks, type, named)

        return build

    def op(
        self,
        name: str,
        args: Sequence[Operand],
        attrs: Mapping[str, Any] | None = None,
        blocks: Sequence[Block] = (),
        hint: Type | None = None,
        named: str | None = None,
    ) -> Node:
        """Makes one node by op name."""
        nodes = [a for a in args if isinstance(a, Node)]
        given = nodes if len(nodes) == len(args) else _with_constants(args, nodes)
        node = make(name, given, attrs, blocks, hint)
        self.note(node, named)
        return node

    def note(self, node: Node, name: str | None = None) -> None:
        """Adds the builder's current source lines, and optionally a name, to those of a node."""
        if self.loc:
            self.locs[node] = tuple(dict.fromkeys((*self.locs.get(node, ()), *self.loc)))
        if name:
            self.names.setdefault(node, name)

    def const(self, value: Any, dtype: DType | str | None = None) -> Node:
        """A constant."""
        return constant(value, dtype)

    def size_of(self, dim: Any, dtype: DType = I64) -> Node:
        """Returns a scalar node with the value of a size: a constant for a number, else an op
        `size`.
        """
        if isinstance(dim, int):
            return constant(dim, dtype)
        return self.op("size", (), {"value": dim}, hint=TensorType(dtype, ()))

    def block(self, params: Sequence[Node], results: Sequence[Node]) -> Block:
        """A block with the names and source lines recorded so far."""
        return Block(params, results, self.names, self.locs)

    def func(
        self, name: str, params: Sequence[Node], results: Sequence[Node], level: str = "tensor"
    ) -> Func:
        """A function with the names and source lines recorded so far."""
        return Func(name, Block(params, results, self.names, self.locs), level)


def _with_constants(args: Sequence[Operand], nodes: Sequence[Node]) -> list[Node]:
    """Returns operands with constants in place of numbers; `nodes` are those that are none."""
    dtypes = [a.dtype for a in nodes]
    # skip bool: the condition of a select does not have the type of its branches
    dtype = next((d for d in dtypes if d.kind != "b"), dtypes[0] if dtypes else None)
    return [a if isinstance(a, Node) else _number(a, dtype) for a in args]


def _number(value: float, dtype: DType | None) -> Node:
    if dtype is None:
        raise RuleError(f"cannot infer the element type of the number {value!r}")
    if dtype.kind in "bius":
        low, high = (0, 1) if dtype.kind == "b" else _limits(dtype)
        if not low <= value <= high or value != int(value):
            raise RuleError(f"{value!r} is not a number of {dtype}; insert a cast")
    return constant(value, dtype)


def _limits(dtype: DType) -> tuple[int, int]:
    limits = np.iinfo(dtype.numpy)
    return int(limits.min), int(limits.max)


Visit = Callable[[Node, tuple[Node, ...], tuple[Block, ...]], Node]


def _keep(node: Node, args: tuple[Node, ...], blocks: tuple[Block, ...]) -> Node:
    return node.rebuilt(args, blocks=blocks)


class _Carrier:
    """Collects the names and source lines of a rebuilt block: those of each old node go to the new
    node that replaces it.
    """

    def __init__(self, block: Block) -> None:
        self.old = block
        self.names: dict[Node, str] = {}
        self.locs: dict[Node, tuple[str, ...]] = {}

    def carry(self, old: Node, new: Node, known: Mapping[Node, Node], fresh: set[Node]) -> None:
        if old in self.old.names:
            self.names.setdefault(new, self.old.names[old])
        lines = self.old.locs.get(old, ())
        if not lines:
            return
        pending = [new]
        while pending:
            node = pending.pop()
            if node in fresh and node is not new:
                continue
            merged = (*self.locs.get(node, ()), *lines)
            self.locs[node] = tuple(dict.fromkeys(merged))
            fresh.add(node)
            pending.extend(d for d in deps(node) if d not in fresh)


def rebuild_block(
    block: Block,
    visit: Visit = _keep,
    params: Sequence[Node] | None = None,
    names: Mapping[Node, str] | None = None,
    known: Mapping[Node, Node] | None = None,
    carrier: _Carrier | None = None,
    fresh: set[Node] | None = None,
) -> Block:
    """Maps every node of a block, nested blocks first. Keeps names and source lines.

    Args:
        visit: `(old node, new operands, new blocks) -> new node`. Every new node gets the source
            lines of the old one.
        params: replacements for the parameters.
        names: names for new nodes without an old name.
    """
    new_params = tuple(params) if params is not None else block.params
    mapping = dict(known) if known is not None and block.is_open else {}
    mapping.update(zip(block.params, new_params, strict=True))
    own = carrier if carrier is not None and block.is_open else _Carrier(block)
    seen = fresh if fresh is not None and block.is_open else set[Node]()
    seen.update(mapping.values())
    for node in block.nodes:
        blocks = tuple(
            rebuild_block(b, visit, None, names, mapping, own, seen) for b in node.blocks
        )
        new = visit(node, tuple(mapping[a] for a in node.args), blocks)
        own.carry(node, new, mapping, seen)
        mapping[node] = new
        seen.add(new)
    results = tuple(mapping[r] for r in block.results)
    if block.is_open:
        return Block(new_params, results)
    return Block(new_params, results, {**(names or {}), **own.names}, own.locs)


def rebuild(func: Func, visit: Visit = _keep) -> Func:
    """Returns a copy of a function in which `visit` made every node anew; see `rebuild_block`."""
    return Func(func.name, rebuild_block(func.body, visit), func.level)


def results_of(node: Node) -> list[Node]:
    """Each result of a node as a value: the node itself, or the items of its tuple."""
    if not isinstance(node.type, TupleType):
        return [node]
    return [Node("item", (node,), {"index": i}, t) for i, t in enumerate(node.types)]


def block_of(node: Node) -> Block:
    """Returns a closed block that computes only this node, with parameters in place of its
    operands.
    """
    params = [param(f"p{i}", a.type) for i, a in enumerate(node.args)]
    return Block(params, results_of(node.rebuilt(params)))


def remade(roots: Iterable[Node], known: Mapping[Node, Node]) -> dict[Node, Node]:
    """Rebuilds the nodes that the roots need, with the nodes in `known` replaced. Returns a map
    from each old node to its new one.

    Open blocks use the new nodes; closed blocks do not change.
    """
    done = dict(known)
    for node in topological(roots, known=known):
        blocks = [_seeing(b, done) if b.is_open else b for b in node.blocks]
        done[node] = node.rebuilt([done[a] for a in node.args], blocks=blocks)
    return done


def _seeing(block: Block, outer: Mapping[Node, Node]) -> Block:
    """Rebuilds an open block with outer nodes replaced by `outer`.

    Two loops may share a variable. If the variable of the outer loop is replaced, that of the block
    is not: nodes that depend on it mean another value inside.
    """
    renamed = {p for p in block.params if outer.get(p, p) is not p}
    if renamed:
        outer = {n: new for n, new in outer.items() if renamed.isdisjoint(n.vars)}
    done = remade(block.results, {**outer, **{p: p for p in block.params}})
    return Block(block.params, [done[r] for r in block.results])


# ---- source lines


def with_lines(group: Node) -> Node:
    """Returns a fusion, stream or kernel in whose blocks every node has source lines.

    A node without lines gets those of a node that uses it, or else of an operand. So index
    arithmetic has the line of its load, and a loop that of its result. A block without any line
    stays as it is.
    """
    return group.rebuilt(blocks=[located(block) for block in group.blocks])


def located(block: Block) -> Block:
    """Returns a block with source lines on every node, see `with_lines`."""
    nodes = block.all_nodes
    if not block.locs or all(node in block.locs for node in nodes):
        return block
    needs = {n: [*n.args, *(r for b in n.blocks if b.is_open for r in b.results)] for n in nodes}
    users: dict[Node, list[Node]] = {}
    for node in nodes:
        for need in needs[node]:
            users.setdefault(need, []).append(node)
    lines = dict(block.locs)
    # the last pass is for what serves a node that only its operands located
    for order, others in ((reversed(nodes), users), (nodes, needs), (reversed(nodes), users)):
        for node in order:
            found = next((lines[o] for o in others.get(node, ()) if o in lines), None)
            if node not in lines and found is not None:
                lines[node] = found
    return Block(block.params, block.results, block.names, lines)


# ---- ops that are left out if they change nothing


def converted(x: Node, dtype: DType) -> Node:
    """Converts a value to an element type."""
    return x if x.dtype == dtype else make("cast", (x,), hint=x.tensor.with_dtype(dtype))


def reshaped(x: Node, shape: Sequence[Dim]) -> Node:
    """Reshapes a value."""
    if x.shape == tuple(shape):
        return x
    return make("reshape", (x,), hint=x.tensor.with_shape(tuple(shape)))


def filled(x: Node, like: Node) -> Node:
    """Repeats a number in all elements of an array with the shape of `like`."""
    if x.tensor.rank or not like.tensor.rank:
        return x
    return make("broadcast", (x,), {"axes": ()}, hint=like.tensor.with_dtype(x.dtype))


def spread_by_name(
    x: Node, names: Sequence[str], wanted: Sequence[str], shape: Sequence[Dim]
) -> Node:
    """Broadcasts a value to the axes `wanted` of an array with this shape, by the names of its own
    axes. Axes that the array does not have are dropped; they have one element.
    """
    kept = [n for n in names if n in wanted]
    x = reshaped(x, [size for n, size in zip(names, x.shape, strict=True) if n in wanted])
    order = sorted(range(len(kept)), key=lambda i: wanted.index(kept[i]))
    if order != list(range(len(kept))):
        x = make("transpose", (x,), {"perm": tuple(order)})
    if len(kept) == len(wanted):
        return x
    axes = tuple(wanted.index(kept[i]) for i in order)
    return make("broadcast", (x,), {"axes": axes}, hint=x.tensor.with_shape(tuple(shape)))


def sliced(x: Node, start: Sequence[Dim], limit: Sequence[Dim]) -> Node:
    """Slices a value: along each axis from `start` up to `limit`, without the latter."""
    start, limit = tuple(start), tuple(limit)
    if limit == x.shape and not any(start):
        return x
    return make("slice", (x,), {"start": start, "limit": limit, "step": (1,) * len(start)})


def padded(x: Node, low: Sequence[int], high: Sequence[int], fill: float = 0) -> Node:
    """Adds `low` elements `fill` before and `high` behind those of each axis of a value."""
    if not any((*low, *high)):
        return x
    attrs = {"low": tuple(low), "high": tuple(high), "interior": (0,) * x.tensor.rank}
    return make("pad", (x, constant(fill, x.dtype)), attrs)

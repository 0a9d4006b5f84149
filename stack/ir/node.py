"""Nodes and blocks. All are immutable and interned.

Two nodes with the same op, operands, attributes, type and blocks are the same object, so common
subexpressions are shared by construction. Names and source lines are not part of a node: each
closed block keeps them in a table, which the engine carries through rewrites.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from stack.ir.data import Data
from stack.ir.dim import Dim, Expr, Symbol, symbols
from stack.ir.types import DType, TensorType, TupleType, Type

# None, bool, int, float, str, Expr, Data, DType, and tuples of these
Attr = Any

_NODES: weakref.WeakValueDictionary[tuple[Any, ...], Node] = weakref.WeakValueDictionary()
_BLOCKS: weakref.WeakValueDictionary[tuple[Any, ...], Block] = weakref.WeakValueDictionary()

_EMPTY: frozenset[Node] = frozenset()
_PLAIN = (int, str, bool, type(None), Expr, Data, DType)
_TRUE, _FALSE, _FLOAT = object(), object(), object()


@lru_cache(maxsize=4096)
def legal_name(hint: str) -> str:
    """The closest name that the IR text allows: letters, digits, `_` and inner dots."""
    if hint.isascii() and hint.isidentifier():
        return hint
    return "".join(c if c.isalnum() or c in "_." else "_" for c in hint).strip(".") or "v"


def unique_name(hint: str, taken: set[str], counts: dict[str, int]) -> str:
    """Returns a name that is not taken, and takes it: `x`, `x_1`, `x_2`, ..."""
    hint = legal_name(hint)
    name = hint
    while name in taken:
        counts[hint] = counts.get(hint, 0) + 1
        name = f"{hint}_{counts[hint]}"
    taken.add(name)
    return name


def _attr_key(value: object) -> Any:
    """A key that distinguishes 1, True and 1.0, and 0.0 and -0.0, and equates nans, unlike Python's
    ==.
    """
    if isinstance(value, tuple):
        return tuple(map(_attr_key, cast("tuple[Any]", value)))
    if isinstance(value, bool):
        return _TRUE if value else _FALSE
    return (_FLOAT, value.hex()) if isinstance(value, float) else value


def plain_attr(name: str, value: object) -> Attr:
    """Normalizes an attribute value: lists become tuples, NumPy scalars become Python scalars.

    Raises TypeError for a value that has no text form.
    """
    kind = type(value)
    if kind in _PLAIN or kind is float:
        return value
    if isinstance(value, list | tuple):
        items = cast("Sequence[Any]", value)
        return tuple([plain_attr(name, v) for v in items])
    for numpy_kind, python_kind in (
        (np.bool_, bool),
        (np.integer | int, int),
        (np.floating | float, float),
        (str, str),
    ):
        if isinstance(value, numpy_kind):
            return python_kind(cast("Any", value))
    raise TypeError(f"attribute {name!r} has no text form: {value!r}")


class Interned:
    """Base of interned objects, of which equal ones are the same object. Copying returns the object
    itself. Pickling raises TypeError: functions are saved as text by `stack.ir.files`.
    """

    __slots__ = ()

    def __copy__(self) -> Any:
        return self

    def __deepcopy__(self, memo: Any) -> Any:
        return self

    def __reduce__(self) -> Any:
        raise TypeError(f"{type(self).__name__} is not pickled; save it with stack.ir.files")


class Node(Interned):
    """One operation with its operands. Make nodes with a `Builder`, which infers the type."""

    __slots__ = (
        "__weakref__", "args", "attrs", "blocks", "dtype", "facts", "is_typed", "key", "op",
        "shape", "tensor", "type", "types", "vars",
    )  # fmt: skip

    op: str
    args: tuple[Node, ...]
    attrs: Mapping[str, Attr]
    type: Type
    types: tuple[TensorType, ...]  # of all results
    tensor: TensorType  # the type of a node with one result, like its `shape` and `dtype`
    shape: tuple[Dim, ...]
    dtype: DType
    blocks: tuple[Block, ...]
    vars: frozenset[Node]  # loop variables that the value depends on
    key: tuple[Any, ...]  # op and attributes, for equality
    facts: (
        dict[Any, Any] | None
    )  # cached facts, shared by equivalent nodes; see `stack.ir.equivalence`
    is_typed: bool  # True if the type was checked against the op's type inference

    def __new__(
        cls,
        op: str,
        args: Sequence[Node],
        attrs: Mapping[str, Attr],
        type_: Type,
        blocks: Sequence[Block] = (),
    ) -> Node:
        held = {k: plain_attr(k, attrs[k]) for k in sorted(attrs)} if attrs else {}
        if op in ("param", "var"):
            held["name"] = legal_name(str(held["name"]))
        own = (op, *((k, _attr_key(v)) for k, v in held.items()))
        return cls._interned(own, tuple(args), held, type_, tuple(blocks))

    @classmethod
    def _interned(
        cls,
        own: tuple[Any, ...],
        args: tuple[Node, ...],
        attrs: Mapping[str, Attr],
        type_: Type,
        blocks: tuple[Block, ...],
    ) -> Node:
        key = (own, args, type_, type_.sharding, blocks)
        found = _NODES.get(key)
        if found is not None:
            return found
        self = object.__new__(cls)
        self.op = op = own[0]
        self.key = own
        self.args = args
        self.attrs = attrs
        self.type = type_
        if isinstance(type_, TupleType):
            self.types = type_.items
        else:
            self.types, self.tensor = (type_,), type_
            self.shape, self.dtype = type_.shape, type_.dtype
        self.blocks = blocks
        self.facts = None
        self.is_typed = False
        used = [a.vars for a in args if a.vars]
        used.extend(b.free for b in blocks)
        if op == "var":
            self.vars = frozenset((self,))
        else:
            self.vars = _EMPTY.union(*used) if used else _EMPTY
        return _NODES.setdefault(key, self)

    def rebuilt(
        self,
        args: Sequence[Node] | None = None,
        attrs: Mapping[str, Attr] | None = None,
        type_: Type | None = None,
        blocks: Sequence[Block] | None = None,
    ) -> Node:
        """The node with the given parts replaced. Returns the node itself if nothing differs."""
        args = self.args if args is None else tuple(args)
        blocks = self.blocks if blocks is None else tuple(blocks)
        if attrs is None and type_ is None and (args, blocks) == (self.args, self.blocks):
            return self
        type_ = self.type if type_ is None else type_
        if attrs is not None:
            return Node(self.op, args, attrs, type_, blocks)
        return self._interned(self.key, args, self.attrs, type_, blocks)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Called for empty slots: a node with several results has no `tensor`."""
            if name in ("tensor", "shape", "dtype"):
                raise TypeError(f"{self.op!r} has {len(self.types)} results; pick one with item")
            raise AttributeError(name)

    def __repr__(self) -> str:
        return f"<{self.op} : {self.type}>"


def deps(node: Node) -> tuple[Node, ...]:
    """The values that a node needs: its operands, then the captures of its open blocks."""
    found = node.args
    for block in node.blocks:
        found += block.captures
    return found


def topological(
    roots: Iterable[Node],
    inside: Callable[[Node], bool] | None = None,
    known: Container[Node] = (),
    over: frozenset[Node] | None = None,
) -> list[Node]:
    """Every node that the roots need, operands first, in a stable order; no recursion.

    Args:
        roots: the values.
        inside: only nodes for which it is True, with what they need.
        known: leaves out these nodes, without a call for each.
        over: only nodes that depend on one of these variables.
    """
    done: dict[Node, None] = {}
    pending: list[Node] = []
    needs = [iter(roots)]  # what `pending` still needs, after the roots
    while needs:
        for n in needs[-1]:
            if n in done or n in known or (over is not None and over.isdisjoint(n.vars)):
                continue
            if inside is None or inside(n):
                pending.append(n)
                needs.append(iter(deps(n) if n.blocks else n.args))
                break
        else:
            needs.pop()
            if pending:
                done[pending.pop()] = None
    return list(done)


def by_distance(roots: Iterable[Node]) -> list[Node]:
    """Sorts roots by their longest path from a leaf, shortest first; stable.

    In the order of `topological`, live ranges are then short: the gradient of the last layer is
    computed before the inputs of the first layer's gradient.
    """
    roots, distance = list(roots), dict[Node, int]()
    for node in topological(roots):
        distance[node] = 1 + max((distance[d] for d in deps(node)), default=0)
    return sorted(roots, key=distance.__getitem__)


def is_inline(node: Node) -> bool:
    """True if a node prints inside its users instead of on its own line: scalar constants."""
    if node.op != "const" or not isinstance(node.type, TensorType):
        return False
    value = node.attrs.get("value")
    is_scalar = node.type.rank == 0 and node.type.space == "value"
    return is_scalar and isinstance(value, Data) and value.shape == ()


class Block(Interned):
    """Parameters and results, with the names and source lines of the nodes between them.

    A closed block (its parameters are `param` nodes) sees nothing outside. An open block (its
    parameters are `var` nodes, as in a loop) may use values of the enclosing block. It contains
    exactly the nodes that depend on its variables.
    """

    __slots__ = (
        "__dict__", "__weakref__", "facts", "free", "is_open", "locs", "names", "params", "results",
    )  # fmt: skip

    params: tuple[Node, ...]
    results: tuple[Node, ...]
    names: Mapping[Node, str]
    locs: Mapping[Node, tuple[str, ...]]
    is_open: bool  # True if the block may use values of the enclosing block
    free: frozenset[Node]  # loop variables of enclosing blocks that the results depend on
    facts: dict[Any, Any]  # cached facts; see `stack.ir.equivalence.once_in`

    def __new__(
        cls,
        params: Sequence[Node],
        results: Sequence[Node],
        names: Mapping[Node, str] | None = None,
        locs: Mapping[Node, tuple[str, ...]] | None = None,
    ) -> Block:
        self = object.__new__(cls)
        self.params = tuple(params)
        self.results = tuple(results)
        self.facts = {}
        self.is_open = any([p.op == "var" for p in self.params])
        self.free = _EMPTY.union(*[r.vars for r in self.results]).difference(self.params)
        self.names = {} if self.is_open else name_table(self, names or {})
        lines = locs or {}
        found = [(n, lines[n]) for n in self.names if lines.get(n)]
        self.locs = {n: tuple(sorted(set(own))) if len(own) > 1 else own for n, own in found}
        key = (self.params, self.results, tuple(self.names.items()), tuple(self.locs.items()))
        return _BLOCKS.setdefault(key, self)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of this block, operands first, without parameters and nested blocks."""
        own = frozenset(self.params)
        return tuple(topological(self.results, known=own, over=own if self.is_open else None))

    @cached_property
    def all_nodes(self) -> tuple[Node, ...]:
        """Nodes of the block and of the open blocks in it, each once, operands first."""
        if not any(node.blocks for node in self.nodes):
            return self.nodes
        found: dict[Node, None] = {}
        for node in self.nodes:
            for inner in node.blocks:
                if inner.is_open:
                    found.update(dict.fromkeys(inner.all_nodes))
            found[node] = None
        return tuple(found)

    @cached_property
    def captures(self) -> tuple[Node, ...]:
        """Values of the enclosing block that an open block uses, in order of first use."""
        if not self.is_open:
            return ()
        used = [d for n in self.nodes for d in (deps(n) if n.blocks else n.args)]
        own = {*self.params, *self.nodes}
        return tuple(dict.fromkeys([d for d in (*used, *self.results) if d not in own]))

    @cached_property
    def ops(self) -> frozenset[str]:
        """Names of the ops of its nodes, including nested blocks."""
        inner = {block for node in self.nodes for block in node.blocks}
        own = (node.op for node in (*self.params, *self.nodes))
        return frozenset(own).union(*(block.ops for block in inner))

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        """Size symbols in the types and attributes of its nodes, including nested blocks, by
        name.
        """
        found: set[Symbol] = set()
        pending: list[Any] = []
        for node in (*self.params, *self.nodes):
            pending += [*(t.shape for t in node.types), *node.attrs.values()]
            for block in node.blocks:
                found.update(block.symbols)
        for value in pending:  # grows during the loop
            if isinstance(value, tuple):
                pending += cast("tuple[Any, ...]", value)
            elif isinstance(value, Expr):
                found |= symbols(value)
        return tuple(sorted(found, key=lambda s: (s.name, s.low, s.high, s.multiple)))

    @cached_property
    def meshes(self) -> tuple[Any, ...]:
        """Meshes in the types of its nodes, including nested blocks, sorted by text."""
        found: set[Any] = set()
        for node in (*self.params, *self.nodes):
            if node.type.sharding:
                found.update(t.sharding.mesh for t in node.types if t.sharding is not None)
            for block in node.blocks:
                found.update(block.meshes)
        return tuple(sorted(found, key=str))

    @property
    def type(self) -> tuple[Type, ...]:
        return tuple(r.type for r in self.results)

    def lines_of(self, nodes: Iterable[Node]) -> tuple[str, ...]:
        """Source lines of nodes, in order of the nodes, each once."""
        return tuple(dict.fromkeys([line for n in nodes for line in self.locs.get(n, ())]))


def name_table(block: Block, hints: Mapping[Node, str]) -> dict[Node, str]:
    """A unique name for every node that needs one in the text of a closed block: the nodes of the
    block and of its open blocks, without parameters and scalar constants. The name is derived from
    the node's hint or its op.
    """
    found: dict[Node, None] = {}
    taken = {str(p.attrs["name"]) for p in block.params}
    pending = deque([block])
    while pending:
        for node in pending.popleft().nodes:
            if node.op != "param" and not (node.op == "const" and is_inline(node)):
                found[node] = None  # two loops may contain the same node
            for inner in node.blocks:
                if inner.is_open:
                    taken.update(str(v.attrs["name"]) for v in inner.params)
                    pending.append(inner)
    counts: dict[str, int] = {}
    return {n: unique_name(hints.get(n) or n.op, taken, counts) for n in found}


def is_op_name(node: Node, name: str) -> bool:
    """True if the name of a node was generated from its op: the program has no name for it."""
    return name == node.op or name.rpartition("_")[0] == node.op


def remade_block(
    block: Block, done: Mapping[Node, Node], params: Iterable[Node] | None = None
) -> Block:
    """Rebuilds a block whose old nodes `done` maps to new nodes. The new nodes keep names and
    source lines.

    `params`: the new parameters, if they are not those of `done`.
    """
    names = {done[n]: name for n, name in block.names.items() if n in done}
    locs = {done[n]: lines for n, lines in block.locs.items() if n in done}
    own = [done[p] for p in block.params] if params is None else params
    return Block([*own], [done[r] for r in block.results], names, locs)


def walk(block: Block) -> Iterable[tuple[Block, Node]]:
    """Every node of a block and of all blocks inside it, each block once, with its block."""
    seen: set[Block] = set()
    pending = [block]
    while pending:
        current = pending.pop()
        if current in seen:
            continue
        seen.add(current)
        for node in (*current.params, *current.nodes):
            yield current, node
            pending.extend(node.blocks)

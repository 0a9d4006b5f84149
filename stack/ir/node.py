"""Nodes, blocks and functions. All are immutable and interned.

Two nodes with the same op, operands, attributes, type and blocks are the same object, so common
subexpressions are shared by construction. Names and source lines are not part of a node: each
closed block keeps them in a table, which the engine carries through rewrites.
"""

from __future__ import annotations

import html
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from stack.ir.data import Data
from stack.ir.dim import Dim, Expr, Symbol, substitute, symbols
from stack.ir.mesh import Mesh
from stack.ir.names import is_inline, legal_name, name_table, own_names, unique_name
from stack.ir.types import DType, TensorType, TupleType, Type, type_symbols

__all__ = [
    "Block",
    "Func",
    "Node",
    "deps",
    "is_inline",
    "own_names",
    "plain_attr",
    "substitute_attr",
    "substitute_type",
    "topological",
    "unique_name",
    "walk",
]

# None, bool, int, float, str, Expr, Data, DType, and tuples of these
Attr = Any

_NODES: weakref.WeakValueDictionary[tuple[Any, ...], Node] = weakref.WeakValueDictionary()
_BLOCKS: weakref.WeakValueDictionary[tuple[Any, ...], Block] = weakref.WeakValueDictionary()
_FUNCS: weakref.WeakValueDictionary[tuple[Any, ...], Func] = weakref.WeakValueDictionary()

_EMPTY: frozenset[Node] = frozenset()
_PLAIN = (int, str, bool, type(None), Expr, Data, DType)
_TRUE, _FALSE, _FLOAT = object(), object(), object()


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


class _Interned:
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


class Node(_Interned):
    """One operation with its operands. Make nodes with a `Builder`, which infers the type."""

    __slots__ = (
        "__weakref__", "args", "attrs", "blocks", "facts", "is_typed", "key", "op", "type", "vars",
    )  # fmt: skip

    op: str
    args: tuple[Node, ...]
    attrs: Mapping[str, Attr]
    type: Type
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

    @property
    def tensor(self) -> TensorType:
        """The type of a node with one result."""
        if isinstance(self.type, TupleType):
            raise TypeError(f"{self.op!r} has {len(self.type.items)} results; pick one with item")
        return self.type

    @property
    def types(self) -> tuple[TensorType, ...]:
        """Types of all results."""
        return self.type.items if isinstance(self.type, TupleType) else (self.type,)

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.tensor.shape

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    def __repr__(self) -> str:
        return f"<{self.op} : {self.type}>"


def deps(node: Node) -> tuple[Node, ...]:
    """The values that a node needs: its operands, then the captures of its open blocks."""
    if not node.blocks:
        return node.args
    return node.args + tuple(c for b in node.blocks for c in b.captures)


def topological(roots: Iterable[Node], inside: Callable[[Node], bool] | None = None) -> list[Node]:
    """Every node that the roots need, operands first, in a stable order; no recursion."""
    done: dict[Node, None] = {}
    for root in roots:
        if inside is not None and not inside(root):
            continue
        stack: list[Node | None] = [root]
        while stack:
            node = stack.pop()
            if node is None:  # the dependencies of the node below are done
                node = stack.pop()
                assert node is not None
                done[node] = None
                continue
            if node in done:
                continue
            first = [d for d in (deps(node) if node.blocks else node.args) if d not in done]
            if inside is not None:
                first = [d for d in first if inside(d)]
            if first:
                stack += (node, None)
                stack += first[::-1]
            else:
                done[node] = None
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


class Block(_Interned):
    """Parameters and results, with the names and source lines of the nodes between them.

    A closed block (its parameters are `param` nodes) sees nothing outside. An open block (its
    parameters are `var` nodes, as in a loop) may use values of the enclosing block. It contains
    exactly the nodes that depend on its variables.
    """

    __slots__ = ("__dict__", "__weakref__", "locs", "names", "params", "results")

    params: tuple[Node, ...]
    results: tuple[Node, ...]
    names: Mapping[Node, str]
    locs: Mapping[Node, tuple[str, ...]]

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
        self.names = {} if self.is_open else name_table(self, names or {})
        lines = locs or {}
        self.locs = {n: _in_order(lines[n]) for n in self.names if lines.get(n)}
        key = (self.params, self.results, tuple(self.names.items()), tuple(self.locs.items()))
        return _BLOCKS.setdefault(key, self)

    @cached_property
    def is_open(self) -> bool:
        """True if the block may use values of the enclosing block."""
        return any(p.op == "var" for p in self.params)

    @cached_property
    def facts(self) -> dict[Any, Any]:
        """Cached facts; see `stack.ir.equivalence.once_in`."""
        return {}

    @cached_property
    def free(self) -> frozenset[Node]:
        """Loop variables that the results of this block depend on and that are no parameters of it,
        but of an enclosing block.
        """
        used = _EMPTY.union(*(r.vars for r in self.results))
        return used.difference(self.params)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of this block, operands first, without parameters and nested blocks."""
        own = set(self.params)

        def inside(node: Node) -> bool:
            return not own.isdisjoint(node.vars)

        found = topological(self.results, inside if self.is_open else None)
        return tuple([n for n in found if n not in own])

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
        own = set(self.params)
        found: dict[Node, None] = {}
        for node in (*self.nodes, None):
            for dep in deps(node) if node is not None else self.results:
                if dep not in own and own.isdisjoint(dep.vars):
                    found[dep] = None
        return tuple(found)

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """Size symbols in the types and attributes of its nodes, including nested blocks."""
        found: set[Symbol] = set()
        for node in (*self.params, *self.nodes):
            found |= type_symbols(node.type)
            for value in node.attrs.values():
                if isinstance(value, tuple | Expr):
                    found |= _attr_symbols(value)
            for block in node.blocks:
                found |= block.symbols
        return frozenset(found)

    @cached_property
    def meshes(self) -> frozenset[Mesh]:
        """Meshes in the types of its nodes, including nested blocks."""
        found: set[Mesh] = set()
        for node in (*self.params, *self.nodes):
            if node.type.sharding:
                found.update(t.sharding.mesh for t in node.types if t.sharding is not None)
            for block in node.blocks:
                found |= block.meshes
        return frozenset(found)

    @property
    def type(self) -> tuple[Type, ...]:
        return tuple(r.type for r in self.results)


def _in_order(lines: tuple[str, ...]) -> tuple[str, ...]:
    """Source lines sorted, each once."""
    return tuple(sorted(set(lines))) if len(lines) > 1 else tuple(lines)


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


class Func(_Interned):
    """A named closed block at one level ("tensor", "tile" or "loop")."""

    __slots__ = ("__dict__", "__weakref__", "body", "level", "name")

    name: str
    level: str
    body: Block

    def __new__(cls, name: str, body: Block, level: str = "tensor") -> Func:
        name = legal_name(name)
        key = (name, level, body)
        found = _FUNCS.get(key)
        if found is not None:
            return found
        self = object.__new__(cls)
        self.name = name
        self.level = level
        self.body = body
        return _FUNCS.setdefault(key, self)

    @property
    def params(self) -> tuple[Node, ...]:
        return self.body.params

    @property
    def results(self) -> tuple[Node, ...]:
        return self.body.results

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of the body, operands first."""
        return self.body.nodes

    def __str__(self) -> str:
        from stack.ir.printer import print_func

        return print_func(self)

    def __repr__(self) -> str:
        return f"<Func {self.name} at {self.level}: {len(self.nodes)} nodes>"

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def interpret(self, *arrays: Any) -> Any:
        """Run in the reference interpreter on NumPy arrays; one array, or a tuple of them."""
        from stack.ir.interpreter import interpret

        return interpret(self, *arrays)

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        """Size symbols that the function is generic over, by name."""
        return tuple(sorted(self.body.symbols, key=lambda s: (s.name, s.low, s.high, s.multiple)))

    @cached_property
    def meshes(self) -> tuple[Mesh, ...]:
        """Meshes that occur in the types of the function, sorted by text."""
        return tuple(sorted(self.body.meshes, key=str))

    def bind(self, values: Mapping[str, int]) -> Func:
        """The same function with size symbols replaced by numbers."""
        from stack.ir.builder import substitute_sizes

        return substitute_sizes(self, values)


def _attr_symbols(value: Attr) -> set[Symbol]:
    if isinstance(value, tuple):
        return {s for v in cast("tuple[Any]", value) for s in _attr_symbols(v)}
    return symbols(value) if isinstance(value, Expr) else set()


def substitute_type(type_: Type, values: Mapping[str, Dim]) -> Type:
    """A type with size symbols replaced."""
    if isinstance(type_, TupleType):
        items = tuple(
            replace(t, shape=tuple(substitute(d, values) for d in t.shape)) for t in type_.items
        )
        return TupleType(items)
    return replace(type_, shape=tuple(substitute(d, values) for d in type_.shape))


def substitute_attr(value: Attr, values: Mapping[str, Dim]) -> Attr:
    """An attribute with size symbols replaced."""
    if isinstance(value, tuple):
        return tuple(substitute_attr(v, values) for v in cast("tuple[Any]", value))
    return substitute(value, values) if isinstance(value, Expr) else value

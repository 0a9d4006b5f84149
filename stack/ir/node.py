"""The one node class, blocks and functions. All are immutable and interned.

Two nodes with the same op, operands, attributes, type and blocks are the same object, so a common
subexpression exists once by construction. Names and source lines are not part of a node: each
closed block keeps them in a table, which the engine carries through rewrites.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from stack.ir.data import Data
from stack.ir.dim import Dim, Expr, Symbol, substitute, symbols
from stack.ir.types import DType, TensorType, TupleType, Type, type_symbols

# Dim covers int; nested tuples allowed
Attr = Any

_NODES: weakref.WeakValueDictionary[tuple[Any, ...], Node] = weakref.WeakValueDictionary()
_BLOCKS: weakref.WeakValueDictionary[tuple[Any, ...], Block] = weakref.WeakValueDictionary()
_FUNCS: weakref.WeakValueDictionary[tuple[Any, ...], Func] = weakref.WeakValueDictionary()

_EMPTY: frozenset[Node] = frozenset()


def _attr_key(value: Attr) -> Any:
    """Python holds 1 == True == 1.0 and nan != nan; a key must not."""
    if isinstance(value, tuple):
        return tuple(_attr_key(v) for v in value)
    if isinstance(value, float):
        return ("float", value.hex())
    return (type(value).__name__, value)


def _check_attr(op: str, name: str, value: Attr) -> Attr:
    if isinstance(value, list | tuple):
        return tuple(_check_attr(op, name, v) for v in value)
    if isinstance(value, np.integer):
        return int(value)
    if value is None or isinstance(value, bool | int | float | str | Expr | Data | DType):
        return value
    raise TypeError(f"attribute {name!r} of {op!r} has no text form: {value!r}")


class Node:
    """One operation with its operands. Make nodes with a `Builder`, which infers the type."""

    __slots__ = ("__weakref__", "args", "attrs", "blocks", "op", "type", "vars")

    op: str
    args: tuple[Node, ...]
    attrs: Mapping[str, Attr]
    type: Type
    blocks: tuple[Block, ...]
    vars: frozenset[Node]  # loop variables that the value depends on

    def __new__(
        cls,
        op: str,
        args: Sequence[Node],
        attrs: Mapping[str, Attr],
        type_: Type,
        blocks: Sequence[Block] = (),
    ) -> Node:
        args, blocks = tuple(args), tuple(blocks)
        items = sorted((k, _check_attr(op, k, v)) for k, v in attrs.items())
        key = (op, args, tuple((k, _attr_key(v)) for k, v in items), type_, blocks)
        found = _NODES.get(key)
        if found is not None:
            return found
        self = object.__new__(cls)
        self.op = op
        self.args = args
        self.attrs = dict(items)
        self.type = type_
        self.blocks = blocks
        if op == "var":
            self.vars = frozenset((self,))
        else:
            self.vars = _EMPTY.union(*(a.vars for a in args), *(b.free for b in blocks))
        return _NODES.setdefault(key, self)

    @property
    def tensor(self) -> TensorType:
        """The type of a node with one result."""
        if isinstance(self.type, TupleType):
            raise TypeError(f"{self.op!r} has {len(self.type.items)} results; pick one with item")
        return self.type

    @property
    def shape(self) -> tuple[Dim, ...]:
        return self.tensor.shape

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    def __repr__(self) -> str:
        return f"<{self.op} : {self.type}>"


def deps(node: Node) -> tuple[Node, ...]:
    """What must be computed before a node: operands, then what its open blocks capture."""
    if not node.blocks:
        return node.args
    return node.args + tuple(c for b in node.blocks for c in b.captures)


def topological(
    roots: Iterable[Node], inside: Callable[[Node], bool] = lambda _: True
) -> list[Node]:
    """Every node that the roots need, operands first, in a stable order; no recursion."""
    done: set[Node] = set()
    order: list[Node] = []
    for root in roots:
        stack: list[tuple[Node, bool]] = [(root, False)]
        while stack:
            node, ready = stack.pop()
            if node in done or not inside(node):
                continue
            if ready:
                done.add(node)
                order.append(node)
                continue
            stack.append((node, True))
            stack.extend((d, False) for d in reversed(deps(node)) if d not in done)
    return order


class Block:
    """Parameters, results, and the names and source lines of what lies between.

    A closed block (its parameters are `param` nodes) sees nothing outside. An open block (its
    parameters are `var` nodes, as in a loop) may use values of the enclosing block, and holds
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
        params, results = tuple(params), tuple(results)
        is_open = any(p.op == "var" for p in params)
        table: dict[Node, str] = {}
        places: dict[Node, tuple[str, ...]] = {}
        if not is_open:
            table, places = _tables(params, results, names or {}, locs or {})
        key = (params, results, tuple(table.items()), tuple(places.items()))
        found = _BLOCKS.get(key)
        if found is not None:
            return found
        self = object.__new__(cls)
        self.params = params
        self.results = results
        self.names = table
        self.locs = places
        return _BLOCKS.setdefault(key, self)

    @property
    def is_open(self) -> bool:
        return any(p.op == "var" for p in self.params)

    @cached_property
    def free(self) -> frozenset[Node]:
        """Loop variables of enclosing blocks that this block uses."""
        used = _EMPTY.union(*(r.vars for r in self.results))
        return used.difference(self.params)

    @cached_property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes of this block alone, operands first, parameters left out."""
        own = set(self.params)
        if not self.is_open:
            return tuple(n for n in topological(self.results) if n not in own)
        inner = [n for n in topological(self.results, lambda n: not own.isdisjoint(n.vars))]
        return tuple(n for n in inner if n not in own)

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

    @property
    def type(self) -> tuple[Type, ...]:
        return tuple(r.type for r in self.results)


def is_inline(node: Node) -> bool:
    """Whether a node prints in place instead of on a line of its own: scalar constants."""
    return node.op == "const" and node.tensor.rank == 0


def own_names(block: Block) -> list[Node]:
    """All nodes of a closed block and of the open blocks inside it, that need a name."""
    found: list[Node] = []
    pending: list[Block] = [block]
    while pending:
        current = pending.pop(0)
        for node in current.nodes:
            if node.op != "param" and not is_inline(node):
                found.append(node)
            pending.extend(b for b in node.blocks if b.is_open)
    return found


def _tables(
    params: tuple[Node, ...],
    results: tuple[Node, ...],
    names: Mapping[Node, str],
    locs: Mapping[Node, tuple[str, ...]],
) -> tuple[dict[Node, str], dict[Node, tuple[str, ...]]]:
    probe = object.__new__(Block)
    probe.params, probe.results = params, results
    probe.names, probe.locs = {}, {}
    taken: set[str] = {str(p.attrs["name"]) for p in params}
    nodes = own_names(probe)
    for node in nodes:
        taken.update(str(v.attrs["name"]) for b in node.blocks if b.is_open for v in b.params)
    table: dict[Node, str] = {}
    counts: dict[str, int] = {}
    for node in nodes:
        table[node] = unique_name(names.get(node) or node.op, taken, counts)
    return table, {n: tuple(sorted(set(locs[n]))) for n in nodes if locs.get(n)}


def unique_name(hint: str, taken: set[str], counts: dict[str, int]) -> str:
    """A name that is not taken yet; takes it. `x`, `x_1`, `x_2`, ..."""
    hint = "".join(c if c.isalnum() or c in "_." else "_" for c in hint).strip(".") or "v"
    name = hint
    while name in taken:
        counts[hint] = counts.get(hint, 0) + 1
        name = f"{hint}_{counts[hint]}"
    taken.add(name)
    return name


class Func:
    """A named closed block at one level ("tensor", "tile" or "loop" and what is above it)."""

    __slots__ = ("__dict__", "__weakref__", "body", "level", "name")

    name: str
    level: str
    body: Block

    def __new__(cls, name: str, body: Block, level: str = "tensor") -> Func:
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

    def interpret(self, *arrays: Any) -> Any:
        """Run in the reference interpreter on NumPy arrays; one array, or a tuple of them."""
        from stack.ir.interpreter import interpret

        return interpret(self, *arrays)

    @cached_property
    def symbols(self) -> tuple[Symbol, ...]:
        """Size symbols that the function is generic over, by name."""
        found: set[Symbol] = set()
        for node in (*self.params, *self.nodes):
            found |= type_symbols(node.type)
            for value in node.attrs.values():
                found |= _attr_symbols(value)
        return tuple(sorted(found, key=lambda s: s.name))

    def bind(self, values: Mapping[str, int]) -> Func:
        """The same function with size symbols replaced by numbers."""
        from stack.ir.builder import substitute_sizes

        return substitute_sizes(self, values)


def _attr_symbols(value: Attr) -> set[Symbol]:
    if isinstance(value, tuple):
        return {s for v in value for s in _attr_symbols(v)}
    return symbols(value) if isinstance(value, Expr) else set()


def substitute_type(type_: Type, values: Mapping[str, Dim]) -> Type:
    """A type with size symbols replaced."""
    if isinstance(type_, TupleType):
        items = tuple(
            TensorType(t.dtype, tuple(substitute(d, values) for d in t.shape), t.space)
            for t in type_.items
        )
        return TupleType(items)
    return type_.with_shape(tuple(substitute(d, values) for d in type_.shape))


def substitute_attr(value: Attr, values: Mapping[str, Dim]) -> Attr:
    """An attribute with size symbols replaced."""
    if isinstance(value, tuple):
        return tuple(substitute_attr(v, values) for v in value)
    return substitute(value, values) if isinstance(value, Expr) else value

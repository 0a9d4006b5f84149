"""Import of jaxpr equations as IR nodes: the table of lowerings, and the traversal of a jaxpr.

A lowering is a function `(site, *operand nodes, **equation parameters) -> node or nodes`,
registered with `@lower("primitive", ...)` in another file of this room. A lowering that does not
cover a case raises `NoLowering`, and the equation becomes an `opaque` node.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NoReturn

import jax
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

import stack.plugins as plugins
from stack.errors import NoElementType, RuleError, StackError, UnsupportedOp
from stack.frameworks.jax_private import words_of_keys
from stack.frontends.arithmetic.complex_pairs import PART
from stack.frontends.arithmetic.storage_types import is_storage, narrowed, widened
from stack.frontends.jax.jaxpr.dims import DimReader, known
from stack.frontends.jax.jaxpr.element_words import has_words, is_complex, is_key, to_words
from stack.frontends.jax.jaxpr.variable_names import line_of, scopes_of, variable_names
from stack.ir.builder import Builder, constant, param
from stack.ir.data import INLINE_ELEMENTS
from stack.ir.dim import Dim
from stack.ir.node import Block, Node
from stack.ir.types import BOOL, DTYPES, LONG_NAMES, DType, TensorType, TupleType
from stack.wings import part_if_here

TOPICS = (
    "elementwise_ops", "data_movement", "index", "dynamic_slice", "reduce", "window", "contraction",
    "control_flow", "random_bits",
)  # fmt: skip
Lowering = Callable[..., "Node | Sequence[Node]"]
LOWERINGS: dict[str, Lowering] = {}
GROUP = "stack.jax_lowerings"  # entry points of modules that add lowerings

_BY_NUMPY = {d.numpy: d for d in DTYPES.values() if d.name != "bf16"} | {
    "bfloat16": DTYPES["bf16"],
    "float0": DTYPES["bool"],  # the tangent of an integer; has no data
    **LONG_NAMES,
}


# Primitives that accept storage types: they only move elements, or run blocks.
MOVES = frozenset({
    "bitcast_convert_type", "broadcast_in_dim", "closed_call", "concatenate", "cond",
    "convert_element_type", "copy", "copy_p", "core_call", "custom_jvp_call", "custom_vjp_call",
    "dynamic_slice", "dynamic_update_slice", "expand_dims", "gather", "jit", "optimization_barrier",
    "pad", "pjit", "remat", "remat2", "checkpoint", "reshape", "rev", "scan", "scatter", "select_n",
    "slice", "split", "squeeze", "transpose", "while",
})  # fmt: skip


class NoLowering(Exception):
    """Raised if an equation has no lowering; it becomes an opaque node."""


def lower(*names: str) -> Callable[[Lowering], Lowering]:
    """Registers a lowering for primitives, by name."""

    def enter(rule: Lowering) -> Lowering:
        for name in names:
            LOWERINGS[name] = rule
        return rule

    return enter


@cache
def load_lowerings() -> Mapping[str, Lowering]:
    """Returns the complete table. The files import this module, so they are loaded on first use."""
    for topic in TOPICS:
        importlib.import_module(f"stack.frontends.jax.lax.{topic}")
    for name in plugins.names(GROUP):
        with suppress(Exception):  # `stackc env` names a broken wing
            plugins.load(GROUP, name)
    return LOWERINGS


@cache
def on_pairs() -> Lowering:
    """Returns the lowering of equations with complex numbers; loaded on first use."""
    return part_if_here("jax-complex") or _no_pairs


def _no_pairs(*_: Any) -> NoReturn:
    raise NoLowering("complex numbers need the wing 'complex'")


@cache
def dtype_of(dtype: Any) -> DType:
    """Returns the IR's element type for JAX's. Raises NoElementType if there is none."""
    name = np.dtype(dtype).name if not hasattr(dtype, "name") else dtype.name
    if name == "void":
        return DTYPES["bool"]
    if name not in _BY_NUMPY:
        raise NoElementType(name, DTYPES)
    return _BY_NUMPY[name]


def jax_dtype(dtype: DType) -> np.dtype:
    """Returns JAX's element type for the IR's."""
    if dtype.kind == "s":
        return np.dtype(getattr(jax.numpy, next(n for n, d in LONG_NAMES.items() if d is dtype)))
    return np.dtype(jax.numpy.bfloat16 if dtype.name == "bf16" else dtype.numpy)


def is_array(aval: Any) -> bool:
    """True for arrays; false for references and tokens."""
    return isinstance(aval, ShapedArray)


@dataclass
class Shared:
    """State shared by all blocks of one import.

    Attributes:
        dims: symbolic sizes, JAX's to ours.
        effects: number of calls with side effects so far.
        meshes: the device meshes of sharding constraints, by their axes.
        constraints: the sharding constraints of the program, each with its source line.
        on_gpu: true if the program is to run on a GPU.
        implementing: primitives whose implementation is being imported, the innermost last.
    """

    dims: DimReader = field(default_factory=DimReader)
    effects: int = 0
    meshes: dict[tuple[tuple[str, int], ...], Any] = field(default_factory=dict)
    constraints: list[str] = field(default_factory=list)
    on_gpu: bool = False
    implementing: list[Any] = field(default_factory=list)


class Importer:
    """Imports equations into one block. Nested blocks have an importer of their own.

    Attributes:
        b: builder of this block's nodes.
        big: nodes of constants too large for the text, by `id` of the array.
        scopes: named scopes around the current equation, the outermost first.
        token: result of the last call with a side effect, operand of the next; None before the
            first. A block with effects returns it last, so that effects run once and in order.
        assigned: nodes named after a variable of the user's; the first of two names is kept.
    """

    def __init__(
        self,
        shared: Shared,
        big: Mapping[int, Node] | None = None,
        loc: tuple[str, ...] = (),
        scopes: tuple[str, ...] = (),
    ) -> None:
        self.shared = shared
        self.big = dict(big or {})
        self.b = Builder()
        self.b.loc = loc
        self.scopes = scopes
        self.token: Node | None = None
        self.assigned: set[Node] = set()

    # ---- types and constants

    def type_of(self, aval: Any) -> TensorType:
        """Returns the type of a JAX value; random keys and complex numbers get an axis of words."""
        if is_key(aval):
            aval = words_of_keys(aval)
        dtype, shape = dtype_of(aval.dtype), self.shared.dims.shape(aval.shape)
        return TensorType(PART[dtype], (*shape, 2)) if dtype in PART else TensorType(dtype, shape)

    def constant(self, value: Any, aval: Any = None) -> Node:
        """Returns a node for a constant: a bound parameter for a large array, else a `const`."""
        if id(value) in self.big:
            return self.big[id(value)]
        # a literal may be a Python number; then the jaxpr has its type
        if aval is not None and (is_complex(aval) or dtype_of(aval.dtype).kind == "s"):
            value = np.asarray(value, aval.dtype)
        array = np.asarray(to_words(value) if hasattr(value, "dtype") else value)
        kind = array if aval is None or has_words(aval) else aval
        try:
            node = constant(array, dtype_of(kind.dtype))
        except NoElementType as error:
            raise error.at("a constant", self.b.loc) from error
        if node.tensor.rank:
            self.b.note(node)
        return node

    # ---- equations

    def inline(self, jaxpr: Jaxpr, consts: Sequence[Any], args: Sequence[Node]) -> list[Node]:
        """Import every equation of a jaxpr here. Returns the nodes of its results."""
        env: dict[Any, Node] = dict(zip(jaxpr.invars, args, strict=True))
        env.update(zip(jaxpr.constvars, map(self.constant, consts), strict=True))
        caller, outer = self.b.loc, self.scopes

        def read(atom: Any) -> Node:
            return self.constant(atom.val, atom.aval) if isinstance(atom, Literal) else env[atom]

        variables = variable_names(jaxpr)
        for eqn in jaxpr.eqns:
            self.scopes = (*outer, *scopes_of(eqn))
            self.b.loc = line_of(eqn, self.scopes, caller)
            results = self.equation(eqn, [read(v) for v in eqn.invars])
            env.update(zip(eqn.outvars, results))
            for value, node in zip(eqn.outvars, results):
                if value in variables and node not in self.assigned:
                    self.assigned.add(node)
                    self.b.names[node] = variables[value]
        self.b.loc, self.scopes = caller, outer
        return [read(v) for v in jaxpr.outvars]

    def closed(self, closed: ClosedJaxpr, args: Sequence[Node]) -> list[Node]:
        """Calls `inline` for a jaxpr with its constants."""
        return self.inline(closed.jaxpr, closed.consts, args)

    def equation(self, eqn: Any, args: Sequence[Node]) -> Sequence[Node]:
        """Returns the results of one equation."""
        name = eqn.primitive.name
        if not eqn.outvars and not eqn.effects:
            return ()
        odd = [v.aval for v in (*eqn.invars, *eqn.outvars) if not is_array(v.aval)]
        if odd:
            raise UnsupportedOp([(name, self.b.loc)], f"a value of type {odd[0]} is not an array")
        try:
            site = Site(self, eqn, tuple(self.type_of(v.aval) for v in eqn.outvars))
        except NoElementType as error:
            raise error.at(name, self.b.loc) from error
        try:
            results = self._lower(name, site, args)
        except (NoLowering, RuleError):
            return site.implemented(args) or site.opaque(args)
        except (AttributeError, KeyError, TypeError):
            # another version of JAX with other parameters, or a size that the IR cannot express
            if not all(known(v.aval.shape) for v in (*eqn.invars, *eqn.outvars)):
                raise
            return site.opaque(args)
        nodes = [results] if isinstance(results, Node) else list(results)
        got = tuple(n.type for n in nodes)
        if got != site.types:
            raise StackError(f"the lowering of {name} gave {got}, the jaxpr says {site.types}")
        return nodes

    def _lower(self, name: str, site: Site, args: Sequence[Node]) -> Node | Sequence[Node]:
        rule, eqn = load_lowerings().get(name), site.eqn
        if not getattr(rule, "handles_words", False):
            if any(is_complex(v.aval) for v in (*eqn.invars, *eqn.outvars)):
                return on_pairs()(site, rule, args)
            if rule is not None and any(is_key(v.aval) for v in eqn.invars):
                return site.over_words(args)
        if rule is None:
            raise NoLowering(name)
        types = [*(a.dtype for a in args), *(t.dtype for t in site.types)]
        if any(map(is_storage, types)) and name not in MOVES:
            if any(is_storage(t.dtype) for t in site.types):
                raise NoLowering(f"{name} of a storage type")
            args = [widened(self.b, a) for a in args]
        return rule(site, *args, **eqn.params)

    # ---- nested blocks

    def tokens(self, jaxprs: Sequence[Any]) -> list[Node]:
        """Returns the token to pass to a block with these jaxprs; empty without side effects."""
        if not any(jaxpr.effects for jaxpr in jaxprs):
            return []
        return self.left or [constant(False, BOOL)]

    @property
    def left(self) -> list[Node]:
        """Returns the token of the last side effect, as a list to return from the block.

        Empty if no side effect was imported.
        """
        return [] if self.token is None else [self.token]

    def captures(self, jaxprs: Sequence[Any]) -> dict[int, Node]:
        """Returns the large constants that nested jaxprs read, by `id` of the array.

        A closed block takes their nodes as operands.
        """
        found = {id(c): c for j in jaxprs for c in constants_of(j) if id(c) in self.big}
        return {key: self.big[key] for key in found}

    def block(
        self,
        names: Sequence[str],
        types: Sequence[TensorType],
        captured: Mapping[int, Node],
        tokens: Sequence[Node],
        body: Callable[[Importer, list[Node]], Sequence[Node]],
    ) -> Block:
        """Builds a closed block, whose nodes read no values from outside.

        `body` gets the block's importer and its parameters `names`; more parameters are added for
        the large constants `captured` and for `tokens`.
        """
        params = [param(n, t) for n, t in zip(names, types, strict=True)]
        extra = [param(f"const.{i}", n.type) for i, n in enumerate(captured.values())]
        big = dict(zip(captured, extra, strict=True))
        inner = Importer(self.shared, big, self.b.loc, self.scopes)
        before = [param("token", t.type) for t in tokens]
        inner.token = before[0] if before else None
        results = body(inner, params)
        return inner.b.block([*params, *extra, *before], results)


def constants_of(value: Any) -> Iterator[Any]:
    """Yields the array constants of a jaxpr and of all jaxprs inside it."""
    if isinstance(value, ClosedJaxpr):
        yield from value.consts
        value = value.jaxpr  # the same object from JAX 0.11 on
    if isinstance(value, Jaxpr):
        atoms = [*value.outvars, *(v for eqn in value.eqns for v in eqn.invars)]
        yield from (a.val for a in atoms if isinstance(a, Literal))
        for eqn in value.eqns:
            yield from constants_of(tuple(eqn.params.values()))
    elif isinstance(value, tuple | list):
        for item in value:
            yield from constants_of(item)


def is_big(value: Any) -> bool:
    """True if a constant is too large for the text, so it becomes a bound parameter."""
    return int(np.prod(np.shape(value), dtype=np.int64)) > INLINE_ELEMENTS


@dataclass
class Site:
    """The context of one equation for its lowering: the importer, and the types of the results."""

    importer: Importer
    eqn: Any
    types: tuple[TensorType, ...]

    @property
    def b(self) -> Builder:
        return self.importer.b

    @property
    def type(self) -> TensorType:
        """Type of the first result."""
        return self.types[0]

    def dims(self, shape: Sequence[Any]) -> tuple[Dim, ...]:
        """Converts a shape, or other sizes among the parameters, to the IR's sizes."""
        return self.importer.shared.dims.shape(shape)

    def fill(self, value: Any, type_: TensorType) -> Node:
        """Returns an array filled with one value, or a scalar constant."""
        scalar = constant(value, type_.dtype)
        return self.b.broadcast(scalar, axes=(), type=type_) if type_.rank else scalar

    def cast(self, x: Node, dtype: DType) -> Node:
        """Casts `x` to an element type; returns `x` if it has that type."""
        x = widened(self.b, x) if x.dtype != dtype else x
        if x.dtype == dtype:
            return x
        if not is_storage(dtype):
            return self.b.cast(x, type=x.tensor.with_dtype(dtype))
        made = narrowed(self.b, x, dtype)
        if made is None:
            raise NoLowering(f"no rule from {x.dtype} to {dtype}")
        return made

    def reshape(self, x: Node, shape: Sequence[Dim]) -> Node:
        """Reshapes `x`; skips earlier reshapes."""
        while x.op == "reshape" and x.shape != tuple(shape):
            x = x.args[0]
        if x.shape == tuple(shape):
            return x
        return self.b.reshape(x, type=x.tensor.with_shape(tuple(shape)))

    def transpose(self, x: Node, perm: Sequence[int]) -> Node:
        """Permutes the axes of `x`; returns `x` for the identity."""
        if list(perm) == list(range(x.tensor.rank)):
            return x
        return self.b.transpose(x, perm=tuple(int(p) for p in perm))

    def slice(
        self,
        x: Node,
        start: Sequence[Dim],
        limit: Sequence[Dim],
        step: Sequence[int] | None = None,
    ) -> Node:
        """Slices `x`; returns `x` if the slice is all of it."""
        steps = tuple(int(k) for k in step or (1,) * len(start))
        whole = (0,) * len(start)
        if tuple(start) == whole and tuple(limit) == x.shape and steps == (1,) * len(start):
            return x
        return self.b.slice(x, start=tuple(start), limit=tuple(limit), step=steps)

    def items(self, node: Node, named: str | None = None) -> list[Node]:
        """Returns the results of a node; the node itself if it has one."""
        if not isinstance(node.type, TupleType):
            return [node]
        count = len(node.type.items)
        return [self.b.op("item", (node,), {"index": i}, named=named) for i in range(count)]

    def trace(self, function: Callable[..., Any], *args: Node) -> list[Node]:
        """Import the jaxpr of `function`, as a decomposition of this equation."""
        if any(not isinstance(d, int) for a in args for d in a.shape):
            raise NoLowering("a decomposition by tracing needs known sizes")
        specs = [jax.ShapeDtypeStruct(a.shape, jax_dtype(a.dtype)) for a in args]
        return self.importer.closed(jax.make_jaxpr(function)(*specs), args)

    def implemented(self, args: Sequence[Node]) -> Sequence[Node] | None:
        """Imports what another package's primitive does, if JAX can trace its implementation.

        That of a primitive of XLA binds the primitive again; one with effects has to be called.
        """
        eqn, outer = self.eqn, self.importer.shared.implementing
        impl: Any = getattr(eqn.primitive, "impl", None)
        package = str(getattr(impl, "__module__", "jax")).removeprefix("jax.experimental.")
        is_xla = package.partition(".")[0] in ("jax", "functools")
        words = any(has_words(v.aval) for v in (*eqn.invars, *eqn.outvars))
        if is_xla or words or eqn.effects or eqn.primitive in outer:
            return None
        outer.append(eqn.primitive)
        try:
            found = self.trace(lambda *xs: impl(*xs, **eqn.params), *args)
        except Exception:  # it needs values, for example
            return None
        finally:
            outer.pop()
        return found if tuple(n.type for n in found) == self.types else None

    def over_words(self, args: Sequence[Node]) -> Sequence[Node]:
        """Applies the equation's op to each word of random keys, by `vmap` over the last axis."""
        axes = [-1 if is_key(v.aval) else None for v in self.eqn.invars]
        bind = self.eqn.primitive.bind
        params = self.eqn.params
        out_axes = [-1 if is_key(v.aval) else None for v in self.eqn.outvars]
        outputs = out_axes if self.eqn.primitive.multiple_results else out_axes[0]
        return self.trace(jax.vmap(lambda *xs: bind(*xs, **params), axes, outputs), *args)

    def _held(self, args: Sequence[Node]) -> list[DType]:
        """Returns the operands' element types in JAX: complex where the IR has pairs of words."""
        pairs = zip(args, self.eqn.invars, strict=True)
        return [dtype_of(v.aval.dtype) if is_complex(v.aval) else a.dtype for a, v in pairs]

    def opaque(self, args: Sequence[Node]) -> Sequence[Node]:
        """Builds an `opaque` node, which calls the equation's primitive in JAX at run time.

        Raises UnsupportedOp if an operand or result is an array of typed random keys.
        """
        from stack.frontends.jax.lax.opaque_calls import describe

        name = self.eqn.primitive.name
        has_keys = any(is_key(v.aval) for v in (*self.eqn.invars, *self.eqn.outvars))
        if has_keys and self.eqn.outvars:  # a callback gets the words of keys, as under `jax.jit`
            raise UnsupportedOp([(name, self.b.loc)], "its operands are typed random keys")
        attrs: dict[str, Any] = {
            "target": f"jax:{name}",
            "call": describe(self.eqn.primitive, self.eqn.params, self._held(args)),
        }
        types = self.types
        if self.eqn.effects:
            args = [*args, *self.importer.tokens([self.eqn])]
            types = (*types, TensorType(BOOL, ()))
            attrs |= {"effect": self.importer.shared.effects, "token": True}
            self.importer.shared.effects += 1
        hint = types[0] if len(types) == 1 else TupleType(types)
        node = self.b.op("opaque", args, attrs, hint=hint, named=name)
        results = self.items(node, name)
        if self.eqn.effects:
            self.importer.token = results.pop()
        return results

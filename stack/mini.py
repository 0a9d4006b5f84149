"""A compiler in one file, to be read in an hour: trace, IR, rewriting, fusion, C code, gradient.

    import stack.mini as mini

    def attention(q, k, v):
        scores = q @ k.T / 8.0
        scores = mini.exp(scores - mini.max(scores, axis=1, keepdims=True))
        return (scores / mini.sum(scores, axis=1, keepdims=True)) @ v

    compiled = mini.compile(attention, q, k, v)     # q, k, v: float32 arrays of NumPy
    compiled(q, k, v)
    print(compiled.stages["fused"], compiled.kernels[0].text, sep="\n")

`python -m stack.demos.mini` compiles such a program step by step. This file has only what it takes
to show how a compiler works: f32 arrays of fixed sizes. It uses the terms of the full compiler, and
its IR text is the same: `stack.parse` reads what is printed here.

    1  types and nodes      stack/ir/types.py, node.py
    2  axis rules           stack/ir/axes.py, relation.py
    3  the op table         stack/ir/ops.py, elementwise_ops.py, movement_ops.py
    4  functions and text   stack/ir/printer.py, verifier.py, interpreter
    5  tracing              frontends/
    6  rewriting            stack/rewrite/engine.py, passes/canonicalize.py
    7  gradients            frontends/torch/training/joint_graph.py, passes/training
    8  fusion               passes/fuse.py
    9  C code               passes/tile.py, distribute.py; backends/mlir
   10  compiling, running   stack/run, backends/runtime
"""

from __future__ import annotations

import builtins
import ctypes
import inspect
import itertools
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from math import copysign, nan, prod
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Attrs = tuple[tuple[str, Any], ...]


class MiniError(Exception):
    """An error in a program. The message names the value, the rule and the source line."""


# ---- 1  types and nodes
#
# A program is a graph of nodes. A node is an op on other nodes. Nodes are interned: two equal
# nodes are one object. So common subexpressions are shared without a pass that looks for them.


@dataclass(frozen=True)
class Type:
    """The element type ("f32" or "bool") and the shape of a value."""

    dtype: str
    shape: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"

    @property
    def bytes(self) -> int:
        return prod(self.shape) * (4 if self.dtype == "f32" else 1)


@dataclass(frozen=True, eq=False)
class Node:
    """One value of a program.

    Attributes:
        op: a name in `OPS`, "param", or "fusion"; a fusion computes its `body`.
        attrs: pairs of name and value, sorted by name; hashable.
        source: the line of the user's program that it comes from.
    """

    op: str
    args: tuple[Node, ...]
    attrs: Attrs
    type: Type
    source: str = ""
    body: Func | None = None

    def __getitem__(self, name: str) -> Any:
        return dict(self.attrs)[name]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def is_scalar_const(self) -> bool:
        return self.op == "const"


_INTERNED: weakref.WeakValueDictionary[tuple[Any, ...], Node] = weakref.WeakValueDictionary()
_LINES = [""]  # a stack: new nodes get the last line


@contextmanager
def from_line(source: str) -> Generator[None]:
    """Context manager: nodes that are made inside get this source line. `rewrite` and `grad` use
    it, so passes and gradients of ops need not set lines.
    """
    _LINES.append(source)
    yield
    _LINES.pop()


def make(op: str, *args: Node, source: str = "", **attrs: Any) -> Node:
    """Returns the node of an op. Raises MiniError if its operands do not fit."""
    items = tuple(sorted(attrs.items()))
    key = (op, args, repr(items))  # as text, since -0.0 == 0.0
    node = _INTERNED.get(key)
    if node is None:
        type_ = OPS[op].infer(args, attrs)
        node = Node(op, args, items, type_, source or _LINES[-1])
        _INTERNED[key] = node
    return node


def const(value: float) -> Node:
    """Returns a node of op "const" that holds this number as a scalar."""
    return make("const", value=float(value))


# ---- 2  axis rules
#
# An axis rule states once, by names, what an op does with its axes: "m k, k n -> m n". The
# compiler derives from it the shape of the result, the operand elements that each result element
# reads, the amount of work, whether a producer may be fused, and the gradient of a matmul.


@dataclass(frozen=True)
class Rule:
    """Axis names of each operand and of the result. Axes missing from the result are reduced."""

    operands: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]

    @staticmethod
    def parse(text: str) -> Rule:
        left, _, right = text.partition("->")
        operands = tuple(tuple(part.split()) for part in left.split(","))
        return Rule(operands, tuple(right.split()))

    def __str__(self) -> str:
        left = ", ".join(" ".join(names) for names in self.operands)
        return f"{left} -> {' '.join(self.result)}"

    @property
    def reduced(self) -> tuple[str, ...]:
        """Names of the axes that an operand has and the result lacks, in order of first use. The op
        reduces them.
        """
        names = dict.fromkeys(itertools.chain(*self.operands))
        return tuple(n for n in names if n not in self.result)

    def sizes(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """Returns the size of every named axis, from the shapes of the operands. Raises MiniError
        if a shape has the wrong rank or an axis has two sizes.
        """
        found: dict[str, int] = {}
        for names, shape in zip(self.operands, shapes, strict=True):
            if len(names) != len(shape):
                raise MiniError(f"{shape} has {len(shape)} axes, rule {self} wants {len(names)}")
            for name, size in zip(names, shape, strict=True):
                if found.setdefault(name, size) != size:
                    raise MiniError(f"axis {name!r} of {self} has two sizes, {found[name]}, {size}")
        return found

    def pull(self, index: Mapping[str, str]) -> list[tuple[str, ...]]:
        """Returns the index at which each operand is read. `index` maps axes to expressions."""
        return [tuple(index[name] for name in names) for names in self.operands]


def axis_names(count: int) -> tuple[str, ...]:
    """The first `count` axis names: a, b, c."""
    return tuple("abcdefgh"[:count])


def rule_of(node: Node) -> Rule:
    """The axis rule of a node."""
    return OPS[node.op].rule(node.args, dict(node.attrs), node.type)


# ---- 3  the op table
#
# One record holds what the compiler knows about an op. A new elementwise op is one line here.

Infer = Callable[[tuple[Node, ...], dict[str, Any]], Type]
MakeRule = Callable[[tuple[Node, ...], dict[str, Any], Type], Rule]
Gradient = Callable[[Node, Node], "list[Node | None]"]


@dataclass(frozen=True)
class OpDef:
    """Everything the compiler knows about one op.

    Attributes:
        infer: type of the result. Raises MiniError.
        rule: the axis rule.
        numpy: its semantics on arrays; the reference for all other definitions.
        c: its C expression, `{0}` for the first operand.
        gradient: maps the result's gradient to the gradients of the operands; None for no gradient.
    """

    infer: Infer
    rule: MakeRule
    numpy: Callable[..., Any]
    c: str = ""
    gradient: Gradient | None = None


def _elementwise_type(dtype: str) -> Infer:
    def infer(args: tuple[Node, ...], attrs: dict[str, Any]) -> Type:
        shapes = {a.shape for a in args if a.shape}
        if len(shapes) > 1:
            raise MiniError(f"operands of an elementwise op have shapes {sorted(shapes)}")
        return Type(dtype, next(iter(shapes), ()))

    return infer


def _elementwise_rule(args: tuple[Node, ...], attrs: dict[str, Any], type_: Type) -> Rule:
    """Maps all axes one to one. A scalar operand has no axes and is broadcast."""
    names = axis_names(len(type_.shape))
    return Rule(tuple(names if a.shape else () for a in args), names)


def _sum_like(gradient: Node, operand: Node) -> Node:
    """Sums a gradient to a scalar if its operand was a scalar."""
    if gradient.shape == operand.shape:
        return gradient
    return make("reduce", gradient, axes=tuple(range(len(gradient.shape))), kind="sum")


def elementwise(
    numpy: Callable[..., Any], c: str, gradient: Gradient | None = None, dtype: str = "f32"
) -> OpDef:
    """Returns the record of an elementwise op."""

    def summed(node: Node, g: Node) -> list[Node | None]:
        assert gradient is not None
        found = zip(gradient(node, g), node.args, strict=True)
        return [None if d is None else _sum_like(d, a) for d, a in found]

    return OpDef(
        _elementwise_type(dtype), _elementwise_rule, numpy, c, summed if gradient else None
    )


def _broadcast_type(args: tuple[Node, ...], attrs: dict[str, Any]) -> Type:
    (x,), axes, shape = args, attrs["axes"], attrs["shape"]
    if tuple(shape[a] for a in axes) != x.shape:
        raise MiniError(f"broadcast of {x.type} to {shape} along {axes}: the sizes differ")
    return Type(x.type.dtype, shape)


def _broadcast_rule(args: tuple[Node, ...], attrs: dict[str, Any], type_: Type) -> Rule:
    names, axes = axis_names(len(type_.shape)), cast("tuple[int, ...]", attrs["axes"])
    return Rule((tuple(names[a] for a in axes),), names)


def _transpose_type(args: tuple[Node, ...], attrs: dict[str, Any]) -> Type:
    (x,), perm = args, cast("tuple[int, ...]", attrs["perm"])
    if sorted(perm) != list(range(len(x.shape))):
        raise MiniError(f"{perm} is no order of the axes of {x.type}")
    return Type(x.type.dtype, tuple(x.shape[p] for p in perm))


def _transpose_rule(args: tuple[Node, ...], attrs: dict[str, Any], type_: Type) -> Rule:
    names, perm = axis_names(len(type_.shape)), cast("tuple[int, ...]", attrs["perm"])
    return Rule((names,), tuple(names[p] for p in perm))


def _reduce_rule(args: tuple[Node, ...], attrs: dict[str, Any], type_: Type) -> Rule:
    names = axis_names(len(args[0].shape))
    return Rule((names,), tuple(n for i, n in enumerate(names) if i not in attrs["axes"]))


def _reduce_type(args: tuple[Node, ...], attrs: dict[str, Any]) -> Type:
    shape = args[0].shape
    if any(not 0 <= a < len(shape) for a in attrs["axes"]):
        raise MiniError(f"{args[0].type} has no axes {attrs['axes']} to reduce")
    return Type("f32", tuple(d for i, d in enumerate(shape) if i not in attrs["axes"]))


def _dot_type(args: tuple[Node, ...], attrs: dict[str, Any]) -> Type:
    rule = Rule.parse(attrs["rule"])
    sizes = rule.sizes([a.shape for a in args])
    return Type("f32", tuple(sizes[name] for name in rule.result))


def _dot_gradient(node: Node, g: Node) -> list[Node | None]:
    """Returns the gradients of a matmul's operands. Each is a matmul, of the gradient `g` of the
    result and the other operand: its axis rule swaps the result with the operand.
    """
    (x, y), rule = node.args, rule_of(node)
    left, right = rule.operands
    return [
        make("dot", g, y, rule=str(Rule((rule.result, right), left))),
        make("dot", x, g, rule=str(Rule((left, rule.result), right))),
    ]


def _reduce_gradient(node: Node, g: Node) -> list[Node | None]:
    (x,) = node.args
    kept = tuple(i for i in range(len(x.shape)) if i not in node["axes"])

    def spread(value: Node) -> Node:
        return make("broadcast", value, axes=kept, shape=x.shape)

    if node["kind"] == "sum":
        return [spread(g)]
    # equal maxima share their gradient
    hit = make("select", make("eq", x, spread(node)), const(1.0), const(0.0))
    ties = make("reduce", hit, axes=node["axes"], kind="sum")
    return [make("mul", hit, spread(make("div", g, ties)))]


def _product(x: Array, y: Array, rule: str) -> Array:
    letters = {name: "abcdefghijklmnop"[i] for i, name in enumerate(dict.fromkeys(rule.split()))}
    parsed = Rule.parse(rule)
    sides = ["".join(letters[n] for n in names) for names in (*parsed.operands, parsed.result)]
    return np.einsum(f"{sides[0]},{sides[1]}->{sides[2]}", x, y, optimize=True)


def _reduced(x: Array, axes: tuple[int, ...], kind: str) -> Array:
    return np.sum(x, axis=axes) if kind == "sum" else np.max(x, axis=axes)


def _transposed(x: Array, perm: tuple[int, ...]) -> Array:
    return np.transpose(x, perm)


def _scalar(value: float) -> Any:
    return np.float32(value)


def _spread(x: Array, axes: tuple[int, ...], shape: tuple[int, ...]) -> Array:
    placed = x.reshape([shape[a] if a in axes else 1 for a in range(len(shape))])
    return np.broadcast_to(placed, shape)


def _iota(axis: int, shape: tuple[int, ...]) -> Array:
    return _spread(np.arange(shape[axis], dtype=np.float32), (axis,), shape)


MUL, NEG, DIV = "mul", "neg", "div"
OPS: dict[str, OpDef] = {
    # leaves
    "const": OpDef(
        lambda args, attrs: Type("f32", ()),
        lambda args, attrs, type_: Rule((), ()),
        _scalar,
    ),
    "iota": OpDef(
        lambda args, attrs: Type("f32", attrs["shape"]),
        lambda args, attrs, type_: Rule((), axis_names(len(type_.shape))),
        _iota,
    ),
    # elementwise
    "add": elementwise(np.add, "({0} + {1})", lambda n, g: [g, g]),
    "sub": elementwise(np.subtract, "({0} - {1})", lambda n, g: [g, make(NEG, g)]),
    "mul": elementwise(
        np.multiply, "({0} * {1})", lambda n, g: [make(MUL, g, n.args[1]), make(MUL, g, n.args[0])]
    ),
    "div": elementwise(
        np.divide,
        "({0} / {1})",
        lambda n, g: [
            make(DIV, g, n.args[1]),
            make(NEG, make(DIV, make(MUL, g, n), n.args[1])),
        ],
    ),
    "max": elementwise(
        np.maximum,
        "largest({0}, {1})",
        lambda n, g: [
            make("select", make("ge", *n.args), g, const(0.0)),
            make("select", make("ge", *n.args), const(0.0), g),
        ],
    ),
    "neg": elementwise(np.negative, "(-{0})", lambda n, g: [make(NEG, g)]),
    "exp": elementwise(np.exp, "expf({0})", lambda n, g: [make(MUL, g, n)]),
    "log": elementwise(np.log, "logf({0})", lambda n, g: [make(DIV, g, n.args[0])]),
    "sqrt": elementwise(
        np.sqrt, "sqrtf({0})", lambda n, g: [make(DIV, make(MUL, g, const(0.5)), n)]
    ),
    "tanh": elementwise(
        np.tanh,
        "tanhf({0})",
        lambda n, g: [make(MUL, g, make("sub", const(1.0), make(MUL, n, n)))],
    ),
    "ge": elementwise(np.greater_equal, "({0} >= {1})", lambda n, g: [None, None], dtype="bool"),
    "eq": elementwise(np.equal, "({0} == {1})", lambda n, g: [None, None], dtype="bool"),
    "select": elementwise(
        np.where,
        "({0} ? {1} : {2})",
        lambda n, g: [
            None,
            make("select", n.args[0], g, const(0.0)),
            make("select", n.args[0], const(0.0), g),
        ],
    ),
    # movement: nothing is computed
    "transpose": OpDef(
        _transpose_type,
        _transpose_rule,
        _transposed,
        "{0}",
        lambda n, g: [make("transpose", g, perm=tuple(int(p) for p in np.argsort(n["perm"])))],
    ),
    "broadcast": OpDef(
        _broadcast_type,
        _broadcast_rule,
        _spread,
        "{0}",
        lambda n, g: [
            make(
                "reduce",
                g,
                axes=tuple(i for i in range(len(n.shape)) if i not in n["axes"]),
                kind="sum",
            )
        ],
    ),
    # reductions and contractions
    "reduce": OpDef(
        _reduce_type,
        _reduce_rule,
        _reduced,
        "{0}",
        _reduce_gradient,
    ),
    "dot": OpDef(
        _dot_type,
        lambda args, attrs, type_: Rule.parse(attrs["rule"]),
        _product,
        "({0} * {1})",
        _dot_gradient,
    ),
}
MOVEMENT = ("transpose", "broadcast")


# ---- 4  functions and text


@dataclass(frozen=True, eq=False)
class Func:
    """A program: parameters and results. Its nodes are those that the results need."""

    name: str
    params: tuple[Node, ...]
    results: tuple[Node, ...]

    @cached_property
    def nodes(self) -> list[Node]:
        """All nodes except parameters and scalars, each after its operands."""
        found: dict[Node, None] = {}

        def visit(node: Node) -> None:
            if node in found:
                return
            for arg in node.args:
                visit(arg)
            found[node] = None

        for result in self.results:
            visit(result)
        return [n for n in found if n.op not in ("param", "const")]

    @cached_property
    def users(self) -> dict[Node, list[Node | None]]:
        """Maps each node to the nodes that read it. The list of a result ends with None, which
        stands for the caller.
        """
        found: dict[Node, list[Node | None]] = {}
        for node in self.nodes:
            for arg in dict.fromkeys(node.args):
                found.setdefault(arg, []).append(node)
        for result in self.results:
            found.setdefault(result, []).append(None)
        return found

    def __str__(self) -> str:
        return "\n".join(_text(self, {}))

    def interpret(self, *arrays: Array) -> list[Array]:
        """Evaluates the program in NumPy for any element type. In f64 it is the reference."""
        values: dict[Node, Any] = dict(zip(self.params, arrays, strict=True))

        def value(node: Node) -> Any:
            if node not in values:
                args = [value(a) for a in node.args]
                if node.body is not None:
                    (values[node],) = node.body.interpret(*args)
                else:
                    values[node] = OPS[node.op].numpy(*args, **dict(node.attrs))
            return values[node]

        return [np.asarray(value(r)) for r in self.results]


def param(type_: Type, name: str) -> Node:
    """Returns a new parameter. Parameters are not interned, so each call makes a distinct node."""
    return Node("param", (), (("name", name),), type_)


def _text(func: Func, names: dict[Node, str], indent: str = "") -> Iterator[str]:
    names = {p: f"%{p['name']}" for p in func.params}
    taken = set(names.values())

    def name(node: Node) -> str:
        if node.is_scalar_const:
            return f"{node['value']!r}:f32"
        if node not in names:
            numbered = (f"%{node.op}_{n}" for n in itertools.count(1))
            choices = itertools.chain([f"%{node.op}"], numbered)
            names[node] = next(n for n in choices if n not in taken)
            taken.add(names[node])
        return names[node]

    params = ", ".join(f"{names[p]}: {p.type}" for p in func.params)
    results = ", ".join(str(r.type) for r in func.results)
    if not indent:
        yield f"func @{func.name}({params}) -> ({results}) at tensor {{"
    for node in func.nodes:
        args = ", ".join(name(a) for a in node.args)
        attrs = _attrs_text(node)
        source = f' from "{node.source}"' if node.source else ""
        line = f"{indent}  {name(node)} = {node.op}({args}){attrs} : {node.type}{source}"
        if node.body is None:
            yield line
            continue
        inner = ", ".join(f"%{p['name']}: {p.type}" for p in node.body.params)
        yield f"{line} {{({inner})"
        yield from _text(node.body, names, indent + "  ")
        yield f"{indent}  }}"
    yield f"{indent}  return {', '.join(name(r) for r in func.results)}"
    if not indent:
        yield "}"


def _attrs_text(node: Node) -> str:
    """Attributes as text, without shapes, which the type already shows."""
    shown = [(k, v) for k, v in node.attrs if k != "shape"]
    if not shown:
        return ""
    return " {" + ", ".join(f"{k}={_value_text(v)}" for k, v in shown) + "}"


def _value_text(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(str, value))}]"  # pyright: ignore[reportUnknownArgumentType]
    return f'"{value}"' if isinstance(value, str) else str(value)


def verify(func: Func) -> None:
    """Raises MiniError for a node whose type differs from its op's, or for a foreign parameter."""
    for node in func.nodes:
        if node.body is not None:
            verify(node.body)
            said = node.body.results[0].type
        else:
            said = OPS[node.op].infer(node.args, dict(node.attrs))
        if said != node.type:
            raise MiniError(
                f"{node.op} at {node.source}: the type is {node.type}, the op makes {said}"
            )
        for arg in node.args:
            if arg.op == "param" and arg not in func.params:
                raise MiniError(f"{node.op} at {node.source} reads a parameter of another function")


# ---- 5  tracing
#
# The program runs once on tracers. A tracer holds a node instead of numbers, and each operation
# on tracers adds a node. Python control flow (loops, branches on sizes) is resolved at this time.


class Tracer:
    """Represents an array while a program is traced. Broadcasts as NumPy does."""

    __array_priority__ = 1000

    def __init__(self, node: Node) -> None:
        self.node = node

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.shape

    @property
    def T(self) -> Tracer:
        perm = tuple(reversed(range(len(self.shape))))
        return Tracer(make("transpose", self.node, perm=perm, source=user_line()))

    def __add__(self, other: Tracer | float) -> Tracer:
        return _binary("add", self, other)

    def __radd__(self, other: float) -> Tracer:
        return _binary("add", other, self)

    def __sub__(self, other: Tracer | float) -> Tracer:
        return _binary("sub", self, other)

    def __rsub__(self, other: float) -> Tracer:
        return _binary("sub", other, self)

    def __mul__(self, other: Tracer | float) -> Tracer:
        return _binary("mul", self, other)

    def __rmul__(self, other: float) -> Tracer:
        return _binary("mul", other, self)

    def __truediv__(self, other: Tracer | float) -> Tracer:
        return _binary("div", self, other)

    def __rtruediv__(self, other: float) -> Tracer:
        return _binary("div", other, self)

    def __ge__(self, other: Tracer | float) -> Tracer:
        return _binary("ge", self, other)

    def __neg__(self) -> Tracer:
        return _unary("neg", self)

    def __matmul__(self, other: Tracer) -> Tracer:
        if len(self.shape) != 2 or len(other.shape) != 2:
            raise MiniError(f"@ of {self.node.type} and {other.node.type}: use dot(rule, x, y)")
        return dot("a k, k n -> a n", self, other)

    def __bool__(self) -> bool:
        raise MiniError(f"{user_line()}: a branch on a value unknown while tracing; use where()")


def user_line() -> str:
    """Returns `file:line` of the line of the user's program that runs now: the innermost stack
    frame outside of this file. "" if there is none.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame is not None else ""


def _node(value: Tracer | float) -> Node:
    return value.node if isinstance(value, Tracer) else const(value)


def _spread_to(node: Node, shape: tuple[int, ...], source: str) -> Node:
    """Makes NumPy's broadcasting explicit: drops axes of size 1, then broadcasts to `shape`."""
    if node.shape in ((), shape):
        return node
    offset = len(shape) - len(node.shape)
    kept = [i for i, d in enumerate(node.shape) if d == shape[i + offset]]
    if any(d != 1 for i, d in enumerate(node.shape) if i not in kept):
        raise MiniError(f"{source}: {node.shape} does not broadcast to {shape}")
    if len(kept) < len(node.shape):
        lost = tuple(i for i in range(len(node.shape)) if i not in kept)
        node = make("reduce", node, axes=lost, kind="sum", source=source)
    axes = tuple(i + offset for i in kept)
    return make("broadcast", node, axes=axes, shape=shape, source=source)


def _many(op: str, *values: Tracer | float) -> Tracer:
    source, nodes = user_line(), [_node(v) for v in values]
    try:
        shape = np.broadcast_shapes(*(n.shape for n in nodes))
    except ValueError:
        shapes = ", ".join(str(n.type) for n in nodes)
        raise MiniError(f"{source}: the operands of {op} do not fit: {shapes}") from None
    return Tracer(make(op, *(_spread_to(n, shape, source) for n in nodes), source=source))


def _binary(op: str, x: Tracer | float, y: Tracer | float) -> Tracer:
    return _many(op, x, y)


def _unary(op: str, x: Tracer) -> Tracer:
    return Tracer(make(op, x.node, source=user_line()))


def exp(x: Tracer) -> Tracer:
    """e to the x."""
    return _unary("exp", x)


def log(x: Tracer) -> Tracer:
    """The natural logarithm."""
    return _unary("log", x)


def sqrt(x: Tracer) -> Tracer:
    """The square root."""
    return _unary("sqrt", x)


def tanh(x: Tracer) -> Tracer:
    """The hyperbolic tangent."""
    return _unary("tanh", x)


def maximum(x: Tracer | float, y: Tracer | float) -> Tracer:
    """The elementwise maximum; nan if either operand is nan."""
    return _many("max", x, y)


def where(condition: Tracer, x: Tracer | float, y: Tracer | float) -> Tracer:
    """`x` where the condition is true, else `y`."""
    return _many("select", condition, x, y)


def iota(shape: tuple[int, ...], axis: int) -> Tracer:
    """Each element is its index along an axis."""
    return Tracer(make("iota", axis=axis, shape=shape, source=user_line()))


def dot(rule: str, x: Tracer, y: Tracer) -> Tracer:
    """A matmul by its axis rule: `dot("b m k, b k n -> b m n", x, y)`."""
    return Tracer(make("dot", x.node, y.node, rule=str(Rule.parse(rule)), source=user_line()))


def _reduce(kind: str, x: Tracer, axis: int | None, keepdims: bool) -> Tracer:
    rank = len(x.shape)
    axes = tuple(range(rank)) if axis is None else (axis % rank,)
    source = user_line()
    node = make("reduce", x.node, axes=axes, kind=kind, source=source)
    if keepdims:
        kept = tuple(i for i in range(rank) if i not in axes)
        shape = tuple(1 if i in axes else d for i, d in enumerate(x.shape))
        node = make("broadcast", node, axes=kept, shape=shape, source=source)
    return Tracer(node)


def sum(x: Tracer, axis: int | None = None, keepdims: bool = False) -> Tracer:
    """The sum over one axis, or over all axes."""
    return _reduce("sum", x, axis, keepdims)


def max(x: Tracer, axis: int | None = None, keepdims: bool = False) -> Tracer:
    """The maximum over one axis, or over all axes."""
    return _reduce("max", x, axis, keepdims)


def trace(fn: Callable[..., Any], *args: Array) -> Func:
    """Traces a function on arrays of these shapes and returns the program."""
    names = list(inspect.signature(fn).parameters)
    params = [param(Type("f32", np.shape(a)), names[i]) for i, a in enumerate(args)]
    made: Any = fn(*(Tracer(p) for p in params))
    results = cast("tuple[Any, ...]", made if isinstance(made, tuple) else (made,))
    func = Func(fn.__name__.strip("<>"), tuple(params), tuple(_node(r) for r in results))
    verify(func)
    return func


# ---- 6  rewriting
#
# A rule takes one node, whose operands are already rewritten, and returns another node or None.
# The engine visits the program until no rule applies.

RewriteRule = Callable[[Node], "Node | None"]


def _is(node: Node, value: float) -> bool:
    """True if a node is the scalar constant `value`. Compares signs too: 0.0 is not -0.0."""
    found = float(node["value"]) if node.is_scalar_const else nan
    return found == value and copysign(1.0, found) == copysign(1.0, value)


def no_op(node: Node) -> Node | None:
    """Rewrite rule: replaces x * 1, x / 1, x + -0.0 and x - 0.0 by x. Keeps x + 0.0, because -0.0 +
    0.0 is 0.0. Returns None for other nodes.
    """
    if node.op in ("mul", "div", "add", "sub"):
        neutral = {"mul": 1.0, "div": 1.0, "add": -0.0, "sub": 0.0}[node.op]
        x, y = node.args
        if _is(y, neutral) and x.type == node.type:
            return x
        if node.op in ("mul", "add") and _is(x, neutral) and y.type == node.type:
            return y
    return None


def double_negation(node: Node) -> Node | None:
    """Rewrite rule: replaces -(-x) by x. Returns None for other nodes."""
    if node.op == "neg" and node.args[0].op == "neg":
        return node.args[0].args[0]
    return None


def transposes(node: Node) -> Node | None:
    """Rewrite rule: merges two transposes into one, and removes an identity transpose. Returns None
    for other nodes.
    """
    if node.op != "transpose":
        return None
    (x,), perm = node.args, node["perm"]
    if perm == tuple(range(len(perm))):
        return x
    if x.op == "transpose":
        return make("transpose", x.args[0], perm=tuple(x["perm"][p] for p in perm))
    return None


def broadcasts(node: Node) -> Node | None:
    """Rewrite rule: merges two broadcasts, removes a broadcast to the same shape, and removes one
    that only adds size-1 axes which are summed away again. Returns None for other nodes.
    """
    (x, *_) = node.args or (node,)
    if node.op == "broadcast" and x.op == "broadcast":
        axes = tuple(node["axes"][a] for a in x["axes"])
        return make("broadcast", x.args[0], axes=axes, shape=node.shape)
    if node.op == "broadcast" and node.shape == x.shape:
        return x
    if node.op == "reduce" and x.op == "broadcast" and node.shape == x.args[0].shape:
        new = {i for i in range(len(x.shape)) if i not in x["axes"]}
        if new == set(node["axes"]) and all(x.shape[i] == 1 for i in new):
            return x.args[0]
    return None


def transposed_operand(node: Node) -> Node | None:
    """Rewrite rule: removes transposes of a matmul's operands by permuting their axes in the
    matmul's axis rule. Returns None for other nodes.
    """
    if node.op != "dot" or not any(a.op == "transpose" for a in node.args):
        return None
    rule, args = rule_of(node), list(node.args)
    sides: list[tuple[str, ...]] = []
    for i, names in enumerate(rule.operands):
        if args[i].op == "transpose":
            perm: tuple[int, ...] = args[i]["perm"]
            names = tuple(names[perm.index(p)] for p in range(len(perm)))
            args[i] = args[i].args[0]
        sides.append(names)
    return make("dot", *args, rule=str(Rule(tuple(sides), rule.result)))


def scalars(node: Node) -> Node | None:
    """Rewrite rule: constant folding of f32 scalars. Returns None for other nodes."""
    if node.args and node.type == Type("f32", ()) and all(a.is_scalar_const for a in node.args):
        values = [np.float32(a["value"]) for a in node.args]
        with np.errstate(all="ignore"):
            return const(float(OPS[node.op].numpy(*values, **dict(node.attrs))))
    return None


RULES: list[RewriteRule] = [
    no_op, double_negation, transposes, broadcasts, transposed_operand, scalars,
]  # fmt: skip


def rewrite(func: Func, rules: Sequence[RewriteRule], log: list[str] | None = None) -> Func:
    """Applies rules until none matches. `log` gets a line for each rewrite."""
    done: dict[Node, Node] = {p: p for p in func.params}

    def visit(node: Node) -> Node:
        if node in done:
            return done[node]
        args = tuple(visit(a) for a in node.args)
        new = node
        if args != node.args:
            new = make(node.op, *args, source=node.source, **dict(node.attrs))
        for rule in rules:
            with from_line(new.source):
                other = rule(new)
            if other is not None and other is not new:
                if log is not None:
                    log.append(f"{rule.__name__}: {new.op} at {new.source or '?'} -> {other.op}")
                new = visit(other)
                break
        done[node] = new
        return new

    return Func(func.name, func.params, tuple(visit(r) for r in func.results))


# ---- 7  gradients
#
# Reverse mode: from the result backwards, each node passes the gradient of its result on to its
# operands. The gradient of a program is a program, so all later steps work on it too.


def grad(func: Func) -> Func:
    """The joint program: the scalar result, then its gradient with respect to each parameter."""
    (loss,) = func.results
    if loss.shape:
        raise MiniError(f"the gradient of {loss.type}: only a scalar has one; sum it")
    gradients: dict[Node, Node] = {loss: const(1.0)}
    for node in reversed(func.nodes):
        if node not in gradients:
            continue
        rule = OPS[node.op].gradient
        if rule is None:
            if node.args:
                raise MiniError(f"{node.op} at {node.source} has no gradient")
            continue
        with from_line(node.source):
            for arg, given in zip(node.args, rule(node, gradients[node]), strict=True):
                if given is not None and arg.op != "const":
                    known = gradients.get(arg)
                    gradients[arg] = given if known is None else make("add", known, given)
    found = [_full(gradients.get(p, const(0.0)), p.shape) for p in func.params]
    return Func(f"{func.name}_grad", func.params, (loss, *found))


def _full(node: Node, shape: tuple[int, ...]) -> Node:
    return node if node.shape == shape else make("broadcast", node, axes=(), shape=shape)


# ---- 8  fusion
#
# Every group becomes one kernel, and values inside a group never go to memory. A producer may be
# computed inside of its user wherever the user needs it. That is always correct, and profitable
# if nothing is computed more often than before. The axis rule of the user gives that count.


@dataclass(frozen=True)
class Decision:
    """The reason why two nodes are or are not fused into one kernel."""

    producer: Node
    user: Node
    reason: str  # "" if they are fused

    def __str__(self) -> str:
        verdict = f"apart: {self.reason}" if self.reason else "one kernel"
        return f"{self.producer.op} -> {self.user.op} ({self.user.source}): {verdict}"


def reuse(user: Node, operand: int) -> int:
    """Returns how often a node reads each element of an operand: the product of the sizes of the
    node's axes that the operand does not have.
    """
    rule = rule_of(user)
    sizes = rule.sizes([a.shape for a in user.args])
    sizes.update(zip(rule.result, user.shape, strict=True))
    return prod(size for name, size in sizes.items() if name not in rule.operands[operand])


def legal(func: Func, producer: Node, user: Node) -> str:
    """Returns why a producer may not be fused into its user; "" if it may."""
    if producer.op in MOVEMENT or producer.op == "iota":
        return ""  # no arithmetic: only the index of the read changes
    if len(func.users[producer]) > 1:
        return "its result has other readers too"
    times = prod(reuse(user, i) for i, a in enumerate(user.args) if a is producer)
    if times > 1:
        return f"each element would be computed {times} times"
    return ""


def fuse(func: Func, decisions: list[Decision] | None = None) -> Func:
    """Groups nodes. Each group becomes a `fusion` node with a closed body."""
    inside: dict[tuple[Node, Node], bool] = {}
    for user in func.nodes:
        for producer in dict.fromkeys(a for a in user.args if a.op not in ("param", "const")):
            reason = legal(func, producer, user)
            inside[producer, user] = not reason
            if decisions is not None:
                decisions.append(Decision(producer, user, reason))
    done: dict[Node, Node] = {p: p for p in func.params}

    def group(root: Node) -> Node:
        """Returns the fusion node that computes `root`; its operands are fusion nodes too."""
        if root in done or root.op == "const":
            return done.get(root, root)
        body: dict[Node, Node] = {}
        outer: dict[Node, Node] = {}

        def visit(node: Node) -> Node:
            if node not in body:
                args = [
                    a if a.op == "const" else visit(a) if inside.get((a, node)) else read(a)
                    for a in node.args
                ]
                attrs = dict(node.attrs)
                body[node] = make(node.op, *args, source=node.source, **attrs)
            return body[node]

        def read(node: Node) -> Node:
            if node not in outer:
                outer[node] = param(node.type, f"p{len(outer)}")
            return outer[node]

        result = visit(root)
        ops = list(dict.fromkeys(n.op for n in body))
        inner = Func("_".join(ops[:4]), tuple(outer.values()), (result,))
        args = tuple(group(a) for a in outer)
        attrs = (("kind", "loop"), ("name", inner.name))
        done[root] = Node("fusion", args, attrs, root.type, root.source, inner)
        return done[root]

    return Func(func.name, func.params, tuple(group(r) for r in func.results))


# ---- 9  C code
#
# The emitter prints a group from its result backwards: `value(node, index)` is the C expression
# of one element. The axis rule of a node gives the index at which its operands are read. A
# reduction is a loop before the expression that uses it.

C_TYPES = {"f32": "float", "bool": "unsigned char"}
START = {"sum": "0.0f", "max": "-INFINITY"}
STEP = {"sum": "{0} + {1}", "max": "largest({0}, {1})"}
# nan wins, as in NumPy; C's own fmaxf would drop it
HEADER = """#include <math.h>
static inline float largest(float x, float y) { return x > y || x != x ? x : y; }

"""


class Emitter:
    """Prints the kernel of one group."""

    def __init__(self, body: Func, name: str) -> None:
        self.body, self.name = body, name
        self.places = {p: f"p{i}" for i, p in enumerate(body.params)}
        self.lines: list[str] = []
        self.known: dict[tuple[Node, tuple[str, ...]], str] = {}
        self.depth = 1
        self.count = 0

    def kernel(self) -> str:
        """`void name(const float *p0, ..., float *out)`."""
        (result,) = self.body.results
        given = [f"const {C_TYPES[p.type.dtype]} *restrict {n}" for p, n in self.places.items()]
        out = f"{C_TYPES[result.type.dtype]} *restrict out"
        index = tuple(f"i{n}" for n in range(len(result.shape)))
        for name, size in zip(index, result.shape, strict=True):
            self.open(name, size)
        value = self.value(result, index)
        self.say(f"out[{offset(index, result.shape)}] = {value};")
        while self.depth > 1:
            self.close()
        text = "\n".join(self.lines)
        return f"void {self.name}({', '.join([*given, out])}) {{\n{text}\n}}\n"

    def say(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def open(self, name: str, size: int) -> None:
        self.say(f"for (long {name} = 0; {name} < {size}; {name}++) {{")
        self.depth += 1

    def close(self) -> None:
        self.depth -= 1
        self.say("}")

    def fresh(self, letter: str) -> str:
        self.count += 1
        return f"{letter}{self.count}"

    def value(self, node: Node, index: tuple[str, ...]) -> str:
        """Returns one element as a C expression, after printing the statements it needs."""
        if node.is_scalar_const:
            return c_number(node["value"])
        if node in self.places:
            return f"{self.places[node]}[{offset(index, node.shape)}]"
        if node.op == "iota":
            return f"(float){index[node['axis']]}"
        key = (node, index)
        if key not in self.known:
            made = self.reduction(node, index) if rule_of(node).reduced else self.inner(node, index)
            if made.isidentifier() or node.op in MOVEMENT:
                return made
            self.known[key] = self.fresh("t")
            line = f"{C_TYPES[node.type.dtype]} {self.known[key]} = {made};"
            self.say(f"{line}  // {node.source}" if node.source else line)
        return self.known[key]

    def inner(self, node: Node, index: tuple[str, ...]) -> str:
        """Returns the C expression for one element of an op that is no reduction, so that it needs
        no loop besides those over the result.
        """
        rule = rule_of(node)
        pulled = rule.pull(dict(zip(rule.result, index, strict=True)))
        args = [self.value(a, at) for a, at in zip(node.args, pulled, strict=True)]
        return OPS[node.op].c.format(*args)

    def reduction(self, node: Node, index: tuple[str, ...]) -> str:
        """Prints a loop that accumulates into a variable, and returns that variable's name."""
        rule = rule_of(node)
        sizes = rule.sizes([a.shape for a in node.args])
        kind = node["kind"] if node.op == "reduce" else "sum"
        total = self.fresh("sum" if kind == "sum" else "top")
        self.say(f"float {total} = {START[kind]};  // {node.op} at {node.source or '?'}")
        at = dict(zip(rule.result, index, strict=True))
        outer = dict(self.known)
        for name in rule.reduced:
            at[name] = self.fresh("r")
            self.open(at[name], sizes[name])
        args = [self.value(a, i) for a, i in zip(node.args, rule.pull(at), strict=True)]
        self.say(f"{total} = {STEP[kind].format(total, OPS[node.op].c.format(*args))};")
        for _ in rule.reduced:
            self.close()
        self.known = outer  # variables declared inside of the loop are out of scope after it
        return total


def offset(index: tuple[str, ...], shape: tuple[int, ...]) -> str:
    """Returns the C expression of an element's row-major offset in an array: `(i0 * 4 + i1) * 8 +
    i2`.
    """
    text = "0"
    for name, size in zip(index, shape, strict=True):
        text = name if text == "0" else f"({text}) * {size} + {name}"
    return text


def c_number(value: float) -> str:
    """An f32 literal in C."""
    if np.isnan(value):
        return "NAN"
    if np.isinf(value):
        return "INFINITY" if value > 0 else "(-INFINITY)"
    return f"{float(np.float32(value))!r}f"


# ---- 10  compiling and running


@dataclass(frozen=True)
class Kernel:
    """A group with its code and its cost: scalar operations, bytes moved, source lines."""

    name: str
    text: str
    ops: tuple[str, ...]
    flops: int
    bytes: int
    source: tuple[str, ...]


@dataclass
class Compiled:
    """A compiled program, ready to be called.

    Attributes:
        stages: the program as text after each pass: traced, canonical, fused, c.
        decisions: the reason for each fusion decision.
        log: every rewrite.
        backend: "c", or "numpy" if this machine has no C compiler.
    """

    func: Func
    stages: dict[str, str]
    kernels: list[Kernel]
    decisions: list[Decision]
    log: list[str]
    backend: str
    run: Callable[[Sequence[Array]], list[Array]] = field(repr=False)

    def __call__(self, *args: Array) -> Any:
        arrays = [np.ascontiguousarray(a, np.float32) for a in args]
        for given, p in zip(arrays, self.func.params, strict=True):
            if given.shape != p.shape:
                raise MiniError(f"{p['name']} is {given.shape}; compiled for {p.shape}")
        found = self.run(arrays)
        return found[0] if len(found) == 1 else tuple(found)


def compile(fn: Callable[..., Any] | Func, *args: Array) -> Compiled:
    """Traces a function on the shapes of its arguments (or takes a program) and compiles it."""
    traced = fn if isinstance(fn, Func) else trace(fn, *args)
    log: list[str] = []
    decisions: list[Decision] = []
    canonical = rewrite(traced, RULES, log)
    fused = fuse(canonical, decisions)
    verify(fused)
    kernels = [_kernel(node, i) for i, node in enumerate(fused.nodes)]
    code = HEADER + "\n".join(k.text for k in kernels)
    stages = {"traced": str(traced), "canonical": str(canonical), "fused": str(fused), "c": code}
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return Compiled(
            fused, stages, kernels, decisions, log, "numpy", lambda a: fused.interpret(*a)
        )
    library = load(compiler, code)
    entries = [getattr(library, k.name) for k in kernels]
    return Compiled(fused, stages, kernels, decisions, log, "c", _runner(fused, entries))


def work(node: Node) -> int:
    """Scalar operations of a node: one for each point of its iteration space, two for a matmul."""
    if node.op in (*MOVEMENT, "iota"):
        return 0
    rule = rule_of(node)
    sizes = rule.sizes([a.shape for a in node.args])
    sizes.update(zip(rule.result, node.shape, strict=True))
    return prod(sizes.values()) * (2 if node.op == "dot" else 1)


def _kernel(node: Node, number: int) -> Kernel:
    assert node.body is not None
    name = f"k{number}_{node.body.name}"
    inside = node.body.nodes
    flops = builtins.sum(work(n) for n in inside)
    moved = node.type.bytes + builtins.sum(a.type.bytes for a in node.args)
    source = tuple(dict.fromkeys(n.source for n in inside if n.source))
    ops = tuple(n.op for n in inside)
    return Kernel(name, Emitter(node.body, name).kernel(), ops, flops, moved, source)


_FOLDER = tempfile.TemporaryDirectory(prefix="stack-mini-")  # deleted when the process ends
_NUMBER = itertools.count()


def load(compiler: str, code: str) -> ctypes.CDLL:
    """Compiles C text and loads it as a shared library. Raises MiniError, with the compiler's
    output, if the compiler rejects the text.
    """
    stem = Path(_FOLDER.name) / f"program{next(_NUMBER)}"
    stem.with_suffix(".c").write_text(code)
    flags = ["-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC"]
    command = [compiler, *flags, "-o", f"{stem}.so", f"{stem}.c", "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MiniError(f"{compiler} rejects the code:\n{done.stderr}")
    return ctypes.CDLL(f"{stem}.so")


def _runner(func: Func, entries: Sequence[Any]) -> Callable[[Sequence[Array]], list[Array]]:
    """Returns a function that calls the kernels in order, each writing a new array."""
    dtypes = {"f32": np.float32, "bool": np.bool_}
    steps = list(zip(func.nodes, entries, strict=True))

    def run(arrays: Sequence[Array]) -> list[Array]:
        values: dict[Node, Array] = dict(zip(func.params, arrays, strict=True))
        for node, entry in steps:
            made = np.empty(node.shape, dtypes[node.type.dtype])
            given = [values[a] for a in node.args]
            entry(*(ctypes.c_void_p(a.ctypes.data) for a in (*given, made)))
            values[node] = made
        return [
            np.array(r["value"], np.float32) if r.is_scalar_const else values[r].copy()
            for r in func.results
        ]

    return run

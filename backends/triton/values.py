"""Prints the values of a kernel in Triton: names, shapes before broadcasting, elementwise ops."""

from __future__ import annotations

import keyword
import math
from collections.abc import Sequence
from typing import Any

from stack.ir.bounds import Integers
from stack.ir.contraction import ROUNDED
from stack.ir.node import Node, walk
from stack.ir.traits import (
    axis_order,
    choice,
    converts,
    is_alias,
    is_contraction,
    is_number,
    number,
    repeated,
    repeats,
)
from stack.ir.types import TensorType

from ..runtime.names import value_name
from .access import Descriptor
from .expressions import TYPES, expression
from .functions import FUNCTIONS

RESERVED = {
    *FUNCTIONS,
    "min",
    "tl",
    "triton",
    "libdevice",
    "nan_max",
    "nan_min",
    "product",
    "both",
    "either",
    "pid",
    "float",
    "tile",
    "first",
    "height",
}

# f32 matmuls as six bf16 matmuls: an f32 is the sum of three bf16, and the dropped terms are below
# its last digit. Three TF32 matmuls lose more than f32 arithmetic does and are slower on an H100.
# Operands below 1e-33 lose digits; values in the top 0.2 % of the f32 range overflow.
SPLIT = "bf16x6"


class Values:
    """The printed lines of one kernel, and the names of its nodes in them."""

    def __init__(self, node: Node, name: str, readable: bool, arguments: Sequence[str]) -> None:
        self.node, self.name, self.readable = node, name, readable
        self.body = node.blocks[0]
        self.memories = dict(zip(self.body.params, arguments))
        self.lines: list[str] = []
        self.origins: list[str] = []  # the source line of each line
        self.text: dict[Node, str] = {}
        self.actual: dict[Node, tuple[int, ...]] = {}  # shapes before broadcasting
        self.taken = set(RESERVED)
        self.depth = 1
        self.uses: dict[Node, int] = {}
        self.has_dot = False
        # without 16-bit memory, errors of a few ulp are visible in the results
        self.is_exact = not any(
            p.tensor.dtype.is_float and p.tensor.dtype.bits == 16 for p in self.body.params
        )
        self.programs: set[Node] = set()  # indices of grid loops
        # loads through shared memory: operands of a dot, and tiles of the shape of its accumulator
        self.copied: set[Node] = set()
        self.ahead: set[Node] = set()  # prefetched loads in pipelined loops
        self.streamed: set[Node] = set()  # these, and prefetched loads of rows
        loads: list[Node] = []
        sums: set[tuple[int, ...]] = set()
        for block, inner in walk(self.body):
            if inner.op == "load":
                loads.append(inner)
            if inner.attrs.get("staged") or inner.attrs.get("ahead"):
                found = [n for n in inner.blocks[0].nodes if n.op == "load"]
                self.streamed.update(found)
                self.ahead.update(found if inner.attrs.get("staged") else ())
            if is_contraction(inner):
                self.has_dot = True
                sums.add(shape_of(inner))
            for arg in inner.args if is_contraction(inner) else ():
                self.copied.add(_source(arg))
            for arg in inner.args:
                self.uses[arg] = self.uses.get(arg, 0) + 1
            for result in block.results if inner is block.params[0] else ():
                self.uses[result] = self.uses.get(result, 0) + 1
        # a pointer per element of such a tile would take the registers of the accumulators
        self.copied.update(n for n in loads if n in self.ahead or shape_of(n) in sums)
        self.descriptors: dict[Descriptor, str] = {}
        self.integers = Integers()
        self.serial = 0

    # ---- lines

    def _fresh(self, hint: str) -> str:
        plain = "".join(c if c.isalnum() else "_" for c in hint)
        if not plain.isidentifier() or keyword.iskeyword(plain):
            plain = f"v_{plain}"
        name = plain
        while name in self.taken:
            self.serial += 1
            name = f"{plain}_{self.serial}"
        self.taken.add(name)
        return name

    def _line(self, text: str, node: Node | None = None) -> None:
        found = self.body.locs.get(node) if node is not None else None
        comment = f"  # {found[0]}" if self.readable and found else ""
        self.lines.append("    " * self.depth + text + comment)
        self.origins += [found[0] if found else ""] * (1 + text.count("\n"))

    def _assign(self, node: Node, text: str, actual: tuple[int, ...] | None = None) -> None:
        # compiled text contains no names of the program, so that equal code has equal text
        hint = value_name(self.body, node, self.memories) if self.readable else node.op
        name = self._fresh(hint)
        self._line(f"{name} = {text}", node)
        self.text[node] = name
        self.actual[node] = shape_of(node) if actual is None else actual

    # ---- values

    def _value(self, node: Node) -> str:
        """Returns the text of an operand, in the shape in which it was printed.

        Triton's implicit broadcasting extends that shape where the value is used.
        """
        if not is_number(node):
            return self.text[node]
        value = number(node)
        text = _literal(value)
        # a literal is f32 or i32; other types are written out
        if node.dtype.name not in ("bool", "i32", "f16", "bf16", "f32"):
            return f"tl.full([], {text}, {TYPES[node.dtype.name]})"
        return text

    def _full(self, node: Node) -> str:
        """Returns the text of an operand, explicitly broadcast to its shape in the IR."""
        shape = shape_of(node)
        held = repeated(node)
        if is_number(held):
            return f"tl.full({list(shape)}, {_literal(number(held))}, {TYPES[node.dtype.name]})"
        if self.actual.get(node, shape) == shape:
            return self._value(node)
        return f"tl.broadcast_to({self._value(node)}, {list(shape)})"

    def _elementwise(self, node: Node) -> None:
        if node.op == "add":
            for acc, dot in (node.args, node.args[::-1]):
                waits = is_contraction(dot) and self.uses.get(dot) == 1 and dot not in self.text
                if waits and shape_of(acc) == shape_of(dot):
                    self._settle(acc)
                    self._assign(node, self._dot_text(dot, self._full(acc)))
                    return
        for arg in node.args:
            self._settle(arg)
        if all(is_literal(a) for a in node.args):
            # Python numbers have no methods
            args = [self._full(a) for a in node.args]
            actual = shape_of(node)
        else:
            args = [self._value(a) for a in node.args]
            actual = broadcast_shape([self.actual.get(a, ()) for a in node.args])
        if converts(node):
            if self.has_dot and actual and _rounds_to_bf16(node):
                self._assign(node, f"round_bf16({self._value(node.args[0].args[0])})", actual)
            elif self._widens_tile(node):
                self._assign(node, f"widen_bf16({args[0]})", actual)
            elif node.dtype.kind == "b":
                self._assign(node, f"{args[0]} != 0", actual)
            else:
                self._assign(node, f"{args[0]}.to({TYPES[node.dtype.name]})", actual)
            return
        if node.op == "bitcast":
            kind = TYPES[node.dtype.name]
            self._assign(node, f"{args[0]}.to({kind}, bitcast=True)", actual)
            return
        if node.op == "div" and self._divides_lines(node):
            self._assign(node, f"{args[0]} * (1.0 / {args[1]})", actual)
            return
        self._assign(node, expression(node, args, self.is_exact, self.has_dot), actual)

    def _widens_tile(self, node: Node) -> bool:
        """True for a cast that widens a large prefetched bf16 tile, or the transpose of one."""
        (tile,) = node.args
        size = math.prod(self.actual.get(tile, ()))
        if axis_order(tile) is not None:
            (tile,) = tile.args
        return (
            (tile.op, tile.dtype.name, node.dtype.name) == ("load", "bf16", "f32")
            and tile in self.streamed
            and size >= 64 * int(self.node.attrs.get("warps") or 4)  # two elements per thread
        )

    def _divides_lines(self, node: Node) -> bool:
        """True for an f32 division by a value with fewer elements, such as one for each row.

        Only in a kernel with matmuls.
        """
        over, by = (self.actual.get(a, ()) for a in node.args)
        return self.has_dot and node.dtype.name == "f32" and math.prod(by) < math.prod(over)

    def _broadcast(self, node: Node) -> None:
        source, axes = node.args[0], node.attrs["axes"]
        if not source.tensor.rank:
            if is_number(source):
                self.text[node] = self._value(source)
                self.actual[node] = ()
                return
            self.text[node], self.actual[node] = self._value(source), ()
            return
        self._settle(source)
        if self.actual.get(source) == ():  # a tile of one number
            self.text[node], self.actual[node] = self._value(source), ()
            return
        own = iter(self.actual.get(source, shape_of(source)))
        shape = tuple(next(own) if i in axes else 1 for i in range(node.tensor.rank))
        marks = ", ".join(":" if i in axes else "None" for i in range(node.tensor.rank))
        self.text[node], self.actual[node] = f"{self._value(source)}[{marks}]", shape

    def _settle(self, node: Node) -> None:
        """Prints a matmul that was delayed in order to fuse it with an add, before another reader.

        Does nothing for other nodes, and for a matmul that is printed already.
        """
        if is_contraction(node) and node not in self.text:
            self._assign(node, self._dot_text(node, ""))

    def _iota(self, node: Node) -> None:
        text = f"tl.arange(0, {node.shape[0]})"
        self._assign(node, text if node.dtype.name == "i32" else f"{text}.to(tl.int64)")

    def _transpose(self, node: Node) -> None:
        self._settle(node.args[0])
        perm = [int(p) for p in node.attrs["perm"]]
        self._assign(node, f"tl.permute({self._full(node.args[0])}, {perm})")

    def _reshape(self, node: Node) -> None:
        self._settle(node.args[0])
        self._assign(node, f"tl.reshape({self._full(node.args[0])}, {list(shape_of(node))})")

    def _gather(self, node: Node) -> None:
        """Print a gather from a tile of rank 1."""
        run, picked = (self._full(a) for a in node.args)
        shape = list(shape_of(node))
        flat = f"tl.reshape({picked}, {[math.prod(shape)]})"
        self._assign(node, f"tl.reshape(tl.gather({run}, {flat}, 0), {shape})")

    def _reduce(self, node: Node) -> None:
        self._settle(node.args[0])
        text, kind = self._full(node.args[0]), str(node.attrs["kind"])
        is_bool = node.dtype.kind == "b"
        if is_bool:
            text = f"{text}.to(tl.int32)"
        for axis in sorted(node.attrs["axes"], reverse=True):
            text = _reduction(kind, text, int(axis), node.dtype.is_float)
        self._assign(node, f"{text} != 0" if is_bool else text)

    def _again(self, node: Node) -> None:
        self._settle(node.args[0])
        self._assign(node, f"again({self._full(node.args[0])})")

    def _scan(self, node: Node) -> None:
        self._settle(node.args[0])
        running = {"sum": "tl.cumsum", "prod": "tl.cumprod"}[str(node.attrs["kind"])]
        turned = ", reverse=True" if node.attrs["reverse"] else ""
        self._assign(node, f"{running}({self._full(node.args[0])}, {node.attrs['axis']}{turned})")

    def _dot(self, node: Node) -> None:
        if self.uses.get(node, 0) != 1:
            self._assign(node, self._dot_text(node, ""))

    def _dot_text(self, node: Node, acc: str) -> str:
        left, right = node.args
        for arg in node.args:
            self._settle(arg)
        sides, made = str(node.attrs["rule"]).split(" -> ")
        names = [side.split() for side in sides.split(", ")]
        rows, lanes = made.split()
        if rows not in names[0]:
            left, right = right, left
            names = names[::-1]
        a, b = self._full(left), self._full(right)
        if names[0][0] != rows:
            a = f"tl.trans({a})"
        if names[1][1] != lanes:
            b = f"tl.trans({b})"
        precision = node.attrs.get("precision", SPLIT)
        if precision == "tf32":
            a, b = f"round_tf32_left({a})", f"round_tf32({b})"
        if precision == ROUNDED:
            precision = "tf32"
        exact = f', input_precision="{precision}"' if left.dtype.name == "f32" else ""
        kind = "" if node.dtype.name == "f32" else f", out_dtype={TYPES[node.dtype.name]}"
        return f"tl.dot({a}, {b}{', ' + acc if acc else ''}{exact}{kind})"


def shape_of(node: Node) -> tuple[int, ...]:
    if not isinstance(node.type, TensorType):
        return ()
    return tuple(int(s) for s in node.shape)  # pyright: ignore[reportArgumentType]


def _source(operand: Node) -> Node:
    """The load behind an operand of a matmul, looking through transposes, masks and aliases."""
    while True:
        chosen = choice(operand)
        if chosen is not None:
            operand = chosen.yes
        elif is_alias(operand) or axis_order(operand) is not None:
            operand = operand.args[0]
        else:
            return operand


def _rounds_to_bf16(node: Node) -> bool:
    """True for a cast from bf16 to f32 of a value that was just cast from f32."""
    (inner,) = node.args
    if not converts(inner):
        return False
    return [x.dtype.name for x in (node, inner, *inner.args)] == ["f32", "bf16", "f32"]


def is_literal(node: Node) -> bool:
    return is_number(node) or (repeats(node) and is_literal(node.args[0]))


def broadcast_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """The shape that Triton broadcasts these operand shapes to."""
    rank = max((len(s) for s in shapes), default=0)
    full = [s for s in shapes if len(s) == rank]
    return tuple(max(s[i] for s in full) for i in range(rank))


def _literal(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def _reduction(kind: str, text: str, axis: int, is_float: bool) -> str:
    if kind == "sum":
        return f"tl.sum({text}, {axis})"
    if kind in ("max", "min") and not is_float:
        return f"tl.{kind}({text}, {axis})"
    names = {"max": "nan_max", "min": "nan_min", "prod": "product", "and": "both", "or": "either"}
    return f"tl.reduce({text}, {axis}, {names[kind]})"

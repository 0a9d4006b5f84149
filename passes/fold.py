"""fold: compute at compile time what depends on constants alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from stack.errors import StackError
from stack.ir import ops
from stack.ir.builder import Builder, constant, filled, make
from stack.ir.data import INLINE_ELEMENTS
from stack.ir.func import Func
from stack.ir.interpreter import evaluate
from stack.ir.node import Block, Node
from stack.ir.space import NumpySpace, identity
from stack.ir.traits import is_constant, is_positions, is_reduction, repeats
from stack.ir.types import TensorType
from stack.rewrite.engine import Scope, Simple, on, rewrite
from stack.rewrite.log import Log
from stack.rewrite.passes import Pass
from stack.rewrite.verdict import Why

# These make a value larger, or are as cheap to compute as to load.
_STEPS = ("control", "group", "item")
_KEPT = frozenset({"const", "param", "var", "iota", "size", "broadcast", "opaque", "custom"})
_EMPTY_KEPT = _KEPT - {"iota", "broadcast"}


@dataclass(frozen=True)
class Fold(Pass):
    """Evaluate ops on constants in the interpreter.

    An array without elements is a constant, and the results of ops on it alone are equal elements.
    A result larger than `max_elements` stays an op, unless it is no larger than the constant arrays
    that it is computed from. Then folding saves memory too; it may read up to `max_work` elements.

    Tables computed from iotas, such as causal masks, stay formulas. A kernel computes them on the
    fly, passes can see that they are affine, and the text of a stage stays complete.
    """

    max_elements: int = INLINE_ELEMENTS
    max_work: int = 1 << 22

    def run(self, func: Func, log: Log) -> Func:
        rules = (
            Simple("empty", _pure_ops(_EMPTY_KEPT), _empty),
            _equal_elements,
            _others,
            Simple("fold", _pure_ops(_KEPT), self._fold),
        )
        return rewrite(func, rules, log)

    def _fold(self, node: Node, op: Builder, scope: Scope) -> Node | Why | None:
        if not node.args or any(_source(a) is None for a in node.args):
            return None
        if not isinstance(node.type, TensorType) or not isinstance(node.type.size, int):
            return None
        read = sum(_elements(a) for a in node.args)
        size = node.type.size
        if read > self.max_work or size > max(self.max_elements, read if node.shape else 1):
            return None
        try:
            (value,) = evaluate(Block((), (node,)), (), NumpySpace())
        except (StackError, ValueError, TypeError, ZeroDivisionError, IndexError) as error:
            return Why(f"the interpreter refuses: {error}")
        return constant(np.asarray(value), node.dtype)


def _pure_ops(kept: frozenset[str]) -> tuple[str, ...]:
    return tuple(
        name
        for name, op in ops.OPS.items()
        if name not in kept and "tensor" in op.levels and op.kind not in _STEPS
    )


def _empty(node: Node, op: Builder, scope: Scope) -> Node | None:
    """A value without elements needs no code."""
    if not _is_empty(node):
        return None
    return constant(np.empty(node.shape, node.dtype.numpy), node.dtype)


@on("pad", "reduce", "dot")
def _equal_elements(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Rule: padding around no elements, a reduction of none and a product over none are equal
    elements."""
    if not any(_is_empty(a) for a in node.args):
        return None
    if node.op == "pad":
        value = node.args[1]
    else:
        kind = str(node.attrs["kind"]) if is_reduction(node) else "sum"
        value = constant(identity(kind, node.dtype), node.dtype)
    return filled(value, node)


@on("concat", "scatter")
def _others(node: Node, op: Builder, scope: Scope) -> Node | None:
    """Rule: an operand without elements adds nothing to a concatenation or a scatter."""
    if node.op == "scatter":
        return node.args[0] if _is_empty(node.args[-1]) else None
    kept = [a for a in node.args if not _is_empty(a)]
    if len(kept) in (0, len(node.args)):
        return None
    return make("concat", kept, node.attrs) if len(kept) > 1 else kept[0]


def _is_empty(node: Node) -> bool:
    return isinstance(node.type, TensorType) and node.type.size == 0


def _source(node: Node) -> Node | None:
    """Returns the constant or iota behind a value, through a broadcast; else None."""
    if repeats(node):
        node = node.args[0]
    return node if is_constant(node) or is_positions(node) else None


def _elements(node: Node) -> int:
    """Counts the elements of the constant array behind a value."""
    source = _source(node)
    if source is None or is_positions(source):
        return 0
    size = source.tensor.size
    return size if isinstance(size, int) else 1 << 62

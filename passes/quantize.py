"""quantize: products with weights that are known become hosted operators on packed weights.

A weight is known where it is a constant, as those of a model are for a pass that `takes_weights`.
It is packed as the operator says (`Op.packs`): any operator that packs is a scheme. What rounding
costs is measured for each product on rows of normal numbers, and noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from stack.errors import RuleError, UsageError
from stack.hosted import Op, declared, find
from stack.hosted.nodes import custom
from stack.ir.axes import parse_rule
from stack.ir.builder import Builder, constant
from stack.ir.interpreter import evaluate
from stack.ir.node import Block, Func, Node
from stack.ir.space import NumpySpace
from stack.ir.types import TensorType, dtype_of
from stack.rewrite.engine import Scope, Simple, rewrite
from stack.rewrite.log import Log, Note
from stack.rewrite.passes import Pass
from stack.rewrite.verdict import Why

Array = np.ndarray[Any, Any]
MOVES = ("transpose", "reshape", "cast")  # between a weight and the product that takes it
ROWS = 16  # on which an error is measured


@dataclass(frozen=True)
class Quantize(Pass):
    """Pack weights of products.

    Attributes:
        scheme: an operator that packs weights; without a family, one of `qgemm`.
        group: weights in a row that share a scale, where the operator leaves that open.
        least: elements of a weight that is worth it.
        worst: products whose relative error is above it stay as they are.
    """

    name: ClassVar[str] = "quantize"
    takes_weights: ClassVar[bool] = True
    scheme: str = "w4a16"
    group: int = 128
    least: int = 1 << 12
    worst: float = 1.0

    def run(self, func: Func, log: Log) -> Func:
        packer = _Packer(self, self._operator(), log)
        return rewrite(func, (Simple("quantize", ("dot",), packer.product),), log)

    def _operator(self) -> Op:
        made = find(self.scheme if "." in self.scheme else f"qgemm.{self.scheme}")
        if made.packs is None:
            known = [n.removeprefix("qgemm.") for n in declared() if find(n).packs is not None]
            raise UsageError(
                f"{made.name} does not say how it packs a weight; schemes are {', '.join(known)}"
            )
        return made


@dataclass
class _Packer:
    options: Quantize
    made: Op
    log: Log

    def product(self, node: Node, op: Builder, scope: Scope) -> Node | Why | None:
        """The operator in place of a product."""
        x, side = node.args
        source = _source(side)
        if source is None or not x.dtype.is_float or side.tensor.rank != 2:
            return None
        if source.op != "const":
            return Why("the values of its weight are not known: it is an argument")
        if not _is_linear(node):
            return Why(f"it is no product of rows with a matrix: {node.attrs['rule']}")
        weight = np.ascontiguousarray(_values(side).T)
        if weight.size < self.options.least:
            return Why(f"{weight.size} weights are fewer than {self.options.least}")
        try:
            packed = self._packed(weight, x)
            error = self._error(weight, packed, x)
            if error > self.options.worst:
                return Why(f"it would be off by {error:.1%}, more than {self.options.worst:.1%}")
            (new,) = custom(op, self.made, [x, *packed], {})
        except (ValueError, RuleError) as refusal:
            return Why(str(refusal))
        name = scope.block.names.get(source, "weight")
        for operand, held in zip(self.made.operands[1:], packed, strict=True):
            op.names[held] = f"{name}.{operand}"
        text = f"{name} {list(weight.shape)} as {self.made.name}: {_sizes(source, packed)}"
        lines = scope.block.locs.get(node, ())
        self.log.notes.append(Note(f"{text}, products off by {error:.2%}", lines))
        return op.cast(new, type=node.tensor) if new.dtype is not node.dtype else new

    def _packed(self, weight: Array, x: Node) -> list[Node]:
        """Constants; floats among them have the type of x."""
        assert self.made.packs is not None
        held = [np.asarray(a) for a in self.made.packs(weight, self.options.group)]
        return [constant(a, x.dtype if a.dtype.kind == "f" else dtype_of(a)) for a in held]

    def _error(self, weight: Array, packed: list[Node], x: Node) -> float:
        """How far products with normal rows are off, relative to their size, root mean square."""
        rows = np.random.default_rng(0).standard_normal((ROWS, weight.shape[1]))
        operands = [rows.astype(x.dtype.numpy), *(n.attrs["value"].array for n in packed)]
        exact = operands[0].astype(np.float64) @ weight.T
        found = self.made.decomposition(np, *operands, **self.made.read({}))
        return float(np.linalg.norm(found - exact) / (np.linalg.norm(exact) or 1.0))


def _sizes(source: Node, packed: Sequence[Node]) -> str:
    before, after = (sum(_bytes(n) for n in nodes) for nodes in ([source], packed))
    return f"{before / 1e6:.2f} MB to {after / 1e6:.2f} MB"


def _bytes(node: Node) -> int:
    return node.attrs["value"].size * node.dtype.bytes


def _source(node: Node) -> Node | None:
    """The constant or parameter behind moves."""
    while node.op in MOVES:
        node = node.args[0]
    return node if node.op in ("const", "param") else None


def _values(node: Node) -> Array:
    """What a constant is after moves."""
    if node.op == "const":
        return node.attrs["value"].array
    moved = Node(
        node.op, (constant(_values(node.args[0]), node.args[0].dtype),), node.attrs, node.type
    )
    return np.asarray(evaluate(Block((), (moved,)), (), NumpySpace())[0])


def _is_linear(node: Node) -> bool:
    """Whether rows of the left operand meet a matrix `[k, n]`: `... k, k n -> ... n`."""
    rule = parse_rule(str(node.attrs["rule"]))
    (left, right), (out,) = rule.inputs, rule.outputs
    if not rule.is_plain or not isinstance(node.type, TensorType):
        return False
    return left[-1] == right[0] and out == (*left[:-1], right[1]) and right[0] not in out

"""quantize: replace matmuls with constant weights by hosted operators on packed weights.

A weight is known if it is a constant, as those of a model are for a pass with `takes_weights`. It
is packed as the operator says (`Op.packs`): any operator that packs is a scheme. Calibrators use a
sample of each matmul's input, which comes from calls of the whole program. The rounding error is
measured for each matmul, and with a sample also after all matmuls before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from stack.errors import RuleError, UsageError
from stack.hosted import Op, declared, find
from stack.hosted.arrays import Array as Traced
from stack.hosted.arrays import Namespace
from stack.hosted.calibration import Calibrator, Product, find_calibrator
from stack.hosted.nodes import custom
from stack.ir.axes import parse_rule
from stack.ir.builder import Builder, constant
from stack.ir.func import Func
from stack.ir.interpreter import evaluate
from stack.ir.node import Block, Node
from stack.ir.space import NumpySpace
from stack.ir.types import TensorType, dtype_of
from stack.passes.quantizing.sample import Calls, calls, rows_of, seen
from stack.rewrite.engine import Scope, Simple, rewrite
from stack.rewrite.log import Log, Note
from stack.rewrite.passes import Pass
from stack.rewrite.verdict import Why

Array = np.ndarray[Any, Any]
MOVES = ("transpose", "reshape", "cast")  # between a weight and the matmul that takes it
ROWS = 16  # on which an error is measured
SAMPLED = 512  # rows of a matmul that calibrators see
AGAIN = 16  # calls that are repeated on the packed program


@dataclass(frozen=True)
class Quantize(Pass):
    """Pack weights of matmuls.

    Attributes:
        scheme: an operator that packs weights; without a family, one of `qgemm`.
        group: weights in a row that share a scale, if the operator leaves that open.
        calibrate: calibrators of that family, one after the other: "gptq", "hadamard+gptq".
        sample: a file (.npz) with calls of the program, by argument `[count, *shape]`; without one,
            calibrators see normal random numbers as arguments.
        least: fewest elements of a weight to pack.
        worst: matmuls with a larger relative error stay as they are.
    """

    takes_weights: ClassVar[bool] = True
    scheme: str = "w4a16"
    group: int = 128
    calibrate: str = ""
    sample: str = ""
    least: int = 1 << 12
    worst: float = 1.0

    def run(self, func: Func, log: Log) -> Func:
        made = self._operator()
        family = made.name.partition(".")[0]
        names = filter(None, self.calibrate.split("+"))
        chosen = tuple(find_calibrator(f"{family}.{name}") for name in names)
        packer = _Packer(self, made, chosen, log)
        sample = _Sample.of(func, self.sample) if chosen or self.sample else None
        if sample is not None:
            packer.given = sample.given()
        found = rewrite(func, (Simple("quantize", ("dot",), packer.product),), log)
        if sample is not None:
            log.notes += sample.drift(found, packer.made_of)
        return found

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
    """Replaces matmuls by calls of the operator.

    `given` maps a weight's node to the input rows that it multiplies. `made_of` maps the first
    packed operand and the weight to the weight's name.
    """

    options: Quantize
    made: Op
    calibrators: tuple[Calibrator, ...]
    log: Log
    given: dict[Node, Array] = field(default_factory=dict[Node, Array])
    made_of: dict[tuple[Node, Node], str] = field(default_factory=dict[tuple[Node, Node], str])

    def product(self, node: Node, op: Builder, scope: Scope) -> Node | Why | None:
        """Returns a call of the quantized operator that replaces a matmul with a constant weight.
        Returns None, or the reason, if the matmul is left as it is."""
        x, side = node.args
        source = _source(side)
        if source is None or not x.dtype.is_float or side.tensor.rank != 2:
            return None
        if source.op != "const":
            return Why("the values of its weight are unknown: it is an argument")
        if not _is_linear(node):
            return Why(f"it does not multiply rows by a matrix: {node.attrs['rule']}")
        weight = np.ascontiguousarray(_values(side).T)
        if weight.size < self.options.least:
            return Why(f"{weight.size} weights are fewer than {self.options.least}")
        try:
            product = self._calibrated(weight, self.given.get(side))
            packed = [self._constant(a, x) for a in product.packed()]
            error = self._error(weight, product, packed, x)
            if error > self.options.worst:
                return Why(f"it would be off by {error:.1%}, more than {self.options.worst:.1%}")
            (new,) = custom(op, self.made, [_turned(product, x, op), *packed], {})
        except (ValueError, RuleError) as refusal:
            return Why(str(refusal))
        name = scope.block.names.get(source, "weight")
        for operand, held in zip(self.made.operands[1:], packed, strict=True):
            op.names[held] = f"{name}.{operand}"
        self.made_of[packed[0], side] = name
        text = f"{name} {list(weight.shape)} as {self.made.name}: {_sizes(source, packed)}"
        lines = scope.block.locs.get(node, ())
        self.log.notes.append(Note(f"{text}, products off by {error:.2%}", lines))
        return op.cast(new, type=node.tensor) if new.dtype is not node.dtype else new

    def _calibrated(self, weight: Array, given: Array | None) -> Product:
        """Calibrates a weight on the given rows, or on normal random numbers if there are none."""
        if given is None:
            given = np.random.default_rng(0).standard_normal((ROWS, weight.shape[1]))
        product = Product(self.made, self.options.group, given, weight)
        for calibrate in self.calibrators:
            if product.operands is not None:
                raise UsageError(
                    f"calibrate={self.options.calibrate}: the packing calibrator must be last"
                )
            product = calibrate(product)
        return product

    def _constant(self, array: Array, x: Node) -> Node:
        """Returns an array of packed weights or scales as a constant; floats get the element type
        of the matmul's left operand `x`."""
        return constant(array, x.dtype if array.dtype.kind == "f" else dtype_of(array))

    def _error(self, weight: Array, product: Product, packed: Sequence[Node], x: Node) -> float:
        """Measures the error of the quantized matmul relative to the exact one, both on the
        calibration rows: the root mean square of the difference."""
        operands = [n.attrs["value"].array for n in packed]
        rows = product.x.astype(x.dtype.numpy)
        found = self.made.decomposition(np, rows, *operands, **self.made.read({}))
        return _off(found, product.x @ product.weight.astype(np.float64).T)


@dataclass(frozen=True)
class _Sample:
    """Calls of a program, with the inputs and results of its matmuls."""

    arguments: Calls
    products: tuple[Node, ...]
    values: dict[Node, Array]

    @classmethod
    def of(cls, func: Func, file: str) -> _Sample:
        dots = [n for n in func.nodes if n.op == "dot" and _source(n.args[1]) is not None]
        products = tuple(n for n in dots if _is_linear(n))
        least = min((rows_of(n.args[0]) for n in products), default=SAMPLED)
        arguments = calls(func, file, enough=-(-SAMPLED // max(least, 1)))
        wanted = {*products, *(n.args[0] for n in products)}
        return cls(arguments, products, seen(func, arguments, wanted))

    def given(self) -> dict[Node, Array]:
        """Returns for each weight the rows of left operands that it is multiplied with in the
        sample calls."""
        found: dict[Node, list[Array]] = {}
        for node in self.products:
            found.setdefault(node.args[1], []).append(self.values[node.args[0]])
        return {side: np.concatenate(rows) for side, rows in found.items()}

    def drift(self, func: Func, made_of: dict[tuple[Node, Node], str]) -> list[Note]:
        """Runs the quantized program on some sample calls. Returns a log note for each packed
        matmul: the error of its result when all matmuls before it are quantized too."""
        calls = [n for n in func.nodes if n.op == "custom"]
        after = seen(func, self.arguments[:AGAIN], calls)
        notes: list[Note] = []
        for (packed, side), name in made_of.items():
            new = [after[n] for n in calls if packed in n.args]
            old = [self.values[n] for n in self.products if n.args[1] is side]
            if new and len(new) == len(old):
                first = [o[: len(n)] for o, n in zip(old, new, strict=True)]
                error = _off(np.concatenate(new), np.concatenate(first))
                notes.append(Note(f"{name}: off by {error:.2%} after all before it"))
        return notes


def _turned(product: Product, x: Node, op: Builder) -> Node:
    """Returns the left operand `x` of a matmul after the transforms that the calibrators chose for
    its weight."""
    value = Traced(Namespace(op), x)
    for turn in product.turns:
        value = turn(value.space, value)
    return value.node


def _off(found: Array, exact: Array) -> float:
    return float(np.linalg.norm(found - exact) / (np.linalg.norm(exact) or 1.0))


def _sizes(source: Node, packed: Sequence[Node]) -> str:
    before, after = (sum(_bytes(n) for n in nodes) for nodes in ([source], packed))
    return f"{before / 1e6:.2f} MB to {after / 1e6:.2f} MB"


def _bytes(node: Node) -> int:
    return node.attrs["value"].size * node.dtype.bytes


def _source(node: Node) -> Node | None:
    """Returns the constant or parameter behind transposes, reshapes and casts; else None."""
    while node.op in MOVES:
        node = node.args[0]
    return node if node.op in ("const", "param") else None


def _values(node: Node) -> Array:
    """Returns the array of a constant after transposes, reshapes and casts."""
    if node.op == "const":
        return node.attrs["value"].array
    moved = Node(
        node.op, (constant(_values(node.args[0]), node.args[0].dtype),), node.attrs, node.type
    )
    return np.asarray(evaluate(Block((), (moved,)), (), NumpySpace())[0])


def _is_linear(node: Node) -> bool:
    """True for rows of the left operand times a matrix `[k, n]`: `... k, k n -> ... n`."""
    rule = parse_rule(str(node.attrs["rule"]))
    (left, right), (out,) = rule.inputs, rule.outputs
    if not rule.is_plain or not isinstance(node.type, TensorType):
        return False
    return left[-1] == right[0] and out == (*left[:-1], right[1]) and right[0] not in out

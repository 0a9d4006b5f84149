"""The table of lowerings from ONNX ops, and what a lowering gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stack.errors import UnsupportedOp
from stack.frontends.files.lowering_table import LoweringTable, sizes
from stack.ir.builder import Builder
from stack.ir.node import Node
from stack.ir.types import DType, TensorType

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Call:
    """One node of an ONNX graph with the values of its inputs.

    Attributes:
        op: the ONNX op, such as "Conv".
        name: the node, as errors name it.
        version: the opset of the model in the op's domain.
        inputs: values; None for an optional input that is left out.
        outputs: number of outputs that are used.
    """

    op: str
    name: str
    version: int
    b: Builder
    inputs: Sequence[Node | None]
    attrs: Mapping[str, Any]
    outputs: int

    def fail(self, why: str) -> UnsupportedOp:
        """Returns an error that names the node and op."""
        what = f"{self.op} of opset {self.version}, node {self.name}"
        return UnsupportedOp([(what, self.b.loc)], why)

    def input(self, number: int) -> Node:
        """Returns an input that has to be there."""
        if not self.has(number):
            raise self.fail(f"input {number} is missing")
        found = self.inputs[number]
        assert found is not None, "tested above"
        return found

    def has(self, number: int) -> bool:
        """True if an optional input is given."""
        return number < len(self.inputs) and self.inputs[number] is not None

    def array(self, number: int) -> np.ndarray:
        """Returns an input that has to be known when the model is imported, such as a shape."""
        found = known(self.input(number))
        if found is None:
            raise self.fail(
                f"input {number} depends on the arguments, and shapes must not; give the sizes of"
                " all inputs with -i, or fold it with `onnxsim` or torch.onnx.export(dynamo=True)"
            )
        return found

    def integers(self, number: int, attr: str = "") -> list[int] | None:
        """Returns integers of an input, or of an attribute in older opsets; None if neither is
        given.
        """
        if attr in self.attrs:
            return [int(v) for v in self.attrs[attr]]
        return [int(v) for v in self.array(number).reshape(-1)] if self.has(number) else None

    def axis(self, default: int, rank: int | None = None) -> int:
        """Returns attribute `axis`, counted from the front."""
        axis = int(self.attrs.get("axis", default))
        return axis + (self.input(0).tensor.rank if rank is None else rank) * (axis < 0)

    # ---- shapes

    def spread(self, x: Node, shape: Shape) -> Node:
        """Broadcasts a value to a shape, as NumPy does."""
        if sizes(x) == shape:
            return x
        own = sizes(x)
        ahead = len(shape) - len(own)
        kept = [i for i, s in enumerate(own) if s != 1 or shape[ahead + i] == 1]
        small = self.reshape(x, tuple(own[i] for i in kept))
        if small.shape == shape:
            return small
        axes = tuple(ahead + i for i in kept)
        return self.b.broadcast(small, axes=axes, type=TensorType(x.dtype, shape))

    def together(self, *values: Node) -> list[Node]:
        """Broadcasts values to one shape; scalar constants stay scalars beside others."""
        try:
            shape = np.broadcast_shapes(*(sizes(v) for v in values))
        except ValueError as error:
            shown = ", ".join(str(v.type) for v in values)
            raise self.fail(f"shapes do not broadcast: {shown}") from error
        return [self.spread(v, shape) for v in values]

    def reshape(self, x: Node, shape: Sequence[int]) -> Node:
        """Reshapes a value; returns it unchanged if it has the shape."""
        if sizes(x) == tuple(shape):
            return x
        return self.b.reshape(x, type=TensorType(x.dtype, tuple(shape)))

    def transpose(self, x: Node, perm: Sequence[int]) -> Node:
        """Transposes a value; returns it unchanged if no axis moves."""
        same = list(perm) == list(range(len(perm)))
        return x if same else self.b.transpose(x, perm=tuple(perm))

    def full(self, value: float, like: Node) -> Node:
        """Returns a value whose elements are all one number, with the type of another."""
        scalar = self.b.const(np.asarray(value).astype(like.dtype.numpy), like.dtype)
        return self.spread(scalar, sizes(like))

    def cast(self, x: Node, dtype: DType) -> Node:
        """Converts to an element type; returns a value of this type unchanged."""
        return x if x.dtype is dtype else self.b.cast(x, type=x.tensor.with_dtype(dtype))


def known(node: Node) -> np.ndarray | None:
    """Returns the array of a constant; None for other values."""
    return node.attrs["value"].array if node.op == "const" else None


TABLE = LoweringTable[Call]()
lowers = TABLE.lowers

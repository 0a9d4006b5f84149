"""The table of lowerings from StableHLO ops, and what a lowering gets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stack.errors import UnsupportedOp
from stack.frontends.files.lowering_table import LoweringTable
from stack.ir.builder import Builder
from stack.ir.node import Node
from stack.ir.types import TensorType, dtype_named, tensor

ELEMENTS = {
    "i1": "bool", "ui8": "u8", "ui16": "u16", "ui32": "u32", "ui64": "u64", "complex<f32>": "c64",
    "complex<f64>": "c128", "f8E4M3FN": "f8e4m3fn", "f8E5M2": "f8e5m2",
}  # fmt: skip
# the op of a region that combines two elements, as a kind of reduction
COMBINES = {
    "add": "sum", "multiply": "prod", "maximum": "max", "minimum": "min", "and": "and", "or": "or",
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One StableHLO operation with the values of its operands.

    Attributes:
        name: the op without its dialect, such as "dot_general".
        operation: the operation of MLIR's bindings.
        types: of the results.
    """

    name: str
    b: Builder
    operation: Any
    args: Sequence[Node]
    types: Sequence[TensorType]

    @property
    def type(self) -> TensorType:
        """The type of the first result."""
        return self.types[0]

    def fail(self, why: str) -> UnsupportedOp:
        """Returns an error that names the op and its line."""
        hint = "import the program from JAX or torch instead, where it comes from"
        return UnsupportedOp([(str(self.operation.name), self.b.loc)], f"{why}; {hint}")

    def attr(self, name: str) -> Any:
        """Returns an attribute as the bindings have it."""
        return self.operation.attributes[name]

    def ints(self, name: str) -> list[int]:
        """Returns an attribute that is a list of integers."""
        return [int(v) for v in self.attr(name)]

    def number(self, name: str) -> int:
        """Returns an attribute that is an integer."""
        return int(self.attr(name).value)

    def combines(self) -> str:
        """Returns the kind of reduction that the region of the operation defines."""
        (block,) = self.operation.regions[0].blocks
        names = [str(o.operation.name).removeprefix("stablehlo.") for o in block.operations]
        if len(names) != 2 or names[0] not in COMBINES or len(self.args) != 2:
            raise self.fail(f"its region is no single op of {', '.join(COMBINES)}")
        return COMBINES[names[0]]


def type_of(value: Any) -> TensorType:
    """Returns the type of a value of MLIR's bindings. Raises UnsupportedOp."""
    kind = value.type
    name = str(getattr(kind, "element_type", kind))
    try:
        dtype = dtype_named(ELEMENTS.get(name, name))
    except KeyError:
        raise UnsupportedOp([(str(kind), ())], "there is no such element type") from None
    shape = [int(s) for s in kind.shape]
    if any(s < 0 for s in shape):
        raise UnsupportedOp([(str(kind), ())], "free sizes: lower the program for known shapes")
    return tensor(dtype, *shape)


def number_like(call: Call, value: float, like: Node) -> Node:
    """Returns a scalar constant of the element type of a value."""
    return call.b.const(np.asarray(value).astype(like.dtype.numpy), like.dtype)


TABLE = LoweringTable[Call]()
lowers = TABLE.lowers

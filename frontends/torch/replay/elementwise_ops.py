"""Element types and elementwise ops of the IR in torch.

Torch has few kernels for unsigned integers wider than 8 bits: u16 and u32 are stored in int64 and
masked. u64 is stored as the bits of int64.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from stack.frontends.torch.replay import u64
from stack.frontends.torch.tensors.arrays import TORCH_DTYPE
from stack.ir.data import Data
from stack.ir.node import Node
from stack.ir.space import ArraySpace
from stack.ir.types import DType, TensorType

Tensor = torch.Tensor

_UNARY: dict[str, Callable[..., Tensor]] = {
    name: getattr(torch, name)
    for name in (
        "neg", "abs", "floor", "ceil", "round", "trunc", "sqrt", "rsqrt", "exp", "exp2", "expm1",
        "log", "log2", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh",
        "asinh", "acosh", "atanh", "sigmoid", "erf", "erfinv", "lgamma", "digamma", "isnan",
        "isfinite", "bitwise_not",
    )
}  # fmt: skip
_BINARY: dict[str, Callable[..., Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul,
    "atan2": torch.atan2, "max": torch.maximum, "min": torch.minimum, "and": torch.bitwise_and,
    "or": torch.bitwise_or, "xor": torch.bitwise_xor, "shl": torch.bitwise_left_shift,
    "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
}  # fmt: skip
_WIDE_UNSIGNED = {"u16": 0xFFFF, "u32": 0xFFFFFFFF}


def held_dtype(dtype: DType) -> torch.dtype:
    """Returns the torch type that stores an element type."""
    return torch.int64 if dtype.name in ("u16", "u32", "u64") else TORCH_DTYPE[dtype]


class TorchElementwise(ArraySpace):
    """Conversion and elementwise ops on torch tensors of one device."""

    def __init__(self, device: str | torch.device = "cpu") -> None:
        super().__init__(torch)
        self.device = torch.device(device)

    # ---- conversion

    def dtype(self, dtype: DType) -> torch.dtype:
        return held_dtype(dtype)

    def constant(self, data: Data) -> Tensor:
        kind = self.dtype(data.dtype)
        if not data.shape:
            value = u64.scalar(data.array.item(), data.dtype)
            return torch.full((), value, dtype=kind, device=self.device)
        array = data.array.copy()
        if data.dtype.name == "u64":
            array = array.view("int64")
        return torch.from_numpy(array).to(device=self.device, dtype=kind)

    def enter(self, x: Tensor, type_: TensorType) -> Tensor:
        """Converts a user's tensor to the storage type."""
        if type_.dtype.name == "u64":
            return x.view(torch.int64)
        return x.to(self.dtype(type_.dtype))

    def leave(self, x: Tensor, type_: TensorType) -> Tensor:
        """Converts a result to the element type of its IR type."""
        if type_.dtype.name == "u64":
            return x.view(torch.uint64)
        return x.to(TORCH_DTYPE[type_.dtype])

    def settle(self, value: Tensor, type_: TensorType) -> Tensor:
        mask = _WIDE_UNSIGNED.get(type_.dtype.name)
        if mask is not None:
            return value.to(torch.int64) & mask
        kind = self.dtype(type_.dtype)
        return value if value.dtype is kind else value.to(kind)

    def cast(self, x: Tensor, source: DType, target: DType) -> Tensor:
        if target.kind == "b":
            return x != 0
        if source.kind == "c" and target.kind != "c":
            x = torch.real(x)
        if source.name == "u64" and target.kind == "f":
            return u64.to_float(x, self.dtype(target))
        if target.kind == "u" and source.is_float:
            x = u64.of_float(x) if target.name == "u64" else x.to(torch.int64)
        return x.to(self.dtype(target))

    # ---- elementwise

    def elementwise(self, node: Node, *args: Tensor) -> Tensor:
        special = getattr(self, f"op_{node.op}", None)
        if special is not None:
            return special(node, *args)
        dtype = node.args[0].dtype
        if node.op in ("lt", "le", "gt", "ge", "max", "min"):
            out = _BINARY[node.op](*(u64.ordered(a, dtype) for a in args))
            return u64.ordered(out, node.dtype)
        return (_UNARY.get(node.op) or _BINARY[node.op])(*args)

    def op_abs(self, node: Node, x: Tensor) -> Tensor:
        return x if node.dtype.kind == "u" else torch.abs(x)

    def op_sign(self, node: Node, x: Tensor) -> Tensor:
        if node.dtype.kind == "u":
            return x != 0
        return torch.where(torch.isnan(x), x, torch.sign(x)) if node.dtype.is_float else x.sign()

    def op_not(self, node: Node, x: Tensor) -> Tensor:
        return torch.bitwise_not(x)

    def op_rsqrt(self, node: Node, x: Tensor) -> Tensor:
        return torch.rsqrt(x)

    def op_sigmoid(self, node: Node, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def op_div(self, node: Node, x: Tensor, y: Tensor) -> Tensor:
        if node.dtype.name == "u64":
            return u64.quotient(x, y)
        if not node.dtype.is_integer:
            return torch.true_divide(x, y)
        whole = torch.div(x, _divisor(node, y), rounding_mode="trunc")
        if _never_traps(node):
            return whole
        if node.dtype.kind == "i":
            whole = torch.where(y == -1, -x, whole)
        return torch.where(y == 0, torch.bitwise_not(torch.zeros_like(whole)), whole)

    def op_rem(self, node: Node, x: Tensor, y: Tensor) -> Tensor:
        if node.dtype.name == "u64":
            return u64.remainder(x, y)
        if not node.dtype.is_integer or _never_traps(node):
            return torch.fmod(x, y)
        rest = torch.fmod(x, _divisor(node, y))
        return torch.where(y == 0, x, rest)

    def op_pow(self, node: Node, x: Tensor, y: Tensor) -> Tensor:
        if not node.dtype.is_integer:
            return torch.pow(x, y)
        if node.dtype.name == "u64":
            return u64.power(x, y)
        whole = torch.pow(x, y.clamp(min=0))
        odd = torch.where(y % 2 == 0, 1, -1)
        unit = torch.where(x == 1, 1, torch.where(x == -1, odd, 0))
        return torch.where(y < 0, unit.to(whole.dtype), whole)

    def op_shr(self, node: Node, x: Tensor, y: Tensor) -> Tensor:
        if node.dtype.name == "u64":
            return u64.shifted_right(x, y)
        return torch.bitwise_right_shift(x, y)

    def op_select(self, node: Node, test: Tensor, yes: Tensor, no: Tensor) -> Tensor:
        return torch.where(test, yes, no)

    def op_bitcast(self, node: Node, x: Tensor) -> Tensor:
        source, target = node.args[0].dtype, node.dtype
        if held_dtype(source) is not TORCH_DTYPE[source] and source.bits != 64:
            x = x.to(torch.int32 if source.bits == 32 else torch.int16)
        if held_dtype(target) is not TORCH_DTYPE[target]:
            signed = {16: torch.int16, 32: torch.int32, 64: torch.int64}[target.bits]
            return x.view(signed).to(torch.int64)
        return x.view(TORCH_DTYPE[target])


def _never_traps(node: Node) -> bool:
    """True if an integer division is by a constant other than 0 and -1."""
    by = node.args[1]
    return by.op == "const" and not bool(np.isin(by.attrs["value"].array, (0, -1)).any())


def _divisor(node: Node, y: Tensor) -> Tensor:
    """Returns divisors, with 1 in place of each for which integer division traps.

    These are 0, and -1 for signed types: the smallest integer divided by -1 overflows. The caller
    sets the results for these divisors.
    """
    if _never_traps(node):
        return y
    bad = y == 0
    if node.dtype.kind == "i":
        bad = bad | (y == -1)
    return torch.where(bad, torch.ones_like(y), y)

"""Library steps: contractions through torch (oneDNN, MKL), everything else through NumPy."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stack.ir.data import round_bf16
from stack.ir.interpreter import evaluate
from stack.ir.node import Block, Node
from stack.ir.space import NumpySpace
from stack.ir.types import BF16, DType, TensorType, TupleType

Step = Callable[[Sequence[np.ndarray], Sequence[np.ndarray]], None]


def storage_dtype(dtype: DType) -> np.dtype[Any]:
    """How an element type is held between steps: bf16 as its 16 bits."""
    return np.dtype("uint16" if dtype is BF16 else dtype.numpy)


def decode(array: np.ndarray, dtype: DType) -> np.ndarray:
    """Storage to what the interpreter computes on."""
    if dtype is not BF16:
        return array
    return (array.astype(np.uint32) << 16).view(np.float32)


def encode(array: np.ndarray, dtype: DType) -> np.ndarray:
    """What the interpreter gives to storage."""
    if dtype is not BF16:
        return array
    return np.asarray(round_bf16(array).view(np.uint32) >> 16, dtype=np.uint16)


def step_for(node: Node) -> tuple[Step, str]:
    """What runs a library fusion, and the name of the library."""
    body = node.blocks[0]
    inner = body.nodes
    if len(inner) == 1 and body.results == (inner[0],) and importlib.util.find_spec("torch"):
        if inner[0].op == "dot" and list(inner[0].args) == list(body.params):
            from stack.backends.device.products import is_product

            if is_product(inner[0]):
                return _torch_dot(inner[0]), "torch.matmul"
        if _is_torch_conv(inner[0]) and list(inner[0].args) == list(body.params):
            return _torch_conv(inner[0]), "torch.convolution"
    return _numpy(body), "numpy"


def _numpy(body: Block) -> Step:
    space = NumpySpace()
    kinds = [p.dtype for p in body.params]

    def run(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        values = [decode(a, d) for a, d in zip(inputs, kinds, strict=True)]
        results = evaluate(body, values, space)
        for out, result, node in zip(outputs, results, body.results, strict=True):
            out[...] = encode(np.asarray(result), node.dtype)

    return run


@functools.cache
def _torch() -> Any:
    import torch

    return torch


class _Writable:
    """The same memory without the read-only flag: torch warns of it, and only reads here."""

    def __init__(self, array: np.ndarray) -> None:
        self.base = array
        known = array.__array_interface__
        self.__array_interface__ = {**known, "data": (known["data"][0], False)}


def tensor(array: np.ndarray, dtype: DType) -> Any:
    """A torch tensor over storage."""
    torch = _torch()
    if not array.flags.writeable:
        array = np.asarray(_Writable(array))
    if dtype is BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    unsigned = {"uint16": "int16", "uint32": "int32", "uint64": "int64"}
    name = unsigned.get(array.dtype.name)
    return torch.from_numpy(array.view(name) if name else array)


def _torch_dot(node: Node) -> Step:
    """A dot as one batched matrix product over permuted views; copies only where it must."""
    from stack.backends.device.products import dot_into

    product = dot_into(node)
    dtypes = [node.args[0].dtype, node.args[1].dtype, node.dtype]

    def run(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        arrays = (inputs[0], inputs[1], outputs[0])
        left, right, out = (tensor(x, d) for x, d in zip(arrays, dtypes, strict=True))
        product(left, right, out)

    return run


def _torch_conv(node: Node) -> Step:
    from stack.frontends.torch_conv import convolution

    def run(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        x, w = (tensor(a, node.dtype) for a in inputs)
        tensor(outputs[0], node.dtype).copy_(convolution(node, x, w))

    return run


def _is_torch_conv(node: Node) -> bool:
    """Whether torch has it: of floats, over one to three axes, with elements on all sides."""
    known = node.op == "conv" and node.dtype.kind == "f" and 3 <= node.tensor.rank <= 5
    return known and all(x.tensor.size for x in (node, *node.args))


def result_types(node: Node) -> tuple[TensorType, ...]:
    """Types of all results of a node."""
    return node.type.items if isinstance(node.type, TupleType) else (node.type,)

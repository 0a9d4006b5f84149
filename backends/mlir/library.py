"""Library steps: through torch (oneDNN, MKL) if it is installed, else through NumPy."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from typing import Any

import numpy as np

from stack.ir.data import decode, encode
from stack.ir.interpreter import evaluate
from stack.ir.node import Block, Node
from stack.ir.space import NumpySpace
from stack.ir.traits import is_contraction
from stack.ir.types import BF16, DType

from ..runtime.device import Fill, LibraryCall


def library_of(node: Node) -> LibraryCall:
    """Returns the library call of a library fusion."""
    body = node.blocks[0]
    inner = body.nodes
    torch_is_there = importlib.util.find_spec("torch") is not None
    if len(inner) == 1 and body.results == (inner[0],) and torch_is_there:
        if is_contraction(inner[0]) and list(inner[0].args) == list(body.params):
            from stack.backends.device.products import is_product

            if is_product(inner[0]):
                return LibraryCall("torch.matmul", _torch_dot(inner[0]))
        if _is_torch_conv(inner[0]) and list(inner[0].args) == list(body.params):
            return LibraryCall("torch.convolution", _torch_conv(inner[0]))
    if torch_is_there:
        return _torch_steps(node)
    return LibraryCall("numpy", _numpy(body))


def _torch_steps(node: Node) -> LibraryCall:
    """Runs op by op as on a device, on tensors over the same memory."""
    from stack.backends.device.library import DeviceSpace
    from stack.backends.device.library import library_of as steps_of

    found = steps_of(node, DeviceSpace(_torch().device("cpu")))
    fill, make, body = found.fill, found.make, node.blocks[0]
    entering, leaving = [p.dtype for p in body.params], [r.dtype for r in body.results]

    def run(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        held = [_typed(a, d) for a, d in zip(inputs, entering, strict=True)]
        out = [_typed(a, d) for a, d in zip(outputs, leaving, strict=True)]
        if fill is not None:
            fill(held, out)
        elif make is not None:
            for place, made in zip(out, make(held, 0), strict=True):
                place.copy_(made)

    return LibraryCall(found.name, run)


def _typed(array: np.ndarray, dtype: DType) -> Any:
    """A torch tensor over storage, unsigned if the storage is."""
    made = tensor(array, dtype)
    is_unsigned = array.dtype.kind == "u" and dtype is not BF16
    return made.view(getattr(_torch(), array.dtype.name)) if is_unsigned else made


def _numpy(body: Block) -> Fill:
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
    """The same memory without the read-only flag, which torch warns about; it is only read."""

    def __init__(self, array: np.ndarray) -> None:
        self.base = array
        known = array.__array_interface__
        self.__array_interface__ = {**known, "data": (known["data"][0], False)}


def tensor(array: np.ndarray, dtype: DType) -> Any:
    """A torch tensor over the memory of a storage array."""
    torch = _torch()
    if not array.flags.writeable:
        array = np.asarray(_Writable(array))
    if dtype is BF16:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    unsigned = {"uint16": "int16", "uint32": "int32", "uint64": "int64"}
    name = unsigned.get(array.dtype.name)
    return torch.from_numpy(array.view(name) if name else array)


def _torch_dot(node: Node) -> Fill:
    """Computes a dot by one batched matmul over permuted views; copies only if necessary."""
    from stack.backends.device.products import dot_into

    product = dot_into(node)
    dtypes = [node.args[0].dtype, node.args[1].dtype, node.dtype]

    def run(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        arrays = (inputs[0], inputs[1], outputs[0])
        left, right, out = (tensor(x, d) for x, d in zip(arrays, dtypes, strict=True))
        product(left, right, out)

    return run


def _torch_conv(node: Node) -> Fill:
    from stack.frontends.torch.replay.conv import convolution

    def run(inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> None:
        x, w = (tensor(a, node.dtype) for a in inputs)
        tensor(outputs[0], node.dtype).copy_(convolution(node, x, w))

    return run


def _is_torch_conv(node: Node) -> bool:
    """True if torch supports it: floats, one to three spatial axes, and no empty array."""
    known = node.op == "conv" and node.dtype.kind == "f" and 3 <= node.tensor.rank <= 5
    return known and all(x.tensor.size for x in (node, *node.args))

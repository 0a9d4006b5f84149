"""Library steps: torch executes what no kernel computes, op by op; a dot is one matmul.

Convolutions are cuDNN's, selected by torch, with the precision of the node. Updates of rows are in
place if the array is not used afterwards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch

from stack.frontends.torch.replay.conv import Call, Window, convolution, library
from stack.frontends.torch.replay.space import TorchSpace
from stack.ir.builder import block_of
from stack.ir.data import Data
from stack.ir.interpreter import evaluate
from stack.ir.node import Block, Node
from stack.ir.traits import is_fusion
from stack.ir.updates import updated_rows

from ..runtime.device import Fill, LibraryCall, Make
from .ordering import (
    can_select,
    can_sort,
    first_places,
    is_choice,
    selected_places,
    sorted_places,
)
from .products import dot_into, integer_dot, is_product

Tensor = torch.Tensor
ON_HOST = frozenset({"cond", "while", "opaque"})  # ops that read values on the host
# ops whose library allocates the result, with the names of the calls
MADE = {"conv": "torch.conv", "ragged_dot": "torch.grouped_mm"}


class DeviceSpace(TorchSpace):
    """Executes ops on tensors of one device. Constants are uploaded once, not at each call."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.held: dict[int, tuple[Data, Tensor]] = {}

    def constant(self, data: Data) -> Tensor:
        # keep a reference to the data, so that its id is not reused
        if id(data) not in self.held:
            self.held[id(data)] = (data, super().constant(data))
        return self.held[id(data)][1]

    def op_dot(self, node: Node, a: Tensor, b: Tensor) -> Tensor:
        if self.device.type == "cpu" or node.dtype.kind in "fc" or not is_product(node):
            return super().op_dot(node, a, b)
        if node.dtype.kind == "b":
            return integer_dot(node, a, b, torch.int32) != 0
        return integer_dot(node, a, b, self.dtype(node.dtype))

    def op_sort(self, node: Node, *args: Tensor) -> tuple[Tensor, ...]:
        axis: int = node.attrs["axis"]
        key, first = args[0], cast("int | None", node.attrs.get("first"))
        # on a GPU the host would have to wait to learn if elements are equal
        is_plain = self.device.type == "cpu" and node.args[0].dtype.name != "u64"
        if not is_plain or node.attrs["num_keys"] > 1:
            return super().op_sort(node, *args)
        start: int = node.attrs.get("start", 0)
        end = key.shape[axis] if first is None else first
        descending = bool(node.attrs["descending"])
        if first is not None and is_choice(key, axis, first):
            places = first_places(key, axis, first, descending).narrow(axis, start, end - start)
        elif can_select(key, end - start):
            places = selected_places(key, axis, range(start, end), descending)
        elif can_sort(key, axis):
            places = sorted_places(key, axis, descending).narrow(axis, start, end - start)
        else:
            return super().op_sort(node, *args)
        return tuple(torch.take_along_dim(a, places, axis) for a in args)

    def op_conv(self, node: Node, x: Tensor, w: Tensor) -> Tensor:
        if not x.numel() or not w.numel() or not node.tensor.size:
            return super().op_conv(node, x, w)
        return convolution(node, x, w, convolution_call(node))


def library_of(node: Node, space: DeviceSpace) -> LibraryCall:
    """Returns the library call of a group or of a bare tensor op."""
    body = node.blocks[0] if is_fusion(node) else block_of(node)
    operations = [n for n in body.nodes if n.op != "item"]
    inner = [n for n in operations if n.op != "slice"]
    if len(inner) == 1 and inner[0].op == "dot":
        product = _product(inner[0], body)
        if product is not None:
            return LibraryCall("torch.matmul", product)
    capturable = not {n.op for n in operations} & ON_HOST
    if len(operations) != 1 or not set(operations[0].args) <= set(body.params):
        return LibraryCall("torch", _evaluated(body, space), capturable=capturable)
    (only,) = operations
    if only.op in MADE:
        return LibraryCall(MADE[only.op], make=_allocating(body, only, space))
    update = row_update(only) if only.op == "scatter" else None
    if update is not None and list(only.args) == list(body.params):
        return LibraryCall(update.name, lambda ins, outs: update.run(ins, outs[0]))
    return LibraryCall(f"torch.{only.op}", _evaluated(body, space), capturable=capturable)


def _product(dot: Node, body: Block) -> Fill | None:
    """Returns one matmul for a dot of operands or of slices of them; None if it is not a matmul."""
    places: list[tuple[int, tuple[slice, ...]]] = []
    for arg in dot.args:
        whole = arg.args[0] if arg.op == "slice" else arg
        if whole not in body.params:
            return None
        places.append((body.params.index(whole), _cuts(arg) if arg.op == "slice" else ()))
    if dot.dtype.kind not in "fc" or not is_product(dot):
        return None
    product = dot_into(dot)

    def run(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        left, right = (inputs[i][cuts] for i, cuts in places)
        product(left, right, outputs[0])

    return run


def _cuts(node: Node) -> tuple[slice, ...]:
    at = node.attrs
    return tuple(map(slice, at["start"], at["limit"], at["step"]))


def _allocating(body: Block, node: Node, space: DeviceSpace) -> Make:
    """Returns a call of the single op of a group, whose result torch allocates.

    Used for ops that cannot write into given memory: filling an existing array would need a copy.
    """
    call = getattr(space, f"op_{node.op}")
    places = [list(body.params).index(a) for a in node.args]

    def run(inputs: Sequence[Tensor], _: int) -> list[Tensor]:
        return [call(node, *(inputs[i] for i in places)).contiguous()]

    return run


def _evaluated(body: Block, space: DeviceSpace) -> Fill:
    entering = [p.tensor for p in body.params]
    leaving = [r.tensor for r in body.results]

    def run(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        held = [space.enter(x, t) for x, t in zip(inputs, entering, strict=True)]
        results = evaluate(body, held, space)
        for out, result, type_ in zip(outputs, results, leaving, strict=True):
            out.copy_(space.leave(result, type_))

    return run


def convolution_call(node: Node) -> Call:
    """Returns the torch function that computes a `conv` node."""
    if node.dtype.kind not in "fc":
        return _integers
    rounds = node.attrs.get("precision") == "tf32"

    def call(x: Tensor, w: Tensor, window: Window) -> Tensor:
        if x.device.type == "cpu":
            return library(x, w, window)
        cudnn: Any = torch.backends.cudnn
        modes = (cudnn.benchmark, cudnn.deterministic, cudnn.enabled, rounds)
        return torch.ops.aten._convolution.default(x, w, None, *window, *modes)

    return call


def _integers(x: Tensor, w: Tensor, window: Window) -> Tensor:
    return integer_conv(x, w, window.stride, window.dilation, window.groups)


def integer_conv(
    x: Tensor, w: Tensor, stride: Sequence[int], dilation: Sequence[int], groups: int
) -> Tensor:
    """An integer convolution without padding, as a sum over the positions of the window."""
    batch, outs, depth = x.shape[0], w.shape[0], w.shape[1]
    window = w.shape[2:]
    sizes = [
        (size - gap * (extent - 1) - 1) // step + 1
        for size, extent, step, gap in zip(x.shape[2:], window, stride, dilation, strict=True)
    ]
    parts = x.reshape(batch, groups, 1, depth, *x.shape[2:])
    weights = w.reshape(groups, outs // groups, depth, *window)
    total = torch.zeros((batch, groups, outs // groups, *sizes), dtype=x.dtype, device=x.device)
    for place in itertools.product(*map(range, window)):
        cuts = [
            slice(p * gap, p * gap + (size - 1) * step + 1, step)
            for p, size, step, gap in zip(place, sizes, stride, dilation, strict=True)
        ]
        factor = weights[(..., *place)].reshape(groups, outs // groups, depth, *[1] * len(sizes))
        total += (parts[(..., *cuts)] * factor).sum(3, dtype=x.dtype)
    return total.reshape(batch, outs, *sizes)


class Update(NamedTuple):
    """A torch call, by name. `run` takes the operands and the result, which may be the first
    operand."""

    name: str
    run: Callable[[Sequence[Tensor], Tensor], None]


def row_update(node: Node) -> Update | None:
    """Returns one torch call for a `scatter` of whole rows; None if there is none.

    Supported are sums of floats, and setting a single row. In other scatters, rows could collide
    and the result would depend on their order. Sums use atomics, or are sequential if
    `torch.use_deterministic_algorithms` is set. An update that is to be dropped adds zeros.
    """
    rows = updated_rows(node)
    drops = bool(node.attrs.get("drop"))
    if rows is None or (drops and (node.attrs["kind"] != "add" or not node.tensor.size)):
        return None
    if node.attrs["kind"] == "add" and node.dtype.kind == "f":
        name = "index_add"
    elif node.attrs["kind"] == "set" and node.args[1].tensor.size == 1:
        name = "index_copy"
    else:
        return None
    axis, perm = rows
    write = getattr(Tensor, f"{name}_")
    indices = (torch.int32, torch.int64) if name == "index_add" else (torch.int64,)

    def run(inputs: Sequence[Tensor], out: Tensor) -> None:
        x, places, updates = inputs
        if out.data_ptr() != x.data_ptr():
            out.copy_(x)
        shape = (*x.shape[:axis], math.prod(places.shape), *x.shape[axis + 1 :])
        added = updates.permute(perm).reshape(shape)
        line = places.reshape(-1)
        if drops:
            count = x.shape[axis]
            inside = (line >= 0) & (line < count)
            added = added.where(inside.reshape(-1, *(1,) * (added.ndim - axis - 1)), 0)
            line = line % count  # spread over all rows: atomics on one row wait for each other
        write(out, axis, line if line.dtype in indices else line.to(torch.int64), added)

    return Update(f"torch.{name}", run)

"""Library steps: what no kernel does runs in torch, op by op; a dot is one matrix product."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from stack.frontends.torch_conv import convolution
from stack.frontends.torch_space import TorchSpace
from stack.ir.data import Data
from stack.ir.interpreter import evaluate
from stack.ir.node import Block, Node
from stack.ir.types import TupleType

from ..runtime.device import Fill, Library, Make
from .convolutions import convolution_call
from .products import dot_into, integer_dot, is_product
from .updates import row_sums

Tensor = torch.Tensor
ON_HOST = frozenset({"cond", "while", "opaque"})  # they look at values there
# ops whose results libraries allocate, and how the calls are named
MADE = {"conv": "torch.conv", "ragged_dot": "torch.grouped_mm"}


class DeviceSpace(TorchSpace):
    """Ops on tensors of one device. Constants are put there once, not at each call."""

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self.held: dict[int, tuple[Data, Tensor]] = {}

    def constant(self, data: Data) -> Tensor:
        # the data is kept beside its tensor, so that its id stays its own
        if id(data) not in self.held:
            self.held[id(data)] = (data, super().constant(data))
        return self.held[id(data)][1]

    def op_dot(self, node: Node, a: Tensor, b: Tensor) -> Tensor:
        if self.device.type == "cpu" or node.dtype.kind in "fc" or not is_product(node):
            return super().op_dot(node, a, b)
        if node.dtype.kind == "b":
            return integer_dot(node, a, b, torch.int32) != 0
        return integer_dot(node, a, b, self.dtype(node.dtype))

    def op_conv(self, node: Node, x: Tensor, w: Tensor) -> Tensor:
        if not x.numel() or not w.numel() or not node.tensor.size:
            return super().op_conv(node, x, w)
        return convolution(node, x, w, convolution_call(node))


def library_of(node: Node, space: DeviceSpace) -> Library:
    """What runs a library group or a bare tensor op."""
    body = node.blocks[0] if node.op == "fusion" else _alone(node)
    inner = [n for n in body.nodes if n.op != "item"]
    on_device = not {n.op for n in inner} & ON_HOST
    if len(inner) != 1:
        return Library("torch", _evaluated(body, space), capturable=on_device)
    only = inner[0]
    if only.op in MADE:
        return Library(MADE[only.op], make=_allocating(body, only, space))
    if list(only.args) != list(body.params):
        return Library("torch", _evaluated(body, space), capturable=on_device)
    if only.op == "dot" and only.dtype.kind in "fc" and is_product(only):
        product = dot_into(only)
        return Library("torch.matmul", lambda ins, outs: product(ins[0], ins[1], outs[0]))
    update = row_sums(only) if only.op == "scatter" else None
    if update is not None:
        return Library("torch.index_add", lambda ins, outs: update(ins, outs[0]))
    return Library(f"torch.{only.op}", _evaluated(body, space), capturable=on_device)


def _allocating(body: Block, node: Node, space: DeviceSpace) -> Make:
    """It would take a copy to have the result in a place of ours."""
    call = getattr(space, f"op_{node.op}")
    places = [list(body.params).index(a) for a in node.args]

    def run(inputs: Sequence[Tensor], _: int) -> list[Tensor]:
        return [call(node, *(inputs[i] for i in places)).contiguous()]

    return run


def _alone(node: Node) -> Block:
    params = [Node("param", (), {"name": f"p{i}"}, a.type) for i, a in enumerate(node.args)]
    inner = Node(node.op, params, node.attrs, node.type, node.blocks)
    if not isinstance(node.type, TupleType):
        return Block(params, [inner])
    items = [Node("item", (inner,), {"index": i}, t) for i, t in enumerate(node.types)]
    return Block(params, items)


def _evaluated(body: Block, space: DeviceSpace) -> Fill:
    entering = [p.tensor for p in body.params]
    leaving = [r.tensor for r in body.results]

    def run(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        held = [space.enter(x, t) for x, t in zip(inputs, entering, strict=True)]
        results = evaluate(body, held, space)
        for out, result, type_ in zip(outputs, results, leaving, strict=True):
            out.copy_(space.leave(result, type_))

    return run

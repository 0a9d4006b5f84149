"""Library steps: what no kernel does runs in torch, op by op; a dot is one matrix product."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from stack.frontends.torch_conv import convolution
from stack.frontends.torch_space import TorchSpace
from stack.ir.data import Data
from stack.ir.interpreter import evaluate
from stack.ir.node import Block, Node
from stack.ir.types import TupleType

from .convolutions import convolution_call
from .products import dot_into, integer_dot, is_product
from .updates import row_sums

Tensor = torch.Tensor
# reads the first, writes the second
Launch = Callable[[Sequence[Tensor], Sequence[Tensor]], None]
Make = Callable[[Sequence[Tensor]], list[Tensor]]
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


def library_step(node: Node, space: DeviceSpace) -> tuple[Launch, str]:
    """What runs a library group or a bare tensor op, and the name of the library call."""
    body = node.blocks[0] if node.op == "fusion" else _alone(node)
    inner = [n for n in body.nodes if n.op not in ("item", "slice")]
    if len(inner) == 1 and inner[0].op == "dot":
        product = _product(inner[0], body)
        if product is not None:
            return product, "torch.matmul"
    if len(inner) == len(body.nodes) == 1 and list(inner[0].args) == list(body.params):
        only = inner[0]
        update = row_sums(only) if only.op == "scatter" else None
        if update is not None:
            return (lambda ins, outs: update(ins, outs[0])), "torch.index_add"
        return _evaluated(body, space), f"torch.{only.op}"
    return _evaluated(body, space), "torch"


def _product(dot: Node, body: Block) -> Launch | None:
    """A dot of operands, or of parts of them, as one matrix product; None where it is none."""
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


def allocating(node: Node, space: DeviceSpace) -> tuple[Make, str] | None:
    """A library call that allocates its result, and its name, for a node in `MADE`; else None.

    It would take a copy to have the result in a place of ours.
    """
    body = node.blocks[0] if node.op == "fusion" else _alone(node) if node.op in MADE else None
    if body is None or len(body.nodes) != 1 or body.nodes[0].op not in MADE:
        return None
    (made,) = body.nodes
    call = getattr(space, f"op_{made.op}")
    places = [list(body.params).index(a) for a in made.args]
    return lambda inputs: [call(made, *(inputs[i] for i in places)).contiguous()], MADE[made.op]


def _alone(node: Node) -> Block:
    params = [Node("param", (), {"name": f"p{i}"}, a.type) for i, a in enumerate(node.args)]
    inner = Node(node.op, params, node.attrs, node.type, node.blocks)
    if not isinstance(node.type, TupleType):
        return Block(params, [inner])
    items = [Node("item", (inner,), {"index": i}, t) for i, t in enumerate(node.type.items)]
    return Block(params, items)


def _evaluated(body: Block, space: DeviceSpace) -> Launch:
    entering = [p.tensor for p in body.params]
    leaving = [r.tensor for r in body.results]

    def run(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> None:
        held = [space.enter(x, t) for x, t in zip(inputs, entering, strict=True)]
        results = evaluate(body, held, space)
        for out, result, type_ in zip(outputs, results, leaving, strict=True):
            out.copy_(space.leave(result, type_))

    return run

"""Traces equal nodes of a graph once, then copies the traced ops.

Tracing an op with fake tensors takes torch half a millisecond, copying one a tenth of that.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node, map_arg
from torch.fx import traceback as origins
from torch.fx.experimental.proxy_tensor import get_proxy_slot, set_proxy_slot, track_tensor
from torch.fx.proxy import Proxy

from stack.frontends.torch.tracing.call_keys import (
    Learner,
    Maker,
    Operands,
    Ref,
    mapped,
    operands_of,
)

# metadata that a traced op takes from its node
_ORIGIN = ("stack_trace", "nn_module_stack", "source_fn_stack")
# a result, and pairs of written operands and their new values
Found = tuple[Any, Sequence[tuple[Any, Any]]]


@dataclass(frozen=True)
class _Op:
    """A traced op to copy; its arguments have `Ref`s in place of nodes."""

    node: Node
    args: Any
    kwargs: Any
    value: Any


@dataclass(frozen=True)
class _Pattern:
    ops: Sequence[_Op]
    found: Any


class Alike:
    """The ATen ops that a trace recorded for each call, to copy them for calls with equal keys."""

    def __init__(self, tracer: Any) -> None:
        self.tracer = tracer
        self.known: dict[Hashable, _Pattern] = {}

    def __contains__(self, operands: Operands) -> bool:
        return operands.key in self.known

    def operands(self, call: Any) -> Operands | None:
        """Returns the operands of a call; None if it cannot be compared with others."""
        found = operands_of(call)
        if found is None:
            return None
        nodes = set(self._nodes(found))
        return found if len(nodes) == len(found.tensors) and None not in nodes else None

    def _nodes(self, operands: Operands) -> list[Node | None]:
        return [self._node(tensor) for tensor in operands.tensors]

    def _node(self, tensor: Any) -> Node | None:
        """Returns the tracer's graph node for a tensor; None for a constant or unknown tensor."""
        slot = get_proxy_slot(tensor, self.tracer, None)
        return None if slot is None or slot.constant is not None else slot.proxy.node

    def slots(self, operands: Operands | None) -> Sequence[tuple[Any, Any]]:
        """Returns each operand with the tracer's record of it, which a traced write replaces."""
        tensors = operands.tensors if operands is not None else ()
        return [(tensor, get_proxy_slot(tensor, self.tracer)) for tensor in tensors]

    def restore(self, slots: Sequence[tuple[Any, Any]]) -> None:
        """Restores the tracer's records of operands, as `slots` returned them before a write."""
        for tensor, slot in slots:
            set_proxy_slot(tensor, self.tracer, slot)

    def learn(self, operands: Operands, made: Sequence[Node], found: Found) -> None:
        """Stores the ops traced for a call, if they can be copied for other operands.

        They can if they read only operands of the call and each other's results. `made`: their
        nodes; `found`: the result of the call.
        """
        nodes: dict[Node | None, Ref]
        nodes = {node: Ref(True, i) for i, node in enumerate(self._nodes(operands))}
        nodes |= {node: Ref(False, i) for i, node in enumerate(made)}
        learner = Learner(operands)

        def op_of(node: Node) -> _Op:
            args, kwargs = map_arg((node.args, node.kwargs), nodes.__getitem__)  # pyright: ignore
            return _Op(node, args, kwargs, mapped(node.meta.get("val"), learner.value))

        def ref_of(part: Any) -> Any:
            return nodes[self._node(part)] if isinstance(part, torch.Tensor) else part

        try:
            pattern = _Pattern([op_of(node) for node in made], mapped(found, ref_of))
        except KeyError:  # it reads another value, or returns a constant
            return
        self.known[operands.key] = pattern

    def again(self, n: Node, operands: Operands) -> Found:
        """Copies the ops of an equal, earlier call to the graph, and returns their result."""
        pattern = self.known[operands.key]
        meta = {name: n.meta[name] for name in _ORIGIN if name in n.meta}
        meta["from_node"] = [origins.NodeSource(n, "", origins.NodeSourceAction.CREATE)]
        given, maker = self._nodes(operands), Maker(operands)
        made: list[Node] = []

        def node_of(part: Any) -> Any:
            if not isinstance(part, Ref):
                return part
            return given[part.number] if part.is_operand else made[part.number]

        for op in pattern.ops:
            args, kwargs = mapped(op.args, node_of), mapped(op.kwargs, node_of)
            name, target = op.node.name, op.node.target
            node = self.tracer.graph.create_node(op.node.op, target, args, kwargs, name)
            node.meta = {**op.node.meta, **meta, "val": mapped(op.value, maker.tensor)}
            made.append(node)

        def tensor_of(part: Any) -> Any:
            if not isinstance(part, Ref):
                return part
            if part.is_operand:
                return operands.tensors[part.number]
            value, proxy = made[part.number].meta["val"], Proxy(made[part.number], self.tracer)
            track_tensor(value, proxy, constant=None, tracer=self.tracer)
            return value

        return mapped(pattern.found, tensor_of)

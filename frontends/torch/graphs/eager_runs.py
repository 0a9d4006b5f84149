"""Runs calls of a Dynamo graph, or all of it, in eager, to see what fake tensors cannot show.

Tracing runs meta kernels, which accept more than CPU kernels do: `gelu` of integers, `addmm` of two
element types, an integer to a negative power. Only the CPU kernels know what they refuse, so each
call of a graph runs once on tensors of its element types and sizes. If the call is large and all
tensors have one shape, the sizes are reduced. If a CPU kernel refuses what the meta kernel accepts,
the whole graph runs once in eager on its example arguments, and eager's error is raised. So no list
of refused calls is needed, and calls that eager accepts are never refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node

from stack.frameworks.torch_private import (
    FUNCTORCH,
    FakeTensor,
    HigherOrderOperator,
    OpOverload,
    pytree,
    without_modes,
)
from stack.frontends.torch.importer.border import size_hint
from stack.frontends.torch.importer.origins import source_line

_OWN_MEMORY = (torch.Tensor, torch.nn.Parameter)
_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)
_CONSTANTS = (
    *(bool, int, float, complex, str, slice),
    *(torch.dtype, torch.device, torch.memory_format, torch.layout),
)
_MOST = 1 << 16  # largest number of elements of a call that is tried at full size
_LARGEST = 3  # size of an axis in a reduced call, if all tensors have one shape
_FILLS = (0, 1)  # a value that is an invalid index or divisor is avoided by the other
_TORCHS = ("torch", "_operator", "builtins")
_PARTS = ("torch.distributed", FUNCTORCH, "torch.autograd", "torch.utils")

# True if eager refuses a call, by operation and arguments.
_REFUSED: dict[Any, bool] = {}


# ---- refusals


def raise_refusals(gm: GraphModule, examples: Sequence[Any]) -> None:
    """Raise eager's error for the arguments that a Dynamo graph was traced for.

    Args:
        gm: the graph.
        examples: its arguments.
    """
    calls = [n for n in gm.graph.nodes if n.op in ("call_function", "call_method")]
    if any(getattr(n.target, "__name__", "") == "_enter_autocast" for n in calls):
        return  # autocast changes the element types of calls inside
    if any([_is_refused(n) for n in calls]):
        run_in_eager(gm, examples)


def _is_refused(node: Node) -> bool:
    """True if CPU kernels refuse a call that meta kernels accept."""
    if not _is_torchs(node):
        return False
    parts, outer = pytree.tree_flatten((node.args, node.kwargs))
    values = [p.meta.get("example_value") if isinstance(p, Node) else p for p in parts]
    leaves, inner = pytree.tree_flatten(values)
    small: list[Any] = []
    for leaf in leaves:
        if isinstance(leaf, torch.Tensor):
            is_plain = type(leaf) in _PLAIN and leaf.layout is torch.strided
            if not is_plain or leaf.device.type != "cpu":
                return False
            sizes = (size if type(size) is int else size_hint(size) for size in leaf.shape)
            small.append(_Sample(leaf.dtype, tuple(sizes)))
        elif leaf is None or leaf is Ellipsis or type(leaf) in _CONSTANTS:
            small.append(leaf)
        else:
            return False
    shapes = [x.shape for x in small if isinstance(x, _Sample)]
    if not shapes:
        return False
    if sum(map(prod, shapes)) > _MOST:
        if len(set(shapes)) > 1:
            return False  # reduced sizes may be inconsistent, and a kernel may trust them
        least = tuple(min(size, _LARGEST) for size in shapes[0])
        small = [replace(x, shape=least) if isinstance(x, _Sample) else x for x in small]
    spec = outer, inner
    key = node.op, node.target, str(spec), tuple((type(x), repr(x)) for x in small)
    if key not in _REFUSED:
        with in_eager():
            is_refused = not any(_takes(node, spec, small, "cpu", fill) for fill in _FILLS)
            _REFUSED[key] = is_refused and _takes(node, spec, small, "meta", 0)
    return _REFUSED[key]


def _is_torchs(node: Node) -> bool:
    """True if a node calls a function of torch that has no effects besides its results."""
    target: Any = node.target
    if node.op == "call_method":
        return True
    if isinstance(target, OpOverload):
        return target.namespace == "aten"
    module = getattr(target, "__module__", None) or "torch"  # None for C functions
    return (
        callable(target)
        and not isinstance(target, HigherOrderOperator)
        and module.split(".")[0] in _TORCHS
        and not module.startswith(_PARTS)
    )


@dataclass(frozen=True)
class _Sample:
    """Element type and sizes of a traced tensor, to try a call on it."""

    dtype: torch.dtype
    shape: tuple[int, ...]


def _takes(node: Node, spec: Any, values: Sequence[Any], device: str, fill: int) -> bool:
    """True if eager does not refuse a call on small tensors filled with `fill`.

    Also if it fails only for these values, or if torch cannot fill such a tensor.
    """
    try:
        leaves = [
            torch.full(x.shape, fill, dtype=x.dtype, device=device) if isinstance(x, _Sample) else x
            for x in values
        ]
    except NotImplementedError:
        return True  # torch cannot fill an element type, such as float4
    outer, inner = spec
    args, kwargs = pytree.tree_unflatten(pytree.tree_unflatten(leaves, inner), outer)
    target: Any = node.target
    try:
        if node.op == "call_method":
            getattr(args[0], target)(*args[1:], **kwargs)
        else:
            target(*args, **kwargs)
    except torch.linalg.LinAlgError:  # pyright: ignore[reportPrivateImportUsage]
        return True  # it may succeed for other values
    except Exception:
        return False
    return True


# ---- runs


@contextmanager
def in_eager() -> Iterator[None]:
    """Context without torch modes and gradients; restores the state of the CPU generator."""
    with without_modes(), torch.no_grad():
        state = torch.get_rng_state()
        try:
            yield
        finally:
            torch.set_rng_state(state)


def run_in_eager(
    gm: GraphModule, examples: Sequence[Any], seen: Callable[[Node, Any], None] | None = None
) -> None:
    """Run a graph on copies of its storages; raises its errors with the call's source line.

    Does nothing if some argument is neither a tensor with memory nor a number.

    Args:
        seen: called with each node and its value.
    """
    if all(type(x) in _OWN_MEMORY or isinstance(x, int | float) for x in examples):
        given = [x.detach() if isinstance(x, torch.Tensor) else x for x in examples]
        with in_eager():
            _Eager(gm, seen).run(*deepcopy(given))


class _Eager(Interpreter):
    def __init__(self, gm: GraphModule, seen: Callable[[Node, Any], None] | None) -> None:
        super().__init__(gm)
        self.seen = seen

    def run_node(self, n: Node) -> Any:
        try:
            value = super().run_node(n)
        except Exception as error:
            place = ", ".join(source_line(n))
            raise type(error)(f"{error}\n(at {place})" if place else str(error)) from None
        if self.seen is not None:
            self.seen(n, value)
        return value

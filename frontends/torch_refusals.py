"""Calls that torch traces and eager refuses, by element types, numbers or shapes.

Tracing asks torch what a call gives for tensors without memory, and its kernels for those take more
than those of a CPU do: `gelu` of integers, `addmm` of two element types, an integer to a negative
power. Which of them a CPU refuses only its kernels know, so they are asked: each call of a graph
runs once on tensors of its element types and sizes, as eager would, or of smaller sizes if it is
large and all tensors have one shape. Where one refuses what the kernel without memory
takes, the whole graph runs once in eager on the arguments that it was traced for, and its error is
the program's. So no list says what is refused, and nothing is refused that eager takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from stack.frontends.fx_border import size_hint
from stack.frontends.torch_eager import in_eager, run_in_eager

_PLAIN = (torch.Tensor, torch.nn.Parameter, FakeTensor)
_CONSTANTS = (
    *(bool, int, float, complex, str, slice),
    *(torch.dtype, torch.device, torch.memory_format, torch.layout),
)
_MOST = 1 << 16  # elements of a call that is tried as it is
_LARGEST = 3  # size of an axis of a larger call's tensors, where all have one shape
_FILLS = (0, 1)  # what is no index or no divisor is the other
_TORCHS = ("torch", "_operator", "builtins")
_PARTS = ("torch.distributed", "torch._C._functorch", "torch.autograd", "torch.utils")

# Whether eager refuses a call, by what it is called with.
_REFUSED: dict[Any, bool] = {}


def raise_refusals(gm: GraphModule, examples: Callable[[], Sequence[Any]]) -> None:
    """Raise what eager raises for the arguments that a graph of Dynamo's was traced for.

    Args:
        gm: the graph.
        examples: gives its arguments; it is called where a call of the graph looks refused.
    """
    calls = [n for n in gm.graph.nodes if n.op in ("call_function", "call_method")]
    if any(getattr(n.target, "__name__", "") == "_enter_autocast" for n in calls):
        return  # element types are those of calls outside of it
    with in_eager():
        is_refused = any([_is_refused(n) for n in calls])
    if is_refused:
        run_in_eager(gm, examples())


def _is_refused(node: Node) -> bool:
    """Whether eager's kernels refuse a call that those for tensors without memory take."""
    if not _is_torchs(node):
        return False
    values = pytree.tree_map_only(Node, _example, (node.args, node.kwargs))
    leaves, spec = pytree.tree_flatten(values)
    if not all(map(_is_known, leaves)) or not any(isinstance(x, torch.Tensor) for x in leaves):
        return False
    shapes = [_shape(x) for x in leaves if isinstance(x, torch.Tensor)]
    is_whole = sum(map(prod, shapes)) <= _MOST
    if not is_whole and len(set(shapes)) > 1:
        return False  # sizes that depend on each other cannot be cut: a kernel may trust them
    most = None if is_whole else _LARGEST
    small = [_small(x, most) if isinstance(x, torch.Tensor) else x for x in leaves]
    key = node.op, node.target, str(spec), tuple((type(x), repr(x)) for x in small)
    if key not in _REFUSED:
        is_refused = not any(_takes(node, spec, small, "cpu", fill) for fill in _FILLS)
        _REFUSED[key] = is_refused and _takes(node, spec, small, "meta", 0)
    return _REFUSED[key]


def _is_torchs(node: Node) -> bool:
    """Whether a call is one of torch's functions, which does nothing but give tensors."""
    target: Any = node.target
    if node.op == "call_method":
        return True
    if isinstance(target, OpOverload):
        return target.namespace == "aten"
    module = getattr(target, "__module__", None) or "torch"  # of C functions there is none
    return (
        callable(target)
        and not isinstance(target, HigherOrderOperator)
        and module.split(".")[0] in _TORCHS
        and not module.startswith(_PARTS)
    )


def _example(node: Node) -> Any:
    return node.meta.get("example_value")


def _is_known(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        is_plain = type(value) in _PLAIN and value.layout is torch.strided
        return is_plain and value.device.type == "cpu"
    return value is None or value is Ellipsis or type(value) in _CONSTANTS


@dataclass(frozen=True)
class _Small:
    """A small tensor like one that was traced."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    def filled(self, fill: int, device: str) -> torch.Tensor:
        return torch.full(self.shape, fill, dtype=self.dtype, device=device)


def _shape(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(size_hint(s) for s in tensor.shape)


def _small(tensor: torch.Tensor, most: int | None) -> _Small:
    shape = _shape(tensor)
    return _Small(tensor.dtype, tuple(s if most is None else min(s, most) for s in shape))


def _takes(node: Node, spec: Any, values: Sequence[Any], device: str, fill: int) -> bool:
    """Whether a call returns, with small tensors of one value."""
    try:
        leaves = [x.filled(fill, device) if isinstance(x, _Small) else x for x in values]
    except NotImplementedError:
        return True  # torch cannot fill an element type, such as float4
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    target: Any = node.target
    try:
        if node.op == "call_method":
            getattr(args[0], target)(*args[1:], **kwargs)
        else:
            target(*args, **kwargs)
    except torch.linalg.LinAlgError:  # pyright: ignore[reportPrivateImportUsage]
        return True  # of other values it may have what is asked for
    except Exception:
        return False
    return True
